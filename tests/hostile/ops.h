/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_HOSTILE_OPS_H
#define KVHOST_TESTS_HOSTILE_OPS_H

/*
 * ops: honest operations over a raw client, and the well-behaved session that must go on.
 *
 * Tests change what they want before it is submitted. Main thread.
 */

#include "tests/e2e/daemon.h"
#include "tests/hostile/raw.h"

#define PAGE_TOKENS 16
#define ROW_FLOATS  4
#define ROW_BYTES   (ROW_FLOATS * 4u)
#define LAYERS      2
#define IN          0u          /* where requests lie in the window */
#define OUT         (64u << 10) /* where answers do */

/* A daemon with small rings, a pool, one more that clients may map, and one good session. */
struct world {
	struct daemon d;
	struct raw good;
	struct payload_handle kept; /* a sequence that stays open, with bytes that must stay */
	uint32_t round;
};

#define CORE_JSON                                                                                  \
	"\"core\": {\"window_bytes\": \"128KiB\", \"submission_slots\": 16, "                      \
	"\"completion_slots\": 16, \"stall_limit_ms\": 500}"
#define POOL_JSON(name, map)                                                                       \
	"{\"name\": \"" name "\", \"pool_pages\": 64, \"kv_page_size\": 16, "                      \
	"\"kv_cache_dtype\": \"float32\", \"max_sequence_length\": 512, "                          \
	"\"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null, \"map\": " map "}"
#define WORLD_JSON                                                                                 \
	"{" CORE_JSON                                                                              \
	", \"pools\": [" POOL_JSON("hot", "false") ", " POOL_JSON("open", "true") "]}\n"

void world_start(struct world *w); /* d.program and d.environment may be set */
void world_stop(struct world *w);  /* SIGTERM: it must end well */
/* The good session does a whole round, and what it keeps is as it was. */
void world_goes_on(struct world *w);
/* The attacker's session ends, with this reason and counter; the rest goes on. */
void world_ends_it(struct world *w, struct raw *r, enum wire_bye reason, uint64_t closed_before);
uint64_t world_closed(const struct world *w, enum wire_bye reason);

/* What a whole attack is: attach, do, see it end with the reason. */
void world_attack(struct world *w, void (*attack)(struct raw *r, const void *detail),
		  const void *detail, enum wire_bye reason);

/* ---- submissions; the payload is written to the window ---- */

struct submission op(enum wire_opcode opcode, struct payload_handle handle);
struct submission op_attach(struct raw *r, bool map); /* hot, or open: mapped */
struct submission op_open(struct raw *r, uint32_t first_token, uint32_t n, uint32_t max_tokens);
struct submission op_begin(struct raw *r, struct payload_handle seq, uint32_t target);
struct submission op_write(struct raw *r, struct payload_handle step, uint32_t layer, uint32_t side,
			   uint32_t first, uint32_t n, uint32_t seed);
struct submission op_read(struct raw *r, struct payload_handle seq, uint32_t layer, uint32_t side,
			  uint32_t first, uint32_t n);
/* Of all of a step that began at token 0; the page handles lie at OUT since op_begin. */
struct submission op_commit(struct raw *r, struct payload_handle step, uint32_t tokens);

/* ---- and done: they must succeed ---- */

void do_attach(struct raw *r, const char *path, bool map); /* session and pool */
struct payload_handle do_open(struct raw *r, uint32_t first_token, uint32_t n, uint32_t max_tokens);
struct payload_handle do_begin(struct raw *r, struct payload_handle seq, uint32_t target);
void do_write(struct raw *r, struct payload_handle step, uint32_t n, uint32_t seed);
void do_commit(struct raw *r, struct payload_handle step, uint32_t tokens);
bool bytes_are(struct raw *r, struct payload_handle seq, uint32_t n, uint32_t seed);
void do_close(struct raw *r, struct payload_handle seq);
uint32_t cached_tokens(struct raw *r, uint32_t first_token, uint32_t n); /* by a lookup */
struct payload_handle handle_of(const struct completion *c);

#endif
