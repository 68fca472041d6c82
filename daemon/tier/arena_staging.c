/* SPDX-License-Identifier: Apache-2.0 */
/* arena_staging: see arena_staging.h. Core thread, but for arrive. */
#include "daemon/tier/arena_staging.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/tier/arena_limits.h"
#include "daemon/tier/arena_memory.h"
#include "daemon/tier/arena_part.h"

#define WINDOWS ((uint32_t)STAGING_DIRECTIONS * STAGING_WINDOWS)

struct staging_whole {
	struct staging staging; /* first: what others hold */
	struct job job;
	struct executor *work;
	struct arena_memory memory;
	struct arena_part part;
	uint64_t step_bytes;
	bool on_its_way, stopping;
	char note[ARENA_NOTE_BYTES]; /* of the job */
	void (*changed)(void *context);
	void *context;
};

static struct staging_whole *whole_of(const struct staging *s)
{
	return (struct staging_whole *)(uintptr_t)s;
}

static struct staging_whole *whole_of_job(struct job *job)
{
	return (struct staging_whole *)(void *)((char *)job - offsetof(struct staging_whole, job));
}

uint64_t staging_bytes(const struct staging_wish *wish)
{
	return wish->bytes / WINDOWS / FRAME_BYTES * FRAME_BYTES * WINDOWS;
}

static uint64_t step_of(const struct staging_wish *wish)
{
	uint64_t bytes = staging_bytes(wish);

	return bytes < STAGING_STEP_BYTES ? bytes : STAGING_STEP_BYTES;
}

/* Pages of the pool, if a window is of whole ones: else those that the kernel joins serve. */
static bool must_be_of_pool(const struct staging_wish *wish, uint64_t page_bytes)
{
	return wish->require_huge &&
	       arena_memory_fits(page_bytes, step_of(wish), staging_bytes(wish));
}

int staging_check(const struct staging_wish *wish, char why[ARENA_NOTE_BYTES])
{
	uint64_t bytes = staging_bytes(wish);
	struct arena_limits limits;
	char no_huge[ARENA_NOTE_BYTES];
	int r = 0;

	arena_limits_read("", ARENA_FOR_STAGING, &limits);
	if (wish->lock)
		r = arena_limits_lock(&limits, bytes, why);
	if (!r && must_be_of_pool(wish, limits.huge.page_bytes))
		return arena_limits_huge(&limits, bytes, why);
	/* Without huge pages base pages serve. */
	if (!r && (!arena_memory_fits(limits.huge.page_bytes, step_of(wish), bytes) ||
		   arena_limits_huge(&limits, bytes, no_huge)))
		r = arena_limits_memory(&limits, bytes, why);
	return r;
}

void staging_explain(const struct staging_wish *wish, int result, char why[ARENA_NOTE_BYTES])
{
	if (staging_check(wish, why))
		return;
	snprintf(why, ARENA_NOTE_BYTES,
		 "Staging wants %" PRIu64
		 " bytes in one file, and the kernel refuses it (%s): start "
		 "again, lower kv_staging_bytes, or raise what limits the address space, the "
		 "descriptors, the memory or the huge pages of the daemon",
		 staging_bytes(wish), strerror(-result));
}

static void arrive(struct job *job)
{
	struct staging_whole *w = whole_of_job(job);
	const struct arena_part *p = &w->part;

	job->result = arena_part_bring(&w->memory, p, &job->cancelled, w->note);
	if (job->result)
		arena_memory_discard(&w->memory, 0, p->from);
	else if (p->from + p->bytes == w->memory.bytes)
		arena_part_note(&w->memory, p, w->step_bytes, w->note);
}

static void submit(struct staging_whole *w, uint64_t from)
{
	uint64_t left = w->memory.bytes - from;

	w->part.from = from;
	w->part.bytes = left < w->step_bytes ? left : w->step_bytes;
	w->on_its_way = true;
	w->work->submit(w->work, &w->job);
}

static void arrived(struct job *job)
{
	struct staging_whole *w = whole_of_job(job);
	struct staging *s = &w->staging;
	uint64_t end = w->part.from + w->part.bytes;

	must(w->on_its_way && s->state == ARENA_ARRIVING);
	w->on_its_way = false;
	if (!job->result && end < s->bytes && !w->stopping) {
		submit(w, end);
		return;
	}
	s->result = !job->result && end < s->bytes ? -ECANCELED : job->result;
	s->state = s->result ? ARENA_PARTIAL : ARENA_WHOLE;
	snprintf(s->note, sizeof(s->note), "%s",
		 s->result && !w->note[0] ? strerror(-s->result) : w->note);
	if (!w->stopping)
		w->changed(w->context);
}

int staging_new(const struct staging_wish *wish, struct executor *work,
		void (*changed)(void *context), void *context, struct staging **out)
{
	struct arena_memory_wish memory = {
	    .name = "kvhost-staging",
	    .bytes = staging_bytes(wish),
	    .part_bytes = step_of(wish),
	    .pool = true,
	    .require_pool = must_be_of_pool(wish, segment_huge_page_bytes()),
	    .collapse = true,
	    .numa_node = wish->numa_node,
	};
	struct staging_whole *w;
	int r;

	must(work && changed && wish->threads > 0 && wish->threads <= ARENA_THREADS_MAX);
	if (wish->bytes < STAGING_LEAST || wish->bytes > STAGING_MOST)
		return -EINVAL;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	r = arena_memory_make(&memory, &w->memory);
	if (r) {
		free(w);
		return r;
	}
	w->staging = (struct staging){.bytes = memory.bytes,
				      .window_bytes = memory.bytes / WINDOWS,
				      .memory_fd = w->memory.fd};
	w->part = (struct arena_part){.threads = wish->threads,
				      .lock = wish->lock,
				      .numa_node = wish->numa_node,
				      .use = ARENA_FOR_STAGING};
	w->job = (struct job){.run = arrive, .done = arrived};
	w->changed = changed;
	w->context = context;
	w->work = work;
	w->step_bytes = step_of(wish);
	submit(w, 0);
	*out = &w->staging;
	return 0;
}

bool staging_stop(struct staging *s)
{
	struct staging_whole *w = whole_of(s);

	w->stopping = true;
	w->job.cancelled = true;
	return !w->on_its_way;
}

void staging_free(struct staging **s)
{
	struct staging_whole *w;

	if (!*s)
		return;
	w = whole_of(*s);
	must(!w->on_its_way);
	arena_memory_free(&w->memory);
	free(w);
	*s = NULL;
}

char *staging_window(const struct staging *s, enum staging_direction direction, uint32_t i)
{
	must(direction < STAGING_DIRECTIONS && i < STAGING_WINDOWS);
	if (s->state != ARENA_WHOLE)
		return NULL;
	return whole_of(s)->memory.memory + (direction * STAGING_WINDOWS + i) * s->window_bytes;
}
