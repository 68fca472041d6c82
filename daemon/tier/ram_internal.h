/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_RAM_INTERNAL_H
#define KVHOST_TIER_RAM_INTERNAL_H

/* ram_internal: what ram.c (places) and ram_move.c (copies) share. */

#include "daemon/tier/ram.h"
#include "daemon/tier/record.h"

void ram_down(void *context, uint32_t node); /* of struct pool_below */
void ram_up(void *context, uint32_t node);
uint32_t ram_move_private(void *context, bool up, struct seq *s, uint32_t index, uint32_t page,
			  uint32_t place);
void ram_orphan(void *context, bool up, uint32_t ticket);

/* What was taken is to get its bytes, and pinned for that. */
void ram_bytes_come(struct ram *r, uint32_t object);

/* Begin to move pieces so that an object of this size fits, unless that is under way. */
void ram_relocate(struct ram_pool *rp, int size);

/* ---- ram_order.c ---- */

enum ram_claim { /* of a namespace on what it holds, the weakest first */
		 RAM_OVER_QUOTA = 0,
		 RAM_ABOVE_GUARANTEE,
		 RAM_GUARANTEED,
		 RAM_CLAIMS,
};

struct ram_candidate {
	struct ram_pool *pool; /* NULL: nobody */
	uint32_t node;
	uint32_t image; /* IMAGE_NONE: a page that stands alone */
	enum ram_claim claim;
	struct retain_rank rank;
};

enum ram_help { /* whose places are of use */
		RAM_ALL_HELP,
		RAM_OWN_HELP, /* this pool's */
		RAM_THOSE_WITH_ROOM_HELP,
};

/* With `more` bytes beside what it has. */
enum ram_claim ram_claim_of(const struct ram *r, uint16_t name_space, uint64_t more);
bool ram_is_weaker(const struct ram *r, const struct ram_candidate *a,
		   const struct ram_candidate *b);
/* The next to go of some namespaces, in pools that help rp. */
struct ram_candidate ram_weakest(const struct ram_pool *rp, uint64_t namespaces,
				 enum ram_help help);
struct ram_candidate ram_newcomer(struct ram_pool *rp, uint32_t image);
void ram_give_up(const struct ram_candidate *victim);
#ifdef KVHOST_TESTING
/* Called before something is given up for a newcomer of the same pool; a victim without a pool:
 * nothing is, so the newcomer finds no place. `planned`: all that it needs is to be had so. NULL:
 * nobody watches. */
extern void (*ram_displace_hook)(const struct ram_candidate *newcomer, enum pool_need need,
				 const struct ram_candidate *victim, bool planned);
#endif
void ram_tell_displaced(const struct ram_candidate *newcomer, enum pool_need need,
			const struct ram_candidate *victim, bool planned);
uint32_t ram_victims_for(const struct ram_candidate *newcomer);
int ram_plan(void *context, uint32_t image, uint32_t pages,
	     bool with_image); /* of struct pool_below */

/* ---- ram_room.c ---- */

uint64_t ram_room(void *context); /* of struct pool_below */
/* May a live sequence's page have a place, with so many more than its pool has? What is not
 * promised takes nothing of what is: a pool that promises more than there is has no more than is
 * left by the others. */
bool ram_may_take_live(const struct ram_pool *rp, uint64_t more);

/* ---- ram_image.c ---- */

void ram_spill(void *context, uint32_t image); /* of struct pool_below */
void ram_spill_kick(struct ram_pool *rp);
/* What lies in a place is about to be the image of a state. */
void ram_describe_image(struct ram_pool *rp, uint32_t image);
uint16_t ram_find_extents(const struct ram *r, uint32_t object, struct record_extent *extents,
			  uint32_t most);
/* How many opens the pool has a second: now and then. */
void ram_rate(struct ram_pool *rp, uint64_t now_ns);

#endif
