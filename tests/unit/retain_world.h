/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_RETAIN_WORLD_H
#define KVHOST_TESTS_RETAIN_WORLD_H

/*
 * retain_world: nodes and their runs in two tiers, without a pool: what a pool does with a page, in
 * short words. A page's number is its place in each tier. One thread.
 */

#include "daemon/state/retain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "daemon/state/retain_internal.h"

#define PAGE       16u
#define NODES      256u
#define SECOND     1000000000ull
#define TTL        (300 * SECOND)
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

struct world {
	struct key_maker maker;
	struct prefix prefix;
	struct retain retain;
	uint32_t root[2]; /* of two namespaces */
	uint64_t random;
};

static struct world w;

static inline void init(bool learned)
{
	static const uint8_t stamp[16], variant[KEY_VARIANT_BYTES];

	w = (struct world){.maker.kept_bits = 128, .random = 3};
	failpoint_clear();
	assert_int_equal(prefix_init(&w.prefix, NODES, PAGE, &w.maker, stamp), 0);
	assert_int_equal(retain_init(&w.retain, &w.prefix, NODES), 0);
	w.retain.has_ram = true;
	if (learned)
		assert_int_equal(retain_learn(&w.retain, NODES, 64), 0);
	w.retain.interactive_ttl_ns = TTL;
	w.retain.now_ns = 1000 * SECOND;
	for (uint16_t i = 0; i < 2; i++) {
		assert_int_equal(prefix_root(&w.prefix, i, variant, true, &w.root[i]), 0);
		prefix_hold(&w.prefix, w.root[i]);
	}
}

static inline int setup(void **state)
{
	(void)state;
	init(false);
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	memset(protection_off, 0, sizeof(protection_off));
	retain_deinit(&w.retain);
	prefix_deinit(&w.prefix);
	return 0;
}

static inline uint32_t below(uint32_t n)
{
	w.random = w.random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((w.random >> 33) % n);
}

/* The pages of a run in KV-RAM are a list by depth, both ways. */
static inline const char *list_is_wrong(const struct retain_run *run)
{
	const struct node *nodes = w.prefix.nodes;
	uint32_t deeper = NODE_NONE, n = 0;

	for (uint32_t at = run->in[TIER_RAM].count ? run->in[TIER_RAM].tail : NODE_NONE;
	     at != NODE_NONE; at = nodes[at].ram_above) {
		if (nodes[at].ram_below != deeper)
			return "the list of a run in KV-RAM does not lead back";
		if (deeper != NODE_NONE && nodes[at].position >= nodes[deeper].position)
			return "the list of a run in KV-RAM is not by depth";
		deeper = at;
		n++;
	}
	return n == run->in[TIER_RAM].count ? NULL : "a run in KV-RAM has another length";
}

static inline void check(void)
{
	const char *wrong = retain_check(&w.retain);
	uint32_t at = 0;

	for (uint32_t i = 0; !wrong && i < w.retain.n_runs; i++)
		wrong = w.retain.runs[i].tick ? list_is_wrong(&w.retain.runs[i]) : NULL;
	if (!wrong)
		wrong = prefix_check(&w.prefix, &at, UINT32_MAX);
	if (wrong)
		fail_msg("%s", wrong);
}

/* ---- what a pool does with a page ---- */

static inline struct node *node_of(uint32_t node)
{
	return &w.prefix.nodes[node];
}

static inline uint32_t make(uint32_t parent, uint32_t text, uint64_t tick, uint32_t *run)
{
	uint32_t tokens[PAGE] = {text, parent}, node;

	assert_int_equal(prefix_publish(&w.prefix, parent, tokens, PAGE, NULL, 0, &node),
			 PREFIX_NEW);
	assert_int_equal(retain_touch(&w.retain, node, tick, RETAIN_NEW, run), 0);
	prefix_put_copy(&w.prefix, node, TIER_DEVICE, node);
	retain_put(&w.retain, node, TIER_DEVICE);
	retain_look(&w.retain, parent);
	return node;
}

static inline void put_in_ram(uint32_t node)
{
	prefix_put_copy(&w.prefix, node, TIER_RAM, node);
	retain_put(&w.retain, node, TIER_RAM);
	retain_look(&w.retain, node_of(node)->parent);
}

static inline void begin_leaving(uint32_t node)
{
	retain_remove(&w.retain, node, TIER_DEVICE);
	prefix_leave(&w.prefix, node);
	retain_look(&w.retain, node_of(node)->parent);
}

static inline void stay(uint32_t node)
{
	prefix_stay(&w.prefix, node);
	retain_put(&w.retain, node, TIER_DEVICE);
	retain_look(&w.retain, node_of(node)->parent);
}

static inline void drop(uint32_t node, enum tier tier)
{
	uint32_t parent = node_of(node)->parent;

	retain_remove(&w.retain, node, tier);
	prefix_drop_copy(&w.prefix, node, tier);
	retain_look(&w.retain, parent);
}

/* The device copy goes and there is one in KV-RAM, if need be a new one. */
static inline void move_down(uint32_t node)
{
	if (node_of(node)->copies[TIER_RAM] == COPY_NONE)
		put_in_ram(node);
	drop(node, TIER_DEVICE);
	check();
}

static inline void bring_back(uint32_t node)
{
	prefix_put_copy(&w.prefix, node, TIER_DEVICE, node);
	retain_put(&w.retain, node, TIER_DEVICE);
	retain_look(&w.retain, node);
	retain_look(&w.retain, node_of(node)->parent);
	check();
}

static inline void hold(uint32_t node)
{
	for (bool again = true; again; node = node_of(node)->parent) {
		bool idle = node_of(node)->users == 0;

		again = prefix_hold(&w.prefix, node);
		if (!idle)
			continue;
		if (node_of(node)->moves & NODE_LEAVING)
			stay(node);
		retain_look(&w.retain, node);
	}
	check();
}

static inline void release(uint32_t node)
{
	while (node != NODE_NONE) {
		uint32_t above = prefix_release(&w.prefix, node);

		if (above != NODE_NONE)
			retain_look(&w.retain, node);
		node = above;
	}
	check();
}

#endif
