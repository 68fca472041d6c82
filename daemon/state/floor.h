/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_FLOOR_H
#define KVHOST_STATE_FLOOR_H

/*
 * floor: from how many tokens on it pays to fetch them from the tier below, by what was measured.
 *
 * To compute n tokens takes an engine so much a token; to fetch them takes so much a token, and a
 * delay that every fetch has, whatever its size. Steps of a few tokens say nothing of the first.
 * All of it is forgotten by and by, so that it follows what changes.
 *
 * A pure calculation: no clock, no I/O. Owner: the core thread.
 */

#include <stdbool.h>
#include <stdint.h>

#define FLOOR_UNKNOWN_TOKENS 1024u      /* while too little was measured */
#define FLOOR_NEVER_TOKENS   (1u << 24) /* more than a sequence has: to compute is faster */
#define FLOOR_SAMPLES        8u         /* of each kind, at least */
#define FLOOR_PREFILL_TOKENS 64u        /* that a step must commit to be one */
#define FLOOR_PROBE          64u        /* of so many opens, one fetches whatever there is */

struct floor {                             /* all zeros: nothing was measured */
	uint32_t prefills, restores;       /* measured */
	double prefill_tokens, prefill_ns; /* sums, the older the less of each */
	double restore_tokens, move_ns;
	double delay_ns; /* of a fetch, on average */
	uint32_t opens;
};

/* A step has committed so many tokens; so long after it began. */
void floor_prefilled(struct floor *f, uint32_t tokens, uint64_t ns);
/* So many tokens were there so long after they were asked for; move_ns of that is how long it takes
 * to move so many bytes. */
void floor_restored(struct floor *f, uint32_t tokens, uint64_t ns, uint64_t move_ns);

/* Of one token; 0: not known yet. */
uint64_t floor_prefill_ns(const struct floor *f);
uint64_t floor_restore_ns(const struct floor *f);
uint32_t floor_tokens(const struct floor *f);

/* For an open: true if it is to fetch however little there is. What is never done is never measured
 * again. */
bool floor_probe(struct floor *f);

#endif
