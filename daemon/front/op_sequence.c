/* SPDX-License-Identifier: Apache-2.0 */
/* op_sequence: fork, truncate, close, table. Core thread; nothing blocks. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/front/hybrid.h"
#include "daemon/state/park.h"

/* ---- fork ---- */

static bool fork_check(struct request *r)
{
	const struct pool *p = &r->pool->pool;

	if (!admission_session(r))
		return false;
	if (r->entry.arg0 == 0 || r->entry.arg0 > p->limits.max_sequence_tokens)
		return refused(r, WIRE_EINVAL, "max_tokens is %llu; 1 to %u are accepted",
			       (unsigned long long)r->entry.arg0, p->limits.max_sequence_tokens);
	return admission_pages(r, r->entry.arg0);
}

/* The seq of an open and that of a fork wait and die alike. */
static void close_fork(struct request *r)
{
	uint32_t all = UINT32_MAX;

	if (!r->u.prompt.seq)
		return;
	/* Its parent holds what it holds: no long walk. */
	seq_close_turn(&r->u.prompt.seq, &all);
	core_pool_settle(r->pool);
}

static void fork_abandon(struct request *r, int status)
{
	(void)status;
	list_remove(&r->in_wait);
	hybrid_abandon(r);
	if (r->u.prompt.copy)
		r->u.prompt.copy->owner = NULL; /* its pages are pinned until it is done */
	close_fork(r);
}

static enum run_result fork_finish(struct request *r)
{
	struct seq *seq = r->u.prompt.seq;
	struct sequence *q;

	if (sequence_new(r->session, r->pool, seq, r->interactive, &q)) {
		close_fork(r);
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a sequence");
	}
	r->u.prompt.seq = NULL;
	seq_set_rank(seq, request_rank(r));
	core_pool_offer(r->pool, r);
	q->system_end = r->sequence->system_end;
	q->user_end = r->sequence->user_end;
	if (charge_sequence(q)) {
		refuse_sequence_heap(r, q);
		sequence_abandon(q);
		return RUN_DONE;
	}
	r->reply.index = q->handle.index;
	r->reply.generation = q->handle.generation;
	r->reply.value0 = seq->committed;
	r->reply.value1 = seq->first_page;
	if (!reply_pages(r, 0, seq, seq->first_page, seq->n_pages))
		return RUN_DONE;
	return done(r);
}

static void fork_copied(struct request *r, int result)
{
	if (result) {
		close_fork(r);
		refuse(r, WIRE_EIO, "the memory of pool %s has failed", r->pool->config->name);
		core_pool_fail(r->pool);
	} else {
		fork_finish(r);
	}
	request_finish(r);
}

/* The fork begins with a copy of its parent's state. */
static enum run_result fork_image(struct request *r)
{
	if (hybrid_start(r, r->u.prompt.seq, IMAGE_JOB_FORK, IMAGE_NONE, r->sequence->seq,
			 fork_copied) == 0)
		return RUN_WAIT;
	close_fork(r);
	return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a copy");
}

static void page_copied(struct mover_copy *copy, int result)
{
	struct request *r = copy->owner;
	struct core_pool *p = copy->mover->context;

	free(copy);
	if (!r) {
		core_pool_settle(p); /* a page may be free now */
		return;
	}
	r->u.prompt.copy = NULL;
	if (result == 0) {
		request_ready(r);
		return;
	}
	close_fork(r);
	refuse(r, WIRE_EIO, "the partial page could not be copied");
	if (result != -ENOMEM)
		core_pool_fail(r->pool);
	request_finish(r);
}

/* The parent writes behind what is committed: the fork gets the committed rows of the page. */
static enum run_result fork_page(struct request *r)
{
	struct core_pool *p = r->pool;
	struct seq *s = r->u.prompt.seq;
	struct mover_copy *copy;
	int result;

	if (r->batch) {
		close_fork(r);
		return refuse(r, WIRE_EAGAIN, "it would have to wait for a copy of a page");
	}
	result = seq_take_page(s);
	if (result == POOL_MORE)
		return RUN_MORE;
	if (result == POOL_WAIT) {
		request_starve(r);
		return RUN_WAIT;
	}
	if (!list_is_empty(&r->in_wait)) {
		list_remove(&r->in_wait);
		core_pool_settle(p); /* whose turn is it now? */
	}
	copy = malloc(sizeof(*copy));
	if (!copy) {
		close_fork(r);
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a copy");
	}
	*copy = (struct mover_copy){.copy = {.from = r->u.prompt.copy_from,
					     .to = seq_page(s, seq_page_index(s, s->committed))},
				    .tokens = s->committed % s->pool->limits.page_tokens,
				    .done = page_copied,
				    .owner = r};
	r->u.prompt.copy_from = PAGE_NONE;
	r->u.prompt.copy = copy;
	request_wait(r, NULL);
	mover_copy(&p->mover, copy);
	return RUN_WAIT;
}

static bool fork_make(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;
	int result;

	if (!admission_sequence(r))
		return false;
	t->copy_from = PAGE_NONE;
	result = seq_fork_new(r->sequence->seq, (uint32_t)r->entry.arg0, &t->seq);
	if (result == 0)
		t->seq->rank = request_rank(r); /* it wants a page before it can give any */
	if (result == POOL_RANGE)
		return refused(r, WIRE_EINVAL, "max_tokens is %llu; %u are committed",
			       (unsigned long long)r->entry.arg0, r->sequence->seq->committed);
	if (result)
		return refused(r, WIRE_ENOMEM, "the daemon has no memory for a sequence");
	return true;
}

/* It is admitted, and holds nothing of its parent yet: nobody waits for what it waits with. */
static enum run_result fork_share(struct request *r, uint32_t *budget)
{
	struct request_prompt *t = &r->u.prompt;
	struct seq *parent = r->sequence->seq;
	struct pool *p = parent->pool;
	enum run_result result;

	if (seq_is_away(parent)) {
		result = request_bring_back(r, budget);
		if (result == RUN_DONE && r->reply.status)
			close_fork(r);
		if (result != RUN_DONE || r->reply.status)
			return result;
	}
	if (seq_fork_needs_page(parent) && !r->batch &&
	    (!pool_keep_quota(p, parent->name_space, 1) || p->pages.count[PAGE_CLEAN] == 0)) {
		if (park_insist(p, 1, request_rank(r)) == POOL_MORE)
			return RUN_MORE;
		request_starve(r);
		return RUN_WAIT;
	}
	if (seq_fork(parent, t->seq, &t->copy_from)) {
		close_fork(r);
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a sequence");
	}
	t->shared = true;
	return RUN_DONE;
}

static enum run_result fork_run(struct request *r, uint32_t *budget)
{
	struct request_prompt *t = &r->u.prompt;
	enum run_result result;

	if (r->batch && r->pool->pool.hybrid)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for a copy of an image");
	if (r->pool->state != CORE_POOL_READY) {
		close_fork(r);
		return refuse(r, WIRE_EIO, "the memory of pool %s has failed",
			      r->pool->config->name);
	}
	if (!t->shared && r->sequence->seq->lost) {
		close_fork(r);
		return request_refuse_lost(r);
	}
	if (!t->seq && !fork_make(r))
		return RUN_DONE;
	if (!t->seq->admitted && !admission_try(r, t->seq)) {
		if (r->reply.status == 0 && !r->batch)
			return RUN_WAIT;
		close_fork(r);
		if (r->reply.status)
			return RUN_DONE;
		return refuse(r, WIRE_EAGAIN, "it would have to wait for room in the pool");
	}
	if (!t->shared) {
		result = fork_share(r, budget);
		if (result != RUN_DONE || !t->shared)
			return result;
	}
	if (t->copy_from != PAGE_NONE)
		return fork_page(r);
	if (!list_is_empty(&r->in_wait)) {
		list_remove(&r->in_wait);
		core_pool_settle(r->pool); /* whose turn is it now? */
	}
	return r->pool->pool.hybrid ? fork_image(r) : fork_finish(r);
}

const struct request_kind kind_fork = {
    .opcode = WIRE_OP_FORK,
    .target = TARGET_SEQUENCE,
    .waits = true,
    .latency = -1,
    .check = fork_check,
    .run = fork_run,
    .abandon = fork_abandon,
};

/* ---- truncate ---- */

static enum run_result truncate_run(struct request *r, uint32_t *budget)
{
	struct seq *s = r->sequence->seq;
	uint32_t page_tokens = s->pool->limits.page_tokens;

	if (!r->u.step.phase) {
		int result = r->entry.arg0 > UINT32_MAX ? POOL_RANGE
							: seq_truncate(s, (uint32_t)r->entry.arg0);

		if (result == POOL_RANGE)
			return refuse(r, WIRE_EINVAL,
				      "cannot keep %llu tokens; %u to %u can be kept",
				      (unsigned long long)r->entry.arg0,
				      s->first_page * page_tokens, s->committed);
		if (result == POOL_BUSY)
			return refuse(r, WIRE_EBUSY, "a step is open");
		if (result == POOL_NEVER)
			return refuse(
			    r, WIRE_ENOTSUP,
			    "a hybrid sequence has no state at %llu tokens: open the prompt "
			    "again with max_cached_tokens",
			    (unsigned long long)r->entry.arg0);
		if (result)
			return refuse(r, WIRE_ENOMEM, "the daemon has no memory for the page");
		r->u.step.phase = 1;
	}
	if (seq_release_turn(s, budget))
		return RUN_MORE;
	core_pool_settle(r->pool);
	r->reply.value0 = s->committed;
	reply_version(r, s);
	return done(r);
}

const struct request_kind kind_truncate = {
    .opcode = WIRE_OP_TRUNCATE,
    .target = TARGET_SEQUENCE,
    .here = true,
    .waits = true,
    .latency = -1,
    .run = truncate_run,
};

/* ---- close ---- */

static enum run_result close_run(struct request *r, uint32_t *budget)
{
	struct sequence *q = r->sequence;

	if (!q->closing) {
		sequence_tell(q, "closed");
		q->closing = true;
		sequence_forget_step(q);
		if (q->seq) {
			/* The client says that it touches no page any more. */
			step_abort(q->seq);
		}
		list_remove(&r->in_queue);
		while (!list_is_empty(&q->queue))
			request_end(list_entry(list_first(&q->queue), struct request, in_queue),
				    WIRE_ESTALE);
	}
	if (!sequence_close_turn(q, budget))
		return RUN_MORE;
	r->sequence = NULL;
	return done(r);
}

/* Nobody waits for it any more: the walk goes on without it. */
static void close_abandon(struct request *r, int status)
{
	(void)status;
	sequence_abandon(r->sequence);
	r->sequence = NULL;
}

const struct request_kind kind_close = {
    .opcode = WIRE_OP_CLOSE,
    .target = TARGET_SEQUENCE,
    .reserved = true,
    .final = true,
    .latency = HISTOGRAM_latency_close,
    .run = close_run,
    .abandon = close_abandon,
};

/* ---- table ---- */

static enum run_result table_run(struct request *r, uint32_t *budget)
{
	struct seq *s = r->sequence->seq;

	(void)budget;
	r->reply.value0 = (uint64_t)s->first_page * s->pool->limits.page_tokens;
	s->told_version = s->table_version;
	reply_version(r, s);
	if (!reply_pages(r, 0, s, s->first_page, s->n_pages))
		return RUN_DONE;
	return done(r);
}

const struct request_kind kind_table = {
    .opcode = WIRE_OP_TABLE,
    .target = TARGET_SEQUENCE,
    .here = true,
    .waits = true,
    .latency = -1,
    .run = table_run,
};
