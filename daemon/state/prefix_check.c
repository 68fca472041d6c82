/* SPDX-License-Identifier: Apache-2.0 */
/* prefix_check: what must hold between the nodes; see prefix.h. Core thread; nothing here blocks.
 */
#include "daemon/state/prefix.h"

static bool has_copy(const struct node *n)
{
	return n->copies[TIER_DEVICE] != COPY_NONE || n->copies[TIER_RAM] != COPY_NONE ||
	       n->copies[TIER_DISK] != COPY_NONE;
}

static const char *check_node(const struct prefix *p, uint32_t at)
{
	const struct node *n = &p->nodes[at];
	const struct node *parent;

	if (n->kind == NODE_FREE)
		return NULL;
	if (n->kind == NODE_ROOT) {
		if (n->parent != NODE_NONE || has_copy(n))
			return "a root has a parent or a copy";
		return n->users || n->kept || n->children ? NULL : "a root is needed by nobody";
	}
	if (n->parent >= p->fresh)
		return "a node has no parent";
	parent = &p->nodes[n->parent];
	if (parent->kind == NODE_FREE)
		return "the parent of a node is gone";
	if (!has_copy(n) && !n->children && !n->users && !n->kept && !n->parked)
		return "a node is needed by nobody";
	if ((n->users && !parent->users) || (n->kept && !parent->kept))
		return "a node is used and its parent is not";
	if (n->state != STATE_NONE && !n->kept)
		return "a retained state does not keep its node";
	if (n->length < p->page_tokens &&
	    (n->children || !(parent->partial_lengths & 1ull << (n->length - 1))))
		return "a partial page has children, or its parent does not know its length";
	for (int t = 0; t < TIERS; t++) {
		if (n->children_in[t] > n->children)
			return "more children have copies than there are";
		if (n->copies[t] != COPY_NONE && !(t == TIER_DEVICE && n->moves & NODE_LEAVING) &&
		    parent->children_in[t] == 0)
			return "a parent does not count a child's copy";
	}
	/* A copy on the device stands on one there; one further down on one that is not lower. */
	if (parent->kind == NODE_TOKENS && n->copies[TIER_DEVICE] != COPY_NONE &&
	    parent->copies[TIER_DEVICE] == COPY_NONE)
		return "a copy is on the device where its parent has none";
	if (parent->kind == NODE_TOKENS && n->copies[TIER_RAM] != COPY_NONE && !has_copy(parent) &&
	    !(parent->moves & NODE_LOST))
		return "a copy is in KV-RAM, its parent nowhere";
	if ((n->moves & (NODE_LEAVING | NODE_FILLING)) && n->copies[TIER_DEVICE] == COPY_NONE)
		return "a copy that is not there leaves, or arrives";
	if ((n->moves & (NODE_FILLING_RAM | NODE_SPOILT_RAM)) && n->copies[TIER_RAM] == COPY_NONE)
		return "a copy in KV-RAM that is not there arrives, or is spoilt";
	if ((n->moves & NODE_LEAVING) && (n->users || n->kept))
		return "a page that is in use leaves";
	if ((n->moves & NODE_LEAVING) && n->children_in[TIER_DEVICE])
		return "a page leaves and one below it does not";
	if ((n->moves & NODE_LEAVING) && parent->children_leaving == 0)
		return "a parent does not count a child that leaves";
	if ((n->moves & NODE_LOST) && has_copy(n))
		return "a page that is lost has a copy";
	if ((n->moves & NODE_FILLING) && !(n->moves & NODE_FAILED) && !n->ram_pins)
		return "a copy arrives on the device from nowhere";
	if (n->name_space != parent->name_space)
		return "a node and its parent are of two namespaces";
	return NULL;
}

const char *prefix_check(const struct prefix *p, uint32_t *at, uint32_t budget)
{
	for (; *at < p->fresh && budget; ++*at, --budget) {
		const char *wrong = check_node(p, *at);

		if (wrong)
			return wrong;
	}
	if (*at == p->fresh)
		*at = p->capacity;
	return NULL;
}
