/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_pool: attach and detach. Core thread; the memory of a pool is made elsewhere.
 *
 * The first attach describes the artifact, and with it the pool's stamp; a later one must describe
 * the same, or is refused by the first field that differs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/base/panic.h"
#include "daemon/front/below.h"
#include "daemon/front/budget.h"
#include "daemon/front/drop.h"
#include "daemon/front/hybrid.h"

#define POOL_LIST_BYTES 800 /* with the sentence around it less than a text holds */

static uint32_t rights_of(const struct session *s)
{
	return s->observer ? 0 : s->core->config->namespaces[s->name_space].rights;
}

static bool attach_check(struct request *r)
{
	const struct payload_pool *in = r->in;
	uint64_t bytes = sizeof(*in) + (uint64_t)in->n_layers * sizeof(struct payload_layer) +
			 (uint64_t)in->n_sections * sizeof(struct payload_section);

	if (!(rights_of(r->session) & CONFIG_RIGHT_ATTACH))
		return refused(r, WIRE_EPERM,
			       "the session has no right to attach pools (namespaces.rights)");
	if (in->version != PAYLOAD_VERSION)
		return refused(r, WIRE_EVERSION,
			       "pool description version %u; this daemon reads %u", in->version,
			       PAYLOAD_VERSION);
	if (in->n_layers == 0 || in->n_layers > PAYLOAD_LAYERS_MAX)
		return refused(r, WIRE_EINVAL, "%u layers; 1 to %u are accepted", in->n_layers,
			       PAYLOAD_LAYERS_MAX);
	if (in->n_sections > PAYLOAD_SECTIONS_MAX)
		return refused(r, WIRE_EINVAL, "%u state sections; at most %u are accepted",
			       in->n_sections, PAYLOAD_SECTIONS_MAX);
	if (bytes != r->entry.in_bytes)
		return refused(
		    r, WIRE_EINVAL, "%u layers and %u sections take %llu bytes of input, not %u",
		    in->n_layers, in->n_sections, (unsigned long long)bytes, r->entry.in_bytes);
	if (!memchr(in->name, 0, sizeof(in->name)) || in->name[0] == 0)
		return refused(r, WIRE_EINVAL, "the pool's name is empty or not terminated");
	if (!range_is_zero(in->reserved, sizeof(in->reserved)) || in->want_map > 1)
		return refused(r, WIRE_EINVAL, "reserved words of the description are set");
	if (in->tensor_size == 0 || in->tensor_rank >= in->tensor_size || in->pipeline_size == 0 ||
	    in->pipeline_rank >= in->pipeline_size)
		return refused(r, WIRE_EINVAL,
			       "shard %u of %u (tensor), %u of %u (pipeline): a rank is less than "
			       "its size",
			       in->tensor_rank, in->tensor_size, in->pipeline_rank,
			       in->pipeline_size);
	return true;
}

/* ---- description, stamp, geometry ---- */

static void fill_defaults(const struct core_pool *p, struct payload_pool *d,
			  struct payload_layer *layers)
{
	if (d->page_tokens == 0)
		d->page_tokens = (uint32_t)p->config->kv_page_size;
	for (uint32_t i = 0; i < d->n_layers; i++) {
		if (layers[i].k_format == 0)
			layers[i].k_format = (uint8_t)p->config->kv_cache_dtype;
		if (layers[i].v_format == 0)
			layers[i].v_format = (uint8_t)p->config->kv_cache_dtype;
	}
}

static void make_stamp(struct core_pool *p)
{
	struct payload_pool d = p->description;
	XXH3_state_t *state = XXH3_createState();
	XXH128_hash_t h;

	d.want_map = 0;
	must(state);
	XXH3_128bits_reset(state);
	XXH3_128bits_update(state, &d, sizeof(d));
	XXH3_128bits_update(state, p->layers, d.n_layers * sizeof(*p->layers));
	XXH3_128bits_update(state, p->sections, d.n_sections * sizeof(*p->sections));
	h = XXH3_128bits_digest(state);
	XXH3_freeState(state);
	memcpy(p->stamp, &h.low64, 8);
	memcpy(p->stamp + 8, &h.high64, 8);
}

static bool compute_geometry(struct request *r, struct core_pool *p)
{
	struct geometry *g = &p->geometry;
	const char *why = NULL;
	uint32_t layer = 0;

	*g = (struct geometry){.page_tokens = p->description.page_tokens,
			       .n_layers = p->description.n_layers};
	g->layers = calloc(g->n_layers, sizeof(*g->layers));
	if (!g->layers)
		return refused(r, WIRE_ENOMEM, "the daemon has no memory for the geometry");
	for (uint32_t i = 0; i < g->n_layers; i++) {
		g->layers[i].kv_heads = p->layers[i].kv_heads;
		g->layers[i].head_dim[0] = p->layers[i].k_head_dim;
		g->layers[i].head_dim[1] = p->layers[i].v_head_dim;
		g->layers[i].format[0] = (enum kernel_format)p->layers[i].k_format;
		g->layers[i].format[1] = (enum kernel_format)p->layers[i].v_format;
	}
	if (geometry_compute(g, &why, &layer))
		return refused(r, WIRE_EINVAL, "layer %u: %s", layer, why);
	return true;
}

static bool compute_layout(struct request *r, struct core_pool *p)
{
	const char *why;
	uint32_t which;
	int result;

	if (p->description.n_sections == 0)
		return true;
	result = hybrid_lay_out(&p->layout, p->sections, p->description.n_sections, &why, &which);
	if (result == -ENOMEM)
		return refused(r, WIRE_ENOMEM, "the daemon has no memory for the state sections");
	if (result)
		return refused(r, WIRE_EINVAL, "section %u has %s", which, why);
	return true;
}

/* ---- making it ---- */

static void forget_description(struct core_pool *p)
{
	core_pool_undescribe(p);
	p->state = CORE_POOL_DECLARED;
}

static void pages_cleaned(void *context, int result)
{
	struct core_pool *p = context;

	if (result < 0)
		core_pool_fail(p);
	core_pool_settle(p);
}

static void set_quotas(struct core_pool *p)
{
	const struct config *k = p->core->config;

	for (uint32_t i = 0; i < k->n_namespaces; i++) {
		const struct config_namespace *n = &k->namespaces[i];

		pool_set_quota(&p->pool, (uint16_t)i,
			       n->max_pages == CONFIG_NULL ? 0 : n->max_pages, n->guaranteed_pages);
	}
}

static void populate(struct job *job)
{
	struct core_pool *p = list_entry(job, struct core_pool, populating);

	struct prefix *x = &p->pool.prefix;

	prefix_populate(x, x->capacity < p->pool.limits.pages ? x->capacity : p->pool.limits.pages);
}

static void populated(struct job *job)
{
	struct core_pool *p = list_entry(job, struct core_pool, populating);

	mover_init(&p->mover, &p->pool.pages, p->core->device, &p->memory, pages_cleaned, p);
	set_quotas(p);
	below_put(p);
	core_pool_remember(p);
	p->pool.retain.now_ns = p->core->now_ns;
	p->state = CORE_POOL_READY;
	p->idle_since_ns = p->core->now_ns;
	p->published_change = true;
	log_write(p->core->log, LOG_LEVEL_NOTICE,
		  "pool %s: %llu pages of %u tokens, %llu bytes each; %s%s%s", p->config->name,
		  (unsigned long long)p->plan.pages, p->geometry.page_tokens,
		  (unsigned long long)p->geometry.page_stride, p->memory.huge_note,
		  p->plan.fallback_reason[0] ? "; " : "", p->plan.fallback_reason);
	list_for_each(link, following, &p->attaching)
	    request_ready(list_entry(link, struct request, in_wait));
}

static void refuse_memory(struct request *r, const struct core_pool *p, int result)
{
	if (p->memory.refusal[0])
		refuse(r, WIRE_ENOMEM, "pool %s: %s", p->config->name, p->memory.refusal);
	else
		refuse(r, WIRE_ENOMEM, "pool %s: no memory for %llu pages of %llu bytes: %s (%s)",
		       p->config->name, (unsigned long long)p->plan.pages,
		       (unsigned long long)p->geometry.page_stride, strerror(-result),
		       p->memory.huge_note);
}

static void made(struct job *job)
{
	struct core_pool *p = ((struct device_job *)(void *)job)->owner;
	struct pool_limits limits = budget_limits(p);
	int result = job->result;

	p->floor = (struct floor){0};
	must(pool_index_bytes(&limits) == p->plan.index_bytes);
	if (!result && pool_init(&p->pool, &limits, &p->core->keys, p->stamp)) {
		device_memory_free(&p->memory);
		result = -ENOMEM;
	}
	if (result) {
		while (!list_is_empty(&p->attaching)) {
			struct request *r =
			    list_entry(list_first(&p->attaching), struct request, in_wait);

			refuse_memory(r, p, result);
			request_finish(r);
		}
		forget_description(p);
		return;
	}
	p->populating = (struct job){.run = populate, .done = populated};
	p->core->work->submit(p->core->work, &p->populating);
}

/* Not the first attach decides: the configuration does. */
static bool same_page_tokens(struct request *r, const struct core_pool *p, uint32_t found)
{
	if (found == p->config->kv_page_size)
		return true;
	return refused(r, WIRE_EMISMATCH,
		       "page_tokens: pool %s is configured with %llu, found %u; its kv_page_size "
		       "would change it",
		       p->config->name, (unsigned long long)p->config->kv_page_size, found);
}

static bool describe(struct request *r, struct core_pool *p)
{
	const struct payload_pool *in = r->in;
	uint64_t bytes = (uint64_t)in->n_layers * sizeof(*p->layers);
	uint64_t more = (uint64_t)in->n_sections * sizeof(*p->sections);

	p->description = *in;
	p->layers = malloc(bytes);
	p->sections = malloc(more ? more : 1);
	if (!p->layers || !p->sections) {
		forget_description(p);
		return refused(r, WIRE_ENOMEM, "the daemon has no memory for the description");
	}
	memcpy(p->layers, in + 1, bytes);
	memcpy(p->sections, (const char *)(in + 1) + bytes, more);
	fill_defaults(p, &p->description, p->layers);
	if (!same_page_tokens(r, p, p->description.page_tokens)) {
		forget_description(p);
		return false;
	}
	if (!compute_geometry(r, p) || !compute_layout(r, p) || !budget_compute(r, p)) {
		forget_description(p);
		return false;
	}
	make_stamp(p);
	hybrid_place(&p->layout, p->plan.pages * p->geometry.page_stride,
		     (uint32_t)p->config->lanes, budget_retained_slots(p));
	p->memory = (struct device_memory){.geometry = &p->geometry,
					   .pages = p->plan.pages,
					   .slot_bytes = p->layout.slot_bytes,
					   .retained_bytes = p->layout.retained_bytes,
					   .retained = SEGMENT_NONE,
					   .segment = SEGMENT_NONE};
	p->making = (struct device_job){.job.done = made,
					.op = DEVICE_MAKE,
					.memory = &p->memory,
					.require_huge = p->core->config->core.require_hugepages,
					.index_bytes = p->plan.index_bytes,
					.owner = p};
	p->making.promised_bytes = budget_promised(p->core, &p->making.promised_to);
	p->state = CORE_POOL_MAKING;
	return true;
}

/* ---- a later attach must describe the same ---- */

/* What is kept of one model is of no use to another: somebody must say that it may go. */
#define REMEDY "; another pool, or kvctl pool drop %s while no session has it, would change it"

static bool same(struct request *r, const struct core_pool *p, const char *field, uint64_t have,
		 uint64_t found)
{
	if (have == found)
		return true;
	return refused(r, WIRE_EMISMATCH, "%s: pool %s has %llu, found %llu" REMEDY, field,
		       p->config->name, (unsigned long long)have, (unsigned long long)found,
		       p->config->name);
}

static bool same_layers(struct request *r, const struct core_pool *p,
			const struct payload_layer *layers)
{
	for (uint32_t i = 0; i < p->description.n_layers; i++) {
		struct payload_layer want = layers[i];
		const struct payload_layer *have = &p->layers[i];

		if (want.k_format == 0)
			want.k_format = (uint8_t)p->config->kv_cache_dtype;
		if (want.v_format == 0)
			want.v_format = (uint8_t)p->config->kv_cache_dtype;
		if (!same(r, p, "kv_heads", have->kv_heads, want.kv_heads) ||
		    !same(r, p, "k_head_dim", have->k_head_dim, want.k_head_dim) ||
		    !same(r, p, "v_head_dim", have->v_head_dim, want.v_head_dim) ||
		    !same(r, p, "k_format", have->k_format, want.k_format) ||
		    !same(r, p, "v_format", have->v_format, want.v_format))
			return false;
	}
	return true;
}

static bool same_sections(struct request *r, const struct core_pool *p)
{
	const struct payload_pool *in = r->in;
	const struct payload_section *found =
	    (const void *)((const struct payload_layer *)(in + 1) + in->n_layers);

	for (uint32_t i = 0; i < in->n_sections; i++) {
		const struct payload_section *have = &p->sections[i];

		if (memcmp(have->name, found[i].name, sizeof(have->name)))
			return refused(r, WIRE_EMISMATCH,
				       "section %u: pool %s has %.32s, found %.32s" REMEDY, i,
				       p->config->name, have->name, found[i].name, p->config->name);
		if (!same(r, p, "bytes of a section", have->bytes, found[i].bytes) ||
		    !same(r, p, "kind of a section", have->kind, found[i].kind))
			return false;
	}
	return true;
}

static bool same_description(struct request *r, const struct core_pool *p)
{
	struct payload_pool want = *(const struct payload_pool *)r->in;
	const struct payload_pool *have = &p->description;

	if (want.page_tokens == 0)
		want.page_tokens = (uint32_t)p->config->kv_page_size;
	if (memcmp(want.artifact, have->artifact, sizeof(want.artifact)))
		return refused(r, WIRE_EMISMATCH,
			       "artifact: pool %s has another one, %02x%02x%02x%02x..., found "
			       "%02x%02x%02x%02x..." REMEDY,
			       p->config->name, have->artifact[0], have->artifact[1],
			       have->artifact[2], have->artifact[3], want.artifact[0],
			       want.artifact[1], want.artifact[2], want.artifact[3],
			       p->config->name);
	return same_page_tokens(r, p, want.page_tokens) &&
	       same(r, p, "n_layers", have->n_layers, want.n_layers) &&
	       same(r, p, "n_sections", have->n_sections, want.n_sections) &&
	       same(r, p, "tensor_rank", have->tensor_rank, want.tensor_rank) &&
	       same(r, p, "tensor_size", have->tensor_size, want.tensor_size) &&
	       same(r, p, "pipeline_rank", have->pipeline_rank, want.pipeline_rank) &&
	       same(r, p, "pipeline_size", have->pipeline_size, want.pipeline_size) &&
	       same(r, p, "rope_digest", have->rope_digest, want.rope_digest) &&
	       same(r, p, "drafter", have->drafter, want.drafter) &&
	       same(r, p, "draft_tokens", have->draft_tokens, want.draft_tokens) &&
	       same_layers(r, p, (const void *)((const struct payload_pool *)r->in + 1)) &&
	       same_sections(r, p);
}

/* ---- attach ---- */

static bool send_blocks(struct request *r, const struct core_pool *p)
{
	const struct geometry *g = &p->geometry;
	bool written = true;

	for (uint32_t i = 0; written && i < g->n_layers; i++) {
		const struct geometry_layer *layer = &g->layers[i];
		struct payload_block block = {
		    .k_offset = layer->offset[0],
		    .v_offset = layer->offset[1],
		    .k_row_bytes = layer->row_bytes[0],
		    .v_row_bytes = layer->row_bytes[1],
		    .kv_heads = layer->kv_heads,
		    .k_format = (uint8_t)layer->format[0],
		    .v_format = (uint8_t)layer->format[1],
		};

		written =
		    reply_array(r, (uint32_t)(sizeof(struct payload_pool_info) + i * sizeof(block)),
				&block, 1, sizeof(block));
	}
	if (written && p->layout.n)
		written = reply_array(r,
				      (uint32_t)(sizeof(struct payload_pool_info) +
						 g->n_layers * sizeof(struct payload_block)),
				      p->layout.sections, p->layout.n, sizeof(*p->layout.sections));
	r->reply.count = g->n_layers;
	return written;
}

static bool send_memory(struct request *r, const struct core_pool *p)
{
	struct core *c = p->core;
	struct message m = {.type = MESSAGE_SEGMENT};

	m.u.segment.submission = r->reply.submission;
	m.u.segment.pool_index = p->handle.index;
	m.u.segment.pool_generation = p->handle.generation;
	m.u.segment.parts = 1;
	m.u.segment.backing_bytes = p->memory.segment.page_bytes;
	if (c->hooks.segment(c->hooks.context, r->session, &m, p->memory.segment.fd))
		return true;
	session_end(r->session, WIRE_BYE_STALLED, "it does not read its socket");
	return false;
}

static enum run_result attach_reply(struct request *r, struct core_pool *p, uint32_t place)
{
	const struct payload_pool *in = r->in;
	bool map = in->want_map && p->config->map && p->memory.segment.fd >= 0 &&
		   (rights_of(r->session) & CONFIG_RIGHT_MAP);
	struct payload_pool_info info = {
	    .pages = p->plan.pages,
	    .page_stride = p->geometry.page_stride,
	    .page_bytes = p->geometry.page_bytes,
	    .page_tokens = p->geometry.page_tokens,
	    .max_sequence_tokens = (uint32_t)p->config->max_sequence_length,
	    .n_layers = p->geometry.n_layers,
	    .parts = map,
	    .prefix_budget_pages = p->plan.effective_prefix_pages,
	    .state_offset = p->layout.state_offset,
	    .state_stride = p->layout.state_stride,
	    .ring_offset = p->layout.ring_offset,
	    .ring_stride = p->layout.ring_stride,
	    .lanes = p->pool.images.n_lanes,
	    .n_sections = p->layout.n,
	};

	memcpy(info.stamp, p->stamp, sizeof(info.stamp));
	if (!r->session->pools[place].generation)
		p->attached++;
	r->session->pools[place] = p->handle;
	r->reply.index = p->handle.index;
	r->reply.generation = p->handle.generation;
	if (session_write(r->session, r->entry.out_offset, &info, sizeof(info)) ||
	    !send_blocks(r, p) || (map && !send_memory(r, p)))
		return RUN_DONE;
	return done(r);
}

/* Names of the pools that a namespace may attach; of others it must not learn. */
static void list_pools(const struct core *c, uint32_t name_space, char *out, size_t bytes)
{
	size_t used = 0;

	snprintf(out, bytes, "none");
	for (uint32_t i = 0; i < c->n_pools && used < bytes; i++) {
		const struct config_pool *p = c->pool[i]->config;

		if (!(p->hidden_from >> name_space & 1))
			used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
						 p->name);
	}
	if (used >= bytes)
		memcpy(out + bytes - sizeof("..."), "...", sizeof("..."));
}

static enum run_result refuse_no_pool(struct request *r, const char *name)
{
	char pools[POOL_LIST_BYTES];

	list_pools(r->session->core, r->session->name_space, pools, sizeof(pools));
	return refuse(r, WIRE_ENOENT, "no pool of this namespace is called \"%s\"; its pools: %s",
		      name, pools);
}

static enum run_result attach_run(struct request *r, uint32_t *budget)
{
	const struct payload_pool *in = r->in;
	struct core *c = r->session->core;
	struct core_pool *p = NULL;
	uint32_t place = 0;

	(void)budget;
	list_remove(&r->in_wait);
	for (uint32_t i = 0; i < c->n_pools && !p; i++) {
		if (c->pool[i]->config->hidden_from >> r->session->name_space & 1)
			continue;
		if (!strcmp(c->pool[i]->config->name, in->name)) {
			p = c->pool[i];
			place = i;
		}
	}
	if (!p)
		return refuse_no_pool(r, in->name);
	r->pool = p;
	if (p->state == CORE_POOL_FAILED)
		return refuse(r, WIRE_EIO, "the memory of pool %s has failed", p->config->name);
	if (c->drained && !r->session->pools[place].generation)
		return refuse(r, WIRE_ESHUTDOWN, CORE_DRAINS);
	if (r->batch && p->state != CORE_POOL_READY)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for the pool's memory");
	if (p->state == CORE_POOL_DROPPING) {
		request_wait(r, &p->attaching);
		return RUN_WAIT;
	}
	if (p->state == CORE_POOL_DECLARED) {
		if (!describe(r, p))
			return RUN_DONE;
		request_wait(r, &p->attaching);
		c->device->submit(c->device, &p->making);
		return RUN_WAIT;
	}
	if (!same_description(r, p))
		return RUN_DONE;
	if (p->state == CORE_POOL_MAKING) {
		request_wait(r, &p->attaching);
		return RUN_WAIT;
	}
	return attach_reply(r, p, place);
}

static void attach_abandon(struct request *r, int status)
{
	(void)status;
	list_remove(&r->in_wait); /* the pool is made all the same */
}

const struct request_kind kind_pool_attach = {
    .opcode = WIRE_OP_POOL_ATTACH,
    .in_bytes = sizeof(struct payload_pool),
    .out_bytes = sizeof(struct payload_pool_info),
    .waits = true,
    .patient = true,
    .latency = -1,
    .check = attach_check,
    .run = attach_run,
    .abandon = attach_abandon,
};

/* ---- detach ---- */

static enum run_result detach_run(struct request *r, uint32_t *budget)
{
	struct session *s = r->session;

	(void)budget;
	list_for_each(link, following, &s->sequences)
	{
		if (list_entry(link, struct sequence, in_session)->pool == r->pool)
			return refuse(r, WIRE_EBUSY, "sequences of pool %s are open",
				      r->pool->config->name);
	}
	for (uint32_t i = 0; i < s->core->n_pools; i++) {
		if (s->core->pool[i] == r->pool && s->pools[i].generation) {
			s->pools[i].generation = 0;
			r->pool->attached--;
		}
	}
	return done(r);
}

const struct request_kind kind_pool_detach = {
    .opcode = WIRE_OP_POOL_DETACH,
    .target = TARGET_POOL,
    .latency = -1,
    .run = detach_run,
};
