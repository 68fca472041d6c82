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
#include "daemon/state/pool_states.h"
#include "daemon/tier/arena.h"
#include "daemon/tier/device.h"

#define RAM_JOBS       2
#define RAM_JOB_BYTES  (1u << 20) /* unless one page is more */
#define RAM_JOB_MOVES  64
#define RAM_PIECES_MAX RAM_JOB_MOVES /* of one page: it goes in one job */
/* Pages given up for one, at most: where all are small, so many make room for the largest slab of
 * large ones. They go once a slab, and some milliseconds are a slab's worth of copies. */
#define RAM_VICTIMS 4096

/* What is kept to know an object by: its record, and what its pool keeps of its node. */
#define RAM_KNOWN_BYTES (4096 + 768)

struct ram_parts { /* of kv_ram_bytes */
	uint64_t arena_bytes;
	uint32_t objects; /* that may be known at the same time */
};

/* So that pages of this size find as many places as can be. What is lost since the arena is of
 * whole frames is at most FRAME_BYTES, places and what would be known of them together. */
struct ram_parts ram_divide(uint64_t bytes, uint64_t page_bytes);
/* The least that can be divided so: from there on a frame is left for pages. */
uint64_t ram_least(uint64_t page_bytes);

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

struct ram_sums { /* of what was moved in one direction; they only grow */
	uint64_t bytes;
	uint64_t copies;  /* that it took: neighbours go at once */
	uint64_t busy_ns; /* of the device for that, whether it succeeded or not */
};

struct ram_queue { /* pages on their way in one direction, a ring in the order asked for */
	struct ram_item *items;
	uint32_t mask;
	uint32_t told, sent, asked; /* places: told <= sent <= asked */
	struct ram_job jobs[RAM_JOBS];
	uint32_t first_job; /* the oldest in flight */
	struct ram_sums sums;
};

struct ram_spills { /* images on their way from their slots to the arena, one after another */
	struct list waiting; /* struct image.in_queue */
	uint32_t told, asked;
	uint32_t image; /* the one that is being copied; IMAGE_NONE */
	uint64_t done;  /* bytes of it */
	uint64_t busy_ns;
	struct device_job job;
	struct device_move moves[RAM_JOB_MOVES];
};

struct ram_pool { /* a pool that has KV-RAM below it */
	struct list in_ram;
	struct ram *ram;
	struct pool *pool;
	struct device *device;
	struct device_memory *memory;
	struct pool_below below;
	int size;       /* of its pages, in frames */
	int image_size; /* of its images; -1: it is dense */
	uint64_t page_bytes, image_bytes;
	uint32_t moves_a_page; /* at most: its pieces */
	uint64_t used_bytes;
	struct ram_queue down, up;
	struct ram_spills spills;
	uint32_t in_flight;         /* jobs */
	struct retain_rank planned; /* of the state that comes down now */
	double opens_per_s;
	uint64_t rated_ns, rated_tick;
	/* copies ended, or a place can be had now */
	void (*moved)(void *context);
	void *context;
};

struct ram_object {            /* what lies in the arena under this number */
	struct ram_pool *pool; /* NULL: nothing */
	uint32_t node;         /* NODE_NONE: a private page of a live sequence; never relocated */
	uint32_t image;        /* the image of a state at that node; IMAGE_NONE: a page */
	bool fresh;            /* nothing has been asked for that comes there; pinned till then */
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
 * -ENOSPC (too many sizes, or larger than the arena) or -E2BIG (a page in more than RAM_PIECES_MAX
 * frames, an image in more than a record names). image_bytes: 0, or of a hybrid pool's states. */
int ram_pool_init(struct ram_pool *rp, struct ram *r, struct pool *pool, struct device *device,
		  struct device_memory *memory, uint64_t image_bytes, void (*moved)(void *context),
		  void *context);
/* Nothing of it is in the arena (pool_drop_ram), nothing in flight. A zeroed one is fine. */
void ram_pool_deinit(struct ram_pool *rp);

/* At the daemon's end: the arena goes as a whole, whatever is in it. A zeroed one is fine. */
void ram_pool_abandon(struct ram_pool *rp);

/* Send what is asked for: once a turn. */
void ram_kick(struct ram *r);
static inline bool ram_pool_is_quiet(const struct ram_pool *rp)
{
	return !rp->ram || (rp->in_flight == 0 && rp->down.told == rp->down.asked &&
			    rp->up.told == rp->up.asked && rp->spills.told == rp->spills.asked &&
			    rp->ram->n_plan == 0);
}

/* What moves now: once it has passed, all of it has landed, whatever moves then. */
struct ram_marks {
	uint32_t down, up, images; /* places in the queues */
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

static inline uint64_t ram_bytes_of(const struct ram_pool *rp, uint32_t image)
{
	return image == IMAGE_NONE ? rp->page_bytes : rp->image_bytes;
}

/* ---- images of retained states, in ram_image.c ---- */

/* One that lies in the arena is copied from, or to: its pieces, in the order of its bytes, stay
 * where they are until the end. A capture: it is there then, if the copy was good. busy_ns: of the
 * device for the copy. */
void ram_image_begin(struct ram_pool *rp, uint32_t image, bool capture);
void ram_image_end(struct ram_pool *rp, uint32_t place, bool capture, bool good, uint64_t busy_ns);
uint32_t ram_image_pieces(const struct ram_pool *rp, uint32_t place);
struct frames_piece ram_image_piece(const struct ram_pool *rp, uint32_t place, uint32_t i);

/* Compares sums with what they sum, and the arena with the pools. NULL or what does not hold. */
const char *ram_check(const struct ram *r);

#endif
