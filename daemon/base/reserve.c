/* SPDX-License-Identifier: Apache-2.0 */
/* reserve: see reserve.h. Any thread; giving back memory may take a while. */
#include "daemon/base/reserve.h"

#include <stddef.h>
#include <sys/mman.h>

#include "daemon/base/panic.h"

#define HUGE_BYTES (2ull << 20)

void *reserve_take(uint64_t bytes)
{
	void *m;

	must(bytes > 0 && bytes <= UINT64_MAX - RESERVE_GRAIN);
	m = mmap(NULL, reserve_bytes(bytes), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED)
		return NULL;
	if (bytes >= HUGE_BYTES)
		(void)madvise(m, reserve_bytes(bytes), MADV_HUGEPAGE);
	return m;
}

void reserve_give(void *memory, uint64_t bytes)
{
	if (memory)
		must(munmap(memory, reserve_bytes(bytes)) == 0);
}
