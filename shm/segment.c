/* SPDX-License-Identifier: Apache-2.0 */

/*
 * segment: see segment.h. The daemon's work thread makes and frees, a client's thread maps.
 * Everything here may block for as long as memory takes to arrive.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Kernel interfaces that are younger than the C library's headers may be. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif

#define COLLAPSE_TRIES 3 /* it fails with EAGAIN while the kernel holds one of the pages */
#define SEALS          (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define NAME_DEFAULT   "kvhost"

size_t segment_base_page_bytes(void)
{
	long bytes = sysconf(_SC_PAGESIZE);

	assert(bytes > 0);
	return (size_t)bytes;
}

size_t segment_huge_page_bytes(void)
{
	char line[128];
	unsigned long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, "Hugepagesize:", 13) == 0) {
			kib = strtoul(line + 13, NULL, 10);
			break;
		}
	}
	fclose(f);
	return (size_t)kib * 1024;
}

size_t segment_collapsed_page_bytes(void)
{
	char line[32];
	size_t bytes = 0;
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "re");

	if (!f)
		return 0;
	if (fgets(line, sizeof(line), f))
		bytes = strtoul(line, NULL, 10);
	fclose(f);
	return bytes;
}

/* 0, or -EINVAL where the sum leaves what a file can have. */
static int round_up(size_t bytes, size_t page, size_t *out)
{
	if (bytes == 0 || bytes > (size_t)INT64_MAX - page)
		return -EINVAL;
	*out = (bytes + page - 1) / page * page;
	return 0;
}

int segment_open(const char *name, bool hugetlb, size_t bytes)
{
	unsigned flags = MFD_ALLOW_SEALING | MFD_CLOEXEC | (hugetlb ? MFD_HUGETLB : 0);
	int fd, r;

	fd = memfd_create(name ? name : NAME_DEFAULT, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name ? name : NAME_DEFAULT, flags);
	if (fd < 0)
		return -errno;

	/* The inode is born with a mode that lets anyone open it anew through /proc. */
	if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)bytes) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	return fd;
}

int segment_seal(int fd)
{
	return fcntl(fd, F_ADD_SEALS, SEALS) < 0 ? -errno : 0;
}

/* Map at a multiple of `align`, which may be more than a page. */
static void *map_aligned(int fd, size_t bytes, size_t align)
{
	size_t base = segment_base_page_bytes();
	size_t reserved = bytes + align - base;
	uintptr_t start, aligned, end;
	void *place, *memory;

	place = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (place == MAP_FAILED)
		return MAP_FAILED;
	start = (uintptr_t)place;
	aligned = (start + align - 1) / align * align;
	end = start + reserved;
	memory =
	    mmap((void *)aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	if (memory == MAP_FAILED) {
		int saved = errno;

		/* Where it was to be there is a hole, in which others' memory may lie by now. */
		if (aligned > start)
			munmap(place, aligned - start);
		if (end > aligned + bytes)
			munmap((void *)(aligned + bytes), end - (aligned + bytes));
		errno = saved;
		return MAP_FAILED;
	}
	if (aligned > start)
		munmap(place, aligned - start);
	if (end > aligned + bytes)
		munmap((void *)(aligned + bytes), end - (aligned + bytes));
	return memory;
}

static int populate(void *memory, size_t bytes)
{
	size_t page = segment_base_page_bytes();

	if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	/* EFAULT stands for what would be SIGBUS on a touch: there is no memory. */
	if (errno != EINVAL)
		return errno == EFAULT ? -ENOMEM : -errno;
	/* A kernel without that advice. The memory is fresh, nobody else writes to it. */
	for (size_t at = 0; at < bytes; at += page)
		((volatile char *)memory)[at] = 0;
	return 0;
}

static int make_hugetlb(const struct segment_wish *wish, struct segment *out)
{
	struct segment s = SEGMENT_NONE;
	size_t page = segment_huge_page_bytes();
	int r;

	if (page == 0 || page > UINT32_MAX)
		return -ENOMEM;
	r = round_up(wish->bytes, page, &s.bytes);
	if (r)
		return r;

	s.fd = segment_open(wish->name, true, s.bytes);
	if (s.fd < 0)
		return s.fd;
	s.memory = mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
	if (s.memory == MAP_FAILED) {
		r = -errno;
		s.memory = NULL;
		goto fail;
	}
	/* Real pages now: a reservation would be taken back from us as SIGBUS by a peer's hole.
	 * What a failed call got stays taken until the close. */
	if (fallocate(s.fd, 0, 0, (off_t)s.bytes) < 0) {
		r = -errno;
		goto fail;
	}
	if (wish->populate) {
		r = populate(s.memory, s.bytes);
		if (r)
			goto fail;
	}
	s.page_bytes = (uint32_t)page;
	s.backing = SEGMENT_HUGETLB;
	*out = s;
	return 0;
fail:
	segment_free(&s);
	return r;
}

static int make_plain(const struct segment_wish *wish, size_t page, bool fill, struct segment *out)
{
	struct segment s = SEGMENT_NONE;
	int r;

	r = round_up(wish->bytes, page, &s.bytes);
	if (r)
		return r;
	s.fd = segment_open(wish->name, false, s.bytes);
	if (s.fd < 0)
		return s.fd;
	s.memory = map_aligned(s.fd, s.bytes, page);
	if (s.memory == MAP_FAILED) {
		r = -errno;
		s.memory = NULL;
		segment_free(&s);
		return r;
	}
	r = fill ? populate(s.memory, s.bytes) : 0;
	if (r) {
		segment_free(&s);
		return r;
	}
	s.page_bytes = (uint32_t)page;
	s.backing = SEGMENT_SMALL;
	*out = s;
	return 0;
}

static int make_collapsed(const struct segment_wish *wish, struct segment *out)
{
	struct segment s;
	size_t page = segment_collapsed_page_bytes(), base = segment_base_page_bytes();
	int r;

	if (page == 0 || page > UINT32_MAX)
		return -ENOMEM;
	/* A range can be collapsed once a part of it is there; the rest is filled with zeros on the
	 * way, which is faster than to fetch small pages first. */
	r = make_plain(wish, page, false, &s);
	if (r)
		return r;
	for (size_t at = 0; !r && at < s.bytes; at += page)
		r = populate((char *)s.memory + at, base);
	if (r) {
		segment_free(&s);
		return r;
	}
	for (int i = 0; i < COLLAPSE_TRIES; i++) {
		if (madvise(s.memory, s.bytes, MADV_COLLAPSE) == 0) {
			s.backing = SEGMENT_COLLAPSED;
			*out = s;
			return 0;
		}
		r = -errno;
		if (r != -EAGAIN)
			break;
	}
	segment_free(&s);
	return r;
}

static int make_best(const struct segment_wish *wish, struct segment *out)
{
	if (wish->bytes == 0)
		return -EINVAL;
	if (wish->huge && (make_hugetlb(wish, out) == 0 || make_collapsed(wish, out) == 0))
		return 0;
	return make_plain(wish, segment_base_page_bytes(), wish->populate, out);
}

int segment_make(const struct segment_wish *wish, struct segment *out)
{
	struct segment s = SEGMENT_NONE;
	int r;

	r = make_best(wish, &s);
	if (r)
		return r;
	r = segment_seal(s.fd);
	if (!r && !wish->keep_in_forks && madvise(s.memory, s.bytes, MADV_DONTFORK) < 0)
		r = -errno;
	if (r) {
		segment_free(&s);
		return r;
	}
	*out = s;
	return 0;
}

/* What a descriptor from outside is. 0, -EPROTO or -errno. */
static int inspect(int fd, struct segment *s)
{
	struct stat status;
	struct statfs system;
	int seals;

	if (fstat(fd, &status) < 0 || fstatfs(fd, &system) < 0)
		return -errno;
	/* A file that can shrink would kill us with SIGBUS later. */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPROTO;

	s->backing = SEGMENT_SMALL;
	s->page_bytes = (uint32_t)segment_base_page_bytes();
	if ((unsigned long)system.f_type == HUGETLBFS_MAGIC) {
		if (system.f_bsize <= 0 || (uint64_t)system.f_bsize > UINT32_MAX)
			return -EPROTO;
		s->backing = SEGMENT_HUGETLB;
		s->page_bytes = (uint32_t)system.f_bsize;
	}
	if (status.st_size <= 0 || (uint64_t)status.st_size > SIZE_MAX ||
	    (uint64_t)status.st_size % s->page_bytes != 0)
		return -EPROTO;
	s->bytes = (size_t)status.st_size;
	return 0;
}

int segment_map(int fd, struct segment *out)
{
	struct segment s = SEGMENT_NONE;
	int r;

	s.fd = fd;
	r = inspect(fd, &s);
	if (r)
		goto fail;
	s.memory = mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (s.memory == MAP_FAILED) {
		r = -errno;
		s.memory = NULL;
		goto fail;
	}
	if (madvise(s.memory, s.bytes, MADV_DONTFORK) < 0) {
		r = -errno;
		goto fail;
	}
	*out = s;
	return 0;
fail:
	segment_free(&s);
	return r;
}

void segment_free(struct segment *s)
{
	if (!s)
		return;
	if (s->memory)
		munmap(s->memory, s->bytes);
	if (s->fd >= 0)
		close(s->fd);
	*s = SEGMENT_NONE;
}

const char *segment_backing_name(enum segment_backing b)
{
	switch (b) {
	case SEGMENT_SMALL:
		return "small";
	case SEGMENT_COLLAPSED:
		return "collapsed";
	case SEGMENT_HUGETLB:
		return "hugetlb";
	}
	return "?";
}
