/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_DAEMON_MEMORY_H
#define KVHOST_DAEMON_MEMORY_H

/*
 * memory: what the daemon takes of the host at its start: staging, then KV-RAM. What was configured
 * must be there; of the defaults what the host does not have is left out, and a note says why. If
 * only one of two defaults fits, staging stays.
 *
 * Owner: the core thread.
 */

#include "daemon/base/log.h"
#include "daemon/config.h"
#include "daemon/tier/arena.h"
#include "daemon/tier/arena_staging.h"

#define MEMORY_NOTE_BYTES (ARENA_NOTE_BYTES + 32)

struct memory {
	struct staging *staging; /* NULL: none, and staging_note says why */
	struct arena *arena;     /* of KV-RAM; NULL: none, and ram_note says why */
	char staging_note[MEMORY_NOTE_BYTES], ram_note[MEMORY_NOTE_BYTES];
	struct log *log;
	void (*ram_arrived)(void *context);
	void *context;
};

/* 0; or -errno, and what is configured that the host does not have was written to standard error.
 * ram_arrived: on the core thread, when more of KV-RAM is there, or no more will come. The
 * configuration, the executor and the log outlive it. */
int memory_start(struct memory *m, const struct config *config, int numa_node,
		 struct executor *work, struct log *log, void (*ram_arrived)(void *context),
		 void *context);
/* Asks for no more. true: nothing is on its way; until then, reap and ask again. */
bool memory_stop(struct memory *m);
/* After memory_stop has said true; nothing else uses it. A zeroed one is fine. */
void memory_free(struct memory *m);

#endif
