/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/ram.h with random operations: three pools of different page sizes over one
 * arena, opens that wait for their pages, moves that fail, pages that are moved, namespaces with
 * quotas. After each operation everything is compared with everything, bytes now and then. One
 * thread; nothing blocks.
 *
 * KVHOST_TEST_SEED=N starts elsewhere.
 */

#include "tests/unit/ram_world.h"
#include "tests/unit/seeds.h"

#include <errno.h>

#define OPENS      3u /* of each pool */
#define PROMPT     7u /* pages, at most */
#define OPERATIONS 12000u
#define BYTES      40u /* operations from one look at all bytes to the next */
#define QUIET      900u

struct user {
	struct opening *open;
	uint32_t tokens[PROMPT * PAGE + 1];
	uint32_t pages;
};

static struct ram_world world;
static struct user users[RAM_WORLD_POOLS][OPENS];
static const char *operation;
static bool faults;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	memset(users, 0, sizeof(users));
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
	return faults && below(24) == 0 ? -EIO : 0;
}

static void look(bool bytes)
{
	const char *wrong = ram_world_wrong(&world, bytes);

	if (wrong)
		fail_msg("%s: %s", operation, wrong);
}

static void begin_open(uint32_t pool, struct user *u)
{
	struct match_wish wish = world_wish(u->tokens, 0);

	u->pages = 1 + below(PROMPT);
	for (uint32_t i = 0; i < u->pages; i++) {
		uint32_t letter = below(8) < 5 ? 0 : 1 + below(3);

		for (uint32_t k = 0; k < PAGE; k++)
			u->tokens[i * PAGE + k] = 1000 * letter + k;
	}
	u->tokens[u->pages * PAGE] = 7;
	wish.n_tokens = u->pages * PAGE + 1;
	wish.name_space = (uint16_t)below(2);
	u->open = opening_begin(&world.pools[pool].pool, &wish, u->pages * PAGE + 1);
}

/* The open has what there was: it makes the rest, if there is room now, and closes. */
static void finish(uint32_t pool, const struct user *u, struct seq *s)
{
	struct pool *p = &world.pools[pool].pool;

	if (s->committed < u->pages * PAGE) {
		world_clean(p);
		ram_world_step(&world, pool, s, u->pages * PAGE);
	}
	if (s->run != RUN_NONE)
		retain_set_interactive(&p->retain, s->run, below(2));
	world_close(&s);
}

static void do_open(uint32_t pool)
{
	struct user *u = &users[pool][below(OPENS)];
	struct seq *s = NULL;

	if (!u->open) {
		operation = "an open begins";
		begin_open(pool, u);
	} else if (below(20) == 0) {
		operation = "an open goes away";
		opening_abandon(&u->open);
	} else {
		operation = "an open goes on";
		if (opening_turn(&u->open, below(3) ? ALL : 1 + below(4), &s) == 0)
			finish(pool, u, s);
	}
}

static void do_pool(uint32_t pool)
{
	struct pool *p = &world.pools[pool].pool;
	uint32_t budget = 1 + below(9);

	switch (below(12)) {
	case 0:
		operation = "what is retained is dropped";
		pool_drop_retained(p, below(2) ? RETAIN_NAMESPACES : (uint16_t)below(2), &budget);
		break;
	case 1:
		operation = "pages are cleaned";
		world_clean(p);
		break;
	case 2:
		operation = "time passes";
		ram_world_wait(&world, below(8) ? below(1000000) : below(200) * SECOND);
		break;
	default:
		operation = "room is made";
		ram_world_send_down(&world, pool, 1 + below(below(4) ? 4 : 12));
	}
}

static void become_quiet(void)
{
	operation = "all end";
	faults = false;
	for (uint32_t i = 0; i < RAM_WORLD_POOLS * OPENS; i++) {
		if (users[i / OPENS][i % OPENS].open)
			opening_abandon(&users[i / OPENS][i % OPENS].open);
		look(false);
	}
	ram_world_settle(&world);
	look(true);
	operation = "all pages are given up";
	for (uint32_t pool = 0; pool < RAM_WORLD_POOLS; pool++) {
		struct pool *p = &world.pools[pool].pool;

		/* Whatever has to wait for moves of others goes in the end. */
		for (uint32_t i = 0; p->indexed; i++) {
			if (i == 500)
				fail_msg("pages of pool %u never leave the device", pool);
			ram_world_send_down(&world, pool, p->limits.pages);
			ram_world_settle(&world);
		}
	}
	look(true);
	faults = true;
}

static void play(uint64_t first)
{
	uint64_t displaced = 0, restores = 0, failed = 0;

	seed = first * 31 + 5;
	faults = true;
	ram_world_init(
	    &world, &(struct ram_world_limits){
			.arena_bytes = 2 * FRAME_BYTES,
			.chunk_bytes = 2 * FRAME_BYTES,
			.quota = {first % 2 ? 2 * MIB : 0, 0},
			.guaranteed = {0, first % 3 ? MIB : 0},
			.n_pools = 3,
			.pool = {{.page_bytes = 64 * KIB, .pages = 40, .order = first % 2},
				 {.page_bytes = 256 * KIB, .pages = 20},
				 {.page_bytes = 512 * KIB, .pages = 14, .order = first % 4 / 2}}});
	world.fault = some_fail;
	for (uint32_t i = 0; i < OPERATIONS; i++) {
		uint32_t pool = below(RAM_WORLD_POOLS), what = below(16);

		if (what < 6) {
			do_open(pool);
		} else if (what < 10) {
			operation = "a job of the device ends";
			ram_world_copy(&world);
		} else if (what < 12) {
			operation = "copies are asked for";
			ram_world_kick(&world);
		} else {
			do_pool(pool);
		}
		look(i % BYTES == 0);
		if (i % QUIET == QUIET - 1)
			become_quiet();
	}
	become_quiet();
	for (uint32_t pool = 0; pool < RAM_WORLD_POOLS; pool++) {
		const struct pool_stats *s = &world.pools[pool].pool.stats;

		displaced += s->ram_displaced;
		restores += s->restores;
		failed += s->restores_failed + s->spills_failed;
	}
	print_message("# %llu restores, %llu displaced, %llu copies failed, %llu relocated, "
		      "%llu relocations failed\n",
		      (unsigned long long)restores, (unsigned long long)displaced,
		      (unsigned long long)failed, (unsigned long long)world.ram->relocated,
		      (unsigned long long)world.ram->relocations_failed);
	assert_true(restores > 100 && displaced > 100 && failed > 20);
	ram_world_deinit(&world);
}

static void everything_is_where_it_says(void **state)
{
	(void)state;
	play_seeds(play, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(everything_is_where_it_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
