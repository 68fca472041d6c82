/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_FOOTPRINT_H
#define KVHOST_TESTS_E2E_FOOTPRINT_H

/* footprint: what a process uses, from /proc. Main thread; blocks for bounded times. */

#include <stdint.h>
#include <sys/types.h>

struct footprint {
	unsigned descriptors, maps, shared_maps; /* shared: those of memory files */
	uint64_t resident_bytes, huge_bytes;
};
struct footprint footprint_of(pid_t pid);
/* Fails the test if a process does not come back to what it used before. */
void expect_footprint(pid_t pid, const struct footprint *before);
uint64_t cpu_ns_of(pid_t pid);
uint64_t free_huge_pages(void);
uint64_t locked_bytes_of(pid_t pid);
unsigned entries_of(const char *folder, const char *prefix); /* files named so */

#endif
