/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format: names and sizes of the formats, and the public way into their conversion. Pure functions
 * without state: any thread, nothing blocks.
 */

#include "kernels/format.h"

#include <assert.h>
#include <string.h>

#include "kernels/dispatch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ALIASES_MAX 2

static const struct format_row {
	const char *name;
	const char *alias[ALIASES_MAX];
	size_t element_bytes;
} formats[KERNEL_FORMAT_COUNT] = {
    [KERNEL_FLOAT32] = {"float32", {"fp32", "f32"}, 4},
    [KERNEL_FLOAT16] = {"float16", {"fp16", "f16"}, 2},
    [KERNEL_BFLOAT16] = {"bfloat16", {"bf16", NULL}, 2},
};

static const char *const refused[] = {"int8", "q4", "int4"};

static bool row_has_name(const struct format_row *row, const char *name)
{
	if (strcmp(row->name, name) == 0)
		return true;
	for (size_t i = 0; i < ALIASES_MAX; i++) {
		if (row->alias[i] && strcmp(row->alias[i], name) == 0)
			return true;
	}
	return false;
}

int kernel_format_find(const char *name, enum kernel_format *out)
{
	assert(name);
	for (uint32_t f = 1; f < KERNEL_FORMAT_COUNT; f++) {
		if (row_has_name(&formats[f], name)) {
			*out = (enum kernel_format)f;
			return 0;
		}
	}
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		if (strcmp(refused[i], name) == 0)
			return KERNEL_FORMAT_REFUSED;
	}
	return KERNEL_FORMAT_UNKNOWN;
}

bool kernel_format_is_valid(uint32_t format)
{
	return format > 0 && format < KERNEL_FORMAT_COUNT;
}

const char *kernel_format_name(enum kernel_format f)
{
	assert(kernel_format_is_valid(f));
	return formats[f].name;
}

const char *kernel_format_names(void)
{
	return "float32, float16, bfloat16";
}

size_t kernel_format_bytes(enum kernel_format f, size_t elements)
{
	assert(kernel_format_is_valid(f));
	assert(elements <= SIZE_MAX / formats[f].element_bytes);
	return elements * formats[f].element_bytes;
}

/*
 * The arithmetic's modes are the thread's, and libraries change them: flush to zero, another
 * rounding. Every conversion runs in the default modes and leaves the caller's as they were.
 */
#if defined(__x86_64__)

#define MXCSR_DEFAULT 0x1f80u

static uint64_t modes_set_default(void)
{
	uint64_t before = _mm_getcsr();

	_mm_setcsr(MXCSR_DEFAULT);
	return before;
}

static void modes_restore(uint64_t before)
{
	_mm_setcsr((unsigned int)before);
}

#elif defined(__aarch64__)

static uint64_t modes_set_default(void)
{
	uint64_t before;

	__asm__ volatile("mrs %0, fpcr" : "=r"(before) : : "memory");
	__asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
	return before;
}

static void modes_restore(uint64_t before)
{
	__asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
}

#else
#error "say here how this machine's floating-point modes are set"
#endif

uint64_t kernel_convert(enum kernel_format to_format, void *to, enum kernel_format from_format,
			const void *from, size_t n)
{
	uint64_t modes, saturated;

	assert(kernel_format_is_valid(to_format));
	assert(kernel_format_is_valid(from_format));

	if (to_format == from_format) {
		if (n)
			memcpy(to, from, kernel_format_bytes(to_format, n));
		return 0;
	}

	modes = modes_set_default();
	saturated = kernel_provider()->convert[to_format][from_format](to, from, n);
	modes_restore(modes);
	return saturated;
}
