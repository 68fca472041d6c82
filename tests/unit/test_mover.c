/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/tier/mover.h with a device that runs when told to. One thread. */

#include "daemon/tier/mover.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"

#define PAGES      400u
#define STRIDE     (32u << 10)
#define BATCH      (MOVER_ZERO_BYTES / STRIDE)
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* A device of one byte a page. */
struct world {
	struct device device; /* first */
	struct geometry geometry;
	struct device_memory memory;
	struct pages pages;
	struct mover mover;
	uint8_t bytes[PAGES];
	struct list waiting;
	unsigned int submitted, cleaned;
	int last, fail; /* result told last; of the jobs to come */
};

static void submit(struct device *d, struct device_job *job)
{
	struct world *w = (struct world *)(void *)d;

	assert_true(job->memory == &w->memory);
	w->submitted++;
	list_append(&w->waiting, &job->job.link);
}

/* Run the first job that waits. */
static bool run(struct world *w)
{
	struct list *first = list_first(&w->waiting);
	struct device_job *j;

	if (!first)
		return false;
	list_remove(first);
	j = (struct device_job *)(void *)list_entry(first, struct job, link);
	j->job.result = w->fail;
	for (uint32_t i = 0; i < j->n && !w->fail; i++) {
		if (j->op == DEVICE_ZERO)
			w->bytes[j->pages[i]] = 0;
		else
			w->bytes[j->copies[i].to] = w->bytes[j->copies[i].from];
	}
	j->job.done(&j->job);
	return true;
}

static void cleaned(void *context, int result)
{
	struct world *w = context;

	w->cleaned++;
	w->last = result;
}

static int setup(void **state)
{
	static struct world w;

	w = (struct world){.device = {.submit = submit, .name = "test"},
			   .geometry = {.page_stride = STRIDE},
			   .memory = {.geometry = &w.geometry, .pages = PAGES},
			   .last = 1};
	*state = &w;
	list_init(&w.waiting);
	assert_int_equal(pages_init(&w.pages, PAGES), 0);
	mover_init(&w.mover, &w.pages, &w.device, &w.memory, cleaned, &w);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	memset(protection_off, 0, sizeof(protection_off));
	pages_deinit(&w->pages);
	return 0;
}

/* n pages are used, written to and given back. */
static void dirty(struct world *w, uint32_t n)
{
	uint32_t pages[PAGES];

	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(pages_take(&w->pages, &pages[i]), 0);
		w->bytes[pages[i]] = 0xff;
	}
	for (uint32_t i = 0; i < n; i++)
		pages_drop(&w->pages, pages[i]);
}

static void assert_clean_pages_are_zero(struct world *w)
{
	uint32_t page;

	assert_null(pages_check(&w->pages));
	while (pages_take(&w->pages, &page) == 0)
		assert_int_equal(w->bytes[page], 0);
}

static void dirty_pages_are_zeroed_and_become_clean(void **state)
{
	struct world *w = *state;

	mover_kick(&w->mover);
	assert_int_equal(w->submitted, 0);
	dirty(w, 3);
	mover_kick(&w->mover);
	assert_int_equal(w->submitted, 1);
	assert_int_equal(w->mover.in_flight, 1);
	assert_int_equal(w->pages.count[PAGE_ZEROING], 3);
	assert_int_equal(w->pages.count[PAGE_CLEAN], PAGES - 3);
	mover_kick(&w->mover);
	assert_int_equal(w->submitted, 1);
	assert_true(run(w));
	assert_int_equal(w->cleaned, 1);
	assert_int_equal(w->last, 0);
	assert_int_equal(w->mover.in_flight, 0);
	assert_int_equal(w->mover.zeroed, 3);
	assert_int_equal(w->pages.count[PAGE_CLEAN], PAGES);
	assert_clean_pages_are_zero(w);
}

static void jobs_are_few_and_of_bounded_size(void **state)
{
	struct world *w = *state;
	uint32_t jobs = 0;

	assert_int_equal(w->mover.batch, BATCH);
	dirty(w, PAGES);
	mover_kick(&w->mover);
	assert_int_equal(w->submitted, MOVER_ZERO_JOBS);
	assert_int_equal(w->pages.count[PAGE_ZEROING], MOVER_ZERO_JOBS * BATCH);
	while (run(w)) {
		jobs++;
		mover_kick(&w->mover);
		assert_true(w->mover.in_flight <= MOVER_ZERO_JOBS);
		assert_true(w->pages.count[PAGE_ZEROING] <= MOVER_ZERO_JOBS * BATCH);
	}
	assert_int_equal(jobs, (PAGES + BATCH - 1) / BATCH);
	assert_int_equal(w->mover.zeroed, PAGES);
	assert_clean_pages_are_zero(w);
}

static void the_batch_follows_the_size_of_a_page(void **state)
{
	struct world *w = *state;
	static const struct {
		uint64_t stride;
		uint32_t batch;
	} cases[] = {{4096, MOVER_ZERO_PAGES},
		     {MOVER_ZERO_BYTES / MOVER_ZERO_PAGES, MOVER_ZERO_PAGES},
		     {MOVER_ZERO_BYTES / 2, 2},
		     {MOVER_ZERO_BYTES, 1},
		     {64ull << 30, 1}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		w->geometry.page_stride = cases[i].stride;
		mover_init(&w->mover, &w->pages, &w->device, &w->memory, cleaned, w);
		assert_int_equal(w->mover.batch, cases[i].batch);
	}
}

static void a_failure_puts_the_pages_back_as_dirty(void **state)
{
	struct world *w = *state;

	dirty(w, 5);
	mover_kick(&w->mover);
	w->fail = -EIO;
	assert_true(run(w));
	assert_int_equal(w->last, -EIO);
	assert_int_equal(w->mover.zeroed, 0);
	assert_int_equal(w->mover.in_flight, 0);
	assert_int_equal(w->pages.count[PAGE_DIRTY], 5);
	assert_null(pages_check(&w->pages));
	w->fail = 0;
	mover_kick(&w->mover);
	assert_true(run(w));
	assert_int_equal(w->mover.zeroed, 5);
	assert_clean_pages_are_zero(w);
}

static void switched_off_clean_pages_hold_what_was_there(void **state)
{
	struct world *w = *state;
	uint32_t page;

	dirty(w, 5);
	protection_off[PROTECTION_fresh_pages_are_zeroed] = true;
	mover_kick(&w->mover);
	assert_true(run(w));
	assert_int_equal(pages_take(&w->pages, &page), 0);
	assert_int_equal(w->bytes[page], 0xff);
	pages_drop(&w->pages, page);
}

static void copied(struct mover_copy *c, int result)
{
	*(int *)c->owner = result;
}

static void a_copy_pins_both_pages_until_it_is_done(void **state)
{
	struct world *w = *state;
	struct mover_copy c = {.done = copied};
	int result = 1;
	uint32_t from, to;

	assert_int_equal(pages_take(&w->pages, &from), 0);
	assert_int_equal(pages_take(&w->pages, &to), 0);
	w->bytes[from] = 0x42;
	c.copy = (struct device_copy){.from = from, .to = to};
	c.owner = &result;
	mover_copy(&w->mover, &c);
	assert_int_equal(w->pages.page[from].pins, 1);
	assert_int_equal(w->pages.page[to].pins, 1);
	assert_int_equal(w->mover.in_flight, 1);
	assert_int_equal(result, 1);
	/* Both are given back meanwhile: neither is zeroed under the copy. */
	pages_drop(&w->pages, from);
	pages_drop(&w->pages, to);
	mover_kick(&w->mover);
	assert_int_equal(w->submitted, 1);
	assert_int_equal(w->pages.count[PAGE_DRAINING], 2);
	assert_true(run(w));
	assert_int_equal(result, 0);
	assert_int_equal(w->bytes[to], 0x42);
	assert_int_equal(w->mover.copied, 1);
	assert_int_equal(w->mover.in_flight, 0);
	assert_int_equal(w->pages.count[PAGE_DIRTY], 2);
	mover_kick(&w->mover);
	assert_true(run(w));
	assert_clean_pages_are_zero(w);
}

static void a_copy_that_failed_says_so_and_unpins(void **state)
{
	struct world *w = *state;
	struct mover_copy c = {.done = copied};
	int result = 1;
	uint32_t from, to;

	assert_int_equal(pages_take(&w->pages, &from), 0);
	assert_int_equal(pages_take(&w->pages, &to), 0);
	c.copy = (struct device_copy){.from = from, .to = to};
	c.owner = &result;
	mover_copy(&w->mover, &c);
	w->fail = -ENOMEM;
	assert_true(run(w));
	assert_int_equal(result, -ENOMEM);
	assert_int_equal(w->mover.copied, 0);
	assert_int_equal(w->pages.page[from].pins, 0);
	assert_int_equal(w->pages.page[to].pins, 0);
	assert_int_equal(w->mover.in_flight, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(dirty_pages_are_zeroed_and_become_clean),
	    TEST(jobs_are_few_and_of_bounded_size),
	    TEST(the_batch_follows_the_size_of_a_page),
	    TEST(a_failure_puts_the_pages_back_as_dirty),
	    TEST(switched_off_clean_pages_hold_what_was_there),
	    TEST(a_copy_pins_both_pages_until_it_is_done),
	    TEST(a_copy_that_failed_says_so_and_unpins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
