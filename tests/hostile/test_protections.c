/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each protection of kind hostile, once on and once off, against the same attack: with it the
 * attack fails, without it the harm is there. A protection whose absence nobody notices is none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <poll.h>

#include <cmocka.h>

#include "tests/hostile/ops.h"

#define TOKENS  40u
#define CREDITS 12u
#define KEPT    1000000u /* first token of what the good session keeps */
#define SEED    7

static struct world w;

static void start(const char *environment)
{
	memset(&w, 0, sizeof(w));
	w.d.program = "tests/hostile/kvhostd_test";
	w.d.environment = environment;
	world_start(&w);
}

/* Without looking whether it goes on: it need not. */
static void end_harmed(void)
{
	raw_free(&w.good);
	daemon_kill(&w.d);
	daemon_remove(&w.d);
}

static int clean_up(void **state)
{
	(void)state;
	daemon_remove(&w.d);
	return 0;
}

static bool daemon_died(void)
{
	struct pollfd p = {.fd = w.d.pidfd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

/* ---- the attacks: true if they did what they were for ---- */

static bool take_more_than_credits(void)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});
	uint64_t last = 0;
	bool taken;
	struct raw r;

	do_attach(&r, w.d.socket, false);
	assert_int_equal(raw_ask(&r, &null, NULL), 0);
	r.lazy = true;
	for (uint32_t i = 0; i < CREDITS + 2; i++)
		last = raw_put(&r, &null);
	taken = raw_wait(&r, last, NULL);
	raw_free(&r);
	return taken;
}

static bool read_of_another_session(void)
{
	struct submission s;
	struct raw r;
	bool seen = false;

	do_attach(&r, w.d.socket, false);
	s = op_read(&r, w.kept, 0, 0, 0, TOKENS);
	if (raw_ask(&r, &s, NULL) == 0)
		seen = bytes_are(&r, w.kept, TOKENS, SEED);
	raw_free(&r);
	return seen;
}

static bool write_outside_the_window(void)
{
	struct submission s = op(WIRE_OP_COUNTERS, (struct payload_handle){0});
	bool harmed;
	struct raw r;

	do_attach(&r, w.d.socket, false);
	s.out_offset = 1ull << 46;
	s.out_bytes = sizeof(struct payload_counters);
	(void)raw_ask(&r, &s, NULL);
	raw_await_end(&r);
	/* A violation was told before anything was touched. */
	harmed = r.reason != WIRE_BYE_VIOLATION;
	if (harmed && r.reason == 0) {
		struct pollfd p = {.fd = w.d.pidfd, .events = POLLIN};

		harmed = poll(&p, 1, LONG_MS * PATIENCE) == 1;
	}
	raw_free(&r);
	return harmed;
}

static bool write_into_a_shared_page(void)
{
	struct payload_handle seq, step;
	struct submission s;
	struct raw r;

	do_attach(&r, w.d.socket, false);
	assert_int_equal(cached_tokens(&r, KEPT, TOKENS), 32);
	seq = do_open(&r, KEPT, TOKENS, 64);
	step = do_begin(&r, seq, TOKENS);
	s = op_write(&r, step, 0, 0, 0, 8, 99);
	(void)raw_ask(&r, &s, NULL);
	raw_free(&r);
	return !bytes_are(&w.good, w.kept, TOKENS, SEED);
}

static void matters(const char *off, bool (*attack)(void))
{
	start(NULL);
	assert_false(attack());
	world_stop(&w);

	start(off);
	assert_true(attack());
	end_harmed();
}

static void credits_are_kept_or_a_session_has_more_in_flight(void **state)
{
	(void)state;
	matters("KVHOST_TEST_PROTECTION_OFF=credits_are_kept", take_more_than_credits);
}

static void handles_are_owned_or_others_read_what_they_guess(void **state)
{
	(void)state;
	matters("KVHOST_TEST_PROTECTION_OFF=handles_are_owned", read_of_another_session);
}

static void ranges_are_checked_or_the_daemon_dies(void **state)
{
	(void)state;
	matters("KVHOST_TEST_PROTECTION_OFF=ranges_are_checked", write_outside_the_window);
}

static void writes_stay_in_their_step_or_shared_pages_change(void **state)
{
	(void)state;
	matters("KVHOST_TEST_PROTECTION_OFF=writes_stay_in_their_step", write_into_a_shared_page);
}

/* ---- and a failure that no honest client can bring about ---- */

static void a_write_that_finds_no_memory_takes_its_commit_with_it(void **state)
{
	struct payload_handle seq, step;
	struct submission s, commit;
	struct raw r;

	(void)state;
	/* The good session has written its own: 4 rows each for what it keeps and for a round,
	 * and read 8. The next one fails. */
	start("KVHOST_TEST_FAILPOINT=rows_memory:16:1");
	do_attach(&r, w.d.socket, false);
	seq = do_open(&r, 100, TOKENS, 64);
	step = do_begin(&r, seq, TOKENS);
	commit = op_commit(&r, step, TOKENS);
	memcpy(raw_window(&r, 16u << 10), raw_window(&r, IN), commit.in_bytes);
	commit.in_offset = 16u << 10;
	s = op_write(&r, step, 0, 0, 0, TOKENS, 1);
	assert_int_equal(raw_ask(&r, &s, NULL), WIRE_ENOMEM);
	assert_int_equal(raw_ask(&r, &commit, NULL), WIRE_ESTEP);
	assert_int_equal(cached_tokens(&w.good, 100, TOKENS), 0);
	s = op(WIRE_OP_STEP_ABORT, step);
	assert_int_equal(raw_ask(&r, &s, NULL), 0);
	raw_free(&r);
	assert_false(daemon_died());
	world_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(credits_are_kept_or_a_session_has_more_in_flight, clean_up),
	    cmocka_unit_test_teardown(handles_are_owned_or_others_read_what_they_guess, clean_up),
	    cmocka_unit_test_teardown(ranges_are_checked_or_the_daemon_dies, clean_up),
	    cmocka_unit_test_teardown(writes_stay_in_their_step_or_shared_pages_change, clean_up),
	    cmocka_unit_test_teardown(a_write_that_finds_no_memory_takes_its_commit_with_it,
				      clean_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
