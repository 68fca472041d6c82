/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_POOL_INTERNAL_H
#define KVHOST_STATE_POOL_INTERNAL_H

/* pool_internal: what pool.c, pool_tiers.c, pool_own.c and park.c share. */

#include "daemon/state/pool.h"

void pool_count_live(struct pool *p, uint32_t node, int change);
/* Its device copy was to go as soon as nothing stands on it: it goes now. */
bool pool_may_follow(const struct pool *p, uint32_t node);
/* If it is leaving it stays after all, and with it what was to leave after it. */
void pool_stay(struct pool *p, uint32_t node);
/* The page of a node is given up: 0 it is free or will be; POOL_WAIT: not now. */
int pool_send_down(struct pool *p, uint32_t node);
/* Copies down pause, and it would need one: it is in use until they go on. */
bool pool_set_aside(struct pool *p, uint32_t node);
/* A page that is in use comes to be below as well. */
void pool_copy_down(struct pool *p, uint32_t node);
/* Give up what is worth least, of one namespace (RETAIN_NAMESPACES: of all). 0; POOL_NEVER: there
 * is nothing to give up; POOL_WAIT: not now. */
int pool_give_up_one(struct pool *p, uint16_t name_space);

#endif
