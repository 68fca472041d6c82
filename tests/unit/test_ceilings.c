/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of what is promised to sequences that share a partial page, or go on inside a published one
 * (daemon/state/seq.h, pool.h): all steps can be served at once, whatever else is promised. The
 * pools have the pages that are promised and no more. One thread.
 */

#include "tests/unit/park_world.h"

static struct pool pool;
static uint32_t text[16 * PAGE], other[16 * PAGE];

static struct pool *start(uint32_t pages)
{
	world_init(&pool, pages, pages);
	world_tokens(text, 16 * PAGE, 16 * PAGE, 0);
	world_tokens(other, 16 * PAGE, 0, 7);
	return &pool;
}

static void stop(void)
{
	assert_int_equal(pool.surplus + pool.ceilings, 0);
	world_deinit(&pool);
}

/* As the front does it: what it wants is looked at each time. */
static int begin(struct seq *s, uint32_t target)
{
	int r = POOL_MORE;

	for (int i = 0; i < 40 && r; i++) {
		uint32_t n;

		assert_int_equal(step_wants(s, target, 0, &n), 0);
		r = step_begin(s, target, 0, n);
		world_clean(s->pool);
	}
	return r;
}

static struct seq *private_seq(uint32_t tokens, uint32_t max_tokens)
{
	struct match_wish wish = {.off = true, .max_cached_tokens = ALL, .tokens = text};
	struct seq *s = world_open_wish(&pool, &wish, max_tokens, ALL);

	world_step(s, tokens, NULL);
	return s;
}

/* Admitted, and with a page of its own if that is how it begins. */
static struct seq *fork_off(const struct seq *s)
{
	struct seq *f;

	assert_int_equal(seq_fork_new(s, s->max_tokens, &f), 0);
	assert_int_equal(seq_admit(f), 0);
	assert_int_equal(seq_fork(s, f, &fork_copy), 0);
	if (fork_copy != PAGE_NONE)
		assert_int_equal(seq_take_page(f), 0);
	return f;
}

/* Two and three that share the first rows of their first page: each gets all it was promised, while
 * all are in a step. */
static bool forks_go_on_at_once(uint32_t pages, uint32_t n)
{
	struct seq *s[4];
	bool good = true;

	start(pages);
	s[0] = private_seq(5, 2 * PAGE);
	for (uint32_t i = 1; i < n; i++)
		s[i] = fork_off(s[0]);
	world_check(&pool);
	assert_true(pool.ceilings + pool.surplus <= pages);
	for (uint32_t i = 0; i < n; i++)
		good &= begin(s[i], 2 * PAGE) == 0;
	for (uint32_t i = 0; i < n; i++) {
		if (good)
			world_commit(s[i], 2 * PAGE - 5, NULL);
		step_abort(s[i]);
	}
	assert_int_equal(pool.surplus, 0);
	for (uint32_t i = 0; i < n; i++)
		world_close(&s[i]);
	stop();
	return good;
}

static void forks_that_all_write_into_a_shared_page_have_a_page_each(void **state)
{
	(void)state;
	for (uint32_t pages = 4; pages < 7; pages++)
		assert_true(forks_go_on_at_once(pages, 2));
	for (uint32_t pages = 6; pages < 10; pages++)
		assert_true(forks_go_on_at_once(pages, 3));
	protection_off[PROTECTION_shared_pages_are_paid_for] = true;
	assert_false(forks_go_on_at_once(4, 2));
}

/* Nobody else needs the page: it is the sequence's again. */
static bool goes_on_inside(uint32_t cut)
{
	struct seq *s;
	bool good;

	start(3);
	s = world_open(&pool, text, 3 * PAGE, 3 * PAGE);
	world_step(s, 3 * PAGE, NULL);
	world_truncate(s, cut);
	world_check(&pool);
	good = begin(s, 3 * PAGE) == 0;
	world_check(&pool);
	if (good)
		world_commit(s, 3 * PAGE - cut, text);
	world_check(&pool);
	world_close(&s);
	assert_int_equal(pool.live, 0);
	stop();
	return good;
}

static void one_that_fills_the_pool_goes_on_wherever_it_is_cut(void **state)
{
	(void)state;
	for (uint32_t cut = 1; cut < 3 * PAGE; cut += 5)
		assert_true(goes_on_inside(cut));
	protection_off[PROTECTION_shared_pages_are_paid_for] = true;
	assert_false(goes_on_inside(3 * PAGE - 2));
}

/* In a step it takes nothing of what another was promised. */
static bool both_go_on(void)
{
	struct seq *a, *b;
	bool good;

	start(6);
	a = world_open(&pool, text, 3 * PAGE, 3 * PAGE);
	world_step(a, 3 * PAGE, NULL);
	b = private_seq(2 * PAGE, 3 * PAGE);
	world_truncate(a, PAGE + 3);
	good = begin(a, 3 * PAGE) == 0;
	good &= begin(b, 3 * PAGE) == 0;
	step_abort(a);
	step_abort(b);
	world_check(&pool);
	world_close(&a);
	world_close(&b);
	stop();
	return good;
}

static void in_a_step_it_has_no_more_than_it_was_promised(void **state)
{
	(void)state;
	assert_true(both_go_on());
	protection_off[PROTECTION_shared_pages_are_paid_for] = true;
	assert_false(both_go_on());
}

static void what_was_taken_back_is_published_anew(void **state)
{
	struct seq *s;
	uint32_t page;

	(void)state;
	start(3);
	s = world_open(&pool, text, 3 * PAGE, 3 * PAGE);
	world_step(s, 3 * PAGE, NULL);
	page = s->table[2];
	world_truncate(s, 2 * PAGE + 1);
	assert_int_equal(begin(s, 3 * PAGE), 0);
	assert_int_equal(s->table[2], page);
	assert_int_equal(pool.pages.page[page].state, PAGE_PRIVATE);
	assert_int_equal(pool.pages.shares[0].private, 1);
	assert_int_equal(world_lookup(&pool, text, 3 * PAGE + 1), 2 * PAGE);
	world_commit(s, PAGE - 1, text);
	assert_int_equal(s->published, 3);
	assert_int_equal(world_lookup(&pool, text, 3 * PAGE + 1), 3 * PAGE);
	world_close(&s);
	stop();
}

/* ---- with a tier below ---- */

static void end_all(void)
{
	below_end_all();
	park_clean(&pool);
}

static int begin_above(struct seq *s, uint32_t target)
{
	int r = POOL_MORE;

	for (int i = 0; i < 60 && r; i++) {
		uint32_t n, budget = ALL;

		if (park_return(s, s->rank, false, &budget)) {
			end_all();
			continue;
		}
		assert_int_equal(step_wants(s, target, 0, &n), 0);
		r = step_begin(s, target, 0, n);
		end_all();
	}
	return r;
}

/* Another one has the page in which it was cut, and ranks below: it lets go of it, and what it
 * needs is kept below. */
static void a_page_that_another_reads_is_kept_for_it_below(void **state)
{
	struct pool_limits limits = {.pages = 3, .prefix_budget = 3};
	struct seq *a, *b;
	uint32_t budget;

	(void)state;
	park_init(&pool, limits, 20, 40);
	world_tokens(text, 16 * PAGE, 16 * PAGE, 0);
	a = world_open(&pool, text, 3 * PAGE, 3 * PAGE);
	seq_set_rank(a, (struct pool_rank){.serial = 1});
	world_step(a, 3 * PAGE, NULL);
	for (uint32_t i = 0; i < 3; i++)
		below.page[a->table[i]] = 100 + i;
	b = world_open(&pool, text, 3 * PAGE + 1, 3 * PAGE + 1 > 3 * PAGE ? 3 * PAGE : 1);
	seq_set_rank(b, (struct pool_rank){.serial = 2});
	assert_int_equal(b->committed, 3 * PAGE);
	world_truncate(a, 3 * PAGE - 4);
	assert_int_equal(begin_above(a, 3 * PAGE), 0);
	assert_int_equal(below.page[a->table[2]], 102);
	assert_int_equal(a->tail_node, NODE_NONE);
	below.page[a->table[2]] = 555;
	world_commit(a, 4, NULL);
	park_check(&pool);
	world_close(&a);
	for (int i = 0; i < 40 && seq_is_away(b); i++) {
		budget = ALL;
		(void)park_return(b, b->rank, false, &budget);
		end_all();
	}
	assert_false(seq_is_away(b));
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(below.page[b->table[i]], 100 + i);
	world_close(&b);
	end_all();
	park_assert_empty(&pool);
	world_deinit(&pool);
}

/* The pool has no page for a copy, and the other one that has the page ranks below. */
static void a_private_page_becomes_one_s_own_if_there_is_none_for_a_copy(void **state)
{
	struct pool_limits limits = {.pages = 3, .prefix_budget = 3};
	struct seq *a, *f;
	uint32_t last;

	(void)state;
	park_init(&pool, limits, 20, 40);
	a = private_seq(2 * PAGE + 5, 3 * PAGE);
	seq_set_rank(a, (struct pool_rank){.serial = 1});
	for (uint32_t i = 0; i < 3; i++)
		below.page[a->table[i]] = 100 + i;
	assert_int_equal(seq_fork_new(a, 3 * PAGE, &f), 0);
	assert_int_equal(seq_admit(f), 0);
	assert_int_equal(seq_fork(a, f, &fork_copy), 0);
	seq_set_rank(f, (struct pool_rank){.serial = 2});
	last = a->table[2];
	assert_int_equal(begin_above(a, 3 * PAGE), 0);
	assert_int_equal(a->table[2], last);
	assert_int_equal(f->away, 1);
	below.page[last] = 555;
	world_commit(a, PAGE - 5, NULL);
	world_close(&a);
	assert_int_equal(begin_above(f, 3 * PAGE), 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(below.page[f->table[i]], 100 + i);
	step_abort(f);
	world_close(&f);
	end_all();
	park_assert_empty(&pool);
	world_deinit(&pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(forks_that_all_write_into_a_shared_page_have_a_page_each),
	    cmocka_unit_test(one_that_fills_the_pool_goes_on_wherever_it_is_cut),
	    cmocka_unit_test(in_a_step_it_has_no_more_than_it_was_promised),
	    cmocka_unit_test(what_was_taken_back_is_published_anew),
	    cmocka_unit_test(a_page_that_another_reads_is_kept_for_it_below),
	    cmocka_unit_test(a_private_page_becomes_one_s_own_if_there_is_none_for_a_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
