/* SPDX-License-Identifier: Apache-2.0 */
/* opening: see opening.h. */
#include "tests/unit/opening.h"

#include "tests/unit/pool_world.h"

struct opening *opening_begin(struct pool *p, const struct match_wish *wish, uint32_t max_tokens)
{
	struct opening *o = calloc(1, sizeof(*o));

	*o = (struct opening){.pool = p, .wish = *wish};
	assert_int_equal(seq_new(p, wish->name_space, max_tokens, &o->s), 0);
	if (seq_admit(o->s)) {
		world_close(&o->s);
		free(o);
		return NULL;
	}
	o->path = malloc((match_room(p, wish) + 1) * sizeof(*o->path));
	match_begin(&o->m, p, &o->wish, o->path, retain_open(&p->retain));
	return o;
}

/* Ask for those pages that nobody has asked for yet. */
static int ask(struct opening *o, uint32_t *budget)
{
	struct pool *p = o->pool;

	for (; o->asked < o->m.walk.position; o->asked++) {
		const struct node *n = &p->prefix.nodes[o->path[o->asked]];
		int r;

		if (n->copies[TIER_DEVICE] != COPY_NONE || !node_is_in_ram(n))
			continue;
		if (*budget == 0)
			return POOL_MORE;
		--*budget;
		r = pool_fetch(p, o->path[o->asked]);
		if (r == POOL_NEVER)
			break;
		if (r == POOL_WAIT)
			(void)pool_make_room(p, 1);
		if (r)
			return r;
	}
	return 0;
}

/* 0: all are there; POOL_MORE: fewer are to be had, or the budget is over. */
static int fetch(struct opening *o, uint32_t *budget)
{
	int r;

	if (!o->fetches) {
		o->fetches = true;
		o->asked = o->m.walk.on_device;
		o->fetched = o->asked;
	}
	r = ask(o, budget);
	if (r)
		return r;
	for (; o->fetched < o->m.walk.position; o->fetched++) {
		const struct node *n = &o->pool->prefix.nodes[o->path[o->fetched]];

		if (node_is_on_device(n))
			continue;
		if (n->moves & NODE_FILLING && !(n->moves & NODE_FAILED))
			return POOL_WAIT;
		match_cut(&o->m, o->fetched);
		return POOL_MORE;
	}
	return 0;
}

int opening_turn(struct opening **open, uint32_t budget, struct seq **s)
{
	struct opening *o = *open;
	size_t bytes = o->wish.n_tokens * sizeof(uint32_t);
	size_t images_bytes = o->wish.n_images * sizeof(struct key_image);
	struct key_image *images;
	uint32_t *ids;
	int r;

	if (match_turn(&o->m, &budget))
		return POOL_MORE;
	if (o->m.walk.position > o->m.walk.on_device && o->fetched < o->m.walk.position) {
		r = fetch(o, &budget);
		if (r)
			return r;
	}
	match_count(&o->m);
	ids = malloc(bytes + 1);
	memcpy(ids, o->wish.tokens, bytes);
	images = images_bytes ? malloc(images_bytes) : NULL;
	if (images)
		memcpy(images, o->wish.images, images_bytes);
	for (uint32_t i = 0; i < o->m.walk.position; i++) {
		const struct node *n = &o->pool->prefix.nodes[o->path[i]];

		assert_true(node_is_on_device(n) && !(n->moves & NODE_LEAVING));
	}
	assert_int_equal(seq_take_match(o->s, &o->m, ids, images), 0);
	*s = o->s;
	free(o->path);
	free(o);
	*open = NULL;
	return 0;
}

void opening_abandon(struct opening **open)
{
	struct opening *o = *open;

	if (o->m.held != NODE_NONE) {
		o->s->node = o->m.held;
		o->s->leaving = o->m.leaving;
		o->m.held = NODE_NONE;
		retain_let_go(&o->pool->retain, &o->m.run);
	}
	world_close(&o->s);
	free(o->path);
	free(o);
	*open = NULL;
}
