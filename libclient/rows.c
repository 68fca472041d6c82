/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows: K and V through the window, converted by the daemon.
 *
 * Owned by the thread that uses the connection. The calls without submit in their name wait for
 * the daemon, and cut what is larger than the window into pieces.
 */
#include "libclient/internal.h"

#include <string.h>

#define WINDOW_SHARE 4 /* a piece takes at most this part of the window */

struct rows {
	struct kvhost_sequence *seq;
	const struct kvhost_step *step; /* NULL: read committed rows */
	struct payload_rows head;
	const char *from; /* one of the two is not NULL */
	char *to;
	uint64_t bytes;
};

static uint32_t format_bytes(uint32_t format)
{
	if (format == KVHOST_FLOAT32)
		return 4;
	return format == KVHOST_FLOAT16 || format == KVHOST_BFLOAT16 ? 2 : 0;
}

static int check_rows(const struct rows *x)
{
	struct kvhost *host = x->seq->host;
	const struct kvhost_pool *pool = x->seq->pool;
	const struct payload_rows *h = &x->head;
	const struct kvhost_layer *layer;
	uint64_t dim, wanted;

	if ((!x->from && !x->to) || h->n_tokens == 0 || h->side > KVHOST_V)
		return host_fail(host, KVHOST_EINVAL, "no rows, or a side that is neither K nor V");
	if (format_bytes(h->format) == 0)
		return host_fail(host, KVHOST_EINVAL, "rows cannot be in format %u", h->format);
	if (!pool)
		return 0;
	if (h->layer >= pool->info.n_layers)
		return host_fail(host, KVHOST_EINVAL, "layer %u of a pool with %u", h->layer,
				 pool->info.n_layers);
	layer = &pool->layers[h->layer];
	dim = h->side == KVHOST_K ? layer->k_head_dim : layer->v_head_dim;
	/* Where V lies in the row of K, only the daemon knows what a row of V is. */
	if (dim == 0)
		return 0;
	wanted = (uint64_t)h->n_tokens * format_bytes(h->format);
	if (__builtin_mul_overflow(wanted, dim, &wanted) ||
	    __builtin_mul_overflow(wanted, (uint64_t)layer->kv_heads, &wanted) ||
	    wanted != x->bytes)
		return host_fail(host, KVHOST_EINVAL,
				 "%u tokens of %u heads of %llu elements are not %llu bytes",
				 h->n_tokens, layer->kv_heads, (unsigned long long)dim,
				 (unsigned long long)x->bytes);
	return 0;
}

static int finish_write(struct kvhost *host, struct request *r, int status,
			const struct completion *c)
{
	(void)host;
	(void)r;
	(void)c;
	return status;
}

static int finish_read(struct kvhost *host, struct request *r, int status,
		       const struct completion *c)
{
	(void)c;
	if (status == 0 && r->u.read.rows)
		memcpy(r->u.read.rows, request_out(host, r), r->u.read.bytes);
	return status;
}

static int put_written(struct kvhost *host, struct request *r, const struct rows *x)
{
	bool lent = request_lend(host, r, x->from, sizeof(x->head), x->bytes);
	char *to;
	int result;

	if (!lent) {
		result = request_range(host, r, sizeof(x->head) + x->bytes, 0);
		if (result)
			return result;
	}
	to = request_in(host, r);
	memcpy(to, &x->head, sizeof(x->head));
	if (!lent)
		memcpy(to + sizeof(x->head), x->from, x->bytes);
	r->finish = finish_write;
	return 0;
}

static bool read_in_place(const struct kvhost *host, const struct rows *x)
{
	return (uintptr_t)x->to % 8 == 0 && x->bytes <= UINT32_MAX &&
	       window_holds(&host->window, x->to, x->bytes);
}

static int put_read(struct kvhost *host, struct request *r, const struct rows *x)
{
	bool in_place = read_in_place(host, x);
	int result;

	result = request_range(host, r, sizeof(x->head), in_place ? 0 : x->bytes);
	if (result)
		return result;
	if (in_place) {
		r->entry.out_offset = (uint64_t)((uintptr_t)x->to - (uintptr_t)host->window.memory);
		r->entry.out_bytes = (uint32_t)x->bytes;
	}
	memcpy(request_in(host, r), &x->head, sizeof(x->head));
	r->u.read.rows = in_place ? NULL : x->to;
	r->u.read.bytes = x->bytes;
	r->finish = finish_read;
	return 0;
}

static int send_rows(enum request_kind kind, const struct rows *x, void *user,
		     kvhost_ticket *ticket)
{
	struct kvhost *host = x->seq->host;
	struct request *r;
	int result;

	result = request_take(host, kind, x->from ? WIRE_OP_KV_WRITE : WIRE_OP_KV_READ, &r);
	if (result)
		return result;
	request_hold(r, NULL, x->seq);
	result = x->from ? put_written(host, r, x) : put_read(host, r, x);
	if (result) {
		request_give(host, r);
		return result;
	}
	r->entry.index = x->step ? x->step->index : x->seq->index;
	r->entry.generation = x->step ? x->step->generation : x->seq->generation;
	r->user = user;
	return request_go(host, r, ticket);
}

/* In one piece if it fits, or need not be copied; else in pieces of whole tokens. */
static int send_pieces(const struct rows *x)
{
	struct kvhost *host = x->seq->host;
	uint64_t most = host->window.bytes / WINDOW_SHARE;
	uint64_t token_bytes = x->bytes / x->head.n_tokens;
	uint32_t at_once, done = 0;
	struct rows piece = *x;
	int result = 0;

	if (x->bytes <= most || x->bytes % x->head.n_tokens != 0 ||
	    (x->from ? window_block_of_caller(&host->window, x->from) != WINDOW_NONE
		     : read_in_place(host, x)))
		return send_rows(REQUEST_SYNCHRONOUS, x, NULL, NULL);
	at_once = token_bytes > most ? 1 : (uint32_t)(most / token_bytes);
	while (result == 0 && done < x->head.n_tokens) {
		uint32_t n = x->head.n_tokens - done < at_once ? x->head.n_tokens - done : at_once;

		piece.head.first_token = x->head.first_token + done;
		piece.head.n_tokens = n;
		piece.bytes = n * token_bytes;
		piece.from = x->from ? x->from + done * token_bytes : NULL;
		piece.to = x->to ? x->to + done * token_bytes : NULL;
		result = send_rows(REQUEST_SYNCHRONOUS, &piece, NULL, NULL);
		done += n;
	}
	return result;
}

static int start_rows(enum request_kind kind, struct kvhost_sequence *seq,
		      const struct kvhost_step *step, struct rows *x, void *user,
		      kvhost_ticket *ticket)
{
	int result;

	result = sequence_check(seq);
	if (result)
		return result;
	if (step && step->sequence != seq)
		return host_fail(seq->host, KVHOST_EINVAL, "the step is of another sequence");
	x->seq = seq;
	x->step = step;
	result = check_rows(x);
	if (result)
		return result;
	return kind == REQUEST_SYNCHRONOUS ? send_pieces(x) : send_rows(kind, x, user, ticket);
}

static struct rows written(uint32_t layer, enum kvhost_side side, uint32_t first_token,
			   uint32_t n_tokens, enum kvhost_format format, const void *rows,
			   size_t bytes)
{
	return (struct rows){
	    .head =
		{
		    .layer = layer,
		    .side = (uint32_t)side,
		    .format = (uint32_t)format,
		    .first_token = first_token,
		    .n_tokens = n_tokens,
		},
	    .from = rows,
	    .bytes = bytes,
	};
}

static struct rows read_to(uint32_t layer, enum kvhost_side side, uint32_t first_token,
			   uint32_t n_tokens, enum kvhost_format format, void *rows, size_t bytes)
{
	struct rows x = written(layer, side, first_token, n_tokens, format, NULL, bytes);

	x.to = rows;
	return x;
}

int kvhost_kv_write(struct kvhost_step *step, uint32_t layer, enum kvhost_side side,
		    uint32_t first_token, uint32_t n_tokens, enum kvhost_format format,
		    const void *rows, size_t bytes)
{
	struct rows x = written(layer, side, first_token, n_tokens, format, rows, bytes);

	if (!step)
		return KVHOST_EINVAL;
	return start_rows(REQUEST_SYNCHRONOUS, step->sequence, step, &x, NULL, NULL);
}

int kvhost_submit_kv_write(struct kvhost_step *step, uint32_t layer, enum kvhost_side side,
			   uint32_t first_token, uint32_t n_tokens, enum kvhost_format format,
			   const void *rows, size_t bytes, void *user, kvhost_ticket *out)
{
	struct rows x = written(layer, side, first_token, n_tokens, format, rows, bytes);

	if (!step)
		return KVHOST_EINVAL;
	return start_rows(REQUEST_TICKET, step->sequence, step, &x, user, out);
}

int kvhost_kv_read(struct kvhost_sequence *seq, const struct kvhost_step *step, uint32_t layer,
		   enum kvhost_side side, uint32_t first_token, uint32_t n_tokens,
		   enum kvhost_format format, void *rows, size_t bytes)
{
	struct rows x = read_to(layer, side, first_token, n_tokens, format, rows, bytes);

	return start_rows(REQUEST_SYNCHRONOUS, seq, step, &x, NULL, NULL);
}

int kvhost_submit_kv_read(struct kvhost_sequence *seq, const struct kvhost_step *step,
			  uint32_t layer, enum kvhost_side side, uint32_t first_token,
			  uint32_t n_tokens, enum kvhost_format format, void *rows, size_t bytes,
			  void *user, kvhost_ticket *out)
{
	struct rows x = read_to(layer, side, first_token, n_tokens, format, rows, bytes);

	return start_rows(REQUEST_TICKET, seq, step, &x, user, out);
}
