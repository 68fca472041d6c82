/* SPDX-License-Identifier: Apache-2.0 */
/* opening: see opening.h. */
#include "tests/unit/opening.h"

#include "daemon/state/pool_states.h"
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

static void free_opening(struct opening **open)
{
	free((*open)->path);
	free(*open);
	*open = NULL;
}

/* Ask for those pages that nobody has asked for yet. */
static int ask(struct opening *o, uint32_t *budget)
{
	struct pool *p = o->pool;

	for (; o->asked < match_nodes(&o->m); o->asked++) {
		uint32_t node = match_node(&o->m, o->asked);
		const struct node *n = &p->prefix.nodes[node];
		int r;

		if (n->copies[TIER_DEVICE] != COPY_NONE || !node_is_in_ram(n))
			continue;
		if (*budget == 0)
			return POOL_MORE;
		--*budget;
		r = pool_fetch(p, node);
		if (r == POOL_NEVER)
			break;
		if (r == POOL_WAIT)
			(void)pool_make_room(p, 1);
		if (r)
			return r;
	}
	return 0;
}

/* Another, shorter match has been found: its full pages are here, a partial one may not be. */
static void look_again(struct opening *o)
{
	if (o->asked > o->m.walk.position)
		o->asked = o->m.walk.position;
	if (o->fetched > o->m.walk.position)
		o->fetched = o->m.walk.position;
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
	for (; o->fetched < match_nodes(&o->m); o->fetched++) {
		const struct node *n = &o->pool->prefix.nodes[match_node(&o->m, o->fetched)];

		if (node_is_on_device(n))
			continue;
		if (n->moves & NODE_FILLING && !(n->moves & NODE_FAILED))
			return POOL_WAIT;
		match_cut(&o->m, o->fetched);
		return POOL_MORE;
	}
	return 0;
}

static void copy_image(struct opening *o)
{
	struct images *images = &o->pool->images;
	const struct image *it = &images->image[o->m.image];

	o->copying = true;
	o->name = image_name(images, o->m.image);
	o->slot = it->slot;
	o->place = it->slot == SLOT_NONE ? it->place : COPY_NONE;
	o->lane = o->s->lane;
	o->m.claimed = false; /* until the copy is done */
	lane_job(images, o->lane);
}

void opening_image_came(struct opening **open, int result)
{
	struct opening *o = *open;
	struct pool *p = o->pool;

	assert_true(o->copying);
	o->copying = false;
	lane_job_done(&p->images, o->lane);
	if (o->place != COPY_NONE || (result == 0 && o->s && o->m.from_ram))
		pool_image_came(p, o->name.image, result, o->s, o->m.from_ram);
	pool_claim_done(p, o->name.image);
	if (!o->s) {
		free_opening(open);
		return;
	}
	o->copied = result == 0;
	if (o->copied)
		return;
	assert_int_not_equal(o->place, COPY_NONE); /* else the pool has failed */
	match_go_back(&o->m);
}

static void assert_is_here(const struct opening *o)
{
	for (uint32_t i = 0; i < match_nodes(&o->m); i++) {
		const struct node *n = &o->pool->prefix.nodes[match_node(&o->m, i)];

		assert_true(node_is_on_device(n) && !(n->moves & NODE_LEAVING));
	}
}

int opening_turn(struct opening **open, uint32_t budget, struct seq **s)
{
	struct opening *o = *open;
	size_t bytes = o->wish.n_tokens * sizeof(uint32_t);
	size_t images_bytes = o->wish.n_images * sizeof(struct key_image);
	struct key_image *images;
	bool was_found = o->m.done;
	uint32_t *ids;
	int r;

	if (o->copying)
		return POOL_WAIT;
	if (match_turn(&o->m, &budget))
		return POOL_MORE;
	if (!was_found)
		look_again(o);
	if (o->m.from_ram && o->fetched < match_nodes(&o->m) && !o->copied) {
		r = fetch(o, &budget);
		if (r)
			return r;
	}
	if (o->m.image != IMAGE_NONE && !o->copied) {
		copy_image(o);
		return POOL_WAIT;
	}
	match_count(&o->m);
	ids = malloc(bytes + 1);
	memcpy(ids, o->wish.tokens, bytes);
	images = images_bytes ? malloc(images_bytes) : NULL;
	if (images)
		memcpy(images, o->wish.images, images_bytes);
	assert_is_here(o);
	assert_int_equal(seq_take_match(o->s, &o->m, ids, images), 0);
	*s = o->s;
	free_opening(open);
	return 0;
}

void opening_abandon(struct opening **open)
{
	struct opening *o = *open;

	match_unclaim(&o->m);
	if (o->m.held != NODE_NONE) {
		o->s->node = o->m.held;
		o->s->leaving = o->m.leaving;
		o->s->tail_node = o->m.partial;
		o->m.held = NODE_NONE;
		retain_let_go(&o->pool->retain, &o->m.run);
	}
	world_close(&o->s);
	if (!o->copying)
		free_opening(open);
}
