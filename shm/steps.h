/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_STEPS_H
#define KVHOST_SHM_STEPS_H

/*
 * steps: every point of the ring protocol between two stores, named, for tests.
 *
 * A test sets ring_step_hook and is called at each step, to kill the process there or to let the
 * other side run. In production ring_step is nothing and both switches are absent.
 * Owner: the test; set only while no ring is in use.
 */

#include <stdbool.h>

enum ring_step {
	RING_STEP_PUT_BEGIN,  /* there is room; nothing is written */
	RING_STEP_PUT_HALF,   /* a part of the payload is written */
	RING_STEP_PUT_FULL,   /* all of the payload is written, not the sequence */
	RING_STEP_PUT_DONE,   /* the sequence is written */
	RING_STEP_WAKE_FENCE, /* before need_wake is read */
	RING_STEP_WAKE_READ,  /* after it */
	RING_STEP_GET_SEEN,   /* the sequence is there, nothing is copied */
	RING_STEP_GET_COPIED, /* the entry is copied */
	RING_STEP_GET_DONE,   /* the private position is moved */
	RING_STEP_PUBLISHED,  /* the position is visible to the producer */
	RING_STEP_SLEEP_SET,  /* need_wake is set */
	RING_STEP_SLEEP_LOOK, /* before the second look */
	RING_STEP_SLEEP_DONE, /* after it */
	RING_STEP_AWAKE,      /* need_wake is cleared */
	RING_STEP_COUNT
};

#ifdef KVHOST_TESTING

extern void (*ring_step_hook)(enum ring_step step);
extern bool ring_second_look_off; /* a protection: shows that tests notice its absence */
extern bool ring_fence_off;

static inline void ring_step(enum ring_step step)
{
	if (ring_step_hook)
		ring_step_hook(step);
}

#define ring_protection(name) (!ring_##name##_off)

#else

#define ring_step(step)       ((void)0)
#define ring_protection(name) true

#endif

#endif
