/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_tiers: pages of a pool between the device and the tier below it; see pool.h. Core thread;
 * nothing here blocks.
 *
 * A page that is given up on the device and has no copy below gets one first: until that is there
 * it can be found as before, and if it is wanted meanwhile it stays. It goes after what stands on
 * it: a page whose own copy is there earlier waits, and stays if one of those stays. A page that is
 * fetched has its place on the device from the start, and is ready once its bytes are there. A copy
 * below stays when a page is fetched, so that it can be given up again without a write.
 */
#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/pool_states.h"

static void count_in_ram(struct pool *p, uint32_t node, int change)
{
	struct pool_share *share = &p->shares[p->prefix.nodes[node].name_space];

	if (p->prefix.nodes[node].parked)
		p->parked_in_ram += (uint64_t)change;
	must(change > 0 || (p->in_ram > 0 && share->in_ram > 0));
	p->in_ram += (uint64_t)change;
	share->in_ram += (uint64_t)change;
}

/* ---- down ---- */

static void begin_leaving(struct pool *p, uint32_t node)
{
	uint32_t parent = p->prefix.nodes[node].parent;

	retain_remove(&p->retain, node, TIER_DEVICE);
	prefix_leave(&p->prefix, node);
	p->leaving++;
	p->shares[p->prefix.nodes[node].name_space].leaving++;
	retain_look(&p->retain, parent);
}

void pool_stay(struct pool *p, uint32_t node)
{
	const struct node *n;

	for (; p->prefix.nodes[node].moves & NODE_LEAVING; node = n->parent) {
		n = &p->prefix.nodes[node];
		must(p->leaving > 0 && p->shares[n->name_space].leaving > 0);
		p->leaving--;
		p->shares[n->name_space].leaving--;
		prefix_stay(&p->prefix, node);
		retain_put(&p->retain, node, TIER_DEVICE);
		retain_look(&p->retain, n->parent);
	}
}

void pool_put_in_ram(struct pool *p, uint32_t node, uint32_t place)
{
	prefix_put_copy(&p->prefix, node, TIER_RAM, place);
	p->prefix.nodes[node].moves |= NODE_FILLING_RAM;
	retain_put(&p->retain, node, TIER_RAM);
	retain_look(&p->retain, p->prefix.nodes[node].parent);
	count_in_ram(p, node, 1);
}

void pool_begin_copy(struct pool *p, uint32_t node)
{
	p->images.sent++;
	p->below->down(p->below->context, node);
}

/* It goes without a copy, after what stands on it, and once nobody reads it. */
void pool_let_go(struct pool *p, uint32_t node)
{
	if (p->prefix.nodes[node].moves & NODE_SPOILT_RAM &&
	    prefix_may_leave(&p->prefix, node, TIER_RAM))
		pool_drop_from_ram(p, node);
	if (p->prefix.nodes[node].children_leaving ||
	    p->prefix.nodes[node].moves & NODE_FILLING_RAM)
		begin_leaving(p, node);
	else
		pool_evict(p, node);
}

/* Twice is enough: whoever waits for its page is not to wait for ever. What stands on it in KV-RAM
 * is found again when somebody makes the page anew. */
static bool is_given_up_on(const struct node *n)
{
	return n->moves & NODE_TRIED_AGAIN && !n->parked && protection(failed_spills_make_room) &&
	       (n->moves & NODE_SPOILT_RAM || !n->children_in[TIER_RAM]);
}

bool pool_is_useless(const struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];

	return p->hybrid && n->kind == NODE_TOKENS && n->children_leaving == 0 &&
	       !(n->moves & NODE_FILLING_RAM) && prefix_may_leave(&p->prefix, node, TIER_DEVICE) &&
	       (!node_is_kept_below(n) || node_is_in_ram(n) || is_given_up_on(n));
}

static bool copies_pause(const struct pool *p)
{
	return p->pauses && protection(failing_copies_pause);
}

void pool_set_aside(struct pool *p, uint32_t node)
{
	pool_hold(p, node);
	p->prefix.nodes[node].next_free = p->aside;
	p->aside = node;
}

bool pool_waits_for_copies(const struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];

	return n->parked && copies_pause(p) && !node_is_in_ram(n) && !(n->moves & NODE_FILLING_RAM);
}

void pool_end_aside(struct pool *p)
{
	uint32_t next, node = p->aside;
	bool sends = p->sends_parked;

	/* If they pause still, whoever looks for a page puts it aside again. */
	p->aside = NODE_NONE;
	p->sends_parked = true;
	for (; node != NODE_NONE; node = next) {
		uint32_t budget = UINT32_MAX;

		next = p->prefix.nodes[node].next_free;
		pool_release(p, &node, &budget);
	}
	p->sends_parked = sends;
}

int pool_send_down(struct pool *p, uint32_t node)
{
	struct node *n = &p->prefix.nodes[node];
	uint32_t place;
	int r;

	if (!p->below) {
		pool_evict(p, node);
		return 0;
	}
	if (node_is_in_ram(n)) {
		p->stats.releases++;
		pool_let_go(p, node);
		return 0;
	}
	if (is_given_up_on(n)) {
		pool_let_go(p, node);
		return 0;
	}
	if (n->moves & NODE_FILLING_RAM) {
		/* It was wanted again while it left, and is not any more. */
		begin_leaving(p, node);
		return 0;
	}
	if (pool_waits_for_copies(p, node))
		return POOL_WAIT;
	if (n->moves & NODE_SPOILT_RAM) {
		n->moves &= (uint8_t)~NODE_SPOILT_RAM;
		n->moves |= NODE_FILLING_RAM;
		retain_look(&p->retain, node);
	} else {
		enum pool_need need = POOL_NEED_NONE;

		if (n->parked)
			need = POOL_NEED_LIVE;
		else if (n->children_in[TIER_RAM] && protection(heads_outlive_tails))
			need = POOL_NEED_HEAD;
		r = p->below->take(p->below->context, node, need, &place);
		if (r == POOL_NEVER) {
			p->stats.ram_refused++;
			pool_let_go(p, node);
			return 0;
		}
		if (r)
			return r;
		pool_put_in_ram(p, node, place);
	}
	begin_leaving(p, node);
	pool_begin_copy(p, node);
	return 0;
}

void pool_copy_down(struct pool *p, uint32_t node)
{
	struct node *n = &p->prefix.nodes[node];
	uint32_t place;

	if (!p->below || node_is_in_ram(n) || n->moves & NODE_FILLING_RAM || copies_pause(p))
		return;
	if (n->copies[TIER_RAM] == COPY_NONE) {
		enum pool_need need = n->parked ? POOL_NEED_LIVE : POOL_NEED_HEAD;

		if (p->below->take(p->below->context, node, need, &place))
			return;
		pool_put_in_ram(p, node, place);
	}
	n->moves &= (uint8_t)~NODE_SPOILT_RAM;
	n->moves |= NODE_FILLING_RAM;
	retain_look(&p->retain, node);
	pool_begin_copy(p, node);
}

/* The copy in KV-RAM goes; its node may go with it. */
void pool_drop_from_ram(struct pool *p, uint32_t node)
{
	struct node *n = &p->prefix.nodes[node];
	uint32_t place = n->copies[TIER_RAM], parent = n->parent;

	p->stats.discards += n->copies[TIER_DEVICE] == COPY_NONE;
	count_in_ram(p, node, -1);
	retain_remove(&p->retain, node, TIER_RAM);
	prefix_drop_copy(&p->prefix, node, TIER_RAM);
	p->below->give(p->below->context, place);
	retain_look(&p->retain, parent);
}

void pool_note_copy(struct pool *p, int result)
{
	p->failures = result ? p->failures + (p->failures < POOL_FAILURES) : 0;
	p->pauses = p->failures == POOL_FAILURES;
	if (!p->pauses)
		pool_end_aside(p);
}

void pool_resume(struct pool *p)
{
	p->pauses = false;
	pool_end_aside(p);
}

/* If nothing stands on it any more; then what it stood on may be needed by nobody, either. */
static void evict_for_good(struct pool *p, uint32_t node)
{
	if (!pool_may_follow(p, node))
		return;
	pool_evict(p, node);
	if (p->hybrid)
		pool_drop_useless(p, pool_first_here(p, node));
}

void pool_came_down(struct pool *p, uint32_t node, int result)
{
	struct node *n = &p->prefix.nodes[node];

	must(n->moves & NODE_FILLING_RAM);
	p->images.landed++;
	pool_note_copy(p, result);
	n->moves &= (uint8_t)~NODE_FILLING_RAM;
	if (result && protection(failed_copies_are_dropped)) {
		p->stats.spills_failed++;
		p->trim_is_due |= !!(n->moves & NODE_LEAVING);
		if (n->moves & NODE_LEAVING)
			n->moves |= n->moves & NODE_TRIED ? NODE_TRIED_AGAIN : NODE_TRIED;
		pool_stay(p, node);
		if (!p->hybrid && n->children_in[TIER_RAM] == 0 && n->ram_pins == 0) {
			pool_drop_from_ram(p, node);
			return;
		}
		/* What stands on it there needs it, or a state; or it is being moved: for the next
		 * try. */
		n->moves |= NODE_SPOILT_RAM;
		retain_look(&p->retain, node);
		if (!n->parked)
			pool_drop_useless(p, node);
		else if (p->hybrid && prefix_may_leave(&p->prefix, node, TIER_DEVICE))
			pool_set_aside(p, node); /* whoever needs a page tries again */
		return;
	}
	p->stats.spills++;
	retain_look(&p->retain, node);
	if (!(n->moves & NODE_LEAVING))
		p->stats.spills_kept++;
	else
		evict_for_good(p, node);
	pool_drop_useless(p, node);
}

void pool_give_up_ram(struct pool *p, uint32_t node)
{
	must(prefix_may_leave(&p->prefix, node, TIER_RAM));
	pool_drop_from_ram(p, node);
}

bool pool_drop_ram(struct pool *p, uint16_t name_space, uint32_t *budget)
{
	bool all = name_space == RETAIN_NAMESPACES;
	struct retain_rank rank;

	if (!p->below)
		return true;
	if (p->hybrid)
		return pool_drop_states(p, name_space, budget);
	for (; *budget; --*budget) {
		uint32_t node = all ? retain_next(&p->retain, TIER_RAM, UINT64_MAX, &rank)
				    : retain_victim(&p->retain, TIER_RAM, name_space, &rank);

		if (node == NODE_NONE)
			return true;
		pool_drop_from_ram(p, node);
	}
	return false;
}

void pool_park(struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];

	p->parked_in_ram += n->parked == 0 && n->copies[TIER_RAM] != COPY_NONE;
	prefix_park(&p->prefix, node);
	retain_look(&p->retain, node);
}

void pool_unpark(struct pool *p, uint32_t node)
{
	bool last = p->prefix.nodes[node].parked == 1;

	p->parked_in_ram -= last && p->prefix.nodes[node].copies[TIER_RAM] != COPY_NONE;
	/* Its node may go with it. */
	if (prefix_unpark(&p->prefix, node)) {
		retain_look(&p->retain, node);
		pool_drop_useless(p, node);
	}
	if (last)
		pool_end_aside(p); /* it may go for nowhere now */
}

/* ---- up ---- */

int pool_fetch(struct pool *p, uint32_t node)
{
	struct node *n = &p->prefix.nodes[node];
	uint32_t page;

	must(p->below && n->users && node_is_in_ram(n) && n->copies[TIER_DEVICE] == COPY_NONE);
	if (!node_carries(&p->prefix.nodes[n->parent]))
		return POOL_NEVER;
	if (!pool_keep_quota(p, n->name_space, 1))
		return POOL_WAIT;
	if (pages_take_any(&p->pages, &page))
		return POOL_WAIT;
	n->moves |= NODE_FILLING;
	n->ram_pins++;
	pool_index(p, node, page);
	p->arriving++;
	p->shares[n->name_space].arriving++;
	p->below->up(p->below->context, node);
	if (!p->retain.learned)
		pool_trim(p); /* it is one more within the budget */
	return 0;
}

void pool_came_up(struct pool *p, uint32_t node, int result)
{
	struct node *n = &p->prefix.nodes[node];
	bool unused;

	must(n->moves & NODE_FILLING && n->ram_pins > 0 && p->arriving > 0);
	n->ram_pins--;
	p->arriving--;
	p->shares[n->name_space].arriving--;
	if (result)
		n->moves |= NODE_SPOILT_RAM;
	if ((result || p->prefix.nodes[n->parent].moves & NODE_FAILED) &&
	    protection(failed_copies_are_dropped)) {
		p->stats.restores_failed++;
		n->moves |= NODE_FAILED;
		retain_look(&p->retain, node);
		evict_for_good(p, node);
		pool_drop_useless(p, node);
		pool_trim(p); /* what it stood on may go now */
		return;
	}
	n->moves &= (uint8_t)~NODE_FILLING;
	p->stats.restores++;
	retain_look(&p->retain, node);
	retain_look(&p->retain, n->parent);
	unused = n->users == 0;
	/* Of a hybrid pool its copy below may stand alone now: states are given up there, not
	 * pages. */
	pool_drop_useless(p, node);
	if (unused)
		pool_trim(p); /* it may go now */
}
