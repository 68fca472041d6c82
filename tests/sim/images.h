/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_IMAGES_H
#define TESTS_SIM_IMAGES_H

/*
 * images: the state images of the simulator's hybrid pools, and what is known of them.
 *
 * A pool has two sections. Each word of the replaced one is a stamp of the position that it is the
 * state of; an entry of the ring is a stamp of its position, at position modulo size. No step is
 * so long that the last entries before it are overwritten, so these hold in every copy of the
 * ring, whatever becomes of the step. One thread.
 */

#include <stdbool.h>
#include <stdint.h>

#define SIM_LANES       4
#define SIM_RETAINED    3
#define SIM_SECTIONS    2
#define SIM_STATE_WORDS 3
#define SIM_RING        128 /* entries */
#define SIM_RING_AHEAD  112 /* most of a step: what it writes may come to nothing */
#define SIM_RING_KEPT   (SIM_RING - SIM_RING_AHEAD)
#define SIM_CAPTURES    4096

struct sim;
struct sim_client;
struct sim_op;
struct sim_view;
struct completion;
struct list;

struct sim_slots { /* of a step, as its client knows them */
	uint32_t source, target, ring, generation;
};

struct sim_captures { /* a set: stamps of the positions at which a capture was asked for */
	uint64_t stamp[SIM_CAPTURES];
	uint32_t n;
};

void images_forget(struct sim *w); /* the pool's memory goes */
bool images_is_hybrid(struct sim *w);
/* What a client says of its pool when it attaches to a hybrid one. */
void images_describe(void *sections);

/* ---- what a client does ---- */

void images_write(struct sim_client *c, struct sim_view *v, uint32_t tokens, uint32_t written);
void images_scribble(struct sim_client *c, const struct sim_view *v, uint32_t from);
void ask_checkpoint(struct sim_client *c, struct sim_view *v);
void ask_image_read(struct sim_client *c, struct sim_view *v);

/* ---- what came back ---- */

void took_checkpoint(struct sim_op *o, const struct completion *reply);
void took_image(const struct sim_op *o);
void took_slots(struct sim_op *o);
/* An open says that so much is cached, and where captures are worth while. */
void took_state(struct sim_op *o, struct sim_view *v);

/* ---- checks ---- */

/* The state of a sequence that nothing has happened to is the one of what is committed. */
void images_check_view(struct sim_client *c, const struct sim_view *v);
void images_check_pool(struct sim *w);
void images_check_rest(struct sim *w);
void images_check_empty(struct sim *w);

/* The longest position up to `most` that a state is kept of, found by its bytes. */
uint32_t images_match(struct sim *w, const uint64_t *chain, uint16_t name_space, uint32_t most);

#endif
