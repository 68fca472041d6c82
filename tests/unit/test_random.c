/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/base/random.h. One thread; nothing blocks. */

#include "daemon/base/random.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"

/* splitmix64 from seed 0, as published with the generator. */
static void the_sequence_of_a_seed_never_changes(void **state)
{
	struct random r = {.state = 0};

	(void)state;
	assert_true(random_next(&r) == 0xe220a8397b1dcdafull);
	assert_true(random_next(&r) == 0x6e789e6aa1b965f4ull);
	assert_true(random_next(&r) == 0x06c45d188009454full);
}

static void below_reaches_every_value_under_the_bound_and_no_other(void **state)
{
	struct random r = {.state = 42};
	unsigned seen[7] = {0};

	(void)state;
	for (int i = 0; i < 7000; i++) {
		uint64_t value = random_below(&r, 7);

		assert_true(value < 7);
		seen[value]++;
	}
	for (int i = 0; i < 7; i++)
		assert_in_range(seen[i], 800, 1200);
	assert_true(random_below(&r, 1) == 0);
}

/* With a bound of 3/4 of the range, plain remainders would fall below 1/4 of it half the time. */
static void below_has_no_bias_for_a_huge_bound(void **state)
{
	const uint64_t quarter = 1ull << 62;
	struct random r = {.state = 7};
	unsigned low = 0;

	(void)state;
	for (int i = 0; i < 3000; i++)
		low += random_below(&r, 3 * quarter) < quarter;
	assert_in_range(low, 850, 1150);
}

static void secrets_fill_the_whole_buffer_and_differ(void **state)
{
	unsigned char a[600], b[600];
	unsigned zeros = 0;

	(void)state;
	memset(a, 0, sizeof(a));
	memset(b, 0, sizeof(b));
	assert_int_equal(random_secret(a, sizeof(a)), 0);
	assert_int_equal(random_secret(b, sizeof(b)), 0);
	assert_memory_not_equal(a, b, sizeof(a));
	for (size_t i = sizeof(a) - 64; i < sizeof(a); i++)
		zeros += a[i] == 0;
	assert_true(zeros < 16);
	assert_int_equal(random_secret(a, 0), 0);
}

static void a_kernel_without_randomness_is_an_error(void **state)
{
	unsigned char a[16];

	(void)state;
	failpoint_clear();
	failpoint_arm(FAILPOINT_random_secret, 0, 1);
	assert_int_equal(random_secret(a, sizeof(a)), -EIO);
	assert_int_equal(random_secret(a, sizeof(a)), 0);
	assert_int_equal(failpoint_passes(FAILPOINT_random_secret), 2);
	failpoint_clear();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_sequence_of_a_seed_never_changes),
	    cmocka_unit_test(below_reaches_every_value_under_the_bound_and_no_other),
	    cmocka_unit_test(below_has_no_bias_for_a_huge_bound),
	    cmocka_unit_test(secrets_fill_the_whole_buffer_and_differ),
	    cmocka_unit_test(a_kernel_without_randomness_is_an_error),
	};

	failpoint_clear();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
