/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_MATCH_INTERNAL_H
#define KVHOST_STATE_MATCH_INTERNAL_H

/* match_internal: what match.c and match_states.c share. */

#include "daemon/state/match.h"

/* Walk back to a page boundary that lies in no image. */
uint32_t match_leave_images(const struct match_wish *w, uint32_t tokens, uint32_t page_tokens);
/* Too few to be worth fetching. */
bool match_is_below_floor(const struct match *m, uint64_t tokens);
/* The images that begin in page `index`; pages come in order. */
uint32_t match_images_of(struct match *m, uint32_t index, const struct key_image **first);

/* ---- match_states.c ---- */

/* The state that reuse goes on from, at most *budget pages up; an open claims it. False: the budget
 * ended first. */
bool match_find_state(struct match *m, uint32_t *budget);
/* Without what is behind the first n full pages; each time it gets less. Then find_state again. */
void match_cut_state(struct match *m, uint32_t n);
/* An open looks for states that are gone, and tells the learned order what it goes on with. False:
 * the budget ended first. */
bool match_look_for_ghosts(struct match *m, uint32_t *budget);

#endif
