/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles that an attacker guesses: of other sessions, of what is closed, of pages that are not
 * its own. None of them names anything for it, and nothing of the others changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/hostile/ops.h"

#define TOKENS 40u

static struct world w;
static struct raw r;

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

static void is_stale(struct submission s)
{
	int status = raw_ask(&r, &s, NULL);

	if (status != WIRE_ESTALE)
		fail_msg("%s of %u.%u: status %d", wire_opcode_name(s.opcode), s.index,
			 s.generation, status);
}

static void try_sequence(struct payload_handle h)
{
	struct submission s = op(WIRE_OP_FORK, h);

	s.arg0 = 64;
	is_stale(s);
	is_stale(op(WIRE_OP_TRUNCATE, h));
	is_stale(op(WIRE_OP_CLOSE, h));
	is_stale(op(WIRE_OP_TABLE, h));
	is_stale(op_begin(&r, h, TOKENS + 1));
	is_stale(op_read(&r, h, 0, 0, 0, TOKENS));
}

static void try_step(struct payload_handle h)
{
	struct submission s = op(WIRE_OP_STEP_ABORT, h);

	is_stale(op_write(&r, h, 0, 0, 0, TOKENS, 99));
	is_stale(op_read(&r, h, 0, 0, 0, TOKENS));
	is_stale(op_commit(&r, h, TOKENS));
	/* An abort of what is not there is fine, and does nothing. */
	assert_int_equal(raw_ask(&r, &s, NULL), 0);
}

static void the_sequences_of_others_are_not_there(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		for (uint32_t g = 0; g < 8; g++)
			try_sequence((struct payload_handle){w.kept.index - 4 + i,
							     w.kept.generation - 4 + g});
	}
	world_goes_on(&w);
}

static void the_steps_of_others_are_not_there(void **state)
{
	struct payload_handle seq = do_open(&w.good, 9000, TOKENS, 64);
	struct payload_handle step = do_begin(&w.good, seq, TOKENS);
	struct payload_handle pages[3];

	(void)state;
	memcpy(pages, raw_window(&w.good, OUT), sizeof(pages));
	do_write(&w.good, step, TOKENS, 3);
	for (uint32_t i = 0; i < 8; i++)
		try_step((struct payload_handle){step.index - 4 + i, step.generation});
	try_sequence(step);
	memcpy(raw_window(&w.good, OUT), pages, sizeof(pages));
	do_commit(&w.good, step, TOKENS);
	assert_true(bytes_are(&w.good, seq, TOKENS, 3));
	do_close(&w.good, seq);
	world_goes_on(&w);
}

static void a_pool_that_is_not_attached_is_not_there(void **state)
{
	struct raw other;

	(void)state;
	raw_attach(w.d.socket, &other);
	for (uint32_t i = 0; i < 3; i++) {
		for (uint32_t g = 0; g < 4; g++) {
			struct submission s = op_open(&other, 100, TOKENS, 0);

			s.index = i;
			s.generation = g;
			assert_int_equal(raw_ask(&other, &s, NULL), WIRE_ESTALE);
			s.opcode = WIRE_OP_LOOKUP;
			assert_int_equal(raw_ask(&other, &s, NULL), WIRE_ESTALE);
			s = op(WIRE_OP_POOL_DETACH, (struct payload_handle){i, g});
			assert_int_equal(raw_ask(&other, &s, NULL), WIRE_ESTALE);
		}
	}
	raw_free(&other);
	world_goes_on(&w);
}

static void what_is_over_is_not_there(void **state)
{
	struct payload_handle seq = do_open(&r, 100, TOKENS, 64);
	struct payload_handle step = do_begin(&r, seq, TOKENS), again;

	(void)state;
	do_write(&r, step, TOKENS, 1);
	do_commit(&r, step, TOKENS);
	try_step(step);
	do_close(&r, seq);
	try_sequence(seq);
	try_step(step);
	/* Also when its slot serves another one. */
	again = do_open(&r, 200, TOKENS, 64);
	try_sequence(seq);
	do_close(&r, again);
	world_goes_on(&w);
}

/* ---- pages ---- */

static void a_receipt_with_pages_of_others_publishes_nothing(void **state)
{
	struct payload_handle seq = do_open(&r, 100000, TOKENS, 64);
	struct payload_handle step = do_begin(&r, seq, TOKENS), own[3], theirs[3];
	struct submission table = op(WIRE_OP_TABLE, w.kept), s;
	struct payload_handle *pages;

	(void)state;
	memcpy(own, raw_window(&r, OUT), sizeof(own));
	table.out_offset = OUT;
	table.out_bytes = sizeof(theirs);
	assert_int_equal(raw_ask(&w.good, &table, NULL), 0);
	memcpy(theirs, raw_window(&w.good, OUT), sizeof(theirs));
	do_write(&r, step, TOKENS, 2);
	for (int flaw = 0; flaw < 6; flaw++) {
		memcpy(raw_window(&r, OUT), own, sizeof(own));
		s = op_commit(&r, step, TOKENS);
		pages = (void *)((struct payload_receipt *)raw_window(&r, IN) + 1);
		if (flaw < 3)
			pages[flaw] = theirs[flaw];
		if (flaw == 3)
			memcpy(pages, theirs, sizeof(theirs));
		if (flaw == 4)
			pages[1] = own[0];
		if (flaw == 5)
			pages[2].generation--;
		assert_int_equal(raw_ask(&r, &s, NULL), WIRE_EINVAL);
	}
	assert_int_equal(cached_tokens(&w.good, 100000, TOKENS), 0);
	s = op(WIRE_OP_STEP_ABORT, step);
	assert_int_equal(raw_ask(&r, &s, NULL), 0);
	do_close(&r, seq);
	world_goes_on(&w);
}

static void a_shared_page_cannot_be_written(void **state)
{
	struct submission s;
	struct payload_handle seq, step;

	(void)state;
	/* The prompt of what the good session keeps: two of its pages are found. */
	assert_int_equal(cached_tokens(&r, 1000000, TOKENS), 32);
	seq = do_open(&r, 1000000, TOKENS, 64);
	step = do_begin(&r, seq, TOKENS);
	for (uint32_t first = 0; first < 32; first++) {
		s = op_write(&r, step, 0, 0, first, TOKENS - first, 99);
		assert_int_equal(raw_ask(&r, &s, NULL), WIRE_EINVAL);
	}
	world_goes_on(&w);
	s = op(WIRE_OP_STEP_ABORT, step);
	assert_int_equal(raw_ask(&r, &s, NULL), 0);
	do_close(&r, seq);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_sequences_of_others_are_not_there),
	    cmocka_unit_test(the_steps_of_others_are_not_there),
	    cmocka_unit_test(a_pool_that_is_not_attached_is_not_there),
	    cmocka_unit_test(what_is_over_is_not_there),
	    cmocka_unit_test(a_receipt_with_pages_of_others_publishes_nothing),
	    cmocka_unit_test(a_shared_page_cannot_be_written),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
