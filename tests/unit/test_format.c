/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of kernels/format: names, sizes, and conversion bit by bit. Expected values are written by
 * hand or come from double arithmetic, never from the code under test.
 */

#include "kernels/format.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ALL_HALVES 65536

struct expected {
	uint32_t from;
	uint32_t to;
	uint32_t saturated;
};

static const struct expected f32_to_f16[] = {
    /* zeros and plain values */
    {0x00000000, 0x0000, 0},
    {0x80000000, 0x8000, 0},
    {0x3f800000, 0x3c00, 0},
    {0xc0000000, 0xc000, 0},
    /* ties go to even, anything beside a tie does not; a carry reaches the exponent */
    {0x3f801000, 0x3c00, 0},
    {0x3f803000, 0x3c02, 0},
    {0x3f801001, 0x3c01, 0},
    {0x3f802fff, 0x3c01, 0},
    {0x3fffffff, 0x4000, 0},
    /* the end of the range: 65504, just above, 65520, the largest float32, infinity */
    {0x477fe000, 0x7bff, 0},
    {0x477fe001, 0x7bff, 1},
    {0x477ff000, 0x7bff, 1},
    {0x7f7fffff, 0x7bff, 1},
    {0xff7fffff, 0xfbff, 1},
    {0x7f800000, 0x7c00, 0},
    {0xff800000, 0xfc00, 0},
    /* subnormal: 2^-24, half of it, just above the half, 1.5 and 2.5 times it */
    {0x33800000, 0x0001, 0},
    {0x33000000, 0x0000, 0},
    {0x33000001, 0x0001, 0},
    {0x33c00000, 0x0002, 0},
    {0x34200000, 0x0002, 0},
    {0xb3800000, 0x8001, 0},
    /* the largest subnormal, the tie above it, the smallest normal, float32 subnormals */
    {0x387fc000, 0x03ff, 0},
    {0x387fe000, 0x0400, 0},
    {0x38800000, 0x0400, 0},
    {0x00000001, 0x0000, 0},
    {0x807fffff, 0x8000, 0},
    /* NaN: quiet, sign and upper payload kept */
    {0x7fc00000, 0x7e00, 0},
    {0x7f800001, 0x7e00, 0},
    {0x7fa00000, 0x7f00, 0},
    {0xffffffff, 0xffff, 0},
};

static const struct expected f32_to_bf16[] = {
    {0x00000000, 0x0000, 0},
    {0x80000000, 0x8000, 0},
    {0x3f800000, 0x3f80, 0},
    {0x3f808000, 0x3f80, 0},
    {0x3f818000, 0x3f82, 0},
    {0x3f808001, 0x3f81, 0},
    {0x3f817fff, 0x3f81, 0},
    /* beyond the largest is infinity, as nearest even has it */
    {0x7f7f0000, 0x7f7f, 0},
    {0x7f7f7fff, 0x7f7f, 0},
    {0x7f7fffff, 0x7f80, 0},
    {0xff7fffff, 0xff80, 0},
    {0x7f800000, 0x7f80, 0},
    /* subnormals are kept and rounded */
    {0x00000001, 0x0000, 0},
    {0x00008000, 0x0000, 0},
    {0x00008001, 0x0001, 0},
    {0x00018000, 0x0002, 0},
    {0x007fffff, 0x0080, 0},
    {0x807f0000, 0x807f, 0},
    {0x7fc00000, 0x7fc0, 0},
    {0x7f800001, 0x7fc0, 0},
    {0x7fa00000, 0x7fe0, 0},
    {0xff810000, 0xffc1, 0},
};

static const struct expected f16_to_f32[] = {
    {0x0000, 0x00000000, 0}, {0x8000, 0x80000000, 0}, {0x0001, 0x33800000, 0},
    {0x8001, 0xb3800000, 0}, {0x03ff, 0x387fc000, 0}, {0x0400, 0x38800000, 0},
    {0x3c00, 0x3f800000, 0}, {0x7bff, 0x477fe000, 0}, {0x7c00, 0x7f800000, 0},
    {0xfc00, 0xff800000, 0}, {0x7c01, 0x7fc02000, 0}, {0x7e00, 0x7fc00000, 0},
    {0xffff, 0xffffe000, 0},
};

static const struct expected bf16_to_f32[] = {
    {0x0000, 0x00000000, 0}, {0x8001, 0x80010000, 0}, {0x0001, 0x00010000, 0},
    {0x3f80, 0x3f800000, 0}, {0x7f80, 0x7f800000, 0}, {0x7f81, 0x7fc10000, 0},
    {0xffc0, 0xffc00000, 0},
};

static const struct expected bf16_to_f16[] = {
    {0x3f80, 0x3c00, 0}, {0x477f, 0x7bf8, 0}, {0x4780, 0x7bff, 1}, {0xff7f, 0xfbff, 1},
    {0x7f80, 0x7c00, 0}, {0x3380, 0x0001, 0}, {0x3300, 0x0000, 0}, {0x33c0, 0x0002, 0},
    {0x0001, 0x0000, 0}, {0x7f81, 0x7e08, 0}, {0xffc0, 0xfe00, 0},
};

static const struct expected f16_to_bf16[] = {
    {0x3c00, 0x3f80, 0}, {0x0001, 0x3380, 0}, {0x03ff, 0x3880, 0},
    {0x7bff, 0x4780, 0}, {0x7c00, 0x7f80, 0}, {0x3c04, 0x3f80, 0},
    {0x3c0c, 0x3f82, 0}, {0x7c08, 0x7fc1, 0}, {0xfe00, 0xffc0, 0},
};

static uint32_t convert_one(enum kernel_format to, enum kernel_format from, uint32_t bits,
			    uint64_t *saturated)
{
	uint16_t half = (uint16_t)bits, half_out;
	uint32_t out;

	*saturated = kernel_convert(to, to == KERNEL_FLOAT32 ? (void *)&out : &half_out, from,
				    from == KERNEL_FLOAT32 ? (void *)&bits : &half, 1);
	return to == KERNEL_FLOAT32 ? out : half_out;
}

static void check_table(enum kernel_format to, enum kernel_format from, const struct expected *e,
			size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t saturated;
		uint32_t got = convert_one(to, from, e[i].from, &saturated);

		if (got != e[i].to || saturated != e[i].saturated)
			fail_msg("%s %08x to %s: %08x, %u saturated", kernel_format_name(from),
				 e[i].from, kernel_format_name(to), got, (unsigned int)saturated);
	}
}

static void check_all_tables(void)
{
	check_table(KERNEL_FLOAT16, KERNEL_FLOAT32, f32_to_f16,
		    sizeof(f32_to_f16) / sizeof(*f32_to_f16));
	check_table(KERNEL_BFLOAT16, KERNEL_FLOAT32, f32_to_bf16,
		    sizeof(f32_to_bf16) / sizeof(*f32_to_bf16));
	check_table(KERNEL_FLOAT32, KERNEL_FLOAT16, f16_to_f32,
		    sizeof(f16_to_f32) / sizeof(*f16_to_f32));
	check_table(KERNEL_FLOAT32, KERNEL_BFLOAT16, bf16_to_f32,
		    sizeof(bf16_to_f32) / sizeof(*bf16_to_f32));
	check_table(KERNEL_FLOAT16, KERNEL_BFLOAT16, bf16_to_f16,
		    sizeof(bf16_to_f16) / sizeof(*bf16_to_f16));
	check_table(KERNEL_BFLOAT16, KERNEL_FLOAT16, f16_to_bf16,
		    sizeof(f16_to_bf16) / sizeof(*f16_to_bf16));
}

static void conversions_give_the_values_worked_out_by_hand(void **state)
{
	(void)state;
	check_all_tables();
}

/* The value of a finite half in double arithmetic, which holds it and its midpoints exactly. */
static double value_of(enum kernel_format f, uint32_t half)
{
	int mantissa_bits = f == KERNEL_FLOAT16 ? 10 : 7;
	int bias = f == KERNEL_FLOAT16 ? 15 : 127;
	int exponent = (int)(half & 0x7fff) >> mantissa_bits;
	int mantissa = (int)half & ((1 << mantissa_bits) - 1);
	double v = exponent
		       ? ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
		       : ldexp(mantissa, 1 - bias - mantissa_bits);

	return half & 0x8000 ? -v : v;
}

static void every_half_survives_the_way_to_float32_and_back(void **state)
{
	const enum kernel_format formats[] = {KERNEL_FLOAT16, KERNEL_BFLOAT16};

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		enum kernel_format f = formats[k];
		uint32_t infinity = f == KERNEL_FLOAT16 ? 0x7c00 : 0x7f80;
		uint32_t quiet = f == KERNEL_FLOAT16 ? 0x0200 : 0x0040;

		for (uint32_t h = 0; h < ALL_HALVES; h++) {
			bool is_nan = (h & 0x7fff) > infinity;
			uint64_t saturated;
			uint32_t wide = convert_one(KERNEL_FLOAT32, f, h, &saturated);
			float value;

			memcpy(&value, &wide, sizeof(value));
			if ((h & 0x7fff) < infinity)
				assert_true((double)value == value_of(f, h));
			assert_int_equal(wide >> 31, h >> 15);
			assert_int_equal(convert_one(f, KERNEL_FLOAT32, wide, &saturated),
					 is_nan ? h | quiet : h);
			assert_int_equal(saturated, 0);
		}
	}
}

static void every_midpoint_goes_to_even_and_its_neighbours_to_the_nearer(void **state)
{
	const enum kernel_format formats[] = {KERNEL_FLOAT16, KERNEL_BFLOAT16};

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		enum kernel_format f = formats[k];
		uint32_t last = f == KERNEL_FLOAT16 ? 0x7bff : 0x7f7f;

		for (uint32_t h = 0; h < last; h++) {
			float middle = (float)((value_of(f, h) + value_of(f, h + 1)) / 2);
			uint64_t saturated;
			uint32_t bits;

			memcpy(&bits, &middle, sizeof(bits));
			assert_int_equal(convert_one(f, KERNEL_FLOAT32, bits, &saturated),
					 h % 2 ? h + 1 : h);
			assert_int_equal(convert_one(f, KERNEL_FLOAT32, bits - 1, &saturated), h);
			assert_int_equal(convert_one(f, KERNEL_FLOAT32, bits + 1, &saturated),
					 h + 1);
		}
	}
}

static void saturated_values_are_counted_in_long_unaligned_rows(void **state)
{
	enum { N = 1000 };
	unsigned char from[N * 4 + 1], to[N * 2 + 3];
	const uint32_t huge = 0xc7800000, one = 0x3f800000; /* -65536, 1 */

	(void)state;
	memset(to, 0xee, sizeof(to));
	for (size_t i = 0; i < N; i++)
		memcpy(from + 1 + i * 4, i % 10 == 3 ? &huge : &one, 4);
	assert_int_equal(kernel_convert(KERNEL_FLOAT16, to + 1, KERNEL_FLOAT32, from + 1, N), 100);
	for (size_t i = 0; i < N; i++) {
		uint16_t got;

		memcpy(&got, to + 1 + i * 2, 2);
		assert_int_equal(got, i % 10 == 3 ? 0xfbff : 0x3c00);
	}
	assert_int_equal(to[0], 0xee);
	assert_int_equal(to[N * 2 + 1], 0xee);
	assert_int_equal(to[N * 2 + 2], 0xee);
}

static void equal_formats_keep_every_bit(void **state)
{
	const uint16_t from[4] = {0x7c01, 0xffff, 0x8000, 0x7f81};
	uint16_t to[4] = {0};

	(void)state;
	assert_int_equal(kernel_convert(KERNEL_FLOAT16, to, KERNEL_FLOAT16, from, 4), 0);
	assert_memory_equal(to, from, sizeof(to));
	assert_int_equal(kernel_convert(KERNEL_FLOAT16, NULL, KERNEL_FLOAT16, NULL, 0), 0);
}

/* Flush to zero both ways, and rounding upwards. */
#if defined(__x86_64__)
#define HOSTILE_MODES UINT64_C(0xdfc0)
static uint64_t modes_read(void)
{
	uint32_t modes;

	__asm__ volatile("stmxcsr %0" : "=m"(modes));
	return modes;
}
static void modes_write(uint64_t value)
{
	uint32_t modes = (uint32_t)value;

	__asm__ volatile("ldmxcsr %0" : : "m"(modes) : "memory");
}
#else
#define HOSTILE_MODES UINT64_C(0x01400000)
static uint64_t modes_read(void)
{
	uint64_t modes;

	__asm__ volatile("mrs %0, fpcr" : "=r"(modes));
	return modes;
}
static void modes_write(uint64_t value)
{
	__asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory");
}
#endif

static void floating_point_modes_of_the_caller_change_nothing_and_stay(void **state)
{
	uint64_t before = modes_read(), after;
	uint16_t *want = malloc(ALL_HALVES * sizeof(*want));
	uint16_t *got = malloc(ALL_HALVES * sizeof(*got));
	uint32_t *wide = malloc(ALL_HALVES * sizeof(*wide));
	const enum kernel_format formats[] = {KERNEL_FLOAT16, KERNEL_BFLOAT16};

	(void)state;
	assert_true(want && got && wide);
	modes_write(HOSTILE_MODES);
	check_all_tables();
	after = modes_read();
	modes_write(before);
	assert_int_equal(after, HOSTILE_MODES);

	/* Bits spread over all exponents, most of them between two halves. */
	for (uint32_t i = 0; i < ALL_HALVES; i++)
		wide[i] = i << 16 | (i * 40503u & 0xffff);
	for (size_t k = 0; k < 2; k++) {
		kernel_convert(formats[k], want, KERNEL_FLOAT32, wide, ALL_HALVES);
		modes_write(HOSTILE_MODES);
		kernel_convert(formats[k], got, KERNEL_FLOAT32, wide, ALL_HALVES);
		modes_write(before);
		assert_memory_equal(got, want, ALL_HALVES * sizeof(*got));
	}
	free(want);
	free(got);
	free(wide);
}

static void formats_are_found_by_name_and_alias_only(void **state)
{
	static const struct {
		const char *name;
		enum kernel_format format;
	} names[] = {
	    {"float32", KERNEL_FLOAT32}, {"fp32", KERNEL_FLOAT32},      {"f32", KERNEL_FLOAT32},
	    {"float16", KERNEL_FLOAT16}, {"fp16", KERNEL_FLOAT16},      {"f16", KERNEL_FLOAT16},
	    {"bf16", KERNEL_BFLOAT16},   {"bfloat16", KERNEL_BFLOAT16},
	};
	enum kernel_format f = KERNEL_FORMAT_COUNT;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		assert_int_equal(kernel_format_find(names[i].name, &f), 0);
		assert_int_equal(f, names[i].format);
	}
	f = KERNEL_FORMAT_COUNT;
	assert_int_equal(kernel_format_find("int8", &f), KERNEL_FORMAT_REFUSED);
	assert_int_equal(kernel_format_find("q4", &f), KERNEL_FORMAT_REFUSED);
	assert_int_equal(kernel_format_find("int4", &f), KERNEL_FORMAT_REFUSED);
	assert_int_equal(kernel_format_find("", &f), KERNEL_FORMAT_UNKNOWN);
	assert_int_equal(kernel_format_find("float", &f), KERNEL_FORMAT_UNKNOWN);
	assert_int_equal(kernel_format_find("BF16", &f), KERNEL_FORMAT_UNKNOWN);
	assert_int_equal(f, KERNEL_FORMAT_COUNT);
}

static void the_list_of_names_has_every_format(void **state)
{
	char list[256] = "";

	(void)state;
	for (uint32_t f = 1; f < KERNEL_FORMAT_COUNT; f++) {
		if (f > 1)
			strncat(list, ", ", sizeof(list) - strlen(list) - 1);
		strncat(list, kernel_format_name((enum kernel_format)f),
			sizeof(list) - strlen(list) - 1);
	}
	assert_string_equal(kernel_format_names(), list);
	assert_false(kernel_format_is_valid(0));
	assert_false(kernel_format_is_valid(KERNEL_FORMAT_COUNT));
	assert_false(kernel_format_is_valid(UINT32_MAX));
	assert_int_equal(kernel_format_bytes(KERNEL_FLOAT32, 3), 12);
	assert_int_equal(kernel_format_bytes(KERNEL_FLOAT16, 3), 6);
	assert_int_equal(kernel_format_bytes(KERNEL_BFLOAT16, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(conversions_give_the_values_worked_out_by_hand),
	    cmocka_unit_test(every_half_survives_the_way_to_float32_and_back),
	    cmocka_unit_test(every_midpoint_goes_to_even_and_its_neighbours_to_the_nearer),
	    cmocka_unit_test(saturated_values_are_counted_in_long_unaligned_rows),
	    cmocka_unit_test(equal_formats_keep_every_bit),
	    cmocka_unit_test(floating_point_modes_of_the_caller_change_nothing_and_stay),
	    cmocka_unit_test(formats_are_found_by_name_and_alias_only),
	    cmocka_unit_test(the_list_of_names_has_every_format),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
