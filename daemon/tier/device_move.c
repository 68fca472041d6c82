/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_move: see device_move.h.
 *
 * Images are hundreds of megabytes, and pages go down because nobody reads them: they are copied
 * with stores that pass by the cache, which need not be read before and leave the cache to those
 * who use it.
 */
#include "daemon/tier/device_move.h"

#include <errno.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "shm/guard.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define BUFFER_BYTES     65536
#define STREAM_BYTES_MIN 4096
#define LINE_BYTES       64
#define PAGE_BYTES       4096             /* the processor reads ahead inside of one */
#define AHEAD_BYTES      (2 * PAGE_BYTES) /* what is fetched ahead */

#if defined(__x86_64__)
static inline void stream_line(char *to, const char *from)
{
	const __m128i *in = (const __m128i *)(const void *)from;
	__m128i *out = (__m128i *)(void *)to;
	__m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
	__m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);

	_mm_stream_si128(out, a);
	_mm_stream_si128(out + 1, b);
	_mm_stream_si128(out + 2, c);
	_mm_stream_si128(out + 3, d);
}

/* `ahead`: so many bytes behind the two pages belong to the source, too. */
static inline void stream_pair(char *to, const char *from, size_t ahead)
{
	for (size_t at = 0; at < PAGE_BYTES; at += LINE_BYTES) {
		if (ahead >= AHEAD_BYTES) {
			_mm_prefetch(from + at + AHEAD_BYTES, _MM_HINT_T0);
			_mm_prefetch(from + at + AHEAD_BYTES + PAGE_BYTES, _MM_HINT_T0);
		}
		stream_line(to + at, from + at);
		stream_line(to + at + PAGE_BYTES, from + at + PAGE_BYTES);
	}
}

/* Two streams at a time, because one thread alone does not have enough lines under way else. */
void stream_copy(void *to, const void *from, size_t bytes)
{
	char *out = to;
	const char *in = from;
	size_t head = (LINE_BYTES - (uintptr_t)out % LINE_BYTES) % LINE_BYTES;

	if (head > bytes)
		head = bytes;
	memcpy(out, in, head);
	out += head;
	in += head;
	bytes -= head;
	for (; bytes >= 2 * PAGE_BYTES; bytes -= 2 * PAGE_BYTES) {
		stream_pair(out, in, bytes - 2 * PAGE_BYTES);
		in += 2 * PAGE_BYTES;
		out += 2 * PAGE_BYTES;
	}
	for (; bytes >= LINE_BYTES; bytes -= LINE_BYTES, in += LINE_BYTES, out += LINE_BYTES)
		stream_line(out, in);
	memcpy(out, in, bytes);
	/* Such stores are weakly ordered: before this job is seen as done they must be visible. */
	_mm_sfence();
}
#else
void stream_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}
#endif

struct copy_context {
	void *to;
	const void *from;
	size_t bytes;
};

static void copy_body(void *context)
{
	const struct copy_context *c = context;

	if (!c->from)
		memset(c->to, 0, c->bytes);
	else if (c->bytes >= STREAM_BYTES_MIN)
		stream_copy(c->to, c->from, c->bytes);
	else
		memcpy(c->to, c->from, c->bytes);
}

static char *place(const struct device_job *j, enum device_region region, uint64_t offset,
		   uint64_t bytes)
{
	const struct device_memory *m = j->memory;
	char *base = NULL;
	uint64_t room = 0;

	switch (region) {
	case DEVICE_ZEROS:
		return NULL;
	case DEVICE_WINDOW:
		return (char *)j->window + offset;
	case DEVICE_POOL:
		base = m->segment.memory;
		room = m->segment.bytes;
		break;
	case DEVICE_RETAINED:
		base = m->retained.memory;
		room = m->retained.bytes;
		break;
	case DEVICE_ARENA:
		base = m->arena;
		room = m->arena_bytes;
		break;
	}
	must(base && bytes <= room && offset <= room - bytes);
	return base + offset;
}

/* One side is a client's window: through a buffer, so that a fault tells whose it is. */
static int move_window(const struct device_move *m, char *to, const char *from)
{
	static _Thread_local char buffer[BUFFER_BYTES];

	for (uint64_t at = 0; at < m->bytes; at += BUFFER_BYTES) {
		size_t n = m->bytes - at < BUFFER_BYTES ? m->bytes - at : BUFFER_BYTES;

		if (guard_copy(buffer, from + at, n))
			return m->from == DEVICE_WINDOW ? -EFAULT : -EIO;
		if (guard_copy(to + at, buffer, n))
			return m->to == DEVICE_WINDOW ? -EFAULT : -EIO;
	}
	return 0;
}

/* Does b go on where a ends, on both sides, so that both can go at once? Not if b reads what a has
 * written, or the reverse. */
static bool is_next(const struct device_move *a, const struct device_move *b)
{
	uint64_t apart = a->to_offset > a->from_offset ? a->to_offset - a->from_offset
						       : a->from_offset - a->to_offset;

	return a->to == b->to && a->from == b->from && a->from != DEVICE_ZEROS &&
	       a->to != DEVICE_WINDOW && a->from != DEVICE_WINDOW &&
	       a->to_offset + a->bytes == b->to_offset &&
	       a->from_offset + a->bytes == b->from_offset &&
	       (a->to != a->from || apart >= a->bytes + b->bytes);
}

static int move_one(const struct device_job *j, const struct device_move *m)
{
	char *to = place(j, m->to, m->to_offset, m->bytes);
	const char *from = place(j, m->from, m->from_offset, m->bytes);
	struct copy_context c = {to, from, m->bytes};

	must(to);
	if (m->to == DEVICE_WINDOW || m->from == DEVICE_WINDOW)
		return move_window(m, to, from);
	return guard_run(copy_body, &c) ? -EIO : 0;
}

/* Some of n neighbours cannot be copied: those before the first of these are. */
static int move_single(struct device_job *j, uint32_t n)
{
	int r = 0;

	for (uint32_t end = j->n_moved + n; j->n_moved < end; j->n_moved++) {
		r = move_one(j, &j->moves[j->n_moved]);
		if (r)
			break;
	}
	return r;
}

int device_move_run(struct device_job *j)
{
	uint32_t n;

	for (j->n_moved = 0; j->n_moved < j->n; j->n_moved += n) {
		struct device_move m = j->moves[j->n_moved];
		int r;

		for (n = 1; j->n_moved + n < j->n; n++) {
			const struct device_move *next = &j->moves[j->n_moved + n];

			if (!is_next(&m, next))
				break;
			m.bytes += next->bytes;
		}
		if (atomic_load_explicit(&j->job.cancelled, memory_order_relaxed))
			return -ECANCELED;
		r = move_one(j, &m);
		if (r && n > 1) {
			r = move_single(j, n);
			n = 0;
		}
		if (r)
			return r;
	}
	return 0;
}
