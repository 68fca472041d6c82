/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_idle: what a daemon with two idle clients costs. Main thread; sleeps.
 */
#include "tools/bench.h"

#include "tools/bench_host.h"
#include "tools/bench_report.h"

#define LOOK_NS          250000000ull
#define CLIENTS          2
#define IDLE_BAR_PERCENT 0.5 /* of a core */

/* Looks seldom enough to cost the daemon's core nothing. -1: the daemon ended. */
static int sleep_beside(const struct bench_host *daemon, uint64_t ns)
{
	uint64_t end_ns = bench_monotonic_ns() + ns, now_ns;

	while ((now_ns = bench_monotonic_ns()) < end_ns) {
		if (!bench_host_is_alive(daemon))
			return -1;
		bench_sleep_ns(end_ns - now_ns < LOOK_NS ? end_ns - now_ns : LOOK_NS);
	}
	return 0;
}

static int measure(const struct bench_options *o, const struct bench_host *daemon, struct report *r,
		   struct bench_reason *why)
{
	uint64_t before_ns, after_ns, coarse_before_ns, coarse_after_ns, start_ns, wall_ns;
	double part;
	int pid;

	if (bench_host_pid(daemon, &pid, why) || bench_host_wait_quiet(daemon, why))
		return -1;
	start_ns = bench_monotonic_ns();
	if (bench_process_cpu_ns(pid, &before_ns) ||
	    bench_process_cpu_coarse_ns(pid, &coarse_before_ns))
		return bench_reason_set(why, "/proc/%d: the CPU time cannot be read", pid);
	if (sleep_beside(daemon, o->seconds * 1000000000ull))
		return bench_reason_set(why, "the daemon (process %d) ended while idle", pid);
	if (bench_process_cpu_ns(pid, &after_ns) ||
	    bench_process_cpu_coarse_ns(pid, &coarse_after_ns))
		return bench_reason_set(why, "/proc/%d: the CPU time cannot be read", pid);
	wall_ns = bench_monotonic_ns() - start_ns;

	part = (double)(after_ns - before_ns) / (double)wall_ns;
	report_case(r, "idle");
	report_count(r, "clients", "", CLIENTS);
	report_number(r, "wall", "s", (double)wall_ns / 1e9);
	report_number(r, "cpu", "ms", (double)(after_ns - before_ns) / 1e6);
	report_number(r, "cpu_by_ticks", "ms", (double)(coarse_after_ns - coarse_before_ns) / 1e6);
	report_number(r, "core", "percent", part * 100);
	report_bar(r, part * 100, IDLE_BAR_PERCENT);
	report_measured(r);
	return 0;
}

int bench_idle_run(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	struct bench_plan plan = {0}; /* a daemon with its defaults */
	struct kvhost *clients[CLIENTS] = {0};
	struct bench_host daemon;
	int result = bench_host_start(&daemon, o, &plan, why);

	for (int i = 0; i < CLIENTS && result == 0; i++)
		result = bench_connect(&daemon, 0, 0, &clients[i], why);
	if (result == 0)
		result = measure(o, &daemon, r, why);
	for (int i = 0; i < CLIENTS; i++)
		kvhost_disconnect(&clients[i]);
	bench_host_stop(&daemon);
	return result;
}
