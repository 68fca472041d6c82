/* SPDX-License-Identifier: Apache-2.0 */
/* control_group: see control_group.h. Main thread; blocks for bounded times. */
#include "tests/e2e/control_group.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"

static bool write_number(const char *path, uint64_t number)
{
	FILE *f = fopen(path, "we");
	bool written = f && fprintf(f, "%" PRIu64 "\n", number) > 0;

	if (f && fclose(f))
		written = false;
	return written;
}

/* Of this process, where its limits of memory are: version 1 if it has those, else 2. */
static bool find_own(char *folder, size_t bytes, bool *first_version)
{
	char line[400];
	bool found = false;
	FILE *f = fopen("/proc/self/cgroup", "re");

	*first_version = false;
	while (f && !*first_version && fgets(line, sizeof(line), f)) {
		char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;

		line[strcspn(line, "\n")] = '\0';
		if (!path)
			continue;
		*first_version = strstr(kinds, ":memory:") != NULL;
		if (!*first_version && path != kinds + 1)
			continue;
		(void)snprintf(folder, bytes, "/sys/fs/cgroup%s%s", *first_version ? "/memory" : "",
			       path + 1);
		found = true;
	}
	if (f)
		(void)fclose(f);
	return found;
}

bool control_group_make(struct control_group *g, uint64_t limit_bytes)
{
	char own[440];
	bool first_version;

	*g = (struct control_group){0};
	if (!find_own(own, sizeof(own), &first_version))
		return false;
	(void)snprintf(g->folder, sizeof(g->folder), "%s/kvhost-test-%d", own, (int)getpid());
	if (mkdir(g->folder, 0755)) {
		g->folder[0] = '\0';
		return false;
	}
	(void)snprintf(g->processes, sizeof(g->processes), "%.490s/cgroup.procs", g->folder);
	(void)snprintf(g->limit, sizeof(g->limit), "%.480s/%s", g->folder,
		       first_version ? "memory.limit_in_bytes" : "memory.max");
	if (access(g->limit, W_OK) == 0 && access(g->processes, W_OK) == 0 &&
	    write_number(g->limit, limit_bytes))
		return true;
	control_group_remove(g);
	return false;
}

void control_group_limit(const struct control_group *g, uint64_t limit_bytes)
{
	assert_true(write_number(g->limit, limit_bytes));
}

static bool is_removed(void *context)
{
	const struct control_group *g = context;

	return rmdir(g->folder) == 0;
}

void control_group_remove(struct control_group *g)
{
	bool removed = !g->folder[0] || await(is_removed, g, LONG_MS);

	g->folder[0] = '\0';
	assert_true(removed);
}
