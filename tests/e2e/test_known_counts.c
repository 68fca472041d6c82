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
#include "tests/e2e/operator.h"
#include "tests/e2e/stamped.h"

#define PAGE    16
#define PAGES   3
#define PROMPT  (PAGES * PAGE + 1)
#define LOOKUPS 100
#define HITS    37
#define ABORTS  5
#define FAILED  3
#define POOL    "counted"

/* Of the script with KV-RAM: so many pages fit the device, all of them KV-RAM. */
#define KEPT      20
#define LONG_ONES 5
#define LONG      16 /* pages */
#define BROKEN    5  /* pages of a prompt that arrive, before one does not */

static const char config[] = "{\"pools\": [{\"name\": \"" POOL "\", \"pool_pages\": 256,"
			     " \"kv_page_size\": 16, \"max_sequence_length\": 256,"
			     " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null,"
			     " \"retained_order\": \"lru\"}]}\n";

static const char with_ram[] = "{\"kv_ram_bytes\": \"32MiB\", \"kv_ram_lock\": false, \"pools\": ["
			       "{\"name\": \"" POOL "\", \"pool_pages\": 64, \"kv_page_size\": 16,"
			       " \"max_sequence_length\": 272, \"enable_prefix_caching\": true,"
			       " \"max_prefix_cache_pages\": 20, \"ram_floor_tokens\": 0,"
			       " \"retained_order\": \"lru\"}]}\n";

static struct daemon d;
static struct engine e;

static int setup(void **state)
{
	struct engine_model m = ENGINE_SMALL(POOL);

	(void)state;
	d = (struct daemon){0};
	daemon_start(&d, config);
	return engine_start(&e, d.socket, &m);
}

static int setup_ram(void **state, const char *failpoint)
{
	struct engine_model m = ENGINE_SMALL(POOL);

	d = (struct daemon){.program = "tests/hostile/kvhostd_test", .environment = failpoint};
	daemon_make(&d, with_ram);
	daemon_begin(&d);
	(void)state;
	return engine_start(&e, d.socket, &m);
}

/* The second fetch breaks off: its sixth page is the 22nd that is fetched. */
static int setup_broken(void **state)
{
	return setup_ram(state, "KVHOST_TEST_FAILPOINT=ram_restore:21:1");
}

/* Three of forty fetches fail. */
static int setup_failed(void **state)
{
	return setup_ram(state, "KVHOST_TEST_FAILPOINT=ram_restore:10:3");
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

/* ---- two tiers ---- */

static struct kvhost_open_result serve_long(uint32_t number)
{
	uint32_t tokens[LONG * PAGE + 1];

	engine_tokens(tokens, LONG * PAGE + 1, 0, number);
	return stamped_serve(&e, tokens, LONG * PAGE + 1);
}

static void run_script_with_ram(void)
{
	uint32_t tokens[LONG * PAGE + 1];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = LONG * PAGE + 1};
	struct kvhost_open_result found;

	for (uint32_t i = 0; i < LONG_ONES; i++)
		assert_int_equal(serve_long(i).cached_tokens, 0);
	expect("ram_spills", LONG_ONES * LONG - KEPT);
	for (uint32_t i = 0; i < LOOKUPS; i++) {
		engine_tokens(tokens, p.n_tokens, 0, i % (2 * LONG_ONES));
		assert_int_equal(kvhost_lookup(e.pool, &p, &found), 0);
	}
	found = serve_long(LONG_ONES - 1);
	assert_int_equal(found.tier, KVHOST_DEVICE);
	assert_int_equal(serve_long(0).cached_tokens, LONG * PAGE);
	expect("ram_spills", LONG_ONES * LONG - KEPT + LONG);
	found = serve_long(1);
	assert_int_equal(found.cached_tokens, BROKEN * PAGE);
	assert_int_equal(found.miss, KVHOST_MISS_RESTORE);
	assert_int_equal(found.tier, KVHOST_KV_RAM);
	assert_int_equal(serve_long(2).cached_tokens, LONG * PAGE);
	/* What could not be read was computed anew, and is written once more; all else was. */
	expect("ram_spills", LONG_ONES * LONG + 1);
	assert_int_equal(serve_long(1).cached_tokens, LONG * PAGE);
}

static void with_two_tiers_it_is_counted_exactly_too(void **state)
{
	/* Of the last prompt the first four pages have stayed. */
	const uint64_t in_ram = LONG + BROKEN + LONG + LONG - 4, on_device = LONG + 4;

	(void)state;
	run_script_with_ram();
	expect("pool_sequences", 0);
	expect("pool_lookups", LOOKUPS);
	expect("pool_lookup_hits", LOOKUPS / 2);
	expect("pool_opens", LONG_ONES + 5);
	expect("pool_open_hits", 5);
	expect("pool_misses_no_match", LONG_ONES);
	expect("pool_misses_restore", 1);
	expect("ram_hits", 4);
	expect("ram_hit_pages", in_ram);
	expect("prefix_hits", in_ram + on_device);
	expect("pool_reused_tokens", (in_ram + on_device) * PAGE);
	expect("prefix_misses", LONG_ONES * LONG + LONG - BROKEN);
	expect("ram_restores", in_ram);
	/* One did not arrive; those behind it arrived for nothing. */
	expect("ram_restores_failed", LONG - BROKEN);
	expect("pool_discards", 0);
	expect("pool_pages_retained", KEPT);
	assert_int_equal(kvctl(&d, "stats", "--prometheus", NULL, NULL), 0);
	assert_true(says("kvhost_pool_lookups_total{pool=\"counted\"} 100\n"));
	assert_true(says("kvhost_ram_hit_pages_total{pool=\"counted\"} 49\n"));
	assert_true(says("kvhost_prefix_hits_total{pool=\"counted\"} 69\n"));
	assert_true(says("kvhost_ram_restores_failed_total{pool=\"counted\"} 11\n"));
	assert_true(engine_check(&e));
}

/* ---- a hundred prompts of one page ---- */

static void open_one(uint32_t number, enum kvhost_tier tier)
{
	uint32_t tokens[PAGE + 1];
	struct kvhost_open_result found;

	engine_tokens(tokens, PAGE + 1, 0, number);
	found = stamped_serve(&e, tokens, PAGE + 1);
	assert_int_equal(found.tier, tier);
	assert_int_equal(found.cached_tokens, tier == KVHOST_NO_TIER ? 0 : PAGE);
}

static void abort_some_steps(void)
{
	uint32_t tokens[PAGE + 1];
	struct kvhost_prompt p = {
	    .tokens = tokens, .n_tokens = PAGE + 1, .max_tokens = 2 * PAGE, .no_reuse = 1};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct kvhost_step step;

	engine_tokens(tokens, PAGE + 1, 0, 1000);
	assert_int_equal(kvhost_open(e.pool, &p, &seq, &found), 0);
	for (int i = 0; i < ABORTS; i++) {
		assert_int_equal(kvhost_step_begin(seq, PAGE + 1, 0, &step), 0);
		assert_int_equal(kvhost_step_abort(&step), 0);
	}
	assert_int_equal(kvhost_close(&seq), 0);
}

/* Of 100 opens 10 are served from the device, 37 from KV-RAM, 3 fail to be. */
static void hits_are_counted_by_tier_and_failed_fetches_are_none(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 50; i++)
		open_one(i, KVHOST_NO_TIER);
	expect("ram_spills", 30);
	for (uint32_t i = 40; i < 50; i++)
		open_one(i, KVHOST_DEVICE);
	for (uint32_t i = 0; i < 30; i++)
		open_one(i, i / 10 == 1 && i % 10 < FAILED ? KVHOST_NO_TIER : KVHOST_KV_RAM);
	expect("ram_spills", 50);
	for (uint32_t i = 30; i < 40; i++)
		open_one(i, KVHOST_KV_RAM);
	expect("ram_spills", 50 + FAILED); /* what could not be read is written anew */
	expect("pool_opens", 100);
	expect("pool_open_hits", 10 + 37);
	expect("ram_hits", 37);
	expect("prefix_hits", 10 + 37);
	expect("ram_hit_pages", 37);
	expect("ram_restores", 37);
	expect("ram_restores_failed", FAILED);
	expect("pool_misses_restore", FAILED);
	expect("pool_misses_no_match", 50);
	expect("prefix_misses", 50 + FAILED);
	abort_some_steps();
	expect("pool_aborts", ABORTS);
	expect("pool_misses_off", 1);
	expect("pool_discards", 0);
	assert_true(engine_check(&e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_script_with_known_counts_is_counted_exactly, setup,
					    teardown),
	    cmocka_unit_test_setup_teardown(with_two_tiers_it_is_counted_exactly_too, setup_broken,
					    teardown),
	    cmocka_unit_test_setup_teardown(hits_are_counted_by_tier_and_failed_fetches_are_none,
					    setup_failed, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
