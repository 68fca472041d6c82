/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a pool all of whose pages are in use, on their way or above such pages: what counts as
 * retained is what can be had, and who wants more is answered by its deadline and served once
 * something has ended. One thread; nothing blocks.
 */
#include "tests/unit/core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 10u

/* Two prompts and their last partial pages fit, three do not. */
static const struct core_world_wish wish = {
    .heads = 32,
    .frames = 4,
    .pool = "\"pool_pages\": 30, \"max_sequence_length\": 176, \"max_prefix_cache_pages\": null,"
	    " \"ram_floor_tokens\": 0"};

static struct core_world world;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	core_world_start(&world, &wish);
	world.config.pools[0].live_in_ram = false; /* nobody makes room */
	for (int i = 0; i < CORE_CLIENTS; i++)
		core_client_start(&world.clients[i], i < 2);
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return 0;
}

static void open_and_fill(struct core_world *w, struct core_prompt *p, int client, uint32_t number)
{
	core_open(p, &w->clients[client], number, PAGES);
	assert_int_equal(core_opened(p), 0);
	assert_int_equal(core_fill(p), 0);
	core_world_check(w);
}

static void drop_all(struct core_world *w)
{
	struct core_client *operator= & w->clients[2];

	assert_int_equal(core_await(operator, core_ask_operator(operator, PAYLOAD_ADMIN_DROP, "")),
			 0);
	core_world_check(w);
}

/* Pages of the device that nobody uses: all of them go, and nothing else. */
static void expect_retained_is_what_goes(struct core_world *w, uint64_t retained)
{
	const struct pool *p = core_pool(w);
	uint64_t free = pages_free(&p->pages);

	assert_int_equal(pool_retained(p), retained);
	drop_all(w);
	assert_int_equal(pages_free(&p->pages) - free, retained);
	assert_int_equal(pool_retained(p), 0);
}

static void what_counts_as_retained_is_what_can_go(void **state)
{
	struct core_world *w = *state;
	struct core_prompt held, part;

	assert_int_equal(core_serve(&w->clients[0], 0, PAGES, NULL), 0);
	assert_int_equal(core_serve(&w->clients[0], 1, PAGES, NULL), 0);
	/* Of the first prompt only its head is in use, with all that is above it. */
	core_open(&part, &w->clients[1], 0, 4);
	assert_int_equal(core_opened(&part), 0);
	assert_int_equal(part.cached_tokens, 4 * CORE_PAGE);
	expect_retained_is_what_goes(w, 2 * PAGES - 2 - 4);
	open_and_fill(w, &held, 0, 2);
	expect_retained_is_what_goes(w, 0);
	assert_int_equal(core_close(&part), 0);
	assert_int_equal(core_close(&held), 0);
	expect_retained_is_what_goes(w, PAGES + 2);
	core_world_stop(w);
}

static void who_finds_all_in_use_is_answered_by_its_deadline_and_served_after(void **state)
{
	struct core_world *w = *state;
	struct core_prompt a, b, c;
	uint64_t before_ns;

	open_and_fill(w, &a, 0, CORE_ALONE);
	open_and_fill(w, &b, 0, CORE_ALONE + 1);
	before_ns = w->now_ns;
	core_open(&c, &w->clients[1], CORE_ALONE + 2, PAGES);
	assert_int_equal(core_opened(&c), WIRE_ETIMEDOUT);
	/* No earlier, and hardly later; the core slept meanwhile, or this would have no end. */
	assert_in_range(w->now_ns - before_ns, NS_PER_S, NS_PER_S + NS_PER_S / 100);
	assert_int_equal(core_pool(w)->stats.admission_waits, 1);
	core_world_check(w);
	core_open(&c, &w->clients[1], CORE_ALONE + 2, PAGES);
	core_listen(w);
	assert_int_equal(core_close(&a), 0);
	assert_int_equal(core_opened(&c), 0);
	assert_int_equal(core_fill(&c), 0);
	assert_int_equal(core_close(&b), 0);
	assert_int_equal(core_close(&c), 0);
	core_world_stop(w);
}

static enum core_verdict all_are_late(struct core_world *w, enum core_moment moment)
{
	(void)w;
	(void)moment;
	return CORE_IS_LATE;
}

/* All that is not in use leaves the device, and no copy ends. */
static void who_finds_all_on_its_way_is_answered_by_its_deadline_and_served_after(void **state)
{
	struct core_world *w = *state;
	struct core_prompt a, b, c;

	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(core_serve(&w->clients[0], CORE_ALONE + i, PAGES, NULL), 0);
	w->watch = all_are_late;
	open_and_fill(w, &a, 0, CORE_ALONE + 2);
	core_open(&b, &w->clients[1], CORE_ALONE + 3, PAGES);
	assert_int_equal(core_opened(&b), 0);
	assert_int_equal(core_fill(&b), WIRE_ETIMEDOUT);
	assert_true(core_pool(w)->leaving > 0);
	/* What leaves is found as before. */
	core_open(&c, &w->clients[0], CORE_ALONE + 1, 4);
	assert_int_equal(core_opened(&c), 0);
	assert_int_equal(c.cached_tokens, 4 * CORE_PAGE);
	assert_int_equal(c.tier, PAYLOAD_DEVICE);
	assert_int_equal(core_close(&c), 0);
	core_heal(w);
	assert_int_equal(core_pool(w)->leaving, 0);
	assert_int_equal(core_fill(&b), 0);
	assert_int_equal(core_close(&a), 0);
	assert_int_equal(core_close(&b), 0);
	core_world_stop(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_counts_as_retained_is_what_can_go),
	    TEST(who_finds_all_in_use_is_answered_by_its_deadline_and_served_after),
	    TEST(who_finds_all_on_its_way_is_answered_by_its_deadline_and_served_after),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
