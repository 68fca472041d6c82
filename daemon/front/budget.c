/* SPDX-License-Identifier: Apache-2.0 */
/* budget: see budget.h. Core thread; nothing here blocks. */
#include "daemon/front/budget.h"

#include "daemon/front/below.h"
#include "daemon/front/request.h"

static const struct arena *arena_of(const struct core *c)
{
	return c->ram ? c->ram->arena : NULL;
}

uint64_t budget_promised(const struct core *c, const char **to)
{
	uint64_t ram = arena_of(c) ? arena_of(c)->promised_bytes : 0, pools = 0;

	for (uint32_t i = 0; i < c->n_pools; i++)
		pools +=
		    c->pool[i]->state == CORE_POOL_MAKING ? c->pool[i]->memory.promised_bytes : 0;
	*to = pools ? "KV-RAM and pools on their way are" : "KV-RAM is";
	return ram + pools;
}

/* Who says how large the pool is knows what else is to be there. */
static uint64_t available_bytes(const struct core_pool *p)
{
	const struct arena *a = arena_of(p->core);
	uint64_t bytes = p->core->available_bytes, taken = a && !a->set_aside ? a->bytes : 0;

	if (p->config->pool_bytes != CONFIG_NULL || p->config->pool_pages != CONFIG_NULL)
		return bytes;
	if (p->core->staging)
		taken += p->core->staging->bytes;
	return bytes > taken ? bytes - taken : 0;
}

uint32_t budget_retained_slots(const struct core_pool *p)
{
	if (p->layout.n == 0 || !p->config->enable_prefix_caching)
		return 0;
	return (uint32_t)(p->config->retained_slots == CONFIG_NULL ? 2 * p->config->lanes
								   : p->config->retained_slots);
}

/* Retained slots are no part of pool_bytes, but of the same memory. */
static bool take_retained(struct request *r, const struct core_pool *p, uint64_t *available_bytes)
{
	uint64_t slots = budget_retained_slots(p);
	uint64_t slot_bytes = p->layout.state_stride + p->layout.ring_stride;

	if (slots && slot_bytes > *available_bytes / slots)
		return refused(r, WIRE_ENOSPC,
			       "%llu retained slots of %llu bytes each are more than the device's "
			       "%llu free bytes; a smaller pools.retained_slots would change it",
			       (unsigned long long)slots, (unsigned long long)slot_bytes,
			       (unsigned long long)*available_bytes);
	*available_bytes -= slots * slot_bytes;
	return true;
}

struct pool_limits budget_limits(const struct core_pool *p)
{
	return (struct pool_limits){
	    .pages = (uint32_t)p->plan.pages,
	    .page_tokens = p->geometry.page_tokens,
	    .max_sequence_tokens = (uint32_t)p->config->max_sequence_length,
	    .nodes = (uint32_t)p->plan.pages + POOL_NODES_BESIDE,
	    .ram_pages = below_pages(p, POOL_PAGES_MAX - p->plan.pages),
	    .ram_images = below_images(p),
	    .name_spaces = config_name_spaces(p->core->config, p->config),
	    .prefix_budget = p->plan.effective_prefix_pages,
	    .order =
		p->config->retained_order == CONFIG_RETAINED_LEARNED ? RETAIN_LEARNED : RETAIN_LRU,
	    .shadow_lru = p->config->shadow_lru,
	    .lanes = p->layout.n ? (uint32_t)p->config->lanes : 0,
	    .retained_slots = budget_retained_slots(p),
	    .min_capture_tokens = (uint32_t)p->config->min_capture_tokens,
	    .ram_floor_tokens = p->config->ram_floor_tokens == CONFIG_AUTO
				    ? FLOOR_UNKNOWN_TOKENS
				    : (uint32_t)p->config->ram_floor_tokens,
	    .live_in_ram = p->config->live_in_ram,
	    .overcommit = p->config->overcommit,
	    .interactive_ttl_ns = p->config->retained_interactive_ttl_s * NS_PER_S,
	};
}

bool budget_compute(struct request *r, struct core_pool *p)
{
	const struct config_pool *k = p->config;
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan_wish wish = {
	    .pool_bytes = k->pool_bytes == CONFIG_NULL ? PLAN_NULL : k->pool_bytes,
	    .available_bytes = available_bytes(p),
	    .headroom_bytes = k->headroom_bytes,
	    .pool_pages_limit = k->pool_pages == CONFIG_NULL ? 0 : k->pool_pages,
	    .page_stride = p->geometry.page_stride,
	    .max_sequence_tokens = k->max_sequence_length,
	    .lanes = k->lanes,
	    .state_slot_bytes = p->layout.state_stride,
	    .workspace_bytes = k->lanes * p->layout.ring_stride,
	    .prefix_caching = k->enable_prefix_caching,
	    .max_prefix_pages =
		k->max_prefix_cache_pages == CONFIG_NULL ? PLAN_NULL : k->max_prefix_cache_pages,
	    .limits = budget_limits(p),
	};

	if (!take_retained(r, p, &wish.available_bytes))
		return false;
	if (plan_compute(&wish, &p->plan, refusal))
		return refused(r, WIRE_ENOSPC, "%s", refusal);
	return true;
}
