/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_environment: the first record of a run: what it ran on. Main thread; reads /proc.
 */
#include "tools/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tools/bench_report.h"

/* The text behind "key" and a separator, of the first line that starts with key. */
static bool find_line(const char *path, const char *key, char separator, char *out, size_t bytes)
{
	FILE *file = fopen(path, "re");
	bool found = false;
	char *line = NULL;
	size_t capacity = 0;

	if (!file)
		return false;
	while (!found && getline(&line, &capacity, file) > 0) {
		char *at = line + strlen(key);

		if (strncmp(line, key, strlen(key)) != 0)
			continue;
		at = strchr(at, separator);
		if (!at)
			continue;
		at += 1 + strspn(at + 1, " \t\"");
		at[strcspn(at, "\"\n")] = '\0';
		snprintf(out, bytes, "%s", at);
		found = true;
	}
	free(line);
	fclose(file);
	return found;
}

static const char *processor(char *out, size_t bytes)
{
	if (find_line("/proc/cpuinfo", "model name", ':', out, bytes))
		return out;
	/* aarch64 says only numbers of the implementer and the part. */
	if (find_line("/proc/cpuinfo", "CPU part", ':', out, bytes))
		return out;
	return "unknown";
}

static const char *instruction_sets(void)
{
#if defined(__x86_64__)
	bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
	bool avx2 = __builtin_cpu_supports("avx2");

	return avx512 ? "avx2 avx512" : avx2 ? "avx2" : "";
#elif defined(__aarch64__)
	return "neon";
#else
	return "";
#endif
}

static void command_line(const struct bench_options *o, char *out, size_t bytes)
{
	size_t used = 0;

	out[0] = '\0';
	for (int i = 0; i < o->argc && used + 1 < bytes; i++)
		used +=
		    (size_t)snprintf(out + used, bytes - used, "%s%s", i ? " " : "", o->argv[i]);
}

void bench_environment(const struct bench_options *o, struct report *r)
{
	struct bench_cores cores = bench_cores();
	struct utsname name;
	char text[1024], line[256];

	report_case(r, "environment");
	report_text(r, "version", PACKAGE_VERSION);
	report_text(r, "system",
		    find_line("/etc/os-release", "PRETTY_NAME", '=', line, sizeof(line)) ? line
											 : NULL);
	if (uname(&name) == 0) {
		snprintf(text, sizeof(text), "%s %s %s", name.sysname, name.release, name.machine);
		report_text(r, "kernel", text);
	}
	report_text(r, "processor", processor(line, sizeof(line)));
	report_text(r, "instruction_sets", instruction_sets());
	report_count(r, "cores", "", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
	report_count(r, "client_core", "", (uint64_t)cores.client);
	report_count(r, "daemon_core", "", (uint64_t)cores.daemon);
	report_number(r, "clock_tick", "ns", bench_clock_tick_ns());
	report_count(r, "base_page", "bytes", (uint64_t)sysconf(_SC_PAGESIZE));
	if (find_line("/proc/meminfo", "HugePages_Total", ':', line, sizeof(line)))
		report_text(r, "huge_pages_total", line);
	if (find_line("/proc/meminfo", "Hugepagesize", ':', line, sizeof(line)))
		report_text(r, "huge_page_size", line);
	command_line(o, text, sizeof(text));
	report_text(r, "command", text);
	report_measured(r);
}
