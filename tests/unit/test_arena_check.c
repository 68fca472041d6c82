/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/arena.h at the limits of the host: what the check says before, and what
 * becomes of an arena whose limit is lowered while it arrives.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/arena.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/tier/arena_limits.h"
#include "daemon/tier/ram.h"
#include "tests/unit/arena_world.h"

#define GIB (1ull << 30)

static void the_check_says_what_cannot_be_had(void **state)
{
	struct arena_wish wish = wish_of(1ull << 50);
	char why[ARENA_NOTE_BYTES] = "untouched";

	(void)state;
	assert_int_equal(arena_check(&wish, why), -ENOMEM);
	assert_non_null(strstr(why, "KV-RAM wants 1125899906842624 bytes"));
	assert_non_null(strstr(why, "lower kv_ram_bytes"));
	wish.require_huge = true;
	assert_int_equal(arena_check(&wish, why), -ENOMEM);
	assert_non_null(strstr(why, "huge pages"));

	wish = wish_of(FRAME_BYTES - 1);
	assert_int_equal(arena_check(&wish, why), -EINVAL);
	assert_non_null(strstr(
	    why, "of kv_ram_bytes 2097151 are left for pages, which is less than one frame"));
	wish = wish_of(CHUNK);
	wish.numa_node = 5000;
	assert_int_equal(arena_check(&wish, why), -EINVAL);
	assert_non_null(strstr(why, "NUMA node 5000"));

	wish.numa_node = NODES_ANYWHERE;
	snprintf(why, sizeof(why), "untouched");
	assert_int_equal(arena_check(&wish, why), 0);
	assert_string_equal(why, "untouched");
}

/* What was free when it was looked at is gone when it is wanted. */
static void what_others_took_after_the_check_is_told_like_what_was_never_there(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(CHUNK);
	char why[ARENA_NOTE_BYTES] = "";

	wish.require_huge = true;
	if (arena_check(&wish, why)) {
		print_message("arena: %s\n", why);
		skip();
	}
	failpoint_arm(FAILPOINT_arena_pool, 0, 1);
	assert_int_equal(arena_new(&wish, &w->executor.executor, count_changed, w, &w->arena),
			 -ENOMEM);
	assert_null(w->arena);
	arena_explain(&wish, -ENOMEM, why);
	assert_non_null(strstr(why, "KV-RAM wants 4194304 "));
	assert_non_null(strstr(why, "huge pages"));
	assert_non_null(strstr(why, "or lower kv_ram_bytes"));

	/* If they are still gone the sentence is that of the check. */
	wish.bytes = 1ull << 50;
	arena_explain(&wish, -ENOMEM, why);
	assert_non_null(strstr(why, "KV-RAM wants 536870912 huge pages"));
	assert_non_null(strstr(why, "sysctl vm.nr_hugepages="));

	wish = wish_of(CHUNK);
	arena_explain(&wish, -EMFILE, why);
	assert_non_null(strstr(why, "KV-RAM wants 4194304 bytes in one file"));
	assert_non_null(strstr(why, strerror(EMFILE)));
	assert_true(strlen(why) < ARENA_NOTE_BYTES - 1);
}

/* ---- a host whose huge pages are too large ---- */

static struct arena_wish wish_for(uint64_t kv_ram_bytes, uint64_t chunk_bytes)
{
	struct arena_wish wish = wish_of(ram_divide(kv_ram_bytes, 65536).arena_bytes);

	wish.chunk_bytes = chunk_bytes;
	wish.page_bytes = 65536;
	wish.known_bytes = RAM_KNOWN_BYTES;
	return wish;
}

static struct arena_limits with_huge_pages_of(uint64_t page_bytes)
{
	return (struct arena_limits){
	    .use = ARENA_FOR_RAM,
	    .lock_limit_bytes = ARENA_UNLIMITED,
	    .memory_bytes = 0,
	    .group_limit_bytes = ARENA_UNLIMITED,
	    .huge = {.page_bytes = page_bytes, .total = 1u << 20, .available = 1u << 20},
	};
}

static uint64_t number_after(const char *text, const char *words)
{
	const char *at = strstr(text, words);

	assert_non_null(at);
	return strtoull(at + strlen(words), NULL, 10);
}

static void huge_pages_that_do_not_fit_are_refused_with_the_keys_that_make_them_fit(void **state)
{
	struct arena_limits l = with_huge_pages_of(GIB);
	struct arena_wish wish = wish_for(2 * GIB, 256 * MIB);
	char why[ARENA_NOTE_BYTES] = "untouched";
	uint64_t bytes;

	(void)state;
	wish.require_huge = true;
	assert_int_equal(arena_limits_allow(&l, &wish, why), -EINVAL);
	assert_string_equal(
	    why, "KV-RAM wants 1998585856 bytes for pages, in chunks of 268435456, and huge pages "
		 "of this host have 1073741824, which does not divide both: set kv_ram_chunk_bytes "
		 "to 1073741824 and kv_ram_bytes to 2306867200, or boot with "
		 "default_hugepagesz=2M");

	/* One of the two is not enough. */
	bytes = number_after(why, "kv_ram_bytes to ");
	wish.chunk_bytes = number_after(why, "kv_ram_chunk_bytes to ");
	assert_int_equal(arena_limits_allow(&l, &wish, why), -EINVAL);
	assert_non_null(strstr(why, ": set kv_ram_bytes to 2306867200, or boot"));
	wish = wish_for(bytes, 256 * MIB);
	wish.require_huge = true;
	assert_int_equal(arena_limits_allow(&l, &wish, why), -EINVAL);
	assert_non_null(strstr(why, ": set kv_ram_chunk_bytes to 1073741824, or boot"));

	wish.chunk_bytes = GIB;
	snprintf(why, sizeof(why), "untouched");
	assert_int_equal(arena_limits_allow(&l, &wish, why), 0);
	assert_string_equal(why, "untouched");
}

/* The number in the sentence, for pages of all sizes. */
static void what_it_says_to_set_is_what_fits(void **state)
{
	struct arena_limits l = with_huge_pages_of(GIB);
	char why[ARENA_NOTE_BYTES];

	(void)state;
	for (uint64_t page = 4096; page <= GIB; page = page * 3 / 2) {
		struct arena_wish wish = wish_of(5 * GIB - FRAME_BYTES);
		struct ram_parts parts;

		wish.chunk_bytes = GIB;
		wish.page_bytes = page;
		wish.known_bytes = RAM_KNOWN_BYTES;
		assert_int_equal(arena_limits_pages(&l, &wish, why), -EINVAL);
		parts = ram_divide(number_after(why, "kv_ram_bytes to "), page);
		assert_int_equal(parts.arena_bytes, 5 * GIB);
	}
}

static void huge_pages_that_no_chunk_can_fill_are_not_to_be_fitted(void **state)
{
	struct arena_limits l = with_huge_pages_of(16 * GIB);
	struct arena_wish wish = wish_for(1ull << 50, GIB);
	char why[ARENA_NOTE_BYTES];

	(void)state;
	wish.require_huge = true;
	assert_int_equal(arena_limits_allow(&l, &wish, why), -EINVAL);
	assert_non_null(strstr(why, "of this host have 17179869184, which"));
	assert_non_null(strstr(why, ": set core.require_hugepages to false, or boot"));
	assert_null(strstr(why, "kv_ram_"));

	/* The longest sentence is whole. */
	l = with_huge_pages_of(GIB);
	wish = wish_for(1ull << 50, GIB - FRAME_BYTES);
	assert_int_equal(arena_limits_pages(&l, &wish, why), -EINVAL);
	assert_string_equal(why + strlen(why) - 22, " default_hugepagesz=2M");
}

static void where_huge_pages_do_not_fit_the_memory_of_the_host_counts(void **state)
{
	struct arena_limits l = with_huge_pages_of(2 * MIB);
	struct arena_wish wish = wish_for(2 * GIB, 256 * MIB);
	char why[ARENA_NOTE_BYTES] = "untouched";

	(void)state;
	assert_int_equal(arena_limits_allow(&l, &wish, why), 0);
	assert_string_equal(why, "untouched");
	l = with_huge_pages_of(GIB);
	assert_int_equal(arena_limits_allow(&l, &wish, why), -ENOMEM);
	assert_non_null(strstr(why, "KV-RAM wants 1998585856 bytes, MemAvailable of this host is "
				    "0: lower kv_ram_bytes"));
	/* A host that has none says so, not that they are too large. */
	l = with_huge_pages_of(0);
	wish.require_huge = true;
	assert_int_equal(arena_limits_allow(&l, &wish, why), -ENOMEM);
	assert_non_null(strstr(why, "this host has none"));
}

static void the_check_and_the_explanation_say_that_they_do_not_fit(void **state)
{
	struct arena_wish wish = wish_of(CHUNK);
	char why[ARENA_NOTE_BYTES] = "";

	(void)state;
	wish.require_huge = true;
	failpoint_arm(FAILPOINT_arena_gigantic, 0, 3);
	assert_int_equal(arena_check(&wish, why), -EINVAL);
	assert_non_null(strstr(why, "set kv_ram_chunk_bytes to 1073741824 and kv_ram_bytes to "
				    "1073741824, or boot"));
	why[0] = 0;
	arena_explain(&wish, -ENOMEM, why);
	assert_non_null(strstr(why, "which does not divide both"));

	wish.require_huge = false;
	failpoint_arm(FAILPOINT_arena_starved, 0, 1);
	assert_int_equal(arena_check(&wish, why), -ENOMEM);
	assert_non_null(strstr(why, "KV-RAM wants 4194304 bytes, MemAvailable of this host is 0"));
}

/* ---- what changes after the check ---- */

/* Whoever takes huge pages from the host: those of the arena were promised to it as a whole. */
static void what_was_promised_comes_though_others_want_all_huge_pages(void **state)
{
	struct world *w = *state;
	struct arena_wish wish = wish_of(3 * CHUNK);
	char why[ARENA_NOTE_BYTES] = "";
	void *others[16];
	uint64_t bytes[16];
	size_t n = 0;
	struct arena *a;

	wish.require_huge = true;
	if (arena_check(&wish, why) ||
	    arena_new(&wish, &w->executor.executor, count_changed, w, &w->arena)) {
		print_message("arena: %s\n", why);
		skip();
	}
	a = w->arena;
	step(w, 0);
	step(w, 0);
	assert_int_equal(a->arrived_bytes, CHUNK);
	/* All that the host still promises to anybody, by halves; not for longer than this takes.
	 */
	for (uint64_t want = 1ull << 40; want >= FRAME_BYTES && n < 16; want /= 2) {
		void *memory = mmap(NULL, want, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

		if (memory == MAP_FAILED)
			continue;
		others[n] = memory;
		bytes[n++] = want;
	}
	step(w, 0);
	step(w, 0);
	while (n > 0) {
		n--;
		assert_int_equal(munmap(others[n], bytes[n]), 0);
	}
	assert_int_equal(a->state, ARENA_WHOLE);
	check_consistent(a);
}

/* A child's checks: the line of the one that failed is its status. */
#define CHILD_MUST(condition)                                                                      \
	do {                                                                                       \
		if (!(condition))                                                                  \
			_exit(__LINE__ % 250 + 2);                                                 \
	} while (0)
#define CHILD_SKIPS 1

static void child_limits_locked_memory(uint64_t bytes)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	struct rlimit limit;

	CHILD_MUST(syscall(SYS_capget, &head, data) == 0);
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	CHILD_MUST(syscall(SYS_capset, &head, data) == 0);
	CHILD_MUST(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (limit.rlim_max < bytes)
		_exit(CHILD_SKIPS);
	limit.rlim_cur = bytes;
	CHILD_MUST(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

static void child_step(struct world *w)
{
	CHILD_MUST(sim_executor_step(&w->executor, 0));
	CHILD_MUST(w->executor.executor.reap(&w->executor.executor, 9) == 1);
}

static void child_has_its_limit_lowered(struct world *w)
{
	struct arena_wish wish = wish_of(3 * CHUNK);
	char why[ARENA_NOTE_BYTES] = "";
	struct arena *a;

	wish.lock = true;
	wish.threads = 1;
	child_limits_locked_memory(CHUNK);
	CHILD_MUST(arena_check(&wish, why) == -EPERM);
	CHILD_MUST(
	    strstr(why, "KV-RAM wants 12582912 bytes locked, RLIMIT_MEMLOCK allows 4194304"));
	CHILD_MUST(strstr(why, "LimitMEMLOCK=infinity"));

	CHILD_MUST(arena_new(&wish, &w->executor.executor, count_changed, w, &w->arena) == 0);
	a = w->arena;
	child_step(w);
	child_step(w);
	CHILD_MUST(a->state == ARENA_ARRIVING && a->arrived_bytes == CHUNK);
	CHILD_MUST(strstr(a->note, "locked, ") == a->note);

	child_limits_locked_memory(MIB);
	child_step(w);
	CHILD_MUST(a->state == ARENA_PARTIAL && a->result == -EPERM && w->n_changed == 2);
	CHILD_MUST(strstr(a->note, "4194304 of 12582912 bytes are there: KV-RAM wants "));
	CHILD_MUST(strstr(a->note, "RLIMIT_MEMLOCK allows 1048576"));
	CHILD_MUST(strstr(a->note, "LimitMEMLOCK=infinity"));
	CHILD_MUST(sim_executor_is_idle(&w->executor));

	/* What arrived goes on serving. */
	CHILD_MUST(frames_sums(a->frames).capacity_bytes == CHUNK);
	memset(a->memory, 1, CHUNK);
	CHILD_MUST(arena_stop(a));
	arena_free(&w->arena);
	_exit(0);
}

static void a_limit_of_locked_memory_refuses_at_the_start_and_ends_the_growth_later(void **state)
{
	for (unsigned no_pool = 0; no_pool < 2; no_pool++) {
		pid_t child;
		int status;

		failpoint_arm(FAILPOINT_arena_pool, 0, no_pool);
		child = fork();
		assert_true(child >= 0);
		if (child == 0)
			child_has_its_limit_lowered(*state);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) == CHILD_SKIPS)
			skip();
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_check_says_what_cannot_be_had),
	    TEST(what_others_took_after_the_check_is_told_like_what_was_never_there),
	    TEST(huge_pages_that_do_not_fit_are_refused_with_the_keys_that_make_them_fit),
	    TEST(what_it_says_to_set_is_what_fits),
	    TEST(huge_pages_that_no_chunk_can_fill_are_not_to_be_fitted),
	    TEST(where_huge_pages_do_not_fit_the_memory_of_the_host_counts),
	    TEST(the_check_and_the_explanation_say_that_they_do_not_fit),
	    TEST(what_was_promised_comes_though_others_want_all_huge_pages),
	    TEST(a_limit_of_locked_memory_refuses_at_the_start_and_ends_the_growth_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
