/* SPDX-License-Identifier: Apache-2.0 */
/* arena_part: see arena_part.h. Work thread. */
#include "daemon/tier/arena_part.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/tier/hugenote.h"

#define BACKING_BYTES 160 /* of the sentence on its pages */

static int lock_part(struct arena_memory *m, const struct arena_part *p, char why[ARENA_NOTE_BYTES])
{
	struct arena_limits limits;
	int r;

	if (m->backing == SEGMENT_HUGETLB) {
		/* Never paged out, and not counted; but whoever registers it with a device is held
		 * to the same limit, for all of it. */
		arena_limits_read("", p->use, &limits);
		return arena_limits_lock(&limits, p->beside_bytes + p->from + p->bytes, why);
	}
	r = arena_memory_lock(m, p->from, p->bytes);
	if (!r)
		return 0;
	arena_limits_read("", p->use, &limits);
	if (!arena_limits_lock(&limits, p->bytes, why))
		snprintf(why, ARENA_NOTE_BYTES,
			 "the kernel locks no more memory (%s): set LimitMEMLOCK=infinity and "
			 "AmbientCapabilities=CAP_IPC_LOCK in the unit",
			 strerror(-r));
	return -EPERM;
}

static void why_no_memory(const struct arena_memory *m, const struct arena_part *p, int r,
			  char why[ARENA_NOTE_BYTES])
{
	if (m->backing == SEGMENT_HUGETLB)
		snprintf(why, ARENA_NOTE_BYTES,
			 "no more huge pages (%s), by the limit of a control group (hugetlb.*.max) "
			 "or of a NUMA node: raise it and %s, or lower %s",
			 strerror(-r), p->use.again, p->use.key);
	else
		snprintf(why, ARENA_NOTE_BYTES,
			 "the kernel gives no more memory (%s): free some and %s, or lower %s",
			 strerror(-r), p->use.again, p->use.key);
}

static int bring(struct arena_memory *m, const struct arena_part *p, const _Atomic bool *cancelled,
		 char why[ARENA_NOTE_BYTES])
{
	struct arena_limits limits;
	int r = 0;

	/* Base pages that are not there are not refused: somebody is killed for them. */
	if (m->backing != SEGMENT_HUGETLB) {
		arena_limits_read("", p->use, &limits);
		r = arena_limits_memory(&limits, p->bytes, why);
	}
	if (!r && p->lock)
		r = lock_part(m, p, why);
	if (r)
		return r;
	r = arena_memory_populate(m, p->from, p->bytes, p->threads, cancelled);
	if (r && r != -ECANCELED)
		why_no_memory(m, p, r, why);
	return r;
}

int arena_part_bring(struct arena_memory *m, const struct arena_part *part,
		     const _Atomic bool *cancelled, char why[ARENA_NOTE_BYTES])
{
	int r = bring(m, part, cancelled, why);

	if (r)
		arena_memory_discard(m, part->from, part->bytes);
	return r;
}

void arena_part_note(const struct arena_memory *m, const struct arena_part *part,
		     uint64_t step_bytes, char note[ARENA_NOTE_BYTES])
{
	struct huge_pages host = hugenote_read();
	struct segment got = arena_memory_backing(m);
	char nodes[80] = "", backing[BACKING_BYTES];

	if (!arena_memory_fits(host.page_bytes, step_bytes, m->bytes))
		host.unfit = part->use.steps;
	hugenote_write(backing, sizeof(backing), &got, m->bytes, &host);
	if (m->nodes > 1)
		snprintf(nodes, sizeof(nodes), "interleaved over %" PRIu32 " NUMA nodes, ",
			 m->nodes);
	else if (m->refused)
		snprintf(nodes, sizeof(nodes), "not interleaved (mbind: %.40s), ",
			 strerror(-m->refused));
	else if (part->numa_node >= 0)
		snprintf(nodes, sizeof(nodes), "on NUMA node %d, ", part->numa_node);
	snprintf(note, ARENA_NOTE_BYTES, "%s%s%s", part->lock ? "locked, " : "not locked, ", nodes,
		 backing);
}
