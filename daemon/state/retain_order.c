/* SPDX-License-Identifier: Apache-2.0 */
/* retain_order: the orders of retain.h: who stands where in them, and who is next. Core thread;
 * nothing here blocks. */
#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/state/retain_internal.h"

static uint64_t order_bytes(uint32_t n_queues)
{
	return sizeof(struct retain_order) + n_queues * sizeof(struct retain_queue);
}

/* lru: one queue on the device; in KV-RAM those on probation, then those that are protected. */
static uint32_t queues_of(bool learned, enum retain_rank_of kind)
{
	if (learned)
		return REUSE_CLASSES;
	return kind == ORDER_DEVICE ? 1 : RETAIN_PARTS;
}

uint64_t orders_bytes_for(bool learned, bool has_ram)
{
	uint64_t bytes = 0;

	for (int kind = 0; kind < (has_ram ? ORDERS : 1); kind++)
		bytes += reserve_bytes(order_bytes(queues_of(learned, (enum retain_rank_of)kind)));
	return bytes;
}

static struct retain_order *order_new(const struct retain *r, enum retain_rank_of kind)
{
	uint32_t n_queues = queues_of(r->learned != NULL, kind);
	struct retain_order *o = reserve_take(order_bytes(n_queues));

	if (!o)
		return NULL;
	o->n_queues = n_queues;
	for (uint32_t i = 0; i < n_queues; i++) {
		o->queue[i].oldest = RUN_NONE;
		o->queue[i].newest = RUN_NONE;
	}
	return o;
}

int order_prepare(struct retain *r, uint16_t name_space)
{
	for (int kind = 0; kind < (r->has_ram ? ORDERS : 1); kind++) {
		if (r->orders[kind][name_space])
			continue;
		r->orders[kind][name_space] = order_new(r, (enum retain_rank_of)kind);
		if (!r->orders[kind][name_space])
			return -ENOMEM;
		r->name_spaces[kind] |= 1ull << name_space;
	}
	return 0;
}

void orders_free(struct retain *r)
{
	for (int kind = 0; kind < ORDERS; kind++) {
		for (uint32_t i = 0; i < RETAIN_NAMESPACES; i++) {
			struct retain_order *o = r->orders[kind][i];

			if (o)
				reserve_give(o, order_bytes(o->n_queues));
		}
	}
}

static uint32_t place_of(const struct retain_run *run)
{
	return tickset_place(run->tick, run->part);
}

static uint32_t queue_index(const struct retain *r, const struct retain_run *run, enum tier tier)
{
	if (r->learned)
		return run->class;
	return tier == TIER_DEVICE ? 0 : run->part;
}

static struct retain_order *order_of(const struct retain *r, const struct retain_run *run,
				     enum tier tier)
{
	return r->orders[retain_order_of(run, tier)][run->name_space];
}

static struct retain_queue *queue_of(const struct retain *r, const struct retain_run *run,
				     enum tier tier)
{
	return &order_of(r, run, tier)->queue[queue_index(r, run, tier)];
}

/* ---- the list of those older than the window ---- */

static void old_append(struct retain *r, struct retain_queue *q, uint32_t run, enum tier tier)
{
	struct retain_in *it = &r->runs[run].in[tier];

	it->newer = RUN_NONE;
	it->older = q->newest;
	if (q->newest != RUN_NONE)
		r->runs[q->newest].in[tier].newer = run;
	else
		q->oldest = run;
	q->newest = run;
}

static void old_prepend(struct retain *r, struct retain_queue *q, uint32_t run, enum tier tier)
{
	struct retain_in *it = &r->runs[run].in[tier];

	it->older = RUN_NONE;
	it->newer = q->oldest;
	if (q->oldest != RUN_NONE)
		r->runs[q->oldest].in[tier].older = run;
	else
		q->newest = run;
	q->oldest = run;
}

static void old_remove(struct retain *r, struct retain_queue *q, uint32_t run, enum tier tier)
{
	struct retain_in *it = &r->runs[run].in[tier];

	if (it->older != RUN_NONE)
		r->runs[it->older].in[tier].newer = it->newer;
	else
		q->oldest = it->newer;
	if (it->newer != RUN_NONE)
		r->runs[it->newer].in[tier].older = it->older;
	else
		q->newest = it->older;
}

/* ---- in and out ---- */

void order_enter(struct retain *r, uint32_t run, enum tier tier)
{
	struct retain_run *it = &r->runs[run];

	if (it->in[tier].ordered)
		return;
	it->in[tier].ordered = true;
	if (it->old)
		old_prepend(r, queue_of(r, it, tier), run, tier);
	else
		tickset_add(&queue_of(r, it, tier)->ordered, place_of(it));
	if (r->learned)
		learned_ordered(r, order_of(r, it, tier), it, true);
}

void order_leave(struct retain *r, uint32_t run, enum tier tier)
{
	struct retain_run *it = &r->runs[run];

	if (!it->in[tier].ordered)
		return;
	it->in[tier].ordered = false;
	if (it->old)
		old_remove(r, queue_of(r, it, tier), run, tier);
	else
		tickset_remove(&queue_of(r, it, tier)->ordered, place_of(it));
	if (r->learned)
		learned_ordered(r, order_of(r, it, tier), it, false);
}

void order_age_out(struct retain *r, uint32_t run, enum tier tier)
{
	struct retain_run *it = &r->runs[run];

	if (!it->in[tier].ordered)
		return;
	tickset_remove(&queue_of(r, it, tier)->ordered, place_of(it));
	old_append(r, queue_of(r, it, tier), run, tier);
}

/* ---- who is next ---- */

/* The first of a queue, or RUN_NONE: of those older than the window, else the oldest in it. */
static uint32_t first_of_queue(const struct retain *r, const struct retain_queue *q)
{
	uint32_t at;

	if (q->oldest != RUN_NONE)
		return q->oldest;
	/* The window is a ring: the oldest tick stands right after the newest. */
	at = tickset_next(&q->ordered, r->tick + 1);
	if (at == TICKSET_NONE)
		return RUN_NONE;
	must(r->run_at[at]);
	return r->run_at[at] - 1;
}

static uint32_t lru_victim(const struct retain *r, const struct retain_order *o)
{
	uint32_t run = RUN_NONE;

	for (uint32_t i = 0; i < o->n_queues && run == RUN_NONE; i++)
		run = first_of_queue(r, &o->queue[i]);
	return run;
}

bool retain_run_is_idle(const struct retain *r, const struct retain_run *run)
{
	return r->interactive_ttl_ns && r->now_ns - run->touched_ns >= r->interactive_ttl_ns;
}

static struct retain_rank rank_in(const struct retain *r, const struct retain_run *run,
				  enum tier tier)
{
	bool idle = tier == TIER_RAM && run->interactive && retain_run_is_idle(r, run);
	double index = r->learned ? r->learned->reuse.index[reuse_cell(run->class, run->bucket)]
		       : idle     ? RETAIN_NEW
				  : (double)queue_index(r, run, tier);

	return (struct retain_rank){.index = index,
				    .tick = run->tick,
				    .touched_ns = run->touched_ns,
				    .interactive = tier == TIER_RAM && run->interactive && !idle};
}

/* Of interactive runs those that are idle rank among agents': the lowest of them, or RUN_NONE.
 * Behind one of a queue that is not, all are not. */
static uint32_t idle_victim(const struct retain *r, const struct retain_order *o)
{
	uint32_t best = RUN_NONE;

	for (uint32_t i = 0; i < o->n_queues && r->interactive_ttl_ns; i++) {
		uint32_t run = first_of_queue(r, &o->queue[i]);

		if (run == RUN_NONE || !retain_run_is_idle(r, &r->runs[run]))
			continue;
		if (best == RUN_NONE || r->runs[run].tick < r->runs[best].tick)
			best = run;
	}
	return best == RUN_NONE || !r->learned ? best : learned_victim(r, o, true);
}

/* The first run of one order, or RUN_NONE. */
static uint32_t first_of(const struct retain *r, enum retain_rank_of kind, uint16_t name_space,
			 struct retain_rank *rank)
{
	const struct retain_order *o = r->orders[kind][name_space];
	uint32_t run = RUN_NONE;

	if (!o)
		return RUN_NONE;
	if (kind == ORDER_RAM_INTERACTIVE)
		run = idle_victim(r, o);
	if (run == RUN_NONE)
		run = r->learned ? learned_victim(r, o, false) : lru_victim(r, o);
	if (run != RUN_NONE)
		*rank = rank_in(r, &r->runs[run], kind == ORDER_DEVICE ? TIER_DEVICE : TIER_RAM);
	return run;
}

uint32_t retain_victim(const struct retain *r, enum tier tier, uint16_t name_space,
		       struct retain_rank *rank)
{
	struct retain_rank other;
	uint32_t run, second;

	run = first_of(r, tier == TIER_DEVICE ? ORDER_DEVICE : ORDER_RAM_AGENT, name_space, rank);
	if (tier == TIER_RAM) {
		second = first_of(r, ORDER_RAM_INTERACTIVE, name_space, &other);
		if (second != RUN_NONE && (run == RUN_NONE || retain_ranks_below(other, *rank))) {
			run = second;
			*rank = other;
		}
	}
	return run == RUN_NONE ? NODE_NONE : r->runs[run].in[tier].tail;
}

uint32_t retain_next(const struct retain *r, enum tier tier, uint64_t namespaces,
		     struct retain_rank *rank)
{
	uint32_t best = NODE_NONE;

	for (uint64_t left = namespaces & r->name_spaces[ORDER_DEVICE]; left; left &= left - 1) {
		struct retain_rank one;
		uint32_t node = retain_victim(r, tier, (uint16_t)__builtin_ctzll(left), &one);

		if (node == NODE_NONE || (best != NODE_NONE && !retain_ranks_below(one, *rank)))
			continue;
		best = node;
		*rank = one;
	}
	return best;
}

struct retain_rank retain_rank(const struct retain *r, uint32_t node)
{
	uint32_t run = r->prefix->nodes[node].run;

	if (run == RUN_NONE)
		return (struct retain_rank){0};
	return rank_in(r, &r->runs[run], TIER_RAM);
}
