/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protections: switches each protection of kind sim off, one after another, and runs seeds until
 * something notices: the model, an invariant, or a check of what was read.
 *
 * Each seed runs in a process of its own. Only a failure that the simulator reports counts: one
 * that dies of an assertion, or comes to no end, has shown nothing. One process; waits for others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/testing.h"
#include "tests/sim/sim.h"

#define SEEDS_MAX 400 /* to notice within */
#define EVENTS    1000
#define SECONDS   20 /* of one seed */

struct row {
	enum protection_name name;
	const char *word, *kind;
};

static const struct row rows[] = {
#define PROTECTION(name, kind, text) {PROTECTION_##name, #name, #kind},
#include "tests/protections.def"
#undef PROTECTION
};

/* The first line that the child wrote, which says what was noticed. */
static void read_report(int from, char *to, size_t bytes)
{
	size_t n = 0;
	ssize_t got;

	while (n + 1 < bytes && (got = read(from, to + n, bytes - 1 - n)) > 0)
		n += (size_t)got;
	to[n] = 0;
	close(from);
	to[strcspn(to, "\n")] = 0;
}

/* The exit status of a world with the protection off, and what it said. */
static int run_child(const struct row *row, uint64_t seed, char *report, size_t bytes)
{
	struct sim_options options = {.seed = seed, .events = EVENTS};
	int ends[2], status = 0;
	pid_t child;

	fflush(stdout);
	if (pipe(ends))
		return -1;
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		alarm(SECONDS);
		protection_off[row->name] = true;
		sim_run(&options);
		_exit(0);
	}
	close(ends[1]);
	read_report(ends[0], report, bytes);
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool is_noticed(const struct row *row, char *report, size_t bytes, uint64_t *seed)
{
	for (*seed = 1; *seed <= SEEDS_MAX; ++*seed) {
		if (run_child(row, *seed, report, bytes) == SIM_FAILED)
			return true;
	}
	return false;
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : NULL;
	char report[512];
	uint32_t n = 0, missed = 0;
	uint64_t seed;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		n += !strcmp(rows[i].kind, "sim");
	printf("1..%u\n", n);
	n = 0;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const struct row *row = &rows[i];
		bool good;

		if (strcmp(row->kind, "sim")) {
			printf("# %s: shown by a test of kind %s\n", row->word, row->kind);
			continue;
		}
		if (only && strcmp(only, row->word))
			continue;
		good = is_noticed(row, report, sizeof(report), &seed);
		missed += !good;
		printf("%s %u - without %s something is noticed\n", good ? "ok" : "not ok", ++n,
		       row->word);
		if (good)
			printf("#   seed %llu: %s\n", (unsigned long long)seed, report + 2);
	}
	return missed ? 1 : 0;
}
