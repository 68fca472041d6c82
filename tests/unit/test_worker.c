/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/base/worker.h: the real executor. The test's thread is the core thread; jobs that
 * must wait do so on a gate that the test opens.
 */

#include "daemon/base/worker.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/clock.h"
#include "daemon/base/testing.h"

#define DEADLINE_MS 20000
#define N_JOBS      200
#define TEST(name)  cmocka_unit_test_setup_teardown(name, setup, teardown)

struct fixture {
	struct executor *executor;
	int wake_fd;
	sem_t gate;        /* opened by the test */
	_Atomic int n_run; /* counted by the worker */
	int n_done;
	int resubmit; /* how often a done still submits its job again */
};

struct test_job {
	struct job job;
	struct fixture *fixture;
	int order;   /* when it ran, from 0 */
	int order_d; /* when it was done */
	pthread_t runner;
	char name[32];
	sigset_t mask;
};

static struct test_job *test_job_of(struct job *job)
{
	return (struct test_job *)(void *)job;
}

static void run_at_once(struct job *job)
{
	struct test_job *t = test_job_of(job);

	t->order = atomic_fetch_add(&t->fixture->n_run, 1);
	t->runner = pthread_self();
	job->result = -t->order;
}

static void run_at_the_gate(struct job *job)
{
	struct test_job *t = test_job_of(job);

	while (sem_wait(&t->fixture->gate) < 0)
		;
	run_at_once(job);
}

static void run_looking_around(struct job *job)
{
	struct test_job *t = test_job_of(job);

	pthread_getname_np(pthread_self(), t->name, sizeof(t->name));
	pthread_sigmask(SIG_SETMASK, NULL, &t->mask);
	run_at_once(job);
}

static void count_done(struct job *job)
{
	struct test_job *t = test_job_of(job);
	struct fixture *f = t->fixture;

	t->order_d = f->n_done++;
	if (f->resubmit > 0) {
		f->resubmit--;
		f->executor->submit(f->executor, job);
	}
}

static struct test_job make_job(struct fixture *f, void (*run)(struct job *job))
{
	return (struct test_job){.job = {.run = run, .done = count_done}, .fixture = f};
}

static int setup(void **state)
{
	static struct fixture f;

	failpoint_clear();
	memset(protection_off, 0, sizeof(protection_off));
	memset(&f, 0, sizeof(f));
	f.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f.wake_fd < 0 || sem_init(&f.gate, 0, 0) < 0)
		return -1;
	*state = &f;
	return worker_new("kvhost-test", f.wake_fd, &f.executor);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	sem_post(&f->gate);
	worker_free(&f->executor);
	sem_destroy(&f->gate);
	close(f->wake_fd);
	failpoint_clear();
	return 0;
}

/* Sleeps as the core does; false when nothing woke it in `ms`. */
static bool core_sleep(struct fixture *f, int ms)
{
	struct pollfd p = {.fd = f->wake_fd, .events = POLLIN};
	uint64_t count;

	if (!f->executor->prepare_sleep(f->executor))
		return true;
	if (poll(&p, 1, ms) != 1)
		return false;
	assert_int_equal(read(f->wake_fd, &count, sizeof(count)), sizeof(count));
	return true;
}

static void reap_until(struct fixture *f, int n_done)
{
	while (f->n_done < n_done) {
		if (f->executor->reap(f->executor, 10) == 0)
			assert_true(core_sleep(f, DEADLINE_MS));
	}
}

static void jobs_run_in_order_on_another_thread_and_are_done_on_this_one(void **state)
{
	static struct test_job jobs[N_JOBS];
	struct fixture *f = *state;

	for (int i = 0; i < N_JOBS; i++) {
		jobs[i] = make_job(f, run_at_once);
		f->executor->submit(f->executor, &jobs[i].job);
	}
	reap_until(f, N_JOBS);
	for (int i = 0; i < N_JOBS; i++) {
		assert_int_equal(jobs[i].order, i);
		assert_int_equal(jobs[i].order_d, i);
		assert_int_equal(jobs[i].job.result, -i);
		assert_false(pthread_equal(jobs[i].runner, pthread_self()));
	}
	assert_int_equal(f->executor->reap(f->executor, 10), 0);
}

static void reap_takes_no_more_than_it_was_asked_for(void **state)
{
	struct test_job jobs[5];
	struct fixture *f = *state;

	for (int i = 0; i < 5; i++) {
		jobs[i] = make_job(f, run_at_once);
		f->executor->submit(f->executor, &jobs[i].job);
	}
	/* The thread is idle again: all five have finished. */
	while (f->n_run < 5 || f->executor->heartbeat_ns(f->executor) != 0)
		sched_yield();
	assert_int_equal(f->executor->reap(f->executor, 2), 2);
	assert_int_equal(f->n_done, 2);
	assert_int_equal(f->executor->reap(f->executor, 10), 3);
	assert_int_equal(f->executor->reap(f->executor, 10), 0);
}

static void a_finish_wakes_a_core_that_sleeps_and_only_then(void **state)
{
	struct fixture *f = *state;
	struct test_job awake = make_job(f, run_at_once), asleep = make_job(f, run_at_the_gate);
	struct pollfd p = {.fd = f->wake_fd, .events = POLLIN};

	f->executor->submit(f->executor, &awake.job);
	while (f->executor->reap(f->executor, 10) == 0)
		sched_yield();
	assert_int_equal(poll(&p, 1, 0), 0);

	f->executor->submit(f->executor, &asleep.job);
	assert_true(f->executor->prepare_sleep(f->executor));
	sem_post(&f->gate);
	assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
	assert_int_equal(f->executor->reap(f->executor, 10), 1);
}

static void a_core_does_not_sleep_over_what_has_finished(void **state)
{
	struct fixture *f = *state;
	struct test_job job = make_job(f, run_at_once);

	f->executor->submit(f->executor, &job.job);
	/* Sleeping is refused as soon as the job has finished, and stays refused. */
	while (f->executor->prepare_sleep(f->executor))
		sched_yield();
	assert_false(f->executor->prepare_sleep(f->executor));
	assert_int_equal(f->executor->reap(f->executor, 10), 1);
	assert_true(f->executor->prepare_sleep(f->executor));
}

static void without_the_wake_up_a_sleeping_core_sleeps_on(void **state)
{
	struct fixture *f = *state;
	struct test_job job = make_job(f, run_at_the_gate);
	struct pollfd p = {.fd = f->wake_fd, .events = POLLIN};

	protection_off[PROTECTION_worker_wake] = true;
	f->executor->submit(f->executor, &job.job);
	assert_true(f->executor->prepare_sleep(f->executor));
	sem_post(&f->gate);
	while (f->executor->reap(f->executor, 10) == 0)
		sched_yield();
	assert_int_equal(poll(&p, 1, 0), 0);
	protection_off[PROTECTION_worker_wake] = false;
}

static void the_heartbeat_shows_a_job_that_does_not_end(void **state)
{
	struct fixture *f = *state;
	struct test_job job = make_job(f, run_at_the_gate);
	struct clock clock = clock_monotonic();
	uint64_t before = clock_now(&clock), beat;

	while (f->executor->heartbeat_ns(f->executor) != 0)
		sched_yield();
	f->executor->submit(f->executor, &job.job);
	while ((beat = f->executor->heartbeat_ns(f->executor)) == 0)
		sched_yield();
	assert_true(beat >= before && beat <= clock_now(&clock));

	sem_post(&f->gate);
	reap_until(f, 1);
	while (f->executor->heartbeat_ns(f->executor) != 0)
		sched_yield();
}

static void freeing_runs_and_finishes_all_that_was_submitted(void **state)
{
	static struct test_job jobs[N_JOBS];
	struct fixture *f = *state;

	for (int i = 0; i < N_JOBS; i++) {
		jobs[i] = make_job(f, run_at_once);
		f->executor->submit(f->executor, &jobs[i].job);
	}
	f->resubmit = 3; /* what a done submits is run and done too */
	worker_free(&f->executor);
	assert_null(f->executor);
	assert_int_equal(f->n_run, N_JOBS + 3);
	assert_int_equal(f->n_done, N_JOBS + 3);
	worker_free(&f->executor);
}

static void the_thread_has_its_name_and_leaves_signals_to_others(void **state)
{
	struct fixture *f = *state;
	struct test_job job = make_job(f, run_looking_around);

	f->executor->submit(f->executor, &job.job);
	reap_until(f, 1);
	assert_string_equal(job.name, "kvhost-test");
	assert_true(sigismember(&job.mask, SIGTERM));
	assert_true(sigismember(&job.mask, SIGHUP));
	assert_true(sigismember(&job.mask, SIGINT));
	assert_false(sigismember(&job.mask, SIGBUS));
	assert_false(sigismember(&job.mask, SIGSEGV));
}

static void a_thread_that_cannot_be_started_is_an_error(void **state)
{
	struct fixture *f = *state;
	struct executor *none = NULL;

	failpoint_arm(FAILPOINT_thread_start, 0, 1);
	assert_int_equal(worker_new("kvhost-none", f->wake_fd, &none), -EAGAIN);
	assert_null(none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(jobs_run_in_order_on_another_thread_and_are_done_on_this_one),
	    TEST(reap_takes_no_more_than_it_was_asked_for),
	    TEST(a_finish_wakes_a_core_that_sleeps_and_only_then),
	    TEST(a_core_does_not_sleep_over_what_has_finished),
	    TEST(without_the_wake_up_a_sleeping_core_sleeps_on),
	    TEST(the_heartbeat_shows_a_job_that_does_not_end),
	    TEST(freeing_runs_and_finishes_all_that_was_submitted),
	    TEST(the_thread_has_its_name_and_leaves_signals_to_others),
	    TEST(a_thread_that_cannot_be_started_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
