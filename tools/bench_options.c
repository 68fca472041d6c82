/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_options: the command line of kvbench, from one table. Main thread, before anything runs.
 */
#include "tools/bench.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_kind {
	KIND_COUNT,
	KIND_LIMIT,
	KIND_LIST,
	KIND_REAL,
	KIND_WORD,
	KIND_TEXT,
	KIND_FLAG,
};

struct option_row {
	const char *field;
	enum option_kind kind;
	size_t offset;
	unsigned modes;
	const char *standard;
	const char *accepted;
	uint64_t lowest, highest;
	const char *text;
};

static const struct option_row rows[] = {
#define OPTION(field, kind, modes, standard, accepted, lowest, highest, text)                      \
	{#field, KIND_##kind, offsetof(struct bench_options, field),                               \
	 modes,  standard,    accepted,                                                            \
	 lowest, highest,     text},
#include "tools/bench_options.def"
#undef OPTION
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static const struct {
	const char *name;
	enum bench_mode mode;
	const char *text;
} modes[] = {
    {"ring", BENCH_RING, "round trips of empty requests, beside a bare ring and a bare line"},
    {"lookup", BENCH_LOOKUP, "lookups that hit, beside hashing and comparing the same tokens"},
    {"replay", BENCH_REPLAY, "requests of a trace: TRACE is JSON lines, plain or gzip"},
    {"idle", BENCH_IDLE, "CPU time of a daemon with two idle clients"},
    {"order", BENCH_ORDER, "hits of the learned order beside lru and the optimum, on TRACE"},
    {"traces", BENCH_TRACES, "no measurement: a made-up trace, for replay"},
    {"claim", BENCH_CLAIM, "retained states that come back, beside a copy past the cache"},
    {"tiers", BENCH_TIERS, "pages between the device and KV-RAM, beside the same copy"},
};

#define MODES (sizeof(modes) / sizeof(*modes))

static void option_name(const struct option_row *row, char *out, size_t bytes)
{
	snprintf(out, bytes, "--%s", row->field);
	for (char *at = out; *at; at++) {
		if (*at == '_')
			*at = '-';
	}
}

static const char *mode_name(enum bench_mode mode)
{
	for (size_t i = 0; i < MODES; i++) {
		if (modes[i].mode == mode)
			return modes[i].name;
	}
	return "?";
}

/* Digits and nothing else: no sign, no blanks, no exponent. */
static bool parse_count(const char *text, size_t length, const struct option_row *row,
			uint64_t *out)
{
	uint64_t value = 0;

	if (length == 0)
		return false;
	for (size_t i = 0; i < length; i++) {
		unsigned digit = (unsigned char)text[i] - '0';

		if (digit > 9 || value > (UINT64_MAX - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	if (value < row->lowest || value > row->highest)
		return false;
	*out = value;
	return true;
}

static bool parse_list(const char *text, const struct option_row *row, struct bench_list *out)
{
	struct bench_list list = {0};
	size_t length;

	for (;; text += length + 1) {
		length = strcspn(text, ",");
		if (list.n == BENCH_LIST_MAX)
			return false;
		if (!parse_count(text, length, row, &list.values[list.n++]))
			return false;
		if (text[length] == '\0')
			break;
	}
	*out = list;
	return true;
}

static bool parse_real(const char *text, const struct option_row *row, double *out)
{
	char *end;
	double value;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	value = strtod(text, &end);
	if (errno || *end || !isfinite(value))
		return false;
	if (value < (double)row->lowest || value > (double)row->highest)
		return false;
	*out = value;
	return true;
}

static bool is_word_of(const char *text, const char *accepted)
{
	size_t length;

	for (;; accepted += length + 1) {
		length = strcspn(accepted, "|");
		if (strlen(text) == length && memcmp(text, accepted, length) == 0)
			return true;
		if (accepted[length] == '\0')
			return false;
	}
}

static bool parse_value(struct bench_options *o, const struct option_row *row, const char *text)
{
	char *place = (char *)o + row->offset;

	switch (row->kind) {
	case KIND_LIMIT:
		if (strcmp(text, "null") == 0) {
			*(uint64_t *)(void *)place = BENCH_NULL;
			return true;
		}
		return parse_count(text, strlen(text), row, (uint64_t *)(void *)place);
	case KIND_COUNT:
		return parse_count(text, strlen(text), row, (uint64_t *)(void *)place);
	case KIND_LIST:
		return parse_list(text, row, (struct bench_list *)(void *)place);
	case KIND_REAL:
		return parse_real(text, row, (double *)(void *)place);
	case KIND_WORD:
		if (!is_word_of(text, row->accepted))
			return false;
		*(const char **)(void *)place = text;
		return true;
	case KIND_TEXT:
		*(const char **)(void *)place = text;
		return text[0] != '\0';
	case KIND_FLAG:
		break;
	}
	return false;
}

static void describe_accepted(const struct option_row *row, char *out, size_t bytes)
{
	const char *shape = "a whole number";

	if (row->kind == KIND_WORD) {
		snprintf(out, bytes, "one of %s", row->accepted);
		return;
	}
	if (row->kind == KIND_TEXT) {
		snprintf(out, bytes, "a text that is not empty");
		return;
	}
	if (row->kind == KIND_LIST)
		shape = "whole numbers with commas between, each";
	if (row->kind == KIND_LIMIT)
		shape = "null or a whole number";
	if (row->kind == KIND_REAL)
		shape = "a number";
	snprintf(out, bytes, "%s from %" PRIu64 " to %" PRIu64, shape, row->lowest, row->highest);
}

static const struct option_row *find_row(const char *argument, size_t length)
{
	char name[64];

	for (size_t i = 0; i < ROWS; i++) {
		option_name(&rows[i], name, sizeof(name));
		if (strlen(name) == length && memcmp(name, argument, length) == 0)
			return &rows[i];
	}
	return NULL;
}

/* One option at argv[*at]; moves *at over its value. */
static int parse_option(struct bench_options *o, int argc, char **argv, int *at,
			struct bench_reason *why)
{
	const char *argument = argv[*at];
	size_t length = strcspn(argument, "=");
	const struct option_row *row = find_row(argument, length);
	const char *value = argument[length] ? argument + length + 1 : NULL;
	char accepted[128];

	if (!row)
		return bench_reason_set(why, "%.*s: no such option; see kvbench --help",
					(int)length, argument);
	if (!(row->modes & o->mode))
		return bench_reason_set(why, "%.*s: not an option of mode %s; see kvbench --help",
					(int)length, argument, mode_name(o->mode));
	if (row->kind == KIND_FLAG) {
		if (value)
			return bench_reason_set(why, "%.*s: takes no value, got \"%s\"",
						(int)length, argument, value);
		*(bool *)((char *)o + row->offset) = true;
		return 0;
	}

	describe_accepted(row, accepted, sizeof(accepted));
	if (!value) {
		if (*at + 1 >= argc)
			return bench_reason_set(why, "%s: needs a value: %s", argument, accepted);
		value = argv[++*at];
	}
	if (!parse_value(o, row, value))
		return bench_reason_set(why, "%.*s: \"%s\" is not accepted: %s", (int)length,
					argument, value, accepted);
	return 0;
}

static int check_page_sizes(const struct bench_options *o, struct bench_reason *why)
{
	for (uint32_t i = 0; i < o->page_sizes.n; i++) {
		if (o->page_sizes.values[i] % 8192 != 0)
			return bench_reason_set(why,
						"--page-sizes: \"%" PRIu64
						"\" is not accepted: a multiple of 8192",
						o->page_sizes.values[i]);
	}
	return 0;
}

static int check_together(const struct bench_options *o, struct bench_reason *why)
{
	if (o->page_tokens != 16 && o->page_tokens != 32 && o->page_tokens != 64)
		return bench_reason_set(
		    why, "--page-tokens: \"%" PRIu64 "\" is not accepted: 16, 32 or 64",
		    o->page_tokens);
	for (uint32_t i = 0; i < o->prompts.n; i++) {
		if (o->prompts.values[i] % o->page_tokens != 0)
			return bench_reason_set(why,
						"--prompts: \"%" PRIu64 "\" is not accepted: a "
						"multiple of --page-tokens %" PRIu64,
						o->prompts.values[i], o->page_tokens);
		for (uint32_t k = 0; k < o->resident.n; k++) {
			if (o->resident.values[k] >= o->prompts.values[i] / o->page_tokens)
				continue;
			return bench_reason_set(
			    why,
			    "--resident: \"%" PRIu64 "\" is not accepted: at "
			    "least %" PRIu64 ", the pages of a prompt of %" PRIu64 " tokens",
			    o->resident.values[k], o->prompts.values[i] / o->page_tokens,
			    o->prompts.values[i]);
		}
	}
	return check_page_sizes(o, why);
}

int bench_options_parse(struct bench_options *o, int argc, char **argv, struct bench_reason *why)
{
	*o = (struct bench_options){.argc = argc, .argv = argv};
	for (size_t i = 0; i < ROWS; i++) {
		bool fits = !rows[i].standard || parse_value(o, &rows[i], rows[i].standard);

		assert(fits);
		(void)fits;
	}
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--help") == 0)
			return BENCH_OPTIONS_HELP;
		if (strcmp(argv[i], "--version") == 0)
			return BENCH_OPTIONS_VERSION;
	}

	for (size_t i = 0; argc > 1 && i < MODES; i++) {
		if (strcmp(argv[1], modes[i].name) == 0)
			o->mode = modes[i].mode;
	}
	if (argc < 2)
		return bench_reason_set(why,
					"no mode given: one of ring, lookup, replay, idle, order, "
					"traces, claim, tiers");
	if (!o->mode)
		return bench_reason_set(why,
					"\"%s\" is not a mode: one of ring, lookup, replay, idle, "
					"order, traces, claim, tiers",
					argv[1]);

	for (int i = 2; i < argc; i++) {
		if (strncmp(argv[i], "--", 2) == 0) {
			if (parse_option(o, argc, argv, &i, why))
				return -1;
		} else if ((o->mode & (BENCH_REPLAY | BENCH_ORDER)) && !o->trace) {
			o->trace = argv[i];
		} else {
			return bench_reason_set(why, "\"%s\" is one argument too many", argv[i]);
		}
	}
	if ((o->mode & (BENCH_REPLAY | BENCH_ORDER)) && !o->trace)
		return bench_reason_set(why, "%s: TRACE is missing: a file of JSON lines",
					mode_name(o->mode));
	return check_together(o, why);
}

void bench_options_help(void)
{
	char name[64], accepted[128], text[192];

	printf("Usage: kvbench MODE [option]...\n"
	       "Measures kvhost against limits of this machine that are measured in the same run.\n"
	       "Starts a daemon of its own ($KVHOSTD, or the kvhostd beside this program, or the\n"
	       "one of PATH) unless --socket is given.\n\nModes:\n");
	for (size_t i = 0; i < MODES; i++)
		printf("  %-12s %s\n",
		       modes[i].mode == BENCH_REPLAY  ? "replay TRACE"
		       : modes[i].mode == BENCH_ORDER ? "order TRACE"
						      : modes[i].name,
		       modes[i].text);

	for (size_t m = 0; m <= MODES; m++) {
		unsigned all = BENCH_RING | BENCH_LOOKUP | BENCH_REPLAY | BENCH_IDLE | BENCH_ORDER |
			       BENCH_CLAIM | BENCH_TIERS;
		unsigned wanted = m == 0 ? all : (unsigned)modes[m - 1].mode;

		printf("\nOptions of %s:\n", m == 0 ? "every mode" : modes[m - 1].name);
		for (size_t i = 0; i < ROWS; i++) {
			if ((rows[i].modes == all) != (m == 0) || !(rows[i].modes & wanted))
				continue;
			option_name(&rows[i], name, sizeof(name));
			text[0] = '\0';
			if (rows[i].kind == KIND_WORD)
				snprintf(text, sizeof(text), " (%s)", rows[i].accepted);
			accepted[0] = '\0';
			if (rows[i].standard)
				snprintf(accepted, sizeof(accepted), " [%s]", rows[i].standard);
			printf("  %-19s%s%s%s\n", name, rows[i].text, text, accepted);
		}
	}
	printf(
	    "\n  --help, --version\n"
	    "\nStatus of a case: measured, failed or unsupported (with the reason). A case that\n"
	    "was measured and misses its bar says so in the bar; that is not a failure.\n"
	    "Exit: 0 no case failed, 1 a case failed, 2 bad arguments.\n");
}
