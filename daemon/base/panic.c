/* SPDX-License-Identifier: Apache-2.0 */

/*
 * panic: the one way to die. Any thread; the hook and the write to stderr may wait, which no longer
 * matters. The state here is the process's own, like abort() itself.
 */

#include "daemon/base/panic.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void (*panic_hook)(void *context, const char *text);
static void *panic_context;
static atomic_flag panic_begun = ATOMIC_FLAG_INIT;
static _Thread_local bool panic_is_ours;

void panic_set_hook(void (*hook)(void *context, const char *text), void *context)
{
	panic_hook = hook;
	panic_context = context;
}

void panic_at(const char *file, int line, const char *function, const char *text)
{
	char sentence[512];

	/* A panic inside the hook: the hook cannot be asked again. */
	if (panic_is_ours)
		abort();
	panic_is_ours = true;

	/* A second thread must not abort before the first has left its text. */
	while (atomic_flag_test_and_set(&panic_begun))
		pause();

	snprintf(sentence, sizeof(sentence), "kvhostd panic: %s:%d: %s: %s", file, line, function,
		 text);
	if (panic_hook)
		panic_hook(panic_context, sentence);

	dprintf(STDERR_FILENO, "%s\n", sentence);
	abort();
}
