/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_replay: the requests of a trace, as an engine would make them: open, steps, close.
 *
 * One connection and one thread drive all clients without waiting for one of them. A client takes
 * the next request in the order of the trace; with one client the daemon sees exactly that order.
 * Main thread; sleeps when nothing can go on.
 */
#include "tools/bench.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tools/bench_budget.h"
#include "tools/bench_host.h"
#include "tools/bench_replay.h"
#include "tools/bench_report.h"
#include "tools/bench_stamp.h"
#include "tools/bench_tokens.h"
#include "tools/bench_trace.h"

#define SAMPLE_EVERY 100 /* requests */
#define FINISHED_MAX 64
#define STUCK_US     60000000ull
#define WINDOW_SPARE (32ull << 20)
#define PUBLISHED_NS 5000000ull /* the daemon writes its counters every millisecond */
#define REFUSED_EXIT 2          /* of kvhostd: it does not accept its configuration */

enum phase {
	PHASE_NONE, /* between requests */
	PHASE_OPEN,
	PHASE_BEGIN,
	PHASE_COMMIT,
	PHASE_CLOSE,
};

static const char *const phase_names[] = {"none", "open", "step_begin", "step_commit", "close"};

struct client {
	enum phase phase;
	bool waits_for_room; /* its call is still to be submitted */
	uint32_t *tokens;    /* window memory */
	uint64_t *hashes;    /* of the tokens; only with stamps */
	struct kvhost_prompt prompt;
	struct kvhost_sequence *sequence;
	struct kvhost_open_result found;
	struct kvhost_step step;
	uint32_t done_tokens, target_tokens;
	uint64_t request; /* in the trace */
	uint64_t opened_ticks;
};

struct totals { /* of one pass */
	uint64_t requests, blocks, blocks_hit, prompt_tokens, cached_tokens;
	double s;
};

struct replay {
	const struct bench_options *o;
	struct trace trace;
	struct bench_host daemon;
	struct kvhost *host;
	struct kvhost_pool *pool;
	const struct kvhost_pool_info *info;
	struct client *clients; /* [o->clients] */
	uint64_t most_tokens;   /* of a prompt */
	uint64_t next_request;  /* in the trace */
	uint64_t serial;        /* requests of all passes */
	uint64_t start_ns;      /* of the pass */
	uint32_t under_way;     /* calls submitted and not finished */
	uint32_t waiting;       /* clients that wait for room */
	bool stamps;
	struct stamp stamp;
	struct budget_watch watch;
	struct bench_samples opens;
	struct totals totals;
};

/* ---- one client ---- */

static int submit(struct replay *run, struct client *c)
{
	kvhost_ticket ticket;

	switch (c->phase) {
	case PHASE_OPEN:
		c->opened_ticks = bench_ticks();
		return kvhost_submit_open(run->pool, &c->prompt, &c->sequence, &c->found, c,
					  &ticket);
	case PHASE_BEGIN:
		return kvhost_submit_step_begin(c->sequence, c->target_tokens, 0, &c->step, c,
						&ticket);
	case PHASE_COMMIT:
		return kvhost_submit_step_commit(&c->step, c->target_tokens - c->done_tokens, NULL,
						 0, NULL, 0, c, &ticket);
	case PHASE_CLOSE:
		return kvhost_submit_close(&c->sequence, c, &ticket);
	case PHASE_NONE:
		break;
	}
	assert(!"a client without a request submits nothing");
	return KVHOST_EINVAL;
}

static int fail(const struct replay *run, const struct client *c, int result,
		struct bench_reason *why)
{
	struct bench_reason call;

	bench_reason_call(&call, run->host, phase_names[c->phase], result);
	return bench_reason_set(why, "request %" PRIu64 " (%u tokens): %.900s", c->request,
				c->prompt.n_tokens, call.text);
}

static int go_on(struct replay *run, struct client *c, struct bench_reason *why)
{
	int r = submit(run, c);

	if (r == KVHOST_EFULL) {
		run->waiting += !c->waits_for_room;
		c->waits_for_room = true;
		return 0;
	}
	if (r)
		return fail(run, c, r, why);
	run->waiting -= c->waits_for_room;
	c->waits_for_room = false;
	run->under_way++;
	return 0;
}

static int take_request(struct replay *run, struct client *c, struct bench_reason *why)
{
	const struct trace_request *request = &run->trace.requests[run->next_request];
	const uint32_t *ids = run->trace.ids + request->first_id;
	uint32_t block = (uint32_t)run->o->tokens_per_block;
	uint32_t extra = (uint32_t)run->o->extra_tokens;
	uint32_t n = request->n_ids * block;

	for (uint32_t i = 0; i < request->n_ids; i++)
		bench_tokens_fill(c->tokens + (size_t)i * block, ids[i], block);
	bench_tokens_fill_unique(c->tokens + n, run->serial, extra);
	if (run->stamps)
		stamp_hash_tokens(c->tokens, n + extra, c->hashes);

	c->request = run->next_request++;
	run->serial++;
	c->prompt = (struct kvhost_prompt){.tokens = c->tokens, .n_tokens = n + extra};
	c->phase = PHASE_OPEN;
	return go_on(run, c, why);
}

static void choose_step(const struct replay *run, struct client *c)
{
	uint32_t left = c->prompt.n_tokens - c->done_tokens;

	c->target_tokens = left > run->o->steps_of ? c->done_tokens + (uint32_t)run->o->steps_of
						   : c->prompt.n_tokens;
	c->phase = left > 0 ? PHASE_BEGIN : PHASE_CLOSE;
}

static void opened(struct replay *run, struct client *c)
{
	struct kvhost_table table;

	bench_samples_add(&run->opens, bench_ticks() - c->opened_ticks);
	run->totals.prompt_tokens += c->prompt.n_tokens;
	run->totals.cached_tokens += c->found.cached_tokens;
	run->totals.blocks += run->trace.requests[c->request].n_ids;
	run->totals.blocks_hit += c->found.cached_tokens / run->o->tokens_per_block;
	c->done_tokens = c->found.cached_tokens;
	if (run->stamps) {
		kvhost_view(c->sequence, &table);
		stamp_check(&run->stamp, &table, c->hashes, 0, c->done_tokens);
	}
	choose_step(run, c);
}

static void begun(struct replay *run, struct client *c)
{
	struct kvhost_table table;

	c->phase = PHASE_COMMIT;
	if (!run->stamps)
		return;
	kvhost_view(c->sequence, &table);
	stamp_check_new(&run->stamp, &table, c->done_tokens, c->target_tokens);
	stamp_write(&run->stamp, &table, c->hashes, c->done_tokens, c->target_tokens);
}

static int finished(struct replay *run, const struct kvhost_finished *f, struct bench_reason *why)
{
	struct client *c = f->user;

	run->under_way--;
	if (f->result)
		return fail(run, c, f->result, why);
	switch (c->phase) {
	case PHASE_OPEN:
		if (c->found.cached_tokens > c->prompt.n_tokens)
			return bench_reason_set(why, "open found %u tokens of a prompt of %u",
						c->found.cached_tokens, c->prompt.n_tokens);
		opened(run, c);
		break;
	case PHASE_BEGIN:
		begun(run, c);
		break;
	case PHASE_COMMIT:
		c->done_tokens = c->target_tokens;
		choose_step(run, c);
		break;
	case PHASE_CLOSE:
		c->phase = PHASE_NONE;
		if (++run->totals.requests % SAMPLE_EVERY == 0)
			budget_watch_look(&run->watch);
		return 0;
	case PHASE_NONE:
		return bench_reason_set(why, "a call finished twice");
	}
	return go_on(run, c, why);
}

/* ---- all clients ---- */

/* When the next request of the trace is due; 0: at once. */
static uint64_t due_ns(const struct replay *run)
{
	const struct trace_request *first = run->trace.requests;
	double ms = (double)(first[run->next_request].timestamp_ms - first->timestamp_ms);

	if (run->o->speed <= 0)
		return 0;
	return run->start_ns + (uint64_t)(ms * 1e6 / run->o->speed);
}

static int start_clients(struct replay *run, struct bench_reason *why)
{
	for (uint64_t i = 0; i < run->o->clients; i++) {
		struct client *c = &run->clients[i];

		if (c->waits_for_room && go_on(run, c, why))
			return -1;
		if (c->phase != PHASE_NONE || run->next_request >= run->trace.n_requests)
			continue;
		if (due_ns(run) > bench_monotonic_ns())
			continue;
		if (take_request(run, c, why))
			return -1;
	}
	return 0;
}

/* Wait for a call to finish, or for the next request to be due and a client free for it. */
static int wait_for_something(struct replay *run, struct bench_reason *why)
{
	uint64_t now_ns = bench_monotonic_ns(), timeout_us = STUCK_US;
	bool timed = run->next_request < run->trace.n_requests &&
		     run->under_way + run->waiting < run->o->clients;
	struct kvhost_finished one;
	int r;

	if (timed) {
		uint64_t due = due_ns(run);

		timeout_us = due > now_ns ? (due - now_ns + 999) / 1000 : 0;
		if (timeout_us == 0)
			return 0;
	}
	if (run->under_way == 0 && timed) {
		bench_sleep_ns(timeout_us * 1000);
		return 0;
	}
	if (run->under_way == 0)
		return bench_reason_set(why,
					"the connection takes no call though none is under way");
	r = kvhost_wait(run->host, 0, timeout_us, &one);
	if (r == 0)
		return finished(run, &one, why);
	if (r == KVHOST_ETIMEDOUT && timed)
		return 0;
	return bench_reason_call(why, run->host, "wait", r);
}

static int run_pass(struct replay *run, struct bench_reason *why)
{
	struct kvhost_finished list[FINISHED_MAX];
	int n;

	run->next_request = 0;
	run->totals = (struct totals){0};
	bench_samples_clear(&run->opens);
	budget_watch_clear(&run->watch);
	stamp_clear(&run->stamp);
	run->start_ns = bench_monotonic_ns();
	while (run->totals.requests < run->trace.n_requests) {
		if (start_clients(run, why))
			return -1;
		n = kvhost_poll(run->host, list, FINISHED_MAX);
		if (n < 0)
			return bench_reason_call(why, run->host, "poll", n);
		for (int i = 0; i < n; i++) {
			if (finished(run, &list[i], why))
				return -1;
		}
		if (n == 0 && wait_for_something(run, why))
			return -1;
	}
	run->totals.s = (double)(bench_monotonic_ns() - run->start_ns) / 1e9;
	budget_watch_look(&run->watch);
	return 0;
}

/* ---- records ---- */

static void end_record(const struct replay *run, struct report *r)
{
	const struct stamp *s = &run->stamp;
	const struct budget_watch *w = &run->watch;

	if (run->stamps && s->mismatches + s->not_zero_lines > 0)
		report_failed(r,
			      "%" PRIu64 " lines of reused pages were not as written, %" PRIu64
			      " lines of new pages not zero",
			      s->mismatches, s->not_zero_lines);
	else if (w->over_budget + w->over_capacity > 0)
		report_failed(r,
			      "in %" PRIu64 " of %" PRIu64
			      " samples more pages were indexed than the budget and the pages in "
			      "use, in %" PRIu64 " more than there are",
			      w->over_budget, w->samples, w->over_capacity);
	else
		report_measured(r);
}

/* What the daemon counted of both tiers, since its start. */
static void report_tiers(struct replay *run, struct report *r)
{
	static const struct {
		const char *counter, *name;
	} counts[] = {
	    {"ram_hits", "opens_from_ram"},        {"ram_hit_pages", "pages_hit_in_ram"},
	    {"ram_restores", "restores"},          {"ram_spills", "spills"},
	    {"ram_spills_kept", "spills_kept"},    {"ram_releases", "releases"},
	    {"ram_displaced", "displaced_in_ram"}, {"ram_refused", "refused_by_ram"},
	    {"pool_discards", "discards"},         {"ram_pages", "pages_in_ram"},
	};
	uint64_t pages = run->totals.cached_tokens / run->o->page_tokens;

	bench_sleep_ns(PUBLISHED_NS);
	budget_watch_look(&run->watch);
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
		report_count(r, counts[i].name, "",
			     budget_watch_value(&run->watch, counts[i].counter));
	report_count(r, "pages_hit_on_device", "",
		     pages - budget_watch_value(&run->watch, "ram_hit_pages"));
}

static void report_pass(struct replay *run, uint64_t pass, struct report *r)
{
	const struct totals *t = &run->totals;
	uint64_t ceiling = run->trace.n_ids - (pass == 0 ? run->trace.distinct : 0);

	bench_samples_sort(&run->opens);
	report_case(r, "replay.%" PRIu64, pass + 1);
	report_text(r, "order", run->o->order);
	report_text(r, "payload", run->o->payload);
	report_count(r, "clients", "", run->o->clients);
	report_count(r, "pool", "pages", run->info->pages);
	report_count(r, "budget", "pages", run->info->prefix_budget_pages);
	report_count(r, "requests", "", t->requests);
	report_count(r, "blocks", "", t->blocks);
	report_count(r, "blocks_hit", "", t->blocks_hit);
	report_count(r, "blocks_hit_with_unlimited_memory", "", ceiling);
	report_number(r, "hit", "percent", 100.0 * (double)t->blocks_hit / (double)t->blocks);
	report_count(r, "prompt", "tokens", t->prompt_tokens);
	report_count(r, "cached", "tokens", t->cached_tokens);
	report_number(r, "time", "s", t->s);
	report_number(r, "requests", "per_s", (double)t->requests / t->s);
	report_number(r, "prompt_tokens", "per_s", (double)t->prompt_tokens / t->s);
	report_number(r, "open_p50", "us", bench_samples_ns(&run->opens, 500) / 1e3);
	report_number(r, "open_p99", "us", bench_samples_ns(&run->opens, 990) / 1e3);
	if (run->stamps) {
		report_count(r, "stamp_lines_written", "", run->stamp.lines_written);
		report_count(r, "stamp_lines_checked", "", run->stamp.lines_checked);
		report_count(r, "stamp_mismatches", "", run->stamp.mismatches);
		report_count(r, "new_lines_not_zero", "", run->stamp.not_zero_lines);
	}
	if (run->o->ram_bytes)
		report_tiers(run, r);
	report_count(r, "budget_samples", "", run->watch.samples);
	if (run->watch.samples > 0) {
		report_count(r, "most_indexed", "pages", run->watch.most_indexed);
		report_count(r, "over_budget_samples", "", run->watch.over_budget);
	}
	end_record(run, r);

	if (run->watch.samples == 0) {
		report_case(r, "replay.%" PRIu64 ".budget", pass + 1);
		report_unsupported(r, "%s has no page counters of pool %s", run->daemon.stats,
				   run->o->pool);
	}
}

/* ---- set up ---- */

/*
 * Each block of the trace ends at most this many pages, so this is room for all of them; what is
 * live beside them are the pages of one prompt a client, and the daemon's own reserve.
 */
static void plan_pool(const struct replay *run, struct bench_plan *plan)
{
	const struct bench_options *o = run->o;
	uint64_t page = o->page_tokens;
	uint64_t sequence_pages = (run->most_tokens + page - 1) / page;
	uint64_t distinct = run->trace.distinct * ((o->tokens_per_block + page - 1) / page);
	uint64_t kept = o->budget < distinct ? o->budget : distinct;

	*plan = (struct bench_plan){
	    .has_pool = true,
	    .max_sequence_tokens = sequence_pages * page,
	    .pages =
		o->pages ? o->pages : kept + sequence_pages + o->clients * (sequence_pages + 1),
	    .budget_pages = o->budget,
	    .map = run->stamps,
	    .order = o->order,
	    .ram_bytes = o->ram_bytes,
	    .ram_page_bytes = o->ram_page_bytes,
	    .floor_tokens = o->floor_tokens,
	};
}

static int make_clients(struct replay *run, struct bench_reason *why)
{
	run->clients = calloc(run->o->clients, sizeof(*run->clients));
	if (!run->clients)
		return bench_reason_set(why, "no memory");
	for (uint64_t i = 0; i < run->o->clients; i++) {
		struct client *c = &run->clients[i];

		c->tokens = kvhost_window_take(run->host, run->most_tokens * sizeof(*c->tokens));
		if (!c->tokens)
			return bench_reason_set(why,
						"the window has no room for the prompts of "
						"%" PRIu64 " clients",
						run->o->clients);
		if (!run->stamps)
			continue;
		c->hashes = calloc(run->most_tokens, sizeof(*c->hashes));
		if (!c->hashes)
			return bench_reason_set(why, "no memory");
	}
	return 0;
}

static int set_up(struct replay *run, struct bench_reason *why)
{
	const struct bench_options *o = run->o;
	struct bench_plan plan;
	uint64_t window_bytes;

	run->most_tokens = run->trace.most_ids * o->tokens_per_block + o->extra_tokens;
	if (run->most_tokens > INT32_MAX)
		return bench_reason_set(why,
					"--tokens-per-block: \"%" PRIu64
					"\" is not accepted: the longest prompt would have %" PRIu64
					" tokens",
					o->tokens_per_block, run->most_tokens);
	window_bytes = WINDOW_SPARE + 2 * o->clients * run->most_tokens * sizeof(uint32_t);
	plan_pool(run, &plan);
	if (bench_host_start(&run->daemon, o, &plan, why) ||
	    bench_connect(&run->daemon, 0, window_bytes, &run->host, why) ||
	    bench_attach(run->host, o, run->stamps, &run->pool, why))
		return -1;
	run->info = kvhost_pool_describe(run->pool);
	if (run->stamps && stamp_init(&run->stamp, run->info, why))
		return -1;
	if (bench_samples_init(&run->opens, run->trace.n_requests))
		return bench_reason_set(why, "no memory");
	budget_watch_init(&run->watch, run->daemon.stats, o->pool, run->info->prefix_budget_pages);
	return make_clients(run, why);
}

static void tear_down(struct replay *run)
{
	budget_watch_deinit(&run->watch);
	kvhost_disconnect(&run->host); /* and with it the sequences, the pool and the window */
	bench_host_stop(&run->daemon);
	for (uint64_t i = 0; run->clients && i < run->o->clients; i++)
		free(run->clients[i].hashes);
	free(run->clients);
	bench_samples_free(&run->opens);
}

/* A daemon that does not know an order yet refuses its configuration: not a failure of a case. */
static bool order_refused(const struct replay *run)
{
	int status = run->daemon.exit_status;

	return strcmp(run->o->order, "lru") != 0 && status != -1 && WIFEXITED(status) &&
	       WEXITSTATUS(status) == REFUSED_EXIT;
}

int bench_replay_run(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	static struct replay run;
	int result;

	run = (struct replay){.o = o, .stamps = strcmp(o->payload, "stamp") == 0};
	run.daemon.exit_status = -1;
	bench_pin(bench_cores().client);
	result = trace_load(&run.trace, o->trace, why);
	if (result == 0)
		result = set_up(&run, why);
	if (result && order_refused(&run)) {
		report_case(r, "replay.1");
		report_unsupported(r, "%s", why->text);
		result = 0;
	} else {
		for (uint64_t pass = 0; pass < o->repeat && result == 0; pass++) {
			result = run_pass(&run, why);
			if (result == 0)
				report_pass(&run, pass, r);
		}
	}
	tear_down(&run);
	trace_free(&run.trace);
	return result;
}

int bench_replay_sums(const struct bench_options *o, const struct trace *trace,
		      struct replay_sums *out, struct bench_reason *why)
{
	static struct replay run;
	int result;

	run = (struct replay){.o = o, .trace = *trace};
	run.daemon.exit_status = -1;
	bench_pin(bench_cores().client);
	result = set_up(&run, why);
	if (result == 0)
		result = run_pass(&run, why);
	*out =
	    (struct replay_sums){.blocks = run.totals.blocks, .blocks_hit = run.totals.blocks_hit};
	tear_down(&run);
	return result;
}
