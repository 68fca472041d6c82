/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_LINE_H
#define KVHOST_TOOLS_BENCH_LINE_H

/*
 * bench_line: what this machine can do at best between two processes on two cores: one cache line
 * there and back, and 64-byte entries through a bare ring there and back.
 *
 * The peer is a forked child on the daemon's core; it ends before a call returns. Main thread;
 * spins.
 */

#include "tools/bench.h"

enum bench_wait { /* how a side waits for its line: which is faster depends on the processor */
		  BENCH_WAIT_TIGHT,
		  BENCH_WAIT_PAUSE,
		  BENCH_WAITS,
};

const char *bench_wait_name(enum bench_wait wait);

/* Round trips of one value over two lines; sorted samples. 0, or -1 with why. */
int bench_line_measure(uint64_t round_trips, enum bench_wait wait, struct bench_cores cores,
		       struct bench_samples *out, struct bench_reason *why);
/* Round trips of one entry over two rings whose entries carry their sequence. */
int bench_raw_ring_measure(uint64_t round_trips, enum bench_wait wait, struct bench_cores cores,
			   struct bench_samples *out, struct bench_reason *why);

#endif
