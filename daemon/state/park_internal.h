/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PARK_INTERNAL_H
#define KVHOST_STATE_PARK_INTERNAL_H

/* park_internal: what park.c, park_room.c and park_discard.c share: one sequence gives pages up. */

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

#define PARK_HOLDERS_MOST 8190u /* of a page, that can be counted */

struct park_thing { /* what a sequence keeps from being given up, perhaps with others */
	enum park_kind {
		PARK_NOTHING = 0,
		PARK_OWN, /* a place below, for itself */
		PARK_PAGE,
		PARK_NODE,   /* that it has let go of */
		PARK_IN_USE, /* a node, too */
	} kind;
	uint32_t at; /* page or node */
};
/* That an entry of its table stands for; of a published page that is here: nothing, see s->node. */
struct park_thing park_thing_at(const struct seq *s, uint32_t entry);
/* Nobody will go on with it: all that it has may go for nowhere. */
void park_discard(struct seq *s);

static inline bool park_ranks_below(const struct seq *s, struct pool_rank rank)
{
	if (s->rank.interactive != rank.interactive)
		return rank.interactive;
	return s->rank.serial > rank.serial;
}

/* Do its live sequences move? */
static inline bool park_moves(const struct pool *p)
{
	return p->below && p->limits.live_in_ram;
}

static inline uint32_t park_here(const struct seq *s)
{
	return s->n_pages - s->away;
}

#endif
