/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_overcommit: a pool that admits more than there is room for (pools.overcommit). Where a step
 * finds no page anywhere, the sequence that ranks lowest is discarded, with those that share all it
 * has: its client is told why, can close it and compute it again; all it had is given back, and the
 * others go on bit-exact.
 *
 * One thread that plays two clients.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/live.h"
#include "tests/e2e/stamped.h"

#define NO_RAM "\"kv_ram_bytes\": 0, "
#define LRU    ", \"retained_order\": \"lru\""

static struct live l;
static struct live_sequence low, first, second;

static int setup(void **state)
{
	(void)state;
	live_start(&l, &live_dense, LIVE_CONFIG(NO_RAM, LRU ", \"overcommit\": true"), NULL);
	return 0;
}

static int setup_off(void **state)
{
	(void)state;
	live_start(&l, &live_dense, LIVE_CONFIG(NO_RAM, LRU), NULL);
	return 0;
}

/* With places for all that they have. */
static int setup_ram(void **state)
{
	(void)state;
	live_start(
	    &l, &live_dense,
	    LIVE_CONFIG(LIVE_RAM("8MiB"), LRU ", \"overcommit\": true, \"live_in_ram\": true"),
	    NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	live_stop(&l);
	return 0;
}

static void assert_is_discarded(int result)
{
	assert_int_equal(result, KVHOST_ELOST);
	assert_non_null(strstr(kvhost_reason(l.mine.host), "the sequence was discarded"));
	assert_non_null(strstr(kvhost_reason(l.mine.host), "pools.overcommit"));
}

/* The others have all of theirs. */
static void end_scene(void)
{
	live_end(&low);
	assert_true(live_has(&l, &first, LIVE_MOST));
	assert_true(live_has(&l, &second, LIVE_MOST));
	live_end(&first);
	live_end(&second);
	live_expect_nothing_used(&l);
}

static void the_lowest_goes_and_its_client_is_told(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_step step;

	(void)state;
	live_begin(&low, &l.mine, 1, KVHOST_AGENT);
	live_go_on(&l, &low, LIVE_SHORT);
	live_begin(&first, &l.others, 2, KVHOST_INTERACTIVE);
	live_go_on(&l, &first, LIVE_MOST);
	live_begin(&second, &l.others, 3, KVHOST_INTERACTIVE);
	live_expect(&l, "live_sequences_discarded", 0);
	live_go_on(&l, &second, LIVE_MOST);
	live_expect(&l, "live_sequences_discarded", 1);
	assert_is_discarded(kvhost_step_begin(low.seq, LIVE_MOST, 0, &step));
	assert_is_discarded(kvhost_truncate(low.seq, LIVE_PAGE));
	live_expect(&l, "live_sequences_lost", 0);
	end_scene();
	found = stamped_serve(&l.mine, low.tokens, LIVE_MOST);
	assert_true(found.cached_tokens < LIVE_SHORT);
	found = stamped_serve(&l.mine, low.tokens, LIVE_MOST);
	assert_int_equal(found.cached_tokens, LIVE_MOST - LIVE_PAGE);
	live_expect_nothing_used(&l);
}

/* Neither has a page that the other has not. */
static void a_sequence_and_its_fork_go_together(void **state)
{
	struct kvhost_sequence *fork;
	struct kvhost_step step;

	(void)state;
	live_begin(&low, &l.mine, 1, KVHOST_AGENT);
	live_go_on(&l, &low, LIVE_SHORT);
	assert_int_equal(kvhost_fork(low.seq, LIVE_MOST, &fork), 0);
	live_begin(&first, &l.others, 2, KVHOST_INTERACTIVE);
	live_go_on(&l, &first, LIVE_MOST);
	live_expect(&l, "live_sequences_discarded", 0);
	live_begin(&second, &l.others, 3, KVHOST_INTERACTIVE);
	live_go_on(&l, &second, LIVE_MOST);
	live_expect(&l, "live_sequences_discarded", 2);
	assert_is_discarded(kvhost_step_begin(low.seq, LIVE_MOST, 0, &step));
	assert_is_discarded(kvhost_step_begin(fork, LIVE_MOST, 0, &step));
	assert_int_equal(kvhost_close(&fork), 0);
	end_scene();
}

/* What there is place for below is not lost. */
static void what_has_a_place_below_goes_there_first(void **state)
{
	(void)state;
	live_begin(&low, &l.mine, 1, KVHOST_AGENT);
	live_go_on(&l, &low, LIVE_SHORT);
	live_begin(&first, &l.others, 2, KVHOST_INTERACTIVE);
	live_go_on(&l, &first, LIVE_MOST);
	live_begin(&second, &l.others, 3, KVHOST_INTERACTIVE);
	live_go_on(&l, &second, LIVE_MOST);
	live_expect(&l, "live_sequences_discarded", 0);
	live_expect_at_least(&l, "live_pages_parked", 1);
	live_end(&first);
	live_go_on(&l, &low, LIVE_MOST);
	live_end(&second);
	live_end(&low);
	live_expect_nothing_used(&l);
}

static void without_it_who_comes_later_waits(void **state)
{
	(void)state;
	live_begin(&low, &l.mine, 1, KVHOST_AGENT);
	live_go_on(&l, &low, LIVE_SHORT);
	live_begin(&first, &l.others, 2, KVHOST_INTERACTIVE);
	live_go_on(&l, &first, LIVE_MOST);
	assert_int_equal(live_try(&second, &l.others, 3, KVHOST_INTERACTIVE, 50000),
			 KVHOST_ETIMEDOUT);
	assert_string_equal(kvhost_reason(l.others.host),
			    "the deadline passed while it waited for room in the pool");
	live_expect(&l, "live_sequences_discarded", 0);
	live_go_on(&l, &low, LIVE_MOST);
	live_end(&first);
	live_end(&low);
	live_expect_nothing_used(&l);
}

#define AT(test, which)                                                                            \
	{                                                                                          \
		.name = #test, .test_func = test, .setup_func = which, .teardown_func = teardown   \
	}

/* ---- what goes depends on what is wanted, not on how many there are ---- */

#define WANTED 390u /* more pages than KV-RAM has places for */

static const struct kvhost_layer small_layer = {1, 16, 16, 2, 2};

static struct kvhost_sequence *open_one(struct kvhost_pool *pool, uint32_t text, bool interactive)
{
	struct kvhost_sequence *seq;
	struct kvhost_open_result found;
	struct kvhost_step step;
	uint32_t tokens[17];
	struct kvhost_prompt prompt = {.tokens = tokens,
				       .n_tokens = 17,
				       .max_tokens = 17,
				       .priority = interactive ? KVHOST_INTERACTIVE : KVHOST_AGENT};

	for (uint32_t i = 0; i < 17; i++)
		tokens[i] = text + i;
	assert_int_equal(kvhost_open(pool, &prompt, &seq, &found), 0);
	assert_int_equal(kvhost_step_begin(seq, 16, 0, &step), 0);
	assert_int_equal(kvhost_step_commit(&step, 16, NULL, 0, NULL, 0), 0);
	return seq;
}

/* So many agents, each with a fork that shares its page, one page a pair; then requests that rank
 * above and want WANTED of them. How many were discarded? */
static uint64_t discarded_of(uint32_t pairs)
{
	static const uint8_t artifact[32] = "overcommit";
	struct kvhost_pool_description description = {
	    .name = "main", .n_layers = 1, .layers = &small_layer, .artifact = artifact};
	struct daemon d = {0};
	struct kvhost *host;
	struct kvhost_pool *pool;
	struct kvhost_sequence *fork;
	char text[512];
	uint64_t n;

	(void)snprintf(text, sizeof(text),
		       "{\"kv_ram_bytes\": \"8MiB\", \"kv_ram_page_bytes\": 4096,"
		       " \"kv_ram_lock\": false, \"pools\": [{\"name\": \"main\","
		       " \"kv_page_size\": 16, \"max_sequence_length\": 64, \"pool_pages\": %u,"
		       " \"overcommit\": true, \"enable_prefix_caching\": true,"
		       " \"max_prefix_cache_pages\": null}]}\n",
		       pairs);
	daemon_start(&d, text);
	assert_int_equal(daemon_await(&d, "", "kv_ram_bytes_capacity",
				      daemon_counter(&d, "kv_ram_bytes_wanted"), LONG_MS),
			 daemon_counter(&d, "kv_ram_bytes_wanted"));
	assert_int_equal(kvhost_connect(&(struct kvhost_options){.socket = d.socket}, &host), 0);
	assert_int_equal(kvhost_pool_attach(host, &description, &pool), 0);
	for (uint32_t i = 0; i < pairs; i++) {
		struct kvhost_sequence *seq = open_one(pool, 64 * (i + 1), false);

		assert_int_equal(kvhost_fork(seq, 17, &fork), 0);
	}
	for (uint32_t i = 0; i < WANTED; i++)
		(void)open_one(pool, 1000000 + 64 * i, true);
	kvhost_disconnect(&host);
	/* What was counted is published a moment later. */
	assert_int_equal(daemon_await(&d, "main", "pool_opens", pairs + WANTED, LONG_MS),
			 pairs + WANTED);
	assert_int_equal(daemon_await(&d, "main", "pool_sequences", 0, LONG_MS), 0);
	n = daemon_pool_counter(&d, "main", "live_sequences_discarded");
	daemon_remove(&d);
	return n;
}

static void no_more_go_than_what_is_wanted_takes(void **state)
{
	uint64_t few = discarded_of(400), many = discarded_of(700);

	(void)state;
	print_message("discarded: %u of 800, %u of 1400\n", (unsigned)few, (unsigned)many);
	assert_true(few > 0 && few % 2 == 0 && few < 60);
	assert_int_equal(few, many);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    AT(the_lowest_goes_and_its_client_is_told, setup),
	    AT(a_sequence_and_its_fork_go_together, setup),
	    AT(what_has_a_place_below_goes_there_first, setup_ram),
	    AT(without_it_who_comes_later_waits, setup_off),
	    cmocka_unit_test(no_more_go_than_what_is_wanted_takes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
