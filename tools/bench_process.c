/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_process: cores, and what processes have used of them. Main thread; reads files of /proc.
 */
#include "tools/bench.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bench_cores bench_cores(void)
{
	/* Asked once: after pinning, the process may use one core only. */
	static struct bench_cores cores = {.client = -1, .daemon = -1, .device = -1};
	int *wanted[] = {&cores.client, &cores.daemon, &cores.device};
	cpu_set_t allowed;
	int n = 0;

	if (cores.client >= 0)
		return cores;

	CPU_ZERO(&allowed);
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return cores = (struct bench_cores){0};
	for (int core = 0; core < CPU_SETSIZE && n < 3; core++) {
		if (CPU_ISSET(core, &allowed))
			*wanted[n++] = core;
	}
	for (; n < 3; n++)
		*wanted[n] = cores.client;
	return cores;
}

int bench_pin(int core)
{
	return bench_pin_two(core, core);
}

int bench_pin_two(int core, int other)
{
	cpu_set_t both;

	CPU_ZERO(&both);
	CPU_SET(core, &both);
	CPU_SET(other, &both);
	return sched_setaffinity(0, sizeof(both), &both) ? -1 : 0;
}

int bench_pin_thread(int pid, const char *name, int core)
{
	char path[64 + NAME_MAX], line[64];
	struct dirent *entry;
	cpu_set_t one;
	DIR *threads;
	int r = -1;

	CPU_ZERO(&one);
	CPU_SET(core, &one);
	if (!name)
		return sched_setaffinity(pid, sizeof(one), &one) ? -1 : 0;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	threads = opendir(path);
	if (!threads)
		return -1;
	while (r && (entry = readdir(threads))) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", pid, entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
		if (!file)
			continue;
		if (fgets(line, sizeof(line), file)) {
			line[strcspn(line, "\n")] = '\0';
			if (strcmp(line, name) == 0)
				r = sched_setaffinity((pid_t)strtol(entry->d_name, NULL, 10),
						      sizeof(one), &one);
		}
		fclose(file);
	}
	closedir(threads);
	return r ? -1 : 0;
}

/* The first number of a file, such as the run time in a schedstat. */
static int read_first_number(const char *path, uint64_t *out)
{
	FILE *file = fopen(path, "re");
	int n;

	if (!file)
		return -1;
	n = fscanf(file, "%" SCNu64, out);
	fclose(file);
	return n == 1 ? 0 : -1;
}

int bench_process_cpu_ns(int pid, uint64_t *out)
{
	char path[64 + NAME_MAX];
	uint64_t thread_ns, total_ns = 0;
	struct dirent *entry;
	DIR *threads;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	threads = opendir(path);
	if (!threads)
		return -1;
	while ((entry = readdir(threads))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", pid, entry->d_name);
		if (read_first_number(path, &thread_ns))
			continue;
		total_ns += thread_ns;
		n++;
	}
	closedir(threads);
	if (n == 0)
		return -1;
	*out = total_ns;
	return 0;
}

int bench_process_cpu_coarse_ns(int pid, uint64_t *out)
{
	char path[64], text[1024];
	uint64_t user, kernel;
	const char *at;
	size_t length;
	FILE *file;
	long per_s = sysconf(_SC_CLK_TCK);

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	length = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[length] = '\0';

	/* The name in parentheses may hold anything; the fields count from behind it. */
	at = strrchr(text, ')');
	if (!at || per_s <= 0)
		return -1;
	if (sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
		   &user, &kernel) != 2)
		return -1;
	*out = (user + kernel) * (1000000000ull / (uint64_t)per_s);
	return 0;
}
