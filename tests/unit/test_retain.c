/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of the LRU order of daemon/state/retain.h: against a model that keeps every page's last
 * touch and searches all of them. One thread; nothing blocks.
 */

#include "daemon/state/retain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"

#define PAGE       16u
#define NODES      400u
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

struct world {
	struct key_maker maker;
	struct prefix prefix;
	struct retain retain;
	uint32_t root[2]; /* of two namespaces */
};

static int setup(void **state)
{
	static struct world w;
	static const uint8_t stamp[16], variant[KEY_VARIANT_BYTES];

	w = (struct world){.maker.kept_bits = 128};
	*state = &w;
	failpoint_clear();
	assert_int_equal(prefix_init(&w.prefix, NODES, PAGE, &w.maker, stamp), 0);
	assert_int_equal(retain_init(&w.retain, &w.prefix, NODES), 0);
	for (uint16_t i = 0; i < 2; i++) {
		assert_int_equal(prefix_root(&w.prefix, i, variant, true, &w.root[i]), 0);
		prefix_hold(&w.prefix, w.root[i]);
	}
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	retain_deinit(&w->retain);
	prefix_deinit(&w->prefix);
	return 0;
}

static void check(const struct world *w)
{
	const char *wrong = retain_check(&w->retain);

	if (wrong)
		fail_msg("%s", wrong);
}

/* A new page under `parent`, touched at `tick`: in no order of publishing but this. */
static uint32_t make(struct world *w, uint32_t parent, uint32_t text, uint64_t tick, uint32_t *run)
{
	uint32_t tokens[PAGE] = {text, parent}, node;

	assert_int_equal(prefix_publish(&w->prefix, parent, tokens, PAGE, NULL, 0, &node),
			 PREFIX_NEW);
	assert_int_equal(retain_touch(&w->retain, node, tick, RETAIN_NEW, run), 0);
	prefix_put_copy(&w->prefix, node, TIER_DEVICE, node);
	retain_put(&w->retain, node, TIER_DEVICE);
	retain_look(&w->retain, parent);
	return node;
}

/* A chain of n pages of one open. */
static void make_chain(struct world *w, uint32_t above, uint32_t text, uint32_t n, uint32_t *nodes)
{
	uint64_t tick = retain_open(&w->retain);
	uint32_t run = RUN_NONE;

	for (uint32_t i = 0; i < n; i++) {
		nodes[i] = make(w, above, text, tick, &run);
		above = nodes[i];
	}
	retain_let_go(&w->retain, &run);
	check(w);
}

static void reuse_chain(struct world *w, const uint32_t *nodes, uint32_t n)
{
	uint64_t tick = retain_open(&w->retain);
	uint32_t run = RUN_NONE;

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(retain_touch(&w->retain, nodes[i], tick, RETAIN_REUSED, &run), 0);
	retain_let_go(&w->retain, &run);
	check(w);
}

static void hold(struct world *w, uint32_t node)
{
	while (prefix_hold(&w->prefix, node)) {
		retain_look(&w->retain, node);
		node = w->prefix.nodes[node].parent;
	}
}

static void release(struct world *w, uint32_t node)
{
	while (node != NODE_NONE) {
		uint32_t above = prefix_release(&w->prefix, node);

		if (above != NODE_NONE)
			retain_look(&w->retain, node);
		node = above;
	}
}

static uint32_t victim(const struct world *w, uint16_t name_space)
{
	struct retain_rank rank;

	return retain_victim(&w->retain, TIER_DEVICE, name_space, &rank);
}

static void drop(struct world *w, uint32_t node)
{
	uint32_t parent = w->prefix.nodes[node].parent;

	retain_remove(&w->retain, node, TIER_DEVICE);
	prefix_drop_copy(&w->prefix, node, TIER_DEVICE);
	retain_look(&w->retain, parent);
	check(w);
}

/* Everything goes in exactly this order. */
static void assert_order(struct world *w, uint16_t name_space, const uint32_t *nodes, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(victim(w, name_space), nodes[i]);
		drop(w, nodes[i]);
	}
	assert_int_equal(victim(w, name_space), NODE_NONE);
}

static void the_tail_of_the_oldest_chain_goes_first(void **state)
{
	struct world *w = *state;
	uint32_t a[3], b[2];

	assert_int_equal(victim(w, 0), NODE_NONE);
	make_chain(w, w->root[0], 1, 3, a);
	make_chain(w, w->root[0], 2, 2, b);
	assert_order(w, 0, (uint32_t[]){a[2], a[1], a[0], b[1], b[0]}, 5);
}

static void what_an_open_reused_outlives_what_it_made(void **state)
{
	struct world *w = *state;
	uint32_t a[2], b[1], c[2], run = RUN_NONE;
	uint64_t tick;

	make_chain(w, w->root[0], 1, 2, a);
	make_chain(w, w->root[0], 2, 1, b);
	tick = retain_open(&w->retain);
	for (int i = 0; i < 2; i++)
		assert_int_equal(retain_touch(&w->retain, a[i], tick, RETAIN_REUSED, &run), 0);
	retain_let_go(&w->retain, &run);
	c[0] = make(w, a[1], 3, tick, &run);
	c[1] = make(w, c[0], 3, tick, &run);
	retain_let_go(&w->retain, &run);
	assert_order(w, 0, (uint32_t[]){b[0], c[1], c[0], a[1], a[0]}, 5);
}

static void a_hit_on_the_upper_part_leaves_the_lower_part_where_it_was(void **state)
{
	struct world *w = *state;
	uint32_t a[4], b[1];

	make_chain(w, w->root[0], 1, 4, a);
	make_chain(w, w->root[0], 2, 1, b);
	reuse_chain(w, a, 2);
	assert_order(w, 0, (uint32_t[]){a[3], a[2], b[0], a[1], a[0]}, 5);
}

static void a_run_in_use_comes_back_at_its_own_place(void **state)
{
	struct world *w = *state;
	uint32_t a[2], b[2], c[1];

	make_chain(w, w->root[0], 1, 2, a);
	make_chain(w, w->root[0], 2, 2, b);
	make_chain(w, w->root[0], 3, 1, c);
	hold(w, a[1]);
	hold(w, b[0]); /* b[1] below it may still go */
	check(w);
	assert_int_equal(victim(w, 0), b[1]);
	drop(w, b[1]);
	assert_int_equal(victim(w, 0), c[0]);
	release(w, b[0]);
	assert_int_equal(victim(w, 0), b[0]);
	release(w, a[1]);
	assert_order(w, 0, (uint32_t[]){a[1], a[0], b[0], c[0]}, 4);
}

static void a_parent_waits_for_a_younger_child(void **state)
{
	struct world *w = *state;
	uint32_t a[2], b[1], c[1];

	make_chain(w, w->root[0], 1, 2, a);
	make_chain(w, w->root[0], 2, 1, b);
	make_chain(w, a[1], 3, 1, c); /* without a hit on a: it stays old */
	assert_order(w, 0, (uint32_t[]){b[0], c[0], a[1], a[0]}, 4);
}

static void namespaces_have_orders_of_their_own(void **state)
{
	struct world *w = *state;
	uint32_t a[1], b[2], c[1];
	struct retain_rank rank;

	make_chain(w, w->root[0], 1, 1, a);
	make_chain(w, w->root[1], 1, 2, b);
	make_chain(w, w->root[0], 2, 1, c);
	assert_int_equal(retain_victim(&w->retain, TIER_DEVICE, 0, &rank), a[0]);
	assert_int_equal(rank.tick, 1);
	assert_int_equal(retain_victim(&w->retain, TIER_DEVICE, 1, &rank), b[1]);
	assert_int_equal(rank.tick, 2);
	assert_int_equal(retain_next(&w->retain, TIER_DEVICE, 3, &rank), a[0]);
	assert_int_equal(retain_next(&w->retain, TIER_RAM, 3, &rank), NODE_NONE);
	assert_order(w, 1, (uint32_t[]){b[1], b[0]}, 2);
	assert_order(w, 0, (uint32_t[]){a[0], c[0]}, 2);
	assert_int_equal(victim(w, 63), NODE_NONE);
}

static void an_older_touch_than_the_last_changes_nothing(void **state)
{
	struct world *w = *state;
	uint32_t a[2], b[1], run = RUN_NONE;
	uint64_t early = retain_open(&w->retain);

	make_chain(w, w->root[0], 1, 2, a);
	make_chain(w, w->root[0], 2, 1, b);
	assert_int_equal(retain_touch(&w->retain, a[0], early, RETAIN_REUSED, &run), 0);
	assert_int_equal(run, RUN_NONE);
	check(w);
	assert_order(w, 0, (uint32_t[]){a[1], a[0], b[0]}, 3);
}

static void a_page_that_does_not_continue_a_run_is_told_to_go_elsewhere(void **state)
{
	struct world *w = *state;
	uint64_t tick = retain_open(&w->retain);
	uint32_t run = RUN_NONE, other = RUN_NONE, a, b, node, tokens[PAGE] = {9};

	a = make(w, w->root[0], 1, tick, &run);
	b = make(w, a, 1, tick, &run);
	/* A second branch of the same open. */
	assert_int_equal(prefix_publish(&w->prefix, a, tokens, PAGE, NULL, 0, &node), PREFIX_NEW);
	assert_int_equal(retain_touch(&w->retain, node, tick, RETAIN_NEW, &other),
			 RETAIN_ELSEWHERE);
	assert_int_equal(w->prefix.nodes[node].run, RUN_NONE);
	retain_let_go(&w->retain, &other);
	assert_int_equal(other, RUN_NONE);
	tick = retain_open(&w->retain);
	assert_int_equal(retain_touch(&w->retain, node, tick, RETAIN_NEW, &other), 0);
	prefix_put_copy(&w->prefix, node, TIER_DEVICE, node);
	retain_put(&w->retain, node, TIER_DEVICE);
	retain_look(&w->retain, a);
	retain_let_go(&w->retain, &other);
	retain_let_go(&w->retain, &run);
	assert_order(w, 0, (uint32_t[]){b, node, a}, 3);
}

static void a_page_does_not_leave_a_run_before_the_one_above_it(void **state)
{
	struct world *w = *state;
	uint32_t a[3], b[1], run = RUN_NONE;
	uint64_t tick;

	make_chain(w, w->root[0], 1, 3, a);
	make_chain(w, w->root[0], 2, 1, b);
	tick = retain_open(&w->retain);
	for (int i = 2; i > 0; i--) {
		assert_int_equal(retain_touch(&w->retain, a[i], tick, RETAIN_NEW, &run), 0);
		check(w);
	}
	retain_let_go(&w->retain, &run);
	assert_order(w, 0, (uint32_t[]){a[2], a[1], a[0], b[0]}, 4);
}

static void a_run_that_is_still_held_is_not_given_to_another(void **state)
{
	struct world *w = *state;
	uint64_t tick = retain_open(&w->retain);
	uint32_t run = RUN_NONE, a = make(w, w->root[0], 1, tick, &run), b[1];

	/* Its only page leaves; the sequence goes on with the run. */
	drop(w, a);
	make_chain(w, w->root[0], 2, 1, b);
	assert_int_equal(w->retain.runs[run].tick, tick);
	a = make(w, w->root[0], 3, tick, &run);
	retain_let_go(&w->retain, &run);
	check(w);
	assert_order(w, 0, (uint32_t[]){a, b[0]}, 2);
}

static void runs_are_used_again(void **state)
{
	struct world *w = *state;
	uint32_t a[2];

	for (uint32_t i = 0; i < 1000; i++) {
		make_chain(w, w->root[0], i, 2, a);
		drop(w, a[1]);
		drop(w, a[0]);
	}
	assert_true(w->retain.n_runs <= 2);
}

static void runs_older_than_the_window_go_first_in_their_order(void **state)
{
	struct world *w = *state;
	uint32_t a[2], b[1], c[1], d[1], run = RUN_NONE;
	uint64_t tick;

	make_chain(w, w->root[0], 1, 2, a);
	make_chain(w, w->root[0], 2, 1, b);
	hold(w, b[0]);
	make_chain(w, w->root[0], 3, 1, c);
	for (uint32_t i = 0; i < RETAIN_WINDOW; i++)
		tick = retain_open(&w->retain);
	check(w);
	make_chain(w, w->root[0], 4, 1, d);
	assert_int_equal(victim(w, 0), a[1]);
	release(w,
		b[0]); /* all runs before the window are equally old: the last to come in is next */
	assert_int_equal(victim(w, 0), b[0]);
	/* A tick of before the window makes no run any more. */
	assert_int_equal(retain_touch(&w->retain, a[0], 1, RETAIN_REUSED, &run), 0);
	reuse_chain(w, a, 1);
	drop(w, b[0]);
	assert_int_equal(tick, w->retain.tick - 2);
	assert_order(w, 0, (uint32_t[]){a[1], c[0], d[0], a[0]}, 4);
}

/* ---- against a model ---- */

#define CHAINS  24u
#define DEEP    12u
#define ACTIONS 6000u

struct model_page {
	uint32_t node; /* NODE_NONE: not there */
	uint64_t tick;
	int part;
};

struct model {
	struct model_page page[CHAINS][DEEP]; /* chains of their own, but for the namespace */
	uint32_t held[CHAINS];                /* pages from the start in use */
};

/* Oldest tick, new before reused, deepest first; never what is in use or above another page. */
static uint32_t model_victim(const struct model *m, uint16_t name_space)
{
	const struct model_page *best = NULL;

	for (uint32_t c = name_space; c < CHAINS; c += 2) {
		uint32_t n = 0;
		const struct model_page *last;

		while (n < DEEP && m->page[c][n].node != NODE_NONE)
			n++;
		if (n == 0 || n == m->held[c])
			continue;
		last = &m->page[c][n - 1];
		if (!best || last->tick < best->tick)
			best = last;
	}
	return best ? best->node : NODE_NONE;
}

static void model_open(struct world *w, struct model *m, uint32_t c, uint32_t n)
{
	uint64_t tick = retain_open(&w->retain);
	uint32_t run = RUN_NONE, i = 0, above = w->root[c % 2];

	for (; i < n && m->page[c][i].node != NODE_NONE; i++) {
		above = m->page[c][i].node;
		assert_int_equal(retain_touch(&w->retain, above, tick, RETAIN_REUSED, &run), 0);
		m->page[c][i].tick = tick;
	}
	retain_let_go(&w->retain, &run);
	for (; i < n; i++) {
		above = make(w, above, c, tick, &run);
		m->page[c][i] = (struct model_page){.node = above, .tick = tick};
	}
	retain_let_go(&w->retain, &run);
}

static void model_drop(struct world *w, struct model *m)
{
	uint16_t name_space = (uint16_t)(w->retain.tick % 2);
	uint32_t node = victim(w, name_space);

	assert_int_equal(node, model_victim(m, name_space));
	if (node == NODE_NONE)
		return;
	drop(w, node);
	for (uint32_t i = 0; i < CHAINS * DEEP; i++) {
		if (m->page[i / DEEP][i % DEEP].node == node)
			m->page[i / DEEP][i % DEEP].node = NODE_NONE;
	}
}

static void the_order_is_that_of_a_search_through_all_pages(void **state)
{
	struct world *w = *state;
	struct model m = {0};
	uint64_t seed = 5;

	for (uint32_t i = 0; i < CHAINS * DEEP; i++)
		m.page[i / DEEP][i % DEEP].node = NODE_NONE;
	for (uint32_t i = 0; i < ACTIONS; i++) {
		uint32_t c, n;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		c = (uint32_t)(seed >> 33) % CHAINS;
		n = 1 + (uint32_t)(seed >> 45) % DEEP;
		if (seed >> 62 == 0) {
			model_open(w, &m, c, n);
		} else if (seed >> 62 == 1) {
			if (m.held[c])
				release(w, m.page[c][m.held[c] - 1].node);
			for (m.held[c] = 0; m.held[c] < n;) {
				if (m.page[c][m.held[c]].node == NODE_NONE)
					break;
				m.held[c]++;
			}
			if (m.held[c])
				hold(w, m.page[c][m.held[c] - 1].node);
		} else {
			model_drop(w, &m);
		}
		check(w);
		assert_int_equal(victim(w, 0), model_victim(&m, 0));
		assert_int_equal(victim(w, 1), model_victim(&m, 1));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_tail_of_the_oldest_chain_goes_first),
	    TEST(what_an_open_reused_outlives_what_it_made),
	    TEST(a_hit_on_the_upper_part_leaves_the_lower_part_where_it_was),
	    TEST(a_run_in_use_comes_back_at_its_own_place),
	    TEST(a_parent_waits_for_a_younger_child),
	    TEST(namespaces_have_orders_of_their_own),
	    TEST(an_older_touch_than_the_last_changes_nothing),
	    TEST(a_page_that_does_not_continue_a_run_is_told_to_go_elsewhere),
	    TEST(a_page_does_not_leave_a_run_before_the_one_above_it),
	    TEST(a_run_that_is_still_held_is_not_given_to_another),
	    TEST(runs_are_used_again),
	    TEST(runs_older_than_the_window_go_first_in_their_order),
	    TEST(the_order_is_that_of_a_search_through_all_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
