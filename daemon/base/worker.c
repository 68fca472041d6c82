/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker: the real executor, one thread. The core thread owns the executor and calls everything in
 * its table; the worker thread runs worker_main and may block in jobs alone. One lock guards the
 * two lists and is held for a few instructions at a time, never while a job or a done runs.
 */

#include "daemon/base/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/base/thread.h"

struct worker {
	struct executor executor; /* first: the table is what others hold */
	pthread_t thread;
	struct clock clock;
	int wake_fd;

	pthread_mutex_t lock; /* guards down to core_sleeps */
	pthread_cond_t work;  /* something was submitted, or stopping was set */
	pthread_cond_t quiet; /* the thread sleeps; worker_free alone waits for it */
	struct list submitted;
	struct list finished;
	bool thread_sleeps;
	bool stopping;
	bool core_sleeps;

	/* How many are in `finished`: lets the core see "none" without the lock. Written under
	 * the lock; what a job did is handed over by the lock, not by this word. */
	_Atomic unsigned n_finished;
	_Atomic uint64_t heartbeat_ns; /* read by whoever judges whether the thread lives */
};

static struct worker *worker_of(struct executor *e)
{
	return (struct worker *)(void *)e;
}

static void heartbeat_set(struct worker *w, uint64_t at_ns)
{
	atomic_store_explicit(&w->heartbeat_ns, at_ns, memory_order_relaxed);
}

static void wake_core(struct worker *w)
{
	const uint64_t one = 1;
	ssize_t r;

	do {
		r = write(w->wake_fd, &one, sizeof(one));
	} while (r < 0 && errno == EINTR);
	/* EAGAIN: the counter is at its end, so a wake-up is pending already. */
	must(r == sizeof(one) || errno == EAGAIN);
}

static void worker_run(struct worker *w, struct job *job)
{
	bool wake;

	heartbeat_set(w, clock_now(&w->clock));
	job->run(job);
	heartbeat_set(w, clock_now(&w->clock));

	must(pthread_mutex_lock(&w->lock) == 0);
	list_append(&w->finished, &job->link);
	atomic_fetch_add_explicit(&w->n_finished, 1, memory_order_relaxed);
	wake = w->core_sleeps && protection(worker_wake);
	w->core_sleeps = false;
	must(pthread_mutex_unlock(&w->lock) == 0);

	if (wake)
		wake_core(w);
}

/* The next job, after sleeping if there is none; NULL: stop. */
static struct job *worker_next(struct worker *w)
{
	struct list *first;

	must(pthread_mutex_lock(&w->lock) == 0);
	while (list_is_empty(&w->submitted) && !w->stopping) {
		heartbeat_set(w, 0);
		w->thread_sleeps = true;
		must(pthread_cond_signal(&w->quiet) == 0);
		must(pthread_cond_wait(&w->work, &w->lock) == 0);
		w->thread_sleeps = false;
	}
	first = list_first(&w->submitted);
	if (first)
		list_remove(first);
	must(pthread_mutex_unlock(&w->lock) == 0);
	return first ? list_entry(first, struct job, link) : NULL;
}

static void *worker_main(void *argument)
{
	struct worker *w = argument;
	struct job *job;

	while ((job = worker_next(w)))
		worker_run(w, job);
	return NULL;
}

static void worker_submit(struct executor *e, struct job *job)
{
	struct worker *w = worker_of(e);
	bool sleeps;

	must(job->run && job->done);

	must(pthread_mutex_lock(&w->lock) == 0);
	must(!w->stopping);
	list_append(&w->submitted, &job->link);
	sleeps = w->thread_sleeps;
	if (sleeps) {
		/* From now on the thread owes a sign of life, even if it never wakes. */
		heartbeat_set(w, clock_now(&w->clock));
		w->thread_sleeps = false;
	}
	must(pthread_mutex_unlock(&w->lock) == 0);

	if (sleeps)
		must(pthread_cond_signal(&w->work) == 0);
}

static unsigned worker_reap(struct executor *e, unsigned max)
{
	struct worker *w = worker_of(e);
	struct list taken, *first;
	unsigned n = 0;

	if (atomic_load_explicit(&w->n_finished, memory_order_relaxed) == 0)
		return 0;

	list_init(&taken);
	must(pthread_mutex_lock(&w->lock) == 0);
	while (n < max && (first = list_first(&w->finished))) {
		list_remove(first);
		list_append(&taken, first);
		n++;
	}
	must(atomic_fetch_sub_explicit(&w->n_finished, n, memory_order_relaxed) >= n);
	must(pthread_mutex_unlock(&w->lock) == 0);

	while ((first = list_first(&taken))) {
		struct job *job = list_entry(first, struct job, link);

		list_remove(first);
		job->done(job);
	}
	return n;
}

static bool worker_prepare_sleep(struct executor *e)
{
	struct worker *w = worker_of(e);
	bool may_sleep;

	must(pthread_mutex_lock(&w->lock) == 0);
	may_sleep = list_is_empty(&w->finished);
	w->core_sleeps = may_sleep;
	must(pthread_mutex_unlock(&w->lock) == 0);
	return may_sleep;
}

static uint64_t worker_heartbeat_ns(struct executor *e)
{
	return atomic_load_explicit(&worker_of(e)->heartbeat_ns, memory_order_relaxed);
}

int worker_new(const char *name, int wake_fd, struct executor **out)
{
	struct worker *w;
	int r;

	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;

	w->executor = (struct executor){
	    .submit = worker_submit,
	    .reap = worker_reap,
	    .prepare_sleep = worker_prepare_sleep,
	    .heartbeat_ns = worker_heartbeat_ns,
	};
	w->clock = clock_monotonic();
	w->wake_fd = wake_fd;
	list_init(&w->submitted);
	list_init(&w->finished);
	must(pthread_mutex_init(&w->lock, NULL) == 0);
	must(pthread_cond_init(&w->work, NULL) == 0);
	must(pthread_cond_init(&w->quiet, NULL) == 0);

	r = thread_start(name, worker_main, w, &w->thread);
	if (r < 0) {
		free(w);
		return r;
	}
	*out = &w->executor;
	return 0;
}

/* True when all that was submitted has run; false when there is something to reap first. */
static bool worker_settle(struct worker *w)
{
	bool settled;

	must(pthread_mutex_lock(&w->lock) == 0);
	while (!w->thread_sleeps && list_is_empty(&w->finished))
		must(pthread_cond_wait(&w->quiet, &w->lock) == 0);
	settled = list_is_empty(&w->finished) && list_is_empty(&w->submitted);
	must(pthread_mutex_unlock(&w->lock) == 0);
	return settled;
}

void worker_free(struct executor **e)
{
	struct worker *w;

	if (!*e)
		return;
	w = worker_of(*e);

	/* A done may submit another job: stop only when no more come. */
	while (!worker_settle(w))
		worker_reap(*e, UINT32_MAX);

	must(pthread_mutex_lock(&w->lock) == 0);
	w->stopping = true;
	must(pthread_mutex_unlock(&w->lock) == 0);
	must(pthread_cond_signal(&w->work) == 0);
	must(pthread_join(w->thread, NULL) == 0);

	must(list_is_empty(&w->submitted) && list_is_empty(&w->finished));
	must(pthread_cond_destroy(&w->quiet) == 0);
	must(pthread_cond_destroy(&w->work) == 0);
	must(pthread_mutex_destroy(&w->lock) == 0);
	free(w);
	*e = NULL;
}
