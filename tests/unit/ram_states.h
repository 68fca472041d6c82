/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_RAM_STATES_H
#define KVHOST_TESTS_RAM_STATES_H

/*
 * ram_states: retained states of hybrid pools in ram_world.h. Copies between a lane and an image
 * are the test's: it writes the bytes of a capture, and looks at those of a claim. One thread.
 */

#include "daemon/state/capture.h"
#include "tests/unit/ram_world.h"
#include "tests/unit/states_text.h"

/* Begin to capture where the sequence is now: the state, or IMAGE_NONE. */
uint32_t ram_states_capture_begins(struct ram_world *w, uint32_t pool, struct seq *s,
				   enum image_kind kind);
void ram_states_capture_ends(struct ram_world *w, uint32_t pool, uint32_t image, int result);

/* A turn of an open, as opening_turn; the bytes of the image that it wants stay from then on. */
int ram_states_open_turn(struct ram_world *w, uint32_t pool, struct opening **o, uint32_t budget,
			 struct seq **s);
/* The copy of its image ends. */
void ram_states_claim_ends(struct ram_world *w, uint32_t pool, struct opening **o, int result);

/* From begin to end, all copies end well. */
struct seq *ram_states_open(struct ram_world *w, uint32_t pool, const struct states_text *text,
			    uint32_t n);
/* Up to a position, whatever has to leave first. */
void ram_states_step(struct ram_world *w, uint32_t pool, struct seq *s, uint32_t target);
/* Open, compute n tokens, capture there, close. */
struct image_name ram_states_retain(struct ram_world *w, uint32_t pool,
				    const struct states_text *text, uint32_t n);
/* It leaves the device, copies and all. */
void ram_states_push_down(struct ram_world *w, uint32_t pool, struct image_name name);
/* Both: it is in KV-RAM alone, if it may. */
struct image_name ram_states_put_down(struct ram_world *w, uint32_t pool,
				      const struct states_text *text, uint32_t n);
/* Opened and closed: how many tokens were had. */
uint32_t ram_states_reuse(struct ram_world *w, uint32_t pool, const struct states_text *text,
			  uint32_t n);

static inline bool ram_states_is(const struct ram_world *w, uint32_t pool, struct image_name name)
{
	return image_find(&w->pools[pool].pool.images, name) != IMAGE_NONE;
}

#endif
