/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_HYBRID_H
#define KVHOST_TESTS_E2E_HYBRID_H

/*
 * hybrid: an engine with a recurrent state, for tests: what it computes is a pattern by number.
 *
 * Its image has two replaced sections and a ring. Calls block as the library does; what must work
 * fails the test. An engine belongs to one thread.
 */

#include "tests/e2e/engine.h"

#define HYBRID_PAGE  16 /* tokens of a page */
#define HYBRID_EXTRA 101
#define HYBRID_RING  640

enum hybrid_section { HYBRID_STATE_SECTION = 0, HYBRID_EXTRA_SECTION, HYBRID_RING_SECTION };

/* A pool for daemon_start; rest: more keys, each with a comma before it. */
#define HYBRID_POOL(name, rest)                                                                    \
	"{\"name\": \"" name "\", \"pool_pages\": 256, \"kv_page_size\": 16,"                      \
	" \"kv_cache_dtype\": \"float32\", \"max_sequence_length\": 512,"                          \
	" \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null" rest "}"

/* Connect and attach, with a state of so many bytes. */
void hybrid_start(struct engine *e, const char *socket, const char *pool, uint64_t state_bytes,
		  int map);

/* Open must work. system_end, user_end and opener: 0 = not said. */
struct kvhost_sequence *hybrid_open(struct engine *e, const uint32_t *tokens, uint32_t n,
				    uint32_t system_end, uint32_t opener,
				    struct kvhost_open_result *found);
/* A step to `to` tokens that leaves the image of that number behind, all of it. */
void hybrid_step(struct engine *e, struct kvhost_sequence *seq, uint32_t to, uint32_t number);
/* Does the committed state have the image of that number? */
bool hybrid_is(struct engine *e, struct kvhost_sequence *seq, uint32_t number);
uint32_t hybrid_checkpoint(struct kvhost_sequence *seq); /* enum kvhost_capture */

void hybrid_fill(uint8_t *to, uint64_t bytes, uint32_t number, uint32_t section);

#endif
