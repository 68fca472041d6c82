/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of the orders of daemon/state/retain.h in two tiers: runs with a tail in each, whatever
 * order their pages come and go in; who ranks where in KV-RAM. One thread; nothing blocks.
 */

#include "tests/unit/retain_world.h"

static uint32_t victim(enum tier tier)
{
	struct retain_rank rank;

	return retain_next(&w.retain, tier, UINT64_MAX, &rank);
}

/* ---- chains of one open ---- */

static void make_chain(uint32_t text, uint32_t n, bool interactive, uint32_t *nodes)
{
	uint64_t tick = retain_open(&w.retain);
	uint32_t run = RUN_NONE, above = w.root[0];

	for (uint32_t i = 0; i < n; i++) {
		nodes[i] = make(above, text, tick, &run);
		above = nodes[i];
	}
	retain_set_interactive(&w.retain, run, interactive);
	retain_let_go(&w.retain, &run);
	check();
}

static void reuse_chain(const uint32_t *nodes, uint32_t n, bool interactive)
{
	uint64_t tick = retain_open(&w.retain);
	uint32_t run = RUN_NONE;

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(retain_touch(&w.retain, nodes[i], tick, RETAIN_REUSED, &run), 0);
	retain_set_interactive(&w.retain, run, interactive);
	retain_let_go(&w.retain, &run);
	check();
}

/* A chain that is in KV-RAM alone. */
static void make_below(uint32_t text, uint32_t n, bool interactive, uint32_t *nodes)
{
	make_chain(text, n, interactive, nodes);
	for (uint32_t i = n; i-- > 0;)
		move_down(nodes[i]);
}

/* KV-RAM gives up exactly these, in this order. */
static void assert_order_below(const uint32_t *nodes, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(victim(TIER_RAM), nodes[i]);
		drop(nodes[i], TIER_RAM);
		check();
	}
	assert_int_equal(victim(TIER_RAM), NODE_NONE);
}

static void a_run_has_a_tail_in_each_tier(void **state)
{
	uint32_t a[4];

	(void)state;
	make_chain(1, 4, false, a);
	assert_int_equal(victim(TIER_DEVICE), a[3]);
	assert_int_equal(victim(TIER_RAM), NODE_NONE);
	move_down(a[3]);
	move_down(a[2]);
	assert_int_equal(victim(TIER_DEVICE), a[1]);
	assert_int_equal(victim(TIER_RAM), a[3]);
	drop(a[3], TIER_RAM);
	check();
	assert_int_equal(victim(TIER_RAM), a[2]);
	move_down(a[1]);
	move_down(a[0]);
	assert_int_equal(victim(TIER_DEVICE), NODE_NONE);
	assert_order_below((uint32_t[]){a[2], a[1], a[0]}, 3);
	assert_int_equal(w.prefix.used, 2);
}

static void a_copy_that_is_left_below_goes_tail_first_too(void **state)
{
	uint32_t a[4];

	(void)state;
	make_below(1, 4, false, a);
	bring_back(a[0]);
	bring_back(a[1]);
	/* Both tiers have the first two, and each gives up its own. */
	assert_int_equal(victim(TIER_DEVICE), a[1]);
	assert_int_equal(victim(TIER_RAM), a[3]);
	drop(a[3], TIER_RAM);
	drop(a[2], TIER_RAM);
	drop(a[1], TIER_RAM);
	check();
	assert_int_equal(victim(TIER_RAM), a[0]);
	assert_int_equal(victim(TIER_DEVICE), a[1]);
	move_down(a[1]);
	assert_order_below((uint32_t[]){a[1], a[0]}, 2);
	assert_int_equal(victim(TIER_DEVICE), a[0]);
}

/* Copies of the upper pages stayed below; the lower ones come down again, from the end. */
static void what_comes_down_below_older_copies_takes_its_place_by_depth(void **state)
{
	uint32_t a[6];

	(void)state;
	make_below(1, 6, false, a);
	for (uint32_t i = 0; i < 6; i++)
		bring_back(a[i]);
	for (uint32_t i = 5; i >= 2; i--)
		drop(a[i], TIER_RAM);
	check();
	move_down(a[5]);
	move_down(a[4]);
	assert_int_equal(victim(TIER_RAM), a[5]);
	drop(a[5], TIER_RAM);
	check();
	move_down(a[3]);
	move_down(a[2]);
	assert_order_below((uint32_t[]){a[4], a[3], a[2], a[1], a[0]}, 5);
}

static void any_order_of_coming_down_ends_in_the_order_of_depth(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 200; round++) {
		uint32_t a[8], order[8];

		make_chain(round, 8, false, a);
		for (uint32_t i = 0; i < 8; i++)
			order[i] = i;
		for (uint32_t i = 7; i > 0; i--) {
			uint32_t j = below(i + 1), was = order[i];

			order[i] = order[j];
			order[j] = was;
		}
		for (uint32_t i = 0; i < 8; i++) {
			put_in_ram(a[order[i]]);
			check();
		}
		for (uint32_t i = 8; i-- > 0;)
			drop(a[i], TIER_DEVICE);
		check();
		assert_order_below((uint32_t[]){a[7], a[6], a[5], a[4], a[3], a[2], a[1], a[0]}, 8);
	}
}

static void a_page_that_leaves_is_in_no_order_of_the_device(void **state)
{
	uint32_t a[3];

	(void)state;
	make_chain(1, 3, false, a);
	put_in_ram(a[2]);
	begin_leaving(a[2]);
	check();
	assert_int_equal(victim(TIER_DEVICE), a[1]);
	put_in_ram(a[1]);
	begin_leaving(a[1]);
	check();
	assert_int_equal(victim(TIER_DEVICE), a[0]);
	/* They come back deepest first, as a hold goes up. */
	hold(a[2]);
	assert_int_equal(victim(TIER_DEVICE), NODE_NONE);
	release(a[2]);
	assert_int_equal(victim(TIER_DEVICE), a[2]);
	assert_int_equal(victim(TIER_RAM), a[2]);
}

static void a_touch_moves_a_page_in_both_tiers(void **state)
{
	uint32_t a[4], b[1];

	(void)state;
	make_below(1, 4, false, a);
	bring_back(a[0]);
	bring_back(a[1]);
	make_below(2, 1, false, b);
	reuse_chain(a, 3, false); /* two that are in both tiers, one that is below */
	assert_int_equal(victim(TIER_DEVICE), a[1]);
	assert_order_below((uint32_t[]){a[3], b[0], a[2], a[1], a[0]}, 5);
}

static void what_an_open_reused_is_protected_below(void **state)
{
	uint32_t a[2], b[2], c[1];

	(void)state;
	make_below(1, 2, false, a);
	make_below(2, 2, false, b);
	reuse_chain(a, 2, false);
	make_below(3, 1, false, c);
	/* c is younger than a's hit, and on probation. */
	assert_order_below((uint32_t[]){b[1], b[0], c[0], a[1], a[0]}, 5);
}

static void on_the_device_there_is_no_probation(void **state)
{
	uint32_t a[1], b[1];

	(void)state;
	make_chain(1, 1, false, a);
	reuse_chain(a, 1, false);
	make_chain(2, 1, false, b);
	assert_int_equal(victim(TIER_DEVICE), a[0]);
}

/* ---- agents and interactive requests ---- */

static void what_agents_touched_goes_first(void **state)
{
	uint32_t a[1], b[1], c[1];

	(void)state;
	make_below(1, 1, true, a);
	make_below(2, 1, false, b);
	reuse_chain(b, 1, false); /* protected, and the youngest */
	make_below(3, 1, true, c);
	assert_order_below((uint32_t[]){b[0], a[0], c[0]}, 3);
}

static void it_does_not_matter_on_the_device_who_touched_it(void **state)
{
	uint32_t a[1], b[1];

	(void)state;
	make_chain(1, 1, true, a);
	make_chain(2, 1, false, b);
	assert_int_equal(victim(TIER_DEVICE), a[0]);
}

static void whoever_touches_last_says_what_it_is(void **state)
{
	uint32_t a[2], b[1];

	(void)state;
	make_below(1, 2, true, a);
	make_below(2, 1, false, b);
	reuse_chain(a, 1, false);
	/* a[1] is interactive as before, a[0] an agent's, and stands above it. */
	assert_order_below((uint32_t[]){b[0], a[1], a[0]}, 3);
}

static void the_interactive_rank_ends_after_a_while(void **state)
{
	uint32_t a[1], b[1];

	(void)state;
	make_below(1, 1, true, a);
	w.retain.now_ns += TTL - 1;
	make_below(2, 1, false, b);
	assert_int_equal(victim(TIER_RAM), b[0]);
	w.retain.now_ns += 1;
	assert_int_equal(victim(TIER_RAM), a[0]);
	w.retain.interactive_ttl_ns = 0; /* never */
	assert_order_below((uint32_t[]){b[0], a[0]}, 2);
}

/* What is protected and idle for long stands behind fresh ones on probation in its own order. */
static void what_is_idle_ranks_among_agents_on_probation(void **state)
{
	uint32_t a[1], b[1], c[1], d[1];

	(void)state;
	make_below(1, 1, true, a);
	reuse_chain(a, 1, true);
	make_below(2, 1, false, b);
	reuse_chain(b, 1, false);
	w.retain.now_ns += TTL;
	make_below(3, 1, true, c);
	make_below(4, 1, false, d);
	/* a: older than d on probation; b: an agent's, protected; c: fresh. */
	assert_order_below((uint32_t[]){a[0], d[0], b[0], c[0]}, 4);
}

static void a_newcomer_has_the_rank_that_it_would_have_there(void **state)
{
	uint32_t a[1], b[1], c[1];
	struct retain_rank ra, rb, rc;

	(void)state;
	make_chain(1, 1, true, a);
	make_chain(2, 1, false, b);
	make_chain(3, 1, false, c);
	reuse_chain(b, 1, false);
	ra = retain_rank(&w.retain, a[0]);
	rb = retain_rank(&w.retain, b[0]);
	rc = retain_rank(&w.retain, c[0]);
	assert_true(retain_ranks_below(rb, ra) && !retain_ranks_below(ra, rb));
	assert_true(retain_ranks_below(rc, rb) && !retain_ranks_below(rb, rc));
	assert_false(retain_ranks_below(rc, rc));
	w.retain.now_ns += TTL;
	ra = retain_rank(&w.retain, a[0]);
	assert_true(retain_ranks_below(ra, rb) && retain_ranks_below(ra, rc));
}

/* ---- older than the window ---- */

static void pass_the_window(void)
{
	for (uint32_t i = 0; i < RETAIN_WINDOW; i++)
		retain_open(&w.retain);
	check();
}

static void runs_older_than_the_window_go_first_of_their_class_below(void **state)
{
	uint32_t a[2], b[1], c[1], d[1], e[1];

	(void)state;
	make_below(1, 2, false, a);
	make_below(2, 1, false, b);
	reuse_chain(b, 1, false);
	make_below(3, 1, true, c);
	hold(a[1]); /* in no order while it gets old */
	pass_the_window();
	make_below(4, 1, false, d);
	make_below(5, 1, true, e);
	assert_int_equal(victim(TIER_RAM), d[0]);
	release(a[1]);
	assert_order_below((uint32_t[]){a[1], a[0], d[0], b[0], c[0], e[0]}, 6);
}

static void a_run_older_than_the_window_goes_down_and_comes_back(void **state)
{
	uint32_t a[3], b[1];

	(void)state;
	make_chain(1, 3, false, a);
	pass_the_window();
	make_chain(2, 1, false, b);
	for (uint32_t i = 3; i-- > 0;) {
		assert_int_equal(victim(TIER_DEVICE), a[i]);
		move_down(a[i]);
	}
	assert_int_equal(victim(TIER_DEVICE), b[0]);
	assert_int_equal(victim(TIER_RAM), a[2]);
	for (uint32_t i = 0; i < 3; i++)
		bring_back(a[i]);
	assert_int_equal(victim(TIER_DEVICE), a[2]);
	reuse_chain(a, 3, false);
	assert_int_equal(victim(TIER_DEVICE), b[0]);
	assert_order_below((uint32_t[]){a[2], a[1], a[0]}, 3);
}

static void a_run_that_changes_its_user_changes_its_order_at_any_age(void **state)
{
	uint32_t a[1], b[1], run;

	(void)state;
	make_below(1, 1, false, a);
	make_below(2, 1, false, b);
	pass_the_window();
	run = w.prefix.nodes[a[0]].run;
	retain_set_interactive(&w.retain, run, true);
	check();
	w.retain.interactive_ttl_ns = 0;
	assert_int_equal(victim(TIER_RAM), b[0]);
	retain_set_interactive(&w.retain, run, false);
	retain_set_interactive(&w.retain, RUN_NONE, true);
	check();
	assert_order_below((uint32_t[]){a[0], b[0]}, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_run_has_a_tail_in_each_tier),
	    TEST(a_copy_that_is_left_below_goes_tail_first_too),
	    TEST(what_comes_down_below_older_copies_takes_its_place_by_depth),
	    TEST(any_order_of_coming_down_ends_in_the_order_of_depth),
	    TEST(a_page_that_leaves_is_in_no_order_of_the_device),
	    TEST(a_touch_moves_a_page_in_both_tiers),
	    TEST(what_an_open_reused_is_protected_below),
	    TEST(on_the_device_there_is_no_probation),
	    TEST(what_agents_touched_goes_first),
	    TEST(it_does_not_matter_on_the_device_who_touched_it),
	    TEST(whoever_touches_last_says_what_it_is),
	    TEST(the_interactive_rank_ends_after_a_while),
	    TEST(what_is_idle_ranks_among_agents_on_probation),
	    TEST(a_newcomer_has_the_rank_that_it_would_have_there),
	    TEST(runs_older_than_the_window_go_first_of_their_class_below),
	    TEST(a_run_older_than_the_window_goes_down_and_comes_back),
	    TEST(a_run_that_changes_its_user_changes_its_order_at_any_age),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
