/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_FRAMES_INTERNAL_H
#define KVHOST_STATE_FRAMES_INTERNAL_H

/* frames_internal: what frames.c, frames_block.c, frames_slab.c, frames_move.c and frames_check.c
 * share. Core thread; nothing here blocks. */

#include "daemon/state/frames.h"

#define NONE         UINT32_MAX
#define FRAME_ORDERS 5 /* a block of order k is 2^k frames */
#define GROUP_FRAMES 16
#define SLOTS_MAX    (FRAME_BYTES / FRAMES_SLOT_MIN)
#define SLOT_WORDS   (SLOTS_MAX / 64)
#define MOVES_MAX    ((1u << 7) - 1) /* of one object at a time */
#define PINS_MAX     ((1u << 19) - 1)

enum slab_bucket { /* 0 .. 7: open slabs by eighths of their slots that are used, not full */
		   BUCKET_FILLS = 8,
		   BUCKET_LEAVING = BUCKET_FILLS, /* objects are being moved from it, not full */
		   BUCKETS,
		   BUCKET_OUT = BUCKETS, /* in no list: full, or held */
};

enum frame_kind {
	FRAME_ABSENT = 0, /* has not arrived */
	FRAME_FREE,
	FRAME_SLAB,
	FRAME_WHOLE,  /* of one object alone */
	FRAME_TARGET, /* reserved for a move of such a frame */
};

struct frame {
	uint32_t group;
	uint32_t owner; /* of a slab: its first frame; of a whole frame or target: the object */
	/* The whole frames of an object are a heap by their order in it: frame i has i's parent
	 * (i - 1) / 2 and children 2 i + 1, 2 i + 2; NONE = there is none. */
	uint32_t parent;
	uint32_t child[2];
	uint8_t kind; /* enum frame_kind */
	bool leaving; /* of a whole frame: a move from it is under way */
};

/*
 * 2^order frames that arrived together and in which blocks are cut, each aligned to its size. In
 * a list by order, top and free frames.
 */
struct group {
	uint32_t first;
	uint32_t next, previous;
	uint16_t free;
	uint16_t held; /* frames of a region that is being planned: not free as long */
	uint8_t order;
	uint8_t top; /* 1 + order of its largest free block, 0 = none */
};

struct slab { /* at its first frame */
	uint32_t next, previous;
	uint32_t first_object;
	uint16_t used;     /* slots with an object, or reserved */
	uint16_t reserved; /* for moves to it */
	uint16_t pinned;   /* objects of it */
	uint16_t leaving;  /* objects of it with a move under way */
	uint16_t counted;  /* free slots of it that its size counts as open */
	uint8_t size;
	uint8_t bucket; /* enum slab_bucket */
	bool held;      /* it lies in a region that is being planned */
	uint64_t free[SLOT_WORDS];
};

struct size {
	uint64_t bytes;
	uint32_t references; /* 0: the number is not in use */
	uint32_t whole;      /* frames of each object that are its own */
	uint32_t rest_bytes; /* in a slot; 0: there is none */
	uint32_t slot_bytes;
	uint16_t slots;  /* of a slab */
	uint8_t order;   /* of a slab */
	uint16_t filled; /* buckets that are not empty: bits */
	uint32_t objects;
	uint32_t slabs;
	uint32_t open_slots; /* free, in buckets by fill */
	uint32_t bucket[BUCKETS];
};

struct object {
	uint32_t next, previous; /* in its slab; of a free number: next */
	uint32_t root;           /* first of its whole frames, or NONE */
	uint32_t slab : 20;      /* if it has a rest */
	uint32_t slot : 9;
	uint32_t used : 1;
	uint32_t leaving : 1; /* a move of its rest is under way */
	uint32_t pins : 19;
	uint32_t moves : 7; /* under way */
	uint32_t size : 6;
};

struct frames {
	struct frame *frame; /* [capacity] */
	struct slab *slab;   /* [capacity] */
	struct group *group; /* [capacity] */
	struct object *object;
	uint32_t capacity, chunk, most_objects;
	uint32_t largest_order; /* of a slab */
	uint32_t arrived;
	uint32_t groups;
	uint32_t free_frames;
	uint32_t objects;
	uint32_t first_free; /* stack of object numbers */
	uint32_t fresh;      /* numbers from here on were never used */
	uint64_t used_bytes;
	uint64_t slabs;
	/* Frames of groups of each order; and that all objects need, of slabs by order, each size
	 * packed into the fewest slabs; whole frames count as order 0. */
	uint64_t room[FRAME_ORDERS];
	uint64_t need[FRAME_ORDERS];
	uint32_t clearing[FRAME_ORDERS]; /* first frame of the block that moves make free, or NONE
					  */
	/* Groups by order, top and free frames; of each top the orders, and of both the numbers of
	 * free frames, that some group has. */
	uint32_t head[FRAME_ORDERS][FRAME_ORDERS + 1][GROUP_FRAMES + 1];
	uint32_t orders[FRAME_ORDERS + 1];
	uint32_t counts[FRAME_ORDERS][FRAME_ORDERS + 1];
	struct size sizes[FRAMES_SIZES_MAX];
};

static inline uint64_t frame_offset(uint32_t frame)
{
	return frame * FRAME_BYTES;
}

static inline uint64_t slot_offset(const struct frames *f, uint32_t slab, uint32_t slot)
{
	return frame_offset(slab) + (uint64_t)slot * f->sizes[f->slab[slab].size].slot_bytes;
}

static inline bool object_has_rest(const struct frames *f, const struct object *o)
{
	return f->sizes[o->size].rest_bytes > 0;
}

/* ---- blocks: frames_block.c ---- */

/* A mask of the places in a group of this mask where a block of the order is free. */
uint32_t block_places(uint32_t free, uint32_t order);
bool block_is_free(const struct frames *f, uint32_t order); /* is one of it, or a larger one? */
/* The first frame of one, from the tightest place there is; the frames are of this kind then.
 * NONE: there is no such block. */
uint32_t block_take(struct frames *f, uint32_t order, enum frame_kind kind);
void block_give(struct frames *f, uint32_t first, uint32_t order);
/* What is free in a block is not free until it is let go. */
void block_hold(struct frames *f, uint32_t first, uint32_t order);
void block_let_go(struct frames *f, uint32_t first, uint32_t order);

/* ---- slabs: frames_slab.c ---- */

/* Lay a size out: whole, rest_bytes, slots and so on, from its bytes. */
void size_lay_out(struct size *z, uint32_t largest_order);
/* The fullest open slab of a size, or NONE. */
uint32_t slab_open(const struct size *z);
uint32_t slab_make(struct frames *f, uint32_t size); /* NONE: no block for it is free */
/* Its bucket follows its counts: to be called after they changed. */
void slab_settle(struct frames *f, uint32_t slab);
uint32_t slot_take(struct frames *f, uint32_t slab);            /* it has a free one */
void slot_give(struct frames *f, uint32_t slab, uint32_t slot); /* the last one ends the slab */
void slab_link(struct frames *f, uint32_t slab, uint32_t object);
void slab_unlink(struct frames *f, uint32_t slab, uint32_t object);

/* ---- objects: frames.c ---- */

/* The frame at place i of the heap below root; it is there. */
uint32_t frames_whole(const struct frames *f, uint32_t root, uint32_t i);

#endif
