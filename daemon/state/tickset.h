/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_TICKSET_H
#define KVHOST_STATE_TICKSET_H

/*
 * tickset: a set of places in a window over a clock: three levels of bits, every call O(1).
 *
 * The window is a ring of TICKSET_WINDOW ticks, each with TICKSET_PARTS places. Who keeps one
 * decides what a place stands for and takes it out before its tick leaves the window.
 *
 * A set is all zeros when it is empty; it is large and mostly untouched, so take it from mmap.
 * Pure; owned by who keeps it.
 */

#include <stdbool.h>
#include <stdint.h>

#define TICKSET_WINDOW (1u << 21) /* ticks */
#define TICKSET_PARTS  2
#define TICKSET_PLACES (TICKSET_WINDOW * TICKSET_PARTS)
#define TICKSET_NONE   UINT32_MAX

/* Level 1 tells which words of level 0 have a bit, level 2 which of level 1. */
struct tickset {
	uint64_t level0[TICKSET_PLACES >> 6];
	uint64_t level1[TICKSET_PLACES >> 12];
	uint64_t level2[TICKSET_PLACES >> 18];
};

static inline uint32_t tickset_place(uint64_t tick, uint32_t part)
{
	return (uint32_t)(tick % TICKSET_WINDOW) * TICKSET_PARTS + part;
}

void tickset_add(struct tickset *s, uint32_t place);
void tickset_remove(struct tickset *s, uint32_t place);

/* The first place of the set at or after the first one of `tick`, around the ring once. */
uint32_t tickset_next(const struct tickset *s, uint64_t tick);

#endif
