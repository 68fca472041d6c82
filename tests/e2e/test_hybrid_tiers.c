/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid_tiers: states of a hybrid pool that leave the device for KV-RAM and come back, every
 * row and every byte of their images compared; and that opens say what they found and where.
 * One thread, one daemon a test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/states.h"

#define STATE   10007
#define LARGE   (5u << 20) /* of three frames */
#define BLOCK   40         /* tokens of a system block: two pages and a part */
#define PREFIX  32         /* its end, floored */
#define NOTHING 0
#define LATEST  1 /* kinds of states */
#define SYSTEM  2

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

static void expect(struct kvhost_open_result found, uint32_t cached_tokens, uint32_t kind,
		   uint32_t tier, uint32_t miss)
{
	states_found(&found, cached_tokens, kind, tier, miss);
	assert_int_equal(found.restore_ns > 0, tier == KVHOST_KV_RAM);
}

/* ---- there and back ---- */

/* Five prompts of which the device keeps two, three times: each has left when it is wanted. */
static void come_back(uint64_t slots)
{
	uint64_t image_bytes, restore_ns = 0;

	for (uint32_t i = 0; i < 5; i++)
		expect(states_serve_usual(&s, i), 0, NOTHING, KVHOST_NO_TIER, KVHOST_MISS_NO_MATCH);
	states_rest(&s);
	states_expect(&s, "ram_pages", 3 * STATES_PAGES);
	states_expect(&s, "pool_pages_retained", 2 * STATES_PAGES);
	/* Without a slot an image lies in KV-RAM from the start. */
	states_expect(&s, "ram_images", slots ? 3 : 5);
	states_expect(&s, "retained_slots_used", slots ? 2 : 0);
	states_expect(&s, "ram_image_spills", slots ? 3 : 0);
	for (uint32_t i = 0; i < 10; i++) {
		struct kvhost_open_result found = states_serve_usual(&s, i % 5);

		expect(found, STATES_USUAL, LATEST, KVHOST_KV_RAM, KVHOST_MISS_NONE);
		restore_ns += found.restore_ns;
	}
	states_rest(&s);
	states_expect(&s, "ram_hits", 10);
	states_expect(&s, "checkpoint_claims", 10);
	states_expect(&s, "ram_image_restores", 10);
	states_expect(&s, "ram_restores", 10 * STATES_PAGES);
	/* What has a copy below already goes without a write. */
	states_expect(&s, "ram_spills", 5 * STATES_PAGES);
	states_expect(&s, "ram_releases", 8 * STATES_PAGES);
	states_expect(&s, "ram_image_spills", slots ? 5 : 0);
	states_expect(&s, "ram_images", 5);
	states_expect(&s, "retained_slots_used", 0);
	states_expect(&s, "checkpoint_discards", 0);
	states_expect(&s, "pool_discards", 0);
	/* A slot is as large as its sections with what aligns them, and an image in KV-RAM as it.
	 */
	image_bytes =
	    (states_counter(&s, "ram_bytes_used") - 5 * STATES_PAGES * s.e.info->page_stride) / 5;
	assert_int_equal(image_bytes, s.e.info->state_stride + s.e.info->ring_stride);
	assert_int_equal(states_counter(&s, "ram_bytes_up"),
			 10 * (STATES_PAGES * s.e.info->page_stride + image_bytes));
	assert_int_equal(states_counter(&s, "ram_bytes_down"),
			 5 * (STATES_PAGES * s.e.info->page_stride + image_bytes));
	/* Each open has waited for its pages and for its image. */
	assert_in_range(states_counter(&s, "ram_busy_up_ns"), 1, restore_ns);
}

static void states_come_back_from_ram_as_they_were(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR), STATE, 0);
	come_back(1);
}

static void states_of_a_mapped_pool_come_back_from_ram_as_they_were(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR ", \"map\": true"), STATE, 1);
	come_back(1);
}

static void images_of_several_frames_come_back_from_ram_as_they_were(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG("128MiB", STATES_NO_FLOOR), LARGE, 0);
	come_back(1);
}

static void without_slots_states_live_in_ram_from_the_start(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG("128MiB", STATES_NO_FLOOR ", \"retained_slots\": 0"), LARGE,
		     0);
	come_back(0);
}

/* On the device it needs no fetching, wherever its image lies. */
static void a_state_on_the_device_says_so(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR ", \"retained_slots\": 1"), STATE,
		     0);
	for (uint32_t i = 0; i < 2; i++)
		(void)states_serve_usual(&s, i);
	states_expect(&s, "retained_slots_used", 1);
	states_expect(&s, "ram_images", 1);
	for (uint32_t i = 0; i < 4; i++)
		expect(states_serve_usual(&s, i % 2), STATES_USUAL, LATEST, KVHOST_DEVICE,
		       KVHOST_MISS_NONE);
	states_rest(&s);
	states_expect(&s, "ram_pages", 0);
	states_expect(&s, "ram_hits", 0);
}

/* ---- conversations ---- */

/* A turn is four pages more; it ends inside a page, in `part` tokens of it. */
static void turn(struct states_prompt *p, uint32_t number, uint32_t turns, uint32_t part)
{
	states_make(p, number, BLOCK + turns * 4 * STATES_PAGE + part + 1, BLOCK,
		    BLOCK + turns * 4 * STATES_PAGE + part);
}

/* Each turn finds the one before, of which the others have left nothing on the device. */
static void conversations_that_push_each_other_out_find_their_last_turn(void **state)
{
	struct states_prompt p;

	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR), STATE, 0);
	for (uint32_t round = 1; round <= 3; round++) {
		for (uint32_t i = 0; i < 5; i++) {
			turn(&p, i, round, 5 * round);
			if (round > 1)
				expect(states_serve(&s, &p),
				       BLOCK + (round - 1) * 4 * STATES_PAGE + 5 * (round - 1),
				       LATEST, KVHOST_KV_RAM, KVHOST_MISS_DIVERGED);
			else
				expect(states_serve(&s, &p), i ? PREFIX : 0, i ? SYSTEM : NOTHING,
				       i ? KVHOST_DEVICE : KVHOST_NO_TIER,
				       i ? KVHOST_MISS_DIVERGED : KVHOST_MISS_NO_MATCH);
		}
	}
	states_rest(&s);
	/* Of each there is the last turn, and of all the block. */
	assert_int_equal(states_counter(&s, "checkpoint_captures") -
			     states_counter(&s, "checkpoint_discards"),
			 5);
	assert_int_equal(states_counter(&s, "checkpoint_discards"),
			 states_counter(&s, "captures_replaced"));
	assert_int_equal(states_counter(&s, "prefix_captures"), 1);
	assert_int_equal(states_counter(&s, "prefix_discards"), 0);
	for (uint32_t i = 0; i < 5; i++) {
		turn(&p, i, 3, 15);
		expect(states_serve(&s, &p), BLOCK + 12 * STATES_PAGE + 15, LATEST, KVHOST_KV_RAM,
		       KVHOST_MISS_NONE);
	}
	states_rest(&s);
}

/* What a sibling has in common is a state of its own, at the end of the block, floored. */
static void a_system_block_comes_back_for_siblings(void **state)
{
	struct states_prompt p;

	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR), STATE, 0);
	states_make(&p, 1, 120, BLOCK, 0);
	expect(states_serve(&s, &p), 0, NOTHING, KVHOST_NO_TIER, KVHOST_MISS_NO_MATCH);
	states_make(&p, 2, 120, BLOCK, 0);
	expect(states_serve(&s, &p), PREFIX, SYSTEM, KVHOST_DEVICE, KVHOST_MISS_DIVERGED);
	/* Two system blocks that fill the device. */
	for (uint32_t i = 0; i < 2; i++) {
		engine_tokens(p.tokens, STATES_USUAL + 1, 0, 50 + i);
		p.prompt.n_tokens = STATES_USUAL + 1;
		p.prompt.system_end_tokens = STATES_USUAL;
		expect(states_serve(&s, &p), 0, NOTHING, KVHOST_NO_TIER, KVHOST_MISS_NO_MATCH);
	}
	states_rest(&s);
	states_make(&p, 3, 120, BLOCK, 0);
	expect(states_serve(&s, &p), PREFIX, SYSTEM, KVHOST_KV_RAM, KVHOST_MISS_DIVERGED);
	states_rest(&s);
}

static void a_lookup_says_the_tier_of_a_state_and_moves_nothing(void **state)
{
	struct states_prompt p;

	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR), STATE, 0);
	for (uint32_t i = 0; i < 3; i++)
		(void)states_serve_usual(&s, i);
	states_rest(&s);
	for (int i = 0; i < 50; i++) {
		for (uint32_t number = 0; number < 4; number++) {
			struct kvhost_open_result found;

			states_usual(&p, number);
			found = states_look_up(&s, &p);
			if (number == 3)
				states_found(&found, 0, NOTHING, KVHOST_NO_TIER,
					     KVHOST_MISS_NO_MATCH);
			else
				states_found(&found, STATES_USUAL, LATEST,
					     number ? KVHOST_DEVICE : KVHOST_KV_RAM,
					     KVHOST_MISS_NONE);
			assert_int_equal(found.restore_ns, 0);
		}
	}
	states_expect(&s, "pool_lookups", 200);
	states_expect(&s, "pool_lookup_hits", 150);
	states_expect(&s, "ram_restores", 0);
	states_expect(&s, "ram_image_restores", 0);
	states_expect(&s, "ram_hits", 0);
	states_rest(&s);
}

/* ---- less than all ---- */

/* The state at the opener leaves, the one of the block stays: it goes last. */
static void push_out(struct states_prompt *p, uint32_t number, uint32_t opener)
{
	states_make(p, number, opener + 1, BLOCK, opener);
	(void)states_serve(&s, p);
	(void)states_serve_usual(&s, 100 + number);
	(void)states_serve_usual(&s, 200 + number);
	states_rest(&s);
}

static void below_the_floor_no_state_is_fetched(void **state)
{
	struct states_prompt p;

	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", ", \"ram_floor_tokens\": 64"), STATE, 0);
	push_out(&p, 1, PREFIX + 63);
	expect(states_serve(&s, &p), PREFIX, SYSTEM, KVHOST_DEVICE, KVHOST_MISS_FLOOR);
	states_expect(&s, "pool_misses_floor", 1);
	states_expect(&s, "ram_image_restores", 0);
	push_out(&p, 2, PREFIX + 64);
	expect(states_serve(&s, &p), PREFIX + 64, LATEST, KVHOST_KV_RAM, KVHOST_MISS_NONE);
	states_expect(&s, "pool_misses_floor", 1);
	states_expect(&s, "ram_image_restores", 1);
	states_rest(&s);
}

static void a_client_that_wants_less_gets_the_state_before(void **state)
{
	struct states_prompt p;

	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR), STATE, 0);
	push_out(&p, 1, STATES_USUAL);
	p.prompt.max_cached_tokens = STATES_USUAL - 1;
	expect(states_serve(&s, &p), PREFIX, SYSTEM, KVHOST_DEVICE, KVHOST_MISS_GONE);
	states_expect(&s, "ram_image_restores", 0);
	p.prompt.max_cached_tokens = STATES_USUAL;
	expect(states_serve(&s, &p), STATES_USUAL, LATEST, KVHOST_DEVICE, KVHOST_MISS_NONE);
	states_rest(&s);
}

/* ---- forks of what came back ---- */

static void what_came_back_can_be_forked_and_captured_again(void **state)
{
	struct kvhost_sequence *seq = NULL, *fork = NULL;
	struct kvhost_open_result found;
	struct states_prompt p, other;

	(void)state;
	states_start(&s, STATES_CONFIG("64MiB", STATES_NO_FLOOR), STATE, 0);
	states_make(&p, 1, 200, 0, 150);
	(void)states_serve(&s, &p);
	for (uint32_t i = 10; i < 12; i++)
		(void)states_serve_usual(&s, i);
	states_rest(&s);
	other = p;
	other.prompt.tokens = other.tokens;
	for (uint32_t i = 150; i < 200; i++)
		other.tokens[i] += 7000000;
	p.prompt.max_tokens = 220;
	assert_int_equal(kvhost_open(s.e.pool, &p.prompt, &seq, &found), 0);
	expect(found, 150, LATEST, KVHOST_KV_RAM, KVHOST_MISS_DIVERGED);
	assert_int_equal(hybrid_checkpoint(seq), KVHOST_CAPTURE_EXISTS);
	assert_int_equal(kvhost_fork(seq, 220, &fork), 0);
	hybrid_compute(&s.e, seq, p.tokens, 170);
	assert_true(hybrid_has(&s.e, fork, p.tokens, 150));
	hybrid_compute(&s.e, fork, other.tokens, 180);
	assert_true(hybrid_has(&s.e, seq, p.tokens, 170));
	assert_true(hybrid_has(&s.e, fork, other.tokens, 180));
	assert_int_equal(kvhost_close(&fork), 0);
	assert_int_equal(hybrid_checkpoint(seq), KVHOST_CAPTURE_MADE);
	assert_int_equal(kvhost_close(&seq), 0);
	for (uint32_t i = 10; i < 12; i++)
		(void)states_serve_usual(&s, i);
	states_rest(&s);
	/* It went on from there: that is the latest now. */
	expect(states_serve(&s, &p), 170, LATEST, KVHOST_KV_RAM, KVHOST_MISS_DIVERGED);
	states_rest(&s);
}

/* ---- several at once ---- */

#define CLIENTS 4

/* Conversations that others have, too, and some that nobody has; each is looked at when found. */
static void converse(uint32_t who, uint32_t rounds)
{
	struct states mine = {.d = s.d};
	struct states_prompt p;

	hybrid_start(&mine.e, s.d.socket, "hybrid", STATE, 0);
	for (uint32_t i = 0; i < rounds; i++) {
		uint32_t number = i % 4 ? (i * 7 + who) % 5 : 100 * (who + 1) + i / 4;

		turn(&p, number, 1 + (i / 5) % 3, 5 * (i % 3));
		p.prompt.user_end_tokens = i % 2 ? p.prompt.opener_tokens : 0;
		(void)states_serve(&mine, &p);
	}
	engine_stop(&mine.e);
}

static void clients_find_each_others_states_as_they_were(void **state)
{
	uint32_t rounds = is_long() ? 2000 : 60;
	pid_t child[CLIENTS];

	(void)state;
	/* KV-RAM has room for some of them: two frames. */
	states_start(&s, STATES_CONFIG("10MiB", STATES_NO_FLOOR ", \"retained_slots\": 2"), STATE,
		     0);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		child[i] = fork_client();
		if (child[i] == 0) {
			converse(i, rounds);
			_exit(0);
		}
	}
	for (uint32_t i = 0; i < CLIENTS; i++)
		assert_int_equal(await_child(child[i], 3 * LONG_MS), 0);
	states_rest(&s);
	assert_true(states_counter(&s, "ram_image_restores") > rounds / 2);
	assert_true(states_counter(&s, "ram_displaced") > 0);
	assert_int_equal(states_counter(&s, "pool_misses_restore"), 0);
}

/* ---- a whole engine ---- */

static void run_toy(const char *json, char *said, size_t bytes)
{
	char *const argv[] = {
	    "examples/toy/hybrid", "--socket", s.d.socket, "--pool", "hybrid", NULL};

	daemon_start(&s.d, json);
	if (run_program(argv, said, bytes, LONG_MS) != 0)
		fail_msg("%s", said);
}

/* What it says, and what it is told, is what a pool with room for everything gives it. */
static void a_hybrid_engine_does_not_notice_that_its_states_were_in_ram(void **state)
{
	static char with_room[16384], with_ram[16384];

	(void)state;
	run_toy("{\"pools\": [" HYBRID_POOL("hybrid", ", \"retained_slots\": 64,"
						      " \"map\": true") "]}\n",
		with_room, sizeof(with_room));
	daemon_remove(&s.d);
	run_toy(STATES_CONFIG("64MiB", STATES_NO_FLOOR ", \"map\": true"), with_ram,
		sizeof(with_ram));
	assert_non_null(strstr(with_room, " 0 captures skipped, 0 outputs differ"));
	assert_string_equal(with_room, with_ram);
	assert_true(states_counter(&s, "ram_image_restores") > 8);
	assert_true(states_counter(&s, "ram_image_spills") > 0);
	assert_int_equal(states_counter(&s, "checkpoint_discards"),
			 states_counter(&s, "captures_replaced"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(states_come_back_from_ram_as_they_were),
	    TEST(states_of_a_mapped_pool_come_back_from_ram_as_they_were),
	    TEST(images_of_several_frames_come_back_from_ram_as_they_were),
	    TEST(without_slots_states_live_in_ram_from_the_start),
	    TEST(a_state_on_the_device_says_so),
	    TEST(conversations_that_push_each_other_out_find_their_last_turn),
	    TEST(a_system_block_comes_back_for_siblings),
	    TEST(a_lookup_says_the_tier_of_a_state_and_moves_nothing),
	    TEST(below_the_floor_no_state_is_fetched),
	    TEST(a_client_that_wants_less_gets_the_state_before),
	    TEST(what_came_back_can_be_forked_and_captured_again),
	    TEST(clients_find_each_others_states_as_they_were),
	    TEST(a_hybrid_engine_does_not_notice_that_its_states_were_in_ram),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
