/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_CLOCK_H
#define KVHOST_BASE_CLOCK_H

/* clock: time, given to whoever needs it, so that a simulator can give its own. Any thread. */

#include <stdint.h>

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S  1000000000ull

struct clock {
	uint64_t (*now_ns)(void *context);
	void *context;
};

struct clock clock_monotonic(void);
uint64_t clock_thread_ns(void); /* processor time of the calling thread */

static inline uint64_t clock_now(const struct clock *c)
{
	return c->now_ns(c->context);
}

#endif
