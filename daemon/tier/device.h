/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_DEVICE_H
#define KVHOST_TIER_DEVICE_H

/*
 * device: memory that holds the pages of pools, and everything that touches it.
 *
 * Every operation is asynchronous: a job goes in, its done function is called on the core thread
 * when the executor is reaped; late, failed or never. Jobs on one device take effect in the order
 * submitted, save that MAKE and FREE run beside the others: MAKE must be done before a job on its
 * memory is submitted, and all of those must be done before FREE is.
 * The core never touches pool memory itself.
 *
 * Results: 0; -EFAULT: the client's window is gone under our hands; -EIO: the pool's memory is
 * (a client punched it, the device failed): the pool has failed; -ECANCELED: nothing was written
 * to the pool (of READ the window may hold a part); -ENOMEM from COPY: nothing was done; -ENOMEM
 * and others from MAKE: nothing was taken.
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/worker.h"
#include "kernels/geometry.h"
#include "shm/segment.h"

enum device_op {
	DEVICE_MAKE = 1, /* memory for a pool: populated, zero */
	DEVICE_FREE,     /* give it back */
	DEVICE_ZERO,     /* fill pages with zeros */
	DEVICE_COPY,     /* one simultaneous assignment of whole pages: {A->B, B->A} swaps */
	DEVICE_WRITE,    /* rows from memory into pages, converted */
	DEVICE_READ,     /* rows from pages into memory, converted */
	DEVICE_MOVE,     /* bytes from one place to another, neighbours in one go */
	DEVICE_OPS,
};

/* State images and pages: bytes between the pool, its retained slots, a client's window, the arena
 * of KV-RAM, and nowhere. */
enum device_region {
	DEVICE_POOL = 0, /* offset in the pool's memory; slots lie behind the pages */
	DEVICE_RETAINED, /* offset in the retained slots, which no client maps */
	DEVICE_WINDOW,   /* offset from device_job.window */
	DEVICE_ZEROS,    /* as a source */
	DEVICE_ARENA,    /* offset in the arena of KV-RAM, which lies below the pool */
};

struct device_move {
	enum device_region to, from;
	uint64_t to_offset, from_offset;
	uint64_t bytes;
};

struct device_copy {
	uint32_t from;
	uint32_t to; /* no page is the target of two */
};

#define DEVICE_REFUSAL_BYTES 400

struct device_memory {                   /* a pool's part on this device; made by DEVICE_MAKE */
	const struct geometry *geometry; /* the pool's; outlives this */
	uint64_t pages;
	uint64_t slot_bytes;     /* behind the pages: slots of live states */
	uint64_t retained_bytes; /* slots of retained states, in memory of their own */
	struct segment retained;
	struct segment segment;         /* CPU backend: page i at memory + i * page_stride */
	struct device_backing *backing; /* CPU backend: of both; NULL: none was made by it */
	/* CPU backend: of the host's memory, what it is still to get beside the step on its way. */
	uint64_t promised_bytes;
	int numa_node; /* set at MAKE, by the device */
	char *arena;   /* of KV-RAM, borrowed; NULL: none */
	uint64_t arena_bytes;
	/* Why MAKE did not take the memory: the host or a control group has no room for it. "" if
	 * it was not that. */
	char refusal[DEVICE_REFUSAL_BYTES];
	char huge_note[160]; /* what backing was got, and why not a better one; set by MAKE,
			      * also when it fails; for health */
};

struct device_rows {
	uint32_t layer;
	uint32_t side;             /* 0 K, 1 V */
	enum kernel_format format; /* of the rows in memory */
	void *memory;              /* rows [n_tokens][kv_heads][head_dim]; a client's window */
	uint32_t first_slot;       /* token slot of the first row in pages[0]; < page_tokens */
	uint32_t n_tokens;
};

struct device_job {
	struct job job; /* first: done gets a pointer to this */
	enum device_op op;
	struct device_memory *memory;
	bool require_huge; /* DEVICE_MAKE */
	/* MAKE, where no huge pages are set aside for it: what the host must have beside the memory
	 * that is made: for what is known of the pool's pages, and what KV-RAM is still to get. */
	uint64_t index_bytes, promised_bytes;
	const char *promised_to;
	/* MAKE, of the device: the submitter's done, and who runs the steps. */
	void (*made)(struct job *job);
	struct executor *steps;
	const uint32_t *pages;            /* ZERO, WRITE, READ: page records, in slot order */
	const struct device_copy *copies; /* COPY */
	uint32_t n;                       /* of pages or copies; they stay valid until done */
	uint32_t copy_tokens; /* COPY: rows of the first tokens only, to distinct pages; 0: all */
	const struct device_move *moves; /* MOVE: n of them, one after another */
	uint32_t n_moved;                /* MOVE that failed: so many were done before */
	uint32_t n_copies;               /* MOVE: in so many copies, as neighbours go at once */
	uint64_t busy_ns;                /* MOVE: how long the device worked on it */
	void *window;                    /* MOVE */
	struct device_rows rows;         /* WRITE, READ */
	uint64_t saturated;              /* WRITE: finite values that saturated */
	void *owner;                     /* the submitter's */
};

struct device {
	void (*submit)(struct device *d, struct device_job *job);
	void (*free)(struct device *d); /* all jobs done before */
	const char *name;               /* "cpu" */
	struct executor *copies;        /* runs all but MAKE and FREE; reaped by the core */
	/* Runs FREE, and MAKE in steps: other jobs are behind one step at most. Reaped by the core.
	 */
	struct executor *work;
	int numa_node;                   /* of memory that is made; or NODES_* */
	uint64_t dispatches[DEVICE_OPS]; /* jobs submitted, by operation; the core's */
};

/* What MAKE has made; as FREE, but at once, on the caller's thread: at the end of the daemon, or
 * where it has no memory for the rest of the pool. Nothing was made: fine. */
void device_memory_free(struct device_memory *m);

/* The CPU backend. The executors are borrowed and outlive it. 0 or -errno. */
int device_cpu_new(struct executor *copies, struct executor *work, struct device **out);

#endif
