/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_BELOW_H
#define KVHOST_STATE_BELOW_H

/*
 * below: the tier under the device, as a pool sees it: places for pages, and copies down and up,
 * of which it is told later. Whoever is under it (daemon/tier/ram.h) gives the functions.
 */

#include <stdbool.h>
#include <stdint.h>

struct pool;
struct seq;

enum pool_outcome {
	POOL_WAIT = 1, /* pages are on their way, or somebody else must end first */
	POOL_NEVER,    /* it could never be */
	POOL_STALE,    /* a handle or receipt that does not fit */
	POOL_RANGE,    /* an argument out of its range */
	POOL_STEP,     /* the step is poisoned or was ended */
	POOL_BUSY,     /* not with a step open */
	POOL_SLOT,     /* a receipt names a foreign slot */
	POOL_MORE,     /* the budget of this turn is used up: call again */
	POOL_QUOTA,    /* the namespace must end something of its own first */
	POOL_FULL,     /* no page is free yet */
	POOL_LOST,     /* its bytes are gone */
};

struct pool_rank { /* of who wants a page, or has some: interactive first, then the earlier one */
	bool interactive;
	uint64_t serial;
};

enum pool_need {                     /* why a page must have a place below */
		 POOL_NEED_NONE = 0, /* it may go for nowhere */
		 POOL_NEED_HEAD,     /* something below it is there already */
		 POOL_NEED_LIVE,     /* it is a live sequence's */
};

/* The tier below the device, for a pool. Nothing here blocks; copies are told of later. */
struct pool_below {
	/* A place for a page that is to leave the device. 0 and *place; POOL_NEVER: nothing there
	 * ranks below it (not if it is needed); POOL_WAIT: what could make room is being copied.
	 * May give up others (pool_give_up_ram). */
	int (*take)(void *context, uint32_t node, enum pool_need need, uint32_t *place);
	/* The same for an image of a retained state; may give up others (pool_give_up). */
	int (*take_image)(void *context, uint32_t image, enum pool_need need, uint32_t *place);
	/* A state wants places for so many pages, and for its image, if `with_image`. 0: all of
	 * that fits, once so much had been given up that ranks below it; POOL_NEVER: nothing has,
	 * it would not be enough. */
	int (*plan)(void *context, uint32_t image, uint32_t pages, bool with_image);
	void (*spill)(void *context, uint32_t image); /* slot to KV-RAM; then pool_spilled */
	int (*take_private)(void *context, uint16_t name_space, uint32_t *place);
	void (*give)(void *context, uint32_t place);
	void (*down)(void *context, uint32_t node); /* then pool_came_down, in this order */
	void (*up)(void *context, uint32_t node);   /* then pool_came_up, in this order */
	/* The same for a private page (then park_moved): a ticket, by which it can be said that
	 * its sequence is gone. */
	uint32_t (*move_private)(void *context, bool up, struct seq *s, uint32_t index,
				 uint32_t page, uint32_t place);
	void (*orphan)(void *context, bool up, uint32_t ticket);
	/* Pages that live sequences may have there, beside what others were promised. */
	uint64_t (*room)(void *context);
	/* No page of a live sequence finds a place, and nothing moves that would make one. It tries
	 * to have one, and gives it back: what is retained there may be given up for that, and
	 * pieces begin to be moved. */
	bool (*is_full)(void *context);
	void *context;
};

#endif
