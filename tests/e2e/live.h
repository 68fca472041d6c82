/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_LIVE_H
#define KVHOST_TESTS_E2E_LIVE_H

/*
 * live: a pool that has room for two sequences of full length, and two engines whose sequences push
 * each other out of it, dense or hybrid. What is computed is stamped (stamped.h, hybrid.h) and is
 * looked at after each step.
 *
 * One thread that plays two clients; what should not happen fails the test.
 */

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define LIVE_POOL       "live"
#define LIVE_PAGE       16u
#define LIVE_MOST_PAGES 12u /* of a sequence */
#define LIVE_MOST       (LIVE_MOST_PAGES * LIVE_PAGE)
#define LIVE_SHORT      (LIVE_MOST - 5) /* its last page is not full, so it is nobody else's */
#define LIVE_POOL_PAGES 26u             /* two sequences, with the page that each may need beside */

/* `ram`: keys of KV-RAM, each with a comma behind it; `more`: of the pool, with a comma before it.
 */
#define LIVE_CONFIG(ram, more)                                                                     \
	"{" ram "\"pools\": [{\"name\": \"" LIVE_POOL "\", \"pool_pages\": 26,"                    \
	" \"kv_page_size\": 16, \"max_sequence_length\": 192, \"enable_prefix_caching\": true,"    \
	" \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0" more "}]}\n"
#define LIVE_RAM(bytes)                                                                            \
	"\"kv_ram_bytes\": \"" bytes "\", \"kv_ram_page_bytes\": \"4KiB\","                        \
	" \"kv_ram_lock\": false, "

/* What an engine is, and what it computes. */
struct live_kind {
	void (*start)(struct engine *e, const char *socket);
	void (*compute)(struct engine *e, struct kvhost_sequence *seq, const uint32_t *tokens,
			uint32_t to);
	bool (*has)(struct engine *e, struct kvhost_sequence *seq, const uint32_t *tokens,
		    uint32_t n);
};
extern const struct live_kind live_dense;

struct live {
	const struct live_kind *kind;
	struct daemon d;
	struct engine mine, others;
};

struct live_sequence {
	struct engine *engine;
	struct kvhost_sequence *seq;
	uint32_t tokens[LIVE_MOST];
};

/* environment: NULL, or one NAME=VALUE for a daemon with failpoints. */
void live_start(struct live *l, const struct live_kind *kind, const char *config,
		const char *environment);
void live_stop(struct live *l);

uint64_t live_counter(const struct live *l, const char *name);
void live_expect(const struct live *l, const char *name, uint64_t value); /* in the end */
void live_expect_at_least(const struct live *l, const char *name, uint64_t least);
/* All pages are free or kept for later, no place in KV-RAM is a live sequence's. */
void live_expect_nothing_used(struct live *l);

/* Open a prompt of full length, that of this number: what the library says; or it must work, and
 * finds nothing. */
int live_try(struct live_sequence *s, struct engine *e, uint32_t number, uint32_t priority,
	     uint64_t deadline_us);
void live_begin(struct live_sequence *s, struct engine *e, uint32_t number, uint32_t priority);
void live_go_on(const struct live *l, struct live_sequence *s, uint32_t to);
bool live_has(const struct live *l, const struct live_sequence *s, uint32_t n);
void live_end(struct live_sequence *s);

#endif
