/* SPDX-License-Identifier: Apache-2.0 */
/* image: see image.h. Core thread; nothing here blocks. */
#include "daemon/state/image.h"

#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"

static uint64_t images_bytes(uint64_t n)
{
	return (n ? n : 1) * sizeof(struct image);
}

static uint64_t slots_bytes(uint64_t n)
{
	return (n ? n : 1) * sizeof(uint32_t);
}

static uint64_t lanes_bytes(uint64_t n)
{
	return (n ? n : 1) * sizeof(struct lane);
}

uint64_t images_bytes_for(uint64_t n_lanes, uint64_t n_slots)
{
	return reserve_bytes(images_bytes(n_slots)) + reserve_bytes(slots_bytes(n_slots)) +
	       reserve_bytes(lanes_bytes(n_lanes));
}

uint64_t images_learned_bytes_for(uint64_t n_slots, uint32_t name_spaces)
{
	return habits_bytes_for(habits_ghosts_for(n_slots, 0), name_spaces);
}

static void init_lists(struct images *s)
{
	list_init(&s->free_images);
	for (int k = 0; k < IMAGE_KINDS; k++)
		list_init(&s->order[k]);
	for (int ns = 0; ns < RETAIN_NAMESPACES; ns++) {
		for (int k = 0; k < IMAGE_QUEUES; k++)
			list_init(&s->ram_order[ns][k]);
	}
}

int images_init(struct images *s, uint32_t n_lanes, uint32_t n_slots, uint32_t n_in_ram)
{
	*s = (struct images){.n_lanes = n_lanes,
			     .n_slots = n_slots,
			     .n_images = n_slots + n_in_ram + (n_in_ram > 0),
			     .first_lane = LANE_NONE};
	init_lists(s);
	s->image = reserve_take(images_bytes(s->n_images));
	s->free_slot = reserve_take(slots_bytes(n_slots));
	s->lane = reserve_take(lanes_bytes(n_lanes));
	if (!s->image || !s->free_slot || !s->lane) {
		images_deinit(s);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < s->n_images; i++)
		list_append(&s->free_images, &s->image[i].in_order);
	for (uint32_t i = n_slots; i > 0; i--)
		s->free_slot[s->slots_free++] = i - 1;
	for (uint32_t i = n_lanes; i > 0; i--) {
		s->lane[i - 1].next_free = s->first_lane;
		s->lane[i - 1].last_name_space = UINT32_MAX;
		s->first_lane = i - 1;
	}
	s->lanes_free = n_lanes;
	return 0;
}

int images_learn(struct images *s)
{
	return habits_new(habits_ghosts_for(s->n_slots, s->n_images - s->n_slots), &s->habits);
}

int images_prepare(struct images *s, uint16_t name_space)
{
	return s->habits ? habits_prepare(s->habits, name_space) : 0;
}

void images_deinit(struct images *s)
{
	habits_free(&s->habits);
	reserve_give(s->image, images_bytes(s->n_images));
	reserve_give(s->free_slot, slots_bytes(s->n_slots));
	reserve_give(s->lane, lanes_bytes(s->n_lanes));
	*s = (struct images){0};
}

/* ---- lanes ---- */

uint32_t lane_take(struct images *s)
{
	uint32_t at = s->first_lane;

	if (at == LANE_NONE)
		return LANE_NONE;
	must(s->lane[at].generation % 2 == 0 && s->lanes_free > 0);
	s->first_lane = s->lane[at].next_free;
	s->lane[at].generation++;
	s->lane[at].current = 0;
	s->lanes_free--;
	return at;
}

static void lane_settle(struct images *s, uint32_t lane)
{
	struct lane *l = &s->lane[lane];

	if (!l->leaving || (l->jobs && protection(lanes_wait_for_copies)))
		return;
	l->leaving = false;
	l->next_free = s->first_lane;
	s->first_lane = lane;
	s->lanes_free++;
}

void lane_give(struct images *s, uint32_t lane)
{
	must(s->lane[lane].generation % 2 == 1);
	/* Its handles die now; its bytes may still be copied. */
	s->lane[lane].generation++;
	s->lane[lane].leaving = true;
	lane_settle(s, lane);
}

void lane_job(struct images *s, uint32_t lane)
{
	must(lane < s->n_lanes);
	s->lane[lane].jobs++;
}

void lane_job_done(struct images *s, uint32_t lane)
{
	must(s->lane[lane].jobs > 0);
	s->lane[lane].jobs--;
	lane_settle(s, lane);
}

bool lane_use(struct images *s, uint32_t lane, uint32_t name_space)
{
	struct lane *l = &s->lane[lane];
	bool wipe =
	    l->unclean || (l->last_name_space != UINT32_MAX && l->last_name_space != name_space);

	l->last_name_space = name_space;
	l->unclean = false;
	return wipe;
}

void lane_is_unclean(struct images *s, uint32_t lane)
{
	s->lane[lane].unclean = true;
}

/* ---- states ---- */

uint32_t image_take(struct images *s)
{
	struct list *first = list_first(&s->free_images);
	struct image *it;

	if (!first)
		return IMAGE_NONE;
	list_remove(first);
	it = list_entry(first, struct image, in_order);
	must(it->state == IMAGE_FREE);
	*it = (struct image){.state = IMAGE_FILLING,
			     .id = ++s->next_id,
			     .node = NODE_NONE,
			     .slot = SLOT_NONE,
			     .place = COPY_NONE,
			     .user.image = IMAGE_NONE,
			     .after.image = IMAGE_NONE};
	list_init(&it->in_order);
	list_init(&it->in_ram_order);
	list_init(&it->in_queue);
	list_init(&it->habit.in_age);
	return (uint32_t)(it - s->image);
}

bool image_take_slot(struct images *s, uint32_t image)
{
	must(s->image[image].slot == SLOT_NONE);
	if (s->slots_free == 0)
		return false;
	s->image[image].slot = s->free_slot[--s->slots_free];
	return true;
}

/* ---- the order of the device ---- */

static uint64_t touched_here(const struct list *at)
{
	return list_entry(at, struct image, in_order)->touched;
}

/* Few are younger than what comes: those touched since its copy began. */
static void enter_device_order(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];
	struct list *order = s->habits ? habits_device_list(s, it) : &s->order[it->kind];
	struct list *at = order->previous;

	while (at != order && touched_here(at) > it->touched)
		at = at->previous;
	list_append(at->next, &it->in_order);
}

struct image_places image_step_out(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];
	struct image_places was = {.device = !list_is_empty(&it->in_order),
				   .ram = !list_is_empty(&it->in_ram_order)};

	list_remove(&it->in_order);
	image_leave_ram_order(s, image);
	return was;
}

void image_step_in(struct images *s, uint32_t image, struct image_places was)
{
	if (was.device)
		enter_device_order(s, image);
	if (was.ram)
		image_enter_ram_order(s, image);
}

void image_give_slot(struct images *s, uint32_t image)
{
	uint32_t slot = s->image[image].slot;
	struct image_places was = {.device = false};

	if (slot == SLOT_NONE)
		return;
	must(s->slots_free < s->n_slots);
	if (s->habits)
		was = image_step_out(s, image);
	s->free_slot[s->slots_free++] = slot;
	s->image[image].slot = SLOT_NONE;
	image_step_in(s, image, was);
}

void image_put_in_ram(struct images *s, uint32_t image, uint32_t place)
{
	must(s->image[image].place == COPY_NONE && place != COPY_NONE);
	s->image[image].place = place;
	s->in_ram++;
	s->in_ram_of[s->image[image].name_space]++;
}

uint32_t image_take_from_ram(struct images *s, uint32_t image)
{
	uint32_t place = s->image[image].place;

	must(place != COPY_NONE && s->in_ram > 0);
	image_leave_ram_order(s, image);
	s->image[image].place = COPY_NONE;
	s->in_ram--;
	s->in_ram_of[s->image[image].name_space]--;
	return place;
}

static bool may_go(const struct image *it)
{
	return !image_is_busy(it) || !protection(claims_keep_their_state);
}

const struct image *image_first_of_device(const struct list *order)
{
	for (const struct list *at = order->next; at != order; at = at->next) {
		const struct image *it = list_entry(at, struct image, in_order);

		if (may_go(it))
			return it;
	}
	return NULL;
}

uint32_t image_victim(const struct images *s, uint64_t name_spaces, bool slotted)
{
	if (s->habits)
		return habits_victim(s, name_spaces, slotted);
	for (int kind = 0; kind < IMAGE_KINDS; kind++) {
		for (const struct list *at = s->order[kind].next; at != &s->order[kind];
		     at = at->next) {
			const struct image *it = list_entry(at, struct image, in_order);

			/* Passed over: the busy ones, those of others, those in no slot. */
			if (may_go(it) && name_spaces >> it->name_space & 1 &&
			    (!slotted || it->slot != SLOT_NONE))
				return (uint32_t)(it - s->image);
		}
	}
	return IMAGE_NONE;
}

/* Those in KV-RAM first: what they share with others on the device need not be there then. */
uint32_t image_any(const struct images *s, uint32_t name_space)
{
	bool all = name_space == IMAGE_NONE;
	uint32_t first = all ? 0 : name_space, end = all ? RETAIN_NAMESPACES : name_space + 1;

	if (s->habits)
		return habits_any(s, all ? UINT64_MAX : 1ull << name_space);
	for (uint32_t ns = first; s->in_ram && ns < end; ns++) {
		for (int k = 0; k < IMAGE_QUEUES; k++) {
			const struct list *at = list_first(&s->ram_order[ns][k]);

			if (at)
				return (uint32_t)(list_entry(at, struct image, in_ram_order) -
						  s->image);
		}
	}
	for (int kind = 0; kind < IMAGE_KINDS; kind++) {
		for (const struct list *at = s->order[kind].next; at != &s->order[kind];
		     at = at->next) {
			const struct image *it = list_entry(at, struct image, in_order);

			if (all || it->name_space == name_space)
				return (uint32_t)(it - s->image);
		}
	}
	return IMAGE_NONE;
}

/* ---- in KV-RAM ---- */

static bool is_interactive(const struct image *it, uint64_t now_ns, uint64_t ttl_ns)
{
	return it->interactive && (ttl_ns == 0 || now_ns - it->touched_ns <= ttl_ns);
}

struct retain_rank image_rank(const struct images *s, uint32_t image, uint64_t now_ns,
			      uint64_t ttl_ns)
{
	const struct image *it = &s->image[image];
	bool interactive = is_interactive(it, now_ns, ttl_ns);
	/* Who was interactive and idle for long is on probation again. */
	bool is_protected = it->is_protected && it->interactive == interactive;

	return (struct retain_rank){.index = s->habits ? habits_index(s, it) : is_protected,
				    .tick = it->touched,
				    .touched_ns = it->touched_ns,
				    .interactive = interactive};
}

static struct list *ram_order_of(struct images *s, const struct image *it)
{
	uint32_t queue = 2 * it->interactive + it->is_protected;

	if (s->habits)
		return habits_ram_list(s, it);
	queue = (queue * IMAGE_KINDS + it->kind) * 2 + it->on_device;
	return &s->ram_order[it->name_space][queue];
}

static uint64_t touched_at(const struct list *at)
{
	return list_entry(at, struct image, in_ram_order)->touched;
}

static void must_have_place(const struct image *it)
{
	must(it->state == IMAGE_VALID && it->place != COPY_NONE &&
	     list_is_empty(&it->in_ram_order));
}

void image_enter_ram_order(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];
	struct list *order = ram_order_of(s, it), *at = order->previous;

	must_have_place(it);
	while (at != order && touched_at(at) > it->touched)
		at = at->previous;
	list_append(at->next, &it->in_ram_order);
}

void image_return_to_ram_order(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];
	struct list *order = ram_order_of(s, it), *at = order->next;

	must_have_place(it);
	/* Those before it are busy. */
	while (at != order && touched_at(at) < it->touched)
		at = at->next;
	list_append(at, &it->in_ram_order);
}

void image_leave_ram_order(struct images *s, uint32_t image)
{
	list_remove(&s->image[image].in_ram_order);
}

/* All of it is there, too. */
const struct image *image_first_in_ram(const struct images *s, const struct list *order)
{
	for (const struct list *at = order->next; at != order; at = at->next) {
		const struct image *it = list_entry(at, struct image, in_ram_order);

		bool is_there = s->landed >= it->arrives || !protection(claims_keep_their_state);

		if (!it->going_down && may_go(it) && is_there)
			return it;
	}
	return NULL;
}

uint32_t image_next_in_ram(const struct images *s, uint64_t name_spaces, uint64_t now_ns,
			   uint64_t ttl_ns, struct retain_rank *rank)
{
	uint32_t best = IMAGE_NONE;

	if (s->habits)
		return habits_next_in_ram(s, name_spaces, now_ns, ttl_ns, rank);
	for (uint64_t left = s->in_ram ? name_spaces : 0; left; left &= left - 1) {
		uint32_t ns = (uint32_t)__builtin_ctzll(left);
		const struct list *orders = s->ram_order[ns];

		for (int k = 0; s->in_ram_of[ns] && k < IMAGE_QUEUES; k++) {
			const struct image *it = image_first_in_ram(s, &orders[k]);
			struct retain_rank one;

			if (!it)
				continue;
			one = image_rank(s, (uint32_t)(it - s->image), now_ns, ttl_ns);
			if (best != IMAGE_NONE && !retain_ranks_below(one, *rank))
				continue;
			best = (uint32_t)(it - s->image);
			*rank = one;
		}
	}
	return best;
}

/* ---- their life ---- */

void image_filled(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];

	must(it->state == IMAGE_FILLING);
	it->state = IMAGE_VALID;
	s->counts.captures[it->kind]++;
	if (it->on_device)
		enter_device_order(s, image);
	if (it->place != COPY_NONE)
		image_enter_ram_order(s, image);
}

void image_touch(struct images *s, uint32_t image, bool interactive, uint64_t now_ns)
{
	struct image *it = &s->image[image];
	bool in_ram = !list_is_empty(&it->in_ram_order);

	it->touched = ++s->next_touch;
	it->touched_ns = now_ns;
	it->tried = false;
	image_leave_ram_order(s, image);
	it->interactive |= interactive;
	if (in_ram)
		image_enter_ram_order(s, image);
	if (!list_is_empty(&it->in_order)) {
		list_remove(&it->in_order);
		enter_device_order(s, image);
	}
}

void image_set_on_device(struct images *s, uint32_t image, bool on_device)
{
	struct image *it = &s->image[image];

	must(it->on_device != on_device);
	image_leave_ram_order(s, image);
	it->on_device = on_device;
	if (it->state == IMAGE_VALID && it->place != COPY_NONE)
		image_enter_ram_order(s, image);
	if (!on_device)
		list_remove(&it->in_order);
	else if (it->state == IMAGE_VALID)
		enter_device_order(s, image);
}

void image_give(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];

	must(it->state != IMAGE_FREE && it->slot == SLOT_NONE && it->place == COPY_NONE);
	must(!it->on_device && !it->in_ram);
	must(!image_is_busy(it) || !protection(claims_keep_their_state));
	if (it->state != IMAGE_FILLING)
		s->counts.given_up[it->kind]++;
	habits_drop(s, image);
	it->state = IMAGE_FREE;
	it->id = 0;
	list_append(&s->free_images, &it->in_order);
}

void image_doom(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];

	must(it->state == IMAGE_VALID);
	it->state = IMAGE_DOOMED;
	list_remove(&it->in_order);
	image_leave_ram_order(s, image);
}

struct image_name image_name(const struct images *s, uint32_t image)
{
	return (struct image_name){.image = image, .id = s->image[image].id};
}

uint32_t image_find(const struct images *s, struct image_name name)
{
	if (name.image >= s->n_images || s->image[name.image].id != name.id ||
	    s->image[name.image].state != IMAGE_VALID)
		return IMAGE_NONE;
	return name.image;
}

static const char *check_state(const struct images *s, const struct prefix *p, uint32_t i)
{
	const struct image *it = &s->image[i];
	const struct node *n;

	if (it->node == NODE_NONE)
		return "a retained state is at no node";
	n = &p->nodes[it->node];
	if (n->kind != NODE_TOKENS || (it->on_device && !n->kept) ||
	    (it->in_ram && !n->kept_in_ram))
		return "the node of a retained state is not kept";
	if (!it->on_device && !it->in_ram && protection(states_stay_whole))
		return "a retained state keeps its pages nowhere";
	if (it->state != IMAGE_DOOMED && n->state != i)
		return "a node does not name its retained state";
	if (it->tokens != n->position * p->page_tokens + n->length)
		return "a retained state is not at the end of its node";
	if (it->slot == SLOT_NONE && it->place == COPY_NONE)
		return "the image of a retained state is nowhere";
	if (it->spilling && (it->slot == SLOT_NONE || it->place == COPY_NONE))
		return "an image is copied from nowhere, or to nowhere";
	if ((it->state == IMAGE_VALID && it->on_device) == list_is_empty(&it->in_order))
		return "a retained state is not in the order of the device, or is for nothing";
	if ((it->state == IMAGE_VALID && it->place != COPY_NONE) ==
	    list_is_empty(&it->in_ram_order))
		return "a retained state is not in the order of KV-RAM, or is for nothing";
	return NULL;
}

const char *images_check(const struct images *s, const struct prefix *p)
{
	uint32_t slots = 0, in_ram = 0, lanes_free = 0;

	for (uint32_t i = 0; i < s->n_images; i++) {
		const char *wrong;

		if (s->image[i].state == IMAGE_FREE)
			continue;
		wrong = check_state(s, p, i);
		if (wrong)
			return wrong;
		slots += s->image[i].slot != SLOT_NONE;
		in_ram += s->image[i].place != COPY_NONE;
	}
	if (slots + s->slots_free != s->n_slots)
		return "the number of retained slots in use is wrong";
	if (in_ram != s->in_ram)
		return "the number of images in KV-RAM is wrong";
	for (uint32_t at = s->first_lane; at != LANE_NONE; at = s->lane[at].next_free) {
		if (s->lane[at].generation % 2 || s->lane[at].jobs || lanes_free++ > s->n_lanes)
			return "a free lane is in use";
	}
	return lanes_free == s->lanes_free ? habits_check(s) : "the number of free lanes is wrong";
}
