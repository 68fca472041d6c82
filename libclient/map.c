/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map: a pool's memory, put together from the segments that arrive on the socket.
 *
 * Owned by the thread that uses the connection. Waits for the segments, at most the connect
 * timeout. Their sizes are what fstat says; what the daemon says only decides where they go.
 */
#include "libclient/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct parts {
	uint64_t submission;
	uint32_t wanted;
	const struct arrival *by_part[ARRIVALS_MAX];
};

static bool all_are_there(struct kvhost *host, void *context)
{
	struct parts *p = context;
	uint32_t found = 0;

	memset(p->by_part, 0, sizeof(p->by_part));
	for (uint32_t i = 0; i < host->n_arrivals; i++) {
		const struct arrival *a = &host->arrivals[i];

		if (a->segment.submission != p->submission || a->segment.part >= p->wanted ||
		    p->by_part[a->segment.part])
			continue;
		p->by_part[a->segment.part] = a;
		found++;
	}
	return found == p->wanted;
}

static int wrong(struct kvhost *host, const char *what)
{
	host_fail(host, KVHOST_EVIOLATION, "the segments of the pool: %s", what);
	host_end(host, KVHOST_EVIOLATION, NULL);
	return KVHOST_EVIOLATION;
}

/* Where a part begins in the mapping, and how much of its file belongs there. */
struct place {
	uint64_t offset;
	uint64_t bytes;
};

static int place_part(struct kvhost_pool *pool, const struct parts *p, uint32_t part,
		      struct place *out, uint64_t *align)
{
	const struct kvhost_pool_info *info = &pool->info;
	uint64_t first = p->by_part[part]->segment.first_page;
	uint64_t end =
	    part + 1 < p->wanted ? p->by_part[part + 1]->segment.first_page : info->pages;
	int fd = p->by_part[part]->fd;
	uint64_t file_page, wanted;
	struct stat st;
	int seals;

	if ((part == 0 && first != 0) || end <= first || end > info->pages)
		return wrong(pool->host, "their pages are not in order");
	/* A file that can shrink would be SIGBUS under the engine's hands. */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return wrong(pool->host, "one is not sealed");
	if (fstat(fd, &st) != 0 || st.st_size <= 0 || st.st_blksize <= 0)
		return wrong(pool->host, "one cannot be looked at");
	file_page = (uint64_t)st.st_blksize;
	if (file_page < segment_base_page_bytes() || (file_page & (file_page - 1)) != 0)
		file_page = segment_base_page_bytes();
	wanted = (end - first) * info->page_stride;
	if (end == info->pages)
		wanted += info->lanes * (2 * info->state_stride + info->ring_stride);
	if ((uint64_t)st.st_size < wanted)
		return wrong(pool->host, "one is smaller than its pages");
	if ((first * info->page_stride) % file_page != 0)
		return wrong(pool->host, "one does not begin where the one before it ends");
	out->offset = first * info->page_stride;
	out->bytes = (wanted + file_page - 1) / file_page * file_page;
	if (out->bytes > (uint64_t)st.st_size)
		out->bytes = (uint64_t)st.st_size;
	if (file_page > *align)
		*align = file_page;
	return 0;
}

/* What cannot be mapped there leaves a hole, in which others' memory may lie by now. */
static void unmap_around(struct kvhost_pool *pool, char *hole, size_t bytes)
{
	char *start = pool->mapped, *end = start + pool->mapped_bytes;

	(void)munmap(hole + bytes, (size_t)(end - (hole + bytes)));
	if (hole > start)
		(void)munmap(start, (size_t)(hole - start));
	pool->mapped = NULL;
}

static int map_parts(struct kvhost_pool *pool, const struct parts *p)
{
	uint64_t align = segment_base_page_bytes(), total = 0, spread;
	struct place places[ARRIVALS_MAX];
	char *base;
	int result;

	if (__builtin_mul_overflow(pool->info.pages, pool->info.page_stride, &spread) ||
	    spread > SIZE_MAX / 2)
		return wrong(pool->host, "the pool is larger than memory can be");
	for (uint32_t i = 0; i < p->wanted; i++) {
		result = place_part(pool, p, i, &places[i], &align);
		if (result)
			return result;
		total = places[i].offset + places[i].bytes;
	}
	pool->mapped_bytes = (size_t)(total + 2 * align);
	pool->mapped = mmap(NULL, pool->mapped_bytes, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pool->mapped == MAP_FAILED) {
		pool->mapped = NULL;
		return host_fail(pool->host, KVHOST_ENOMEM,
				 "no address space for the pool's %llu bytes",
				 (unsigned long long)total);
	}
	base = (char *)(((uintptr_t)pool->mapped + align - 1) / align * align);
	for (uint32_t i = 0; i < p->wanted; i++) {
		void *at = mmap(base + places[i].offset, places[i].bytes, PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_FIXED, p->by_part[i]->fd, 0);

		if (at == MAP_FAILED) {
			int error = errno;

			unmap_around(pool, base + places[i].offset, places[i].bytes);
			return host_fail(pool->host, KVHOST_ENOMEM,
					 "cannot map part %u of the pool: %s", i, strerror(error));
		}
	}
	if (madvise(pool->mapped, pool->mapped_bytes, MADV_DONTFORK) != 0)
		return host_fail(pool->host, KVHOST_ENOMEM,
				 "cannot hide the pool from children: %s", strerror(errno));
	pool->info.memory = base;
	return 0;
}

int pool_map(struct kvhost_pool *pool, uint64_t submission, uint32_t parts)
{
	struct kvhost *host = pool->host;
	struct parts p = {.submission = submission, .wanted = parts};
	int result;

	if (parts > ARRIVALS_MAX)
		return wrong(host, "there are too many");
	channel_serve(host);
	result = host_wait(host, all_are_there, &p, host_now_ns() + host->connect_timeout_ns);
	if (result == KVHOST_ETIMEDOUT)
		host_fail(host, result, "the pool's %u segments did not arrive", parts);
	if (result == 0)
		result = map_parts(pool, &p);
	if (result)
		pool_unmap(pool);
	return result;
}

void pool_unmap(struct kvhost_pool *pool)
{
	/* In a child the addresses may be something else by now. */
	if (pool->mapped && !host_forked(pool->host))
		(void)munmap(pool->mapped, pool->mapped_bytes);
	pool->mapped = NULL;
	pool->info.memory = NULL;
}
