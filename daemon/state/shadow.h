/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_SHADOW_H
#define KVHOST_STATE_SHADOW_H

/*
 * shadow: what an LRU order of the same size would have had: the hits of an order over keys alone.
 *
 * An open meets the pages of its prompt from the start and hits as long as they are there; what it
 * matched in the pool or publishes is put in. A page stands right behind the one above it, so of
 * one chain the deepest goes first.
 *
 * Owner: the core thread, within its pool; no I/O.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/state/keyset.h"

#define SHADOW_BYTES_MAX (1ull << 30) /* more than this is refused when a pool is made */

struct shadow {
	struct keyset keys;
	uint32_t pages; /* 0: none is cast */
	uint32_t oldest, newest;
	uint64_t hits;
};

int shadow_init(struct shadow *s, uint32_t pages); /* more than 0; 0 or -ENOMEM */
void shadow_deinit(struct shadow *s);
uint64_t shadow_bytes_for(uint64_t pages); /* address space that it takes */

/* The page is there: a hit, and it becomes young. */
bool shadow_meet(struct shadow *s, struct key key, struct key above);
/* The page is there from now on, and young; the oldest goes. */
void shadow_put(struct shadow *s, struct key key, struct key above);

const char *shadow_check(const struct shadow *s);

#endif
