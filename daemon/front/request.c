/* SPDX-License-Identifier: Apache-2.0 */
/* request: see request.h. Core thread; nothing here blocks. */
#include "daemon/front/request.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/park.h"

static void expired(struct timer *t)
{
	struct request *r = list_entry(t, struct request, timer);

	request_end(r, WIRE_ETIMEDOUT);
}

struct request *request_alloc(struct session *s)
{
	struct core *c = s->core;
	struct list *free_one = list_first(&c->free_requests);
	struct request *r;

	if (free_one) {
		list_remove(free_one);
		r = list_entry(free_one, struct request, in_session);
	} else {
		r = malloc(sizeof(*r));
		if (!r)
			return NULL;
	}
	memset(r, 0, offsetof(struct request, inline_in));
	list_init(&r->in_session);
	list_init(&r->in_queue);
	list_init(&r->in_ready);
	list_init(&r->in_wait);
	timer_init(&r->timer, expired);
	r->session = s;
	r->began_ns = c->now_ns;
	r->serial = ++c->serial;
	return r;
}

void request_free(struct request *r)
{
	struct session *s = r->session;

	timers_disarm(&s->core->timers, &r->timer);
	list_remove(&r->in_session);
	list_remove(&r->in_queue);
	list_remove(&r->in_ready);
	list_remove(&r->in_wait);
	if (r->in && r->in != r->inline_in)
		free(r->in);
	charge_give(&s->heap, r->in_charged);
	list_append(&s->core->free_requests, &r->in_session);
}

/* ---- answers ---- */

static void set_text(struct request *r, int status, const char *format, va_list arguments)
{
	char text[CONTROL_TEXT_BYTES];
	struct text_name name;

	vsnprintf(text, sizeof(text), format, arguments);
	r->reply.status = status;
	if (r->session->state != SESSION_LIVE)
		return;
	name = session_text(r->session, text);
	r->reply.text = name.text;
	r->reply.text_serial = name.serial;
}

enum run_result refuse(struct request *r, int status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	set_text(r, status, format, arguments);
	va_end(arguments);
	return RUN_DONE;
}

bool refused(struct request *r, int status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	set_text(r, status, format, arguments);
	va_end(arguments);
	return false;
}

enum run_result done(struct request *r)
{
	r->reply.status = 0;
	return RUN_DONE;
}

enum run_result refuse_heap(struct request *r, const char *what, uint64_t bytes)
{
	const struct charge *own = &r->session->heap, *all = own->parent;
	const char *name = r->session->core->namespaces[r->session->name_space].name;

	if (bytes > own->limit - own->used)
		return refuse(r, WIRE_EQUOTA,
			      "%s of %llu bytes; the session's private memory has %llu of %llu "
			      "left (core.session_heap_bytes)",
			      what, (unsigned long long)bytes,
			      (unsigned long long)(own->limit - own->used),
			      (unsigned long long)own->limit);
	return refuse(r, WIRE_EQUOTA,
		      "%s of %llu bytes; the private memory of namespace %s has %llu of %llu left "
		      "(namespaces.max_bytes)",
		      what, (unsigned long long)bytes, name,
		      (unsigned long long)(all->limit - all->used), (unsigned long long)all->limit);
}

void refuse_sequence_heap(struct request *r, const struct sequence *q)
{
	refuse_heap(r, "what is kept of the sequence, with more",
		    sizeof(*q) + seq_heap_bytes(q->seq) - q->charged);
}

bool reply_array(struct request *r, uint32_t skip_bytes, const void *from, uint32_t n,
		 uint32_t element_bytes)
{
	uint32_t room = r->entry.out_bytes > skip_bytes ? r->entry.out_bytes - skip_bytes : 0;
	uint32_t fit = room / element_bytes < n ? room / element_bytes : n;

	r->reply.count = n;
	if (r->session->state != SESSION_LIVE)
		return false;
	return fit == 0 || !session_write(r->session, r->entry.out_offset + skip_bytes, from,
					  (size_t)fit * element_bytes);
}

void reply_version(struct request *r, struct seq *s)
{
	r->reply.value1 = s->table_version;
	if (s->told_version != s->table_version)
		r->reply.flags |= COMPLETION_TABLE_CHANGED;
	s->told_version = s->table_version;
}

bool reply_pages(struct request *r, uint32_t skip_bytes, const struct seq *s, uint32_t first,
		 uint32_t n)
{
	const struct pages *pages = &s->pool->pages;
	struct payload_handle part[64];
	uint32_t sent = 0;
	bool written = true;

	while (written && sent < n) {
		uint32_t k = 0;

		for (; k < 64 && sent + k < n; k++) {
			uint32_t page = seq_page(s, first + sent + k);

			part[k].index = page;
			part[k].generation = pages->page[page].generation;
		}
		written = reply_array(r, skip_bytes + sent * (uint32_t)sizeof(part[0]), part, k,
				      sizeof(part[0]));
		sent += k;
	}
	r->reply.count = n;
	return written;
}

/* Is the step over before this request's turn would have come? */
static bool is_behind_end(const struct request *r)
{
	const struct sequence *q = r->sequence;

	if (list_is_empty(&r->in_queue))
		return false;
	for (const struct list *at = q->queue.next; at != &r->in_queue; at = at->next) {
		if (list_entry(at, struct request, in_queue)->kind->final)
			return true;
	}
	return false;
}

/* An operation that names an open step and fails poisons it: what is queued behind it must not
 * publish what was never written. A receipt that does not fit leaves the step as it was. */
static void poison(struct request *r)
{
	struct sequence *q = r->sequence;

	if (!q || !q->step.generation || r->reply.status == 0)
		return;
	if (!r->kind->rows || r->entry.index != q->step.index ||
	    r->entry.generation != q->step.generation || is_behind_end(r))
		return;
	q->seq->step.poisoned = true;
}

static void answer(struct request *r)
{
	struct session *s = r->session;

	if (r->kind->latency >= 0) {
		s->core->now_ns = clock_now(&s->core->clock);
		counters_time(&s->core->counters, (enum histogram)r->kind->latency,
			      s->core->now_ns - r->began_ns);
	}
	r->reply.opcode = r->entry.opcode;
	if (r->batch) {
		r->reply.submission = r->batch->u.batch_of.next;
		session_write(
		    s, r->batch->entry.out_offset + r->batch->u.batch_of.next * sizeof(r->reply),
		    &r->reply, sizeof(r->reply));
		return;
	}
	s->counters.requests++;
	session_complete(s, &r->reply);
}

/* A sequence that a request works on makes no room for others, but for one that waits for room. */
static void set_working(struct request *r, bool working)
{
	struct seq *s = r->sequence ? r->sequence->seq : NULL;
	bool changes = s && r->working != working;

	if (changes)
		s->busy += working ? 1 : UINT32_MAX;
	r->working = working && s;
	if (changes && s->busy == 0)
		core_pool_offer(r->sequence->pool, r);
}

void request_finish(struct request *r)
{
	struct session *s = r->session;
	struct sequence *q = r->sequence;
	struct request *batch = r->batch;
	struct core_pool *waited = list_is_empty(&r->in_wait) ? NULL : r->pool;

	poison(r);
	set_working(r, false);
	if (s->state == SESSION_LIVE)
		answer(r);
	if (!batch) {
		must(s->in_flight > 0);
		s->in_flight--;
		s->reserved_in_flight -= r->kind->reserved;
	}

	request_free(r);
	if (batch) {
		batch->u.batch_of.item = NULL;
		batch->u.batch_of.next++;
		request_ready(batch);
	}
	if (waited)
		core_pool_settle(waited); /* whose turn is it now? */
	/* What is queued behind it in a sequence or session that is over is ended, never run. */
	if (q && !q->closing && s->state == SESSION_LIVE && !list_is_empty(&q->queue))
		request_start(list_entry(list_first(&q->queue), struct request, in_queue));
}

/* ---- turns ---- */

/* What stands before it in its sequence's queue must be done; row operations run together. */
static bool is_its_turn(const struct request *r)
{
	const struct sequence *q = r->sequence;

	if (!q || list_is_empty(&r->in_queue))
		return true;
	for (const struct list *at = q->queue.next; at != &r->in_queue; at = at->next) {
		const struct request *before = list_entry(at, struct request, in_queue);

		if (!before->kind->rows || !r->kind->rows)
			return false;
	}
	return true;
}

void request_start(struct request *r)
{
	struct core *c = r->session->core;

	while (r && !r->started && is_its_turn(r)) {
		struct sequence *q = r->sequence;
		struct list *next = q && r->in_queue.next != &q->queue ? r->in_queue.next : NULL;
		bool rows = q && r->kind->rows;

		r->started = true;
		timers_disarm(&c->timers, &r->timer);

		if (q)
			sequence_touch(q);
		/* Rows behind it may start as well; it may be gone when request_go returns. */
		if (!rows || !next) {
			request_go(r);
			return;
		}
		request_ready(r);
		r = list_entry(next, struct request, in_queue);
	}
	if (r && !r->started && r->batch)
		request_end(r, WIRE_EAGAIN);
	else if (r && !r->started && r->kind->waits)
		request_wait(r, NULL);
}

static enum run_result run(struct request *r)
{
	uint32_t budget = (uint32_t)r->session->core->config->core.job_pages_per_turn;
	enum run_result result;

	if (r->kind->here && r->sequence->seq && seq_is_away(r->sequence->seq)) {
		result = request_bring_back(r, &budget);
		if (result != RUN_DONE || r->reply.status)
			return result;
	}
	return r->kind->run(r, &budget);
}

void request_go(struct request *r)
{
	enum run_result result;

	must(r->started);
	r->waiting = false;
	set_working(r, true);
	result = run(r);
	/* Who waits for room holds nothing that others could not have. */
	if (result == RUN_WAIT && r->pool && !list_is_empty(&r->in_wait) &&
	    r->waits_in != &r->pool->copying)
		set_working(r, false);
	if (r->pool && r->pool->pool.has_lost)
		core_pool_tell_lost(r->pool);
	switch (result) {
	case RUN_DONE:
		request_finish(r);
		return;
	case RUN_MORE:
		request_ready(r);
		return;
	case RUN_WAIT:
		/* It is in a list of who will wake it, or has a job in flight. */
		if (r->batch && !r->kind->abandon)
			cannot_happen("an item of a batch waits and cannot be abandoned");
		r->waiting = true;
		return;
	}
}

void request_ready(struct request *r)
{
	struct session *s = r->session;

	if (list_is_empty(&r->in_ready))
		list_append(&s->ready, &r->in_ready);
	if (list_is_empty(&s->in_ready))
		list_append(&s->core->ready, &s->in_ready);
}

static uint64_t deadline_ns(const struct request *r)
{
	uint64_t us = r->entry.deadline_us;

	if (us == 0)
		us = r->pool ? r->pool->config->default_deadline_us
			     : r->session->core->config->core.default_deadline_us;
	return r->began_ns + us * NS_PER_US;
}

struct pool_rank request_rank(const struct request *r)
{
	/* What is asked of a sequence ranks as that; a fork will be one of its own. */
	if (r->sequence && r->sequence->seq && r->kind != &kind_fork)
		return r->sequence->seq->rank;
	return (struct pool_rank){.interactive = r->interactive, .serial = r->serial};
}

bool request_outranks(const struct request *a, const struct request *b)
{
	struct pool_rank x = request_rank(a), y = request_rank(b);

	if (x.interactive != y.interactive)
		return x.interactive;
	return x.serial != y.serial ? x.serial < y.serial : a->serial < b->serial;
}

bool request_is_behind(const struct list *where, const struct request *r)
{
	const struct list *first = list_first(where);
	const struct request *head;

	if (!first)
		return false;
	head = list_entry(first, struct request, in_wait);
	return head != r && request_outranks(head, r);
}

static void insert_ranked(struct list *where, struct request *r)
{
	struct list *at = where;

	while (at->previous != where) {
		const struct request *before = list_entry(at->previous, struct request, in_wait);

		if (request_outranks(before, r))
			break;
		at = at->previous;
	}
	list_append(at, &r->in_wait);
}

void request_wait(struct request *r, struct list *where)
{
	struct core *c = r->session->core;

	/* For a job: what it needed has come, perhaps when somebody else looked. Who waits in no
	 * list is not tried again. */
	if (!where && !list_is_empty(&r->in_wait)) {
		list_remove(&r->in_wait);
		core_pool_settle(r->pool); /* whose turn is it now? */
	}
	if (where && (list_is_empty(&r->in_wait) || r->waits_in != where)) {
		list_remove(&r->in_wait);
		insert_ranked(where, r);
		r->waits_in = where;
	}
	r->waiting = true;
	if (r->kind->patient && r->entry.deadline_us == 0)
		return;
	if (!timer_is_armed(&r->timer) && timers_arm(&c->timers, &r->timer, deadline_ns(r)))
		session_end(r->session, WIRE_BYE_QUOTA, "the daemon has no memory for a deadline");
}

/* What has not come; nothing that another namespace holds shows in it. NULL: nobody knows. */
static const char *waited_for(const struct request *r)
{
	const struct core_pool *p = r->pool;
	const struct list *where = r->waits_in;

	if (!r->started)
		return "earlier calls on its sequence";
	if (!p || !r->waiting || !list_is_empty(&r->in_ready))
		return NULL;
	if (list_is_empty(&r->in_wait))
		return "a copy on the device";
	if (where == &p->attaching)
		return "the memory of the pool";
	if (where == &p->admission)
		return "room in the pool";
	if (where >= p->over_quota && where < p->over_quota + CONFIG_NAMESPACES_MAX)
		return "room in its namespace (namespaces.max_pages)";
	if (where == &p->starving)
		return "a page of the pool";
	if (where == &p->copying)
		return "a copy of a state image";
	return where == &p->fetching ? "pages from KV-RAM" : NULL;
}

void request_end(struct request *r, int status)
{
	const char *what = status == WIRE_ETIMEDOUT ? waited_for(r) : NULL;
	bool waited = r->pool && !list_is_empty(&r->in_wait);
	struct core_pool *p = r->pool;

	if (r->reply.status == 0 || status == WIRE_EGONE)
		r->reply.status = status;
	if (r->kind->abandon && r->started)
		r->kind->abandon(r, status);
	if (r->session->state == SESSION_LIVE && !r->reply.text)
		refuse(r, r->reply.status, "%s%s%s",
		       status == WIRE_ETIMEDOUT    ? "the deadline passed while it waited"
		       : status == WIRE_ECANCELLED ? "cancelled by the client"
						   : wire_status_text(status),
		       what ? " for " : "", what ? what : "");
	request_finish(r);
	if (waited)
		core_pool_settle(p); /* whose turn is it now? */
}
