/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_THREAD_H
#define KVHOST_BASE_THREAD_H

/*
 * thread: starting a helper thread of the daemon. Signals are the core thread's; a helper keeps
 * only those that its own instructions raise. Any thread; waits for nothing.
 */

#include <pthread.h>

/* name: at most 15 bytes, shown by ps and top. 0 or -errno; on success `out` is to be joined. */
int thread_start(const char *name, void *(*body)(void *argument), void *argument, pthread_t *out);

#endif
