/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of doubt (daemon/state/reuse.h): when the learned order stops believing its table, what it
 * does then, and when it believes it again. First on a table alone, then on a pool. One thread.
 */

#include "tests/unit/pool_world.h"

#include <stdint.h>

#define DOCUMENT 4u   /* pages */
#define OLD      300  /* documents of the old habit */
#define LOOP     280  /* of the new one */
#define BUDGET   1230 /* pages: room for either, not for both */

static struct reuse table;
static struct pool pool;
static uint64_t random_at;
static uint32_t serial; /* of documents that nobody repeats */

static int setup(void **state)
{
	(void)state;
	random_at = 1;
	serial = 0;
	reuse_init(&table);
	failpoint_clear();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	protection_off[PROTECTION_silence_is_doubted] = false;
	protection_off[PROTECTION_pauses_are_remembered] = false;
	if (pool.limits.pages)
		world_deinit(&pool);
	return 0;
}

/* ---- the table ---- */

/* So many tables, with so many pages reused before each, all at one age. */
static void pass(uint32_t tables, double pages, uint64_t age)
{
	for (; tables > 0; tables--) {
		table.reused[reuse_cell(3, reuse_bucket(age))] += pages;
		reuse_refresh(&table);
	}
}

static bool is_by_age(void)
{
	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		uint32_t bucket = i % REUSE_BUCKETS;

		/* Of one age all classes are equal, and older is less. */
		if (table.index[i] < table.index[bucket] || table.index[i] > table.index[bucket])
			return false;
		if (bucket > 0 && table.index[i] >= table.index[i - 1])
			return false;
	}
	return true;
}

static void in_silence_the_order_is_by_age_alone(void **state)
{
	(void)state;
	pass(20, 500, 10);
	assert_false(reuse_in_doubt(&table));
	assert_false(is_by_age());
	pass(1, 0, 0);
	assert_true(reuse_in_doubt(&table));
	assert_true(is_by_age());
	for (uint32_t rank = 1; rank < REUSE_CELLS; rank++)
		assert_true(table.cell_at[rank] % REUSE_BUCKETS <=
			    table.cell_at[rank - 1] % REUSE_BUCKETS);
	pass(1, 500, 10);
	assert_false(reuse_in_doubt(&table));
	assert_false(is_by_age());
	assert_int_equal(table.doubts, 1);

	protection_off[PROTECTION_silence_is_doubted] = true;
	pass(1, 0, 0);
	assert_false(is_by_age());
}

static void a_little_of_the_usual_is_no_silence(void **state)
{
	(void)state;
	pass(100, 640, 10);
	pass(20, 30, 10);
	assert_int_equal(table.silence, 0);
	setup(NULL);
	pass(100, 640, 10);
	pass(1, 10, 10);
	assert_int_equal(table.silence, 1);
}

static void where_little_is_usual_nothing_is_no_silence(void **state)
{
	(void)state;
	pass(20, 0, 0);
	assert_int_equal(table.silence, 0);
	pass(100, 30, 10);
	pass(20, 0, 0);
	assert_int_equal(table.silence, 0);
	assert_int_equal(table.doubts, 0);
}

static void a_pause_as_long_as_one_before_raises_no_doubt(void **state)
{
	(void)state;
	pass(20, 500, 10);
	pass(6, 0, 0);
	assert_int_equal(table.doubts, 6);
	pass(1, 500, 7 * REUSE_REFRESH + 100); /* from before the pause */
	pass(20, 500, 10);
	assert_int_equal(table.patience, 6);
	pass(6, 0, 0);
	assert_int_equal(table.doubts, 6);
	assert_false(reuse_in_doubt(&table));
	pass(1, 0, 0);
	assert_true(reuse_in_doubt(&table));

	setup(NULL);
	protection_off[PROTECTION_pauses_are_remembered] = true;
	pass(20, 500, 10);
	pass(6, 0, 0);
	pass(1, 500, 7 * REUSE_REFRESH + 100);
	pass(20, 500, 10);
	pass(6, 0, 0);
	assert_int_equal(table.doubts, 12);
}

static void new_habits_end_the_patience_and_what_was_counted(void **state)
{
	(void)state;
	table.forgotten[5] = 1000;
	pass(20, 500, 10);
	pass(6, 0, 0);
	pass(1, 500, 7 * REUSE_REFRESH + 100);
	pass(20, 500, 10);
	pass(3, 0, 0);
	pass(1, 500, 20); /* of what came in the silence */
	assert_int_equal(table.patience, 0);
	assert_true(table.forgotten[5] <= 0);
	assert_true(table.reused[reuse_cell(3, reuse_bucket(10))] < 1e-9);
	assert_true(table.reused[reuse_cell(3, reuse_bucket(20))] > 489);
	pass(60, 500, 10);
	pass(1, 0, 0);
	assert_true(reuse_in_doubt(&table));
}

/* ---- a pool ---- */

static uint32_t below(uint32_t n)
{
	random_at = random_at * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((random_at >> 33) % n);
}

static void start_pool(enum retain_policy order, int off)
{
	struct pool_limits limits = {.pages = BUDGET + 4 * DOCUMENT,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = 2 * BUDGET,
				     .name_spaces = 1,
				     .prefix_budget = BUDGET,
				     .order = order};

	if (pool.limits.pages)
		world_deinit(&pool);
	if (off >= 0)
		protection_off[off] = true; /* the world's end puts it back */
	random_at = 1;
	world_maker.kept_bits = 128;
	assert_int_equal(pool_init(&pool, &limits, &world_maker, world_stamp), 0);
}

/* A request for a document; pages found. */
static uint32_t ask(uint32_t document)
{
	static uint32_t tokens[DOCUMENT * PAGE + 1];
	struct match_wish wish = world_wish(tokens, DOCUMENT * PAGE + 1);
	struct seq *s;
	uint32_t found;

	for (uint32_t i = 0; i <= DOCUMENT * PAGE; i++)
		tokens[i] = document * 1000 + i;
	s = world_open_wish(&pool, &wish, DOCUMENT * PAGE + 1, ALL);
	found = s->committed / PAGE;
	world_step(s, DOCUMENT * PAGE + 1, tokens);
	world_close(&s);
	return found;
}

static void strangers(uint32_t n)
{
	for (; n > 0; n--)
		ask(2000 + serial++);
}

/* Documents that come back, and as many that never do. */
static uint32_t old_habit(uint32_t n)
{
	uint32_t found = 0;

	for (; n > 0; n--) {
		found += ask(1 + below(OLD));
		strangers(1);
	}
	return found;
}

static uint32_t one_lap(void)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < LOOP; i++)
		found += ask(1000 + i);
	return found;
}

/* Hits of the second lap of a loop that takes the place of another habit. */
static uint32_t second_lap(enum retain_policy order, int off)
{
	start_pool(order, off);
	old_habit(2010);
	assert_int_equal(one_lap(), 0);
	return one_lap();
}

static void a_new_habit_has_its_room_after_one_silent_table(void **state)
{
	uint32_t all = LOOP * DOCUMENT;

	(void)state;
	assert_int_equal(second_lap(RETAIN_LRU, -1), all);
	assert_true(second_lap(RETAIN_LEARNED, -1) >= all - 2 * REUSE_REFRESH * DOCUMENT);
	assert_int_not_equal(retain_reuse(&pool.retain)->doubts, 0);
	assert_false(reuse_in_doubt(retain_reuse(&pool.retain)));
	world_check(&pool);

	assert_true(second_lap(RETAIN_LEARNED, PROTECTION_silence_is_doubted) < all / 2);
}

/* Hits right after the second of two pauses in which strangers came. */
static uint32_t after_a_pause(enum retain_policy order, int off)
{
	start_pool(order, off);
	old_habit(2010);
	strangers(4 * REUSE_REFRESH);
	old_habit(1000);
	strangers(4 * REUSE_REFRESH);
	return old_habit(OLD / 2);
}

static void what_pauses_again_keeps_its_room(void **state)
{
	uint32_t with;

	(void)state;
	with = after_a_pause(RETAIN_LEARNED, -1);
	world_check(&pool);
	assert_true(with > 2 * after_a_pause(RETAIN_LRU, -1));

	assert_true(after_a_pause(RETAIN_LEARNED, PROTECTION_pauses_are_remembered) < with * 3 / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(in_silence_the_order_is_by_age_alone),
	    TEST(a_little_of_the_usual_is_no_silence),
	    TEST(where_little_is_usual_nothing_is_no_silence),
	    TEST(a_pause_as_long_as_one_before_raises_no_doubt),
	    TEST(new_habits_end_the_patience_and_what_was_counted),
	    TEST(a_new_habit_has_its_room_after_one_silent_table),
	    TEST(what_pauses_again_keeps_its_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
