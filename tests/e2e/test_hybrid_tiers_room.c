/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid_tiers_room: who makes room in KV-RAM when it is full: states for each other, for
 * pages of another pool, and within the quota of a namespace. One thread, one daemon a test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/tier/ram.h"
#include "tests/e2e/states.h"

#define LARGE     STATES_LARGE
#define FLOOR     STATES_NO_FLOOR
#define NO_SLOTS  FLOOR ", \"retained_slots\": 0"
#define LRU       ", \"retained_order\": \"lru\""
#define FEW_LARGE "64MiB" /* room for four images of that size */

static struct states s;
static struct engine dense;

static int setup(void **state)
{
	(void)state;
	s = (struct states){0};
	dense = (struct engine){0};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&dense);
	states_stop(&s);
	return 0;
}

/* The right to it is that of who started the daemon. */
static struct kvhost_open_result serve_as(uint32_t number, uint32_t priority)
{
	struct states_prompt p;

	states_usual(&p, number);
	p.prompt.priority = priority;
	return states_serve(&s, &p);
}

static uint32_t finds(uint32_t number)
{
	struct states_prompt p;

	states_usual(&p, number);
	return states_look_up(&s, &p).cached_tokens;
}

static void a_capture_that_ranks_below_all_of_ram_is_skipped(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG(FEW_LARGE, NO_SLOTS LRU), LARGE, 0);
	for (uint32_t i = 0; i < 4; i++)
		(void)serve_as(i, KVHOST_INTERACTIVE);
	states_rest(&s);
	states_expect(&s, "ram_images", 4);
	(void)serve_as(10, KVHOST_AGENT);
	states_rest(&s);
	states_expect(&s, "capture_skips_no_slot", 1);
	states_expect(&s, "ram_displaced", 0);
	assert_int_equal(finds(10), 0);
	/* Another interactive one takes the place of the one that has waited longest. */
	(void)serve_as(11, KVHOST_INTERACTIVE);
	states_rest(&s);
	states_expect(&s, "ram_displaced", 1);
	states_expect(&s, "checkpoint_discards", 1);
	assert_int_equal(finds(0), 0);
	/* These have come back: from now on they go after what has not. */
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(serve_as(i % 4 ? i % 4 : 11, KVHOST_AGENT).cached_tokens,
				 STATES_USUAL);
	(void)serve_as(12, KVHOST_INTERACTIVE);
	states_rest(&s);
	states_expect(&s, "capture_skips_no_slot", 2);
	states_expect(&s, "ram_displaced", 1);
	states_expect(&s, "ram_images", 4);
}

static void a_state_that_ranks_below_all_of_ram_leaves_for_nowhere(void **state)
{
	(void)state;
	states_start(&s, STATES_CONFIG(FEW_LARGE, FLOOR), LARGE, 0);
	/* Four in KV-RAM, two on the device. */
	for (uint32_t i = 0; i < 6; i++)
		(void)serve_as(i, KVHOST_INTERACTIVE);
	states_rest(&s);
	states_expect(&s, "ram_images", 4);
	states_expect(&s, "ram_displaced", 0);
	/* These two go down as they come and displace the two oldest; then agents' are refused. */
	(void)serve_as(10, KVHOST_AGENT);
	(void)serve_as(11, KVHOST_AGENT);
	states_rest(&s);
	states_expect(&s, "ram_displaced", 2);
	states_expect(&s, "ram_refused", 0);
	(void)serve_as(12, KVHOST_AGENT);
	states_rest(&s);
	states_expect(&s, "ram_refused", 1);
	states_expect(&s, "ram_displaced", 2);
	assert_int_equal(finds(10), 0);
	for (uint32_t i = 2; i < 6; i++)
		assert_int_equal(serve_as(i, KVHOST_AGENT).cached_tokens, STATES_USUAL);
	states_rest(&s);
}

/* Three images of three frames, a slab of pages, and one frame more. */
#define THREE "24MiB"

static void a_state_takes_the_place_of_one_like_it_and_of_no_other(void **state)
{
	(void)state;
	states_start(&s,
		     "{\"kv_ram_bytes\": \"" THREE
		     "\", \"kv_ram_lock\": false, \"pools\": [" STATES_POOL(FLOOR) "]}\n",
		     LARGE, 0);
	for (uint32_t i = 0; i < 10; i++) {
		(void)states_serve_usual(&s, i);
		states_rest(&s);
		/* Two are on the device. */
		states_expect(&s, "ram_images", i < 2 ? 0 : i < 5 ? i - 1 : 3);
		states_expect(&s, "ram_displaced", i < 5 ? 0 : i - 4);
		for (uint32_t k = 0; k <= i; k++)
			assert_int_equal(finds(k), k + 5 > i ? STATES_USUAL : 0);
	}
	states_expect(&s, "ram_refused", 0);
}

#define DENSE_PAGES  16
#define DENSE_TOKENS (DENSE_PAGES * 16 + 1)

/* A dense pool beside it: pages of 256 KiB, of which it keeps a prompt. */
static void start_both(void)
{
	const struct engine_model model = {.pool = "dense",
					   .n_layers = 4,
					   .heads = 8,
					   .k_dim = 64,
					   .v_dim = 64,
					   .format = KVHOST_FLOAT32};

	states_start(&s,
		     "{\"kv_ram_bytes\": \"" THREE
		     "\", \"kv_ram_lock\": false, \"pools\": [" STATES_POOL(
			 FLOOR) ", {\"name\": \"dense\", \"pool_pages\": 64, \"kv_page_size\": 16,"
				" \"max_sequence_length\": 272, \"enable_prefix_caching\": true,"
				" \"max_prefix_cache_pages\": 16, \"ram_floor_tokens\": 0,"
				" \"retained_order\": \"lru\"}]}\n",
		     LARGE, 0);
	assert_int_equal(engine_start(&dense, s.d.socket, &model), 0);
}

static struct kvhost_open_result serve_dense(uint32_t number, uint32_t priority)
{
	uint32_t tokens[DENSE_TOKENS];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = DENSE_TOKENS, .priority = priority};

	engine_tokens(tokens, DENSE_TOKENS, 0, number);
	return stamped_prompt(&dense, &p);
}

static uint64_t dense_counter(const char *name)
{
	return daemon_pool_counter(&s.d, "dense", name);
}

static void states_and_pages_of_another_pool_make_room_for_each_other(void **state)
{
	char *answer = NULL;

	(void)state;
	start_both();
	/* Agents' pages fill KV-RAM; states of interactive requests displace some of them. */
	for (uint32_t i = 0; i < 8; i++)
		(void)serve_dense(i, KVHOST_AGENT);
	for (uint32_t i = 0; i < 3; i++)
		(void)serve_as(i, KVHOST_INTERACTIVE);
	states_rest(&s);
	states_expect(&s, "ram_images", 1);
	assert_true(dense_counter("ram_displaced") > 0);
	assert_true(dense_counter("ram_pages") > 0);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(serve_as(i % 3, KVHOST_INTERACTIVE).cached_tokens, STATES_USUAL);
	assert_int_equal(serve_dense(7, KVHOST_AGENT).cached_tokens, DENSE_PAGES * 16);
	for (uint32_t i = 0; i < 8; i++)
		(void)serve_dense(i, KVHOST_AGENT);
	states_rest(&s);
	states_expect(&s, "ram_images", 3);
	states_expect(&s, "ram_refused", 0);
	states_expect(&s, "ram_displaced", 0);
	/* And the other way round: what goes of a state goes as a whole. */
	assert_int_equal(kvhost_ask(s.e.host, "drop", "", &answer), 0);
	free(answer);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve_as(i, KVHOST_AGENT);
	states_rest(&s);
	states_expect(&s, "ram_images", 3);
	for (uint32_t i = 0; i < 8; i++)
		(void)serve_dense(i, KVHOST_INTERACTIVE);
	states_rest(&s);
	assert_true(states_counter(&s, "ram_displaced") > 0);
	assert_int_equal(states_counter(&s, "ram_pages"),
			 states_counter(&s, "ram_images") * STATES_PAGES);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve_as(i, KVHOST_AGENT);
	states_rest(&s);
}

/* What its images take counts for a namespace, too. */
static void a_namespace_at_its_quota_gives_up_states_of_its_own(void **state)
{
	static char json[1024];
	uint64_t quota = 2 * (LARGE + 65536 + (STATES_PAGES + 1) * (4096 + RAM_KNOWN_BYTES));

	(void)state;
	(void)snprintf(
	    json, sizeof(json),
	    "{\"kv_ram_bytes\": \"128MiB\", \"kv_ram_lock\": false, \"pools\": [" STATES_POOL(
		FLOOR) "], \"namespaces\": [{\"name\": \"a\", \"uids\": [%u],"
		       " \"managed_prefix_cache_salt\": \"one\","
		       " \"rights\": [\"attach\", \"admin\"],"
		       " \"max_kv_ram_bytes\": %llu}]}\n",
	    geteuid(), (unsigned long long)quota);
	states_start(&s, json, LARGE, 0);
	for (uint32_t i = 0; i < 6; i++) {
		(void)states_serve_usual(&s, i);
		states_rest(&s);
		assert_in_range(daemon_pool_counter(&s.d, "a", "namespace_kv_ram_bytes"), 0, quota);
	}
	/* Those of 2 and 3 are there; 4 and 5 are on the device. */
	states_expect(&s, "ram_images", 2);
	states_expect(&s, "ram_displaced", 2);
	assert_int_equal(finds(0) + finds(1), 0);
	for (uint32_t i = 2; i < 6; i++)
		assert_int_equal(finds(i), STATES_USUAL);
	assert_int_equal(states_serve_usual(&s, 2).tier, KVHOST_KV_RAM);
	states_rest(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_capture_that_ranks_below_all_of_ram_is_skipped),
	    TEST(a_state_that_ranks_below_all_of_ram_leaves_for_nowhere),
	    TEST(a_state_takes_the_place_of_one_like_it_and_of_no_other),
	    TEST(states_and_pages_of_another_pool_make_room_for_each_other),
	    TEST(a_namespace_at_its_quota_gives_up_states_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
