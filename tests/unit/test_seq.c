/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/seq.h: publishing, forks, truncation, close. One thread; nothing blocks. */

#include "tests/unit/pool_world.h"

#define PAGES 64u

static struct pool pool;
static uint32_t text[32 * PAGE];

static int setup(void **state)
{
	*state = &pool;
	world_init(&pool, PAGES, PAGES);
	world_tokens(text, 32 * PAGE, 32 * PAGE, 0);
	return 0;
}

static int teardown(void **state)
{
	world_deinit(*state);
	return 0;
}

/* All of it is gone but what is retained. */
static void assert_nothing_held(const struct pool *p)
{
	assert_int_equal(p->live, 0);
	assert_int_equal(p->ceilings, 0);
	assert_int_equal(p->surplus, 0);
	assert_int_equal(p->pages.count[PAGE_PRIVATE], 0);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 0);
	assert_int_equal(p->pages.refused_references, 0);
}

static struct seq *forked(struct seq *s, uint32_t max_tokens)
{
	struct seq *f;

	assert_int_equal(fork_of(s, max_tokens, &f), 0);
	world_check(s->pool);
	assert_int_equal(seq_admit(f), 0);
	return f;
}

static void what_a_match_found_becomes_the_head_of_the_table(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, 5 * PAGE + 3, 10 * PAGE), *b;

	world_step(a, 5 * PAGE + 3, NULL);
	b = world_open(p, text, 4 * PAGE, 10 * PAGE);
	assert_int_equal(b->committed, 3 * PAGE);
	assert_int_equal(b->n_pages, 3);
	assert_memory_equal(b->table, a->table, 3 * sizeof(*a->table));
	assert_int_equal(p->live, 5);
	world_step(b, 4 * PAGE, NULL);
	assert_int_equal(p->surplus, 1); /* page 3 is there twice */
	world_check(p);
	world_close(&a);
	assert_int_equal(p->live, 4);
	world_close(&b);
	assert_nothing_held(p);
	assert_int_equal(p->indexed, 5);
}

static void publishing_goes_in_turns(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 10 * PAGE, 10 * PAGE);
	uint64_t pages[10];
	struct step_receipt r;
	uint32_t budget = 4;

	world_begin(s, 10 * PAGE);
	r = world_receipt(s, 10 * PAGE, pages);
	assert_int_equal(step_commit(s, &r), 0);
	for (uint32_t done = 4; done < 10; done += 4) {
		assert_int_equal(seq_publish_turn(s, &budget), POOL_MORE);
		assert_int_equal(s->published, done);
		assert_int_equal(p->indexed, done);
		assert_int_equal(world_lookup(p, text, 10 * PAGE), done * PAGE);
		world_check(p);
		budget = 4;
	}
	assert_int_equal(seq_publish_turn(s, &budget), 0);
	assert_int_equal(p->indexed, 10);
	world_close(&s);
	assert_nothing_held(p);
}

static void of_equal_pages_the_second_stays_private_and_what_follows_joins_the_first(void **state)
{
	struct pool *p = *state;
	uint32_t other[6 * PAGE];
	struct seq *a, *b;

	world_tokens(other, 6 * PAGE, 3 * PAGE, 7); /* differs from page 3 on */
	a = world_open(p, text, 3 * PAGE, 8 * PAGE);
	b = world_open(p, other, 6 * PAGE, 8 * PAGE);
	world_step(a, 3 * PAGE, NULL);
	world_step(b, 6 * PAGE, NULL);
	assert_int_equal(p->stats.duplicates, 3);
	assert_int_equal(p->surplus, 3);
	assert_int_equal(p->indexed, 6);
	assert_int_equal(p->pages.count[PAGE_PRIVATE], 3);
	assert_int_not_equal(a->table[0], b->table[0]);
	assert_int_equal(world_lookup(p, other, 6 * PAGE), 5 * PAGE);
	assert_int_equal(p->prefix.nodes[b->node].position, 5);
	/* The first one goes: its pages are in use by the second, through its node. */
	world_close(&a);
	assert_int_equal(p->live, 6);
	assert_true(pool_make_room(p, PAGES - 9));
	assert_int_equal(p->indexed, 6);
	world_close(&b);
	assert_nothing_held(p);
	assert_int_equal(p->indexed, 6);
}

static void without_spare_pages_a_second_equal_page_ends_publishing(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, 2 * PAGE, PAGES / 2 * PAGE);
	struct seq *b = world_open(p, text, 2 * PAGE, PAGES / 2 * PAGE);

	world_step(a, 2 * PAGE, NULL);
	world_step(b, 2 * PAGE, NULL);
	assert_false(b->publishing);
	assert_int_equal(p->surplus, 0);
	assert_int_equal(p->stats.publish_stops, 1);
	world_step(b, 4 * PAGE, text);
	assert_int_equal(p->indexed, 2);
	world_close(&a);
	world_close(&b);
	assert_nothing_held(p);
}

/* As long as there is one page more than it was promised, for the copy that it goes on in. */
static void a_text_cut_inside_its_last_page_goes_on_whatever_it_has_twice(void **state)
{
	for (uint32_t pages = 4; pages < 8; pages++) {
		struct pool *p = *state;
		struct match_wish wish = world_wish(text, 2 * PAGE);
		struct seq *s;

		world_deinit(p);
		world_init(p, pages, pages);
		s = world_open(p, text, 2 * PAGE, 2 * PAGE);
		world_step(s, 2 * PAGE, NULL);
		world_close(&s);
		wish.max_cached_tokens = 0;
		s = world_open_wish(p, &wish, 3 * PAGE, ALL);
		world_step(s, 3 * PAGE, text);
		world_truncate(s, 2 * PAGE + 3);
		world_step(s, 3 * PAGE, text);
		world_check(p);
		world_close(&s);
		assert_nothing_held(p);
	}
}

static void what_the_index_has_no_room_for_is_served_and_not_published(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 4 * PAGE, 4 * PAGE);

	failpoint_arm(FAILPOINT_prefix_node, 2, 1);
	world_step(s, 4 * PAGE, NULL);
	assert_int_equal(s->published, 2);
	assert_int_equal(p->indexed, 2);
	assert_int_equal(p->stats.publish_stops, 1);
	world_close(&s);
	assert_nothing_held(p);
}

static void ids_that_nobody_told_end_publishing(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, PAGE, 8 * PAGE);

	world_step(s, 2 * PAGE, text);
	assert_int_equal(p->indexed, 2);
	world_step(s, 3 * PAGE, NULL);
	assert_false(s->publishing);
	world_step(s, 5 * PAGE, NULL);
	assert_int_equal(p->indexed, 2);
	world_close(&s);
	assert_nothing_held(p);
}

static void a_fork_shares_all_pages_and_whoever_writes_first_gets_a_copy(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, 2 * PAGE + 5, 6 * PAGE), *b;
	uint32_t partial;

	world_step(a, 2 * PAGE + 5, NULL);
	partial = a->table[2];
	b = forked(a, 4 * PAGE);
	assert_int_equal(b->committed, 2 * PAGE + 5);
	assert_memory_equal(a->table, b->table, 3 * sizeof(*a->table));
	assert_int_equal(p->pages.page[partial].references, 2);

	world_begin(b, 3 * PAGE);
	assert_int_equal(b->step.replaced, partial);
	assert_int_not_equal(b->table[2], partial);
	assert_int_equal(p->stats.copies_on_write, 1);
	world_commit(b, PAGE - 5, text);
	assert_int_equal(p->pages.page[partial].references, 1);
	/* Now the other one is its only holder and writes in place. */
	world_begin(a, 3 * PAGE);
	assert_int_equal(a->step.replaced, PAGE_NONE);
	assert_int_equal(a->table[2], partial);
	world_commit(a, PAGE - 5, text);
	assert_int_equal(p->stats.duplicates, 1);
	world_check(p);
	world_close(&a);
	world_close(&b);
	assert_nothing_held(p);
}

static void a_fork_takes_what_is_committed_and_leaves_an_open_step_alone(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, PAGE + 5, 6 * PAGE), *b, *c;
	uint32_t partial;

	world_step(a, PAGE + 5, NULL);
	partial = a->table[1];
	b = forked(a, 6 * PAGE);
	world_begin(a, 4 * PAGE); /* in a copy, since the partial page is shared */
	assert_int_equal(a->step.replaced, partial);
	c = forked(a, 6 * PAGE);
	assert_int_equal(c->n_pages, 2);
	assert_int_equal(c->table[1], partial);
	assert_int_equal(p->pages.page[partial].references, 3);
	world_commit(a, 3 * PAGE - 5, text);
	assert_int_equal(a->committed, 4 * PAGE);
	assert_int_equal(p->pages.page[partial].references, 2);
	world_close(&b);
	world_close(&c);
	world_close(&a);
	assert_nothing_held(p);
}

static void both_sides_of_a_fork_may_commit_the_same_tokens(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, PAGE, 8 * PAGE), *b;

	world_step(a, PAGE, NULL);
	b = forked(a, 8 * PAGE);
	world_step(a, 4 * PAGE, text);
	world_step(b, 6 * PAGE, text);
	world_check(p);
	world_step(a, 8 * PAGE, text);
	assert_int_equal(p->indexed, 8);
	assert_int_equal(p->surplus, 5);
	world_check(p);
	world_close(&b);
	world_close(&a);
	assert_nothing_held(p);
}

static void a_fork_that_waits_for_admission_counts_for_nothing_yet(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, 2 * PAGE, 20 * PAGE), *b, *f;

	b = world_open(p, text, 2 * PAGE, 40 * PAGE);
	world_step(a, 2 * PAGE, NULL);
	world_step(b, 2 * PAGE, NULL);
	assert_int_equal(p->surplus, 2);
	assert_int_equal(fork_of(b, 30 * PAGE, &f), 0);
	assert_int_equal(seq_admit(f), POOL_WAIT);
	assert_int_equal(p->surplus, 2);
	world_check(p);
	world_close(&f);
	assert_int_equal(fork_of(b, PAGE, &f), POOL_RANGE);
	assert_int_equal(fork_of(b, p->limits.max_sequence_tokens + 1, &f), POOL_RANGE);
	world_close(&a);
	world_close(&b);
	assert_nothing_held(p);
}

/* ---- truncate ---- */

static void a_text_is_cut_anywhere_and_goes_on_the_same_or_another_way(void **state)
{
	struct pool *p = *state;
	uint32_t other[8 * PAGE];

	for (uint32_t to = 0; to <= 5 * PAGE + 3; to++) {
		struct seq *s = world_open(p, text, 5 * PAGE + 3, 8 * PAGE);

		if (s->committed < 5 * PAGE + 3)
			world_step(s, 5 * PAGE + 3, NULL);
		world_truncate(s, to);
		assert_int_equal(s->committed, to);
		assert_int_equal(s->n_pages, (to + PAGE - 1) / PAGE);
		assert_int_equal(s->published, to / PAGE);
		assert_true(s->publishing);
		world_check(p);
		world_tokens(other, 8 * PAGE, to, 50 + to);
		world_step(s, 6 * PAGE, to % 2 ? other : text);
		world_check(p);
		world_truncate(s, to / 2);
		world_step(s, 6 * PAGE, text);
		world_check(p);
		assert_int_equal(world_lookup(p, text, 6 * PAGE + 1), 6 * PAGE);
		if (to % 2)
			assert_true(world_lookup(p, other, 6 * PAGE + 1) >= to / PAGE * PAGE);
		world_close(&s);
		assert_nothing_held(p);
	}
}

static void cut_inside_a_published_page_the_rest_is_read_there_and_written_in_a_copy(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 4 * PAGE, 8 * PAGE), *f;
	uint32_t page, budget = ALL;

	world_step(s, 4 * PAGE, NULL);
	page = s->table[2];
	world_truncate(s, 2 * PAGE + 3);
	assert_int_equal(s->table[2], page);
	assert_int_equal(p->pages.page[page].state, PAGE_INDEXED);
	assert_int_not_equal(s->tail_node, NODE_NONE);
	/* Page 3 is retained and may go, page 2 may not while it is read. */
	assert_false(pool_drop_retained(p, 0, &(uint32_t){0}));
	assert_true(pool_drop_retained(p, 0, &budget));
	assert_int_equal(p->indexed, 3);
	world_check(p);
	f = forked(s, 8 * PAGE);
	assert_int_equal(f->tail_node, s->tail_node);

	world_begin(s, 3 * PAGE);
	assert_int_equal(s->step.replaced, page);
	step_abort(s);
	assert_int_equal(s->table[2], page);
	world_check(p);
	world_step(s, 3 * PAGE, text); /* the same tokens again: a second equal page */
	assert_int_equal(s->tail_node, NODE_NONE);
	assert_int_equal(p->surplus, 1);
	world_truncate(f, PAGE);
	assert_int_equal(f->tail_node, NODE_NONE);
	world_close(&s);
	world_close(&f);
	assert_nothing_held(p);
}

static void cut_twice_inside_one_page_it_keeps_its_place(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 4 * PAGE, 8 * PAGE);
	uint32_t node;

	world_step(s, 4 * PAGE, NULL);
	world_truncate(s, 2 * PAGE + 9);
	node = s->tail_node;
	world_truncate(s, 2 * PAGE + 2);
	assert_int_equal(s->tail_node, node);
	assert_int_equal(s->ids_end, 2 * PAGE + 2);
	world_truncate(s, 2 * PAGE);
	assert_int_equal(s->tail_node, NODE_NONE);
	world_truncate(s, PAGE + 1);
	assert_int_equal(p->prefix.nodes[s->tail_node].position, 1);
	world_truncate(s, 0);
	assert_int_equal(s->tail_node, NODE_NONE);
	assert_int_equal(p->live, 0);
	world_close(&s);
	assert_nothing_held(p);
}

static void what_an_image_begins_before_the_cut_is_still_part_of_the_page(void **state)
{
	struct pool *p = *state;
	struct key_image images[] = {{.start = PAGE + 1, .length = 2}, {.start = PAGE + 9}};
	struct match_wish wish = world_wish(text, 3 * PAGE + 1);
	struct seq *s;

	wish.images = images;
	wish.n_images = 2;
	images[1].length = 1;
	s = world_open_wish(p, &wish, 8 * PAGE, ALL);
	world_step(s, 3 * PAGE + 1, NULL);
	world_truncate(s, PAGE + 5);
	assert_int_equal(s->n_images, 1);
	assert_memory_equal(s->images, images, sizeof(*images));
	world_step(s, 3 * PAGE, text); /* without the second image */
	world_close(&s);
	wish.n_images = 1;
	s = world_open_wish(p, &wish, 8 * PAGE, ALL);
	assert_int_equal(s->committed, 3 * PAGE);
	world_close(&s);
	assert_nothing_held(p);
}

static void a_cut_gives_back_what_no_ceiling_covers(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, 4 * PAGE, 8 * PAGE);

	world_step(a, 4 * PAGE, NULL);
	for (int i = 0; i < 100; i++) {
		world_truncate(a, PAGE);
		world_step(a, 4 * PAGE, text);
		assert_int_equal(p->surplus, 3);
		world_check(p);
	}
	assert_true(a->publishing);
	world_truncate(a, 2 * PAGE + 1);
	assert_int_equal(p->surplus, 1);
	world_close(&a);
	assert_nothing_held(p);
}

static void a_cut_is_refused_where_it_cannot_be(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 4 * PAGE, 8 * PAGE);
	uint32_t budget = 1, version;

	world_step(s, 4 * PAGE, NULL);
	assert_int_equal(seq_truncate(s, 4 * PAGE + 1), POOL_RANGE);
	version = s->table_version;
	assert_int_equal(seq_truncate(s, 4 * PAGE), 0);
	assert_int_equal(s->table_version, version);
	world_begin(s, 5 * PAGE);
	assert_int_equal(seq_truncate(s, PAGE), POOL_BUSY);
	step_abort(s);
	assert_int_equal(seq_truncate(s, PAGE), 0);
	assert_int_not_equal(s->table_version, version);
	assert_int_equal(seq_truncate(s, 0), POOL_BUSY); /* the last one is still at work */
	assert_int_equal(seq_release_turn(s, &budget), POOL_MORE);
	world_check(p);
	budget = 3;
	assert_int_equal(seq_release_turn(s, &budget), 0);
	world_close(&s);
	assert_nothing_held(p);
}

static void a_window_drops_pages_and_the_rest_goes_on(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 6 * PAGE, 12 * PAGE), *f;
	uint32_t n, keep;

	world_step(s, 4 * PAGE, NULL);
	assert_int_equal(step_wants(s, 6 * PAGE, 3 * PAGE + 5, &n), 0);
	world_clean(p);
	assert_int_equal(step_begin(s, 6 * PAGE, 3 * PAGE + 5, n), 0);
	keep = s->table[3];
	world_commit(s, 2 * PAGE, NULL);
	assert_int_equal(s->first_page, 3);
	assert_int_equal(s->n_pages, 3);
	assert_int_equal(seq_page(s, 3), keep);
	assert_int_equal(s->table_version, 1);
	assert_int_equal(seq_truncate(s, 3 * PAGE - 1), POOL_RANGE);
	assert_int_equal(world_lookup(p, text, 7 * PAGE), 6 * PAGE); /* others still find them */
	f = forked(s, 12 * PAGE);
	world_truncate(s, 4 * PAGE + 3);
	world_step(s, 8 * PAGE, text);
	world_step(f, 7 * PAGE + 1, text);
	assert_int_equal(f->first_page, 3);
	world_check(p);
	world_close(&s);
	world_close(&f);
	assert_nothing_held(p);
}

static uint32_t close_slowly(struct seq *s)
{
	struct pool *p = s->pool;
	uint32_t turns = 0, budget = 0;

	do {
		assert_int_equal(budget, 0);
		world_check(p);
		budget = turns++ ? 1 : 0;
	} while (seq_close_turn(&s, &budget) == POOL_MORE);
	assert_null(s);
	return turns - 1;
}

static void a_close_goes_in_turns_of_one_page(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, 6 * PAGE, 12 * PAGE);
	struct seq *b = world_open(p, text, 6 * PAGE + 2, 12 * PAGE);

	world_step(a, 6 * PAGE, NULL);
	world_step(b, 6 * PAGE + 2, NULL);
	world_truncate(b, 5 * PAGE + 1);
	assert_int_equal(close_slowly(b), 6 + 1); /* the chain is in use by the other */
	assert_int_equal(close_slowly(a), 6 + 6 + 1);
	assert_nothing_held(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_a_match_found_becomes_the_head_of_the_table),
	    TEST(publishing_goes_in_turns),
	    TEST(of_equal_pages_the_second_stays_private_and_what_follows_joins_the_first),
	    TEST(without_spare_pages_a_second_equal_page_ends_publishing),
	    TEST(a_text_cut_inside_its_last_page_goes_on_whatever_it_has_twice),
	    TEST(what_the_index_has_no_room_for_is_served_and_not_published),
	    TEST(ids_that_nobody_told_end_publishing),
	    TEST(a_fork_shares_all_pages_and_whoever_writes_first_gets_a_copy),
	    TEST(a_fork_takes_what_is_committed_and_leaves_an_open_step_alone),
	    TEST(both_sides_of_a_fork_may_commit_the_same_tokens),
	    TEST(a_fork_that_waits_for_admission_counts_for_nothing_yet),
	    TEST(a_text_is_cut_anywhere_and_goes_on_the_same_or_another_way),
	    TEST(cut_inside_a_published_page_the_rest_is_read_there_and_written_in_a_copy),
	    TEST(cut_twice_inside_one_page_it_keeps_its_place),
	    TEST(what_an_image_begins_before_the_cut_is_still_part_of_the_page),
	    TEST(a_cut_gives_back_what_no_ceiling_covers),
	    TEST(a_cut_is_refused_where_it_cannot_be),
	    TEST(a_window_drops_pages_and_the_rest_goes_on),
	    TEST(a_close_goes_in_turns_of_one_page),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
