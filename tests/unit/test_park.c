/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/park.h: what leaves and when, what comes back, who makes room for whom, and
 * what is left when a copy fails or a sequence is closed meanwhile. Copies end when a test says so.
 * One thread.
 */

#include "tests/unit/park_seqs.h"

static void a_private_page_is_free_once_its_copy_is_there(void **state)
{
	struct seq *s = private_seq(5 * PAGE + 3, 6 * PAGE, 100);
	uint32_t version = s->table_version, last = s->table[5];

	(void)state;
	assert_true(make_room(11));
	assert_int_equal(s->away, 1);
	assert_true(seq_is_away(s));
	assert_int_equal(s->table[5], PAGE_NONE);
	assert_int_equal(pool.parting, 1);
	assert_int_equal(pages_free(&pool.pages), 10);
	assert_int_equal(pool.pages.page[last].state, PAGE_PRIVATE);
	assert_true(make_room(11)); /* it is on its way: no second one */
	assert_int_equal(s->away, 1);
	below_end(DOWN, 0);
	assert_int_equal(pool.pages.page[last].state, PAGE_DIRTY);
	assert_int_equal(pool.parting, 0);
	push_all();
	assert_int_equal(pool.in_ram_private, 6);
	park_check(&pool);
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	assert_int_equal(s->table_version, version + 1);
	assert_int_equal(pool.in_ram_private, 0);
	assert_int_equal(pool.pages.shares[3].private, 6);
	world_step(s, 6 * PAGE, NULL);
	world_close(&s);
	end_with_nothing();
}

static void pages_that_come_back_stay_until_they_are_there(void **state)
{
	struct seq *s = private_seq(2 * PAGE, 2 * PAGE, 100);
	uint32_t budget = ALL;

	(void)state;
	push_all();
	assert_int_equal(park_return(s, s->rank, false, &budget), POOL_WAIT);
	assert_int_equal(below_in_flight(UP), 2);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(pool.pages.page[below.copy[UP][i].page].references, 1);
	/* Nobody turns a copy around. */
	assert_int_equal(park_make_room(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	below_end(UP, 0);
	assert_int_equal(park_make_room(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	below_end(UP, 0);
	push_all(); /* but what has come may go again */
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	world_close(&s);
	end_with_nothing();
}

static void published_pages_stay_somewhere_as_long_as_they_are_parked(void **state)
{
	struct seq *s = published_seq(text, 4 * PAGE + 5, 8 * PAGE, 100);
	uint32_t node = s->node, budget = ALL;

	(void)state;
	push_all();
	assert_int_equal(s->published, 0);
	assert_int_equal(pool.prefix.nodes[node].parked, 1);
	assert_int_equal(pool.prefix.nodes[node].users, 0);
	assert_int_equal(pool.prefix.nodes[node].copies[TIER_DEVICE], COPY_NONE);
	assert_true(node_is_in_ram(&pool.prefix.nodes[node]));
	assert_true(pool_drop_retained(&pool, RETAIN_NAMESPACES, &budget));
	assert_int_equal(pool.in_ram, 4);
	below.places = below.n_used; /* nothing there may go for others */
	assert_int_equal(below_place(&budget, POOL_NEED_LIVE), POOL_WAIT);
	below.places = 100;
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	assert_int_equal(s->node, node);
	assert_int_equal(s->published, 4);
	assert_int_equal(pool.prefix.nodes[node].parked, 0);
	world_step(s, 6 * PAGE, text);
	assert_int_equal(s->published, 6);
	world_close(&s);
	budget = ALL;
	assert_true(pool_drop_retained(&pool, RETAIN_NAMESPACES, &budget));
	assert_int_equal(pool.in_ram, 0);
	end_with_nothing();
}

static void an_open_that_finds_a_page_on_its_way_keeps_it_here(void **state)
{
	struct seq *s = published_seq(text, 3 * PAGE, 3 * PAGE, 100), *t;

	(void)state;
	assert_true(make_room(PAGES));
	assert_int_equal(pool.leaving, 3);
	t = world_open(&pool, text, 3 * PAGE, 3 * PAGE);
	assert_int_equal(t->committed, 2 * PAGE); /* the last token is computed */
	assert_int_equal(pool.leaving, 1);
	below_end_all();
	assert_int_equal(bring(s), 0);
	assert_int_equal(s->table[0], t->table[0]);
	assert_all(s, 100);
	world_close(&t);
	world_close(&s);
	end_with_nothing();
}

/* Whoever waits for it ranks above. */
static void what_leaves_for_one_above_is_not_taken_back(void **state)
{
	struct seq *s = published_seq(text, 3 * PAGE, 3 * PAGE, 100);
	uint32_t budget = ALL;

	(void)state;
	assert_true(make_room(PAGES));
	assert_int_equal(pool.leaving, 3);
	assert_int_equal(park_return(s, s->rank, true, &budget), POOL_FULL);
	assert_int_equal(pool.leaving, 3);
	assert_int_equal(park_return(s, s->rank, false, &budget), 0);
	assert_int_equal(pool.leaving, 0);
	assert_all(s, 100);
	world_close(&s);
	end_with_nothing();
}

static void another_s_equal_page_comes_back_beside_the_private_one(void **state)
{
	struct seq *a = world_open(&pool, text, 4 * PAGE, 6 * PAGE);
	struct seq *b = published_seq(text, 3 * PAGE + 1, 6 * PAGE, 500);

	(void)state;
	seq_set_rank(a, rank_of(false, ++serial));
	world_step(a, 4 * PAGE, text);
	write_all(a, 100);
	assert_int_equal(a->surplus, 3);
	world_close(&b);
	park_check(&pool);
	push_all();
	assert_int_equal(bring(a), 0);
	park_check(&pool); /* what is published under it stands on something */
	assert_all(a, 100);
	assert_int_equal(a->published, 4);
	assert_int_equal(a->surplus, 3);
	world_close(&a);
	end_with_nothing();
}

/* All that it keeps in use must be on the device at once, or it never goes on. */
static void equal_pages_beside_one_s_own_fit_the_pool(void **state)
{
	struct seq *a = world_open(&pool, text, 10 * PAGE, 12 * PAGE);
	struct seq *b = published_seq(text, 8 * PAGE, 8 * PAGE, 500);

	(void)state;
	world_close(&b);
	seq_set_rank(a, rank_of(false, ++serial));
	for (uint32_t to = PAGE; to <= 12 * PAGE; to += PAGE) {
		for (int i = 0; i < 8 && pool.pages.count[PAGE_CLEAN] == 0; i++) {
			park_make_room(&pool, 1, a->rank);
			below_end_all();
			park_clean(&pool);
		}
		assert_int_equal(bring(a), 0);
		world_step(a, to, text);
	}
	assert_true(a->ceiling + a->surplus <= PAGES);
	world_close(&a);
	end_with_nothing();
}

static void what_is_read_in_a_published_page_after_a_cut_comes_back(void **state)
{
	struct seq *s = published_seq(text, 4 * PAGE, 6 * PAGE, 100);
	uint32_t tail;

	(void)state;
	world_truncate(s, 2 * PAGE + 5);
	tail = s->tail_node;
	assert_int_not_equal(tail, NODE_NONE);
	push_all();
	assert_int_equal(s->tail_node, NODE_NONE);
	assert_int_equal(bring(s), 0);
	assert_int_equal(s->tail_node, tail);
	assert_all(s, 100);
	world_truncate(s, PAGE + 1);
	push_all();
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	world_close(&s);
	end_with_nothing();
}

static void a_fork_of_one_that_was_away_has_all_its_pages(void **state)
{
	struct seq *s = private_seq(2 * PAGE + 3, 4 * PAGE, 100), *f;

	(void)state;
	push_all();
	assert_int_equal(seq_fork_new(s, 4 * PAGE, &f), 0);
	assert_int_equal(seq_admit(f), 0);
	assert_int_equal(bring(s), 0);
	assert_int_equal(seq_fork(s, f, &fork_copy), 0);
	seq_set_rank(f, rank_of(false, ++serial));
	assert_all(f, 100);
	/* What both have neither could give alone: each gets a copy of its own. */
	push_all();
	assert_int_equal(pool.in_ram_private, 6);
	assert_int_equal(bring(f), 0);
	assert_int_equal(bring(s), 0);
	assert_all(f, 100);
	assert_all(s, 100);
	assert_int_not_equal(f->table[0], s->table[0]);
	world_close(&s);
	world_close(&f);
	end_with_nothing();
}

static void a_page_that_could_not_be_copied_down_is_used_again_or_tried_again(void **state)
{
	struct seq *s = private_seq(3 * PAGE, 3 * PAGE, 100);

	(void)state;
	assert_true(make_room(PAGES));
	below_end(DOWN, 0);
	below_end(DOWN, -5);
	below_end(DOWN, 0);
	assert_int_equal(pages_free(&pool.pages), PAGES - 1);
	push_all();
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	assert_true(make_room(PAGES));
	while (below_in_flight(DOWN))
		below_end(DOWN, -5);
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	assert_int_equal(pool.in_ram_private, 0);
	assert_int_equal(s->stranded, 0);
	world_close(&s);
	end_with_nothing();
}

static void a_lost_sequence_can_be_closed_and_keeps_nothing_from_others(void **state)
{
	struct seq *s = published_seq(text, 6 * PAGE + 4, 8 * PAGE, 100);
	struct seq *t = private_seq(2 * PAGE, 3 * PAGE, 200);
	uint32_t budget = ALL;

	(void)state;
	push_all();
	park_return(s, s->rank, false, &budget);
	for (int i = 0; below_in_flight(UP); i++)
		below_end(UP, i == 3 ? -5 : 0);
	budget = ALL;
	assert_int_equal(park_return(s, s->rank, false, &budget), POOL_LOST);
	assert_true(seq_is_away(s));
	park_check(&pool);
	push_all(); /* without asking for it to be closed */
	assert_true(seq_is_away(s));
	budget = ALL;
	assert_int_equal(park_return(s, s->rank, false, &budget), POOL_LOST);
	assert_int_equal(bring(t), 0);
	assert_all(t, 200);
	world_close(&s);
	world_close(&t);
	end_with_nothing();
}

static void copies_of_a_sequence_that_was_closed_end_without_it(void **state)
{
	struct seq *s = private_seq(4 * PAGE, 4 * PAGE, 100);
	struct seq *t = private_seq(3 * PAGE, 3 * PAGE, 200);
	uint32_t budget = 1;

	(void)state;
	push_all();
	assert_int_equal(park_return(s, s->rank, false, &budget), POOL_MORE);
	assert_int_equal(bring(t), 0);
	assert_true(make_room(PAGES - 2));
	assert_true(below_in_flight(DOWN) > 0);
	world_close(&s);
	world_close(&t);
	park_check(&pool);
	assert_true(pool.pages.count[PAGE_PRIVATE] > 0);
	end_with_nothing();
	assert_int_equal(below.n_used, 0);
}

static void a_close_goes_in_turns_in_every_state(void **state)
{
	(void)state;
	for (uint32_t kind = 0; kind < 8; kind++) {
		struct seq *s = kind % 2 ? published_seq(text, 6 * PAGE + 3, 8 * PAGE, 100)
					 : private_seq(6 * PAGE + 3, 8 * PAGE, 100);
		uint32_t budget = 3;
		int r;

		if (kind / 2 == 0)
			assert_true(make_room(PAGES - 4)); /* a part is on its way */
		else
			push_all();
		if (kind / 2 > 1)
			park_return(s, s->rank, false, &budget); /* and a part on its way back */
		for (uint32_t i = kind / 2; i == 3 && below_in_flight(UP);)
			below_end(UP, below_in_flight(UP) == 2 ? -5 : 0);
		do {
			budget = 1;
			r = seq_close_turn(&s, &budget);
			assert_true(r == 0 || r == POOL_MORE);
		} while (r);
		budget = ALL;
		below_end_all();
		assert_true(pool_drop_retained(&pool, RETAIN_NAMESPACES, &budget));
		park_clean(&pool);
		end_with_nothing();
		assert_int_equal(below.n_used, 0);
	}
}

static void admission_counts_on_what_is_below(void **state)
{
	struct seq *s[6];

	(void)state;
	below.room = 20;
	pool_set_quota(&pool, 3, 5, 0);
	assert_int_equal(pool_may_admit(&pool, PAGES + 1), POOL_NEVER);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(seq_new(&pool, 0, 10 * PAGE, &s[i]), 0);
		assert_int_equal(seq_admit(s[i]), 0);
	}
	assert_int_equal(pool_may_admit(&pool, 7), POOL_WAIT);
	assert_int_equal(pool_may_admit(&pool, 6), 0);
	below.room = 0;
	assert_int_equal(pool_may_admit(&pool, 1), POOL_WAIT);
	below.room = 60;
	assert_int_equal(seq_new(&pool, 3, 6 * PAGE, &s[3]), 0);
	assert_int_equal(seq_admit(s[3]), POOL_QUOTA);
	world_close(&s[3]);
	for (int i = 0; i < 3; i++)
		world_close(&s[i]);
	end_with_nothing();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_private_page_is_free_once_its_copy_is_there),
	    TEST(pages_that_come_back_stay_until_they_are_there),
	    TEST(published_pages_stay_somewhere_as_long_as_they_are_parked),
	    TEST(an_open_that_finds_a_page_on_its_way_keeps_it_here),
	    TEST(what_leaves_for_one_above_is_not_taken_back),
	    TEST(another_s_equal_page_comes_back_beside_the_private_one),
	    TEST(equal_pages_beside_one_s_own_fit_the_pool),
	    TEST(what_is_read_in_a_published_page_after_a_cut_comes_back),
	    TEST(a_fork_of_one_that_was_away_has_all_its_pages),
	    TEST(a_page_that_could_not_be_copied_down_is_used_again_or_tried_again),
	    TEST(a_lost_sequence_can_be_closed_and_keeps_nothing_from_others),
	    TEST(copies_of_a_sequence_that_was_closed_end_without_it),
	    TEST(a_close_goes_in_turns_in_every_state),
	    TEST(admission_counts_on_what_is_below),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
