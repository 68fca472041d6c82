/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/page.h. One thread; nothing blocks. */

#include "daemon/state/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/testing.h"

#define CAPACITY   7
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int setup(void **state)
{
	static struct pages p;

	*state = &p;
	return pages_init(&p, CAPACITY);
}

static int teardown(void **state)
{
	assert_null(pages_check(*state));
	pages_deinit(*state);
	return 0;
}

static uint32_t take(struct pages *p)
{
	uint32_t page;

	assert_int_equal(pages_take(p, &page), 0);
	return page;
}

static enum page_state state_of(const struct pages *p, uint32_t page)
{
	return p->page[page].state;
}

static void every_page_is_handed_out_once_and_then_there_is_none(void **state)
{
	struct pages *p = *state;
	bool seen[CAPACITY] = {false};
	uint32_t page = 99;

	for (int i = 0; i < CAPACITY; i++) {
		page = take(p);
		assert_true(page < CAPACITY && !seen[page]);
		seen[page] = true;
	}
	page = 99;
	assert_int_equal(pages_take(p, &page), PAGE_EMPTY);
	assert_int_equal(page, 99);
	assert_int_equal(pages_free(p), 0);
	assert_int_equal(p->count[PAGE_PRIVATE], CAPACITY);
	assert_null(pages_check(p));
}

static void a_page_comes_back_dirty_and_is_handed_out_only_when_clean(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p), dirty, again;

	while (p->count[PAGE_CLEAN])
		(void)take(p);
	pages_drop(p, page);
	assert_int_equal(state_of(p, page), PAGE_DIRTY);
	assert_int_equal(pages_free(p), 1);
	assert_int_equal(pages_take(p, &again), PAGE_EMPTY);

	assert_int_equal(pages_take_dirty(p, &dirty), 0);
	assert_int_equal(dirty, page);
	assert_int_equal(pages_take(p, &again), PAGE_EMPTY);
	assert_int_equal(pages_take_dirty(p, &again), PAGE_EMPTY);
	pages_clean(p, dirty, false);
	assert_int_equal(state_of(p, page), PAGE_DIRTY);
	assert_int_equal(pages_take_dirty(p, &dirty), 0);
	pages_clean(p, dirty, true);
	assert_int_equal(take(p), page);
}

static void a_handle_is_current_only_while_its_page_is_in_use(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p), dirty;
	uint32_t generation = p->page[page].generation;

	assert_true(pages_is_current(p, page, generation));
	assert_false(pages_is_current(p, page, generation + 2));
	assert_false(pages_is_current(p, CAPACITY, generation));
	assert_false(pages_is_current(p, page + 1, p->page[page + 1].generation));
	pages_drop(p, page);
	assert_false(pages_is_current(p, page, generation));
	assert_false(pages_is_current(p, page, p->page[page].generation));
	assert_int_equal(pages_take_dirty(p, &dirty), 0);
	pages_clean(p, dirty, true);
	while (take(p) != page)
		;
	assert_false(pages_is_current(p, page, generation));
	assert_true(pages_is_current(p, page, p->page[page].generation));
}

static void the_last_of_several_holders_gives_a_page_back(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p);

	pages_hold(p, page);
	pages_hold(p, page);
	pages_drop(p, page);
	pages_drop(p, page);
	assert_int_equal(state_of(p, page), PAGE_PRIVATE);
	assert_int_equal(p->page[page].references, 1);
	pages_drop(p, page);
	assert_int_equal(state_of(p, page), PAGE_DIRTY);
}

static void a_reference_taken_back_at_none_is_refused_and_counted(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p), indexed = take(p);

	pages_drop(p, page);
	assert_int_equal(p->refused_references, 0);
	pages_drop(p, page);
	assert_int_equal(p->refused_references, 1);
	assert_int_equal(p->count[PAGE_DIRTY], 1);
	pages_index(p, indexed, 3);
	pages_drop(p, indexed);
	assert_int_equal(p->refused_references, 2);
	assert_int_equal(state_of(p, indexed), PAGE_INDEXED);
	assert_int_equal(p->page[indexed].next, 3);
}

static void a_page_given_back_while_a_job_touches_it_drains_first(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p), dirty;
	uint32_t generation = p->page[page].generation;

	pages_pin(p, page);
	pages_pin(p, page);
	pages_index(p, page, 1);
	pages_unindex(p, page);
	assert_int_equal(state_of(p, page), PAGE_DRAINING);
	assert_false(pages_is_current(p, page, generation));
	assert_int_equal(pages_free(p), CAPACITY - 1);
	assert_int_equal(pages_take_dirty(p, &dirty), PAGE_EMPTY);
	pages_unpin(p, page);
	assert_int_equal(state_of(p, page), PAGE_DRAINING);
	assert_null(pages_check(p));
	pages_unpin(p, page);
	assert_int_equal(state_of(p, page), PAGE_DIRTY);
	assert_int_equal(pages_free(p), CAPACITY);
}

static void more_jobs_may_touch_a_page_than_sixteen_bits_count(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p);

	for (int i = 0; i < 70000; i++)
		pages_pin(p, page);
	pages_drop(p, page);
	for (int i = 0; i < 70000; i++) {
		assert_int_equal(state_of(p, page), PAGE_DRAINING);
		pages_unpin(p, page);
	}
	assert_int_equal(state_of(p, page), PAGE_DIRTY);
}

static void a_page_in_quarantine_is_nobodys_until_it_is_acquitted(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p);
	uint32_t generation = p->page[page].generation;

	pages_quarantine(p, page);
	assert_int_equal(pages_free(p), CAPACITY - 1);
	assert_true(pages_is_current(p, page, generation));
	pages_drop(p, page);
	assert_int_equal(p->refused_references, 1);
	assert_int_equal(state_of(p, page), PAGE_QUARANTINED);
	pages_acquit(p, page);
	assert_int_equal(state_of(p, page), PAGE_DIRTY);
	assert_false(pages_is_current(p, page, generation));
}

static void without_its_protection_a_pinned_page_does_not_drain(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p);

	protection_off[PROTECTION_pinned_pages_drain] = true;
	pages_pin(p, page);
	pages_drop(p, page);
	protection_off[PROTECTION_pinned_pages_drain] = false;
	assert_int_equal(state_of(p, page), PAGE_DIRTY);
	assert_string_equal(pages_check(p), "a job touches a free page");
	pages_unpin(p, page);
}

static void the_check_notices_counts_lists_and_generations_that_are_wrong(void **state)
{
	struct pages *p = *state;
	uint32_t page = take(p), other = take(p);

	pages_drop(p, other);
	p->page[page].references = 0;
	assert_string_equal(pages_check(p), "a private page is held by nobody");
	p->page[page].references = 1;
	p->page[page].generation++;
	assert_non_null(pages_check(p));
	p->page[page].generation--;
	p->count[PAGE_CLEAN]--;
	assert_string_equal(pages_check(p), "a count of pages by state is wrong");
	p->count[PAGE_CLEAN]++;
	p->page[other].next = other;
	assert_string_equal(pages_check(p), "the list of dirty pages is wrong");
	p->page[other].next = PAGE_NONE;
	p->fresh++;
	assert_string_equal(pages_check(p), "the list of clean pages is wrong");
	p->fresh--;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(every_page_is_handed_out_once_and_then_there_is_none),
	    TEST(a_page_comes_back_dirty_and_is_handed_out_only_when_clean),
	    TEST(a_handle_is_current_only_while_its_page_is_in_use),
	    TEST(the_last_of_several_holders_gives_a_page_back),
	    TEST(a_reference_taken_back_at_none_is_refused_and_counted),
	    TEST(a_page_given_back_while_a_job_touches_it_drains_first),
	    TEST(more_jobs_may_touch_a_page_than_sixteen_bits_count),
	    TEST(a_page_in_quarantine_is_nobodys_until_it_is_acquitted),
	    TEST(without_its_protection_a_pinned_page_does_not_drain),
	    TEST(the_check_notices_counts_lists_and_generations_that_are_wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
