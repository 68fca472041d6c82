/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_SEQ_INTERNAL_H
#define KVHOST_STATE_SEQ_INTERNAL_H

/* seq_internal: what seq.c and step.c share. */

#include "daemon/state/seq.h"

int seq_reserve_table(struct seq *s, uint32_t n); /* room for n pages: 0 or -ENOMEM */
void seq_give_tail(struct seq *s);                /* no longer a user of tail_node */

#endif
