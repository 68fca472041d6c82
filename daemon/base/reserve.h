/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_RESERVE_H
#define KVHOST_BASE_RESERVE_H

/*
 * reserve: large arrays whose size is known from the start: address space now, memory as it is
 * touched.
 *
 * What is taken reads as zeros. It is of huge pages where it is large enough and the host gives
 * some: most of it is read at random, and no base page's address would be in a cache. Its size is
 * rounded up to RESERVE_GRAIN, which no host's base page exceeds, so what a plan counts is what the
 * process has, on every host. Any thread.
 */

#include <stdint.h>

#define RESERVE_GRAIN 65536ull

/* The address space that an array of so many bytes takes. */
static inline uint64_t reserve_bytes(uint64_t bytes)
{
	return (bytes + RESERVE_GRAIN - 1) / RESERVE_GRAIN * RESERVE_GRAIN;
}

void *reserve_take(uint64_t bytes);              /* more than 0; NULL: there is no more */
void reserve_give(void *memory, uint64_t bytes); /* as many as were taken; NULL: nothing */

#endif
