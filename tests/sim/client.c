/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client: the honest library's side of a session: rings, window slots, operations in flight, and
 * its life: attach, hang-up, exit. One thread; the memory of sessions is the process's.
 */
#include "tests/sim/sim.h"

#define MEMORIES (3 * SIM_CLIENTS)

static struct sim_memory memories[MEMORIES];

static void free_memory(struct session_memory *m)
{
	struct sim_memory *it = (struct sim_memory *)(void *)m;

	it->used = false;
}

static struct sim_memory *take_memory(void)
{
	for (uint32_t i = 0; i < MEMORIES; i++) {
		struct sim_memory *m = &memories[i];

		if (m->used)
			continue;
		m->used = true;
		memset(m->control, 0, sizeof(m->control));
		m->memory = (struct session_memory){
		    .control = {.memory = m->control, .bytes = sizeof(m->control), .fd = -1},
		    .window = {.memory = m->window, .bytes = sizeof(m->window), .fd = -1},
		    .free = free_memory};
		return m;
	}
	return NULL;
}

/* ---- life ---- */

void client_start(struct sim_client *c)
{
	struct sim *w = c->sim;
	struct session_wish wish = {.pid = c->number + 1,
				    .name_space = c->name_space,
				    .interactive = true,
				    .admin = true,
				    .submission_slots = SIM_SUBMISSIONS,
				    .completion_slots = SIM_COMPLETIONS,
				    .owner = c};

	c->memory = take_memory();
	if (!c->memory)
		return;
	wish.memory = &c->memory->memory;
	wish.client[0] = (char)('a' + c->number);
	sim_check(w, session_new(&w->core, &wish, &c->session) == 0, "no session");
	ring_submit_side(&c->submissions, (struct control *)(void *)c->memory->control,
			 SIM_SUBMISSIONS);
	ring_reap_side(&c->completions, (struct control *)(void *)c->memory->control,
		       SIM_SUBMISSIONS, SIM_COMPLETIONS);
	w->core_sleeps = false;
	c->live = c->process = true;
	c->attached = c->asleep = c->woken = c->wake_pending = c->attaching = false;
	memset(c->ops, 0, sizeof(c->ops));
	c->in_flight = 0;
	c->hybrid = sim_pool(w) ? sim_pool(w)->hybrid : w->hybrid;
	ask_attach(c);
}

/* Steps of a mapped pool stay writable for whoever still runs. */
void client_ended(struct sim_client *c)
{
	c->live = false;
	c->attached = false;
	drops_forget(c->sim, c);
	memset(c->ops, 0, sizeof(c->ops));
	c->in_flight = 0;
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		struct sim_view *v = &c->views[i];

		v->open = false;
		v->ops = 0;
		v->used = v->used && v->step && c->process && c->sim->mapped;
	}
}

static void forget_views(struct sim_client *c)
{
	c->process = false;
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++)
		c->views[i].used = false;
}

void client_die(struct sim_client *c, bool exits)
{
	sim_trace(c->sim, "client %u %s", c->number, exits ? "exits" : "hangs up");
	c->sim->core_sleeps = false;
	if (!exits) {
		session_end(c->session, WIRE_BYE_DEATH, "the client hung up");
		return;
	}
	forget_views(c);
	session_exited(c->session);
}

void client_exit(struct sim_client *c)
{
	if (c->live || !c->process)
		return;
	sim_trace(c->sim, "client %u exits, its session has ended", c->number);
	c->sim->core_sleeps = false;
	forget_views(c);
	if (c->session)
		session_exited(c->session);
}

/* ---- operations ---- */

bool client_has_room(const struct sim_client *c, uint32_t ops)
{
	return c->in_flight + ops <= SIM_OPS;
}

struct sim_op *op_new(struct sim_client *c, uint16_t opcode, struct sim_view *v)
{
	for (uint32_t i = 0; i < SIM_OPS; i++) {
		struct sim_op *o = &c->ops[i];

		if (o->used)
			continue;
		*o = (struct sim_op){.used = true,
				     .client = c,
				     .slot = i,
				     .view = v,
				     .allowed = 1,
				     .e.opcode = opcode};
		c->in_flight++;
		if (v) {
			o->e.index = v->index;
			o->e.generation = v->generation;
			v->ops++;
		}
		return o;
	}
	sim_fail(c->sim, "the test has no operation left");
}

void op_forget(struct sim_op *o)
{
	sim_check(o->client->sim, o->used && o->client->in_flight > 0, "an operation twice");
	if (o->view)
		o->view->ops--;
	o->client->in_flight--;
	o->used = false;
}

static char *slot_of(const struct sim_op *o)
{
	return o->client->memory->window + (size_t)o->slot * SIM_SLOT_BYTES;
}

void *op_in(struct sim_op *o, uint32_t bytes)
{
	sim_check(o->client->sim, bytes <= SIM_OUT, "%u bytes of input", bytes);
	o->e.in_offset = (uint64_t)o->slot * SIM_SLOT_BYTES;
	o->e.in_bytes = bytes;
	memset(slot_of(o), 0, bytes);
	return slot_of(o);
}

void op_out(struct sim_op *o, uint32_t bytes)
{
	o->e.out_offset = (uint64_t)o->slot * SIM_SLOT_BYTES + SIM_OUT;
	o->e.out_bytes = bytes;
	memset(slot_of(o) + SIM_OUT, 0xee, bytes);
}

const void *op_answer(const struct sim_op *o)
{
	return slot_of(o) + SIM_OUT;
}

void op_send(struct sim_op *o)
{
	struct sim_client *c = o->client;
	struct sim *w = c->sim;

	o->sent_ns = w->now_ns;
	o->done_before = ++w->done;
	for (uint32_t i = 0; i < o->n_items; i++)
		o->items[i]->sent_ns = w->now_ns;
	o->submission = c->submissions.produced + 1;
	sim_check(w, ring_put(&c->submissions, &o->e) == 0, "no room in the submission ring");
	if (ring_must_wake(&c->submissions))
		c->wake_pending = true;
	sim_trace(w, "client %u #%llu %s handle %x.%u arg %llu", c->number,
		  (unsigned long long)o->submission, wire_opcode_name(o->e.opcode), o->e.index,
		  o->e.generation, (unsigned long long)o->e.arg0);
}

static struct sim_op *find(struct sim_client *c, uint64_t submission)
{
	for (uint32_t i = 0; i < SIM_OPS; i++) {
		if (c->ops[i].used && c->ops[i].submission == submission)
			return &c->ops[i];
	}
	sim_fail(c->sim, "client %u: an answer to submission %llu, which is not in flight",
		 c->number, (unsigned long long)submission);
}

bool client_reap(struct sim_client *c)
{
	struct completion reply;
	bool some = false;
	int r = 0;

	if (c->asleep && !c->woken)
		return false;
	if (c->asleep)
		ring_end_sleep(&c->completions);
	c->asleep = c->woken = false;
	while (c->live && (r = ring_get(&c->completions, &reply)) == 0) {
		some = true;
		ring_publish(&c->completions);
		answer_take(find(c, reply.submission), &reply);
	}
	sim_check(c->sim, !c->live || r == RING_EMPTY, "the completion ring is broken");
	if (c->live && !some && chance(c->sim, 20))
		c->asleep = ring_prepare_sleep(&c->completions);
	return some;
}
