/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step: begin, commit, abort.
 *
 * Owned by the thread that uses the connection. The calls without submit in their name wait for
 * the daemon; those with it wait only when the page table has to be read again first.
 */
#include "libclient/internal.h"

#include <string.h>

#define NEW_PAGES_BEYOND 3u /* a replaced partial page, and the two ends */

static bool is_open_step(const struct kvhost_sequence *seq, uint32_t index, uint32_t generation)
{
	return seq->step.open && seq->step.index == index && seq->step.generation == generation;
}

static int step_check(const struct kvhost_step *step)
{
	return step ? sequence_check(step->sequence) : KVHOST_EINVAL;
}

/* ---- begin ---- */

/* In front of the new pages, in a hybrid pool. */
static uint64_t slots_bytes(const struct kvhost_sequence *seq)
{
	return seq->hybrid ? sizeof(struct payload_step_slots) : 0;
}

static void take_slots(struct kvhost *host, struct request *r)
{
	struct kvhost_step *step = r->u.begin.step;
	struct payload_step_slots slots;

	if (!r->seq->hybrid)
		return;
	memcpy(&slots, request_out(host, r), sizeof(slots));
	step->source_slot = slots.source;
	step->target_slot = slots.target;
	step->ring_slot = slots.ring;
	step->slot_generation = slots.generation;
}

static int finish_begin(struct kvhost *host, struct request *r, int status,
			const struct completion *c)
{
	struct kvhost_sequence *seq = r->seq;
	uint32_t before = seq->n_pages;

	if (status)
		return status;
	seq->step.index = c->index;
	seq->step.generation = c->generation;
	seq->step.start_tokens = seq->committed;
	seq->step.target_tokens = r->u.begin.target_tokens;
	seq->step.window_start_tokens = r->u.begin.window_start_tokens;
	seq->step.open = true;
	seq->step.replaced = c->count > 0 && c->value0 < before;
	*r->u.begin.step = (struct kvhost_step){
	    .sequence = seq,
	    .index = c->index,
	    .generation = c->generation,
	    .start_tokens = seq->committed,
	    .target_tokens = r->u.begin.target_tokens,
	};
	take_slots(host, r);
	seq->version = (uint32_t)c->value1;
	if ((c->flags & COMPLETION_TABLE_CHANGED) || c->count > r->capacity || seq->stale ||
	    (c->count > 0 && c->value0 > before))
		return table_round(host, r);
	if (c->count > 0)
		(void)table_store(seq, (uint32_t)c->value0,
				  (const char *)request_out(host, r) + slots_bytes(seq), c->count);
	return 0;
}

static uint32_t new_pages_at_most(const struct kvhost_sequence *seq, uint32_t target_tokens)
{
	uint64_t pages = NEW_PAGES_BEYOND;

	if (target_tokens > seq->committed)
		pages += (target_tokens - seq->committed) / seq->page_tokens;
	return pages < seq->max_pages ? (uint32_t)pages : seq->max_pages;
}

static int start_begin(enum request_kind kind, struct kvhost_sequence *seq, uint32_t target_tokens,
		       uint32_t window_start_tokens, struct kvhost_step *step, void *user,
		       kvhost_ticket *ticket)
{
	struct payload_step in = {.window_start_tokens = window_start_tokens};
	struct kvhost *host;
	struct request *r;
	int result;

	result = sequence_check(seq);
	if (result)
		return result;
	if (!step)
		return KVHOST_EINVAL;
	host = seq->host;
	result = table_refresh(seq);
	if (result == 0)
		result = request_take(host, kind, WIRE_OP_STEP_BEGIN, &r);
	if (result)
		return result;
	request_hold(r, NULL, seq);
	r->capacity = new_pages_at_most(seq, target_tokens);
	result =
	    request_range(host, r, sizeof(in),
			  slots_bytes(seq) + (uint64_t)r->capacity * sizeof(struct payload_handle));
	if (result) {
		request_give(host, r);
		return result;
	}
	memcpy(request_in(host, r), &in, sizeof(in));
	r->entry.index = seq->index;
	r->entry.generation = seq->generation;
	r->entry.arg0 = target_tokens;
	r->u.begin.step = step;
	r->u.begin.target_tokens = target_tokens;
	r->u.begin.window_start_tokens = window_start_tokens;
	r->user = user;
	r->finish = finish_begin;
	return request_go(host, r, ticket);
}

int kvhost_step_begin(struct kvhost_sequence *seq, uint32_t target_tokens,
		      uint32_t window_start_tokens, struct kvhost_step *out)
{
	return start_begin(REQUEST_SYNCHRONOUS, seq, target_tokens, window_start_tokens, out, NULL,
			   NULL);
}

int kvhost_submit_step_begin(struct kvhost_sequence *seq, uint32_t target_tokens,
			     uint32_t window_start_tokens, struct kvhost_step *step, void *user,
			     kvhost_ticket *out)
{
	return start_begin(REQUEST_TICKET, seq, target_tokens, window_start_tokens, step, user,
			   out);
}

/* ---- commit ---- */

/* Does at least one known page lie wholly before the step's window? */
static bool pages_drop_out(const struct kvhost_sequence *seq)
{
	uint32_t start = seq->step.window_start_tokens;

	return start > seq->first_token && start - seq->first_token >= seq->page_tokens;
}

static int finish_commit(struct kvhost *host, struct request *r, int status,
			 const struct completion *c)
{
	struct kvhost_sequence *seq = r->seq;
	bool read_table;

	if (status)
		return status;
	if (c->value0 != (uint64_t)r->u.commit.start_tokens + r->u.commit.n_tokens) {
		host_end(host, KVHOST_EVIOLATION, "the daemon committed another number of tokens");
		return KVHOST_EVIOLATION;
	}
	read_table = (c->flags & COMPLETION_TABLE_CHANGED) || seq->stale;
	if (is_open_step(seq, r->entry.index, r->entry.generation)) {
		if (pages_drop_out(seq) || (seq->step.replaced && r->u.commit.n_tokens == 0))
			read_table = true;
		seq->step.open = false;
	}
	seq->committed = (uint32_t)c->value0;
	seq->version = (uint32_t)c->value1;
	seq->n_pages = table_pages_for(seq, seq->committed);
	return read_table ? table_round(host, r) : 0;
}

struct receipt {
	struct payload_receipt head;
	uint32_t first_page;
	const struct kvhost_span *spans;
	const uint32_t *ids;
};

static int make_receipt(const struct kvhost_sequence *seq, uint32_t n_tokens, struct receipt *out)
{
	struct kvhost *host = seq->host;
	uint32_t start = seq->step.start_tokens, last;

	if (n_tokens > seq->step.target_tokens - start || start > seq->step.target_tokens)
		return host_fail(host, KVHOST_EINVAL,
				 "commit of %u tokens in a step from %u to %u tokens", n_tokens,
				 start, seq->step.target_tokens);
	if (out->head.n_tokens > n_tokens)
		return host_fail(host, KVHOST_EINVAL, "%u ids for %u committed tokens",
				 out->head.n_tokens, n_tokens);
	if ((out->head.n_tokens > 0 && !out->ids) || (out->head.n_spans > 0 && !out->spans) ||
	    out->head.n_spans > PAYLOAD_SPANS_MAX)
		return KVHOST_EINVAL;
	out->head.tokens_commit = n_tokens;
	if (n_tokens == 0)
		return 0;
	out->first_page = table_index(seq, start);
	last = table_index(seq, start + n_tokens - 1);
	if (last >= seq->n_pages || out->first_page > last)
		return host_fail(host, KVHOST_ESTEP, "the page table does not hold the step");
	out->head.n_pages = last - out->first_page + 1;
	return 0;
}

static uint64_t receipt_bytes(const struct receipt *receipt)
{
	return sizeof(receipt->head) +
	       (uint64_t)receipt->head.n_pages * sizeof(struct payload_handle) +
	       (uint64_t)receipt->head.n_spans * sizeof(struct payload_span) +
	       (uint64_t)receipt->head.n_tokens * sizeof(uint32_t);
}

static void write_receipt(const struct kvhost_sequence *seq, const struct receipt *receipt,
			  char *to)
{
	const struct payload_receipt *head = &receipt->head;

	memcpy(to, head, sizeof(*head));
	to += sizeof(*head);
	if (head->n_pages) {
		memcpy(to, &seq->pages[receipt->first_page],
		       (size_t)head->n_pages * sizeof(struct payload_handle));
		to += (size_t)head->n_pages * sizeof(struct payload_handle);
	}
	if (head->n_spans) {
		memcpy(to, receipt->spans, (size_t)head->n_spans * sizeof(struct payload_span));
		to += (size_t)head->n_spans * sizeof(struct payload_span);
	}
	if (head->n_tokens)
		memcpy(to, receipt->ids, (size_t)head->n_tokens * sizeof(uint32_t));
}

static int send_receipt(enum request_kind kind, const struct kvhost_step *step,
			const struct receipt *receipt, void *user, kvhost_ticket *ticket)
{
	struct kvhost_sequence *seq = step->sequence;
	struct kvhost *host = seq->host;
	struct request *r;
	int result;

	result = request_take(host, kind, WIRE_OP_STEP_COMMIT, &r);
	if (result)
		return result;
	request_hold(r, NULL, seq);
	result = request_range(host, r, receipt_bytes(receipt), 0);
	if (result) {
		request_give(host, r);
		return result;
	}
	write_receipt(seq, receipt, request_in(host, r));
	r->entry.index = step->index;
	r->entry.generation = step->generation;
	r->u.commit.n_tokens = receipt->head.tokens_commit;
	r->u.commit.start_tokens = seq->step.start_tokens;
	r->user = user;
	r->finish = finish_commit;
	return request_go(host, r, ticket);
}

static int start_commit(enum request_kind kind, struct kvhost_step *step, uint32_t n_tokens,
			const uint32_t *ids, uint32_t n_ids, const struct kvhost_span *spans,
			uint32_t n_spans, void *user, kvhost_ticket *ticket)
{
	struct receipt receipt = {
	    .head = {.n_tokens = ids ? n_ids : 0,
		     .n_spans = n_spans,
		     .slot = step ? step->target_slot : 0,
		     .slot_generation = step ? step->slot_generation : 0},
	    .spans = spans,
	    .ids = ids,
	};
	struct kvhost_sequence *seq;
	int result;

	result = step_check(step);
	if (result)
		return result;
	seq = step->sequence;
	result = table_refresh(seq);
	if (result)
		return result;
	if (!is_open_step(seq, step->index, step->generation))
		return host_fail(seq->host, KVHOST_ESTALE, "the step has ended");
	result = make_receipt(seq, n_tokens, &receipt);
	if (result)
		return result;
	return send_receipt(kind, step, &receipt, user, ticket);
}

int kvhost_step_commit(struct kvhost_step *step, uint32_t n_tokens, const uint32_t *ids,
		       uint32_t n_ids, const struct kvhost_span *spans, uint32_t n_spans)
{
	return start_commit(REQUEST_SYNCHRONOUS, step, n_tokens, ids, n_ids, spans, n_spans, NULL,
			    NULL);
}

int kvhost_submit_step_commit(struct kvhost_step *step, uint32_t n_tokens, const uint32_t *ids,
			      uint32_t n_ids, const struct kvhost_span *spans, uint32_t n_spans,
			      void *user, kvhost_ticket *out)
{
	return start_commit(REQUEST_TICKET, step, n_tokens, ids, n_ids, spans, n_spans, user, out);
}

/* ---- abort ---- */

static int finish_abort(struct kvhost *host, struct request *r, int status,
			const struct completion *c)
{
	struct kvhost_sequence *seq = r->seq;
	bool read_table;

	if (status)
		return status;
	seq->aborted_index = r->entry.index;
	seq->aborted_generation = r->entry.generation;
	read_table = (c->flags & COMPLETION_TABLE_CHANGED) != 0;
	if (is_open_step(seq, r->entry.index, r->entry.generation)) {
		read_table = read_table || seq->step.replaced || seq->stale;
		seq->step.open = false;
		seq->n_pages = table_pages_for(seq, seq->committed);
	}
	return read_table ? table_round(host, r) : 0;
}

static int start_abort(enum request_kind kind, struct kvhost_step *step, void *user,
		       kvhost_ticket *ticket)
{
	struct kvhost_sequence *seq;
	struct request *r;
	int result;

	result = step_check(step);
	if (result)
		return result;
	seq = step->sequence;
	if (kind == REQUEST_SYNCHRONOUS && seq->aborted_generation != 0 &&
	    seq->aborted_index == step->index && seq->aborted_generation == step->generation)
		return 0;
	result = request_take(seq->host, kind, WIRE_OP_STEP_ABORT, &r);
	if (result)
		return result;
	request_hold(r, NULL, seq);
	r->entry.index = step->index;
	r->entry.generation = step->generation;
	r->user = user;
	r->finish = finish_abort;
	return request_go(seq->host, r, ticket);
}

int kvhost_step_abort(struct kvhost_step *step)
{
	return start_abort(REQUEST_SYNCHRONOUS, step, NULL, NULL);
}

int kvhost_submit_step_abort(struct kvhost_step *step, void *user, kvhost_ticket *out)
{
	return start_abort(REQUEST_TICKET, step, user, out);
}
