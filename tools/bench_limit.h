/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_LIMIT_H
#define KVHOST_TOOLS_BENCH_LIMIT_H

/*
 * bench_limit: the least that a lookup which trusts no hash can do: hash the prompt page by page,
 * each link over the one before, and compare the tokens of every page with those stored.
 *
 * One thread, one store of tokens in huge pages, pages at random places of it. No index, no
 * references, no other process. Main thread.
 */

#include "tools/bench.h"

struct limit {
	uint32_t *store;     /* [pages][page_tokens] */
	uint32_t *places;    /* [pages]: where in the store a page lies */
	uint64_t (*keys)[2]; /* [most_pages] of one prompt */
	uint64_t pages;
	uint64_t most_pages;
	uint32_t page_tokens;
	size_t store_bytes;
	uint8_t secret[192];
};

/* page_tokens at most 64. 0, or -1 with why; limit_deinit in either case. */
int limit_init(struct limit *l, uint64_t pages, uint64_t most_pages, uint32_t page_tokens,
	       struct bench_reason *why);
void limit_deinit(struct limit *l);
void limit_set(struct limit *l, uint64_t page, const uint32_t *tokens); /* [page_tokens] */
/* How many of the prompt's n pages equal the stored pages first, first + 1, ... */
uint64_t limit_look_up(struct limit *l, uint64_t first, const uint32_t *prompt, uint64_t n);

/* A small generator with a fixed sequence (xorshift): places and orders alike in every run. */
uint64_t bench_random(uint64_t *state);

#endif
