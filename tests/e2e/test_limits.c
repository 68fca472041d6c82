/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_limits: what is refused, waited for or taken back so that a pool keeps to its size.
 *
 * Shows that sequences which nobody uses give back what they pin, that opens meanwhile succeed or
 * fail fast, and that a limit is looked at before memory is taken, not after. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/footprint.h"

#define SEQUENCES   10000
#define PAGE_TOKENS 16
#define POOL_BYTES  (96ull << 20)
#define OVERHEAD    (16ull << 20) /* windows, rings, heap: beside the pool */
#define TOUCHED     (8ull << 20)  /* of the index, which is part of it */

static const char config[] = "{\"core\": {\"sequence_idle_ttl_s\": 1}, \"pools\": ["
			     "{\"name\": \"pins\", \"pool_pages\": 16384, \"kv_page_size\": 16,"
			     " \"max_sequence_length\": 64, \"enable_prefix_caching\": true,"
			     " \"max_prefix_cache_pages\": 64},"
			     "{\"name\": \"long\", \"pool_bytes\": \"64MiB\", \"kv_page_size\": 64,"
			     " \"max_sequence_length\": 6400},"
			     "{\"name\": \"big\", \"pool_bytes\": \"96MiB\", \"kv_page_size\": 64,"
			     " \"max_sequence_length\": 2048, \"enable_prefix_caching\": true,"
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

static uint64_t slowest_open_ms(struct engine *e, const uint32_t *tokens, uint32_t n,
				struct kvhost_sequence **sequences, unsigned *opened)
{
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = n, .deadline_us = 100};
	uint64_t slowest_ms = 0;

	for (unsigned i = 0; i < SEQUENCES; i++) {
		struct kvhost_open_result found;
		uint64_t began_ms = now_ms();
		int r = kvhost_open(e->pool, &prompt, &sequences[*opened], &found);

		if (now_ms() - began_ms > slowest_ms)
			slowest_ms = now_ms() - began_ms;
		if (r == KVHOST_ETIMEDOUT)
			continue;
		assert_int_equal(r, 0);
		assert_int_equal(found.cached_tokens, PAGE_TOKENS);
		++*opened;
	}
	return slowest_ms;
}

/* Pins that are never followed by a step end by themselves; their client lives and says nothing. */
static void sequences_that_nobody_uses_are_closed_and_give_back_their_pages(void **state)
{
	static struct kvhost_sequence *sequences[SEQUENCES];
	struct engine_model m = ENGINE_SMALL("pins");
	uint32_t tokens[PAGE_TOKENS + 1];
	struct kvhost_step step;
	struct engine e;
	unsigned opened = 0;

	(void)state;
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	engine_tokens(tokens, PAGE_TOKENS + 1, 0, 1);
	assert_int_equal(engine_serve(&e, tokens, PAGE_TOKENS + 1, NULL), 0);
	assert_in_range(slowest_open_ms(&e, tokens, PAGE_TOKENS + 1, sequences, &opened), 0,
			WITHIN_MS * PATIENCE);
	assert_true(opened >= 16384 / 2);
	assert_int_equal(daemon_await(&d, "pins", "pool_sequences", 0, 5000), 0);
	assert_int_equal(daemon_await(&d, "pins", "pool_pages_live", 0, WITHIN_MS), 0);
	assert_int_equal(daemon_await(&d, "", "sequences_expired", opened, WITHIN_MS), opened);
	assert_int_equal(kvhost_step_begin(sequences[0], PAGE_TOKENS + 1, 0, &step), KVHOST_EGONE);
	for (unsigned i = 0; i < opened; i++)
		(void)kvhost_close(&sequences[i]);
	assert_int_equal(engine_serve(&e, tokens, PAGE_TOKENS + 1, NULL), 0);
	assert_true(engine_check(&e));
	engine_stop(&e);
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
}

/* One page of 64 tokens takes 1 MiB. */
static struct engine_model heavy(const char *pool)
{
	return (struct engine_model){.pool = pool,
				     .n_layers = 4,
				     .heads = 8,
				     .k_dim = 128,
				     .v_dim = 128,
				     .format = KVHOST_FLOAT16};
}

static uint64_t used_bytes(void)
{
	struct footprint f = footprint_of(d.pid);

	return f.resident_bytes + f.huge_bytes;
}

static void a_pool_that_cannot_hold_its_longest_sequence_is_refused_before_it_is_made(void **state)
{
	struct engine_model m = heavy("long");
	uint64_t before = used_bytes();
	struct engine e;

	(void)state;
	assert_int_equal(engine_connect(&e, d.socket), 0);
	assert_int_equal(engine_attach(&e, &m), KVHOST_ENOSPC);
	/* In numbers: what one sequence takes, and what there is. */
	assert_non_null(strstr(kvhost_reason(e.host), "needs 100 pages of 1048576 bytes"));
	assert_non_null(strstr(kvhost_reason(e.host), "the budget is 67108864 bytes"));
	if (PATIENCE == 1)
		assert_in_range(used_bytes(), 0, before + (16ull << 20));
	engine_stop(&e);
}

static void a_pool_keeps_to_its_size_under_many_sequences(void **state)
{
	struct engine_model m = heavy("big");
	static uint32_t tokens[4096];
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	uint64_t base = used_bytes(), page_bytes;
	struct engine e;

	(void)state;
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	page_bytes = e.info->pages * e.info->page_stride;
	assert_true(daemon_await(&d, "big", "pool_pages_capacity", e.info->pages, WITHIN_MS));
	assert_in_range(page_bytes + daemon_pool_counter(&d, "big", "pool_index_bytes"),
			POOL_BYTES - 2 * e.info->page_stride, POOL_BYTES);
	/* More than the pool serves: refused, nothing is taken. */
	engine_tokens(tokens, 4096, 0, 2);
	assert_int_not_equal(
	    kvhost_open(
		e.pool,
		&(struct kvhost_prompt){.tokens = tokens, .n_tokens = 2000, .max_tokens = 6400},
		&seq, &found),
	    0);
	for (unsigned i = 0; i < 150; i++) {
		uint32_t n = 64 + i * 97 % 1900;

		engine_tokens(tokens, n, 64, 100 + i);
		assert_int_equal(engine_serve(&e, tokens, n, NULL), 0);
		if (PATIENCE == 1)
			assert_in_range(used_bytes(), 0, base + page_bytes + TOUCHED + OVERHEAD);
	}
	assert_true(daemon_pool_counter(&d, "big", "prefix_evictions") > 0);
	assert_true(engine_check(&e));
	engine_stop(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(sequences_that_nobody_uses_are_closed_and_give_back_their_pages),
	    cmocka_unit_test(
		a_pool_that_cannot_hold_its_longest_sequence_is_refused_before_it_is_made),
	    cmocka_unit_test(a_pool_keeps_to_its_size_under_many_sequences),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
