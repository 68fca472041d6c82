/* SPDX-License-Identifier: Apache-2.0 */

/*
 * arena: see arena.h. The core thread owns it; what the functions *_run do happens on the thread of
 * the executor, which may block, and touches only its job and the memory files, which the core
 * leaves alone while a job of theirs is on its way.
 */

#include "daemon/tier/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/tier/arena_limits.h"
#include "daemon/tier/arena_memory.h"
#include "daemon/tier/arena_part.h"
#include "daemon/tier/record.h"

#define OBJECT_BYTES_GUESS (64u << 10) /* the smallest pages that are of use */
#define OBJECTS_LEAST      1024u

struct arena_job { /* at most one of each kind is on its way */
	struct job job;
	struct arena_whole *whole;
	bool on_its_way;
	uint64_t from, bytes;
	char note[ARENA_NOTE_BYTES]; /* made by run */
	char why[ARENA_NOTE_BYTES];  /* by run, if it failed */
};

struct arena_whole {
	struct arena arena; /* first: what others hold */
	struct arena_memory memory, headers;
	struct arena_job chunk, ahead;
	struct executor *work;
	void (*changed)(void *context);
	void *context;
	uint64_t chunk_bytes, beside_bytes;
	uint32_t threads;
	int numa_node;
	bool lock, lock_headers;
	bool stopping;
	bool headers_refused; /* no more of them ahead */
};

static struct arena_whole *whole_of(struct arena *a)
{
	return (struct arena_whole *)(void *)a;
}

static struct arena_job *job_of(struct job *job)
{
	return (struct arena_job *)(void *)job;
}

static void submit(struct arena_job *j, uint64_t from, uint64_t bytes)
{
	must(!j->on_its_way && !j->whole->stopping && bytes > 0);
	j->on_its_way = true;
	j->from = from;
	j->bytes = bytes;
	j->why[0] = 0;
	j->job.result = 0;
	j->whole->work->submit(j->whole->work, &j->job);
}

/* ---- chunks ---- */

static void chunk_run(struct job *job)
{
	struct arena_job *c = job_of(job);
	struct arena_whole *w = c->whole;
	const struct arena_part part = {.from = c->from,
					.bytes = c->bytes,
					.threads = w->threads,
					.lock = w->lock,
					.numa_node = w->numa_node,
					.use = ARENA_FOR_RAM,
					.beside_bytes = w->beside_bytes};

	job->result = arena_part_bring(&w->memory, &part, &job->cancelled, c->why);
	if (!job->result)
		arena_part_note(&w->memory, &part, w->chunk_bytes, c->note);
}

static void become_partial(struct arena_whole *w, int result, const char *why)
{
	struct arena *a = &w->arena;
	int n =
	    snprintf(a->note, sizeof(a->note),
		     "%" PRIu64 " of %" PRIu64 " bytes are there: ", a->arrived_bytes, a->bytes);

	must(a->state == ARENA_ARRIVING && result < 0);
	must(n > 0 && (size_t)n < sizeof(a->note));
	a->state = ARENA_PARTIAL;
	a->promised_bytes = 0;
	a->result = result;
	snprintf(a->note + n, sizeof(a->note) - (size_t)n, "%s", why);
}

static void ask_chunk(struct arena_whole *w)
{
	uint64_t left = w->arena.bytes - w->arena.arrived_bytes;
	uint64_t bytes = left < w->chunk_bytes ? left : w->chunk_bytes;

	w->arena.promised_bytes = w->arena.set_aside ? 0 : left - bytes;
	submit(&w->chunk, w->arena.arrived_bytes, bytes);
}

static void chunk_arrived(struct arena_whole *w)
{
	struct arena *a = &w->arena;

	must(w->chunk.from == a->arrived_bytes);
	a->arrived_bytes += w->chunk.bytes;
	a->page_bytes = arena_memory_backing(&w->memory).page_bytes;
	frames_arrived(a->frames, (uint32_t)(w->chunk.bytes / FRAME_BYTES));
	memcpy(a->note, w->chunk.note, sizeof(a->note));
	if (a->arrived_bytes == a->bytes)
		a->state = ARENA_WHOLE;
	else if (!w->stopping)
		ask_chunk(w);
}

static void chunk_done(struct job *job)
{
	struct arena_job *c = job_of(job);
	struct arena_whole *w = c->whole;

	must(c->on_its_way && w->arena.state == ARENA_ARRIVING);
	c->on_its_way = false;
	if (job->result == 0)
		chunk_arrived(w);
	else if (!w->stopping)
		become_partial(w, job->result, c->why[0] ? c->why : strerror(-job->result));

	if (!w->stopping)
		w->changed(w->context);
	else if (w->arena.state == ARENA_ARRIVING)
		become_partial(w, -ECANCELED, "stopped while it arrived");
}

/* ---- headers ---- */

static void ahead_run(struct job *job)
{
	struct arena_job *h = job_of(job);
	struct arena_whole *w = h->whole;

	if (w->lock_headers)
		(void)arena_memory_lock(&w->headers, h->from, h->bytes);
	job->result = arena_memory_populate(&w->headers, h->from, h->bytes, 1, &job->cancelled);
}

static void ahead_done(struct job *job)
{
	struct arena_job *h = job_of(job);
	struct arena_whole *w = h->whole;

	must(h->on_its_way);
	h->on_its_way = false;
	if (job->result)
		w->headers_refused = true;
	else
		w->arena.headers_ready += (uint32_t)(h->bytes / RECORD_BYTES);
}

static void ask_headers(struct arena_whole *w)
{
	const struct arena *a = &w->arena;
	uint64_t left = a->most_objects - a->headers_ready;
	uint64_t n = left < ARENA_HEADERS_AHEAD ? left : ARENA_HEADERS_AHEAD;

	if (n > 0 && !w->ahead.on_its_way && !w->stopping && !w->headers_refused)
		submit(&w->ahead, (uint64_t)a->headers_ready * RECORD_BYTES, n * RECORD_BYTES);
}

void *arena_header(struct arena *a, uint32_t object)
{
	must(object < a->most_objects);
	if ((uint64_t)object + ARENA_HEADERS_AHEAD / 2 >= a->headers_ready)
		ask_headers(whole_of(a));
	return a->headers + (uint64_t)object * RECORD_BYTES;
}

/* ---- making and freeing ---- */

int arena_check(const struct arena_wish *wish, char why[ARENA_NOTE_BYTES])
{
	struct arena_limits limits;
	int there;

	if (arena_bytes_of(wish) == 0) {
		snprintf(why, ARENA_NOTE_BYTES,
			 "of kv_ram_bytes %" PRIu64 " are left for pages, which is less than one "
			 "frame of %llu: raise it, or set it to 0 for none",
			 wish->bytes, FRAME_BYTES);
		return -EINVAL;
	}
	if (wish->numa_node >= 0 && !nodes_have(wish->numa_node, &there)) {
		snprintf(why, ARENA_NOTE_BYTES,
			 "KV-RAM is to lie on NUMA node %d, which this process does not have: "
			 "the first that it has is %d",
			 wish->numa_node, there);
		return -EINVAL;
	}
	arena_limits_read("", ARENA_FOR_RAM, &limits);
	arena_limits_promise(&limits, wish->beside_bytes, wish->lock);
	return arena_limits_allow(&limits, wish, why);
}

void arena_explain(const struct arena_wish *wish, int result, char why[ARENA_NOTE_BYTES])
{
	uint64_t bytes = arena_bytes_of(wish);
	struct arena_wish alone = *wish;

	/* What stands beside it has been taken by now. */
	alone.beside_bytes = 0;
	if (arena_check(&alone, why))
		return;
	if (result == -ENOMEM && wish->require_huge)
		snprintf(why, ARENA_NOTE_BYTES,
			 "KV-RAM wants %" PRIu64 " bytes of huge pages, which were free and cannot "
			 "be had: others take them, or the limit of a control group "
			 "(hugetlb.*.max) or of a NUMA node is lower: start again, raise it, or "
			 "lower kv_ram_bytes",
			 bytes);
	else
		snprintf(why, ARENA_NOTE_BYTES,
			 "KV-RAM wants %" PRIu64 " bytes in one file, and the kernel refuses it "
			 "(%s): lower kv_ram_bytes, or raise what limits the address space, the "
			 "descriptors or the memory of the daemon",
			 bytes, strerror(-result));
}

static int make_memory(struct arena_whole *w, const struct arena_wish *wish)
{
	struct arena_memory_wish memory = {
	    .name = "kvhost-ram",
	    .bytes = w->arena.bytes,
	    .part_bytes = wish->chunk_bytes,
	    .pool = true,
	    .require_pool = wish->require_huge,
	    .collapse = true,
	    .numa_node = wish->numa_node,
	};
	struct arena_memory_wish headers = {
	    .name = "kvhost-headers",
	    .bytes = (uint64_t)w->arena.most_objects * RECORD_BYTES,
	    .part_bytes = ARENA_HEADERS_AHEAD * RECORD_BYTES,
	    .numa_node = NODES_ANYWHERE,
	};
	int r = arena_memory_make(&memory, &w->memory);

	if (!r)
		r = arena_memory_make(&headers, &w->headers);
	if (r)
		return r;
	w->arena.memory = w->memory.memory;
	w->arena.memory_fd = w->memory.fd;
	w->arena.page_bytes = w->memory.page_bytes;
	w->arena.set_aside = w->memory.backing == SEGMENT_HUGETLB;
	w->arena.headers = w->headers.memory;
	w->arena.headers_fd = w->headers.fd;
	return 0;
}

static uint32_t objects_of(const struct arena_wish *wish)
{
	uint64_t n = wish->most_objects ? wish->most_objects : wish->bytes / OBJECT_BYTES_GUESS;

	if (!wish->most_objects && n < OBJECTS_LEAST)
		n = OBJECTS_LEAST;
	return n < OBJECTS_MAX ? (uint32_t)n : OBJECTS_MAX;
}

static void prepare(struct arena_whole *w, const struct arena_wish *wish)
{
	struct arena_limits limits;

	arena_limits_read("", ARENA_FOR_RAM, &limits);
	w->memory = w->headers = ARENA_MEMORY_NONE;
	w->arena.memory_fd = w->arena.headers_fd = -1;
	w->arena.bytes = arena_bytes_of(wish);
	w->arena.most_objects = objects_of(wish);
	w->chunk = (struct arena_job){.whole = w, .job = {.run = chunk_run, .done = chunk_done}};
	w->ahead = (struct arena_job){.whole = w, .job = {.run = ahead_run, .done = ahead_done}};
	w->chunk_bytes = wish->chunk_bytes;
	w->beside_bytes = wish->beside_bytes;
	w->threads = wish->threads;
	w->numa_node = wish->numa_node;
	w->lock = wish->lock;
	/* What the limit leaves is for the arena, to the last byte. */
	w->lock_headers = wish->lock && limits.lock_limit_bytes == ARENA_UNLIMITED;
}

int arena_new(const struct arena_wish *wish, struct executor *work, void (*changed)(void *context),
	      void *context, struct arena **out)
{
	uint64_t n_frames = wish->bytes / FRAME_BYTES;
	struct arena_whole *w;
	struct arena *a;
	int r;

	must(work && changed && wish->threads > 0 && wish->threads <= ARENA_THREADS_MAX);
	must(wish->chunk_bytes > 0 && wish->chunk_bytes % FRAME_BYTES == 0 &&
	     wish->chunk_bytes <= ARENA_CHUNK_MAX);
	if (n_frames == 0 || n_frames > FRAMES_MAX)
		return -EINVAL;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	a = &w->arena;
	prepare(w, wish);
	w->work = work;
	w->changed = changed;
	w->context = context;

	r = frames_new((uint32_t)n_frames, (uint32_t)(wish->chunk_bytes / FRAME_BYTES),
		       a->most_objects, &a->frames);
	if (!r)
		r = make_memory(w, wish);
	if (r) {
		arena_free(&a);
		return r;
	}
	/* Headers first: who hears of the first chunk may use them. */
	ask_headers(w);
	ask_chunk(w);
	*out = a;
	return 0;
}

bool arena_stop(struct arena *a)
{
	struct arena_whole *w = whole_of(a);

	w->stopping = true;
	w->chunk.job.cancelled = true;
	w->ahead.job.cancelled = true;
	must(w->chunk.on_its_way || a->state != ARENA_ARRIVING);
	return !w->chunk.on_its_way && !w->ahead.on_its_way;
}

void arena_free(struct arena **a)
{
	struct arena_whole *w;

	if (!*a)
		return;
	w = whole_of(*a);
	must(!w->chunk.on_its_way && !w->ahead.on_its_way);
	frames_free(&(*a)->frames);
	arena_memory_free(&w->memory);
	arena_memory_free(&w->headers);
	free(w);
	*a = NULL;
}
