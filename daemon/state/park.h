/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PARK_H
#define KVHOST_STATE_PARK_H

/*
 * park: live sequences make room: pages of those that rank below go to KV-RAM, and come back.
 *
 * A sequence gives up pages from the end of its table, only as many as are wanted. A published page
 * is let go: the node is parked, which keeps its bytes in some tier, and goes down as a retained
 * page would, but ahead of all that is retained there. A private page is copied to a place of its
 * own and freed when it has arrived. What others use as well it only lets go of: whoever is last
 * gives it up; of a private page that a fork has too it gets a copy of its own.
 * Before its next step a sequence gets everything back, from the start of what is away; until then
 * it may be asked again for what has come.
 *
 * Ranks: interactive before agent, then who was submitted first. A sequence makes room for those
 * that rank above it alone, and neither in a step nor while a request works on its pages. So the
 * one that ranks highest always goes on, and two never push each other out in turns.
 *
 * Admission counts on it: what is promised may exceed the pool by what KV-RAM has room for.
 *
 * Owner: the core thread; no I/O. Giving up a page that a sequence has for itself, and getting one
 * back, are O(1); one whose copy has failed is looked for among all that are away. For pages that
 * several share all that rank below are looked at, and where windows have cut fronts off perhaps
 * their pages; to discard some, all sequences of the pool, a few times.
 */

#include "daemon/state/seq.h"

/*
 * Give up retained pages, then pages of live sequences that rank below, until `n` are free or will
 * be: those of a lost sequence, those that one has for itself, and if there are no more, those that
 * several share. 0: they are, or will be; POOL_MORE: call again; POOL_WAIT: there are not so many,
 * or not before something ends.
 */
int park_make_room(struct pool *p, uint32_t n, struct pool_rank rank);

/* The same for somebody who cannot go on without: of a pool with overcommit, if there is no room
 * anywhere, some are discarded of those that rank below and are not at work: one that has pages for
 * itself, or all that share one, whichever has the lowest highest rank. They are lost then. Nobody
 * is if no page went with any of them, or only places below that no page could go to. */
int park_insist(struct pool *p, uint32_t n, struct pool_rank rank);

#ifdef KVHOST_TESTING
/* Called before somebody is discarded for one of this rank: the highest of them. NULL: nobody
 * watches. */
extern void (*park_discard_hook)(const struct seq *s, struct pool_rank rank);
extern uint64_t park_discard_looks; /* at sequences, so far: a test sees that it has a bound */
#endif

/* Those below that have this private page as well let go of it: one more may be its only holder. */
void park_unshare(struct pool *p, uint32_t page, struct pool_rank rank);

/* Get everything back, at most *budget pages asked for in this turn, for somebody of this rank: a
 * fork's is not its parent's. 0: all is there. POOL_MORE; POOL_WAIT: copies are on their way;
 * POOL_FULL: no page is free yet; POOL_LOST: something of it could not be copied back: it can only
 * be closed. is_behind: somebody waits for a page who ranks above: it gets back what others have
 * kept here, and takes no page. */
int park_return(struct seq *s, struct pool_rank rank, bool is_behind, uint32_t *budget);

/* A private page's copy has ended; its sequence may have been closed meanwhile (NULL). */
void park_moved(struct pool *p, struct seq *s, bool up, uint32_t index, uint32_t page,
		uint32_t place, int result);

/* The part of its table that is away goes, at most *budget pages: 0 when done, POOL_MORE. For
 * seq_close_turn. */
int park_forget(struct seq *s, uint32_t *budget);

/* It has given up pages, or is lost: none of its table may be looked at. */
static inline bool seq_is_away(const struct seq *s)
{
	return s->away > 0 || s->lost;
}

uint64_t park_bytes(const struct seq *s); /* of private memory */

#endif
