/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_LIBCLIENT_WINDOW_H
#define KVHOST_LIBCLIENT_WINDOW_H

/*
 * window: gives out ranges of the window. Its books are in private memory: nothing that it trusts
 * lies where the daemon can write. Take and give cost the same for any size and fill.
 *
 * Ranges are multiples of 64 bytes. A range for the caller of the library has WINDOW_HEAD_BYTES
 * hidden in front, where a request's head is put so that what follows need not be copied.
 */

#include <stdbool.h>
#include <stdint.h>

#define WINDOW_UNIT_BYTES 64
#define WINDOW_HEAD_BYTES 128
#define WINDOW_CLASSES    240
#define WINDOW_NONE       UINT32_MAX

struct window_block {
	uint32_t first_unit;
	uint32_t units;
	uint32_t before, after;  /* neighbours in the window */
	uint32_t next, previous; /* in the free list of its class */
	bool is_free;
	bool head_used; /* a request in flight has its head in the hidden space */
};

struct window {
	char *memory; /* borrowed */
	uint64_t bytes;
	uint32_t units;
	uint32_t units_taken;
	struct window_block *blocks;
	uint32_t n_blocks, room_blocks;
	uint32_t spare;          /* first unused record, linked by next */
	uint32_t *caller_blocks; /* by unit: 1 + block whose hidden space begins there */
	uint64_t occupied[(WINDOW_CLASSES + 63) / 64]; /* classes whose list is not empty */
	uint32_t lists[WINDOW_CLASSES];
};

/* 0 or -ENOMEM. Less than one unit of memory is refused with -EINVAL. */
int window_init(struct window *w, void *memory, uint64_t bytes);
void window_deinit(struct window *w); /* a zeroed one is fine */

/* A block, or WINDOW_NONE: no room now. */
uint32_t window_take(struct window *w, uint64_t bytes);
void window_give(struct window *w, uint32_t block); /* WINDOW_NONE is fine */
uint64_t window_offset(const struct window *w, uint32_t block);
uint64_t window_block_bytes(const struct window *w, uint32_t block);

/* Ranges for the caller: with hidden head space. NULL: no room. */
void *window_take_for_caller(struct window *w, uint64_t bytes);
bool window_give_of_caller(struct window *w, const void *memory); /* false: not such a range */
uint32_t window_block_of_caller(const struct window *w, const void *memory);

/* Do these bytes lie in the window? */
bool window_holds(const struct window *w, const void *memory, uint64_t bytes);

#endif
