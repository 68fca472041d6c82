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

static uint64_t lanes_bytes(uint64_t n)
{
	return (n ? n : 1) * sizeof(struct lane);
}

uint64_t images_bytes_for(uint64_t n_lanes, uint64_t n_images)
{
	return reserve_bytes(images_bytes(n_images)) + reserve_bytes(lanes_bytes(n_lanes));
}

int images_init(struct images *s, uint32_t n_lanes, uint32_t n_images)
{
	*s = (struct images){.n_lanes = n_lanes, .n_images = n_images, .first_lane = LANE_NONE};
	list_init(&s->free_images);
	for (int k = 0; k < IMAGE_KINDS; k++)
		list_init(&s->order[k]);
	s->image = reserve_take(images_bytes(n_images));
	s->lane = reserve_take(lanes_bytes(n_lanes));
	if (!s->image || !s->lane) {
		images_deinit(s);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_images; i++)
		list_append(&s->free_images, &s->image[i].in_order);
	for (uint32_t i = n_lanes; i > 0; i--) {
		s->lane[i - 1].next_free = s->first_lane;
		s->lane[i - 1].last_name_space = UINT32_MAX;
		s->first_lane = i - 1;
	}
	s->lanes_free = n_lanes;
	return 0;
}

void images_deinit(struct images *s)
{
	reserve_give(s->image, images_bytes(s->n_images));
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
	uint32_t last = s->lane[lane].last_name_space;

	s->lane[lane].last_name_space = name_space;
	return last != UINT32_MAX && last != name_space;
}

/* ---- retained slots ---- */

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
			     .user.image = IMAGE_NONE,
			     .after.image = IMAGE_NONE};
	list_init(&it->in_order);
	s->in_use++;
	return (uint32_t)(it - s->image);
}

uint32_t image_victim(const struct images *s, uint32_t name_space)
{
	for (int kind = 0; kind < IMAGE_KINDS; kind++) {
		for (const struct list *at = s->order[kind].next; at != &s->order[kind];
		     at = at->next) {
			const struct image *it = list_entry(at, struct image, in_order);

			/* As many are passed over as there are claims in flight. */
			if ((it->claims == 0 || !protection(claims_keep_their_state)) &&
			    (name_space == IMAGE_NONE || name_space == it->name_space))
				return (uint32_t)(it - s->image);
		}
	}
	return IMAGE_NONE;
}

void image_filled(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];

	must(it->state == IMAGE_FILLING);
	it->state = IMAGE_VALID;
	list_append(&s->order[it->kind], &it->in_order);
	s->counts.captures[it->kind]++;
}

void image_touch(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];

	if (it->state == IMAGE_FILLING && !protection(captures_wait_for_their_copy))
		return;
	must(it->state == IMAGE_VALID);
	list_remove(&it->in_order);
	list_append(&s->order[it->kind], &it->in_order);
}

void image_give(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];

	must(it->state != IMAGE_FREE);
	must(it->claims == 0 || !protection(claims_keep_their_state));
	if (it->state != IMAGE_FILLING)
		s->counts.given_up[it->kind]++;
	it->state = IMAGE_FREE;
	it->id = 0;
	list_remove(&it->in_order);
	list_append(&s->free_images, &it->in_order);
	must(s->in_use > 0);
	s->in_use--;
}

void image_doom(struct images *s, uint32_t image)
{
	struct image *it = &s->image[image];

	must(it->state == IMAGE_VALID);
	it->state = IMAGE_DOOMED;
	list_remove(&it->in_order);
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

const char *images_check(const struct images *s, const struct prefix *p)
{
	uint32_t in_use = 0, lanes_free = 0;

	for (uint32_t i = 0; i < s->n_images; i++) {
		const struct image *it = &s->image[i];

		if (it->state == IMAGE_FREE)
			continue;
		in_use++;
		if (it->node == NODE_NONE)
			return "a retained state is at no node";
		if (p->nodes[it->node].kind != NODE_TOKENS || !p->nodes[it->node].kept)
			return "the node of a retained state is not kept";
		if (it->state != IMAGE_DOOMED && p->nodes[it->node].state != i)
			return "a node does not name its retained state";
		if (it->tokens !=
		    p->nodes[it->node].position * p->page_tokens + p->nodes[it->node].length)
			return "a retained state is not at the end of its node";
	}
	if (in_use != s->in_use)
		return "the number of retained slots in use is wrong";
	for (uint32_t at = s->first_lane; at != LANE_NONE; at = s->lane[at].next_free) {
		if (s->lane[at].generation % 2 || s->lane[at].jobs || lanes_free++ > s->n_lanes)
			return "a free lane is in use";
	}
	return lanes_free == s->lanes_free ? NULL : "the number of free lanes is wrong";
}
