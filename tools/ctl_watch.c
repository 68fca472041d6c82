/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_watch: the stats file again and again: values, and what changes a second.
 *
 * Goes on through a restart of the daemon, also while there is no daemon. One thread; sleeps
 * between two looks, until a signal ends it.
 */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/ctl.h"

struct look {
	struct statsfile_snapshot s;
	struct timespec at;
	bool valid;
};

static volatile sig_atomic_t ended;

static void end(int number)
{
	(void)number;
	ended = 1;
}

/* Signals are let in while it sleeps and at no other time: none is missed before a sleep. */
static void catch_signals(sigset_t *open)
{
	struct sigaction action = {.sa_handler = end};
	sigset_t closed;

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigemptyset(&closed);
	sigaddset(&closed, SIGINT);
	sigaddset(&closed, SIGTERM);
	sigprocmask(SIG_BLOCK, &closed, open);
	sigdelset(open, SIGINT);
	sigdelset(open, SIGTERM);
}

static void sleep_once(double seconds, const sigset_t *open)
{
	struct timespec time = {.tv_sec = (time_t)seconds};

	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	if (!ended)
		(void)pselect(0, NULL, NULL, NULL, &time, open);
}

static double seconds_between(const struct timespec *a, const struct timespec *b)
{
	return (double)(b->tv_sec - a->tv_sec) + (double)(b->tv_nsec - a->tv_nsec) / 1e9;
}

/* The same counter in the look before; NULL: there was none, or it was another daemon's. */
static const uint64_t *value_before(const struct look *before, const struct look *now, uint32_t i)
{
	const struct statsfile_counter *c = &now->s.counters[i];

	if (!before->valid || before->s.head.boot_epoch != now->s.head.boot_epoch ||
	    i >= before->s.n_counters || before->s.counters[i].values != c->values ||
	    strcmp(before->s.counters[i].name, c->name) != 0 ||
	    strcmp(before->s.counters[i].label, c->label) != 0)
		return NULL;
	return &before->s.values[before->s.counters[i].first];
}

static void print_line(const struct look *before, const struct look *now, uint32_t i, bool all,
		       FILE *out)
{
	const struct statsfile_counter *c = &now->s.counters[i];
	const uint64_t *old = value_before(before, now, i);
	uint64_t value = ctl_samples(&now->s.values[c->first], c->values);
	uint64_t was = old ? ctl_samples(old, c->values) : 0;
	double seconds = seconds_between(&before->at, &now->at);
	char name[128];

	if (!all && value == 0 && was == 0)
		return;
	snprintf(name, sizeof(name), "%s%s%s", c->label, c->label[0] ? " " : "", c->name);
	fprintf(out, "%-52s %16" PRIu64, name, value);
	/* A gauge may fall. */
	if (old && seconds > 0)
		fprintf(out, " %+14.1f/s",
			(value >= was ? (double)(value - was) : -(double)(was - value)) / seconds);
	fputc('\n', out);
}

static enum ctl_exit print_look(const struct ctl_options *options, const struct look *before,
				const struct look *now, FILE *out)
{
	char sentence[CTL_LINE_BYTES];
	enum ctl_exit result = ctl_stats_judge(&now->s, sentence);

	if (isatty(fileno(out)))
		fputs("\033[H\033[2J", out);
	if (before->valid && before->s.head.boot_epoch != now->s.head.boot_epoch)
		fprintf(out, "the daemon was started again\n");
	fprintf(out, "kvhostd %s, pid %" PRIu32 ", %s\n", now->s.head.version, now->s.head.pid,
		sentence);
	if (now->s.panic[0])
		fprintf(out, "panic: %s\n", now->s.panic);
	for (uint32_t i = 0; i < now->s.n_counters; i++)
		print_line(before, now, i, options->all, out);
	fputc('\n', out);
	return result;
}

/* 0 and *out, or -errno; the reader is open afterwards, if it could be. */
static int look(const struct ctl_options *options, struct statsfile_reader *reader, bool *open,
		struct look *out)
{
	int r = *open ? 0 : statsfile_open(reader, options->stats);

	*out = (struct look){0};
	if (r)
		return r;
	*open = true;
	r = statsfile_read(reader, &out->s);
	clock_gettime(CLOCK_MONOTONIC, &out->at);
	if (r) {
		statsfile_snapshot_free(&out->s);
		statsfile_reader_close(reader);
		*open = false;
		return r;
	}
	ctl_stats_clean(&out->s);
	out->valid = true;
	return 0;
}

enum ctl_exit ctl_watch(const struct ctl_options *options, FILE *out)
{
	struct statsfile_reader reader;
	struct look before = {0}, now;
	enum ctl_exit result = CTL_OK;
	bool open = false;
	sigset_t signals;
	int r;

	catch_signals(&signals);
	for (bool first = true; !ended; first = false) {
		r = look(options, &reader, &open, &now);
		if (r && first)
			return ctl_stats_missing(options, r);
		if (r) {
			fprintf(out, "no values now: %s: %s\n\n", options->stats, strerror(-r));
			result = CTL_NO_DAEMON;
		} else {
			result = print_look(options, &before, &now, out);
			statsfile_snapshot_free(&before.s);
			before = now;
		}
		if (fflush(out) != 0)
			break;
		sleep_once(options->watch_s, &signals);
	}
	statsfile_snapshot_free(&before.s);
	if (open)
		statsfile_reader_close(&reader);
	return result;
}
