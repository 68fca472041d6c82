/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_BELOW_H
#define KVHOST_FRONT_BELOW_H

/*
 * below: does a pool get KV-RAM below it, and if not, why: in the log, and for operators in
 * core_pool.ram_note. Core thread; nothing blocks.
 */

#include "daemon/front/core.h"

/* Of a pool that is about to be made: how many pages KV-RAM can have of it, at most `most`. What
 * has left the device is known as before. */
uint32_t below_pages(const struct core_pool *p, uint64_t most);

/* And how many images of retained states. */
#define BELOW_IMAGES_MAX 65536u
uint32_t below_images(const struct core_pool *p);

/* The pool has been made: put KV-RAM below it, or not. */
void below_put(struct core_pool *p);

/* It was to have it, and has it not. */
bool below_is_missed(const struct core_pool *p);
/* Copies to it fail. */
bool below_is_degraded(const struct core_pool *p);

/* Nothing of it is there any more. */
void below_remove(struct core_pool *p);

#endif
