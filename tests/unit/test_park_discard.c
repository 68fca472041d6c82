/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/park.h: who is discarded where a pool has promised more than there is, and
 * that nobody is who could have stayed. Copies end when a test says so. One thread.
 */

#include "tests/unit/park_seqs.h"

static void nobody_is_discarded_unless_the_pool_says_so(void **state)
{
	struct seq *a = private_seq(8 * PAGE, 8 * PAGE, 100);
	struct seq *b = private_seq(8 * PAGE, 8 * PAGE, 200);

	(void)state;
	below.full = true;
	assert_int_equal(park_insist(&pool, 1, rank_of(true, 0)), POOL_WAIT);
	assert_false(a->lost || b->lost);
	protection_off[PROTECTION_overcommit_is_asked_for] = true;
	assert_int_equal(park_insist(&pool, 1, rank_of(true, 0)), POOL_MORE);
	assert_true(b->lost);
	world_close(&a);
	world_close(&b);
	below.full = false;
	end_with_nothing();
}

/* A fork has its parent's pages before it has a rank. */
static void who_is_being_made_is_not_discarded(void **state)
{
	struct match_wish wish = {.off = true, .max_cached_tokens = ALL, .tokens = text};
	struct seq *s = world_open_wish(&pool, &wish, 4 * PAGE, ALL);

	(void)state;
	pool.limits.overcommit = true;
	world_step(s, 3 * PAGE, NULL);
	below.full = true;
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 5)), POOL_WAIT);
	assert_false(s->lost);
	s->rank = rank_of(false, 6);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 5)), POOL_WAIT);
	seq_set_rank(s, s->rank);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 5)), POOL_MORE);
	assert_true(s->lost);
	world_close(&s);
	below.full = false;
	end_with_nothing();
}

static void the_lowest_is_discarded_where_nothing_moves(void **state)
{
	struct seq *a = private_seq(5 * PAGE, 8 * PAGE, 100), *b, *c;

	(void)state;
	pool.limits.overcommit = true;
	b = private_seq(5 * PAGE, 16 * PAGE, 200);
	c = private_seq(5 * PAGE, 16 * PAGE, 300); /* more than there is */
	assert_true(pool.ceilings > PAGES);
	/* As long as there is a place, pages move. */
	assert_int_equal(park_insist(&pool, 6, rank_of(true, 0)), 0);
	assert_int_equal(c->away, 5);
	/* What is on its way may make room, and so may what others have on theirs. */
	below.full = true;
	assert_int_equal(park_insist(&pool, 16, rank_of(true, 0)), POOL_WAIT);
	below_end_all();
	park_clean(&pool);
	below.full = false;
	below.busy = true;
	assert_int_equal(park_insist(&pool, 16, rank_of(true, 0)), POOL_WAIT);
	assert_false(a->lost || b->lost || c->lost);
	below.busy = false;
	below.full = true;
	/* Nobody ranks below the lowest, and nobody who is in a step is discarded. */
	assert_int_equal(park_insist(&pool, 11, c->rank), POOL_WAIT);
	world_begin(b, 5 * PAGE + 1);
	assert_int_equal(park_insist(&pool, 16, a->rank), POOL_WAIT);
	assert_false(b->lost || c->lost); /* what it has is below: for whose pages? */
	step_abort(b);
	assert_int_equal(park_insist(&pool, 16, a->rank), POOL_MORE);
	assert_true(c->lost && c->discarded && !a->lost && !b->lost);
	assert_int_equal(park_insist(&pool, 10, a->rank), POOL_MORE);
	assert_true(b->lost && !a->lost);
	assert_int_equal(park_insist(&pool, 10, a->rank), 0);
	assert_int_equal(bring(b), POOL_LOST);
	assert_all(a, 100);
	assert_int_equal(pool.stats.discarded_sequences, 2);
	assert_int_equal(pool.stats.lost_sequences, 0);
	world_close(&a);
	world_close(&b);
	world_close(&c);
	below.full = false;
	end_with_nothing();
}

/* There is no below then: who ranks above does not wait for it. */
static void where_copies_fail_the_lowest_is_discarded(void **state)
{
	struct seq *a = private_seq(5 * PAGE, 8 * PAGE, 100);
	struct seq *b = private_seq(5 * PAGE, 8 * PAGE, 200);

	(void)state;
	pool.limits.overcommit = true;
	for (int i = 0; i < 12 && !pool.pauses; i++) {
		assert_int_equal(park_insist(&pool, PAGES, a->rank), POOL_WAIT);
		fail_copies(ALL);
	}
	assert_true(pool.pauses);
	assert_false(b->lost);
	assert_int_equal(park_insist(&pool, PAGES, a->rank), POOL_MORE);
	assert_true(b->lost && !a->lost);
	world_close(&a);
	world_close(&b);
	pool_resume(&pool);
	end_with_nothing();
}

/* Who asked for it may be content with less, or gone. */
static void what_is_discarded_is_for_whoever_needs_it(void **state)
{
	struct seq *a = private_seq(5 * PAGE, 8 * PAGE, 100);
	struct seq *b = private_seq(5 * PAGE, 16 * PAGE, 200);

	(void)state;
	pool.limits.overcommit = true;
	below.full = true;
	b->busy++;
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_MORE);
	assert_true(a->lost && !b->lost);
	b->busy--;
	/* `b` ranked below `a`. */
	assert_int_equal(park_make_room(&pool, PAGES - 5, b->rank), 0);
	assert_int_equal(a->n_pages, 0);
	assert_int_equal(bring(a), POOL_LOST);
	assert_all(b, 200);
	world_close(&a);
	world_close(&b);
	below.full = false;
	end_with_nothing();
}

/* Its pages would stay with those who have them, too; nothing moves. */
static void who_has_nothing_of_its_own_is_not_discarded(void **state)
{
	struct seq *s = published_seq(text, 4 * PAGE, 8 * PAGE, 100);
	struct seq *t = world_open(&pool, text, 4 * PAGE + 1, 8 * PAGE);

	(void)state;
	seq_set_rank(t, rank_of(false, ++serial));
	pool.limits.overcommit = true;
	pool.limits.live_in_ram = false;
	assert_int_equal(t->n_pages, 4);
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_WAIT);
	assert_false(s->lost || t->lost);
	/* Now it has. */
	world_step(t, 4 * PAGE + 1, text);
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_MORE);
	assert_true(t->lost && !s->lost);
	world_close(&s);
	world_close(&t);
	end_with_nothing();
}

/* ---- what several share ---- */

/* Nothing moves. */
static void fill_all(void)
{
	pool.limits.overcommit = true;
	pool.limits.live_in_ram = false;
}

static uint32_t free_after(struct pool_rank rank)
{
	assert_int_equal(park_insist(&pool, PAGES, rank), POOL_MORE);
	(void)park_make_room(&pool, PAGES, rank);
	below_end_all(); /* of what is kept */
	park_check(&pool);
	return pages_free(&pool.pages);
}

static void what_two_share_goes_with_both_or_stays(void **state)
{
	struct seq *s = private_seq(4 * PAGE + 3, 8 * PAGE, 100), *f = branch_of(s, 9);

	(void)state;
	fill_all();
	/* One of them is not below; or is at work, or in a step. */
	assert_int_equal(park_insist(&pool, PAGES, rank_of(false, 5)), POOL_WAIT);
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_WAIT);
	f->busy++;
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	f->busy--;
	world_begin(s, 4 * PAGE + 4);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	step_abort(s);
	assert_false(s->lost || f->lost);
	pages_pin(&pool.pages, s->table[4]);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	pages_unpin(&pool.pages, s->table[4]);
	protection_off[PROTECTION_shared_pages_are_discarded] = true;
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_WAIT);
	assert_false(s->lost || f->lost);
	memset(protection_off, 0, sizeof(protection_off));
	assert_int_equal(free_after(rank_of(true, 0)), PAGES);
	assert_true(s->discarded && f->discarded);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), 0);
	assert_int_equal(pool.stats.discarded_sequences, 2);
	world_close(&s);
	world_close(&f);
	end_with_nothing();
}

static void two_with_the_same_published_pages_go_together(void **state)
{
	struct seq *s = published_seq(text, 4 * PAGE, 8 * PAGE, 100);
	struct seq *t = world_open(&pool, text, 4 * PAGE + 1, 8 * PAGE);
	struct seq *above;

	(void)state;
	seq_set_rank(t, rank_of(false, ++serial));
	assert_int_equal(t->n_pages, 4);
	fill_all();
	assert_int_equal(park_insist(&pool, PAGES, rank_of(false, 2)), POOL_WAIT);
	assert_false(s->lost || t->lost);
	/* Somebody above has three of them: the fourth can still be had. */
	above = world_open(&pool, text, 3 * PAGE + 1, 4 * PAGE);
	seq_set_rank(above, rank_of(true, 0));
	assert_int_equal(free_after(rank_of(true, 1)), PAGES - 3);
	assert_true(s->discarded && t->discarded && !above->lost);
	world_close(&above);
	world_close(&s);
	world_close(&t);
	end_with_nothing();
}

/* Two low ones rather than one above them; one rather than two of whom one is above it. */
static void the_lowest_go_even_if_they_are_more(void **state)
{
	struct seq *high = private_seq(2 * PAGE, 4 * PAGE, 100);
	struct seq *s = private_seq(3 * PAGE, 4 * PAGE, 200), *f = branch_of(s, 9);
	struct seq *t = private_seq(4 * PAGE, 4 * PAGE, 300), *g = branch_of(t, 8);
	struct seq *mine;

	(void)state;
	fill_all();
	serial = 3;
	mine = private_seq(PAGE, 4 * PAGE, 400);
	assert_int_equal(mine->rank.serial, 4); /* below `s` and `t`, above their forks */
	assert_int_equal(free_after(rank_of(true, 0)), PAGES - 9);
	assert_true(mine->discarded && !high->lost && !s->lost && !f->lost && !t->lost && !g->lost);
	/* `t` ranks below `s`. */
	assert_int_equal(free_after(rank_of(true, 0)), PAGES - 5);
	assert_true(t->discarded && g->discarded && !high->lost && !s->lost && !f->lost);
	assert_all(s, 200);
	assert_int_equal(free_after(rank_of(true, 0)), PAGES - 2);
	assert_true(s->discarded && f->discarded && !high->lost);
	assert_int_equal(park_insist(&pool, PAGES, high->rank), POOL_WAIT);
	assert_all(high, 100);
	world_close(&high);
	world_close(&s);
	world_close(&f);
	world_close(&t);
	world_close(&g);
	world_close(&mine);
	end_with_nothing();
}

/* It stands beside another one's, before pages that somebody above has too. */
static void a_page_of_one_s_own_may_be_in_the_middle(void **state)
{
	struct seq *s = world_open(&pool, text, 2 * PAGE, 4 * PAGE);
	struct seq *t = world_open(&pool, text, 3 * PAGE, 4 * PAGE), *above;

	(void)state;
	seq_set_rank(s, rank_of(false, 1));
	seq_set_rank(t, rank_of(false, 3));
	world_step(s, 2 * PAGE, text);
	world_step(t, 3 * PAGE, text);
	assert_int_equal(t->surplus, 2);
	above = world_open(&pool, text, 3 * PAGE + 1, 4 * PAGE);
	seq_set_rank(above, rank_of(true, 0));
	assert_int_equal(above->n_pages, 3);
	fill_all();
	assert_int_equal(pages_free(&pool.pages), PAGES - 5);
	assert_int_equal(free_after(rank_of(true, 1)), PAGES - 3);
	assert_true(t->discarded && !s->lost && !above->lost);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 1)), POOL_WAIT);
	world_close(&s);
	world_close(&t);
	world_close(&above);
	end_with_nothing();
}

/* Or before what its fork has too, where a window has taken it from that one. */
static void a_page_of_one_s_own_may_be_the_front(void **state)
{
	struct seq *s = private_seq(4 * PAGE, 6 * PAGE, 100), *f = branch_of(s, 9);

	(void)state;
	leave_front_behind(s, 2 * PAGE);
	fill_all();
	assert_int_equal(free_after(rank_of(false, 5)), PAGES - 3);
	assert_true(f->discarded && !s->lost);
	world_close(&s);
	world_close(&f);
	end_with_nothing();
}

/* What both have let go of is in KV-RAM once, for both. */
static void what_two_have_below_goes_with_both_or_stays(void **state)
{
	struct seq *s = published_seq(text, 4 * PAGE, 8 * PAGE, 100);
	struct seq *t = world_open(&pool, text, 4 * PAGE + 1, 8 * PAGE), *here;

	(void)state;
	seq_set_rank(t, rank_of(false, ++serial));
	pool.limits.overcommit = true;
	push_all();
	assert_int_equal(s->away + t->away, 8);
	assert_int_equal(below.n_used, 4);
	below.full = true;
	/* There is no page that could go there instead. */
	assert_int_equal(park_insist(&pool, PAGES + 1, rank_of(true, 0)), POOL_WAIT);
	here = private_seq(2 * PAGE, 4 * PAGE, 200);
	assert_int_equal(park_insist(&pool, PAGES, here->rank), POOL_WAIT);
	assert_false(s->lost || t->lost);
	t->busy++;
	list_remove(&here->in_rank);
	seq_set_rank(here, rank_of(true, 5));
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 5)), POOL_WAIT);
	t->busy--;
	assert_false(s->lost || t->lost || here->lost);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_MORE);
	assert_true(s->discarded && t->discarded && !here->lost);
	below.full = false;
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), 0);
	assert_int_equal(here->away, 2);
	world_close(&s);
	world_close(&t);
	assert_int_equal(pool.parked_in_ram, 0);
	assert_int_equal(bring(here), 0);
	assert_all(here, 200);
	world_close(&here);
	end_with_nothing();
}

/* Nor can anything go below while copies fail. */
static void what_is_below_is_for_nobody_while_copies_fail(void **state)
{
	struct seq *low, *mine = private_seq(2 * PAGE, 8 * PAGE, 100);

	(void)state;
	pool.limits.overcommit = true;
	low = private_seq(3 * PAGE, 8 * PAGE, 200);
	assert_int_equal(park_make_room(&pool, PAGES - 2, mine->rank), 0);
	below_end_all();
	park_clean(&pool);
	assert_int_equal(low->away, 3);
	for (int i = 0; i < 12 && !pool.pauses; i++) {
		(void)make_room(PAGES);
		fail_copies(ALL);
	}
	assert_true(pool.pauses);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_MORE);
	assert_true(mine->lost && !low->lost);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), 0);
	pool_resume(&pool);
	assert_int_equal(bring(low), 0);
	assert_all(low, 200);
	world_close(&mine);
	world_close(&low);
	end_with_nothing();
}

/* Somebody above has let go of it in vain, and it waits for a place. */
static void a_place_below_is_for_what_could_not_leave(void **state)
{
	struct seq *s = published_seq(text, 2 * PAGE, 4 * PAGE, 100);
	struct seq *low = private_seq(PAGE, 4 * PAGE, 200);

	(void)state;
	pool.limits.overcommit = true;
	assert_int_equal(park_make_room(&pool, PAGES, s->rank), POOL_WAIT);
	below_end_all();
	park_clean(&pool);
	below.full = true;
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_WAIT);
	below.full = false;
	for (int i = 0; i < 12 && !pool.pauses; i++) {
		(void)make_room(PAGES);
		fail_copies(ALL);
	}
	pool_resume(&pool);
	assert_true(low->away == 1 && s->away == 2 && pool_retained(&pool) == 2);
	below.full = true;
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_MORE);
	assert_true(low->discarded && !s->lost);
	below.full = false;
	assert_int_equal(bring(s), 0);
	assert_all(s, 100);
	world_close(&s);
	world_close(&low);
	end_with_nothing();
}

/* What it still has on the device is before what it has given up already. */
static void what_is_left_of_one_that_has_made_room_counts(void **state)
{
	struct seq *s = private_seq(4 * PAGE, 6 * PAGE, 100), *f;

	(void)state;
	pool.limits.overcommit = true;
	assert_true(make_room(PAGES - 2));
	below_end_all();
	park_clean(&pool);
	assert_int_equal(s->away, 2);
	below.full = true;
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_MORE);
	assert_true(s->discarded);
	world_close(&s);
	/* So it is if all of its table is looked at. */
	below.full = false;
	s = private_seq(4 * PAGE, 6 * PAGE, 100);
	f = branch_of(s, 9);
	leave_front_behind(s, 2 * PAGE);
	for (int i = 0; i < 8 && f->away < 3; i++) {
		(void)park_make_room(&pool, PAGES - 4, rank_of(false, 5));
		below_end_all();
		park_clean(&pool);
	}
	assert_int_equal(f->away, 3);
	below.full = true;
	assert_int_equal(park_insist(&pool, PAGES, rank_of(false, 5)), POOL_MORE);
	assert_true(f->discarded && !s->lost);
	world_close(&s);
	world_close(&f);
	below.full = false;
	end_with_nothing();
}

/* One has let go of it, the other would if it had a place below. */
static void a_page_that_one_of_two_uses_could_go_below(void **state)
{
	struct seq *s = published_seq(text, 3 * PAGE, 4 * PAGE, 100);
	struct seq *t = world_open(&pool, text, 3 * PAGE + 1, 4 * PAGE);
	struct seq *low = private_seq(PAGE, 4 * PAGE, 200);

	(void)state;
	seq_set_rank(t, rank_of(false, 2));
	list_remove(&low->in_rank);
	seq_set_rank(low, rank_of(false, 3));
	pool.limits.overcommit = true;
	assert_int_equal(park_make_room(&pool, PAGES, s->rank), POOL_WAIT);
	below_end_all();
	park_clean(&pool);
	assert_true(low->away == 1 && t->away == 3 && s->away == 0);
	below.full = true;
	/* `s` keeps it. */
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_WAIT);
	assert_int_equal(park_insist(&pool, PAGES, rank_of(true, 0)), POOL_MORE);
	assert_true(low->discarded && !s->lost && !t->lost);
	below.full = false;
	assert_int_equal(bring(t), 0);
	assert_all(t, 100);
	world_close(&s);
	world_close(&t);
	world_close(&low);
	end_with_nothing();
}

/* However many groups there are, each sequence is looked at a few times: once to forget, to count
 * and to discard, and the first two for what could go below, too. */
static void one_look_finds_the_lowest_of_many_groups(void **state)
{
	struct seq *s[2 * PAGES];

	(void)state;
	pool.limits.overcommit = true;
	below.full = true;
	for (uint32_t i = 0; i < PAGES; i++) {
		s[2 * i] = private_seq(PAGE, PAGE, 100 * i);
		s[2 * i + 1] = branch_of(s[2 * i], ++serial);
	}
	for (uint32_t gone = 1; gone < PAGES; gone++) {
		park_discard_looks = 0;
		/* Out of order: the lowest first, but for some. */
		for (uint32_t i = gone % 5; i < 2 * PAGES; i++) {
			list_remove(&s[i]->in_pool);
			list_prepend(&pool.members, &s[i]->in_pool);
		}
		assert_int_equal(park_insist(&pool, gone, rank_of(true, 0)), POOL_MORE);
		assert_true(park_discard_looks <= 5 * 2 * PAGES);
		for (uint32_t i = 0; i < PAGES; i++) {
			assert_int_equal(s[2 * i]->lost, i >= PAGES - gone);
			assert_int_equal(s[2 * i + 1]->lost, i >= PAGES - gone);
		}
		assert_int_equal(park_make_room(&pool, gone, rank_of(true, 0)), 0);
	}
	for (uint32_t i = 0; i < 2 * PAGES; i++)
		world_close(&s[i]);
	below.full = false;
	end_with_nothing();
}

static void nobody_goes_for_what_others_keep(void **state)
{
	struct seq *s = private_seq(2 * PAGE, 8 * PAGE, 100), *f = branch_of(s, 9);

	(void)state;
	fill_all();
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_WAIT);
	assert_false(f->lost);
	protection_off[PROTECTION_discards_make_room] = true;
	assert_int_equal(park_insist(&pool, PAGES, s->rank), POOL_MORE);
	assert_true(f->lost && !s->lost);
	memset(protection_off, 0, sizeof(protection_off));
	world_close(&s);
	world_close(&f);
	end_with_nothing();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(nobody_is_discarded_unless_the_pool_says_so),
	    TEST(who_is_being_made_is_not_discarded),
	    TEST(the_lowest_is_discarded_where_nothing_moves),
	    TEST(where_copies_fail_the_lowest_is_discarded),
	    TEST(what_is_discarded_is_for_whoever_needs_it),
	    TEST(who_has_nothing_of_its_own_is_not_discarded),
	    TEST(what_two_share_goes_with_both_or_stays),
	    TEST(two_with_the_same_published_pages_go_together),
	    TEST(the_lowest_go_even_if_they_are_more),
	    TEST(a_page_of_one_s_own_may_be_in_the_middle),
	    TEST(a_page_of_one_s_own_may_be_the_front),
	    TEST(what_two_have_below_goes_with_both_or_stays),
	    TEST(what_is_below_is_for_nobody_while_copies_fail),
	    TEST(a_place_below_is_for_what_could_not_leave),
	    TEST(what_is_left_of_one_that_has_made_room_counts),
	    TEST(a_page_that_one_of_two_uses_could_go_below),
	    TEST(one_look_finds_the_lowest_of_many_groups),
	    TEST(nobody_goes_for_what_others_keep),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
