/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_failures: every place where an operation can be made to fail, failed once, at its first, a
 * later and a much later pass; then everything is let go.
 *
 * Shows that no way out of a failed operation keeps a reference, a page or a sequence: after each
 * the daemon's own walk finds nothing wrong and nothing is used. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define PAGE_TOKENS 16
#define POOL_PAGES  96
#define MOST        (24 * PAGE_TOKENS)

static const char config[] =
    "{\"kv_ram_bytes\": \"8MiB\", \"kv_ram_page_bytes\": \"4KiB\", \"kv_ram_lock\": false,"
    " \"pools\": [{\"name\": \"small\", \"pool_pages\": 96, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 512, \"enable_prefix_caching\": true, \"ram_floor_tokens\": 0,"
    " \"retained_order\": \"lru\","
    " \"max_prefix_cache_pages\": null, \"default_deadline_us\": 2000000}]}\n";

static const char *const names[] = {
#define FAILPOINT(name, text) #name,
#include "daemon/base/failpoints.def"
#undef FAILPOINT
};

static struct daemon d;
static unsigned refused; /* calls, over all failpoints */
static uint64_t fetched; /* pages, likewise */
static bool may_end;     /* the session: a request without a deadline would never be over */
static bool ended;

/* A call may be refused here, in words; nothing else. */
static bool went_well(int result)
{
	refused += result != 0;
	assert_true(result <= 0);
	ended |= result == KVHOST_EGONE;
	assert_true(!ended || may_end);
	assert_int_not_equal(result, KVHOST_ETIMEDOUT);
	return result == 0;
}

/* What lets go is never refused. */
static void goes_well(int result)
{
	assert_true(went_well(result) || ended);
}

/* One step of `n` tokens with a write and a read by request. */
static bool step_once(struct kvhost_sequence *seq, uint32_t n, const uint32_t *ids)
{
	uint16_t rows[PAGE_TOKENS * 4 * 16] = {0};
	size_t bytes = (size_t)n * 16 * 2;
	struct kvhost_step step;
	bool written;

	if (!went_well(kvhost_step_begin(seq, kvhost_committed(seq) + n, 0, &step)))
		return false;
	written = went_well(
	    kvhost_kv_write(&step, 0, KVHOST_K, step.start_tokens, n, KVHOST_FLOAT16, rows, bytes));
	if (!written || !went_well(kvhost_step_commit(&step, n, ids, ids ? n : 0, NULL, 0))) {
		/* What is left of it must go in any case. */
		goes_well(kvhost_step_abort(&step));
		return false;
	}
	return went_well(kvhost_kv_read(seq, NULL, 0, KVHOST_K, step.start_tokens, n,
					KVHOST_FLOAT16, rows, bytes));
}

static void serve(struct engine *e, uint32_t number)
{
	uint32_t tokens[MOST], more[4 * PAGE_TOKENS], n = MOST - 8 * PAGE_TOKENS;
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = n, .max_tokens = MOST};
	struct kvhost_sequence *seq = NULL, *branch = NULL;
	struct kvhost_open_result found;

	engine_tokens(tokens, MOST, 8 * PAGE_TOKENS + 3, number % 7);
	engine_tokens(more, 4 * PAGE_TOKENS, 0, 100 + number);
	(void)went_well(kvhost_lookup(e->pool, &prompt, &found));
	if (!went_well(kvhost_open(e->pool, &prompt, &seq, &found)))
		return;
	/* A failure does not stop it: the next try must find everything as before. */
	for (unsigned tries = 0; kvhost_committed(seq) < n && tries < 64; tries++) {
		uint32_t left = n - kvhost_committed(seq);

		(void)step_once(seq, left < 29 ? left : 29, NULL);
	}
	if (went_well(kvhost_fork(seq, MOST, &branch))) {
		(void)step_once(branch, 3 * PAGE_TOKENS + 5, more);
		(void)step_once(branch, 7, more + 3 * PAGE_TOKENS + 5);
		(void)went_well(kvhost_truncate(branch, n - 5));
		(void)step_once(branch, 20, more);
	}
	(void)step_once(seq, 2 * PAGE_TOKENS, more);
	goes_well(kvhost_close(&branch));
	goes_well(kvhost_close(&seq));
}

static void expect_nothing_used(struct engine *e)
{
	static const char *const zero[] = {"pool_pages_live",          "pool_sequences",
					   "pool_active_transactions", "pool_table_refs",
					   "pool_pages_quarantined",   "pool_pages_draining",
					   "pool_transfer_pins",       "pool_pages_reserved",
					   "ram_pages_leaving",        "ram_pages_arriving"};

	for (size_t i = 0; i < sizeof(zero) / sizeof(*zero); i++)
		assert_int_equal(daemon_await(&d, "small", zero[i], 0, WITHIN_MS), 0);
	assert_int_equal(daemon_pool_counter(&d, "small", "pool_pages_free") +
			     daemon_pool_counter(&d, "small", "pool_pages_retained"),
			 POOL_PAGES);
	assert_int_equal(daemon_pool_counter(&d, "small", "pool_refused_references"), 0);
	assert_true(engine_check(e));
}

/* Attaching may be what fails, the first time. */
static void attach(struct engine *e)
{
	struct engine_model m = ENGINE_SMALL("small");
	int r = KVHOST_EGONE;

	for (int tries = 0; tries < 3 && r; tries++) {
		r = engine_start(e, d.socket, &m);
		if (r)
			engine_stop(e);
	}
	assert_int_equal(r, 0);
	ended = false;
}

static void work(void)
{
	struct engine e;

	attach(&e);
	for (uint32_t i = 0; i < 12; i++) {
		serve(&e, i);
		if (ended) {
			engine_stop(&e);
			attach(&e);
		}
	}
	assert_true(daemon_pool_counter(&d, "small", "prefix_evictions") > 0);
	fetched += daemon_pool_counter(&d, "small", "ram_restores");
	expect_nothing_used(&e);
	engine_stop(&e);
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
}

static void fail_once(const char *name, unsigned skip)
{
	static char variable[96];
	char said[4096];
	int status;

	(void)snprintf(variable, sizeof(variable), "KVHOST_TEST_FAILPOINT=%s:%u:1", name, skip);
	may_end = !strcmp(name, "timers_grow");
	d.program = "tests/hostile/kvhostd_test";
	d.environment = variable;
	daemon_make(&d, config);
	status = daemon_try(&d, said, sizeof(said));
	if (status) {
		/* It failed at the start: it says so, and no signal ended it. A host without huge
		 * pages that has no memory for KV-RAM is a limit of the host: that is 3. */
		assert_int_equal(status, strcmp(name, "arena_starved") ? 1 : 3);
		assert_non_null(strstr(said, "could not start"));
	} else {
		work();
		assert_int_equal(daemon_stop(&d, 5000), 0);
	}
	daemon_remove(&d);
}

static void after_one_failure_at_any_place_nothing_is_lost(void **state)
{
	static const unsigned skips[] = {0, 1, 5, 23};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		for (size_t k = 0; k < sizeof(skips) / sizeof(*skips); k++)
			fail_once(names[i], skips[k]);
	}
	/* They did fail. */
	assert_true(refused > 0);
	assert_true(fetched > 0);
}

static int teardown(void **state)
{
	(void)state;
	if (d.folder[0])
		print_message("# %s\n", d.environment);
	daemon_remove(&d);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(after_one_failure_at_any_place_nothing_is_lost, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
