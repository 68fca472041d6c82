/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_LISTENER_H
#define KVHOST_FRONT_LISTENER_H

/*
 * listener: sockets and processes: who connects, who wakes whom, who has gone.
 *
 * One epoll set holds the listening socket, each peer's socket and pidfd, and descriptors of the
 * owner (timers, signals, the workers' wake-up). Everything is non-blocking; a peer that sends
 * nothing, too much, or nonsense costs a bounded number of calls a turn. A peer becomes a session
 * once its hello was accepted, its memory was made by the work thread and, on kernels that cannot
 * name a peer's process by a descriptor, it has echoed a nonce with its credentials.
 * Owner: the core thread.
 */

#include "daemon/front/core.h"

struct listener;

/* Binds `path` (a stale socket there is replaced; the caller holds the lock of the directory).
 * 0 or -errno. The core must have been given listener_hooks of this. */
int listener_new(const char *path, struct core *core, struct listener **out);
void listener_free(struct listener **l); /* every session has gone */

/* The hooks for core_init; context = the struct listener *, set by listener_new. */
extern const struct core_hooks listener_hooks;

/* Also wait for this descriptor; called(context) when it is readable. 0 or -errno. */
int listener_watch(struct listener *l, int fd, void (*called)(void *context), void *context);

/* Handle what is there; wait for it at most timeout_ms (0: not at all). */
void listener_poll(struct listener *l, int timeout_ms);

/* Accept nobody any more. */
void listener_stop(struct listener *l);

#endif
