/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_ENGINE_H
#define KVHOST_TESTS_E2E_ENGINE_H

/*
 * engine: an engine for tests: connects, attaches a small pool, takes prompts as far as wanted.
 *
 * Calls return what the library returned. An engine belongs to one thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libclient/kvhost.h"

#define ENGINE_LAYERS_MAX 4

struct engine {
	struct kvhost *host;
	struct kvhost_pool *pool;
	const struct kvhost_pool_info *info;
};

struct engine_model { /* what it attaches as */
	const char *pool;
	const char *artifact; /* its first bytes; NULL: none */
	uint32_t n_layers, heads, k_dim, v_dim;
	uint32_t format;
	uint32_t tensor_rank, tensor_size;
	int map;
};

/* One layer, one head, 16 elements of float16, not mapped. */
#define ENGINE_SMALL(pool_name)                                                                    \
	((struct engine_model){.pool = (pool_name),                                                \
			       .n_layers = 1,                                                      \
			       .heads = 1,                                                         \
			       .k_dim = 16,                                                        \
			       .v_dim = 16,                                                        \
			       .format = KVHOST_FLOAT16})

int engine_connect(struct engine *e, const char *socket);
int engine_attach(struct engine *e, const struct engine_model *m); /* connected already */
int engine_start(struct engine *e, const char *socket, const struct engine_model *m);
void engine_stop(struct engine *e);

/* Tokens that nobody else has for another number, except where `shared` says the same. */
void engine_tokens(uint32_t *tokens, uint32_t n, uint32_t n_shared, uint32_t number);
/* Open, commit the whole prompt in steps of at most `step_tokens`; the sequence stays open. */
int engine_prefill(struct engine *e, const uint32_t *tokens, uint32_t n, uint32_t step_tokens,
		   struct kvhost_sequence **out, uint32_t *cached_tokens);
/* The same, and close. */
int engine_serve(struct engine *e, const uint32_t *tokens, uint32_t n, uint32_t *cached_tokens);
/* kvhost_ask("check"): true if the daemon found nothing wrong. */
bool engine_check(struct engine *e);

#endif
