/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of ram_divide: how much of kv_ram_bytes pages can use, as the bookkeeping of frames has it;
 * no memory is touched. One thread. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/tier/ram.h"

#define MIB          (1ull << 20)
#define CHUNK_FRAMES 128u

/* How many pages of this size find a place in so many bytes of KV-RAM. */
static uint64_t pages_held(uint64_t bytes, uint64_t page_bytes)
{
	struct ram_parts parts = ram_divide(bytes, page_bytes);
	uint32_t n = (uint32_t)(parts.arena_bytes / FRAME_BYTES);
	uint64_t pages = 0;
	struct frames *f;
	uint32_t object;
	int size;

	assert_true(n * FRAME_BYTES + parts.objects * (uint64_t)RAM_KNOWN_BYTES <= bytes);
	if (n * FRAME_BYTES < page_bytes || parts.objects == 0)
		return 0;
	assert_int_equal(frames_new(n, CHUNK_FRAMES, parts.objects, &f), 0);
	frames_arrived(f, n);
	size = frames_size(f, page_bytes);
	assert_true(size >= 0);
	while (frames_take(f, size, &object) == 0)
		pages++;
	frames_free(&f);
	return pages;
}

static void what_a_page_takes_is_counted_and_known(void **state)
{
	(void)state;
	/* 8 frames, and what is known of 4,096 pages: not a byte is left. */
	assert_int_equal(4096 * (4096 + RAM_KNOWN_BYTES), 35 * MIB);
	assert_int_equal(pages_held(35 * MIB, 4096), 4096);
	/* Of the eighth frame 7/8 would be filled: it holds 368 pages more than 7 frames. */
	assert_int_equal(pages_held(36000000, 4096), 3952);
	/* Of the second 83 %: less is lost without it. */
	assert_int_equal(ram_divide(4 * MIB, 65536).arena_bytes / FRAME_BYTES, 1);
	assert_int_equal(pages_held(4 * MIB, 65536), 32);
	/* Less than a frame for pages is a frame if there is one. */
	assert_int_equal(pages_held(4 * MIB, 4096), 2 * MIB / RAM_KNOWN_BYTES);
	assert_int_equal(ram_divide(2 * MIB, 4096).arena_bytes / FRAME_BYTES, 0);
	assert_int_equal(ram_divide(0, 65536).arena_bytes, 0);
}

/* Nothing less, and all that is more, leaves a frame that a page finds a place in. */
static void the_least_is_a_frame_and_what_a_page_is_known_by(void **state)
{
	(void)state;
	assert_int_equal(ram_least(65536), FRAME_BYTES + RAM_KNOWN_BYTES);
	assert_int_equal(ram_least(FRAME_BYTES), FRAME_BYTES);
	assert_int_equal(ram_least(8 * MIB), 8 * MIB);
	for (uint64_t page = 4096; page <= 4 * MIB; page += 4096) {
		uint64_t least = ram_least(page);
		uint64_t below = page < FRAME_BYTES - RAM_KNOWN_BYTES ? least : FRAME_BYTES;

		below--;
		assert_true(ram_divide(below, page).arena_bytes < FRAME_BYTES);
		for (uint64_t more = 0; more < 4 * MIB; more += 509)
			assert_true(ram_divide(least + more, page).arena_bytes >= FRAME_BYTES);
	}
}

static void pages_that_fill_frames_use_all_but_one_frames_worth(void **state)
{
	(void)state;
	for (uint64_t page = 4096; page <= 16 * MIB; page *= 2) {
		uint64_t takes = page + RAM_KNOWN_BYTES;

		for (uint64_t bytes = 2 * FRAME_BYTES; bytes < 100 * MIB; bytes += 1234567) {
			uint64_t used = pages_held(bytes, page) * takes;

			assert_true(used <= bytes);
			assert_true(used + FRAME_BYTES + takes >= bytes);
		}
	}
}

/* Slabs waste under 6 %; of a chunk that is not whole, and of the last slab, 15 frames may be of no
 * use. */
static void pages_of_any_size_use_nearly_all(void **state)
{
	const uint64_t bytes = 4096 * MIB;

	(void)state;
	for (uint64_t page = 4096; page < 40 * MIB; page += 37 * 4096ull) {
		uint64_t takes = page + RAM_KNOWN_BYTES;
		uint64_t used = pages_held(bytes, page) * takes;

		assert_true(used <= bytes);
		assert_true(used + bytes * 6 / 100 + 31 * FRAME_BYTES + takes >= bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_a_page_takes_is_counted_and_known),
	    cmocka_unit_test(the_least_is_a_frame_and_what_a_page_is_known_by),
	    cmocka_unit_test(pages_that_fill_frames_use_all_but_one_frames_worth),
	    cmocka_unit_test(pages_of_any_size_use_nearly_all),
	};

	return cmocka_run_group_tests_name("ram_divide", tests, NULL, NULL);
}
