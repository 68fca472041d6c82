/* SPDX-License-Identifier: Apache-2.0 */
/* tiers: where what is known lies, and what moved between: JSON for operators. Core thread. */
#include <string.h>

#include "daemon/front/admin.h"
#include "daemon/front/below.h"

static json_t *number(uint64_t value)
{
	return json_integer((json_int_t)value);
}

static json_t *tier_line(const char *tier, const char *state, uint64_t used_bytes,
			 uint64_t capacity_bytes, uint64_t wanted_bytes, const char *note)
{
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:s}", "tier", tier, "state", state,
			 "used_bytes", number(used_bytes), "capacity_bytes", number(capacity_bytes),
			 "wanted_bytes", number(wanted_bytes), "note", note);
}

/* ---- the device ---- */

static uint64_t wanted_bytes(const struct core_pool *p)
{
	return p->plan.pages * p->geometry.page_stride + p->layout.slot_bytes +
	       p->layout.retained_bytes;
}

static uint64_t used_pages(const struct core_pool *p)
{
	return p->pool.limits.pages - pages_free(&p->pool.pages);
}

/* Of its pages, of the slots of its live sequences and of its retained states. */
static uint64_t used_bytes(const struct core_pool *p)
{
	const struct images *x = &p->pool.images;
	uint64_t lanes = x->n_lanes - x->lanes_free;

	return used_pages(p) * p->geometry.page_stride +
	       lanes * (2 * p->layout.state_stride + p->layout.ring_stride) +
	       (x->n_slots - x->slots_free) * (p->layout.state_stride + p->layout.ring_stride);
}

static bool has_pages(const struct core_pool *p)
{
	return p->pool.limits.pages > 0 && p->state != CORE_POOL_MAKING;
}

static json_t *device_line(const struct core *c)
{
	uint64_t used = 0, there = 0, wanted = 0;

	for (uint32_t i = 0; i < c->n_pools; i++) {
		const struct core_pool *p = c->pool[i];

		wanted += wanted_bytes(p);
		if (!has_pages(p))
			continue;
		there += wanted_bytes(p);
		used += used_bytes(p);
	}
	return tier_line("device", "on", used, there, wanted, c->device->name);
}

/* ---- KV-RAM ---- */

static const char *const states[] = {
    [ARENA_ARRIVING] = "arriving", [ARENA_WHOLE] = "on", [ARENA_PARTIAL] = "partial"};

json_t *tiers_describe_ram(const struct core *c)
{
	const struct arena *a = c->ram ? c->ram->arena : NULL;

	if (!a)
		return tier_line("KV-RAM", "off", 0, 0, 0, c->ram_note);
	return tier_line("KV-RAM", states[a->state], c->ram->used_bytes, a->arrived_bytes, a->bytes,
			 a->note);
}

/* It comes as a whole, or not at all. */
json_t *tiers_describe_staging(const struct core *c)
{
	const struct staging *s = c->staging;
	bool is_there = s && s->state == ARENA_WHOLE;
	const char *state = !s || s->state == ARENA_PARTIAL ? "off" : states[s->state];

	return json_pack("{s:s, s:i, s:o, s:o, s:o, s:s}", "state", state, "windows",
			 s ? STAGING_DIRECTIONS * STAGING_WINDOWS : 0, "window_bytes",
			 number(s ? s->window_bytes : 0), "capacity_bytes",
			 number(is_there ? s->bytes : 0), "wanted_bytes", number(s ? s->bytes : 0),
			 "note", s ? s->note : c->staging_note);
}

static json_t *namespace_line(const struct core *c, uint32_t i)
{
	const struct ram_share *share = &c->ram->shares[i];

	return json_pack("{s:s, s:o, s:o, s:o}", "namespace", c->namespaces[i].name,
			 "kv_ram_used_bytes", number(share->used_bytes), "guaranteed_bytes",
			 number(share->guaranteed_bytes), "max_bytes",
			 share->quota_bytes ? number(share->quota_bytes) : json_null());
}

static json_t *namespaces_of(const struct core *c)
{
	json_t *list = json_array();

	for (uint32_t i = 0; c->ram && i < c->config->n_namespaces; i++)
		json_array_append_new(list, namespace_line(c, i));
	return list;
}

/* ---- a pool ---- */

/* Of a pool that is not there now: what it counted before it was dropped. */
static const struct pool_stats *stats_of(const struct core_pool *p)
{
	return has_pages(p) ? &p->pool.stats : &p->past.stats;
}

static json_t *pool_tier(const char *tier, uint64_t pages, uint64_t images, uint64_t used_bytes,
			 uint64_t hit_pages)
{
	return json_pack("{s:s, s:o, s:o, s:o, s:o}", "tier", tier, "pages", number(pages),
			 "images", number(images), "used_bytes", number(used_bytes), "hit_pages",
			 number(hit_pages));
}

static json_t *pool_tiers(const struct core_pool *p)
{
	const struct pool_stats *s = stats_of(p);
	const struct images *x = &p->pool.images;
	uint64_t hit_pages = s->reused_tokens / p->config->kv_page_size;

	return json_pack(
	    "[o, o]",
	    pool_tier("device", used_pages(p), x->n_slots - x->slots_free, used_bytes(p),
		      hit_pages - s->ram_hit_pages),
	    pool_tier("KV-RAM", p->pool.in_ram, x->in_ram, p->ram.used_bytes, s->ram_hit_pages));
}

static json_t *pool_moves(const struct core_pool *p)
{
	const struct pool_stats *s = stats_of(p);
	const struct image_counts *i = has_pages(p) ? &p->pool.images.counts : &p->past.states;
	const struct ram_sums *down = has_pages(p) ? &p->ram.down.sums : &p->past.down;
	const struct ram_sums *up = has_pages(p) ? &p->ram.up.sums : &p->past.up;

	return json_pack(
	    "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
	    "s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
	    "leaving_pages", number(p->pool.leaving), "arriving_pages", number(p->pool.arriving),
	    "leaving_images", number(p->ram.spills.asked - p->ram.spills.told), "spills",
	    number(s->spills), "spills_kept", number(s->spills_kept), "spills_failed",
	    number(s->spills_failed), "releases", number(s->releases), "refused",
	    number(s->ram_refused), "refused_busy", number(s->ram_refused_busy), "refused_quota",
	    number(s->ram_refused_quota), "displaced", number(s->ram_displaced), "restores",
	    number(s->restores), "restores_failed", number(s->restores_failed), "image_spills",
	    number(i->spilled), "image_spills_failed", number(i->spills_failed), "image_restores",
	    number(i->restored), "image_restores_failed", number(i->restores_failed), "discards",
	    number(s->discards), "down_bytes", number(down->bytes), "down_copies",
	    number(down->copies), "up_bytes", number(up->bytes), "up_copies", number(up->copies));
}

static json_t *pool_live(const struct core_pool *p)
{
	const struct pool_stats *s = stats_of(p);

	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "parked_pages",
			 number(s->parked_pages), "returned_pages", number(s->returned_pages),
			 "private_places", number(p->pool.in_ram_private), "lost_sequences",
			 number(s->lost_sequences), "discarded_sequences",
			 number(s->discarded_sequences), "live_in_ram", (int)p->config->live_in_ram,
			 "overcommit", (int)p->config->overcommit);
}

static json_t *ram_answer(const struct core_pool *p)
{
	if (!has_pages(p))
		return json_null();
	if (below_is_degraded(p))
		return json_string("degraded: copies to it fail, and are tried again");
	return p->ram_note[0] ? json_sprintf("no: %s", p->ram_note) : json_string("yes");
}

static json_t *measured(uint32_t samples, uint64_t value)
{
	return samples ? number(value) : json_null();
}

/* What a floor is, and what one would be computed from; null: not measured yet. */
static json_t *floor_line(const struct core_pool *p)
{
	const struct floor *f = &p->floor;
	bool is_auto = p->config->ram_floor_tokens == CONFIG_AUTO;
	uint64_t tokens = is_auto ? floor_tokens(f) : p->config->ram_floor_tokens;

	return json_pack("{s:o, s:b, s:o, s:o, s:o}", "tokens", number(tokens), "auto", is_auto,
			 "prefill_of_a_token_ns", measured(f->prefills, floor_prefill_ns(f)),
			 "restore_of_a_token_ns", measured(f->restores, floor_restore_ns(f)),
			 "restore_delay_ns", measured(f->restores, (uint64_t)f->delay_ns));
}

static json_t *pool_line(const struct core_pool *p, bool whole)
{
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "pool", p->config->name,
			 "kv_ram", ram_answer(p), "floor", floor_line(p), "hits_in_kv_ram",
			 number(stats_of(p)->ram_hits), "tiers", pool_tiers(p), "moves",
			 pool_moves(p), "live", pool_live(p), "order", order_describe(p, whole));
}

json_t *tiers_describe(const struct core *c, const char *which)
{
	bool all = !which[0] || !strcmp(which, PAYLOAD_ADMIN_WHOLE);
	json_t *pools = json_array();

	for (uint32_t i = 0; i < c->n_pools; i++) {
		if (all || !strcmp(c->pool[i]->config->name, which))
			json_array_append_new(pools, pool_line(c->pool[i], which[0]));
	}
	if (!all && json_array_size(pools) == 0) {
		json_decref(pools);
		return NULL;
	}
	return json_pack(
	    "{s:[o, o, o], s:o, s:o, s:o}", "tiers", device_line(c), tiers_describe_ram(c),
	    tier_line("KV-disk", "off", 0, 0, 0, "off: not in this version"), "staging",
	    tiers_describe_staging(c), "namespaces", namespaces_of(c), "pools", pools);
}
