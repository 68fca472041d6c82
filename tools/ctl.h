/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_CTL_H
#define KVHOST_TOOLS_CTL_H

/* ctl: what the files of kvctl share. One thread; every call may block, none for ever. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "shm/statsfile.h"

enum ctl_exit {
	CTL_OK = 0,
	CTL_UNHEALTHY = 1, /* or failed */
	CTL_USAGE = 2,
	CTL_NO_DAEMON = 3,
};

struct ctl_options {
	const char *socket; /* NULL: the library's default */
	const char *stats;  /* path of the stats file */
	bool json;
	bool all; /* counters that are 0 too; drop: of all namespaces */
	bool prometheus;
	bool watch;
	bool undo;
	double watch_s; /* seconds between two looks */
};

#define CTL_LINE_BYTES 512

/* The stats file: also of a daemon that hangs or is dead. */
enum ctl_exit ctl_stats(const struct ctl_options *options, FILE *out);
/* The same without counters, for health when the daemon does not answer; `why` it did not. It
 * `is_there` where something listens at its socket. */
enum ctl_exit ctl_stats_health(const struct ctl_options *options, const char *why, bool is_there,
			       FILE *out);

/* In the text format of Prometheus, version 0.0.4. */
enum ctl_exit ctl_prometheus(const struct ctl_options *options, FILE *out);
/* Again and again, with what changes a second, until SIGINT or SIGTERM. */
enum ctl_exit ctl_watch(const struct ctl_options *options, FILE *out);

/* What these share, of a snapshot whose texts are clean. */
int ctl_stats_read(const char *path, struct statsfile_snapshot *out);      /* 0 or -errno */
enum ctl_exit ctl_stats_missing(const struct ctl_options *options, int r); /* says why, on stderr */
void ctl_stats_clean(struct statsfile_snapshot *s);
const char *ctl_stats_state(const struct statsfile_snapshot *s);
/* One sentence about the daemon, and what it means for the exit code. */
enum ctl_exit ctl_stats_judge(const struct statsfile_snapshot *s, char out[CTL_LINE_BYTES]);
uint64_t ctl_ms_since(uint64_t ns); /* of CLOCK_MONOTONIC */
uint64_t ctl_samples(const uint64_t *buckets, uint32_t n);

/* A question that the daemon answers, or what it is told to do; `argument` may be NULL. */
enum ctl_exit ctl_ask(const struct ctl_options *options, const char *question, const char *argument,
		      FILE *out);

/* This host, and the daemon if it runs: what is, what is needed, and the command that mends it. */
enum ctl_exit ctl_doctor(const struct ctl_options *options, FILE *out);

/* JSON as aligned text: lines of an object, tables of lists of objects. */
void ctl_print_object(const json_t *object, unsigned indent, FILE *out);
/* `columns` ends with NULL; NULL: all keys of the first row that hold no list or object. */
void ctl_print_table(const json_t *rows, const char *const *columns, unsigned indent, FILE *out);
/* Bytes as people read them: "8 MiB", "1.5 GiB", "100 B". */
void ctl_size_text(unsigned long long bytes, char *out, size_t out_bytes);

#endif
