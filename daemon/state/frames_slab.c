/* SPDX-License-Identifier: Apache-2.0 */
/* frames_slab: slabs, their slots, and the sizes that they are of; see frames.h. Core thread;
 * nothing here blocks. */
#include "daemon/base/panic.h"
#include "daemon/state/frames_internal.h"

#define WASTE_PERCENT 6

/* ---- how a size lies in frames ---- */

void size_lay_out(struct size *z, uint32_t largest_order)
{
	uint64_t rest = z->bytes % FRAME_BYTES;
	uint64_t least = UINT64_MAX;

	z->whole = (uint32_t)(z->bytes / FRAME_BYTES);
	z->slots = 0;
	z->rest_bytes = 0;
	if (rest == 0)
		return;
	if ((FRAME_BYTES - rest) * 100 < WASTE_PERCENT * (z->whole + 1) * FRAME_BYTES) {
		z->whole++;
		return;
	}
	z->rest_bytes = (uint32_t)rest;
	z->slot_bytes = rest < FRAMES_SLOT_MIN ? FRAMES_SLOT_MIN : (uint32_t)rest;
	for (uint32_t order = 0; order <= largest_order; order++) {
		uint64_t bytes = FRAME_BYTES << order;
		uint64_t slots = bytes / z->slot_bytes;
		uint64_t wasted = bytes - slots * z->slot_bytes;

		/* Blocks of different orders are compared per 16 frames. */
		if (wasted << (FRAME_ORDERS - order) >= least)
			continue;
		least = wasted << (FRAME_ORDERS - order);
		z->order = (uint8_t)order;
		z->slots = (uint16_t)slots;
		if (wasted * 100 < WASTE_PERCENT * bytes)
			break;
	}
	must(z->slots > 0 && z->slots <= SLOTS_MAX);
}

/* ---- buckets ---- */

static void unlist(struct frames *f, uint32_t at)
{
	struct slab *s = &f->slab[at];
	struct size *z = &f->sizes[s->size];

	if (s->bucket == BUCKET_OUT)
		return;
	if (s->next != NONE)
		f->slab[s->next].previous = s->previous;
	if (s->previous != NONE)
		f->slab[s->previous].next = s->next;
	else
		z->bucket[s->bucket] = s->next;
	if (z->bucket[s->bucket] == NONE)
		z->filled &= (uint16_t) ~(1u << s->bucket);
}

static void list(struct frames *f, uint32_t at, uint32_t bucket)
{
	struct slab *s = &f->slab[at];
	struct size *z = &f->sizes[s->size];

	s->bucket = (uint8_t)bucket;
	if (bucket == BUCKET_OUT)
		return;
	s->previous = NONE;
	s->next = z->bucket[bucket];
	if (s->next != NONE)
		f->slab[s->next].previous = at;
	z->bucket[bucket] = at;
	z->filled |= (uint16_t)(1u << bucket);
}

void slab_settle(struct frames *f, uint32_t slab)
{
	struct slab *s = &f->slab[slab];
	struct size *z = &f->sizes[s->size];
	uint32_t bucket = BUCKET_OUT;
	uint32_t counted = 0;

	if (!s->held && s->used < z->slots)
		bucket = s->leaving ? BUCKET_LEAVING : (uint32_t)s->used * BUCKET_FILLS / z->slots;
	if (bucket < BUCKET_FILLS)
		counted = z->slots - s->used;
	z->open_slots += counted - s->counted;
	s->counted = (uint16_t)counted;
	if (bucket == s->bucket)
		return;
	unlist(f, slab);
	list(f, slab, bucket);
}

uint32_t slab_open(const struct size *z)
{
	uint32_t fills = z->filled & ((1u << BUCKET_FILLS) - 1);

	return fills ? z->bucket[31 - __builtin_clz(fills)] : NONE;
}

/* ---- slabs and slots ---- */

uint32_t slab_make(struct frames *f, uint32_t size)
{
	struct size *z = &f->sizes[size];
	uint32_t at = block_take(f, z->order, FRAME_SLAB);
	struct slab *s;

	must(z->slots > 0);
	if (at == NONE)
		return NONE;
	s = &f->slab[at];
	*s = (struct slab){.first_object = NONE, .size = (uint8_t)size, .bucket = BUCKET_OUT};
	for (uint32_t i = 0; i < z->slots; i += 64)
		s->free[i / 64] = z->slots - i < 64 ? (1ull << (z->slots - i)) - 1 : UINT64_MAX;
	for (uint32_t i = at; i < at + (1u << z->order); i++)
		f->frame[i].owner = at;
	z->slabs++;
	f->slabs++;
	return at;
}

static void end_slab(struct frames *f, uint32_t at)
{
	struct slab *s = &f->slab[at];
	struct size *z = &f->sizes[s->size];

	must(s->first_object == NONE && s->reserved == 0 && s->pinned == 0 && s->leaving == 0);
	must(z->slabs > 0 && f->slabs > 0 && !s->held);
	z->open_slots -= s->counted;
	unlist(f, at);
	block_give(f, at, z->order);
	z->slabs--;
	f->slabs--;
}

uint32_t slot_take(struct frames *f, uint32_t slab)
{
	struct slab *s = &f->slab[slab];
	uint32_t word = 0, slot;

	must(s->used < f->sizes[s->size].slots);
	while (!s->free[word])
		word++;
	slot = word * 64 + (uint32_t)__builtin_ctzll(s->free[word]);
	s->free[word] &= s->free[word] - 1;
	s->used++;
	slab_settle(f, slab);
	return slot;
}

void slot_give(struct frames *f, uint32_t slab, uint32_t slot)
{
	struct slab *s = &f->slab[slab];
	uint64_t bit = 1ull << slot % 64;

	must(slot < f->sizes[s->size].slots && s->used > 0);
	must(!(s->free[slot / 64] & bit));
	s->free[slot / 64] |= bit;
	s->used--;
	if (s->used == 0)
		end_slab(f, slab);
	else
		slab_settle(f, slab);
}

void slab_link(struct frames *f, uint32_t slab, uint32_t object)
{
	struct slab *s = &f->slab[slab];
	struct object *o = &f->object[object];

	o->previous = NONE;
	o->next = s->first_object;
	if (o->next != NONE)
		f->object[o->next].previous = object;
	s->first_object = object;
}

void slab_unlink(struct frames *f, uint32_t slab, uint32_t object)
{
	struct slab *s = &f->slab[slab];
	const struct object *o = &f->object[object];

	if (o->next != NONE)
		f->object[o->next].previous = o->previous;
	if (o->previous != NONE) {
		f->object[o->previous].next = o->next;
	} else {
		must(s->first_object == object);
		s->first_object = o->next;
	}
}
