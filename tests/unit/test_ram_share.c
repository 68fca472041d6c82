/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/ram.c: who gets a place in KV-RAM, and whose page goes for it: by rank, by
 * what interactive requests left, by namespace, and between pools. One thread; nothing blocks.
 */

#include "tests/unit/ram_world.h"

#define LARGE    (256 * KIB)
#define MIDDLE   (64 * KIB)
#define SMALL    (4 * KIB)
#define WIDE     (800 * KIB)
#define PLACES   8u /* of large pages in a frame */
#define OF_LARGE (LARGE + RAM_KNOWN_BYTES)

static struct ram_world world;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	ram_world_deinit(*state);
	return 0;
}

/* One pool of large pages with one frame below it; or two such pools. */
static void start(struct ram_world *w, uint32_t pools, enum retain_policy order)
{
	ram_world_init(w, &(struct ram_world_limits){
			      .arena_bytes = FRAME_BYTES,
			      .n_pools = pools,
			      .pool = {{.page_bytes = LARGE, .pages = 24, .order = order},
				       {.page_bytes = LARGE, .pages = 24, .order = order}}});
}

static void start_with_rules(struct ram_world *w, const uint64_t quota[2],
			     const uint64_t guaranteed[2])
{
	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = FRAME_BYTES,
						     .quota = {quota[0], quota[1]},
						     .guaranteed = {guaranteed[0], guaranteed[1]},
						     .n_pools = 1,
						     .pool = {{.page_bytes = LARGE, .pages = 24}}});
}

static void hold(struct ram_world *w, uint32_t pool, uint32_t node)
{
	pool_hold(&w->pools[pool].pool, node);
}

static void release(struct ram_world *w, uint32_t pool, uint32_t node)
{
	uint32_t all = ALL;

	pool_release(&w->pools[pool].pool, &node, &all);
}

static void send_down(struct ram_world *w, uint32_t pool, uint32_t n)
{
	ram_world_send_down(w, pool, n);
	ram_world_settle(w);
	ram_world_check(w);
}

static const struct pool_stats *stats(const struct ram_world *w, uint32_t pool)
{
	return &w->pools[pool].pool.stats;
}

/* ---- by rank ---- */

static void what_ranks_lowest_goes_for_what_ranks_above(void **state)
{
	struct ram_world *w = *state;

	start(w, 1, RETAIN_LRU);
	ram_world_put_down(w, 0, 0, 1, 4, NULL);
	ram_world_put_down(w, 0, 0, 2, 4, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 4) + ram_world_below(w, 0, 0, 2, 4), PLACES);
	ram_world_put_down(w, 0, 0, 3, 3, NULL);
	ram_world_check(w);
	/* From the end of the oldest. */
	assert_int_equal(ram_world_below(w, 0, 0, 1, 1), 1);
	assert_int_equal(ram_world_below(w, 0, 0, 2, 4) + ram_world_below(w, 0, 0, 3, 3), 7);
	assert_int_equal(stats(w, 0)->ram_displaced, 3);
	assert_int_equal(stats(w, 0)->ram_refused, 0);
}

/* A page that ranks below all that is there, or beside it, is not taken. */
static void fill_and_come_late(struct ram_world *w, uint32_t *old)
{
	start(w, 1, RETAIN_LRU);
	ram_world_retain(w, 0, 0, 1, 2, old);
	hold(w, 0, old[1]);
	ram_world_retain(w, 0, 0, 2, 8, NULL);
	send_down(w, 0, 8);
	assert_int_equal(w->pools[0].pool.in_ram, 8);
	release(w, 0, old[1]);
	send_down(w, 0, 2);
}

static void what_does_not_rank_above_anything_goes_for_nowhere(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[2];

	fill_and_come_late(w, a);
	assert_int_equal(stats(w, 0)->ram_refused, 2);
	assert_int_equal(stats(w, 0)->ram_refused_busy + stats(w, 0)->ram_refused_quota, 0);
	assert_int_equal(stats(w, 0)->ram_displaced, 0);
	assert_int_equal(stats(w, 0)->discards, 2);
	/* One run: its upper pages do not displace its lower ones. */
	ram_world_put_down(w, 0, 0, 3, 10, NULL);
	assert_int_equal(stats(w, 0)->ram_displaced, 8 + 2);
	assert_int_equal(w->pools[0].pool.in_ram, 8);
}

static void switched_off_whatever_is_there_goes_for_what_comes(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[2];

	protection_off[PROTECTION_only_what_ranks_below_goes] = true;
	fill_and_come_late(w, a);
	protection_off[PROTECTION_only_what_ranks_below_goes] = false;
	assert_int_equal(stats(w, 0)->ram_refused, 0);
	assert_int_equal(stats(w, 0)->ram_displaced, 2);
}

/* A run longer than what is below: its head follows its tail there, which gives way from its end.
 */
static void a_head_displaces_its_own_tail(void **state)
{
	struct ram_world *w = *state;

	start(w, 1, RETAIN_LRU);
	ram_world_put_down(w, 0, 0, 1, 12, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 12), 8);
	assert_int_equal(stats(w, 0)->ram_refused, 0);
	assert_int_equal(ram_world_reuse(w, 0, 0, 1, 12), 8);
}

static void what_is_under_way_or_in_use_keeps_its_place(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[4];

	start(w, 1, RETAIN_LRU);
	ram_world_put_down(w, 0, 0, 1, 4, a);
	ram_world_retain(w, 0, 0, 2, 4, NULL);
	ram_world_send_down(w, 0, 4); /* copies on their way */
	hold(w, 0, a[3]);             /* wanted, and only below */
	ram_world_check(w);
	ram_world_retain(w, 0, 0, 3, 2, NULL);
	ram_world_send_down(w, 0, 2);
	ram_world_check(w);
	assert_int_equal(stats(w, 0)->ram_displaced, 0);
	assert_int_equal(stats(w, 0)->ram_refused, 2);
	assert_int_equal(stats(w, 0)->ram_refused_busy, 2);
	ram_world_settle(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 4) + ram_world_below(w, 0, 0, 2, 4), 8);
	release(w, 0, a[3]);
	ram_world_check(w);
}

static void what_interactive_requests_left_stays_longer(void **state)
{
	struct ram_world *w = *state;
	struct retain *r;
	uint32_t a[4];

	start(w, 1, RETAIN_LRU);
	r = &w->pools[0].pool.retain;
	ram_world_put_down(w, 0, 0, 1, 4, a);
	retain_set_interactive(r, w->pools[0].pool.prefix.nodes[a[0]].run, true);
	ram_world_put_down(w, 0, 0, 2, 4, NULL);
	ram_world_put_down(w, 0, 0, 3, 2, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 4), 4);
	assert_int_equal(ram_world_below(w, 0, 0, 2, 4), 2);
	/* Until nobody has touched it for a while. */
	ram_world_wait(w, 301 * SECOND);
	ram_world_put_down(w, 0, 0, 4, 2, NULL);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 4), 2);
	assert_int_equal(ram_world_below(w, 0, 0, 2, 4), 2);
}

/* ---- between pools ---- */

static void between_pools_what_was_touched_longer_ago_goes_first(void **state)
{
	struct ram_world *w = *state;

	start(w, 2, RETAIN_LRU);
	/* Its clock of opens says nothing of the other's. */
	for (uint32_t i = 0; i < 50; i++)
		retain_open(&w->pools[1].pool.retain);
	ram_world_put_down(w, 1, 0, 1, 4, NULL);
	ram_world_wait(w, 10 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 4, NULL);
	ram_world_wait(w, 10 * SECOND);
	ram_world_put_down(w, 0, 0, 2, 3, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 4), 4);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 4), 1);
	assert_int_equal(stats(w, 1)->ram_displaced, 3);
}

static void opens_pass(struct ram_world *w, uint32_t pool, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		retain_open(&w->pools[pool].pool.retain);
}

static void between_pools_what_is_asked_for_more_often_stays(void **state)
{
	struct ram_world *w = *state;

	start(w, 2, RETAIN_LEARNED);
	ram_world_put_down(w, 0, 0, 1, 4, NULL);
	ram_world_put_down(w, 1, 0, 1, 4, NULL);
	/* Both have as many opens, one pool all at once, and the same things happened there. */
	for (uint32_t i = 0; i < 100; i++) {
		opens_pass(w, 1, 1);
		ram_world_wait(w, SECOND);
		ram_world_kick(w);
	}
	opens_pass(w, 0, 100);
	ram_world_wait(w, SECOND);
	ram_world_kick(w);
	assert_true(w->pools[0].ram.opens_per_s > 40 && w->pools[1].ram.opens_per_s < 2);
	ram_world_put_down(w, 0, 0, 2, 2, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 4), 2);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 4), 4);
}

static void between_pools_agents_go_before_interactive_requests(void **state)
{
	struct ram_world *w = *state;
	uint32_t b[4];

	start(w, 2, RETAIN_LRU);
	ram_world_put_down(w, 1, 0, 1, 4, b);
	retain_set_interactive(&w->pools[1].pool.retain, w->pools[1].pool.prefix.nodes[b[0]].run,
			       true);
	ram_world_wait(w, 10 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 4, NULL);
	ram_world_wait(w, SECOND);
	ram_world_put_down(w, 0, 0, 2, 2, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 4), 4);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 4), 2);
}

/* Pages of 256 KiB and of 64 KiB share two frames. */
static void start_of_two_sizes(struct ram_world *w, uint64_t small, uint64_t arena_bytes)
{
	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = arena_bytes,
						     .n_pools = 2,
						     .pool = {{.page_bytes = LARGE, .pages = 24},
							      {.page_bytes = small, .pages = 80}}});
}

/* They have waited half as long, and keep four times as much room. */
static void between_pools_what_promises_least_a_byte_goes_first(void **state)
{
	struct ram_world *w = *state;

	start_of_two_sizes(w, MIDDLE, 2 * FRAME_BYTES);
	ram_world_put_down(w, 1, 0, 1, 32, NULL);
	ram_world_wait(w, 100 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 8, NULL);
	ram_world_wait(w, 100 * SECOND);
	ram_world_put_down(w, 1, 0, 2, 2, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 32) + ram_world_below(w, 1, 0, 2, 2), 34);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 8), 0);
}

static void larger_pages_displace_many_smaller_ones(void **state)
{
	struct ram_world *w = *state;

	start_of_two_sizes(w, MIDDLE, FRAME_BYTES);
	ram_world_put_down(w, 1, 0, 1, 32, NULL);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 32), 32);
	ram_world_wait(w, 100 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 3, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 3), 3);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 32), 0);
}

/* However small they are: what promises least goes, until there is a frame. */
static void a_frame_of_small_pages_goes_for_larger_ones(void **state)
{
	struct ram_world *w = *state;

	start_of_two_sizes(w, SMALL, 2 * FRAME_BYTES);
	ram_world_put_down(w, 1, 0, 1, 72, NULL);
	ram_world_wait(w, 100000 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 8, NULL);
	ram_world_wait(w, SECOND);
	ram_world_put_down(w, 0, 0, 2, 2, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 2, 2), 2);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 8), 8);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 72), 0);
	assert_int_equal(stats(w, 1)->ram_displaced, 72);
	assert_int_equal(stats(w, 0)->ram_refused, 0);
}

/* Two pools whose pages lie in the same slabs make room together. */
static void small_pages_of_two_pools_go_for_larger_ones(void **state)
{
	struct ram_world *w = *state;

	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = FRAME_BYTES,
						     .n_pools = 3,
						     .pool = {{.page_bytes = LARGE, .pages = 24},
							      {.page_bytes = SMALL, .pages = 80},
							      {.page_bytes = SMALL, .pages = 80}}});
	ram_world_put_down(w, 1, 0, 1, 72, NULL);
	ram_world_put_down(w, 2, 0, 1, 72, NULL);
	ram_world_wait(w, 100 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 3, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 3), 3);
	assert_int_equal(stats(w, 1)->ram_displaced + stats(w, 2)->ram_displaced, 144);
}

/* A slab of wide pages takes two frames: five pages will have two, the pools of small and of large
 * pages one each, long since. */
static void start_of_slabs_of_two_frames(struct ram_world *w, uint64_t quota)
{
	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 4 * FRAME_BYTES,
						     .quota = {quota, 0},
						     .n_pools = 3,
						     .pool = {{.page_bytes = LARGE, .pages = 24},
							      {.page_bytes = SMALL, .pages = 80},
							      {.page_bytes = WIDE, .pages = 12}}});
	ram_world_put_down(w, 1, 0, 1, 72, NULL);
	ram_world_put_down(w, 0, 1, 1, 8, NULL);
	ram_world_wait(w, 100000 * SECOND);
}

static void expect_others(struct ram_world *w, uint32_t small)
{
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 72), small);
	assert_int_equal(ram_world_below(w, 0, 1, 1, 8), 8);
}

/* What promises least by far is of no use: all of it leaves one frame. But others are. */
static void pages_that_would_not_help_are_passed_by(void **state)
{
	struct ram_world *w = *state;

	start_of_slabs_of_two_frames(w, 0);
	ram_world_put_down(w, 2, 0, 1, 5, NULL);
	ram_world_wait(w, SECOND);
	ram_world_put_down(w, 2, 0, 2, 2, NULL);
	expect_others(w, 72);
	assert_int_equal(ram_world_below(w, 2, 0, 2, 2), 2);
	assert_int_equal(ram_world_below(w, 2, 0, 1, 5), 3);
}

/* The same for a page that must not go for nowhere: nobody else makes room for it, ever. */
static void what_must_have_a_place_gets_one_in_its_own_pool(void **state)
{
	struct ram_world *w = *state;

	start_of_slabs_of_two_frames(w, 0);
	ram_world_put_down(w, 2, 0, 1, 7, NULL);
	expect_others(w, 72);
	assert_int_equal(ram_world_below(w, 2, 0, 1, 7), 5);
}

/* ---- by namespace ---- */

static void a_namespace_over_its_quota_displaces_its_own_alone(void **state)
{
	struct ram_world *w = *state;

	start_with_rules(w, (uint64_t[]){3 * OF_LARGE, 0}, (uint64_t[]){0, 0});
	ram_world_put_down(w, 0, 1, 1, 3, NULL); /* the oldest, and no quota */
	ram_world_put_down(w, 0, 0, 1, 3, NULL);
	assert_int_equal(w->ram->shares[0].used_bytes, 3 * OF_LARGE);
	ram_world_put_down(w, 0, 0, 2, 2, NULL); /* there is room, but not for it */
	ram_world_check(w);
	assert_int_equal(w->ram->shares[0].used_bytes, 3 * OF_LARGE);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 3), 1);
	assert_int_equal(ram_world_below(w, 0, 0, 2, 2), 2);
	assert_int_equal(ram_world_below(w, 0, 1, 1, 3), 3);
}

static void at_its_quota_only_what_ranks_below_goes_too(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[1];

	start_with_rules(w, (uint64_t[]){3 * OF_LARGE, 0}, (uint64_t[]){0, 0});
	ram_world_retain(w, 0, 0, 1, 1, a);
	hold(w, 0, a[0]);
	ram_world_retain(w, 0, 0, 2, 3, NULL);
	send_down(w, 0, 3);
	release(w, 0, a[0]);
	send_down(w, 0, 1);
	assert_int_equal(ram_world_below(w, 0, 0, 2, 3), 3);
	assert_int_equal(stats(w, 0)->ram_refused, 1);
	assert_int_equal(stats(w, 0)->ram_refused_quota, 1);
	assert_int_equal(stats(w, 0)->ram_refused_busy, 0);
}

static void a_quota_of_less_than_a_page_lets_none_in(void **state)
{
	struct ram_world *w = *state;

	start_with_rules(w, (uint64_t[]){OF_LARGE - 1, 0}, (uint64_t[]){0, 0});
	ram_world_put_down(w, 0, 0, 1, 2, NULL);
	ram_world_check(w);
	assert_int_equal(w->ram->used_bytes, 0);
	assert_int_equal(stats(w, 0)->ram_refused, 2);
	ram_world_put_down(w, 0, 1, 1, 2, NULL);
	assert_int_equal(w->ram->shares[1].used_bytes, 2 * OF_LARGE);
}

static void switched_off_a_quota_is_not_kept(void **state)
{
	struct ram_world *w = *state;

	start_with_rules(w, (uint64_t[]){2 * OF_LARGE, 0}, (uint64_t[]){0, 0});
	protection_off[PROTECTION_quotas_are_kept] = true;
	ram_world_put_down(w, 0, 0, 1, 4, NULL);
	protection_off[PROTECTION_quotas_are_kept] = false;
	assert_true(w->ram->shares[0].used_bytes > w->ram->shares[0].quota_bytes);
}

/* Its pages of one pool make way for its pages of another, of whatever size. */
static void a_quota_is_for_all_pools_together(void **state)
{
	struct ram_world *w = *state;

	ram_world_init(w,
		       &(struct ram_world_limits){.arena_bytes = 4 * FRAME_BYTES,
						  .quota = {8 * (MIDDLE + RAM_KNOWN_BYTES), 0},
						  .n_pools = 2,
						  .pool = {{.page_bytes = LARGE, .pages = 24},
							   {.page_bytes = MIDDLE, .pages = 24}}});
	ram_world_put_down(w, 1, 0, 1, 8, NULL);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 8), 8);
	ram_world_wait(w, 1000 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 2, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 2), 2);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 8), 0);
	assert_true(w->ram->shares[0].used_bytes <= w->ram->shares[0].quota_bytes);
}

/* The pages that would go for quota's sake do not fit by frames, and need not. */
static void for_a_quota_any_page_of_its_own_helps(void **state)
{
	struct ram_world *w = *state;

	ram_world_init(
	    w, &(struct ram_world_limits){.arena_bytes = 4 * FRAME_BYTES,
					  .quota = {LARGE + 40 * (SMALL + RAM_KNOWN_BYTES), 0},
					  .n_pools = 2,
					  .pool = {{.page_bytes = LARGE, .pages = 24},
						   {.page_bytes = SMALL, .pages = 80}}});
	ram_world_put_down(w, 1, 0, 1, 40, NULL);
	ram_world_wait(w, 100000 * SECOND);
	ram_world_put_down(w, 0, 0, 1, 1, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 1), 1);
	assert_int_equal(ram_world_below(w, 1, 0, 1, 40), 39);
}

/* Small pages leave no slab for a wide one, but bytes; then one of its size goes, of another
 * namespace. */
static void for_a_quota_what_makes_no_room_goes_too(void **state)
{
	struct ram_world *w = *state;

	start_of_slabs_of_two_frames(w, WIDE + RAM_KNOWN_BYTES + 30 * (SMALL + RAM_KNOWN_BYTES));
	ram_world_put_down(w, 2, 1, 1, 5, NULL);
	ram_world_wait(w, SECOND);
	ram_world_put_down(w, 2, 0, 1, 1, NULL);
	expect_others(w, 30);
	assert_int_equal(ram_world_below(w, 2, 0, 1, 1), 1);
	assert_int_equal(ram_world_below(w, 2, 1, 1, 5), 4);
}

static void what_a_namespace_is_sure_of_others_do_not_displace(void **state)
{
	struct ram_world *w = *state;

	start_with_rules(w, (uint64_t[]){0, 0}, (uint64_t[]){0, 4 * OF_LARGE});
	ram_world_put_down(w, 0, 1, 1, 5, NULL); /* one more than it is sure of, and the oldest */
	ram_world_put_down(w, 0, 0, 1, 3, NULL);
	ram_world_put_down(w, 0, 0, 2, 3, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 1, 1, 5), 4);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 3), 1);
}

static void what_a_namespace_is_sure_of_displaces_younger_pages_of_others(void **state)
{
	struct ram_world *w = *state;
	uint32_t b[4];

	start_with_rules(w, (uint64_t[]){0, 0}, (uint64_t[]){0, 2 * OF_LARGE});
	ram_world_retain(w, 0, 1, 1, 4, b);
	hold(w, 0, b[3]);
	ram_world_retain(w, 0, 0, 1, 8, NULL);
	send_down(w, 0, 8);
	release(w, 0, b[3]);
	for (uint32_t i = 0; i < 4; i++)
		send_down(w, 0, w->pools[0].pool.indexed > 0);
	/* Two are within its guarantee and displace younger ones; the others rank below those, and
	 * must have places, as what stands on them is there: at its own cost. */
	assert_int_equal(w->ram->shares[1].used_bytes, 2 * OF_LARGE);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 8), 6);
	assert_int_equal(ram_world_below(w, 0, 1, 1, 2), 2);
}

static void switched_off_a_guarantee_is_not_kept(void **state)
{
	struct ram_world *w = *state;

	start_with_rules(w, (uint64_t[]){0, 0}, (uint64_t[]){0, 4 * OF_LARGE});
	ram_world_put_down(w, 0, 1, 1, 4, NULL);
	protection_off[PROTECTION_guarantees_are_kept] = true;
	ram_world_put_down(w, 0, 0, 1, 4, NULL);
	ram_world_put_down(w, 0, 0, 2, 4, NULL);
	protection_off[PROTECTION_guarantees_are_kept] = false;
	assert_true(ram_world_below(w, 0, 1, 1, 4) < 4);
}

/* More objects than there may be, with frames to spare. */
static void a_number_is_a_place_too(void **state)
{
	struct ram_world *w = *state;

	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 2 * FRAME_BYTES,
						     .most_objects = 5,
						     .n_pools = 1,
						     .pool = {{.page_bytes = LARGE, .pages = 24}}});
	ram_world_put_down(w, 0, 0, 1, 5, NULL);
	ram_world_put_down(w, 0, 0, 2, 2, NULL);
	ram_world_check(w);
	assert_int_equal(ram_world_below(w, 0, 0, 1, 5), 3);
	assert_int_equal(ram_world_below(w, 0, 0, 2, 2), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_ranks_lowest_goes_for_what_ranks_above),
	    TEST(what_does_not_rank_above_anything_goes_for_nowhere),
	    TEST(switched_off_whatever_is_there_goes_for_what_comes),
	    TEST(a_head_displaces_its_own_tail),
	    TEST(what_is_under_way_or_in_use_keeps_its_place),
	    TEST(what_interactive_requests_left_stays_longer),
	    TEST(between_pools_what_was_touched_longer_ago_goes_first),
	    TEST(between_pools_what_is_asked_for_more_often_stays),
	    TEST(between_pools_agents_go_before_interactive_requests),
	    TEST(between_pools_what_promises_least_a_byte_goes_first),
	    TEST(larger_pages_displace_many_smaller_ones),
	    TEST(a_frame_of_small_pages_goes_for_larger_ones),
	    TEST(small_pages_of_two_pools_go_for_larger_ones),
	    TEST(pages_that_would_not_help_are_passed_by),
	    TEST(what_must_have_a_place_gets_one_in_its_own_pool),
	    TEST(a_namespace_over_its_quota_displaces_its_own_alone),
	    TEST(at_its_quota_only_what_ranks_below_goes_too),
	    TEST(a_quota_of_less_than_a_page_lets_none_in),
	    TEST(switched_off_a_quota_is_not_kept),
	    TEST(a_quota_is_for_all_pools_together),
	    TEST(for_a_quota_any_page_of_its_own_helps),
	    TEST(for_a_quota_what_makes_no_room_goes_too),
	    TEST(what_a_namespace_is_sure_of_others_do_not_displace),
	    TEST(what_a_namespace_is_sure_of_displaces_younger_pages_of_others),
	    TEST(switched_off_a_guarantee_is_not_kept),
	    TEST(a_number_is_a_place_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
