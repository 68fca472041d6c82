/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: what may be found and what may be given up, worked out again by looking at everything.
 *
 * What a page is, its bytes tell: the stamp of its last row names all that it depends on. So the
 * longest reuse of a prompt is found without any index. One thread.
 */
#include "tests/sim/sim.h"

#include "daemon/base/panic.h"
#include "tests/sim/states.h"

static bool is_write_before(const struct sim_op *o, const struct sim_view *v)
{
	return v && o->view == v &&
	       (o->e.opcode == WIRE_OP_KV_WRITE || o->e.opcode == WIRE_OP_IMAGE_WRITE ||
		o->e.opcode == WIRE_OP_IMAGE_READ);
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
	/* Who waits for pages takes them before an open gets what it has found below. */
	return w->quiet && list_is_empty(&sim_core_pool(w)->starving) &&
	       list_is_empty(&w->core.closing) && list_is_empty(&w->core.dying) &&
	       sim_executor_is_idle(&w->copies) && spill_is_calm(w) && !sim_pool(w)->trim_is_due;
}

bool model_is_indexed(struct sim *w, uint64_t stamp)
{
	const struct pool *p = sim_pool(w);

	for (uint32_t i = 0; i < p->pages.fresh; i++) {
		const struct node *n = &p->prefix.nodes[p->pages.page[i].next];

		/* Of a partial page the rows behind it say nothing, of one that arrives none. */
		if (p->pages.page[i].state == PAGE_INDEXED && n->length == SIM_PAGE_TOKENS &&
		    !(n->moves & NODE_FILLING) && memory_stamp(w, i, SIM_PAGE_TOKENS - 1) == stamp)
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

static uint32_t leave_image(const struct sim_text *t, uint32_t tokens, uint32_t n)
{
	while (text_is_inside_image(t, tokens, n))
		tokens -= SIM_PAGE_TOKENS;
	return tokens;
}

/* The longest match on the device; or one that goes on in KV-RAM, if it reaches far enough
 * beyond. */
static struct sim_reuse match_pages(struct sim *w, const struct sim_text *t, const uint64_t *chain,
				    uint32_t n, uint32_t max_cached)
{
	uint32_t floor = (uint32_t)w->config.pools[0].ram_floor_tokens, device = 0, found, whole;
	struct sim_reuse r = {0};
	uint32_t end = find_end(t, n, max_cached, &r.miss);

	while (device < end && model_is_indexed(w, chain[device + SIM_PAGE_TOKENS - 1]))
		device += SIM_PAGE_TOKENS;
	for (found = device; found < end; found += SIM_PAGE_TOKENS) {
		uint64_t stamp = chain[found + SIM_PAGE_TOKENS - 1];

		if (!model_is_indexed(w, stamp) && !spill_has(w, stamp))
			break;
	}
	if (found < end)
		r.miss = found ? PAYLOAD_MISS_DIVERGED : PAYLOAD_MISS_NO_MATCH;
	whole = leave_image(t, found, n);
	if (whole < found)
		r.miss = PAYLOAD_MISS_IMAGE;
	r.device_tokens = leave_image(t, device, n);
	r.tokens = whole;
	if (whole > device && whole < r.device_tokens + floor) {
		r.tokens = r.device_tokens;
		r.miss = PAYLOAD_MISS_FLOOR;
	}
	r.tier = r.tokens == 0       ? PAYLOAD_NO_TIER
		 : r.tokens > device ? PAYLOAD_KV_RAM
				     : PAYLOAD_DEVICE;
	r.device_tokens = device;
	return r;
}

struct sim_reuse model_match(struct sim *w, const struct sim_prompt *p, bool off,
			     struct sim_states *found)
{
	found->n = 0;
	if (!sim_pool(w) || off || !w->config.pools[0].enable_prefix_caching)
		return (struct sim_reuse){.miss = PAYLOAD_MISS_OFF, .tier = PAYLOAD_NO_TIER};
	if (images_is_hybrid(w))
		return states_match(w, p, found);
	return match_pages(w, p->text, p->chain, p->n, p->max_cached);
}

void model_published(struct sim *w, struct sim_view *v, bool exact, uint64_t stops_before)
{
	if ((uint32_t)sim_pool(w)->stats.publish_stops != (uint32_t)stops_before)
		v->publishing = false;
	for (uint32_t at = SIM_PAGE_TOKENS; v->publishing && at <= v->committed;
	     at += SIM_PAGE_TOKENS) {
		if (!exact)
			v->publishing = model_is_indexed(w, v->chain[at - 1]);
		else
			sim_check(w, model_is_indexed(w, v->chain[at - 1]),
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
		    n->copies[TIER_DEVICE] != COPY_NONE && !(n->moves & NODE_LEAVING))
			return true;
	}
	return false;
}

struct rank { /* the lower one goes first; then the older one */
	double index;
	uint64_t place;
};

static struct rank rank_of(const struct pool *p, uint32_t node)
{
	const struct retain_run *run = &p->retain.runs[p->prefix.nodes[node].run];
	const struct reuse *learned = retain_reuse(&p->retain);
	uint32_t bucket = reuse_bucket(p->retain.tick - run->tick);

	if (!learned)
		return (struct rank){.place = run->tick * RETAIN_PARTS + run->part};
	return (struct rank){.index = learned->index[reuse_cell(run->class, bucket)],
			     .place = run->tick};
}

static bool goes_before(struct rank a, struct rank b)
{
	if (a.index < b.index || b.index < a.index)
		return a.index < b.index;
	return a.place < b.place;
}

static struct sim *watched(const struct pool *p)
{
	struct core_pool *c =
	    (struct core_pool *)(void *)((char *)(uintptr_t)p - offsetof(struct core_pool, pool));

	return (struct sim *)(void *)((char *)c->core - offsetof(struct sim, core));
}

/* It is the first of those of some namespaces that may go, by a scan of all. */
static void check_rank(struct sim *w, const struct pool *p, uint32_t node, uint64_t namespaces)
{
	struct rank rank = rank_of(p, node);

	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind != NODE_TOKENS || n->copies[TIER_DEVICE] == COPY_NONE || n->users ||
		    n->moves & (NODE_LEAVING | NODE_FILLING) || !(namespaces >> n->name_space & 1))
			continue;
		if (!goes_before(rank_of(p, i), rank) || has_resident_child(p, i))
			continue;
		sim_fail(w, "a page of rank %g, %llu is given up, one of rank %g, %llu is there",
			 rank.index, (unsigned long long)rank.place, rank_of(p, i).index,
			 (unsigned long long)rank_of(p, i).place);
	}
}

/* Called before a page goes. */
void model_evict(const struct pool *p, uint32_t node)
{
	struct sim *w = watched(p);
	const struct node *n = &p->prefix.nodes[node];
	uint64_t weakest;

	w->evictions++;
	sim_check(w, !(n->moves & (NODE_LEAVING | NODE_FILLING)),
		  "a page is given up that is being copied");
	sim_check(w, n->users == 0 && !is_used(p, n->copies[TIER_DEVICE]),
		  "a page is given up that a sequence uses");
	sim_check(w, !has_resident_child(p, node), "a page is given up before its children");
	if (p->hybrid) {
		sim_check(w, n->kept == 0, "a page is given up that a kept state needs");
		return;
	}
	check_rank(w, p, node, 1ull << n->name_space);
	weakest = pools_weakest(p, false);
	if (pools_is_forced(p, n->name_space) || drops_is_asked(w, n->name_space))
		return;
	sim_check(w, weakest >> n->name_space & 1,
		  "a page of namespace %u is given up, and another one has more than it is sure of",
		  n->name_space);
	check_rank(w, p, node, weakest);
}

static bool leaves_before(const struct pool *p, const struct image *a, const struct image *b)
{
	double one = pools_index(p, a), other = pools_index(p, b);

	if (a->kind != b->kind)
		return a->kind < b->kind;
	return one < other || (one <= other && a->touched < b->touched);
}

/* Called before a state leaves: of all that may go it is the first, checkpoints before prefixes,
 * then the one of the lowest index, then the one that nobody has touched for longest. */
void model_leave(const struct pool *p, uint32_t image, uint64_t name_spaces, bool slotted)
{
	struct sim *w = watched(p);
	const struct image *it = &p->images.image[image];
	uint64_t among = pools_weakest(p, slotted);

	/* It has to make room for itself. */
	if (name_spaces == 1ull << it->name_space && pools_is_forced(p, it->name_space))
		among = name_spaces;
	sim_check(w, pools_may_leave(it, slotted), "a state leaves that is being copied");
	sim_check(w, among >> it->name_space & 1,
		  "a state of namespace %u leaves, and another one has more than it is sure of",
		  it->name_space);
	for (uint32_t i = 0; i < p->images.n_images; i++) {
		const struct image *other = &p->images.image[i];

		if (!(among >> other->name_space & 1) || !pools_may_leave(other, slotted))
			continue;
		sim_check(w, !leaves_before(p, other, it),
			  "a state of kind %u, %llu leaves, one of %u, %llu is there", it->kind,
			  (unsigned long long)it->touched, other->kind,
			  (unsigned long long)other->touched);
	}
}
