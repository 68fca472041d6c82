/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_STATES_BELOW_H
#define KVHOST_TESTS_STATES_BELOW_H

/* states_below: states of one conversation, on the device or below it, for tests of who finds and
 * fetches them. One thread; nothing blocks. */

#include "tests/unit/states_world.h"

#define IMAGE 3u /* units */

static struct states world;

static const struct states_text one = {.which = 1};

static inline void start(struct states *w, uint32_t floor_tokens)
{
	states_init(w, &(struct states_limits){.pages = 128,
					       .slots = 6,
					       .units = 128,
					       .image_units = IMAGE,
					       .floor_tokens = floor_tokens});
}

static inline int setup(void **state)
{
	start(&world, 0);
	*state = &world;
	return 0;
}

static inline int teardown(void **state)
{
	states_deinit(*state);
	return 0;
}

static inline void start_with_floor(struct states *w, uint32_t floor_tokens)
{
	states_deinit(w);
	start(w, floor_tokens);
}

static inline void put_down(struct states *w, struct image_name name)
{
	states_push_down(w, name.image);
	states_settle(w);
	world_clean(&w->pool);
	states_check(w);
}

static inline struct image_name retain(struct states *w, uint32_t n)
{
	return states_name(w, states_retain(w, &one, n));
}

static inline uint64_t misses(const struct states *w, enum match_miss miss)
{
	return w->pool.stats.misses[miss];
}

static inline void assert_where(const struct states *w, struct image_name name, const char *where)
{
	assert_string_equal(states_where(w, name), where);
}

#endif
