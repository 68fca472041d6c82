/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_SEGMENT_H
#define KVHOST_SHM_SEGMENT_H

/*
 * segment: memory files: made by the daemon, sealed against growing and shrinking, mapped by both.
 *
 * A client can still punch holes in what it maps; so the daemon never gives such memory to a
 * device or to io_uring, and reads it under the fault guard (guard.h). These calls may block for
 * as long as memory takes to arrive: the daemon makes and unmaps segments on its work thread.
 */

#include <stdbool.h>
#include <stddef.h>

#include "shm/wire.h"

enum segment_backing {
	SEGMENT_SMALL = 1, /* base pages */
	SEGMENT_COLLAPSED, /* base pages that MADV_COLLAPSE made huge */
	SEGMENT_HUGETLB,   /* from the host's huge-page pool */
};

struct segment {
	void *memory;        /* NULL = not mapped */
	size_t bytes;        /* mapped length, a multiple of the backing's page size */
	int fd;              /* -1 = none */
	uint32_t page_bytes; /* of the backing */
	enum segment_backing backing;
};

struct segment_wish {
	size_t bytes;       /* rounded up to the page size of what it gets */
	const char *name;   /* shown in /proc/PID/maps */
	bool huge;          /* try hugetlb, then collapsed, then small */
	bool populate;      /* all memory is there on return */
	bool keep_in_forks; /* else a forked child has no such mapping */
};

#define SEGMENT_NONE ((struct segment){.fd = -1})

/* The daemon's side: make, seal (grow, shrink, seal), map. 0 or -errno; *out set on 0 only. */
int segment_make(const struct segment_wish *wish, struct segment *out);

/* The client's side: map a descriptor that arrived. Takes the descriptor, also on failure. */
int segment_map(int fd, struct segment *out);

void segment_free(struct segment *s); /* unmaps, closes; SEGMENT_NONE is fine */

/* For memory files that are mapped and filled in another way: the file alone, of its size, open to
 * its user only, not sealed yet. A descriptor or -errno. */
int segment_open(const char *name, bool hugetlb, size_t bytes);
int segment_seal(int fd); /* grow, shrink, seal. 0 or -errno */

size_t segment_huge_page_bytes(void);      /* default huge page size of the host; 0 = none */
size_t segment_collapsed_page_bytes(void); /* what base pages can be collapsed to; 0 = nothing */
size_t segment_base_page_bytes(void);

const char *segment_backing_name(enum segment_backing b);

#endif
