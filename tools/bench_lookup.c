/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_lookup: how long lookups take that find all of a long prompt, and how that grows with
 * the index. Main thread; spins while it waits for answers.
 *
 * The index is filled with chains that are as long as the prompts, in equal parts, and prompts
 * take the chains of their length in a shuffled order, so that a chain that is looked up was last
 * touched as long ago as can be. Each round measures empty requests, lookups, and the same tokens
 * against bench_limit; ratios are taken within a round.
 */
#include "tools/bench.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_host.h"
#include "tools/bench_limit.h"
#include "tools/bench_report.h"
#include "tools/bench_tokens.h"

#define DAEMON_SPIN_US 200
#define CLIENT_SPIN_US 1000000
#define STEP_TOKENS    16384
#define WARM           200
#define WINDOW_SPARE   (16ull << 20)
#define LIMIT_BAR      2.0
#define BARS_FROM      1000000 /* resident pages */
#define NO_LENGTH      UINT32_MAX

struct chain {
	uint64_t first_page; /* counted over all chains */
	uint64_t pages;
	uint32_t length; /* index in o->prompts; NO_LENGTH: fills up what was left */
};

struct cost { /* medians over the rounds */
	double lookup_ns_a_page, limit_ns_a_page;
};

struct lookup_run {
	const struct bench_options *o;
	struct bench_host daemon;
	struct kvhost *host;
	struct kvhost_pool *pool;
	struct limit limit;
	struct chain *chains;
	size_t n_chains, chains_capacity;
	uint32_t *order; /* [n_chains]: chains of one length, shuffled */
	size_t n_order, next;
	uint32_t *prompt; /* window memory, longest prompt and one token */
	uint64_t most_tokens, serial;
	struct bench_samples samples;
	double null_ns[BENCH_ROUNDS_MAX], lookup_ns[BENCH_ROUNDS_MAX],
	    lookup_p99_ns[BENCH_ROUNDS_MAX], limit_ns[BENCH_ROUNDS_MAX], ratio[BENCH_ROUNDS_MAX];
	double fill_s;
};

static uint64_t longest(const struct bench_options *o)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < o->prompts.n; i++)
		most = o->prompts.values[i] > most ? o->prompts.values[i] : most;
	return most;
}

/* ---- chains ---- */

static int add_chain(struct lookup_run *run, uint64_t first_page, uint64_t pages, uint32_t length)
{
	if (run->n_chains == run->chains_capacity) {
		size_t capacity = run->chains_capacity ? 2 * run->chains_capacity : 1024;
		struct chain *chains = realloc(run->chains, capacity * sizeof(*chains));

		if (!chains)
			return -1;
		run->chains = chains;
		run->chains_capacity = capacity;
	}
	run->chains[run->n_chains++] = (struct chain){first_page, pages, length};
	return 0;
}

/* The length that has the fewest pages so far and still fits; the longer one of equals. */
static uint32_t choose_length(const struct bench_options *o, const uint64_t *used, uint64_t left)
{
	uint32_t best = NO_LENGTH;

	for (uint32_t i = 0; i < o->prompts.n; i++) {
		if (o->prompts.values[i] / o->page_tokens > left)
			continue;
		if (best == NO_LENGTH || used[i] < used[best] ||
		    (used[i] == used[best] && o->prompts.values[i] > o->prompts.values[best]))
			best = i;
	}
	return best;
}

static int lay_out_chains(struct lookup_run *run, uint64_t resident, struct bench_reason *why)
{
	uint64_t used[BENCH_LIST_MAX] = {0}, done = 0, pages;

	run->n_chains = 0;
	while (done < resident) {
		uint32_t length = choose_length(run->o, used, resident - done);

		pages = resident - done;
		if (length != NO_LENGTH) {
			pages = run->o->prompts.values[length] / run->o->page_tokens;
			used[length] += pages;
		}
		if (add_chain(run, done, pages, length))
			return bench_reason_set(why, "no memory");
		done += pages;
	}
	free(run->order);
	run->order = calloc(run->n_chains, sizeof(*run->order));
	return run->order ? 0 : bench_reason_set(why, "no memory");
}

static void shuffle_chains(struct lookup_run *run, uint32_t length)
{
	uint64_t state = 0x853c49e6748fea9bull + length;

	run->n_order = 0;
	run->next = 0;
	for (size_t i = 0; i < run->n_chains; i++) {
		if (run->chains[i].length == length)
			run->order[run->n_order++] = (uint32_t)i;
	}
	assert(run->n_order > 0);
	for (size_t i = run->n_order - 1; i > 0; i--) {
		size_t other = bench_random(&state) % (i + 1);
		uint32_t chain = run->order[i];

		run->order[i] = run->order[other];
		run->order[other] = chain;
	}
}

static uint32_t next_chain(struct lookup_run *run)
{
	uint32_t chain = run->order[run->next];

	run->next = (run->next + 1) % run->n_order;
	return chain;
}

/* ---- filling ---- */

static int fill_chain(struct lookup_run *run, uint32_t index, struct bench_reason *why)
{
	uint32_t page_tokens = (uint32_t)run->o->page_tokens;
	uint32_t n = (uint32_t)run->chains[index].pages * page_tokens, target;
	struct kvhost_prompt prompt = {.tokens = run->prompt, .n_tokens = n};
	struct kvhost_sequence *sequence;
	struct kvhost_open_result found;
	struct kvhost_step step;
	int r;

	bench_tokens_fill(run->prompt, index, n);
	for (uint64_t i = 0; i < run->chains[index].pages; i++)
		limit_set(&run->limit, run->chains[index].first_page + i,
			  run->prompt + i * page_tokens);

	r = kvhost_open(run->pool, &prompt, &sequence, &found);
	if (r)
		return bench_reason_call(why, run->host, "open while filling", r);
	for (uint32_t done = found.cached_tokens; done < n; done = target) {
		target = n - done > STEP_TOKENS ? done + STEP_TOKENS : n;
		r = kvhost_step_begin(sequence, target, 0, &step);
		if (r)
			return bench_reason_call(why, run->host, "step_begin while filling", r);
		r = kvhost_step_commit(&step, target - done, NULL, 0, NULL, 0);
		if (r)
			return bench_reason_call(why, run->host, "step_commit while filling", r);
	}
	r = kvhost_close(&sequence);
	return r ? bench_reason_call(why, run->host, "close while filling", r) : 0;
}

static int fill(struct lookup_run *run, struct bench_reason *why)
{
	uint64_t start_ns = bench_monotonic_ns();

	for (size_t i = 0; i < run->n_chains; i++) {
		if (fill_chain(run, (uint32_t)i, why))
			return -1;
	}
	run->fill_s = (double)(bench_monotonic_ns() - start_ns) / 1e9;
	return 0;
}

/* ---- measuring ---- */

static int measure_null(struct lookup_run *run, uint64_t n, double *out, struct bench_reason *why)
{
	bench_samples_clear(&run->samples);
	for (uint64_t i = 0; i < n + WARM; i++) {
		uint64_t start = bench_ticks();
		int r = kvhost_ping(run->host);

		if (r)
			return bench_reason_call(why, run->host, "ping", r);
		if (i >= WARM)
			bench_samples_add(&run->samples, bench_ticks() - start);
	}
	bench_samples_sort(&run->samples);
	*out = bench_samples_ns(&run->samples, 500);
	return 0;
}

static int measure_lookups(struct lookup_run *run, uint32_t n_tokens, uint64_t n, double *p50,
			   double *p99, struct bench_reason *why)
{
	struct kvhost_prompt prompt = {.tokens = run->prompt, .n_tokens = n_tokens + 1};
	struct kvhost_open_result found;

	bench_samples_clear(&run->samples);
	for (uint64_t i = 0; i < n; i++) {
		uint32_t chain = next_chain(run);
		uint64_t start;
		int r;

		bench_tokens_fill(run->prompt, chain, n_tokens);
		bench_tokens_fill_unique(run->prompt + n_tokens, run->serial++, 1);
		/* It may have fallen asleep while the prompt was made; waking it is not a lookup.
		 */
		r = kvhost_ping(run->host);
		if (r)
			return bench_reason_call(why, run->host, "ping", r);
		start = bench_ticks();
		r = kvhost_lookup(run->pool, &prompt, &found);
		bench_samples_add(&run->samples, bench_ticks() - start);
		if (r)
			return bench_reason_call(why, run->host, "lookup", r);
		if (found.cached_tokens != n_tokens)
			return bench_reason_set(why,
						"a lookup of chain %u found %u tokens of %u that "
						"were committed (miss reason %u at token %u)",
						chain, found.cached_tokens, n_tokens, found.miss,
						found.miss_tokens);
	}
	bench_samples_sort(&run->samples);
	*p50 = bench_samples_ns(&run->samples, 500);
	*p99 = bench_samples_ns(&run->samples, 990);
	return 0;
}

static int measure_limit(struct lookup_run *run, uint32_t n_tokens, uint64_t n, double *out,
			 struct bench_reason *why)
{
	uint64_t pages = n_tokens / run->o->page_tokens;

	bench_samples_clear(&run->samples);
	for (uint64_t i = 0; i < n; i++) {
		uint32_t chain = next_chain(run);
		uint64_t start, equal;

		bench_tokens_fill(run->prompt, chain, n_tokens);
		start = bench_ticks();
		equal =
		    limit_look_up(&run->limit, run->chains[chain].first_page, run->prompt, pages);
		bench_samples_add(&run->samples, bench_ticks() - start);
		if (equal != pages)
			return bench_reason_set(why, "the calibration compared wrongly");
	}
	bench_samples_sort(&run->samples);
	*out = bench_samples_ns(&run->samples, 500);
	return 0;
}

static int measure_length(struct lookup_run *run, uint32_t length, struct bench_reason *why)
{
	uint32_t n_tokens = (uint32_t)run->o->prompts.values[length];
	uint64_t n = (run->o->lookups + run->o->rounds - 1) / run->o->rounds;

	shuffle_chains(run, length);
	for (uint64_t i = 0; i < run->o->rounds; i++) {
		if (measure_limit(run, n_tokens, n, &run->limit_ns[i], why) ||
		    measure_null(run, n, &run->null_ns[i], why) ||
		    measure_lookups(run, n_tokens, n, &run->lookup_ns[i], &run->lookup_p99_ns[i],
				    why))
			return -1;
		run->ratio[i] = (run->lookup_ns[i] - run->null_ns[i]) / run->limit_ns[i];
	}
	return 0;
}

static void report_length(const struct lookup_run *run, uint64_t resident, uint32_t length,
			  struct cost *cost, struct report *r)
{
	uint64_t n_tokens = run->o->prompts.values[length], rounds = run->o->rounds;
	double pages = (double)(n_tokens / run->o->page_tokens);
	double null_ns = bench_median(run->null_ns, rounds);
	double lookup_ns = bench_median(run->lookup_ns, rounds);
	double limit_ns = bench_median(run->limit_ns, rounds);

	cost->lookup_ns_a_page = (lookup_ns - null_ns) / pages;
	cost->limit_ns_a_page = limit_ns / pages;

	report_case(r, "lookup.%" PRIu64 ".%" PRIu64, resident, n_tokens);
	report_count(r, "resident", "pages", resident);
	report_count(r, "prompt", "tokens", n_tokens);
	report_count(r, "chains", "", run->n_order);
	report_count(r, "lookups", "", run->o->lookups);
	report_number(r, "null_p50", "us", null_ns / 1e3);
	report_number(r, "p50", "us", lookup_ns / 1e3);
	report_number(r, "p99", "us", bench_median(run->lookup_p99_ns, rounds) / 1e3);
	report_number(r, "calibration_p50", "us", limit_ns / 1e3);
	report_number(r, "a_page", "ns", cost->lookup_ns_a_page);
	report_number(r, "calibration_a_page", "ns", cost->limit_ns_a_page);
	report_numbers(r, "ratio_to_calibration", "", run->ratio, rounds);
	if (resident >= BARS_FROM)
		report_bar(r, bench_median(run->ratio, rounds), LIMIT_BAR);
	report_measured(r);
}

/* A page may cost no more in a large index than in a small one, but for what memory costs. */
static void report_growth(const struct bench_options *o,
			  struct cost costs[BENCH_LIST_MAX][BENCH_LIST_MAX], struct report *r)
{
	uint32_t least = 0, most = 0;

	for (uint32_t i = 1; i < o->resident.n; i++) {
		if (o->resident.values[i] < o->resident.values[least])
			least = i;
		if (o->resident.values[i] > o->resident.values[most])
			most = i;
	}
	if (o->resident.values[most] < BARS_FROM || least == most)
		return;
	for (uint32_t i = 0; i < o->prompts.n; i++) {
		double small = 3 * costs[least][i].lookup_ns_a_page;
		double limit = 2 * costs[most][i].limit_ns_a_page;

		if (costs[least][i].lookup_ns_a_page <= 0 || costs[most][i].lookup_ns_a_page <= 0)
			continue; /* one of them was not supported */
		report_case(r, "lookup.growth.%" PRIu64, o->prompts.values[i]);
		report_count(r, "fewest", "pages", o->resident.values[least]);
		report_count(r, "most", "pages", o->resident.values[most]);
		report_number(r, "a_page_of_fewest", "ns", costs[least][i].lookup_ns_a_page);
		report_number(r, "a_page_of_most", "ns", costs[most][i].lookup_ns_a_page);
		report_number(r, "allowed_a_page", "ns", small > limit ? small : limit);
		report_bar(r, costs[most][i].lookup_ns_a_page / (small > limit ? small : limit), 1);
		report_measured(r);
	}
}

/* ---- one size of the index ---- */

static void plan_pool(const struct bench_options *o, uint64_t resident, struct bench_plan *plan)
{
	uint64_t reserve = longest(o) / o->page_tokens + 1;

	*plan = (struct bench_plan){.spin_us = DAEMON_SPIN_US,
				    .has_pool = true,
				    .max_sequence_tokens = reserve * o->page_tokens,
				    .pages = o->pages ? o->pages : resident + 2 * reserve,
				    .budget_pages = o->budget,
				    .order = "lru"};
}

static int set_up(struct lookup_run *run, uint64_t resident, struct bench_reason *why)
{
	uint64_t bytes = (run->most_tokens + 1) * sizeof(*run->prompt);
	struct bench_plan plan;

	plan_pool(run->o, resident, &plan);
	if (bench_host_start(&run->daemon, run->o, &plan, why) ||
	    bench_connect(&run->daemon, CLIENT_SPIN_US, 4 * bytes + WINDOW_SPARE, &run->host,
			  why) ||
	    bench_attach(run->host, run->o, false, &run->pool, why))
		return -1;
	run->prompt = kvhost_window_take(run->host, bytes);
	if (!run->prompt)
		return bench_reason_set(why, "the window has no %" PRIu64 " bytes for a prompt",
					bytes);
	return limit_init(&run->limit, resident, run->most_tokens / run->o->page_tokens,
			  (uint32_t)run->o->page_tokens, why);
}

static void tear_down(struct lookup_run *run)
{
	kvhost_disconnect(&run->host); /* and with it the pool and the window */
	run->pool = NULL;
	run->prompt = NULL;
	bench_host_stop(&run->daemon);
	limit_deinit(&run->limit);
}

static int run_resident(struct lookup_run *run, uint64_t resident, struct cost *costs,
			struct report *r, struct bench_reason *why)
{
	const struct kvhost_pool_info *info;

	if (set_up(run, resident, why))
		return -1;
	info = kvhost_pool_describe(run->pool);
	if (info->prefix_budget_pages < resident) {
		report_case(r, "lookup.%" PRIu64, resident);
		report_unsupported(r, "the pool keeps %" PRIu64 " pages for reuse",
				   info->prefix_budget_pages);
		return 0;
	}
	if (lay_out_chains(run, resident, why) || fill(run, why))
		return -1;

	report_case(r, "lookup.%" PRIu64 ".fill", resident);
	report_count(r, "chains", "", run->n_chains);
	report_number(r, "time", "s", run->fill_s);
	report_number(r, "pages", "per_s", (double)resident / run->fill_s);
	report_measured(r);
	for (uint32_t i = 0; i < run->o->prompts.n; i++) {
		if (measure_length(run, i, why))
			return -1;
		report_length(run, resident, i, &costs[i], r);
	}
	return 0;
}

int bench_lookup_run(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	static struct cost costs[BENCH_LIST_MAX][BENCH_LIST_MAX];
	static struct lookup_run run;
	int result = 0;

	run = (struct lookup_run){.o = o, .most_tokens = longest(o)};
	if (o->socket && o->resident.n > 1)
		return bench_reason_set(why, "--resident: with --socket only one size at a time");
	bench_pin(bench_cores().client);
	if (bench_samples_init(&run.samples, o->lookups + 1))
		return bench_reason_set(why, "no memory");
	for (uint32_t i = 0; i < o->resident.n && result == 0; i++) {
		result = run_resident(&run, o->resident.values[i], costs[i], r, why);
		tear_down(&run);
	}
	if (result == 0)
		report_growth(o, costs, r);
	bench_samples_free(&run.samples);
	free(run.chains);
	free(run.order);
	return result;
}
