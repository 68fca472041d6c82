/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_FENCE_H
#define KVHOST_SHM_FENCE_H

/*
 * fence: the memory fences of shm/, in one place.
 *
 * The thread sanitiser cannot model a fence, and gcc says so at each. No plain access is ordered
 * by a fence alone here: what fences order are atomics, so nothing is missed by that.
 * Any thread; never blocks.
 */

#include <stdatomic.h>

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif

static inline void fence_full(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

static inline void fence_acquire(void)
{
	atomic_thread_fence(memory_order_acquire);
}

static inline void fence_release(void)
{
	atomic_thread_fence(memory_order_release);
}

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#pragma GCC diagnostic pop
#endif

/* What was copied to `private_copy` stays copied: the compiler may not read the source again. */
static inline void fence_copied(const void *private_copy)
{
	__asm__ volatile("" : : "r"(private_copy) : "memory");
}

#endif
