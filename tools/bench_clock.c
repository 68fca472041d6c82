/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_clock: the processor's clock, percentiles, and reasons. Main thread; bench_sleep_ns and
 * bench_clock_init wait.
 */
#include "tools/bench.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALIBRATE_NS 20000000ull

static double tick_ns = 1; /* set once, before anything is measured */

uint64_t bench_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void bench_sleep_ns(uint64_t ns)
{
	struct timespec left = {.tv_sec = (time_t)(ns / 1000000000ull),
				.tv_nsec = (long)(ns % 1000000000ull)};

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

void bench_clock_init(void)
{
	uint64_t start_ns = bench_monotonic_ns(), start = bench_ticks();
	uint64_t end_ns, end;

	bench_sleep_ns(CALIBRATE_NS);
	end_ns = bench_monotonic_ns();
	end = bench_ticks();
	assert(end > start && end_ns > start_ns);
	tick_ns = (double)(end_ns - start_ns) / (double)(end - start);
}

double bench_clock_ns(uint64_t ticks)
{
	return (double)ticks * tick_ns;
}

double bench_clock_tick_ns(void)
{
	return tick_ns;
}

int bench_samples_init(struct bench_samples *s, size_t capacity)
{
	*s = (struct bench_samples){.capacity = capacity};
	s->ticks = malloc(capacity * sizeof(*s->ticks));
	if (!s->ticks)
		return -1;
	memset(s->ticks, 1, capacity * sizeof(*s->ticks));
	return 0;
}

void bench_samples_free(struct bench_samples *s)
{
	free(s->ticks);
	*s = (struct bench_samples){0};
}

void bench_samples_clear(struct bench_samples *s)
{
	s->n = 0;
}

static int compare_ticks(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

void bench_samples_sort(struct bench_samples *s)
{
	if (s->n > 0)
		qsort(s->ticks, s->n, sizeof(*s->ticks), compare_ticks);
}

double bench_samples_ns(const struct bench_samples *s, uint32_t per_mille)
{
	size_t rank;

	assert(per_mille <= 1000);
	if (s->n == 0)
		return 0;
	rank = (s->n * per_mille + 999) / 1000;
	return bench_clock_ns(s->ticks[rank > 0 ? rank - 1 : 0]);
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(const double *values, size_t n)
{
	double copy[BENCH_ROUNDS_MAX];

	assert(n > 0 && n <= BENCH_ROUNDS_MAX);
	memcpy(copy, values, n * sizeof(*copy));
	qsort(copy, n, sizeof(*copy), compare_doubles);
	return n % 2 ? copy[n / 2] : (copy[n / 2 - 1] + copy[n / 2]) / 2;
}

int bench_reason_set(struct bench_reason *why, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(why->text, sizeof(why->text), format, list);
	va_end(list);
	return -1;
}

int bench_reason_call(struct bench_reason *why, const struct kvhost *host, const char *call,
		      int result)
{
	const char *reason = kvhost_reason(host);

	if (reason[0])
		return bench_reason_set(why, "%s: %s (%s)", call, kvhost_strerror(result), reason);
	return bench_reason_set(why, "%s: %s", call, kvhost_strerror(result));
}
