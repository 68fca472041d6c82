/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_LOG_H
#define KVHOST_BASE_LOG_H

/*
 * log: lines for people, written by a thread of their own.
 *
 * log_write formats its line into a bounded ring and returns; it never waits. A full ring drops
 * the line and counts it, and the count is written as soon as there is room. Any thread may write.
 * Control characters become '?', since a line may hold what a client sent.
 */

#include <stdbool.h>
#include <stdint.h>

struct log;

enum log_level {
	LOG_LEVEL_ERROR,
	LOG_LEVEL_WARNING,
	LOG_LEVEL_NOTICE,
	LOG_LEVEL_INFO,
	LOG_LEVEL_DEBUG,
};

#define LOG_LINE_BYTES_MAX 1000 /* a longer line ends in "..." */

struct log_options {
	int fd;               /* where lines go; not taken */
	enum log_level level; /* lines above it are not even formatted */
	bool journal;         /* "<N>line" for the journal; else "time level line" */
};

/* True if `fd` leads to the journal, by $JOURNAL_STREAM. */
bool log_is_journal(int fd);

/* Starts the thread. 0 or -errno. */
int log_new(const struct log_options *options, struct log **out);
/* Writes what there is, or what the descriptor takes within a second. NULL is fine. */
void log_free(struct log **log);

/* A NULL log takes nothing. One line, without a newline at its end. */
void log_write(struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

bool log_has_level(const struct log *log, enum log_level level);
void log_set_level(struct log *log, enum log_level level);
/* 0, or -EINVAL for a name that is none of error, warning, notice, info, debug. */
int log_level_parse(const char *name, enum log_level *out);
const char *log_level_name(enum log_level level);

uint64_t log_dropped(const struct log *log);      /* lines, since log_new */
uint64_t log_heartbeat_ns(const struct log *log); /* as executor.heartbeat_ns */

/*
 * A limit for a place that a client can make noisy: at most one line per interval. Zeroed is
 * ready. Single-threaded. log_limit_pass: true = write now; *suppressed is then how many were
 * not written since the last time.
 */
struct log_limit {
	uint64_t next_ns;
	uint32_t suppressed;
};

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint64_t interval_ns,
		    uint32_t *suppressed);

#endif
