/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_COPY_H
#define KVHOST_TOOLS_BENCH_COPY_H

/*
 * bench_copy: the calibration of what moves memory: how fast one thread copies records past the
 * cache, from random places to random places of two areas on huge pages, all of it touched before.
 *
 * Which way is fastest depends on the processor, so several are tried every time and the fastest
 * counts. Main thread; copy_limit_init touches all of its memory.
 */

#include "tools/bench.h"

struct copy_limit {
	size_t record_bytes; /* whole cache lines */
	size_t n;            /* records */
	size_t area_bytes;
	char *from, *to;
	uint32_t *from_places, *to_places; /* [n] */
	bool huge;                         /* on huge pages that were set aside */
};

struct copy_time {
	double wall_ns, cpu_ns; /* of the fastest way, by either clock */
	const char *way;        /* the fastest by processor time */
};

/* `bytes` in all, at least one record. 0, or -1 with why; copy_limit_deinit in either case. What
 * is measured takes its huge pages first. */
int copy_limit_init(struct copy_limit *l, size_t record_bytes, size_t bytes,
		    struct bench_reason *why);
void copy_limit_deinit(struct copy_limit *l);
/* Copies all records in each way. */
struct copy_time copy_limit_run(struct copy_limit *l);
static inline double copy_limit_bytes(const struct copy_limit *l)
{
	return (double)l->record_bytes * (double)l->n;
}

#endif
