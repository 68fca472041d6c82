/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_BUDGET_H
#define KVHOST_FRONT_BUDGET_H

/*
 * budget: what the plan of a pool is made of: its configuration, its geometry and what the host
 * has. Core thread; nothing blocks.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/state/pool.h"

struct core;
struct core_pool;
struct request;

/* The plan of a pool whose geometry and layout are known; or the request is refused. */
bool budget_compute(struct request *r, struct core_pool *p);
/* The limits of the pool that the plan allows. */
struct pool_limits budget_limits(const struct core_pool *p);
/* Of the host's memory, what KV-RAM and pools that are being made are still to get. *to: who, for a
 * sentence. */
uint64_t budget_promised(const struct core *c, const char **to);
/* Slots for retained states: 0 in a pool that keeps none. */
uint32_t budget_retained_slots(const struct core_pool *p);

#endif
