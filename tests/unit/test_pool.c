/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/pool.h: sums, budget, room, admission. One thread; nothing blocks. */

#include "tests/unit/pool_world.h"

#define PAGES 32u

static struct pool pool;
static uint32_t text[64 * PAGE];

static int setup(void **state)
{
	*state = &pool;
	world_init(&pool, PAGES, PAGES);
	return 0;
}

static int teardown(void **state)
{
	world_deinit(*state);
	return 0;
}

/* Publish n pages of a text of its own and close. */
static void retain_text(struct pool *p, uint32_t n, uint32_t which)
{
	struct seq *s;

	world_tokens(text, n * PAGE + 1, 0, which);
	s = world_open(p, text, n * PAGE + 1, n * PAGE + 1);
	world_step(s, n * PAGE + 1, NULL);
	world_check(p);
	world_close(&s);
	world_check(p);
	world_clean(p);
}

static void assert_sums(const struct pool *p, uint64_t indexed, uint64_t live)
{
	assert_int_equal(p->indexed, indexed);
	assert_int_equal(p->live, live);
	assert_int_equal(pool_retained(p), indexed - live);
	assert_int_equal(p->pages.count[PAGE_INDEXED], indexed);
	world_check(p);
}

static void holding_makes_a_chain_live_and_releasing_retains_it(void **state)
{
	struct pool *p = *state;
	uint32_t deep, middle, budget = ALL;
	struct seq *s;

	retain_text(p, 6, 1);
	assert_sums(p, 6, 0);
	s = world_open(p, text, 6 * PAGE + 1, 6 * PAGE + 1);
	assert_sums(p, 6, 6);
	deep = s->node;
	middle = p->prefix.nodes[p->prefix.nodes[deep].parent].parent;
	world_close(&s);
	pool_hold(p, middle);
	assert_sums(p, 6, 4);
	pool_hold(p, deep);
	assert_sums(p, 6, 6);
	pool_release(p, &middle, &budget);
	assert_int_equal(middle, NODE_NONE);
	assert_sums(p, 6, 6);
	pool_release(p, &deep, &budget);
	assert_sums(p, 6, 0);
	assert_int_equal(p->shares[0].indexed, 6);
}

static void a_release_goes_up_one_node_a_unit_of_budget(void **state)
{
	struct pool *p = *state;
	uint32_t node, budget;
	struct seq *s;

	retain_text(p, 6, 1);
	s = world_open(p, text, 6 * PAGE + 1, 6 * PAGE + 1);
	node = s->node;
	pool_hold(p, node);
	world_close(&s);
	for (uint32_t live = 6; live > 0; live--) {
		assert_sums(p, 6, live);
		budget = 1;
		pool_release(p, &node, &budget);
		assert_int_equal(budget, 0);
	}
	assert_sums(p, 6, 0);
	assert_int_not_equal(node, NODE_NONE); /* the root */
	budget = 5;
	pool_release(p, &node, &budget);
	assert_int_equal(node, NODE_NONE);
	assert_int_equal(budget, 4);
}

static void what_is_above_the_budget_goes_when_it_is_released(void **state)
{
	struct pool *p = *state;
	struct seq *s;

	p->limits.prefix_budget = 4;
	world_tokens(text, 10 * PAGE, 0, 1);
	s = world_open(p, text, 10 * PAGE, 10 * PAGE);
	world_step(s, 10 * PAGE, NULL);
	assert_sums(p, 10, 10); /* in use: not trimmed */
	world_close(&s);
	assert_sums(p, 4, 0);
	assert_int_equal(p->stats.evictions, 6);
	/* One chain longer than the budget keeps its head. */
	assert_int_equal(world_lookup(p, text, 10 * PAGE), 4 * PAGE);
}

static void switched_off_the_budget_is_not_kept(void **state)
{
	struct pool *p = *state;
	struct seq *s;

	p->limits.prefix_budget = 4;
	protection_off[PROTECTION_budget_is_kept] = true;
	world_tokens(text, 6 * PAGE, 0, 1);
	s = world_open(p, text, 6 * PAGE, 6 * PAGE);
	world_step(s, 6 * PAGE, NULL);
	world_close(&s);
	protection_off[PROTECTION_budget_is_kept] = false;
	assert_non_null(pool_check(p, false));
	pool_trim(p);
}

static void a_budget_of_nothing_publishes_nothing(void **state)
{
	struct pool *p = *state;

	p->limits.prefix_budget = 0;
	retain_text(p, 3, 1);
	assert_sums(p, 0, 0);
	assert_int_equal(p->prefix.used, 0);
	assert_int_equal(pages_free(&p->pages), PAGES);
}

static void room_is_made_of_retained_pages_oldest_first_and_never_of_live_ones(void **state)
{
	struct pool *p = *state;
	struct seq *s;

	retain_text(p, 10, 1);
	retain_text(p, 10, 2);
	s = world_open(p, text, 10 * PAGE + 1, 10 * PAGE + 1);
	assert_true(pool_make_room(p, 12));
	assert_sums(p, 20, 10);
	assert_true(pool_make_room(p, 15));
	assert_sums(p, 17, 10);
	assert_int_equal(pages_free(&p->pages), 15);
	assert_false(pool_make_room(p, 23));
	assert_sums(p, 10, 10);
	assert_true(pool_make_room(p, 22));
	world_close(&s);
	assert_true(pool_make_room(p, PAGES));
	assert_sums(p, 0, 0);
	assert_int_equal(p->prefix.used, 0);
}

static void of_two_namespaces_the_one_left_alone_for_longer_gives(void **state)
{
	struct pool *p = *state;
	uint32_t tokens[3 * PAGE];
	struct match_wish wish = world_wish(world_tokens(tokens, 3 * PAGE, 0, 9), 3 * PAGE);
	struct seq *s;

	wish.name_space = 5;
	s = world_open_wish(p, &wish, 3 * PAGE, ALL);
	world_step(s, 3 * PAGE, NULL);
	world_close(&s);
	retain_text(p, 2, 1);
	assert_int_equal(p->shares[5].indexed, 3);
	assert_int_equal(p->shares[0].indexed, 2);
	assert_true(pool_make_room(p, PAGES - 3));
	assert_int_equal(p->shares[5].indexed, 1);
	assert_int_equal(p->shares[0].indexed, 2);
	assert_true(pool_make_room(p, PAGES - 1));
	assert_int_equal(p->shares[5].indexed, 0);
	assert_int_equal(p->shares[0].indexed, 1);
}

static void what_is_retained_is_dropped_in_turns_of_one_namespace_or_of_all(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, 3 * PAGE);
	uint32_t budget = 2, turns = 1;
	struct seq *s;

	retain_text(p, 7, 1);
	wish.name_space = 1;
	s = world_open_wish(p, &wish, 3 * PAGE, ALL);
	world_step(s, 3 * PAGE, NULL);
	world_close(&s);
	assert_sums(p, 10, 0);
	while (!pool_drop_retained(p, 0, &budget)) {
		world_check(p);
		budget = 2;
		turns++;
	}
	assert_int_equal(turns, 4);
	assert_sums(p, 3, 0);
	budget = ALL;
	assert_true(pool_drop_retained(p, RETAIN_NAMESPACES, &budget));
	assert_int_equal(ALL - budget, 3);
	assert_sums(p, 0, 0);
	assert_int_equal(p->prefix.used, 0);
}

static void the_ceilings_of_all_who_are_admitted_fit_together(void **state)
{
	struct pool *p = *state;
	struct seq *a, *b, *c;

	assert_int_equal(pool_may_admit(p, PAGES), 0);
	assert_int_equal(pool_may_admit(p, PAGES + 1), POOL_NEVER);
	assert_int_equal(pool_may_admit(p, UINT64_MAX), POOL_NEVER);
	assert_int_equal(seq_new(p, 0, 20 * PAGE, &a), 0);
	assert_int_equal(seq_new(p, 0, 12 * PAGE - 3, &b), 0);
	assert_int_equal(seq_new(p, 0, 1, &c), 0);
	assert_int_equal(p->ceilings, 0);
	assert_int_equal(seq_admit(a), 0);
	assert_int_equal(seq_admit(b), 0);
	assert_int_equal(p->ceilings, PAGES);
	assert_int_equal(seq_admit(c), POOL_WAIT);
	world_close(&b);
	assert_int_equal(seq_admit(c), 0);
	assert_int_equal(p->ceilings, 21);
	world_check(p);
	world_close(&a);
	world_close(&c);
	assert_int_equal(p->ceilings, 0);
	assert_int_equal(p->sequences, 0);
}

static void pages_in_quarantine_are_not_promised(void **state)
{
	struct pool *p = *state;
	struct seq *s;
	uint32_t pages[2];

	world_tokens(text, PAGE, 0, 1);
	s = world_open(p, text, PAGE, 3 * PAGE);
	world_begin(s, 2 * PAGE);
	step_end(s, true);
	assert_int_equal(seq_move_quarantine(s, NULL), 2);
	assert_int_equal(seq_move_quarantine(s, pages), 2);
	world_check(p);
	world_close(&s);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 2);
	assert_int_equal(pool_may_admit(p, PAGES - 1), POOL_WAIT);
	assert_int_equal(pool_may_admit(p, PAGES - 2), 0);
	pages_acquit(&p->pages, pages[0]);
	pages_acquit(&p->pages, pages[1]);
	assert_int_equal(pool_may_admit(p, PAGES), 0);
}

static void whoever_is_admitted_gets_pages_whatever_is_retained(void **state)
{
	struct pool *p = *state;
	struct seq *s[4];

	for (uint32_t i = 0; i < 8; i++)
		retain_text(p, 4, i + 1);
	assert_sums(p, PAGES - 1, 0); /* the last page of a text was partial: a page is free */
	for (uint32_t i = 0; i < 4; i++)
		s[i] = world_open(p, world_tokens(text, 8 * PAGE, 0, 100 + i), 8 * PAGE, 8 * PAGE);
	for (uint32_t at = 1; at <= 8; at++) {
		for (uint32_t i = 0; i < 4; i++)
			world_step(s[i], at * PAGE, NULL);
	}
	assert_sums(p, PAGES, PAGES);
	assert_int_equal(pages_free(&p->pages), 0);
	for (uint32_t i = 0; i < 4; i++)
		world_close(&s[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(holding_makes_a_chain_live_and_releasing_retains_it),
	    TEST(a_release_goes_up_one_node_a_unit_of_budget),
	    TEST(what_is_above_the_budget_goes_when_it_is_released),
	    TEST(switched_off_the_budget_is_not_kept),
	    TEST(a_budget_of_nothing_publishes_nothing),
	    TEST(room_is_made_of_retained_pages_oldest_first_and_never_of_live_ones),
	    TEST(of_two_namespaces_the_one_left_alone_for_longer_gives),
	    TEST(what_is_retained_is_dropped_in_turns_of_one_namespace_or_of_all),
	    TEST(the_ceilings_of_all_who_are_admitted_fit_together),
	    TEST(pages_in_quarantine_are_not_promised),
	    TEST(whoever_is_admitted_gets_pages_whatever_is_retained),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
