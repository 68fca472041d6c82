/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: what may be found and what may be given up, worked out again by looking at everything.
 *
 * What a page is, its bytes tell: the stamp of its last row names all that it depends on. So the
 * longest reuse of a prompt is found without any index. One thread.
 */
#include "tests/sim/sim.h"

#include "daemon/base/panic.h"

static bool is_write_before(const struct sim_op *o, const struct sim_view *v)
{
	return v && o->view == v && o->e.opcode == WIRE_OP_KV_WRITE;
}

bool model_is_quiet(struct sim *w, const struct sim_view *v)
{
	if (!sim_pool(w) || w->failing || w->failpoints)
		return false;
	for (uint32_t i = 0; i < w->n_clients; i++) {
		struct sim_client *c = &w->clients[i];

		uint32_t others = 0;

		for (uint32_t k = 0; k < SIM_OPS; k++)
			others += c->ops[k].used && !is_write_before(&c->ops[k], v);
		/* One operation, the one being made, may be there already. */
		if (others > 1 || (c->session && !c->live))
			return false;
	}
	return w->quiet && list_is_empty(&w->core.closing) && list_is_empty(&w->core.dying) &&
	       sim_executor_is_idle(&w->copies);
}

static bool is_indexed(struct sim *w, uint64_t stamp)
{
	const struct pool *p = sim_pool(w);

	for (uint32_t i = 0; i < p->pages.fresh; i++) {
		if (p->pages.page[i].state == PAGE_INDEXED &&
		    memory_stamp(w, i, SIM_PAGE_TOKENS - 1) == stamp)
			return true;
	}
	return false;
}

static uint32_t find_end(const struct sim_text *t, uint32_t n, uint32_t max_cached, uint32_t *miss)
{
	uint32_t most = n - 1, end;

	*miss = PAYLOAD_MISS_NONE;
	if (max_cached < most) {
		most = max_cached;
		*miss = PAYLOAD_MISS_LIMIT;
	}
	end = most / SIM_PAGE_TOKENS * SIM_PAGE_TOKENS;
	while (text_is_inside_image(t, end, n)) {
		end -= SIM_PAGE_TOKENS;
		*miss = PAYLOAD_MISS_IMAGE;
	}
	return end;
}

uint32_t model_match(struct sim *w, const struct sim_text *t, const uint64_t *chain, uint32_t n,
		     uint32_t max_cached, bool off, uint32_t *miss)
{
	uint32_t end, found = 0;

	*miss = PAYLOAD_MISS_OFF;
	if (!sim_pool(w) || off || !w->config.pools[0].enable_prefix_caching)
		return 0;
	end = find_end(t, n, max_cached, miss);
	while (found < end && is_indexed(w, chain[found + SIM_PAGE_TOKENS - 1]))
		found += SIM_PAGE_TOKENS;
	if (found < end)
		*miss = found ? PAYLOAD_MISS_DIVERGED : PAYLOAD_MISS_NO_MATCH;
	while (text_is_inside_image(t, found, n)) {
		found -= SIM_PAGE_TOKENS;
		*miss = PAYLOAD_MISS_IMAGE;
	}
	return found;
}

void model_published(struct sim *w, struct sim_view *v, bool exact, uint64_t stops_before)
{
	if ((uint32_t)sim_pool(w)->stats.publish_stops != (uint32_t)stops_before)
		v->publishing = false;
	for (uint32_t at = SIM_PAGE_TOKENS; v->publishing && at <= v->committed;
	     at += SIM_PAGE_TOKENS) {
		if (!exact)
			v->publishing = is_indexed(w, v->chain[at - 1]);
		else
			sim_check(w, is_indexed(w, v->chain[at - 1]),
				  "%u tokens are committed and the page before %u cannot be found",
				  v->committed, at);
	}
}

/* ---- what is given up ---- */

static bool is_tail(const struct pool *p, uint32_t tail_node, uint32_t page)
{
	return tail_node != NODE_NONE && p->prefix.nodes[tail_node].copies[TIER_DEVICE] == page;
}

static bool is_used(const struct pool *p, uint32_t page)
{
	list_for_each(link, following, &p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		for (uint32_t i = 0; i < s->n_pages; i++) {
			/* A truncation gives its partial page up before it forgets it. */
			bool leaves = i == s->n_pages - 1 && !is_tail(p, s->tail_node, page) &&
				      s->committed % SIM_PAGE_TOKENS && s->step.state == STEP_NONE;

			if (s->table[i] == page && !leaves)
				return true;
		}
	}
	return false;
}

static bool has_resident_child(const struct pool *p, uint32_t node)
{
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind == NODE_TOKENS && n->parent == node &&
		    n->copies[TIER_DEVICE] != COPY_NONE)
			return true;
	}
	return false;
}

static uint64_t rank_of(const struct pool *p, uint32_t node)
{
	const struct retain_run *run = &p->retain.runs[p->prefix.nodes[node].run];

	return run->tick * RETAIN_PARTS + run->part;
}

static struct sim *watched(const struct pool *p)
{
	struct core_pool *c =
	    (struct core_pool *)(void *)((char *)(uintptr_t)p - offsetof(struct core_pool, pool));

	return (struct sim *)(void *)((char *)c->core - offsetof(struct sim, core));
}

/* Called before a page goes: it is the oldest of those that may, by a scan of all. */
void model_evict(const struct pool *p, uint32_t node)
{
	struct sim *w = watched(p);
	uint64_t rank = rank_of(p, node);

	w->evictions++;
	sim_check(w,
		  p->prefix.nodes[node].users == 0 &&
		      !is_used(p, p->prefix.nodes[node].copies[TIER_DEVICE]),
		  "a page is given up that a sequence uses");
	sim_check(w, !has_resident_child(p, node), "a page is given up before its children");
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind != NODE_TOKENS || n->copies[TIER_DEVICE] == COPY_NONE || n->users)
			continue;
		if (rank_of(p, i) >= rank || has_resident_child(p, i))
			continue;
		sim_fail(w, "a page of rank %llu is given up, one of rank %llu is there",
			 (unsigned long long)rank, (unsigned long long)rank_of(p, i));
	}
}
