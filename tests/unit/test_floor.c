/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/state/floor.h, and of a pool whose floor is found by what its own steps and
 * fetches take. One thread; nothing blocks.
 */
#include "daemon/state/floor.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/core_world.h"

#define PAGES 10u
#define US    1000ull
#define MS    (1000 * US)

/* ---- the calculation ---- */

static void prefill(struct floor *f, uint32_t times, uint32_t tokens, uint64_t ns)
{
	while (times--)
		floor_prefilled(f, tokens, ns);
}

static void restore(struct floor *f, uint32_t times, uint32_t tokens, uint64_t ns, uint64_t move_ns)
{
	while (times--)
		floor_restored(f, tokens, ns, move_ns);
}

static void it_is_where_both_take_the_same(void **state)
{
	struct floor f = {0};

	(void)state;
	/* 100 us a token to compute; 20 us to fetch, and 40 ms for every fetch. */
	prefill(&f, 20, 2000, 200 * MS);
	restore(&f, 20, 1000, 60 * MS, 20 * MS);
	assert_int_equal(floor_prefill_ns(&f), 100 * US);
	assert_int_equal(floor_restore_ns(&f), 20 * US);
	assert_in_range(floor_tokens(&f), 499, 500);
	/* The size of a fetch says nothing of its delay. */
	restore(&f, 200, 8000, 200 * MS, 160 * MS);
	assert_in_range(floor_tokens(&f), 499, 500);
}

static void without_enough_measures_it_is_the_default(void **state)
{
	struct floor f = {0};

	(void)state;
	assert_int_equal(floor_tokens(&f), FLOOR_UNKNOWN_TOKENS);
	prefill(&f, 100, 100, MS);
	restore(&f, FLOOR_SAMPLES - 1, 1000, MS, MS);
	assert_int_equal(floor_tokens(&f), FLOOR_UNKNOWN_TOKENS);
	restore(&f, 1, 1000, MS, MS);
	assert_int_equal(floor_tokens(&f), 0);
	/* Steps of a few tokens are no prefill. */
	memset(&f, 0, sizeof(f));
	restore(&f, 100, 1000, MS, MS);
	prefill(&f, 100, FLOOR_PREFILL_TOKENS - 1, MS);
	prefill(&f, FLOOR_SAMPLES - 1, FLOOR_PREFILL_TOKENS, MS);
	assert_int_equal(floor_tokens(&f), FLOOR_UNKNOWN_TOKENS);
	assert_int_equal(floor_prefill_ns(&f), MS / FLOOR_PREFILL_TOKENS);
}

static void who_computes_faster_than_bytes_move_never_fetches(void **state)
{
	struct floor f = {0};

	(void)state;
	prefill(&f, 20, 1000, 10 * MS);
	restore(&f, 20, 1000, 20 * MS, 10 * MS);
	assert_int_equal(floor_tokens(&f), FLOOR_NEVER_TOKENS);
	restore(&f, 100, 1000, 20 * MS, 20 * MS);
	assert_int_equal(floor_tokens(&f), FLOOR_NEVER_TOKENS);
}

static void it_follows_what_changes(void **state)
{
	struct floor f = {0};

	(void)state;
	prefill(&f, 1000, 1000, 100 * MS);
	restore(&f, 1000, 1000, 30 * MS, 10 * MS);
	assert_in_range(floor_tokens(&f), 221, 223); /* 20 ms by 90 us */
	restore(&f, 100, 1000, 100 * MS, 10 * MS);
	assert_in_range(floor_tokens(&f), 980, 1000);
	prefill(&f, 100, 1000, 1000 * MS);
	assert_in_range(floor_tokens(&f), 85, 95);
}

static void some_opens_fetch_whatever_there_is(void **state)
{
	struct floor f = {0};
	uint32_t n = 0;

	(void)state;
	for (uint32_t i = 0; i < 10 * FLOOR_PROBE; i++)
		n += floor_probe(&f);
	assert_int_equal(n, 10);
}

/* ---- of a pool ---- */

static const struct core_world_wish wish = {
    .heads = 32,
    .frames = 8,
    .pool = "\"pool_pages\": 30, \"max_sequence_length\": 176, \"max_prefix_cache_pages\": 2,"
	    " \"ram_floor_tokens\": \"auto\""};

static struct core_world world;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	core_world_start(&world, &wish);
	core_client_start(&world.clients[0], true);
	core_client_start(&world.clients[2], false);
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return 0;
}

/* Some prompts again and again: how many opens took pages from KV-RAM. */
static uint64_t serve_some(struct core_world *w, uint32_t opens)
{
	uint64_t before = core_pool(w)->stats.ram_hits;

	for (uint32_t i = 0; i < opens; i++)
		assert_int_equal(core_serve(&w->clients[0], CORE_ALONE + i % 3, PAGES, NULL), 0);
	core_world_check(w);
	return core_pool(w)->stats.ram_hits - before;
}

static json_int_t shown(struct core_world *w, const char *key)
{
	struct core_client *operator= & w->clients[2];
	uint64_t asked = core_ask_operator(operator, PAYLOAD_ADMIN_TIERS, "");
	json_t *root, *floor;
	json_int_t value;

	assert_int_equal(core_await(operator, asked), 0);
	root = json_loadb(core_answer(operator, asked), operator->replies[asked % CORE_SLOTS].count,
			  0, NULL);
	floor = json_object_get(json_array_get(json_object_get(root, "pools"), 0), "floor");
	assert_true(json_is_true(json_object_get(floor, "auto")));
	assert_true(json_is_integer(json_object_get(floor, key)));
	value = json_integer_value(json_object_get(floor, key));
	json_decref(root);
	return value;
}

/* A prompt has less than the default floor: nothing comes back before something was measured. Then
 * whatever is slow to compute is fetched. */
static void what_is_slow_to_compute_is_fetched(void **state)
{
	struct core_world *w = *state;

	w->compute_ns = 1000 * MS;
	assert_int_equal(shown(w, "tokens"), FLOOR_UNKNOWN_TOKENS);
	assert_int_equal(serve_some(w, 20), 0);
	assert_true(core_pool(w)->stats.misses[MATCH_FLOOR] > 10);
	(void)serve_some(w, FLOOR_PROBE * (FLOOR_SAMPLES + 1));
	assert_true(serve_some(w, 100) > 95);
	assert_true(shown(w, "tokens") < PAGES * CORE_PAGE / 2);
	/* 1000 ms for what a step has: 160 tokens and one, or fewer. */
	assert_true(shown(w, "prefill_of_a_token_ns") > (json_int_t)(1000 * MS / 170));
	assert_true(shown(w, "restore_of_a_token_ns") > 0);
	core_world_stop(w);
}

static void what_is_fast_to_compute_is_not(void **state)
{
	struct core_world *w = *state;

	w->compute_ns = 1000 * MS;
	(void)serve_some(w, FLOOR_PROBE * (FLOOR_SAMPLES + 1));
	assert_true(serve_some(w, 20) > 15);
	/* Of the steps that follow fetches few are long enough; those after a drop are. */
	w->compute_ns = 0;
	for (int i = 0; i < 50; i++) {
		assert_int_equal(
		    core_await(&w->clients[2],
			       core_ask_operator(&w->clients[2], PAYLOAD_ADMIN_DROP, "")),
		    0);
		(void)serve_some(w, 3);
	}
	assert_true(shown(w, "tokens") > PAGES * CORE_PAGE);
	assert_in_range(serve_some(w, 2 * FLOOR_PROBE), 1, 3);
	core_world_stop(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(it_is_where_both_take_the_same),
	    cmocka_unit_test(without_enough_measures_it_is_the_default),
	    cmocka_unit_test(who_computes_faster_than_bytes_move_never_fetches),
	    cmocka_unit_test(it_follows_what_changes),
	    cmocka_unit_test(some_opens_fetch_whatever_there_is),
	    TEST(what_is_slow_to_compute_is_fetched),
	    TEST(what_is_fast_to_compute_is_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
