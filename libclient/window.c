/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window: segregated free lists over the window, with neighbours joined at once.
 *
 * Owned by the thread that uses the connection; nothing blocks. A class holds blocks of similar
 * length: exact lengths up to 8 units, then eight classes for each power of two.
 */
#include "libclient/window.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FINE_BITS      3
#define FIT_TRIES      16
#define BLOCKS_AT_ONCE 64

static uint32_t class_of(uint32_t units)
{
	uint32_t power;

	if (units < (1u << FINE_BITS))
		return units;
	power = 31 - (uint32_t)__builtin_clz(units);
	return ((power - FINE_BITS + 1) << FINE_BITS) +
	       ((units >> (power - FINE_BITS)) & ((1u << FINE_BITS) - 1));
}

/* The lowest class all of whose blocks are long enough. */
static uint32_t class_that_fits(uint32_t units)
{
	uint32_t step = 0;

	if (units >= (1u << FINE_BITS))
		step = (1u << (31 - (uint32_t)__builtin_clz(units) - FINE_BITS)) - 1;
	if (units > UINT32_MAX - step)
		return WINDOW_CLASSES;
	return class_of(units + step);
}

static void list_push(struct window *w, uint32_t block)
{
	struct window_block *b = &w->blocks[block];
	uint32_t class = class_of(b->units);

	b->is_free = true;
	b->previous = WINDOW_NONE;
	b->next = w->lists[class];
	if (b->next != WINDOW_NONE)
		w->blocks[b->next].previous = block;
	w->lists[class] = block;
	w->occupied[class / 64] |= 1ull << (class % 64);
}

static void list_pull(struct window *w, uint32_t block)
{
	struct window_block *b = &w->blocks[block];
	uint32_t class = class_of(b->units);

	assert(b->is_free);
	b->is_free = false;
	if (b->next != WINDOW_NONE)
		w->blocks[b->next].previous = b->previous;
	if (b->previous != WINDOW_NONE)
		w->blocks[b->previous].next = b->next;
	else
		w->lists[class] = b->next;
	if (w->lists[class] == WINDOW_NONE)
		w->occupied[class / 64] &= ~(1ull << (class % 64));
}

static bool spare_blocks(struct window *w)
{
	struct window_block *grown;
	uint32_t room;

	if (w->spare != WINDOW_NONE || w->n_blocks < w->room_blocks)
		return true;
	room = w->room_blocks ? w->room_blocks * 2 : BLOCKS_AT_ONCE;
	grown = realloc(w->blocks, (size_t)room * sizeof(*grown));
	if (!grown)
		return false;
	w->blocks = grown;
	w->room_blocks = room;
	return true;
}

static uint32_t block_new(struct window *w)
{
	uint32_t block = w->spare;

	if (block != WINDOW_NONE) {
		w->spare = w->blocks[block].next;
		return block;
	}
	assert(w->n_blocks < w->room_blocks);
	return w->n_blocks++;
}

static void block_drop(struct window *w, uint32_t block)
{
	w->blocks[block].next = w->spare;
	w->spare = block;
}

int window_init(struct window *w, void *memory, uint64_t bytes)
{
	uint64_t units = bytes / WINDOW_UNIT_BYTES;
	uint32_t block;

	*w = (struct window){.memory = memory, .bytes = bytes, .spare = WINDOW_NONE};
	if (units == 0)
		return -EINVAL;
	if (units > UINT32_MAX / 2)
		units = UINT32_MAX / 2;
	w->units = (uint32_t)units;
	for (uint32_t i = 0; i < WINDOW_CLASSES; i++)
		w->lists[i] = WINDOW_NONE;
	w->caller_blocks = calloc(w->units, sizeof(*w->caller_blocks));
	if (!w->caller_blocks || !spare_blocks(w)) {
		window_deinit(w);
		return -ENOMEM;
	}
	block = block_new(w);
	w->blocks[block] =
	    (struct window_block){.units = w->units, .before = WINDOW_NONE, .after = WINDOW_NONE};
	list_push(w, block);
	return 0;
}

void window_deinit(struct window *w)
{
	free(w->blocks);
	free(w->caller_blocks);
	*w = (struct window){.spare = WINDOW_NONE};
}

static uint32_t find_fit(const struct window *w, uint32_t units)
{
	uint32_t class = class_that_fits(units);
	uint32_t block;

	for (uint32_t word = class / 64; word < sizeof(w->occupied) / 8; word++) {
		uint64_t bits = w->occupied[word];

		if (word == class / 64)
			bits &= ~0ull << (class % 64);
		if (bits)
			return w->lists[word * 64 + (uint32_t)__builtin_ctzll(bits)];
	}
	/* A block of the class below may be long enough all the same. */
	block = w->lists[class_of(units)];
	for (int i = 0; i < FIT_TRIES && block != WINDOW_NONE; i++) {
		if (w->blocks[block].units >= units)
			return block;
		block = w->blocks[block].next;
	}
	return WINDOW_NONE;
}

uint32_t window_take(struct window *w, uint64_t bytes)
{
	uint64_t wanted = bytes / WINDOW_UNIT_BYTES + (bytes % WINDOW_UNIT_BYTES != 0);
	uint32_t units, block, rest;

	if (wanted > w->units)
		return WINDOW_NONE;
	units = wanted ? (uint32_t)wanted : 1;
	if (!spare_blocks(w))
		return WINDOW_NONE;
	block = find_fit(w, units);
	if (block == WINDOW_NONE)
		return WINDOW_NONE;
	list_pull(w, block);
	if (w->blocks[block].units > units) {
		struct window_block *b = &w->blocks[block];

		rest = block_new(w);
		w->blocks[rest] = (struct window_block){
		    .first_unit = b->first_unit + units,
		    .units = b->units - units,
		    .before = block,
		    .after = b->after,
		};
		if (b->after != WINDOW_NONE)
			w->blocks[b->after].before = rest;
		b->after = rest;
		b->units = units;
		list_push(w, rest);
	}
	w->units_taken += units;
	w->blocks[block].head_used = false;
	return block;
}

/* `right` follows `left`; both are out of the lists. The record of `left` stays. */
static void join(struct window *w, uint32_t left, uint32_t right)
{
	struct window_block *l = &w->blocks[left];
	const struct window_block *r = &w->blocks[right];

	assert(l->first_unit + l->units == r->first_unit);
	l->units += r->units;
	l->after = r->after;
	if (l->after != WINDOW_NONE)
		w->blocks[l->after].before = left;
	block_drop(w, right);
}

void window_give(struct window *w, uint32_t block)
{
	uint32_t other;

	if (block == WINDOW_NONE)
		return;
	assert(block < w->n_blocks && !w->blocks[block].is_free);
	assert(w->units_taken >= w->blocks[block].units);
	w->units_taken -= w->blocks[block].units;

	other = w->blocks[block].after;
	if (other != WINDOW_NONE && w->blocks[other].is_free) {
		list_pull(w, other);
		join(w, block, other);
	}
	other = w->blocks[block].before;
	if (other != WINDOW_NONE && w->blocks[other].is_free) {
		list_pull(w, other);
		join(w, other, block);
		block = other;
	}
	list_push(w, block);
}

uint64_t window_offset(const struct window *w, uint32_t block)
{
	assert(block < w->n_blocks);
	return (uint64_t)w->blocks[block].first_unit * WINDOW_UNIT_BYTES;
}

uint64_t window_block_bytes(const struct window *w, uint32_t block)
{
	assert(block < w->n_blocks);
	return (uint64_t)w->blocks[block].units * WINDOW_UNIT_BYTES;
}

void *window_take_for_caller(struct window *w, uint64_t bytes)
{
	uint32_t block;

	if (bytes > w->bytes)
		return NULL;
	block = window_take(w, WINDOW_HEAD_BYTES + (bytes ? bytes : 1));
	if (block == WINDOW_NONE)
		return NULL;
	w->caller_blocks[w->blocks[block].first_unit] = block + 1;
	return w->memory + window_offset(w, block) + WINDOW_HEAD_BYTES;
}

uint32_t window_block_of_caller(const struct window *w, const void *memory)
{
	uint64_t offset;
	uint32_t block;

	if (!window_holds(w, memory, 1))
		return WINDOW_NONE;
	offset = (uint64_t)((uintptr_t)memory - (uintptr_t)w->memory);
	if (offset < WINDOW_HEAD_BYTES || offset % WINDOW_UNIT_BYTES != 0)
		return WINDOW_NONE;
	offset = (offset - WINDOW_HEAD_BYTES) / WINDOW_UNIT_BYTES;
	if (offset >= w->units)
		return WINDOW_NONE;
	block = w->caller_blocks[offset];
	return block ? block - 1 : WINDOW_NONE;
}

bool window_give_of_caller(struct window *w, const void *memory)
{
	uint32_t block = window_block_of_caller(w, memory);

	if (block == WINDOW_NONE)
		return false;
	w->caller_blocks[w->blocks[block].first_unit] = 0;
	window_give(w, block);
	return true;
}

bool window_holds(const struct window *w, const void *memory, uint64_t bytes)
{
	uintptr_t first = (uintptr_t)memory, base = (uintptr_t)w->memory;

	if (!w->memory || first < base || first - base > w->bytes)
		return false;
	return bytes <= w->bytes - (first - base);
}
