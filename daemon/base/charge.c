/* SPDX-License-Identifier: Apache-2.0 */

/* charge: giving back what was taken. Owner: the core thread; nothing blocks. */

#include "daemon/base/charge.h"

#include "daemon/base/panic.h"

void charge_give(struct charge *c, uint64_t bytes)
{
	for (struct charge *at = c; at; at = at->parent) {
		must(at->used >= bytes);
		at->used -= bytes;
	}
}
