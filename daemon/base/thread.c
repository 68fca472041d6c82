/* SPDX-License-Identifier: Apache-2.0 */

/* thread: starting a helper thread of the daemon. Any thread; waits for nothing. */

#include "daemon/base/thread.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

#define NAME_BYTES_MAX 15 /* the kernel's limit for the name of a thread */

int thread_start(const char *name, void *(*body)(void *argument), void *argument, pthread_t *out)
{
	const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT};
	sigset_t blocked, before;
	int r;

	must(name && strlen(name) <= NAME_BYTES_MAX);
	if (failpoint(thread_start))
		return -EAGAIN;

	/* The mask is inherited, so that no signal finds the thread before it could set its own. */
	sigfillset(&blocked);
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		sigdelset(&blocked, own[i]);
	must(pthread_sigmask(SIG_SETMASK, &blocked, &before) == 0);
	r = pthread_create(out, NULL, body, argument);
	must(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	if (r)
		return -r;

	/* A name is a help to people; a thread without one works as well. */
	(void)pthread_setname_np(*out, name);
	return 0;
}
