/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_BUDGET_H
#define KVHOST_TOOLS_BENCH_BUDGET_H

/*
 * bench_budget: looks into the daemon's stats file from time to time: a pool may never index more
 * pages than its budget and the pages in use together. Main thread; reads memory.
 */

#include "tools/bench.h"

struct budget_watch {
	struct kvhost_stats *stats; /* NULL: cannot be read */
	const char *pool;
	uint64_t budget_pages;
	uint64_t samples; /* in which all three counters were there */
	uint64_t most_indexed;
	uint64_t over_budget;   /* samples with more pages indexed than allowed */
	uint64_t over_capacity; /* samples with more pages live or indexed than there are */
};

void budget_watch_init(struct budget_watch *w, const char *stats_path, const char *pool,
		       uint64_t budget_pages);
void budget_watch_deinit(struct budget_watch *w);
void budget_watch_look(struct budget_watch *w);
/* A counter of the pool at the last look; 0 if there is none. */
uint64_t budget_watch_value(struct budget_watch *w, const char *name);
/* Start counting anew. */
void budget_watch_clear(struct budget_watch *w);

#endif
