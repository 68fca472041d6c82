/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_TEXT_H
#define TESTS_SIM_TEXT_H

/* text: prompts, what they share with each other, and the stamps of their rows. */

#include <stdbool.h>
#include <stdint.h>

#include "shm/payload.h"

#define SIM_TOKENS   384 /* most of a sequence */
#define SIM_SEGMENT  20  /* tokens between two places where prompts part */
#define SIM_SEGMENTS (SIM_TOKENS / SIM_SEGMENT + 1)
#define SIM_IMAGES   2

struct sim;

struct sim_text {
	uint8_t family;
	uint8_t variant;
	uint8_t image[SIM_IMAGES];    /* digest of each image; 0: it is not there */
	uint8_t branch[SIM_SEGMENTS]; /* which of the possible continuations */
};

void text_draw(struct sim *w, struct sim_text *t);
void text_branch_from(struct sim *w, struct sim_text *t, uint32_t position);
uint32_t text_token(const struct sim_text *t, uint32_t position);
/* Spans that begin at `from` or later and before `to`. */
uint32_t text_spans(const struct sim_text *t, uint32_t from, uint32_t to,
		    struct payload_span out[SIM_IMAGES]);
void text_drop_images(struct sim_text *t, uint32_t from, uint32_t end); /* those cut by `end` */
void text_chain(const struct sim_text *t, uint16_t name_space, uint32_t n, uint64_t *chain);
bool text_is_inside_image(const struct sim_text *t, uint32_t position, uint32_t end);

#endif
