/* SPDX-License-Identifier: Apache-2.0 */
/* match: see match.h. Core thread; nothing here blocks. */
#include "daemon/state/match.h"

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

/* Walk back to a page boundary that lies in no image. */
static uint32_t leave_images(const struct match_wish *w, uint32_t tokens, uint32_t page_tokens)
{
	for (uint32_t i = w->n_images; i > 0; i--) {
		const struct key_image *image = &w->images[i - 1];

		if (image->start < tokens && tokens - image->start < image->length)
			tokens = image->start / page_tokens * page_tokens;
	}
	return tokens;
}

static uint32_t find_end(const struct pool *p, const struct match_wish *w, enum match_miss *why)
{
	uint32_t page_tokens = p->limits.page_tokens;
	uint32_t most, end;

	*why = MATCH_OFF;
	if (w->off || p->limits.prefix_budget == 0 || w->n_tokens == 0)
		return 0;
	most = w->n_tokens - (protection(last_token_is_computed) ? 1 : 0);
	*why = MATCH_COMPLETE;
	if (w->max_cached_tokens < most) {
		*why = MATCH_LIMIT;
		most = w->max_cached_tokens;
	}
	end = most / page_tokens * page_tokens;
	if (protection(images_are_whole)) {
		uint32_t out = leave_images(w, end, page_tokens);

		if (out < end)
			*why = MATCH_IMAGE;
		end = out;
	}
	return end / page_tokens;
}

uint32_t match_room(const struct pool *p, const struct match_wish *wish)
{
	enum match_miss why;

	return find_end(p, wish, &why);
}

int match_begin(struct match *m, struct pool *p, const struct match_wish *wish, uint32_t *path,
		uint64_t tick)
{
	uint32_t root = NODE_NONE;

	*m = (struct match){.pool = p,
			    .wish = wish,
			    .path = path,
			    .tick = tick,
			    .run = RUN_NONE,
			    .held = NODE_NONE,
			    .walk.node = NODE_NONE};
	m->end = find_end(p, wish, &m->end_reason);
	if (wish->off || p->limits.prefix_budget == 0) {
		m->done = true;
		return 0;
	}
	if (prefix_root(&p->prefix, wish->name_space, wish->variant, tick != 0, &root))
		m->end_reason = MATCH_NONE;
	if (root == NODE_NONE) {
		m->walk.missed = true;
		m->done = true;
		return tick ? POOL_NEVER : 0;
	}
	m->walk.node = root;
	m->walk.key = p->prefix.nodes[root].key;
	m->node_id = p->prefix.nodes[root].id;
	if (tick) {
		pool_hold(p, root);
		m->held = root;
	}
	m->done = m->end == 0;
	return 0;
}

/* An open keeps what it found and makes it young. */
static void keep(struct match *m, uint32_t n)
{
	struct pool *p = m->pool;
	uint32_t budget = UINT32_MAX;

	if (n == 0)
		return;
	pool_hold(p, m->walk.node);
	pool_release(p, &m->held, &budget); /* an ancestor: one step */
	m->held = m->walk.node;
	for (uint32_t i = m->walk.position - n; i < m->walk.position; i++) {
		/* Out of memory leaves a page where it was: older than it should be, no more. */
		if (retain_touch(&p->retain, m->path[i], m->tick, RETAIN_REUSED, &m->run) < 0)
			break;
	}
}

int match_turn(struct match *m, uint32_t *budget)
{
	struct pool *p = m->pool;
	const struct match_wish *w = m->wish;
	uint32_t page_tokens = p->limits.page_tokens;
	uint32_t left = m->end - m->walk.position;
	uint32_t n = left < *budget ? left : *budget;
	uint32_t first = m->walk.position;

	if (m->done)
		return 0;
	if (!m->tick && p->prefix.nodes[m->walk.node].id != m->node_id) {
		m->walk.missed = true;
		m->done = true;
		return 0;
	}
	while (m->images_passed < w->n_images &&
	       w->images[m->images_passed].start < first * page_tokens)
		m->images_passed++;
	n = prefix_match(&p->prefix, &m->walk, w->tokens + (uint64_t)first * page_tokens, n,
			 w->images + m->images_passed, w->n_images - m->images_passed,
			 m->path + first);
	*budget -= n < *budget ? n : *budget;
	m->node_id = p->prefix.nodes[m->walk.node].id;
	if (m->tick)
		keep(m, n);
	m->done = m->walk.missed || m->walk.position == m->end;
	return m->done ? 0 : POOL_MORE;
}

enum match_miss match_reason(const struct match *m)
{
	if (!m->walk.missed)
		return m->end_reason;
	return m->walk.position ? MATCH_DIVERGED : MATCH_NONE;
}

void match_count(const struct match *m)
{
	struct pool_stats *s = &m->pool->stats;
	uint32_t tokens = match_tokens(m);

	must(m->done);
	s->misses[match_reason(m)] += match_reason(m) != MATCH_COMPLETE;
	if (!m->tick) {
		s->lookups++;
		s->lookup_hits += tokens > 0;
		return;
	}
	s->opens++;
	s->open_hits += tokens > 0;
	s->prompt_tokens += m->wish->n_tokens;
	s->reused_tokens += tokens;
	s->pages_missed += m->wish->n_tokens / m->pool->limits.page_tokens - m->walk.position;
}
