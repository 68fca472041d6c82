/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/park.h: whose pages go when somebody needs some, in what order, and what
 * nobody is asked for. Copies end when a test says so. One thread.
 */

#include "tests/unit/park_seqs.h"

static void what_is_shared_goes_last_and_costs_no_copy_for_who_keeps_it(void **state)
{
	struct seq *a = published_seq(text, 4 * PAGE + 1, 6 * PAGE, 100);
	struct seq *b = world_open(&pool, text, 4 * PAGE + 1, 6 * PAGE);

	(void)state;
	seq_set_rank(b, rank_of(false, ++serial));
	world_step(b, 4 * PAGE + 1, text);
	below.page[b->table[4]] = 104;
	assert_true(make_room(PAGES - 4)); /* what each has for itself */
	assert_int_equal(a->away + b->away, 2);
	assert_int_equal(pool.leaving, 0);
	/* For `b` only `a` may be asked, and what it lets go of stays. */
	b->busy++;
	assert_int_equal(park_make_room(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	assert_int_equal(pool.leaving, 0);
	b->busy--;
	below_end_all();
	{
		uint32_t budget = ALL;

		assert_int_equal(park_return(a, a->rank, true, &budget),
				 POOL_FULL); /* but its own page */
		assert_int_equal(a->away, 1);
	}
	push_all();
	assert_int_equal(bring(a), 0);
	assert_int_equal(bring(b), 0);
	assert_all(a, 100);
	assert_all(b, 100);
	world_close(&a);
	world_close(&b);
	end_with_nothing();
}

static void room_is_made_for_those_above_by_the_lowest_alone(void **state)
{
	struct seq *s[4];

	(void)state;
	for (int i = 0; i < 4; i++) {
		s[i] = private_seq(2 * PAGE, 4 * PAGE, 100 * (uint64_t)i);
		list_remove(&s[i]->in_rank);
	}
	seq_set_rank(s[0], rank_of(true, 1)); /* the highest */
	seq_set_rank(s[3], rank_of(false, 7));
	seq_set_rank(s[1], rank_of(true, 9));
	seq_set_rank(s[2], rank_of(false, 3));
	/* Nobody for the lowest of all, not even itself. */
	assert_int_equal(park_make_room(&pool, PAGES, s[3]->rank), POOL_WAIT);
	assert_int_equal(s[0]->away + s[1]->away + s[2]->away + s[3]->away, 0);
	assert_int_equal(park_make_room(&pool, PAGES, s[2]->rank), POOL_WAIT);
	assert_int_equal(s[3]->away, 2);
	assert_int_equal(s[0]->away + s[1]->away + s[2]->away, 0);
	s[2]->busy++;
	assert_int_equal(park_make_room(&pool, PAGES, s[1]->rank), POOL_WAIT);
	assert_int_equal(s[0]->away + s[1]->away + s[2]->away, 0);
	s[2]->busy--;
	world_begin(s[1], 2 * PAGE + 1);
	assert_int_equal(park_make_room(&pool, PAGES, s[0]->rank), POOL_WAIT);
	assert_int_equal(s[2]->away, 2);
	assert_int_equal(s[0]->away + s[1]->away, 0);
	step_abort(s[1]);
	assert_int_equal(park_make_room(&pool, PAGES, s[0]->rank), POOL_WAIT);
	assert_int_equal(s[1]->away, 2);
	assert_int_equal(s[0]->away, 0);
	/* Who has nothing left is asked no more, until some is on its way back. */
	assert_true(list_is_empty(&s[2]->in_rank) && list_is_empty(&s[3]->in_rank));
	below_end_all();
	assert_int_equal(bring(s[2]), 0);
	assert_int_equal(bring(s[3]), 0);
	assert_true(list_entry(pool.ranked[0].next, struct seq, in_rank) == s[2]);
	assert_true(list_entry(pool.ranked[0].previous, struct seq, in_rank) == s[3]);
	for (int i = 0; i < 4; i++)
		world_close(&s[i]);
	end_with_nothing();
}

static void two_that_want_each_other_s_pages_take_them_once(void **state)
{
	struct seq *a = private_seq(10 * PAGE, 16 * PAGE, 100);
	struct seq *b = private_seq(6 * PAGE, 16 * PAGE, 200);
	uint32_t budget = ALL;

	(void)state;
	for (int i = 0; i < 10; i++) {
		/* The higher one, twice a turn; the lower one always wants everything back. */
		assert_true(park_make_room(&pool, 4, a->rank) == 0);
		below_end_all();
		(void)park_return(b, b->rank, true, &budget);
		assert_int_equal(park_make_room(&pool, 16, b->rank), POOL_WAIT);
	}
	assert_int_equal(pool.stats.parked_pages, 4);
	assert_int_equal(a->away, 0);
	world_close(&a);
	world_close(&b);
	end_with_nothing();
}

static void a_copy_of_what_somebody_above_keeps_would_free_nothing(void **state)
{
	struct seq *s = private_seq(2 * PAGE + 3, 4 * PAGE, 100);
	struct seq *f = branch_of(s, 9), *g = branch_of(s, 8);

	(void)state;
	/* Its parent ranks above who asks; then it is at work. */
	assert_int_equal(park_make_room(&pool, PAGES, rank_of(false, 5)), POOL_WAIT);
	assert_int_equal(f->away + g->away, 0);
	s->busy++;
	assert_int_equal(park_make_room(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	assert_int_equal(f->away + g->away + s->away, 0);
	assert_int_equal(below_in_flight(DOWN), 0);
	s->busy--;
	/* All that have it let go of it, even if one page is enough. */
	assert_true(make_room(PAGES - 2));
	assert_int_equal(s->away, 1);
	assert_int_equal(f->away, 1);
	assert_int_equal(g->away, 1);
	below_end_all();
	assert_int_equal(pages_free(&pool.pages), PAGES - 2);
	assert_int_equal(bring(f), 0);
	assert_int_equal(bring(g), 0);
	assert_int_equal(bring(s), 0);
	assert_all(f, 100);
	assert_all(g, 100);
	assert_all(s, 100);
	world_close(&s);
	world_close(&f);
	world_close(&g);
	end_with_nothing();
}

static void two_shared_pages_go_one_after_the_other(void **state)
{
	struct seq *s = private_seq(PAGE + 3, 4 * PAGE, 100), *f = branch_of(s, 9);
	struct seq *t = private_seq(PAGE + 5, 4 * PAGE, 200), *g = branch_of(t, 8);

	(void)state;
	assert_true(make_room(PAGES - 3));
	assert_int_equal(s->away + f->away, 2);
	assert_int_equal(t->away + g->away, 0);
	below_end_all();
	assert_true(make_room(PAGES - 2));
	below_end_all();
	assert_int_equal(pages_free(&pool.pages), PAGES - 2);
	push_all();
	assert_int_equal(bring(g), 0);
	assert_all(g, 200);
	world_close(&s);
	world_close(&f);
	world_close(&t);
	world_close(&g);
	end_with_nothing();
}

/* What a window took from its parent is the fork's alone, before what both have. */
static void pages_of_one_s_own_before_shared_ones_can_be_had(void **state)
{
	struct seq *s = private_seq(4 * PAGE, 6 * PAGE, 100), *f = branch_of(s, 9);

	(void)state;
	leave_front_behind(s, 2 * PAGE);
	assert_int_equal(s->first_page, 2);
	for (int i = 0; i < 8 && pages_free(&pool.pages) < PAGES - 3; i++) {
		(void)park_make_room(&pool, PAGES - 3, rank_of(false, 5));
		below_end_all();
		park_clean(&pool);
	}
	assert_int_equal(pages_free(&pool.pages), PAGES - 3);
	assert_int_equal(f->away, 4);
	assert_int_equal(s->away, 0);
	assert_int_equal(bring(f), 0);
	assert_all(f, 100);
	world_close(&s);
	world_close(&f);
	end_with_nothing();
}

/* Else the fork and who ranks between the two push each other out in turns. */
static void what_comes_back_for_a_fork_is_taken_from_below_the_fork(void **state)
{
	struct seq *parent = private_seq(6 * PAGE, 10 * PAGE, 100);
	struct seq *between = private_seq(8 * PAGE, 16 * PAGE, 200);
	uint32_t budget = ALL;

	(void)state;
	assert_int_equal(park_make_room(&pool, 8, rank_of(true, 0)), 0);
	below_end_all();
	park_clean(&pool);
	assert_int_equal(between->away, 6);
	assert_int_equal(park_make_room(&pool, 16, rank_of(true, 0)), 0);
	below_end_all();
	park_clean(&pool);
	assert_int_equal(bring(between), 0);
	world_step(between, 15 * PAGE, NULL);
	assert_int_equal(park_return(parent, rank_of(false, 9), false, &budget), POOL_FULL);
	assert_int_equal(between->away, 0);
	budget = ALL;
	assert_int_equal(park_return(parent, parent->rank, false, &budget), POOL_FULL);
	assert_true(between->away > 0);
	world_close(&parent);
	world_close(&between);
	end_with_nothing();
}

static void copies_that_fail_pause_until_they_are_to_go_on(void **state)
{
	struct seq *s = private_seq(6 * PAGE, 6 * PAGE, 100);

	(void)state;
	for (uint32_t failures = 0; failures < POOL_FAILURES; failures++) {
		assert_false(pool.pauses);
		assert_true(make_room(PAGES - 5));
		assert_true(below_in_flight(DOWN) > 0);
		fail_copies(1);
	}
	assert_true(pool.pauses);
	fail_copies(ALL);
	assert_false(make_room(PAGES - 5));
	assert_int_equal(below_in_flight(DOWN), 0);
	/* One more that fails is enough, one that does not ends it. */
	pool_resume(&pool);
	assert_true(make_room(PAGES - 5));
	fail_copies(1);
	assert_false(make_room(PAGES - 4));
	assert_int_equal(below_in_flight(DOWN), 0);
	pool_resume(&pool);
	assert_true(make_room(PAGES - 5));
	below_end(DOWN, 0);
	assert_int_equal(pool.failures, 0);
	push_all();
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	world_close(&s);
	end_with_nothing();
}

/* It has let go of its four pages, and they have not left; five others are retained. */
static struct seq *let_go_in_vain(void)
{
	struct seq *s = published_seq(text, 4 * PAGE, 4 * PAGE, 100), *t;

	for (int i = 0; i < 12 && !pool.pauses; i++) {
		assert_true(make_room(PAGES));
		fail_copies(ALL);
	}
	assert_true(pool.pauses);
	t = published_seq(other, 5 * PAGE, 5 * PAGE, 200);
	world_close(&t);
	return s;
}

/* A page that had to leave and cannot keeps none of those that can. */
static void what_cannot_leave_now_is_in_nobody_s_way(void **state)
{
	struct seq *s = let_go_in_vain();
	uint32_t budget = ALL;

	(void)state;
	for (int i = 0; i < 40 && pages_free(&pool.pages) < PAGES - 4; i++) {
		(void)make_room(PAGES);
		fail_copies(ALL);
	}
	assert_int_equal(pages_free(&pool.pages), PAGES - 4);
	assert_int_equal(pool.live, 4);
	park_check(&pool);
	assert_true(pool_drop_retained(&pool, RETAIN_NAMESPACES, &budget));
	pool_resume(&pool);
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	world_close(&s);
	end_with_nothing();
}

/* Pages that no place is left for keep none of the others when all is dropped. */
static void a_drop_goes_on_behind_what_cannot_leave(void **state)
{
	struct seq *s = let_go_in_vain();
	uint32_t budget = ALL;

	(void)state;
	pool.pauses = false;
	below.full = true;
	assert_true(pool_drop_retained(&pool, RETAIN_NAMESPACES, &budget));
	park_clean(&pool);
	assert_int_equal(pages_free(&pool.pages), PAGES - 4);
	assert_int_equal(pool_retained(&pool), 4 - pool.live);
	below.full = false;
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	world_close(&s);
	end_with_nothing();
}

/* A page that could not be copied down goes as its sequence is closed, in several turns: between
 * them nobody looks for it. */
static void what_is_being_closed_is_not_asked_for_what_has_gone(void **state)
{
	struct seq *s = private_seq(4 * PAGE, 4 * PAGE, 100);
	uint32_t budget = 1;

	(void)state;
	assert_true(make_room(PAGES));
	fail_copies(1); /* of its last page */
	below_end_all();
	assert_int_equal(s->away, 4);
	assert_int_equal(s->stranded, 1);
	assert_int_equal(seq_close_turn(&s, &budget), POOL_MORE);
	assert_int_equal(s->n_pages, 3);
	assert_int_equal(s->stranded, 0);
	assert_true(make_room(PAGES));
	assert_int_equal(below_in_flight(DOWN), 0);
	world_close(&s);
	end_with_nothing();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_is_shared_goes_last_and_costs_no_copy_for_who_keeps_it),
	    TEST(room_is_made_for_those_above_by_the_lowest_alone),
	    TEST(two_that_want_each_other_s_pages_take_them_once),
	    TEST(a_copy_of_what_somebody_above_keeps_would_free_nothing),
	    TEST(two_shared_pages_go_one_after_the_other),
	    TEST(pages_of_one_s_own_before_shared_ones_can_be_had),
	    TEST(what_comes_back_for_a_fork_is_taken_from_below_the_fork),
	    TEST(copies_that_fail_pause_until_they_are_to_go_on),
	    TEST(what_cannot_leave_now_is_in_nobody_s_way),
	    TEST(a_drop_goes_on_behind_what_cannot_leave),
	    TEST(what_is_being_closed_is_not_asked_for_what_has_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
