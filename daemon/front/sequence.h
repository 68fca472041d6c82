/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_SEQUENCE_H
#define KVHOST_FRONT_SEQUENCE_H

/*
 * sequence: a client's handle to a sequence: whose it is, its requests in their order, its age,
 * and what becomes of it when nobody uses it or its session ends. Owner: the core thread.
 */

#include "daemon/front/core.h"

#define STEP_HANDLE                                                                                \
	0x80000000u /* in the index of a step's handle, so that none equals a sequence's */

struct sequence {
	struct core_pool *pool;
	struct session *session; /* NULL: it is being closed for a session that ended */
	struct seq *seq;
	struct slot_handle handle;
	struct slot_handle step; /* generation 0: none */
	struct list in_session;  /* or in core->closing */
	struct list in_idle;
	struct list in_steps;
	struct list queue; /* requests, in the order submitted */
	uint64_t used_ns;
	uint64_t step_ns;
	uint64_t charged;              /* heap bytes */
	uint32_t system_end, user_end; /* offsets that the client named at open */
	bool interactive;
	bool closing;
	uint64_t opened_ns; /* for the line at its end; a fork has had no prompt */
	uint32_t prompt_tokens, cached_tokens, miss, tier;
	uint64_t restore_ns;
};

/* Takes seq on success. 0, SLOTS_FULL or -ENOMEM. A sequence whose seq is NULL has expired. */
int sequence_new(struct session *s, struct core_pool *p, struct seq *seq, bool interactive,
		 struct sequence **out);
struct sequence *sequence_find(struct session *s, uint32_t index, uint32_t generation);
struct sequence *sequence_find_step(struct session *s, uint32_t index, uint32_t generation);
void sequence_touch(struct sequence *q);    /* it was used now */
int sequence_open_step(struct sequence *q); /* gives it a handle: 0 or -ENOMEM */
void sequence_forget_step(struct sequence *q);
/* Its session is done with it: its requests are over, the walk goes on by itself. */
void sequence_abandon(struct sequence *q);
bool sequence_close_turn(struct sequence *q, uint32_t *budget); /* true: gone, freed */
void sequences_expire(struct core_pool *p);                     /* step_ttl, sequence_idle_ttl */
void quarantine_end(struct core *c, struct session *s);         /* the process has exited */
/* The pool is dropped: its pages in quarantine are no more. */
void quarantine_forget(struct core_pool *p);
int charge_sequence(struct sequence *q); /* as large as it is now: 0 or -ENOMEM */
/* A line at debug level about a request that is over. */
void sequence_tell(const struct sequence *q, const char *how);

#endif
