/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ring_kill: a process is killed at every step of the ring protocol; the survivor must find the
 * whole entry or nothing, and a new session on the same memory must work.
 *
 * The child kills itself in the step hook, which is as exact as a kill can be; the shared memory
 * is as any kill at that instruction leaves it.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/ring.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SLOTS    4
#define BYTES    (2 * CONTROL_HEAD_BYTES + CONTROL_TEXTS * CONTROL_TEXT_BYTES)
#define PASSES   3  /* a step is passed this many times, the last one kills */
#define BEFORE   11 /* entries that went through before: some laps, and not a whole number */
#define SURVIVED 3  /* exit status of a child that came to its end */

static struct control *shared;
static struct ring_producer producer;
static struct ring_consumer consumer;
static enum ring_step kill_at;
static unsigned passes_left;

static void killer(enum ring_step step)
{
	if (step == kill_at && --passes_left == 0)
		kill(getpid(), SIGKILL);
}

static struct submission numbered(uint64_t n)
{
	return (struct submission){
	    .opcode = (uint16_t)n,
	    .deadline_us = (uint32_t)(n * 3),
	    .arg0 = n * 5,
	    .in_offset = ~n,
	    .out_bytes = (uint32_t)(n * 7),
	    .reserved = n * 11,
	};
}

static bool is_numbered(const struct submission *s, uint64_t n)
{
	struct submission wanted = numbered(n);

	return memcmp((const char *)s + 8, (const char *)&wanted + 8, sizeof(*s) - 8) == 0;
}

static void exchange(uint64_t from, uint64_t to)
{
	for (uint64_t i = from; i < to; i++) {
		struct submission s = numbered(i);

		assert_int_equal(ring_put(&producer, &s), 0);
		assert_int_equal(ring_get(&consumer, &s), 0);
		assert_true(is_numbered(&s, i));
		ring_publish(&consumer);
	}
}

static void new_session(void)
{
	memset(shared, 0, BYTES);
	ring_submit_side(&producer, shared, SLOTS);
	ring_serve_side(&consumer, shared, SLOTS);
}

/* Run `role` in a child that dies at the given pass of a step. True if it got there. */
static bool run_and_kill(void (*role)(void), enum ring_step step, unsigned pass)
{
	pid_t child;
	int status;

	new_session();
	exchange(0, BEFORE);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		kill_at = step;
		passes_left = pass;
		ring_step_hook = killer;
		role();
		_exit(SURVIVED);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status)) {
		assert_int_equal(WTERMSIG(status), SIGKILL);
		return true;
	}
	assert_int_equal(WEXITSTATUS(status), SURVIVED);
	return false;
}

static void produce(void)
{
	for (uint64_t i = BEFORE; i < BEFORE + PASSES; i++) {
		struct submission s = numbered(i);

		ring_put(&producer, &s);
		ring_must_wake(&producer);
	}
}

/* Entries that a producer has published when it is killed at its n-th pass of a step. */
static uint64_t published_at(enum ring_step step, unsigned pass)
{
	bool before =
	    step == RING_STEP_PUT_BEGIN || step == RING_STEP_PUT_HALF || step == RING_STEP_PUT_FULL;

	return before ? pass - 1 : pass;
}

static void a_killed_producer_leaves_whole_entries_and_nothing_else(void **state)
{
	unsigned kills = 0;

	(void)state;
	for (int step = 0; step < RING_STEP_COUNT; step++) {
		for (unsigned pass = 1; pass <= PASSES; pass++) {
			struct submission s;
			uint64_t n = 0;

			if (!run_and_kill(produce, step, pass))
				continue;
			kills++;
			while (ring_get(&consumer, &s) == 0) {
				assert_true(is_numbered(&s, BEFORE + n));
				n++;
			}
			assert_int_equal(n, published_at(step, pass));
			/* Nothing, not a violation, and a sleep that waits for the hang-up. */
			assert_int_equal(ring_get(&consumer, &s), RING_EMPTY);
			assert_true(ring_prepare_sleep(&consumer));
			ring_publish(&consumer);
			new_session();
			exchange(0, BEFORE);
		}
	}
	assert_int_equal(kills, 6 * PASSES);
}

static void consume(void)
{
	for (int i = 0; i < PASSES; i++) {
		struct submission s;

		if (ring_get(&consumer, &s) == 0)
			ring_publish(&consumer);
	}
}

static void three_entries_then_consume(void)
{
	/* The entries were put by this child's copy of the producer, before its hook matters. */
	void (*hook)(enum ring_step) = ring_step_hook;

	ring_step_hook = NULL;
	produce();
	ring_step_hook = hook;
	consume();
}

static void a_killed_consumer_leaves_a_sane_position_and_a_ring_that_fills(void **state)
{
	unsigned kills = 0;

	(void)state;
	for (int step = 0; step < RING_STEP_COUNT; step++) {
		for (unsigned pass = 1; pass <= PASSES; pass++) {
			uint64_t in_flight = 0, published;
			struct submission s = numbered(0);

			if (!run_and_kill(three_entries_then_consume, step, pass))
				continue;
			kills++;
			producer.produced += PASSES;
			published = step == RING_STEP_PUBLISHED ? pass : pass - 1;
			assert_int_equal(ring_in_flight(&producer, &in_flight), 0);
			assert_int_equal(in_flight, PASSES - published);
			for (uint64_t i = in_flight; i < SLOTS; i++)
				assert_int_equal(ring_put(&producer, &s), 0);
			/* Full, so a session that is dead takes no more of our time. */
			assert_int_equal(ring_put(&producer, &s), RING_FULL);
			assert_false(ring_must_wake(&producer));
			new_session();
			exchange(0, BEFORE);
		}
	}
	assert_int_equal(kills, 4 * PASSES);
}

static void fall_asleep(void)
{
	for (int i = 0; i < PASSES; i++) {
		ring_prepare_sleep(&consumer);
		ring_end_sleep(&consumer);
	}
}

static void a_consumer_killed_while_it_falls_asleep_costs_a_wake_at_most(void **state)
{
	unsigned kills = 0;

	(void)state;
	for (int step = 0; step < RING_STEP_COUNT; step++) {
		for (unsigned pass = 1; pass <= PASSES; pass++) {
			struct submission s = numbered(0);

			if (!run_and_kill(fall_asleep, step, pass))
				continue;
			kills++;
			assert_int_equal(ring_put(&producer, &s), 0);
			assert_int_equal(ring_must_wake(&producer), step != RING_STEP_AWAKE);
			new_session();
			exchange(0, BEFORE);
		}
	}
	assert_int_equal(kills, 4 * PASSES);
}

static int setup(void **state)
{
	(void)state;
	shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared == MAP_FAILED || control_bytes(SLOTS, SLOTS) > BYTES ? -1 : 0;
}

static int teardown(void **state)
{
	(void)state;
	return munmap(shared, BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_killed_producer_leaves_whole_entries_and_nothing_else),
	    cmocka_unit_test(a_killed_consumer_leaves_a_sane_position_and_a_ring_that_fills),
	    cmocka_unit_test(a_consumer_killed_while_it_falls_asleep_costs_a_wake_at_most),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
