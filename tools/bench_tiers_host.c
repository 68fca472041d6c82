/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_tiers_host: starts the daemon of mode tiers, looks at its counters, moves prompts; see
 * bench_tiers.h. Main thread; blocks.
 */
#include "tools/bench_tiers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_tokens.h"

#define WINDOW_SPARE (16ull << 20)
#define STEP_PAGES   1024
#define WAIT_NS      20000000000ull
#define LOOK_NS      1000000ull /* how often the daemon publishes its counters */
#define QUIET_NS     3000000ull /* more than the daemon takes to publish its counters */
#define QUIET_LOOKS  3
#define FRAME_BYTES  (2ull << 20)
#define SLABS_SPARE  (16 * FRAME_BYTES)

/* ---- counters ---- */

static const char *const names[TIER_COUNTERS] = {
    [TIER_BYTES_DOWN] = "ram_bytes_down",   [TIER_BYTES_UP] = "ram_bytes_up",
    [TIER_BUSY_DOWN] = "ram_busy_down_ns",  [TIER_BUSY_UP] = "ram_busy_up_ns",
    [TIER_SPILLS] = "ram_spills",           [TIER_SPILLS_KEPT] = "ram_spills_kept",
    [TIER_ZEROED] = "pool_pages_zeroed",    [TIER_LEAVING] = "ram_pages_leaving",
    [TIER_ARRIVING] = "ram_pages_arriving", [TIER_ARRIVED] = "kv_ram_bytes_capacity",
    [TIER_WANTED] = "kv_ram_bytes_wanted",
};

static int find_counters(struct tiers *t, struct bench_reason *why)
{
	for (int c = 0; c < TIER_COUNTERS; c++) {
		struct kvhost_stat stat;

		t->places[c] = 0;
		while (kvhost_stats_get(t->stats, t->places[c], &stat) == 0 &&
		       strcmp(stat.name, names[c]) != 0)
			t->places[c]++;
		if (t->places[c] == kvhost_stats_count(t->stats))
			return bench_reason_set(why, "%s has no counter %s", t->daemon.stats,
						names[c]);
	}
	return 0;
}

int tiers_look(struct tiers *t, struct bench_reason *why)
{
	struct kvhost_stat stat;

	if (kvhost_stats_refresh(t->stats))
		return bench_reason_set(why, "%s cannot be read", t->daemon.stats);
	for (int c = 0; c < TIER_COUNTERS; c++) {
		if (kvhost_stats_get(t->stats, t->places[c], &stat) == 0)
			t->now[c] = stat.value;
	}
	return 0;
}

int tiers_wait(struct tiers *t, enum tier_counter counter, uint64_t least, struct bench_reason *why)
{
	uint64_t deadline_ns = bench_monotonic_ns() + WAIT_NS;

	for (;;) {
		if (tiers_look(t, why))
			return -1;
		if (t->now[counter] >= least)
			return 0;
		if (bench_monotonic_ns() > deadline_ns)
			break;
		bench_sleep_ns(LOOK_NS);
	}
	return bench_reason_set(why,
				"%s was %" PRIu64 " after 20 s, %" PRIu64 " were expected at least",
				names[counter], t->now[counter], least);
}

int tiers_wait_quiet(struct tiers *t, struct bench_reason *why)
{
	uint64_t deadline_ns = bench_monotonic_ns() + WAIT_NS, before[TIER_COUNTERS];

	for (int looks = 0; looks < QUIET_LOOKS;) {
		memcpy(before, t->now, sizeof(before));
		bench_sleep_ns(QUIET_NS);
		if (tiers_look(t, why))
			return -1;
		looks = memcmp(before, t->now, sizeof(before)) == 0 &&
				t->now[TIER_LEAVING] + t->now[TIER_ARRIVING] == 0
			    ? looks + 1
			    : 0;
		if (bench_monotonic_ns() > deadline_ns)
			return bench_reason_set(why, "pages still moved after 20 s");
	}
	return 0;
}

/* ---- start ---- */

/* What is lost at the end of slabs is under 6 %. */
static uint64_t ram_bytes(const struct tiers *t)
{
	uint64_t pages = t->plan.ram_pages * t->page_bytes * 107 / 100 + 2 * SLABS_SPARE +
			 t->plan.image_bytes * 107 / 100;

	return pages / t->page_bytes * (t->page_bytes + TIER_KNOWN_BYTES);
}

static void plan_host(const struct tiers *t, struct bench_plan *plan)
{
	uint64_t pages = t->plan.pages + 1;

	*plan = (struct bench_plan){
	    .spin_us = t->plan.spin_us,
	    .has_pool = true,
	    .max_sequence_tokens = pages * TIER_PAGE_TOKENS,
	    .pages = pages + t->plan.spare,
	    .budget_pages = t->plan.kept,
	    .order = "lru",
	    .admin = true,
	    .apart = true,
	    .ram_bytes = ram_bytes(t),
	    .ram_page_bytes = t->page_bytes,
	    /* An open that comes while a prompt leaves takes what has not left yet. */
	    .floor_tokens = t->plan.pages * TIER_PAGE_TOKENS / 2,
	    /* Without a slot an image is captured into KV-RAM. */
	    .lanes = t->plan.image_bytes > 0,
	    .retained_slots = 0,
	};
}

static int open_stats(struct tiers *t, struct bench_reason *why)
{
	int r = kvhost_stats_open(t->daemon.stats, &t->stats);

	return r ? bench_reason_set(why, "%s: %s", t->daemon.stats, kvhost_strerror(r)) : 0;
}

int tiers_start(struct tiers *t, const struct bench_options *o, const struct tier_plan *plan,
		struct bench_reason *why)
{
	uint64_t bytes = (plan->pages * TIER_PAGE_TOKENS + 1) * sizeof(*t->tokens);
	struct bench_plan host;

	*t = (struct tiers){.options = *o, .plan = *plan};
	t->daemon.exit_status = -1;
	if (o->socket)
		return bench_reason_set(why, "--socket: tiers needs a daemon of its own");
	t->options.page_tokens = TIER_PAGE_TOKENS;
	t->options.layers = plan->shape.layers;
	t->options.kv_heads = plan->shape.kv_heads;
	t->options.head_dim = plan->shape.head_dim;
	t->options.format = plan->shape.format;
	t->page_bytes = tier_page_bytes(&plan->shape);
	plan_host(t, &host);
	if (bench_host_start(&t->daemon, &t->options, &host, why) ||
	    bench_connect(&t->daemon, 0, WINDOW_SPARE + 4 * bytes, &t->host, why) ||
	    bench_attach_hybrid(t->host, &t->options, false, plan->image_bytes, &t->pool, why) ||
	    open_stats(t, why))
		return -1;
	if (kvhost_pool_describe(t->pool)->page_stride != t->page_bytes)
		return bench_reason_set(why, "a page takes %" PRIu64 " bytes, not %" PRIu64,
					kvhost_pool_describe(t->pool)->page_stride, t->page_bytes);
	t->tokens = kvhost_window_take(t->host, bytes);
	if (!t->tokens)
		return bench_reason_set(why, "the window has no room for a prompt");
	if (find_counters(t, why) || tiers_look(t, why) ||
	    tiers_wait(t, TIER_ARRIVED, t->now[TIER_WANTED], why))
		return -1;
	return copy_limit_init(&t->limit, t->page_bytes, plan->limit_bytes, why);
}

void tiers_stop(struct tiers *t)
{
	if (t->stats)
		kvhost_stats_close(&t->stats);
	kvhost_disconnect(&t->host); /* and with it the pool and the window */
	bench_host_stop(&t->daemon);
	copy_limit_deinit(&t->limit);
}

/* ---- prompts ---- */

struct kvhost_prompt tiers_prompt(struct tiers *t, uint32_t serial, uint64_t pages)
{
	uint32_t n = (uint32_t)(pages * TIER_PAGE_TOKENS) + 1;

	bench_tokens_fill(t->tokens, serial, n);
	return (struct kvhost_prompt){.tokens = t->tokens, .n_tokens = n};
}

int tiers_write(struct tiers *t, const struct kvhost_prompt *p, struct kvhost_sequence **out,
		struct bench_reason *why)
{
	struct kvhost_open_result found;
	int r = kvhost_open(t->pool, p, out, &found);

	if (r)
		return bench_reason_call(why, t->host, "open", r);
	if (found.cached_tokens)
		return bench_reason_set(why, "a new prompt was known");
	for (uint32_t done = 0, target; done < p->n_tokens - 1; done = target) {
		struct kvhost_step step;

		target = done + STEP_PAGES * TIER_PAGE_TOKENS;
		target = target < p->n_tokens - 1 ? target : p->n_tokens - 1;
		r = kvhost_step_begin(*out, target, 0, &step);
		if (!r)
			r = kvhost_step_commit(&step, target - done, NULL, 0, NULL, 0);
		if (r)
			return bench_reason_call(why, t->host, "step", r);
	}
	return 0;
}

int tiers_write_state(struct tiers *t, const struct kvhost_prompt *p, struct kvhost_sequence **out,
		      struct bench_reason *why)
{
	uint32_t outcome = 0;
	int r;

	if (tiers_write(t, p, out, why))
		return -1;
	r = kvhost_checkpoint(*out, p->n_tokens - 1, &outcome);
	if (r)
		return bench_reason_call(why, t->host, "checkpoint", r);
	return outcome == KVHOST_CAPTURE_MADE
		   ? 0
		   : bench_reason_set(why, "the state was not captured: %u", outcome);
}

int tiers_close(struct tiers *t, struct kvhost_sequence **seq, struct bench_reason *why)
{
	int r = kvhost_close(seq);

	return r ? bench_reason_call(why, t->host, "close", r) : tiers_wait_quiet(t, why);
}

int tiers_restore(struct tiers *t, const struct kvhost_prompt *p, uint64_t *ticks,
		  struct bench_reason *why)
{
	struct kvhost_sequence *seq = NULL;
	struct kvhost_open_result found;
	uint64_t start = bench_ticks();
	int r = kvhost_open(t->pool, p, &seq, &found);

	*ticks = bench_ticks() - start;
	if (r)
		return bench_reason_call(why, t->host, "open", r);
	if (found.cached_tokens != p->n_tokens - 1)
		return bench_reason_set(why, "%u tokens came back of %u (miss reason %u)",
					found.cached_tokens, p->n_tokens - 1, found.miss);
	return tiers_close(t, &seq, why);
}

int tiers_drop(struct tiers *t, struct bench_reason *why)
{
	char *answer = NULL;
	int r = kvhost_ask(t->host, "drop", "", &answer);

	free(answer);
	if (r)
		return bench_reason_call(why, t->host, "drop", r);
	return tiers_wait_quiet(t, why);
}

void tiers_report(const struct tiers *t, struct report *r)
{
	const struct tier_shape *s = &t->plan.shape;
	char text[128];

	snprintf(text, sizeof(text),
		 "%" PRIu64 " layers, %" PRIu64 " heads of %" PRIu64 ", %s, %d tokens", s->layers,
		 s->kv_heads, s->head_dim, s->format, TIER_PAGE_TOKENS);
	report_text(r, "page_of", text);
	report_count(r, "page", "bytes", t->page_bytes);
	report_text(r, "calibration_memory",
		    t->limit.huge ? "huge pages" : "small pages, huge where the kernel made some");
}
