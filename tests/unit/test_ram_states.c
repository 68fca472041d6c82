/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/ram.h with hybrid pools: images of retained states in the arena, who gives
 * up its place for a state, and by whom. One thread; nothing blocks.
 */

#include "tests/unit/ram_states.h"

#include <errno.h>

#include "daemon/state/pool_states.h"
#include "daemon/tier/record.h"

#define SMALL    (4 * KIB)
#define MIDDLE   (64 * KIB) /* 32 in a frame */
#define OF_PAGE  (MIDDLE + RAM_KNOWN_BYTES)
#define OF_IMAGE (FRAME_BYTES + RAM_KNOWN_BYTES)

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

/* Pages in one frame, an image in each of the others. */
static void start(struct ram_world *w, uint32_t images)
{
	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = (1 + images) * FRAME_BYTES,
						     .n_pools = 1,
						     .pool = {{.page_bytes = MIDDLE,
							       .pages = 128,
							       .image_bytes = FRAME_BYTES,
							       .slots = 4}}});
}

static struct states_text text(uint32_t which)
{
	return (struct states_text){.which = which};
}

static struct states_text interactive(uint32_t which)
{
	return (struct states_text){.which = which, .interactive = true};
}

static struct image_name put_down(struct ram_world *w, struct states_text t, uint32_t pages)
{
	struct image_name name = ram_states_put_down(w, 0, &t, pages * PAGE);

	ram_world_check(w);
	return name;
}

static bool is(const struct ram_world *w, struct image_name name)
{
	return ram_states_is(w, 0, name);
}

static const struct pool_stats *stats(const struct ram_world *w)
{
	return &w->pools[0].pool.stats;
}

/* ---- bytes and records ---- */

/* An image of two frames and a part of one. */
static void start_large(struct ram_world *w, uint32_t slots)
{
	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 8 * FRAME_BYTES,
						     .n_pools = 1,
						     .pool = {{.page_bytes = 256 * KIB,
							       .pages = 40,
							       .image_bytes = 4 * MIB + 320 * KIB,
							       .slots = slots}}});
}

static void a_state_comes_back_as_it_was(void **state)
{
	for (uint32_t slots = 0; slots < 2; slots++) {
		struct ram_world *w = *state;
		const struct states_text t = text(1);
		struct image_name a;

		start_large(w, slots);
		a = put_down(w, t, 3);
		assert_int_equal(w->pools[0].pool.indexed, 0);
		assert_int_equal(
		    frames_pieces(w->arena->frames, w->pools[0].pool.images.image[a.image].place),
		    3);
		assert_int_equal(w->ram->used_bytes, 3 * 256 * KIB + 4 * MIB + 320 * KIB);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(ram_states_reuse(w, 0, &t, 4 * PAGE), 3 * PAGE);
			ram_world_check(w);
			ram_states_push_down(w, 0, a);
			ram_world_check(w);
		}
		assert_int_equal(w->pools[0].ram.image_bytes, 4 * MIB + 320 * KIB);
		if (slots == 0)
			ram_world_deinit(w);
	}
}

/* ram_world_check compares the records with what has come. */
static void a_record_is_valid_once_its_bytes_are_there(void **state)
{
	struct ram_world *w = *state;
	const struct states_text t = text(1);
	struct ram_world_pool *p = &w->pools[0];
	struct image_name a;
	uint32_t jobs = 0, place;

	start_large(w, 1);
	a = ram_states_retain(w, 0, &t, 2 * PAGE + 5);
	assert_int_equal(pool_push_down(&p->pool, a.image), 0);
	place = p->pool.images.image[a.image].place;
	do {
		ram_world_check(w);
		assert_int_equal(record_state(arena_header(w->arena, place)),
				 p->pool.images.image[a.image].spilling ? RECORD_FILLING
									: RECORD_VALID);
		ram_world_kick(w);
		jobs++;
	} while (ram_world_copy(w));
	assert_true(jobs > 5); /* the image in windows of its own */
	assert_int_equal(p->pool.images.counts.spilled, 1);
	ram_world_check(w);
}

static void of_a_copy_that_fails_no_record_is_left(void **state)
{
	struct ram_world *w = *state;
	const struct states_text t = text(1);
	struct pool *p = &w->pools[0].pool;
	struct image_name a;
	struct seq *s;
	uint32_t image, place;

	start_large(w, 0);
	s = ram_states_open(w, 0, &t, PAGE + 3);
	ram_states_step(w, 0, s, PAGE + 3);
	image = ram_states_capture_begins(w, 0, s, IMAGE_CHECKPOINT);
	ram_world_check(w);
	place = p->images.image[image].place;
	assert_int_equal(record_state(arena_header(w->arena, place)), RECORD_FILLING);
	ram_states_capture_ends(w, 0, image, -EIO);
	ram_world_check(w);
	assert_int_equal(record_state(arena_header(w->arena, place)), RECORD_FREE);
	image = ram_states_capture_begins(w, 0, s, IMAGE_CHECKPOINT);
	ram_states_capture_ends(w, 0, image, 0);
	ram_world_check(w);
	world_close(&s);
	ram_world_deinit(w);

	start_large(w, 1);
	a = ram_states_retain(w, 0, &t, PAGE + 3);
	assert_int_equal(pool_push_down(p, a.image), 0);
	place = p->images.image[a.image].place;
	/* Before any copy; the failpoint is that of pages as well. */
	failpoint_arm(FAILPOINT_ram_spill, 0, 1000);
	ram_world_settle(w);
	failpoint_clear();
	ram_world_check(w);
	assert_int_equal(record_state(arena_header(w->arena, place)), RECORD_FREE);
	assert_int_equal(w->ram->used_bytes, 0);
}

struct seen {
	uint32_t images, pages;
	uint64_t position, extents_bytes;
};

static void look(void *context, uint64_t index, enum record_state state, int wrong,
		 const struct record *r, const struct record_parts *parts)
{
	struct seen *seen = context;

	(void)index;
	assert_int_equal(wrong, 0);
	assert_int_equal(state, RECORD_VALID);
	if (r->kind == RECORD_PAGE) {
		seen->pages++;
		return;
	}
	assert_int_equal(r->kind, RECORD_IMAGE);
	seen->images++;
	seen->position = r->position;
	for (uint32_t i = 0; i < r->n_extents; i++)
		seen->extents_bytes += parts->extents[i].bytes;
}

static void a_scan_finds_the_images(void **state)
{
	struct ram_world *w = *state;
	struct seen seen = {0};
	struct image_name a;

	start_large(w, 1);
	a = put_down(w, text(1), 3);
	assert_int_equal(record_scan(w->arena->headers, w->arena->most_objects, look, &seen), 4);
	assert_int_equal(seen.images, 1);
	assert_int_equal(seen.pages, 3);
	assert_int_equal(seen.position, 3 * PAGE);
	assert_int_equal(seen.extents_bytes, 4 * MIB + 320 * KIB);
	pool_give_up(&w->pools[0].pool, a.image);
	assert_int_equal(record_scan(w->arena->headers, w->arena->most_objects, look, &seen), 0);
}

static void two_states_take_the_bytes_of_one_and_their_tails(void **state)
{
	struct ram_world *w = *state;
	const uint32_t shared = 40000, pages = shared / PAGE;
	const struct states_text first = {.which = 1, .shared = shared};
	const struct states_text second = {.which = 2, .shared = shared};
	const uint64_t image_bytes = 1 * MIB;
	struct pool *p = &w->pools[0].pool;
	struct image_name root, a, b;
	uint64_t bytes;

	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 8 * FRAME_BYTES,
						     .n_pools = 1,
						     .pool = {{.page_bytes = SMALL,
							       .pages = pages + 16,
							       .image_bytes = image_bytes,
							       .slots = 3}}});
	root = ram_states_retain(w, 0, &first, shared);
	a = ram_states_retain(w, 0, &first, shared + 2 * PAGE + 3);
	b = ram_states_retain(w, 0, &second, shared + PAGE);
	pool_give_up(p, root.image);
	assert_int_equal(p->indexed, pages + 3 + 1);
	ram_states_push_down(w, 0, a);
	bytes = image_bytes + (pages + 3) * SMALL;
	assert_int_equal(w->ram->used_bytes, bytes);
	assert_int_equal(frames_sums(w->arena->frames).used_bytes, bytes);
	assert_int_equal(w->ram->shares[0].used_bytes, bytes + (pages + 4) * RAM_KNOWN_BYTES);
	ram_states_push_down(w, 0, b);
	bytes += image_bytes + SMALL;
	assert_int_equal(w->ram->used_bytes, bytes);
	assert_int_equal(frames_sums(w->arena->frames).used_bytes, bytes);
	assert_int_equal(w->ram->shares[0].used_bytes, bytes + (pages + 6) * RAM_KNOWN_BYTES);
	assert_int_equal(p->indexed, 0);
	ram_world_check(w);
	/* Up again: once on the device, too. */
	assert_int_equal(ram_states_reuse(w, 0, &first, shared + 3 * PAGE), shared + 2 * PAGE + 3);
	assert_int_equal(ram_states_reuse(w, 0, &second, shared + 3 * PAGE), shared + PAGE);
	assert_int_equal(p->indexed, pages + 3 + 1);
	assert_int_equal(p->stats.restores, pages + 3 + 1);
	assert_int_equal(w->ram->used_bytes, bytes);
	ram_world_check(w);
	pool_give_up(p, a.image);
	assert_int_equal(w->ram->used_bytes, image_bytes + (pages + 1) * SMALL);
	assert_int_equal(p->indexed, pages + 1);
	pool_give_up(p, b.image);
	ram_world_check(w);
	assert_int_equal(w->ram->used_bytes + w->ram->shares[0].used_bytes + p->indexed, 0);
	assert_int_equal(frames_sums(w->arena->frames).slab_bytes, 0);
	assert_int_equal(p->prefix.used, 0);
}

/* ---- by rank ---- */

static void the_least_recently_used_goes_first(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b, c, d;

	start(w, 3);
	a = put_down(w, text(1), 2);
	b = put_down(w, text(2), 2);
	c = put_down(w, text(3), 2);
	/* Looking does not make it young. */
	w->now_ns += SECOND;
	d = put_down(w, text(4), 2);
	assert_false(is(w, a));
	assert_true(is(w, b) && is(w, c) && is(w, d));
	assert_int_equal(stats(w)->ram_displaced, 1);
	assert_int_equal(stats(w)->ram_refused, 0);
	assert_int_equal(w->ram->used_bytes, 3 * (FRAME_BYTES + 2 * MIDDLE));
}

static struct image_name used_again(struct ram_world *w, struct states_text t, uint32_t pages)
{
	struct image_name name = put_down(w, t, pages);

	assert_int_equal(ram_states_reuse(w, 0, &t, pages * PAGE + 1), pages * PAGE);
	ram_states_push_down(w, 0, name);
	return name;
}

static void what_came_back_stays_longer_and_what_is_interactive_longest(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b, c, d, e, f;

	start(w, 3);
	a = used_again(w, text(1), 2);
	b = put_down(w, interactive(2), 2);
	c = put_down(w, text(3), 2);
	d = put_down(w, text(4), 2);
	assert_false(is(w, c)); /* on probation, though the youngest */
	assert_true(is(w, a) && is(w, b) && is(w, d));
	e = put_down(w, interactive(5), 2);
	assert_false(is(w, d));
	f = put_down(w, interactive(6), 2);
	assert_false(is(w, a)); /* an agent's */
	assert_true(is(w, b) && is(w, e) && is(w, f));
	/* An agent's ranks below all of them. */
	c = put_down(w, text(7), 2);
	assert_false(is(w, c));
	assert_int_equal(stats(w)->ram_refused, 1);
	assert_true(is(w, b) && is(w, e) && is(w, f));
	/* An interactive one on probation goes for one that is not used more often. */
	c = put_down(w, interactive(8), 2);
	assert_true(is(w, c) && is(w, e) && is(w, f));
	assert_false(is(w, b));
}

static void what_is_idle_for_long_ranks_as_an_agents_on_probation(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b, c, d;

	start(w, 3);
	a = used_again(w, interactive(1), 2);
	b = used_again(w, text(2), 2);
	ram_world_wait(w, 200 * SECOND);
	c = put_down(w, interactive(3), 2);
	ram_world_wait(w, 101 * SECOND);
	d = put_down(w, text(4), 2);
	assert_false(is(w, a)); /* though it was protected */
	assert_true(is(w, b) && is(w, c) && is(w, d));
	ram_world_wait(w, 200 * SECOND);
	a = put_down(w, text(5), 2);
	assert_false(is(w, c));
	assert_true(is(w, b) && is(w, d) && is(w, a));
}

static void what_ranks_beside_it_does_not_go(void **state)
{
	struct ram_world *w = *state;
	struct image_name a[3], late;

	start(w, 3);
	late = ram_states_retain(w, 0, &(struct states_text){.which = 9}, 2 * PAGE);
	for (uint32_t i = 0; i < 3; i++)
		a[i] = put_down(w, text(1 + i), 2);
	ram_states_push_down(w, 0, late);
	ram_world_check(w);
	assert_false(is(w, late));
	assert_true(is(w, a[0]) && is(w, a[1]) && is(w, a[2]));
	assert_int_equal(stats(w)->ram_refused, 1);
	assert_int_equal(stats(w)->ram_displaced, 0);
}

static void a_state_that_is_copied_from_is_not_chosen(void **state)
{
	struct ram_world *w = *state;
	const struct states_text t = text(1);
	uint32_t *tokens = states_tokens(&t, 3 * PAGE);
	struct match_wish wish = world_wish(tokens, 3 * PAGE);
	struct opening *o;
	struct image_name a, b, c, d;
	struct seq *s;

	start(w, 3);
	a = put_down(w, t, 2);
	b = put_down(w, text(2), 2);
	c = put_down(w, text(3), 2);
	/* Two others are touched after the open. */
	o = opening_begin(&w->pools[0].pool, &wish, 3 * PAGE);
	while (!o->copying) {
		ram_states_open_turn(w, 0, &o, ALL, &s);
		ram_world_settle(w);
	}
	assert_int_equal(ram_states_reuse(w, 0, &(struct states_text){.which = 2}, 3 * PAGE),
			 2 * PAGE);
	assert_int_equal(ram_states_reuse(w, 0, &(struct states_text){.which = 3}, 3 * PAGE),
			 2 * PAGE);
	d = put_down(w, text(4), 2);
	assert_false(is(w, d)); /* the others are protected */
	assert_true(is(w, a));
	ram_states_claim_ends(w, 0, &o, 0);
	assert_int_equal(ram_states_open_turn(w, 0, &o, ALL, &s), 0);
	world_close(&s);
	assert_true(is(w, a) && is(w, b) && is(w, c));
	ram_world_check(w);
	free(tokens);
}

/* ---- planned first ---- */

/* One of an agent's and two interactive ones are there; one comes that needs two frames more. */
static struct image_name come_too_large(struct ram_world *w, struct image_name there[3])
{
	start(w, 3);
	there[0] = put_down(w, text(1), 2);
	there[1] = put_down(w, interactive(2), 2);
	there[2] = put_down(w, interactive(3), 2);
	return put_down(w, text(4), 40);
}

static void nothing_goes_for_what_does_not_fit_after_all(void **state)
{
	struct ram_world *w = *state;
	struct image_name a[3], b;

	b = come_too_large(w, a);
	assert_false(is(w, b));
	assert_true(is(w, a[0]) && is(w, a[1]) && is(w, a[2]));
	assert_int_equal(stats(w)->ram_displaced, 0);
	assert_int_equal(stats(w)->ram_refused, 1);
	/* With another one that may go it fits. */
	ram_world_wait(w, 301 * SECOND);
	b = put_down(w, text(4), 40);
	assert_true(is(w, b) && is(w, a[2]));
	assert_false(is(w, a[0]) || is(w, a[1]));
}

static void switched_off_it_goes_in_vain(void **state)
{
	struct ram_world *w = *state;
	struct image_name a[3], b;

	protection_off[PROTECTION_room_is_planned_first] = true;
	b = come_too_large(w, a);
	protection_off[PROTECTION_room_is_planned_first] = false;
	assert_false(is(w, b) || is(w, a[0]));
}

static void as_few_go_as_suffice(void **state)
{
	struct ram_world *w = *state;
	struct image_name a[4], b;

	start(w, 4);
	for (uint32_t i = 0; i < 4; i++)
		a[i] = put_down(w, text(1 + i), 2);
	b = put_down(w, text(5), 26 + 32);
	assert_true(is(w, b) && is(w, a[2]) && is(w, a[3]));
	assert_false(is(w, a[0]) || is(w, a[1]));
	assert_int_equal(stats(w)->ram_displaced, 2);
}

/* Two of them free nothing of what they share, unless both go. */
static void what_several_share_goes_with_the_last_one(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b, c;

	start(w, 2);
	a = put_down(w, (struct states_text){.which = 1, .shared = 30 * PAGE}, 31);
	b = put_down(w, (struct states_text){.which = 2, .shared = 30 * PAGE}, 31);
	assert_int_equal(w->ram->used_bytes, 2 * FRAME_BYTES + 32 * MIDDLE);
	c = put_down(w, text(3), 4);
	assert_true(is(w, c));
	assert_false(is(w, a) || is(w, b));
	assert_int_equal(w->ram->used_bytes, FRAME_BYTES + 4 * MIDDLE);
}

/* ---- by namespace ---- */

static void start_with_rules(struct ram_world *w, uint64_t quota, uint64_t guaranteed)
{
	ram_world_init(w, &(struct ram_world_limits){.arena_bytes = 4 * FRAME_BYTES,
						     .quota = {0, quota},
						     .guaranteed = {0, guaranteed},
						     .n_pools = 1,
						     .pool = {{.page_bytes = MIDDLE,
							       .pages = 128,
							       .image_bytes = FRAME_BYTES,
							       .slots = 4}}});
}

static struct states_text theirs(uint32_t which)
{
	return (struct states_text){.which = which, .name_space = 1};
}

static void a_namespace_over_its_quota_gives_up_its_own(void **state)
{
	struct ram_world *w = *state;
	struct image_name ours, a, b, c;

	start_with_rules(w, 2 * OF_IMAGE + 6 * OF_PAGE, 0);
	ours = put_down(w, text(1), 2);
	a = put_down(w, theirs(2), 2);
	b = put_down(w, theirs(3), 2);
	c = put_down(w, theirs(4), 2);
	/* There would have been room for it. */
	assert_false(is(w, a));
	assert_true(is(w, ours) && is(w, b) && is(w, c));
	assert_int_equal(w->ram->shares[1].used_bytes, 2 * OF_IMAGE + 4 * OF_PAGE);
	/* One that is more than the quota alone is not taken, and nothing goes for it. */
	a = put_down(w, theirs(5), 80);
	assert_false(is(w, a));
	assert_true(is(w, ours) && is(w, b) && is(w, c));
	assert_int_equal(stats(w)->ram_refused, 1);
}

static void what_a_namespace_is_sure_of_stays(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b, c, d;

	start_with_rules(w, 0, 2 * OF_IMAGE + 4 * OF_PAGE);
	a = put_down(w, theirs(1), 2);
	b = put_down(w, theirs(2), 2);
	c = put_down(w, interactive(3), 2);
	d = put_down(w, interactive(4), 2);
	assert_true(is(w, a) && is(w, b) && is(w, d));
	assert_false(is(w, c));
	/* What it has more than that goes first, though it is the youngest. */
	pool_give_up(&w->pools[0].pool, d.image);
	d = put_down(w, (struct states_text){.which = 5, .name_space = 1, .interactive = true}, 2);
	c = put_down(w, text(6), 2);
	assert_false(is(w, a));
	assert_true(is(w, b) && is(w, c) && is(w, d));
}

/* Two would have to go, of which the second is of those that it is sure of. */
static void of_what_a_namespace_is_sure_of_nothing_is_counted_on(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b, c, d;

	start_with_rules(w, 0, 2 * OF_IMAGE + 4 * OF_PAGE);
	a = put_down(w, theirs(1), 2);
	b = put_down(w, theirs(2), 2);
	c = put_down(w, theirs(3), 2);
	d = put_down(w, interactive(4), 40);
	assert_false(is(w, d));
	assert_true(is(w, a) && is(w, b) && is(w, c));
	assert_int_equal(stats(w)->ram_refused, 1);
	d = put_down(w, interactive(4), 20);
	assert_false(is(w, a));
	assert_true(is(w, b) && is(w, c) && is(w, d));
}

static void what_goes_is_charged_to_who_had_it(void **state)
{
	struct ram_world *w = *state;
	struct image_name a, b;

	start_with_rules(w, 0, 0);
	a = put_down(w, theirs(1), 3);
	b = put_down(w, text(2), 1);
	assert_int_equal(w->ram->shares[1].used_bytes, OF_IMAGE + 3 * OF_PAGE);
	assert_int_equal(w->ram->shares[0].used_bytes, OF_IMAGE + OF_PAGE);
	pool_give_up(&w->pools[0].pool, a.image);
	assert_int_equal(w->ram->shares[1].used_bytes, 0);
	pool_give_up(&w->pools[0].pool, b.image);
	assert_int_equal(w->ram->shares[0].used_bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_state_comes_back_as_it_was),
	    TEST(a_record_is_valid_once_its_bytes_are_there),
	    TEST(of_a_copy_that_fails_no_record_is_left),
	    TEST(a_scan_finds_the_images),
	    TEST(two_states_take_the_bytes_of_one_and_their_tails),
	    TEST(the_least_recently_used_goes_first),
	    TEST(what_came_back_stays_longer_and_what_is_interactive_longest),
	    TEST(what_is_idle_for_long_ranks_as_an_agents_on_probation),
	    TEST(what_ranks_beside_it_does_not_go),
	    TEST(a_state_that_is_copied_from_is_not_chosen),
	    TEST(nothing_goes_for_what_does_not_fit_after_all),
	    TEST(switched_off_it_goes_in_vain),
	    TEST(as_few_go_as_suffice),
	    TEST(what_several_share_goes_with_the_last_one),
	    TEST(a_namespace_over_its_quota_gives_up_its_own),
	    TEST(what_a_namespace_is_sure_of_stays),
	    TEST(of_what_a_namespace_is_sure_of_nothing_is_counted_on),
	    TEST(what_goes_is_charged_to_who_had_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
