/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_SIM_LIVE_H
#define KVHOST_TESTS_SIM_LIVE_H

/* live: sequences that make room for others, as the simulation sees them. One thread. */

#include "daemon/front/request.h"
#include "daemon/state/park.h"
#include "tests/sim/sim.h"

/* The daemon's side of a view; NULL: it has none any more. */
struct seq *live_seq_of(struct sim *w, const struct sim_view *v);
/* Its first n pages may be others since it came back: as its client would learn them. What they
 * hold is looked at row by row. */
void live_read_again(struct sim *w, struct sim_view *v, uint32_t n);
/* Its client knows where its pages are now. */
bool live_is_known(struct sim *w, const struct sim_view *v);
/* More is promised than the device has, or than is left of it: an open that waits for pages behind
 * others goes on with what it has got. */
bool live_is_crowded(const struct pool *p);
/* Of what is at rest: may a request of this sequence still wait for pages? Only if all that ranks
 * below it has given what it has. */
bool live_may_wait(struct sim *w, const struct sim_view *v);
/* The first that waits for pages has heard of all that it could have. */
void live_check(struct sim *w);
/* park_discard_hook: one of those that may go, and something would go with them. */
void live_discarded(const struct seq *s, struct pool_rank rank);
/* As live_may_wait, of an open or a fork, which may wait to be admitted; r may be NULL. */
bool live_open_may_wait(struct sim *w, const struct request *r);

#endif
