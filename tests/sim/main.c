/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main: runs seeds, a share of them in each of a few processes, and says which one failed.
 *
 * KVHOST_SIM_SEEDS and KVHOST_SIM_EVENTS set how much; --seed N --events M --trace runs one again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/sim.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define PROCESSES_MAX 16
#define SEEDS         (SANITIZED ? 50 : 2000)
#define EVENTS        2000

struct arguments {
	uint64_t first, seeds;
	uint32_t events;
	bool one, trace;
};

static uint64_t number(const char *text, uint64_t otherwise)
{
	char *end;
	unsigned long long value = text ? strtoull(text, &end, 10) : 0;

	return text && *text && !*end ? value : otherwise;
}

static struct arguments read_arguments(int argc, char **argv)
{
	struct arguments a = {.first = 1,
			      .seeds = number(getenv("KVHOST_SIM_SEEDS"), SEEDS),
			      .events = (uint32_t)number(getenv("KVHOST_SIM_EVENTS"), EVENTS)};

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--trace")) {
			a.trace = true;
		} else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
			a.first = number(argv[++i], 1);
			a.seeds = 1;
			a.one = true;
		} else if (!strcmp(argv[i], "--events") && i + 1 < argc) {
			a.events = (uint32_t)number(argv[++i], EVENTS);
		} else {
			fprintf(stderr, "usage: %s [--seed N] [--events M] [--trace]\n", argv[0]);
			_exit(2);
		}
	}
	return a;
}

static void run_share(const struct arguments *a, uint64_t from, uint64_t step)
{
	for (uint64_t i = from; i < a->seeds; i += step) {
		struct sim_options options = {
		    .seed = a->first + i, .events = a->events, .trace = a->trace};

		sim_run(&options);
	}
}

static bool run_all(const struct arguments *a)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t n = cores < 1 ? 1 : cores > PROCESSES_MAX ? PROCESSES_MAX : (uint64_t)cores;
	pid_t children[PROCESSES_MAX];
	bool good = true;

	fflush(stdout);
	for (uint64_t i = 0; i < n; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			run_share(a, i, n);
			exit(0); /* a sanitizer looks for leaks then */
		}
		good &= children[i] > 0;
	}
	for (uint64_t i = 0; i < n; i++) {
		int status = 1;

		if (children[i] > 0 && waitpid(children[i], &status, 0) == children[i])
			good &= status == 0;
	}
	return good;
}

int main(int argc, char **argv)
{
	struct arguments a = read_arguments(argc, argv);
	bool good = true;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("1..1\n");
	if (a.one)
		run_share(&a, 0, 1);
	else
		good = run_all(&a);
	printf("%s 1 - %llu seeds of %u events agree with the model\n", good ? "ok" : "not ok",
	       (unsigned long long)a.seeds, a.events);
	if (SANITIZED)
		printf("# under a sanitizer fewer seeds are run\n");
	return good ? 0 : 1;
}
