/* SPDX-License-Identifier: Apache-2.0 */
/* op_steer: what an operator wants done: see admin.h. Core thread; nothing blocks. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/testing.h"
#include "daemon/front/admin.h"
#include "daemon/front/drop.h"

#define DROP_ROUNDS 64 /* how often a drop waits for what is on its way */

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

static uint64_t copies_of(const struct core_pool *p, uint16_t name_space)
{
	const struct pool_share *share;

	if (name_space == RETAIN_NAMESPACES)
		return pool_retained(&p->pool) + p->pool.in_ram;
	share = &p->pool.shares[name_space];
	return share->indexed - share->live + share->in_ram;
}

/* One budget of one pool. True: nothing more can go now. */
static bool drop_some(struct request *r, struct core_pool *p, uint16_t name_space, uint32_t budget)
{
	struct request_walk *w = &r->u.walk;
	uint64_t discards = p->pool.stats.discards, copies = p->pool.in_ram;
	bool empty = pool_drop_retained(&p->pool, name_space, &budget);

	/* What can go only by way of KV-RAM has come there. */
	w->copies += copies > p->pool.in_ram ? copies - p->pool.in_ram : 0;
	w->objects += p->pool.stats.discards - discards;
	core_pool_settle(p);
	return empty;
}

/*
 * What is on its way between two tiers can go once it has landed. That is waited for as often as
 * there is something, for what stands above it may have to be sent after it. But others move pages,
 * too: after some time what moves is not its business any more.
 */
static enum run_result drop_of_pool(struct request *r, struct core_pool *p, uint16_t name_space,
				    uint32_t budget)
{
	struct request_walk *w = &r->u.walk;

	if (p->state != CORE_POOL_READY)
		return RUN_DONE;
	if (w->waits && !ram_pool_has_passed(&p->ram, w->marks)) {
		request_wait(r, &p->fetching);
		return RUN_WAIT;
	}
	list_remove(&r->in_wait);
	if (!drop_some(r, p, name_space, budget)) {
		w->waits = false;
		return RUN_MORE;
	}
	if (w->rounds == DROP_ROUNDS || copies_of(p, name_space) == 0 ||
	    ram_pool_is_quiet(&p->ram) || !protection(drops_wait_for_copies))
		return RUN_DONE;
	if (r->batch)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for pages on their way");
	w->waits = true;
	w->marks = ram_pool_mark(&p->ram);
	w->rounds++;
	request_wait(r, &p->fetching);
	return RUN_WAIT;
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
		enum run_result result;

		if (!w->at) {
			w->rounds = 0;
			w->waits = false;
			w->at = 1;
		}
		result = drop_of_pool(r, p, name_space, *budget);
		if (result != RUN_DONE || r->reply.status)
			return result;
		list_remove(&r->in_wait);
		w->at = 0;
		w->pool++;
	}
	log_write(c->log, LOG_LEVEL_NOTICE, "%llu retained pages of %s given up",
		  (unsigned long long)w->objects,
		  in->argument[0] ? in->argument : "all namespaces");
	return answer_json(r, json_pack("{s:s, s:I, s:I}", "namespace",
					in->argument[0] ? in->argument : "all", "dropped_pages",
					(json_int_t)w->objects, "dropped_kv_ram_copies",
					(json_int_t)w->copies));
}
