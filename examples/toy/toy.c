/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toy: the smallest engine that uses everything of libkvhost.
 *
 * Its model has no weights: K and V of a position are a hash of all tokens up to it, so every
 * byte that is reused can be checked against what a computation would have given. Two processes
 * share a system prompt and take turns; each request is found as far as possible, prefilled in
 * steps, forked, and decoded with a draft of which some tokens are accepted. Exit code 1: a wrong
 * byte or a failed call.
 */

#include <kvhost.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LAYERS        2
#define HEADS         2
#define HEAD_DIM      64
#define SYSTEM_TOKENS 512
#define PREFILL_CHUNK 192
#define DECODE_TOKENS 40
#define DRAFT_TOKENS  4
#define TOKENS_MAX    2048

struct engine {
	struct kvhost *host;
	struct kvhost_pool *pool;
	const struct kvhost_pool_info *info;
	char name;
	int through_daemon; /* write and read rows by request, not in mapped memory */
};

struct text { /* tokens and, at each position, the hash of all tokens up to it */
	uint32_t tokens[TOKENS_MAX];
	uint64_t hash[TOKENS_MAX];
};

static uint16_t rows[PREFILL_CHUNK * HEADS * HEAD_DIM];

static void expect(int result, const struct engine *e, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "toy %c: %s: %s: %s\n", e->name, what, kvhost_strerror(result),
		kvhost_reason(e->host));
	exit(1);
}

/* ---- the model ---- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 29)) * 0xd6e8feb86659fd93u;
	return x ^ (x >> 32);
}

static void set_token(struct text *t, uint32_t position, uint32_t token)
{
	t->tokens[position] = token;
	t->hash[position] = mix((position ? t->hash[position - 1] : 1) + token);
}

static uint32_t next_token(const struct text *t, uint32_t position, uint64_t seed)
{
	return (uint32_t)(mix(t->hash[position - 1] ^ seed) % 50000);
}

/* One element of K or V, as the bits of a finite float16. */
static uint16_t model(const struct text *t, uint32_t position, unsigned layer, unsigned side,
		      unsigned head, unsigned element)
{
	uint64_t place = ((layer * 2 + side) * HEADS + head) * HEAD_DIM + element;

	return (uint16_t)(mix(t->hash[position] + place * 0x10001u) & 0xbfff);
}

/* ---- its KV, in the pages of a sequence ---- */

static uint16_t *row_at(const struct engine *e, const struct kvhost_table *table, uint32_t position,
			unsigned layer, unsigned side, unsigned head)
{
	const struct kvhost_block *block = &e->info->blocks[layer];
	uint32_t slot = position - table->first_token;
	const struct kvhost_page *page = &table->pages[slot / e->info->page_tokens];
	uint64_t row = (uint64_t)head * e->info->page_tokens + slot % e->info->page_tokens;
	char *record = (char *)e->info->memory + page->index * e->info->page_stride;

	if (side == KVHOST_K)
		return (uint16_t *)(void *)(record + block->k_offset + row * block->k_row_bytes);
	return (uint16_t *)(void *)(record + block->v_offset + row * block->v_row_bytes);
}

static void compute_rows(const struct text *t, uint32_t first, uint32_t n, unsigned layer,
			 unsigned side)
{
	for (uint32_t i = 0; i < n * HEADS * HEAD_DIM; i++)
		rows[i] = model(t, first + i / (HEADS * HEAD_DIM), layer, side,
				i / HEAD_DIM % HEADS, i % HEAD_DIM);
}

static void store(struct engine *e, struct kvhost_step *step, const struct text *t, uint32_t n)
{
	size_t bytes = (size_t)n * HEADS * HEAD_DIM * sizeof(*rows);
	struct kvhost_table table;

	kvhost_view(step->sequence, &table);
	for (unsigned i = 0; i < LAYERS * 2; i++) {
		compute_rows(t, step->start_tokens, n, i / 2, i % 2);
		if (e->through_daemon) {
			expect(kvhost_kv_write(step, i / 2, i % 2 ? KVHOST_V : KVHOST_K,
					       step->start_tokens, n, KVHOST_FLOAT16, rows, bytes),
			       e, "kv_write");
			continue;
		}
		for (uint32_t row = 0; row < n * HEADS; row++)
			memcpy(row_at(e, &table, step->start_tokens + row / HEADS, i / 2, i % 2,
				      row % HEADS),
			       rows + (size_t)row * HEAD_DIM, HEAD_DIM * sizeof(*rows));
	}
}

/* Every byte of the first n positions is what the model computes for them. */
static void check(struct engine *e, struct kvhost_sequence *seq, const struct text *t, uint32_t n)
{
	static uint16_t found[PREFILL_CHUNK * HEADS * HEAD_DIM];
	struct kvhost_table table;
	uint32_t some;

	kvhost_view(seq, &table);
	for (uint32_t at = 0; at < n; at += some) {
		some = n - at < PREFILL_CHUNK ? n - at : PREFILL_CHUNK;
		for (unsigned i = 0; i < LAYERS * 2; i++) {
			size_t bytes = (size_t)some * HEADS * HEAD_DIM * sizeof(*rows);

			if (e->through_daemon)
				expect(kvhost_kv_read(seq, NULL, i / 2, i % 2 ? KVHOST_V : KVHOST_K,
						      at, some, KVHOST_FLOAT16, found, bytes),
				       e, "kv_read");
			for (uint32_t row = 0; !e->through_daemon && row < some * HEADS; row++)
				memcpy(
				    found + (size_t)row * HEAD_DIM,
				    row_at(e, &table, at + row / HEADS, i / 2, i % 2, row % HEADS),
				    HEAD_DIM * sizeof(*rows));
			compute_rows(t, at, some, i / 2, i % 2);
			if (memcmp(found, rows, bytes) == 0)
				continue;
			fprintf(stderr, "toy %c: wrong bytes in positions %u to %u, layer %u, %s\n",
				e->name, at, at + some - 1, i / 2, i % 2 ? "V" : "K");
			exit(1);
		}
	}
}

/* ---- a request ---- */

static void prefill(struct engine *e, struct kvhost_sequence *seq, const struct text *t, uint32_t n)
{
	while (kvhost_committed(seq) < n) {
		uint32_t at = kvhost_committed(seq), chunk = n - at;
		struct kvhost_step step;

		if (chunk > PREFILL_CHUNK)
			chunk = PREFILL_CHUNK;
		expect(kvhost_step_begin(seq, at + chunk, 0, &step), e, "step_begin");
		store(e, &step, t, chunk);
		expect(kvhost_step_commit(&step, chunk, NULL, 0, NULL, 0), e, "step_commit");
	}
}

/* Decode with drafts: the first `accept` tokens of each are right, the others are not kept. */
static uint32_t decode(struct engine *e, struct kvhost_sequence *seq, struct text *t,
		       uint32_t wanted, uint64_t seed)
{
	uint32_t end = kvhost_committed(seq) + wanted, round = 0;

	while (kvhost_committed(seq) < end) {
		uint32_t at = kvhost_committed(seq), accept = 1 + round++ % DRAFT_TOKENS;
		struct kvhost_step step;

		if (accept > end - at)
			accept = end - at;
		for (uint32_t i = 0; i < DRAFT_TOKENS; i++)
			set_token(t, at + i, next_token(t, at + i, seed) + (i >= accept));
		expect(kvhost_step_begin(seq, at + DRAFT_TOKENS, 0, &step), e, "step_begin");
		store(e, &step, t, DRAFT_TOKENS);
		expect(kvhost_step_commit(&step, accept, &t->tokens[at], accept, NULL, 0), e,
		       "step_commit");
	}
	return end;
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static void serve(struct engine *e, unsigned request)
{
	static const char *const tiers[] = {"device", "KV-RAM", "KV-disk", "none"};
	static struct text text, other;
	uint32_t n = SYSTEM_TOKENS + 100 + request * 37 % 300, end;
	uint32_t limit = n + 2 * (DECODE_TOKENS + DRAFT_TOKENS);
	struct kvhost_prompt prompt = {.tokens = text.tokens, .n_tokens = n, .max_tokens = limit};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq, *branch;
	uint64_t start = now_us();

	e->through_daemon = !e->info->memory || request == 1;
	for (uint32_t i = 0; i < n; i++)
		set_token(&text, i, i < SYSTEM_TOKENS ? i * 7 % 50000 : request / 3 * 1000 + i);
	expect(kvhost_open(e->pool, &prompt, &seq, &found), e, "open");
	check(e, seq, &text, found.cached_tokens);
	prefill(e, seq, &text, n);
	end = decode(e, seq, &text, DECODE_TOKENS / 2, 1);

	expect(kvhost_fork(seq, limit, &branch), e, "fork");
	other = text;
	check(e, branch, &other, decode(e, branch, &other, DECODE_TOKENS / 2, 2));
	check(e, seq, &text, end);
	check(e, seq, &text, decode(e, seq, &text, DECODE_TOKENS / 2, 1));
	expect(kvhost_close(&branch), e, "close");
	expect(kvhost_close(&seq), e, "close");
	printf("%c request %u: prompt %u tokens, cached %u, tier %s, %llu us\n", e->name, request,
	       n, found.cached_tokens, tiers[found.tier < 3 ? found.tier : 3],
	       (unsigned long long)(now_us() - start));
	fflush(stdout);
}

/* One of the two processes: serves every second request when it is its turn. */
static int run(char name, const char *socket, const char *pool, unsigned requests, int turn,
	       int other)
{
	static const uint8_t artifact[32] = "toy";
	struct kvhost_layer layers[LAYERS];
	struct kvhost_pool_description description = {
	    .name = pool, .n_layers = LAYERS, .layers = layers, .artifact = artifact, .map = 1};
	struct engine e = {.name = name};
	char token;

	for (unsigned i = 0; i < LAYERS; i++)
		layers[i] = (struct kvhost_layer){HEADS, HEAD_DIM, HEAD_DIM, KVHOST_FLOAT16,
						  KVHOST_FLOAT16};
	expect(kvhost_connect(&(struct kvhost_options){.socket = socket, .client = "toy"}, &e.host),
	       &e, "connect");
	expect(kvhost_pool_attach(e.host, &description, &e.pool), &e, "pool_attach");
	e.info = kvhost_pool_describe(e.pool);
	for (unsigned i = name == 'B'; i < requests; i += 2) {
		if (i > 0 && read(turn, &token, 1) != 1)
			return 1; /* the other process has failed */
		serve(&e, i);
		if (i + 1 < requests && write(other, "", 1) != 1)
			return 1;
	}
	expect(kvhost_pool_detach(&e.pool), &e, "pool_detach");
	kvhost_disconnect(&e.host);
	return 0;
}

int main(int argc, char **argv)
{
	static const char usage[] =
	    "usage: toy [--socket PATH] [--pool NAME] [--requests 1..1000000]\n";
	const char *socket = NULL, *pool = NULL;
	unsigned long requests = 8;
	int to_a[2], to_b[2], status, result;
	pid_t child;

	for (int i = 1; i < argc; i += 2) {
		char *end = "?";

		if (!strcmp(argv[i], "--help"))
			return printf("%s", usage) < 0;
		if (i + 1 < argc && !strcmp(argv[i], "--socket"))
			socket = argv[i + 1], end = "";
		else if (i + 1 < argc && !strcmp(argv[i], "--pool"))
			pool = argv[i + 1], end = "";
		else if (i + 1 < argc && !strcmp(argv[i], "--requests"))
			requests = strtoul(argv[i + 1], &end, 10);
		if (*end || requests < 1 || requests > 1000000) {
			fprintf(stderr, "%s", usage);
			return 2;
		}
	}
	signal(SIGPIPE, SIG_IGN);
	if (pipe(to_a) || pipe(to_b) || (child = fork()) < 0)
		return 1;
	/* Each keeps only its own ends, so that a failure of one ends the wait of the other. */
	close(child ? to_a[1] : to_a[0]);
	close(child ? to_b[0] : to_b[1]);
	if (child == 0)
		return run('B', socket, pool, (unsigned)requests, to_b[0], to_a[1]);
	result = run('A', socket, pool, (unsigned)requests, to_a[0], to_b[1]);
	close(to_b[1]);
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		return 1;
	return result ? result : WEXITSTATUS(status);
}
