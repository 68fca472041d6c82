/* SPDX-License-Identifier: Apache-2.0 */
/* ram_image: images of retained states in the arena; see ram.h. Core thread; nothing here blocks.
 */
#include <errno.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/tier/ram_internal.h"

uint16_t ram_find_extents(const struct ram *r, uint32_t object, struct record_extent *extents,
			  uint32_t most)
{
	uint32_t n = frames_pieces(r->arena->frames, object);

	must(n <= most);
	for (uint32_t i = 0; i < n; i++) {
		struct frames_piece piece = frames_piece(r->arena->frames, object, i);

		extents[i] = (struct record_extent){.offset = piece.offset, .bytes = piece.bytes};
	}
	return (uint16_t)n;
}

void ram_describe_image(struct ram_pool *rp, uint32_t image)
{
	const struct ram *r = rp->ram;
	const struct prefix *p = &rp->pool->prefix;
	const struct image *it = &rp->pool->images.image[image];
	const struct node *n = &p->nodes[it->node];
	struct record_extent extents[RECORD_EXTENTS_MAX];
	struct record record = {.kind = RECORD_IMAGE,
				.boot_nonce = r->boot_nonce,
				.id = it->id,
				.parent_nonce = r->boot_nonce,
				.parent_id = n->id,
				.key = {n->key.low, n->key.high},
				.epoch = p->epoch,
				.position = it->tokens,
				.n_extents =
				    ram_find_extents(r, it->place, extents, RECORD_EXTENTS_MAX),
				.payload_bytes = rp->image_bytes};
	struct record_parts parts = {.extents = extents};

	memcpy(record.stamp, p->stamp, sizeof(record.stamp));
	memcpy(record.name_space, r->shares[it->name_space].digest, sizeof(record.name_space));
	if (!record_write(arena_header(r->arena, it->place), &record, &parts))
		cannot_happen("an image lies in more frames than a record names");
}

void ram_image_begin(struct ram_pool *rp, uint32_t image, bool capture)
{
	if (capture)
		ram_describe_image(rp, image);
	frames_pin(rp->ram->arena->frames, rp->pool->images.image[image].place);
	ram_bytes_come(rp->ram, rp->pool->images.image[image].place);
}

void ram_image_end(struct ram_pool *rp, uint32_t place, bool capture, bool good, uint64_t busy_ns)
{
	struct ram_queue *way = capture ? &rp->down : &rp->up;

	way->sums.bytes += good ? rp->image_bytes : 0;
	way->sums.busy_ns += busy_ns;
	frames_unpin(rp->ram->arena->frames, place);
	if (capture && good)
		record_set_state(arena_header(rp->ram->arena, place), RECORD_VALID);
}

uint32_t ram_image_pieces(const struct ram_pool *rp, uint32_t place)
{
	return frames_pieces(rp->ram->arena->frames, place);
}

struct frames_piece ram_image_piece(const struct ram_pool *rp, uint32_t place, uint32_t i)
{
	return frames_piece(rp->ram->arena->frames, place, i);
}

/* ---- from a slot into the arena ---- */

void ram_spill(void *context, uint32_t image)
{
	struct ram_pool *rp = context;
	struct image *it = &rp->pool->images.image[image];

	must(it->spilling && it->slot != SLOT_NONE && it->place != COPY_NONE);
	ram_image_begin(rp, image, true);
	list_append(&rp->spills.waiting, &it->in_queue);
	rp->spills.asked++;
}

/* The next bytes of the image; false: there are none. */
static bool next_window(struct ram_pool *rp)
{
	struct ram_spills *s = &rp->spills;
	const struct image *it = &rp->pool->images.image[s->image];
	uint64_t from = it->slot * rp->image_bytes, at = 0, room = RAM_JOB_BYTES;
	uint32_t n = 0, pieces = ram_image_pieces(rp, it->place);

	for (uint32_t i = 0; i < pieces && n < RAM_JOB_MOVES && room > 0; i++) {
		struct frames_piece piece = ram_image_piece(rp, it->place, i);
		uint64_t skip = s->done > at ? s->done - at : 0, bytes;

		at += piece.bytes;
		if (skip >= piece.bytes)
			continue;
		bytes = piece.bytes - skip < room ? piece.bytes - skip : room;
		s->moves[n++] = (struct device_move){.to = DEVICE_ARENA,
						     .from = DEVICE_RETAINED,
						     .to_offset = piece.offset + skip,
						     .from_offset = from + s->done,
						     .bytes = bytes};
		s->done += bytes;
		room -= bytes;
	}
	s->job.n = n;
	return n > 0;
}

static void spill_done(struct job *job)
{
	struct ram_pool *rp = ((struct device_job *)(void *)job)->owner;
	struct ram_spills *s = &rp->spills;
	uint32_t image = s->image;
	int result = failpoint(ram_spill) ? -EIO : job->result;

	s->busy_ns += s->job.busy_ns;
	if (result == 0 && next_window(rp)) {
		rp->device->submit(rp->device, &s->job);
		return;
	}
	rp->in_flight--;
	s->image = IMAGE_NONE;
	s->told++;
	ram_image_end(rp, rp->pool->images.image[image].place, true, result == 0, s->busy_ns);
	pool_spilled(rp->pool, image, result);
	rp->moved(rp->context);
}

void ram_spill_kick(struct ram_pool *rp)
{
	struct ram_spills *s = &rp->spills;
	struct list *first = list_first(&s->waiting);

	if (s->image != IMAGE_NONE || !first)
		return;
	list_remove(first);
	s->image = (uint32_t)(list_entry(first, struct image, in_queue) - rp->pool->images.image);
	s->done = 0;
	s->busy_ns = 0;
	s->job = (struct device_job){.job.done = spill_done,
				     .op = DEVICE_MOVE,
				     .memory = rp->memory,
				     .moves = s->moves,
				     .owner = rp};
	rp->in_flight++;
	next_window(rp);
	rp->device->submit(rp->device, &s->job);
}
