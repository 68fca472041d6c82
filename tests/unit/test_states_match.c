/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/match.h: states of a hybrid pool that are found in either tier, and
 * fetched from KV-RAM. One thread; nothing blocks.
 */

#include "tests/unit/states_below.h"

#include <errno.h>

/* ---- the longest one ---- */

static void the_longest_state_of_both_tiers_is_found(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, 2 * PAGE), b = retain(w, 4 * PAGE + 3);
	struct image_name c = retain(w, 6 * PAGE);

	put_down(w, b);
	assert_int_equal(states_found(w, &one, 6 * PAGE), 4 * PAGE + 3);
	assert_int_equal(states_found(w, &one, 7 * PAGE), 6 * PAGE);
	assert_int_equal(states_found(w, &one, 4 * PAGE + 3), 2 * PAGE);
	/* Looking moves nothing. */
	assert_int_equal(states_copies(&w->up), 0);
	assert_where(w, b, "Rp");
	put_down(w, a);
	put_down(w, c);
	assert_int_equal(w->pool.indexed, 0);
	assert_int_equal(states_found(w, &one, 7 * PAGE), 6 * PAGE);
	/* What is fetched are the pages of that state, and no others. */
	assert_int_equal(states_reuse(w, &one, 6 * PAGE), 4 * PAGE + 3);
	assert_int_equal(w->pool.stats.restores, 5);
	assert_int_equal(w->pool.stats.ram_hits, 1);
	assert_int_equal(w->pool.stats.ram_hit_pages, 4); /* full ones */
	assert_where(w, b, "DRp");
	assert_where(w, a, "Rp");
	assert_where(w, c, "Rp");
}

static void a_limit_ends_the_match_before_longer_states(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = states_tokens(&one, 7 * PAGE);
	struct match_wish wish = world_wish(tokens, 7 * PAGE);
	struct seq *s;

	put_down(w, retain(w, 2 * PAGE + 1));
	put_down(w, retain(w, 6 * PAGE));
	wish.max_cached_tokens = 5 * PAGE;
	s = states_open_wish(w, &wish, 7 * PAGE);
	assert_int_equal(s->committed, 2 * PAGE + 1);
	assert_int_equal(w->pool.stats.restores, 3);
	world_close(&s);
	free(tokens);
}

static void what_another_namespace_has_below_is_not_found(void **state)
{
	struct states *w = *state;
	const struct states_text theirs = {.which = 1, .name_space = 1};
	uint32_t image = states_retain(w, &theirs, 4 * PAGE);

	put_down(w, states_name(w, image));
	assert_int_equal(states_found(w, &one, 5 * PAGE), 0);
	assert_int_equal(states_reuse(w, &one, 5 * PAGE), 0);
	assert_int_equal(misses(w, MATCH_NONE), 2); /* with that of the first open */
	assert_int_equal(states_found(w, &theirs, 5 * PAGE), 4 * PAGE);
}

static void pages_that_others_use_on_the_device_are_not_fetched(void **state)
{
	struct states *w = *state;
	struct image_name a = retain(w, 3 * PAGE + 5), b = retain(w, 5 * PAGE);

	put_down(w, a);
	assert_string_equal(states_pages(w, a.image), "dR dR dR R");
	assert_int_equal(states_reuse(w, &one, 4 * PAGE), 3 * PAGE + 5);
	assert_int_equal(w->pool.stats.restores, 1);
	assert_where(w, a, "DRp");
	assert_where(w, b, "Ds");
}

static void two_opens_fetch_a_state_once(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = states_tokens(&one, 4 * PAGE);
	struct match_wish wish = world_wish(tokens, 4 * PAGE);
	struct opening *o[2];
	struct image_name a = retain(w, 3 * PAGE + 5);
	struct seq *s[2] = {NULL, NULL};

	put_down(w, a);
	for (uint32_t i = 0; i < 2; i++) {
		o[i] = states_open_begins(w, &wish, 4 * PAGE);
		while (states_open_turn(w, &o[i], 1, &s[i]) == POOL_MORE)
			states_check(w);
	}
	assert_int_equal(states_copies(&w->up), 4);
	assert_int_equal(w->pool.images.image[a.image].claims, 2);
	states_settle(w);
	for (uint32_t i = 0; i < 2; i++) {
		while (!o[i]->copying)
			states_open_turn(w, &o[i], 1, &s[i]);
		states_claim_ends(w, &o[i], 0);
		assert_int_equal(states_open_turn(w, &o[i], ALL, &s[i]), 0);
		assert_int_equal(s[i]->committed, 3 * PAGE + 5);
	}
	for (uint32_t i = 0; i < 2; i++)
		world_close(&s[i]);
	assert_int_equal(w->pool.stats.restores, 4);
	assert_int_equal(w->pool.stats.ram_hits, 2);
	states_check(w);
	free(tokens);
}

static void an_open_that_goes_away_leaves_the_state_as_it_was(void **state)
{
	struct states *w = *state;
	uint32_t *tokens = states_tokens(&one, 4 * PAGE);
	struct match_wish wish = world_wish(tokens, 4 * PAGE);
	struct image_name a = retain(w, 3 * PAGE + 5);
	struct seq *s;

	put_down(w, a);
	/* After the walk, with pages on their way, with all there, with its image on its way. */
	for (uint32_t when = 0; when < 4; when++) {
		struct opening *o = states_open_begins(w, &wish, 4 * PAGE);

		states_open_turn(w, &o, when ? ALL : 3, &s);
		if (when == 1)
			states_up_ends(w, 0);
		if (when >= 2)
			states_settle(w);
		if (when == 3) {
			states_open_turn(w, &o, ALL, &s);
			assert_true(o->copying);
		}
		states_open_abandon(w, &o);
		states_check(w);
		if (o)
			states_claim_ends(w, &o, 0);
		states_settle(w);
		states_check(w);
		assert_where(w, a, "Rp");
		assert_string_equal(states_pages(w, a.image), "R R R R");
		assert_int_equal(w->pool.images.image[a.image].claims, 0);
		assert_int_equal(w->pool.images.lanes_free, w->pool.images.n_lanes);
		world_clean(&w->pool);
	}
	assert_false(w->pool.images.image[a.image].is_protected);
	free(tokens);
}

/* ---- the floor ---- */

static void what_reaches_too_little_further_is_not_fetched(void **state)
{
	struct states *w = *state;
	struct image_name a, b, c;

	start_with_floor(w, 3 * PAGE);
	a = retain(w, 2 * PAGE);
	b = retain(w, 5 * PAGE - 1);
	c = retain(w, 5 * PAGE);
	put_down(w, b);
	put_down(w, c);
	assert_int_equal(states_found(w, &one, 5 * PAGE), 2 * PAGE);
	assert_int_equal(states_reuse(w, &one, 5 * PAGE), 2 * PAGE);
	assert_int_equal(misses(w, MATCH_FLOOR), 1);
	assert_int_equal(w->pool.stats.restores, 0);
	assert_int_equal(states_reuse(w, &one, 6 * PAGE), 5 * PAGE);
	assert_int_equal(w->pool.stats.restores, 3);
	assert_int_equal(misses(w, MATCH_FLOOR), 1);
	/* With nothing on the device it counts from the start. */
	put_down(w, a);
	put_down(w, c);
	assert_int_equal(states_reuse(w, &one, 3 * PAGE), 0);
	assert_int_equal(misses(w, MATCH_FLOOR), 2);
	assert_int_equal(states_reuse(w, &one, 5 * PAGE), 5 * PAGE - 1);
}

/* Two states behind parts of one page: the shorter one is on the device. */
static void the_floor_counts_from_a_state_on_the_device_in_the_same_page(void **state)
{
	struct states *w = *state;
	struct image_name a, b;

	start_with_floor(w, PAGE);
	a = retain(w, 3 * PAGE + 5);
	b = retain(w, 3 * PAGE + 9);
	put_down(w, b);
	assert_int_equal(states_found(w, &one, 4 * PAGE), 3 * PAGE + 5);
	assert_int_equal(states_reuse(w, &one, 4 * PAGE), 3 * PAGE + 5);
	assert_int_equal(misses(w, MATCH_FLOOR), 1);
	assert_int_equal(w->pool.stats.restores, 0);
	assert_where(w, a, "Ds");
	/* And from one behind the page before. */
	put_down(w, a);
	a = retain(w, 3 * PAGE);
	assert_int_equal(states_reuse(w, &one, 4 * PAGE), 3 * PAGE);
	assert_int_equal(misses(w, MATCH_FLOOR), 2);
	assert_int_equal(w->pool.stats.restores, 0);
}

/* ---- in turns ---- */

static uint64_t pages_of_a_turn(struct match *m, uint32_t budget, int *r)
{
	uint64_t before = match_work.pages;

	*r = match_turn(m, &budget);
	return match_work.pages - before;
}

/* What a lookup finds with so many pages a turn is what it finds at once. */
static void look_in_turns(struct states *w, uint32_t n, uint32_t budget)
{
	uint32_t *tokens = states_tokens(&one, n), all = ALL;
	struct match_wish wish = world_wish(tokens, n);
	uint32_t *path = malloc((match_room(&w->pool, &wish) + 1) * sizeof(*path));
	struct match once, m;
	int r = POOL_MORE;

	match_begin(&once, &w->pool, &wish, path, 0);
	assert_int_equal(match_turn(&once, &all), 0);
	match_begin(&m, &w->pool, &wish, path, 0);
	while (r)
		assert_true(pages_of_a_turn(&m, budget, &r) <= budget);
	assert_int_equal(match_tokens(&m), match_tokens(&once));
	assert_int_equal(m.image, once.image);
	assert_int_equal(m.walk.node, once.walk.node);
	assert_int_equal(m.walk.position, once.walk.position);
	assert_int_equal(m.partial, once.partial);
	assert_int_equal(m.from_ram, once.from_ram);
	assert_int_equal(m.known_tokens, once.known_tokens);
	assert_int_equal(match_reason(&m), match_reason(&once));
	free(path);
	free(tokens);
}

static void a_search_has_turns_and_finds_the_same(void **state)
{
	static const uint32_t at[] = {PAGE, 2 * PAGE + 3, 4 * PAGE, 5 * PAGE + 1, 6 * PAGE + 5};
	struct states *w = *state;

	/* Which of them are in KV-RAM only. */
	for (uint32_t below = 0; below < 32; below++) {
		for (uint32_t i = 0; i < 5; i++) {
			struct image_name a = retain(w, at[i]);

			if (below >> i & 1)
				put_down(w, a);
		}
		for (uint32_t floor = 0; floor <= 7 * PAGE; floor += PAGE / 2 + 1) {
			w->pool.limits.ram_floor_tokens = floor;
			for (uint32_t budget = 1; budget < 4; budget++)
				look_in_turns(w, 7 * PAGE + 9, budget);
		}
		states_deinit(w);
		start(w, 0);
	}
}

/* Nothing is had but a state that is there at the end, and it is the longest then. */
static void a_state_that_goes_while_another_is_looked_for_is_not_had(void **state)
{
	uint32_t *tokens = states_tokens(&one, 7 * PAGE);
	struct match_wish wish = world_wish(tokens, 7 * PAGE);
	uint32_t n_gone = 0, n_had = 0, turn = 0;

	/* With the longer state inside a page, and at its end. */
	for (uint32_t when = 1; when < 24; when++) {
		struct states *w = *state;
		uint32_t longer = when % 2 ? 6 * PAGE : 5 * PAGE + 7;
		struct image_name a = retain(w, PAGE), b = retain(w, longer);
		struct opening *o;
		struct seq *s = NULL;
		uint32_t had = longer;

		put_down(w, b);
		w->pool.limits.ram_floor_tokens = 4 * PAGE;
		o = states_open_begins(w, &wish, 7 * PAGE);
		for (turn = 1; states_open_turn(w, &o, 1, &s); turn++) {
			/* Claimed it stays. */
			if (turn == when / 2 + 1) {
				pool_give_up(&w->pool, b.image);
				had = w->pool.images.image[b.image].id == b.id ? longer : PAGE;
			}
			if (o->m.done)
				states_settle(w);
			if (o->copying)
				states_claim_ends(w, &o, 0);
			states_check(w);
		}
		assert_int_equal(s->committed, had);
		n_gone += had == PAGE;
		n_had += had != PAGE;
		assert_true(had != PAGE || w->pool.images.image[a.image].id == a.id);
		world_close(&s);
		states_check(w);
		states_deinit(w);
		start(w, 0);
	}
	assert_true(n_gone > 12 && n_had > 2);
	free(tokens);
}

/* Texts that have five pages in common; with an image in the sixth, or without. */
static struct match_wish wish_to(const uint32_t *tokens, uint32_t n, bool image)
{
	static const struct key_image within = {.start = 5 * PAGE + 1, .length = 2};
	struct match_wish wish = world_wish(tokens, n);

	wish.images = &within;
	wish.n_images = image;
	return wish;
}

static struct image_name retain_of(struct states *w, uint32_t which, uint32_t n, bool image)
{
	uint32_t *tokens = world_tokens(malloc(n * sizeof(uint32_t)), n, 5 * PAGE, which);
	struct match_wish wish = wish_to(tokens, n, image);
	struct seq *s = states_open_wish(w, &wish, n);
	uint32_t it;

	if (s->committed < n)
		states_step(w, s, n);
	s->follows.image = IMAGE_NONE;
	it = states_capture(w, s);
	world_close(&s);
	states_check(w);
	free(tokens);
	return states_name(w, it);
}

struct meanwhile { /* what happens to the state below that was found, and is not taken yet */
	uint32_t longer;
	bool image;       /* is in the prompt */
	bool another;     /* a state of another text lies where that lay */
	bool anew;        /* it is captured once more */
	uint32_t shorter; /* another one below, in the same page; 0: none */
	uint32_t had;     /* is to be found then */
};

static const struct meanwhile scenes[] = {
    {.longer = 5 * PAGE + 7, .had = PAGE},
    {.longer = 5 * PAGE + 7, .another = true, .had = PAGE},
    {.longer = 6 * PAGE, .another = true, .anew = true, .had = 6 * PAGE},
    {.longer = 5 * PAGE + 7, .image = true, .shorter = 5 * PAGE + 5, .had = 5 * PAGE + 5},
};

/* With one page a turn, k turns after it was found. False: the search is over by then. */
static bool look_meanwhile(struct states *w, const struct meanwhile *e, uint32_t k)
{
	uint32_t *tokens = world_tokens(malloc(7 * PAGE * sizeof(uint32_t)), 7 * PAGE, 5 * PAGE, 1);
	struct match_wish wish = wish_to(tokens, 7 * PAGE, e->image);
	uint32_t *path = malloc((match_room(&w->pool, &wish) + 1) * sizeof(*path)), all = ALL;
	struct match m, once;
	struct image_name b, c = {0};
	struct seq *s;
	int r = POOL_MORE;

	retain_of(w, 1, PAGE, e->image);
	if (e->shorter)
		c = retain_of(w, 1, e->shorter, e->image);
	/* Its full pages stay, whatever becomes of the state behind them. */
	s = states_open_wish(w, &wish, 7 * PAGE);
	states_step(w, s, 6 * PAGE);
	b = retain_of(w, 1, e->longer, e->image);
	put_down(w, b);
	if (e->shorter)
		put_down(w, c);
	w->pool.limits.ram_floor_tokens = 4 * PAGE;
	match_begin(&m, &w->pool, &wish, path, 0);
	while (r && !m.search.has_below)
		(void)pages_of_a_turn(&m, 1, &r);
	while (r && k--)
		(void)pages_of_a_turn(&m, 1, &r);
	if (r) {
		pool_give_up(&w->pool, b.image);
		for (uint32_t i = 0; i <= w->pool.images.n_images && e->another; i++) {
			c = retain_of(w, 9, 5 * PAGE + 7, false);
			if (c.image == b.image)
				break;
			pool_give_up(&w->pool, c.image);
		}
		assert_true(!e->another || c.image == b.image);
		if (e->anew)
			retain_of(w, 1, e->longer, false);
		match_begin(&once, &w->pool, &wish, path, 0);
		assert_int_equal(match_turn(&once, &all), 0);
		assert_int_equal(match_tokens(&once), e->had);
		for (int more = r; more;)
			(void)pages_of_a_turn(&m, 1, &more);
		assert_int_equal(match_tokens(&m), match_tokens(&once));
		assert_int_equal(m.image, once.image);
		assert_int_equal(m.partial, once.partial);
	}
	world_close(&s);
	free(path);
	free(tokens);
	return r;
}

static void what_lies_where_a_state_lay_is_not_taken_for_it(void **state)
{
	struct states *w = *state;

	for (uint32_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
		uint32_t k = 0;

		while (look_meanwhile(w, &scenes[i], k)) {
			k++;
			states_deinit(w);
			start(w, 0);
		}
		assert_true(k > 2);
		states_deinit(w);
		start(w, 0);
	}
}

/* ---- scenario A13: a state of which a part is gone ---- */

/* The last page of a state cannot be read when it is fetched. */
static void lose_last_page(struct states *w, uint32_t at)
{
	uint32_t *tokens = states_tokens(&one, at + 1);
	struct match_wish wish = world_wish(tokens, at + 1);
	struct opening *o = states_open_begins(w, &wish, at + 1);
	struct seq *s;

	assert_int_equal(states_open_turn(w, &o, ALL, &s), POOL_WAIT);
	while (states_copies(&w->up) > 1)
		states_up_ends(w, 0);
	states_up_ends(w, -EIO);
	while (states_open_turn(w, &o, ALL, &s)) {
		states_settle(w);
		if (o->copying)
			states_claim_ends(w, &o, 0);
	}
	world_close(&s);
	free(tokens);
}

static void a_state_without_its_image_or_its_last_page_is_not_found(void **state)
{
	/* Where states are, of which the one at `victim` loses a part. */
	static const uint32_t at[] = {PAGE, 2 * PAGE + 3, 4 * PAGE, 6 * PAGE + 5};

	for (uint32_t i = 0; i < 8; i++) {
		struct states *w = *state;
		uint32_t victim = i / 2, before = victim ? at[victim - 1] : 0;
		bool image = i % 2;
		uint32_t last = victim == 3 ? before : at[3];
		struct image_name name[4];

		/* Of full pages what stands on it is gone as well. */
		if (!image && at[victim] % PAGE == 0)
			last = before;
		for (uint32_t k = 0; k < 4; k++)
			name[k] = retain(w, at[k]);
		for (uint32_t k = 0; k < 4; k++)
			put_down(w, name[k]);
		assert_int_equal(states_found(w, &one, at[victim] + 1), at[victim]);
		if (image)
			pool_give_up(&w->pool, name[victim].image);
		else
			lose_last_page(w, at[victim]);
		states_check(w);
		assert_int_equal(states_found(w, &one, at[victim] + 1), before);
		assert_int_equal(states_reuse(w, &one, at[victim] + 1), before);
		assert_int_equal(states_found(w, &one, 7 * PAGE), last);
		assert_int_equal(states_reuse(w, &one, 7 * PAGE), last);
		states_deinit(w);
		start(w, 0);
	}
}

/* Between looking and fetching: it is had as a whole, or not at all. */
static void a_state_that_is_given_up_after_it_was_found_is_had_whole_or_not(void **state)
{
	uint32_t *tokens = states_tokens(&one, 4 * PAGE);
	struct match_wish wish = world_wish(tokens, 4 * PAGE);

	for (uint32_t when = 0; when < 6; when++) {
		struct states *w = *state;
		struct image_name a = retain(w, PAGE), b = retain(w, 3 * PAGE + 5);
		struct opening *o;
		struct seq *s = NULL;
		uint32_t had = when == 0 ? PAGE : 3 * PAGE + 5;

		put_down(w, a);
		put_down(w, b);
		assert_int_equal(states_found(w, &one, 4 * PAGE), 3 * PAGE + 5);
		if (when == 0)
			pool_give_up(&w->pool, b.image);
		o = states_open_begins(w, &wish, 4 * PAGE);
		for (uint32_t turn = 1; states_open_turn(w, &o, 2, &s); turn++) {
			if (turn == when) {
				pool_give_up(&w->pool, b.image);
				/* Before it is claimed it goes at once. */
				if (w->pool.images.image[b.image].id != b.id)
					had = PAGE;
			}
			if (turn > 2)
				states_settle(w);
			if (o->copying)
				states_claim_ends(w, &o, 0);
			states_check(w);
		}
		assert_int_equal(s->committed, had);
		world_close(&s);
		states_check(w);
		states_deinit(w);
		start(w, 0);
	}
	free(tokens);
}

/* ---- scenario I5: a state every 512 tokens ---- */

#define EVERY 512u

static void after_a_shift_the_last_common_state_is_found(void **state)
{
	struct states *w = *state;
	const uint32_t n = 6 * EVERY, points = 6;
	uint32_t *tokens = states_tokens(&one, n + 1);
	struct image_name name[6];

	states_deinit(w);
	states_init(w, &(struct states_limits){
			   .pages = 2 * n / PAGE + 8, .slots = 6, .units = 512, .image_units = 8});
	for (uint32_t i = 0; i < points; i++)
		name[i] = retain(w, (i + 1) * EVERY);
	for (uint32_t tier = 0; tier < 2; tier++) {
		for (uint32_t common = 0; common <= n; common += 100) {
			uint32_t *other = states_tokens(&one, n + 1), *path = malloc(n);
			struct match_wish wish = world_wish(other, n + 1);
			struct match m;
			uint32_t all = ALL;

			/* From there on they are those of 100 tokens later. */
			for (uint32_t i = common; i <= n; i++)
				other[i] = i + 100 <= n ? tokens[i + 100] : i;
			match_begin(&m, &w->pool, &wish, path, 0);
			assert_int_equal(match_turn(&m, &all), 0);
			assert_int_equal(match_tokens(&m), common / EVERY * EVERY);
			free(other);
			free(path);
		}
		for (uint32_t i = 0; i < points && tier == 0; i++)
			put_down(w, name[i]);
	}
	assert_int_equal(w->pool.indexed, 0);
	free(tokens);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_longest_state_of_both_tiers_is_found),
	    TEST(a_limit_ends_the_match_before_longer_states),
	    TEST(what_another_namespace_has_below_is_not_found),
	    TEST(pages_that_others_use_on_the_device_are_not_fetched),
	    TEST(two_opens_fetch_a_state_once),
	    TEST(an_open_that_goes_away_leaves_the_state_as_it_was),
	    TEST(what_reaches_too_little_further_is_not_fetched),
	    TEST(the_floor_counts_from_a_state_on_the_device_in_the_same_page),
	    TEST(a_search_has_turns_and_finds_the_same),
	    TEST(a_state_that_goes_while_another_is_looked_for_is_not_had),
	    TEST(what_lies_where_a_state_lay_is_not_taken_for_it),
	    TEST(a_state_without_its_image_or_its_last_page_is_not_found),
	    TEST(a_state_that_is_given_up_after_it_was_found_is_had_whole_or_not),
	    TEST(after_a_shift_the_last_common_state_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
