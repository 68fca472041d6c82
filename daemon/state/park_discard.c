/* SPDX-License-Identifier: Apache-2.0 */
/*
 * park_discard: with overcommit, who is discarded when there is no room anywhere; see park.h. Core
 * thread; nothing here blocks.
 *
 * What one keeps alone goes with him; what several keep goes once all of them are discarded. Of
 * what those below keep among themselves that is chosen whose highest holder ranks lowest, and all
 * that keep it are discarded at once: none in vain, since somebody went on meanwhile.
 *
 * Whoever shares a page shares what is before it. So it is enough to look at the end of a table,
 * but for pages that stand beside published ones, or that windows have left to one alone.
 */
#include "daemon/base/testing.h"
#include "daemon/state/park_internal.h"

/* When what moves has moved there may be room. */
static bool is_full(const struct pool *p)
{
	if (p->leaving + p->arriving + p->parting + p->pages.count[PAGE_DRAINING])
		return false;
	/* One copy after another has failed: there is no below. */
	return p->pauses || !park_moves(p) || p->below->is_full(p->below->context);
}

/* One that has all it has, and is not in the order, is being made: nobody could be told. */
static bool can_be_discarded(const struct seq *s)
{
	const struct pool *p = s->pool;
	bool is_made = s->away > 0 || !list_is_empty(&s->in_rank);

	return s->admitted && is_made && !s->lost && !s->busy && s->step.state == STEP_NONE &&
	       s->leaving == NODE_NONE && !(p->hybrid && lane_is_busy(&p->images, s->lane));
}

/* ---- what they keep ---- */

static uint32_t n_things(const struct seq *s)
{
	bool all = s->surplus || s->pool->fronts_differ;

	return 2 + (all || s->n_pages == 0 ? s->n_pages : 1);
}

static struct park_thing thing_of(const struct seq *s, uint32_t i)
{
	uint32_t node = i ? s->tail_node : s->node;

	if (i >= 2)
		return park_thing_at(s, s->n_pages - 1 - (i - 2));
	if (node == NODE_NONE || s->pool->prefix.nodes[node].kind == NODE_ROOT)
		return (struct park_thing){PARK_NOTHING, NODE_NONE};
	return (struct park_thing){PARK_NODE, node};
}

static void forget(struct pool *p, struct park_thing t)
{
	if (t.kind == PARK_NODE)
		p->prefix.nodes[t.at].holders = 0;
	else if (t.kind == PARK_PAGE)
		p->pages.page[t.at].holders = 0;
}

static void count(struct pool *p, struct park_thing t)
{
	if (t.kind == PARK_NODE)
		p->prefix.nodes[t.at].holders++;
	else if (t.kind == PARK_PAGE)
		p->pages.page[t.at].holders += p->pages.page[t.at].holders < PARK_HOLDERS_MOST;
}

/* Sequences, and whatever else: steps that go on in a copy, matches. */
static uint32_t holders_of(const struct pool *p, struct park_thing t)
{
	const struct node *n = &p->prefix.nodes[t.at];

	if (t.kind == PARK_NODE)
		return n->users + n->parked;
	return t.kind == PARK_PAGE ? p->pages.page[t.at].references : 1;
}

/* Nobody but those that were counted keeps it. */
static bool would_go(const struct pool *p, struct park_thing t)
{
	if (!protection(discards_make_room))
		return t.kind != PARK_NOTHING;
	if (t.kind == PARK_NODE)
		return p->prefix.nodes[t.at].holders == holders_of(p, t);
	if (t.kind == PARK_PAGE)
		return p->pages.page[t.at].holders == holders_of(p, t) &&
		       p->pages.page[t.at].pins == 0;
	return t.kind == PARK_OWN;
}

/* The first of what it keeps that would go; by `alone` alone. */
static struct park_thing what_would_go(const struct seq *s, bool alone)
{
	for (uint32_t i = 0; i < n_things(s); i++) {
		struct park_thing t = thing_of(s, i);

		if (would_go(s->pool, t) && (!alone || holders_of(s->pool, t) == 1))
			return t;
	}
	return (struct park_thing){PARK_NOTHING, PAGE_NONE};
}

static bool keeps(const struct seq *s, struct park_thing what)
{
	for (uint32_t i = 0; i < n_things(s); i++) {
		struct park_thing t = thing_of(s, i);

		if (t.kind == what.kind && t.at == what.at)
			return true;
	}
	return false;
}

/* ---- who goes ---- */

struct bound { /* who may go: those below, and this one */
	struct pool_rank rank;
	const struct seq *too;
};

static struct seq *next_of(struct pool *p, struct list **at, struct bound b)
{
	for (*at = (*at)->next; *at != &p->members; *at = (*at)->next) {
		struct seq *s = list_entry(*at, struct seq, in_pool);

		if ((s == b.too || park_ranks_below(s, b.rank)) && can_be_discarded(s))
			return s;
	}
	return NULL;
}

/* How many of them keep each thing. */
static void count_all(struct pool *p, struct bound b)
{
	for (uint32_t add = 0; add < 2; add++) {
		struct list *at = &p->members;
		struct seq *s;

		while ((s = next_of(p, &at, b))) {
			for (uint32_t i = 0; i < n_things(s); i++)
				(add ? count : forget)(p, thing_of(s, i));
		}
	}
}

/* With all of these something would go. `alone`: the lowest that keeps such a thing alone; else the
 * highest that keeps one. NULL: nothing would. */
static struct seq *find(struct pool *p, struct bound b, bool alone)
{
	struct list *at = &p->members;
	struct seq *found = NULL, *s;

	count_all(p, b);
	while ((s = next_of(p, &at, b))) {
		if (found && park_ranks_below(s, found->rank) != alone)
			continue;
		if (what_would_go(s, alone).kind != PARK_NOTHING)
			found = s;
	}
	return found;
}

#ifdef KVHOST_TESTING
void (*park_discard_hook)(const struct seq *s, struct pool_rank rank);

static void tell(const struct seq *s, struct pool_rank rank)
{
	if (park_discard_hook)
		park_discard_hook(s, rank);
}
#else
static void tell(const struct seq *s, struct pool_rank rank)
{
	(void)s;
	(void)rank;
}
#endif

/* Something goes for which no other choice has a lower highest holder: all that keep it. False:
 * nothing would go. */
static bool discard_lowest(struct pool *p, struct pool_rank rank)
{
	struct bound b = {.rank = rank};
	struct seq *highest = find(p, b, true), *s = highest;
	struct list *at = &p->members;
	struct park_thing what;
	bool alone = highest;

	/* Do those below do without it? */
	do {
		if (s)
			b.rank = s->rank;
		s = protection(shared_pages_are_discarded) ? find(p, b, false) : NULL;
		if (s) {
			highest = s;
			alone = false;
		}
	} while (s);
	if (!highest)
		return false;
	tell(highest, rank);
	if (alone) {
		park_discard(highest);
		return true;
	}
	b = (struct bound){.rank = highest->rank, .too = highest};
	count_all(p, b);
	what = what_would_go(highest, false);
	while ((s = next_of(p, &at, b))) {
		if (keeps(s, what))
			park_discard(s);
	}
	return true;
}

int park_insist(struct pool *p, uint32_t n, struct pool_rank rank)
{
	int r = park_make_room(p, n, rank);

	if (r != POOL_WAIT || (!p->limits.overcommit && protection(overcommit_is_asked_for)) ||
	    !is_full(p))
		return r;
	return discard_lowest(p, rank) ? POOL_MORE : POOL_WAIT;
}
