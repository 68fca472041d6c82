/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_CTL_H
#define KVHOST_TOOLS_CTL_H

/* ctl: what the files of kvctl share. One thread; every call may block, none for ever. */

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

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
	bool all; /* counters that are 0 too */
};

/* The stats file: also of a daemon that hangs or is dead. */
enum ctl_exit ctl_stats(const struct ctl_options *options, FILE *out);
/* The same without counters, for health when the daemon does not answer; `why` it did not. */
enum ctl_exit ctl_stats_health(const struct ctl_options *options, const char *why, FILE *out);

/* A question that the daemon answers: health, sessions, check, pools, config. */
enum ctl_exit ctl_ask(const struct ctl_options *options, const char *question, FILE *out);

/* JSON as aligned text: lines of an object, tables of lists of objects. */
void ctl_print_object(const json_t *object, unsigned indent, FILE *out);
/* `columns` ends with NULL; NULL: all keys of the first row that hold no list or object. */
void ctl_print_table(const json_t *rows, const char *const *columns, unsigned indent, FILE *out);
/* Bytes as people read them: "8 MiB", "1.5 GiB", "100 B". */
void ctl_size_text(unsigned long long bytes, char *out, size_t out_bytes);

#endif
