/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_PARK_WORLD_H
#define KVHOST_TESTS_PARK_WORLD_H

/*
 * park_world: a pool with a tier below it that is nothing but numbers: what is in each page and in
 * each place, and copies that end when the test says, well or not. One thread.
 */

#include "daemon/base/panic.h"
#include "daemon/base/random.h"
#include "daemon/state/park.h"
#include "tests/unit/pool_world.h"

#define BELOW_PLACES 512u
#define BELOW_COPIES (1u << 12) /* in flight, a direction */
#define GARBAGE      UINT64_MAX

enum below_direction { DOWN = 0, UP };

struct below_copy {
	uint32_t node, page, place, index;
	struct seq *seq;
};

struct below {
	struct pool *pool;
	uint64_t page[256]; /* what is in each page of the device */
	uint64_t place[BELOW_PLACES];
	bool used[BELOW_PLACES];
	uint32_t places; /* that there are */
	uint32_t n_used;
	uint64_t room;
	bool full, busy; /* of what is live; with what is on its way */
	struct below_copy copy[2][BELOW_COPIES];
	uint32_t asked[2], told[2];
	struct pool_below functions;
};

static struct below below;

static int below_place(uint32_t *place, enum pool_need need)
{
	struct retain_rank rank;
	uint32_t victim;

	if (below.full || below.busy)
		return need ? POOL_WAIT : POOL_NEVER;
	if (below.n_used == below.places) {
		victim = retain_next(&below.pool->retain, TIER_RAM, UINT64_MAX, &rank);
		if (victim == NODE_NONE)
			return need ? POOL_WAIT : POOL_NEVER;
		pool_give_up_ram(below.pool, victim);
	}
	for (uint32_t i = 0; i < below.places; i++) {
		if (below.used[i])
			continue;
		below.used[i] = true;
		below.n_used++;
		below.place[i] = GARBAGE;
		*place = i;
		return 0;
	}
	cannot_happen("no place where one was given up");
}

static int below_take(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	(void)context;
	(void)node;
	return below_place(place, need);
}

static int below_take_private(void *context, uint16_t name_space, uint32_t *place)
{
	(void)context;
	(void)name_space;
	return below_place(place, POOL_NEED_LIVE);
}

static void below_give(void *context, uint32_t place)
{
	(void)context;
	must(place < below.places && below.used[place]);
	below.used[place] = false;
	below.place[place] = GARBAGE;
	below.n_used--;
}

static uint32_t below_ask(enum below_direction way, struct below_copy copy)
{
	must(below.asked[way] - below.told[way] < BELOW_COPIES);
	must(below.used[copy.place]);
	if (way == UP)
		below.page[copy.page] = GARBAGE;
	below.copy[way][below.asked[way] % BELOW_COPIES] = copy;
	return below.asked[way]++;
}

static struct below_copy below_copy_of(uint32_t node)
{
	const struct node *n = &below.pool->prefix.nodes[node];

	return (struct below_copy){
	    .node = node, .page = n->copies[TIER_DEVICE], .place = n->copies[TIER_RAM]};
}

static void below_down(void *context, uint32_t node)
{
	(void)context;
	below_ask(DOWN, below_copy_of(node));
}

static void below_up(void *context, uint32_t node)
{
	(void)context;
	below_ask(UP, below_copy_of(node));
}

static uint32_t below_move_private(void *context, bool up, struct seq *s, uint32_t index,
				   uint32_t page, uint32_t place)
{
	(void)context;
	return below_ask(
	    up ? UP : DOWN,
	    (struct below_copy){
		.node = NODE_NONE, .page = page, .place = place, .index = index, .seq = s});
}

static void below_orphan(void *context, bool up, uint32_t ticket)
{
	(void)context;
	must(ticket - below.told[up] < below.asked[up] - below.told[up]);
	below.copy[up][ticket % BELOW_COPIES].seq = NULL;
}

static uint64_t below_room(void *context)
{
	return ((const struct below *)context)->room;
}

static bool below_is_full(void *context)
{
	return ((const struct below *)context)->full;
}

static inline uint32_t below_in_flight(enum below_direction way)
{
	return below.asked[way] - below.told[way];
}

/* The oldest copy of a direction ends. */
static inline void below_end(enum below_direction way, int result)
{
	struct below_copy c;

	if (below_in_flight(way) == 0)
		return;
	c = below.copy[way][below.told[way]++ % BELOW_COPIES];
	if (!result && way == DOWN)
		below.place[c.place] = below.page[c.page];
	else if (!result)
		below.page[c.page] = below.place[c.place];
	if (c.node == NODE_NONE)
		park_moved(below.pool, c.seq, way == UP, c.index, c.page, c.place, result);
	else if (way == UP)
		pool_came_up(below.pool, c.node, result);
	else
		pool_came_down(below.pool, c.node, result);
}

static inline void below_end_all(void)
{
	while (below_in_flight(DOWN) + below_in_flight(UP)) {
		below_end(UP, 0);
		below_end(DOWN, 0);
	}
}

static inline void park_clean(struct pool *p)
{
	uint32_t page;

	while (pages_take_dirty(&p->pages, &page) == 0) {
		below.page[page] = 0;
		pages_clean(&p->pages, page, true);
	}
}

static inline void park_init(struct pool *p, struct pool_limits limits, uint64_t room,
			     uint32_t places)
{
	limits.page_tokens = PAGE;
	limits.max_sequence_tokens = 1u << 20;
	limits.nodes = limits.pages + 64;
	limits.ram_pages = BELOW_PLACES;
	limits.live_in_ram = true;
	limits.name_spaces = RETAIN_NAMESPACES;
	failpoint_clear();
	world_maker.kept_bits = 128;
	for (int i = 0; i < KEY_SECRET_BYTES; i++)
		world_maker.secret[i] = (uint8_t)i;
	must(limits.pages <= 256 && places <= BELOW_PLACES);
	must(pool_init(p, &limits, &world_maker, world_stamp) == 0);
	memset(&below, 0, sizeof(below));
	below.pool = p;
	below.places = places;
	below.room = room;
	below.functions = (struct pool_below){.take = below_take,
					      .take_private = below_take_private,
					      .give = below_give,
					      .down = below_down,
					      .up = below_up,
					      .move_private = below_move_private,
					      .orphan = below_orphan,
					      .room = below_room,
					      .is_full = below_is_full,
					      .context = &below};
	p->below = &below.functions;
}

/* What must hold between the pool and what is below. */
static inline void park_check(struct pool *p)
{
	world_check(p);
	assert_int_equal(below.n_used, p->in_ram + p->in_ram_private);
}

static inline void park_assert_empty(struct pool *p)
{
	park_check(p);
	assert_int_equal(p->live, 0);
	assert_int_equal(p->ceilings, 0);
	assert_int_equal(p->surplus, 0);
	assert_int_equal(p->parting, 0);
	assert_int_equal(p->leaving, 0);
	assert_int_equal(p->arriving, 0);
	assert_int_equal(p->in_ram_private, 0);
	assert_int_equal(p->pages.count[PAGE_PRIVATE], 0);
	assert_int_equal(p->pages.count[PAGE_DRAINING], 0);
	assert_int_equal(p->pages.refused_references, 0);
	assert_true(list_is_empty(&p->ranked[0]) && list_is_empty(&p->ranked[1]));
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		if (p->prefix.nodes[i].kind != NODE_FREE)
			assert_int_equal(p->prefix.nodes[i].parked, 0);
	}
}

#endif
