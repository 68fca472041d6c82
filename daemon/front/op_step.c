/* SPDX-License-Identifier: Apache-2.0 */
/* op_step: step begin, commit, abort. Core thread; nothing blocks. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/hybrid.h"

enum begin_phase {
	BEGIN_PAGES = 0,
	BEGIN_COPY,
};

/* ---- begin ---- */

static bool begin_check(struct request *r)
{
	const struct payload_step *in = r->in;

	if (!range_is_zero(in->reserved, sizeof(in->reserved)))
		return refused(r, WIRE_EINVAL, "reserved words of the step are set");
	if (r->pool->pool.hybrid && r->entry.out_bytes < sizeof(struct payload_step_slots))
		return refused(r, WIRE_EINVAL, "%u bytes for the answer, at least %zu are needed",
			       r->entry.out_bytes, sizeof(struct payload_step_slots));
	if (r->entry.arg0 > r->pool->pool.limits.max_sequence_tokens)
		return refused(r, WIRE_EINVAL, "a target of %llu tokens; the pool serves %u",
			       (unsigned long long)r->entry.arg0,
			       r->pool->pool.limits.max_sequence_tokens);
	return true;
}

static enum run_result begin_reply(struct request *r)
{
	struct sequence *q = r->sequence;
	struct seq *s = q->seq;
	uint32_t skip = 0;

	r->reply.index = q->step.index;
	r->reply.generation = q->step.generation;
	r->reply.value0 = s->step.first - s->first_page;
	reply_version(r, s);
	if (s->pool->hybrid) {
		struct payload_step_slots slots = hybrid_slots(s);

		skip = sizeof(slots);
		if (session_write(r->session, r->entry.out_offset, &slots, sizeof(slots)))
			return RUN_DONE;
	}
	if (!reply_pages(r, skip, s, s->step.first, s->step.n_fresh))
		return RUN_DONE;
	return done(r);
}

static void drop_step(struct sequence *q)
{
	step_abort(q->seq);
	sequence_forget_step(q);
	core_pool_settle(q->pool);
}

static void begin_copied(struct mover_copy *copy, int result)
{
	struct request *r = copy->owner;
	struct core_pool *p = copy->mover->context;

	free(copy);
	if (!r) {
		/* Abandoned: its step has ended already, and only now its pages are free. */
		core_pool_settle(p);
		return;
	}
	r->u.step.copy = NULL;
	if (result == 0 && r->sequence->seq->step.state == STEP_OPEN) {
		begin_reply(r);
	} else if (result == 0) {
		/* Nobody has seen the step: no client writes to its pages or could abort it. */
		drop_step(r->sequence);
		refuse(r, WIRE_ETIMEDOUT,
		       "the copy of the partial page took longer than a step may be open "
		       "(core.step_ttl_s)");
	} else {
		drop_step(r->sequence);
		refuse(r, result == -ENOMEM ? WIRE_ENOMEM : WIRE_EIO,
		       "the partial page could not be copied");
		if (result != -ENOMEM)
			core_pool_fail(r->pool);
	}
	request_finish(r);
}

/* The partial page has other holders: the step goes on in a copy. */
static enum run_result begin_copy(struct request *r)
{
	struct seq *s = r->sequence->seq;
	struct mover_copy *copy = malloc(sizeof(*copy));

	if (!copy) {
		drop_step(r->sequence);
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a copy");
	}
	*copy = (struct mover_copy){
	    .copy = {.from = s->step.replaced, .to = seq_page(s, s->step.first)},
	    /* Another holder's step may be writing behind what is committed here. */
	    .tokens = s->committed % s->pool->limits.page_tokens,
	    .done = begin_copied,
	    .owner = r};
	r->u.step.copy = copy;
	r->u.step.phase = BEGIN_COPY;
	request_wait(r, NULL);
	mover_copy(&r->pool->mover, copy);
	return RUN_WAIT;
}

static enum run_result begin_refuse(struct request *r, int result)
{
	const struct seq *s = r->sequence->seq;

	if (result == POOL_RANGE)
		return refuse(r, WIRE_EINVAL,
			      "a step from %u to %llu tokens with a window from %u; targets are "
			      "%u to %u, windows begin before them",
			      s->committed, (unsigned long long)r->entry.arg0,
			      ((const struct payload_step *)r->in)->window_start_tokens,
			      s->committed + 1, s->max_tokens);
	if (result == POOL_STEP)
		return refuse(r, WIRE_ESTEP,
			      "the last step was ended by the daemon; abort it first");
	return refuse(r, WIRE_EBUSY, "a step is open already");
}

static enum run_result begin_run(struct request *r, uint32_t *budget)
{
	struct sequence *q = r->sequence;
	struct core_pool *p = r->pool;
	uint32_t target = (uint32_t)r->entry.arg0;
	uint32_t window = ((const struct payload_step *)r->in)->window_start_tokens;
	uint32_t n;
	int result;

	(void)budget;
	if (p->state != CORE_POOL_READY)
		return refuse(r, WIRE_EIO, "the memory of pool %s has failed", p->config->name);
	/* Of a request that was abandoned; what the step writes must not be under its hands. */
	if (p->pool.hybrid && lane_is_busy(&p->pool.images, q->seq->lane) &&
	    protection(steps_wait_for_copies)) {
		if (r->batch)
			return refuse(r, WIRE_EAGAIN, "it would have to wait for a copy");
		request_wait(r, &p->copying);
		return RUN_WAIT;
	}
	result = step_wants(q->seq, target, window, &n);
	if (result)
		return begin_refuse(r, result);
	if (n && request_is_behind(&p->starving, r))
		result = POOL_WAIT;
	else
		result = step_begin(q->seq, target, window, n);
	if (result == POOL_MORE)
		return RUN_MORE;
	if (result == POOL_WAIT) {
		if (r->batch)
			return refuse(r, WIRE_EAGAIN, "it would have to wait for pages");
		request_starve(r);
		return RUN_WAIT;
	}
	if (!list_is_empty(&r->in_wait)) {
		list_remove(&r->in_wait);
		core_pool_settle(p); /* whose turn is it now? */
	}
	if (result)
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for the page table");
	sequence_forget_step(q); /* of a step that the daemon ended, if any */
	if (sequence_open_step(q)) {
		step_abort(q->seq);
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a step");
	}
	if (charge_sequence(q)) {
		refuse_sequence_heap(r, q);
		drop_step(q);
		return RUN_DONE;
	}
	if (q->seq->step.replaced != PAGE_NONE) {
		if (!r->batch)
			return begin_copy(r);
		drop_step(q);
		return refuse(r, WIRE_EAGAIN, "it would have to wait for a copy of a page");
	}
	return begin_reply(r);
}

static void begin_abandon(struct request *r, int status)
{
	(void)status;
	list_remove(&r->in_wait);
	if (!r->u.step.copy) {
		core_pool_settle(r->pool); /* whose turn is it now? */
		return;
	}
	/* The copy may still run: its pages are pinned and drain. Nobody has seen the step. */
	r->u.step.copy->owner = NULL;
	r->u.step.copy = NULL;
	drop_step(r->sequence);
}

const struct request_kind kind_step_begin = {
    .opcode = WIRE_OP_STEP_BEGIN,
    .here = true,
    .in_bytes = sizeof(struct payload_step),
    .target = TARGET_SEQUENCE,
    .waits = true,
    .latency = HISTOGRAM_latency_step_begin,
    .check = begin_check,
    .run = begin_run,
    .abandon = begin_abandon,
};

/* ---- commit ---- */

static bool commit_check(struct request *r)
{
	const struct payload_receipt *in = r->in;
	uint64_t bytes = sizeof(*in) + (uint64_t)in->n_pages * sizeof(struct payload_handle) +
			 (uint64_t)in->n_spans * sizeof(struct payload_span) +
			 (uint64_t)in->n_tokens * sizeof(uint32_t);

	if (!range_is_zero(in->reserved, sizeof(in->reserved)))
		return refused(r, WIRE_EINVAL, "reserved words of the receipt are set");
	if (bytes != r->entry.in_bytes)
		return refused(r, WIRE_EINVAL,
			       "%u pages, %u spans and %u tokens take %llu bytes, not %u",
			       in->n_pages, in->n_spans, in->n_tokens, (unsigned long long)bytes,
			       r->entry.in_bytes);
	return true;
}

static enum run_result commit_refuse(struct request *r, int result)
{
	const struct payload_receipt *in = r->in;
	const struct seq *s = r->sequence->seq;

	switch (result) {
	case POOL_STEP:
		return refuse(r, WIRE_ESTEP,
			      s->step.poisoned ? "an operation of the step failed; abort it"
					       : "the step is over; abort it");
	case POOL_SLOT:
		return refuse(r, WIRE_EINVAL, "slot %u.%u is not the one that this step writes",
			      in->slot, in->slot_generation);
	case POOL_STALE:
		r->pool->pool.stats.conflicts++;
		return refuse(r, WIRE_EINVAL,
			      "the %u pages of the receipt are not those that hold the %u tokens "
			      "from %u on",
			      in->n_pages, in->tokens_commit, s->step.start);
	case POOL_RANGE:
		return refuse(r, WIRE_EINVAL,
			      "cannot commit %u tokens with %u ids and %u spans: the step has %u "
			      "tokens, the ids of the first %u positions are known",
			      in->tokens_commit, in->n_tokens, in->n_spans,
			      s->step.target - s->step.start, s->ids_end);
	default:
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for the receipt");
	}
}

static int commit_step(struct request *r)
{
	const struct payload_receipt *in = r->in;
	const struct payload_handle *pages = (const void *)(in + 1);
	const struct payload_span *spans = (const void *)(pages + in->n_pages);
	const uint32_t *ids = (const void *)(spans + in->n_spans);
	struct step_receipt receipt = {
	    .pages = (const uint64_t *)(const void *)pages,
	    .n_pages = in->n_pages,
	    .tokens = in->tokens_commit,
	    .ids = ids,
	    .n_ids = in->n_tokens,
	    .images = (const struct key_image *)(const void *)spans,
	    .n_images = in->n_spans,
	};

	if (r->sequence->step.index != r->entry.index ||
	    r->sequence->step.generation != r->entry.generation)
		return POOL_STEP;
	if (r->pool->pool.hybrid && in->tokens_commit &&
	    r->sequence->seq->step.state == STEP_OPEN) {
		struct payload_step_slots slots = hybrid_slots(r->sequence->seq);

		if (in->slot != slots.target || in->slot_generation != slots.generation)
			return POOL_SLOT;
	}
	return step_commit(r->sequence->seq, &receipt);
}

static enum run_result commit_run(struct request *r, uint32_t *budget)
{
	struct sequence *q = r->sequence;
	struct seq *s = q->seq;

	if (!r->u.step.phase) {
		int result = commit_step(r);

		if (result)
			return commit_refuse(r, result);
		r->u.step.phase = 1;
		sequence_forget_step(q);
		r->session->counters.commits++;
	}
	if (seq_publish_turn(s, budget))
		return RUN_MORE;
	/* What it holds has only shrunk, but for ids that were charged as payload. */
	if (charge_sequence(q))
		session_end(r->session, WIRE_BYE_QUOTA, "the session's private memory is used up");
	core_pool_settle(q->pool);
	r->reply.value0 = s->committed;
	reply_version(r, s);
	return done(r);
}

const struct request_kind kind_step_commit = {
    .opcode = WIRE_OP_STEP_COMMIT,
    .in_bytes = sizeof(struct payload_receipt),
    .target = TARGET_STEP,
    .final = true,
    .latency = HISTOGRAM_latency_step_commit,
    .check = commit_check,
    .run = commit_run,
};

/* ---- abort ---- */

static bool abort_check(struct request *r)
{
	/* A step that is over already needs no abort: repeating it is fine. */
	r->sequence = sequence_find_step(r->session, r->entry.index, r->entry.generation);
	if (r->sequence)
		r->pool = r->sequence->pool;
	return true;
}

static enum run_result abort_run(struct request *r, uint32_t *budget)
{
	struct sequence *q = r->sequence;

	(void)budget;
	if (q && q->step.index == r->entry.index && q->step.generation == r->entry.generation) {
		drop_step(q);
		r->session->counters.aborts++;
	}
	return done(r);
}

const struct request_kind kind_step_abort = {
    .opcode = WIRE_OP_STEP_ABORT,
    .latency = -1,
    .final = true,
    .check = abort_check,
    .run = abort_run,
};
