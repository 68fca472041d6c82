/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/tier/device_cpu: memory, zeroing, rows, and memory that vanishes underneath. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/device.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/testing.h"
#include "shm/guard.h"
#include "tests/unit/device_world.h"

static void memory_is_made_zero_and_says_what_backs_it(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE};

	w->layers[0] = w->layers[1] = (struct geometry_layer){
	    .kv_heads = 2, .head_dim = {8, 8}, .format = {KERNEL_FLOAT32, KERNEL_FLOAT32}};
	compute(w, 16);
	w->memory.pages = 100;
	assert_int_equal(run(w, &j), 0);
	w->made = true;
	assert_true(w->memory.segment.bytes >= 100 * w->geometry.page_stride);
	for (uint64_t i = 0; i < 100; i++)
		assert_true(page_is(w, i, 0));
	assert_non_null(strstr(w->memory.huge_note, "iB"));
	assert_int_equal(w->work.runs, 1);
	assert_int_equal(w->copies.runs, 0);
}

static void memory_that_cannot_be_is_refused_with_a_reason(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE, .require_huge = true};

	w->layers[0] = w->layers[1] = (struct geometry_layer){
	    .kv_heads = 2, .head_dim = {8, 8}, .format = {KERNEL_FLOAT32, KERNEL_FLOAT32}};
	compute(w, 16);
	w->memory.pages = UINT64_MAX / 4096 + 2; /* the product wraps around to 4096 */
	assert_int_equal(run(w, &j), -ENOMEM);
	assert_null(w->memory.segment.memory);
	assert_ptr_equal(strstr(w->memory.huge_note, "no memory: "), w->memory.huge_note);
}

static int make_without_huge_pages(struct world *w, uint64_t promised_bytes, uint64_t index_bytes)
{
	struct device_job j = {.op = DEVICE_MAKE,
			       .promised_bytes = promised_bytes,
			       .promised_to = "KV-RAM is",
			       .index_bytes = index_bytes};
	int r;

	compute_small(w);
	w->memory.pages = 16;
	w->memory.refusal[0] = 0;
	failpoint_arm(FAILPOINT_pool_huge, 0, 1);
	r = run(w, &j);
	w->made = r == 0;
	return r;
}

static void memory_that_the_host_has_not_is_refused_in_words(void **state)
{
	struct world *w = *state;

	failpoint_arm(FAILPOINT_pool_starved, 0, 1);
	assert_int_equal(make_without_huge_pages(w, 0, 1000), -ENOMEM);
	assert_null(w->memory.segment.memory);
	assert_int_equal(w->memory.segment.fd, -1);
	/* 16 pages, their index, and what the kernel keeps of them. */
	assert_string_equal(w->memory.refusal,
			    "it wants 66877 bytes with its index, MemAvailable of this host is 0: "
			    "lower pools.pool_bytes, or end what uses the memory");
	assert_int_equal(make_without_huge_pages(w, 0, 1000), 0);
	assert_string_equal(w->memory.refusal, "");
}

static void memory_that_is_promised_to_others_is_refused(void **state)
{
	struct world *w = *state;

	assert_int_equal(make_without_huge_pages(w, INT64_MAX, 0), -ENOMEM);
	assert_null(w->memory.segment.memory);
	assert_non_null(strstr(w->memory.refusal, " KV-RAM is still to get 9223372036854775807"));
	assert_int_equal(make_without_huge_pages(w, 0, INT64_MAX), -ENOMEM);
	assert_null(w->memory.segment.memory);
	assert_int_equal(make_without_huge_pages(w, 0, 0), 0);
}

/* The second part of the memory is asked for by itself; without it there is no first one. */
static void retained_slots_that_the_host_has_no_memory_for_are_refused(void **state)
{
	struct world *w = *state;

	w->memory.retained_bytes = 1 << 20;
	w->memory.retained = SEGMENT_NONE;
	/* With the first part both are asked for. */
	failpoint_arm(FAILPOINT_pool_starved, 0, 1);
	assert_int_equal(make_without_huge_pages(w, 1000, 0), -ENOMEM);
	assert_non_null(strstr(w->memory.refusal,
			       "it wants 1114453 bytes with its retained slots and index, "));
	assert_non_null(strstr(w->memory.refusal, ", and KV-RAM is still to get 1000: "));

	/* By then KV-RAM may have what was promised to it. */
	failpoint_arm(FAILPOINT_pool_starved, 1, 1);
	assert_int_equal(make_without_huge_pages(w, 1000, 0), -ENOMEM);
	assert_null(strstr(w->memory.refusal, "KV-RAM is still to get"));
	assert_null(w->memory.segment.memory);
	assert_int_equal(w->memory.segment.fd, -1);
	assert_null(w->memory.retained.memory);
	assert_non_null(strstr(w->memory.refusal, " for retained slots and its index, "));
	assert_non_null(strstr(w->memory.refusal, " lower pools.retained_slots, or "));
	assert_int_equal(make_without_huge_pages(w, 0, 0), 0);
}

static void memory_is_given_back_by_free(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_FREE};

	make_small(w, 4);
	assert_int_equal(run(w, &j), 0);
	w->made = false;
	assert_null(w->memory.segment.memory);
	assert_int_equal(w->memory.segment.fd, -1);
	assert_int_equal(w->work.runs, 2);
}

static void zero_pages(struct world *w)
{
	const uint32_t pages[] = {3, 1};
	struct device_job j = {.op = DEVICE_ZERO, .pages = pages, .n = 2};

	assert_int_equal(run(w, &j), 0);
	assert_true(page_is(w, 0, POISON));
	assert_true(page_is(w, 1, 0));
	assert_true(page_is(w, 2, POISON));
	assert_true(page_is(w, 3, 0));
	assert_int_equal(w->copies.runs, 1);
}

static void zero_clears_whole_records_and_no_others(void **state)
{
	make_small(*state, 4);
	zero_pages(*state);
}

static void zero_clears_large_records_too(void **state)
{
	make_large(*state, 4);
	zero_pages(*state);
}

static void a_move_says_how_long_the_device_worked_on_it(void **state)
{
	struct world *w = *state;
	const struct device_move moves[] = {{DEVICE_POOL, DEVICE_POOL, 0, 4ull << 20, 4ull << 20}};
	struct device_job move = {.op = DEVICE_MOVE, .moves = moves, .n = 1};
	uint64_t used_ns;

	make_small(w, (8ull << 20) / 4096);
	used_ns = clock_thread_ns();
	assert_int_equal(run(w, &move), 0);
	used_ns = clock_thread_ns() - used_ns;
	/* Four MiB take longer than all that is around them. */
	assert_in_range(move.busy_ns, used_ns / 2, used_ns);
}

static void zero_clears_many_small_records_too(void **state)
{
	struct world *w = *state;
	uint32_t pages[100];
	struct device_job j = {.op = DEVICE_ZERO, .pages = pages, .n = 100};

	make_small(w, 200);
	for (uint32_t i = 0; i < 100; i++)
		pages[i] = 199 - 2 * i;
	assert_int_equal(run(w, &j), 0);
	for (uint32_t i = 0; i < 200; i++)
		assert_true(page_is(w, i, i % 2 ? 0 : POISON));
}

static float value_at(uint32_t token, uint32_t head, uint32_t element)
{
	return (float)(token * 4 + head) + (float)element / 8;
}

/* Where the rows of K of layer 0 must be: heads first, 16 tokens of 32 bytes each. */
static void rows_lie_head_by_head_across_pages(void **state)
{
	enum { FIRST = 5, TOKENS = 40 };
	struct world *w = *state;
	const uint32_t pages[] = {3, 0, 2};
	float rows[TOKENS][2][8], back[TOKENS][2][8];
	struct device_job j = {
	    .op = DEVICE_WRITE,
	    .pages = pages,
	    .n = 3,
	    .rows = {.format = KERNEL_FLOAT32,
		     .memory = rows,
		     .first_slot = FIRST,
		     .n_tokens = TOKENS},
	};
	unsigned char *expected;

	make_small(w, 4);
	expected = malloc(4 * 4096);
	assert_non_null(expected);
	memset(expected, POISON, 4 * 4096);
	for (uint32_t t = 0; t < TOKENS; t++) {
		uint32_t slot = FIRST + t;

		for (uint32_t h = 0; h < 2; h++) {
			for (uint32_t e = 0; e < 8; e++)
				rows[t][h][e] = value_at(t, h, e);
			memcpy(expected + pages[slot / 16] * 4096 + (h * 16 + slot % 16) * 32,
			       rows[t][h], 32);
		}
	}
	assert_int_equal(run(w, &j), 0);
	assert_memory_equal(page_of(w, 0), expected, 4 * 4096);
	free(expected);

	memset(back, POISON, sizeof(back));
	j.op = DEVICE_READ;
	j.rows.memory = back;
	assert_int_equal(run(w, &j), 0);
	assert_memory_equal(back, rows, sizeof(rows));
}

static void rows_are_converted_and_what_saturates_is_counted(void **state)
{
	struct world *w = *state;
	const uint32_t page = 1;
	float rows[3][2][4] = {{{1, 70000, -2, 0.5f}, {-1e9f, 0, 0, 0}}, {{3, 3, 3, 3}}, {{4}}};
	const uint16_t want[4] = {0x3c00, 0x7bff, 0xc000, 0x3800};
	float back[3][2][4];
	struct device_job j = {
	    .op = DEVICE_WRITE,
	    .pages = &page,
	    .n = 1,
	    .rows = {.side = 1, .format = KERNEL_FLOAT32, .memory = rows, .n_tokens = 3},
	    .saturated = 99,
	};

	make_small(w, 2);
	assert_int_equal(run(w, &j), 0);
	assert_int_equal(j.saturated, 2);
	assert_memory_equal(page_of(w, 1) + 1024, want, sizeof(want));

	j.op = DEVICE_READ;
	j.rows.memory = back;
	assert_int_equal(run(w, &j), 0);
	assert_int_equal(j.saturated, 0);
	assert_true(back[0][0][0] == 1 && back[0][0][1] == 65504 && back[0][0][3] == 0.5f);
	assert_true(back[0][1][0] == -65504 && back[1][0][3] == 3 && back[2][0][0] == 4);
}

static void v_without_a_block_reads_the_rows_of_k(void **state)
{
	struct world *w = *state;
	const uint32_t page = 0;
	float rows[2][3][8], back[2][3][8] = {0};
	struct device_job j = {
	    .op = DEVICE_WRITE,
	    .pages = &page,
	    .n = 1,
	    .rows = {.layer = 1,
		     .format = KERNEL_FLOAT32,
		     .memory = rows,
		     .first_slot = 14,
		     .n_tokens = 2},
	};

	make_small(w, 1);
	for (uint32_t t = 0; t < 2; t++)
		for (uint32_t h = 0; h < 3; h++)
			for (uint32_t e = 0; e < 8; e++)
				rows[t][h][e] = value_at(t, h, e);
	assert_int_equal(run(w, &j), 0);
	j.op = DEVICE_READ;
	j.rows.side = 1;
	j.rows.memory = back;
	assert_int_equal(run(w, &j), 0);
	assert_memory_equal(back, rows, sizeof(rows));
}

/* More rows than the device's private buffers hold at once. */
static void many_rows_survive_the_round_trip(void **state)
{
	enum { TOKENS = 100, HEADS = 8, DIM = 256 };
	struct world *w = *state;
	const uint32_t pages[] = {2, 0};
	size_t n = (size_t)TOKENS * HEADS * DIM;
	float *rows = malloc(n * sizeof(*rows)), *back = calloc(n, sizeof(*back)), stored;
	struct device_job j = {
	    .op = DEVICE_WRITE,
	    .pages = pages,
	    .n = 2,
	    .rows = {.side = 1,
		     .format = KERNEL_FLOAT32,
		     .memory = rows,
		     .first_slot = 3,
		     .n_tokens = TOKENS},
	};

	assert_true(rows && back);
	for (size_t i = 0; i < n; i++)
		rows[i] = (float)i;
	make_large(w, 3);
	assert_int_equal(run(w, &j), 0);
	/* token 90, head 6, element 200: slot 93 is the 29th of the second page */
	memcpy(&stored, page_of(w, 0) + w->layers[0].offset[1] + ((6 * 64 + 29) * 256 + 200) * 4,
	       4);
	assert_true(stored == (float)((90 * HEADS + 6) * DIM + 200));
	assert_true(page_is(w, 1, POISON));

	j.op = DEVICE_READ;
	j.rows.memory = back;
	assert_int_equal(run(w, &j), 0);
	assert_memory_equal(back, rows, n * sizeof(*rows));
	free(rows);
	free(back);
}

static void a_cancelled_write_or_read_does_nothing(void **state)
{
	struct world *w = *state;
	const uint32_t page = 0;
	float rows[2][8] = {{1}}, untouched[2][8] = {{1}};
	struct device_job j = {
	    .op = DEVICE_WRITE,
	    .pages = &page,
	    .n = 1,
	    .rows = {.format = KERNEL_FLOAT32, .memory = rows, .n_tokens = 1},
	};

	make_small(w, 1);
	atomic_store(&j.job.cancelled, true);
	assert_int_equal(run(w, &j), -ECANCELED);
	assert_true(page_is(w, 0, POISON));
	j.op = DEVICE_READ;
	assert_int_equal(run(w, &j), -ECANCELED);
	assert_memory_equal(rows, untouched, sizeof(rows));
}

/*
 * CMocka takes SIGBUS for itself around every test and fixture. So the guard is installed before
 * the group, and a test that lets memory vanish takes its handler back first.
 */
static struct sigaction guard_action;

static void guard_take_signal(void)
{
	assert_int_equal(sigaction(SIGBUS, &guard_action, NULL), 0);
}

static int guard_prepare(void)
{
	int r = guard_install();

	return r ? r : sigaction(SIGBUS, NULL, &guard_action);
}

/* A mapping of `bytes` whose file ends after `there`: touching the rest is SIGBUS. */
static void *map_cut(size_t bytes, size_t there)
{
	int fd = memfd_create("test-cut", MFD_CLOEXEC);
	void *p;

	guard_take_signal();
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(ftruncate(fd, (off_t)there), 0);
	close(fd);
	return p;
}

static void a_window_that_is_gone_is_efault(void **state)
{
	struct world *w = *state;
	size_t base = segment_base_page_bytes();
	const uint32_t page = 0;
	char *window = map_cut(2 * base, base);
	struct device_job j = {
	    .op = DEVICE_WRITE,
	    .pages = &page,
	    .n = 1,
	    .rows = {.format = KERNEL_FLOAT32, .memory = window + base - 64, .n_tokens = 1},
	};

	make_small(w, 1);
	assert_int_equal(run(w, &j), 0); /* a row of 64 bytes is there */
	j.rows.n_tokens = 2;
	assert_int_equal(run(w, &j), -EFAULT);
	j.op = DEVICE_READ;
	assert_int_equal(run(w, &j), -EFAULT);
	munmap(window, 2 * base);
}

/* Put memory whose second half is gone in the place of the pool's. */
static void pool_memory_that_is_gone_is_eio(void **state)
{
	struct world *w = *state;
	const uint32_t here = 0;
	float rows[2][8] = {{1}};
	void *cut;
	uint32_t gone;
	size_t half;
	struct device_copy copy, swap[2];
	struct device_job write = {.op = DEVICE_WRITE, .n = 1};
	struct device_job zero = {.op = DEVICE_ZERO, .n = 1};
	struct device_job copying = {.op = DEVICE_COPY, .copies = &copy, .n = 1};

	make_small(w, 2);
	half = segment_base_page_bytes();
	gone = (uint32_t)(half / 4096);
	cut = map_cut(2 * half, half);
	w->kept = w->memory.segment;
	w->memory.segment.memory = cut;
	w->memory.pages = 2 * gone;

	write.rows = (struct device_rows){.format = KERNEL_FLOAT32, .memory = rows, .n_tokens = 1};
	write.pages = &here;
	zero.pages = &here;
	assert_int_equal(run(w, &write), 0);
	assert_int_equal(run(w, &zero), 0);
	write.pages = &gone;
	zero.pages = &gone;
	assert_int_equal(run(w, &write), -EIO);
	assert_int_equal(run(w, &zero), -EIO);
	write.op = DEVICE_READ;
	assert_int_equal(run(w, &write), -EIO);
	copy = (struct device_copy){.from = 0, .to = gone};
	assert_int_equal(run(w, &copying), -EIO);
	copy = (struct device_copy){.from = gone, .to = 0};
	assert_int_equal(run(w, &copying), -EIO);
	swap[0] = (struct device_copy){.from = gone, .to = 0};
	swap[1] = (struct device_copy){.from = 0, .to = gone};
	copying.copies = swap;
	copying.n = 2;
	assert_int_equal(run(w, &copying), -EIO);

	munmap(cut, 2 * half);
}

static void zeroing_a_large_record_that_is_gone_is_eio(void **state)
{
	struct world *w = *state;
	const uint32_t page = 0;
	struct device_job j = {.op = DEVICE_ZERO, .pages = &page, .n = 1};
	void *cut;
	size_t bytes;

	make_large(w, 1);
	bytes = w->geometry.page_stride;
	cut = map_cut(bytes, bytes / 2);
	w->kept = w->memory.segment;
	w->memory.segment.memory = cut;
	assert_int_equal(run(w, &j), -EIO);
	munmap(cut, bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(memory_is_made_zero_and_says_what_backs_it),
	    TEST(memory_that_cannot_be_is_refused_with_a_reason),
	    TEST(memory_is_given_back_by_free),
	    TEST(memory_that_the_host_has_not_is_refused_in_words),
	    TEST(memory_that_is_promised_to_others_is_refused),
	    TEST(retained_slots_that_the_host_has_no_memory_for_are_refused),
	    TEST(zero_clears_whole_records_and_no_others),
	    TEST(zero_clears_large_records_too),
	    TEST(zero_clears_many_small_records_too),
	    TEST(a_move_says_how_long_the_device_worked_on_it),
	    TEST(rows_lie_head_by_head_across_pages),
	    TEST(rows_are_converted_and_what_saturates_is_counted),
	    TEST(v_without_a_block_reads_the_rows_of_k),
	    TEST(many_rows_survive_the_round_trip),
	    TEST(a_cancelled_write_or_read_does_nothing),
	    TEST(a_window_that_is_gone_is_efault),
	    TEST(pool_memory_that_is_gone_is_eio),
	    TEST(zeroing_a_large_record_that_is_gone_is_eio),
	};

	if (guard_prepare())
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
