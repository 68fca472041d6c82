/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_known_counts: a script whose every number is known, and counters that say exactly those.
 *
 * Shows that nothing is counted twice or not at all: hits have their lookups, failed and aborted
 * things are not counted as done. One thread, one daemon, one client.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define PAGE    16
#define PAGES   3
#define PROMPT  (PAGES * PAGE + 1)
#define LOOKUPS 100
#define HITS    37
#define ABORTS  5
#define FAILED  3
#define POOL    "counted"

static const char config[] = "{\"pools\": [{\"name\": \"" POOL "\", \"pool_pages\": 256,"
			     " \"kv_page_size\": 16, \"max_sequence_length\": 256,"
			     " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null,"
			     " \"retained_order\": \"lru\"}]}\n";

static struct daemon d;
static struct engine e;

static int setup(void **state)
{
	struct engine_model m = ENGINE_SMALL(POOL);

	(void)state;
	daemon_start(&d, config);
	return engine_start(&e, d.socket, &m);
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&e);
	daemon_remove(&d);
	return 0;
}

static void look_up(uint32_t number, uint32_t expected)
{
	struct kvhost_open_result found;
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, PROMPT, 0, number);
	assert_int_equal(
	    kvhost_lookup(e.pool, &(struct kvhost_prompt){.tokens = tokens, .n_tokens = PROMPT},
			  &found),
	    0);
	assert_int_equal(found.cached_tokens, expected);
}

/* A step with a row that cannot be written: its commit is refused, only the abort counts. */
static void fail_a_write(struct kvhost_sequence *seq)
{
	uint16_t rows[PAGE] = {0};
	struct kvhost_step step;

	assert_int_equal(kvhost_step_begin(seq, PROMPT + 1, 0, &step), 0);
	assert_int_equal(
	    kvhost_kv_write(&step, 0, KVHOST_K, 0, 1, KVHOST_FLOAT16, rows, sizeof(rows)),
	    KVHOST_EINVAL); /* position 0 is no part of the step */
	assert_int_equal(kvhost_step_commit(&step, 1, NULL, 0, NULL, 0), KVHOST_ESTEP);
	assert_int_equal(kvhost_step_abort(&step), 0);
}

static void run_script(void)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct kvhost_step step;
	uint32_t tokens[PROMPT], cached;

	for (uint32_t i = 0; i < HITS; i++) {
		engine_tokens(tokens, PROMPT, 0, i);
		assert_int_equal(engine_serve(&e, tokens, PROMPT, &cached), 0);
		assert_int_equal(cached, 0);
	}
	for (uint32_t i = 0; i < LOOKUPS; i++)
		look_up(i, i < HITS ? PAGES * PAGE : 0);
	engine_tokens(tokens, PROMPT, 0, 0);
	assert_int_equal(kvhost_open(e.pool,
				     &(struct kvhost_prompt){.tokens = tokens,
							     .n_tokens = PROMPT,
							     .max_tokens = PROMPT + 1},
				     &seq, &found),
			 0);
	assert_int_equal(found.cached_tokens, PAGES * PAGE);
	assert_int_equal(kvhost_step_begin(seq, PROMPT, 0, &step), 0);
	assert_int_equal(kvhost_step_commit(&step, 1, NULL, 0, NULL, 0), 0);
	for (int i = 0; i < ABORTS; i++) {
		assert_int_equal(kvhost_step_begin(seq, PROMPT + 1, 0, &step), 0);
		assert_int_equal(kvhost_step_abort(&step), 0);
	}
	for (int i = 0; i < FAILED; i++)
		fail_a_write(seq);
	assert_int_equal(kvhost_close(&seq), 0);
}

static void expect(const char *name, uint64_t value)
{
	uint64_t found = daemon_await(&d, POOL, name, value, LONG_MS);

	if (found != value)
		fail_msg("%s is %llu, not %llu", name, (unsigned long long)found,
			 (unsigned long long)value);
}

static void a_script_with_known_counts_is_counted_exactly(void **state)
{
	(void)state;
	run_script();
	expect("pool_sequences", 0);
	expect("pool_lookups", LOOKUPS);
	expect("pool_lookup_hits", HITS);
	expect("pool_opens", HITS + 1);
	expect("pool_open_hits", 1);
	expect("pool_prompt_tokens", (HITS + 1) * PROMPT);
	expect("pool_reused_tokens", PAGES * PAGE);
	expect("prefix_hits", PAGES);
	expect("prefix_misses", HITS * PAGES);
	expect("prefix_evictions", 0);
	expect("pool_misses_no_match", HITS);
	expect("pool_commits", HITS + 1);
	expect("pool_aborts", ABORTS + FAILED);
	expect("pool_receipts_refused", 0);
	expect("pool_rows_written", 0);
	expect("pool_pages_indexed", HITS * PAGES);
	expect("pool_pages_retained", HITS * PAGES);
	expect("pool_pages_live", 0);
	expect("pool_active_transactions", 0);
	assert_true(engine_check(&e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_script_with_known_counts_is_counted_exactly),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
