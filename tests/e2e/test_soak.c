/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_soak: one client after another comes, works a little and goes, for a long time.
 *
 * Shows that nothing grows in the daemon or in a client with the number of sessions: descriptors,
 * maps, memory. 20,000 operations, a million in make check-long. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/footprint.h"

#define PAGE_TOKENS    16
#define PROMPT         (6 * PAGE_TOKENS)
#define OPERATIONS     100 /* of a session */
#define WARM_SESSIONS  60
#define SHORT_SESSIONS 200
#define LONG_SESSIONS  10000

static const char config[] =
    "{\"pools\": [{\"name\": \"mapped\", \"map\": true, \"pool_pages\": 512,"
    " \"kv_page_size\": 16, \"max_sequence_length\": 1024, \"enable_prefix_caching\": true,"
    " \"max_prefix_cache_pages\": null}]}\n";

static struct daemon d;

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_remove(&d);
	return 0;
}

/* Open, begin, write, read, commit, close, six operations each; every third goes without close. */
static void one_session(uint32_t number)
{
	struct engine_model m = ENGINE_SMALL("mapped");
	uint16_t rows[PAGE_TOKENS * 16] = {0};
	uint32_t tokens[PROMPT];
	struct engine e;

	m.map = 1;
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	for (uint32_t i = 0; i < OPERATIONS / 6; i++) {
		struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = PROMPT};
		struct kvhost_open_result found;
		struct kvhost_sequence *seq;
		struct kvhost_step step;

		engine_tokens(tokens, PROMPT, PROMPT / 2, (number * 20 + i) % 5000);
		assert_int_equal(kvhost_open(e.pool, &prompt, &seq, &found), 0);
		assert_int_equal(kvhost_step_begin(seq, PROMPT, 0, &step), 0);
		assert_int_equal(kvhost_kv_write(&step, 0, KVHOST_K, step.start_tokens, PAGE_TOKENS,
						 KVHOST_FLOAT16, rows, sizeof(rows)),
				 0);
		assert_int_equal(kvhost_kv_read(seq, &step, 0, KVHOST_V, step.start_tokens,
						PAGE_TOKENS, KVHOST_FLOAT16, rows, sizeof(rows)),
				 0);
		assert_int_equal(
		    kvhost_step_commit(&step, PROMPT - step.start_tokens, NULL, 0, NULL, 0), 0);
		if (i % 3)
			assert_int_equal(kvhost_close(&seq), 0);
	}
	engine_stop(&e);
}

static void nothing_grows_with_the_number_of_sessions(void **state)
{
	uint32_t sessions = is_long() ? LONG_SESSIONS : SHORT_SESSIONS;
	struct footprint daemon_before = {0}, client_before = {0};

	(void)state;
	for (uint32_t i = 0; i < sessions; i++) {
		one_session(i);
		if (i + 1 != WARM_SESSIONS)
			continue;
		assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
		daemon_before = footprint_of(d.pid);
		client_before = footprint_of(getpid());
	}
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
	assert_int_equal(daemon_await(&d, "mapped", "pool_sequences", 0, WITHIN_MS), 0);
	assert_int_equal(daemon_counter(&d, "sessions_closed_client"), sessions);
	expect_footprint(d.pid, &daemon_before);
	expect_footprint(getpid(), &client_before);
	assert_int_equal(daemon_stop(&d, 5000), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(nothing_grows_with_the_number_of_sessions),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
