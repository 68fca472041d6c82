/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core: the loop; see core.h. Core thread; nothing here blocks.
 *
 * A turn polls the rings of sessions that are awake, gives each session with long requests one
 * budget, takes what executors have finished, and now and then (core_tick) reads the clock, runs
 * timers and writes counters. A session whose ring stays empty falls asleep by itself: its client
 * then sends a wake message.
 */
#include "daemon/front/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/panic.h"
#include "daemon/base/random.h"
#include "daemon/base/testing.h"
#include "daemon/front/drop.h"
#include "daemon/front/request.h"

#define TICK_TURNS      16 /* turns between two looks at the clock */
#define PUBLISH_NS      (1 * NS_PER_MS)
#define LOOK_NS         (100 * NS_PER_MS)
#define REAP_JOBS       32
#define CLOSE_SEQUENCES 4 /* orphans that get a budget in one turn */

static size_t salts_bytes(void)
{
	return CONFIG_NAMESPACES_MAX * sizeof(struct key);
}

/* Memory of their own, which a core dump leaves out. */
static int take_salts(struct core *c)
{
	void *m =
	    mmap(NULL, salts_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		return -ENOMEM;
	c->salts = m;
	(void)madvise(m, salts_bytes(), MADV_DONTDUMP);
	for (uint32_t i = 0; i < c->config->n_namespaces; i++) {
		const struct config_salt *salt =
		    &c->config->namespaces[i].managed_prefix_cache_salt;

		if (salt->is_set)
			c->salts[i] =
			    key_salt(&c->keys, salt->text, strnlen(salt->text, sizeof(salt->text)));
	}
	c->keys.salts = c->salts;
	return 0;
}

/* A name for a namespace that no other host or configuration gives to another. */
static void name_share(struct core *c, uint32_t i)
{
	const struct config_namespace *n = &c->config->namespaces[i];
	struct key name = key_salt(&c->keys, n->name, strnlen(n->name, sizeof(n->name)));
	uint64_t digest[2] = {name.low ^ c->salts[i].low, name.high ^ c->salts[i].high};

	ram_set_share(c->ram, (uint16_t)i,
		      n->max_kv_ram_bytes == CONFIG_NULL ? 0 : n->max_kv_ram_bytes,
		      n->guaranteed_kv_ram_bytes, (const uint8_t *)digest);
}

static int init_ram(struct core *c, struct arena *arena)
{
	int r = arena ? ram_new(arena, c->boot_epoch, &c->ram) : 0;

	for (uint32_t i = 0; c->ram && i < c->config->n_namespaces; i++)
		name_share(c, i);
	if (c->ram)
		c->ram->now_ns = c->now_ns;
	return r;
}

static int init_namespaces(struct core *c)
{
	for (uint32_t i = 0; i < c->config->n_namespaces; i++) {
		const struct config_namespace *from = &c->config->namespaces[i];
		struct core_namespace *n = &c->namespaces[i];

		memcpy(n->name, from->name, WIRE_NAME_MAX);
		/* CONFIG_NULL, no limit, is the largest number. */
		n->charge = (struct charge){.parent = &c->heap, .limit = from->max_bytes};
		if (counters_add_namespace(&c->counters, n->name, &n->counters))
			return -ENOMEM;
	}
	return take_salts(c);
}

int core_init(struct core *c, const struct core_options *options)
{
	int r;

	*c = (struct core){.config = options->config,
			   .clock = options->clock,
			   .keys = options->keys,
			   .boot_epoch = options->boot_epoch,
			   .available_bytes = options->available_bytes,
			   .device = options->device,
			   .ram_note = options->ram_note,
			   .staging = options->staging,
			   .staging_note = options->staging_note,
			   .copies = options->copies,
			   .work = options->work,
			   .stats = options->stats,
			   .log = options->log,
			   .hooks = options->hooks,
			   .heap = {.limit = UINT64_MAX}};
	list_init(&c->sessions);
	list_init(&c->awake);
	list_init(&c->ready);
	list_init(&c->answered);
	list_init(&c->closing);
	list_init(&c->dying);
	list_init(&c->ended);
	list_init(&c->quarantines);
	list_init(&c->free_requests);
	slots_init(&c->pools, CONFIG_POOLS_MAX);
	slots_init(&c->sequences, STEP_HANDLE - 1);
	slots_init(&c->steps, STEP_HANDLE - 1);
	timers_init(&c->timers);
	c->now_ns = clock_now(&c->clock);
	r = counters_init(&c->counters, c->stats);
	if (!r)
		r = init_namespaces(c);
	if (!r)
		r = init_ram(c, options->arena);
	if (!r)
		r = core_pools_init(c);
	if (r)
		core_deinit(c);
	return r;
}

void core_deinit(struct core *c)
{
	must(list_is_empty(&c->sessions) && list_is_empty(&c->dying));
	must(list_is_empty(&c->closing));
	core_pools_deinit(c);
	ram_free(&c->ram);
	while (!list_is_empty(&c->free_requests)) {
		struct request *r =
		    list_entry(list_first(&c->free_requests), struct request, in_session);

		list_remove(&r->in_session);
		free(r);
	}
	timers_deinit(&c->timers);
	slots_deinit(&c->pools);
	slots_deinit(&c->sequences);
	slots_deinit(&c->steps);
	counters_deinit(&c->counters);
	if (c->salts)
		munmap(c->salts, salts_bytes());
	c->salts = NULL;
}

/* ---- a turn ---- */

static bool poll_rings(struct core *c)
{
	bool busy = false;

	list_for_each(link, following, &c->awake)
	{
		struct session *s = list_entry(link, struct session, in_awake);

		if (!ring_is_empty(&s->submissions))
			busy |= session_poll(s);
	}
	return busy;
}

/* One budget for the first request of each session that has one: no session waits for another's
 * long walks, and the order does not depend on time. */
static bool run_ready(struct core *c)
{
	struct list turn;

	if (list_is_empty(&c->ready))
		return false;
	list_init(&turn);
	while (!list_is_empty(&c->ready)) {
		struct list *first = list_first(&c->ready);

		list_remove(first);
		list_append(&turn, first);
	}
	while (!list_is_empty(&turn)) {
		struct session *s = list_entry(list_first(&turn), struct session, in_ready);
		struct list *first = list_first(&s->ready);

		list_remove(&s->in_ready);
		if (!first)
			continue;
		list_remove(first);
		if (!list_is_empty(&s->ready))
			list_append(&c->ready, &s->in_ready);
		request_go(list_entry(first, struct request, in_ready));
	}
	return true;
}

static bool close_orphans(struct core *c)
{
	bool busy = false;

	for (int i = 0; i < CLOSE_SEQUENCES && !list_is_empty(&c->closing); i++) {
		struct sequence *q =
		    list_entry(list_first(&c->closing), struct sequence, in_session);
		uint32_t budget = (uint32_t)c->config->core.job_pages_per_turn;

		busy = true;
		if (!sequence_close_turn(q, &budget)) {
			list_remove(&q->in_session);
			list_append(&c->closing, &q->in_session);
		}
	}
	return busy;
}

static bool tear_down(struct core *c)
{
	if (list_is_empty(&c->dying))
		return false;
	while (!list_is_empty(&c->dying))
		session_tear_down(list_entry(list_first(&c->dying), struct session, in_sessions));
	return true;
}

/* The fence and the look at need_wake once a turn, however many completions there were. */
static void ring_doorbells(struct core *c)
{
	while (!list_is_empty(&c->answered)) {
		struct session *s =
		    list_entry(list_first(&c->answered), struct session, in_answered);

		list_remove(&s->in_answered);
		if (!ring_must_wake(&s->completions)) {
			core_count(c, COUNTER_wakes_avoided);
			continue;
		}
		core_count(c, COUNTER_wakes_sent);
		if (!failpoint(wake_lost))
			c->hooks.wake(c->hooks.context, s);
	}
}

bool core_turn(struct core *c)
{
	bool busy = poll_rings(c);

	busy |= run_ready(c);
	ring_doorbells(c);
	busy |= c->copies->reap(c->copies, REAP_JOBS) > 0;
	busy |= c->work->reap(c->work, REAP_JOBS) > 0;
	busy |= close_orphans(c);
	busy |= tear_down(c);
	if (c->n_dropping)
		busy |= core_pools_drop_turn(c);
	if (c->ram)
		ram_kick(c->ram);
	ring_doorbells(c);
	if (++c->turns % TICK_TURNS == 0)
		core_tick(c);
	return busy;
}

/* ---- now and then ---- */

static void publish_namespaces(struct core *c)
{
	for (uint32_t i = 0; i < c->config->n_namespaces; i++) {
		uint64_t held = 0, retained = 0;

		for (uint32_t k = 0; k < c->n_pools; k++) {
			const struct pool *p = &c->pool[k]->pool;

			held += pool_held(p, (uint16_t)i);
			retained += p->shares[i].indexed - p->shares[i].live;
		}
		namespace_counters_set(c->namespaces[i].counters, held, retained,
				       c->ram ? c->ram->shares[i].used_bytes : 0,
				       core_namespace_sequences(c, (uint16_t)i),
				       c->namespaces[i].sessions);
	}
}

void core_publish(struct core *c)
{
	c->sums[COUNTER_sessions_attached] = c->n_sessions;
	c->sums[COUNTER_core_turns] = c->turns;
	c->sums[COUNTER_log_dropped] = log_dropped(c->log);
	c->sums[COUNTER_provider_portable_kv_write] = c->device->dispatches[DEVICE_WRITE];
	c->sums[COUNTER_provider_portable_kv_read] = c->device->dispatches[DEVICE_READ];
	c->sums[COUNTER_provider_portable_page_copy] = c->device->dispatches[DEVICE_COPY];
	c->sums[COUNTER_provider_portable_page_zero] = c->device->dispatches[DEVICE_ZERO];
	if (c->ram) {
		c->sums[COUNTER_kv_ram_bytes_wanted] = c->ram->arena->bytes;
		c->sums[COUNTER_kv_ram_bytes_capacity] = c->ram->arena->arrived_bytes;
		c->sums[COUNTER_kv_ram_bytes_used] = c->ram->used_bytes;
		c->sums[COUNTER_kv_ram_pages_relocated] = c->ram->relocated;
		c->sums[COUNTER_kv_ram_relocations_failed] = c->ram->relocations_failed;
	}
	if (c->staging && c->staging->state == ARENA_WHOLE)
		c->sums[COUNTER_staging_bytes] = c->staging->bytes;
	counters_begin(&c->counters);
	for (int i = 0; i < COUNTER_COUNT; i++)
		counters_set(&c->counters, (enum counter)i, c->sums[i]);
	counters_end(&c->counters);
	publish_namespaces(c);
	for (uint32_t i = 0; i < c->n_pools; i++) {
		if (c->pool[i]->state == CORE_POOL_DECLARED)
			continue;
		core_pool_publish(c->pool[i]);
	}
}

static void look_at_sessions(struct core *c)
{
	list_for_each(link, following, &c->sessions)
	    session_look(list_entry(link, struct session, in_sessions));
	for (uint32_t i = 0; i < c->n_pools; i++) {
		if (c->pool[i]->state == CORE_POOL_READY)
			sequences_expire(c->pool[i]);
	}
	core_pools_expire(c);
}

static void fall_asleep(struct core *c)
{
	uint64_t spin_ns = c->config->core.spin_us * NS_PER_US;

	list_for_each(link, following, &c->awake)
	{
		struct session *s = list_entry(link, struct session, in_awake);

		if (c->now_ns - s->active_ns > spin_ns)
			session_sleep(s);
	}
}

void core_tick(struct core *c)
{
	struct timer *t;

	c->now_ns = clock_now(&c->clock);
	if (c->ram)
		c->ram->now_ns = c->now_ns;
	for (uint32_t i = 0; i < c->n_pools; i++)
		c->pool[i]->pool.retain.now_ns = c->now_ns;
	while ((t = timers_pop_due(&c->timers, c->now_ns)))
		t->expired(t);
	if (c->now_ns - c->published_ns < PUBLISH_NS)
		return;
	c->published_ns = c->now_ns;
	core_publish(c);
	fall_asleep(c);
	if (c->now_ns - c->looked_ns < LOOK_NS)
		return;
	c->looked_ns = c->now_ns;
	look_at_sessions(c);
}

bool core_prepare_sleep(struct core *c, uint64_t *until_ns)
{
	if (!list_is_empty(&c->ready) || !list_is_empty(&c->closing) || !list_is_empty(&c->dying) ||
	    !list_is_empty(&c->answered))
		return false;
	list_for_each(link, following, &c->awake)
	    session_sleep(list_entry(link, struct session, in_awake));
	if (!list_is_empty(&c->awake))
		return false;
	if (!c->copies->prepare_sleep(c->copies) || !c->work->prepare_sleep(c->work))
		return false;
	core_publish(c);
	look_at_sessions(c);
	core_count(c, COUNTER_core_sleeps);
	*until_ns = timers_next_ns(&c->timers);
	/* The look has ended steps, sequences or sessions, perhaps: what waited for them goes on.
	 */
	return list_is_empty(&c->ready) && list_is_empty(&c->answered) &&
	       list_is_empty(&c->dying) && list_is_empty(&c->closing) && list_is_empty(&c->awake);
}

void core_end_sleep(struct core *c)
{
	core_tick(c);
}

void core_drain(struct core *c)
{
	c->draining = true;
	while (!list_is_empty(&c->sessions))
		session_end(list_entry(list_first(&c->sessions), struct session, in_sessions),
			    WIRE_BYE_SHUTDOWN, "the daemon is stopping");
}

void core_forget_quarantines(struct core *c)
{
	while (!list_is_empty(&c->ended))
		session_exited(list_entry(list_first(&c->ended), struct session, in_sessions));
}

bool core_is_idle(const struct core *c)
{
	if (!list_is_empty(&c->sessions) || !list_is_empty(&c->dying) ||
	    !list_is_empty(&c->closing))
		return false;
	for (uint32_t i = 0; i < c->n_pools; i++) {
		if (c->pool[i]->state == CORE_POOL_MAKING ||
		    c->pool[i]->state == CORE_POOL_DROPPING || c->pool[i]->mover.in_flight ||
		    c->pool[i]->transfers || !ram_pool_is_quiet(&c->pool[i]->ram))
			return false;
	}
	return true;
}
