/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_SPILL_H
#define TESTS_SIM_SPILL_H

/*
 * spill: the simulator's KV-RAM: an arena of few objects; copies that fail at any page, or are
 * never told of; and what must hold of what lies there.
 *
 * What a place holds is known here from the copies that were made, not from what the daemon notes.
 * One thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/ram.h"

#define SPILL_FRAMES     2
#define SPILL_PAGE_BYTES 4096
#define SPILL_PLACES     (SPILL_FRAMES * FRAME_BYTES / SPILL_PAGE_BYTES)
#define SPILL_FAILED     256
#define SPILL_OBJECT     (SPILL_PAGE_BYTES + RAM_KNOWN_BYTES) /* bytes that are charged for one */

struct sim;
struct sim_op;
struct sim_reuse;
struct sim_text;

struct sim_spill {
	bool on;
	struct arena *arena;
	uint32_t down_fails, up_fails; /* of 1000 pages that are copied */
	uint32_t bad_from;             /* event from which on none can be copied down */
	uint32_t hangs;                /* copies that nobody may yet be told of */
	bool good[SPILL_PLACES];       /* it was filled, and could be read so far */
	uint64_t failed[SPILL_FAILED]; /* stamps of pages that could not be fetched: a ring */
	uint64_t n_failed;
	/* to see that a run did something */
	uint64_t down, up, down_failed, displaced, refused, hits, exact_hits, cut, floors;
};

void spill_draw(struct sim *w);  /* options; into the configuration */
void spill_begin(struct sim *w); /* the arena; it arrives when the work executor makes it */
void spill_stop(struct sim *w);  /* all has left it, and no job of its own is on its way */
void spill_end(struct sim *w);   /* after the core */

void spill_tell(struct sim *w);

/* Nobody waits in vain for a copy. */
bool spill_is_calm(const struct sim *w);
/* Is there a page there that ends with this row, and can be read? */
bool spill_has(struct sim *w, uint64_t stamp);
/* What an open gets of all that it was to get, after the failures that it has met. */
struct sim_reuse spill_after_failures(const struct sim_op *o, const struct sim_text *t);

/* ---- what is there ---- */

struct ram_pool *spill_pool(struct sim *w); /* NULL: no KV-RAM below the pool */
uint64_t spill_offset(struct sim *w, const struct node *n);
bool *spill_good(struct sim *w, uint64_t offset); /* of the place there */
bool spill_is_copy(const struct device_job *j);

/* ---- checks: spill_check.c ---- */

/* Before `victim` makes room for `node`; NODE_NONE: there is none for it. */
void spill_displaced(const struct ram_pool *rp, uint32_t node, enum pool_need need,
		     uint32_t victim);

void spill_check(struct sim *w);
void spill_check_rest(struct sim *w);
void spill_check_empty(struct sim *w);

#endif
