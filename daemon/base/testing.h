/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_TESTING_H
#define KVHOST_BASE_TESTING_H

/*
 * testing: failpoints and protection switches, which exist only in the test library.
 *
 * failpoint(name): true if a test armed that point for this pass; the code then does what it would
 * do if the operation at that place had failed. protection(name): true, unless a test switched
 * that protection off to show that something notices. In production both are constants.
 * Names: tests/failpoints.def, tests/protections.def. Owner: any thread; set only while quiet.
 */

#include <stdbool.h>

#ifdef KVHOST_TESTING

enum failpoint_name {
#define FAILPOINT(name, text) FAILPOINT_##name,
#include "daemon/base/failpoints.def"
#undef FAILPOINT
	FAILPOINT_COUNT
};

enum protection_name {
#define PROTECTION(name, kind, text) PROTECTION_##name,
#include "tests/protections.def"
#undef PROTECTION
	PROTECTION_COUNT
};

bool failpoint_hit(enum failpoint_name name);
void failpoint_arm(enum failpoint_name name, unsigned skip, unsigned times);
void failpoint_clear(void);
unsigned failpoint_passes(enum failpoint_name name); /* since failpoint_clear */
const char *failpoint_text(enum failpoint_name name);

extern bool protection_off[PROTECTION_COUNT];

#define failpoint(name)  failpoint_hit(FAILPOINT_##name)
#define protection(name) (!protection_off[PROTECTION_##name])

#else

#define failpoint(name)  false
#define protection(name) true

#endif

#endif
