/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PARK_INTERNAL_H
#define KVHOST_STATE_PARK_INTERNAL_H

/* park_internal: what park.c and park_room.c share: one sequence gives pages up. */

#include "daemon/state/park.h"

/* May it be asked for pages now? */
bool park_may_part(struct seq *s);
/* The last page that is here goes: 0; BUSY, it is others' as well and `shared` is not set, or
 * cannot go now; or what taking a place below said. */
int park_part(struct seq *s, bool shared);
/* Of a lost one something goes, for nowhere. */
void park_part_lost(struct seq *s);
/* If it has nothing left it is asked no more. */
void park_leave_rank(struct seq *s);
/* It has something that nobody else has. */
bool park_has_own(const struct seq *s);
/* Nobody will go on with it: all that it has may go for nowhere. */
void park_discard(struct seq *s);

static inline uint32_t park_here(const struct seq *s)
{
	return s->n_pages - s->away;
}

#endif
