/* SPDX-License-Identifier: Apache-2.0 */
/* step: the transactions of a sequence; see seq.h. Core thread; nothing here blocks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/park.h"
#include "daemon/state/seq_internal.h"

/* Is there a partial page that must not be written in place? */
static bool needs_copy(const struct seq *s)
{
	const struct page *page;
	uint32_t index = seq_page_index(s, s->committed);

	if (s->committed % s->pool->limits.page_tokens == 0)
		return false;
	page = &s->pool->pages.page[seq_page(s, index)];
	return page->state != PAGE_PRIVATE || page->references != 1;
}

int step_wants(const struct seq *s, uint32_t target, uint32_t window_start, uint32_t *n)
{
	if (s->step.state == STEP_ENDED)
		return POOL_STEP;
	if (s->step.state != STEP_NONE)
		return POOL_BUSY;
	if (target <= s->committed || target > s->max_tokens || window_start > target)
		return POOL_RANGE;
	*n =
	    pool_pages_for(s->pool, target) - pool_pages_for(s->pool, s->committed) + needs_copy(s);
	return 0;
}

/* The published page that it reads as its partial one becomes its own, if nobody else needs it
 * there. */
static int own_tail(struct seq *s)
{
	uint32_t page;
	int r = pool_take_over(s->pool, s->tail_node, s->name_space, &page);

	if (r)
		return r;
	must(page == seq_page(s, seq_page_index(s, s->committed)));
	s->tail_node = NODE_NONE;
	return POOL_MORE; /* what does it want now? */
}

enum way { /* how a step goes on in a partial page that is not its sequence's alone */
	   GO_ON_IN_COPY = 0,
	   GO_ON_IN_PLACE, /* nobody will read the rows that it writes */
	   GO_ON_NOT_NOW,
};

/* Does its ceiling count the page beside the copy? */
static bool fits_with_copy(const struct seq *s, uint32_t room)
{
	return room + 1 <= s->ceiling || s->pool->hybrid;
}

static enum way find_way_in_tail(struct seq *s, bool fits, int *r)
{
	if (fits || s->pool->prefix.nodes[s->tail_node].users > 1 || seq_take_spare(s) ||
	    !protection(shared_pages_are_paid_for))
		return GO_ON_IN_COPY;
	*r = own_tail(s);
	return GO_ON_NOT_NOW;
}

/* Beside a copy the page is one more than it was promised, if no other sequence has it in its
 * table, but for steps that keep it until they know whether copies of their own stand. Then it is
 * promised one more, or does without the copy. *r: why not now. */
static enum way find_way(struct seq *s, uint32_t room, int *r)
{
	bool fits = fits_with_copy(s, room);
	const struct page *page;

	if (s->tail_node != NODE_NONE)
		return find_way_in_tail(s, fits, r);
	page = &s->pool->pages.page[seq_page(s, seq_page_index(s, s->committed))];
	*r = POOL_WAIT;
	if (page->lent == PAGE_LENT)
		return GO_ON_NOT_NOW;
	if (fits || page->references - page->lent > 1 || seq_take_spare(s) ||
	    !protection(shared_pages_are_paid_for))
		return GO_ON_IN_COPY;
	/* Rows may have been added that one of those steps comes back to: then it has one page more
	 * than it was promised, until its step ends. */
	return page->keep <= s->committed % s->pool->limits.page_tokens ? GO_ON_IN_PLACE
									: GO_ON_IN_COPY;
}

/* There are not so many pages, and nobody who ranks below has any: does it go without a copy, if
 * others need the page no more? */
static int need_no_copy(struct seq *s)
{
	if (!protection(shared_pages_are_paid_for))
		return POOL_WAIT;
	if (s->tail_node != NODE_NONE)
		return s->pool->hybrid ? POOL_WAIT : own_tail(s);
	park_unshare(s->pool, seq_page(s, seq_page_index(s, s->committed)), s->rank);
	return POOL_WAIT;
}

/* The clean pages that it takes are there: 0; MORE; WAIT. */
static int find_pages(struct seq *s, uint32_t n, bool copy)
{
	struct pool *p = s->pool;
	int r;

	if (!pool_keep_quota(p, s->name_space, n))
		return POOL_WAIT;
	if (p->pages.count[PAGE_CLEAN] >= n)
		return 0;
	/* Nobody is discarded for a copy that it can do without. */
	r = copy ? park_make_room(p, n, s->rank) : POOL_WAIT;
	if (r == POOL_WAIT && copy)
		r = need_no_copy(s);
	if (r == POOL_WAIT)
		r = park_insist(p, n, s->rank);
	return r == POOL_MORE ? r : POOL_WAIT;
}

/* The copy takes the place of the partial page, which comes back if the step does not stand. */
static void replace(struct seq *s)
{
	struct pool *p = s->pool;
	uint32_t page = s->table[--s->n_pages];

	s->step.replaced = page;
	s->step.lent = s->tail_node == NODE_NONE;
	if (s->step.lent)
		pages_lend(&p->pages, page, s->committed % p->limits.page_tokens);
	p->stats.copies_on_write++;
}

/* It is known whether the copy stands. */
static uint32_t end_replaced(struct seq *s)
{
	uint32_t page = s->step.replaced;

	if (s->step.lent)
		pages_unlend(&s->pool->pages, page);
	s->step.lent = false;
	s->step.replaced = PAGE_NONE;
	return page;
}

static void open_step(struct seq *s, uint32_t target, uint32_t window_start, bool copy)
{
	struct pool *p = s->pool;
	uint32_t room = pool_pages_for(p, target) - s->first_page;

	s->step = (struct step){.state = STEP_OPEN,
				.start = s->committed,
				.target = target,
				.window_start = window_start,
				.first = pool_pages_for(p, s->committed) - copy,
				.replaced = PAGE_NONE};
	if (copy)
		replace(s);
	if (copy && !fits_with_copy(s, room) && !s->spare)
		seq_count_unpaid(s);
	while (s->n_pages < room) {
		int r = pages_take(&p->pages, &s->table[s->n_pages]);

		must(r == 0);
		pages_assign(&p->pages, s->table[s->n_pages], s->name_space);
		s->n_pages++;
		s->step.n_fresh++;
	}
	p->open_steps++;
}

int step_begin(struct seq *s, uint32_t target, uint32_t window_start, uint32_t n)
{
	uint32_t room = pool_pages_for(s->pool, target) - s->first_page;
	bool copy = needs_copy(s) && protection(shared_pages_are_copied);
	enum way way = GO_ON_IN_COPY;
	int r;

	must(s->admitted && s->step.state == STEP_NONE);
	if (copy)
		way = find_way(s, room, &r);
	if (way == GO_ON_IN_PLACE) {
		copy = false;
		n--;
	}
	if (way != GO_ON_NOT_NOW)
		r = find_pages(s, n, copy);
	if (r == 0 && (failpoint(step_memory) || seq_reserve_table(s, room)))
		r = -ENOMEM;
	if (r) {
		seq_end_spare(s);
		return r;
	}
	open_step(s, target, window_start, copy);
	return 0;
}

/* Give back the fresh pages from table position `keep` on. */
static void give_fresh(struct seq *s, uint32_t keep)
{
	struct pages *pages = &s->pool->pages;

	while (s->n_pages > keep) {
		uint32_t page = s->table[--s->n_pages];

		if (pages->page[page].state == PAGE_QUARANTINED)
			pages_acquit(pages, page);
		else
			pages_drop(pages, page);
	}
}

/* The step is over and nothing of it stands. */
static void undo(struct seq *s)
{
	uint32_t replaced = end_replaced(s);

	give_fresh(s, s->step.first - s->first_page);
	if (replaced != PAGE_NONE)
		s->table[s->n_pages++] = replaced;
	seq_end_spare(s);
	if (s->step.state == STEP_OPEN)
		s->pool->open_steps--;
	s->step = (struct step){.replaced = PAGE_NONE};
}

static int check_receipt(const struct seq *s, const struct step_receipt *r)
{
	const struct pages *pages = &s->pool->pages;
	uint32_t end = s->step.start + r->tokens;
	uint32_t first = seq_page_index(s, s->step.start);
	uint32_t n = r->tokens ? pool_pages_for(s->pool, end) - first : 0;
	uint32_t known = s->ids_end > s->committed ? s->ids_end : s->committed;
	uint32_t unknown = end > known ? end - known : 0;

	if (s->step.state != STEP_OPEN || (s->step.poisoned && protection(poison_holds)))
		return POOL_STEP;
	if (r->tokens > s->step.target - s->step.start)
		return POOL_RANGE;
	if (r->n_ids && r->n_ids != unknown)
		return POOL_RANGE;
	if (r->n_images && !r->n_ids)
		return POOL_RANGE;
	if (r->n_pages != n)
		return POOL_STALE;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t index = (uint32_t)r->pages[i];

		if (index != seq_page(s, first + i) ||
		    !pages_is_current(pages, index, (uint32_t)(r->pages[i] >> 32)))
			return POOL_STALE;
	}
	for (uint32_t i = 0; i < r->n_images; i++) {
		uint32_t start = r->images[i].start;

		if (start < known || start >= end || (i && start <= r->images[i - 1].start))
			return POOL_RANGE;
	}
	return 0;
}

static int add_ids(struct seq *s, const struct step_receipt *r)
{
	uint32_t have = s->ids_end - s->ids_base;
	uint32_t need = have + r->n_ids;

	if (need > s->ids_room) {
		uint32_t room = need > 2 * have ? need : 2 * have;
		uint32_t *grown = realloc(s->ids, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		s->ids = grown;
		s->ids_room = room;
	}
	if (r->n_images) {
		struct key_image *grown =
		    realloc(s->images, (s->n_images + r->n_images) * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		s->images = grown;
		memcpy(s->images + s->n_images, r->images, r->n_images * sizeof(*grown));
		s->n_images += r->n_images;
	}
	memcpy(s->ids + have, r->ids, r->n_ids * sizeof(*s->ids));
	s->ids_end += r->n_ids;
	return 0;
}

int step_commit(struct seq *s, const struct step_receipt *r)
{
	struct pool *p = s->pool;
	int result = check_receipt(s, r);
	uint32_t end = s->step.start + r->tokens, replaced;

	if (result)
		return result;
	if (failpoint(commit_memory))
		return -ENOMEM;
	if (r->tokens == 0) {
		undo(s);
		p->stats.commits++;
		return 0;
	}
	/* Ids are kept only as long as they can still be published. */
	if (r->n_ids && s->publishing && s->ids_end >= s->step.start) {
		result = add_ids(s, r);
		if (result)
			return result;
	}
	replaced = end_replaced(s);
	if (replaced != PAGE_NONE) {
		if (s->tail_node != NODE_NONE) {
			seq_give_tail(s);
			pool_keep_quota(p, s->name_space, 0); /* it may be given up now */
		} else {
			pages_drop(&p->pages, replaced);
		}
	}
	seq_end_spare(s);
	give_fresh(s, pool_pages_for(p, end) - s->first_page);
	s->committed = end;
	if (p->hybrid)
		p->images.lane[s->lane].current ^= 1;
	if (s->drop_before < s->step.window_start)
		s->drop_before = s->step.window_start < end ? s->step.window_start : end;
	s->step = (struct step){.replaced = PAGE_NONE};
	must(p->open_steps > 0);
	p->open_steps--;
	p->stats.commits++;
	return 0;
}

void step_abort(struct seq *s)
{
	if (s->step.state == STEP_NONE)
		return;
	if (s->step.state == STEP_OPEN)
		s->pool->stats.aborts++;
	undo(s);
}

void step_end(struct seq *s, bool quarantine)
{
	if (s->step.state != STEP_OPEN)
		return;
	s->pool->stats.steps_ended++;
	if (!quarantine || !protection(ended_steps_are_quarantined)) {
		undo(s);
		return;
	}
	for (uint32_t i = s->step.first - s->first_page; i < s->n_pages; i++)
		pages_quarantine(&s->pool->pages, s->table[i]);
	s->step.state = STEP_ENDED;
	s->pool->open_steps--;
}

/* Does the ended step write to a committed partial page, too? */
static bool writes_in_place(const struct seq *s)
{
	return s->step.state == STEP_ENDED && s->step.replaced == PAGE_NONE &&
	       s->step.start % s->pool->limits.page_tokens;
}

uint32_t seq_move_quarantine(struct seq *s, uint32_t *room)
{
	uint32_t first = s->step.first - s->first_page - writes_in_place(s);
	uint32_t n = s->step.state == STEP_ENDED ? s->n_pages - first : 0;

	if (!room || n == 0)
		return n;
	memcpy(room, s->table + first, n * sizeof(*room));
	seq_lose_quarantine(s);
	return n;
}

void seq_lose_quarantine(struct seq *s)
{
	uint32_t replaced;

	if (s->step.state != STEP_ENDED)
		return;
	s->n_pages = s->step.first - s->first_page;
	if (writes_in_place(s)) {
		uint32_t page = s->table[--s->n_pages];

		/* Of a page that a fork holds too the reference stays: whoever writes next copies.
		 */
		if (s->pool->pages.page[page].references == 1)
			pages_quarantine(&s->pool->pages, page);
	}
	replaced = end_replaced(s);
	if (replaced != PAGE_NONE)
		s->table[s->n_pages++] = replaced;
	seq_end_spare(s);
	s->step = (struct step){.replaced = PAGE_NONE};
}

void seq_end_quarantine(struct pool *p, uint32_t page)
{
	if (p->pages.page[page].state == PAGE_QUARANTINED)
		pages_acquit(&p->pages, page);
	else
		pages_drop(&p->pages, page);
}
