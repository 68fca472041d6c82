/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_FUZZ_WORLD_H
#define KVHOST_TESTS_FUZZ_WORLD_H

/*
 * fuzz_world: a whole core in this thread: heap memory for the sessions, workers that work when
 * they are told to, a clock that stands still, no sockets. A finding is an abort.
 */

#include "daemon/front/session.h"

#define FUZZ_CLIENTS      2
#define FUZZ_SLOTS        32
#define FUZZ_SLICE        1024u /* of the window: where the n-th submission's payload lies */
#define FUZZ_WINDOW_BYTES (2 * FUZZ_SLOTS * FUZZ_SLICE)
#define FUZZ_HANDLES      8

struct fuzz_worker {
	struct executor executor; /* first */
	struct list jobs;
	bool works;
};

struct fuzz_client {
	struct fuzz_world *world;
	struct session *session; /* NULL: none */
	struct control *control;
	char *window;
	struct ring_producer submit;
	struct ring_consumer reap;
	uint32_t attached; /* in a row, by this place */
	bool live, lazy;
	struct payload_handle pool;
	struct payload_handle sequences[FUZZ_HANDLES], steps[FUZZ_HANDLES];
	uint32_t n_sequences, n_steps;
};

struct fuzz_world {
	struct config config;
	struct statsfile stats;
	struct fuzz_worker copies, work;
	struct device *device;
	struct core core;
	uint64_t now_ns;
	struct fuzz_client clients[FUZZ_CLIENTS];
	uint32_t memories; /* of sessions, not given back yet */
};

void fuzz_world_start(struct fuzz_world *w);
/* Everything ends; all must have come back. */
void fuzz_world_stop(struct fuzz_world *w);
void fuzz_world_turn(struct fuzz_world *w, unsigned turns);
void fuzz_world_check(struct fuzz_world *w, bool everything);
/* Its session, a new one if it had ended; NULL: it has had enough of them. */
struct session *fuzz_client_session(struct fuzz_client *c);

#endif
