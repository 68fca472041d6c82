/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PLAN_KEYS_H
#define KVHOST_STATE_PLAN_KEYS_H

/*
 * plan_keys: which keys of the configuration would make a plan fit that does not. Each is tried
 * as far as it goes. Pure functions; any thread.
 */

#include <stdbool.h>
#include <stddef.h>

#include "daemon/state/plan.h"

typedef bool plan_judge(const struct plan_wish *wish);

/* "; KEY, KEY or KEY would change it", or the first two that do so together, or that none does. */
void plan_say_keys(const struct plan_wish *wish, plan_judge *fits, char *out, size_t bytes);

#endif
