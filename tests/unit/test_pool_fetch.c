/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of pages that come back from the tier below a pool (daemon/state/pool_tiers.c, match.c):
 * who gets them, what room they take, and how far a match goes on down there. The test plays the
 * tier below. One thread; nothing blocks.
 */

#include "tests/unit/fetch_world.h"

#include <errno.h>

static uint32_t text[PAGES * PAGE];

static void an_open_gets_what_is_below_and_leaves_it_there_as_well(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	uint32_t a[5];
	struct seq *s;

	put_down(t, 1, 5, 2, a);
	o = begin(t, 1, 5);
	must_wait(&o);
	assert_where(t, a, 5, "d d fR fR fR");
	assert_int_equal(t->pool.arriving, 3);
	assert_int_equal(t->pool.live, 5);
	up_ends(t, 0);
	up_ends(t, 0);
	must_wait(&o);
	up_ends(t, 0);
	s = must_have(&o, 5);
	assert_where(t, a, 5, "d d dR dR dR");
	assert_int_equal(t->pool.stats.ram_hits, 1);
	assert_int_equal(t->pool.stats.ram_hit_pages, 3);
	assert_int_equal(t->pool.stats.restores, 3);
	close(t, &s);
	assert_all_can_go(t);
}

static void two_opens_fetch_each_page_once(void **state)
{
	struct tiers *t = *state;
	struct opening *o, *other;
	struct seq *s, *second;
	uint32_t a[4];

	put_down(t, 1, 4, 0, a);
	o = begin(t, 1, 2);
	must_wait(&o);
	other = begin(t, 1, 4);
	must_wait(&other);
	assert_int_equal(tiers_copies(&t->up), 4);
	up_ends(t, 0);
	must_wait(&o);
	up_ends(t, 0);
	s = must_have(&o, 2);
	must_wait(&other);
	up_ends(t, 0);
	up_ends(t, 0);
	second = must_have(&other, 4);
	assert_int_equal(t->pool.stats.restores, 4);
	close(t, &s);
	close(t, &second);
	assert_all_can_go(t);
}

static void an_open_that_goes_away_leaves_its_pages_to_others(void **state)
{
	struct tiers *t = *state;
	struct opening *o, *other;
	uint32_t a[3];
	struct seq *s;

	put_down(t, 1, 3, 0, a);
	o = begin(t, 1, 3);
	must_wait(&o);
	opening_abandon(&o);
	tiers_check(t);
	assert_where(t, a, 3, "fR fR fR");
	/* On their way they cannot be given up, here or there. */
	assert_false(pool_make_room(&t->pool, PAGES));
	assert_where(t, a, 3, "fR fR fR");
	up_ends(t, 0);
	other = begin(t, 1, 3);
	must_wait(&other);
	up_ends(t, 0);
	up_ends(t, 0);
	s = must_have(&other, 3);
	assert_int_equal(t->pool.stats.restores, 3);
	close(t, &s);
	o = begin(t, 1, 3);
	opening_abandon(&o);
	assert_all_can_go(t);
}

/* ---- room for it ---- */

static void a_fetch_waits_for_a_page_and_makes_room_for_it(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s;
	uint32_t a[4], b[PAGES];

	put_down(t, 1, 4, 0, a);
	tiers_retain(t, 2, PAGES - 2, b);
	o = begin(t, 1, 4);
	must_wait(&o);
	assert_where(t, a, 4, "fR fR R R");
	assert_int_equal(t->pool.leaving, 1);
	up_ends(t, 0);
	up_ends(t, 0);
	tiers_down_ends(t, 0);
	must_wait(&o);
	assert_where(t, a, 4, "dR dR fR R");
	tiers_settle(t);
	must_wait(&o);
	tiers_settle(t);
	s = must_have(&o, 4);
	close(t, &s);
}

static void a_fetch_is_within_the_quota_of_its_namespace(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s;
	uint32_t a[3], b[3];

	pool_set_quota(&t->pool, 0, 5, 0);
	put_down(t, 1, 3, 0, a);
	tiers_retain(t, 2, 3, b);
	o = begin(t, 1, 3);
	must_wait(&o);
	assert_where(t, a, 3, "fR fR R");
	assert_where(t, b, 3, "d d lF");
	tiers_down_ends(t, 0);
	must_wait(&o);
	assert_where(t, a, 3, "fR fR fR");
	assert_true(pool_held(&t->pool, 0) <= 5);
	tiers_settle(t);
	s = must_have(&o, 3);
	close(t, &s);
	assert_all_can_go(t);
}

/* ---- how far a walk goes on below ---- */

static void little_more_below_is_not_fetched(void **state)
{
	struct tiers *t = *state;
	struct opening *o;
	struct seq *s;
	uint32_t a[5];

	t->pool.limits.ram_floor_tokens = 3 * PAGE;
	put_down(t, 1, 5, 3, a);
	o = begin(t, 1, 5);
	s = must_have(&o, 3);
	assert_int_equal(t->pool.stats.misses[MATCH_FLOOR], 1);
	assert_int_equal(t->pool.stats.ram_hits, 0);
	assert_int_equal(
	    world_lookup(&t->pool, world_tokens(text, 5 * PAGE + 1, 0, 1), 5 * PAGE + 1), 3 * PAGE);
	/* What it makes itself fills what is there. */
	tiers_step(t, s, 5 * PAGE);
	assert_where(t, a, 5, "d d d dR dR");
	close(t, &s);
	while (t->pool.indexed > 2)
		tiers_make_room(t, pages_free(&t->pool.pages) + 1);
	o = begin(t, 1, 5);
	must_wait(&o); /* just enough */
	tiers_settle(t);
	s = must_have(&o, 5);
	close(t, &s);
	assert_all_can_go(t);
}

static void no_match_ends_inside_an_image_wherever_its_pages_are(void **state)
{
	struct tiers *t = *state;
	struct key_image image = {.start = 2 * PAGE + 3, .length = 2 * PAGE, .digest = {1}};
	struct match_wish wish = world_wish(text, 6 * PAGE + 1);
	struct opening *o;
	struct seq *s;
	uint32_t a[6];

	wish.images = &image;
	wish.n_images = 1;
	world_tokens(text, 6 * PAGE + 1, 0, 1);
	s = tiers_open_wish(t, &wish, 6 * PAGE + 1);
	tiers_step(t, s, 6 * PAGE);
	tiers_path(&t->pool, s->node, 6, a);
	close(t, &s);
	while (t->pool.indexed > 4)
		tiers_make_room(t, pages_free(&t->pool.pages) + 1);
	assert_where(t, a, 6, "d d d d R R");
	/* The floor lets it have what is on the device, which ends in the image. */
	t->pool.limits.ram_floor_tokens = 4 * PAGE + 1;
	o = opening_begin(&t->pool, &wish, 6 * PAGE + 1);
	s = must_have(&o, 2);
	close(t, &s);
	/* From there it is far enough. It fetches, and what fails leaves an end in the image. */
	t->pool.limits.ram_floor_tokens = 4 * PAGE;
	o = opening_begin(&t->pool, &wish, 6 * PAGE + 1);
	must_wait(&o);
	up_ends(t, -EIO);
	s = must_have(&o, 2);
	up_ends(t, 0);
	close(t, &s);
	assert_all_can_go(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(an_open_gets_what_is_below_and_leaves_it_there_as_well),
	    TEST(two_opens_fetch_each_page_once),
	    TEST(an_open_that_goes_away_leaves_its_pages_to_others),
	    TEST(a_fetch_waits_for_a_page_and_makes_room_for_it),
	    TEST(a_fetch_is_within_the_quota_of_its_namespace),
	    TEST(little_more_below_is_not_fetched),
	    TEST(no_match_ends_inside_an_image_wherever_its_pages_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
