/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_memory: MAKE and FREE of pools in host memory. A large pool takes seconds to make, so it
 * comes in steps: each is a job of its own, between which the executor serves others, and no job is
 * long enough to be taken for one that hangs. Steps run on the executor's thread and may block; in
 * between the core thread submits the next.
 */

#include "daemon/tier/device_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/tier/arena_limits.h"
#include "daemon/tier/arena_memory.h"
#include "daemon/tier/arena_part.h"
#include "daemon/tier/hugenote.h"

#define STEP_BYTES  (256ull << 20) /* at most a job, of pages that are not larger */
#define KERNEL_PART 192            /* bytes of base pages to one that the kernel keeps of them */

struct device_part { /* memory file of its own */
	struct arena_memory memory;
	uint64_t arrived;
};

struct device_backing {
	struct device_part pool, retained;
	bool no_pool; /* huge pages that are set aside did not arrive, although there were some */
	bool small;   /* neither they nor made ones are tried */
};

struct wish { /* for one of the two */
	const char *name, *with;
	struct arena_use use; /* for the sentence */
	uint64_t bytes;
	uint64_t beside_bytes; /* that must be there too: index, slots */
	uint64_t promised_bytes;
};

static uint64_t rounded_up(uint64_t bytes, uint64_t page)
{
	return (bytes + page - 1) / page * page;
}

/* ---- the file ---- */

/* Base pages that are not there are not refused: somebody is killed for them. */
static int ask_host(struct device_job *j, const struct wish *wish,
		    const struct arena_memory *memory)
{
	struct arena_limits limits;
	struct memory_claim claim = {
	    .bytes = memory->bytes + wish->beside_bytes,
	    .with = wish->with,
	    .promised_bytes = wish->promised_bytes,
	    .promised_to = j->promised_to,
	};

	if (memory->backing == SEGMENT_SMALL)
		claim.bytes += memory->bytes / KERNEL_PART;
	arena_limits_read("", wish->use, &limits);
	if (failpoint(pool_starved))
		limits.memory_bytes = 0;
	return arena_limits_claim(&limits, &claim, j->memory->refusal, sizeof(j->memory->refusal));
}

static int make_file(struct device_job *j, const struct wish *wish, struct arena_memory *out)
{
	uint64_t huge = segment_huge_page_bytes(), collapsed = segment_collapsed_page_bytes();
	const struct device_backing *b = j->memory->backing;
	struct arena_memory_wish memory = {.name = wish->name, .numa_node = j->memory->numa_node};
	int r;

	if (!b->small && huge && !b->no_pool) {
		memory.bytes = rounded_up(wish->bytes, huge);
		memory.part_bytes = huge > STEP_BYTES ? huge : STEP_BYTES;
		memory.require_pool = true;
		if (arena_memory_make(&memory, out) == 0)
			return 0;
		memory.require_pool = false;
	}
	if (collapsed > STEP_BYTES)
		collapsed = 0;
	memory.collapse = !b->small && collapsed;
	memory.bytes = memory.collapse ? rounded_up(wish->bytes, collapsed) : wish->bytes;
	memory.part_bytes = STEP_BYTES;
	r = arena_memory_make(&memory, out);
	if (!r && j->require_huge && out->backing == SEGMENT_SMALL)
		r = -ENOMEM;
	return r ? r : ask_host(j, wish, out);
}

/* ---- its memory ---- */

static int bring(struct device_job *j, const struct wish *wish, struct device_part *p,
		 uint64_t *budget)
{
	uint64_t least = p->memory.page_bytes > STEP_BYTES ? p->memory.page_bytes : 0;
	char why[ARENA_NOTE_BYTES] = "";
	int r = 0;

	while (!r && *budget && p->arrived < p->memory.bytes) {
		uint64_t left = p->memory.bytes - p->arrived, n = least ? least : *budget;
		struct arena_part part = {.from = p->arrived,
					  .bytes = n < left ? n : left,
					  .threads = arena_memory_threads(),
					  .use = wish->use};

		r = arena_part_bring(&p->memory, &part, &j->job.cancelled, why);
		if (!r && j->require_huge &&
		    arena_memory_backing(&p->memory).backing == SEGMENT_SMALL)
			r = -ENOMEM;
		p->arrived += part.bytes;
		*budget -= part.bytes < *budget ? part.bytes : *budget;
	}
	if (r && why[0])
		snprintf(j->memory->refusal, sizeof(j->memory->refusal), "%s", why);
	return r;
}

static void note(struct device_memory *m, const struct segment *got, uint64_t bytes)
{
	struct huge_pages host = hugenote_read();

	hugenote_write(m->huge_note, sizeof(m->huge_note), got, bytes, &host);
}

static int make_part(struct device_job *j, const struct wish *wish, struct device_part *p,
		     uint64_t *budget)
{
	struct device_backing *b = j->memory->backing;
	int r = p->memory.memory ? 0 : make_file(j, wish, &p->memory);

	if (r)
		return r;
	r = bring(j, wish, p, budget);
	if (!r || r == -ECANCELED || p->memory.backing != SEGMENT_HUGETLB)
		return r;
	/* Other pages serve as well. */
	b->no_pool = true;
	arena_memory_free(&p->memory);
	p->arrived = 0;
	j->memory->refusal[0] = 0;
	r = make_file(j, wish, &p->memory);
	return r ? r : bring(j, wish, p, budget);
}

static struct segment view_of(const struct arena_memory *memory)
{
	struct segment s = arena_memory_backing(memory);

	s.memory = memory->memory;
	s.bytes = memory->bytes;
	s.fd = memory->fd;
	return s;
}

/* ---- steps ---- */

static int begin(struct device_memory *m, uint64_t *bytes)
{
	must(m->geometry && m->geometry->page_stride > 0);
	must(m->pages > 0);
	must(!m->segment.memory);

	if (__builtin_mul_overflow(m->pages, m->geometry->page_stride, bytes) ||
	    __builtin_add_overflow(*bytes, m->slot_bytes, bytes) || *bytes > INT64_MAX / 2) {
		snprintf(m->huge_note, sizeof(m->huge_note), "no memory: more than there can be");
		return -ENOMEM;
	}
	if (m->backing)
		return 0;
	m->backing = calloc(1, sizeof(*m->backing));
	if (!m->backing)
		return -ENOMEM;
	m->backing->pool.memory = m->backing->retained.memory = ARENA_MEMORY_NONE;
	m->backing->small = failpoint(pool_huge);
	return 0;
}

static bool is_whole(const struct device_part *p)
{
	return p->memory.memory && p->arrived == p->memory.bytes;
}

static int make_step(struct device_job *j, uint64_t pool_bytes)
{
	struct device_memory *m = j->memory;
	struct device_backing *b = m->backing;
	/* All of it is asked for before the first part comes: later KV-RAM may have had its own. */
	struct wish pool = {
	    .name = "kvhost-pool",
	    .with = m->retained_bytes ? " with its retained slots and index" : " with its index",
	    .use = ARENA_FOR_POOL,
	    .bytes = pool_bytes,
	    .beside_bytes = j->index_bytes + m->retained_bytes,
	    .promised_bytes = j->promised_bytes,
	};
	struct wish retained = {
	    .name = "kvhost-retained",
	    .with = " for retained slots and its index",
	    .use = ARENA_FOR_RETAINED,
	    .bytes = m->retained_bytes,
	    .beside_bytes = j->index_bytes,
	};
	uint64_t budget = STEP_BYTES;
	int r = make_part(j, &pool, &b->pool, &budget);

	if (r || !is_whole(&b->pool))
		return r;
	if (m->retained_bytes)
		r = make_part(j, &retained, &b->retained, &budget);
	if (r || (m->retained_bytes && !is_whole(&b->retained)))
		return r;
	m->segment = view_of(&b->pool.memory);
	if (m->retained_bytes)
		m->retained = view_of(&b->retained.memory);
	note(m, &m->segment, pool_bytes);
	return 0;
}

int device_memory_make(struct device_job *j)
{
	uint64_t bytes;
	int r = begin(j->memory, &bytes);

	if (r)
		return r;
	r = make_step(j, bytes);
	if (!r)
		return 0;
	note(j->memory, NULL, bytes);
	device_memory_free(j->memory);
	return r;
}

void device_memory_free(struct device_memory *m)
{
	if (m->backing) {
		arena_memory_free(&m->backing->pool.memory);
		arena_memory_free(&m->backing->retained.memory);
	}
	free(m->backing);
	m->backing = NULL;
	m->segment = SEGMENT_NONE;
	m->retained = SEGMENT_NONE;
}

/* Who asks for memory now has his job behind the step that is on its way. */
static uint64_t still_to_come(const struct device_job *j)
{
	const struct device_memory *m = j->memory;
	const struct device_backing *b = m->backing;
	uint64_t bytes = m->pages * m->geometry->page_stride + m->slot_bytes + m->retained_bytes +
			 j->index_bytes;
	uint64_t come = STEP_BYTES;

	if (b && b->pool.memory.backing == SEGMENT_HUGETLB)
		return 0;
	if (b)
		come += b->pool.arrived + b->retained.arrived;
	return bytes > come ? bytes - come : 0;
}

/* On the core thread: the next step, or the end. */
static void step_done(struct job *job)
{
	struct device_job *j = (struct device_job *)(void *)job;
	struct device_memory *m = j->memory;

	if (job->result == 0 && !m->segment.memory) {
		m->promised_bytes = still_to_come(j);
		j->steps->submit(j->steps, job);
		return;
	}
	m->promised_bytes = 0;
	/* A step that never ran leaves what came before it. */
	if (job->result && m->backing)
		device_memory_free(m);
	job->done = j->made;
	job->done(job);
}

void device_memory_submit(struct executor *work, struct device_job *j)
{
	j->made = j->job.done;
	j->job.done = step_done;
	j->steps = work;
	j->memory->promised_bytes = still_to_come(j);
	work->submit(work, &j->job);
}
