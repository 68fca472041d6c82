/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_HOST_H
#define KVHOST_TOOLS_BENCH_HOST_H

/*
 * bench_host: the daemon that a mode measures: one of its own, or the one behind --socket.
 *
 * A daemon of its own runs on the daemon core, with its runtime and state directories in a new
 * directory under $TMPDIR, and ends with kvbench, also when that is killed. Main thread; blocks.
 */

#include <limits.h>
#include <sys/types.h>

#include "tools/bench.h"

struct bench_plan {       /* how the daemon is configured */
	uint64_t spin_us; /* how long it spins before it sleeps; 0: its default */
	bool has_pool;
	uint64_t max_sequence_tokens;
	uint64_t pages;
	uint64_t budget_pages; /* BENCH_NULL: what the pool leaves */
	bool map;
	const char *order;       /* retained_order; NULL: its default */
	bool admin;              /* its client may ask an operator's questions */
	bool apart;              /* its copying thread has a core of its own, or the client's */
	uint64_t lanes;          /* 0: the default */
	uint64_t retained_slots; /* of a hybrid pool, beside `lanes` */
	uint64_t ram_bytes;      /* KV-RAM; 0: none */
	uint64_t ram_page_bytes; /* of it, beside ram_bytes */
	uint64_t floor_tokens;   /* of it, beside ram_bytes */
};

struct bench_host {
	pid_t pid; /* of a daemon of its own, else 0 */
	char directory[PATH_MAX / 2];
	char socket[PATH_MAX];
	char stats[PATH_MAX];
	int exit_status; /* of a daemon that ended before it was ready, as of waitpid; else -1 */
};

/* 0 with a daemon that accepts connections, or -1 with why (its last words in it). */
int bench_host_start(struct bench_host *h, const struct bench_options *o,
		     const struct bench_plan *plan, struct bench_reason *why);
void bench_host_stop(struct bench_host *h); /* also after a failed start */

/* The daemon's process; of --socket: what the socket says. 0 or -1 with why. */
int bench_host_pid(const struct bench_host *h, int *out, struct bench_reason *why);
/* False once a daemon of its own has ended. */
bool bench_host_is_alive(const struct bench_host *h);
/* Wait until the daemon has stopped spinning (no CPU time used for a while), at most 5 s. */
int bench_host_wait_quiet(const struct bench_host *h, struct bench_reason *why);

/* spin_us, window_bytes: 0 for the default. */
int bench_connect(const struct bench_host *h, uint32_t spin_us, uint64_t window_bytes,
		  struct kvhost **out, struct bench_reason *why);
/* The pool of the options' geometry. */
int bench_attach(struct kvhost *host, const struct bench_options *o, bool map,
		 struct kvhost_pool **out, struct bench_reason *why);

#endif
