/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_OPERATOR_H
#define KVHOST_TESTS_E2E_OPERATOR_H

/* operator: the programs that an operator has, against the daemon of one test. Main thread. */

#include <jansson.h>

#include "tests/e2e/daemon.h"

#define OPERATOR_OUTPUT_BYTES 262144

extern char operator_output[OPERATOR_OUTPUT_BYTES]; /* of the last program, or a log */

/* kvctl with at most four words, of this daemon: its exit status. */
int kvctl(const struct daemon *d, const char *a, const char *b, const char *c, const char *e);
/* kvhostd --check-config with one variable: its exit status. */
int check_config(const char *variable);
void read_log(const struct daemon *d);

bool says(const char *text); /* the output has it; else it is shown */
unsigned count_of(const char *text);

/* A number at a path of keys and indices: "pools.0.moves.spills". */
json_int_t number_at(const json_t *root, const char *path);
json_int_t said_number(const char *path); /* of the output */

/* Of the output of kvctl doctor --json: what it says of a check, "" if nothing: "state", "is",
 * "needed", "command". */
const char *diagnosis(const char *check, const char *key);

#endif
