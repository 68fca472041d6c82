/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spill_check: what may be given up in KV-RAM, worked out by a look at all that is there, and what
 * must hold of it. One thread; nothing blocks.
 */
#include "tests/sim/sim.h"
#include "tests/sim/states.h"

/* ---- who goes, by a look at all ---- */

struct rank { /* in KV-RAM; lower goes first */
	uint32_t claim;
	bool interactive;
	double index;
	uint64_t tick;
};

static bool is_below(struct rank a, struct rank b)
{
	if (a.claim != b.claim)
		return a.claim < b.claim;
	if (a.interactive != b.interactive)
		return b.interactive;
	if (a.index < b.index || b.index < a.index)
		return a.index < b.index;
	return a.tick < b.tick;
}

/* Nobody has touched for a while what an interactive request left. */
static bool is_idle(const struct pool *p, const struct retain_run *run)
{
	uint64_t ttl_ns = p->limits.interactive_ttl_ns;

	return run->interactive && ttl_ns && p->retain.now_ns - run->touched_ns >= ttl_ns;
}

/* idle: it is an agent's, on probation. */
static struct rank rank_of(const struct pool *p, uint32_t node, uint32_t claim, bool idle)
{
	const struct retain_run *run = &p->retain.runs[p->prefix.nodes[node].run];
	const struct reuse *learned = retain_reuse(&p->retain);
	uint32_t bucket = reuse_bucket(p->retain.tick - run->tick);
	struct rank rank = {
	    .claim = claim, .interactive = run->interactive && !idle, .tick = run->tick};

	if (learned)
		rank.index = learned->index[reuse_cell(run->class, bucket)];
	else
		rank.index = run->part == RETAIN_REUSED && !idle;
	return rank;
}

static bool share_queue(const struct pool *p, const struct retain_run *a,
			const struct retain_run *b)
{
	if (a->name_space != b->name_space || a->interactive != b->interactive)
		return false;
	return p->retain.learned ? a->class == b->class : a->part == b->part;
}

/* In the learned order it is those of one age in it that are looked at together. */
static bool share_cell(const struct pool *p, const struct retain_run *a, const struct retain_run *b)
{
	uint64_t now = p->retain.tick;

	return share_queue(p, a, b) &&
	       (!p->retain.learned || reuse_bucket(now - a->tick) == reuse_bucket(now - b->tick));
}

/* What live sequences have there counts, too. */
uint32_t spill_claim(struct sim *w, uint16_t name_space, uint64_t more)
{
	const struct config_namespace *n = &w->config.namespaces[name_space];
	const struct ram *r = spill_pool(w)->ram;
	uint64_t held = more;

	for (uint32_t i = 0; i < r->most; i++) {
		const struct ram_object *o = &r->objects[i];

		if (o->pool && o->name_space == name_space)
			held += ram_bytes_of(o->pool, o->image) + RAM_KNOWN_BYTES;
	}
	if (n->max_kv_ram_bytes != CONFIG_NULL && held > n->max_kv_ram_bytes)
		return 0;
	return held > n->guaranteed_kv_ram_bytes ? 1 : 2;
}

/* Something of its run, or right below it, must go before. */
static bool has_deeper(const struct pool *p, uint32_t node)
{
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i], *it = &p->prefix.nodes[node];

		if (n->kind == NODE_TOKENS && n->copies[TIER_RAM] != COPY_NONE &&
		    (n->parent == node || (n->run == it->run && n->position > it->position)))
			return true;
	}
	return false;
}

static const char *why_not(const struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];
	bool arrives = (n->moves & (NODE_FILLING | NODE_FAILED)) == NODE_FILLING;
	bool on_device =
	    n->copies[TIER_DEVICE] != COPY_NONE && !(n->moves & (NODE_LEAVING | NODE_FILLING));

	if (n->copies[TIER_RAM] == COPY_NONE)
		return "is not there";
	if (n->moves & NODE_FILLING_RAM || arrives)
		return "is being copied";
	if (n->users && !on_device)
		return "is in use, and nowhere else";
	if (n->parked)
		return "is a live sequence's";
	return has_deeper(p, node) ? "is before others of its chain" : NULL;
}

static bool is_first(const struct pool *p, const struct retain_run *run,
		     bool (*share)(const struct pool *p, const struct retain_run *a,
				   const struct retain_run *b))
{
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];
		const struct retain_run *other;

		if (n->kind != NODE_TOKENS || n->copies[TIER_RAM] == COPY_NONE)
			continue;
		other = &p->retain.runs[n->run];
		if (other->tick < run->tick && share(p, other, run) && !why_not(p, i))
			return false;
	}
	return true;
}

/* Idle is only who is idle at the head of a queue: nobody looks further. What was opened later may
 * have been used earlier for the last time. */
static bool a_queue_begins_idle(const struct pool *p, uint16_t name_space)
{
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];
		const struct retain_run *run = &p->retain.runs[n->run];

		if (n->kind == NODE_TOKENS && n->copies[TIER_RAM] != COPY_NONE &&
		    n->name_space == name_space && run->interactive && is_idle(p, run) &&
		    !why_not(p, i) && is_first(p, run, share_queue))
			return true;
	}
	return false;
}

static bool is_idle_head(const struct pool *p, uint32_t node)
{
	const struct retain_run *run = &p->retain.runs[p->prefix.nodes[node].run];

	return is_idle(p, run) && is_first(p, run, share_cell) &&
	       a_queue_begins_idle(p, run->name_space);
}

/* The least of some namespaces; NODE_NONE: none may go. */
static uint32_t find_least(const struct pool *p, uint32_t namespaces, struct rank *least)
{
	uint32_t found = NODE_NONE;

	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];
		struct rank rank;

		if (n->kind != NODE_TOKENS || n->copies[TIER_RAM] == COPY_NONE ||
		    !(namespaces >> n->name_space & 1))
			continue;
		rank = rank_of(p, i, 0, is_idle_head(p, i));
		if ((found != NODE_NONE && !is_below(rank, *least)) || why_not(p, i))
			continue;
		found = i;
		*least = rank;
	}
	return found;
}

/* Namespaces with the weakest claim of those that have something that may go, and that claim. */
static uint32_t weakest(struct sim *w, uint32_t *claim)
{
	const struct pool *p = sim_pool(w);
	struct rank rank;

	for (*claim = 0; *claim < 3; ++*claim) {
		uint32_t found = 0;

		for (uint16_t ns = 0; ns < 2; ns++)
			found |= (uint32_t)(spill_claim(w, ns, 0) == *claim) << ns;
		if (find_least(p, found, &rank) != NODE_NONE)
			return found;
	}
	return 0;
}

static bool is_full(const struct sim *w)
{
	struct frames_sums sums = frames_sums(w->spill.arena->frames);

	return sums.objects == w->spill.arena->most_objects ||
	       sums.objects == sums.capacity_bytes / SPILL_PAGE_BYTES;
}

static void check_refused(struct sim *w, bool over, enum pool_need need,
			  const struct rank *newcomer, const struct rank *least)
{
	sim_check(w, over || is_full(w), "a page is refused, and KV-RAM has room");
	sim_check(w, !least || (!need && !is_below(*least, *newcomer)),
		  "a page is refused, and one that ranks below is in KV-RAM");
}

static void page_displaced(struct sim *w, uint32_t node, enum pool_need need, uint32_t victim)
{
	const struct pool *p = sim_pool(w);
	uint16_t ns = p->prefix.nodes[node].name_space;
	uint32_t claim = spill_claim(w, ns, SPILL_OBJECT), others;
	bool idle = is_idle(p, &p->retain.runs[p->prefix.nodes[node].run]);
	struct rank newcomer = rank_of(p, node, claim, idle), least, rank;
	bool over = claim == 0 && need != POOL_NEED_LIVE;
	uint32_t namespaces = over ? 1u << ns : weakest(w, &others);
	uint32_t first = find_least(p, namespaces, &least);

	least.claim = over ? claim : others;
	/* What must have a place takes it from its own, if nothing ranks below it. */
	if (need == POOL_NEED_HEAD && first != NODE_NONE && !is_below(least, newcomer)) {
		namespaces = 1u << ns;
		first = find_least(p, namespaces, &least);
		least.claim = spill_claim(w, ns, 0);
	}
	if (victim == NODE_NONE) {
		w->spill.refused++;
		check_refused(w, over, need, &newcomer, first == NODE_NONE ? NULL : &least);
		return;
	}
	w->spill.displaced++;
	sim_check(w, !why_not(p, victim), "a page is given up in KV-RAM that %s",
		  why_not(p, victim));
	sim_check(w, namespaces >> p->prefix.nodes[victim].name_space & 1,
		  "a page of namespace %u is given up in KV-RAM, and it is not its turn",
		  p->prefix.nodes[victim].name_space);
	rank = rank_of(p, victim, least.claim, is_idle_head(p, victim));
	sim_check(w, !is_below(least, rank),
		  "a page of rank %d, %g, %llu is given up in KV-RAM, one of %d, %g, %llu is there",
		  rank.interactive, rank.index, (unsigned long long)rank.tick, least.interactive,
		  least.index, (unsigned long long)least.tick);
	sim_check(w, need || is_below(rank, newcomer),
		  "a page of rank %d, %g, %llu is given up in KV-RAM for one of %d, %g, %llu",
		  rank.interactive, rank.index, (unsigned long long)rank.tick, newcomer.interactive,
		  newcomer.index, (unsigned long long)newcomer.tick);
}

void spill_displaced(const struct ram_candidate *newcomer, enum pool_need need,
		     const struct ram_candidate *victim, bool planned)
{
	struct core_pool *c = newcomer->pool->context;
	struct sim *w = (struct sim *)(void *)((char *)c->core - offsetof(struct sim, core));

	/* What is live goes before all that is retained. */
	if (newcomer->pool->pool->hybrid && need == POOL_NEED_LIVE)
		sim_check(w, newcomer->pool->pool->prefix.nodes[newcomer->node].parked,
			  "a place is asked for as a live page's, and nobody waits for that");
	else if (newcomer->pool->pool->hybrid)
		spill_state_displaced(w, newcomer, victim, planned);
	else
		page_displaced(w, newcomer->node, need, victim->pool ? victim->node : NODE_NONE);
}

/* ---- checks ---- */

static const struct device_job *device_job_of(const struct list *link)
{
	return (const struct device_job *)(const void *)list_entry(link, struct job, link);
}

/* A copy that is on its way is one of a page that knows of it, between its own places. */
static void check_copy(struct sim *w, const struct device_move *m)
{
	const struct ram_pool *rp = spill_pool(w);
	bool up = m->from == DEVICE_ARENA;
	uint64_t place = up ? m->from_offset : m->to_offset;
	uint64_t page = (up ? m->to_offset : m->from_offset) / rp->page_bytes;
	uint32_t object = spill_object(w, place);
	const struct node *n;

	sim_check(w, object != OBJECT_NONE, "a copy %s place %llu of KV-RAM runs, where nothing is",
		  up ? "from" : "to", (unsigned long long)place);
	if (rp->ram->objects[object].node == NODE_NONE)
		return; /* a live sequence's own: its rows tell */
	n = &rp->pool->prefix.nodes[rp->ram->objects[object].node];
	if (m->from == DEVICE_ARENA && m->to == DEVICE_ARENA) {
		sim_check(w, n->ram_pins, "a page is moved inside KV-RAM and does not know of it");
		return;
	}
	sim_check(w, n->copies[TIER_DEVICE] == page,
		  "a page is copied %s, and its place on the device is another's",
		  up ? "up" : "down");
	sim_check(w, n->moves & (up ? NODE_FILLING : NODE_FILLING_RAM),
		  "a page is copied %s and does not know of it", up ? "up" : "down");
}

static bool check_copies(struct sim *w, const struct list *jobs)
{
	bool some = false;

	list_for_each(link, following, jobs)
	{
		const struct device_job *j = device_job_of(link);

		if (!spill_is_copy(j))
			continue;
		some = true;
		for (uint32_t i = 0; i < j->n; i++) {
			const struct device_move *m = &j->moves[i];
			bool arena = m->to == DEVICE_ARENA || m->from == DEVICE_ARENA;

			if (arena && !spill_is_of_image(w, m))
				check_copy(w, m);
		}
	}
	return some;
}

/* Its bytes are there, and the same wherever they are; behind a part of a page may be anything. */
static void check_settled(struct sim *w, const struct node *n)
{
	const struct core_pool *p = sim_core_pool(w);
	const char *page = (const char *)p->memory.segment.memory +
			   n->copies[TIER_DEVICE] * p->geometry.page_stride;
	bool good = spill_is_whole(w, n->copies[TIER_RAM]);

	sim_check(w, node_is_in_ram(n) == good,
		  "a page in KV-RAM counts as %s and its bytes are %s",
		  node_is_in_ram(n) ? "good" : "spoilt", good ? "there" : "not");
	sim_check(w,
		  !node_is_in_ram(n) || n->copies[TIER_DEVICE] == COPY_NONE ||
		      n->length < SIM_PAGE_TOKENS || w->page_bytes > SPILL_PAGE_BYTES ||
		      memcmp(page, w->spill.arena->memory + spill_offset(w, n), SPILL_PAGE_BYTES) ==
			  0,
		  "a page has other bytes in KV-RAM than on the device");
}

static bool waits_for_copy(const struct node *n)
{
	if (n->moves & NODE_FILLING)
		return !(n->moves & NODE_FAILED);
	return n->moves & (NODE_LEAVING | NODE_FILLING_RAM);
}

static void check_node(struct sim *w, const struct node *n, bool settled)
{
	sim_check(w, !(n->moves & NODE_FILLING_RAM) || n->copies[TIER_DEVICE] != COPY_NONE,
		  "a page has left the device and is not in KV-RAM yet");
	sim_check(w, !settled || !waits_for_copy(n),
		  "no copy is under way, and a page waits for one (%x)", n->moves);
	sim_check(w, !settled || n->ram_pins == 0, "no copy is under way, and a page is pinned");
	if (settled && n->copies[TIER_RAM] != COPY_NONE)
		check_settled(w, n);
}

void spill_check(struct sim *w)
{
	const struct ram_pool *rp = spill_pool(w);
	const struct pool *p = sim_pool(w);
	const char *wrong = NULL;
	uint64_t arriving = 0;
	bool settled;

	if (!rp)
		return;
	settled = !check_copies(w, &w->copies.submitted);
	settled &= !check_copies(w, &w->copies.finished);
	settled &= !check_copies(w, &w->copies.held);
	settled &= ram_pool_is_quiet(rp);
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind != NODE_TOKENS)
			continue;
		check_node(w, n, settled);
		arriving += (n->moves & (NODE_FILLING | NODE_FAILED)) == NODE_FILLING;
	}
	if (settled && p->hybrid)
		states_check_settled(w);
	sim_check(w, arriving == p->arriving, "%llu pages arrive, counted are %llu",
		  (unsigned long long)arriving, (unsigned long long)p->arriving);
	if (w->event % 16 == 0)
		wrong = ram_check(rp->ram);
	if (w->event % 16 == 8)
		states_check_bytes(w);
	sim_check(w, !wrong, "%s", wrong);
}

void spill_check_rest(struct sim *w)
{
	const struct ram_pool *rp = spill_pool(w);

	if (!rp || !spill_is_calm(w))
		return;
	sim_check(w, ram_pool_is_quiet(rp), "nothing moves, and copies are asked for");
	sim_check(w, !ram_check(rp->ram), "%s", ram_check(rp->ram));
}

void spill_check_empty(struct sim *w)
{
	struct frames_sums sums;

	if (!w->spill.arena)
		return;
	sums = frames_sums(w->spill.arena->frames);
	sim_check(w, sums.objects == 0 && sums.slabs == 0 && w->core.ram->used_bytes == 0,
		  "%llu objects stay in KV-RAM when all is given up",
		  (unsigned long long)sums.objects);
	sim_check(w, !ram_check(w->core.ram), "%s", ram_check(w->core.ram));
}
