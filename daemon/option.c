/* SPDX-License-Identifier: Apache-2.0 */
/*
 * option: one row of options.def, and how its value is read from text and written to a struct.
 *
 * Runs at the start, before any thread. Nothing blocks.
 */

#include "daemon/option.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/panic.h"

#define BASE_top        struct config
#define BASE_core       struct config_core
#define BASE_pools      struct config_pool
#define BASE_namespaces struct config_namespace

#define OPTION_ALIAS(section, key, option)
#define OPTION_DEFAULT_POOL(key, value)

const struct option option_table[OPTION_COUNT] = {
#define OPTION(section, key, type, unit, minimum, maximum, value, text)                            \
	{#section, #key,    OPTION_##type,                                                         \
	 unit,     minimum, maximum,                                                               \
	 value,    text,    offsetof(BASE_##section, key)},
#include "daemon/options.def"
#undef OPTION
};

/* Every field is as wide as what is written to it. */
#define FITS_TEXT(bytes, maximum)           ((bytes) > (maximum))
#define FITS_PATH(bytes, maximum)           ((bytes) > (maximum))
#define FITS_WORD(bytes, maximum)           ((bytes) == sizeof(uint32_t))
#define FITS_FORMAT(bytes, maximum)         ((bytes) == sizeof(enum kernel_format))
#define FITS_BOOLEAN(bytes, maximum)        ((bytes) == sizeof(bool))
#define FITS_NUMBER(bytes, maximum)         ((bytes) == sizeof(uint64_t))
#define FITS_NUMBER_OR_NULL(bytes, maximum) ((bytes) == sizeof(uint64_t))
#define FITS_POWER(bytes, maximum)          ((bytes) == sizeof(uint64_t))
#define FITS_SIZE(bytes, maximum)           ((bytes) == sizeof(uint64_t))
#define FITS_SIZE_OR_NULL(bytes, maximum)   ((bytes) == sizeof(uint64_t))
#define FITS_NAMES(bytes, maximum)          ((bytes) == sizeof(struct config_names))
#define FITS_WORDS(bytes, maximum)          ((bytes) == sizeof(uint32_t))
#define FITS_USERS(bytes, maximum)          ((bytes) == sizeof(struct config_ids))
#define FITS_GROUPS(bytes, maximum)         ((bytes) == sizeof(struct config_ids))
#define FITS_SALT(bytes, maximum)           ((bytes) == sizeof(struct config_salt))

#define OPTION(section, key, type, unit, minimum, maximum, value, text)                            \
	_Static_assert(FITS_##type(sizeof(((BASE_##section *)NULL)->key), maximum), #key);
#include "daemon/options.def"
#undef OPTION
#undef OPTION_ALIAS

struct alias {
	const char *section;
	const char *key;
	unsigned option;
};

static const struct alias aliases[] = {
#define OPTION(section, key, type, unit, minimum, maximum, value, text)
#define OPTION_ALIAS(section, key, option) {#section, #key, OPTION_##section##_##option},
#include "daemon/options.def"
#undef OPTION
#undef OPTION_ALIAS
};

struct unit {
	const char *name;
	uint64_t bytes;
};

static const struct unit units[] = {
    {"", 1},
    {"B", 1},
    {"kB", 1000},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
};

unsigned option_find(const char *section, const char *key)
{
	for (unsigned i = 0; i < OPTION_COUNT; i++) {
		if (!strcmp(option_table[i].section, section) && !strcmp(option_table[i].key, key))
			return i;
	}
	for (size_t i = 0; i < sizeof(aliases) / sizeof(*aliases); i++) {
		if (!strcmp(aliases[i].section, section) && !strcmp(aliases[i].key, key))
			return aliases[i].option;
	}
	return OPTION_COUNT;
}

bool option_is_size(const struct option *o)
{
	return o->type == OPTION_SIZE || o->type == OPTION_SIZE_OR_NULL;
}

bool option_is_number(const struct option *o)
{
	return option_is_size(o) || o->type == OPTION_NUMBER || o->type == OPTION_POWER ||
	       o->type == OPTION_NUMBER_OR_NULL;
}

bool option_takes_null(const struct option *o)
{
	return o->type == OPTION_SIZE_OR_NULL || o->type == OPTION_NUMBER_OR_NULL ||
	       o->type == OPTION_SALT;
}

bool option_in_array(const struct option *o)
{
	return !strcmp(o->section, "pools") || !strcmp(o->section, "namespaces");
}

static bool is_top(const struct option *o)
{
	return !strcmp(o->section, "top");
}

_Static_assert(CONFIG_POOLS_MAX == CONFIG_NAMESPACES_MAX, "one index stands for all of them");

void option_path(const struct option *o, unsigned index, char out[OPTION_NAME_BYTES])
{
	if (is_top(o))
		snprintf(out, OPTION_NAME_BYTES, "%s", o->key);
	else if (option_in_array(o) && index < CONFIG_POOLS_MAX)
		snprintf(out, OPTION_NAME_BYTES, "%s[%u].%s", o->section, index, o->key);
	else
		snprintf(out, OPTION_NAME_BYTES, "%s.%s", o->section, o->key);
}

void option_environment_name(const struct option *o, char out[OPTION_NAME_BYTES])
{
	snprintf(out, OPTION_NAME_BYTES, "KVHOST_%s%s%s", is_top(o) ? "" : o->section,
		 is_top(o) ? "" : "_", o->key);
	for (char *at = out; *at; at++)
		*at = (char)toupper((unsigned char)*at);
}

void option_flag_name(const struct option *o, char out[OPTION_NAME_BYTES])
{
	snprintf(out, OPTION_NAME_BYTES, "--%s%s%s", is_top(o) ? "" : o->section,
		 is_top(o) ? "" : "-", o->key);
	for (char *at = out; *at; at++) {
		if (*at == '_')
			*at = '-';
	}
}

void option_size_text(uint64_t bytes, char out[32])
{
	static const struct unit binary[] = {
	    {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}};

	for (size_t i = 0; bytes && i < sizeof(binary) / sizeof(*binary); i++) {
		if (bytes % binary[i].bytes == 0) {
			snprintf(out, 32, "%llu%s", (unsigned long long)(bytes / binary[i].bytes),
				 binary[i].name);
			return;
		}
	}
	snprintf(out, 32, "%llu", (unsigned long long)bytes);
}

static void accepts_number(const struct option *o, char *out, size_t bytes)
{
	char low[32], high[32];
	const char *what = "a whole number";

	snprintf(low, sizeof(low), "%llu", (unsigned long long)o->minimum);
	snprintf(high, sizeof(high), "%llu", (unsigned long long)o->maximum);
	if (o->type == OPTION_POWER)
		what = "a power of two";
	if (option_is_size(o)) {
		what = "a size such as 8MiB, 8MB or 8388608";
		option_size_text(o->minimum, low);
		option_size_text(o->maximum, high);
	}
	snprintf(out, bytes, "accepted is %s from %s to %s%s%s%s", what, low, high,
		 option_is_size(o) ? "" : " ", option_is_size(o) ? "" : o->unit,
		 option_takes_null(o) ? ", or null" : "");
}

static void accepts_list(const struct option *o, char *out, size_t bytes)
{
	if (o->type == OPTION_WORDS)
		snprintf(out, bytes, "accepted is an array of some of %s", o->unit);
	else if (o->type == OPTION_NAMES)
		snprintf(out, bytes, "accepted is an array of at most %llu different names of %s",
			 (unsigned long long)o->maximum, o->unit);
	else
		snprintf(out, bytes,
			 "accepted is an array of at most %llu different %s, each a name or a "
			 "number up to %u, save %u",
			 (unsigned long long)o->maximum, o->unit, CONFIG_ID_MAX, CONFIG_ID_NOBODY);
}

void option_accepts(const struct option *o, char *out, size_t bytes)
{
	switch (o->type) {
	case OPTION_TEXT:
		snprintf(out, bytes,
			 "accepted is a text of %llu to %llu of the characters A-Z a-z 0-9 . _ -",
			 (unsigned long long)o->minimum, (unsigned long long)o->maximum);
		return;
	case OPTION_PATH:
		snprintf(out, bytes, "accepted is an absolute path of at most %llu bytes",
			 (unsigned long long)o->maximum);
		return;
	case OPTION_WORD:
		snprintf(out, bytes, "accepted is one of %s", o->unit);
		return;
	case OPTION_FORMAT:
		snprintf(out, bytes, "accepted is one of %s", kernel_format_names());
		return;
	case OPTION_BOOLEAN:
		snprintf(out, bytes, "accepted is 1, true, yes, on or 0, false, no, off");
		return;
	case OPTION_NUMBER:
	case OPTION_NUMBER_OR_NULL:
	case OPTION_POWER:
	case OPTION_SIZE:
	case OPTION_SIZE_OR_NULL:
		accepts_number(o, out, bytes);
		return;
	case OPTION_NAMES:
	case OPTION_WORDS:
	case OPTION_USERS:
	case OPTION_GROUPS:
		accepts_list(o, out, bytes);
		return;
	case OPTION_SALT:
		snprintf(out, bytes, "accepted is a text of %llu to %llu bytes, or null",
			 (unsigned long long)o->minimum, (unsigned long long)o->maximum);
		return;
	}
	cannot_happen("an option of no type");
}

int option_refuse(const struct option *o, char reason[OPTION_REASON_BYTES], const char *what, ...)
{
	char accepted[512];
	char wrong[400];
	va_list list;

	va_start(list, what);
	vsnprintf(wrong, sizeof(wrong), what, list);
	va_end(list);
	option_accepts(o, accepted, sizeof(accepted));
	snprintf(reason, OPTION_REASON_BYTES, "%s, %s", wrong, accepted);
	return -EINVAL;
}

static void *field(const struct option *o, void *base)
{
	return (char *)base + o->offset;
}

static const void *const_field(const struct option *o, const void *base)
{
	return (const char *)base + o->offset;
}

int option_set_number(const struct option *o, void *base, uint64_t value,
		      char reason[OPTION_REASON_BYTES])
{
	must(option_is_number(o));
	if (value < o->minimum || value > o->maximum)
		return option_refuse(o, reason, "%llu is out of bounds", (unsigned long long)value);
	if (o->type == OPTION_POWER && (value & (value - 1)) != 0)
		return option_refuse(o, reason, "%llu is not a power of two",
				     (unsigned long long)value);
	*(uint64_t *)field(o, base) = value;
	return 0;
}

int option_set_null(const struct option *o, void *base, char reason[OPTION_REASON_BYTES])
{
	if (!option_takes_null(o))
		return option_refuse(o, reason, "null is not a value here");
	if (o->type == OPTION_SALT)
		explicit_bzero(field(o, base), sizeof(struct config_salt));
	else
		*(uint64_t *)field(o, base) = CONFIG_NULL;
	return 0;
}

void option_set_boolean(const struct option *o, void *base, bool value)
{
	must(o->type == OPTION_BOOLEAN);
	*(bool *)field(o, base) = value;
}

/* Digits alone: no sign, no space, no exponent. *end is what follows them. */
static bool read_digits(const char *text, uint64_t *out, const char **end)
{
	uint64_t value = 0;
	const char *at = text;

	for (; *at >= '0' && *at <= '9'; at++) {
		if (__builtin_mul_overflow(value, 10u, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
			return false;
	}
	*out = value;
	*end = at;
	return at != text;
}

static int set_number_text(const struct option *o, void *base, const char *text,
			   char reason[OPTION_REASON_BYTES])
{
	const char *end;
	uint64_t value;

	if (option_takes_null(o) && !strcmp(text, "null"))
		return option_set_null(o, base, reason);
	if (!read_digits(text, &value, &end))
		return option_refuse(o, reason, "\"%.64s\" is not a %s", text,
				     option_is_size(o) ? "size" : "whole number");
	if (!option_is_size(o)) {
		if (*end)
			return option_refuse(o, reason, "\"%.64s\" is not a whole number", text);
		return option_set_number(o, base, value, reason);
	}
	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
		if (strcmp(end, units[i].name) != 0)
			continue;
		if (__builtin_mul_overflow(value, units[i].bytes, &value))
			return option_refuse(o, reason, "\"%.64s\" is out of bounds", text);
		return option_set_number(o, base, value, reason);
	}
	return option_refuse(o, reason, "\"%.64s\" is not a size", text);
}

static int set_boolean_text(const struct option *o, void *base, const char *text,
			    char reason[OPTION_REASON_BYTES])
{
	static const char *const yes[] = {"1", "true", "yes", "on"};
	static const char *const no[] = {"0", "false", "no", "off"};

	for (size_t i = 0; i < 4; i++) {
		if (!strcasecmp(text, yes[i]) || !strcasecmp(text, no[i])) {
			option_set_boolean(o, base, !strcasecmp(text, yes[i]));
			return 0;
		}
	}
	return option_refuse(o, reason, "\"%.64s\" is not a boolean", text);
}

static int set_word(const struct option *o, void *base, const char *text,
		    char reason[OPTION_REASON_BYTES])
{
	size_t length = strlen(text);
	uint32_t index = 0;

	for (const char *at = o->unit; *at; index++) {
		size_t word = strcspn(at, ",");

		if (word == length && !strncmp(at, text, word)) {
			*(uint32_t *)field(o, base) = index;
			return 0;
		}
		at += word;
		at += strspn(at, ", ");
	}
	return option_refuse(o, reason, "\"%.64s\" is none of its words", text);
}

static int set_format(const struct option *o, void *base, const char *text,
		      char reason[OPTION_REASON_BYTES])
{
	enum kernel_format format;

	switch (kernel_format_find(text, &format)) {
	case 0:
		*(enum kernel_format *)field(o, base) = format;
		return 0;
	case KERNEL_FORMAT_REFUSED:
		snprintf(reason, OPTION_REASON_BYTES,
			 "\"%.64s\" is not production-ready, use a dense format: %s", text,
			 kernel_format_names());
		return -EINVAL;
	default:
		return option_refuse(o, reason, "\"%.64s\" is not a known format", text);
	}
}

static int set_string(const struct option *o, void *base, const char *text,
		      char reason[OPTION_REASON_BYTES])
{
	size_t length = strlen(text);

	if (length < o->minimum || length > o->maximum)
		return option_refuse(o, reason, "a text of %zu bytes is out of bounds", length);
	if (o->type == OPTION_PATH && text[0] != '/')
		return option_refuse(o, reason, "\"%.64s\" is not an absolute path", text);
	for (const char *at = text; *at; at++) {
		unsigned char c = (unsigned char)*at;

		if (o->type == OPTION_PATH ? c < ' ' || c > '~' : !isalnum(c) && !strchr("._-", c))
			return option_refuse(o, reason, "character %zu is not allowed",
					     (size_t)(at - text) + 1);
	}
	memcpy(field(o, base), text, length + 1);
	return 0;
}

int option_set_text(const struct option *o, void *base, const char *text,
		    char reason[OPTION_REASON_BYTES])
{
	switch (o->type) {
	case OPTION_TEXT:
	case OPTION_PATH:
		return set_string(o, base, text, reason);
	case OPTION_WORD:
		return set_word(o, base, text, reason);
	case OPTION_FORMAT:
		return set_format(o, base, text, reason);
	case OPTION_BOOLEAN:
		return set_boolean_text(o, base, text, reason);
	case OPTION_NUMBER:
	case OPTION_NUMBER_OR_NULL:
	case OPTION_POWER:
	case OPTION_SIZE:
	case OPTION_SIZE_OR_NULL:
		return set_number_text(o, base, text, reason);
	case OPTION_NAMES:
	case OPTION_WORDS:
	case OPTION_USERS:
	case OPTION_GROUPS:
		return option_list_set_text(o, base, text, reason);
	case OPTION_SALT:
		return strcmp(text, "null") != 0 ? option_set_salt(o, base, text, reason)
						 : option_set_null(o, base, reason);
	}
	cannot_happen("an option of no type");
}

uint64_t option_get_number(const struct option *o, const void *base)
{
	must(option_is_number(o));
	return *(const uint64_t *)const_field(o, base);
}

bool option_get_boolean(const struct option *o, const void *base)
{
	must(o->type == OPTION_BOOLEAN);
	return *(const bool *)const_field(o, base);
}

const char *option_get_text(const struct option *o, const void *base, char buffer[64])
{
	const char *at = o->unit;

	switch (o->type) {
	case OPTION_TEXT:
	case OPTION_PATH:
		return const_field(o, base);
	case OPTION_FORMAT:
		return kernel_format_name(*(const enum kernel_format *)const_field(o, base));
	case OPTION_WORD:
		for (uint32_t i = *(const uint32_t *)const_field(o, base); i > 0; i--) {
			at += strcspn(at, ",");
			at += strspn(at, ", ");
		}
		snprintf(buffer, 64, "%.*s", (int)strcspn(at, ","), at);
		return buffer;
	default:
		cannot_happen("the text of an option that is a number");
	}
}
