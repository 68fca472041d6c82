/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid_tiers_ops: states in KV-RAM as an operator has them: what is shown, what is dropped,
 * and a KV-RAM that is too small. One thread, one daemon a test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/tier/ram.h"
#include "tests/e2e/operator.h"
#include "tests/e2e/states.h"

#define STATE 10007
#define LARGE STATES_LARGE
#define FLOOR STATES_NO_FLOOR

static struct states s;

static int setup(void **state)
{
	(void)state;
	s = (struct states){0};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	states_stop(&s);
	return 0;
}

static void look_at_tiers(void)
{
	assert_int_equal(kvctl(&s.d, "tiers", "--json", NULL, NULL), 0);
}

static uint64_t image_bytes(void)
{
	return s.e.info->state_stride + s.e.info->ring_stride;
}

static uint64_t ask_drop(const char *name_space)
{
	char *answer = NULL;
	uint64_t pages;

	assert_int_equal(kvhost_ask(s.e.host, "drop", name_space, &answer), 0);
	assert_non_null(strstr(answer, "\"dropped_pages\":"));
	pages = strtoull(strstr(answer, "\"dropped_pages\":") + 16, NULL, 10);
	free(answer);
	return pages;
}

/* Everything has come back, at once. */
static void expect_nothing_kept(void)
{
	look_at_tiers();
	for (int tier = 0; tier < 2; tier++) {
		assert_int_equal(
		    said_number(tier ? "pools.0.tiers.1.pages" : "pools.0.tiers.0.pages"), 0);
		assert_int_equal(
		    said_number(tier ? "pools.0.tiers.1.images" : "pools.0.tiers.0.images"), 0);
		assert_int_equal(said_number(tier ? "tiers.1.used_bytes" : "tiers.0.used_bytes"),
				 0);
	}
	assert_int_equal(said_number("namespaces.0.kv_ram_used_bytes"), 0);
	assert_true(engine_check(&s.e));
}

/* ---- what is shown ---- */

static void kvctl_tiers_shows_states_and_what_moved_of_them(void **state)
{
	uint64_t bytes;

	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", FLOOR), STATE, 0);
	for (uint32_t i = 0; i < 5; i++)
		(void)states_serve_usual(&s, i);
	states_rest(&s);
	(void)states_serve_usual(&s, 0);
	states_rest(&s);
	look_at_tiers();
	/* Of the first open of a conversation: one was found, five wait. */
	assert_int_equal(said_number("pools.0.order.classes.0.hits"), 1);
	assert_int_equal(said_number("pools.0.order.classes.0.evictions"), 0);
	bytes = 4 * (STATES_PAGES * s.e.info->page_stride + image_bytes());
	assert_int_equal(said_number("pools.0.tiers.0.images"), 1);
	assert_int_equal(said_number("pools.0.tiers.1.images"), 4);
	assert_int_equal(said_number("pools.0.tiers.1.pages"), 4 * STATES_PAGES);
	assert_int_equal(said_number("pools.0.tiers.1.used_bytes"), bytes);
	assert_int_equal(said_number("tiers.1.used_bytes"), bytes);
	assert_int_equal(said_number("namespaces.0.kv_ram_used_bytes"),
			 bytes + 4 * (STATES_PAGES + 1) * RAM_KNOWN_BYTES);
	assert_int_equal(said_number("pools.0.tiers.0.used_bytes"),
			 2 * STATES_PAGES * s.e.info->page_stride + image_bytes());
	assert_int_equal(said_number("pools.0.moves.leaving_images"), 0);
	assert_int_equal(said_number("pools.0.moves.image_spills"), 4);
	assert_int_equal(said_number("pools.0.moves.image_spills_failed"), 0);
	assert_int_equal(said_number("pools.0.moves.image_restores"), 1);
	assert_int_equal(said_number("pools.0.moves.image_restores_failed"), 0);
	assert_int_equal(said_number("pools.0.moves.down_bytes"), bytes);
	assert_int_equal(said_number("pools.0.moves.up_bytes"), bytes / 4);
	assert_int_equal(said_number("pools.0.hits_in_kv_ram"), 1);
	assert_int_equal(kvctl(&s.d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("image restores         1"));
	assert_true(says("image restores failed  0"));
	assert_int_equal(kvctl(&s.d, "stats", NULL, NULL, NULL), 0);
	assert_true(says("ram_image_spills"));
}

/* Both go on from the same 40,000 tokens, each with some of its own. */
static void two_checkpoints_take_the_space_of_one_and_their_tails(void **state)
{
	enum { SHARED = 40000, A = SHARED + 210, B = SHARED + 330, OTHER = 40950 };
	static uint32_t tokens[3][OTHER + 1];
	static const uint32_t ends[] = {A, B, OTHER};
	struct kvhost_prompt p = {.max_tokens = OTHER + 1};
	struct kvhost_sequence *seq[3] = {NULL};
	struct kvhost_open_result found;
	uint64_t pages = SHARED / 64 + (A - SHARED + 63) / 64 + (B - SHARED + 63) / 64;

	(void)state;
	states_start(&s,
		     "{\"kv_ram_bytes\": \"64MiB\", \"kv_ram_lock\": false,"
		     " \"kv_ram_page_bytes\": \"4KiB\", \"pools\": [{\"name\": \"hybrid\","
		     " \"pool_pages\": 2000, \"kv_page_size\": 64, \"max_sequence_length\": 41000,"
		     " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": 640}]}\n",
		     STATE, 0);
	for (uint32_t i = 0; i < 3; i++)
		engine_tokens(tokens[i], OTHER + 1, i < 2 ? SHARED : 0, i);
	for (uint32_t i = 0; i < 2; i++) {
		p.tokens = tokens[i];
		p.n_tokens = ends[i] + 1;
		assert_int_equal(kvhost_open(s.e.pool, &p, &seq[i], &found), 0);
		assert_int_equal(found.cached_tokens, i ? SHARED : 0);
		if (i == 0) {
			hybrid_compute(&s.e, seq[0], tokens[0], SHARED);
			assert_int_equal(hybrid_checkpoint(seq[0]), KVHOST_CAPTURE_MADE);
		}
	}
	for (uint32_t i = 0; i < 2; i++) {
		hybrid_compute(&s.e, seq[i], tokens[i], ends[i]);
		assert_int_equal(hybrid_checkpoint(seq[i]), KVHOST_CAPTURE_MADE);
		assert_int_equal(kvhost_close(&seq[i]), 0);
	}
	states_rest(&s);
	look_at_tiers();
	assert_int_equal(said_number("pools.0.tiers.0.pages"), pages);
	assert_int_equal(said_number("pools.0.tiers.0.images"), 2);
	/* One that shares nothing with them takes all of the device. */
	p.tokens = tokens[2];
	p.n_tokens = OTHER + 1;
	assert_int_equal(kvhost_open(s.e.pool, &p, &seq[2], &found), 0);
	hybrid_compute(&s.e, seq[2], tokens[2], OTHER);
	assert_int_equal(hybrid_checkpoint(seq[2]), KVHOST_CAPTURE_MADE);
	assert_int_equal(kvhost_close(&seq[2]), 0);
	states_rest(&s);
	look_at_tiers();
	assert_int_equal(said_number("pools.0.tiers.1.pages"), pages);
	assert_int_equal(said_number("pools.0.tiers.1.images"), 2);
	assert_int_equal(said_number("pools.0.tiers.1.used_bytes"),
			 pages * s.e.info->page_stride + 2 * image_bytes());
	assert_int_equal(said_number("pools.0.moves.spills"), pages);
	for (uint32_t i = 0; i < 2; i++) {
		p.tokens = tokens[i];
		p.n_tokens = ends[i] + 1;
		assert_int_equal(kvhost_open(s.e.pool, &p, &seq[i], &found), 0);
		states_found(&found, ends[i], 1, KVHOST_KV_RAM, KVHOST_MISS_NONE);
		assert_true(hybrid_has(&s.e, seq[i], tokens[i], ends[i]));
	}
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(kvhost_close(&seq[i]), 0);
	states_rest(&s);
	/* What they share was fetched once. */
	states_expect(&s, "ram_restores", pages);
	states_expect(&s, "ram_image_restores", 2);
}

/* ---- drop ---- */

static void a_drop_takes_states_from_all_tiers(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", FLOOR), STATE, 0);
	for (uint32_t i = 0; i < 5; i++)
		(void)states_serve_usual(&s, i);
	(void)states_serve_usual(&s, 0); /* is in both now */
	states_rest(&s);
	assert_int_equal(ask_drop("default"), 5 * STATES_PAGES);
	expect_nothing_kept();
	assert_int_equal(states_serve_usual(&s, 0).cached_tokens, 0);
	states_rest(&s);
	assert_int_equal(kvctl(&s.d, "drop", "default", "--json", NULL), 0);
	assert_true(says("\"dropped_pages\": 10"));
	states_expect(&s, "checkpoint_discards", 6);
}

/* Without a look at it. */
static void serve_fast(uint32_t number, uint32_t to)
{
	struct kvhost_sequence *seq = NULL;
	struct states_prompt p;
	struct kvhost_step step;

	states_make(&p, number, to + 1, 0, to);
	assert_int_equal(kvhost_open(s.e.pool, &p.prompt, &seq, NULL), 0);
	assert_int_equal(kvhost_step_begin(seq, to, 0, &step), 0);
	assert_int_equal(kvhost_step_commit(&step, to - step.start_tokens, NULL, 0, NULL, 0), 0);
	(void)hybrid_checkpoint(seq);
	assert_int_equal(kvhost_close(&seq), 0);
}

/* Two states are on the device, and both have to leave for a long one at once. */
static void push_two_out(void)
{
	serve_fast(0, STATES_USUAL);
	serve_fast(1, STATES_USUAL);
	serve_fast(2, STATES_USUAL + 6 * STATES_PAGE);
}

static void a_drop_waits_for_images_on_their_way(void **state)
{
	uint64_t left = 0;

	(void)state;
	states_start(&s, STATES_CONFIG("128MiB", FLOOR), LARGE, 0);
	for (int i = 0; i < 10; i++) {
		push_two_out();
		left += states_tiers(&s, "\"leaving_images\":");
		(void)ask_drop("");
		/* Right now: the copies would end before kvctl has started. */
		assert_int_equal(states_tiers(&s, "\"leaving_images\":"), 0);
		assert_int_equal(states_tiers(&s, "\"kv_ram_used_bytes\":"), 0);
		expect_nothing_kept();
	}
	/* The test is worth something only if there was something. */
	assert_true(left > 0);
}

static void wait_for(kvhost_ticket ticket)
{
	struct kvhost_finished finished;

	assert_int_equal(kvhost_wait(s.e.host, ticket, LONG_MS * 1000ull * PATIENCE, &finished), 0);
	assert_int_equal(finished.result, 0);
}

/* An open that fetches a state, with a drop somewhere on its way: what it is given is right. */
static void open_and_drop(struct engine *operator, uint32_t number, unsigned pings)
{
	struct kvhost_sequence *seq = NULL;
	struct kvhost_open_result found;
	struct states_prompt p;
	kvhost_ticket ticket;
	char *answer = NULL;

	states_usual(&p, number);
	assert_int_equal(kvhost_submit_open(s.e.pool, &p.prompt, &seq, &found, NULL, &ticket), 0);
	for (unsigned i = 0; i < pings; i++)
		assert_int_equal(kvhost_ping(operator->host), 0);
	assert_int_equal(kvhost_ask(operator->host, "drop", "", &answer), 0);
	free(answer);
	wait_for(ticket);
	if (found.cached_tokens)
		assert_true(hybrid_has(&s.e, seq, p.tokens, found.cached_tokens));
	assert_int_equal(kvhost_close(&seq), 0);
	states_rest(&s);
}

static void a_drop_at_any_point_takes_no_state_that_is_used(void **state)
{
	struct engine operator;

	(void)state;
	states_start(&s, STATES_CONFIG("128MiB", FLOOR), LARGE, 0);
	assert_int_equal(engine_connect(&operator, s.d.socket), 0);
	for (unsigned i = 0; i < 12; i++) {
		for (uint32_t k = 0; k < 3; k++)
			(void)states_serve_usual(&s, k);
		if (i % 3)
			states_rest(&s);
		open_and_drop(&operator, i % 3, i * i * 16);
		(void)ask_drop("");
		expect_nothing_kept();
	}
	assert_true(states_counter(&s, "ram_image_restores") > 0);
	engine_stop(&operator);
}

/* The memory of a pool goes back, and with it what KV-RAM has of it, also what is on its way. */
static void a_pool_that_is_dropped_leaves_no_states_in_ram(void **state)
{
	uint64_t left = 0;

	(void)state;
	states_start(&s, STATES_CONFIG("128MiB", FLOOR), LARGE, 0);
	/* On a fast machine few are still on their way. */
	for (uint32_t i = 0; i < 12; i++) {
		char *answer = NULL;

		push_two_out();
		left += states_tiers(&s, "\"leaving_images\":");
		assert_int_equal(kvhost_pool_detach(&s.e.pool), 0);
		assert_int_equal(kvhost_ask(s.e.host, "pool-drop", "hybrid", &answer), 0);
		free(answer);
		look_at_tiers();
		assert_int_equal(said_number("tiers.1.used_bytes"), 0);
		assert_int_equal(said_number("pools.0.tiers.1.pages"), 0);
		assert_int_equal(said_number("pools.0.tiers.1.images"), 0);
		assert_int_equal(said_number("namespaces.0.kv_ram_used_bytes"), 0);
		/* Counters only grow. */
		assert_true(said_number("pools.0.moves.image_spills") > i);
		engine_stop(&s.e);
		hybrid_start(&s.e, s.d.socket, "hybrid", LARGE, 0);
	}
	assert_true(left > 5);
	for (uint32_t k = 0; k < 5; k++)
		(void)states_serve_usual(&s, k);
	states_rest(&s);
	assert_int_equal(states_serve_usual(&s, 0).tier, KVHOST_KV_RAM);
	assert_int_equal(kvhost_pool_detach(&s.e.pool), 0);
	assert_int_equal(kvctl(&s.d, "pool", "drop", "hybrid", NULL), 0);
	look_at_tiers();
	assert_int_equal(said_number("tiers.1.used_bytes"), 0);
}

static void a_daemon_stops_well_whatever_states_are_in_ram(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG("128MiB", FLOOR), LARGE, 0);
	push_two_out();
	assert_int_equal(daemon_stop(&s.d, LONG_MS), 0);
	assert_true(states_counter(&s, "ram_images") > 0);
}

/* A prompt all of whose tokens are a system block: a state at the end of its whole pages. */
static void serve_block(uint32_t number)
{
	struct states_prompt p;

	states_make(&p, number, STATES_USUAL + 1, 0, 0);
	p.prompt.system_end_tokens = STATES_USUAL;
	assert_int_equal(states_serve(&s, &p).cached_tokens, 0);
}

/* Computes up to there and captures. */
static void capture_at(struct kvhost_sequence *seq, const struct states_prompt *p, uint32_t tokens,
		       uint32_t outcome)
{
	hybrid_compute(&s.e, seq, p->tokens, tokens);
	assert_int_equal(hybrid_checkpoint(seq), outcome);
}

/* Two states have the first page, whose copy in KV-RAM cannot be read. The one that keeps it on the
 * device goes first: so it is copied for the other one, which goes next, and is awaited. */
static void a_pool_is_freed_after_what_is_copied_while_its_states_go(void **state)
{
	struct kvhost_sequence *seq = NULL;
	struct kvhost_open_result found;
	struct states_prompt p;
	uint64_t spills;

	(void)state;
	s.d.program = "tests/hostile/kvhostd_test";
	s.d.environment = "KVHOST_TEST_FAILPOINT=ram_restore:0:1";
	states_start(&s, STATES_CONFIG("64MiB", FLOOR), STATE, 0);
	states_make(&p, 1, STATES_USUAL + 1, 0, 0);
	p.prompt.system_end_tokens = 2 * STATES_PAGE;
	assert_int_equal(kvhost_open(s.e.pool, &p.prompt, &seq, NULL), 0);
	capture_at(seq, &p, 2 * STATES_PAGE, KVHOST_CAPTURE_MADE);
	capture_at(seq, &p, STATES_USUAL, KVHOST_CAPTURE_MADE);
	assert_int_equal(kvhost_close(&seq), 0);
	serve_block(2);
	serve_block(3);
	states_rest(&s);
	states_expect(&s, "ram_images", 2);
	/* Computed anew, one of them is on the device again. */
	assert_int_equal(kvhost_open(s.e.pool, &p.prompt, &seq, &found), 0);
	states_found(&found, 0, 0, KVHOST_NO_TIER, KVHOST_MISS_RESTORE);
	capture_at(seq, &p, STATES_USUAL, KVHOST_CAPTURE_EXISTS);
	assert_int_equal(kvhost_close(&seq), 0);
	states_rest(&s);
	spills = states_counter(&s, "ram_spills");
	assert_int_equal(kvhost_pool_detach(&s.e.pool), 0);
	assert_int_equal(kvctl(&s.d, "pool", "drop", "hybrid", NULL), 0);
	states_expect(&s, "ram_spills", spills + 1);
	look_at_tiers();
	assert_int_equal(said_number("tiers.1.used_bytes"), 0);
}

/* ---- too small ---- */

static uint32_t finds(uint32_t number)
{
	struct states_prompt p;

	states_usual(&p, number);
	return states_look_up(&s, &p).cached_tokens;
}

static void a_pool_whose_state_is_larger_than_ram_is_served_without(void **state)
{
	char text[128];

	(void)state;
	states_start(&s, STATES_CONFIG("8MiB", FLOOR), LARGE, 0);
	for (uint32_t i = 0; i < 4; i++)
		(void)states_serve_usual(&s, i);
	states_rest(&s);
	assert_int_equal(finds(0) + finds(1), 0);
	assert_int_equal(states_serve_usual(&s, 3).tier, KVHOST_DEVICE);
	states_expect(&s, "ram_spills", 0);
	states_expect(&s, "ram_images", 0);
	states_expect(&s, "ram_refused", 0);
	states_expect(&s, "checkpoint_discards", 2);
	(void)snprintf(text, sizeof(text), "a state with one page has %llu bytes, KV-RAM ",
		       (unsigned long long)(image_bytes() + s.e.info->page_stride));
	assert_int_equal(kvctl(&s.d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("no: a state with one page has "));
	assert_true(says(text));
	assert_int_equal(kvctl(&s.d, "health", NULL, NULL, NULL), 0);
	assert_true(says("pool hybrid: KV-RAM does not serve it: a state with one page has "));
	read_log(&s.d);
	assert_true(says(text));
	assert_true(says("warning: pool hybrid: KV-RAM does not serve it: a state with one page "));
	assert_true(says("; a larger kv_ram_bytes would change it"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(kvctl_tiers_shows_states_and_what_moved_of_them),
	    TEST(two_checkpoints_take_the_space_of_one_and_their_tails),
	    TEST(a_drop_takes_states_from_all_tiers),
	    TEST(a_drop_waits_for_images_on_their_way),
	    TEST(a_drop_at_any_point_takes_no_state_that_is_used),
	    TEST(a_pool_that_is_dropped_leaves_no_states_in_ram),
	    TEST(a_pool_is_freed_after_what_is_copied_while_its_states_go),
	    TEST(a_daemon_stops_well_whatever_states_are_in_ram),
	    TEST(a_pool_whose_state_is_larger_than_ram_is_served_without),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
