/* SPDX-License-Identifier: Apache-2.0 */
/* retain: see retain.h. Core thread; nothing here blocks. */
#include "daemon/state/retain.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

#define POSITIONS (RETAIN_WINDOW * RETAIN_PARTS)
#define WORDS0    (POSITIONS / 64)
#define WORDS1    (WORDS0 / 64)
#define WORDS2    (WORDS1 / 64)

enum run_flag {
	RUN_ORDERED = 1, /* its bit is set, or it is in the list of old ones */
	RUN_OLD = 2,     /* older than the window */
};

/* Bit = position of a run in the window. Level 1 tells which words of level 0 have a bit. */
struct retain_order {
	uint64_t level0[WORDS0];
	uint64_t level1[WORDS1];
	uint64_t level2[WORDS2];
	uint32_t oldest, newest; /* list of runs older than the window, RUN_NONE = empty */
};

static void *reserve(uint64_t bytes)
{
	void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

int retain_init(struct retain *r, struct prefix *prefix)
{
	*r = (struct retain){.prefix = prefix, .first_free = RUN_NONE};
	r->run_at = reserve(POSITIONS * sizeof(*r->run_at));
	return r->run_at ? 0 : -ENOMEM;
}

void retain_deinit(struct retain *r)
{
	for (uint32_t i = 0; i < RETAIN_NAMESPACES; i++) {
		if (r->orders[i])
			munmap(r->orders[i], sizeof(*r->orders[i]));
	}
	if (r->run_at)
		munmap(r->run_at, POSITIONS * sizeof(*r->run_at));
	free(r->runs);
	*r = (struct retain){0};
}

/* ---- the order of one namespace ---- */

static uint32_t position_of(uint64_t tick, enum retain_part part)
{
	return (uint32_t)(tick % RETAIN_WINDOW) * RETAIN_PARTS + part;
}

static void bit_set(struct retain_order *o, uint32_t at)
{
	o->level0[at >> 6] |= 1ull << (at & 63);
	o->level1[at >> 12] |= 1ull << (at >> 6 & 63);
	o->level2[at >> 18] |= 1ull << (at >> 12 & 63);
}

static void bit_clear(struct retain_order *o, uint32_t at)
{
	o->level0[at >> 6] &= ~(1ull << (at & 63));
	if (o->level0[at >> 6])
		return;
	o->level1[at >> 12] &= ~(1ull << (at >> 6 & 63));
	if (o->level1[at >> 12])
		return;
	o->level2[at >> 18] &= ~(1ull << (at >> 12 & 63));
}

/* The first set bit of words[] at or after bit `from`, of `n` bits; UINT32_MAX: none. */
static uint32_t word_scan(const uint64_t *words, uint32_t from, uint32_t n)
{
	uint64_t word;

	if (from >= n)
		return UINT32_MAX;
	word = words[from >> 6] & (~0ull << (from & 63));
	return word ? (from & ~63u) + (uint32_t)__builtin_ctzll(word) : UINT32_MAX;
}

static uint32_t bit_next(const struct retain_order *o, uint32_t from)
{
	uint32_t at = word_scan(o->level0, from, POSITIONS);
	uint32_t up;

	if (at != UINT32_MAX)
		return at;
	up = word_scan(o->level1, (from >> 6) + 1, WORDS0);
	if (up == UINT32_MAX) {
		uint32_t top = (from >> 12) + 1;

		for (at = word_scan(o->level2, top, WORDS1); at == UINT32_MAX;) {
			top = (top | 63) + 1;
			if (top >= WORDS1)
				return UINT32_MAX;
			at = word_scan(o->level2, top, WORDS1);
		}
		up = at * 64 + (uint32_t)__builtin_ctzll(o->level1[at]);
	}
	return up * 64 + (uint32_t)__builtin_ctzll(o->level0[up]);
}

static void old_append(struct retain *r, struct retain_order *o, uint32_t run)
{
	r->runs[run].newer = RUN_NONE;
	r->runs[run].older = o->newest;
	if (o->newest != RUN_NONE)
		r->runs[o->newest].newer = run;
	else
		o->oldest = run;
	o->newest = run;
}

static void old_prepend(struct retain *r, struct retain_order *o, uint32_t run)
{
	r->runs[run].older = RUN_NONE;
	r->runs[run].newer = o->oldest;
	if (o->oldest != RUN_NONE)
		r->runs[o->oldest].older = run;
	else
		o->newest = run;
	o->oldest = run;
}

static void old_remove(struct retain *r, struct retain_order *o, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	if (it->older != RUN_NONE)
		r->runs[it->older].newer = it->newer;
	else
		o->oldest = it->newer;
	if (it->newer != RUN_NONE)
		r->runs[it->newer].older = it->older;
	else
		o->newest = it->older;
}

/* ---- runs ---- */

static void run_enter(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];
	struct retain_order *o = r->orders[it->name_space];

	if (it->flags & RUN_ORDERED)
		return;
	it->flags |= RUN_ORDERED;
	if (it->flags & RUN_OLD)
		old_prepend(r, o, run);
	else
		bit_set(o, position_of(it->tick, it->part));
}

static void run_leave(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];
	struct retain_order *o = r->orders[it->name_space];

	if (!(it->flags & RUN_ORDERED))
		return;
	it->flags &= (uint8_t)~RUN_ORDERED;
	if (it->flags & RUN_OLD)
		old_remove(r, o, run);
	else
		bit_clear(o, position_of(it->tick, it->part));
}

/* The tail of a run changed, or what keeps it. */
static void run_settle(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	if (it->count && prefix_may_leave(r->prefix, it->tail, TIER_DEVICE)) {
		run_enter(r, run);
		return;
	}
	run_leave(r, run);
	if (it->count || it->holders)
		return;
	if (!(it->flags & RUN_OLD))
		r->run_at[position_of(it->tick, it->part)] = 0;
	it->tick = 0;
	it->tail = r->first_free;
	r->first_free = run;
}

/* Index or RUN_NONE for lack of memory. */
static uint32_t run_new(struct retain *r, uint64_t tick, enum retain_part part, uint16_t ns)
{
	uint32_t at = r->first_free;

	if (!r->orders[ns]) {
		r->orders[ns] = reserve(sizeof(*r->orders[ns]));
		if (!r->orders[ns])
			return RUN_NONE;
		r->orders[ns]->oldest = RUN_NONE;
		r->orders[ns]->newest = RUN_NONE;
	}
	if (at != RUN_NONE) {
		r->first_free = r->runs[at].tail;
	} else {
		if (r->n_runs == r->runs_room) {
			uint32_t room = r->runs_room ? 2 * r->runs_room : 64;
			struct retain_run *grown = realloc(r->runs, room * sizeof(*grown));

			if (!grown)
				return RUN_NONE;
			r->runs = grown;
			r->runs_room = room;
		}
		at = r->n_runs++;
	}
	r->runs[at] = (struct retain_run){
	    .tick = tick, .part = (uint8_t)part, .name_space = ns, .tail = NODE_NONE};
	r->run_at[position_of(tick, part)] = at + 1;
	return at;
}

uint64_t retain_open(struct retain *r)
{
	uint64_t tick = ++r->tick;

	/* Whoever stands at the new tick's positions has become older than the window. */
	for (int part = 0; part < RETAIN_PARTS; part++) {
		uint32_t at = position_of(tick, (enum retain_part)part);
		uint32_t run = r->run_at[at];

		if (!run--)
			continue;
		r->run_at[at] = 0;
		must(r->runs[run].tick + RETAIN_WINDOW == tick);
		if (r->runs[run].flags & RUN_ORDERED) {
			struct retain_order *o = r->orders[r->runs[run].name_space];

			bit_clear(o, at);
			old_append(r, o, run);
		}
		r->runs[run].flags |= RUN_OLD;
	}
	return tick;
}

void retain_let_go(struct retain *r, uint32_t *run)
{
	if (*run == RUN_NONE)
		return;
	must(r->runs[*run].holders > 0);
	r->runs[*run].holders--;
	run_settle(r, *run);
	*run = RUN_NONE;
}

int retain_touch(struct retain *r, uint32_t node, uint64_t tick, enum retain_part part,
		 uint32_t *run)
{
	struct node *n = &r->prefix->nodes[node];
	uint32_t was = n->run;
	struct retain_run *to;

	must(tick > 0 && tick <= r->tick);
	if (was != RUN_NONE && r->runs[was].tick >= tick)
		return 0;
	if (*run == RUN_NONE) {
		if (tick + RETAIN_WINDOW <= r->tick)
			return RETAIN_ELSEWHERE;
		*run = r->run_at[position_of(tick, part)] ? r->run_at[position_of(tick, part)] - 1
							  : run_new(r, tick, part, n->name_space);
		if (*run == RUN_NONE)
			return -ENOMEM;
		r->runs[*run].holders++;
	}
	to = &r->runs[*run];
	must(to->tick == tick && to->part == part);
	if (to->count && to->tail != n->parent)
		return RETAIN_ELSEWHERE;
	n->run = *run;
	to->tail = node;
	to->count++;
	run_settle(r, *run);
	if (was != RUN_NONE) {
		must(r->runs[was].count > 0);
		r->runs[was].count--;
		must(r->runs[was].count == 0 || r->runs[was].tail != node);
		run_settle(r, was);
	}
	return 0;
}

void retain_idle(struct retain *r, uint32_t node)
{
	uint32_t run = r->prefix->nodes[node].run;

	if (run != RUN_NONE && r->runs[run].tail == node)
		run_settle(r, run);
}

void retain_busy(struct retain *r, uint32_t node)
{
	retain_idle(r, node);
}

uint32_t retain_victim(const struct retain *r, uint16_t name_space, uint64_t *tick)
{
	const struct retain_order *o = r->orders[name_space];
	uint32_t from, at, run;

	if (!o)
		return NODE_NONE;
	if (o->oldest != RUN_NONE) {
		*tick = r->runs[o->oldest].tick;
		return r->runs[o->oldest].tail;
	}
	/* The window is a ring: the oldest tick stands right after the newest. */
	from = position_of(r->tick + 1, RETAIN_NEW);
	at = bit_next(o, from);
	if (at == UINT32_MAX)
		at = bit_next(o, 0);
	if (at == UINT32_MAX)
		return NODE_NONE;
	must(r->run_at[at]);
	run = r->run_at[at] - 1;
	*tick = r->runs[run].tick;
	return r->runs[run].tail;
}

void retain_remove(struct retain *r, uint32_t node)
{
	struct node *n = &r->prefix->nodes[node];
	uint32_t run = n->run;

	if (run == RUN_NONE)
		return;
	must(r->runs[run].count > 0);
	must(r->runs[run].tail == node);
	n->run = RUN_NONE;
	r->runs[run].tail = n->parent;
	r->runs[run].count--;
	run_leave(r, run); /* settled by the caller, once the copy is gone */
	if (r->runs[run].count == 0)
		run_settle(r, run);
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
	return NULL;
}
