/* SPDX-License-Identifier: Apache-2.0 */
/* seq: see seq.h. Core thread; nothing here blocks. */
#include "daemon/state/seq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/park.h"
#include "daemon/state/seq_internal.h"

int seq_new(struct pool *p, uint16_t name_space, uint32_t max_tokens, struct seq **out)
{
	struct seq *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	must(max_tokens > 0 && max_tokens <= p->limits.max_sequence_tokens);
	must(name_space < RETAIN_NAMESPACES);
	s->pool = p;
	s->name_space = name_space;
	s->max_tokens = max_tokens;
	s->ceiling = pool_ceiling_for(p, max_tokens);
	s->node = NODE_NONE;
	s->tail_node = NODE_NONE;
	s->leaving = NODE_NONE;
	s->lane = LANE_NONE;
	s->follows.image = IMAGE_NONE;
	s->run = RUN_NONE;
	s->step.replaced = PAGE_NONE;
	list_init(&s->in_rank);
	list_append(&p->members, &s->in_pool);
	p->sequences++;
	p->shares[name_space].sequences++;
	*out = s;
	return 0;
}

void seq_add_surplus(struct pool *p, uint16_t name_space, uint64_t n)
{
	p->surplus += n;
	p->shares[name_space].surplus += n;
}

bool seq_take_spare(struct seq *s)
{
	struct pool *p = s->pool;

	must(!s->spare);
	if ((uint64_t)s->ceiling + s->surplus + 1 > p->limits.pages || pool_may_admit(p, 1) ||
	    !pool_quota_allows(p, s->name_space, 1))
		return false;
	s->spare = true;
	s->surplus++;
	seq_add_surplus(p, s->name_space, 1);
	return true;
}

void seq_count_unpaid(struct seq *s)
{
	must(!s->spare && !s->unpaid);
	s->unpaid = true;
	s->pool->unpaid++;
	s->pool->shares[s->name_space].unpaid++;
}

void seq_end_spare(struct seq *s)
{
	if (s->unpaid) {
		s->unpaid = false;
		s->pool->unpaid--;
		s->pool->shares[s->name_space].unpaid--;
	}
	if (!s->spare)
		return;
	s->spare = false;
	s->surplus--;
	seq_add_surplus(s->pool, s->name_space, UINT64_MAX);
}

int seq_admit(struct seq *s)
{
	int r;

	must(!s->admitted);
	if (!pool_quota_allows(s->pool, s->name_space, (uint64_t)s->ceiling + s->surplus))
		return POOL_QUOTA;
	r = pool_may_admit(s->pool, (uint64_t)s->ceiling + s->surplus);
	if (r)
		return r;
	s->admitted = true;
	if (s->pool->hybrid) {
		s->lane = lane_take(&s->pool->images);
		must(s->lane != LANE_NONE);
	}
	s->pool->ceilings += s->ceiling;
	s->pool->shares[s->name_space].ceilings += s->ceiling;
	seq_add_surplus(s->pool, s->name_space, s->surplus);
	return 0;
}

void seq_set_rank(struct seq *s, struct pool_rank rank)
{
	struct list *head = &s->pool->ranked[rank.interactive];
	struct list *at = head;

	must(list_is_empty(&s->in_rank));
	s->rank = rank;
	while (at->previous != head &&
	       list_entry(at->previous, struct seq, in_rank)->rank.serial > rank.serial)
		at = at->previous;
	list_append(at, &s->in_rank);
}

int seq_reserve_table(struct seq *s, uint32_t n)
{
	uint32_t room = s->table_room ? s->table_room : 8;
	uint32_t *grown;

	if (n <= s->table_room)
		return 0;
	while (room < n)
		room *= 2;
	grown = realloc(s->table, room * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	s->table = grown;
	s->table_room = room;
	return 0;
}

/* Forget the ids and images of what is published, or of everything. */
static void forget_ids(struct seq *s)
{
	uint32_t gone = s->publishing ? s->published * s->pool->limits.page_tokens : s->ids_end;
	uint32_t images = 0;

	if (gone <= s->ids_base)
		return;
	while (images < s->n_images && s->images[images].start < gone) {
		s->image_end = (uint64_t)s->images[images].start + s->images[images].length;
		images++;
	}
	if (gone >= s->ids_end) {
		s->ids_base = gone > s->ids_end ? gone : s->ids_end;
		s->ids_end = s->ids_base;
		if (s->ids_room > 256) {
			free(s->ids);
			s->ids = NULL;
			s->ids_room = 0;
		}
	} else if ((gone - s->ids_base) * 2ull >= s->ids_room) {
		memmove(s->ids, s->ids + (gone - s->ids_base),
			(s->ids_end - gone) * sizeof(*s->ids));
		s->ids_base = gone;
	}
	if (images) {
		s->n_images -= images;
		memmove(s->images, s->images + images, s->n_images * sizeof(*s->images));
	}
}

int seq_take_match(struct seq *s, struct match *m, uint32_t *ids, struct key_image *images)
{
	const struct pool *p = s->pool;

	must(m->done && m->tick && s->node == NODE_NONE && s->n_pages == 0);
	s->node = m->held;
	m->held = NODE_NONE;
	s->published = m->walk.position;
	s->tail_node = m->partial;
	if (m->image != IMAGE_NONE)
		s->follows = image_name(&s->pool->images, m->image);
	s->turn = m->turn;
	s->interactive = m->wish->interactive;
	retain_pass_on(&s->pool->retain, &m->run, &s->run);
	if (seq_reserve_table(s, m->walk.position + 1))
		return -ENOMEM;
	for (uint32_t i = 0; i < m->walk.position; i++)
		s->table[i] = p->prefix.nodes[m->path[i]].copies[TIER_DEVICE];
	s->n_pages = m->walk.position;
	if (m->partial != NODE_NONE)
		s->table[s->n_pages++] = p->prefix.nodes[m->partial].copies[TIER_DEVICE];
	s->committed = match_tokens(m);
	s->publishing = s->node != NODE_NONE;
	s->tick = m->tick;
	s->ids = ids;
	s->ids_end = m->wish->n_tokens;
	s->ids_room = m->wish->n_tokens;
	s->images = images;
	s->n_images = m->wish->n_images;
	forget_ids(s);
	return 0;
}

/* ---- publishing ---- */

/* Into the run of what this sequence made; a run that cannot be continued gives way to a new one.
 */
static int touch(struct seq *s, uint32_t node)
{
	struct retain *retain = &s->pool->retain;
	int r;

	if (!s->tick)
		s->tick = retain_open(retain);
	r = retain_touch(retain, node, s->tick, RETAIN_NEW, &s->run);
	if (r == RETAIN_ELSEWHERE) {
		retain_let_go(retain, &s->run);
		s->tick = retain_reopen(retain, s->tick);
		r = retain_touch(retain, node, s->tick, RETAIN_NEW, &s->run);
		must(r <= 0);
	}
	retain_set_interactive(retain, s->run, s->interactive);
	return r;
}

static void descend(struct seq *s, uint32_t node)
{
	uint32_t above = s->node;
	uint32_t budget = UINT32_MAX;

	if (s->pool->shadow.pages)
		shadow_put(&s->pool->shadow, s->pool->prefix.nodes[node].key,
			   s->pool->prefix.nodes[above].key);
	pool_hold(s->pool, node);
	pool_release(s->pool, &above, &budget); /* its child is in use now: one step */
	s->node = node;
	s->published++;
}

/* Another sequence committed the same page first. Its page stays in use beside ours. */
static bool follow_other(struct seq *s, uint32_t node)
{
	struct pool *p = s->pool;
	uint32_t cut = !p->hybrid; /* the copy of a published page in which it has been cut */

	/* All that it keeps in use is on the device at once. */
	if ((uint64_t)s->ceiling + s->surplus + 1 + cut > p->limits.pages || pool_may_admit(p, 1))
		return false;
	if (!pool_quota_allows(p, s->name_space, 1))
		return false;
	s->surplus++;
	seq_add_surplus(p, s->name_space, 1);
	p->stats.duplicates++;
	descend(s, node);
	if (!p->hybrid)
		(void)touch(s, node); /* without memory it stays as old as it was */
	return true;
}

static bool publish_page(struct seq *s, const uint32_t *tokens, const struct key_image *images,
			 uint32_t n_images)
{
	struct pool *p = s->pool;
	uint32_t page = seq_page(s, s->published);
	uint32_t node;
	int r;

	/* Another's page, which could not be fetched: it, or this one, would not be found. */
	if (!node_carries(&p->prefix.nodes[s->node]))
		return false;
	r = prefix_publish(&p->prefix, s->node, tokens, p->limits.page_tokens, images, n_images,
			   &node);
	if (r == PREFIX_FULL)
		return false;
	if (p->prefix.nodes[node].copies[TIER_DEVICE] != COPY_NONE)
		return follow_other(s, node);
	if (p->pages.page[page].references != 1 || (!p->hybrid && touch(s, node) < 0)) {
		if (r == PREFIX_NEW)
			prefix_abandon(&p->prefix, node);
		return false;
	}
	pool_index(p, node, page);
	p->stats.published++;
	descend(s, node);
	return true;
}

static void drop_window(struct seq *s)
{
	struct pool *p = s->pool;
	uint32_t to = s->drop_before / p->limits.page_tokens;
	uint32_t n = to > s->first_page ? to - s->first_page : 0;

	if (n > s->n_pages)
		n = s->n_pages;
	if (n == 0)
		return;
	for (uint32_t i = 0; i < n; i++) {
		const struct page *page = &p->pages.page[s->table[i]];

		p->fronts_differ |= page->state == PAGE_PRIVATE && page->references > 1;
		if (page->state == PAGE_PRIVATE)
			pages_drop(&p->pages, s->table[i]);
	}
	s->n_pages -= n;
	memmove(s->table, s->table + n, s->n_pages * sizeof(*s->table));
	s->first_page += n;
	s->table_version++;
}

int seq_publish_turn(struct seq *s, uint32_t *budget)
{
	uint32_t page_tokens = s->pool->limits.page_tokens;

	while (s->publishing) {
		uint32_t position = s->published * page_tokens;
		uint32_t n = 0;

		if (position + page_tokens > s->committed || position + page_tokens > s->ids_end)
			break;
		if (*budget == 0)
			return POOL_MORE;
		--*budget;
		forget_ids(s);
		while (n < s->n_images && s->images[n].start < position + page_tokens)
			n++;
		if (!publish_page(s, s->ids + (position - s->ids_base), s->images, n)) {
			s->publishing = false;
			s->pool->stats.publish_stops++;
		}
	}
	if (s->committed > s->ids_end)
		s->publishing = false; /* ids that nobody told */
	forget_ids(s);
	drop_window(s);
	return 0;
}

/* ---- close ---- */

static void free_seq(struct seq *s)
{
	struct pool *p = s->pool;

	retain_let_go(&p->retain, &s->run);
	list_remove(&s->in_rank);
	list_remove(&s->in_pool);
	must(p->sequences > 0 && p->shares[s->name_space].sequences > 0);
	p->sequences--;
	p->shares[s->name_space].sequences--;
	if (s->lane != LANE_NONE)
		lane_give(&p->images, s->lane);
	if (s->admitted) {
		must(p->ceilings >= s->ceiling && p->surplus >= s->surplus);
		p->ceilings -= s->ceiling;
		p->shares[s->name_space].ceilings -= s->ceiling;
		seq_add_surplus(p, s->name_space, 0 - (uint64_t)s->surplus);
	}
	free(s->table);
	free(s->ids);
	free(s->images);
	free(s);
}

int seq_close_turn(struct seq **seq, uint32_t *budget)
{
	struct seq *s = *seq;
	struct pool *p = s->pool;

	must(s->step.state != STEP_OPEN);
	if (s->step.state == STEP_ENDED)
		step_abort(s);
	if (park_forget(s, budget))
		return POOL_MORE;
	for (; s->n_pages; --*budget) {
		uint32_t page = s->table[s->n_pages - 1];

		if (*budget == 0)
			return POOL_MORE;
		if (p->pages.page[page].state == PAGE_PRIVATE)
			pages_drop(&p->pages, page);
		s->n_pages--;
	}
	pool_release(p, &s->leaving, budget);
	pool_release(p, &s->tail_node, budget);
	pool_release(p, &s->node, budget);
	if (s->leaving != NODE_NONE || s->tail_node != NODE_NONE || s->node != NODE_NONE)
		return POOL_MORE;
	free_seq(s);
	*seq = NULL;
	return 0;
}

uint64_t seq_heap_bytes(const struct seq *s)
{
	return sizeof(*s) + park_bytes(s) + (uint64_t)s->table_room * sizeof(*s->table) +
	       (uint64_t)s->ids_room * sizeof(*s->ids) + (uint64_t)s->n_images * sizeof(*s->images);
}

const char *seq_check(const struct seq *s)
{
	const struct pool *p = s->pool;
	uint32_t end = s->step.state == STEP_NONE ? s->committed : s->step.target;

	if (!s->admitted)
		return NULL;
	if (s->committed > s->max_tokens || end > s->max_tokens)
		return "a sequence is longer than it may be";
	if (s->publishing && s->leaving == NODE_NONE &&
	    s->published * p->limits.page_tokens > s->committed)
		return "a sequence has published more than is committed";
	for (uint32_t i = 0; i < s->n_pages - s->away; i++) {
		enum page_state state = p->pages.page[s->table[i]].state;

		if (state != PAGE_PRIVATE && state != PAGE_INDEXED &&
		    (state != PAGE_QUARANTINED || s->step.state != STEP_ENDED))
			return "a table names a page that is not in use";
	}
	return NULL;
}
