/* SPDX-License-Identifier: Apache-2.0 */
/* retain_learned: the learned order of retain.h. Core thread; nothing here blocks. */
#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"
#include "daemon/state/retain_internal.h"

#define GHOSTS_LEAST    65536u
#define GHOSTS_A_PAGE   6
#define TURN_BITS       2
#define TURN_MASK       ((1u << TURN_BITS) - 1)
#define OPEN_PAGES_MOST (UINT32_MAX >> TURN_BITS)

_Static_assert(REUSE_PARTS == RETAIN_PARTS && TICKSET_PARTS == RETAIN_PARTS, "the same parts");
_Static_assert(REUSE_TURNS == 1 << TURN_BITS, "a turn fits its bits");

uint64_t learned_ghosts_for(uint64_t pages)
{
	uint64_t most = pages > KEYSET_MAX / GHOSTS_A_PAGE ? KEYSET_MAX : GHOSTS_A_PAGE * pages;

	return most < GHOSTS_LEAST ? GHOSTS_LEAST : most;
}

uint64_t learned_bytes_for(uint64_t pages)
{
	return reserve_bytes(sizeof(struct retain_learned)) +
	       keyset_bytes_for(learned_ghosts_for(pages));
}

int learned_init(struct retain *r, uint64_t pages)
{
	struct retain_learned *l = reserve_take(sizeof(*l));

	if (!l)
		return -ENOMEM;
	if (keyset_init(&l->ghosts, (uint32_t)learned_ghosts_for(pages))) {
		reserve_give(l, sizeof(*l));
		return -ENOMEM;
	}
	reuse_init(&l->reuse);
	r->learned = l;
	return 0;
}

void learned_deinit(struct retain *r)
{
	keyset_deinit(&r->learned->ghosts);
	reserve_give(r->learned, sizeof(*r->learned));
	r->learned = NULL;
}

/* ---- cells ---- */

static uint32_t cell_of(const struct retain_run *run)
{
	return reuse_cell(run->class, run->bucket);
}

static void count_ordered(const struct retain *r, struct retain_order *o,
			  const struct retain_run *run, bool now)
{
	uint32_t cell = cell_of(run);
	uint32_t rank = r->learned->reuse.rank_of[cell];

	if (now) {
		o->ordered[cell]++;
		o->ranks[rank / 64] |= 1ull << rank % 64;
		return;
	}
	must(o->ordered[cell] > 0);
	if (--o->ordered[cell] == 0)
		o->ranks[rank / 64] &= ~(1ull << rank % 64);
}

void learned_ordered(struct retain *r, struct retain_order *o, const struct retain_run *run,
		     bool now)
{
	count_ordered(r, o, run, now);
}

static void wait_less(struct retain *r, uint32_t cell, uint64_t pages)
{
	must(r->learned->reuse.waiting[cell] >= pages);
	r->learned->reuse.waiting[cell] -= pages;
}

static void rank_order(const struct reuse *u, struct retain_order *o)
{
	for (uint32_t w = 0; w < CELL_WORDS; w++)
		o->ranks[w] = 0;
	for (uint32_t cell = 0; cell < REUSE_CELLS; cell++) {
		uint32_t rank = u->rank_of[cell];

		if (o->ordered[cell])
			o->ranks[rank / 64] |= 1ull << rank % 64;
	}
}

static void rank_all(struct retain *r)
{
	for (int kind = 0; kind < ORDERS; kind++) {
		for (uint32_t ns = 0; ns < RETAIN_NAMESPACES; ns++) {
			if (r->orders[kind][ns])
				rank_order(&r->learned->reuse, r->orders[kind][ns]);
		}
	}
}

/* In each order that it is in. */
static void count_in_orders(struct retain *r, const struct retain_run *run, bool now)
{
	for (int tier = 0; tier < RETAIN_TIERS; tier++) {
		if (run->in[tier].ordered)
			count_ordered(
			    r, r->orders[retain_order_of(run, (enum tier)tier)][run->name_space],
			    run, now);
	}
}

static void grow_older(struct retain *r, struct retain_run *run)
{
	uint64_t pages = (uint64_t)run->members + run->ghosts;

	wait_less(r, cell_of(run), pages);
	count_in_orders(r, run, false);
	run->bucket++;
	r->learned->reuse.waiting[cell_of(run)] += pages;
	count_in_orders(r, run, true);
}

void learned_next_tick(struct retain *r)
{
	uint64_t tick = r->tick + 1;

	if (r->tick % REUSE_REFRESH == 1) {
		reuse_refresh(&r->learned->reuse);
		rank_all(r);
	}
	for (uint32_t b = 1; b < REUSE_BUCKETS && tick > reuse_edge(b); b++) {
		for (uint32_t part = 0; part < RETAIN_PARTS; part++) {
			uint32_t run = r->run_at[tickset_place(tick - reuse_edge(b), part)];

			if (!run)
				continue;
			must(r->runs[run - 1].tick == tick - reuse_edge(b));
			must(r->runs[run - 1].bucket == b - 1);
			grow_older(r, &r->runs[run - 1]);
		}
	}
	r->learned->opens[tick % RETAIN_WINDOW] = 0;
}

/* ---- opens ---- */

static uint32_t open_of(const struct retain *r, uint64_t tick)
{
	if (tick == 0 || tick + RETAIN_WINDOW <= r->tick)
		return 0;
	return r->learned->opens[tick % RETAIN_WINDOW];
}

void retain_know(struct retain *r, uint64_t tick, uint32_t known, uint64_t deepest)
{
	uint32_t before = open_of(r, deepest);
	uint32_t turn = before & TURN_MASK;

	if (!r->learned || known == 0 || tick + RETAIN_WINDOW <= r->tick)
		return;
	if (before >> TURN_BITS == 0 || 2ull * known < before >> TURN_BITS)
		return;
	turn = turn < TURN_MASK ? turn + 1 : TURN_MASK;
	r->learned->opens[tick % RETAIN_WINDOW] |= turn; /* 0 before: once an open */
}

uint64_t retain_reopen(struct retain *r, uint64_t tick)
{
	uint32_t turn = r->learned ? open_of(r, tick) & TURN_MASK : 0;
	uint64_t fresh = retain_open(r);

	if (r->learned)
		r->learned->opens[fresh % RETAIN_WINDOW] = turn;
	return fresh;
}

void learned_run_made(struct retain *r, struct retain_run *run)
{
	uint32_t turn = open_of(r, run->tick) & TURN_MASK;

	run->class = (uint8_t)(turn * REUSE_PARTS + run->part);
	run->bucket = (uint8_t)reuse_bucket(r->tick - run->tick);
}

uint64_t retain_tick_of(const struct retain *r, uint32_t node)
{
	uint32_t run = r->prefix->nodes[node].run;

	return run == RUN_NONE ? 0 : r->runs[run].tick;
}

/* ---- ghosts: those of a run form a ring; `newer` leads from the one that left first ---- */

uint64_t retain_ghost(const struct retain *r, struct key key)
{
	uint32_t ghost = r->learned ? keyset_find(&r->learned->ghosts, key) : KEYSET_NONE;

	return ghost == KEYSET_NONE ? 0 : r->runs[r->learned->ghosts.entries[ghost].owner].tick;
}

static void ghost_insert(struct retain *r, uint32_t run, uint32_t ghost)
{
	struct keyset_entry *e = r->learned->ghosts.entries;
	struct retain_run *it = &r->runs[run];

	e[ghost].owner = run;
	if (it->ghosts++ == 0) {
		e[ghost].older = ghost;
		e[ghost].newer = ghost;
		it->ghost = ghost;
		tickset_add(&r->learned->haunted, tickset_place(it->tick, it->part));
		return;
	}
	e[ghost].newer = it->ghost;
	e[ghost].older = e[it->ghost].older;
	e[e[ghost].older].newer = ghost;
	e[it->ghost].older = ghost;
}

/* The caller settles the run. */
static void ghost_remove(struct retain *r, uint32_t ghost)
{
	struct keyset_entry *e = r->learned->ghosts.entries;
	struct retain_run *it = &r->runs[e[ghost].owner];

	e[e[ghost].older].newer = e[ghost].newer;
	e[e[ghost].newer].older = e[ghost].older;
	if (it->ghost == ghost)
		it->ghost = e[ghost].newer;
	if (--it->ghosts == 0)
		tickset_remove(&r->learned->haunted, tickset_place(it->tick, it->part));
	keyset_remove(&r->learned->ghosts, ghost);
}

/* A page of the run was waited for in vain. */
static void count_forgotten(struct retain *r, const struct retain_run *run)
{
	wait_less(r, cell_of(run), 1);
	if (protection(ghosts_are_forgotten))
		r->learned->reuse.forgotten[cell_of(run)] += 1;
}

static void forget(struct retain *r, uint32_t run)
{
	count_forgotten(r, &r->runs[run]);
	ghost_remove(r, r->runs[run].ghost);
}

static void forget_oldest(struct retain *r)
{
	uint32_t at = tickset_next(&r->learned->haunted, r->tick + 1);
	uint32_t run;

	must(at != TICKSET_NONE && r->run_at[at]);
	run = r->run_at[at] - 1;
	forget(r, run);
	if (r->runs[run].ghosts == 0 && r->runs[run].members == 0)
		retain_run_settle(r, run);
}

void learned_run_ages_out(struct retain *r, uint32_t run)
{
	while (r->runs[run].ghosts)
		forget(r, run);
}

void learned_left(struct retain *r, uint32_t run, struct key key)
{
	struct retain_run *it = &r->runs[run];
	uint32_t ghost;

	r->learned->counts.evictions[it->class]++;
	if (it->old) {
		count_forgotten(r, it);
		return;
	}
	if (r->learned->ghosts.used == r->learned->ghosts.capacity)
		forget_oldest(r);
	ghost = keyset_add(&r->learned->ghosts, key);
	if (ghost == KEYSET_NONE)
		count_forgotten(r, it); /* equal keys: one of them is known */
	else
		ghost_insert(r, run, ghost);
}

/* ---- touching ---- */

enum retain_part learned_part(const struct retain *r, const struct node *node, uint32_t run,
			      uint32_t *ghost)
{
	bool known = node->run != RUN_NONE;

	if (!known) {
		*ghost = keyset_find(&r->learned->ghosts, node->key);
		known = *ghost != KEYSET_NONE;
	}
	if (run != RUN_NONE && r->runs[run].part == RETAIN_NEW)
		return RETAIN_NEW;
	return known ? RETAIN_REUSED : RETAIN_NEW;
}

/* `to` has been counted one more page; `from` still counts it. */
void learned_moved(struct retain *r, uint32_t from, uint32_t ghost, uint32_t to, bool matched)
{
	struct retain_learned *l = r->learned;
	const struct retain_run *it = &r->runs[to];
	uint32_t *open = &l->opens[it->tick % RETAIN_WINDOW];

	l->reuse.waiting[cell_of(it)]++;
	if (*open >> TURN_BITS < OPEN_PAGES_MOST)
		*open += 1u << TURN_BITS;
	if (ghost != KEYSET_NONE)
		from = l->ghosts.entries[ghost].owner;
	if (from == RUN_NONE)
		return;
	it = &r->runs[from];
	wait_less(r, cell_of(it), 1);
	if (r->runs[to].tick == r->tick) {
		l->reuse.reused[cell_of(it)] += 1;
	} else {
		uint64_t tick = r->runs[to].tick;
		uint64_t age = tick > it->tick ? tick - it->tick : 0;

		l->reuse.reused[reuse_cell(it->class, reuse_bucket(age))] += 1;
	}
	if (matched)
		l->counts.hits[it->class]++;
	if (ghost == KEYSET_NONE)
		return;
	l->counts.misses[it->class]++;
	ghost_remove(r, ghost);
	if (r->runs[from].members == 0)
		retain_run_settle(r, from);
}

/* ---- the victim ---- */

/* The first run of a cell: of those older than the window, else the oldest in the window. */
static uint32_t first_of_cell(const struct retain *r, const struct retain_order *o, uint32_t cell)
{
	const struct retain_queue *q = &o->queue[cell / REUSE_BUCKETS];
	uint32_t bucket = cell % REUSE_BUCKETS;
	uint64_t youngest_of_older = RETAIN_WINDOW;
	uint32_t at;

	if (bucket == REUSE_BUCKETS - 1) {
		if (q->oldest != RUN_NONE)
			return q->oldest;
	} else {
		youngest_of_older = reuse_edge(bucket + 1);
	}
	at = tickset_next(&q->ordered, r->tick + RETAIN_WINDOW - youngest_of_older + 1);
	must(at != TICKSET_NONE && r->run_at[at]);
	return r->run_at[at] - 1;
}

static uint32_t next_rank(const struct retain_order *o, uint32_t from)
{
	uint64_t word;

	if (from >= REUSE_CELLS)
		return REUSE_CELLS;
	word = o->ranks[from / 64] & (~0ull << from % 64);
	for (uint32_t w = from / 64; !word;) {
		if (++w == CELL_WORDS)
			return REUSE_CELLS;
		word = o->ranks[w];
		from = w * 64;
	}
	return (from & ~63u) + (uint32_t)__builtin_ctzll(word);
}

uint32_t learned_victim(const struct retain *r, const struct retain_order *o, bool idle)
{
	const struct reuse *u = &r->learned->reuse;
	uint32_t run = RUN_NONE, bucket = 0;
	double index = 0;

	/* Equal indexes: the older cell ranks first; within one age compare the opens. */
	for (uint32_t rank = next_rank(o, 0); rank < REUSE_CELLS; rank = next_rank(o, rank + 1)) {
		uint32_t cell = u->cell_at[rank], other;

		if (run != RUN_NONE && (u->index[cell] > index || cell % REUSE_BUCKETS != bucket))
			break;
		other = first_of_cell(r, o, cell);
		if (idle && !retain_run_is_idle(r, &r->runs[other]))
			continue;
		if (run != RUN_NONE && r->runs[other].tick >= r->runs[run].tick)
			continue;
		run = other;
		index = u->index[cell];
		bucket = cell % REUSE_BUCKETS;
	}
	return run;
}

/* ---- for people, and checks ---- */

const struct retain_counts *retain_counts(const struct retain *r)
{
	return r->learned ? &r->learned->counts : NULL;
}

const struct reuse *retain_reuse(const struct retain *r)
{
	return r->learned ? &r->learned->reuse : NULL;
}

const struct keyset *retain_ghosts(const struct retain *r)
{
	return r->learned ? &r->learned->ghosts : NULL;
}

static const char *check_ghosts(const struct retain *r, uint32_t run)
{
	const struct keyset_entry *e = r->learned->ghosts.entries;
	uint32_t ghost = r->runs[run].ghost;

	for (uint32_t i = 0; i < r->runs[run].ghosts; i++) {
		if (e[ghost].owner != run || e[e[ghost].newer].older != ghost)
			return "the ghosts of a run are no ring";
		if (keyset_find(&r->learned->ghosts, e[ghost].key) != ghost)
			return "a ghost is not found by its key";
		ghost = e[ghost].newer;
	}
	if (r->runs[run].ghosts && ghost != r->runs[run].ghost)
		return "a run has more ghosts than it counts";
	return NULL;
}

/* Takes what an order counts from `ordered`. */
static const char *check_order(const struct reuse *u, const struct retain_order *o,
			       uint32_t ordered[REUSE_CELLS])
{
	for (uint32_t cell = 0; cell < REUSE_CELLS; cell++) {
		uint32_t rank = u->rank_of[cell];

		ordered[cell] -= o->ordered[cell];
		if (!!(o->ranks[rank / 64] >> rank % 64 & 1) != !!o->ordered[cell])
			return "a cell is in the order and empty, or the reverse";
	}
	return NULL;
}

const char *learned_check(const struct retain *r)
{
	uint64_t waiting[REUSE_CELLS] = {0};
	uint32_t ordered[REUSE_CELLS] = {0};
	uint32_t ghosts = 0;
	const char *wrong = NULL;

	for (uint32_t i = 0; i < r->n_runs; i++) {
		const struct retain_run *it = &r->runs[i];

		wrong = it->tick ? check_ghosts(r, i) : NULL;
		if (wrong)
			return wrong;
		if (!it->tick)
			continue;
		if (it->bucket != reuse_bucket(r->tick - it->tick))
			return "a run is counted at another age";
		waiting[cell_of(it)] += (uint64_t)it->members + it->ghosts;
		ordered[cell_of(it)] += it->in[TIER_DEVICE].ordered + it->in[TIER_RAM].ordered;
		ghosts += it->ghosts;
	}
	if (ghosts != r->learned->ghosts.used)
		return "the number of ghosts is wrong";
	for (uint32_t i = 0; i < ORDERS * RETAIN_NAMESPACES && !wrong; i++) {
		const struct retain_order *o =
		    r->orders[i / RETAIN_NAMESPACES][i % RETAIN_NAMESPACES];

		wrong = o ? check_order(&r->learned->reuse, o, ordered) : NULL;
	}
	for (uint32_t cell = 0; cell < REUSE_CELLS && !wrong; cell++) {
		if (waiting[cell] != r->learned->reuse.waiting[cell])
			wrong = "the pages that wait in a cell are miscounted";
		else if (ordered[cell])
			wrong = "the runs of a cell are miscounted";
	}
	return wrong;
}
