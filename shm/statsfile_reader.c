/* SPDX-License-Identifier: Apache-2.0 */

/*
 * statsfile, a reader's side: copies what is in the file and believes none of it.
 *
 * One thread a reader. Blocks on nothing but the file system; never waits for the writer, which
 * may be dead in the middle of a group.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/fence.h"
#include "shm/statsfile.h"
#include "shm/text.h"

#define GROUP_TRIES 64

static void unmap(struct statsfile_reader *r)
{
	if (r->map)
		munmap((void *)(uintptr_t)r->map, r->bytes);
	if (r->fd >= 0)
		close(r->fd);
	r->map = NULL;
	r->bytes = 0;
	r->fd = -1;
	r->inode = 0;
}

/* Map the file that lies at the path now. */
static int map_now(struct statsfile_reader *r)
{
	struct stat status;
	void *map;
	int fd, e;

	fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) < 0) {
		e = -errno;
		close(fd);
		return e;
	}
	if (!S_ISREG(status.st_mode) || status.st_size < (off_t)sizeof(struct statsfile_head) ||
	    (uint64_t)status.st_size > SIZE_MAX) {
		close(fd);
		return -EPROTO;
	}
	map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		e = -errno;
		close(fd);
		return e;
	}
	unmap(r);
	r->map = map;
	r->bytes = (size_t)status.st_size;
	r->fd = fd;
	r->inode = status.st_ino;
	return 0;
}

/* The mapping is of the file that the path names and is backed to its end. */
static int refresh(struct statsfile_reader *r)
{
	struct stat named, mapped;

	/* Without a file at the path the old one still tells how its daemon ended. */
	if (stat(r->path, &named) == 0 && (!r->map || named.st_ino != r->inode)) {
		int e = map_now(r);

		if (e)
			return e;
	}
	if (!r->map)
		return -ENOENT;
	if (fstat(r->fd, &mapped) < 0)
		return -errno;
	/* Touching what was cut off would be SIGBUS. */
	return (uint64_t)mapped.st_size < r->bytes ? -EPROTO : 0;
}

static bool fits(uint64_t offset, uint64_t count, uint64_t size, uint64_t bytes)
{
	return offset % 8 == 0 && offset <= bytes && count <= (bytes - offset) / size;
}

static int check_head(const struct statsfile_head *h, uint64_t bytes)
{
	if (h->magic != STATSFILE_MAGIC || h->major != STATSFILE_MAJOR)
		return -EPROTO;
	if (h->file_bytes > bytes || h->file_bytes < sizeof(*h))
		return -EPROTO;
	bytes = h->file_bytes;
	if (h->n_threads > STATSFILE_THREADS_MAX || h->n_groups > STATSFILE_GROUPS_MAX ||
	    h->n_counters > h->max_counters)
		return -EPROTO;
	if (!fits(h->threads_offset, STATSFILE_THREADS_MAX, sizeof(struct statsfile_thread),
		  bytes) ||
	    !fits(h->groups_offset, STATSFILE_GROUPS_MAX, sizeof(uint32_t), bytes) ||
	    !fits(h->counters_offset, h->max_counters, sizeof(struct statsfile_counter), bytes) ||
	    !fits(h->values_offset, h->max_values, sizeof(uint64_t), bytes) ||
	    !fits(h->sessions_offset, h->max_sessions, sizeof(struct statsfile_session), bytes) ||
	    !fits(h->panic_offset, STATSFILE_PANIC_BYTES, 1, bytes))
		return -EPROTO;
	return 0;
}

static void end_text(char *text, size_t bytes)
{
	text[bytes - 1] = '\0';
	text_clean(text, strlen(text));
}

static int read_head(const struct statsfile_reader *r, struct statsfile_head *h)
{
	const struct statsfile_head *from = (const struct statsfile_head *)r->map;
	/* Acquire pairs with the releases in statsfile_add, _add_thread and _add_group. */
	uint32_t n_counters = atomic_load_explicit(&from->n_counters, memory_order_acquire);
	uint32_t n_threads = __atomic_load_n(&from->n_threads, __ATOMIC_ACQUIRE);
	uint32_t n_groups = __atomic_load_n(&from->n_groups, __ATOMIC_ACQUIRE);

	memcpy(h, from, sizeof(*h));
	fence_copied(h);
	/* The counts of the copy may be later than what the acquires above vouch for. */
	atomic_store_explicit(&h->n_counters, n_counters, memory_order_relaxed);
	h->n_threads = n_threads;
	h->n_groups = n_groups;
	end_text(h->version, sizeof(h->version));
	return check_head(h, r->bytes);
}

static int read_counters(const struct statsfile_reader *r, struct statsfile_snapshot *out)
{
	const struct statsfile_head *h = &out->head;
	uint32_t n = atomic_load_explicit(&h->n_counters, memory_order_relaxed);

	out->counters = calloc((size_t)n + 1, sizeof(*out->counters));
	out->values = calloc((size_t)h->max_values + 1, sizeof(*out->values));
	out->torn_group = calloc(STATSFILE_GROUPS_MAX, 1);
	if (!out->counters || !out->values || !out->torn_group)
		return -ENOMEM;

	memcpy(out->counters, r->map + h->counters_offset, n * sizeof(*out->counters));
	fence_copied(out->counters);
	for (uint32_t i = 0; i < n; i++) {
		struct statsfile_counter *c = &out->counters[i];

		if (c->values == 0 || (uint64_t)c->first + c->values > h->max_values)
			return -EPROTO;
		/* A description is complete before it is counted, so its group is too; but the
		 * groups were counted later than the counters were. */
		if (c->group != STATSFILE_GROUPS_MAX && c->group >= h->n_groups)
			return -EPROTO;
		end_text(c->name, sizeof(c->name));
		end_text(c->label, sizeof(c->label));
		end_text(c->unit, sizeof(c->unit));
		end_text(c->help, sizeof(c->help));
	}
	out->n_counters = n;
	return 0;
}

static void copy_values(const struct statsfile_reader *r, struct statsfile_snapshot *out,
			uint32_t group)
{
	const _Atomic uint64_t *from = (const _Atomic uint64_t *)(r->map + out->head.values_offset);

	for (uint32_t i = 0; i < out->n_counters; i++) {
		const struct statsfile_counter *c = &out->counters[i];

		if (c->group != group)
			continue;
		for (uint32_t k = c->first; k < c->first + c->values; k++)
			out->values[k] = atomic_load_explicit(&from[k], memory_order_relaxed);
	}
}

/* True if the values of the group belong together. */
static bool copy_group(const struct statsfile_reader *r, struct statsfile_snapshot *out,
		       uint32_t group)
{
	const _Atomic uint32_t *word =
	    (const _Atomic uint32_t *)(r->map + out->head.groups_offset) + group;

	for (int i = 0; i < GROUP_TRIES; i++) {
		/* Acquire pairs with the release in statsfile_end. */
		uint32_t before = atomic_load_explicit(word, memory_order_acquire);

		copy_values(r, out, group);
		/* Pairs with the fence in statsfile_begin. */
		fence_acquire();
		if (before % 2 == 0 && atomic_load_explicit(word, memory_order_relaxed) == before)
			return true;
		sched_yield();
	}
	return false;
}

static int read_sessions(const struct statsfile_reader *r, struct statsfile_snapshot *out)
{
	const struct statsfile_session *from =
	    (const struct statsfile_session *)(r->map + out->head.sessions_offset);
	uint32_t n = out->head.max_sessions;

	out->sessions = calloc((size_t)n + 1, sizeof(*out->sessions));
	if (!out->sessions)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		struct statsfile_session *to = &out->sessions[out->n_sessions];
		/* Acquire pairs with the daemon's release of the id of a filled slot. */
		uint32_t id = atomic_load_explicit(&from[i].id, memory_order_acquire);

		if (id == 0)
			continue;
		atomic_init(&to->id, id);
		atomic_init(&to->pid, atomic_load_explicit(&from[i].pid, memory_order_relaxed));
		atomic_init(&to->oldest_ns,
			    atomic_load_explicit(&from[i].oldest_ns, memory_order_relaxed));
		atomic_init(&to->submissions,
			    atomic_load_explicit(&from[i].submissions, memory_order_relaxed));
		atomic_init(&to->completions,
			    atomic_load_explicit(&from[i].completions, memory_order_relaxed));
		memcpy(to->client, from[i].client, sizeof(to->client));
		end_text(to->client, sizeof(to->client));
		out->n_sessions++;
	}
	return 0;
}

static void read_threads(const struct statsfile_reader *r, struct statsfile_snapshot *out)
{
	const struct statsfile_thread *from =
	    (const struct statsfile_thread *)(r->map + out->head.threads_offset);

	for (uint32_t i = 0; i < out->head.n_threads; i++) {
		struct statsfile_thread *to = &out->threads[i];

		memcpy(to->name, from[i].name, sizeof(to->name));
		end_text(to->name, sizeof(to->name));
		atomic_init(&to->heartbeat_ns,
			    atomic_load_explicit(&from[i].heartbeat_ns, memory_order_relaxed));
	}
}

/* The writer holds its lock for life, and the kernel drops it at any death. */
static bool is_alive(int fd)
{
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

int statsfile_open(struct statsfile_reader *r, const char *path)
{
	struct statsfile_head head;
	int e;

	*r = (struct statsfile_reader){.fd = -1};
	r->path = strdup(path);
	e = r->path ? map_now(r) : -ENOMEM;
	if (!e)
		e = read_head(r, &head);
	if (e)
		statsfile_reader_close(r);
	return e;
}

int statsfile_read(struct statsfile_reader *r, struct statsfile_snapshot *out)
{
	int e;

	memset(out, 0, sizeof(*out));
	e = refresh(r);
	if (!e)
		e = read_head(r, &out->head);
	if (!e)
		e = read_counters(r, out);
	if (!e)
		e = read_sessions(r, out);
	if (e)
		return e;

	/* Looked at before the values: of a daemon that is said to be dead, they are the last. */
	out->alive = is_alive(r->fd);
	copy_values(r, out, STATSFILE_GROUPS_MAX);
	for (uint32_t g = 0; g < out->head.n_groups; g++) {
		if (!copy_group(r, out, g)) {
			out->torn_group[g] = 1;
			out->torn = true;
		}
	}
	read_threads(r, out);
	memcpy(out->panic, r->map + out->head.panic_offset, sizeof(out->panic));
	end_text(out->panic, sizeof(out->panic));
	return 0;
}

void statsfile_snapshot_free(struct statsfile_snapshot *s)
{
	if (!s)
		return;
	free(s->counters);
	free(s->values);
	free(s->torn_group);
	free(s->sessions);
	memset(s, 0, sizeof(*s));
}

void statsfile_reader_close(struct statsfile_reader *r)
{
	if (!r)
		return;
	unmap(r);
	free(r->path);
	r->path = NULL;
}

bool statsfile_value(const struct statsfile_snapshot *s, const char *name, const char *label,
		     uint64_t *out)
{
	for (uint32_t i = 0; i < s->n_counters; i++) {
		const struct statsfile_counter *c = &s->counters[i];

		if (strcmp(c->name, name) == 0 && strcmp(c->label, label) == 0) {
			*out = s->values[c->first];
			return true;
		}
	}
	return false;
}
