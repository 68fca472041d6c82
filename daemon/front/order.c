/* SPDX-License-Identifier: Apache-2.0 */
/* order: what a pool's order of giving up shows: counters, and JSON for operators. Core thread. */
#include "daemon/front/admin.h"

static const char *const part_names[REUSE_PARTS] = {
    [RETAIN_NEW] = "new",
    [RETAIN_REUSED] = "reused",
};

_Static_assert(COUNTER_pool_hits_turn3_reused - COUNTER_pool_hits_turn0_new == REUSE_CLASSES - 1,
	       "a counter of hits a class, in their order");
_Static_assert(COUNTER_pool_misses_turn3_reused - COUNTER_pool_misses_turn0_new ==
		   REUSE_CLASSES - 1,
	       "of misses");
_Static_assert(COUNTER_pool_evictions_turn3_reused - COUNTER_pool_evictions_turn0_new ==
		   REUSE_CLASSES - 1,
	       "of evictions");

static void set(struct core_pool *p, uint32_t counter, uint64_t value)
{
	pool_counters_set(p->counters, (enum pool_counter)counter, value);
}

struct order_sums order_sums(const struct core_pool *p)
{
	const struct retain_counts *counts = pool_order_counts(&p->pool);
	struct order_sums sums = p->past.order;

	if (!counts)
		return sums;
	for (uint32_t i = 0; i < REUSE_CLASSES; i++) {
		sums.counts.hits[i] += counts->hits[i];
		sums.counts.misses[i] += counts->misses[i];
		sums.counts.evictions[i] += counts->evictions[i];
	}
	sums.refreshes += pool_reuse(&p->pool)->refreshes;
	return sums;
}

void order_publish(struct core_pool *p)
{
	struct order_sums sums = order_sums(p);
	uint64_t ghosts_bytes;

	set(p, COUNTER_pool_ghosts, pool_ghosts(&p->pool, &ghosts_bytes));
	set(p, COUNTER_pool_ghosts_bytes, ghosts_bytes);
	if (p->pool.limits.pages)
		set(p, COUNTER_pool_shadow_hits, p->pool.shadow.hits);
	for (uint32_t i = 0; i < REUSE_CLASSES; i++) {
		set(p, COUNTER_pool_hits_turn0_new + i, sums.counts.hits[i]);
		set(p, COUNTER_pool_misses_turn0_new + i, sums.counts.misses[i]);
		set(p, COUNTER_pool_evictions_turn0_new + i, sums.counts.evictions[i]);
	}
	set(p, COUNTER_pool_order_refreshes, sums.refreshes);
}

static json_t *class_line(const struct core_pool *p, uint32_t class)
{
	const struct retain_counts *counts = pool_order_counts(&p->pool);

	return json_pack(
	    "{s:I, s:s, s:I, s:I, s:I}", "turn", (json_int_t)(class / REUSE_PARTS), "part",
	    part_names[class % REUSE_PARTS], "hits", (json_int_t)counts->hits[class], "misses",
	    (json_int_t)counts->misses[class], "evictions", (json_int_t)counts->evictions[class]);
}

static json_t *cell_line(const struct reuse *u, uint32_t cell)
{
	return json_pack("{s:I, s:s, s:I, s:I, s:f, s:f, s:f, s:I}", "turn",
			 (json_int_t)(cell / REUSE_BUCKETS / REUSE_PARTS), "part",
			 part_names[cell / REUSE_BUCKETS % REUSE_PARTS], "age_opens",
			 (json_int_t)reuse_edge(cell % REUSE_BUCKETS), "waiting",
			 (json_int_t)u->waiting[cell], "reused", u->reused[cell], "forgotten",
			 u->forgotten[cell], "index", u->index[cell], "rank",
			 (json_int_t)u->rank_of[cell]);
}

/* Cells that have seen a page, in the order in which they are given up. */
static json_t *table_of(const struct reuse *u)
{
	json_t *list = json_array();

	for (uint32_t rank = 0; rank < REUSE_CELLS; rank++) {
		uint32_t cell = u->cell_at[rank];

		if (u->waiting[cell] || u->reused[cell] > 0 || u->forgotten[cell] > 0)
			json_array_append_new(list, cell_line(u, cell));
	}
	return list;
}

json_t *order_describe(const struct core_pool *p, bool whole)
{
	const struct pool *x = &p->pool;
	const struct reuse *reuse = pool_reuse(x);
	uint64_t ghosts, ghosts_bytes;
	json_t *out, *classes;

	if (!x->limits.pages)
		return json_null();
	out = json_pack("{s:s, s:I, s:I, s:o}", "order", reuse ? "learned" : "lru", "hits",
			(json_int_t)(x->stats.reused_tokens / x->limits.page_tokens), "evictions",
			(json_int_t)x->stats.evictions, "shadow_lru_hits",
			x->shadow.pages ? json_integer((json_int_t)x->shadow.hits) : json_null());
	if (!out || !reuse || !whole)
		return out;
	classes = json_array();
	for (uint32_t i = 0; i < REUSE_CLASSES; i++)
		json_array_append_new(classes, class_line(p, i));
	ghosts = pool_ghosts(x, &ghosts_bytes);
	json_object_set_new(out, "ghosts", json_integer((json_int_t)ghosts));
	json_object_set_new(out, "ghosts_memory_bytes", json_integer((json_int_t)ghosts_bytes));
	json_object_set_new(out, "refreshes", json_integer((json_int_t)reuse->refreshes));
	json_object_set_new(out, "doubts", json_integer((json_int_t)reuse->doubts));
	json_object_set_new(out, "in_doubt", json_boolean(reuse_in_doubt(reuse)));
	json_object_set_new(out, "classes", classes);
	json_object_set_new(out, "table", table_of(reuse));
	return out;
}
