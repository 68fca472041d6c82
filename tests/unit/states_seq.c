/* SPDX-License-Identifier: Apache-2.0 */
/* states_seq: sequences, captures and opens of states_world.h, and words for where things are. */
#include "tests/unit/states_world.h"

#include <stdio.h>

/* ---- sequences ---- */

void states_commit(struct states *w, struct seq *s, uint32_t tokens)
{
	const struct pool *p = &w->pool;
	uint32_t before = s->published, node;

	world_commit(s, tokens, NULL);
	node = s->node;
	for (uint32_t i = s->published; i > before; i--) {
		const struct node *it = &p->prefix.nodes[node];

		if (it->copies[TIER_DEVICE] == seq_page(s, i - 1))
			w->in_page[it->copies[TIER_DEVICE]] = it->key.low;
		node = it->parent;
	}
}

void states_step(struct states *w, struct seq *s, uint32_t target)
{
	uint32_t n;
	int r;

	assert_int_equal(step_wants(s, target, 0, &n), 0);
	for (int i = 0; (r = step_begin(s, target, 0, n)) == POOL_WAIT && i < 1000; i++) {
		states_settle(w);
		world_clean(&w->pool);
	}
	assert_int_equal(r, 0);
	states_commit(w, s, target - s->step.start);
}

uint32_t states_capture_begins(struct states *w, struct seq *s, enum image_kind kind, bool is_user,
			       enum capture_skip *skip)
{
	uint32_t tail = s->tail_node, image;
	enum capture_skip r = capture_begin(s, kind, is_user, &image);

	/* Its partial page has got an identity. */
	if (s->tail_node != tail) {
		const struct node *n = &w->pool.prefix.nodes[s->tail_node];

		w->in_page[n->copies[TIER_DEVICE]] = n->key.low;
	}
	if (skip)
		*skip = r;
	return r == CAPTURE_MADE ? image : IMAGE_NONE;
}

void states_capture_ends(struct states *w, uint32_t image, int result)
{
	const struct image *it = &w->pool.images.image[image];
	uint64_t word = result ? 0 : states_word(w, it->node);

	if (it->slot != SLOT_NONE)
		w->in_slot[it->slot] = word;
	else
		w->at[it->place].word = word;
	capture_end(&w->pool, image, result == 0);
}

uint32_t states_capture(struct states *w, struct seq *s)
{
	uint32_t image;

	s->follows.image = IMAGE_NONE;
	image = states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL);
	assert_int_not_equal(image, IMAGE_NONE);
	states_capture_ends(w, image, 0);
	return image;
}

struct opening *states_open_begins(struct states *w, const struct match_wish *wish,
				   uint32_t max_tokens)
{
	struct opening *o = opening_begin(&w->pool, wish, max_tokens);

	for (uint32_t i = 0; o && i < STATES_OPENS; i++) {
		if (!w->opens[i]) {
			w->opens[i] = o;
			return o;
		}
	}
	assert_null(o);
	return NULL;
}

static void forget(struct states *w, const struct opening *o)
{
	for (uint32_t i = 0; i < STATES_OPENS; i++) {
		if (w->opens[i] == o)
			w->opens[i] = NULL;
	}
}

int states_open_turn(struct states *w, struct opening **o, uint32_t budget, struct seq **s)
{
	const struct opening *was = *o;
	int r = opening_turn(o, budget, s);

	if (!*o)
		forget(w, was);
	return r;
}

void states_open_abandon(struct states *w, struct opening **o)
{
	const struct opening *was = *o;

	opening_abandon(o);
	if (!*o)
		forget(w, was);
}

struct seq *states_open_wish(struct states *w, const struct match_wish *wish, uint32_t max_tokens)
{
	struct opening *o = states_open_begins(w, wish, max_tokens);
	struct seq *s = NULL;

	assert_non_null(o);
	while (states_open_turn(w, &o, ALL, &s)) {
		if (o->copying)
			states_claim_ends(w, &o, 0);
		else
			states_settle(w);
	}
	if (wish->interactive && list_is_empty(&s->in_rank))
		seq_set_rank(s, (struct pool_rank){.interactive = true, .serial = ++w->serial});
	return s;
}

struct seq *states_open(struct states *w, const struct states_text *text, uint32_t n)
{
	uint32_t *tokens = states_tokens(text, n);
	struct match_wish wish = states_wish(text, tokens, n);
	struct seq *s = states_open_wish(w, &wish, n);

	free(tokens);
	return s;
}

uint32_t states_retain(struct states *w, const struct states_text *text, uint32_t n)
{
	struct seq *s = states_open(w, text, n);
	uint32_t image;

	if (s->committed < n)
		states_step(w, s, n);
	s->follows.image = IMAGE_NONE;
	image = states_capture_begins(w, s, text->kind, false, NULL);
	assert_int_not_equal(image, IMAGE_NONE);
	states_capture_ends(w, image, 0);
	world_close(&s);
	states_check(w);
	return image;
}

uint32_t states_found(struct states *w, const struct states_text *text, uint32_t n)
{
	uint32_t *tokens = states_tokens(text, n);
	struct match_wish wish = states_wish(text, tokens, n);
	uint32_t *path = malloc((match_room(&w->pool, &wish) + 1) * sizeof(*path));
	struct match m;
	uint32_t all = ALL;

	match_begin(&m, &w->pool, &wish, path, 0);
	assert_int_equal(match_turn(&m, &all), 0);
	free(path);
	free(tokens);
	return match_tokens(&m);
}

uint32_t states_reuse(struct states *w, const struct states_text *text, uint32_t n)
{
	struct seq *s = states_open(w, text, n);
	uint32_t had = s->committed;

	world_close(&s);
	states_check(w);
	return had;
}

/* ---- where they are ---- */

const char *states_where(const struct states *w, struct image_name name)
{
	static char text[8];
	const struct image *it = &w->pool.images.image[name.image];

	if (it->id != name.id || it->state == IMAGE_FREE)
		return "-";
	snprintf(text, sizeof(text), "%s%s%s%s%s", it->state == IMAGE_DOOMED ? "X" : "",
		 it->on_device ? "D" : "", it->in_ram ? "R" : "", it->slot != SLOT_NONE ? "s" : "",
		 it->place != COPY_NONE ? "p" : "");
	return text;
}

static void tell_page(const struct node *n, char **at)
{
	char *from = *at;

	if (n->copies[TIER_DEVICE] != COPY_NONE)
		*(*at)++ = n->moves & NODE_FAILED    ? 'x'
			   : n->moves & NODE_FILLING ? 'f'
			   : n->moves & NODE_LEAVING ? 'l'
						     : 'd';
	if (n->copies[TIER_RAM] != COPY_NONE)
		*(*at)++ = n->moves & NODE_FILLING_RAM  ? 'F'
			   : n->moves & NODE_SPOILT_RAM ? 'S'
							: 'R';
	if (*at == from)
		*(*at)++ = '-';
	**at = 0;
}

const char *states_pages(const struct states *w, uint32_t image)
{
	static char text[256];
	const struct node *nodes = w->pool.prefix.nodes;
	uint32_t path[64], n = 0;
	char *at = text;

	for (uint32_t node = w->pool.images.image[image].node; nodes[node].kind == NODE_TOKENS;
	     node = nodes[node].parent)
		path[n++] = node;
	while (n > 0 && at < text + sizeof(text) - 4) {
		if (at != text)
			*at++ = ' ';
		tell_page(&nodes[path[--n]], &at);
	}
	return text;
}
