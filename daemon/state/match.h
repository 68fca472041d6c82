/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_MATCH_H
#define KVHOST_STATE_MATCH_H

/*
 * match: walk a prompt along the tree of a pool, in turns.
 *
 * An open holds its deepest match between turns and touches what it matches; a lookup pins and
 * touches nothing: it notices when its place was given up between two turns and ends there.
 * For the learned order an open looks further: how much of the rest of the prompt is known without
 * its bytes. What it matched it touches after that.
 * Where reuse may end: with at least the last token left to compute, within the client's limit,
 * never inside an image; in a dense pool at a page boundary, in a hybrid one where a state was
 * captured. A walk goes on through pages that are in KV-RAM only; if they reach too little beyond
 * those on the device to be worth fetching, it goes back to these. An open that finds a state has a
 * claim on it (match_unclaim, or pool_claim_done once the caller has copied its image), and is a
 * user of the state's node.
 *
 * Owner: the core thread. Tokens, images and path are the caller's and outlive the walk.
 */

#include "daemon/state/pool.h"

enum match_miss { /* equal to enum payload_miss */
		  MATCH_COMPLETE = 0,
		  MATCH_NONE,
		  MATCH_DIVERGED,
		  MATCH_OFF,
		  MATCH_IMAGE,
		  MATCH_LIMIT,
		  MATCH_GONE,
		  MATCH_FLOOR,   /* there is more in KV-RAM, but too little to fetch it */
		  MATCH_RESTORE, /* fetching it failed */
};

struct match_wish {
	const uint32_t *tokens;
	uint32_t n_tokens;
	const struct key_image *images; /* ascending by start, disjoint */
	uint32_t n_images;
	uint32_t max_cached_tokens; /* UINT32_MAX: no limit */
	uint16_t name_space;
	bool off;         /* match nothing */
	bool no_floor;    /* fetch however little KV-RAM has beyond the device */
	bool interactive; /* what it touches is kept in KV-RAM above what agents touch */
	uint8_t variant[KEY_VARIANT_BYTES];
};

#ifdef KVHOST_TESTING
/* What was looked at so far: a test sees that it has a bound. Of the core thread. */
extern struct match_work {
	uint64_t images;   /* of wishes, on the way from their end up */
	uint64_t pages;    /* on the way up to a state */
	uint64_t partials; /* keys of partial pages */
} match_work;
#define match_works(what) (match_work.what++)
#else
#define match_works(what) ((void)0)
#endif

struct match_state {       /* that reuse could go on from */
	uint32_t image;    /* IMAGE_NONE: none; then node is a root */
	uint32_t node;     /* of the last full page before it */
	uint32_t position; /* full pages */
	uint32_t partial;  /* the node that follows, or NODE_NONE */
};

/* How many images of the prompt begin before the page of interest, and before a place in it; the
 * search for a state goes up, so both only fall. */
struct match_images {
	uint32_t page;
	uint32_t place;
};

/* The way up from where the walk has ended to the state that reuse goes on from: it has turns, as
 * the walk has. */
struct match_search {
	bool begun;
	struct match_state at;
	struct match_images before;
	/* One that must be fetched was found: the search goes on for one that must not be, as long
	 * as the floor lies between them. */
	bool has_below;
	struct match_state below;
	struct match_images before_below; /* at its page */
	uint32_t below_tokens;
	uint64_t below_id; /* of its node, which may be given up between two turns */
};

struct match {
	struct pool *pool;
	const struct match_wish *wish;
	struct prefix_walk walk;
	uint32_t *path;             /* [end]: nodes of the matched pages */
	uint32_t end;               /* pages that may match at most */
	uint32_t images_passed;     /* of wish->images, that begin before the next page */
	enum match_miss end_reason; /* why not more than `end` */
	uint32_t seen;              /* pages that the walk found, before it went back */
	uint64_t tick;              /* 0: a lookup */
	uint64_t node_id;           /* a lookup's: of walk.node */
	uint32_t run;               /* an open's: pages that it reuses */
	uint32_t held;              /* an open's: the node it is a user of; NODE_NONE before */
	uint32_t leaving;           /* an open's: held before it went back; NODE_NONE: none */
	/* an open's, beyond the match, of the learned order or with a shadow */
	bool further;       /* it has got there */
	bool told;          /* the order knows what was known */
	bool ghosts_end;    /* the next page is not known */
	bool shadow_misses; /* the next page is no hit of the shadow */
	struct key key;     /* of the last page looked at */
	uint32_t looked;    /* pages, from the start of the prompt */
	uint32_t known;     /* pages, matched or ghosts */
	uint32_t touched;   /* pages */
	uint64_t deepest;   /* tick of the last known page */
	/* of a hybrid pool, in the learned order */
	bool would_find; /* there was a longer state once */
	struct key gone; /* its key */
	uint8_t turn;    /* that the open begins */
	bool from_ram;   /* something of it must be fetched */
	bool claimed;    /* an open's: the image stays until match_unclaim */
	bool ended;      /* the walk has */
	bool chosen;     /* the state is known */
	struct match_search search;
	bool done;
	uint32_t most;         /* tokens that may match at most */
	uint32_t tokens;       /* found, once it is done */
	uint32_t known_tokens; /* of pages that match, with or without a state behind them */
	uint32_t image;        /* of a hybrid pool: the state that was found, or IMAGE_NONE */
	uint32_t partial;      /* its node, if that is no full page */
};

/* Does the place lie inside an image? *n, all images at first, becomes how many begin before it.
 * For places from the end on: all together one look for each place and one for each image. */
bool match_in_image(const struct match_wish *w, uint32_t tokens, uint32_t *n);

/* Pages that could match at most: the room that path must have. */
uint32_t match_room(const struct pool *p, const struct match_wish *wish);

/* Begin. tick: of the open (retain_open), 0 for a lookup. path may be NULL if match_room is 0.
 * An open holds a root from here on; 0 or POOL_NEVER (no node left: the open matches and
 * publishes nothing). */
int match_begin(struct match *m, struct pool *p, const struct match_wish *wish, uint32_t *path,
		uint64_t tick);

/* At most *budget pages. 0 when done, else POOL_MORE. */
int match_turn(struct match *m, uint32_t *budget);

static inline uint32_t match_tokens(const struct match *m)
{
	return m->tokens;
}

enum match_miss match_reason(const struct match *m);

/* What a finished walk has found lies in n nodes: the full pages, and the partial one. Those that
 * are not on the device are to be fetched; from walk.on_device on some may not be. */
static inline uint32_t match_nodes(const struct match *m)
{
	return m->walk.position + (m->partial != NODE_NONE);
}

static inline uint32_t match_node(const struct match *m, uint32_t i)
{
	return i < m->walk.position ? m->path[i] : m->partial;
}

/* One of them, or the image, could not be fetched: only the first n full pages are had, and
 * match_turn has work to do again. */
void match_cut(struct match *m, uint32_t n);
void match_unclaim(struct match *m);
/* The image of the state that was found could not be copied from KV-RAM, its claim has ended:
 * match_turn has work to do again. */
void match_go_back(struct match *m);

/* Count a finished walk in the pool's counters. */
void match_count(const struct match *m);

#endif
