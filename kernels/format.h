/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_KERNELS_FORMAT_H
#define KVHOST_KERNELS_FORMAT_H

/*
 * format: the names and row sizes of KV storage formats, and conversion of rows.
 *
 * Arithmetic: IEEE binary32, nearest even. To float16, finite values beyond 65504 saturate to it;
 * infinities and NaN stay. bfloat16 keeps subnormals. A NaN stays a NaN (quiet, sign and upper
 * payload bits kept). Between equal formats bytes are copied. The same input gives the same bytes
 * on every machine, whatever floating-point modes the caller has set.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kernel_format { /* equal to enum payload_format on the wire */
		     KERNEL_FLOAT32 = 1,
		     KERNEL_FLOAT16,
		     KERNEL_BFLOAT16,
		     KERNEL_FORMAT_COUNT,
};

enum kernel_format_outcome {
	KERNEL_FORMAT_UNKNOWN = 1,
	KERNEL_FORMAT_REFUSED, /* known to the field, not served: int8, q4, int4 */
};

/* By name or alias (float32 fp32 f32, float16 fp16 f16, bfloat16 bf16). 0 or an outcome. */
int kernel_format_find(const char *name, enum kernel_format *out);
bool kernel_format_is_valid(uint32_t format);
const char *kernel_format_name(enum kernel_format f);
const char *kernel_format_names(void); /* all of them, "float32, float16, bfloat16" */
size_t kernel_format_bytes(enum kernel_format f, size_t elements);

/*
 * Convert n consecutive elements. Source and destination may be unaligned, never overlap.
 * Returns how many finite values saturated.
 */
uint64_t kernel_convert(enum kernel_format to_format, void *to, enum kernel_format from_format,
			const void *from, size_t n);

#endif
