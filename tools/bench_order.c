/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_order: hits of the learned order beside those of lru and of who knows the future, for
 * several sizes of the cache, on a trace and on made-up ones. Main thread; sleeps as replay does.
 *
 * Every figure is a replay with one client against a daemon of its own, so it is exact: the same
 * build gives the same hits on every machine.
 */
#include "tools/bench.h"

#include <string.h>

#include "tools/bench_made.h"
#include "tools/bench_optimum.h"
#include "tools/bench_replay.h"
#include "tools/bench_report.h"

#define SAME_FOR_PAGES .97 /* of a bar, with several pages a block */
#define NO_WORSE       .985

static const struct {
	uint64_t blocks;
	double least; /* learned over lru, on the trace of conversations that docs/reuse.md names */
} bars[] = {
    {1000, 1.6}, {2000, 1.85}, {5000, 1.45}, {10000, 1.07}, {20000, 1.03}, {50000, .995},
};

static const char *const kinds[] = {"zipf", "scan", "uniform", "mix"};

struct comparison {
	const struct bench_options *o;
	struct report *r;
	struct trace *trace;
	uint64_t blocks; /* room for so many */
	uint64_t pages_a_block;
	double least; /* 0: no bar */
};

static int count_hits(const struct comparison *c, const char *order, struct replay_sums *out,
		      struct bench_reason *why)
{
	struct bench_options o = *c->o;

	o.mode = BENCH_REPLAY;
	o.order = order;
	o.clients = 1;
	o.repeat = 1;
	o.speed = 0;
	o.extra_tokens = 1;
	o.pages = 0;
	o.payload = "none";
	o.tokens_per_block = c->pages_a_block * o.page_tokens;
	o.budget = c->blocks * c->pages_a_block;
	return bench_replay_sums(&o, c->trace, out, why);
}

static int compare(const struct comparison *c, struct bench_reason *why)
{
	struct replay_sums lru, learned;
	uint64_t optimum;
	double ratio;

	if (count_hits(c, "lru", &lru, why) || count_hits(c, "learned", &learned, why) ||
	    trace_optimum(c->trace, c->blocks, &optimum, why))
		return -1;
	ratio = lru.blocks_hit ? (double)learned.blocks_hit / (double)lru.blocks_hit : 1;
	report_count(c->r, "room", "blocks", c->blocks);
	report_count(c->r, "pages_a_block", "", c->pages_a_block);
	report_count(c->r, "blocks", "", learned.blocks);
	report_count(c->r, "lru", "blocks", lru.blocks_hit);
	report_count(c->r, "learned", "blocks", learned.blocks_hit);
	report_count(c->r, "optimum", "blocks", optimum);
	if (lru.blocks_hit > 0)
		report_number(c->r, "ratio", "", ratio);
	if (c->least > 0) {
		report_number(c->r, "at_least", "", c->least);
		report_bar(c->r, c->least / (ratio > 0 ? ratio : 1e-9), 1);
	}
	report_measured(c->r);
	return 0;
}

static double bar_of(uint64_t blocks, uint64_t pages_a_block)
{
	for (size_t i = 0; i < sizeof(bars) / sizeof(*bars); i++) {
		if (bars[i].blocks == blocks)
			return pages_a_block == 1 ? bars[i].least : bars[i].least * SAME_FOR_PAGES;
	}
	return 0;
}

static int compare_trace(struct comparison *c, struct bench_reason *why)
{
	const struct bench_options *o = c->o;
	struct trace t;
	int r = trace_load(&t, o->trace, why);

	c->trace = &t;
	for (uint32_t k = 0; k < o->pages_a_block.n; k++) {
		for (uint32_t i = 0; i < o->sizes.n && r == 0; i++) {
			c->blocks = o->sizes.values[i];
			c->pages_a_block = o->pages_a_block.values[k];
			c->least = bar_of(c->blocks, c->pages_a_block);
			report_case(c->r, "order.%llu.%llu", (unsigned long long)c->pages_a_block,
				    (unsigned long long)c->blocks);
			r = compare(c, why);
		}
	}
	trace_free(&t);
	return r;
}

/* Where habits are not those of conversations, learning must not cost. */
static int compare_made(struct comparison *c, const char *kind, struct bench_reason *why)
{
	const struct bench_options *o = c->o;
	struct trace t;
	int r = trace_make(&t, kind, o->seed, o->made_requests, why);

	c->trace = &t;
	c->pages_a_block = 1;
	c->least = NO_WORSE;
	for (uint32_t i = 0; i < o->made_sizes.n && r == 0; i++) {
		c->blocks = o->made_sizes.values[i];
		report_case(c->r, "order.%s.%llu", kind, (unsigned long long)c->blocks);
		r = compare(c, why);
	}
	trace_free(&t);
	return r;
}

int bench_order_run(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	struct comparison c = {.o = o, .r = r};
	int result;

	if (o->socket)
		return bench_reason_set(why, "--socket: order starts a daemon for every figure");
	result = compare_trace(&c, why);
	for (size_t i = 0; result == 0 && i < sizeof(kinds) / sizeof(*kinds); i++)
		result = compare_made(&c, kinds[i], why);
	return result;
}
