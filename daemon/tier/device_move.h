/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_DEVICE_MOVE_H
#define KVHOST_TIER_DEVICE_MOVE_H

/* device_move: DEVICE_MOVE on host memory, for device_cpu. Runs on a worker thread; may block. */

#include "daemon/tier/device.h"

/* 0, -EFAULT (the window is gone), -EIO (the pool is). */
int device_move_run(struct device_job *j);

/* Copy past the cache, for what is large and not read soon. No alignment is needed. */
void stream_copy(void *to, const void *from, size_t bytes);

#endif
