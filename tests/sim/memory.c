/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: the bytes of the pool, as a client that maps it sees them. A row is 8 bytes: a stamp of
 * all that it depends on, told apart by layer and side. One thread.
 */
#include "tests/sim/sim.h"

static char *record(struct sim *w, uint32_t page)
{
	struct core_pool *p = sim_core_pool(w);

	sim_check(w, page < p->memory.pages, "page %u of %llu", page,
		  (unsigned long long)p->memory.pages);
	return (char *)p->memory.segment.memory + page * p->geometry.page_stride;
}

uint64_t row_stamp(uint64_t stamp, uint32_t layer, uint32_t side)
{
	return stamp ^ (layer * 2ull + side) * 0x0101010101010101ull;
}

static uint64_t *row(struct sim *w, uint32_t page, uint32_t slot, uint32_t layer, uint32_t side)
{
	const struct geometry_layer *l = &sim_core_pool(w)->geometry.layers[layer];

	return (uint64_t *)(void *)(record(w, page) + l->offset[side] +
				    slot * (uint64_t)l->row_bytes[side]);
}

void memory_write(struct sim *w, uint32_t page, uint32_t slot, uint64_t stamp)
{
	*row(w, page, slot, 0, 0) = row_stamp(stamp, 0, 0);
	*row(w, page, slot, 0, 1) = row_stamp(stamp, 0, 1);
	*row(w, page, slot, 1, 0) = row_stamp(stamp, 1, 0);
}

uint64_t memory_stamp(struct sim *w, uint32_t page, uint32_t slot)
{
	return *row(w, page, slot, 0, 0);
}

void memory_check_row(struct sim *w, uint32_t page, uint32_t slot, uint64_t stamp, const char *what)
{
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t layer = i / 2, side = i % 2;
		uint64_t found = *row(w, page, slot, layer, side);

		sim_check(w, found == row_stamp(stamp, layer, side),
			  "%s: layer %u, side %u, page %u, slot %u holds %016llx, not %016llx",
			  what, layer, side, page, slot, (unsigned long long)found,
			  (unsigned long long)row_stamp(stamp, layer, side));
	}
}

void memory_check_zero(struct sim *w, uint32_t page)
{
	const uint64_t *at = (const uint64_t *)(void *)record(w, page);

	for (uint64_t i = 0; i < sim_core_pool(w)->geometry.page_stride / sizeof(*at); i++)
		sim_check(w, at[i] == 0, "fresh page %u is not zero at byte %llu", page,
			  (unsigned long long)(i * sizeof(*at)));
}
