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

/* ---- the part of prefix caching ---- */

/* Pages of a longest sequence. */
static uint64_t reserve_of(const struct plan_wish *wish)
{
	return pages_of(wish->max_sequence_tokens, wish->limits.page_tokens);
}

static uint64_t prefix_pages_of(const struct plan_wish *wish, uint64_t pages)
{
	uint64_t reserve = reserve_of(wish);
	uint64_t room = pages > reserve ? pages - reserve : 0;

	if (!wish->prefix_caching)
		return 0;
	return wish->max_prefix_pages < room ? wish->max_prefix_pages : room;
}

static int refuse_prefix(const struct plan_wish *wish, uint64_t pages, uint64_t index_bytes,
			 char refusal[PLAN_REFUSAL_BYTES])
{
	char index[64] = "";

	if (index_bytes)
		snprintf(index, sizeof(index), " beside an index of %" PRIu64 " bytes",
			 index_bytes);
	snprintf(refusal, PLAN_REFUSAL_BYTES,
		 "prefix caching has no room: the pool has %" PRIu64 " pages%s and %" PRIu64
		 " of them are reserved for one request of max_sequence_length %" PRIu64
		 "; more pool_bytes or pool_pages, a smaller max_sequence_length, a "
		 "max_prefix_cache_pages above 0, or enable_prefix_caching false would "
		 "change it",
		 pages, index, reserve_of(wish), wish->max_sequence_tokens);
	return -ENOSPC;
}

static int set_prefix(const struct plan_wish *wish, uint64_t pages, uint64_t index_bytes,
		      struct plan *out, char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t effective = prefix_pages_of(wish, pages);

	if (wish->prefix_caching && effective == 0)
		return refuse_prefix(wish, pages, index_bytes, refusal);
	if (wish->limits.shadow_lru && effective &&
	    shadow_bytes_for(effective) > SHADOW_BYTES_MAX) {
		snprintf(refusal, PLAN_REFUSAL_BYTES,
			 "shadow_lru would take %" PRIu64 " bytes for a prefix cache of %" PRIu64
			 " pages, at most %llu are accepted; shadow_lru false or a smaller "
			 "max_prefix_cache_pages would change it",
			 shadow_bytes_for(effective), effective, SHADOW_BYTES_MAX);
		return -ENOSPC;
	}
	out->reserve_pages = reserve_of(wish);
	out->requested_prefix_pages = wish->prefix_caching ? wish->max_prefix_pages : 0;
	out->effective_prefix_pages = effective;
	out->fallback_reason[0] = 0;
	if (wish->prefix_caching && wish->max_prefix_pages != PLAN_NULL &&
	    effective != wish->max_prefix_pages)
		snprintf(out->fallback_reason, sizeof(out->fallback_reason),
			 "prefix page budget clamped from %" PRIu64 " to %" PRIu64
			 " to reserve %" PRIu64 " request pages",
			 wish->max_prefix_pages, effective, out->reserve_pages);
	return 0;
}

int plan_prefix(uint64_t pages, const struct plan_wish *wish, struct plan *out,
		char refusal[PLAN_REFUSAL_BYTES])
{
	return set_prefix(wish, pages, 0, out, refusal);
}

/* ---- what pages take ---- */

/* As far as a pool goes: more pages are refused in any case. A pool with prefix caching has an
 * order even where no page is left for it: what it lacks is then the order's memory, too. */
static uint64_t index_of(const struct plan_wish *wish, uint64_t pages)
{
	struct pool_limits limits = wish->limits;
	uint64_t prefix_pages;

	pages = pages < POOL_PAGES_MAX ? pages : POOL_PAGES_MAX;
	prefix_pages = prefix_pages_of(wish, pages);
	limits.pages = (uint32_t)pages;
	limits.nodes = limits.pages + POOL_NODES_BESIDE;
	limits.prefix_budget = wish->prefix_caching && !prefix_pages ? 1 : prefix_pages;
	return pool_index_bytes(&limits);
}

static uint64_t cost_of(const struct plan_wish *wish, uint64_t pages)
{
	return add(multiply(pages, wish->page_stride), index_of(wish, pages));
}

/* The most pages whose cost is at most `bytes`, but no more than `most`: cost never falls. */
static uint64_t pages_for(const struct plan_wish *wish, uint64_t bytes, uint64_t most)
{
	uint64_t fit = 0;

	while (fit < most) {
		uint64_t half = most - (most - fit) / 2;

		if (cost_of(wish, half) <= bytes)
			fit = half;
		else
			most = half - 1;
	}
	return fit;
}

/* ---- the budget ---- */

/* What pool_pages alone asks for. */
static int budget_of_pages(const struct plan_wish *wish, uint64_t fixed, uint64_t *out,
			   char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t pages = wish->pool_pages_limit, need = add(fixed, cost_of(wish, pages));

	if (pages > POOL_PAGES_MAX) {
		snprintf(refusal, PLAN_REFUSAL_BYTES,
			 "pool_pages asks for %" PRIu64 " pages, a pool can have at most %u; fewer "
			 "pool_pages would change it",
			 pages, POOL_PAGES_MAX);
		return -ENOSPC;
	}
	if (need > wish->available_bytes) {
		snprintf(
		    refusal, PLAN_REFUSAL_BYTES,
		    "pool_pages asks for %" PRIu64 " pages of %" PRIu64
		    " bytes, an index of %" PRIu64 " bytes and %" PRIu64
		    " bytes of slots and workspace, %" PRIu64
		    " bytes in all; the device has %" PRIu64 " free, %" PRIu64
		    " are missing; fewer pool_pages, or null for what is free, would change it",
		    pages, wish->page_stride, index_of(wish, pages), fixed, need,
		    wish->available_bytes, need - wish->available_bytes);
		return -ENOSPC;
	}
	*out = need;
	return 0;
}

/* The budget in bytes. A pool_bytes above what is free is refused before anything is made. */
static int budget(const struct plan_wish *wish, uint64_t fixed, uint64_t *out,
		  char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t free_bytes = wish->available_bytes;

	if (wish->pool_bytes == PLAN_NULL && wish->pool_pages_limit)
		return budget_of_pages(wish, fixed, out, refusal);
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
	uint64_t pages_bytes = multiply(floor_pages, wish->page_stride);
	uint64_t need = add(fixed_bytes, cost_of(wish, floor_pages));
	uint64_t index_bytes = index_of(wish, floor_pages);

	snprintf(refusal, PLAN_REFUSAL_BYTES,
		 "one sequence of max_sequence_length %" PRIu64 " needs %" PRIu64
		 " pages of %" PRIu64 " bytes, an index of %" PRIu64 " bytes and %" PRIu64
		 " bytes of slots and workspace, %" PRIu64 " bytes in all; the budget is %" PRIu64
		 " bytes, %" PRIu64
		 " are missing; more pool_bytes, less headroom_bytes, fewer lanes%s or a smaller "
		 "max_sequence_length would change it",
		 wish->max_sequence_tokens, floor_pages, wish->page_stride, index_bytes,
		 fixed_bytes, need, budget_bytes, need > budget_bytes ? need - budget_bytes : 0,
		 index_bytes > pages_bytes && wish->prefix_caching
		     ? ", retained_order lru, enable_prefix_caching false"
		     : "");
	return -ENOSPC;
}

int plan_check_limit(const struct plan_wish *wish, char refusal[PLAN_REFUSAL_BYTES])
{
	uint64_t floor_pages = add(reserve_of(wish), wish->retained_slots);

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
	uint64_t fixed, floor_pages, room;
	int r = plan_check_limit(wish, refusal);

	must(wish->page_stride > 0);
	must(wish->limits.page_tokens > 0);
	plan.lane_bytes = multiply(multiply(wish->lanes, 2), wish->state_slot_bytes);
	plan.retained_bytes = multiply(wish->retained_slots, wish->state_slot_bytes);
	plan.workspace_bytes = wish->workspace_bytes;
	fixed = add(add(plan.lane_bytes, plan.retained_bytes), plan.workspace_bytes);
	floor_pages = add(reserve_of(wish), wish->retained_slots);
	if (!r)
		r = budget(wish, fixed, &plan.budget_bytes, refusal);
	if (r)
		return r;

	room = fixed < plan.budget_bytes ? plan.budget_bytes - fixed : 0;
	plan.pages = pages_for(wish, room, POOL_PAGES_MAX);
	if (plan.pages < floor_pages)
		return refuse_floor(wish, plan.budget_bytes, fixed, floor_pages, refusal);
	if (wish->pool_pages_limit && plan.pages > wish->pool_pages_limit)
		plan.pages = wish->pool_pages_limit;

	plan.index_bytes = index_of(wish, plan.pages);
	plan.page_bytes = plan.pages * wish->page_stride;
	plan.left_bytes = room - plan.index_bytes - plan.page_bytes;
	r = set_prefix(wish, plan.pages, plan.index_bytes, &plan, refusal);
	if (r)
		return r;
	*out = plan;
	return 0;
}
