/* SPDX-License-Identifier: Apache-2.0 */
/* pools: the pools of the configuration, who waits for what in them, their counters. Core thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/below.h"
#include "daemon/front/hybrid.h"

int core_pools_init(struct core *c)
{
	for (uint32_t i = 0; i < c->config->n_pools; i++) {
		struct core_pool *p = calloc(1, sizeof(*p));

		if (!p)
			return -ENOMEM;
		p->core = c;
		p->config = &c->config->pools[i];
		p->state = CORE_POOL_DECLARED;
		p->memory.segment = SEGMENT_NONE;
		p->memory.retained = SEGMENT_NONE;
		list_init(&p->attaching);
		list_init(&p->dropping);
		list_init(&p->admission);
		for (uint32_t ns = 0; ns < CONFIG_NAMESPACES_MAX; ns++)
			list_init(&p->over_quota[ns]);
		list_init(&p->starving);
		list_init(&p->copying);
		list_init(&p->fetching);
		list_init(&p->idle_order);
		list_init(&p->step_order);
		c->pool[c->n_pools++] = p;
		if (slots_take(&c->pools, p, &p->handle) ||
		    counters_add_pool(&c->counters, p->config->name, &p->counters))
			return -ENOMEM;
	}
	return 0;
}

void core_forget_making(struct core *c)
{
	for (uint32_t i = 0; i < c->n_pools; i++)
		c->pool[i]->making.job.cancelled = true;
}

void core_pools_deinit(struct core *c)
{
	for (uint32_t i = 0; i < c->n_pools; i++) {
		struct core_pool *p = c->pool[i];

		if (p->pool.limits.pages) {
			must(p->mover.in_flight == 0);
			below_abandon(p);
			pool_deinit(&p->pool);
		}
		device_memory_free(&p->memory);
		core_pool_undescribe(p);
		free(p);
	}
	c->n_pools = 0;
}

void core_pool_undescribe(struct core_pool *p)
{
	geometry_free(&p->geometry);
	p->geometry = (struct geometry){0};
	free(p->layers);
	p->layers = NULL;
	free(p->sections);
	p->sections = NULL;
	free(p->layout.sections);
	p->layout = (struct hybrid_layout){0};
}

static struct request *first_of(const struct list *waiting)
{
	struct list *first = list_first(waiting);

	return first ? list_entry(first, struct request, in_wait) : NULL;
}

static void try_first(const struct list *waiting)
{
	struct request *r = first_of(waiting);

	if (r)
		request_ready(r);
}

void core_pool_offer(struct core_pool *p, const struct request *by)
{
	if (first_of(&p->starving) != by && protection(who_starves_hears_of_pages))
		try_first(&p->starving);
}

void core_pool_tell_lost(struct core_pool *p)
{
	struct list *const lists[] = {&p->starving, &p->fetching, &p->copying, &p->admission,
				      &p->over_quota[0]};
	const uint32_t n = sizeof(lists) / sizeof(*lists) - 1;

	p->pool.has_lost = false;
	for (uint32_t i = 0; i < n + p->core->config->n_namespaces; i++) {
		list_for_each(link, following, i < n ? lists[i] : lists[n] + (i - n))
		{
			struct request *r = list_entry(link, struct request, in_wait);

			if (r->sequence && r->sequence->seq && r->sequence->seq->lost)
				request_ready(r);
		}
	}
}

void core_ram_arrived(struct core *c)
{
	for (uint32_t i = 0; i < c->n_pools; i++)
		core_pool_settle(c->pool[i]);
}

/* What has gone from KV-RAM, or has arrived there, and what is promised there no more, makes room
 * for all pools. */
void core_ram_settle(struct core *c)
{
	for (uint32_t i = 0; c->ram && !c->draining && i < c->n_pools; i++) {
		try_first(&c->pool[i]->starving);
		try_first(&c->pool[i]->admission);
	}
}

void core_pool_settle(struct core_pool *p)
{
	p->published_change = true;
	if (p->pool.below)
		core_ram_settle(p->core);
	if (p->state != CORE_POOL_READY || p->core->draining)
		return;
	mover_kick(&p->mover);
	list_for_each(link, following, &p->fetching)
	    request_ready(list_entry(link, struct request, in_wait));
	/* The first of each is tried again; if it succeeds, its successor is. */
	try_first(&p->starving);
	try_first(&p->admission);
	for (uint32_t ns = 0; ns < p->core->config->n_namespaces; ns++)
		try_first(&p->over_quota[ns]);
}

static void end_all(struct list *waiting)
{
	while (!list_is_empty(waiting))
		request_end(list_entry(list_first(waiting), struct request, in_wait), WIRE_EIO);
}

void core_pool_fail(struct core_pool *p)
{
	if (p->state == CORE_POOL_FAILED || p->state == CORE_POOL_DROPPING)
		return;
	p->state = CORE_POOL_FAILED;
	log_write(p->core->log, LOG_LEVEL_ERROR,
		  "pool %s: its memory has failed; what is open ends with an error, nothing is "
		  "served from it",
		  p->config->name);
	end_all(&p->starving);
	end_all(&p->fetching);
	end_all(&p->admission);
	for (uint32_t ns = 0; ns < CONFIG_NAMESPACES_MAX; ns++)
		end_all(&p->over_quota[ns]);
}

static uint64_t count_pins(const struct core_pool *p)
{
	return p->mover.in_flight;
}

static void publish_gauges(struct core_pool *p)
{
	const struct pool *x = &p->pool;
	struct pool_counters *c = p->counters;
	uint64_t reserved = x->ceilings + x->surplus;

	pool_counters_set(c, COUNTER_pool_pages_capacity, x->limits.pages);
	pool_counters_set(c, COUNTER_pool_index_bytes,
			  x->limits.pages ? pool_index_bytes(&x->limits) : 0);
	pool_counters_set(c, COUNTER_pool_pages_free, pages_free(&x->pages));
	pool_counters_set(c, COUNTER_pool_pages_live, x->live + x->pages.count[PAGE_PRIVATE]);
	pool_counters_set(c, COUNTER_pool_pages_retained, pool_retained(x));
	pool_counters_set(c, COUNTER_pool_pages_reserved,
			  reserved < x->limits.pages ? reserved : x->limits.pages);
	pool_counters_set(c, COUNTER_pool_pages_indexed, x->indexed);
	pool_counters_set(c, COUNTER_pool_pages_draining, x->pages.count[PAGE_DRAINING]);
	pool_counters_set(c, COUNTER_pool_pages_quarantined, x->pages.count[PAGE_QUARANTINED]);
	pool_counters_set(c, COUNTER_pool_table_refs, x->live + x->pages.count[PAGE_PRIVATE]);
	pool_counters_set(c, COUNTER_pool_prefix_refs, x->indexed);
	pool_counters_set(c, COUNTER_pool_execution_pins, x->open_steps);
	pool_counters_set(c, COUNTER_pool_transfer_pins, count_pins(p));
	pool_counters_set(c, COUNTER_pool_active_transactions, x->open_steps);
	pool_counters_set(c, COUNTER_pool_sequences, x->sequences);
	pool_counters_set(c, COUNTER_prefix_retained_pages, pool_retained(x));
	pool_counters_set(c, COUNTER_pool_lanes_capacity, x->images.n_lanes);
	pool_counters_set(c, COUNTER_pool_lanes_used, x->images.n_lanes - x->images.lanes_free);
	pool_counters_set(c, COUNTER_retained_slots_capacity, x->images.n_slots);
	pool_counters_set(c, COUNTER_retained_slots_used, x->images.n_slots - x->images.slots_free);
	pool_counters_set(c, COUNTER_ram_pages, x->in_ram);
	pool_counters_set(c, COUNTER_ram_bytes_used, p->ram.used_bytes);
	pool_counters_set(c, COUNTER_ram_pages_leaving, x->leaving);
	pool_counters_set(c, COUNTER_ram_pages_arriving, x->arriving);
	pool_counters_set(c, COUNTER_ram_places_live, x->in_ram_private);
	pool_counters_set(c, COUNTER_ram_images, x->images.in_ram);
}

static void publish_sums(struct core_pool *p)
{
	const struct pool_stats *s = &p->pool.stats;
	struct pool_counters *c = p->counters;
	uint32_t page_tokens = p->pool.limits.page_tokens;

	pool_counters_set(c, COUNTER_pool_commits, s->commits);
	pool_counters_set(c, COUNTER_pool_aborts, s->aborts);
	pool_counters_set(c, COUNTER_pool_steps_ended, s->steps_ended);
	pool_counters_set(c, COUNTER_pool_conflicts, s->duplicates);
	pool_counters_set(c, COUNTER_pool_receipts_refused, s->conflicts);
	pool_counters_set(c, COUNTER_pool_pages_zeroed, p->mover.zeroed);
	pool_counters_set(c, COUNTER_pool_pages_copied, p->mover.copied);
	pool_counters_set(c, COUNTER_pool_opens, s->opens);
	pool_counters_set(c, COUNTER_pool_lookups, s->lookups);
	pool_counters_set(c, COUNTER_pool_lookup_hits, s->lookup_hits);
	pool_counters_set(c, COUNTER_pool_open_hits, s->open_hits);
	pool_counters_set(c, COUNTER_pool_reused_tokens, s->reused_tokens);
	pool_counters_set(c, COUNTER_pool_prompt_tokens, s->prompt_tokens);
	for (uint32_t i = PAYLOAD_MISS_NONE + 1; i < PAYLOAD_MISS_COUNT; i++)
		pool_counters_set(c, counter_of_miss((enum payload_miss)i), s->misses[i]);
	pool_counters_set(c, COUNTER_prefix_hits, s->reused_tokens / page_tokens);
	pool_counters_set(c, COUNTER_prefix_misses, s->pages_missed);
	pool_counters_set(c, COUNTER_prefix_evictions, s->evictions);
	pool_counters_set(c, COUNTER_prefix_copy_on_write_pages, s->copies_on_write);
	pool_counters_set(c, COUNTER_prefix_rejections, s->publish_stops);
	pool_counters_set(c, COUNTER_pool_hash_collisions, p->pool.prefix.collisions);
	pool_counters_set(c, COUNTER_pool_refused_references, p->pool.pages.refused_references);
	pool_counters_set(c, COUNTER_pool_admission_waits, s->admission_waits);
	pool_counters_set(c, COUNTER_pool_rows_written, p->rows_written);
	pool_counters_set(c, COUNTER_pool_rows_read, p->rows_read);
	pool_counters_set(c, COUNTER_pool_saturated, p->saturated);
}

static void publish_ram(struct core_pool *p)
{
	const struct pool_stats *s = &p->pool.stats;
	const struct image_counts *i = &p->pool.images.counts;
	struct pool_counters *c = p->counters;

	pool_counters_set(c, COUNTER_ram_hits, s->ram_hits);
	pool_counters_set(c, COUNTER_ram_hit_pages, s->ram_hit_pages);
	pool_counters_set(c, COUNTER_ram_restores, s->restores);
	pool_counters_set(c, COUNTER_ram_restores_failed, s->restores_failed);
	pool_counters_set(c, COUNTER_ram_spills, s->spills);
	pool_counters_set(c, COUNTER_ram_spills_failed, s->spills_failed);
	pool_counters_set(c, COUNTER_ram_spills_kept, s->spills_kept);
	pool_counters_set(c, COUNTER_ram_releases, s->releases);
	pool_counters_set(c, COUNTER_ram_displaced, s->ram_displaced);
	pool_counters_set(c, COUNTER_ram_refused, s->ram_refused);
	pool_counters_set(c, COUNTER_ram_refused_busy, s->ram_refused_busy);
	pool_counters_set(c, COUNTER_ram_refused_quota, s->ram_refused_quota);
	pool_counters_set(c, COUNTER_live_pages_parked, s->parked_pages);
	pool_counters_set(c, COUNTER_live_pages_returned, s->returned_pages);
	pool_counters_set(c, COUNTER_live_sequences_lost, s->lost_sequences);
	pool_counters_set(c, COUNTER_live_sequences_discarded, s->discarded_sequences);
	pool_counters_set(c, COUNTER_pool_discards, s->discards);
	pool_counters_set(c, COUNTER_ram_bytes_down, p->ram.down.sums.bytes);
	pool_counters_set(c, COUNTER_ram_bytes_up, p->ram.up.sums.bytes);
	pool_counters_set(c, COUNTER_ram_copies_down, p->ram.down.sums.copies);
	pool_counters_set(c, COUNTER_ram_copies_up, p->ram.up.sums.copies);
	pool_counters_set(c, COUNTER_ram_busy_down_ns, p->ram.down.sums.busy_ns);
	pool_counters_set(c, COUNTER_ram_busy_up_ns, p->ram.up.sums.busy_ns);
	pool_counters_set(c, COUNTER_ram_image_spills, i->spilled);
	pool_counters_set(c, COUNTER_ram_image_spills_failed, i->spills_failed);
	pool_counters_set(c, COUNTER_ram_image_restores, i->restored);
	pool_counters_set(c, COUNTER_ram_image_restores_failed, i->restores_failed);
}

static void publish_states(struct core_pool *p)
{
	const struct images *s = &p->pool.images;
	const uint64_t *skips = p->pool.stats.capture_skips;
	struct pool_counters *c = p->counters;

	pool_counters_set(c, COUNTER_checkpoint_captures, s->counts.captures[IMAGE_CHECKPOINT]);
	pool_counters_set(c, COUNTER_checkpoint_claims, s->counts.claims[IMAGE_CHECKPOINT]);
	pool_counters_set(c, COUNTER_checkpoint_discards, s->counts.given_up[IMAGE_CHECKPOINT]);
	pool_counters_set(c, COUNTER_prefix_captures, s->counts.captures[IMAGE_PREFIX]);
	pool_counters_set(c, COUNTER_prefix_claims, s->counts.claims[IMAGE_PREFIX]);
	pool_counters_set(c, COUNTER_prefix_discards, s->counts.given_up[IMAGE_PREFIX]);
	pool_counters_set(c, COUNTER_captures_replaced, s->counts.replaced);
	pool_counters_set(c, COUNTER_capture_skips_exists, skips[CAPTURE_EXISTS]);
	pool_counters_set(c, COUNTER_capture_skips_no_slot, skips[CAPTURE_NO_SLOT]);
	pool_counters_set(c, COUNTER_capture_skips_short, skips[CAPTURE_SHORT]);
	pool_counters_set(c, COUNTER_capture_skips_off, skips[CAPTURE_OFF]);
	pool_counters_set(c, COUNTER_capture_skips_unknown, skips[CAPTURE_UNKNOWN]);
	pool_counters_set(c, COUNTER_capture_skips_in_image, skips[CAPTURE_IN_IMAGE]);
	pool_counters_set(c, COUNTER_capture_skips_shared, skips[CAPTURE_SHARED]);
}

void core_pool_publish(struct core_pool *p)
{
	pool_counters_begin(p->counters);
	publish_gauges(p);
	/* Without pages, and before it knows what one of its name has counted (core_pool_remember),
	 * there is nothing that counts; the sums stay as they were. */
	if (p->pool.limits.pages && p->state != CORE_POOL_MAKING) {
		publish_sums(p);
		publish_states(p);
		publish_ram(p);
	}
	order_publish(p);
	pool_counters_end(p->counters);
}
