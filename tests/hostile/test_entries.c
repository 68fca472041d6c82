/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile client may write into its rings: sequences and positions that lie, operations
 * beyond its credits, unknown ones, reserved bits, ranges outside its window. Each is a violation
 * and ends its session alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/hostile/ops.h"

#define SLOTS   16u
#define CREDITS 12u

static struct world w;

static int set_up(void **state)
{
	(void)state;
	world_start(&w);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	world_stop(&w);
	return 0;
}

static const uint16_t opcodes[] = {
#define OPCODE(name, value, text) (value),
#include "shm/opcodes.def"
#undef OPCODE
};

#define N_OPCODES (sizeof(opcodes) / sizeof(*opcodes))

static void do_nulls(struct raw *r, uint32_t n)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(raw_ask(r, &null, NULL), 0);
}

/* ---- sequences ---- */

/* A difference to the sequence that is expected, or a value. */
struct lie {
	const char *name;
	bool relative;
	uint64_t value;
};

static void write_sequence(struct raw *r, const void *detail)
{
	const struct lie *lie = detail;
	uint64_t expected;

	do_nulls(r, 2 * SLOTS + 3);
	expected = r->submit.produced + 1;
	atomic_store(&r->submit.entries[r->submit.produced % SLOTS].sequence,
		     lie->relative ? expected + lie->value : lie->value);
	raw_bell(r);
}

static void a_sequence_that_lies_ends_the_session(void **state)
{
	static const struct lie lies[] = {
	    {"the next but one", true, 1},
	    {"a lap ahead", true, SLOTS},
	    {"two laps ago", true, (uint64_t)-2 * SLOTS},
	    {"that of the entry before", true, (uint64_t)-1},
	    {"zero after the first lap", false, 0},
	    {"huge", false, UINT64_MAX},
	    {"another high half", true, 1ull << 32},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++)
		world_attack(&w, write_sequence, &lies[i], WIRE_BYE_VIOLATION);
}

/* ---- positions ---- */

static void write_position(struct raw *r, const void *detail)
{
	const struct lie *lie = detail;
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});

	do_nulls(r, 3 * SLOTS);
	r->lazy = true;
	atomic_store(r->reap.published, lie->relative ? r->reap.consumed + lie->value : lie->value);
	/* Sooner or later it needs to know what room there is. */
	for (uint32_t i = 0; i < CREDITS; i++)
		raw_put(r, &null);
}

static void a_position_that_lies_ends_the_session(void **state)
{
	static const struct lie lies[] = {
	    {"ahead of everything", true, 1000},
	    {"back to the start", false, 0},
	    {"back by two laps", true, (uint64_t)-2 * SLOTS},
	    {"huge", false, UINT64_MAX},
	    {"another high half", true, 1ull << 32},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++)
		world_attack(&w, write_position, &lies[i], WIRE_BYE_VIOLATION);
}

/* ---- credits ---- */

static void exceed_credits(struct raw *r, const void *detail)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});

	(void)detail;
	do_nulls(r, 5);
	r->lazy = true;
	for (uint32_t i = 0; i < CREDITS + 1; i++)
		raw_put(r, &null);
}

static void more_in_flight_than_credits_ends_the_session(void **state)
{
	(void)state;
	world_attack(&w, exceed_credits, NULL, WIRE_BYE_VIOLATION);
}

static void exceed_reserved(struct raw *r, const void *detail)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});
	struct submission cancel = op(WIRE_OP_CANCEL, (struct payload_handle){0});

	(void)detail;
	do_nulls(r, 5);
	r->lazy = true;
	for (uint32_t i = 0; i < CREDITS; i++)
		assert_int_equal(raw_ask(r, &null, NULL), 0);
	/* Cancels find room when nothing else does, but not for ever. */
	for (uint32_t i = 0; i < WIRE_RESERVED_COMPLETIONS; i++)
		assert_int_equal(raw_ask(r, &cancel, NULL), 0);
	ring_put(&r->submit, &cancel);
	raw_bell(r);
}

static void the_reserved_room_is_for_cancels_and_has_an_end(void **state)
{
	(void)state;
	world_attack(&w, exceed_reserved, NULL, WIRE_BYE_VIOLATION);
}

/* ---- entries ---- */

static void put_entry(struct raw *r, const void *detail)
{
	raw_put(r, detail);
}

static void an_unknown_operation_ends_the_session(void **state)
{
	static const uint16_t unknown[] = {0,  4,  15, 18, 31, 38,  47,     52,        63,
					   68, 79, 81, 95, 97, 255, 0x8001, UINT16_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++) {
		struct submission s = op(WIRE_OP_NULL, (struct payload_handle){0});

		s.opcode = unknown[i];
		world_attack(&w, put_entry, &s, WIRE_BYE_VIOLATION);
	}
}

static void a_reserved_bit_ends_the_session(void **state)
{
	(void)state;
	for (uint32_t bit = 0; bit < 16; bit++) {
		struct submission s = op(WIRE_OP_NULL, (struct payload_handle){0});

		s.flags = (uint16_t)(1u << bit);
		world_attack(&w, put_entry, &s, WIRE_BYE_VIOLATION);
	}
	for (size_t i = 0; i < N_OPCODES; i++) {
		struct submission s = op((enum wire_opcode)opcodes[i], (struct payload_handle){0});

		s.reserved = i % 2 ? 1 : 1ull << 63;
		world_attack(&w, put_entry, &s, WIRE_BYE_VIOLATION);
	}
}

static void a_range_outside_the_window_ends_the_session(void **state)
{
	static const struct {
		const char *name;
		uint64_t offset;
		uint32_t bytes;
	} ranges[] = {
	    {"behind the end", RAW_WINDOW_BYTES, 8},
	    {"over the end", RAW_WINDOW_BYTES - 8, 16},
	    {"longer than the window", 0, RAW_WINDOW_BYTES + 8},
	    {"as long as can be said", 0, UINT32_MAX},
	    {"far behind", 1ull << 63, 8},
	    {"a sum of zero", UINT64_MAX - 7, 8},
	    {"a sum around the end of numbers", UINT64_MAX - 7, 64},
	    {"a negative offset", (uint64_t)-4096, 8192},
	    {"not aligned", 4, 8},
	    {"not aligned at all", 1, 1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++) {
		for (size_t k = 0; k < N_OPCODES; k++) {
			/* Each range with some operations, each operation with two ranges. */
			struct submission s =
			    op((enum wire_opcode)opcodes[k], (struct payload_handle){0});

			if (k % 5 != i % 5)
				continue;
			if ((i < 5) == (k % 2)) {
				s.in_offset = ranges[i].offset;
				s.in_bytes = ranges[i].bytes;
			} else {
				s.out_offset = ranges[i].offset;
				s.out_bytes = ranges[i].bytes;
			}
			world_attack(&w, put_entry, &s, WIRE_BYE_VIOLATION);
		}
	}
}

/* ---- anything ---- */

static uint64_t random_next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 24;
}

static void random_entries_hurt_nobody(void **state)
{
	uint64_t seed = 1;

	(void)state;
	for (int session = 0; session < 40; session++) {
		struct raw r;

		do_attach(&r, w.d.socket, false);
		for (int i = 0; i < 40 && !r.ended; i++) {
			struct submission s;
			uint64_t *words = (uint64_t *)(void *)&s;

			for (int k = 0; k < 8; k++)
				words[k] = random_next(&seed) & (k == 3 ? 0xfff : 63);
			s.opcode = opcodes[random_next(&seed) % N_OPCODES];
			s.flags = 0;
			s.reserved = 0;
			s.in_offset &= ~7ull;
			s.out_offset &= ~7ull;
			s.in_bytes = (uint32_t)(random_next(&seed) & 0xff);
			s.out_bytes = (uint32_t)(random_next(&seed) & 0xff);
			s.deadline_us = (uint32_t)(random_next(&seed) & 0xff);
			for (int k = 0; k < 64; k++)
				((uint64_t *)raw_window(&r, 0))[k] = random_next(&seed) & 0x7f;
			(void)raw_ask(&r, &s, NULL);
		}
		if (session % 8 == 0)
			world_goes_on(&w);
		raw_free(&r);
	}
	world_goes_on(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_sequence_that_lies_ends_the_session),
	    cmocka_unit_test(a_position_that_lies_ends_the_session),
	    cmocka_unit_test(more_in_flight_than_credits_ends_the_session),
	    cmocka_unit_test(the_reserved_room_is_for_cancels_and_has_an_end),
	    cmocka_unit_test(an_unknown_operation_ends_the_session),
	    cmocka_unit_test(a_reserved_bit_ends_the_session),
	    cmocka_unit_test(a_range_outside_the_window_ends_the_session),
	    cmocka_unit_test(random_entries_hurt_nobody),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
