/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_TEXT_H
#define KVHOST_SHM_TEXT_H

/*
 * text: refusal texts in the control segment, and cleaning of any text from the other side.
 *
 * The daemon's n-th text (n = 1, 2, ...) goes to slot n % CONTROL_TEXTS. The slot's serial is
 * 2n - 1 while the text is written and 2n when it is complete; a completion names it by slot and
 * serial. A reader that finds another serial, before or after it copied, has come too late.
 * One writer and one reader thread; nothing blocks.
 */

#include <stddef.h>

#include "shm/control.h"

struct text_writer {
	struct control_text *slots; /* borrowed: CONTROL_TEXTS of them */
	uint32_t count;             /* texts written, modulo 2^31 */
};

struct text_name { /* as in struct completion */
	uint32_t serial;
	uint8_t text; /* 1 + slot */
};

enum text_outcome {
	TEXT_GONE = 1, /* overwritten by later texts */
};

/* Slots must be zero. */
void text_writer_init(struct text_writer *w, struct control_text *slots);

/* Write a text, cut to what a slot holds, and name it for a completion. */
struct text_name text_write(struct text_writer *w, const char *text);

/*
 * The text that a completion names, terminated and cleaned. 0, TEXT_GONE, or -EPROTO (no such
 * slot, or a length beyond it). `out` is written on 0 only.
 */
int text_read(const struct control_text *slots, struct text_name name,
	      char out[CONTROL_TEXT_BYTES]);

/* Replace control characters, those of one byte and the UTF-8 ones of two, by '?'. */
void text_clean(char *text, size_t bytes);

#endif
