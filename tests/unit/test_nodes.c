/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/tier/nodes.h, and of pools of the CPU device, whose memory lies where KV-RAM
 * does. A host of one node will do: what the kernel was asked for can be read back from it. Where
 * it knows no nodes the tests are skipped.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/nodes.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include "tests/unit/device_world.h"

#define MASK_WORDS 64
#define MIB        (1ull << 20)

/* Where memory at this address comes from, if that was said. */
static int policy_of(void *address, unsigned long mask[MASK_WORDS])
{
	int mode = -1;

	memset(mask, 0, MASK_WORDS * sizeof(*mask));
	assert_int_equal(
	    get_mempolicy(&mode, mask, MASK_WORDS * 8 * sizeof(*mask), address, MPOL_F_ADDR), 0);
	return mode;
}

static unsigned count_nodes(const unsigned long mask[MASK_WORDS])
{
	unsigned n = 0;

	for (int i = 0; i < MASK_WORDS; i++)
		n += (unsigned)__builtin_popcountl(mask[i]);
	return n;
}

static void expect_bound(void *address, int node)
{
	unsigned long mask[MASK_WORDS];
	int where = -1;

	assert_int_equal(policy_of(address, mask), MPOL_BIND);
	assert_int_equal(count_nodes(mask), 1);
	assert_true(mask[node / 64] >> node % 64 & 1);
	assert_int_equal(get_mempolicy(&where, NULL, 0, address, MPOL_F_NODE | MPOL_F_ADDR), 0);
	assert_int_equal(where, node);
}

static int first_node(void)
{
	int first = -1;

	assert_false(nodes_have(5000, &first));
	assert_false(nodes_have(NODES_INTERLEAVE, &first));
	assert_true(nodes_have(first, &first));
	return first;
}

static void skip_without_nodes(void)
{
	if (numa_available() < 0) {
		print_message("nodes: the kernel knows none\n");
		skip();
	}
}

/* ---- a mapping ---- */

static char *map_some(void)
{
	char *memory =
	    mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(memory != MAP_FAILED);
	return memory;
}

static void memory_is_bound_to_a_node_or_interleaved_over_all_or_anywhere(void **state)
{
	char *memory = map_some();
	unsigned long mask[MASK_WORDS];
	uint32_t n = 77;
	int refused = 77;

	(void)state;
	skip_without_nodes();
	assert_int_equal(nodes_place(memory, 4 * MIB, NODES_ANYWHERE, &n, &refused), 0);
	assert_int_equal(policy_of(memory, mask), MPOL_DEFAULT);
	assert_int_equal(n + (uint32_t)refused, 0);

	assert_int_equal(nodes_place(memory, 4 * MIB, NODES_INTERLEAVE, &n, &refused), 0);
	assert_int_equal(policy_of(memory, mask), MPOL_INTERLEAVE);
	assert_true(n > 0);
	assert_int_equal(count_nodes(mask), n);
	assert_int_equal(refused, 0);

	assert_int_equal(nodes_place(memory, 4 * MIB, first_node(), &n, &refused), 0);
	memory[0] = 1;
	expect_bound(memory, first_node());
	assert_int_equal(n, 0);
	assert_int_equal(munmap(memory, 4 * MIB), 0);
}

static void a_node_that_is_not_there_is_an_error(void **state)
{
	char *memory = map_some();
	uint32_t n;
	int refused;

	(void)state;
	skip_without_nodes();
	assert_true(nodes_place(memory, 4 * MIB, 1000, &n, &refused) < 0);
	/* Who may not interleave goes on without. */
	assert_int_equal(munmap(memory, 4 * MIB), 0);
	assert_int_equal(nodes_place(memory, 4 * MIB, NODES_INTERLEAVE, &n, &refused), 0);
	assert_int_equal(n, 0);
}

/* ---- pools ---- */

static void a_pool_lies_where_its_device_says(void **state)
{
	struct world *w = *state;
	unsigned long mask[MASK_WORDS];

	skip_without_nodes();
	assert_int_equal(w->device->numa_node, NODES_ANYWHERE);
	w->device->numa_node = first_node();
	w->memory.retained_bytes = MIB;
	w->memory.retained = SEGMENT_NONE;
	make_small(w, 600);
	expect_bound(page_of(w, 0), first_node());
	expect_bound(page_of(w, 599), first_node());
	expect_bound(w->memory.retained.memory, first_node());
	run(w, &(struct device_job){.op = DEVICE_FREE});

	w->device->numa_node = NODES_INTERLEAVE;
	make_small(w, 600);
	assert_int_equal(policy_of(page_of(w, 0), mask), MPOL_INTERLEAVE);
	assert_int_equal(policy_of(w->memory.retained.memory, mask), MPOL_INTERLEAVE);
	run(w, &(struct device_job){.op = DEVICE_FREE});

	w->device->numa_node = NODES_ANYWHERE;
	make_small(w, 600);
	assert_int_equal(policy_of(page_of(w, 0), mask), MPOL_DEFAULT);
}

static void a_pool_for_a_node_that_is_not_there_is_not_made(void **state)
{
	struct world *w = *state;

	skip_without_nodes();
	w->device->numa_node = 1000;
	compute_small(w);
	w->memory.pages = 16;
	assert_true(run(w, &(struct device_job){.op = DEVICE_MAKE}) < 0);
	assert_null(w->memory.segment.memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(memory_is_bound_to_a_node_or_interleaved_over_all_or_anywhere),
	    cmocka_unit_test(a_node_that_is_not_there_is_an_error),
	    TEST(a_pool_lies_where_its_device_says),
	    TEST(a_pool_for_a_node_that_is_not_there_is_not_made),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
