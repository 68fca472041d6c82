/* SPDX-License-Identifier: Apache-2.0 */
/* op_admin: an operator's questions; the answers are JSON text. Core thread; nothing blocks. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/front/admin.h"
#include "daemon/front/below.h"

static bool admin_check(struct request *r)
{
	const struct payload_admin *in = r->in;

	if (!range_is_zero(in->reserved, sizeof(in->reserved)) ||
	    !memchr(in->argument, 0, sizeof(in->argument)))
		return refused(r, WIRE_EINVAL, "reserved words of the question are set");
	if (in->question < PAYLOAD_ADMIN_HEALTH || in->question >= PAYLOAD_ADMIN_COUNT)
		return refused(r, WIRE_EINVAL, "question %u is unknown", in->question);
	if (!r->session->admin)
		return refused(r, WIRE_EPERM, "operators only");
	return true;
}

/* ---- health ---- */

static json_t *policy_of(const struct core_pool *p)
{
	const struct config_pool *k = p->config;
	json_t *requested, *effective;

	if (!k->enable_prefix_caching) {
		requested = json_pack("{s:s}", "mode", "disabled");
		effective = json_pack("{s:s}", "mode", "disabled");
	} else {
		json_t *wanted = k->max_prefix_cache_pages == CONFIG_NULL
				     ? json_null()
				     : json_integer((json_int_t)k->max_prefix_cache_pages);

		requested = json_pack("{s:s, s:o}", "mode", "namespaced", "max_pages", wanted);
		effective = json_pack("{s:s, s:I}", "mode", "namespaced", "max_pages",
				      (json_int_t)p->plan.effective_prefix_pages);
	}
	return json_pack(
	    "{s:{s:I, s:s, s:o}, s:{s:I, s:s, s:o}, s:o}", "requested", "page_size",
	    (json_int_t)k->kv_page_size, "dtype", kernel_format_name(k->kv_cache_dtype), "prefix",
	    requested, "effective", "page_size", (json_int_t)k->kv_page_size, "dtype",
	    kernel_format_name(k->kv_cache_dtype), "prefix", effective, "fallback_reason",
	    p->plan.fallback_reason[0] ? json_string(p->plan.fallback_reason) : json_null());
}

static const char *const pool_states[] = {
    [CORE_POOL_DECLARED] = "declared", [CORE_POOL_MAKING] = "making",
    [CORE_POOL_READY] = "ready",       [CORE_POOL_FAILED] = "failed",
    [CORE_POOL_DROPPING] = "dropping",
};

static json_t *pool_line(const struct core_pool *p)
{
	const struct pool *x = &p->pool;

	return json_pack(
	    "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:o}", "name", p->config->name,
	    "state", pool_states[p->state], "pages", (json_int_t)p->plan.pages, "page_tokens",
	    (json_int_t)p->config->kv_page_size, "page_stride", (json_int_t)p->geometry.page_stride,
	    "pages_free", (json_int_t)(x->limits.pages ? pages_free(&x->pages) : 0), "pages_live",
	    (json_int_t)(x->live + x->pages.count[PAGE_PRIVATE]), "pages_retained",
	    (json_int_t)pool_retained(x), "sequences", (json_int_t)x->sequences, "backing",
	    p->memory.huge_note, "sessions", (json_int_t)p->attached, "kv_cache_policy",
	    policy_of(p));
}

static json_t *threads_of(const struct core *c)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < c->stats->head->n_threads; i++) {
		const struct statsfile_thread *t = &c->stats->threads[i];
		uint64_t beat = atomic_load_explicit(&t->heartbeat_ns, memory_order_relaxed);
		uint64_t silent = beat && c->now_ns > beat ? c->now_ns - beat : 0;

		json_array_append_new(list, json_pack("{s:s, s:I}", "name", t->name, "silent_ms",
						      (json_int_t)(silent / NS_PER_MS)));
	}
	return list;
}

static void warn_of_ram(const struct core *c, json_t *warnings)
{
	if (!c->ram && c->config->kv_ram_bytes)
		json_array_append_new(warnings, json_sprintf("KV-RAM is %s", c->ram_note));
	else if (c->ram && c->ram->arena->state == ARENA_PARTIAL)
		json_array_append_new(warnings, json_sprintf("KV-RAM: %s", c->ram->arena->note));
}

static void warn_of_staging(const struct core *c, json_t *warnings)
{
	if (!c->staging && c->config->kv_staging_bytes)
		json_array_append_new(warnings, json_sprintf("staging is %s", c->staging_note));
	else if (c->staging && c->staging->state == ARENA_PARTIAL)
		json_array_append_new(warnings,
				      json_sprintf("staging is missing: %s", c->staging->note));
}

static void warn_of_pool(const struct core_pool *p, json_t *warnings)
{
	const char *name = p->config->name;

	if (p->plan.fallback_reason[0])
		json_array_append_new(warnings,
				      json_sprintf("pool %s: %s", name, p->plan.fallback_reason));
	if (p->state == CORE_POOL_READY && p->memory.segment.backing == SEGMENT_SMALL)
		json_array_append_new(warnings,
				      json_sprintf("pool %s: %s", name, p->memory.huge_note));
	if (p->state == CORE_POOL_READY && below_is_missed(p))
		json_array_append_new(
		    warnings,
		    json_sprintf("pool %s: KV-RAM does not serve it: %s", name, p->ram_note));
	if (p->state == CORE_POOL_READY && below_is_degraded(p))
		json_array_append_new(
		    warnings, json_sprintf("pool %s: copies to KV-RAM fail, and are tried again; "
					   "live sequences make no room for others",
					   name));
	if (p->state == CORE_POOL_FAILED)
		json_array_append_new(warnings,
				      json_sprintf("pool %s: its memory has failed", name));
}

static json_t *health(struct core *c)
{
	json_t *pools = json_array(), *warnings = json_array();
	uint64_t bytes = 0;

	warn_of_ram(c, warnings);
	warn_of_staging(c, warnings);
	for (uint32_t i = 0; i < c->n_pools; i++) {
		json_array_append_new(pools, pool_line(c->pool[i]));
		bytes += c->pool[i]->memory.segment.bytes;
		warn_of_pool(c->pool[i], warnings);
	}
	return json_pack(
	    "{s:s, s:s, s:o, s:I, s:I, s:s, s:b, s:s, s:s, s:I, s:{s:b, s:b}, s:o, "
	    "s:o, s:s, s:o, s:o, s:o}",
	    "version", PACKAGE_VERSION, "state", c->draining || c->drained ? "draining" : "running",
	    "boot_epoch", json_sprintf("%016llx", (unsigned long long)c->boot_epoch), "pid",
	    (json_int_t)c->stats->head->pid, "uptime_s",
	    (json_int_t)((c->now_ns - c->stats->head->start_ns) / NS_PER_S), "requested_backend",
	    c->device->name, "requested_backend_available", 1, "selected_backend", c->device->name,
	    "memory_accounting", "physical_arena_backing", "memory_bytes", (json_int_t)bytes,
	    "optimized_provider", "available", 0, "disabled", c->config->disable_optimized_provider,
	    "kv_ram", tiers_describe_ram(c), "staging", tiers_describe_staging(c), "kv_disk",
	    "off: not in this version", "threads", threads_of(c), "pools", pools, "warnings",
	    warnings);
}

/* ---- sessions ---- */

static json_t *session_line(const struct session *s)
{
	const struct core *c = s->core;
	uint64_t oldest_us = 0, steps = 0;

	if (!list_is_empty(&s->requests)) {
		const struct request *r =
		    list_entry(list_first(&s->requests), struct request, in_session);

		oldest_us = (c->now_ns - r->began_ns) / NS_PER_US;
	}
	list_for_each(link, following, &s->sequences) steps +=
	    list_entry(link, struct sequence, in_session)->step.generation != 0;
	return json_pack("{s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "id",
			 (json_int_t)s->id, "pid", (json_int_t)s->pid, "uid", (json_int_t)s->uid,
			 "client", s->client, "namespace", c->namespaces[s->name_space].name,
			 "sequences", (json_int_t)s->n_sequences, "steps", (json_int_t)steps,
			 "requests", (json_int_t)s->taken, "completions", (json_int_t)s->given,
			 "in_flight", (json_int_t)s->in_flight, "oldest_us", (json_int_t)oldest_us,
			 "heap_bytes", (json_int_t)s->heap.used, "window_bytes",
			 (json_int_t)s->memory->window.bytes);
}

static json_t *sessions(struct core *c)
{
	json_t *list = json_array();

	list_for_each(link, following, &c->sessions) json_array_append_new(
	    list, session_line(list_entry(link, struct session, in_sessions)));
	return json_pack("{s:o}", "sessions", list);
}

/* Every line of the plan; null while nobody has attached. */
static json_t *plan_of(const struct core_pool *p)
{
	const struct plan *x = &p->plan;
	json_t *requested = x->requested_prefix_pages == PLAN_NULL
				? json_null()
				: json_integer((json_int_t)x->requested_prefix_pages);

	if (!x->pages) {
		json_decref(requested);
		return json_null();
	}
	return json_pack(
	    "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:o}", "budget_bytes",
	    (json_int_t)x->budget_bytes, "lanes", (json_int_t)p->config->lanes, "lane_slot_bytes",
	    (json_int_t)x->lane_bytes, "retained_slot_bytes", (json_int_t)x->retained_bytes,
	    "workspace_bytes", (json_int_t)x->workspace_bytes, "index_bytes",
	    (json_int_t)x->index_bytes, "pages", (json_int_t)x->pages, "page_bytes",
	    (json_int_t)x->page_bytes, "left_bytes", (json_int_t)x->left_bytes, "reserve_pages",
	    (json_int_t)x->reserve_pages, "requested_prefix_pages", requested,
	    "effective_prefix_pages", (json_int_t)x->effective_prefix_pages, "fallback_reason",
	    x->fallback_reason[0] ? json_string(x->fallback_reason) : json_null());
}

static json_t *pool_with_plan(const struct core_pool *p)
{
	json_t *line = pool_line(p);

	json_object_set_new(line, "plan", plan_of(p));
	return line;
}

static json_t *pools(struct core *c)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < c->n_pools; i++)
		json_array_append_new(list, pool_with_plan(c->pool[i]));
	return json_pack("{s:o}", "pools", list);
}

/* ---- check: sums at once, nodes in turns ---- */

enum run_result admin_answer(struct request *r, char *text)
{
	uint32_t bytes;

	if (!text)
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for the answer");
	bytes = (uint32_t)strlen(text);
	if (bytes > r->entry.out_bytes) {
		free(text);
		r->reply.count = bytes;
		return refuse(r, WIRE_EINVAL, "the answer has %u bytes, there is room for %u",
			      bytes, r->entry.out_bytes);
	}
	if (!reply_array(r, 0, text, bytes, 1)) {
		free(text);
		return RUN_DONE;
	}
	free(text);
	return done(r);
}

static const char *check_some(struct request *r, struct core_pool *p, uint32_t budget)
{
	struct request_walk *w = &r->u.walk;
	const struct prefix *x = &p->pool.prefix;
	const char *wrong = NULL;
	uint32_t from = w->at;

	if (w->at == 0)
		wrong = pool_check(&p->pool, false);
	if (!wrong)
		wrong = prefix_check(x, &w->at, budget);
	for (uint32_t i = from; !wrong && i < w->at && i < x->fresh; i++) {
		uint32_t page = x->nodes[i].copies[TIER_DEVICE];

		w->objects++;
		if (x->nodes[i].kind != NODE_TOKENS || page == COPY_NONE)
			continue;
		if (p->pool.pages.page[page].state != PAGE_INDEXED ||
		    p->pool.pages.page[page].next != i)
			wrong = "a node and its page do not name each other";
	}
	return wrong;
}

static enum run_result check_run(struct request *r, uint32_t budget)
{
	struct core *c = r->session->core;
	struct request_walk *w = &r->u.walk;
	char *text;
	json_t *out;

	while (w->pool < c->n_pools && c->pool[w->pool]->state != CORE_POOL_READY)
		w->pool++;
	if (w->pool < c->n_pools) {
		struct core_pool *p = c->pool[w->pool];
		const char *wrong = check_some(r, p, budget * 16);

		if (!wrong && w->at < p->pool.prefix.capacity)
			return RUN_MORE;
		if (!wrong) {
			w->at = 0;
			w->pool++;
			return RUN_MORE;
		}
		out = json_pack("{s:b, s:I, s:[o]}", "ok", 0, "objects", (json_int_t)w->objects,
				"errors", json_sprintf("pool %s: %s", p->config->name, wrong));
	} else {
		out = json_pack("{s:b, s:I, s:[]}", "ok", 1, "objects", (json_int_t)w->objects,
				"errors");
	}
	text = out ? json_dumps(out, JSON_COMPACT) : NULL;
	json_decref(out);
	return admin_answer(r, text);
}

static enum run_result admin_run(struct request *r, uint32_t *budget)
{
	const struct payload_admin *in = r->in;
	struct core *c = r->session->core;
	json_t *out = NULL;
	char *text;

	switch ((enum payload_admin_question)in->question) {
	case PAYLOAD_ADMIN_CHECK:
		return check_run(r, *budget);
	case PAYLOAD_ADMIN_CONFIG:
		return admin_answer(r, config_describe_json(c->config));
	case PAYLOAD_ADMIN_POOL_DROP:
		return steer_pool_drop(r);
	case PAYLOAD_ADMIN_DRAIN:
	case PAYLOAD_ADMIN_UNDRAIN:
		return steer_drain(r, in->question == PAYLOAD_ADMIN_DRAIN);
	case PAYLOAD_ADMIN_DROP:
		return steer_drop(r, budget);
	case PAYLOAD_ADMIN_HEALTH:
		out = health(c);
		break;
	case PAYLOAD_ADMIN_SESSIONS:
		out = sessions(c);
		break;
	case PAYLOAD_ADMIN_POOLS:
		out = pools(c);
		break;
	case PAYLOAD_ADMIN_TIERS:
		out = tiers_describe(c, in->argument);
		if (!out)
			return refuse(r, WIRE_ENOENT, "no pool is called \"%s\"", in->argument);
		break;
	case PAYLOAD_ADMIN_COUNT:
		cannot_happen("the check refuses such a question");
	}
	text = out ? json_dumps(out, JSON_COMPACT) : NULL;
	json_decref(out);
	return admin_answer(r, text);
}

/* What it waits for goes on. */
static void admin_abandon(struct request *r, int status)
{
	(void)status;
	list_remove(&r->in_wait);
}

const struct request_kind kind_admin = {
    .opcode = WIRE_OP_ADMIN,
    .in_bytes = sizeof(struct payload_admin),
    .waits = true,
    .patient = true,
    .latency = -1,
    .check = admin_check,
    .run = admin_run,
    .abandon = admin_abandon,
};
