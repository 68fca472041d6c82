/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop: see drop.h. Core thread; nothing here blocks: memory is unmapped on the work thread.
 */
#include "daemon/front/drop.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/front/below.h"
#include "daemon/front/request.h"

/* Requests that a session left behind when it detached. */
static bool has_requests(const struct core_pool *p)
{
	list_for_each(link, following, &p->core->sessions)
	{
		struct session *s = list_entry(link, struct session, in_sessions);

		list_for_each(at, behind, &s->requests)
		{
			if (list_entry(at, struct request, in_session)->pool == p)
				return true;
		}
	}
	return false;
}

const char *core_pool_users(const struct core_pool *p)
{
	if (p->attached)
		return "sessions are attached to it";
	if (p->state == CORE_POOL_MAKING || !list_is_empty(&p->attaching))
		return "it is being attached";
	if (has_requests(p))
		return "requests of sessions that have detached still run in it";
	return NULL;
}

void core_pool_drop(struct core_pool *p)
{
	must(p->state == CORE_POOL_READY || p->state == CORE_POOL_FAILED);
	must(!core_pool_users(p));
	p->state = CORE_POOL_DROPPING;
	p->freeing = false;
	p->drop_result = 0;
	p->dropped_bytes = p->memory.segment.bytes + p->memory.retained.bytes;
	p->core->n_dropping++;
	/* Operators who wait for what moves to drop that: all of it goes. */
	list_for_each(link, following, &p->fetching)
	    request_ready(list_entry(link, struct request, in_wait));
}

/* What it was for is forgotten; handles to it are stale from here on. */
static void redeclare(struct core_pool *p)
{
	struct core *c = p->core;

	p->memory = (struct device_memory){.segment = SEGMENT_NONE, .retained = SEGMENT_NONE};
	core_pool_undescribe(p);
	p->description = (struct payload_pool){0};
	memset(p->stamp, 0, sizeof(p->stamp));
	p->plan = (struct plan){0};
	slots_give(&c->pools, p->handle);
	p->handle = (struct slot_handle){0};
	if (slots_take(&c->pools, p, &p->handle)) {
		/* Its slot has had every generation there is. */
		p->state = CORE_POOL_FAILED;
		return;
	}
	p->state = CORE_POOL_DECLARED;
}

static void freed(struct job *job)
{
	struct core_pool *p = ((struct device_job *)(void *)job)->owner;
	struct core *c = p->core;

	must(p->state == CORE_POOL_DROPPING && c->n_dropping > 0);
	p->drop_result = job->result;
	p->freeing = false;
	c->n_dropping--;
	redeclare(p);
	core_pool_publish(p);
	core_count(c, COUNTER_pools_dropped);
	log_write(c->log, p->drop_result ? LOG_LEVEL_ERROR : LOG_LEVEL_NOTICE,
		  "pool %s: dropped, %llu bytes given back%s%s", p->config->name,
		  (unsigned long long)p->dropped_bytes, p->drop_result ? "; the first error: " : "",
		  p->drop_result ? strerror(-p->drop_result) : "");
	list_for_each(link, following, &p->dropping)
	    request_ready(list_entry(link, struct request, in_wait));
	list_for_each(link, following, &p->attaching)
	    request_ready(list_entry(link, struct request, in_wait));
	core_ram_settle(c);
}

/* Sequences of clients that died are still closing, or the device still works on its pages. */
static bool is_quiet(const struct core_pool *p)
{
	return p->pool.sequences == 0 && p->mover.in_flight == 0 && p->transfers == 0 &&
	       ram_pool_is_quiet(&p->ram);
}

static void give_back(struct core_pool *p)
{
	/* Who may still write to pages in quarantine does so in memory that only it maps. */
	quarantine_forget(p);
	p->past = (struct pool_past){.stats = p->pool.stats,
				     .zeroed = p->mover.zeroed,
				     .copied = p->mover.copied,
				     .down = p->ram.down.sums,
				     .up = p->ram.up.sums,
				     .collisions = p->pool.prefix.collisions,
				     .refused_references = p->pool.pages.refused_references,
				     .states = p->pool.images.counts,
				     .order = order_sums(p),
				     .shadow_hits = p->pool.shadow.hits};
	core_pool_publish(p);
	below_remove(p);
	pool_deinit(&p->pool);
	p->mover = (struct mover){0};
	p->freeing = true;
	p->making = (struct device_job){
	    .job.done = freed, .op = DEVICE_FREE, .memory = &p->memory, .owner = p};
	p->core->device->submit(p->core->device, &p->making);
}

void core_pool_remember(struct core_pool *p)
{
	p->pool.stats = p->past.stats;
	p->mover.zeroed = p->past.zeroed;
	p->mover.copied = p->past.copied;
	p->ram.down.sums = p->past.down;
	p->ram.up.sums = p->past.up;
	p->pool.prefix.collisions = p->past.collisions;
	p->pool.pages.refused_references = p->past.refused_references;
	p->pool.images.counts = p->past.states;
	p->pool.shadow.hits = p->past.shadow_hits;
}

bool core_pools_drop_turn(struct core *c)
{
	uint32_t budget = (uint32_t)c->config->core.job_pages_per_turn;
	bool busy = false;

	for (uint32_t i = 0; i < c->n_pools; i++) {
		struct core_pool *p = c->pool[i];

		if (p->state != CORE_POOL_DROPPING || p->freeing || !is_quiet(p))
			continue;
		busy = true;
		/* What two states had may have to be copied for the one that goes later. */
		if (pool_drop_ram(&p->pool, RETAIN_NAMESPACES, &budget) && is_quiet(p))
			give_back(p);
	}
	return busy;
}

void core_pools_expire(struct core *c)
{
	for (uint32_t i = 0; i < c->n_pools; i++) {
		struct core_pool *p = c->pool[i];
		uint64_t ttl_ns = p->config->idle_ttl_s * NS_PER_S;

		if (p->state != CORE_POOL_READY || p->attached) {
			p->idle_since_ns = c->now_ns;
			continue;
		}
		if (!ttl_ns || c->draining || c->now_ns - p->idle_since_ns < ttl_ns ||
		    core_pool_users(p))
			continue;
		log_write(c->log, LOG_LEVEL_INFO, "pool %s: no session for %llu s", p->config->name,
			  (unsigned long long)p->config->idle_ttl_s);
		core_pool_drop(p);
	}
}
