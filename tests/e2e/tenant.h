/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_TENANT_H
#define KVHOST_TESTS_E2E_TENANT_H

/*
 * tenant: a client under a user id of its own: this test program, run again with another user.
 *
 * What it does is named by a word (tenant.c lists them), what it saw it writes to its standard
 * output: every completion whole, every byte of every answer, every text. Both sides block for
 * bounded times. Needs root to become somebody else.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TENANT_SAID_BYTES 262144

struct tenant {
	uint32_t uid;
	uint32_t group;          /* a supplementary one; 0: none */
	const char *environment; /* one NAME=VALUE for it; NULL: none */
	pid_t pid;
	int in, out; /* its standard input and output */
	char said[TENANT_SAID_BYTES];
};

/* The side of the client: true if the program was called as one; *status is its exit code. */
bool tenant_main(int argc, char **argv, int *status);

/* The side of the test. */
void tenant_begin(struct tenant *t, const char *socket, const char *word, const char *argument);
/* What it has said up to the end of a line. */
void tenant_await_line(struct tenant *t);
/* It is told that it may end; its exit code, and what it said, terminated. */
int tenant_end(struct tenant *t);
/* All of that at once; it must end well. What it said is t->said. */
void tenant_run(struct tenant *t, const char *socket, const char *word, const char *argument);

#endif
