/* SPDX-License-Identifier: Apache-2.0 */
/*
 * option_list: options that are lists: names, words, users and groups.
 *
 * Runs at the start, before any thread; looking up a user or group may block.
 */

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/option.h"

#define ITEM_BYTES 256

bool option_is_list(const struct option *o)
{
	return o->type == OPTION_NAMES || o->type == OPTION_WORDS || option_is_ids(o);
}

bool option_is_ids(const struct option *o)
{
	return o->type == OPTION_USERS || o->type == OPTION_GROUPS;
}

static void *field(const struct option *o, void *base)
{
	return (char *)base + o->offset;
}

static const void *const_field(const struct option *o, const void *base)
{
	return (const char *)base + o->offset;
}

void option_list_clear(const struct option *o, void *base)
{
	must(option_is_list(o));
	if (option_is_ids(o))
		((struct config_ids *)field(o, base))->n = 0;
	else if (o->type == OPTION_NAMES)
		((struct config_names *)field(o, base))->n = 0;
	else
		*(uint32_t *)field(o, base) = 0;
}

static int refuse_long(const struct option *o, char *reason)
{
	return option_refuse(o, reason, "more than %llu are too many",
			     (unsigned long long)o->maximum);
}

int option_list_add_number(const struct option *o, void *base, uint64_t number,
			   char reason[OPTION_REASON_BYTES])
{
	struct config_ids *ids = field(o, base);

	if (!option_is_ids(o))
		return option_refuse(o, reason, "%llu is a number", (unsigned long long)number);
	if (number > CONFIG_ID_MAX || number == CONFIG_ID_NOBODY)
		return option_refuse(o, reason, "%llu is none", (unsigned long long)number);
	for (uint32_t i = 0; i < ids->n; i++) {
		if (ids->id[i] == number)
			return option_refuse(o, reason, "%llu is there twice",
					     (unsigned long long)number);
	}
	if (ids->n == o->maximum)
		return refuse_long(o, reason);
	ids->id[ids->n++] = (uint32_t)number;
	return 0;
}

static int add_user_or_group(const struct option *o, void *base, const char *text, char *reason)
{
	bool user = o->type == OPTION_USERS;
	const struct passwd *pw = user ? getpwnam(text) : NULL;
	const struct group *gr = user ? NULL : getgrnam(text);

	if (!pw && !gr)
		return option_refuse(o, reason, "this host has no %s \"%.64s\"",
				     user ? "user" : "group", text);
	return option_list_add_number(o, base, pw ? pw->pw_uid : gr->gr_gid, reason);
}

static int add_word(const struct option *o, void *base, const char *text, char *reason)
{
	uint32_t *bits = field(o, base), bit = 1;

	for (const char *at = o->unit; *at; bit <<= 1) {
		size_t word = strcspn(at, ",");

		if (word == strlen(text) && !strncmp(at, text, word)) {
			if (*bits & bit)
				return option_refuse(o, reason, "\"%s\" is there twice", text);
			*bits |= bit;
			return 0;
		}
		at += word;
		at += strspn(at, ", ");
	}
	return option_refuse(o, reason, "\"%.64s\" is none of its words", text);
}

static int add_name(const struct option *o, void *base, const char *text, char *reason)
{
	struct config_names *names = field(o, base);

	if (text[0] == 0 || strlen(text) >= sizeof(names->name[0]))
		return option_refuse(o, reason, "a name of %zu bytes is out of bounds",
				     strlen(text));
	for (const char *at = text; *at; at++) {
		if (!isalnum((unsigned char)*at) && !strchr("._-", *at))
			return option_refuse(o, reason, "a name with character %zu is none",
					     (size_t)(at - text) + 1);
	}
	for (uint32_t i = 0; i < names->n; i++) {
		if (!strcmp(names->name[i], text))
			return option_refuse(o, reason, "\"%s\" is there twice", text);
	}
	if (names->n == o->maximum)
		return refuse_long(o, reason);
	memcpy(names->name[names->n++], text, strlen(text) + 1);
	return 0;
}

int option_list_add_text(const struct option *o, void *base, const char *text,
			 char reason[OPTION_REASON_BYTES])
{
	must(option_is_list(o));
	if (option_is_ids(o))
		return add_user_or_group(o, base, text, reason);
	return o->type == OPTION_WORDS ? add_word(o, base, text, reason)
				       : add_name(o, base, text, reason);
}

int option_list_set_text(const struct option *o, void *base, const char *text,
			 char reason[OPTION_REASON_BYTES])
{
	char item[ITEM_BYTES];

	option_list_clear(o, base);
	while (*text) {
		size_t length = strcspn(text, ",");
		int r;

		if (length >= sizeof(item))
			return option_refuse(o, reason, "an item of %zu bytes is out of bounds",
					     length);
		memcpy(item, text, length);
		item[length] = 0;
		r = option_list_add_text(o, base, item, reason);
		if (r)
			return r;
		text += length;
		text += strspn(text, ", ");
	}
	return 0;
}

bool option_list_item(const struct option *o, const void *base, uint32_t index,
		      char text[OPTION_NAME_BYTES], uint64_t *number)
{
	const struct config_names *names = const_field(o, base);
	const struct config_ids *ids = const_field(o, base);
	uint32_t bits;

	text[0] = 0;
	if (option_is_ids(o)) {
		if (index < ids->n)
			*number = ids->id[index];
		return index < ids->n;
	}
	if (o->type == OPTION_NAMES) {
		if (index < names->n)
			snprintf(text, OPTION_NAME_BYTES, "%s", names->name[index]);
		return index < names->n;
	}
	bits = *(const uint32_t *)const_field(o, base);
	for (const char *at = o->unit; *at; bits >>= 1) {
		size_t word = strcspn(at, ",");

		if ((bits & 1) && index-- == 0) {
			snprintf(text, OPTION_NAME_BYTES, "%.*s", (int)word, at);
			return true;
		}
		at += word;
		at += strspn(at, ", ");
	}
	return false;
}

/* ---- a salt: a text that nobody is shown ---- */

int option_set_salt(const struct option *o, void *base, const char *text,
		    char reason[OPTION_REASON_BYTES])
{
	struct config_salt *salt = field(o, base);
	size_t length = strlen(text);

	must(o->type == OPTION_SALT);
	if (length < o->minimum || length > o->maximum)
		return option_refuse(o, reason, "a text of %zu bytes is out of bounds", length);
	explicit_bzero(salt, sizeof(*salt));
	memcpy(salt->text, text, length);
	salt->is_set = true;
	return 0;
}
