/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_ADMIN_H
#define KVHOST_FRONT_ADMIN_H

/*
 * admin: what the files of OP_ADMIN share: op_admin answers questions, with tiers and order for one
 * of them; op_steer does what an operator wants done. Core thread; nothing blocks.
 */

#include <jansson.h>

#include "daemon/front/request.h"

/* Sends the text, which it frees; NULL: there was no memory for it. */
enum run_result admin_answer(struct request *r, char *text);

/* A pool's order of giving up; whole: with what it has learned. */
json_t *order_describe(const struct core_pool *p, bool whole);

/* The tiers, and every pool in them: "" = all, PAYLOAD_ADMIN_WHOLE = all with what their orders
 * have learned, else the one of this name with that; NULL: there is none. */
json_t *tiers_describe(const struct core *c, const char *which);
json_t *tiers_describe_ram(const struct core *c);
json_t *tiers_describe_staging(const struct core *c);

enum run_result steer_pool_drop(struct request *r);
enum run_result steer_drain(struct request *r, bool drained);
enum run_result steer_drop(struct request *r, uint32_t *budget);

#endif
