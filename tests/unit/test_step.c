/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of steps of daemon/state/seq.h: begin, commit, abort, end. One thread; nothing blocks. */

#include <errno.h>

#include "tests/unit/pool_world.h"

#define PAGES 32u

static struct pool pool;
static uint32_t text[16 * PAGE];

static int setup(void **state)
{
	*state = &pool;
	world_init(&pool, PAGES, PAGES);
	world_tokens(text, 16 * PAGE, 16 * PAGE, 0);
	return 0;
}

static int teardown(void **state)
{
	world_deinit(*state);
	return 0;
}

/* A sequence with 2 pages and 5 tokens committed of a prompt of as many, for up to 10 pages. */
static struct seq *started(struct pool *p)
{
	struct seq *s = world_open(p, text, 2 * PAGE + 5, 10 * PAGE);

	world_step(s, 2 * PAGE + 5, NULL);
	return s;
}

struct shot { /* what must be as before */
	struct seq seq;
	uint32_t table[16];
	uint32_t count[PAGE_STATES];
};

static struct shot look(const struct seq *s)
{
	struct shot shot = {.seq = *s};

	memcpy(shot.table, s->table, s->n_pages * sizeof(*s->table));
	memcpy(shot.count, s->pool->pages.count, sizeof(shot.count));
	return shot;
}

static void assert_as_before(const struct seq *s, const struct shot *before)
{
	assert_int_equal(s->committed, before->seq.committed);
	assert_int_equal(s->n_pages, before->seq.n_pages);
	assert_memory_equal(s->table, before->table, s->n_pages * sizeof(*s->table));
	assert_int_equal(s->table_version, before->seq.table_version);
	assert_int_equal(s->node, before->seq.node);
	assert_int_equal(s->ids_end, before->seq.ids_end);
	assert_int_equal(s->n_images, before->seq.n_images);
	assert_int_equal(s->step.state, before->seq.step.state);
	assert_int_equal(s->pool->pages.count[PAGE_PRIVATE], before->count[PAGE_PRIVATE]);
	assert_int_equal(s->pool->pages.count[PAGE_INDEXED], before->count[PAGE_INDEXED]);
	world_check(s->pool);
}

static void a_step_wants_the_pages_that_are_not_there_yet(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p), *f;
	uint32_t n;

	assert_int_equal(step_wants(s, 2 * PAGE + 6, 0, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(step_wants(s, 3 * PAGE, 0, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(step_wants(s, 3 * PAGE + 1, 0, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(step_wants(s, 10 * PAGE, 10 * PAGE, &n), 0);
	assert_int_equal(n, 7);
	assert_int_equal(fork_of(s, 10 * PAGE, &f), 0);
	assert_int_equal(step_wants(s, 3 * PAGE, 0, &n), 0);
	assert_int_equal(n, 1); /* the copy */
	assert_int_equal(seq_admit(f), 0);
	world_close(&f);
	n = 77;
	assert_int_equal(step_wants(s, 2 * PAGE + 5, 0, &n), POOL_RANGE);
	assert_int_equal(step_wants(s, 10 * PAGE + 1, 0, &n), POOL_RANGE);
	assert_int_equal(step_wants(s, UINT32_MAX, 0, &n), POOL_RANGE);
	assert_int_equal(step_wants(s, 3 * PAGE, 3 * PAGE + 1, &n), POOL_RANGE);
	assert_int_equal(n, 77);
	world_begin(s, 3 * PAGE);
	assert_int_equal(step_wants(s, 4 * PAGE, 0, &n), POOL_BUSY);
	step_end(s, true);
	assert_int_equal(step_wants(s, 4 * PAGE, 0, &n), POOL_STEP);
	world_close(&s);
}

static void a_step_writes_from_the_first_token_that_is_not_committed(void **state)
{
	struct seq *s = started(*state);

	assert_int_equal(s->n_pages, 3);
	world_begin(s, 4 * PAGE);
	assert_int_equal(seq_page_index(s, s->step.start), 2);
	assert_int_equal(s->step.first, 3);
	assert_int_equal(s->step.n_fresh, 1);
	assert_int_equal(s->n_pages, 4);
	step_abort(s);
	assert_int_equal(s->n_pages, 3);
	world_close(&s);
}

static void a_step_waits_for_clean_pages_and_gives_up_retained_ones(void **state)
{
	struct pool *p = *state;
	struct seq *a = world_open(p, text, 16 * PAGE, 16 * PAGE), *b;
	uint32_t other[16 * PAGE], n;

	p->limits.pages = PAGES;
	world_step(a, 16 * PAGE, NULL);
	world_close(&a);
	b = world_open(p, world_tokens(other, 16 * PAGE, 0, 3), 16 * PAGE, 32 * PAGE);
	world_step(b, 14 * PAGE, NULL);
	assert_int_equal(p->pages.count[PAGE_CLEAN], 2);
	assert_int_equal(step_wants(b, 20 * PAGE, 0, &n), 0);
	assert_int_equal(n, 6);
	assert_int_equal(step_begin(b, 20 * PAGE, 0, n), POOL_WAIT);
	assert_int_equal(b->step.state, STEP_NONE);
	assert_int_equal(p->pages.count[PAGE_DIRTY], 4);
	assert_int_equal(p->indexed, 26); /* no more than needed has gone */
	assert_int_equal(step_begin(b, 20 * PAGE, 0, n), POOL_WAIT);
	assert_int_equal(p->indexed, 26);
	world_clean(p);
	assert_int_equal(step_begin(b, 20 * PAGE, 0, n), 0);
	step_abort(b);
	world_close(&b);
}

static void without_memory_nothing_has_begun(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);
	struct shot before = look(s);
	uint32_t n;

	assert_int_equal(step_wants(s, 6 * PAGE, 0, &n), 0);
	failpoint_arm(FAILPOINT_step_memory, 0, 1);
	assert_int_equal(step_begin(s, 6 * PAGE, 0, n), -ENOMEM);
	assert_as_before(s, &before);
	assert_int_equal(step_begin(s, 6 * PAGE, 0, n), 0);
	step_abort(s);
	world_close(&s);
}

static void an_abort_leaves_everything_as_before_and_may_be_repeated(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p), *f;
	struct shot before = look(s);

	world_begin(s, 6 * PAGE);
	assert_int_equal(p->open_steps, 1);
	step_abort(s);
	assert_as_before(s, &before);
	assert_int_equal(p->open_steps, 0);
	step_abort(s);
	assert_as_before(s, &before);
	assert_int_equal(p->stats.aborts, 1);
	/* With a copy of the partial page: the shared one is back in its place. */
	assert_int_equal(fork_of(s, 10 * PAGE, &f), 0);
	assert_int_equal(seq_admit(f), 0);
	world_begin(s, 6 * PAGE);
	assert_int_not_equal(s->table[2], before.table[2]);
	step_abort(s);
	assert_as_before(s, &before);
	assert_int_equal(p->pages.page[s->table[2]].references, 2);
	world_close(&f);
	world_close(&s);
}

static void of_n_tokens_the_first_k_stand_and_the_rest_goes_at_once(void **state)
{
	struct pool *p = *state;

	for (uint32_t k = 0; k <= 4 * PAGE - 5; k++) {
		struct seq *s = started(p);
		uint32_t base = s->committed;
		uint64_t commits = p->stats.commits;

		world_begin(s, 6 * PAGE);
		world_commit(s, k, text);
		assert_int_equal(s->committed, base + k);
		assert_int_equal(s->n_pages, (base + k + PAGE - 1) / PAGE);
		assert_int_equal(s->published, (base + k) / PAGE);
		assert_int_equal(s->step.state, STEP_NONE);
		assert_int_equal(p->stats.commits, commits + 1);
		assert_int_equal(p->open_steps, 0);
		world_check(p);
		world_close(&s);
		world_clean(p);
	}
}

static void a_receipt_that_does_not_fit_leaves_the_step_open(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);
	struct key_image image = {.start = 2 * PAGE + 5, .length = 1}, two[2] = {image, image};
	struct step_receipt good, bad;
	struct shot before;
	uint64_t pages[8];
	uint32_t n = 3 * PAGE;

	world_begin(s, 6 * PAGE);
	before = look(s);
	good = world_receipt(s, n, pages);
	good.ids = text;
	good.n_ids = n;
	assert_int_equal(good.n_pages, 4);
#define REFUSED(result, ...)                                                                       \
	do {                                                                                       \
		bad = good;                                                                        \
		__VA_ARGS__;                                                                       \
		assert_int_equal(step_commit(s, &bad), result);                                    \
		assert_as_before(s, &before);                                                      \
	} while (0)
	REFUSED(POOL_STALE, bad.n_pages = 3);
	REFUSED(POOL_STALE, bad.n_pages = 5);
	REFUSED(POOL_STALE, bad.n_pages = 0);
	REFUSED(POOL_STALE, bad.pages = pages + 1; bad.n_pages = 3);
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t page = pages[i];

		pages[i] = page + (2ull << 32); /* a later generation */
		REFUSED(POOL_STALE, (void)0);
		pages[i] = page - (1ull << 32);
		REFUSED(POOL_STALE, (void)0);
		pages[i] = pages[(i + 1) % 4];
		REFUSED(POOL_STALE, (void)0);
		pages[i] = (page & ~0xffffffffull) | 0xffffffff;
		REFUSED(POOL_STALE, (void)0);
		pages[i] = page;
	}
	REFUSED(POOL_RANGE, bad.tokens = 4 * PAGE - 4);
	REFUSED(POOL_RANGE, bad.tokens = UINT32_MAX);
	REFUSED(POOL_RANGE, bad.tokens = UINT32_MAX - s->committed + 1);
	REFUSED(POOL_RANGE, bad.n_ids = n - 1);
	REFUSED(POOL_RANGE, bad.n_ids = n + 1);
	REFUSED(POOL_RANGE, bad.images = &image; bad.n_images = 1; bad.n_ids = 0);
	image.start = 2 * PAGE + 4; /* known already */
	REFUSED(POOL_RANGE, bad.images = &image; bad.n_images = 1);
	image.start = 5 * PAGE + 5; /* not committed */
	REFUSED(POOL_RANGE, bad.images = &image; bad.n_images = 1);
	REFUSED(POOL_RANGE, bad.images = two; bad.n_images = 2);
	failpoint_arm(FAILPOINT_commit_memory, 0, 1);
	REFUSED(-ENOMEM, (void)0);
#undef REFUSED
	image.start = 5 * PAGE + 4;
	good.images = &image;
	good.n_images = 1;
	assert_int_equal(step_commit(s, &good), 0);
	assert_int_equal(step_commit(s, &good), POOL_STEP);
	world_close(&s);
}

static void what_of_a_prompt_is_known_needs_no_ids_again(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 3 * PAGE, 10 * PAGE);
	struct step_receipt r;
	uint64_t pages[8];

	world_begin(s, 2 * PAGE);
	r = world_receipt(s, 2 * PAGE, pages);
	r.ids = text;
	r.n_ids = 1;
	assert_int_equal(step_commit(s, &r), POOL_RANGE);
	world_commit(s, 2 * PAGE, NULL);
	world_begin(s, 5 * PAGE);
	r = world_receipt(s, 3 * PAGE, pages);
	r.ids = text + 3 * PAGE;
	r.n_ids = 3 * PAGE;
	assert_int_equal(step_commit(s, &r), POOL_RANGE);
	world_commit(s, 3 * PAGE, text);
	assert_int_equal(p->indexed, 5);
	assert_int_equal(world_lookup(p, text, 5 * PAGE + 1), 5 * PAGE);
	world_close(&s);
}

static void nothing_is_visible_to_others_before_its_commit(void **state)
{
	struct pool *p = *state;
	struct seq *s = world_open(p, text, 4 * PAGE, 10 * PAGE);

	world_begin(s, 4 * PAGE);
	assert_int_equal(world_lookup(p, text, 4 * PAGE), 0);
	step_abort(s);
	assert_int_equal(world_lookup(p, text, 4 * PAGE), 0);
	world_step(s, 2 * PAGE, NULL);
	assert_int_equal(world_lookup(p, text, 4 * PAGE), 2 * PAGE);
	world_close(&s);
}

static void a_poisoned_step_can_only_be_aborted(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);
	struct shot before = look(s);
	struct step_receipt r;
	uint64_t pages[8];

	world_begin(s, 4 * PAGE);
	s->step.poisoned = true;
	r = world_receipt(s, PAGE, pages);
	assert_int_equal(step_commit(s, &r), POOL_STEP);
	r.tokens = 0;
	r.n_pages = 0;
	assert_int_equal(step_commit(s, &r), POOL_STEP);
	step_abort(s);
	assert_as_before(s, &before);
	world_begin(s, 4 * PAGE); /* the next one is not */
	s->step.poisoned = true;
	protection_off[PROTECTION_poison_holds] = true;
	world_commit(s, PAGE, text);
	world_close(&s);
}

static void a_step_that_the_daemon_ends_is_over(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);
	struct shot before = look(s);
	struct step_receipt r = {.tokens = 0};

	step_end(s, true); /* none is open */
	assert_as_before(s, &before);
	world_begin(s, 6 * PAGE);
	step_end(s, false);
	assert_as_before(s, &before);
	assert_int_equal(step_commit(s, &r), POOL_STEP);
	assert_int_equal(p->stats.steps_ended, 1);
	assert_int_equal(p->stats.aborts, 0);
	assert_int_equal(p->open_steps, 0);
	world_close(&s);
}

static void its_pages_wait_in_quarantine_until_the_client_is_done_with_them(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p), *f;
	struct shot before;
	uint32_t taken[8];

	assert_int_equal(fork_of(s, 10 * PAGE, &f), 0);
	assert_int_equal(seq_admit(f), 0);
	before = look(s);
	world_begin(s, 6 * PAGE); /* a copy and three more */
	step_end(s, true);
	assert_int_equal(s->step.state, STEP_ENDED);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 4);
	assert_int_equal(p->open_steps, 0);
	world_check(p);
	step_abort(s);
	assert_as_before(s, &before);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 0);
	/* Closed instead. */
	world_begin(s, 6 * PAGE);
	step_end(s, true);
	assert_int_equal(seq_move_quarantine(s, NULL), 4);
	assert_int_equal(seq_move_quarantine(s, taken), 4);
	assert_int_equal(seq_move_quarantine(s, NULL), 0);
	assert_as_before(s, &before);
	world_close(&s);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 4);
	for (int i = 0; i < 4; i++)
		pages_acquit(&p->pages, taken[i]);
	/* Or neither: they are acquitted with it. */
	world_begin(f, 6 * PAGE);
	step_end(f, true);
	world_close(&f);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 0);
	assert_int_equal(p->pages.count[PAGE_PRIVATE], 0);
}

static void pages_that_nobody_can_remember_stay_in_quarantine_for_good(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);
	struct shot before = look(s);

	seq_lose_quarantine(s);
	assert_as_before(s, &before);
	world_begin(s, 6 * PAGE);
	step_end(s, true);
	seq_lose_quarantine(s);
	world_check(p);
	world_close(&s);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 4);
	assert_int_equal(pool_may_admit(p, PAGES - 3), POOL_WAIT);
}

static void the_partial_page_that_it_wrote_in_place_goes_into_quarantine_too(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);
	uint32_t partial = s->table[2], taken[8];

	world_begin(s, 2 * PAGE + 9); /* no fresh page at all */
	step_end(s, true);
	assert_int_equal(p->pages.page[partial].state, PAGE_PRIVATE);
	assert_int_equal(seq_move_quarantine(s, NULL), 1);
	assert_int_equal(seq_move_quarantine(s, taken), 1);
	assert_int_equal(taken[0], partial);
	world_check(p);
	world_close(&s);
	assert_int_equal(p->pages.page[partial].state, PAGE_QUARANTINED);
	pages_acquit(&p->pages, partial);

	s = started(p);
	partial = s->table[2];
	world_begin(s, 4 * PAGE);
	step_end(s, true);
	assert_int_equal(seq_move_quarantine(s, taken), 2);
	assert_int_equal(taken[0], partial);
	world_close(&s);
	pages_acquit(&p->pages, taken[0]);
	pages_acquit(&p->pages, taken[1]);
	/* Acknowledged, it is the sequence's as before. */
	s = started(p);
	world_begin(s, 4 * PAGE);
	step_end(s, true);
	step_abort(s);
	world_step(s, 4 * PAGE, text);
	world_close(&s);
}

static void switched_off_an_ended_step_frees_its_pages_at_once(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);

	protection_off[PROTECTION_ended_steps_are_quarantined] = true;
	world_begin(s, 6 * PAGE);
	step_end(s, true);
	assert_int_equal(p->pages.count[PAGE_QUARANTINED], 0);
	assert_int_equal(s->step.state, STEP_NONE);
	world_close(&s);
}

static void a_window_that_begins_beyond_what_is_committed_drops_no_more_than_that(void **state)
{
	struct pool *p = *state;
	struct seq *s = started(p);
	uint32_t n;

	assert_int_equal(step_wants(s, 8 * PAGE, 7 * PAGE, &n), 0);
	assert_int_equal(step_begin(s, 8 * PAGE, 7 * PAGE, n), 0);
	world_commit(s, PAGE, text); /* 3 pages and 5 tokens */
	assert_int_equal(s->first_page, 3);
	assert_int_equal(s->n_pages, 1);
	assert_int_equal(s->published, 3);
	world_step(s, 5 * PAGE, text);
	assert_int_equal(s->first_page, 3);
	assert_int_equal(p->indexed, 5);
	world_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_step_wants_the_pages_that_are_not_there_yet),
	    TEST(a_step_writes_from_the_first_token_that_is_not_committed),
	    TEST(a_step_waits_for_clean_pages_and_gives_up_retained_ones),
	    TEST(without_memory_nothing_has_begun),
	    TEST(an_abort_leaves_everything_as_before_and_may_be_repeated),
	    TEST(of_n_tokens_the_first_k_stand_and_the_rest_goes_at_once),
	    TEST(a_receipt_that_does_not_fit_leaves_the_step_open),
	    TEST(what_of_a_prompt_is_known_needs_no_ids_again),
	    TEST(nothing_is_visible_to_others_before_its_commit),
	    TEST(a_poisoned_step_can_only_be_aborted),
	    TEST(a_step_that_the_daemon_ends_is_over),
	    TEST(its_pages_wait_in_quarantine_until_the_client_is_done_with_them),
	    TEST(pages_that_nobody_can_remember_stay_in_quarantine_for_good),
	    TEST(the_partial_page_that_it_wrote_in_place_goes_into_quarantine_too),
	    TEST(switched_off_an_ended_step_frees_its_pages_at_once),
	    TEST(a_window_that_begins_beyond_what_is_committed_drops_no_more_than_that),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
