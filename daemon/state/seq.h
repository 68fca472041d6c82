/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_SEQ_H
#define KVHOST_STATE_SEQ_H

/*
 * seq: a sequence of a pool: its page table, its identity as far as it is known, its open step.
 *
 * A table entry is a page: private, or the copy of a node. A sequence is a user of the deepest
 * node that its tokens are published under (`node`), and of the node whose page it reads as its
 * partial last page after a truncation (`tail_node`). What it commits is published page by page;
 * where another sequence was first, its own page stays private and what follows is published under
 * the other's node.
 *
 * A step is a transaction: begin reserves pages, commit makes a first part stand, abort leaves
 * everything as it was. A partial page is written in place by its only holder; any other holder
 * gets a copy. If the daemon ends a step of a mapped pool, its pages are quarantined until the
 * client says that it is done with them.
 *
 * Owner: the core thread; no I/O. Long walks (publishing, releasing) go in turns.
 */

#include "daemon/state/match.h"

enum step_state {
	STEP_NONE = 0,
	STEP_OPEN,
	STEP_ENDED, /* by the daemon; the client has not acknowledged it */
};

struct step {
	enum step_state state;
	bool poisoned;
	uint32_t start; /* tokens committed when it began */
	uint32_t target;
	uint32_t window_start;
	uint32_t first; /* table index of its first fresh page */
	uint32_t n_fresh;
	uint32_t replaced; /* the partial page that the first fresh one is a copy of, or NONE */
	bool lent;         /* that is a private one */
};

struct seq {
	struct pool *pool;
	struct list in_pool;
	uint16_t name_space;
	bool admitted;
	bool publishing;  /* what it commits is still published */
	uint32_t ceiling; /* pages it may ever need */
	uint32_t surplus; /* pages it keeps in use beyond that */
	bool spare;       /* one of them, for the page that its step goes on in a copy of */
	bool unpaid;      /* nobody was promised that page but others that have it as well */
	uint32_t max_tokens;
	uint32_t committed; /* tokens */

	uint32_t *table; /* pages[first_page .. first_page + n_pages) of the sequence */
	uint32_t n_pages, table_room;
	uint32_t first_page; /* pages dropped before the table */
	uint32_t table_version;
	uint32_t told_version; /* the last one that its client knows */

	uint32_t *ids; /* tokens of positions ids_base .. ids_end - 1 */
	uint32_t ids_base, ids_end, ids_room;
	struct key_image *images; /* of positions ids_base and later, ascending */
	uint32_t n_images;
	uint64_t image_end; /* where the last image of those forgotten ends */

	uint32_t node;      /* deepest node published under; NODE_NONE: not published at all */
	uint32_t published; /* pages up to that node */
	uint32_t tail_node; /* NODE_NONE: the partial page is private, or there is none */
	uint64_t tick;      /* of the open, 0: take a new one */
	uint32_t run;       /* retain: pages that it made */
	bool interactive;   /* and how they rank in KV-RAM */
	uint32_t lane;      /* of a hybrid pool; LANE_NONE before it is admitted */
	struct image_name follows; /* the state that its next capture follows */
	uint8_t turn;              /* of its conversation, as habits.h counts them */
	uint32_t leaving;          /* node that is being released; NODE_NONE: none */
	uint32_t drop_before;      /* position: pages wholly before it go once published */
	/* park.h: of a sequence that has made room */
	struct pool_rank rank;
	struct list in_rank;
	uint32_t busy;             /* requests that work on its pages */
	uint32_t away;             /* entries at the end of the table whose pages are not here */
	uint32_t asked;            /* entries before this one are here or on their way */
	uint32_t stranded;         /* entries from there on whose copy down has failed */
	struct seq_parked *parked; /* [n_pages] if any are away */
	bool lost;                 /* it can only be closed */
	bool discarded;            /* since another one needed the room */
	struct step step;
};

/* A new sequence, not admitted, in the pool's list. 0, -ENOMEM. max_tokens: 1 .. the pool's. */
int seq_new(struct pool *p, uint16_t name_space, uint32_t max_tokens, struct seq **out);

/* Count its ceiling. 0, WAIT, QUOTA or NEVER. */
int seq_admit(struct seq *s);
/* From now on it makes room for those that rank above it. */
void seq_set_rank(struct seq *s, struct pool_rank rank);

/* Of a hybrid pool: the slot with the state, and the one that an open step writes. */
static inline uint32_t seq_source_slot(const struct seq *s)
{
	return 2 * s->lane + s->pool->images.lane[s->lane].current;
}

static inline uint32_t seq_target_slot(const struct seq *s)
{
	return seq_source_slot(s) ^ (protection(images_are_double_buffered) ? 1 : 0);
}

/*
 * Take over what an open matched: the walk is done. ids: the tokens of the whole prompt, n_tokens
 * of them, in a malloc'ed buffer of which the sequence becomes the owner; images likewise. On
 * -ENOMEM nothing was taken over but the match's holds, which go with seq_close_turn.
 */
int seq_take_match(struct seq *s, struct match *m, uint32_t *ids, struct key_image *images);

/* Pages wanted by a step to `target`, and what stands in its way: 0, RANGE, BUSY or STEP. */
int step_wants(const struct seq *s, uint32_t target, uint32_t window_start, uint32_t *n);
/* Reserve them: 0, WAIT (none there yet, some are coming if anything can be given up), MORE (call
 * again), or -ENOMEM. step_wants was 0. On 0: step.replaced != PAGE_NONE: the caller copies that
 * page to table[step.first - first_page] before anybody sees the table. */
int step_begin(struct seq *s, uint32_t target, uint32_t window_start, uint32_t n);

struct step_receipt {
	const uint64_t *pages; /* generation << 32 | index: written, in table order */
	uint32_t n_pages;
	uint32_t tokens;     /* of the step, that are committed */
	const uint32_t *ids; /* of committed positions that are not known yet: all or none */
	uint32_t n_ids;
	const struct key_image *images; /* that begin in them, ascending */
	uint32_t n_images;
};

/* 0, STALE (the pages are not the written ones), RANGE, STEP, or -ENOMEM: the step is as before
 * then. On 0 the tokens stand; seq_publish_turn has work to do. */
int step_commit(struct seq *s, const struct step_receipt *r);
/* Everything as before begin. Also acknowledges a step that the daemon ended. */
void step_abort(struct seq *s);
/* The daemon ends it. quarantine: a client may still write to its pages; they stay in the table,
 * and out of everybody's hands, until step_abort or the close. Else it is an abort. */
void step_end(struct seq *s, bool quarantine);

/* Publish what is committed and not published. 0 when done, MORE. */
int seq_publish_turn(struct seq *s, uint32_t *budget);

/* The table index (in the sequence) of the page of a position. */
static inline uint32_t seq_page_index(const struct seq *s, uint32_t position)
{
	return position / s->pool->limits.page_tokens;
}

static inline uint32_t seq_page(const struct seq *s, uint32_t index)
{
	return s->table[index - s->first_page];
}

/* A sequence that will be a fork of `parent`: its ceiling, nothing else yet. 0, RANGE or -ENOMEM.
 */
int seq_fork_new(const struct seq *parent, uint32_t max_tokens, struct seq **out);
/*
 * It gets the committed state of `parent`, which has made no room and has not gone on since. 0 or
 * -ENOMEM. If the parent's open step writes its partial page in place, or that is a published one
 * (seq_fork_needs_page), *copy_from is that page, which the fork shares until seq_take_page; else
 * PAGE_NONE.
 */
int seq_fork(const struct seq *parent, struct seq *child, uint32_t *copy_from);
bool seq_fork_needs_page(const struct seq *parent);
/* Once admitted: a page of its own, to which the caller copies the committed rows of the shared
 * one before anybody sees the table. 0; WAIT: no clean page; MORE. */
int seq_take_page(struct seq *s);

/* Forget from `tokens` on: 0 (then seq_release_turn has work), BUSY, RANGE, -ENOMEM. */
int seq_truncate(struct seq *s, uint32_t tokens);
int seq_release_turn(struct seq *s, uint32_t *budget); /* 0 when done, MORE */

/* The pages that an ended step may still write to leave the sequence, which can only be closed
 * then, to be acquitted by the caller later: how many there are (room NULL), or moved to room[]. */
uint32_t seq_move_quarantine(struct seq *s, uint32_t *room);

/* They leave it and stay in quarantine for good: for want of memory to remember them by. */
void seq_lose_quarantine(struct seq *s);
/* Nobody writes to a page any more that was moved so. */
void seq_end_quarantine(struct pool *p, uint32_t page);

/* Close: 0 when the sequence is gone (*s = NULL), MORE. An open step must have ended; pages that
 * are still in quarantine are acquitted. */
int seq_close_turn(struct seq **s, uint32_t *budget);

uint64_t seq_heap_bytes(const struct seq *s);
const char *seq_check(const struct seq *s);

#endif
