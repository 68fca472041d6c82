/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_PARK_SEQS_H
#define KVHOST_TESTS_PARK_SEQS_H

/* park_seqs: a small pool over a park_world, and sequences in it that say what is in their pages.
 * One thread. */

#include "tests/unit/park_world.h"

#define PAGES 16u

static struct pool pool;
static uint32_t text[32 * PAGE], other[32 * PAGE];
static uint64_t serial;

static inline int setup(void **state)
{
	struct pool_limits limits = {.pages = PAGES, .prefix_budget = PAGES};

	*state = &pool;
	serial = 0;
	park_init(&pool, limits, 60, 100);
	world_tokens(text, 32 * PAGE, 32 * PAGE, 0);
	world_tokens(other, 32 * PAGE, 0, 7);
	return 0;
}

static inline int teardown(void **state)
{
	world_deinit(*state);
	return 0;
}

static inline struct pool_rank rank_of(bool interactive, uint64_t at)
{
	return (struct pool_rank){.interactive = interactive, .serial = at};
}

/* What was written into the pages of a sequence. */
static inline void write_all(const struct seq *s, uint64_t value)
{
	for (uint32_t i = 0; i < s->n_pages; i++)
		below.page[s->table[i]] = value + i;
}

static inline void assert_all(const struct seq *s, uint64_t value)
{
	for (uint32_t i = 0; i < s->n_pages; i++)
		assert_int_equal(below.page[s->table[i]], value + i);
}

/* Not published: no ids that anybody could know. */
static inline struct seq *private_seq(uint32_t tokens, uint32_t max_tokens, uint64_t value)
{
	struct match_wish wish = {
	    .off = true, .max_cached_tokens = ALL, .tokens = text, .name_space = 3};
	struct seq *s = world_open_wish(&pool, &wish, max_tokens, ALL);

	seq_set_rank(s, rank_of(false, ++serial));
	world_step(s, tokens, NULL);
	write_all(s, value);
	return s;
}

static inline struct seq *published_seq(const uint32_t *ids, uint32_t tokens, uint32_t max_tokens,
					uint64_t value)
{
	struct seq *s = world_open(&pool, ids, tokens, max_tokens);

	seq_set_rank(s, rank_of(false, ++serial));
	if (s->committed < tokens)
		world_step(s, tokens, ids);
	write_all(s, value);
	return s;
}

static inline struct seq *branch_of(struct seq *s, uint64_t at)
{
	struct seq *f;

	assert_int_equal(seq_fork_new(s, s->max_tokens, &f), 0);
	assert_int_equal(seq_admit(f), 0);
	assert_int_equal(seq_fork(s, f, &fork_copy), 0);
	seq_set_rank(f, rank_of(false, at));
	return f;
}

/* A step of one token more, whose window begins there: what is before it is its fork's alone. */
static inline void leave_front_behind(struct seq *s, uint32_t window)
{
	uint32_t n;

	assert_int_equal(step_wants(s, s->committed + 1, window, &n), 0);
	assert_int_equal(step_begin(s, s->committed + 1, window, n), 0);
	world_commit(s, 1, NULL);
}

static inline bool make_room(uint32_t n)
{
	return park_make_room(&pool, n, rank_of(true, 0)) == 0;
}

/* Everything of everybody below goes, and is there. */
static inline void push_all(void)
{
	for (int i = 0; i < 4 && pages_free(&pool.pages) < PAGES; i++) {
		assert_true(make_room(PAGES));
		below_end_all();
		park_clean(&pool);
	}
	assert_int_equal(pages_free(&pool.pages), PAGES);
}

static inline int bring(struct seq *s)
{
	int r = POOL_MORE;

	for (int i = 0; i < 100 && r && r != POOL_LOST; i++) {
		uint32_t budget = 3;

		r = park_return(s, s->rank, false, &budget);
		if (r == POOL_WAIT || r == POOL_FULL) {
			below_end(UP, 0);
			below_end(DOWN, 0);
			park_clean(&pool);
		}
	}
	return r;
}

static inline void fail_copies(uint32_t n)
{
	while (n-- && below_in_flight(DOWN))
		below_end(DOWN, -5);
}

static inline void end_with_nothing(void)
{
	below_end_all();
	park_assert_empty(&pool);
}

#endif
