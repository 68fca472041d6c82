/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_optimum: see bench_optimum.h. Main thread; nothing here blocks.
 *
 * A heap of blocks by their next use. A use puts the block in once more; an entry that no longer
 * tells the block's next use is passed over.
 */
#include "tools/bench_optimum.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT32_MAX

struct entry {
	uint64_t rank; /* next use << 32 | depth: the highest goes first */
	uint32_t block;
};

struct optimum {
	uint32_t *block; /* of each place of the trace: blocks are counted from 0 */
	uint32_t *next;  /* request of the next use of that block */
	uint64_t *rank;  /* of a block that is kept; 0: it is not */
	struct entry *heap;
	size_t n;
	uint64_t kept;
};

static void heap_push(struct optimum *o, struct entry e)
{
	size_t at = o->n++;

	for (; at > 0 && o->heap[(at - 1) / 2].rank < e.rank; at = (at - 1) / 2)
		o->heap[at] = o->heap[(at - 1) / 2];
	o->heap[at] = e;
}

static struct entry heap_pop(struct optimum *o)
{
	struct entry top = o->heap[0], last = o->heap[--o->n];
	size_t at = 0;

	for (;;) {
		size_t child = 2 * at + 1;

		if (child >= o->n)
			break;
		if (child + 1 < o->n && o->heap[child + 1].rank > o->heap[child].rank)
			child++;
		if (o->heap[child].rank <= last.rank)
			break;
		o->heap[at] = o->heap[child];
		at = child;
	}
	o->heap[at] = last;
	return top;
}

static int compare_places(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Blocks get numbers in the order of their ids, and each place its next use. */
static int number_blocks(const struct trace *t, struct optimum *o)
{
	uint64_t *places = malloc(t->n_ids * sizeof(*places)); /* id << 32 | place */
	uint32_t *request_of = malloc(t->n_ids * sizeof(*request_of));
	uint32_t block = 0;

	if (!places || !request_of) {
		free(places);
		free(request_of);
		return -1;
	}
	for (size_t r = 0; r < t->n_requests; r++) {
		for (uint32_t i = 0; i < t->requests[r].n_ids; i++)
			request_of[t->requests[r].first_id + i] = (uint32_t)r;
	}
	for (size_t i = 0; i < t->n_ids; i++)
		places[i] = (uint64_t)t->ids[i] << 32 | i;
	qsort(places, t->n_ids, sizeof(*places), compare_places);
	for (size_t i = 0; i < t->n_ids; i++) {
		uint32_t place = (uint32_t)places[i];
		bool same = i + 1 < t->n_ids && places[i] >> 32 == places[i + 1] >> 32;

		o->block[place] = block;
		o->next[place] = same ? request_of[(uint32_t)places[i + 1]] : NEVER;
		block += !same;
	}
	free(places);
	free(request_of);
	return 0;
}

static uint64_t run(const struct trace *t, struct optimum *o, uint64_t blocks)
{
	uint64_t hits = 0;

	for (size_t r = 0; r < t->n_requests; r++) {
		const struct trace_request *one = &t->requests[r];
		uint32_t n = 0;

		while (n < one->n_ids && o->rank[o->block[one->first_id + n]])
			n++;
		hits += n;
		for (uint32_t i = 0; i < one->n_ids; i++) {
			uint64_t place = one->first_id + i;
			uint32_t block = o->block[place];
			uint64_t rank = (uint64_t)o->next[place] << 32 | (i + 1);

			o->kept += o->rank[block] == 0;
			o->rank[block] = rank;
			heap_push(o, (struct entry){.rank = rank, .block = block});
		}
		while (o->kept > blocks) {
			struct entry e = heap_pop(o);

			if (o->rank[e.block] != e.rank)
				continue;
			o->rank[e.block] = 0;
			o->kept--;
		}
	}
	return hits;
}

int trace_optimum(const struct trace *t, uint64_t blocks, uint64_t *hits, struct bench_reason *why)
{
	struct optimum o = {
	    .block = malloc(t->n_ids * sizeof(*o.block)),
	    .next = malloc(t->n_ids * sizeof(*o.next)),
	    .rank = calloc(t->distinct, sizeof(*o.rank)),
	    .heap = malloc(t->n_ids * sizeof(*o.heap)),
	};
	int r = 0;

	if (!o.block || !o.next || !o.rank || !o.heap || t->n_ids > UINT32_MAX ||
	    number_blocks(t, &o))
		r = bench_reason_set(why, "no memory");
	else
		*hits = run(t, &o, blocks);
	free(o.block);
	free(o.next);
	free(o.rank);
	free(o.heap);
	return r;
}
