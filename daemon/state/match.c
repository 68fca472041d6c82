/* SPDX-License-Identifier: Apache-2.0 */
/* match: see match.h. Core thread; nothing here blocks. */
#include "daemon/state/match.h"

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/match_internal.h"
#include "daemon/state/pool_states.h"

#ifdef KVHOST_TESTING
struct match_work match_work;
#endif

bool match_in_image(const struct match_wish *w, uint32_t tokens, uint32_t *n)
{
	for (; *n > 0; --*n) {
		const struct key_image *image = &w->images[*n - 1];

		match_works(images);
		if (image->start < tokens)
			return tokens - image->start < image->length;
	}
	return false;
}

uint32_t match_leave_images(const struct match_wish *w, uint32_t tokens, uint32_t page_tokens)
{
	for (uint32_t i = w->n_images; i > 0; i--) {
		const struct key_image *image = &w->images[i - 1];

		if (image->start < tokens && tokens - image->start < image->length)
			tokens = image->start / page_tokens * page_tokens;
	}
	return tokens;
}

static uint32_t find_end(const struct pool *p, const struct match_wish *w, enum match_miss *why,
			 uint32_t *most_tokens)
{
	uint32_t page_tokens = p->limits.page_tokens;
	uint32_t most, end;

	*why = MATCH_OFF;
	*most_tokens = 0;
	if (w->off || p->limits.prefix_budget == 0 || w->n_tokens == 0)
		return 0;
	most = w->n_tokens - (protection(last_token_is_computed) ? 1 : 0);
	*why = MATCH_COMPLETE;
	if (w->max_cached_tokens < most) {
		*why = MATCH_LIMIT;
		most = w->max_cached_tokens;
	}
	/* A state may end anywhere, a page of a dense pool at a page's end. */
	end = p->hybrid ? most : most / page_tokens * page_tokens;
	if (protection(images_are_whole)) {
		uint32_t out = match_leave_images(w, end, p->hybrid ? 1 : page_tokens);

		if (out < end)
			*why = MATCH_IMAGE;
		end = out;
	}
	*most_tokens = end;
	return end / page_tokens;
}

uint32_t match_room(const struct pool *p, const struct match_wish *wish)
{
	enum match_miss why;
	uint32_t most;

	return find_end(p, wish, &why, &most);
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
			    .leaving = NODE_NONE,
			    .walk.node = NODE_NONE,
			    .image = IMAGE_NONE,
			    .partial = NODE_NONE};
	m->end = find_end(p, wish, &m->end_reason, &m->most);
	if (tick)
		habits_open(&p->images, tick);
	if (wish->off || p->limits.prefix_budget == 0) {
		m->done = true;
		return 0;
	}
	if (prefix_root(&p->prefix, wish->name_space, wish->variant, tick != 0, &root))
		m->end_reason = MATCH_NONE;
	if (root == NODE_NONE) {
		m->walk.missed = m->end > 0;
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
	return 0;
}

/* Matched pages are young in the shadow too, and its hits as long as they were there. */
static void cast_shadow(struct match *m, uint32_t from)
{
	struct pool *p = m->pool;

	for (uint32_t i = from; i < m->walk.position; i++) {
		const struct node *n = &p->prefix.nodes[m->path[i]];
		struct key above = p->prefix.nodes[n->parent].key;

		m->shadow_misses = m->shadow_misses || !shadow_meet(&p->shadow, n->key, above);
		if (m->shadow_misses)
			shadow_put(&p->shadow, n->key, above);
	}
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
	if (p->shadow.pages)
		cast_shadow(m, m->walk.position - n);
	if (p->retain.learned)
		return; /* touched once it is known what the open goes on with */
	if (p->hybrid)
		return; /* states are ranked there, not pages */
	for (uint32_t i = m->walk.position - n; i < m->walk.position; i++) {
		/* Out of memory leaves a page where it was: older than it should be, no more. */
		if (retain_touch(&p->retain, m->path[i], m->tick, RETAIN_REUSED, &m->run) < 0)
			break;
	}
	retain_set_interactive(&p->retain, m->run, m->wish->interactive);
}

/* Only the first n pages of what was matched are wanted. */
static void go_back(struct match *m, uint32_t n)
{
	struct pool *p = m->pool;

	m->walk.position = n;
	if (m->walk.on_device > n)
		m->walk.on_device = n;
	if (!m->tick)
		return;
	must(m->leaving == NODE_NONE);
	m->leaving = m->held;
	m->held = n ? m->path[n - 1] : p->prefix.nodes[m->path[0]].parent;
	m->walk.node = m->held;
	pool_hold(p, m->held);
}

bool match_is_below_floor(const struct match *m, uint64_t tokens)
{
	return tokens < m->pool->limits.ram_floor_tokens && !m->wish->no_floor;
}

/* A walk that ended between two pages of an image goes back to where that image begins, one that
 * knows little more in KV-RAM to what is on the device. */
static void end_walk(struct match *m)
{
	const struct pool *p = m->pool;
	uint32_t page_tokens = p->limits.page_tokens;
	uint32_t n = m->walk.position, whole, device;

	m->ended = true;
	m->seen = n;
	m->known_tokens = n * page_tokens;
	/* In a hybrid pool find_state looks to that. */
	if (p->hybrid)
		return;
	whole = match_leave_images(m->wish, n * page_tokens, page_tokens) / page_tokens;
	if (whole < n && protection(images_are_whole)) {
		m->walk.missed = false;
		m->end_reason = MATCH_IMAGE;
		n = whole;
	}
	/* What could be reused without it. */
	device =
	    match_leave_images(m->wish, m->walk.on_device * page_tokens, page_tokens) / page_tokens;
	if (n > m->walk.on_device &&
	    match_is_below_floor(m, (uint64_t)(n - device) * page_tokens)) {
		m->walk.missed = false;
		m->end_reason = MATCH_FLOOR;
		n = device;
	}
	if (n < m->walk.position)
		go_back(m, n);
}

uint32_t match_images_of(struct match *m, uint32_t index, const struct key_image **first)
{
	const struct match_wish *w = m->wish;
	uint32_t page_tokens = m->pool->limits.page_tokens;
	uint32_t n = 0;

	while (m->images_passed < w->n_images &&
	       w->images[m->images_passed].start < index * page_tokens)
		m->images_passed++;
	*first = w->n_images ? w->images + m->images_passed : NULL;
	while (m->images_passed + n < w->n_images && (*first)[n].start < (index + 1) * page_tokens)
		n++;
	return n;
}

/* Pages behind the miss, as long as their keys are known. False: the budget ended first. */
static bool look_further(struct match *m, uint32_t *budget)
{
	struct pool *p = m->pool;
	uint32_t page_tokens = p->limits.page_tokens;
	uint32_t end = m->wish->n_tokens / page_tokens;

	bool all = m->walk.missed || m->end_reason == MATCH_FLOOR;

	while (all && m->looked < end && !(m->ghosts_end && m->shadow_misses)) {
		const uint32_t *tokens = m->wish->tokens + (uint64_t)m->looked * page_tokens;
		const struct key_image *images;
		uint32_t n_images = match_images_of(m, m->looked, &images);
		struct key above = m->key;
		uint64_t tick;

		if (*budget == 0)
			return false;
		--*budget;
		m->key = key_page(p->prefix.maker, above, m->looked * page_tokens, tokens,
				  page_tokens, images, n_images);
		m->looked++;
		tick = m->ghosts_end ? 0 : retain_ghost(&p->retain, m->key);
		m->ghosts_end = tick == 0;
		if (tick) {
			m->known = m->looked;
			m->deepest = tick;
		}
		m->shadow_misses = m->shadow_misses || !shadow_meet(&p->shadow, m->key, above);
	}
	return true;
}

static void begin_further(struct match *m)
{
	const struct pool *p = m->pool;

	m->further = true;
	m->key = m->walk.key;
	m->looked = m->seen;
	m->known = m->seen;
	if (m->known)
		m->deepest = retain_tick_of(&p->retain, m->path[m->known - 1]);
	m->ghosts_end = !p->retain.learned;
	m->shadow_misses = m->shadow_misses || !p->shadow.pages;
}

/* The learned order touches what an open matched once it knows what that goes on with. */
static bool touch_matched(struct match *m, uint32_t *budget)
{
	struct retain *retain = &m->pool->retain;

	if (!m->told)
		retain_know(retain, m->tick, m->known, m->deepest);
	m->told = true;
	for (; m->touched < m->walk.position; m->touched++) {
		if (*budget == 0)
			return false;
		--*budget;
		/* Out of memory leaves a page where it was: older than it should be, no more. */
		if (retain_touch(retain, m->path[m->touched], m->tick, RETAIN_REUSED, &m->run) < 0)
			break;
	}
	retain_set_interactive(retain, m->run, m->wish->interactive);
	return true;
}

void match_cut(struct match *m, uint32_t n)
{
	must(m->done && m->tick && n <= m->walk.position);
	if (m->pool->hybrid) {
		match_cut_state(m, n);
		return;
	}
	must(n < m->walk.position);
	m->walk.missed = false;
	m->end_reason = MATCH_RESTORE;
	n = match_leave_images(m->wish, n * m->pool->limits.page_tokens,
			       m->pool->limits.page_tokens) /
	    m->pool->limits.page_tokens;
	go_back(m, n);
	m->done = false;
}

void match_go_back(struct match *m)
{
	must(m->done && m->tick && m->pool->hybrid && !m->claimed);
	match_cut_state(m, m->walk.position);
}

/* What an open held before it went back is released in turns, too. */
static int finish(struct match *m, uint32_t *budget)
{
	struct pool *p = m->pool;

	if (m->tick && (p->retain.learned || p->shadow.pages)) {
		if (!m->further)
			begin_further(m);
		if (!look_further(m, budget))
			return POOL_MORE;
		if (p->retain.learned && !touch_matched(m, budget))
			return POOL_MORE;
	}
	if (p->hybrid && !m->chosen && !match_find_state(m, budget))
		return POOL_MORE;
	if (p->hybrid && !match_look_for_ghosts(m, budget))
		return POOL_MORE;
	m->further = true;
	pool_release(p, &m->leaving, budget);
	if (m->leaving != NODE_NONE)
		return POOL_MORE;
	m->done = true;
	if (!p->hybrid) {
		m->tokens = m->walk.position * p->limits.page_tokens;
		m->known_tokens = m->tokens;
		m->from_ram = m->walk.position > m->walk.on_device;
	}
	return 0;
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
		/* Its place was given up between two turns: nothing is known from there on. */
		m->walk.missed = true;
		end_walk(m);
		m->done = true;
		m->tokens = p->hybrid ? 0 : m->walk.position * page_tokens;
		m->known_tokens = m->tokens;
		return 0;
	}
	if (m->ended)
		return finish(m, budget);
	while (m->images_passed < w->n_images &&
	       w->images[m->images_passed].start < first * page_tokens)
		m->images_passed++;
	n = prefix_match(&p->prefix, &m->walk, w->tokens + (uint64_t)first * page_tokens, n,
			 w->n_images ? w->images + m->images_passed : NULL,
			 w->n_images - m->images_passed, m->path + first);
	*budget -= n < *budget ? n : *budget;
	m->node_id = p->prefix.nodes[m->walk.node].id;
	if (m->tick)
		keep(m, n);
	if (!m->walk.missed && m->walk.position < m->end)
		return POOL_MORE;
	end_walk(m);
	return finish(m, budget);
}

enum match_miss match_reason(const struct match *m)
{
	if (m->pool->hybrid && m->tokens < m->most && m->end_reason != MATCH_OFF &&
	    m->end_reason != MATCH_FLOOR && m->end_reason != MATCH_RESTORE) {
		if (m->known_tokens == 0 && m->tokens == 0)
			return MATCH_NONE;
		/* Pages are known, but no state at their end was captured, or it was given up. */
		return m->walk.missed && m->tokens >= m->known_tokens ? MATCH_DIVERGED : MATCH_GONE;
	}
	if (!m->walk.missed || m->end_reason == MATCH_FLOOR || m->end_reason == MATCH_RESTORE)
		return m->end_reason;
	return m->walk.position ? MATCH_DIVERGED : MATCH_NONE;
}

void match_count(const struct match *m)
{
	struct pool_stats *s = &m->pool->stats;
	uint32_t tokens = match_tokens(m);

	must(m->done);
	if (!m->tick) {
		s->lookups++;
		s->lookup_hits += tokens > 0;
		return;
	}
	s->misses[match_reason(m)] += match_reason(m) != MATCH_COMPLETE;
	s->opens++;
	s->open_hits += tokens > 0;
	s->prompt_tokens += m->wish->n_tokens;
	s->reused_tokens += tokens;
	s->ram_hits += m->from_ram;
	s->ram_hit_pages += m->walk.position - m->walk.on_device;
	s->pages_missed += m->wish->n_tokens / m->pool->limits.page_tokens - m->walk.position;
}
