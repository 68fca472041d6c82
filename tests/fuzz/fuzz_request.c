/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_request: two clients of a whole core, who submit what they like, when they like.
 *
 * Input: a script (request_script.h). The core must answer, refuse, or end the session; at the end
 * everything must have come back and the pool's sums must agree. One thread.
 */
#include <assert.h>
#include <string.h>

#include "daemon/front/sequence.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_world.h"
#include "tests/fuzz/request_script.h"

#define LAYERS     2u
#define ROW_FLOATS 4u
#define ACTIONS    512 /* of one script, at most */

struct script {
	struct fuzz_world world;
	struct submission last[FUZZ_CLIENTS][FUZZ_SLOTS]; /* what was submitted, for batches */
	uint32_t deadline_us;
};

static struct script script;

/* ---- one submission ---- */

static char *in_slice(struct fuzz_client *c)
{
	return c->window + c->submit.produced % FUZZ_SLOTS * FUZZ_SLICE;
}

static uint64_t slice_offset(const struct fuzz_client *c)
{
	return c->submit.produced % FUZZ_SLOTS * FUZZ_SLICE;
}

static struct submission entry(struct fuzz_client *c, enum wire_opcode opcode,
			       struct payload_handle h, size_t in_bytes, size_t out_bytes)
{
	struct submission s;

	memset(&s, 0, sizeof(s));
	s.opcode = (uint16_t)opcode;
	s.index = h.index;
	s.generation = h.generation;
	s.in_offset = in_bytes ? slice_offset(c) : 0;
	s.in_bytes = (uint32_t)in_bytes;
	s.out_offset = out_bytes ? slice_offset(c) + FUZZ_SLOTS * FUZZ_SLICE : 0;
	s.out_bytes = (uint32_t)out_bytes;
	return s;
}

static void put(struct fuzz_client *c, struct submission *s)
{
	uint32_t who = (uint32_t)(c - script.world.clients);

	s->deadline_us = script.deadline_us;
	script.deadline_us = 0;
	memcpy(&script.last[who][c->submit.produced % FUZZ_SLOTS], s, sizeof(*s));
	/* A full ring is for the client to wait for. */
	if (ring_put(&c->submit, s) == 0)
		session_wake(c->session);
}

/* The low bits choose one of those that it got; 8 and above one of the other client, or none. */
static struct payload_handle pick(struct fuzz_client *c, uint8_t choice, bool steps)
{
	struct fuzz_client *of = c;
	struct payload_handle h;

	if (choice & 8)
		of = &script.world.clients[c == script.world.clients];
	h = steps ? of->steps[choice % FUZZ_HANDLES] : of->sequences[choice % FUZZ_HANDLES];
	if (choice & 16)
		h.generation++;
	if (choice & 32)
		h.index++;
	return h;
}

/* ---- payloads ---- */

static void put_attach(struct fuzz_client *c, const uint8_t *b)
{
	struct payload_pool *in = (struct payload_pool *)(void *)in_slice(c);
	struct payload_layer *layers = (struct payload_layer *)(in + 1);
	struct submission s =
	    entry(c, WIRE_OP_POOL_ATTACH, (struct payload_handle){0},
		  sizeof(*in) + LAYERS * sizeof(*layers),
		  sizeof(struct payload_pool_info) + LAYERS * sizeof(struct payload_block));

	*in = (struct payload_pool){.version = PAYLOAD_VERSION,
				    .n_layers = LAYERS,
				    .name = "hot",
				    .tensor_size = 1,
				    .pipeline_size = 1,
				    .want_map = b[1] & 1};
	for (uint32_t i = 0; i < LAYERS; i++)
		layers[i] = (struct payload_layer){.kv_heads = 1,
						   .k_head_dim = ROW_FLOATS,
						   .v_head_dim = b[1] & 2 ? 0 : ROW_FLOATS};
	put(c, &s);
}

static void put_prompt(struct fuzz_client *c, const uint8_t *b, enum wire_opcode opcode)
{
	struct payload_open *in = (struct payload_open *)(void *)in_slice(c);
	struct payload_span *span = (struct payload_span *)(in + 1);
	uint32_t spans = b[4] & SCRIPT_SPAN ? 1 : 0;
	uint32_t *tokens = (uint32_t *)(void *)(span + spans);
	uint32_t n = b[2] % 130;
	struct submission s =
	    entry(c, opcode, c->pool, sizeof(*in) + spans * sizeof(*span) + n * 4u,
		  sizeof(struct payload_open_result) + (b[4] & SCRIPT_SHORT ? 0 : 8 * 8));

	memset(in, 0, sizeof(*in) + sizeof(*span));
	in->flags = b[4] & SCRIPT_NO_REUSE;
	in->n_tokens = n;
	in->n_spans = spans;
	in->max_tokens = b[3];
	in->priority = b[4] & SCRIPT_INTERACTIVE ? 1 : 0;
	in->max_cached_tokens = b[4] & 32 ? 20 : PAYLOAD_NO_LIMIT;
	in->variant[0] = b[4] & SCRIPT_VARIANT;
	if (spans) {
		span->start = b[1] % 64;
		span->length = 20;
	}
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = b[1] + i / 40; /* prompts that have much in common */
	put(c, &s);
}

static void put_begin(struct fuzz_client *c, const uint8_t *b)
{
	struct payload_step *in = (struct payload_step *)(void *)in_slice(c);
	struct submission s = entry(c, WIRE_OP_STEP_BEGIN, pick(c, b[1], false), sizeof(*in), 64);

	*in = (struct payload_step){.window_start_tokens = b[3]};
	s.arg0 = b[2];
	put(c, &s);
}

/* The pages of the step that an honest client would name: they are in the core's own table. */
static uint32_t honest_pages(struct fuzz_client *c, struct payload_handle h, uint32_t tokens,
			     struct payload_handle *pages, uint32_t *unknown)
{
	const struct sequence *q = sequence_find_step(c->session, h.index, h.generation);
	const struct seq *s = q ? q->seq : NULL;
	uint32_t n, first, end;

	*unknown = 0;
	if (!s || s->step.state != STEP_OPEN || tokens == 0 ||
	    tokens > s->step.target - s->step.start)
		return 0;
	end = s->step.start + tokens;
	first = s->step.start / s->pool->limits.page_tokens;
	n = pool_pages_for(s->pool, end) - first;
	for (uint32_t i = 0; i < n; i++) {
		pages[i].index = seq_page(s, first + i);
		pages[i].generation = s->pool->pages.page[pages[i].index].generation;
	}
	first = s->ids_end > s->committed ? s->ids_end : s->committed;
	*unknown = end > first ? end - first : 0;
	return n;
}

static void put_commit(struct fuzz_client *c, const uint8_t *b)
{
	struct payload_receipt *in = (struct payload_receipt *)(void *)in_slice(c);
	struct payload_handle step = pick(c, b[1], true), pages[16];
	uint32_t unknown, n = honest_pages(c, step, b[2], pages, &unknown);
	uint32_t ids = b[3] & 1 ? unknown : 0, spans = b[3] & 2 && ids ? 1 : 0;
	struct payload_span *span;
	uint32_t *tokens;
	struct submission s = entry(
	    c, WIRE_OP_STEP_COMMIT, step,
	    sizeof(*in) + n * sizeof(*pages) + spans * sizeof(*span) + ids * sizeof(*tokens), 0);

	*in = (struct payload_receipt){
	    .n_pages = n, .n_tokens = ids, .n_spans = spans, .tokens_commit = b[2]};
	memcpy(in + 1, pages, n * sizeof(*pages));
	span = (struct payload_span *)(void *)((char *)(in + 1) + n * sizeof(*pages));
	tokens = (uint32_t *)(void *)(span + spans);
	if (spans)
		*span = (struct payload_span){.start = b[3], .length = b[3]};
	for (uint32_t i = 0; i < ids; i++)
		tokens[i] = b[3];
	put(c, &s);
}

static void put_rows(struct fuzz_client *c, const uint8_t *b, bool write)
{
	struct payload_rows *in = (struct payload_rows *)(void *)in_slice(c);
	struct payload_handle h = pick(c, b[1], write || b[2] & 4);
	uint32_t n = b[4] % 48;
	size_t bytes = n * ROW_FLOATS * sizeof(float);
	struct submission s = entry(c, write ? WIRE_OP_KV_WRITE : WIRE_OP_KV_READ, h,
				    sizeof(*in) + (write ? bytes : 0), write ? 0 : bytes);

	*in = (struct payload_rows){.layer = b[2] & 1,
				    .side = b[2] >> 1 & 1,
				    .format = PAYLOAD_FLOAT32,
				    .first_token = b[3],
				    .n_tokens = n};
	if (write)
		memset(in + 1, b[3], bytes);
	put(c, &s);
}

static void put_batch(struct fuzz_client *c, const uint8_t *b)
{
	uint32_t who = (uint32_t)(c - script.world.clients), n = b[1] % 8;
	struct submission *items = (struct submission *)(void *)in_slice(c);
	struct submission s = entry(c, WIRE_OP_BATCH, (struct payload_handle){0},
				    n * sizeof(*items), n * sizeof(struct completion));

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&items[i],
		       &script.last[who][(c->submit.produced + FUZZ_SLOTS - 1 - i) % FUZZ_SLOTS],
		       sizeof(*items));
		atomic_store_explicit(&items[i].sequence, 0, memory_order_relaxed);
	}
	s.arg0 = n;
	put(c, &s);
}

static void put_raw(struct fuzz_client *c, const uint8_t *b)
{
	struct submission s;

	memcpy((char *)&s + 8, b + 1, 56);
	if (s.in_offset < FUZZ_WINDOW_BYTES)
		memset(c->window + s.in_offset, b[57],
		       b[58] < FUZZ_WINDOW_BYTES - s.in_offset ? b[58] : 0);
	put(c, &s);
}

static void put_ask(struct fuzz_client *c, const uint8_t *b)
{
	struct payload_admin *in = (struct payload_admin *)(void *)in_slice(c);
	struct submission s = entry(c, WIRE_OP_ADMIN, (struct payload_handle){0}, sizeof(*in),
				    FUZZ_SLOTS * FUZZ_SLICE);

	if (b[1] == 0)
		s = entry(c, WIRE_OP_COUNTERS, (struct payload_handle){0}, 0,
			  sizeof(struct payload_counters));
	else
		s.out_offset = FUZZ_SLOTS * FUZZ_SLICE;
	*in = (struct payload_admin){.question = b[1]};
	put(c, &s);
}

static void put_handle(struct fuzz_client *c, enum wire_opcode opcode, struct payload_handle h,
		       uint64_t arg0, size_t out_bytes)
{
	struct submission s = entry(c, opcode, h, 0, out_bytes);

	s.arg0 = arg0;
	put(c, &s);
}

/* ---- the script ---- */

static void submit(struct fuzz_client *c, enum request_action what, const uint8_t *b)
{
	switch (what) {
	case SCRIPT_RAW:
		put_raw(c, b);
		break;
	case SCRIPT_ATTACH:
		put_attach(c, b);
		break;
	case SCRIPT_DETACH:
		put_handle(c, WIRE_OP_POOL_DETACH, c->pool, 0, 0);
		break;
	case SCRIPT_OPEN:
		put_prompt(c, b, WIRE_OP_OPEN);
		break;
	case SCRIPT_LOOKUP:
		put_prompt(c, b, WIRE_OP_LOOKUP);
		break;
	case SCRIPT_FORK:
		put_handle(c, WIRE_OP_FORK, pick(c, b[1], false), b[2], 64);
		break;
	case SCRIPT_TRUNCATE:
		put_handle(c, WIRE_OP_TRUNCATE, pick(c, b[1], false), b[2], 0);
		break;
	case SCRIPT_CLOSE:
		put_handle(c, WIRE_OP_CLOSE, pick(c, b[1], false), 0, 0);
		break;
	case SCRIPT_TABLE:
		put_handle(c, WIRE_OP_TABLE, pick(c, b[1], false), 0, b[1] & 64 ? 8 : 64);
		break;
	case SCRIPT_BEGIN:
		put_begin(c, b);
		break;
	case SCRIPT_COMMIT:
		put_commit(c, b);
		break;
	case SCRIPT_ABORT:
		put_handle(c, WIRE_OP_STEP_ABORT, pick(c, b[1], true), 0, 0);
		break;
	case SCRIPT_CANCEL:
		put_handle(c, WIRE_OP_CANCEL, (struct payload_handle){0},
			   c->submit.produced - b[1] % FUZZ_SLOTS, 0);
		break;
	case SCRIPT_BATCH:
		put_batch(c, b);
		break;
	case SCRIPT_ASK:
		put_ask(c, b);
		break;
	default:
		put_rows(c, b, what == SCRIPT_WRITE);
		break;
	}
}

static void act(enum request_action what, const uint8_t *b)
{
	struct fuzz_world *w = &script.world;
	struct fuzz_client *c = &w->clients[b[0] % FUZZ_CLIENTS];

	switch (what) {
	case SCRIPT_DEADLINE:
		script.deadline_us = b[0];
		return;
	case SCRIPT_TURN:
		w->copies.works = !(b[1] & 1);
		w->work.works = !(b[1] & 2);
		fuzz_world_turn(w, b[0] % 16 + 1);
		return;
	case SCRIPT_TIME:
		w->now_ns += (uint64_t)b[0] << (b[1] % 32);
		return;
	default:
		break;
	}
	if (!fuzz_client_session(c))
		return;
	switch (what) {
	case SCRIPT_POKE:
		c->window[(b[1] * 257u) % FUZZ_WINDOW_BYTES] = (char)b[2];
		break;
	case SCRIPT_HANG_UP:
		if (b[1] & 1)
			session_exited(c->session);
		else
			session_end(c->session, WIRE_BYE_DEATH, "hung up");
		break;
	case SCRIPT_LAZY:
		c->lazy = b[1] & 1;
		break;
	default:
		submit(c, what, b);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t at = 0;

	memset(&script, 0, sizeof(script));
	fuzz_world_start(&script.world);
	for (int i = 0; i < ACTIONS && at < size; i++) {
		enum request_action what = (enum request_action)(data[at++] % SCRIPT_ACTIONS);
		uint8_t b[SCRIPT_BYTES_MAX] = {0};
		size_t n = script_bytes[what] < size - at ? script_bytes[what] : size - at;

		memcpy(b, data + at, n);
		at += n;
		act(what, b);
	}
	fuzz_world_stop(&script.world);
	return 0;
}
