/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_budget: samples the page gauges of one pool. Main thread.
 */
#include "tools/bench_budget.h"

#include <string.h>

enum gauge {
	GAUGE_INDEXED,
	GAUGE_LIVE,
	GAUGE_CAPACITY,
	GAUGE_LEAVING,
	GAUGES,
};

static const char *const names[GAUGES] = {
    "pool_pages_indexed",
    "pool_pages_live",
    "pool_pages_capacity",
    "ram_pages_leaving",
};

void budget_watch_init(struct budget_watch *w, const char *stats_path, const char *pool,
		       uint64_t budget_pages)
{
	*w = (struct budget_watch){.pool = pool, .budget_pages = budget_pages};
	if (kvhost_stats_open(stats_path, &w->stats))
		w->stats = NULL;
}

uint64_t budget_watch_value(struct budget_watch *w, const char *name)
{
	for (uint32_t i = 0; w->stats && i < kvhost_stats_count(w->stats); i++) {
		struct kvhost_stat stat;

		if (kvhost_stats_get(w->stats, i, &stat) == 0 && stat.label &&
		    strcmp(stat.label, w->pool) == 0 && strcmp(stat.name, name) == 0)
			return stat.value;
	}
	return 0;
}

void budget_watch_deinit(struct budget_watch *w)
{
	if (w->stats)
		kvhost_stats_close(&w->stats);
	w->stats = NULL;
}

void budget_watch_clear(struct budget_watch *w)
{
	w->samples = 0;
	w->most_indexed = 0;
	w->over_budget = 0;
	w->over_capacity = 0;
}

void budget_watch_look(struct budget_watch *w)
{
	uint64_t values[GAUGES] = {0};
	unsigned seen = 0;

	if (!w->stats || kvhost_stats_refresh(w->stats))
		return;
	for (uint32_t i = 0; i < kvhost_stats_count(w->stats); i++) {
		struct kvhost_stat stat;

		if (kvhost_stats_get(w->stats, i, &stat) || !stat.label ||
		    strcmp(stat.label, w->pool) != 0)
			continue;
		for (int g = 0; g < GAUGES; g++) {
			if (strcmp(stat.name, names[g]) == 0) {
				values[g] = stat.value;
				seen |= 1u << g;
			}
		}
	}
	if (seen != (1u << GAUGES) - 1)
		return;

	w->samples++;
	if (values[GAUGE_INDEXED] > w->most_indexed)
		w->most_indexed = values[GAUGE_INDEXED];
	w->over_budget +=
	    values[GAUGE_INDEXED] > w->budget_pages + values[GAUGE_LIVE] + values[GAUGE_LEAVING];
	w->over_capacity += values[GAUGE_INDEXED] > values[GAUGE_CAPACITY] ||
			    values[GAUGE_LIVE] > values[GAUGE_CAPACITY];
}
