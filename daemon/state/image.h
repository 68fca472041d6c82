/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_IMAGE_H
#define KVHOST_STATE_IMAGE_H

/*
 * image: the lanes and retained slots of a hybrid pool, and the states that live in them.
 *
 * A lane is what a live sequence computes in: two slots of replaced sections (a step reads one and
 * writes the other) and one of ring sections. A retained slot holds the image of one retained
 * state: a prompt checkpoint or a retained prefix, at the node where it was captured. A state
 * keeps its node, and so every page up to it; giving it up frees the pages that nobody else needs.
 *
 * A conversation is a lineage of claims: a capture follows the state that its request claimed, or
 * captured before. If that is still the latest of its lineage, the new one takes its place (at
 * most two stay: the latest, and the one right after the last real user message); if somebody else
 * has gone on from it, the capture begins a lineage of its own.
 *
 * Which state gives up its slot: checkpoints before prefixes, then the one claimed or captured
 * least recently. A state that is being copied from or to is never chosen.
 *
 * Owner: the core thread, within its pool; no I/O. Every call is O(1) but for the pages it frees.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/state/prefix.h"

#define IMAGE_NONE UINT32_MAX
#define LANE_NONE  UINT32_MAX

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

/* Names a state for as long as it is the same. */
struct image_name {
	uint32_t image; /* index of its retained slot; IMAGE_NONE */
	uint64_t id;
};

struct image {
	struct list in_order; /* of its kind, oldest first; VALID ones */
	uint64_t id;
	uint64_t lineage;
	struct image_name user;  /* the lineage's state after the last user message */
	struct image_name after; /* what it follows */
	uint32_t node;
	uint32_t tokens;
	uint32_t claims; /* copies from it in flight */
	uint16_t name_space;
	uint8_t kind;
	uint8_t state;
	bool latest;  /* of its lineage */
	bool is_user; /* captured right after the last real user message */
};

struct lane {
	uint32_t generation; /* odd: in use */
	uint32_t next_free;
	uint32_t jobs;            /* in flight on its slots: it is free when they are done */
	uint32_t last_name_space; /* whose bytes are in its slots; UINT32_MAX: nobody's */
	bool leaving;
	uint8_t current; /* slot 0 or 1 holds the state */
};

struct image_counts { /* they only grow */
	uint64_t captures[IMAGE_KINDS], claims[IMAGE_KINDS], given_up[IMAGE_KINDS];
	uint64_t replaced; /* given up because their lineage went on */
};

struct images {
	struct image *image; /* [n_images]: one a retained slot */
	struct lane *lane;   /* [n_lanes] */
	uint32_t n_images, n_lanes;
	uint32_t lanes_free, first_lane;
	uint32_t in_use; /* retained slots */
	uint64_t next_id, next_lineage;
	struct list free_images;
	struct list order[IMAGE_KINDS];
	struct image_counts counts;
};

int images_init(struct images *s, uint32_t n_lanes, uint32_t n_images); /* 0 or -ENOMEM */
void images_deinit(struct images *s);
uint64_t images_bytes_for(uint64_t n_lanes, uint64_t n_images); /* address space that it takes */

uint32_t lane_take(struct images *s);            /* LANE_NONE: none is free */
void lane_give(struct images *s, uint32_t lane); /* free once its jobs are done */
void lane_job(struct images *s, uint32_t lane);
void lane_job_done(struct images *s, uint32_t lane);
/* From now on a namespace's bytes are in it. True: another one's were, and must be wiped first. */
bool lane_use(struct images *s, uint32_t lane, uint32_t name_space);
static inline bool lane_is_busy(const struct images *s, uint32_t lane)
{
	return s->lane[lane].jobs > 0;
}

/* A retained slot without a state, as FILLING; IMAGE_NONE: none is free. */
uint32_t image_take(struct images *s);
/* The next of a namespace (IMAGE_NONE: of all) to give up its slot, or IMAGE_NONE. */
uint32_t image_victim(const struct images *s, uint32_t name_space);
void image_filled(struct images *s, uint32_t image); /* FILLING -> VALID, youngest */
void image_touch(struct images *s, uint32_t image);  /* VALID: youngest of its kind */
/* FILLING, VALID or DOOMED, without claims -> FREE. Its node must not name it any more. */
void image_give(struct images *s, uint32_t image);
/* VALID -> DOOMED: out of the order. */
void image_doom(struct images *s, uint32_t image);

struct image_name image_name(const struct images *s, uint32_t image);
/* The state of that name if it still is one, or IMAGE_NONE. */
uint32_t image_find(const struct images *s, struct image_name name);

const char *images_check(const struct images *s, const struct prefix *p);

#endif
