/* SPDX-License-Identifier: Apache-2.0 */
/* ram_room: how much of KV-RAM live sequences may be promised, and take; see ram.h. Core thread;
 * nothing here blocks. */
#include "daemon/tier/ram_internal.h"

static uint64_t left(uint64_t all, uint64_t taken)
{
	return all > taken ? all - taken : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* That live sequences have here. */
static uint64_t live_pages(const struct pool *p)
{
	return p->in_ram_private + p->parked_in_ram;
}

struct promised { /* of KV-RAM, to live sequences */
	uint64_t pages, bytes;
};

static struct promised promised_to_others(const struct ram_pool *rp)
{
	struct promised sum = {0};

	list_for_each(link, following, &rp->ram->pools)
	{
		const struct ram_pool *other = list_entry(link, struct ram_pool, in_ram);
		const struct pool *p = other->pool;
		uint64_t pages = left(pool_promised(p), p->limits.pages);

		if (other == rp)
			continue;
		if (p->limits.overcommit)
			pages = least(pages, live_pages(p));
		sum.pages += pages;
		sum.bytes += pages * ram_object_bytes(other);
	}
	return sum;
}

/* Slabs waste up to 6 %; a window of what moves is kept free, an eighth at most: through it pages
 * change places when both tiers are full of what was promised. */
static uint64_t left_by_others(const struct ram_pool *rp)
{
	const struct arena *a = rp->ram->arena;
	struct promised others = promised_to_others(rp);
	uint64_t bytes = a->arrived_bytes - a->arrived_bytes / 16;
	uint64_t window = RAM_JOBS * (RAM_JOB_BYTES + rp->page_bytes);
	uint64_t objects = least(RAM_JOBS * RAM_JOB_MOVES, a->most_objects / 8);

	bytes = left(bytes, others.bytes + least(window, bytes / 8));
	objects = left(a->most_objects, others.pages + (objects ? objects : 1));
	return least(bytes / ram_object_bytes(rp), objects);
}

uint64_t ram_room(void *context)
{
	return left_by_others(context);
}

bool ram_may_take_live(const struct ram_pool *rp, uint64_t more)
{
	const struct pool *p = rp->pool;

	return !p->limits.overcommit || live_pages(p) + more <= left_by_others(rp);
}
