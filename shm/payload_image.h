/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_PAYLOAD_IMAGE_H
#define KVHOST_SHM_PAYLOAD_IMAGE_H

/*
 * payload_image: the part of payload.h that is about the state images of hybrid pools.
 *
 * Plain data; nothing here blocks. Included by payload.h.
 */

#include <stdint.h>

struct payload_section_place {
	uint64_t offset; /* in its slot */
	uint64_t bytes;
	uint32_t kind;
	uint32_t reserved;
};

struct payload_section_range { /* of OP_IMAGE_WRITE and OP_IMAGE_READ */
	uint32_t section;
	uint32_t reserved;
	uint64_t offset; /* in the section */
	uint64_t bytes;
};

struct payload_step_slots { /* of a step of a hybrid pool, before its pages */
	uint32_t source;    /* slot to read */
	uint32_t target;    /* slot to write; named in the receipt */
	uint32_t ring;
	uint32_t generation; /* of all three */
};

/* What became of a checkpoint; all but the first are skips. */
enum payload_capture {
	PAYLOAD_CAPTURE_MADE = 0,
	PAYLOAD_CAPTURE_EXISTS,   /* the same state is kept already */
	PAYLOAD_CAPTURE_NO_SLOT,  /* every retained slot is being copied from or to */
	PAYLOAD_CAPTURE_SHORT,    /* before the pool's min_capture_tokens */
	PAYLOAD_CAPTURE_OFF,      /* reuse is off for the request or the pool */
	PAYLOAD_CAPTURE_UNKNOWN,  /* not all tokens so far are known */
	PAYLOAD_CAPTURE_IN_IMAGE, /* inside the span of an image */
	PAYLOAD_CAPTURE_SHARED,   /* the last page is shared with a fork that has not gone on */
	PAYLOAD_CAPTURE_COUNT,
};

_Static_assert(sizeof(struct payload_section_place) == 24, "section place");
_Static_assert(sizeof(struct payload_section_range) == 24, "section range");
_Static_assert(sizeof(struct payload_step_slots) == 16, "step slots");

#endif
