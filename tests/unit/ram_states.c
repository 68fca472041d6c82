/* SPDX-License-Identifier: Apache-2.0 */
/* ram_states: see ram_states.h. */
#include "tests/unit/ram_states.h"

#include "daemon/state/pool_states.h"

uint32_t ram_states_capture_begins(struct ram_world *w, uint32_t pool, struct seq *s,
				   enum image_kind kind)
{
	struct ram_world_pool *p = &w->pools[pool];
	uint32_t tail = s->tail_node, image;
	enum capture_skip skip;

	s->follows.image = IMAGE_NONE;
	skip = capture_begin(s, kind, false, &image);
	/* Its partial page has got an identity. */
	if (s->tail_node != tail)
		ram_world_fill_node(w, pool, s->tail_node);
	if (skip != CAPTURE_MADE)
		return IMAGE_NONE;
	if (p->pool.images.image[image].place != COPY_NONE)
		ram_image_begin(&p->ram, image, true);
	return image;
}

void ram_states_capture_ends(struct ram_world *w, uint32_t pool, uint32_t image, int result)
{
	struct ram_world_pool *p = &w->pools[pool];
	uint32_t place = p->pool.images.image[image].place;

	if (!result)
		ram_world_fill_image(w, pool, image);
	if (place != COPY_NONE)
		ram_image_end(&p->ram, place, true, result == 0, 0);
	capture_end(&p->pool, image, result == 0);
}

static void assert_has_image(const struct ram_world *w, uint32_t pool, const struct opening *o)
{
	const struct image *it = &w->pools[pool].pool.images.image[o->name.image];

	assert_int_equal(it->id, o->name.id);
	assert_true(ram_world_has_image(w, pool, it->node, o->slot, o->place));
}

int ram_states_open_turn(struct ram_world *w, uint32_t pool, struct opening **o, uint32_t budget,
			 struct seq **s)
{
	struct ram_world_pool *p = &w->pools[pool];
	bool copied = (*o)->copying;
	int r = opening_turn(o, budget, s);

	if (*o && (*o)->copying && !copied) {
		assert_has_image(w, pool, *o);
		if ((*o)->place != COPY_NONE)
			ram_image_begin(&p->ram, (*o)->name.image, false);
	}
	return r;
}

void ram_states_claim_ends(struct ram_world *w, uint32_t pool, struct opening **o, int result)
{
	assert_has_image(w, pool, *o);
	if ((*o)->place != COPY_NONE)
		ram_image_end(&w->pools[pool].ram, (*o)->place, false, result == 0, 0);
	opening_image_came(o, result);
}

struct seq *ram_states_open(struct ram_world *w, uint32_t pool, const struct states_text *text,
			    uint32_t n)
{
	uint32_t *tokens = states_tokens(text, n);
	struct match_wish wish = states_wish(text, tokens, n);
	struct opening *o = opening_begin(&w->pools[pool].pool, &wish, n);
	struct seq *s = NULL;

	assert_non_null(o);
	while (ram_states_open_turn(w, pool, &o, ALL, &s)) {
		if (o->copying)
			ram_states_claim_ends(w, pool, &o, 0);
		else
			ram_world_settle(w);
	}
	if (text->interactive)
		seq_set_rank(s, (struct pool_rank){.interactive = true, .serial = 1});
	free(tokens);
	return s;
}

void ram_states_step(struct ram_world *w, uint32_t pool, struct seq *s, uint32_t target)
{
	for (uint32_t i = 0; !ram_world_step(w, pool, s, target); i++) {
		assert_true(i < 100);
		ram_world_settle(w);
		world_clean(&w->pools[pool].pool);
	}
}

struct image_name ram_states_retain(struct ram_world *w, uint32_t pool,
				    const struct states_text *text, uint32_t n)
{
	struct seq *s = ram_states_open(w, pool, text, n);
	struct image_name name;
	uint32_t image;

	ram_states_step(w, pool, s, n);
	image = ram_states_capture_begins(w, pool, s, text->kind);
	assert_int_not_equal(image, IMAGE_NONE);
	name = image_name(&w->pools[pool].pool.images, image);
	ram_states_capture_ends(w, pool, image, 0);
	world_close(&s);
	return name;
}

void ram_states_push_down(struct ram_world *w, uint32_t pool, struct image_name name)
{
	struct pool *p = &w->pools[pool].pool;

	for (uint32_t i = 0; pool_push_down(p, name.image) == POOL_WAIT; i++) {
		assert_true(i < 100);
		ram_world_settle(w);
	}
	ram_world_settle(w);
	world_clean(p);
}

struct image_name ram_states_put_down(struct ram_world *w, uint32_t pool,
				      const struct states_text *text, uint32_t n)
{
	struct image_name name = ram_states_retain(w, pool, text, n);

	ram_states_push_down(w, pool, name);
	return name;
}

uint32_t ram_states_reuse(struct ram_world *w, uint32_t pool, const struct states_text *text,
			  uint32_t n)
{
	struct seq *s = ram_states_open(w, pool, text, n);
	uint32_t had = s->committed;

	world_close(&s);
	return had;
}
