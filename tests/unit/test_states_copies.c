/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/pool_states.h: copies of retained states that fail on their way down, and
 * where the image of a new state goes. One thread; nothing blocks.
 */

#include "tests/unit/states_small.h"

#include <errno.h>

#define SLOTS 2u

static const struct states_text three = {.which = 3};
static const struct states_text important = {.which = 4, .interactive = true};

static int setup(void **state)
{
	return setup_slots(state, SLOTS);
}

static void start_with(struct states *w, uint32_t slots, uint32_t units)
{
	start_again(w, &(struct states_limits){
			   .pages = 64, .slots = slots, .units = units, .image_units = IMAGE});
}

static const struct image_counts *counts(const struct states *w)
{
	return &w->pool.images.counts;
}

/* ---- images that are not copied ---- */

static void an_image_that_is_not_copied_stays_in_its_slot(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5);

	states_push_down(w, a.image);
	states_spill_ends(w, -EIO);
	assert_state(w, a, "Ds", "dF dF dF");
	states_settle(w);
	assert_state(w, a, "Ds", "d d d");
	assert_int_equal(w->used, 0);
	assert_int_equal(counts(w)->spills_failed, 1);
	assert_int_equal(states_found(w, &one, 3 * PAGE), 2 * PAGE + 5);
	/* The next time it goes. */
	states_push_down(w, a.image);
	states_settle(w);
	assert_state(w, a, "Rp", "R R R");
}

static void an_image_that_could_not_be_copied_twice_goes_for_nowhere(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5);

	for (uint32_t i = 0; i < 3; i++) {
		states_push_down(w, a.image);
		states_spill_ends(w, -EIO);
		states_settle(w);
		assert_state(w, a, "Ds", "d d d");
		/* Who uses it gives it another chance. */
		assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE + 5);
	}
	for (uint32_t i = 0; i < 2; i++) {
		states_push_down(w, a.image);
		states_spill_ends(w, -EIO);
		states_settle(w);
	}
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->pool.indexed + w->used, 0);
	assert_int_equal(w->pool.images.slots_free, SLOTS);
}

static void a_state_whose_image_is_not_copied_is_as_old_as_it_was(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE), b = retain(w, &two, 2 * PAGE);

	states_push_down(w, a.image);
	states_spill_ends(w, -EIO);
	states_settle(w);
	assert_state(w, a, "Ds", "d d");
	states_make_room(w, 62);
	assert_state(w, a, "Rp", "R R");
	assert_state(w, b, "Ds", "d d");
}

/* Whoever waits for pages gets them, however often copies fail. */
static void nobody_waits_for_an_image_that_is_never_copied(void **state)
{
	struct states *w = *state;
	uint32_t i;

	retain(w, &one, 20 * PAGE);
	for (i = 0; i < 10 && pages_free(&w->pool.pages) < 64; i++) {
		pool_make_room(&w->pool, 64);
		while (states_spills(w))
			states_spill_ends(w, -EIO);
		states_settle(w);
		states_check(w);
	}
	assert_true(i < 4);
}

static void switched_off_it_is_tried_for_ever(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 3 * PAGE);

	protection_off[PROTECTION_failed_spills_make_room] = true;
	for (uint32_t i = 0; i < 10; i++) {
		pool_make_room(&w->pool, 64);
		states_spill_ends(w, -EIO);
		states_settle(w);
	}
	protection_off[PROTECTION_failed_spills_make_room] = false;
	assert_state(w, a, "Ds", "d d d");
}

static void an_image_that_is_not_copied_is_lost_with_the_pages_that_have_left(void **state)
{
	struct states *w = *state;
	const struct states_text longer = {.which = 1};
	struct image_name a = retain(w, &one, 2 * PAGE + 5), b = retain(w, &longer, PAGE);

	states_push_down(w, a.image);
	states_down_ends(w, 0);
	assert_state(w, a, "Rsp", "dF lF R");
	states_spill_ends(w, -EIO);
	assert_state(w, a, "-", NULL);
	states_settle(w);
	/* What it shared is the other's, where that is. */
	assert_state(w, b, "Ds", "d");
	assert_int_equal(w->pool.indexed, 1);
	assert_int_equal(w->used, 0);
	assert_int_equal(w->pool.images.slots_free, SLOTS - 1);
}

static void an_image_that_is_not_copied_stays_for_whom_it_is_copied_to(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5);
	uint32_t tokens[3 * PAGE];
	struct match_wish wish = world_wish(world_tokens(tokens, 3 * PAGE, 0, 1), 3 * PAGE);
	struct opening *o;
	struct seq *s;

	states_push_down(w, a.image);
	o = states_open_begins(w, &wish, 3 * PAGE);
	while (!o->copying)
		states_open_turn(w, &o, ALL, &s);
	for (uint32_t i = 0; i < 3; i++)
		states_down_ends(w, 0);
	states_spill_ends(w, -EIO);
	/* Its pages are in use, so that they are all on the device. */
	assert_state(w, a, "Ds", "d d d");
	states_claim_ends(w, &o, 0);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
	assert_int_equal(s->committed, 2 * PAGE + 5);
	world_close(&s);
	assert_state(w, a, "Ds", "d d d");
	assert_int_equal(w->used, 0);
}

static void an_image_that_is_given_up_may_fail_as_well(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5);

	states_push_down(w, a.image);
	pool_give_up(&w->pool, a.image);
	states_spill_ends(w, -EIO);
	states_settle(w);
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->pool.indexed + w->used, 0);
}

/* ---- pages that are not copied ---- */

static void a_page_that_is_not_copied_is_tried_again(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5);

	states_push_down(w, a.image);
	states_down_ends(w, 0);
	states_down_ends(w, -EIO);
	assert_state(w, a, "Rsp", "lF lF R");
	assert_int_equal(states_copies(&w->down), 2);
	states_settle(w);
	assert_state(w, a, "Rp", "R R R");
	assert_int_equal(w->pool.stats.spills_failed, 1);
	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE + 5);
}

static void a_page_that_could_not_be_copied_twice_hides_what_stands_on_it(void **state)
{
	struct states *w = *state;
	struct image_name b = retain(w, &one, PAGE), a = retain(w, &one, 2 * PAGE + 5);
	struct seq *s;

	states_push_down(w, b.image);
	states_push_down(w, a.image);
	states_down_ends(w, 0);    /* the first page */
	states_down_ends(w, 0);    /* the partial one */
	states_down_ends(w, -EIO); /* the second one */
	states_down_ends(w, -EIO);
	states_settle(w);
	assert_state(w, a, "Rp", "R S R");
	assert_state(w, b, "Rp", "R");
	assert_int_equal(w->pool.indexed, 0);
	assert_int_equal(states_found(w, &one, 3 * PAGE), PAGE);
	/* Somebody makes the page again: all is as it was. */
	s = states_open(w, &one, 3 * PAGE);
	assert_int_equal(s->committed, PAGE);
	states_step(w, s, 2 * PAGE);
	assert_int_equal(states_found(w, &one, 3 * PAGE), 2 * PAGE + 5);
	world_close(&s);
	assert_state(w, a, "Rp", "dR lF R");
	states_settle(w);
	assert_state(w, a, "Rp", "dR R R");
	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE + 5);
}

/* What two states share fails for both, and is kept once for both. */
static void a_shared_page_that_fails_is_tried_for_both(void **state)
{
	struct states *w = *state;
	struct image_name b = retain(w, &one, PAGE), a = retain(w, &one, 2 * PAGE);

	states_push_down(w, a.image);
	states_down_ends(w, 0);
	states_down_ends(w, -EIO); /* the first page: the other one keeps it on the device */
	assert_state(w, a, "Rsp", "dS R");
	assert_int_equal(states_copies(&w->down), 0);
	assert_int_equal(states_found(w, &one, 2 * PAGE + 1), 2 * PAGE);
	states_push_down(w, b.image);
	assert_state(w, a, "Rsp", "lF R");
	states_settle(w);
	assert_state(w, a, "Rp", "R R");
	assert_state(w, b, "Rp", "R");
}

static void a_state_whose_page_is_not_copied_can_be_given_up(void **state)
{
	struct states *w = *state;

	for (uint32_t fails = 1; fails <= 3; fails++) {
		struct image_name a = retain(w, &one, 2 * PAGE + 5);

		states_push_down(w, a.image);
		for (uint32_t i = 0; i < fails; i++)
			states_down_ends(w, -EIO);
		pool_give_up(&w->pool, a.image);
		states_settle(w);
		assert_state(w, a, "-", NULL);
		assert_int_equal(w->pool.indexed + w->used, 0);
		world_clean(&w->pool);
	}
}

/* Its copy fails when nobody needs it any more: it goes, too. */
static void a_page_of_a_state_that_is_given_up_may_fail_as_well(void **state)
{
	struct states *w = *state;
	struct image_name a;

	start_with(w, 0, 40);
	a = retain(w, &one, 2 * PAGE + 5);
	states_push_down(w, a.image);
	pool_give_up(&w->pool, a.image);
	for (uint32_t i = 0; i < 3; i++) {
		states_down_ends(w, -EIO);
		states_check(w);
	}
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->pool.indexed + w->used, 0);
}

/* What is to be written again when it leaves the device is not written for a state that goes. */
static void nothing_is_copied_down_of_a_state_that_is_given_up(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE);
	struct seq *s = states_open(w, &one, 2 * PAGE + 1);
	enum capture_skip skip;

	states_push_down(w, a.image);
	states_down_ends(w, -EIO);
	states_settle(w);
	states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_EXISTS);
	world_close(&s);
	assert_state(w, a, "DRp", "dR dS");
	pool_give_up(&w->pool, a.image);
	assert_int_equal(states_copies(&w->down), 0);
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->pool.indexed + w->used, 0);
}

/* ---- where a new image goes ---- */

static void an_image_goes_to_a_slot_then_to_the_tier_below(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, PAGE), b = retain(w, &two, PAGE);
	struct image_name c = retain(w, &three, 2 * PAGE);

	assert_state(w, a, "Ds", "d");
	assert_state(w, b, "Ds", "d");
	assert_state(w, c, "Dp", "d d");
	assert_int_equal(w->used, IMAGE);
	assert_int_equal(states_reuse(w, &three, 3 * PAGE), 2 * PAGE);
	/* Its image is there already when it goes down. */
	states_push_down(w, c.image);
	assert_state(w, c, "Rp", "lF lF");
	assert_int_equal(states_spills(w), 0);
	states_settle(w);
	assert_state(w, c, "Rp", "R R");
	assert_int_equal(states_reuse(w, &three, 3 * PAGE), 2 * PAGE);
	assert_state(w, c, "DRp", "dR dR");
}

static void an_image_takes_the_place_of_what_ranks_below_it(void **state)
{
	struct states *w = *state;
	struct image_name a, b;

	start_with(w, 0, 2 + IMAGE);
	a = retain(w, &one, PAGE);
	states_push_down(w, a.image);
	states_settle(w);
	b = retain(w, &two, PAGE);
	assert_state(w, a, "-", NULL);
	assert_state(w, b, "Dp", "d");
	assert_int_equal(w->used, IMAGE);
	/* That of a state that lives on the device goes with it. */
	a = retain(w, &three, PAGE);
	assert_state(w, b, "-", NULL);
	assert_state(w, a, "Dp", "d");
	assert_int_equal(w->pool.indexed, 1);
}

static void else_it_takes_the_slot_of_a_state_on_the_device(void **state)
{
	struct states *w = *state;
	struct image_name a, b, c;

	start_with(w, 1, IMAGE);
	a = retain(w, &one, PAGE);
	b = retain(w, &important, PAGE);
	assert_state(w, b, "Dp", "d");
	c = retain(w, &two, PAGE);
	assert_state(w, a, "-", NULL);
	assert_state(w, b, "Dp", "d");
	assert_state(w, c, "Ds", "d");
}

static void else_there_is_no_capture(void **state)
{
	struct states *w = *state;
	enum capture_skip skip;
	struct image_name b;
	struct seq *s;

	start_with(w, 0, IMAGE);
	b = retain(w, &important, PAGE);
	s = states_open(w, &one, PAGE + 3);
	states_step(w, s, PAGE + 3);
	states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_NO_SLOT);
	states_check(w);
	world_close(&s);
	assert_state(w, b, "Dp", "d");
	assert_int_equal(w->pool.indexed, 1);
	assert_int_equal(w->pool.stats.capture_skips[CAPTURE_NO_SLOT], 1);
}

static void of_a_capture_that_fails_nothing_is_left(void **state)
{
	struct states *w = *state;

	for (uint32_t slots = 0; slots <= 1; slots++) {
		struct seq *s;
		uint32_t image;

		start_with(w, slots, 20);
		s = states_open(w, &one, PAGE + 3);
		states_step(w, s, PAGE + 3);
		image = states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL);
		assert_int_not_equal(image, IMAGE_NONE);
		assert_int_equal(w->used, slots ? 0 : IMAGE);
		assert_int_equal(states_found(w, &one, 2 * PAGE), 0);
		states_capture_ends(w, image, -EIO);
		states_check(w);
		assert_int_equal(states_found(w, &one, 2 * PAGE), 0);
		world_close(&s);
		assert_int_equal(w->used + w->pool.indexed, 0);
		assert_int_equal(w->pool.images.slots_free, slots);
	}
}

/* What is being filled is no victim, in no tier. */
static void an_image_that_is_being_captured_keeps_its_place(void **state)
{
	struct states *w = *state;
	enum capture_skip skip;
	struct seq *s, *t;
	uint32_t image;

	start_with(w, 0, 2 + IMAGE);
	s = states_open(w, &one, PAGE + 3);
	states_step(w, s, PAGE + 3);
	image = states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL);
	t = states_open(w, &important, PAGE);
	states_step(w, t, PAGE);
	states_capture_begins(w, t, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_NO_SLOT);
	world_close(&s);
	assert_false(pool_make_room(&w->pool, 64));
	states_check(w);
	states_capture_ends(w, image, 0);
	assert_string_equal(states_pages(w, image), "d d");
	image = states_capture_begins(w, t, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_MADE);
	world_close(&t);
	states_check(w);
	states_capture_ends(w, image, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(an_image_that_is_not_copied_stays_in_its_slot),
	    TEST(an_image_that_could_not_be_copied_twice_goes_for_nowhere),
	    TEST(a_state_whose_image_is_not_copied_is_as_old_as_it_was),
	    TEST(nobody_waits_for_an_image_that_is_never_copied),
	    TEST(switched_off_it_is_tried_for_ever),
	    TEST(an_image_that_is_not_copied_is_lost_with_the_pages_that_have_left),
	    TEST(an_image_that_is_not_copied_stays_for_whom_it_is_copied_to),
	    TEST(an_image_that_is_given_up_may_fail_as_well),
	    TEST(a_page_that_is_not_copied_is_tried_again),
	    TEST(a_page_that_could_not_be_copied_twice_hides_what_stands_on_it),
	    TEST(a_shared_page_that_fails_is_tried_for_both),
	    TEST(a_state_whose_page_is_not_copied_can_be_given_up),
	    TEST(a_page_of_a_state_that_is_given_up_may_fail_as_well),
	    TEST(nothing_is_copied_down_of_a_state_that_is_given_up),
	    TEST(an_image_goes_to_a_slot_then_to_the_tier_below),
	    TEST(an_image_takes_the_place_of_what_ranks_below_it),
	    TEST(else_it_takes_the_slot_of_a_state_on_the_device),
	    TEST(else_there_is_no_capture),
	    TEST(of_a_capture_that_fails_nothing_is_left),
	    TEST(an_image_that_is_being_captured_keeps_its_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
