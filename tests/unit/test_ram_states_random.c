/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/ram.h with random operations on two hybrid pools and a dense one over one
 * arena: opens, steps, captures, jobs of the device that fail, pieces that are moved, namespaces
 * with quotas. After each operation everything is compared with everything, bytes and records now
 * and then; when nothing is under way, the arena holds just what the states need that live there,
 * and each of them is found. One thread; nothing blocks.
 *
 * KVHOST_TEST_SEED=N starts elsewhere.
 */

#include "tests/unit/ram_states.h"
#include "tests/unit/seeds.h"

#include <errno.h>

#include "daemon/state/pool_states.h"

#define HYBRID     2u /* pools, the first ones */
#define DENSE      2u
#define OPENS      2u /* of each */
#define SEQUENCES  3u
#define PROMPT     6u /* pages, at most */
#define OPERATIONS 15000u
#define BYTES      60u /* operations from one look at all bytes to the next */
#define QUIET      500u
#define ORPHANS    8u

struct user {
	struct opening *open;
	struct seq *s;
	uint32_t image; /* that it captures; IMAGE_NONE */
	uint32_t tokens[(PROMPT + 1) * PAGE];
	uint32_t n;
};

static struct ram_world world;
static struct user users[HYBRID][OPENS + SEQUENCES]; /* opens first */
static struct opening *orphans[HYBRID][ORPHANS];
static const char *operation;
static bool faults;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return 0;
}

static int some_fail(struct ram_world *w, const struct device_job *j, const struct device_move *m)
{
	(void)w;
	(void)j;
	(void)m;
	return faults && below(16) == 0 ? -EIO : 0;
}

static int result(void)
{
	return faults && below(8) == 0 ? -EIO : 0;
}

static void look(bool bytes)
{
	const char *wrong = ram_world_wrong(&world, bytes);

	if (wrong)
		fail_msg("%s: %s", operation, wrong);
}

/* ---- opens ---- */

static void begin_open(uint32_t pool, struct user *u)
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
	wish = world_wish(u->tokens, u->n);
	wish.name_space = (uint16_t)below(2);
	wish.interactive = below(3) == 0;
	u->open = opening_begin(&world.pools[pool].pool, &wish, u->n + PAGE);
}

static void settle_open(uint32_t pool, struct user *u, struct seq *s)
{
	seq_set_rank(s, (struct pool_rank){.interactive = s->interactive, .serial = 1});
	for (uint32_t i = OPENS; i < OPENS + SEQUENCES; i++) {
		if (users[pool][i].s)
			continue;
		users[pool][i] = *u;
		users[pool][i].s = s;
		users[pool][i].image = IMAGE_NONE;
		return;
	}
	world_close(&s);
}

static void end_claim(uint32_t pool, struct opening **o)
{
	ram_states_claim_ends(&world, pool, o, (*o)->place == COPY_NONE ? 0 : result());
}

static void abandon(uint32_t pool, struct user *u)
{
	operation = "an open goes away";
	opening_abandon(&u->open);
	for (uint32_t i = 0; i < ORPHANS && u->open; i++) {
		if (orphans[pool][i])
			continue;
		orphans[pool][i] = u->open;
		u->open = NULL;
	}
	if (u->open)
		end_claim(pool, &u->open);
}

static void do_open(uint32_t pool)
{
	struct user *u = &users[pool][below(OPENS)];
	struct seq *s = NULL;

	if (!u->open) {
		operation = "an open begins";
		begin_open(pool, u);
	} else if (below(16) == 0) {
		abandon(pool, u);
	} else if (u->open->copying) {
		operation = "the copy of an image ends";
		end_claim(pool, &u->open);
	} else {
		operation = "an open goes on";
		if (ram_states_open_turn(&world, pool, &u->open, below(3) ? ALL : 1 + below(4),
					 &s) == 0)
			settle_open(pool, u, s);
	}
}

/* ---- sequences ---- */

static void end_capture(uint32_t pool, struct user *u)
{
	operation = "a capture ends";
	ram_states_capture_ends(&world, pool, u->image, result());
	u->image = IMAGE_NONE;
}

static void do_sequence(uint32_t pool)
{
	struct user *u = &users[pool][OPENS + below(SEQUENCES)];

	if (!u->s)
		return;
	if (u->image != IMAGE_NONE) {
		end_capture(pool, u);
		return;
	}
	switch (below(6)) {
	case 0:
		operation = "a close";
		world_close(&u->s);
		break;
	case 1:
	case 2:
		operation = "a capture begins";
		u->image = ram_states_capture_begins(&world, pool, u->s,
						     below(3) ? IMAGE_CHECKPOINT : IMAGE_PREFIX);
		break;
	default:
		operation = "a step";
		if (u->s->committed < u->n)
			ram_world_step(&world, pool, u->s,
				       u->s->committed + 1 + below(u->n - u->s->committed));
	}
}

/* ---- the pools ---- */

static void do_pool(uint32_t pool)
{
	struct pool *p = &world.pools[pool].pool;
	uint32_t budget = 1 + below(3);

	switch (below(10)) {
	case 0:
		operation = "what is retained is dropped";
		if (below(4) == 0)
			pool_drop_retained(p, below(2) ? RETAIN_NAMESPACES : (uint16_t)below(2),
					   &budget);
		break;
	case 1:
		operation = "time passes";
		ram_world_wait(&world, below(8) ? below(1000000) : below(200) * SECOND);
		break;
	case 2:
	case 3:
	case 4:
		operation = "pages are cleaned";
		world_clean(p);
		break;
	default:
		operation = "room is made";
		ram_world_send_down(&world, pool, 1 + below(below(4) ? 4 : 12));
	}
}

static void do_copies(bool end)
{
	operation = end ? "a job of the device ends" : "copies are asked for";
	if (end)
		ram_world_copy(&world);
	else
		ram_world_kick(&world);
}

static void do_dense(void)
{
	struct pool *p = &world.pools[DENSE].pool;
	uint32_t which = 1 + below(6), n = 1 + below(12);
	uint16_t name_space = (uint16_t)below(2);

	operation = "pages of the dense pool";
	if (pages_free(&p->pages) < 14)
		ram_world_send_down(&world, DENSE, 14);
	else if (below(2))
		ram_world_retain(&world, DENSE, name_space, which, n, NULL);
	else
		ram_world_send_down(&world, DENSE, n);
}

/* ---- quiet moments ---- */

/* What the states need that live in KV-RAM, counted by their pages. */
static uint64_t bytes_of(const struct ram_world_pool *p)
{
	const struct prefix *x = &p->pool.prefix;
	const struct images *s = &p->pool.images;
	uint8_t *needed = calloc(x->fresh + 1, 1);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->n_images; i++) {
		const struct image *it = &s->image[i];

		if (it->state != IMAGE_VALID)
			continue;
		bytes += it->place == COPY_NONE ? 0 : p->ram.image_bytes;
		for (uint32_t node = it->node; it->in_ram && x->nodes[node].kind == NODE_TOKENS;
		     node = x->nodes[node].parent) {
			bytes += needed[node] ? 0 : p->geometry.page_stride;
			needed[node] = 1;
		}
	}
	free(needed);
	return bytes;
}

static void end_users(uint32_t pool)
{
	operation = "all end";
	for (uint32_t i = 0; i < OPENS + SEQUENCES; i++) {
		struct user *u = &users[pool][i];

		if (i < OPENS && u->open)
			abandon(pool, u);
		if (i >= OPENS && u->s && u->image != IMAGE_NONE)
			end_capture(pool, u);
		if (i >= OPENS && u->s)
			world_close(&u->s);
		look(false);
	}
	for (uint32_t i = 0; i < ORPHANS; i++) {
		if (orphans[pool][i])
			end_claim(pool, &orphans[pool][i]);
		look(false);
	}
}

static void become_quiet(void)
{
	faults = false;
	for (uint32_t pool = 0; pool < HYBRID; pool++)
		end_users(pool);
	operation = "all copies end";
	ram_world_settle(&world);
	look(true);
	for (uint32_t pool = 0; pool < HYBRID; pool++) {
		struct ram_world_pool *p = &world.pools[pool];

		assert_int_equal(p->ram.used_bytes, bytes_of(p));
		operation = "all pages are given up";
		for (uint32_t i = 0; p->pool.indexed; i++) {
			if (i == 500)
				fail_msg("pages of pool %u never leave the device", pool);
			ram_world_send_down(&world, pool, p->pool.limits.pages);
			ram_world_settle(&world);
		}
		assert_int_equal(p->ram.used_bytes, bytes_of(p));
	}
	look(true);
	faults = true;
}

static void play(uint64_t first)
{
	uint64_t restored = 0, failed = 0, spilled = 0, displaced = 0;

	seed = first * 31 + 5;
	faults = true;
	memset(users, 0, sizeof(users));
	ram_world_init(
	    &world, &(struct ram_world_limits){
			.arena_bytes = 8 * FRAME_BYTES,
			.quota = {first % 2 ? 8 * MIB : 0, 0},
			.guaranteed = {0, first % 3 ? 3 * MIB : 0},
			.n_pools = 3,
			.pool = {{.page_bytes = 64 * KIB,
				  .pages = 48,
				  .image_bytes = 2 * MIB + 256 * KIB,
				  .slots = 2,
				  .order = first % 4 / 2},
				 {.page_bytes = 256 * KIB,
				  .pages = 32,
				  .image_bytes = 512 * KIB,
				  .slots = first % 2,
				  .order = first % 2},
				 {.page_bytes = 64 * KIB, .pages = 40, .order = first % 4 / 2}}});
	world.fault = some_fail;
	for (uint32_t i = 0; i < OPERATIONS; i++) {
		uint32_t pool = below(HYBRID), what = below(32);

		if (what < 8)
			do_open(pool);
		else if (what < 18)
			do_sequence(pool);
		else if (what < 26)
			do_copies(what < 23);
		else if (what < 31)
			do_pool(pool);
		else
			do_dense();
		look(i % BYTES == 0);
		if (i % QUIET == QUIET - 1)
			become_quiet();
	}
	become_quiet();
	for (uint32_t pool = 0; pool < HYBRID; pool++) {
		const struct pool *p = &world.pools[pool].pool;

		restored += p->images.counts.restored;
		spilled += p->images.counts.spilled;
		failed += p->images.counts.spills_failed + p->images.counts.restores_failed +
			  p->stats.spills_failed + p->stats.restores_failed;
		displaced += p->stats.ram_displaced;
	}
	print_message("# %llu states restored, %llu spilled, %llu displaced, %llu copies failed, "
		      "%llu relocated\n",
		      (unsigned long long)restored, (unsigned long long)spilled,
		      (unsigned long long)displaced, (unsigned long long)failed,
		      (unsigned long long)world.ram->relocated);
	assert_true(restored > 20 && spilled > 20 && displaced > 50 && failed > 20);
	ram_world_deinit(&world);
}

static void the_arena_holds_what_states_need(void **state)
{
	(void)state;
	play_seeds(play, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(the_arena_holds_what_states_need),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
