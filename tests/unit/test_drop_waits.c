/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what operators drop while pages are on their way to KV-RAM: turn by turn, and never
 * before their copies have ended. One thread; copies end when the test says so.
 */
#include "tests/unit/core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"

#define PAGES 8u /* of a prompt; as many are kept on the device */
#define ATURN 3u /* pages that a drop takes in a turn */

static const struct core_world_wish wish = {
    .heads = 32, /* 256 KiB a page */
    .frames = 4,
    .pool = "\"pool_pages\": 30, \"max_sequence_length\": 176, \"max_prefix_cache_pages\": 8,"
	    " \"ram_floor_tokens\": 0"};

static struct core_world world;

static enum core_verdict all_are_late(struct core_world *w, enum core_moment moment)
{
	(void)w;
	(void)moment;
	return CORE_IS_LATE;
}

/* One chain is in KV-RAM, one on its way there, one on the device. */
static int setup(void **state)
{
	struct core_client *c = &world.clients[0];

	memset(&world, 0, sizeof(world));
	core_world_start(&world, &wish);
	world.config.core.job_pages_per_turn = ATURN;
	core_client_start(c, true);
	core_client_start(&world.clients[1], false);
	assert_int_equal(core_serve(c, CORE_ALONE, PAGES, NULL), 0);
	assert_int_equal(core_serve(c, CORE_ALONE + 1, PAGES, NULL), 0);
	core_heal(&world);
	assert_int_equal(core_pool(&world)->in_ram, PAGES);
	world.watch = all_are_late;
	assert_int_equal(core_serve(c, CORE_ALONE + 2, PAGES, NULL), 0);
	core_listen(&world);
	assert_int_equal(core_pool(&world)->leaving, PAGES);
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	memset(protection_off, 0, sizeof(protection_off));
	return 0;
}

/* Ask, and let the core go on as long as it can. */
static uint64_t ask(struct core_world *w, uint32_t question, const char *argument)
{
	uint64_t asked = core_ask_operator(&w->clients[1], question, argument);

	core_listen(w);
	return asked;
}

static bool is_answered(const struct core_world *w, uint64_t asked)
{
	return w->clients[1].replies[asked % CORE_SLOTS].submission == asked;
}

static void a_drop_ends_once_what_was_on_its_way_has_gone_too(void **state)
{
	struct core_world *w = *state;
	uint64_t asked = ask(w, PAYLOAD_ADMIN_DROP, "");

	/* All that did not move has gone. */
	assert_int_equal(core_pool(w)->leaving, PAGES);
	assert_int_equal(core_pool(w)->indexed, PAGES);
	assert_int_equal(core_pool(w)->in_ram, PAGES);
	assert_false(is_answered(w, asked));
	core_heal(w);
	assert_true(is_answered(w, asked));
	assert_int_equal(core_await(&w->clients[1], asked), 0);
	assert_int_equal(core_pool(w)->indexed + core_pool(w)->in_ram, 0);
	core_world_stop(w);
}

static void switched_off_it_leaves_what_was_on_its_way(void **state)
{
	struct core_world *w = *state;
	uint64_t asked;

	protection_off[PROTECTION_drops_wait_for_copies] = true;
	asked = ask(w, PAYLOAD_ADMIN_DROP, "");
	assert_true(is_answered(w, asked));
	core_heal(w);
	assert_int_equal(core_pool(w)->in_ram, PAGES);
	core_world_stop(w);
}

/* Its memory is what the copies read, and nobody looks again and again whether they have ended. */
static void a_pool_is_freed_once_nothing_of_it_moves(void **state)
{
	struct core_world *w = *state;
	const struct core_pool *p = w->core.pool[0];
	uint64_t asked;

	core_client_end(&w->clients[0], true);
	core_listen(w);
	asked = ask(w, PAYLOAD_ADMIN_POOL_DROP, "p");
	assert_false(is_answered(w, asked));
	assert_int_equal(p->state, CORE_POOL_DROPPING);
	assert_non_null(p->memory.segment.memory);
	assert_false(core_turn(&w->core));
	core_heal(w);
	assert_true(is_answered(w, asked));
	assert_int_equal(core_await(&w->clients[1], asked), 0);
	assert_int_equal(p->state, CORE_POOL_DECLARED);
	assert_int_equal(w->core.ram->used_bytes, 0);
	core_world_stop(w);
}

static void the_pages_of_a_pool_go_turn_by_turn(void **state)
{
	struct core_world *w = *state;
	const struct core_pool *p = w->core.pool[0];
	uint32_t left, turns = 0;

	core_heal(w);
	core_client_end(&w->clients[0], true);
	core_listen(w);
	left = p->pool.in_ram;
	assert_int_equal(left, 2 * PAGES);
	(void)core_ask_operator(&w->clients[1], PAYLOAD_ADMIN_POOL_DROP, "p");
	for (; !p->freeing && turns < 2 * PAGES; turns++) {
		(void)core_turn(&w->core);
		assert_in_range(left - p->pool.in_ram, 0, ATURN);
		left = p->pool.in_ram;
	}
	assert_true(p->freeing && turns > 2 * PAGES / ATURN);
	core_world_stop(w);
}

static uint64_t opens(struct core_world *w)
{
	core_publish(&w->core);
	return w->stats.values[w->core.pool[0]->counters->first + COUNTER_pool_opens];
}

/* Its index takes a while to make. */
static void what_a_pool_has_counted_is_known_while_it_is_made_again(void **state)
{
	struct core_world *w = *state;
	struct core_client *c = &w->clients[2];
	const struct core_pool *p = w->core.pool[0];
	uint64_t asked, counted;
	bool was_made = false;

	core_heal(w);
	counted = opens(w);
	assert_true(counted >= 3);
	core_client_end(&w->clients[0], true);
	core_listen(w);
	asked = ask(w, PAYLOAD_ADMIN_POOL_DROP, "p");
	assert_int_equal(core_await(&w->clients[1], asked), 0);
	assert_int_equal(opens(w), counted);
	core_client_start(c, false);
	(void)core_ask_attach(c, 0);
	for (int i = 0; i < 100 && p->state != CORE_POOL_READY; i++) {
		core_listen(w);
		was_made |= p->state == CORE_POOL_MAKING;
		assert_int_equal(opens(w), counted);
		if (!sim_executor_step(&w->work, 0))
			(void)sim_executor_step(&w->copies, 0);
	}
	assert_true(was_made);
	assert_int_equal(p->state, CORE_POOL_READY);
	assert_int_equal(opens(w), counted);
	core_world_stop(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_drop_ends_once_what_was_on_its_way_has_gone_too),
	    TEST(switched_off_it_leaves_what_was_on_its_way),
	    TEST(a_pool_is_freed_once_nothing_of_it_moves),
	    TEST(the_pages_of_a_pool_go_turn_by_turn),
	    TEST(what_a_pool_has_counted_is_known_while_it_is_made_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
