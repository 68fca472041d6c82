/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_cost: what a pool's state does for a page that is taken, given back or given up, to be
 * counted in instructions: callgrind counts between the markers. One thread.
 *
 * usage: state_cost take|give|evict lru|learned PAGES
 *
 * A pool of PAGES pages without memory behind them, all retained, in chains of CHAIN_PAGES; then
 * chains are matched (take), released (give) or their pages given up (evict), OPERATIONS pages in
 * all. state_cost.sh runs it and compares.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_TOGGLE_COLLECT
#endif

#include "daemon/state/match.h"

#define CHAIN_PAGES 16u
#define PAGE_TOKENS 16u
#define OPERATIONS  (1000u * CHAIN_PAGES)
#define NEW_CHAINS  200u /* that come when the pool is full, so that there are ghosts */

static struct pool pool;
static uint32_t tokens[CHAIN_PAGES * PAGE_TOKENS + 1];

static void require(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "state_cost: %s\n", what);
	exit(1);
}

static uint64_t random_step(uint64_t *x)
{
	*x += 0x9e3779b97f4a7c15ull;
	return (*x ^ *x >> 29) * 0xbf58476d1ce4e5b9ull >> 20;
}

static void fill_tokens(uint64_t chain)
{
	for (uint32_t i = 0; i < CHAIN_PAGES * PAGE_TOKENS + 1; i++)
		tokens[i] = (uint32_t)chain * 0x9e3779b1u ^ i;
}

static void release(uint32_t node)
{
	uint32_t all = UINT32_MAX;

	pool_release(&pool, &node, &all);
}

/* Match the chain as an open does. */
static void match_chain(struct match *m, const struct match_wish *wish, uint32_t *path)
{
	uint32_t all = UINT32_MAX;

	match_begin(m, &pool, wish, path, retain_open(&pool.retain));
	while (match_turn(m, &all))
		all = UINT32_MAX;
}

/* A chain that is opened, published and closed. */
static void add_chain(uint64_t chain)
{
	struct match_wish wish = {.tokens = tokens,
				  .n_tokens = CHAIN_PAGES * PAGE_TOKENS + 1,
				  .max_cached_tokens = UINT32_MAX};
	uint32_t path[CHAIN_PAGES], run = RUN_NONE;
	struct match m;

	fill_tokens(chain);
	match_chain(&m, &wish, path);
	retain_let_go(&pool.retain, &m.run);
	for (uint32_t i = m.walk.position; i < CHAIN_PAGES; i++) {
		uint32_t page, node, above = m.held;

		while (pages_take(&pool.pages, &page)) {
			require(!pages_take_dirty(&pool.pages, &page), "there is no page left");
			pages_clean(&pool.pages, page, true);
		}
		require(prefix_publish(&pool.prefix, above, tokens + i * PAGE_TOKENS, PAGE_TOKENS,
				       NULL, 0, &node) == PREFIX_NEW,
			"a page is not new");
		require(retain_touch(&pool.retain, node, m.tick, RETAIN_NEW, &run) == 0,
			"a page was not touched");
		pool_index(&pool, node, page);
		pool_hold(&pool, node);
		release(above);
		m.held = node;
	}
	retain_let_go(&pool.retain, &run);
	release(m.held);
}

static void make_pool(uint32_t pages, enum retain_policy order)
{
	static struct key_maker maker = {.kept_bits = 128};
	static const uint8_t stamp[16] = {1};
	struct pool_limits limits = {.pages = pages + 2 * CHAIN_PAGES,
				     .page_tokens = PAGE_TOKENS,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = pages + 4096,
				     .name_spaces = RETAIN_NAMESPACES,
				     .prefix_budget = pages,
				     .order = order};

	for (uint32_t i = 0; i < sizeof(maker.secret); i++)
		maker.secret[i] = (uint8_t)(i * 37 + 11);
	require(pool_init(&pool, &limits, &maker, stamp) == 0, "no memory");
	for (uint64_t chain = 0; chain < pages / CHAIN_PAGES + NEW_CHAINS; chain++)
		add_chain(chain);
}

static void take_or_give(uint32_t pages, bool take)
{
	uint64_t random = 1, met = 0;

	while (met < OPERATIONS) {
		struct match_wish wish = {.tokens = tokens,
					  .n_tokens = CHAIN_PAGES * PAGE_TOKENS + 1,
					  .max_cached_tokens = UINT32_MAX};
		uint32_t path[CHAIN_PAGES];
		struct match m;

		fill_tokens(NEW_CHAINS + random_step(&random) % (pages / CHAIN_PAGES));
		if (take)
			CALLGRIND_TOGGLE_COLLECT;
		match_chain(&m, &wish, path);
		if (take)
			CALLGRIND_TOGGLE_COLLECT;
		met += m.walk.position;
		retain_let_go(&pool.retain, &m.run);
		if (!take)
			CALLGRIND_TOGGLE_COLLECT;
		release(m.held);
		if (!take)
			CALLGRIND_TOGGLE_COLLECT;
	}
	printf("operations %llu\n", (unsigned long long)met);
}

static void evict(void)
{
	uint32_t most = OPERATIONS / 4;

	CALLGRIND_TOGGLE_COLLECT;
	pool_drop_retained(&pool, RETAIN_NAMESPACES, &most);
	CALLGRIND_TOGGLE_COLLECT;
	printf("operations %u\n", OPERATIONS / 4 - most);
}

int main(int argc, char **argv)
{
	char *end;
	unsigned long pages;

	require(argc == 4, "usage: state_cost take|give|evict lru|learned PAGES");
	pages = strtoul(argv[3], &end, 10);
	require(*end == 0 && pages >= 4096 && pages <= 1u << 28, "PAGES is 4096 to 2^28");
	make_pool((uint32_t)pages, strcmp(argv[2], "learned") == 0 ? RETAIN_LEARNED : RETAIN_LRU);
	/* Making it goes without instrumentation, which is slow. */
	CALLGRIND_START_INSTRUMENTATION;
	if (strcmp(argv[1], "evict") == 0)
		evict();
	else
		take_or_give((uint32_t)pages, strcmp(argv[1], "take") == 0);
	pool_deinit(&pool);
	return 0;
}
