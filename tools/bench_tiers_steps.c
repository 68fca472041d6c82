/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_tiers_steps: what steps of one token take while a GiB of another session's pages comes up
 * and another one goes down, next to the same steps while nothing moves, in turn. Main thread;
 * sleeps between steps.
 *
 * Before a round prompts are written of which the first half ends in KV-RAM, the second half on the
 * device. One connection opens those of KV-RAM one after another, so that the others must leave; it
 * makes no steps meanwhile. Another one makes a step every 5 ms, in the same pool.
 *
 * The median is that of the steps from call to return, with a daemon that listens: an empty request
 * goes before each, and how long that takes is told beside. The 99th percentile is that of the
 * daemon's own histograms, a bucket for each power of two: where there are two cores only, a client
 * that has to wait also waits until the copying thread lets it run.
 */
#include "tools/bench_tiers.h"

#include <string.h>

#include "tools/bench_tokens.h"

#define DAEMON_SPIN_US 200
#define EVERY_NS       5000000ull
#define LOOK_NS        250000ull
#define PROMPTS        8 /* of a half */
#define PROMPT_BYTES   ((1ull << 30) / PROMPTS)
#define FIRST_MOST     (2 * TIER_PAGE_TOKENS)
#define FIRST_STRIDE   29
#define STEPS_MAX      4096 /* of a phase */
#define SERIAL         0x80000000u
#define MEDIAN_BAR     1.1
#define P99_BAR_US     200
#define BUCKETS        24

enum operation {
	BEGIN,
	COMMIT,
	OPERATIONS,
};

static const char *const operation_names[OPERATIONS] = {"begin", "commit"};
static const char *const histogram_names[OPERATIONS] = {"latency_step_begin",
							"latency_step_commit"};

struct histograms {
	uint64_t buckets[OPERATIONS][BUCKETS];
};

struct kind {                         /* of steps: while nothing moves, while pages move */
	struct bench_samples steps;   /* begin and commit, of a round */
	double p50[BENCH_ROUNDS_MAX]; /* of a round, ns */
	struct bench_samples all;     /* of all rounds */
	struct bench_samples heard;   /* how long until the daemon listened, before each */
	struct histograms service;    /* in the daemon */
};

struct mover { /* the session whose pages move */
	bool opening;
	uint32_t next; /* prompt */
	struct kvhost_prompt prompt;
	struct kvhost_sequence *seq;
	struct kvhost_open_result found;
};

struct steps_run {
	struct tiers t;
	const struct bench_options *o;
	struct kvhost *other;
	struct kvhost_pool *pool; /* the same, of the other connection */
	struct kvhost_sequence *seq;
	struct mover mover;
	struct kind kinds[2];
	uint32_t serial;                                     /* of the first prompt */
	uint32_t phases;                                     /* so far */
	double down[BENCH_ROUNDS_MAX], up[BENCH_ROUNDS_MAX]; /* GiB */
	double took[BENCH_ROUNDS_MAX];                       /* ms */
};

/* ---- the session whose pages move ---- */

static int write_prompts(struct steps_run *run, struct bench_reason *why)
{
	struct kvhost_sequence *seq = NULL;

	if (tiers_drop(&run->t, why))
		return -1;
	run->serial += 2 * PROMPTS;
	for (uint32_t i = 0; i < 2 * PROMPTS; i++) {
		struct kvhost_prompt p = tiers_prompt(&run->t, run->serial + i, run->t.plan.pages);

		if (tiers_write(&run->t, &p, &seq, why) || tiers_close(&run->t, &seq, why))
			return -1;
	}
	return 0;
}

static int open_next(struct steps_run *run, struct bench_reason *why)
{
	struct mover *m = &run->mover;
	kvhost_ticket ticket;
	int r;

	m->opening = m->next < PROMPTS;
	if (!m->opening)
		return 0;
	m->prompt = tiers_prompt(&run->t, run->serial + m->next++, run->t.plan.pages);
	r = kvhost_submit_open(run->t.pool, &m->prompt, &m->seq, &m->found, NULL, &ticket);
	return r ? bench_reason_call(why, run->t.host, "open", r) : 0;
}

static int move_on(struct steps_run *run, struct bench_reason *why)
{
	struct mover *m = &run->mover;
	struct kvhost_finished one;
	kvhost_ticket ticket;
	int n = kvhost_poll(run->t.host, &one, 1);

	if (n == 0)
		return 0;
	if (n < 0 || one.result)
		return bench_reason_call(why, run->t.host, "the session whose pages move",
					 n < 0 ? n : one.result);
	if (!m->seq)
		return open_next(run, why);
	if (m->found.cached_tokens != m->prompt.n_tokens - 1)
		return bench_reason_set(why, "%u tokens came back of %u", m->found.cached_tokens,
					m->prompt.n_tokens - 1);
	n = kvhost_submit_close(&m->seq, NULL, &ticket);
	m->seq = NULL;
	return n ? bench_reason_call(why, run->t.host, "close", n) : 0;
}

/* ---- the session that makes steps ---- */

static int one_step(struct steps_run *run, struct kind *k, uint32_t at, struct bench_reason *why)
{
	uint32_t id = bench_token(SERIAL + 1, at);
	struct kvhost_step step;
	uint64_t start = bench_ticks(), heard, end;
	int r = kvhost_ping(run->other); /* it may sleep, or be at something long */

	heard = bench_ticks();
	if (!r)
		r = kvhost_step_begin(run->seq, at + 1, 0, &step);
	if (!r)
		r = kvhost_step_commit(&step, 1, &id, 1, NULL, 0);
	end = bench_ticks();
	if (r)
		return bench_reason_call(why, run->other, "step", r);
	bench_samples_add(&k->heard, heard - start);
	bench_samples_add(&k->steps, end - heard);
	bench_samples_add(&k->all, end - heard);
	return 0;
}

static int open_stepper(struct steps_run *run, uint32_t first, struct bench_reason *why)
{
	uint32_t tokens[FIRST_MOST];
	struct kvhost_prompt p = {
	    .tokens = tokens, .n_tokens = first, .max_tokens = first + STEPS_MAX};
	struct kvhost_step step;
	int r;

	bench_tokens_fill_unique(tokens, SERIAL + run->phases++, first);
	r = kvhost_open(run->pool, &p, &run->seq, NULL);
	if (!r)
		r = kvhost_step_begin(run->seq, first, 0, &step);
	if (!r)
		r = kvhost_step_commit(&step, first, NULL, 0, NULL, 0);
	return r ? bench_reason_call(why, run->other, "open", r) : 0;
}

/* Adds what the daemon has counted since *before, or sets *before. */
static int look_at_service(struct steps_run *run, struct histograms *before, struct histograms *sum,
			   struct bench_reason *why)
{
	if (tiers_look(&run->t, why))
		return -1;
	for (uint32_t i = 0; i < kvhost_stats_count(run->t.stats); i++) {
		struct kvhost_stat stat;

		if (kvhost_stats_get(run->t.stats, i, &stat) || !stat.buckets)
			continue;
		for (int op = 0; op < OPERATIONS; op++) {
			if (strcmp(stat.name, histogram_names[op]) != 0)
				continue;
			for (uint32_t b = 0; b < stat.n_buckets && b < BUCKETS; b++) {
				if (sum)
					sum->buckets[op][b] +=
					    stat.buckets[b] - before->buckets[op][b];
				else
					before->buckets[op][b] = stat.buckets[b];
			}
		}
	}
	return 0;
}

/* Steps until all pages have moved, or as many as there were then. *steps: how many. */
static int run_phase(struct steps_run *run, struct kind *k, uint64_t round, bool moving,
		     uint32_t *steps, struct bench_reason *why)
{
	/* Every 64th step needs a page: sooner or later in the phase. */
	uint32_t first = TIER_PAGE_TOKENS + (uint32_t)(round * FIRST_STRIDE % TIER_PAGE_TOKENS);
	struct histograms before;
	uint64_t due_ns, now_ns;
	uint32_t n = 0;

	bench_samples_clear(&k->steps);
	run->mover = (struct mover){0};
	if (open_stepper(run, first, why) || look_at_service(run, &before, NULL, why) ||
	    (moving && open_next(run, why)))
		return -1;
	due_ns = bench_monotonic_ns() + EVERY_NS;
	while (n < STEPS_MAX && (moving ? run->mover.opening : n < *steps)) {
		now_ns = bench_monotonic_ns();
		if (now_ns >= due_ns) {
			if (one_step(run, k, first + n++, why))
				return -1;
			due_ns = now_ns + EVERY_NS;
			continue;
		}
		if (moving && move_on(run, why))
			return -1;
		bench_sleep_ns(due_ns - now_ns < LOOK_NS ? due_ns - now_ns : LOOK_NS);
	}
	*steps = n;
	bench_samples_sort(&k->steps);
	if (look_at_service(run, &before, &k->service, why))
		return -1;
	return kvhost_close(&run->seq) ? bench_reason_set(why, "close failed") : 0;
}

static int measure_round(struct steps_run *run, uint64_t round, struct bench_reason *why)
{
	const double gib = 1ull << 30;
	uint64_t down, up, start;
	uint32_t steps;

	if (write_prompts(run, why))
		return -1;
	down = run->t.now[TIER_BYTES_DOWN];
	up = run->t.now[TIER_BYTES_UP];
	start = bench_ticks();
	if (run_phase(run, &run->kinds[true], round, true, &steps, why))
		return -1;
	run->took[round] = bench_clock_ns(bench_ticks() - start) / 1e6;
	if (tiers_wait_quiet(&run->t, why))
		return -1;
	run->down[round] = (double)(run->t.now[TIER_BYTES_DOWN] - down) / gib;
	run->up[round] = (double)(run->t.now[TIER_BYTES_UP] - up) / gib;
	if (run_phase(run, &run->kinds[false], round, false, &steps, why) ||
	    tiers_wait_quiet(&run->t, why))
		return -1;
	for (int i = 0; i < 2; i++)
		run->kinds[i].p50[round] = bench_samples_ns(&run->kinds[i].steps, 500);
	return 0;
}

/* ---- records ---- */

/* The upper end of the bucket in which so many of a thousand are reached: buckets end at a power of
 * two each. */
static uint64_t service_us(const struct kind *k, enum operation op, uint64_t per_mille)
{
	uint64_t n = 0, sum = 0;

	for (int b = 0; b < BUCKETS; b++)
		n += k->service.buckets[op][b];
	for (int b = 0; b < BUCKETS; b++) {
		sum += k->service.buckets[op][b];
		if (sum * 1000 >= n * per_mille)
			return 1ull << b;
	}
	return 1ull << BUCKETS;
}

static void report_kind(struct kind *k, const char *name, uint64_t rounds, struct report *r)
{
	char text[48];

	bench_samples_sort(&k->all);
	bench_samples_sort(&k->heard);
	snprintf(text, sizeof(text), "%s_steps", name);
	report_count(r, text, "", k->all.n);
	snprintf(text, sizeof(text), "%s_p50", name);
	report_number(r, text, "us", bench_median(k->p50, rounds) / 1e3);
	snprintf(text, sizeof(text), "%s_p99", name);
	report_number(r, text, "us", bench_samples_ns(&k->all, 990) / 1e3);
	snprintf(text, sizeof(text), "%s_heard_after_p99", name);
	report_number(r, text, "us", bench_samples_ns(&k->heard, 990) / 1e3);
	for (int op = 0; op < OPERATIONS; op++) {
		snprintf(text, sizeof(text), "%s_%s_service_p50_under", name, operation_names[op]);
		report_count(r, text, "us", service_us(k, (enum operation)op, 500));
		snprintf(text, sizeof(text), "%s_%s_service_p99_under", name, operation_names[op]);
		report_count(r, text, "us", service_us(k, (enum operation)op, 990));
	}
}

static void report_steps(struct steps_run *run, struct report *r)
{
	struct kind *still = &run->kinds[false], *moving = &run->kinds[true];
	double ratio[BENCH_ROUNDS_MAX], added = 0;
	uint64_t n = run->o->rounds;

	for (uint64_t i = 0; i < n; i++)
		ratio[i] = moving->p50[i] / still->p50[i];
	for (int op = 0; op < OPERATIONS; op++)
		added += (double)service_us(moving, (enum operation)op, 990) -
			 (double)service_us(still, (enum operation)op, 990);
	report_case(r, "tiers.steps.p50");
	tiers_report(&run->t, r);
	report_count(r, "rounds", "", n);
	report_number(r, "down_a_round", "GiB", bench_median(run->down, n));
	report_number(r, "up_a_round", "GiB", bench_median(run->up, n));
	report_number(r, "took", "ms", bench_median(run->took, n));
	report_kind(still, "still", n, r);
	report_kind(moving, "moving", n, r);
	report_numbers(r, "ratios", "", ratio, n);
	report_bar(r, bench_median(ratio, n), MEDIAN_BAR);
	report_measured(r);

	report_case(r, "tiers.steps.p99");
	report_number(r, "added_at_most", "us", added);
	report_bar(r, added, P99_BAR_US);
	report_measured(r);
}

static int make_samples(struct kind *k, uint64_t rounds)
{
	return bench_samples_init(&k->steps, STEPS_MAX) ||
		       bench_samples_init(&k->all, rounds * STEPS_MAX) ||
		       bench_samples_init(&k->heard, rounds * STEPS_MAX)
		   ? -1
		   : 0;
}

static int set_up(struct steps_run *run, struct bench_reason *why)
{
	struct tier_plan plan = {.shape = {9, 2, 128, "bfloat16"}, .spin_us = DAEMON_SPIN_US};
	uint64_t page = tier_page_bytes(&plan.shape);

	plan.pages = PROMPT_BYTES / page;
	plan.kept = PROMPTS * plan.pages;
	plan.spare = plan.kept + (FIRST_MOST + STEPS_MAX) / TIER_PAGE_TOKENS + 2;
	plan.ram_pages = 2 * PROMPTS * (plan.pages + 1);
	plan.limit_bytes = page;
	if (tiers_start(&run->t, run->o, &plan, why) ||
	    bench_connect(&run->t.daemon, 0, 0, &run->other, why) ||
	    bench_attach(run->other, &run->t.options, false, &run->pool, why))
		return -1;
	for (int i = 0; i < 2; i++) {
		if (make_samples(&run->kinds[i], run->o->rounds))
			return bench_reason_set(why, "no memory");
	}
	return 0;
}

int tiers_steps(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	static struct steps_run run;
	int result;

	run = (struct steps_run){.o = o};
	result = set_up(&run, why);
	for (uint64_t i = 0; i < o->rounds && !result; i++)
		result = measure_round(&run, i, why);
	if (!result)
		report_steps(&run, r);
	for (int i = 0; i < 2; i++) {
		bench_samples_free(&run.kinds[i].steps);
		bench_samples_free(&run.kinds[i].heard);
		bench_samples_free(&run.kinds[i].all);
	}
	kvhost_disconnect(&run.other);
	tiers_stop(&run.t);
	return result;
}
