/* SPDX-License-Identifier: Apache-2.0 */
/* seq_branch: forks and truncations; see seq.h. Core thread; nothing here blocks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/park.h"
#include "daemon/state/seq_internal.h"

static int copy_identity(struct seq *child, const struct seq *parent)
{
	uint32_t end = parent->ids_end < parent->committed ? parent->ids_end : parent->committed;
	uint32_t n = end > parent->ids_base ? end - parent->ids_base : 0;
	uint32_t n_images = 0;

	while (n_images < parent->n_images && parent->images[n_images].start < end)
		n_images++;
	if (n) {
		child->ids = malloc(n * sizeof(*child->ids));
		if (!child->ids)
			return -ENOMEM;
		memcpy(child->ids, parent->ids, n * sizeof(*child->ids));
		child->ids_room = n;
	}
	child->ids_base = n ? parent->ids_base : end;
	child->ids_end = end;
	if (n_images) {
		child->images = malloc(n_images * sizeof(*child->images));
		if (!child->images)
			return -ENOMEM;
		memcpy(child->images, parent->images, n_images * sizeof(*child->images));
		child->n_images = n_images;
	}
	return 0;
}

/* An open step writes the partial page in place: who forks now must not share it. */
static bool is_written_in_place(const struct seq *s)
{
	return s->step.state != STEP_NONE && s->step.replaced == PAGE_NONE &&
	       s->step.start % s->pool->limits.page_tokens && protection(shared_pages_are_copied);
}

/* It would go on in a copy beside the one of its parent, and who pays for the page then? */
static bool reads_published_tail(const struct seq *s)
{
	return s->tail_node != NODE_NONE && !s->pool->hybrid &&
	       protection(shared_pages_are_paid_for);
}

bool seq_fork_needs_page(const struct seq *parent)
{
	return is_written_in_place(parent) || reads_published_tail(parent);
}

int seq_fork_new(const struct seq *parent, uint32_t max_tokens, struct seq **out)
{
	int r;

	if (max_tokens < parent->committed || max_tokens > parent->pool->limits.max_sequence_tokens)
		return POOL_RANGE;
	r = seq_new(parent->pool, parent->name_space, max_tokens, out);
	if (r == 0)
		(*out)->surplus = parent->surplus - parent->spare;
	return r;
}

int seq_fork(const struct seq *parent, struct seq *child, uint32_t *copy_from)
{
	struct pool *p = parent->pool;
	uint32_t n = pool_pages_for(p, parent->committed) - parent->first_page;
	int r;

	must(!seq_is_away(parent) && child->n_pages == 0);
	must(child->surplus == parent->surplus - parent->spare);
	r = seq_reserve_table(child, n);
	if (!r)
		r = copy_identity(child, parent);
	if (r)
		return r;
	if (n)
		memcpy(child->table, parent->table, n * sizeof(*child->table));
	/* The parent's open step may have put a copy in place of the page both had. */
	if (parent->step.state != STEP_NONE && parent->step.replaced != PAGE_NONE && n)
		child->table[n - 1] = parent->step.replaced;
	*copy_from = seq_fork_needs_page(parent) ? child->table[n - 1] : PAGE_NONE;
	child->n_pages = n;
	child->first_page = parent->first_page;
	child->committed = parent->committed;
	child->publishing = parent->publishing;
	child->image_end = parent->image_end;
	child->interactive = parent->interactive;
	child->follows = parent->follows;
	child->turn = parent->turn;
	child->published = parent->published;
	for (uint32_t i = 0; i < n; i++) {
		if (p->pages.page[child->table[i]].state == PAGE_PRIVATE)
			pages_hold(&p->pages, child->table[i]);
	}
	if (parent->node != NODE_NONE)
		pool_hold(p, parent->node);
	child->node = parent->node;
	if (parent->tail_node != NODE_NONE)
		pool_hold(p, parent->tail_node);
	child->tail_node = parent->tail_node;
	return 0;
}

int seq_take_page(struct seq *s)
{
	struct pool *p = s->pool;
	uint32_t shared = s->table[s->n_pages - 1];
	int r;

	must(s->admitted && s->step.state == STEP_NONE);
	if (!pool_keep_quota(p, s->name_space, 1))
		return POOL_WAIT;
	if (p->pages.count[PAGE_CLEAN] == 0) {
		r = park_insist(p, 1, s->rank);
		return r == POOL_MORE ? r : POOL_WAIT;
	}
	r = pages_take(&p->pages, &s->table[s->n_pages - 1]);
	must(r == 0);
	pages_assign(&p->pages, s->table[s->n_pages - 1], s->name_space);
	if (s->tail_node != NODE_NONE)
		seq_give_tail(s);
	else
		pages_drop(&p->pages, shared);
	return 0;
}

void seq_give_tail(struct seq *s)
{
	uint32_t budget = UINT32_MAX;

	/* Its parent is in use by this sequence: two steps at most. */
	pool_release(s->pool, &s->tail_node, &budget);
}

/* The tokens and images of page `index` that lie before `tokens` are what is known from now on. */
static int recall_ids(struct seq *s, uint32_t node, uint32_t index, uint32_t tokens)
{
	const struct prefix *x = &s->pool->prefix;
	uint32_t page_tokens = s->pool->limits.page_tokens;
	const struct node *n = &x->nodes[node];
	uint32_t n_images = n->images ? x->images[n->images - 1].n : 0;
	uint32_t *ids = malloc(page_tokens * sizeof(*ids));
	struct key_image *images = n_images ? malloc(n_images * sizeof(*images)) : NULL;

	if (!ids || (n_images && !images)) {
		free(ids);
		free(images);
		return -ENOMEM;
	}
	memcpy(ids, prefix_tokens(x, node), page_tokens * sizeof(*ids));
	free(s->ids);
	free(s->images);
	s->ids = ids;
	s->ids_base = index * page_tokens;
	s->ids_end = tokens;
	s->ids_room = page_tokens;
	s->images = images;
	s->n_images = 0;
	while (s->n_images < n_images &&
	       x->images[n->images - 1].image[s->n_images].start < tokens) {
		images[s->n_images] = x->images[n->images - 1].image[s->n_images];
		s->n_images++;
	}
	return 0;
}

int seq_truncate(struct seq *s, uint32_t tokens)
{
	struct pool *p = s->pool;
	uint32_t page_tokens = p->limits.page_tokens;
	uint32_t index = tokens / page_tokens, keep = pool_pages_for(p, tokens);
	uint32_t below = NODE_NONE, node = s->node, published = s->published, duplicates = 0;

	if (s->step.state != STEP_NONE || s->leaving != NODE_NONE)
		return POOL_BUSY;
	if (p->hybrid)
		return tokens == s->committed ? 0 : POOL_NEVER; /* no state anywhere else */
	if (tokens > s->committed || tokens < s->first_page * page_tokens)
		return POOL_RANGE;
	if (tokens == s->committed)
		return 0;
	for (; published > index; published--) {
		/* A private page beside the other's, which it is no longer a user of. */
		duplicates += p->pages.page[seq_page(s, published - 1)].state == PAGE_PRIVATE;
		below = node;
		node = p->prefix.nodes[node].parent;
	}
	if (below != NODE_NONE && recall_ids(s, below, index, tokens))
		return -ENOMEM;
	if (s->tail_node != NODE_NONE && keep <= seq_page_index(s, s->committed))
		seq_give_tail(s);
	if (tokens % page_tokens && below != NODE_NONE &&
	    p->prefix.nodes[below].copies[TIER_DEVICE] == seq_page(s, index)) {
		pool_hold(p, below);
		s->tail_node = below;
	}
	if (node != s->node) {
		pool_hold(p, node);
		s->leaving = s->node;
		s->node = node;
		s->published = published;
		must(s->surplus >= duplicates && p->surplus >= duplicates);
		s->surplus -= duplicates;
		seq_add_surplus(p, s->name_space, 0 - (uint64_t)duplicates);
		s->tick = 0;
		retain_let_go(&p->retain, &s->run);
	}
	/* Of ids that are forgotten already none is known behind the cut either. */
	if (s->ids_end > tokens)
		s->ids_end = tokens;
	if (s->ids_base > tokens)
		s->ids_base = tokens;
	while (s->n_images && s->images[s->n_images - 1].start >= tokens)
		s->n_images--;
	while (s->n_pages > keep - s->first_page) {
		uint32_t page = s->table[--s->n_pages];

		if (p->pages.page[page].state == PAGE_PRIVATE)
			pages_drop(&p->pages, page);
	}
	s->committed = tokens;
	s->table_version++;
	s->publishing = s->node != NODE_NONE && s->published == index && s->ids_end == tokens &&
			s->ids_base <= index * page_tokens;
	return 0;
}

int seq_release_turn(struct seq *s, uint32_t *budget)
{
	pool_release(s->pool, &s->leaving, budget);
	return s->leaving == NODE_NONE ? 0 : POOL_MORE;
}
