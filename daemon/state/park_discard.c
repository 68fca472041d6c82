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

#define THINGS_BESIDE 3u

static bool is_looked_through(const struct seq *s)
{
	return s->surplus || s->pool->fronts_differ;
}

static uint32_t n_things(const struct seq *s)
{
	return THINGS_BESIDE + (is_looked_through(s) || s->n_pages == 0 ? s->n_pages : 1);
}

static struct park_thing thing_of(const struct seq *s, uint32_t i)
{
	const struct park_thing nothing = {PARK_NOTHING, PAGE_NONE};
	uint32_t node = i ? s->tail_node : s->node;

	if (i >= THINGS_BESIDE)
		return park_thing_at(s, s->n_pages - 1 - (i - THINGS_BESIDE));
	/* The end of what is here, too. */
	if (i == 2)
		return s->away && park_here(s) && !is_looked_through(s)
			   ? park_thing_at(s, park_here(s) - 1)
			   : nothing;
	if (node == NODE_NONE || s->pool->prefix.nodes[node].kind == NODE_ROOT)
		return nothing;
	return (struct park_thing){PARK_IN_USE, node};
}

static bool is_node(struct park_thing t)
{
	return t.kind == PARK_NODE || t.kind == PARK_IN_USE;
}

static void forget(struct pool *p, struct park_thing t)
{
	if (is_node(t))
		p->prefix.nodes[t.at].holders = 0;
	else if (t.kind == PARK_PAGE)
		p->pages.page[t.at].holders = 0;
}

static void count(struct pool *p, struct park_thing t)
{
	if (is_node(t))
		p->prefix.nodes[t.at].holders++;
	else if (t.kind == PARK_PAGE)
		p->pages.page[t.at].holders += p->pages.page[t.at].holders < PARK_HOLDERS_MOST;
}

enum wanted { /* what they keep, that would go with them */
	      WANT_ALL = 0,
	      WANT_ALONE, /* what one has for itself */
	      WANT_HERE,  /* pages that would go below, if there were places, or for nowhere */
};

static bool is_wanted(struct park_thing t, enum wanted w)
{
	return w != WANT_HERE || t.kind == PARK_PAGE || t.kind == PARK_IN_USE;
}

/* Sequences, and whatever else: steps that go on in a copy, matches. */
static uint32_t holders_of(const struct pool *p, struct park_thing t, enum wanted w)
{
	if (is_node(t)) {
		const struct node *n = &p->prefix.nodes[t.at];

		return n->users + (w == WANT_HERE ? 0 : n->parked);
	}
	return t.kind == PARK_PAGE ? p->pages.page[t.at].references : 1;
}

/* Nobody but those that were counted keeps it. */
static bool would_go(const struct pool *p, struct park_thing t, enum wanted w)
{
	if (t.kind == PARK_NOTHING || !is_wanted(t, w) ||
	    (w == WANT_ALONE && holders_of(p, t, w) > 1))
		return false;
	if (!protection(discards_make_room))
		return true;
	if (is_node(t))
		return p->prefix.nodes[t.at].holders == holders_of(p, t, w);
	if (t.kind == PARK_PAGE)
		return p->pages.page[t.at].holders == holders_of(p, t, w) &&
		       p->pages.page[t.at].pins == 0;
	return !p->pauses; /* copies fail: nothing goes there in its place */
}

/* The first of what it keeps that would go. */
static struct park_thing what_would_go(const struct seq *s, enum wanted w)
{
	for (uint32_t i = 0; i < n_things(s); i++) {
		struct park_thing t = thing_of(s, i);

		if (would_go(s->pool, t, w))
			return t;
	}
	return (struct park_thing){PARK_NOTHING, PAGE_NONE};
}

static bool keeps(const struct seq *s, struct park_thing what)
{
	for (uint32_t i = 0; i < n_things(s); i++) {
		struct park_thing t = thing_of(s, i);

		if (t.at == what.at && is_node(t) == is_node(what) &&
		    (is_node(t) || t.kind == what.kind))
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
static void count_all(struct pool *p, struct bound b, enum wanted w)
{
	for (uint32_t add = 0; add < 2; add++) {
		struct list *at = &p->members;
		struct seq *s;

		while ((s = next_of(p, &at, b))) {
			for (uint32_t i = 0; i < n_things(s); i++) {
				struct park_thing t = thing_of(s, i);

				if (is_wanted(t, w))
					(add ? count : forget)(p, t);
			}
		}
	}
}

/* With all of these something would go: the highest that keeps it, or, of those that keep something
 * alone, the lowest. NULL: nothing would. */
static struct seq *find(struct pool *p, struct bound b, enum wanted w)
{
	struct list *at = &p->members;
	struct seq *found = NULL, *s;

	count_all(p, b, w);
	while ((s = next_of(p, &at, b))) {
		if (found && park_ranks_below(s, found->rank) != (w == WANT_ALONE))
			continue;
		if (what_would_go(s, w).kind != PARK_NOTHING)
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

/* A place below is for pages that could go there: those of somebody below, or what is kept and
 * could not leave for want of one. */
static bool is_of_use(struct pool *p, struct bound b)
{
	return find(p, b, WANT_HERE) || (!p->pauses && pool_retained(p));
}

/* Of all with whom something goes the one that is the lowest, or the highest of those that keep it
 * together: *alone, or not. */
static struct seq *choose(struct pool *p, struct pool_rank rank, bool *alone)
{
	struct bound b = {.rank = rank};
	struct seq *chosen, *s;

	if (!is_of_use(p, b) && protection(discards_make_room))
		return NULL;
	chosen = find(p, b, WANT_ALONE);
	*alone = chosen;
	/* Do those below do without it? */
	do {
		if (chosen)
			b.rank = chosen->rank;
		s = protection(shared_pages_are_discarded) ? find(p, b, WANT_ALL) : NULL;
		if (s) {
			chosen = s;
			*alone = false;
		}
	} while (s);
	return chosen;
}

/* False: nobody can be. */
static bool discard_lowest(struct pool *p, struct pool_rank rank)
{
	struct list *at = &p->members;
	struct park_thing what;
	struct bound b;
	bool alone;
	struct seq *highest = choose(p, rank, &alone), *s;

	if (!highest)
		return false;
	tell(highest, rank);
	if (alone) {
		park_discard(highest);
		return true;
	}
	b = (struct bound){.rank = highest->rank, .too = highest};
	count_all(p, b, WANT_ALL);
	what = what_would_go(highest, WANT_ALL);
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
