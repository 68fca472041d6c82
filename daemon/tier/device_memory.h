/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_DEVICE_MEMORY_H
#define KVHOST_TIER_DEVICE_MEMORY_H

/* device_memory: MAKE and FREE on host memory, for device_cpu. */

#include "daemon/tier/device.h"

/* MAKE, in as many jobs of this executor as it takes; then the job's done. Core thread. */
void device_memory_submit(struct executor *work, struct device_job *j);
/* One of these jobs: a part of the memory, at least; all of it once m->segment is there. 0 or
 * -errno: then there is nothing left of it. Work thread; blocks while memory arrives. */
int device_memory_make(struct device_job *j);

#endif
