/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_RETAIN_INTERNAL_H
#define KVHOST_STATE_RETAIN_INTERNAL_H

/* retain_internal: what retain.c and retain_learned.c share. */

#include "daemon/state/retain.h"

#define CELL_WORDS ((REUSE_CELLS + 63) / 64)

struct retain_queue { /* of one class */
	struct tickset ordered;
	uint32_t oldest, newest; /* list of runs older than the window, RUN_NONE = empty */
};

struct retain_order {
	uint32_t ordered[REUSE_CELLS]; /* learned: runs in the order, by cell */
	uint64_t ranks[CELL_WORDS];    /* learned: ranks of cells that have some */
	uint32_t n_queues;             /* RETAIN_PARTS, or REUSE_CLASSES */
	struct retain_queue queue[];
};

struct retain_learned {
	struct reuse reuse;
	struct retain_counts counts;
	struct keyset ghosts;
	struct tickset haunted;        /* runs that have ghosts */
	uint32_t opens[RETAIN_WINDOW]; /* by tick: pages it touched << 2 | turn */
};

void retain_run_settle(struct retain *r, uint32_t run);

static inline enum retain_rank_of retain_order_of(const struct retain_run *run, enum tier tier)
{
	if (tier == TIER_DEVICE)
		return ORDER_DEVICE;
	return run->interactive ? ORDER_RAM_INTERACTIVE : ORDER_RAM_AGENT;
}

/* ---- retain_order.c: the orders, by their places ---- */

/* The orders that runs of a namespace may come into exist: 0 or -ENOMEM. */
int order_prepare(struct retain *r, uint16_t name_space);
void orders_free(struct retain *r);
uint64_t orders_bytes_for(bool learned, bool has_ram); /* address space, for one namespace */
void order_enter(struct retain *r, uint32_t run, enum tier tier);
void order_leave(struct retain *r, uint32_t run, enum tier tier);
/* Has nobody touched it for so long that it is no interactive one any more? */
bool retain_run_is_idle(const struct retain *r, const struct retain_run *run);
/* A run that is in an order becomes older than the window. */
void order_age_out(struct retain *r, uint32_t run, enum tier tier);

/* ---- hooks of the learned order; each is called only if there is one ---- */

uint64_t learned_ghosts_for(uint64_t pages); /* most ghosts, for a cache of so many pages */
uint64_t learned_bytes_for(uint64_t pages);  /* address space that it takes, but for the runs */
int learned_init(struct retain *r, uint64_t pages); /* 0 or -ENOMEM */
void learned_deinit(struct retain *r);
/* The clock moves on: to be called before the new tick counts. */
void learned_next_tick(struct retain *r);
/* A run is made at its tick: sets its class and bucket. */
void learned_run_made(struct retain *r, struct retain_run *run);
/* It becomes older than the window; its place still is its own. */
void learned_run_ages_out(struct retain *r, uint32_t run);
/* It comes into an order, or leaves it. */
void learned_ordered(struct retain *r, struct retain_order *o, const struct retain_run *run,
		     bool now);
/* The part of a page that is offered as new; *ghost: it is one, or KEYSET_NONE. */
enum retain_part learned_part(const struct retain *r, const struct node *node, uint32_t run,
			      uint32_t *ghost);
/* A page moved to a run, from another one, from among the ghosts, or from nowhere. */
void learned_moved(struct retain *r, uint32_t from, uint32_t ghost, uint32_t to, bool matched);
/* A page of a run leaves; its node is still there. */
void learned_left(struct retain *r, uint32_t run, struct key key);
/* idle: of runs that are that (retain_run_is_idle) alone. */
uint32_t learned_victim(const struct retain *r, const struct retain_order *o, bool idle);
const char *learned_check(const struct retain *r);

#endif
