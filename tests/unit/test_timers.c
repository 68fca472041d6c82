/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/base/timers.h. One thread; nothing blocks. */

#include "daemon/base/timers.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/base/testing.h"

#define MANY       500
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int setup(void **state)
{
	static struct timers all;

	*state = &all;
	failpoint_clear();
	timers_init(&all);
	return 0;
}

static int teardown(void **state)
{
	timers_deinit(*state);
	failpoint_clear();
	return 0;
}

static void timers_come_out_by_time_and_not_before(void **state)
{
	struct timers *all = *state;
	struct timer a, b, c;

	timer_init(&a, NULL);
	timer_init(&b, NULL);
	timer_init(&c, NULL);
	assert_true(timers_next_ns(all) == TIMERS_NEVER);
	assert_null(timers_pop_due(all, UINT64_MAX));

	assert_int_equal(timers_arm(all, &b, 20), 0);
	assert_int_equal(timers_arm(all, &c, 30), 0);
	assert_int_equal(timers_arm(all, &a, 10), 0);
	assert_int_equal(timers_next_ns(all), 10);
	assert_null(timers_pop_due(all, 9));
	assert_ptr_equal(timers_pop_due(all, 25), &a);
	assert_false(timer_is_armed(&a));
	assert_ptr_equal(timers_pop_due(all, 25), &b);
	assert_null(timers_pop_due(all, 25));
	assert_true(timer_is_armed(&c));
	assert_int_equal(timers_next_ns(all), 30);
}

static void equal_times_come_out_in_the_order_armed(void **state)
{
	struct timers *all = *state;
	struct timer t[MANY];

	for (int i = 0; i < MANY; i++) {
		timer_init(&t[i], NULL);
		assert_int_equal(timers_arm(all, &t[i], 7), 0);
	}
	assert_int_equal(timers_arm(all, &t[0], 7), 0); /* now it is the last */
	for (int i = 1; i < MANY; i++)
		assert_ptr_equal(timers_pop_due(all, 7), &t[i]);
	assert_ptr_equal(timers_pop_due(all, 7), &t[0]);
}

static void arming_an_armed_timer_moves_it_either_way(void **state)
{
	struct timers *all = *state;
	struct timer a, b;

	timer_init(&a, NULL);
	timer_init(&b, NULL);
	assert_int_equal(timers_arm(all, &a, 10), 0);
	assert_int_equal(timers_arm(all, &b, 20), 0);
	assert_int_equal(timers_arm(all, &a, 30), 0);
	assert_int_equal(timers_next_ns(all), 20);
	assert_int_equal(timers_arm(all, &a, 5), 0);
	assert_int_equal(timers_next_ns(all), 5);
	assert_int_equal(all->n, 2);
}

static void disarming_what_is_not_armed_is_harmless(void **state)
{
	struct timers *all = *state;
	struct timer a;

	timer_init(&a, NULL);
	timers_disarm(all, &a);
	assert_int_equal(timers_arm(all, &a, 10), 0);
	timers_disarm(all, &a);
	timers_disarm(all, &a);
	assert_true(timers_next_ns(all) == TIMERS_NEVER);
}

/* Checked against a plain search over all the timers. */
static void a_long_random_life_agrees_with_a_plain_search(void **state)
{
	struct timers *all = *state;
	struct timer t[MANY];
	uint64_t at_ns[MANY];
	struct random r = {.state = 1};

	for (int i = 0; i < MANY; i++)
		timer_init(&t[i], NULL);
	for (int step = 0; step < 20000; step++) {
		uint64_t i = random_below(&r, MANY), earliest = TIMERS_NEVER;

		if (random_below(&r, 3) == 0) {
			timers_disarm(all, &t[i]);
		} else {
			at_ns[i] = random_below(&r, 1000000);
			assert_int_equal(timers_arm(all, &t[i], at_ns[i]), 0);
		}
		if (step % 50)
			continue;
		for (int k = 0; k < MANY; k++) {
			if (timer_is_armed(&t[k]) && at_ns[k] < earliest)
				earliest = at_ns[k];
		}
		assert_true(timers_next_ns(all) == earliest);
	}
	for (uint64_t last = 0; all->n > 0;) {
		struct timer *due = timers_pop_due(all, UINT64_MAX);

		assert_true(at_ns[due - t] >= last);
		last = at_ns[due - t];
	}
}

static void arming_without_memory_fails_and_the_rest_stays(void **state)
{
	struct timers *all = *state;
	struct timer t[MANY];
	int n = 0;

	for (int i = 0; i < MANY; i++)
		timer_init(&t[i], NULL);
	assert_int_equal(timers_arm(all, &t[n++], 1), 0);
	failpoint_clear();
	failpoint_arm(FAILPOINT_timers_grow, 0, 1);
	while (timers_arm(all, &t[n], 2) == 0)
		n++;
	assert_int_equal(failpoint_passes(FAILPOINT_timers_grow), 1);
	assert_false(timer_is_armed(&t[n]));
	assert_int_equal(all->n, n);
	assert_int_equal(timers_arm(all, &t[0], 3), 0); /* moving needs no memory */
	assert_int_equal(timers_arm(all, &t[n], 2), 0);
	assert_int_equal(all->n, n + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(timers_come_out_by_time_and_not_before),
	    TEST(equal_times_come_out_in_the_order_armed),
	    TEST(arming_an_armed_timer_moves_it_either_way),
	    TEST(disarming_what_is_not_armed_is_harmless),
	    TEST(a_long_random_life_agrees_with_a_plain_search),
	    TEST(arming_without_memory_fails_and_the_rest_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
