/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_ARENA_H
#define KVHOST_TIER_ARENA_H

/*
 * arena: the memory of KV-RAM: one memory file of huge pages, page-locked, and a second one with
 * the header (record.h) of every object that lies in it.
 *
 * Its memory arrives in chunks, on the work thread, several threads to a chunk; what has arrived
 * serves at once. Clients never get a descriptor of it, it is not in core dumps, forked children
 * do not have it, and the address after its last byte is nobody's. On a host with several NUMA
 * nodes it is interleaved over them, or bound to one.
 *
 * If a chunk cannot be had (others took the memory, the limit of locked memory was lowered) the
 * arena stays as large as it is and says why. Huge pages are promised to all of it when it is made,
 * so nobody takes them while it arrives; what was promised and did not arrive is free again after
 * arena_free.
 *
 * The file of headers is of base pages and sparse: it has room for the most objects that there may
 * be, and memory for ARENA_HEADERS_AHEAD of them at a time, which comes before the numbers of
 * objects get there (arena_header). So small pools do not pay for the headers of large ones, and
 * the core does not fault them in one by one.
 *
 * Owner: the core thread. What takes long is a job of the executor; others' jobs wait for one chunk
 * at most. arena_new touches no memory of it, but reads /proc. arena_free returns it to the host,
 * which takes as long as it takes: at the end of the daemon.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/worker.h"
#include "daemon/state/frames.h"
#include "daemon/tier/nodes.h"

#define ARENA_NOTE_BYTES    320
#define ARENA_CHUNK_MAX     (1ull << 30)
#define ARENA_THREADS_MAX   8
#define ARENA_HEADERS_AHEAD 1024u

struct arena_wish {
	uint64_t bytes; /* rounded down to frames; 1 .. FRAMES_MAX of them */
	/* Populated and locked in one job; a multiple of FRAME_BYTES, at most ARENA_CHUNK_MAX, best
	 * of FRAMES_SLAB_MAX frames. Others' jobs wait for one, service waits for the first one,
	 * and a watchdog sees one job: memory that the host itself has to find first comes at
	 * seconds a GiB, so 64 to 256 MiB are enough. */
	uint64_t chunk_bytes;
	uint32_t most_objects; /* at the same time, at most OBJECTS_MAX; 0: one for each 64 KiB, at
				* least 1024 */
	bool require_huge;     /* from the huge-page pool, or not at all; else base pages serve too,
				* made huge if the kernel can */
	bool lock;             /* page-lock it */
	int numa_node;         /* or NODES_INTERLEAVE, NODES_ANYWHERE */
	uint32_t threads;      /* that populate a chunk: 1 .. ARENA_THREADS_MAX */
	/* Of kv_ram_bytes so many are kept beside each page of this size that fits in `bytes`: for
	 * the sentence that says what to set it to. page_bytes 0: none are. */
	uint64_t page_bytes;
	uint32_t known_bytes;
	/* Promised to others of this process, nothing of which was taken yet: it must fit besides.
	 */
	uint64_t beside_bytes;
};

enum arena_state {
	ARENA_ARRIVING = 0, /* chunks are on their way */
	ARENA_WHOLE,
	ARENA_PARTIAL, /* no more will come; the note says why */
};

struct arena { /* read by all, written by arena.c */
	struct frames *frames;
	char *memory;  /* [bytes], aligned to FRAME_BYTES; touch only what arrived */
	char *headers; /* of object i: headers + i * RECORD_BYTES */
	uint64_t bytes;
	uint64_t arrived_bytes;
	uint64_t page_bytes; /* of its backing; the smallest, if pages could not all be made huge */
	uint32_t most_objects;
	uint32_t headers_ready; /* so many have their memory */
	bool set_aside;         /* it is of huge pages that the host has set aside */
	/* Else: of what has not arrived, what no chunk is on its way for. A job of the same
	 * executor that is submitted now must leave so much of the host's memory. */
	uint64_t promised_bytes;
	enum arena_state state;
	int result; /* PARTIAL: -errno; -EPERM: locked memory, -ENOMEM: memory, -ECANCELED: stop */
	int memory_fd, headers_fd;
	/* One sentence: lock, nodes, backing; or what is missing and the command that changes it.
	 * After the first chunk; empty before. */
	char note[ARENA_NOTE_BYTES];
};

/*
 * Can so much be had, as far as the limits say? Reads RLIMIT_MEMLOCK, the capability to ignore it,
 * the free huge pages and their size (if they are required) and the memory of the host and of its
 * control group (if huge pages do not suffice, or are too large for chunks and arena). Reads /proc
 * and /sys: at the start only. 0, or -errno and a sentence with what is wanted, what there is, the
 * name of the limit and the command that changes it.
 *   -EINVAL: less than a frame, a NUMA node that is not there, or huge pages of a size that does
 *   not fit; -EPERM: locked memory; -ENOMEM: memory or huge pages.
 */
int arena_check(const struct arena_wish *wish, char why[ARENA_NOTE_BYTES]);

/* Address space and descriptors; the first chunk is asked for. 0 or -errno (-ENOMEM too if huge
 * pages are required and not there).
 * changed: on the core thread, when a chunk has arrived, or none will; not after arena_stop. It may
 * call anything but arena_free. */
int arena_new(const struct arena_wish *wish, struct executor *work, void (*changed)(void *context),
	      void *context, struct arena **out);
/* Why it failed, with this result, although arena_check had said that it could be had: others may
 * have taken what was there, or something stands in the way that the check does not see. */
void arena_explain(const struct arena_wish *wish, int result, char why[ARENA_NOTE_BYTES]);
/* Asks for no more chunks: an arena that is still arriving becomes PARTIAL. true: no job of its own
 * is on its way; until then, reap and ask again. */
bool arena_stop(struct arena *a);
/* After arena_stop has said true; nothing else uses its memory. NULL is fine. */
void arena_free(struct arena **a);

/* The header of an object. Core thread: a number near the end of headers_ready asks for the memory
 * of the next ARENA_HEADERS_AHEAD. If that is refused, headers are there all the same, and the core
 * takes a page fault for each that was never used. */
void *arena_header(struct arena *a, uint32_t object);

#endif
