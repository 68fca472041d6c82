/* SPDX-License-Identifier: Apache-2.0 */

/*
 * random: splitmix64, and the kernel's random bytes. A generator belongs to one thread;
 * random_secret may wait early in the boot of a machine, before the kernel has collected enough.
 */

#include "daemon/base/random.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/types.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

uint64_t random_next(struct random *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t random_below(struct random *r, uint64_t bound)
{
	uint64_t leftover, value;

	must(bound > 0);

	/* Values below 2^64 mod bound would make small results likelier than large ones. */
	leftover = -bound % bound;
	do {
		value = random_next(r);
	} while (value < leftover);
	return value % bound;
}

int random_secret(void *out, size_t bytes)
{
	char *at = out;

	if (failpoint(random_secret))
		return -EIO;

	while (bytes > 0) {
		ssize_t got = getrandom(at, bytes, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		must((size_t)got <= bytes);
		at += got;
		bytes -= (size_t)got;
	}
	return 0;
}
