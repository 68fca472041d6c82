/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_live_lost: a live sequence has made room for another one, and a page of it cannot be copied
 * back from KV-RAM: its client is told, can close it, and may compute it again; all it had is given
 * back, and the others go on bit-exact.
 *
 * One thread that plays two clients; the daemon fails the copy that a failpoint names. Nothing else
 * is fetched before it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/live.h"
#include "tests/e2e/stamped.h"

#define AWAY (LIVE_MOST_PAGES - 2u) /* pages that the third one wants of the first */

static struct live l;
static struct live_sequence low, first, second;
static uint32_t bad; /* of the pages of `low` that are away */

/* Its page that comes back as number n does not arrive. */
static int start(uint32_t n)
{
	static char failpoint[64];

	bad = n;
	(void)snprintf(failpoint, sizeof(failpoint), "KVHOST_TEST_FAILPOINT=ram_restore:%u:1", n);
	live_start(
	    &l, &live_dense,
	    LIVE_CONFIG(LIVE_RAM("64MiB"), ", \"retained_order\": \"lru\", \"live_in_ram\": true"),
	    failpoint);
	return 0;
}

static int setup_head(void **state)
{
	(void)state;
	return start(0);
}

static int setup_middle(void **state)
{
	(void)state;
	return start(5);
}

/* It comes back from its start: the page that is not full is the last. */
static int setup_partial(void **state)
{
	(void)state;
	return start(AWAY - 1);
}

static int teardown(void **state)
{
	(void)state;
	live_stop(&l);
	return 0;
}

/* Two that rank above it have left it two pages; one of them needs its own no more, for now. */
static void push_out(void)
{
	live_begin(&low, &l.mine, 1, KVHOST_AGENT);
	live_go_on(&l, &low, LIVE_SHORT);
	live_begin(&first, &l.others, 2, KVHOST_INTERACTIVE);
	live_go_on(&l, &first, LIVE_MOST);
	live_begin(&second, &l.others, 3, KVHOST_INTERACTIVE);
	live_go_on(&l, &second, LIVE_MOST);
	live_expect(&l, "live_pages_parked", AWAY);
	assert_int_equal(kvhost_truncate(second.seq, LIVE_PAGE), 0);
	live_expect(&l, "pool_pages_free",
		    LIVE_POOL_PAGES - LIVE_MOST_PAGES - (LIVE_MOST_PAGES - AWAY) - 1);
	live_expect(&l, "live_sequences_lost", 0);
}

static void assert_is_lost(int result)
{
	assert_int_equal(result, KVHOST_ELOST);
	assert_non_null(strstr(kvhost_reason(l.mine.host), "could not be copied back from KV-RAM; "
							   "close it"));
}

static void lose(void)
{
	struct kvhost_sequence *branch = NULL;
	struct kvhost_step step;
	uint16_t rows[LIVE_PAGE];

	push_out();
	assert_is_lost(kvhost_step_begin(low.seq, LIVE_MOST, 0, &step));
	live_expect(&l, "live_sequences_lost", 1);
	/* Whatever is tried next: it is told the same, and nothing of it is served. */
	assert_is_lost(kvhost_step_begin(low.seq, LIVE_MOST, 0, &step));
	assert_is_lost(
	    kvhost_kv_read(low.seq, NULL, 0, KVHOST_K, 0, 1, KVHOST_FLOAT16, rows, sizeof(rows)));
	assert_is_lost(kvhost_fork(low.seq, LIVE_MOST, &branch));
	assert_null(branch);
	assert_is_lost(kvhost_truncate(low.seq, LIVE_PAGE));
	live_expect(&l, "live_sequences_lost", 1);
	/* Full pages behind it fail with it, the other one is its alone. */
	live_expect(&l, "ram_restores_failed", bad < AWAY - 1 ? AWAY - 1 - bad : 1);
}

static void the_others_end(void)
{
	assert_true(live_has(&l, &first, LIVE_MOST));
	live_go_on(&l, &second, LIVE_MOST);
	assert_true(live_has(&l, &first, LIVE_MOST));
	live_end(&first);
	live_end(&second);
}

/* What was found of it is right, and the rest is computed. */
static void compute_it_again(void)
{
	struct kvhost_open_result found = stamped_serve(&l.mine, low.tokens, LIVE_MOST);

	assert_true(found.cached_tokens < LIVE_SHORT);
	found = stamped_serve(&l.mine, low.tokens, LIVE_MOST);
	assert_int_equal(found.cached_tokens, LIVE_MOST - LIVE_PAGE);
}

static void it_can_be_closed_and_computed_again(void **state)
{
	(void)state;
	lose();
	live_end(&low);
	live_expect(&l, "pool_sequences", 2);
	live_expect(&l, "ram_places_live", 0);
	the_others_end();
	live_expect_nothing_used(&l);
	compute_it_again();
	live_expect_nothing_used(&l);
	assert_int_equal(live_counter(&l, "live_sequences_lost"), 1);
}

/* It is not closed yet: what it still has makes room all the same. */
static void the_others_have_its_pages_before_it_is_closed(void **state)
{
	(void)state;
	lose();
	the_others_end();
	live_expect(&l, "pool_sequences", 1);
	live_begin(&first, &l.others, 4, KVHOST_AGENT);
	live_begin(&second, &l.others, 5, KVHOST_AGENT);
	live_go_on(&l, &first, LIVE_MOST);
	live_go_on(&l, &second, LIVE_MOST);
	live_end(&low);
	live_end(&first);
	live_end(&second);
	live_expect_nothing_used(&l);
	compute_it_again();
	live_expect_nothing_used(&l);
}

static void its_client_may_leave_without_closing_it(void **state)
{
	(void)state;
	lose();
	engine_stop(&l.mine);
	low.seq = NULL;
	live_expect(&l, "pool_sequences", 2);
	live_expect(&l, "ram_places_live", 0);
	the_others_end();
	live_expect_nothing_used(&l);
}

#define AT(test, which)                                                                            \
	{                                                                                          \
		.name = #test " (" #which ")", .test_func = test, .setup_func = which,             \
		.teardown_func = teardown                                                          \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    AT(it_can_be_closed_and_computed_again, setup_head),
	    AT(it_can_be_closed_and_computed_again, setup_middle),
	    AT(it_can_be_closed_and_computed_again, setup_partial),
	    AT(the_others_have_its_pages_before_it_is_closed, setup_head),
	    AT(the_others_have_its_pages_before_it_is_closed, setup_middle),
	    AT(the_others_have_its_pages_before_it_is_closed, setup_partial),
	    AT(its_client_may_leave_without_closing_it, setup_head),
	    AT(its_client_may_leave_without_closing_it, setup_partial),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
