/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission: whose turn it is to have pages promised. Core thread; nothing here blocks.
 *
 * Opens and forks wait in two kinds of lists, each in rank order: for room in the pool, or, within
 * a namespace that has a quota, for something of that namespace to end. Who waits for its own
 * namespace keeps nobody of another waiting.
 */
#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/request.h"

/* Nobody overtakes who ranks above. */
static bool is_behind(const struct list *where, const struct request *r)
{
	return request_is_behind(where, r) && protection(admission_in_rank_order);
}

/* Where it has to wait; NULL: it is admitted. */
static struct list *admit(struct request *r, struct seq *seq)
{
	struct core_pool *p = r->pool;
	struct list *own = &p->over_quota[seq->name_space];
	int result;

	if (is_behind(own, r) ||
	    !pool_quota_allows(&p->pool, seq->name_space, (uint64_t)seq->ceiling + seq->surplus))
		return own;
	if (is_behind(&p->admission, r))
		return &p->admission;
	result = seq_admit(seq);
	if (result == POOL_NEVER)
		refuse(r, WIRE_ENOSPC,
		       "%u pages, and %u beside other sequences' equal ones; pool %s has %u",
		       seq->ceiling, seq->surplus, p->config->name, p->pool.limits.pages);
	if (result == POOL_QUOTA)
		return own;
	return result ? &p->admission : NULL;
}

bool admission_try(struct request *r, struct seq *seq)
{
	struct core_pool *p = r->pool;
	bool waited = !list_is_empty(&r->in_wait);
	struct list *where;

	if (p->state != CORE_POOL_READY)
		return refused(r, WIRE_EIO, "the memory of pool %s has failed", p->config->name);
	where = admit(r, seq);

	if (!where) {
		if (waited) {
			list_remove(&r->in_wait);
			core_pool_settle(p); /* whose turn is it now? */
		}
		return true;
	}
	if (r->batch || r->reply.status)
		return false;
	if (waited && r->waits_in != where) {
		list_remove(&r->in_wait);
		core_pool_settle(p);
	} else if (!waited) {
		p->pool.stats.admission_waits++;
	}
	request_wait(r, where);
	return false;
}

bool admission_session(struct request *r)
{
	const struct session *s = r->session;
	if (s->core->draining)
		return refused(r, WIRE_ESHUTDOWN, "the daemon is stopping");
	if (s->core->drained)
		return refused(r, WIRE_ESHUTDOWN, CORE_DRAINS);
	if (s->n_sequences >= s->core->config->core.sequences_per_session)
		return refused(r, WIRE_EQUOTA,
			       "the session has %u sequences open; at most %llu "
			       "(core.sequences_per_session)",
			       s->n_sequences,
			       (unsigned long long)s->core->config->core.sequences_per_session);
	return true;
}

uint64_t core_namespace_sequences(const struct core *c, uint16_t name_space)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < c->n_pools; i++)
		sum += c->pool[i]->pool.shares[name_space].sequences;
	return sum;
}

bool admission_sequence(struct request *r)
{
	const struct core *c = r->session->core;
	uint16_t name_space = r->session->name_space;
	const struct config_namespace *n = &c->config->namespaces[name_space];
	uint64_t open = core_namespace_sequences(c, name_space);

	if (n->max_sequences == CONFIG_NULL || open < n->max_sequences)
		return true;
	return refused(r, WIRE_EQUOTA,
		       "namespace %s has %llu sequences open; at most %llu "
		       "(namespaces.max_sequences)",
		       n->name, (unsigned long long)open, (unsigned long long)n->max_sequences);
}

bool admission_pages(struct request *r, uint64_t most_tokens)
{
	const struct pool *p = &r->pool->pool;
	const struct config_namespace *n =
	    &r->session->core->config->namespaces[r->session->name_space];
	uint32_t pages = pool_ceiling_for(p, most_tokens);

	if (pages > p->limits.pages)
		return refused(r, WIRE_ENOSPC,
			       "max_tokens %llu needs %u pages of %u tokens; pool %s has %u "
			       "(pools.pool_pages, pools.pool_bytes)",
			       (unsigned long long)most_tokens, pages, p->limits.page_tokens,
			       r->pool->config->name, p->limits.pages);
	if (n->max_pages != CONFIG_NULL && pages > n->max_pages)
		return refused(r, WIRE_EQUOTA,
			       "max_tokens %llu needs %u pages of %u tokens; namespace %s may hold "
			       "%llu in a pool (namespaces.max_pages)",
			       (unsigned long long)most_tokens, pages, p->limits.page_tokens,
			       n->name, (unsigned long long)n->max_pages);
	return true;
}
