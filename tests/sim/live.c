/* SPDX-License-Identifier: Apache-2.0 */
/* live: see live.h. */
#include "tests/sim/live.h"

#include <stddef.h>

#include "daemon/front/sequence.h"

struct seq *live_seq_of(struct sim *w, const struct sim_view *v)
{
	const struct sequence *q =
	    slots_find(&w->core.sequences, (struct slot_handle){v->index, v->generation});

	return q ? q->seq : NULL;
}

void live_read_again(struct sim *w, struct sim_view *v, uint32_t n)
{
	const struct seq *s = live_seq_of(w, v);
	const struct pages *pages = &sim_pool(w)->pages;

	for (uint32_t i = 0; s && !seq_is_away(s) && i < n && i < s->n_pages; i++) {
		bool replaced = s->step.replaced != PAGE_NONE && i == s->step.first - s->first_page;
		uint32_t page = replaced ? s->step.replaced : s->table[i];

		v->table[i].index = page;
		v->table[i].generation = pages->page[page].generation;
	}
}

bool live_is_known(struct sim *w, const struct sim_view *v)
{
	const struct seq *s = live_seq_of(w, v);

	return !s || (!seq_is_away(s) && s->told_version == s->table_version);
}

static bool ranks_below(const struct seq *s, struct pool_rank rank)
{
	if (s->rank.interactive != rank.interactive)
		return rank.interactive;
	return s->rank.serial > rank.serial;
}

/* Nobody but it has its last page, and nothing is done with it: a copy that its request has left
 * may still run. */
static bool could_give(const struct pool *p, const struct seq *s)
{
	uint32_t n = s->n_pages - s->away;
	const struct page *last;

	if (n == 0 || s->step.state != STEP_NONE || s->busy || s->lost ||
	    list_is_empty(&s->in_rank))
		return false;
	last = &p->pages.page[s->table[n - 1]];
	if (last->state == PAGE_PRIVATE)
		return last->references == 1 && last->pins == 0;
	return p->prefix.nodes[last->next].users == 1 &&
	       p->prefix.nodes[last->next].children_in[TIER_DEVICE] == 0;
}

bool live_is_crowded(const struct pool *p)
{
	return pool_promised(p) > p->limits.pages;
}

static bool nobody_could_give(const struct pool *p, struct pool_rank rank, const struct seq *but)
{
	/* Copies fail, one after another; or nothing moves. */
	if (p->pauses || !p->limits.live_in_ram)
		return true;
	list_for_each(link, following, (struct list *)(uintptr_t)&p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		if (s != but && ranks_below(s, rank) && could_give(p, s))
			return false;
	}
	return true;
}

static bool could_be_discarded(const struct pool *p, const struct seq *s, struct pool_rank rank)
{
	return ranks_below(s, rank) && s->admitted && !s->lost && !s->busy &&
	       s->step.state == STEP_NONE && s->leaving == NODE_NONE &&
	       (s->away || !list_is_empty(&s->in_rank)) &&
	       !(p->hybrid && lane_is_busy(&p->images, s->lane));
}

static bool has_page(const struct seq *s, uint32_t page)
{
	for (uint32_t i = 0; i + s->away < s->n_pages; i++) {
		if (s->table[i] == page)
			return true;
	}
	return false;
}

/* That could be discarded and have this private page, or use this node. */
static uint32_t count_below(const struct pool *p, struct pool_rank rank, uint32_t page,
			    uint32_t node)
{
	uint32_t n = 0;

	list_for_each(link, following, (struct list *)(uintptr_t)&p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		if (could_be_discarded(p, s, rank))
			n += page != PAGE_NONE ? has_page(s, page)
					       : s->node == node || s->tail_node == node;
	}
	return n;
}

/* Would the last page of one be had if all went that could be discarded? */
static bool discards_would_do(const struct pool *p, struct pool_rank rank)
{
	list_for_each(link, following, (struct list *)(uintptr_t)&p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);
		const struct page *last;
		uint32_t at;

		if (!could_be_discarded(p, s, rank) || s->away || s->n_pages == 0)
			continue;
		at = s->table[s->n_pages - 1];
		last = &p->pages.page[at];
		if (last->state == PAGE_PRIVATE
			? last->pins == 0 && last->references == count_below(p, rank, at, NODE_NONE)
			: p->prefix.nodes[last->next].parked == 0 &&
			      p->prefix.nodes[last->next].users ==
				  count_below(p, rank, PAGE_NONE, last->next))
			return true;
	}
	return false;
}

/* Pages of it that are on the device, or come there; what a window has left behind is, as long as
 * it is used. */
static bool has_here(const struct pool *p, const struct seq *s)
{
	uint32_t here = s->n_pages - s->away;

	return here || s->stranded || (s->away && s->asked > here) ||
	       (s->first_page && s->node != NODE_NONE &&
		p->prefix.nodes[s->node].kind != NODE_ROOT);
}

/* Of those that could be discarded: have they pages here, or elsewhere? */
static bool have_pages(const struct pool *p, struct pool_rank rank, bool here)
{
	list_for_each(link, following, (struct list *)(uintptr_t)&p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		if (could_be_discarded(p, s, rank) && (here ? has_here(p, s) : s->away > 0))
			return true;
	}
	return false;
}

void live_discarded(const struct seq *s, struct pool_rank rank)
{
	const struct pool *p = s->pool;
	const struct core_pool *c =
	    (const void *)((const char *)p - offsetof(struct core_pool, pool));
	struct sim *w = (struct sim *)(void *)((char *)c->core - offsetof(struct sim, core));

	sim_check(w, p->limits.overcommit && could_be_discarded(p, s, rank),
		  "a sequence is discarded that ranks above, or something is done with it");
	sim_check(w, have_pages(p, rank, true) || (!p->pauses && pool_retained(p)),
		  "a sequence is discarded, and no page could go below in its place");
	/* What is before the end of a table may be one's own, too. */
	sim_check(w,
		  have_pages(p, rank, false) || p->fronts_differ || p->surplus ||
		      discards_would_do(p, rank),
		  "a sequence is discarded, and no page goes");
}

bool live_may_wait(struct sim *w, const struct sim_view *v)
{
	const struct pool *p = sim_pool(w);
	const struct seq *mine = live_seq_of(w, v);

	return w->spill.on && mine && live_is_crowded(p) && nobody_could_give(p, mine->rank, mine);
}

void live_check(struct sim *w)
{
	const struct core_pool *p = sim_core_pool(w);
	const struct pool *x = &p->pool;
	const uint32_t *count = x->pages.count;
	const struct list *first = list_first(&p->starving);
	const struct request *r = first ? list_entry(first, struct request, in_wait) : NULL;

	if (!w->live || !r || !list_is_empty(&r->in_ready) || p->state != CORE_POOL_READY)
		return;
	/* When what moves has moved, or what goes in turns has ended, it tries again. */
	if (!list_is_empty(&w->core.ready) || !list_is_empty(&w->core.closing))
		return;
	if (count[PAGE_DIRTY] + count[PAGE_ZEROING] + count[PAGE_DRAINING] ||
	    !ram_pool_is_quiet(&p->ram))
		return;
	sim_check(w, nobody_could_give(x, request_rank(r), r->sequence ? r->sequence->seq : NULL),
		  "%s waits for pages, and one that ranks below it has some",
		  wire_opcode_name(r->entry.opcode));
	sim_check(w, !x->limits.overcommit || !discards_would_do(x, request_rank(r)),
		  "%s waits for pages, and those that rank below it have some among them",
		  wire_opcode_name(r->entry.opcode));
}

bool live_open_may_wait(struct sim *w, const struct request *r)
{
	const struct core_pool *p = sim_core_pool(w);

	if (!r || !r->u.prompt.seq || !r->u.prompt.seq->admitted || !spill_is_calm(w))
		return true;
	/* An open that is behind another goes on with what it has. */
	if (r->waits_in != &p->starving || !live_is_crowded(&p->pool))
		return false;
	if (request_is_behind(&p->starving, r))
		return r->kind != &kind_open;
	return nobody_could_give(&p->pool, request_rank(r), NULL);
}
