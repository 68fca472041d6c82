/* SPDX-License-Identifier: Apache-2.0 */
/*
 * park_room: whose pages go when somebody needs some; see park.h. Core thread; nothing here blocks.
 *
 * From the lowest rank on, first what each has for itself. Then what several share: a published
 * page, since who lets go of it loses nothing while others use it; of a private page each would
 * need a copy of its own, so it goes only if all that have it let go of it together, or if
 * somebody has pages of his own before it.
 */
#include "daemon/state/park_internal.h"

#define PARK_TURN 256                     /* pages of a turn that are let go of without a copy */
#define LET_GO    (PARK_HOLDERS_MOST + 1) /* in place of the count of a page's holders */

/* There are, or will be, so many. */
static bool is_enough(const struct pool *p, uint32_t n)
{
	return pages_free(&p->pages) + p->leaving + p->parting >= n;
}

/* All that rank below, the lowest first: class, then place in it. NULL: no more. */
struct below {
	struct pool *pool;
	struct pool_rank rank;
	int class;
	struct list *at;
};

static struct below those_below(struct pool *p, struct pool_rank rank)
{
	return (struct below){.pool = p, .rank = rank, .at = p->ranked[0].previous};
}

static struct seq *next_below(struct below *b)
{
	for (; b->class < 2; b->class ++) {
		struct list *head = &b->pool->ranked[b->class];

		if (b->at != head) {
			struct seq *s = list_entry(b->at, struct seq, in_rank);

			b->at = b->at->previous;
			if (park_ranks_below(s, b->rank))
				return s;
		}
		b->at = b->pool->ranked[1].previous;
	}
	return NULL;
}

/* Everything that those below have for themselves. */
static void part_below(struct pool *p, uint32_t n, struct pool_rank rank, uint32_t *budget)
{
	struct below b = those_below(p, rank);
	struct seq *s;

	while (!is_enough(p, n) && *budget && (s = next_below(&b))) {
		while (!is_enough(p, n) && *budget && park_may_part(s)) {
			if (s->lost) {
				park_part_lost(s);
				--*budget;
			} else if (!park_moves(p) || park_part(s, false)) {
				break;
			}
		}
		park_leave_rank(s);
	}
}

/* The private page at the end of what is here, if others have it too; or NULL. */
static struct page *shared_end(const struct seq *s)
{
	uint32_t n = park_here(s);
	struct page *page = n ? &s->pool->pages.page[s->table[n - 1]] : NULL;

	return page && page->state == PAGE_PRIVATE && page->references > 1 ? page : NULL;
}

/* How many of those that could let go of it have each of these pages. */
static void count_holders(struct pool *p, struct pool_rank rank)
{
	for (uint32_t add = 0; add < 2; add++) {
		struct below b = those_below(p, rank);
		struct page *page;
		struct seq *s;

		while ((s = next_below(&b))) {
			page = park_may_part(s) && !s->lost ? shared_end(s) : NULL;
			if (page)
				page->holders =
				    add ? page->holders + (page->holders < PARK_HOLDERS_MOST) : 0;
		}
	}
}

/* A window may have left it the front of what others have no more. */
static bool has_own_before(const struct seq *s)
{
	const struct pages *pages = &s->pool->pages;

	for (uint32_t i = 0; s->pool->fronts_differ && i + 1 < park_here(s); i++) {
		const struct page *page = &pages->page[s->table[i]];

		if (page->state == PAGE_PRIVATE && page->references == 1)
			return true;
	}
	return false;
}

/* Each of those below lets go of one page that others use as well: false, there is none. Whoever
 * has the same private page lets go of it in the same turn. */
static bool unshare_below(struct pool *p, uint32_t n, struct pool_rank rank, uint32_t *budget)
{
	struct below b = those_below(p, rank);
	uint32_t to_follow = 0;
	bool some = false;
	struct seq *s;

	count_holders(p, rank);
	while ((to_follow || (!is_enough(p, n) && *budget)) && (s = next_below(&b))) {
		struct page *page = park_may_part(s) && !s->lost ? shared_end(s) : NULL;
		bool follows = page && page->holders == LET_GO;

		if (!follows && (is_enough(p, n) || !*budget || !park_may_part(s) || s->lost))
			continue;
		if (page && !follows && page->holders != page->references && !has_own_before(s))
			continue;
		to_follow -= follows;
		if (park_part(s, true))
			continue;
		if (page && page->holders == page->references) {
			to_follow += page->references - 1;
			page->holders = LET_GO;
		}
		some = true;
		*budget -= *budget > 0;
		park_leave_rank(s);
	}
	return some;
}

void park_unshare(struct pool *p, uint32_t page, struct pool_rank rank)
{
	struct below b = those_below(p, rank);
	struct seq *s;

	if (!park_moves(p))
		return;
	while ((s = next_below(&b))) {
		if (!park_may_part(s) || s->lost || shared_end(s) != &p->pages.page[page])
			continue;
		(void)park_part(s, true);
		park_leave_rank(s);
	}
}

int park_make_room(struct pool *p, uint32_t n, struct pool_rank rank)
{
	uint32_t budget = PARK_TURN;
	bool some = true;

	if (pool_make_room(p, n))
		return 0;
	/* What its sequence has let go of, and who had it beside that has gone. */
	if (p->hybrid && p->aside != NODE_NONE)
		pool_end_aside(p);
	while (some) {
		part_below(p, n, rank, &budget);
		if (pool_make_room(p, n))
			return 0;
		if (budget == 0)
			return POOL_MORE;
		some = park_moves(p) && unshare_below(p, n, rank, &budget);
	}
	return POOL_WAIT;
}
