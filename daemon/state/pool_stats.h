/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_POOL_STATS_H
#define KVHOST_STATE_POOL_STATS_H

/* pool_stats: what a pool counts, and what its order knows. */

#include <stdint.h>

struct pool_stats { /* counters; they only grow */
	uint64_t opens, lookups, open_hits, lookup_hits;
	uint64_t prompt_tokens, reused_tokens, pages_missed;
	uint64_t misses[16]; /* by enum match_miss */
	uint64_t commits, aborts, conflicts;
	uint64_t published, duplicates, evictions, copies_on_write;
	uint64_t publish_stops; /* sequences that publish no more: no node, or no room */
	uint64_t admission_waits;
	uint64_t capture_skips[8]; /* by enum capture_skip */
	uint64_t steps_ended;      /* by the daemon */
	/* pages between the device and KV-RAM */
	uint64_t spills, spills_failed; /* written into KV-RAM */
	uint64_t spills_kept; /* of them: wanted again meanwhile, so they stay on the device */
	uint64_t releases;    /* given up on the device without a write: a copy was below */
	uint64_t restores, restores_failed;
	uint64_t parked_pages;        /* pages that live sequences gave up for those above them */
	uint64_t returned_pages;      /* and got back */
	uint64_t lost_sequences;      /* that could not */
	uint64_t discarded_sequences; /* for one that ranks above, with overcommit */
	uint64_t discards;            /* left for nowhere, from either tier */
	uint64_t ram_displaced;       /* given up in KV-RAM for what ranks above */
	uint64_t ram_refused;         /* not taken into KV-RAM: nothing there ranks below */
	uint64_t ram_hits;            /* opens that chose a match in KV-RAM */
	uint64_t ram_hit_pages;       /* and the pages that they asked for from there */
	/* Of those refused: nothing could go, whatever its rank; their namespace is at its quota.
	 */
	uint64_t ram_refused_busy, ram_refused_quota;
};

struct pool;
struct reuse;
struct retain_counts;

/* What its order has learned: of pages, or of the states of a hybrid pool. NULL: lru. */
const struct reuse *pool_reuse(const struct pool *p);
const struct retain_counts *pool_order_counts(const struct pool *p);
/* How many that are gone are known; memory for them. */
uint64_t pool_ghosts(const struct pool *p, uint64_t *bytes);

#endif
