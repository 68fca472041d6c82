/* SPDX-License-Identifier: Apache-2.0 */
/* drops: see drops.h. One thread; nothing blocks. */
#include "tests/sim/sim.h"

static bool is_watchable(struct sim *w)
{
	return sim_pool(w) && sim_core_pool(w)->state == CORE_POOL_READY && !sim_pool(w)->hybrid &&
	       !w->drop_watch.asked;
}

void ask_drop_retained(struct sim_client *c)
{
	struct sim *w = c->sim;
	struct sim_drops *d = &w->drop_watch;
	bool all = chance(w, 40);
	uint16_t ns = (uint16_t)below(w, (uint32_t)w->config.n_namespaces);
	const char *name = all ? "" : w->config.namespaces[ns].name;
	struct sim_op *o = ask_admin(c, PAYLOAD_ADMIN_DROP, name, 1);

	o->n = all ? ~0u : 1u << ns;
	if (!is_watchable(w))
		return;
	*d = (struct sim_drops){.asked = o,
				.namespaces = o->n,
				.next_id = sim_pool(w)->prefix.next_id,
				.tick = sim_pool(w)->retain.tick,
				.done = d->done};
	drops_look(w);
}

bool drops_is_asked(const struct sim *w, uint16_t name_space)
{
	for (uint32_t i = 0; i < w->n_clients; i++) {
		const struct sim_client *c = &w->clients[i];

		for (uint32_t k = 0; k < SIM_OPS; k++) {
			if (c->ops[k].used && c->ops[k].e.opcode == WIRE_OP_ADMIN &&
			    c->ops[k].n >> name_space & 1)
				return true;
		}
	}
	return false;
}

void drops_look(struct sim *w)
{
	struct sim_drops *d = &w->drop_watch;
	const struct prefix *x;

	if (!d->asked)
		return;
	x = &sim_pool(w)->prefix;
	sim_check(w, x->fresh <= DROPS_NODES, "more nodes than the test remembers");
	for (uint32_t i = 0; i < x->fresh; i++) {
		if (x->nodes[i].kind != NODE_FREE && (x->nodes[i].users || x->nodes[i].parked))
			d->used[i] = x->nodes[i].id;
	}
}

void drops_forget(struct sim *w, const struct sim_client *c)
{
	if (w->drop_watch.asked && (!c || w->drop_watch.asked->client == c))
		w->drop_watch.asked = NULL;
}

static bool was_used(const struct sim *w, const struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];

	return w->drop_watch.used[node] == n->id || n->id > w->drop_watch.next_id ||
	       retain_tick_of(&p->retain, node) > w->drop_watch.tick;
}

void drops_answered(const struct sim_op *o, bool good)
{
	struct sim *w = o->client->sim;
	struct sim_drops *d = &w->drop_watch;
	const struct pool *p = sim_pool(w);

	if (d->asked != o)
		return;
	/* Of a pool that is being dropped itself nothing is found any more. */
	good = good && sim_core_pool(w)->state == CORE_POOL_READY;
	for (uint32_t i = 0; good && i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind != NODE_TOKENS || !(d->namespaces >> n->name_space & 1) ||
		    was_used(w, p, i))
			continue;
		sim_check(w,
			  n->copies[TIER_DEVICE] == COPY_NONE && n->copies[TIER_RAM] == COPY_NONE,
			  "a page stays that nobody has used since all was dropped (%s%s, %x)",
			  n->copies[TIER_DEVICE] == COPY_NONE ? "" : "device ",
			  n->copies[TIER_RAM] == COPY_NONE ? "" : "KV-RAM", n->moves);
	}
	d->done += good;
	d->asked = NULL;
}
