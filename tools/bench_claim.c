/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_claim: how fast a retained state comes back to a sequence of a hybrid pool, next to this
 * machine's own copy past the cache of as many bytes in the same run. Main thread; blocks.
 */
#include "tools/bench_copy.h"
#include "tools/bench_host.h"
#include "tools/bench_report.h"

#define CLAIM_BAR   0.8 /* of the copy's bandwidth */
#define PROMPT      65  /* tokens: one page, and one to compute */
#define ROUND_TRIPS 5   /* claims and copies a round; the best of each counts */

struct claim {
	struct kvhost *host;
	struct kvhost_pool *pool;
	uint32_t tokens[PROMPT];
	uint64_t bytes;
	struct copy_limit limit;
};

static int attach(struct claim *c, const struct bench_options *o, struct bench_reason *why)
{
	const struct kvhost_layer layer = {.kv_heads = 1, .k_head_dim = 16, .v_head_dim = 16};
	const struct kvhost_section section = {.name = "state", .bytes = c->bytes};
	struct kvhost_pool_description d = {.name = o->pool,
					    .n_layers = 1,
					    .layers = &layer,
					    .n_sections = 1,
					    .sections = &section};
	int result = kvhost_pool_attach(c->host, &d, &c->pool);

	return result ? bench_reason_call(why, c->host, "kvhost_pool_attach", result) : 0;
}

/* One page of a prompt, and the state behind it, retained. */
static int capture(struct claim *c, struct bench_reason *why)
{
	struct kvhost_prompt p = {.tokens = c->tokens, .n_tokens = PROMPT};
	struct kvhost_sequence *seq = NULL;
	struct kvhost_step step;
	uint32_t outcome = 0;
	int result = kvhost_open(c->pool, &p, &seq, NULL);

	if (!result)
		result = kvhost_step_begin(seq, PROMPT - 1, 0, &step);
	if (!result)
		result = kvhost_step_commit(&step, PROMPT - 1, NULL, 0, NULL, 0);
	if (!result)
		result = kvhost_checkpoint(seq, PROMPT - 1, &outcome);
	if (result)
		return bench_reason_call(why, c->host, "capture", result);
	kvhost_close(&seq);
	return outcome == KVHOST_CAPTURE_MADE
		   ? 0
		   : bench_reason_set(why, "the state was not captured: %u", outcome);
}

static int claim_once(struct claim *c, uint64_t *ticks, struct bench_reason *why)
{
	struct kvhost_prompt p = {.tokens = c->tokens, .n_tokens = PROMPT};
	struct kvhost_sequence *seq = NULL;
	struct kvhost_open_result found = {0};
	uint64_t start = bench_ticks();
	int result = kvhost_open(c->pool, &p, &seq, &found);

	*ticks = bench_ticks() - start;
	if (result)
		return bench_reason_call(why, c->host, "kvhost_open", result);
	kvhost_close(&seq);
	if (found.cached_tokens != PROMPT - 1)
		return bench_reason_set(why, "the state was not found");
	return 0;
}

static int measure_round(struct claim *c, double *copy_ns, double *claim_ns,
			 struct bench_reason *why)
{
	*copy_ns = *claim_ns = 1e300;
	for (int i = 0; i < ROUND_TRIPS; i++) {
		uint64_t ticks;
		double ns = copy_limit_run(&c->limit).wall_ns;

		*copy_ns = ns < *copy_ns ? ns : *copy_ns;
		if (claim_once(c, &ticks, why))
			return -1;
		ns = bench_clock_ns(ticks);
		*claim_ns = ns < *claim_ns ? ns : *claim_ns;
	}
	return 0;
}

static int measure(struct claim *c, const struct bench_options *o, struct report *r,
		   struct bench_reason *why)
{
	double copy_ns[BENCH_ROUNDS_MAX], claim_ns[BENCH_ROUNDS_MAX], ratio[BENCH_ROUNDS_MAX];
	double copy, claim;

	for (uint64_t i = 0; i < o->rounds; i++) {
		if (measure_round(c, &copy_ns[i], &claim_ns[i], why))
			return -1;
		ratio[i] = copy_ns[i] / claim_ns[i];
	}
	copy = bench_median(copy_ns, o->rounds);
	claim = bench_median(claim_ns, o->rounds);
	report_case(r, "claim");
	report_count(r, "image", "bytes", c->bytes);
	report_number(r, "copy", "GB/s", (double)c->bytes / copy);
	report_number(r, "claim", "GB/s", (double)c->bytes / claim);
	report_number(r, "claim_time", "us", claim / 1e3);
	report_bar_least(r, bench_median(ratio, o->rounds), CLAIM_BAR);
	report_measured(r);
	return 0;
}

int bench_claim_run(const struct bench_options *o, struct report *r, struct bench_reason *why)
{
	struct bench_plan plan = {.has_pool = true,
				  .max_sequence_tokens = 1024,
				  .pages = 64,
				  .budget_pages = BENCH_NULL,
				  .order = "lru",
				  .apart = true,
				  .lanes = 1,
				  .retained_slots = 1};
	struct claim c = {.bytes = o->image_bytes};
	struct bench_host daemon;
	int result = bench_host_start(&daemon, o, &plan, why);

	for (uint32_t i = 0; i < PROMPT; i++)
		c.tokens[i] = i * 2654435761u;
	if (!result)
		result = bench_connect(&daemon, 0, 0, &c.host, why);
	if (!result)
		result = attach(&c, o, why);
	if (!result)
		result = copy_limit_init(&c.limit, c.bytes, c.bytes, why);
	if (!result)
		result = capture(&c, why);
	if (!result)
		result = measure(&c, o, r, why);
	kvhost_disconnect(&c.host);
	bench_host_stop(&daemon);
	copy_limit_deinit(&c.limit);
	return result;
}
