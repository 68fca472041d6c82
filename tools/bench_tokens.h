/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_TOKENS_H
#define KVHOST_TOOLS_BENCH_TOKENS_H

/*
 * bench_tokens: made-up tokens that are a fixed function of a block's id and the place in it.
 *
 * Blocks of one id are alike on every machine and in every run; blocks of two ids differ at
 * every place. Pure functions.
 */

#include <stddef.h>
#include <stdint.h>

/* Every step can be undone, so two ids never give the same token at one place. */
static inline uint32_t bench_token(uint32_t id, uint32_t place)
{
	uint32_t x = id * 0x9e3779b1u + place * 0x85ebca6bu;

	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	return x;
}

static inline void bench_tokens_fill(uint32_t *out, uint32_t id, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = bench_token(id, i);
}

/* Tokens that belong to one request alone; `serial` counts requests. */
static inline void bench_tokens_fill_unique(uint32_t *out, uint64_t serial, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = bench_token((uint32_t)(serial >> 32) + 0x5bd1e995u, (uint32_t)serial) ^ i;
}

#endif
