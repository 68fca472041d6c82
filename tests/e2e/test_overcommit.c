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
	live_end(&low);
	assert_true(live_has(&l, &first, LIVE_MOST));
	assert_true(live_has(&l, &second, LIVE_MOST));
	live_end(&first);
	live_end(&second);
	live_expect_nothing_used(&l);
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
	live_end(&low);
	assert_true(live_has(&l, &first, LIVE_MOST));
	assert_true(live_has(&l, &second, LIVE_MOST));
	live_end(&first);
	live_end(&second);
	live_expect_nothing_used(&l);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    AT(the_lowest_goes_and_its_client_is_told, setup),
	    AT(a_sequence_and_its_fork_go_together, setup),
	    AT(what_has_a_place_below_goes_there_first, setup_ram),
	    AT(without_it_who_comes_later_waits, setup_off),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
