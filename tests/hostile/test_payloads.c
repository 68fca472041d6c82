/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads with one field wrong: each is refused with a status and a text, has no effect, and the
 * session goes on, as does the good one beside it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/hostile/ops.h"

#define PROMPT  40u /* tokens */
#define MOST    512u
#define HUGE32  UINT32_MAX
#define STEP_TO 40u

static struct world w;
static struct raw r;
static struct payload_handle seq, fresh, step;

static int set_up(void **state)
{
	struct payload_handle first;

	(void)state;
	world_start(&w);
	do_attach(&r, w.d.socket, false);
	/* One sequence with something committed, one with an open step. */
	seq = do_open(&r, 100, PROMPT, 64);
	first = do_begin(&r, seq, PROMPT);
	do_write(&r, first, PROMPT, 1);
	do_commit(&r, first, PROMPT);
	fresh = do_open(&r, 5000, PROMPT, 64);
	step = do_begin(&r, fresh, STEP_TO);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	raw_free(&r);
	world_stop(&w);
	return 0;
}

/* One field of the entry or of the payload gets another value. */
struct row {
	const char *name;
	bool entry;
	uint8_t bytes;
	uint16_t at;
	uint64_t value;
	int status;
};

#define P(type, field, value_)                                                                     \
	.entry = false, .bytes = sizeof(((struct type *)0)->field),                                \
	.at = offsetof(struct type, field), .value = (value_)
#define E(field, value_)                                                                           \
	.entry = true, .bytes = sizeof(((struct submission *)0)->field),                           \
	.at = offsetof(struct submission, field), .value = (value_)

static void check_rows(struct submission (*make)(void), const struct row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct submission s = make();
		char *at = (rows[i].entry ? (char *)&s : (char *)raw_window(&r, IN)) + rows[i].at;
		struct completion c;
		int status;

		memcpy(at, &rows[i].value, rows[i].bytes);
		status = raw_ask(&r, &s, &c);
		if (status == RAW_ENDED)
			fail_msg("%s: the session ended: %s", rows[i].name, r.text);
		if (status != rows[i].status)
			fail_msg("%s: status %d (%s), not %d", rows[i].name, status,
				 raw_text(&r, &c), rows[i].status);
		if (status && !raw_text(&r, &c)[0])
			fail_msg("%s: refused without a word", rows[i].name);
	}
	assert_true(bytes_are(&r, seq, PROMPT, 1));
	world_goes_on(&w);
}

#define CHECK(make, rows) check_rows(make, rows, sizeof(rows) / sizeof(*(rows)))

/* ---- pool attach ---- */

static struct submission make_attach(void)
{
	return op_attach(&r, false);
}

static void a_pool_description_with_a_wrong_field_is_refused(void **state)
{
	static const struct row rows[] = {
	    {"honest", P(payload_pool, version, 1), 0},
	    {"version 0", P(payload_pool, version, 0), WIRE_EVERSION},
	    {"version 2", P(payload_pool, version, 2), WIRE_EVERSION},
	    {"no layer", P(payload_pool, n_layers, 0), WIRE_EINVAL},
	    {"a layer too many", P(payload_pool, n_layers, LAYERS + 1), WIRE_EINVAL},
	    {"513 layers", P(payload_pool, n_layers, 513), WIRE_EINVAL},
	    {"a product beyond 32 bits", P(payload_pool, n_layers, 1u << 28), WIRE_EINVAL},
	    {"sections", P(payload_pool, n_sections, 1), WIRE_EINVAL},
	    {"huge sections", P(payload_pool, n_sections, HUGE32), WIRE_EINVAL},
	    {"other pages", P(payload_pool, page_tokens, 32), WIRE_EMISMATCH},
	    {"odd pages", P(payload_pool, page_tokens, 17), WIRE_EMISMATCH},
	    {"no name", P(payload_pool, name[0], 0), WIRE_EINVAL},
	    {"another name", P(payload_pool, name[0], 'x'), WIRE_ENOENT},
	    {"artifact", P(payload_pool, artifact[31], 1), WIRE_EMISMATCH},
	    {"tensor rank", P(payload_pool, tensor_rank, 1), WIRE_EINVAL},
	    {"tensor size 0", P(payload_pool, tensor_size, 0), WIRE_EINVAL},
	    {"tensor size", P(payload_pool, tensor_size, 2), WIRE_EMISMATCH},
	    {"pipeline rank", P(payload_pool, pipeline_rank, HUGE32), WIRE_EINVAL},
	    {"pipeline size", P(payload_pool, pipeline_size, 0), WIRE_EINVAL},
	    {"rope", P(payload_pool, rope_digest, 1), WIRE_EMISMATCH},
	    {"drafter", P(payload_pool, drafter, 1), WIRE_EMISMATCH},
	    {"draft tokens", P(payload_pool, draft_tokens, 1), WIRE_EMISMATCH},
	    {"want_map 2", P(payload_pool, want_map, 2), WIRE_EINVAL},
	    {"reserved", P(payload_pool, reserved[8], 1), WIRE_EINVAL},
	    {"kv_heads", false, 4, sizeof(struct payload_pool), 2, WIRE_EMISMATCH},
	    {"head_dim", false, 4, sizeof(struct payload_pool) + 4, HUGE32, WIRE_EMISMATCH},
	    {"format", false, 1, sizeof(struct payload_pool) + 12, 99, WIRE_EMISMATCH},
	    {"no input", E(in_bytes, 0), WIRE_EINVAL},
	    {"half a head", E(in_bytes, 100), WIRE_EINVAL},
	    {"no layers in the input", E(in_bytes, sizeof(struct payload_pool)), WIRE_EINVAL},
	    {"no room", E(out_bytes, 0), WIRE_EINVAL},
	    {"little room", E(out_bytes, 72), WIRE_EINVAL},
	};

	(void)state;
	CHECK(make_attach, rows);
}

static void a_name_without_an_end_is_refused(void **state)
{
	struct submission s = op_attach(&r, false);

	(void)state;
	memset(((struct payload_pool *)raw_window(&r, IN))->name, 'h', WIRE_NAME_MAX);
	assert_int_equal(raw_ask(&r, &s, NULL), WIRE_EINVAL);
}

/* ---- open and lookup ---- */

static struct submission make_open(void)
{
	return op_open(&r, 300, PROMPT, 0);
}

static struct submission make_lookup(void)
{
	struct submission s = make_open();

	s.opcode = WIRE_OP_LOOKUP;
	return s;
}

static const struct row prompts[] = {
    {"flags", P(payload_open, flags, 2), WIRE_EINVAL},
    {"all flags", P(payload_open, flags, HUGE32), WIRE_EINVAL},
    {"no token", P(payload_open, n_tokens, 0), WIRE_EINVAL},
    {"a token less than the input", P(payload_open, n_tokens, PROMPT - 1), WIRE_EINVAL},
    {"a token more than the input", P(payload_open, n_tokens, PROMPT + 1), WIRE_EINVAL},
    {"a token too many", P(payload_open, n_tokens, MOST + 1), WIRE_EINVAL},
    {"a product beyond 32 bits", P(payload_open, n_tokens, (1u << 30) + PROMPT), WIRE_EINVAL},
    {"a span that is not there", P(payload_open, n_spans, 1), WIRE_EINVAL},
    {"4097 spans", P(payload_open, n_spans, 4097), WIRE_EINVAL},
    {"huge spans", P(payload_open, n_spans, HUGE32), WIRE_EINVAL},
    {"max_tokens below the prompt", P(payload_open, max_tokens, PROMPT - 1), WIRE_EINVAL},
    {"max_tokens above the pool's", P(payload_open, max_tokens, MOST + 1), WIRE_EINVAL},
    {"huge max_tokens", P(payload_open, max_tokens, HUGE32), WIRE_EINVAL},
    {"priority 2", P(payload_open, priority, 2), WIRE_EINVAL},
    {"huge priority", P(payload_open, priority, HUGE32), WIRE_EINVAL},
    {"system end", P(payload_open, system_end_tokens, PROMPT + 1), WIRE_EINVAL},
    {"user end", P(payload_open, user_end_tokens, HUGE32), WIRE_EINVAL},
    {"opener", P(payload_open, opener_tokens, PROMPT + 1), WIRE_EINVAL},
    {"first reserved", P(payload_open, reserved[0], 1), WIRE_EINVAL},
    {"last reserved", P(payload_open, reserved[1], 1u << 31), WIRE_EINVAL},
    {"no input", E(in_bytes, 0), WIRE_EINVAL},
    {"half a head", E(in_bytes, 72), WIRE_EINVAL},
    {"a head alone", E(in_bytes, 80), WIRE_EINVAL},
    {"four bytes more", E(in_bytes, 80 + PROMPT * 4 + 4), WIRE_EINVAL},
    {"no room", E(out_bytes, 0), WIRE_EINVAL},
    {"little room", E(out_bytes, 56), WIRE_EINVAL},
    {"no pool", E(generation, 0), WIRE_ESTALE},
    {"another pool", E(index, 1), WIRE_ESTALE},
};

static void a_prompt_with_a_wrong_field_is_refused(void **state)
{
	(void)state;
	CHECK(make_open, prompts);
	CHECK(make_lookup, prompts);
}

static void spans_that_overlap_or_leave_the_prompt_are_refused(void **state)
{
	static const struct {
		uint32_t start[2], length[2];
	} rows[] = {
	    {{0, 4}, {5, 2}},      {{5, 0}, {2, 2}},          {{0, 0}, {2, 2}},
	    {{0, 8}, {8, 0}},      {{0, 8}, {0, 1}},          {{0, 38}, {1, 10}},
	    {{0, PROMPT}, {1, 1}}, {{0, 1}, {1, HUGE32}},     {{0, HUGE32}, {1, 1}},
	    {{HUGE32, 1}, {1, 1}}, {{4, 4}, {HUGE32 - 3, 1}}, {{0, 1u << 31}, {1, 1u << 31}},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct submission s = make_open();
		struct payload_open *in = raw_window(&r, IN);
		struct payload_span *spans = (struct payload_span *)(in + 1);

		in->n_spans = 2;
		memset(spans, 0, 2 * sizeof(*spans) + PROMPT * 4);
		for (int k = 0; k < 2; k++) {
			spans[k].start = rows[i].start[k];
			spans[k].length = rows[i].length[k];
		}
		s.in_bytes += 2 * (uint32_t)sizeof(*spans);
		s.opcode = i % 2 ? WIRE_OP_LOOKUP : WIRE_OP_OPEN;
		if (raw_ask(&r, &s, NULL) != WIRE_EINVAL)
			fail_msg("spans of row %zu were taken", i);
	}
	world_goes_on(&w);
}

/* ---- fork, truncate ---- */

static struct submission make_fork(void)
{
	struct submission s = op(WIRE_OP_FORK, seq);

	s.arg0 = 64;
	s.out_offset = OUT;
	s.out_bytes = 64;
	return s;
}

static struct submission make_truncate(void)
{
	struct submission s = op(WIRE_OP_TRUNCATE, seq);

	s.arg0 = PROMPT;
	return s;
}

static void a_fork_or_truncate_out_of_range_is_refused(void **state)
{
	static const struct row forks[] = {
	    {"to nothing", E(arg0, 0), WIRE_EINVAL},
	    {"below what is committed", E(arg0, PROMPT - 1), WIRE_EINVAL},
	    {"above the pool's", E(arg0, MOST + 1), WIRE_EINVAL},
	    {"beyond 32 bits", E(arg0, (1ull << 32) + 64), WIRE_EINVAL},
	    {"of nothing", E(generation, 0), WIRE_ESTALE},
	};
	static const struct row cuts[] = {
	    {"to what there is", E(arg0, PROMPT), 0},
	    {"to more than there is", E(arg0, PROMPT + 1), WIRE_EINVAL},
	    {"beyond 32 bits", E(arg0, 1ull << 32), WIRE_EINVAL},
	    {"to all", E(arg0, UINT64_MAX), WIRE_EINVAL},
	};

	(void)state;
	CHECK(make_fork, forks);
	CHECK(make_truncate, cuts);
}

/* ---- steps ---- */

static struct submission make_begin(void)
{
	return op_begin(&r, seq, PROMPT + 8);
}

static void a_step_with_a_wrong_field_is_refused(void **state)
{
	static const struct row rows[] = {
	    {"to nothing", E(arg0, 0), WIRE_EINVAL},
	    {"to what is committed", E(arg0, PROMPT), WIRE_EINVAL},
	    {"beyond its most", E(arg0, 65), WIRE_EINVAL},
	    {"beyond the pool's", E(arg0, MOST + 1), WIRE_EINVAL},
	    {"beyond 32 bits", E(arg0, (1ull << 32) + PROMPT + 1), WIRE_EINVAL},
	    {"a window behind its end", P(payload_step, window_start_tokens, 65), WIRE_EINVAL},
	    {"a huge window", P(payload_step, window_start_tokens, HUGE32), WIRE_EINVAL},
	    {"reserved", P(payload_step, reserved[2], 1), WIRE_EINVAL},
	    {"no input", E(in_bytes, 0), WIRE_EINVAL},
	    {"half", E(in_bytes, 8), WIRE_EINVAL},
	};

	(void)state;
	CHECK(make_begin, rows);
}

static struct payload_handle pages[3]; /* of the open step */

static struct submission make_commit(void)
{
	memcpy(raw_window(&r, OUT), pages, sizeof(pages));
	return op_commit(&r, step, STEP_TO);
}

static void a_receipt_with_a_wrong_field_is_refused(void **state)
{
	static const struct row rows[] = {
	    {"no page", P(payload_receipt, n_pages, 0), WIRE_EINVAL},
	    {"a page more", P(payload_receipt, n_pages, 4), WIRE_EINVAL},
	    {"a product beyond 32 bits", P(payload_receipt, n_pages, (1u << 29) + 3), WIRE_EINVAL},
	    {"an id", P(payload_receipt, n_tokens, 1), WIRE_EINVAL},
	    {"ids beyond 32 bits", P(payload_receipt, n_tokens, 1u << 30), WIRE_EINVAL},
	    {"a span", P(payload_receipt, n_spans, 1), WIRE_EINVAL},
	    {"huge spans", P(payload_receipt, n_spans, HUGE32), WIRE_EINVAL},
	    {"a token more than the step", P(payload_receipt, tokens_commit, STEP_TO + 1),
	     WIRE_EINVAL},
	    {"huge tokens", P(payload_receipt, tokens_commit, HUGE32), WIRE_EINVAL},
	    {"fewer tokens, the same pages", P(payload_receipt, tokens_commit, 16), WIRE_EINVAL},
	    {"reserved", P(payload_receipt, reserved[1], 1), WIRE_EINVAL},
	    {"first page", false, 4, sizeof(struct payload_receipt), HUGE32, WIRE_EINVAL},
	    {"first page's generation", false, 4, sizeof(struct payload_receipt) + 4, 77,
	     WIRE_EINVAL},
	    {"a page behind the pool", false, 4, sizeof(struct payload_receipt) + 8, 64,
	     WIRE_EINVAL},
	    {"no input", E(in_bytes, 0), WIRE_EINVAL},
	    {"half a head", E(in_bytes, 24), WIRE_EINVAL},
	    {"not a step", E(index, 0), WIRE_ESTALE},
	};
	struct submission table = op(WIRE_OP_TABLE, fresh);

	(void)state;
	table.out_offset = OUT;
	table.out_bytes = sizeof(pages);
	assert_int_equal(raw_ask(&r, &table, NULL), 0);
	memcpy(pages, raw_window(&r, OUT), sizeof(pages));
	CHECK(make_commit, rows);
}

/* ---- rows ---- */

static struct submission make_write(void)
{
	return op_write(&r, step, 0, 0, 0, STEP_TO, 9);
}

static struct submission make_read(void)
{
	return op_read(&r, seq, 0, 0, 0, PROMPT);
}

static const struct row rows_of_both[] = {
    {"a layer too many", P(payload_rows, layer, LAYERS), WIRE_EINVAL},
    {"a huge layer", P(payload_rows, layer, HUGE32), WIRE_EINVAL},
    {"side 2", P(payload_rows, side, 2), WIRE_EINVAL},
    {"a huge side", P(payload_rows, side, HUGE32), WIRE_EINVAL},
    {"no format", P(payload_rows, format, 0), WIRE_EINVAL},
    {"an unknown format", P(payload_rows, format, 4), WIRE_EINVAL},
    {"a huge format", P(payload_rows, format, HUGE32), WIRE_EINVAL},
    {"no token", P(payload_rows, n_tokens, 0), WIRE_EINVAL},
    {"a token too many", P(payload_rows, n_tokens, 41), WIRE_EINVAL},
    {"more than the pool's", P(payload_rows, n_tokens, MOST + 1), WIRE_EINVAL},
    {"a product beyond 32 bits", P(payload_rows, n_tokens, (1u << 28) + PROMPT), WIRE_EINVAL},
    {"one behind", P(payload_rows, first_token, 1), WIRE_EINVAL},
    {"all behind", P(payload_rows, first_token, PROMPT), WIRE_EINVAL},
    {"around the end of numbers", P(payload_rows, first_token, (uint32_t)-8), WIRE_EINVAL},
    {"reserved", P(payload_rows, reserved[0], 1), WIRE_EINVAL},
    {"no input", E(in_bytes, 0), WIRE_EINVAL},
    {"half a head", E(in_bytes, 24), WIRE_EINVAL},
    {"not alive", E(generation, 99), WIRE_ESTALE},
};

static void rows_with_a_wrong_field_are_refused(void **state)
{
	static const struct row writes[] = {
	    {"a row less", E(in_bytes, 32 + STEP_TO * ROW_BYTES - 8), WIRE_EINVAL},
	    {"a row more", E(in_bytes, 32 + STEP_TO * ROW_BYTES + 8), WIRE_EINVAL},
	    {"into no step", E(index, 0), WIRE_ESTALE},
	};
	static const struct row reads[] = {
	    {"little room", E(out_bytes, PROMPT * ROW_BYTES - 8), WIRE_EINVAL},
	    {"no room", E(out_bytes, 0), WIRE_EINVAL},
	};

	(void)state;
	CHECK(make_write, rows_of_both);
	CHECK(make_write, writes);
	CHECK(make_read, rows_of_both);
	CHECK(make_read, reads);
}

/* ---- the rest ---- */

static struct submission make_admin(void)
{
	struct submission s = op(WIRE_OP_ADMIN, (struct payload_handle){0});
	struct payload_admin *in = raw_window(&r, IN);

	*in = (struct payload_admin){.question = PAYLOAD_ADMIN_CHECK};
	s.in_offset = IN;
	s.in_bytes = sizeof(*in);
	s.out_offset = OUT;
	s.out_bytes = 32768;
	return s;
}

static struct submission make_counters(void)
{
	struct submission s = op(WIRE_OP_COUNTERS, (struct payload_handle){0});

	s.out_offset = OUT;
	s.out_bytes = sizeof(struct payload_counters);
	return s;
}

static void a_question_with_a_wrong_field_is_refused(void **state)
{
	static const struct row rows[] = {
	    {"honest", P(payload_admin, question, PAYLOAD_ADMIN_CHECK), 0},
	    {"nothing", P(payload_admin, question, 0), WIRE_EINVAL},
	    {"unknown", P(payload_admin, question, 1000), WIRE_EINVAL},
	    {"huge", P(payload_admin, question, HUGE32), WIRE_EINVAL},
	    {"reserved", P(payload_admin, reserved[2], 1), WIRE_EINVAL},
	    {"no input", E(in_bytes, 0), WIRE_EINVAL},
	    {"half", E(in_bytes, 72), WIRE_EINVAL},
	    {"no room", E(out_bytes, 0), WIRE_EINVAL},
	    {"little room", E(out_bytes, 8), WIRE_EINVAL},
	};
	static const struct row counts[] = {
	    {"no room", E(out_bytes, 0), WIRE_EINVAL},
	    {"little room", E(out_bytes, 120), WIRE_EINVAL},
	};
	struct submission s = make_admin();

	(void)state;
	CHECK(make_admin, rows);
	CHECK(make_counters, counts);
	memset(((struct payload_admin *)raw_window(&r, IN))->argument, 'a', 64);
	assert_int_equal(raw_ask(&r, &s, NULL), WIRE_EINVAL);
}

static void a_cancel_of_what_is_not_there_is_done_at_once(void **state)
{
	static const uint64_t names[] = {0, 1, UINT64_MAX, 1ull << 32};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct submission s = op(WIRE_OP_CANCEL, (struct payload_handle){0});

		s.arg0 = names[i];
		assert_int_equal(raw_ask(&r, &s, NULL), 0);
		s.arg0 = r.submit.produced + 1; /* itself */
		assert_int_equal(raw_ask(&r, &s, NULL), 0);
	}
	world_goes_on(&w);
}

static void an_old_text_is_gone_and_no_other_is_shown_for_it(void **state)
{
	struct submission s = make_open();
	struct completion first, last;

	(void)state;
	((struct payload_open *)raw_window(&r, IN))->priority = 2;
	assert_int_equal(raw_ask(&r, &s, &first), WIRE_EINVAL);
	assert_non_null(strstr(raw_text(&r, &first), "priority"));
	for (int i = 0; i < 3 * CONTROL_TEXTS; i++)
		assert_int_equal(raw_ask(&r, &s, &last), WIRE_EINVAL);
	assert_string_equal(raw_text(&r, &first), "");
	/* What the client does to the texts is its own affair. */
	memset(r.texts, 0xff, CONTROL_TEXTS * sizeof(*r.texts));
	assert_int_equal(raw_ask(&r, &s, &last), WIRE_EINVAL);
	assert_non_null(strstr(raw_text(&r, &last), "priority"));
	world_goes_on(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_pool_description_with_a_wrong_field_is_refused),
	    cmocka_unit_test(a_name_without_an_end_is_refused),
	    cmocka_unit_test(a_prompt_with_a_wrong_field_is_refused),
	    cmocka_unit_test(spans_that_overlap_or_leave_the_prompt_are_refused),
	    cmocka_unit_test(a_fork_or_truncate_out_of_range_is_refused),
	    cmocka_unit_test(a_step_with_a_wrong_field_is_refused),
	    cmocka_unit_test(a_receipt_with_a_wrong_field_is_refused),
	    cmocka_unit_test(rows_with_a_wrong_field_are_refused),
	    cmocka_unit_test(a_question_with_a_wrong_field_is_refused),
	    cmocka_unit_test(a_cancel_of_what_is_not_there_is_done_at_once),
	    cmocka_unit_test(an_old_text_is_gone_and_no_other_is_shown_for_it),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
