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

#include "tests/e2e/hybrid.h"
#include "tests/e2e/live.h"

#define STATE 6000

static struct live l;
static struct live_sequence low, first, second;

static void start_hybrid(struct engine *e, const char *socket)
{
	hybrid_start(e, socket, LIVE_POOL, STATE, 0);
}

static void start(const char *failpoint)
{
	static const struct live_kind hybrid = {
	    .start = start_hybrid, .compute = hybrid_compute, .has = hybrid_has};

	live_start(&l, &hybrid,
		   LIVE_CONFIG(LIVE_RAM("64MiB"), ", \"lanes\": 6, \"retained_slots\": 2,"
						  " \"live_in_ram\": true"),
		   failpoint);
}

static int teardown(void **state)
{
	(void)state;
	live_stop(&l);
	return 0;
}

static void capture(struct live_sequence *c)
{
	assert_int_equal(hybrid_checkpoint(c->seq), KVHOST_CAPTURE_MADE);
}

/* Two that rank above have what they may have; the lowest has captured a state inside a page on the
 * way, and one near its end: the rest of that page is its alone. */
static void push_out(void)
{
	live_begin(&low, &l.mine, 1, KVHOST_AGENT);
	live_go_on(&l, &low, 5 * LIVE_PAGE + 3);
	capture(&low);
	live_go_on(&l, &low, LIVE_SHORT);
	capture(&low);
	live_go_on(&l, &low, LIVE_SHORT + 2);
	live_begin(&first, &l.others, 2, KVHOST_INTERACTIVE);
	live_go_on(&l, &first, LIVE_MOST);
	live_begin(&second, &l.others, 3, KVHOST_INTERACTIVE);
	assert_int_equal(live_counter(&l, "live_pages_parked"), 0);
	live_go_on(&l, &second, LIVE_MOST);
	live_expect_at_least(&l, "live_pages_parked", LIVE_MOST_PAGES - 2);
	live_expect(&l, "ram_places_live", 1);
}

static void a_sequence_makes_room_and_goes_on_as_it_was(void **state)
{
	uint32_t tier;

	(void)state;
	start(NULL);
	push_out();
	assert_true(live_has(&l, &first, LIVE_MOST));
	live_end(&second);
	assert_true(live_has(&l, &low, LIVE_SHORT + 2));
	live_go_on(&l, &low, LIVE_MOST);
	live_expect(&l, "live_sequences_lost", 0);
	live_expect_at_least(&l, "live_pages_returned", 1);
	assert_true(live_has(&l, &first, LIVE_MOST));
	live_end(&low);
	live_end(&first);
	live_expect_nothing_used(&l);
	/* Its states are where they were: it is computed from the last one on. */
	for (tier = 0; tier < 2; tier++) {
		struct kvhost_prompt prompt = {.tokens = low.tokens, .n_tokens = LIVE_MOST};
		struct kvhost_open_result found = hybrid_serve(&l.mine, &prompt);

		assert_int_equal(found.cached_tokens, LIVE_SHORT);
	}
	live_expect_nothing_used(&l);
}

/* What works on its pages waits until they are back: here, until somebody leaves. */
static void a_checkpoint_waits_for_the_pages(void **state)
{
	struct kvhost_prompt prompt;

	(void)state;
	start(NULL);
	live_begin(&low, &l.mine, 1, KVHOST_AGENT);
	live_go_on(&l, &low, LIVE_SHORT);
	live_begin(&first, &l.others, 2, KVHOST_INTERACTIVE);
	live_go_on(&l, &first, LIVE_MOST);
	live_begin(&second, &l.others, 3, KVHOST_INTERACTIVE);
	live_go_on(&l, &second, LIVE_MOST);
	live_expect_at_least(&l, "live_pages_parked", 1);
	live_end(&first);
	capture(&low);
	live_end(&low);
	live_end(&second);
	live_expect_nothing_used(&l);
	prompt = (struct kvhost_prompt){.tokens = low.tokens, .n_tokens = LIVE_MOST};
	assert_int_equal(hybrid_serve(&l.mine, &prompt).cached_tokens, LIVE_SHORT);
}

/* A page of it cannot be read: it alone is lost. */
static void what_cannot_be_read_is_its_own_loss(void **state)
{
	struct kvhost_step step;
	char byte;

	(void)state;
	start("KVHOST_TEST_FAILPOINT=ram_restore:2:1");
	push_out();
	live_end(&second);
	assert_int_equal(kvhost_step_begin(low.seq, LIVE_MOST, 0, &step), KVHOST_ELOST);
	assert_int_equal(kvhost_step_begin(low.seq, LIVE_MOST, 0, &step), KVHOST_ELOST);
	assert_int_equal(kvhost_image_read(low.seq, NULL, HYBRID_STATE_SECTION, 0, &byte, 1),
			 KVHOST_ELOST);
	live_expect(&l, "live_sequences_lost", 1);
	assert_true(live_has(&l, &first, LIVE_MOST));
	live_end(&low);
	live_end(&first);
	live_expect_nothing_used(&l);
	for (int i = 0; i < 2; i++) {
		struct kvhost_prompt prompt = {.tokens = low.tokens, .n_tokens = LIVE_MOST};

		assert_true(hybrid_serve(&l.mine, &prompt).cached_tokens <= LIVE_SHORT);
	}
	live_expect_nothing_used(&l);
}

/* Its client is gone with its pages in both tiers; what it captured can be had. */
static void a_client_that_leaves_leaves_its_states(void **state)
{
	struct kvhost_prompt prompt = {.tokens = low.tokens, .n_tokens = LIVE_MOST};

	(void)state;
	start(NULL);
	push_out();
	engine_stop(&l.mine);
	live_expect(&l, "pool_sequences", 2);
	live_expect(&l, "ram_places_live", 0);
	assert_true(live_has(&l, &first, LIVE_MOST));
	assert_true(live_has(&l, &second, LIVE_MOST));
	live_end(&first);
	live_end(&second);
	hybrid_start(&l.mine, l.d.socket, LIVE_POOL, STATE, 0);
	live_expect_nothing_used(&l);
	assert_int_equal(hybrid_serve(&l.mine, &prompt).cached_tokens, LIVE_SHORT);
}

/* ---- several at once ---- */

#define CLIENTS 3

static void converse(uint32_t who, uint32_t rounds)
{
	struct engine e;

	hybrid_start(&e, l.d.socket, LIVE_POOL, STATE, 0);
	for (uint32_t i = 0; i < rounds; i++) {
		struct kvhost_prompt prompt = {.n_tokens = LIVE_MOST - (i % 7)};
		struct kvhost_open_result found;
		struct kvhost_sequence *seq;
		uint32_t tokens[LIVE_MOST], at;

		engine_tokens(tokens, LIVE_MOST, i % 3 ? 0 : 40, i % 4 ? 100 * who + i : 7);
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
	live_expect_nothing_used(&l);
	live_expect(&l, "live_sequences_lost", 0);
	assert_true(live_counter(&l, "live_pages_returned") <=
		    live_counter(&l, "live_pages_parked"));
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
