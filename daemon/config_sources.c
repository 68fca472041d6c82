/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_sources: the file's bytes, the environment and the command line.
 *
 * Runs at the start, before any thread; reading the file may block.
 */

#include "daemon/config_sources.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/option.h"
#include "shm/text.h"

#define NEAR_LETTERS 2 /* so many may be wrong in a name that is meant to be another one */

struct taken { /* options that this source has set: each may be set once */
	bool option[OPTION_COUNT];
};

int config_take_file(struct config *c, const char *file, bool must_exist,
		     char error[CONFIG_ERROR_BYTES])
{
	size_t bytes;
	FILE *in;
	char *text;
	int r;

	if (strlen(file) >= CONFIG_FILE_BYTES)
		return config_fail("--config", "the file", "its path is too long", error);
	in = fopen(file, "re");
	if (!in && errno == ENOENT && !must_exist)
		return 0;
	if (!in)
		return config_fail(file, "cannot be opened", strerror(errno), error);
	text = malloc(CONFIG_TEXT_MAX + 1);
	if (!text) {
		fclose(in);
		return config_fail(file, "cannot be read", strerror(ENOMEM), error);
	}
	bytes = fread(text, 1, CONFIG_TEXT_MAX + 1, in);
	if (ferror(in))
		r = config_fail(file, "cannot be read", strerror(errno), error);
	else if (bytes > CONFIG_TEXT_MAX)
		r = config_fail(file, "the file", "longer than 1 MiB", error);
	else
		r = config_take_text(c, file, text, bytes, error);
	explicit_bzero(text, CONFIG_TEXT_MAX + 1); /* with the salts in it */
	free(text);
	fclose(in);
	return r;
}

/* Set one option in its struct, or in every pool. */
static int take_option(struct config *c, unsigned option, const char *value, struct taken *taken,
		       enum config_source source, const char *place, char *error)
{
	const struct option *o = &option_table[option];
	bool in_pools = !strcmp(o->section, "pools");
	unsigned n = in_pools ? c->n_pools : 1;
	char path[OPTION_NAME_BYTES], reason[OPTION_REASON_BYTES];

	option_path(o, CONFIG_POOLS_MAX, path);
	if (taken->option[option])
		return config_fail(place, path, "given twice, accepted is once", error);
	taken->option[option] = true;
	for (unsigned i = 0; i < n; i++) {
		if (option_set_text(o, config_base(c, o, i), value, reason))
			return config_fail(place, path, reason, error);
		*config_origin_of(c, option, i) =
		    (struct config_origin){.option = (uint16_t)option, .source = (uint16_t)source};
	}
	return 0;
}

/* The option behind a name like core-spin-us or CORE_SPIN_US. OPTION_COUNT: none. */
static unsigned find_joined(const char *name, size_t length, char separator, bool upper,
			    bool *in_section)
{
	static const char *const sections[] = {"core", "pools", "namespaces"};
	char key[OPTION_NAME_BYTES];

	*in_section = false;
	if (length >= sizeof(key))
		return OPTION_COUNT;
	for (size_t i = 0; i < length; i++) {
		char c = name[i];

		if (upper ? islower((unsigned char)c) : isupper((unsigned char)c) || c == '_')
			return OPTION_COUNT;
		key[i] = c == separator ? '_' : (char)tolower((unsigned char)c);
	}
	key[length] = 0;
	for (size_t i = 0; i < sizeof(sections) / sizeof(*sections); i++) {
		size_t section = strlen(sections[i]);

		if (strncmp(key, sections[i], section) != 0 || key[section] != '_')
			continue;
		*in_section = true;
		if (!strcmp(sections[i], "namespaces"))
			return OPTION_COUNT; /* in the file only: others can read the rest */
		return option_find(sections[i], key + section + 1);
	}
	return option_find("top", key);
}

static const char prefix[] = "KVHOST_";
#define PREFIX (sizeof(prefix) - 1)

int config_take_environment(struct config *c, char *const *environment,
			    char error[CONFIG_ERROR_BYTES])
{
	struct taken taken = {0};
	bool in_section;
	int r;

	for (; environment && *environment; environment++) {
		const char *name = *environment;
		size_t length = strcspn(name, "=");
		char place[160];
		unsigned option;

		if (strncmp(name, prefix, PREFIX) != 0 || name[length] != '=')
			continue;
		option = find_joined(name + PREFIX, length - PREFIX, '_', true, &in_section);
		snprintf(place, sizeof(place), "environment %.*s",
			 (int)(length < 100 ? length : 100), name);
		if (option == OPTION_COUNT && in_section)
			return config_fail(place, "no such key",
					   "accepted are the keys in kvhostd --help", error);
		if (option == OPTION_COUNT)
			continue; /* the library and the tools have variables of their own */
		r = take_option(c, option, name + length + 1, &taken, CONFIG_FROM_ENVIRONMENT,
				place, error);
		if (r)
			return r;
	}
	return 0;
}

/* ---- variables that nobody reads ---- */

/* Of the library and the tools. */
static const char *const others[] = {"KVHOST_SOCKET", "KVHOST_STATS"};
/* Of those who build and test: no concern of a daemon's. */
static const char *const silent[] = {"KVHOST_BUILD", "KVHOST_CI_LOG", "KVHOST_KEYS", "KVHOST_LONG"};
static const char *const silent_prefixes[] = {"KVHOST_SIM_", "KVHOST_TEST_"};

static bool is_one_of(const char *name, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!strcmp(name, list[i]))
			return true;
	}
	return false;
}

#define IS_ONE_OF(name, list) is_one_of(name, list, sizeof(list) / sizeof(*(list)))

static bool is_known(const char *name)
{
	bool in_section;

	for (size_t i = 0; i < sizeof(silent_prefixes) / sizeof(*silent_prefixes); i++) {
		if (!strncmp(name, silent_prefixes[i], strlen(silent_prefixes[i])))
			return true;
	}
	return IS_ONE_OF(name, others) || IS_ONE_OF(name, silent) ||
	       find_joined(name + PREFIX, strlen(name) - PREFIX, '_', true, &in_section) !=
		   OPTION_COUNT;
}

/* How many letters must be put in, left out or changed, whatever their case. */
static unsigned distance(const char *a, const char *b)
{
	size_t n = strlen(b);
	unsigned row[OPTION_NAME_BYTES + 1];

	must(n <= OPTION_NAME_BYTES);
	for (size_t i = 0; i <= n; i++)
		row[i] = (unsigned)i;
	for (; *a; a++) {
		unsigned diagonal = row[0];

		row[0]++;
		for (size_t i = 1; i <= n; i++) {
			bool same = toupper((unsigned char)*a) == toupper((unsigned char)b[i - 1]);
			unsigned least = diagonal + !same;

			diagonal = row[i];
			if (row[i] + 1 < least)
				least = row[i] + 1;
			if (row[i - 1] + 1 < least)
				least = row[i - 1] + 1;
			row[i] = least;
		}
	}
	return row[n];
}

/* The variable that was meant, perhaps: one written much like this, or with its section left out.
 * Empty: there is none. */
static void find_near(const char *name, char out[OPTION_NAME_BYTES])
{
	unsigned least = NEAR_LETTERS + 1;

	out[0] = 0;
	for (unsigned i = 0; i < OPTION_COUNT + sizeof(others) / sizeof(*others); i++) {
		char other[OPTION_NAME_BYTES], key[OPTION_NAME_BYTES];
		unsigned d;

		if (i >= OPTION_COUNT) {
			snprintf(other, sizeof(other), "%s", others[i - OPTION_COUNT]);
			d = distance(name, other);
		} else if (!strcmp(option_table[i].section, "namespaces")) {
			continue;
		} else {
			option_environment_name(&option_table[i], other);
			snprintf(key, sizeof(key), "%s%s", prefix, option_table[i].key);
			d = distance(name, other);
			if (distance(name, key) < d)
				d = distance(name, key);
		}
		if (d >= least)
			continue;
		least = d;
		memcpy(out, other, sizeof(other));
	}
}

void config_print_unknown(char *const *environment, FILE *out)
{
	for (; environment && *environment; environment++) {
		char name[OPTION_NAME_BYTES], near[OPTION_NAME_BYTES];
		size_t length = strcspn(*environment, "=");

		if (strncmp(*environment, prefix, PREFIX) != 0 || (*environment)[length] != '=')
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)length, *environment);
		if (is_known(name))
			continue;
		text_clean(name, strlen(name));
		find_near(name, near);
		fprintf(out, "environment %s: no such key, it changes nothing%s%s%s\n", name,
			near[0] ? "; is " : "", near, near[0] ? " meant?" : "");
	}
}

struct flag {
	const char *name; /* behind "--" */
	size_t length;
	const char *value; /* NULL: none */
};

static int read_flag(const char *text, struct flag *out, char *error)
{
	if (strncmp(text, "--", 2) != 0 || text[2] == 0)
		return config_fail("command line", text,
				   "not a flag, accepted are those in kvhostd --help", error);
	out->name = text + 2;
	out->length = strcspn(out->name, "=");
	out->value = out->name[out->length] == '=' ? out->name + out->length + 1 : NULL;
	return 0;
}

static bool flag_is(const struct flag *f, const char *name)
{
	return strlen(name) == f->length && !strncmp(f->name, name, f->length);
}

/* A value stands behind '=' or is the next argument. */
static int take_value(int argc, char *const *argv, int *i, struct flag *f, char *error)
{
	if (f->value)
		return 0;
	if (*i + 1 >= argc)
		return config_fail("command line", argv[*i], "no value, accepted is --NAME=VALUE",
				   error);
	f->value = argv[++*i];
	return 0;
}

static enum config_action action_of(const struct flag *f)
{
	if (flag_is(f, "check-config"))
		return CONFIG_CHECK;
	if (flag_is(f, "help"))
		return CONFIG_HELP;
	if (flag_is(f, "version"))
		return CONFIG_VERSION;
	return CONFIG_RUN;
}

/* Both walks over the command line: with c NULL the one for --config and the actions. */
static int walk_flags(struct config *c, int argc, char *const *argv, enum config_action *action,
		      const char **file, char *error)
{
	struct taken taken = {0};
	bool in_section;
	int r;

	for (int i = 1; i < argc; i++) {
		char place[160];
		unsigned option;
		struct flag f = {0};

		r = read_flag(argv[i], &f, error);
		if (r)
			return r;
		if (action_of(&f) != CONFIG_RUN) {
			if (f.value)
				return config_fail("command line", argv[i],
						   "this flag takes no value", error);
			if (action_of(&f) > *action)
				*action = action_of(&f);
			continue;
		}
		option = find_joined(f.name, f.length, '-', false, &in_section);
		if (!flag_is(&f, "config") && option == OPTION_COUNT)
			return config_fail("command line", argv[i],
					   "no such flag, accepted are those in kvhostd --help",
					   error);
		snprintf(place, sizeof(place), "flag --%.*s",
			 (int)(f.length < 100 ? f.length : 100), f.name);
		r = take_value(argc, argv, &i, &f, error);
		if (r)
			return r;
		if (flag_is(&f, "config"))
			*file = f.value;
		else if (c)
			r = take_option(c, option, f.value, &taken, CONFIG_FROM_FLAG, place, error);
		if (r)
			return r;
	}
	return 0;
}

int config_read_command_line(int argc, char *const *argv, enum config_action *action,
			     const char **file, char error[CONFIG_ERROR_BYTES])
{
	*action = CONFIG_RUN;
	*file = NULL;
	return walk_flags(NULL, argc, argv, action, file, error);
}

int config_take_flags(struct config *c, int argc, char *const *argv, char error[CONFIG_ERROR_BYTES])
{
	enum config_action action = CONFIG_RUN;
	const char *file = NULL;

	return walk_flags(c, argc, argv, &action, &file, error);
}
