/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of the learned order: daemon/state/reuse.h and what retain, match and pool do for it.
 * Victims are compared with a search of all pages, the table with a plain computation by the
 * book. One thread; nothing blocks.
 */

#include "tests/unit/pool_world.h"

#include <math.h>
#include <stdint.h>

#define MOST_TOKENS (64 * PAGE + 1)

struct world {
	struct pool pool;
	uint64_t random;
	uint32_t serial;  /* of prompts that nobody repeats */
	uint64_t victims; /* told by the hook */
	uint64_t digest;  /* of which they were */
};

static struct world w;

static void init_learned(uint32_t pages, uint64_t budget, bool shadow)
{
	struct pool_limits limits = {.pages = pages,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = pages + 1024,
				     .name_spaces = RETAIN_NAMESPACES,
				     .prefix_budget = budget,
				     .order = RETAIN_LEARNED,
				     .shadow_lru = shadow};

	world_maker.kept_bits = 128;
	assert_int_equal(pool_init(&w.pool, &limits, &world_maker, world_stamp), 0);
}

static int setup(void **state)
{
	(void)state;
	w = (struct world){.random = 1};
	failpoint_clear();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	pool_evict_hook = NULL;
	if (w.pool.limits.pages)
		world_deinit(&w.pool);
	return 0;
}

static uint32_t below(uint32_t n)
{
	w.random = w.random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((w.random >> 33) % n);
}

/* A request: a prompt of so many pages, of which those before `own` belong to `text`'s document,
 * the rest to this request alone. Pages found. */
static uint32_t request(uint32_t text, uint32_t pages, uint32_t own, uint32_t serial, uint32_t turn)
{
	static uint32_t tokens[MOST_TOKENS];
	struct match_wish wish = world_wish(tokens, pages * PAGE + 1);
	struct seq *s;
	uint32_t found;

	for (uint32_t i = 0; i <= pages * PAGE; i++)
		tokens[i] = i < own * PAGE ? text * 1000 + i : 0x80000000u + serial * 2000 + i;
	s = world_open_wish(&w.pool, &wish, pages * PAGE + 1, turn);
	found = s->committed / PAGE;
	if (s->committed < pages * PAGE + 1)
		world_step(s, pages * PAGE + 1, tokens);
	world_close(&s);
	return found;
}

/* ---- the table ---- */

static void fill_counts(struct reuse *u)
{
	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		u->reused[i] = below(1000) / 3.;
		u->forgotten[i] = below(100) / 7.;
		u->waiting[i] = below(3) ? 0 : below(500);
	}
}

/* The index by its definition, of counts that have decayed already. */
static double plain_index(const struct reuse *u, uint32_t class, uint32_t from)
{
	double alive = 1, p = 0, t = 0, best = 0;

	for (uint32_t b = from; b < REUSE_BUCKETS; b++) {
		double pooled_reuse = .01, pooled_risk = 1, own_risk = 0, h;
		double low = b ? pow(1.5, b - 1) : 0, high = b ? pow(1.5, b) : 1;

		for (uint32_t c = 0; c < REUSE_CLASSES; c++) {
			double stopped =
			    u->forgotten[reuse_cell(c, b)] + (double)u->waiting[reuse_cell(c, b)];
			double risk = -.5 * stopped;

			for (uint32_t later = b; later < REUSE_BUCKETS; later++)
				risk += u->reused[reuse_cell(c, later)] +
					u->forgotten[reuse_cell(c, later)] +
					(double)u->waiting[reuse_cell(c, later)];
			pooled_reuse += u->reused[reuse_cell(c, b)];
			pooled_risk += risk;
			if (c == class)
				own_risk = risk;
		}
		h = (u->reused[reuse_cell(class, b)] + 20 * pooled_reuse / pooled_risk) /
		    (own_risk + 20);
		h = h > 1 ? 1 : h;
		t += alive * (high - low) * (1 - h / 2);
		p += alive * h;
		alive *= 1 - h;
		best = p / t > best ? p / t : best;
	}
	return best;
}

static void the_table_is_what_a_plain_computation_gives(void **state)
{
	struct reuse u;

	(void)state;
	for (int round = 0; round < 5; round++) {
		reuse_init(&u);
		fill_counts(&u);
		reuse_refresh(&u);
		for (uint32_t i = 0; i < REUSE_CELLS; i++) {
			double plain = plain_index(&u, i / REUSE_BUCKETS, i % REUSE_BUCKETS);

			assert_true(fabs(u.index[i] - plain) <= 1e-9 * plain);
		}
	}
}

static void the_order_of_cells_is_that_of_their_indexes(void **state)
{
	struct reuse u;

	(void)state;
	reuse_init(&u);
	for (int round = 0; round < 20; round++) {
		fill_counts(&u);
		reuse_refresh(&u);
		for (uint32_t i = 1; i < REUSE_CELLS; i++)
			assert_true(u.index[u.cell_at[i - 1]] <= u.index[u.cell_at[i]]);
		for (uint32_t i = 0; i < REUSE_CELLS; i++)
			assert_int_equal(u.cell_at[u.rank_of[i]], i);
	}
	assert_int_equal(u.refreshes, 20);
}

static void buckets_begin_at_the_powers_of_one_and_a_half(void **state)
{
	(void)state;
	assert_int_equal(reuse_bucket(0), 0);
	assert_int_equal(reuse_bucket(UINT64_MAX), REUSE_BUCKETS - 1);
	for (uint32_t b = 1; b < REUSE_BUCKETS; b++) {
		assert_true(reuse_edge(b) == (uint64_t)ceil(pow(1.5, b - 1) - 1e-9));
		assert_int_equal(reuse_bucket(reuse_edge(b)), b);
		assert_int_equal(reuse_bucket(reuse_edge(b) - 1), b - 1);
	}
}

static void counts_near_their_limits_leave_a_table_of_numbers(void **state)
{
	struct reuse u;

	(void)state;
	reuse_init(&u);
	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		u.waiting[i] = UINT64_MAX - i;
		u.reused[i] = i % 2 ? 1.8e19 : 0;
		u.forgotten[i] = i % 3 ? 1.8e19 : 0;
	}
	reuse_refresh(&u);
	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		assert_true(isfinite(u.index[i]) && u.index[i] >= 0);
}

static void what_is_past_decays(void **state)
{
	struct reuse u;

	(void)state;
	reuse_init(&u);
	u.reused[3] = 100;
	u.forgotten[4] = 100;
	reuse_refresh(&u);
	reuse_refresh(&u);
	assert_true(fabs(u.reused[3] - 100 * .98 * .98) < 1e-9);
	assert_true(fabs(u.forgotten[4] - 100 * .98 * .98) < 1e-9);
}

/* ---- victims ---- */

static double index_of(const struct pool *p, const struct node *n, uint64_t *tick)
{
	const struct retain_run *run = &p->retain.runs[n->run];
	uint32_t bucket = reuse_bucket(p->retain.tick - run->tick);

	*tick = run->tick;
	return retain_reuse(&p->retain)->index[reuse_cell(run->class, bucket)];
}

/* Nobody who may go has a lower index, or the same one and an older open. */
static void compare_with_all(const struct pool *p, uint32_t victim)
{
	uint64_t its_tick, tick;
	double its = index_of(p, &p->prefix.nodes[victim], &its_tick);

	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];
		double index;

		if (n->kind != NODE_TOKENS || !prefix_may_leave(&p->prefix, i, TIER_DEVICE))
			continue;
		index = index_of(p, n, &tick);
		assert_true(its <= index);
		if (!(its < index))
			assert_true(its_tick <= tick);
	}
	w.victims++;
	w.digest = (w.digest ^ p->prefix.nodes[victim].key.low) * 0x9e3779b97f4a7c15ull;
}

static void random_requests(uint32_t n, uint32_t turn)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t text = below(3) ? below(6) : below(40);
		uint32_t pages = 1 + below(10);

		request(text, pages, below(4) ? pages : pages / 2, i, turn);
		if (i % 64 == 0)
			world_check(&w.pool);
	}
}

static void the_victim_is_the_lowest_of_a_full_scan(void **state)
{
	(void)state;
	init_learned(80, 32, false);
	pool_evict_hook = compare_with_all;
	random_requests(3000, ALL);
	assert_true(w.victims > 1000);
}

static void turns_of_any_length_decide_alike(void **state)
{
	uint64_t digest;

	(void)state;
	init_learned(80, 32, false);
	pool_evict_hook = compare_with_all;
	random_requests(1000, ALL);
	digest = w.digest;
	pool_evict_hook = NULL;
	world_deinit(&w.pool);

	w = (struct world){.random = 1};
	init_learned(80, 32, false);
	pool_evict_hook = compare_with_all;
	random_requests(1000, 1);
	assert_true(w.digest == digest);
}

/* Two chains that share their first page; nothing of them is in use. The page. */
static uint32_t fork_chains(void)
{
	uint32_t shared = 0;

	request(1, 2, 2, 0, ALL);
	request(1, 3, 1, 1, ALL);
	for (uint32_t i = 0; i < w.pool.prefix.fresh; i++) {
		if (w.pool.prefix.nodes[i].children_in[TIER_DEVICE] == 2)
			shared = i;
	}
	assert_int_not_equal(shared, 0);
	return shared;
}

static void a_parent_waits_for_its_children(void **state)
{
	uint32_t one = 1, shared;

	(void)state;
	init_learned(32, 16, false);
	shared = fork_chains();
	while (w.pool.indexed > 1) {
		assert_int_not_equal(world_victim(&w.pool), shared);
		one = 1;
		pool_drop_retained(&w.pool, RETAIN_NAMESPACES, &one);
		world_check(&w.pool);
	}
	assert_int_equal(world_victim(&w.pool), shared);
}

static void a_parent_that_does_not_wait_is_noticed(void **state)
{
	(void)state;
	init_learned(32, 16, false);
	protection_off[PROTECTION_parent_waits_for_child] = true;
	fork_chains();
	assert_non_null(retain_check(&w.pool.retain));
	protection_off[PROTECTION_parent_waits_for_child] = false;
	pool_deinit(&w.pool);
}

static struct seq *open_page(uint32_t *tokens)
{
	struct seq *s = world_open(&w.pool, tokens, 2 * PAGE + 1, 2 * PAGE + 1);

	if (s->committed < 2 * PAGE + 1)
		world_step(s, 2 * PAGE + 1, tokens);
	return s;
}

static void a_run_in_use_stays(void **state)
{
	uint32_t tokens[2 * PAGE + 1];
	struct seq *s;

	(void)state;
	init_learned(32, 16, false);
	s = open_page(world_tokens(tokens, 2 * PAGE + 1, 0, 1));
	assert_int_equal(world_victim(&w.pool), NODE_NONE);
	assert_false(pool_make_room(&w.pool, 32));
	world_close(&s);
	assert_int_not_equal(world_victim(&w.pool), NODE_NONE);

	protection_off[PROTECTION_run_in_use_stays] = true;
	s = open_page(tokens);
	assert_int_not_equal(world_victim(&w.pool), NODE_NONE);
	protection_off[PROTECTION_run_in_use_stays] = false;
	world_close(&s);
}

/* A document asked about again and again, and between it prompts that never come back. Pages of
 * it that are found in the second half. */
static uint32_t hits_between_strangers(void)
{
	uint32_t hits = 0;

	for (uint32_t i = 0; i < 400; i++) {
		uint32_t found = request(1, 4, 4, 0, ALL);

		hits += i >= 200 ? found : 0;
		request(0, 3, 0, 1 + i, ALL);
	}
	return hits;
}

static void a_newcomer_may_be_the_first_to_go(void **state)
{
	(void)state;
	init_learned(32, 4, false);
	assert_int_equal(hits_between_strangers(), 200 * 4);
	world_deinit(&w.pool);

	init_learned(32, 4, false);
	protection_off[PROTECTION_newcomer_competes] = true;
	assert_true(hits_between_strangers() < 200 * 4);
}

/* ---- ghosts ---- */

static void what_has_left_is_known_and_its_return_counts(void **state)
{
	const struct retain_counts *counts;
	uint32_t all = ALL;

	(void)state;
	init_learned(32, 16, false);
	counts = retain_counts(&w.pool.retain);
	request(1, 4, 4, 0, ALL);
	pool_drop_retained(&w.pool, RETAIN_NAMESPACES, &all);
	assert_int_equal(w.pool.indexed, 0);
	assert_int_equal(retain_ghosts(&w.pool.retain)->used, 4);
	assert_int_equal(counts->evictions[RETAIN_NEW], 4);
	world_check(&w.pool);

	assert_int_equal(request(1, 4, 4, 0, ALL), 0);
	assert_int_equal(counts->misses[RETAIN_NEW], 4);
	assert_int_equal(retain_ghosts(&w.pool.retain)->used, 0);
	/* The return was the second turn of a conversation, and reused all of it. */
	assert_int_equal(request(1, 4, 4, 0, ALL), 4);
	assert_int_equal(counts->hits[1 * REUSE_PARTS + RETAIN_REUSED], 4);
	world_check(&w.pool);
}

static void a_short_match_is_no_further_turn(void **state)
{
	const struct retain_counts *counts;

	(void)state;
	init_learned(64, 48, false);
	counts = retain_counts(&w.pool.retain);
	request(1, 8, 8, 0, ALL);
	assert_int_equal(request(1, 8, 3, 1, ALL), 3); /* less than half of the 8 */
	assert_int_equal(request(1, 8, 3, 2, ALL), 3);
	assert_int_equal(counts->hits[0 * REUSE_PARTS + RETAIN_REUSED], 3);
}

static double all_forgotten(void)
{
	double sum = 0;

	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		sum += retain_reuse(&w.pool.retain)->forgotten[i];
	return sum;
}

static void strangers(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		request(0, 8, 0, w.serial++, ALL);
}

static void ghosts_are_forgotten_oldest_first_and_counted(void **state)
{
	const struct keyset *ghosts;

	(void)state;
	init_learned(32, 1, false);
	ghosts = retain_ghosts(&w.pool.retain);
	assert_int_equal(ghosts->capacity, 65536);
	strangers(65536 / 8);
	assert_true(all_forgotten() <= 0);
	request(1, 1, 1, 0, ALL);
	strangers(200);
	assert_int_equal(ghosts->used, ghosts->capacity);
	assert_true(all_forgotten() > 0);
	assert_int_equal(retain_counts(&w.pool.retain)->misses[RETAIN_NEW], 0);
	world_check(&w.pool);
	world_deinit(&w.pool);

	init_learned(32, 1, false);
	protection_off[PROTECTION_ghosts_are_forgotten] = true;
	strangers(65536 / 8 + 200);
	assert_true(all_forgotten() <= 0);
}

static void six_ghosts_a_page_are_kept(void **state)
{
	(void)state;
	init_learned(20000, 20000, false);
	assert_int_equal(retain_ghosts(&w.pool.retain)->capacity, 120000);
}

/* ---- limits ---- */

static void a_pool_of_one_page_is_served(void **state)
{
	(void)state;
	init_learned(4, 1, true);
	for (uint32_t i = 0; i < 300; i++)
		request(i % 3, 1, 1, i, ALL);
	assert_true(w.pool.indexed <= 1);
	world_check(&w.pool);
}

static void all_pages_may_be_in_use(void **state)
{
	uint32_t tokens[3][2 * PAGE + 1];
	struct seq *s[3];

	(void)state;
	init_learned(9, 2, false);
	for (uint32_t i = 0; i < 3; i++)
		s[i] = open_page(world_tokens(tokens[i], 2 * PAGE + 1, 0, i + 1));
	assert_int_equal(world_victim(&w.pool), NODE_NONE);
	world_check(&w.pool);
	for (uint32_t i = 0; i < 3; i++) {
		world_close(&s[i]);
		world_check(&w.pool);
	}
	assert_int_equal(w.pool.indexed, 2);
}

static void after_long_without_a_match_reuse_is_learned_again(void **state)
{
	uint32_t found = 0;

	(void)state;
	init_learned(32, 16, false);
	request(1, 4, 4, 0, ALL);
	strangers(3000);
	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		assert_true(isfinite(retain_reuse(&w.pool.retain)->index[i]));
	world_check(&w.pool);
	/* At the latest with the table after next. */
	for (uint32_t i = 0; i < 2 * REUSE_REFRESH && found < 4; i++)
		found = request(1, 4, 4, 0, ALL);
	assert_int_equal(found, 4);
}

static void a_clock_that_runs_past_the_window_keeps_pages_and_forgets_ghosts(void **state)
{
	uint32_t most = 2;

	(void)state;
	init_learned(32, 16, false);
	request(1, 4, 4, 0, ALL);
	pool_drop_retained(&w.pool, RETAIN_NAMESPACES, &most);
	assert_int_equal(retain_ghosts(&w.pool.retain)->used, 2);
	for (uint32_t i = 0; i < RETAIN_WINDOW + 5; i++)
		retain_open(&w.pool.retain);
	world_check(&w.pool);
	assert_int_equal(retain_ghosts(&w.pool.retain)->used, 0);
	assert_int_equal(w.pool.indexed, 2);
	request(2, 4, 4, 0, ALL);
	most = 6;
	pool_drop_retained(&w.pool, RETAIN_NAMESPACES, &most);
	assert_int_equal(w.pool.indexed, 0);
	world_check(&w.pool);
}

static void equal_keys_break_nothing(void **state)
{
	(void)state;
	for (uint32_t bits = 1; bits <= 4; bits++) {
		w = (struct world){.random = bits};
		init_learned(80, 32, true);
		world_maker.kept_bits = bits;
		random_requests(1000, ALL);
		assert_true(w.pool.prefix.collisions > 0);
		if (bits < 4)
			world_deinit(&w.pool);
	}
}

static void the_shadow_counts_what_lru_would_have_had(void **state)
{
	struct pool_limits limits = {.pages = 80,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = 256,
				     .name_spaces = RETAIN_NAMESPACES,
				     .prefix_budget = 32,
				     .order = RETAIN_LRU,
				     .shadow_lru = true};
	uint64_t hits;

	(void)state;
	world_maker.kept_bits = 128;
	assert_int_equal(pool_init(&w.pool, &limits, &world_maker, world_stamp), 0);
	random_requests(2000, ALL);
	hits = w.pool.stats.reused_tokens / PAGE;
	assert_true(hits > 1000);
	assert_int_equal(w.pool.shadow.hits, hits);
	world_deinit(&w.pool);

	w.random = 1;
	init_learned(80, 32, true);
	random_requests(2000, 1);
	assert_int_equal(w.pool.shadow.hits, hits);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_table_is_what_a_plain_computation_gives),
	    TEST(the_order_of_cells_is_that_of_their_indexes),
	    TEST(buckets_begin_at_the_powers_of_one_and_a_half),
	    TEST(counts_near_their_limits_leave_a_table_of_numbers),
	    TEST(what_is_past_decays),
	    TEST(the_victim_is_the_lowest_of_a_full_scan),
	    TEST(turns_of_any_length_decide_alike),
	    TEST(a_parent_waits_for_its_children),
	    TEST(a_parent_that_does_not_wait_is_noticed),
	    TEST(a_run_in_use_stays),
	    TEST(a_newcomer_may_be_the_first_to_go),
	    TEST(what_has_left_is_known_and_its_return_counts),
	    TEST(a_short_match_is_no_further_turn),
	    TEST(ghosts_are_forgotten_oldest_first_and_counted),
	    TEST(six_ghosts_a_page_are_kept),
	    TEST(a_pool_of_one_page_is_served),
	    TEST(all_pages_may_be_in_use),
	    TEST(after_long_without_a_match_reuse_is_learned_again),
	    TEST(a_clock_that_runs_past_the_window_keeps_pages_and_forgets_ghosts),
	    TEST(equal_keys_break_nothing),
	    TEST(the_shadow_counts_what_lru_would_have_had),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
