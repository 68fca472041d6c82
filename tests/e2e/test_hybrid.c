/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid: states of hybrid pools against a real daemon: what comes back is what was left,
 * whoever left it and whatever ends in between. One thread; clients of their own are processes.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/hybrid.h"

#define STATE 10007
#define LARGE (8u << 20)
#define N     64 /* tokens of a prompt */

#define SLOTS ", \"lanes\": 4, \"retained_slots\": 2"

static struct daemon d;
static struct engine e;

static void start(const char *pool_json)
{
	char json[1024];

	(void)snprintf(json, sizeof(json), "{\"pools\": [%s]}\n", pool_json);
	daemon_start(&d, json);
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&e);
	daemon_remove(&d);
	return 0;
}

static uint64_t pool_counter(const char *name)
{
	return daemon_await(&d, "hybrid", name, UINT64_MAX, 0);
}

/* Everybody has gone: what they used is free, and the daemon finds nothing wrong. */
static void expect_nothing_used(void)
{
	static const char *const zero[] = {"pool_lanes_used", "pool_sequences", "pool_pages_live",
					   "pool_pages_quarantined", "pool_active_transactions"};
	struct engine looker;

	for (size_t i = 0; i < sizeof(zero) / sizeof(*zero); i++)
		assert_int_equal(daemon_await(&d, "hybrid", zero[i], 0, LONG_MS), 0);
	assert_int_equal(engine_connect(&looker, d.socket), 0);
	assert_true(engine_check(&looker));
	engine_stop(&looker);
}

/* ---- a whole engine ---- */

static void a_hybrid_engine_says_the_same_however_it_got_there(void **state)
{
	char *const argv[] = {
	    "examples/toy/hybrid", "--socket", d.socket, "--pool", "hybrid", NULL};
	static char said[16384];

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS ", \"map\": true"));
	if (run_program(argv, said, sizeof(said), LONG_MS) != 0)
		fail_msg("%s", said);
	assert_non_null(strstr(said, "after a checkpoint hit"));
	assert_non_null(strstr(said, "8 conversations"));
	assert_non_null(strstr(said, " 0 outputs differ"));
	/* Eight conversations have two slots between them. */
	assert_int_equal(daemon_await(&d, "hybrid", "retained_slots_used", 2, LONG_MS), 2);
	assert_true(pool_counter("checkpoint_discards") > 8);
	assert_true(pool_counter("checkpoint_claims") > 0);
	expect_nothing_used();
	assert_int_equal(daemon_stop(&d, 5000), 0);
}

/* ---- bytes ---- */

static void an_image_comes_back_after_checkpoint_and_claim(void **state)
{
	uint32_t tokens[N];
	struct kvhost_open_result found;
	struct kvhost_sequence *a, *b;

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	a = hybrid_open(&e, tokens, N, 0, 0, &found);
	assert_int_equal(found.cached_tokens, 0);
	assert_int_equal(found.kind, 0);
	hybrid_step(&e, a, 20, 1);
	hybrid_step(&e, a, 41, 2);
	assert_true(hybrid_is(&e, a, 2));
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_EXISTS);
	hybrid_step(&e, a, 63, 3);
	/* Reuse copies: it may be claimed again and again, also while its maker goes on. */
	for (int i = 0; i < 3; i++) {
		b = hybrid_open(&e, tokens, N, 0, 0, &found);
		assert_int_equal(found.cached_tokens, 41);
		assert_int_equal(found.kind, 1);
		assert_true(hybrid_is(&e, b, 2));
		hybrid_step(&e, b, 50, 10);
		assert_true(hybrid_is(&e, b, 10));
		assert_int_equal(kvhost_close(&b), 0);
	}
	assert_true(hybrid_is(&e, a, 3));
	assert_int_equal(kvhost_close(&a), 0);
	engine_stop(&e);
	expect_nothing_used();
}

static void a_fork_has_the_image_of_its_parent_and_goes_its_own_way(void **state)
{
	struct kvhost_sequence *parent, *fork = NULL;
	struct kvhost_open_result found;
	uint32_t tokens[N];

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	parent = hybrid_open(&e, tokens, N, 0, 0, &found);
	hybrid_step(&e, parent, 20, 1);
	assert_int_equal(kvhost_fork(parent, N + 20, &fork), 0);
	hybrid_step(&e, parent, 30, 2);
	assert_true(hybrid_is(&e, fork, 1));
	hybrid_step(&e, fork, 25, 3);
	assert_true(hybrid_is(&e, parent, 2));
	assert_true(hybrid_is(&e, fork, 3));
	assert_int_equal(kvhost_close(&parent), 0);
	assert_true(hybrid_is(&e, fork, 3));
	assert_int_equal(kvhost_close(&fork), 0);
	engine_stop(&e);
	expect_nothing_used();
}

static void an_aborted_step_leaves_the_replaced_sections_and_has_written_the_ring(void **state)
{
	uint8_t other[STATE], found_bytes[STATE], expected[STATE];
	struct kvhost_open_result found;
	struct kvhost_sequence *a;
	struct kvhost_step step;
	uint32_t tokens[N];

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	a = hybrid_open(&e, tokens, N, 0, 0, &found);
	hybrid_step(&e, a, 20, 1);
	hybrid_fill(other, STATE, 99, 0);
	assert_int_equal(kvhost_step_begin(a, 30, 0, &step), 0);
	assert_int_equal(kvhost_image_write(&step, HYBRID_STATE_SECTION, 0, other, STATE), 0);
	assert_int_equal(kvhost_image_write(&step, HYBRID_RING_SECTION, 0, other, HYBRID_RING), 0);
	/* In the step, the state is still the one before it. */
	hybrid_fill(expected, STATE, 1, 0);
	assert_int_equal(kvhost_image_read(a, &step, HYBRID_STATE_SECTION, 0, found_bytes, STATE),
			 0);
	assert_memory_equal(found_bytes, expected, STATE);
	assert_int_equal(kvhost_step_abort(&step), 0);
	assert_int_equal(kvhost_image_read(a, NULL, HYBRID_STATE_SECTION, 0, found_bytes, STATE),
			 0);
	assert_memory_equal(found_bytes, expected, STATE);
	assert_int_equal(
	    kvhost_image_read(a, NULL, HYBRID_RING_SECTION, 0, found_bytes, HYBRID_RING), 0);
	assert_memory_equal(found_bytes, other, HYBRID_RING);
	/* A step of which nothing is kept is like an aborted one. */
	assert_int_equal(kvhost_step_begin(a, 30, 0, &step), 0);
	assert_int_equal(kvhost_image_write(&step, HYBRID_STATE_SECTION, 0, other, STATE), 0);
	assert_int_equal(kvhost_step_commit(&step, 0, NULL, 0, NULL, 0), 0);
	assert_int_equal(kvhost_image_read(a, NULL, HYBRID_STATE_SECTION, 0, found_bytes, STATE),
			 0);
	assert_memory_equal(found_bytes, expected, STATE);
	assert_int_equal(kvhost_close(&a), 0);
}

static void parts_at_any_offset_make_the_whole(void **state)
{
	static const size_t parts[] = {1, 7, 64, 4095, 333};
	uint8_t whole[STATE], found_bytes[STATE];
	struct kvhost_open_result found;
	struct kvhost_sequence *a;
	struct kvhost_step step;
	uint32_t tokens[N];

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	a = hybrid_open(&e, tokens, N, 0, 0, &found);
	hybrid_fill(whole, STATE, 5, 0);
	assert_int_equal(kvhost_step_begin(a, 30, 0, &step), 0);
	for (size_t at = 0, i = 0, n; at < STATE; at += n, i++) {
		n = parts[i % 5] < STATE - at ? parts[i % 5] : STATE - at;
		assert_int_equal(kvhost_image_write(&step, HYBRID_STATE_SECTION, at, whole + at, n),
				 0);
	}
	assert_int_equal(kvhost_step_commit(&step, 30, NULL, 0, NULL, 0), 0);
	for (size_t at = 0, i = 3, n; at < STATE; at += n, i++) {
		n = parts[i % 5] < STATE - at ? parts[i % 5] : STATE - at;
		assert_int_equal(
		    kvhost_image_read(a, NULL, HYBRID_STATE_SECTION, at, found_bytes + at, n), 0);
	}
	assert_memory_equal(found_bytes, whole, STATE);
	/* A fresh one is zeros, all of it. */
	memset(whole, 0, STATE);
	assert_int_equal(kvhost_close(&a), 0);
	a = hybrid_open(&e, tokens, N, 0, 0, &found);
	assert_int_equal(kvhost_image_read(a, NULL, HYBRID_STATE_SECTION, 0, found_bytes, STATE),
			 0);
	assert_memory_equal(found_bytes, whole, STATE);
	assert_int_equal(kvhost_close(&a), 0);
}

/* ---- where captures are worth while ---- */

static void points_and_kinds_are_told_at_open(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *a;
	uint32_t tokens[N], other[N];

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 37, 1);
	engine_tokens(other, N, 37, 2);
	a = hybrid_open(&e, tokens, N, 37, 60, &found);
	assert_int_equal(found.n_points, 3);
	assert_int_equal(found.points[0], 32);
	assert_int_equal(found.points[1], 48);
	assert_int_equal(found.points[2], 60);
	for (uint32_t i = 0; i < 3; i++) {
		hybrid_step(&e, a, found.points[i], i);
		if (i != 1)
			assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
	}
	assert_int_equal(kvhost_close(&a), 0);
	/* A sibling has the system block, the next turn all of it. */
	a = hybrid_open(&e, other, N, 37, 60, &found);
	assert_int_equal(found.cached_tokens, 32);
	assert_int_equal(found.kind, 2);
	assert_int_equal(found.n_points, 2);
	assert_true(hybrid_is(&e, a, 0));
	assert_int_equal(kvhost_close(&a), 0);
	a = hybrid_open(&e, tokens, N, 37, 60, &found);
	assert_int_equal(found.cached_tokens, 60);
	assert_int_equal(found.kind, 1);
	assert_int_equal(found.n_points, 0);
	assert_true(hybrid_is(&e, a, 2));
	assert_int_equal(kvhost_close(&a), 0);
	assert_int_equal(daemon_await(&d, "hybrid", "prefix_claims", 1, LONG_MS), 1);
	assert_int_equal(daemon_await(&d, "hybrid", "checkpoint_claims", 1, LONG_MS), 1);
}

static void nothing_is_captured_before_the_least_position(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *a;
	uint32_t tokens[N];

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS ", \"min_capture_tokens\": 40"));
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	a = hybrid_open(&e, tokens, N, 37, 60, &found);
	assert_int_equal(found.n_points, 2);
	assert_int_equal(found.points[0], 48);
	hybrid_step(&e, a, 39, 1);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_SHORT);
	hybrid_step(&e, a, 40, 2);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
	assert_int_equal(kvhost_close(&a), 0);
	assert_int_equal(daemon_await(&d, "hybrid", "capture_skips_short", 1, LONG_MS), 1);
}

static void a_state_given_up_before_the_open_leaves_the_one_before_it(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *a, *b;
	uint32_t tokens[N], other[N];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = N};

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	engine_tokens(other, N, 0, 2);
	a = hybrid_open(&e, tokens, N, 37, 60, &found);
	hybrid_step(&e, a, 32, 1);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
	hybrid_step(&e, a, 60, 2);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
	/* It stays open: the pages of both positions stay. */
	assert_int_equal(kvhost_lookup(e.pool, &p, &found), 0);
	assert_int_equal(found.cached_tokens, 60);
	b = hybrid_open(&e, other, N, 0, 60, &found);
	hybrid_step(&e, b, 60, 3);
	assert_int_equal(hybrid_checkpoint(b), KVHOST_CAPTURE_MADE);
	assert_int_equal(kvhost_close(&b), 0);
	b = hybrid_open(&e, tokens, N, 37, 60, &found);
	assert_int_equal(found.cached_tokens, 32);
	assert_int_equal(found.kind, 2);
	assert_int_equal(found.miss, KVHOST_MISS_GONE);
	assert_true(hybrid_is(&e, b, 1));
	assert_int_equal(kvhost_close(&b), 0);
	assert_int_equal(kvhost_close(&a), 0);
	engine_stop(&e);
	expect_nothing_used();
}

/* ---- several clients ---- */

static void a_client_claims_what_another_one_captured(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *a;
	uint32_t tokens[N];
	pid_t child;

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	engine_tokens(tokens, N, 0, 1);
	child = fork_client();
	if (child == 0) {
		hybrid_start(&e, d.socket, "hybrid", STATE, 0);
		a = hybrid_open(&e, tokens, N, 0, 60, &found);
		hybrid_step(&e, a, 60, 7);
		_exit(hybrid_checkpoint(a) == KVHOST_CAPTURE_MADE ? 0 : 1);
	}
	assert_int_equal(await_child(child, LONG_MS), 0);
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	a = hybrid_open(&e, tokens, N, 0, 60, &found);
	assert_int_equal(found.cached_tokens, 60);
	assert_true(hybrid_is(&e, a, 7));
	assert_int_equal(kvhost_close(&a), 0);
	engine_stop(&e);
	expect_nothing_used();
}

/* Conversations of `who` until it is killed, or `rounds` of them. What is found must be right. */
static void converse(uint32_t who, unsigned rounds)
{
	struct kvhost_open_result found;

	hybrid_start(&e, d.socket, "hybrid", LARGE, 0);
	for (unsigned i = 0; i < rounds; i++) {
		uint32_t tokens[N], number = who * 16 + i % 3;
		struct kvhost_sequence *a;

		engine_tokens(tokens, N, 0, number);
		a = hybrid_open(&e, tokens, N, 0, 60, &found);
		if (found.cached_tokens) {
			assert_int_equal(found.cached_tokens, 60);
			assert_true(hybrid_is(&e, a, number));
		} else {
			hybrid_step(&e, a, 60, number);
			(void)hybrid_checkpoint(a);
		}
		assert_int_equal(kvhost_close(&a), 0);
	}
	engine_stop(&e);
}

static void a_client_that_is_killed_in_a_copy_takes_nothing_with_it(void **state)
{
	unsigned tries = is_long() ? 300 : 12;

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS));
	for (unsigned i = 0; i < tries; i++) {
		pid_t child = fork_client();

		if (child == 0) {
			converse(1, UINT32_MAX);
			_exit(0);
		}
		pause_ms(20 + 7 * (i % 11));
		(void)kill(child, SIGKILL);
		assert_true(WIFSIGNALED(await_child(child, LONG_MS)));
		expect_nothing_used();
		converse(1, 3);
		assert_true(pool_counter("retained_slots_used") <= 2);
	}
	expect_nothing_used();
	assert_int_equal(daemon_stop(&d, 5000), 0);
}

static void without_a_free_slot_a_capture_is_counted_and_nothing_else_changes(void **state)
{
	unsigned rounds = is_long() ? 500 : 20, tries = 0;
	pid_t child[4];

	(void)state;
	start(HYBRID_POOL("hybrid", ", \"lanes\": 4, \"retained_slots\": 1"));
	do {
		for (uint32_t i = 0; i < 4; i++) {
			child[i] = fork_client();
			if (child[i] == 0) {
				converse(i, rounds);
				_exit(0);
			}
		}
		for (uint32_t i = 0; i < 4; i++)
			assert_int_equal(await_child(child[i], 3 * LONG_MS), 0);
		expect_nothing_used();
	} while (pool_counter("capture_skips_no_slot") == 0 && ++tries < 10);
	assert_true(pool_counter("capture_skips_no_slot") > 0);
	assert_true(pool_counter("checkpoint_captures") > 0);
}

static void a_step_waits_for_the_copy_of_a_checkpoint_that_was_given_up(void **state)
{
	static uint8_t ring[HYBRID_RING], *mapped;
	struct kvhost_open_result found;
	struct kvhost_sequence *a, *b;
	struct kvhost_step step;
	uint32_t tokens[N], outcome;
	int result;

	(void)state;
	start(HYBRID_POOL("hybrid", ", \"lanes\": 2, \"retained_slots\": 1, \"map\": true,"
				    " \"default_deadline_us\": 1000"));
	hybrid_start(&e, d.socket, "hybrid", 4 * LARGE, 1);
	assert_non_null(e.info->memory);
	engine_tokens(tokens, N, 0, 1);
	a = hybrid_open(&e, tokens, N, 0, 60, &found);
	/* At the end of a page: no page must be copied first. Deadlines are short: a step is
	 * prepared by hand, in memory. */
	while ((result = kvhost_step_begin(a, 48, 0, &step)) == KVHOST_ETIMEDOUT)
		;
	assert_int_equal(result, 0);
	mapped = (uint8_t *)e.info->memory + e.info->ring_offset +
		 step.ring_slot * e.info->ring_stride + e.info->sections[2].offset;
	hybrid_fill(mapped, HYBRID_RING, 1, HYBRID_RING_SECTION);
	assert_int_equal(kvhost_step_commit(&step, 48, NULL, 0, NULL, 0), 0);
	result = kvhost_checkpoint(a, 48, &outcome);
	assert_true(result == KVHOST_ETIMEDOUT || result == 0);
	while ((result = kvhost_step_begin(a, 62, 0, &step)) == KVHOST_ETIMEDOUT)
		;
	assert_int_equal(result, 0);
	hybrid_fill(mapped, HYBRID_RING, 2, HYBRID_RING_SECTION);
	b = hybrid_open(&e, tokens, N, 0, 60, &found);
	assert_int_equal(found.cached_tokens, 48);
	hybrid_fill(ring, HYBRID_RING, 1, HYBRID_RING_SECTION);
	assert_int_equal(kvhost_step_abort(&step), 0);
	while ((result = kvhost_step_begin(b, 62, 0, &step)) == KVHOST_ETIMEDOUT)
		;
	assert_int_equal(result, 0);
	mapped = (uint8_t *)e.info->memory + e.info->ring_offset +
		 step.ring_slot * e.info->ring_stride + e.info->sections[2].offset;
	assert_memory_equal(mapped, ring, HYBRID_RING);
	assert_int_equal(kvhost_step_abort(&step), 0);
	assert_int_equal(kvhost_close(&a), 0);
	assert_int_equal(kvhost_close(&b), 0);
	engine_stop(&e);
	expect_nothing_used();
}

static void a_lane_stays_with_a_process_that_may_still_write_to_it(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *a;
	struct kvhost_step step;
	uint32_t tokens[N];
	pid_t child;

	(void)state;
	start(HYBRID_POOL("hybrid", SLOTS ", \"map\": true"));
	engine_tokens(tokens, N, 0, 1);
	child = fork_client();
	if (child == 0) {
		hybrid_start(&e, d.socket, "hybrid", STATE, 1);
		a = hybrid_open(&e, tokens, N, 0, 60, &found);
		if (kvhost_step_begin(a, 40, 0, &step))
			_exit(1);
		engine_stop(&e);
		for (;;)
			pause_ms(1000);
	}
	assert_int_equal(daemon_await(&d, "hybrid", "pool_pages_quarantined", 3, LONG_MS), 3);
	assert_int_equal(daemon_await(&d, "hybrid", "pool_sequences", 0, LONG_MS), 0);
	assert_int_equal(pool_counter("pool_lanes_used"), 1);
	/* Three are left, for others. */
	hybrid_start(&e, d.socket, "hybrid", STATE, 1);
	for (uint32_t i = 0; i < 3; i++)
		(void)hybrid_open(&e, tokens, N, 0, 60, &found);
	assert_int_equal(daemon_await(&d, "hybrid", "pool_lanes_used", 4, LONG_MS), 4);
	engine_stop(&e);
	assert_int_equal(daemon_await(&d, "hybrid", "pool_lanes_used", 1, LONG_MS), 1);
	(void)kill(child, SIGKILL);
	assert_true(WIFSIGNALED(await_child(child, LONG_MS)));
	expect_nothing_used();
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_hybrid_engine_says_the_same_however_it_got_there),
	    TEST(an_image_comes_back_after_checkpoint_and_claim),
	    TEST(a_fork_has_the_image_of_its_parent_and_goes_its_own_way),
	    TEST(an_aborted_step_leaves_the_replaced_sections_and_has_written_the_ring),
	    TEST(parts_at_any_offset_make_the_whole),
	    TEST(points_and_kinds_are_told_at_open),
	    TEST(nothing_is_captured_before_the_least_position),
	    TEST(a_state_given_up_before_the_open_leaves_the_one_before_it),
	    TEST(a_client_claims_what_another_one_captured),
	    TEST(a_client_that_is_killed_in_a_copy_takes_nothing_with_it),
	    TEST(without_a_free_slot_a_capture_is_counted_and_nothing_else_changes),
	    TEST(a_lane_stays_with_a_process_that_may_still_write_to_it),
	    TEST(a_step_waits_for_the_copy_of_a_checkpoint_that_was_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
