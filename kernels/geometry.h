/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_KERNELS_GEOMETRY_H
#define KVHOST_KERNELS_GEOMETRY_H

/*
 * geometry: where each layer's K and V lie in a page record.
 *
 * A page holds page_tokens tokens of every attention layer. For each layer its K block, then its
 * V block, each at a multiple of 256; the record is rounded up to 4096. In a block rows lie
 * [head][token], each row_bytes (dense formats have no scale section). Sizes are computed per
 * layer and side, never from a global.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/format.h"

#define GEOMETRY_BLOCK_ALIGN  256
#define GEOMETRY_RECORD_ALIGN 4096
#define GEOMETRY_HEAD_DIM_MAX 1024
#define GEOMETRY_HEADS_MAX    1024
#define GEOMETRY_LAYERS_MAX   512

struct geometry_layer {
	uint32_t kv_heads;
	uint32_t head_dim[2];         /* K, V; V 0: read from the K row, no V block */
	enum kernel_format format[2]; /* K, V; V is set to K's where it has no block */
	uint64_t offset[2];           /* of the blocks in a record; computed */
	uint32_t row_bytes[2];        /* computed */
};

struct geometry {
	uint32_t page_tokens;
	uint32_t n_layers;
	uint64_t page_bytes;           /* sum of unpadded blocks */
	uint64_t page_stride;          /* of a record */
	struct geometry_layer *layers; /* [n_layers], owned */
};

/*
 * Fill in the computed fields from page_tokens (16, 32, 64), n_layers and each layer's heads,
 * dims and formats. 0, or -EINVAL and *why names the first field that is wrong (static text) and
 * *layer its layer (0 where it is not a layer's). Where V has no block its computed fields are K's.
 */
int geometry_compute(struct geometry *g, const char **why, uint32_t *layer);

/* May rows of this layer and side, which may be any numbers, be read or written? 0, or -EINVAL and
 * *why names the field that is wrong. V without a block can be read and not written. */
int geometry_check_rows(const struct geometry *g, uint32_t layer, uint32_t side, bool write,
			const char **why);

/* Elements of one stored row: the head dim, for V without a block K's. */
uint32_t geometry_row_elements(const struct geometry_layer *l, uint32_t side);

void geometry_free(struct geometry *g); /* the layers */

#endif
