/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid_tiers_failures: states in KV-RAM of which something cannot be copied: what an open
 * gets instead, what it is told, and that nobody else notices. One thread, one daemon a scene.
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

#include "tests/e2e/states.h"

#define STATE  10007
#define LARGE  (6u << 20)
#define BLOCK  40 /* tokens of the system block */
#define PREFIX 32 /* its end, floored: two pages */
#define USER   100
#define LATEST 150
#define N      170
#define OTHERS 10

#define CHECKPOINT 1
#define SYSTEM     2

static const char config[] = STATES_CONFIG("64MiB", STATES_NO_FLOOR);

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
	if (s.d.folder[0] && s.d.environment)
		print_message("# %s\n", s.d.environment);
	states_stop(&s);
	return 0;
}

static void begin(const char *failpoint, unsigned skip, unsigned times)
{
	static char variable[96];

	(void)snprintf(variable, sizeof(variable), "KVHOST_TEST_FAILPOINT=%s:%u:%u", failpoint,
		       skip, times);
	s.d.program = "tests/hostile/kvhostd_test";
	s.d.environment = variable;
	states_start(&s, config, STATE, 0);
}

/* Three states of one conversation: at the end of the block, of the last user message, and of what
 * the model has said; the last two lie inside pages. */
static void converse(struct states_prompt *p, uint32_t number)
{
	const uint32_t points[] = {PREFIX, USER, LATEST};
	struct kvhost_sequence *seq = NULL;

	states_make(p, number, N, BLOCK, 0);
	p->prompt.user_end_tokens = USER;
	assert_int_equal(kvhost_open(s.e.pool, &p->prompt, &seq, NULL), 0);
	for (int i = 0; i < 3; i++) {
		if (points[i] <= kvhost_committed(seq))
			continue;
		hybrid_compute(&s.e, seq, p->tokens, points[i]);
		assert_in_range(hybrid_checkpoint(seq), KVHOST_CAPTURE_MADE, KVHOST_CAPTURE_EXISTS);
	}
	assert_int_equal(kvhost_close(&seq), 0);
}

/* Both checkpoints leave for KV-RAM; the state of the block stays, since it goes last. */
static void push_out(void)
{
	(void)states_serve_usual(&s, OTHERS);
	(void)states_serve_usual(&s, OTHERS + 1);
	states_rest(&s);
}

static struct kvhost_open_result serve_again(const struct states_prompt *p)
{
	struct kvhost_open_result found = states_serve(&s, p);

	states_rest(&s);
	return found;
}

/* Those of another conversation are as they were. */
static void expect_others(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct kvhost_open_result found = states_serve_usual(&s, OTHERS + i);

		assert_int_equal(found.cached_tokens, STATES_USUAL);
		assert_int_equal(found.miss, KVHOST_MISS_NONE);
	}
	states_rest(&s);
}

/* ---- does not come back ---- */

/* The page with this number does not arrive, and what stands on it is of no use without it. */
static void lose_page(uint32_t page, uint32_t cached, uint32_t kind, uint32_t tier)
{
	struct kvhost_open_result found;
	struct states_prompt p;

	begin("ram_restore", page - PREFIX / STATES_PAGE, 1);
	converse(&p, 1);
	push_out();
	found = serve_again(&p);
	states_found(&found, cached, kind, tier, KVHOST_MISS_RESTORE);
	states_expect(&s, "pool_misses_restore", 1);
	assert_true(states_counter(&s, "ram_restores_failed") > 0);
	states_expect(&s, "ram_image_restores_failed", 0);
	expect_others();
	states_expect(&s, "pool_misses_restore", 1);
	/* What was computed anew has taken the place of what could not be read. */
	converse(&p, 1);
	push_out();
	found = serve_again(&p);
	states_found(&found, LATEST, CHECKPOINT, KVHOST_KV_RAM, KVHOST_MISS_DIVERGED);
	states_expect(&s, "pool_misses_restore", 1);
	states_stop(&s);
}

static void a_page_that_does_not_come_leaves_the_state_before_it(void **state)
{
	(void)state;
	for (uint32_t page = 2; page < 6; page++)
		lose_page(page, PREFIX, SYSTEM, KVHOST_DEVICE);
	/* The state after the user's message ends in page 6, which is one of its own. */
	for (uint32_t page = 6; page <= LATEST / STATES_PAGE; page++)
		lose_page(page, USER, CHECKPOINT, KVHOST_KV_RAM);
}

/* Its image does not come, nor those of the states before it. */
static void lose_images(unsigned times, uint32_t cached, uint32_t kind, uint32_t tier)
{
	struct kvhost_open_result found;
	struct states_prompt p;

	begin("ram_image", 0, times);
	converse(&p, 1);
	push_out();
	states_expect(&s, "ram_images", 3);
	found = serve_again(&p);
	states_found(&found, cached, kind, tier, KVHOST_MISS_RESTORE);
	states_expect(&s, "pool_misses_restore", 1);
	states_expect(&s, "ram_image_restores_failed", times);
	states_expect(&s, "ram_restores_failed", 0);
	/* Those are known no more, and so is their place. */
	states_expect(&s, "checkpoint_discards", times);
	found = states_look_up(&s, &p);
	assert_int_equal(found.cached_tokens, cached);
	assert_int_not_equal(found.miss, KVHOST_MISS_RESTORE);
	expect_others();
	converse(&p, 1);
	push_out();
	found = serve_again(&p);
	states_found(&found, LATEST, CHECKPOINT, KVHOST_KV_RAM, KVHOST_MISS_DIVERGED);
	states_expect(&s, "pool_misses_restore", 1);
	states_stop(&s);
}

static void an_image_that_does_not_come_leaves_the_state_before_it(void **state)
{
	(void)state;
	lose_images(1, USER, CHECKPOINT, KVHOST_KV_RAM);
	lose_images(2, PREFIX, SYSTEM, KVHOST_DEVICE);
}

static void without_a_state_before_it_all_is_computed(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	begin("ram_image", 0, 1);
	for (uint32_t i = 0; i < 3; i++)
		(void)states_serve_usual(&s, i);
	states_rest(&s);
	found = states_serve_usual(&s, 0);
	states_found(&found, 0, 0, KVHOST_NO_TIER, KVHOST_MISS_RESTORE);
	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(states_serve_usual(&s, i % 3).cached_tokens, STATES_USUAL);
	states_rest(&s);
	states_expect(&s, "pool_misses_restore", 1);
}

/* Its pages are on the device, and its image is in KV-RAM. */
static void an_image_that_does_not_come_takes_a_state_on_the_device_with_it(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	s.d.program = "tests/hostile/kvhostd_test";
	s.d.environment = "KVHOST_TEST_FAILPOINT=ram_image:1:1"; /* behind its capture */
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR ", \"retained_slots\": 0"), STATE,
		     0);
	(void)states_serve_usual(&s, 0);
	found = states_serve_usual(&s, 0);
	states_found(&found, 0, 0, KVHOST_NO_TIER, KVHOST_MISS_RESTORE);
	states_expect(&s, "ram_image_restores_failed", 1);
	found = states_serve_usual(&s, 0);
	states_found(&found, STATES_USUAL, CHECKPOINT, KVHOST_DEVICE, KVHOST_MISS_NONE);
	states_rest(&s);
	states_expect(&s, "checkpoint_discards", 1);
}

static int result_of(kvhost_ticket ticket)
{
	struct kvhost_finished finished;

	assert_int_equal(kvhost_wait(s.e.host, ticket, LONG_MS * 1000ull * PATIENCE, &finished), 0);
	return finished.result;
}

/* Three opens at the same time; a page that the first two want does not come. */
static void who_fetches_at_the_same_time_gets_all(void **state)
{
	struct kvhost_sequence *seq[3] = {NULL};
	struct kvhost_open_result found[3];
	struct states_prompt p[3];
	kvhost_ticket tickets[3];

	(void)state;
	begin("ram_restore", LATEST / STATES_PAGE - PREFIX / STATES_PAGE, 1);
	converse(&p[0], 1);
	p[1] = p[0];
	p[1].prompt.tokens = p[1].tokens;
	states_usual(&p[2], OTHERS);
	push_out();
	for (int i = 0; i < 3; i++)
		assert_int_equal(kvhost_submit_open(s.e.pool, &p[i].prompt, &seq[i], &found[i],
						    NULL, &tickets[i]),
				 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(result_of(tickets[i]), 0);
	states_found(&found[0], USER, CHECKPOINT, KVHOST_KV_RAM, KVHOST_MISS_RESTORE);
	/* The second has waited for it as well, or came when it had failed. */
	assert_int_equal(found[1].cached_tokens, USER);
	states_found(&found[2], STATES_USUAL, CHECKPOINT, KVHOST_KV_RAM, KVHOST_MISS_NONE);
	for (int i = 0; i < 3; i++) {
		assert_true(hybrid_has(&s.e, seq[i], p[i].tokens, found[i].cached_tokens));
		assert_int_equal(kvhost_close(&seq[i]), 0);
	}
	states_rest(&s);
}

/* ---- is not waited for ---- */

/* Wherever an open that fetches a state is when its time is over, or when it is cancelled. */
static void an_open_that_ends_while_its_state_comes_leaves_nothing_behind(void **state)
{
	unsigned tries = is_long() ? 1000 : 60, ended = 0;

	(void)state;
	states_start(&s, STATES_CONFIG("192MiB", STATES_NO_FLOOR), LARGE, 0);
	for (uint32_t i = 0; i < 5; i++)
		(void)states_serve_usual(&s, i);
	for (unsigned i = 0; i < tries; i++) {
		struct kvhost_sequence *seq = NULL;
		struct kvhost_open_result found;
		struct states_prompt p;
		kvhost_ticket ticket;
		int result;

		states_usual(&p, i % 5);
		if (i % 2)
			p.prompt.deadline_us = 1 + (i % 30) * (i % 30) * 200;
		assert_int_equal(
		    kvhost_submit_open(s.e.pool, &p.prompt, &seq, &found, NULL, &ticket), 0);
		for (unsigned k = 0; k < i % 30 && i % 2 == 0; k++)
			assert_int_equal(kvhost_ping(s.e.host), 0);
		if (i % 2 == 0)
			(void)kvhost_cancel(s.e.host, ticket);
		result = result_of(ticket);
		if (result == 0) {
			assert_true(hybrid_has(&s.e, seq, p.tokens, STATES_USUAL));
			assert_int_equal(kvhost_close(&seq), 0);
			continue;
		}
		assert_int_equal(result, i % 2 ? KVHOST_ETIMEDOUT : KVHOST_ECANCELLED);
		ended++;
	}
	assert_in_range(ended, 1, tries - 1);
	states_rest(&s);
	states_expect(&s, "checkpoint_discards", 0);
	states_expect(&s, "pool_discards", 0);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(states_serve_usual(&s, i).cached_tokens, STATES_USUAL);
	states_rest(&s);
}

/* ---- does not arrive there ---- */

/* Its pages went first, ten of them, and have left: without its image they are for nothing. */
static void a_state_whose_image_does_not_arrive_is_lost_and_no_other(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	begin("ram_spill", STATES_PAGES, 1);
	for (uint32_t i = 0; i < 3; i++)
		(void)states_serve_usual(&s, i);
	states_rest(&s);
	states_expect(&s, "ram_image_spills_failed", 1);
	states_expect(&s, "ram_spills_failed", 0);
	states_expect(&s, "checkpoint_discards", 1);
	states_expect(&s, "ram_images", 0);
	states_expect(&s, "ram_bytes_used", 0);
	found = states_serve_usual(&s, 0);
	states_found(&found, 0, 0, KVHOST_NO_TIER, KVHOST_MISS_NO_MATCH);
	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(states_serve_usual(&s, i % 3).cached_tokens, STATES_USUAL);
	states_rest(&s);
	states_expect(&s, "ram_image_spills_failed", 1);
}

/* Of each page in turn: what is served is right, whatever was lost. */
static void pages_of_states_that_do_not_arrive_harm_nobody(void **state)
{
	(void)state;
	for (unsigned page = 0; page < STATES_PAGES; page++) {
		begin("ram_spill", page, 1);
		for (uint32_t i = 0; i < 3; i++)
			(void)states_serve_usual(&s, i);
		states_rest(&s);
		states_expect(&s, "ram_spills_failed", 1);
		for (uint32_t i = 0; i < 9; i++) {
			struct kvhost_open_result found = states_serve_usual(&s, i % 3);

			if (i >= 3)
				assert_int_equal(found.cached_tokens, STATES_USUAL);
		}
		states_rest(&s);
		states_expect(&s, "ram_spills_failed", 1);
		states_stop(&s);
	}
}

/* A capture that finds no slot goes to KV-RAM; if that fails it is skipped, like one without room.
 */
static void a_capture_into_ram_that_fails_is_skipped(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	s.d.program = "tests/hostile/kvhostd_test";
	s.d.environment = "KVHOST_TEST_FAILPOINT=ram_image:0:1";
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR ", \"retained_slots\": 0"), STATE,
		     0);
	(void)states_serve_usual(&s, 0);
	states_rest(&s);
	states_expect(&s, "capture_skips_no_slot", 1);
	states_expect(&s, "checkpoint_captures", 0);
	states_expect(&s, "ram_images", 0);
	states_expect(&s, "ram_bytes_used", 0);
	found = states_serve_usual(&s, 0);
	states_found(&found, 0, 0, KVHOST_NO_TIER, KVHOST_MISS_NO_MATCH);
	found = states_serve_usual(&s, 0);
	states_found(&found, STATES_USUAL, CHECKPOINT, KVHOST_DEVICE, KVHOST_MISS_NONE);
	states_rest(&s);
}

/* ---- clients that die ---- */

/* Serves one prompt after the other until it is killed. */
static _Noreturn void serve_for_ever(void)
{
	struct states_prompt p;
	struct kvhost_sequence *seq;
	struct states mine = {.d = s.d};

	hybrid_start(&mine.e, mine.d.socket, "hybrid", LARGE, 0);
	for (uint32_t i = 0;; i++) {
		states_usual(&p, i % 5);
		if (kvhost_open(mine.e.pool, &p.prompt, &seq, NULL))
			_exit(1);
		if (kvhost_committed(seq) == 0) {
			hybrid_compute(&mine.e, seq, p.tokens, STATES_USUAL);
			(void)hybrid_checkpoint(seq);
		}
		if (kvhost_close(&seq))
			_exit(2);
	}
}

struct moved {
	const char *name;
	uint64_t before;
};

static bool has_moved(void *context)
{
	const struct moved *m = context;

	return states_counter(&s, m->name) > m->before;
}

/* Kill a client right after a counter has moved: it is at the next copy of that kind by then. */
static void kill_after(const char *name)
{
	struct moved m = {name, states_counter(&s, name)};
	pid_t child = fork_client();

	if (child == 0)
		serve_for_ever();
	assert_true(await(has_moved, &m, LONG_MS));
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_true(WIFSIGNALED(await_child(child, LONG_MS)));
	states_rest(&s);
}

static void expect_all_right(void)
{
	for (uint32_t i = 0; i < 5; i++)
		(void)states_serve_usual(&s, i);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(states_serve_usual(&s, i).cached_tokens, STATES_USUAL);
	states_rest(&s);
}

static void a_client_that_dies_while_a_state_comes_back_leaves_nothing_behind(void **state)
{
	unsigned kills = is_long() ? 100 : 10;

	(void)state;
	states_start(&s, STATES_CONFIG("192MiB", STATES_NO_FLOOR), LARGE, 0);
	for (uint32_t i = 0; i < 5; i++)
		(void)states_serve_usual(&s, i);
	for (unsigned i = 0; i < kills; i++)
		kill_after(i % 2 ? "ram_image_restores" : "ram_restores");
	states_expect(&s, "checkpoint_discards", 0);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(states_serve_usual(&s, i).cached_tokens, STATES_USUAL);
	states_rest(&s);
	states_expect(&s, "pool_discards", 0);
}

/* Without slots each capture goes to KV-RAM; what an operator drops has to be captured again. */
static void a_client_that_dies_in_a_capture_into_ram_leaves_nothing_behind(void **state)
{
	unsigned kills = is_long() ? 100 : 10;

	(void)state;
	states_start(&s, STATES_CONFIG("192MiB", STATES_NO_FLOOR ", \"retained_slots\": 0"), LARGE,
		     0);
	for (unsigned i = 0; i < kills; i++) {
		char *answer = NULL;

		kill_after("checkpoint_captures");
		assert_int_equal(kvhost_ask(s.e.host, "drop", "", &answer), 0);
		free(answer);
		states_expect(&s, "ram_images", 0);
		states_expect(&s, "ram_bytes_used", 0);
	}
	expect_all_right();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_page_that_does_not_come_leaves_the_state_before_it),
	    TEST(an_image_that_does_not_come_leaves_the_state_before_it),
	    TEST(without_a_state_before_it_all_is_computed),
	    TEST(an_image_that_does_not_come_takes_a_state_on_the_device_with_it),
	    TEST(who_fetches_at_the_same_time_gets_all),
	    TEST(an_open_that_ends_while_its_state_comes_leaves_nothing_behind),
	    TEST(a_state_whose_image_does_not_arrive_is_lost_and_no_other),
	    TEST(pages_of_states_that_do_not_arrive_harm_nobody),
	    TEST(a_capture_into_ram_that_fails_is_skipped),
	    TEST(a_client_that_dies_while_a_state_comes_back_leaves_nothing_behind),
	    TEST(a_client_that_dies_in_a_capture_into_ram_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
