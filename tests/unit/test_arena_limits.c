/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/arena_limits.h: every limit with its sentence, and reading them, from a
 * folder that looks like /proc and /sys and from this host.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/arena_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/tier/device.h"

#define MIB        (1ull << 20)
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define GROUP      "/sys/fs/cgroup/a.slice/kvhostd.service"

static const struct arena_limits no_limits = {
    .use = {"KV-RAM", "kv_ram_bytes", "", ""},
    .lock_limit_bytes = ARENA_UNLIMITED,
    .memory_bytes = ARENA_UNLIMITED,
    .group_limit_bytes = ARENA_UNLIMITED,
};

/* ---- judging ---- */

static void refused(int r, int error, const char *why, const char *wanted)
{
	assert_int_equal(r, error);
	assert_string_equal(why, wanted);
}

static void no_limit_refuses_nothing_and_writes_nothing(void **state)
{
	char why[ARENA_NOTE_BYTES] = "untouched";

	(void)state;
	assert_int_equal(arena_limits_lock(&no_limits, UINT64_MAX - 1, why), 0);
	assert_int_equal(arena_limits_memory(&no_limits, UINT64_MAX - 1, why), 0);
	assert_string_equal(why, "untouched");
}

static void locked_memory_is_judged_with_what_is_locked_already(void **state)
{
	struct arena_limits l = no_limits;
	char why[ARENA_NOTE_BYTES] = "untouched";

	(void)state;
	l.lock_limit_bytes = 8 * MIB;
	assert_int_equal(arena_limits_lock(&l, 8 * MIB, why), 0);
	assert_string_equal(why, "untouched");
	refused(arena_limits_lock(&l, 2048 * MIB, why), -EPERM, why,
		"KV-RAM wants 2147483648 bytes locked, RLIMIT_MEMLOCK allows 8388608: "
		"set LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited");
	assert_int_equal(arena_limits_lock(&l, 8 * MIB + 1, why), -EPERM);

	l.locked_bytes = 3 * MIB;
	assert_int_equal(arena_limits_lock(&l, 5 * MIB, why), 0);
	refused(arena_limits_lock(&l, 5 * MIB + 1, why), -EPERM, why,
		"KV-RAM wants 5242881 bytes locked, RLIMIT_MEMLOCK allows 8388608, "
		"of which 3145728 are in use: "
		"set LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited");
	/* A limit may be lowered below what is locked. */
	l.locked_bytes = 9 * MIB;
	assert_int_equal(arena_limits_lock(&l, 1, why), -EPERM);
}

static void huge_pages_are_those_that_are_free_or_may_be_made(void **state)
{
	struct arena_limits l = no_limits;
	char why[ARENA_NOTE_BYTES] = "untouched";

	(void)state;
	l.huge = (struct huge_pages){.page_bytes = 2 * MIB, .total = 300, .available = 12};
	assert_int_equal(arena_limits_huge(&l, 24 * MIB, why), 0);
	assert_string_equal(why, "untouched");
	refused(arena_limits_huge(&l, 24 * MIB + 1, why), -ENOMEM, why,
		"KV-RAM wants 13 huge pages of 2048 KiB, 12 are free: "
		"sysctl vm.nr_hugepages=301, or lower kv_ram_bytes");
	l.huge.surplus = 1;
	assert_int_equal(arena_limits_huge(&l, 26 * MIB, why), 0);
	l.huge = (struct huge_pages){0};
	refused(arena_limits_huge(&l, MIB, why), -ENOMEM, why,
		"KV-RAM wants 1048576 bytes of huge pages, and this host has none: "
		"set core.require_hugepages to false");
}

static void memory_is_that_of_the_host_and_of_the_control_group(void **state)
{
	struct arena_limits l = no_limits;
	char why[ARENA_NOTE_BYTES] = "untouched", deep[400];

	(void)state;
	l.memory_bytes = 100 * MIB;
	assert_int_equal(arena_limits_memory(&l, 100 * MIB, why), 0);
	assert_string_equal(why, "untouched");
	refused(arena_limits_memory(&l, 100 * MIB + 1, why), -ENOMEM, why,
		"KV-RAM wants 104857601 bytes, MemAvailable of this host is 104857600: "
		"lower kv_ram_bytes, or end what uses the memory");

	l.group_limit_bytes = 64 * MIB;
	l.group_used_bytes = 4 * MIB;
	snprintf(l.group_file, sizeof(l.group_file), GROUP "/memory.max");
	assert_int_equal(arena_limits_memory(&l, 60 * MIB, why), 0);
	refused(arena_limits_memory(&l, 60 * MIB + 1, why), -ENOMEM, why,
		"KV-RAM wants 62914561 bytes, " GROUP "/memory.max allows 67108864, "
		"of which 4194304 are in use: set MemoryMax= of the unit, or lower kv_ram_bytes");

	/* Of a long path the end is shown, and the sentence is whole. */
	memset(deep, 'd', sizeof(deep));
	snprintf(l.group_file, sizeof(l.group_file), "/%.399s/memory.max", deep);
	assert_int_equal(arena_limits_memory(&l, UINT64_MAX - 1, why), -ENOMEM);
	l.memory_bytes = ARENA_UNLIMITED;
	assert_int_equal(arena_limits_memory(&l, UINT64_MAX - 1, why), -ENOMEM);
	assert_non_null(strstr(why, " ...ddd"));
	assert_non_null(strstr(why, "ddd/memory.max allows 67108864, of"));
	assert_non_null(strstr(why, "or lower kv_ram_bytes"));
}

/* What was promised, and is not there yet, is as good as gone. */
static void what_is_promised_to_others_is_not_left(void **state)
{
	struct arena_limits l = no_limits;
	char why[ARENA_NOTE_BYTES] = "untouched";

	(void)state;
	arena_limits_promise(&l, 64 * MIB, false);
	assert_int_equal(l.locked_bytes, 0);
	arena_limits_promise(&l, 64 * MIB, true);
	assert_int_equal(l.locked_bytes, 64 * MIB);
	assert_int_equal(arena_limits_lock(&l, UINT64_MAX - 1, why), 0);
	assert_int_equal(arena_limits_memory(&l, UINT64_MAX - 1, why), 0);
	assert_string_equal(why, "untouched");

	l = no_limits;
	l.use = ARENA_FOR_STAGING;
	l.memory_bytes = 100 * MIB;
	arena_limits_promise(&l, 64 * MIB, true);
	assert_int_equal(arena_limits_memory(&l, 36 * MIB, why), 0);
	refused(arena_limits_memory(&l, 36 * MIB + 1, why), -ENOMEM, why,
		"Staging wants 37748737 bytes, MemAvailable of this host is 37748736: "
		"lower kv_staging_bytes, or end what uses the memory");
	l = no_limits;
	l.huge =
	    (struct huge_pages){.page_bytes = 2 * MIB, .total = 100, .available = 40, .surplus = 8};
	arena_limits_promise(&l, 64 * MIB, false);
	assert_int_equal(arena_limits_huge(&l, 32 * MIB, why), 0);
	refused(arena_limits_huge(&l, 32 * MIB + 1, why), -ENOMEM, why,
		"KV-RAM wants 17 huge pages of 2048 KiB, 16 are free: "
		"sysctl vm.nr_hugepages=101, or lower kv_ram_bytes");
	arena_limits_promise(&l, 24 * MIB, false);
	assert_int_equal(arena_limits_huge(&l, 8 * MIB, why), 0);
	assert_int_equal(arena_limits_huge(&l, 8 * MIB + 1, why), -ENOMEM);
	/* What is not of whole ones takes none. */
	arena_limits_promise(&l, 9 * MIB, false);
	assert_int_equal(arena_limits_huge(&l, 8 * MIB, why), 0);

	l = no_limits;
	l.group_limit_bytes = 100 * MIB;
	l.group_used_bytes = 30 * MIB;
	arena_limits_promise(&l, 64 * MIB, true);
	assert_int_equal(arena_limits_memory(&l, 6 * MIB, why), 0);
	assert_int_equal(arena_limits_memory(&l, 6 * MIB + 1, why), -ENOMEM);
	arena_limits_promise(&l, 64 * MIB, true);
	assert_int_equal(arena_limits_memory(&l, 1, why), -ENOMEM);
	assert_int_equal(l.group_used_bytes, l.group_limit_bytes);
}

/* What KV-RAM is still to get is there, and not for others. */
static void who_claims_memory_leaves_what_is_promised(void **state)
{
	struct memory_claim claim = {.promised_to = "KV-RAM is",
				     .bytes = 60 * MIB,
				     .with = " with its index",
				     .promised_bytes = 30 * MIB};
	struct arena_limits l = no_limits;
	char why[ARENA_NOTE_BYTES] = "untouched";

	(void)state;
	l.use = ARENA_FOR_POOL;
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), 0);
	l.memory_bytes = 90 * MIB;
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), 0);
	assert_string_equal(why, "untouched");
	l.memory_bytes--;
	refused(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM, why,
		"it wants 62914560 bytes with its index, MemAvailable of this host is 94371839, "
		"and KV-RAM is still to get 31457280: lower pools.pool_bytes, or end what uses the "
		"memory");
	/* More may be promised than there is, of what others have taken since. */
	l.memory_bytes = 29 * MIB;
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM);
	claim.promised_bytes = UINT64_MAX;
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM);

	l.memory_bytes = ARENA_UNLIMITED;
	l.group_limit_bytes = 100 * MIB;
	l.group_used_bytes = 10 * MIB;
	snprintf(l.group_file, sizeof(l.group_file), GROUP "/memory.max");
	claim.promised_bytes = 30 * MIB;
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), 0);
	l.group_used_bytes++;
	refused(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM, why,
		"it wants 62914560 bytes with its index, " GROUP "/memory.max allows 104857600, "
		"of which 10485761 are in use, and KV-RAM is still to get 31457280: "
		"set MemoryMax= of the unit, or lower pools.pool_bytes");
	claim.promised_bytes = 0;
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), 0);
}

/* The longest words, numbers and path. */
static void a_refused_claim_is_a_whole_sentence(void **state)
{
	const struct memory_claim claim = {.promised_to = "KV-RAM is",
					   .bytes = UINT64_MAX,
					   .with = " for retained slots and its index",
					   .promised_bytes = UINT64_MAX};
	struct arena_limits l = no_limits;
	char why[DEVICE_REFUSAL_BYTES];

	(void)state;
	l.use = ARENA_FOR_RETAINED;
	l.group_limit_bytes = l.group_used_bytes = UINT64_MAX - 1;
	memset(l.group_file, 'd', sizeof(l.group_file) - 1);
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM);
	assert_non_null(strstr(why, "or lower pools.retained_slots"));
	l.memory_bytes = UINT64_MAX - 1;
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM);
	assert_non_null(strstr(why, "or end what uses the memory"));
}

/* ---- reading ---- */

static int setup(void **state)
{
	static char root[] = "/tmp/kvhost-limits-XXXXXX";

	memcpy(strrchr(root, '-') + 1, "XXXXXX", 6);
	*state = root;
	return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	(void)status;
	(void)kind;
	(void)at;
	return remove(path);
}

static int teardown(void **state)
{
	return nftw(*state, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A file below the root with all the folders that it lies in. */
static void put(const char *root, const char *path, const char *text)
{
	char whole[512];
	int fd;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = 0;
		assert_true(mkdir(whole, 0700) == 0 || errno == EEXIST);
	}
	fd = open(whole, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static struct arena_limits read_limits(const char *root)
{
	struct arena_limits l;

	memset(&l, 0x5a, sizeof(l));
	arena_limits_read(root, ARENA_FOR_RAM, &l);
	return l;
}

static void nothing_that_can_be_read_is_no_limit(void **state)
{
	struct arena_limits l = read_limits(*state);

	assert_true(l.memory_bytes == ARENA_UNLIMITED);
	assert_true(l.group_limit_bytes == ARENA_UNLIMITED);
	assert_int_equal(l.group_used_bytes, 0);
	assert_int_equal(l.locked_bytes, 0);

	put(*state, "/proc/meminfo", "MemAvailable: none\n");
	put(*state, "/proc/self/cgroup", "0::/a\nnonsense\n5:memory\n");
	put(*state, "/sys/fs/cgroup/a/memory.max", "max\n");
	l = read_limits(*state);
	assert_true(l.memory_bytes == ARENA_UNLIMITED);
	assert_true(l.group_limit_bytes == ARENA_UNLIMITED);
}

static void the_host_and_what_is_locked_are_read(void **state)
{
	struct arena_limits l;

	put(*state, "/proc/meminfo", "MemTotal:  9 kB\nMemAvailable:   1234 kB\n");
	put(*state, "/proc/self/status", "Name:\tx\nVmLck:\t    8 kB\nVmPin:\t 9 kB\n");
	l = read_limits(*state);
	assert_int_equal(l.memory_bytes, 1234 * 1024);
	assert_int_equal(l.locked_bytes, 8 * 1024);
}

static void the_group_that_leaves_least_counts_and_unused_file_pages_are_free(void **state)
{
	struct arena_limits l;

	put(*state, "/proc/self/cgroup", "0::/a.slice/kvhostd.service\n");
	put(*state, GROUP "/memory.max", "1000000\n");
	put(*state, GROUP "/memory.current", "400000\n");
	put(*state, GROUP "/memory.stat", "anon 5\ninactive_file 100000\nactive_file 7\n");
	put(*state, "/sys/fs/cgroup/a.slice/memory.max", "max\n");
	l = read_limits(*state);
	assert_int_equal(l.group_limit_bytes, 1000000);
	assert_int_equal(l.group_used_bytes, 300000);
	assert_string_equal(l.group_file, GROUP "/memory.max");

	/* The slice around it has a larger limit, but others use it. */
	put(*state, "/sys/fs/cgroup/a.slice/memory.max", "2000000\n");
	put(*state, "/sys/fs/cgroup/a.slice/memory.current", "1500000\n");
	l = read_limits(*state);
	assert_int_equal(l.group_limit_bytes, 2000000);
	assert_int_equal(l.group_used_bytes, 1500000);
	assert_string_equal(l.group_file, "/sys/fs/cgroup/a.slice/memory.max");

	/* What is in use may be over the limit. */
	put(*state, GROUP "/memory.current", "5000000\n");
	l = read_limits(*state);
	assert_int_equal(l.group_limit_bytes - l.group_used_bytes, 0);
}

static void pools_and_ram_are_held_to_the_group_as_it_is_now(void **state)
{
	struct memory_claim claim = {
	    .bytes = 500000, .with = "", .promised_bytes = 200000, .promised_to = "KV-RAM is"};
	struct arena_limits l;
	char why[ARENA_NOTE_BYTES] = "";

	put(*state, "/proc/meminfo", "MemAvailable:   4000 kB\n");
	put(*state, "/proc/self/cgroup", "0::/a.slice/kvhostd.service\n");
	put(*state, GROUP "/memory.max", "1000000\n");
	put(*state, GROUP "/memory.current", "300001\n");
	l = read_limits(*state);
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM);
	assert_non_null(strstr(why, GROUP "/memory.max allows 1000000, of which 300001 "));
	/* KV-RAM has arrived: the same memory, counted once. */
	put(*state, GROUP "/memory.current", "500000\n");
	claim.promised_bytes = 0;
	l = read_limits(*state);
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), 0);
	put(*state, "/proc/meminfo", "MemAvailable:   400 kB\n");
	l = read_limits(*state);
	assert_int_equal(arena_limits_claim(&l, &claim, why, sizeof(why)), -ENOMEM);
	assert_non_null(strstr(why, "MemAvailable of this host is 409600: lower "));
}

static void groups_of_the_first_version_are_read_too(void **state)
{
	struct arena_limits l;

	put(*state, "/proc/self/cgroup",
	    "9:cpu,mem:/x\n4:hugetlb,memory:/docker/abc\n1:name=memory:/x\n0::/\n");
	put(*state, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n");
	put(*state, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes",
	    "9223372036854771712\n");
	l = read_limits(*state);
	assert_true(l.group_limit_bytes == ARENA_UNLIMITED);

	/* In a container the path is not there, and its mount is the group itself. */
	put(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
	put(*state, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n");
	put(*state, "/sys/fs/cgroup/memory/memory.stat",
	    "inactive_file 1\ntotal_inactive_file 1000\n");
	l = read_limits(*state);
	assert_int_equal(l.group_limit_bytes, 5000);
	assert_int_equal(l.group_used_bytes, 2000);
	assert_string_equal(l.group_file, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

static void the_path_of_a_group_outside_of_the_namespace_leads_nowhere(void **state)
{
	struct arena_limits l;

	put(*state, "/proc/self/cgroup", "0::/../other\n");
	put(*state, "/sys/fs/memory.max", "1\n");
	put(*state, "/sys/fs/other/memory.max", "1\n");
	put(*state, "/sys/fs/cgroup/memory.max", "7000\n");
	for (int i = 0; i < 2; i++) {
		l = read_limits(*state);
		assert_int_equal(l.group_limit_bytes, 7000);
		assert_string_equal(l.group_file, "/sys/fs/cgroup/memory.max");
		put(*state, "/proc/self/cgroup", "0::/\n");
	}
}

static void this_host_is_read_without_contradiction(void **state)
{
	struct arena_limits l = read_limits("");

	(void)state;
	assert_true(l.memory_bytes > 0);
	assert_true(l.group_limit_bytes == ARENA_UNLIMITED ||
		    l.group_used_bytes <= l.group_limit_bytes);
	assert_int_equal(l.huge.page_bytes, segment_huge_page_bytes());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(no_limit_refuses_nothing_and_writes_nothing),
	    cmocka_unit_test(locked_memory_is_judged_with_what_is_locked_already),
	    cmocka_unit_test(huge_pages_are_those_that_are_free_or_may_be_made),
	    cmocka_unit_test(memory_is_that_of_the_host_and_of_the_control_group),
	    cmocka_unit_test(what_is_promised_to_others_is_not_left),
	    cmocka_unit_test(who_claims_memory_leaves_what_is_promised),
	    cmocka_unit_test(a_refused_claim_is_a_whole_sentence),
	    TEST(nothing_that_can_be_read_is_no_limit),
	    TEST(the_host_and_what_is_locked_are_read),
	    TEST(the_group_that_leaves_least_counts_and_unused_file_pages_are_free),
	    TEST(pools_and_ram_are_held_to_the_group_as_it_is_now),
	    TEST(groups_of_the_first_version_are_read_too),
	    TEST(the_path_of_a_group_outside_of_the_namespace_leads_nowhere),
	    cmocka_unit_test(this_host_is_read_without_contradiction),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
