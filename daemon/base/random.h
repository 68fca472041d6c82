/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_RANDOM_H
#define KVHOST_BASE_RANDOM_H

/* random: a seeded generator (splitmix64), and bytes from the kernel for secrets and nonces. */

#include <stddef.h>
#include <stdint.h>

struct random {
	uint64_t state;
};

uint64_t random_next(struct random *r);
uint64_t random_below(struct random *r, uint64_t bound); /* 0 .. bound - 1; bound > 0 */
int random_secret(void *out, size_t bytes);              /* 0 or -errno */

#endif
