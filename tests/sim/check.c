/* SPDX-License-Identifier: Apache-2.0 */
/* check: what holds after every event, at rest, and at the end, whatever has happened. */
#include "daemon/front/request.h"
#include "tests/sim/live.h"
#include "tests/sim/sim.h"

/* ---- sums ---- */

static uint64_t request_heap(const struct request *r)
{
	uint64_t bytes = r->in_charged;

	if (r->kind == &kind_open || r->kind == &kind_lookup)
		bytes += r->u.prompt.charged;
	if (r->kind == &kind_batch && r->u.batch_of.item)
		bytes += request_heap(r->u.batch_of.item);
	return bytes;
}

static void check_session(struct sim *w, struct session *s, uint64_t *heap, uint32_t *sequences,
			  uint32_t *steps)
{
	uint64_t bytes = 0;
	uint32_t n = 0, requests = 0;

	list_for_each(link, following, &s->sequences)
	{
		struct sequence *q = list_entry(link, struct sequence, in_session);

		bytes += q->charged;
		n++;
		*steps += q->step.generation != 0;
	}
	list_for_each(link, following, &s->requests)
	{
		bytes += request_heap(list_entry(link, struct request, in_session));
		requests++;
	}
	sim_check(w, bytes == s->heap.used, "a session is charged %llu bytes and holds %llu",
		  (unsigned long long)s->heap.used, (unsigned long long)bytes);
	sim_check(w, n == s->n_sequences, "a session has %u sequences and counts %u", n,
		  s->n_sequences);
	sim_check(w, requests == s->in_flight, "a session has %u requests and counts %u", requests,
		  s->in_flight);
	sim_check(w, s->state != SESSION_LIVE || s->taken == s->given + s->in_flight,
		  "of %llu requests %llu are answered and %u in flight",
		  (unsigned long long)s->taken, (unsigned long long)s->given, s->in_flight);
	*heap += bytes;
	*sequences += n;
}

static void check_sessions(struct sim *w)
{
	struct list *all[] = {&w->core.sessions, &w->core.dying, &w->core.ended};
	uint32_t sequences = 0, steps = 0, live = 0;
	uint64_t heap = 0;

	for (int i = 0; i < 3; i++) {
		list_for_each(link, following, all[i])
		{
			live += i == 0;
			check_session(w, list_entry(link, struct session, in_sessions), &heap,
				      &sequences, &steps);
		}
	}
	list_for_each(link, following, &w->core.closing)
	{
		struct sequence *q = list_entry(link, struct sequence, in_session);

		sequences += q->handle.generation != 0;
		steps += q->step.generation != 0;
	}
	sim_check(w, live == w->core.n_sessions, "the number of sessions is wrong");
	sim_check(w, heap == w->core.heap.used, "the daemon's heap is charged %llu, held are %llu",
		  (unsigned long long)w->core.heap.used, (unsigned long long)heap);
	sim_check(w, sequences == w->core.sequences.used, "%u sequences have %u handles", sequences,
		  w->core.sequences.used);
	sim_check(w, steps == w->core.steps.used, "%u steps have %u handles", steps,
		  w->core.steps.used);
}

static uint64_t jobs_pins(const struct list *jobs)
{
	uint64_t pins = 0;

	list_for_each(link, following, jobs)
	{
		const struct device_job *j =
		    (const struct device_job *)(const void *)list_entry(link, struct job, link);

		if (j->op == DEVICE_COPY)
			pins += 2ull * j->n;
		else if (j->op == DEVICE_WRITE || j->op == DEVICE_READ)
			pins += j->n;
	}
	return pins;
}

static void check_pool(struct sim *w, const struct pool *p)
{
	const char *wrong = pool_check(p, true);
	uint64_t pins = 0, quarantined = w->core.pool[0]->quarantined_of_dead;

	sim_check(w, !wrong, "%s", wrong);
	sim_check(w, p->ceilings + p->surplus <= pool_promisable(p),
		  "%llu pages are promised, there are %llu",
		  (unsigned long long)(p->ceilings + p->surplus),
		  (unsigned long long)pool_promisable(p));
	for (uint32_t i = 0; i < p->pages.capacity; i++)
		pins += p->pages.page[i].pins;
	sim_check(w, pins == jobs_pins(&w->copies.submitted) + jobs_pins(&w->copies.finished),
		  "%llu pins are held and no job holds them", (unsigned long long)pins);
	list_for_each(link, following, &p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		for (uint32_t i = 0; i < s->n_pages - s->away; i++)
			quarantined += p->pages.page[s->table[i]].state == PAGE_QUARANTINED;
	}
	sim_check(w, quarantined >= p->pages.count[PAGE_QUARANTINED],
		  "%llu pages are in quarantine for somebody, %u in all",
		  (unsigned long long)quarantined, p->pages.count[PAGE_QUARANTINED]);
}

/* ---- what clients see ---- */

static void check_pages(struct sim *w, const struct sim_view *v)
{
	const struct pages *pages = &sim_pool(w)->pages;

	for (uint32_t i = 0; i < v->n_pages; i++)
		sim_check(w, pages_is_current(pages, v->table[i].index, v->table[i].generation),
			  "page %u of the table of %x.%u, %u.%u, is no longer what it was", i,
			  v->index, v->generation, v->table[i].index, v->table[i].generation);
	for (uint32_t at = v->first_page * SIM_PAGE_TOKENS; at < v->committed; at++)
		memory_check_row(w, v->table[at / SIM_PAGE_TOKENS - v->first_page].index,
				 at % SIM_PAGE_TOKENS, v->chain[at], "committed");
}

void check_view(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;

	if (c->hybrid)
		images_check_view(c, v);
	check_pages(w, v);
}

/* Its table is known: nothing is in flight, and the daemon has not ended anything of it. */
static bool is_settled(struct sim *w, const struct sim_view *v)
{
	bool young = w->now_ns - v->used_ns < 19 * NS_PER_S;
	bool step_young = w->now_ns - v->step_ns < NS_PER_S;

	return v->used && v->open && !v->ops && !v->closing && young && live_is_known(w, v) &&
	       (w->mapped || step_young || (!v->step && !v->stuck));
}

static void check_some_views(struct sim *w)
{
	for (uint32_t i = 0; i < w->n_clients; i++) {
		struct sim_client *c = &w->clients[i];
		struct sim_view *v = &c->views[below(w, SIM_SEQUENCES)];

		if (c->live && is_settled(w, v))
			check_view(c, v);
	}
}

void check_world(struct sim *w)
{
	struct pool *p = sim_pool(w);

	check_sessions(w);
	if (!p)
		return;
	check_pool(w, p);
	pools_check_quotas(w);
	spill_check(w);
	if (p->hybrid)
		states_check(w);
	check_some_views(w);
	live_check(w);
}

/* ---- who is admitted ---- */

static struct request *request_of(const struct sim_op *o)
{
	list_for_each(link, following, &o->client->session->requests)
	{
		struct request *r = list_entry(link, struct request, in_session);

		if (r->reply.submission == o->submission)
			return r;
	}
	return NULL;
}

static bool is_admission(const struct sim_op *o)
{
	return o->used && o->submission &&
	       (o->e.opcode == WIRE_OP_OPEN || o->e.opcode == WIRE_OP_FORK);
}

static bool outranks(const struct sim_op *a, const struct sim_op *b)
{
	if (a->fork->interactive != b->fork->interactive)
		return a->fork->interactive;
	/* Without a number it came after all that were seen to wait. */
	return b->serial == 0 || a->serial < b->serial;
}

/* Who waits for its own namespace keeps nobody of another one waiting. */
static bool is_in_the_way(const struct sim_op *waiting, const struct sim_op *o)
{
	return waiting->where == &sim_core_pool(o->client->sim)->admission ||
	       waiting->client->name_space == o->client->name_space;
}

/* It has been let in: did somebody who ranks above wait before, and waits still? */
static void check_let_in(struct sim *w, struct sim_op *o)
{
	o->admitted = true;
	for (uint32_t i = 0; i < w->n_clients; i++) {
		struct sim_client *c = &w->clients[i];

		for (uint32_t k = 0; c->live && k < SIM_OPS; k++) {
			struct sim_op *other = &c->ops[k];
			struct request *r;

			if (other == o || !is_admission(other) || !other->waits)
				continue;
			r = request_of(other);
			if (r && !list_is_empty(&r->in_wait) && outranks(other, o) &&
			    other->where == r->waits_in && is_in_the_way(other, o))
				o->overtook = true;
		}
	}
}

static void look_at(struct sim *w, struct sim_op *o)
{
	struct request *r = request_of(o);

	if (o->admitted || o->submission > o->client->session->taken)
		return;
	if (!r || (r->u.prompt.seq && r->u.prompt.seq->admitted))
		check_let_in(w, o);
	if (r)
		o->serial = r->serial;
}

static bool mark_waiting(struct sim_op *o)
{
	struct request *r = request_of(o);

	o->waits =
	    r && r->u.prompt.seq && !r->u.prompt.seq->admitted && !list_is_empty(&r->in_wait);
	o->where = o->waits ? r->waits_in : NULL;
	return o->waits;
}

static bool anybody_waits(struct sim *w)
{
	const struct core_pool *p = sim_core_pool(w);

	return !list_is_empty(&p->admission) || !list_is_empty(&p->over_quota[0]) ||
	       !list_is_empty(&p->over_quota[1]);
}

void check_admissions(struct sim *w)
{
	bool somebody = false;

	if (!w->somebody_waits && !anybody_waits(w))
		return;
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < w->n_clients; i++) {
			struct sim_client *c = &w->clients[i];

			for (uint32_t k = 0; c->live && k < SIM_OPS; k++) {
				if (!is_admission(&c->ops[k]))
					continue;
				if (pass == 0)
					look_at(w, &c->ops[k]);
				else
					somebody |= mark_waiting(&c->ops[k]);
			}
		}
	}
	w->somebody_waits = somebody;
}

/* ---- at rest ---- */

static bool may_wait(struct sim *w, const struct sim_op *o)
{
	const struct pool *p = sim_pool(w);

	if (o->view && o->view->ops > 1)
		return true; /* behind another one of its sequence */
	if (is_admission(o))
		return live_open_may_wait(w, request_of(o));
	if (o->view && live_may_wait(w, o->view))
		return true; /* for those that rank above it */
	if (!spill_is_calm(w) &&
	    (o->view || o->e.opcode == WIRE_OP_POOL_ATTACH || o->e.opcode == WIRE_OP_ADMIN))
		return true; /* for pages that leave or come, or for the pool's end */
	return o->e.opcode == WIRE_OP_STEP_BEGIN && p->pages.count[PAGE_QUARANTINED];
}

static const struct seq *waiting_seq(const struct list *link)
{
	return list_entry(link, struct request, in_wait)->u.prompt.seq;
}

void check_rest(struct sim *w)
{
	struct core_pool *p = sim_core_pool(w);
	const struct list *first = list_first(&p->admission);

	for (uint32_t i = 0; i < w->n_clients; i++) {
		struct sim_client *c = &w->clients[i];

		sim_check(w, !c->live || !c->asleep || c->woken || ring_is_empty(&c->completions),
			  "client %u sleeps on an answer", i);
		for (uint32_t k = 0; c->live && k < SIM_OPS; k++) {
			const struct sim_op *o = &c->ops[k];

			sim_check(w, !o->used || !o->submission || may_wait(w, o),
				  "client %u #%llu %s is never answered", i,
				  (unsigned long long)o->submission, wire_opcode_name(o->e.opcode));
		}
	}
	if (images_is_hybrid(w))
		states_check_rest(w);
	spill_check_rest(w);
	if (w->core.draining || p->state != CORE_POOL_READY)
		return;
	for (uint16_t ns = 0; ns < w->config.n_namespaces; ns++) {
		const struct list *own = list_first(&p->over_quota[ns]);
		const struct seq *s = own ? waiting_seq(own) : NULL;

		sim_check(w,
			  !s || !pool_quota_allows(&p->pool, ns, (uint64_t)s->ceiling + s->surplus),
			  "the first of namespace %u that waits for its quota could go on", ns);
	}
	if (first) {
		const struct seq *s = waiting_seq(first);

		sim_check(w, pool_may_admit(&p->pool, (uint64_t)s->ceiling + s->surplus),
			  "the first that waits for room could be admitted");
	}
}

/* ---- the end ---- */

void check_empty(struct sim *w)
{
	struct pool *p = sim_pool(w);
	uint32_t all = UINT32_MAX;

	sim_check(w, core_is_idle(&w->core), "the core is not idle");
	sim_check(w, list_is_empty(&w->core.ended) && list_is_empty(&w->core.quarantines),
		  "an ended session is still there");
	sim_check(w, w->core.heap.used == 0, "%llu bytes are still charged",
		  (unsigned long long)w->core.heap.used);
	sim_check(w, w->core.sequences.used == 0 && w->core.steps.used == 0, "handles are left");
	if (!p)
		return;
	if (p->hybrid)
		states_check_empty(w);
	sim_check(w,
		  p->sequences == 0 && p->ceilings == 0 && p->surplus + p->unpaid == 0 &&
		      p->live == 0 && p->open_steps == 0,
		  "something of a sequence is left in the pool");
	sim_check(w, pages_free(&p->pages) == p->limits.pages - pool_retained(p),
		  "pages are lost: %u free, %llu retained", pages_free(&p->pages),
		  (unsigned long long)pool_retained(p));
	for (uint32_t i = 0; i < p->prefix.fresh; i++)
		sim_check(w, p->prefix.nodes[i].kind == NODE_FREE || !p->prefix.nodes[i].users,
			  "a node is still used");
	pool_drop_retained(p, RETAIN_NAMESPACES, &all);
	w->core_sleeps = false;
	sim_rest(w); /* what two states had is copied for the second one, perhaps */
	sim_check(w, p->indexed == 0 && p->prefix.used == 0 && p->prefix.roots == 0,
		  "%llu pages and %u nodes stay when all is given up",
		  (unsigned long long)p->indexed, p->prefix.used);
	sim_check(w, !pool_check(p, true), "%s", pool_check(p, true));
	spill_check_empty(w);
}
