/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: what a pool's budget is spent on, decided once when the pool is made.
 *
 * A pure function: any thread, nothing blocks.
 */

#include "daemon/state/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "daemon/base/panic.h"
#include "daemon/state/shadow.h"

/* Sums of a wish saturate: a need that does not fit in 64 bits is refused like any too large. */
static uint64_t add(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t pages_of(uint64_t tokens, uint64_t page_tokens)
{
	must(page_tokens > 0);
	if (tokens == 0)
		tokens = 1;
	return tokens / page_tokens + (tokens % page_tokens != 0);
}

int plan_prefix(uint64_t pages, const struct plan_wish *wish, struct plan *out,
		char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t reserve = pages_of(wish->max_sequence_tokens, wish->page_tokens);
	uint64_t room = pages > reserve ? pages - reserve : 0;
	uint64_t effective = wish->max_prefix_pages < room ? wish->max_prefix_pages : room;

	if (wish->prefix_caching && effective == 0) {
		snprintf(refusal, PLAN_REFUSAL_BYTES,
			 "prefix caching has no room: the pool has %" PRIu64 " pages and %" PRIu64
			 " of them are reserved for one request of max_sequence_length %" PRIu64
			 "; more pool_bytes or pool_pages, a smaller max_sequence_length, a "
			 "max_prefix_cache_pages above 0, or enable_prefix_caching false would "
			 "change it",
			 pages, reserve, wish->max_sequence_tokens);
		return -ENOSPC;
	}
	if (wish->prefix_caching && wish->shadow_lru &&
	    effective > SHADOW_BYTES_MAX / KEYSET_ENTRY_BYTES) {
		snprintf(refusal, PLAN_REFUSAL_BYTES,
			 "shadow_lru would take %" PRIu64 " bytes for a prefix cache of %" PRIu64
			 " pages, at most %llu are accepted; shadow_lru false or a smaller "
			 "max_prefix_cache_pages would change it",
			 multiply(effective, KEYSET_ENTRY_BYTES), effective, SHADOW_BYTES_MAX);
		return -ENOSPC;
	}
	out->reserve_pages = reserve;
	out->requested_prefix_pages = wish->prefix_caching ? wish->max_prefix_pages : 0;
	out->effective_prefix_pages = wish->prefix_caching ? effective : 0;
	out->fallback_reason[0] = 0;
	if (wish->prefix_caching && wish->max_prefix_pages != PLAN_NULL &&
	    effective != wish->max_prefix_pages)
		snprintf(out->fallback_reason, sizeof(out->fallback_reason),
			 "prefix page budget clamped from %" PRIu64 " to %" PRIu64
			 " to reserve %" PRIu64 " request pages",
			 wish->max_prefix_pages, effective, reserve);
	return 0;
}

/* The budget in bytes. A pool_bytes above what is free is refused before anything is made. */
static int budget(const struct plan_wish *wish, uint64_t *out, char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t free_bytes = wish->available_bytes;

	if (wish->pool_bytes == PLAN_NULL) {
		*out = free_bytes > wish->headroom_bytes ? free_bytes - wish->headroom_bytes : 0;
		return 0;
	}
	if (wish->pool_bytes > free_bytes) {
		snprintf(refusal, PLAN_REFUSAL_BYTES,
			 "pool_bytes asks for %" PRIu64 " bytes, the device has %" PRIu64
			 " free, %" PRIu64 " are missing; a smaller pool_bytes, or null for what "
			 "is free, would change it",
			 wish->pool_bytes, free_bytes, wish->pool_bytes - free_bytes);
		return -ENOSPC;
	}
	*out = wish->pool_bytes;
	return 0;
}

static int refuse_floor(const struct plan_wish *wish, uint64_t budget_bytes, uint64_t fixed_bytes,
			uint64_t floor_pages, char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t need = add(fixed_bytes, multiply(floor_pages, wish->page_stride));

	snprintf(refusal, PLAN_REFUSAL_BYTES,
		 "one sequence of max_sequence_length %" PRIu64 " needs %" PRIu64
		 " pages of %" PRIu64 " bytes and %" PRIu64
		 " bytes of slots and workspace, %" PRIu64 " bytes in all; the budget is %" PRIu64
		 " bytes, %" PRIu64
		 " are missing; more pool_bytes, less headroom_bytes, fewer lanes or a smaller "
		 "max_sequence_length would change it",
		 wish->max_sequence_tokens, floor_pages, wish->page_stride, fixed_bytes, need,
		 budget_bytes, need > budget_bytes ? need - budget_bytes : 0);
	return -ENOSPC;
}

int plan_check_limit(const struct plan_wish *wish, char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t floor_pages =
	    add(pages_of(wish->max_sequence_tokens, wish->page_tokens), wish->retained_slots);

	if (wish->pool_pages_limit == 0 || wish->pool_pages_limit >= floor_pages)
		return 0;
	snprintf(refusal, PLAN_REFUSAL_BYTES,
		 "pool_pages is %" PRIu64 ", one sequence of max_sequence_length %" PRIu64
		 " needs %" PRIu64 " pages, %" PRIu64 " are missing; more pool_pages or a smaller "
		 "max_sequence_length would change it",
		 wish->pool_pages_limit, wish->max_sequence_tokens, floor_pages,
		 floor_pages - wish->pool_pages_limit);
	return -ENOSPC;
}

int plan_compute(const struct plan_wish *wish, struct plan *out, char refusal[PLAN_REFUSAL_BYTES])
{
	struct plan plan = {0};
	uint64_t fixed, floor_pages;
	int r;

	must(wish->page_stride > 0);
	must(wish->page_tokens > 0);
	r = budget(wish, &plan.budget_bytes, refusal);
	if (r)
		return r;

	plan.lane_bytes = multiply(multiply(wish->lanes, 2), wish->state_slot_bytes);
	plan.retained_bytes = multiply(wish->retained_slots, wish->state_slot_bytes);
	plan.workspace_bytes = wish->workspace_bytes;
	fixed = add(add(plan.lane_bytes, plan.retained_bytes), plan.workspace_bytes);
	floor_pages =
	    add(pages_of(wish->max_sequence_tokens, wish->page_tokens), wish->retained_slots);

	if (fixed < plan.budget_bytes)
		plan.pages = (plan.budget_bytes - fixed) / wish->page_stride;
	if (plan.pages < floor_pages)
		return refuse_floor(wish, plan.budget_bytes, fixed, floor_pages, refusal);
	r = plan_check_limit(wish, refusal);
	if (r)
		return r;
	if (wish->pool_pages_limit && plan.pages > wish->pool_pages_limit)
		plan.pages = wish->pool_pages_limit;

	plan.page_bytes = plan.pages * wish->page_stride;
	plan.left_bytes = plan.budget_bytes - fixed - plan.page_bytes;
	r = plan_prefix(plan.pages, wish, &plan, refusal);
	if (r)
		return r;
	*out = plan;
	return 0;
}
