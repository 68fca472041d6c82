/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PREFIX_H
#define KVHOST_STATE_PREFIX_H

/*
 * prefix: what pages are: the tree of nodes, and the table that finds them.
 *
 * A node is what a page *is*: namespace, parent, tokens, images. A copy is where its bytes are,
 * at most one a tier. A node lives while it has a copy in any tier, a child, or a user. The key
 * finds a node; parent, tokens and images decide: unequal nodes with equal keys coexist, counted.
 *
 * Users: who needs a node's copies to stay. A sequence (or a walk in progress) is a user of its
 * deepest node only; a node with users counts as one user of its parent. So all ancestors of what
 * is in use are in use, holding is O(pages that become used) and a release goes up step by step.
 * A copy leaves a tier only when the node has no users and no child with a copy there.
 *
 * Owner: the core thread; no I/O. Nodes and their tokens lie in two arrays whose size is fixed at
 * init; memory is taken from the system only as it is touched. Images have a share of the heap
 * that is bounded by the number of nodes; when it is used up, no page with images is published.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/testing.h"
#include "daemon/state/key.h"

#define NODE_NONE  UINT32_MAX
#define COPY_NONE  UINT32_MAX
#define STATE_NONE UINT32_MAX
#define RUN_NONE   UINT32_MAX

/* What images may take of the heap, a node: those that are known have a share of all of it. */
#define PREFIX_IMAGE_BYTES 64ull

enum tier {
	TIER_DEVICE = 0,
	TIER_RAM,
	TIER_DISK,
	TIERS,
};

enum node_move {                       /* what is under way with the copies of a node */
		 NODE_LEAVING = 1,     /* its device copy goes once the one below is there */
		 NODE_FILLING = 2,     /* its device copy: its bytes are on their way up */
		 NODE_FILLING_RAM = 4, /* its copy in KV-RAM: on their way down */
		 NODE_SPOILT_RAM = 8,  /* it could not be read: nobody is served from it */
		 NODE_FAILED = 16, /* its device copy could not be filled: it goes when it can */
		 NODE_TRIED = 64,  /* its device copy could not be copied down since it was used */
		 NODE_TRIED_AGAIN = 128, /* and once more */
		 NODE_LOST = 32,         /* it was the last: what follows is not found */
};

enum node_kind {
	NODE_FREE = 0,
	NODE_ROOT, /* start of all chains of one (namespace, epoch, variant); has no copies */
	NODE_TOKENS,
	NODE_OPAQUE, /* identified by a client's key of up to 64 bytes in place of tokens */
};

struct node {
	/* what a match reads: one cache line */
	struct key key;
	uint32_t parent;
	uint32_t copies[TIERS]; /* page or object in that tier, or COPY_NONE */
	uint32_t users;
	uint32_t run;    /* retain: the open that touched it last */
	uint32_t images; /* index + 1 in prefix->images, 0 = none */
	uint16_t name_space;
	uint8_t kind;   /* enum node_kind */
	uint8_t length; /* tokens, 1 .. page_tokens; of an opaque key: bytes */
	uint64_t id;    /* with the boot nonce: never used again */
	uint32_t children;
	uint32_t position; /* pages before it in its chain; of a root: the epoch */
	/* what changes when children come and go */
	uint32_t children_in[TIERS]; /* children with a copy there */
	uint32_t children_leaving;   /* children whose device copy is about to go */
	uint32_t kept;               /* retained states that need it here; counted like users */
	uint32_t kept_in_ram;        /* and in KV-RAM, counted alike: its copy there stays */
	uint32_t state;              /* index of the retained state that ends here, or STATE_NONE */
	uint32_t partials;           /* children that are no full page */
	uint64_t partial_lengths;    /* bit n - 1: there may be one of n tokens */
	uint32_t next_free;          /* of one in use: pool.aside's */
	uint32_t ram_above;          /* retain: the next shallower page of its run in KV-RAM */
	uint32_t ram_below;          /* and the next deeper one */
	uint32_t parked;             /* live sequences that need its bytes, in whatever tier */
	uint16_t ram_pins;           /* copies from its place in KV-RAM in flight */
	uint8_t moves;               /* enum node_move, a bit each */
	uint32_t holders;            /* park_discard's */
} __attribute__((aligned(128)));

struct prefix_images {
	uint32_t n;
	uint32_t next_free;
	struct key_image *image;
};

struct prefix {
	struct node *nodes; /* [capacity] */
	uint32_t *tokens;   /* [capacity][page_tokens] */
	uint64_t *table;    /* [mask + 1]: tag << 32 | node + 1; 0 = empty */
	uint64_t mask;
	uint32_t tag_shift; /* tag >> tag_shift = home slot */
	uint32_t capacity;
	uint32_t page_tokens;
	uint32_t used;
	uint32_t fresh; /* nodes from here on were never used */
	uint32_t first_free;
	uint64_t next_id;
	struct prefix_images *images; /* [capacity] */
	uint32_t n_images, first_free_images;
	uint64_t images_bytes; /* of the heap, that lists of images take */
	uint64_t epoch;        /* of the weights */
	uint8_t stamp[16];
	const struct key_maker *maker;
	uint64_t collisions; /* comparisons of nodes with equal keys that were unequal */
	uint64_t roots;
};

/* A walk along a prompt, in turns. */
struct prefix_walk {
	uint32_t node;      /* deepest match so far; a root at first */
	struct key key;     /* of that page */
	uint32_t position;  /* pages matched */
	uint32_t on_device; /* of them, from the start: on the device, ready */
	bool missed;        /* nothing deeper can match */
};

enum prefix_outcome {
	PREFIX_FULL = 1, /* no node left */
	PREFIX_NEW,      /* a new node, without a copy yet */
	PREFIX_KNOWN,    /* a node that equals it; look at its copies */
};

/* 0 or -ENOMEM. capacity: nodes, at most 2^30. */
int prefix_init(struct prefix *p, uint32_t capacity, uint32_t page_tokens,
		const struct key_maker *maker, const uint8_t stamp[16]);
void prefix_deinit(struct prefix *p);
/* Memory that it takes at most: address space, and the heap for images. */
uint64_t prefix_bytes_for(uint64_t capacity, uint32_t page_tokens);
/* Before its first use, on any thread; takes a while: gets the memory of the table and of the first
 * `nodes` nodes, so that later nobody waits for it. */
void prefix_populate(struct prefix *p, uint32_t nodes);

static inline const uint32_t *prefix_tokens(const struct prefix *p, uint32_t node)
{
	return p->tokens + (uint64_t)node * p->page_tokens;
}

/* The root of (namespace, current epoch, variant), made if `make`. Outcome FULL or 0 with *out;
 * NODE_NONE if there is none and !make. */
int prefix_root(struct prefix *p, uint16_t name_space, const uint8_t variant[KEY_VARIANT_BYTES],
		bool make, uint32_t *out);

/*
 * Match the next full pages: tokens[n_pages][page_tokens], images of these pages ascending by
 * start. Every match must have a copy in some tier that can be read. path[i] = node of page i for
 * the matched ones. Returns how many matched; fewer than n_pages: walk->missed is set.
 */
uint32_t prefix_match(struct prefix *p, struct prefix_walk *walk, const uint32_t *tokens,
		      uint32_t n_pages, const struct key_image *images, uint32_t n_images,
		      uint32_t *path);

/* The node under parent with these tokens, at most page_tokens of them: KNOWN, NEW or FULL; *out
 * set on KNOWN and NEW. A new node without copy, child or user must get one at once. */
int prefix_publish(struct prefix *p, uint32_t parent, const uint32_t *tokens, uint32_t n_tokens,
		   const struct key_image *images, uint32_t n_images, uint32_t *out);

/* The partial page under parent with these tokens, or NODE_NONE. */
uint32_t prefix_find_partial(struct prefix *p, uint32_t parent, const uint32_t *tokens,
			     uint32_t n_tokens, const struct key_image *images, uint32_t n_images);

void prefix_abandon(struct prefix *p, uint32_t node); /* a NEW one that gets no copy after all */

void prefix_put_copy(struct prefix *p, uint32_t node, enum tier tier, uint32_t place);
/* Without users and children there. Frees the node, and ancestors, if nothing is left of them. */
void prefix_drop_copy(struct prefix *p, uint32_t node, enum tier tier);
/* Its device copy is about to go, and counts for its parent as one that leaves; or it stays. */
void prefix_leave(struct prefix *p, uint32_t node);
void prefix_stay(struct prefix *p, uint32_t node);

static inline bool node_is_on_device(const struct node *n)
{
	return n->copies[TIER_DEVICE] != COPY_NONE &&
	       (!(n->moves & NODE_FILLING) || !protection(fetched_pages_are_awaited));
}

/* May what follows it be on the device? It is there itself, or is on its way. */
static inline bool node_carries(const struct node *n)
{
	return n->kind == NODE_ROOT ||
	       (n->copies[TIER_DEVICE] != COPY_NONE && !(n->moves & NODE_FAILED));
}

/* Of no use on the device any more, its bytes still are below. */
static inline bool node_is_kept_below(const struct node *n)
{
	return n->kept_in_ram || n->parked;
}

/* Can its bytes be had from KV-RAM, now or once a copy that is under way has arrived? */
static inline bool node_is_in_ram(const struct node *n)
{
	return n->copies[TIER_RAM] != COPY_NONE &&
	       !(n->moves & (NODE_FILLING_RAM | NODE_SPOILT_RAM));
}

static inline bool prefix_can_be_read(const struct node *n)
{
	return node_is_on_device(n) || node_is_in_ram(n);
}

/* users + 1; true if it had none: then the caller holds the parent in the same way. */
bool prefix_hold(struct prefix *p, uint32_t node);
/* The same for a retained state in a tier: the device or KV-RAM. */
bool prefix_keep(struct prefix *p, uint32_t node, enum tier tier);
uint32_t prefix_unkeep(struct prefix *p, uint32_t node, enum tier tier);
/* For a live sequence that made room: its bytes stay in some tier. false: the node is gone. */
void prefix_park(struct prefix *p, uint32_t node);
bool prefix_unpark(struct prefix *p, uint32_t node);
/* users - 1; the parent, if this was the last: then the caller releases that in the same way (which
 * may free `node`). Else NODE_NONE. */
uint32_t prefix_release(struct prefix *p, uint32_t node);

/* May the copy be given up in that tier now? What is in use stays, but for a copy in KV-RAM of what
 * is on the device as well. */
static inline bool prefix_may_leave(const struct prefix *p, uint32_t node, enum tier tier)
{
	const struct node *n = &p->nodes[node];
	bool used = n->users != 0 || n->kept != 0;

	if (n->copies[tier] == COPY_NONE || (n->children_in[tier] && protection(parents_stay)))
		return false;
	if (tier == TIER_DEVICE)
		return !(n->moves & (NODE_LEAVING | NODE_FILLING)) &&
		       (!used || !protection(used_pages_stay));
	if (((n->moves & NODE_FILLING_RAM) || n->ram_pins) && protection(places_wait_for_copies))
		return false;
	if (n->parked || (n->kept_in_ram && protection(states_stay_whole)))
		return false;
	return !used || !protection(used_pages_stay) ||
	       (node_is_on_device(n) && !(n->moves & NODE_LEAVING));
}

/* Walks everything from *at on, at most `budget` nodes; *at = capacity at the end. NULL or what
 * does not hold. */
const char *prefix_check(const struct prefix *p, uint32_t *at, uint32_t budget);

#endif
