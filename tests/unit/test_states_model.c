/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/pool_states.h against a plain model: a list of states, each with the tiers
 * that it lives in; what a page is, is a string. The model says beforehand what each operation
 * does, copies that fail included: which state is found, which ones go down or for nowhere, where a
 * new one goes; in either order, the learned one with all that it counts. After each operation,
 * when all copies have ended, both are compared. One thread; nothing blocks.
 *
 * KVHOST_TEST_SEED=N starts elsewhere.
 */

#include "tests/unit/seeds.h"
#include "tests/unit/states_model.h"
#include "tests/unit/states_world.h"

#include <errno.h>

#define OPERATIONS 12000u

static struct states world;
static bool faults;
static uint64_t n_fails, n_refused, n_displaced, n_hits[2];

static bool fails(void)
{
	bool r = faults && below(8) == 0;

	n_fails += r;
	return r;
}

/* ---- what it does ---- */

static struct retain_rank rank(const struct state *s)
{
	bool idle = s->interactive && model.now_ns - s->touched_ns > 300 * SECOND;

	return (struct retain_rank){.interactive = s->interactive && !idle,
				    .index =
					wonts.on ? wont_index(&s->wont) : s->is_protected && !idle,
				    .tick = s->touched};
}

/* For nowhere. */
static void leave(struct state *s)
{
	wont_left(&s->text, &s->wont, s->prefix);
	*s = (struct state){.is = false};
}

static void touch(struct state *s, bool interactive)
{
	s->touched = ++model.clock;
	s->touched_ns = model.now_ns;
	s->interactive |= interactive;
	s->tried = false;
}

/* Room for so many pages and an image beside what KV-RAM has: what ranks below gives it up, or
 * nothing does. `down`: the newcomer has pages there already, which stay. */
static bool plan(const struct state *newcomer, uint32_t pages, bool image, bool down)
{
	struct model trial = model;
	uint32_t wanted = pages + (image ? IMAGE : 0), displaced = 0;
	struct set there = set_of(false, &model);
	uint32_t victims[STATES];

	for (;;) {
		struct state *victim = NULL;
		uint32_t used = units_of(&trial);
		struct set left = set_of(false, &trial);

		for (uint32_t i = 0; down && i < pages_of(&newcomer->text); i++) {
			struct page_name p = name_of(&newcomer->text, i);

			used += has(&there, p) && !has(&left, p);
		}
		if (UNITS - used >= wanted)
			break;
		for (uint32_t i = 0; i < STATES; i++) {
			struct state *it = &trial.states[i];

			if (it->is && it->place && &model.states[i] != newcomer &&
			    (!victim || retain_ranks_below(rank(it), rank(victim))))
				victim = it;
		}
		if (!victim || !retain_ranks_below(rank(victim), rank(newcomer)))
			return false;
		victims[displaced++] = (uint32_t)(victim - trial.states);
		*victim = (struct state){.is = false};
	}
	for (uint32_t i = 0; i < displaced; i++)
		leave(&model.states[victims[i]]);
	n_displaced += displaced;
	return true;
}

/* How the copies of a state that goes down end: `first`: that of its image ends before the others.
 */
static bool spill_fails, spill_first;

static void stay(struct state *s, bool pages_are_here)
{
	s->place = false;
	s->ram = false;
	if (s->tried || !pages_are_here) {
		leave(s);
		return;
	}
	s->tried = true;
	s->device = true;
}

static void push_down(struct state *s)
{
	uint32_t at = (uint32_t)(s - model.states);
	struct set there = set_of(false, &model), here;
	bool spills = s->slot && !s->ram;
	/* Those that have no copy below wait for it, and what they stand on waits for them. */
	bool waits = missing(&there, &s->text) > 0;

	if (!s->ram && !plan(s, missing(&there, &s->text), !s->place, true)) {
		n_refused++;
		model.refused++;
		leave(s);
		return;
	}
	s = &model.states[at];
	s->ram = true;
	s->place = true;
	s->device = false;
	if (spills && spill_fails) {
		here = set_of(true, &model);
		stay(s, (spill_first && waits) || missing(&here, &s->text) == 0);
	} else if (spills) {
		s->slot = false;
	}
}

/* On the device, of two of a kind. */
static bool leaves_before(const struct state *a, const struct state *b)
{
	double one, other;

	if (!wonts.on)
		return a->touched < b->touched;
	one = wont_index(&a->wont);
	other = wont_index(&b->wont);
	return one < other || (one <= other && a->touched < b->touched);
}

/* The next to leave the device, or NULL. */
static struct state *next_to_leave(bool slotted)
{
	struct state *best = NULL;

	for (uint32_t i = 0; i < STATES; i++) {
		struct state *it = &model.states[i];

		if (!it->is || !it->device || (slotted && !it->slot))
			continue;
		if (!best || it->prefix < best->prefix ||
		    (it->prefix == best->prefix && leaves_before(it, best)))
			best = it;
	}
	return best;
}

/* ---- the pool does it, and its copies end as the model has it ---- */

static void end_copies(void)
{
	struct states *w = &world;

	for (bool more = true; more;) {
		more = states_spills(w) || states_copies(&w->down) || states_copies(&w->up);
		if (states_spills(w) && spill_fails && spill_first)
			states_spill_ends(w, -EIO);
		while (states_copies(&w->down))
			states_down_ends(w, 0);
		while (states_copies(&w->up))
			states_up_ends(w, 0);
		if (states_spills(w))
			states_spill_ends(w, spill_fails ? -EIO : 0);
	}
}

static void compare(void)
{
	const struct images *images = &world.pool.images;
	uint32_t n = 0, valid = 0;

	states_check(&world);
	for (uint32_t i = 0; i < STATES; i++) {
		const struct state *s = &model.states[i];
		const struct image *it = &images->image[s->name.image];
		char expected[8];

		if (!s->is)
			continue;
		n++;
		snprintf(expected, sizeof(expected), "%s%s%s%s", s->device ? "D" : "",
			 s->ram ? "R" : "", s->slot ? "s" : "", s->place ? "p" : "");
		assert_string_equal(states_where(&world, s->name), expected);
		assert_int_equal(it->tokens, s->text.tokens);
		assert_int_equal(it->is_protected, s->is_protected);
		assert_int_equal(it->interactive, s->interactive);
	}
	for (uint32_t i = 0; i < images->n_images; i++)
		valid += images->image[i].state == IMAGE_VALID;
	assert_int_equal(valid, n);
	assert_int_equal(world.used, units_of(&model));
	assert_int_equal(world.pool.indexed, set_of(true, &model).n);
	assert_int_equal(pages_free(&world.pool.pages), free_pages());
	assert_int_equal(images->slots_free, SLOTS - slots_used());
	assert_int_equal(world.pool.stats.ram_refused, model.refused);
	assert_int_equal(world.plans_broken, 0);
	if (wonts.on)
		count_waiting();
	wonts_compare(images);
}

/* One state after another, so that each has its own copies. */
static void make_room(uint32_t n)
{
	while (free_pages() < n) {
		struct state *s = next_to_leave(false);

		assert_non_null(s);
		spill_fails = fails();
		spill_first = below(2);
		assert_int_equal(pool_push_down(&world.pool, s->name.image), 0);
		push_down(s);
		end_copies();
		world_clean(&world.pool);
		compare();
	}
	spill_fails = false;
	world_clean(&world.pool);
}

/* ---- operations ---- */

/* The state that an open finds, of at most so many tokens. */
static struct state *match(const struct text *t, uint32_t most)
{
	struct state *best = NULL, *here = NULL;

	for (uint32_t i = 0; i < STATES; i++) {
		struct state *it = &model.states[i];

		if (!it->is || it->text.tokens > most || !begins_with(t, &it->text))
			continue;
		if (!best || it->text.tokens > best->text.tokens)
			best = it;
		if (it->device && (!here || it->text.tokens > here->text.tokens))
			here = it;
	}
	if (best && !best->device &&
	    best->text.tokens - (here ? here->text.tokens : 0) < model.floor_tokens)
		return here;
	return best;
}

/* Until the sequence has what the model says: how many tokens. */
static struct seq *open_text(const struct text *t, bool interactive)
{
	uint32_t *tokens = tokens_of(t);
	struct match_wish wish = world_wish(tokens, t->tokens);
	struct opening *o;
	struct seq *s = NULL;
	struct state *found;
	uint32_t most = ALL;

	if (wonts.tick + 1 >= wonts.refresh_at) {
		count_waiting();
		reuse_refresh(&wonts.table);
		wonts.refresh_at += REUSE_REFRESH;
	}
	wonts.tick++;
	wish.name_space = t->name_space;
	wish.interactive = interactive;
	o = states_open_begins(&world, &wish, t->tokens);
	found = match(t, most);
	wonts_tell(t, found ? &found->wont : NULL, found && found->prefix,
		   found ? found->text.tokens : 0);
	for (; found; found = match(t, most)) {
		bool from_place = !found->slot, bad = from_place && fails();

		for (uint32_t turn = 0; !o->copying; turn++) {
			assert_true(turn < 100);
			assert_int_not_equal(states_open_turn(&world, &o, 1 + below(5), &s), 0);
			end_copies();
		}
		assert_int_equal(o->name.id, found->name.id);
		n_hits[!found->device]++;
		touch(found, interactive);
		wont_touch(&found->wont);
		states_claim_ends(&world, &o, bad ? -EIO : 0);
		/* If that failed: one that ends before it, or in the page that begins there. */
		if (found->text.tokens % PAGE)
			most = found->text.tokens - 1;
		else if (most > found->text.tokens + PAGE - 1)
			most = found->text.tokens + PAGE - 1;
		if (bad) {
			leave(found);
			continue;
		}
		if (from_place && !found->device) {
			found->is_protected = true;
			found->device = true;
		}
		model.live = found->text;
		break;
	}
	for (uint32_t turn = 0; states_open_turn(&world, &o, 1 + below(5), &s); turn++) {
		assert_true(turn < 100 && !o->copying);
		end_copies();
	}
	assert_int_equal(s->committed, model.live.tokens);
	seq_set_rank(s, (struct pool_rank){.interactive = interactive, .serial = ++world.serial});
	free(tokens);
	return s;
}

/* What is known on the device it has beside its own. */
static void compute(struct seq *s, const struct text *t, uint32_t target)
{
	struct text whole = *t;
	struct model others = model;
	struct set here;

	others.live.tokens = 0;
	here = set_of(true, &others);
	whole.tokens = target / PAGE * PAGE;
	model.private = target % PAGE > 0;
	for (uint32_t i = model.live.tokens / PAGE; i < target / PAGE; i++)
		model.private += has(&here, name_of(&whole, i));
	model.live = whole;
	states_step(&world, s, target);
}

static struct state *state_of(const struct text *t)
{
	for (uint32_t i = 0; i < STATES; i++) {
		if (model.states[i].is && equal(&model.states[i].text, t))
			return &model.states[i];
	}
	return NULL;
}

/* A slot, a place, or the slot of another; false: none is to be had. */
static bool place(struct state *s)
{
	struct state *victim;

	s->slot = slots_used() < SLOTS;
	if (s->slot)
		return true;
	s->place = plan(s, 0, true, false);
	if (s->place)
		return true;
	victim = next_to_leave(true);
	if (!victim)
		return false;
	leave(victim);
	s->slot = true;
	return true;
}

static void capture(struct seq *s, const struct text *t, uint32_t tokens, bool interactive)
{
	struct state new = {.is = true, .text = *t, .prefix = below(3) == 0}, *at;
	enum image_kind kind = new.prefix ? IMAGE_PREFIX : IMAGE_CHECKPOINT;
	enum capture_skip skip;
	struct state *known;
	uint32_t image;
	bool bad = fails();

	new.text.tokens = tokens;
	known = state_of(&new.text);
	/* Its partial page is that of the state, unless that has one here. */
	if (tokens % PAGE && !(known && known->device)) {
		model.live = new.text;
		model.private --;
	}
	s->follows.image = IMAGE_NONE;
	image = states_capture_begins(&world, s, kind, false, &skip);
	if (known) {
		assert_int_equal(skip, CAPTURE_EXISTS);
		touch(known, interactive);
		wont_touch(&known->wont);
		known->device = true;
		return;
	}
	touch(&new, interactive);
	new.wont = wont_begin(&new.text);
	if (!place(&new)) {
		leave(&new);
		assert_int_equal(skip, CAPTURE_NO_SLOT);
		return;
	}
	assert_int_equal(skip, CAPTURE_MADE);
	new.name = states_name(&world, image);
	states_capture_ends(&world, image, bad ? -EIO : 0);
	if (bad)
		return;
	new.device = true;
	for (at = model.states; at->is; at++)
		assert_true(at < model.states + STATES - 1);
	*at = new;
}

static void do_turn(void)
{
	struct text t = {.name_space = below(4) == 0, .tokens = 1 + below(PROMPT * PAGE)};
	bool interactive = below(3) == 0;
	struct seq *s;

	for (uint32_t i = 0; i < PROMPT + 1; i++)
		t.letters[i] = (uint8_t)('a' + (below(8) < 5 ? 0 : 1 + below(2)));
	/* Many states lie at few places of a page. */
	if (below(2))
		t.tokens = t.tokens / PAGE * PAGE + 1 + below(3);
	make_room(2 * PROMPT + 2);
	s = open_text(&t, interactive);
	compare();
	if (s->committed < t.tokens)
		compute(s, &t, s->committed + 1 + below(t.tokens - s->committed));
	compare();
	if (below(4))
		capture(s, &t, s->committed, interactive);
	compare();
	model.live.tokens = 0;
	model.private = 0;
	world_close(&s);
	world_clean(&world.pool);
}

static void do_states(void)
{
	struct state *s = &model.states[below(STATES)];
	uint32_t all = ALL;

	if (!s->is)
		return;
	switch (below(4)) {
	case 0:
		pool_give_up(&world.pool, s->name.image);
		leave(s);
		break;
	case 1:
		if (below(16))
			break;
		assert_true(pool_drop_states(&world.pool, 1, &all));
		for (uint32_t i = 0; i < STATES; i++) {
			if (model.states[i].is && model.states[i].text.name_space == 1)
				leave(&model.states[i]);
		}
		break;
	default:
		if (!s->device)
			break;
		spill_fails = fails();
		spill_first = below(2);
		assert_int_equal(pool_push_down(&world.pool, s->name.image), 0);
		push_down(s);
		end_copies();
		spill_fails = false;
	}
	world_clean(&world.pool);
}

static void play(uint64_t first, enum retain_policy order)
{
	/* Of fewer no ghost is forgotten. */
	uint32_t n = order == RETAIN_LEARNED ? OPERATIONS / 2 : OPERATIONS;

	wonts_begin(order == RETAIN_LEARNED);
	seed = first * 977 + 1;
	model = (struct model){.now_ns = 1000 * SECOND, .floor_tokens = first % 3 ? 0 : 2 * PAGE};
	faults = first % 2;
	n_fails = n_refused = n_displaced = n_hits[0] = n_hits[1] = 0;
	states_init(&world, &(struct states_limits){.pages = PAGES,
						    .slots = SLOTS,
						    .units = UNITS,
						    .image_units = IMAGE,
						    .floor_tokens = model.floor_tokens,
						    .order = order});
	for (uint32_t i = 0; i < n; i++) {
		uint64_t ns = below(8) ? below(SECOND) : below(300) * SECOND;

		switch (below(8)) {
		case 0:
			make_room(1 + below(PAGES));
			break;
		case 1:
			states_wait(&world, ns);
			model.now_ns += ns;
			break;
		case 2:
			do_states();
			break;
		default:
			do_turn();
		}
		compare();
	}
	print_message("# %llu hits on the device, %llu below, %llu displaced, %llu refused, %llu "
		      "copies fail\n",
		      (unsigned long long)n_hits[0], (unsigned long long)n_hits[1],
		      (unsigned long long)n_displaced, (unsigned long long)n_refused,
		      (unsigned long long)n_fails);
	assert_true(n_hits[0] > n / 120 && n_hits[1] > n / 120);
	assert_true(n_displaced > n / 120 && n_refused > n / 120);
	assert_true(!faults || n_fails > n / 120);
	assert_true(!wonts.on || (wonts.hits > n / 120 && wonts.misses > n / 120));
	states_deinit(&world);
}

static void states_are_in_the_tiers_that_the_model_says(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 6; i++)
		play(first_seed() + i, RETAIN_LRU);
}

static void the_learned_order_is_that_of_the_model(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 6; i++)
		play(first_seed() + i, RETAIN_LEARNED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(states_are_in_the_tiers_that_the_model_says),
	    cmocka_unit_test(the_learned_order_is_that_of_the_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
