/* SPDX-License-Identifier: Apache-2.0 */
/*
 * park_discard: with overcommit, who is discarded when there is no room anywhere; see park.h. Core
 * thread; nothing here blocks.
 *
 * What one keeps alone goes with him; what several keep goes once all of them are discarded. Of
 * what those below keep among themselves that is chosen whose highest holder ranks lowest, and all
 * that keep it are discarded at once: none in vain, since somebody went on meanwhile. From the
 * lowest on they are counted one after another, until all that keep something are: one look at
 * each, however many groups there are.
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

/* ---- in the order of rank ---- */

static bool is_above(const struct list *a, const struct list *b)
{
	const struct seq *x = list_entry(a, struct seq, in_pool);

	return !park_ranks_below(x, list_entry(b, struct seq, in_pool)->rank);
}

/* The first ones, as far as each is above the next. */
static void take_run(struct list *from, struct list *to)
{
	struct list *it = list_first(from), *next;

	for (list_init(to); it; it = next) {
		next = it->next;
		list_remove(it);
		list_append(to, it);
		if (next == from || !is_above(it, next))
			return;
	}
}

/* The highest first. It stays so while sequences are opened and closed: then there is little to do.
 */
static void sort_members(struct pool *p)
{
	struct list done, left, right;
	uint32_t runs;

	do {
		list_init(&done);
		for (runs = 0; !list_is_empty(&p->members); runs++) {
			take_run(&p->members, &left);
			take_run(&p->members, &right);
			while (!list_is_empty(&left) && !list_is_empty(&right)) {
				struct list *from =
				    is_above(left.next, right.next) ? &left : &right;
				struct list *it = from->next;

				list_remove(it);
				list_append(&done, it);
			}
			list_append_all(&done, &left);
			list_append_all(&done, &right);
		}
		list_append_all(&p->members, &done);
	} while (runs > 1);
}

/* ---- who goes ---- */

#ifdef KVHOST_TESTING
uint64_t park_discard_looks;
#define looks() (park_discard_looks++)
#else
#define looks() ((void)0)
#endif

/* Of those below that may go the next higher one; at: &p->members at first. */
static struct seq *next_higher(struct pool *p, struct list **at, struct pool_rank rank)
{
	for (*at = (*at)->previous; *at != &p->members; *at = (*at)->previous) {
		struct seq *s = list_entry(*at, struct seq, in_pool);

		looks();
		if (park_ranks_below(s, rank) && can_be_discarded(s))
			return s;
	}
	return NULL;
}

static void forget_all(struct pool *p, struct pool_rank rank)
{
	struct list *at = &p->members;
	struct seq *s;

	while ((s = next_higher(p, &at, rank))) {
		for (uint32_t i = 0; i < n_things(s); i++)
			forget(p, thing_of(s, i));
	}
}

static void count_things(struct seq *s, enum wanted w)
{
	for (uint32_t i = 0; i < n_things(s); i++) {
		struct park_thing t = thing_of(s, i);

		if (is_wanted(t, w))
			count(s->pool, t);
	}
}

/* Those that may go by rank, from the lowest on, until something would go with them: *what, and
 * the last one. NULL: nothing would. */
static struct seq *find(struct pool *p, struct pool_rank rank, enum wanted w, bool alone,
			bool shared, struct park_thing *what)
{
	struct list *at = &p->members;
	struct seq *s;

	forget_all(p, rank);
	while ((s = next_higher(p, &at, rank))) {
		count_things(s, w);
		what->kind = PARK_NOTHING;
		if (alone)
			*what = what_would_go(s, WANT_ALONE);
		if (what->kind == PARK_NOTHING && shared)
			*what = what_would_go(s, w);
		if (what->kind != PARK_NOTHING)
			return s;
	}
	return NULL;
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
static bool is_of_use(struct pool *p, struct pool_rank rank)
{
	struct park_thing what;

	return find(p, rank, WANT_HERE, false, true, &what) || (!p->pauses && pool_retained(p));
}

/* False: nobody can be. */
static bool discard_lowest(struct pool *p, struct pool_rank rank)
{
	struct list *at = &p->members;
	struct park_thing what;
	struct seq *highest, *s;

	sort_members(p);
	if (!is_of_use(p, rank) && protection(discards_make_room))
		return false;
	highest = find(p, rank, WANT_ALL, true, protection(shared_pages_are_discarded), &what);
	if (!highest)
		return false;
	tell(highest, rank);
	if (what_would_go(highest, WANT_ALONE).kind != PARK_NOTHING) {
		park_discard(highest);
		return true;
	}
	while ((s = next_higher(p, &at, rank))) {
		if (keeps(s, what))
			park_discard(s);
		if (s == highest)
			break;
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
