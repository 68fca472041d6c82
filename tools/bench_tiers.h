/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_TIERS_H
#define KVHOST_TOOLS_BENCH_TIERS_H

/*
 * bench_tiers: what the cases of mode tiers share: a daemon of its own whose one pool keeps next to
 * nothing for reuse and has KV-RAM below it, so that what a closed sequence leaves goes down at
 * once; and the fastest copies of the same records. Main thread; blocks.
 */

#include "tools/bench_copy.h"
#include "tools/bench_host.h"
#include "tools/bench_report.h"

#define TIER_PAGE_TOKENS 64
/* Of KV-RAM that go for what is known of a page: RAM_KNOWN_BYTES, which tools do not see;
 * test_bench compares them. */
#define TIER_KNOWN_BYTES (4096 + 768)

struct tier_shape { /* of a page of 64 tokens: K and V, 2 bytes an element */
	uint64_t layers, kv_heads, head_dim;
	const char *format;
};

static inline uint64_t tier_page_bytes(const struct tier_shape *s)
{
	return s->layers * s->kv_heads * s->head_dim * TIER_PAGE_TOKENS * 2 * 2;
}

struct tier_plan {
	struct tier_shape shape;
	uint64_t pages;       /* of the longest prompt */
	uint64_t spare;       /* pages of the pool beside */
	uint64_t kept;        /* of them retained */
	uint64_t ram_pages;   /* that KV-RAM has room for, at least */
	uint64_t limit_bytes; /* that a calibration copies */
	uint64_t image_bytes; /* of a hybrid model, and KV-RAM has room for one; 0: a dense one */
	uint64_t spin_us;     /* of the daemon; 0: its default */
};

enum tier_counter {
	TIER_BYTES_DOWN,
	TIER_BYTES_UP,
	TIER_BUSY_DOWN,
	TIER_BUSY_UP,
	TIER_SPILLS,
	TIER_SPILLS_KEPT,
	TIER_ZEROED,
	TIER_LEAVING,
	TIER_ARRIVING,
	TIER_ARRIVED, /* bytes of KV-RAM itself */
	TIER_WANTED,
	TIER_COUNTERS,
};

struct tiers {
	struct bench_options options; /* with the geometry of the shape */
	struct tier_plan plan;
	uint64_t page_bytes;
	struct bench_host daemon;
	struct kvhost *host;
	struct kvhost_pool *pool;
	struct kvhost_stats *stats;
	uint32_t places[TIER_COUNTERS]; /* of the counters in the stats */
	uint64_t now[TIER_COUNTERS];    /* at the last look */
	uint32_t *tokens;               /* of a prompt; window memory */
	struct copy_limit limit;
};

/* 0 with all of KV-RAM there, or -1 with why; tiers_stop in either case. */
int tiers_start(struct tiers *t, const struct bench_options *o, const struct tier_plan *plan,
		struct bench_reason *why);
void tiers_stop(struct tiers *t);

/* Where the daemon's counters are kept: fills t->now. */
int tiers_look(struct tiers *t, struct bench_reason *why);
/* Until a counter has reached a value, at most 20 s. */
int tiers_wait(struct tiers *t, enum tier_counter counter, uint64_t least,
	       struct bench_reason *why);
/* Until nothing moves and nothing is zeroed any more. */
int tiers_wait_quiet(struct tiers *t, struct bench_reason *why);

/* The prompt of this serial, in t->tokens: whole pages, and one token to compute. */
struct kvhost_prompt tiers_prompt(struct tiers *t, uint32_t serial, uint64_t pages);
/* Opens a prompt that nothing is known of, and commits all its whole pages. */
int tiers_write(struct tiers *t, const struct kvhost_prompt *p, struct kvhost_sequence **out,
		struct bench_reason *why);
/* The same of a hybrid model, with the state after them. */
int tiers_write_state(struct tiers *t, const struct kvhost_prompt *p, struct kvhost_sequence **out,
		      struct bench_reason *why);
/* Closes it, and waits until it has left. */
int tiers_close(struct tiers *t, struct kvhost_sequence **seq, struct bench_reason *why);
/* Opens and closes one that lies in KV-RAM: how long the open took. */
int tiers_restore(struct tiers *t, const struct kvhost_prompt *p, uint64_t *ticks,
		  struct bench_reason *why);
/* Forgets every prompt, on the device and below. */
int tiers_drop(struct tiers *t, struct bench_reason *why);

/* What is moved: the first figures of a record. */
void tiers_report(const struct tiers *t, struct report *r);

/* Steps of one session while another's pages move. */
int tiers_steps(const struct bench_options *o, struct report *r, struct bench_reason *why);

#endif
