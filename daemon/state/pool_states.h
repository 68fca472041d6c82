/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_POOL_STATES_H
#define KVHOST_STATE_POOL_STATES_H

/*
 * pool_states: the retained states of a hybrid pool, and in which tier they live.
 *
 * A state is its image and all pages up to it; it is of use only whole. It lives on the device if
 * it keeps its pages there, in KV-RAM if it keeps them there, and its image too; perhaps in both.
 * Several may share pages: a page is kept, in each tier, as long as one state there needs it.
 *
 * A state that leaves the device goes to KV-RAM as a whole: places for its image, unless that lies
 * there already, and for those of its pages that have none are found before anything is given up
 * for them. If they cannot be had it is dropped as a whole. It stays on the device until its copies
 * have come. A page whose copy fails is found no more, nor is what stands on it.
 *
 * Owner: the core thread; no I/O. Cost: to leave the device, all pages up to the state, and what is
 * given up for it below; to stay when that has failed as well. Else the pages that a state keeps
 * for itself, and one.
 */

#include "daemon/state/pool.h"

/* A place for the image of a FILLING state: a retained slot, or one in KV-RAM, or the slot of a
 * state that is given up for it. False: there is none. */
bool pool_place_image(struct pool *p, uint32_t image);

/* Its pages are on the device: it keeps them there from now on, even if they were about to leave.
 */
void pool_keep_on_device(struct pool *p, uint32_t image);
/* It leaves the device, for KV-RAM if it can. 0; POOL_WAIT: not now. */
int pool_push_down(struct pool *p, uint32_t image);
/* It goes for nowhere, from all tiers; as soon as nobody copies from it. */
void pool_give_up(struct pool *p, uint32_t image);
/* The learned order: it is for nowhere, and stays known. */
void pool_habits_left(struct pool *p, uint32_t image);
/* Give up all states of a namespace (RETAIN_NAMESPACES: of all), at most *budget; true: done. */
bool pool_drop_states(struct pool *p, uint16_t name_space, uint32_t *budget);

/* The state that leaves the device next: of a namespace with the weakest claim; or IMAGE_NONE.
 * `slotted`: one whose image lies in a slot. */
uint32_t pool_next_state(const struct pool *p, bool slotted);

/* Nobody copies from it any more. */
void pool_claim_done(struct pool *p, uint32_t image);
/* The copy of its image to a lane has ended, from KV-RAM or, if it came up, from its slot; that is
 * claimed still. If it failed nobody finds the state any more. `wanted`: the lane's sequence has
 * all its pages on the device. `came_up`: the state was not there when it was found
 * (match.from_ram), so that it has come back. */
void pool_image_came(struct pool *p, uint32_t image, int result, bool wanted, bool came_up);
/* How the copy of its image to KV-RAM ended. */
void pool_spilled(struct pool *p, uint32_t image, int result);
/* A piece of its image is being moved inside KV-RAM, or was. */
void pool_image_moving(struct pool *p, uint32_t image, bool moving);

/* What KV-RAM could have from it: how many copies of pages would go with it. Until it is undone,
 * nothing but more such plans may happen to the pool. */
uint32_t pool_plan_give_up(struct pool *p, uint32_t image);
void pool_plan_undo(struct pool *p, uint32_t image);

/* A page of a hybrid pool that no sequence uses any more, nor a state: it goes. */
void pool_drop_useless(struct pool *p, uint32_t node);

#endif
