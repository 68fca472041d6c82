/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_payload: eight clients at once put, find, fork, cut and give up prompts in a pool so small
 * that something is evicted all the time; every 64-byte line of every page says whose it is.
 *
 * Shows that no line of a hit is ever another's: read while written, given away too early, at the
 * wrong place, or of another layer, side, head or position. Two layouts, through mapped memory and
 * through row requests, odd batch sizes. Each client is a thread with its own connection.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define CLIENTS     8
#define MOST_TOKENS 512
#define MOST_STEP   67
#define CHAINS      24
#define LINE_WORDS  16 /* of 4 bytes: 64 bytes */
#define ROW_BYTES   512

static const char config[] =
    "{\"pools\": ["
    "{\"name\": \"wide\", \"map\": true, \"pool_pages\": 176, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 512, \"enable_prefix_caching\": true,"
    " \"max_prefix_cache_pages\": null, \"retained_order\": \"lru\","
    " \"default_deadline_us\": 100000},"
    "{\"name\": \"deep\", \"map\": true, \"pool_pages\": 90, \"kv_page_size\": 32,"
    " \"max_sequence_length\": 512, \"enable_prefix_caching\": true,"
    " \"max_prefix_cache_pages\": null, \"default_deadline_us\": 100000}]}\n";

static struct daemon d;

static const struct engine_model models[] = {
    {.pool = "wide",
     .n_layers = 2,
     .heads = 3,
     .k_dim = 64,
     .v_dim = 32,
     .format = KVHOST_FLOAT16,
     .map = 1},
    {.pool = "deep",
     .n_layers = 4,
     .heads = 1,
     .k_dim = 32,
     .v_dim = 128,
     .format = KVHOST_FLOAT32,
     .map = 1},
};

struct client {
	pthread_t thread;
	const struct engine_model *model;
	struct engine engine;
	uint64_t random;
	unsigned rounds;
	uint32_t tokens[MOST_TOKENS];
	uint64_t hash[MOST_TOKENS]; /* of all tokens up to a position */
	uint32_t rows[MOST_STEP * 4 * ROW_BYTES / 4];
	uint64_t hits, lines, waits;
	uint64_t wrong_lines, dirty_lines;
	char error[200]; /* "" = every call did what it should */
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint32_t below(struct client *c, uint32_t n)
{
	c->random += 0x9e3779b97f4a7c15u;
	return (uint32_t)(mix(c->random) % n);
}

/* Chains are a tree: every second one leaves its neighbour in the middle, all share a start. */
static void set_token(struct client *c, uint32_t chain, uint32_t position)
{
	uint32_t branch = position < 80 ? 0 : position < 240 ? 1 + chain / 4 : 100 + chain;

	c->tokens[position] = branch * 10000u + position;
	c->hash[position] =
	    mix((position ? c->hash[position - 1] : 7) + c->tokens[position] + 0x1234567u);
}

/* One word of a line, finite in every format: the highest bit of exponents stays 0. */
static uint32_t word_of(uint64_t hash, uint32_t layer, uint32_t side, uint32_t head, uint32_t at)
{
	uint64_t place = (((uint64_t)layer * 2 + side) * 8 + head) * 1024 + at;

	return (uint32_t)mix(hash ^ (place << 40)) & 0xbfffbfffu;
}

struct place {
	uint32_t *line;
	uint32_t words;
};

static struct place row_at(struct client *c, const struct kvhost_table *t, uint32_t position,
			   uint32_t layer, uint32_t side, uint32_t head)
{
	const struct kvhost_pool_info *info = c->engine.info;
	const struct kvhost_block *b = &info->blocks[layer];
	uint32_t slot = position - t->first_token;
	uint64_t row = (uint64_t)head * info->page_tokens + slot % info->page_tokens;
	char *page =
	    (char *)info->memory + t->pages[slot / info->page_tokens].index * info->page_stride;
	uint32_t bytes = side == KVHOST_K ? b->k_row_bytes : b->v_row_bytes;

	page += (side == KVHOST_K ? b->k_offset : b->v_offset) + row * bytes;
	return (struct place){.line = (uint32_t *)(void *)page, .words = bytes / 4};
}

static uint32_t row_words(const struct client *c, uint32_t side)
{
	const struct kvhost_block *b = &c->engine.info->blocks[0];

	return (side == KVHOST_K ? b->k_row_bytes : b->v_row_bytes) / 4;
}

static int failed(struct client *c, const char *what, int result)
{
	if (!c->error[0])
		(void)snprintf(c->error, sizeof(c->error), "%s: %s: %s", what,
			       kvhost_strerror(result), kvhost_reason(c->engine.host));
	return -1;
}

/* ---- write and check, in memory or by request ---- */

static void fill_rows(struct client *c, uint32_t from, uint32_t n, uint32_t layer, uint32_t side)
{
	uint32_t words = row_words(c, side), *to = c->rows;

	for (uint32_t i = 0; i < n * c->model->heads; i++)
		for (uint32_t w = 0; w < words; w++)
			*to++ = word_of(c->hash[from + i / c->model->heads], layer, side,
					i % c->model->heads, w);
}

static int put_by_request(struct client *c, struct kvhost_step *step, uint32_t n)
{
	for (uint32_t i = 0; i < c->model->n_layers * 2; i++) {
		size_t bytes = (size_t)n * c->model->heads * row_words(c, i % 2) * 4;
		int r;

		fill_rows(c, step->start_tokens, n, i / 2, i % 2);
		r = kvhost_kv_write(step, i / 2, (enum kvhost_side)(i % 2), step->start_tokens, n,
				    (enum kvhost_format)c->model->format, c->rows, bytes);
		if (r)
			return r == KVHOST_ETIMEDOUT ? r : failed(c, "kv_write", r);
	}
	return 0;
}

static void put_in_memory(struct client *c, struct kvhost_step *step, uint32_t n)
{
	struct kvhost_table table;

	kvhost_view(step->sequence, &table);
	for (uint32_t p = step->start_tokens; p < step->start_tokens + n; p++) {
		for (uint32_t i = 0; i < c->model->n_layers * 2 * c->model->heads; i++) {
			uint32_t head = i % c->model->heads, side = i / c->model->heads % 2;
			uint32_t layer = i / c->model->heads / 2;
			struct place at = row_at(c, &table, p, layer, side, head);

			for (uint32_t w = 0; w < at.words; w++)
				at.line[w] = word_of(c->hash[p], layer, side, head, w);
		}
	}
}

static void check_in_memory(struct client *c, struct kvhost_sequence *seq, uint32_t n)
{
	struct kvhost_table table;

	kvhost_view(seq, &table);
	for (uint32_t p = 0; p < n; p++) {
		for (uint32_t i = 0; i < c->model->n_layers * 2 * c->model->heads; i++) {
			uint32_t head = i % c->model->heads, side = i / c->model->heads % 2;
			uint32_t layer = i / c->model->heads / 2, bad = 0;
			struct place at = row_at(c, &table, p, layer, side, head);

			for (uint32_t w = 0; w < at.words; w++)
				bad += at.line[w] != word_of(c->hash[p], layer, side, head, w);
			c->wrong_lines += bad > 0;
			c->lines += at.words / LINE_WORDS;
		}
	}
}

static int check_by_request(struct client *c, struct kvhost_sequence *seq, uint32_t n)
{
	static _Thread_local uint32_t found[MOST_STEP * 4 * ROW_BYTES / 4];

	for (uint32_t at = 0, some; at < n; at += some) {
		some = n - at < MOST_STEP ? n - at : MOST_STEP;
		for (uint32_t i = 0; i < c->model->n_layers * 2; i++) {
			size_t bytes = (size_t)some * c->model->heads * row_words(c, i % 2) * 4;
			int r;

			do
				r = kvhost_kv_read(seq, NULL, i / 2, (enum kvhost_side)(i % 2), at,
						   some, (enum kvhost_format)c->model->format,
						   found, bytes);
			while (r == KVHOST_ETIMEDOUT);
			if (r)
				return failed(c, "kv_read", r);
			fill_rows(c, at, some, i / 2, i % 2);
			c->wrong_lines += memcmp(found, c->rows, bytes) != 0;
			c->lines += bytes / 64;
		}
	}
	return 0;
}

static int check(struct client *c, struct kvhost_sequence *seq, uint32_t n)
{
	if (below(c, 2))
		return check_by_request(c, seq, n);
	check_in_memory(c, seq, n);
	return 0;
}

/* Pages that a step gets anew read as zeros. */
static void check_fresh(struct client *c, const struct kvhost_step *step)
{
	const struct kvhost_pool_info *info = c->engine.info;
	uint32_t first = (step->start_tokens + info->page_tokens - 1) / info->page_tokens;
	struct kvhost_table table;

	kvhost_view(step->sequence, &table);
	for (uint32_t i = first; i < table.n_pages; i++) {
		const uint64_t *word = (const void *)((const char *)info->memory +
						      table.pages[i].index * info->page_stride);

		for (uint64_t w = 0; w < info->page_bytes / 8; w++)
			c->dirty_lines += word[w] != 0;
	}
}

/* ---- a request ---- */

/* One step of an odd size: aborted, cut short, or whole. */
static int one_step(struct client *c, struct kvhost_sequence *seq, uint32_t end, bool ids)
{
	uint32_t start = kvhost_committed(seq), n = 1 + below(c, MOST_STEP), keep;
	struct kvhost_step step;
	int r;

	if (n > end - start)
		n = end - start;
	r = kvhost_step_begin(seq, start + n, 0, &step);
	if (r == KVHOST_ETIMEDOUT) {
		c->waits++;
		return 0;
	}
	if (r)
		return failed(c, "step_begin", r);
	check_fresh(c, &step);
	if (below(c, 3) == 0)
		r = put_by_request(c, &step, n);
	else
		put_in_memory(c, &step, n);
	if (r == KVHOST_ETIMEDOUT) {
		/* The step is poisoned by it: only abort remains. */
		c->waits++;
		if (kvhost_step_commit(&step, n, NULL, 0, NULL, 0) != KVHOST_ESTEP)
			return failed(c, "commit of a poisoned step", 0);
	} else if (r) {
		return r;
	}
	if (r || below(c, 8) == 0) {
		r = kvhost_step_abort(&step);
		return r ? failed(c, "step_abort", r) : 0;
	}
	keep = below(c, 4) ? n : below(c, n + 1);
	r = kvhost_step_commit(&step, keep, ids ? c->tokens + start : NULL, ids ? keep : 0, NULL,
			       0);
	return r ? failed(c, "step_commit", r) : 0;
}

static int fill(struct client *c, struct kvhost_sequence *seq, uint32_t end, bool ids)
{
	while (kvhost_committed(seq) < end) {
		if (one_step(c, seq, end, ids))
			return -1;
	}
	return 0;
}

/* The branch goes on as another chain; the trunk must not notice. */
static int branch(struct client *c, struct kvhost_sequence *seq, uint32_t n)
{
	struct kvhost_sequence *other = NULL;
	int r = kvhost_fork(seq, n + 40 < MOST_TOKENS ? n + 40 : MOST_TOKENS, &other);

	if (r == KVHOST_ETIMEDOUT) {
		c->waits++;
		return 0;
	}
	if (r)
		return failed(c, "fork", r);
	for (uint32_t i = n; i < n + 40 && i < MOST_TOKENS; i++)
		set_token(c, 500 + below(c, 3), i);
	r = fill(c, other, n + 40 < MOST_TOKENS ? n + 40 : MOST_TOKENS, true);
	if (r == 0)
		r = check(c, other, kvhost_committed(other));
	if (kvhost_close(&other))
		return failed(c, "close of a branch", -1);
	return r;
}

static int serve(struct client *c)
{
	uint32_t chain = below(c, CHAINS), n = 1 + below(c, MOST_TOKENS), cut;
	struct kvhost_prompt prompt = {.tokens = c->tokens, .n_tokens = n};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	int r;

	for (uint32_t i = 0; i < n; i++)
		set_token(c, chain, i);
	r = kvhost_open(c->engine.pool, &prompt, &seq, &found);
	if (r == KVHOST_ETIMEDOUT) {
		c->waits++;
		return 0;
	}
	if (r)
		return failed(c, "open", r);
	c->hits += found.cached_tokens > 0;
	r = check(c, seq, found.cached_tokens);
	if (r == 0 && below(c, 4) == 0 && found.cached_tokens) {
		cut = below(c, found.cached_tokens);
		r = kvhost_truncate(seq, cut);
		if (r)
			r = failed(c, "truncate", r);
		else
			r = check(c, seq, cut);
	}
	if (r == 0)
		r = fill(c, seq, below(c, 6) ? n : kvhost_committed(seq), false);
	if (r == 0)
		r = check(c, seq, kvhost_committed(seq));
	if (r == 0 && below(c, 3) == 0 && kvhost_committed(seq) == n)
		r = branch(c, seq, n);
	if (r == 0)
		r = check(c, seq, kvhost_committed(seq));
	if (kvhost_close(&seq) && r == 0)
		return failed(c, "close", -1);
	return r;
}

static void *run(void *context)
{
	struct client *c = context;
	int r = engine_start(&c->engine, d.socket, c->model);

	if (r) {
		failed(c, "attach", r);
		return NULL;
	}
	for (unsigned i = 0; i < c->rounds && !c->error[0]; i++) {
		if (serve(c))
			break;
	}
	engine_stop(&c->engine);
	return NULL;
}

static void churn(const struct engine_model *model, unsigned rounds)
{
	static struct client clients[CLIENTS];
	uint64_t hits = 0, lines = 0;
	struct engine e;

	memset(clients, 0, sizeof(clients));
	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i].model = model;
		clients[i].rounds = rounds;
		clients[i].random = 1000 + i;
		assert_int_equal(pthread_create(&clients[i].thread, NULL, run, &clients[i]), 0);
	}
	for (unsigned i = 0; i < CLIENTS; i++)
		assert_int_equal(pthread_join(clients[i].thread, NULL), 0);
	for (unsigned i = 0; i < CLIENTS; i++) {
		assert_string_equal(clients[i].error, "");
		assert_int_equal(clients[i].wrong_lines, 0);
		assert_int_equal(clients[i].dirty_lines, 0);
		hits += clients[i].hits;
		lines += clients[i].lines;
	}
	/* The test is worth something only if this happened. */
	assert_true(hits > rounds);
	assert_true(lines > 0);
	assert_int_equal(daemon_await(&d, model->pool, "pool_pages_live", 0, LONG_MS), 0);
	assert_true(daemon_pool_counter(&d, model->pool, "prefix_evictions") > rounds);
	assert_true(daemon_pool_counter(&d, model->pool, "prefix_copy_on_write_pages") > 0);
	assert_int_equal(engine_connect(&e, d.socket), 0);
	assert_true(engine_check(&e));
	engine_stop(&e);
}

static void every_line_of_a_hit_is_its_own_in_pages_of_many_heads(void **state)
{
	(void)state;
	churn(&models[0], is_long() ? 4000 : 60);
}

static void every_line_of_a_hit_is_its_own_in_pages_of_many_layers(void **state)
{
	(void)state;
	churn(&models[1], is_long() ? 4000 : 60);
}

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_remove(&d);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_line_of_a_hit_is_its_own_in_pages_of_many_heads),
	    cmocka_unit_test(every_line_of_a_hit_is_its_own_in_pages_of_many_layers),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
