/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_OPENING_H
#define KVHOST_TESTS_OPENING_H

/*
 * opening: an open of a pool with a tier below it, as the daemon does it: it walks, asks for what
 * is below, waits, and goes back if something cannot be had. Of a hybrid pool the image of the
 * state that was found is copied at the end, by whoever plays the device. One thread.
 */

#include "daemon/state/seq.h"

struct opening {
	struct pool *pool;
	struct match_wish wish;
	struct match m;
	uint32_t *path;
	uint32_t asked, fetched; /* pages, from the start of the prompt */
	bool fetches;
	struct seq *s; /* NULL: its client has gone, the copy of the image goes on */
	/* of a hybrid pool */
	bool copying, copied;
	struct image_name name; /* of the state whose image is being copied */
	uint32_t slot, place;   /* from there: the other one is NONE */
	uint32_t lane;          /* to there */
};

/* The wish's tokens and images outlive it. NULL: not admitted. */
struct opening *opening_begin(struct pool *p, const struct match_wish *wish, uint32_t max_tokens);
/* At most `budget` pages. 0: done, the sequence is in *s and the opening gone; POOL_MORE: again;
 * POOL_WAIT: a copy must end (if it is `copying`: that of its image), or a page come, first. */
int opening_turn(struct opening **o, uint32_t budget, struct seq **s);
/* How the copy of the image ended. Of one whose client has gone: the opening is gone, too. */
void opening_image_came(struct opening **o, int result);
/* Its client has gone. NULL then, unless the copy of its image still goes on. */
void opening_abandon(struct opening **o);

#endif
