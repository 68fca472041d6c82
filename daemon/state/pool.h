/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_POOL_H
#define KVHOST_STATE_POOL_H

/*
 * pool: the pages, nodes and ranking of one pool as one thing, with its sums and its limits.
 *
 * What each page is for: free; private to sequences; indexed and live (a sequence needs it, now);
 * indexed and retained (it may be given up). The prefix budget counts indexed pages, in use or
 * not; trimming happens when a reference is dropped and skips pages in use. In the learned order a
 * newcomer competes with what is there: nothing is given up for it before it is released itself,
 * so until then what is retained keeps within the budget, and what is in use comes on top.
 * Admission is by ceilings: the pages that every admitted sequence may ever need fit the pool
 * together, so a step can always be served by giving up retained pages. With live_in_ram they fit
 * it with KV-RAM: others make room (park.h). With overcommit only each by itself fits.
 *
 * Owner: the core thread; no I/O. Calls that walk take a budget in pages and can be continued.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/state/below.h"
#include "daemon/state/image.h"
#include "daemon/state/page.h"
#include "daemon/state/pool_stats.h"
#include "daemon/state/prefix.h"
#include "daemon/state/retain.h"
#include "daemon/state/shadow.h"

struct pool_share { /* what one namespace has in it, and may have */
	uint64_t indexed;
	uint64_t live; /* of the indexed ones */
	uint64_t sequences;
	uint64_t ceilings; /* its part of those of the pool */
	uint64_t surplus, unpaid;
	uint64_t quota_pages;      /* indexed and private together, at most; 0 = no limit */
	uint64_t guaranteed_pages; /* as long as it has no more, others' retained pages go first */
	uint64_t leaving;          /* of the indexed ones: on their way to KV-RAM */
	uint64_t arriving;         /* of the indexed ones: on their way from there */
	uint64_t in_ram;           /* pages with a copy in KV-RAM */
};

struct pool_limits {
	uint32_t pages;
	uint32_t page_tokens;
	uint32_t max_sequence_tokens;
	uint32_t nodes;       /* most that may be known, if there is reuse; at least pages */
	uint32_t ram_pages;   /* and beside them in KV-RAM, which pays for what is known of them */
	uint32_t name_spaces; /* how many may use it */
	uint64_t prefix_budget; /* indexed pages; 0 = no reuse */
	enum retain_policy order;
	bool shadow_lru; /* count what LRU would have had */
	uint32_t lanes;  /* of a hybrid pool; 0: it is dense */
	uint32_t retained_slots;
	uint32_t ram_images;         /* and images in KV-RAM beside those in slots, at most */
	uint32_t min_capture_tokens; /* no state is captured before */
	uint32_t ram_floor_tokens;   /* a match in KV-RAM must reach so much further */
	uint64_t interactive_ttl_ns; /* see retain.h */
	bool live_in_ram;            /* live sequences may be promised what is below, too */
	bool overcommit;             /* and more, at the risk of the lowest */
};

struct pool {
	struct pages pages;
	struct prefix prefix;
	struct retain retain;
	struct shadow shadow; /* pages 0: none */
	struct images images; /* of a hybrid pool */
	bool hybrid;
	struct pool_limits limits;
	uint64_t indexed;  /* device copies of nodes */
	uint64_t live;     /* of them: in use */
	uint64_t ceilings; /* pages promised to admitted sequences */
	uint64_t surplus;  /* pages in use that no ceiling covers */
	uint64_t unpaid;   /* pages that steps keep, which ceilings of others cover */
	uint64_t sequences;
	uint64_t open_steps;
	uint64_t leaving;   /* of the indexed ones: on their way to KV-RAM */
	uint64_t arriving;  /* of the indexed ones: on their way from there */
	uint64_t in_ram;    /* nodes with a copy there */
	uint64_t parting;   /* private pages that are being copied there */
	bool fronts_differ; /* of some that share pages, a window has taken some from one alone */
	uint64_t in_ram_private; /* places there of private pages */
	uint64_t parked_in_ram;  /* nodes with a copy there that live sequences have let go of */
	struct list ranked[2];   /* struct seq.in_rank: agents', interactive; by their serial */
	/* Copies down that have failed one after another. From POOL_FAILURES on no page of a live
	 * sequence is copied down until pool_resume. */
	uint32_t failures;
	bool pauses;
	bool has_lost;     /* a sequence; whoever tells what waits for it takes it back */
	bool sends_parked; /* hybrid: what is parked and unneeded here goes down; else aside */
	uint32_t aside; /* the first of those that are set aside: nobody's to give up meanwhile */
	/* What was to be given up for the budget could not go, or stayed as its copy failed: the
	 * next reference that is dropped makes up for it. */
	bool trim_is_due;
	const struct pool_below *below; /* NULL: there is none */
	struct pool_share shares[RETAIN_NAMESPACES];
	bool has_rules; /* some namespace has a quota or a guarantee */
	struct pool_stats stats;
	struct list members; /* struct seq.in_pool */
};

/* Nodes beside those of the pages: roots, and nodes whose copy has gone before them. */
#define POOL_NODES_BESIDE 4096u
#define POOL_PAGES_MAX    ((1u << 30) - POOL_NODES_BESIDE)
#define POOL_FAILURES     8u

/* 0 or -ENOMEM. The key maker outlives the pool. */
int pool_init(struct pool *p, const struct pool_limits *limits, const struct key_maker *maker,
	      const uint8_t stamp[16]);
void pool_deinit(struct pool *p); /* no sequences left */

/* The index: the memory of all that is known of a pool's pages, at most. Most of it is address
 * space from the start; that of an order of a namespace comes with its first page. */
uint64_t pool_index_bytes(const struct pool_limits *limits);

/* Before its first sequence: what a namespace may have, 0 = no limit, and what it is sure of. */
void pool_set_quota(struct pool *p, uint16_t name_space, uint64_t quota_pages,
		    uint64_t guaranteed_pages);

static inline uint64_t pool_held(const struct pool *p, uint16_t name_space)
{
	return p->shares[name_space].indexed + p->pages.shares[name_space].private;
}

static inline uint32_t pool_pages_for(const struct pool *p, uint64_t tokens)
{
	return (uint32_t)((tokens + p->limits.page_tokens - 1) / p->limits.page_tokens);
}

/* Pages that a sequence may ever need. One that has left a state behind inside a page goes on in a
 * copy of it, and holds both until the commit. */
static inline uint32_t pool_ceiling_for(const struct pool *p, uint64_t tokens)
{
	return pool_pages_for(p, tokens) + (p->images.n_images > 0);
}

/* A user of a node, and of everything above it. */
void pool_hold(struct pool *p, uint32_t node);
/* Undo it from *node upwards, at most *budget nodes; *node = NODE_NONE when done. */
void pool_release(struct pool *p, uint32_t *node, uint32_t *budget);

/* The device copy of a node is this private page from now on. */
void pool_index(struct pool *p, uint32_t node, uint32_t page);
/* And back: 0, the page of a node that its user alone has is private, and he uses the node no more;
 * POOL_WAIT: others need it on the device; POOL_MORE: something that stands on it has gone. */
int pool_take_over(struct pool *p, uint32_t node, uint16_t name_space, uint32_t *page);

/* ---- pool_tiers.c: between the device and the tier below ---- */

/* Fetch a page that is in use and in KV-RAM, not on the device: 0, its copy is on the way;
 * POOL_WAIT: no page is free, or its namespace has too many: make room first; POOL_NEVER: the page
 * before it is not on the device, nor on its way: it could not be fetched. */
int pool_fetch(struct pool *p, uint32_t node);
/* How a copy ended, in the order of the asking. */
void pool_came_down(struct pool *p, uint32_t node, int result);
void pool_came_up(struct pool *p, uint32_t node, int result);
/* A copy down has ended, of whatever page. */
void pool_note_copy(struct pool *p, int result);
/* Copies down of live pages may be tried again. */
void pool_resume(struct pool *p);
/* A live sequence needs its bytes, in whatever tier; or no longer. */
void pool_park(struct pool *p, uint32_t node);
void pool_unpark(struct pool *p, uint32_t node);
/* The copy in KV-RAM goes (prefix_may_leave); what is on the device as well stays there. */
void pool_give_up_ram(struct pool *p, uint32_t node);
/* Give up what KV-RAM holds of a namespace (RETAIN_NAMESPACES: of all), at most *budget; true when
 * there is nothing more that could go now. */
bool pool_drop_ram(struct pool *p, uint16_t name_space, uint32_t *budget);

#ifdef KVHOST_TESTING
/* Called before the page of a node is given up. NULL: nobody watches. */
extern void (*pool_evict_hook)(const struct pool *p, uint32_t node);
/* Called before a state leaves the device, as the next of some namespaces. NULL: nobody watches. */
extern void (*pool_leave_hook)(const struct pool *p, uint32_t image, uint64_t name_spaces,
			       bool slotted);
#endif

/* Give up retained pages until `n` are free (clean, dirty, being zeroed) or will be. true: they
 * are, or will be. */
bool pool_make_room(struct pool *p, uint32_t n);

/* Give up retained pages of a namespace until `n` more are within its quota. Its live and private
 * ones always are: admission counts ceilings. False: not before those that leave have left. */
bool pool_keep_quota(struct pool *p, uint16_t name_space, uint32_t n);

/* May a namespace promise so many more pages to its sequences? */
bool pool_quota_allows(const struct pool *p, uint16_t name_space, uint64_t pages);

/* Give up retained pages above the budget. */
void pool_trim(struct pool *p);

/* Give up the retained pages of a namespace (RETAIN_NAMESPACES: of all) for nowhere, from all
 * tiers, at most *budget; true when none is left that could go now. */
bool pool_drop_retained(struct pool *p, uint16_t name_space, uint32_t *budget);

/* Pages that may be promised: those of the pool, and what live sequences may have in KV-RAM. */
uint64_t pool_promisable(const struct pool *p);
uint64_t pool_promised(const struct pool *p);
/* May a sequence with this ceiling be admitted now? Its own must fit the pool, all together the
 * pool and what live sequences may have in KV-RAM. 0, WAIT or NEVER. */
int pool_may_admit(const struct pool *p, uint64_t ceiling);

static inline uint64_t pool_retained(const struct pool *p)
{
	return p->indexed - p->live;
}

/* Shared by pool.c, pool_tiers.c and pool_states.c. */
void pool_count_live(struct pool *p, uint32_t node, int change);
void pool_tell_evict(const struct pool *p, uint32_t node);
void pool_evict(struct pool *p, uint32_t node); /* its device copy goes, now */
/* Of a page whose copy has gone just now: the first one above it that still is on the device, or a
 * root. */
uint32_t pool_first_here(const struct pool *p, uint32_t node);
/* Its device copy was to go as soon as nothing stands on it: it goes now. */
bool pool_may_follow(const struct pool *p, uint32_t node);
/* Of a hybrid pool: nobody needs it on the device, and it goes at once, without a copy. */
bool pool_is_useless(const struct pool *p, uint32_t node);
/* If it is leaving it stays after all, and with it what was to leave after it. */
void pool_stay(struct pool *p, uint32_t node);
/* The page of a node is given up: 0 it is free or will be; POOL_WAIT: not now. */
int pool_send_down(struct pool *p, uint32_t node);
/* It has a place below, and is to be copied there; then: the copy begins. */
void pool_put_in_ram(struct pool *p, uint32_t node, uint32_t place);
void pool_begin_copy(struct pool *p, uint32_t node);
/* The copy there goes; its node may go with it. */
void pool_drop_from_ram(struct pool *p, uint32_t node);
/* The page goes without a copy, after what stands on it. */
void pool_let_go(struct pool *p, uint32_t node);
/* It may leave with a copy alone, and copies down pause. */
bool pool_waits_for_copies(const struct pool *p, uint32_t node);
/* What cannot go is in use, until copies go on or something else may have changed it. */
void pool_set_aside(struct pool *p, uint32_t node);
void pool_end_aside(struct pool *p);
/* A page that is in use comes to be below as well. */
void pool_copy_down(struct pool *p, uint32_t node);
/* Give up what is worth least, of one namespace (RETAIN_NAMESPACES: of all). 0; POOL_NEVER: there
 * is nothing to give up; POOL_WAIT: not now. */
int pool_give_up_one(struct pool *p, uint16_t name_space);

/* Compares the maintained sums with what they sum. `everything`: also walks all nodes, runs and
 * pages. NULL, or what does not hold. */
const char *pool_check(const struct pool *p, bool everything);

#endif
