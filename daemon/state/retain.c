/* SPDX-License-Identifier: Apache-2.0 */
/* retain: see retain.h. Core thread; nothing here blocks. */
#include "daemon/state/retain.h"

#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"
#include "daemon/state/retain_internal.h"

static uint64_t order_bytes(uint32_t n_queues)
{
	return sizeof(struct retain_order) + n_queues * sizeof(struct retain_queue);
}

static uint64_t places_bytes(void)
{
	return TICKSET_PLACES * sizeof(uint32_t);
}

static uint64_t runs_bytes(uint64_t n)
{
	return n * sizeof(struct retain_run);
}

/* A run has a page, or a sequence that may still add to it (each has a page of the pool promised),
 * or ghosts. */
static uint64_t runs_for(uint64_t pages, uint64_t learned_pages)
{
	uint64_t haunted = learned_pages ? learned_ghosts_for(learned_pages) : 0;

	return 2 * pages + (haunted < TICKSET_PLACES ? haunted : TICKSET_PLACES);
}

uint64_t retain_bytes_for(uint64_t pages, uint64_t learned_pages, uint32_t name_spaces)
{
	uint64_t order = order_bytes(learned_pages ? REUSE_CLASSES : 1);

	return reserve_bytes(places_bytes()) +
	       reserve_bytes(runs_bytes(runs_for(pages, learned_pages))) +
	       reserve_bytes(order) * name_spaces +
	       (learned_pages ? learned_bytes_for(learned_pages) : 0);
}

static int take_runs(struct retain *r, uint64_t n)
{
	must(n > 0 && n < RUN_NONE);
	r->runs = reserve_take(runs_bytes(n));
	r->runs_room = r->runs ? (uint32_t)n : 0;
	return r->runs ? 0 : -ENOMEM;
}

int retain_init(struct retain *r, struct prefix *prefix, uint32_t pages)
{
	*r = (struct retain){.prefix = prefix, .first_free = RUN_NONE};
	r->run_at = reserve_take(places_bytes());
	if (r->run_at && take_runs(r, runs_for(pages, 0)) == 0)
		return 0;
	retain_deinit(r);
	return -ENOMEM;
}

int retain_learn(struct retain *r, uint32_t pages, uint32_t learned_pages)
{
	must(r->tick == 0 && !r->learned);
	reserve_give(r->runs, runs_bytes(r->runs_room));
	if (take_runs(r, runs_for(pages, learned_pages)))
		return -ENOMEM;
	return learned_init(r, learned_pages);
}

void retain_deinit(struct retain *r)
{
	for (uint32_t i = 0; i < RETAIN_NAMESPACES; i++) {
		if (r->orders[i])
			reserve_give(r->orders[i], order_bytes(r->orders[i]->n_queues));
	}
	reserve_give(r->run_at, places_bytes());
	if (r->learned)
		learned_deinit(r);
	reserve_give(r->runs, runs_bytes(r->runs_room));
	*r = (struct retain){0};
}

/* ---- the order of one namespace ---- */

static uint32_t place_of(const struct retain_run *run)
{
	return tickset_place(run->tick, run->part);
}

static struct retain_queue *queue_of(const struct retain *r, const struct retain_run *run)
{
	return &r->orders[run->name_space]->queue[run->class];
}

static void old_append(struct retain *r, struct retain_queue *q, uint32_t run)
{
	r->runs[run].newer = RUN_NONE;
	r->runs[run].older = q->newest;
	if (q->newest != RUN_NONE)
		r->runs[q->newest].newer = run;
	else
		q->oldest = run;
	q->newest = run;
}

static void old_prepend(struct retain *r, struct retain_queue *q, uint32_t run)
{
	r->runs[run].older = RUN_NONE;
	r->runs[run].newer = q->oldest;
	if (q->oldest != RUN_NONE)
		r->runs[q->oldest].older = run;
	else
		q->newest = run;
	q->oldest = run;
}

static void old_remove(struct retain *r, struct retain_queue *q, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	if (it->older != RUN_NONE)
		r->runs[it->older].newer = it->newer;
	else
		q->oldest = it->newer;
	if (it->newer != RUN_NONE)
		r->runs[it->newer].older = it->older;
	else
		q->newest = it->older;
}

/* ---- runs ---- */

static void run_enter(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	if (it->flags & RUN_ORDERED)
		return;
	it->flags |= RUN_ORDERED;
	if (it->flags & RUN_OLD)
		old_prepend(r, queue_of(r, it), run);
	else
		tickset_add(&queue_of(r, it)->ordered, place_of(it));
	if (r->learned)
		learned_ordered(r, it, true);
}

static void run_leave(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	if (!(it->flags & RUN_ORDERED))
		return;
	it->flags &= (uint8_t)~RUN_ORDERED;
	if (it->flags & RUN_OLD)
		old_remove(r, queue_of(r, it), run);
	else
		tickset_remove(&queue_of(r, it)->ordered, place_of(it));
	if (r->learned)
		learned_ordered(r, it, false);
}

static bool tail_may_leave(const struct retain *r, const struct retain_run *run)
{
	const struct node *n = &r->prefix->nodes[run->tail];

	if (protection(run_in_use_stays) && protection(parent_waits_for_child))
		return prefix_may_leave(r->prefix, run->tail, TIER_DEVICE);
	return n->copies[TIER_DEVICE] != COPY_NONE &&
	       (n->users == 0 || !protection(run_in_use_stays)) &&
	       (n->children_in[TIER_DEVICE] == 0 || !protection(parent_waits_for_child));
}

/* The tail of a run changed, or what keeps it. */
void retain_run_settle(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	if (it->count && tail_may_leave(r, it)) {
		run_enter(r, run);
		return;
	}
	run_leave(r, run);
	if (it->count || it->holders || it->ghosts)
		return;
	if (!(it->flags & RUN_OLD))
		r->run_at[place_of(it)] = 0;
	it->tick = 0;
	it->tail = r->first_free;
	r->first_free = run;
}

static struct retain_order *order_new(const struct retain *r)
{
	uint32_t n_queues = r->learned ? REUSE_CLASSES : 1;
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

/* Index or RUN_NONE for lack of memory. */
static uint32_t run_new(struct retain *r, uint64_t tick, enum retain_part part, uint16_t ns)
{
	uint32_t at = r->first_free;

	if (!r->orders[ns]) {
		r->orders[ns] = order_new(r);
		if (!r->orders[ns])
			return RUN_NONE;
		r->name_spaces |= 1ull << ns;
	}
	if (at != RUN_NONE) {
		r->first_free = r->runs[at].tail;
	} else {
		if (r->n_runs == r->runs_room)
			return RUN_NONE;
		at = r->n_runs++;
	}
	r->runs[at] = (struct retain_run){
	    .tick = tick, .part = (uint8_t)part, .name_space = ns, .tail = NODE_NONE};
	if (r->learned)
		learned_run_made(r, &r->runs[at]);
	r->run_at[tickset_place(tick, part)] = at + 1;
	return at;
}

static void age_out(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	must(it->tick + RETAIN_WINDOW == r->tick);
	if (r->learned)
		learned_run_ages_out(r, run);
	r->run_at[place_of(it)] = 0;
	if (it->flags & RUN_ORDERED) {
		tickset_remove(&queue_of(r, it)->ordered, place_of(it));
		old_append(r, queue_of(r, it), run);
	}
	it->flags |= RUN_OLD;
	if (!it->count)
		retain_run_settle(r, run);
}

uint64_t retain_open(struct retain *r)
{
	if (!r->run_at)
		return ++r->tick; /* of a pool that keeps no runs */
	if (r->learned)
		learned_next_tick(r);
	r->tick++;
	/* Whoever stands at the new tick's places has become older than the window. */
	for (uint32_t part = 0; part < RETAIN_PARTS; part++) {
		uint32_t run = r->run_at[tickset_place(r->tick, part)];

		if (run)
			age_out(r, run - 1);
	}
	return r->tick;
}

void retain_let_go(struct retain *r, uint32_t *run)
{
	if (*run == RUN_NONE)
		return;
	must(r->runs[*run].holders > 0);
	r->runs[*run].holders--;
	retain_run_settle(r, *run);
	*run = RUN_NONE;
}

void retain_pass_on(struct retain *r, uint32_t *from, uint32_t *to)
{
	if (r->learned) {
		must(*to == RUN_NONE);
		*to = *from;
		*from = RUN_NONE;
	}
	retain_let_go(r, from);
}

/* The run (tick, part), held in *run. 0, ELSEWHERE or -ENOMEM. */
static int hold_run(struct retain *r, uint16_t ns, uint64_t tick, enum retain_part part,
		    uint32_t *run)
{
	uint32_t at;

	if (tick + RETAIN_WINDOW <= r->tick)
		return RETAIN_ELSEWHERE;
	at = r->run_at[tickset_place(tick, part)];
	at = at ? at - 1 : run_new(r, tick, part, ns);
	if (at == RUN_NONE)
		return -ENOMEM;
	r->runs[at].holders++;
	*run = at;
	return 0;
}

int retain_touch(struct retain *r, uint32_t node, uint64_t tick, enum retain_part part,
		 uint32_t *run)
{
	struct node *n = &r->prefix->nodes[node];
	bool matched = part == RETAIN_REUSED;
	uint32_t was = n->run, ghost = KEYSET_NONE;
	struct retain_run *to;

	must(tick > 0 && tick <= r->tick);
	if (was != RUN_NONE && r->runs[was].tick >= tick)
		return 0;
	/* A run is left from its start: who begins in its middle (a fork, or a sequence that was
	 * cut) and comes upon what another has published leaves it where it is. */
	if (was != RUN_NONE && r->prefix->nodes[n->parent].run == was)
		return 0;
	if (r->learned && !matched) {
		part = learned_part(r, n, *run, &ghost);
		if (*run != RUN_NONE && r->runs[*run].part != part)
			retain_let_go(r, run);
	}
	if (*run == RUN_NONE) {
		int result = hold_run(r, n->name_space, tick, part, run);

		if (result)
			return result;
	}
	to = &r->runs[*run];
	must(to->tick == tick && to->part == part);
	if (to->count && to->tail != n->parent)
		return RETAIN_ELSEWHERE;
	n->run = *run;
	to->tail = node;
	to->count++;
	if (r->learned)
		learned_moved(r, was, ghost, *run, matched);
	retain_run_settle(r, *run);
	if (was != RUN_NONE) {
		must(r->runs[was].count > 0);
		r->runs[was].count--;
		must(r->runs[was].count == 0 || r->runs[was].tail != node);
		retain_run_settle(r, was);
	}
	return 0;
}

void retain_idle(struct retain *r, uint32_t node)
{
	uint32_t run = r->prefix->nodes[node].run;

	if (run != RUN_NONE && r->runs[run].tail == node)
		retain_run_settle(r, run);
}

void retain_busy(struct retain *r, uint32_t node)
{
	retain_idle(r, node);
}

static uint32_t lru_victim(const struct retain *r, const struct retain_order *o)
{
	uint32_t at;

	if (o->queue[0].oldest != RUN_NONE)
		return o->queue[0].oldest;
	/* The window is a ring: the oldest tick stands right after the newest. */
	at = tickset_next(&o->queue[0].ordered, r->tick + 1);
	if (at == TICKSET_NONE)
		return RUN_NONE;
	must(r->run_at[at]);
	return r->run_at[at] - 1;
}

uint32_t retain_victim(const struct retain *r, uint16_t name_space, uint64_t *tick)
{
	const struct retain_order *o = r->orders[name_space];
	double index;
	uint32_t run;

	if (!o)
		return NODE_NONE;
	run = r->learned ? learned_victim(r, o, &index) : lru_victim(r, o);
	if (run == RUN_NONE)
		return NODE_NONE;
	*tick = r->runs[run].tick;
	return r->runs[run].tail;
}

uint32_t retain_next(const struct retain *r, uint64_t namespaces)
{
	uint32_t best = RUN_NONE;
	double least = 0;

	for (uint64_t left = namespaces & r->name_spaces; left; left &= left - 1) {
		const struct retain_order *o = r->orders[__builtin_ctzll(left)];
		double index = 0;
		uint32_t run;

		run = r->learned ? learned_victim(r, o, &index) : lru_victim(r, o);
		if (run == RUN_NONE)
			continue;
		if (best == RUN_NONE || index < least ||
		    (index <= least && r->runs[run].tick < r->runs[best].tick)) {
			best = run;
			least = index;
		}
	}
	return best == RUN_NONE ? NODE_NONE : r->runs[best].tail;
}

void retain_remove(struct retain *r, uint32_t node)
{
	struct node *n = &r->prefix->nodes[node];
	uint32_t run = n->run;

	if (run == RUN_NONE)
		return;
	must(r->runs[run].count > 0);
	must(r->runs[run].tail == node);
	if (r->learned)
		learned_left(r, run, n->key);
	n->run = RUN_NONE;
	r->runs[run].tail = n->parent;
	r->runs[run].count--;
	run_leave(r, run); /* settled by the caller, once the copy is gone */
	if (r->runs[run].count == 0)
		retain_run_settle(r, run);
}

const char *retain_check(const struct retain *r)
{
	const struct prefix *p = r->prefix;

	for (uint32_t i = 0; i < r->n_runs; i++) {
		const struct retain_run *it = &r->runs[i];
		uint32_t node = it->tail;

		if (!it->tick)
			continue;
		for (uint32_t k = 0; k < it->count; k++) {
			if (node == NODE_NONE || p->nodes[node].run != i)
				return "a run is not one chain";
			node = p->nodes[node].parent;
		}
		if (it->count &&
		    prefix_may_leave(p, it->tail, TIER_DEVICE) != !!(it->flags & RUN_ORDERED))
			return "a run is in the order and may not leave, or the reverse";
		if (!it->count && (it->flags & RUN_ORDERED))
			return "an empty run is in the order";
	}
	return r->learned ? learned_check(r) : NULL;
}
