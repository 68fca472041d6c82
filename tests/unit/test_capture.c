/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/capture.h and image.h: retained states of a hybrid pool. One thread;
 * nothing blocks. Images are only noted: a capture is filled at once unless a test says otherwise.
 */

#include "daemon/state/capture.h"
#include "daemon/state/pool_states.h"
#include "tests/unit/pool_world.h"
#include "tests/unit/seeds.h"

#define PAGES 64u
#define LANES 4u
#define SLOTS 3u

static struct pool pool;
static uint32_t text[32 * PAGE];

static void make_pool(uint32_t slots, uint32_t min_capture)
{
	struct pool_limits limits = {.pages = PAGES,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = PAGES + 64,
				     .name_spaces = RETAIN_NAMESPACES,
				     .prefix_budget = PAGES,
				     .lanes = LANES,
				     .retained_slots = slots,
				     .min_capture_tokens = min_capture};

	failpoint_clear();
	world_maker.kept_bits = 128;
	memset(world_maker.secret, 7, sizeof(world_maker.secret));
	assert_int_equal(pool_init(&pool, &limits, &world_maker, world_stamp), 0);
}

static int setup(void **state)
{
	*state = &pool;
	make_pool(SLOTS, 0);
	world_tokens(text, 32 * PAGE, 32 * PAGE, 0);
	return 0;
}

static int teardown(void **state)
{
	struct pool *p = *state;
	uint32_t victim;

	world_check(p);
	while ((victim = image_victim(&p->images, UINT64_MAX, false)) != IMAGE_NONE)
		pool_give_up(p, victim);
	/* With the last state the last page goes: nothing is kept for nothing. */
	assert_int_equal(p->indexed, 0);
	assert_int_equal(p->prefix.used, 0);
	assert_int_equal(p->images.lanes_free, LANES);
	world_deinit(p);
	return 0;
}

static void step_to(struct seq *s, uint32_t tokens)
{
	world_step(s, tokens, NULL);
}

static struct seq *open_text(const uint32_t *tokens, uint32_t n)
{
	struct seq *s = world_open(&pool, tokens, n, n + 4 * PAGE);

	if (s->follows.image != IMAGE_NONE)
		pool_claim_done(&pool, s->follows.image);
	return s;
}

static enum capture_skip capture_as(struct seq *s, enum image_kind kind, bool is_user,
				    uint32_t *image)
{
	enum capture_skip skip = capture_begin(s, kind, is_user, image);

	if (skip == CAPTURE_MADE)
		capture_end(&pool, *image, true);
	world_check(&pool);
	return skip;
}

static enum capture_skip capture(struct seq *s)
{
	uint32_t image;

	return capture_as(s, IMAGE_CHECKPOINT, false, &image);
}

static uint32_t found(const uint32_t *tokens, uint32_t n)
{
	return world_lookup(&pool, tokens, n);
}

static void reuse_goes_on_only_where_a_state_was_captured(void **state)
{
	struct seq *s = open_text(text, 5 * PAGE), *other;

	(void)state;
	step_to(s, 2 * PAGE + 5);
	assert_int_equal(capture(s), CAPTURE_MADE);
	step_to(s, 5 * PAGE);
	assert_int_equal(found(text, 5 * PAGE), 2 * PAGE + 5);
	assert_int_equal(found(text, 2 * PAGE + 5), 0); /* the last token is left to compute */
	assert_int_equal(found(text, 2 * PAGE + 6), 2 * PAGE + 5);
	/* It went back to the state from pages that are on the device: none is missing there. */
	other = open_text(text, 5 * PAGE);
	assert_int_equal(pool.stats.ram_hit_pages, 0);
	world_close(&other);
	world_close(&s);
	assert_int_equal(found(text, 5 * PAGE), 2 * PAGE + 5);
	/* Pages behind the state are of no use to anybody. */
	assert_int_equal(pool.indexed, 3);
}

static void the_longest_state_is_found_and_others_beside_it(void **state)
{
	struct seq *s = open_text(text, 6 * PAGE);

	(void)state;
	step_to(s, PAGE);
	assert_int_equal(capture(s), CAPTURE_MADE);
	s->follows.image = IMAGE_NONE; /* of no conversation: all three stay */
	step_to(s, 3 * PAGE + 2);
	assert_int_equal(capture(s), CAPTURE_MADE);
	s->follows.image = IMAGE_NONE;
	step_to(s, 3 * PAGE + 9);
	assert_int_equal(capture(s), CAPTURE_MADE);
	assert_int_equal(found(text, 6 * PAGE), 3 * PAGE + 9);
	assert_int_equal(found(text, 3 * PAGE + 9), 3 * PAGE + 2);
	assert_int_equal(found(text, 3 * PAGE), PAGE);
	assert_int_equal(found(text, PAGE), 0);
	world_close(&s);
}

static void a_claim_goes_on_in_a_copy_of_the_partial_page(void **state)
{
	struct seq *s = open_text(text, 4 * PAGE), *t;
	uint32_t page;

	(void)state;
	step_to(s, PAGE + 4);
	assert_int_equal(capture(s), CAPTURE_MADE);
	world_close(&s);
	t = open_text(text, 4 * PAGE);
	assert_int_equal(t->committed, PAGE + 4);
	assert_int_equal(t->n_pages, 2);
	page = seq_page(t, 1);
	assert_int_equal(pool.pages.page[page].state, PAGE_INDEXED);
	world_begin(t, 2 * PAGE);
	assert_int_equal(t->step.replaced, page);
	assert_int_not_equal(seq_page(t, 1), page);
	step_abort(t);
	assert_int_equal(seq_page(t, 1), page);
	step_to(t, 4 * PAGE);
	world_check(&pool);
	/* The state is still there for the next one: reuse copies and never consumes. */
	assert_int_equal(found(text, 4 * PAGE), PAGE + 4);
	world_close(&t);
}

static void the_target_becomes_the_source_at_commit_and_not_at_abort(void **state)
{
	struct seq *s = open_text(text, 4 * PAGE);
	uint32_t source = seq_source_slot(s), target = seq_target_slot(s);

	(void)state;
	world_begin(s, PAGE);
	step_abort(s);
	assert_int_equal(seq_source_slot(s), source);
	step_to(s, PAGE);
	assert_int_equal(seq_source_slot(s), target);
	assert_int_equal(seq_target_slot(s), source);
	world_close(&s);
}

static void a_conversation_keeps_its_latest_and_its_last_user_state(void **state)
{
	struct seq *s = open_text(text, 3 * PAGE);
	uint32_t user, image;

	(void)state;
	step_to(s, PAGE);
	assert_int_equal(capture_as(s, IMAGE_CHECKPOINT, true, &user), CAPTURE_MADE);
	step_to(s, 2 * PAGE);
	assert_int_equal(capture(s), CAPTURE_MADE);
	step_to(s, 3 * PAGE);
	assert_int_equal(capture(s), CAPTURE_MADE);
	assert_int_equal(pool.images.n_slots - pool.images.slots_free, 2);
	assert_int_equal(found(text, 9 * PAGE), 3 * PAGE);
	assert_int_equal(found(text, 3 * PAGE), PAGE); /* the middle one was replaced */
	world_close(&s);

	/* The next turn: its user state takes the place of the last one's. */
	s = open_text(text, 6 * PAGE);
	assert_int_equal(s->committed, 3 * PAGE);
	step_to(s, 5 * PAGE);
	assert_int_equal(capture_as(s, IMAGE_CHECKPOINT, true, &image), CAPTURE_MADE);
	assert_int_equal(pool.images.n_slots - pool.images.slots_free, 1);
	assert_int_equal(found(text, 3 * PAGE + 1), 0);
	assert_int_equal(found(text, 6 * PAGE), 5 * PAGE);
	world_close(&s);
}

static void two_forks_of_one_point_are_two_conversations(void **state)
{
	uint32_t other[8 * PAGE];
	struct seq *s = open_text(text, 2 * PAGE + 1), *t;

	(void)state;
	memcpy(other, text, sizeof(other));
	for (uint32_t i = 2 * PAGE; i < 8 * PAGE; i++)
		other[i] = 77000 + i;
	step_to(s, 2 * PAGE);
	assert_int_equal(capture(s), CAPTURE_MADE);
	world_close(&s);
	s = open_text(text, 4 * PAGE);
	t = open_text(other, 4 * PAGE);
	assert_int_equal(s->committed, 2 * PAGE);
	assert_int_equal(t->committed, 2 * PAGE);
	step_to(s, 3 * PAGE);
	step_to(t, 3 * PAGE);
	assert_int_equal(capture(s), CAPTURE_MADE); /* goes on, and replaces the point */
	assert_int_equal(capture(t), CAPTURE_MADE); /* comes too late for that: a new one */
	assert_int_equal(pool.images.n_slots - pool.images.slots_free, 2);
	assert_int_equal(found(text, 4 * PAGE), 3 * PAGE);
	assert_int_equal(found(other, 4 * PAGE), 3 * PAGE);
	world_close(&s);
	world_close(&t);
}

static void checkpoints_give_up_their_slots_before_prefixes(void **state)
{
	uint32_t own[4][4 * PAGE], image;
	struct seq *s;

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t k = 0; k < 4 * PAGE; k++)
			own[i][k] = 1000 * (i + 1) + k;
		s = open_text(own[i], 2 * PAGE + 1);
		step_to(s, 2 * PAGE);
		assert_int_equal(
		    capture_as(s, i == 0 ? IMAGE_PREFIX : IMAGE_CHECKPOINT, false, &image),
		    CAPTURE_MADE);
		world_close(&s);
	}
	assert_int_equal(found(own[0], 4 * PAGE), 2 * PAGE); /* the oldest, but a prefix */
	assert_int_equal(found(own[1], 4 * PAGE), 0);
	assert_int_equal(found(own[2], 4 * PAGE), 2 * PAGE);
	assert_int_equal(found(own[3], 4 * PAGE), 2 * PAGE);
}

static void states_that_are_being_copied_are_not_chosen(void **state)
{
	uint32_t own[SLOTS][2 * PAGE + 1], image[SLOTS], more;
	struct seq *s[SLOTS], *t;

	(void)state;
	for (uint32_t i = 0; i < SLOTS; i++) {
		for (uint32_t k = 0; k < 2 * PAGE + 1; k++)
			own[i][k] = 1000 * (i + 1) + k;
		s[i] = open_text(own[i], 2 * PAGE + 1);
		step_to(s[i], 2 * PAGE);
		assert_int_equal(capture_begin(s[i], IMAGE_CHECKPOINT, false, &image[i]),
				 CAPTURE_MADE);
		assert_int_equal(found(own[i], 2 * PAGE + 1), 0); /* until it is filled */
	}
	t = open_text(text, 2 * PAGE + 1);
	step_to(t, 2 * PAGE);
	assert_int_equal(capture_begin(t, IMAGE_CHECKPOINT, false, &more), CAPTURE_NO_SLOT);
	assert_int_equal(pool.stats.capture_skips[CAPTURE_NO_SLOT], 1);
	capture_end(&pool, image[0], true);
	capture_end(&pool, image[1], false); /* the copy failed: as if it had never begun */
	capture_end(&pool, image[2], true);
	assert_int_equal(found(own[0], 2 * PAGE + 1), 2 * PAGE);
	assert_int_equal(found(own[1], 2 * PAGE + 1), 0);
	assert_int_equal(capture(t), CAPTURE_MADE);
	for (uint32_t i = 0; i < SLOTS; i++)
		world_close(&s[i]);
	world_close(&t);
}

static void a_state_given_up_while_it_is_copied_goes_when_that_is_done(void **state)
{
	struct seq *s = open_text(text, 2 * PAGE + 1), *t;
	uint32_t image;

	(void)state;
	step_to(s, 2 * PAGE);
	assert_int_equal(capture_as(s, IMAGE_CHECKPOINT, false, &image), CAPTURE_MADE);
	world_close(&s);
	t = world_open(&pool, text, 3 * PAGE, 4 * PAGE); /* its claim is in flight */
	assert_int_equal(pool.images.image[image].claims, 1);
	pool_give_up(&pool, image);
	world_check(&pool);
	assert_int_equal(pool.images.image[image].state, IMAGE_DOOMED);
	assert_int_equal(found(text, 3 * PAGE), 0);
	pool_claim_done(&pool, image);
	assert_int_equal(pool.images.image[image].state, IMAGE_FREE);
	world_check(&pool);
	world_close(&t);
}

static void captures_are_skipped_with_their_reasons(void **state)
{
	struct match_wish off = world_wish(text, 3 * PAGE);
	struct seq *s, *f;

	(void)state;
	world_deinit(&pool);
	make_pool(SLOTS, 2 * PAGE);
	s = open_text(text, 4 * PAGE);
	step_to(s, PAGE);
	assert_int_equal(capture(s), CAPTURE_SHORT);
	step_to(s, 2 * PAGE + 3);
	assert_int_equal(fork_of(s, 8 * PAGE, &f), 0);
	assert_int_equal(seq_admit(f), 0);
	assert_int_equal(capture(s), CAPTURE_SHARED);
	world_close(&f);
	assert_int_equal(capture(s), CAPTURE_MADE);
	assert_int_equal(capture(s), CAPTURE_EXISTS);
	step_to(s, 4 * PAGE);
	world_step(s, 5 * PAGE, NULL); /* ids that nobody tells */
	assert_int_equal(capture(s), CAPTURE_UNKNOWN);
	world_close(&s);
	off.off = true;
	s = world_open_wish(&pool, &off, 4 * PAGE, ALL);
	step_to(s, 3 * PAGE);
	assert_int_equal(capture(s), CAPTURE_OFF);
	world_close(&s);
	for (int i = CAPTURE_EXISTS; i < CAPTURE_REASONS; i++)
		assert_int_equal(pool.stats.capture_skips[i],
				 i == CAPTURE_NO_SLOT || i == CAPTURE_IN_IMAGE ? 0 : 1);
}

static void points_are_ascending_and_outside_images(void **state)
{
	const struct key_image image = {.start = 3 * PAGE + 2, .length = 5};
	struct match_wish w = world_wish(text, 8 * PAGE);
	struct capture_points p;

	(void)state;
	capture_plan(&pool, &w, 0, 0, 2 * PAGE + 5, 7 * PAGE + 3, &p);
	assert_int_equal(p.n, 3);
	assert_int_equal(p.tokens[0], 2 * PAGE);
	assert_int_equal(p.tokens[1], 7 * PAGE);
	assert_int_equal(p.tokens[2], 7 * PAGE + 3);
	capture_plan(&pool, &w, 2 * PAGE, 0, 2 * PAGE + 5, 7 * PAGE, &p);
	assert_int_equal(p.n, 1);
	assert_int_equal(p.tokens[0], 7 * PAGE);
	w.images = &image;
	w.n_images = 1;
	capture_plan(&pool, &w, 0, PAGE + 20, 0, 3 * PAGE + 4, &p);
	for (uint32_t i = 0; i < p.n; i++) {
		assert_true(i == 0 || p.tokens[i] > p.tokens[i - 1]);
		assert_false(p.tokens[i] > image.start && p.tokens[i] < image.start + image.length);
	}
	assert_int_equal(p.tokens[0], PAGE + 20);
}

/* ---- points of hostile prompts ---- */

#define SPANS 4096u
#define LONG  (1u << 20)

static struct key_image spans[SPANS];

/* All of them, one by one, of which the last ones are kept. */
static void plain_point(const struct match_wish *w, uint32_t cached, uint32_t tokens, bool *is)
{
	if (tokens <= cached || tokens > w->n_tokens || tokens < pool.limits.min_capture_tokens)
		return;
	for (uint32_t i = 0; i < w->n_images; i++) {
		if (w->images[i].start < tokens &&
		    tokens < w->images[i].start + w->images[i].length)
			return;
	}
	is[tokens] = true;
}

static struct capture_points plain_plan(const struct match_wish *w, uint32_t cached, uint32_t chunk,
					uint32_t system, uint32_t opener)
{
	struct capture_points p = {.n = 0};
	bool is[8 * PAGE + 1] = {false};
	uint32_t seen = 0;

	assert_true(w->n_tokens <= 8 * PAGE);
	for (uint32_t at = cached + chunk; chunk && at < w->n_tokens; at += chunk)
		plain_point(w, cached, at, is);
	plain_point(w, cached, system / PAGE * PAGE, is);
	plain_point(w, cached, opener / PAGE * PAGE, is);
	plain_point(w, cached, opener, is);
	for (uint32_t i = 0; i <= 8 * PAGE; i++)
		seen += is[i];
	for (uint32_t i = 0; i <= 8 * PAGE; i++) {
		if (is[i] && seen-- <= CAPTURE_POINTS)
			p.tokens[p.n++] = i;
	}
	return p;
}

static void the_points_are_those_of_a_plain_search(void **state)
{
	uint32_t full = 0, long_images = 0;

	(void)state;
	for (uint32_t round = 0; round < 20000; round++) {
		struct match_wish w = world_wish(text, below(8 * PAGE + 1));
		uint32_t cached = below(3) ? 0 : below(w.n_tokens + 1);
		uint32_t chunk = below(3) ? below(6) : below(3 * PAGE);
		uint32_t system = below(9 * PAGE), opener = below(9 * PAGE);
		uint32_t gap = 1 + below(8), length = 1 + below(below(4) ? 4 : 3 * PAGE);
		struct capture_points plain, p;

		for (uint32_t at = below(gap); at < w.n_tokens && below(40);) {
			struct key_image *i = &spans[w.n_images++];

			*i = (struct key_image){.start = at, .length = 1 + below(length)};
			if (i->length > w.n_tokens - at)
				i->length = w.n_tokens - at;
			at += i->length + below(gap);
		}
		w.images = w.n_images ? spans : NULL;
		pool.limits.min_capture_tokens = below(2) ? 0 : below(4 * PAGE);
		plain = plain_plan(&w, cached, chunk, system, opener);
		capture_plan(&pool, &w, cached, chunk, system, opener, &p);
		assert_int_equal(p.n, plain.n);
		assert_memory_equal(p.tokens, plain.tokens, p.n * sizeof(*p.tokens));
		full += p.n == CAPTURE_POINTS;
		for (uint32_t i = 0; i < w.n_images; i++)
			long_images += w.images[i].length > chunk && chunk;
	}
	assert_true(full > 1000);
	assert_true(long_images > 1000);
}

/* n images of `length` tokens, `apart` from each other, in a long prompt: few looks, and how many
 * points. */
static uint32_t points_of(uint32_t n, uint32_t length, uint32_t apart, uint32_t chunk)
{
	/* Chunks: twice at each image and once for each point; and three points of the client. */
	uint64_t most = match_work.images + 5 * n + CAPTURE_POINTS;
	uint32_t *tokens = calloc(LONG, sizeof(*tokens));
	struct match_wish w = world_wish(tokens, LONG);
	struct capture_points p;

	for (uint32_t i = 0; i < n; i++)
		spans[i] = (struct key_image){.start = i * apart, .length = length};
	w.images = spans;
	w.n_images = n;
	capture_plan(&pool, &w, 0, chunk, PAGE, PAGE + 1, &p);
	assert_true(match_work.images <= most);
	free(tokens);
	return p.n;
}

static void a_plan_looks_at_each_image_a_few_times(void **state)
{
	(void)state;
	assert_int_equal(points_of(SPANS, 1, 1, 1), CAPTURE_POINTS);
	assert_int_equal(points_of(SPANS, 1, LONG / SPANS, 1), CAPTURE_POINTS);
	assert_int_equal(points_of(SPANS, LONG / SPANS, LONG / SPANS, 1), CAPTURE_POINTS);
	assert_int_equal(points_of(SPANS, LONG / SPANS, LONG / SPANS, LONG / SPANS - 1),
			 CAPTURE_POINTS);
	/* No chunk ends where an image does not cover it, but for a few. */
	assert_int_equal(points_of(1, LONG, LONG, 1), 0);
	assert_int_equal(points_of(1, LONG - 2 * PAGE, 0, 1), CAPTURE_POINTS);
	assert_int_equal(points_of(SPANS, 2, 2, 2), CAPTURE_POINTS);
	pool.limits.min_capture_tokens = LONG;
	assert_int_equal(points_of(SPANS, 1, 1, 1), 0);
}

static void a_lane_is_free_again_when_its_copies_are_done(void **state)
{
	struct seq *s = open_text(text, 2 * PAGE);
	uint32_t lane = s->lane;

	(void)state;
	assert_int_equal(pool.images.lanes_free, LANES - 1);
	lane_job(&pool.images, lane);
	world_close(&s);
	assert_int_equal(pool.images.lanes_free, LANES - 1);
	lane_job_done(&pool.images, lane);
	assert_int_equal(pool.images.lanes_free, LANES);
}

static void a_lane_is_wiped_for_another_namespace(void **state)
{
	struct images *s = &pool.images;

	(void)state;
	assert_false(lane_use(s, 1, 3)); /* nobody's yet: zeros */
	assert_false(lane_use(s, 1, 3));
	assert_true(lane_use(s, 1, 0));
	assert_false(lane_use(s, 1, 0));
	assert_true(lane_use(s, 1, 3));
	assert_false(lane_use(s, 0, 3));
}

static void without_a_lane_an_open_waits(void **state)
{
	struct seq *s[LANES + 1];

	(void)state;
	for (uint32_t i = 0; i < LANES; i++)
		s[i] = open_text(text, 2 * PAGE);
	assert_int_equal(seq_new(&pool, 0, PAGE, &s[LANES]), 0);
	assert_int_equal(seq_admit(s[LANES]), POOL_WAIT);
	world_close(&s[0]);
	assert_int_equal(seq_admit(s[LANES]), 0);
	for (uint32_t i = 1; i <= LANES; i++)
		world_close(&s[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(reuse_goes_on_only_where_a_state_was_captured),
	    TEST(the_longest_state_is_found_and_others_beside_it),
	    TEST(a_claim_goes_on_in_a_copy_of_the_partial_page),
	    TEST(the_target_becomes_the_source_at_commit_and_not_at_abort),
	    TEST(a_conversation_keeps_its_latest_and_its_last_user_state),
	    TEST(two_forks_of_one_point_are_two_conversations),
	    TEST(checkpoints_give_up_their_slots_before_prefixes),
	    TEST(states_that_are_being_copied_are_not_chosen),
	    TEST(a_state_given_up_while_it_is_copied_goes_when_that_is_done),
	    TEST(captures_are_skipped_with_their_reasons),
	    TEST(points_are_ascending_and_outside_images),
	    TEST(the_points_are_those_of_a_plain_search),
	    TEST(a_plan_looks_at_each_image_a_few_times),
	    TEST(a_lane_is_free_again_when_its_copies_are_done),
	    TEST(a_lane_is_wiped_for_another_namespace),
	    TEST(without_a_lane_an_open_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
