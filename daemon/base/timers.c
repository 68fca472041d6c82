/* SPDX-License-Identifier: Apache-2.0 */

/* timers: a binary heap of embedded timers. Owner: the core thread; nothing blocks. */

#include "daemon/base/timers.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

#define FIRST_CAPACITY 16

void timer_init(struct timer *t, void (*expired)(struct timer *t))
{
	*t = (struct timer){.expired = expired};
}

void timers_init(struct timers *all)
{
	*all = (struct timers){0};
}

void timers_deinit(struct timers *all)
{
	for (uint32_t i = 0; i < all->n; i++)
		all->heap[i].timer->place = 0;
	free(all->heap);
	*all = (struct timers){0};
}

static bool is_earlier(const struct timers_entry *a, const struct timers_entry *b)
{
	if (a->at_ns != b->at_ns)
		return a->at_ns < b->at_ns;
	return a->serial < b->serial;
}

static void put(struct timers *all, uint32_t index, struct timers_entry entry)
{
	all->heap[index] = entry;
	entry.timer->place = index + 1;
}

static void sift_up(struct timers *all, uint32_t index, struct timers_entry entry)
{
	while (index > 0) {
		uint32_t parent = (index - 1) / 2;

		if (!is_earlier(&entry, &all->heap[parent]))
			break;
		put(all, index, all->heap[parent]);
		index = parent;
	}
	put(all, index, entry);
}

static void sift_down(struct timers *all, uint32_t index, struct timers_entry entry)
{
	for (;;) {
		uint64_t child = 2 * (uint64_t)index + 1;

		if (child >= all->n)
			break;
		if (child + 1 < all->n && is_earlier(&all->heap[child + 1], &all->heap[child]))
			child++;
		if (!is_earlier(&all->heap[child], &entry))
			break;
		put(all, index, all->heap[child]);
		index = (uint32_t)child;
	}
	put(all, index, entry);
}

/* Puts an entry into the hole at `index`, wherever it must go from there. */
static void settle(struct timers *all, uint32_t index, struct timers_entry entry)
{
	must(index < all->n);
	if (index > 0 && is_earlier(&entry, &all->heap[(index - 1) / 2]))
		sift_up(all, index, entry);
	else
		sift_down(all, index, entry);
}

static int timers_grow(struct timers *all)
{
	uint32_t capacity = all->capacity ? all->capacity * 2 : FIRST_CAPACITY;
	struct timers_entry *grown;

	must(all->n == all->capacity);
	if (failpoint(timers_grow) || all->capacity > UINT32_MAX / 2)
		return -ENOMEM;
	grown = reallocarray(all->heap, capacity, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	all->heap = grown;
	all->capacity = capacity;
	return 0;
}

int timers_arm(struct timers *all, struct timer *t, uint64_t at_ns)
{
	struct timers_entry entry = {.at_ns = at_ns, .serial = all->serial, .timer = t};
	int r;

	if (t->place) {
		must(t->place <= all->n && all->heap[t->place - 1].timer == t);
		all->serial++;
		settle(all, t->place - 1, entry);
		return 0;
	}

	if (all->n == all->capacity) {
		r = timers_grow(all);
		if (r < 0)
			return r;
	}
	all->serial++;
	sift_up(all, all->n++, entry);
	return 0;
}

void timers_disarm(struct timers *all, struct timer *t)
{
	struct timers_entry last;
	uint32_t index;

	if (!t->place)
		return;
	must(t->place <= all->n);
	index = t->place - 1;
	must(all->heap[index].timer == t);

	t->place = 0;
	last = all->heap[--all->n];
	if (index < all->n)
		settle(all, index, last);
}

uint64_t timers_next_ns(const struct timers *all)
{
	return all->n ? all->heap[0].at_ns : TIMERS_NEVER;
}

struct timer *timers_pop_due(struct timers *all, uint64_t now_ns)
{
	struct timer *first;

	if (all->n == 0 || all->heap[0].at_ns > now_ns)
		return NULL;
	first = all->heap[0].timer;
	must(first->place == 1);
	timers_disarm(all, first);
	return first;
}
