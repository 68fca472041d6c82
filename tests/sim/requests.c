/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests: what clients ask for, in the formats of the protocol. Each operation carries the
 * statuses that its answer may have. One thread.
 */
#include "tests/sim/sim.h"

#define ALLOW(status) (1u << -(status))
#define SURPLUS       8 /* pages, more than a sequence comes to have */

static struct sim_view *free_view(struct sim_client *c)
{
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		if (c->views[i].used)
			continue;
		c->views[i] = (struct sim_view){.used = true};
		return &c->views[i];
	}
	return NULL;
}

static void maybe_deadline(struct sim_op *o)
{
	struct sim *w = o->client->sim;

	o->e.deadline_us = chance(w, 30) ? 1 + below(w, 20000) : 5000000;
}

/* ---- open, lookup ---- */

/* Of system block, last user message and opener; none inside an image. */
static void draw_offsets(struct sim *w, const struct sim_text *t, uint32_t n,
			 struct payload_open *p)
{
	uint32_t opener = chance(w, 50) ? n : 1 + below(w, n);
	uint32_t user = chance(w, 50) ? opener : below(w, opener + 1);
	uint32_t system = below(w, opener + 1);

	p->chunk_tokens = chance(w, 50) ? 1 + below(w, 40) : 0;
	if (text_is_inside_image(t, opener, n))
		return;
	p->opener_tokens = opener;
	p->user_end_tokens = text_is_inside_image(t, user, n) ? 0 : user;
	p->system_end_tokens = text_is_inside_image(t, system, n) ? 0 : system;
}

static void fill_prompt(struct sim_op *o, struct sim_text *t, uint32_t n, bool off)
{
	struct sim_client *c = o->client;
	struct sim *w = c->sim;
	struct payload_span spans[SIM_IMAGES];
	uint32_t n_spans, cap = PAYLOAD_NO_LIMIT;
	uint64_t chain[SIM_TOKENS];
	struct payload_open *p;
	uint32_t *tokens;

	text_drop_images(t, 0, n);
	n_spans = text_spans(t, 0, n, spans);
	if (chance(w, 10))
		cap = below(w, n + 1);
	p = op_in(o, (uint32_t)(sizeof(*p) + n_spans * sizeof(spans[0]) + n * sizeof(*tokens)));
	p->flags = off ? PAYLOAD_OPEN_NO_REUSE : 0;
	p->n_tokens = n;
	p->n_spans = n_spans;
	p->max_cached_tokens = cap;
	memset(p->variant, t->variant, sizeof(p->variant));
	memcpy(p + 1, spans, n_spans * sizeof(spans[0]));
	tokens = (uint32_t *)(void *)((struct payload_span *)(p + 1) + n_spans);
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = text_token(t, i);
	o->e.index = c->pool.index;
	o->e.generation = c->pool.generation;
	o->n = n;
	o->exact = model_is_quiet(w, NULL);
	text_chain(t, c->name_space, n, chain);
	o->expected = model_match(w, c->name_space, t, chain, n, cap, off);
	o->failed_before = w->spill.n_failed;
	o->bound = cap;
	if (chance(w, 50))
		draw_offsets(w, t, n, p);
}

static uint32_t draw_length(struct sim *w, uint32_t most)
{
	uint32_t n = chance(w, 70) ? 1 + below(w, most < 110 ? most : 110) : 1 + below(w, most);

	/* Whole pages are where mistakes live. */
	return chance(w, 40) && n >= SIM_PAGE_TOKENS ? n / SIM_PAGE_TOKENS * SIM_PAGE_TOKENS : n;
}

void ask_open(struct sim_client *c, bool send, struct sim_op **out)
{
	struct sim *w = c->sim;
	uint32_t most = (uint32_t)w->config.pools[0].max_sequence_length;
	struct sim_view *v = free_view(c);
	struct payload_open *p;
	struct sim_op *o;
	uint32_t n = draw_length(w, c->hybrid && chance(w, 80) && most > 110 ? 110 : most);

	if (out)
		*out = NULL;
	if (!v)
		return;
	text_draw(w, &v->text);
	v->no_reuse = chance(w, 4);
	v->max_tokens = n + below(w, most - n + 1) / (1 + below(w, c->hybrid ? 12 : 3));
	o = op_new(c, WIRE_OP_OPEN, NULL);
	o->fork = v;
	fill_prompt(o, &v->text, n, v->no_reuse);
	p = (struct payload_open *)(void *)(c->memory->window + o->e.in_offset);
	p->max_tokens = v->max_tokens;
	v->interactive = chance(w, 30);
	p->priority = v->interactive ? PAYLOAD_INTERACTIVE : PAYLOAD_AGENT;
	op_out(o, sizeof(struct payload_open_result) + SIM_TABLE * sizeof(struct payload_handle));
	maybe_deadline(o);
	o->allowed |= ALLOW(WIRE_EQUOTA);
	if (out)
		*out = o;
	if (send)
		op_send(o);
}

void ask_lookup(struct sim_client *c, bool send, struct sim_op **out)
{
	struct sim *w = c->sim;
	struct sim_text t;
	struct sim_op *o = op_new(c, WIRE_OP_LOOKUP, NULL);

	text_draw(w, &t);
	fill_prompt(o, &t, draw_length(w, (uint32_t)w->config.pools[0].max_sequence_length),
		    chance(w, 4));
	op_out(o, sizeof(struct payload_open_result));
	if (out)
		*out = o;
	if (send)
		op_send(o);
}

/* ---- sequences ---- */

void ask_fork(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	uint32_t most = (uint32_t)w->config.pools[0].max_sequence_length;
	struct sim_view *child = free_view(c);
	struct sim_op *o;

	if (!child)
		return;
	o = op_new(c, WIRE_OP_FORK, v);
	o->fork = child;
	o->e.arg0 = v->committed + below(w, most - v->committed + 1);
	child->max_tokens = (uint32_t)o->e.arg0;
	child->interactive = v->interactive;
	if (o->e.arg0 == 0)
		o->allowed = ALLOW(WIRE_EINVAL);
	o->allowed |= ALLOW(WIRE_EQUOTA);
	/* With its parent's duplicates it may need more than there is. */
	if (o->e.arg0 / SIM_PAGE_TOKENS + SURPLUS > w->config.pools[0].pool_pages)
		o->allowed |= ALLOW(WIRE_ENOSPC);
	op_out(o, SIM_TABLE * sizeof(struct payload_handle));
	maybe_deadline(o);
	op_send(o);
}

void ask_truncate(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	struct sim_op *o = op_new(c, WIRE_OP_TRUNCATE, v);
	uint32_t n = below(w, v->committed + 1);

	if (chance(w, 30))
		n = n / SIM_PAGE_TOKENS * SIM_PAGE_TOKENS;
	o->e.arg0 = n;
	if (n < v->first_page * SIM_PAGE_TOKENS)
		o->allowed = ALLOW(WIRE_EINVAL);
	if (c->hybrid)
		o->allowed = n == v->committed ? 1 : ALLOW(WIRE_ENOTSUP);
	if (v->step || v->stuck)
		o->allowed |= ALLOW(WIRE_EBUSY) | ALLOW(WIRE_EINVAL);
	if (v->step)
		o->allowed &= ~1u;
	op_send(o);
}

void ask_close(struct sim_client *c, struct sim_view *v)
{
	struct sim_op *o = op_new(c, WIRE_OP_CLOSE, v);

	v->closing = true;
	v->step = false;
	op_send(o);
}

void ask_table(struct sim_client *c, struct sim_view *v, bool send, struct sim_op **out)
{
	struct sim_op *o = op_new(c, WIRE_OP_TABLE, v);

	op_out(o, SIM_TABLE * sizeof(struct payload_handle));
	if (out)
		*out = o;
	if (send)
		op_send(o);
}

/* ---- steps ---- */

void ask_begin(struct sim_client *c, struct sim_view *v, bool send, struct sim_op **out)
{
	struct sim *w = c->sim;
	struct sim_op *o = op_new(c, WIRE_OP_STEP_BEGIN, v);
	struct payload_step *p = op_in(o, sizeof(*p));
	uint32_t most = v->max_tokens - v->committed, n = 1 + below(w, 40);

	if (v->known > v->committed && chance(w, 60))
		n = v->known - v->committed;
	if (n > most)
		n = most;
	if (c->hybrid && n > SIM_RING_AHEAD)
		n = SIM_RING_AHEAD;
	o->e.arg0 = v->committed + n;
	if (n == 0)
		o->allowed = ALLOW(WIRE_EINVAL);
	if (v->step)
		o->allowed = ALLOW(WIRE_EBUSY) | ALLOW(WIRE_ESTEP) | ALLOW(WIRE_EINVAL);
	if (w->windows && v->committed > 64 && chance(w, 50))
		p->window_start_tokens = v->committed - 20 - below(w, 40);
	o->first = p->window_start_tokens;
	op_out(o, sizeof(struct payload_step_slots) + SIM_TABLE * sizeof(struct payload_handle));
	maybe_deadline(o);
	if (out)
		*out = o;
	if (send)
		op_send(o);
}

static struct sim_op *new_step_op(struct sim_client *c, uint16_t opcode, struct sim_view *v)
{
	struct sim_op *o = op_new(c, opcode, v);

	o->e.index = v->step_index;
	o->e.generation = v->step_generation;
	return o;
}

static void rows_of(struct sim_client *c, struct sim_view *v, uint32_t first, uint32_t n,
		    uint32_t layer, uint32_t side)
{
	struct sim_op *o = new_step_op(c, WIRE_OP_KV_WRITE, v);
	struct payload_rows *p = op_in(o, (uint32_t)(sizeof(*p) + n * sizeof(uint64_t)));
	uint64_t *rows = (uint64_t *)(void *)(p + 1);

	*p = (struct payload_rows){.layer = layer,
				   .side = side,
				   .format = PAYLOAD_FLOAT32,
				   .first_token = first,
				   .n_tokens = n};
	for (uint32_t i = 0; i < n; i++)
		rows[i] = row_stamp(v->chain[first + i], layer, side);
	maybe_deadline(o);
	op_send(o);
}

void ask_rows(struct sim_client *c, struct sim_view *v, uint32_t first, uint32_t n, bool bad)
{
	struct sim_op *o;
	struct payload_rows *p;

	if (n == 0)
		return;
	if (!bad) {
		rows_of(c, v, first, n, 0, 0);
		rows_of(c, v, first, n, 0, 1);
		rows_of(c, v, first, n, 1, 0);
		return;
	}
	/* Something that an engine may get wrong: it must not pass for written. */
	o = new_step_op(c, WIRE_OP_KV_WRITE, v);
	p = op_in(o, sizeof(*p) + sizeof(uint64_t));
	*p = (struct payload_rows){.layer = chance(c->sim, 50) ? 7 : 0,
				   .format = PAYLOAD_FLOAT32,
				   .first_token = v->target,
				   .n_tokens = 1};
	o->allowed = ALLOW(WIRE_EINVAL);
	op_send(o);
	v->poisoned = true;
}

/* Where the state after these tokens is. Seldom another slot, by mistake. */
static void name_slot(struct sim *w, const struct sim_view *v, struct payload_receipt *p,
		      struct sim_op *o)
{
	p->slot = v->slots.target;
	p->slot_generation = v->slots.generation;
	if (!chance(w, 3))
		return;
	o->allowed = ALLOW(WIRE_EINVAL);
	if (chance(w, 50))
		p->slot = v->slots.source;
	else
		p->slot_generation--;
}

void ask_commit(struct sim_client *c, struct sim_view *v, uint32_t tokens, bool tell_ids)
{
	struct sim_op *o = new_step_op(c, WIRE_OP_STEP_COMMIT, v);
	uint32_t end = v->start + tokens, first = v->start / SIM_PAGE_TOKENS;
	uint32_t n_pages = tokens ? (end + SIM_PAGE_TOKENS - 1) / SIM_PAGE_TOKENS - first : 0;
	uint32_t known = v->known > v->committed ? v->known : v->committed;
	uint32_t n_ids = tell_ids && end > known ? end - known : 0;
	struct payload_span spans[SIM_IMAGES];
	uint32_t n_spans = n_ids ? text_spans(&v->text, known, end, spans) : 0;
	struct payload_receipt *p =
	    op_in(o, (uint32_t)(sizeof(*p) + n_pages * sizeof(struct payload_handle) +
				n_spans * sizeof(spans[0]) + n_ids * sizeof(uint32_t)));
	struct payload_handle *pages = (struct payload_handle *)(void *)(p + 1);
	uint32_t *ids;

	*p = (struct payload_receipt){
	    .n_pages = n_pages, .n_tokens = n_ids, .n_spans = n_spans, .tokens_commit = tokens};
	if (c->hybrid && tokens)
		name_slot(c->sim, v, p, o);
	memcpy(pages, v->table + (first - v->first_page), n_pages * sizeof(*pages));
	memcpy(pages + n_pages, spans, n_spans * sizeof(spans[0]));
	ids = (uint32_t *)(void *)((struct payload_span *)(void *)(pages + n_pages) + n_spans);
	for (uint32_t i = 0; i < n_ids; i++)
		ids[i] = text_token(&v->text, known + i);
	o->n = tokens;
	o->first = n_ids || end <= known;
	if (v->poisoned)
		o->allowed = (o->allowed & ~1u) | ALLOW(WIRE_ESTEP);
	o->exact = model_is_quiet(c->sim, v);
	o->bound = (uint32_t)sim_pool(c->sim)->stats.publish_stops;
	v->step = false; /* it states that no access is in flight */
	op_send(o);
}

void ask_abort(struct sim_client *c, struct sim_view *v)
{
	struct sim_op *o = new_step_op(c, WIRE_OP_STEP_ABORT, v);

	v->step = false;
	op_send(o);
}

void ask_read(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	uint32_t from = v->first_page * SIM_PAGE_TOKENS, n = v->committed - from, take;
	struct payload_rows *p;
	struct sim_op *o;

	if (v->committed <= from)
		return;
	o = op_new(c, WIRE_OP_KV_READ, v);
	p = op_in(o, sizeof(*p));
	o->first = from + below(w, n);
	take = v->committed - o->first;
	o->n = 1 + below(w, take);
	o->layer = below(w, 2);
	o->side = below(w, 2);
	*p = (struct payload_rows){.layer = o->layer,
				   .side = o->side,
				   .format = PAYLOAD_FLOAT32,
				   .first_token = o->first,
				   .n_tokens = o->n};
	op_out(o, (uint32_t)(o->n * sizeof(uint64_t)));
	maybe_deadline(o);
	op_send(o);
}

/* ---- the rest ---- */

static struct sim_view *idle_view(struct sim_client *c)
{
	for (uint32_t i = 0, at = below(c->sim, SIM_SEQUENCES); i < SIM_SEQUENCES; i++, at++) {
		struct sim_view *v = &c->views[at % SIM_SEQUENCES];

		if (v->used && v->open && !v->ops && !v->closing && !v->step && !v->stuck)
			return v;
	}
	return NULL;
}

void ask_batch(struct sim_client *c)
{
	struct sim_op *o = op_new(c, WIRE_OP_BATCH, NULL);
	uint32_t want = 1 + below(c->sim, 4);
	struct submission *entries;

	while (o->n_items < want) {
		struct sim_view *v = idle_view(c);
		struct sim_op *item = NULL;
		uint32_t kind = below(c->sim, 4);

		if (kind == 0)
			ask_open(c, false, &item);
		else if (kind == 1 && v)
			ask_begin(c, v, false, &item);
		else if (kind == 2 && v)
			ask_table(c, v, false, &item);
		if (!item)
			ask_lookup(c, false, &item);
		item->allowed |= ALLOW(WIRE_EAGAIN);
		item->exact = false;
		o->items[o->n_items++] = item;
	}
	entries = op_in(o, (uint32_t)(o->n_items * sizeof(*entries)));
	for (uint32_t i = 0; i < o->n_items; i++)
		memcpy(&entries[i], &o->items[i]->e, sizeof(*entries));
	o->e.arg0 = o->n_items;
	op_out(o, (uint32_t)(o->n_items * sizeof(struct completion)));
	op_send(o);
}

static bool is_final(uint16_t opcode)
{
	return opcode == WIRE_OP_STEP_COMMIT || opcode == WIRE_OP_STEP_ABORT ||
	       opcode == WIRE_OP_CLOSE;
}

void ask_cancel(struct sim_client *c)
{
	struct sim_op *o, *other;
	uint32_t at = below(c->sim, SIM_OPS);

	other = &c->ops[at];
	if (!other->used || !other->submission || is_final(other->e.opcode) ||
	    other->e.opcode == WIRE_OP_POOL_ATTACH || other->e.opcode == WIRE_OP_POOL_DETACH)
		return;
	o = op_new(c, WIRE_OP_CANCEL, NULL);
	o->e.arg0 = other->submission;
	other->cancelled = true;
	for (uint32_t i = 0; i < other->n_items; i++)
		other->items[i]->cancelled = true;
	op_send(o);
}

void ask_null(struct sim_client *c)
{
	op_send(op_new(c, WIRE_OP_NULL, NULL));
}
