/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_STATES_NAMES_H
#define KVHOST_TESTS_STATES_NAMES_H

/*
 * states_names: what the pages of a hybrid pool are, in strings: two texts share a page if all
 * before its end is the same, so it has the same name. A page is a letter all over.
 */

#include <stdio.h>

#include "tests/unit/pool_world.h"

#define PROMPT  7u /* pages, at most */
#define SET_MAX 256u

struct text { /* of a prompt, or of a state: full pages, and `tail` tokens of another */
	uint16_t name_space;
	uint8_t letters[PROMPT + 1];
	uint32_t tokens;
};

/* Of the pages up to `page` of a text the last one; pages with equal strings are one. */
struct page_name {
	char name[PROMPT + 8];
};

static inline uint32_t pages_of(const struct text *t)
{
	return (t->tokens + PAGE - 1) / PAGE;
}

static inline struct page_name name_of(const struct text *t, uint32_t page)
{
	uint32_t end = (page + 1) * PAGE, length = t->tokens < end ? t->tokens % PAGE : 0;
	struct page_name p = {{0}};

	snprintf(p.name, sizeof(p.name), "%c%.*s%c", 'A' + t->name_space, (int)page + 1,
		 (const char *)t->letters, length ? (char)('0' + length) : '.');
	return p;
}

struct set {
	struct page_name pages[SET_MAX];
	uint32_t n;
};

static inline bool has(const struct set *s, struct page_name p)
{
	for (uint32_t i = 0; i < s->n; i++) {
		if (strcmp(s->pages[i].name, p.name) == 0)
			return true;
	}
	return false;
}

static inline void add(struct set *s, const struct text *t)
{
	for (uint32_t i = 0; i < pages_of(t); i++) {
		struct page_name p = name_of(t, i);

		if (has(s, p))
			continue;
		assert_true(s->n < SET_MAX);
		s->pages[s->n++] = p;
	}
}

static inline uint32_t missing(const struct set *s, const struct text *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < pages_of(t); i++)
		n += !has(s, name_of(t, i));
	return n;
}

static inline uint32_t *tokens_of(const struct text *t)
{
	uint32_t *tokens = malloc((t->tokens + 1) * sizeof(*tokens));

	for (uint32_t i = 0; i <= t->tokens; i++)
		tokens[i] = 1000u * t->letters[i / PAGE] + i % PAGE;
	return tokens;
}

static inline bool begins_with(const struct text *t, const struct text *state)
{
	return state->name_space == t->name_space && state->tokens < t->tokens &&
	       memcmp(t->letters, state->letters, pages_of(state)) == 0;
}

static inline bool equal(const struct text *a, const struct text *b)
{
	return a->name_space == b->name_space && a->tokens == b->tokens &&
	       memcmp(a->letters, b->letters, pages_of(a)) == 0;
}

#endif
