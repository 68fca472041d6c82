/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_WORKER_H
#define KVHOST_BASE_WORKER_H

/*
 * worker: work that may wait, done off the core thread.
 *
 * The core submits a job; somebody runs it; later, from executor_reap, its done function is
 * called on the core thread with job->result set. The real executor is a thread (worker_new). A
 * simulator has its own: it runs jobs when it likes, fails them without running, or never.
 * A job belongs to the executor from submit to done. Jobs of one executor start in the order
 * submitted; the worker thread runs them one after another.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"

struct job {
	struct list link;              /* the executor's */
	void (*run)(struct job *job);  /* on the executor's thread; sets result; may block */
	void (*done)(struct job *job); /* on the core thread; may free the job */
	int result;                    /* 0 or -errno */
	_Atomic bool cancelled;        /* a hint: run may return -ECANCELED early */
};

struct executor {
	void (*submit)(struct executor *e, struct job *job);
	/* Call done for what has finished, at most `max`; the number of them. */
	unsigned (*reap)(struct executor *e, unsigned max);
	/* Before the core sleeps: true = nothing finished, a finish will write to the wake
	 * descriptor given at construction; false = reap again. */
	bool (*prepare_sleep)(struct executor *e);
	/* When its thread last showed that it lives; 0 = it is idle, which is fine. */
	uint64_t (*heartbeat_ns)(struct executor *e);
};

/* A thread called `name`. wake_fd: an eventfd of this process that the core polls; not taken.
 * 0 or -errno. */
int worker_new(const char *name, int wake_fd, struct executor **out);
/* Runs what was submitted, stops the thread, calls done for all. NULL is fine. */
void worker_free(struct executor **e);

#endif
