/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_print: JSON as aligned text.
 *
 * Nothing here knows what the daemon answers: a key that is new shows up by itself. Units are at
 * the end of keys ("heap_bytes", "uptime_s") and move behind the value. One thread; blocks on
 * its output alone.
 */

#include <stdlib.h>
#include <string.h>

#include "shm/text.h"
#include "tools/ctl.h"

#define CELL_BYTES  4096 /* of 64 names, the longest array */
#define COLUMNS_MAX 32

struct unit {
	const char *suffix;
	const char *name;
};

static const struct unit units[] = {
    {"_bytes", "bytes"}, {"_ns", "ns"}, {"_us", "us"}, {"_ms", "ms"}, {"_s", "s"},
};

static const struct unit *unit_of(const char *key)
{
	size_t length = strlen(key);

	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
		size_t suffix = strlen(units[i].suffix);

		if (length > suffix && !strcmp(key + length - suffix, units[i].suffix))
			return &units[i];
	}
	return NULL;
}

void ctl_size_text(unsigned long long bytes, char *out, size_t out_bytes)
{
	static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	unsigned long long whole = bytes, unit = 1;
	unsigned name = 0;

	while (whole >= 1024 && name < 4) {
		whole /= 1024;
		unit *= 1024;
		name++;
	}
	if (bytes % unit == 0)
		snprintf(out, out_bytes, "%llu %s", whole, names[name]);
	else
		snprintf(out, out_bytes, "%.1f %s", (double)bytes / (double)unit, names[name]);
}

static void label_text(const char *key, char out[CELL_BYTES])
{
	const struct unit *unit = unit_of(key);
	size_t length = strlen(key) - (unit ? strlen(unit->suffix) : 0);

	snprintf(out, CELL_BYTES, "%.*s", (int)(length < 200 ? length : 200), key);
	for (char *at = out; *at; at++) {
		if (*at == '_')
			*at = ' ';
	}
	text_clean(out, strlen(out));
}

static void number_text(const char *key, const json_t *value, char out[CELL_BYTES])
{
	const struct unit *unit = unit_of(key);
	json_int_t number = json_integer_value(value);

	if (json_is_real(value))
		snprintf(out, CELL_BYTES, "%.3g%s%s", json_real_value(value), unit ? " " : "",
			 unit ? unit->name : "");
	else if (unit && !strcmp(unit->name, "bytes") && number >= 0)
		ctl_size_text((unsigned long long)number, out, CELL_BYTES);
	else
		snprintf(out, CELL_BYTES, "%lld%s%s", (long long)number, unit ? " " : "",
			 unit ? unit->name : "");
}

/* Of names or numbers: as one is written on the command line. */
static void list_text(const json_t *array, char out[CELL_BYTES])
{
	size_t i, used = 0;
	json_t *item;

	json_array_foreach(array, i, item)
	{
		const char *comma = i ? "," : "";
		int n;

		if (json_is_integer(item))
			n = snprintf(out + used, CELL_BYTES - used, "%s%lld", comma,
				     (long long)json_integer_value(item));
		else
			n = snprintf(out + used, CELL_BYTES - used, "%s%s", comma,
				     json_is_string(item) ? json_string_value(item) : "?");
		if (n < 0 || (size_t)n >= CELL_BYTES - used)
			return;
		used += (size_t)n;
	}
}

static void cell_text(const char *key, const json_t *value, char out[CELL_BYTES])
{
	if (json_is_number(value))
		number_text(key, value, out);
	else if (json_is_array(value) && json_array_size(value))
		list_text(value, out);
	else if (json_is_boolean(value))
		snprintf(out, CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
	else if (json_is_string(value) && json_string_value(value)[0])
		snprintf(out, CELL_BYTES, "%s", json_string_value(value));
	else
		snprintf(out, CELL_BYTES, "-");
	text_clean(out, strlen(out));
}

static bool is_nested(const json_t *value)
{
	return json_is_object(value) || json_is_array(value);
}

/* Objects of plain values are rows of a table. */
static bool is_table(const json_t *array)
{
	const char *key;
	json_t *row, *value;
	size_t i;

	json_array_foreach(array, i, row)
	{
		if (!json_is_object(row))
			return false;
		json_object_foreach((json_t *)row, key, value)
		{
			if (is_nested(value))
				return false;
		}
	}
	return true;
}

static unsigned all_columns(const json_t *rows, const char *out[COLUMNS_MAX])
{
	json_t *first = json_array_get(rows, 0);
	const char *key;
	json_t *value;
	unsigned n = 0;

	json_object_foreach(first, key, value)
	{
		if (n < COLUMNS_MAX && !is_nested(value))
			out[n++] = key;
	}
	return n;
}

static bool is_right_aligned(const json_t *rows, const char *column)
{
	return json_is_number(json_object_get(json_array_get(rows, 0), column));
}

static void print_cell(const char *text, bool right, size_t width, bool last, FILE *out)
{
	if (right)
		fprintf(out, "%*s", (int)width, text);
	else
		fprintf(out, "%-*s", last ? 0 : (int)width, text);
	fputs(last ? "\n" : "  ", out);
}

void ctl_print_table(const json_t *rows, const char *const *columns, unsigned indent, FILE *out)
{
	const char *column[COLUMNS_MAX];
	size_t width[COLUMNS_MAX];
	char cell[CELL_BYTES];
	unsigned n = 0;
	json_t *row;
	size_t i;

	if (!columns)
		n = all_columns(rows, column);
	for (; columns && n < COLUMNS_MAX && columns[n]; n++)
		column[n] = columns[n];
	for (unsigned c = 0; c < n; c++) {
		label_text(column[c], cell);
		width[c] = strlen(cell);
		json_array_foreach(rows, i, row)
		{
			cell_text(column[c], json_object_get(row, column[c]), cell);
			if (strlen(cell) > width[c])
				width[c] = strlen(cell);
		}
	}
	fprintf(out, "%*s", (int)indent, "");
	for (unsigned c = 0; c < n; c++) {
		label_text(column[c], cell);
		print_cell(cell, is_right_aligned(rows, column[c]), width[c], c + 1 == n, out);
	}
	json_array_foreach(rows, i, row)
	{
		fprintf(out, "%*s", (int)indent, "");
		for (unsigned c = 0; c < n; c++) {
			cell_text(column[c], json_object_get(row, column[c]), cell);
			print_cell(cell, is_right_aligned(rows, column[c]), width[c], c + 1 == n,
				   out);
		}
	}
}

/* It may be longer than a cell. */
static void print_sentence(const char *sentence, unsigned indent, FILE *out)
{
	char *text = strdup(sentence);

	if (!text)
		return;
	text_clean(text, strlen(text));
	fprintf(out, "%*s%s\n", (int)indent, "", text);
	free(text);
}

static void print_array(const json_t *array, unsigned indent, FILE *out)
{
	char cell[CELL_BYTES];
	json_t *item;
	size_t i;

	if (json_array_size(array) > 0 && is_table(array)) {
		ctl_print_table(array, NULL, indent, out);
		return;
	}
	json_array_foreach(array, i, item)
	{
		if (json_is_object(item)) {
			if (i > 0)
				fputc('\n', out);
			ctl_print_object(item, indent, out);
			continue;
		}
		if (json_is_string(item)) {
			print_sentence(json_string_value(item), indent, out);
			continue;
		}
		cell_text("", item, cell);
		fprintf(out, "%*s%s\n", (int)indent, "", cell);
	}
}

static size_t label_width(json_t *object)
{
	char label[CELL_BYTES];
	const char *key;
	json_t *value;
	size_t width = 0;

	json_object_foreach(object, key, value)
	{
		label_text(key, label);
		if (!is_nested(value) && strlen(label) > width)
			width = strlen(label);
	}
	return width;
}

void ctl_print_object(const json_t *object, unsigned indent, FILE *out)
{
	size_t width = label_width((json_t *)object);
	char label[CELL_BYTES], cell[CELL_BYTES];
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)object, key, value)
	{
		label_text(key, label);
		if (!is_nested(value)) {
			cell_text(key, value, cell);
			fprintf(out, "%*s%-*s  %s\n", (int)indent, "", (int)width, label, cell);
			continue;
		}
		if (json_is_array(value) && json_array_size(value) == 0) {
			fprintf(out, "%*s%-*s  none\n", (int)indent, "", (int)width, label);
			continue;
		}
		fprintf(out, "%*s%s\n", (int)indent, "", label);
		if (json_is_array(value))
			print_array(value, indent + 2, out);
		else
			ctl_print_object(value, indent + 2, out);
	}
}
