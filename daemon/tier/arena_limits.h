/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_ARENA_LIMITS_H
#define KVHOST_TIER_ARENA_LIMITS_H

/*
 * arena_limits: how much memory this process may have and lock, for KV-RAM and for pools, and a
 * sentence for people if that is too little. Reading may block on /proc and /sys: at the start, or
 * on the work thread. The judging is pure.
 */

#include <stdint.h>

#include "daemon/tier/arena.h"
#include "daemon/tier/hugenote.h"

#define ARENA_UNLIMITED        UINT64_MAX
#define ARENA_GROUP_FILE_BYTES 512

struct arena_use { /* what the memory is for, in sentences */
	const char *name;
	const char *key;   /* that says how much */
	const char *steps; /* what its huge pages must divide */
	const char *again; /* what tries once more */
};
#define ARENA_FOR_RAM                                                                              \
	((struct arena_use){"KV-RAM", "kv_ram_bytes", "kv_ram_chunk_bytes and KV-RAM",             \
			    "start again"})
#define ARENA_FOR_STAGING                                                                          \
	((struct arena_use){"Staging", "kv_staging_bytes", "kv_staging_bytes", "start again"})
/* A pool, whose name stands before the sentence, and which takes huge pages of any size. */
#define ARENA_FOR_POOL     ((struct arena_use){"it", "pools.pool_bytes", "", "attach again"})
#define ARENA_FOR_RETAINED ((struct arena_use){"it", "pools.retained_slots", "", "attach again"})

struct arena_limits {
	struct arena_use use;
	/* RLIMIT_MEMLOCK; unlimited too where the process may ignore it (CAP_IPC_LOCK) */
	uint64_t lock_limit_bytes;
	uint64_t locked_bytes; /* of it, in use by this process */
	uint64_t memory_bytes; /* MemAvailable of the host; unlimited where it is not known */
	/* Of the control groups around this process the one that leaves least. */
	uint64_t group_limit_bytes;
	uint64_t group_used_bytes; /* of it, in use and not to be taken back */
	char group_file[ARENA_GROUP_FILE_BYTES];
	struct huge_pages huge;
};

/* root: "" ; a test has a folder with its own proc/ and sys/fs/cgroup/. */
void arena_limits_read(const char *root, struct arena_use use, struct arena_limits *out);
/* So many bytes are promised to others of this process, and nothing of them was taken yet; of huge
 * pages, if they are whole ones. */
void arena_limits_promise(struct arena_limits *l, uint64_t bytes, bool lock);

/* Do so many bytes more fit? 0, or an error and the sentence; `why` is written only then. */
int arena_limits_lock(const struct arena_limits *l, uint64_t bytes, char why[ARENA_NOTE_BYTES]);
int arena_limits_huge(const struct arena_limits *l, uint64_t bytes, char why[ARENA_NOTE_BYTES]);
int arena_limits_memory(const struct arena_limits *l, uint64_t bytes, char why[ARENA_NOTE_BYTES]);

/* On memory that is no huge page which the host has set aside. */
struct memory_claim {
	uint64_t bytes;
	const char *with;        /* what more is in these bytes: " with its index", or "" */
	uint64_t promised_bytes; /* to others, which are still to get them */
	const char *promised_to; /* "KV-RAM is", say */
};

/* What is there less what is promised: does it suffice? As above. */
int arena_limits_claim(const struct arena_limits *l, const struct memory_claim *claim, char *why,
		       size_t why_bytes);

/* Is the size of the host's huge pages one that chunks and arena are multiples of? -EINVAL if not;
 * a host without any is not refused here. */
int arena_limits_pages(const struct arena_limits *l, const struct arena_wish *wish,
		       char why[ARENA_NOTE_BYTES]);
/* All that arena_check asks of them. */
int arena_limits_allow(const struct arena_limits *l, const struct arena_wish *wish,
		       char why[ARENA_NOTE_BYTES]);

/* The arena is of whole frames. */
static inline uint64_t arena_bytes_of(const struct arena_wish *wish)
{
	return wish->bytes / FRAME_BYTES * FRAME_BYTES;
}

#endif
