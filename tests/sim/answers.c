/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answers: what an answer may be, and what it changes in the client's view. One thread.
 */
#include "tests/sim/live.h"
#include "tests/sim/sim.h"

#define ALLOW(status) (1u << -(status))
#define SLACK_NS      (400 * NS_PER_MS) /* the core's clock is read now and then */

static uint32_t pages_for(uint32_t tokens)
{
	return (tokens + SIM_PAGE_TOKENS - 1) / SIM_PAGE_TOKENS;
}

/* ---- which statuses an answer may have ---- */

static bool waits(uint16_t opcode)
{
	return opcode == WIRE_OP_OPEN || opcode == WIRE_OP_FORK || opcode == WIRE_OP_STEP_BEGIN ||
	       opcode == WIRE_OP_KV_WRITE || opcode == WIRE_OP_KV_READ ||
	       opcode == WIRE_OP_CHECKPOINT || opcode == WIRE_OP_IMAGE_WRITE ||
	       opcode == WIRE_OP_IMAGE_READ || opcode == WIRE_OP_TRUNCATE ||
	       opcode == WIRE_OP_TABLE;
}

static bool may_have_expired(const struct sim *w, uint64_t since_ns, uint64_t ttl_s)
{
	return w->now_ns - since_ns + SLACK_NS >= ttl_s * NS_PER_S;
}

/* The daemon has ended it and nobody can write to its pages any more. */
static bool step_may_be_undone(const struct sim *w, const struct sim_view *v)
{
	return !w->mapped && (v->step || v->stuck) && may_have_expired(w, v->step_ns, 2);
}

/* Of one that the daemon has ended the handle goes when the next one begins, come of it what may.
 */
static bool names_step(const struct sim_op *o)
{
	return o->e.index == o->view->step_index && o->e.generation == o->view->step_generation;
}

static uint32_t allowed(const struct sim_op *o)
{
	const struct sim *w = o->client->sim;
	const struct sim_view *v = o->view;
	uint64_t limit_ns = o->e.deadline_us * NS_PER_US;
	uint32_t mask = o->allowed;

	if (o->e.opcode == WIRE_OP_STEP_COMMIT)
		mask = v->poisoned ? ALLOW(WIRE_ESTEP) | (mask & ALLOW(WIRE_EINVAL)) : mask;
	if (o->cancelled)
		mask |= ALLOW(WIRE_ECANCELLED);
	if (waits(o->e.opcode) && w->now_ns - o->sent_ns + SLACK_NS >= limit_ns)
		mask |= ALLOW(WIRE_ETIMEDOUT);
	if (o->e.opcode == WIRE_OP_STEP_BEGIN && may_have_expired(w, o->sent_ns, 2))
		mask |= ALLOW(WIRE_ETIMEDOUT);
	/* A part of it was below and could not be fetched, or it had to go. */
	if (v && (w->spill.n_failed || w->config.pools[0].overcommit) &&
	    o->e.opcode != WIRE_OP_CLOSE)
		mask |= ALLOW(WIRE_ELOST);
	if (w->failpoints)
		mask |= ALLOW(WIRE_ENOMEM);
	if (w->failing)
		mask |= ALLOW(WIRE_EIO);
	if (v && may_have_expired(w, v->used_ns, 20))
		mask |= ALLOW(WIRE_EGONE) | ALLOW(WIRE_ESTALE);
	if (v && step_may_be_undone(w, v))
		mask |= 1;
	if (v && may_have_expired(w, v->step_ns, 2) && o->e.opcode != WIRE_OP_STEP_ABORT &&
	    o->e.opcode != WIRE_OP_CLOSE)
		mask |= names_step(o) ? ALLOW(WIRE_ESTEP) | ALLOW(WIRE_ESTALE) : ALLOW(WIRE_ESTEP);
	return mask;
}

/* ---- tables ---- */

static void take_handles(struct sim_op *o, uint32_t skip_bytes, uint32_t place, uint32_t n)
{
	const char *from = (const char *)op_answer(o) + skip_bytes;

	sim_check(o->client->sim, place + n <= SIM_TABLE, "a table of %u pages", place + n);
	memcpy(o->view->table + place, from, n * sizeof(struct payload_handle));
}

static void compare_table(struct sim *w, const struct payload_handle *have,
			  const struct payload_handle *found, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		sim_check(
		    w, have[i].index == found[i].index && have[i].generation == found[i].generation,
		    "page %u of the table is %u.%u, not %u.%u", i, found[i].index,
		    found[i].generation, have[i].index, have[i].generation);
}

static uint32_t committed_pages(const struct sim_view *v)
{
	return pages_for(v->committed) - v->first_page;
}

static void undo_step(struct sim_view *v)
{
	v->n_pages = committed_pages(v);
	if (v->has_replaced)
		v->table[v->n_pages - 1] = v->replaced;
	v->has_replaced = false;
	v->step = v->stuck = false;
}

/* ---- open, lookup, fork ---- */

static void check_exact(struct sim_op *o, const struct sim_text *t,
			const struct payload_open_result *r)
{
	struct sim *w = o->client->sim;
	struct sim_reuse expected = o->expected;

	if (t && images_is_hybrid(w) && states_check_after_failures(o, t, r))
		return;
	if (t && !images_is_hybrid(w))
		expected = spill_after_failures(o, t);
	sim_check(w, r->cached_tokens == expected.tokens, "%u tokens are reused, %u are known",
		  r->cached_tokens, expected.tokens);
	sim_check(w, r->miss == expected.miss, "the reason is %u, not %u (%u tokens)", r->miss,
		  expected.miss, r->cached_tokens);
	sim_check(w, r->tier == expected.tier, "the tier is %u, not %u (%u tokens)", r->tier,
		  expected.tier, r->cached_tokens);
}

/* t: of an open; NULL: a lookup. */
static void check_reuse(struct sim_op *o, const struct sim_text *t,
			const struct payload_open_result *r)
{
	uint32_t cached = r->cached_tokens;
	struct sim *w = o->client->sim;

	sim_check(w, (o->client->hybrid || cached % SIM_PAGE_TOKENS == 0) && cached < o->n,
		  "%u of %u tokens are reused: not whole pages, or nothing left to compute", cached,
		  o->n);
	sim_check(w, cached <= o->bound, "%u tokens are reused, at most %u were asked for", cached,
		  o->bound);
	if (t)
		sim_check(w, !text_is_inside_image(t, cached, o->n),
			  "reuse ends at %u, inside an image", cached);
	sim_check(w,
		  r->tier == (cached ? PAYLOAD_DEVICE : PAYLOAD_NO_TIER) ||
		      (cached && w->spill.on && r->tier == PAYLOAD_KV_RAM),
		  "%u tokens come from tier %u", cached, r->tier);
	sim_check(
	    w, r->miss != PAYLOAD_MISS_RESTORE || w->spill.n_failed || live_is_crowded(sim_pool(w)),
	    "nothing failed and pages could not be fetched");
	if (t) {
		w->spill.hits += r->tier == PAYLOAD_KV_RAM;
		w->spill.exact_hits += o->exact && o->expected.tier == PAYLOAD_KV_RAM;
		w->spill.cut += r->miss == PAYLOAD_MISS_RESTORE;
		w->spill.floors += r->miss == PAYLOAD_MISS_FLOOR;
	}
	if (o->exact)
		check_exact(o, t, r);
}

/* What an open reused is the youngest thing in the pool. */
static void check_touched(struct sim_op *o, const struct sim_view *v)
{
	const struct pool *p = sim_pool(o->client->sim);

	for (uint32_t i = 0; o->exact && !p->hybrid && i < v->n_pages; i++) {
		const struct page *page = &p->pages.page[v->table[i].index];
		const struct retain_run *run;

		sim_check(o->client->sim, page->state == PAGE_INDEXED, "a reused page is private");
		run = &p->retain.runs[p->prefix.nodes[page->next].run];
		sim_check(o->client->sim, run->tick == p->retain.tick && run->part == RETAIN_REUSED,
			  "page %u was reused by open %llu and is ranked as of %llu", i,
			  (unsigned long long)p->retain.tick, (unsigned long long)run->tick);
		sim_check(o->client->sim, run->interactive == v->interactive,
			  "page %u was reused by %s request and is ranked as another's", i,
			  v->interactive ? "an interactive" : "an agent's");
		sim_check(o->client->sim, o->client->sim->now_ns - run->touched_ns < SLACK_NS,
			  "page %u was reused just now and is ranked as of before", i);
	}
}

/* Nobody promises more pages than there are. */
static void check_promises(struct sim *w)
{
	uint64_t promised = 0, lanes = 0;

	for (uint32_t i = 0; i < w->n_clients; i++) {
		for (uint32_t k = 0; w->clients[i].live && k < SIM_SEQUENCES; k++) {
			const struct sim_view *v = &w->clients[i].views[k];

			if (v->used && v->open && !v->closing &&
			    !may_have_expired(w, v->used_ns, 20)) {
				promised += pages_for(v->max_tokens);
				lanes++;
			}
		}
	}
	sim_check(w, promised <= pool_promisable(sim_pool(w)),
		  "%llu pages are promised to open sequences, there are %llu",
		  (unsigned long long)promised, (unsigned long long)pool_promisable(sim_pool(w)));
	sim_check(w, !images_is_hybrid(w) || lanes <= w->config.pools[0].lanes,
		  "%llu sequences are open, there are %llu lanes", (unsigned long long)lanes,
		  (unsigned long long)w->config.pools[0].lanes);
}

static void took_open(struct sim_op *o, const struct completion *reply)
{
	const struct payload_open_result *r = op_answer(o);
	struct sim_client *c = o->client;
	struct sim *w = c->sim;
	struct sim_view *v = o->fork;

	sim_check(w,
		  r->cached_tokens == reply->value0 && r->n_pages == reply->value1 &&
		      r->n_pages == reply->count && r->n_pages == pages_for(r->cached_tokens),
		  "the answer to an open contradicts itself");
	check_reuse(o, &v->text, r);
	v->open = true;
	v->index = reply->index;
	v->generation = reply->generation;
	v->committed = r->cached_tokens;
	v->known = o->n;
	v->publishing = !v->no_reuse && w->config.pools[0].enable_prefix_caching;
	v->n_pages = r->n_pages;
	memcpy(v->table, r + 1, v->n_pages * sizeof(v->table[0]));
	text_chain(&v->text, c->name_space, o->n, v->chain);
	v->used_ns = o->sent_ns;
	w->opens++;
	w->cached += r->cached_tokens;
	if (c->hybrid)
		took_state(o, v);
	/* The answer may have lain there. */
	if (!may_have_expired(w, o->sent_ns, 20) && live_is_known(w, v))
		check_view(c, v);
	check_touched(o, v);
	check_promises(w);
}

/* While the parent's step writes its partial page in place, a fork has one of its own; so it may
 * have else. */
static void took_own_page(struct sim_op *o, struct sim_view *v, bool in_place)
{
	const struct payload_handle *found = op_answer(o);
	struct sim *w = o->client->sim;
	struct payload_handle *last;
	bool same;

	if (v->committed % SIM_PAGE_TOKENS == 0 || v->n_pages == 0)
		return;
	last = &v->table[v->n_pages - 1];
	same = last->index == found[v->n_pages - 1].index;
	/* The daemon may have ended that step before. */
	sim_check(w, !in_place || !same || may_have_expired(w, o->view->step_ns, 2),
		  "a fork shares page %u that a step writes", last->index);
	*last = found[v->n_pages - 1];
}

static void took_fork(struct sim_op *o, const struct completion *reply)
{
	struct sim_client *c = o->client;
	struct sim *w = c->sim;
	struct sim_view *v = o->fork, *parent = o->view;
	uint32_t max_tokens = v->max_tokens;
	bool in_place = (parent->step || parent->stuck) && !parent->has_replaced &&
			parent->committed % SIM_PAGE_TOKENS;

	*v = *parent;
	v->max_tokens = max_tokens;
	v->ops = 0;
	undo_step(v);
	v->poisoned = false;
	v->index = reply->index;
	v->generation = reply->generation;
	v->drop_before = v->first_page * SIM_PAGE_TOKENS;
	if (v->known > v->committed)
		v->known = v->committed;
	sim_check(w, reply->value0 == v->committed && reply->count == v->n_pages,
		  "a fork of %u tokens has %llu, and %u pages", v->committed,
		  (unsigned long long)reply->value0, reply->count);
	took_own_page(o, v, in_place);
	if (w->spill.on)
		memcpy(v->table, op_answer(o), v->n_pages * sizeof(v->table[0]));
	compare_table(w, v->table, op_answer(o), v->n_pages);
	v->used_ns = o->sent_ns;
	/* The answer may have lain there. */
	if (!may_have_expired(w, o->sent_ns, 20) && live_is_known(w, v))
		check_view(c, v);
	check_promises(w);
}

/* ---- steps ---- */

/* A page that somebody may still write to is nobody else's. */
static void check_unused(struct sim *w, const struct sim_view *mine, uint32_t page)
{
	for (uint32_t i = 0; w->mapped && i < w->n_clients; i++) {
		for (uint32_t k = 0; k < SIM_SEQUENCES; k++) {
			const struct sim_view *v = &w->clients[i].views[k];

			if (v == mine || !v->used || !v->step)
				continue;
			for (uint32_t at = v->step_first; at < v->n_pages; at++)
				sim_check(w, v->table[at].index != page,
					  "page %u is handed out while client %u may write to it",
					  page, i);
		}
	}
}

static void took_begin(struct sim_op *o, const struct completion *reply)
{
	struct sim_client *c = o->client;
	struct sim *w = c->sim;
	struct sim_view *v = o->view;
	uint32_t target = (uint32_t)o->e.arg0, fresh = pages_for(target) - pages_for(v->committed);
	uint32_t place = committed_pages(v);
	uint32_t skip = c->hybrid ? sizeof(struct payload_step_slots) : 0;
	bool copy = reply->count > fresh && v->committed % SIM_PAGE_TOKENS;

	if (v->step || v->stuck)
		undo_step(v);
	if (w->spill.on && reply->flags & COMPLETION_TABLE_CHANGED)
		live_read_again(w, v, place);
	sim_check(w, reply->count == fresh + copy && reply->value0 == place - copy,
		  "a step from %u to %u has %u new pages at %llu", v->committed, target,
		  reply->count, (unsigned long long)reply->value0);
	v->has_replaced = copy;
	if (copy)
		v->replaced = v->table[--place];
	v->step_first = place;
	v->start = v->committed;
	v->target = target;
	v->window = o->first;
	take_handles(o, skip, place, reply->count);
	v->n_pages = place + reply->count;
	v->step = true;
	v->stuck = v->poisoned = false;
	v->step_index = reply->index;
	v->step_generation = reply->generation;
	v->step_ns = o->sent_ns;
	for (uint32_t i = place; i < v->n_pages; i++) {
		check_unused(w, v, v->table[i].index);
		if ((i > place || !copy) && (w->mapped || !may_have_expired(w, o->sent_ns, 2)))
			memory_check_zero(w, v->table[i].index);
	}
	if (c->hybrid)
		took_slots(o);
	text_branch_from(w, &v->text, v->known > v->committed ? v->known : v->committed);
	text_chain(&v->text, c->name_space, target, v->chain);
}

static void drop_window(struct sim_op *o, const struct completion *reply)
{
	struct sim_view *v = o->view;
	uint32_t to, n;

	if (v->drop_before < v->window)
		v->drop_before = v->window < v->committed ? v->window : v->committed;
	to = v->drop_before / SIM_PAGE_TOKENS;
	n = to > v->first_page ? to - v->first_page : 0;
	sim_check(o->client->sim, (n > 0) == !!(reply->flags & COMPLETION_TABLE_CHANGED),
		  "%u pages leave at the front and the answer does not fit", n);
	v->n_pages -= n;
	memmove(v->table, v->table + n, v->n_pages * sizeof(v->table[0]));
	v->first_page += n;
}

static void took_commit(struct sim_op *o, const struct completion *reply)
{
	struct sim_view *v = o->view;
	struct sim *w = o->client->sim;

	sim_check(w, reply->value0 == v->start + o->n, "%llu tokens are committed, not %u",
		  (unsigned long long)reply->value0, v->start + o->n);
	if (o->n == 0) {
		undo_step(v);
		return;
	}
	v->committed = v->start + o->n;
	v->has_replaced = false;
	v->n_pages = committed_pages(v);
	if (!o->first)
		v->publishing = false;
	else if (v->known < v->committed)
		v->known = v->committed;
	drop_window(o, reply);
	model_published(w, v, o->exact, o->bound);
}

static void took_read(struct sim_op *o)
{
	const uint64_t *rows = op_answer(o);
	struct sim_view *v = o->view;

	for (uint32_t i = 0; i < o->n; i++) {
		uint32_t side = o->layer == 1 ? 0 : o->side; /* layer 1 reads V from K */
		uint64_t stamp = row_stamp(v->chain[o->first + i], o->layer, side);

		sim_check(o->client->sim, rows[i] == stamp,
			  "position %u reads %016llx, not %016llx", o->first + i,
			  (unsigned long long)rows[i], (unsigned long long)stamp);
	}
}

/* ---- the rest ---- */

static void took_truncate(struct sim_op *o, const struct completion *reply)
{
	struct sim_view *v = o->view;
	uint32_t tokens = (uint32_t)o->e.arg0;

	sim_check(o->client->sim, reply->value0 == tokens, "%llu tokens are kept, not %u",
		  (unsigned long long)reply->value0, tokens);
	if (tokens != v->committed) {
		undo_step(v);
		v->committed = tokens;
		v->n_pages = committed_pages(v);
		if (v->publishing || v->known > tokens)
			v->known = tokens;
	}
	/* It has come back for that, perhaps, even if there was nothing to forget. */
	if (o->client->sim->spill.on && reply->flags & COMPLETION_TABLE_CHANGED)
		live_read_again(o->client->sim, v, v->n_pages);
}

static bool has_replaced_again(const struct sim_op *o)
{
	const struct payload_handle *found = op_answer(o);
	const struct sim_view *v = o->view;

	return v->has_replaced && found[committed_pages(v) - 1].index == v->replaced.index;
}

static void took_table(struct sim_op *o, const struct completion *reply)
{
	struct sim_view *v = o->view;

	if (step_may_be_undone(o->client->sim, v) &&
	    (reply->count < v->n_pages || has_replaced_again(o))) {
		undo_step(v);
		v->stuck = true;
	}
	sim_check(o->client->sim,
		  reply->count == v->n_pages && reply->value0 == v->first_page * SIM_PAGE_TOKENS,
		  "a table of %u pages after %llu tokens; %u pages after %u", reply->count,
		  (unsigned long long)reply->value0, v->n_pages, v->first_page * SIM_PAGE_TOKENS);
	if (o->client->sim->spill.on)
		memcpy(v->table, op_answer(o), v->n_pages * sizeof(v->table[0]));
	compare_table(o->client->sim, v->table, op_answer(o), v->n_pages);
}

static void took_batch(struct sim_op *o, const struct completion *reply)
{
	const struct completion *items = op_answer(o);

	for (uint32_t i = 0; i < o->n_items; i++) {
		if (reply->status && reply->status != WIRE_ECANCELLED) {
			if (o->items[i]->fork)
				o->items[i]->fork->used = false;
			op_forget(o->items[i]);
			continue;
		}
		sim_check(o->client->sim, items[i].submission == i, "item %u answers as %llu", i,
			  (unsigned long long)items[i].submission);
		answer_take(o->items[i], &items[i]);
	}
}

static void succeeded(struct sim_op *o, const struct completion *reply)
{
	const struct payload_open_result *r = op_answer(o);

	switch (o->e.opcode) {
	case WIRE_OP_POOL_ATTACH:
		took_attach(o, reply);
		break;
	case WIRE_OP_OPEN:
		took_open(o, reply);
		break;
	case WIRE_OP_LOOKUP:
		check_reuse(o, NULL, r);
		break;
	case WIRE_OP_FORK:
		took_fork(o, reply);
		break;
	case WIRE_OP_TRUNCATE:
		took_truncate(o, reply);
		break;
	case WIRE_OP_STEP_BEGIN:
		took_begin(o, reply);
		break;
	case WIRE_OP_STEP_COMMIT:
		took_commit(o, reply);
		break;
	case WIRE_OP_STEP_ABORT:
		undo_step(o->view);
		break;
	case WIRE_OP_KV_READ:
		took_read(o);
		break;
	case WIRE_OP_TABLE:
		took_table(o, reply);
		break;
	case WIRE_OP_CLOSE:
		o->view->used = false;
		break;
	case WIRE_OP_CHECKPOINT:
		took_checkpoint(o, reply);
		break;
	case WIRE_OP_IMAGE_READ:
		took_image(o);
		break;
	case WIRE_OP_ADMIN:
		drops_answered(o, true);
		break;
	default:
		break;
	}
}

/* It names a step, and has not done what later ones take for done. */
static bool poisons(const struct sim_op *o)
{
	return o->e.opcode == WIRE_OP_KV_WRITE || o->e.opcode == WIRE_OP_IMAGE_WRITE ||
	       (o->e.opcode == WIRE_OP_IMAGE_READ && names_step(o));
}

static void failed(struct sim_op *o, int status)
{
	if (o->e.opcode == WIRE_OP_POOL_ATTACH)
		attach_failed(o, status);
	if (o->e.opcode == WIRE_OP_ADMIN)
		drops_answered(o, false);
	if (o->fork)
		o->fork->used = false;
	if (poisons(o))
		o->view->poisoned = true;
	if (o->e.opcode == WIRE_OP_STEP_COMMIT)
		o->view->stuck = true;
	if (o->view && (status == WIRE_EGONE || status == WIRE_ESTALE || status == WIRE_ELOST))
		o->view->open = false;
	if (o->e.opcode == WIRE_OP_CLOSE)
		o->view->used = false;
}

static const char *text_of(const struct sim_op *o, const struct completion *reply)
{
	struct control *control = (struct control *)(void *)o->client->memory->control;

	return control_texts(control, SIM_SUBMISSIONS, SIM_COMPLETIONS)[reply->text - 1].text;
}

void answer_take(struct sim_op *o, const struct completion *reply)
{
	struct sim *w = o->client->sim;
	int status = reply->status;

	sim_trace(w, "client %u #%llu %s %x.%u: %d, %llu %llu", o->client->number,
		  (unsigned long long)o->submission, wire_opcode_name(o->e.opcode), o->e.index,
		  o->e.generation, status, (unsigned long long)reply->value0,
		  (unsigned long long)reply->value1);
	if (reply->text)
		sim_trace(w, "  %s", text_of(o, reply));
	sim_check(w, reply->opcode == o->e.opcode || (o->submission == 0 && reply->status),
		  "an answer to another operation: %u, not %u", reply->opcode, o->e.opcode);
	sim_check(w, status <= 0 && status > -32 && (allowed(o) & 1u << -status),
		  "client %u #%llu %s: status %d is not one of those that it may have (%x)",
		  o->client->number, (unsigned long long)o->submission,
		  wire_opcode_name(o->e.opcode), status, allowed(o));
	o->exact = o->exact && o->done_before == w->done;
	sim_check(w, status || !o->overtook, "client %u #%llu overtook somebody who ranks above it",
		  o->client->number, (unsigned long long)o->submission);
	if (o->view && status == 0 && o->e.opcode != WIRE_OP_STEP_ABORT)
		o->view->used_ns = o->sent_ns;
	if (o->e.opcode == WIRE_OP_BATCH)
		took_batch(o, reply);
	else if (status == 0)
		succeeded(o, reply);
	else
		failed(o, status);
	op_forget(o);
}
