/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/match.h. One thread; nothing blocks. */

#include "tests/unit/pool_world.h"

#define PAGES 64u
#define LONG  20u /* pages of the text that is there */

static struct pool pool;
static uint32_t text[(LONG + 1) * PAGE];

static void publish(struct pool *p, const struct match_wish *wish)
{
	struct seq *s = world_open_wish(p, wish, wish->n_tokens, ALL);

	world_step(s, wish->n_tokens, NULL);
	world_close(&s);
	world_clean(p);
}

static int setup(void **state)
{
	struct match_wish wish = world_wish(text, LONG * PAGE);

	*state = &pool;
	world_init(&pool, PAGES, PAGES);
	world_tokens(text, (LONG + 1) * PAGE, 0, 1);
	publish(&pool, &wish);
	return 0;
}

static int teardown(void **state)
{
	world_deinit(*state);
	return 0;
}

/* What a lookup finds, and why not more. */
static uint32_t look(struct pool *p, const struct match_wish *wish, enum match_miss *why)
{
	uint32_t path[LONG + 1], budget = ALL;
	struct match m;

	assert_true(match_room(p, wish) <= LONG);
	match_begin(&m, p, wish, path, 0);
	assert_int_equal(match_turn(&m, &budget), 0);
	*why = match_reason(&m);
	return match_tokens(&m);
}

/* An open finds the same, holds it and nothing else. */
static void assert_match(struct pool *p, const struct match_wish *wish, uint32_t tokens,
			 enum match_miss why)
{
	enum match_miss found;
	struct seq *s;

	assert_int_equal(look(p, wish, &found), tokens);
	assert_int_equal(found, why);
	for (uint32_t turn = 1; turn < 4; turn++) {
		s = world_open_wish(p, wish, wish->n_tokens, turn);
		assert_int_equal(s->committed, tokens);
		assert_int_equal(p->live, tokens / PAGE);
		world_check(p);
		world_close(&s);
		assert_int_equal(p->live, 0);
	}
}

static void the_last_token_is_always_left_to_compute(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, 5 * PAGE + 1);

	assert_match(p, &wish, 5 * PAGE, MATCH_COMPLETE);
	wish.n_tokens = 5 * PAGE;
	assert_match(p, &wish, 4 * PAGE, MATCH_COMPLETE);
	wish.n_tokens = 1;
	assert_match(p, &wish, 0, MATCH_COMPLETE);
	protection_off[PROTECTION_last_token_is_computed] = true;
	wish.n_tokens = 5 * PAGE;
	assert_match(p, &wish, 5 * PAGE, MATCH_COMPLETE);
}

static void a_limit_ends_reuse_at_the_page_boundary_before_it(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, 10 * PAGE);

	wish.max_cached_tokens = 7 * PAGE;
	assert_match(p, &wish, 7 * PAGE, MATCH_LIMIT);
	wish.max_cached_tokens = 7 * PAGE - 1;
	assert_match(p, &wish, 6 * PAGE, MATCH_LIMIT);
	wish.max_cached_tokens = 0;
	assert_match(p, &wish, 0, MATCH_LIMIT);
	wish.max_cached_tokens = 10 * PAGE - 1;
	assert_match(p, &wish, 9 * PAGE, MATCH_COMPLETE);
}

static void every_miss_has_its_reason(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, 10 * PAGE);

	text[3 * PAGE + 5]++;
	assert_match(p, &wish, 3 * PAGE, MATCH_DIVERGED);
	text[0]++;
	assert_match(p, &wish, 0, MATCH_NONE);
	wish.variant[0] = 1;
	assert_match(p, &wish, 0, MATCH_NONE);
	wish.variant[0] = 0;
	wish.name_space = 2;
	assert_match(p, &wish, 0, MATCH_NONE);
	wish.off = true;
	assert_match(p, &wish, 0, MATCH_OFF);
	wish.off = false;
	p->limits.prefix_budget = 0;
	pool_trim(p);
	assert_match(p, &wish, 0, MATCH_OFF);
}

static void reuse_never_ends_inside_an_image(void **state)
{
	struct pool *p = *state;
	uint32_t tokens[12 * PAGE];
	/* One inside page 1, one over pages 3 to 5, one that begins where that one ends. */
	struct key_image images[] = {
	    {.start = PAGE + 2, .length = 4},
	    {.start = 3 * PAGE + 8, .length = 2 * PAGE},
	    {.start = 5 * PAGE + 8, .length = 2 * PAGE + 8},
	};
	struct match_wish wish = world_wish(world_tokens(tokens, 12 * PAGE, 0, 2), 12 * PAGE);

	wish.images = images;
	wish.n_images = 3;
	publish(p, &wish);
	assert_match(p, &wish, 11 * PAGE, MATCH_COMPLETE);
	wish.n_tokens = 8 * PAGE + 1; /* right behind the last image */
	assert_match(p, &wish, 8 * PAGE, MATCH_COMPLETE);
	/* Over the last image to its start, which lies in the one before: over that, too. */
	wish.n_tokens = 8 * PAGE;
	assert_match(p, &wish, 3 * PAGE, MATCH_IMAGE);
	wish.n_images = 2;
	wish.n_tokens = 5 * PAGE + 1;
	assert_match(p, &wish, 3 * PAGE, MATCH_IMAGE);
	wish.n_tokens = 3 * PAGE + 9;
	assert_match(p, &wish, 3 * PAGE, MATCH_COMPLETE);
	wish.n_tokens = 12 * PAGE;
	wish.max_cached_tokens = 4 * PAGE;
	assert_match(p, &wish, 3 * PAGE, MATCH_IMAGE);
	protection_off[PROTECTION_images_are_whole] = true;
	assert_match(p, &wish, 4 * PAGE, MATCH_LIMIT);
}

static void a_text_that_differs_inside_an_image_is_reused_up_to_that_image(void **state)
{
	struct pool *p = *state;
	uint32_t tokens[12 * PAGE];
	struct key_image images[] = {
	    {.start = 1, .length = 2},
	    {.start = 2 * PAGE + 8, .length = 3 * PAGE},
	};
	struct match_wish wish = world_wish(world_tokens(tokens, 12 * PAGE, 0, 2), 12 * PAGE);

	wish.images = images;
	wish.n_images = 2;
	publish(p, &wish);
	/* As when the end of a chain has been given up, or never was computed. */
	for (uint32_t page = 3; page <= 5; page++) {
		tokens[page * PAGE + 1]++;
		assert_match(p, &wish, 2 * PAGE, MATCH_IMAGE);
		tokens[page * PAGE + 1]--;
	}
	tokens[6 * PAGE]++;
	assert_match(p, &wish, 6 * PAGE, MATCH_DIVERGED);
	tokens[6 * PAGE]--;
	images[1].start = 8;
	images[1].length = 5 * PAGE;
	publish(p, &wish);
	tokens[2 * PAGE]++;
	assert_match(p, &wish, 0, MATCH_IMAGE);
	protection_off[PROTECTION_images_are_whole] = true;
	assert_match(p, &wish, 2 * PAGE, MATCH_DIVERGED);
}

static void a_lookup_holds_touches_and_makes_nothing(void **state)
{
	struct pool *p = *state;
	uint64_t tick = p->retain.tick;
	uint32_t used = p->prefix.used;
	struct match_wish wish = world_wish(text, 10 * PAGE);
	enum match_miss why;

	assert_int_equal(look(p, &wish, &why), 9 * PAGE);
	wish.name_space = 9;
	assert_int_equal(look(p, &wish, &why), 0);
	assert_int_equal(p->live, 0);
	assert_int_equal(p->retain.tick, tick);
	assert_int_equal(p->prefix.used, used);
}

static void a_lookup_ends_where_its_place_was_given_up_between_two_turns(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, LONG * PAGE);
	uint32_t path[LONG], budget = 4, all = ALL;
	struct match m;

	match_begin(&m, p, &wish, path, 0);
	assert_int_equal(match_turn(&m, &budget), POOL_MORE);
	assert_int_equal(budget, 0);
	assert_int_equal(m.walk.position, 4);
	/* The whole text goes and other pages take its nodes. */
	assert_true(pool_drop_retained(p, 0, &all));
	wish.n_tokens = LONG * PAGE;
	world_clean(p);
	text[0] += 7;
	publish(p, &wish);
	text[0] -= 7;
	budget = 4;
	assert_int_equal(match_turn(&m, &budget), 0);
	assert_int_equal(match_reason(&m), MATCH_DIVERGED);
	assert_true(match_tokens(&m) <= 4 * PAGE);
}

static void an_open_keeps_its_place_between_turns(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, LONG * PAGE);
	uint32_t path[LONG], budget = 4, all = ALL;
	struct match m;
	struct seq *s;

	assert_int_equal(seq_new(p, 0, LONG * PAGE, &s), 0);
	match_begin(&m, p, &wish, path, retain_open(&p->retain));
	assert_int_equal(match_turn(&m, &budget), POOL_MORE);
	assert_int_equal(p->live, 4);
	assert_true(pool_drop_retained(p, 0, &all));
	world_check(p);
	assert_int_equal(p->indexed, 4);
	budget = 4;
	assert_int_equal(match_turn(&m, &budget), 0);
	assert_int_equal(match_tokens(&m), 4 * PAGE);
	assert_int_equal(match_reason(&m), MATCH_DIVERGED);
	s->node = m.held; /* as of an open that is given up on */
	retain_let_go(&p->retain, &m.run);
	world_close(&s);
	assert_int_equal(p->live, 0);
}

static void without_a_node_left_an_open_matches_nothing_and_says_so(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, LONG * PAGE);
	uint32_t path[LONG];
	struct match m;

	wish.variant[3] = 1;
	p->prefix.capacity = p->prefix.fresh;
	assert_int_equal(match_begin(&m, p, &wish, path, retain_open(&p->retain)), POOL_NEVER);
	p->prefix.capacity = p->limits.nodes;
	assert_true(m.done);
	assert_int_equal(m.held, NODE_NONE);
	assert_int_equal(match_tokens(&m), 0);
	assert_int_equal(match_reason(&m), MATCH_NONE);
}

static void finished_walks_are_counted(void **state)
{
	struct pool *p = *state;
	struct match_wish wish = world_wish(text, 5 * PAGE);
	struct pool_stats before = p->stats;
	uint32_t path[LONG], budget = ALL;
	struct match m;
	struct seq *s;

	s = world_open_wish(p, &wish, 5 * PAGE, ALL);
	world_close(&s);
	assert_int_equal(p->stats.opens, before.opens + 1);
	assert_int_equal(p->stats.open_hits, before.open_hits + 1);
	assert_int_equal(p->stats.prompt_tokens, before.prompt_tokens + 5 * PAGE);
	assert_int_equal(p->stats.reused_tokens, before.reused_tokens + 4 * PAGE);
	assert_int_equal(p->stats.pages_missed, before.pages_missed + 1);
	text[PAGE]++;
	match_begin(&m, p, &wish, path, 0);
	assert_int_equal(match_turn(&m, &budget), 0);
	match_count(&m);
	assert_int_equal(p->stats.lookups, before.lookups + 1);
	assert_int_equal(p->stats.lookup_hits, before.lookup_hits + 1);
	/* Reasons are counted of opens alone. */
	assert_int_equal(p->stats.misses[MATCH_DIVERGED], before.misses[MATCH_DIVERGED]);
	assert_int_equal(p->stats.misses[MATCH_COMPLETE], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_last_token_is_always_left_to_compute),
	    TEST(a_limit_ends_reuse_at_the_page_boundary_before_it),
	    TEST(every_miss_has_its_reason),
	    TEST(reuse_never_ends_inside_an_image),
	    TEST(a_text_that_differs_inside_an_image_is_reused_up_to_that_image),
	    TEST(a_lookup_holds_touches_and_makes_nothing),
	    TEST(a_lookup_ends_where_its_place_was_given_up_between_two_turns),
	    TEST(an_open_keeps_its_place_between_turns),
	    TEST(without_a_node_left_an_open_matches_nothing_and_says_so),
	    TEST(finished_walks_are_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
