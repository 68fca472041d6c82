/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/geometry: where blocks lie, and that nothing hostile gets through. */

#include "kernels/geometry.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct geometry_layer layer_of(uint32_t heads, uint32_t k_dim, uint32_t v_dim,
				      enum kernel_format k, enum kernel_format v)
{
	return (struct geometry_layer){
	    .kv_heads = heads, .head_dim = {k_dim, v_dim}, .format = {k, v}};
}

static struct geometry geometry_of(uint32_t page_tokens, uint32_t n, struct geometry_layer *layers)
{
	return (struct geometry){.page_tokens = page_tokens, .n_layers = n, .layers = layers};
}

static void compute(struct geometry *g)
{
	const char *why = NULL;
	uint32_t layer;

	if (geometry_compute(g, &why, &layer))
		fail_msg("%s", why);
}

static void a_block_has_the_bytes_that_the_format_says(void **state)
{
	static const struct {
		enum kernel_format format;
		uint32_t row;
		uint64_t page; /* both sides of the one layer */
	} rows[] = {
	    {KERNEL_BFLOAT16, 512, 2 * 16384},
	    {KERNEL_FLOAT16, 512, 2 * 16384},
	    {KERNEL_FLOAT32, 1024, 2 * 32768},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct geometry_layer l = layer_of(2, 256, 256, rows[i].format, rows[i].format);
		struct geometry g = geometry_of(16, 1, &l);

		compute(&g);
		assert_int_equal(l.row_bytes[0], rows[i].row);
		assert_int_equal(l.offset[0], 0);
		assert_int_equal(l.offset[1], rows[i].page / 2);
		assert_int_equal(g.page_bytes, rows[i].page);
		assert_int_equal(g.page_stride, rows[i].page);
	}
}

static void a_token_of_sixteen_layers_has_65536_bytes_in_bfloat16(void **state)
{
	struct geometry_layer layers[16];
	struct geometry g = geometry_of(64, 16, layers);

	(void)state;
	for (size_t i = 0; i < 16; i++)
		layers[i] = layer_of(4, 256, 256, KERNEL_BFLOAT16, KERNEL_BFLOAT16);
	compute(&g);
	assert_int_equal(g.page_bytes, 65536 * 64);
	assert_int_equal(g.page_stride, 65536 * 64);
}

static void each_layer_and_side_has_its_own_size_and_place(void **state)
{
	struct geometry_layer l[3] = {
	    layer_of(1, 3, 5, KERNEL_FLOAT32, KERNEL_FLOAT16),   /* 192, 160 bytes */
	    layer_of(3, 64, 9, KERNEL_BFLOAT16, KERNEL_FLOAT32), /* 6144, 1728 */
	    layer_of(2, 7, 1, KERNEL_FLOAT16, KERNEL_BFLOAT16),  /* 448, 64 */
	};
	struct geometry g = geometry_of(16, 3, l);

	(void)state;
	compute(&g);
	assert_int_equal(l[0].row_bytes[0], 12);
	assert_int_equal(l[0].row_bytes[1], 10);
	assert_int_equal(l[1].row_bytes[0], 128);
	assert_int_equal(l[1].row_bytes[1], 36);
	assert_int_equal(l[2].row_bytes[0], 14);
	assert_int_equal(l[2].row_bytes[1], 2);

	assert_int_equal(l[0].offset[0], 0);
	assert_int_equal(l[0].offset[1], 256);
	assert_int_equal(l[1].offset[0], 512);
	assert_int_equal(l[1].offset[1], 6656);
	assert_int_equal(l[2].offset[0], 8448);
	assert_int_equal(l[2].offset[1], 8960);
	assert_int_equal(g.page_bytes, 192 + 160 + 6144 + 1728 + 448 + 64);
	assert_int_equal(g.page_stride, 12288);
}

static void v_without_a_block_shares_the_rows_of_k(void **state)
{
	struct geometry_layer l[2] = {
	    layer_of(1, 64, 32, KERNEL_BFLOAT16, KERNEL_BFLOAT16),
	    layer_of(1, 512, 0, KERNEL_BFLOAT16, KERNEL_FLOAT32),
	};
	struct geometry g = geometry_of(64, 2, l);
	const char *why = NULL;

	(void)state;
	compute(&g);
	assert_int_equal(l[1].offset[0], 12288);
	assert_int_equal(l[1].offset[1], 12288);
	assert_int_equal(l[1].row_bytes[1], 1024);
	assert_int_equal(l[1].format[1], KERNEL_BFLOAT16);
	assert_int_equal(g.page_bytes, 8192 + 4096 + 65536);
	assert_int_equal(geometry_row_elements(&l[0], 1), 32);
	assert_int_equal(geometry_row_elements(&l[1], 1), 512);

	assert_int_equal(geometry_check_rows(&g, 1, 0, true, &why), 0);
	assert_int_equal(geometry_check_rows(&g, 1, 1, false, &why), 0);
	assert_int_equal(geometry_check_rows(&g, 0, 1, true, &why), 0);
	assert_null(why);
	assert_int_equal(geometry_check_rows(&g, 1, 1, true, &why), -EINVAL);
	assert_ptr_equal(strstr(why, "side"), why);
}

static void rows_of_layers_and_sides_that_are_not_there_are_refused(void **state)
{
	struct geometry_layer l = layer_of(1, 64, 64, KERNEL_FLOAT16, KERNEL_FLOAT16);
	struct geometry g = geometry_of(16, 1, &l);
	const char *why = NULL;

	(void)state;
	compute(&g);
	assert_int_equal(geometry_check_rows(&g, 1, 0, false, &why), -EINVAL);
	assert_ptr_equal(strstr(why, "layer"), why);
	assert_int_equal(geometry_check_rows(&g, UINT32_MAX, 0, true, &why), -EINVAL);
	assert_ptr_equal(strstr(why, "layer"), why);
	assert_int_equal(geometry_check_rows(&g, 0, 2, false, &why), -EINVAL);
	assert_ptr_equal(strstr(why, "side"), why);
}

static void the_largest_geometry_does_not_overflow(void **state)
{
	struct geometry_layer *l = calloc(GEOMETRY_LAYERS_MAX, sizeof(*l));
	struct geometry g = geometry_of(64, GEOMETRY_LAYERS_MAX, l);
	uint64_t block = UINT64_C(1024) * 64 * 4096;

	(void)state;
	assert_non_null(l);
	for (size_t i = 0; i < GEOMETRY_LAYERS_MAX; i++)
		l[i] = layer_of(GEOMETRY_HEADS_MAX, GEOMETRY_HEAD_DIM_MAX, GEOMETRY_HEAD_DIM_MAX,
				KERNEL_FLOAT32, KERNEL_FLOAT32);
	compute(&g);
	assert_true(g.page_bytes == block * 1024);
	assert_true(g.page_stride == block * 1024);
	assert_true(l[511].offset[1] == block * 1023);
	geometry_free(&g);
	assert_null(g.layers);
	geometry_free(&g);
	geometry_free(NULL);
}

static void refuse(uint32_t page_tokens, uint32_t n, struct geometry_layer bad, const char *field,
		   uint32_t want_layer)
{
	struct geometry_layer l[2] = {layer_of(1, 64, 64, KERNEL_FLOAT16, KERNEL_FLOAT16), bad};
	struct geometry g = geometry_of(page_tokens, n, l);
	const char *why = "";
	uint32_t layer = 77;

	assert_int_equal(geometry_compute(&g, &why, &layer), -EINVAL);
	if (strncmp(why, field, strlen(field)) != 0)
		fail_msg("%s was expected, it said: %s", field, why);
	assert_int_equal(layer, want_layer);
	assert_int_equal(g.page_stride, 0);
	assert_int_equal(l[0].row_bytes[0], 0);
}

static void hostile_values_are_refused_by_field(void **state)
{
	const enum kernel_format f = KERNEL_FLOAT16;
	struct geometry_layer good = layer_of(1, 64, 64, f, f);

	(void)state;
	refuse(0, 2, good, "page_tokens:", 0);
	refuse(48, 2, good, "page_tokens:", 0);
	refuse(UINT32_MAX, 2, good, "page_tokens:", 0);
	refuse(16, 0, good, "n_layers:", 0);
	refuse(16, GEOMETRY_LAYERS_MAX + 1, good, "n_layers:", 0);
	refuse(16, UINT32_MAX, good, "n_layers:", 0);
	refuse(16, 2, layer_of(0, 64, 64, f, f), "kv_heads:", 1);
	refuse(16, 2, layer_of(GEOMETRY_HEADS_MAX + 1, 64, 64, f, f), "kv_heads:", 1);
	refuse(16, 2, layer_of(UINT32_MAX, 64, 64, f, f), "kv_heads:", 1);
	refuse(16, 2, layer_of(1, 0, 64, f, f), "k_head_dim:", 1);
	refuse(16, 2, layer_of(1, GEOMETRY_HEAD_DIM_MAX + 1, 64, f, f), "k_head_dim:", 1);
	refuse(16, 2, layer_of(1, 64, UINT32_MAX, f, f), "v_head_dim:", 1);
	refuse(16, 2, layer_of(1, 64, 64, (enum kernel_format)0, f), "k_format:", 1);
	refuse(16, 2, layer_of(1, 64, 64, f, (enum kernel_format)255), "v_format:", 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_block_has_the_bytes_that_the_format_says),
	    cmocka_unit_test(a_token_of_sixteen_layers_has_65536_bytes_in_bfloat16),
	    cmocka_unit_test(each_layer_and_side_has_its_own_size_and_place),
	    cmocka_unit_test(v_without_a_block_shares_the_rows_of_k),
	    cmocka_unit_test(rows_of_layers_and_sides_that_are_not_there_are_refused),
	    cmocka_unit_test(the_largest_geometry_does_not_overflow),
	    cmocka_unit_test(hostile_values_are_refused_by_field),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
