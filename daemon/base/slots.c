/* SPDX-License-Identifier: Apache-2.0 */

/*
 * slots: handles that go stale. Owner: the core thread; nothing blocks. Taking may allocate when
 * more slots are in use than ever before; every other call is O(1), save the walk.
 */

#include "daemon/base/slots.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

#define NO_SLOT        UINT32_MAX
#define FIRST_CAPACITY 16

/* A slot is retired at this generation: wrapping around would bring old handles back to life. */
#define GENERATION_LAST (UINT32_MAX - 1)

void slots_init(struct slots *s, uint32_t limit)
{
	must(limit > 0 && limit < NO_SLOT);
	*s = (struct slots){.limit = limit, .first_free = NO_SLOT};
}

void slots_deinit(struct slots *s)
{
	free(s->slot);
	*s = (struct slots){.first_free = NO_SLOT};
}

static int slots_grow(struct slots *s)
{
	uint32_t capacity = s->capacity ? s->capacity : FIRST_CAPACITY / 2;
	struct slot *grown;

	must(s->first_free == NO_SLOT);
	must(s->capacity < s->limit);

	capacity = capacity > s->limit / 2 ? s->limit : capacity * 2;
	if (failpoint(slots_grow))
		return -ENOMEM;
	grown = reallocarray(s->slot, capacity, sizeof(*grown));
	if (!grown)
		return -ENOMEM;

	/* Lowest index first: a small load touches few cache lines. */
	for (uint32_t i = s->capacity; i < capacity; i++)
		grown[i] = (struct slot){.next_free = i + 1 < capacity ? i + 1 : NO_SLOT};
	s->first_free = s->capacity;
	s->slot = grown;
	s->capacity = capacity;
	return 0;
}

int slots_take(struct slots *s, void *object, struct slot_handle *out)
{
	struct slot *taken;
	uint32_t index;
	int r;

	must(object);

	if (s->first_free == NO_SLOT) {
		if (s->capacity == s->limit)
			return SLOTS_FULL;
		r = slots_grow(s);
		if (r < 0)
			return r;
	}

	index = s->first_free;
	must(index < s->capacity);
	taken = &s->slot[index];
	must(taken->generation % 2 == 0 && !taken->object);

	s->first_free = taken->next_free;
	s->used++;
	taken->object = object;
	taken->generation++;
	*out = (struct slot_handle){.index = index, .generation = taken->generation};
	return 0;
}

void slots_give(struct slots *s, struct slot_handle h)
{
	struct slot *given;

	must(slots_find(s, h));
	must(s->used > 0);

	given = &s->slot[h.index];
	given->object = NULL;
	given->generation++;
	s->used--;
	if (given->generation >= GENERATION_LAST) {
		s->retired++;
	} else {
		given->next_free = s->first_free;
		s->first_free = h.index;
	}
	must(s->used + s->retired <= s->capacity);
}

void *slots_find(const struct slots *s, struct slot_handle h)
{
	/* h comes from outside: every value of it must be answered, none may be trusted. */
	if (h.index >= s->capacity || h.generation % 2 == 0)
		return NULL;
	if (s->slot[h.index].generation != h.generation)
		return NULL;
	return s->slot[h.index].object;
}

void *slots_next(const struct slots *s, uint32_t *index)
{
	for (uint32_t i = *index; i < s->capacity; i++) {
		if (s->slot[i].object) {
			*index = i;
			return s->slot[i].object;
		}
	}
	return NULL;
}
