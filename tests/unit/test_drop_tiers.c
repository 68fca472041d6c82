/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of pool_drop_retained with a tier below the device, whose copies end when the test says so.
 * One thread; nothing blocks.
 */
#include "tests/unit/pool_world.h"

#define PAGES  32u
#define BUDGET 4u
#define ASKED  64u

static struct pool pool;
static uint32_t text[8 * PAGE];
static uint32_t asked[ASKED]; /* nodes whose copy down was asked for */
static uint32_t n_asked, n_told, places;
static int says; /* what asking for a place gives, if it is not 0 */

static int take(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	(void)context;
	(void)node;
	(void)need;
	if (says)
		return says;
	*place = places++;
	return 0;
}

static void give(void *context, uint32_t place)
{
	(void)context;
	(void)place;
}

static void down(void *context, uint32_t node)
{
	(void)context;
	assert_true(n_asked < ASKED);
	asked[n_asked++] = node;
}

static void up(void *context, uint32_t node)
{
	(void)context;
	(void)node;
	fail_msg("nothing is fetched here");
}

static uint64_t no_room(void *context)
{
	(void)context;
	return 0;
}

static const struct pool_below below = {
    .take = take, .give = give, .down = down, .up = up, .room = no_room};

static int setup(void **state)
{
	*state = &pool;
	world_init(&pool, PAGES, BUDGET);
	pool.below = &below;
	n_asked = n_told = places = 0;
	says = 0;
	return 0;
}

static int teardown(void **state)
{
	world_deinit(*state);
	return 0;
}

static void end_copies(struct pool *p)
{
	while (n_told < n_asked)
		pool_came_down(p, asked[n_told++], 0);
	world_check(p);
}

/* So many pages of a text: the last one. */
static uint32_t serve_pages(struct pool *p, uint32_t which, uint32_t pages)
{
	struct seq *s;
	uint32_t last;

	world_tokens(text, pages * PAGE + 1, 0, which);
	s = world_open(p, text, pages * PAGE + 1, pages * PAGE + 1);
	if (s->committed < pages * PAGE)
		world_step(s, pages * PAGE + 1, NULL);
	last = s->node;
	world_close(&s);
	world_check(p);
	world_clean(p);
	return last;
}

static void serve(struct pool *p, uint32_t which)
{
	serve_pages(p, which, BUDGET);
}

static void drop(struct pool *p)
{
	uint32_t budget = ALL;

	assert_true(pool_drop_retained(p, RETAIN_NAMESPACES, &budget));
	world_check(p);
}

static void what_is_in_both_tiers_goes_from_both(void **state)
{
	struct pool *p = *state;

	serve(p, 1);
	serve(p, 2);
	end_copies(p);
	assert_int_equal(p->in_ram, BUDGET);
	drop(p);
	assert_int_equal(p->in_ram, 0);
	assert_int_equal(p->indexed, 0);
	assert_int_equal(p->stats.discards, 2 * BUDGET);
}

/* It was wanted again while it left, and is not any more: its page is being read all the same. It
 * went, was zeroed, and what arrived below was served. */
static void a_page_that_is_being_copied_is_not_dropped_before_it_is_there(void **state)
{
	struct pool *p = *state;

	serve(p, 1);
	serve(p, 2);
	assert_int_equal(n_asked, BUDGET); /* all of the first */
	serve(p, 1);
	drop(p);
	for (uint32_t i = 0; i < BUDGET; i++)
		assert_int_not_equal(p->prefix.nodes[asked[i]].copies[TIER_DEVICE], COPY_NONE);
	end_copies(p);
	drop(p);
	assert_int_equal(p->in_ram, 0);
	assert_int_equal(p->indexed, 0);
}

/* What others may give up does not wait for it. */
static void a_parked_page_that_finds_no_place_stays_alone(void **state)
{
	struct pool *p = *state;
	uint32_t parked = serve_pages(p, 1, 1);

	serve_pages(p, 2, 2);
	pool_park(p, parked);
	says = POOL_WAIT;
	drop(p);
	assert_int_equal(p->indexed, 1);
	assert_int_not_equal(p->prefix.nodes[parked].copies[TIER_DEVICE], COPY_NONE);
	assert_int_equal(p->live, 0);
	/* Then it goes there. */
	says = 0;
	drop(p);
	end_copies(p);
	assert_int_equal(p->indexed, 0);
	assert_int_equal(p->in_ram, 1);
	pool_unpark(p, parked);
	drop(p);
	assert_int_equal(p->in_ram, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_parked_page_that_finds_no_place_stays_alone),
	    TEST(what_is_in_both_tiers_goes_from_both),
	    TEST(a_page_that_is_being_copied_is_not_dropped_before_it_is_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
