/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_window: the allocator of the window. One thread; nothing blocks.
 */
#include "libclient/window.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 65536

static _Alignas(64) char memory[BYTES];
static struct window w;

static int setup(void **state)
{
	(void)state;
	return window_init(&w, memory, BYTES);
}

static int teardown(void **state)
{
	(void)state;
	window_deinit(&w);
	return 0;
}

static void ranges_are_aligned_and_do_not_overlap(void **state)
{
	uint32_t a = window_take(&w, 1), b = window_take(&w, 100), c = window_take(&w, 64);

	(void)state;
	assert_int_not_equal(a, WINDOW_NONE);
	assert_int_not_equal(b, WINDOW_NONE);
	assert_int_not_equal(c, WINDOW_NONE);
	assert_int_equal(window_offset(&w, a) % WINDOW_UNIT_BYTES, 0);
	assert_int_equal(window_block_bytes(&w, a), 64);
	assert_int_equal(window_block_bytes(&w, b), 128);
	assert_int_equal(window_offset(&w, b), window_offset(&w, a) + 64);
	assert_int_equal(window_offset(&w, c), window_offset(&w, b) + 128);
}

static void all_of_it_can_be_taken_and_is_whole_again_afterwards(void **state)
{
	uint32_t all[BYTES / 64], n = 0, block;

	(void)state;
	while ((block = window_take(&w, 64)) != WINDOW_NONE)
		all[n++] = block;
	assert_int_equal(n, BYTES / 64);
	for (uint32_t i = 0; i < n; i += 2)
		window_give(&w, all[i]);
	assert_int_equal(window_take(&w, 128), WINDOW_NONE);
	for (uint32_t i = 1; i < n; i += 2)
		window_give(&w, all[i]);
	block = window_take(&w, BYTES);
	assert_int_not_equal(block, WINDOW_NONE);
	assert_int_equal(window_take(&w, 1), WINDOW_NONE);
	window_give(&w, block);
	assert_int_equal(w.units_taken, 0);
}

static void more_than_there_is_is_refused(void **state)
{
	(void)state;
	assert_int_equal(window_take(&w, BYTES + 1), WINDOW_NONE);
	assert_int_equal(window_take(&w, UINT64_MAX), WINDOW_NONE);
	assert_null(window_take_for_caller(&w, UINT64_MAX));
	assert_null(window_take_for_caller(&w, BYTES));
}

static void a_range_of_the_caller_has_space_in_front_and_is_known_again(void **state)
{
	char *p = window_take_for_caller(&w, 100), *q = window_take_for_caller(&w, 0);
	uint32_t block = window_block_of_caller(&w, p);

	(void)state;
	assert_non_null(p);
	assert_non_null(q);
	assert_int_equal((uintptr_t)p % 64, 0);
	assert_int_not_equal(block, WINDOW_NONE);
	assert_ptr_equal(memory + window_offset(&w, block) + WINDOW_HEAD_BYTES, p);
	assert_int_equal(window_block_of_caller(&w, p + 64), WINDOW_NONE);
	assert_int_equal(window_block_of_caller(&w, p - WINDOW_HEAD_BYTES), WINDOW_NONE);
	assert_int_equal(window_block_of_caller(&w, &block), WINDOW_NONE);
	assert_true(window_give_of_caller(&w, p));
	assert_false(window_give_of_caller(&w, p));
	assert_true(window_give_of_caller(&w, q));
	assert_int_equal(w.units_taken, 0);
}

static void what_lies_in_the_window_is_told_from_what_does_not(void **state)
{
	(void)state;
	assert_true(window_holds(&w, memory, BYTES));
	assert_true(window_holds(&w, memory + BYTES - 1, 1));
	assert_false(window_holds(&w, memory + BYTES - 1, 2));
	assert_false(window_holds(&w, memory + 1, UINT64_MAX));
	assert_false(window_holds(&w, NULL, 1));
}

static void too_little_memory_is_refused(void **state)
{
	struct window small;

	(void)state;
	assert_true(window_init(&small, memory, 63) < 0);
	window_deinit(&small);
}

/* Many sizes in a fixed pseudo-random order: each range keeps its pattern until it is given. */
static void ranges_keep_their_bytes_through_any_order_of_take_and_give(void **state)
{
	uint32_t blocks[64], sizes[64];
	uint64_t seed = 12345;

	(void)state;
	for (int i = 0; i < 64; i++)
		blocks[i] = WINDOW_NONE;
	for (int round = 0; round < 20000; round++) {
		uint32_t i, size;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		i = (uint32_t)(seed >> 33) % 64;
		if (blocks[i] != WINDOW_NONE) {
			const char *p = memory + window_offset(&w, blocks[i]);

			assert_int_equal((unsigned char)p[0], i);
			assert_int_equal((unsigned char)p[sizes[i] - 1], i);
			window_give(&w, blocks[i]);
			blocks[i] = WINDOW_NONE;
			continue;
		}
		size = 1 + (uint32_t)(seed >> 40) % ((seed >> 20) % 8 == 0 ? 9000 : 300);
		blocks[i] = window_take(&w, size);
		sizes[i] = size;
		if (blocks[i] != WINDOW_NONE)
			memset(memory + window_offset(&w, blocks[i]), (int)i, size);
	}
	for (int i = 0; i < 64; i++)
		window_give(&w, blocks[i]);
	assert_int_equal(w.units_taken, 0);
	assert_int_not_equal(window_take(&w, BYTES), WINDOW_NONE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(ranges_are_aligned_and_do_not_overlap),
	    TEST(all_of_it_can_be_taken_and_is_whole_again_afterwards),
	    TEST(more_than_there_is_is_refused),
	    TEST(a_range_of_the_caller_has_space_in_front_and_is_known_again),
	    TEST(what_lies_in_the_window_is_told_from_what_does_not),
	    TEST(too_little_memory_is_refused),
	    TEST(ranges_keep_their_bytes_through_any_order_of_take_and_give),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
