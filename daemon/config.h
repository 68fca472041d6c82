/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_CONFIG_H
#define KVHOST_CONFIG_H

/*
 * config: what the operator wants: one JSON file, KVHOST_* variables over it, flags over those.
 *
 * options.def declares every option once; this parser, --help, the answer to `kvctl config` and
 * the manual page are made from it. Anything that is not understood whole is an error with its
 * place, its key, what was wrong and what is accepted. Read at the start, before any thread; may
 * block on the file. A struct config holds no resources and never changes after config_load.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/format.h"
#include "shm/wire.h"

#define CONFIG_FILE           "/etc/kvhost/kvhost.json"
#define CONFIG_FILE_BYTES     4096       /* of a path, with its zero */
#define CONFIG_TEXT_MAX       (1u << 20) /* bytes of the file */
#define CONFIG_ERROR_BYTES    6144
#define CONFIG_POOLS_MAX      64
#define CONFIG_NAMESPACES_MAX 64
#define CONFIG_IDS_MAX        64 /* users or groups of a namespace */
#define CONFIG_SALT_BYTES     256
#define CONFIG_ID_MAX         4294967293u
#define CONFIG_ID_NOBODY      65534u     /* whom the kernel cannot name: matches nothing */
#define CONFIG_NULL           UINT64_MAX /* of an option that takes null */
#define CONFIG_AUTO           (UINT64_MAX - 1)

enum option_name { /* OPTION_core_spin_us, ... */
#define OPTION(section, key, type, unit, minimum, maximum, value, text) OPTION_##section##_##key,
#define OPTION_ALIAS(section, key, option)
#define OPTION_DEFAULT_POOL(key, value)
#include "daemon/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_DEFAULT_POOL
		   OPTION_COUNT
};

enum config_source {
	CONFIG_FROM_DEFAULT = 0,
	CONFIG_FROM_FILE,
	CONFIG_FROM_ENVIRONMENT,
	CONFIG_FROM_FLAG,
};

struct config_origin {   /* where a value came from */
	uint32_t line;   /* of the file */
	uint16_t option; /* enum option_name that was set; another one where a value is inherited */
	uint16_t source; /* enum config_source */
};

enum config_device { /* the words of pools.device */
		     CONFIG_DEVICE_CPU,
};

enum config_retained_order { /* the words of pools.retained_order */
			     CONFIG_RETAINED_LRU,
			     CONFIG_RETAINED_LEARNED,
};

enum config_right { /* the words of namespaces.rights, in their order */
		    CONFIG_RIGHT_ATTACH = 1,
		    CONFIG_RIGHT_MAP = 2,
		    CONFIG_RIGHT_INTERACTIVE = 4,
		    CONFIG_RIGHT_ADMIN = 8,
		    CONFIG_RIGHTS_ALL = 15,
};

struct config_names {
	uint32_t n;
	char name[CONFIG_NAMESPACES_MAX][WIRE_NAME_MAX];
};

struct config_ids {
	uint32_t n;
	uint32_t id[CONFIG_IDS_MAX];
};

struct config_salt {
	bool is_set;
	char text[CONFIG_SALT_BYTES];
};

/* Names, units and meanings of all fields: options.def. */
struct config_core {
	uint64_t spin_us;
	uint64_t session_limit;
	uint64_t submission_slots;
	uint64_t completion_slots;
	uint64_t window_bytes;
	uint64_t window_bytes_max;
	uint64_t job_pages_per_turn;
	uint64_t step_ttl_s;
	uint64_t sequence_idle_ttl_s;
	uint64_t session_heap_bytes;
	uint64_t sequences_per_session;
	uint32_t log_level; /* enum log_level of base/log.h */
	bool require_hugepages;
	uint64_t default_deadline_us;
	uint64_t stall_limit_ms;
};

struct config_pool {
	char name[WIRE_NAME_MAX];
	uint32_t device;     /* enum config_device */
	uint64_t pool_bytes; /* or CONFIG_NULL */
	uint64_t pool_pages; /* or CONFIG_NULL */
	uint64_t headroom_bytes;
	uint64_t lanes;
	uint64_t retained_slots; /* or CONFIG_NULL: two a lane */
	uint64_t min_capture_tokens;
	enum kernel_format kv_cache_dtype;
	uint64_t kv_page_size;
	uint64_t max_sequence_length;
	bool enable_prefix_caching;
	uint64_t max_prefix_cache_pages; /* or CONFIG_NULL */
	bool map;
	uint32_t retained_order; /* enum config_retained_order */
	bool shadow_lru;
	uint64_t ram_floor_tokens; /* or CONFIG_AUTO */
	bool live_in_ram;
	bool overcommit;
	uint64_t retained_interactive_ttl_s;
	uint64_t idle_ttl_s;
	uint64_t default_deadline_us; /* never 0: the core's is filled in */
	struct config_names namespaces;
	uint64_t hidden_from; /* the namespaces that it does not exist for, a bit each */
	struct config_origin origin[OPTION_COUNT];
};

struct config_namespace {
	char name[WIRE_NAME_MAX];
	struct config_ids uids, gids;
	uint32_t rights;                                            /* enum config_right */
	struct config_salt managed_prefix_cache_salt;               /* not set: none */
	uint64_t max_pages, max_bytes, max_sessions, max_sequences; /* or CONFIG_NULL */
	uint64_t guaranteed_pages;
	uint64_t max_kv_ram_bytes; /* or CONFIG_NULL */
	uint64_t guaranteed_kv_ram_bytes;
	struct config_origin origin[OPTION_COUNT];
};

struct config {
	char file[CONFIG_FILE_BYTES]; /* that was read, for people; "" = none */
	char runtime_directory[96];
	char state_directory[256];
	bool disable_optimized_provider;
	uint64_t kv_ram_bytes; /* 0: none */
	bool kv_ram_lock;
	uint64_t kv_ram_numa_node; /* or CONFIG_NULL: spread over all */
	uint64_t kv_ram_chunk_bytes;
	uint64_t kv_ram_page_bytes;
	uint64_t kv_staging_bytes; /* 0: none */
	struct config_core core;
	uint32_t n_pools;
	struct config_pool pools[CONFIG_POOLS_MAX];
	bool has_namespaces; /* the file lists some; else: one, of the user who starts the daemon */
	uint32_t n_namespaces;
	struct config_namespace namespaces[CONFIG_NAMESPACES_MAX];
	struct config_origin origin[OPTION_COUNT]; /* of what is in neither array */
};

enum config_action { /* what the command line asks for */
		     CONFIG_RUN = 0,
		     CONFIG_CHECK,
		     CONFIG_HELP,
		     CONFIG_VERSION,
};

/*
 * Everything in its order. argv[0] is the program; environment may be NULL. 0, or -EINVAL and
 * error is one line for people: the program ends with exit code 2. With CONFIG_HELP and
 * CONFIG_VERSION nothing else was looked at.
 */
int config_load(struct config *c, int argc, char *const *argv, char *const *environment,
		enum config_action *action, char error[CONFIG_ERROR_BYTES]);

/* The same in parts, for tests: start, any number of sources, finish. */
void config_start(struct config *c);
int config_take_text(struct config *c, const char *file, const char *text, size_t bytes,
		     char error[CONFIG_ERROR_BYTES]);
int config_take_environment(struct config *c, char *const *environment,
			    char error[CONFIG_ERROR_BYTES]);
int config_take_flags(struct config *c, int argc, char *const *argv,
		      char error[CONFIG_ERROR_BYTES]);
int config_finish(struct config *c, char error[CONFIG_ERROR_BYTES]);

/* How many namespaces a pool is there for; once it is finished. */
uint32_t config_name_spaces(const struct config *c, const struct config_pool *p);

/* Wipe the salts once the keys have taken them: nobody needs their text any more. */
void config_forget_salts(struct config *c);

/* "default", "FILE:LINE", "environment KVHOST_CORE_SPIN_US", "flag --core-spin-us". */
void config_origin_text(const struct config *c, const struct config_origin *origin, char *out,
			size_t bytes);

/* All values with their origins, as JSON; the caller's, to be freed. NULL: no memory. */
char *config_describe_json(const struct config *c);
/* One line each: variables that nobody reads, KV-RAM that serves no pool, and what the plan will
 * change about the wishes, where it can be known already. environment may be NULL. */
void config_print_warnings(const struct config *c, char *const *environment, FILE *out);
void config_print_help(FILE *out);
/* The options as roff: the middle part of kvhost.json(5). */
void config_print_manual(FILE *out);

#endif
