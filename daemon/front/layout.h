/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_LAYOUT_H
#define KVHOST_FRONT_LAYOUT_H

/* layout: where the slots of state images lie in a hybrid pool's memory. Owner: the core thread. */

#include "shm/payload.h"

struct hybrid_layout { /* where images lie; all 0 in a dense pool */
	uint32_t n;    /* sections */
	struct payload_section_place *sections;
	uint64_t state_offset, state_stride; /* in the pool's memory */
	uint64_t ring_offset, ring_stride;
	uint64_t slot_bytes, retained_bytes;
};

#endif
