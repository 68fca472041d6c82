/* SPDX-License-Identifier: Apache-2.0 */

/* test_segment: memory files of the daemon, and what a client may and may not do with them. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef F_SEAL_SEAL
#error "the C library lacks file seals"
#endif

static struct segment made(struct segment_wish wish)
{
	struct segment s = SEGMENT_NONE;

	wish.name = "test";
	assert_int_equal(segment_make(&wish, &s), 0);
	assert_non_null(s.memory);
	assert_true(s.fd >= 0);
	return s;
}

static void a_segment_is_rounded_up_to_its_pages(void **state)
{
	size_t page = segment_base_page_bytes();
	struct segment s = made((struct segment_wish){.bytes = page + 1});

	(void)state;
	assert_int_equal(s.bytes, 2 * page);
	assert_int_equal(s.page_bytes, page);
	assert_int_equal(s.backing, SEGMENT_SMALL);
	memset(s.memory, 5, s.bytes);
	segment_free(&s);
	assert_null(s.memory);
	assert_int_equal(s.fd, -1);
	segment_free(&s);
	segment_free(NULL);
}

static void a_segment_is_sealed_and_private_to_its_user(void **state)
{
	struct segment s = made((struct segment_wish){.bytes = 1});
	struct stat status;
	int seals = fcntl(s.fd, F_GET_SEALS);

	(void)state;
	assert_int_equal(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
			 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(ftruncate(s.fd, 0), -1);
	assert_int_equal(ftruncate(s.fd, (off_t)(2 * s.bytes)), -1);
	assert_int_equal(fcntl(s.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(fstat(s.fd, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
	assert_int_equal(fcntl(s.fd, F_GETFD), FD_CLOEXEC);
	segment_free(&s);
}

static void a_hole_that_a_client_punches_reads_as_zeros(void **state)
{
	struct segment s = made((struct segment_wish){.bytes = 1, .populate = true});

	(void)state;
	memset(s.memory, 5, s.bytes);
	assert_int_equal(
	    fallocate(s.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)s.page_bytes), 0);
	assert_int_equal(*(volatile char *)s.memory, 0);
	segment_free(&s);
}

static void a_populated_segment_has_all_its_memory(void **state)
{
	size_t page = segment_base_page_bytes();
	struct segment s = made((struct segment_wish){.bytes = 64 * page, .populate = true});
	unsigned char present[64];

	(void)state;
	assert_int_equal(mincore(s.memory, s.bytes, present), 0);
	for (int i = 0; i < 64; i++)
		assert_int_equal(present[i] & 1, 1);
	segment_free(&s);
}

static void a_huge_segment_is_the_best_that_the_host_has(void **state)
{
	struct segment s = made((struct segment_wish){.bytes = 3 << 20, .huge = true});

	(void)state;
	assert_true(s.bytes >= 3 << 20);
	assert_int_equal(s.bytes % s.page_bytes, 0);
	assert_int_equal((uintptr_t)s.memory % s.page_bytes, 0);
	assert_string_not_equal(segment_backing_name(s.backing), "?");
	if (s.backing == SEGMENT_HUGETLB)
		assert_int_equal(s.page_bytes, segment_huge_page_bytes());
	memset(s.memory, 5, s.bytes);
	segment_free(&s);
}

static void impossible_sizes_are_refused_and_leave_nothing_open(void **state)
{
	struct segment s = SEGMENT_NONE;
	struct segment_wish wish = {.bytes = 0};
	int next = dup(0);

	(void)state;
	close(next);
	assert_int_equal(segment_make(&wish, &s), -EINVAL);
	wish.bytes = SIZE_MAX;
	assert_int_equal(segment_make(&wish, &s), -EINVAL);
	wish.huge = true;
	assert_int_equal(segment_make(&wish, &s), -EINVAL);
	wish.bytes = (size_t)INT64_MAX - ((size_t)1 << 31);
	assert_true(segment_make(&wish, &s) < 0);
	assert_int_equal(s.fd, -1);
	assert_int_equal(dup(0), next);
	close(next);
}

static void both_sides_see_one_memory(void **state)
{
	struct segment ours = made((struct segment_wish){.bytes = 1 << 20});
	struct segment theirs;

	(void)state;
	assert_int_equal(segment_map(dup(ours.fd), &theirs), 0);
	assert_int_equal(theirs.bytes, ours.bytes);
	assert_int_equal(theirs.page_bytes, segment_base_page_bytes());
	memcpy(ours.memory, "to you", 7);
	assert_string_equal(theirs.memory, "to you");
	memcpy(theirs.memory, "to us", 6);
	assert_string_equal(ours.memory, "to us");
	segment_free(&ours);
	assert_string_equal(theirs.memory, "to us");
	segment_free(&theirs);
}

static void refused(int fd, int error)
{
	struct segment s = SEGMENT_NONE;

	assert_true(fd >= 0);
	assert_int_equal(segment_map(fd, &s), error);
	assert_null(s.memory);
	/* It took the descriptor all the same. */
	assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void a_descriptor_that_is_no_sealed_memory_is_refused(void **state)
{
	size_t page = segment_base_page_bytes();
	int fd = memfd_create("growing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int ends[2];

	(void)state;
	assert_int_equal(ftruncate(fd, (off_t)page), 0);
	refused(fd, -EPROTO);

	fd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refused(fd, -EPROTO);

	fd = memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, (off_t)page + 1), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refused(fd, -EPROTO);

	assert_int_equal(pipe(ends), 0);
	refused(ends[0], -EPROTO);
	close(ends[1]);
	refused(open("/dev/null", O_RDWR | O_CLOEXEC), -EPROTO);
}

/* How a child ends that reads the segment. */
static int status_of_reader(const struct segment *s)
{
	const struct rlimit no_core = {0};
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		setrlimit(RLIMIT_CORE, &no_core);
		signal(SIGSEGV, SIG_DFL);
		_exit(*(volatile char *)s->memory);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void a_forked_child_has_the_mapping_only_if_wished(void **state)
{
	struct segment without = made((struct segment_wish){.bytes = 1});
	struct segment with = made((struct segment_wish){.bytes = 1, .keep_in_forks = true});
	int status;

	(void)state;
	status = status_of_reader(&with);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	status = status_of_reader(&without);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	segment_free(&with);
	segment_free(&without);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_segment_is_rounded_up_to_its_pages),
	    cmocka_unit_test(a_segment_is_sealed_and_private_to_its_user),
	    cmocka_unit_test(a_hole_that_a_client_punches_reads_as_zeros),
	    cmocka_unit_test(a_populated_segment_has_all_its_memory),
	    cmocka_unit_test(a_huge_segment_is_the_best_that_the_host_has),
	    cmocka_unit_test(impossible_sizes_are_refused_and_leave_nothing_open),
	    cmocka_unit_test(both_sides_see_one_memory),
	    cmocka_unit_test(a_descriptor_that_is_no_sealed_memory_is_refused),
	    cmocka_unit_test(a_forked_child_has_the_mapping_only_if_wished),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
