/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world: makes a core and its surroundings from a seed, moves it, and takes it down. One thread.
 * The memory of pools and sessions is the process's, used again by every world.
 */
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/hybrid.h"
#include "shm/guard.h"

static const struct sim *running; /* for the text of a panic */

uint32_t below(struct sim *w, uint32_t bound)
{
	return (uint32_t)random_below(&w->random, bound);
}

/* ---- telling ---- */

static void tell_place(const struct sim *w)
{
	printf("# seed %llu, event %u; again with: --seed %llu --events %u --trace\n",
	       (unsigned long long)w->options.seed, w->event, (unsigned long long)w->options.seed,
	       w->options.events);
}

void sim_fail(const struct sim *w, const char *format, ...)
{
	va_list arguments;

	printf("# FAILED: ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	tell_place(w);
	fflush(stdout);
	_exit(SIM_FAILED);
}

void sim_trace(const struct sim *w, const char *format, ...)
{
	va_list arguments;

	if (!w->options.trace)
		return;
	printf("# %5u %llu: ", w->event, (unsigned long long)w->now_ns / 1000);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
}

static void on_panic(void *context, const char *text)
{
	(void)context;
	printf("# %s\n", text);
	if (running)
		tell_place(running);
	fflush(stdout);
}

/* ---- surroundings ---- */

static uint64_t now(void *context)
{
	return ((struct sim *)context)->now_ns;
}

static void device_submit(struct device *d, struct device_job *job)
{
	struct sim *w = (struct sim *)(void *)((char *)d - offsetof(struct sim, device));

	if (!pools_submit(w, job))
		w->cpu->submit(w->cpu, job);
}

static struct sim_client *client_of(struct session *s)
{
	return s->owner;
}

static void hook_wake(void *context, struct session *s)
{
	(void)context;
	client_of(s)->woken = true;
}

static bool hook_segment(void *context, struct session *s, const struct message *m, int fd)
{
	(void)s;
	(void)m;
	(void)fd;
	sim_fail(context, "a descriptor is sent for memory that has none");
}

static void hook_ended(void *context, struct session *s, enum wire_bye reason, const char *text)
{
	struct sim *w = context;
	struct sim_client *c = client_of(s);

	sim_trace(w, "session of client %u ended: %s", c->number, text);
	sim_check(w, c->session == s && c->live, "a session ended twice");
	sim_check(w,
		  reason == WIRE_BYE_DEATH || (reason == WIRE_BYE_SHUTDOWN && w->core.draining) ||
		      (reason == WIRE_BYE_QUOTA && w->failpoints),
		  "an honest session was ended for reason %d: %s", (int)reason, text);
	client_ended(c);
}

static void hook_gone(void *context, struct session *s)
{
	struct sim_client *c = client_of(s);

	sim_check((struct sim *)context, c->session == s && !c->live, "a session went twice");
	c->session = NULL;
}

/* ---- a world ---- */

static void draw_rules(struct sim *w, struct config_namespace *n, uint32_t pages)
{
	n->max_pages = CONFIG_NULL;
	n->guaranteed_pages = 0;
	if (!w->rules)
		return;
	if (chance(w, 50))
		n->max_pages = 6 + below(w, pages);
	if (chance(w, 50))
		n->guaranteed_pages = below(w, pages / 2);
	if (n->max_pages != CONFIG_NULL && n->guaranteed_pages > n->max_pages)
		n->guaranteed_pages = n->max_pages;
}

static void draw_config(struct sim *w)
{
	struct config *k = &w->config;
	struct config_pool *p = &k->pools[0];
	/* Under pressure, if there is somewhere to go. */
	uint32_t pages = 24 + below(w, chance(w, w->spill.on ? 85 : 50) ? 30 : SIM_PAGES - 24);
	uint32_t budget = 2 + below(w, w->spill.on && chance(w, 75) ? 14 : pages);
	uint32_t longest = pages - 1 < SIM_TABLE ? pages / 2 : SIM_TABLE;

	if (w->spill.on && chance(w, 80))
		longest = 6 + below(w, 6);
	/* Lanes are few: what they may have is more than there is all the same. */
	if (w->live && w->hybrid) {
		longest = (chance(w, 25) ? 4 : 6) + below(w, 6);
		pages = longest + 2 + below(w, longest / 2);
		budget = 2 + below(w, pages - 1);
	}
	config_start(k);
	k->n_pools = 1;
	k->n_namespaces = w->mapped ? 1 : 2;
	draw_rules(w, &k->namespaces[0], pages);
	k->namespaces[1] = k->namespaces[0];
	draw_rules(w, &k->namespaces[1], pages);
	k->namespaces[1].name[0] = 'o';
	k->core.spin_us = 50;
	k->core.job_pages_per_turn = chance(w, 30) ? 1 + below(w, 6) : 256;
	k->core.step_ttl_s = 2;
	k->core.sequence_idle_ttl_s = 20;
	k->core.session_heap_bytes = 1 << 26;
	k->core.sequences_per_session = SIM_SEQUENCES;
	k->core.default_deadline_us = 5000000;
	k->core.stall_limit_ms = 1000000;
	*p = (struct config_pool){
	    .name = "p",
	    .pool_bytes = CONFIG_NULL,
	    .pool_pages = pages,
	    .lanes = w->live ? SIM_LANES : 2 + below(w, SIM_LANES - 1),
	    .retained_slots = chance(w, 10) ? 0 : 1 + below(w, SIM_RETAINED),
	    .min_capture_tokens = chance(w, 50) ? 20 : 0,
	    .kv_cache_dtype = KERNEL_FLOAT32,
	    .kv_page_size = SIM_PAGE_TOKENS,
	    .max_sequence_length = longest * SIM_PAGE_TOKENS,
	    .enable_prefix_caching = !chance(w, 4),
	    .max_prefix_cache_pages = chance(w, w->spill.on ? 20 : 50) ? CONFIG_NULL : budget,
	    .map = w->mapped,
	    .retained_order = chance(w, 50) ? CONFIG_RETAINED_LEARNED : CONFIG_RETAINED_LRU,
	    .shadow_lru = chance(w, 50),
	    .idle_ttl_s = chance(w, 10) ? 1 + below(w, 5) : 0,
	    .default_deadline_us = 5000000};
}

static void draw_keys(struct sim *w, struct key_maker *keys)
{
	static const uint32_t bits[] = {128, 128, 12, 8};

	for (size_t i = 0; i < sizeof(keys->secret); i++)
		keys->secret[i] = (uint8_t)random_next(&w->random);
	keys->kept_bits = bits[below(w, 4)];
}

static void draw_world(struct sim *w)
{
	w->mapped = chance(w, 50);
	w->quiet = chance(w, 25);
	w->failing = chance(w, 6);
	w->failpoints = chance(w, 10);
	w->windows = chance(w, 25);
	w->hybrid = chance(w, 45);
	w->rules = chance(w, 35);
	w->spill.on = chance(w, w->hybrid ? 65 : 80);
	/* Of every third one the live sequences move. */
	w->live = w->options.seed % 3 == 0;
	w->spill.on |= w->live;
	w->state_bytes = SIM_STATE_BYTES;
	w->page_bytes = SPILL_PAGE_BYTES;
	w->quiet |= w->spill.on && chance(w, 20);
	w->work_rate = chance(w, w->spill.on ? 5 : 20) ? 2 : 10 + below(w, 90);
	w->moves = w->quiet || chance(w, 25) ? 0 : below(w, w->spill.on ? 24 : 8);
	w->n_clients = 1 + below(w, SIM_CLIENTS);
	w->now_ns = 1000000000 + random_below(&w->random, 1000000000);
}

void sim_begin(struct sim *w, const struct sim_options *options)
{
	struct core_options o;
	struct statsfile_size size = counters_size(1, SIM_CLIENTS);

	memset(w, 0, sizeof(*w));
	w->options = *options;
	w->random.state = options->seed * 0x2545f4914f6cdd1dull + 1;
	running = w;
	panic_set_hook(on_panic, NULL);
	failpoint_clear();
	pool_evict_hook = NULL;
	pool_leave_hook = NULL;
	draw_world(w);
	hybrid_piece_bytes = chance(w, 50) ? (64 + below(w, 1024)) * 8ull : HYBRID_PIECE_BYTES;
	draw_config(w);
	spill_draw(w);
	sim_executor_init(&w->copies);
	sim_executor_init(&w->work);
	spill_begin(w);
	sim_check(w, guard_install() == 0, "no fault guard");
	sim_check(w, device_cpu_new(&w->copies.executor, &w->work.executor, &w->cpu) == 0,
		  "no device");
	w->device = *w->cpu;
	w->device.submit = device_submit;
	sim_check(w, statsfile_create(&w->stats, NULL, &size, 1, "sim") == 0, "no counters");
	o = (struct core_options){
	    .config = &w->config,
	    .clock = {now, w},
	    .boot_epoch = 1,
	    .available_bytes = 1ull << 40,
	    .device = &w->device,
	    .arena = w->spill.arena,
	    .ram_note = "none",
	    .staging_note = "none",
	    .copies = &w->copies.executor,
	    .work = &w->work.executor,
	    .stats = &w->stats,
	    .hooks = {hook_wake, hook_segment, hook_ended, hook_gone, w},
	};
	draw_keys(w, &o.keys);
	sim_check(w, core_init(&w->core, &o) == 0, "the core does not start");
	sim_trace(w,
		  "pages %llu, budget %llu, max %llu, mapped %d, quiet %d, hybrid %d, lanes %llu, "
		  "slots %llu, order %u, rules %d, bits %u, objects %u, floor %llu, fails %u "
		  "and %u, hangs %u, state %u, page %u",
		  (unsigned long long)w->config.pools[0].pool_pages,
		  (unsigned long long)w->config.pools[0].max_prefix_cache_pages,
		  (unsigned long long)w->config.pools[0].max_sequence_length, w->mapped, w->quiet,
		  w->hybrid, (unsigned long long)w->config.pools[0].lanes,
		  (unsigned long long)w->config.pools[0].retained_slots,
		  w->config.pools[0].retained_order, w->rules, o.keys.kept_bits,
		  w->spill.on ? w->spill.arena->most_objects : 0,
		  (unsigned long long)w->config.pools[0].ram_floor_tokens, w->spill.down_fails,
		  w->spill.up_fails, w->spill.hangs, w->state_bytes, w->page_bytes);
	for (uint32_t i = 0; i < w->n_clients; i++) {
		w->clients[i] = (struct sim_client){
		    .sim = w,
		    .number = i,
		    .name_space = (uint16_t)(w->mapped ? 0 : i % 2),
		};
		client_start(&w->clients[i]);
	}
	pool_evict_hook = model_evict;
	pool_leave_hook = model_leave;
}

struct core_pool *sim_core_pool(struct sim *w)
{
	return w->core.pool[0];
}

struct pool *sim_pool(struct sim *w)
{
	struct core_pool *p = sim_core_pool(w);

	return p->pool.limits.pages ? &p->pool : NULL;
}

/* ---- moving ---- */

static bool core_must_wake(struct sim *w)
{
	return w->copies.wake || w->work.wake || w->sleep_until_ns <= w->now_ns;
}

void sim_turn(struct sim *w)
{
	w->now_ns += 1 + below(w, 3000);
	if (w->core_sleeps) {
		if (!core_must_wake(w))
			return;
		w->core_sleeps = false;
	}
	if (w->slept) {
		w->slept = false;
		core_end_sleep(&w->core);
	}
	w->copies.wake = w->work.wake = false;
	w->busy = core_turn(&w->core);
	if (w->busy || !chance(w, 20))
		goto out;
	w->core_sleeps = core_prepare_sleep(&w->core, &w->sleep_until_ns);
	/* The daemon looks at its clock once in a while even if nothing wakes it. */
	if (w->sleep_until_ns > w->now_ns + NS_PER_S)
		w->sleep_until_ns = w->now_ns + NS_PER_S;
	w->slept = true;
out:
	drops_look(w);
	check_admissions(w);
}

static bool deliver_wakes(struct sim *w)
{
	bool some = false;

	for (uint32_t i = 0; i < w->n_clients; i++) {
		struct sim_client *c = &w->clients[i];

		if (!c->wake_pending || !c->live)
			continue;
		c->wake_pending = false;
		w->core_sleeps = false;
		session_wake(c->session);
		some = true;
	}
	return some;
}

void sim_rest(struct sim *w)
{
	uint32_t idle = 0;

	for (uint32_t turns = 0; idle < 24; turns++) {
		bool some = deliver_wakes(w);

		sim_check(w, turns < 20000, "the world does not come to rest");
		while (sim_executor_step(&w->copies, 0) || sim_executor_step(&w->work, 0))
			some = true;
		w->busy = false;
		sim_turn(w);
		some |= w->busy;
		for (uint32_t i = 0; i < w->n_clients; i++)
			some |= client_reap(&w->clients[i]);
		some |= !sim_executor_is_idle(&w->copies) || !sim_executor_is_idle(&w->work) ||
			!list_is_empty(&w->core.ready) || !list_is_empty(&w->core.closing) ||
			!list_is_empty(&w->core.dying) || !list_is_empty(&w->core.answered);
		idle = some ? 0 : idle + 1;
	}
	check_world(w);
	check_rest(w);
}

/* ---- the end ---- */

void sim_end(struct sim *w)
{
	if (chance(w, 50))
		core_drain(&w->core);
	for (uint32_t i = 0; i < w->n_clients; i++) {
		if (w->clients[i].live)
			client_die(&w->clients[i], true);
	}
	w->core_sleeps = false;
	w->spill.hangs = 0;
	sim_executor_let_go(&w->copies);
	sim_rest(w);
	for (uint32_t i = 0; i < w->n_clients; i++)
		client_exit(&w->clients[i]);
	sim_rest(w);
	check_empty(w);
	sim_trace(w,
		  "the end: %llu opens, %llu tokens reused, %llu pages given up, %llu captures, "
		  "%llu claims, %llu drops",
		  (unsigned long long)w->opens, (unsigned long long)w->cached,
		  (unsigned long long)w->evictions, (unsigned long long)w->captures,
		  (unsigned long long)w->claims, (unsigned long long)w->drops);
	if (w->spill.arena)
		spill_tell(w);
	pools_leave_memory(w);
	pool_evict_hook = NULL;
	pool_leave_hook = NULL;
	spill_stop(w);
	core_deinit(&w->core);
	spill_end(w);
	statsfile_close(&w->stats, STATSFILE_STOPPED);
	w->cpu->free(w->cpu);
	failpoint_clear();
	running = NULL;
}

void sim_run(const struct sim_options *options)
{
	static struct sim world;

	sim_begin(&world, options);
	while (world.event < options->events) {
		world.event++;
		driver_event(&world);
		check_world(&world);
	}
	sim_end(&world);
}
