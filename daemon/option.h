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
};

struct option {
	const char *section; /* "top", "core", "pools" */
	const char *key;
	enum option_type type;
	const char *unit; /* or the words */
	uint64_t minimum;
	uint64_t maximum;
	const char *value; /* the default */
	const char *text;
	size_t offset; /* in struct config, config_core or config_pool, by section */
};

#define OPTION_REASON_BYTES 1024 /* what was wrong and what is accepted */
#define OPTION_NAME_BYTES   96

extern const struct option option_table[OPTION_COUNT];

/* Internal to config: where a value of option `o` lies; pool is ignored outside pools. */
void *config_base(struct config *c, const struct option *o, unsigned pool);
struct config_origin *config_origin_of(struct config *c, unsigned option, unsigned pool);
void config_pool_start(struct config_pool *p); /* the defaults of a pool that the file lists */
/* "PLACE: KEY: reason" into error. Always -EINVAL. */
int config_fail(const char *place, const char *key, const char *reason,
		char error[CONFIG_ERROR_BYTES]);

/* The option that `key` names in `section`, directly or as an alias; OPTION_COUNT: none. */
unsigned option_find(const char *section, const char *key);

bool option_is_size(const struct option *o);
bool option_is_number(const struct option *o); /* sizes too */
bool option_takes_null(const struct option *o);

/* "core.spin_us"; "pools[2].map" for pool 2; "pools.map" for CONFIG_POOLS_MAX, all of them. */
void option_path(const struct option *o, unsigned pool, char out[OPTION_NAME_BYTES]);
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
