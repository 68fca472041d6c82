/* SPDX-License-Identifier: Apache-2.0 */
/* frames: see frames.h. Objects, and what fits. Core thread; nothing here blocks. */
#include "daemon/state/frames.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/panic.h"
#include "daemon/state/frames_internal.h"

/* ---- making one ---- */

static void *reserve(uint64_t count, uint64_t bytes)
{
	void *m = mmap(NULL, count * bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

static void let_go(void *memory, uint64_t count, uint64_t bytes)
{
	if (memory)
		munmap(memory, count * bytes);
}

static uint32_t largest_order(uint32_t capacity, uint32_t chunk)
{
	uint32_t order = 0;

	while (order < FRAME_ORDERS - 1 && 2u << order <= capacity && 2u << order <= chunk)
		order++;
	return order;
}

int frames_new(uint32_t capacity, uint32_t frames_a_chunk, uint32_t most_objects,
	       struct frames **out)
{
	struct frames *f = calloc(1, sizeof(*f));

	must(capacity > 0 && capacity <= FRAMES_MAX && frames_a_chunk > 0);
	must(most_objects > 0 && most_objects <= OBJECTS_MAX);
	if (!f)
		return -ENOMEM;
	f->capacity = capacity;
	f->chunk = frames_a_chunk;
	f->most_objects = most_objects;
	f->largest_order = largest_order(capacity, frames_a_chunk);
	f->first_free = NONE;
	memset(f->head, 0xff, sizeof(f->head));
	memset(f->clearing, 0xff, sizeof(f->clearing));
	f->frame = reserve(capacity, sizeof(*f->frame));
	f->slab = reserve(capacity, sizeof(*f->slab));
	f->group = reserve(capacity, sizeof(*f->group));
	f->object = reserve(most_objects, sizeof(*f->object));
	if (!f->frame || !f->slab || !f->group || !f->object) {
		frames_free(&f);
		return -ENOMEM;
	}
	*out = f;
	return 0;
}

void frames_free(struct frames **f)
{
	struct frames *it = *f;

	*f = NULL;
	if (!it)
		return;
	let_go(it->frame, it->capacity, sizeof(*it->frame));
	let_go(it->slab, it->capacity, sizeof(*it->slab));
	let_go(it->group, it->capacity, sizeof(*it->group));
	let_go(it->object, it->most_objects, sizeof(*it->object));
	free(it);
}

/* ---- sizes ---- */

int frames_size(struct frames *f, uint64_t bytes)
{
	uint32_t at = NONE;

	must(bytes > 0 && bytes <= f->capacity * FRAME_BYTES);
	for (uint32_t i = 0; i < FRAMES_SIZES_MAX; i++) {
		struct size *z = &f->sizes[i];

		if (z->references && z->bytes == bytes) {
			must(z->references < UINT32_MAX);
			z->references++;
			return (int)i;
		}
		if (!z->references && at == NONE)
			at = i;
	}
	if (at == NONE)
		return -ENOSPC;
	f->sizes[at] = (struct size){.bytes = bytes, .references = 1};
	memset(f->sizes[at].bucket, 0xff, sizeof(f->sizes[at].bucket));
	size_lay_out(&f->sizes[at], f->largest_order);
	return (int)at;
}

static struct size *size_at(struct frames *f, int size)
{
	must(size >= 0 && size < FRAMES_SIZES_MAX);
	must(f->sizes[size].references > 0);
	return &f->sizes[size];
}

void frames_forget_size(struct frames *f, int size)
{
	struct size *z = size_at(f, size);

	z->references--;
	must(z->references > 0 || (z->objects == 0 && z->slabs == 0));
}

/* ---- what fits ---- */

/* The frames of the fewest slabs that so many objects of a size need. */
static uint64_t packed(const struct size *z, uint64_t objects)
{
	return z->slots ? (objects + z->slots - 1) / z->slots << z->order : 0;
}

/* There are so many objects of a size now instead of so many. */
static void change_need(const struct size *z, uint64_t from, uint64_t to,
			uint64_t need[FRAME_ORDERS])
{
	need[z->order] += packed(z, to) - packed(z, from);
	need[0] += (to - from) * z->whole;
}

/*
 * Is there room for blocks of all orders, in so many frames each? Blocks and groups are powers of
 * two, so there is unless those of some order and larger ones need more than the groups that are
 * not smaller.
 */
static bool has_room(const struct frames *f, const uint64_t need[FRAME_ORDERS])
{
	uint64_t needed = 0, room = 0;

	for (uint32_t order = FRAME_ORDERS; order-- > 0;) {
		needed += need[order];
		room += f->room[order];
		if (needed > room)
			return false;
	}
	return true;
}

bool frames_would_fit_without(const struct frames *f, int size, const uint32_t *given)
{
	uint64_t need[FRAME_ORDERS];
	uint64_t objects = f->objects;
	uint64_t same;

	must(size >= 0 && size < FRAMES_SIZES_MAX && f->sizes[size].references);
	memcpy(need, f->need, sizeof(need));
	same = f->sizes[size].objects;
	if (given) {
		same -= given[size];
		for (uint32_t i = 0; i < FRAMES_SIZES_MAX; i++) {
			const struct size *z = &f->sizes[i];

			if (!given[i])
				continue;
			must(z->references && given[i] <= z->objects);
			objects -= given[i];
			change_need(z, z->objects, z->objects - given[i], need);
		}
	}
	change_need(&f->sizes[size], same, same + 1, need);
	return objects < f->most_objects && has_room(f, need);
}

/*
 * Of so many bytes that are given back, how many frames less do slabs of this order and larger
 * ones need at least (and whole frames, for order 0)? The bytes may all be elsewhere, and be those
 * that can go from each size without a slab less.
 */
static uint64_t sure_frames(const struct frames *f, uint32_t size, uint32_t order, uint64_t bytes)
{
	uint64_t elsewhere = order ? f->used_bytes : 0, idle = 0;

	for (uint32_t i = 0; i < FRAMES_SIZES_MAX; i++) {
		const struct size *z = &f->sizes[i];
		uint64_t objects = z->objects + (i == size); /* with the one that is to come */

		if (!z->slots || z->order < order || !objects || !z->references)
			continue;
		idle += (objects - 1) % z->slots * z->rest_bytes;
		if (order)
			elsewhere -= (uint64_t)z->objects * z->rest_bytes;
	}
	if (bytes <= elsewhere + idle)
		return 0;
	return (bytes - elsewhere - idle + FRAME_BYTES - 1) / FRAME_BYTES;
}

bool frames_would_fit(const struct frames *f, int size, uint64_t freed_bytes)
{
	uint64_t need[FRAME_ORDERS] = {0};
	uint64_t needed = 0, room = 0;
	const struct size *z;

	must(size >= 0 && size < FRAMES_SIZES_MAX && f->sizes[size].references);
	z = &f->sizes[size];
	if (freed_bytes == 0 && f->objects == f->most_objects)
		return false;
	if (freed_bytes >= f->used_bytes) {
		change_need(z, 0, 1, need);
		return has_room(f, need);
	}
	memcpy(need, f->need, sizeof(need));
	change_need(z, z->objects, z->objects + 1ull, need);
	for (uint32_t order = FRAME_ORDERS; order-- > 0;) {
		needed += need[order];
		room += f->room[order];
		if (needed > room + sure_frames(f, (uint32_t)size, order, freed_bytes))
			return false;
	}
	return true;
}

/* ---- objects ---- */

static struct object *object_at(const struct frames *f, uint32_t object)
{
	must(object < f->fresh && f->object[object].used);
	return &f->object[object];
}

static void count_object(struct frames *f, struct size *z, bool more)
{
	uint32_t objects = more ? z->objects + 1 : z->objects - 1;

	change_need(z, z->objects, objects, f->need);
	z->objects = objects;
	f->objects += more ? 1 : UINT32_MAX;
	f->used_bytes += more ? z->bytes : -z->bytes;
}

static uint32_t take_number(struct frames *f)
{
	uint32_t at = f->first_free;

	if (at == NONE) {
		must(f->fresh < f->most_objects);
		return f->fresh++;
	}
	must(!f->object[at].used);
	f->first_free = f->object[at].next;
	return at;
}

uint32_t frames_whole(const struct frames *f, uint32_t root, uint32_t i)
{
	uint32_t at = root, path = i + 1;

	/* Below its highest bit, a bit a step: left or right. */
	for (uint32_t bits = 31 - (uint32_t)__builtin_clz(path); bits-- > 0;)
		at = f->frame[at].child[path >> bits & 1];
	return at;
}

static void take_whole(struct frames *f, uint32_t object, uint32_t n)
{
	struct object *o = &f->object[object];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = block_take(f, 0, FRAME_WHOLE);
		uint32_t parent = i ? frames_whole(f, o->root, (i - 1) / 2) : NONE;

		must(at != NONE);
		f->frame[at].owner = object;
		f->frame[at].parent = parent;
		f->frame[at].child[0] = f->frame[at].child[1] = NONE;
		if (parent == NONE)
			o->root = at;
		else
			f->frame[parent].child[(i - 1) & 1] = at;
	}
}

/* A slab with a free slot, made if need be, and frames enough for what does not go there. */
static bool find_slab(struct frames *f, int size, struct size *z, uint32_t *slab)
{
	*slab = NONE;
	if (f->objects == f->most_objects || f->free_frames < z->whole)
		return false;
	if (!z->slots)
		return true;
	*slab = slab_open(z);
	if (*slab == NONE && f->free_frames - z->whole >= 1u << z->order) {
		*slab = slab_make(f, (uint32_t)size);
		if (*slab != NONE)
			f->clearing[z->order] = NONE;
	}
	/* It hinders the moves from there, which are done to make such a place. */
	if (*slab == NONE)
		*slab = z->bucket[BUCKET_LEAVING];
	return *slab != NONE;
}

int frames_take(struct frames *f, int size, uint32_t *object)
{
	struct size *z = size_at(f, size);
	uint32_t slab, number;
	struct object *o;

	if (!find_slab(f, size, z, &slab))
		return frames_would_fit_without(f, size, NULL) ? FRAMES_SPREAD : FRAMES_FULL;
	number = take_number(f);
	o = &f->object[number];
	*o = (struct object){.next = NONE,
			     .previous = NONE,
			     .root = NONE,
			     .used = 1,
			     .size = (uint32_t)size & (FRAMES_SIZES_MAX - 1)};
	if (slab != NONE) {
		o->slab = slab & (FRAMES_MAX - 1);
		o->slot = slot_take(f, slab) & (SLOTS_MAX - 1);
		slab_link(f, slab, number);
	}
	take_whole(f, number, z->whole);
	count_object(f, z, true);
	*object = number;
	return 0;
}

void frames_give(struct frames *f, uint32_t object)
{
	struct object *o = object_at(f, object);
	struct size *z = &f->sizes[o->size];

	must(o->pins == 0 && o->moves == 0);
	if (z->slots) {
		slab_unlink(f, o->slab, object);
		slot_give(f, o->slab, o->slot);
	}
	for (uint32_t i = z->whole; i-- > 0;)
		block_give(f, frames_whole(f, o->root, i), 0);
	count_object(f, z, false);
	*o = (struct object){.next = f->first_free};
	f->first_free = object;
}

void frames_pin(struct frames *f, uint32_t object)
{
	struct object *o = object_at(f, object);

	must(o->pins < PINS_MAX);
	if (o->pins++ == 0 && f->sizes[o->size].slots)
		f->slab[o->slab].pinned++;
}

void frames_unpin(struct frames *f, uint32_t object)
{
	struct object *o = object_at(f, object);

	must(o->pins > 0);
	if (--o->pins == 0 && f->sizes[o->size].slots) {
		must(f->slab[o->slab].pinned > 0);
		f->slab[o->slab].pinned--;
	}
}

uint32_t frames_pieces(const struct frames *f, uint32_t object)
{
	const struct size *z = &f->sizes[object_at(f, object)->size];

	return z->whole + (z->slots > 0);
}

struct frames_piece frames_piece(const struct frames *f, uint32_t object, uint32_t i)
{
	const struct object *o = object_at(f, object);
	const struct size *z = &f->sizes[o->size];
	uint64_t left = z->bytes - i * FRAME_BYTES;

	must(i < z->whole + (z->slots > 0));
	if (i == z->whole)
		return (struct frames_piece){slot_offset(f, o->slab, o->slot), z->rest_bytes};
	return (struct frames_piece){frame_offset(frames_whole(f, o->root, i)),
				     left < FRAME_BYTES ? left : FRAME_BYTES};
}

struct frames_sums frames_sums(const struct frames *f)
{
	return (struct frames_sums){
	    .capacity_bytes = frame_offset(f->arrived),
	    .used_bytes = f->used_bytes,
	    .slab_bytes = frame_offset(f->arrived - f->free_frames),
	    .objects = f->objects,
	    .slabs = f->slabs,
	};
}
