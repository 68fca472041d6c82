/* SPDX-License-Identifier: Apache-2.0 */

/*
 * test_guard: memory that is gone, read and written under the guard.
 *
 * Each case runs in a child: the guard is installed once a process, and some cases must die.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/guard.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/segment.h"

#define HELD  0 /* exit status of a child in which all was as it should be */
#define BROKE 1

/* Two pages of which the second is no more: to touch it is SIGBUS. */
static char *half_gone(size_t *page)
{
	int fd = memfd_create("half", MFD_CLOEXEC);
	char *memory;

	*page = segment_base_page_bytes();
	if (fd < 0 || ftruncate(fd, (off_t)(2 * *page)) < 0)
		_exit(BROKE);
	memory = mmap(NULL, 2 * *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		_exit(BROKE);
	memset(memory, 7, 2 * *page);
	if (ftruncate(fd, (off_t)*page) < 0)
		_exit(BROKE);
	close(fd);
	return memory;
}

/* The wait status of a child that runs `body` with the guard installed over the default action. */
static int in_child(bool (*body)(void))
{
	const struct rlimit no_core = {0};
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		setrlimit(RLIMIT_CORE, &no_core);
		prctl(PR_SET_DUMPABLE, 0);
		close(STDERR_FILENO); /* what an assertion says is expected */
		signal(SIGBUS, SIG_DFL);
		signal(SIGABRT, SIG_DFL);
		if (guard_install() != 0)
			_exit(BROKE);
		_exit(body() ? HELD : BROKE);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void holds(bool (*body)(void))
{
	int status = in_child(body);

	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), HELD);
}

static void dies(bool (*body)(void), int signal_number)
{
	int status = in_child(body);

	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), signal_number);
}

static bool copies(void)
{
	size_t page;
	char *memory = half_gone(&page);
	char *mine = calloc(2, page);

	return guard_copy(mine, memory, page) == 0 && mine[page - 1] == 7 &&
	       guard_copy(mine, memory, 2 * page) == -EFAULT &&
	       guard_copy(memory, mine, 2 * page) == -EFAULT &&
	       guard_copy(mine, memory + page, 1) == -EFAULT &&
	       guard_copy(memory, mine, page) == 0 && guard_copy(mine, memory, 0) == 0;
}

static void a_copy_from_or_to_missing_memory_is_an_error(void **state)
{
	(void)state;
	holds(copies);
}

static bool zeroes(void)
{
	size_t page;
	char *memory = half_gone(&page);

	return guard_zero(memory, page) == 0 && memory[page - 1] == 0 &&
	       guard_zero(memory + page, 1) == -EFAULT && guard_zero(memory, page) == 0;
}

static void zeroing_missing_memory_is_an_error(void **state)
{
	(void)state;
	holds(zeroes);
}

static volatile sig_atomic_t steps_done;

static void touch(void *memory)
{
	steps_done = 1;
	*(volatile char *)memory = 1;
	steps_done = 2;
}

static bool runs(void)
{
	size_t page;
	char *memory = half_gone(&page);

	if (guard_run(touch, memory) != 0 || steps_done != 2)
		return false;
	return guard_run(touch, memory + page) == -EFAULT && steps_done == 1;
}

static void a_body_is_left_at_the_fault(void **state)
{
	(void)state;
	holds(runs);
}

static bool faults_often(void)
{
	size_t page;
	char *memory = half_gone(&page);
	sigset_t blocked;
	char c;

	for (int i = 0; i < 1000; i++)
		if (guard_copy(&c, memory + page, 1) != -EFAULT)
			return false;
	return sigprocmask(SIG_BLOCK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGBUS);
}

static void many_faults_leave_no_signal_blocked(void **state)
{
	(void)state;
	holds(faults_often);
}

static void *fault_in_thread(void *gone)
{
	char c;

	for (int i = 0; i < 1000; i++)
		if (guard_copy(&c, gone, 1) != -EFAULT)
			return gone;
	return NULL;
}

static bool threads_fault(void)
{
	size_t page;
	char *memory = half_gone(&page);
	pthread_t one, two;
	void *r1, *r2;

	if (pthread_create(&one, NULL, fault_in_thread, memory + page) != 0 ||
	    pthread_create(&two, NULL, fault_in_thread, memory + page) != 0)
		return false;
	pthread_join(one, &r1);
	pthread_join(two, &r2);
	return !r1 && !r2;
}

static void each_thread_has_its_own_guard(void **state)
{
	(void)state;
	holds(threads_fault);
}

static bool touches_unguarded(void)
{
	size_t page;
	char *memory = half_gone(&page);
	char c;

	if (guard_copy(&c, memory + page, 1) != -EFAULT)
		return false;
	*(volatile char *)(memory + page) = 1;
	return true;
}

static void outside_a_guarded_call_the_signal_kills(void **state)
{
	(void)state;
	dies(touches_unguarded, SIGBUS);
}

static void send_signal(void *context)
{
	(void)context;
	raise(SIGBUS);
}

static bool is_sent_the_signal(void)
{
	guard_run(send_signal, NULL);
	return true;
}

static void a_signal_that_somebody_sent_is_no_fault_and_kills(void **state)
{
	(void)state;
	dies(is_sent_the_signal, SIGBUS);
}

static void nest(void *context)
{
	guard_run(touch, context);
}

static bool nests(void)
{
	char c;

	guard_run(nest, &c);
	return true;
}

static void a_nested_guard_is_an_assertion(void **state)
{
	(void)state;
	dies(nests, SIGABRT);
}

static bool installs_twice(void)
{
	size_t page;
	char *memory = half_gone(&page);

	if (guard_install() != 0)
		return false;
	*(volatile char *)(memory + page) = 1;
	return true;
}

static void a_second_install_does_not_forget_the_first_action(void **state)
{
	(void)state;
	dies(installs_twice, SIGBUS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_copy_from_or_to_missing_memory_is_an_error),
	    cmocka_unit_test(zeroing_missing_memory_is_an_error),
	    cmocka_unit_test(a_body_is_left_at_the_fault),
	    cmocka_unit_test(many_faults_leave_no_signal_blocked),
	    cmocka_unit_test(each_thread_has_its_own_guard),
	    cmocka_unit_test(outside_a_guarded_call_the_signal_kills),
	    cmocka_unit_test(a_signal_that_somebody_sent_is_no_fault_and_kills),
	    cmocka_unit_test(a_nested_guard_is_an_assertion),
	    cmocka_unit_test(a_second_install_does_not_forget_the_first_action),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
