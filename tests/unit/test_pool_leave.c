/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of what makes pages leave a pool that has a tier below it (daemon/state/pool_tiers.c): its
 * budget, the quotas and claims of namespaces, and drops. The test plays the tier below. One
 * thread; nothing blocks.
 */

#include "tests/unit/leave_world.h"

static uint32_t text[PAGES * PAGE];

static void what_leaves_is_not_above_the_budget_any_more(void **state)
{
	struct tiers *t = *state;
	uint32_t a[10], b[2];

	t->pool.limits.prefix_budget = 6;
	tiers_retain(t, 1, 10, a);
	assert_int_equal(t->pool.leaving, 4);
	assert_where(t, a, 10, "d d d d d d lF lF lF lF");
	/* Others that are released find that enough goes already. */
	hold(t, a[2]);
	release(t, a[2]);
	assert_int_equal(t->pool.leaving, 4);
	tiers_settle(t);
	assert_int_equal(t->pool.indexed, 6);
	tiers_retain(t, 2, 2, b);
	assert_int_equal(t->pool.leaving, 2);
	assert_where(t, a, 10, "d d d d lF lF R R R R");
	assert_all_can_go(t);
}

static void a_fetched_page_is_within_the_budget_too(void **state)
{
	struct tiers *t = *state;
	uint32_t a[4], b[4];
	struct seq *s;

	t->pool.limits.prefix_budget = 4;
	tiers_retain(t, 1, 4, a);
	tiers_retain(t, 2, 4, b);
	tiers_settle(t);
	assert_where(t, a, 4, "R R R R");
	s = tiers_open(t, world_tokens(text, 4 * PAGE + 1, 0, 1), 4 * PAGE + 1, 4 * PAGE + 1);
	tiers_settle(t);
	assert_where(t, a, 4, "dR dR dR dR");
	assert_where(t, b, 4, "R R R R");
	world_close(&s);
	tiers_check(t);
	assert_int_equal(t->pool.indexed, 4);
}

static void a_namespace_with_a_quota_waits_for_its_pages_that_leave(void **state)
{
	struct tiers *t = *state;
	uint32_t a[4];

	pool_set_quota(&t->pool, 0, 6, 0);
	tiers_retain(t, 1, 4, a);
	assert_true(pool_keep_quota(&t->pool, 0, 2));
	assert_where(t, a, 4, "d d d d");
	/* Two of them must go first, and are there until their copies are. */
	assert_false(pool_keep_quota(&t->pool, 0, 4));
	assert_where(t, a, 4, "d d lF lF");
	assert_false(pool_keep_quota(&t->pool, 0, 4));
	assert_int_equal(t->pool.leaving, 2);
	assert_true(pool_keep_quota(&t->pool, 1, 4));
	down_ends(t, 0);
	assert_false(pool_keep_quota(&t->pool, 0, 4));
	down_ends(t, 0);
	assert_true(pool_keep_quota(&t->pool, 0, 4));
	/* Nothing takes them below: they go at once. */
	t->says = POOL_NEVER;
	tiers_retain(t, 2, 4, NULL);
	assert_true(pool_held(&t->pool, 0) <= 6);
	assert_int_equal(t->pool.leaving, 0);
}

/* What stands on a copy below must get one too: as long as it has no place it is within no quota.
 */
static void a_namespace_waits_for_a_place_for_what_must_have_one(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];

	pool_set_quota(&t->pool, 0, 4, 0);
	tiers_retain(t, 1, 3, a);
	send_down(t, 1);
	tiers_settle(t);
	assert_where(t, a, 3, "d d R");
	t->says = POOL_WAIT;
	assert_false(pool_keep_quota(&t->pool, 0, 3));
	assert_where(t, a, 3, "d d R");
	t->says = 0;
	assert_false(pool_keep_quota(&t->pool, 0, 3));
	tiers_settle(t);
	assert_where(t, a, 3, "d R R");
	assert_true(pool_keep_quota(&t->pool, 0, 3));
}

static void what_leaves_counts_no_more_for_the_claim_of_its_namespace(void **state)
{
	struct tiers *t = *state;
	struct match_wish wish = world_wish(text, 4 * PAGE);
	struct seq *s;

	pool_set_quota(&t->pool, 1, 0, 4);
	tiers_retain(t, 1, 4, NULL);
	wish.name_space = 1;
	world_tokens(text, 4 * PAGE, 0, 2);
	s = tiers_open_wish(t, &wish, 6 * PAGE);
	tiers_step(t, s, 4 * PAGE);
	world_close(&s);
	/* The other namespace's are older: as long as it has some. */
	send_down(t, 4);
	assert_int_equal(t->pool.shares[0].leaving, 4);
	send_down(t, 2);
	assert_int_equal(t->pool.shares[1].leaving, 2);
	tiers_settle(t);
	assert_int_equal(t->pool.shares[1].indexed, 2);
	assert_int_equal(t->pool.shares[1].in_ram, 2);
	assert_int_equal(t->pool.shares[0].in_ram, 4);
}

static void what_is_dropped_goes_from_everywhere(void **state)
{
	struct tiers *t = *state;
	uint32_t a[4], b[2], budget = 1, turns = 1;

	tiers_retain(t, 1, 4, a);
	send_down(t, 2);
	tiers_settle(t);
	tiers_retain(t, 1, 4, a);
	tiers_retain(t, 2, 2, b);
	assert_where(t, a, 4, "d d dR dR");
	while (!pool_drop_retained(&t->pool, 0, &budget)) {
		tiers_check(t);
		budget = 1;
		turns++;
	}
	assert_int_equal(turns, 9); /* 2 copies, 6 pages, and to see that there are no more */
	assert_int_equal(t->pool.prefix.used, 0);
	assert_int_equal(t->used, 0);
}

/* It was wanted while it left, and is not any more: its copy still reads it. */
static void a_page_is_not_dropped_under_its_copy(void **state)
{
	struct tiers *t = *state;
	uint32_t a[2], budget = ALL;

	tiers_retain(t, 1, 2, a);
	send_down(t, 1);
	hold(t, a[1]);
	release(t, a[1]);
	assert_where(t, a, 2, "d dF");
	assert_true(pool_drop_retained(&t->pool, RETAIN_NAMESPACES, &budget));
	tiers_check(t);
	assert_int_equal(tiers_copies(&t->down), 2);
	down_ends(t, 0);
	assert_all_can_go(t);
}

/* What is not being copied goes at once. */
static void what_is_being_copied_is_dropped_after_that(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3], b[2], budget = ALL;

	tiers_retain(t, 1, 3, a);
	tiers_retain(t, 2, 2, b);
	send_down(t, 2);
	hold(t, a[1]); /* one copy of a page that stays, one of a page that leaves */
	release(t, a[1]);
	assert_where(t, a, 3, "d dF lF");
	assert_true(pool_drop_retained(&t->pool, RETAIN_NAMESPACES, &budget));
	tiers_check(t);
	assert_where(t, b, 2, "- -");
	assert_all_can_go(t);
}

static void what_is_in_use_is_not_dropped(void **state)
{
	struct tiers *t = *state;
	uint32_t a[4], budget = ALL;

	tiers_retain(t, 1, 4, a);
	send_down(t, 2);
	tiers_settle(t);
	hold(t, a[3]);
	assert_true(pool_drop_retained(&t->pool, RETAIN_NAMESPACES, &budget));
	tiers_check(t);
	assert_where(t, a, 4, "d d R R");
	release(t, a[3]);
	assert_all_can_go(t);
}

static void without_a_tier_below_everything_goes_for_nowhere(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];

	t->pool.below = NULL;
	tiers_retain(t, 1, 3, a);
	send_down(t, 3);
	assert_where(t, a, 3, "- - -");
	assert_int_equal(t->pool.stats.discards, 3);
	assert_int_equal(t->n_takes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_leaves_is_not_above_the_budget_any_more),
	    TEST(a_fetched_page_is_within_the_budget_too),
	    TEST(a_namespace_with_a_quota_waits_for_its_pages_that_leave),
	    TEST(a_namespace_waits_for_a_place_for_what_must_have_one),
	    TEST(what_leaves_counts_no_more_for_the_claim_of_its_namespace),
	    TEST(what_is_dropped_goes_from_everywhere),
	    TEST(a_page_is_not_dropped_under_its_copy),
	    TEST(what_is_being_copied_is_dropped_after_that),
	    TEST(what_is_in_use_is_not_dropped),
	    TEST(without_a_tier_below_everything_goes_for_nowhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
