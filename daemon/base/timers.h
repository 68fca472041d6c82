/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_TIMERS_H
#define KVHOST_BASE_TIMERS_H

/*
 * timers: what is due when, as a binary heap of embedded timers. Arming and disarming are
 * O(log n). Timers due at the same time come out in the order they were armed, so that a run with
 * a seed can be repeated. It has no clock: the caller says what time it is. Owner: the core thread.
 */

#include <stdbool.h>
#include <stdint.h>

#define TIMERS_NEVER UINT64_MAX

struct timer {
	uint32_t place; /* in the heap, counted from 1; 0: not armed */
	void (*expired)(struct timer *t);
};

struct timers_entry {
	uint64_t at_ns;
	uint64_t serial;
	struct timer *timer;
};

struct timers {
	struct timers_entry *heap; /* [capacity], n of them in use */
	uint32_t n;
	uint32_t capacity;
	uint64_t serial;
};

/* expired is for the caller of timers_pop_due to call; may be NULL. */
void timer_init(struct timer *t, void (*expired)(struct timer *t));
static inline bool timer_is_armed(const struct timer *t)
{
	return t->place != 0;
}

void timers_init(struct timers *all);
void timers_deinit(struct timers *all); /* every timer still armed is disarmed */

/* 0 or -ENOMEM. An armed timer is moved, which cannot fail. */
int timers_arm(struct timers *all, struct timer *t, uint64_t at_ns);
void timers_disarm(struct timers *all, struct timer *t); /* not armed: nothing happens */

uint64_t timers_next_ns(const struct timers *all); /* TIMERS_NEVER: none is armed */
/* The first timer due at now_ns or earlier, now disarmed; NULL: none. */
struct timer *timers_pop_due(struct timers *all, uint64_t now_ns);

#endif
