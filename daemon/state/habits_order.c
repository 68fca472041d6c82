/* SPDX-License-Identifier: Apache-2.0 */
/* habits_order: the order of habits.h: who stands where in it, and who is next. Core thread;
 * nothing here blocks. */
#include <errno.h>

#include "daemon/base/reserve.h"
#include "daemon/state/image.h"

#define CELL_WORDS ((REUSE_CELLS + 63) / 64)
#define N_DEVICE   (IMAGE_KINDS * 2) /* queues */
#define N_RAM      (2 * IMAGE_KINDS * 2)

struct habit_queue {
	uint64_t used[CELL_WORDS]; /* cells whose list may have somebody */
	struct list cell[REUSE_CELLS];
};

struct habit_orders {
	/* By kind, and whether the image lies in a slot. */
	struct habit_queue device[N_DEVICE];
	/* Agents' and interactive ones, by kind, living on the device as well or not: whatever
	 * comes into one of them is the youngest of its cell, or nearly so. */
	struct habit_queue ram[N_RAM];
};

uint64_t habit_orders_bytes(void)
{
	return reserve_bytes(sizeof(struct habit_orders));
}

void habit_orders_free(struct habit_orders *o)
{
	reserve_give(o, sizeof(*o));
}

int habits_prepare(struct habits *h, uint16_t name_space)
{
	if (!h->orders[name_space])
		h->orders[name_space] = reserve_take(sizeof(struct habit_orders));
	return h->orders[name_space] ? 0 : -ENOMEM;
}

static struct list *list_of(struct habit_queue *q, const struct habit *habit)
{
	uint32_t cell = habit_cell(habit);

	q->used[cell / 64] |= 1ull << cell % 64;
	if (!q->cell[cell].next)
		list_init(&q->cell[cell]);
	return &q->cell[cell];
}

struct list *habits_device_list(struct images *s, const struct image *it)
{
	struct habit_queue *queues = s->habits->orders[it->name_space]->device;

	return list_of(&queues[it->kind * 2 + (it->slot != SLOT_NONE)], &it->habit);
}

struct list *habits_ram_list(struct images *s, const struct image *it)
{
	struct habit_queue *queues = s->habits->orders[it->name_space]->ram;

	return list_of(&queues[(it->interactive * IMAGE_KINDS + it->kind) * 2 + it->on_device],
		       &it->habit);
}

double habits_index(const struct images *s, const struct image *it)
{
	return s->habits->reuse.index[habit_cell(&it->habit)];
}

/* The next cell of a queue, from this one on, whose list has somebody, or REUSE_CELLS. */
static uint32_t next_cell(struct habit_queue *q, uint32_t cell)
{
	while (cell < REUSE_CELLS) {
		uint64_t word = q->used[cell / 64] >> cell % 64;

		if (!word) {
			cell = (cell / 64 + 1) * 64;
			continue;
		}
		cell += (uint32_t)__builtin_ctzll(word);
		if (!list_is_empty(&q->cell[cell]))
			return cell;
		q->used[cell / 64] &= ~(1ull << cell % 64);
	}
	return REUSE_CELLS;
}

/* The lowest of a queue of the device that ranks below *rank, which becomes its own. */
static uint32_t lowest_of(const struct images *s, struct habit_queue *q, uint32_t best,
			  struct retain_rank *rank)
{
	for (uint32_t c = next_cell(q, 0); c < REUSE_CELLS; c = next_cell(q, c + 1)) {
		const struct image *it = image_first_of_device(&q->cell[c]);
		struct retain_rank one;

		if (!it)
			continue;
		one = (struct retain_rank){.index = s->habits->reuse.index[c], .tick = it->touched};
		if (best != IMAGE_NONE && !retain_ranks_below(one, *rank))
			continue;
		best = (uint32_t)(it - s->image);
		*rank = one;
	}
	return best;
}

uint32_t habits_victim(const struct images *s, uint64_t name_spaces, bool slotted)
{
	uint32_t best = IMAGE_NONE;
	struct retain_rank rank;

	for (uint32_t kind = 0; kind < IMAGE_KINDS && best == IMAGE_NONE; kind++) {
		for (uint64_t left = name_spaces; left; left &= left - 1) {
			struct habit_orders *o = s->habits->orders[__builtin_ctzll(left)];

			if (!o)
				continue;
			best = lowest_of(s, &o->device[kind * 2 + 1], best, &rank);
			if (!slotted)
				best = lowest_of(s, &o->device[kind * 2], best, &rank);
		}
	}
	return best;
}

static uint32_t lowest_in_ram(const struct images *s, struct habit_queue *q, uint64_t now_ns,
			      uint64_t ttl_ns, uint32_t best, struct retain_rank *rank)
{
	for (uint32_t c = next_cell(q, 0); c < REUSE_CELLS; c = next_cell(q, c + 1)) {
		const struct image *it = image_first_in_ram(s, &q->cell[c]);
		struct retain_rank one;

		if (!it)
			continue;
		one = image_rank(s, (uint32_t)(it - s->image), now_ns, ttl_ns);
		if (best != IMAGE_NONE && !retain_ranks_below(one, *rank))
			continue;
		best = (uint32_t)(it - s->image);
		*rank = one;
	}
	return best;
}

uint32_t habits_next_in_ram(const struct images *s, uint64_t name_spaces, uint64_t now_ns,
			    uint64_t ttl_ns, struct retain_rank *rank)
{
	uint32_t best = IMAGE_NONE;

	for (uint64_t left = name_spaces; left; left &= left - 1) {
		uint32_t ns = (uint32_t)__builtin_ctzll(left);
		struct habit_orders *o = s->habits->orders[ns];

		for (uint32_t i = 0; s->in_ram_of[ns] && i < N_RAM; i++)
			best = lowest_in_ram(s, &o->ram[i], now_ns, ttl_ns, best, rank);
	}
	return best;
}

/* Somebody in one of n queues, or NULL. */
static struct list *first_of(struct habit_queue *q, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t cell = next_cell(&q[i], 0);

		if (cell < REUSE_CELLS)
			return q[i].cell[cell].next;
	}
	return NULL;
}

uint32_t habits_any(const struct images *s, uint64_t name_spaces)
{
	for (uint64_t left = name_spaces; left; left &= left - 1) {
		struct habit_orders *o = s->habits->orders[__builtin_ctzll(left)];
		struct list *first = o ? first_of(o->ram, N_RAM) : NULL;

		if (first)
			return (uint32_t)(list_entry(first, struct image, in_ram_order) - s->image);
	}
	for (uint64_t left = name_spaces; left; left &= left - 1) {
		struct habit_orders *o = s->habits->orders[__builtin_ctzll(left)];
		struct list *first = o ? first_of(o->device, N_DEVICE) : NULL;

		if (first)
			return (uint32_t)(list_entry(first, struct image, in_order) - s->image);
	}
	return IMAGE_NONE;
}
