/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_FRAMES_WORLD_H
#define KVHOST_TESTS_FRAMES_WORLD_H

/*
 * frames_world: an arena for tests of frames.h: its bookkeeping, and a stamp for each CELL bytes of
 * it that says which object's byte lies there. So two objects in one place, a byte in the wrong
 * place or one that a move forgot are seen, whoever made the mistake. The world also says what
 * must fit, from nothing but how many objects of each size there are. One thread.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/state/frames_internal.h"

#define CELL        16384u
#define FRAME_CELLS (FRAME_BYTES / CELL)
#define TEST(name)  cmocka_unit_test_setup_teardown(name, setup, teardown)

/* A size in cells, and how it must lie. */
struct world_size {
	uint32_t cells;
	uint32_t whole; /* frames of its own */
	uint32_t slab;  /* frames of a slab, 0: none */
	uint32_t slots;
};

#define WORLD_SIZES 12
enum { /* some of a world's sizes, by the frames of a slab, or whole frames */
       SLAB_1 = 0,
       SLAB_2 = 1,
       SLAB_4 = 2,
       SLAB_8 = 4,
       SLAB_16 = 5,
       WHOLE_1 = 6,
       WHOLE_3 = 7,
       WHOLE_1_AND_SLAB_2 = 8,
       WHOLE_21 = 11,
};

struct world_object {
	uint64_t serial; /* 0: not there */
	uint32_t size;   /* of the world's */
	uint32_t pins;
};

struct world {
	struct frames *f;
	struct random random;
	uint64_t *cell;
	uint32_t capacity, chunk, most_objects, arrived;
	uint32_t at_once;            /* so many frames arrive together, 0: whole chunks */
	struct world_object *object; /* [most_objects] */
	uint64_t serial;             /* of the last one taken */
	struct world_size sizes[WORLD_SIZES];
	int size[WORLD_SIZES]; /* its number in f, or -1 */
	uint32_t objects[WORLD_SIZES];
	struct frames_move *move; /* under way, [most_objects] */
	uint32_t moves;
};

uint32_t world_below(struct world *w, uint32_t n);
void world_init(struct world *w, uint32_t capacity, uint32_t chunk, uint32_t most_objects);
void world_deinit(struct world *w);
void world_arrive(struct world *w, uint32_t n);
void world_use_size(struct world *w, uint32_t size);

/* frames_check, and: every object has its bytes where it says. */
void world_check(const struct world *w);
void world_verify_all(struct world *w);

int world_take(struct world *w, uint32_t size, uint32_t *object);
void world_give(struct world *w, uint32_t object);
void world_pin(struct world *w, uint32_t object, bool pin);
bool world_is_moving(const struct world *w, uint32_t object);
uint32_t world_frame(const struct world *w, uint32_t object); /* its first byte lies in */

/* 0 or FRAMES_NOTHING; the moves are under way then. */
int world_plan(struct world *w, uint32_t size, uint32_t room);
/* The i-th move under way ends. */
void world_moved(struct world *w, uint32_t i, bool copied);
/* Plan, move and take until it is there. Returns how many moves that took, or UINT32_MAX if a plan
 * says that nothing helps. */
uint32_t world_make_room(struct world *w, uint32_t size, uint32_t room, uint32_t *object);

/* Would one more object of a size fit, if all were packed anew? */
bool world_fits(const struct world *w, uint32_t more);

/* ---- for tests of one thing ---- */

uint32_t world_must_take(struct world *w, uint32_t size);
uint32_t world_fill(struct world *w, uint32_t size); /* until FULL: how many that took */
/* Give all back that begin in these frames of each `of` frames. */
void world_give_rows(struct world *w, uint32_t first, uint32_t n, uint32_t of);

#endif
