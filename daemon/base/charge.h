/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_CHARGE_H
#define KVHOST_BASE_CHARGE_H

/*
 * charge: memory that one party uses, against what it may use, up a chain of parties
 * (session -> namespace -> daemon). Taking is all or nothing. Owner: the core thread.
 */

#include <stdbool.h>
#include <stdint.h>

struct charge {
	struct charge *parent; /* NULL: none above */
	uint64_t used;
	uint64_t limit;
};

static inline bool charge_take(struct charge *c, uint64_t bytes)
{
	for (struct charge *at = c; at; at = at->parent) {
		if (bytes > at->limit || at->used > at->limit - bytes)
			return false;
	}
	for (struct charge *at = c; at; at = at->parent)
		at->used += bytes;
	return true;
}

void charge_give(struct charge *c, uint64_t bytes); /* no more than was taken */

#endif
