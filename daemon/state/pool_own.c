/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_own: a published page becomes private again, for the one sequence that goes on inside it and
 * was promised no page for a copy; see pool.h. Core thread; nothing here blocks.
 */
#include "daemon/base/panic.h"
#include "daemon/state/pool.h"

/* As one that is evicted; but its page stays where it is. */
static void take_out(struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];
	struct pool_share *share = &p->shares[n->name_space];
	uint32_t parent = n->parent;

	p->stats.discards += n->copies[TIER_RAM] == COPY_NONE;
	p->stats.evictions++;
	retain_remove(&p->retain, node, TIER_DEVICE);
	prefix_drop_copy(&p->prefix, node, TIER_DEVICE); /* its node may go with it */
	must(p->indexed > 0 && share->indexed > 0);
	p->indexed--;
	share->indexed--;
	retain_look(&p->retain, parent);
}

int pool_take_over(struct pool *p, uint32_t node, uint16_t name_space, uint32_t *page)
{
	const struct node *n = &p->prefix.nodes[node];
	uint32_t above, budget = 1;

	must(n->users > 0 && n->name_space == name_space);
	if (n->users > 1 || n->kept || n->moves & (NODE_LEAVING | NODE_FILLING | NODE_FILLING_RAM))
		return POOL_WAIT;
	/* What stands on it is retained: it goes first, in its turn. */
	if (n->children_in[TIER_DEVICE])
		return pool_give_up_one(p, name_space) ? POOL_WAIT : POOL_MORE;
	if (n->children_leaving)
		return POOL_WAIT;
	if ((n->children_in[TIER_RAM] || n->parked) && !node_is_in_ram(n)) {
		pool_copy_down(p, node);
		return POOL_WAIT;
	}
	*page = n->copies[TIER_DEVICE];
	pool_count_live(p, node, -1);
	above = prefix_release(&p->prefix, node);
	take_out(p, node);
	pages_own(&p->pages, *page, name_space);
	pool_release(p, &above, &budget); /* what it stands on has other users: one step */
	return 0;
}
