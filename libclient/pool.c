/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool: attach and detach: the description goes out, the geometry comes back.
 *
 * Owned by the thread that uses the connection. Attach and detach wait for the daemon.
 */
#include "libclient/internal.h"

#include <stdlib.h>
#include <string.h>

#define SECTION_REPLACED 1u
#define SECTION_RING     2u

static uint64_t description_bytes(const struct kvhost_pool_description *d)
{
	return sizeof(struct payload_pool) + (uint64_t)d->n_layers * sizeof(struct payload_layer) +
	       (uint64_t)d->n_sections * sizeof(struct payload_section);
}

static int check_description(struct kvhost *host, const struct kvhost_pool_description *d)
{
	if (d->name && strlen(d->name) >= WIRE_NAME_MAX)
		return host_fail(host, KVHOST_EINVAL, "the pool's name is longer than %d bytes",
				 WIRE_NAME_MAX - 1);
	if (d->n_layers == 0 || d->n_layers > PAYLOAD_LAYERS_MAX || !d->layers)
		return host_fail(host, KVHOST_EINVAL, "%u layers were described, 1 to %d can be",
				 d->layers ? d->n_layers : 0, PAYLOAD_LAYERS_MAX);
	if (d->n_sections > PAYLOAD_SECTIONS_MAX || (d->n_sections > 0 && !d->sections))
		return host_fail(host, KVHOST_EINVAL, "%u sections were described, 0 to %d can be",
				 d->n_sections, PAYLOAD_SECTIONS_MAX);
	for (uint32_t i = 0; i < d->n_layers; i++) {
		if (d->layers[i].k_format > UINT8_MAX || d->layers[i].v_format > UINT8_MAX)
			return host_fail(host, KVHOST_EINVAL, "layer %u: no such format", i);
	}
	for (uint32_t i = 0; i < d->n_sections; i++) {
		const char *name = d->sections[i].name;

		if (!name || name[0] == '\0' || strlen(name) >= WIRE_NAME_MAX ||
		    d->sections[i].ring > 1)
			return host_fail(host, KVHOST_EINVAL,
					 "section %u: a name of 1 to %d bytes, and ring 0 or 1", i,
					 WIRE_NAME_MAX - 1);
	}
	return 0;
}

static void write_description(const struct kvhost_pool_description *d, char *to)
{
	struct payload_pool p = {
	    .version = PAYLOAD_VERSION,
	    .n_layers = d->n_layers,
	    .n_sections = d->n_sections,
	    .page_tokens = d->page_tokens,
	    .tensor_rank = d->tensor_rank,
	    .tensor_size = d->tensor_size ? d->tensor_size : 1,
	    .pipeline_rank = d->pipeline_rank,
	    .pipeline_size = d->pipeline_size ? d->pipeline_size : 1,
	    .rope_digest = d->rope_digest,
	    .drafter = d->drafter,
	    .draft_tokens = d->draft_tokens,
	    .want_map = d->map ? 1 : 0,
	};
	const char *name = d->name ? d->name : "default";

	memcpy(p.name, name, strlen(name));
	if (d->artifact)
		memcpy(p.artifact, d->artifact, sizeof(p.artifact));
	memcpy(to, &p, sizeof(p));
	to += sizeof(p);
	for (uint32_t i = 0; i < d->n_layers; i++, to += sizeof(struct payload_layer)) {
		struct payload_layer l = {
		    .kv_heads = d->layers[i].kv_heads,
		    .k_head_dim = d->layers[i].k_head_dim,
		    .v_head_dim = d->layers[i].v_head_dim,
		    .k_format = (uint8_t)d->layers[i].k_format,
		    .v_format = (uint8_t)d->layers[i].v_format,
		};

		memcpy(to, &l, sizeof(l));
	}
	for (uint32_t i = 0; i < d->n_sections; i++, to += sizeof(struct payload_section)) {
		struct payload_section s = {
		    .bytes = d->sections[i].bytes,
		    .kind = d->sections[i].ring ? SECTION_RING : SECTION_REPLACED,
		};

		memcpy(s.name, d->sections[i].name, strlen(d->sections[i].name));
		memcpy(to, &s, sizeof(s));
	}
}

static struct kvhost_pool *pool_new(struct kvhost *host, const struct kvhost_pool_description *d)
{
	struct kvhost_pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->blocks = calloc(d->n_layers, sizeof(*pool->blocks));
	pool->layers = calloc(d->n_layers, sizeof(*pool->layers));
	pool->sections = calloc(d->n_sections + 1, sizeof(*pool->sections));
	if (!pool->blocks || !pool->layers || !pool->sections) {
		free(pool->sections);
		free(pool->blocks);
		free(pool->layers);
		free(pool);
		return NULL;
	}
	memcpy(pool->layers, d->layers, d->n_layers * sizeof(*pool->layers));
	pool->host = host;
	pool->serial = host->serial;
	pool->next = host->pools;
	if (pool->next)
		pool->next->previous = pool;
	host->pools = pool;
	return pool;
}

void pool_free(struct kvhost_pool *pool)
{
	struct kvhost *host = pool->host;

	if (pool->next)
		pool->next->previous = pool->previous;
	if (pool->previous)
		pool->previous->next = pool->next;
	else
		host->pools = pool->next;
	for (struct kvhost_sequence *s = host->sequences; s; s = s->next) {
		if (s->pool == pool)
			s->pool = NULL;
	}
	pool_unmap(pool);
	free(pool->sections);
	free(pool->blocks);
	free(pool->layers);
	free(pool);
}

void pool_release(struct kvhost_pool *pool)
{
	if (--pool->holds == 0 && pool->detached)
		pool_free(pool);
}

static void retire(struct kvhost_pool *pool)
{
	pool->detached = true;
	if (pool->holds == 0)
		pool_free(pool);
}

int pool_check(const struct kvhost_pool *pool)
{
	int result;

	if (!pool)
		return KVHOST_EINVAL;
	result = host_check(pool->host);
	if (result)
		return result;
	return pool->serial == pool->host->serial ? 0 : KVHOST_EGONE;
}

/* Where the sections of a hybrid pool lie in their slots. */
static int take_sections(struct kvhost_pool *pool, const struct kvhost_pool_description *d,
			 const struct payload_pool_info *info, const char *from)
{
	for (uint32_t i = 0; i < info->n_sections; i++) {
		struct payload_section_place s;
		uint64_t stride;

		memcpy(&s, from + i * sizeof(s), sizeof(s));
		stride = s.kind == PAYLOAD_RING ? info->ring_stride : info->state_stride;
		if (s.bytes != d->sections[i].bytes || s.bytes > stride ||
		    s.offset > stride - s.bytes)
			return host_fail(pool->host, KVHOST_EVIOLATION,
					 "section %u is said to lie outside of its slot", i);
		pool->sections[i] = (struct kvhost_place){
		    .offset = s.offset, .bytes = s.bytes, .ring = s.kind == PAYLOAD_RING};
	}
	return 0;
}

/* The daemon's answer, copied before it is judged. */
static int take_info(struct kvhost_pool *pool, const struct kvhost_pool_description *d,
		     const char *from, const struct completion *c, uint32_t *out_parts)
{
	struct payload_pool_info info;

	memcpy(&info, from, sizeof(info));
	if (info.n_layers != d->n_layers || c->count != d->n_layers || info.pages == 0 ||
	    info.page_stride == 0 || info.page_bytes > info.page_stride ||
	    (info.page_tokens != 16 && info.page_tokens != 32 && info.page_tokens != 64) ||
	    (info.parts != 0 && !d->map) || info.n_sections != d->n_sections)
		return host_fail(pool->host, KVHOST_EVIOLATION,
				 "the daemon describes a pool that was not asked for");
	from += sizeof(info);
	for (uint32_t i = 0; i < info.n_layers; i++, from += sizeof(struct payload_block)) {
		struct payload_block b;

		memcpy(&b, from, sizeof(b));
		if (b.k_offset >= info.page_stride || b.v_offset >= info.page_stride)
			return host_fail(pool->host, KVHOST_EVIOLATION,
					 "layer %u is said to lie outside its page", i);
		pool->blocks[i] = (struct kvhost_block){
		    .k_offset = b.k_offset,
		    .v_offset = b.v_offset,
		    .k_row_bytes = b.k_row_bytes,
		    .v_row_bytes = b.v_row_bytes,
		    .kv_heads = b.kv_heads,
		    .k_format = b.k_format,
		    .v_format = b.v_format,
		};
	}
	if (take_sections(pool, d, &info, from))
		return KVHOST_EVIOLATION;
	pool->index = c->index;
	pool->generation = c->generation;
	pool->info = (struct kvhost_pool_info){
	    .pages = info.pages,
	    .page_stride = info.page_stride,
	    .page_bytes = info.page_bytes,
	    .page_tokens = info.page_tokens,
	    .max_sequence_tokens = info.max_sequence_tokens,
	    .n_layers = info.n_layers,
	    .prefix_budget_pages = info.prefix_budget_pages,
	    .blocks = pool->blocks,
	    .n_sections = info.n_sections,
	    .lanes = info.lanes,
	    .state_offset = info.state_offset,
	    .state_stride = info.state_stride,
	    .ring_offset = info.ring_offset,
	    .ring_stride = info.ring_stride,
	    .sections = pool->sections,
	};
	*out_parts = info.parts;
	return 0;
}

static int send_detach(struct kvhost_pool *pool)
{
	struct request *r;
	int result;

	result = request_take(pool->host, REQUEST_SYNCHRONOUS, WIRE_OP_POOL_DETACH, &r);
	if (result)
		return result;
	r->entry.index = pool->index;
	r->entry.generation = pool->generation;
	r->finish = finish_keep;
	return request_go(pool->host, r, NULL);
}

static int attach(struct kvhost_pool *pool, const struct kvhost_pool_description *d)
{
	struct kvhost *host = pool->host;
	uint32_t parts = 0;
	struct request *r;
	int result;

	result = request_take(host, REQUEST_SYNCHRONOUS, WIRE_OP_POOL_ATTACH, &r);
	if (result)
		return result;
	result = request_range(host, r, description_bytes(d),
			       sizeof(struct payload_pool_info) +
				   (uint64_t)d->n_layers * sizeof(struct payload_block) +
				   (uint64_t)d->n_sections * sizeof(struct payload_section_place));
	if (result == 0) {
		write_description(d, request_in(host, r));
		r->finish = finish_keep;
		result = request_run(host, r);
	}
	if (result == 0) {
		result = take_info(pool, d, request_out(host, r), &r->u.answer, &parts);
		if (result)
			host_end(host, KVHOST_EVIOLATION, NULL);
	}
	if (result == 0 && parts > 0) {
		result = pool_map(pool, r->sequence, parts);
		if (result && !host->gone) {
			char reason[sizeof(host->reason)];

			memcpy(reason, host->reason, sizeof(reason));
			(void)send_detach(pool);
			host_set_reason(host, reason);
		}
	}
	channel_drop_arrivals(host);
	request_give(host, r);
	return result;
}

int kvhost_pool_attach(struct kvhost *host, const struct kvhost_pool_description *description,
		       struct kvhost_pool **out)
{
	struct kvhost_pool *pool;
	int result;

	result = host_check(host);
	if (result)
		return result;
	if (!description || !out)
		return KVHOST_EINVAL;
	result = check_description(host, description);
	if (result)
		return result;
	pool = pool_new(host, description);
	if (!pool)
		return host_fail(host, KVHOST_ENOMEM, "no memory for the pool's description");
	result = attach(pool, description);
	if (result) {
		pool_free(pool);
		return result;
	}
	*out = pool;
	return 0;
}

int kvhost_pool_detach(struct kvhost_pool **pool)
{
	int result;

	if (!pool || !*pool)
		return 0;
	result = pool_check(*pool);
	if (result == 0)
		result = send_detach(*pool);
	/* What the daemon does not know is no use to anybody. */
	if (result != 0 && result != KVHOST_EGONE && result != KVHOST_ESTALE &&
	    result != KVHOST_EVIOLATION)
		return result;
	retire(*pool);
	*pool = NULL;
	return result == KVHOST_ESTALE ? 0 : result;
}

const struct kvhost_pool_info *kvhost_pool_describe(const struct kvhost_pool *pool)
{
	return pool ? &pool->info : NULL;
}
