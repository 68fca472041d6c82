/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_namespaces: what namespaces and pools must be together.
 *
 * Runs at the start, before any thread; nothing blocks.
 */

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/panic.h"
#include "daemon/option.h"

void config_namespace_start(struct config_namespace *n)
{
	char reason[OPTION_REASON_BYTES];

	*n = (struct config_namespace){0};
	for (unsigned i = 0; i < OPTION_COUNT; i++) {
		const struct option *o = &option_table[i];

		n->origin[i].option = (uint16_t)i;
		if (!strcmp(o->section, "namespaces") && i != OPTION_namespaces_name)
			must(option_set_text(o, n, o->value, reason) == 0);
	}
}

void config_forget_salts(struct config *c)
{
	for (uint32_t i = 0; i < CONFIG_NAMESPACES_MAX; i++)
		explicit_bzero(c->namespaces[i].managed_prefix_cache_salt.text, CONFIG_SALT_BYTES);
}

static int check_namespace(struct config *c, unsigned index, char *error)
{
	const struct config_namespace *n = &c->namespaces[index];

	for (unsigned i = 0; i < index; i++) {
		if (!strcmp(c->namespaces[i].name, n->name))
			return config_fail_at(
			    c, OPTION_namespaces_name, index, error,
			    "\"%s\" is the name of namespaces[%u] too, accepted is "
			    "a name of its own for each namespace",
			    n->name, i);
	}
	if (n->uids.n == 0 && n->gids.n == 0)
		return config_fail_at(c, OPTION_namespaces_uids, index, error,
				      "neither uids nor gids name anybody who may use it, accepted "
				      "is at least one user or group");
	if (n->max_pages != CONFIG_NULL && n->guaranteed_pages > n->max_pages)
		return config_fail_at(c, OPTION_namespaces_guaranteed_pages, index, error,
				      "%" PRIu64
				      " is above max_pages, accepted is at most %" PRIu64,
				      n->guaranteed_pages, n->max_pages);
	return 0;
}

static int find_namespace(const struct config *c, const char *name, uint32_t *out)
{
	for (*out = 0; *out < c->n_namespaces; ++*out) {
		if (!strcmp(c->namespaces[*out].name, name))
			return 0;
	}
	return -1;
}

/* Names to bits; a pool that names none is everybody's. */
static int resolve_names(struct config *c, unsigned pool, char *error)
{
	struct config_pool *p = &c->pools[pool];
	uint64_t shown = p->namespaces.n ? 0 : UINT64_MAX;
	uint32_t index;

	for (uint32_t i = 0; i < p->namespaces.n; i++) {
		if (find_namespace(c, p->namespaces.name[i], &index))
			return config_fail_at(c, OPTION_pools_namespaces, pool, error,
					      "\"%s\" is no namespace, accepted are names of the "
					      "array namespaces",
					      p->namespaces.name[i]);
		shown |= 1ull << index;
	}
	p->hidden_from = ~shown;
	return 0;
}

static bool shows(const struct config_pool *p, uint32_t name_space)
{
	return !(p->hidden_from >> name_space & 1);
}

uint32_t config_name_spaces(const struct config *c, const struct config_pool *p)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_namespaces; i++)
		n += shows(p, i);
	return n;
}

static int check_map(struct config *c, unsigned pool, char *error)
{
	struct config_pool *p = &c->pools[pool];
	const char *first = NULL;

	for (uint32_t i = 0; p->map && i < c->n_namespaces; i++) {
		if (!shows(p, i))
			continue;
		if (!first) {
			first = c->namespaces[i].name;
			continue;
		}
		/* Of the pool that nobody configured nobody asked for it. */
		if (p->origin[OPTION_pools_map].source == CONFIG_FROM_DEFAULT) {
			p->map = false;
			return 0;
		}
		return config_fail_at(
		    c, OPTION_pools_map, pool, error,
		    "true, but pool %s is of the namespaces %s and %s, accepted is "
		    "map false, or exactly one name in pools.namespaces",
		    p->name, first, c->namespaces[i].name);
	}
	return 0;
}

static int check_salts(struct config *c, unsigned pool, char *error)
{
	const struct config_pool *p = &c->pools[pool];

	for (uint32_t i = 0; p->enable_prefix_caching && i < c->n_namespaces; i++) {
		if (shows(p, i) && !c->namespaces[i].managed_prefix_cache_salt.is_set)
			return config_fail_at(
			    c, OPTION_namespaces_managed_prefix_cache_salt, i, error,
			    "namespace %s has none, but pool %s has prefix caching "
			    "on, accepted is a text of 1 to %d bytes",
			    c->namespaces[i].name, p->name, CONFIG_SALT_BYTES - 1);
	}
	return 0;
}

int config_finish_namespaces(struct config *c, char error[CONFIG_ERROR_BYTES])
{
	int r = 0;

	for (uint32_t i = 0; c->has_namespaces && i < c->n_namespaces && !r; i++)
		r = check_namespace(c, i, error);
	for (uint32_t i = 0; i < c->n_pools && !r; i++) {
		r = resolve_names(c, i, error);
		if (!r)
			r = check_map(c, i, error);
		if (!r && c->has_namespaces)
			r = check_salts(c, i, error);
	}
	return r;
}
