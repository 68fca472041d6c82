/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_rows: rows of K and V between the window and pages. Core thread; the bytes move on the device.
 *
 * A job in flight holds the window and pins its pages: a client that dies, cancels or runs out of
 * time leaves both in place until the job has run.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/request.h"

struct rows_job {
	struct device_job job; /* first */
	struct core *core;
	struct request *request; /* NULL: it was abandoned */
	struct core_pool *pool;
	struct session_memory *memory;
	uint32_t n;
	uint32_t pages[];
};

static uint64_t row_bytes(const struct request *r)
{
	const struct payload_rows *in = r->in;
	const struct geometry_layer *layer = &r->pool->geometry.layers[in->layer];
	uint32_t dim = layer->head_dim[in->side] ? layer->head_dim[in->side] : layer->head_dim[0];

	return (uint64_t)in->n_tokens *
	       kernel_format_bytes((enum kernel_format)in->format, (uint64_t)layer->kv_heads * dim);
}

static bool rows_check(struct request *r)
{
	const struct payload_rows *in = r->in;
	const struct geometry *g = &r->pool->geometry;
	bool write = r->kind == &kind_kv_write;
	uint64_t room = write ? r->entry.in_bytes - sizeof(*in) : r->entry.out_bytes;

	if (!range_is_zero(in->reserved, sizeof(in->reserved)))
		return refused(r, WIRE_EINVAL, "reserved words of the rows are set");
	if (in->layer >= g->n_layers || in->side > PAYLOAD_V)
		return refused(r, WIRE_EINVAL,
			       "layer %u, side %u; the pool has layers 0 to %u, "
			       "sides 0 and 1",
			       in->layer, in->side, g->n_layers - 1);
	if (write && in->side == PAYLOAD_V && g->layers[in->layer].head_dim[1] == 0)
		return refused(r, WIRE_EINVAL, "layer %u has no V of its own", in->layer);
	if (!kernel_format_is_valid(in->format))
		return refused(r, WIRE_EINVAL, "format %u of rows; known are %s", in->format,
			       kernel_format_names());
	if (in->n_tokens == 0 || in->n_tokens > r->pool->pool.limits.max_sequence_tokens)
		return refused(r, WIRE_EINVAL, "rows of %u tokens; 1 to %u are accepted",
			       in->n_tokens, r->pool->pool.limits.max_sequence_tokens);
	if (write ? room != row_bytes(r) : room < row_bytes(r))
		return refused(r, WIRE_EINVAL, "rows of %u tokens take %llu bytes, not %llu",
			       in->n_tokens, (unsigned long long)row_bytes(r),
			       (unsigned long long)room);
	return true;
}

/* The positions that may be touched: those of the open step, or what is committed. */
static bool check_positions(struct request *r)
{
	const struct payload_rows *in = r->in;
	const struct seq *s = r->sequence->seq;
	bool step = r->entry.index & STEP_HANDLE;
	bool write = r->kind == &kind_kv_write;
	uint64_t first = (uint64_t)s->first_page * s->pool->limits.page_tokens;
	uint64_t end = s->committed;

	if (step &&
	    (r->sequence->step.index != r->entry.index ||
	     r->sequence->step.generation != r->entry.generation || s->step.state != STEP_OPEN))
		return refused(r, WIRE_ESTEP, "the step is over");
	if (step)
		end = s->step.target;
	if (write)
		first = s->step.start;
	if (protection(writes_stay_in_their_step) &&
	    (in->first_token < first || in->first_token >= end ||
	     in->n_tokens > end - in->first_token))
		return refused(r, WIRE_EINVAL, "tokens %u to %llu; %llu to %llu can be touched",
			       in->first_token,
			       (unsigned long long)in->first_token + in->n_tokens - 1,
			       (unsigned long long)first, (unsigned long long)end - 1);
	return true;
}

static void finish_rows(struct request *r, const struct rows_job *j)
{
	struct core_pool *p = r->pool;
	uint64_t rows = j->job.rows.n_tokens;

	switch (j->job.job.result) {
	case 0:
		p->rows_written += r->kind == &kind_kv_write ? rows : 0;
		p->rows_read += r->kind == &kind_kv_read ? rows : 0;
		p->saturated += j->job.saturated;
		r->reply.value0 = j->job.saturated;
		r->reply.count = (uint32_t)rows;
		done(r);
		break;
	case -EFAULT:
		core_count(r->session->core, COUNTER_faults_guarded);
		session_end(r->session, WIRE_BYE_FAULT, "its window has a hole");
		break;
	case -ECANCELED:
		refuse(r, WIRE_ECANCELLED, "cancelled by the client");
		break;
	default:
		refuse(r, WIRE_EIO, "the memory of pool %s has failed", p->config->name);
		core_pool_fail(p);
		break;
	}
	request_finish(r);
}

static void rows_done(struct job *job)
{
	struct rows_job *j = (struct rows_job *)(void *)job;
	struct request *r = j->request;

	for (uint32_t i = 0; i < j->n; i++)
		pages_unpin(&j->pool->pool.pages, j->pages[i]);
	session_memory_give(j->core, j->memory);
	must(j->pool->transfers > 0);
	j->pool->transfers--;
	if (r) {
		r->u.rows.job = NULL;
		finish_rows(r, j);
	}
	core_pool_settle(j->pool);
	free(j);
}

static enum run_result rows_run(struct request *r, uint32_t *budget)
{
	const struct payload_rows *in = r->in;
	struct seq *s = r->sequence->seq;
	struct core_pool *p = r->pool;
	bool write = r->kind == &kind_kv_write;
	uint32_t page_tokens = s->pool->limits.page_tokens;
	uint32_t first = in->first_token / page_tokens;
	uint32_t n;
	struct rows_job *j;

	(void)budget;
	if (p->state != CORE_POOL_READY)
		return refuse(r, WIRE_EIO, "the memory of pool %s has failed", p->config->name);
	if (!check_positions(r))
		return RUN_DONE;
	if (r->batch)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for the device");
	n = (in->first_token + in->n_tokens - 1) / page_tokens - first + 1;
	j = failpoint(rows_memory) ? NULL : calloc(1, sizeof(*j) + n * sizeof(*j->pages));
	if (!j)
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a transfer");
	j->core = p->core;
	j->request = r;
	j->pool = p;
	j->memory = r->session->memory;
	session_memory_use(j->memory);
	j->n = n;
	for (uint32_t i = 0; i < n; i++) {
		j->pages[i] = seq_page(s, first + i);
		pages_pin(&p->pool.pages, j->pages[i]);
	}
	j->job = (struct device_job){
	    .job.done = rows_done,
	    .op = write ? DEVICE_WRITE : DEVICE_READ,
	    .memory = &p->memory,
	    .pages = j->pages,
	    .n = n,
	    .rows = {.layer = in->layer,
		     .side = in->side,
		     .format = (enum kernel_format)in->format,
		     .memory = session_window(r->session, write ? r->entry.in_offset + sizeof(*in)
								: r->entry.out_offset),
		     .first_slot = in->first_token % page_tokens,
		     .n_tokens = in->n_tokens},
	};
	r->u.rows.job = j;
	p->transfers++;
	request_wait(r, NULL);
	p->core->device->submit(p->core->device, &j->job);
	return RUN_WAIT;
}

static void rows_abandon(struct request *r, int status)
{
	(void)status;
	if (!r->u.rows.job)
		return;
	atomic_store_explicit(&r->u.rows.job->job.job.cancelled, true, memory_order_relaxed);
	r->u.rows.job->request = NULL;
	r->u.rows.job = NULL;
}

const struct request_kind kind_kv_write = {
    .opcode = WIRE_OP_KV_WRITE,
    .in_bytes = sizeof(struct payload_rows),
    .head_only = true,
    .target = TARGET_STEP,
    .waits = true,
    .rows = true,
    .latency = HISTOGRAM_latency_kv_write,
    .check = rows_check,
    .run = rows_run,
    .abandon = rows_abandon,
};

const struct request_kind kind_kv_read = {
    .opcode = WIRE_OP_KV_READ,
    .here = true,
    .in_bytes = sizeof(struct payload_rows),
    .head_only = true,
    .target = TARGET_EITHER,
    .waits = true,
    .rows = true,
    .latency = HISTOGRAM_latency_kv_read,
    .check = rows_check,
    .run = rows_run,
    .abandon = rows_abandon,
};
