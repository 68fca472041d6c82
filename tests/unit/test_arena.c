/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/arena.h: an arena whose chunks come when the test lets them, and one on a
 * real worker. They use huge pages where the host has some free, and say which they had.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/arena.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/tier/record.h"
#include "tests/unit/arena_world.h"

#define DEADLINE_MS 20000

/* ---- arriving ---- */

static void other_run(struct job *job)
{
	job->result = 0;
}

static void other_done(struct job *job)
{
	struct world *w = (struct world *)(void *)((char *)job - offsetof(struct world, other));

	w->n_other++;
}

static void what_has_arrived_serves_while_the_rest_is_on_its_way(void **state)
{
	struct world *w = *state;
	const struct arena_wish wish = wish_of(4 * CHUNK);
	struct arena *a = make(w, &wish);
	int size = frames_size(a->frames, FRAME_BYTES + 1);
	uint32_t object;

	assert_int_equal(frames_take(a->frames, size, &object), FRAMES_FULL);
	assert_int_equal(a->state, ARENA_ARRIVING);
	assert_int_equal(a->arrived_bytes, 0);
	assert_string_equal(a->note, "");
	check_consistent(a);
	w->other = (struct job){.run = other_run, .done = other_done};
	w->executor.executor.submit(&w->executor.executor, &w->other);

	step(w, 0); /* headers */
	assert_int_equal(w->n_changed, 0);
	step(w, 0);
	assert_int_equal(w->n_changed, 1);
	assert_int_equal(w->seen_bytes, CHUNK);
	assert_int_equal(a->state, ARENA_ARRIVING);
	check_consistent(a);
	assert_int_equal(frames_take(a->frames, size, &object), 0);
	record_set_state(arena_header(a, object), RECORD_FILLING);
	for (uint32_t i = 0; i < frames_pieces(a->frames, object); i++) {
		struct frames_piece piece = frames_piece(a->frames, object, i);

		assert_true(piece.offset + piece.bytes <= CHUNK);
		memset(a->memory + piece.offset, 1, piece.bytes);
	}
	assert_int_equal(frames_take(a->frames, size, &object), FRAMES_FULL);

	/* Others wait for one chunk, not for all. */
	assert_int_equal(w->n_other, 0);
	step(w, 0);
	assert_int_equal(w->n_other, 1);
	for (unsigned i = 2; i <= 4; i++) {
		step(w, 0);
		assert_int_equal(w->n_changed, i);
		assert_int_equal(w->seen_bytes, i * CHUNK);
		check_consistent(a);
	}
	assert_int_equal(frames_take(a->frames, size, &object), 0);
	assert_int_equal(a->state, ARENA_WHOLE);
	assert_true(sim_executor_is_idle(&w->executor));
	print_message("arena: %s\n", a->note);
	assert_non_null(strstr(a->note, "not locked, "));
	assert_non_null(strstr(a->note, " pages"));
}

static void an_arena_is_whole_frames_and_its_last_chunk_may_be_short(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(CHUNK + FRAME_BYTES + FRAME_BYTES - 1);
	struct arena *none = NULL, *a = make(w, &wish);

	assert_int_equal(a->bytes, CHUNK + FRAME_BYTES);
	for (int i = 0; i < 3; i++)
		step(w, 0);
	assert_int_equal(a->state, ARENA_WHOLE);
	check_consistent(a);

	wish.bytes = FRAME_BYTES - 1;
	assert_int_equal(arena_new(&wish, &w->executor.executor, count_changed, w, &none), -EINVAL);
	wish.bytes = (FRAMES_MAX + 1ull) * FRAME_BYTES;
	assert_int_equal(arena_new(&wish, &w->executor.executor, count_changed, w, &none), -EINVAL);
	wish.bytes -= FRAME_BYTES;
	wish.require_huge = true;
	assert_int_equal(arena_new(&wish, &w->executor.executor, count_changed, w, &none), -ENOMEM);
	assert_null(none);
	assert_true(sim_executor_is_idle(&w->executor));
}

/* ---- what goes wrong ---- */

/* Memory ends at the nth call for it, for every n: others have taken it, say. */
static void end_memory_everywhere(struct world *w, bool pool)
{
	const struct arena_wish wish = wish_of(3 * CHUNK);
	unsigned n_partial = 0;
	bool hit = true;

	for (unsigned n = 0; hit; n++) {
		struct arena *a;

		failpoint_clear();
		failpoint_arm(FAILPOINT_arena_chunk, n, 1);
		failpoint_arm(FAILPOINT_arena_pool, 0, pool ? 0 : 1);
		a = make(w, &wish);
		while (!sim_executor_is_idle(&w->executor))
			step(w, 0);
		check_consistent(a);
		assert_int_equal(w->n_changed,
				 a->arrived_bytes / CHUNK + (a->state == ARENA_PARTIAL));
		if (a->state == ARENA_PARTIAL) {
			char start[64];

			n_partial++;
			assert_int_equal(a->result, -ENOMEM);
			snprintf(start, sizeof(start), "%llu of 12582912 bytes are there: ",
				 (unsigned long long)a->arrived_bytes);
			assert_memory_equal(a->note, start, strlen(start));
			assert_non_null(strstr(a->note, "kv_ram_bytes"));
			if (n_partial == 1)
				print_message("arena: %s\n", a->note);
		} else {
			assert_int_equal(a->state, ARENA_WHOLE);
		}
		record_set_state(arena_header(a, 0), RECORD_FILLING);
		while (!arena_stop(a))
			step(w, 0);
		hit = failpoint_passes(FAILPOINT_arena_chunk) > n;
		arena_free(&w->arena);
	}
	/* Two calls a chunk at least; those for headers are missed by nobody. */
	assert_true(n_partial >= 6);
}

static void an_arena_stays_as_large_as_it_is_when_memory_ends(void **state)
{
	end_memory_everywhere(*state, true);
	end_memory_everywhere(*state, false);
}

/* Base pages would be given, and somebody killed for them. */
static void no_chunk_is_asked_of_a_host_that_has_no_memory_left(void **state)
{
	struct world *w = *state;
	const struct arena_wish wish = wish_of(3 * CHUNK);
	struct arena *a;

	failpoint_arm(FAILPOINT_arena_pool, 0, 1);
	a = make(w, &wish);
	step(w, 0);
	step(w, 0);
	failpoint_arm(FAILPOINT_arena_starved, 0, 1);
	step(w, 0);
	assert_int_equal(a->state, ARENA_PARTIAL);
	assert_int_equal(a->result, -ENOMEM);
	assert_string_equal(a->note,
			    "4194304 of 12582912 bytes are there: KV-RAM wants 4194304 bytes, "
			    "MemAvailable of this host is 0: lower kv_ram_bytes, "
			    "or end what uses the memory");
	check_consistent(a);
}

static void a_job_that_never_ran_is_a_chunk_that_did_not_come(void **state)
{
	struct world *w = *state;
	const struct arena_wish wish = wish_of(2 * CHUNK);
	struct arena *a = make(w, &wish);

	step(w, -EIO);
	step(w, 0);
	step(w, -EIO);
	assert_int_equal(a->state, ARENA_PARTIAL);
	assert_int_equal(a->result, -EIO);
	assert_int_equal(a->arrived_bytes, CHUNK);
	assert_int_equal(w->n_changed, 2);
	check_consistent(a);
	assert_non_null(strstr(a->note, strerror(EIO)));
	assert_true(sim_executor_is_idle(&w->executor));
}

static void stopping_waits_for_what_is_on_its_way_and_asks_for_no_more(void **state)
{
	struct world *w = *state;
	const struct arena_wish wish = wish_of(2 * CHUNK);

	for (int n_before = 0; n_before <= 3; n_before++) {
		struct arena *a = make(w, &wish);

		for (int i = 0; i < n_before; i++)
			step(w, 0);
		w->n_changed = 0;
		if (n_before < 3) {
			assert_false(arena_stop(a));
			while (!arena_stop(a))
				step(w, 0);
			assert_int_equal(a->state, ARENA_PARTIAL);
			assert_int_equal(a->result, -ECANCELED);
			assert_int_equal(a->arrived_bytes, n_before < 2 ? 0 : CHUNK);
		} else {
			assert_true(arena_stop(a));
			assert_int_equal(a->state, ARENA_WHOLE);
		}
		check_consistent(a);
		assert_int_equal(w->n_changed, 0);
		assert_true(sim_executor_is_idle(&w->executor));
		arena_free(&w->arena);
	}
}

static void a_chunk_that_came_after_the_stop_still_serves(void **state)
{
	struct world *w = *state;
	const struct arena_wish wish = wish_of(2 * CHUNK);
	struct arena *a = make(w, &wish);

	step(w, 0);
	assert_true(sim_executor_step(&w->executor, 0));
	assert_false(arena_stop(a));
	assert_int_equal(w->executor.executor.reap(&w->executor.executor, 9), 1);
	assert_true(arena_stop(a));
	assert_int_equal(a->arrived_bytes, CHUNK);
	assert_int_equal(a->state, ARENA_PARTIAL);
	assert_int_equal(w->n_changed, 0);
	check_consistent(a);
}

/* ---- headers ---- */

/* How many headers have memory, if they are the first ones. */
static uint32_t headers_there(const struct arena *a)
{
	static unsigned char there[8192];
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t n = 0;

	assert_true(a->most_objects <= 8192);
	assert_int_equal(mincore(a->headers, (size_t)a->most_objects * RECORD_BYTES, there), 0);
	while (n * page < (size_t)a->most_objects * RECORD_BYTES && (there[n] & 1))
		n++;
	return (uint32_t)(n * page / RECORD_BYTES);
}

static void headers_have_their_memory_before_their_numbers_come(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(CHUNK);
	struct arena *a;

	wish.most_objects = 2 * ARENA_HEADERS_AHEAD + 100;
	a = make(w, &wish);
	assert_int_equal(a->most_objects, wish.most_objects);
	while (!sim_executor_is_idle(&w->executor))
		step(w, 0);
	assert_int_equal(a->headers_ready, ARENA_HEADERS_AHEAD);
	assert_int_equal(headers_there(a), ARENA_HEADERS_AHEAD);

	/* The first half asks for nothing, the second for more, once. */
	assert_ptr_equal(arena_header(a, 3), a->headers + 3 * RECORD_BYTES);
	arena_header(a, ARENA_HEADERS_AHEAD / 2 - 1);
	assert_true(sim_executor_is_idle(&w->executor));
	arena_header(a, ARENA_HEADERS_AHEAD / 2);
	arena_header(a, ARENA_HEADERS_AHEAD / 2 + 1);
	assert_int_equal(headers_there(a), ARENA_HEADERS_AHEAD);
	step(w, 0);
	assert_true(sim_executor_is_idle(&w->executor));
	assert_int_equal(a->headers_ready, 2 * ARENA_HEADERS_AHEAD);
	assert_int_equal(headers_there(a), 2 * ARENA_HEADERS_AHEAD);

	/* The last ones are fewer, and then there are no more. */
	arena_header(a, 2 * ARENA_HEADERS_AHEAD - 1);
	step(w, 0);
	assert_int_equal(a->headers_ready, a->most_objects);
	assert_int_equal(headers_there(a), a->most_objects);
	memset(arena_header(a, a->most_objects - 1), 1, RECORD_BYTES);
	assert_true(sim_executor_is_idle(&w->executor));
}

static void stopping_waits_for_headers_too(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(CHUNK);
	struct arena *a;

	wish.most_objects = 2 * ARENA_HEADERS_AHEAD;
	a = make(w, &wish);
	while (!sim_executor_is_idle(&w->executor))
		step(w, 0);
	arena_header(a, ARENA_HEADERS_AHEAD);
	assert_false(arena_stop(a));
	step(w, 0);
	assert_true(arena_stop(a));
	assert_int_equal(headers_there(a), ARENA_HEADERS_AHEAD);
	assert_int_equal(a->state, ARENA_WHOLE);
	arena_free(&w->arena);

	a = make(w, &wish);
	while (!sim_executor_is_idle(&w->executor))
		step(w, 0);
	assert_true(arena_stop(a));
	arena_header(a, ARENA_HEADERS_AHEAD);
	assert_true(sim_executor_is_idle(&w->executor));
}

static void headers_whose_memory_is_refused_are_there_all_the_same(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(CHUNK);
	struct arena *a = make(w, &wish);

	assert_int_equal(a->most_objects, 1024);
	step(w, -ENOMEM);
	step(w, 0);
	assert_int_equal(a->state, ARENA_WHOLE);
	assert_int_equal(a->headers_ready, 0);
	memset(arena_header(a, 700), 1, RECORD_BYTES);
	assert_true(sim_executor_is_idle(&w->executor));
}

static void there_is_a_header_for_each_64_kib_unless_the_wish_says_another_number(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(128 * MIB);
	struct arena *a = make(w, &wish);
	struct stat status;

	assert_int_equal(a->most_objects, 2048);
	assert_int_equal(fstat(a->headers_fd, &status), 0);
	assert_int_equal(status.st_size, 2048 * RECORD_BYTES);
	assert_int_equal(status.st_mode & 07777, 0600);
}

/* ---- on a real worker ---- */

static void a_worker_brings_an_arena_chunk_by_chunk(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(192 * MIB);
	char why[ARENA_NOTE_BYTES];
	struct executor *worker;
	struct pollfd p = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN};
	uint64_t count;

	wish.chunk_bytes = 64 * MIB;
	wish.lock = true;
	wish.lock = arena_check(&wish, why) == 0;
	assert_int_equal(worker_new("kvhost-test", p.fd, &worker), 0);
	assert_int_equal(arena_new(&wish, worker, count_changed, w, &w->arena), 0);
	while (w->arena->state == ARENA_ARRIVING) {
		if (worker->reap(worker, 9) || !worker->prepare_sleep(worker))
			continue;
		assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
		assert_int_equal(read(p.fd, &count, sizeof(count)), sizeof(count));
	}
	print_message("arena: %s\n", w->arena->note);
	assert_int_equal(w->arena->state, ARENA_WHOLE);
	assert_int_equal(w->n_changed, 3);
	assert_int_equal(w->arena->headers_ready, ARENA_HEADERS_AHEAD);
	check_consistent(w->arena);
	assert_true(arena_stop(w->arena));
	arena_free(&w->arena);
	worker_free(&worker);
	close(p.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_has_arrived_serves_while_the_rest_is_on_its_way),
	    TEST(an_arena_is_whole_frames_and_its_last_chunk_may_be_short),
	    TEST(an_arena_stays_as_large_as_it_is_when_memory_ends),
	    TEST(no_chunk_is_asked_of_a_host_that_has_no_memory_left),
	    TEST(a_job_that_never_ran_is_a_chunk_that_did_not_come),
	    TEST(stopping_waits_for_what_is_on_its_way_and_asks_for_no_more),
	    TEST(a_chunk_that_came_after_the_stop_still_serves),
	    TEST(headers_have_their_memory_before_their_numbers_come),
	    TEST(stopping_waits_for_headers_too),
	    TEST(headers_whose_memory_is_refused_are_there_all_the_same),
	    TEST(there_is_a_header_for_each_64_kib_unless_the_wish_says_another_number),
	    TEST(a_worker_brings_an_arena_chunk_by_chunk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
