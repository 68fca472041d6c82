/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_RAM_WORLD_H
#define KVHOST_TESTS_RAM_WORLD_H

/*
 * ram_world: pools of several page sizes on a real CPU device, over one real arena of KV-RAM, whose
 * jobs run when the test says so. Every page has bytes of its own, on the device and below, and
 * every header of the arena is read and compared with what lies there. One thread.
 */

#include "daemon/tier/ram.h"
#include "tests/sim/executor.h"
#include "tests/unit/opening.h"
#include "tests/unit/pool_world.h"

#define RAM_WORLD_POOLS 3
#define KIB             1024ull
#define MIB             (1024 * KIB)
#define SECOND          1000000000ull

struct ram_world_pool {
	struct ram_pool ram; /* first: what the arena knows of it */
	struct pool pool;
	struct geometry geometry;
	struct geometry_layer layer;
	struct device_memory memory;
	unsigned moved; /* times that it was told so */
	bool made;
};

struct ram_world {
	struct sim_executor work, copies, arrival;
	struct device *real;
	struct device device; /* what pools get: the real one, with faults */
	void (*run)(struct job *job);
	/* A move of a job fails with this, if it is not 0. NULL: none does. */
	int (*fault)(struct ram_world *w, const struct device_job *j, const struct device_move *m);
	uint64_t random;
	struct arena *arena;
	uint64_t changed; /* times that the arena said so */
	struct ram *ram;
	struct ram_world_pool pools[RAM_WORLD_POOLS];
	uint32_t n_pools;
	uint64_t now_ns;
};

struct ram_world_limits {
	uint64_t arena_bytes, chunk_bytes;
	uint32_t most_objects;            /* 0: as many as fit */
	bool arrives_later;               /* no chunk has come yet */
	uint64_t quota[2], guaranteed[2]; /* bytes, of namespaces 0 and 1 */
	uint32_t n_pools;
	struct ram_world_wish {
		uint64_t page_bytes;
		uint32_t pages;
		enum retain_policy order;
	} pool[RAM_WORLD_POOLS];
};

void ram_world_init(struct ram_world *w, const struct ram_world_limits *limits);
/* Everything is given up and released, in the order of a daemon that drops its pools. */
void ram_world_deinit(struct ram_world *w);

/* ram_check, pool_check; and bytes and records are what the nodes say. */
void ram_world_check(struct ram_world *w);
const char *ram_world_wrong(struct ram_world *w, bool bytes); /* without the last two, or with */

/* Ask for what is to be copied, as once a turn. */
void ram_world_kick(struct ram_world *w);
/* The next job of the device runs and is told of; false: there is none. */
bool ram_world_copy(struct ram_world *w);
/* Kick and copy until nothing is under way. */
void ram_world_settle(struct ram_world *w);
/* Time passes. */
void ram_world_wait(struct ram_world *w, uint64_t ns);

/* A step to this position, committed, its pages with their bytes; false: not now. */
bool ram_world_step(struct ram_world *w, uint32_t pool, struct seq *s, uint32_t target);
/* Open, compute and close n pages of a text. nodes: NULL or [n]. */
void ram_world_retain(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
		      uint32_t n, uint32_t *nodes);
/* Touch it: opened as far as n pages and closed; how many were had. */
uint32_t ram_world_reuse(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
			 uint32_t n);
/* n pages leave the device of a pool, or as many as can. */
void ram_world_send_down(struct ram_world *w, uint32_t pool, uint32_t n);
/* A chain that is in KV-RAM alone. */
void ram_world_put_down(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
			uint32_t n, uint32_t *nodes);

/* Of the first n pages of a text those that are found in KV-RAM. */
uint32_t ram_world_below(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
			 uint32_t n);

/* What a page is filled with. */
void ram_world_fill(void *page, uint64_t bytes, uint64_t key);

#endif
