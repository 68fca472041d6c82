/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_STATES_SMALL_H
#define KVHOST_TESTS_STATES_SMALL_H

/* states_small: a hybrid pool with few slots over a states_world, for tests of single states.
 * One thread; nothing blocks. */

#include "tests/unit/states_world.h"

#define IMAGE 5u /* units */

static struct states world;

static const struct states_text one = {.which = 1}, two = {.which = 2};

static inline int setup_slots(void **state, uint32_t slots)
{
	states_init(&world, &(struct states_limits){
				.pages = 64, .slots = slots, .units = 40, .image_units = IMAGE});
	*state = &world;
	return 0;
}

static inline int teardown(void **state)
{
	states_deinit(*state);
	return 0;
}

static inline void start_again(struct states *w, const struct states_limits *limits)
{
	states_deinit(w);
	states_init(w, limits);
}

static inline void assert_state(const struct states *w, struct image_name name, const char *where,
				const char *pages)
{
	states_check(w);
	assert_string_equal(states_where(w, name), where);
	if (pages)
		assert_string_equal(states_pages(w, name.image), pages);
}

static inline struct image_name retain(struct states *w, const struct states_text *text, uint32_t n)
{
	return states_name(w, states_retain(w, text, n));
}

/* In the tier below alone. */
static inline struct image_name put_down(struct states *w, const struct states_text *text,
					 uint32_t n)
{
	struct image_name name = retain(w, text, n);

	states_push_down(w, name.image);
	states_settle(w);
	states_check(w);
	world_clean(&w->pool);
	return name;
}

static inline uint32_t slots_free(const struct states *w)
{
	return w->pool.images.slots_free;
}

#endif
