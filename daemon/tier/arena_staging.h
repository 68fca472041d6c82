/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_ARENA_STAGING_H
#define KVHOST_TIER_ARENA_STAGING_H

/*
 * arena_staging: what transfers between a disk and a device go through where KV-RAM has no frame
 * for them: STAGING_WINDOWS windows a direction, so that one is copied while the other is read or
 * written. A disk never reads or writes the memory of a pool.
 *
 * It is memory as the arena is (huge pages if there are some, page-locked, on the same NUMA nodes,
 * in no core dump, mapped by nobody else), but beside it: it is there without KV-RAM, too, and it
 * comes first, in jobs of STAGING_STEP_BYTES. It serves once all of it is there.
 *
 * Owner: the core thread. A window is its user's until what it asked for with it has ended: this
 * module does not know who uses them.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/worker.h"
#include "daemon/tier/arena.h"

#define STAGING_WINDOWS    2
#define STAGING_LEAST      (2ull * STAGING_WINDOWS * FRAME_BYTES)
#define STAGING_MOST       (4ull << 30)
#define STAGING_STEP_BYTES (256ull << 20) /* others' jobs are behind one step at most */

enum staging_direction { STAGING_DOWN, STAGING_UP, STAGING_DIRECTIONS };

struct staging_wish {
	uint64_t bytes; /* of all windows, STAGING_LEAST .. STAGING_MOST; each is of whole frames */
	bool require_huge; /* as in arena_wish, as far as the host's huge pages divide a window */
	bool lock;
	int numa_node;
	uint32_t threads;
};

struct staging {                /* read by all, written by arena_staging.c */
	enum arena_state state; /* ARRIVING, WHOLE, or PARTIAL: it did not come */
	uint64_t bytes;         /* of all windows */
	uint64_t window_bytes;
	int memory_fd;
	int result;                  /* PARTIAL: -errno */
	char note[ARENA_NOTE_BYTES]; /* what it is of; or what was missing; empty: ARRIVING */
};

/* What is taken of them. */
uint64_t staging_bytes(const struct staging_wish *wish);
/* Can it be had, as far as the limits say? As arena_check: 0, or -errno and a sentence. */
int staging_check(const struct staging_wish *wish, char why[ARENA_NOTE_BYTES]);
/* Why it failed, with this result, although staging_check had said that it could be had. */
void staging_explain(const struct staging_wish *wish, int result, char why[ARENA_NOTE_BYTES]);
/* 0, -EINVAL (bytes, or the NUMA node), -ENOMEM, ... changed: on the core thread, once, when it is
 * there or will not come; not after staging_stop. */
int staging_new(const struct staging_wish *wish, struct executor *work,
		void (*changed)(void *context), void *context, struct staging **out);
/* true: nothing of it is on its way; until then, reap and ask again. */
bool staging_stop(struct staging *s);
/* After staging_stop has said true; nobody uses a window. NULL is fine. */
void staging_free(struct staging **s);

/* window_bytes of memory, aligned to FRAME_BYTES; NULL: it is not there. i: < STAGING_WINDOWS. */
char *staging_window(const struct staging *s, enum staging_direction direction, uint32_t i);

#endif
