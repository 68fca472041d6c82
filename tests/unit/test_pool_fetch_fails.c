/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of pages that cannot be read from the tier below a pool (daemon/state/pool_tiers.c,
 * match.c): what their opens get, and what they leave behind for others. The test plays the tier
 * below. One thread; nothing blocks.
 */

#include "tests/unit/fetch_world.h"

#include <errno.h>

static uint32_t text[PAGES * PAGE];

/* Page `bad` of a chain that is below cannot be read; `before` copies end before it is asked for.
 */
static void fetch_with_a_bad_page(struct tiers *t, uint32_t bad, uint32_t which, uint32_t n)
{
	struct opening *o, *late;
	uint32_t a[8];
	struct seq *s;

	put_down(t, which, n, 0, a);
	o = begin(t, which, n);
	must_wait(&o);
	for (uint32_t i = 0; i < bad; i++)
		up_ends(t, 0);
	up_ends(t, -EIO);
	assert_int_equal(
	    world_lookup(&t->pool, world_tokens(text, n * PAGE + 1, 0, which), n * PAGE + 1),
	    bad * PAGE);
	s = must_have(&o, bad);
	/* The bytes of those behind it arrive for nobody. */
	while (tiers_copies(&t->up))
		up_ends(t, 0);
	assert_int_equal(t->pool.indexed, bad);
	assert_string_equal(tiers_where(t, a[bad]), "S");
	late = begin(t, which, n);
	close(t, &s);
	s = must_have(&late, bad);
	/* Made again, everything behind it is found again. */
	tiers_step(t, s, (bad + 1) * PAGE);
	tiers_check(t);
	assert_string_equal(tiers_where(t, a[bad]), "dS");
	close(t, &s);
	late = begin(t, which, n);
	while (turn(&late, &s)) {
		while (tiers_copies(&t->up))
			up_ends(t, 0);
	}
	assert_int_equal(s->committed, n * PAGE);
	close(t, &s);
	/* It goes down again into the place that it had. */
	tiers_make_room(t, PAGES);
	tiers_check(t);
	assert_string_equal(tiers_where(t, a[bad]), "R");
	assert_int_equal(t->used, n);
	assert_all_can_go(t);
}

static void
what_is_behind_a_page_that_cannot_be_read_is_no_hit_until_that_is_made_again(void **state)
{
	for (uint32_t bad = 0; bad < 6; bad++)
		fetch_with_a_bad_page(*state, bad, 1 + bad % 4, 6);
}

static void a_miss_tells_that_a_page_could_not_be_read(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	uint32_t a[3];
	struct seq *s;

	put_down(t, 1, 3, 1, a);
	o = begin(t, 1, 3);
	must_wait(&o);
	up_ends(t, -EIO);
	s = must_have(&o, 1);
	assert_int_equal(t->pool.stats.misses[MATCH_RESTORE], 1);
	assert_int_equal(t->pool.stats.restores_failed, 1);
	while (tiers_copies(&t->up))
		up_ends(t, 0);
	close(t, &s);
	/* From now on it is just not there. */
	o = begin(t, 1, 3);
	s = must_have(&o, 1);
	assert_int_equal(t->pool.stats.misses[MATCH_RESTORE], 1);
	close(t, &s);
}

/* Nobody waits for a page any more when it fails: what it leaves below can still be given up. */
static void a_page_that_fails_for_nobody_can_be_given_up_below(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	uint32_t a[3];

	put_down(t, 1, 3, 0, a);
	o = begin(t, 1, 3);
	must_wait(&o);
	opening_abandon(&o);
	up_ends(t, 0);
	up_ends(t, 0);
	up_ends(t, -EIO);
	assert_where(t, a, 3, "dR dR S");
	assert_all_can_go(t);
}

/* The page that fails is not told of before its open asks for those behind it. */
static void nothing_is_fetched_behind_a_page_that_has_failed(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	uint32_t a[4];
	struct seq *s = NULL;

	put_down(t, 1, 4, 0, a);
	o = begin(t, 1, 4);
	assert_int_equal(opening_turn(&o, 5, &s), POOL_MORE); /* the walk, and one page */
	assert_int_equal(tiers_copies(&t->up), 1);
	up_ends(t, -EIO);
	s = must_have(&o, 0);
	assert_int_equal(tiers_copies(&t->up), 0);
	assert_where(t, a, 4, "S R R R");
	close(t, &s);
	assert_all_can_go(t);
}

/* Two opens want the chain; the first page fails, and only one of them knows so far. */
static void a_page_that_fails_for_two_opens_fails_for_both(void **state)
{
	struct tiers *t = *state;
	struct opening *o, *other;
	uint32_t a[4];
	struct seq *s, *second;

	put_down(t, 1, 4, 0, a);
	o = begin(t, 1, 4);
	must_wait(&o);
	other = begin(t, 1, 4);
	must_wait(&other);
	up_ends(t, 0);
	up_ends(t, -EIO);
	s = must_have(&o, 1);
	up_ends(t, 0);
	second = must_have(&other, 1);
	/* Who is first makes it again, the other finds it made. */
	up_ends(t, 0);
	assert_where(t, a, 4, "dR S R R");
	tiers_step(t, s, 3 * PAGE);
	tiers_check(t);
	tiers_step(t, second, 3 * PAGE);
	tiers_check(t);
	assert_where(t, a, 4, "dR dS dR R");
	close(t, &s);
	close(t, &second);
	assert_all_can_go(t);
}

/* ---- who makes a page that another fetches ---- */

/* Of 3 pages that another fetches this one makes the first two by itself, and holds their nodes. */
static struct seq *follow(struct tiers *t, uint32_t which, struct opening **fetching)
{
	struct match_wish wish = world_wish(text, 4 * PAGE + 1);
	struct seq *s;

	world_tokens(text, 4 * PAGE + 1, 0, which);
	wish.max_cached_tokens = 0;
	s = tiers_open_wish(t, &wish, 4 * PAGE + 1);
	*fetching = begin(t, which, 3);
	must_wait(fetching);
	tiers_step(t, s, 2 * PAGE);
	tiers_check(t);
	assert_int_equal(t->pool.stats.duplicates, 2);
	return s;
}

static void what_follows_a_page_that_arrives_is_published_below_it(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s, *second;
	uint32_t a[4];

	put_down(t, 1, 3, 0, a);
	s = follow(t, 1, &o);
	tiers_step(t, s, 4 * PAGE);
	tiers_path(&t->pool, s->node, 4, a);
	tiers_check(t);
	assert_where(t, a, 4, "fR fR fR d");
	up_ends(t, 0);
	up_ends(t, 0);
	up_ends(t, 0);
	second = must_have(&o, 3);
	close(t, &s);
	close(t, &second);
	o = begin(t, 1, 4);
	s = must_have(&o, 4);
	close(t, &s);
	assert_all_can_go(t);
}

/* What stands on a page that failed stays until it is used no more, and goes before it. */
static void what_was_published_below_a_page_that_fails_goes_before_it(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s, *second;
	uint32_t a[4];

	put_down(t, 1, 3, 0, a);
	s = follow(t, 1, &o);
	tiers_step(t, s, 4 * PAGE);
	tiers_path(&t->pool, s->node, 4, a);
	up_ends(t, 0);
	up_ends(t, -EIO);
	up_ends(t, 0);
	second = must_have(&o, 1);
	assert_where(t, a, 4, "dR xS xR d");
	close(t, &second);
	close(t, &s);
	assert_where(t, a, 4, "dR xS xR d");
	assert_int_equal(world_lookup(&t->pool, text, 4 * PAGE + 1), PAGE);
	/* Its copy down has to end first, and fails once. */
	assert_true(pool_make_room(&t->pool, pages_free(&t->pool.pages) + 1));
	assert_where(t, a, 4, "dR xS xR lF");
	tiers_down_ends(t, -EIO);
	tiers_check(t);
	assert_where(t, a, 4, "dR xS xR d");
	assert_true(pool_make_room(&t->pool, pages_free(&t->pool.pages) + 1));
	tiers_down_ends(t, 0);
	tiers_check(t);
	assert_where(t, a, 4, "dR S R R");
	assert_all_can_go(t);
}

/* It is leaving when what it stands on fails: that goes behind it. */
static void a_page_that_fails_waits_for_one_below_it_that_leaves(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s, *second;
	uint32_t a[4];

	put_down(t, 1, 3, 0, a);
	s = follow(t, 1, &o);
	tiers_step(t, s, 4 * PAGE);
	tiers_path(&t->pool, s->node, 4, a);
	close(t, &s);
	assert_true(pool_make_room(&t->pool, pages_free(&t->pool.pages) + 1));
	assert_where(t, a, 4, "fR fR fR lF");
	up_ends(t, 0);
	up_ends(t, 0);
	up_ends(t, -EIO);
	assert_where(t, a, 4, "dR dR xS lF");
	second = must_have(&o, 2);
	tiers_down_ends(t, 0);
	tiers_check(t);
	assert_where(t, a, 4, "dR dR S R");
	close(t, &second);
	assert_all_can_go(t);
}

static void nothing_is_published_below_a_page_that_has_failed(void **state)
{
	struct tiers *t = *state;

	/* It fails alone and is gone at once; or stays for others that are on their way. */
	for (uint32_t bad = 1; bad < 3; bad++) {
		struct opening *o;
		struct seq *s, *second;
		uint32_t a[3];

		put_down(t, bad, 3, 0, a);
		t->pool.stats.duplicates = 0;
		s = follow(t, bad, &o);
		for (uint32_t i = 0; i < 3; i++)
			up_ends(t, i >= bad || (bad == 2 && i == 1) ? -EIO : 0);
		tiers_step(t, s, 4 * PAGE);
		tiers_check(t);
		assert_false(s->publishing);
		second = must_have(&o, 1);
		close(t, &s);
		close(t, &second);
		assert_all_can_go(t);
	}
}

static void
a_page_that_stayed_in_its_place_though_spoilt_is_given_up_there_in_its_turn(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s;
	uint32_t a[2];

	put_down(t, 1, 2, 0, a);
	o = begin(t, 1, 2);
	must_wait(&o);
	up_ends(t, 0);
	up_ends(t, -EIO);
	s = must_have(&o, 1);
	tiers_step(t, s, 2 * PAGE);
	tiers_check(t);
	assert_where(t, a, 2, "dR dS");
	/* Whatever it says, it is in nobody's use there. */
	pool_give_up_ram(&t->pool, a[1]);
	tiers_check(t);
	assert_where(t, a, 2, "dR d");
	close(t, &s);
	assert_all_can_go(t);
}

/* ---- a walk that is cut short ---- */

static void a_walk_that_is_cut_lets_go_of_the_rest_in_turns(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s = NULL;
	uint32_t a[8], turns = 0;

	put_down(t, 1, 8, 0, a);
	o = begin(t, 1, 8);
	must_wait(&o);
	up_ends(t, 0);
	up_ends(t, -EIO);
	while (tiers_copies(&t->up))
		up_ends(t, 0);
	while (opening_turn(&o, 2, &s) == POOL_MORE) {
		tiers_check(t);
		turns++;
	}
	assert_true(turns >= 3);
	assert_int_equal(s->committed, PAGE);
	assert_int_equal(t->pool.live, 1);
	close(t, &s);
	assert_all_can_go(t);
}

static void an_open_that_goes_away_in_the_middle_of_a_cut_leaves_nothing_held(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s = NULL;
	uint32_t a[8];

	put_down(t, 1, 8, 0, a);
	o = begin(t, 1, 8);
	must_wait(&o);
	up_ends(t, 0);
	up_ends(t, -EIO);
	assert_int_equal(opening_turn(&o, 2, &s), POOL_MORE);
	assert_int_equal(opening_turn(&o, 2, &s), POOL_MORE);
	opening_abandon(&o);
	tiers_check(t);
	assert_int_equal(t->pool.live, 0);
	while (tiers_copies(&t->up))
		up_ends(t, 0);
	assert_all_can_go(t);
}

static void switched_off_what_could_not_be_read_is_served(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	uint32_t a[2];

	put_down(t, 1, 2, 0, a);
	o = begin(t, 1, 2);
	must_wait(&o);
	protection_off[PROTECTION_failed_copies_are_dropped] = true;
	tiers_up_ends(t, -EIO);
	protection_off[PROTECTION_failed_copies_are_dropped] = false;
	assert_non_null(tiers_wrong(t, false));
	tiers_settle(t);
	opening_abandon(&o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_is_behind_a_page_that_cannot_be_read_is_no_hit_until_that_is_made_again),
	    TEST(a_miss_tells_that_a_page_could_not_be_read),
	    TEST(a_page_that_fails_for_nobody_can_be_given_up_below),
	    TEST(nothing_is_fetched_behind_a_page_that_has_failed),
	    TEST(a_page_that_fails_for_two_opens_fails_for_both),
	    TEST(what_follows_a_page_that_arrives_is_published_below_it),
	    TEST(what_was_published_below_a_page_that_fails_goes_before_it),
	    TEST(a_page_that_fails_waits_for_one_below_it_that_leaves),
	    TEST(nothing_is_published_below_a_page_that_has_failed),
	    TEST(a_page_that_stayed_in_its_place_though_spoilt_is_given_up_there_in_its_turn),
	    TEST(a_walk_that_is_cut_lets_go_of_the_rest_in_turns),
	    TEST(an_open_that_goes_away_in_the_middle_of_a_cut_leaves_nothing_held),
	    TEST(switched_off_what_could_not_be_read_is_served),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
