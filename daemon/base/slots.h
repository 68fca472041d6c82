/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_SLOTS_H
#define KVHOST_BASE_SLOTS_H

/*
 * slots: a bounded number of slots, named by handles that go stale.
 *
 * A client holds {index, generation}. Giving a slot back makes every handle to it stale, so a late
 * or forged handle finds nothing instead of somebody else's slot. A handle proves that its slot is
 * alive, never that the holder may use it: each slot has a pointer for the caller to judge by.
 *
 * Owner: the core thread. Memory grows with the highest number of slots in use, up to the limit.
 */

#include <stdint.h>

struct slot_handle {
	uint32_t index;
	uint32_t generation; /* odd: in use; even is never a valid handle */
};

struct slot {
	void *object;
	uint32_t generation;
	uint32_t next_free;
};

struct slots {
	struct slot *slot; /* [capacity] */
	uint32_t capacity;
	uint32_t limit;
	uint32_t first_free; /* UINT32_MAX: none */
	uint32_t used;
	uint32_t retired; /* generations used up: never handed out again */
};

enum slots_outcome {
	SLOTS_FULL = 1,
};

void slots_init(struct slots *s, uint32_t limit);
void slots_deinit(struct slots *s);

/* 0, SLOTS_FULL or -ENOMEM. object must not be NULL. */
int slots_take(struct slots *s, void *object, struct slot_handle *out);
void slots_give(struct slots *s, struct slot_handle h);        /* h must be alive */
void *slots_find(const struct slots *s, struct slot_handle h); /* NULL: stale or forged */

/* Walk: the first used slot at or after *index, NULL at the end; sets *index to its place. */
void *slots_next(const struct slots *s, uint32_t *index);

#endif
