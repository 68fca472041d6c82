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

#include "daemon/tier/ram_internal.h"

#define SPILL_FRAMES     8
#define SPILL_PAGE_BYTES 4096 /* or more: struct sim.page_bytes */
#define SPILL_PLACES     (SPILL_FRAMES * FRAME_BYTES / SPILL_PAGE_BYTES)
#define SPILL_FAILED     256
#define SPILL_OBJECT     (SPILL_PAGE_BYTES + RAM_KNOWN_BYTES) /* bytes that are charged for one */

struct sim;
struct sim_op;
struct sim_reuse;
struct sim_text;

struct sim_failed { /* what could not be fetched: the stamp of its last row */
	uint64_t stamp;
	bool image;
};

struct sim_spill {
	bool on;
	struct arena *arena;
	uint32_t down_fails, up_fails;          /* of 1000 pages that are copied */
	uint32_t bad_from;                      /* event from which on none can be copied down */
	uint32_t hangs;                         /* copies that nobody may yet be told of */
	bool good[SPILL_PLACES];                /* it was filled, and could be read so far */
	struct sim_failed failed[SPILL_FAILED]; /* a ring */
	uint64_t n_failed;
	uint32_t newcomer; /* state that room was planned for last */
	/* to see that a run did something */
	uint64_t images_down, images_up, moved, states_displaced, states_refused, planned;
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
/* Has a node a copy there, with this in that row, that can be read? */
bool spill_holds(struct sim *w, const struct node *n, uint32_t row, uint64_t stamp);
/* What an open gets of all that it was to get, after the failures that it has met. */
struct sim_reuse spill_after_failures(const struct sim_op *o, const struct sim_text *t);

/* ---- what is there ---- */

struct ram_pool *spill_pool(struct sim *w); /* NULL: no KV-RAM below the pool */
uint64_t spill_offset(struct sim *w, const struct node *n);
/* What lies there: its number, or OBJECT_NONE. */
uint32_t spill_object(struct sim *w, uint64_t offset);
bool spill_is_good(struct sim *w, uint64_t offset, uint64_t bytes); /* of the places there */
bool spill_is_whole(struct sim *w, uint32_t object);
/* An end of it is an image, in KV-RAM or of a lane. */
bool spill_is_of_image(struct sim *w, const struct device_move *m);
bool spill_is_copy(const struct device_job *j);

/* ---- checks: spill_check.c ---- */

/* Before `victim` makes room for the newcomer; one without a pool: there is none for it. */
void spill_displaced(const struct ram_candidate *newcomer, enum pool_need need,
		     const struct ram_candidate *victim, bool planned);
/* 0: over its quota, 1: above what it is sure of, 2: neither; with `more` bytes. */
uint32_t spill_claim(struct sim *w, uint16_t name_space, uint64_t more);
/* The same in a hybrid pool: spill_states.c. */
void spill_state_displaced(struct sim *w, const struct ram_candidate *newcomer,
			   const struct ram_candidate *victim, bool planned);

void spill_check(struct sim *w);
void spill_check_rest(struct sim *w);
void spill_check_empty(struct sim *w);

#endif
