/* SPDX-License-Identifier: Apache-2.0 */
/* arena_limits: see arena_limits.h. Reading may block; judging is pure. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/arena_limits.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/tier/arena_memory.h"

#define LINE_BYTES     512
#define PATH_BYTES     1024
#define FILE_SHOWN_MAX 80           /* of the path of a limit, in a sentence: its end */
#define GROUP_NO_LIMIT (1ull << 62) /* control groups of version 1 say a number near 2^63 */
#define LIMITS_NOT_READ                                                                            \
	((struct arena_limits){                                                                    \
	    .lock_limit_bytes = ARENA_UNLIMITED,                                                   \
	    .memory_bytes = ARENA_UNLIMITED,                                                       \
	    .group_limit_bytes = ARENA_UNLIMITED,                                                  \
	})

/* ---- reading ---- */

/* The number after `key` in a file of lines "key number": true if it is there. */
static bool read_line_number(const char *path, const char *key, uint64_t *out)
{
	size_t key_bytes = strlen(key);
	char line[LINE_BYTES], *end;
	bool found = false;
	FILE *f = fopen(path, "re");

	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f)) {
		unsigned long long value;

		if (strncmp(line, key, key_bytes) != 0)
			continue;
		errno = 0;
		value = strtoull(line + key_bytes, &end, 10);
		found = !errno && end != line + key_bytes;
		if (found)
			*out = value;
	}
	fclose(f);
	return found;
}

static bool may_lock_without_limit(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	memset(data, 0, sizeof(data));
	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	return data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

/* What one control group leaves, if that is less than what is known. */
static void read_one_group(const char *root, const char *group, bool first_version,
			   struct arena_limits *l)
{
	const char *limit_file = first_version ? "memory.limit_in_bytes" : "memory.max";
	const char *usage_file = first_version ? "memory.usage_in_bytes" : "memory.current";
	const char *cache_key = first_version ? "total_inactive_file " : "inactive_file ";
	uint64_t limit, used, cache, left, least;
	char path[PATH_BYTES];

	snprintf(path, sizeof(path), "%s%s/%s", root, group, limit_file);
	if (!read_line_number(path, "", &limit) || limit >= GROUP_NO_LIMIT)
		return;
	snprintf(path, sizeof(path), "%s%s/%s", root, group, usage_file);
	if (!read_line_number(path, "", &used))
		used = 0;
	/* Pages of files that nobody used lately go when memory is asked for. */
	snprintf(path, sizeof(path), "%s%s/memory.stat", root, group);
	if (!read_line_number(path, cache_key, &cache))
		cache = 0;
	used = used > cache ? used - cache : 0;

	left = limit > used ? limit - used : 0;
	least = l->group_limit_bytes - l->group_used_bytes;
	if (l->group_limit_bytes != ARENA_UNLIMITED && left >= least)
		return;
	l->group_limit_bytes = limit;
	l->group_used_bytes = used < limit ? used : limit;
	snprintf(l->group_file, sizeof(l->group_file), "%s/%s", group, limit_file);
}

/* The group of this process and all around it. In a container the path may be that outside of it,
 * and then only its first part, the mount itself, is there. */
static void read_groups(const char *root, const char *mount, const char *path, bool first_version,
			struct arena_limits *l)
{
	char group[PATH_BYTES];
	size_t mount_bytes = strlen(mount);
	char *last;

	if (strstr(path, "/.."))
		path = "";
	if ((size_t)snprintf(group, sizeof(group), "%s%s", mount, path) >= sizeof(group))
		return;
	if (group[strlen(group) - 1] == '/')
		group[strlen(group) - 1] = 0;
	for (;;) {
		read_one_group(root, group, first_version, l);
		last = strrchr(group, '/');
		if (!last || (size_t)(last - group) < mount_bytes)
			return;
		*last = 0;
	}
}

/* Is `word` one of those between the colons of "4:cpu,memory:/path"? */
static bool has_word(const char *list, const char *word)
{
	size_t bytes = strlen(word);

	while (*list && *list != ':') {
		size_t n = strcspn(list, ",:");

		if (n == bytes && strncmp(list, word, n) == 0)
			return true;
		list += n + (list[n] == ',');
	}
	return false;
}

static void read_all_groups(const char *root, struct arena_limits *l)
{
	char path[PATH_BYTES], line[PATH_BYTES];
	FILE *f;

	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	f = fopen(path, "re");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		char *kinds = strchr(line, ':');
		char *group = kinds ? strchr(kinds + 1, ':') : NULL;

		if (!group)
			continue;
		line[strcspn(line, "\n")] = 0;
		if (kinds + 1 == group) {
			read_groups(root, "/sys/fs/cgroup", group + 1, false, l);
			read_groups(root, "/sys/fs/cgroup/unified", group + 1, false, l);
		} else if (has_word(kinds + 1, "memory")) {
			read_groups(root, "/sys/fs/cgroup/memory", group + 1, true, l);
		}
	}
	fclose(f);
}

void arena_limits_read(const char *root, struct arena_use use, struct arena_limits *out)
{
	struct arena_limits l = LIMITS_NOT_READ;
	struct rlimit lock;
	char path[PATH_BYTES];
	uint64_t kib;

	must(strlen(root) < PATH_BYTES / 2);
	l.use = use;
	if (!may_lock_without_limit() && getrlimit(RLIMIT_MEMLOCK, &lock) == 0 &&
	    lock.rlim_cur != RLIM_INFINITY)
		l.lock_limit_bytes = lock.rlim_cur;
	snprintf(path, sizeof(path), "%s/proc/self/status", root);
	if (read_line_number(path, "VmLck:", &kib))
		l.locked_bytes = kib * 1024;
	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (read_line_number(path, "MemAvailable:", &kib))
		l.memory_bytes = kib * 1024;
	if (failpoint(arena_starved))
		l.memory_bytes = 0;
	read_all_groups(root, &l);
	l.huge = hugenote_read();
	if (failpoint(arena_gigantic))
		l.huge = (struct huge_pages){
		    .page_bytes = 1ull << 30, .total = 1u << 20, .available = 1u << 20};
	*out = l;
}

/* ---- judging ---- */

int arena_limits_lock(const struct arena_limits *l, uint64_t bytes, char why[ARENA_NOTE_BYTES])
{
	uint64_t limit = l->lock_limit_bytes, used = l->locked_bytes;

	if (limit == ARENA_UNLIMITED || (used <= limit && bytes <= limit - used))
		return 0;
	if (used)
		snprintf(why, ARENA_NOTE_BYTES,
			 "%s wants %" PRIu64 " bytes locked, RLIMIT_MEMLOCK allows %" PRIu64
			 ", of which %" PRIu64
			 " are in use: set LimitMEMLOCK=infinity in the unit, "
			 "or ulimit -l unlimited",
			 l->use.name, bytes, limit, used);
	else
		snprintf(why, ARENA_NOTE_BYTES,
			 "%s wants %" PRIu64 " bytes locked, RLIMIT_MEMLOCK allows %" PRIu64
			 ": set LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited",
			 l->use.name, bytes, limit);
	return -EPERM;
}

int arena_limits_huge(const struct arena_limits *l, uint64_t bytes, char why[ARENA_NOTE_BYTES])
{
	const struct huge_pages *h = &l->huge;
	uint64_t wanted, there = h->available + h->surplus;

	if (h->page_bytes == 0) {
		snprintf(why, ARENA_NOTE_BYTES,
			 "%s wants %" PRIu64 " bytes of huge pages, and this host has none: "
			 "set core.require_hugepages to false",
			 l->use.name, bytes);
		return -ENOMEM;
	}
	wanted = bytes / h->page_bytes + (bytes % h->page_bytes != 0);
	if (wanted <= there)
		return 0;
	snprintf(why, ARENA_NOTE_BYTES,
		 "%s wants %" PRIu64 " huge pages of %" PRIu64 " KiB, %" PRIu64
		 " are free: sysctl vm.nr_hugepages=%" PRIu64 ", or lower %s",
		 l->use.name, wanted, h->page_bytes / 1024, there, h->total + (wanted - there),
		 l->use.key);
	return -ENOMEM;
}

static bool has_room(uint64_t left, const struct memory_claim *claim)
{
	return left >= claim->promised_bytes && left - claim->promised_bytes >= claim->bytes;
}

int arena_limits_claim(const struct arena_limits *l, const struct memory_claim *claim, char *why,
		       size_t why_bytes)
{
	size_t file_bytes = strlen(l->group_file);
	const char *file = l->group_file;
	char promised[96] = "";

	if (claim->promised_bytes)
		snprintf(promised, sizeof(promised), ", and %s still to get %" PRIu64,
			 claim->promised_to, claim->promised_bytes);
	if (l->memory_bytes != ARENA_UNLIMITED && !has_room(l->memory_bytes, claim)) {
		snprintf(why, why_bytes,
			 "%s wants %" PRIu64 " bytes%s, MemAvailable of this host is %" PRIu64
			 "%s: lower %s, or end what uses the memory",
			 l->use.name, claim->bytes, claim->with, l->memory_bytes, promised,
			 l->use.key);
		return -ENOMEM;
	}
	if (l->group_limit_bytes == ARENA_UNLIMITED ||
	    has_room(l->group_limit_bytes - l->group_used_bytes, claim))
		return 0;
	if (file_bytes > FILE_SHOWN_MAX)
		file += file_bytes - FILE_SHOWN_MAX;
	snprintf(why, why_bytes,
		 "%s wants %" PRIu64 " bytes%s, %s%.*s allows %" PRIu64 ", of which %" PRIu64
		 " are in use%s: set MemoryMax= of the unit, or lower %s",
		 l->use.name, claim->bytes, claim->with, file == l->group_file ? "" : "...",
		 FILE_SHOWN_MAX, file, l->group_limit_bytes, l->group_used_bytes, promised,
		 l->use.key);
	return -ENOMEM;
}

int arena_limits_memory(const struct arena_limits *l, uint64_t bytes, char why[ARENA_NOTE_BYTES])
{
	const struct memory_claim claim = {.bytes = bytes, .with = ""};

	return arena_limits_claim(l, &claim, why, ARENA_NOTE_BYTES);
}

static uint64_t rounded_up(uint64_t bytes, uint64_t to)
{
	return (bytes / to + (bytes % to != 0)) * to;
}

/* What kv_ram_bytes is of which so much is left for pages. */
static uint64_t with_known(const struct arena_wish *wish, uint64_t bytes)
{
	return wish->page_bytes ? bytes + bytes / wish->page_bytes * wish->known_bytes : bytes;
}

int arena_limits_pages(const struct arena_limits *l, const struct arena_wish *wish,
		       char why[ARENA_NOTE_BYTES])
{
	uint64_t page = l->huge.page_bytes, bytes = arena_bytes_of(wish);
	char change[ARENA_NOTE_BYTES / 2] = "core.require_hugepages to false";
	uint64_t all;

	if (page == 0 || arena_memory_fits(page, wish->chunk_bytes, bytes))
		return 0;
	all = with_known(wish, rounded_up(bytes, page));
	if (page <= ARENA_CHUNK_MAX && wish->chunk_bytes % page == 0)
		snprintf(change, sizeof(change), "kv_ram_bytes to %" PRIu64, all);
	else if (page <= ARENA_CHUNK_MAX && bytes % page == 0)
		snprintf(change, sizeof(change), "kv_ram_chunk_bytes to %" PRIu64,
			 rounded_up(wish->chunk_bytes, page));
	else if (page <= ARENA_CHUNK_MAX)
		snprintf(change, sizeof(change),
			 "kv_ram_chunk_bytes to %" PRIu64 " and kv_ram_bytes to %" PRIu64,
			 rounded_up(wish->chunk_bytes, page), all);
	snprintf(why, ARENA_NOTE_BYTES,
		 "KV-RAM wants %" PRIu64 " bytes for pages, in chunks of %" PRIu64
		 ", and huge pages of this host have %" PRIu64
		 ", which does not divide both: set %s, or boot with default_hugepagesz=2M",
		 bytes, wish->chunk_bytes, page, change);
	return -EINVAL;
}

static uint64_t less(uint64_t bytes, uint64_t by)
{
	return bytes > by ? bytes - by : 0;
}

void arena_limits_promise(struct arena_limits *l, uint64_t bytes, bool lock)
{
	struct huge_pages *h = &l->huge;
	uint64_t pages = h->page_bytes && bytes % h->page_bytes == 0 ? bytes / h->page_bytes : 0;

	if (lock)
		l->locked_bytes += bytes;
	h->surplus = less(h->surplus, pages > h->available ? pages - h->available : 0);
	h->available = less(h->available, pages);
	if (l->memory_bytes != ARENA_UNLIMITED)
		l->memory_bytes = less(l->memory_bytes, bytes);
	if (l->group_limit_bytes != ARENA_UNLIMITED)
		l->group_used_bytes =
		    l->group_limit_bytes - less(l->group_limit_bytes - l->group_used_bytes, bytes);
}

int arena_limits_allow(const struct arena_limits *l, const struct arena_wish *wish,
		       char why[ARENA_NOTE_BYTES])
{
	uint64_t bytes = arena_bytes_of(wish);
	char no_huge[ARENA_NOTE_BYTES];
	int r = 0;

	if (wish->lock)
		r = arena_limits_lock(l, bytes, why);
	if (!r && wish->require_huge) {
		r = arena_limits_pages(l, wish, why);
		return r ? r : arena_limits_huge(l, bytes, why);
	}
	/* Without huge pages base pages serve. */
	if (!r && (arena_limits_pages(l, wish, no_huge) || arena_limits_huge(l, bytes, no_huge)))
		r = arena_limits_memory(l, bytes, why);
	return r;
}
