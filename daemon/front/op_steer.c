/* SPDX-License-Identifier: Apache-2.0 */
/* op_steer: what an operator wants done: see admin.h. Core thread; nothing blocks. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/front/admin.h"
#include "daemon/front/drop.h"

static enum run_result answer_json(struct request *r, json_t *out)
{
	char *text = out ? json_dumps(out, JSON_COMPACT) : NULL;

	json_decref(out);
	return admin_answer(r, text);
}

/* ---- drop a pool ---- */

static struct core_pool *find_pool(struct core *c, const char *name)
{
	for (uint32_t i = 0; i < c->n_pools; i++) {
		if (!strcmp(c->pool[i]->config->name, name))
			return c->pool[i];
	}
	return NULL;
}

static enum run_result answer_dropped(struct request *r, const struct core_pool *p, bool dropped)
{
	return answer_json(
	    r, json_pack("{s:s, s:b, s:I, s:s*}", "pool", p->config->name, "dropped", dropped,
			 "freed_bytes", (json_int_t)(dropped ? p->dropped_bytes : 0), "error",
			 dropped && p->drop_result ? strerror(-p->drop_result) : NULL));
}

enum run_result steer_pool_drop(struct request *r)
{
	const struct payload_admin *in = r->in;
	struct core *c = r->session->core;
	struct core_pool *p = find_pool(c, in->argument);
	const char *users;

	if (!p)
		return refuse(r, WIRE_ENOENT, "no pool is called \"%s\"", in->argument);
	/* It has waited, and is ready again because the pool was dropped. */
	if (r->u.walk.at) {
		list_remove(&r->in_wait);
		return answer_dropped(r, p, true);
	}
	if (p->state == CORE_POOL_DECLARED)
		return answer_dropped(r, p, false);
	users = core_pool_users(p);
	if (users && p->state != CORE_POOL_DROPPING)
		return refuse(r, WIRE_EBUSY, "pool %s cannot be dropped: %s (%u sessions)",
			      p->config->name, users, p->attached);
	if (r->batch)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for the memory to go back");
	if (p->state != CORE_POOL_DROPPING)
		core_pool_drop(p);
	r->u.walk.at = 1;
	request_wait(r, &p->dropping);
	return RUN_WAIT;
}

/* ---- drain ---- */

/* Sessions that use a pool; those that only ask do not count. */
static uint32_t working_sessions(const struct core *c)
{
	uint32_t n = 0;

	list_for_each(link, following, &c->sessions)
	{
		const struct session *s = list_entry(link, struct session, in_sessions);
		bool works = s->n_sequences > 0;

		for (uint32_t i = 0; i < c->n_pools && !works; i++)
			works = s->pools[i].generation != 0;
		n += works;
	}
	return n;
}

static uint64_t open_sequences(const struct core *c)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < c->n_pools; i++)
		n += c->pool[i]->pool.sequences;
	return n;
}

enum run_result steer_drain(struct request *r, bool drained)
{
	struct core *c = r->session->core;

	if (c->draining)
		return refuse(r, WIRE_ESHUTDOWN, "the daemon is stopping");
	if (c->drained != drained)
		log_write(c->log, LOG_LEVEL_NOTICE, "%s",
			  drained ? "draining: nothing new is taken" : "serving again");
	c->drained = drained;
	atomic_store_explicit(&c->stats->head->state,
			      drained ? STATSFILE_DRAINING : STATSFILE_RUNNING,
			      memory_order_relaxed);
	return answer_json(r,
			   json_pack("{s:s, s:I, s:I}", "state", drained ? "draining" : "running",
				     "sessions", (json_int_t)working_sessions(c), "sequences",
				     (json_int_t)open_sequences(c)));
}

/* ---- drop retained pages ---- */

static bool find_namespace(const struct core *c, const char *name, uint16_t *out)
{
	if (!name[0]) {
		*out = RETAIN_NAMESPACES;
		return true;
	}
	for (uint32_t i = 0; i < c->config->n_namespaces; i++) {
		if (!strcmp(c->namespaces[i].name, name)) {
			*out = (uint16_t)i;
			return true;
		}
	}
	return false;
}

static uint64_t retained_of(const struct core_pool *p, uint16_t name_space)
{
	const struct pool_share *share;

	if (p->state != CORE_POOL_READY)
		return 0;
	if (name_space == RETAIN_NAMESPACES)
		return pool_retained(&p->pool);
	share = &p->pool.shares[name_space];
	return share->indexed - share->live;
}

/* One budget of one pool; what others retain meanwhile is not its business. */
static bool drop_some(struct request *r, struct core_pool *p, uint16_t name_space, uint32_t budget)
{
	struct request_walk *w = &r->u.walk;
	uint32_t left = w->left < budget ? (uint32_t)w->left : budget;
	uint64_t before = p->pool.stats.evictions;
	bool empty = pool_drop_retained(&p->pool, name_space, &left);
	uint64_t dropped = p->pool.stats.evictions - before;

	w->left -= dropped < w->left ? dropped : w->left;
	w->objects += dropped;
	core_pool_settle(p);
	return empty || w->left == 0;
}

enum run_result steer_drop(struct request *r, uint32_t *budget)
{
	const struct payload_admin *in = r->in;
	struct core *c = r->session->core;
	struct request_walk *w = &r->u.walk;
	uint16_t name_space;

	if (!find_namespace(c, in->argument, &name_space))
		return refuse(r, WIRE_ENOENT, "no namespace is called \"%s\"", in->argument);
	while (w->pool < c->n_pools) {
		struct core_pool *p = c->pool[w->pool];

		if (!w->at) {
			w->left = retained_of(p, name_space);
			w->at = 1;
		}
		if (w->left && p->state == CORE_POOL_READY && !drop_some(r, p, name_space, *budget))
			return RUN_MORE;
		w->at = 0;
		w->pool++;
	}
	log_write(c->log, LOG_LEVEL_NOTICE, "%llu retained pages of %s given up",
		  (unsigned long long)w->objects,
		  in->argument[0] ? in->argument : "all namespaces");
	return answer_json(r, json_pack("{s:s, s:I}", "namespace",
					in->argument[0] ? in->argument : "all", "dropped_pages",
					(json_int_t)w->objects));
}
