/* SPDX-License-Identifier: Apache-2.0 */
/* driver: draws what happens next. One thread. */
#include "daemon/base/testing.h"
#include "tests/sim/sim.h"

static struct sim_view *some_view(struct sim_client *c)
{
	for (uint32_t i = 0, at = below(c->sim, SIM_SEQUENCES); i < SIM_SEQUENCES; i++, at++) {
		struct sim_view *v = &c->views[at % SIM_SEQUENCES];

		if (v->used && !v->ops && !v->closing && (v->open || v->index))
			return v;
	}
	return NULL;
}

/* A mapped client writes to its pages directly, as far as it may. */
static void write_rows(struct sim_client *c, struct sim_view *v, uint32_t from, uint32_t to)
{
	for (uint32_t at = from; at < to; at++)
		memory_write(c->sim, v->table[at / SIM_PAGE_TOKENS - v->first_page].index,
			     at % SIM_PAGE_TOKENS, v->chain[at]);
}

/* Write what is to be committed, then commit it, without waiting in between. */
static void finish_step(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	uint32_t n = v->target - v->start, k = chance(w, 75) ? n : below(w, n + 1);
	uint32_t written = chance(w, 50) ? n : k;
	bool bad = chance(w, 8);

	if (bad && chance(w, 50))
		ask_rows(c, v, 0, 1, true);
	if (w->mapped && chance(w, 80))
		write_rows(c, v, v->start, v->start + written);
	else
		ask_rows(c, v, v->start, written, false);
	if (c->hybrid && chance(w, 15))
		ask_image_read(c, v);
	if (c->hybrid && k)
		images_write(c, v, k, written);
	if (bad)
		ask_rows(c, v, 0, 1, true);
	if (chance(w, 10))
		ask_cancel(c);
	if (chance(w, 6)) {
		ask_abort(c, v);
		return;
	}
	ask_commit(c, v, k, !chance(w, 6));
}

static void in_step(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	uint32_t kind = below(w, 100);

	if (kind < 70)
		finish_step(c, v);
	else if (kind < 78)
		ask_abort(c, v);
	else if (kind < 84)
		ask_fork(c, v);
	else if (kind < 88)
		ask_begin(c, v, true, NULL);
	else if (kind < 91)
		ask_truncate(c, v);
	else if (kind < 94)
		ask_close(c, v);
	else if (kind < 96)
		ask_table(c, v, true, NULL);
	else if (kind < 97)
		ask_checkpoint(c, v);
	else if (kind < 98)
		ask_image_read(c, v);
	else
		ask_read(c, v);
}

/* With KV-RAM below: a turn of a conversation, a state at its end, and the next. */
static void after_a_turn(struct sim_client *c, struct sim_view *v)
{
	if (chance(c->sim, 60))
		ask_checkpoint(c, v);
	c->talks[below(c->sim, SIM_TALKS)] =
	    (struct sim_talk){.text = v->text, .tokens = v->committed};
	if (chance(c->sim, 85))
		ask_close(c, v);
}

static void between_hybrid_steps(struct sim_client *c, struct sim_view *v)
{
	uint32_t kind = below(c->sim, 100);

	if (c->sim->spill.on && v->committed < v->known && chance(c->sim, 75))
		ask_begin(c, v, true, NULL);
	else if (c->sim->spill.on && v->committed >= v->known && chance(c->sim, 60))
		after_a_turn(c, v);
	else if (kind < 35 && v->committed < v->max_tokens)
		ask_begin(c, v, true, NULL);
	else if (kind < 65)
		ask_checkpoint(c, v);
	else if (kind < 70)
		ask_image_read(c, v);
	else if (kind < 75)
		ask_fork(c, v);
	else if (kind < 77)
		ask_truncate(c, v);
	else if (kind < 80)
		ask_table(c, v, true, NULL);
	else if (kind < 82)
		ask_read(c, v);
	else
		ask_close(c, v);
}

static void between_steps(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	uint32_t kind = below(w, 100);

	if (v->stuck && chance(w, 80))
		ask_abort(c, v);
	else if (v->stuck)
		ask_close(c, v);
	else if (c->hybrid)
		between_hybrid_steps(c, v);
	else if (w->spill.on && chance(w, w->live ? 3 : 25))
		ask_close(c, v);
	else if (chance(w, 1))
		ask_image_read(c, v);
	else if (chance(w, 1))
		ask_checkpoint(c, v);
	else if (kind < 55 && v->committed < v->max_tokens)
		ask_begin(c, v, true, NULL);
	else if (kind < 66)
		ask_fork(c, v);
	else if (kind < 73)
		ask_truncate(c, v);
	else if (kind < 78)
		ask_table(c, v, true, NULL);
	else if (kind < 84)
		ask_read(c, v);
	else
		ask_close(c, v);
}

static uint32_t count_views(const struct sim_client *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < SIM_SEQUENCES; i++)
		n += c->views[i].used;
	return n;
}

/* Lanes are few: who has some sequences goes on with those. */
static bool wants_more(struct sim_client *c)
{
	struct sim *w = c->sim;
	const struct config_pool *p = &w->config.pools[0];
	uint64_t n = 0, room = p->pool_pages * SIM_PAGE_TOKENS / p->max_sequence_length;

	if (c->hybrid && !w->spill.on)
		return count_views(c) < 2 || chance(w, 10);
	if (w->live)
		room *= 6; /* so many that some have to make room for others */
	for (uint32_t i = 0; i < w->n_clients; i++)
		n += count_views(&w->clients[i]);
	if (c->hybrid && p->lanes < room)
		room = p->lanes;
	return !w->spill.on || n < room || chance(w, w->quiet && c->hybrid ? 2 : 10);
}

/* What is found can be predicted only while nobody waits. */
static bool somebody_waits(const struct sim *w)
{
	for (uint32_t i = 0; i < w->n_clients; i++) {
		if (w->clients[i].in_flight)
			return true;
	}
	return false;
}

static void act(struct sim_client *c)
{
	struct sim *w = c->sim;
	struct sim_view *v = some_view(c);
	uint32_t kind = below(w, 100);

	if (!c->live || !client_has_room(c, 14))
		return;
	if (kind >= 1 && kind < 30 && !wants_more(c))
		kind = 50;
	if (!c->attached)
		ask_pool(c);
	else if (w->spill.on && w->quiet && v && chance(w, c->hybrid ? 20 : 80) &&
		 somebody_waits(w))
		ask_close(c, v);
	else if (w->spill.on && wants_more(c) && chance(w, 30))
		ask_open(c, true, NULL);
	else if (kind < 1)
		ask_detach(c);
	else if (kind < 22)
		ask_open(c, true, NULL);
	else if (kind < 30)
		ask_lookup(c, true, NULL);
	else if (kind < 33)
		ask_batch(c);
	else if (kind < 35)
		ask_cancel(c);
	else if (kind < 36 && chance(w, w->spill.on ? 60 : 20))
		ask_drop_retained(c);
	else if (kind < 36)
		ask_null(c);
	else if (v && !v->open)
		ask_close(c, v);
	else if (v && v->step)
		in_step(c, v);
	else if (v)
		between_steps(c, v);
}

/* Writes at any time while the client believes that its step is open. */
static void scribble(struct sim_client *c)
{
	struct sim_view *v = &c->views[below(c->sim, SIM_SEQUENCES)];
	uint32_t from;

	if (!c->sim->mapped || !c->process || !v->used || !v->step || v->ops)
		return;
	from = v->start + below(c->sim, v->target - v->start);
	write_rows(c, v, from, v->target);
	if (c->hybrid)
		images_scribble(c, v, from);
}

static void life(struct sim_client *c)
{
	struct sim *w = c->sim;

	w->done++;
	if (c->live) {
		if (chance(w, 30))
			client_die(c, chance(w, 50));
	} else if (c->process) {
		if (chance(w, 50))
			client_exit(c);
	} else if (!c->session) {
		client_start(c);
	}
}

static void pass_time(struct sim *w)
{
	uint32_t jumps = chance(w, 30) ? 8 : chance(w, 10) ? 80 : 1;

	w->done++;
	sim_trace(w, "time passes, %u times", jumps);
	while (jumps--) {
		w->now_ns += random_below(&w->random, 300 * NS_PER_MS);
		for (int i = 0; i < 17; i++)
			sim_turn(w);
	}
}

static void work(struct sim *w)
{
	struct sim_executor *e = chance(w, 80) ? &w->copies : &w->work;
	bool fails = w->failing && e == &w->copies && chance(w, 1);

	/* What took for ever ends after all. */
	if (!spill_is_calm(w) && chance(w, 1))
		sim_executor_let_go(&w->copies);

	if (chance(w, w->work_rate))
		sim_executor_step(e, fails ? -5 : 0);
}

static void arm_failpoint(struct sim *w)
{
	static const enum failpoint_name points[] = {
	    FAILPOINT_commit_memory, FAILPOINT_image_memory, FAILPOINT_open_memory,
	    FAILPOINT_prefix_node,   FAILPOINT_rows_memory,  FAILPOINT_slots_grow,
	    FAILPOINT_step_memory,   FAILPOINT_timers_grow,
	};

	failpoint_arm(points[below(w, 8)], below(w, 4), 1);
}

static void wake(struct sim_client *c)
{
	if (!c->wake_pending || !c->live)
		return;
	c->wake_pending = false;
	c->sim->core_sleeps = false;
	session_wake(c->session);
}

/* What was asked for goes on. */
static void move(struct sim *w)
{
	struct sim_client *c = &w->clients[below(w, w->n_clients)];

	if (chance(w, 25))
		act(c);
	wake(c);
	sim_turn(w);
	work(w);
	client_reap(c);
}

void driver_event(struct sim *w)
{
	struct sim_client *c = &w->clients[below(w, w->n_clients)];
	uint32_t kind = below(w, 1000);

	if (kind < 400 || (w->quiet && w->spill.on && kind < 700))
		act(c);
	else if (kind < 640)
		sim_turn(w);
	else if (kind < 760)
		work(w);
	else if (kind < 820)
		wake(c);
	else if (kind < 920)
		client_reap(c);
	else if (kind < 950)
		scribble(c);
	else if (kind < 960)
		pass_time(w);
	else if (kind < 970)
		life(c);
	else if (kind < 980 && w->failpoints)
		arm_failpoint(w);
	else if (kind < 984)
		pools_drop(w);
	else
		sim_turn(w);
	for (uint32_t i = 0; i < w->moves; i++)
		move(w);
	/* Who waits for pages must have been told when there are some. */
	if (w->quiet || kind >= 990 || (w->live && chance(w, 8)))
		sim_rest(w);
}
