/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan: what a pool's budget is spent on. One thread; nothing blocks. */

#include "daemon/state/plan.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define STRIDE 65536ull

/* 128 pages of 64 tokens, half of them for one longest sequence. */
static struct plan_wish example(void)
{
	return (struct plan_wish){
	    .pool_bytes = 128 * STRIDE,
	    .available_bytes = 1000 * STRIDE,
	    .headroom_bytes = 10 * STRIDE,
	    .page_stride = STRIDE,
	    .page_tokens = 64,
	    .max_sequence_tokens = 4096,
	    .lanes = 8,
	    .prefix_caching = true,
	    .max_prefix_pages = 128,
	};
}

static void a_prefix_budget_above_the_room_is_clamped_and_says_so(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_int_equal(plan.pages, 128);
	assert_int_equal(plan.reserve_pages, 64);
	assert_int_equal(plan.requested_prefix_pages, 128);
	assert_int_equal(plan.effective_prefix_pages, 64);
	assert_string_equal(
	    plan.fallback_reason,
	    "prefix page budget clamped from 128 to 64 to reserve 64 request pages");
}

static void a_prefix_budget_that_fits_is_taken_as_it_is(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.max_prefix_pages = 64;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_int_equal(plan.effective_prefix_pages, 64);
	assert_string_equal(plan.fallback_reason, "");
}

static void a_null_prefix_budget_is_what_the_plan_leaves_without_a_complaint(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.max_prefix_pages = PLAN_NULL;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_true(plan.requested_prefix_pages == PLAN_NULL);
	assert_int_equal(plan.effective_prefix_pages, 64);
	assert_string_equal(plan.fallback_reason, "");
}

static void a_pool_with_caching_off_has_no_prefix_budget(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.prefix_caching = false;
	wish.pool_bytes = 64 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_int_equal(plan.requested_prefix_pages, 0);
	assert_int_equal(plan.effective_prefix_pages, 0);
}

static void caching_without_a_page_of_room_is_refused_with_capacity_and_reserve(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan = {.pages = 7};

	(void)state;
	wish.pool_bytes = 64 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_string_equal(
	    refusal,
	    "prefix caching has no room: the pool has 64 pages and 64 of them are reserved "
	    "for one request of max_sequence_length 4096; more pool_bytes or pool_pages, a "
	    "smaller max_sequence_length, a max_prefix_cache_pages above 0, or "
	    "enable_prefix_caching false would change it");
	assert_int_equal(plan.pages, 7);

	wish = example();
	wish.max_prefix_pages = 0;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
}

static void a_pool_too_small_for_one_sequence_says_what_is_missing(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_bytes = 60 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_string_equal(
	    refusal,
	    "one sequence of max_sequence_length 4096 needs 64 pages of 65536 bytes and 0 bytes of "
	    "slots and workspace, 4194304 bytes in all; the budget is 3932160 bytes, 262144 are "
	    "missing; more pool_bytes, less headroom_bytes, fewer lanes or a smaller "
	    "max_sequence_length would change it");
}

static void a_budget_above_what_is_free_says_what_is_missing(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.available_bytes = 100 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_string_equal(refusal,
			    "pool_bytes asks for 8388608 bytes, the device has 6553600 free, "
			    "1835008 are missing; a smaller pool_bytes, or null for what is free, "
			    "would change it");
}

static void a_page_limit_below_one_sequence_says_what_is_missing(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_pages_limit = 63;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_string_equal(
	    refusal, "pool_pages is 63, one sequence of max_sequence_length 4096 needs 64 "
		     "pages, 1 are missing; more pool_pages or a smaller max_sequence_length "
		     "would change it");
}

static void a_page_limit_below_the_budget_holds(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_pages_limit = 100;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_int_equal(plan.pages, 100);
	assert_int_equal(plan.effective_prefix_pages, 36);
	assert_true(plan.left_bytes == 28 * STRIDE);
}

static void without_a_budget_the_pool_gets_what_is_free_less_headroom(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_bytes = PLAN_NULL;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_int_equal(plan.pages, 990);

	wish.headroom_bytes = 2000 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_non_null(strstr(refusal, "the budget is 0 bytes"));
}

static void every_byte_of_the_budget_is_in_one_line_of_the_plan(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_bytes = 300 * STRIDE + 17;
	wish.state_slot_bytes = STRIDE;
	wish.retained_slots = 3;
	wish.workspace_bytes = 1000;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_true(plan.lane_bytes == 16 * STRIDE);
	assert_true(plan.retained_bytes == 3 * STRIDE);
	assert_int_equal(plan.pages, 280);
	assert_true(plan.lane_bytes + plan.retained_bytes + plan.workspace_bytes + plan.page_bytes +
			plan.left_bytes ==
		    plan.budget_bytes);
}

static void retained_slots_raise_the_floor(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.prefix_caching = false;
	wish.pool_bytes = 66 * STRIDE;
	wish.retained_slots = 2;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	wish.retained_slots = 3;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
}

static void wishes_beyond_64_bits_are_refused_like_any_too_large(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.state_slot_bytes = UINT64_MAX / 3;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	wish = example();
	wish.max_sequence_tokens = UINT64_MAX;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	wish = example();
	wish.workspace_bytes = UINT64_MAX;
	wish.lanes = UINT64_MAX;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_prefix_budget_above_the_room_is_clamped_and_says_so),
	    cmocka_unit_test(a_prefix_budget_that_fits_is_taken_as_it_is),
	    cmocka_unit_test(a_null_prefix_budget_is_what_the_plan_leaves_without_a_complaint),
	    cmocka_unit_test(a_pool_with_caching_off_has_no_prefix_budget),
	    cmocka_unit_test(caching_without_a_page_of_room_is_refused_with_capacity_and_reserve),
	    cmocka_unit_test(a_pool_too_small_for_one_sequence_says_what_is_missing),
	    cmocka_unit_test(a_budget_above_what_is_free_says_what_is_missing),
	    cmocka_unit_test(a_page_limit_below_one_sequence_says_what_is_missing),
	    cmocka_unit_test(a_page_limit_below_the_budget_holds),
	    cmocka_unit_test(without_a_budget_the_pool_gets_what_is_free_less_headroom),
	    cmocka_unit_test(every_byte_of_the_budget_is_in_one_line_of_the_plan),
	    cmocka_unit_test(retained_slots_raise_the_floor),
	    cmocka_unit_test(wishes_beyond_64_bits_are_refused_like_any_too_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
