/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/frames.h: long seeded runs against the world of frames_world.h: what is
 * taken, given, pinned, moved and not moved, while memory arrives and sizes come and go. What fits
 * is FULL or SPREAD as the world says, and what is SPREAD gets its place. One thread.
 */

#include "tests/unit/frames_world.h"

#include <string.h>

struct arena_case {
	uint32_t capacity, chunk, at_once; /* frames; 0: whole chunks arrive */
	uint32_t most_objects;
	uint32_t operations;
};

static struct world w;

static int setup(void **state)
{
	(void)state;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	world_deinit(&w);
	return 0;
}

static uint32_t any_object(bool still)
{
	for (uint32_t i = 0; i < 64; i++) {
		uint32_t at = world_below(&w, w.most_objects);

		if (w.object[at].serial &&
		    !(still && (w.object[at].pins || world_is_moving(&w, at))))
			return at;
	}
	return OBJECT_NONE;
}

static bool all_is_still(void)
{
	for (uint32_t i = 0; i < w.most_objects; i++) {
		if (w.object[i].pins)
			return false;
	}
	return w.moves == 0;
}

static void come_to_rest(void)
{
	while (w.moves > 0)
		world_moved(&w, world_below(&w, w.moves), world_below(&w, 4) > 0);
	for (uint32_t i = 0; i < w.most_objects; i++) {
		while (w.object[i].pins)
			world_pin(&w, i, false);
	}
}

static void take_one(uint64_t outcomes[4])
{
	uint32_t size = world_below(&w, WORLD_SIZES), object;
	bool fits;
	int outcome;

	if (w.size[size] < 0)
		return;
	fits = world_fits(&w, size);
	assert_int_equal(frames_would_fit_without(w.f, w.size[size], NULL), fits);
	assert_int_equal(frames_would_fit(w.f, w.size[size], 0), fits);
	outcome = world_take(&w, size, &object);
	assert_int_equal(outcome == FRAMES_FULL, !fits);
	outcomes[outcome]++;
	if (outcome != FRAMES_SPREAD)
		return;
	if (world_below(&w, 4) == 0)
		come_to_rest();
	if (all_is_still()) {
		/* Nothing is in the way, so it must get there, in plans of any length. */
		assert_true(world_make_room(&w, size, 1 + world_below(&w, FRAMES_MOVES_MAX),
					    &object) != UINT32_MAX);
		outcomes[3]++;
	} else if (w.moves < 64) {
		(void)world_plan(&w, size, 1 + world_below(&w, FRAMES_MOVES_MAX));
	}
}

/* What would fit, if some or all objects of some sizes were given back. */
static void ask_what_would_fit(void)
{
	uint32_t given[FRAMES_SIZES_MAX] = {0}, objects[WORLD_SIZES];
	uint32_t size = world_below(&w, WORLD_SIZES), mode = world_below(&w, 4);
	uint64_t bytes = 0;
	bool fits;

	if (w.size[size] < 0)
		return;
	memcpy(objects, w.objects, sizeof(objects));
	for (uint32_t i = 0; i < WORLD_SIZES; i++) {
		uint32_t n = mode == 0 ? objects[i] : world_below(&w, objects[i] + 1);

		if (w.size[i] < 0 || (mode > 1 && world_below(&w, 3)))
			continue;
		given[w.size[i]] = n;
		bytes += (uint64_t)n * w.sizes[i].cells * CELL;
		w.objects[i] -= n;
	}
	fits = world_fits(&w, size);
	assert_int_equal(frames_would_fit_without(w.f, w.size[size], given), fits);
	if (frames_would_fit(w.f, w.size[size], bytes))
		assert_true(fits);
	else if (mode == 0)
		assert_false(fits);
	memcpy(w.objects, objects, sizeof(objects));
}

static void pin_or_unpin(void)
{
	uint32_t at = any_object(false);

	if (at == OBJECT_NONE)
		return;
	if (w.object[at].pins && world_below(&w, 4)) {
		world_pin(&w, at, false);
	} else if (w.object[at].pins < 3) {
		world_pin(&w, at, true);
	}
}

static void register_or_forget(void)
{
	uint32_t size = world_below(&w, WORLD_SIZES);

	/* It may be as large as the arena, not larger. */
	if (w.sizes[size].cells > w.capacity * FRAME_CELLS)
		return;
	if (w.size[size] < 0) {
		world_use_size(&w, size);
	} else if (w.objects[size] == 0) {
		frames_forget_size(w.f, w.size[size]);
		w.size[size] = -1;
	}
}

static void give_some(uint32_t n)
{
	while (n-- > 0) {
		uint32_t at = any_object(true);

		if (at == OBJECT_NONE)
			return;
		world_give(&w, at);
	}
}

static void arrive(const struct arena_case *c)
{
	uint32_t n = c->at_once ? c->at_once : c->chunk;

	if (n > c->capacity - w.arrived)
		n = c->capacity - w.arrived;
	if (n > 0)
		world_arrive(&w, n);
}

/* All that is free, as objects of one size, however small the pieces it lies in. */
static void take_all_as_one_size(void)
{
	uint32_t size = world_below(&w, WORLD_SIZES), object;
	uint32_t room = 1 + world_below(&w, FRAMES_MOVES_MAX);

	come_to_rest();
	give_some(w.most_objects / 4);
	if (w.size[size] < 0)
		return;
	while (world_fits(&w, size))
		assert_true(world_make_room(&w, size, room, &object) != UINT32_MAX);
	assert_int_equal(world_take(&w, size, &object), FRAMES_FULL);
}

static void run_case(const struct arena_case *c, uint64_t seed)
{
	uint64_t outcomes[4] = {0};
	/* More is taken than given for a while, then the reverse. */
	uint32_t gives = 3;

	world_init(&w, c->capacity, c->chunk, c->most_objects);
	w.random.state = seed;
	w.at_once = c->at_once;
	for (uint32_t i = 0; i < WORLD_SIZES; i++)
		register_or_forget();
	for (uint32_t i = 0; i < c->operations; i++) {
		uint32_t what = world_below(&w, 16);

		if (i % 4096 == 0)
			gives = 2 + world_below(&w, 5);
		if (i % (c->operations / 40) == 0)
			arrive(c);
		if (i % 2048 == 0)
			give_some(world_below(&w, 64));
		if (i % 1024 == 1023)
			take_all_as_one_size();
		if (what < gives)
			give_some(1);
		else if (what < 13)
			take_one(outcomes);
		else if (what == 13 && w.moves > 0)
			world_moved(&w, world_below(&w, w.moves), world_below(&w, 8) > 0);
		else if (what == 14)
			pin_or_unpin();
		else if (i % 8 == 0)
			register_or_forget();
		else
			ask_what_would_fit();
		if (i % 512 == 0) {
			world_check(&w);
			world_verify_all(&w);
		}
	}
	print_message("# %u frames: taken %llu, full %llu, spread %llu, made room %llu\n",
		      c->capacity, (unsigned long long)outcomes[0],
		      (unsigned long long)outcomes[FRAMES_FULL],
		      (unsigned long long)outcomes[FRAMES_SPREAD], (unsigned long long)outcomes[3]);
	/* A run that never was full or spread has shown nothing. */
	assert_true(outcomes[0] > 1000 && outcomes[FRAMES_FULL] > 100);
	assert_true(outcomes[FRAMES_SPREAD] > 20 && outcomes[3] > 5);
	come_to_rest();
	for (uint32_t i = 0; i < w.most_objects; i++) {
		if (w.object[i].serial)
			world_give(&w, i);
	}
	world_check(&w);
	assert_int_equal(frames_sums(w.f).slab_bytes, 0);
	assert_int_equal(frames_sums(w.f).slabs, 0);
	world_deinit(&w);
}

static void what_fits_gets_its_place_in_chunks_of_whole_groups(void **state)
{
	static const struct arena_case c = {160, 32, 0, 700, 100000};

	(void)state;
	for (uint64_t seed = 1; seed <= 2; seed++)
		run_case(&c, seed);
}

static void what_fits_gets_its_place_in_chunks_of_any_number_of_frames(void **state)
{
	static const struct arena_case cases[] = {
	    {150, 27, 0, 600, 50000}, /* pieces of 16, 8, 2 and 1 */
	    {96, 12, 0, 400, 50000},  {63, 512, 0, 400, 50000},
	    {60, 20, 5, 300, 50000}, /* a quarter of a chunk arrives at a time */
	    {31, 7, 0, 300, 50000},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		run_case(&cases[i], i + 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_fits_gets_its_place_in_chunks_of_whole_groups),
	    TEST(what_fits_gets_its_place_in_chunks_of_any_number_of_frames),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
