/* SPDX-License-Identifier: Apache-2.0 */
/* frames_check: what must hold between frames, groups, slabs and objects; see frames.h. Core
 * thread; nothing here blocks. */
#include <string.h>

#include "daemon/state/frames_internal.h"

struct sums {
	uint64_t whole, targets, reserved, slabs, moves;
	uint32_t objects[FRAMES_SIZES_MAX];
	uint32_t of_size[FRAMES_SIZES_MAX]; /* slabs */
	uint32_t open_slots[FRAMES_SIZES_MAX];
	uint32_t listed[FRAMES_SIZES_MAX];
};

/* ---- frames and groups ---- */

static const char *check_group(const struct frames *f, uint32_t at)
{
	const struct group *g = &f->group[at];
	uint32_t n = 1u << g->order;
	uint32_t top = 0;

	if (g->order >= FRAME_ORDERS || g->first + n > f->arrived)
		return "a group is outside of what has arrived";
	if (g->first / f->chunk != (g->first + n - 1) / f->chunk)
		return "a group crosses the end of a chunk";
	if (g->held)
		return "a region is still held";
	if (g->free >> n)
		return "a group has free frames behind its end";
	for (uint32_t i = 0; i < n; i++) {
		const struct frame *it = &f->frame[g->first + i];

		if (it->group != at)
			return "a frame is in two groups";
		if ((it->kind == FRAME_FREE) != (g->free >> i & 1))
			return "a frame is free and its group does not say so, or the reverse";
	}
	while (top < FRAME_ORDERS && block_places(g->free, top))
		top++;
	return g->top == top ? NULL : "the largest free block of a group is wrong";
}

static const char *check_group_lists(const struct frames *f)
{
	uint32_t listed = 0;

	for (uint32_t i = 0; i < FRAME_ORDERS * (FRAME_ORDERS + 1) * (GROUP_FRAMES + 1); i++) {
		uint32_t count = i % (GROUP_FRAMES + 1);
		uint32_t top = i / (GROUP_FRAMES + 1) % (FRAME_ORDERS + 1);
		uint32_t order = i / (GROUP_FRAMES + 1) / (FRAME_ORDERS + 1);
		uint32_t before = NONE;

		for (uint32_t at = f->head[order][top][count]; at != NONE; at = f->group[at].next) {
			const struct group *g = &f->group[at];

			if (at >= f->groups || ++listed > f->groups || g->previous != before)
				return "a list of groups is broken";
			if (g->order != order || g->top != top ||
			    (uint32_t)__builtin_popcount(g->free) != count)
				return "a group is in the wrong list";
			before = at;
		}
		if ((before != NONE) != (f->counts[order][top] >> count & 1))
			return "a list of groups has members and its bit does not say so";
	}
	for (uint32_t i = 0; i < FRAME_ORDERS * (FRAME_ORDERS + 1); i++) {
		uint32_t order = i % FRAME_ORDERS, top = i / FRAME_ORDERS;

		if ((f->counts[order][top] != 0) != (f->orders[top] >> order & 1))
			return "groups of an order have a free block and its bit does not say so";
	}
	return listed == f->groups ? NULL : "a group is in no list";
}

static const char *check_frames(const struct frames *f, struct sums *sums)
{
	uint64_t room[FRAME_ORDERS] = {0};
	uint32_t frames = 0, free_frames = 0;

	for (uint32_t at = 0; at < f->groups; at++) {
		const char *wrong = check_group(f, at);

		if (wrong)
			return wrong;
		frames += 1u << f->group[at].order;
		free_frames += (uint32_t)__builtin_popcount(f->group[at].free);
		room[f->group[at].order] += 1u << f->group[at].order;
	}
	if (frames != f->arrived || memcmp(room, f->room, sizeof(room)) != 0)
		return "the groups are not what has arrived";
	if (free_frames != f->free_frames)
		return "the number of free frames is wrong";
	for (uint32_t at = 0; at < f->arrived; at++) {
		sums->whole += f->frame[at].kind == FRAME_WHOLE;
		sums->targets += f->frame[at].kind == FRAME_TARGET;
		if (f->frame[at].kind == FRAME_ABSENT)
			return "a frame has arrived and does not say so";
	}
	return check_group_lists(f);
}

/* ---- slabs ---- */

static const char *check_objects_of(const struct frames *f, uint32_t at)
{
	const struct slab *s = &f->slab[at];
	uint64_t seen[SLOT_WORDS] = {0};
	uint32_t objects = 0, pinned = 0, leaving = 0, before = NONE;

	for (uint32_t i = s->first_object; i != NONE; i = f->object[i].next) {
		const struct object *o = &f->object[i];
		uint64_t bit = 1ull << o->slot % 64;

		if (i >= f->fresh || !o->used || o->slab != at || o->size != s->size ||
		    o->previous != before || ++objects > s->used)
			return "the objects of a slab are not those that lie in it";
		if (seen[o->slot / 64] & bit)
			return "two objects are in one slot";
		if (s->free[o->slot / 64] & bit)
			return "an object is in a free slot";
		seen[o->slot / 64] |= bit;
		pinned += o->pins > 0;
		leaving += o->leaving;
		before = i;
	}
	if (objects + s->reserved != s->used)
		return "a slab counts slots that nobody has";
	if (pinned != s->pinned || leaving != s->leaving)
		return "the pinned or leaving objects of a slab are miscounted";
	return NULL;
}

static const char *check_slab(const struct frames *f, uint32_t at, struct sums *sums)
{
	const struct slab *s = &f->slab[at];
	const struct size *z = &f->sizes[s->size];
	uint32_t n = 1u << z->order, free = 0, bucket = BUCKET_OUT;

	if (!z->references || z->slots == 0 || s->held)
		return "a slab is of no size, or still held";
	for (uint32_t i = at; i < at + n; i++) {
		if (i >= f->arrived || f->frame[i].kind != FRAME_SLAB || f->frame[i].owner != at ||
		    f->frame[i].group != f->frame[at].group)
			return "a slab and another owner share a frame";
	}
	for (uint32_t i = 0; i < SLOT_WORDS; i++) {
		uint64_t beyond = i * 64 + 64 <= z->slots ? 0
				  : i * 64 >= z->slots    ? UINT64_MAX
							  : UINT64_MAX << z->slots % 64;

		if (s->free[i] & beyond)
			return "a slab has a slot behind its end";
		free += (uint32_t)__builtin_popcountll(s->free[i]);
	}
	if (s->used == 0 || s->used + free != z->slots)
		return "a slab is empty, or its free slots are miscounted";
	if (s->used < z->slots)
		bucket = s->leaving ? BUCKET_LEAVING : (uint32_t)s->used * BUCKET_FILLS / z->slots;
	if (s->bucket != bucket || s->counted != (bucket < BUCKET_FILLS ? free : 0))
		return "a slab is in the wrong bucket";
	sums->slabs++;
	sums->of_size[s->size]++;
	sums->open_slots[s->size] += s->counted;
	sums->listed[s->size] += bucket != BUCKET_OUT;
	sums->reserved += s->reserved;
	return check_objects_of(f, at);
}

static const char *check_buckets(const struct frames *f, uint32_t size, uint32_t listed)
{
	const struct size *z = &f->sizes[size];
	uint32_t n = 0;

	for (uint32_t bucket = 0; bucket < BUCKETS; bucket++) {
		uint32_t before = NONE;

		for (uint32_t at = z->bucket[bucket]; at != NONE; at = f->slab[at].next) {
			if (at >= f->arrived || ++n > listed || f->slab[at].size != size ||
			    f->slab[at].bucket != bucket || f->slab[at].previous != before)
				return "a bucket of slabs is broken";
			before = at;
		}
		if ((before != NONE) != (z->filled >> bucket & 1))
			return "a bucket has slabs and its bit does not say so";
	}
	return n == listed ? NULL : "a slab is in no bucket";
}

static const char *check_slabs(const struct frames *f, struct sums *sums)
{
	const char *wrong;

	for (uint32_t at = 0; at < f->arrived; at++) {
		if (f->frame[at].kind != FRAME_SLAB)
			continue;
		if (f->frame[at].owner != at) {
			/* It is looked at with its first frame, which must count it. */
			uint32_t first = f->frame[at].owner;

			if (first >= at || f->frame[first].kind != FRAME_SLAB ||
			    f->frame[first].owner != first ||
			    at - first >= 1u << f->sizes[f->slab[first].size].order)
				return "a frame is of a slab that does not have it";
			continue;
		}
		wrong = check_slab(f, at, sums);
		if (wrong)
			return wrong;
	}
	for (uint32_t i = 0; i < FRAMES_SIZES_MAX; i++) {
		if (!f->sizes[i].references)
			continue;
		if (sums->of_size[i] != f->sizes[i].slabs ||
		    sums->open_slots[i] != f->sizes[i].open_slots)
			return "the slabs of a size are miscounted";
		wrong = check_buckets(f, i, sums->listed[i]);
		if (wrong)
			return wrong;
	}
	return sums->slabs == f->slabs ? NULL : "the number of slabs is wrong";
}

/* ---- objects ---- */

static const char *check_whole(const struct frames *f, uint32_t object, uint32_t *leaving)
{
	const struct object *o = &f->object[object];
	uint32_t n = f->sizes[o->size].whole;

	if ((o->root == NONE) != (n == 0))
		return "an object has no first frame, or one too many";
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = frames_whole(f, o->root, i);
		const struct frame *it = at < f->arrived ? &f->frame[at] : NULL;

		if (!it || it->kind != FRAME_WHOLE || it->owner != object)
			return "an object and another owner share a frame";
		if (it->parent != (i ? frames_whole(f, o->root, (i - 1) / 2) : NONE))
			return "a frame of an object does not know the one before it";
		for (uint32_t side = 0; side < 2; side++) {
			if ((it->child[side] != NONE) != (2 * i + 1 + side < n))
				return "a frame of an object has one too many behind it";
		}
		*leaving += it->leaving;
	}
	return NULL;
}

static const char *check_object(const struct frames *f, uint32_t object, struct sums *sums)
{
	const struct object *o = &f->object[object];
	uint32_t leaving = o->leaving;
	const char *wrong;

	if (!f->sizes[o->size].references)
		return "an object is of no size";
	sums->objects[o->size]++;
	sums->whole -= f->sizes[o->size].whole;
	sums->moves += o->moves;
	wrong = check_whole(f, object, &leaving);
	if (wrong)
		return wrong;
	if (f->sizes[o->size].slots &&
	    (f->frame[o->slab].kind != FRAME_SLAB || f->frame[o->slab].owner != o->slab))
		return "an object lies in no slab";
	return leaving == o->moves ? NULL : "an object counts moves that are not";
}

static const char *check_objects(const struct frames *f, struct sums *sums)
{
	uint64_t need[FRAME_ORDERS] = {0}, used_bytes = 0;
	uint32_t objects = 0, unused = 0;

	for (uint32_t i = 0; i < f->fresh; i++) {
		const char *wrong = f->object[i].used ? check_object(f, i, sums) : NULL;

		if (wrong)
			return wrong;
		objects += f->object[i].used;
	}
	for (uint32_t at = f->first_free; at != NONE; at = f->object[at].next) {
		if (at >= f->fresh || f->object[at].used || ++unused > f->fresh)
			return "the list of free numbers is broken";
	}
	if (objects != f->objects || unused + objects != f->fresh)
		return "the number of objects is wrong";
	for (uint32_t i = 0; i < FRAMES_SIZES_MAX; i++) {
		const struct size *z = &f->sizes[i];

		if (!z->references)
			continue;
		if (z->objects != sums->objects[i])
			return "the objects of a size are miscounted";
		used_bytes += z->objects * z->bytes;
		need[0] += (uint64_t)z->objects * z->whole;
		if (z->slots)
			need[z->order] += ((uint64_t)z->objects + z->slots - 1) / z->slots
					  << z->order;
	}
	if (used_bytes != f->used_bytes)
		return "the bytes of all objects are wrong";
	if (memcmp(need, f->need, sizeof(need)) != 0)
		return "the frames that all objects need are wrong";
	if (sums->whole != 0)
		return "a frame is of an object that does not have it";
	return sums->targets + sums->reserved == sums->moves
		   ? NULL
		   : "the targets of moves are not as many as the moves";
}

const char *frames_check(const struct frames *f)
{
	struct sums sums = {0};
	const char *wrong = check_frames(f, &sums);

	if (!wrong)
		wrong = check_slabs(f, &sums);
	if (!wrong)
		wrong = check_objects(f, &sums);
	return wrong;
}
