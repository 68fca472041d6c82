/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_STAMP_H
#define KVHOST_TOOLS_BENCH_STAMP_H

/*
 * bench_stamp: payload that proves whose it is. Every 64-byte line of a page says which tokens
 * lead up to it, where in the sequence its page is, and which layer, side and line it is; so a
 * page that is reused for another prompt, at another place, or half written shows.
 *
 * A line belongs to the last token of which it holds a part. The pool must be mapped. Main
 * thread; no calls of the daemon.
 */

#include "tools/bench.h"

#define STAMP_LINE_BYTES 64

struct stamp { /* counts over a run */
	const struct kvhost_pool_info *pool;
	uint64_t lines_written, lines_checked;
	uint64_t mismatches;     /* lines of reused pages that were not as written */
	uint64_t not_zero_lines; /* lines of new pages that did not read as zeros */
};

/* 0, or -1 with why if lines would cross heads of this geometry or nothing is mapped. */
int stamp_init(struct stamp *s, const struct kvhost_pool_info *pool, struct bench_reason *why);
void stamp_clear(struct stamp *s); /* start counting anew */

/* hashes[i] names tokens 0 .. i. */
void stamp_hash_tokens(const uint32_t *tokens, uint32_t n, uint64_t *hashes);

/* Positions from .. to - 1 of the table's pages; hashes of the whole prompt. */
void stamp_write(struct stamp *s, const struct kvhost_table *table, const uint64_t *hashes,
		 uint32_t from, uint32_t to);
void stamp_check(struct stamp *s, const struct kvhost_table *table, const uint64_t *hashes,
		 uint32_t from, uint32_t to);
/* Pages that hold only positions from .. to - 1 must read as zeros. */
void stamp_check_new(struct stamp *s, const struct kvhost_table *table, uint32_t from, uint32_t to);

#endif
