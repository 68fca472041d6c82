/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_ARENA_PART_H
#define KVHOST_TIER_ARENA_PART_H

/*
 * arena_part: how a part of a memory file comes: the limits are asked, it is locked, then fetched;
 * or it is given back, and one sentence says what was in the way. Work thread; may block.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/arena.h"
#include "daemon/tier/arena_limits.h"
#include "daemon/tier/arena_memory.h"

struct arena_part {
	uint64_t from, bytes;
	uint32_t threads;
	bool lock;
	int numa_node; /* as wished */
	struct arena_use use;
	/* Of the locked memory so much is promised to others of this process. */
	uint64_t beside_bytes;
};

/* 0 or -errno (-EPERM: locked memory, -ENOMEM: memory, -ECANCELED) with `why`, which may stay
 * empty. */
int arena_part_bring(struct arena_memory *m, const struct arena_part *part,
		     const _Atomic bool *cancelled, char why[ARENA_NOTE_BYTES]);

/* What came: locked or not, of which nodes, of which pages, and why not of larger ones. step_bytes:
 * of the parts of this memory, which its pages must divide. */
void arena_part_note(const struct arena_memory *m, const struct arena_part *part,
		     uint64_t step_bytes, char note[ARENA_NOTE_BYTES]);

#endif
