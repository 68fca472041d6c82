/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_OPERATOR_H
#define KVHOST_TESTS_E2E_OPERATOR_H

/* operator: the programs that an operator has, against the daemon of one test. Main thread. */

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

#endif
