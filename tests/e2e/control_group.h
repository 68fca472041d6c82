/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_CONTROL_GROUP_H
#define KVHOST_TESTS_E2E_CONTROL_GROUP_H

/* control_group: one below that of this process, with a limit of memory. Main thread. */

#include <stdbool.h>
#include <stdint.h>

struct control_group {
	char processes[512]; /* the file that takes them */
	char limit[512];     /* and that of the limit */
	char folder[512];    /* "": there is none */
};

/* false: here none can be made. */
bool control_group_make(struct control_group *g, uint64_t limit_bytes);
void control_group_limit(const struct control_group *g, uint64_t limit_bytes);
/* After its processes have ended; also of one that was not made. */
void control_group_remove(struct control_group *g);

#endif
