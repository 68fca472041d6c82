/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_CONTROL_H
#define KVHOST_SHM_CONTROL_H

/*
 * control: the layout of a session's control segment: doorbells, two rings, refusal texts.
 *
 *      0  head              written by the daemon before the client sees it
 *    128  submission line   the daemon writes: consumed, need_wake
 *    256  completion line   the client writes: consumed, need_wake
 *   4096  submissions       submission_slots x 64
 *     ..  completions       completion_slots x 64
 *     ..  texts             CONTROL_TEXTS x 1024
 *
 * Both sides keep sizes and positions in private memory. What the daemon reads here, it reads by
 * copying one entry; it never follows anything that it finds.
 */

#include <stdatomic.h>
#include <stddef.h>

#include "shm/wire.h"

#define CONTROL_HEAD_BYTES 4096
#define CONTROL_TEXTS      16
#define CONTROL_TEXT_BYTES 1024

struct submission {
	_Atomic uint64_t sequence; /* position + 1, written last */
	uint16_t opcode;
	uint16_t flags;       /* SUBMISSION_* */
	uint32_t deadline_us; /* relative; 0 = the pool's default */
	uint32_t index;       /* a handle: pool, sequence or step, by opcode */
	uint32_t generation;
	uint64_t arg0;       /* by opcode */
	uint64_t in_offset;  /* a range of the window that the daemon reads */
	uint64_t out_offset; /* a range of the window that the daemon writes */
	uint32_t in_bytes;
	uint32_t out_bytes;
	uint64_t reserved; /* zero */
};

#define SUBMISSION_FLAGS 0 /* all bits reserved */

struct completion {
	_Atomic uint64_t sequence; /* position + 1, written last */
	uint64_t submission;       /* sequence of the submission that it completes */
	int32_t status;            /* 0 or enum wire_status */
	uint16_t opcode;
	uint8_t text;         /* 1 + index of the refusal text, 0 = none */
	uint8_t flags;        /* COMPLETION_* */
	uint32_t text_serial; /* of the text slot; a later one means that it was overwritten */
	uint32_t count;       /* elements written at out_offset, or wanted if they did not fit */
	uint32_t index;       /* a new handle, by opcode */
	uint32_t generation;
	uint64_t value0; /* by opcode */
	uint64_t value1;
	uint64_t reserved; /* zero */
};

#define COMPLETION_TABLE_CHANGED 1 /* read the table again: known pages are others now */

struct control_text {
	_Atomic uint32_t serial; /* odd while it is written */
	uint32_t length;
	char text[CONTROL_TEXT_BYTES - 8];
};

struct control_head {
	uint32_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t submission_slots;
	uint32_t completion_slots;
	uint64_t boot_epoch;
	uint64_t window_bytes;
	uint32_t session;
	uint32_t reserved[23];
};

/* One direction's doorbell. `consumed` tells the producer what room there is; see ring.h. */
struct control_line {
	_Atomic uint64_t consumed;
	_Atomic uint32_t need_wake;
	uint32_t reserved[29];
};

struct control {
	struct control_head head;
	struct control_line submission; /* written by the daemon alone */
	struct control_line completion; /* written by the client alone */
	uint8_t reserved[CONTROL_HEAD_BYTES - 3 * WIRE_LINE];
};

_Static_assert(sizeof(struct submission) == 64, "one cache line");
_Static_assert(sizeof(struct completion) == 64, "one cache line");
_Static_assert(sizeof(struct control_text) == CONTROL_TEXT_BYTES, "text");
_Static_assert(sizeof(struct control_head) == WIRE_LINE, "head");
_Static_assert(sizeof(struct control_line) == WIRE_LINE, "line");
_Static_assert(sizeof(struct control) == CONTROL_HEAD_BYTES, "control");
_Static_assert(offsetof(struct control, submission) == 128, "submission line");
_Static_assert(offsetof(struct control, completion) == 256, "completion line");

uint64_t control_bytes(uint32_t submission_slots, uint32_t completion_slots);

static inline struct submission *control_submissions(struct control *c)
{
	return (struct submission *)((char *)c + CONTROL_HEAD_BYTES);
}

static inline struct completion *control_completions(struct control *c, uint32_t submission_slots)
{
	return (struct completion *)(control_submissions(c) + submission_slots);
}

static inline struct control_text *control_texts(struct control *c, uint32_t submission_slots,
						 uint32_t completion_slots)
{
	return (struct control_text *)(control_completions(c, submission_slots) + completion_slots);
}

#endif
