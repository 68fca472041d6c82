/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_OPTIMUM_H
#define KVHOST_TOOLS_BENCH_OPTIMUM_H

/*
 * bench_optimum: the hits of who knows the future: gives up first what is needed again last, and
 * of that the deepest. Main thread.
 */

#include "tools/bench_trace.h"

/* Blocks hit with room for so many blocks. 0, or -1 with why. */
int trace_optimum(const struct trace *t, uint64_t blocks, uint64_t *hits, struct bench_reason *why);

#endif
