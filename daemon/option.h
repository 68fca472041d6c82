/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_OPTION_H
#define KVHOST_OPTION_H

/*
 * option: one row of options.def, and how its value is read from text and written to a struct.
 *
 * The private part of config. Pure functions on memory; nothing blocks.
 */

#include "daemon/config.h"

enum option_type {
	OPTION_TEXT,
	OPTION_PATH,
	OPTION_WORD,
	OPTION_FORMAT,
	OPTION_BOOLEAN,
	OPTION_NUMBER,
	OPTION_NUMBER_OR_NULL,
	OPTION_POWER,
	OPTION_SIZE,
	OPTION_SIZE_OR_NULL,
	OPTION_NAMES, /* lists: of names of other things */
	OPTION_WORDS,
	OPTION_USERS,
	OPTION_GROUPS,
	OPTION_SALT,
};

struct option {
	const char *section; /* "top", "core", "pools", "namespaces" */
	const char *key;
	enum option_type type;
	const char *unit; /* or the words */
	uint64_t minimum;
	uint64_t maximum;
	const char *value; /* the default */
	const char *text;
	size_t offset; /* in the struct of its section */
};

#define OPTION_REASON_BYTES 1024 /* what was wrong and what is accepted */
#define OPTION_NAME_BYTES   96

extern const struct option option_table[OPTION_COUNT];

/* Internal to config: where a value of option `o` lies. index: of the pool or namespace, ignored
 * elsewhere. */
void *config_base(struct config *c, const struct option *o, unsigned index);
struct config_origin *config_origin_of(struct config *c, unsigned option, unsigned index);
void config_pool_start(struct config_pool *p); /* the defaults of a pool that the file lists */
void config_namespace_start(struct config_namespace *n); /* likewise */
/* A value that is fine alone and wrong beside another. Always -EINVAL. */
int config_fail_at(struct config *c, unsigned option, unsigned index,
		   char error[CONFIG_ERROR_BYTES], const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* What namespaces and pools must be together; names become bits. 0 or -EINVAL. */
int config_finish_namespaces(struct config *c, char error[CONFIG_ERROR_BYTES]);
/* "PLACE: KEY: reason" into error. Always -EINVAL. */
int config_fail(const char *place, const char *key, const char *reason,
		char error[CONFIG_ERROR_BYTES]);

/* The option that `key` names in `section`, directly or as an alias; OPTION_COUNT: none. */
unsigned option_find(const char *section, const char *key);

bool option_is_size(const struct option *o);
bool option_is_number(const struct option *o); /* sizes too */
bool option_takes_null(const struct option *o);

/* "core.spin_us"; "pools[2].map" for pool 2; "pools.map" for CONFIG_POOLS_MAX, all of them. */
void option_path(const struct option *o, unsigned index, char out[OPTION_NAME_BYTES]);
bool option_in_array(const struct option *o); /* its section is one of many */
void option_environment_name(const struct option *o, char out[OPTION_NAME_BYTES]);
void option_flag_name(const struct option *o, char out[OPTION_NAME_BYTES]); /* with its "--" */

/*
 * Set the option's field in `base` (the struct of its section). 0, or -EINVAL and the reason:
 * "what was wrong, what is accepted".
 */
int option_set_text(const struct option *o, void *base, const char *text,
		    char reason[OPTION_REASON_BYTES]);
int option_set_number(const struct option *o, void *base, uint64_t value,
		      char reason[OPTION_REASON_BYTES]);
int option_set_null(const struct option *o, void *base, char reason[OPTION_REASON_BYTES]);
void option_set_boolean(const struct option *o, void *base, bool value);

/* Lists: empty it, then add to it. As the others. */
bool option_is_list(const struct option *o);
bool option_is_ids(const struct option *o); /* users or groups */
void option_list_clear(const struct option *o, void *base);
int option_list_add_text(const struct option *o, void *base, const char *text,
			 char reason[OPTION_REASON_BYTES]);
int option_list_add_number(const struct option *o, void *base, uint64_t number,
			   char reason[OPTION_REASON_BYTES]);
int option_list_set_text(const struct option *o, void *base, const char *text,
			 char reason[OPTION_REASON_BYTES]); /* with commas between the items */
/* Item `index`: false if there are no more. Of users and groups *number is set, else text. */
bool option_list_item(const struct option *o, const void *base, uint32_t index,
		      char text[OPTION_NAME_BYTES], uint64_t *number);

int option_set_salt(const struct option *o, void *base, const char *text,
		    char reason[OPTION_REASON_BYTES]);

/* `what` with the accepted values behind it. Always -EINVAL. */
int option_refuse(const struct option *o, char reason[OPTION_REASON_BYTES], const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* "accepted is ..." */
void option_accepts(const struct option *o, char *out, size_t bytes);

/* Reading a field. */
uint64_t option_get_number(const struct option *o, const void *base); /* CONFIG_NULL: null */
bool option_get_boolean(const struct option *o, const void *base);
const char *option_get_text(const struct option *o, const void *base, char buffer[64]);

/* Bytes as people write them: "8MiB", "1536MiB", "1000". */
void option_size_text(uint64_t bytes, char out[32]);

#endif
