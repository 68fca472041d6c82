/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid: see hybrid.h. Owned by one thread; blocks as the library does. */
#include "tests/e2e/hybrid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void hybrid_start(struct engine *e, const char *socket, const char *pool, uint64_t state_bytes,
		  int map)
{
	const struct kvhost_layer layer = {.kv_heads = 1,
					   .k_head_dim = 4,
					   .v_head_dim = 4,
					   .k_format = KVHOST_FLOAT32,
					   .v_format = KVHOST_FLOAT32};
	const struct kvhost_section sections[] = {
	    {.name = "state", .bytes = state_bytes},
	    {.name = "extra", .bytes = HYBRID_EXTRA},
	    {.name = "ring", .bytes = HYBRID_RING, .ring = 1}};
	const struct kvhost_pool_description d = {.name = pool,
						  .n_layers = 1,
						  .layers = &layer,
						  .n_sections = 3,
						  .sections = sections,
						  .map = map};

	assert_int_equal(engine_connect(e, socket), 0);
	assert_int_equal(kvhost_pool_attach(e->host, &d, &e->pool), 0);
	e->info = kvhost_pool_describe(e->pool);
	assert_int_equal(e->info->n_sections, 3);
}

struct kvhost_sequence *hybrid_open(struct engine *e, const uint32_t *tokens, uint32_t n,
				    uint32_t system_end, uint32_t opener,
				    struct kvhost_open_result *found)
{
	struct kvhost_prompt p = {.tokens = tokens,
				  .n_tokens = n,
				  .max_tokens = n + 64,
				  .system_end_tokens = system_end,
				  .opener_tokens = opener,
				  .deadline_us = 10000000};
	struct kvhost_sequence *seq = NULL;

	assert_int_equal(kvhost_open(e->pool, &p, &seq, found), 0);
	return seq;
}

void hybrid_fill(uint8_t *to, uint64_t bytes, uint32_t number, uint32_t section)
{
	uint32_t x = number * 2654435761u + section;

	for (uint64_t i = 0; i < bytes; i++) {
		x = x * 1664525u + 1013904223u;
		to[i] = (uint8_t)(x >> 24);
	}
}

void hybrid_step(struct engine *e, struct kvhost_sequence *seq, uint32_t to, uint32_t number)
{
	struct kvhost_step step;

	assert_int_equal(kvhost_step_begin(seq, to, 0, &step), 0);
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t bytes = e->info->sections[i].bytes;
		uint8_t *image = malloc(bytes);

		assert_non_null(image);
		hybrid_fill(image, bytes, number, i);
		assert_int_equal(kvhost_image_write(&step, i, 0, image, bytes), 0);
		free(image);
	}
	assert_int_equal(kvhost_step_commit(&step, to - step.start_tokens, NULL, 0, NULL, 0), 0);
}

bool hybrid_is(struct engine *e, struct kvhost_sequence *seq, uint32_t number)
{
	bool same = true;

	for (uint32_t i = 0; i < 3; i++) {
		uint64_t bytes = e->info->sections[i].bytes;
		uint8_t *image = malloc(bytes), *found = malloc(bytes);

		assert_true(image && found);
		hybrid_fill(image, bytes, number, i);
		assert_int_equal(kvhost_image_read(seq, NULL, i, 0, found, bytes), 0);
		same &= memcmp(image, found, bytes) == 0;
		free(image);
		free(found);
	}
	return same;
}

uint32_t hybrid_checkpoint(struct kvhost_sequence *seq)
{
	uint32_t outcome = UINT32_MAX;

	assert_int_equal(kvhost_checkpoint(seq, kvhost_committed(seq), &outcome), 0);
	return outcome;
}
