/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/pool_states.h: retained states of a hybrid pool go to the tier below it,
 * which the test plays, and live in both tiers. One thread; nothing blocks.
 */

#include "tests/unit/states_small.h"

#include <errno.h>

#define SLOTS 3u

static const struct states_text three = {.which = 3};

static int setup(void **state)
{
	return setup_slots(state, SLOTS);
}

/* ---- down ---- */

static void a_state_goes_down_as_a_whole(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5);

	assert_state(w, a, "Ds", "d d d");
	states_push_down(w, a.image);
	assert_state(w, a, "Rsp", "lF lF lF");
	/* It is found as before until all of it has gone, and after that. */
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(states_found(w, &one, 3 * PAGE), 2 * PAGE + 5);
		states_down_ends(w, 0);
	}
	assert_state(w, a, "Rsp", "R R R");
	assert_int_equal(w->pool.indexed, 0);
	assert_int_equal(states_spills(w), 1);
	states_spill_ends(w, 0);
	assert_state(w, a, "Rp", "R R R");
	assert_int_equal(slots_free(w), SLOTS);
	assert_int_equal(w->used, 3 + IMAGE);
	assert_int_equal(states_found(w, &one, 3 * PAGE), 2 * PAGE + 5);
	assert_int_equal(w->pool.images.counts.spilled, 1);
	assert_int_equal(w->pool.stats.spills, 3);
}

static void whoever_wants_pages_sends_down_the_least_recently_used(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 20 * PAGE), b = retain(w, &two, 10 * PAGE);

	assert_int_equal(states_reuse(w, &one, 20 * PAGE + 1), 20 * PAGE);
	states_make_room(w, 40);
	assert_state(w, a, "Ds", NULL);
	assert_state(w, b, "Rp", NULL);
	assert_int_equal(w->pool.indexed, 20);
	assert_int_equal(w->pool.stats.discards, 0);
}

/* Not the one whose copy ended first. */
static void the_one_captured_first_leaves_first(void **state)
{
	struct states *w = *state;
	struct seq *s = states_open(w, &one, 2 * PAGE), *t = states_open(w, &two, 2 * PAGE);
	struct image_name a, b;

	states_step(w, s, 2 * PAGE);
	states_step(w, t, 2 * PAGE);
	a = states_name(w, states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL));
	b = states_name(w, states_capture_begins(w, t, IMAGE_CHECKPOINT, false, NULL));
	states_capture_ends(w, b.image, 0);
	states_capture_ends(w, a.image, 0);
	world_close(&s);
	world_close(&t);
	states_make_room(w, 62);
	assert_state(w, a, "Rp", "R R");
	assert_state(w, b, "Ds", "d d");
}

/* Not the one that came back first. */
static void the_one_claimed_first_leaves_first(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE), b = retain(w, &two, 2 * PAGE);
	uint32_t *tokens = states_tokens(&one, 3 * PAGE);
	struct match_wish wish = world_wish(tokens, 3 * PAGE);
	struct opening *o = states_open_begins(w, &wish, 3 * PAGE);
	struct seq *s;

	while (!o->copying) {
		states_open_turn(w, &o, ALL, &s);
		states_settle(w);
	}
	assert_int_equal(states_reuse(w, &two, 3 * PAGE), 2 * PAGE);
	states_claim_ends(w, &o, 0);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
	world_close(&s);
	assert_state(w, a, "DRp", "dR dR");
	states_make_room(w, 62);
	assert_state(w, a, "Rp", "R R");
	assert_state(w, b, "Ds", "d d");
	free(tokens);
}

/* Of namespaces that are sure of as little, whatever their numbers. */
static void whose_state_it_is_does_not_matter_if_their_claims_are_equal(void **state)
{
	struct states *w = *state;
	struct image_name prefix, a, b, c;

	pool_set_quota(&w->pool, 2, 40, 4);
	c = retain(w, &(struct states_text){.which = 3, .name_space = 2}, 2 * PAGE);
	prefix = retain(w, &(struct states_text){.which = 4, .kind = IMAGE_PREFIX}, 2 * PAGE);
	a = retain(w, &(struct states_text){.which = 1, .name_space = 1}, 2 * PAGE);
	b = retain(w, &one, 2 * PAGE);
	states_make_room(w, 58);
	assert_state(w, a, "Rp", "R R");
	assert_state(w, b, "Dp", "d d");
	states_make_room(w, 60);
	assert_state(w, b, "Rp", "R R");
	assert_state(w, prefix, "Ds", "d d");
	/* Another one's claim is stronger. */
	states_make_room(w, 62);
	assert_state(w, prefix, "Rp", "R R");
	assert_state(w, c, "Ds", "d d");
}

static void a_page_leaves_the_device_after_what_stands_on_it(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE);
	struct image_name b = retain(w, &(struct states_text){.which = 1}, 4 * PAGE);

	/* The shorter one alone: the other needs its pages on the device. */
	states_push_down(w, a.image);
	assert_state(w, a, "Rsp", "dF dF");
	assert_state(w, b, "Ds", "dF dF d d");
	states_settle(w);
	assert_state(w, b, "Ds", "dR dR d d");
	states_push_down(w, b.image);
	assert_state(w, b, "Rsp", "lR lR lF lF");
	states_down_ends(w, 0);
	assert_state(w, b, "Rsp", "lR lR lF R");
	states_down_ends(w, 0);
	assert_state(w, b, "Rsp", "R R R R");
	states_settle(w);
	assert_int_equal(w->used, 4 + 2 * IMAGE);
}

static void a_slot_is_free_when_its_image_is_below_and_nobody_copies_from_it(void **state)
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
	assert_int_not_equal(o->slot, SLOT_NONE);
	states_settle(w);
	assert_state(w, a, "Rsp", "dR dR dR"); /* they are in use */
	assert_int_equal(slots_free(w), SLOTS - 1);
	states_claim_ends(w, &o, 0);
	assert_state(w, a, "DRp", "dR dR dR"); /* it has come back */
	assert_int_equal(slots_free(w), SLOTS);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
	world_close(&s);
	assert_state(w, a, "DRp", "dR dR dR");
}

static void with_no_room_below_a_state_goes_for_nowhere(void **state)
{
	struct states *w = *state;
	struct image_name a, b;

	start_again(w, &(struct states_limits){
			   .pages = 64, .slots = SLOTS, .units = 3 + IMAGE, .image_units = IMAGE});
	a = put_down(w, &one, 3 * PAGE);
	b = retain(w, &two, 4 * PAGE);
	assert_int_equal(w->used, 3 + IMAGE);
	/* It ranks above the other, whose place would not be enough. */
	states_push_down(w, b.image);
	assert_state(w, b, "-", NULL);
	assert_state(w, a, "Rp", "R R R");
	assert_int_equal(w->pool.stats.ram_refused, 1);
	assert_int_equal(w->pool.indexed, 0);
	assert_int_equal(slots_free(w), SLOTS);
	/* And one for which it is. */
	b = put_down(w, &three, 3 * PAGE);
	assert_state(w, a, "-", NULL);
	assert_state(w, b, "Rp", "R R R");
}

static void what_cannot_be_had_is_given_back(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE), b;
	const struct states_text longer = {.which = 1};
	uint32_t used = w->used;

	b = retain(w, &longer, 5 * PAGE + 2);
	assert_state(w, b, "Ds", "dR dR d d d d");
	for (uint32_t after = 0; after < 5; after++) {
		w->says = POOL_WAIT;
		w->says_after = after;
		assert_int_equal(pool_push_down(&w->pool, b.image), POOL_WAIT);
		assert_state(w, b, "Ds", "dR dR d d d d");
		assert_int_equal(w->used, used);
		assert_int_equal(states_copies(&w->down) + states_spills(w), 0);
	}
	w->says = POOL_NEVER;
	w->says_after = 2;
	states_push_down(w, b.image);
	w->says = 0;
	assert_state(w, b, "-", NULL);
	assert_state(w, a, "DRp", "dR dR");
	assert_int_equal(w->used, used);
	assert_int_equal(w->pool.indexed, 2);
}

static void without_a_tier_below_a_state_goes_for_nowhere(void **state)
{
	struct states *w = *state;
	struct image_name a;

	start_again(w, &(struct states_limits){.pages = 64, .slots = SLOTS, .image_units = IMAGE});
	a = retain(w, &one, 2 * PAGE);
	states_push_down(w, a.image);
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->pool.indexed, 0);
}

/* ---- sharing ---- */

static void two_states_share_their_pages_in_each_tier(void **state)
{
	struct states *w = *state;
	const uint32_t shared = 40000, pages = shared / PAGE;
	const struct states_text a_text = {.which = 1, .shared = shared};
	const struct states_text b_text = {.which = 2, .shared = shared};
	struct image_name root, a, b;

	start_again(
	    w, &(struct states_limits){
		   .pages = pages + 16, .slots = 3, .units = pages + 32, .image_units = IMAGE});
	root = retain(w, &a_text, shared);
	a = retain(w, &a_text, shared + 2 * PAGE + 3);
	b = retain(w, &b_text, shared + PAGE);
	pool_give_up(&w->pool, root.image);
	assert_int_equal(w->pool.indexed, pages + 3 + 1);
	states_push_down(w, a.image);
	assert_int_equal(w->used, IMAGE + pages + 3);
	states_push_down(w, b.image);
	assert_int_equal(w->used, 2 * IMAGE + pages + 3 + 1);
	states_settle(w);
	states_check(w);
	assert_int_equal(w->pool.indexed, 0);
	assert_int_equal(w->pool.stats.spills, pages + 3 + 1);
	/* One is wanted: the other's own pages stay below. */
	world_clean(&w->pool);
	assert_int_equal(states_reuse(w, &a_text, shared + 3 * PAGE), shared + 2 * PAGE + 3);
	assert_int_equal(w->pool.indexed, pages + 3);
	pool_give_up(&w->pool, a.image);
	states_check(w);
	assert_int_equal(w->pool.indexed, 0);
	assert_int_equal(w->used, IMAGE + pages + 1);
	assert_int_equal(states_found(w, &b_text, shared + 2 * PAGE), shared + PAGE);
	pool_give_up(&w->pool, b.image);
	assert_int_equal(w->used, 0);
	assert_int_equal(w->pool.prefix.used, 0);
}

/* A state that goes down shares pages with the one that gives it its place. */
static void what_it_shares_with_its_victim_stays(void **state)
{
	struct states *w = *state;
	const struct states_text other = {.which = 2, .shared = 2 * PAGE};
	struct image_name root, a, b;

	start_again(w, &(struct states_limits){
			   .pages = 64, .slots = 4, .units = 4 + IMAGE, .image_units = IMAGE});
	root = retain(w, &(struct states_text){.which = 1, .shared = 2 * PAGE}, 2 * PAGE);
	a = put_down(w, &(struct states_text){.which = 1, .shared = 2 * PAGE}, 3 * PAGE);
	b = retain(w, &other, 4 * PAGE);
	pool_give_up(&w->pool, root.image);
	assert_int_equal(w->used, 3 + IMAGE);
	states_push_down(w, b.image);
	assert_state(w, a, "-", NULL);
	assert_state(w, b, "Rsp", "lR lR lF lF");
	states_settle(w);
	assert_state(w, b, "Rp", "R R R R");
	assert_int_equal(w->used, 4 + IMAGE);
	assert_int_equal(w->pool.stats.spills, 3 + 2);
	assert_int_equal(w->plans_broken, 0);
}

/* What is on its way down cannot make room for another: it is counted on by nobody. */
static void a_plan_counts_on_no_page_that_is_under_way(void **state)
{
	struct states *w = *state;
	const struct states_text important = {.which = 2, .interactive = true};
	struct image_name a, b;
	uint32_t made;

	start_again(w, &(struct states_limits){
			   .pages = 64, .slots = 0, .units = 4 + 2 * IMAGE, .image_units = IMAGE});
	a = retain(w, &one, 4 * PAGE);
	b = retain(w, &important, 6 * PAGE);
	assert_state(w, a, "Dp", "d d d d");
	states_push_down(w, a.image);
	made = w->plans_made;
	states_push_down(w, b.image);
	assert_int_equal(w->plans_made, made);
	assert_state(w, b, "-", NULL);
	assert_state(w, a, "Rp", "lF lF lF lF");
	states_settle(w);
	/* Once it has come there it is. */
	b = retain(w, &important, 6 * PAGE);
	states_push_down(w, b.image);
	assert_state(w, a, "-", NULL);
	assert_state(w, b, "Rp", "lF lF lF lF lF lF");
	assert_int_equal(w->plans_broken, 0);
}

/* It would give up its image at once, and its pages when they have come for nothing. */
static void a_state_on_its_way_down_makes_room_for_nobody(void **state)
{
	struct states *w = *state;
	const struct states_text important = {.which = 2, .interactive = true};

	for (int result = 0; result >= -EIO; result -= EIO) {
		struct image_name root, a, b;

		start_again(w, &(struct states_limits){
				   .pages = 64, .units = 5 + 3 * IMAGE, .image_units = IMAGE});
		root = retain(w, &one, 2 * PAGE);
		a = retain(w, &one, 3 * PAGE);
		/* All that the shorter one needs there is on its way already. */
		states_push_down(w, a.image);
		states_push_down(w, root.image);
		for (uint32_t left = 3; left > 0; left--) {
			b = retain(w, &important, 4 * PAGE);
			states_push_down(w, b.image);
			assert_state(w, b, "-", NULL);
			assert_string_equal(states_where(w, root), "Rp");
			assert_string_equal(states_where(w, a), "Rp");
			states_down_ends(w, left == 1 ? result : 0);
		}
		b = retain(w, &important, 4 * PAGE);
		states_push_down(w, b.image);
		assert_state(w, root, "-", NULL);
		assert_state(w, b, "Rp", NULL);
	}
}

/* ---- up ---- */

static void a_state_that_is_fetched_lives_in_both_tiers(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE + 5);

	assert_false(w->pool.images.image[a.image].is_protected);
	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE + 5);
	assert_state(w, a, "DRp", "dR dR dR");
	assert_true(w->pool.images.image[a.image].is_protected);
	assert_int_equal(w->pool.images.counts.restored, 1);
	assert_int_equal(w->pool.stats.restores, 3);
	assert_int_equal(w->pool.stats.ram_hits, 1);
	/* It goes again without a write. */
	states_push_down(w, a.image);
	assert_state(w, a, "Rp", "R R R");
	assert_int_equal(states_copies(&w->down) + states_spills(w), 0);
	assert_int_equal(w->pool.stats.releases, 3);
	/* A hit on the device asks for nothing there. */
	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE + 5);
	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE + 5);
	assert_int_equal(w->pool.stats.restores, 6);
	assert_int_equal(w->pool.stats.ram_hits, 2);
}

static struct seq *compute_anew(struct states *w, uint32_t which, uint32_t n)
{
	uint32_t *tokens = world_tokens(malloc(n * sizeof(uint32_t)), n, 0, which);
	struct match_wish wish = world_wish(tokens, n);
	struct seq *s;

	wish.max_cached_tokens = 0;
	s = states_open_wish(w, &wish, n);
	states_step(w, s, n);
	free(tokens);
	return s;
}

static void a_state_that_is_computed_again_lives_on_the_device_again(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE + 5);
	struct seq *s = compute_anew(w, 1, 2 * PAGE + 5);
	enum capture_skip skip;

	states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_EXISTS);
	assert_state(w, a, "DRp", "dR dR dR");
	world_close(&s);
	assert_state(w, a, "DRp", "dR dR dR");
	assert_int_equal(w->used, 3 + IMAGE);
}

static void a_state_that_is_captured_again_while_it_comes_back_has_come_back(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE + 5);
	struct seq *s = compute_anew(w, 1, 2 * PAGE + 5), *t;
	uint32_t *tokens = world_tokens(malloc(3 * PAGE * sizeof(uint32_t)), 3 * PAGE, 0, 1);
	struct match_wish wish = world_wish(tokens, 3 * PAGE);
	struct opening *o = states_open_begins(w, &wish, 3 * PAGE);
	enum capture_skip skip;

	while (!o->copying) {
		states_open_turn(w, &o, ALL, &t);
		states_settle(w);
	}
	states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_EXISTS);
	assert_state(w, a, "DRp", "dR dR dR");
	assert_false(w->pool.images.image[a.image].is_protected);
	states_claim_ends(w, &o, 0);
	assert_true(w->pool.images.image[a.image].is_protected);
	assert_int_equal(states_open_turn(w, &o, ALL, &t), 0);
	assert_int_equal(t->committed, 2 * PAGE + 5);
	world_close(&t);
	world_close(&s);
	assert_state(w, a, "DRp", "dR dR dR");
	free(tokens);
}

/* Its image lies in its slot still, its pages have gone. */
static void a_state_that_is_claimed_on_its_way_down_has_come_back(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = world_tokens(malloc(3 * PAGE * sizeof(uint32_t)), 3 * PAGE, 0, 1);
	struct match_wish wish = world_wish(tokens, 3 * PAGE);
	struct image_name a = retain(w, &one, 2 * PAGE + 5);
	struct opening *o;
	struct seq *s;

	states_push_down(w, a.image);
	while (states_copies(&w->down))
		states_down_ends(w, 0);
	assert_state(w, a, "Rsp", "R R R");
	o = states_open_begins(w, &wish, 3 * PAGE);
	while (!o->copying) {
		states_open_turn(w, &o, ALL, &s);
		while (states_copies(&w->up))
			states_up_ends(w, 0);
	}
	assert_int_equal(o->place, COPY_NONE);
	states_claim_ends(w, &o, 0);
	assert_true(w->pool.images.image[a.image].is_protected);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
	world_close(&s);
	states_settle(w);
	assert_state(w, a, "DRp", "dR dR dR");
	free(tokens);
}

static void what_may_not_arrive_is_not_captured(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = world_tokens(malloc(3 * PAGE * sizeof(uint32_t)), 3 * PAGE, 0, 1);
	struct match_wish wish = world_wish(tokens, 3 * PAGE);
	struct image_name a = put_down(w, &one, 2 * PAGE + 5), b;
	struct opening *o = states_open_begins(w, &wish, 3 * PAGE);
	enum capture_skip skip;
	struct seq *s, *t;

	assert_int_equal(states_open_turn(w, &o, ALL, &t), POOL_WAIT);
	assert_int_equal(states_copies(&w->up), 3);
	/* It has the same pages, and follows those that are on their way. */
	s = compute_anew(w, 1, 2 * PAGE);
	assert_int_equal(states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip), IMAGE_NONE);
	assert_int_equal(skip, CAPTURE_UNKNOWN);
	states_up_ends(w, 0);
	states_up_ends(w, -EIO);
	states_check(w);
	assert_int_equal(states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip), IMAGE_NONE);
	assert_int_equal(skip, CAPTURE_UNKNOWN);
	states_open_abandon(w, &o);
	states_settle(w);
	world_close(&s);
	assert_state(w, a, "Rp", NULL);
	/* Nothing is on its way now. */
	s = compute_anew(w, 1, 2 * PAGE);
	b = states_name(w, states_capture(w, s));
	world_close(&s);
	assert_int_equal(states_where(w, b)[0], 'D');
	states_check(w);
	free(tokens);
}

static void a_state_that_is_captured_again_while_it_leaves_stays(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5);
	struct seq *s = compute_anew(w, 1, 2 * PAGE + 5);
	enum capture_skip skip;

	states_push_down(w, a.image);
	assert_state(w, a, "Rsp", "dF dF lF");
	states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_EXISTS);
	assert_state(w, a, "DRsp", "dF dF dF");
	states_settle(w);
	world_close(&s);
	assert_state(w, a, "DRp", "dR dR dR");
}

static void a_state_takes_the_pages_of_one_that_is_given_up_while_it_leaves(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, &one, 2 * PAGE + 5), b;
	struct seq *s = compute_anew(w, 1, 2 * PAGE + 5);
	uint32_t image;

	states_push_down(w, a.image);
	pool_give_up(&w->pool, a.image);
	assert_state(w, a, "XRsp", "dF dF lF");
	image = states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL);
	assert_int_not_equal(image, IMAGE_NONE);
	b = states_name(w, image);
	states_capture_ends(w, image, 0);
	assert_state(w, b, "Ds", "dF dF dF");
	states_settle(w);
	world_close(&s);
	assert_state(w, a, "-", NULL);
	assert_state(w, b, "Ds", "d d d");
	assert_int_equal(w->used, 0);
}

/* ---- whole ---- */

static void switched_off_the_pages_of_a_state_do_not_stay(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE + 5);

	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE + 5);
	protection_off[PROTECTION_states_stay_whole] = true;
	states_push_down(w, a.image);
	assert_int_equal(states_found(w, &one, 3 * PAGE), 0);
	/* The state is still there, and nothing of it is found. */
	assert_string_equal(states_where(w, a), "Rp");
	pool_give_up(&w->pool, a.image);
	protection_off[PROTECTION_states_stay_whole] = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_state_goes_down_as_a_whole),
	    TEST(whoever_wants_pages_sends_down_the_least_recently_used),
	    TEST(the_one_captured_first_leaves_first),
	    TEST(the_one_claimed_first_leaves_first),
	    TEST(whose_state_it_is_does_not_matter_if_their_claims_are_equal),
	    TEST(a_page_leaves_the_device_after_what_stands_on_it),
	    TEST(a_slot_is_free_when_its_image_is_below_and_nobody_copies_from_it),
	    TEST(with_no_room_below_a_state_goes_for_nowhere),
	    TEST(what_cannot_be_had_is_given_back),
	    TEST(without_a_tier_below_a_state_goes_for_nowhere),
	    TEST(two_states_share_their_pages_in_each_tier),
	    TEST(what_it_shares_with_its_victim_stays),
	    TEST(a_plan_counts_on_no_page_that_is_under_way),
	    TEST(a_state_on_its_way_down_makes_room_for_nobody),
	    TEST(a_state_that_is_fetched_lives_in_both_tiers),
	    TEST(a_state_that_is_computed_again_lives_on_the_device_again),
	    TEST(a_state_that_is_captured_again_while_it_comes_back_has_come_back),
	    TEST(a_state_that_is_claimed_on_its_way_down_has_come_back),
	    TEST(what_may_not_arrive_is_not_captured),
	    TEST(a_state_that_is_captured_again_while_it_leaves_stays),
	    TEST(a_state_takes_the_pages_of_one_that_is_given_up_while_it_leaves),
	    TEST(switched_off_the_pages_of_a_state_do_not_stay),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
