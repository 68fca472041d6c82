/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_REPLAY_H
#define KVHOST_TOOLS_BENCH_REPLAY_H

/* bench_replay: a replay for its sums alone. Main thread; sleeps when nothing can go on. */

#include "tools/bench_trace.h"

struct replay_sums {
	uint64_t blocks, blocks_hit;
};

/* One pass of a trace, which stays the caller's. 0, or -1 with why. */
int bench_replay_sums(const struct bench_options *o, const struct trace *trace,
		      struct replay_sums *out, struct bench_reason *why);

#endif
