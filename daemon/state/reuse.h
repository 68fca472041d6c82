/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_REUSE_H
#define KVHOST_STATE_REUSE_H

/*
 * reuse: how likely retained pages are to be reused, learned from what has been reused.
 *
 * A page waits in a cell: its class (which turn of a conversation left it, and whether it had been
 * reused then) and the bucket of its age in opens. Per cell this counts pages that were reused
 * there, that were forgotten there unused, and that wait there now. From these comes the hazard of
 * a cell, the share of its pages that are reused before they grow older than it, and from hazards
 * the index: the best rate, over all times to go on waiting, of reuse to hope for per open waited.
 * What has the lowest index is given up first.
 *
 * Counts of the past decay, so the table follows a change of habits. It is made anew every
 * REUSE_REFRESH opens, at a fixed open: decisions do not depend on timing. Plain doubles, without
 * contraction, so that every machine decides alike.
 *
 * Doubt: decay is slow, and where nothing at all is reused it changes no order, as all rates fall
 * alike. So when hardly anything of the usual is reused from one table to the next (silence),
 * habits have changed or pause, and which it is cannot be told before it ends. The table is then
 * not believed: the order is by age alone, that of lru, and new pages have their chance. When reuse
 * comes again and is of pages from before the silence, it was a pause: the next one as long raises
 * no doubt. When it is of what came since, habits have changed: what was counted before the silence
 * is forgotten, and so are pauses.
 *
 * Owner: the core thread, within its pool's retain. Pure: no I/O, no clock, no memory of its own.
 */

#include <stdbool.h>
#include <stdint.h>

#define REUSE_TURNS   4 /* 0, 1, 2, 3 and more */
#define REUSE_PARTS   2 /* as enum retain_part */
#define REUSE_CLASSES (REUSE_TURNS * REUSE_PARTS)
#define REUSE_BUCKETS 37 /* ages 0, then from 1.5^k on; the last one is open */
#define REUSE_CELLS   (REUSE_CLASSES * REUSE_BUCKETS)
#define REUSE_REFRESH 50 /* opens */
#define REUSE_DECAY   .98

struct reuse {
	double reused[REUSE_CELLS];
	double forgotten[REUSE_CELLS];
	uint64_t waiting[REUSE_CELLS]; /* pages known and not touched since, with their bytes or
					  without */
	double index[REUSE_CELLS];
	uint16_t rank_of[REUSE_CELLS];   /* place in the order of giving up */
	uint16_t cell_at[REUSE_CELLS];   /* and the reverse */
	double reused_then[REUSE_CELLS]; /* `reused` as the last table left it */
	uint32_t silence;  /* tables in a row before which hardly anything was reused */
	uint32_t patience; /* so many of them have been a pause already */
	uint64_t refreshes, doubts;
};

static inline uint32_t reuse_cell(uint32_t class, uint32_t bucket)
{
	return class * REUSE_BUCKETS + bucket;
}

void reuse_init(struct reuse *u);

/* The youngest age of a bucket, and the bucket of an age. */
uint64_t reuse_edge(uint32_t bucket);
uint32_t reuse_bucket(uint64_t age);

/* Decay, then a new table and order. */
void reuse_refresh(struct reuse *u);

static inline bool reuse_in_doubt(const struct reuse *u)
{
	return u->silence > u->patience;
}

#endif
