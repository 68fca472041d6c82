/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_LEAVE_WORLD_H
#define KVHOST_TESTS_LEAVE_WORLD_H

/*
 * leave_world: pages that leave the device for the tier below it, one move after another. The test
 * plays the tier below (tiers_world). One thread; nothing blocks.
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

/* n pages are to go from the device: their copies are under way. */
static inline void send_down(struct tiers *t, uint32_t n)
{
	assert_true(
	    pool_make_room(&t->pool, pages_free(&t->pool.pages) + (uint32_t)t->pool.leaving + n));
	tiers_check(t);
}

static inline void down_ends(struct tiers *t, int result)
{
	tiers_down_ends(t, result);
	tiers_check(t);
}

static inline void hold(struct tiers *t, uint32_t node)
{
	pool_hold(&t->pool, node);
	tiers_check(t);
}

static inline void release(struct tiers *t, uint32_t node)
{
	uint32_t all = ALL;

	pool_release(&t->pool, &node, &all);
	tiers_check(t);
}

/* Everything is given up everywhere, and nothing is left. */
static inline void assert_all_can_go(struct tiers *t)
{
	uint32_t all = ALL;

	tiers_settle(t);
	tiers_check(t);
	assert_true(pool_drop_retained(&t->pool, RETAIN_NAMESPACES, &all));
	tiers_settle(t);
	all = ALL;
	assert_true(pool_drop_retained(&t->pool, RETAIN_NAMESPACES, &all));
	tiers_check(t);
	assert_int_equal(t->pool.indexed + t->pool.in_ram + t->used, 0);
	assert_int_equal(t->pool.prefix.used, 0);
}

#endif
