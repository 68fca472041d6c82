/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/pool_states.h with random operations, many of them at once: opens, steps,
 * captures, forks, copies of pages and images that end well or badly in any order between the
 * kinds, room, drops, a tier below that lets wait. After each operation everything is compared with
 * everything, the bytes of every copy too. An open gets a state that was captured once, whole, and
 * the longest there is when nothing is under way. One thread; nothing blocks.
 *
 * KVHOST_TEST_SEED=N starts elsewhere.
 */

#include "tests/unit/seeds.h"
#include "tests/unit/states_world.h"

#include <errno.h>

#define PAGES      64u
#define SLOTS      3u
#define UNITS      60u
#define IMAGE      4u /* units */
#define PROMPT     6u /* pages, at most */
#define OPENS      3u
#define SEQUENCES  4u
#define OPERATIONS 150000u
#define QUIET      400u /* operations from one quiet moment to the next */

struct user {
	struct opening *open;
	struct seq *s;
	uint32_t image; /* that it captures; IMAGE_NONE */
	uint16_t name_space;
	uint32_t tokens[(PROMPT + 1) * PAGE];
	uint32_t n;
};

static struct states world;
static struct user users[OPENS + SEQUENCES]; /* opens first */
static struct opening *orphans[STATES_OPENS];
static const char *operation;
static uint32_t bad; /* of so many copies one fails; 0: none does */

static int result(void)
{
	return bad && below(bad) == 0 ? -EIO : 0;
}

static void look(void)
{
	const char *wrong = states_wrong(&world);

	if (wrong)
		fail_msg("%s: %s", operation, wrong);
	if (world.plans_broken)
		fail_msg("%s: a plan was not enough", operation);
}

/* ---- opens ---- */

static void begin_open(struct user *u)
{
	struct match_wish wish;

	u->n = 1 + below(PROMPT * PAGE);
	if (below(2))
		u->n = u->n / PAGE * PAGE + 1 + below(3);
	for (uint32_t i = 0; i < u->n; i += PAGE) {
		uint32_t letter = below(8) < 5 ? 0 : 1 + below(2);

		for (uint32_t k = 0; k < PAGE && i + k < u->n; k++)
			u->tokens[i + k] = 1000 * letter + k;
	}
	u->name_space = below(4) == 0;
	wish = world_wish(u->tokens, u->n);
	wish.name_space = u->name_space;
	wish.interactive = below(3) == 0;
	if (below(6) == 0)
		wish.max_cached_tokens = below(u->n);
	u->open = states_open_begins(&world, &wish, u->n + PAGE);
}

/* It goes on in a place of its own, if there is one. */
static void settle_open(struct user *u, struct seq *s)
{
	seq_set_rank(s,
		     (struct pool_rank){.interactive = s->interactive, .serial = ++world.serial});
	for (uint32_t i = OPENS; i < OPENS + SEQUENCES; i++) {
		if (users[i].s)
			continue;
		users[i] = *u;
		users[i].s = s;
		users[i].image = IMAGE_NONE;
		return;
	}
	world_close(&s);
}

/* A slot that cannot be read fails the pool: that is not played here. */
static void end_claim(struct opening **o)
{
	states_claim_ends(&world, o, (*o)->place == COPY_NONE ? 0 : result());
}

static void abandon(struct user *u)
{
	operation = "an open goes away";
	states_open_abandon(&world, &u->open);
	if (!u->open)
		return;
	for (uint32_t i = 0; i < STATES_OPENS; i++) {
		if (!orphans[i]) {
			orphans[i] = u->open;
			u->open = NULL;
			return;
		}
	}
	end_claim(&u->open);
}

static void do_open(void)
{
	struct user *u = &users[below(OPENS)];
	struct seq *s = NULL;

	if (!u->open) {
		operation = "an open begins";
		begin_open(u);
	} else if (below(16) == 0) {
		abandon(u);
	} else if (u->open->copying) {
		operation = "the copy of an image ends";
		if (below(2))
			end_claim(&u->open);
	} else {
		operation = "an open goes on";
		if (states_open_turn(&world, &u->open, below(3) ? ALL : 1 + below(4), &s) == 0)
			settle_open(u, s);
	}
}

static void end_orphan(void)
{
	struct opening **o = &orphans[below(STATES_OPENS)];

	operation = "the copy of an image for nobody ends";
	if (*o)
		end_claim(o);
}

/* ---- sequences ---- */

static void end_capture(struct user *u)
{
	operation = "a capture ends";
	states_capture_ends(&world, u->image, result());
	u->image = IMAGE_NONE;
}

static void begin_capture(struct user *u)
{
	enum image_kind kind = below(3) ? IMAGE_CHECKPOINT : IMAGE_PREFIX;

	operation = "a capture begins";
	if (below(3))
		u->s->follows.image = IMAGE_NONE;
	u->image = states_capture_begins(&world, u->s, kind, below(3) == 0, NULL);
}

static void do_step(struct user *u)
{
	uint32_t target, n;

	operation = "a step";
	if (u->s->committed >= u->n)
		return;
	target = u->s->committed + 1 + below(u->n - u->s->committed);
	if (step_wants(u->s, target, 0, &n) || step_begin(u->s, target, 0, n))
		return;
	states_commit(&world, u->s, target - u->s->step.start);
}

static void do_fork(const struct user *u)
{
	struct seq *child = NULL;
	uint32_t copy;

	operation = "a fork";
	assert_int_equal(seq_fork_new(u->s, u->s->max_tokens, &child), 0);
	assert_int_equal(seq_fork(u->s, child, &copy), 0);
	if (seq_admit(child)) {
		world_close(&child);
		return;
	}
	for (uint32_t i = OPENS; i < OPENS + SEQUENCES; i++) {
		if (users[i].s)
			continue;
		users[i] = *u;
		users[i].s = child;
		users[i].image = IMAGE_NONE;
		return;
	}
	world_close(&child);
}

static void do_sequence(void)
{
	struct user *u = &users[OPENS + below(SEQUENCES)];

	if (!u->s)
		return;
	if (u->image != IMAGE_NONE) {
		/* What it captures is copied from its lane: it stays meanwhile. */
		if (below(2))
			end_capture(u);
		return;
	}
	switch (below(8)) {
	case 0:
		operation = "a close";
		world_close(&u->s);
		break;
	case 1:
		do_fork(u);
		break;
	case 2:
	case 3:
		begin_capture(u);
		break;
	default:
		do_step(u);
	}
}

/* ---- copies, and the pool ---- */

static void do_copy(void)
{
	switch (below(3)) {
	case 0:
		operation = "a copy down ends";
		if (states_copies(&world.down))
			states_down_ends(&world, result());
		break;
	case 1:
		operation = "a copy up ends";
		if (states_copies(&world.up))
			states_up_ends(&world, result());
		break;
	default:
		operation = "an image comes down, or does not";
		if (states_spills(&world) && below(2))
			states_spill_ends(&world, result());
	}
}

static void do_pool(void)
{
	struct pool *p = &world.pool;
	struct images *s = &p->images;
	uint32_t image = below(s->n_images), budget = 1 + below(3);

	switch (below(9)) {
	case 0:
		operation = "a state is given up";
		if (below(4) == 0 && s->image[image].state == IMAGE_VALID)
			pool_give_up(p, image);
		break;
	case 1:
		operation = "states are dropped";
		if (below(12) == 0)
			pool_drop_states(p, below(2) ? RETAIN_NAMESPACES : (uint16_t)below(2),
					 &budget);
		break;
	case 2:
		operation = "the tier below takes, refuses or lets wait";
		world.says = below(4) ? 0 : below(2) ? POOL_NEVER : POOL_WAIT;
		world.says_after = below(4);
		break;
	case 3:
		operation = "time passes";
		states_wait(&world, below(8) ? below(SECOND) : below(200) * SECOND);
		break;
	case 4:
	case 5:
		operation = "room is made";
		pool_make_room(p, pages_free(&p->pages) + 1 + below(below(4) ? 4 : PAGES));
		break;
	default:
		operation = "pages are cleaned";
		world_clean(p);
	}
}

/* ---- quiet moments ---- */

static void end_users(void)
{
	operation = "all end";
	for (uint32_t i = 0; i < OPENS + SEQUENCES; i++) {
		struct user *u = &users[i];

		if (i < OPENS && u->open)
			abandon(u);
		look();
		if (i >= OPENS && u->s && u->image != IMAGE_NONE)
			end_capture(u);
		if (i >= OPENS && u->s)
			world_close(&u->s);
		look();
	}
	for (uint32_t i = 0; i < STATES_OPENS; i++) {
		if (orphans[i])
			end_claim(&orphans[i]);
		look();
	}
}

/* All pages of a state can be had, and its image. */
static bool is_whole(const struct pool *p, const struct image *it)
{
	for (uint32_t node = it->node; p->prefix.nodes[node].kind == NODE_TOKENS;
	     node = p->prefix.nodes[node].parent) {
		if (!prefix_can_be_read(&p->prefix.nodes[node]))
			return false;
	}
	return true;
}

/* What can be had is found: each state, by its own tokens and one more. */
static void find_all(void)
{
	struct pool *p = &world.pool;
	uint32_t floor_tokens = p->limits.ram_floor_tokens;

	p->limits.ram_floor_tokens = 0;

	for (uint32_t i = 0; i < p->images.n_images; i++) {
		const struct image *it = &p->images.image[i];
		uint32_t tokens[(PROMPT + 1) * PAGE + 1], path[PROMPT + 2], all = ALL;
		struct match_wish wish = world_wish(tokens, it->tokens + 1);
		struct match m;

		if (it->state != IMAGE_VALID)
			continue;
		for (uint32_t node = it->node; p->prefix.nodes[node].kind == NODE_TOKENS;
		     node = p->prefix.nodes[node].parent)
			memcpy(tokens + p->prefix.nodes[node].position * PAGE,
			       prefix_tokens(&p->prefix, node),
			       p->prefix.nodes[node].length * sizeof(uint32_t));
		tokens[it->tokens] = 77777;
		wish.name_space = it->name_space;
		match_begin(&m, &world.pool, &wish, path, 0);
		assert_int_equal(match_turn(&m, &all), 0);
		assert_int_equal(m.image == i, is_whole(p, it));
	}
	p->limits.ram_floor_tokens = floor_tokens;
}

static void become_quiet(bool empty)
{
	struct pool *p = &world.pool;
	uint32_t all = ALL, was = bad;

	end_users();
	world.says = 0;
	bad = 0;
	operation = "all copies end";
	states_settle(&world);
	look();
	assert_int_equal(p->leaving + p->arriving + p->live, 0);
	find_all();
	operation = "all leave the device";
	for (uint32_t i = 0; p->indexed; i++) {
		assert_true(i < 100);
		pool_make_room(p, PAGES);
		states_settle(&world);
		world_clean(p);
		look();
	}
	assert_int_equal(p->images.slots_free, p->images.n_slots);
	if (empty) {
		operation = "all is dropped";
		assert_true(pool_drop_states(p, RETAIN_NAMESPACES, &all));
		look();
		assert_int_equal(world.used, 0);
		assert_int_equal(p->prefix.used, 0);
	}
	bad = was;
}

static void play(uint64_t first)
{
	const struct image_counts *c = &world.pool.images.counts;

	seed = first * 31 + 7;
	bad = first % 2 ? 8 : 0;
	memset(users, 0, sizeof(users));
	states_init(&world, &(struct states_limits){.pages = PAGES,
						    .slots = first % 4 < 2 ? SLOTS : 0,
						    .units = UNITS,
						    .image_units = IMAGE,
						    .budget = first % 3 ? PAGES : PAGES / 2,
						    .floor_tokens = first % 5 ? 0 : 2 * PAGE,
						    .order = first % 7 % 2});
	for (uint32_t i = 0; i < OPERATIONS; i++) {
		uint32_t what = below(16);

		if (what < 5)
			do_open();
		else if (what < 10)
			do_sequence();
		else if (what < 13)
			do_copy();
		else if (what < 14)
			end_orphan();
		else
			do_pool();
		look();
		if (i % QUIET == QUIET - 1)
			become_quiet(below(4) == 0);
	}
	become_quiet(true);
	print_message("# %llu captures, %llu restored, %llu spilled, %llu spills fail, %llu "
		      "restores fail, %llu displaced\n",
		      (unsigned long long)(c->captures[0] + c->captures[1]),
		      (unsigned long long)c->restored, (unsigned long long)c->spilled,
		      (unsigned long long)c->spills_failed, (unsigned long long)c->restores_failed,
		      (unsigned long long)world.plans_made);
	assert_true(c->captures[0] > 100 && c->captures[1] > 100 && c->restored > 50);
	assert_true(first % 2 == 0 ||
		    (c->restores_failed > 5 && world.pool.stats.spills_failed > 50));
	states_deinit(&world);
}

static void states_stay_whole_whatever_happens(void **state)
{
	(void)state;
	play_seeds(play, 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(states_stay_whole_whatever_happens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
