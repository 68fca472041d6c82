/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_STATES_H
#define TESTS_SIM_STATES_H

/*
 * states: the retained states of the simulator's hybrid pools: an image and all pages up to it, on
 * the device, in KV-RAM or in both.
 *
 * What a page or an image is to hold follows from what its node is: from its tokens and the images
 * among them, from there to the root. That is compared with the bytes wherever they lie. What an
 * open may go on from is found by the bytes alone. One thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/ram.h"

#define SIM_STATES 24 /* that one prompt could go on from */

struct sim;
struct sim_client;
struct sim_op;
struct sim_reuse;
struct sim_text;
struct payload_open_result;

struct sim_state {
	uint32_t image, tokens;
	uint64_t id;
	bool below; /* something of it must be fetched from KV-RAM */
};

struct sim_states { /* longest first */
	struct sim_state state[SIM_STATES];
	uint32_t n;
};

struct sim_prompt { /* what of a prompt decides what is found */
	uint16_t name_space;
	const struct sim_text *text;
	const uint64_t *chain; /* [n] */
	uint32_t n, max_cached;
};

/* What it can go on from as of now: of states that are there as a whole the longest, unless it lies
 * in KV-RAM and reaches too little beyond the longest on the device. */
struct sim_reuse states_match(struct sim *w, const struct sim_prompt *p, struct sim_states *found);
/* Some of what an open was to get could not be fetched: is what it got the next best? False:
 * nothing of what it was to get has failed. */
bool states_check_after_failures(struct sim_op *o, const struct sim_text *t,
				 const struct payload_open_result *r);
/* The state there, by its bytes; IMAGE_NONE: there is none that can be read. */
uint32_t states_find(struct sim *w, uint64_t stamp, uint16_t name_space);
/* The stamp of the last row of a node. */
uint64_t states_stamp(struct sim *w, uint32_t node);

/* ---- what is what: for states_check.c ---- */

/* The stamps of the rows of a page, after the one before it; the last one. */
uint64_t states_rows(struct sim *w, uint32_t node, uint64_t above, uint64_t *rows);
uint64_t states_root(struct sim *w, uint32_t node);
/* Of all rows from the root to a node: how many. */
uint32_t states_chain(struct sim *w, uint32_t node, uint64_t *chain);
/* The bytes of an image from there on: as many as lie in one row with it. */
const char *states_bytes(struct sim *w, const struct image *it, uint64_t offset);
uint64_t states_word(struct sim *w, const struct image *it, uint32_t word);

/* ---- checks ---- */

/* A copy that is on its way from or to an image is one that the image knows of. */
void states_check_move(struct sim *w, const struct device_move *m);
void states_check(struct sim *w); /* of a hybrid pool, after each event */
/* Every page and image that can be read holds what it is to hold. */
void states_check_bytes(struct sim *w);
void states_check_rest(struct sim *w);
void states_check_empty(struct sim *w);
/* Nothing is on its way: what nobody needs is nowhere. */
void states_check_settled(struct sim *w);

#endif
