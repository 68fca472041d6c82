/* SPDX-License-Identifier: Apache-2.0 */

/*
 * log: a ring of lines that any thread fills and one thread empties. Writers never wait. The log
 * thread may block on its descriptor, as long as it likes: then lines are dropped and counted.
 */

#include "daemon/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/panic.h"
#include "daemon/base/thread.h"

#define LINES 256u /* a power of two */

_Static_assert((LINES & (LINES - 1)) == 0, "places are masked");

/* How long log_free waits for a descriptor that takes nothing. */
#define LAST_WAIT_MS 1000

struct line {
	/* Turn of this place: equal to a position = free for the writer of that position; one
	 * more = filled. Stored with seq_cst by writers and with release by the log thread;
	 * loaded with acquire by writers and with seq_cst by the log thread. */
	_Atomic uint64_t turn;
	enum log_level level;
	struct timespec at;
	char text[LOG_LINE_BYTES_MAX + 1];
};

struct log {
	pthread_t thread;
	struct clock clock;
	int fd;
	bool journal;
	_Atomic int level;
	_Atomic uint64_t dropped;
	_Atomic uint64_t heartbeat_ns;
	_Atomic uint64_t next_written; /* position of the next writer */
	uint64_t next_read;            /* the log thread's */
	uint64_t told_dropped;         /* the log thread's */
	bool gave_up;                  /* the log thread's: stopping, and nothing is taken */
	sem_t wake;
	_Atomic bool sleeps;
	_Atomic bool stopping;
	struct line lines[LINES];
};

static const char *const level_names[] = {
    [LOG_LEVEL_ERROR] = "error", [LOG_LEVEL_WARNING] = "warning", [LOG_LEVEL_NOTICE] = "notice",
    [LOG_LEVEL_INFO] = "info",   [LOG_LEVEL_DEBUG] = "debug",
};

/* Priorities as the journal counts them. */
static const int journal_priorities[] = {
    [LOG_LEVEL_ERROR] = 3, [LOG_LEVEL_WARNING] = 4, [LOG_LEVEL_NOTICE] = 5,
    [LOG_LEVEL_INFO] = 6,  [LOG_LEVEL_DEBUG] = 7,
};

const char *log_level_name(enum log_level level)
{
	must(level >= LOG_LEVEL_ERROR && level <= LOG_LEVEL_DEBUG);
	return level_names[level];
}

int log_level_parse(const char *name, enum log_level *out)
{
	for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
		if (strcmp(name, level_names[i]) == 0) {
			*out = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

bool log_is_journal(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	char ours[64];
	struct stat st;

	if (!stream || fstat(fd, &st) < 0)
		return false;
	snprintf(ours, sizeof(ours), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	return strcmp(stream, ours) == 0;
}

/* ---- any thread ---- */

/* The place of the next line, or NULL if the ring is full; *position is then this writer's. */
static struct line *line_claim(struct log *log, uint64_t *position)
{
	uint64_t at = atomic_load_explicit(&log->next_written, memory_order_relaxed);

	for (;;) {
		struct line *line = &log->lines[at % LINES];
		uint64_t turn = atomic_load_explicit(&line->turn, memory_order_acquire);

		if (turn == at) {
			if (atomic_compare_exchange_weak_explicit(&log->next_written, &at, at + 1,
								  memory_order_relaxed,
								  memory_order_relaxed)) {
				*position = at;
				return line;
			}
		} else if (turn < at) {
			return NULL; /* last lap's line has not been read */
		} else {
			at = atomic_load_explicit(&log->next_written, memory_order_relaxed);
		}
	}
}

static void line_publish(struct log *log, struct line *line, uint64_t position)
{
	/* seq_cst, as the load of sleeps: pairs with log_sleep, which stores sleeps and then loads
	 * turn. One of the two sees the other's store. */
	atomic_store_explicit(&line->turn, position + 1, memory_order_seq_cst);
	if (atomic_load_explicit(&log->sleeps, memory_order_seq_cst) &&
	    atomic_exchange_explicit(&log->sleeps, false, memory_order_seq_cst))
		must(sem_post(&log->wake) == 0);
}

static void make_harmless(char *text)
{
	for (unsigned char *c = (unsigned char *)text; *c; c++) {
		if (*c < 0x20 || *c == 0x7f)
			*c = '?';
	}
}

void log_write(struct log *log, enum log_level level, const char *format, ...)
{
	struct line *line;
	uint64_t position;
	va_list arguments;
	int length;

	if (!log_has_level(log, level))
		return;

	line = line_claim(log, &position);
	if (!line) {
		atomic_fetch_add_explicit(&log->dropped, 1, memory_order_relaxed);
		return;
	}

	line->level = level;
	must(clock_gettime(CLOCK_REALTIME, &line->at) == 0);
	va_start(arguments, format);
	length = vsnprintf(line->text, sizeof(line->text), format, arguments);
	va_end(arguments);
	if (length < 0)
		line->text[0] = '\0';
	else if ((size_t)length >= sizeof(line->text))
		memcpy(line->text + sizeof(line->text) - sizeof("..."), "...", sizeof("..."));
	make_harmless(line->text);

	line_publish(log, line, position);
}

bool log_has_level(const struct log *log, enum log_level level)
{
	if (!log)
		return false;
	return (int)level <= atomic_load_explicit(&log->level, memory_order_relaxed);
}

void log_set_level(struct log *log, enum log_level level)
{
	must(level >= LOG_LEVEL_ERROR && level <= LOG_LEVEL_DEBUG);
	atomic_store_explicit(&log->level, (int)level, memory_order_relaxed);
}

uint64_t log_dropped(const struct log *log)
{
	return log ? atomic_load_explicit(&log->dropped, memory_order_relaxed) : 0;
}

uint64_t log_heartbeat_ns(const struct log *log)
{
	return atomic_load_explicit(&log->heartbeat_ns, memory_order_relaxed);
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint64_t interval_ns,
		    uint32_t *suppressed)
{
	if (now_ns < limit->next_ns) {
		if (limit->suppressed < UINT32_MAX)
			limit->suppressed++;
		return false;
	}
	*suppressed = limit->suppressed;
	limit->suppressed = 0;
	limit->next_ns = now_ns + interval_ns;
	return true;
}

/* ---- the log thread ---- */

static bool is_filled(struct log *log)
{
	struct line *line = &log->lines[log->next_read % LINES];

	return atomic_load_explicit(&line->turn, memory_order_seq_cst) == log->next_read + 1;
}

/* True when the descriptor takes something, or cannot say; false: it is time to give up. */
static bool wait_writable(struct log *log)
{
	struct pollfd p = {.fd = log->fd, .events = POLLOUT};
	int waited_ms = 0;

	for (;;) {
		if (poll(&p, 1, 100) != 0)
			return true;
		if (atomic_load_explicit(&log->stopping, memory_order_relaxed))
			waited_ms += 100;
		if (waited_ms >= LAST_WAIT_MS)
			return false;
	}
}

static void write_all(struct log *log, const char *bytes, size_t n)
{
	while (n > 0) {
		ssize_t written;

		if (!log->gave_up && !wait_writable(log))
			log->gave_up = true;
		if (log->gave_up)
			return;
		written = write(log->fd, bytes, n);
		if (written < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (written < 0)
			return; /* nobody is left to be told */
		bytes += written;
		n -= (size_t)written;
	}
}

static void write_line(struct log *log, enum log_level level, const struct timespec *at,
		       const char *text)
{
	char whole[LOG_LINE_BYTES_MAX + 100];
	char when[32] = "?";
	struct tm parts;
	int n;

	if (log->journal) {
		n = snprintf(whole, sizeof(whole), "<%d>%s\n", journal_priorities[level], text);
	} else {
		if (gmtime_r(&at->tv_sec, &parts))
			strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &parts);
		n = snprintf(whole, sizeof(whole), "%s.%03ldZ %s: %s\n", when,
			     at->tv_nsec / 1000000, level_names[level], text);
	}
	must(n > 0 && (size_t)n < sizeof(whole));
	write_all(log, whole, (size_t)n);
}

static void tell_dropped(struct log *log)
{
	uint64_t dropped = log_dropped(log);
	struct timespec now;
	char text[80];

	if (dropped == log->told_dropped)
		return;
	must(clock_gettime(CLOCK_REALTIME, &now) == 0);
	snprintf(text, sizeof(text), "%llu log lines were dropped here",
		 (unsigned long long)(dropped - log->told_dropped));
	log->told_dropped = dropped;
	write_line(log, LOG_LEVEL_WARNING, &now, text);
}

/* Sleeps until there may be a line or the log is to stop. */
static void log_sleep(struct log *log)
{
	atomic_store_explicit(&log->heartbeat_ns, 0, memory_order_relaxed);
	/* seq_cst, as the loads below: pairs with line_publish and log_free. */
	atomic_store_explicit(&log->sleeps, true, memory_order_seq_cst);
	if (is_filled(log) || atomic_load_explicit(&log->stopping, memory_order_seq_cst)) {
		/* A writer that saw sleeps has posted: take its post, or the next sleep is none. */
		if (atomic_exchange_explicit(&log->sleeps, false, memory_order_seq_cst))
			return;
	}
	while (sem_wait(&log->wake) < 0)
		must(errno == EINTR);
}

static void *log_main(void *argument)
{
	struct log *log = argument;

	for (;;) {
		struct line *line = &log->lines[log->next_read % LINES];

		if (!is_filled(log)) {
			tell_dropped(log);
			if (is_filled(log))
				continue;
			if (atomic_load_explicit(&log->stopping, memory_order_acquire))
				break;
			log_sleep(log);
			continue;
		}

		atomic_store_explicit(&log->heartbeat_ns, clock_now(&log->clock),
				      memory_order_relaxed);
		write_line(log, line->level, &line->at, line->text);
		/* Release: pairs with the acquire of line_claim; the text has been read. */
		atomic_store_explicit(&line->turn, log->next_read + LINES, memory_order_release);
		log->next_read++;
	}
	return NULL;
}

/* ---- making and unmaking ---- */

int log_new(const struct log_options *options, struct log **out)
{
	struct log *log;
	int r;

	must(options->level >= LOG_LEVEL_ERROR && options->level <= LOG_LEVEL_DEBUG);
	log = calloc(1, sizeof(*log));
	if (!log)
		return -ENOMEM;

	log->clock = clock_monotonic();
	log->fd = options->fd;
	log->journal = options->journal;
	log->level = (int)options->level;
	for (uint64_t i = 0; i < LINES; i++)
		log->lines[i].turn = i;
	must(sem_init(&log->wake, 0, 0) == 0);

	r = thread_start("kvhost-log", log_main, log, &log->thread);
	if (r < 0) {
		free(log);
		return r;
	}
	*out = log;
	return 0;
}

void log_free(struct log **log_to_free)
{
	struct log *log = *log_to_free;

	if (!log)
		return;
	/* seq_cst: pairs with log_sleep. */
	atomic_store_explicit(&log->stopping, true, memory_order_seq_cst);
	if (atomic_exchange_explicit(&log->sleeps, false, memory_order_seq_cst))
		must(sem_post(&log->wake) == 0);
	must(pthread_join(log->thread, NULL) == 0);
	must(sem_destroy(&log->wake) == 0);
	free(log);
	*log_to_free = NULL;
}
