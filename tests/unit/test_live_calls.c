/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of calls on live sequences that make room for others: what comes back is taken once,
 * whoever looks for it first, a fork that is being made is nobody's to discard, and who waits for
 * room in KV-RAM hears of it when another pool's copies end. One thread; nothing blocks.
 */
#include "tests/unit/core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define PAGES  10u /* and one more, in which the last token is */
#define PLACES 8u  /* of KV-RAM, where a page has 256 KiB */

static struct core_world world;

static void start(const struct core_world_wish *wish)
{
	memset(&world, 0, sizeof(world));
	core_world_start(&world, wish);
	for (int i = 0; i < CORE_CLIENTS; i++)
		core_client_start(&world.clients[i], true);
}

static void open_one(struct core_prompt *p, int client)
{
	core_open(p, &world.clients[client], CORE_ALONE + (uint32_t)client, PAGES);
	assert_int_equal(core_opened(p), 0);
	assert_int_equal(p->cached_tokens, 0);
}

static uint64_t ask(const struct core_prompt *p, uint16_t opcode, uint64_t arg0, const void *in,
		    uint32_t in_bytes)
{
	struct submission e = {.opcode = opcode,
			       .index = p->sequence.index,
			       .generation = p->sequence.generation,
			       .arg0 = arg0};

	return core_ask(p->client, &e, in, in_bytes);
}

static uint64_t ask_read(const struct core_prompt *p)
{
	const struct payload_rows in = {.format = PAYLOAD_FLOAT32, .n_tokens = 1};

	return ask(p, WIRE_OP_KV_READ, 0, &in, sizeof(in));
}

static uint64_t ask_begin(const struct core_prompt *p, uint32_t target)
{
	const struct payload_step in = {0};

	return ask(p, WIRE_OP_STEP_BEGIN, target, &in, sizeof(in));
}

static struct core_prompt forked(const struct core_prompt *p, uint64_t asked)
{
	const struct completion *reply = &p->client->replies[asked % CORE_SLOTS];
	struct core_prompt fork = *p;

	assert_int_equal(core_await(p->client, asked), 0);
	fork.sequence = (struct payload_handle){reply->index, reply->generation};
	return fork;
}

static uint64_t ask_fork(const struct core_prompt *p)
{
	return ask(p, WIRE_OP_FORK, (PAGES + 1) * CORE_PAGE, NULL, 0);
}

/* Both wait for the pages; the second finds that they have come. */
static void two_reads_of_one_that_comes_back_are_answered_once(void **state)
{
	static const struct core_world_wish wish = {
	    .heads = 1,
	    .frames = 4,
	    .pool = "\"pool_pages\": 30, \"max_sequence_length\": 176,"
		    " \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0"};
	struct core_prompt first, second, low;
	uint64_t one, two, answered;

	(void)state;
	start(&wish);
	open_one(&first, 0);
	open_one(&second, 1);
	open_one(&low, 2);
	assert_int_equal(core_fill(&low), 0);
	assert_int_equal(core_fill(&second), 0);
	assert_int_equal(core_fill(&first), 0);
	assert_true(core_pool(&world)->stats.parked_pages > 0);
	answered = low.client->answered;
	one = ask_read(&low);
	two = ask_read(&low);
	core_listen(&world);
	assert_int_equal(low.client->answered, answered);
	assert_int_equal(core_close(&second), 0);
	assert_int_equal(core_await(low.client, one), 0);
	assert_int_equal(core_await(low.client, two), 0);
	core_listen(&world);
	assert_int_equal(low.client->answered, answered + 2);
	assert_true(core_pool(&world)->stats.returned_pages > 0);
	assert_int_equal(core_close(&low), 0);
	assert_int_equal(core_close(&first), 0);
	core_world_stop(&world);
}

/* KV-RAM has no place for it: who ranks above would have to discard somebody. */
static void a_fork_that_is_being_made_is_not_discarded(void **state)
{
	static const struct core_world_wish wish = {
	    .heads = 224,
	    .frames = 1,
	    .pool = "\"pool_pages\": 22, \"max_sequence_length\": 176, \"overcommit\": true,"
		    " \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0"};
	struct core_prompt above, prompt, parent, fork;
	uint64_t forks, begins;

	(void)state;
	start(&wish);
	open_one(&above, 0);
	open_one(&prompt, 1);
	assert_int_equal(core_fill(&prompt), 0);
	parent = forked(&prompt, ask_fork(&prompt));
	assert_int_equal(core_close(&prompt), 0);
	/* It writes behind what is committed: the fork gets a copy of the last page. */
	assert_int_equal(core_await(parent.client, ask_begin(&parent, PAGES * CORE_PAGE + 2)), 0);
	forks = ask_fork(&parent);
	core_listen(&world);
	/* The copy has ended, and the fork has not been told when somebody looks for pages. */
	assert_true(sim_executor_step(&world.copies, 0) || sim_executor_step(&world.work, 0));
	assert_true(core_turn(&world.core));
	begins = ask_begin(&above, PAGES * CORE_PAGE + 1);
	fork = forked(&parent, forks);
	/* Now it is the lowest. */
	assert_int_equal(core_await(above.client, begins), 0);
	assert_int_equal(core_pool(&world)->stats.discarded_sequences, 1);
	assert_int_equal(core_await(fork.client, ask_begin(&fork, PAGES * CORE_PAGE + 2)),
			 WIRE_ELOST);
	assert_int_equal(core_close(&fork), 0);
	core_world_check(&world);
	core_world_stop(&world);
}

/* ---- two pools ---- */

static enum core_verdict all_are_late(struct core_world *w, enum core_moment moment)
{
	(void)w;
	(void)moment;
	return CORE_IS_LATE;
}

/* A chain of this pool leaves for KV-RAM, page by page, until there is no place left; the copies
 * are on their way. */
static void fill_ram_with_what_moves(struct core_client *c)
{
	const struct pool *p = &world.core.pool[c->at]->pool;

	world.watch = all_are_late;
	assert_int_equal(core_serve(c, CORE_ALONE, PLACES, NULL), 0);
	assert_int_equal(core_serve(c, CORE_ALONE + 1, PLACES, NULL), 0);
	core_listen(&world);
	assert_int_equal(p->leaving, PLACES);
	assert_int_equal(p->in_ram, PLACES);
}

/* Nothing of its own pool moves: only the other one knows when there is room. */
static void who_waits_for_room_below_hears_when_copies_of_another_pool_have_landed(void **state)
{
	static const struct core_world_wish wish = {
	    .heads = 32, /* 256 KiB a page */
	    .frames = 1,
	    .pool = "\"pool_pages\": 8, \"max_sequence_length\": 80,"
		    " \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0",
	    .other = "\"pool_pages\": 30, \"max_sequence_length\": 176,"
		     " \"max_prefix_cache_pages\": 8, \"ram_floor_tokens\": 0"};
	struct core_client *c = &world.clients[0], *other = &world.clients[1];
	struct core_prompt above, low;
	uint64_t begins, answered;

	(void)state;
	memset(&world, 0, sizeof(world));
	core_world_start(&world, &wish);
	core_client_start(c, true);
	core_client_start(other, false);
	core_client_attach(other, 1);
	core_open(&above, c, CORE_ALONE, 4);
	assert_int_equal(core_opened(&above), 0);
	core_open(&low, c, CORE_ALONE + 1, 4);
	assert_int_equal(core_opened(&low), 0);
	assert_int_equal(core_fill(&low), 0);
	fill_ram_with_what_moves(other);
	answered = c->answered;
	begins = ask_begin(&above, 4 * CORE_PAGE + 1);
	core_listen(&world);
	assert_int_equal(c->answered, answered);
	assert_int_equal(core_pool(&world)->leaving + core_pool(&world)->parting, 0);
	assert_int_equal(core_pool(&world)->stats.parked_pages, 0);
	core_heal(&world);
	assert_int_equal(c->answered, answered + 1);
	assert_int_equal(core_await(c, begins), 0);
	assert_true(core_pool(&world)->stats.parked_pages > 0);
	assert_true(world.core.pool[1]->pool.stats.ram_displaced > 0);
	assert_int_equal(core_close(&above), 0);
	assert_int_equal(core_close(&low), 0);
	core_world_stop(&world);
}

/* What it waits for is a promise that the other pool has. */
static void who_waits_to_be_admitted_hears_when_another_pool_has_promised_less(void **state)
{
	static const struct core_world_wish wish = {
	    .heads = 32, /* 256 KiB a page */
	    .frames = 1,
	    .pool = "\"pool_pages\": 8, \"max_sequence_length\": 96",
	    .other = "\"pool_pages\": 30, \"max_sequence_length\": 176"};
	struct core_client *c = &world.clients[0], *other = &world.clients[1];
	struct core_prompt first, second, others[3];
	uint64_t answered;

	(void)state;
	memset(&world, 0, sizeof(world));
	core_world_start(&world, &wish);
	core_client_start(c, true);
	core_client_start(other, false);
	core_client_attach(other, 1);
	for (uint32_t i = 0; i < 3; i++) {
		core_open(&others[i], other, CORE_ALONE + i, PAGES);
		assert_int_equal(core_opened(&others[i]), 0);
	}
	assert_true(pool_promised(&world.core.pool[1]->pool) > 30);
	core_open(&first, c, CORE_ALONE, 5);
	assert_int_equal(core_opened(&first), 0);
	answered = c->answered;
	core_open(&second, c, CORE_ALONE + 1, 5);
	core_listen(&world);
	assert_int_equal(c->answered, answered);
	assert_int_equal(core_close(&others[0]), 0);
	core_listen(&world);
	assert_int_equal(c->answered, answered + 1);
	assert_int_equal(core_opened(&second), 0);
	assert_int_equal(core_close(&first), 0);
	assert_int_equal(core_close(&second), 0);
	for (uint32_t i = 1; i < 3; i++)
		assert_int_equal(core_close(&others[i]), 0);
	core_world_stop(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(two_reads_of_one_that_comes_back_are_answered_once),
	    cmocka_unit_test(a_fork_that_is_being_made_is_not_discarded),
	    cmocka_unit_test(
		who_waits_for_room_below_hears_when_copies_of_another_pool_have_landed),
	    cmocka_unit_test(who_waits_to_be_admitted_hears_when_another_pool_has_promised_less),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
