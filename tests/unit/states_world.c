/* SPDX-License-Identifier: Apache-2.0 */
/* states_world: see states_world.h. */
#include "tests/unit/states_world.h"

#define COPIES 4096u /* of a kind under way, at most */

/* ---- the tier below: room ---- */

static int take_units(struct states *w, uint32_t units, enum pool_need need, uint32_t *place)
{
	if (w->says && w->says_after == 0)
		return w->says;
	w->says_after -= w->says != 0;
	if (w->used + units > w->units) {
		w->plans_broken += need == POOL_NEED_NONE && w->planned;
		return need >= POOL_NEED_HEAD ? POOL_WAIT : POOL_NEVER;
	}
	while (w->at[w->next % w->places].node != NODE_NONE)
		w->next++;
	*place = w->next++ % w->places;
	w->at[*place].word = 0;
	w->used += units;
	return 0;
}

static int take(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	struct states *w = context;
	int r = take_units(w, 1, need, place);

	if (r == 0) {
		w->at[*place].node = node;
		w->at[*place].image = IMAGE_NONE;
	}
	return r;
}

static int take_image(void *context, uint32_t image, enum pool_need need, uint32_t *place)
{
	struct states *w = context;
	int r = take_units(w, w->image_units, need, place);

	if (r == 0) {
		w->at[*place].node = w->pool.images.image[image].node;
		w->at[*place].image = image;
	}
	return r;
}

static void give(void *context, uint32_t place)
{
	struct states *w = context;
	uint32_t units = w->at[place].image == IMAGE_NONE ? 1 : w->image_units;

	assert_true(place < w->places && w->at[place].node != NODE_NONE && w->used >= units);
	w->at[place] = (struct states_place){.node = NODE_NONE};
	w->used -= units;
}

static struct retain_rank rank_of(const struct states *w, uint32_t image)
{
	return image_rank(&w->pool.images, image, w->pool.retain.now_ns,
			  w->pool.limits.interactive_ttl_ns);
}

/* What ranks below the newcomer, as little of it as suffices, or nothing. */
static int plan(void *context, uint32_t image, uint32_t pages, bool with_image)
{
	struct states *w = context;
	struct pool *p = &w->pool;
	uint32_t wanted = pages + (with_image ? w->image_units : 0);
	uint32_t victim[256], n = 0, freed = 0;
	struct retain_rank rank;
	bool enough;

	w->plans++;
	while (w->units - w->used + freed < wanted) {
		uint32_t next = image_next_in_ram(&p->images, UINT64_MAX, p->retain.now_ns,
						  p->limits.interactive_ttl_ns, &rank);

		if (next == IMAGE_NONE || !retain_ranks_below(rank, rank_of(w, image)))
			break;
		freed += w->image_units + pool_plan_give_up(p, next);
		victim[n++] = next;
	}
	enough = w->units - w->used + freed >= wanted;
	for (uint32_t i = n; i > 0; i--)
		pool_plan_undo(p, victim[i - 1]);
	w->planned = enough;
	if (!enough)
		return POOL_NEVER;
	w->plans_made++;
	for (uint32_t i = 0; i < n; i++)
		pool_give_up(p, victim[i]);
	return 0;
}

/* Live sequences stay where they are here. */
static uint64_t no_room(void *context)
{
	(void)context;
	return 0;
}

/* ---- copies ---- */

static void push(struct states *w, struct states_queue *q, uint32_t node)
{
	const struct node *n = &w->pool.prefix.nodes[node];

	assert_true(states_copies(q) < COPIES);
	q->copy[q->end++ % COPIES] = (struct states_copy){.node = node,
							  .id = n->id,
							  .page = n->copies[TIER_DEVICE],
							  .place = n->copies[TIER_RAM]};
}

static void down(void *context, uint32_t node)
{
	struct states *w = context;

	w->at[w->pool.prefix.nodes[node].copies[TIER_RAM]].word = 0;
	push(w, &w->down, node);
}

static void up(void *context, uint32_t node)
{
	struct states *w = context;

	w->in_page[w->pool.prefix.nodes[node].copies[TIER_DEVICE]] = 0;
	push(w, &w->up, node);
}

static void spill(void *context, uint32_t image)
{
	struct states *w = context;

	assert_true(states_spills(w) < COPIES);
	w->at[w->pool.images.image[image].place].word = 0;
	w->spills[w->end_spill++ % COPIES] = image;
}

/* The oldest one; its page and its place are still its own. */
static struct states_copy pop(struct states *w, struct states_queue *q)
{
	struct states_copy c;
	const struct node *n;

	assert_true(q->first != q->end);
	c = q->copy[q->first++ % COPIES];
	n = &w->pool.prefix.nodes[c.node];
	assert_true(n->kind == NODE_TOKENS && n->id == c.id);
	assert_int_equal(n->copies[TIER_DEVICE], c.page);
	assert_int_equal(n->copies[TIER_RAM], c.place);
	return c;
}

void states_down_ends(struct states *w, int result)
{
	struct states_copy c = pop(w, &w->down);

	if (!result)
		w->at[c.place].word = w->in_page[c.page];
	pool_came_down(&w->pool, c.node, result);
}

void states_up_ends(struct states *w, int result)
{
	struct states_copy c = pop(w, &w->up);

	if (!result)
		w->in_page[c.page] = w->at[c.place].word;
	pool_came_up(&w->pool, c.node, result);
}

void states_spill_ends(struct states *w, int result)
{
	uint32_t image = w->spills[w->first_spill++ % COPIES];
	const struct image *it = &w->pool.images.image[image];

	assert_true(it->spilling && w->at[it->place].image == image);
	if (!result)
		w->at[it->place].word = w->in_slot[it->slot];
	pool_spilled(&w->pool, image, result);
}

/* It had the bytes of its state from the begin of the copy to its end. */
void states_claim_ends(struct states *w, struct opening **o, int result)
{
	struct opening *it = *o;
	uint32_t node = w->pool.images.image[it->name.image].node;
	uint64_t word = it->place == COPY_NONE ? w->in_slot[it->slot] : w->at[it->place].word;

	assert_int_equal(w->pool.images.image[it->name.image].id, it->name.id);
	assert_true(word == states_word(w, node));
	for (uint32_t i = 0; i < STATES_OPENS && !it->s; i++) {
		if (w->opens[i] == it)
			w->opens[i] = NULL;
	}
	opening_image_came(o, result);
}

void states_settle(struct states *w)
{
	for (bool more = true; more;) {
		more = false;
		for (; states_copies(&w->down); more = true)
			states_down_ends(w, 0);
		for (; states_copies(&w->up); more = true)
			states_up_ends(w, 0);
		for (; states_spills(w); more = true)
			states_spill_ends(w, 0);
	}
}

void states_make_room(struct states *w, uint32_t n)
{
	for (uint32_t i = 0; pages_free(&w->pool.pages) < n; i++) {
		bool room = pool_make_room(&w->pool, n);

		assert_true(i < 1000 && (room || states_copies(&w->down)));
		states_settle(w);
	}
	world_clean(&w->pool);
}

void states_push_down(struct states *w, uint32_t image)
{
	assert_int_equal(pool_push_down(&w->pool, image), 0);
}

void states_wait(struct states *w, uint64_t ns)
{
	w->pool.retain.now_ns += ns;
}

/* ---- the pool ---- */

void states_init(struct states *w, const struct states_limits *limits)
{
	uint32_t in_ram = limits->units ? limits->units / limits->image_units : 0;
	struct pool_limits wanted = {.pages = limits->pages,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = limits->pages + 64,
				     .ram_pages = limits->units,
				     .name_spaces = RETAIN_NAMESPACES,
				     .prefix_budget =
					 limits->budget ? limits->budget : limits->pages,
				     .lanes = limits->lanes ? limits->lanes : 8,
				     .retained_slots = limits->slots,
				     .ram_images = in_ram,
				     .ram_floor_tokens = limits->floor_tokens,
				     .order = limits->order,
				     .interactive_ttl_ns = 300 * SECOND};

	failpoint_clear();
	world_maker.kept_bits = 128;
	memset(world_maker.secret, 7, sizeof(world_maker.secret));
	*w = (struct states){.units = limits->units, .image_units = limits->image_units};
	assert_int_equal(pool_init(&w->pool, &wanted, &world_maker, world_stamp), 0);
	w->pool.retain.now_ns = 1000 * SECOND;
	w->down.copy = calloc(COPIES, sizeof(*w->down.copy));
	w->up.copy = calloc(COPIES, sizeof(*w->up.copy));
	w->spills = calloc(COPIES, sizeof(*w->spills));
	w->places = limits->units + 1;
	w->at = calloc(w->places, sizeof(*w->at));
	w->in_page = calloc(limits->pages, sizeof(*w->in_page));
	w->in_slot = calloc(limits->slots + 1, sizeof(*w->in_slot));
	for (uint32_t i = 0; i < w->places; i++)
		w->at[i].node = NODE_NONE;
	w->below = (struct pool_below){.take = take,
				       .take_image = take_image,
				       .plan = plan,
				       .spill = spill,
				       .give = give,
				       .down = down,
				       .up = up,
				       .room = no_room,
				       .context = w};
	if (limits->units)
		w->pool.below = &w->below;
}

static void end_all(struct states *w)
{
	w->says = 0;
	memset(protection_off, 0, sizeof(protection_off));
	for (uint32_t i = 0; i < STATES_OPENS; i++) {
		struct opening *o = w->opens[i];

		if (o && o->s)
			states_open_abandon(w, &o);
		if (o)
			states_claim_ends(w, &o, 0);
	}
	while (!list_is_empty(&w->pool.members)) {
		struct seq *s = list_entry(list_first(&w->pool.members), struct seq, in_pool);
		uint32_t all = ALL;

		step_end(s, false);
		seq_close_turn(&s, &all);
	}
	states_settle(w);
}

void states_deinit(struct states *w)
{
	const char *wrong = states_wrong(w);
	uint32_t all = ALL;

	end_all(w);
	if (!wrong) {
		assert_true(pool_drop_states(&w->pool, RETAIN_NAMESPACES, &all));
		states_settle(w);
		wrong = states_wrong(w);
		/* With the last state the last page goes: nothing is kept for nothing. */
		assert_int_equal(w->used, 0);
		assert_int_equal(w->pool.indexed, 0);
		assert_int_equal(w->pool.prefix.used, 0);
		assert_int_equal(w->pool.images.slots_free, w->pool.images.n_slots);
		assert_int_equal(w->pool.images.lanes_free, w->pool.images.n_lanes);
	}
	free(w->down.copy);
	free(w->up.copy);
	free(w->spills);
	free(w->at);
	free(w->in_page);
	free(w->in_slot);
	world_deinit(&w->pool);
	if (wrong)
		fail_msg("%s", wrong);
}

/* ---- what must hold ---- */

static const char *wrong_pages(const struct states *w, uint32_t *units)
{
	const struct node *nodes = w->pool.prefix.nodes;
	uint32_t filling = 0, filling_ram = 0;

	for (uint32_t i = 0; i < w->pool.prefix.fresh; i++) {
		const struct node *n = &nodes[i];
		uint32_t place = n->copies[TIER_RAM];

		if (n->kind != NODE_TOKENS)
			continue;
		filling += (n->moves & NODE_FILLING) && !(n->moves & NODE_FAILED);
		filling_ram += !!(n->moves & NODE_FILLING_RAM);
		*units += place != COPY_NONE;
		if (place != COPY_NONE &&
		    (w->at[place].node != i || w->at[place].image != IMAGE_NONE))
			return "a place below is not its page's";
		if (node_is_in_ram(n) && w->at[place].word != n->key.low)
			return "in a place below are not the bytes of its page";
		if (node_is_on_device(n) && w->in_page[n->copies[TIER_DEVICE]] != n->key.low)
			return "in a page are not the bytes of its node";
	}
	if (filling_ram != states_copies(&w->down))
		return "copies down are under way that no page waits for, or the reverse";
	if (filling != states_copies(&w->up) || filling != w->pool.arriving)
		return "copies up are under way that no page waits for, or the reverse";
	return NULL;
}

/* Pages and places belong to who has asked for a copy until it ends. */
static const char *wrong_queue(const struct states *w, const struct states_queue *q)
{
	for (uint32_t i = q->first; i != q->end; i++) {
		const struct states_copy *c = &q->copy[i % COPIES];
		const struct node *n = &w->pool.prefix.nodes[c->node];

		if (n->kind != NODE_TOKENS || n->id != c->id)
			return "a page is gone while it is copied";
		if (n->copies[TIER_DEVICE] != c->page || n->copies[TIER_RAM] != c->place)
			return "a page has left a tier while it is copied from there or to it";
	}
	return NULL;
}

static const char *wrong_images(const struct states *w, uint32_t *units)
{
	const struct images *s = &w->pool.images;
	uint32_t spilling = 0;

	for (uint32_t i = 0; i < s->n_images; i++) {
		const struct image *it = &s->image[i];
		uint64_t word;

		if (it->state == IMAGE_FREE)
			continue;
		spilling += it->spilling;
		*units += it->place == COPY_NONE ? 0 : w->image_units;
		word = states_word(w, it->node);
		if (it->place != COPY_NONE && w->at[it->place].image != i)
			return "a place below is not its state's";
		if (it->state == IMAGE_FILLING)
			continue;
		if (it->slot != SLOT_NONE && w->in_slot[it->slot] != word)
			return "in a slot are not the bytes of its image";
		if (it->place != COPY_NONE && !it->spilling && w->at[it->place].word != word)
			return "in a place below are not the bytes of its image";
	}
	return spilling == states_spills(w) ? NULL : "an image waits for no copy, or the reverse";
}

const char *states_wrong(const struct states *w)
{
	uint32_t units = 0;
	const char *wrong = wrong_pages(w, &units);

	if (!wrong)
		wrong = wrong_queue(w, &w->down);
	if (!wrong)
		wrong = wrong_queue(w, &w->up);
	if (!wrong)
		wrong = wrong_images(w, &units);
	if (!wrong && units != w->used)
		wrong = "more places below are taken than pages and images are there";
	return wrong ? wrong : pool_check(&w->pool, true);
}

void states_check(const struct states *w)
{
	const char *wrong = states_wrong(w);

	if (wrong)
		fail_msg("%s", wrong);
}
