/* SPDX-License-Identifier: Apache-2.0 */
/* capture: see capture.h. Core thread; nothing here blocks. */
#include "daemon/state/capture.h"

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/pool_states.h"

static bool is_in_image(const struct key_image *images, uint32_t n, uint32_t tokens)
{
	for (uint32_t i = 0; i < n; i++) {
		if (images[i].start < tokens && tokens - images[i].start < images[i].length)
			return true;
	}
	return false;
}

/* The node that ends at a position inside a page: the page becomes the copy of one, unless
 * somebody else's is known already. NODE_NONE and the reason, if there can be none. */
static uint32_t partial_node(struct seq *s, enum capture_skip *skip)
{
	struct pool *p = s->pool;
	uint32_t start = s->published * p->limits.page_tokens;
	uint32_t length = s->committed - start;
	uint32_t page = seq_page(s, s->published);
	uint32_t node, n = 0, first = 0;
	int r;

	if (s->tail_node != NODE_NONE && p->prefix.nodes[s->tail_node].length == length)
		return s->tail_node;
	*skip = CAPTURE_SHARED;
	if (p->pages.page[page].state != PAGE_PRIVATE || p->pages.page[page].references != 1)
		return NODE_NONE;
	while (first < s->n_images && s->images[first].start < start)
		first++;
	while (first + n < s->n_images && s->images[first + n].start < s->committed)
		n++;
	*skip = CAPTURE_UNKNOWN;
	r = prefix_publish(&p->prefix, s->node, s->ids + (start - s->ids_base), length,
			   s->images + first, n, &node);
	if (r == PREFIX_FULL)
		return NODE_NONE;
	if (p->prefix.nodes[node].copies[TIER_DEVICE] != COPY_NONE)
		return node;
	pool_index(p, node, page);
	pool_hold(p, node);
	must(s->tail_node == NODE_NONE);
	s->tail_node = node;
	return node;
}

static enum capture_skip why_not(const struct seq *s)
{
	const struct pool *p = s->pool;

	if (s->node == NODE_NONE || p->images.n_images == 0)
		return CAPTURE_OFF;
	if (s->committed == 0 || s->committed < p->limits.min_capture_tokens)
		return CAPTURE_SHORT;
	if (!s->publishing || s->published != s->committed / p->limits.page_tokens ||
	    s->ids_end < s->committed)
		return CAPTURE_UNKNOWN;
	/* It follows another's page that could not be fetched after all. */
	if (!node_carries(&p->prefix.nodes[s->node]))
		return CAPTURE_UNKNOWN;
	if ((is_in_image(s->images, s->n_images, s->committed) || s->committed < s->image_end) &&
	    protection(images_are_whole))
		return CAPTURE_IN_IMAGE;
	return CAPTURE_MADE;
}

static bool is_there(const struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];

	return n->kind == NODE_ROOT || node_is_on_device(n);
}

static enum capture_skip reserve(struct seq *s, enum image_kind kind, uint32_t *image)
{
	struct pool *p = s->pool;
	enum capture_skip skip = why_not(s);
	uint32_t node, victim;
	struct image *it;

	if (skip != CAPTURE_MADE)
		return skip;
	node = s->committed % p->limits.page_tokens ? partial_node(s, &skip) : s->node;
	if (node == NODE_NONE)
		return skip;
	*image = p->prefix.nodes[node].state;
	if (*image != STATE_NONE)
		return CAPTURE_EXISTS;
	/* Another's page that is on its way may not arrive: what a state keeps is there. */
	if (!is_there(p, s->node) || !is_there(p, node))
		return CAPTURE_UNKNOWN;
	if (images_prepare(&p->images, s->name_space))
		return CAPTURE_NO_SLOT;
	*image = image_take(&p->images);
	if (*image == IMAGE_NONE) {
		victim = pool_next_state(p, false);
		if (victim == IMAGE_NONE)
			return CAPTURE_NO_SLOT;
		pool_give_up(p, victim);
		*image = image_take(&p->images);
	}
	must(*image != IMAGE_NONE);
	it = &p->images.image[*image];
	it->kind = (uint8_t)kind;
	it->node = node;
	it->tokens = s->committed;
	it->name_space = s->name_space;
	image_touch(&p->images, *image, s->rank.interactive, p->retain.now_ns);
	habits_begin(&p->images, *image, p->prefix.nodes[node].key, s->turn, s->tick);
	if (!pool_place_image(p, *image)) {
		pool_habits_left(p, *image);
		image_give(&p->images, *image);
		return CAPTURE_NO_SLOT;
	}
	p->prefix.nodes[node].state = *image;
	pool_keep_on_device(p, *image);
	return CAPTURE_MADE;
}

enum capture_skip capture_begin(struct seq *s, enum image_kind kind, bool is_user, uint32_t *image)
{
	struct pool *p = s->pool;
	enum capture_skip skip;

	must(p->hybrid && s->step.state == STEP_NONE);
	skip = reserve(s, kind, image);
	p->stats.capture_skips[skip] += skip != CAPTURE_MADE;
	if (skip == CAPTURE_EXISTS && p->images.image[*image].state == IMAGE_VALID) {
		image_touch(&p->images, *image, s->rank.interactive, p->retain.now_ns);
		habits_touch(&p->images, *image, s->turn, s->tick);
		/* It was in KV-RAM alone; its pages are used here, the last one by nobody,
		 * perhaps. */
		if (!p->images.image[*image].on_device &&
		    node_is_on_device(&p->prefix.nodes[p->images.image[*image].node]))
			pool_keep_on_device(p, *image);
	}
	if (skip == CAPTURE_MADE) {
		p->images.image[*image].is_user = is_user;
		p->images.image[*image].after = s->follows;
	}
	/* A prefix belongs to nobody's conversation. */
	if ((skip == CAPTURE_MADE || skip == CAPTURE_EXISTS) && kind == IMAGE_CHECKPOINT)
		s->follows = image_name(&p->images, *image);
	/* Its last page is one more, whatever becomes of the capture, and the state is one more
	 * that may go. Not before: what leaves keeps its slot for a while. */
	pool_trim(p);
	return skip;
}

static void replace(struct pool *p, uint32_t image)
{
	p->images.counts.replaced++;
	habits_drop(&p->images, image);
	pool_give_up(p, image);
}

/* The lineage goes on: what it leaves behind gives up its slot. */
static void join(struct pool *p, uint32_t image)
{
	struct images *s = &p->images;
	struct image *it = &s->image[image];
	uint32_t before = image_find(s, it->after);
	uint32_t user;

	it->latest = true;
	if (before == IMAGE_NONE || s->image[before].kind != IMAGE_CHECKPOINT ||
	    !s->image[before].latest) {
		it->lineage = ++s->next_lineage;
		if (it->is_user)
			it->user = image_name(s, image);
		return;
	}
	it->lineage = s->image[before].lineage;
	it->user = s->image[before].user;
	s->image[before].latest = false;
	user = image_find(s, it->user);
	if (it->is_user)
		it->user = image_name(s, image);
	if (it->is_user && user != IMAGE_NONE && user != before) {
		replace(p, user);
	}
	if (before != user || it->is_user) {
		replace(p, before);
	}
}

void capture_end(struct pool *p, uint32_t image, bool filled)
{
	struct image *it = &p->images.image[image];

	must(it->state == IMAGE_FILLING);
	if (!filled) {
		pool_give_up(p, image);
		return;
	}
	image_filled(&p->images, image);
	if (it->kind == IMAGE_CHECKPOINT)
		join(p, image);
	pool_trim(p);
}

/* ---- where to capture ---- */

/* The last ones stay. */
static void keep_point(struct capture_points *out, uint32_t tokens)
{
	uint32_t at = out->n;

	while (at > 0 && out->tokens[at - 1] > tokens)
		at--;
	if (at > 0 && out->tokens[at - 1] == tokens)
		return;
	if (out->n == CAPTURE_POINTS) {
		if (at == 0)
			return;
		/* The first one goes. */
		for (uint32_t i = 1; i < at; i++)
			out->tokens[i - 1] = out->tokens[i];
		out->tokens[at - 1] = tokens;
		return;
	}
	for (uint32_t i = out->n; i > at; i--)
		out->tokens[i] = out->tokens[i - 1];
	out->tokens[at] = tokens;
	out->n++;
}

static void add_point(const struct pool *p, const struct match_wish *w, uint32_t cached,
		      uint32_t tokens, struct capture_points *out)
{
	uint32_t n = w->n_images;

	if (tokens > cached && tokens <= w->n_tokens && tokens >= p->limits.min_capture_tokens &&
	    !match_in_image(w, tokens, &n))
		keep_point(out, tokens);
}

/* From the last one on, past an image at once: chunks may be as small as a token, and the prompt
 * full of images. */
static void add_chunks(const struct pool *p, const struct match_wish *w, uint32_t cached,
		       uint32_t chunk, struct capture_points *out)
{
	uint32_t end = w->n_tokens - 1, n = w->n_images;

	while (end > cached && end - cached >= chunk && out->n < CAPTURE_POINTS) {
		end -= (end - cached) % chunk;
		if (end < p->limits.min_capture_tokens)
			return;
		if (match_in_image(w, end, &n)) {
			end = w->images[n - 1].start;
		} else {
			keep_point(out, end);
			end -= chunk;
		}
	}
}

void capture_plan(const struct pool *p, const struct match_wish *w, uint32_t cached_tokens,
		  uint32_t chunk_tokens, uint32_t system_end_tokens, uint32_t opener_tokens,
		  struct capture_points *out)
{
	uint32_t page_tokens = p->limits.page_tokens;

	*out = (struct capture_points){0};
	if (!p->hybrid || w->off || p->limits.prefix_budget == 0)
		return;
	if (chunk_tokens && w->n_tokens)
		add_chunks(p, w, cached_tokens, chunk_tokens, out);
	add_point(p, w, cached_tokens, system_end_tokens / page_tokens * page_tokens, out);
	add_point(p, w, cached_tokens, opener_tokens / page_tokens * page_tokens, out);
	add_point(p, w, cached_tokens, opener_tokens, out);
}
