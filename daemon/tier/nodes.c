/* SPDX-License-Identifier: Apache-2.0 */
/* nodes: see nodes.h. Any thread. */
#include "daemon/tier/nodes.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>

bool nodes_have(int node, int *there)
{
	struct bitmask *allowed;
	bool has;

	*there = 0;
	if (numa_available() < 0)
		return node == 0;
	allowed = numa_get_mems_allowed();
	*there = -1;
	for (unsigned int i = 0; i < allowed->size && *there < 0; i++) {
		if (numa_bitmask_isbitset(allowed, i))
			*there = (int)i;
	}
	has = node >= 0 && numa_bitmask_isbitset(allowed, (unsigned int)node);
	numa_bitmask_free(allowed);
	return has;
}

/* All that this process may use and that have processors: the memory of a device, or one that is
 * farther away than any other, is a node without. Returns how many. */
static uint32_t nodes_of_processors(struct bitmask *nodes)
{
	struct bitmask *allowed = numa_get_mems_allowed();
	struct bitmask *processors = numa_allocate_cpumask();
	uint32_t n = 0;

	for (unsigned int i = 0; i < allowed->size; i++) {
		if (!numa_bitmask_isbitset(allowed, i) ||
		    numa_node_to_cpus((int)i, processors) < 0 ||
		    numa_bitmask_weight(processors) == 0)
			continue;
		numa_bitmask_setbit(nodes, i);
		n++;
	}
	numa_bitmask_free(processors);
	numa_bitmask_free(allowed);
	return n;
}

static int bind_to(void *memory, size_t bytes, int mode, const struct bitmask *nodes)
{
	return mbind(memory, bytes, mode, nodes->maskp, nodes->size + 1, 0) < 0 ? -errno : 0;
}

int nodes_place(void *memory, size_t bytes, int node, uint32_t *n, int *refused)
{
	struct bitmask *nodes;
	int r = 0;

	*n = 0;
	*refused = 0;
	if (node == NODES_ANYWHERE || numa_available() < 0)
		return 0;
	nodes = numa_allocate_nodemask();
	if (node == NODES_INTERLEAVE) {
		uint32_t all = nodes_of_processors(nodes);

		if (all)
			*refused = bind_to(memory, bytes, MPOL_INTERLEAVE, nodes);
		*n = *refused ? 0 : all;
		/* Where there is one there is nothing to be missed. */
		if (all == 1)
			*refused = 0;
	} else {
		numa_bitmask_setbit(nodes, (unsigned int)node);
		r = bind_to(memory, bytes, MPOL_BIND, nodes);
	}
	numa_bitmask_free(nodes);
	return r;
}
