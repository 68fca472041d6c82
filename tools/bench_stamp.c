/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stamp: writes and checks payload in the mapped pages of a pool. Main thread.
 */
#include "tools/bench_stamp.h"

#include <assert.h>
#include <string.h>

#define WORDS       (STAMP_LINE_BYTES / sizeof(uint64_t))
#define STAMP_MAGIC 0x706d617473766b00ull

struct place { /* one line of one page */
	uint64_t token_hash;
	uint32_t page_number; /* in the sequence */
	uint32_t layer, side;
	uint32_t line; /* in the block */
};

struct block { /* one side of one layer in a page */
	uint8_t *start;
	uint32_t row_bytes;
	uint32_t kv_heads;
	uint32_t layer, side;
};

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static void make_line(const struct place *place, uint64_t line[WORDS])
{
	uint64_t seed;

	line[0] = STAMP_MAGIC | place->side;
	line[1] = place->token_hash;
	line[2] = (uint64_t)place->page_number << 32 | place->layer;
	line[3] = place->line;
	seed = mix(line[0] ^ mix(line[1] ^ mix(line[2] ^ mix(line[3]))));
	for (size_t i = 4; i < WORDS; i++)
		line[i] = mix(seed + i);
}

void stamp_hash_tokens(const uint32_t *tokens, uint32_t n, uint64_t *hashes)
{
	uint64_t hash = STAMP_MAGIC;

	for (uint32_t i = 0; i < n; i++) {
		hash = mix(hash + tokens[i] + 1);
		hashes[i] = hash;
	}
}

static uint32_t sides_of(const struct kvhost_block *block)
{
	return block->v_row_bytes ? 2 : 1;
}

int stamp_init(struct stamp *s, const struct kvhost_pool_info *pool, struct bench_reason *why)
{
	*s = (struct stamp){.pool = pool};
	if (!pool->memory)
		return bench_reason_set(why, "--payload stamp: the pool is not mapped; its "
					     "configuration needs \"map\": true");
	for (uint32_t i = 0; i < pool->n_layers; i++) {
		const struct kvhost_block *block = &pool->blocks[i];

		if ((uint64_t)block->k_row_bytes * pool->page_tokens % STAMP_LINE_BYTES == 0 &&
		    (uint64_t)block->v_row_bytes * pool->page_tokens % STAMP_LINE_BYTES == 0)
			continue;
		return bench_reason_set(why,
					"--payload stamp: rows of %u and %u bytes times %u tokens "
					"are not whole lines of %d bytes; choose --head-dim so",
					block->k_row_bytes, block->v_row_bytes, pool->page_tokens,
					STAMP_LINE_BYTES);
	}
	return 0;
}

void stamp_clear(struct stamp *s)
{
	*s = (struct stamp){.pool = s->pool};
}

/* The table is the daemon's word: a wrong one is a finding, not a reason to fall over. */
static bool is_page(const struct stamp *s, const struct kvhost_table *table, uint32_t number)
{
	return number < table->n_pages && table->pages[number].index < s->pool->pages;
}

static struct block block_of(const struct stamp *s, struct kvhost_page page, uint32_t layer,
			     uint32_t side)
{
	const struct kvhost_block *block = &s->pool->blocks[layer];
	uint64_t offset = side == KVHOST_K ? block->k_offset : block->v_offset;

	return (struct block){
	    .start = (uint8_t *)s->pool->memory + page.index * s->pool->page_stride + offset,
	    .row_bytes = side == KVHOST_K ? block->k_row_bytes : block->v_row_bytes,
	    .kv_heads = block->kv_heads,
	    .layer = layer,
	    .side = side,
	};
}

typedef void line_function(struct stamp *s, uint8_t *at, const uint64_t line[WORDS]);

static void write_line(struct stamp *s, uint8_t *at, const uint64_t line[WORDS])
{
	memcpy(at, line, STAMP_LINE_BYTES);
	s->lines_written++;
}

static void check_line(struct stamp *s, uint8_t *at, const uint64_t line[WORDS])
{
	s->mismatches += memcmp(at, line, STAMP_LINE_BYTES) != 0;
	s->lines_checked++;
}

/* Lines of a block whose last token is one of first .. end - 1 (tokens of the page). */
static void walk_block(struct stamp *s, const struct block *block, uint32_t page_number,
		       const uint64_t *hashes, uint32_t first, uint32_t end, line_function *visit)
{
	uint64_t head_bytes = (uint64_t)block->row_bytes * s->pool->page_tokens;
	uint64_t position = (uint64_t)page_number * s->pool->page_tokens, line[WORDS];
	struct place place = {
	    .page_number = page_number, .layer = block->layer, .side = block->side};

	for (uint32_t head = 0; head < block->kv_heads; head++) {
		uint64_t at =
		    (uint64_t)first * block->row_bytes / STAMP_LINE_BYTES * STAMP_LINE_BYTES;

		for (; at < head_bytes; at += STAMP_LINE_BYTES) {
			uint64_t token = (at + STAMP_LINE_BYTES - 1) / block->row_bytes;

			if (token >= end)
				break;
			place.token_hash = hashes[position + token];
			place.line = (uint32_t)((head * head_bytes + at) / STAMP_LINE_BYTES);
			make_line(&place, line);
			visit(s, block->start + head * head_bytes + at, line);
		}
	}
}

static void walk(struct stamp *s, const struct kvhost_table *table, const uint64_t *hashes,
		 uint32_t from, uint32_t to, line_function *visit)
{
	uint32_t page_tokens = s->pool->page_tokens;

	assert(table->first_token == 0);
	for (uint32_t at = from; at < to;) {
		uint32_t number = at / page_tokens, first = at % page_tokens;
		uint32_t end = to - at < page_tokens - first ? first + (to - at) : page_tokens;

		at += end - first;
		if (!is_page(s, table, number)) {
			s->mismatches++;
			continue;
		}
		for (uint32_t layer = 0; layer < s->pool->n_layers; layer++) {
			for (uint32_t side = 0; side < sides_of(&s->pool->blocks[layer]); side++) {
				struct block block = block_of(s, table->pages[number], layer, side);

				walk_block(s, &block, number, hashes, first, end, visit);
			}
		}
	}
}

void stamp_write(struct stamp *s, const struct kvhost_table *table, const uint64_t *hashes,
		 uint32_t from, uint32_t to)
{
	walk(s, table, hashes, from, to, write_line);
}

void stamp_check(struct stamp *s, const struct kvhost_table *table, const uint64_t *hashes,
		 uint32_t from, uint32_t to)
{
	walk(s, table, hashes, from, to, check_line);
}

static void check_zero_block(struct stamp *s, const struct block *block)
{
	static const uint8_t zeros[STAMP_LINE_BYTES];
	uint64_t bytes = (uint64_t)block->row_bytes * s->pool->page_tokens * block->kv_heads;

	for (uint64_t at = 0; at < bytes; at += STAMP_LINE_BYTES)
		s->not_zero_lines += memcmp(block->start + at, zeros, STAMP_LINE_BYTES) != 0;
}

void stamp_check_new(struct stamp *s, const struct kvhost_table *table, uint32_t from, uint32_t to)
{
	uint32_t page_tokens = s->pool->page_tokens;

	for (uint32_t i = (from + page_tokens - 1) / page_tokens; i * page_tokens < to; i++) {
		if (!is_page(s, table, i)) {
			s->mismatches++;
			continue;
		}
		for (uint32_t layer = 0; layer < s->pool->n_layers; layer++) {
			for (uint32_t side = 0; side < sides_of(&s->pool->blocks[layer]); side++) {
				struct block block = block_of(s, table->pages[i], layer, side);

				check_zero_block(s, &block);
			}
		}
	}
}
