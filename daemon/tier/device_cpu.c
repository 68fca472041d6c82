/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cpu: pools in host memory. submit runs on the core thread and only hands jobs on; all
 * else runs on the threads of the two executors and may block.
 *
 * Windows and pool memory can both vanish under a copy, and the fault guard does not say which
 * did. So rows go through a private buffer: one guarded copy touches one side only.
 */

#include "daemon/tier/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/panic.h"
#include "daemon/tier/copyorder.h"
#include "daemon/tier/device_memory.h"
#include "daemon/tier/device_move.h"
#include "daemon/tier/nodes.h"
#include "kernels/format.h"
#include "shm/guard.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define BUFFER_BYTES      16384
#define CYCLE_PIECE_BYTES 65536
#define STREAM_ZEROS_MIN  (256 * 1024) /* fewer bytes stay in the cache: they are used soon */

/* The largest row, 4 bytes for each element, fits. */
_Static_assert(BUFFER_BYTES >= 4 * GEOMETRY_HEAD_DIM_MAX, "a buffer holds a row");

static char *page_record(const struct device_memory *m, uint32_t page)
{
	must(page < m->pages);
	return (char *)m->segment.memory + page * m->geometry->page_stride;
}

/* ZERO */

#if defined(__x86_64__)
/* Past the cache: a record of this size would throw out everything else and not be read soon. */
static void stream_zeros(void *to, size_t bytes)
{
	__m128i *at = to;

	for (size_t i = 0; i < bytes / sizeof(*at); i++)
		_mm_stream_si128(at + i, _mm_setzero_si128());
	/* Such stores are weakly ordered: before this job is seen as done they must be visible. */
	_mm_sfence();
}
#else
/* The C library knows how this machine fills large areas. */
static void stream_zeros(void *to, size_t bytes)
{
	memset(to, 0, bytes);
}
#endif

struct zero_context {
	void *to;
	size_t bytes;
};

static void stream_zeros_body(void *context)
{
	const struct zero_context *c = context;

	stream_zeros(c->to, c->bytes);
}

static int zero_pages(struct device_job *j)
{
	uint64_t stride = j->memory->geometry->page_stride;
	int r;

	for (uint32_t i = 0; i < j->n; i++) {
		struct zero_context c = {page_record(j->memory, j->pages[i]), stride};

		if (j->n * stride >= STREAM_ZEROS_MIN)
			r = guard_run(stream_zeros_body, &c);
		else
			r = guard_zero(c.to, c.bytes);
		if (r)
			return -EIO;
	}
	return 0;
}

/* COPY */

/* Turn one cycle of copies, a piece of all its pages at a time. */
static int turn_cycle(const struct device_job *j, const struct copyorder *o, uint32_t first,
		      char *piece)
{
	const struct device_memory *m = j->memory;
	uint64_t stride = m->geometry->page_stride;

	if (o->feeder[first] == first)
		return 0; /* a page copied to itself */

	for (uint64_t at = 0; at < stride; at += CYCLE_PIECE_BYTES) {
		size_t bytes = stride - at < CYCLE_PIECE_BYTES ? stride - at : CYCLE_PIECE_BYTES;
		uint32_t i = first;

		if (guard_copy(piece, page_record(m, j->copies[i].to) + at, bytes))
			return -EIO;
		for (; o->feeder[i] != first; i = o->feeder[i]) {
			const struct device_copy *c = &j->copies[i];

			if (guard_copy(page_record(m, c->to) + at, page_record(m, c->from) + at,
				       bytes))
				return -EIO;
		}
		if (guard_copy(page_record(m, j->copies[i].to) + at, piece, bytes))
			return -EIO;
	}
	return 0;
}

static int turn_cycles(const struct device_job *j, const struct copyorder *o, char *piece)
{
	for (uint32_t i = 0; i < o->n_cycles; i++) {
		int r = turn_cycle(j, o, o->cycle[i], piece);

		if (r)
			return r;
	}
	return 0;
}

/* The first rows of every head, layer and side; the rest of the target stays as it is. */
static int copy_rows(const struct device_memory *m, const struct device_copy *c, uint32_t tokens)
{
	const struct geometry *g = m->geometry;

	for (uint32_t i = 0; i < g->n_layers * 2; i++) {
		const struct geometry_layer *layer = &g->layers[i / 2];
		uint32_t side = i % 2;
		uint64_t head_bytes = (uint64_t)g->page_tokens * layer->row_bytes[side];
		uint64_t at = layer->offset[side];

		if (side == 1 && layer->head_dim[1] == 0)
			continue;
		for (uint32_t head = 0; head < layer->kv_heads; head++, at += head_bytes) {
			if (guard_copy(page_record(m, c->to) + at, page_record(m, c->from) + at,
				       (size_t)tokens * layer->row_bytes[side]))
				return -EIO;
		}
	}
	return 0;
}

static int copy_straight(const struct device_job *j, const struct copyorder *o)
{
	const struct device_memory *m = j->memory;

	for (uint32_t i = 0; i < o->n_straight; i++) {
		const struct device_copy *c = &j->copies[o->straight[i]];

		if (j->copy_tokens) {
			if (copy_rows(m, c, j->copy_tokens))
				return -EIO;
		} else if (guard_copy(page_record(m, c->to), page_record(m, c->from),
				      m->geometry->page_stride)) {
			return -EIO;
		}
	}
	return 0;
}

static int copy_pages(struct device_job *j)
{
	struct copyorder order;
	char *piece = NULL;
	int r;

	if (j->n == 0)
		return 0;
	must(j->copy_tokens <= j->memory->geometry->page_tokens);
	r = copyorder_make(j->copies, j->n, &order);
	if (r)
		return r;
	/* Before the first copy: to run out of memory in the middle would be neither one. */
	if (order.n_cycles) {
		piece = malloc(CYCLE_PIECE_BYTES);
		if (!piece) {
			copyorder_free(&order);
			return -ENOMEM;
		}
	}
	r = copy_straight(j, &order);
	if (!r)
		r = turn_cycles(j, &order, piece);
	free(piece);
	copyorder_free(&order);
	return r;
}

/* WRITE and READ */

/* Rows are walked as they lie in the window: token by token, all heads of it. */
struct row_walk {
	const struct device_job *job;
	const struct geometry_layer *layer;
	uint32_t slot; /* token slot of the next row, counted from the start of pages[0] */
	uint32_t head; /* and its head */
	uint32_t row_elements;
	size_t window_row_bytes;
	size_t pool_row_bytes;
};

/* Some rows between their places in the pool and a private buffer, for the guard. */
struct row_batch {
	struct row_walk *walk;
	char *buffer;
	size_t rows;
	bool to_pool;
};

static char *next_row(struct row_walk *w)
{
	const struct device_job *j = w->job;
	const struct geometry *g = j->memory->geometry;
	uint32_t page = j->pages[w->slot / g->page_tokens];
	uint64_t row = (uint64_t)w->head * g->page_tokens + w->slot % g->page_tokens;

	if (++w->head == w->layer->kv_heads) {
		w->head = 0;
		w->slot++;
	}
	return (char *)j->memory->segment.memory + page * g->page_stride +
	       w->layer->offset[j->rows.side] + row * w->pool_row_bytes;
}

static void move_batch_body(void *context)
{
	struct row_batch *b = context;
	size_t bytes = b->walk->pool_row_bytes;

	for (size_t i = 0; i < b->rows; i++) {
		char *row = next_row(b->walk);

		if (b->to_pool)
			memcpy(row, b->buffer + i * bytes, bytes);
		else
			memcpy(b->buffer + i * bytes, row, bytes);
	}
}

static struct row_walk walk_begin(const struct device_job *j)
{
	const struct device_rows *rows = &j->rows;
	const struct geometry *g = j->memory->geometry;
	struct row_walk w = {.job = j, .slot = rows->first_slot};
	uint64_t slots;

	must(rows->layer < g->n_layers && rows->side <= 1);
	must(kernel_format_is_valid(rows->format));
	must(rows->first_slot < g->page_tokens);
	slots = (uint64_t)rows->first_slot + rows->n_tokens;
	must(slots <= (uint64_t)j->n * g->page_tokens);
	must(slots <= UINT32_MAX);
	for (uint32_t i = 0; i < j->n; i++)
		must(j->pages[i] < j->memory->pages);

	w.layer = &g->layers[rows->layer];
	w.row_elements = geometry_row_elements(w.layer, rows->side);
	w.window_row_bytes = kernel_format_bytes(rows->format, w.row_elements);
	w.pool_row_bytes = w.layer->row_bytes[rows->side];
	return w;
}

/* How many rows fit in both buffers. */
static size_t rows_of_a_batch(const struct row_walk *w)
{
	size_t larger =
	    w->window_row_bytes > w->pool_row_bytes ? w->window_row_bytes : w->pool_row_bytes;

	return BUFFER_BYTES / larger;
}

static int write_rows(struct device_job *j)
{
	_Alignas(64) char window_side[BUFFER_BYTES], pool_side[BUFFER_BYTES];
	struct row_walk w = walk_begin(j);
	enum kernel_format stored = w.layer->format[j->rows.side];
	uint64_t left = (uint64_t)j->rows.n_tokens * w.layer->kv_heads;
	const char *from = j->rows.memory;
	uint64_t saturated = 0;

	must(w.layer->head_dim[j->rows.side] > 0); /* V without a block is never written */
	if (atomic_load_explicit(&j->job.cancelled, memory_order_relaxed))
		return -ECANCELED;

	while (left > 0) {
		size_t rows = left < rows_of_a_batch(&w) ? left : rows_of_a_batch(&w);
		struct row_batch batch = {&w, pool_side, rows, true};

		if (guard_copy(window_side, from, rows * w.window_row_bytes))
			return -EFAULT;
		saturated += kernel_convert(stored, pool_side, j->rows.format, window_side,
					    rows * w.row_elements);
		if (guard_run(move_batch_body, &batch))
			return -EIO;
		from += rows * w.window_row_bytes;
		left -= rows;
	}
	j->saturated = saturated;
	return 0;
}

static int read_rows(struct device_job *j)
{
	_Alignas(64) char window_side[BUFFER_BYTES], pool_side[BUFFER_BYTES];
	struct row_walk w = walk_begin(j);
	enum kernel_format stored = w.layer->format[j->rows.side];
	uint64_t left = (uint64_t)j->rows.n_tokens * w.layer->kv_heads;
	char *to = j->rows.memory;

	while (left > 0) {
		size_t rows = left < rows_of_a_batch(&w) ? left : rows_of_a_batch(&w);
		struct row_batch batch = {&w, pool_side, rows, false};

		if (atomic_load_explicit(&j->job.cancelled, memory_order_relaxed))
			return -ECANCELED;
		if (guard_run(move_batch_body, &batch))
			return -EIO;
		kernel_convert(j->rows.format, window_side, stored, pool_side,
			       rows * w.row_elements);
		if (guard_copy(to, window_side, rows * w.window_row_bytes))
			return -EFAULT;
		to += rows * w.window_row_bytes;
		left -= rows;
	}
	return 0;
}

/* Jobs */

static int run_operation(struct device_job *j)
{
	switch (j->op) {
	case DEVICE_MAKE:
		return device_memory_make(j);
	case DEVICE_FREE:
		device_memory_free(j->memory);
		return 0;
	case DEVICE_ZERO:
		return zero_pages(j);
	case DEVICE_COPY:
		return copy_pages(j);
	case DEVICE_WRITE:
		return write_rows(j);
	case DEVICE_READ:
		return read_rows(j);
	case DEVICE_MOVE:
		return device_move_run(j);
	case DEVICE_OPS:
		break;
	}
	cannot_happen("a device operation is unknown");
}

static void run_job(struct job *job)
{
	struct device_job *j = (struct device_job *)job;
	uint64_t start_ns;

	if (j->op != DEVICE_MOVE) {
		job->result = run_operation(j);
		return;
	}
	/* Whatever else the host gives this processor to is not work of the device. */
	start_ns = clock_thread_ns();
	job->result = run_operation(j);
	j->busy_ns = clock_thread_ns() - start_ns;
}

static bool op_is_copying(enum device_op op)
{
	return op != DEVICE_MAKE && op != DEVICE_FREE;
}

static void device_cpu_submit(struct device *d, struct device_job *job)
{
	must(job->op >= DEVICE_MAKE && job->op <= DEVICE_MOVE);
	must(job->memory && job->job.done);

	job->job.run = run_job;
	job->saturated = 0;
	d->dispatches[job->op]++;
	if (op_is_copying(job->op)) {
		must(job->memory->segment.memory);
		d->copies->submit(d->copies, &job->job);
		return;
	}
	job->memory->numa_node = d->numa_node;
	if (job->op == DEVICE_MAKE)
		device_memory_submit(d->work, job);
	else
		d->work->submit(d->work, &job->job);
}

static void device_cpu_free(struct device *d)
{
	free(d);
}

int device_cpu_new(struct executor *copies, struct executor *work, struct device **out)
{
	struct device *d;

	must(copies && work);
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	*d = (struct device){
	    .submit = device_cpu_submit,
	    .free = device_cpu_free,
	    .name = "cpu",
	    .copies = copies,
	    .work = work,
	    .numa_node = NODES_ANYWHERE,
	};
	*out = d;
	return 0;
}
