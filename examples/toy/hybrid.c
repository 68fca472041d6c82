/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hybrid: a toy engine whose model has a recurrent state beside its KV.
 *
 * Its state is a few thousand words that every token mixes; its KV of a position is a function of
 * the state before it; the next token depends on the state and on one row of the KV that it reads
 * back. So a wrong image, or a wrong page, shows in the tokens. The program runs a request cold,
 * then again by every way that leads to the same tokens, and exits 1 if any of them differs.
 *
 *	hybrid [--socket PATH] [--pool NAME] [--conversations N]
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvhost.h>

#define WORDS    2048 /* of the replaced section */
#define HISTORY  16   /* words of the ring section: the last tokens, at position % HISTORY */
#define HEAD_DIM 16
#define SYSTEM   70 /* tokens of the system block */
#define TURN     45 /* tokens of a user message */
#define ANSWER   21 /* tokens that the model says */
#define MOST     1024

struct engine {
	struct kvhost *host;
	struct kvhost_pool *pool;
	const struct kvhost_pool_info *info;
};

struct run { /* one request as it is being computed */
	struct engine *e;
	struct kvhost_sequence *seq;
	struct kvhost_open_result found;
	uint32_t tokens[MOST];
	uint32_t n; /* known tokens */
};

static void die(const struct engine *e, const char *what, int result)
{
	fprintf(stderr, "hybrid: %s: %s (%s)\n", what, kvhost_strerror(result),
		kvhost_reason(e->host));
	exit(1);
}

static uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	x *= 0x846ca68bu;
	return x ^ x >> 16;
}

static uint32_t *state_of(const struct engine *e, uint32_t slot)
{
	return (uint32_t *)(void *)((char *)e->info->memory + e->info->state_offset +
				    slot * e->info->state_stride + e->info->sections[0].offset);
}

static uint32_t *ring_of(const struct engine *e, uint32_t slot)
{
	return (uint32_t *)(void *)((char *)e->info->memory + e->info->ring_offset +
				    slot * e->info->ring_stride + e->info->sections[1].offset);
}

static float *row_of(const struct run *r, uint32_t position, uint64_t side_offset)
{
	const struct kvhost_pool_info *info = r->e->info;
	struct kvhost_table table;
	uint32_t at;

	kvhost_view(r->seq, &table);
	at = position - table.first_token;
	return (float *)(void *)((char *)info->memory +
				 table.pages[at / info->page_tokens].index * info->page_stride +
				 side_offset +
				 (uint64_t)(at % info->page_tokens) * HEAD_DIM * sizeof(float));
}

/* One token through the model: state and ring change, a row is written. */
static void feed(const struct run *r, uint32_t *state, uint32_t *ring, uint32_t position)
{
	uint32_t token = r->tokens[position];
	float *k = row_of(r, position, r->e->info->blocks[0].k_offset);

	for (uint32_t i = 0; i < HEAD_DIM; i++)
		k[i] = (float)(mix(state[i] + token) & 0xffff);
	for (uint32_t i = 0; i < WORDS; i++)
		state[i] = mix(state[i] + token * (i + 1) + ring[i % HISTORY]);
	ring[position % HISTORY] = token;
}

/* What the model says next: from its state, and from a row that lies somewhere behind. */
static uint32_t say(const struct run *r, const uint32_t *state, uint32_t position)
{
	const float *k = row_of(r, state[7] % position, r->e->info->blocks[0].k_offset);

	return mix(state[0] ^ state[WORDS - 1] ^ (uint32_t)k[3]) | 1;
}

/* Compute up to `to` tokens in one step; commit `keep` of them, all if 0; *next is what follows
 * the last committed one. ids that the prompt did not give are told. */
static void step(struct run *r, uint32_t to, uint32_t keep, uint32_t prompt, uint32_t *next)
{
	struct kvhost_step s;
	int result = kvhost_step_begin(r->seq, to, 0, &s);
	uint32_t ring[HISTORY], last, known = prompt;
	uint32_t *state;

	if (result)
		die(r->e, "step begin", result);
	last = keep ? s.start_tokens + keep : to;
	state = state_of(r->e, s.target_slot);
	memcpy(state, state_of(r->e, s.source_slot), WORDS * sizeof(*state));
	memcpy(ring, ring_of(r->e, s.ring_slot), sizeof(ring));
	for (uint32_t p = s.start_tokens; p < last; p++)
		feed(r, state, ring, p);
	/* Rows of tokens that were guessed and are rejected: anything may be in them. */
	for (uint32_t p = last; p < to; p++)
		memset(row_of(r, p, r->e->info->blocks[0].k_offset), 0x55,
		       sizeof(float) * HEAD_DIM);
	memcpy(ring_of(r->e, s.ring_slot), ring, sizeof(ring));
	*next = say(r, state, last);
	if (known < s.start_tokens)
		known = s.start_tokens;
	result =
	    kvhost_step_commit(&s, last - s.start_tokens, last > known ? r->tokens + known : NULL,
			       last > known ? last - known : 0, NULL, 0);
	if (result)
		die(r->e, "commit", result);
}

static void begin(struct run *r, uint32_t opener, bool reuse)
{
	struct kvhost_prompt p = {.tokens = r->tokens,
				  .n_tokens = r->n,
				  .max_tokens = r->n + 2 * ANSWER,
				  .system_end_tokens = SYSTEM,
				  .user_end_tokens = opener,
				  .opener_tokens = opener,
				  .no_reuse = !reuse};
	int result = kvhost_open(r->e->pool, &p, &r->seq, &r->found);

	if (result)
		die(r->e, "open", result);
}

static void checkpoint(struct run *r, uint32_t *skips)
{
	uint32_t outcome;
	int result = kvhost_checkpoint(r->seq, kvhost_committed(r->seq), &outcome);

	if (result)
		die(r->e, "checkpoint", result);
	*skips += outcome != KVHOST_CAPTURE_MADE && outcome != KVHOST_CAPTURE_EXISTS;
}

/* The prompt, cut where captures are worth while; then the answer, token by token. */
static void prefill(struct run *r, uint32_t *next, uint32_t *skips)
{
	for (uint32_t i = 0; i < r->found.n_points; i++) {
		if (r->found.points[i] <= kvhost_committed(r->seq))
			continue;
		step(r, r->found.points[i], 0, r->n, next);
		checkpoint(r, skips);
	}
	if (kvhost_committed(r->seq) < r->n)
		step(r, r->n, 0, r->n, next);
}

static void decode(struct run *r, uint32_t prompt, uint32_t count, uint32_t next, bool guess)
{
	for (uint32_t i = 0; i < count; i++) {
		r->tokens[r->n++] = next;
		/* Speculation: reserve four, be right about one. */
		step(r, guess ? r->n + 3 : r->n, guess ? 1 : 0, prompt, &next);
	}
}

static void prompt_of(struct run *r, uint32_t conversation)
{
	r->n = SYSTEM + TURN;
	for (uint32_t i = 0; i < SYSTEM; i++)
		r->tokens[i] = mix(i + 1);
	for (uint32_t i = SYSTEM; i < r->n; i++)
		r->tokens[i] = mix(i + 1000 * (conversation + 1));
}

static int compare(const char *name, const struct run *r, const struct run *expected)
{
	bool same = r->n == expected->n &&
		    !memcmp(r->tokens, expected->tokens, r->n * sizeof(r->tokens[0]));

	printf("%-44s cached %4u of %4u tokens, %s\n", name, r->found.cached_tokens, SYSTEM + TURN,
	       same ? "same output" : "ANOTHER OUTPUT");
	return same ? 0 : 1;
}

/* The whole request: what it says must not depend on how it got there. */
static void request(struct run *r, uint32_t conversation, bool reuse, bool guess, uint32_t *skips)
{
	uint32_t next = 0;

	prompt_of(r, conversation);
	begin(r, r->n - 1, reuse);
	prefill(r, &next, skips);
	decode(r, SYSTEM + TURN, ANSWER, next, guess);
}

static int ways(struct engine *e, const struct run *cold)
{
	struct run r = {.e = e}, fork;
	uint32_t skips = 0, next = 0;
	struct kvhost_step s;
	int bad = 0;

	request(&r, 0, true, false, &skips);
	bad += compare("first, capturing", &r, cold);
	kvhost_close(&r.seq);
	request(&r, 0, true, false, &skips);
	bad += compare("after a checkpoint hit", &r, cold);
	kvhost_close(&r.seq);
	request(&r, 0, true, true, &skips);
	bad += compare("again (retry), with rejected speculation", &r, cold);
	kvhost_close(&r.seq);

	prompt_of(&r, 0);
	begin(&r, r.n - 1, true);
	prefill(&r, &next, &skips);
	for (int i = 0; i < 2; i++) {
		int result;

		fork = r;
		result = kvhost_fork(r.seq, r.n + 2 * ANSWER, &fork.seq);
		if (result)
			die(e, "fork", result);
		decode(&fork, SYSTEM + TURN, ANSWER, next, i == 1);
		bad += compare(i ? "second fork of the same point" : "a fork", &fork, cold);
		kvhost_close(&fork.seq);
	}
	if (kvhost_step_begin(r.seq, r.n + 5, 0, &s) == 0) {
		memset(state_of(e, s.target_slot), 0xee, WORDS * sizeof(uint32_t));
		kvhost_step_abort(&s);
	}
	decode(&r, SYSTEM + TURN, ANSWER, next, false);
	bad += compare("after a step that was aborted", &r, cold);
	kvhost_close(&r.seq);
	return bad;
}

static int conversations(struct engine *e, uint32_t n)
{
	uint32_t skips = 0, hits = 0;
	int bad = 0;

	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t c = 0; c < n; c++) {
			struct run cold = {.e = e}, warm = {.e = e};
			uint32_t none = 0;

			request(&cold, c, false, false, &none);
			kvhost_close(&cold.seq);
			request(&warm, c, true, false, &skips);
			kvhost_close(&warm.seq);
			hits += warm.found.cached_tokens > 0;
			bad += warm.n != cold.n || memcmp(warm.tokens, cold.tokens,
							  warm.n * sizeof(warm.tokens[0])) != 0;
		}
	}
	printf("%u conversations, 3 rounds: %u of %u requests found a state, %u captures skipped, "
	       "%d outputs differ\n",
	       n, hits, 3 * n, skips, bad);
	return bad;
}

static struct engine start(const char *socket, const char *pool)
{
	const struct kvhost_layer layer = {.kv_heads = 1,
					   .k_head_dim = HEAD_DIM,
					   .v_head_dim = HEAD_DIM,
					   .k_format = KVHOST_FLOAT32,
					   .v_format = KVHOST_FLOAT32};
	const struct kvhost_section sections[] = {
	    {.name = "recurrent", .bytes = WORDS * sizeof(uint32_t)},
	    {.name = "history", .bytes = HISTORY * sizeof(uint32_t), .ring = 1}};
	struct kvhost_pool_description d = {.name = pool,
					    .n_layers = 1,
					    .layers = &layer,
					    .n_sections = 2,
					    .sections = sections,
					    .map = 1};
	struct kvhost_options options = {.socket = socket, .client = "toy-hybrid"};
	struct engine e = {0};
	int result = kvhost_connect(&options, &e.host);

	if (result) {
		fprintf(stderr, "hybrid: %s\n", kvhost_reason(NULL));
		exit(1);
	}
	result = kvhost_pool_attach(e.host, &d, &e.pool);
	if (result)
		die(&e, "attach", result);
	e.info = kvhost_pool_describe(e.pool);
	if (!e.info->memory) {
		fprintf(stderr, "hybrid: the pool must be configured with map\n");
		exit(1);
	}
	return e;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"socket", required_argument, NULL, 's'},
						{"pool", required_argument, NULL, 'p'},
						{"conversations", required_argument, NULL, 'c'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	static const char usage[] =
	    "usage: hybrid [--socket PATH] [--pool NAME] [--conversations N]\n";
	const char *socket = NULL, *pool = NULL;
	uint32_t n = 8, none = 0;
	struct run cold;
	struct engine e;
	int c, bad;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 's')
			socket = optarg;
		else if (c == 'p')
			pool = optarg;
		else if (c == 'c')
			n = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'h')
			return printf("%s", usage) < 0;
		else
			return fprintf(stderr, "%s", usage), 2;
	}
	if (optind < argc)
		return fprintf(stderr, "%s", usage), 2;
	e = start(socket, pool);
	cold = (struct run){.e = &e};
	request(&cold, 0, false, false, &none);
	kvhost_close(&cold.seq);
	compare("cold, without reuse", &cold, &cold);
	bad = ways(&e, &cold) + conversations(&e, n);
	kvhost_pool_detach(&e.pool);
	kvhost_disconnect(&e.host);
	return bad ? 1 : 0;
}
