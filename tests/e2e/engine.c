/* SPDX-License-Identifier: Apache-2.0 */
/* engine: see engine.h. Owned by one thread; blocks as the library does. */
#include "tests/e2e/engine.h"

#include <stdlib.h>
#include <string.h>

int engine_connect(struct engine *e, const char *socket)
{
	*e = (struct engine){0};
	return kvhost_connect(&(struct kvhost_options){.socket = socket, .client = "engine"},
			      &e->host);
}

int engine_attach(struct engine *e, const struct engine_model *m)
{
	struct kvhost_layer layers[ENGINE_LAYERS_MAX];
	uint8_t artifact[32] = {0};
	struct kvhost_pool_description description = {.name = m->pool,
						      .artifact = artifact,
						      .n_layers = m->n_layers,
						      .layers = layers,
						      .tensor_rank = m->tensor_rank,
						      .tensor_size = m->tensor_size,
						      .map = m->map};
	int result;

	if (m->artifact)
		memcpy(artifact, m->artifact, strnlen(m->artifact, sizeof(artifact)));
	for (uint32_t i = 0; i < m->n_layers && i < ENGINE_LAYERS_MAX; i++)
		layers[i] = (struct kvhost_layer){.kv_heads = m->heads,
						  .k_head_dim = m->k_dim,
						  .v_head_dim = m->v_dim,
						  .k_format = m->format,
						  .v_format = m->format};
	result = kvhost_pool_attach(e->host, &description, &e->pool);
	if (result == 0)
		e->info = kvhost_pool_describe(e->pool);
	return result;
}

int engine_start(struct engine *e, const char *socket, const struct engine_model *m)
{
	int result = engine_connect(e, socket);

	if (result == 0)
		result = engine_attach(e, m);
	return result;
}

void engine_stop(struct engine *e)
{
	kvhost_disconnect(&e->host);
	*e = (struct engine){0};
}

void engine_tokens(uint32_t *tokens, uint32_t n, uint32_t n_shared, uint32_t number)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i < n_shared ? i : 1000000u + number * 4096u + i;
}

int engine_prefill(struct engine *e, const uint32_t *tokens, uint32_t n, uint32_t step_tokens,
		   struct kvhost_sequence **out, uint32_t *cached_tokens)
{
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = n};
	struct kvhost_open_result found = {0};
	struct kvhost_sequence *seq = NULL;
	struct kvhost_step step;
	int result = kvhost_open(e->pool, &prompt, &seq, &found);

	while (result == 0 && kvhost_committed(seq) < n) {
		uint32_t target = kvhost_committed(seq) + step_tokens;

		if (target > n)
			target = n;
		result = kvhost_step_begin(seq, target, 0, &step);
		if (result == 0)
			result =
			    kvhost_step_commit(&step, target - step.start_tokens, NULL, 0, NULL, 0);
	}
	if (result) {
		(void)kvhost_close(&seq);
		return result;
	}
	if (cached_tokens)
		*cached_tokens = found.cached_tokens;
	*out = seq;
	return 0;
}

int engine_serve(struct engine *e, const uint32_t *tokens, uint32_t n, uint32_t *cached_tokens)
{
	struct kvhost_sequence *seq = NULL;
	int result = engine_prefill(e, tokens, n, n, &seq, cached_tokens);

	return result ? result : kvhost_close(&seq);
}

bool engine_check(struct engine *e)
{
	char *answer = NULL;
	bool good;

	if (kvhost_ask(e->host, "check", NULL, &answer))
		return false;
	good = strstr(answer, "\"ok\":true") != NULL;
	free(answer);
	return good;
}
