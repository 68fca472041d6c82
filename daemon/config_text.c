/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_text: the options as people and tools read them: JSON, --help, the manual page.
 *
 * config_describe_json: the core thread, at an operator's question. Nothing blocks.
 */

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/option.h"

static json_t *list_json(const struct option *o, const void *base)
{
	json_t *list = json_array();
	char text[OPTION_NAME_BYTES];
	uint64_t number = 0;

	for (uint32_t i = 0; option_list_item(o, base, i, text, &number); i++)
		json_array_append_new(list, option_is_ids(o) ? json_integer((json_int_t)number)
							     : json_string(text));
	return list;
}

static json_t *value_json(const struct option *o, const void *base)
{
	const struct config_salt *salt = (const void *)((const char *)base + o->offset);
	char buffer[64];

	if (option_is_list(o))
		return list_json(o, base);
	if (o->type == OPTION_SALT)
		return salt->is_set ? json_string("(set, not shown)") : json_null();
	if (o->type == OPTION_BOOLEAN)
		return json_boolean(option_get_boolean(o, base));
	if (!option_is_number(o))
		return json_string(option_get_text(o, base, buffer));
	if (option_get_number(o, base) == CONFIG_NULL)
		return json_null();
	if (option_get_number(o, base) == CONFIG_AUTO)
		return json_string("auto");
	return json_integer((json_int_t)option_get_number(o, base));
}

/* 0, or -1 for lack of memory. */
static int append_option(json_t *values, const struct config *c, unsigned option, unsigned index)
{
	const struct option *o = &option_table[option];
	const struct config_origin *origin = &c->origin[option];
	char path[OPTION_NAME_BYTES], place[CONFIG_FILE_BYTES + 32];
	const void *base = c;

	if (!strcmp(o->section, "core"))
		base = &c->core;
	if (!strcmp(o->section, "pools")) {
		base = &c->pools[index];
		origin = &c->pools[index].origin[option];
	}
	if (!strcmp(o->section, "namespaces")) {
		base = &c->namespaces[index];
		origin = &c->namespaces[index].origin[option];
	}
	option_path(o, index, path);
	config_origin_text(c, origin, place, sizeof(place));
	return json_array_append_new(values, json_pack("{s:s, s:o, s:s, s:s, s:s}", "key", path,
						       "value", value_json(o, base), "unit",
						       option_is_number(o) ? o->unit : "", "origin",
						       place, "help", o->text));
}

static int append_section(json_t *values, const struct config *c, const char *section,
			  unsigned index)
{
	int failed = 0;

	for (unsigned i = 0; i < OPTION_COUNT && !failed; i++) {
		if (!strcmp(option_table[i].section, section))
			failed = append_option(values, c, i, index);
	}
	return failed;
}

static json_t *values_json(const struct config *c)
{
	json_t *values = json_array();
	int failed = values ? 0 : -1;

	for (unsigned i = 0; i < OPTION_COUNT && !failed; i++) {
		if (!option_in_array(&option_table[i]))
			failed = append_option(values, c, i, 0);
	}
	for (unsigned i = 0; i < c->n_pools && !failed; i++)
		failed = append_section(values, c, "pools", i);
	for (unsigned i = 0; i < c->n_namespaces && !failed; i++)
		failed = append_section(values, c, "namespaces", i);
	if (failed) {
		json_decref(values);
		return NULL;
	}
	return values;
}

char *config_describe_json(const struct config *c)
{
	json_t *values = values_json(c);
	json_t *root;
	char *text;

	if (!values)
		return NULL;
	root = json_pack("{s:s, s:o}", "file", c->file, "values", values);
	if (!root)
		return NULL;
	text = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return text;
}

void config_print_help(FILE *out)
{
	char flag[OPTION_NAME_BYTES], accepted[512];

	fprintf(out,
		"kvhostd: the KV cache of this host, as a service\n\n"
		"usage: kvhostd [--config FILE] [--SECTION-KEY=VALUE]...\n\n"
		"  --config FILE    the configuration (" CONFIG_FILE ", if it is there)\n"
		"  --check-config   check what was given, not what the host has; do not start\n"
		"  --help           this text\n"
		"  --version        the version\n\n"
		"Flags go over environment variables, those over the file. The variable of\n"
		"--core-spin-us is KVHOST_CORE_SPIN_US, its key in the file spin_us in the\n"
		"object core. Flags --pools-... and variables KVHOST_POOLS_... set a key in\n"
		"every pool; in the file, pools is an array of objects, and so is namespaces,\n"
		"whose keys stand in the file only. An array is written with commas here.\n");
	for (unsigned i = 0; i < OPTION_COUNT; i++) {
		const struct option *o = &option_table[i];

		option_flag_name(o, flag);
		if (!strcmp(o->section, "namespaces"))
			option_path(o, CONFIG_NAMESPACES_MAX, flag);
		option_accepts(o, accepted, sizeof(accepted));
		fprintf(out, "\n  %s=%s\n      %s\n      %s\n", flag, o->value, o->text, accepted);
	}
}

/* Hyphens that are typed, and backslashes, must reach the page as they are. */
static void print_roff(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '-')
			fputs("\\-", out);
		else if (*text == '\\')
			fputs("\\e", out);
		else
			fputc(*text, out);
	}
}

void config_print_manual(FILE *out)
{
	static const char *const headings[][2] = {{"top", "TOP LEVEL"},
						  {"core", "SECTION CORE"},
						  {"pools", "SECTION POOLS"},
						  {"namespaces", "SECTION NAMESPACES"}};
	char accepted[512];

	for (size_t s = 0; s < sizeof(headings) / sizeof(*headings); s++) {
		fprintf(out, ".SH \"%s\"\n", headings[s][1]);
		for (unsigned i = 0; i < OPTION_COUNT; i++) {
			const struct option *o = &option_table[i];

			if (strcmp(o->section, headings[s][0]) != 0)
				continue;
			option_accepts(o, accepted, sizeof(accepted));
			fprintf(out, ".TP\n.B %s\n", o->key);
			print_roff(out, o->text);
			fprintf(out, "\nDefault: ");
			print_roff(out, o->value[0] ? o->value : "none");
			fprintf(out, "; ");
			print_roff(out, accepted);
			fprintf(out, ".\n");
		}
	}
}
