/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_FETCH_WORLD_H
#define KVHOST_TESTS_FETCH_WORLD_H

/*
 * fetch_world: opens whose pages are below the device, turn by turn. The test plays the tier below
 * (tiers_world). One thread; nothing blocks.
 */

#include "tests/unit/tiers_world.h"

#define PAGES  32u
#define PLACES 64u

static struct tiers world;

static inline int setup(void **state)
{
	*state = &world;
	tiers_init(&world,
		   &(struct tiers_limits){.pages = PAGES, .budget = PAGES, .places = PLACES});
	return 0;
}

static inline int teardown(void **state)
{
	tiers_deinit(*state);
	return 0;
}

static inline void up_ends(struct tiers *t, int result)
{
	tiers_up_ends(t, result);
	tiers_check(t);
}

/* A chain of n pages of which only the first `here` are on the device. */
static inline void put_down(struct tiers *t, uint32_t which, uint32_t n, uint32_t here,
			    uint32_t *nodes)
{
	tiers_retain(t, which, n, nodes);
	while (t->pool.indexed > here) {
		assert_true(pool_make_room(&t->pool, pages_free(&t->pool.pages) + 1));
		tiers_settle(t);
	}
	tiers_check(t);
	world_clean(&t->pool);
}

static inline struct opening *begin(struct tiers *t, uint32_t which, uint32_t n)
{
	static uint32_t prompts[8][PAGES * PAGE];
	struct match_wish wish = world_wish(prompts[which], n * PAGE + 1);

	world_tokens(prompts[which], n * PAGE + 1, 0, which);
	return opening_begin(&t->pool, &wish, n * PAGE + 1);
}

static inline int turn(struct opening **o, struct seq **s)
{
	int r;

	*s = NULL;
	while ((r = opening_turn(o, ALL, s)) == POOL_MORE)
		;
	tiers_check(&world);
	return r;
}

/* It is done and has so many pages. */
static inline struct seq *must_have(struct opening **o, uint32_t pages)
{
	struct seq *s;

	assert_int_equal(turn(o, &s), 0);
	assert_int_equal(s->committed, pages * PAGE);
	return s;
}

static inline void must_wait(struct opening **o)
{
	struct seq *s;

	assert_int_equal(turn(o, &s), POOL_WAIT);
}

static inline void close(struct tiers *t, struct seq **s)
{
	world_close(s);
	tiers_check(t);
}

static inline void assert_all_can_go(struct tiers *t)
{
	uint32_t all = ALL;

	assert_true(pool_drop_retained(&t->pool, RETAIN_NAMESPACES, &all));
	tiers_check(t);
	assert_int_equal(t->pool.indexed + t->pool.in_ram + t->used, 0);
	assert_int_equal(t->pool.prefix.used, 0);
}

#endif
