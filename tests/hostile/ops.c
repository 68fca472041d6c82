/* SPDX-License-Identifier: Apache-2.0 */
/* ops: see ops.h. Main thread. */
#include "tests/hostile/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define KEPT_TOKENS 40
#define KEPT_SEED   7
#define ROUND_MS    1000 /* of the good session, at most */

struct payload_handle handle_of(const struct completion *c)
{
	return (struct payload_handle){c->index, c->generation};
}

struct submission op(enum wire_opcode opcode, struct payload_handle handle)
{
	struct submission s;

	memset(&s, 0, sizeof(s));
	s.opcode = (uint16_t)opcode;
	s.index = handle.index;
	s.generation = handle.generation;
	return s;
}

struct submission op_attach(struct raw *r, bool map)
{
	struct submission s = op(WIRE_OP_POOL_ATTACH, (struct payload_handle){0});
	struct payload_pool *in = raw_window(r, IN);
	struct payload_layer *layers = (struct payload_layer *)(in + 1);

	*in = (struct payload_pool){.version = PAYLOAD_VERSION,
				    .n_layers = LAYERS,
				    .tensor_size = 1,
				    .pipeline_size = 1,
				    .want_map = map};
	(void)snprintf(in->name, sizeof(in->name), "%s", map ? "open" : "hot");
	for (int i = 0; i < LAYERS; i++)
		layers[i] = (struct payload_layer){
		    .kv_heads = 1, .k_head_dim = ROW_FLOATS, .v_head_dim = ROW_FLOATS};
	s.in_offset = IN;
	s.in_bytes = sizeof(*in) + LAYERS * sizeof(*layers);
	s.out_offset = OUT;
	s.out_bytes = sizeof(struct payload_pool_info) + LAYERS * sizeof(struct payload_block);
	return s;
}

struct submission op_open(struct raw *r, uint32_t first_token, uint32_t n, uint32_t max_tokens)
{
	struct submission s = op(WIRE_OP_OPEN, r->pool);
	struct payload_open *in = raw_window(r, IN);
	uint32_t *tokens = (uint32_t *)(in + 1);

	*in = (struct payload_open){
	    .n_tokens = n, .max_tokens = max_tokens, .max_cached_tokens = PAYLOAD_NO_LIMIT};
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = first_token + i;
	s.in_offset = IN;
	s.in_bytes = (uint32_t)sizeof(*in) + n * 4;
	s.out_offset = OUT;
	s.out_bytes = 4096;
	return s;
}

struct submission op_begin(struct raw *r, struct payload_handle seq, uint32_t target)
{
	struct submission s = op(WIRE_OP_STEP_BEGIN, seq);

	memset(raw_window(r, IN), 0, sizeof(struct payload_step));
	s.arg0 = target;
	s.in_offset = IN;
	s.in_bytes = sizeof(struct payload_step);
	s.out_offset = OUT;
	s.out_bytes = 4096;
	return s;
}

static void fill_rows(float *rows, uint32_t layer, uint32_t side, uint32_t first, uint32_t n,
		      uint32_t seed)
{
	for (uint32_t i = 0; i < n * ROW_FLOATS; i++)
		rows[i] = (float)(seed * 4096 + (layer * 2 + side) * 2048 + first * ROW_FLOATS + i);
}

struct submission op_write(struct raw *r, struct payload_handle step, uint32_t layer, uint32_t side,
			   uint32_t first, uint32_t n, uint32_t seed)
{
	struct submission s = op(WIRE_OP_KV_WRITE, step);
	struct payload_rows *in = raw_window(r, IN);

	*in = (struct payload_rows){.layer = layer,
				    .side = side,
				    .format = PAYLOAD_FLOAT32,
				    .first_token = first,
				    .n_tokens = n};
	fill_rows((float *)(in + 1), layer, side, first, n, seed);
	s.in_offset = IN;
	s.in_bytes = (uint32_t)sizeof(*in) + n * ROW_BYTES;
	return s;
}

struct submission op_read(struct raw *r, struct payload_handle seq, uint32_t layer, uint32_t side,
			  uint32_t first, uint32_t n)
{
	struct submission s = op(WIRE_OP_KV_READ, seq);
	struct payload_rows *in = raw_window(r, IN);

	*in = (struct payload_rows){.layer = layer,
				    .side = side,
				    .format = PAYLOAD_FLOAT32,
				    .first_token = first,
				    .n_tokens = n};
	s.in_offset = IN;
	s.in_bytes = sizeof(*in);
	s.out_offset = OUT;
	s.out_bytes = n * ROW_BYTES;
	return s;
}

struct submission op_commit(struct raw *r, struct payload_handle step, uint32_t tokens)
{
	struct submission s = op(WIRE_OP_STEP_COMMIT, step);
	struct payload_receipt *in = raw_window(r, IN);
	uint32_t n = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;

	*in = (struct payload_receipt){.n_pages = n, .tokens_commit = tokens};
	memcpy(in + 1, raw_window(r, OUT), n * sizeof(struct payload_handle));
	s.in_offset = IN;
	s.in_bytes = (uint32_t)(sizeof(*in) + n * sizeof(struct payload_handle));
	return s;
}

/* ---- done ---- */

static struct completion must_do(struct raw *r, const struct submission *s)
{
	struct completion c;
	int status = raw_ask(r, s, &c);

	if (status == RAW_ENDED)
		fail_msg("%s: the session ended: %s", wire_opcode_name(s->opcode), r->text);
	if (status)
		fail_msg("%s: %s: %s", wire_opcode_name(s->opcode), wire_status_text(status),
			 raw_text(r, &c));
	return c;
}

void do_attach(struct raw *r, const char *path, bool map)
{
	struct submission s;
	struct completion c;

	raw_attach(path, r);
	s = op_attach(r, map);
	c = must_do(r, &s);
	r->pool = handle_of(&c);
}

struct payload_handle do_open(struct raw *r, uint32_t first_token, uint32_t n, uint32_t max_tokens)
{
	struct submission s = op_open(r, first_token, n, max_tokens);
	struct completion c = must_do(r, &s);

	return handle_of(&c);
}

struct payload_handle do_begin(struct raw *r, struct payload_handle seq, uint32_t target)
{
	struct submission s = op_begin(r, seq, target);
	struct completion c = must_do(r, &s);

	return handle_of(&c);
}

void do_write(struct raw *r, struct payload_handle step, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < LAYERS * 2; i++) {
		struct submission s = op_write(r, step, i / 2, i % 2, 0, n, seed);

		must_do(r, &s);
	}
}

void do_commit(struct raw *r, struct payload_handle step, uint32_t tokens)
{
	struct submission s = op_commit(r, step, tokens);
	struct completion c = must_do(r, &s);

	assert_int_equal(c.value0, tokens);
}

bool bytes_are(struct raw *r, struct payload_handle seq, uint32_t n, uint32_t seed)
{
	static float expected[64 * ROW_FLOATS];

	assert_true(n <= 64);
	for (uint32_t i = 0; i < LAYERS * 2; i++) {
		struct submission s = op_read(r, seq, i / 2, i % 2, 0, n);

		memset(raw_window(r, OUT), 0xff, n * ROW_BYTES);
		must_do(r, &s);
		fill_rows(expected, i / 2, i % 2, 0, n, seed);
		if (memcmp(raw_window(r, OUT), expected, n * ROW_BYTES) != 0)
			return false;
	}
	return true;
}

void do_close(struct raw *r, struct payload_handle seq)
{
	struct submission s = op(WIRE_OP_CLOSE, seq);

	must_do(r, &s);
}

uint32_t cached_tokens(struct raw *r, uint32_t first_token, uint32_t n)
{
	struct submission s = op_open(r, first_token, n, 0);

	s.opcode = WIRE_OP_LOOKUP;
	return (uint32_t)must_do(r, &s).value0;
}

/* ---- the world ---- */

void world_start(struct world *w)
{
	static const struct rlimit no_core;
	struct payload_handle step;

	(void)setrlimit(RLIMIT_CORE, &no_core);
	daemon_start(&w->d, WORLD_JSON);
	w->round = 0;
	do_attach(&w->good, w->d.socket, false);
	w->kept = do_open(&w->good, 1000000, KEPT_TOKENS, 64);
	step = do_begin(&w->good, w->kept, KEPT_TOKENS);
	do_write(&w->good, step, KEPT_TOKENS, KEPT_SEED);
	/* The page handles were overwritten by nothing: writes have no answer in the window. */
	do_commit(&w->good, step, KEPT_TOKENS);
	world_goes_on(w);
}

void world_stop(struct world *w)
{
	world_goes_on(w);
	raw_free(&w->good);
	assert_int_equal(daemon_pool_counter(&w->d, "hot", "pool_refused_references"), 0);
	assert_int_equal(daemon_stop(&w->d, LONG_MS), 0);
	daemon_remove(&w->d);
}

void world_goes_on(struct world *w)
{
	struct raw *r = &w->good;
	uint32_t first = 2000000 + 1000 * ++w->round, n = 33;
	struct payload_handle seq, step;
	uint64_t began = now_ms();

	seq = do_open(r, first, n, 64);
	step = do_begin(r, seq, n);
	do_write(r, step, n, w->round);
	do_commit(r, step, n);
	if (!bytes_are(r, seq, n, w->round))
		fail_msg("round %u: the good session read what it did not write", w->round);
	assert_int_equal(cached_tokens(r, first, n), n / PAGE_TOKENS * PAGE_TOKENS);
	do_close(r, seq);
	if (!bytes_are(r, w->kept, KEPT_TOKENS, KEPT_SEED))
		fail_msg("the bytes that the good session keeps have changed");
	assert_in_range(now_ms() - began, 0, ROUND_MS * PATIENCE);
}

uint64_t world_closed(const struct world *w, enum wire_bye reason)
{
	static const char *const names[WIRE_BYE_COUNT] = {
	    [WIRE_BYE_CLIENT] = "sessions_closed_client",
	    [WIRE_BYE_DEATH] = "sessions_closed_death",
	    [WIRE_BYE_VIOLATION] = "sessions_closed_violation",
	    [WIRE_BYE_FAULT] = "sessions_closed_fault",
	    [WIRE_BYE_STALLED] = "sessions_closed_stalled",
	    [WIRE_BYE_SHUTDOWN] = "sessions_closed_shutdown",
	    [WIRE_BYE_QUOTA] = "sessions_closed_quota",
	};

	return daemon_counter(&w->d, names[reason]);
}

struct closed_wait {
	const struct world *w;
	enum wire_bye reason;
	uint64_t before;
};

static bool is_counted(void *context)
{
	const struct closed_wait *c = context;

	return world_closed(c->w, c->reason) > c->before;
}

void world_ends_it(struct world *w, struct raw *r, enum wire_bye reason, uint64_t before)
{
	struct closed_wait counted = {.w = w, .reason = reason, .before = before};

	raw_await_end(r);
	if (r->reason != (uint32_t)reason)
		fail_msg("ended with reason %u, not %u: %s", r->reason, reason, r->text);
	assert_true(await(is_counted, &counted, LONG_MS));
	if (reason == WIRE_BYE_VIOLATION)
		assert_int_equal(daemon_counter(&w->d, "protocol_violations"),
				 world_closed(w, WIRE_BYE_VIOLATION));
	world_goes_on(w);
}

void world_attack(struct world *w, void (*attack)(struct raw *r, const void *detail),
		  const void *detail, enum wire_bye reason)
{
	uint64_t before = world_closed(w, reason);
	struct raw r;

	do_attach(&r, w->d.socket, false);
	attack(&r, detail);
	world_ends_it(w, &r, reason, before);
	raw_free(&r);
}
