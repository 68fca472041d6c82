/* SPDX-License-Identifier: Apache-2.0 */
/* op_image: checkpoint, and state images through the window. Core thread; nothing blocks. */
#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/front/hybrid.h"

/* ---- checkpoint ---- */

static bool checkpoint_check(struct request *r)
{
	if (!r->pool->pool.hybrid)
		return refused(r, WIRE_ENOTSUP,
			       "pool %s is dense: its pages are reused without checkpoints",
			       r->pool->config->name);
	return true;
}

static enum run_result captured(struct request *r, enum capture_skip skip)
{
	r->reply.value0 = (uint64_t)skip;
	r->reply.value1 = r->sequence->seq->committed;
	return done(r);
}

static void checkpoint_copied(struct request *r, int result)
{
	if (result == -ENOSPC) {
		r->pool->pool.stats.capture_skips[CAPTURE_NO_SLOT]++;
		captured(r, CAPTURE_NO_SLOT);
	} else if (result) {
		refuse(r, WIRE_EIO, "the memory of pool %s has failed", r->pool->config->name);
		core_pool_fail(r->pool);
	} else {
		captured(r, CAPTURE_MADE);
	}
	request_finish(r);
}

static enum run_result checkpoint_run(struct request *r, uint32_t *budget)
{
	struct seq *s = r->sequence->seq;
	uint64_t tokens = r->entry.arg0;
	bool prefix = r->sequence->system_end && tokens == r->sequence->system_end /
							       s->pool->limits.page_tokens *
							       s->pool->limits.page_tokens;
	uint32_t image;
	enum capture_skip skip;

	(void)budget;
	if (s->step.state != STEP_NONE)
		return refuse(r, WIRE_EBUSY, "a step is open");
	if (tokens != s->committed)
		return refuse(r, WIRE_EINVAL,
			      "a checkpoint at %llu tokens; the state is that of %u committed ones",
			      (unsigned long long)tokens, s->committed);
	if (r->batch)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for a copy of the image");
	skip = capture_begin(s, prefix ? IMAGE_PREFIX : IMAGE_CHECKPOINT,
			     r->sequence->user_end && tokens == r->sequence->user_end, &image);
	if (skip != CAPTURE_MADE)
		return captured(r, skip);
	if (hybrid_start(r, s, IMAGE_JOB_CAPTURE, image, NULL, checkpoint_copied)) {
		capture_end(s->pool, image, false);
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a copy");
	}
	return RUN_WAIT;
}

/* The copy goes on: what a cancelled request captured is kept. */
static void image_abandon(struct request *r, int status)
{
	(void)status;
	hybrid_abandon(r);
}

const struct request_kind kind_checkpoint = {
    .opcode = WIRE_OP_CHECKPOINT,
    .target = TARGET_SEQUENCE,
    .here = true,
    .waits = true,
    .latency = -1,
    .check = checkpoint_check,
    .run = checkpoint_run,
    .abandon = image_abandon,
};

/* ---- through the window ---- */

static bool section_check(struct request *r)
{
	const struct payload_section_range *in = r->in;
	const struct hybrid_layout *h = &r->pool->layout;
	bool write = r->kind == &kind_image_write;
	uint64_t room = write ? r->entry.in_bytes - sizeof(*in) : r->entry.out_bytes;
	const struct payload_section_place *section;

	if (!r->pool->pool.hybrid)
		return refused(r, WIRE_ENOTSUP, "pool %s is dense: it has no state images",
			       r->pool->config->name);
	if (in->reserved)
		return refused(r, WIRE_EINVAL, "reserved words of the range are set");
	if (in->section >= h->n)
		return refused(r, WIRE_EINVAL, "section %u; the pool has 0 to %u", in->section,
			       h->n - 1);
	section = &h->sections[in->section];
	if (in->bytes == 0 || in->bytes > section->bytes || in->offset > section->bytes - in->bytes)
		return refused(r, WIRE_EINVAL, "bytes %llu + %llu of section %u, which has %llu",
			       (unsigned long long)in->offset, (unsigned long long)in->bytes,
			       in->section, (unsigned long long)section->bytes);
	if (write ? room != in->bytes : room < in->bytes)
		return refused(r, WIRE_EINVAL, "%llu bytes of a section take %llu, not %llu",
			       (unsigned long long)in->bytes, (unsigned long long)in->bytes,
			       (unsigned long long)room);
	return true;
}

static void section_moved(struct request *r, int result)
{
	if (result == -EFAULT) {
		core_count(r->session->core, COUNTER_faults_guarded);
		session_end(r->session, WIRE_BYE_FAULT, "its window has a hole");
	} else if (result) {
		refuse(r, WIRE_EIO, "the memory of pool %s has failed", r->pool->config->name);
		core_pool_fail(r->pool);
	} else {
		done(r);
	}
	request_finish(r);
}

static enum run_result section_run(struct request *r, uint32_t *budget)
{
	struct sequence *q = r->sequence;
	bool write = r->kind == &kind_image_write;

	(void)budget;
	if (r->pool->state != CORE_POOL_READY)
		return refuse(r, WIRE_EIO, "the memory of pool %s has failed",
			      r->pool->config->name);
	if ((r->entry.index & STEP_HANDLE) &&
	    (q->step.index != r->entry.index || q->step.generation != r->entry.generation ||
	     q->seq->step.state != STEP_OPEN))
		return refuse(r, WIRE_ESTEP, "the step is over");
	if (q->seq->lost)
		return request_refuse_lost(r);
	if (r->batch)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for the device");
	if (hybrid_start(r, q->seq, write ? IMAGE_JOB_WRITE : IMAGE_JOB_READ, IMAGE_NONE, NULL,
			 section_moved))
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a transfer");
	return RUN_WAIT;
}

/* Both ways differ in what may be named: only an open step may be written to. */
#define SECTION_KIND(code, named)                                                                  \
	{                                                                                          \
		.opcode = (code), .in_bytes = sizeof(struct payload_section_range),                \
		.head_only = true, .target = (named), .waits = true, .rows = true, .latency = -1,  \
		.check = section_check, .run = section_run, .abandon = image_abandon,              \
	}

const struct request_kind kind_image_write = SECTION_KIND(WIRE_OP_IMAGE_WRITE, TARGET_STEP);
const struct request_kind kind_image_read = SECTION_KIND(WIRE_OP_IMAGE_READ, TARGET_EITHER);
