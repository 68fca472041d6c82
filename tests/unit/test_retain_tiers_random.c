/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of the orders of daemon/state/retain.h in two tiers, against a model that keeps every
 * page's last touch and searches all of them, while pages come and go as a pool makes them. One
 * thread; nothing blocks.
 */

#include "tests/unit/retain_world.h"

#define CHAINS  20u
#define DEEP    10u
#define ACTIONS 60000u

_Static_assert(CHAINS *DEEP + 8 <= NODES, "there are nodes enough");

struct page {
	uint32_t node; /* NODE_NONE: not there */
	uint64_t tick, touched_ns;
	bool reused, interactive;
	bool here, leaves, filling, below, filling_below;
};

static struct model {
	struct page page[CHAINS][DEEP];
	uint32_t held[CHAINS]; /* pages from the start in use */
	uint32_t went_down, came_back, failed, given_up;
} model;

static bool is_in(const struct page *p, enum tier tier)
{
	return p->node != NODE_NONE && (tier == TIER_DEVICE ? p->here && !p->leaves : p->below);
}

/* By the book: what is in use stays, and what something stands on, and what is under way. */
static bool may_leave(uint32_t c, uint32_t i, enum tier tier)
{
	const struct page *p = &model.page[c][i];
	bool used = i < model.held[c];

	if (i + 1 < DEEP && is_in(&model.page[c][i + 1], tier))
		return false;
	if (tier == TIER_DEVICE)
		return !p->filling && !used;
	return !p->filling_below && !p->filling && (!used || (p->here && !p->leaves));
}

/* The deepest of what one open touched last in one way, in this tier. */
static bool is_tail(uint32_t c, uint32_t i, enum tier tier)
{
	const struct page *p = &model.page[c][i];

	for (uint32_t k = i + 1; k < DEEP; k++) {
		const struct page *q = &model.page[c][k];

		if (is_in(q, tier) && q->tick == p->tick && q->reused == p->reused)
			return false;
	}
	return true;
}

struct place { /* in an order: smaller goes first */
	bool interactive;
	double index;
	uint64_t tick;
	bool reused;
};

static struct place place_of(const struct page *p, enum tier tier)
{
	bool fresh = w.retain.now_ns - p->touched_ns < TTL;
	const struct retain_run *run = &w.retain.runs[w.prefix.nodes[p->node].run];
	struct place at = {.tick = p->tick, .reused = p->reused};

	at.interactive = tier == TIER_RAM && p->interactive && fresh;
	if (w.retain.learned)
		at.index =
		    retain_reuse(&w.retain)
			->index[reuse_cell(run->class, reuse_bucket(w.retain.tick - p->tick))];
	else if (tier == TIER_RAM)
		at.index = p->reused && (fresh || !p->interactive);
	return at;
}

static bool is_before(struct place a, struct place b)
{
	if (a.interactive != b.interactive)
		return b.interactive;
	if (a.index < b.index || a.index > b.index)
		return a.index < b.index;
	if (a.tick != b.tick)
		return a.tick < b.tick;
	return !a.reused && b.reused;
}

static struct page *model_victim(enum tier tier, uint32_t name_space)
{
	struct page *best = NULL;

	for (uint32_t c = name_space; c < CHAINS; c += 2) {
		for (uint32_t i = 0; i < DEEP; i++) {
			struct page *p = &model.page[c][i];

			if (!is_in(p, tier) || !may_leave(c, i, tier) || !is_tail(c, i, tier))
				continue;
			if (!best || is_before(place_of(p, tier), place_of(best, tier)))
				best = p;
		}
	}
	return best;
}

static void compare_victims(void)
{
	for (uint16_t ns = 0; ns < 2; ns++) {
		for (int tier = 0; tier < RETAIN_TIERS; tier++) {
			const struct page *p = model_victim((enum tier)tier, ns);
			struct retain_rank rank;
			uint32_t node = retain_victim(&w.retain, (enum tier)tier, ns, &rank);

			assert_int_equal(node == NODE_NONE, !p);
			if (!p)
				continue;
			/* Of one open's two parts either may go first in the learned order. */
			assert_int_equal(rank.tick, p->tick);
			assert_int_equal(rank.interactive,
					 place_of(p, (enum tier)tier).interactive);
			if (!w.retain.learned)
				assert_int_equal(node, p->node);
		}
	}
}

static struct page *page_of_node(uint32_t node)
{
	for (uint32_t i = 0; i < CHAINS * DEEP; i++) {
		if (model.page[i / DEEP][i % DEEP].node == node)
			return &model.page[i / DEEP][i % DEEP];
	}
	fail_msg("a page is not in the model");
	return NULL;
}

static void forget(struct page *p)
{
	if (!p->here && !p->below)
		p->node = NODE_NONE;
}

/* n pages of a chain are opened, as a pool does it: held first, so what leaves stays. */
static void act_open(uint32_t c, uint32_t n)
{
	bool interactive = below(2);
	uint32_t i = 0, above = w.root[c % 2], held = NODE_NONE, run[2] = {RUN_NONE, RUN_NONE};
	uint64_t tick = retain_open(&w.retain);
	struct page *pages = model.page[c];

	while (i < n && pages[i].node != NODE_NONE)
		i++;
	if (i) {
		above = held = pages[i - 1].node;
		hold(held);
	}
	if (w.retain.learned)
		retain_know(&w.retain, tick, i, i ? pages[i - 1].tick : 0);
	for (uint32_t k = 0; k < i; k++) {
		pages[k].leaves = false;
		assert_int_equal(
		    retain_touch(&w.retain, pages[k].node, tick, RETAIN_REUSED, &run[1]), 0);
		pages[k].tick = tick;
		pages[k].touched_ns = w.retain.now_ns;
		pages[k].reused = true;
		pages[k].interactive = interactive;
	}
	/* Nothing is made below what is not on the device. */
	if (i == 0 || (pages[i - 1].here && !pages[i - 1].filling)) {
		for (; i < n; i++) {
			above = make(above, c, tick, &run[0]);
			pages[i] = (struct page){.node = above,
						 .tick = tick,
						 .touched_ns = w.retain.now_ns,
						 .interactive = interactive,
						 .here = true};
			/* A ghost is made again: the learned order knows it for a reused one. */
			pages[i].reused = w.retain.runs[run[0]].part == RETAIN_REUSED;
		}
	}
	for (int k = 0; k < 2; k++) {
		retain_set_interactive(&w.retain, run[k], interactive);
		retain_let_go(&w.retain, &run[k]);
	}
	if (held != NODE_NONE)
		release(held);
}

static void act_hold(uint32_t c, uint32_t n)
{
	struct page *pages = model.page[c];
	uint32_t had = model.held[c], has = 0;

	while (has < n && pages[has].node != NODE_NONE)
		has++;
	if (has)
		hold(pages[has - 1].node);
	model.held[c] = has;
	for (uint32_t i = 0; i < has; i++)
		pages[i].leaves = false;
	if (had)
		release(pages[had - 1].node);
}

/* The next to go from the device does what a pool makes it do. */
static void act_device(uint32_t name_space)
{
	struct page *p = model_victim(TIER_DEVICE, name_space);
	struct retain_rank rank;

	if (!p)
		return;
	p = page_of_node(retain_victim(&w.retain, TIER_DEVICE, (uint16_t)name_space, &rank));
	if (p->below && !p->filling_below && w.prefix.nodes[p->node].children_leaving == 0) {
		drop(p->node, TIER_DEVICE);
		p->here = false;
		return;
	}
	if (!p->below && below(4) == 0 && w.prefix.nodes[p->node].children_in[TIER_RAM] == 0) {
		drop(p->node, TIER_DEVICE);
		p->here = false;
		forget(p);
		return;
	}
	if (!p->below) {
		p->below = p->filling_below = true;
		prefix_put_copy(&w.prefix, p->node, TIER_RAM, p->node);
		w.prefix.nodes[p->node].moves |= NODE_FILLING_RAM;
		retain_put(&w.retain, p->node, TIER_RAM);
		retain_look(&w.retain, w.prefix.nodes[p->node].parent);
	}
	begin_leaving(p->node);
	p->leaves = true;
}

/* Some copy that is under way ends; from its end upwards what waited for it goes, or stays. */
static void act_copy(uint32_t c)
{
	struct page *pages = model.page[c];
	bool well = below(4) > 0;

	for (uint32_t i = DEEP; i-- > 0;) {
		struct page *p = &pages[i];

		if (p->node == NODE_NONE)
			continue;
		if (p->filling && below(2) && (i == 0 || !pages[i - 1].filling)) {
			p->filling = false;
			w.prefix.nodes[p->node].moves &= (uint8_t)~NODE_FILLING;
			w.prefix.nodes[p->node].ram_pins--;
			model.came_back++;
			retain_look(&w.retain, p->node);
			return;
		}
		if (!p->filling_below || below(2))
			continue;
		p->filling_below = false;
		model.failed += !well;
		w.prefix.nodes[p->node].moves &= (uint8_t)~NODE_FILLING_RAM;
		retain_look(&w.retain, p->node);
		for (uint32_t k = i + 1; !well && k-- > 0 && pages[k].leaves;) {
			stay(pages[k].node);
			pages[k].leaves = false;
		}
		if (!well && w.prefix.nodes[p->node].children_in[TIER_RAM] == 0) {
			p->below = false;
			drop(p->node, TIER_RAM);
		}
		for (; i < DEEP && pages[i].leaves && !pages[i].filling_below &&
		       w.prefix.nodes[pages[i].node].children_leaving == 0;
		     i--) {
			drop(pages[i].node, TIER_DEVICE);
			pages[i].leaves = pages[i].here = false;
			model.went_down++;
		}
		return;
	}
}

/* Up to n pages of a chain that are below alone come up: it is held for that. */
static void act_fetch(uint32_t c, uint32_t n)
{
	act_hold(c, DEEP);
	for (uint32_t i = 0; i < model.held[c] && n > 0; i++) {
		struct page *p = &model.page[c][i];

		if (p->here)
			continue;
		p->here = p->filling = true;
		w.prefix.nodes[p->node].moves |= NODE_FILLING;
		w.prefix.nodes[p->node].ram_pins++;
		prefix_put_copy(&w.prefix, p->node, TIER_DEVICE, p->node);
		retain_put(&w.retain, p->node, TIER_DEVICE);
		retain_look(&w.retain, p->node);
		retain_look(&w.retain, w.prefix.nodes[p->node].parent);
		n--;
	}
}

static void act_below(uint32_t name_space)
{
	struct retain_rank rank;
	uint32_t node = retain_victim(&w.retain, TIER_RAM, (uint16_t)name_space, &rank);
	struct page *p;

	if (node == NODE_NONE)
		return;
	p = page_of_node(node);
	p->below = false;
	model.given_up++;
	drop(node, TIER_RAM);
	forget(p);
}

static void play(uint32_t actions, uint32_t check_every)
{
	model = (struct model){0};
	for (uint32_t i = 0; i < CHAINS * DEEP; i++)
		model.page[i / DEEP][i % DEEP].node = NODE_NONE;
	for (uint32_t i = 0; i < actions; i++) {
		uint32_t c = below(CHAINS), n = 1 + below(DEEP), what = below(16);

		w.retain.now_ns += below(8) ? below(1000) : below(40) * SECOND;
		if (what < 3)
			act_open(c, n);
		else if (what < 5)
			act_hold(c, below(3) ? 0 : n);
		else if (what < 9)
			act_device(c % 2);
		else if (what < 14)
			act_copy(c);
		else if (what < 15)
			act_fetch(c, n);
		else if (below(2))
			act_below(c % 2);
		if (i % check_every == 0)
			check();
		compare_victims();
	}
	print_message("# %u went down, %u came back, %u copies failed, %u were given up below\n",
		      model.went_down, model.came_back, model.failed, model.given_up);
	assert_true(model.went_down > actions / 100 && model.came_back > actions / 50);
	assert_true(model.failed > actions / 200 && model.given_up > actions / 100);
}

static void the_orders_are_those_of_a_search_through_all_pages(void **state)
{
	(void)state;
	play(ACTIONS, 1);
}

static void the_learned_orders_are_those_of_a_search_through_all_pages(void **state)
{
	(void)state;
	teardown(NULL);
	init(true);
	play(ACTIONS, 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_orders_are_those_of_a_search_through_all_pages),
	    TEST(the_learned_orders_are_those_of_a_search_through_all_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
