/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_RETAIN_H
#define KVHOST_STATE_RETAIN_H

/*
 * retain: in which order the retained pages of a dense pool are given up, tier by tier.
 *
 * The clock is the pool's opens: one tick each. A run is what one open touched last, in two parts:
 * pages that it reused and pages that it made. Touching a page moves it to the run of the new
 * open, wherever its copies are; a hit touches a whole chain from its start, so what is left of a
 * run is always the lower end of a chain. In each tier a run has a tail, the deepest of its pages
 * with a copy there, and a count: its pages go tail first. Of two parts of one open, the new one
 * goes first. A page belongs to its run as long as it has a copy in any tier.
 *
 * A run whose tail is in use, or has a child with a copy in that tier, is not in that tier's order;
 * it comes back at its own place when that ends. An order is a bitmap of three levels over the
 * last RETAIN_WINDOW ticks for each namespace and class, so every call is O(1) at any size. Runs
 * that are older than the window are equally old and go before others of their class, in the order
 * in which they left it.
 *
 * `lru`: on the device one class; the oldest run of the order goes first. A parent is never older
 * than its children. In KV-RAM runs of new pages are on probation and go before those of reused
 * ones, which are protected.
 *
 * `learned`: the run in the cell of lowest index goes first (reuse.h), then the oldest. What has
 * left for nowhere stays known by its key, as a ghost, for a while: its reuse is learned from like
 * any other, else only what was chosen to be kept would teach. A ghost that is forgotten counts as
 * not reused. The newcomer competes like everyone: pool.c gives nothing up before it is released.
 *
 * In KV-RAM what agents touched last goes before what interactive requests did; what of the latter
 * was not touched for a while (`interactive_ttl_ns`) ranks among the former, on probation.
 *
 * Owner: the core thread, within its pool; no I/O, no clock of its own.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/state/keyset.h"
#include "daemon/state/prefix.h"
#include "daemon/state/reuse.h"
#include "daemon/state/tickset.h"

#define RETAIN_WINDOW     TICKSET_WINDOW
#define RETAIN_NAMESPACES 64

enum retain_policy {
	RETAIN_LRU = 0,
	RETAIN_LEARNED,
};

enum retain_part {
	RETAIN_NEW = 0, /* made by this open; goes before what it reused */
	RETAIN_REUSED,
	RETAIN_PARTS,
};

#define RETAIN_TIERS 2 /* those that rank: TIER_DEVICE, TIER_RAM */

struct retain_in {     /* what of a run lies in one tier */
	uint32_t tail; /* deepest node with a copy there */
	uint32_t count;
	uint32_t older, newer; /* neighbours in the list of runs older than the window */
	bool ordered; /* its place in that tier's order is set, or it is in the list of old ones */
};

struct retain_run {
	uint64_t tick;
	uint64_t touched_ns; /* the pool's clock at its tick */
	struct retain_in in[RETAIN_TIERS];
	uint32_t members; /* pages with a copy anywhere, or about to get one */
	uint32_t deepest; /* of them; of a free run: the next free one */
	uint32_t highest; /* of those in KV-RAM, the one that came last */
	uint32_t holders; /* sequences that may still add to it */
	uint32_t ghosts;  /* pages of it that have left and are still known */
	uint32_t ghost;   /* of a ring of them, the one that left first */
	uint16_t name_space;
	uint8_t part;
	bool old; /* older than the window */
	bool interactive;
	uint8_t class;  /* of reuse.h; 0 in an order that has no classes */
	uint8_t bucket; /* of its age now, likewise */
};

enum retain_rank_of { /* orders: one of the device, two of KV-RAM */
		      ORDER_DEVICE = 0,
		      ORDER_RAM_AGENT,
		      ORDER_RAM_INTERACTIVE,
		      ORDERS,
};

/* Where a page stands among those that could go: lower goes first. */
struct retain_rank {
	double index;  /* what it promises (learned), or its segment (lru in KV-RAM) */
	uint64_t tick; /* of its run */
	uint64_t touched_ns;
	bool interactive; /* of KV-RAM: above all that is not */
};

static inline bool retain_ranks_below(struct retain_rank a, struct retain_rank b)
{
	if (a.interactive != b.interactive)
		return b.interactive;
	return a.index < b.index || (a.index <= b.index && a.tick < b.tick);
}

struct retain_order;   /* the bitmaps of one namespace */
struct retain_learned; /* what only `learned` has */

struct retain {
	struct prefix *prefix;
	struct retain_run *runs;
	uint32_t n_runs, runs_room, first_free; /* the room is for as many as there can be */
	uint64_t tick;                          /* opens so far; the first one has tick 1 */
	uint32_t *run_at; /* [2 * RETAIN_WINDOW]: run of (tick, part), or RUN_NONE - stored + 1 */
	struct retain_order *orders[ORDERS][RETAIN_NAMESPACES];
	uint64_t name_spaces[ORDERS];   /* a bit for each that has one */
	struct retain_learned *learned; /* NULL: lru */
	bool has_ram;                   /* there are orders of KV-RAM */
	uint64_t now_ns;                /* set by the pool's owner; runs remember it */
	uint64_t interactive_ttl_ns;    /* 0: never */
};

enum retain_outcome {
	RETAIN_ELSEWHERE = 1, /* the run has ended or cannot be continued here: take a new one */
};

/* lru, for a pool of so many pages. 0 or -ENOMEM. */
int retain_init(struct retain *r, struct prefix *prefix, uint32_t pages);
void retain_deinit(struct retain *r);

/* Before the first open: the learned order, for a cache of so many of them. 0 or -ENOMEM. */
int retain_learn(struct retain *r, uint32_t pages, uint32_t learned_pages);

/* Address space that it takes, at most: used by so many namespaces; learned_pages 0: lru. */
uint64_t retain_bytes_for(uint64_t pages, uint64_t learned_pages, uint32_t name_spaces,
			  bool has_ram);

/* A new open: its tick. May fail for lack of memory: 0, which is no tick. */
uint64_t retain_open(struct retain *r);
/* A tick of its own for what goes on with the open of `tick`. */
uint64_t retain_reopen(struct retain *r, uint64_t tick);

/* A sequence's hold on the run that it adds to. *run = RUN_NONE: none yet. */
void retain_let_go(struct retain *r, uint32_t *run);
/* The walk of an open ends: the learned order may go on with its run, any other lets it go. */
void retain_pass_on(struct retain *r, uint32_t *from, uint32_t *to);

/*
 * What an open of the learned order knows before it touches anything: the first `known` pages of
 * its prompt were here before, with their bytes or as ghosts, and the deepest of them was touched
 * last at `deepest`. It tells whether the open goes on with a conversation.
 */
void retain_know(struct retain *r, uint64_t tick, uint32_t known, uint64_t deepest);
/* When a page was touched last: of a node; of a ghost. 0: it is in no run, it is none. */
uint64_t retain_tick_of(const struct retain *r, uint32_t node);
uint64_t retain_ghost(const struct retain *r, struct key key);

/*
 * Touch `node` at `tick`: it joins the run (tick, part). If it has been touched later than that,
 * nothing happens. Touch a chain from its start. *run caches the run between calls and holds it.
 * 0, ELSEWHERE (the run exists and its tail is not the parent) or -ENOMEM; the page is then
 * where it was, and must be touched with a tick of its own if it is in no run.
 * The learned order takes a page that is offered as NEW and was known for a reused one, as long as
 * this open has made none: *run may be that of either part.
 */
int retain_touch(struct retain *r, uint32_t node, uint64_t tick, enum retain_part part,
		 uint32_t *run);

/* Who adds to the run is interactive, or is not. */
void retain_set_interactive(struct retain *r, uint32_t run, bool interactive);

/* The node has a copy in that tier now (prefix_put_copy, prefix_stay), or is about to lose it
 * (before prefix_drop_copy, prefix_leave). With its last copy it leaves its run. */
void retain_put(struct retain *r, uint32_t node, enum tier tier);
void retain_remove(struct retain *r, uint32_t node, enum tier tier);

/* What keeps a copy of it has changed: its users, its children in a tier, its moves. */
void retain_look(struct retain *r, uint32_t node);

/* The next to go from a tier, of one namespace, or NODE_NONE; its rank. */
uint32_t retain_victim(const struct retain *r, enum tier tier, uint16_t name_space,
		       struct retain_rank *rank);
/* The next to go of some namespaces, a bit each, or NODE_NONE. */
uint32_t retain_next(const struct retain *r, enum tier tier, uint64_t namespaces,
		     struct retain_rank *rank);
/* Where a page of a run would stand in KV-RAM. */
struct retain_rank retain_rank(const struct retain *r, uint32_t node);

/* ---- what is learned, for people ---- */

struct retain_counts {                  /* of the learned order, they only grow */
	uint64_t hits[REUSE_CLASSES];   /* pages that opens found, by the class they waited in */
	uint64_t misses[REUSE_CLASSES]; /* pages made again that had been known, likewise */
	uint64_t evictions[REUSE_CLASSES];
};

const struct retain_counts *retain_counts(const struct retain *r); /* NULL: lru */
const struct reuse *retain_reuse(const struct retain *r);          /* NULL: lru */
const struct keyset *retain_ghosts(const struct retain *r);        /* NULL: lru */

/* Compares runs with nodes (all of them: for tests and small pools). NULL or what is wrong. */
const char *retain_check(const struct retain *r);

#endif
