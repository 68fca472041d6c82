/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_HUGENOTE_H
#define KVHOST_TIER_HUGENOTE_H

/*
 * hugenote: one sentence on the memory pages that a segment got, and why not larger ones.
 * hugenote_read reads sysfs and so may block: the work thread. The rest is pure.
 */

#include <stddef.h>
#include <stdint.h>

#include "shm/segment.h"

struct huge_pages {          /* the host's, of its default huge page size */
	uint64_t page_bytes; /* 0: the host has none */
	uint64_t total;
	uint64_t available; /* neither in use nor promised */
	uint64_t surplus;   /* that the kernel may still make when they are asked for */
	const char *unfit;  /* what is no multiple of them; NULL: nothing; not read */
};

struct huge_pages hugenote_read(void);

/* got: NULL if nothing was got. wanted_bytes: of the whole segment. Always terminated. */
void hugenote_write(char *note, size_t note_bytes, const struct segment *got, uint64_t wanted_bytes,
		    const struct huge_pages *host);

#endif
