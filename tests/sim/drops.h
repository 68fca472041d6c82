/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_DROPS_H
#define TESTS_SIM_DROPS_H

/*
 * drops: an operator gives up what is retained, of a namespace or of all. What nobody used since
 * it was asked for is gone from all tiers when it is done. One thread.
 */

#include <stdbool.h>
#include <stdint.h>

#define DROPS_NODES 8192

struct sim;
struct sim_client;
struct sim_op;

struct sim_drops {
	const struct sim_op *asked; /* one at a time is watched; NULL: none */
	uint32_t namespaces;        /* a bit each */
	uint64_t next_id, tick;     /* then: younger nodes were made, or touched, since */
	uint64_t used[DROPS_NODES]; /* ids of nodes that somebody has used since */
	uint64_t done;              /* that were watched to their end */
};

void ask_drop_retained(struct sim_client *c);
/* Somebody has asked for what this namespace retains: claims do not count. */
bool drops_is_asked(const struct sim *w, uint16_t name_space);
void drops_look(struct sim *w); /* after each turn of the core */
void drops_answered(const struct sim_op *o, bool good);
void drops_forget(struct sim *w, const struct sim_client *c); /* NULL: whoever has asked */

#endif
