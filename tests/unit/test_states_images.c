/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/match.h: states of prompts with images, in either tier. Random ones: what
 * is found is what a plain search among all that was captured finds. And hostile ones: how much a
 * search for a state looks at has a bound. One thread; nothing blocks.
 *
 * KVHOST_TEST_SEED=N starts elsewhere.
 */

#include "tests/unit/seeds.h"
#include "tests/unit/states_world.h"

#define IMAGE 3u /* units */

static struct states world;

static int setup(void **state)
{
	states_init(&world, &(struct states_limits){
				.pages = 1024, .slots = 6, .units = 512, .image_units = IMAGE});
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	states_deinit(*state);
	return 0;
}

static void put_down(struct states *w, uint32_t image)
{
	states_push_down(w, image);
	states_settle(w);
	world_clean(&w->pool);
}

/* ---- random prompts ---- */

#define PROMPT 8u /* pages, at most */
#define STATES 64u
#define ROUNDS 3000u

struct prompt {
	uint32_t tokens[PROMPT * PAGE];
	uint32_t n;
	struct key_image images[PROMPT * PAGE];
	uint32_t n_images;
};

struct state { /* that was captured once */
	struct image_name name;
	struct prompt of;
	uint32_t tokens;
};

static struct prompt layouts[2]; /* two ways to lie for images */
static struct state states[STATES];
static uint32_t n_states, n_found, n_below, n_floor, n_partial, n_between;

static void lay_images(struct prompt *l)
{
	uint32_t at = below(PAGE);

	l->n_images = 0;
	while (at < PROMPT * PAGE) {
		struct key_image *i = &l->images[l->n_images++];

		*i = (struct key_image){.start = at, .length = 1 + below(below(3) ? 4 : 2 * PAGE)};
		i->digest[0] = (uint8_t)below(2);
		at += i->length + below(below(2) ? 3 : PAGE);
	}
}

/* Many have the beginning of their text, and of their images, in common. */
static void make_prompt(struct prompt *t)
{
	uint32_t cut = below(2) ? 0 : below(PROMPT * PAGE);

	*t = (struct prompt){.n = 2 + below(PROMPT * PAGE - 1)};
	for (uint32_t i = 0; i < t->n; i += PAGE) {
		uint32_t letter = below(8) == 0;

		for (uint32_t k = 0; k < PAGE && i + k < t->n; k++)
			t->tokens[i + k] = 1000 * letter + k;
	}
	for (uint32_t l = 0; l < 2; l++) {
		for (uint32_t i = 0; i < layouts[l].n_images; i++) {
			struct key_image it = layouts[l].images[i];

			if (it.start + it.length <= t->n &&
			    (l ? it.start >= cut : it.start + it.length <= cut))
				t->images[t->n_images++] = it;
		}
	}
}

static struct match_wish wish_of(const struct prompt *t)
{
	struct match_wish wish = world_wish(t->tokens, t->n);

	wish.images = t->n_images ? t->images : NULL;
	wish.n_images = t->n_images;
	return wish;
}

static bool is_inside(const struct prompt *t, uint32_t tokens)
{
	for (uint32_t i = 0; i < t->n_images; i++) {
		if (t->images[i].start < tokens &&
		    tokens < t->images[i].start + t->images[i].length)
			return true;
	}
	return false;
}

static bool begins_with(const struct prompt *t, const struct state *s)
{
	uint32_t n = 0;

	if (s->tokens > t->n || memcmp(t->tokens, s->of.tokens, s->tokens * sizeof(*t->tokens)))
		return false;
	while (n < s->of.n_images && s->of.images[n].start < s->tokens)
		n++;
	return n <= t->n_images && !memcmp(t->images, s->of.images, n * sizeof(*t->images)) &&
	       (n == t->n_images || t->images[n].start >= s->tokens);
}

/* The longest state of all, and of those on the device. */
static void search(const struct prompt *t, uint32_t most, uint32_t *all, uint32_t *device)
{
	*all = *device = 0;
	for (uint32_t i = 0; i < n_states; i++) {
		const struct state *s = &states[i];
		uint32_t image = image_find(&world.pool.images, s->name);

		if (image == IMAGE_NONE || s->tokens > most || is_inside(t, s->tokens) ||
		    !begins_with(t, s))
			continue;
		assert_int_equal(world.pool.images.image[image].state, IMAGE_VALID);
		if (s->tokens > *all)
			*all = s->tokens;
		if (world.pool.images.image[image].on_device && s->tokens > *device)
			*device = s->tokens;
	}
}

static void look_up(uint32_t floor)
{
	uint32_t path[PROMPT + 1], budget = ALL, most, all, device;
	struct prompt t;
	struct match_wish wish;
	struct match m;

	make_prompt(&t);
	wish = wish_of(&t);
	wish.no_floor = below(4) == 0;
	if (below(3) == 0)
		wish.max_cached_tokens = below(t.n);
	most = wish.max_cached_tokens < t.n - 1 ? wish.max_cached_tokens : t.n - 1;
	while (is_inside(&t, most))
		most--;
	search(&t, most, &all, &device);
	n_below += all > device;
	n_found += all > 0;
	n_partial += all % PAGE > 0;
	if (all - device < floor && !wish.no_floor) {
		n_floor += all > device;
		all = device;
	}
	match_begin(&m, &world.pool, &wish, path, 0);
	assert_int_equal(match_turn(&m, &budget), 0);
	assert_int_equal(match_tokens(&m), all);
	n_between += m.known_tokens > all + PAGE;
}

/* A page with images has no place in the index if these have none: then there is no state. */
static void capture(void)
{
	struct state *made = &states[n_states % STATES];
	struct match_wish wish;
	struct seq *s;
	uint32_t image;

	if (n_states == STATES)
		return;
	make_prompt(&made->of);
	wish = wish_of(&made->of);
	s = states_open_wish(&world, &wish, made->of.n);
	states_step(&world, s, s->committed + 1 + below(made->of.n - s->committed));
	s->follows.image = IMAGE_NONE;
	image = states_capture_begins(&world, s, IMAGE_CHECKPOINT, false, NULL);
	if (image != IMAGE_NONE) {
		states_capture_ends(&world, image, 0);
		made->name = states_name(&world, image);
		made->tokens = s->committed;
		n_states++;
	}
	world_close(&s);
}

static void forget_gone(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_states; i++) {
		if (image_find(&world.pool.images, states[i].name) != IMAGE_NONE)
			states[n++] = states[i];
	}
	n_states = n;
}

static void play(uint64_t first)
{
	uint32_t floor = first % 2 ? PAGE : 0;

	seed = first;
	n_states = 0;
	states_deinit(&world);
	states_init(&world, &(struct states_limits){.pages = 256,
						    .slots = 6,
						    .units = 120,
						    .image_units = IMAGE,
						    .floor_tokens = floor});
	lay_images(&layouts[0]);
	lay_images(&layouts[1]);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t what = below(8);

		if (what == 0) {
			capture();
		} else if (what == 1 && n_states) {
			uint32_t image = states[below(n_states)].name.image;

			if (world.pool.images.image[image].on_device)
				put_down(&world, image);
		} else if (what > 1) {
			look_up(floor);
		}
		states_settle(&world);
		states_check(&world);
		forget_gone();
	}
}

static void what_is_found_is_what_a_plain_search_finds(void **state)
{
	(void)state;
	play_seeds(play, 4);
	assert_true(n_found > 1000);
	assert_true(n_below > 100);
	assert_true(n_floor > 20);
	assert_true(n_partial > 500);
	assert_true(n_between > 500);
}

/* ---- hostile prompts ---- */

#define KNOWN 256u  /* pages */
#define MANY  4096u /* images, behind them */
#define OTHER 12u

static struct key_image many[MANY];

static uint32_t find(struct states *w, uint32_t *tokens)
{
	struct match_wish wish = world_wish(tokens, KNOWN * PAGE + 2 * MANY);
	uint32_t *path = malloc((match_room(&w->pool, &wish) + 1) * sizeof(*path));
	uint32_t budget = ALL;
	struct match m;

	wish.images = many;
	wish.n_images = MANY;
	match_work = (struct match_work){0};
	match_begin(&m, &w->pool, &wish, path, 0);
	assert_int_equal(match_turn(&m, &budget), 0);
	assert_int_equal(m.known_tokens, KNOWN * PAGE);
	free(path);
	return match_tokens(&m);
}

static void a_search_looks_once_at_images_and_at_pages_with_states_alone(void **state)
{
	const struct states_text text = {.which = OTHER + 1};
	struct states *w = *state;
	uint32_t n = KNOWN * PAGE + 2 * MANY;
	uint32_t *tokens = states_tokens(&text, n);
	struct seq *s = states_open(w, &text, KNOWN * PAGE + 1);

	for (uint32_t i = 0; i < MANY; i++)
		many[i] = (struct key_image){.start = KNOWN * PAGE + 2 * i, .length = 1};
	states_step(w, s, KNOWN * PAGE);
	assert_int_equal(find(w, tokens), 0);
	assert_int_equal(match_work.images, 0);
	assert_int_equal(match_work.partials, 0);

	/* Parts of pages, but not of this text. */
	for (uint32_t i = 1; i <= OTHER; i++) {
		uint32_t *other = states_tokens(&text, n), at = 20 * i * PAGE;
		struct match_wish wish = world_wish(other, at + 6);
		struct seq *o;

		memset(other + at, 0xee, PAGE * sizeof(*other));
		o = states_open_wish(w, &wish, at + 6);
		states_step(w, o, at + 5);
		put_down(w, states_capture(w, o));
		world_close(&o);
		free(other);
	}
	assert_int_equal(find(w, tokens), 0);
	assert_int_equal(match_work.partials, OTHER);
	assert_true(match_work.images <= 2 * (MANY + OTHER));

	/* One in KV-RAM: the search goes on from there for one on the device. */
	put_down(w, states_retain(w, &text, PAGE + 3));
	assert_int_equal(find(w, tokens), PAGE + 3);
	assert_int_equal(match_work.partials, OTHER + 2);
	assert_true(match_work.images <= 2 * (MANY + OTHER + 1));
	world_close(&s);
	free(tokens);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_is_found_is_what_a_plain_search_finds),
	    TEST(a_search_looks_once_at_images_and_at_pages_with_states_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
