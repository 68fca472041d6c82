/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ring: round trips of empty requests through libkvhost and the daemon, both spinning,
 * beside the same through a bare ring and over a bare line. Main thread; spins.
 *
 * The three are measured in turn in every round, and ratios are taken within a round: neighbours
 * make the machine faster and slower from second to second. While a calibration runs on the
 * daemon's core the daemon must be asleep, so it is given a spin time that ends soon after.
 */
#include "tools/bench.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_host.h"
#include "tools/bench_line.h"
#include "tools/bench_report.h"

#define DAEMON_SPIN_US 20000
#define CLIENT_SPIN_US 1000000
#define WARM           2000
#define DEPTH_MAX      64
#define RAW_BAR        1.3 /* of a bare ring, in round trips of a line */
#define PRODUCT_BAR    2.0 /* of an empty request, in round trips of a bare ring */

static const uint32_t depths[] = {1, 16, DEPTH_MAX};

#define DEPTHS (sizeof(depths) / sizeof(*depths))

struct round { /* nanoseconds; [0] p50, [1] p99, [2] p99.9 */
	double line[BENCH_WAITS][3];
	double raw[BENCH_WAITS][3];
	double product[3];
	double requests_per_s[DEPTHS];
};

struct ring_run {
	const struct bench_options *o;
	struct bench_host daemon;
	struct kvhost *host;
	struct kvhost **idle; /* [o->idle_sessions] */
	struct bench_samples samples;
	struct round rounds[BENCH_ROUNDS_MAX];
};

static void keep(const struct bench_samples *s, double *out)
{
	out[0] = bench_samples_ns(s, 500);
	out[1] = bench_samples_ns(s, 990);
	out[2] = bench_samples_ns(s, 999);
}

static int measure_calibrations(struct ring_run *run, struct round *round, struct bench_reason *why)
{
	struct bench_cores cores = bench_cores();

	if (bench_host_wait_quiet(&run->daemon, why))
		return -1;
	for (int wait = 0; wait < BENCH_WAITS; wait++) {
		if (bench_line_measure(run->o->requests, (enum bench_wait)wait, cores,
				       &run->samples, why))
			return -1;
		keep(&run->samples, round->line[wait]);
		if (bench_raw_ring_measure(run->o->requests, (enum bench_wait)wait, cores,
					   &run->samples, why))
			return -1;
		keep(&run->samples, round->raw[wait]);
	}
	return 0;
}

static int measure_pings(struct ring_run *run, struct round *round, struct bench_reason *why)
{
	uint64_t last, now;
	int r;

	bench_samples_clear(&run->samples);
	last = bench_ticks();
	for (uint64_t i = 0; i < run->o->requests + WARM; i++) {
		r = kvhost_ping(run->host);
		if (r)
			return bench_reason_call(why, run->host, "ping", r);
		now = bench_ticks();
		if (i >= WARM)
			bench_samples_add(&run->samples, now - last);
		last = now;
	}
	bench_samples_sort(&run->samples);
	keep(&run->samples, round->product);
	return 0;
}

/* Keeps `depth` requests under way until all are done. */
static int measure_depth(struct ring_run *run, uint32_t depth, double *per_s,
			 struct bench_reason *why)
{
	struct kvhost_finished finished[DEPTH_MAX];
	uint64_t sent = 0, done = 0, n = run->o->requests, start;
	kvhost_ticket ticket;
	int r;

	assert(depth <= DEPTH_MAX);
	start = bench_ticks();
	while (done < n) {
		while (sent < n && sent - done < depth) {
			r = kvhost_submit_ping(run->host, NULL, &ticket);
			if (r == KVHOST_EFULL)
				break;
			if (r)
				return bench_reason_call(why, run->host, "submit_ping", r);
			sent++;
		}
		r = kvhost_poll(run->host, finished, DEPTH_MAX);
		if (r < 0)
			return bench_reason_call(why, run->host, "poll", r);
		for (int i = 0; i < r; i++) {
			if (finished[i].result)
				return bench_reason_call(why, run->host, "ping",
							 finished[i].result);
		}
		done += (uint64_t)r;
	}
	*per_s = (double)n * 1e9 / bench_clock_ns(bench_ticks() - start);
	return 0;
}

static int connect_all(struct ring_run *run, struct bench_reason *why)
{
	if (bench_connect(&run->daemon, CLIENT_SPIN_US, 0, &run->host, why))
		return -1;
	run->idle = calloc(run->o->idle_sessions + 1, sizeof(*run->idle));
	if (!run->idle)
		return bench_reason_set(why, "no memory");
	for (uint64_t i = 0; i < run->o->idle_sessions; i++) {
		if (bench_connect(&run->daemon, 0, 0, &run->idle[i], why))
			return -1;
	}
	return 0;
}

static void disconnect_all(struct ring_run *run)
{
	for (uint64_t i = 0; run->idle && i < run->o->idle_sessions; i++)
		kvhost_disconnect(&run->idle[i]);
	free(run->idle);
	kvhost_disconnect(&run->host);
}

static int measure_rounds(struct ring_run *run, bool with_calibration, struct bench_reason *why)
{
	for (uint64_t i = 0; i < run->o->rounds; i++) {
		struct round *round = &run->rounds[i];

		if (with_calibration && measure_calibrations(run, round, why))
			return -1;
		if (measure_pings(run, round, why))
			return -1;
		for (size_t d = 0; d < DEPTHS; d++) {
			if (measure_depth(run, depths[d], &round->requests_per_s[d], why))
				return -1;
		}
	}
	return 0;
}

/* ---- records ---- */

/* Reads one number of every round; the place is given by its offset in struct round. */
static double median_of(const struct ring_run *run, size_t offset)
{
	double values[BENCH_ROUNDS_MAX];

	for (uint64_t i = 0; i < run->o->rounds; i++)
		memcpy(&values[i], (const char *)&run->rounds[i] + offset, sizeof(double));
	return bench_median(values, run->o->rounds);
}

static double report_ratios(const struct ring_run *run, struct report *r, const char *name,
			    size_t above, size_t below)
{
	double ratios[BENCH_ROUNDS_MAX], upper, lower;

	for (uint64_t i = 0; i < run->o->rounds; i++) {
		memcpy(&upper, (const char *)&run->rounds[i] + above, sizeof(double));
		memcpy(&lower, (const char *)&run->rounds[i] + below, sizeof(double));
		ratios[i] = upper / lower;
	}
	report_numbers(r, name, "", ratios, run->o->rounds);
	return bench_median(ratios, run->o->rounds);
}

static void report_times(const struct ring_run *run, struct report *r, size_t offset)
{
	report_number(r, "p50", "ns", median_of(run, offset));
	report_number(r, "p99", "ns", median_of(run, offset + sizeof(double)));
	report_number(r, "p99_9", "ns", median_of(run, offset + 2 * sizeof(double)));
}

static size_t line_offset(int wait)
{
	return offsetof(struct round, line) + (size_t)wait * 3 * sizeof(double);
}

static size_t raw_offset(int wait)
{
	return offsetof(struct round, raw) + (size_t)wait * 3 * sizeof(double);
}

static void report_calibrations(const struct ring_run *run, struct report *r, int best_line,
				int best_raw)
{
	for (int wait = 0; wait < BENCH_WAITS; wait++) {
		report_case(r, "ring.line.%s", bench_wait_name((enum bench_wait)wait));
		report_count(r, "round_trips", "", run->o->requests);
		report_times(run, r, line_offset(wait));
		report_measured(r);
	}
	for (int wait = 0; wait < BENCH_WAITS; wait++) {
		report_case(r, "ring.raw.%s", bench_wait_name((enum bench_wait)wait));
		report_count(r, "round_trips", "", run->o->requests);
		report_times(run, r, raw_offset(wait));
		if (wait == best_raw)
			report_bar(r,
				   report_ratios(run, r, "ratio_to_line", raw_offset(best_raw),
						 line_offset(best_line)),
				   RAW_BAR);
		report_measured(r);
	}
}

static void report_product(const struct ring_run *run, struct report *r, bool with_calibration,
			   int best_raw)
{
	size_t product = offsetof(struct round, product);

	report_case(r, "ring.ping");
	report_count(r, "requests", "", run->o->requests);
	report_count(r, "rounds", "", run->o->rounds);
	report_count(r, "idle_sessions", "", run->o->idle_sessions);
	report_times(run, r, product);
	if (with_calibration)
		report_bar(r, report_ratios(run, r, "ratio_to_raw", product, raw_offset(best_raw)),
			   PRODUCT_BAR);
	report_measured(r);

	for (size_t d = 0; d < DEPTHS; d++) {
		report_case(r, "ring.depth.%u", depths[d]);
		report_count(r, "requests", "", run->o->requests);
		report_number(
		    r, "requests", "per_s",
		    median_of(run, offsetof(struct round, requests_per_s) + d * sizeof(double)));
		report_measured(r);
	}
}

static int faster(const struct ring_run *run, size_t (*offset)(int wait))
{
	return median_of(run, offset(BENCH_WAIT_PAUSE)) < median_of(run, offset(BENCH_WAIT_TIGHT))
		   ? BENCH_WAIT_PAUSE
		   : BENCH_WAIT_TIGHT;
}

int bench_ring_run(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	static struct ring_run run;
	struct bench_plan plan = {.spin_us = DAEMON_SPIN_US};
	struct bench_cores cores = bench_cores();
	bool two = cores.client != cores.daemon;
	int best_raw = 0, result = -1;

	run = (struct ring_run){.o = o};
	bench_pin(cores.client);
	if (bench_samples_init(&run.samples, o->requests))
		return bench_reason_set(why, "no memory for %zu samples", (size_t)o->requests);
	if (bench_host_start(&run.daemon, o, &plan, why) == 0 && connect_all(&run, why) == 0)
		result = measure_rounds(&run, two, why);
	if (result == 0) {
		if (two) {
			best_raw = faster(&run, raw_offset);
			report_calibrations(&run, r, faster(&run, line_offset), best_raw);
		} else {
			report_case(r, "ring.line");
			report_unsupported(r, "needs two cores");
		}
		report_product(&run, r, two, best_raw);
	}
	disconnect_all(&run);
	bench_host_stop(&run.daemon);
	bench_samples_free(&run.samples);
	return result;
}
