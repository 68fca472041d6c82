/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_STATSFILE_H
#define KVHOST_SHM_STATSFILE_H

/*
 * statsfile: counters that can be read while the daemon is healthy, hung or dead.
 *
 *   head | threads | counters (descriptions) | values | sessions | panic text
 *
 * The daemon makes the file complete under a temporary name, locks it (OFD lock, held for life),
 * renames the old one to NAME.prev and itself to NAME. Names, kinds, units and help texts are in
 * the file, so a newer reader understands an older daemon; the reader checks every offset.
 * Values are written with relaxed stores, each by one thread. Values of a group whose members
 * must agree are written between statsfile_begin and statsfile_end of that group; a reader tries
 * again a bounded number of times and then returns what it has, marked torn.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "shm/wire.h"

#define STATSFILE_MAGIC       0x53544154534b5648ull
#define STATSFILE_MAJOR       1
#define STATSFILE_MINOR       0
#define STATSFILE_THREADS_MAX 16
#define STATSFILE_GROUPS_MAX  128
#define STATSFILE_PANIC_BYTES 1024

enum statsfile_state {
	STATSFILE_STARTING = 1,
	STATSFILE_RUNNING,
	STATSFILE_DRAINING,
	STATSFILE_STOPPED,
	STATSFILE_PANICKED,
};

enum statsfile_kind {
	STATSFILE_COUNTER = 1, /* only grows */
	STATSFILE_GAUGE,       /* now */
	STATSFILE_HISTOGRAM,   /* `values` buckets: bucket 0 < 1 us, bucket k < 2^k us, last open */
};

#define STATSFILE_HISTOGRAM_BUCKETS 24

struct statsfile_counter { /* what a value is */
	char name[48];     /* lower case with underscores; unique together with label */
	char label[32];    /* e.g. the name of a pool; "" = the daemon's */
	char unit[16];     /* "", "bytes", "pages", "tokens", "us" */
	char help[128];
	uint32_t kind;   /* enum statsfile_kind */
	uint32_t group;  /* index of its sequence word; STATSFILE_GROUPS_MAX = none */
	uint32_t first;  /* index of its first value */
	uint32_t values; /* 1, or the buckets of a histogram */
};

struct statsfile_thread {
	char name[16];
	_Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC */
	uint64_t reserved;
};

struct statsfile_session {
	_Atomic uint32_t id; /* 0 = slot unused */
	_Atomic uint32_t pid;
	_Atomic uint64_t oldest_ns; /* when the oldest unanswered submission was taken; 0 = none */
	_Atomic uint64_t submissions; /* taken */
	_Atomic uint64_t completions; /* given */
	char client[WIRE_NAME_MAX];
};

struct statsfile_head {
	uint64_t magic;
	uint32_t major;
	uint32_t minor;
	uint64_t boot_epoch;
	uint32_t pid;
	_Atomic uint32_t state;
	uint64_t start_ns;       /* CLOCK_MONOTONIC */
	uint64_t start_realtime; /* seconds since 1970 */
	uint64_t file_bytes;
	uint32_t n_threads;
	uint32_t n_groups;
	_Atomic uint32_t n_counters; /* grows when a pool is made; a counter is complete before */
	uint32_t max_counters;
	uint32_t max_values;
	uint32_t max_sessions;
	uint64_t threads_offset;
	uint64_t groups_offset; /* u32 sequence words, odd while their group is written */
	uint64_t counters_offset;
	uint64_t values_offset;
	uint64_t sessions_offset;
	uint64_t panic_offset;
	char version[32];
	uint64_t reserved[8];
};

/* ---- the daemon's side ---- */

struct statsfile {
	char *map;
	size_t bytes;
	int fd;
	char *path;
	struct statsfile_head *head;
	struct statsfile_thread *threads;
	_Atomic uint32_t *groups;
	struct statsfile_counter *counters;
	_Atomic uint64_t *values;
	struct statsfile_session *sessions;
	char *panic;
};

struct statsfile_size {
	uint32_t max_counters;
	uint32_t max_values;
	uint32_t max_sessions;
};

/* 0, -EBUSY (another daemon holds `path`) or -errno. path NULL: memory only, for tests. */
int statsfile_create(struct statsfile *f, const char *path, const struct statsfile_size *size,
		     uint64_t boot_epoch, const char *version);
void statsfile_close(struct statsfile *f, enum statsfile_state last); /* the file stays */

/* Complete on return; index of its first value, or -ENOSPC. */
int statsfile_add(struct statsfile *f, const struct statsfile_counter *c);
int statsfile_add_thread(struct statsfile *f, const char *name); /* index or -ENOSPC */
int statsfile_add_group(struct statsfile *f);                    /* index or -ENOSPC */

void statsfile_begin(struct statsfile *f, uint32_t group);
void statsfile_end(struct statsfile *f, uint32_t group);
void statsfile_panic(struct statsfile *f, const char *text); /* async-signal-safe */

/* ---- a reader's side: kvctl, kvbench, libkvhost ---- */

struct statsfile_reader {
	const char *map;
	size_t bytes;
	int fd;
	uint64_t inode;
	char *path;
};

struct statsfile_snapshot {
	struct statsfile_head head; /* copied, checked */
	bool alive;                 /* somebody holds the lock: the daemon lives (perhaps hung) */
	bool torn;                  /* a group did not settle in the bounded number of tries */
	uint32_t n_counters;
	struct statsfile_counter *counters; /* names and texts are terminated */
	uint64_t *values;                   /* of all counters, at counters[i].first */
	uint8_t *torn_group;                /* [n_groups] */
	struct statsfile_thread threads[STATSFILE_THREADS_MAX];
	uint32_t n_sessions;
	struct statsfile_session *sessions; /* used slots only */
	char panic[STATSFILE_PANIC_BYTES];
};

/* 0, -ENOENT, -EPROTO (not a stats file, or one of another major version) or -errno. */
int statsfile_open(struct statsfile_reader *r, const char *path);
/* Opens the file again if it was replaced. Free the snapshot also after an error. */
int statsfile_read(struct statsfile_reader *r, struct statsfile_snapshot *out);
void statsfile_snapshot_free(struct statsfile_snapshot *s);
void statsfile_reader_close(struct statsfile_reader *r);

/* The first value of a counter; false = no such counter. label may be "". */
bool statsfile_value(const struct statsfile_snapshot *s, const char *name, const char *label,
		     uint64_t *out);

#endif
