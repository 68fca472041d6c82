/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_COPYORDER_H
#define KVHOST_TIER_COPYORDER_H

/*
 * copyorder: how to do a simultaneous assignment of pages one copy after another.
 *
 * First the straight copies in the order given: none of them overwrites what a later one reads.
 * What remains are cycles, in which every page is read once and overwritten once: save the target
 * of one copy, follow feeder[] until a copy would read what was saved. Pure; a device's thread.
 */

#include <stdint.h>

#include "daemon/tier/device.h"

struct copyorder {
	uint32_t *straight; /* [n_straight] indices of copies */
	uint32_t *cycle;    /* [n_cycles] one copy of each cycle */
	uint32_t *feeder;   /* [n] the copy that overwrites this one's source, UINT32_MAX: none */
	uint32_t n_straight;
	uint32_t n_cycles;
};

/* 0 or -ENOMEM. n > 0; linear in n; no page may be the target of two. */
int copyorder_make(const struct device_copy *copies, uint32_t n, struct copyorder *out);
void copyorder_free(struct copyorder *o);

#endif
