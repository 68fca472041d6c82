/* SPDX-License-Identifier: Apache-2.0 */

/* frames_world: see frames_world.h. One thread. */

#include "tests/unit/frames_world.h"

#include <stdlib.h>
#include <string.h>

#define OF_MOVE (1ull << 63) /* a cell that is the target of a move under way */

/* Worked out by hand. */
static const struct world_size world_sizes[WORLD_SIZES] = {
    {8, 0, 1, 16},    /* wastes nothing */
    {84, 0, 2, 3},    /* 1.6 % of two; 34 % of one */
    {100, 0, 4, 5},   /* 2.3 % of four; 22 % of one and of two */
    {48, 0, 8, 21},   /* 1.6 % of eight; 6.25 % of four */
    {90, 0, 8, 11},   /* 3.3 % of eight; 12 % of four */
    {115, 0, 16, 17}, /* 4.5 % of sixteen; 10 % of one, two, four, eight */
    {125, 1, 0, 0},   /* 2.3 % of one */
    {384, 3, 0, 0},   /* nothing */
    {212, 1, 2, 3},   /* one, and 84 */
    {264, 2, 1, 16},  /* two, and 8 */
    {499, 4, 0, 0},   /* 2.5 % of four */
    {2570, 21, 0, 0}, /* 4.4 % of 21 */
};

/* The same where slabs cannot be so large. */
static const struct world_size world_size_of_8[] = {{115, 0, 1, 1}};
static const struct world_size world_sizes_of_4[] = {{48, 0, 2, 5}, {90, 0, 4, 5}};

uint32_t world_below(struct world *w, uint32_t n)
{
	return (uint32_t)random_below(&w->random, n);
}

void world_check(const struct world *w)
{
	const char *wrong = frames_check(w->f);

	if (wrong)
		fail_msg("%s", wrong);
}

void world_init(struct world *w, uint32_t capacity, uint32_t chunk, uint32_t most_objects)
{
	*w = (struct world){
	    .random = {1}, .capacity = capacity, .chunk = chunk, .most_objects = most_objects};
	assert_int_equal(frames_new(capacity, chunk, most_objects, &w->f), 0);
	w->cell = calloc(capacity * FRAME_CELLS, sizeof(*w->cell));
	w->object = calloc(most_objects, sizeof(*w->object));
	w->move = calloc(most_objects + FRAMES_MOVES_MAX, sizeof(*w->move));
	assert_true(w->cell && w->object && w->move);
	memcpy(w->sizes, world_sizes, sizeof(world_sizes));
	if (chunk < 16 || capacity < 16)
		w->sizes[5] = world_size_of_8[0];
	if (chunk < 8 || capacity < 8)
		memcpy(&w->sizes[3], world_sizes_of_4, sizeof(world_sizes_of_4));
	for (uint32_t i = 0; i < WORLD_SIZES; i++)
		w->size[i] = -1;
}

void world_deinit(struct world *w)
{
	frames_free(&w->f);
	free(w->cell);
	free(w->object);
	free(w->move);
	*w = (struct world){0};
}

void world_arrive(struct world *w, uint32_t n)
{
	frames_arrived(w->f, n);
	w->arrived += n;
}

void world_use_size(struct world *w, uint32_t size)
{
	if (w->size[size] < 0)
		w->size[size] = frames_size(w->f, (uint64_t)w->sizes[size].cells * CELL);
	assert_true(w->size[size] >= 0);
}

/* ---- where bytes lie ---- */

static uint64_t world_stamp(const struct world *w, uint32_t object, uint64_t cell)
{
	return w->object[object].serial << 16 | cell;
}

/* All cells of an object, in order: each is `before` (0 for free, or its stamp) and becomes the
 * other. */
static void world_walk(struct world *w, uint32_t object, bool put)
{
	uint32_t pieces = frames_pieces(w->f, object), at = 0;

	for (uint32_t i = 0; i < pieces; i++) {
		struct frames_piece piece = frames_piece(w->f, object, i);

		assert_int_equal(piece.offset % CELL, 0);
		assert_true(piece.bytes > 0 && piece.bytes % CELL == 0);
		assert_true(piece.offset + piece.bytes <= w->arrived * FRAME_BYTES);
		/* What is longer than a frame would be a slab that crosses others' frames. */
		assert_true(piece.bytes <= FRAME_BYTES);
		for (uint64_t c = 0; c < piece.bytes / CELL; c++, at++) {
			uint64_t *cell = &w->cell[piece.offset / CELL + c];
			uint64_t stamp = world_stamp(w, object, at);

			assert_int_equal(*cell, put ? 0 : stamp);
			*cell = stamp;
		}
	}
	assert_int_equal(at, w->sizes[w->object[object].size].cells);
}

static void world_verify(struct world *w, uint32_t object)
{
	world_walk(w, object, false);
}

void world_verify_all(struct world *w)
{
	uint64_t used = 0, targets = 0, expected = 0;

	for (uint32_t i = 0; i < w->most_objects; i++) {
		if (!w->object[i].serial)
			continue;
		world_verify(w, i);
		expected += w->sizes[w->object[i].size].cells;
	}
	for (uint32_t i = 0; i < w->moves; i++)
		targets += w->move[i].bytes / CELL;
	for (uint64_t i = 0; i < w->capacity * FRAME_CELLS; i++)
		used += w->cell[i] != 0;
	assert_int_equal(used, expected + targets);
	assert_int_equal(frames_sums(w->f).used_bytes, expected * CELL);
}

/* ---- what objects do ---- */

int world_take(struct world *w, uint32_t size, uint32_t *object)
{
	int outcome = frames_take(w->f, w->size[size], object);

	if (outcome)
		return outcome;
	assert_true(*object < w->most_objects && !w->object[*object].serial);
	w->object[*object] = (struct world_object){.serial = ++w->serial, .size = size};
	w->objects[size]++;
	world_walk(w, *object, true);
	return 0;
}

void world_give(struct world *w, uint32_t object)
{
	uint32_t pieces = frames_pieces(w->f, object);

	world_verify(w, object);
	for (uint32_t i = 0; i < pieces; i++) {
		struct frames_piece piece = frames_piece(w->f, object, i);

		memset(&w->cell[piece.offset / CELL], 0, piece.bytes / CELL * sizeof(*w->cell));
	}
	frames_give(w->f, object);
	w->objects[w->object[object].size]--;
	w->object[object] = (struct world_object){0};
}

bool world_is_moving(const struct world *w, uint32_t object)
{
	for (uint32_t i = 0; i < w->moves; i++) {
		if (w->move[i].object == object)
			return true;
	}
	return false;
}

void world_pin(struct world *w, uint32_t object, bool pin)
{
	if (pin)
		frames_pin(w->f, object);
	else
		frames_unpin(w->f, object);
	w->object[object].pins += pin ? 1 : UINT32_MAX;
}

uint32_t world_frame(const struct world *w, uint32_t object)
{
	return (uint32_t)(frames_piece(w->f, object, 0).offset / FRAME_BYTES);
}

/* ---- moves ---- */

int world_plan(struct world *w, uint32_t size, uint32_t room)
{
	struct frames_move *m = &w->move[w->moves];
	uint32_t n = 0;
	int outcome = frames_plan_move(w->f, w->size[size], m, room, &n);

	if (outcome) {
		assert_int_equal(outcome, FRAMES_NOTHING);
		return outcome;
	}
	assert_true(n > 0 && n <= room);
	for (uint32_t i = 0; i < n; i++) {
		const struct world_object *o = &w->object[m[i].object];

		assert_true(o->serial && o->pins == 0);
		assert_true(m[i].to + m[i].bytes <= w->arrived * FRAME_BYTES);
		for (uint64_t c = 0; c < m[i].bytes / CELL; c++) {
			assert_int_equal(w->cell[m[i].from / CELL + c] >> 16, o->serial);
			assert_int_equal(w->cell[m[i].to / CELL + c], 0);
			w->cell[m[i].to / CELL + c] = OF_MOVE;
		}
	}
	w->moves += n;
	return 0;
}

void world_moved(struct world *w, uint32_t i, bool copied)
{
	struct frames_move m = w->move[i];
	bool stays = !copied || w->object[m.object].pins;
	uint64_t *from = &w->cell[m.from / CELL], *to = &w->cell[m.to / CELL];
	size_t bytes = m.bytes / CELL * sizeof(*from);

	w->move[i] = w->move[--w->moves];
	memcpy(to, from, bytes);
	memset(stays ? to : from, 0, bytes);
	frames_moved(w->f, &m, copied);
	world_verify(w, m.object);
}

uint32_t world_make_room(struct world *w, uint32_t size, uint32_t room, uint32_t *object)
{
	uint32_t moves = 0;

	for (;;) {
		int outcome = world_take(w, size, object);

		if (outcome == 0)
			return moves;
		assert_int_equal(outcome, FRAMES_SPREAD);
		if (world_plan(w, size, room))
			return UINT32_MAX;
		while (w->moves > 0) {
			world_moved(w, w->moves - 1, true);
			moves++;
		}
		/* Far more than what could ever be needed: it goes around in circles. */
		assert_true(moves < 100 * w->most_objects);
	}
}

/* ---- what must fit ---- */

/* Place all slabs, the largest first, and then whole frames into pieces of 2^k frames, as a chunk
 * and what arrived at once is cut into; those lie in order. `more`: one more object of a size. */
bool world_fits(const struct world *w, uint32_t more)
{
	uint32_t left[1024], n = 0, objects = 0, free_frames = 0;

	for (uint32_t at = 0; at < w->arrived;) {
		uint32_t most = w->chunk - at % w->chunk, piece = 16;

		if (most > w->arrived - at)
			most = w->arrived - at;
		if (w->at_once && most > w->at_once - at % w->at_once)
			most = w->at_once - at % w->at_once;
		while (piece > most)
			piece /= 2;
		left[n++] = piece;
		at += piece;
	}
	for (uint32_t slab = 16; slab > 0; slab /= 2) {
		for (uint32_t i = 0; i < WORLD_SIZES; i++) {
			uint32_t count = w->objects[i] + (i == more);
			uint32_t at = 0;

			if (w->sizes[i].slab != slab)
				continue;
			for (uint32_t s = 0; s * w->sizes[i].slots < count; s++) {
				while (at < n && left[at] < slab)
					at++;
				if (at == n)
					return false;
				left[at] -= slab;
			}
		}
	}
	for (uint32_t i = 0; i < n; i++)
		free_frames += left[i];
	for (uint32_t i = 0; i < WORLD_SIZES; i++) {
		uint32_t count = w->objects[i] + (i == more);

		objects += count;
		if (count * w->sizes[i].whole > free_frames)
			return false;
		free_frames -= count * w->sizes[i].whole;
	}
	return objects <= w->most_objects;
}

/* ---- for tests of one thing ---- */

uint32_t world_must_take(struct world *w, uint32_t size)
{
	uint32_t object;

	assert_int_equal(world_take(w, size, &object), 0);
	return object;
}

uint32_t world_fill(struct world *w, uint32_t size)
{
	uint32_t n = 0, object;
	int outcome;

	while ((outcome = world_take(w, size, &object)) == 0)
		n++;
	assert_int_equal(outcome, FRAMES_FULL);
	return n;
}

void world_give_rows(struct world *w, uint32_t first, uint32_t n, uint32_t of)
{
	for (uint32_t i = 0; i < w->most_objects; i++) {
		uint32_t at = w->object[i].serial ? world_frame(w, i) % of : of;

		if (at >= first && at < first + n)
			world_give(w, i);
	}
}
