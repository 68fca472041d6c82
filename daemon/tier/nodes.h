/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_NODES_H
#define KVHOST_TIER_NODES_H

/*
 * nodes: on which NUMA nodes the memory of a mapping comes to lie. To be said before there is any;
 * of a memory file it holds for all who touch it. Any thread; system calls that do not wait.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NODES_INTERLEAVE (-1) /* over all NUMA nodes that have memory and processors */
#define NODES_ANYWHERE   (-2)

/* Is there such a node for this process? The first that is, in `there`, or -1. */
bool nodes_have(int node, int *there);

/* node: or NODES_*. 0, or -errno if it cannot be bound to its node. Whoever may not interleave has
 * memory all the same: *n nodes, or 0 and *refused, why. */
int nodes_place(void *memory, size_t bytes, int node, uint32_t *n, int *refused);

#endif
