/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_DROP_H
#define KVHOST_FRONT_DROP_H

/*
 * drop: the end of a pool that nobody uses: its memory goes back, its name stays declared and may
 * be attached with another description. Owner: the core thread; nothing blocks.
 */

#include "daemon/front/core.h"

/* NULL: nothing keeps it; else why it cannot be dropped, for people. */
const char *core_pool_users(const struct core_pool *p);
/* Give its memory back, as soon as what is closing has closed: then it is declared, under a new
 * handle. Nothing keeps it. */
void core_pool_drop(struct core_pool *p);
/* What it has counted before it was dropped; right after it was made again. */
void core_pool_remember(struct core_pool *p);

bool core_pools_drop_turn(struct core *c); /* true if there was something to do */
void core_pools_expire(struct core *c);    /* idle_ttl_s */

#endif
