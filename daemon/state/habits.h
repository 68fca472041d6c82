/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_HABITS_H
#define KVHOST_STATE_HABITS_H

/*
 * habits: what is learned of the states of a hybrid pool, and the order that comes of it.
 *
 * As retain.h learns from the pages of a dense pool, with the same table (reuse.h) and the same
 * clock, but of states: each one waits in a cell, its class and the age since it was captured or
 * claimed last. The class is the turn of the open that did so, and whether that made it or found
 * it. An open whose longest state was a checkpoint is the next turn of what left that; one that
 * found a prefix, or nothing, begins a conversation.
 *
 * A state that is gone stays known for a while, as a ghost: by the key of its node and, as it may
 * end in the middle of a page, by the key of the page before with the lengths that end behind it.
 * An open that would have gone on from one is reuse, too. What is forgotten first is what has been
 * gone for longest; it was waited for in vain. What its lineage replaced leaves no trace.
 *
 * Order: the lowest index first, then the one touched first. For each namespace there is a queue of
 * each kind of the device and of each rank of KV-RAM, which has a list for each cell.
 *
 * Owner: the core thread, within its pool; no I/O. Cost of the next one to go: the cells in use,
 * and those passed over as they are copied from. Everything else is O(1), but for the ageing: a
 * state grows older 36 times in its life.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/state/key.h"
#include "daemon/state/keyset.h"
#include "daemon/state/retain.h"

struct image;
struct images;

struct habit {              /* of a state, or of a ghost */
	struct list in_age; /* of its bucket, oldest first; alone: it waits for nothing */
	uint64_t tick;
	uint8_t class;
	uint8_t bucket;
	bool is_ghost;
};

static inline uint32_t habit_cell(const struct habit *habit)
{
	return reuse_cell(habit->class, habit->bucket);
}

struct ghost { /* beside its entry in the set of keys */
	struct habit habit;
	uint8_t kind;
	uint8_t length; /* tokens of its last page; 0: that is full */
};

struct habit_orders; /* the queues of one namespace */

struct habits {
	struct reuse reuse;
	struct retain_counts counts; /* of states */
	uint64_t tick, refresh_at;
	struct list ages[REUSE_BUCKETS]; /* struct habit.in_age */
	struct keyset ghosts;            /* owner: in heads, or KEYSET_NONE */
	struct ghost *ghost;             /* [ghosts.capacity] */
	uint32_t oldest, newest;         /* of the ghosts, by when they left */
	struct keyset heads;             /* pages that ghosts end right behind; owner: how many */
	uint64_t *lengths;               /* [heads.capacity]: bit n - 1: there may be one of n */
	struct habit_orders *orders[RETAIN_NAMESPACES];
};

/* For so many ghosts. 0 or -ENOMEM. */
int habits_new(uint32_t ghosts, struct habits **out);
void habits_free(struct habits **h);
uint64_t habits_bytes_for(uint64_t ghosts, uint32_t name_spaces); /* address space, at most */
/* How many ghosts are kept for so many slots, and images in KV-RAM. */
uint32_t habits_ghosts_for(uint64_t slots, uint64_t in_ram);
uint64_t habit_orders_bytes(void); /* of one namespace */
void habit_orders_free(struct habit_orders *o);
/* Before the first state of a namespace: its orders. 0 or -ENOMEM. */
int habits_prepare(struct habits *h, uint16_t name_space);

/* The clock: a new open. */
void habits_open(struct images *s, uint64_t tick);

/* A FILLING state will be at the node with that key; or, an open since `since` has come upon one
 * that is there. */
void habits_begin(struct images *s, uint32_t image, struct key key, uint32_t turn, uint64_t since);
void habits_touch(struct images *s, uint32_t image, uint32_t turn, uint64_t since);
/* It leaves for nowhere and stays known; length: of its last page, 0 if that is full. */
void habits_left(struct images *s, uint32_t image, struct key key, struct key above,
		 uint32_t length);
/* It leaves no trace: it was never there, or its lineage has gone on from it. */
void habits_drop(struct images *s, uint32_t image);

/* Which lengths may states have that are gone and ended behind the page of that key? */
uint64_t habits_lengths(const struct habits *h, struct key above);
bool habits_is_ghost(const struct habits *h, struct key key);
/* What turn does an open begin that goes on from a state, or would have from a ghost? */
uint32_t habits_turn_after(const struct images *s, uint32_t image);
uint32_t habits_turn_after_ghost(const struct habits *h, struct key key);
/* An open at `tick` would have found it. */
void habits_missed(struct images *s, struct key key, uint32_t turn);

/* ---- the order; image.h says who is in it ---- */

/* Where a state belongs: lists by cell, by `touched`. */
struct list *habits_device_list(struct images *s, const struct image *it);
struct list *habits_ram_list(struct images *s, const struct image *it);
double habits_index(const struct images *s, const struct image *it);
/* As image_victim, image_next_in_ram and image_any. */
uint32_t habits_victim(const struct images *s, uint64_t name_spaces, bool slotted);
uint32_t habits_next_in_ram(const struct images *s, uint64_t name_spaces, uint64_t now_ns,
			    uint64_t ttl_ns, struct retain_rank *rank);
uint32_t habits_any(const struct images *s, uint64_t name_spaces);

/* Memory of what is known of ghosts, in use. */
uint64_t habits_ghost_bytes(const struct habits *h);

/* Compares everything with everything. NULL or what is wrong. */
const char *habits_check(const struct images *s);

#endif
