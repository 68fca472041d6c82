/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_RAM_H
#define KVHOST_TIER_RAM_H

/*
 * ram: KV-RAM, the tier below the device: which pages of which pools are in the arena, and the
 * copies of them up and down.
 *
 * All pools share one arena. A page that leaves a device gets a place if there is one, or if
 * something there ranks strictly below it. Whose page goes first is decided before which: what a
 * namespace has over its quota, then what it has above its guarantee; then what agents left before
 * what interactive requests did; within a pool by its retained_order, between pools by what a page
 * promises per second and byte.
 *
 * Copies go in windows of RAM_JOB_BYTES, at most RAM_JOBS of them in flight a direction and pool,
 * so that other work of the device is never behind more than that. They are told of in the order
 * asked for. A page that could not be copied fails alone.
 *
 * Every object in the arena has a record (record.h), which says VALID once its bytes are there.
 *
 * Owner: the core thread; the bytes are the device's.
 */

#include "daemon/base/list.h"
#include "daemon/state/pool.h"
#include "daemon/tier/arena.h"
#include "daemon/tier/device.h"

#define RAM_JOBS       2
#define RAM_JOB_BYTES  (1u << 20) /* unless one page is more */
#define RAM_JOB_MOVES  64
#define RAM_PIECES_MAX RAM_JOB_MOVES /* of one page: it goes in one job */
#define RAM_VICTIMS    64            /* pages given up for one, at most */

/* What is kept to know an object by: its record, and what its pool keeps of its node. */
#define RAM_KNOWN_BYTES (4096 + 768)

struct ram;
struct ram_pool;

struct ram_job {
	struct device_job job;
	struct ram_pool *pool;
	bool up;
	bool busy, finished;
	uint32_t first; /* place of its first page in the queue */
	uint32_t n;     /* pages */
	struct device_move moves[RAM_JOB_MOVES];
	uint8_t page_of[RAM_JOB_MOVES]; /* a page that is larger than a frame has several moves */
};

struct ram_item {        /* a page on its way */
	uint32_t node;   /* NODE_NONE: it is private */
	uint32_t page;   /* on the device */
	uint32_t place;  /* in the arena */
	uint32_t index;  /* of its sequence's table */
	struct seq *seq; /* NULL: of none any more */
};

struct ram_queue { /* pages on their way in one direction, a ring in the order asked for */
	struct ram_item *items;
	uint32_t mask;
	uint32_t told, sent, asked; /* places: told <= sent <= asked */
	struct ram_job jobs[RAM_JOBS];
	uint32_t first_job; /* the oldest in flight */
	uint64_t bytes;     /* moved, ever */
	uint64_t busy_ns;   /* of the device for that, whether it succeeded or not */
};

struct ram_pool { /* a pool that has KV-RAM below it */
	struct list in_ram;
	struct ram *ram;
	struct pool *pool;
	struct device *device;
	struct device_memory *memory;
	struct pool_below below;
	int size; /* of its pages, in frames */
	uint64_t page_bytes;
	uint32_t moves_a_page; /* at most: its pieces */
	uint64_t used_bytes;
	struct ram_queue down, up;
	uint32_t in_flight; /* jobs */
	double opens_per_s;
	uint64_t rated_ns, rated_tick;
	/* copies ended, or a place can be had now */
	void (*moved)(void *context);
	void *context;
};

struct ram_object {            /* what lies in the arena under this number */
	struct ram_pool *pool; /* NULL: nothing */
	uint32_t node;         /* NODE_NONE: a private page of a live sequence; never relocated */
	uint16_t name_space;   /* that is charged for it */
};

struct ram_share { /* of a namespace, over all pools */
	uint64_t used_bytes;
	uint64_t quota_bytes; /* 0 = no limit */
	uint64_t guaranteed_bytes;
	uint8_t digest[16]; /* of its name and salt, for records */
};

struct ram {
	struct arena *arena;
	struct ram_object *objects; /* [most] */
	uint32_t most;
	uint64_t boot_nonce;
	uint64_t now_ns;
	struct list pools;
	uint32_t next_pool;  /* whose turn it is to move */
	uint64_t used_bytes; /* of objects, without their records */
	struct ram_share shares[RETAIN_NAMESPACES];
	bool has_rules;
	/* pages that are moved to make room side by side */
	struct device_job relocating;
	struct device_move moves[FRAMES_MOVES_MAX];
	struct frames_move plan[FRAMES_MOVES_MAX];
	uint32_t n_plan; /* 0: none is under way */
	uint64_t relocated, relocations_failed;
	bool relocation_fails; /* the last one did */
};

/* The arena is borrowed and outlives it. 0 or -ENOMEM. */
int ram_new(struct arena *arena, uint64_t boot_nonce, struct ram **out);
void ram_free(struct ram **r); /* no pools left */
/* Before the first pool. 0 = no limit. */
void ram_set_share(struct ram *r, uint16_t name_space, uint64_t quota_bytes,
		   uint64_t guaranteed_bytes, const uint8_t digest[16]);

/* Put KV-RAM below a pool: sets pool->below. The pool, device and memory outlive it. 0, -ENOMEM,
 * -ENOSPC (too many page sizes) or -E2BIG (a page in more than RAM_PIECES_MAX frames). */
int ram_pool_init(struct ram_pool *rp, struct ram *r, struct pool *pool, struct device *device,
		  struct device_memory *memory, void (*moved)(void *context), void *context);
/* Nothing of it is in the arena (pool_drop_ram), nothing in flight. A zeroed one is fine. */
void ram_pool_deinit(struct ram_pool *rp);

/* At the daemon's end: the arena goes as a whole, whatever is in it. A zeroed one is fine. */
void ram_pool_abandon(struct ram_pool *rp);

/* Send what is asked for: once a turn. */
void ram_kick(struct ram *r);
static inline bool ram_pool_is_quiet(const struct ram_pool *rp)
{
	return !rp->ram || (rp->in_flight == 0 && rp->down.told == rp->down.asked &&
			    rp->up.told == rp->up.asked && rp->ram->n_plan == 0);
}

/* What moves now: once it has passed, all of it has landed, whatever moves then. */
struct ram_marks {
	uint32_t down, up; /* places in the queues */
	bool relocating;
	uint64_t relocated; /* or failed to be */
};
struct ram_marks ram_pool_mark(const struct ram_pool *rp);
bool ram_pool_has_passed(const struct ram_pool *rp, struct ram_marks m);

/* How many bytes of KV-RAM a page of a pool takes. */
static inline uint64_t ram_object_bytes(const struct ram_pool *rp)
{
	return rp->page_bytes + RAM_KNOWN_BYTES;
}

#ifdef KVHOST_TESTING
/* Called before a page is given up for another one of the same pool; NODE_NONE: none is, so the
 * newcomer finds no place. NULL: nobody watches. */
extern void (*ram_displace_hook)(const struct ram_pool *rp, uint32_t newcomer, enum pool_need need,
				 uint32_t victim);
#endif

/* Compares sums with what they sum, and the arena with the pools. NULL or what does not hold. */
const char *ram_check(const struct ram *r);

#endif
