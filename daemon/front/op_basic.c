/* SPDX-License-Identifier: Apache-2.0 */
/* op_basic: operations that concern no pool: null, cancel, batch, counters. Core thread. */
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/front/request.h"

static enum run_result null_run(struct request *r, uint32_t *budget)
{
	(void)budget;
	return done(r);
}

const struct request_kind kind_null = {
    .opcode = WIRE_OP_NULL,
    .latency = HISTOGRAM_latency_null,
    .run = null_run,
};

/* ---- cancel ---- */

static struct request *find_request(struct session *s, uint64_t submission,
				    const struct request * not )
{
	list_for_each(link, following, &s->requests)
	{
		struct request *r = list_entry(link, struct request, in_session);

		if (r->reply.submission == submission && r != not )
			return r;
	}
	return NULL;
}

/* Cut short it would leave its work half done; of a batch: the item that runs. */
static bool must_finish(const struct request *r)
{
	if (r->kind == &kind_batch && r->u.batch_of.item)
		r = r->u.batch_of.item;
	return r->kind->final || (r->started && !r->kind->abandon);
}

static enum run_result cancel_run(struct request *r, uint32_t *budget)
{
	struct request *other = find_request(r->session, r->entry.arg0, r);

	(void)budget;
	/* Finished already, or about to: its own completion tells. */
	if (!other)
		return done(r);
	if (must_finish(other)) {
		if (other->kind == &kind_batch)
			other->u.batch_of.cancelled = true;
		return done(r);
	}
	request_end(other, WIRE_ECANCELLED);
	return done(r);
}

const struct request_kind kind_cancel = {
    .opcode = WIRE_OP_CANCEL,
    .reserved = true,
    .latency = -1,
    .run = cancel_run,
};

/* ---- batch ---- */

static bool batch_check(struct request *r)
{
	uint64_t n = r->entry.arg0;

	if (r->batch)
		return refused(r, WIRE_EINVAL, "a batch inside a batch");
	if (n == 0 || n > REQUEST_BATCH_MOST ||
	    r->entry.in_bytes != n * sizeof(struct submission) ||
	    r->entry.out_bytes < n * sizeof(struct completion))
		return refused(r, WIRE_EINVAL,
			       "a batch of %llu operations needs exactly %llu bytes of input and "
			       "as many for answers, not %u and %u",
			       (unsigned long long)n,
			       (unsigned long long)(n * sizeof(struct submission)),
			       r->entry.in_bytes, r->entry.out_bytes);
	r->u.batch_of.n = (uint32_t)n;
	return true;
}

/* An item that was ended while the batch was being abandoned has no completion of its own. */
static void answer_item(struct request *r, int status)
{
	struct completion reply = {.submission = r->u.batch_of.next, .status = status};

	session_write(r->session,
		      r->entry.out_offset + r->u.batch_of.next * sizeof(struct completion), &reply,
		      sizeof(reply));
	r->u.batch_of.next++;
}

static enum run_result batch_run(struct request *r, uint32_t *budget)
{
	struct session *s = r->session;
	const struct submission *items = r->in;
	struct request *item;

	(void)budget;
	if (r->u.batch_of.next == r->u.batch_of.n) {
		r->reply.count = r->u.batch_of.n;
		return done(r);
	}
	if (r->u.batch_of.cancelled) {
		while (s->state == SESSION_LIVE && r->u.batch_of.next < r->u.batch_of.n)
			answer_item(r, WIRE_ECANCELLED);
		r->reply.count = r->u.batch_of.n;
		return refuse(r, WIRE_ECANCELLED, "cancelled by the client");
	}
	must(!r->u.batch_of.item);
	if (items[r->u.batch_of.next].opcode == WIRE_OP_BATCH ||
	    items[r->u.batch_of.next].opcode == WIRE_OP_CANCEL) {
		answer_item(r, WIRE_EINVAL);
		return RUN_MORE;
	}
	/* The item reports to request_finish, which makes the batch ready again. */
	if (request_decode(s, &items[r->u.batch_of.next], r, &item) == 0)
		request_start(item);
	return RUN_WAIT;
}

static void batch_abandon(struct request *r, int status)
{
	struct request *item = r->u.batch_of.item;

	if (item) {
		item->batch = r;
		request_end(item, status);
	}
	while (r->session->state == SESSION_LIVE && r->u.batch_of.next < r->u.batch_of.n)
		answer_item(r, status);
	r->reply.count = r->u.batch_of.n;
	list_remove(&r->in_ready);
}

const struct request_kind kind_batch = {
    .opcode = WIRE_OP_BATCH,
    .in_bytes = sizeof(struct submission),
    .out_bytes = sizeof(struct completion),
    .latency = -1,
    .check = batch_check,
    .run = batch_run,
    .abandon = batch_abandon,
};

/* ---- counters ---- */

static enum run_result counters_run(struct request *r, uint32_t *budget)
{
	struct session *s = r->session;
	struct payload_counters out = s->counters;

	(void)budget;
	out.requests = s->taken;
	out.completions = s->given;
	out.open_sequences = s->n_sequences;
	out.heap_bytes = s->heap.used;
	for (uint32_t i = 0; i < s->core->n_pools; i++) {
		const struct core_pool *p = s->core->pool[i];
		const struct pool_share *share = &p->pool.shares[s->name_space];

		out.namespace_pages += pool_held(&p->pool, s->name_space);
		out.namespace_retained_pages += share->indexed - share->live;
	}
	out.namespace_sequences = core_namespace_sequences(s->core, s->name_space);
	out.namespace_sessions = s->core->namespaces[s->name_space].sessions;
	r->reply.count = 1;
	session_write(s, r->entry.out_offset, &out, sizeof(out));
	return done(r);
}

const struct request_kind kind_counters = {
    .opcode = WIRE_OP_COUNTERS,
    .out_bytes = sizeof(struct payload_counters),
    .latency = -1,
    .run = counters_run,
};
