/* SPDX-License-Identifier: Apache-2.0 */
/* footprint: see footprint.h. Main thread; blocks for bounded times. */
#include "tests/e2e/footprint.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"

unsigned entries_of(const char *folder, const char *prefix)
{
	DIR *dir = opendir(folder);
	const struct dirent *entry;
	unsigned n = 0;

	while (dir && (entry = readdir(dir)))
		n += entry->d_name[0] != '.' && !strncmp(entry->d_name, prefix, strlen(prefix));
	if (dir)
		closedir(dir);
	return n;
}

static uint64_t status_kib(pid_t pid, const char *name)
{
	unsigned long long kib = 0;
	char path[64], line[256];
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, name, strlen(name)))
			kib = strtoull(line + strlen(name), NULL, 10);
	}
	if (f)
		fclose(f);
	return kib;
}

struct footprint footprint_of(pid_t pid)
{
	struct footprint f = {0};
	unsigned long long pages = 0;
	char path[64], line[512];
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	f.descriptors = entries_of(path, "");
	(void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	file = fopen(path, "re");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		f.maps++;
		f.shared_maps += strstr(line, "/memfd:") != NULL;
	}
	fclose(file);
	(void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	file = fopen(path, "re");
	assert_non_null(file);
	if (fscanf(file, "%*u %llu", &pages) == 1)
		f.resident_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
	fclose(file);
	f.huge_bytes = status_kib(pid, "HugetlbPages:") * 1024;
	return f;
}

struct growth {
	pid_t pid;
	const struct footprint *before;
};

static bool is_flat(void *context)
{
	const struct growth *g = context;
	struct footprint now = footprint_of(g->pid);

	/* The allocator may keep a few maps more. A sanitizer keeps what was freed, and its own
	 * maps come and go. */
	return now.descriptors <= g->before->descriptors &&
	       now.shared_maps <= g->before->shared_maps &&
	       now.huge_bytes <= g->before->huge_bytes &&
	       (PATIENCE > 1 || (now.maps <= g->before->maps + 8 &&
				 now.resident_bytes <= g->before->resident_bytes + (2u << 20)));
}

/* What belongs to a session that has ended is unmapped a moment later. */
void expect_footprint(pid_t pid, const struct footprint *before)
{
	struct growth g = {.pid = pid, .before = before};
	struct footprint now;

	if (await(is_flat, &g, WITHIN_MS))
		return;
	now = footprint_of(pid);
	fail_msg("process %d: %u descriptors, %u before; %u maps (%u shared), %u (%u) before; %llu "
		 "KiB, %llu before",
		 (int)pid, now.descriptors, before->descriptors, now.maps, now.shared_maps,
		 before->maps, before->shared_maps, (unsigned long long)now.resident_bytes / 1024,
		 (unsigned long long)before->resident_bytes / 1024);
}

uint64_t locked_bytes_of(pid_t pid)
{
	return status_kib(pid, "VmLck:") * 1024;
}

uint64_t cpu_ns_of(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
	assert_int_equal(clock_gettime(clock, &t), 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t free_huge_pages(void)
{
	unsigned long long n = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "HugePages_Free: %llu", &n) == 1)
			break;
	}
	if (f)
		fclose(f);
	return n;
}
