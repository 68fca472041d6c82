/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_COUNTERS_H
#define KVHOST_COUNTERS_H

/*
 * counters: the values of the stats file by name, made from counters.def.
 *
 * Written by the core thread alone, with relaxed stores to the mapped values; nothing blocks.
 * Values that agree with each other (TOGETHER) are changed between begin and end, so that a
 * reader never sees half of a change; begin and end do not nest.
 */

#include "shm/payload.h"
#include "shm/statsfile.h"

enum counter {
#define COUNTER(name, kind, unit, group, text) COUNTER_##name,
#define HISTOGRAM(name, text)
#define POOL_COUNTER(name, kind, unit, group, text)
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
	COUNTER_COUNT
};

enum pool_counter {
#define COUNTER(name, kind, unit, group, text)
#define HISTOGRAM(name, text)
#define POOL_COUNTER(name, kind, unit, group, text) COUNTER_##name,
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
	POOL_COUNTER_COUNT
};

enum namespace_gauge {
#define COUNTER(name, kind, unit, group, text)
#define HISTOGRAM(name, text)
#define POOL_COUNTER(name, kind, unit, group, text)
#define NAMESPACE_GAUGE(name, unit, text) GAUGE_##name,
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
	NAMESPACE_GAUGE_COUNT
};

enum histogram {
#define COUNTER(name, kind, unit, group, text)
#define HISTOGRAM(name, text) HISTOGRAM_##name,
#define POOL_COUNTER(name, kind, unit, group, text)
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
	HISTOGRAM_COUNT
};

struct pool_counters { /* of one pool; owned by its struct counters */
	struct statsfile *file;
	uint32_t first; /* index of its first value; the others follow */
	uint32_t group;
	char pool[WIRE_NAME_MAX];
	struct pool_counters *next;
};

struct namespace_counters { /* of one namespace; owned by its struct counters */
	struct statsfile *file;
	uint32_t first;
	struct namespace_counters *next;
};

struct counters {
	struct statsfile *file; /* borrowed; outlives this */
	uint32_t first;
	uint32_t first_histogram;
	uint32_t group;
	struct pool_counters *pools;
	struct namespace_counters *namespaces;
};

/* What statsfile_create must have room for. */
struct statsfile_size counters_size(uint32_t max_pools, uint32_t max_sessions);

/* Adds all counters of the daemon to the file, at 0. 0 or -ENOSPC. */
int counters_init(struct counters *c, struct statsfile *file);
void counters_deinit(struct counters *c); /* the file keeps the values */

/*
 * The counters of a pool, at 0, or those that a pool of this name had before, as they are.
 * 0, -ENOSPC or -ENOMEM; *out belongs to c and lives as long.
 */
int counters_add_pool(struct counters *c, const char *pool, struct pool_counters **out);

/* The gauges of a namespace, at 0. 0, -ENOSPC or -ENOMEM; *out belongs to c and lives as long. */
int counters_add_namespace(struct counters *c, const char *name, struct namespace_counters **out);

void counters_begin(struct counters *c);
void counters_end(struct counters *c);
void pool_counters_begin(struct pool_counters *p);
void pool_counters_end(struct pool_counters *p);

/* One writer: a load and a store, no atomic addition. */
static inline void counters_raise(_Atomic uint64_t *value, uint64_t n)
{
	atomic_store_explicit(value, atomic_load_explicit(value, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static inline void counters_add(struct counters *c, enum counter name, uint64_t n)
{
	counters_raise(&c->file->values[c->first + name], n);
}

static inline void counters_set(struct counters *c, enum counter name, uint64_t value)
{
	atomic_store_explicit(&c->file->values[c->first + name], value, memory_order_relaxed);
}

static inline uint64_t counters_get(const struct counters *c, enum counter name)
{
	return atomic_load_explicit(&c->file->values[c->first + name], memory_order_relaxed);
}

static inline void pool_counters_add(struct pool_counters *p, enum pool_counter name, uint64_t n)
{
	counters_raise(&p->file->values[p->first + name], n);
}

static inline void pool_counters_set(struct pool_counters *p, enum pool_counter name,
				     uint64_t value)
{
	atomic_store_explicit(&p->file->values[p->first + name], value, memory_order_relaxed);
}

static inline uint64_t pool_counters_get(const struct pool_counters *p, enum pool_counter name)
{
	return atomic_load_explicit(&p->file->values[p->first + name], memory_order_relaxed);
}

void namespace_counters_set(struct namespace_counters *n, uint64_t pages, uint64_t retained_pages,
			    uint64_t kv_ram_bytes, uint64_t sequences, uint64_t sessions);

/* One sample. */
void counters_time(struct counters *c, enum histogram name, uint64_t ns);

/* The counter of sessions that ended for this reason. */
enum counter counter_of_bye(enum wire_bye reason);
/* The counter of opens that missed for this reason; not PAYLOAD_MISS_NONE. */
enum pool_counter counter_of_miss(enum payload_miss reason);

#endif
