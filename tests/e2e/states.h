/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_STATES_H
#define KVHOST_TESTS_E2E_STATES_H

/*
 * states: a hybrid pool with few pages and KV-RAM below it, and conversations that push each other
 * there. Every row and every image is stamped (hybrid.h), and is looked at whenever it is found.
 *
 * The pool keeps so few pages that the test knows which states are where: with those of two
 * prompts of the usual length it is full. One thread; what should not happen fails the test.
 */

#include "tests/e2e/daemon.h"
#include "tests/e2e/hybrid.h"

#define STATES_PAGE  16
#define STATES_KEPT  20 /* pages that the pool keeps */
#define STATES_PAGES 10 /* whole ones of a prompt */
#define STATES_USUAL (STATES_PAGES * STATES_PAGE)
#define STATES_MOST  272 /* tokens of a sequence */

/* Bytes of a state that, with what aligns it, fills three frames of KV-RAM. */
#define STATES_LARGE ((6u << 20) - 20480)

#define STATES_NO_FLOOR ", \"ram_floor_tokens\": 0"

/* `ram`: of KV-RAM, "64MiB"; `more`: keys of the pool, each with a comma before it. */
#define STATES_CONFIG(ram, more)                                                                   \
	"{\"kv_ram_bytes\": \"" ram "\", \"kv_ram_lock\": false, \"kv_ram_page_bytes\": \"4KiB\"," \
	" \"pools\": [" STATES_POOL(more) "]}\n"
#define STATES_POOL(more)                                                                          \
	"{\"name\": \"hybrid\", \"pool_pages\": 64, \"kv_page_size\": 16,"                         \
	" \"max_sequence_length\": 272, \"enable_prefix_caching\": true,"                          \
	" \"max_prefix_cache_pages\": 20, \"lanes\": 3" more "}"

struct states {
	struct daemon d;
	struct engine e;
};

void states_start(struct states *s, const char *json, uint64_t state_bytes, int map);
void states_stop(struct states *s); /* also if it has not started, or the daemon has stopped */

struct states_prompt {
	uint32_t tokens[STATES_MOST];
	struct kvhost_prompt prompt;
};

/* n tokens of a conversation, the first `shared` those of all; states are worth while at the end
 * of `system` tokens, floored to a page, and at `opener`; 0: not there. */
void states_make(struct states_prompt *p, uint32_t number, uint32_t n, uint32_t system,
		 uint32_t opener);
/* One token more than the usual length: a state at its end. */
void states_usual(struct states_prompt *p, uint32_t number);

struct kvhost_open_result states_serve(struct states *s, const struct states_prompt *p);
struct kvhost_open_result states_serve_usual(struct states *s, uint32_t number);
struct kvhost_open_result states_look_up(struct states *s, const struct states_prompt *p);

uint64_t states_counter(const struct states *s, const char *name);
void states_expect(const struct states *s, const char *name, uint64_t value); /* in the end */
/* A number of what "tiers" answers now, after this text: "\"leaving_images\":". */
uint64_t states_tiers(struct states *s, const char *after);
/* Wait until nothing moves; then nothing is used, and the daemon's sums are right. */
void states_rest(struct states *s);

void states_found(const struct kvhost_open_result *found, uint32_t cached_tokens, uint32_t kind,
		  uint32_t tier, uint32_t miss);

#endif
