/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_CAPTURE_H
#define KVHOST_STATE_CAPTURE_H

/*
 * capture: a live sequence of a hybrid pool leaves a state behind: its pages so far, and a copy of
 * its image in a retained slot or, if none is free, in KV-RAM. capture_begin decides and reserves;
 * the caller copies the image; capture_end makes the state visible, or takes everything back. Core
 * thread; nothing blocks.
 */

#include "daemon/state/seq.h"

enum capture_skip { /* equal to enum payload_capture */
		    CAPTURE_MADE = 0,
		    CAPTURE_EXISTS,  /* the same state is there already */
		    CAPTURE_NO_SLOT, /* no slot and no place in KV-RAM, or no memory */
		    CAPTURE_SHORT,   /* before min_capture_tokens */
		    CAPTURE_OFF,     /* reuse is off */
		    CAPTURE_UNKNOWN, /* not all tokens are known, or what is before is not published
				      */
		    CAPTURE_IN_IMAGE, /* inside the span of an image */
		    CAPTURE_SHARED, /* its last page is shared with a fork that has not gone on yet
				     */
		    CAPTURE_REASONS,
};

/*
 * Capture the committed state (no step is open). is_user: it is the one right after the last real
 * user message. *image set on MADE and EXISTS; on MADE the caller copies the current slots of the
 * lane to it and calls capture_end. The skip is counted.
 */
enum capture_skip capture_begin(struct seq *s, enum image_kind kind, bool is_user, uint32_t *image);
void capture_end(struct pool *p, uint32_t image, bool filled);

#define CAPTURE_POINTS 12u

struct capture_points {
	uint32_t tokens[CAPTURE_POINTS]; /* ascending */
	uint32_t n;
};

/* Where captures are worth while: the ends of prefill chunks (0: none said), the system block's end
 * floored to a page, the opener floored to a page, the opener; none in what is cached, none before
 * min_capture_tokens, none inside an image. If there are more, the last ones. */
void capture_plan(const struct pool *p, const struct match_wish *w, uint32_t cached_tokens,
		  uint32_t chunk_tokens, uint32_t system_end_tokens, uint32_t opener_tokens,
		  struct capture_points *out);

#endif
