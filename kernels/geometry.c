/* SPDX-License-Identifier: Apache-2.0 */
/* geometry: the layout of a page record. Pure functions, any thread, nothing blocks. */

#include "kernels/geometry.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define TEXT_OF(number)    #number
#define LIMIT_TEXT(number) TEXT_OF(number)

static uint64_t round_up(uint64_t value, uint64_t step)
{
	return (value + step - 1) / step * step;
}

static const char *layer_fault(const struct geometry_layer *l)
{
	if (l->kv_heads == 0 || l->kv_heads > GEOMETRY_HEADS_MAX)
		return "kv_heads: must be 1 to " LIMIT_TEXT(GEOMETRY_HEADS_MAX);
	if (l->head_dim[0] == 0 || l->head_dim[0] > GEOMETRY_HEAD_DIM_MAX)
		return "k_head_dim: must be 1 to " LIMIT_TEXT(GEOMETRY_HEAD_DIM_MAX);
	if (l->head_dim[1] > GEOMETRY_HEAD_DIM_MAX)
		return "v_head_dim: must be 0 to " LIMIT_TEXT(GEOMETRY_HEAD_DIM_MAX);
	if (!kernel_format_is_valid(l->format[0]))
		return "k_format: not a known format";
	if (l->head_dim[1] && !kernel_format_is_valid(l->format[1]))
		return "v_format: not a known format";
	return NULL;
}

/* Puts one side's block at or after *end, moves *end behind it; the block's bytes. */
static uint64_t place_block(struct geometry_layer *l, uint32_t side, uint32_t page_tokens,
			    uint64_t *end)
{
	size_t row_bytes = kernel_format_bytes(l->format[side], l->head_dim[side]);
	uint64_t block_bytes = (uint64_t)l->kv_heads * page_tokens * row_bytes;

	l->row_bytes[side] = (uint32_t)row_bytes;
	l->offset[side] = round_up(*end, GEOMETRY_BLOCK_ALIGN);
	*end = l->offset[side] + block_bytes;
	return block_bytes;
}

int geometry_compute(struct geometry *g, const char **why, uint32_t *layer)
{
	uint64_t end = 0, page_bytes = 0;

	*layer = 0;
	if (g->page_tokens != 16 && g->page_tokens != 32 && g->page_tokens != 64) {
		*why = "page_tokens: must be 16, 32 or 64";
		return -EINVAL;
	}
	if (g->n_layers == 0 || g->n_layers > GEOMETRY_LAYERS_MAX) {
		*why = "n_layers: must be 1 to " LIMIT_TEXT(GEOMETRY_LAYERS_MAX);
		return -EINVAL;
	}
	assert(g->layers);
	for (uint32_t i = 0; i < g->n_layers; i++) {
		const char *fault = layer_fault(&g->layers[i]);

		if (fault) {
			*why = fault;
			*layer = i;
			return -EINVAL;
		}
	}

	/* Within the limits above a record is at most 2^38 bytes: nothing here overflows. */
	for (uint32_t i = 0; i < g->n_layers; i++) {
		struct geometry_layer *l = &g->layers[i];

		page_bytes += place_block(l, 0, g->page_tokens, &end);
		if (l->head_dim[1]) {
			page_bytes += place_block(l, 1, g->page_tokens, &end);
		} else {
			l->format[1] = l->format[0];
			l->offset[1] = l->offset[0];
			l->row_bytes[1] = l->row_bytes[0];
		}
	}
	g->page_bytes = page_bytes;
	g->page_stride = round_up(end, GEOMETRY_RECORD_ALIGN);
	return 0;
}

int geometry_check_rows(const struct geometry *g, uint32_t layer, uint32_t side, bool write,
			const char **why)
{
	if (layer >= g->n_layers) {
		*why = "layer: the pool has no such layer";
		return -EINVAL;
	}
	if (side > 1) {
		*why = "side: must be 0 (K) or 1 (V)";
		return -EINVAL;
	}
	if (write && side == 1 && g->layers[layer].head_dim[1] == 0) {
		*why = "side: this layer has no V block, its V is read from the K rows";
		return -EINVAL;
	}
	return 0;
}

uint32_t geometry_row_elements(const struct geometry_layer *l, uint32_t side)
{
	assert(side <= 1);
	return l->head_dim[side] ? l->head_dim[side] : l->head_dim[0];
}

void geometry_free(struct geometry *g)
{
	if (!g)
		return;
	free(g->layers);
	g->layers = NULL;
	g->n_layers = 0;
}
