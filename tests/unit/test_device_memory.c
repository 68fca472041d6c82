/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/device_memory.h: a pool that takes several jobs to make, and what becomes
 * of it if one of them fails. They use huge pages where the host has some free.
 */

#include "daemon/tier/device_memory.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>

#include "daemon/base/testing.h"
#include "tests/unit/device_world.h"

#define MIB  (1ull << 20)
#define STEP (256 * MIB)

static unsigned descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(folder);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

static int done;
static unsigned n_before;

/* A pool of so many bytes besides one page, and of retained slots. */
static void begin(struct world *w, struct device_job *j, uint64_t bytes, uint64_t retained_bytes)
{
	compute_small(w);
	w->memory.pages = 1;
	w->memory.slot_bytes = bytes;
	w->memory.retained_bytes = retained_bytes;
	w->memory.retained = SEGMENT_NONE;
	w->memory.refusal[0] = 0;
	done = 0;
	n_before = descriptors();
	j->op = DEVICE_MAKE;
	j->memory = &w->memory;
	j->job.done = mark_done;
	j->owner = &done;
	w->device->submit(w->device, j);
}

static void step(struct world *w)
{
	assert_int_equal(done, 0);
	assert_int_equal(w->work.executor.reap(&w->work.executor, 1), 1);
}

static void nothing_is_left(struct world *w)
{
	assert_int_equal(done, 1);
	assert_null(w->memory.segment.memory);
	assert_int_equal(w->memory.segment.fd, -1);
	assert_null(w->memory.retained.memory);
	assert_null(w->memory.backing);
	assert_int_equal(descriptors(), n_before);
}

static unsigned n_other;

static void other_run(struct job *job)
{
	job->result = 0;
}

static void other_done(struct job *job)
{
	(void)job;
	n_other++;
}

static void others_have_their_turn_while_a_large_pool_is_made(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE};
	struct job other = {.run = other_run, .done = other_done};
	const char *memory;
	uint64_t bytes;

	n_other = 0;
	begin(w, &j, STEP, STEP);
	w->work.executor.submit(&w->work.executor, &other);
	step(w);
	assert_null(w->memory.segment.memory);
	step(w);
	assert_int_equal(n_other, 1);
	step(w);
	step(w);
	assert_int_equal(done, 1);
	assert_int_equal(j.job.result, 0);
	w->made = true;
	print_message("pool: %s\n", w->memory.huge_note);

	/* All of it is there, and zeros; what the client's mapping shows is that. */
	bytes = w->memory.segment.bytes;
	assert_true(bytes >= STEP + w->geometry.page_stride);
	assert_true(w->memory.retained.bytes >= STEP);
	memory = w->memory.segment.memory;
	for (uint64_t at = 0; at < bytes; at += 4096)
		assert_int_equal(memory[at], 0);
	assert_int_equal(memory[bytes - 1], 0);
	memory = w->memory.retained.memory;
	for (uint64_t at = 0; at < w->memory.retained.bytes; at += 4096)
		assert_int_equal(memory[at], 0);
	assert_true(bytes % w->memory.segment.page_bytes == 0);
}

/* Whoever asks for memory meanwhile leaves it what is still to come. */
static void a_pool_that_is_made_says_what_it_is_still_to_get(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE, .index_bytes = 1000};
	uint64_t bytes;

	begin(w, &j, 2 * STEP, 5000);
	bytes = 2 * STEP + w->geometry.page_stride + 5000 + 1000;
	assert_int_equal(w->memory.promised_bytes, bytes - STEP);
	step(w);
	if (w->memory.promised_bytes) /* else huge pages, which nobody else gets */
		assert_int_equal(w->memory.promised_bytes, bytes - 2 * STEP);
	else
		print_message("of huge pages\n");
	while (!done)
		step(w);
	w->made = true;
	assert_int_equal(w->memory.promised_bytes, 0);
	run(w, &(struct device_job){.op = DEVICE_FREE});
	w->made = false;

	begin(w, &j, 2 * STEP, 0);
	j.job.cancelled = true;
	step(w);
	assert_int_equal(w->memory.promised_bytes, 0);
	nothing_is_left(w);
}

static void a_pool_that_nobody_wants_any_more_is_not_made_to_the_end(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE};

	begin(w, &j, 2 * STEP, 0);
	step(w);
	j.job.cancelled = true;
	step(w);
	assert_int_equal(j.job.result, -ECANCELED);
	nothing_is_left(w);
}

static void a_step_that_never_ran_leaves_nothing(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE};

	begin(w, &j, STEP, 0);
	step(w);
	list_remove(&j.job.link);
	j.job.result = -EIO;
	j.job.done(&j.job);
	assert_int_equal(j.job.result, -EIO);
	nothing_is_left(w);
}

/* At the nth call for memory, for every n; the second time, too, where other pages are tried. */
static void memory_that_ends_in_between_leaves_nothing(void **state)
{
	struct world *w = *state;
	unsigned n_failed = 0;
	bool hit = true;

	for (unsigned n = 0; hit; n++) {
		struct device_job j = {.op = DEVICE_MAKE};

		failpoint_clear();
		failpoint_arm(FAILPOINT_arena_chunk, n, UINT32_MAX);
		begin(w, &j, 8 * MIB, 4 * MIB);
		while (!done)
			step(w);
		hit = failpoint_passes(FAILPOINT_arena_chunk) > n;
		if (j.job.result) {
			n_failed++;
			assert_true(hit);
			assert_int_equal(j.job.result, -ENOMEM);
			assert_non_null(
			    strstr(w->memory.refusal, "the kernel gives no more memory"));
			nothing_is_left(w);
		} else {
			assert_int_equal(run(w, &(struct device_job){.op = DEVICE_FREE}), 0);
			nothing_is_left(w);
		}
	}
	assert_true(n_failed > 4);
}

/* They were free when it was asked for: others have them now. */
static void huge_pages_that_do_not_come_are_done_without(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE};

	failpoint_arm(FAILPOINT_arena_chunk, 1, 1);
	begin(w, &j, 8 * MIB, 0);
	while (!done)
		step(w);
	if (j.job.result) {
		print_message("no huge pages are set aside on this host\n");
		nothing_is_left(w);
		skip();
	}
	w->made = true;
	assert_int_not_equal(w->memory.segment.backing, SEGMENT_HUGETLB);
	assert_string_equal(w->memory.refusal, "");
}

static void required_huge_pages_are_huge_or_an_error(void **state)
{
	struct world *w = *state;
	struct device_job j = {.op = DEVICE_MAKE, .require_huge = true};

	failpoint_arm(FAILPOINT_pool_huge, 0, 1);
	begin(w, &j, MIB, 0);
	step(w);
	assert_int_equal(j.job.result, -ENOMEM);
	nothing_is_left(w);

	j = (struct device_job){.op = DEVICE_MAKE, .require_huge = true};
	begin(w, &j, MIB, MIB);
	step(w);
	if (j.job.result) {
		assert_int_equal(j.job.result, -ENOMEM);
		nothing_is_left(w);
		return;
	}
	w->made = true;
	assert_int_not_equal(w->memory.segment.backing, SEGMENT_SMALL);
	assert_int_not_equal(w->memory.retained.backing, SEGMENT_SMALL);
}

static int clear(void **state)
{
	failpoint_clear();
	return teardown(state);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, clear)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(others_have_their_turn_while_a_large_pool_is_made),
	    CASE(a_pool_that_is_made_says_what_it_is_still_to_get),
	    CASE(a_pool_that_nobody_wants_any_more_is_not_made_to_the_end),
	    CASE(a_step_that_never_ran_leaves_nothing),
	    CASE(memory_that_ends_in_between_leaves_nothing),
	    CASE(huge_pages_that_do_not_come_are_done_without),
	    CASE(required_huge_pages_are_huge_or_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
