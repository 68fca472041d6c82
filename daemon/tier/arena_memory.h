/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_ARENA_MEMORY_H
#define KVHOST_TIER_ARENA_MEMORY_H

/*
 * arena_memory: a memory file that is mapped whole when it is made and filled part by part.
 *
 * Making, freeing and asking: the owner. Filling, locking and discarding a part: one thread at a
 * time, any thread; may block for as long as memory takes to arrive. Nothing here raises SIGBUS:
 * lack of memory is a result.
 */

#include <stdbool.h>
#include <stdint.h>

#include "shm/segment.h"

struct arena_memory_wish {
	const char *name;
	uint64_t bytes;      /* rounded up to base pages */
	uint64_t part_bytes; /* parts begin at multiples of this: no page is larger */
	bool pool;           /* from the huge-page pool, if it has so much */
	bool require_pool;   /* or not at all */
	bool collapse;       /* else of base pages that the kernel makes huge, if it can */
	int numa_node;       /* or NODES_INTERLEAVE, NODES_ANYWHERE */
};

struct arena_memory {
	char *memory; /* NULL: not made */
	uint64_t bytes;
	uint64_t page_bytes; /* of the backing */
	enum segment_backing backing;
	int fd;
	uint32_t nodes;        /* that it is interleaved over; 0: that it is not */
	int refused;           /* interleaving was, with this -errno */
	_Atomic bool is_mixed; /* COLLAPSED, but a part is of base pages */
	void *place;           /* address space of all: memory and what nobody may touch */
	uint64_t place_bytes;
};

/* Can pages of this size fill every part, the last one too? Only then are they used. */
static inline bool arena_memory_fits(uint64_t page_bytes, uint64_t part_bytes, uint64_t bytes)
{
	return page_bytes > 0 && part_bytes % page_bytes == 0 && bytes % page_bytes == 0;
}

#define ARENA_MEMORY_NONE ((struct arena_memory){.fd = -1})

/* 0 or -errno: -ENOMEM, -EINVAL (there is no such node), ... */
int arena_memory_make(const struct arena_memory_wish *wish, struct arena_memory *out);
void arena_memory_free(struct arena_memory *m); /* ARENA_MEMORY_NONE is fine */

/* That populate a part best on this host: 1 .. ARENA_THREADS_MAX. */
uint32_t arena_memory_threads(void);

/* Memory for a part, fetched by so many threads, if they can be had. 0 or -errno; -ECANCELED once
 * *cancelled. After an error some of it may be there: arena_memory_discard. */
int arena_memory_populate(struct arena_memory *m, uint64_t from, uint64_t bytes, uint32_t threads,
			  const _Atomic bool *cancelled);
/* What comes to lie in this part is locked when it comes; before populating. Not for pages of the
 * pool, which never leave memory and are not counted as locked: for them the call would do nothing
 * but fetch them, with one thread. 0 or -errno. */
int arena_memory_lock(struct arena_memory *m, uint64_t from, uint64_t bytes);
void arena_memory_discard(struct arena_memory *m, uint64_t from, uint64_t bytes);

/* Of what pages it is, while no part is being filled. */
struct segment arena_memory_backing(const struct arena_memory *m);

#endif
