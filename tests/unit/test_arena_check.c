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
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/arena_world.h"

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
	    TEST(what_was_promised_comes_though_others_want_all_huge_pages),
	    TEST(a_limit_of_locked_memory_refuses_at_the_start_and_ends_the_growth_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
