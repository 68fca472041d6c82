/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A write that fails just before its queued commit: nothing of it is published, whatever made it
 * fail, and the step can only be aborted. And batches that break the rules.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/hostile/ops.h"

#define TOKENS   40u
#define COMMIT   (16u << 10) /* where the receipt lies, beside the rows of the write */
#define ATTEMPTS 50

static struct world w;
static struct raw r;
static uint32_t prompt = 500000;

static int set_up(void **state)
{
	(void)state;
	world_start(&w);
	do_attach(&r, w.d.socket, false);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	raw_free(&r);
	world_stop(&w);
	return 0;
}

struct attempt {
	struct payload_handle seq, step;
	struct submission write, commit;
};

static struct attempt prepare(void)
{
	struct attempt a;

	prompt += 1000;
	a.seq = do_open(&r, prompt, TOKENS, 64);
	a.step = do_begin(&r, a.seq, TOKENS);
	a.commit = op_commit(&r, a.step, TOKENS);
	memcpy(raw_window(&r, COMMIT), raw_window(&r, IN), a.commit.in_bytes);
	a.commit.in_offset = COMMIT;
	a.write = op_write(&r, a.step, 0, 0, 0, TOKENS, 1);
	return a;
}

/* What a failed write leaves: a commit that is refused, nothing to be found, a step to abort. */
static void nothing_stands(const struct attempt *a, int commit_status)
{
	struct submission s = op(WIRE_OP_STEP_ABORT, a->step);

	assert_int_equal(commit_status, WIRE_ESTEP);
	assert_int_equal(cached_tokens(&w.good, prompt, TOKENS), 0);
	assert_int_equal(raw_ask(&r, &s, NULL), 0);
	do_close(&r, a->seq);
}

static void a_write_out_of_range_takes_its_commit_with_it(void **state)
{
	static const struct {
		uint32_t layer, side, format, first, n;
	} rows[] = {
	    {0, 0, PAYLOAD_FLOAT32, 1, TOKENS},
	    {0, 0, PAYLOAD_FLOAT32, UINT32_MAX, TOKENS},
	    {LAYERS, 0, PAYLOAD_FLOAT32, 0, TOKENS},
	    {0, 2, PAYLOAD_FLOAT32, 0, TOKENS},
	    {0, 0, 0, 0, TOKENS},
	    {0, 0, PAYLOAD_FLOAT32, 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct attempt a = prepare();
		struct payload_rows *in = raw_window(&r, IN);
		struct submission both[2] = {a.write, a.commit};
		struct completion c;
		uint64_t last;

		in->layer = rows[i].layer;
		in->side = rows[i].side;
		in->format = rows[i].format;
		in->first_token = rows[i].first;
		in->n_tokens = rows[i].n;
		last = raw_put_all(&r, both, 2);
		assert_true(raw_wait(&r, last - 1, &c));
		assert_int_equal(c.status, WIRE_EINVAL);
		assert_true(raw_wait(&r, last, &c));
		nothing_stands(&a, c.status);
	}
	world_goes_on(&w);
}

static void a_cancelled_write_takes_its_commit_with_it(void **state)
{
	(void)state;
	for (int i = 0; i < ATTEMPTS; i++) {
		struct attempt a = prepare();
		struct submission all[3] = {a.write, op(WIRE_OP_CANCEL, (struct payload_handle){0}),
					    a.commit};
		struct completion c;
		uint64_t last;

		all[1].arg0 = r.submit.produced + 1;
		last = raw_put_all(&r, all, 3);
		assert_true(raw_wait(&r, last - 2, &c));
		assert_int_equal(c.status, WIRE_ECANCELLED);
		assert_true(raw_wait(&r, last - 1, &c));
		assert_int_equal(c.status, 0);
		assert_true(raw_wait(&r, last, &c));
		nothing_stands(&a, c.status);
	}
	world_goes_on(&w);
}

static void a_write_that_times_out_takes_its_commit_with_it(void **state)
{
	(void)state;
	for (int i = 0; i < ATTEMPTS; i++) {
		struct attempt a = prepare();
		struct submission both[2] = {a.write, a.commit};
		struct completion c;
		int written;
		uint64_t last;

		both[0].deadline_us = 1;
		last = raw_put_all(&r, both, 2);
		assert_true(raw_wait(&r, last - 1, &c));
		written = c.status;
		assert_true(raw_wait(&r, last, &c));
		/* Whoever was first, both say the same. */
		if (written) {
			assert_int_equal(written, WIRE_ETIMEDOUT);
			nothing_stands(&a, c.status);
		} else {
			assert_int_equal(c.status, 0);
			do_close(&r, a.seq);
		}
	}
	world_goes_on(&w);
}

static void a_sequence_closed_under_its_operations_takes_them_with_it(void **state)
{
	(void)state;
	for (int i = 0; i < ATTEMPTS; i++) {
		struct attempt a = prepare();
		struct submission cut = op(WIRE_OP_TRUNCATE, a.seq);
		struct submission close = op(WIRE_OP_CLOSE, a.seq);
		struct submission begin = a.commit;
		struct submission all[7] = {a.write, close, cut, close, cut, begin, a.write};
		uint64_t last;

		all[5] = op(WIRE_OP_STEP_BEGIN, a.seq);
		all[5].arg0 = TOKENS;
		all[5].in_offset = 32u << 10;
		all[5].in_bytes = sizeof(struct payload_step);
		last = raw_put_all(&r, all, 7);
		for (uint64_t k = 0; k < 7; k++) {
			struct completion c;

			assert_true(raw_wait(&r, last - 6 + k, &c));
			if (k < 2)
				assert_int_equal(c.status, 0);
			else
				assert_int_equal(c.status, WIRE_ESTALE);
		}
	}
	world_goes_on(&w);
}

static void a_session_that_ends_under_its_operations_takes_them_with_it(void **state)
{
	(void)state;
	for (int i = 0; i < ATTEMPTS; i++) {
		struct raw other = r;
		struct attempt a;
		struct submission all[4];
		uint64_t before = world_closed(&w, WIRE_BYE_VIOLATION);

		do_attach(&r, w.d.socket, false);
		a = prepare();
		all[0] = a.write;
		all[1] = a.commit;
		all[2] = op(WIRE_OP_CLOSE, a.seq);
		all[3] = op(WIRE_OP_NULL, (struct payload_handle){0});
		all[3].reserved = 1;
		raw_put_all(&r, all, 4);
		raw_await_end(&r);
		assert_int_equal(r.reason, WIRE_BYE_VIOLATION);
		assert_int_equal(cached_tokens(&w.good, prompt, TOKENS), 0);
		raw_free(&r);
		r = other;
		ring_submit_side(&r.submit, r.control.memory, r.welcome.submission_slots);
		r.submit.produced = other.submit.produced;
		r.submit.consumed = other.submit.consumed;
		assert_true(world_closed(&w, WIRE_BYE_VIOLATION) >= before);
	}
	world_goes_on(&w);
}

/* ---- batches ---- */

static struct submission batch_of(const struct submission *items, uint32_t n)
{
	struct submission s = op(WIRE_OP_BATCH, (struct payload_handle){0});

	memcpy(raw_window(&r, COMMIT), items, n * sizeof(*items));
	s.arg0 = n;
	s.in_offset = COMMIT;
	s.in_bytes = n * (uint32_t)sizeof(*items);
	s.out_offset = OUT;
	s.out_bytes = n * (uint32_t)sizeof(struct completion);
	return s;
}

static void a_batch_holds_no_batch_and_no_cancel(void **state)
{
	struct submission items[3] = {op(WIRE_OP_BATCH, (struct payload_handle){0}),
				      op(WIRE_OP_CANCEL, (struct payload_handle){0}),
				      op(WIRE_OP_NULL, (struct payload_handle){0})};
	struct submission s = batch_of(items, 3);
	struct completion *answers = raw_window(&r, OUT);

	(void)state;
	items[1].arg0 = r.submit.produced + 1;
	assert_int_equal(raw_ask(&r, &s, NULL), 0);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(answers[i].submission, i);
		assert_int_equal(answers[i].status, i < 2 ? WIRE_EINVAL : 0);
	}
	world_goes_on(&w);
}

static void a_batch_of_a_wrong_size_is_refused(void **state)
{
	static const struct {
		uint64_t n;
		uint32_t in, out;
	} rows[] = {
	    {0, 64, 64},          {2, 64, 128},
	    {1, 128, 128},        {2, 128, 64},
	    {1ull << 26, 64, 64}, {(1ull << 58) + 1, 64, 64},
	    {UINT64_MAX, 64, 64}, {1, 0, 64},
	    {1, 64, 0},           {(1ull << 32) + 1, 64, 64},
	};
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct submission s = batch_of(&null, 1);

		s.arg0 = rows[i].n;
		s.in_bytes = rows[i].in;
		s.out_bytes = rows[i].out;
		if (raw_ask(&r, &s, NULL) != WIRE_EINVAL)
			fail_msg("a batch of %llu was taken", (unsigned long long)rows[i].n);
	}
	world_goes_on(&w);
}

static void an_item_that_would_wait_is_told_to_come_alone(void **state)
{
	struct attempt a = prepare();
	struct submission s = batch_of(&a.write, 1), after = op(WIRE_OP_STEP_ABORT, a.step);
	const struct completion *answers = raw_window(&r, OUT);

	(void)state;
	assert_int_equal(raw_ask(&r, &s, NULL), 0);
	assert_int_equal(answers[0].status, WIRE_EAGAIN);
	assert_int_equal(raw_ask(&r, &after, NULL), 0);
	do_close(&r, a.seq);
	world_goes_on(&w);
}

static void put_item(struct raw *other, const void *detail)
{
	struct submission s = op(WIRE_OP_BATCH, (struct payload_handle){0});

	memcpy(raw_window(other, IN), detail, sizeof(s));
	s.arg0 = 1;
	s.in_bytes = sizeof(s);
	s.out_offset = OUT;
	s.out_bytes = sizeof(struct completion);
	raw_put(other, &s);
}

static void an_item_that_breaks_a_rule_ends_the_session(void **state)
{
	struct submission items[5];

	(void)state;
	for (int i = 0; i < 5; i++)
		items[i] = op(WIRE_OP_COUNTERS, (struct payload_handle){0});
	items[0].out_offset = RAW_WINDOW_BYTES;
	items[0].out_bytes = 128;
	items[1].in_offset = UINT64_MAX - 7;
	items[1].in_bytes = 16;
	items[2].opcode = 7;
	items[3].flags = 1;
	items[4].reserved = 1;
	for (int i = 0; i < 5; i++)
		world_attack(&w, put_item, &items[i], WIRE_BYE_VIOLATION);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_write_out_of_range_takes_its_commit_with_it),
	    cmocka_unit_test(a_cancelled_write_takes_its_commit_with_it),
	    cmocka_unit_test(a_write_that_times_out_takes_its_commit_with_it),
	    cmocka_unit_test(a_sequence_closed_under_its_operations_takes_them_with_it),
	    cmocka_unit_test(a_session_that_ends_under_its_operations_takes_them_with_it),
	    cmocka_unit_test(a_batch_holds_no_batch_and_no_cancel),
	    cmocka_unit_test(a_batch_of_a_wrong_size_is_refused),
	    cmocka_unit_test(an_item_that_would_wait_is_told_to_come_alone),
	    cmocka_unit_test(an_item_that_breaks_a_rule_ends_the_session),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
