/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/arena_memory.h: a memory file that fills part by part. They use huge pages
 * where the host has some free, collapsed or base pages else, and say which.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/arena_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "daemon/tier/arena.h"

/* Under a sanitizer munlock is replaced by nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNLOCKS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNLOCKS 0
#endif
#endif
#ifndef UNLOCKS
#define UNLOCKS 1
#endif

#define MIB        (1ull << 20)
#define PART       (4 * MIB)
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const _Atomic bool never = false;

static int setup(void **state)
{
	(void)state;
	failpoint_clear();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	failpoint_clear();
	return 0;
}

enum pages {
	BEST,
	COLLAPSED,
	SMALL,
};

static struct arena_memory made(uint64_t bytes, enum pages pages)
{
	struct arena_memory_wish wish = {.name = "test",
					 .bytes = bytes,
					 .part_bytes = PART,
					 .pool = pages == BEST,
					 .collapse = pages != SMALL,
					 .numa_node = NODES_ANYWHERE};
	struct arena_memory m = ARENA_MEMORY_NONE;

	assert_int_equal(arena_memory_make(&wish, &m), 0);
	return m;
}

/* Of the host's pages how many bytes the file has. */
static uint64_t taken(const struct arena_memory *m)
{
	struct stat status;

	assert_int_equal(fstat(m->fd, &status), 0);
	return (uint64_t)status.st_blocks * 512;
}

/* The flags of the mapping that an address lies in, as /proc says them: " rd wr sh ... ". */
static void flags_of(const void *address, char flags[256])
{
	unsigned long from = 0, to = 0;
	char line[512];
	FILE *f = fopen("/proc/self/smaps", "re");

	assert_non_null(f);
	flags[0] = 0;
	while (!flags[0] && fgets(line, sizeof(line), f)) {
		unsigned long first, last;

		if (sscanf(line, "%lx-%lx ", &first, &last) == 2) {
			from = first;
			to = last;
		} else if (strncmp(line, "VmFlags:", 8) == 0 && (unsigned long)address >= from &&
			   (unsigned long)address < to) {
			snprintf(flags, 256, "%.255s", line + 8);
		}
	}
	fclose(f);
}

static bool has_flag(const void *address, const char *flag)
{
	char flags[256];

	flags_of(address, flags);
	return strstr(flags, flag) != NULL;
}

static sigjmp_buf out_of_a_fault;

static void leave_fault(int signal)
{
	siglongjmp(out_of_a_fault, signal);
}

/* The signal that a touch raises, or 0. */
static int touch(char *address)
{
	const struct sigaction catch = {.sa_handler = leave_fault};
	struct sigaction segv, bus;
	volatile int raised;

	assert_int_equal(sigaction(SIGSEGV, &catch, &segv), 0);
	assert_int_equal(sigaction(SIGBUS, &catch, &bus), 0);
	raised = sigsetjmp(out_of_a_fault, 1);
	if (raised == 0)
		*(volatile char *)address = 1;
	assert_int_equal(sigaction(SIGSEGV, &segv, NULL), 0);
	assert_int_equal(sigaction(SIGBUS, &bus, NULL), 0);
	return raised;
}

static void the_file_is_sealed_and_private_and_in_no_dump_or_child(void **state)
{
	struct arena_memory m = made(3 * PART, BEST);
	struct stat status;

	(void)state;
	assert_int_equal(fcntl(m.fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
			 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(fstat(m.fd, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
	assert_int_equal(status.st_size, 3 * PART);
	assert_int_equal(fcntl(m.fd, F_GETFD), FD_CLOEXEC);
	assert_true(has_flag(m.memory, " dd"));
	assert_true(has_flag(m.memory, " dc"));
	assert_int_equal((uintptr_t)m.memory % FRAME_BYTES, 0);
	assert_int_equal((uintptr_t)m.memory % m.page_bytes, 0);
	assert_int_equal(taken(&m), 0);
	arena_memory_free(&m);
	assert_int_equal(m.fd, -1);
	arena_memory_free(&m);
}

static void what_lies_around_it_is_nobodys(void **state)
{
	struct arena_memory m = made(PART, BEST), odd = made(4096, SMALL);
	char *end;

	(void)state;
	assert_int_equal(arena_memory_populate(&m, 0, PART, 1, &never), 0);
	assert_int_equal(touch(m.memory), 0);
	assert_int_equal(touch(m.memory + PART - 1), 0);
	assert_int_equal(touch(m.memory + PART), SIGSEGV);
	end = (char *)m.place + m.place_bytes;
	assert_true(end - (m.memory + PART) >= (ptrdiff_t)FRAME_BYTES);
	assert_int_equal(touch(end - 1), SIGSEGV);
	assert_int_equal(touch(odd.memory), 0);
	assert_int_equal(touch(odd.memory + odd.bytes), SIGSEGV);
	arena_memory_free(&m);
	arena_memory_free(&odd);
}

static void a_part_is_there_when_it_was_populated_and_no_other(void **state)
{
	struct arena_memory m = made(3 * PART, BEST);

	(void)state;
	assert_int_equal(arena_memory_populate(&m, PART, PART, 1, &never), 0);
	assert_int_equal(taken(&m), PART);
	memset(m.memory + PART, 7, PART);
	assert_int_equal(taken(&m), PART);
	arena_memory_discard(&m, PART, PART);
	assert_int_equal(taken(&m), 0);
	assert_int_equal(arena_memory_populate(&m, PART, PART, 1, &never), 0);
	assert_int_equal(m.memory[PART], 0);
	print_message("arena_memory: %s pages\n", segment_backing_name(m.backing));
	arena_memory_free(&m);
}

static void there_is_something_to_take_where_there_are_no_huge_pages(void **state)
{
	struct arena_memory m;

	(void)state;
	failpoint_arm(FAILPOINT_arena_pool, 0, 1);
	m = made(PART, BEST);
	assert_int_not_equal(m.backing, SEGMENT_HUGETLB);
	arena_memory_free(&m);
}

static void several_threads_fetch_a_part_and_fewer_do_if_they_cannot_be_started(void **state)
{
	const uint64_t bytes = 96 * MIB;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct arena_memory m = made(bytes, BEST);

		failpoint_clear();
		if (i)
			failpoint_arm(FAILPOINT_thread_start, 1, 100);
		assert_int_equal(arena_memory_populate(&m, 0, bytes, 3, &never), 0);
		assert_int_equal(failpoint_passes(FAILPOINT_thread_start), 2);
		assert_int_equal(taken(&m), bytes);
		arena_memory_discard(&m, 0, bytes);
		assert_int_equal(arena_memory_populate(&m, 0, bytes, 1, &never), 0);
		assert_int_equal(failpoint_passes(FAILPOINT_thread_start), 2);
		arena_memory_free(&m);
	}
}

static void small_pages_are_fetched_whole_too(void **state)
{
	const size_t base = segment_base_page_bytes();
	struct arena_memory m = made(PART + base, SMALL);
	unsigned char there[2];

	(void)state;
	assert_int_equal(m.backing, SEGMENT_SMALL);
	assert_int_equal(m.page_bytes, base);
	assert_int_equal(arena_memory_populate(&m, base, PART, 2, &never), 0);
	assert_int_equal(taken(&m), PART);
	assert_int_equal(mincore(m.memory, 2 * base, there), 0);
	assert_int_equal(there[0] & 1, 0);
	assert_int_equal(there[1] & 1, 1);
	arena_memory_discard(&m, base, PART);
	assert_int_equal(arena_memory_populate(&m, 0, base, 2, &never), 0);
	assert_int_equal(taken(&m), base);
	arena_memory_free(&m);
}

static void lack_of_memory_and_cancelling_are_results(void **state)
{
	struct arena_memory m = made(3 * PART, BEST);
	_Atomic bool cancelled = true;

	(void)state;
	assert_int_equal(arena_memory_populate(&m, 0, PART, 2, &cancelled), -ECANCELED);
	assert_int_equal(taken(&m), 0);
	failpoint_arm(FAILPOINT_arena_chunk, 1, 1);
	assert_int_equal(arena_memory_populate(&m, 0, PART, 2, &never), -ENOMEM);
	assert_true(taken(&m) < PART);
	arena_memory_discard(&m, 0, PART);
	assert_int_equal(taken(&m), 0);
	assert_int_equal(arena_memory_populate(&m, 0, PART, 2, &never), 0);
	arena_memory_free(&m);
}

static void memory_is_locked_as_it_comes(void **state)
{
	for (enum pages pages = COLLAPSED; pages <= SMALL; pages++) {
		struct arena_memory m = made(3 * PART, pages);
		int r = arena_memory_lock(&m, PART, PART);

		(void)state;
		if (r) {
			arena_memory_free(&m);
			skip();
		}
		assert_int_equal(taken(&m), 0);
		assert_int_equal(arena_memory_populate(&m, PART, PART, 1, &never), 0);
		assert_int_equal(taken(&m), PART);
		assert_true(has_flag(m.memory + PART, " lo"));
		assert_false(has_flag(m.memory, " lo"));
		assert_false(has_flag(m.memory + 2 * PART, " lo"));
		arena_memory_discard(&m, PART, PART);
		if (UNLOCKS)
			assert_false(has_flag(m.memory + PART, " lo"));
		arena_memory_free(&m);
	}
}

/* As if over three nodes: the page that comes first decides where a huge page lies, and a base
 * page's number decides on which node it comes. */
static void huge_pages_made_of_small_ones_take_turns_on_the_nodes(void **state)
{
	struct arena_memory m = made(3 * PART, COLLAPSED);
	const size_t base = segment_base_page_bytes();
	static unsigned char there[3 * PART / 4096];
	unsigned int n = 0;

	(void)state;
	if (m.backing != SEGMENT_COLLAPSED || m.page_bytes != FRAME_BYTES) {
		arena_memory_free(&m);
		skip();
	}
	m.nodes = 3;
	failpoint_arm(FAILPOINT_arena_chunk, 5, 1);
	assert_int_equal(arena_memory_populate(&m, 0, 3 * PART, 1, &never), -ENOMEM);
	assert_int_equal(mincore(m.memory, 3 * PART, there), 0);
	for (size_t page = 0; page < 3 * PART / base; page++) {
		if (!(there[page] & 1))
			continue;
		assert_int_equal(page * base / FRAME_BYTES, n);
		assert_int_equal(page % 3, n % 3);
		n++;
	}
	assert_int_equal(n, 5);
	arena_memory_discard(&m, 0, 3 * PART);
	assert_int_equal(arena_memory_populate(&m, 0, 3 * PART, 1, &never), 0);
	assert_int_equal(taken(&m), 3 * PART);
	arena_memory_free(&m);
}

static void base_pages_serve_where_they_cannot_be_made_huge(void **state)
{
	struct arena_memory m = made(PART, COLLAPSED);

	(void)state;
	assert_int_equal(arena_memory_backing(&m).backing, m.backing);
	if (m.backing != SEGMENT_COLLAPSED) {
		arena_memory_free(&m);
		skip();
	}
	/* Another mapping at an odd place: the kernel cannot make it huge there. */
	assert_int_equal(munmap(m.memory, PART), 0);
	m.memory = mmap(m.memory + segment_base_page_bytes(), PART, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_FIXED, m.fd, 0);
	assert_true(m.memory != MAP_FAILED);
	assert_int_equal(arena_memory_populate(&m, 0, PART, 1, &never), 0);
	assert_int_equal(taken(&m), PART);
	assert_int_equal(arena_memory_backing(&m).backing, SEGMENT_SMALL);
	assert_int_equal(arena_memory_backing(&m).page_bytes, segment_base_page_bytes());
	arena_memory_free(&m);
}

static void required_huge_pages_are_from_the_pool_or_an_error(void **state)
{
	struct arena_memory_wish wish = {.name = "test",
					 .bytes = PART,
					 .part_bytes = PART,
					 .require_pool = true,
					 .numa_node = NODES_INTERLEAVE};
	struct arena_memory m = ARENA_MEMORY_NONE;
	int r = arena_memory_make(&wish, &m), next;

	(void)state;
	assert_true(r == 0 || r == -ENOMEM);
	if (r == 0) {
		assert_int_equal(m.backing, SEGMENT_HUGETLB);
		assert_int_equal(m.page_bytes, segment_huge_page_bytes());
		assert_int_equal(arena_memory_populate(&m, 0, PART, 1, &never), 0);
	}
	arena_memory_free(&m);

	/* More than any host has, and more than there are addresses; nothing stays open. */
	next = dup(0);
	close(next);
	wish.bytes = 1ull << 45;
	assert_int_equal(arena_memory_make(&wish, &m), -ENOMEM);
	wish.require_pool = false;
	wish.bytes = 1ull << 60;
	assert_int_equal(arena_memory_make(&wish, &m), -ENOMEM);
	wish.bytes = 1ull << 63;
	assert_int_equal(arena_memory_make(&wish, &m), -EINVAL);
	assert_int_equal(dup(0), next);
	close(next);
}

static void memory_lies_on_the_node_that_was_named(void **state)
{
	struct arena_memory_wish wish = {
	    .name = "test", .bytes = PART, .part_bytes = PART, .pool = true};
	struct arena_memory m = ARENA_MEMORY_NONE;
	unsigned long mask[64] = {0};
	int mode = -1, node = -1;

	(void)state;
	assert_false(nodes_have(5000, &node));
	assert_false(nodes_have(-1, &node));
	assert_true(nodes_have(node, &wish.numa_node));
	assert_int_equal(node, wish.numa_node);
	assert_int_equal(arena_memory_make(&wish, &m), 0);
	assert_int_equal(arena_memory_populate(&m, 0, PART, 1, &never), 0);
	if (numa_available() == 0) {
		assert_int_equal(
		    get_mempolicy(&mode, mask, 64 * 8 * sizeof(mask[0]), m.memory, MPOL_F_ADDR), 0);
		assert_int_equal(mode, MPOL_BIND);
		assert_int_equal(mask[node / 64], 1ul << node % 64);
		assert_int_equal(get_mempolicy(&mode, NULL, 0, m.memory, MPOL_F_NODE | MPOL_F_ADDR),
				 0);
		assert_int_equal(mode, node);
	}
	arena_memory_free(&m);

	wish.numa_node = 5000;
	assert_int_equal(arena_memory_make(&wish, &m), -EINVAL);
	assert_int_equal(m.fd, -1);
}

/* ---- others map memory meanwhile ---- */

#define OTHERS       8000u
#define OTHERS_BYTES (64 * MIB)

static _Atomic bool over;
static char *others[OTHERS];

/* What it maps stays: so the next goes where there was nothing before. */
static void *map_more_and_more(void *argument)
{
	unsigned *n = argument;

	for (*n = 0; *n < OTHERS && !over; ++*n) {
		char *memory = mmap(NULL, OTHERS_BYTES, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (memory == MAP_FAILED)
			break;
		others[*n] = memory;
	}
	return argument;
}

/* A file that cannot be mapped leaves a hole where it was to be: what another thread maps there is
 * that one's. More huge pages than any host has. */
static void who_cannot_be_mapped_takes_nothing_from_others(void **state)
{
	struct arena_memory_wish wish = {.name = "kvhost-test",
					 .bytes = 1ull << 40,
					 .part_bytes = 1ull << 30,
					 .require_pool = true,
					 .numa_node = NODES_ANYWHERE};
	struct arena_memory m = ARENA_MEMORY_NONE;
	unsigned n = 0, gone = 0;
	pthread_t other;

	(void)state;
	over = false;
	assert_int_equal(pthread_create(&other, NULL, map_more_and_more, &n), 0);
	for (unsigned i = 0; i < 2000; i++)
		assert_true(arena_memory_make(&wish, &m) < 0);
	over = true;
	assert_int_equal(pthread_join(other, NULL), 0);
	for (unsigned i = 0; i < n; i++) {
		gone += msync(others[i], OTHERS_BYTES, MS_ASYNC) != 0;
		munmap(others[i], OTHERS_BYTES);
	}
	print_message("%u mapped meanwhile, %u gone\n", n, gone);
	assert_true(n > 0);
	assert_int_equal(gone, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_file_is_sealed_and_private_and_in_no_dump_or_child),
	    TEST(what_lies_around_it_is_nobodys),
	    TEST(a_part_is_there_when_it_was_populated_and_no_other),
	    TEST(there_is_something_to_take_where_there_are_no_huge_pages),
	    TEST(several_threads_fetch_a_part_and_fewer_do_if_they_cannot_be_started),
	    TEST(small_pages_are_fetched_whole_too),
	    TEST(lack_of_memory_and_cancelling_are_results),
	    TEST(memory_is_locked_as_it_comes),
	    TEST(huge_pages_made_of_small_ones_take_turns_on_the_nodes),
	    TEST(base_pages_serve_where_they_cannot_be_made_huge),
	    TEST(required_huge_pages_are_from_the_pool_or_an_error),
	    TEST(memory_lies_on_the_node_that_was_named),
	    TEST(who_cannot_be_mapped_takes_nothing_from_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
