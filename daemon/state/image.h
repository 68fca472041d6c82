/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_IMAGE_H
#define KVHOST_STATE_IMAGE_H

/*
 * image: the lanes and retained slots of a hybrid pool, and the states that live in them.
 *
 * A lane is what a live sequence computes in: two slots of replaced sections (a step reads one and
 * writes the other) and one of ring sections. A retained state is a prompt checkpoint or a retained
 * prefix, at the node where it was captured. Its image lies in a retained slot or in KV-RAM; in
 * either it can be copied from. It keeps its node, and so every page up to it, on the device or in
 * KV-RAM or in both; giving it up frees the pages that nobody else needs.
 *
 * A conversation is a lineage of claims: a capture follows the state that its request claimed, or
 * captured before. If that is still the latest of its lineage, the new one takes its place (at
 * most two stay: the latest, and the one right after the last real user message); if somebody else
 * has gone on from it, the capture begins a lineage of its own.
 *
 * Which state leaves the device: checkpoints before prefixes, then the one claimed or captured
 * least recently. Which one leaves KV-RAM: agents' before interactive (which rank as agents' on
 * probation once they were idle for a time), on probation before protected (it has come back from
 * there), then the one claimed or captured least recently. In the learned order (habits.h) the
 * index comes before who was claimed or captured least recently, and nobody is on probation or
 * protected. A state that is being copied from or to is never chosen, nor to leave KV-RAM one whose
 * pages are on their way there.
 *
 * Owner: the core thread, within its pool; no I/O. Cost of finding one to go: the queues of the
 * namespaces in question, or in the learned order their cells in use, and those passed over: busy,
 * or on the device of another namespace, or not in a slot. Who comes into an order passes those
 * touched since, and who returns to it the busy ones before it. Everything else is O(1), but for
 * making and checking.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/state/habits.h"
#include "daemon/state/retain.h"

#define IMAGE_NONE UINT32_MAX
#define LANE_NONE  UINT32_MAX
#define SLOT_NONE  UINT32_MAX

enum image_kind {
	IMAGE_CHECKPOINT = 0,
	IMAGE_PREFIX,
	IMAGE_KINDS,
};

enum image_state {
	IMAGE_FREE = 0,
	IMAGE_FILLING, /* its bytes are on their way; found by nobody */
	IMAGE_VALID,
	IMAGE_DOOMED, /* to be given up once nobody copies from it; found by nobody */
};

/* In KV-RAM: agents' and interactive ones, on probation and protected, by kind, living on the
 * device as well or not: whatever comes into one of them is the youngest there, or nearly so. */
#define IMAGE_QUEUES (2 * 2 * IMAGE_KINDS * 2)

/* Names a state for as long as it is the same. */
struct image_name {
	uint32_t image; /* index; IMAGE_NONE */
	uint64_t id;
};

struct image {
	struct list
	    in_order; /* of its kind or cell, oldest first; VALID, pages kept on the device */
	struct list in_ram_order; /* of a queue, oldest first; VALID, with a place there */
	struct list in_queue;     /* of images that are copied to KV-RAM one after another */
	struct habit habit;       /* in the learned order */
	uint64_t id;
	uint64_t lineage;
	struct image_name user;  /* the lineage's state after the last user message */
	struct image_name after; /* what it follows */
	uint64_t touched;        /* grows with each capture and claim */
	uint64_t touched_ns;
	uint64_t arrives; /* its pages are in KV-RAM when so many copies have landed */
	uint32_t node;
	uint32_t tokens;
	uint32_t slot;   /* that its image lies in; SLOT_NONE */
	uint32_t place;  /* in KV-RAM, that its image lies in or is copied to; COPY_NONE */
	uint32_t claims; /* copies from it in flight */
	uint16_t name_space;
	uint8_t kind;
	uint8_t state;
	bool latest;       /* of its lineage */
	bool is_user;      /* captured right after the last real user message */
	bool on_device;    /* it keeps its pages there */
	bool in_ram;       /* it keeps them in KV-RAM */
	bool interactive;  /* the highest of those that captured or claimed it */
	bool is_protected; /* it has come back from KV-RAM */
	bool spilling;     /* its image is copied from its slot to KV-RAM */
	bool tried;        /* that has failed once since it was touched */
	bool going_down;   /* places are being found for it: it gives none up */
	uint32_t planned;  /* copies in KV-RAM that would go with it, from the deepest page on */
	uint16_t moving;   /* pieces of its image that are being moved inside KV-RAM */
};

struct lane {
	uint32_t generation; /* odd: in use */
	uint32_t next_free;
	uint32_t jobs;            /* in flight on its slots: it is free when they are done */
	uint32_t last_name_space; /* whose bytes are in its slots; UINT32_MAX: nobody's */
	bool unclean;             /* and perhaps others' */
	bool leaving;
	uint8_t current; /* slot 0 or 1 holds the state */
};

struct image_counts { /* they only grow */
	uint64_t captures[IMAGE_KINDS], claims[IMAGE_KINDS], given_up[IMAGE_KINDS];
	uint64_t replaced; /* given up because their lineage went on */
	uint64_t spilled;  /* images copied from their slot to KV-RAM */
	uint64_t spills_failed, restores_failed;
	uint64_t restored; /* claimed from KV-RAM */
};

struct images {
	/* [n_images]: for each retained slot, and each image in KV-RAM; and one that looks for
	 * either */
	struct image *image;
	uint32_t *free_slot; /* [n_slots]: the first slots_free are */
	struct lane *lane;   /* [n_lanes] */
	uint32_t n_images, n_slots, n_lanes;
	uint32_t lanes_free, first_lane;
	uint32_t slots_free;
	uint32_t in_ram; /* images with a place there; and by namespace */
	uint32_t in_ram_of[RETAIN_NAMESPACES];
	uint64_t next_id, next_lineage, next_touch;
	uint64_t sent, landed; /* copies of pages to KV-RAM that began, and that ended, in order */
	struct list free_images;
	struct list order[IMAGE_KINDS];
	struct list ram_order[RETAIN_NAMESPACES][IMAGE_QUEUES];
	struct habits *habits; /* NULL: lru; else they have the orders */
	struct image_counts counts;
};

/* 0 or -ENOMEM. n_in_ram: images that may lie in KV-RAM beside those in slots. */
int images_init(struct images *s, uint32_t n_lanes, uint32_t n_slots, uint32_t n_in_ram);
void images_deinit(struct images *s);
/* Before the first state: the learned order. 0 or -ENOMEM. */
int images_learn(struct images *s);
/* Before the first state of a namespace. 0 or -ENOMEM. */
int images_prepare(struct images *s, uint16_t name_space);
/* Address space that it takes, without what KV-RAM pays for. */
uint64_t images_bytes_for(uint64_t n_lanes, uint64_t n_slots);
uint64_t images_learned_bytes_for(uint64_t n_slots, uint32_t name_spaces);

uint32_t lane_take(struct images *s);            /* LANE_NONE: none is free */
void lane_give(struct images *s, uint32_t lane); /* free once its jobs are done */
void lane_job(struct images *s, uint32_t lane);
void lane_job_done(struct images *s, uint32_t lane);
/* From now on a namespace's bytes are in it. True: another one's were, and must be wiped first. */
bool lane_use(struct images *s, uint32_t lane, uint32_t name_space);
/* What was to be done with it for that was not, or not all of it: it must be wiped next time. */
void lane_is_unclean(struct images *s, uint32_t lane);
static inline bool lane_is_busy(const struct images *s, uint32_t lane)
{
	return s->lane[lane].jobs > 0;
}

/* A state as FILLING, without a node, slot or place; IMAGE_NONE: there are as many as may be. */
uint32_t image_take(struct images *s);
bool image_take_slot(struct images *s, uint32_t image); /* false: none is free */
void image_give_slot(struct images *s, uint32_t image); /* if it has one */
/* Its image lies, or will lie, in KV-RAM; or does no longer. */
void image_put_in_ram(struct images *s, uint32_t image, uint32_t place);
uint32_t image_take_from_ram(struct images *s, uint32_t image); /* the place */
/* The next of some namespaces, a bit each, to leave the device, or IMAGE_NONE; `slotted`: of those
 * in slots. */
uint32_t image_victim(const struct images *s, uint64_t name_spaces, bool slotted);
/* Any VALID one of a namespace (IMAGE_NONE: of all), busy or not; or IMAGE_NONE. */
uint32_t image_any(const struct images *s, uint32_t name_space);
/* The next of some namespaces, a bit each, to leave KV-RAM, or IMAGE_NONE; where it stands. */
uint32_t image_next_in_ram(const struct images *s, uint64_t name_spaces, uint64_t now_ns,
			   uint64_t ttl_ns, struct retain_rank *rank);
struct retain_rank image_rank(const struct images *s, uint32_t image, uint64_t now_ns,
			      uint64_t ttl_ns);
/* Out of that order for a while, and back to where it was, which is among the first. */
void image_leave_ram_order(struct images *s, uint32_t image);
void image_return_to_ram_order(struct images *s, uint32_t image);
/* Into it, among the last. */
void image_enter_ram_order(struct images *s, uint32_t image);
void image_filled(struct images *s, uint32_t image); /* FILLING -> VALID, in the orders */
/* VALID: youngest of its kind. */
void image_touch(struct images *s, uint32_t image, bool interactive, uint64_t now_ns);
/* Its pages are kept on the device from now on, or are not. VALID: it is in the order there, or
 * not; and in that of KV-RAM if it has a place there. */
void image_set_on_device(struct images *s, uint32_t image, bool on_device);
/* Out of the orders that it is in while its place in them changes, and back. */
struct image_places {
	bool device, ram;
};
struct image_places image_step_out(struct images *s, uint32_t image);
void image_step_in(struct images *s, uint32_t image, struct image_places was);
/* Of a list of an order the first that may go, or NULL. */
const struct image *image_first_of_device(const struct list *order);
const struct image *image_first_in_ram(const struct images *s, const struct list *order);
/* Somebody copies from or to it: it goes when that is done. */
static inline bool image_is_busy(const struct image *it)
{
	return it->claims > 0 || it->spilling || it->moving > 0;
}
/* Not busy, without slot and place, at no tier -> FREE. Its node must not name it any more. */
void image_give(struct images *s, uint32_t image);
/* VALID -> DOOMED: out of the orders. */
void image_doom(struct images *s, uint32_t image);

struct image_name image_name(const struct images *s, uint32_t image);
/* The state of that name if it still is one, or IMAGE_NONE. */
uint32_t image_find(const struct images *s, struct image_name name);

const char *images_check(const struct images *s, const struct prefix *p);

#endif
