/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/pool_tiers.c: pages that leave the device for a tier below, which the test
 * plays: what goes when, what stays, and what a copy that fails leaves behind. One thread, but for
 * one with a small stack; nothing blocks.
 */

#include "tests/unit/leave_world.h"

#include <errno.h>
#include <pthread.h>

#define DEEP (1u << 20) /* pages of the longest chain */

static uint32_t text[PAGES * PAGE];

/* ---- down ---- */

static void a_page_goes_once_its_copy_below_is_there(void **state)
{
	struct tiers *t = *state;
	uint32_t a[4];

	tiers_retain(t, 1, 4, a);
	send_down(t, 3);
	assert_where(t, a, 4, "d lF lF lF");
	assert_int_equal(t->pool.leaving, 3);
	assert_int_equal(pages_free(&t->pool.pages), PAGES - 4);
	/* Until then it is found there. */
	assert_int_equal(
	    world_lookup(&t->pool, world_tokens(text, 4 * PAGE + 1, 0, 1), 4 * PAGE + 1), 4 * PAGE);
	down_ends(t, 0);
	assert_where(t, a, 4, "d lF lF R");
	down_ends(t, 0);
	down_ends(t, 0);
	assert_where(t, a, 4, "d R R R");
	assert_int_equal(pages_free(&t->pool.pages), PAGES - 1);
	assert_int_equal(world_lookup(&t->pool, text, 4 * PAGE + 1), 4 * PAGE);
	assert_int_equal(t->pool.stats.spills, 3);
	assert_int_equal(t->pool.stats.discards, 0);
	assert_all_can_go(t);
}

static void a_page_that_has_a_copy_below_goes_without_a_write(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];
	struct seq *s;

	tiers_retain(t, 1, 3, a);
	send_down(t, 3);
	tiers_settle(t);
	s = tiers_open(t, world_tokens(text, 3 * PAGE + 1, 0, 1), 3 * PAGE + 1, 3 * PAGE + 1);
	assert_where(t, a, 3, "dR dR dR");
	world_close(&s);
	send_down(t, 2);
	assert_where(t, a, 3, "dR R R");
	assert_int_equal(tiers_copies(&t->down), 0);
	assert_int_equal(t->pool.stats.releases, 2);
	assert_int_equal(t->pool.stats.spills, 3);
	assert_int_equal(t->pool.stats.discards, 0);
}

static void a_page_that_is_wanted_while_it_leaves_stays(void **state)
{
	struct tiers *t = *state;
	uint32_t a[5];

	tiers_retain(t, 1, 5, a);
	send_down(t, 5);
	hold(t, a[2]);
	assert_where(t, a, 5, "dF dF dF lF lF");
	assert_int_equal(t->pool.leaving, 2);
	for (int i = 0; i < 5; i++)
		down_ends(t, 0);
	/* The copies were made all the same: the next time none is. */
	assert_where(t, a, 5, "dR dR dR R R");
	assert_int_equal(t->pool.stats.spills_kept, 3);
	release(t, a[2]);
	send_down(t, 3);
	assert_where(t, a, 5, "R R R R R");
	assert_int_equal(t->pool.stats.releases, 3);
}

static void a_page_that_is_wanted_and_let_go_again_goes_with_its_first_copy(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];

	tiers_retain(t, 1, 3, a);
	send_down(t, 3);
	hold(t, a[2]);
	release(t, a[2]);
	assert_where(t, a, 3, "dF dF dF");
	send_down(t, 2);
	assert_where(t, a, 3, "dF lF lF");
	assert_int_equal(tiers_copies(&t->down), 3); /* no second copy */
	assert_int_equal(t->n_takes, 3);
	for (int i = 0; i < 3; i++)
		down_ends(t, 0);
	assert_where(t, a, 3, "dR R R");
	assert_all_can_go(t);
}

/* A page below one that has a copy already leaves later than it: the upper one waits. */
static void a_page_waits_for_what_still_leaves_below_it(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];

	tiers_retain(t, 1, 2, a);
	send_down(t, 2);
	tiers_settle(t);
	/* Fetched, and gone on with: two have copies below, what follows has none. */
	tiers_retain(t, 1, 3, a);
	assert_where(t, a, 3, "dR dR d");
	send_down(t, 3);
	assert_where(t, a, 3, "lR lR lF");
	assert_int_equal(t->pool.leaving, 3);
	down_ends(t, 0);
	assert_where(t, a, 3, "R R R");
	assert_int_equal(pages_free(&t->pool.pages), PAGES);
	assert_all_can_go(t);
}

static void what_waits_for_pages_below_it_stays_if_one_of_them_is_wanted(void **state)
{
	struct tiers *t = *state;
	uint32_t a[4];

	tiers_retain(t, 1, 2, a);
	send_down(t, 2);
	tiers_settle(t);
	tiers_retain(t, 1, 4, a);
	send_down(t, 4);
	assert_where(t, a, 4, "lR lR lF lF");
	hold(t, a[2]);
	assert_where(t, a, 4, "dR dR dF lF");
	down_ends(t, 0);
	down_ends(t, 0);
	assert_where(t, a, 4, "dR dR dR R");
	release(t, a[2]);
	send_down(t, 3);
	assert_where(t, a, 4, "R R R R");
	assert_all_can_go(t);
}

/* The copy of the upper page was asked for first: it was the last of its chain then. */
static void a_copy_that_ends_before_that_of_a_page_below_frees_nothing_yet(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];
	struct seq *s;

	tiers_retain(t, 1, 2, a);
	send_down(t, 1);
	s = tiers_open(t, world_tokens(text, 3 * PAGE + 1, 0, 1), 3 * PAGE + 1, 3 * PAGE + 1);
	tiers_step(t, s, 3 * PAGE);
	tiers_path(&t->pool, s->node, 3, a);
	world_close(&s);
	assert_where(t, a, 3, "d dF d");
	send_down(t, 2);
	assert_where(t, a, 3, "d lF lF");
	down_ends(t, 0);
	assert_where(t, a, 3, "d lR lF");
	down_ends(t, 0);
	assert_where(t, a, 3, "d R R");
	assert_all_can_go(t);
}

static void another_that_makes_the_same_page_keeps_it_from_leaving(void **state)
{
	struct tiers *t = *state;
	struct match_wish wish = world_wish(text, 2 * PAGE + 1);
	uint32_t a[2];
	struct seq *s;

	tiers_retain(t, 1, 2, a);
	world_tokens(text, 2 * PAGE + 1, 0, 1);
	wish.max_cached_tokens = 0;
	s = tiers_open_wish(t, &wish, 2 * PAGE + 1);
	tiers_begin(t, s, 2 * PAGE);
	send_down(t, 2);
	assert_where(t, a, 2, "lF lF");
	tiers_commit(t, s, 2 * PAGE, NULL);
	tiers_check(t);
	assert_where(t, a, 2, "dF dF");
	assert_int_equal(t->pool.stats.duplicates, 2);
	tiers_settle(t);
	assert_where(t, a, 2, "dR dR");
	world_close(&s);
	assert_all_can_go(t);
}

static void what_is_not_taken_below_goes_for_nowhere(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];

	tiers_retain(t, 1, 3, a);
	t->says = POOL_NEVER;
	send_down(t, 2);
	assert_where(t, a, 3, "d - -");
	assert_int_equal(t->pool.stats.ram_refused, 2);
	assert_int_equal(t->pool.stats.discards, 2);
	assert_int_equal(pages_free(&t->pool.pages), PAGES - 1);
	assert_int_equal(t->n_needed, 0);
}

static void what_something_below_stands_on_is_never_let_go_for_nowhere(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];

	tiers_retain(t, 1, 3, a);
	send_down(t, 1);
	assert_int_equal(t->n_needed, 0);
	t->says = POOL_NEVER;
	assert_false(pool_make_room(&t->pool, PAGES - 1));
	tiers_check(t);
	assert_where(t, a, 3, "d d lF");
	down_ends(t, 0);
	assert_false(pool_make_room(&t->pool, PAGES - 1));
	assert_where(t, a, 3, "d d R");
	assert_int_equal(t->n_needed, 2);
	t->says = 0;
	send_down(t, 2);
	tiers_settle(t);
	assert_where(t, a, 3, "R R R");
	assert_int_equal(t->pool.stats.discards, 0);
}

static void a_place_that_comes_later_is_waited_for(void **state)
{
	struct tiers *t = *state;
	uint32_t a[2];

	tiers_retain(t, 1, 2, a);
	t->says = POOL_WAIT;
	assert_false(pool_make_room(&t->pool, PAGES));
	tiers_check(t);
	assert_where(t, a, 2, "d d");
	assert_int_equal(t->n_takes, 1);
	t->says = 0;
	tiers_make_room(t, PAGES);
	assert_where(t, a, 2, "R R");
}

/* Whichever of a chain's copies fail: those pages stay, and everything is found as before. */
static void copies_down_that_fail_leave_everything_where_it_can_be_found(void **state)
{
	struct tiers *t = *state;

	for (uint32_t failing = 1; failing < 1u << 5; failing++) {
		uint32_t a[5];

		tiers_retain(t, failing, 5, a);
		send_down(t, 5);
		for (uint32_t i = 0; i < 5; i++)
			down_ends(t, failing >> i & 1 ? -EIO : 0);
		assert_int_equal(world_lookup(&t->pool,
					      world_tokens(text, 5 * PAGE + 1, 0, failing),
					      5 * PAGE + 1),
				 5 * PAGE);
		assert_int_equal(t->pool.leaving, 0);
		/* And they go once copies succeed. */
		tiers_make_room(t, PAGES);
		tiers_check(t);
		assert_where(t, a, 5, "R R R R R");
		assert_int_equal(t->pool.stats.discards, 0);
		tiers_retain(t, failing, 5, a);
		assert_all_can_go(t);
		t->pool.stats.discards = 0;
	}
}

/* The copy of a lower page fails and that page is sent again, behind the upper ones' copies. */
static void a_copy_that_fails_and_is_asked_for_again_keeps_the_order_of_leaving(void **state)
{
	struct tiers *t = *state;
	uint32_t a[3];

	tiers_retain(t, 1, 3, a);
	send_down(t, 3);
	down_ends(t, -EIO);
	send_down(t, 1);
	tiers_settle(t);
	tiers_check(t);
	tiers_make_room(t, PAGES);
	assert_where(t, a, 3, "R R R");
	assert_all_can_go(t);
}

/* ---- a long chain on a small stack ---- */

static void check_deep(const struct tiers *t)
{
	const char *wrong = pool_check(&t->pool, true);

	if (wrong)
		fail_msg("%s", wrong);
}

/* Its pages go down, all with one hold they stay, they go, come back, and fail to. */
static void *go_deep(void *context)
{
	struct tiers *t = context;
	struct pool *p = &t->pool;
	uint64_t tick = retain_open(&p->retain);
	uint32_t above, tokens[PAGE], run = RUN_NONE, all = ALL, root;
	const uint8_t variant[KEY_VARIANT_BYTES] = {0};

	assert_int_equal(prefix_root(&p->prefix, 0, variant, true, &root), 0);
	pool_hold(p, root);
	above = root;
	for (uint32_t i = 0; i < DEEP; i++) {
		uint32_t page, node;

		world_tokens(tokens, PAGE, 0, i);
		assert_int_equal(pages_take(&p->pages, &page), 0);
		assert_int_equal(prefix_publish(&p->prefix, above, tokens, PAGE, NULL, 0, &node),
				 PREFIX_NEW);
		assert_int_equal(retain_touch(&p->retain, node, tick, RETAIN_NEW, &run), 0);
		pool_index(p, node, page);
		t->in_page[page] = p->prefix.nodes[node].key.low;
		above = node;
	}
	retain_let_go(&p->retain, &run);
	assert_true(pool_make_room(p, DEEP));
	assert_int_equal(p->leaving, DEEP);
	/* The deepest copy fails: what was to leave after it stays. */
	tiers_down_ends(t, -EIO);
	assert_int_equal(p->leaving, 0);
	pool_hold(p, above);
	assert_int_equal(p->live, DEEP);
	tiers_settle(t);
	check_deep(t);
	pool_release(p, &above, &all);
	/* All but the deepest have their copies: they wait for it, and go with it. */
	above = t->node_at[0];
	assert_true(pool_make_room(p, DEEP));
	assert_int_equal(p->leaving, DEEP);
	assert_int_equal(tiers_copies(&t->down), 1);
	tiers_down_ends(t, 0);
	assert_int_equal(p->indexed, 0);
	assert_int_equal(p->in_ram, DEEP);
	check_deep(t);
	return NULL;
}

/* The same chain comes up: the first page fails, and everything behind it with it. */
static void *come_up_deep(void *context)
{
	struct tiers *t = context;
	struct pool *p = &t->pool;
	uint32_t *path = malloc(DEEP * sizeof(*path)), all = ALL, deepest = NODE_NONE;

	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		if (p->prefix.nodes[i].kind == NODE_TOKENS && p->prefix.nodes[i].children == 0)
			deepest = i;
	}
	tiers_path(p, deepest, DEEP, path);
	pool_hold(p, deepest);
	for (uint32_t i = 0; i < DEEP; i++)
		assert_int_equal(pool_fetch(p, path[i]), 0);
	assert_int_equal(p->arriving, DEEP);
	tiers_up_ends(t, -EIO);
	while (tiers_copies(&t->up))
		tiers_up_ends(t, 0);
	assert_int_equal(p->indexed, 0);
	assert_int_equal(p->arriving, 0);
	check_deep(t);
	pool_release(p, &deepest, &all);
	assert_true(pool_drop_retained(p, 0, &all));
	assert_int_equal(t->used, 0);
	free(path);
	return NULL;
}

static void on_a_small_stack(void *(*work)(void *), struct tiers *t)
{
	pthread_attr_t attributes;
	pthread_t thread;

	assert_int_equal(pthread_attr_init(&attributes), 0);
	assert_int_equal(pthread_attr_setstacksize(&attributes, 64 * 1024), 0);
	assert_int_equal(pthread_create(&thread, &attributes, work, t), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	pthread_attr_destroy(&attributes);
}

static void a_chain_of_a_million_pages_needs_no_stack(void **state)
{
	struct tiers *t = *state;

	tiers_deinit(t);
	tiers_init(t, &(struct tiers_limits){.pages = DEEP, .budget = DEEP, .places = DEEP});
	on_a_small_stack(go_deep, t);
	on_a_small_stack(come_up_deep, t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_page_goes_once_its_copy_below_is_there),
	    TEST(a_page_that_has_a_copy_below_goes_without_a_write),
	    TEST(a_page_that_is_wanted_while_it_leaves_stays),
	    TEST(a_page_that_is_wanted_and_let_go_again_goes_with_its_first_copy),
	    TEST(a_page_waits_for_what_still_leaves_below_it),
	    TEST(what_waits_for_pages_below_it_stays_if_one_of_them_is_wanted),
	    TEST(a_copy_that_ends_before_that_of_a_page_below_frees_nothing_yet),
	    TEST(another_that_makes_the_same_page_keeps_it_from_leaving),
	    TEST(what_is_not_taken_below_goes_for_nowhere),
	    TEST(what_something_below_stands_on_is_never_let_go_for_nowhere),
	    TEST(a_place_that_comes_later_is_waited_for),
	    TEST(copies_down_that_fail_leave_everything_where_it_can_be_found),
	    TEST(a_copy_that_fails_and_is_asked_for_again_keeps_the_order_of_leaving),
	    TEST(a_chain_of_a_million_pages_needs_no_stack),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
