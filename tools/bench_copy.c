/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_copy: see bench_copy.h. Main thread.
 *
 * Three ways to read ahead of stores that pass by the cache: a prefetch that passes by it too, none
 * (the processor sees two streams by itself), and two small pages at a time with a prefetch into
 * the cache.
 */
#include "tools/bench_copy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tools/bench_limit.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE_BYTES 64
#define PAGE_BYTES 4096
#define HUGE_BYTES (2u << 20)
#define NEAR_BYTES 512              /* ahead, past the cache */
#define FAR_BYTES  (2 * PAGE_BYTES) /* ahead, into the cache */

typedef void copy_way(char *to, const char *from, size_t bytes);

#if defined(__x86_64__)
static inline void copy_line(char *to, const char *from)
{
	const __m128i *in = (const __m128i *)(const void *)from;
	__m128i *out = (__m128i *)(void *)to;
	__m128i a = _mm_load_si128(in), b = _mm_load_si128(in + 1);
	__m128i c = _mm_load_si128(in + 2), d = _mm_load_si128(in + 3);

	_mm_stream_si128(out, a);
	_mm_stream_si128(out + 1, b);
	_mm_stream_si128(out + 2, c);
	_mm_stream_si128(out + 3, d);
}

static void copy_near(char *to, const char *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += LINE_BYTES) {
		_mm_prefetch(from + at + NEAR_BYTES, _MM_HINT_NTA);
		copy_line(to + at, from + at);
	}
	_mm_sfence();
}

static void copy_plain(char *to, const char *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += LINE_BYTES)
		copy_line(to + at, from + at);
	_mm_sfence();
}

static void copy_pairs(char *to, const char *from, size_t bytes)
{
	size_t done = 0;

	for (; done + 2 * PAGE_BYTES <= bytes; done += 2 * PAGE_BYTES) {
		for (size_t at = done; at < done + PAGE_BYTES; at += LINE_BYTES) {
			if (done + 2 * FAR_BYTES <= bytes) {
				_mm_prefetch(from + at + FAR_BYTES, _MM_HINT_T0);
				_mm_prefetch(from + at + FAR_BYTES + PAGE_BYTES, _MM_HINT_T0);
			}
			copy_line(to + at, from + at);
			copy_line(to + at + PAGE_BYTES, from + at + PAGE_BYTES);
		}
	}
	copy_plain(to + done, from + done, bytes - done);
}

static const struct {
	const char *name;
	copy_way *copy;
} ways[] = {{"prefetch past the cache", copy_near},
	    {"no prefetch", copy_plain},
	    {"two pages at a time", copy_pairs}};
#else
static void copy_plain(char *to, const char *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

static const struct {
	const char *name;
	copy_way *copy;
} ways[] = {{"memcpy", copy_plain}};
#endif

#define WAYS (sizeof(ways) / sizeof(*ways))

/* Like a pool: huge pages that were set aside, else what the kernel makes of small ones. */
static char *take_memory(size_t bytes, bool *huge)
{
	char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	*huge = m != MAP_FAILED;
	if (!*huge) {
		m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m == MAP_FAILED)
			return NULL;
		(void)madvise(m, bytes, MADV_HUGEPAGE);
	}
	memset(m, 1, bytes);
	return m;
}

static uint32_t *shuffled_places(size_t n, uint64_t *random)
{
	uint32_t *places = malloc(n * sizeof(*places));

	if (!places)
		return NULL;
	for (size_t i = 0; i < n; i++)
		places[i] = (uint32_t)i;
	for (size_t i = n - 1; i > 0; i--) {
		size_t other = bench_random(random) % (i + 1);
		uint32_t place = places[i];

		places[i] = places[other];
		places[other] = place;
	}
	return places;
}

int copy_limit_init(struct copy_limit *l, size_t record_bytes, size_t bytes,
		    struct bench_reason *why)
{
	size_t n = bytes / record_bytes > 0 ? bytes / record_bytes : 1;
	uint64_t random = 0x9e3779b97f4a7c15ull;
	bool from_huge = false, to_huge = false;

	assert(record_bytes > 0 && n <= UINT32_MAX);
	record_bytes = (record_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
	*l = (struct copy_limit){.record_bytes = record_bytes, .n = n};
	l->area_bytes = (n * record_bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
	l->from = take_memory(l->area_bytes, &from_huge);
	l->to = take_memory(l->area_bytes, &to_huge);
	l->from_places = shuffled_places(n, &random);
	l->to_places = shuffled_places(n, &random);
	l->huge = from_huge && to_huge;
	if (l->from && l->to && l->from_places && l->to_places)
		return 0;
	return bench_reason_set(why, "no memory for a calibration with 2 areas of %zu bytes",
				l->area_bytes);
}

void copy_limit_deinit(struct copy_limit *l)
{
	if (l->from)
		munmap(l->from, l->area_bytes);
	if (l->to)
		munmap(l->to, l->area_bytes);
	free(l->from_places);
	free(l->to_places);
	*l = (struct copy_limit){0};
}

static double cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (double)used.tv_sec * 1e9 + (double)used.tv_nsec;
}

struct copy_time copy_limit_run(struct copy_limit *l)
{
	struct copy_time best = {.wall_ns = 1e300, .cpu_ns = 1e300};

	for (size_t w = 0; w < WAYS; w++) {
		uint64_t start = bench_ticks();
		double used_ns = cpu_ns(), wall_ns;

		for (size_t i = 0; i < l->n; i++)
			ways[w].copy(l->to + l->to_places[i] * l->record_bytes,
				     l->from + l->from_places[i] * l->record_bytes,
				     l->record_bytes);
		used_ns = cpu_ns() - used_ns;
		wall_ns = bench_clock_ns(bench_ticks() - start);
		best.wall_ns = wall_ns < best.wall_ns ? wall_ns : best.wall_ns;
		if (used_ns >= best.cpu_ns)
			continue;
		best.cpu_ns = used_ns;
		best.way = ways[w].name;
	}
	return best;
}
