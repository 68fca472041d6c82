/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_MADE_H
#define KVHOST_TOOLS_BENCH_MADE_H

/* bench_made: traces made up from a seed: zipf, scan, uniform, mix. Main thread. */

#include <stdio.h>

#include "tools/bench_trace.h"

/* n requests. 0, or -1 with why; trace_free in either case. */
int trace_make(struct trace *t, const char *kind, uint64_t seed, uint64_t n,
	       struct bench_reason *why);

#endif
