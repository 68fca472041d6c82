/* SPDX-License-Identifier: Apache-2.0 */

/* clock: the kernel's clocks. Any thread; nothing blocks. */

#include "daemon/base/clock.h"

#include <time.h>

#include "daemon/base/panic.h"

static uint64_t monotonic_now_ns(void *context)
{
	struct timespec now;

	(void)context;
	must(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t clock_thread_ns(void)
{
	struct timespec used;

	must(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0);
	return (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec;
}

struct clock clock_monotonic(void)
{
	return (struct clock){.now_ns = monotonic_now_ns};
}
