/* SPDX-License-Identifier: Apache-2.0 */
/*
 * states_cost: what a hybrid pool does for a retained state that is found, given back, sent to the
 * tier below or fetched from there. One thread.
 *
 * usage: states_cost take|give|down|up lru|learned STATES
 *
 * A pool without memory behind it has STATES states on the device, each of CHAIN_PAGES pages of its
 * own and an image; for down and up as many more live in a tier below, whose places are numbers,
 * which is full, and whose copies end at once. Then some are matched as by an open (take), let go
 * (give), leave the device for the tier below, where another gives up its place (down), or come
 * back from there (up). Between its markers callgrind counts instructions; state_cost.sh runs it
 * and compares. Prints a line of JSON.
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
#include "daemon/state/pool_states.h"

#define CHAIN_PAGES 8u
#define PAGE_TOKENS 16u
#define MEASURED    50u /* states */
#define IMAGE_UNITS 8u  /* of room below, of which a page takes one */

static struct pool pool;
static uint32_t tokens[CHAIN_PAGES * PAGE_TOKENS + 1];
static uint32_t path[CHAIN_PAGES];

static void require(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "states_cost: %s\n", what);
	exit(1);
}

/* ---- the tier below: numbers ---- */

static struct below {
	uint64_t room, used; /* units */
	uint32_t next;       /* a number is used once */
	uint8_t *units;      /* that each has */
	uint32_t *coming, n_coming;
	uint32_t spilling;
} below;

static void take_units(uint32_t units, uint32_t *place)
{
	*place = below.next++;
	below.units[*place] = (uint8_t)units;
	below.used += units;
}

static int take_page(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	(void)context;
	(void)node;
	(void)need;
	if (below.used + 1 > below.room)
		return POOL_NEVER;
	take_units(1, place);
	return 0;
}

static int take_image(void *context, uint32_t image, enum pool_need need, uint32_t *place)
{
	(void)context;
	(void)image;
	(void)need;
	if (below.used + IMAGE_UNITS > below.room)
		return POOL_NEVER;
	take_units(IMAGE_UNITS, place);
	return 0;
}

static void give_place(void *context, uint32_t place)
{
	(void)context;
	below.used -= below.units[place];
}

static int plan(void *context, uint32_t image, uint32_t pages, bool with_image)
{
	struct retain_rank rank, own = image_rank(&pool.images, image, 0, 0);
	uint64_t wanted = pages + (with_image ? IMAGE_UNITS : 0), freed = 0;
	uint32_t victim[16], n = 0;

	(void)context;
	while (below.room - below.used + freed < wanted && n < 16) {
		victim[n] = image_next_in_ram(&pool.images, UINT64_MAX, 0, 0, &rank);
		/* Where nothing ever comes back what is learned may say anything. */
		if (victim[n] == IMAGE_NONE ||
		    (!pool_reuse(&pool) && !retain_ranks_below(rank, own)))
			break;
		freed += IMAGE_UNITS + pool_plan_give_up(&pool, victim[n++]);
	}
	for (uint32_t i = n; i > 0; i--)
		pool_plan_undo(&pool, victim[i - 1]);
	if (below.room - below.used + freed < wanted)
		return POOL_NEVER;
	for (uint32_t i = 0; i < n; i++)
		pool_give_up(&pool, victim[i]);
	return 0;
}

static void copy(void *context, uint32_t node)
{
	(void)context;
	below.coming[below.n_coming++] = node;
}

static void spill(void *context, uint32_t image)
{
	(void)context;
	below.spilling = image;
}

static void copies_down_end(void)
{
	for (uint32_t i = 0; i < below.n_coming; i++)
		pool_came_down(&pool, below.coming[i], 0);
	below.n_coming = 0;
	if (below.spilling != IMAGE_NONE)
		pool_spilled(&pool, below.spilling, 0);
	below.spilling = IMAGE_NONE;
}

static void put_below(uint32_t states)
{
	static const struct pool_below table = {.take = take_page,
						.take_image = take_image,
						.plan = plan,
						.spill = spill,
						.give = give_place,
						.down = copy,
						.up = copy};
	uint64_t places = (states + MEASURED) * (CHAIN_PAGES + 1ull);

	below.room = (uint64_t)states * (CHAIN_PAGES + IMAGE_UNITS);
	below.units = calloc(places, sizeof(*below.units));
	below.coming = malloc(CHAIN_PAGES * sizeof(*below.coming));
	below.spilling = IMAGE_NONE;
	require(below.units && below.coming, "no memory");
	pool.below = &table;
}

/* ---- states ---- */

static struct match_wish wish_of(uint32_t state)
{
	for (uint32_t i = 0; i < CHAIN_PAGES * PAGE_TOKENS + 1; i++)
		tokens[i] = state * 0x9e3779b1u ^ i;
	return (struct match_wish){.tokens = tokens,
				   .n_tokens = CHAIN_PAGES * PAGE_TOKENS + 1,
				   .max_cached_tokens = UINT32_MAX};
}

static void match_state(struct match *m, const struct match_wish *wish)
{
	uint32_t all = UINT32_MAX;

	match_begin(m, &pool, wish, path, retain_open(&pool.retain));
	while (match_turn(m, &all))
		all = UINT32_MAX;
}

static void release(uint32_t node)
{
	uint32_t all = UINT32_MAX;

	pool_release(&pool, &node, &all);
}

static void capture(uint32_t node)
{
	uint32_t image = image_take(&pool.images);
	struct image *it = &pool.images.image[image];

	require(image != IMAGE_NONE, "no image is free");
	it->node = node;
	it->tokens = CHAIN_PAGES * PAGE_TOKENS;
	image_touch(&pool.images, image, false, 0);
	habits_begin(&pool.images, image, pool.prefix.nodes[node].key, 0, pool.retain.tick);
	require(pool_place_image(&pool, image), "no slot is free");
	pool.prefix.nodes[node].state = image;
	pool_keep_on_device(&pool, image);
	image_filled(&pool.images, image);
}

/* As an open and a capture make it. */
static void add_state(uint32_t state)
{
	struct match_wish wish = wish_of(state);
	struct match m;

	match_state(&m, &wish);
	for (uint32_t i = 0; i < CHAIN_PAGES; i++) {
		uint32_t page, node, above = m.held;

		while (pages_take(&pool.pages, &page)) {
			require(!pages_take_dirty(&pool.pages, &page), "there is no page left");
			pages_clean(&pool.pages, page, true);
		}
		require(prefix_publish(&pool.prefix, above, tokens + i * PAGE_TOKENS, PAGE_TOKENS,
				       NULL, 0, &node) == PREFIX_NEW,
			"a page is not new");
		pool_index(&pool, node, page);
		pool_hold(&pool, node);
		release(above);
		m.held = node;
	}
	capture(m.held);
	release(m.held);
}

static void make_pool(uint32_t states, enum retain_policy order, bool tier)
{
	static struct key_maker maker = {.kept_bits = 128};
	static const uint8_t stamp[16] = {1};
	uint32_t most = states + MEASURED, pages = most * CHAIN_PAGES;
	struct pool_limits limits = {.pages = pages,
				     .page_tokens = PAGE_TOKENS,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = pages + 4096,
				     .ram_pages = tier ? pages : 0,
				     .name_spaces = 1,
				     .prefix_budget = pages,
				     .lanes = 4,
				     .retained_slots = most,
				     .ram_images = tier ? most : 0,
				     .order = order};

	for (uint32_t i = 0; i < sizeof(maker.secret); i++)
		maker.secret[i] = (uint8_t)(i * 37 + 11);
	require(pool_init(&pool, &limits, &maker, stamp) == 0, "no memory");
	require(images_prepare(&pool.images, 0) == 0, "no memory");
	if (tier)
		put_below(states);
	for (uint32_t i = 0; tier && i < states; i++) {
		add_state(i);
		require(pool_push_down(&pool, pool_next_state(&pool, false)) == 0, "it stays");
		copies_down_end();
	}
	for (uint32_t i = 0; i < states; i++)
		add_state(states + i);
}

/* ---- operations ---- */

/* Places of states all over, no two of which are the same. */
static uint32_t place_of(uint32_t i, uint32_t states)
{
	return (uint32_t)((uint64_t)i * states / MEASURED);
}

static void take_and_give(uint32_t states, bool take)
{
	for (uint32_t i = 0; i < MEASURED; i++) {
		struct match_wish wish = wish_of(states + place_of(i, states));
		struct match m;

		if (take)
			CALLGRIND_TOGGLE_COLLECT;
		match_state(&m, &wish);
		CALLGRIND_TOGGLE_COLLECT;
		require(m.image != IMAGE_NONE && !m.from_ram, "a state is not on the device");
		match_unclaim(&m);
		release(m.held);
		if (!take)
			CALLGRIND_TOGGLE_COLLECT;
	}
}

static void down(void)
{
	uint64_t given_up = pool.images.counts.given_up[IMAGE_CHECKPOINT];

	for (uint32_t i = 0; i < MEASURED; i++) {
		CALLGRIND_TOGGLE_COLLECT;
		pool_push_down(&pool, pool_next_state(&pool, false));
		copies_down_end();
		CALLGRIND_TOGGLE_COLLECT;
	}
	require(pool.images.counts.spilled >= MEASURED && pool.stats.ram_refused == 0 &&
		    pool.images.counts.given_up[IMAGE_CHECKPOINT] - given_up == MEASURED,
		"a state did not take the place of one other");
}

static void up(uint32_t states)
{
	for (uint32_t i = 0; i < MEASURED; i++) {
		struct match_wish wish = wish_of(place_of(i, states));
		struct match m;

		match_state(&m, &wish);
		require(m.image != IMAGE_NONE && m.from_ram, "a state is not below");
		CALLGRIND_TOGGLE_COLLECT;
		for (uint32_t k = 0; k < CHAIN_PAGES; k++)
			require(pool_fetch(&pool, match_node(&m, k)) == 0, "it is not fetched");
		for (uint32_t k = 0; k < CHAIN_PAGES; k++)
			pool_came_up(&pool, match_node(&m, k), 0);
		below.n_coming = 0;
		pool_image_came(&pool, m.image, 0, true, true);
		match_unclaim(&m);
		CALLGRIND_TOGGLE_COLLECT;
		release(m.held);
	}
	require(pool.images.counts.restored == MEASURED, "a state has not come back");
}

int main(int argc, char **argv)
{
	const char *usage = "usage: states_cost take|give|down|up lru|learned STATES";
	unsigned long states;
	char *end;

	require(argc == 4, usage);
	states = strtoul(argv[3], &end, 10);
	require(*end == 0 && states >= 2 * MEASURED && states <= 1u << 24, "STATES is 100 to 2^24");
	make_pool((uint32_t)states, strcmp(argv[2], "learned") == 0 ? RETAIN_LEARNED : RETAIN_LRU,
		  argv[1][0] == 'd' || argv[1][0] == 'u');
	/* Making it goes without instrumentation, which is slow. */
	CALLGRIND_START_INSTRUMENTATION;
	if (strcmp(argv[1], "take") == 0)
		take_and_give((uint32_t)states, true);
	else if (strcmp(argv[1], "give") == 0)
		take_and_give((uint32_t)states, false);
	else if (strcmp(argv[1], "down") == 0)
		down();
	else if (strcmp(argv[1], "up") == 0)
		up((uint32_t)states);
	else
		require(false, usage);
	printf("{\"operation\": \"state %s\", \"order\": \"%s\", \"states\": %lu, "
	       "\"measured\": %u}\n",
	       argv[1], argv[2], states, MEASURED);
	pool_deinit(&pool);
	return 0;
}
