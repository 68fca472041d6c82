/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_TRACE_H
#define KVHOST_TOOLS_BENCH_TRACE_H

/*
 * bench_trace: a trace of requests, JSON lines, plain or gzip.
 *
 * A line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]};
 * other keys are ignored. An id stands for a block of the prompt and everything before it.
 * Main thread; reading blocks.
 */

#include "tools/bench.h"

struct trace_request {
	uint64_t timestamp_ms;
	uint64_t first_id; /* in ids */
	uint32_t n_ids;    /* at least 1 */
	uint32_t input_tokens, output_tokens;
};

struct trace {
	struct trace_request *requests; /* in the order of the file; times never go back */
	uint32_t *ids;
	size_t n_requests, n_ids;
	size_t distinct;   /* different ids: n_ids - distinct can be hits with unlimited memory */
	uint32_t most_ids; /* of a request */
};

/* 0, or -1 with why ("FILE:LINE: ..."); trace_free in either case. */
int trace_load(struct trace *t, const char *path, struct bench_reason *why);
/* Sets `distinct` of a trace that was made. 0, or -1 with why. */
int trace_count_distinct(struct trace *t, struct bench_reason *why);
void trace_free(struct trace *t);

#endif
