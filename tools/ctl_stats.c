/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_stats: the stats file, read without the daemon's help.
 *
 * The lock on the file says whether the daemon lives, the heartbeats whether it moves. One
 * thread; blocks on files alone.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/statsfile.h"
#include "shm/text.h"
#include "tools/ctl.h"

#define SILENT_LIMIT_MS 5000 /* a thread that says nothing for so long hangs */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t ctl_ms_since(uint64_t ns)
{
	uint64_t now = now_ns();

	return now > ns ? (now - ns) / 1000000u : 0;
}

static const char *state_name(uint32_t state)
{
	switch (state) {
	case STATSFILE_STARTING:
		return "starting";
	case STATSFILE_RUNNING:
		return "running";
	case STATSFILE_DRAINING:
		return "draining";
	case STATSFILE_STOPPED:
		return "stopped";
	case STATSFILE_PANICKED:
		return "panicked";
	default:
		return "unknown";
	}
}

const char *ctl_stats_state(const struct statsfile_snapshot *s)
{
	return state_name(atomic_load_explicit(&s->head.state, memory_order_relaxed));
}

/* The thread that has been silent for longest beyond the limit; NULL: all speak or are idle. */
static const struct statsfile_thread *silent_thread(const struct statsfile_snapshot *s)
{
	const struct statsfile_thread *found = NULL;

	for (uint32_t i = 0; i < s->head.n_threads; i++) {
		uint64_t at =
		    atomic_load_explicit(&s->threads[i].heartbeat_ns, memory_order_relaxed);

		if (at == 0 || ctl_ms_since(at) < SILENT_LIMIT_MS)
			continue;
		if (!found || at < atomic_load_explicit(&found->heartbeat_ns, memory_order_relaxed))
			found = &s->threads[i];
	}
	return found;
}

static uint64_t silent_ms(const struct statsfile_thread *t)
{
	return ctl_ms_since(atomic_load_explicit(&t->heartbeat_ns, memory_order_relaxed));
}

enum ctl_exit ctl_stats_judge(const struct statsfile_snapshot *s, char out[CTL_LINE_BYTES])
{
	uint32_t state = atomic_load_explicit(&s->head.state, memory_order_relaxed);
	const struct statsfile_thread *silent = silent_thread(s);

	if (state == STATSFILE_PANICKED) {
		snprintf(out, CTL_LINE_BYTES, "panicked%s", s->alive ? ", still there" : "");
		return s->alive ? CTL_UNHEALTHY : CTL_NO_DAEMON;
	}
	if (!s->alive && state == STATSFILE_STOPPED) {
		snprintf(out, CTL_LINE_BYTES, "stopped");
		return CTL_NO_DAEMON;
	}
	if (!s->alive) {
		snprintf(out, CTL_LINE_BYTES, "dead without a goodbye; it was %s",
			 state_name(state));
		return CTL_NO_DAEMON;
	}
	if (silent) {
		snprintf(out, CTL_LINE_BYTES,
			 "%s, but thread %s has been silent for %" PRIu64 " ms", state_name(state),
			 silent->name, silent_ms(silent));
		return CTL_UNHEALTHY;
	}
	snprintf(out, CTL_LINE_BYTES, "%s", state_name(state));
	return state == STATSFILE_RUNNING ? CTL_OK : CTL_UNHEALTHY;
}

static bool is_torn(const struct statsfile_snapshot *s, const struct statsfile_counter *c)
{
	return c->group < s->head.n_groups && s->torn_group[c->group];
}

uint64_t ctl_samples(const uint64_t *buckets, uint32_t n)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += buckets[i];
	return sum;
}

/* Where this share of the samples ends: "below 8 us", "at least 4194304 us". */
static void quantile_text(const uint64_t *buckets, uint32_t n, double share, char out[64])
{
	double wanted = share * (double)ctl_samples(buckets, n), seen = 0;

	for (uint32_t i = 0; i + 1 < n; i++) {
		seen += (double)buckets[i];
		if (seen >= wanted) {
			snprintf(out, 64, "below %" PRIu64 " us", UINT64_C(1) << i);
			return;
		}
	}
	snprintf(out, 64, "at least %" PRIu64 " us", UINT64_C(1) << (n - 2));
}

static void value_text(const struct statsfile_counter *c, const uint64_t *values,
		       char out[CTL_LINE_BYTES])
{
	uint64_t n = ctl_samples(values, c->values);
	char half[64], most[64];

	if (c->kind == STATSFILE_HISTOGRAM && n > 0 && c->values > 1 && c->values <= 64) {
		quantile_text(values, c->values, .5, half);
		quantile_text(values, c->values, .99, most);
		snprintf(out, CTL_LINE_BYTES, "%" PRIu64 " samples, 50%% %s, 99%% %s", n, half,
			 most);
	} else if (c->kind == STATSFILE_HISTOGRAM) {
		snprintf(out, CTL_LINE_BYTES, "%" PRIu64 " samples", n);
	} else if (!strcmp(c->unit, "bytes")) {
		ctl_size_text(values[0], out, CTL_LINE_BYTES);
	} else {
		snprintf(out, CTL_LINE_BYTES, "%" PRIu64 "%s%s", values[0], c->unit[0] ? " " : "",
			 c->unit);
	}
}

static void print_threads(const struct statsfile_snapshot *s, FILE *out)
{
	for (uint32_t i = 0; i < s->head.n_threads; i++) {
		const struct statsfile_thread *t = &s->threads[i];

		if (atomic_load_explicit(&t->heartbeat_ns, memory_order_relaxed) == 0)
			fprintf(out, "thread %-8s idle\n", t->name);
		else
			fprintf(out, "thread %-8s silent for %" PRIu64 " ms\n", t->name,
				silent_ms(t));
	}
}

static void print_sessions(const struct statsfile_snapshot *s, FILE *out)
{
	for (uint32_t i = 0; i < s->n_sessions; i++) {
		const struct statsfile_session *e = &s->sessions[i];
		uint64_t oldest = atomic_load_explicit(&e->oldest_ns, memory_order_relaxed);
		char client[WIRE_NAME_MAX + 1];

		snprintf(client, sizeof(client), "%.*s", WIRE_NAME_MAX, e->client);
		text_clean(client, strlen(client));
		fprintf(out,
			"session %" PRIu32 "  pid %" PRIu32 "  %s  %" PRIu64 " taken, %" PRIu64
			" answered",
			atomic_load_explicit(&e->id, memory_order_relaxed),
			atomic_load_explicit(&e->pid, memory_order_relaxed), client,
			atomic_load_explicit(&e->submissions, memory_order_relaxed),
			atomic_load_explicit(&e->completions, memory_order_relaxed));
		if (oldest)
			fprintf(out, ", the oldest waits for %" PRIu64 " ms", ctl_ms_since(oldest));
		fputc('\n', out);
	}
}

static void print_counters(const struct statsfile_snapshot *s, bool all, FILE *out)
{
	const char *label = "";
	char text[CTL_LINE_BYTES];
	unsigned hidden = 0;

	for (uint32_t i = 0; i < s->n_counters; i++) {
		const struct statsfile_counter *c = &s->counters[i];
		const uint64_t *values = &s->values[c->first];

		if (!all && ctl_samples(values, c->values) == 0) {
			hidden++;
			continue;
		}
		if (strcmp(label, c->label) != 0)
			fprintf(out, "%s\n", c->label);
		label = c->label;
		value_text(c, values, text);
		fprintf(out, "%s%-28s %s%s\n", c->label[0] ? "  " : "", c->name, text,
			is_torn(s, c) ? "  (torn: read while it was written)" : "");
	}
	if (hidden)
		fprintf(out, "%u more are 0; --all shows them\n", hidden);
}

static void print_head(const struct ctl_options *options, const struct statsfile_snapshot *s,
		       const char *sentence, FILE *out)
{
	fprintf(out, "kvhostd %s, pid %" PRIu32 ", %s\n", s->head.version, s->head.pid, sentence);
	if (s->alive)
		fprintf(out, "started %" PRIu64 " s ago", ctl_ms_since(s->head.start_ns) / 1000);
	else
		fprintf(out, "last values are in %s", options->stats);
	fprintf(out, ", boot epoch %016" PRIx64 "\n", s->head.boot_epoch);
	if (s->panic[0])
		fprintf(out, "panic: %s\n", s->panic);
	print_threads(s, out);
}

static json_t *threads_json(const struct statsfile_snapshot *s)
{
	json_t *threads = json_array();

	for (uint32_t i = 0; i < s->head.n_threads; i++) {
		const struct statsfile_thread *t = &s->threads[i];
		bool idle = atomic_load_explicit(&t->heartbeat_ns, memory_order_relaxed) == 0;

		json_array_append_new(
		    threads,
		    json_pack("{s:s, s:o}", "name", t->name, "silent_ms",
			      idle ? json_null() : json_integer((json_int_t)silent_ms(t))));
	}
	return threads;
}

static json_t *counters_json(const struct statsfile_snapshot *s)
{
	static const char *const kinds[] = {"unknown", "counter", "gauge", "histogram"};
	json_t *counters = json_array();

	for (uint32_t i = 0; i < s->n_counters; i++) {
		const struct statsfile_counter *c = &s->counters[i];
		const uint64_t *values = &s->values[c->first];
		json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I}", "name", c->name,
					"label", c->label, "unit", c->unit, "kind",
					kinds[c->kind <= STATSFILE_HISTOGRAM ? c->kind : 0], "help",
					c->help, "torn", is_torn(s, c), "value",
					(json_int_t)ctl_samples(values, c->values));

		if (c->kind == STATSFILE_HISTOGRAM) {
			json_t *buckets = json_array();

			for (uint32_t b = 0; b < c->values; b++)
				json_array_append_new(buckets, json_integer((json_int_t)values[b]));
			json_object_set_new(row, "buckets", buckets);
		}
		json_array_append_new(counters, row);
	}
	return counters;
}

static json_t *sessions_json(const struct statsfile_snapshot *s)
{
	json_t *sessions = json_array();

	for (uint32_t i = 0; i < s->n_sessions; i++) {
		const struct statsfile_session *e = &s->sessions[i];
		uint64_t oldest = atomic_load_explicit(&e->oldest_ns, memory_order_relaxed);
		char client[WIRE_NAME_MAX + 1];

		snprintf(client, sizeof(client), "%.*s", WIRE_NAME_MAX, e->client);
		for (char *at = client; *at; at++) {
			if (*at < ' ' || *at > '~')
				*at = '?';
		}
		json_array_append_new(
		    sessions,
		    json_pack(
			"{s:I, s:I, s:s, s:I, s:I, s:I}", "id",
			(json_int_t)atomic_load_explicit(&e->id, memory_order_relaxed), "pid",
			(json_int_t)atomic_load_explicit(&e->pid, memory_order_relaxed), "client",
			client, "requests",
			(json_int_t)atomic_load_explicit(&e->submissions, memory_order_relaxed),
			"completions",
			(json_int_t)atomic_load_explicit(&e->completions, memory_order_relaxed),
			"oldest_ms", (json_int_t)(oldest ? ctl_ms_since(oldest) : 0)));
	}
	return sessions;
}

static json_t *head_json(const struct statsfile_snapshot *s, const char *sentence)
{
	uint32_t state = atomic_load_explicit(&s->head.state, memory_order_relaxed);

	return json_pack(
	    "{s:s, s:s, s:s, s:b, s:I, s:o, s:o, s:s*, s:b, s:o}", "version", s->head.version,
	    "state", state_name(state), "summary", sentence, "alive", s->alive, "pid",
	    (json_int_t)s->head.pid, "boot_epoch",
	    json_sprintf("%016llx", (unsigned long long)s->head.boot_epoch), "uptime_s",
	    s->alive ? json_integer((json_int_t)(ctl_ms_since(s->head.start_ns) / 1000))
		     : json_null(),
	    "panic", s->panic[0] ? s->panic : NULL, "torn", s->torn, "threads", threads_json(s));
}

/* Texts of the file go to a terminal and into JSON: printable ASCII, whatever wrote them. */
static void clean(char *text)
{
	for (; *text; text++) {
		if (*text < ' ' || *text > '~')
			*text = '?';
	}
}

void ctl_stats_clean(struct statsfile_snapshot *s)
{
	clean(s->head.version);
	clean(s->panic);
	for (uint32_t i = 0; i < s->head.n_threads; i++)
		clean(s->threads[i].name);
	for (uint32_t i = 0; i < s->n_counters; i++) {
		clean(s->counters[i].name);
		clean(s->counters[i].label);
		clean(s->counters[i].unit);
		clean(s->counters[i].help);
	}
}

int ctl_stats_read(const char *path, struct statsfile_snapshot *out)
{
	struct statsfile_reader reader;
	int r = statsfile_open(&reader, path);

	if (r)
		return r;
	r = statsfile_read(&reader, out);
	statsfile_reader_close(&reader);
	if (r)
		statsfile_snapshot_free(out);
	else
		ctl_stats_clean(out);
	return r;
}

enum ctl_exit ctl_stats_missing(const struct ctl_options *options, int r)
{
	if (r == -ENOENT)
		fprintf(stderr, "kvctl: no daemon: there is no %s\n", options->stats);
	else if (r == -EPROTO)
		fprintf(stderr, "kvctl: %s is not a stats file that this kvctl can read\n",
			options->stats);
	else
		fprintf(stderr, "kvctl: %s: %s\n", options->stats, strerror(-r));
	return r == -ENOENT ? CTL_NO_DAEMON : CTL_UNHEALTHY;
}

enum ctl_exit ctl_stats(const struct ctl_options *options, FILE *out)
{
	struct statsfile_snapshot s = {0};
	char sentence[CTL_LINE_BYTES];
	enum ctl_exit result;
	int r = ctl_stats_read(options->stats, &s);

	if (r)
		return ctl_stats_missing(options, r);
	result = ctl_stats_judge(&s, sentence);
	if (options->json) {
		json_t *root = head_json(&s, sentence);

		json_object_set_new(root, "counters", counters_json(&s));
		json_object_set_new(root, "sessions", sessions_json(&s));
		json_dumpf(root, out, JSON_INDENT(1));
		fputc('\n', out);
		json_decref(root);
	} else {
		print_head(options, &s, sentence, out);
		print_sessions(&s, out);
		print_counters(&s, options->all, out);
	}
	statsfile_snapshot_free(&s);
	return result;
}

enum ctl_exit ctl_stats_health(const struct ctl_options *options, const char *why, bool is_there,
			       FILE *out)
{
	struct statsfile_snapshot s = {0};
	char sentence[CTL_LINE_BYTES];
	enum ctl_exit result;
	int r = ctl_stats_read(options->stats, &s);

	if (r) {
		fprintf(stderr, "kvctl: %s\n", why);
		if (!is_there)
			return ctl_stats_missing(options, r);
		fprintf(stderr, "kvctl: %s: %s\n", options->stats, strerror(-r));
		return CTL_UNHEALTHY;
	}
	result = ctl_stats_judge(&s, sentence);
	if (options->json) {
		json_t *root = head_json(&s, sentence);

		json_object_set_new(root, "answer", json_null());
		json_object_set_new(root, "reason", json_string(why));
		json_dumpf(root, out, JSON_INDENT(1));
		fputc('\n', out);
		json_decref(root);
	} else {
		fprintf(out, "no answer: %s\n", why);
		print_head(options, &s, sentence, out);
	}
	statsfile_snapshot_free(&s);
	/* A daemon that lives and does not answer is not well, whatever its file says. */
	return is_there || result == CTL_OK ? CTL_UNHEALTHY : result;
}
