/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_RETAIN_H
#define KVHOST_STATE_RETAIN_H

/*
 * retain: in which order the retained pages of a dense pool are given up.
 *
 * The clock is the pool's opens: one tick each. A run is what one open touched last, in two parts:
 * pages that it reused and pages that it made. Touching a page moves it to the run of the new
 * open; a hit touches a whole chain from its start, so what is left of a run is always the lower
 * end of a chain, and a run is no more than a tail, a count and a tick: its pages go tail first,
 * deepest first. Of two parts of one open, the new one goes first.
 *
 * A run whose tail is in use, or has a child with a copy on the device, is not in the order; it
 * comes back at its own place when that ends. The order is a bitmap of three levels over the
 * last RETAIN_WINDOW ticks for each namespace and class, so every call is O(1) at any size. Runs
 * that are older than the window are equally old and go before others of their class, in the order
 * in which they left it.
 *
 * `lru`: one class; the oldest run of the order goes first. A parent is never older than its
 * children.
 *
 * `learned`: the run in the cell of lowest index goes first (reuse.h), then the oldest. What has
 * left stays known by its key, as a ghost, for a while: its reuse is learned from like any other,
 * else only what was chosen to be kept would teach. A ghost that is forgotten counts as not
 * reused. The newcomer competes like everyone: pool.c gives nothing up before it is released.
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

struct retain_run {
	uint64_t tick;
	uint32_t tail; /* deepest node; of a free run: the next free one */
	uint32_t count;
	uint32_t holders;      /* sequences that may still add to it */
	uint32_t older, newer; /* neighbours in the list of runs older than the window */
	uint32_t ghosts;       /* pages of it that have left and are still known */
	uint32_t ghost;        /* of a ring of them, the one that left first */
	uint16_t name_space;
	uint8_t part;
	uint8_t flags;
	uint8_t class;  /* of reuse.h; 0 in an order that has no classes */
	uint8_t bucket; /* of its age now, likewise */
};

struct retain_order;   /* the bitmaps of one namespace */
struct retain_learned; /* what only `learned` has */

struct retain {
	struct prefix *prefix;
	struct retain_run *runs;
	uint32_t n_runs, runs_room, first_free; /* the room is for as many as there can be */
	uint64_t tick;                          /* opens so far; the first one has tick 1 */
	uint32_t *run_at; /* [2 * RETAIN_WINDOW]: run of (tick, part), or RUN_NONE - stored + 1 */
	struct retain_order *orders[RETAIN_NAMESPACES];
	uint64_t name_spaces;           /* a bit for each that has one */
	struct retain_learned *learned; /* NULL: lru */
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
uint64_t retain_bytes_for(uint64_t pages, uint64_t learned_pages, uint32_t name_spaces);

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

/* The node's users or children in the device tier became 0, or ceased to be 0. */
void retain_idle(struct retain *r, uint32_t node);
void retain_busy(struct retain *r, uint32_t node);

/* The next to go of one namespace, or NODE_NONE; *tick of its run. */
uint32_t retain_victim(const struct retain *r, uint16_t name_space, uint64_t *tick);
/* The next to go of some namespaces, a bit each, or NODE_NONE. */
uint32_t retain_next(const struct retain *r, uint64_t namespaces);

/* The node's device copy leaves: call before prefix_drop_copy. */
void retain_remove(struct retain *r, uint32_t node);

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
