/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence: open, lookup, fork, truncate, close, and the view of the page table.
 *
 * Owned by the thread that uses the connection. The calls without submit in their name wait for
 * the daemon.
 */
#include "libclient/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct kvhost_span) == sizeof(struct payload_span), "span");
_Static_assert(offsetof(struct kvhost_span, digest) == offsetof(struct payload_span, digest),
	       "span");

struct kvhost_sequence *sequence_new(struct kvhost_pool *pool)
{
	struct kvhost_sequence *seq = calloc(1, sizeof(*seq));
	struct kvhost *host = pool->host;

	if (!seq)
		return NULL;
	seq->host = host;
	seq->pool = pool;
	seq->serial = host->serial;
	seq->page_tokens = pool->info.page_tokens;
	seq->hybrid = pool->info.n_sections > 0;
	/* A shared page at either end of a window that does not begin at a page. */
	seq->max_pages = pool->info.max_sequence_tokens / pool->info.page_tokens + 2;
	seq->next = host->sequences;
	if (seq->next)
		seq->next->previous = seq;
	host->sequences = seq;
	return seq;
}

void sequence_free(struct kvhost_sequence *seq)
{
	if (seq->next)
		seq->next->previous = seq->previous;
	if (seq->previous)
		seq->previous->next = seq->next;
	else
		seq->host->sequences = seq->next;
	free(seq->pages);
	free(seq);
}

void sequence_release(struct kvhost_sequence *seq)
{
	assert(seq->holds > 0);
	if (--seq->holds == 0 && seq->closed)
		sequence_free(seq);
}

static void retire(struct kvhost_sequence *seq)
{
	seq->closed = true;
	if (seq->holds == 0)
		sequence_free(seq);
}

int sequence_check(const struct kvhost_sequence *seq)
{
	int result;

	if (!seq)
		return KVHOST_EINVAL;
	result = host_check(seq->host);
	if (result)
		return result;
	return seq->serial == seq->host->serial ? 0 : KVHOST_EGONE;
}

/* ---- open and lookup ---- */

static int check_prompt(struct kvhost *host, const struct kvhost_prompt *p)
{
	if (!p || !p->tokens || p->n_tokens == 0)
		return host_fail(host, KVHOST_EINVAL, "a prompt has at least one token");
	if (p->n_spans > PAYLOAD_SPANS_MAX || (p->n_spans > 0 && !p->spans))
		return host_fail(host, KVHOST_EINVAL, "%u spans, 0 to %d can be", p->n_spans,
				 PAYLOAD_SPANS_MAX);
	return 0;
}

static void write_prompt(const struct kvhost_prompt *p, char *to)
{
	struct payload_open o = {
	    .flags = p->no_reuse ? PAYLOAD_OPEN_NO_REUSE : 0,
	    .n_tokens = p->n_tokens,
	    .n_spans = p->n_spans,
	    .max_tokens = p->max_tokens ? p->max_tokens : p->n_tokens,
	    .priority = p->priority,
	    .max_cached_tokens = p->max_cached_tokens ? p->max_cached_tokens : PAYLOAD_NO_LIMIT,
	    .system_end_tokens = p->system_end_tokens,
	    .user_end_tokens = p->user_end_tokens,
	    .opener_tokens = p->opener_tokens,
	    .chunk_tokens = p->chunk_tokens,
	};

	if (p->variant)
		memcpy(o.variant, p->variant, sizeof(o.variant));
	memcpy(to, &o, sizeof(o));
	if (p->n_spans)
		memcpy(to + sizeof(o), p->spans, p->n_spans * sizeof(*p->spans));
}

static int put_prompt(struct kvhost *host, struct request *r, const struct kvhost_prompt *p,
		      uint64_t out_bytes)
{
	uint64_t head =
	    sizeof(struct payload_open) + (uint64_t)p->n_spans * sizeof(struct payload_span);
	uint64_t body = (uint64_t)p->n_tokens * sizeof(*p->tokens);
	bool lent = request_lend(host, r, p->tokens, head, body);
	int result;

	result = request_range(host, r, lent ? 0 : head + body, out_bytes);
	if (result)
		return result;
	write_prompt(p, request_in(host, r));
	if (!lent)
		memcpy((char *)request_in(host, r) + head, p->tokens, body);
	r->entry.deadline_us = p->deadline_us;
	return 0;
}

/* 0, or the session has ended: the answer contradicts itself or the question. */
static int take_result(struct kvhost *host, struct request *r, const struct completion *c)
{
	struct kvhost_sequence *seq = r->u.open.made;
	struct payload_open_result found;

	memcpy(&found, request_out(host, r), sizeof(found));
	if (found.cached_tokens > r->u.open.n_tokens || found.cached_tokens != c->value0 ||
	    (seq && found.n_pages != c->count)) {
		host_end(host, KVHOST_EVIOLATION, "the daemon's answer to open contradicts itself");
		return KVHOST_EVIOLATION;
	}
	if (found.n_points > KVHOST_POINTS_MAX)
		found.n_points = KVHOST_POINTS_MAX;
	if (r->u.open.result)
		*r->u.open.result = (struct kvhost_open_result){
		    .cached_tokens = found.cached_tokens,
		    .miss = found.miss,
		    .miss_tokens = found.miss_tokens,
		    .tier = found.tier,
		    .restore_ns = found.restore_ns,
		    .kind = found.kind,
		    .n_points = found.n_points,
		};
	for (uint32_t i = 0; r->u.open.result && i < found.n_points; i++)
		r->u.open.result->points[i] = found.points[i];
	if (seq) {
		seq->committed = found.cached_tokens;
		seq->version = found.table_version;
	}
	return 0;
}

static int finish_open(struct kvhost *host, struct request *r, int status,
		       const struct completion *c)
{
	struct kvhost_sequence *seq = r->u.open.made;

	if (status == 0)
		status = take_result(host, r, c);
	if (!seq)
		return status;
	if (status) {
		seq->closed = true;
		return status;
	}
	seq->index = c->index;
	seq->generation = c->generation;
	*r->u.open.out = seq;
	if (c->count > r->capacity || (c->flags & COMPLETION_TABLE_CHANGED))
		return table_round(host, r);
	(void)table_store(seq, 0,
			  (const char *)request_out(host, r) + sizeof(struct payload_open_result),
			  c->count);
	return 0;
}

static int start_open(enum request_kind kind, struct kvhost_pool *pool,
		      const struct kvhost_prompt *prompt, struct kvhost_sequence **out,
		      struct kvhost_open_result *result, void *user, kvhost_ticket *ticket)
{
	struct kvhost_sequence *made = NULL;
	struct kvhost *host;
	struct request *r;
	uint64_t pages = 0;
	int error;

	error = pool_check(pool);
	if (error)
		return error;
	host = pool->host;
	error = check_prompt(host, prompt);
	if (error)
		return error;
	error = request_take(host, kind, out ? WIRE_OP_OPEN : WIRE_OP_LOOKUP, &r);
	if (error)
		return error;
	if (out) {
		made = sequence_new(pool);
		if (!made) {
			request_give(host, r);
			return KVHOST_ENOMEM;
		}
		made->max_tokens = prompt->max_tokens ? prompt->max_tokens : prompt->n_tokens;
		pages = (uint64_t)prompt->n_tokens / made->page_tokens + 1;
	}
	request_hold(r, pool, made);
	error =
	    put_prompt(host, r, prompt,
		       sizeof(struct payload_open_result) + pages * sizeof(struct payload_handle));
	if (error) {
		if (made)
			made->closed = true;
		request_give(host, r);
		return error;
	}
	r->entry.index = pool->index;
	r->entry.generation = pool->generation;
	r->capacity = (uint32_t)pages;
	r->u.open.out = out;
	r->u.open.made = made;
	r->u.open.result = result;
	r->u.open.n_tokens = prompt->n_tokens;
	r->user = user;
	r->finish = finish_open;
	return request_go(host, r, ticket);
}

int kvhost_open(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
		struct kvhost_sequence **out, struct kvhost_open_result *result)
{
	if (!out)
		return KVHOST_EINVAL;
	return start_open(REQUEST_SYNCHRONOUS, pool, prompt, out, result, NULL, NULL);
}

int kvhost_submit_open(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
		       struct kvhost_sequence **seq, struct kvhost_open_result *result, void *user,
		       kvhost_ticket *out)
{
	if (!seq)
		return KVHOST_EINVAL;
	return start_open(REQUEST_TICKET, pool, prompt, seq, result, user, out);
}

int kvhost_lookup(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
		  struct kvhost_open_result *result)
{
	return start_open(REQUEST_SYNCHRONOUS, pool, prompt, NULL, result, NULL, NULL);
}

int kvhost_submit_lookup(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
			 struct kvhost_open_result *result, void *user, kvhost_ticket *out)
{
	return start_open(REQUEST_TICKET, pool, prompt, NULL, result, user, out);
}

/* ---- fork and truncate ---- */

static int take_fork(struct kvhost *host, struct request *r, struct kvhost_sequence *parent,
		     struct kvhost_sequence *made)
{
	const struct completion *c = &r->u.answer;

	if (c->value0 > parent->committed) {
		host_end(host, KVHOST_EVIOLATION, "the daemon forked more than was committed");
		return KVHOST_EVIOLATION;
	}
	made->index = c->index;
	made->generation = c->generation;
	made->committed = (uint32_t)c->value0;
	made->first_token = parent->first_token;
	made->version = parent->version;
	if (c->count > r->capacity || (c->flags & COMPLETION_TABLE_CHANGED))
		made->stale = true;
	else
		(void)table_store(made, 0, request_out(host, r), c->count);
	return 0;
}

int kvhost_fork(struct kvhost_sequence *parent, uint32_t max_tokens, struct kvhost_sequence **out)
{
	struct kvhost_sequence *made;
	struct kvhost *host;
	struct request *r;
	uint32_t pages;
	int result;

	result = sequence_check(parent);
	if (result == 0)
		result = table_refresh(parent);
	if (result)
		return result;
	if (!out || !parent->pool)
		return KVHOST_EINVAL;
	host = parent->host;
	result = request_take(host, REQUEST_SYNCHRONOUS, WIRE_OP_FORK, &r);
	if (result)
		return result;
	request_hold(r, NULL, parent);
	pages = parent->n_pages + 1;
	result = request_range(host, r, 0, (uint64_t)pages * sizeof(struct payload_handle));
	made = result ? NULL : sequence_new(parent->pool);
	if (!made) {
		request_give(host, r);
		return result ? result : KVHOST_ENOMEM;
	}
	r->entry.index = parent->index;
	r->entry.generation = parent->generation;
	r->entry.arg0 = max_tokens ? max_tokens : parent->max_tokens;
	made->max_tokens = (uint32_t)r->entry.arg0;
	r->capacity = pages;
	r->finish = finish_keep;
	result = request_run(host, r);
	if (result == 0)
		result = take_fork(host, r, parent, made);
	request_give(host, r);
	if (result) {
		sequence_free(made);
		return result;
	}
	*out = made;
	/* The fork exists; a table that cannot be read now is read by the next call. */
	(void)table_refresh(made);
	return 0;
}

static int finish_truncate(struct kvhost *host, struct request *r, int status,
			   const struct completion *c)
{
	struct kvhost_sequence *seq = r->seq;

	if (status)
		return status;
	if (c->value0 > seq->committed) {
		host_end(host, KVHOST_EVIOLATION, "the daemon kept more tokens than there were");
		return KVHOST_EVIOLATION;
	}
	seq->committed = (uint32_t)c->value0;
	seq->n_pages = table_pages_for(seq, seq->committed);
	if (c->flags & COMPLETION_TABLE_CHANGED)
		return table_round(host, r);
	return 0;
}

int kvhost_truncate(struct kvhost_sequence *seq, uint32_t tokens)
{
	struct request *r;
	int result;

	result = sequence_check(seq);
	if (result == 0)
		result = table_refresh(seq);
	if (result == 0)
		result = request_take(seq->host, REQUEST_SYNCHRONOUS, WIRE_OP_TRUNCATE, &r);
	if (result)
		return result;
	request_hold(r, NULL, seq);
	r->entry.index = seq->index;
	r->entry.generation = seq->generation;
	r->entry.arg0 = tokens;
	r->finish = finish_truncate;
	return request_go(seq->host, r, NULL);
}

/* ---- close ---- */

static int finish_close(struct kvhost *host, struct request *r, int status,
			const struct completion *c)
{
	(void)host;
	(void)c;
	/* What the daemon does not know any more is no use to anybody. */
	if (status != 0 && status != KVHOST_ESTALE && status != KVHOST_EGONE &&
	    status != KVHOST_EVIOLATION)
		return status;
	r->seq->closed = true;
	*r->u.close = NULL;
	return status == KVHOST_ESTALE ? 0 : status;
}

static int start_close(enum request_kind kind, struct kvhost_sequence **seq, void *user,
		       kvhost_ticket *ticket)
{
	struct request *r;
	int result;

	result = sequence_check(*seq);
	if (result == KVHOST_EGONE) {
		retire(*seq);
		*seq = NULL;
	}
	if (result)
		return result;
	result = request_take((*seq)->host, kind, WIRE_OP_CLOSE, &r);
	if (result)
		return result;
	request_hold(r, NULL, *seq);
	r->entry.index = (*seq)->index;
	r->entry.generation = (*seq)->generation;
	r->u.close = seq;
	r->user = user;
	r->finish = finish_close;
	return request_go((*seq)->host, r, ticket);
}

int kvhost_close(struct kvhost_sequence **seq)
{
	if (!seq || !*seq)
		return 0;
	return start_close(REQUEST_SYNCHRONOUS, seq, NULL, NULL);
}

int kvhost_submit_close(struct kvhost_sequence **seq, void *user, kvhost_ticket *out)
{
	if (!seq || !*seq)
		return KVHOST_EINVAL;
	return start_close(REQUEST_TICKET, seq, user, out);
}

/* ---- what is known here ---- */

uint32_t kvhost_committed(const struct kvhost_sequence *seq)
{
	return seq ? seq->committed : 0;
}

void kvhost_view(const struct kvhost_sequence *seq, struct kvhost_table *out)
{
	*out = (struct kvhost_table){0};
	if (!seq)
		return;
	out->pages = seq->pages;
	out->n_pages = seq->n_pages;
	out->first_token = seq->first_token;
	out->version = seq->version;
}
