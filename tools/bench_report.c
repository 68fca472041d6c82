/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_report: the records of kvbench. Main thread; blocks only on standard output.
 */
#include "tools/bench_report.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define FIGURES_MAX 48

struct figure {
	char name[48];
	const char *unit;
	json_t *value;
};

struct report {
	FILE *out;
	bool json;
	bool open;         /* between report_case and the status */
	bool head_printed; /* of the table */
	char name[96];
	struct figure figures[FIGURES_MAX];
	uint32_t n_figures;
	bool has_bar, bar_is_least;
	double ratio, limit;
	uint32_t failures;
};

struct report *report_new(bool json, FILE *out)
{
	struct report *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->json = json;
	r->out = out;
	return r;
}

static void forget_figures(struct report *r)
{
	for (uint32_t i = 0; i < r->n_figures; i++)
		json_decref(r->figures[i].value);
	r->n_figures = 0;
	r->has_bar = false;
	r->open = false;
}

void report_free(struct report **r)
{
	if (!*r)
		return;
	forget_figures(*r);
	free(*r);
	*r = NULL;
}

void report_case(struct report *r, const char *format, ...)
{
	va_list list;

	assert(!r->open);
	va_start(list, format);
	vsnprintf(r->name, sizeof(r->name), format, list);
	va_end(list);
	r->open = true;
}

static void add_figure(struct report *r, const char *name, const char *unit, json_t *value)
{
	struct figure *figure;

	assert(r->open && value);
	assert(r->n_figures < FIGURES_MAX);
	figure = &r->figures[r->n_figures++];
	snprintf(figure->name, sizeof(figure->name), "%s", name);
	figure->unit = unit;
	figure->value = value;
}

/* A quotient by a time that was too short to see has no value. */
static json_t *real_value(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

void report_number(struct report *r, const char *name, const char *unit, double value)
{
	add_figure(r, name, unit, real_value(value));
}

void report_numbers(struct report *r, const char *name, const char *unit, const double *values,
		    size_t n)
{
	json_t *array = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(array, real_value(values[i]));
	add_figure(r, name, unit, array);
}

void report_count(struct report *r, const char *name, const char *unit, uint64_t value)
{
	assert(value <= INT64_MAX);
	add_figure(r, name, unit, json_integer((json_int_t)value));
}

/* Text of the system need not be UTF-8; a record must be. */
static json_t *text_value(const char *text)
{
	json_t *value = json_string(text);
	char plain[1024];

	if (value)
		return value;
	snprintf(plain, sizeof(plain), "%s", text);
	for (char *at = plain; *at; at++) {
		if ((unsigned char)*at >= 0x80)
			*at = '?';
	}
	return json_string(plain);
}

void report_text(struct report *r, const char *name, const char *text)
{
	add_figure(r, name, "", text ? text_value(text) : json_null());
}

void report_bar(struct report *r, double ratio, double limit)
{
	assert(r->open && !r->has_bar);
	r->has_bar = true;
	r->bar_is_least = false;
	r->ratio = ratio;
	r->limit = limit;
}

void report_bar_least(struct report *r, double ratio, double least)
{
	report_bar(r, ratio, least);
	r->bar_is_least = true;
}

static bool is_met(const struct report *r)
{
	return r->bar_is_least ? r->ratio >= r->limit : r->ratio <= r->limit;
}

static void print_json(const struct report *r, const char *status, const char *reason)
{
	json_t *record = json_object();
	char key[80];

	json_object_set_new(record, "case", json_string(r->name));
	json_object_set_new(record, "status", json_string(status));
	if (reason)
		json_object_set_new(record, "reason", text_value(reason));
	for (uint32_t i = 0; i < r->n_figures; i++) {
		const struct figure *f = &r->figures[i];

		snprintf(key, sizeof(key), "%s%s%s", f->name, f->unit[0] ? "_" : "", f->unit);
		json_object_set(record, key, f->value);
	}
	if (r->has_bar)
		json_object_set_new(record, "bar",
				    json_pack("{s:o,s:f,s:b}", "ratio", real_value(r->ratio),
					      r->bar_is_least ? "least" : "limit", r->limit, "met",
					      is_met(r)));
	json_dumpf(record, r->out, JSON_COMPACT | JSON_REAL_PRECISION(7));
	fputc('\n', r->out);
	json_decref(record);
}

static void print_real(double value, char *out, size_t bytes)
{
	double size = value < 0 ? -value : value;

	snprintf(out, bytes, size >= 1000 ? "%.0f" : size >= 10 ? "%.1f" : "%.3f", value);
}

static void print_value(const json_t *value, char *out, size_t bytes)
{
	size_t used = 0;
	char one[32];

	if (json_is_real(value)) {
		print_real(json_real_value(value), out, bytes);
	} else if (json_is_integer(value)) {
		snprintf(out, bytes, "%lld", (long long)json_integer_value(value));
	} else if (json_is_array(value)) {
		out[0] = '\0';
		for (size_t i = 0; i < json_array_size(value) && used + 1 < bytes; i++) {
			print_real(json_real_value(json_array_get(value, i)), one, sizeof(one));
			used +=
			    (size_t)snprintf(out + used, bytes - used, "%s%s", i ? " " : "", one);
		}
	} else {
		snprintf(out, bytes, "%s", json_is_string(value) ? json_string_value(value) : "-");
	}
}

static void print_row(const struct report *r, const char *figure, const char *value,
		      const char *unit)
{
	/* Long texts go beyond the columns so that they move none. */
	fprintf(r->out, "%-26s %-34s ", r->name, figure);
	if (strlen(value) > 14)
		fprintf(r->out, "%-14s %s\n", unit, value);
	else
		fprintf(r->out, "%14s%s%s\n", value, unit[0] ? " " : "", unit);
}

static void print_table(struct report *r, const char *status, const char *reason)
{
	char value[1024];

	if (!r->head_printed)
		fprintf(r->out, "%-26s %-34s %14s %s\n", "case", "figure", "value", "unit");
	r->head_printed = true;

	for (uint32_t i = 0; i < r->n_figures; i++) {
		print_value(r->figures[i].value, value, sizeof(value));
		print_row(r, r->figures[i].name, value, r->figures[i].unit);
	}
	if (r->has_bar) {
		print_real(r->ratio, value, sizeof(value));
		print_row(r, "bar ratio", value, "");
		print_real(r->limit, value, sizeof(value));
		print_row(r, r->bar_is_least ? "bar least" : "bar limit", value,
			  is_met(r) ? "met" : "MISSED");
	}
	print_row(r, "status", status, "");
	if (reason)
		print_row(r, "reason", reason, "");
}

static void end_case(struct report *r, const char *status, const char *reason)
{
	assert(r->open);
	if (r->json)
		print_json(r, status, reason);
	else
		print_table(r, status, reason);
	fflush(r->out);
	forget_figures(r);
}

void report_measured(struct report *r)
{
	end_case(r, "measured", NULL);
}

void report_failed(struct report *r, const char *format, ...)
{
	char reason[1024];
	va_list list;

	va_start(list, format);
	vsnprintf(reason, sizeof(reason), format, list);
	va_end(list);
	r->failures++;
	end_case(r, "failed", reason);
}

void report_unsupported(struct report *r, const char *format, ...)
{
	char reason[1024];
	va_list list;

	va_start(list, format);
	vsnprintf(reason, sizeof(reason), format, list);
	va_end(list);
	end_case(r, "unsupported", reason);
}

uint32_t report_failures(const struct report *r)
{
	return r->failures;
}
