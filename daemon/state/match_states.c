/* SPDX-License-Identifier: Apache-2.0 */
/* match_states: see match.h: in hybrid pools reuse goes on only where a state was captured. Core
 * thread; nothing here blocks. */
#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/match_internal.h"
#include "daemon/state/pool_states.h"

/* Something of it must be fetched. */
static bool is_below(const struct match *m, const struct match_state *f)
{
	const struct pool *p = m->pool;

	if (f->image == IMAGE_NONE)
		return false;
	return f->position > m->walk.on_device || !p->images.image[f->image].on_device ||
	       (f->partial != NODE_NONE && !node_is_on_device(&p->prefix.nodes[f->partial]));
}

/* The state at the end of f's page, or of its partial one. `here`: of which nothing must be
 * fetched. */
static bool has_state(const struct match *m, struct match_state *f, bool here)
{
	const struct pool *p = m->pool;
	uint32_t node = f->partial == NODE_NONE ? f->node : f->partial;

	f->image = p->prefix.nodes[node].state;
	if (f->image != STATE_NONE &&
	    (p->images.image[f->image].state == IMAGE_VALID ||
	     !protection(captures_wait_for_their_copy)) &&
	    !(here && is_below(m, f)))
		return true;
	f->image = IMAGE_NONE;
	return false;
}

static void leave_images_from(const struct match_wish *w, uint32_t tokens, uint32_t *n)
{
	for (; *n > 0 && w->images[*n - 1].start >= tokens; --*n)
		match_works(images);
}

/* A state behind a part of the page that follows f's, the longest that fits the prompt. */
static bool has_partial_state(struct match *m, struct match_state *f, struct match_images *before,
			      bool here)
{
	struct pool *p = m->pool;
	const struct match_wish *w = m->wish;
	uint32_t start = f->position * p->limits.page_tokens;
	uint32_t room = m->most - start;
	uint64_t lengths = p->prefix.nodes[f->node].partial_lengths;

	if (room < 64)
		lengths &= (1ull << room) - 1;
	if (lengths)
		leave_images_from(w, start, &before->page);
	while (lengths) {
		uint32_t length = 64 - (uint32_t)__builtin_clzll(lengths);

		lengths &= ~(1ull << (length - 1));
		if (match_in_image(w, start + length, &before->place) &&
		    protection(images_are_whole))
			continue;
		match_works(partials);
		f->partial =
		    prefix_find_partial(&p->prefix, f->node, w->tokens + start, length,
					w->images + before->page, before->place - before->page);
		if (f->partial != NODE_NONE && prefix_can_be_read(&p->prefix.nodes[f->partial]) &&
		    has_state(m, f, here))
			return true;
	}
	f->partial = NODE_NONE;
	return false;
}

static uint32_t tokens_of(const struct match *m, const struct match_state *f)
{
	return f->image == IMAGE_NONE ? 0 : m->pool->images.image[f->image].tokens;
}

enum look {
	LOOK_UP,    /* nothing ends here */
	LOOK_FOUND, /* a state: s->at */
	LOOK_NONE,  /* and there is nothing above */
};

/* The images of the prompt are looked at only where there is a state, and once: they may be many.
 */
static enum look look_at_page(struct match *m, struct match_search *s)
{
	struct match_state *f = &s->at;
	bool here = s->has_below;

	match_works(pages);
	if (has_partial_state(m, f, &s->before, here))
		return LOOK_FOUND;
	if (f->position == 0)
		return LOOK_NONE;
	if (has_state(m, f, here) &&
	    !match_in_image(m->wish, f->position * m->pool->limits.page_tokens, &s->before.place))
		return LOOK_FOUND;
	f->image = IMAGE_NONE;
	f->node = m->pool->prefix.nodes[f->node].parent;
	f->position--;
	return LOOK_UP;
}

static struct match_state none_at(const struct match_state *f)
{
	return (struct match_state){
	    .image = IMAGE_NONE, .node = f->node, .position = f->position, .partial = NODE_NONE};
}

/* It must be fetched; is there one that must not be, and that is nearly as long? */
static void note_below(struct match *m, struct match_search *s, struct match_images before)
{
	uint32_t node = s->at.partial == NODE_NONE ? s->at.node : s->at.partial;

	s->has_below = true;
	s->below = s->at;
	s->before_below = before;
	s->below_tokens = tokens_of(m, &s->at);
	s->below_id = m->pool->prefix.nodes[node].id;
	s->at = none_at(&s->at);
	s->before = before;
}

/* Whatever ends at this page or above is too short to do instead. */
static bool is_far_above(const struct match *m, const struct match_search *s)
{
	uint32_t page_tokens = m->pool->limits.page_tokens;
	uint64_t most = (uint64_t)s->at.position * page_tokens + page_tokens - 1;

	return s->below_tokens >= most && !match_is_below_floor(m, s->below_tokens - most);
}

/* What was found before, between two turns perhaps, is it there still? */
static bool is_still_there(const struct match *m, const struct match_search *s)
{
	const struct pool *p = m->pool;
	uint32_t at = s->below.partial == NODE_NONE ? s->below.node : s->below.partial;
	const struct node *n = &p->prefix.nodes[at];
	struct match_state f = s->below;

	if (n->id != s->below_id || (s->below.partial != NODE_NONE && !prefix_can_be_read(n)))
		return false;
	return has_state(m, &f, false) && f.image == s->below.image;
}

/* s->at: the longest of which nothing must be fetched, or none that matters. False: what was found
 * before has gone, and the search goes on from there. */
static bool decide(struct match *m, struct match_search *s)
{
	if (!is_still_there(m, s)) {
		s->at = none_at(&s->below);
		s->before = s->before_below;
		s->has_below = false;
		return false;
	}
	if (!match_is_below_floor(m, s->below_tokens - tokens_of(m, &s->at)))
		s->at = s->below;
	else if (m->end_reason != MATCH_RESTORE)
		m->end_reason = MATCH_FLOOR;
	return true;
}

/* From where the walk has ended upwards: the first state is the longest. One in KV-RAM is taken if
 * it reaches far enough beyond the device. */
static bool search(struct match *m, struct match_search *s, uint32_t *budget)
{
	for (;;) {
		struct match_images before = s->before;
		enum look look = LOOK_NONE;

		if (!s->has_below || !is_far_above(m, s)) {
			if (*budget == 0)
				return false;
			--*budget;
			look = look_at_page(m, s);
		}
		if (look == LOOK_UP)
			continue;
		if (s->has_below) {
			if (decide(m, s))
				return true;
		} else if (look == LOOK_NONE || !is_below(m, &s->at)) {
			return true;
		} else {
			note_below(m, s, before);
		}
	}
}

/* In the learned order once it is known what the open goes on with. */
static void touch_state(struct match *m)
{
	struct images *s = &m->pool->images;

	if (!m->claimed || (s->habits && !m->told) || s->image[m->image].state != IMAGE_VALID)
		return;
	image_touch(s, m->image, m->wish->interactive, m->pool->retain.now_ns);
	habits_touch(s, m->image, m->turn, m->tick);
}

/* An open holds its node and claims it. */
static void go_on_from(struct match *m, struct match_state f)
{
	struct pool *p = m->pool;

	m->image = f.image;
	m->partial = f.partial;
	m->from_ram = is_below(m, &f);
	m->walk.node = f.node;
	m->walk.position = f.position;
	if (m->walk.on_device > f.position)
		m->walk.on_device = f.position;
	m->tokens = tokens_of(m, &f);
	if (!m->tick)
		return;
	if (f.node != m->held) {
		pool_hold(p, f.node);
		m->leaving = m->held;
		m->held = f.node;
	}
	if (m->image == IMAGE_NONE)
		return;
	if (m->partial != NODE_NONE)
		pool_hold(p, m->partial);
	m->claimed = true;
	p->images.image[m->image].claims++;
	p->images.counts.claims[p->images.image[m->image].kind]++;
	touch_state(m);
	pool_trim(p); /* what was to leave may stay for this */
}

bool match_find_state(struct match *m, uint32_t *budget)
{
	struct match_search *s = &m->search;

	if (!s->begun)
		*s = (struct match_search){
		    .begun = true,
		    .at = {IMAGE_NONE, m->walk.node, m->walk.position, NODE_NONE},
		    .before = {m->wish->n_images, m->wish->n_images},
		};
	if (!search(m, s, budget))
		return false;
	s->begun = false;
	m->chosen = true;
	go_on_from(m, s->at);
	return true;
}

void match_unclaim(struct match *m)
{
	if (m->claimed)
		pool_claim_done(m->pool, m->image);
	m->claimed = false;
}

void match_cut_state(struct match *m, uint32_t n)
{
	struct pool *p = m->pool;
	bool part = n == m->walk.position && m->partial != NODE_NONE;
	uint32_t most = n * p->limits.page_tokens +
			(part ? p->prefix.nodes[m->partial].length : p->limits.page_tokens) - 1;
	uint32_t budget = UINT32_MAX;

	m->end_reason = MATCH_RESTORE;
	if (m->most > most)
		m->most = most;
	if (m->partial != NODE_NONE)
		pool_release(p, &m->partial, &budget); /* what it stands on is held */
	m->partial = NODE_NONE;
	for (; m->walk.position > n; m->walk.position--)
		m->walk.node = p->prefix.nodes[m->walk.node].parent;
	match_unclaim(m);
	m->image = IMAGE_NONE;
	m->chosen = false;
	m->done = false;
}

/* ---- states that are gone: had they been kept, the open would have gone on from the longest ----
 */

static void begin_looking(struct match *m)
{
	const struct pool *p = m->pool;

	m->looked = m->walk.position;
	m->key = p->prefix.nodes[m->walk.node].key;
	m->images_passed = 0;
}

static void look_at(struct match *m, struct key key, uint32_t tokens)
{
	if (tokens <= m->tokens || !habits_is_ghost(m->pool->images.habits, key))
		return;
	m->would_find = true;
	m->gone = key;
}

/* Those that end in the page after the one of m->key. */
static void look_behind(struct match *m, const struct key_image *images, uint32_t n_images)
{
	const struct pool *p = m->pool;
	uint32_t start = m->looked * p->limits.page_tokens, n = 0;
	uint64_t lengths = habits_lengths(p->images.habits, m->key);

	for (; lengths; lengths &= lengths - 1) {
		uint32_t length = 1 + (uint32_t)__builtin_ctzll(lengths);

		if (start + length > m->most)
			return;
		while (n < n_images && images[n].start < start + length)
			n++;
		look_at(m,
			key_page(p->prefix.maker, m->key, start, m->wish->tokens + start, length,
				 images, n),
			start + length);
	}
}

static bool look_for_ghosts(struct match *m, uint32_t *budget)
{
	const struct pool *p = m->pool;
	uint32_t page_tokens = p->limits.page_tokens;

	while (p->images.habits->ghosts.used && m->looked * page_tokens < m->most) {
		const struct key_image *images;
		uint32_t n_images, start = m->looked * page_tokens;

		if (*budget == 0)
			return false;
		--*budget;
		n_images = match_images_of(m, m->looked, &images);
		look_behind(m, images, n_images);
		if (m->most - start < page_tokens)
			break;
		m->key = key_page(p->prefix.maker, m->key, start, m->wish->tokens + start,
				  page_tokens, images, n_images);
		m->looked++;
		look_at(m, m->key, m->looked * page_tokens);
	}
	return true;
}

/* Which turn it is follows from the longest state, here or gone. */
static void tell_habits(struct match *m)
{
	struct images *s = &m->pool->images;

	m->told = true;
	if (m->would_find && habits_is_ghost(s->habits, m->gone)) {
		m->turn = (uint8_t)habits_turn_after_ghost(s->habits, m->gone);
		habits_missed(s, m->gone, m->turn);
	} else if (m->claimed) {
		m->turn = (uint8_t)habits_turn_after(s, m->image);
	}
	touch_state(m);
}

bool match_look_for_ghosts(struct match *m, uint32_t *budget)
{
	if (!m->tick || !m->pool->images.habits || m->told)
		return true;
	if (!m->further)
		begin_looking(m);
	m->further = true;
	if (!look_for_ghosts(m, budget))
		return false;
	tell_habits(m);
	return true;
}
