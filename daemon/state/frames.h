/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_FRAMES_H
#define KVHOST_STATE_FRAMES_H

/*
 * frames: who has which part of an arena: bookkeeping alone, no memory of it is touched here.
 *
 * An arena is cut into frames of FRAME_BYTES, which become usable in order, as their memory
 * arrives. An object has a number, which it keeps when it is relocated, and lies in pieces:
 *
 *   whole frames   as many as its bytes fill, each anywhere: they need not lie side by side
 *   the rest       a last frame of its own, if that wastes under 6 % of the object's frames (so it
 *                  is for all that is larger than 16 frames); else a slot of a slab
 *
 * A slab has the rests of objects of one size, 1 piece each. It is 1, 2, 4, 8 or 16 frames that lie
 * side by side inside one chunk: the fewest that waste under 6 %, which 16 always do. A slab is
 * made when its size has no free slot, and its frames are free again when its last object goes.
 * Blocks of free frames are cut in halves and joined again (a buddy system).
 *
 * If frames enough for an object would be free once every size were packed into the fewest slabs,
 * but are not free side by side now, frames_plan_move says what to move: objects of the emptiest
 * slab into free slots of others, or what stands in the way in a block that is to become free: the
 * slabs in it are smaller than it, so they fit into what is free elsewhere, if need be after one
 * more such move. That always ends: no hole is ever too small. (With slabs of 3 frames, say, it
 * would not: S S S - - S S S - - has room for another and cannot move any.)
 *
 * Owner: the core thread; no I/O. take, give, piece: O(1), or about the frames of the object.
 * frames_plan_move looks at a bounded number of slabs and groups of 16 frames, besides those that
 * something pins. Memory: address space for all of it at the start, touched as it is used: 20
 * bytes an object, about 120 a frame.
 */

#include <stdbool.h>
#include <stdint.h>

#define FRAME_BYTES      (2ull << 20)
#define FRAMES_MAX       (1u << 20) /* 2 TiB */
#define FRAMES_SLAB_MAX  16
#define FRAMES_SIZES_MAX 64
#define FRAMES_SLOT_MIN  4096 /* bytes; what is smaller takes so much */
#define OBJECT_NONE      UINT32_MAX
#define OBJECTS_MAX      (1u << 26)
#define FRAMES_MOVES_MAX 64

struct frames;

struct frames_piece { /* of an object: where it lies */
	uint64_t offset;
	uint64_t bytes;
};

struct frames_move { /* of a piece */
	uint32_t object;
	uint64_t from, to; /* offsets; the two do not overlap */
	uint64_t bytes;
};

enum frames_outcome {
	FRAMES_FULL = 1, /* too few frames would be free, however they were packed; or there are
			  * as many objects as there may be */
	FRAMES_SPREAD,   /* enough would be: move something first */
	FRAMES_NOTHING,  /* no move helps: none is needed, or the object is FULL; else pins or
			  * moves under way are in the way: ask again when some have ended */
};

/* capacity: frames, all told, at most FRAMES_MAX; most_objects: at the same time, at most
 * OBJECTS_MAX. 0 or -ENOMEM. None is usable yet. */
int frames_new(uint32_t capacity, uint32_t frames_a_chunk, uint32_t most_objects,
	       struct frames **out);
void frames_free(struct frames **f);
/* The next n frames have their memory. A block of free frames never crosses the end of a chunk,
 * nor of what arrived at once: so whole chunks, of a multiple of FRAMES_SLAB_MAX frames, serve
 * best; what is left over serves smaller slabs only. */
void frames_arrived(struct frames *f, uint32_t n);

/* Objects of so many bytes will come: its number, the same for the same size; or -ENOSPC, when
 * FRAMES_SIZES_MAX sizes are in use. bytes: 1 .. capacity; a multiple of what their users want
 * offsets to be a multiple of. Each call is undone by one forget. */
int frames_size(struct frames *f, uint64_t bytes);
void frames_forget_size(struct frames *f, int size); /* no object of it is left after the last */

/* A place for one. 0, FULL or SPREAD. */
int frames_take(struct frames *f, int size, uint32_t *object);
void frames_give(struct frames *f, uint32_t object); /* not pinned, no move of it under way */

/* While a copy from or to it is under way it is not moved. */
void frames_pin(struct frames *f, uint32_t object);
void frames_unpin(struct frames *f, uint32_t object);

/* Where it lies: how many pieces (1 for what is smaller than a frame), and each of them, in the
 * order of its bytes. Pieces may happen to lie side by side. */
uint32_t frames_pieces(const struct frames *f, uint32_t object);
struct frames_piece frames_piece(const struct frames *f, uint32_t object, uint32_t i);

/* Would take say 0 or SPREAD, not FULL, once given[i] objects of each size i were given back?
 * Exact. given: [FRAMES_SIZES_MAX], or NULL: as it is now. */
bool frames_would_fit_without(const struct frames *f, int size, const uint32_t *given);
/* The same, if all that is known is how many bytes are given back. true is sure; false is not: they
 * may be bytes that leave slabs half empty, or larger slabs whole. */
bool frames_would_fit(const struct frames *f, int size, uint64_t freed_bytes);

/* What to move so that an object of this size, for which take said SPREAD, fits: at most `room`
 * moves, whose targets are reserved until frames_moved. 0 (and *n > 0) or NOTHING. One plan may
 * not be enough: move, try to take, ask again while it is SPREAD. No object that is pinned is in
 * it; what is in it is not given back before frames_moved. */
int frames_plan_move(struct frames *f, int size, struct frames_move *moves, uint32_t room,
		     uint32_t *n);
/* Copied: the piece lies there now, its old place is free. Not copied, or the object was pinned
 * since: it stays where it was, the target is free again. */
void frames_moved(struct frames *f, const struct frames_move *m, bool copied);

struct frames_sums {
	uint64_t capacity_bytes; /* of frames that have arrived */
	uint64_t used_bytes;     /* of objects */
	uint64_t slab_bytes;     /* of frames that are not free: slabs, whole frames, targets */
	uint64_t objects;
	uint64_t slabs;
};
struct frames_sums frames_sums(const struct frames *f);

/* Walks everything. NULL, or what does not hold. */
const char *frames_check(const struct frames *f);

#endif
