/* SPDX-License-Identifier: Apache-2.0 */

/*
 * arena_memory: see arena_memory.h.
 *
 * The memory of a part is fetched with MADV_POPULATE_WRITE, for huge pages too: it says what would
 * be SIGBUS as an error, and several threads do it at once, where fallocate holds a lock of the
 * file. Each call is for a small range only: while it runs, nobody else in the process can map or
 * unmap anything, which the core thread's malloc may want to do.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/arena_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/base/thread.h"
#include "daemon/tier/arena.h"
#include "daemon/tier/nodes.h"

/* Kernel interfaces that are younger than the C library's headers may be. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define STEP_BYTES     FRAME_BYTES   /* fetched by one call */
#define PIECE_BYTES    (32ull << 20) /* taken by a thread at a time; collapsed by one call */
#define COLLAPSE_TRIES 3             /* it fails with EAGAIN while the kernel holds a page */

struct populate { /* of one part, by several threads */
	struct arena_memory *m;
	uint64_t from, bytes, piece_bytes;
	const _Atomic bool *cancelled;
	_Atomic uint64_t next; /* offset of the next piece in the part */
	_Atomic int result;
};

/* ---- making ---- */

/* What cannot be mapped there leaves a hole, in which others' memory may lie by now. */
static int give_up_place(struct arena_memory *m, char *hole, int error)
{
	char *end = (char *)m->place + m->place_bytes;

	if (hole > (char *)m->place)
		(void)munmap(m->place, (size_t)(hole - (char *)m->place));
	(void)munmap(hole + m->bytes, (size_t)(end - (hole + m->bytes)));
	m->place = NULL;
	return -error;
}

static int map_in_place(struct arena_memory *m)
{
	uint64_t align = m->page_bytes > FRAME_BYTES ? m->page_bytes : FRAME_BYTES;
	uintptr_t aligned;

	m->place_bytes = m->bytes + align + FRAME_BYTES;
	m->place = mmap(NULL, m->place_bytes, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m->place == MAP_FAILED) {
		m->place = NULL;
		return -errno;
	}
	aligned = ((uintptr_t)m->place + align - 1) / align * align;
	if (mmap((void *)aligned, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->fd,
		 0) == MAP_FAILED)
		return give_up_place(m, (char *)aligned, errno);
	m->memory = (char *)aligned;
	return 0;
}

/* The file somewhere in address space that is ours alone; what lies around it stays out of reach.
 * Huge pages are promised to all of the file at its first mapping, or it fails: that is anywhere.
 */
static int map(struct arena_memory *m)
{
	void *first = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	int r;

	if (first == MAP_FAILED)
		return -errno;
	r = map_in_place(m);
	must(munmap(first, m->bytes) == 0);
	return r;
}

static int make_of(const struct arena_memory_wish *wish, enum segment_backing backing,
		   uint64_t page_bytes, struct arena_memory *out)
{
	uint64_t base = segment_base_page_bytes();
	struct arena_memory m = ARENA_MEMORY_NONE;
	int r;

	if (!arena_memory_fits(page_bytes, wish->part_bytes,
			       backing == SEGMENT_SMALL ? 0 : wish->bytes))
		return -ENOMEM;
	if (backing == SEGMENT_HUGETLB && failpoint(arena_pool))
		return -ENOMEM;
	m.backing = backing;
	m.page_bytes = page_bytes;
	m.bytes = (wish->bytes + base - 1) / base * base;
	m.fd = segment_open(wish->name, backing == SEGMENT_HUGETLB, m.bytes);
	if (m.fd < 0)
		return m.fd;
	r = segment_seal(m.fd);
	if (!r)
		r = map(&m);
	if (!r && (madvise(m.memory, m.bytes, MADV_DONTFORK) < 0 ||
		   madvise(m.memory, m.bytes, MADV_DONTDUMP) < 0))
		r = -errno;
	/* The policy is that of the file, for all memory that comes later, whoever fetches it. */
	if (!r)
		r = nodes_place(m.memory, m.bytes, wish->numa_node, &m.nodes, &m.refused);
	if (r) {
		arena_memory_free(&m);
		return r;
	}
	*out = m;
	return 0;
}

int arena_memory_make(const struct arena_memory_wish *wish, struct arena_memory *out)
{
	int there, r = -ENOMEM;

	must(wish->bytes > 0 && wish->part_bytes > 0);
	if (wish->bytes > INT64_MAX / 2 ||
	    (wish->numa_node >= 0 && !nodes_have(wish->numa_node, &there)))
		return -EINVAL;
	if (wish->pool || wish->require_pool)
		r = make_of(wish, SEGMENT_HUGETLB, segment_huge_page_bytes(), out);
	if (r && wish->require_pool)
		return r;
	if (r && wish->collapse)
		r = make_of(wish, SEGMENT_COLLAPSED, segment_collapsed_page_bytes(), out);
	if (r)
		r = make_of(wish, SEGMENT_SMALL, segment_base_page_bytes(), out);
	return r;
}

void arena_memory_free(struct arena_memory *m)
{
	if (m->place)
		must(munmap(m->place, m->place_bytes) == 0);
	if (m->fd >= 0)
		close(m->fd);
	*m = ARENA_MEMORY_NONE;
}

struct segment arena_memory_backing(const struct arena_memory *m)
{
	struct segment s = SEGMENT_NONE;

	s.backing = m->backing;
	s.page_bytes = (uint32_t)m->page_bytes;
	if (m->is_mixed) {
		s.backing = SEGMENT_SMALL;
		s.page_bytes = (uint32_t)segment_base_page_bytes();
	}
	return s;
}

/* ---- parts ---- */

uint32_t arena_memory_threads(void)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	if (cores < 2)
		return 1;
	return cores > ARENA_THREADS_MAX ? ARENA_THREADS_MAX : (uint32_t)cores;
}

static int populate_range(struct arena_memory *m, uint64_t from, uint64_t bytes)
{
	if (failpoint(arena_chunk))
		return -ENOMEM;
	if (madvise(m->memory + from, bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	/* EFAULT stands for what would be SIGBUS on a touch: there is no memory. */
	if (errno != EINVAL)
		return errno == EFAULT ? -ENOMEM : -errno;
	/* A kernel without that advice: the memory is there, those who touch it map it. */
	return fallocate(m->fd, 0, (off_t)from, (off_t)bytes) < 0 ? -errno : 0;
}

static int populate_piece(struct arena_memory *m, uint64_t from, uint64_t bytes)
{
	uint64_t step = m->page_bytes > STEP_BYTES ? m->page_bytes : STEP_BYTES;
	int r = 0;

	for (uint64_t at = 0; !r && at < bytes; at += step)
		r = populate_range(m, from + at, bytes - at < step ? bytes - at : step);
	return r;
}

/*
 * Which of its base pages comes first in a huge page that begins at `at`: the huge page will lie on
 * that one's node. Interleaving goes by the number of the base page, and the first ones of all huge
 * pages have numbers that are multiples of a power of two: they would all lie on one node.
 */
static uint64_t first_touch(const struct arena_memory *m, uint64_t at)
{
	uint64_t base = segment_base_page_bytes(), n = m->nodes ? m->nodes : 1;
	uint64_t turn = at / m->page_bytes % n, number = at / base % n;

	return at + (turn + n - number) % n * base;
}

/* As segment_make does it: a range can be collapsed once a part of it is there; the rest is filled
 * with zeros on the way, which is faster than to fetch small pages first. */
static int collapse_piece(struct arena_memory *m, uint64_t from, uint64_t bytes)
{
	int r = 0;

	for (uint64_t at = from; !r && at < from + bytes; at += m->page_bytes)
		r = populate_range(m, first_touch(m, at), segment_base_page_bytes());
	if (r)
		return r;
	for (int i = 0; i < COLLAPSE_TRIES; i++) {
		if (madvise(m->memory + from, bytes, MADV_COLLAPSE) == 0)
			return 0;
		if (errno != EAGAIN)
			break;
	}
	/* Not again: the kernel may have tried hard, and would the next time. */
	atomic_store_explicit(&m->is_mixed, true, memory_order_relaxed);
	return populate_piece(m, from, bytes);
}

static void *populate_main(void *argument)
{
	struct populate *p = argument;
	uint64_t at;
	int r, none;

	for (;;) {
		at = atomic_fetch_add_explicit(&p->next, p->piece_bytes, memory_order_relaxed);
		if (at >= p->bytes || atomic_load_explicit(&p->result, memory_order_relaxed) != 0)
			return NULL;
		r = -ECANCELED;
		if (!atomic_load_explicit(p->cancelled, memory_order_relaxed)) {
			uint64_t left = p->bytes - at;
			uint64_t n = left < p->piece_bytes ? left : p->piece_bytes;

			if (p->m->backing == SEGMENT_COLLAPSED &&
			    !atomic_load_explicit(&p->m->is_mixed, memory_order_relaxed))
				r = collapse_piece(p->m, p->from + at, n);
			else
				r = populate_piece(p->m, p->from + at, n);
		}
		none = 0;
		if (r)
			atomic_compare_exchange_strong(&p->result, &none, r);
	}
}

int arena_memory_populate(struct arena_memory *m, uint64_t from, uint64_t bytes, uint32_t threads,
			  const _Atomic bool *cancelled)
{
	struct populate p = {.m = m, .from = from, .bytes = bytes, .cancelled = cancelled};
	pthread_t helper[ARENA_THREADS_MAX];
	uint32_t n = 0;

	must(threads > 0 && threads <= ARENA_THREADS_MAX);
	must(from <= m->bytes && bytes <= m->bytes - from);
	p.piece_bytes = m->page_bytes > PIECE_BYTES ? m->page_bytes : PIECE_BYTES;
	/* A helper that cannot be started leaves its pieces to the others. */
	while (n + 1 < threads && (n + 1) * p.piece_bytes < bytes &&
	       thread_start("kvhost-arena", populate_main, &p, &helper[n]) == 0)
		n++;
	populate_main(&p);
	while (n > 0)
		must(pthread_join(helper[--n], NULL) == 0);
	return p.result;
}

int arena_memory_lock(struct arena_memory *m, uint64_t from, uint64_t bytes)
{
	must(from <= m->bytes && bytes <= m->bytes - from);
	must(m->backing != SEGMENT_HUGETLB);
	/* Before there is any memory, since the call keeps the whole process from mapping while it
	 * looks at what is there. */
	return mlock2(m->memory + from, bytes, MLOCK_ONFAULT) < 0 ? -errno : 0;
}

void arena_memory_discard(struct arena_memory *m, uint64_t from, uint64_t bytes)
{
	must(from <= m->bytes && bytes <= m->bytes - from);
	(void)munlock(m->memory + from, bytes);
	/* What cannot be given back stays ours, unused. */
	(void)fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
			(off_t)bytes);
}
