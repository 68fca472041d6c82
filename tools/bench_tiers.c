/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_tiers: how fast pages go between the device and KV-RAM, next to the fastest copy of the
 * same records by one thread in the same run. Main thread; blocks.
 *
 * Down: a sequence of new pages is closed, so that all of them leave, and its prompt is opened
 * again at once, so that they stay on the device as well: nothing but the copies is timed. (What
 * has left before the open comes is freed and zeroed, which takes the same thread: the record says
 * how many pages stayed.) Up: the prompt is opened when nothing of it is left on the device.
 *
 * By the clock on the wall: from the call to its answer, or until the daemon says in its counters,
 * every millisecond, that all is there. By the processor's: what the copying thread used, against
 * what this thread used for the calibration.
 */
#include "tools/bench_tiers.h"

#include <inttypes.h>
#include <string.h>

#define MOVE_BAR        0.85 /* of the copy's bandwidth */
#define RESTORE_BAR     0.8
#define SIZES_BAR       0.5 /* slowest of all sizes next to the fastest */
#define LOOK_FROM       0.9 /* of the time that the calibration takes */
#define LIMIT_BYTES     (512ull << 20)
#define PAGES_MAX       32768
#define SIZE_ROUNDS_MAX 3
#define SHAPE_DIM       32

enum direction {
	DOWN,
	UP,
	DIRECTIONS,
};

static const char *const direction_names[DIRECTIONS] = {"down", "up"};

struct moves { /* of all rounds, GB/s */
	double copy_wall[BENCH_ROUNDS_MAX], copy_cpu[BENCH_ROUNDS_MAX];
	double wall[DIRECTIONS][BENCH_ROUNDS_MAX], busy[DIRECTIONS][BENCH_ROUNDS_MAX];
	double kept[BENCH_ROUNDS_MAX];    /* percent of the pages that went down */
	double restore[BENCH_ROUNDS_MAX]; /* ms */
	uint64_t rounds, bytes;
	const char *way;
};

static uint64_t limit_bytes(const struct bench_options *o)
{
	return o->moved_bytes < LIMIT_BYTES ? o->moved_bytes : LIMIT_BYTES;
}

static void calibrate(struct tiers *t, struct moves *m, uint64_t round)
{
	struct copy_time time = copy_limit_run(&t->limit);

	m->copy_wall[round] = copy_limit_bytes(&t->limit) / time.wall_ns;
	m->copy_cpu[round] = copy_limit_bytes(&t->limit) / time.cpu_ns;
	m->way = time.way;
}

static void keep_rates(const struct tiers *t, struct moves *m, uint64_t round, enum direction d,
		       const uint64_t *before, double wall_ns)
{
	uint64_t bytes = t->now[TIER_BYTES_DOWN + d] - before[TIER_BYTES_DOWN + d];
	uint64_t busy_ns = t->now[TIER_BUSY_DOWN + d] - before[TIER_BUSY_DOWN + d];

	m->wall[d][round] = (double)bytes / wall_ns;
	m->busy[d][round] = (double)bytes / (double)busy_ns;
}

/* New pages go down. `stay`: they stay on the device as well. */
static int measure_down(struct tiers *t, struct moves *m, uint64_t round,
			const struct kvhost_prompt *p, bool stay, struct bench_reason *why)
{
	/* Those that the pool keeps for reuse do not leave. */
	uint64_t bytes = (t->plan.pages - t->plan.kept) * t->page_bytes;
	uint64_t before[TIER_COUNTERS], start;
	struct kvhost_sequence *seq = NULL;
	double wall_ns;
	int r;

	if (tiers_write(t, p, &seq, why) || tiers_wait_quiet(t, why))
		return -1;
	memcpy(before, t->now, sizeof(before));
	start = bench_ticks();
	r = kvhost_close(&seq);
	if (!r && stay)
		r = kvhost_open(t->pool, p, &seq, NULL);
	if (r)
		return bench_reason_call(why, t->host, "close and open", r);
	/* To look at counters takes time of this core, which the copying thread may be on. */
	bench_sleep_ns((uint64_t)(LOOK_FROM * (double)bytes / m->copy_wall[round]));
	if (tiers_wait(t, TIER_BYTES_DOWN, before[TIER_BYTES_DOWN] + bytes, why))
		return -1;
	wall_ns = bench_clock_ns(bench_ticks() - start);
	keep_rates(t, m, round, DOWN, before, wall_ns);
	m->kept[round] = 100.0 * (double)(t->now[TIER_SPILLS_KEPT] - before[TIER_SPILLS_KEPT]) /
			 (double)(t->now[TIER_SPILLS] - before[TIER_SPILLS]);
	return tiers_close(t, &seq, why);
}

static int measure_up(struct tiers *t, struct moves *m, uint64_t round,
		      const struct kvhost_prompt *p, struct bench_reason *why)
{
	uint64_t before[TIER_COUNTERS], ticks;

	memcpy(before, t->now, sizeof(before));
	if (tiers_restore(t, p, &ticks, why))
		return -1;
	keep_rates(t, m, round, UP, before, bench_clock_ns(ticks));
	m->restore[round] = bench_clock_ns(ticks) / 1e6;
	m->bytes = t->now[TIER_BYTES_UP] - before[TIER_BYTES_UP];
	return 0;
}

/* New pages down and up again, in every round. */
static int measure_moves(struct tiers *t, uint64_t rounds, bool stay, struct moves *m,
			 struct bench_reason *why)
{
	m->rounds = rounds;
	for (uint64_t i = 0; i < rounds; i++) {
		struct kvhost_prompt p = tiers_prompt(t, (uint32_t)i, t->plan.pages);

		calibrate(t, m, i);
		if (measure_down(t, m, i, &p, stay, why) || measure_up(t, m, i, &p, why) ||
		    tiers_drop(t, why))
			return -1;
	}
	return 0;
}

/* ---- records ---- */

static double median_ratio(const double *above, const double *below, uint64_t n, double *out)
{
	for (uint64_t i = 0; i < n; i++)
		out[i] = above[i] / below[i];
	return bench_median(out, n);
}

static void report_rates(const struct moves *m, enum direction d, struct report *r)
{
	report_count(r, "moved_a_round", "bytes", m->bytes);
	report_count(r, "rounds", "", m->rounds);
	report_text(r, "fastest_copy", m->way);
	report_number(r, "copy", "GB/s", bench_median(m->copy_wall, m->rounds));
	report_number(r, direction_names[d], "GB/s", bench_median(m->wall[d], m->rounds));
	report_number(r, "copy_by_cpu", "GB/s", bench_median(m->copy_cpu, m->rounds));
	report_number(r, "device_by_cpu", "GB/s", bench_median(m->busy[d], m->rounds));
	if (d == DOWN)
		report_number(r, "pages_that_stayed", "percent", bench_median(m->kept, m->rounds));
}

static void report_ratios(const struct moves *m, enum direction d, double bar, struct report *r)
{
	double wall[BENCH_ROUNDS_MAX], busy[BENCH_ROUNDS_MAX], median;

	median_ratio(m->busy[d], m->copy_cpu, m->rounds, busy);
	median = median_ratio(m->wall[d], m->copy_wall, m->rounds, wall);
	report_numbers(r, "ratios_by_cpu", "", busy, m->rounds);
	report_numbers(r, "ratios", "", wall, m->rounds);
	report_bar_least(r, median, bar);
}

static int run_bandwidth(const struct bench_options *o, const struct tier_shape *shape,
			 struct report *r, struct bench_reason *why)
{
	static struct tiers t;
	static struct moves m;
	uint64_t bytes = tier_page_bytes(shape);
	uint64_t pages = o->moved_bytes / bytes + 1;
	struct tier_plan plan = {.shape = *shape,
				 .pages = pages,
				 .spare = 2,
				 .kept = 1,
				 .ram_pages = pages + pages / 8,
				 .limit_bytes = limit_bytes(o)};
	int result = tiers_start(&t, o, &plan, why);

	if (!result)
		result = measure_moves(&t, o->rounds, true, &m, why);
	for (int d = 0; !result && d < DIRECTIONS; d++) {
		report_case(r, "tiers.%s.%" PRIu64, direction_names[d], t.page_bytes);
		tiers_report(&t, r);
		report_rates(&m, (enum direction)d, r);
		report_ratios(&m, (enum direction)d, MOVE_BAR, r);
		report_measured(r);
	}
	tiers_stop(&t);
	return result;
}

static int run_restore(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	static struct tiers t;
	static struct moves m;
	uint64_t pages = o->restore_tokens / TIER_PAGE_TOKENS;
	struct tier_plan plan = {.shape = {16, 4, 256, "bfloat16"},
				 .pages = pages,
				 .spare = 2,
				 .kept = 1,
				 .ram_pages = pages + 1,
				 .limit_bytes = limit_bytes(o)};
	struct kvhost_sequence *seq = NULL;
	struct kvhost_prompt p;
	int result = tiers_start(&t, o, &plan, why);

	if (!result) {
		p = tiers_prompt(&t, 1, pages);
		result = tiers_write(&t, &p, &seq, why);
	}
	if (!result)
		result = tiers_close(&t, &seq, why);
	m.rounds = o->rounds;
	for (uint64_t i = 0; !result && i < o->rounds; i++) {
		calibrate(&t, &m, i);
		result = measure_up(&t, &m, i, &p, why);
	}
	if (!result) {
		report_case(r, "tiers.restore");
		tiers_report(&t, r);
		report_count(r, "restored", "tokens", pages * TIER_PAGE_TOKENS);
		report_rates(&m, UP, r);
		report_number(r, "restore_time", "ms", bench_median(m.restore, m.rounds));
		report_ratios(&m, UP, RESTORE_BAR, r);
		report_measured(r);
	}
	tiers_stop(&t);
	return result;
}

/* ---- sizes ---- */

struct sizes { /* GB/s of each, medians */
	double wall[DIRECTIONS][BENCH_LIST_MAX], busy[DIRECTIONS][BENCH_LIST_MAX];
};

static int run_size(const struct bench_options *o, uint32_t index, struct sizes *out,
		    struct report *r, struct bench_reason *why)
{
	static struct tiers t;
	static struct moves m;
	uint64_t bytes = o->page_sizes.values[index], pages = o->moved_bytes / bytes + 1;
	uint64_t rounds = o->rounds < SIZE_ROUNDS_MAX ? o->rounds : SIZE_ROUNDS_MAX;
	struct tier_plan plan = {
	    .shape = {1, bytes / (SHAPE_DIM * TIER_PAGE_TOKENS * 4), SHAPE_DIM, "bfloat16"},
	    .spare = 2,
	    .kept = 1};
	int result;

	plan.pages = pages < PAGES_MAX ? pages : PAGES_MAX;
	plan.ram_pages = plan.pages + plan.pages / 8;
	plan.limit_bytes = limit_bytes(o);
	result = tiers_start(&t, o, &plan, why);
	if (!result)
		result = measure_moves(&t, rounds, false, &m, why);
	if (!result) {
		report_case(r, "tiers.size.%" PRIu64, bytes);
		report_count(r, "moved_a_round", "bytes", m.bytes);
		report_count(r, "rounds", "", rounds);
		report_number(r, "copy", "GB/s", bench_median(m.copy_wall, rounds));
		report_number(r, "copy_by_cpu", "GB/s", bench_median(m.copy_cpu, rounds));
	}
	for (int d = 0; !result && d < DIRECTIONS; d++) {
		char name[32];

		out->wall[d][index] = bench_median(m.wall[d], rounds);
		out->busy[d][index] = bench_median(m.busy[d], rounds);
		report_number(r, direction_names[d], "GB/s", out->wall[d][index]);
		snprintf(name, sizeof(name), "device_%s_by_cpu", direction_names[d]);
		report_number(r, name, "GB/s", out->busy[d][index]);
	}
	if (!result)
		report_measured(r);
	tiers_stop(&t);
	return result;
}

static double slowest_of_fastest(const double *values, uint32_t n)
{
	double least = values[0], most = values[0];

	for (uint32_t i = 1; i < n; i++) {
		least = values[i] < least ? values[i] : least;
		most = values[i] > most ? values[i] : most;
	}
	return least / most;
}

static int run_sizes(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	static struct sizes sizes;
	uint32_t n = o->page_sizes.n;

	for (uint32_t i = 0; i < n; i++) {
		if (run_size(o, i, &sizes, r, why))
			return -1;
	}
	for (int d = 0; d < DIRECTIONS; d++) {
		report_case(r, "tiers.sizes.%s", direction_names[d]);
		report_numbers(r, direction_names[d], "GB/s", sizes.wall[d], n);
		report_numbers(r, "device_by_cpu", "GB/s", sizes.busy[d], n);
		report_number(r, "slowest_of_fastest_by_cpu", "",
			      slowest_of_fastest(sizes.busy[d], n));
		report_bar_least(r, slowest_of_fastest(sizes.wall[d], n), SIZES_BAR);
		report_measured(r);
	}
	return 0;
}

/* ---- all ---- */

static bool is_asked(const struct bench_options *o, const char *cases)
{
	return strcmp(o->cases, "all") == 0 || strcmp(o->cases, cases) == 0;
}

int bench_tiers_run(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	static const struct tier_shape shapes[] = {{9, 2, 128, "bfloat16"},
						   {6, 8, 128, "bfloat16"}};
	int result = 0;

	bench_pin(bench_cores().client);
	for (size_t i = 0; i < 2 && !result && is_asked(o, "bandwidth"); i++)
		result = run_bandwidth(o, &shapes[i], r, why);
	if (!result && is_asked(o, "restore"))
		result = run_restore(o, r, why);
	if (!result && is_asked(o, "sizes"))
		result = run_sizes(o, r, why);
	if (!result && is_asked(o, "steps"))
		result = tiers_steps(o, r, why);
	return result;
}
