/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dense: conversion between float32, float16 and bfloat16 in portable C, the reference for every
 * other provider. Pure functions, any thread, nothing blocks.
 *
 * Values are handled as bits; the two floating-point operations are marked. float32 has 8 bits of
 * exponent with bias 127 and 23 of mantissa, float16 5 with bias 15 and 10, bfloat16 is the upper
 * half of a float32.
 */

#include <string.h>

#include "kernels/dispatch.h"

#define F32_SIGN      UINT32_C(0x80000000)
#define F32_INFINITY  UINT32_C(0x7f800000)
#define F32_QUIET     UINT32_C(0x00400000)
#define F32_HALF      UINT32_C(0x3f000000) /* 0.5 */
#define F32_F16_MAX   UINT32_C(0x477fe000) /* 65504 */
#define F32_F16_MIN   UINT32_C(0x38800000) /* 2^-14, the smallest normal float16 */
#define F16_INFINITY  UINT32_C(0x7c00)
#define F16_QUIET     UINT32_C(0x0200)
#define F16_MIN       UINT32_C(0x0400)
#define EXPONENT_STEP ((UINT32_C(127) - 15) << 23)

/*
 * The loops stay functions of their own: their caller sets the floating-point modes around the
 * call, and the compiler does not know that arithmetic depends on them.
 */
#define KERNEL __attribute__((noinline))

static inline float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static inline uint32_t load32(const void *from, size_t i)
{
	uint32_t v;

	memcpy(&v, (const char *)from + i * sizeof(v), sizeof(v));
	return v;
}

static inline uint32_t load16(const void *from, size_t i)
{
	uint16_t v;

	memcpy(&v, (const char *)from + i * sizeof(v), sizeof(v));
	return v;
}

static inline void store32(void *to, size_t i, uint32_t v)
{
	memcpy((char *)to + i * sizeof(v), &v, sizeof(v));
}

static inline void store16(void *to, size_t i, uint32_t v)
{
	uint16_t half = (uint16_t)v;

	memcpy((char *)to + i * sizeof(half), &half, sizeof(half));
}

/* Arithmetic on a NaN would set the quiet bit, a move of bits would not: always set it. */
static inline uint32_t quieted(uint32_t bits)
{
	return (bits & ~F32_SIGN) > F32_INFINITY ? bits | F32_QUIET : bits;
}

static inline uint32_t f32_from_bf16(uint32_t b)
{
	return quieted(b << 16);
}

static inline uint32_t bf16_from_f32(uint32_t bits)
{
	/* Half of the last place, less one where the last place is even: ties go to even. A carry
	 * out of the mantissa is the next exponent, and out of the largest value infinity. */
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (bits & ~F32_SIGN) > F32_INFINITY ? quieted(bits) >> 16 : rounded;
}

static inline uint32_t f32_from_f16(uint32_t h)
{
	uint32_t sign = (h & 0x8000) << 16;
	uint32_t magnitude = h & 0x7fff;
	uint32_t bits = (magnitude << 13) + EXPONENT_STEP;

	if (magnitude < F16_MIN)
		bits = bits_of((float)(int32_t)magnitude * 0x1p-24f); /* exact */
	else if (magnitude >= F16_INFINITY)
		bits += EXPONENT_STEP;
	return quieted(sign | bits);
}

static inline uint32_t f16_from_f32(uint32_t bits, uint64_t *saturated)
{
	uint32_t sign = bits >> 16 & 0x8000;
	uint32_t magnitude = bits & ~F32_SIGN;

	if (magnitude > F32_INFINITY)
		return sign | F16_INFINITY | F16_QUIET | (magnitude >> 13 & 0x3ff);
	if (magnitude == F32_INFINITY)
		return sign | F16_INFINITY;
	if (magnitude > F32_F16_MAX) {
		*saturated += 1;
		magnitude = F32_F16_MAX;
	}
	/* The last place of 0.5 is that of a subnormal float16: the sum is rounded there. */
	if (magnitude < F32_F16_MIN)
		return sign | (bits_of(float_of(magnitude) + 0.5f) - F32_HALF);
	magnitude -= EXPONENT_STEP;
	return sign | (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13;
}

static KERNEL uint64_t f32_to_f16(void *to, const void *from, size_t n)
{
	uint64_t saturated = 0;

	for (size_t i = 0; i < n; i++)
		store16(to, i, f16_from_f32(load32(from, i), &saturated));
	return saturated;
}

static KERNEL uint64_t bf16_to_f16(void *to, const void *from, size_t n)
{
	uint64_t saturated = 0;

	for (size_t i = 0; i < n; i++)
		store16(to, i, f16_from_f32(f32_from_bf16(load16(from, i)), &saturated));
	return saturated;
}

static KERNEL uint64_t f32_to_bf16(void *to, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store16(to, i, bf16_from_f32(load32(from, i)));
	return 0;
}

static KERNEL uint64_t f16_to_bf16(void *to, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store16(to, i, bf16_from_f32(f32_from_f16(load16(from, i))));
	return 0;
}

static KERNEL uint64_t bf16_to_f32(void *to, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store32(to, i, f32_from_bf16(load16(from, i)));
	return 0;
}

static KERNEL uint64_t f16_to_f32(void *to, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store32(to, i, f32_from_f16(load16(from, i)));
	return 0;
}

const struct kernel_provider kernel_portable = {
    .name = "portable",
    .convert =
	{
	    [KERNEL_FLOAT32] =
		{
		    [KERNEL_FLOAT16] = f16_to_f32,
		    [KERNEL_BFLOAT16] = bf16_to_f32,
		},
	    [KERNEL_FLOAT16] =
		{
		    [KERNEL_FLOAT32] = f32_to_f16,
		    [KERNEL_BFLOAT16] = bf16_to_f16,
		},
	    [KERNEL_BFLOAT16] =
		{
		    [KERNEL_FLOAT32] = f32_to_bf16,
		    [KERNEL_FLOAT16] = f16_to_bf16,
		},
	},
};
