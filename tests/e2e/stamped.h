/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_STAMPED_H
#define KVHOST_TESTS_E2E_STAMPED_H

/*
 * stamped: prompts whose bytes are known: every word of a row follows from the tokens up to it and
 * from its layer, side, head and place, so that no row can pass for another.
 *
 * Where the engine has the memory of the pages they are written and read there, else by request,
 * in the pool's own format. One thread; what should not happen fails the test.
 */

#include <stdbool.h>

#include "tests/e2e/engine.h"

/* Open, look at all that was found, compute the rest, look at all again, close. */
struct kvhost_open_result stamped_prompt(struct engine *e, const struct kvhost_prompt *prompt);
struct kvhost_open_result stamped_serve(struct engine *e, const uint32_t *tokens, uint32_t n);
/* Write and commit in one step what the sequence lacks up to `to`. */
void stamped_fill(struct engine *e, struct kvhost_sequence *seq, const uint32_t *tokens,
		  uint32_t to);
/* Do the first n tokens have their bytes? */
bool stamped_is(struct engine *e, struct kvhost_sequence *seq, const uint32_t *tokens, uint32_t n);

#endif
