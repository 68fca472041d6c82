/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image: checkpoints, and state sections through the window, of hybrid pools.
 *
 * Owned by the thread that uses the connection. All calls wait for the daemon; what is larger than
 * a part of the window is cut into pieces.
 */
#include "libclient/internal.h"

#include <string.h>

#define WINDOW_SHARE 4 /* a piece takes at most this part of the window */

static int finish_checkpoint(struct kvhost *host, struct request *r, int status,
			     const struct completion *c)
{
	(void)host;
	if (status == 0 && r->u.checkpoint)
		*r->u.checkpoint = (uint32_t)c->value0;
	return status;
}

int kvhost_checkpoint(struct kvhost_sequence *seq, uint32_t tokens, uint32_t *out)
{
	struct request *r;
	int result = sequence_check(seq);

	if (result)
		return result;
	result = request_take(seq->host, REQUEST_SYNCHRONOUS, WIRE_OP_CHECKPOINT, &r);
	if (result)
		return result;
	request_hold(r, NULL, seq);
	r->entry.index = seq->index;
	r->entry.generation = seq->generation;
	r->entry.arg0 = tokens;
	r->u.checkpoint = out;
	r->finish = finish_checkpoint;
	return request_go(seq->host, r, NULL);
}

struct part {
	struct kvhost_sequence *seq;
	uint32_t index, generation; /* of the sequence or of the step */
	uint32_t section;
	uint64_t offset;
	const char *from; /* one of the two is not NULL */
	char *to;
};

static int finish_part(struct kvhost *host, struct request *r, int status,
		       const struct completion *c)
{
	(void)c;
	if (status == 0 && r->u.read.rows)
		memcpy(r->u.read.rows, request_out(host, r), r->u.read.bytes);
	return status;
}

static int send_part(const struct part *p, uint64_t at, size_t bytes)
{
	struct payload_section_range head = {
	    .section = p->section, .offset = p->offset + at, .bytes = bytes};
	struct kvhost *host = p->seq->host;
	struct request *r;
	int result = request_take(host, REQUEST_SYNCHRONOUS,
				  p->from ? WIRE_OP_IMAGE_WRITE : WIRE_OP_IMAGE_READ, &r);

	if (result)
		return result;
	request_hold(r, NULL, p->seq);
	result = request_range(host, r, sizeof(head) + (p->from ? bytes : 0), p->from ? 0 : bytes);
	if (result) {
		request_give(host, r);
		return result;
	}
	memcpy(request_in(host, r), &head, sizeof(head));
	if (p->from)
		memcpy((char *)request_in(host, r) + sizeof(head), p->from + at, bytes);
	r->entry.index = p->index;
	r->entry.generation = p->generation;
	r->u.read.rows = p->to ? p->to + at : NULL;
	r->u.read.bytes = bytes;
	r->finish = finish_part;
	return request_go(host, r, NULL);
}

static int send_parts(const struct part *p, size_t bytes)
{
	size_t most = p->seq->host->window.bytes / WINDOW_SHARE;
	int result = bytes ? 0 : KVHOST_EINVAL;

	for (size_t at = 0; result == 0 && at < bytes; at += most)
		result = send_part(p, at, bytes - at < most ? bytes - at : most);
	return result;
}

int kvhost_image_write(struct kvhost_step *step, uint32_t section, uint64_t offset,
		       const void *from, size_t bytes)
{
	struct part p = {.section = section, .offset = offset, .from = from};
	int result = step && from ? sequence_check(step->sequence) : KVHOST_EINVAL;

	if (result)
		return result;
	p.seq = step->sequence;
	p.index = step->index;
	p.generation = step->generation;
	return send_parts(&p, bytes);
}

int kvhost_image_read(struct kvhost_sequence *seq, const struct kvhost_step *step, uint32_t section,
		      uint64_t offset, void *to, size_t bytes)
{
	struct part p = {.seq = seq, .section = section, .offset = offset, .to = to};
	int result = to ? sequence_check(seq) : KVHOST_EINVAL;

	if (result)
		return result;
	if (step && step->sequence != seq)
		return host_fail(seq->host, KVHOST_EINVAL, "the step is of another sequence");
	p.index = step ? step->index : seq->index;
	p.generation = step ? step->generation : seq->generation;
	return send_parts(&p, bytes);
}
