/* SPDX-License-Identifier: Apache-2.0 */
/* park: see park.h. Core thread; nothing here blocks. */
#include "daemon/state/park.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/park_internal.h"
#include "daemon/state/seq_internal.h"

enum parked_state {                  /* of the page of a table entry that is away */
		    PARKED_NODE = 0, /* it is the node's */
		    PARKED_DOWN,     /* private: its copy is under way */
		    PARKED_BELOW,
		    PARKED_UP,
		    PARKED_HERE, /* it has come, or never left: the copy failed */
		    PARKED_LOST,
};

#define RETURN_PAGES 64 /* that room is made for at once */

struct seq_parked {
	uint32_t node;   /* that is parked for this entry; NODE_NONE */
	uint32_t beside; /* the node that has come, or comes, back with this entry; NODE_NONE */
	uint32_t page;   /* private: DOWN, UP, HERE */
	uint32_t place;  /* private: DOWN, BELOW, UP, LOST; else COPY_NONE */
	uint32_t ticket; /* of a copy */
	uint8_t state;
	bool is_tail; /* the node is not published under, but read as the partial page */
};

uint64_t park_bytes(const struct seq *s)
{
	return s->parked ? (uint64_t)s->n_pages * sizeof(*s->parked) : 0;
}

/* ---- away ---- */

/* The node that this entry keeps in use: the deepest one published under, or the partial page's. */
static uint32_t node_of(const struct seq *s, uint32_t at, bool *is_tail)
{
	uint32_t index = s->first_page + at;

	*is_tail = false;
	if (s->tail_node != NODE_NONE && index == seq_page_index(s, s->committed)) {
		*is_tail = true;
		return s->tail_node;
	}
	return index + 1 == s->published ? s->node : NODE_NONE;
}

static void take_back(struct seq *s, struct seq_parked *k)
{
	struct pool *p = s->pool;
	uint32_t above = s->node, budget = UINT32_MAX;

	pool_hold(p, k->node);
	pool_unpark(p, k->node);
	if (k->is_tail) {
		s->tail_node = k->node;
	} else {
		s->node = k->node;
		s->published++;
		pool_release(p, &above, &budget); /* its child is in use now: one step */
	}
	k->node = NODE_NONE;
}

/* The sequence uses what is above alone from now on. */
static void let_go(struct seq *s, struct seq_parked *k, uint32_t node, bool is_tail)
{
	struct pool *p = s->pool;
	uint32_t budget = 1, gone = node;

	pool_park(p, node);
	*k = (struct seq_parked){
	    .node = node, .beside = NODE_NONE, .is_tail = is_tail, .place = COPY_NONE};
	if (is_tail) {
		s->tail_node = NODE_NONE;
	} else {
		s->node = p->prefix.nodes[node].parent;
		s->published--;
		pool_hold(p, s->node);
	}
	pool_release(p, &gone, &budget); /* what is above is in use: one step, perhaps two */
	budget = 1;
	pool_release(p, &gone, &budget);
}

/* `shared`: even if others use it; who lets go of it last sends it down. */
static int part_with_node(struct seq *s, uint32_t at, bool shared)
{
	struct pool *p = s->pool;
	struct seq_parked *k = &s->parked[at];
	bool is_tail;
	uint32_t node = node_of(s, at, &is_tail);
	const struct node *n = &p->prefix.nodes[node];
	int r;

	let_go(s, k, node, is_tail);
	/* The prefix budget has sent it down already, perhaps. */
	if (n->moves & NODE_LEAVING || n->copies[TIER_DEVICE] == COPY_NONE)
		return 0;
	if (n->users || !prefix_may_leave(&p->prefix, node, TIER_DEVICE))
		r = shared ? 0 : POOL_BUSY;
	else
		r = pool_send_down(p, node);
	if (r)
		take_back(s, k);
	return r;
}

static void send_private(struct seq *s, struct seq_parked *k, uint32_t at)
{
	struct pool *p = s->pool;

	k->state = PARKED_DOWN;
	p->parting++;
	p->in_ram_private++;
	k->ticket = p->below->move_private(p->below->context, false, s, at, k->page, k->place);
	if (!protection(private_pages_wait_for_their_copy)) {
		pages_drop(&p->pages, k->page);
		p->parting--;
	}
}

static int take_place(const struct seq *s, uint32_t *place)
{
	const struct pool *p = s->pool;

	if (p->pauses && protection(failing_copies_pause))
		return POOL_WAIT;
	return p->below->take_private(p->below->context, s->name_space, place);
}

/* Of a page that others have too this sequence gets a copy of its own. */
static int part_with_page(struct seq *s, uint32_t at, uint32_t page)
{
	struct seq_parked *k = &s->parked[at];
	uint32_t place, node;
	bool is_tail;
	int r = take_place(s, &place);

	if (r)
		return r;
	*k = (struct seq_parked){.node = NODE_NONE, .beside = NODE_NONE};
	/* Another's equal page is published: this one stands beside it. */
	node = node_of(s, at, &is_tail);
	if (node != NODE_NONE)
		let_go(s, k, node, is_tail);
	k->page = page;
	k->place = place;
	send_private(s, k, at);
	return 0;
}

/* A copy down has failed, its page is still there: once more. */
static int part_again(struct seq *s)
{
	uint32_t at = s->asked;
	int r;

	while (s->parked[at].state != PARKED_HERE)
		at++;
	r = take_place(s, &s->parked[at].place);
	if (r)
		return r;
	s->stranded--;
	send_private(s, &s->parked[at], at);
	return 0;
}

/* Could the last page that is here go? One that others use as well: only if `shared`. */
static bool is_to_be_had(const struct seq *s, bool shared)
{
	const struct pool *p = s->pool;
	uint32_t at = park_here(s) - 1, node;
	const struct page *page = &p->pages.page[s->table[at]];
	bool is_tail;

	if (page->state == PAGE_PRIVATE)
		return page->pins == 0 && (page->references == 1 || shared);
	node = node_of(s, at, &is_tail);
	/* Only what is published under can be let go of. */
	return node != NODE_NONE && (p->prefix.nodes[node].users == 1 || shared);
}

int park_part(struct seq *s, bool shared)
{
	struct pool *p = s->pool;
	uint32_t at = park_here(s) - 1, page;
	int r;

	if (s->stranded)
		return part_again(s);
	if (!is_to_be_had(s, shared))
		return POOL_BUSY;
	if (!s->parked) {
		s->parked = calloc(s->n_pages, sizeof(*s->parked));
		s->asked = s->n_pages;
		if (!s->parked)
			return -ENOMEM;
	}
	/* From here on its table does not name it. */
	page = s->table[at];
	s->table[at] = PAGE_NONE;
	p->sends_parked = true;
	if (p->pages.page[page].state == PAGE_PRIVATE)
		r = part_with_page(s, at, page);
	else
		r = part_with_node(s, at, shared);
	p->sends_parked = false;
	if (r == 0) {
		s->away++;
		s->asked = at;
		p->stats.parked_pages++;
	} else {
		s->table[at] = page;
	}
	if (s->away == 0) {
		free(s->parked);
		s->parked = NULL;
	}
	return r;
}

/* The first page that is away has come: 0; WAIT; LOST. */
static int arrive(struct seq *s)
{
	struct pool *p = s->pool;
	uint32_t at = park_here(s);
	struct seq_parked *k = &s->parked[at];
	const struct node *n = k->beside == NODE_NONE ? NULL : &p->prefix.nodes[k->beside];

	if (n && n->moves & NODE_FILLING && !(n->moves & NODE_FAILED))
		return POOL_WAIT;
	if (n && !node_is_on_device(n))
		return POOL_LOST;
	if (k->state == PARKED_NODE)
		s->table[at] = n->copies[TIER_DEVICE];
	else if (k->state == PARKED_HERE)
		s->table[at] = k->page;
	else
		return k->state == PARKED_UP ? POOL_WAIT : POOL_LOST;
	s->away--;
	p->stats.returned_pages++;
	return 0;
}

/* What it still has is for nobody: whoever needs room takes it before all else. */
static void lose(struct seq *s)
{
	s->lost = true;
	s->pool->has_lost = true;
	list_remove(&s->in_rank);
	seq_set_rank(s, (struct pool_rank){.interactive = false, .serial = UINT64_MAX});
}

/* Take what has come: 0, all that was asked for; WAIT; LOST. */
static int take_arrived(struct seq *s)
{
	while (s->away && park_here(s) < s->asked) {
		int r = arrive(s);

		if (r == POOL_LOST && !s->lost) {
			lose(s);
			s->pool->stats.lost_sequences++;
		}
		if (r)
			return r;
	}
	if (s->away == 0 && s->parked) {
		free(s->parked);
		s->parked = NULL;
		s->table_version++;
	}
	return 0;
}

static void give_place(struct pool *p, uint32_t place)
{
	must(p->in_ram_private > 0);
	p->in_ram_private--;
	p->below->give(p->below->context, place);
}

/* The last page of the table goes, wherever it is. */
static void forget_last(struct seq *s)
{
	struct pool *p = s->pool;
	uint32_t at = --s->n_pages;
	const struct seq_parked *k;

	if (s->away == 0) {
		if (p->pages.page[s->table[at]].state == PAGE_PRIVATE)
			pages_drop(&p->pages, s->table[at]);
		return;
	}
	s->away--;
	k = &s->parked[at];
	/* While it is closed others may ask it for what could not be copied down. */
	s->stranded -= k->state == PARKED_HERE && at >= s->asked && !s->lost;
	if (k->node != NODE_NONE)
		pool_unpark(p, k->node);
	if (k->state == PARKED_DOWN || k->state == PARKED_UP)
		p->below->orphan(p->below->context, k->state == PARKED_UP, k->ticket);
	else if (k->state == PARKED_HERE)
		pages_drop(&p->pages, k->page);
	else if (k->place != COPY_NONE)
		give_place(p, k->place);
	if (s->away == 0) {
		free(s->parked);
		s->parked = NULL;
	}
}

/* Nobody needs any of it: it goes for nowhere. */
void park_part_lost(struct seq *s)
{
	uint32_t budget = 1;

	s->publishing = false;
	s->stranded = 0;
	if (s->n_pages) {
		forget_last(s);
		return;
	}
	if (s->leaving == NODE_NONE)
		pool_release(s->pool, &s->tail_node, &budget);
	if (s->leaving == NODE_NONE && s->tail_node == NODE_NONE) {
		s->leaving = s->node;
		s->node = NODE_NONE;
	}
	pool_release(s->pool, &s->leaving, &budget);
}

/* Who has nothing left is asked no more, so that nobody looks through all that are away. */
static bool has_some(const struct seq *s)
{
	if (s->lost)
		return s->n_pages || s->node != NODE_NONE || s->tail_node != NODE_NONE ||
		       s->leaving != NODE_NONE;
	return s->asked > 0 || s->stranded || !s->parked;
}

static void enter_rank(struct seq *s)
{
	if (list_is_empty(&s->in_rank))
		seq_set_rank(s, s->rank);
}

struct park_thing park_thing_at(const struct seq *s, uint32_t entry)
{
	const struct seq_parked *k = s->parked ? &s->parked[entry] : NULL;
	const struct park_thing nothing = {PARK_NOTHING, PAGE_NONE};
	uint32_t page;

	if (entry < park_here(s)) {
		page = s->table[entry];
		return s->pool->pages.page[page].state == PAGE_PRIVATE
			   ? (struct park_thing){PARK_PAGE, page}
			   : nothing;
	}
	if (k->state == PARKED_NODE)
		return k->node == NODE_NONE ? nothing : (struct park_thing){PARK_NODE, k->node};
	/* What could not be copied down others may have, too. */
	return k->state == PARKED_HERE ? (struct park_thing){PARK_PAGE, k->page}
				       : (struct park_thing){PARK_OWN, PAGE_NONE};
}

void park_discard(struct seq *s)
{
	lose(s);
	s->discarded = true;
	s->pool->stats.discarded_sequences++;
}

void park_leave_rank(struct seq *s)
{
	if (!has_some(s))
		list_remove(&s->in_rank);
}

bool park_may_part(struct seq *s)
{
	/* What has come back may go again. */
	int r = take_arrived(s);

	if (r == POOL_WAIT || !s->admitted)
		return false;
	if ((s->step.state != STEP_NONE || s->busy) && protection(steps_keep_their_pages))
		return false;
	if (s->lost)
		return has_some(s);
	return (park_here(s) > 0 || s->stranded) && s->leaving == NODE_NONE;
}

/* ---- back ---- */

static bool are_at_hand(const struct pool *p, uint32_t n)
{
	return p->pages.count[PAGE_DIRTY] + p->pages.count[PAGE_CLEAN] >= n;
}

/* So many pages to be filled: 0, they can be had now; FULL; MORE. */
static int find_pages(struct seq *s, struct pool_rank rank, uint32_t n)
{
	struct pool *p = s->pool;
	uint32_t left = s->n_pages - s->asked;
	int r;

	if (!pool_keep_quota(p, s->name_space, n))
		return POOL_FULL;
	if (are_at_hand(p, n))
		return 0;
	if (left > RETURN_PAGES)
		left = RETURN_PAGES;
	r = left > n ? park_make_room(p, left, rank) : POOL_WAIT;
	if (r == POOL_WAIT)
		r = park_insist(p, n, rank);
	if (r == POOL_MORE)
		return r;
	return are_at_hand(p, n) ? 0 : POOL_FULL;
}

static void fetch_private(struct seq *s, struct seq_parked *k, uint32_t at)
{
	struct pool *p = s->pool;

	if (pages_take_any(&p->pages, &k->page))
		cannot_happen("a page was free and is not");
	pages_assign(&p->pages, k->page, s->name_space);
	k->state = PARKED_UP;
	k->ticket = p->below->move_private(p->below->context, true, s, at, k->page, k->place);
}

static bool is_absent(const struct pool *p, uint32_t node)
{
	return node != NODE_NONE && p->prefix.nodes[node].copies[TIER_DEVICE] == COPY_NONE;
}

/* Who waits for a page waits for this one. */
static bool is_leaving(const struct pool *p, uint32_t node)
{
	return node != NODE_NONE && p->prefix.nodes[node].moves & NODE_LEAVING;
}

/* The node comes back even where it is only beside a private page: what is published under it
 * stands on it. What cannot be had is noticed in its turn. */
static int ask_for(struct seq *s, struct pool_rank rank, uint32_t at, bool is_behind)
{
	struct pool *p = s->pool;
	struct seq_parked *k = &s->parked[at];
	uint32_t node = k->node;
	bool absent = is_absent(p, node);
	uint32_t wanted = absent + (k->state == PARKED_BELOW);
	int r;

	if (k->state == PARKED_DOWN)
		return POOL_WAIT; /* it comes back the way it went */
	if ((wanted || is_leaving(p, node)) && is_behind)
		return POOL_FULL;
	r = wanted ? find_pages(s, rank, wanted) : 0;
	if (r)
		return r;
	if (absent != is_absent(p, node))
		return POOL_MORE; /* it was given up to keep the quota */
	if (node != NODE_NONE) {
		k->beside = node;
		take_back(s, k);
	}
	if (absent && node_is_in_ram(&p->prefix.nodes[node]))
		must(pool_fetch(p, node) != POOL_WAIT); /* there was a page */
	if (k->state == PARKED_BELOW)
		fetch_private(s, k, at);
	else if (k->state == PARKED_HERE)
		s->stranded--;
	return 0;
}

int park_return(struct seq *s, struct pool_rank rank, bool is_behind, uint32_t *budget)
{
	int asking = 0, r;

	if (s->lost)
		return POOL_LOST;
	while (s->away && s->asked < s->n_pages) {
		if (*budget == 0) {
			asking = POOL_MORE;
			break;
		}
		--*budget;
		asking = ask_for(s, rank, s->asked, is_behind);
		if (asking)
			break;
		s->asked++;
		enter_rank(s);
	}
	r = take_arrived(s);
	if (r)
		return r == POOL_WAIT && asking ? asking : r;
	return s->away ? asking : 0;
}

void park_moved(struct pool *p, struct seq *s, bool up, uint32_t index, uint32_t page,
		uint32_t place, int result)
{
	struct seq_parked *k = s ? &s->parked[index] : NULL;

	if (!up)
		pool_note_copy(p, result);
	if (!up && protection(private_pages_wait_for_their_copy))
		p->parting--;
	if (!k) {
		/* It was closed meanwhile. */
		pages_drop(&p->pages, page);
		give_place(p, place);
		return;
	}
	must(k->page == page && k->place == place);
	if (up && result) {
		pages_drop(&p->pages, page);
		k->state = PARKED_LOST;
		p->stats.restores_failed++;
	} else if (up || result) {
		/* It has come, or has never gone. */
		k->state = PARKED_HERE;
		k->place = COPY_NONE;
		give_place(p, place);
		p->stats.restores += up;
		p->stats.spills_failed += !up;
		s->stranded += !up;
		enter_rank(s);
	} else {
		k->state = PARKED_BELOW;
		if (protection(private_pages_wait_for_their_copy))
			pages_drop(&p->pages, page);
		p->stats.spills++;
	}
}

int park_forget(struct seq *s, uint32_t *budget)
{
	/* From the end: where it stands between two turns is what is left of the table. */
	for (; s->away; --*budget) {
		if (*budget == 0)
			return POOL_MORE;
		forget_last(s);
	}
	return 0;
}
