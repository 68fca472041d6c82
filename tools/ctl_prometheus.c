/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_prometheus: the stats file in the text format of Prometheus, version 0.0.4.
 *
 * Names begin with kvhost_, those of counters end with _total; labels are the names of pools, and
 * of namespaces where the counter's name begins so. Times are in seconds. The file keeps no sum of
 * a histogram's samples, so there is no _sum. One thread; blocks on files alone.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

#define NAME_BYTES  96
#define TEXT_BYTES  512
#define US_A_SECOND 1e6

static const char *const kinds[] = {"untyped", "counter", "gauge", "histogram"};

static const char *kind_name(const struct statsfile_counter *c)
{
	return kinds[c->kind <= STATSFILE_HISTOGRAM ? c->kind : 0];
}

static bool ends_with(const char *text, const char *end)
{
	size_t length = strlen(text), tail = strlen(end);

	return length >= tail && !strcmp(text + length - tail, end);
}

static void metric_name(const struct statsfile_counter *c, char out[NAME_BYTES])
{
	const char *end = "";

	if (c->kind == STATSFILE_COUNTER && !ends_with(c->name, "_total"))
		end = "_total";
	else if (c->kind == STATSFILE_HISTOGRAM && !strcmp(c->unit, "us"))
		end = "_seconds";
	snprintf(out, NAME_BYTES, "kvhost_%s%s", c->name, end);
	for (char *at = out; *at; at++) {
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:",
			    *at))
			*at = '_';
	}
}

/* A backslash before what would end a text: \ and newlines; in labels quotes too. */
static void escape(const char *text, bool label, char out[TEXT_BYTES])
{
	size_t n = 0;

	for (; *text && n + 2 < TEXT_BYTES; text++) {
		bool special = *text == '\\' || *text == '\n' || (label && *text == '"');

		if (special)
			out[n++] = '\\';
		out[n++] = *text == '\n' ? 'n' : *text;
	}
	out[n] = 0;
}

static void print_head_of(const char *name, const char *help, const char *kind, FILE *out)
{
	char text[TEXT_BYTES];

	escape(help, false, text);
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, text, name, kind);
}

/* Bucket k holds what is below 2^k, the last all others. */
static void print_buckets(const struct statsfile_counter *c, const uint64_t *values,
			  const char *name, const char *label, FILE *out)
{
	double unit = ends_with(name, "_seconds") ? US_A_SECOND : 1;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < c->values; i++) {
		char bound[32];

		sum += values[i];
		if (i + 1 == c->values || i > 62)
			snprintf(bound, sizeof(bound), "+Inf");
		else
			snprintf(bound, sizeof(bound), "%.12g", (double)(UINT64_C(1) << i) / unit);
		if (i > 62 && i + 1 != c->values)
			continue;
		fprintf(out, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", name, label,
			label[0] ? "," : "", bound, sum);
	}
	fprintf(out, "%s_count%s%s%s %" PRIu64 "\n", name, label[0] ? "{" : "", label,
		label[0] ? "}" : "", sum);
}

static void print_sample(const struct statsfile_snapshot *s, const struct statsfile_counter *c,
			 const char *name, FILE *out)
{
	const uint64_t *values = &s->values[c->first];
	char text[TEXT_BYTES], label[TEXT_BYTES + 16] = "";

	if (c->label[0]) {
		escape(c->label, true, text);
		snprintf(label, sizeof(label), "%s=\"%s\"",
			 strncmp(c->name, "namespace_", 10) ? "pool" : "namespace", text);
	}
	if (c->kind == STATSFILE_HISTOGRAM)
		print_buckets(c, values, name, label, out);
	else
		fprintf(out, "%s%s%s%s %" PRIu64 "\n", name, label[0] ? "{" : "", label,
			label[0] ? "}" : "", values[0]);
}

/* All samples of a name stand together, as the format wants it. */
static void print_family(const struct statsfile_snapshot *s, uint32_t first, bool *printed,
			 FILE *out)
{
	const struct statsfile_counter *c = &s->counters[first];
	char name[NAME_BYTES];

	metric_name(c, name);
	print_head_of(name, c->help, kind_name(c), out);
	for (uint32_t i = first; i < s->n_counters; i++) {
		if (printed[i] || strcmp(s->counters[i].name, c->name) != 0)
			continue;
		print_sample(s, &s->counters[i], name, out);
		printed[i] = true;
	}
}

static void print_daemon(const struct statsfile_snapshot *s, FILE *out)
{
	char text[TEXT_BYTES];

	print_head_of("kvhost_up", "Whether the daemon lives, perhaps hung.", "gauge", out);
	fprintf(out, "kvhost_up %d\n", s->alive);
	print_head_of("kvhost_torn", "Whether values were read while they were written.", "gauge",
		      out);
	fprintf(out, "kvhost_torn %d\n", s->torn);
	print_head_of("kvhost_info", "Version and state of the daemon.", "gauge", out);
	escape(s->head.version, true, text);
	fprintf(out, "kvhost_info{version=\"%s\",state=\"%s\"} 1\n", text, ctl_stats_state(s));
	print_head_of("kvhost_start_time_seconds", "When the daemon was started, since 1970.",
		      "gauge", out);
	fprintf(out, "kvhost_start_time_seconds %" PRIu64 "\n", s->head.start_realtime);
	print_head_of("kvhost_thread_silent_seconds",
		      "Time since a thread that has work showed that it lives.", "gauge", out);
	for (uint32_t i = 0; i < s->head.n_threads; i++) {
		uint64_t at =
		    atomic_load_explicit(&s->threads[i].heartbeat_ns, memory_order_relaxed);

		escape(s->threads[i].name, true, text);
		fprintf(out, "kvhost_thread_silent_seconds{thread=\"%s\"} %.3f\n", text,
			at ? (double)ctl_ms_since(at) / 1000 : 0.0);
	}
}

enum ctl_exit ctl_prometheus(const struct ctl_options *options, FILE *out)
{
	struct statsfile_snapshot s = {0};
	char sentence[CTL_LINE_BYTES];
	enum ctl_exit result;
	bool *printed;
	int r = ctl_stats_read(options->stats, &s);

	if (r)
		return ctl_stats_missing(options, r);
	result = ctl_stats_judge(&s, sentence);
	printed = calloc((size_t)s.n_counters + 1, sizeof(*printed));
	if (!printed) {
		fprintf(stderr, "kvctl: no memory\n");
		statsfile_snapshot_free(&s);
		return CTL_UNHEALTHY;
	}
	print_daemon(&s, out);
	for (uint32_t i = 0; i < s.n_counters; i++) {
		if (!printed[i])
			print_family(&s, i, printed, out);
	}
	free(printed);
	statsfile_snapshot_free(&s);
	return result;
}
