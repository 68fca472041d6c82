/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_DEVICE_WORLD_H
#define KVHOST_TESTS_DEVICE_WORLD_H

/*
 * device_world: a CPU device for tests, with executors that run jobs when they are reaped.
 * Memory is dirtied after it is made, so that work that is not done does not go unnoticed.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/tier/device.h"

#define POISON     0xa5
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* An executor without a thread: what is submitted runs, in order, when it is reaped. */
struct inline_executor {
	struct executor executor;
	struct list waiting;
	unsigned int runs;
};

static inline void inline_submit(struct executor *e, struct job *job)
{
	struct inline_executor *i = (struct inline_executor *)e;

	list_append(&i->waiting, &job->link);
}

static inline unsigned int inline_reap(struct executor *e, unsigned int max)
{
	struct inline_executor *i = (struct inline_executor *)e;
	unsigned int n = 0;

	while (n < max && !list_is_empty(&i->waiting)) {
		struct job *job = list_entry(list_first(&i->waiting), struct job, link);

		list_remove(&job->link);
		job->run(job);
		job->done(job);
		n++;
	}
	i->runs += n;
	return n;
}

static inline void inline_init(struct inline_executor *i)
{
	*i = (struct inline_executor){.executor = {.submit = inline_submit, .reap = inline_reap}};
	list_init(&i->waiting);
}

struct world {
	struct inline_executor copies;
	struct inline_executor work;
	struct device *device;
	struct geometry_layer layers[2];
	struct geometry geometry;
	struct device_memory memory;
	bool made;
	struct segment kept; /* the memory that was made, while a test has put other in its place */
};

static inline void mark_done(struct job *job)
{
	struct device_job *j = (struct device_job *)job;

	*(int *)j->owner += 1;
}

/* Submit and let it run; its result. */
static inline int run(struct world *w, struct device_job *j)
{
	struct inline_executor *e =
	    j->op == DEVICE_MAKE || j->op == DEVICE_FREE ? &w->work : &w->copies;
	int done = 0;

	j->memory = &w->memory;
	j->job.done = mark_done;
	j->owner = &done;
	w->device->submit(w->device, j);
	assert_int_equal(done, 0);
	assert_int_equal(e->executor.reap(&e->executor, 10), 1);
	assert_int_equal(done, 1);
	return j->job.result;
}

static inline int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	if (!w)
		return -1;
	inline_init(&w->copies);
	inline_init(&w->work);
	w->memory.segment = SEGMENT_NONE;
	w->kept = SEGMENT_NONE;
	*state = w;
	return device_cpu_new(&w->copies.executor, &w->work.executor, &w->device);
}

static inline int teardown(void **state)
{
	struct world *w = *state;

	if (w->kept.memory)
		w->memory.segment = w->kept;
	if (w->made) {
		struct device_job j = {.op = DEVICE_FREE};

		if (run(w, &j))
			return -1;
	}
	w->device->free(w->device);
	free(w);
	return 0;
}

static inline void compute(struct world *w, uint32_t page_tokens)
{
	const char *why = "";
	uint32_t layer;

	w->geometry.page_tokens = page_tokens;
	w->geometry.n_layers = 2;
	w->geometry.layers = w->layers;
	if (geometry_compute(&w->geometry, &why, &layer))
		fail_msg("%s", why);
	w->memory.geometry = &w->geometry;
}

static inline void make(struct world *w, uint64_t pages)
{
	struct device_job j = {.op = DEVICE_MAKE};

	w->memory.pages = pages;
	assert_int_equal(run(w, &j), 0);
	w->made = true;
	memset(w->memory.segment.memory, POISON, pages * w->geometry.page_stride);
}

/* One page record of 4 KiB: blocks at 0 (K), 1024 (V), 1280 (K of both) in it. */
static inline void make_small(struct world *w, uint64_t pages)
{
	w->layers[0] = (struct geometry_layer){
	    .kv_heads = 2, .head_dim = {8, 4}, .format = {KERNEL_FLOAT32, KERNEL_FLOAT16}};
	w->layers[1] = (struct geometry_layer){
	    .kv_heads = 3, .head_dim = {8, 0}, .format = {KERNEL_BFLOAT16, KERNEL_BFLOAT16}};
	compute(w, 16);
	make(w, pages);
}

/* Records of 1.25 MiB: past the cache when zeroed, copied in pieces when turned. */
static inline void make_large(struct world *w, uint64_t pages)
{
	w->layers[0] = (struct geometry_layer){
	    .kv_heads = 8, .head_dim = {256, 256}, .format = {KERNEL_FLOAT32, KERNEL_FLOAT32}};
	w->layers[1] = (struct geometry_layer){
	    .kv_heads = 8, .head_dim = {128, 128}, .format = {KERNEL_BFLOAT16, KERNEL_FLOAT16}};
	compute(w, 64);
	assert_int_equal(w->geometry.page_stride, 1280 * 1024);
	make(w, pages);
}

static inline unsigned char *page_of(struct world *w, uint64_t page)
{
	return (unsigned char *)w->memory.segment.memory + page * w->geometry.page_stride;
}

static inline bool page_is(struct world *w, uint64_t page, unsigned char byte)
{
	const unsigned char *p = page_of(w, page);

	return p[0] == byte && memcmp(p, p + 1, w->geometry.page_stride - 1) == 0;
}

#endif
