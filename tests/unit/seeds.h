/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_SEEDS_H
#define KVHOST_TESTS_SEEDS_H

/* seeds: what a random test is played with, KVHOST_TEST_SEED or 0 and those that follow it. */

#include <stdint.h>
#include <stdlib.h>

/* Of one run: each number follows from its seed alone. */
static uint64_t seed;

static inline uint32_t below(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((seed >> 33) % n);
}

static inline uint64_t first_seed(void)
{
	const char *text = getenv("KVHOST_TEST_SEED");

	return text ? strtoull(text, NULL, 10) : 0;
}

static inline void play_seeds(void (*play)(uint64_t first), uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		play(first_seed() + i);
}

#endif
