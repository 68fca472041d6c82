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
 * last RETAIN_WINDOW ticks for each namespace, so every call is O(1) at any size. Runs that are
 * older than the window are equally old and go first, in the order in which they left it.
 *
 * `lru`: the oldest run of the order goes first. A parent is never older than its children.
 *
 * Owner: the core thread, within its pool; no I/O, no clock of its own.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/state/prefix.h"

#define RETAIN_WINDOW     (1u << 21) /* ticks */
#define RETAIN_NAMESPACES 64

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
	uint16_t name_space;
	uint8_t part;
	uint8_t flags;
};

struct retain_order; /* the bitmaps of one namespace */

struct retain {
	struct prefix *prefix;
	struct retain_run *runs;
	uint32_t n_runs, runs_room, first_free;
	uint64_t tick;    /* opens so far; the first one has tick 1 */
	uint32_t *run_at; /* [2 * RETAIN_WINDOW]: run of (tick, part), or RUN_NONE - stored + 1 */
	struct retain_order *orders[RETAIN_NAMESPACES];
};

enum retain_outcome {
	RETAIN_ELSEWHERE = 1, /* the run has ended or cannot be continued here: take a new one */
};

int retain_init(struct retain *r, struct prefix *prefix); /* 0 or -ENOMEM */
void retain_deinit(struct retain *r);

/* A new open: its tick. May fail for lack of memory: 0, which is no tick. */
uint64_t retain_open(struct retain *r);

/* A sequence's hold on the run that it adds to. *run = RUN_NONE: none yet. */
void retain_let_go(struct retain *r, uint32_t *run);

/*
 * Touch `node` at `tick`: it joins the run (tick, part). If it has been touched later than that,
 * nothing happens. Touch a chain from its start. *run caches the run between calls and holds it.
 * 0, ELSEWHERE (the run exists and its tail is not the parent) or -ENOMEM; the page is then
 * where it was, and must be touched with a tick of its own if it is in no run.
 */
int retain_touch(struct retain *r, uint32_t node, uint64_t tick, enum retain_part part,
		 uint32_t *run);

/* The node's users or children in the device tier became 0, or ceased to be 0. */
void retain_idle(struct retain *r, uint32_t node);
void retain_busy(struct retain *r, uint32_t node);

/* The next to go of one namespace, or NODE_NONE; *tick of its run. */
uint32_t retain_victim(const struct retain *r, uint16_t name_space, uint64_t *tick);

/* The node's device copy leaves: call before prefix_drop_copy. */
void retain_remove(struct retain *r, uint32_t node);

/* Compares runs with nodes (all of them: for tests and small pools). NULL or what is wrong. */
const char *retain_check(const struct retain *r);

#endif
