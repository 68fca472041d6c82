/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a daemon whose KV-RAM is still on its way, chunk by chunk: it serves with what is there,
 * tells how much that is, and whoever attaches waits for a chunk, never for all. One thread; jobs
 * run when the test says so.
 */
#include "tests/unit/core_world.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "daemon/front/budget.h"

#define FRAMES 48u
#define PAGES  10u

static const struct core_world_wish wish = {
    .heads = 32, /* 256 KiB a page, 8 in a frame */
    .frames = FRAMES,
    .chunk = 1,
    .pool = "\"pool_pages\": 30, \"max_sequence_length\": 176, \"max_prefix_cache_pages\": 12,"
	    " \"ram_floor_tokens\": 0"};

static struct core_world world;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	core_world_start(&world, &wish);
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	failpoint_clear();
	return 0;
}

/* One job of the work thread, a chunk if nobody else wants something. */
static void step(struct core_world *w)
{
	assert_true(sim_executor_step(&w->work, 0));
	core_listen(w);
}

struct shown { /* of KV-RAM, in the answer to an operator */
	char state[16], note[ARENA_NOTE_BYTES];
	uint64_t capacity_bytes, wanted_bytes;
	size_t warnings;
};

static struct shown ask_health(struct core_client *operator)
{
	uint64_t asked = core_ask_operator(operator, PAYLOAD_ADMIN_HEALTH, "");
	const struct completion *reply = &operator->replies[asked % CORE_SLOTS];
	struct shown out = {0};
	json_t *root, *ram;

	core_listen(operator->world);
	assert_int_equal(reply->submission, asked);
	assert_int_equal(reply->status, 0);
	root = json_loadb(core_answer(operator, asked), reply->count, 0, NULL);
	ram = json_object_get(root, "kv_ram");
	assert_non_null(ram);
	strncpy(out.state, json_string_value(json_object_get(ram, "state")), sizeof(out.state) - 1);
	strncpy(out.note, json_string_value(json_object_get(ram, "note")), sizeof(out.note) - 1);
	out.capacity_bytes = (uint64_t)json_integer_value(json_object_get(ram, "capacity_bytes"));
	out.wanted_bytes = (uint64_t)json_integer_value(json_object_get(ram, "wanted_bytes"));
	out.warnings = json_array_size(json_object_get(root, "warnings"));
	json_decref(root);
	return out;
}

static void health_tells_how_much_has_arrived(void **state)
{
	struct core_world *w = *state;
	struct core_client *operator= & w->clients[2];
	struct shown shown;

	core_client_start(operator, false);
	shown = ask_health(operator);
	assert_string_equal(shown.state, "arriving");
	assert_int_equal(shown.capacity_bytes, 0);
	assert_int_equal(shown.wanted_bytes, FRAMES * FRAME_BYTES);
	step(w); /* headers */
	for (uint64_t i = 1; i < FRAMES; i++) {
		step(w);
		shown = ask_health(operator);
		assert_string_equal(shown.state, "arriving");
		assert_int_equal(shown.capacity_bytes, i * FRAME_BYTES);
		assert_int_equal(shown.warnings, 0);
	}
	step(w);
	shown = ask_health(operator);
	assert_string_equal(shown.state, "on");
	assert_int_equal(shown.capacity_bytes, FRAMES * FRAME_BYTES);
	core_world_stop(w);
}

static void what_will_never_arrive_is_a_warning(void **state)
{
	struct core_world *w = *state;
	struct core_client *operator= & w->clients[2];
	struct shown shown;

	core_client_start(operator, false);
	step(w);
	step(w);
	failpoint_arm(FAILPOINT_arena_chunk, 0, 1);
	step(w);
	shown = ask_health(operator);
	assert_string_equal(shown.state, "partial");
	assert_int_equal(shown.capacity_bytes, FRAME_BYTES);
	assert_int_equal(shown.warnings, 1);
	assert_non_null(strstr(shown.note, " bytes are there: "));
	core_world_stop(w);
}

/* What is there serves: of eight pages a frame, as many as have come. */
static void prompts_are_served_from_what_has_arrived(void **state)
{
	struct core_world *w = *state;
	struct core_client *c = &w->clients[0];
	uint64_t arrived = 0, found = 0;

	core_client_start(c, true);
	for (uint32_t i = 0; w->arena->state == ARENA_ARRIVING; i++) {
		uint32_t cached = 0;

		assert_true(i < 100);
		assert_int_equal(core_serve(c, CORE_ALONE + i % 3, PAGES, &cached), 0);
		assert_true(w->arena->arrived_bytes >= arrived);
		assert_true(w->core.ram->used_bytes <= w->arena->arrived_bytes);
		arrived = w->arena->arrived_bytes;
		if (arrived < FRAMES * FRAME_BYTES)
			found += cached;
		core_world_check(w);
	}
	assert_true(found > 0);
	assert_true(core_pool(w)->stats.restores > 0);
	core_world_stop(w);
}

/* Memory for a session and its pool is asked for behind the chunk that is on its way, and before
 * the one after it. */
static void whoever_attaches_waits_for_a_chunk_and_not_for_all(void **state)
{
	struct core_world *w = *state;

	for (int i = 0; i < 2; i++) {
		uint64_t before = w->arena->arrived_bytes;

		core_client_start(&w->clients[i], true);
		assert_true(w->arena->arrived_bytes - before <= 3 * FRAME_BYTES);
		assert_int_equal(w->arena->state, ARENA_ARRIVING);
	}
	core_world_stop(w);
}

/* ---- what a pool leaves for it ---- */

static struct core_world *restart(struct core_world *w, const struct core_world_wish *with)
{
	core_world_stop(w);
	memset(w, 0, sizeof(*w));
	core_world_start(w, with);
	return w;
}

/* And what other pools are still to get that are being made. */
static void leaves_other_pools_theirs(struct core *c)
{
	struct core_pool *p = c->pool[0];
	enum core_pool_state was = p->state;
	const char *to;
	uint64_t ram = budget_promised(c, &to);

	assert_int_equal(ram, c->ram->arena->promised_bytes);
	assert_string_equal(to, "KV-RAM is");
	p->memory.promised_bytes = 1000;
	p->state = CORE_POOL_MAKING;
	assert_int_equal(budget_promised(c, &to), ram + 1000);
	assert_string_equal(to, "KV-RAM and pools on their way are");
	p->state = CORE_POOL_READY;
	assert_int_equal(budget_promised(c, &to), ram);
	p->memory.promised_bytes = 0;
	p->state = was;
}

/* What is to come after the chunk that is on its way: when a job that is submitted now runs, that
 * one has come or will never come. */
static void a_pool_leaves_what_has_not_arrived(void **state)
{
	struct core_world_wish based = wish;
	struct core_world *w;

	based.base_pages = true;
	w = restart(*state, &based);
	assert_false(w->arena->set_aside);
	assert_int_equal(w->arena->promised_bytes, (FRAMES - 1) * FRAME_BYTES);
	step(w); /* headers */
	step(w);
	assert_int_equal(w->arena->arrived_bytes, FRAME_BYTES);
	assert_int_equal(w->arena->promised_bytes, (FRAMES - 2) * FRAME_BYTES);
	core_client_start(&w->clients[0], true);
	assert_int_equal(w->core.pool[0]->making.promised_bytes, (FRAMES - 2) * FRAME_BYTES);
	assert_int_equal(w->core.pool[0]->making.index_bytes, w->core.pool[0]->plan.index_bytes);
	assert_true(w->core.pool[0]->plan.index_bytes > 0);
	leaves_other_pools_theirs(&w->core);
	while (w->arena->state == ARENA_ARRIVING)
		step(w);
	assert_int_equal(w->arena->state, ARENA_WHOLE);
	assert_int_equal(w->arena->promised_bytes, 0);
	core_world_stop(w);
}

static void what_will_never_arrive_is_promised_to_nobody(void **state)
{
	struct core_world_wish based = wish;
	struct core_world *w;

	based.base_pages = true;
	w = restart(*state, &based);
	step(w);
	failpoint_arm(FAILPOINT_arena_chunk, 0, 1);
	step(w);
	assert_int_equal(w->arena->state, ARENA_PARTIAL);
	assert_int_equal(w->arena->promised_bytes, 0);
	core_world_stop(w);
}

/* Of a pool that is to have what there is: KV-RAM is to have some of it. */
static void a_pool_of_no_size_leaves_room_for_it(void **state)
{
	static const uint64_t pool_bytes = 96ull << 20;
	static const struct staging staging = {.bytes = 8ull << 20};
	struct core_world_wish based = wish;
	struct core_world *w;

	based.base_pages = true;
	based.pool = "\"headroom_bytes\": 0, \"max_sequence_length\": 176,"
		     " \"max_prefix_cache_pages\": 12, \"ram_floor_tokens\": 0";
	w = restart(*state, &based);
	w->core.available_bytes = FRAMES * FRAME_BYTES + pool_bytes;
	core_client_start(&w->clients[0], true);
	assert_int_equal(w->core.pool[0]->plan.budget_bytes, pool_bytes);
	core_world_stop(w);

	/* Huge pages that are set aside are no part of that memory; staging is. */
	memset(w, 0, sizeof(*w));
	core_world_start(w, &based);
	w->arena->set_aside = true;
	w->core.staging = &staging;
	w->core.available_bytes = pool_bytes + staging.bytes;
	core_client_start(&w->clients[0], true);
	assert_int_equal(w->core.pool[0]->plan.budget_bytes, pool_bytes);
	core_world_stop(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(health_tells_how_much_has_arrived),
	    TEST(what_will_never_arrive_is_a_warning),
	    TEST(prompts_are_served_from_what_has_arrived),
	    TEST(whoever_attaches_waits_for_a_chunk_and_not_for_all),
	    TEST(a_pool_leaves_what_has_not_arrived),
	    TEST(what_will_never_arrive_is_promised_to_nobody),
	    TEST(a_pool_of_no_size_leaves_room_for_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
