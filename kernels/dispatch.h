/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_KERNELS_DISPATCH_H
#define KVHOST_KERNELS_DISPATCH_H

/*
 * dispatch: which provider's functions run on this machine. Inside kernels/ only.
 *
 * A provider's functions run in the default floating-point modes; the public entry points see to
 * it. All providers give the same bytes.
 */

#include <stddef.h>
#include <stdint.h>

#include "kernels/format.h"

/* Converts n elements, neither side aligned; how many finite values saturated. */
typedef uint64_t kernel_convert_function(void *to, const void *from, size_t n);

struct kernel_provider {
	const char *name;
	/* [to][from]; NULL where both are the same. */
	kernel_convert_function *convert[KERNEL_FORMAT_COUNT][KERNEL_FORMAT_COUNT];
};

extern const struct kernel_provider kernel_portable; /* complete, any machine */

const struct kernel_provider *kernel_provider(void);

#endif
