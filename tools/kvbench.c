/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench: measures kvhost against what this machine can do at best, in the same run. One thread.
 */
#include <stdio.h>

#include "tools/bench.h"
#include "tools/bench_report.h"

#define EXIT_CASE_FAILED   1
#define EXIT_BAD_ARGUMENTS 2

static int run_mode(const struct bench_options *o, struct report *r, struct bench_reason *why,
		    const char **name)
{
	switch (o->mode) {
	case BENCH_RING:
		*name = "ring";
		return bench_ring_run(o, r, why);
	case BENCH_LOOKUP:
		*name = "lookup";
		return bench_lookup_run(o, r, why);
	case BENCH_REPLAY:
		*name = "replay";
		return bench_replay_run(o, r, why);
	case BENCH_IDLE:
		*name = "idle";
		return bench_idle_run(o, r, why);
	case BENCH_CLAIM:
		*name = "claim";
		return bench_claim_run(o, r, why);
	case BENCH_TIERS:
		*name = "tiers";
		return bench_tiers_run(o, r, why);
	case BENCH_ORDER:
		*name = "order";
		return bench_order_run(o, r, why);
	case BENCH_TRACES:
		break;
	}
	*name = "none";
	return bench_reason_set(why, "no such mode");
}

int main(int argc, char **argv)
{
	struct bench_reason why = {""};
	struct bench_options options;
	struct report *report;
	const char *name;
	int r;

	r = bench_options_parse(&options, argc, argv, &why);
	if (r == BENCH_OPTIONS_HELP) {
		bench_options_help();
		return 0;
	}
	if (r == BENCH_OPTIONS_VERSION) {
		printf("kvbench %s\n", PACKAGE_VERSION);
		return 0;
	}
	if (r) {
		fprintf(stderr, "kvbench: %s\n", why.text);
		return EXIT_BAD_ARGUMENTS;
	}

	if (options.mode == BENCH_TRACES) {
		if (bench_traces_run(&options, stdout, &why) == 0)
			return 0;
		fprintf(stderr, "kvbench: %s\n", why.text);
		return EXIT_CASE_FAILED;
	}
	report = report_new(options.json, stdout);
	if (!report) {
		fprintf(stderr, "kvbench: no memory\n");
		return EXIT_CASE_FAILED;
	}
	bench_clock_init();
	bench_environment(&options, report);
	/* What keeps a mode from going on is a failed case of its own, named as the mode. */
	if (run_mode(&options, report, &why, &name)) {
		report_case(report, "%s", name);
		report_failed(report, "%s", why.text);
	}
	r = report_failures(report) > 0 ? EXIT_CASE_FAILED : 0;
	report_free(&report);
	return r;
}
