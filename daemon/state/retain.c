/* SPDX-License-Identifier: Apache-2.0 */
/* retain: see retain.h. Core thread; nothing here blocks. */
#include "daemon/state/retain.h"

#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"
#include "daemon/state/retain_internal.h"

static uint64_t places_bytes(void)
{
	return TICKSET_PLACES * sizeof(uint32_t);
}

static uint64_t runs_bytes(uint64_t n)
{
	return n * sizeof(struct retain_run);
}

/* A run has a page, or a sequence that may still add to it (each has a page of the pool promised),
 * or ghosts. */
static uint64_t runs_for(uint64_t pages, uint64_t learned_pages)
{
	uint64_t haunted = learned_pages ? learned_ghosts_for(learned_pages) : 0;

	return 2 * pages + (haunted < TICKSET_PLACES ? haunted : TICKSET_PLACES);
}

uint64_t retain_bytes_for(uint64_t pages, uint64_t learned_pages, uint32_t name_spaces,
			  bool has_ram)
{
	return reserve_bytes(places_bytes()) +
	       reserve_bytes(runs_bytes(runs_for(pages, learned_pages))) +
	       orders_bytes_for(learned_pages > 0, has_ram) * name_spaces +
	       (learned_pages ? learned_bytes_for(learned_pages) : 0);
}

static int take_runs(struct retain *r, uint64_t n)
{
	must(n > 0 && n < RUN_NONE);
	r->runs = reserve_take(runs_bytes(n));
	r->runs_room = r->runs ? (uint32_t)n : 0;
	return r->runs ? 0 : -ENOMEM;
}

int retain_init(struct retain *r, struct prefix *prefix, uint32_t pages)
{
	*r = (struct retain){.prefix = prefix, .first_free = RUN_NONE};
	r->run_at = reserve_take(places_bytes());
	if (r->run_at && take_runs(r, runs_for(pages, 0)) == 0)
		return 0;
	retain_deinit(r);
	return -ENOMEM;
}

int retain_learn(struct retain *r, uint32_t pages, uint32_t learned_pages)
{
	must(r->tick == 0 && !r->learned);
	reserve_give(r->runs, runs_bytes(r->runs_room));
	if (take_runs(r, runs_for(pages, learned_pages)))
		return -ENOMEM;
	return learned_init(r, learned_pages);
}

void retain_deinit(struct retain *r)
{
	orders_free(r);
	reserve_give(r->run_at, places_bytes());
	if (r->learned)
		learned_deinit(r);
	reserve_give(r->runs, runs_bytes(r->runs_room));
	*r = (struct retain){0};
}

/* ---- runs ---- */

static uint32_t place_of(const struct retain_run *run)
{
	return tickset_place(run->tick, run->part);
}

static bool tail_may_leave(const struct retain *r, const struct retain_run *run, enum tier tier)
{
	const struct node *n = &r->prefix->nodes[run->in[tier].tail];

	if (tier != TIER_DEVICE ||
	    (protection(run_in_use_stays) && protection(parent_waits_for_child)))
		return prefix_may_leave(r->prefix, run->in[tier].tail, tier);
	return n->copies[TIER_DEVICE] != COPY_NONE &&
	       (n->users == 0 || !protection(run_in_use_stays)) &&
	       (n->children_in[TIER_DEVICE] == 0 || !protection(parent_waits_for_child));
}

static void settle_in(struct retain *r, uint32_t run, enum tier tier)
{
	const struct retain_run *it = &r->runs[run];

	if (it->in[tier].count && tail_may_leave(r, it, tier))
		order_enter(r, run, tier);
	else
		order_leave(r, run, tier);
}

/* Nothing is left of it, perhaps. */
static void end_run(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	if (it->members || it->holders || it->ghosts)
		return;
	must(it->in[TIER_DEVICE].count == 0 && it->in[TIER_RAM].count == 0);
	if (!it->old)
		r->run_at[place_of(it)] = 0;
	it->tick = 0;
	it->deepest = r->first_free;
	r->first_free = run;
}

/* The tail of a run changed, or what keeps it. */
void retain_run_settle(struct retain *r, uint32_t run)
{
	settle_in(r, run, TIER_DEVICE);
	settle_in(r, run, TIER_RAM);
	end_run(r, run);
}

/* Index or RUN_NONE for lack of memory. */
static uint32_t run_new(struct retain *r, uint64_t tick, enum retain_part part, uint16_t ns)
{
	uint32_t at = r->first_free;

	if (order_prepare(r, ns))
		return RUN_NONE;
	if (at != RUN_NONE) {
		r->first_free = r->runs[at].deepest;
	} else {
		if (r->n_runs == r->runs_room)
			return RUN_NONE;
		at = r->n_runs++;
	}
	r->runs[at] = (struct retain_run){.tick = tick,
					  .touched_ns = r->now_ns,
					  .part = (uint8_t)part,
					  .name_space = ns,
					  .in = {{.tail = NODE_NONE}, {.tail = NODE_NONE}},
					  .deepest = NODE_NONE,
					  .highest = NODE_NONE};
	if (r->learned)
		learned_run_made(r, &r->runs[at]);
	r->run_at[tickset_place(tick, part)] = at + 1;
	return at;
}

static void age_out(struct retain *r, uint32_t run)
{
	struct retain_run *it = &r->runs[run];

	must(it->tick + RETAIN_WINDOW == r->tick);
	if (r->learned)
		learned_run_ages_out(r, run);
	r->run_at[place_of(it)] = 0;
	order_age_out(r, run, TIER_DEVICE);
	order_age_out(r, run, TIER_RAM);
	it->old = true;
	if (!it->members)
		retain_run_settle(r, run);
}

void retain_set_interactive(struct retain *r, uint32_t run, bool interactive)
{
	if (run == RUN_NONE || r->runs[run].interactive == interactive)
		return;
	order_leave(r, run, TIER_RAM);
	r->runs[run].interactive = interactive;
	settle_in(r, run, TIER_RAM);
}

uint64_t retain_open(struct retain *r)
{
	if (!r->run_at)
		return ++r->tick; /* of a pool that keeps no runs */
	if (r->learned)
		learned_next_tick(r);
	r->tick++;
	/* Whoever stands at the new tick's places has become older than the window. */
	for (uint32_t part = 0; part < RETAIN_PARTS; part++) {
		uint32_t run = r->run_at[tickset_place(r->tick, part)];

		if (run)
			age_out(r, run - 1);
	}
	return r->tick;
}

void retain_let_go(struct retain *r, uint32_t *run)
{
	if (*run == RUN_NONE)
		return;
	must(r->runs[*run].holders > 0);
	r->runs[*run].holders--;
	retain_run_settle(r, *run);
	*run = RUN_NONE;
}

void retain_pass_on(struct retain *r, uint32_t *from, uint32_t *to)
{
	if (r->learned) {
		must(*to == RUN_NONE);
		*to = *from;
		*from = RUN_NONE;
	}
	retain_let_go(r, from);
}

/* The run (tick, part), held in *run. 0, ELSEWHERE or -ENOMEM. */
static int hold_run(struct retain *r, uint16_t ns, uint64_t tick, enum retain_part part,
		    uint32_t *run)
{
	uint32_t at;

	if (tick + RETAIN_WINDOW <= r->tick)
		return RETAIN_ELSEWHERE;
	at = r->run_at[tickset_place(tick, part)];
	at = at ? at - 1 : run_new(r, tick, part, ns);
	if (at == RUN_NONE)
		return -ENOMEM;
	r->runs[at].holders++;
	*run = at;
	return 0;
}

/* ---- which of its pages are where ---- */

static bool is_deeper(const struct retain *r, uint32_t node, uint32_t than)
{
	return r->prefix->nodes[node].position > r->prefix->nodes[than].position;
}

/* Between its neighbours of the same run, by depth. What comes down comes from the tail of what is
 * above, so it nearly always stands right above what came last, or below everything. */
static void ram_insert(struct retain *r, struct retain_run *run, uint32_t node)
{
	struct node *nodes = r->prefix->nodes;
	struct retain_in *in = &run->in[TIER_RAM];
	uint32_t below = NODE_NONE, above = in->count ? in->tail : NODE_NONE;

	if (above != NODE_NONE && is_deeper(r, above, node)) {
		below = run->highest;
		if (below == NODE_NONE || nodes[below].run != nodes[node].run ||
		    nodes[below].copies[TIER_RAM] == COPY_NONE || !is_deeper(r, below, node))
			below = in->tail;
		above = nodes[below].ram_above;
		while (above != NODE_NONE && is_deeper(r, above, node)) {
			below = above;
			above = nodes[below].ram_above;
		}
	}
	nodes[node].ram_above = above;
	nodes[node].ram_below = below;
	if (above != NODE_NONE)
		nodes[above].ram_below = node;
	if (below != NODE_NONE)
		nodes[below].ram_above = node;
	else
		in->tail = node;
	in->count++;
	run->highest = node;
}

static void ram_take_out(struct retain *r, struct retain_run *run, uint32_t node)
{
	struct node *nodes = r->prefix->nodes;
	struct node *n = &nodes[node];

	must(run->in[TIER_RAM].count > 0);
	run->in[TIER_RAM].count--;
	if (n->ram_above != NODE_NONE)
		nodes[n->ram_above].ram_below = n->ram_below;
	if (n->ram_below != NODE_NONE)
		nodes[n->ram_below].ram_above = n->ram_above;
	else
		run->in[TIER_RAM].tail = n->ram_above;
	if (run->highest == node)
		run->highest = n->ram_below;
	n->ram_above = NODE_NONE;
	n->ram_below = NODE_NONE;
}

/* On the device a run has its first pages; those that come back come deepest first. */
static void device_insert(struct retain *r, struct retain_run *run, uint32_t node)
{
	struct retain_in *in = &run->in[TIER_DEVICE];

	if (in->count++ == 0 || is_deeper(r, node, in->tail))
		in->tail = node;
}

static void device_take_out(struct retain *r, struct retain_run *run, uint32_t node)
{
	must(run->in[TIER_DEVICE].count > 0);
	run->in[TIER_DEVICE].count--;
	if (run->in[TIER_DEVICE].tail == node)
		run->in[TIER_DEVICE].tail = r->prefix->nodes[node].parent;
}

static bool is_listed(const struct node *n, enum tier tier)
{
	return n->copies[tier] != COPY_NONE && !(tier == TIER_DEVICE && n->moves & NODE_LEAVING);
}

static void list_in(struct retain *r, uint32_t run, uint32_t node)
{
	const struct node *n = &r->prefix->nodes[node];

	if (is_listed(n, TIER_DEVICE))
		device_insert(r, &r->runs[run], node);
	if (is_listed(n, TIER_RAM))
		ram_insert(r, &r->runs[run], node);
}

static void list_out(struct retain *r, uint32_t run, uint32_t node)
{
	const struct node *n = &r->prefix->nodes[node];

	if (is_listed(n, TIER_DEVICE))
		device_take_out(r, &r->runs[run], node);
	if (is_listed(n, TIER_RAM))
		ram_take_out(r, &r->runs[run], node);
}

int retain_touch(struct retain *r, uint32_t node, uint64_t tick, enum retain_part part,
		 uint32_t *run)
{
	struct node *n = &r->prefix->nodes[node];
	bool matched = part == RETAIN_REUSED;
	uint32_t was = n->run, ghost = KEYSET_NONE;
	struct retain_run *to;

	must(tick > 0 && tick <= r->tick);
	if (was != RUN_NONE && r->runs[was].tick >= tick)
		return 0;
	/* A run is left from its start: who begins in its middle (a fork, or a sequence that was
	 * cut) and comes upon what another has published leaves it where it is. */
	if (was != RUN_NONE && r->prefix->nodes[n->parent].run == was)
		return 0;
	if (r->learned && !matched) {
		part = learned_part(r, n, *run, &ghost);
		if (*run != RUN_NONE && r->runs[*run].part != part)
			retain_let_go(r, run);
	}
	if (*run == RUN_NONE) {
		int result = hold_run(r, n->name_space, tick, part, run);

		if (result)
			return result;
	}
	to = &r->runs[*run];
	must(to->tick == tick && to->part == part);
	if (to->members && to->deepest != n->parent)
		return RETAIN_ELSEWHERE;
	if (was != RUN_NONE)
		list_out(r, was, node);
	n->run = *run;
	to->deepest = node;
	to->members++;
	list_in(r, *run, node);
	if (r->learned)
		learned_moved(r, was, ghost, *run, matched);
	retain_run_settle(r, *run);
	if (was != RUN_NONE) {
		must(r->runs[was].members > 0);
		r->runs[was].members--;
		must(r->runs[was].members == 0 || r->runs[was].deepest != node);
		retain_run_settle(r, was);
	}
	return 0;
}

void retain_put(struct retain *r, uint32_t node, enum tier tier)
{
	uint32_t run = r->prefix->nodes[node].run;

	if (run == RUN_NONE)
		return;
	if (tier == TIER_DEVICE)
		device_insert(r, &r->runs[run], node);
	else
		ram_insert(r, &r->runs[run], node);
	settle_in(r, run, tier);
}

void retain_look(struct retain *r, uint32_t node)
{
	uint32_t run = r->prefix->nodes[node].run;

	if (run == RUN_NONE)
		return;
	if (r->runs[run].in[TIER_DEVICE].tail == node)
		settle_in(r, run, TIER_DEVICE);
	if (r->runs[run].in[TIER_RAM].count && r->runs[run].in[TIER_RAM].tail == node)
		settle_in(r, run, TIER_RAM);
}

/* A page without copies: what is deepest now is its parent, as pages go from the end. */
static void leave_run(struct retain *r, uint32_t run, uint32_t node)
{
	struct retain_run *it = &r->runs[run];
	struct node *n = &r->prefix->nodes[node];

	must(it->members > 0);
	if (r->learned)
		learned_left(r, run, n->key);
	n->run = RUN_NONE;
	it->members--;
	if (it->deepest == node)
		it->deepest = n->parent;
}

void retain_remove(struct retain *r, uint32_t node, enum tier tier)
{
	const struct node *n = &r->prefix->nodes[node];
	uint32_t run = n->run;

	if (run == RUN_NONE)
		return;
	/* Its run comes back into the order when retain_look finds that the next one may go. */
	if (is_listed(n, tier)) {
		order_leave(r, run, tier);
		if (tier == TIER_RAM)
			ram_take_out(r, &r->runs[run], node);
		else
			device_take_out(r, &r->runs[run], node);
	}
	if (n->copies[tier == TIER_RAM ? TIER_DEVICE : TIER_RAM] == COPY_NONE)
		leave_run(r, run, node);
	if (r->runs[run].members == 0)
		end_run(r, run);
	else if (tier == TIER_RAM)
		settle_in(r, run, tier);
}

static const char *check_run(const struct retain *r, uint32_t run)
{
	const struct retain_run *it = &r->runs[run];
	const struct node *nodes = r->prefix->nodes;
	uint32_t node = it->deepest, device = 0, ram = 0;

	for (uint32_t k = 0; k < it->members; k++) {
		if (node == NODE_NONE || nodes[node].run != run)
			return "a run is not one chain";
		if (is_listed(&nodes[node], TIER_DEVICE) && device++ == 0 &&
		    it->in[TIER_DEVICE].tail != node)
			return "the tail of a run on the device is another page";
		if (is_listed(&nodes[node], TIER_RAM) && ram++ == 0 &&
		    it->in[TIER_RAM].tail != node)
			return "the tail of a run in KV-RAM is another page";
		node = nodes[node].parent;
	}
	if (device != it->in[TIER_DEVICE].count || ram != it->in[TIER_RAM].count)
		return "a run has other pages in a tier than it counts";
	node = it->in[TIER_RAM].tail;
	for (uint32_t k = 0; k < ram; k++) {
		if (nodes[node].run != run || nodes[node].copies[TIER_RAM] == COPY_NONE)
			return "the pages of a run in KV-RAM are no list";
		node = nodes[node].ram_above;
	}
	for (int tier = 0; tier < RETAIN_TIERS; tier++) {
		const struct retain_in *in = &it->in[tier];

		if (in->count == 0 && in->ordered)
			return "an empty run is in the order";
		if (in->count &&
		    prefix_may_leave(r->prefix, in->tail, (enum tier)tier) != in->ordered)
			return "a run is in the order and may not leave, or the reverse";
	}
	return NULL;
}

const char *retain_check(const struct retain *r)
{
	for (uint32_t i = 0; i < r->n_runs; i++) {
		const char *wrong = r->runs[i].tick ? check_run(r, i) : NULL;

		if (wrong)
			return wrong;
	}
	return r->learned ? learned_check(r) : NULL;
}
