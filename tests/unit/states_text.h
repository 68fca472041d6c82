/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_STATES_TEXT_H
#define KVHOST_TESTS_STATES_TEXT_H

/* states_text: prompts of hybrid pools, in few words. */

#include "daemon/state/image.h"
#include "tests/unit/pool_world.h"

struct states_text { /* a prompt: the first `shared` tokens are those of all texts */
	uint32_t which, shared;
	uint16_t name_space;
	bool interactive;
	enum image_kind kind; /* of states that are captured there */
};

/* n tokens of it, malloc'ed. */
static inline uint32_t *states_tokens(const struct states_text *text, uint32_t n)
{
	return world_tokens(malloc((n + 1) * sizeof(uint32_t)), n, text->shared, text->which);
}

static inline struct match_wish states_wish(const struct states_text *text, const uint32_t *tokens,
					    uint32_t n)
{
	struct match_wish wish = world_wish(tokens, n);

	wish.name_space = text->name_space;
	wish.interactive = text->interactive;
	return wish;
}

#endif
