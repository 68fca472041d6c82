/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PAGE_H
#define KVHOST_STATE_PAGE_H

/*
 * page: the page records of a pool's device memory: which are free, whose the others are.
 *
 * A page is handed out clean (it reads as zeros) and comes back dirty; somebody else zeroes dirty
 * pages (pages_take_dirty, pages_clean). What is in a page, and who may see it, is said by its
 * state; a private page may be shared by the tables of several sequences (references), and jobs
 * in flight pin the pages they touch: a page given back while pinned drains first.
 * The generation of a page changes whenever it is handed out or taken back (odd: in use), so that
 * a client's old handle names nothing.
 *
 * Owner: the core thread. Every call is O(1). Memory: 16 bytes a page; their address space is
 * taken at init.
 */

#include <stdbool.h>
#include <stdint.h>

#define PAGE_NONE       UINT32_MAX
#define PAGE_NAMESPACES 64
#define PAGE_LENT       4095u

enum page_state {
	PAGE_CLEAN = 0,
	PAGE_DIRTY,
	PAGE_ZEROING,     /* a job fills it with zeros */
	PAGE_PRIVATE,     /* in the tables of sequences only */
	PAGE_INDEXED,     /* the device copy of a node */
	PAGE_DRAINING,    /* given back, a job still touches it */
	PAGE_QUARANTINED, /* a client may still write to it */
	PAGE_STATES,
};

struct page {
	uint32_t generation;
	union {
		uint32_t next;                 /* free lists; of an indexed page: its node */
		struct {                       /* of a private one */
			uint32_t lent : 12;    /* references of steps that go on in a copy */
			uint32_t keep : 7;     /* rows that these may come back to */
			uint32_t holders : 13; /* park_room's, park_discard's */
		};
	};
	uint32_t references; /* tables that hold a private page */
	uint32_t pins : 22;
	uint32_t state : 4;
	uint32_t name_space : 6; /* that a private or quarantined page is counted for */
};

struct pages_share { /* what one namespace has */
	uint32_t private;
	uint32_t quarantined;
};

struct pages {
	struct page *page; /* [capacity] */
	uint32_t capacity;
	uint32_t fresh;       /* pages from here on were never handed out: clean, in no list */
	uint32_t first_clean; /* stacks */
	uint32_t first_dirty;
	uint32_t count[PAGE_STATES];
	uint64_t refused_references; /* references taken back at 0 */
	struct pages_share shares[PAGE_NAMESPACES];
};

enum page_outcome {
	PAGE_EMPTY = 1, /* no page of the kind asked for */
};

int pages_init(struct pages *p, uint32_t capacity); /* 0 or -ENOMEM; capacity > 0 */
void pages_deinit(struct pages *p);
uint64_t pages_bytes_for(uint64_t capacity); /* address space that it takes */

int pages_take(struct pages *p, uint32_t *page); /* clean -> private, 1 reference; or EMPTY */
/* The same for who overwrites all of it: what it reads as is anything, a dirty one will do. */
int pages_take_any(struct pages *p, uint32_t *page);
/* Count a private page for this namespace; it was counted for namespace 0. */
void pages_assign(struct pages *p, uint32_t page, uint16_t name_space);
/* One more or one less table holds a private page; the last one gives it back. */
void pages_hold(struct pages *p, uint32_t page);
void pages_drop(struct pages *p, uint32_t page);
/* The table that has a private page goes on in a copy of its first rows, and keeps it until it is
 * known whether that stands; at most PAGE_LENT of them. */
void pages_lend(struct pages *p, uint32_t page, uint32_t rows);
void pages_unlend(struct pages *p, uint32_t page);

void pages_index(struct pages *p, uint32_t page, uint32_t node); /* private, 1 reference */
void pages_unindex(struct pages *p, uint32_t page);              /* indexed -> given back */
/* indexed -> private, 1 reference: the same page to who has it in its table */
void pages_own(struct pages *p, uint32_t page, uint16_t name_space);

void pages_quarantine(struct pages *p, uint32_t page); /* private, 1 reference */
void pages_acquit(struct pages *p, uint32_t page);     /* quarantined -> given back */

void pages_pin(struct pages *p, uint32_t page); /* in use or draining */
void pages_unpin(struct pages *p, uint32_t page);

int pages_take_dirty(struct pages *p, uint32_t *page);         /* dirty -> zeroing; or EMPTY */
void pages_clean(struct pages *p, uint32_t page, bool zeroed); /* else it is dirty again */

/* Does a client's handle name a page in use now? */
bool pages_is_current(const struct pages *p, uint32_t index, uint32_t generation);

static inline uint32_t pages_free(const struct pages *p)
{
	return p->count[PAGE_CLEAN] + p->count[PAGE_DIRTY] + p->count[PAGE_ZEROING];
}

/* Walks everything: counts, lists, generations. NULL, or what does not hold. For tests, check. */
const char *pages_check(const struct pages *p);

#endif
