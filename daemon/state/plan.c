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
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/state/plan_keys.h"

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

enum verdict {
	FITS,
	LIMIT_TOO_LOW,    /* pool_pages, for one longest sequence */
	PAGES_TOO_MANY,   /* pool_pages, for any pool */
	PAGES_TOO_LARGE,  /* pool_pages, for the device */
	BUDGET_TOO_LARGE, /* pool_bytes, for the device */
	BUDGET_TOO_SMALL, /* for one longest sequence */
	NO_PREFIX_ROOM,
	SHADOW_TOO_LARGE,
};

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

static enum verdict judge_prefix(const struct plan_wish *wish, uint64_t pages, struct plan *out)
{
	uint64_t effective = prefix_pages_of(wish, pages);

	out->reserve_pages = reserve_of(wish);
	out->requested_prefix_pages = wish->prefix_caching ? wish->max_prefix_pages : 0;
	out->effective_prefix_pages = effective;
	out->fallback_reason[0] = 0;
	if (wish->prefix_caching && effective == 0)
		return NO_PREFIX_ROOM;
	if (wish->limits.shadow_lru && effective && shadow_bytes_for(effective) > SHADOW_BYTES_MAX)
		return SHADOW_TOO_LARGE;
	if (wish->prefix_caching && wish->max_prefix_pages != PLAN_NULL &&
	    effective != wish->max_prefix_pages)
		snprintf(out->fallback_reason, sizeof(out->fallback_reason),
			 "prefix page budget clamped from %" PRIu64 " to %" PRIu64
			 " to reserve %" PRIu64 " request pages",
			 wish->max_prefix_pages, effective, out->reserve_pages);
	return FITS;
}

/* Of a pool whose pages are all that is known of it: those that it is limited to. */
static enum verdict judge_known(const struct plan_wish *wish, struct plan *out)
{
	out->pages = wish->pool_pages_limit;
	return judge_prefix(wish, out->pages, out);
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

static uint64_t floor_of(const struct plan_wish *wish)
{
	return add(reserve_of(wish), wish->retained_slots);
}

static enum verdict judge_limit(const struct plan_wish *wish, struct plan *out)
{
	(void)out;
	return wish->pool_pages_limit && wish->pool_pages_limit < floor_of(wish) ? LIMIT_TOO_LOW
										 : FITS;
}

/* The budget in bytes. More than what is free is refused before anything is made. */
static enum verdict judge_budget(const struct plan_wish *wish, uint64_t fixed, uint64_t *out)
{
	uint64_t free_bytes = wish->available_bytes, pages = wish->pool_pages_limit;

	if (wish->pool_bytes != PLAN_NULL) {
		*out = wish->pool_bytes;
		return *out > free_bytes ? BUDGET_TOO_LARGE : FITS;
	}
	if (pages) {
		*out = add(fixed, cost_of(wish, pages));
		if (pages > POOL_PAGES_MAX)
			return PAGES_TOO_MANY;
		return *out > free_bytes ? PAGES_TOO_LARGE : FITS;
	}
	*out = free_bytes > wish->headroom_bytes ? free_bytes - wish->headroom_bytes : 0;
	return FITS;
}

static uint64_t fixed_of(const struct plan *p)
{
	return add(add(p->lane_bytes, p->retained_bytes), p->workspace_bytes);
}

/* A plan with the lines that do not depend on the budget. */
static struct plan plan_of(const struct plan_wish *wish)
{
	return (struct plan){
	    .lane_bytes = multiply(multiply(wish->lanes, 2), wish->state_slot_bytes),
	    .retained_bytes = multiply(wish->retained_slots, wish->state_slot_bytes),
	    .workspace_bytes = wish->workspace_bytes,
	};
}

static enum verdict judge(const struct plan_wish *wish, struct plan *out)
{
	struct plan plan = plan_of(wish);
	uint64_t fixed = fixed_of(&plan), room;
	enum verdict verdict;

	verdict = judge_limit(wish, &plan);
	if (!verdict)
		verdict = judge_budget(wish, fixed, &plan.budget_bytes);
	room = fixed < plan.budget_bytes ? plan.budget_bytes - fixed : 0;
	if (!verdict)
		plan.pages = pages_for(wish, room, POOL_PAGES_MAX);
	if (!verdict && plan.pages < floor_of(wish))
		verdict = BUDGET_TOO_SMALL;
	if (!verdict) {
		if (wish->pool_pages_limit && plan.pages > wish->pool_pages_limit)
			plan.pages = wish->pool_pages_limit;
		plan.index_bytes = index_of(wish, plan.pages);
		plan.page_bytes = plan.pages * wish->page_stride;
		plan.left_bytes = room - plan.index_bytes - plan.page_bytes;
		verdict = judge_prefix(wish, plan.pages, &plan);
	}
	*out = plan;
	return verdict;
}

/* ---- what a refusal says ---- */

static void say_numbers(const struct plan_wish *wish, enum verdict verdict, const struct plan *p,
			char out[PLAN_REFUSAL_BYTES])
{
	uint64_t pages = wish->pool_pages_limit, most = wish->max_sequence_tokens;
	uint64_t least = floor_of(wish), need = add(fixed_of(p), cost_of(wish, least));
	char index[64] = "";

	switch (verdict) {
	case LIMIT_TOO_LOW:
		snprintf(out, PLAN_REFUSAL_BYTES,
			 "pool_pages is %" PRIu64 ", one sequence of max_sequence_length %" PRIu64
			 " needs %" PRIu64 " pages, %" PRIu64 " are missing",
			 pages, most, least, least - pages);
		return;
	case PAGES_TOO_MANY:
		snprintf(out, PLAN_REFUSAL_BYTES,
			 "pool_pages asks for %" PRIu64 " pages, a pool can have at most %u", pages,
			 POOL_PAGES_MAX);
		return;
	case PAGES_TOO_LARGE:
		snprintf(out, PLAN_REFUSAL_BYTES,
			 "pool_pages asks for %" PRIu64 " pages of %" PRIu64
			 " bytes, an index of %" PRIu64 " bytes and %" PRIu64
			 " bytes of slots and workspace, %" PRIu64
			 " bytes in all; the device has %" PRIu64 " free, %" PRIu64 " are missing",
			 pages, wish->page_stride, index_of(wish, pages), fixed_of(p),
			 p->budget_bytes, wish->available_bytes,
			 p->budget_bytes - wish->available_bytes);
		return;
	case BUDGET_TOO_LARGE:
		snprintf(out, PLAN_REFUSAL_BYTES,
			 "pool_bytes asks for %" PRIu64 " bytes, the device has %" PRIu64
			 " free, %" PRIu64 " are missing",
			 wish->pool_bytes, wish->available_bytes,
			 wish->pool_bytes - wish->available_bytes);
		return;
	case BUDGET_TOO_SMALL:
		snprintf(out, PLAN_REFUSAL_BYTES,
			 "one sequence of max_sequence_length %" PRIu64 " needs %" PRIu64
			 " pages of %" PRIu64 " bytes, an index of %" PRIu64 " bytes and %" PRIu64
			 " bytes of slots and workspace, %" PRIu64
			 " bytes in all; the budget is %" PRIu64 " bytes, %" PRIu64 " are missing",
			 most, least, wish->page_stride, index_of(wish, least), fixed_of(p), need,
			 p->budget_bytes, need > p->budget_bytes ? need - p->budget_bytes : 0);
		return;
	case NO_PREFIX_ROOM:
		if (p->index_bytes)
			snprintf(index, sizeof(index), " beside an index of %" PRIu64 " bytes",
				 p->index_bytes);
		snprintf(out, PLAN_REFUSAL_BYTES,
			 "prefix caching has no room: the pool has %" PRIu64 " pages%s and %" PRIu64
			 " of them are reserved for one request of max_sequence_length %" PRIu64,
			 p->pages, index, p->reserve_pages, most);
		return;
	case SHADOW_TOO_LARGE:
		snprintf(out, PLAN_REFUSAL_BYTES,
			 "shadow_lru would take %" PRIu64 " bytes for a prefix cache of %" PRIu64
			 " pages, at most %llu are accepted",
			 shadow_bytes_for(p->effective_prefix_pages), p->effective_prefix_pages,
			 SHADOW_BYTES_MAX);
		return;
	case FITS:
		break;
	}
	cannot_happen("a plan that fits is refused");
}

static int refuse(const struct plan_wish *wish, enum verdict verdict, const struct plan *p,
		  plan_judge *fits, char out[PLAN_REFUSAL_BYTES])
{
	size_t used;

	say_numbers(wish, verdict, p, out);
	used = strlen(out);
	plan_say_keys(wish, fits, out + used, PLAN_REFUSAL_BYTES - used);
	return -ENOSPC;
}

/* ---- all of it ---- */

static bool fits_all(const struct plan_wish *wish)
{
	struct plan plan;

	return judge(wish, &plan) == FITS;
}

static bool fits_limit(const struct plan_wish *wish)
{
	return judge_limit(wish, NULL) == FITS;
}

static bool fits_known(const struct plan_wish *wish)
{
	struct plan plan = {0};

	return judge_known(wish, &plan) == FITS;
}

int plan_check_limit(const struct plan_wish *wish, char refusal[PLAN_REFUSAL_BYTES])
{
	struct plan plan = {0};
	enum verdict verdict = judge_limit(wish, &plan);

	return verdict ? refuse(wish, verdict, &plan, fits_limit, refusal) : 0;
}

int plan_prefix(uint64_t pages, const struct plan_wish *wish, struct plan *out,
		char refusal[PLAN_REFUSAL_BYTES])
{
	struct plan_wish known = *wish;
	struct plan plan = {0};
	enum verdict verdict;

	known.pool_pages_limit = pages;
	known.pool_bytes = 0; /* nobody knows */
	verdict = judge_known(&known, &plan);
	if (verdict)
		return refuse(&known, verdict, &plan, fits_known, refusal);
	out->reserve_pages = plan.reserve_pages;
	out->requested_prefix_pages = plan.requested_prefix_pages;
	out->effective_prefix_pages = plan.effective_prefix_pages;
	memcpy(out->fallback_reason, plan.fallback_reason, sizeof(out->fallback_reason));
	return 0;
}

uint64_t plan_least(const struct plan_wish *wish)
{
	uint64_t pages = floor_of(wish), cached = add(reserve_of(wish), wish->prefix_caching);
	struct plan plan = plan_of(wish);

	return add(fixed_of(&plan), cost_of(wish, pages > cached ? pages : cached));
}

int plan_compute(const struct plan_wish *wish, struct plan *out, char refusal[PLAN_REFUSAL_BYTES])
{
	enum verdict verdict;
	struct plan plan;

	must(wish->page_stride > 0);
	must(wish->limits.page_tokens > 0);
	verdict = judge(wish, &plan);
	if (verdict)
		return refuse(wish, verdict, &plan, fits_all, refusal);
	*out = plan;
	return 0;
}
