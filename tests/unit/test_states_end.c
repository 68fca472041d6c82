/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/pool_states.h: retained states of a hybrid pool that go for nowhere, from
 * all tiers, whatever is under way. One thread; nothing blocks.
 */

#include "tests/unit/states_small.h"

#include <errno.h>

#define SLOTS 3u

static int setup(void **state)
{
	return setup_slots(state, SLOTS);
}

static void a_state_that_is_copied_from_goes_when_that_has_ended(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE + 5);
	uint32_t tokens[3 * PAGE];
	struct match_wish wish = world_wish(world_tokens(tokens, 3 * PAGE, 0, 1), 3 * PAGE);
	struct opening *o = states_open_begins(w, &wish, 3 * PAGE);
	struct seq *s;

	while (!o->copying) {
		states_open_turn(w, &o, ALL, &s);
		states_settle(w);
	}
	pool_give_up(&w->pool, a.image);
	assert_state(w, a, "XRp", "dR dR dR");
	assert_int_equal(states_found(w, &one, 3 * PAGE), 0);
	states_claim_ends(w, &o, 0);
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->used, 0);
	/* Who has claimed it has it. */
	assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
	assert_int_equal(s->committed, 2 * PAGE + 5);
	world_close(&s);
	states_check(w);
	assert_int_equal(w->pool.indexed, 0);
}

/* Who waited for its image has gone when that turns out to be unreadable. */
static void a_state_that_cannot_be_read_is_found_no_more_whoever_has_asked(void **state)
{
	struct states *w = *state;
	struct image_name a = put_down(w, &one, 2 * PAGE + 5);
	uint32_t tokens[3 * PAGE];
	struct match_wish wish = world_wish(world_tokens(tokens, 3 * PAGE, 0, 1), 3 * PAGE);
	struct opening *o = states_open_begins(w, &wish, 3 * PAGE);
	struct seq *s;

	while (!o->copying) {
		states_open_turn(w, &o, ALL, &s);
		states_settle(w);
	}
	states_open_abandon(w, &o);
	states_claim_ends(w, &o, -EIO);
	states_check(w);
	assert_int_equal(w->pool.images.counts.restores_failed, 1);
	assert_int_equal(states_found(w, &one, 3 * PAGE), 0);
	states_settle(w);
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->used, 0);
	assert_int_equal(w->pool.indexed, 0);
}

static void a_state_given_up_while_it_goes_down_leaves_nothing(void **state)
{
	struct states *w = *state;

	for (uint32_t ended = 0; ended <= 4; ended++) {
		struct image_name a = retain(w, &one, 2 * PAGE + 5);

		states_push_down(w, a.image);
		for (uint32_t i = 0; i < ended && i < 3; i++)
			states_down_ends(w, 0);
		if (ended == 4)
			states_spill_ends(w, 0);
		pool_give_up(&w->pool, a.image);
		states_check(w);
		assert_int_equal(states_found(w, &one, 3 * PAGE), 0);
		states_settle(w);
		assert_state(w, a, "-", NULL);
		assert_int_equal(w->used, 0);
		assert_int_equal(w->pool.indexed, 0);
		assert_int_equal(slots_free(w), SLOTS);
		world_clean(&w->pool);
	}
}

/* It was in use when its copy began: it waits for that, though nobody needs it any more. */
static void a_page_does_not_leave_under_its_copy(void **state)
{
	struct states *w = *state;
	struct image_name a, b;
	struct seq *s;

	start_again(w, &(struct states_limits){.pages = 8, .units = 40, .image_units = IMAGE});
	a = retain(w, &one, 2 * PAGE);
	s = states_open(w, &one, 3 * PAGE);
	assert_int_equal(s->committed, 2 * PAGE);
	states_push_down(w, a.image);
	assert_state(w, a, "Rp", "dF dF");
	pool_give_up(&w->pool, a.image);
	world_close(&s);
	states_check(w);
	assert_int_equal(w->pool.leaving, 2);
	/* Others take the pages, and one makes the same text again. */
	s = states_open(w, &two, 2 * PAGE);
	states_step(w, s, 2 * PAGE);
	states_check(w);
	b = retain(w, &one, 2 * PAGE);
	states_push_down(w, b.image);
	states_settle(w);
	assert_state(w, b, "Rp", "R R");
	world_close(&s);
	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 2 * PAGE);
}

/* Somebody looks for pages. Live pages that go down with that state would take the places that were
 * planned for another one. */
static void what_a_state_leaves_behind_takes_no_place_that_was_planned(void **state)
{
	struct states *w = *state;
	struct image_name a, b;
	uint32_t node[5], at;
	struct seq *s;

	start_again(
	    w, &(struct states_limits){.pages = 12, .units = 2 * IMAGE + 1, .image_units = IMAGE});
	a = retain(w, &one, 5 * PAGE);
	s = states_open(w, &one, 6 * PAGE);
	at = s->node;
	for (int i = 0; i < 5; i++, at = w->pool.prefix.nodes[at].parent) {
		node[i] = at;
		pool_park(&w->pool, at); /* a live sequence has let go of it */
	}
	world_close(&s);
	b = retain(w, &two, 2 * PAGE);
	w->pool.sends_parked = true;
	assert_int_equal(pool_push_down(&w->pool, b.image), 0);
	w->pool.sends_parked = false;
	assert_state(w, a, "-", NULL);
	assert_int_equal(w->pool.stats.ram_refused, 0);
	for (int i = 0; i < 5; i++)
		assert_false(w->pool.prefix.nodes[node[i]].moves & NODE_LEAVING);
	/* They go as far as there is room beside it. */
	states_settle(w);
	assert_state(w, b, "Rp", "R R");
	for (int i = 0; i < 5; i++)
		assert_true(prefix_can_be_read(&w->pool.prefix.nodes[node[i]]));
	assert_int_equal(w->used, w->units);
	states_check(w);
	for (int i = 0; i < 5; i++)
		pool_unpark(&w->pool, node[i]);
	states_settle(w);
	states_check(w);
	assert_int_equal(w->pool.indexed, 0);
}

static void a_namespace_is_dropped_from_all_tiers(void **state)
{
	struct states *w = *state;
	const struct states_text theirs = {.which = 1, .name_space = 1};
	struct image_name a = put_down(w, &theirs, 2 * PAGE), b, c, d;
	uint32_t budget = 1;

	b = retain(w, &(struct states_text){.which = 2, .name_space = 1}, 3 * PAGE);
	c = put_down(w, &one, 2 * PAGE);
	d = retain(w, &two, 3 * PAGE);
	states_push_down(w, b.image);
	assert_false(pool_drop_states(&w->pool, 1, &budget));
	budget = 10;
	assert_true(pool_drop_states(&w->pool, 1, &budget));
	assert_int_equal(budget, 9);
	assert_state(w, a, "-", NULL);
	assert_state(w, b, "XRsp", "lF lF lF");
	states_settle(w);
	assert_state(w, b, "-", NULL);
	assert_state(w, c, "Rp", "R R");
	assert_state(w, d, "Ds", "d d d");
	assert_int_equal(w->used, 2 + IMAGE);
	budget = 10;
	assert_true(pool_drop_states(&w->pool, RETAIN_NAMESPACES, &budget));
	assert_int_equal(w->used + w->pool.indexed, 0);
}

static uint32_t capture(struct states *w, struct seq *s, bool is_user)
{
	uint32_t image = states_capture_begins(w, s, IMAGE_CHECKPOINT, is_user, NULL);

	assert_int_not_equal(image, IMAGE_NONE);
	states_capture_ends(w, image, 0);
	return image;
}

/* The latest of a conversation and the one after its last user message: no others, in no tier. */
static void a_conversation_that_goes_on_gives_up_what_it_had_below(void **state)
{
	struct states *w = *state;
	struct seq *s = states_open(w, &one, 3 * PAGE);
	struct image_name user, latest, next;

	states_step(w, s, PAGE);
	user = states_name(w, capture(w, s, true));
	states_step(w, s, 2 * PAGE + 3);
	latest = states_name(w, capture(w, s, false));
	world_close(&s);
	states_make_room(w, 64);
	assert_state(w, user, "Rp", "R");
	assert_state(w, latest, "Rp", "R R R");
	/* It goes on without another user message: the latest is replaced. */
	s = states_open(w, &one, 4 * PAGE);
	assert_int_equal(s->committed, 2 * PAGE + 3);
	states_step(w, s, 3 * PAGE);
	next = states_name(w, capture(w, s, false));
	assert_state(w, latest, "-", NULL);
	assert_state(w, user, "Rp", "dR");
	world_close(&s);
	assert_state(w, next, "Ds", "dR d d");
	assert_int_equal(w->used, 1 + IMAGE);
	states_push_down(w, next.image);
	states_settle(w);
	/* And with one: both are. */
	s = states_open(w, &one, 5 * PAGE);
	assert_int_equal(s->committed, 3 * PAGE);
	states_step(w, s, 4 * PAGE);
	latest = states_name(w, capture(w, s, true));
	world_close(&s);
	assert_state(w, user, "-", NULL);
	assert_state(w, next, "-", NULL);
	assert_state(w, latest, "Ds", "d d d d");
	assert_int_equal(w->used, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_state_that_is_copied_from_goes_when_that_has_ended),
	    TEST(a_state_that_cannot_be_read_is_found_no_more_whoever_has_asked),
	    TEST(a_state_given_up_while_it_goes_down_leaves_nothing),
	    TEST(a_page_does_not_leave_under_its_copy),
	    TEST(what_a_state_leaves_behind_takes_no_place_that_was_planned),
	    TEST(a_namespace_is_dropped_from_all_tiers),
	    TEST(a_conversation_that_goes_on_gives_up_what_it_had_below),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
