/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counters: the values of the stats file by name, made from counters.def.
 *
 * Owner: the core thread. Nothing blocks.
 */

#include "daemon/counters.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/config.h"

enum group {
	ALONE,
	TOGETHER,
};

struct row {
	const char *name;
	const char *unit;
	const char *text;
	enum statsfile_kind kind;
	enum group group;
};

static const struct row daemon_rows[] = {
#define COUNTER(name, kind, unit, group, text) {#name, unit, text, STATSFILE_##kind, group},
#define HISTOGRAM(name, text)
#define POOL_COUNTER(name, kind, unit, group, text)
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
};

static const struct row histogram_rows[] = {
#define COUNTER(name, kind, unit, group, text)
#define HISTOGRAM(name, text) {#name, "us", text, STATSFILE_HISTOGRAM, ALONE},
#define POOL_COUNTER(name, kind, unit, group, text)
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
};

static const struct row pool_rows[] = {
#define COUNTER(name, kind, unit, group, text)
#define HISTOGRAM(name, text)
#define POOL_COUNTER(name, kind, unit, group, text) {#name, unit, text, STATSFILE_##kind, group},
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
};

static const struct row namespace_rows[] = {
#define COUNTER(name, kind, unit, group, text)
#define HISTOGRAM(name, text)
#define POOL_COUNTER(name, kind, unit, group, text)
#define NAMESPACE_GAUGE(name, unit, text) {#name, unit, text, STATSFILE_GAUGE, ALONE},
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
};

/* Names, units and texts fit in the file with their zeros. */
#define NAME_BYTES sizeof(((struct statsfile_counter *)NULL)->name)
#define UNIT_BYTES sizeof(((struct statsfile_counter *)NULL)->unit)
#define HELP_BYTES sizeof(((struct statsfile_counter *)NULL)->help)
#define FITS(row, of, says)                                                                        \
	_Static_assert(sizeof(#row) <= NAME_BYTES && sizeof(of) <= UNIT_BYTES &&                   \
			   sizeof(says) <= HELP_BYTES,                                             \
		       #row);
#define COUNTER(name, kind, unit, group, text)      FITS(name, unit, text)
#define HISTOGRAM(name, text)                       FITS(name, "us", text)
#define POOL_COUNTER(name, kind, unit, group, text) FITS(name, unit, text)
#define NAMESPACE_GAUGE(name, unit, text)           FITS(name, unit, text)
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER

/* Rows of reasons stand in the order of the enums that name them. */
_Static_assert(COUNTER_sessions_closed_quota - COUNTER_sessions_closed_client ==
		   WIRE_BYE_COUNT - 1 - WIRE_BYE_CLIENT,
	       "a row for each reason of bye");
_Static_assert(COUNTER_pool_misses_gone - COUNTER_pool_misses_no_match ==
		   PAYLOAD_MISS_GONE - PAYLOAD_MISS_NO_MATCH,
	       "a row for each reason of a miss that the daemon has: it fetches nothing yet");

struct statsfile_size counters_size(uint32_t max_pools, uint32_t max_sessions)
{
	uint32_t namespaces = CONFIG_NAMESPACES_MAX * NAMESPACE_GAUGE_COUNT;

	must(max_pools < STATSFILE_GROUPS_MAX);
	return (struct statsfile_size){
	    .max_counters =
		COUNTER_COUNT + HISTOGRAM_COUNT + max_pools * POOL_COUNTER_COUNT + namespaces,
	    .max_values = COUNTER_COUNT + HISTOGRAM_COUNT * STATSFILE_HISTOGRAM_BUCKETS +
			  max_pools * POOL_COUNTER_COUNT + namespaces,
	    .max_sessions = max_sessions,
	};
}

/* Index of the first value of the first row, or -ENOSPC. Values of rows follow each other. */
static int add_rows(struct statsfile *file, const struct row *rows, size_t n, const char *label,
		    uint32_t group)
{
	int first = -1;

	for (size_t i = 0; i < n; i++) {
		struct statsfile_counter c = {
		    .kind = (uint32_t)rows[i].kind,
		    .group = rows[i].group == TOGETHER ? group : STATSFILE_GROUPS_MAX,
		    .values =
			rows[i].kind == STATSFILE_HISTOGRAM ? STATSFILE_HISTOGRAM_BUCKETS : 1};
		int index;

		snprintf(c.name, sizeof(c.name), "%s", rows[i].name);
		snprintf(c.label, sizeof(c.label), "%s", label);
		snprintf(c.unit, sizeof(c.unit), "%s", rows[i].unit);
		snprintf(c.help, sizeof(c.help), "%s", rows[i].text);
		index = statsfile_add(file, &c);
		if (index < 0)
			return index;
		if (i == 0)
			first = index;
		must((uint64_t)index == (uint64_t)first + i * c.values);
	}
	must(first >= 0);
	return first;
}

int counters_init(struct counters *c, struct statsfile *file)
{
	int group, first, first_histogram;

	*c = (struct counters){.file = file};
	group = statsfile_add_group(file);
	if (group < 0)
		return group;
	first = add_rows(file, daemon_rows, COUNTER_COUNT, "", (uint32_t)group);
	if (first < 0)
		return first;
	first_histogram = add_rows(file, histogram_rows, HISTOGRAM_COUNT, "", (uint32_t)group);
	if (first_histogram < 0)
		return first_histogram;
	c->group = (uint32_t)group;
	c->first = (uint32_t)first;
	c->first_histogram = (uint32_t)first_histogram;
	return 0;
}

void counters_deinit(struct counters *c)
{
	while (c->pools) {
		struct pool_counters *p = c->pools;

		c->pools = p->next;
		free(p);
	}
	while (c->namespaces) {
		struct namespace_counters *n = c->namespaces;

		c->namespaces = n->next;
		free(n);
	}
	c->file = NULL;
}

int counters_add_pool(struct counters *c, const char *pool, struct pool_counters **out)
{
	struct pool_counters *p;
	int group, first;

	must(pool[0] != 0);
	must(strlen(pool) < sizeof(p->pool));
	for (p = c->pools; p; p = p->next) {
		if (!strcmp(p->pool, pool)) {
			*out = p;
			return 0;
		}
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	group = statsfile_add_group(c->file);
	first = group < 0 ? group
			  : add_rows(c->file, pool_rows, POOL_COUNTER_COUNT, pool, (uint32_t)group);
	if (first < 0) {
		free(p);
		return first;
	}
	*p = (struct pool_counters){
	    .file = c->file, .first = (uint32_t)first, .group = (uint32_t)group, .next = c->pools};
	snprintf(p->pool, sizeof(p->pool), "%s", pool);
	c->pools = p;
	*out = p;
	return 0;
}

int counters_add_namespace(struct counters *c, const char *name, struct namespace_counters **out)
{
	struct namespace_counters *n = calloc(1, sizeof(*n));
	int first;

	if (!n)
		return -ENOMEM;
	first = add_rows(c->file, namespace_rows, NAMESPACE_GAUGE_COUNT, name, 0);
	if (first < 0) {
		free(n);
		return first;
	}
	*n = (struct namespace_counters){
	    .file = c->file, .first = (uint32_t)first, .next = c->namespaces};
	c->namespaces = n;
	*out = n;
	return 0;
}

void namespace_counters_set(struct namespace_counters *n, uint64_t pages, uint64_t retained_pages,
			    uint64_t kv_ram_bytes, uint64_t sequences, uint64_t sessions)
{
	const uint64_t values[NAMESPACE_GAUGE_COUNT] = {
	    [GAUGE_namespace_pages] = pages,
	    [GAUGE_namespace_retained_pages] = retained_pages,
	    [GAUGE_namespace_kv_ram_bytes] = kv_ram_bytes,
	    [GAUGE_namespace_sequences] = sequences,
	    [GAUGE_namespace_sessions] = sessions,
	};

	for (uint32_t i = 0; i < NAMESPACE_GAUGE_COUNT; i++)
		atomic_store_explicit(&n->file->values[n->first + i], values[i],
				      memory_order_relaxed);
}

void counters_begin(struct counters *c)
{
	statsfile_begin(c->file, c->group);
}

void counters_end(struct counters *c)
{
	statsfile_end(c->file, c->group);
}

void pool_counters_begin(struct pool_counters *p)
{
	statsfile_begin(p->file, p->group);
}

void pool_counters_end(struct pool_counters *p)
{
	statsfile_end(p->file, p->group);
}

void counters_time(struct counters *c, enum histogram name, uint64_t ns)
{
	uint64_t us = ns / 1000;
	uint32_t bucket = us == 0 ? 0 : 64 - (uint32_t)__builtin_clzll(us);

	must(name < HISTOGRAM_COUNT);
	if (bucket >= STATSFILE_HISTOGRAM_BUCKETS)
		bucket = STATSFILE_HISTOGRAM_BUCKETS - 1;
	counters_raise(&c->file->values[c->first_histogram +
					(uint32_t)name * STATSFILE_HISTOGRAM_BUCKETS + bucket],
		       1);
}

enum counter counter_of_bye(enum wire_bye reason)
{
	must(reason >= WIRE_BYE_CLIENT && reason < WIRE_BYE_COUNT);
	return COUNTER_sessions_closed_client + (reason - WIRE_BYE_CLIENT);
}

enum pool_counter counter_of_miss(enum payload_miss reason)
{
	must(reason > PAYLOAD_MISS_NONE && reason < PAYLOAD_MISS_COUNT);
	return COUNTER_pool_misses_no_match + (reason - PAYLOAD_MISS_NO_MATCH);
}
