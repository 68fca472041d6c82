/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/ram.h with a hybrid and a dense pool over one arena: states and pages that
 * take each other's places, and images of which pieces are moved. One thread; nothing blocks.
 */

#include "tests/unit/ram_states.h"

#include <errno.h>

#include "daemon/state/pool_states.h"

#define HYBRID 0u
#define DENSE  1u
#define MIDDLE (64 * KIB)  /* 32 in a frame */
#define WIDE   (896 * KIB) /* 9 in a slab of 4 frames */

static struct ram_world world;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	ram_world_deinit(*state);
	return 0;
}

static void start(struct ram_world *w, uint32_t frames, uint64_t dense_bytes, uint64_t image_bytes)
{
	ram_world_init(
	    w, &(struct ram_world_limits){
		   .arena_bytes = frames * FRAME_BYTES,
		   .n_pools = 2,
		   .pool = {
		       {.page_bytes = MIDDLE, .pages = 64, .image_bytes = image_bytes, .slots = 8},
		       {.page_bytes = dense_bytes, .pages = 160}}});
}

static struct image_name put_down(struct ram_world *w, struct states_text t, uint32_t pages)
{
	struct image_name name = ram_states_put_down(w, HYBRID, &t, pages * PAGE);

	ram_world_check(w);
	return name;
}

static struct states_text text(uint32_t which)
{
	return (struct states_text){.which = which};
}

static bool is(const struct ram_world *w, struct image_name name)
{
	return ram_states_is(w, HYBRID, name);
}

static const struct pool_stats *stats(const struct ram_world *w, uint32_t pool)
{
	return &w->pools[pool].pool.stats;
}

/* A chain of pages of the dense pool, in KV-RAM alone. */
static void put_pages(struct ram_world *w, uint32_t which, uint32_t n, bool interactive)
{
	struct ram_world_pool *p = &w->pools[DENSE];
	uint32_t *nodes = malloc(n * sizeof(*nodes));

	ram_world_retain(w, DENSE, 0, which, n, nodes);
	if (interactive)
		retain_set_interactive(&p->pool.retain, p->pool.prefix.nodes[nodes[0]].run, true);
	for (uint32_t i = 0; i < 100 && p->pool.indexed; i++) {
		ram_world_send_down(w, DENSE, n);
		ram_world_settle(w);
	}
	assert_int_equal(p->pool.indexed, 0);
	world_clean(&p->pool);
	free(nodes);
	ram_world_check(w);
}

/* ---- states and pages ---- */

static void pages_that_were_used_longer_ago_go_for_a_state(void **state)
{
	struct ram_world *w = *state;
	struct image_name a;

	start(w, 3, MIDDLE, FRAME_BYTES);
	put_pages(w, 1, 96, false);
	ram_world_wait(w, 10 * SECOND);
	a = put_down(w, text(1), 20);
	assert_true(is(w, a));
	/* A frame for the image; its pages share frames with what is left. */
	assert_true(w->pools[DENSE].pool.in_ram >= 42 && w->pools[DENSE].pool.in_ram < 64);
	assert_int_equal(stats(w, DENSE)->ram_displaced, 96 - w->pools[DENSE].pool.in_ram);
	assert_int_equal(ram_world_below(w, DENSE, 0, 1, 42), 42);
}

static void a_state_that_was_used_longer_ago_goes_for_a_page(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b;

	start(w, 3, MIDDLE, FRAME_BYTES);
	a = put_down(w, text(1), 16);
	ram_world_wait(w, SECOND);
	b = put_down(w, text(2), 16);
	ram_world_wait(w, 10 * SECOND);
	put_pages(w, 1, 2, false);
	assert_false(is(w, a));
	assert_true(is(w, b));
	assert_int_equal(w->pools[DENSE].pool.in_ram, 2);
	assert_int_equal(stats(w, HYBRID)->ram_displaced, 1);
}

static void pages_that_rank_above_a_state_stay(void **state)
{
	struct ram_world *w = *state;
	struct image_name a;

	start(w, 3, MIDDLE, FRAME_BYTES);
	put_pages(w, 1, 96, true);
	ram_world_wait(w, 10 * SECOND);
	a = put_down(w, text(1), 4);
	assert_false(is(w, a));
	assert_int_equal(w->pools[DENSE].pool.in_ram, 96);
	assert_int_equal(stats(w, DENSE)->ram_displaced, 0);
	assert_int_equal(stats(w, HYBRID)->ram_refused, 1);
}

/* Of two frames of pages some rank below an agent's state; all else is interactive. */
static struct image_name come_after(struct ram_world *w, uint32_t below, struct image_name *there)
{
	const struct states_text important = {.which = 1, .interactive = true};

	start(w, 4, MIDDLE, FRAME_BYTES);
	put_pages(w, 1, below, false);
	put_pages(w, 2, 64 - below, true);
	*there = put_down(w, important, 20);
	ram_world_wait(w, 10 * SECOND);
	return put_down(w, text(2), 2);
}

static void too_few_pages_that_rank_below_a_state_stay(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b;

	b = come_after(w, 21, &a);
	assert_true(is(w, a));
	assert_false(is(w, b));
	assert_int_equal(w->pools[DENSE].pool.in_ram, 64);
	assert_int_equal(stats(w, DENSE)->ram_displaced, 0);
	assert_int_equal(stats(w, HYBRID)->ram_refused, 1);
}

static void as_many_pages_go_as_suffice(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b;

	/* Its image wants a frame: all pages, with its own two, are in two of them then. */
	b = come_after(w, 22, &a);
	assert_true(is(w, a) && is(w, b));
	assert_int_equal(w->pools[DENSE].pool.in_ram, 42);
	assert_int_equal(stats(w, DENSE)->ram_displaced, 22);
}

/* ---- images that are moved ---- */

/* Seven frames of images, every second one of which goes, and one of their pages: for a page of the
 * other pool four frames side by side are wanted. */
static void spread(struct ram_world *w, struct image_name a[7])
{
	start(w, 8, WIDE, FRAME_BYTES);
	for (uint32_t i = 0; i < 7; i++)
		a[i] = put_down(w, text(1 + i), 1);
	for (uint32_t i = 0; i < 7; i += 2)
		pool_give_up(&w->pools[HYBRID].pool, a[i].image);
	ram_world_check(w);
	assert_int_equal(frames_sums(w->arena->frames).slab_bytes, 4 * FRAME_BYTES);
}

static void assert_three_are_whole(struct ram_world *w, const struct image_name a[7])
{
	for (uint32_t i = 1; i < 7; i += 2) {
		const struct states_text t = text(1 + i);

		assert_true(is(w, a[i]));
		assert_int_equal(ram_states_reuse(w, HYBRID, &t, PAGE + 1), PAGE);
	}
	ram_world_check(w);
}

static void images_are_moved_so_that_a_page_fits(void **state)
{
	struct ram_world *w = *state;
	struct image_name a[7];

	spread(w, a);
	ram_world_retain(w, DENSE, 0, 1, 1, NULL);
	ram_world_send_down(w, DENSE, 1);
	assert_true(w->ram->n_plan > 0);
	for (uint32_t i = 0; i < 20 && w->pools[DENSE].pool.indexed; i++) {
		ram_world_check(w);
		ram_world_settle(w);
		ram_world_check(w);
		ram_world_send_down(w, DENSE, 1);
	}
	ram_world_settle(w);
	assert_int_equal(w->pools[DENSE].pool.in_ram, 1);
	assert_true(w->ram->relocated > 0);
	assert_int_equal(stats(w, HYBRID)->ram_displaced, 0);
	assert_three_are_whole(w, a);
}

static int moves_below_fail(struct ram_world *w, const struct device_job *j,
			    const struct device_move *m)
{
	(void)w;
	(void)j;
	return m->from == DEVICE_ARENA && m->to == DEVICE_ARENA ? -EIO : 0;
}

static void an_image_that_is_not_moved_stays_where_it_was(void **state)
{
	struct ram_world *w = *state;
	struct image_name a[7];

	spread(w, a);
	w->fault = moves_below_fail;
	ram_world_retain(w, DENSE, 0, 1, 1, NULL);
	ram_world_send_down(w, DENSE, 1);
	ram_world_settle(w);
	ram_world_check(w);
	assert_true(w->ram->relocations_failed > 0);
	assert_int_equal(w->ram->relocated, 0);
	w->fault = NULL;
	assert_three_are_whole(w, a);
}

static void an_image_that_is_moved_is_no_victim_and_goes_when_it_has_come(void **state)
{
	struct ram_world *w = *state;
	struct pool *p = &w->pools[HYBRID].pool;
	struct image_name a[7], moving = {.image = IMAGE_NONE};
	struct retain_rank rank;

	spread(w, a);
	ram_world_retain(w, DENSE, 0, 1, 1, NULL);
	ram_world_send_down(w, DENSE, 1);
	assert_true(w->ram->n_plan > 0);
	for (uint32_t i = 1; i < 7; i += 2) {
		if (p->images.image[a[i].image].moving)
			moving = a[i];
	}
	assert_int_not_equal(moving.image, IMAGE_NONE);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t next = image_next_in_ram(&p->images, UINT64_MAX, w->now_ns, 0, &rank);

		if (next == IMAGE_NONE)
			break;
		assert_int_equal(p->images.image[next].moving, 0);
		pool_give_up(p, next);
	}
	assert_true(is(w, moving));
	pool_give_up(p, moving.image);
	assert_false(is(w, moving));
	assert_int_equal(p->images.image[moving.image].state, IMAGE_DOOMED);
	ram_world_check(w);
	ram_world_settle(w);
	ram_world_check(w);
	assert_int_equal(p->images.in_ram, 0);
	assert_int_equal(p->in_ram, 0);
}

/* It is copied from where it was, which it does not leave then. */
static void an_image_that_is_claimed_while_it_is_moved_stays_where_it_was(void **state)
{
	struct ram_world *w = *state;
	struct pool *p = &w->pools[HYBRID].pool;
	struct image_name a[7];
	struct states_text t = {0};
	struct match_wish wish;
	struct opening *o;
	uint32_t *tokens;
	struct seq *s;

	spread(w, a);
	/* All have their pages on the device as well, so that nothing has to be copied first. */
	assert_three_are_whole(w, a);
	ram_world_retain(w, DENSE, 0, 1, 1, NULL);
	ram_world_send_down(w, DENSE, 1);
	assert_true(w->ram->n_plan > 0);
	for (uint32_t i = 1; i < 7; i += 2) {
		if (p->images.image[a[i].image].moving)
			t = text(1 + i);
	}
	tokens = states_tokens(&t, PAGE + 1);
	wish = states_wish(&t, tokens, PAGE + 1);
	o = opening_begin(p, &wish, PAGE + 1);
	assert_int_equal(ram_states_open_turn(w, HYBRID, &o, ALL, &s), POOL_WAIT);
	assert_true(o->copying && p->images.image[o->name.image].moving);
	ram_world_settle(w);
	ram_world_check(w);
	assert_int_equal(p->images.image[o->name.image].moving, 0);
	ram_states_claim_ends(w, HYBRID, &o, 0);
	assert_int_equal(ram_states_open_turn(w, HYBRID, &o, ALL, &s), 0);
	world_close(&s);
	assert_three_are_whole(w, a);
	free(tokens);
}

/* A state of large pages goes down where five frames are free, but no four side by side: what it
 * has taken when it has to wait for moves is given back, and so it is not being moved. */
static void what_a_state_has_taken_is_not_moved_before_it_is_used(void **state)
{
	struct ram_world *w = *state;
	const struct states_text t = text(99);
	struct ram_world_wish wish[] = {
	    {.page_bytes = MIDDLE, .pages = 16, .image_bytes = FRAME_BYTES, .slots = 8},
	    {.page_bytes = WIDE, .pages = 8, .image_bytes = FRAME_BYTES, .slots = 1}};
	struct image_name a[7], large;

	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 8 * FRAME_BYTES,
						     .n_pools = 2,
						     .pool = {wish[0], wish[1]}});
	for (uint32_t i = 0; i < 7; i++)
		a[i] = put_down(w, text(1 + i), 1);
	for (uint32_t i = 0; i < 5; i++)
		pool_give_up(&w->pools[0].pool, a[i].image);
	large = ram_states_retain(w, 1, &t, 2 * PAGE);
	assert_int_equal(pool_push_down(&w->pools[1].pool, large.image), POOL_WAIT);
	assert_true(w->ram->n_plan > 0);
	ram_world_check(w);
	assert_int_equal(w->pools[1].ram.used_bytes, 0);
	ram_states_push_down(w, 1, large);
	ram_world_check(w);
	assert_int_equal(w->pools[1].pool.indexed, 0);
	assert_int_equal(ram_states_reuse(w, 1, &t, 2 * PAGE + 1), 2 * PAGE);
	assert_true(is(w, a[5]) && is(w, a[6]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(pages_that_were_used_longer_ago_go_for_a_state),
	    TEST(a_state_that_was_used_longer_ago_goes_for_a_page),
	    TEST(pages_that_rank_above_a_state_stay),
	    TEST(too_few_pages_that_rank_below_a_state_stay),
	    TEST(as_many_pages_go_as_suffice),
	    TEST(images_are_moved_so_that_a_page_fits),
	    TEST(an_image_that_is_not_moved_stays_where_it_was),
	    TEST(an_image_that_is_moved_is_no_victim_and_goes_when_it_has_come),
	    TEST(an_image_that_is_claimed_while_it_is_moved_stays_where_it_was),
	    TEST(what_a_state_has_taken_is_not_moved_before_it_is_used),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
