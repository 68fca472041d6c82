/* SPDX-License-Identifier: Apache-2.0 */

/* control: the size of a control segment. Any thread; never blocks. */

#include "shm/control.h"

uint64_t control_bytes(uint32_t submission_slots, uint32_t completion_slots)
{
	return CONTROL_HEAD_BYTES + (uint64_t)submission_slots * sizeof(struct submission) +
	       (uint64_t)completion_slots * sizeof(struct completion) +
	       (uint64_t)CONTROL_TEXTS * sizeof(struct control_text);
}
