/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/habits.h: what an order learns from the states of a hybrid pool that come
 * back, and from those that would have. One thread; nothing blocks.
 */

#include "tests/unit/states_world.h"

#include <errno.h>

#define IMAGE  4u /* units */
#define ROUNDS 60u

static struct states world;

static int setup(void **state)
{
	states_init(&world, &(struct states_limits){.pages = 128,
						    .slots = 8,
						    .units = 96,
						    .image_units = IMAGE,
						    .order = RETAIN_LEARNED});
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	states_deinit(*state);
	return 0;
}

static struct habits *habits_of(struct states *w)
{
	return w->pool.images.habits;
}

static struct image_name retain(struct states *w, const struct states_text *text, uint32_t n)
{
	struct image_name name = states_name(w, states_retain(w, text, n));

	states_settle(w);
	world_clean(&w->pool);
	return name;
}

static void give_up(struct states *w, struct image_name name)
{
	assert_int_not_equal(image_find(&w->pool.images, name), IMAGE_NONE);
	pool_give_up(&w->pool, name.image);
	states_check(w);
}

static uint32_t class_of(const struct states *w, struct image_name name)
{
	return w->pool.images.image[name.image].habit.class;
}

static uint32_t next_in_ram(const struct states *w, uint64_t later_ns)
{
	struct retain_rank rank;

	return image_next_in_ram(&w->pool.images, UINT64_MAX, w->pool.retain.now_ns + later_ns,
				 300 * SECOND, &rank);
}

static double sum(const double counts[REUSE_CELLS])
{
	double n = 0;

	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		n += counts[i];
	return n;
}

static uint32_t class(uint32_t turn, enum retain_part part)
{
	return turn * REUSE_PARTS + part;
}

/* ---- what it brings ---- */

/* Conversations of three turns that go on soon, and prompts of which nothing comes again. */
static void learn(struct states *w)
{
	uint32_t all = ALL;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct states_text talk = {.which = 1000 + i}, once = {.which = 2000 + i};

		for (uint32_t turn = 1; turn <= 3; turn++)
			(void)retain(w, &talk, turn * 2 * PAGE + 3);
		(void)retain(w, &once, 2 * PAGE + 3);
		(void)retain(w, &(struct states_text){.which = 3000 + i}, PAGE);
		assert_true(pool_drop_states(&w->pool, RETAIN_NAMESPACES, &all));
		world_clean(&w->pool);
	}
}

static void
what_comes_back_soon_is_worth_more_than_a_younger_prompt_of_which_nothing_does(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1}, once = {.which = 2};
	struct image_name first, turn, other;

	learn(w);
	assert_true(habits_of(w)->reuse.refreshes >= ROUNDS * 5 / REUSE_REFRESH - 1);
	first = retain(w, &talk, 2 * PAGE);
	turn = retain(w, &talk, 4 * PAGE);
	other = retain(w, &once, 2 * PAGE);
	give_up(w, first);
	assert_true(w->pool.images.image[turn.image].touched <
		    w->pool.images.image[other.image].touched);
	assert_int_equal(class_of(w, turn), class(1, RETAIN_NEW));
	assert_int_equal(image_victim(&w->pool.images, UINT64_MAX, false), other.image);
	/* In KV-RAM, too. */
	states_push_down(w, turn.image);
	states_push_down(w, other.image);
	states_settle(w);
	assert_string_equal(states_where(w, turn), "Rp");
	assert_int_equal(next_in_ram(w, 0), other.image);
}

static void checkpoints_leave_before_prefixes_whatever_was_learned(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1}, block = {.which = 2, .kind = IMAGE_PREFIX};
	struct image_name prefix, turn;

	learn(w);
	prefix = retain(w, &block, 2 * PAGE);
	give_up(w, retain(w, &talk, 2 * PAGE));
	turn = retain(w, &talk, 4 * PAGE);
	assert_true(habits_index(&w->pool.images, &w->pool.images.image[turn.image]) >
		    habits_index(&w->pool.images, &w->pool.images.image[prefix.image]));
	assert_int_equal(image_victim(&w->pool.images, UINT64_MAX, false), turn.image);
}

static void what_interactive_requests_left_leaves_ram_after_what_agents_left(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1}, typed = {.which = 2, .interactive = true};
	struct image_name turn, other;

	learn(w);
	other = retain(w, &typed, 2 * PAGE);
	give_up(w, retain(w, &talk, 2 * PAGE));
	turn = retain(w, &talk, 4 * PAGE);
	states_push_down(w, turn.image);
	states_push_down(w, other.image);
	states_settle(w);
	assert_int_equal(next_in_ram(w, 0), turn.image);
	/* Nobody has come for it for so long that it is an agent's. */
	assert_int_equal(next_in_ram(w, 301 * SECOND), other.image);
}

/* ---- what is learned ---- */

static void the_turn_of_an_open_is_that_after_the_checkpoint_it_goes_on_from(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1};

	for (uint32_t turn = 0; turn < 6; turn++) {
		struct image_name name = retain(w, &talk, (turn + 1) * PAGE + 3);

		assert_int_equal(class_of(w, name), class(turn < 3 ? turn : 3, RETAIN_NEW));
	}
	for (uint32_t turn = 0; turn < 3; turn++)
		assert_int_equal(habits_of(w)->counts.hits[class(turn, RETAIN_NEW)], 1);
	assert_int_equal(habits_of(w)->counts.hits[class(3, RETAIN_NEW)], 2);
}

static void who_finds_a_prefix_begins_a_conversation(void **state)
{
	struct states *w = *state;
	struct states_text block = {.which = 1, .kind = IMAGE_PREFIX};
	struct states_text talk = {.which = 2, .shared = 4 * PAGE};
	struct image_name prefix;

	block.shared = 4 * PAGE;
	prefix = retain(w, &block, 4 * PAGE);
	assert_int_equal(class_of(w, retain(w, &talk, 5 * PAGE)), class(0, RETAIN_NEW));
	assert_int_equal(class_of(w, prefix), class(0, RETAIN_REUSED));
	/* Found again, it was one that had been found. */
	talk.which = 3;
	(void)retain(w, &talk, 5 * PAGE);
	assert_int_equal(habits_of(w)->counts.hits[class(0, RETAIN_REUSED)], 1);
}

/* It ends in the middle of a page, or at the end of one. */
static void what_is_gone_teaches_as_what_is_there(void **state)
{
	static const uint32_t tokens[] = {3 * PAGE, 3 * PAGE + 5, 5};
	struct states *w = *state;

	for (uint32_t i = 0; i < 3; i++) {
		struct states_text talk = {.which = 1 + i}, other = {.which = 1 + i};
		struct habits *h = habits_of(w);

		give_up(w, retain(w, &talk, tokens[i]));
		assert_int_equal(h->ghosts.used, 1);
		/* Another namespace knows nothing of it. */
		other.name_space = 1;
		assert_int_equal(class_of(w, retain(w, &other, 6 * PAGE)), class(0, RETAIN_NEW));
		assert_int_equal(h->counts.misses[class(0, RETAIN_NEW)], i);
		assert_int_equal(class_of(w, retain(w, &talk, 6 * PAGE)), class(1, RETAIN_NEW));
		assert_int_equal(h->counts.misses[class(0, RETAIN_NEW)], i + 1);
		assert_int_equal(h->ghosts.used, 0);
		assert_true(sum(h->reuse.reused) == i + 1);
	}
}

static void the_longest_that_is_gone_counts_beyond_what_is_there(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1};
	struct image_name kept, shorter, longer;

	kept = retain(w, &talk, PAGE);
	shorter = retain(w, &talk, 2 * PAGE + 1);
	longer = retain(w, &talk, 2 * PAGE + 4);
	give_up(w, shorter);
	give_up(w, longer);
	assert_int_equal(habits_of(w)->ghosts.used, 2);
	/* It stops short of both; then of one. */
	assert_int_equal(states_reuse(w, &talk, 2 * PAGE + 1), PAGE);
	assert_int_equal(habits_of(w)->ghosts.used, 2);
	assert_int_equal(states_reuse(w, &talk, 2 * PAGE + 3), PAGE);
	assert_int_equal(habits_of(w)->counts.misses[class(2, RETAIN_REUSED)], 1);
	assert_int_equal(states_reuse(w, &talk, 5 * PAGE), PAGE);
	assert_int_equal(habits_of(w)->counts.misses[class(2, RETAIN_NEW)], 1);
	assert_int_equal(habits_of(w)->ghosts.used, 0);
	assert_int_equal(class_of(w, kept), class(3, RETAIN_REUSED));
}

/* Nor what ends before the one that is there, in the same page. */
static void of_several_that_are_gone_the_longest_alone_counts(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1}, other = {.which = 2};
	struct image_name shorter = retain(w, &talk, PAGE + 1);
	struct image_name longer = retain(w, &talk, PAGE + 4);

	give_up(w, shorter);
	give_up(w, longer);
	assert_int_equal(states_reuse(w, &talk, 5 * PAGE), 0);
	assert_int_equal(habits_of(w)->counts.misses[class(1, RETAIN_NEW)], 1);
	assert_true(sum(habits_of(w)->reuse.reused) == 2);
	assert_int_equal(habits_of(w)->ghosts.used, 1);
	shorter = retain(w, &other, PAGE + 1);
	(void)retain(w, &other, PAGE + 4);
	give_up(w, shorter);
	assert_int_equal(states_reuse(w, &other, 5 * PAGE), PAGE + 4);
	assert_int_equal(habits_of(w)->counts.misses[class(0, RETAIN_REUSED)], 0);
	assert_int_equal(habits_of(w)->ghosts.used, 2);
}

static void what_is_forgotten_was_waited_for_in_vain(void **state)
{
	struct states *w = *state;
	struct states_text text[] = {{.which = 1}, {.which = 2}, {.which = 3}};
	struct habits *h;

	habits_free(&w->pool.images.habits);
	assert_int_equal(habits_new(2, &w->pool.images.habits), 0);
	h = habits_of(w);
	for (uint32_t i = 0; i < 3; i++) {
		assert_true(sum(h->reuse.forgotten) == 0);
		give_up(w, retain(w, &text[i], 2 * PAGE + 3));
	}
	assert_true(sum(h->reuse.forgotten) == 1);
	assert_int_equal(h->ghosts.used, 2);
	/* The one that left first. */
	assert_int_equal(class_of(w, retain(w, &text[0], 3 * PAGE)), class(0, RETAIN_NEW));
	assert_int_equal(class_of(w, retain(w, &text[1], 3 * PAGE)), class(1, RETAIN_NEW));
}

static void what_its_lineage_replaced_leaves_no_trace(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1};
	struct habits *h = habits_of(w);
	struct seq *s;
	uint32_t image;

	for (uint32_t turn = 1; turn <= 4; turn++) {
		s = states_open(w, &talk, turn * PAGE);
		states_step(w, s, turn * PAGE);
		image = states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL);
		states_capture_ends(w, image, 0);
		world_close(&s);
		states_check(w);
	}
	assert_int_equal(w->pool.images.counts.replaced, 3);
	assert_int_equal(h->ghosts.used, 0);
	assert_true(sum(h->reuse.reused) == 3 && sum(h->reuse.forgotten) == 0);
	for (uint32_t i = 0; i < REUSE_CLASSES; i++)
		assert_int_equal(h->counts.evictions[i], 0);
}

static void a_capture_that_fails_leaves_no_trace(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1};
	struct seq *s = states_open(w, &talk, 2 * PAGE);

	states_step(w, s, 2 * PAGE);
	states_capture_ends(w, states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL), -EIO);
	world_close(&s);
	states_check(w);
	assert_int_equal(habits_of(w)->ghosts.used, 0);
	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		assert_int_equal(habits_of(w)->reuse.waiting[i], 0);
}

static void a_capture_for_which_there_is_no_room_stays_known(void **state)
{
	struct states *w = *state;
	struct states_text talk = {.which = 1};
	enum capture_skip skip;
	struct seq *s;

	states_deinit(w);
	states_init(w,
		    &(struct states_limits){
			.pages = 128, .units = 96, .image_units = IMAGE, .order = RETAIN_LEARNED});
	w->says = POOL_NEVER;
	s = states_open(w, &talk, 2 * PAGE);
	states_step(w, s, 2 * PAGE);
	(void)states_capture_begins(w, s, IMAGE_CHECKPOINT, false, &skip);
	assert_int_equal(skip, CAPTURE_NO_SLOT);
	world_close(&s);
	states_check(w);
	assert_int_equal(habits_of(w)->ghosts.used, 1);
	w->says = 0;
	assert_int_equal(class_of(w, retain(w, &talk, 3 * PAGE)), class(1, RETAIN_NEW));
	assert_int_equal(habits_of(w)->counts.misses[class(0, RETAIN_NEW)], 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_comes_back_soon_is_worth_more_than_a_younger_prompt_of_which_nothing_does),
	    TEST(checkpoints_leave_before_prefixes_whatever_was_learned),
	    TEST(what_interactive_requests_left_leaves_ram_after_what_agents_left),
	    TEST(the_turn_of_an_open_is_that_after_the_checkpoint_it_goes_on_from),
	    TEST(who_finds_a_prefix_begins_a_conversation),
	    TEST(what_is_gone_teaches_as_what_is_there),
	    TEST(the_longest_that_is_gone_counts_beyond_what_is_there),
	    TEST(of_several_that_are_gone_the_longest_alone_counts),
	    TEST(what_is_forgotten_was_waited_for_in_vain),
	    TEST(what_its_lineage_replaced_leaves_no_trace),
	    TEST(a_capture_that_fails_leaves_no_trace),
	    TEST(a_capture_for_which_there_is_no_room_stays_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
