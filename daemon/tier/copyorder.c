/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copyorder: a copy may run when nobody needs to read its target any more. Copies that wait for
 * each other in a circle are what is left at the end. Runs on a device's thread, does not block.
 */

#include "daemon/tier/copyorder.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"

#define NONE UINT32_MAX

/* From a page to the copy whose target it is: open addressing, at most half full. */
struct target_table {
	const struct device_copy *copies;
	uint32_t *place; /* [1 << bits] */
	unsigned int bits;
};

static uint32_t table_find(const struct target_table *t, uint32_t page)
{
	uint32_t mask = (uint32_t)((UINT64_C(1) << t->bits) - 1);
	uint32_t at = (uint32_t)((page * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - t->bits));

	while (t->place[at] != NONE && t->copies[t->place[at]].to != page)
		at = (at + 1) & mask;
	return at;
}

static int table_make(struct target_table *t, const struct device_copy *copies, uint32_t n)
{
	must(n <= UINT32_MAX / 4);
	t->copies = copies;
	t->bits = 2;
	while ((UINT64_C(1) << t->bits) < (uint64_t)n * 2)
		t->bits++;
	t->place = malloc(sizeof(*t->place) << t->bits);
	if (!t->place)
		return -ENOMEM;
	for (uint64_t i = 0; i < UINT64_C(1) << t->bits; i++)
		t->place[i] = NONE;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = table_find(t, copies[i].to);

		must(t->place[at] == NONE); /* no page is the target of two */
		t->place[at] = i;
	}
	return 0;
}

/* readers[i]: how many copies not yet ordered read the target of copy i. */
static void order_straight(struct copyorder *o, uint32_t *readers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (o->feeder[i] != NONE)
			readers[o->feeder[i]]++;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (readers[i] == 0)
			o->straight[o->n_straight++] = i;
	}
	/* The list is also the queue: each copy may set free the one that feeds it. */
	for (uint32_t done = 0; done < o->n_straight; done++) {
		uint32_t feeder = o->feeder[o->straight[done]];

		if (feeder != NONE && --readers[feeder] == 0)
			o->straight[o->n_straight++] = feeder;
	}
}

static void find_cycles(struct copyorder *o, uint32_t *readers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (readers[i] == 0)
			continue;
		o->cycle[o->n_cycles++] = i;
		for (uint32_t at = i; readers[at]; at = o->feeder[at]) {
			must(readers[at] == 1);
			readers[at] = 0;
		}
	}
}

int copyorder_make(const struct device_copy *copies, uint32_t n, struct copyorder *out)
{
	struct target_table table;
	struct copyorder o = {0};
	uint32_t *scratch;

	must(n > 0);
	/* Four arrays in one block: straight, cycle, feeder, and the counts of readers. */
	scratch = calloc((size_t)n * 4, sizeof(*scratch));
	if (!scratch)
		return -ENOMEM;
	if (table_make(&table, copies, n)) {
		free(scratch);
		return -ENOMEM;
	}
	o.straight = scratch;
	o.cycle = scratch + n;
	o.feeder = scratch + (size_t)n * 2;
	for (uint32_t i = 0; i < n; i++)
		o.feeder[i] = table.place[table_find(&table, copies[i].from)];
	free(table.place);

	order_straight(&o, scratch + (size_t)n * 3, n);
	find_cycles(&o, scratch + (size_t)n * 3, n);
	must(o.n_straight + o.n_cycles <= n);
	*out = o;
	return 0;
}

void copyorder_free(struct copyorder *o)
{
	if (!o)
		return;
	free(o->straight);
	*o = (struct copyorder){0};
}
