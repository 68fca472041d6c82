/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/frames.h, each of one thing; moves are in test_frames_move.c, long
 * random runs in test_frames_random.c.
 * One thread; nothing blocks. */

#include "tests/unit/frames_world.h"

#include <errno.h>

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

/* ---- how sizes lie ---- */

static void every_size_wastes_less_than_six_percent(void **state)
{
	(void)state;
	for (uint64_t bytes = FRAMES_SLOT_MIN; bytes < 40 * FRAME_BYTES; bytes += FRAMES_SLOT_MIN) {
		struct size z = {.bytes = bytes};
		uint64_t slab, wasted;

		size_lay_out(&z, FRAME_ORDERS - 1);
		slab = z.slots ? FRAME_BYTES << z.order : 0;
		/* With so many objects of it that slabs are full. */
		wasted = z.slots ? z.whole * FRAME_BYTES * z.slots + slab - bytes * z.slots
				 : z.whole * FRAME_BYTES - bytes;
		assert_true(wasted * 100 < 6 * (z.slots ? z.whole * FRAME_BYTES * z.slots + slab
							: z.whole * FRAME_BYTES));
		assert_int_equal(z.slots ? z.whole : 0, z.slots ? bytes / FRAME_BYTES : 0);
		if (bytes > FRAMES_SLAB_MAX * FRAME_BYTES)
			assert_int_equal(z.slots, 0);
		/* And no smaller slab does. */
		for (uint32_t order = 0; z.slots && order < z.order; order++) {
			uint64_t smaller = FRAME_BYTES << order;

			assert_true(smaller % z.slot_bytes * 100 >= 6 * smaller);
		}
	}
}

static void an_arena_full_of_one_size_has_as_many_as_fit(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < WORLD_SIZES; i++) {
		const struct world_size *z = &w.sizes[i];
		uint32_t n = world_fill(&w, i), expected;

		if (!z->slots)
			expected = 64 / z->whole;
		else if (!z->whole)
			expected = 64 / z->slab * z->slots;
		else /* slabs that are not full, too */
			for (expected = 0; (expected + 1) * z->whole +
					       (expected + z->slots) / z->slots * z->slab <=
					   64;)
				expected++;
		assert_int_equal(n, expected);
		world_check(&w);
		world_verify_all(&w);
		world_give_rows(&w, 0, 1, 1);
		assert_int_equal(frames_sums(w.f).slab_bytes, 0);
	}
}

static void sums_are_of_what_is_there(void **state)
{
	struct frames_sums sums = frames_sums(w.f);
	uint32_t object;

	(void)state;
	assert_int_equal(sums.capacity_bytes, 64 * FRAME_BYTES);
	assert_int_equal(sums.used_bytes + sums.slab_bytes + sums.objects + sums.slabs, 0);
	take(SLAB_4);
	object = take(WHOLE_1_AND_SLAB_2);
	take(WHOLE_21);
	sums = frames_sums(w.f);
	assert_int_equal(sums.used_bytes, (100 + 212 + 2570) * CELL);
	assert_int_equal(sums.slab_bytes, (4 + 1 + 2 + 21) * FRAME_BYTES);
	assert_int_equal(sums.objects, 3);
	assert_int_equal(sums.slabs, 2);
	world_give(&w, object);
	assert_int_equal(frames_sums(w.f).slab_bytes, (4 + 21) * FRAME_BYTES);
}

static void a_number_given_back_is_the_next_one_taken(void **state)
{
	uint32_t first = take(SLAB_1), second = take(WHOLE_3), third = take(SLAB_1);

	(void)state;
	assert_int_equal(first, 0);
	assert_int_equal(third, 2);
	world_give(&w, first);
	world_give(&w, second);
	assert_int_equal(take(SLAB_2), second);
	assert_int_equal(take(SLAB_2), first);
	assert_int_equal(take(SLAB_2), 3);
}

static void an_object_of_whole_frames_takes_single_ones_anywhere(void **state)
{
	uint32_t object;

	(void)state;
	assert_int_equal(world_fill(&w, WHOLE_1), 64);
	world_give_rows(&w, 0, 1, 3);
	object = take(WHOLE_21);
	assert_int_equal(frames_pieces(w.f, object), 21);
	/* The last piece is shorter. */
	assert_int_equal(frames_piece(w.f, object, 20).bytes, 10 * CELL);
	assert_int_equal(frames_piece(w.f, object, 19).bytes, FRAME_BYTES);
	for (uint32_t i = 0; i < 21; i++)
		assert_int_equal(frames_piece(w.f, object, i).offset / FRAME_BYTES % 3, 0);
}

static void odd_bytes_lie_one_after_another(void **state)
{
	int size = frames_size(w.f, FRAME_BYTES + 500001);
	uint32_t a, b;

	(void)state;
	assert_int_equal(frames_take(w.f, size, &a), 0);
	assert_int_equal(frames_take(w.f, size, &b), 0);
	assert_int_equal(frames_pieces(w.f, a), 2);
	assert_int_equal(frames_piece(w.f, a, 1).bytes, 500001);
	assert_int_equal(frames_piece(w.f, a, 1).offset + 500001, frames_piece(w.f, b, 1).offset);
	frames_give(w.f, a);
	frames_give(w.f, b);
	frames_forget_size(w.f, size);
	size = frames_size(w.f, 1);
	assert_int_equal(frames_take(w.f, size, &a), 0);
	assert_int_equal(frames_take(w.f, size, &b), 0);
	assert_int_equal(frames_piece(w.f, a, 0).offset + FRAMES_SLOT_MIN,
			 frames_piece(w.f, b, 0).offset);
	frames_give(w.f, a);
	frames_give(w.f, b);
	frames_forget_size(w.f, size);
}

static void sizes_are_counted_and_numbers_of_forgotten_ones_used_again(void **state)
{
	int size = frames_size(w.f, 12288), other;

	(void)state;
	assert_int_equal(frames_size(w.f, 12288), size);
	for (uint32_t i = WORLD_SIZES + 1; i < FRAMES_SIZES_MAX; i++)
		assert_true(frames_size(w.f, 40960 + i) >= 0);
	assert_int_equal(frames_size(w.f, 8192), -ENOSPC);
	assert_int_equal(frames_size(w.f, 12288), size);
	frames_forget_size(w.f, size);
	frames_forget_size(w.f, size);
	assert_int_equal(frames_size(w.f, 8192), -ENOSPC);
	frames_forget_size(w.f, size);
	other = frames_size(w.f, 8192);
	assert_int_equal(other, size);
	frames_forget_size(w.f, other);
}

static void no_block_crosses_a_chunk(void **state)
{
	(void)state;
	world_deinit(&w);
	world_init(&w, 46, 23, 400); /* 16, 4, 2 and 1 frames, twice */
	world_use_size(&w, SLAB_4);
	world_use_size(&w, SLAB_16);
	world_use_size(&w, WHOLE_1);
	world_arrive(&w, 46);
	/* Six of four frames would fit into 23 + 23 frames if they went on into the next chunk. */
	assert_int_equal(world_fill(&w, SLAB_16), 2 * 17);
	assert_int_equal(world_fill(&w, SLAB_4), 2 * 5);
	assert_int_equal(world_fill(&w, WHOLE_1), 6);
}

static void what_has_not_arrived_is_not_handed_out(void **state)
{
	uint32_t object;

	(void)state;
	world_deinit(&w);
	world_init(&w, 64, 32, 400);
	world_use_size(&w, WHOLE_1);
	world_use_size(&w, SLAB_16);
	assert_int_equal(world_take(&w, WHOLE_1, &object), FRAMES_FULL);
	world_arrive(&w, 2);
	assert_int_equal(world_fill(&w, WHOLE_1), 2);
	w.at_once = 2;
	assert_int_equal(frames_sums(w.f).capacity_bytes, 2 * FRAME_BYTES);
	world_arrive(&w, 30);
	assert_int_equal(world_fill(&w, SLAB_16), 17);
}

static void no_more_objects_than_most_are_taken(void **state)
{
	uint32_t object;

	(void)state;
	world_deinit(&w);
	world_init(&w, 64, 32, 5);
	world_use_size(&w, SLAB_1);
	world_arrive(&w, 64);
	assert_int_equal(world_fill(&w, SLAB_1), 5);
	assert_false(frames_would_fit(w.f, w.size[SLAB_1], 0));
	assert_true(frames_would_fit(w.f, w.size[SLAB_1], 8 * CELL));
	world_give(&w, 3);
	assert_int_equal(world_take(&w, SLAB_1, &object), 0);
}

/* ---- what would fit ---- */

static void what_would_fit_is_told_for_objects_and_surely_for_bytes(void **state)
{
	uint32_t given[FRAMES_SIZES_MAX] = {0};
	int slab_16 = w.size[SLAB_16], whole = w.size[WHOLE_1], slab_1 = w.size[SLAB_1];

	(void)state;
	for (uint32_t i = 0; i < 32 * 16; i++)
		take(SLAB_1);
	assert_int_equal(world_fill(&w, WHOLE_1), 32);
	assert_false(frames_would_fit_without(w.f, slab_16, given));
	given[whole] = 15;
	given[slab_1] = 15;
	assert_false(frames_would_fit_without(w.f, slab_16, given));
	assert_true(frames_would_fit_without(w.f, slab_1, given));
	given[slab_1] = 16;
	assert_true(frames_would_fit_without(w.f, slab_16, given));

	/* As bytes: 15 objects of a slab may go without a frame more. */
	assert_false(frames_would_fit(w.f, whole, 0));
	assert_false(frames_would_fit(w.f, whole, 15 * 8 * CELL));
	assert_true(frames_would_fit(w.f, whole, 15 * 8 * CELL + 1));
	assert_false(frames_would_fit(w.f, slab_16, 15 * 8 * CELL + 15 * FRAME_BYTES));
	assert_true(frames_would_fit(w.f, slab_16, frames_sums(w.f).used_bytes));
}

/* ---- the check ---- */

static void the_check_notices_what_does_not_hold(void **state)
{
	struct frames *f = w.f;
	uint32_t a = take(SLAB_1), b = take(SLAB_1), c = take(WHOLE_3), d = take(SLAB_2);
	uint32_t at = world_frame(&w, a), at_d = world_frame(&w, d);

	(void)state;
	f->object[b].slot = 0;
	assert_string_equal(frames_check(f), "two objects are in one slot");
	f->object[b].slot = 1;
	f->object[d].slab = at;
	assert_string_equal(frames_check(f), "the objects of a slab are not those that lie in it");
	f->object[d].slab = at_d;
	f->frame[at_d + 1].owner = at;
	assert_string_equal(frames_check(f), "a slab and another owner share a frame");
	f->frame[at_d + 1].owner = at_d;
	f->frame[world_frame(&w, c)].owner = a;
	assert_string_equal(frames_check(f), "an object and another owner share a frame");
	f->frame[world_frame(&w, c)].owner = c;
	f->group[f->frame[at].group].free |= (uint16_t)(1u << at % 16);
	assert_string_equal(frames_check(f),
			    "a frame is free and its group does not say so, or the reverse");
	f->group[f->frame[at].group].free &= (uint16_t) ~(1u << at % 16);
	f->free_frames++;
	assert_string_equal(frames_check(f), "the number of free frames is wrong");
	f->free_frames--;
	f->slab[at].pinned++;
	assert_string_equal(frames_check(f),
			    "the pinned or leaving objects of a slab are miscounted");
	f->slab[at].pinned--;
	f->slab[at].reserved++;
	assert_string_equal(frames_check(f), "a slab counts slots that nobody has");
	f->slab[at].reserved--;
	f->object[c].moves++;
	assert_string_equal(frames_check(f), "an object counts moves that are not");
	f->object[c].moves--;
	f->need[0]++;
	assert_string_equal(frames_check(f), "the frames that all objects need are wrong");
	f->need[0]--;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(every_size_wastes_less_than_six_percent),
	    TEST(an_arena_full_of_one_size_has_as_many_as_fit),
	    TEST(sums_are_of_what_is_there),
	    TEST(a_number_given_back_is_the_next_one_taken),
	    TEST(an_object_of_whole_frames_takes_single_ones_anywhere),
	    TEST(odd_bytes_lie_one_after_another),
	    TEST(sizes_are_counted_and_numbers_of_forgotten_ones_used_again),
	    TEST(no_block_crosses_a_chunk),
	    TEST(what_has_not_arrived_is_not_handed_out),
	    TEST(no_more_objects_than_most_are_taken),
	    TEST(what_would_fit_is_told_for_objects_and_surely_for_bytes),
	    TEST(the_check_notices_what_does_not_hold),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
