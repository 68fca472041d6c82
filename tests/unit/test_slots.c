/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/base/slots.h. One thread; nothing blocks. */

#include "daemon/base/slots.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/testing.h"

#define LIMIT      40 /* not a power of two, and more than the first table */
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int objects[LIMIT + 1];

static int setup(void **state)
{
	static struct slots s;

	*state = &s;
	failpoint_clear();
	slots_init(&s, LIMIT);
	return 0;
}

static int teardown(void **state)
{
	slots_deinit(*state);
	failpoint_clear();
	return 0;
}

static void a_handle_finds_its_object_until_its_slot_is_given(void **state)
{
	struct slots *s = *state;
	struct slot_handle old, next;

	assert_int_equal(slots_take(s, &objects[0], &old), 0);
	assert_ptr_equal(slots_find(s, old), &objects[0]);
	slots_give(s, old);
	assert_null(slots_find(s, old));

	assert_int_equal(slots_take(s, &objects[1], &next), 0);
	assert_int_equal(next.index, old.index);
	assert_null(slots_find(s, old));
	assert_ptr_equal(slots_find(s, next), &objects[1]);
}

static void full_says_so_and_changes_nothing(void **state)
{
	struct slots *s = *state;
	struct slot_handle handles[LIMIT], h;

	for (int i = 0; i < LIMIT; i++) {
		assert_int_equal(slots_take(s, &objects[i], &handles[i]), 0);
		assert_int_equal(handles[i].index, i);
	}
	assert_int_equal(slots_take(s, &objects[LIMIT], &h), SLOTS_FULL);
	assert_int_equal(s->used, LIMIT);
	for (int i = 0; i < LIMIT; i++)
		assert_ptr_equal(slots_find(s, handles[i]), &objects[i]);

	slots_give(s, handles[17]);
	assert_int_equal(slots_take(s, &objects[LIMIT], &h), 0);
	assert_int_equal(h.index, 17);
}

static void growing_without_memory_fails_and_can_be_tried_again(void **state)
{
	struct slots *s = *state;
	struct slot_handle h, first;
	int taken = 0;

	assert_int_equal(slots_take(s, &objects[0], &first), 0);
	failpoint_clear();
	failpoint_arm(FAILPOINT_slots_grow, 0, 1);
	while (slots_take(s, &objects[1], &h) == 0)
		taken++;
	assert_int_equal(failpoint_passes(FAILPOINT_slots_grow), 1);
	assert_int_equal(s->used, taken + 1);
	assert_ptr_equal(slots_find(s, first), &objects[0]);
	assert_int_equal(slots_take(s, &objects[2], &h), 0);
	assert_ptr_equal(slots_find(s, h), &objects[2]);
	assert_ptr_equal(slots_find(s, first), &objects[0]);
}

static void forged_handles_find_nothing(void **state)
{
	struct slots *s = *state;
	const struct slot_handle forged[] = {
	    {0, 0}, {0, 2}, {0, 3}, {1, 0}, {1, 1}, {LIMIT, 1}, {UINT32_MAX, UINT32_MAX},
	};
	struct slot_handle h;

	for (size_t i = 0; i < sizeof(forged) / sizeof(*forged); i++)
		assert_null(slots_find(s, forged[i]));
	assert_int_equal(slots_take(s, &objects[0], &h), 0);
	for (size_t i = 0; i < sizeof(forged) / sizeof(*forged); i++)
		assert_null(slots_find(s, forged[i]));
}

static void a_slot_retires_before_its_generation_repeats(void **state)
{
	struct slots *s = *state;
	struct slot_handle h;

	assert_int_equal(slots_take(s, &objects[0], &h), 0);
	slots_give(s, h);
	s->slot[0].generation = UINT32_MAX - 3; /* one life left */
	assert_int_equal(slots_take(s, &objects[0], &h), 0);
	assert_int_equal(h.index, 0);
	slots_give(s, h);

	assert_int_equal(s->retired, 1);
	assert_int_equal(s->used, 0);
	assert_null(slots_find(s, h));
	for (int i = 1; i < LIMIT; i++) {
		assert_int_equal(slots_take(s, &objects[i], &h), 0);
		assert_int_not_equal(h.index, 0);
	}
	assert_int_equal(slots_take(s, &objects[0], &h), SLOTS_FULL);
}

static void a_walk_meets_every_used_slot_once(void **state)
{
	struct slots *s = *state;
	struct slot_handle h[5];
	uint32_t at = 0;

	assert_null(slots_next(s, &at));
	for (int i = 0; i < 5; i++)
		assert_int_equal(slots_take(s, &objects[i], &h[i]), 0);
	slots_give(s, h[0]);
	slots_give(s, h[3]);

	assert_ptr_equal(slots_next(s, &at), &objects[1]);
	assert_int_equal(at, 1);
	at++;
	assert_ptr_equal(slots_next(s, &at), &objects[2]);
	at++;
	assert_ptr_equal(slots_next(s, &at), &objects[4]);
	assert_int_equal(at, 4);
	at++;
	assert_null(slots_next(s, &at));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_handle_finds_its_object_until_its_slot_is_given),
	    TEST(full_says_so_and_changes_nothing),
	    TEST(growing_without_memory_fails_and_can_be_tried_again),
	    TEST(forged_handles_find_nothing),
	    TEST(a_slot_retires_before_its_generation_repeats),
	    TEST(a_walk_meets_every_used_slot_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
