/* SPDX-License-Identifier: Apache-2.0 */

/*
 * statsfile, the daemon's side: makes the file, adds descriptions, marks groups. The core thread
 * makes and adds; each value has one writing thread. Creating may block on the file system (a
 * tmpfs in production); nothing else does.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/statsfile.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/fence.h"

#define STATSFILE_MODE 0640
#define TRIES          8 /* a file that another daemon replaces under our hands, at most */

_Static_assert(sizeof(struct statsfile_counter) == 240, "counter");
_Static_assert(sizeof(struct statsfile_thread) == 32, "thread");
_Static_assert(sizeof(struct statsfile_session) == 64, "session");
_Static_assert(sizeof(struct statsfile_head) == 224, "head");

static uint64_t line_up(uint64_t bytes)
{
	return (bytes + WIRE_LINE - 1) / WIRE_LINE * WIRE_LINE;
}

/* Offsets of everything, in the order of the file. All sums fit: the counts have 32 bits. */
static void lay_out(struct statsfile_head *h)
{
	h->threads_offset = line_up(sizeof(*h));
	h->groups_offset =
	    line_up(h->threads_offset + STATSFILE_THREADS_MAX * sizeof(struct statsfile_thread));
	h->counters_offset = line_up(h->groups_offset + STATSFILE_GROUPS_MAX * sizeof(uint32_t));
	h->values_offset =
	    line_up(h->counters_offset + h->max_counters * sizeof(struct statsfile_counter));
	h->sessions_offset = line_up(h->values_offset + h->max_values * sizeof(uint64_t));
	h->panic_offset =
	    line_up(h->sessions_offset + h->max_sessions * sizeof(struct statsfile_session));
	h->file_bytes = h->panic_offset + STATSFILE_PANIC_BYTES;
}

static void point_into(struct statsfile *f, const struct statsfile_head *h)
{
	f->head = (struct statsfile_head *)f->map;
	f->threads = (struct statsfile_thread *)(f->map + h->threads_offset);
	f->groups = (_Atomic uint32_t *)(f->map + h->groups_offset);
	f->counters = (struct statsfile_counter *)(f->map + h->counters_offset);
	f->values = (_Atomic uint64_t *)(f->map + h->values_offset);
	f->sessions = (struct statsfile_session *)(f->map + h->sessions_offset);
	f->panic = f->map + h->panic_offset;
}

static int lock_for_life(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_SETLK, &lock) < 0 ? -errno : 0;
}

static bool has_writer(int fd)
{
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/*
 * Move the file of a daemon that is no more out of the way. 0 (nothing lies at `path` now),
 * -EBUSY, -EAGAIN (it was replaced meanwhile) or -errno.
 */
static int retire(const char *path, const char *previous)
{
	struct stat opened, named;
	int fd, r = 0;

	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	/* Of two daemons that start at once, one gets the lock of the old file. Somebody who only
	 * reads could hold a lock for reading: that stops nobody. */
	if (lock_for_life(fd) < 0 && has_writer(fd))
		r = -EBUSY;
	else if (fstat(fd, &opened) < 0)
		r = -errno;
	else if (!S_ISREG(opened.st_mode))
		r = -EINVAL;
	else if (stat(path, &named) < 0 || named.st_ino != opened.st_ino ||
		 named.st_dev != opened.st_dev)
		r = -EAGAIN;
	else if (rename(path, previous) < 0)
		r = -errno;
	close(fd);
	return r;
}

static int install(const char *temporary, const char *path)
{
	char *previous;
	int r;

	if (asprintf(&previous, "%s.prev", path) < 0)
		return -ENOMEM;
	for (int i = 0; i < TRIES; i++) {
		r = retire(path, previous);
		if (r == -EAGAIN)
			continue;
		/* link, unlike rename, never replaces what another daemon put there. */
		if (r == 0 && link(temporary, path) < 0)
			r = errno == EEXIST ? -EAGAIN : -errno;
		if (r != -EAGAIN)
			break;
	}
	free(previous);
	return r == -EAGAIN ? -EBUSY : r;
}

/* A new locked file of the right size under a temporary name, which the caller frees. */
static int make_temporary(const char *path, uint64_t bytes, char **out_name)
{
	char *name;
	int fd, r;

	if (asprintf(&name, "%s.XXXXXX", path) < 0)
		return -ENOMEM;
	fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0) {
		r = -errno;
		free(name);
		return r;
	}
	if (fchmod(fd, STATSFILE_MODE) < 0) {
		r = -errno;
	} else {
		/* Real blocks now: a full file system shall not be SIGBUS later. */
		r = -posix_fallocate(fd, 0, (off_t)bytes);
		if (r == 0)
			r = lock_for_life(fd);
	}
	if (r) {
		unlink(name);
		free(name);
		close(fd);
		return r;
	}
	*out_name = name;
	return fd;
}

static int map_file(struct statsfile *f)
{
	int flags = f->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

	f->map = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, flags, f->fd, 0);
	if (f->map == MAP_FAILED) {
		f->map = NULL;
		return -errno;
	}
	return 0;
}

static void write_head(struct statsfile_head *h, uint64_t boot_epoch, const char *version)
{
	struct timespec now;

	h->magic = STATSFILE_MAGIC;
	h->major = STATSFILE_MAJOR;
	h->minor = STATSFILE_MINOR;
	h->boot_epoch = boot_epoch;
	h->pid = (uint32_t)getpid();
	clock_gettime(CLOCK_MONOTONIC, &now);
	h->start_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	clock_gettime(CLOCK_REALTIME, &now);
	h->start_realtime = (uint64_t)now.tv_sec;
	memcpy(h->version, version, strnlen(version, sizeof(h->version) - 1));
	atomic_init(&h->state, STATSFILE_STARTING);
}

int statsfile_create(struct statsfile *f, const char *path, const struct statsfile_size *size,
		     uint64_t boot_epoch, const char *version)
{
	struct statsfile_head head = {
	    .max_counters = size->max_counters,
	    .max_values = size->max_values,
	    .max_sessions = size->max_sessions,
	};
	char *temporary = NULL;
	int r = 0;

	*f = (struct statsfile){.fd = -1};
	lay_out(&head);
	write_head(&head, boot_epoch, version);
	f->bytes = head.file_bytes;

	if (path) {
		f->path = strdup(path);
		if (!f->path)
			return -ENOMEM;
		f->fd = make_temporary(path, head.file_bytes, &temporary);
		if (f->fd < 0)
			r = f->fd;
	}
	if (!r)
		r = map_file(f);
	if (!r) {
		memcpy(f->map, &head, sizeof(head));
		point_into(f, &head);
		if (path)
			r = install(temporary, path);
	}
	if (temporary) {
		unlink(temporary);
		free(temporary);
	}
	if (r) {
		f->head = NULL; /* nothing to say to a reader of a file that never was */
		statsfile_close(f, STATSFILE_STOPPED);
	}
	return r;
}

void statsfile_close(struct statsfile *f, enum statsfile_state last)
{
	if (!f)
		return;
	if (f->head)
		atomic_store_explicit(&f->head->state, last, memory_order_release);
	if (f->map)
		munmap(f->map, f->bytes);
	if (f->fd >= 0)
		close(f->fd);
	free(f->path);
	*f = (struct statsfile){.fd = -1};
}

int statsfile_add(struct statsfile *f, const struct statsfile_counter *c)
{
	uint32_t n = atomic_load_explicit(&f->head->n_counters, memory_order_relaxed);
	struct statsfile_counter *to = &f->counters[n];
	uint64_t first = 0;

	assert(c->kind >= STATSFILE_COUNTER && c->kind <= STATSFILE_HISTOGRAM);
	assert(c->values > 0 && memchr(c->name, '\0', sizeof(c->name)));
	assert(c->group == STATSFILE_GROUPS_MAX || c->group < f->head->n_groups);

	if (n > 0)
		first = (uint64_t)to[-1].first + to[-1].values;
	if (n >= f->head->max_counters || c->values > f->head->max_values ||
	    first > f->head->max_values - c->values || first > INT32_MAX)
		return -ENOSPC;

	*to = *c;
	to->first = (uint32_t)first;
	/* Release pairs with the acquire of the count in statsfile_read. */
	atomic_store_explicit(&f->head->n_counters, n + 1, memory_order_release);
	return (int)first;
}

int statsfile_add_thread(struct statsfile *f, const char *name)
{
	uint32_t n = f->head->n_threads;
	struct statsfile_thread *t = &f->threads[n];

	if (n >= STATSFILE_THREADS_MAX)
		return -ENOSPC;
	memcpy(t->name, name, strnlen(name, sizeof(t->name) - 1));
	/* Release pairs with the acquire in statsfile_read. */
	__atomic_store_n(&f->head->n_threads, n + 1, __ATOMIC_RELEASE);
	return (int)n;
}

int statsfile_add_group(struct statsfile *f)
{
	uint32_t n = f->head->n_groups;

	if (n >= STATSFILE_GROUPS_MAX)
		return -ENOSPC;
	/* Release pairs with the acquire in statsfile_read. */
	__atomic_store_n(&f->head->n_groups, n + 1, __ATOMIC_RELEASE);
	return (int)n;
}

void statsfile_begin(struct statsfile *f, uint32_t group)
{
	uint32_t word = atomic_load_explicit(&f->groups[group], memory_order_relaxed);

	assert(group < f->head->n_groups);
	assert(word % 2 == 0);
	atomic_store_explicit(&f->groups[group], word + 1, memory_order_relaxed);
	/* Pairs with the acquire fence before a reader's second load of the word: who read one of
	 * the new values also reads the odd word. */
	fence_release();
}

void statsfile_end(struct statsfile *f, uint32_t group)
{
	uint32_t word = atomic_load_explicit(&f->groups[group], memory_order_relaxed);

	assert(group < f->head->n_groups);
	assert(word % 2 == 1);
	/* Release pairs with a reader's first load of the word. */
	atomic_store_explicit(&f->groups[group], word + 1, memory_order_release);
}

void statsfile_panic(struct statsfile *f, const char *text)
{
	/* Called from a signal handler at worst: no call but plain stores. */
	for (size_t i = 0; i < STATSFILE_PANIC_BYTES - 1 && text[i]; i++)
		f->panic[i] = text[i];
	atomic_store_explicit(&f->head->state, STATSFILE_PANICKED, memory_order_release);
}
