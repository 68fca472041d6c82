/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_cost: what a pool's state does for a page that is taken, given back, given up, sent to the
 * tier below or fetched from there. One thread.
 *
 * usage: state_cost take|give|evict|spill|fetch lru|learned OBJECTS [time]
 *
 * A pool knows OBJECTS pages without memory behind them, all retained, in chains of CHAIN_PAGES;
 * for spill and fetch every second one is in a tier below: its places are numbers, its copies end
 * at once. For spill it is full. Then pages of chains are matched (take), released (give),
 * given up for nowhere (evict) or for the tier below, which gives up another (spill), or they come
 * back from there (fetch).
 *
 * Between its markers callgrind counts instructions; state_cost.sh runs it and compares. With
 * `time` it measures, too, the median of all chains: nothing of the pool is in a cache when a round
 * of BATCH chains, at random places, begins. Prints a line of JSON.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_TOGGLE_COLLECT
#endif

#include "daemon/state/match.h"

#define CHAIN_PAGES 16u
#define PAGE_TOKENS 16u
#define CHAINS      1000u
#define BATCH       20u          /* chains from one empty cache to the next */
#define CACHE_BYTES (640u << 20) /* more than any cache has */
#define NEW_CHAINS  200u         /* that come when the pool is full, so that there are ghosts */

static struct pool pool;
static uint32_t tokens[CHAIN_PAGES * PAGE_TOKENS + 1];
static bool timed;
static uint64_t started_ns, done_pages;
static double samples[CHAINS]; /* nanoseconds a page, of each chain */
static uint32_t n_samples;
static char *other_memory;

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

/* ---- what counts ---- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void start(void)
{
	started_ns = now_ns();
	CALLGRIND_TOGGLE_COLLECT;
}

static void stop(uint64_t pages)
{
	CALLGRIND_TOGGLE_COLLECT;
	done_pages += pages;
	if (pages && n_samples < CHAINS)
		samples[n_samples++] = (double)(now_ns() - started_ns) / (double)pages;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Others have the processor now and then: half of the samples are below this. */
static double median_ns(void)
{
	qsort(samples, n_samples, sizeof(*samples), compare);
	return n_samples ? samples[n_samples / 2] : 0;
}

/* Whatever is cached is something else from here on. */
static void empty_caches(void)
{
	if (!timed)
		return;
	for (size_t i = 0; i < CACHE_BYTES; i += 64)
		other_memory[i]++;
}

/* ---- the tier below: numbers ---- */

static struct below {
	uint32_t *free; /* a stack */
	uint32_t n_free;
	uint32_t *coming, n_coming; /* nodes, in the order asked for */
} below;

static int take_place(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	struct retain_rank rank;

	(void)context;
	if (below.n_free == 0) {
		uint32_t victim = retain_next(&pool.retain, TIER_RAM, UINT64_MAX, &rank);

		if (victim == NODE_NONE ||
		    (!need && !retain_ranks_below(rank, retain_rank(&pool.retain, node))))
			return need ? POOL_WAIT : POOL_NEVER;
		pool_give_up_ram(&pool, victim);
	}
	*place = below.free[--below.n_free];
	return 0;
}

static void give_place(void *context, uint32_t place)
{
	(void)context;
	below.free[below.n_free++] = place;
}

static void copy(void *context, uint32_t node)
{
	(void)context;
	below.coming[below.n_coming++] = node;
}

static void copies_down_end(void)
{
	for (uint32_t i = 0; i < below.n_coming; i++)
		pool_came_down(&pool, below.coming[i], 0);
	below.n_coming = 0;
}

static void put_below(uint32_t places)
{
	static const struct pool_below table = {
	    .take = take_place, .give = give_place, .down = copy, .up = copy};

	below.free = malloc(places * sizeof(*below.free));
	below.coming = malloc((uint64_t)pool.limits.pages * sizeof(*below.coming));
	require(below.free && below.coming, "no memory");
	while (below.n_free < places) {
		below.free[below.n_free] = below.n_free;
		below.n_free++;
	}
	pool.below = &table;
}

/* ---- chains ---- */

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

static struct match_wish wish_of(uint64_t chain)
{
	fill_tokens(chain);
	return (struct match_wish){.tokens = tokens,
				   .n_tokens = CHAIN_PAGES * PAGE_TOKENS + 1,
				   .max_cached_tokens = UINT32_MAX};
}

/* A chain that is opened, published and closed. */
static void add_chain(uint64_t chain)
{
	struct match_wish wish = wish_of(chain);
	uint32_t path[CHAIN_PAGES], run = RUN_NONE;
	struct match m;

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
	copies_down_end();
}

static void make_pool(uint32_t objects, enum retain_policy order, uint32_t places)
{
	static struct key_maker maker = {.kept_bits = 128};
	static const uint8_t stamp[16] = {1};
	uint32_t pages = places ? objects / 2 : objects;
	struct pool_limits limits = {.pages = pages + (BATCH + 4) * CHAIN_PAGES,
				     .page_tokens = PAGE_TOKENS,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = objects + 4096,
				     .ram_pages = places,
				     .name_spaces = 1,
				     .prefix_budget = pages,
				     .order = order};

	for (uint32_t i = 0; i < sizeof(maker.secret); i++)
		maker.secret[i] = (uint8_t)(i * 37 + 11);
	require(pool_init(&pool, &limits, &maker, stamp) == 0, "no memory");
	prefix_populate(&pool.prefix, limits.pages); /* as the daemon does */
	if (places)
		put_below(places);
	for (uint64_t chain = 0; chain < objects / CHAIN_PAGES + NEW_CHAINS; chain++)
		add_chain(chain);
	if (timed) {
		other_memory = mmap(NULL, CACHE_BYTES, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		require(other_memory != MAP_FAILED, "no memory");
	}
}

/* ---- operations ---- */

/* Chains that are met at random; those of the first NEW_CHAINS may have gone. */
static uint64_t random_chain(uint32_t objects)
{
	static uint64_t random = 1;

	return NEW_CHAINS + random_step(&random) % (objects / CHAIN_PAGES);
}

static void take(uint32_t objects)
{
	for (uint32_t i = 0; i < CHAINS; i++) {
		struct match_wish wish = wish_of(random_chain(objects));
		uint32_t path[CHAIN_PAGES];
		struct match m;

		if (i % BATCH == 0)
			empty_caches();
		start();
		match_chain(&m, &wish, path);
		stop(m.walk.position);
		retain_let_go(&pool.retain, &m.run);
		release(m.held);
	}
}

static void give(uint32_t objects)
{
	for (uint32_t i = 0; i < CHAINS / BATCH; i++) {
		uint32_t held[BATCH], pages[BATCH];

		for (uint32_t k = 0; k < BATCH; k++) {
			struct match_wish wish = wish_of(random_chain(objects));
			uint32_t path[CHAIN_PAGES];
			struct match m;

			match_chain(&m, &wish, path);
			retain_let_go(&pool.retain, &m.run);
			held[k] = m.held;
			pages[k] = m.walk.position;
		}
		empty_caches();
		for (uint32_t k = 0; k < BATCH; k++) {
			start();
			release(held[k]);
			stop(pages[k]);
		}
	}
}

static void evict(void)
{
	for (uint32_t i = 0; i < CHAINS / 4; i++) {
		uint32_t most = CHAIN_PAGES;

		if (i % BATCH == 0)
			empty_caches();
		start();
		pool_drop_retained(&pool, RETAIN_NAMESPACES, &most);
		stop(CHAIN_PAGES - most);
	}
}

/* Room for a chain's pages is made on the device, one after another. */
static void spill(void)
{
	for (uint32_t i = 0; i < CHAINS / 4; i++) {
		uint32_t most = CHAIN_PAGES, left = pages_free(&pool.pages);

		if (i % BATCH == 0)
			empty_caches();
		start();
		for (uint32_t k = 1; k <= most; k++) {
			pool_make_room(&pool, left + k);
			copies_down_end();
		}
		stop(CHAIN_PAGES);
	}
	require(pool.stats.spills >= CHAINS / 4 * CHAIN_PAGES, "pages were not sent down");
}

struct fetching {
	uint32_t path[CHAIN_PAGES];
	uint32_t held;
	uint32_t first; /* page that is not on the device */
};

static bool is_among(const struct fetching *chains, uint32_t n, uint32_t node)
{
	while (n > 0) {
		if (chains[--n].path[0] == node)
			return true;
	}
	return false;
}

/* Match chains at random until the end of one is below and it is not among the n others. */
static void find_below(uint32_t objects, struct fetching *chains, uint32_t n)
{
	for (uint32_t i = 0; i < 100000; i++) {
		struct match_wish wish = wish_of(random_chain(objects));
		struct fetching *f = &chains[n];
		struct match m;

		match_chain(&m, &wish, f->path);
		retain_let_go(&pool.retain, &m.run);
		f->held = m.held;
		f->first = m.walk.on_device;
		if (f->first < CHAIN_PAGES && m.walk.position == CHAIN_PAGES &&
		    !is_among(chains, n, f->path[0]))
			return;
		release(m.held);
	}
	require(false, "too few chains are below");
}

/* Pages that are below alone come up; those of the device are given up before. */
static void fetch(uint32_t objects)
{
	static struct fetching chains[BATCH];

	pool.limits.prefix_budget = UINT32_MAX;
	for (uint32_t i = 0; i < CHAINS / BATCH; i++) {
		while (pages_free(&pool.pages) < BATCH * CHAIN_PAGES) {
			pool_make_room(&pool, BATCH * CHAIN_PAGES);
			copies_down_end();
		}
		for (uint32_t k = 0; k < BATCH; k++)
			find_below(objects, chains, k);
		empty_caches();
		for (uint32_t k = 0; k < BATCH; k++) {
			const struct fetching *f = &chains[k];

			start();
			for (uint32_t n = f->first; n < CHAIN_PAGES; n++)
				require(pool_fetch(&pool, f->path[n]) == 0,
					"a page was not fetched");
			for (uint32_t n = f->first; n < CHAIN_PAGES; n++)
				pool_came_up(&pool, f->path[n], 0);
			stop(CHAIN_PAGES - f->first);
			below.n_coming = 0;
		}
		for (uint32_t k = 0; k < BATCH; k++)
			release(chains[k].held);
	}
}

int main(int argc, char **argv)
{
	const char *usage =
	    "usage: state_cost take|give|evict|spill|fetch lru|learned OBJECTS [time]";
	uint32_t places = 0;
	char *end;
	unsigned long objects;

	require(argc == 4 || (argc == 5 && strcmp(argv[4], "time") == 0), usage);
	timed = argc == 5;
	objects = strtoul(argv[3], &end, 10);
	require(*end == 0 && objects >= 10000 && objects <= 1u << 28, "OBJECTS is 10000 to 2^28");
	if (strcmp(argv[1], "spill") == 0)
		places = (uint32_t)objects / 2;
	if (strcmp(argv[1], "fetch") == 0)
		places = (uint32_t)objects + NEW_CHAINS * CHAIN_PAGES;
	make_pool((uint32_t)objects, strcmp(argv[2], "learned") == 0 ? RETAIN_LEARNED : RETAIN_LRU,
		  places);
	/* Making it goes without instrumentation, which is slow. */
	CALLGRIND_START_INSTRUMENTATION;
	if (strcmp(argv[1], "evict") == 0)
		evict();
	else if (strcmp(argv[1], "spill") == 0)
		spill();
	else if (strcmp(argv[1], "fetch") == 0)
		fetch((uint32_t)objects);
	else if (strcmp(argv[1], "give") == 0)
		give((uint32_t)objects);
	else if (strcmp(argv[1], "take") == 0)
		take((uint32_t)objects);
	else
		require(false, usage);
	printf("{\"operation\": \"%s\", \"order\": \"%s\", \"objects\": %lu, \"pages\": %llu",
	       argv[1], argv[2], objects, (unsigned long long)done_pages);
	if (timed)
		printf(", \"ns_a_page\": %.1f", median_ns());
	printf("}\n");
	pool_deinit(&pool);
	return 0;
}
