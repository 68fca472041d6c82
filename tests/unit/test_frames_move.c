/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/frames.h: what is moved so that something fits. One thread; nothing blocks.
 */

#include "tests/unit/frames_world.h"

static struct world w;

static int setup(void **state)
{
	(void)state;
	world_init(&w, 64, 32, 4096);
	for (uint32_t i = 0; i < WORLD_SIZES; i++)
		world_use_size(&w, i);
	world_arrive(&w, 64);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	world_check(&w);
	world_verify_all(&w);
	world_deinit(&w);
	return 0;
}

static uint32_t take(uint32_t size)
{
	return world_must_take(&w, size);
}

static void pin_all(bool pin)
{
	for (uint32_t i = 0; i < w.most_objects; i++) {
		if (w.object[i].serial && (pin || w.object[i].pins))
			world_pin(&w, i, pin);
	}
}

static void single_free_frames_become_a_block_for_a_slab(void **state)
{
	uint32_t object;

	(void)state;
	/* Slabs of one frame, every second one free: half of the arena, and no two side by side. */
	assert_int_equal(world_fill(&w, SLAB_1), 64 * 16);
	assert_int_equal(world_take(&w, SLAB_16, &object), FRAMES_FULL);
	world_give_rows(&w, 0, 1, 2);
	assert_int_equal(world_take(&w, SLAB_16, &object), FRAMES_SPREAD);
	/* Eight of sixteen frames are full, with 16 objects each. */
	assert_int_equal(world_make_room(&w, SLAB_16, FRAMES_MOVES_MAX, &object), 8 * 16);
	world_check(&w);
	world_verify_all(&w);
	assert_int_equal(frames_sums(w.f).slab_bytes, (32 + 16) * FRAME_BYTES);
	/* 16 more are free, and they can be had too, in plans of one move. */
	for (int i = 0; i < 16; i++)
		take(SLAB_16);
	assert_int_equal(world_make_room(&w, SLAB_16, 1, &object), 8 * 16);
}

static void half_empty_slabs_of_another_size_are_packed(void **state)
{
	uint32_t object, moves;

	(void)state;
	/* Four slabs of 16 frames, of which one in three objects is left, and 23 of those of 17 fit
	 * into two: two slabs are free once the others are packed. */
	assert_int_equal(world_fill(&w, SLAB_16), 4 * 17);
	for (uint32_t i = 0; i < 4 * 17; i++) {
		if (i % 3)
			world_give(&w, i);
	}
	assert_int_equal(frames_sums(w.f).slabs, 4);
	assert_int_equal(world_take(&w, WHOLE_21, &object), FRAMES_SPREAD);
	moves = world_make_room(&w, WHOLE_21, FRAMES_MOVES_MAX, &object);
	/* No more than what is in two of them. */
	assert_true(moves >= 10 && moves <= 12);
	assert_int_equal(frames_sums(w.f).slabs, 2);
	assert_int_equal(world_take(&w, WHOLE_21, &object), FRAMES_FULL);
}

static void one_object_less_may_be_a_slab_less(void **state)
{
	uint32_t object;

	(void)state;
	for (uint32_t i = 0; i < 17 + 1; i++)
		take(SLAB_16);
	world_give(&w, 3);
	for (uint32_t i = 0; i < 32; i++)
		take(WHOLE_1);
	for (uint32_t i = 0; i < w.most_objects; i++) {
		if (w.object[i].serial && w.object[i].size == WHOLE_1 && world_frame(&w, i) % 2)
			world_give(&w, i);
	}
	/* 16 single frames are free, and four that are not would have to go; but there is a slab of
	 * 16 frames with one object in it, for which another has a slot. */
	assert_int_equal(world_take(&w, SLAB_8, &object), FRAMES_SPREAD);
	assert_int_equal(world_make_room(&w, SLAB_8, FRAMES_MOVES_MAX, &object), 1);
}

static void a_large_arena_that_is_full_of_large_slabs_has_what_fits(void **state)
{
	uint32_t object;

	(void)state;
	world_deinit(&w);
	world_init(&w, 64 + 1100 * 16, 16, 20000);
	world_use_size(&w, SLAB_1);
	world_use_size(&w, SLAB_16);
	world_arrive(&w, 64);
	assert_int_equal(world_fill(&w, SLAB_1), 64 * 16);
	world_arrive(&w, 1100 * 16);
	assert_int_equal(world_fill(&w, SLAB_16), 1100 * 17);
	/* Slabs of one frame become half full. No frame is free, and a plan does not look at all
	 * of the arena. */
	for (uint32_t i = 0; i < 64 * 16; i += 2)
		world_give(&w, i);
	assert_int_equal(world_take(&w, SLAB_16, &object), FRAMES_SPREAD);
	assert_true(world_make_room(&w, SLAB_16, FRAMES_MOVES_MAX, &object) <= 32 * 16);
}

static void whole_frames_in_the_way_go_anywhere(void **state)
{
	uint32_t object;

	(void)state;
	assert_int_equal(world_fill(&w, WHOLE_3), 21);
	/* Of each three, what is left of the arena is two thirds. */
	for (uint32_t i = 0; i < 21; i += 3)
		world_give(&w, i);
	assert_int_equal(world_take(&w, SLAB_16, &object), FRAMES_SPREAD);
	assert_true(world_make_room(&w, SLAB_16, 3, &object) <= 16);
}

/* Each four frames: a slab of two, a free one, one of an object that has it alone. */
static void fill_fours(void)
{
	assert_int_equal(world_fill(&w, WHOLE_1), 64);
	world_give_rows(&w, 0, 2, 4);
	for (uint32_t i = 0; i < 16 * 3; i++)
		take(SLAB_2);
	world_give_rows(&w, 2, 1, 4);
}

static void what_a_slab_needs_elsewhere_is_made_first(void **state)
{
	uint32_t object;

	(void)state;
	fill_fours();
	/* To get four side by side a slab of two has to go, for which no two are side by side: one
	 * frame makes room for its three objects, and one more is in the way. */
	assert_int_equal(world_take(&w, SLAB_4, &object), FRAMES_SPREAD);
	assert_int_equal(world_make_room(&w, SLAB_4, FRAMES_MOVES_MAX, &object), 1 + 3 + 1);
}

static void all_that_is_free_can_be_had_as_large_slabs(void **state)
{
	uint32_t object;

	(void)state;
	fill_fours();
	/* 16 are free. */
	assert_int_equal(world_take(&w, SLAB_16, &object), FRAMES_SPREAD);
	assert_true(world_make_room(&w, SLAB_16, 5, &object) != UINT32_MAX);
	assert_int_equal(frames_sums(w.f).slab_bytes, 64 * FRAME_BYTES);
	assert_int_equal(world_take(&w, WHOLE_1, &object), FRAMES_FULL);
}

static void what_was_not_copied_stays_and_its_target_is_free(void **state)
{
	struct frames_sums before, after;
	uint32_t object;

	(void)state;
	fill_fours();
	before = frames_sums(w.f);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(world_plan(&w, SLAB_4, FRAMES_MOVES_MAX), 0);
		world_check(&w);
		while (w.moves > 0)
			world_moved(&w, w.moves - 1, false);
		world_check(&w);
		world_verify_all(&w);
	}
	after = frames_sums(w.f);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(world_make_room(&w, SLAB_4, FRAMES_MOVES_MAX, &object), 5);
}

static void moves_of_one_slab_may_end_each_in_its_own_way(void **state)
{
	uint32_t object;

	(void)state;
	assert_int_equal(world_fill(&w, SLAB_1), 64 * 16);
	world_give_rows(&w, 0, 1, 2);
	assert_int_equal(world_plan(&w, SLAB_2, 16), 0);
	assert_int_equal(w.moves, 16);
	for (uint32_t i = 0; i < 16; i++) {
		world_moved(&w, 0, i % 2);
		world_check(&w);
	}
	world_verify_all(&w);
	/* The other half goes after it. */
	assert_int_equal(world_make_room(&w, SLAB_2, 16, &object), 8);
}

static void what_is_pinned_is_not_moved(void **state)
{
	uint32_t object;

	(void)state;
	fill_fours();
	pin_all(true);
	assert_int_equal(world_take(&w, SLAB_4, &object), FRAMES_SPREAD);
	assert_int_equal(world_plan(&w, SLAB_4, FRAMES_MOVES_MAX), FRAMES_NOTHING);
	world_check(&w);
	/* One of the many is enough: the plan is of what may go. */
	for (uint32_t i = 0; i < w.most_objects; i++) {
		if (!w.object[i].serial || world_frame(&w, i) / 4 % 5 != 2)
			continue;
		world_pin(&w, i, false);
	}
	assert_int_equal(world_make_room(&w, SLAB_4, FRAMES_MOVES_MAX, &object), 5);
	assert_int_equal(world_frame(&w, object) / 4 % 5, 2);
	pin_all(false);
}

static void slabs_with_something_pinned_stay_as_they_are(void **state)
{
	uint32_t object, other;

	(void)state;
	assert_int_equal(world_fill(&w, SLAB_1), 64 * 16);
	world_give_rows(&w, 0, 1, 2);
	/* One of 16 in each slab, but for those in the third 16 frames. */
	for (uint32_t i = 0; i < 64 * 16; i += 16) {
		if (w.object[i].serial && world_frame(&w, i) / 16 != 2)
			world_pin(&w, i, true);
	}
	assert_int_equal(world_make_room(&w, SLAB_16, FRAMES_MOVES_MAX, &object), 8 * 16);
	assert_int_equal(world_frame(&w, object) / 16, 2);
	pin_all(false);

	/* Of two slabs that have few objects, the one with a pin is not the one that goes. */
	world_give_rows(&w, 0, 64, 64);
	assert_int_equal(world_fill(&w, SLAB_16), 4 * 17);
	for (uint32_t i = 0; i < w.most_objects; i++) {
		if (w.object[i].serial && world_frame(&w, i) / 16 >= 2 && i % 17)
			world_give(&w, i);
	}
	assert_int_equal(frames_sums(w.f).objects, 2 * 17 + 2);
	for (other = 0; !w.object[other].serial || world_frame(&w, other) / 16 != 2;)
		other++;
	world_pin(&w, other, true);
	assert_int_equal(world_make_room(&w, WHOLE_1, 1, &object), 1);
	assert_int_equal(world_frame(&w, other) / 16, 2);
	world_pin(&w, other, false);
	world_give_rows(&w, 0, 64, 64);
}

static void what_was_pinned_during_its_move_stays(void **state)
{
	uint64_t offsets[FRAMES_MOVES_MAX];
	uint32_t n;

	(void)state;
	fill_fours();
	assert_int_equal(world_plan(&w, SLAB_16, FRAMES_MOVES_MAX), 0);
	pin_all(true);
	n = w.moves;
	for (uint32_t i = 0; i < n; i++)
		offsets[i] = w.move[i].from;
	for (uint32_t i = n; i-- > 0;) {
		uint32_t object = w.move[i].object;

		world_moved(&w, i, true);
		assert_int_equal(frames_piece(w.f, object, 0).offset, offsets[i]);
	}
	pin_all(false);
}

static void targets_are_nobody_elses_until_the_move_ends(void **state)
{
	uint32_t object;
	int outcome;

	(void)state;
	fill_fours();
	assert_int_equal(world_plan(&w, SLAB_4, 1), 0);
	assert_int_equal(w.moves, 1);
	/* 16 are free, one of them is the target; the world would see a stamp in it. */
	for (uint32_t i = 0; i < 15; i++)
		take(WHOLE_1);
	outcome = world_take(&w, WHOLE_1, &object);
	assert_int_equal(outcome, FRAMES_SPREAD);
	assert_int_equal(world_plan(&w, WHOLE_1, 1), FRAMES_NOTHING);
	world_moved(&w, 0, true);
	take(WHOLE_1);
	assert_int_equal(world_take(&w, WHOLE_1, &object), FRAMES_FULL);
}

static void a_place_in_a_slab_that_is_left_is_better_than_none(void **state)
{
	uint32_t object, leaving;

	(void)state;
	assert_int_equal(world_fill(&w, SLAB_16), 4 * 17);
	for (uint32_t i = 0; i < 2 * 17; i += 2)
		world_give(&w, i);
	/* 17 slots are free: one slab can be left. */
	assert_int_equal(world_plan(&w, WHOLE_1, FRAMES_MOVES_MAX), 0);
	leaving = world_frame(&w, w.move[0].object) / 16;
	while (frames_sums(w.f).objects < 4 * 17 - w.moves)
		assert_int_equal(world_take(&w, SLAB_16, &object), 0);
	assert_int_equal(world_frame(&w, object) / 16, leaving);
	while (w.moves > 0)
		world_moved(&w, 0, true);
}

static void without_need_there_is_nothing_to_move(void **state)
{
	(void)state;
	assert_int_equal(world_plan(&w, SLAB_16, 1), FRAMES_NOTHING);
	take(SLAB_16);
	assert_int_equal(world_plan(&w, SLAB_16, 1), FRAMES_NOTHING);
	world_fill(&w, WHOLE_1);
	assert_int_equal(world_plan(&w, WHOLE_1, 1), FRAMES_NOTHING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(single_free_frames_become_a_block_for_a_slab),
	    TEST(half_empty_slabs_of_another_size_are_packed),
	    TEST(one_object_less_may_be_a_slab_less),
	    TEST(a_large_arena_that_is_full_of_large_slabs_has_what_fits),
	    TEST(whole_frames_in_the_way_go_anywhere),
	    TEST(what_a_slab_needs_elsewhere_is_made_first),
	    TEST(all_that_is_free_can_be_had_as_large_slabs),
	    TEST(what_was_not_copied_stays_and_its_target_is_free),
	    TEST(moves_of_one_slab_may_end_each_in_its_own_way),
	    TEST(what_is_pinned_is_not_moved),
	    TEST(slabs_with_something_pinned_stay_as_they_are),
	    TEST(what_was_pinned_during_its_move_stays),
	    TEST(targets_are_nobody_elses_until_the_move_ends),
	    TEST(a_place_in_a_slab_that_is_left_is_better_than_none),
	    TEST(without_need_there_is_nothing_to_move),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
