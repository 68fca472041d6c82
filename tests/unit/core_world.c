/* SPDX-License-Identifier: Apache-2.0 */
/* core_world: see core_world.h. One thread; nothing blocks. */
#include "tests/unit/core_world.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "shm/guard.h"

#define OUT_BYTES  4096u /* of a slot: the second half */
#define IDLE_TURNS 8
#define TURNS_MOST 100000

static const char *const pool_names[] = {"p", "q"};

void core_wrong(const struct core_world *w, const char *format, ...)
{
	char text[300];
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (w->is_child)
		_exit(CORE_NOTICED);
	fail_msg("%s: at copy %llu: %s", w->scene, (unsigned long long)w->copies_seen, text);
	abort();
}

/* What the script stands on: a child that does not have it has noticed nothing. */
static void need(const struct core_world *w, bool there, const char *what)
{
	if (!there && w->is_child)
		_exit(1);
	if (!there)
		fail_msg("%s", what);
}

struct pool *core_pool(struct core_world *w)
{
	return &w->core.pool[0]->pool;
}

struct ram_pool *core_ram(struct core_world *w)
{
	return &w->core.pool[0]->ram;
}

/* ---- jobs ---- */

static bool is_copy(const struct job *job)
{
	const struct device_job *j = (const struct device_job *)(const void *)job;

	return j->op == DEVICE_MOVE &&
	       (j->moves[0].to == DEVICE_ARENA || j->moves[0].from == DEVICE_ARENA);
}

static void run_part(struct job *job, uint32_t moves)
{
	struct device_job *j = (struct device_job *)(void *)job;
	uint32_t n = j->n;

	j->n = moves;
	if (moves)
		job->run(job);
	j->n_moved = moves;
	j->n = n;
	job->result = -EIO;
}

static bool run_job(void *context, struct job *job, int result)
{
	struct core_world *w = context;
	enum core_verdict verdict = CORE_RUNS;
	bool copy = is_copy(job);

	(void)result;
	if (copy) {
		w->copies_seen++;
		w->copying = (const struct device_job *)(const void *)job;
		verdict = w->watch ? w->watch(w, CORE_SUBMITTED) : CORE_RUNS;
	}
	w->stuck |= verdict == CORE_IS_STUCK;
	if (w->stuck || verdict == CORE_IS_LATE)
		return false;
	if (verdict == CORE_FAILS)
		run_part(job, 0);
	else if (verdict == CORE_BREAKS)
		run_part(job, ((struct device_job *)(void *)job)->n / 2);
	else
		job->run(job);
	if (copy && w->watch)
		w->watch(w, CORE_RUN);
	return true;
}

/* ---- the world ---- */

static uint64_t world_now(void *context)
{
	return ((struct core_world *)context)->now_ns;
}

static void hook_wake(void *context, struct session *s)
{
	(void)context;
	(void)s;
}

static void hook_ended(void *context, struct session *s, enum wire_bye reason, const char *text)
{
	struct core_client *c = s->owner;

	(void)reason;
	(void)text;
	core_check(context, c->live, "a session ended twice");
	c->live = false;
}

static void hook_gone(void *context, struct session *s)
{
	struct core_client *c = s->owner;

	core_check(context, c->session == s && !c->live, "a session went twice");
	c->session = NULL;
}

static void changed(void *context)
{
	(void)context;
}

static void start_core(struct core_world *w)
{
	struct core_options options = {
	    .config = &w->config,
	    .clock = {.now_ns = world_now, .context = w},
	    .keys.kept_bits = 128,
	    .boot_epoch = 1,
	    .available_bytes = 1ull << 40,
	    .device = w->device,
	    .arena = w->arena,
	    .ram_note = "none",
	    .staging_note = "none",
	    .copies = &w->copies.executor,
	    .work = &w->work.executor,
	    .stats = &w->stats,
	    .hooks = {.wake = hook_wake, .ended = hook_ended, .gone = hook_gone, .context = w}};

	need(w, core_init(&w->core, &options) == 0, "no core");
	for (int i = 0; i < CORE_CLIENTS; i++)
		w->clients[i].world = w;
}

#define POOL_TEXT                                                                                  \
	"{\"name\": \"%s\", \"kv_page_size\": 16, \"kv_cache_dtype\": \"float32\","                \
	" \"enable_prefix_caching\": true, \"retained_order\": \"lru\", %s}"

static void read_config(struct core_world *w, const struct core_world_wish *wish)
{
	static char error[CONFIG_ERROR_BYTES];
	char text[2048], other[1024] = "";

	if (wish->other)
		(void)snprintf(other, sizeof(other), ", " POOL_TEXT, pool_names[1], wish->other);
	(void)snprintf(text, sizeof(text),
		       "{\"core\": {\"submission_slots\": 32, \"completion_slots\": 32,"
		       " \"default_deadline_us\": 1000000}, \"kv_staging_bytes\": 0,"
		       " \"pools\": [" POOL_TEXT "%s]}",
		       pool_names[0], wish->pool, other);
	config_start(&w->config);
	need(w,
	     config_take_text(&w->config, "test", text, strlen(text), error) == 0 &&
		 config_finish(&w->config, error) == 0,
	     error);
}

void core_world_start(struct core_world *w, const struct core_world_wish *wish)
{
	struct statsfile_size size = counters_size(wish->other ? 2 : 1, CORE_CLIENTS);
	struct arena_wish arena = {.bytes = wish->frames * FRAME_BYTES,
				   .chunk_bytes =
				       (wish->chunk ? wish->chunk : wish->frames) * FRAME_BYTES,
				   .most_objects = 1024,
				   .numa_node = NODES_ANYWHERE,
				   .threads = 1};
	bool is_child = w->is_child;

	memset(w, 0, sizeof(*w));
	w->is_child = is_child;
	w->heads = wish->heads;
	w->now_ns = 1000 * NS_PER_S;
	failpoint_clear();
	failpoint_arm(FAILPOINT_arena_pool, 0, wish->base_pages);
	read_config(w, wish);
	list_init(&w->late);
	sim_executor_init(&w->copies);
	sim_executor_init(&w->work);
	w->copies.run = run_job;
	w->copies.context = w;
	need(w, guard_install() == 0, "no fault guard");
	need(w, statsfile_create(&w->stats, NULL, &size, 1, "test") == 0, "no counters");
	need(w, device_cpu_new(&w->copies.executor, &w->work.executor, &w->device) == 0,
	     "no device");
	need(w, arena_new(&arena, &w->work.executor, changed, NULL, &w->arena) == 0, "no arena");
	while (!wish->chunk && sim_executor_step(&w->work, 0))
		w->work.executor.reap(&w->work.executor, 1);
	start_core(w);
}

void core_world_check(struct core_world *w)
{
	const char *wrong = NULL;

	for (uint32_t i = 0; i < w->core.n_pools && !wrong; i++) {
		if (w->core.pool[i]->state == CORE_POOL_READY)
			wrong = pool_check(&w->core.pool[i]->pool, true);
	}
	if (!wrong)
		wrong = ram_check(w->core.ram);
	core_check(w, !wrong, "%s", wrong);
}

/* ---- moving ---- */

/* True: something was done, or is to be. */
static bool turn(struct core_world *w)
{
	bool busy;

	w->now_ns += 1000;
	busy = core_turn(&w->core);
	for (int i = 0; i < CORE_CLIENTS; i++) {
		struct core_client *c = &w->clients[i];
		struct completion reply;

		while (c->live && ring_get(&c->reap, &reply) == 0) {
			ring_publish(&c->reap);
			c->replies[reply.submission % CORE_SLOTS] = reply;
			c->answered++;
			busy = true;
		}
	}
	return busy;
}

void core_listen(struct core_world *w)
{
	for (int idle = 0; idle < IDLE_TURNS; idle++)
		(void)turn(w);
}

static bool run_one(struct core_world *w)
{
	return (!w->stuck && sim_executor_step(&w->copies, 0)) || sim_executor_step(&w->work, 0);
}

/* Until answered, or nothing moves: false. */
static bool move_until(struct core_world *w, const struct core_client *c, uint64_t submission)
{
	for (int idle = 0, turns = 0; idle < IDLE_TURNS; turns++) {
		bool busy = turn(w);

		core_check(w, turns < TURNS_MOST, "the core does not come to rest");
		if (c && (!c->live || c->replies[submission % CORE_SLOTS].submission == submission))
			return true;
		busy |= run_one(w);
		idle = busy ? 0 : idle + 1;
	}
	return false;
}

int core_await(struct core_client *c, uint64_t submission)
{
	struct core_world *w = c->world;
	const struct completion *reply = &c->replies[submission % CORE_SLOTS];

	/* Nothing else can happen: time passes until the core has set itself to wake. */
	for (int i = 0; submission && !move_until(w, c, submission); i++) {
		uint64_t until_ns = 0;

		core_check(w, i < 100, "submission %llu is never answered",
			   (unsigned long long)submission);
		if (core_prepare_sleep(&w->core, &until_ns) && until_ns > w->now_ns &&
		    until_ns - w->now_ns < 3600 * NS_PER_S)
			w->now_ns = until_ns;
		core_end_sleep(&w->core);
	}
	if (!c->live || !submission || reply->submission != submission)
		return WIRE_EGONE;
	return reply->status;
}

void core_heal(struct core_world *w)
{
	w->watch = NULL;
	w->stuck = false;
	while (!list_is_empty(&w->copies.held)) {
		struct list *first = list_first(&w->copies.held);
		struct job *job = list_entry(first, struct job, link);

		list_remove(first);
		job->run(job);
		list_append(&w->copies.finished, first);
	}
	(void)move_until(w, NULL, 0);
	core_world_check(w);
}

static void stop_arena(struct core_world *w)
{
	struct frames_sums sums = frames_sums(w->arena->frames);

	core_check(w, sums.objects == 0 && w->core.ram->used_bytes == 0,
		   "%llu objects stay in KV-RAM", (unsigned long long)sums.objects);
	core_check(w, arena_stop(w->arena), "the arena is still on its way");
}

static void empty_pool(struct core_world *w, struct pool *p)
{
	uint32_t all = UINT32_MAX;

	core_check(w, p->sequences + p->live + p->open_steps + p->ceilings == 0,
		   "something of a sequence is left");
	pool_drop_retained(p, RETAIN_NAMESPACES, &all);
	(void)move_until(w, NULL, 0);
	pool_drop_retained(p, RETAIN_NAMESPACES, &all);
	core_check(w, p->indexed == 0 && p->prefix.used == 0, "pages stay");
}

void core_world_stop(struct core_world *w)
{
	core_heal(w);
	for (int i = 0; i < CORE_CLIENTS; i++) {
		if (w->clients[i].live)
			core_client_end(&w->clients[i], true);
	}
	(void)move_until(w, NULL, 0);
	for (uint32_t i = 0; i < w->core.n_pools; i++) {
		if (w->core.pool[i]->state == CORE_POOL_READY)
			empty_pool(w, &w->core.pool[i]->pool);
	}
	core_world_check(w);
	stop_arena(w);
	core_drain(&w->core);
	(void)move_until(w, NULL, 0);
	core_check(w, core_is_idle(&w->core) && list_is_empty(&w->core.ended) && w->memories == 0,
		   "a session is left");
	core_check(w, w->core.heap.used == 0, "memory is still charged");
	core_deinit(&w->core);
	arena_free(&w->arena);
	w->device->free(w->device);
	statsfile_close(&w->stats, STATSFILE_STOPPED);
}

/* ---- clients ---- */

struct memory {
	struct session_memory memory; /* first */
	struct core_world *world;
};

static void free_memory(struct session_memory *m)
{
	struct memory *f = (struct memory *)(void *)m;

	f->world->memories--;
	free(m->control.memory);
	free(m->window.memory);
	free(f);
}

uint64_t core_ask_attach(struct core_client *c, uint32_t at)
{
	struct {
		struct payload_pool pool;
		struct payload_layer layer;
	} in = {.pool = {.version = PAYLOAD_VERSION,
			 .n_layers = 1,
			 .tensor_size = 1,
			 .pipeline_size = 1},
		.layer = {.kv_heads = c->world->heads, .k_head_dim = 64, .v_head_dim = 64}};
	struct submission e = {.opcode = WIRE_OP_POOL_ATTACH};

	strcpy(in.pool.name, pool_names[at]);
	return core_ask(c, &e, &in, sizeof(in));
}

void core_client_attach(struct core_client *c, uint32_t at)
{
	uint64_t asked = core_ask_attach(c, at);
	const struct completion *reply = &c->replies[asked % CORE_SLOTS];
	int status;

	status = core_await(c, asked);
	core_check(c->world, status == 0, "the pool cannot be attached: %d", status);
	c->at = at;
	c->pool = (struct payload_handle){reply->index, reply->generation};
}

void core_client_start(struct core_client *c, bool attaches)
{
	struct core_world *w = c->world;
	struct session_wish wish = {.pid = (uint32_t)(c - w->clients) + 1,
				    .interactive = true,
				    .admin = true,
				    .client = "test",
				    .submission_slots = CORE_SLOTS,
				    .completion_slots = CORE_SLOTS,
				    .owner = c};
	size_t control = (size_t)control_bytes(CORE_SLOTS, CORE_SLOTS);
	struct memory *m = calloc(1, sizeof(*m));

	need(w, m, "no memory");
	core_check(w, !c->session, "a session that is over is still there");
	m->world = w;
	m->memory.free = free_memory;
	m->memory.control.bytes = (control + 4095) & ~(size_t)4095;
	m->memory.control.memory = aligned_alloc(4096, m->memory.control.bytes);
	m->memory.window.bytes = (size_t)CORE_SLOTS * CORE_SLOT_BYTES;
	m->memory.window.memory = calloc(CORE_SLOTS, CORE_SLOT_BYTES);
	need(w, m->memory.control.memory && m->memory.window.memory, "no memory");
	memset(m->memory.control.memory, 0, m->memory.control.bytes);
	w->memories++;
	wish.memory = &m->memory;
	need(w, session_new(&w->core, &wish, &c->session) == 0, "no session");
	c->live = true;
	c->answered = 0;
	memset(c->replies, 0, sizeof(c->replies));
	c->window = m->memory.window.memory;
	ring_submit_side(&c->submit, m->memory.control.memory, CORE_SLOTS);
	ring_reap_side(&c->reap, m->memory.control.memory, CORE_SLOTS, CORE_SLOTS);
	if (attaches)
		core_client_attach(c, 0);
}

void core_client_end(struct core_client *c, bool exits)
{
	if (exits)
		session_exited(c->session);
	else
		session_end(c->session, WIRE_BYE_DEATH, "it hung up");
}

uint64_t core_ask(struct core_client *c, struct submission *e, const void *in, uint32_t in_bytes)
{
	uint64_t submission = c->submit.produced + 1, slot = submission % CORE_SLOTS;

	if (!c->live)
		return 0;
	core_check(c->world, in_bytes <= CORE_SLOT_BYTES - OUT_BYTES, "too much input");
	e->in_offset = in_bytes ? slot * CORE_SLOT_BYTES : 0;
	e->in_bytes = in_bytes;
	e->out_offset = slot * CORE_SLOT_BYTES + CORE_SLOT_BYTES - OUT_BYTES;
	e->out_bytes = OUT_BYTES;
	if (in_bytes)
		memcpy(c->window + e->in_offset, in, in_bytes);
	core_check(c->world, ring_put(&c->submit, e) == 0, "the ring is full");
	if (ring_must_wake(&c->submit))
		session_wake(c->session);
	return submission;
}

const void *core_answer(const struct core_client *c, uint64_t submission)
{
	return c->window + submission % CORE_SLOTS * CORE_SLOT_BYTES + CORE_SLOT_BYTES - OUT_BYTES;
}

uint64_t core_ask_operator(struct core_client *c, uint32_t question, const char *argument)
{
	struct submission e = {.opcode = WIRE_OP_ADMIN};
	struct payload_admin in = {.question = question};

	memcpy(in.argument, argument, strlen(argument));
	return core_ask(c, &e, &in, sizeof(in));
}

uint64_t core_ask_cancel(struct core_client *c, uint64_t submission)
{
	struct submission e = {.opcode = WIRE_OP_CANCEL, .arg0 = submission};

	return core_ask(c, &e, NULL, 0);
}
