/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch: requests that need pages which are in KV-RAM: an open whose match goes on there, and
 * whatever is asked of a sequence that has made room for others. Core thread; nothing blocks.
 */
#include "daemon/base/panic.h"
#include "daemon/front/request.h"
#include "daemon/state/park.h"

#define FETCH_PAGES 64 /* that room is made for at once */

void request_fetch_from_start(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;

	/* What has come already is not asked for again. */
	t->asked = t->match.walk.on_device;
	t->fetched = t->asked;
}

static enum run_result go_on_with_less(struct request *r, uint32_t pages)
{
	match_cut(&r->u.prompt.match, pages);
	list_remove(&r->in_wait);
	return RUN_MORE;
}

static void stop_waiting(struct request *r)
{
	if (list_is_empty(&r->in_wait))
		return;
	list_remove(&r->in_wait);
	core_pool_settle(r->pool); /* whose turn is it now? */
}

/* Ask for those that nobody has asked for yet: 0, WAIT (no free page), MORE (the budget is over).
 */
static int ask_for_pages(struct request *r, uint32_t *budget)
{
	struct request_prompt *t = &r->u.prompt;
	struct core_pool *p = r->pool;

	for (; t->asked < match_nodes(&t->match); t->asked++) {
		uint32_t node = match_node(&t->match, t->asked);
		const struct node *n = &p->pool.prefix.nodes[node];
		int result;

		if (n->copies[TIER_DEVICE] != COPY_NONE || !node_is_in_ram(n))
			continue;
		if (*budget == 0)
			return POOL_MORE;
		--*budget;
		if (request_is_behind(&p->starving, r))
			return POOL_WAIT;
		result = pool_fetch(&p->pool, node);
		if (result == POOL_NEVER)
			break;
		if (result)
			return result;
	}
	return 0;
}

static struct request *first_starving(const struct core_pool *p)
{
	struct list *first = list_first(&p->starving);

	return first ? list_entry(first, struct request, in_wait) : NULL;
}

/* Nothing is on its way whose end would change anything. */
static bool nothing_comes(const struct core_pool *p)
{
	const struct pool *x = &p->pool;
	const uint32_t *count = x->pages.count;

	return x->leaving + x->arriving + x->parting == 0 &&
	       count[PAGE_DIRTY] + count[PAGE_ZEROING] + count[PAGE_DRAINING] == 0;
}

/* An open holds pages while it waits, and nobody may push it: if it has to wait behind another,
 * which has looked in vain for what it needs, it goes on with what has come. */
static bool is_in_the_way(const struct request *r)
{
	const struct request *first = first_starving(r->pool);

	return first && first != r && request_outranks(first, r) &&
	       list_is_empty(&first->in_ready) && nothing_comes(r->pool);
}

void request_starve(struct request *r)
{
	struct core_pool *p = r->pool;

	request_wait(r, &p->starving);
	mover_kick(&p->mover);
	if (first_starving(p) != r || !nothing_comes(p))
		return;
	list_for_each(link, following, &p->starving)
	{
		struct request *behind = list_entry(link, struct request, in_wait);

		if (behind != r && behind->kind == &kind_open)
			request_ready(behind);
	}
}

static enum run_result no_page(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;
	struct core_pool *p = r->pool;
	uint32_t left = match_nodes(&t->match) - t->asked;
	uint32_t window = left < FETCH_PAGES ? left : FETCH_PAGES;
	int result = park_make_room(&p->pool, window, request_rank(r));

	if (result == POOL_WAIT)
		result = park_insist(&p->pool, 1, request_rank(r));
	if (result == POOL_MORE)
		return RUN_MORE;
	if (is_in_the_way(r))
		return go_on_with_less(r, t->asked);
	request_starve(r);
	return RUN_WAIT;
}

enum run_result request_fetch(struct request *r, uint32_t *budget)
{
	struct request_prompt *t = &r->u.prompt;
	struct core_pool *p = r->pool;
	int result;

	if (p->state != CORE_POOL_READY)
		return refuse(r, WIRE_EIO, "the memory of pool %s has failed", p->config->name);
	if (r->batch)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for pages from KV-RAM");
	if (t->phase != PROMPT_FETCH) {
		t->phase = PROMPT_FETCH;
		t->fetch_ns = clock_now(&p->core->clock);
	}
	result = ask_for_pages(r, budget);
	if (result == POOL_MORE)
		return RUN_MORE;
	if (result == POOL_WAIT)
		return no_page(r);
	for (; t->fetched < match_nodes(&t->match); t->fetched++) {
		const struct node *n = &p->pool.prefix.nodes[match_node(&t->match, t->fetched)];

		if (node_is_on_device(n))
			continue;
		if (n->moves & NODE_FILLING && !(n->moves & NODE_FAILED))
			break;
		return go_on_with_less(r, t->fetched);
	}
	if (t->fetched < match_nodes(&t->match)) {
		request_wait(r, &p->fetching);
		return RUN_WAIT;
	}
	stop_waiting(r);
	return RUN_DONE;
}

enum run_result request_refuse_lost(struct request *r)
{
	if (r->sequence->seq->discarded)
		return refuse(r, WIRE_ELOST,
			      "the sequence was discarded, as one that ranks above needed its room "
			      "(pools.overcommit); close it and compute it again");
	return refuse(r, WIRE_ELOST,
		      "a part of the sequence could not be copied back from KV-RAM; close it");
}

enum run_result request_bring_back(struct request *r, uint32_t *budget)
{
	struct core_pool *p = r->pool;
	struct seq *s = r->sequence->seq;
	int result;

	if (p->state != CORE_POOL_READY)
		return refuse(r, WIRE_EIO, "the memory of pool %s has failed", p->config->name);
	result = park_return(s, request_rank(r), request_is_behind(&p->starving, r), budget);
	p->published_change = true;
	if (result == POOL_MORE)
		return RUN_MORE;
	if (result == POOL_LOST)
		return request_refuse_lost(r);
	if (result) {
		if (r->batch)
			return refuse(r, WIRE_EAGAIN,
				      "it would have to wait for pages from KV-RAM");
		if (result == POOL_FULL) {
			request_starve(r);
		} else {
			mover_kick(&p->mover);
			request_wait(r, &p->fetching);
		}
		return RUN_WAIT;
	}
	stop_waiting(r);
	return RUN_DONE;
}
