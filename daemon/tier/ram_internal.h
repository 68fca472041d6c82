/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_RAM_INTERNAL_H
#define KVHOST_TIER_RAM_INTERNAL_H

/* ram_internal: what ram.c (places) and ram_move.c (copies) share. */

#include "daemon/tier/ram.h"

void ram_down(void *context, uint32_t node); /* of struct pool_below */
void ram_up(void *context, uint32_t node);
uint32_t ram_move_private(void *context, bool up, struct seq *s, uint32_t index, uint32_t page,
			  uint32_t place);
void ram_orphan(void *context, bool up, uint32_t ticket);

/* Begin to move pages so that one of this pool's size fits, unless that is under way. */
void ram_relocate(struct ram_pool *rp);
/* How many opens the pool has a second: now and then. */
void ram_rate(struct ram_pool *rp, uint64_t now_ns);

#endif
