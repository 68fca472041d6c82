/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_json: the configuration file.
 *
 * jansson says what the text means; it does not say where a value stood. But it keeps the keys of
 * an object in their order, so a walk over its tree meets them as they stand in the text, and a
 * small scan beside the walk gives each key its line. Runs at the start; nothing blocks.
 */

#include <errno.h>
#include <jansson.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/option.h"

struct reader {
	struct config *config;
	const char *file;
	const char *at; /* behind the key that was visited last */
	const char *end;
	uint32_t line; /* of that key */
	uint32_t at_line;
	char *error;
};

/* Move behind the next key: a string with a colon behind it. The text is known to be JSON. */
static void next_key(struct reader *r)
{
	while (r->at < r->end) {
		char c = *r->at++;

		if (c == '\n')
			r->at_line++;
		if (c != '"')
			continue;
		for (; r->at < r->end && *r->at != '"'; r->at++) {
			if (*r->at == '\\')
				r->at++;
		}
		must(r->at < r->end);
		r->at++;
		r->line = r->at_line;
		while (r->at < r->end && strchr(" \t\r\n", *r->at)) {
			r->at_line += *r->at == '\n';
			r->at++;
		}
		if (r->at < r->end && *r->at == ':')
			return;
	}
	cannot_happen("fewer keys in the text than in its tree");
}

__attribute__((format(printf, 3, 4))) static int fail(struct reader *r, const char *key,
						      const char *format, ...)
{
	char reason[OPTION_REASON_BYTES];
	char place[CONFIG_FILE_BYTES + 16];
	va_list list;

	va_start(list, format);
	vsnprintf(reason, sizeof(reason), format, list);
	va_end(list);
	snprintf(place, sizeof(place), "%s:%u", r->file, r->line);
	return config_fail(place, key, reason, r->error);
}

static const char *type_name(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a text";
	case JSON_INTEGER:
		return "a whole number";
	case JSON_REAL:
		return "a number with a fraction or an exponent";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	case JSON_NULL:
		return "null";
	}
	cannot_happen("a JSON value of no type");
}

/* Texts stand for sizes ("8MiB") and booleans ("on") too, never for plain numbers. */
static bool text_is_right(const struct option *o)
{
	return !option_is_number(o) || option_is_size(o);
}

static int set_list(const struct option *o, void *base, const json_t *value,
		    char reason[OPTION_REASON_BYTES])
{
	int e = 0;

	if (!json_is_array(value))
		return option_refuse(o, reason, "%s is the wrong type", type_name(value));
	option_list_clear(o, base);
	for (size_t i = 0; !e && i < json_array_size(value); i++) {
		const json_t *item = json_array_get(value, i);

		if (json_is_string(item))
			e = option_list_add_text(o, base, json_string_value(item), reason);
		else if (json_is_integer(item) && option_is_ids(o) && json_integer_value(item) >= 0)
			e = option_list_add_number(o, base, (uint64_t)json_integer_value(item),
						   reason);
		else if (json_is_integer(item))
			e = option_refuse(o, reason, "item %zu is %lld", i + 1,
					  json_integer_value(item));
		else
			e = option_refuse(o, reason, "item %zu is %s", i + 1, type_name(item));
	}
	return e;
}

static int set_value(const struct option *o, void *base, const json_t *value,
		     char reason[OPTION_REASON_BYTES])
{
	if (option_is_list(o))
		return set_list(o, base, value, reason);
	if (json_is_null(value))
		return option_set_null(o, base, reason);
	if (json_is_string(value) && text_is_right(o)) {
		if (option_takes_null(o) && !strcmp(json_string_value(value), "null"))
			return option_refuse(o, reason, "\"null\" is a text");
		return option_set_text(o, base, json_string_value(value), reason);
	}
	if (json_is_integer(value) && option_is_number(o)) {
		json_int_t number = json_integer_value(value);

		if (number < 0)
			return option_refuse(o, reason, "%lld is out of bounds", number);
		return option_set_number(o, base, (uint64_t)number, reason);
	}
	if (o->type == OPTION_BOOLEAN && json_is_boolean(value)) {
		option_set_boolean(o, base, json_boolean_value(value));
		return 0;
	}
	if (o->type == OPTION_BOOLEAN && json_is_integer(value)) {
		json_int_t number = json_integer_value(value);

		if (number != 0 && number != 1)
			return option_refuse(o, reason, "%lld is not a boolean", number);
		option_set_boolean(o, base, number == 1);
		return 0;
	}
	return option_refuse(o, reason, "%s is the wrong type", type_name(value));
}

/* Names may be any bytes; what people and JSON get has the printable ones only. */
static void printable(char *out, size_t bytes, const char *prefix, const char *name)
{
	int n = snprintf(out, bytes, "%s%s", prefix, name);

	must(n >= 0);
	for (char *at = out; *at; at++) {
		if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
			*at = '?';
	}
}

static int take_member(struct reader *r, const char *section, unsigned index, const char *key,
		       const json_t *value)
{
	char reason[OPTION_REASON_BYTES];
	char prefix[32] = "", path[OPTION_NAME_BYTES];
	struct config_origin *origin;
	const struct option *o;
	unsigned option;

	if (!strcmp(section, "pools") || !strcmp(section, "namespaces"))
		snprintf(prefix, sizeof(prefix), "%s[%u].", section, index);
	else if (strcmp(section, "top") != 0)
		snprintf(prefix, sizeof(prefix), "%s.", section);
	printable(path, sizeof(path), prefix, key);

	option = option_find(section, key);
	if (option == OPTION_COUNT)
		return fail(r, path, "no such key, accepted are the keys in kvhostd --help");
	o = &option_table[option];
	origin = config_origin_of(r->config, option, index);
	if (origin->source == CONFIG_FROM_FILE)
		return fail(r, path,
			    "%s was given on line %u under its other name, accepted is "
			    "one of the two",
			    o->key, origin->line);
	if (set_value(o, config_base(r->config, o, index), value, reason))
		return fail(r, path, "%s", reason);
	*origin = (struct config_origin){
	    .line = r->line, .option = (uint16_t)option, .source = CONFIG_FROM_FILE};
	return 0;
}

static int take_object(struct reader *r, const char *section, unsigned index, json_t *object)
{
	const char *key;
	json_t *value;
	int e;

	json_object_foreach(object, key, value)
	{
		next_key(r);
		e = take_member(r, section, index, key, value);
		if (e)
			return e;
	}
	return 0;
}

/* Pools or namespaces: objects that have a name. None listed: what there is without stays. */
static int take_array(struct reader *r, const char *section, json_t *array, unsigned most)
{
	struct config *c = r->config;
	bool pools = !strcmp(section, "pools");
	unsigned name = pools ? OPTION_pools_name : OPTION_namespaces_name;
	uint32_t array_line = r->line;
	char path[OPTION_NAME_BYTES];
	int e;

	if (!json_is_array(array))
		return fail(r, section, "%s is the wrong type, accepted is an array of objects",
			    type_name(array));
	if (json_array_size(array) > most)
		return fail(r, section, "%zu %s are too many, accepted are at most %u",
			    json_array_size(array), section, most);
	if (json_array_size(array) == 0)
		return 0;

	*(pools ? &c->n_pools : &c->n_namespaces) = (uint32_t)json_array_size(array);
	c->has_namespaces |= !pools;
	for (unsigned i = 0; i < json_array_size(array); i++) {
		json_t *object = json_array_get(array, i);

		snprintf(path, sizeof(path), "%s[%u]", section, i);
		if (!json_is_object(object))
			return fail(r, path, "%s is the wrong type, accepted is an object",
				    type_name(object));
		if (pools)
			config_pool_start(&c->pools[i]);
		else
			config_namespace_start(&c->namespaces[i]);
		e = take_object(r, section, i, object);
		if (e)
			return e;
		if (config_origin_of(c, name, i)->source != CONFIG_FROM_FILE) {
			if (json_object_size(object) == 0)
				r->line = array_line;
			return fail(r, path, "has no name, accepted is an object with a name");
		}
	}
	return 0;
}

static int take_root(struct reader *r, json_t *root)
{
	const char *key;
	json_t *value;
	int e;

	if (!json_is_object(root)) {
		r->line = 1;
		return fail(r, "the file", "%s is the wrong type, accepted is an object",
			    type_name(root));
	}
	json_object_foreach(root, key, value)
	{
		next_key(r);
		if (!strcmp(key, "namespaces"))
			e = take_array(r, key, value, CONFIG_NAMESPACES_MAX);
		else if (!strcmp(key, "pools"))
			e = take_array(r, key, value, CONFIG_POOLS_MAX);
		else if (strcmp(key, "core") != 0)
			e = take_member(r, "top", 0, key, value);
		else if (!json_is_object(value))
			e = fail(r, key, "%s is the wrong type, accepted is an object",
				 type_name(value));
		else
			e = take_object(r, "core", 0, value);
		if (e)
			return e;
	}
	return 0;
}

/* The key in a duplicate's message, which reads: duplicate object key near '"KEY"'. */
static void duplicate_key(const char *text, char out[OPTION_NAME_BYTES])
{
	const char *from = strstr(text, "near '\"");
	size_t length;

	printable(out, OPTION_NAME_BYTES, "", "a key");
	if (!from)
		return;
	from += strlen("near '\"");
	length = strcspn(from, "\"");
	if (length < OPTION_NAME_BYTES) {
		memcpy(out, from, length);
		out[length] = 0;
	}
}

/* Salts are read with the rest: nothing of the text stays in freed memory. */
static void wipe_and_free(void *memory)
{
	if (memory)
		explicit_bzero(memory, malloc_usable_size(memory));
	free(memory);
}

int config_take_text(struct config *c, const char *file, const char *text, size_t bytes,
		     char error[CONFIG_ERROR_BYTES])
{
	struct reader r = {.config = c,
			   .file = file,
			   .at = text,
			   .end = text + bytes,
			   .at_line = 1,
			   .error = error};
	char key[OPTION_NAME_BYTES];
	json_error_t json_error;
	json_t *root;
	int e;

	printable(c->file, sizeof(c->file), "", file);
	json_set_alloc_funcs(malloc, wipe_and_free);
	root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
	if (!root) {
		r.line = json_error.line > 0 ? (uint32_t)json_error.line : 1;
		json_set_alloc_funcs(malloc, free);
		if (json_error_code(&json_error) == json_error_duplicate_key) {
			duplicate_key(json_error.text, key);
			return fail(&r, key, "given twice, accepted is once");
		}
		return fail(&r, "the file", "%s, accepted is one JSON object", json_error.text);
	}
	e = take_root(&r, root);
	json_decref(root);
	json_set_alloc_funcs(malloc, free);
	return e;
}
