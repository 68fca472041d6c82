/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_PAYLOAD_H
#define KVHOST_TESTS_E2E_PAYLOAD_H

/*
 * payload: some clients at once put, find, fork, cut and give up prompts; every 64-byte line of
 * every page says whose it is, and all lines that are found are compared.
 *
 * Through mapped memory and through row requests, in steps of odd sizes. Main thread; blocks until
 * all clients are done.
 */

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define PAYLOAD_CLIENTS     32 /* at most */
#define PAYLOAD_MOST_TOKENS 3584

struct payload_scene {
	const struct engine_model *model;   /* mapped */
	uint32_t least_tokens, most_tokens; /* of a prompt */
	uint32_t clients, chains, trunk_tokens;
	unsigned rounds; /* prompts of each client */
};

struct payload_sums {
	uint64_t hits, lines; /* opens that found something, lines compared */
};

/* All scenes at once. Fails the test at a wrong line, and if the daemon's sums are wrong in the
 * end.
 */
void payload_churn(const struct daemon *d, const struct payload_scene *scenes, unsigned n,
		   struct payload_sums *sums);

#endif
