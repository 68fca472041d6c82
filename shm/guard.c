/* SPDX-License-Identifier: Apache-2.0 */

/*
 * guard: see guard.h. The frame of a guarded call is the calling thread's own; nothing blocks.
 *
 * The handler does not block its own signal (SA_NODEFER), so leaving it by a jump leaves no mask
 * behind, and the hot path makes no system call to save one.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/guard.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <ucontext.h>

struct guard_frame {
	sigjmp_buf escape;
};

/* Only its own thread and that thread's handler touch it. The model keeps the access in a handler
 * free of allocation, also when this code is in a shared library. */
static __thread struct guard_frame *volatile innermost __attribute__((tls_model("initial-exec")));

static struct sigaction before;
static atomic_bool installed;

static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
	struct guard_frame *frame = innermost;
	bool by_access = info->si_code == BUS_ADRERR || info->si_code == BUS_MCEERR_AR;

	if (frame && by_access) {
		innermost = NULL;
		/* A tool that stands between us and the signal may have blocked more. */
		pthread_sigmask(SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, NULL);
		siglongjmp(frame->escape, 1);
	}

	/* Not ours. After an access the same instruction runs again and dies at its own place. */
	sigaction(SIGBUS, &before, NULL);
	if (!by_access)
		raise(signal_number);
}

int guard_install(void)
{
	struct sigaction action;
	int r = 0;

	if (atomic_exchange(&installed, true))
		return 0;
	memset(&action, 0, sizeof(action));
	action.sa_sigaction = on_bus_error;
	action.sa_flags = SA_SIGINFO | SA_NODEFER;
	sigemptyset(&action.sa_mask);
	if (sigaction(SIGBUS, &action, &before) < 0) {
		r = -errno;
		atomic_store(&installed, false);
	}
	return r;
}

/* The compiler must not move the guarded accesses out of the time when the frame is set. */
static inline void enter(struct guard_frame *frame)
{
	assert(!innermost);
	innermost = frame;
	atomic_signal_fence(memory_order_seq_cst);
}

static inline void leave(void)
{
	atomic_signal_fence(memory_order_seq_cst);
	innermost = NULL;
}

int guard_copy(void *to, const void *from, size_t bytes)
{
	struct guard_frame frame;

	if (sigsetjmp(frame.escape, 0))
		return -EFAULT;
	enter(&frame);
	memcpy(to, from, bytes);
	leave();
	return 0;
}

int guard_zero(void *to, size_t bytes)
{
	struct guard_frame frame;

	if (sigsetjmp(frame.escape, 0))
		return -EFAULT;
	enter(&frame);
	memset(to, 0, bytes);
	leave();
	return 0;
}

int guard_run(void (*body)(void *context), void *context)
{
	struct guard_frame frame;

	assert(body);
	if (sigsetjmp(frame.escape, 0))
		return -EFAULT;
	enter(&frame);
	body(context);
	leave();
	return 0;
}
