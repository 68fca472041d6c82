/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/match.h: states of a hybrid pool that are found in KV-RAM and cannot be
 * fetched. One thread; nothing blocks.
 */

#include "tests/unit/states_below.h"

#include <errno.h>

static void a_page_that_does_not_come_leaves_the_states_before_it(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, 2 * PAGE + 3), b = retain(w, 6 * PAGE + 1);
	uint32_t *tokens = states_tokens(&one, 7 * PAGE);
	struct match_wish wish = world_wish(tokens, 7 * PAGE),
			  shorter = world_wish(tokens, 4 * PAGE);
	struct opening *o, *other;
	struct seq *s = NULL;

	put_down(w, a);
	put_down(w, b);
	o = states_open_begins(w, &wish, 7 * PAGE);
	other = states_open_begins(w, &shorter, 4 * PAGE);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), POOL_WAIT);
	assert_int_equal(states_open_turn(w, &other, ALL, &s), POOL_WAIT);
	assert_int_equal(states_copies(&w->up), 8);
	for (uint32_t i = 0; i < 4; i++)
		states_up_ends(w, 0);
	states_up_ends(w, -EIO); /* the fifth page */
	states_check(w);
	while (states_open_turn(w, &o, ALL, &s) == POOL_MORE)
		states_check(w);
	/* It waits for the partial page of the other state, as the other open does. */
	states_settle(w);
	while (!o->copying)
		states_open_turn(w, &o, ALL, &s);
	states_claim_ends(w, &o, 0);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
	assert_int_equal(s->committed, 2 * PAGE + 3);
	assert_int_equal(misses(w, MATCH_RESTORE), 1);
	world_close(&s);
	while (!other->copying)
		states_open_turn(w, &other, ALL, &s);
	states_claim_ends(w, &other, 0);
	assert_int_equal(states_open_turn(w, &other, ALL, &s), 0);
	assert_int_equal(s->committed, 2 * PAGE + 3);
	assert_int_equal(misses(w, MATCH_RESTORE), 1);
	world_close(&s);
	states_check(w);
	/* Nobody is served from that page again; what stands on it is not found. */
	assert_string_equal(states_pages(w, b.image), "dR dR R R S R R");
	assert_int_equal(states_found(w, &one, 7 * PAGE), 2 * PAGE + 3);
	assert_where(w, a, "DRp");
	free(tokens);
}

static void with_no_state_before_it_nothing_is_left(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = states_tokens(&one, 4 * PAGE);
	struct match_wish wish = world_wish(tokens, 4 * PAGE);
	struct image_name a = retain(w, 3 * PAGE + 1);
	struct opening *o;
	struct seq *s;

	put_down(w, a);
	o = states_open_begins(w, &wish, 4 * PAGE);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), POOL_WAIT);
	states_up_ends(w, -EIO);
	states_settle(w);
	while (states_open_turn(w, &o, ALL, &s))
		assert_false(o->copying);
	assert_int_equal(s->committed, 0);
	assert_int_equal(misses(w, MATCH_RESTORE), 1);
	states_check(w);
	/* It computes all of it: everything is as it was. */
	states_step(w, s, 3 * PAGE + 1);
	assert_int_equal(states_found(w, &one, 4 * PAGE), 3 * PAGE + 1);
	world_close(&s);
	states_settle(w);
	assert_string_equal(states_pages(w, a.image), "R R R R");
	assert_int_equal(states_found(w, &one, 4 * PAGE), 3 * PAGE + 1);
	free(tokens);
}

/* Somebody else has computed the same, and would keep its last page on the device, which is on its
 * way there and does not arrive. */
static void what_is_on_its_way_up_is_kept_by_nobody(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = states_tokens(&one, PAGE);
	struct match_wish wish = world_wish(tokens, PAGE), no_reuse = world_wish(tokens, PAGE);
	struct image_name a = retain(w, 5);
	struct opening *o;
	struct seq *s, *same;
	enum capture_skip skip;

	put_down(w, a);
	o = states_open_begins(w, &wish, PAGE);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), POOL_WAIT);
	assert_string_equal(states_pages(w, a.image), "fR");
	no_reuse.max_cached_tokens = 0;
	same = states_open_wish(w, &no_reuse, PAGE);
	states_step(w, same, 5);
	assert_int_equal(states_capture_begins(w, same, IMAGE_CHECKPOINT, false, &skip),
			 IMAGE_NONE);
	assert_int_equal(skip, CAPTURE_EXISTS);
	states_up_ends(w, -EIO);
	states_check(w);
	assert_where(w, a, "Rp");
	world_close(&same);
	states_settle(w);
	while (states_open_turn(w, &o, ALL, &s))
		assert_false(o->copying);
	assert_int_equal(s->committed, 0);
	world_close(&s);
	free(tokens);
}

/* One whose image fails is given up; what the next one has of its own must be fetched, too. */
static void an_image_that_does_not_come_leaves_the_state_before_it(void **state)
{
	static const uint32_t before[] = {3 * PAGE + 5, 3 * PAGE, 2 * PAGE + 7, PAGE};
	uint32_t *tokens = states_tokens(&one, 4 * PAGE);
	struct match_wish wish = world_wish(tokens, 4 * PAGE);

	for (uint32_t i = 0; i < 4; i++) {
		struct states *w = *state;
		struct image_name a = retain(w, before[i]), b = retain(w, 3 * PAGE + 9);
		struct opening *o;
		struct seq *s;

		put_down(w, a);
		put_down(w, b);
		o = states_open_begins(w, &wish, 4 * PAGE);
		while (!o->copying) {
			states_open_turn(w, &o, ALL, &s);
			states_settle(w);
		}
		assert_int_equal(o->name.id, b.id);
		states_claim_ends(w, &o, -EIO);
		states_check(w);
		assert_where(w, b, "-");
		while (!o->copying) {
			states_open_turn(w, &o, 1, &s);
			states_settle(w);
		}
		assert_int_equal(o->name.id, a.id);
		states_claim_ends(w, &o, 0);
		assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
		assert_int_equal(s->committed, before[i]);
		assert_int_equal(misses(w, MATCH_RESTORE), 1);
		world_close(&s);
		assert_where(w, a, "DRp");
		assert_int_equal(w->pool.images.counts.restores_failed, 1);
		states_deinit(w);
		start(w, 0);
	}
	free(tokens);
}

static void a_partial_page_that_does_not_come_leaves_another_in_its_place(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = states_tokens(&one, 4 * PAGE);
	struct match_wish wish = world_wish(tokens, 4 * PAGE);
	struct image_name a = retain(w, 3 * PAGE + 5), b = retain(w, 3 * PAGE + 9);
	struct opening *o;
	struct seq *s;

	put_down(w, a);
	put_down(w, b);
	o = states_open_begins(w, &wish, 4 * PAGE);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), POOL_WAIT);
	for (uint32_t i = 0; i < 3; i++)
		states_up_ends(w, 0);
	states_up_ends(w, -EIO);
	while (!o->copying) {
		states_open_turn(w, &o, ALL, &s);
		states_settle(w);
	}
	assert_int_equal(o->name.id, a.id);
	states_claim_ends(w, &o, 0);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), 0);
	assert_int_equal(s->committed, 3 * PAGE + 5);
	world_close(&s);
	assert_where(w, a, "DRp");
	assert_int_equal(states_found(w, &one, 4 * PAGE), 3 * PAGE + 5);
	free(tokens);
}

/* Who computes the same meanwhile follows the pages that are being fetched. When that fails there
 * is nothing on the device that a state could be kept with. */
static void what_follows_a_page_that_does_not_come_is_not_captured(void **state)
{
	uint32_t *tokens = states_tokens(&one, 4 * PAGE);
	struct match_wish wish = world_wish(tokens, 4 * PAGE), anew = wish;

	for (uint32_t part = 0; part < 6; part += 5) {
		struct states *w = *state;
		struct image_name a = retain(w, 3 * PAGE);
		enum capture_skip skip;
		struct opening *o;
		struct seq *s, *t = NULL;

		put_down(w, a);
		anew.max_cached_tokens = 0;
		s = states_open_wish(w, &anew, 4 * PAGE);
		o = states_open_begins(w, &wish, 4 * PAGE);
		assert_int_equal(states_open_turn(w, &o, ALL, &t), POOL_WAIT);
		states_step(w, s, 3 * PAGE);
		assert_int_equal(s->published, 3);
		if (part)
			states_step(w, s, 3 * PAGE + part);
		states_up_ends(w, -EIO);
		states_settle(w);
		states_check(w);
		states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip);
		assert_int_equal(skip, CAPTURE_UNKNOWN);
		states_check(w);
		world_close(&s);
		while (states_open_turn(w, &o, ALL, &t))
			states_settle(w);
		world_close(&t);
		states_deinit(w);
		start(w, 0);
	}
	free(tokens);
}

static void after_a_failure_the_floor_does_not_hide_it(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = states_tokens(&one, 7 * PAGE);
	struct match_wish wish = world_wish(tokens, 7 * PAGE);
	struct opening *o;
	struct seq *s;
	uint64_t floors;

	start_with_floor(w, 3 * PAGE);
	put_down(w, retain(w, 2 * PAGE));
	put_down(w, retain(w, 6 * PAGE));
	floors = misses(w, MATCH_FLOOR);
	o = states_open_begins(w, &wish, 7 * PAGE);
	assert_int_equal(states_open_turn(w, &o, ALL, &s), POOL_WAIT);
	for (uint32_t i = 0; i < 5; i++)
		states_up_ends(w, 0);
	states_up_ends(w, -EIO);
	while (states_open_turn(w, &o, ALL, &s))
		states_settle(w);
	assert_int_equal(s->committed, 0);
	assert_int_equal(misses(w, MATCH_RESTORE), 1);
	assert_int_equal(misses(w, MATCH_FLOOR), floors);
	world_close(&s);
	free(tokens);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_page_that_does_not_come_leaves_the_states_before_it),
	    TEST(with_no_state_before_it_nothing_is_left),
	    TEST(what_is_on_its_way_up_is_kept_by_nobody),
	    TEST(an_image_that_does_not_come_leaves_the_state_before_it),
	    TEST(a_partial_page_that_does_not_come_leaves_another_in_its_place),
	    TEST(what_follows_a_page_that_does_not_come_is_not_captured),
	    TEST(after_a_failure_the_floor_does_not_hide_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
