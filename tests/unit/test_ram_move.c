/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/ram.h: pages of KV-RAM that are moved so that others fit, an arena that
 * arrives bit by bit, and the end. One thread; nothing blocks.
 */

#include "tests/unit/ram_world.h"

#include <errno.h>

#include "daemon/tier/record.h"

#define LARGE (256 * KIB) /* 8 in a frame */
#define HUGE  (1 * MIB)   /* 2 in a frame */

static struct ram_world world;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	if (world.real)
		ram_world_deinit(*state);
	return 0;
}

static void start(struct ram_world *w, uint32_t frames)
{
	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = frames * FRAME_BYTES,
						     .n_pools = 2,
						     .pool = {{.page_bytes = LARGE, .pages = 40},
							      {.page_bytes = HUGE, .pages = 8}}});
}

/* Four frames, with 3 pages of 8 in each: two would be free, none is. */
static void spread(struct ram_world *w, uint32_t nodes[4][8])
{
	start(w, 4);
	for (uint32_t i = 0; i < 4; i++)
		ram_world_put_down(w, 0, 0, 1 + i, 8, nodes[i]);
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t k = 8; k-- > 3;)
			pool_give_up_ram(&w->pools[0].pool, nodes[i][k]);
	}
	ram_world_check(w);
	assert_int_equal(frames_sums(w->arena->frames).slabs, 4);
}

static int moves_below_fail(struct ram_world *w, const struct device_job *j,
			    const struct device_move *m)
{
	(void)w;
	(void)j;
	return m->from == DEVICE_ARENA && m->to == DEVICE_ARENA ? -EIO : 0;
}

/* The first page of the other size to go down. */
static void send_huge(struct ram_world *w, uint32_t n)
{
	ram_world_retain(w, 1, 0, 1, n, NULL);
	ram_world_send_down(w, 1, n);
}

static void pages_are_moved_together_so_that_another_size_fits(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[4][8];

	spread(w, a);
	send_huge(w, 3);
	/* It waits for that, and is on the device meanwhile. */
	assert_true(w->ram->n_plan > 0);
	ram_world_check(w);
	assert_int_equal(w->pools[1].pool.indexed, 3);
	assert_int_equal(w->pools[1].pool.stats.ram_refused, 0);
	assert_false(ram_pool_is_quiet(&w->pools[0].ram));
	for (uint32_t i = 0; i < 20 && w->pools[1].pool.indexed; i++) {
		w->pools[1].moved = 0;
		ram_world_settle(w);
		ram_world_check(w);
		assert_true(w->pools[1].moved > 0);
		ram_world_send_down(w, 1, (uint32_t)w->pools[1].pool.indexed);
	}
	ram_world_settle(w);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 3), 3);
	assert_int_equal(w->pools[1].pool.stats.discards, 0);
	assert_true(w->ram->relocated >= 6);
	assert_int_equal(w->ram->relocations_failed, 0);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(ram_world_below(w, 0, 0, 1 + i, 8), 3);
		assert_int_equal(ram_world_reuse(w, 0, 0, 1 + i, 3), 3);
	}
	ram_world_check(w);
}

static void moves_that_fail_leave_everything_where_it_was(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[4][8];

	spread(w, a);
	w->fault = moves_below_fail;
	send_huge(w, 1);
	ram_world_settle(w);
	ram_world_check(w);
	assert_true(w->ram->relocations_failed > 0);
	assert_int_equal(w->ram->relocated, 0);
	assert_int_equal(w->ram->n_plan, 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(ram_world_below(w, 0, 0, 1 + i, 8), 3);
	/* Nobody waits for ever for what does not work: the page goes. */
	ram_world_send_down(w, 1, 1);
	ram_world_settle(w);
	ram_world_check(w);
	assert_int_equal(w->pools[1].pool.stats.ram_refused, 1);
	assert_int_equal(w->pools[1].pool.indexed, 0);
	/* Once it works again, pages fit again. */
	w->fault = NULL;
	for (uint32_t i = 0; i < 20 && ram_world_below(w, 1, 0, 2, 1) == 0; i++) {
		ram_world_retain(w, 1, 0, 2, 1, NULL);
		ram_world_send_down(w, 1, 1);
		ram_world_settle(w);
		ram_world_check(w);
	}
	assert_int_equal(ram_world_below(w, 1, 0, 2, 1), 1);
}

static bool is_full(const struct ram_world *w)
{
	const struct pool_below *b = w->pools[1].pool.below;

	return b->is_full(b->context);
}

/* Nor for ever until live sequences may be discarded. */
static void moves_that_fail_make_no_room_for_what_is_live(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[4][8];

	spread(w, a);
	w->fault = moves_below_fail;
	assert_false(is_full(w));
	assert_true(w->ram->n_plan > 0);
	ram_world_settle(w);
	assert_true(is_full(w));
	/* They were tried again: nothing is known before that has ended. */
	assert_false(is_full(w));
	w->fault = NULL;
	ram_world_settle(w);
	assert_true(w->ram->relocated > 0);
	assert_false(is_full(w));
	ram_world_settle(w);
	ram_world_check(w);
}

/* What must have a place and gets none by moving takes one from its own. */
static void moves_that_fail_stop_nobody_who_must_have_a_place(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[4][8], b[3];

	start(w, 4);
	ram_world_retain(w, 1, 0, 1, 3, b);
	ram_world_send_down(w, 1, 2);
	ram_world_settle(w); /* two in one frame, and one that stands above them */
	for (uint32_t i = 0; i < 3; i++)
		ram_world_put_down(w, 0, 0, 1 + i, 8, a[i]);
	for (uint32_t i = 0; i < 3; i++) {
		for (uint32_t k = 8; k-- > 3;)
			pool_give_up_ram(&w->pools[0].pool, a[i][k]);
	}
	w->fault = moves_below_fail;
	for (uint32_t i = 0; i < 4 && w->pools[1].pool.indexed; i++) {
		ram_world_send_down(w, 1, 1);
		ram_world_settle(w);
		ram_world_check(w);
	}
	assert_int_equal(w->pools[1].pool.indexed, 0);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 3), 2);
	w->fault = NULL;
}

/* A page on the move that is wanted is read where it was, and stays there. */
static void what_is_being_moved_can_be_fetched(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[4][8];
	uint64_t before;

	spread(w, a);
	send_huge(w, 1);
	assert_true(w->ram->n_plan > 0);
	before = w->ram->n_plan;
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t tokens[3 * PAGE + 1];
		struct match_wish wish =
		    world_wish(world_tokens(tokens, 3 * PAGE + 1, 0, 1 + i), 3 * PAGE + 1);
		struct opening *o = opening_begin(&w->pools[0].pool, &wish, 3 * PAGE + 1);
		struct seq *s = NULL;

		assert_int_equal(opening_turn(&o, ALL, &s), POOL_WAIT);
		ram_world_check(w);
		if (i == 0) {
			ram_world_kick(w);
			assert_true(ram_world_copy(w)); /* the moves, told of */
			ram_world_check(w);
			assert_int_equal(w->ram->n_plan, 0);
		}
		while (opening_turn(&o, ALL, &s)) {
			ram_world_kick(w);
			ram_world_copy(w);
			ram_world_check(w);
		}
		assert_int_equal(s->committed, 3 * PAGE);
		world_close(&s);
	}
	assert_true(w->ram->relocated + w->ram->relocations_failed == before);
	ram_world_check(w);
}

static void what_is_being_moved_is_not_given_up(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[4][8], all = ALL;

	spread(w, a);
	send_huge(w, 1);
	assert_true(w->ram->n_plan > 0);
	assert_true(pool_drop_retained(&w->pools[0].pool, RETAIN_NAMESPACES, &all));
	ram_world_check(w);
	assert_true(w->pools[0].pool.in_ram >= w->ram->n_plan);
	ram_world_settle(w);
	ram_world_check(w);
	all = ALL;
	assert_true(pool_drop_retained(&w->pools[0].pool, RETAIN_NAMESPACES, &all));
	ram_world_check(w);
	assert_int_equal(w->pools[0].pool.in_ram, 0);
}

/* Its copy that could not be read is written anew while it is being moved. */
static void what_is_being_moved_can_be_written_anew(void **state)
{
	struct ram_world *w = *state;
	struct pool *p = &w->pools[0].pool;
	uint32_t a[4][8];

	spread(w, a);
	for (uint32_t i = 0; i < 4; i++) {
		/* As if a fetch had failed, and the page had been made again. */
		assert_int_equal(ram_world_reuse(w, 0, 0, 1 + i, 3), 3);
		p->prefix.nodes[a[i][2]].moves |= NODE_SPOILT_RAM;
		retain_look(&p->retain, a[i][2]);
		record_set_state(arena_header(w->arena, p->prefix.nodes[a[i][2]].copies[TIER_RAM]),
				 RECORD_FILLING);
	}
	send_huge(w, 1);
	assert_true(w->ram->n_plan > 0);
	ram_world_send_down(w, 0, 12);
	ram_world_check(w);
	while (!ram_pool_is_quiet(&w->pools[0].ram)) {
		ram_world_kick(w);
		ram_world_copy(w);
		ram_world_check(w);
	}
	assert_int_equal(p->indexed, 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(ram_world_below(w, 0, 0, 1 + i, 3), 3);
}

/* ---- an arena that arrives ---- */

static void what_has_arrived_serves_at_once(void **state)
{
	struct ram_world *w = *state;

	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 3 * FRAME_BYTES,
						     .chunk_bytes = FRAME_BYTES,
						     .arrives_later = true,
						     .n_pools = 1,
						     .pool = {{.page_bytes = LARGE, .pages = 40}}});
	/* Nothing is there yet: what goes, goes for nowhere. */
	ram_world_put_down(w, 0, 0, 1, 4, NULL);
	assert_int_equal(w->pools[0].pool.stats.discards, 4);
	ram_world_check(w);
	for (uint32_t chunk = 1; chunk <= 3; chunk++) {
		while (w->arena->arrived_bytes < chunk * FRAME_BYTES) {
			assert_true(sim_executor_step(&w->arrival, 0));
			w->arrival.executor.reap(&w->arrival.executor, 1);
		}
		ram_world_put_down(w, 0, 0, 10 + chunk, 9, NULL);
		ram_world_check(w);
		assert_int_equal(w->pools[0].pool.in_ram, 8 * chunk);
	}
	assert_int_equal(w->arena->state, ARENA_WHOLE);
	assert_int_equal(ram_world_below(w, 0, 0, 13, 9), 9);
}

static void what_does_not_arrive_is_not_missed(void **state)
{
	struct ram_world *w = *state;

	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 3 * FRAME_BYTES,
						     .chunk_bytes = FRAME_BYTES,
						     .arrives_later = true,
						     .n_pools = 1,
						     .pool = {{.page_bytes = LARGE, .pages = 40}}});
	while (w->arena->arrived_bytes < FRAME_BYTES) {
		assert_true(sim_executor_step(&w->arrival, 0));
		w->arrival.executor.reap(&w->arrival.executor, 1);
	}
	while (w->arena->state == ARENA_ARRIVING) {
		assert_true(sim_executor_step(&w->arrival, -ENOMEM));
		w->arrival.executor.reap(&w->arrival.executor, 1);
	}
	assert_int_equal(w->arena->state, ARENA_PARTIAL);
	ram_world_put_down(w, 0, 0, 1, 12, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 12), 8);
}

/* ---- the end ---- */

/* As at the end of a daemon: what is in the arena goes with it, whatever was under way. */
static void abandon(struct ram_world *w)
{
	for (uint32_t i = 0; i < w->n_pools; i++) {
		struct ram_world_pool *p = &w->pools[i];

		ram_pool_abandon(&p->ram);
		assert_null(p->pool.below);
		ram_pool_abandon(&p->ram);
		pool_deinit(&p->pool);
		device_memory_free(&p->memory);
	}
	ram_free(&w->ram);
	assert_true(arena_stop(w->arena));
	arena_free(&w->arena);
	w->real->free(w->real);
	memset(w, 0, sizeof(*w));
}

static void what_is_there_goes_with_the_arena(void **state)
{
	struct ram_world *w = *state;

	start(w, 4);
	ram_world_put_down(w, 0, 0, 1, 9, NULL);
	ram_world_put_down(w, 1, 0, 1, 3, NULL);
	assert_true(ram_pool_is_quiet(&w->pools[0].ram));
	abandon(w);
}

static void copies_that_were_asked_for_and_never_sent_are_forgotten(void **state)
{
	struct ram_world *w = *state;

	start(w, 6);
	ram_world_retain(w, 0, 0, 1, 30, NULL);
	ram_world_send_down(w, 0, 30);
	ram_world_kick(w);
	while (ram_world_copy(w))
		;
	assert_true(w->pools[0].ram.down.told < w->pools[0].ram.down.asked);
	ram_world_check(w);
	abandon(w);
}

static void copies_that_have_ended_and_were_not_told_of_are_told_first(void **state)
{
	struct ram_world *w = *state;
	struct match_wish wish;
	uint32_t tokens[4 * PAGE + 1];
	struct opening *o;
	struct seq *s = NULL;

	start(w, 6);
	ram_world_put_down(w, 0, 0, 2, 4, NULL);
	ram_world_retain(w, 0, 0, 1, 30, NULL);
	ram_world_send_down(w, 0, 30);
	wish = world_wish(world_tokens(tokens, 4 * PAGE + 1, 0, 2), 4 * PAGE + 1);
	o = opening_begin(&w->pools[0].pool, &wish, 4 * PAGE + 1);
	assert_int_equal(opening_turn(&o, ALL, &s), POOL_WAIT);
	ram_world_kick(w);
	while (sim_executor_step(&w->copies, 0))
		;
	/* The open ends, like all others, before the jobs' ends are heard of. */
	opening_abandon(&o);
	ram_world_check(w);
	w->copies.executor.reap(&w->copies.executor, ALL);
	ram_world_check(w);
	assert_int_equal(w->pools[0].ram.in_flight, 0);
	assert_true(w->pools[0].ram.down.told < w->pools[0].ram.down.asked);
	abandon(w);
}

static void a_pool_that_was_never_made_is_let_go_like_any_other(void **state)
{
	struct ram_pool none = {0};

	(void)state;
	ram_pool_abandon(&none);
	ram_pool_deinit(&none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(pages_are_moved_together_so_that_another_size_fits),
	    TEST(moves_that_fail_leave_everything_where_it_was),
	    TEST(moves_that_fail_make_no_room_for_what_is_live),
	    TEST(moves_that_fail_stop_nobody_who_must_have_a_place),
	    TEST(what_is_being_moved_can_be_fetched),
	    TEST(what_is_being_moved_is_not_given_up),
	    TEST(what_is_being_moved_can_be_written_anew),
	    TEST(what_has_arrived_serves_at_once),
	    TEST(what_does_not_arrive_is_not_missed),
	    TEST(what_is_there_goes_with_the_arena),
	    TEST(copies_that_were_asked_for_and_never_sent_are_forgotten),
	    TEST(copies_that_have_ended_and_were_not_told_of_are_told_first),
	    TEST(a_pool_that_was_never_made_is_let_go_like_any_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
