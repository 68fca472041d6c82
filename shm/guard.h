/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_GUARD_H
#define KVHOST_SHM_GUARD_H

/*
 * guard: touch memory that a peer can punch, without dying of it.
 *
 * A hole in a huge-page file is SIGBUS when the host has no huge page left. guard_install sets one
 * handler for the process; inside a guarded call of the same thread the handler makes the call
 * return -EFAULT, anywhere else the signal kills as before. Only the daemon installs it.
 * Signal-safe, thread-safe, nestable never.
 */

#include <stddef.h>

int guard_install(void); /* 0 or -errno; once a process */

/* 0 or -EFAULT. A fault may leave a part copied. */
int guard_copy(void *to, const void *from, size_t bytes);
int guard_zero(void *to, size_t bytes);

/* Run `body` under the guard: 0 or -EFAULT. It must not take locks or allocate. */
int guard_run(void (*body)(void *context), void *context);

#endif
