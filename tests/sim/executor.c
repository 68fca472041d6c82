/* SPDX-License-Identifier: Apache-2.0 */
/* executor: see executor.h. */
#include "tests/sim/executor.h"

#include <stddef.h>

static struct sim_executor *of(struct executor *e)
{
	return (struct sim_executor *)(void *)e;
}

static void submit(struct executor *e, struct job *job)
{
	list_append(&of(e)->submitted, &job->link);
}

static unsigned reap(struct executor *e, unsigned max)
{
	unsigned n = 0;

	while (n < max && !list_is_empty(&of(e)->finished)) {
		struct list *first = list_first(&of(e)->finished);
		struct job *job = list_entry(first, struct job, link);

		list_remove(first);
		n++;
		job->done(job);
	}
	return n;
}

static bool prepare_sleep(struct executor *e)
{
	of(e)->core_sleeps = list_is_empty(&of(e)->finished);
	return of(e)->core_sleeps;
}

static uint64_t heartbeat_ns(struct executor *e)
{
	(void)e;
	return 0;
}

void sim_executor_init(struct sim_executor *e)
{
	*e = (struct sim_executor){.executor = {.submit = submit,
						.reap = reap,
						.prepare_sleep = prepare_sleep,
						.heartbeat_ns = heartbeat_ns}};
	list_init(&e->submitted);
	list_init(&e->finished);
	list_init(&e->held);
}

static bool run(struct sim_executor *e, struct job *job, int result)
{
	if (e->run)
		return e->run(e->context, job, result);
	if (result)
		job->result = result;
	else
		job->run(job);
	return true;
}

static void finish(struct sim_executor *e, struct job *job)
{
	list_append(&e->finished, &job->link);
	e->wake |= e->core_sleeps;
	e->core_sleeps = false;
}

bool sim_executor_step(struct sim_executor *e, int result)
{
	struct list *first = list_first(&e->submitted);
	struct job *job;

	if (!first)
		return false;
	job = list_entry(first, struct job, link);
	list_remove(first);
	if (run(e, job, result))
		finish(e, job);
	else
		list_append(&e->held, first);
	return true;
}

void sim_executor_let_go(struct sim_executor *e)
{
	while (!list_is_empty(&e->held)) {
		struct list *first = list_first(&e->held);

		list_remove(first);
		if (run(e, list_entry(first, struct job, link), 0))
			finish(e, list_entry(first, struct job, link));
		else
			list_append(&e->held, first);
	}
}

bool sim_executor_is_idle(const struct sim_executor *e)
{
	return list_is_empty(&e->submitted) && list_is_empty(&e->finished);
}
