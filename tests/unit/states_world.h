/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_STATES_WORLD_H
#define KVHOST_TESTS_STATES_WORLD_H

/*
 * states_world: a hybrid pool with a tier below it that the test plays: room in units, of which a
 * page takes one and an image several; copies that end when the test says so, pages in the order
 * asked for, images likewise, well or badly.
 *
 * Each page, slot and place has a word for its bytes, which goes with the copies: so what is given
 * up under its copy, or is served before its bytes are there, is seen whatever the pool says of it.
 * One thread.
 */

#include "daemon/state/capture.h"
#include "daemon/state/pool_states.h"
#include "tests/unit/opening.h"
#include "tests/unit/pool_world.h"
#include "tests/unit/states_text.h"

#define STATES_OPENS 16u
#define SECOND       1000000000ull

struct states_copy { /* of a page, under way */
	uint32_t node;
	uint64_t id;
	uint32_t page, place;
};

struct states_queue { /* a ring in the order asked for */
	struct states_copy *copy;
	uint32_t first, end;
};

struct states_place {
	uint32_t node, image; /* IMAGE_NONE: a page. NODE_NONE: nothing is there */
	uint64_t word;        /* what bytes are there; 0: nobody's */
};

struct states {
	struct pool pool;
	struct pool_below below;
	struct states_queue down, up;
	uint32_t *spills; /* images that are copied down, a ring */
	uint32_t first_spill, end_spill;
	uint32_t units, used, image_units;
	struct states_place *at; /* [places] */
	uint32_t places;
	uint32_t next; /* place that is tried first */
	uint64_t *in_page, *in_slot;
	struct opening *opens[STATES_OPENS]; /* whose image is being copied, or is to be */
	/* What asking for a place gives if it is not 0: POOL_NEVER or POOL_WAIT; after so many that
	 * are given as ever. */
	int says;
	uint32_t says_after;
	uint32_t plans, plans_made; /* asked for; of them: so much was given up */
	uint32_t plans_broken;      /* it was not enough after all */
	bool planned;
	struct retain_rank planned_rank;
	uint64_t serial;
};

struct states_limits {
	uint32_t pages;
	uint32_t slots;
	uint32_t units; /* 0: there is no tier below */
	uint32_t image_units;
	uint32_t floor_tokens;
	uint64_t budget; /* 0: all pages */
	uint32_t lanes;  /* 0: some */
	enum retain_policy order;
};

void states_init(struct states *w, const struct states_limits *limits);
/* Gives up all that is left, and looks that all is free then. */
void states_deinit(struct states *w);

/* pool_check, and: bytes, places and copies are where nodes and states say. */
void states_check(const struct states *w);
const char *states_wrong(const struct states *w);

static inline uint32_t states_copies(const struct states_queue *q)
{
	return q->end - q->first;
}

static inline uint32_t states_spills(const struct states *w)
{
	return w->end_spill - w->first_spill;
}

/* The oldest copy of a kind ends. */
void states_down_ends(struct states *w, int result);
void states_up_ends(struct states *w, int result);
void states_spill_ends(struct states *w, int result);
/* The copy of an open's image to its lane ends; the open must be `copying`. */
void states_claim_ends(struct states *w, struct opening **o, int result);
/* All copies end well, and what they lead to. */
void states_settle(struct states *w);
/* Make room for n pages, copies and all. */
void states_make_room(struct states *w, uint32_t n);
/* This one leaves the device; its copies are on their way. */
void states_push_down(struct states *w, uint32_t image);
void states_wait(struct states *w, uint64_t ns);

/* ---- sequences ---- */

/* Commit the open step: what it publishes has its bytes. */
void states_commit(struct states *w, struct seq *s, uint32_t tokens);
void states_step(struct states *w, struct seq *s, uint32_t target);
/* Begin to capture where it is now: the state, or IMAGE_NONE and why in *skip (may be NULL). */
uint32_t states_capture_begins(struct states *w, struct seq *s, enum image_kind kind, bool is_user,
			       enum capture_skip *skip);
void states_capture_ends(struct states *w, uint32_t image, int result);
/* Both, as a checkpoint of no conversation that is known so far. */
uint32_t states_capture(struct states *w, struct seq *s);

/* An open that goes on in turns; it is known to the world until it has its sequence. */
struct opening *states_open_begins(struct states *w, const struct match_wish *wish,
				   uint32_t max_tokens);
/* A turn with any budget: as opening_turn. */
int states_open_turn(struct states *w, struct opening **o, uint32_t budget, struct seq **s);
void states_open_abandon(struct states *w, struct opening **o);
/* From begin to end, all copies end well. */
struct seq *states_open_wish(struct states *w, const struct match_wish *wish, uint32_t max_tokens);

/* Open it as far as n tokens. */
struct seq *states_open(struct states *w, const struct states_text *text, uint32_t n);
/* Open it, compute up to n tokens, capture there, close. */
uint32_t states_retain(struct states *w, const struct states_text *text, uint32_t n);
/* How many tokens of it are found. */
uint32_t states_found(struct states *w, const struct states_text *text, uint32_t n);
/* Opened and closed: how many tokens were had. */
uint32_t states_reuse(struct states *w, const struct states_text *text, uint32_t n);

/* ---- where they are ---- */

/* The bytes of the image at a node. */
static inline uint64_t states_word(const struct states *w, uint32_t node)
{
	return w->pool.prefix.nodes[node].key.low * 3 + 1;
}

/* Where a state is: D on the device, R in KV-RAM; its image: s in a slot, p in a place; X doomed;
 * "-": it is none any more. */
const char *states_where(const struct states *w, struct image_name name);
/* The pages of a state, from its first one: d on the device, l leaving it, f arriving there, x
 * failed; R in KV-RAM, F arriving there, S spoilt there; "-": nowhere; with spaces in between. */
const char *states_pages(const struct states *w, uint32_t image);

static inline struct image_name states_name(const struct states *w, uint32_t image)
{
	return image_name(&w->pool.images, image);
}

#endif
