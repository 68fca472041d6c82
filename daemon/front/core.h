/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_CORE_H
#define KVHOST_FRONT_CORE_H

/*
 * core: everything that one daemon knows, and the loop that moves it: sessions, pools, sequences.
 *
 * One thread owns all of it; nothing here blocks. What can wait is done by executors and the
 * device; what reaches outside (sockets) goes through hooks. Given a clock, executors and hooks
 * of its own, a simulator runs the same core in one thread.
 */

#include "daemon/base/charge.h"
#include "daemon/base/clock.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/slots.h"
#include "daemon/base/timers.h"
#include "daemon/config.h"
#include "daemon/counters.h"
#include "daemon/front/layout.h"
#include "daemon/state/floor.h"
#include "daemon/state/plan.h"
#include "daemon/state/seq.h"
#include "daemon/tier/arena_staging.h"
#include "daemon/tier/mover.h"
#include "daemon/tier/ram.h"
#include "shm/message.h"

struct session;
struct request;

struct core_hooks { /* reach the outside; never block */
	/* Tell a client that sleeps to look at its ring. */
	void (*wake)(void *context, struct session *s);
	/* Send a descriptor of a pool's memory. false: the client does not read its socket. */
	bool (*segment)(void *context, struct session *s, const struct message *m, int fd);
	/* The session has ended: close its socket. Its struct lives until its work is done. */
	void (*ended)(void *context, struct session *s, enum wire_bye reason, const char *text);
	/* It is gone: forget it. */
	void (*gone)(void *context, struct session *s);
	void *context;
};

struct core_options {
	const struct config *config;
	struct clock clock;
	struct key_maker keys;
	uint64_t boot_epoch;
	uint64_t available_bytes; /* of the device, at the start, with KV-RAM that is arriving */
	struct device *device;
	const struct staging *staging; /* NULL: there is none, and staging_note says why */
	const char *staging_note;      /* outlives the core */
	struct arena *arena;           /* of KV-RAM; NULL: there is none, and ram_note says why */
	const char *ram_note;          /* outlives the core */
	struct executor *copies;       /* the device's, reaped here */
	struct executor *work;
	struct statsfile *stats;
	struct log *log; /* may be NULL */
	struct core_hooks hooks;
};

/* ---- pools ---- */

struct core;

enum core_pool_state {
	CORE_POOL_DECLARED, /* in the configuration, nobody attached yet */
	CORE_POOL_MAKING,
	CORE_POOL_READY,
	CORE_POOL_FAILED,   /* its memory is gone; attach is refused, what is open ends with EIO */
	CORE_POOL_DROPPING, /* nobody uses it; its memory is given back; attach waits */
};

struct order_sums { /* of the learned order, of all that the pool ever was */
	struct retain_counts counts;
	uint64_t refreshes;
};

struct pool_past { /* what a pool has counted before it was dropped: counters only grow */
	struct pool_stats stats;
	uint64_t zeroed, copied, collisions, refused_references;
	struct ram_sums down, up;
	struct image_counts states;
	struct order_sums order;
	uint64_t shadow_hits;
};

struct core_pool {
	struct core *core;
	const struct config_pool *config;
	enum core_pool_state state;
	struct slot_handle handle;
	struct payload_pool description; /* of the first attach: with layers the stamp */
	struct payload_layer *layers;
	uint8_t stamp[16];
	struct payload_section *sections;
	struct geometry geometry;
	struct hybrid_layout layout;
	struct plan plan;
	struct device_memory memory;
	struct device_job making;
	struct job populating; /* after it: the memory of what is known of its pages */
	struct pool pool;
	struct mover mover;
	struct ram_pool ram; /* zeroed: no KV-RAM below it */
	char ram_note[128];  /* why not; "" = it has, or is not made */
	struct timer resume; /* armed while copies down of live pages pause */
	uint64_t pause_ns;   /* how long, this time */
	struct floor floor;  /* what steps and fetches take */
	struct pool_counters *counters;
	struct list attaching; /* requests that wait for it to be made */
	struct list admission; /* opens and forks that wait for room, in rank order */
	struct list over_quota[CONFIG_NAMESPACES_MAX]; /* or for their own namespace, likewise */
	struct list starving;   /* step begins that wait for clean pages, in rank order */
	struct list copying;    /* step begins that wait for a copy of an image */
	struct list fetching;   /* opens that wait for pages from KV-RAM, drops for what moves */
	struct list idle_order; /* sequences, the longest idle first */
	struct list step_order; /* sequences with an open step, the oldest first */
	struct list dropping;   /* questions that wait for it to be dropped */
	uint32_t attached;      /* sessions */
	uint32_t transfers;     /* of rows and images, in flight */
	int drop_result;        /* of the last drop: the first error */
	bool freeing;           /* its memory is being given back */
	uint64_t dropped_bytes; /* by the last drop */
	uint64_t idle_since_ns; /* no session since then */
	struct pool_past past;
	uint64_t rows_written, rows_read, saturated;
	uint64_t quarantined_of_dead; /* pages whose session has gone, its process not */
	bool published_change;        /* counters differ from the stats file */
};

/* ---- namespaces ---- */

struct core_namespace {
	char name[WIRE_NAME_MAX];
	struct charge charge;
	uint64_t sessions;
	struct namespace_counters *counters;
};

struct core {
	const struct config *config;
	struct clock clock;
	struct key_maker keys;
	struct key *salts; /* by namespace; in no core dump */
	uint64_t boot_epoch;
	uint64_t available_bytes;
	struct device *device;
	struct ram *ram; /* NULL: there is no KV-RAM */
	const char *ram_note;
	const struct staging *staging; /* NULL: none */
	const char *staging_note;
	struct executor *copies, *work;
	struct statsfile *stats;
	struct counters counters;
	uint64_t sums[COUNTER_COUNT]; /* written to the stats file now and then */
	struct log *log;
	struct core_hooks hooks;

	uint64_t now_ns; /* read every few turns: about a microsecond old */
	uint64_t turns;
	uint64_t published_ns, looked_ns;
	uint64_t serial;     /* of requests, in the order taken */
	bool draining;       /* the daemon is stopping */
	bool drained;        /* an operator wants no new work; what is open goes on */
	uint32_t n_dropping; /* pools */

	struct list sessions;    /* all that live */
	struct list awake;       /* of them: those whose rings are polled */
	struct list ready;       /* sessions with requests that go on next turn */
	struct list answered;    /* sessions that got completions and were not told yet */
	struct list closing;     /* sequences that are being closed for nobody */
	struct list dying;       /* sessions that have ended in this turn */
	struct list ended;       /* sessions whose process may still write to pages in quarantine */
	struct list quarantines; /* struct quarantine: pages of ended sessions */
	uint32_t n_sessions;
	uint32_t next_session;
	struct slots pools, sequences, steps;
	struct timers timers;
	struct charge heap;
	struct core_pool *pool[CONFIG_POOLS_MAX];
	uint32_t n_pools;
	struct core_namespace namespaces[CONFIG_NAMESPACES_MAX];
	struct list free_requests;
	struct log_limit violations;
};

/* Why nothing new is taken of a daemon that is drained. */
#define CORE_DRAINS "the daemon drains and takes nothing new until kvctl drain --undo"

static inline void core_count(struct core *c, enum counter name)
{
	c->sums[name]++;
}

uint64_t core_namespace_sequences(const struct core *c, uint16_t name_space);

/* 0, -ENOMEM or -ENOSPC (the stats file). The salts of the configuration are needed no more. */
int core_init(struct core *c, const struct core_options *options);
void core_deinit(struct core *c); /* every session has gone */

/* One turn: rings, jobs, completions, timers. true if there was something to do. */
bool core_turn(struct core *c);
/* Before sleeping: true if nothing has come in the meantime. *until_ns: the next timer. */
bool core_prepare_sleep(struct core *c, uint64_t *until_ns);
void core_end_sleep(struct core *c);
void core_tick(struct core *c); /* read the clock, run timers, write counters; now and then */

/* No new sessions or sequences; sessions end with SHUTDOWN. True once nothing is left. */
void core_publish(struct core *c); /* all counters to the stats file, now */
void core_drain(struct core *c);
bool core_is_idle(const struct core *c);
/* The pages go with the daemon: nobody waits for processes any more. */
void core_forget_quarantines(struct core *c);
/* Nobody waits for pools that are being made: no more of their memory is fetched. */
void core_forget_making(struct core *c);

/* ---- front/pools.c ---- */

int core_pools_init(struct core *c);
void core_pools_deinit(struct core *c);
/* Run who waits for room or for clean pages, in rank order. */
void core_pool_settle(struct core_pool *p);
void core_ram_settle(struct core *c); /* the same, for what others wait for in KV-RAM */
/* Pages may be given up now that could not be before: who waits for some tries again, unless it is
 * the one that says so. */
void core_pool_offer(struct core_pool *p, const struct request *by);
void core_pool_tell_lost(struct core_pool *p);  /* to requests of sequences that are discarded */
void core_ram_arrived(struct core *c);          /* more of KV-RAM is there: more can be promised */
void core_pool_fail(struct core_pool *p);       /* its memory is gone */
void core_pool_undescribe(struct core_pool *p); /* no longer what the first attach said */
void core_pool_publish(struct core_pool *p);    /* counters to the stats file */
struct order_sums order_sums(const struct core_pool *p);
void order_publish(struct core_pool *p); /* its part of them */

#endif
