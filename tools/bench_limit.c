/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_limit: the calibration of lookups. Main thread; limit_init touches all of its memory.
 */
#include "tools/bench_limit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#define PAGE_TOKENS_MAX 64
#define LINE_BYTES      64
#define AHEAD_PAGES     6 /* enough lines under way to fill the processor's miss buffers */

struct link { /* what the key of a page is made of */
	uint64_t parent[2];
	uint64_t position;
	uint32_t tokens[PAGE_TOKENS_MAX];
};

uint64_t bench_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*state = x;
	return x;
}

static void shuffle_places(struct limit *l)
{
	uint64_t state = 0x2545f4914f6cdd1dull;

	for (uint64_t i = 0; i < l->pages; i++)
		l->places[i] = (uint32_t)i;
	for (uint64_t i = l->pages - 1; i > 0; i--) {
		uint64_t other = bench_random(&state) % (i + 1);
		uint32_t place = l->places[i];

		l->places[i] = l->places[other];
		l->places[other] = place;
	}
}

int limit_init(struct limit *l, uint64_t pages, uint64_t most_pages, uint32_t page_tokens,
	       struct bench_reason *why)
{
	uint64_t state = 0x9e3779b97f4a7c15ull;

	assert(page_tokens <= PAGE_TOKENS_MAX && pages > 0 && pages <= UINT32_MAX);
	*l = (struct limit){.pages = pages, .most_pages = most_pages, .page_tokens = page_tokens};
	l->store_bytes = pages * page_tokens * sizeof(*l->store);
	l->store =
	    mmap(NULL, l->store_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l->store == MAP_FAILED) {
		l->store = NULL;
		return bench_reason_set(why, "mmap of %zu bytes: %s", l->store_bytes,
					strerror(errno));
	}
	madvise(l->store, l->store_bytes, MADV_HUGEPAGE);
	memset(l->store, 1, l->store_bytes);

	l->places = malloc(pages * sizeof(*l->places));
	l->keys = calloc(most_pages, sizeof(*l->keys));
	if (!l->places || !l->keys)
		return bench_reason_set(why, "no memory");
	shuffle_places(l);
	for (size_t i = 0; i < sizeof(l->secret); i++)
		l->secret[i] = (uint8_t)(bench_random(&state) >> 32);
	return 0;
}

void limit_deinit(struct limit *l)
{
	if (l->store)
		munmap(l->store, l->store_bytes);
	free(l->places);
	free(l->keys);
	*l = (struct limit){0};
}

void limit_set(struct limit *l, uint64_t page, const uint32_t *tokens)
{
	assert(page < l->pages);
	memcpy(l->store + (size_t)l->places[page] * l->page_tokens, tokens,
	       l->page_tokens * sizeof(*tokens));
}

static void hash_links(struct limit *l, const uint32_t *prompt, uint64_t n)
{
	size_t token_bytes = l->page_tokens * sizeof(*prompt);
	size_t link_bytes = offsetof(struct link, tokens) + token_bytes;
	struct link link = {0};

	for (uint64_t i = 0; i < n; i++) {
		XXH128_hash_t key;

		link.position = i;
		memcpy(link.tokens, prompt + i * l->page_tokens, token_bytes);
		key = XXH3_128bits_withSecret(&link, link_bytes, l->secret, sizeof(l->secret));
		link.parent[0] = l->keys[i][0] = key.low64;
		link.parent[1] = l->keys[i][1] = key.high64;
	}
}

uint64_t limit_look_up(struct limit *l, uint64_t first, const uint32_t *prompt, uint64_t n)
{
	size_t bytes = l->page_tokens * sizeof(*prompt);
	uint64_t equal = 0;

	assert(n <= l->most_pages && first <= l->pages && n <= l->pages - first);
	hash_links(l, prompt, n);
	/* The keys are results too: without this the compiler might leave them out. */
	__asm__ volatile("" : : "r"(l->keys) : "memory");

	for (uint64_t i = 0; i < n + AHEAD_PAGES; i++) {
		if (i < n) {
			const uint32_t *page =
			    l->store + (size_t)l->places[first + i] * l->page_tokens;

			for (size_t at = 0; at < bytes; at += LINE_BYTES)
				__builtin_prefetch((const char *)page + at);
		}
		if (i >= AHEAD_PAGES) {
			uint64_t old = i - AHEAD_PAGES;
			const uint32_t *page =
			    l->store + (size_t)l->places[first + old] * l->page_tokens;

			equal += memcmp(page, prompt + old * l->page_tokens, bytes) == 0;
		}
	}
	return equal;
}
