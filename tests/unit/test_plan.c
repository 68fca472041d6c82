/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan: what a pool's budget is spent on. One thread; nothing blocks. */

#include "daemon/state/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STRIDE 65536ull

/* The index of so many pages, of which so many are for prefix caching. */
static uint64_t index_of(const struct plan_wish *wish, uint32_t pages, uint64_t prefix_pages)
{
	struct pool_limits limits = wish->limits;

	limits.pages = pages;
	limits.nodes = pages + POOL_NODES_BESIDE;
	limits.prefix_budget = prefix_pages;
	return pool_index_bytes(&limits);
}

/* What they take, with their index. */
static uint64_t bytes_of(const struct plan_wish *wish, uint32_t pages, uint64_t prefix_pages)
{
	return pages * STRIDE + index_of(wish, pages, prefix_pages);
}

/* 128 pages of 64 tokens, half of them for one longest sequence. */
static struct plan_wish example(void)
{
	struct plan_wish wish = {
	    .available_bytes = 1000 * STRIDE,
	    .headroom_bytes = 10 * STRIDE,
	    .page_stride = STRIDE,
	    .max_sequence_tokens = 4096,
	    .lanes = 8,
	    .prefix_caching = true,
	    .max_prefix_pages = 128,
	    .limits = {.page_tokens = 64, .name_spaces = 1, .order = RETAIN_LEARNED},
	};

	wish.pool_bytes = bytes_of(&wish, 128, 64);
	return wish;
}

static void expect(const char *refusal, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void expect(const char *refusal, const char *format, ...)
{
	char text[PLAN_REFUSAL_BYTES];
	va_list numbers;

	va_start(numbers, format);
	vsnprintf(text, sizeof(text), format, numbers);
	va_end(numbers);
	assert_string_equal(refusal, text);
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
	wish.pool_bytes = bytes_of(&wish, 64, 0);
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_int_equal(plan.pages, 64);
	assert_int_equal(plan.requested_prefix_pages, 0);
	assert_int_equal(plan.effective_prefix_pages, 0);
}

static void caching_without_a_page_of_room_is_refused_with_capacity_and_reserve(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan = {.pages = 7};

	(void)state;
	wish.pool_bytes = bytes_of(&wish, 64, 1);
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	expect(refusal,
	       "prefix caching has no room: the pool has 64 pages beside an index of %" PRIu64
	       " bytes and 64 of them are reserved for one request of max_sequence_length 4096; "
	       "more pool_bytes, retained_order lru, enable_prefix_caching false or a smaller "
	       "max_sequence_length would change it",
	       index_of(&wish, 64, 1));
	assert_int_equal(plan.pages, 7);
	/* Where only pages are known there is no index to speak of. */
	assert_int_equal(plan_prefix(64, &wish, &plan, refusal), -ENOSPC);
	assert_non_null(strstr(refusal, "the pool has 64 pages and 64 of them"));

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
	wish.pool_bytes = bytes_of(&wish, 64, 1) - 1;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	expect(refusal,
	       "one sequence of max_sequence_length 4096 needs 64 pages of 65536 bytes, an index "
	       "of %" PRIu64 " bytes and 0 bytes of slots and workspace, %" PRIu64
	       " bytes in all; the budget is %" PRIu64
	       " bytes, 1 are missing; more pool_bytes, retained_order lru, enable_prefix_caching "
	       "false or a smaller max_sequence_length would change it",
	       index_of(&wish, 64, 1), wish.pool_bytes + 1, wish.pool_bytes);
	/* Without reuse most of it is pages. */
	wish.prefix_caching = false;
	wish.pool_bytes = 60 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	expect(refusal,
	       "one sequence of max_sequence_length 4096 needs 64 pages of 65536 bytes, an index "
	       "of %" PRIu64 " bytes and 0 bytes of slots and workspace, %" PRIu64
	       " bytes in all; the budget is 3932160 bytes, %" PRIu64
	       " are missing; more pool_bytes or a smaller max_sequence_length would change it",
	       index_of(&wish, 64, 0), bytes_of(&wish, 64, 0),
	       bytes_of(&wish, 64, 0) - wish.pool_bytes);
}

static void a_budget_above_what_is_free_says_what_is_missing(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.available_bytes = 100 * STRIDE;
	wish.pool_bytes = 128 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_string_equal(refusal,
			    "pool_bytes asks for 8388608 bytes, the device has 6553600 free, "
			    "1835008 are missing; a smaller pool_bytes together with "
			    "enable_prefix_caching false would change it");
	wish.available_bytes = bytes_of(&wish, 65, 1);
	wish.pool_bytes = wish.available_bytes + 1;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_non_null(strstr(refusal, " free, 1 are missing; a smaller pool_bytes would change "
					"it"));
	wish.headroom_bytes = 0;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_non_null(strstr(refusal, "; a smaller pool_bytes or pool_bytes null for what is "
					"free would change it"));
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
	assert_true(plan.left_bytes == wish.pool_bytes - bytes_of(&wish, 100, 36));
}

static void without_a_budget_the_pool_gets_what_is_free_less_headroom(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_bytes = PLAN_NULL;
	wish.available_bytes = bytes_of(&wish, 990, 128) + 10 * STRIDE;
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
	wish.pool_bytes = bytes_of(&wish, 280, 128) + 20 * STRIDE + 17;
	wish.state_slot_bytes = STRIDE;
	wish.retained_slots = 3;
	wish.workspace_bytes = 1000;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_true(plan.lane_bytes == 16 * STRIDE);
	assert_true(plan.retained_bytes == 3 * STRIDE);
	assert_int_equal(plan.pages, 280);
	assert_true(plan.index_bytes == index_of(&wish, 280, 128));
	assert_true(plan.left_bytes == STRIDE + 17 - 1000);
	assert_true(plan.lane_bytes + plan.retained_bytes + plan.workspace_bytes +
			plan.index_bytes + plan.page_bytes + plan.left_bytes ==
		    plan.budget_bytes);
}

static void retained_slots_raise_the_floor(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.prefix_caching = false;
	wish.pool_bytes = bytes_of(&wish, 66, 0);
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

static void a_page_costs_its_part_of_the_index_too(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_bytes--;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_int_equal(plan.pages, 127);
	assert_int_equal(plan.effective_prefix_pages, 63);
	assert_true(plan.index_bytes == index_of(&wish, 127, 63));

	/* What makes an index larger makes the pool smaller. */
	wish.limits.name_spaces = 2;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	wish.limits.order = RETAIN_LRU;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_true(plan.pages > 127);
	wish.pool_bytes = bytes_of(&wish, 1000000, 999936);
	wish.available_bytes = PLAN_NULL;
	wish.max_prefix_pages = PLAN_NULL;
	wish.limits.shadow_lru = true;
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	assert_true(plan.pages < 1000000 && plan.pages > 999000);
}

static void pages_alone_are_had_exactly_with_all_that_is_beside_them(void **state)
{
	static const uint64_t pages[] = {65, 100, 65536 - POOL_NODES_BESIDE, 1000000};
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.pool_bytes = PLAN_NULL;
	wish.available_bytes = 1ull << 40;
	wish.headroom_bytes = 1ull << 40;
	wish.state_slot_bytes = STRIDE;
	wish.workspace_bytes = 1000;
	for (size_t i = 0; i < sizeof(pages) / sizeof(*pages); i++) {
		wish.pool_pages_limit = pages[i];
		assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
		assert_int_equal(plan.pages, pages[i]);
		assert_int_equal(plan.left_bytes, 0);
		assert_true(plan.budget_bytes ==
			    bytes_of(&wish, (uint32_t)pages[i], plan.effective_prefix_pages) +
				16 * STRIDE + 1000);
	}
	wish.available_bytes = plan.budget_bytes - 1;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	expect(refusal,
	       "pool_pages asks for 1000000 pages of 65536 bytes, an index of %" PRIu64
	       " bytes and 1049576 bytes of slots and workspace, %" PRIu64
	       " bytes in all; the device has %" PRIu64
	       " free, 1 are missing; fewer pool_pages, fewer lanes, retained_order lru or "
	       "enable_prefix_caching false would change it",
	       plan.index_bytes, wish.available_bytes + 1, wish.available_bytes);
	wish.pool_pages_limit = UINT32_MAX;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_string_equal(refusal, "pool_pages asks for 4294967295 pages, a pool can have at "
				     "most 1073737728; fewer pool_pages would change it");
}

static uint64_t below(uint64_t *random, uint64_t n)
{
	*random = *random * 6364136223846793005ull + 1442695040888963407ull;
	return (*random >> 20) % n;
}

/* The gauge pool_index_bytes is that of the limits of the pool that is made. */
static void the_index_of_a_plan_is_that_of_its_pool_and_no_page_more_would_fit(void **state)
{
	char refusal[PLAN_REFUSAL_BYTES];
	uint64_t random = 1;
	int planned = 0;

	(void)state;
	for (int i = 0; i < 3000; i++) {
		struct plan_wish wish = {
		    .available_bytes = PLAN_NULL,
		    .pool_bytes = 1ull << (24 + below(&random, 20)),
		    .page_stride = STRIDE,
		    .max_sequence_tokens = 1 + below(&random, 5000),
		    .prefix_caching = below(&random, 4),
		    .max_prefix_pages = below(&random, 2) ? PLAN_NULL : below(&random, 100000),
		    .limits = {.page_tokens = 16u << below(&random, 3),
			       .name_spaces = 1 + (uint32_t)below(&random, 64),
			       .order = below(&random, 2) ? RETAIN_LRU : RETAIN_LEARNED,
			       .shadow_lru = below(&random, 2),
			       .lanes = below(&random, 4) ? 0 : 8,
			       .retained_slots = 16}};
		struct plan plan;
		uint64_t more;

		wish.pool_bytes += below(&random, wish.pool_bytes);
		if (plan_compute(&wish, &plan, refusal))
			continue;
		planned++;
		assert_true(plan.index_bytes ==
			    index_of(&wish, (uint32_t)plan.pages, plan.effective_prefix_pages));
		assert_true(plan.index_bytes + plan.page_bytes + plan.left_bytes ==
			    wish.pool_bytes);
		more = plan.effective_prefix_pages;
		more += wish.prefix_caching && more < wish.max_prefix_pages;
		assert_true(bytes_of(&wish, (uint32_t)plan.pages + 1, more) > wish.pool_bytes);
	}
	assert_true(planned > 1500);
}

/* Alone, as far as they go. */
static bool fits_with(struct plan_wish wish, const char *key)
{
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	if (!strcmp(key, "more pool_bytes") && wish.pool_bytes < wish.available_bytes)
		wish.pool_bytes = wish.available_bytes;
	else if (!strcmp(key, "less headroom_bytes"))
		wish.headroom_bytes = 0;
	else if (!strcmp(key, "fewer lanes") && wish.lanes) {
		wish.workspace_bytes /= wish.lanes;
		wish.lanes = 1;
	} else if (!strcmp(key, "retained_order lru"))
		wish.limits.order = RETAIN_LRU;
	else if (!strcmp(key, "enable_prefix_caching false"))
		wish.prefix_caching = false;
	else if (!strcmp(key, "a smaller max_sequence_length"))
		wish.max_sequence_tokens = 1;
	return plan_compute(&wish, &plan, refusal) == 0;
}

static void expect_least(struct plan_wish wish)
{
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	wish.available_bytes = UINT64_MAX;
	wish.pool_bytes = plan_least(&wish);
	assert_int_equal(plan_compute(&wish, &plan, refusal), 0);
	wish.pool_bytes--;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
}

static void the_least_budget_is_enough_and_no_byte_less(void **state)
{
	struct plan_wish wish = example();

	(void)state;
	assert_true(plan_least(&wish) == bytes_of(&wish, 65, 1));
	expect_least(wish);
	wish.limits.name_spaces = 3;
	expect_least(wish);
	wish.prefix_caching = false;
	assert_true(plan_least(&wish) == bytes_of(&wish, 64, 0));
	expect_least(wish);
	wish = example();
	wish.limits.order = RETAIN_LRU;
	wish.state_slot_bytes = 3 * STRIDE;
	wish.limits.lanes = 8;
	expect_least(wish);
	wish.retained_slots = 5;
	expect_least(wish);
}

static void a_refusal_names_exactly_the_keys_that_would_change_it(void **state)
{
	static const char *const keys[] = {
	    "more pool_bytes",    "less headroom_bytes",         "fewer lanes",
	    "retained_order lru", "enable_prefix_caching false", "a smaller max_sequence_length"};
	unsigned named[sizeof(keys) / sizeof(*keys)] = {0}, refused = 0;
	uint64_t random = 3;

	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct plan_wish wish = {
		    .available_bytes = 1ull << (20 + below(&random, 10)),
		    .pool_bytes = below(&random, 2) ? PLAN_NULL : 1ull << (18 + below(&random, 12)),
		    .headroom_bytes = below(&random, 2) ? 0 : 1ull << (18 + below(&random, 12)),
		    .page_stride = STRIDE,
		    .max_sequence_tokens = 1ull << below(&random, 14),
		    .prefix_caching = below(&random, 2),
		    .max_prefix_pages = PLAN_NULL,
		    .lanes = 8,
		    .state_slot_bytes = below(&random, 2) ? 0 : 1ull << (12 + below(&random, 14)),
		    .limits = {.page_tokens = 64,
			       .name_spaces = 1,
			       .order = below(&random, 2) ? RETAIN_LRU : RETAIN_LEARNED}};
		char refusal[PLAN_REFUSAL_BYTES];
		struct plan plan;

		if (!plan_compute(&wish, &plan, refusal))
			continue;
		refused++;
		assert_true(strlen(refusal) + 1 < PLAN_REFUSAL_BYTES);
		if (strstr(refusal, " together with ") || strstr(refusal, "no key of the pool"))
			*strrchr(refusal, ';') = 0; /* none by itself */
		for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++) {
			bool says = strstr(refusal, keys[k]) != NULL;

			if (says != fits_with(wish, keys[k]))
				fail_msg("case %d, %s: %s", i, keys[k], refusal);
			named[k] += says;
		}
	}
	assert_true(refused > 300);
	for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++)
		assert_true(named[k] > 0);
}

/* What is missing may be more than one thing. */
static void where_no_key_is_enough_two_are_named(void **state)
{
	struct plan_wish wish = example();
	char refusal[PLAN_REFUSAL_BYTES];
	struct plan plan;

	(void)state;
	wish.prefix_caching = false;
	wish.available_bytes = 8 * STRIDE;
	wish.pool_bytes = 128 * STRIDE;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_string_equal(refusal,
			    "pool_bytes asks for 8388608 bytes, the device has 524288 free, "
			    "7864320 are missing; a smaller pool_bytes together with a smaller "
			    "max_sequence_length would change it");
	wish.available_bytes = STRIDE / 2;
	assert_int_equal(plan_compute(&wish, &plan, refusal), -ENOSPC);
	assert_non_null(strstr(refusal, "; no key of the pool would change it, nor would two"));
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
	    cmocka_unit_test(a_page_costs_its_part_of_the_index_too),
	    cmocka_unit_test(pages_alone_are_had_exactly_with_all_that_is_beside_them),
	    cmocka_unit_test(the_index_of_a_plan_is_that_of_its_pool_and_no_page_more_would_fit),
	    cmocka_unit_test(the_least_budget_is_enough_and_no_byte_less),
	    cmocka_unit_test(a_refusal_names_exactly_the_keys_that_would_change_it),
	    cmocka_unit_test(where_no_key_is_enough_two_are_named),
	    cmocka_unit_test(retained_slots_raise_the_floor),
	    cmocka_unit_test(wishes_beyond_64_bits_are_refused_like_any_too_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
