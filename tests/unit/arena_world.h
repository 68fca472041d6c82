/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_ARENA_WORLD_H
#define KVHOST_TESTS_ARENA_WORLD_H

/* arena_world: an arena whose chunks come when the test lets them. One thread. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "daemon/tier/arena.h"
#include "tests/sim/executor.h"

#define MIB        (1ull << 20)
#define CHUNK      (4 * MIB)
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

struct world {
	struct sim_executor executor;
	struct arena *arena;
	unsigned n_changed;
	uint64_t seen_bytes; /* arrived, when it changed last */
	struct job other;    /* somebody else's */
	unsigned n_other;
};

static inline void count_changed(void *context)
{
	struct world *w = context;

	w->n_changed++;
	w->seen_bytes = w->arena ? w->arena->arrived_bytes : 0;
}

static inline int setup(void **state)
{
	static struct world w;

	failpoint_clear();
	memset(&w, 0, sizeof(w));
	sim_executor_init(&w.executor);
	*state = &w;
	return 0;
}

static inline void step(struct world *w, int result)
{
	assert_true(sim_executor_step(&w->executor, result));
	assert_int_equal(w->executor.executor.reap(&w->executor.executor, 9), 1);
}

static inline int teardown(void **state)
{
	struct world *w = *state;

	failpoint_clear();
	if (w->arena) {
		while (!arena_stop(w->arena))
			step(w, 0);
		arena_free(&w->arena);
		arena_free(&w->arena);
	}
	return sim_executor_is_idle(&w->executor) ? 0 : -1;
}

static inline struct arena_wish wish_of(uint64_t bytes)
{
	return (struct arena_wish){
	    .bytes = bytes, .chunk_bytes = CHUNK, .numa_node = ARENA_INTERLEAVE, .threads = 2};
}

static inline struct arena *make(struct world *w, const struct arena_wish *wish)
{
	w->n_changed = 0;
	assert_int_equal(arena_new(wish, &w->executor.executor, count_changed, w, &w->arena), 0);
	assert_int_equal(w->n_changed, 0);
	return w->arena;
}

/* Of the host's pages how many bytes a file has. */
static inline uint64_t taken(int fd)
{
	struct stat status;

	assert_int_equal(fstat(fd, &status), 0);
	return (uint64_t)status.st_blocks * 512;
}

static inline void check_consistent(struct arena *a)
{
	assert_int_equal(frames_sums(a->frames).capacity_bytes, a->arrived_bytes);
	assert_int_equal(taken(a->memory_fd), a->arrived_bytes);
	assert_true(a->arrived_bytes <= a->bytes);
	assert_int_equal(a->state == ARENA_WHOLE, a->arrived_bytes == a->bytes);
	assert_int_equal(a->state == ARENA_PARTIAL, a->result != 0);
	for (uint64_t at = 0; at < a->arrived_bytes; at += FRAME_BYTES / 2)
		a->memory[at] = 1;
	assert_int_equal(taken(a->memory_fd), a->arrived_bytes);
}

#endif
