/* SPDX-License-Identifier: Apache-2.0 */
/* frames_block: blocks of free frames in groups of up to 16; see frames.h. Core thread; nothing
 * here blocks. */
#include "daemon/base/panic.h"
#include "daemon/state/frames_internal.h"

/* Where blocks of an order may begin. */
static const uint16_t begins[FRAME_ORDERS] = {0xffff, 0x5555, 0x1111, 0x0101, 0x0001};

uint32_t block_places(uint32_t free, uint32_t order)
{
	for (uint32_t k = 0; k < order; k++)
		free &= free >> (1u << k);
	return free & begins[order];
}

static uint32_t top_of(uint32_t free)
{
	uint32_t top = 0;

	while (top < FRAME_ORDERS && free & begins[top]) {
		free &= free >> (1u << top);
		top++;
	}
	return top;
}

static uint32_t count_of(uint32_t mask)
{
	return (uint32_t)__builtin_popcount(mask);
}

static uint32_t block_mask(const struct group *g, uint32_t first, uint32_t order)
{
	uint32_t at = first - g->first;

	must(first >= g->first && at + (1u << order) <= 1u << g->order);
	must(at % (1u << order) == 0);
	return ((1u << (1u << order)) - 1) << at;
}

static void group_list(struct frames *f, uint32_t at)
{
	struct group *g = &f->group[at];
	uint32_t count = count_of(g->free);
	uint32_t *head;

	g->top = (uint8_t)top_of(g->free);
	head = &f->head[g->order][g->top][count];
	g->previous = NONE;
	g->next = *head;
	if (*head != NONE)
		f->group[*head].previous = at;
	*head = at;
	f->counts[g->order][g->top] |= 1u << count;
	f->orders[g->top] |= 1u << g->order;
}

static void group_unlist(struct frames *f, uint32_t at)
{
	struct group *g = &f->group[at];
	uint32_t count = count_of(g->free);
	uint32_t *head = &f->head[g->order][g->top][count];

	if (g->next != NONE)
		f->group[g->next].previous = g->previous;
	if (g->previous != NONE)
		f->group[g->previous].next = g->next;
	else
		*head = g->next;
	if (*head != NONE)
		return;
	f->counts[g->order][g->top] &= ~(1u << count);
	if (!f->counts[g->order][g->top])
		f->orders[g->top] &= ~(1u << g->order);
}

static void group_set_free(struct frames *f, uint32_t at, uint32_t free)
{
	struct group *g = &f->group[at];

	group_unlist(f, at);
	f->free_frames += count_of(free) - count_of(g->free);
	g->free = (uint16_t)free;
	group_list(f, at);
}

static void make_group(struct frames *f, uint32_t first, uint32_t order)
{
	uint32_t at = f->groups++;
	uint32_t n = 1u << order;

	f->group[at] = (struct group){
	    .first = first, .order = (uint8_t)order, .free = (uint16_t)((1u << n) - 1)};
	for (uint32_t i = first; i < first + n; i++) {
		must(f->frame[i].kind == FRAME_ABSENT);
		f->frame[i] = (struct frame){.group = at, .kind = FRAME_FREE};
	}
	f->free_frames += n;
	f->room[order] += n;
	group_list(f, at);
}

void frames_arrived(struct frames *f, uint32_t n)
{
	must(n > 0 && n <= f->capacity - f->arrived);

	while (n > 0) {
		uint32_t side_by_side = f->chunk - f->arrived % f->chunk;
		uint32_t order = FRAME_ORDERS - 1;

		if (side_by_side > n)
			side_by_side = n;
		while (1u << order > side_by_side)
			order--;
		make_group(f, f->arrived, order);
		f->arrived += 1u << order;
		n -= 1u << order;
	}
}

bool block_is_free(const struct frames *f, uint32_t order)
{
	for (uint32_t top = order + 1; top <= FRAME_ORDERS; top++) {
		if (f->orders[top])
			return true;
	}
	return false;
}

/* A place for a block where it cuts the smallest block there is: that leaves the others whole. */
static uint32_t tightest(uint32_t free, uint32_t order)
{
	for (; order < FRAME_ORDERS - 1; order++) {
		uint32_t larger = block_places(free, order + 1);
		uint32_t alone = block_places(free, order) & ~(larger | larger << (1u << order));

		if (alone)
			return (uint32_t)__builtin_ctz(alone);
	}
	must(block_places(free, order));
	return 0;
}

uint32_t block_take(struct frames *f, uint32_t order, enum frame_kind kind)
{
	for (uint32_t top = order + 1; top <= FRAME_ORDERS; top++) {
		uint32_t of_order, at, first;
		struct group *g;

		if (!f->orders[top])
			continue;
		/* The smallest kind of group, and of these one with the fewest free frames. */
		of_order = (uint32_t)__builtin_ctz(f->orders[top]);
		at = f->head[of_order][top][__builtin_ctz(f->counts[of_order][top])];
		g = &f->group[at];
		first = g->first + tightest(g->free, order);
		group_set_free(f, at, g->free & ~block_mask(g, first, order));
		for (uint32_t i = first; i < first + (1u << order); i++) {
			must(f->frame[i].kind == FRAME_FREE);
			f->frame[i].kind = (uint8_t)kind;
		}
		return first;
	}
	return NONE;
}

void block_give(struct frames *f, uint32_t first, uint32_t order)
{
	uint32_t at = f->frame[first].group;
	struct group *g = &f->group[at];
	uint32_t mask = block_mask(g, first, order);

	must(!(g->free & mask) && !(g->held & mask));
	for (uint32_t i = first; i < first + (1u << order); i++) {
		must(f->frame[i].kind >= FRAME_SLAB && !f->frame[i].leaving);
		f->frame[i].kind = FRAME_FREE;
	}
	group_set_free(f, at, g->free | mask);
}

void block_hold(struct frames *f, uint32_t first, uint32_t order)
{
	uint32_t at = f->frame[first].group;
	struct group *g = &f->group[at];
	uint32_t mask = block_mask(g, first, order);

	must(!(g->held & mask));
	g->held |= (uint16_t)mask;
	group_set_free(f, at, g->free & ~mask);
}

void block_let_go(struct frames *f, uint32_t first, uint32_t order)
{
	uint32_t at = f->frame[first].group;
	struct group *g = &f->group[at];
	uint32_t mask = block_mask(g, first, order);
	uint32_t free = g->free;

	must((g->held & mask) == mask);
	g->held &= (uint16_t)~mask;
	for (uint32_t i = first; i < first + (1u << order); i++) {
		if (f->frame[i].kind == FRAME_FREE)
			free |= 1u << (i - g->first);
	}
	group_set_free(f, at, free);
}
