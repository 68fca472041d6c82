/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_POOL_WORLD_H
#define KVHOST_TESTS_POOL_WORLD_H

/*
 * pool_world: a pool without a device for tests: what a daemon does around it, in short words.
 * Pages are cleaned when somebody needs them; copies of pages are only noted. One thread.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "daemon/state/seq.h"

#define PAGE       16u
#define ALL        UINT32_MAX
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static uint32_t fork_copy __attribute__((unused)); /* what seq_fork wants copied */

/* The page that would be given up next. */
static inline uint32_t world_victim(const struct pool *p)
{
	struct retain_rank rank;

	return retain_next(&p->retain, TIER_DEVICE, UINT64_MAX, &rank);
}

/* Both parts of a fork, without admission. */
static inline int fork_of(const struct seq *parent, uint32_t max_tokens, struct seq **out)
{
	int r = seq_fork_new(parent, max_tokens, out);

	return r ? r : seq_fork(parent, *out, &fork_copy);
}
static struct key_maker world_maker;
static const uint8_t world_stamp[16] = {1, 2, 3};

static inline void world_init(struct pool *p, uint32_t pages, uint64_t budget)
{
	struct pool_limits limits = {.pages = pages,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = pages + 64,
				     .ram_pages = pages,
				     .name_spaces = RETAIN_NAMESPACES,
				     .prefix_budget = budget};

	failpoint_clear();
	world_maker.kept_bits = 128;
	for (int i = 0; i < KEY_SECRET_BYTES; i++)
		world_maker.secret[i] = (uint8_t)(i * 7 + 1);
	assert_int_equal(pool_init(p, &limits, &world_maker, world_stamp), 0);
}

static inline void world_check(const struct pool *p)
{
	const char *wrong = pool_check(p, true);

	if (wrong)
		fail_msg("%s", wrong);
}

static inline void world_clean(struct pool *p)
{
	uint32_t page;

	while (pages_take_dirty(&p->pages, &page) == 0)
		pages_clean(&p->pages, page, true);
}

/* Tokens of a text: n of them, of which those from `from` on depend on `text`. */
static inline uint32_t *world_tokens(uint32_t *t, uint32_t n, uint32_t from, uint32_t text)
{
	for (uint32_t i = 0; i < n; i++)
		t[i] = i < from ? i + 1 : 1000000 * text + i;
	return t;
}

static inline struct match_wish world_wish(const uint32_t *tokens, uint32_t n)
{
	return (struct match_wish){.tokens = tokens, .n_tokens = n, .max_cached_tokens = ALL};
}

/* Open with a wish of one's own; budget of a turn. */
static inline struct seq *world_open_wish(struct pool *p, const struct match_wish *wish,
					  uint32_t max_tokens, uint32_t turn)
{
	size_t ids_bytes = wish->n_tokens * sizeof(uint32_t);
	size_t images_bytes = wish->n_images * sizeof(struct key_image);
	uint32_t *path = malloc((match_room(p, wish) + 1) * sizeof(*path));
	uint32_t *ids = malloc(ids_bytes + 1);
	struct key_image *images = images_bytes ? malloc(images_bytes) : NULL;
	struct match m;
	struct seq *s;
	uint32_t budget = turn;

	if (ids_bytes)
		memcpy(ids, wish->tokens, ids_bytes);
	if (images)
		memcpy(images, wish->images, images_bytes);
	assert_int_equal(seq_new(p, wish->name_space, max_tokens, &s), 0);
	assert_int_equal(seq_admit(s), 0);
	match_begin(&m, p, wish, path, retain_open(&p->retain));
	while (match_turn(&m, &budget) == POOL_MORE)
		budget = turn;
	match_count(&m);
	assert_int_equal(seq_take_match(s, &m, ids, images), 0);
	free(path);
	return s;
}

static inline struct seq *world_open(struct pool *p, const uint32_t *tokens, uint32_t n,
				     uint32_t max_tokens)
{
	struct match_wish wish = world_wish(tokens, n);

	return world_open_wish(p, &wish, max_tokens, ALL);
}

/* How many tokens of a prompt are found. */
static inline uint32_t world_lookup(struct pool *p, const uint32_t *tokens, uint32_t n)
{
	struct match_wish wish = world_wish(tokens, n);
	uint32_t *path = malloc((match_room(p, &wish) + 1) * sizeof(*path));
	struct match m;
	uint32_t budget = ALL;

	match_begin(&m, p, &wish, path, 0);
	assert_int_equal(match_turn(&m, &budget), 0);
	free(path);
	return match_tokens(&m);
}

static inline void world_begin(struct seq *s, uint32_t target)
{
	uint32_t n;
	int r;

	assert_int_equal(step_wants(s, target, 0, &n), 0);
	for (int i = 0; (r = step_begin(s, target, 0, n)) == POOL_WAIT && i < 3; i++)
		world_clean(s->pool);
	assert_int_equal(r, 0);
}

/* The receipt of the first `tokens` tokens of the open step; pages: room for its pages. */
static inline struct step_receipt world_receipt(const struct seq *s, uint32_t tokens,
						uint64_t *pages)
{
	struct step_receipt r = {.pages = pages, .tokens = tokens};
	uint32_t first = seq_page_index(s, s->step.start);
	uint32_t end = pool_pages_for(s->pool, s->step.start + tokens);

	for (uint32_t i = first; tokens && i < end; i++) {
		uint32_t page = seq_page(s, i);

		pages[r.n_pages++] = (uint64_t)s->pool->pages.page[page].generation << 32 | page;
	}
	return r;
}

/* Commit, with ids for what the prompt did not give (ids NULL: none), and publish. */
static inline void world_commit(struct seq *s, uint32_t tokens, const uint32_t *ids)
{
	uint64_t *pages = malloc((tokens / PAGE + 2) * sizeof(*pages));
	struct step_receipt r = world_receipt(s, tokens, pages);
	uint32_t end = s->step.start + tokens;
	uint32_t known = s->ids_end > s->committed ? s->ids_end : s->committed;
	uint32_t budget = ALL;

	if (ids && end > known) {
		r.ids = ids + known;
		r.n_ids = end - known;
	}
	assert_int_equal(step_commit(s, &r), 0);
	assert_int_equal(seq_publish_turn(s, &budget), 0);
	free(pages);
}

/* A step to `target` that is committed whole; ids[position] as far as they are not known. */
static inline void world_step(struct seq *s, uint32_t target, const uint32_t *ids)
{
	world_begin(s, target);
	world_commit(s, target - s->step.start, ids);
}

static inline void world_truncate(struct seq *s, uint32_t tokens)
{
	uint32_t budget = ALL;

	assert_int_equal(seq_truncate(s, tokens), 0);
	assert_int_equal(seq_release_turn(s, &budget), 0);
}

static inline void world_close(struct seq **s)
{
	uint32_t budget = ALL;

	assert_int_equal(seq_close_turn(s, &budget), 0);
	assert_null(*s);
}

/* A test that failed has left sequences behind: they must not hide why. */
static inline void world_deinit(struct pool *p)
{
	const char *wrong = pool_check(p, true);

	memset(protection_off, 0, sizeof(protection_off));
	failpoint_clear();
	while (!list_is_empty(&p->members)) {
		struct seq *s = list_entry(list_first(&p->members), struct seq, in_pool);
		uint32_t budget = ALL;

		step_end(s, false);
		seq_close_turn(&s, &budget);
	}
	pool_deinit(p);
	if (wrong)
		fail_msg("%s", wrong);
}

#endif
