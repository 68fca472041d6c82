/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config: the order of the sources, and what several options must be together.
 *
 * Runs at the start, before any thread; config_load may block on the file.
 */

#include "daemon/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/panic.h"
#include "daemon/config_sources.h"
#include "daemon/option.h"
#include "daemon/state/plan.h"
#include "daemon/tier/arena_staging.h"
#include "daemon/tier/ram.h"
#include "kernels/geometry.h"

struct pool_default {
	unsigned option;
	const char *value;
};

static const struct pool_default pool_defaults[] = {
#define OPTION(section, key, type, unit, minimum, maximum, value, text)
#define OPTION_ALIAS(section, key, option)
#define OPTION_DEFAULT_POOL(key, value) {OPTION_pools_##key, value},
#include "daemon/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_DEFAULT_POOL
};

int config_fail(const char *place, const char *key, const char *reason,
		char error[CONFIG_ERROR_BYTES])
{
	snprintf(error, CONFIG_ERROR_BYTES, "%s: %s: %s", place, key, reason);
	return -EINVAL;
}

void *config_base(struct config *c, const struct option *o, unsigned index)
{
	if (!strcmp(o->section, "core"))
		return &c->core;
	if (!strcmp(o->section, "pools")) {
		must(index < c->n_pools);
		return &c->pools[index];
	}
	if (!strcmp(o->section, "namespaces")) {
		must(index < c->n_namespaces);
		return &c->namespaces[index];
	}
	return c;
}

struct config_origin *config_origin_of(struct config *c, unsigned option, unsigned index)
{
	must(option < OPTION_COUNT);
	if (!strcmp(option_table[option].section, "pools")) {
		must(index < c->n_pools);
		return &c->pools[index].origin[option];
	}
	if (!strcmp(option_table[option].section, "namespaces")) {
		must(index < c->n_namespaces);
		return &c->namespaces[index].origin[option];
	}
	return &c->origin[option];
}

static void set_default(const struct option *o, void *base, const char *value)
{
	char reason[OPTION_REASON_BYTES];

	must(option_set_text(o, base, value, reason) == 0);
}

void config_pool_start(struct config_pool *p)
{
	*p = (struct config_pool){0};
	for (unsigned i = 0; i < OPTION_COUNT; i++) {
		p->origin[i].option = (uint16_t)i;
		if (!strcmp(option_table[i].section, "pools") && i != OPTION_pools_name)
			set_default(&option_table[i], p, option_table[i].value);
	}
}

void config_start(struct config *c)
{
	*c = (struct config){.n_pools = 1, .n_namespaces = 1};
	for (unsigned i = 0; i < OPTION_COUNT; i++) {
		c->origin[i].option = (uint16_t)i;
		if (!option_in_array(&option_table[i]))
			set_default(&option_table[i], config_base(c, &option_table[i], 0),
				    option_table[i].value);
	}
	config_pool_start(&c->pools[0]);
	for (size_t i = 0; i < sizeof(pool_defaults) / sizeof(*pool_defaults); i++)
		set_default(&option_table[pool_defaults[i].option], &c->pools[0],
			    pool_defaults[i].value);
	for (uint32_t i = 0; i < CONFIG_NAMESPACES_MAX; i++)
		config_namespace_start(&c->namespaces[i]);
	snprintf(c->namespaces[0].name, sizeof(c->namespaces[0].name), "default");
	c->namespaces[0].uids = (struct config_ids){.n = 1, .id = {(uint32_t)geteuid()}};
	c->namespaces[0].rights = CONFIG_RIGHTS_ALL;
}

void config_origin_text(const struct config *c, const struct config_origin *origin, char *out,
			size_t bytes)
{
	char name[OPTION_NAME_BYTES];

	must(origin->option < OPTION_COUNT);
	switch (origin->source) {
	case CONFIG_FROM_FILE:
		snprintf(out, bytes, "%s:%" PRIu32, c->file, origin->line);
		return;
	case CONFIG_FROM_ENVIRONMENT:
		option_environment_name(&option_table[origin->option], name);
		snprintf(out, bytes, "environment %s", name);
		return;
	case CONFIG_FROM_FLAG:
		option_flag_name(&option_table[origin->option], name);
		snprintf(out, bytes, "flag %s", name);
		return;
	default:
		snprintf(out, bytes, "default");
	}
}

int config_fail_at(struct config *c, unsigned option, unsigned index,
		   char error[CONFIG_ERROR_BYTES], const char *format, ...)
{
	const struct config_origin *origin = config_origin_of(c, option, index);
	char place[CONFIG_FILE_BYTES + 32], path[OPTION_NAME_BYTES];
	char reason[OPTION_REASON_BYTES];
	va_list list;

	va_start(list, format);
	vsnprintf(reason, sizeof(reason), format, list);
	va_end(list);
	/* What a namespace lacks is best shown where it is named. */
	if (!strcmp(option_table[option].section, "namespaces") &&
	    origin->source == CONFIG_FROM_DEFAULT)
		origin = config_origin_of(c, OPTION_namespaces_name, index);
	config_origin_text(c, origin, place, sizeof(place));
	option_path(&option_table[option], index, path);
	return config_fail(place, path, reason, error);
}

static struct plan_wish pool_wish(const struct config_pool *p)
{
	return (struct plan_wish){
	    .pool_pages_limit = p->pool_pages == CONFIG_NULL ? 0 : p->pool_pages,
	    .max_sequence_tokens = p->max_sequence_length,
	    .prefix_caching = p->enable_prefix_caching,
	    .max_prefix_pages = p->max_prefix_cache_pages,
	    .limits = {.page_tokens = (uint32_t)p->kv_page_size, .shadow_lru = p->shadow_lru},
	};
}

static int check_plan(struct config *c, unsigned pool, char *error)
{
	struct plan_wish wish = pool_wish(&c->pools[pool]);
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	if (wish.pool_pages_limit == 0)
		return 0; /* what the pool gets is known only when it is made */
	if (plan_check_limit(&wish, refusal) ||
	    plan_prefix(wish.pool_pages_limit, &wish, &plan, refusal))
		return config_fail_at(c, OPTION_pools_pool_pages, pool, error, "%s", refusal);
	return 0;
}

static int finish_pool(struct config *c, unsigned pool, char *error)
{
	struct config_pool *p = &c->pools[pool];

	for (unsigned i = 0; i < pool; i++) {
		if (!strcmp(c->pools[i].name, p->name))
			return config_fail_at(
			    c, OPTION_pools_name, pool, error,
			    "\"%s\" is the name of pools[%u] too, accepted is a name of "
			    "its own for each pool",
			    p->name, i);
	}
	if (p->enable_prefix_caching && p->max_prefix_cache_pages == 0)
		return config_fail_at(
		    c, OPTION_pools_max_prefix_cache_pages, pool, error,
		    "0 leaves prefix caching no page, accepted is more than 0, null, or "
		    "enable_prefix_caching false");
	if (p->default_deadline_us == 0) {
		p->default_deadline_us = c->core.default_deadline_us;
		p->origin[OPTION_pools_default_deadline_us] =
		    c->origin[OPTION_core_default_deadline_us];
	}
	return check_plan(c, pool, error);
}

/* The least budget of a pool, whatever the model: of small pages, and hybrid if that takes less. */
static uint64_t least_bytes(const struct config *c, const struct config_pool *p)
{
	struct plan_wish dense = pool_wish(p), hybrid;
	uint64_t least;

	dense.page_stride = GEOMETRY_RECORD_ALIGN;
	dense.limits.order =
	    p->retained_order == CONFIG_RETAINED_LEARNED ? RETAIN_LEARNED : RETAIN_LRU;
	dense.limits.name_spaces = config_name_spaces(c, p);
	hybrid = dense;
	hybrid.limits.lanes = (uint32_t)p->lanes;
	least = plan_least(&dense);
	return plan_least(&hybrid) < least ? plan_least(&hybrid) : least;
}

static int check_bytes(struct config *c, unsigned pool, char *error)
{
	const struct config_pool *p = &c->pools[pool];
	uint64_t least = p->pool_bytes == CONFIG_NULL ? 0 : least_bytes(c, p);

	if (p->pool_bytes >= least)
		return 0;
	return config_fail_at(c, OPTION_pools_pool_bytes, pool, error,
			      "%" PRIu64
			      " is less than one sequence of max_sequence_length %" PRIu64
			      " and what is known of its pages take, whatever the model, accepted "
			      "is at least %" PRIu64 ", or null",
			      p->pool_bytes, p->max_sequence_length, least);
}

/* What no host can serve: what is too much for this one shows at the start. */
static int check_ram(struct config *c, char *error)
{
	uint64_t bytes = c->kv_ram_bytes, page_bytes = c->kv_ram_page_bytes;

	if (bytes && ram_divide(bytes, page_bytes).arena_bytes < FRAME_BYTES)
		return config_fail_at(
		    c, OPTION_top_kv_ram_bytes, 0, error,
		    "%" PRIu64 " leaves less than a frame of %llu bytes for pages, beside what "
		    "they are known by, accepted is at least %" PRIu64 ", or 0 for none",
		    bytes, FRAME_BYTES, ram_least(page_bytes));
	if (bytes && page_bytes > bytes)
		return config_fail_at(c, OPTION_top_kv_ram_page_bytes, 0, error,
				      "%" PRIu64 " is above kv_ram_bytes, accepted is at most "
				      "%" PRIu64 ", or kv_ram_bytes 0",
				      page_bytes, bytes);
	return 0;
}

int config_finish(struct config *c, char error[CONFIG_ERROR_BYTES])
{
	int r;

	if (c->core.window_bytes > c->core.window_bytes_max)
		return config_fail_at(c, OPTION_core_window_bytes, 0, error,
				      "%" PRIu64
				      " is above core.window_bytes_max, accepted is at most "
				      "%" PRIu64,
				      c->core.window_bytes, c->core.window_bytes_max);
	r = check_ram(c, error);
	if (r)
		return r;
	if (c->kv_staging_bytes && c->kv_staging_bytes < STAGING_LEAST)
		return config_fail_at(c, OPTION_top_kv_staging_bytes, 0, error,
				      "%" PRIu64
				      " is less than four windows of 2 MiB, accepted is at least "
				      "%llu, or 0",
				      c->kv_staging_bytes, STAGING_LEAST);
	for (unsigned i = 0; i < c->n_pools; i++) {
		r = finish_pool(c, i, error);
		if (r)
			return r;
	}
	r = config_finish_namespaces(c, error);
	for (unsigned i = 0; i < c->n_pools && !r; i++)
		r = check_bytes(c, i, error);
	return r;
}

/* KV-RAM holds what prefix caching finds, and what live sequences of such pools give up. */
static bool ram_serves_nobody(const struct config *c)
{
	for (unsigned i = 0; i < c->n_pools; i++) {
		if (c->pools[i].enable_prefix_caching)
			return false;
	}
	return c->kv_ram_bytes > 0;
}

void config_print_warnings(const struct config *c, char *const *environment, FILE *out)
{
	char refusal[PLAN_REFUSAL_BYTES];

	config_print_unknown(environment, out);
	if (ram_serves_nobody(c))
		fprintf(
		    out,
		    "kv_ram_bytes: KV-RAM serves pools with enable_prefix_caching, and there is "
		    "none: %" PRIu64 " bytes are taken for nothing; 0 would leave them\n",
		    c->kv_ram_bytes);
	for (unsigned i = 0; i < c->n_pools; i++) {
		struct plan_wish wish = pool_wish(&c->pools[i]);
		struct plan plan;

		if (wish.pool_pages_limit == 0 ||
		    plan_prefix(wish.pool_pages_limit, &wish, &plan, refusal))
			continue;
		if (plan.fallback_reason[0])
			fprintf(out, "pool %s: %s\n", c->pools[i].name, plan.fallback_reason);
	}
}

int config_load(struct config *c, int argc, char *const *argv, char *const *environment,
		enum config_action *action, char error[CONFIG_ERROR_BYTES])
{
	const char *file;
	int r;

	config_start(c);
	r = config_read_command_line(argc, argv, action, &file, error);
	if (r || *action == CONFIG_HELP || *action == CONFIG_VERSION)
		return r;
	r = config_take_file(c, file ? file : CONFIG_FILE, file != NULL, error);
	if (r)
		return r;
	r = config_take_environment(c, environment, error);
	if (r)
		return r;
	r = config_take_flags(c, argc, argv, error);
	if (r)
		return r;
	return config_finish(c, error);
}
