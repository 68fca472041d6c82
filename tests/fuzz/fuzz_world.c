/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_world: see fuzz_world.h. One thread; nothing blocks. */
#include "tests/fuzz/fuzz_world.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSIONS_MAX 4 /* one after another, of a client */

static const char config_text[] =
    "{\"core\": {\"submission_slots\": 32, \"completion_slots\": 32, \"step_ttl_s\": 2,"
    " \"sequence_idle_ttl_s\": 4, \"job_pages_per_turn\": 2, \"sequences_per_session\": 6,"
    " \"session_heap_bytes\": \"1MiB\", \"default_deadline_us\": 1000000},"
    " \"pools\": [{\"name\": \"hot\", \"pool_pages\": 12, \"kv_page_size\": 16,"
    " \"kv_cache_dtype\": \"float32\", \"max_sequence_length\": 128,"
    " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null, \"map\": true}]}";

/* ---- workers ---- */

static void worker_submit(struct executor *e, struct job *job)
{
	struct fuzz_worker *w = (struct fuzz_worker *)(void *)e;

	list_append(&w->jobs, &job->link);
}

static unsigned worker_reap(struct executor *e, unsigned max)
{
	struct fuzz_worker *w = (struct fuzz_worker *)(void *)e;
	unsigned n = 0;

	while (w->works && n < max && !list_is_empty(&w->jobs)) {
		struct job *job = list_entry(list_first(&w->jobs), struct job, link);

		list_remove(&job->link);
		job->run(job);
		job->done(job);
		n++;
	}
	return n;
}

static bool worker_prepare_sleep(struct executor *e)
{
	return list_is_empty(&((struct fuzz_worker *)(void *)e)->jobs);
}

static uint64_t worker_heartbeat(struct executor *e)
{
	(void)e;
	return 0;
}

static void worker_init(struct fuzz_worker *w)
{
	w->executor = (struct executor){.submit = worker_submit,
					.reap = worker_reap,
					.prepare_sleep = worker_prepare_sleep,
					.heartbeat_ns = worker_heartbeat};
	list_init(&w->jobs);
	w->works = true;
}

/* ---- hooks ---- */

static void hook_wake(void *context, struct session *s)
{
	(void)context;
	(void)s;
}

static bool hook_segment(void *context, struct session *s, const struct message *m, int fd)
{
	(void)context;
	assert(s && m->u.segment.part < m->u.segment.parts && fd >= 0);
	return true;
}

static void hook_ended(void *context, struct session *s, enum wire_bye reason, const char *text)
{
	struct fuzz_client *c = s->owner;

	(void)context;
	assert(c->live && reason > 0 && reason < WIRE_BYE_COUNT && text[0]);
	c->live = false;
}

static void hook_gone(void *context, struct session *s)
{
	struct fuzz_client *c = s->owner;

	(void)context;
	assert(c->session == s && !c->live);
	c->session = NULL;
}

static uint64_t world_now(void *context)
{
	return ((struct fuzz_world *)context)->now_ns;
}

/* ---- the world ---- */

void fuzz_world_start(struct fuzz_world *w)
{
	struct core_options options = {.config = &w->config,
				       .keys.kept_bits = 5, /* most keys collide */
				       .boot_epoch = 1,
				       .available_bytes = 1ull << 30,
				       .hooks = {.wake = hook_wake,
						 .segment = hook_segment,
						 .ended = hook_ended,
						 .gone = hook_gone}};
	static char error[CONFIG_ERROR_BYTES];
	struct statsfile_size size;
	int r;

	memset(w, 0, sizeof(*w));
	config_start(&w->config);
	r = config_take_text(&w->config, "fuzz", config_text, sizeof(config_text) - 1, error);
	assert(r == 0);
	r = config_finish(&w->config, error);
	assert(r == 0);
	size = counters_size(w->config.n_pools, FUZZ_CLIENTS);
	r = statsfile_create(&w->stats, NULL, &size, 1, "fuzz");
	assert(r == 0);
	worker_init(&w->copies);
	worker_init(&w->work);
	r = device_cpu_new(&w->copies.executor, &w->work.executor, &w->device);
	assert(r == 0);
	w->now_ns = NS_PER_S;
	options.clock = (struct clock){.now_ns = world_now, .context = w};
	options.device = w->device;
	options.copies = &w->copies.executor;
	options.work = &w->work.executor;
	options.stats = &w->stats;
	r = core_init(&w->core, &options);
	assert(r == 0);
	for (int i = 0; i < FUZZ_CLIENTS; i++)
		w->clients[i].world = w;
}

void fuzz_world_check(struct fuzz_world *w, bool everything)
{
	struct core_pool *p = w->core.pool[0];
	const char *wrong;

	if (p->state != CORE_POOL_READY)
		return;
	wrong = pool_check(&p->pool, everything);
	if (wrong)
		fprintf(stderr, "pool_check: %s\n", wrong);
	assert(!wrong);
	assert(p->pool.pages.refused_references == 0);
}

static void take_completions(struct fuzz_client *c)
{
	struct completion reply;

	while (c->live && ring_get(&c->reap, &reply) == 0) {
		struct payload_handle h = {reply.index, reply.generation};

		assert(reply.submission > 0 && reply.submission <= c->submit.produced);
		assert(reply.status <= 0 && reply.reserved == 0);
		if (reply.status)
			continue;
		if (reply.opcode == WIRE_OP_OPEN || reply.opcode == WIRE_OP_FORK)
			c->sequences[c->n_sequences++ % FUZZ_HANDLES] = h;
		if (reply.opcode == WIRE_OP_STEP_BEGIN)
			c->steps[c->n_steps++ % FUZZ_HANDLES] = h;
		if (reply.opcode == WIRE_OP_POOL_ATTACH)
			c->pool = h;
	}
	if (c->live && !c->lazy)
		ring_publish(&c->reap);
}

void fuzz_world_turn(struct fuzz_world *w, unsigned turns)
{
	while (turns--) {
		(void)core_turn(&w->core);
		core_tick(&w->core);
		for (int i = 0; i < FUZZ_CLIENTS; i++)
			take_completions(&w->clients[i]);
		fuzz_world_check(w, false);
		w->now_ns += 1000;
	}
}

void fuzz_world_stop(struct fuzz_world *w)
{
	struct core *c = &w->core;
	unsigned turns = 10000;

	w->copies.works = true;
	w->work.works = true;
	core_drain(c);
	while (turns-- && !core_is_idle(c))
		fuzz_world_turn(w, 1);
	assert(core_is_idle(c));
	fuzz_world_turn(w, 4);
	core_forget_quarantines(c);
	fuzz_world_turn(w, 4);
	assert(w->memories == 0);
	assert(list_is_empty(&c->ended) && list_is_empty(&c->quarantines));
	assert(c->heap.used == 0);
	if (c->pool[0]->state == CORE_POOL_READY) {
		assert(c->pool[0]->pool.sequences == 0);
		assert(c->pool[0]->pool.ceilings == 0 && c->pool[0]->pool.surplus == 0);
		assert(c->pool[0]->pool.open_steps == 0 && c->pool[0]->pool.live == 0);
	}
	fuzz_world_check(w, true);
	for (int i = 0; i < FUZZ_CLIENTS; i++)
		assert(!w->clients[i].session);
	core_deinit(c);
	w->device->free(w->device);
	statsfile_close(&w->stats, STATSFILE_STOPPED);
}

/* ---- sessions ---- */

struct fuzz_memory {
	struct session_memory memory; /* first */
	struct fuzz_world *world;
};

static void memory_free(struct session_memory *m)
{
	struct fuzz_memory *f = (struct fuzz_memory *)(void *)m;

	assert(f->world->memories > 0);
	f->world->memories--;
	free(m->control.memory);
	free(m->window.memory);
	free(f);
}

struct session *fuzz_client_session(struct fuzz_client *c)
{
	struct fuzz_world *w = c->world;
	struct session_wish wish = {.pid = 1,
				    .interactive = true,
				    .admin = true,
				    .client = "fuzz",
				    .submission_slots = FUZZ_SLOTS,
				    .completion_slots = FUZZ_SLOTS,
				    .owner = c};
	struct fuzz_memory *m;
	int r;

	if (c->live)
		return c->session;
	if (c->session || c->attached >= SESSIONS_MAX)
		return NULL;
	m = calloc(1, sizeof(*m));
	assert(m);
	m->world = w;
	m->memory.free = memory_free;
	m->memory.control.bytes = (size_t)control_bytes(FUZZ_SLOTS, FUZZ_SLOTS);
	m->memory.control.memory = aligned_alloc(4096, (m->memory.control.bytes + 4095) & ~4095ull);
	m->memory.window.bytes = FUZZ_WINDOW_BYTES;
	m->memory.window.memory = calloc(1, FUZZ_WINDOW_BYTES);
	assert(m->memory.control.memory && m->memory.window.memory);
	memset(m->memory.control.memory, 0, m->memory.control.bytes);
	w->memories++;
	wish.memory = &m->memory;
	r = session_new(&w->core, &wish, &c->session);
	assert(r == 0);
	c->attached++;
	c->live = true;
	c->lazy = false;
	c->control = m->memory.control.memory;
	c->window = m->memory.window.memory;
	ring_submit_side(&c->submit, c->control, FUZZ_SLOTS);
	ring_reap_side(&c->reap, c->control, FUZZ_SLOTS, FUZZ_SLOTS);
	return c->session;
}
