/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/base/charge.h. One thread; nothing blocks. */

#include "daemon/base/charge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_charge_counts_against_every_party_above(void **state)
{
	struct charge top = {.limit = 100};
	struct charge middle = {.parent = &top, .limit = 50};
	struct charge bottom = {.parent = &middle, .limit = 50};

	(void)state;
	assert_true(charge_take(&bottom, 30));
	assert_true(charge_take(&middle, 20));
	assert_int_equal(bottom.used, 30);
	assert_int_equal(middle.used, 50);
	assert_int_equal(top.used, 50);

	charge_give(&bottom, 30);
	assert_int_equal(bottom.used, 0);
	assert_int_equal(middle.used, 20);
	assert_int_equal(top.used, 20);
}

static void a_refusal_above_changes_nothing_below(void **state)
{
	struct charge top = {.limit = 10};
	struct charge bottom = {.parent = &top, .limit = 100};

	(void)state;
	assert_false(charge_take(&bottom, 11));
	assert_int_equal(bottom.used, 0);
	assert_int_equal(top.used, 0);
	assert_true(charge_take(&bottom, 10));
	assert_false(charge_take(&bottom, 1));
	assert_int_equal(bottom.used, 10);
}

static void huge_sizes_do_not_wrap_around(void **state)
{
	struct charge c = {.limit = UINT64_MAX - 1};

	(void)state;
	assert_true(charge_take(&c, 5));
	assert_false(charge_take(&c, UINT64_MAX));
	assert_false(charge_take(&c, UINT64_MAX - 3));
	assert_true(charge_take(&c, UINT64_MAX - 6));
	assert_true(c.used == c.limit);
	charge_give(&c, c.used);
	assert_true(c.used == 0);
}

static void a_limit_that_was_lowered_below_the_use_refuses_all(void **state)
{
	struct charge c = {.limit = 100};

	(void)state;
	assert_true(charge_take(&c, 80));
	c.limit = 50;
	assert_false(charge_take(&c, 1));
	charge_give(&c, 80);
	assert_true(charge_take(&c, 50));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_charge_counts_against_every_party_above),
	    cmocka_unit_test(a_refusal_above_changes_nothing_below),
	    cmocka_unit_test(huge_sizes_do_not_wrap_around),
	    cmocka_unit_test(a_limit_that_was_lowered_below_the_use_refuses_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
