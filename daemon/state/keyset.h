/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_KEYSET_H
#define KVHOST_STATE_KEYSET_H

/*
 * keyset: a bounded set of page keys without pages: what has been here, not what is.
 *
 * Keys alone: an equal key is taken for the same page. That may steer an order, never an answer.
 * The links of an entry belong to who keeps the set. Address space for all entries is taken at
 * init, memory only as entries are used: KEYSET_ENTRY_BYTES each with its share of the table.
 *
 * Owner: the core thread; no I/O.
 */

#include <stdint.h>

#include "daemon/state/key.h"

#define KEYSET_NONE        UINT32_MAX
#define KEYSET_MAX         (1u << 30)
#define KEYSET_ENTRY_BYTES 40

struct keyset_entry {
	struct key key;
	uint32_t owner;
	uint32_t older, newer;
	uint32_t next_free;
};

struct keyset {
	struct keyset_entry *entries; /* [capacity] */
	uint32_t *table;              /* [mask + 1]: entry + 1; 0 = empty */
	uint64_t mask;
	uint32_t capacity;
	uint32_t used;
	uint32_t fresh; /* entries from here on were never used */
	uint32_t first_free;
};

int keyset_init(struct keyset *s, uint32_t capacity); /* 1 .. KEYSET_MAX; 0 or -ENOMEM */
void keyset_deinit(struct keyset *s);
uint64_t keyset_bytes_for(uint64_t capacity); /* address space that it takes */

uint32_t keyset_find(const struct keyset *s, struct key key); /* entry or NONE */
/* A new entry, its links unset; NONE if the key is there. Not into a full set. */
uint32_t keyset_add(struct keyset *s, struct key key);
void keyset_remove(struct keyset *s, uint32_t entry);

/* Bytes of memory in use, as an estimate that grows with what is used. */
static inline uint64_t keyset_bytes(const struct keyset *s)
{
	return (uint64_t)s->fresh * KEYSET_ENTRY_BYTES;
}

#endif
