/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/arena_staging.h: windows that come when the test lets them. They use huge
 * pages where the host has some free.
 */

#include "daemon/tier/arena_staging.h"

#include <errno.h>
#include <stdio.h>

#include "tests/unit/arena_world.h"

#define WINDOW (2 * FRAME_BYTES)
#define BYTES  (4 * WINDOW)

struct windows {
	struct world world;
	struct staging *staging;
	unsigned n_changed;
};

static struct windows w;

static int begin(void **state)
{
	(void)state;
	failpoint_clear();
	w = (struct windows){0};
	sim_executor_init(&w.world.executor);
	return 0;
}

static int end(void **state)
{
	(void)state;
	failpoint_clear();
	if (w.staging) {
		while (!staging_stop(w.staging))
			step(&w.world, 0);
		staging_free(&w.staging);
		staging_free(&w.staging);
	}
	return sim_executor_is_idle(&w.world.executor) ? 0 : -1;
}

static void changed(void *context)
{
	assert_ptr_equal(context, &w);
	w.n_changed++;
}

static struct staging_wish windows_of(uint64_t bytes)
{
	return (struct staging_wish){.bytes = bytes, .numa_node = NODES_INTERLEAVE, .threads = 2};
}

static struct staging *make_windows(const struct staging_wish *wish)
{
	assert_int_equal(staging_new(wish, &w.world.executor.executor, changed, &w, &w.staging), 0);
	assert_int_equal(w.n_changed, 0);
	return w.staging;
}

static void there_are_two_a_direction_and_no_two_share_a_byte(void **state)
{
	const struct staging_wish wish = windows_of(BYTES);
	struct staging *s = make_windows(&wish);
	char *window[STAGING_DIRECTIONS * STAGING_WINDOWS];
	unsigned n = 0;

	(void)state;
	assert_int_equal(s->state, ARENA_ARRIVING);
	assert_null(staging_window(s, STAGING_DOWN, 0));
	assert_null(staging_window(s, STAGING_UP, 1));
	step(&w.world, 0);
	assert_int_equal(w.n_changed, 1);
	assert_int_equal(s->state, ARENA_WHOLE);
	assert_int_equal(s->window_bytes, WINDOW);
	assert_int_equal(s->bytes, BYTES);
	/* All of it is there before anybody touches it, and nothing besides. */
	assert_int_equal(taken(s->memory_fd), BYTES);
	for (int direction = 0; direction < STAGING_DIRECTIONS; direction++) {
		for (uint32_t i = 0; i < STAGING_WINDOWS; i++) {
			window[n] = staging_window(s, (enum staging_direction)direction, i);
			assert_int_equal((uintptr_t)window[n] % FRAME_BYTES, 0);
			memset(window[n], (int)n + 1, s->window_bytes);
			n++;
		}
	}
	assert_int_equal(n, 4);
	for (unsigned i = 0; i < n; i++) {
		for (uint64_t at = 0; at < s->window_bytes; at += 512)
			assert_int_equal(window[i][at], i + 1);
		assert_int_equal(window[i][s->window_bytes - 1], i + 1);
	}
	assert_int_equal(taken(s->memory_fd), BYTES);
	print_message("staging: %s\n", s->note);
	assert_non_null(strstr(s->note, "not locked, "));
}

/* What is left over is not taken. */
static void a_window_is_of_whole_frames(void **state)
{
	struct staging_wish wish = windows_of(BYTES + 4 * FRAME_BYTES - 1);
	struct staging *none = NULL, *s = make_windows(&wish);

	(void)state;
	assert_int_equal(s->bytes, BYTES);
	wish.bytes = STAGING_LEAST - 1;
	assert_int_equal(staging_new(&wish, &w.world.executor.executor, changed, &w, &none),
			 -EINVAL);
	wish.bytes = STAGING_MOST + 1;
	assert_int_equal(staging_new(&wish, &w.world.executor.executor, changed, &w, &none),
			 -EINVAL);
	wish = windows_of(STAGING_LEAST);
	wish.numa_node = 5000;
	assert_int_equal(staging_new(&wish, &w.world.executor.executor, changed, &w, &none),
			 -EINVAL);
	assert_null(none);
}

/* Others' jobs are behind one of them at most. */
static void many_bytes_come_in_steps(void **state)
{
	const struct staging_wish wish = windows_of(2 * STAGING_STEP_BYTES + 4 * FRAME_BYTES);
	struct staging *s = make_windows(&wish);

	(void)state;
	for (unsigned i = 1; i <= 2; i++) {
		step(&w.world, 0);
		assert_int_equal(s->state, ARENA_ARRIVING);
		assert_int_equal(w.n_changed, 0);
		assert_int_equal(taken(s->memory_fd), i * STAGING_STEP_BYTES);
		assert_null(staging_window(s, STAGING_DOWN, 0));
	}
	/* Without the last one there is none. */
	failpoint_arm(FAILPOINT_arena_chunk, 0, 1);
	step(&w.world, 0);
	assert_int_equal(s->state, ARENA_PARTIAL);
	assert_int_equal(w.n_changed, 1);
	assert_int_equal(taken(s->memory_fd), 0);
	staging_free(&w.staging);

	failpoint_clear();
	w.n_changed = 0;
	s = make_windows(&wish);
	for (unsigned i = 0; i < 3; i++)
		step(&w.world, 0);
	assert_int_equal(s->state, ARENA_WHOLE);
	assert_int_equal(taken(s->memory_fd), s->bytes);
	memset(staging_window(s, STAGING_UP, 1), 1, s->window_bytes);
	staging_free(&w.staging);

	w.n_changed = 0;
	s = make_windows(&wish);
	step(&w.world, 0);
	assert_false(staging_stop(s));
	step(&w.world, 0);
	assert_true(staging_stop(s));
	assert_int_equal(s->state, ARENA_PARTIAL);
	assert_int_equal(s->result, -ECANCELED);
}

/* Memory ends at the nth call for it, for every n: none of it is kept. */
static void windows_that_do_not_come_leave_nothing(void **state)
{
	const struct staging_wish wish = windows_of(BYTES);
	unsigned n_missing = 0;
	bool hit = true;

	(void)state;
	for (unsigned n = 0; hit; n++) {
		struct staging *s;

		failpoint_clear();
		failpoint_arm(FAILPOINT_arena_chunk, n, 1);
		w.n_changed = 0;
		s = make_windows(&wish);
		step(&w.world, 0);
		assert_int_equal(w.n_changed, 1);
		hit = failpoint_passes(FAILPOINT_arena_chunk) > n;
		if (s->state == ARENA_PARTIAL) {
			n_missing++;
			assert_true(hit);
			assert_int_equal(s->result, -ENOMEM);
			assert_int_equal(taken(s->memory_fd), 0);
			assert_null(staging_window(s, STAGING_DOWN, 0));
			assert_non_null(strstr(s->note, "lower kv_staging_bytes"));
			if (n_missing == 1)
				print_message("staging: %s\n", s->note);
		} else {
			assert_int_equal(s->state, ARENA_WHOLE);
			assert_int_equal(taken(s->memory_fd), BYTES);
		}
		assert_true(staging_stop(s));
		staging_free(&w.staging);
	}
	assert_true(n_missing > 0);
}

static void windows_whose_job_never_ran_are_missing(void **state)
{
	const struct staging_wish wish = windows_of(BYTES);
	struct staging *s = make_windows(&wish);

	(void)state;
	step(&w.world, -EIO);
	assert_int_equal(w.n_changed, 1);
	assert_int_equal(s->state, ARENA_PARTIAL);
	assert_int_equal(s->result, -EIO);
	assert_string_equal(s->note, strerror(EIO));
	assert_int_equal(taken(s->memory_fd), 0);
}

/* Base pages would be given, and somebody killed for them. */
static void windows_are_not_asked_of_a_host_that_has_no_memory_left(void **state)
{
	const struct staging_wish wish = windows_of(BYTES);
	char why[ARENA_NOTE_BYTES] = "untouched";
	struct staging *s;

	(void)state;
	assert_int_equal(staging_check(&wish, why), 0);
	assert_string_equal(why, "untouched");
	failpoint_arm(FAILPOINT_arena_pool, 0, 1);
	s = make_windows(&wish);
	failpoint_arm(FAILPOINT_arena_starved, 0, 1);
	step(&w.world, 0);
	assert_int_equal(s->state, ARENA_PARTIAL);
	assert_string_equal(s->note,
			    "Staging wants 16777216 bytes, MemAvailable of this host is 0: "
			    "lower kv_staging_bytes, or end what uses the memory");
}

static void stopping_waits_for_them_and_tells_nobody(void **state)
{
	const struct staging_wish wish = windows_of(BYTES);
	struct staging *s = make_windows(&wish);

	(void)state;
	assert_false(staging_stop(s));
	step(&w.world, 0);
	assert_int_equal(w.n_changed, 0);
	assert_int_equal(s->state, ARENA_PARTIAL);
	assert_true(staging_stop(s));
}

static void what_cannot_be_had_is_told_before(void **state)
{
	struct staging_wish wish = windows_of(BYTES);
	char why[ARENA_NOTE_BYTES] = "";

	(void)state;
	staging_explain(&wish, -EMFILE, why);
	assert_non_null(strstr(why, "Staging wants 16777216 bytes in one file"));
	assert_non_null(strstr(why, strerror(EMFILE)));
	assert_non_null(strstr(why, "lower kv_staging_bytes"));
	assert_true(strlen(why) < ARENA_NOTE_BYTES - 1);
	/* Of 1 GiB, say: no window is of whole ones, so they are not what it must be of. */
	wish.require_huge = true;
	failpoint_arm(FAILPOINT_arena_gigantic, 0, 1);
	assert_int_equal(staging_check(&wish, why), 0);
	failpoint_clear();
	failpoint_arm(FAILPOINT_arena_gigantic, 0, 1);
	failpoint_arm(FAILPOINT_arena_starved, 0, 1);
	assert_int_equal(staging_check(&wish, why), -ENOMEM);
	assert_non_null(strstr(why, "Staging wants 16777216 bytes, MemAvailable"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(there_are_two_a_direction_and_no_two_share_a_byte),
	    CASE(a_window_is_of_whole_frames),
	    CASE(many_bytes_come_in_steps),
	    CASE(windows_that_do_not_come_leave_nothing),
	    CASE(windows_whose_job_never_ran_are_missing),
	    CASE(windows_are_not_asked_of_a_host_that_has_no_memory_left),
	    CASE(stopping_waits_for_them_and_tells_nobody),
	    CASE(what_cannot_be_had_is_told_before),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
