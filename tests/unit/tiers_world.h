/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_TIERS_WORLD_H
#define KVHOST_TESTS_TIERS_WORLD_H

/*
 * tiers_world: a pool with a tier below it that the test plays: places from a counter, copies that
 * end when the test says so, in the order asked for, well or badly.
 *
 * Each page and each place has a word for its bytes, which goes with the copies: so a page that is
 * given up under its copy, or that is served before its bytes are there, is seen whatever the pool
 * says of it. One thread.
 */

#include "tests/unit/opening.h"
#include "tests/unit/pool_world.h"

struct tiers_copy { /* under way */
	uint32_t node;
	uint64_t id;
	uint32_t page, place;
};

struct tiers_queue { /* in the order asked for */
	struct tiers_copy *copy;
	uint32_t room, first, end;
};

struct tiers {
	struct pool pool;
	struct pool_below below;
	struct tiers_queue down, up;
	uint32_t places, used;
	uint32_t *node_at;  /* [places]: NODE_NONE */
	uint32_t next;      /* place that is tried first */
	uint64_t *in_place; /* [places]: what bytes are there; 0: nobody's */
	uint64_t *in_page;  /* [pages] */
	/* What take says if it is not 0: POOL_NEVER (WAIT for what is needed) or POOL_WAIT. Else
	 * what there is, and if that is nothing, what ranks below goes. */
	int says;
	uint32_t n_takes, n_needed; /* asked for a place; of them, for what must have one */
};

struct tiers_limits {
	uint32_t pages;
	uint64_t budget;
	uint32_t places;
	enum retain_policy order;
	uint32_t floor_tokens;
};

void tiers_init(struct tiers *t, const struct tiers_limits *limits);
void tiers_deinit(struct tiers *t); /* whatever a failed test has left */

/* pool_check, and: bytes, places and copies are where the nodes say. */
void tiers_check(const struct tiers *t);
/* The same without the walks over everything that are long: the sums, and the bytes. */
const char *tiers_wrong(const struct tiers *t, bool everything);

static inline uint32_t tiers_copies(const struct tiers_queue *q)
{
	return q->end - q->first;
}

/* The oldest copy of a direction ends. */
void tiers_down_ends(struct tiers *t, int result);
void tiers_up_ends(struct tiers *t, int result);
/* All copies end well, and what they lead to. */
void tiers_settle(struct tiers *t);
/* Make room for n pages, copies and all. */
void tiers_make_room(struct tiers *t, uint32_t n);

/* ---- sequences ---- */

/* Begin a step, whatever has to leave first. */
void tiers_begin(struct tiers *t, struct seq *s, uint32_t target);
/* Commit it: the pages that it publishes have their bytes. ids[position] of what the prompt did not
 * give; NULL: none. */
void tiers_commit(struct tiers *t, struct seq *s, uint32_t tokens, const uint32_t *ids);
void tiers_step(struct tiers *t, struct seq *s, uint32_t target);

/* From begin to end, all copies end well. */
struct seq *tiers_open_wish(struct tiers *t, const struct match_wish *wish, uint32_t max_tokens);
struct seq *tiers_open(struct tiers *t, const uint32_t *tokens, uint32_t n, uint32_t max_tokens);

/* Open, compute what is missing of n pages, close: they are retained. nodes: NULL, or [n]. */
void tiers_retain(struct tiers *t, uint32_t which, uint32_t n, uint32_t *nodes);
/* The nodes of a chain from its end upwards, n of them. */
void tiers_path(const struct pool *p, uint32_t node, uint32_t n, uint32_t *nodes);

/* Where a page is, in a letter or two: d on the device, l leaving it, f arriving there, x failed;
 * R in KV-RAM, F arriving there, S spoilt there; "-": nowhere. */
const char *tiers_where(const struct tiers *t, uint32_t node);
/* The same for n nodes, with spaces in between. */
void assert_where(const struct tiers *t, const uint32_t *nodes, uint32_t n, const char *expected);

#endif
