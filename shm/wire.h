/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_WIRE_H
#define KVHOST_SHM_WIRE_H

/*
 * wire: numbers that both processes agree on: versions, limits, operations, results.
 *
 * The major version must be equal on both sides; a higher minor version may use reserved words
 * that the lower one leaves zero. Everything is little-endian, widths are fixed, and nothing here
 * is a pointer. A change to any value or layout in shm/ shows in tests/golden/layout.txt.
 */

#include <stdint.h>

#define WIRE_MAGIC                0x4b564853u /* "SHVK" in memory */
#define WIRE_MAJOR                1
#define WIRE_MINOR                0
#define WIRE_NAME_MAX             32   /* bytes of a name with its terminating zero */
#define WIRE_TEXT_MAX             2048 /* bytes of text behind a message head */
#define WIRE_LINE                 128  /* what one writer owns lies this far from another's */
#define WIRE_RESERVED_COMPLETIONS 4    /* completion slots kept for cancel and close */

enum wire_opcode {
#define OPCODE(name, value, text) WIRE_##name = (value),
#include "shm/opcodes.def"
#undef OPCODE
};

/* A result: 0 or one of these. libkvhost passes them on unchanged as its own error codes. */
enum wire_status {
#define ERROR_CODE(name, value, text) WIRE_##name = (value),
#include "shm/errors.def"
#undef ERROR_CODE
};

const char *wire_opcode_name(uint32_t opcode); /* "?" for an unknown one; never NULL */
const char *wire_status_text(int32_t status);  /* one sentence; never NULL */

/* Why a session ended, in `bye` and in the counters. */
enum wire_bye {
	WIRE_BYE_CLIENT = 1, /* the client said so */
	WIRE_BYE_DEATH,      /* hang-up or exit of the client */
	WIRE_BYE_VIOLATION,  /* a broken rule of the protocol */
	WIRE_BYE_FAULT,      /* the memory it shares is gone under the daemon's hands */
	WIRE_BYE_STALLED,    /* its completion ring or socket stayed full */
	WIRE_BYE_SHUTDOWN,   /* the daemon stops */
	WIRE_BYE_QUOTA,      /* more memory than its namespace may use */
	WIRE_BYE_COUNT,
};

#endif
