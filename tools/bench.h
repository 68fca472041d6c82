/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_H
#define KVHOST_TOOLS_BENCH_H

/*
 * bench: what the parts of kvbench share: options, time, percentiles, reasons.
 *
 * kvbench is one thread. It runs on one core, the daemon that it starts on another one. Anything
 * here may block, except where a mode says that it is measuring.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "libclient/kvhost.h"

#define BENCH_LIST_MAX 16
#define BENCH_NULL     UINT64_MAX /* of an option that may be "null" */

/* ---- reasons: why something did not work, for people ---- */

struct bench_reason {
	char text[1024];
};

/* Sets the text and returns -1, so that a caller can say it and pass it on in one line. */
int bench_reason_set(struct bench_reason *why, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for a call of libkvhost that returned `result`. host may be NULL. */
int bench_reason_call(struct bench_reason *why, const struct kvhost *host, const char *call,
		      int result);

/* ---- options ---- */

enum bench_mode {
	BENCH_RING = 1,
	BENCH_LOOKUP = 2,
	BENCH_REPLAY = 4,
	BENCH_IDLE = 8,
	BENCH_ORDER = 16,
	BENCH_TRACES = 32,
	BENCH_CLAIM = 64,
	BENCH_TIERS = 128,
};

struct bench_list {
	uint64_t values[BENCH_LIST_MAX];
	uint32_t n;
};

struct bench_options { /* the fields of bench_options.def; numbers are within its bounds */
	enum bench_mode mode;
	const char *trace; /* of replay and order */
	bool json;
	const char *socket; /* NULL: start a daemon */
	const char *pool;
	uint64_t page_tokens, layers, kv_heads, head_dim;
	const char *format;
	uint64_t pages;     /* 0: the mode chooses */
	uint64_t budget;    /* BENCH_NULL: what the pool leaves */
	uint64_t ram_bytes; /* 0: no KV-RAM */
	uint64_t ram_page_bytes;
	uint64_t floor_tokens;
	uint64_t rounds;
	uint64_t requests, idle_sessions;
	struct bench_list resident, prompts;
	uint64_t lookups;
	uint64_t tokens_per_block, clients, steps_of, extra_tokens, repeat;
	double speed; /* 0: as fast as possible */
	const char *payload, *order;
	struct bench_list sizes, pages_a_block, made_sizes;
	const char *kind;
	uint64_t seed, made_requests;
	uint64_t image_bytes;
	uint64_t moved_bytes, restore_tokens;
	struct bench_list page_sizes;
	const char *cases;
	uint64_t seconds;
	int argc; /* of the program, for the environment record */
	char **argv;
};

enum bench_options_outcome {
	BENCH_OPTIONS_HELP = 1, /* help was asked for */
	BENCH_OPTIONS_VERSION,
};

/* 0, one of these outcomes, or -1 with why. Strings are those of argv. */
int bench_options_parse(struct bench_options *o, int argc, char **argv, struct bench_reason *why);
void bench_options_help(void); /* to standard output */

/* ---- time ---- */

/* Ticks of the processor's own clock; everything before it has finished. Set up first. */
void bench_clock_init(void); /* measures the rate; takes 20 ms */
double bench_clock_ns(uint64_t ticks);
double bench_clock_tick_ns(void);
uint64_t bench_monotonic_ns(void);
void bench_sleep_ns(uint64_t ns);

static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
	uint32_t low, high;

	/* The fence keeps the clock from being read before the load that ends a wait. */
	__asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
	uint64_t ticks;

	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
	return ticks;
#else
	return bench_monotonic_ns();
#endif
}

/* ---- percentiles ---- */

struct bench_samples { /* durations in ticks */
	uint64_t *ticks;
	size_t n;
	size_t capacity;
};

int bench_samples_init(struct bench_samples *s, size_t capacity); /* 0 or -1; touches it all */
void bench_samples_free(struct bench_samples *s);
void bench_samples_clear(struct bench_samples *s);
void bench_samples_sort(struct bench_samples *s);
/* Nearest rank, of sorted samples, in ns: per_mille 500 is the median. 0 if there are none. */
double bench_samples_ns(const struct bench_samples *s, uint32_t per_mille);

static inline void bench_samples_add(struct bench_samples *s, uint64_t ticks)
{
	if (s->n < s->capacity)
		s->ticks[s->n++] = ticks;
}

double bench_median(const double *values, size_t n); /* n <= BENCH_ROUNDS_MAX; sorts a copy */

#define BENCH_ROUNDS_MAX 64

/* ---- cores and processes ---- */

struct bench_cores {
	int client, daemon; /* equal: there is only one core to run on */
	int device;         /* a third one, or the client's */
};

struct bench_cores bench_cores(void);   /* the first three that it may use when first asked */
int bench_pin(int core);                /* 0 or -1 */
int bench_pin_two(int core, int other); /* may be the same; likewise */
/* The thread of that name, NULL: the first one; likewise. */
int bench_pin_thread(int pid, const char *name, int core);
/* CPU time of all threads of a process so far. 0 or -1. Precise: from the scheduler. */
int bench_process_cpu_ns(int pid, uint64_t *out);
int bench_process_cpu_coarse_ns(int pid, uint64_t *out); /* from the accounting ticks */

/* ---- modes: a report of every case; 0, or -1 with why if the mode could not go on ---- */

struct report;

int bench_ring_run(const struct bench_options *o, struct report *r, struct bench_reason *why);
int bench_lookup_run(const struct bench_options *o, struct report *r, struct bench_reason *why);
int bench_replay_run(const struct bench_options *o, struct report *r, struct bench_reason *why);
int bench_idle_run(const struct bench_options *o, struct report *r, struct bench_reason *why);
int bench_order_run(const struct bench_options *o, struct report *r, struct bench_reason *why);
/* Not a measurement: a trace as JSON lines. */
int bench_traces_run(const struct bench_options *o, FILE *out, struct bench_reason *why);
int bench_claim_run(const struct bench_options *o, struct report *r, struct bench_reason *why);
int bench_tiers_run(const struct bench_options *o, struct report *r, struct bench_reason *why);
void bench_environment(const struct bench_options *o, struct report *r);

#endif
