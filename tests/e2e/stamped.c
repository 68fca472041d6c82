/* SPDX-License-Identifier: Apache-2.0 */
/* stamped: see stamped.h. Owned by one thread; blocks as the library does. */
#include "tests/e2e/stamped.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* Of the tokens up to each position; to be freed. */
static uint64_t *hashes_of(const uint32_t *tokens, uint32_t n)
{
	uint64_t *hash = malloc((n ? n : 1) * sizeof(*hash));

	assert_non_null(hash);
	for (uint32_t i = 0; i < n; i++)
		hash[i] = mix((i ? hash[i - 1] : 7) + tokens[i] + 0x1234567u);
	return hash;
}

struct row {
	uint64_t hash;
	uint32_t layer, side, head;
};

/* Finite in every format: the highest bit of exponents stays 0. */
static void put_row(uint32_t *to, uint32_t words, struct row r)
{
	uint64_t base = mix(r.hash ^ ((((uint64_t)r.layer * 2 + r.side) * 1024 + r.head) << 40));

	for (uint32_t w = 0; w < words; w++)
		to[w] = (uint32_t)(base + w * 0x9e3779b97f4a7c15u + (base >> 32)) & 0xbfffbfffu;
}

static bool is_row(const uint32_t *at, uint32_t words, struct row r)
{
	static _Thread_local uint32_t wanted[1024];

	assert_true(words <= 1024);
	put_row(wanted, words, r);
	return memcmp(at, wanted, words * sizeof(*wanted)) == 0;
}

static uint32_t row_bytes(const struct engine *e, uint32_t layer, uint32_t side)
{
	const struct kvhost_block *b = &e->info->blocks[layer];

	return side == KVHOST_K ? b->k_row_bytes : b->v_row_bytes;
}

/* ---- in memory ---- */

static uint32_t *row_at(const struct engine *e, const struct kvhost_table *t, uint32_t position,
			struct row r)
{
	const struct kvhost_block *b = &e->info->blocks[r.layer];
	uint32_t slot = position - t->first_token, in_page = slot % e->info->page_tokens;
	uint64_t row = (uint64_t)r.head * e->info->page_tokens + in_page;
	uint32_t page = t->pages[slot / e->info->page_tokens].index;
	char *at = (char *)e->info->memory + page * e->info->page_stride;

	at += r.side == KVHOST_K ? b->k_offset : b->v_offset;
	return (uint32_t *)(void *)(at + row * row_bytes(e, r.layer, r.side));
}

/* Write the rows of some positions, or compare them. */
static bool walk_memory(struct engine *e, struct kvhost_sequence *seq, const uint64_t *hash,
			uint32_t from, uint32_t to, bool write)
{
	struct kvhost_table table;
	bool same = true;

	kvhost_view(seq, &table);
	for (uint32_t p = from; p < to; p++) {
		for (uint32_t i = 0; i < e->info->n_layers * 2; i++) {
			struct row r = {.hash = hash[p], .layer = i / 2, .side = i % 2};
			uint32_t words = row_bytes(e, r.layer, r.side) / 4;

			for (; r.head < e->info->blocks[r.layer].kv_heads; r.head++) {
				if (write)
					put_row(row_at(e, &table, p, r), words, r);
				else
					same &= is_row(row_at(e, &table, p, r), words, r);
			}
		}
	}
	return same;
}

/* ---- by request: a page of one layer and side at a time ---- */

static bool walk_rows(struct engine *e, struct kvhost_sequence *seq, struct kvhost_step *step,
		      const uint64_t *hash, uint32_t from, uint32_t n, uint32_t part)
{
	uint32_t layer = part / 2, side = part % 2, heads = e->info->blocks[layer].kv_heads;
	enum kvhost_format format = (enum kvhost_format)e->info->blocks[layer].k_format;
	uint32_t words = row_bytes(e, layer, side) / 4;
	size_t bytes = (size_t)n * heads * words * 4;
	uint32_t *rows = malloc(bytes);
	bool same = true;

	assert_non_null(rows);
	if (!step)
		assert_int_equal(kvhost_kv_read(seq, NULL, layer, (enum kvhost_side)side, from, n,
						format, rows, bytes),
				 0);
	for (uint32_t i = 0; i < n * heads; i++) {
		struct row r = {hash[from + i / heads], layer, side, i % heads};

		if (step)
			put_row(rows + (size_t)i * words, words, r);
		else
			same &= is_row(rows + (size_t)i * words, words, r);
	}
	if (step)
		assert_int_equal(kvhost_kv_write(step, layer, (enum kvhost_side)side, from, n,
						 format, rows, bytes),
				 0);
	free(rows);
	return same;
}

static bool walk_requests(struct engine *e, struct kvhost_sequence *seq, struct kvhost_step *step,
			  const uint64_t *hash, uint32_t from, uint32_t to)
{
	bool same = true;

	for (uint32_t at = from, n; at < to; at += n) {
		n = e->info->page_tokens - at % e->info->page_tokens;
		n = n < to - at ? n : to - at;
		for (uint32_t part = 0; part < e->info->n_layers * 2; part++)
			same &= walk_rows(e, seq, step, hash, at, n, part);
	}
	return same;
}

/* ---- both ---- */

bool stamped_is(struct engine *e, struct kvhost_sequence *seq, const uint32_t *tokens, uint32_t n)
{
	uint64_t *hash = hashes_of(tokens, n);
	bool same = e->info->memory ? walk_memory(e, seq, hash, 0, n, false)
				    : walk_requests(e, seq, NULL, hash, 0, n);

	free(hash);
	return same;
}

void stamped_fill(struct engine *e, struct kvhost_sequence *seq, const uint32_t *tokens,
		  uint32_t to)
{
	uint64_t *hash = hashes_of(tokens, to);
	uint32_t from = kvhost_committed(seq);
	struct kvhost_step step;

	if (from < to) {
		assert_int_equal(kvhost_step_begin(seq, to, 0, &step), 0);
		if (e->info->memory)
			(void)walk_memory(e, seq, hash, from, to, true);
		else
			(void)walk_requests(e, seq, &step, hash, from, to);
		assert_int_equal(kvhost_step_commit(&step, to - from, NULL, 0, NULL, 0), 0);
	}
	free(hash);
}

struct kvhost_open_result stamped_prompt(struct engine *e, const struct kvhost_prompt *prompt)
{
	struct kvhost_open_result found = {0};
	struct kvhost_sequence *seq = NULL;

	assert_int_equal(kvhost_open(e->pool, prompt, &seq, &found), 0);
	assert_int_equal(kvhost_committed(seq), found.cached_tokens);
	assert_true(stamped_is(e, seq, prompt->tokens, found.cached_tokens));
	stamped_fill(e, seq, prompt->tokens, prompt->n_tokens);
	assert_true(stamped_is(e, seq, prompt->tokens, prompt->n_tokens));
	assert_int_equal(kvhost_close(&seq), 0);
	return found;
}

struct kvhost_open_result stamped_serve(struct engine *e, const uint32_t *tokens, uint32_t n)
{
	return stamped_prompt(e, &(struct kvhost_prompt){.tokens = tokens, .n_tokens = n});
}
