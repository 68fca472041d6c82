/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_HYBRID_H
#define KVHOST_FRONT_HYBRID_H

/*
 * hybrid: the images of a hybrid pool: where their sections lie, and the copies between slots.
 *
 * The pool's memory is its pages, then two slots a lane for replaced sections, then one a lane for
 * ring sections. Retained slots lie in memory of their own that no client maps. A copy in flight
 * keeps its lane, and the state that it copies from, until it is done, whatever becomes of the
 * request. Owner: the core thread.
 */

#include "daemon/front/request.h"
#include "daemon/state/capture.h"

/* Lay the sections out; 0, or refused: *why says what is wrong with section *which. */
int hybrid_lay_out(struct hybrid_layout *h, const struct payload_section *sections, uint32_t n,
		   const char **why, uint32_t *which);
/* Where the slots begin, once the number of pages and lanes is known. */
void hybrid_place(struct hybrid_layout *h, uint64_t pages_bytes, uint32_t lanes,
		  uint32_t retained_slots);

enum image_job_kind {
	IMAGE_JOB_FRESH, /* the lane's state becomes zeros */
	IMAGE_JOB_CLAIM, /* a retained state is copied to the lane */
	IMAGE_JOB_FORK,  /* another lane's state is */
	IMAGE_JOB_CAPTURE,
	IMAGE_JOB_WRITE, /* window to slot */
	IMAGE_JOB_READ,
};

/* Begin a copy for a request, which waits: when it is done, resume is called with its result,
 * unless the request has been abandoned (hybrid_abandon). 0 or -ENOMEM. `image`: of CLAIM
 * and CAPTURE; `from`: the parent of FORK. */
int hybrid_start(struct request *r, struct seq *s, enum image_job_kind kind, uint32_t image,
		 const struct seq *from, void (*resume)(struct request *r, int result));
void hybrid_abandon(struct request *r);

#define HYBRID_PIECE_BYTES (16u << 20) /* at a time: the device serves others in between */
#ifdef KVHOST_TESTING
extern uint64_t hybrid_piece_bytes; /* as many, or less */
#endif

struct payload_step_slots hybrid_slots(const struct seq *s);

#endif
