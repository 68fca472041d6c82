/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/base/panic.h: each panic happens in a child process. */

#include "daemon/base/panic.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void write_text(void *context, const char *text)
{
	const int *fd = context;

	if (write(*fd, text, strlen(text)) < 0)
		_exit(1);
}

static void write_and_panic_again(void *context, const char *text)
{
	write_text(context, text);
	cannot_happen("inside the hook");
}

/* Runs `dies` in a child with a hook; its text to the hook, and how it ended. */
static int death_of(void (*dies)(void), void (*hook)(void *context, const char *text), char *text,
		    size_t bytes)
{
	const struct rlimit no_core = {0};
	int fds[2], status;
	ssize_t n;
	pid_t child;

	assert_int_equal(pipe(fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(STDERR_FILENO);
		setrlimit(RLIMIT_CORE, &no_core);
		panic_set_hook(hook, &fds[1]);
		dies();
		_exit(0);
	}
	close(fds[1]);
	n = read(fds[0], text, bytes - 1);
	assert_true(n >= 0);
	text[n] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void break_a_rule(void)
{
	volatile int two = 2;

	must(two == 2);
	must(two == 3);
}

static void reach_the_unreachable(void)
{
	cannot_happen("a page of no tier");
}

static void a_broken_rule_tells_the_hook_what_and_where_and_aborts(void **state)
{
	char text[600];
	int status;

	(void)state;
	status = death_of(break_a_rule, write_text, text, sizeof(text));
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "test_panic.c:"));
	assert_non_null(strstr(text, "break_a_rule: must: two == 3"));
}

static void the_words_of_a_panic_say_its_kind(void **state)
{
	char text[600];

	(void)state;
	assert_true(WIFSIGNALED(death_of(reach_the_unreachable, write_text, text, sizeof(text))));
	assert_non_null(strstr(text, "cannot happen: a page of no tier"));
}

static void a_panic_inside_the_hook_still_ends_the_process(void **state)
{
	char text[600];
	int status;

	(void)state;
	status = death_of(break_a_rule, write_and_panic_again, text, sizeof(text));
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "two == 3"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_broken_rule_tells_the_hook_what_and_where_and_aborts),
	    cmocka_unit_test(the_words_of_a_panic_say_its_kind),
	    cmocka_unit_test(a_panic_inside_the_hook_still_ends_the_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
