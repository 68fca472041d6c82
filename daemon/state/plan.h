/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PLAN_H
#define KVHOST_STATE_PLAN_H

/*
 * plan: what a pool's budget is spent on, decided once when the pool is made.
 *
 * Fixed lines come first (state slots for lanes and open steps, retained slots, workspace), pages
 * get the rest, each with its part of the index, the memory of what is known of pages. That grows
 * in steps, with tables that are a power of two, and has a part that every pool needs.
 * A pure function: no memory, no clock, no I/O; any thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/state/pool.h"

#define PLAN_NULL          UINT64_MAX /* pool_bytes, max_prefix_pages: not said */
#define PLAN_REASON_BYTES  160
#define PLAN_REFUSAL_BYTES 900

struct plan_wish {
	uint64_t pool_bytes; /* PLAN_NULL: what pool_pages_limit takes; without one, what the device
				has free, less headroom */
	uint64_t available_bytes;  /* free on the device now */
	uint64_t headroom_bytes;   /* left alone where neither is said */
	uint64_t pool_pages_limit; /* 0: as many as the budget holds */
	uint64_t page_stride;
	uint64_t max_sequence_tokens;
	uint64_t lanes;
	uint64_t retained_slots;
	uint64_t state_slot_bytes; /* 0: a pool without state images */
	uint64_t workspace_bytes;
	bool prefix_caching;
	uint64_t max_prefix_pages; /* PLAN_NULL: what the plan leaves */
	/* Of the pool to be made, but for pages, nodes and prefix_budget, which the plan finds. */
	struct pool_limits limits;
};

struct plan {
	uint64_t budget_bytes;
	uint64_t lane_bytes;     /* two state slots a lane: a step reads one and writes the other */
	uint64_t retained_bytes; /* state slots of retained states */
	uint64_t workspace_bytes;
	uint64_t index_bytes; /* what is known of the pages, and of pages that have left */
	uint64_t page_bytes;  /* of all pages together */
	uint64_t left_bytes;  /* no whole page fits, or pool_pages_limit is reached */
	uint64_t pages;
	uint64_t reserve_pages;          /* one longest sequence: never the prefix cache's */
	uint64_t requested_prefix_pages; /* 0: caching off; PLAN_NULL: what the plan leaves */
	uint64_t effective_prefix_pages; /* 0: caching off */
	char fallback_reason[PLAN_REASON_BYTES]; /* "" = effective is what was requested */
};

/*
 * 0 and *out, or -ENOSPC and the refusal: what was asked, what there is, what is missing, and the
 * keys each of which would change it by itself. Every number of the wish may be any number.
 */
int plan_compute(const struct plan_wish *wish, struct plan *out, char refusal[PLAN_REFUSAL_BYTES]);

/* The least pool_bytes that would do, whatever the device has free. */
uint64_t plan_least(const struct plan_wish *wish);

/*
 * The prefix part alone, for a pool whose pages are known: reserve, requested and effective pages
 * and the reason are set in *out. 0 or -ENOSPC and the refusal.
 */
int plan_prefix(uint64_t pages, const struct plan_wish *wish, struct plan *out,
		char refusal[PLAN_REFUSAL_BYTES]);

/* Whether pool_pages_limit alone leaves room for one longest sequence. 0 or -ENOSPC. */
int plan_check_limit(const struct plan_wish *wish, char refusal[PLAN_REFUSAL_BYTES]);

#endif
