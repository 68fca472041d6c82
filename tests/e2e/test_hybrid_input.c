/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid_input: what a hybrid pool refuses, each with its error and words, and that the pool
 * goes on as it was. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/hybrid.h"
#include "tests/hostile/raw.h"

#define STATE    10007u
#define N        64 /* tokens of a prompt */
#define IN       0u /* where requests lie in a raw client's window */
#define OUT      (64u << 10)
#define SECTIONS 3u

static const char config[] = "{\"pools\": [" HYBRID_POOL(
    "hybrid", ", \"lanes\": 2, \"retained_slots\": 2, \"default_deadline_us\": "
	      "300000") ", " HYBRID_POOL("dense", "") "]}\n";

static struct daemon d;
static struct engine e;
static struct raw r = {
    .socket = -1, .control = SEGMENT_NONE, .window = SEGMENT_NONE, .pool_fd = -1};

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&e);
	raw_free(&r);
	daemon_remove(&d);
	return 0;
}

static void expect_good(void)
{
	struct engine looker;

	assert_int_equal(daemon_await(&d, "hybrid", "pool_lanes_used", 0, LONG_MS), 0);
	assert_int_equal(engine_connect(&looker, d.socket), 0);
	assert_true(engine_check(&looker));
	engine_stop(&looker);
}

/* The last refusal of the library's connection has these words. */
static void expect_words(const char *words)
{
	if (!strstr(kvhost_reason(e.host), words))
		fail_msg("\"%s\" is not in: %s", words, kvhost_reason(e.host));
}

/* ---- a raw client ---- */

static const struct payload_section honest[SECTIONS] = {
    {.name = "state", .bytes = STATE, .kind = PAYLOAD_REPLACED},
    {.name = "extra", .bytes = HYBRID_EXTRA, .kind = PAYLOAD_REPLACED},
    {.name = "ring", .bytes = HYBRID_RING, .kind = PAYLOAD_RING}};

static struct submission op(enum wire_opcode opcode, struct payload_handle handle)
{
	return (struct submission){.opcode = (uint16_t)opcode,
				   .index = handle.index,
				   .generation = handle.generation,
				   .in_offset = IN,
				   .out_offset = OUT,
				   .out_bytes = 4096};
}

static struct payload_handle handle_of(const struct completion *c)
{
	return (struct payload_handle){c->index, c->generation};
}

static struct submission op_attach(const char *pool, const struct payload_section *sections,
				   uint32_t n)
{
	struct submission s = op(WIRE_OP_POOL_ATTACH, (struct payload_handle){0});
	struct payload_pool *in = raw_window(&r, IN);
	struct payload_layer *layer = (struct payload_layer *)(in + 1);

	*in = (struct payload_pool){.version = PAYLOAD_VERSION,
				    .n_layers = 1,
				    .n_sections = n,
				    .tensor_size = 1,
				    .pipeline_size = 1};
	(void)snprintf(in->name, sizeof(in->name), "%s", pool);
	*layer = (struct payload_layer){.kv_heads = 1,
					.k_head_dim = 4,
					.v_head_dim = 4,
					.k_format = PAYLOAD_FLOAT32,
					.v_format = PAYLOAD_FLOAT32};
	if (n)
		memcpy(layer + 1, sections, n * sizeof(*sections));
	s.in_bytes = (uint32_t)(sizeof(*in) + sizeof(*layer) + n * sizeof(*sections));
	return s;
}

/* Refused with this status, in these words. */
static void refused(const struct submission *s, int status, const char *words)
{
	struct completion c;
	int got = raw_ask(&r, s, &c);

	if (got != status || !strstr(raw_text(&r, &c), words))
		fail_msg("%s: %d \"%s\", not %d \"%s\"", wire_opcode_name(s->opcode), got,
			 got == RAW_ENDED ? r.text : raw_text(&r, &c), status, words);
}

static struct payload_handle accepted(const struct submission *s)
{
	struct completion c;
	int got = raw_ask(&r, s, &c);

	if (got)
		fail_msg("%s: %d: %s", wire_opcode_name(s->opcode), got,
			 got == RAW_ENDED ? r.text : raw_text(&r, &c));
	return handle_of(&c);
}

static struct payload_handle open_one(uint32_t first_token)
{
	struct submission s = op(WIRE_OP_OPEN, r.pool);
	struct payload_open *in = raw_window(&r, IN);
	uint32_t *tokens = (uint32_t *)(in + 1);

	*in = (struct payload_open){.n_tokens = N, .max_cached_tokens = PAYLOAD_NO_LIMIT};
	for (uint32_t i = 0; i < N; i++)
		tokens[i] = first_token + i;
	s.in_bytes = (uint32_t)sizeof(*in) + N * 4;
	return accepted(&s);
}

static struct payload_handle begin(struct payload_handle seq, struct payload_step_slots *slots)
{
	struct submission s = op(WIRE_OP_STEP_BEGIN, seq);
	struct payload_handle step;

	memset(raw_window(&r, IN), 0, sizeof(struct payload_step));
	s.arg0 = N;
	s.in_bytes = sizeof(struct payload_step);
	step = accepted(&s);
	memcpy(slots, raw_window(&r, OUT), sizeof(*slots));
	return step;
}

/* Of all of a step from 0 on whose page handles still lie at OUT. */
static struct submission op_commit(struct payload_handle step, uint32_t slot, uint32_t generation)
{
	struct submission s = op(WIRE_OP_STEP_COMMIT, step);
	struct payload_receipt *in = raw_window(&r, IN);
	uint32_t n = N / HYBRID_PAGE;

	*in = (struct payload_receipt){
	    .n_pages = n, .tokens_commit = N, .slot = slot, .slot_generation = generation};
	memcpy(in + 1, (char *)raw_window(&r, OUT) + sizeof(struct payload_step_slots),
	       n * sizeof(struct payload_handle));
	s.in_bytes = (uint32_t)(sizeof(*in) + n * sizeof(struct payload_handle));
	return s;
}

static struct submission op_image(enum wire_opcode opcode, struct payload_handle handle,
				  uint32_t section, uint64_t offset, uint64_t bytes)
{
	struct submission s = op(opcode, handle);
	struct payload_section_range *in = raw_window(&r, IN);
	uint32_t fits = bytes < 32768 ? (uint32_t)bytes : 32768;

	*in = (struct payload_section_range){.section = section, .offset = offset, .bytes = bytes};
	s.in_bytes = sizeof(*in) + (opcode == WIRE_OP_IMAGE_WRITE ? fits : 0);
	s.out_bytes = opcode == WIRE_OP_IMAGE_READ ? fits : 0;
	s.out_offset = s.out_bytes ? OUT : 0;
	return s;
}

/* ---- descriptions ---- */

static void a_section_that_cannot_be_is_refused_by_its_number(void **state)
{
	struct payload_section bad[PAYLOAD_SECTIONS_MAX + 1] = {{.bytes = 0}};
	static const struct {
		struct payload_section section;
		int status;
		const char *words;
	} rows[] = {
	    {{.name = "x", .bytes = 8, .kind = 3}, WIRE_EINVAL, "section 1 has a kind"},
	    {{.name = "x", .bytes = 8, .kind = 0}, WIRE_EINVAL, "section 1 has a kind"},
	    {{.name = "x", .bytes = 0, .kind = 1}, WIRE_EINVAL, "section 1 has a size of 0"},
	    {{.name = "x", .bytes = UINT64_MAX, .kind = 2}, WIRE_EINVAL, "beyond 2^40"},
	    {{.name = "x", .bytes = 1ull << 40, .kind = 1}, WIRE_ENOSPC, "retained_slots"},
	    {{.name = "", .bytes = 8, .kind = 1}, WIRE_EINVAL, "section 1 has a name"},
	    {{.name = "state", .bytes = 8, .kind = 2}, WIRE_EINVAL, "another section has"},
	    {{.name = "x", .bytes = 8, .kind = 1, .reserved = 1}, WIRE_EINVAL, "reserved"},
	};
	struct submission s;

	(void)state;
	raw_attach(d.socket, &r);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		bad[0] = honest[0];
		bad[1] = rows[i].section;
		s = op_attach("hybrid", bad, 2);
		refused(&s, rows[i].status, rows[i].words);
	}
	memset(bad[1].name, 'x', sizeof(bad[1].name));
	bad[1].bytes = 8;
	bad[1].kind = 1;
	s = op_attach("hybrid", bad, 2);
	refused(&s, WIRE_EINVAL, "not terminated");
	s = op_attach("hybrid", bad, PAYLOAD_SECTIONS_MAX + 1);
	refused(&s, WIRE_EINVAL, "65 state sections");
	s = op_attach("hybrid", honest, SECTIONS);
	s.in_bytes -= sizeof(struct payload_section);
	refused(&s, WIRE_EINVAL, "3 sections take");
	/* Nothing of all that is left. */
	s = op_attach("hybrid", honest, SECTIONS);
	(void)accepted(&s);
	expect_good();
}

static void a_later_attach_with_other_sections_is_refused_by_field(void **state)
{
	struct payload_section other[SECTIONS];
	struct submission s;

	(void)state;
	raw_attach(d.socket, &r);
	s = op_attach("hybrid", honest, SECTIONS);
	(void)accepted(&s);
	s = op_attach("hybrid", honest, 2);
	refused(&s, WIRE_EMISMATCH, "n_sections: pool hybrid has 3, found 2");
	s = op_attach("hybrid", honest, 0);
	refused(&s, WIRE_EMISMATCH, "n_sections: pool hybrid has 3, found 0");
	memcpy(other, honest, sizeof(other));
	other[1].bytes++;
	s = op_attach("hybrid", other, SECTIONS);
	refused(&s, WIRE_EMISMATCH, "bytes of a section: pool hybrid has 101, found 102");
	other[1] = honest[1];
	other[1].kind = PAYLOAD_RING;
	s = op_attach("hybrid", other, SECTIONS);
	refused(&s, WIRE_EMISMATCH, "kind of a section: pool hybrid has 1, found 2");
	other[1] = honest[1];
	other[2].name[0] = 'R';
	s = op_attach("hybrid", other, SECTIONS);
	refused(&s, WIRE_EMISMATCH, "section 2: pool hybrid has ring, found Ring");
	s = op_attach("dense", honest, 0);
	(void)accepted(&s);
	s = op_attach("dense", honest, SECTIONS);
	refused(&s, WIRE_EMISMATCH, "n_sections: pool dense has 0, found 3");
	expect_good();
}

/* ---- images ---- */

static void a_range_outside_of_its_section_is_refused(void **state)
{
	static const struct {
		uint32_t section;
		uint64_t offset, bytes;
		const char *words;
	} rows[] = {
	    {SECTIONS, 0, 8, "section 3; the pool has 0 to 2"},
	    {UINT32_MAX, 0, 8, "the pool has 0 to 2"},
	    {0, 0, 0, "of section 0, which has 10007"},
	    {0, 0, STATE + 1, "of section 0, which has 10007"},
	    {0, STATE, 1, "of section 0, which has 10007"},
	    {0, 1, STATE, "of section 0, which has 10007"},
	    {0, UINT64_MAX, 1, "of section 0, which has 10007"},
	    {0, 1, UINT64_MAX, "of section 0, which has 10007"},
	    {2, 600, 41, "of section 2, which has 640"},
	};
	struct payload_step_slots slots;
	struct payload_handle seq, step;
	struct submission s;

	(void)state;
	raw_attach(d.socket, &r);
	s = op_attach("hybrid", honest, SECTIONS);
	r.pool = accepted(&s);
	seq = open_one(1000);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		s = op_image(WIRE_OP_IMAGE_READ, seq, rows[i].section, rows[i].offset,
			     rows[i].bytes);
		refused(&s, WIRE_EINVAL, rows[i].words);
		step = begin(seq, &slots);
		s = op_image(WIRE_OP_IMAGE_WRITE, step, rows[i].section, rows[i].offset,
			     rows[i].bytes);
		refused(&s, WIRE_EINVAL, rows[i].words);
		/* Like rows that were never written: the step can only be aborted. */
		s = op_commit(step, slots.target, slots.generation);
		refused(&s, WIRE_ESTEP, "abort it");
		s = op(WIRE_OP_STEP_ABORT, step);
		s.in_bytes = s.out_bytes = 0;
		s.in_offset = s.out_offset = 0;
		(void)accepted(&s);
	}
	assert_int_equal(daemon_await(&d, "hybrid", "pool_lanes_used", 1, LONG_MS), 1);
}

static void bytes_that_are_too_many_or_too_few_are_refused(void **state)
{
	struct payload_step_slots slots;
	struct payload_handle seq, step;
	struct submission s;

	(void)state;
	raw_attach(d.socket, &r);
	s = op_attach("hybrid", honest, SECTIONS);
	r.pool = accepted(&s);
	seq = open_one(1000);
	s = op_image(WIRE_OP_IMAGE_READ, seq, 0, 0, 100);
	s.out_bytes = 99;
	refused(&s, WIRE_EINVAL, "not 99");
	s = op_image(WIRE_OP_IMAGE_READ, seq, 0, 0, 100);
	((struct payload_section_range *)raw_window(&r, IN))->reserved = 1;
	refused(&s, WIRE_EINVAL, "reserved");
	s = op_image(WIRE_OP_IMAGE_WRITE, seq, 0, 0, 100);
	refused(&s, WIRE_ESTALE, "names no open step");
	for (int less = -1; less <= 1; less += 2) {
		step = begin(seq, &slots);
		s = op_image(WIRE_OP_IMAGE_WRITE, step, 0, 0, 100);
		s.in_bytes += (uint32_t)less;
		refused(&s, WIRE_EINVAL, "100 bytes of a section take 100");
		s = op(WIRE_OP_STEP_ABORT, step);
		s.in_offset = s.out_offset = s.out_bytes = 0;
		(void)accepted(&s);
		s = op_image(WIRE_OP_IMAGE_READ, step, 0, 0, 100);
		refused(&s, WIRE_ESTALE, "names no open");
	}
}

static void a_receipt_must_name_the_target_slot_of_its_step(void **state)
{
	struct payload_step_slots slots, others;
	struct payload_handle seq, other, step;
	struct submission s;

	(void)state;
	raw_attach(d.socket, &r);
	s = op_attach("hybrid", honest, SECTIONS);
	r.pool = accepted(&s);
	other = open_one(5000);
	(void)begin(other, &others);
	seq = open_one(1000);
	step = begin(seq, &slots);
	assert_int_not_equal(slots.target, others.target);
	s = op_commit(step, slots.source, slots.generation);
	refused(&s, WIRE_EINVAL, "is not the one that this step writes");
	s = op_commit(step, others.target, others.generation);
	refused(&s, WIRE_EINVAL, "is not the one that this step writes");
	s = op_commit(step, UINT32_MAX, slots.generation);
	refused(&s, WIRE_EINVAL, "is not the one that this step writes");
	s = op_commit(step, slots.target, slots.generation + 2);
	refused(&s, WIRE_EINVAL, "is not the one that this step writes");
	s = op_commit(step, slots.target, slots.generation - 2);
	refused(&s, WIRE_EINVAL, "is not the one that this step writes");
	/* It is still open. */
	s = op_commit(step, slots.target, slots.generation);
	(void)accepted(&s);
}

static void a_batch_does_not_wait_for_copies(void **state)
{
	struct submission s, *items;
	const struct completion *out;
	struct payload_handle seq;

	(void)state;
	raw_attach(d.socket, &r);
	s = op_attach("hybrid", honest, SECTIONS);
	r.pool = accepted(&s);
	seq = open_one(1000);
	items = raw_window(&r, IN);
	memset(items, 0, 2 * sizeof(*items));
	items[0] = (struct submission){
	    .opcode = WIRE_OP_CHECKPOINT, .index = seq.index, .generation = seq.generation};
	items[1] = (struct submission){
	    .opcode = WIRE_OP_FORK, .index = seq.index, .generation = seq.generation, .arg0 = N};
	s = op(WIRE_OP_BATCH, (struct payload_handle){0});
	s.arg0 = 2;
	s.in_bytes = 2 * sizeof(*items);
	s.out_bytes = 2 * sizeof(*out);
	(void)accepted(&s);
	out = raw_window(&r, OUT);
	assert_int_equal(out[0].status, WIRE_EAGAIN);
	assert_int_equal(out[1].status, WIRE_EAGAIN);
}

/* ---- through the library ---- */

static void a_checkpoint_is_of_the_committed_state_and_of_no_open_step(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *a;
	struct kvhost_step step;
	uint32_t tokens[N], outcome = 99;

	(void)state;
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	a = hybrid_open(&e, tokens, N, 0, 0, &found);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_SHORT); /* nothing committed */
	hybrid_step(&e, a, 20, 1);
	assert_int_equal(kvhost_checkpoint(a, 21, &outcome), KVHOST_EINVAL);
	expect_words("at 21 tokens; the state is that of 20");
	assert_int_equal(kvhost_checkpoint(a, 16, &outcome), KVHOST_EINVAL);
	assert_int_equal(kvhost_step_begin(a, 30, 0, &step), 0);
	assert_int_equal(kvhost_checkpoint(a, 20, &outcome), KVHOST_EBUSY);
	assert_int_equal(kvhost_step_abort(&step), 0);
	assert_int_equal(outcome, 99);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
	/* There is no state at another position. */
	assert_int_equal(kvhost_truncate(a, 16), KVHOST_ENOTSUP);
	expect_words("max_cached_tokens");
	assert_int_equal(kvhost_truncate(a, 20), 0);
	assert_true(hybrid_is(&e, a, 1));
	assert_int_equal(kvhost_close(&a), 0);
	engine_stop(&e);
	expect_good();
}

static void a_dense_pool_has_no_images(void **state)
{
	struct engine_model m = ENGINE_SMALL("dense");
	struct kvhost_sequence *a = NULL;
	uint32_t tokens[N], outcome;
	struct kvhost_step step;
	uint8_t bytes[8] = {0};

	(void)state;
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	engine_tokens(tokens, N, 0, 1);
	assert_int_equal(engine_prefill(&e, tokens, N, N, &a, NULL), 0);
	assert_int_equal(kvhost_checkpoint(a, N, &outcome), KVHOST_ENOTSUP);
	expect_words("dense");
	assert_int_equal(kvhost_image_read(a, NULL, 0, 0, bytes, 8), KVHOST_ENOTSUP);
	assert_int_equal(kvhost_step_begin(a, N, 0, &step), KVHOST_EINVAL);
	assert_int_equal(kvhost_close(&a), 0);
}

static void offsets_of_a_prompt_that_cannot_be_are_refused(void **state)
{
	static const struct {
		uint32_t system_end, user_end, opener;
		const char *words;
	} rows[] = {
	    {41, 0, 40, "behind the opener at 40"},
	    {0, 41, 40, "behind the opener at 40"},
	    {N + 1, 0, 0, "beyond the prompt of 64"},
	    {0, N + 1, 0, "beyond the prompt of 64"},
	    {0, 0, UINT32_MAX, "beyond the prompt of 64"},
	    {25, 0, 0, "system_end_tokens 25 lies inside the image of 10 tokens at 20"},
	    {0, 21, 0, "user_end_tokens 21 lies inside the image"},
	    {0, 0, 29, "opener_tokens 29 lies inside the image"},
	};
	const struct kvhost_span span = {.start = 20, .length = 10};
	struct kvhost_prompt p = {.n_tokens = N, .spans = &span, .n_spans = 1};
	struct kvhost_open_result found;
	struct kvhost_sequence *a = NULL;
	uint32_t tokens[N];

	(void)state;
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	p.tokens = tokens;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		p.system_end_tokens = rows[i].system_end;
		p.user_end_tokens = rows[i].user_end;
		p.opener_tokens = rows[i].opener;
		assert_int_equal(kvhost_open(e.pool, &p, &a, &found), KVHOST_EINVAL);
		expect_words(rows[i].words);
		assert_int_equal(kvhost_lookup(e.pool, &p, &found), KVHOST_EINVAL);
	}
	/* Both of its ends are good places. */
	p.system_end_tokens = 20;
	p.user_end_tokens = p.opener_tokens = 30;
	assert_int_equal(kvhost_open(e.pool, &p, &a, &found), 0);
	hybrid_step(&e, a, 25, 1);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_IN_IMAGE);
	assert_int_equal(kvhost_close(&a), 0);
	engine_stop(&e);
	expect_good();
}

static void without_a_lane_an_open_waits_until_its_deadline(void **state)
{
	struct kvhost_sequence *held[2], *a = NULL, *fork = NULL;
	struct kvhost_open_result found;
	uint32_t tokens[3][N];
	struct kvhost_prompt p = {.n_tokens = N, .deadline_us = 50000};
	pid_t child;

	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		engine_tokens(tokens[i], N, 0, i);
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	assert_int_equal(e.info->lanes, 2);
	for (uint32_t i = 0; i < 2; i++)
		held[i] = hybrid_open(&e, tokens[i], N, 0, 0, &found);
	hybrid_step(&e, held[0], 20, 1);
	p.tokens = tokens[2];
	assert_int_equal(kvhost_open(e.pool, &p, &a, &found), KVHOST_ETIMEDOUT);
	assert_string_equal(kvhost_reason(e.host),
			    "the deadline passed while it waited for room in the pool");
	assert_int_equal(kvhost_fork(held[0], N, &fork), KVHOST_ETIMEDOUT);
	/* The parent of a fork that did not come goes on. */
	hybrid_step(&e, held[0], 40, 2);
	assert_true(hybrid_is(&e, held[0], 2));
	/* One that waits long enough gets the lane of whoever goes. */
	child = fork_client();
	if (child == 0) {
		struct engine other;

		hybrid_start(&other, d.socket, "hybrid", STATE, 0);
		a = hybrid_open(&other, tokens[2], N, 0, 0, &found);
		hybrid_step(&other, a, 20, 3);
		if (!hybrid_is(&other, a, 3) || kvhost_close(&a))
			_exit(1);
		engine_stop(&other);
		_exit(0);
	}
	assert_int_not_equal(daemon_await(&d, "hybrid", "pool_admission_waits", 3, LONG_MS), 0);
	assert_int_equal(kvhost_close(&held[1]), 0);
	assert_int_equal(await_child(child, LONG_MS), 0);
	assert_true(hybrid_is(&e, held[0], 2));
	assert_int_equal(kvhost_close(&held[0]), 0);
	engine_stop(&e);
	expect_good();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_section_that_cannot_be_is_refused_by_its_number),
	    TEST(a_later_attach_with_other_sections_is_refused_by_field),
	    TEST(a_range_outside_of_its_section_is_refused),
	    TEST(bytes_that_are_too_many_or_too_few_are_refused),
	    TEST(a_receipt_must_name_the_target_slot_of_its_step),
	    TEST(a_batch_does_not_wait_for_copies),
	    TEST(a_checkpoint_is_of_the_committed_state_and_of_no_open_step),
	    TEST(a_dense_pool_has_no_images),
	    TEST(offsets_of_a_prompt_that_cannot_be_are_refused),
	    TEST(without_a_lane_an_open_waits_until_its_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
