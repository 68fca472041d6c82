/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_POOLS_H
#define TESTS_SIM_POOLS_H

/*
 * pools: a client's way into the pool and out of it, the end of the pool, and its memory, which is
 * the process's. One thread.
 */

#include "daemon/front/session.h"

struct sim;
struct sim_client;
struct sim_op;
struct completion;

void ask_attach(struct sim_client *c);
/* Without a sequence: leave the pool; outside it: attach, or ask that it be dropped. */
void ask_detach(struct sim_client *c);
void ask_pool(struct sim_client *c);
struct sim_op *ask_admin(struct sim_client *c, uint32_t question, const char *argument,
			 uint32_t allowed);
void took_attach(struct sim_op *o, const struct completion *reply);
void attach_failed(struct sim_op *o, int status);

void pools_drop(struct sim *w); /* as its idle_ttl_s does, if nobody uses it */
/* The jobs of a device whose memory is static: MAKE and FREE. False: another one. */
bool pools_submit(struct sim *w, struct device_job *job);
/* The static memory must not be unmapped. */
void pools_leave_memory(struct sim *w);

/* No namespace has more pages than its quota. */
void pools_check_quotas(struct sim *w);
/* Which namespaces a page, or a state, may be taken from before others, by what they have: a bit
 * each. */
uint64_t pools_weakest(const struct pool *p, bool slotted);
/* May a state leave the device? `slotted`: for its slot. */
bool pools_may_leave(const struct image *it, bool slotted);
/* What the learned order expects of it; 0 in lru. */
double pools_index(const struct pool *p, const struct image *it);
bool pools_is_forced(const struct pool *p, uint16_t name_space);

#endif
