/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_OPENING_H
#define KVHOST_TESTS_OPENING_H

/*
 * opening: an open of a pool with a tier below it, as the daemon does it: it walks, asks for what
 * is below, waits, and goes back if something cannot be had. One thread.
 */

#include "daemon/state/seq.h"

struct opening {
	struct pool *pool;
	struct match_wish wish;
	struct match m;
	uint32_t *path;
	uint32_t asked, fetched; /* pages, from the start of the prompt */
	bool fetches;
	struct seq *s;
};

/* The wish's tokens and images outlive it. NULL: not admitted. */
struct opening *opening_begin(struct pool *p, const struct match_wish *wish, uint32_t max_tokens);
/* At most `budget` pages. 0: done, the sequence is in *s and the opening gone; POOL_MORE: again;
 * POOL_WAIT: a copy must end, or a page come, first. */
int opening_turn(struct opening **o, uint32_t budget, struct seq **s);
/* Its client has gone. */
void opening_abandon(struct opening **o);

#endif
