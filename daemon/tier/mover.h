/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_MOVER_H
#define KVHOST_TIER_MOVER_H

/*
 * mover: moves of whole pages of one pool: dirty pages are zeroed, shared ones copied.
 *
 * A few zeroing jobs of bounded size are in flight at a time, begun whenever there are dirty
 * pages, so that a step finds clean ones. Owner: the core thread; the bytes are the device's.
 * Every page that a job touches is pinned, or in the zeroing state, until the job is done.
 */

#include "daemon/state/page.h"
#include "daemon/tier/device.h"

#define MOVER_ZERO_JOBS  2
#define MOVER_ZERO_PAGES 128        /* a job, at most */
#define MOVER_ZERO_BYTES (1u << 20) /* a job, unless one page is more */

struct mover;

struct mover_zero {
	struct device_job job;
	struct mover *mover;
	bool busy;
	uint32_t pages[MOVER_ZERO_PAGES];
};

/* A copy of one page; the caller's, until done. */
struct mover_copy {
	struct device_job job;
	struct mover *mover;
	struct device_copy copy;
	uint32_t tokens; /* copy the rows of the first tokens only */
	void (*done)(struct mover_copy *c, int result);
	void *owner;
};

struct mover {
	struct pages *pages;
	struct device *device;
	struct device_memory *memory;
	/* Pages became clean, or the device failed (result < 0). */
	void (*cleaned)(void *context, int result);
	void *context;
	uint32_t batch;     /* pages of a zeroing job */
	uint32_t in_flight; /* jobs of all kinds */
	uint64_t zeroed, copied;
	struct mover_zero zero[MOVER_ZERO_JOBS];
};

void mover_init(struct mover *m, struct pages *pages, struct device *device,
		struct device_memory *memory, void (*cleaned)(void *context, int result),
		void *context);

/* Begin zeroing if there is something to zero and a job to do it. Cheap: call it every turn. */
void mover_kick(struct mover *m);

/* Copy page c->copy.from to c->copy.to; done is called from a later device reap. */
void mover_copy(struct mover *m, struct mover_copy *c);

#endif
