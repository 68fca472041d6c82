/* SPDX-License-Identifier: Apache-2.0 */
/* pool_states: see pool_states.h. Core thread; nothing here blocks. */
#include "daemon/state/pool_states.h"

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

/* ---- pages ---- */

static void drop_useless_in_ram(struct pool *p, uint32_t node)
{
	const struct node *nodes = p->prefix.nodes;
	uint32_t above;

	/* Its copy has gone: what that stood on may have waited for it. */
	if (nodes[node].copies[TIER_RAM] == COPY_NONE)
		node = nodes[node].parent;
	for (; node != NODE_NONE && nodes[node].kind == NODE_TOKENS &&
	       prefix_may_leave(&p->prefix, node, TIER_RAM);
	     node = above) {
		above = nodes[node].parent;
		pool_drop_from_ram(p, node);
	}
}

uint32_t pool_first_here(const struct pool *p, uint32_t node)
{
	const struct node *nodes = p->prefix.nodes;

	/* Some of them may be free already; where they were is still known. */
	while (nodes[node].copies[TIER_DEVICE] == COPY_NONE && nodes[node].parent != NODE_NONE)
		node = nodes[node].parent;
	return node;
}

/* A live sequence's page takes a place when somebody needs its own: not in the middle of giving up
 * states, whose places were planned for others. */
static void leave_useless(struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];
	bool stays = !p->sends_parked && n->parked && n->copies[TIER_RAM] == COPY_NONE;

	/* What is being copied down stays until that has ended. */
	if (!p->below || !(node_is_kept_below(n) || n->moves & NODE_FILLING_RAM))
		pool_let_go(p, node);
	else if ((stays || pool_send_down(p, node)) && n->parked)
		pool_set_aside(p, node);
}

void pool_drop_useless(struct pool *p, uint32_t node)
{
	bool goes = p->hybrid;
	uint32_t above;

	/* What it stands on may have waited for it alone. */
	for (; goes && p->prefix.nodes[node].kind == NODE_TOKENS; node = above) {
		const struct node *n = &p->prefix.nodes[node];

		above = n->parent;
		goes = prefix_may_leave(&p->prefix, node, TIER_DEVICE);
		if (goes) {
			pool_tell_evict(p, node);
			leave_useless(p, node);
		}
		drop_useless_in_ram(p, node);
		if (goes)
			above = pool_first_here(p, above);
	}
}

static void keep(struct pool *p, uint32_t node, enum tier tier)
{
	bool again;

	do {
		/* A state that is computed again takes the page of one that is going down. */
		if (tier == TIER_DEVICE)
			pool_stay(p, node);
		again = prefix_keep(&p->prefix, node, tier);
		node = p->prefix.nodes[node].parent;
	} while (again);
}

static void unkeep(struct pool *p, uint32_t node, enum tier tier)
{
	while (node != NODE_NONE) {
		uint32_t above = prefix_unkeep(&p->prefix, node, tier);

		pool_drop_useless(p, node);
		node = above;
	}
}

/* ---- leaving for nowhere ---- */

static void leave_device(struct pool *p, uint32_t image)
{
	image_set_on_device(&p->images, image, false);
	unkeep(p, p->images.image[image].node, TIER_DEVICE);
}

static void leave_ram(struct pool *p, uint32_t image)
{
	p->images.image[image].in_ram = false;
	unkeep(p, p->images.image[image].node, TIER_RAM);
}

static void give_place(struct pool *p, uint32_t image)
{
	if (p->images.image[image].place != COPY_NONE)
		p->below->give(p->below->context, image_take_from_ram(&p->images, image));
}

static void free_image(struct pool *p, uint32_t image)
{
	struct image *it = &p->images.image[image];

	image_give_slot(&p->images, image);
	give_place(p, image);
	/* First what is below, so that nothing is copied there any more. */
	if (it->in_ram)
		leave_ram(p, image);
	if (it->on_device)
		leave_device(p, image);
	image_give(&p->images, image);
}

void pool_habits_left(struct pool *p, uint32_t image)
{
	const struct node *n = &p->prefix.nodes[p->images.image[image].node];

	habits_left(&p->images, image, n->key, p->prefix.nodes[n->parent].key,
		    n->length < p->limits.page_tokens ? n->length : 0);
}

void pool_give_up(struct pool *p, uint32_t image)
{
	struct image *it = &p->images.image[image];

	if (it->state == IMAGE_VALID)
		pool_habits_left(p, image);
	p->prefix.nodes[it->node].state = STATE_NONE;
	if (!image_is_busy(it) || !protection(claims_keep_their_state))
		free_image(p, image);
	else
		image_doom(&p->images, image);
}

/* What waited for the end of copies from or to it. */
static void settle(struct pool *p, uint32_t image)
{
	struct image *it = &p->images.image[image];

	if (image_is_busy(it))
		return;
	if (it->state == IMAGE_DOOMED)
		free_image(p, image);
	else if (it->place != COPY_NONE)
		image_give_slot(&p->images, image);
	pool_trim(p); /* it may go now */
}

void pool_claim_done(struct pool *p, uint32_t image)
{
	must(p->images.image[image].claims > 0);
	p->images.image[image].claims--;
	settle(p, image);
}

void pool_image_moving(struct pool *p, uint32_t image, bool moving)
{
	p->images.image[image].moving += moving ? 1 : UINT16_MAX;
	if (!moving)
		settle(p, image);
}

bool pool_drop_states(struct pool *p, uint16_t name_space, uint32_t *budget)
{
	uint32_t of = name_space == RETAIN_NAMESPACES ? IMAGE_NONE : name_space;

	for (; *budget; --*budget) {
		uint32_t image = image_any(&p->images, of);

		if (image == IMAGE_NONE)
			return true;
		pool_give_up(p, image);
	}
	return false;
}

/* ---- going down ---- */

/* Places for the pages up to a node that have none, deepest first; those that were taken are
 * linked through ram_below, which only the order of a dense pool needs. */
struct intake {
	uint32_t first, last; /* NODE_NONE */
	bool wants_image;     /* it has none yet */
};

static uint32_t count_missing(const struct pool *p, uint32_t node)
{
	uint32_t n = 0;

	for (; p->prefix.nodes[node].kind == NODE_TOKENS; node = p->prefix.nodes[node].parent)
		n += p->prefix.nodes[node].copies[TIER_RAM] == COPY_NONE;
	return n;
}

static void link_node(struct pool *p, struct intake *in, uint32_t node)
{
	p->prefix.nodes[node].ram_below = NODE_NONE;
	if (in->first == NODE_NONE)
		in->first = node;
	else
		p->prefix.nodes[in->last].ram_below = node;
	in->last = node;
}

static uint32_t unlink_first(struct pool *p, struct intake *in)
{
	uint32_t node = in->first;

	in->first = p->prefix.nodes[node].ram_below;
	p->prefix.nodes[node].ram_below = NODE_NONE;
	return node;
}

static int take_places(struct pool *p, uint32_t image, enum pool_need need, struct intake *in)
{
	const struct pool_below *below = p->below;
	uint32_t node = p->images.image[image].node, place;
	int r;

	if (in->wants_image) {
		r = below->take_image(below->context, image, need, &place);
		if (r)
			return r;
		image_put_in_ram(&p->images, image, place);
		in->wants_image = false;
	}
	for (; p->prefix.nodes[node].kind == NODE_TOKENS; node = p->prefix.nodes[node].parent) {
		if (p->prefix.nodes[node].copies[TIER_RAM] != COPY_NONE)
			continue;
		r = below->take(below->context, node, need, &place);
		if (r)
			return r;
		pool_put_in_ram(p, node, place);
		link_node(p, in, node);
	}
	return 0;
}

static void give_places_back(struct pool *p, uint32_t image, struct intake *in, bool image_too)
{
	while (in->first != NODE_NONE) {
		uint32_t node = unlink_first(p, in);

		/* A page of a live sequence is there, and stands on it. */
		if (p->prefix.nodes[node].children_in[TIER_RAM])
			pool_begin_copy(p, node);
		else
			pool_drop_from_ram(p, node);
	}
	if (image_too)
		give_place(p, image);
}

/* All places that it needs: 0; POOL_WAIT; POOL_NEVER. */
static int find_places(struct pool *p, uint32_t image, struct intake *in)
{
	const struct pool_below *below = p->below;
	const struct image *it = &p->images.image[image];
	bool wants_image = it->place == COPY_NONE;
	int r;

	*in = (struct intake){.first = NODE_NONE, .last = NODE_NONE, .wants_image = wants_image};
	r = below->plan(below->context, image, count_missing(p, it->node), wants_image);
	if (!r)
		r = take_places(p, image, POOL_NEED_NONE, in);
	if (r)
		give_places_back(p, image, in, wants_image);
	return r;
}

static int move_in(struct pool *p, uint32_t image)
{
	struct image *it = &p->images.image[image];
	struct intake in;
	int r;

	/* What it shares with those that are given up for it stays, and so does its own image. */
	keep(p, it->node, TIER_RAM);
	it->going_down = true;
	r = find_places(p, image, &in);
	it->going_down = false;
	if (r) {
		unkeep(p, it->node, TIER_RAM);
		return r;
	}
	it->in_ram = true;
	while (in.first != NODE_NONE)
		pool_begin_copy(p, unlink_first(p, &in));
	it->arrives = p->images.sent;
	if (it->slot != SLOT_NONE) {
		it->spilling = true;
		p->below->spill(p->below->context, image);
	}
	return 0;
}

int pool_push_down(struct pool *p, uint32_t image)
{
	bool sends = p->sends_parked;
	int r = 0;

	if (!p->below) {
		pool_give_up(p, image);
		return 0;
	}
	/* Nobody else's page takes a place that is found for it. */
	p->sends_parked = false;
	if (!p->images.image[image].in_ram)
		r = move_in(p, image);
	p->sends_parked = sends;
	if (r == POOL_WAIT)
		return r;
	if (r) {
		p->stats.ram_refused++;
		pool_give_up(p, image);
	} else {
		leave_device(p, image);
	}
	return 0;
}

/* All of its pages are on the device, and may stay. */
static bool is_on_device(const struct pool *p, uint32_t node)
{
	for (; p->prefix.nodes[node].kind == NODE_TOKENS; node = p->prefix.nodes[node].parent) {
		const struct node *n = &p->prefix.nodes[node];

		if (!node_is_on_device(n) || n->moves & NODE_FAILED)
			return false;
	}
	return true;
}

/* It stays in its slot, and on the device if it still is there; else it is lost. The second time it
 * is as well: whoever waits for its pages is not to wait for ever. */
static void stay(struct pool *p, uint32_t image)
{
	struct image *it = &p->images.image[image];
	uint32_t node = it->node, budget = UINT32_MAX;

	p->images.counts.spills_failed++;
	give_place(p, image);
	if (it->state == IMAGE_DOOMED)
		return;
	if ((it->tried && protection(failed_spills_make_room)) ||
	    (!it->on_device && !is_on_device(p, node))) {
		pool_give_up(p, image);
		return;
	}
	it->tried = true;
	pool_hold(p, node);
	leave_ram(p, image);
	if (!it->on_device)
		pool_keep_on_device(p, image);
	pool_release(p, &node, &budget);
}

void pool_spilled(struct pool *p, uint32_t image, int result)
{
	struct image *it = &p->images.image[image];

	must(it->spilling);
	it->spilling = false;
	if (result == 0)
		p->images.counts.spilled++;
	else
		stay(p, image);
	if (it->state != IMAGE_FREE)
		settle(p, image);
}

/* ---- on the device ---- */

void pool_keep_on_device(struct pool *p, uint32_t image)
{
	pool_stay(p, p->images.image[image].node);
	keep(p, p->images.image[image].node, TIER_DEVICE);
	image_set_on_device(&p->images, image, true);
}

void pool_image_came(struct pool *p, uint32_t image, int result, bool wanted, bool came_up)
{
	struct image *it = &p->images.image[image];

	if (result) {
		p->images.counts.restores_failed++;
		if (it->state == IMAGE_VALID)
			pool_give_up(p, image);
		return;
	}
	if (!wanted)
		return;
	p->images.counts.restored++;
	/* Its way down may have failed meanwhile. */
	if (it->state != IMAGE_VALID || it->place == COPY_NONE || !came_up)
		return;
	image_leave_ram_order(&p->images, image);
	it->is_protected = true;
	image_enter_ram_order(&p->images, image);
	/* Somebody may have captured it again meanwhile. */
	if (!it->on_device)
		pool_keep_on_device(p, image);
}

bool pool_place_image(struct pool *p, uint32_t image)
{
	const struct pool_below *below = p->below;
	uint32_t place, victim;

	if (image_take_slot(&p->images, image))
		return true;
	if (below && below->plan(below->context, image, 0, true) == 0 &&
	    below->take_image(below->context, image, POOL_NEED_NONE, &place) == 0) {
		image_put_in_ram(&p->images, image, place);
		return true;
	}
	victim = pool_next_state(p, true);
	if (victim == IMAGE_NONE)
		return false;
	pool_give_up(p, victim);
	return image_take_slot(&p->images, image);
}

/* ---- what could be given up in KV-RAM ---- */

uint32_t pool_plan_give_up(struct pool *p, uint32_t image)
{
	struct image *it = &p->images.image[image];
	uint32_t node = it->node;
	bool goes = true;

	it->planned = 0;
	image_leave_ram_order(&p->images, image);
	for (; it->in_ram && node != NODE_NONE; node = p->prefix.nodes[node].parent) {
		struct node *n = &p->prefix.nodes[node];

		must(n->kept_in_ram > 0);
		if (--n->kept_in_ram)
			break;
		/* What is on its way stays, and what it stands on, whoever needs it. */
		goes =
		    goes && n->kind == NODE_TOKENS && prefix_may_leave(&p->prefix, node, TIER_RAM);
		if (goes) {
			it->planned++;
			p->prefix.nodes[n->parent].children_in[TIER_RAM]--;
		}
	}
	return it->planned;
}

void pool_plan_undo(struct pool *p, uint32_t image)
{
	struct image *it = &p->images.image[image];
	uint32_t node = it->node;

	for (; it->planned > 0; it->planned--) {
		node = p->prefix.nodes[node].parent;
		p->prefix.nodes[node].children_in[TIER_RAM]++;
	}
	if (it->in_ram)
		keep(p, it->node, TIER_RAM);
	image_return_to_ram_order(&p->images, image);
}
