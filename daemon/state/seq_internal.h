/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_SEQ_INTERNAL_H
#define KVHOST_STATE_SEQ_INTERNAL_H

/* seq_internal: what seq.c, seq_branch.c, step.c and park.c share. */

#include "daemon/state/seq.h"

int seq_reserve_table(struct seq *s, uint32_t n); /* room for n pages: 0 or -ENOMEM */
void seq_give_tail(struct seq *s);                /* no longer a user of tail_node */
/* One page more is promised to it as long as its step goes on; false: it cannot be. */
bool seq_take_spare(struct seq *s);
void seq_end_spare(struct seq *s);
/* Its step keeps a page that is in what others were promised, as long as they have it: no more is
 * promised meanwhile than leaves room for it. Until seq_end_spare. */
void seq_count_unpaid(struct seq *s);
/* Of the pool and of the namespace; `n` may stand for fewer. */
void seq_add_surplus(struct pool *p, uint16_t name_space, uint64_t n);

#endif
