/* SPDX-License-Identifier: Apache-2.0 */
/* tickset: see tickset.h. Any thread; nothing here blocks. */
#include "daemon/state/tickset.h"

void tickset_add(struct tickset *s, uint32_t place)
{
	s->level0[place >> 6] |= 1ull << (place & 63);
	s->level1[place >> 12] |= 1ull << (place >> 6 & 63);
	s->level2[place >> 18] |= 1ull << (place >> 12 & 63);
}

void tickset_remove(struct tickset *s, uint32_t place)
{
	s->level0[place >> 6] &= ~(1ull << (place & 63));
	if (s->level0[place >> 6])
		return;
	s->level1[place >> 12] &= ~(1ull << (place >> 6 & 63));
	if (s->level1[place >> 12])
		return;
	s->level2[place >> 18] &= ~(1ull << (place >> 12 & 63));
}

/* The first set bit of words[] at or after bit `from`, in the same word; NONE: none. */
static uint32_t word_scan(const uint64_t *words, uint32_t from, uint32_t n)
{
	uint64_t word;

	if (from >= n)
		return TICKSET_NONE;
	word = words[from >> 6] & (~0ull << (from & 63));
	return word ? (from & ~63u) + (uint32_t)__builtin_ctzll(word) : TICKSET_NONE;
}

static uint32_t scan(const struct tickset *s, uint32_t from)
{
	uint32_t at = word_scan(s->level0, from, TICKSET_PLACES);
	uint32_t up;

	if (at != TICKSET_NONE)
		return at;
	up = word_scan(s->level1, (from >> 6) + 1, TICKSET_PLACES >> 6);
	if (up == TICKSET_NONE) {
		uint32_t top = (from >> 12) + 1;

		for (at = word_scan(s->level2, top, TICKSET_PLACES >> 12); at == TICKSET_NONE;) {
			top = (top | 63) + 1;
			if (top >= TICKSET_PLACES >> 12)
				return TICKSET_NONE;
			at = word_scan(s->level2, top, TICKSET_PLACES >> 12);
		}
		up = at * 64 + (uint32_t)__builtin_ctzll(s->level1[at]);
	}
	return up * 64 + (uint32_t)__builtin_ctzll(s->level0[up]);
}

uint32_t tickset_next(const struct tickset *s, uint64_t tick)
{
	uint32_t at = scan(s, tickset_place(tick, 0));

	return at == TICKSET_NONE ? scan(s, 0) : at;
}
