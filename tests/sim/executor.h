/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_EXECUTOR_H
#define TESTS_SIM_EXECUTOR_H

/*
 * executor: an executor of the simulator: jobs run when the scheduler says so, in the order
 * submitted; late, or failed without running. Some are held back: others run before them, and they
 * do only at sim_executor_let_go. One thread; nothing blocks.
 */

#include "daemon/base/worker.h"

struct sim_executor {
	struct executor executor; /* first: the table is what the core holds */
	struct list submitted;
	struct list finished;
	struct list held;
	/* Runs the job, or fails it with `result` (< 0); false: it is held back. NULL: job->run. */
	bool (*run)(void *context, struct job *job, int result);
	void *context;
	bool core_sleeps; /* a finish must wake it */
	bool wake;        /* and has */
};

void sim_executor_init(struct sim_executor *e);
/* Run the first job, or fail it with `result` (< 0). false: there is none. */
bool sim_executor_step(struct sim_executor *e, int result);
/* True: but for what is held back. */
bool sim_executor_is_idle(const struct sim_executor *e);
void sim_executor_let_go(struct sim_executor *e);

#endif
