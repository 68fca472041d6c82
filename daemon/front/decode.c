/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode: from a copied entry to a request, or to a refusal; see request.h.
 *
 * What no honest library sends (unknown operation, reserved bits, ranges outside the window) ends
 * the session. What an engine may get wrong (stale handles, sizes, values) is refused with a
 * sentence that says the valid range. Core thread; nothing blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/testing.h"
#include "daemon/front/request.h"

static const struct request_kind *const kinds[] = {
    &kind_checkpoint,  &kind_image_write, &kind_image_read,  &kind_null,    &kind_cancel,
    &kind_batch,       &kind_pool_attach, &kind_pool_detach, &kind_open,    &kind_lookup,
    &kind_fork,        &kind_truncate,    &kind_close,       &kind_table,   &kind_step_begin,
    &kind_step_commit, &kind_step_abort,  &kind_kv_write,    &kind_kv_read, &kind_counters,
    &kind_admin,
};

const struct request_kind *request_kind_find(uint32_t opcode)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (kinds[i]->opcode == opcode)
			return kinds[i];
	}
	return NULL;
}

bool range_is_zero(const void *bytes, size_t n)
{
	const unsigned char *b = bytes;

	while (n--) {
		if (*b++)
			return false;
	}
	return true;
}

static bool in_window(const struct session *s, uint64_t offset, uint32_t bytes)
{
	uint64_t window = s->memory->window.bytes;

	if (bytes == 0)
		return true;
	return offset % 8 == 0 && bytes <= window && offset <= window - bytes;
}

/* False: the session has ended. */
static bool check_entry(struct session *s, const struct submission *e,
			const struct request_kind *kind)
{
	if (!kind) {
		session_end(s, WIRE_BYE_VIOLATION, "operation %u is unknown", e->opcode);
		return false;
	}
	if (e->flags || e->reserved) {
		session_end(s, WIRE_BYE_VIOLATION, "%s: reserved bits are set",
			    wire_opcode_name(e->opcode));
		return false;
	}
	if (protection(ranges_are_checked) && (!in_window(s, e->in_offset, e->in_bytes) ||
					       !in_window(s, e->out_offset, e->out_bytes))) {
		session_end(s, WIRE_BYE_VIOLATION,
			    "%s: a range lies outside the window of %llu bytes, or its offset is "
			    "no multiple of 8: in %llu + %u, out %llu + %u",
			    wire_opcode_name(e->opcode),
			    (unsigned long long)s->memory->window.bytes,
			    (unsigned long long)e->in_offset, e->in_bytes,
			    (unsigned long long)e->out_offset, e->out_bytes);
		return false;
	}
	return true;
}

static bool find_pool(struct request *r)
{
	struct session *s = r->session;

	for (uint32_t i = 0; i < s->core->n_pools; i++) {
		if (s->pools[i].generation && s->pools[i].index == r->entry.index &&
		    s->pools[i].generation == r->entry.generation) {
			r->pool = s->core->pool[i];
			return true;
		}
	}
	return refused(r, WIRE_ESTALE, "this session has no pool %u.%u attached", r->entry.index,
		       r->entry.generation);
}

static bool find_target(struct request *r)
{
	struct session *s = r->session;
	uint32_t index = r->entry.index, generation = r->entry.generation;

	switch ((enum request_target)r->kind->target) {
	case TARGET_NONE:
		return true;
	case TARGET_POOL:
		return find_pool(r);
	case TARGET_SEQUENCE:
		r->sequence = sequence_find(s, index, generation);
		break;
	case TARGET_STEP:
		r->sequence = sequence_find_step(s, index, generation);
		break;
	case TARGET_EITHER:
		r->sequence = sequence_find(s, index, generation);
		if (!r->sequence)
			r->sequence = sequence_find_step(s, index, generation);
		break;
	}
	if (!r->sequence)
		return refused(r, WIRE_ESTALE, "%s: handle %u.%u names no open %s of this session",
			       wire_opcode_name(r->entry.opcode), index, generation,
			       r->kind->target == TARGET_STEP ? "step" : "sequence");
	if (!r->sequence->seq && r->kind != &kind_close) {
		r->sequence = NULL;
		return refused(r, WIRE_EGONE,
			       "the sequence was not used for %llu s and has been closed "
			       "(core.sequence_idle_ttl_s)",
			       (unsigned long long)s->core->config->core.sequence_idle_ttl_s);
	}
	r->pool = r->sequence->pool;
	r->interactive = r->sequence->interactive;
	return true;
}

/* The most input that can make sense: nobody's copy may hold up the others. */
static uint64_t most_input(const struct request *r)
{
	const struct request_kind *kind = r->kind;

	if (kind == &kind_batch)
		return REQUEST_BATCH_MOST * sizeof(struct submission);
	if (kind == &kind_pool_attach)
		return sizeof(struct payload_pool) +
		       PAYLOAD_LAYERS_MAX * sizeof(struct payload_layer) +
		       PAYLOAD_SECTIONS_MAX * sizeof(struct payload_section);
	if (kind == &kind_step_commit)
		return sizeof(struct payload_receipt) +
		       PAYLOAD_SPANS_MAX * sizeof(struct payload_span) +
		       (uint64_t)r->pool->pool.limits.max_sequence_tokens * sizeof(uint32_t) +
		       (uint64_t)r->pool->pool.limits.pages * sizeof(struct payload_handle);
	return kind->in_bytes;
}

static bool copy_payload(struct request *r)
{
	struct session *s = r->session;
	size_t bytes = r->kind->head_only ? r->kind->in_bytes : r->entry.in_bytes;

	if (r->entry.in_bytes < r->kind->in_bytes)
		return refused(r, WIRE_EINVAL, "%s: %u bytes of input, at least %u are needed",
			       wire_opcode_name(r->entry.opcode), r->entry.in_bytes,
			       r->kind->in_bytes);
	if (!r->kind->head_only && r->kind->in_bytes && r->entry.in_bytes > most_input(r))
		return refused(r, WIRE_EINVAL, "%s: %u bytes of input, at most %llu can be needed",
			       wire_opcode_name(r->entry.opcode), r->entry.in_bytes,
			       (unsigned long long)most_input(r));
	if (r->entry.out_bytes < r->kind->out_bytes)
		return refused(
		    r, WIRE_EINVAL, "%s: %u bytes for the answer, at least %u are needed",
		    wire_opcode_name(r->entry.opcode), r->entry.out_bytes, r->kind->out_bytes);
	if (r->kind->in_bytes == 0)
		return true;
	r->in = r->inline_in;
	if (bytes > sizeof(r->inline_in)) {
		if (!charge_take(&s->heap, bytes)) {
			r->in = NULL;
			refuse_heap(r, "an input", bytes);
			return false;
		}
		r->in_charged = bytes;
		r->in = malloc(bytes);
		if (!r->in)
			return refused(r, WIRE_ENOMEM, "the daemon has no %zu bytes for the input",
				       bytes);
	}
	return session_read(s, r->in, r->entry.in_offset, bytes) == 0;
}

/* Count it as taken; from here on it has one completion. */
static void admit(struct request *r)
{
	struct session *s = r->session;

	if (r->batch)
		return;
	list_append(&s->requests, &r->in_session);
	s->in_flight++;
	s->reserved_in_flight += r->kind->reserved;
}

int request_decode(struct session *s, const struct submission *e, struct request *batch,
		   struct request **out)
{
	const struct request_kind *kind = request_kind_find(e->opcode);
	struct request *r;
	bool good;

	if (!check_entry(s, e, kind))
		return -1;
	r = request_alloc(s);
	if (!r) {
		session_end(s, WIRE_BYE_QUOTA, "the daemon has no memory for a request");
		return -1;
	}
	memcpy(&r->entry, e, sizeof(*e));
	r->kind = kind;
	r->batch = batch;
	r->reply.submission = s->taken;
	admit(r);
	if (batch)
		batch->u.batch_of.item = r;
	good = find_target(r) && copy_payload(r) && (!kind->check || kind->check(r));
	if (s->state != SESSION_LIVE)
		return -1; /* its requests were ended with it */
	if (!good) {
		/* With its sequence: rows that are refused poison their step. */
		request_finish(r);
		return 1;
	}
	if (r->sequence)
		list_append(&r->sequence->queue, &r->in_queue);
	*out = r;
	return 0;
}
