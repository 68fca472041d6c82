/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid_live: more sequences of a hybrid model than the device has pages for. Some make room
 * for those that rank above them: their pages go to KV-RAM, and so do states that keep pages on the
 * device; their images stay where they are. Every row and every image is looked at when they are
 * back.
 *
 * One thread that plays two clients, and in one test three processes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/hybrid.h"

#define PAGE       16u
#define MOST_PAGES 12u
#define MOST       (MOST_PAGES * PAGE)
#define SHORT      (MOST - 5)
#define STATE      6000
#define POOL_PAGES 26u /* two sequences, with the page that each may need beside */
#define POOL       "hybrid"

static const char config[] =
    "{\"kv_ram_bytes\": \"64MiB\", \"kv_ram_page_bytes\": \"4KiB\", \"kv_ram_lock\": false,"
    " \"pools\": [{\"name\": \"" POOL "\", \"pool_pages\": 26, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 192, \"enable_prefix_caching\": true, \"lanes\": 6,"
    " \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0, \"retained_slots\": 2,"
    " \"live_in_ram\": true}]}\n";

struct conversation {
	struct engine *engine;
	struct kvhost_sequence *seq;
	uint32_t tokens[MOST];
};

static struct daemon d;
static struct engine mine, others;
static struct conversation low, first, second;

static void start(const char *failpoint)
{
	d = (struct daemon){0};
	if (failpoint) {
		d.program = "tests/hostile/kvhostd_test";
		d.environment = failpoint;
	}
	daemon_start(&d, config);
	hybrid_start(&mine, d.socket, POOL, STATE, 0);
	hybrid_start(&others, d.socket, POOL, STATE, 0);
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&mine);
	engine_stop(&others);
	daemon_remove(&d);
	return 0;
}

static uint64_t counter(const char *name)
{
	return daemon_pool_counter(&d, POOL, name);
}

/* What has happened is in the counters soon. */
static void expect_at_least(const char *name, uint64_t least)
{
	for (unsigned ms = 0; counter(name) < least; ms++) {
		assert_true(ms < LONG_MS);
		pause_ms(1);
	}
}

static void expect(const char *name, uint64_t value)
{
	assert_int_equal(daemon_await(&d, POOL, name, value, LONG_MS), value);
}

static uint32_t begin(struct conversation *c, struct engine *e, uint32_t number, uint32_t priority)
{
	struct kvhost_prompt prompt = {.tokens = c->tokens, .n_tokens = MOST, .priority = priority};
	struct kvhost_open_result found;

	c->engine = e;
	engine_tokens(c->tokens, MOST, 0, number);
	assert_int_equal(kvhost_open(e->pool, &prompt, &c->seq, &found), 0);
	return found.cached_tokens;
}

static void go_on(struct conversation *c, uint32_t to)
{
	hybrid_compute(c->engine, c->seq, c->tokens, to);
	assert_true(hybrid_has(c->engine, c->seq, c->tokens, to));
}

static void capture(struct conversation *c)
{
	assert_int_equal(hybrid_checkpoint(c->seq), KVHOST_CAPTURE_MADE);
}

static void end(struct conversation *c)
{
	assert_int_equal(kvhost_close(&c->seq), 0);
}

static void expect_nothing_used(void)
{
	expect("pool_sequences", 0);
	expect("pool_pages_live", 0);
	expect("pool_pages_reserved", 0);
	expect("pool_table_refs", 0);
	expect("pool_transfer_pins", 0);
	expect("pool_active_transactions", 0);
	expect("ram_places_live", 0);
	expect("ram_pages_leaving", 0);
	expect("ram_pages_arriving", 0);
	assert_int_equal(counter("pool_pages_free") + counter("pool_pages_retained"), POOL_PAGES);
	assert_int_equal(counter("pool_refused_references"), 0);
	assert_true(engine_check(&mine) && engine_check(&others));
}

/* Two that rank above have what they may have; the lowest has captured a state inside a page on the
 * way, and one at its end. */
static void push_out(void)
{
	assert_int_equal(begin(&low, &mine, 1, KVHOST_AGENT), 0);
	go_on(&low, 5 * PAGE + 3);
	capture(&low);
	go_on(&low, SHORT);
	capture(&low);
	assert_int_equal(begin(&first, &others, 2, KVHOST_INTERACTIVE), 0);
	go_on(&first, MOST);
	assert_int_equal(begin(&second, &others, 3, KVHOST_INTERACTIVE), 0);
	assert_int_equal(counter("live_pages_parked"), 0);
	go_on(&second, MOST);
	expect_at_least("live_pages_parked", MOST_PAGES - 2);
}

static void a_sequence_makes_room_and_goes_on_as_it_was(void **state)
{
	uint32_t tier;

	(void)state;
	start(NULL);
	push_out();
	assert_true(hybrid_has(&others, first.seq, first.tokens, MOST));
	end(&second);
	assert_true(hybrid_has(&mine, low.seq, low.tokens, SHORT));
	go_on(&low, MOST);
	expect("live_sequences_lost", 0);
	expect_at_least("live_pages_returned", 1);
	assert_true(hybrid_has(&others, first.seq, first.tokens, MOST));
	end(&low);
	end(&first);
	expect_nothing_used();
	/* Its states are where they were: it is computed from the last one on. */
	for (tier = 0; tier < 2; tier++) {
		struct kvhost_prompt prompt = {.tokens = low.tokens, .n_tokens = MOST};
		struct kvhost_open_result found = hybrid_serve(&mine, &prompt);

		assert_int_equal(found.cached_tokens, SHORT);
	}
	expect_nothing_used();
}

/* What works on its pages waits until they are back: here, until somebody leaves. */
static void a_checkpoint_waits_for_the_pages(void **state)
{
	struct kvhost_prompt prompt;

	(void)state;
	start(NULL);
	assert_int_equal(begin(&low, &mine, 1, KVHOST_AGENT), 0);
	go_on(&low, SHORT);
	assert_int_equal(begin(&first, &others, 2, KVHOST_INTERACTIVE), 0);
	go_on(&first, MOST);
	assert_int_equal(begin(&second, &others, 3, KVHOST_INTERACTIVE), 0);
	go_on(&second, MOST);
	expect_at_least("live_pages_parked", 1);
	end(&first);
	capture(&low);
	end(&low);
	end(&second);
	expect_nothing_used();
	prompt = (struct kvhost_prompt){.tokens = low.tokens, .n_tokens = MOST};
	assert_int_equal(hybrid_serve(&mine, &prompt).cached_tokens, SHORT);
}

/* A page of it cannot be read: it alone is lost. */
static void what_cannot_be_read_is_its_own_loss(void **state)
{
	struct kvhost_step step;

	(void)state;
	start("KVHOST_TEST_FAILPOINT=ram_restore:2:1");
	push_out();
	end(&second);
	assert_int_equal(kvhost_step_begin(low.seq, MOST, 0, &step), KVHOST_ELOST);
	assert_int_equal(kvhost_step_begin(low.seq, MOST, 0, &step), KVHOST_ELOST);
	expect("live_sequences_lost", 1);
	assert_true(hybrid_has(&others, first.seq, first.tokens, MOST));
	end(&low);
	end(&first);
	expect_nothing_used();
	for (int i = 0; i < 2; i++) {
		struct kvhost_prompt prompt = {.tokens = low.tokens, .n_tokens = MOST};

		assert_true(hybrid_serve(&mine, &prompt).cached_tokens <= SHORT);
	}
	expect_nothing_used();
}

/* Its client is gone with its pages in both tiers; what it captured can be had. */
static void a_client_that_leaves_leaves_its_states(void **state)
{
	struct kvhost_prompt prompt = {.tokens = low.tokens, .n_tokens = MOST};

	(void)state;
	start(NULL);
	push_out();
	engine_stop(&mine);
	expect("pool_sequences", 2);
	expect("ram_places_live", 0);
	assert_true(hybrid_has(&others, first.seq, first.tokens, MOST));
	assert_true(hybrid_has(&others, second.seq, second.tokens, MOST));
	end(&first);
	end(&second);
	hybrid_start(&mine, d.socket, POOL, STATE, 0);
	expect_nothing_used();
	assert_int_equal(hybrid_serve(&mine, &prompt).cached_tokens, SHORT);
}

/* ---- several at once ---- */

#define CLIENTS 3

static void converse(uint32_t who, uint32_t rounds)
{
	struct engine e;

	hybrid_start(&e, d.socket, POOL, STATE, 0);
	for (uint32_t i = 0; i < rounds; i++) {
		struct kvhost_prompt prompt = {.n_tokens = MOST - (i % 7)};
		struct kvhost_open_result found;
		struct kvhost_sequence *seq;
		uint32_t tokens[MOST], at;

		engine_tokens(tokens, MOST, i % 3 ? 0 : 40, i % 4 ? 100 * who + i : 7);
		prompt.tokens = tokens;
		prompt.priority = who ? KVHOST_AGENT : KVHOST_INTERACTIVE;
		assert_int_equal(kvhost_open(e.pool, &prompt, &seq, &found), 0);
		at = found.cached_tokens;
		assert_true(at == 0 || hybrid_has(&e, seq, tokens, at));
		while (at < prompt.n_tokens) {
			at = at + 29 < prompt.n_tokens ? at + 29 : prompt.n_tokens;
			hybrid_compute(&e, seq, tokens, at);
			if (at % 3 == who)
				(void)hybrid_checkpoint(seq);
		}
		assert_true(hybrid_has(&e, seq, tokens, at));
		assert_int_equal(kvhost_close(&seq), 0);
	}
	engine_stop(&e);
}

static void three_of_which_two_fit_all_end_as_they_must(void **state)
{
	pid_t child[CLIENTS];

	(void)state;
	start(NULL);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		child[i] = fork_client();
		if (child[i] == 0) {
			converse(i, is_long() ? 2000 : 60);
			_exit(0);
		}
	}
	for (uint32_t i = 0; i < CLIENTS; i++)
		assert_int_equal(await_child(child[i], 3 * LONG_MS), 0);
	expect_nothing_used();
	expect("live_sequences_lost", 0);
	assert_true(counter("live_pages_returned") <= counter("live_pages_parked"));
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_sequence_makes_room_and_goes_on_as_it_was),
	    TEST(a_checkpoint_waits_for_the_pages),
	    TEST(what_cannot_be_read_is_its_own_loss),
	    TEST(a_client_that_leaves_leaves_its_states),
	    TEST(three_of_which_two_fit_all_end_as_they_must),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
