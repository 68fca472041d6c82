/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/tier/ram.h: records and copies of pages in an arena, with a real device whose
 * jobs run when the test says so. One thread; nothing blocks.
 */

#include "tests/unit/ram_world.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/tier/record.h"
#include "shm/guard.h"

#define SMALL (4 * KIB)
#define LARGE (256 * KIB)

static struct ram_world world;

/* The runner of the tests takes SIGBUS for itself before each; the guard gets it back. */
static struct sigaction guard_action;

static int guard_prepare(void **state)
{
	int r = guard_install();

	(void)state;
	return r ? r : sigaction(SIGBUS, NULL, &guard_action);
}

static int setup(void **state)
{
	*state = &world;
	ram_world_init(&world,
		       &(struct ram_world_limits){.arena_bytes = 16 * MIB,
						  .n_pools = 2,
						  .pool = {{.page_bytes = SMALL, .pages = 200},
							   {.page_bytes = LARGE, .pages = 24}}});
	return 0;
}

static int teardown(void **state)
{
	ram_world_deinit(*state);
	return 0;
}

static const struct node *node_of(const struct ram_world *w, uint32_t pool, uint32_t node)
{
	return &w->pools[pool].pool.prefix.nodes[node];
}

static enum record_state state_of(const struct ram_world *w, uint32_t pool, uint32_t node)
{
	return record_state(w->arena->headers +
			    node_of(w, pool, node)->copies[TIER_RAM] * (uint64_t)RECORD_BYTES);
}

/* Of n nodes those that are in KV-RAM. */
static uint32_t in_ram(const struct ram_world *w, uint32_t pool, const uint32_t *nodes, uint32_t n)
{
	uint32_t below = 0;

	for (uint32_t i = 0; i < n; i++)
		below += node_is_in_ram(node_of(w, pool, nodes[i]));
	return below;
}

/* ---- copies and their records ---- */

static void pages_go_down_and_come_back_with_their_bytes(void **state)
{
	struct ram_world *w = *state;

	for (uint32_t pool = 0; pool < 2; pool++) {
		uint32_t a[12];

		ram_world_put_down(w, pool, 0, 1, 12, a);
		ram_world_check(w);
		assert_int_equal(in_ram(w, pool, a, 12), 12);
		assert_int_equal(ram_world_reuse(w, pool, 0, 1, 12), 12);
		ram_world_check(w);
		assert_int_equal(w->pools[pool].pool.stats.restores, 12);
		assert_int_equal(w->pools[pool].ram.down.sums.bytes,
				 12 * w->pools[pool].geometry.page_stride);
		assert_int_equal(w->pools[pool].ram.up.sums.bytes,
				 12 * w->pools[pool].geometry.page_stride);
		assert_true(w->pools[pool].moved > 0);
	}
}

/* Two prompts that share eight pages take the space of one and of the other's tail, and are charged
 * so. */
static void what_prompts_share_is_there_once(void **state)
{
	struct ram_world *w = *state;
	const struct ram_pool *rp = &w->pools[0].ram;
	struct pool *p = &w->pools[0].pool;
	uint32_t a[12], b[12];

	ram_world_branch(w, 0, 0, 8, 1, 12, a);
	ram_world_branch(w, 0, 0, 8, 2, 12, b);
	assert_int_equal(p->indexed, 8 + 4 + 4);
	for (uint32_t i = 0; i < 20 && p->indexed; i++) {
		ram_world_send_down(w, 0, (uint32_t)p->indexed);
		ram_world_settle(w);
	}
	ram_world_check(w);
	assert_int_equal(p->in_ram, 8 + 4 + 4);
	assert_int_equal(frames_sums(w->arena->frames).objects, 8 + 4 + 4);
	assert_int_equal(rp->used_bytes, (8 + 4 + 4) * SMALL);
	assert_int_equal(w->ram->shares[0].used_bytes, (8 + 4 + 4) * ram_object_bytes(rp));
	/* A tail goes alone; what both stand on stays as long as the other does. */
	for (uint32_t i = 12; i-- > 8;)
		pool_give_up_ram(p, a[i]);
	ram_world_check(w);
	assert_int_equal(in_ram(w, 0, b, 12), 12);
	assert_int_equal(w->ram->shares[0].used_bytes, 12 * ram_object_bytes(rp));
}

static void a_record_is_valid_once_the_last_byte_is_there_and_free_after(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[2], object;

	ram_world_retain(w, 0, 0, 1, 2, a);
	ram_world_send_down(w, 0, 1);
	ram_world_check(w);
	object = node_of(w, 0, a[1])->copies[TIER_RAM];
	assert_int_equal(state_of(w, 0, a[1]), RECORD_FREE); /* it waits for its turn */
	ram_world_kick(w);
	assert_int_equal(state_of(w, 0, a[1]), RECORD_FILLING); /* before its first byte is there */
	assert_true(sim_executor_step(&w->copies, 0));
	assert_int_equal(state_of(w, 0, a[1]), RECORD_FILLING); /* there, and not known to be */
	ram_world_check(w);
	w->copies.executor.reap(&w->copies.executor, 1);
	assert_int_equal(state_of(w, 0, a[1]), RECORD_VALID);
	ram_world_check(w);
	/* A fetch reads it, and it stays. */
	assert_int_equal(ram_world_reuse(w, 0, 0, 1, 2), 2);
	assert_int_equal(state_of(w, 0, a[1]), RECORD_VALID);
	ram_world_check(w);
	pool_give_up_ram(&w->pools[0].pool, a[1]);
	assert_int_equal(record_state(w->arena->headers + object * (uint64_t)RECORD_BYTES),
			 RECORD_FREE);
	ram_world_check(w);
}

static void a_record_tells_everything_of_its_page(void **state)
{
	struct ram_world *w = *state;
	struct pool *p = &w->pools[0].pool;
	static const struct key_image image = {.start = 3, .length = 9, .digest = {1, 2, 3}};
	uint32_t tokens[2 * PAGE + 1], a[1], n;
	struct match_wish wish = world_wish(tokens, 2 * PAGE + 1);
	struct seq *s = NULL;
	struct opening *o;

	world_tokens(tokens, 2 * PAGE + 1, 0, 9);
	wish.images = &image;
	wish.n_images = 1;
	wish.name_space = 1;
	p->prefix.epoch = 5;
	o = opening_begin(p, &wish, 2 * PAGE + 1);
	assert_int_equal(opening_turn(&o, ALL, &s), 0);
	assert_int_equal(step_wants(s, 2 * PAGE, 0, &n), 0);
	assert_int_equal(step_begin(s, 2 * PAGE, 0, n), 0);
	world_commit(s, 2 * PAGE, NULL);
	a[0] = s->node;
	for (uint32_t i = 0; i < 2; i++) {
		const struct node *at = &p->prefix.nodes[a[0]];

		ram_world_fill((char *)w->pools[0].memory.segment.memory +
				   at->copies[TIER_DEVICE] * SMALL,
			       SMALL, at->key.low);
		a[0] = i ? a[0] : at->parent;
	}
	world_close(&s);
	ram_world_send_down(w, 0, 2);
	ram_world_settle(w);
	assert_int_equal(in_ram(w, 0, a, 1), 1);
	assert_int_equal(p->prefix.nodes[a[0]].images > 0, 1);
	ram_world_check(w);
}

static void jobs_are_few_and_short(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[150], b[20];

	ram_world_retain(w, 0, 0, 1, 150, a);
	ram_world_retain(w, 1, 0, 1, 20, b);
	ram_world_send_down(w, 0, 150);
	ram_world_send_down(w, 1, 20);
	for (uint32_t turn = 0; turn < 20; turn++) {
		ram_world_kick(w);
		for (uint32_t pool = 0; pool < 2; pool++) {
			const struct ram_queue *q = &w->pools[pool].ram.down;

			assert_true(w->pools[pool].ram.in_flight <= RAM_JOBS);
			for (uint32_t i = 0; i < RAM_JOBS; i++) {
				const struct ram_job *j = &q->jobs[i];

				assert_true(j->job.n <= RAM_JOB_MOVES);
				assert_true(j->job.n * w->pools[pool].ram.page_bytes <=
					    RAM_JOB_BYTES);
			}
		}
		ram_world_copy(w);
		ram_world_check(w);
	}
	assert_int_equal(in_ram(w, 0, a, 150), 150);
	assert_int_equal(in_ram(w, 1, b, 20), 20);
	/* A chain lies side by side on the device and below: a job is a copy. */
	assert_in_range(w->pools[0].ram.down.sums.copies, 3, 4);
	assert_in_range(w->pools[1].ram.down.sums.copies, 5, 8);
}

/* Nothing on the device is behind others for longer than the jobs in flight: more are asked for
 * when one has ended. */
static void what_comes_up_is_asked_for_before_what_goes_down(void **state)
{
	struct ram_world *w = *state;
	struct match_wish wish;
	uint32_t a[4], b[4], tokens[4 * PAGE + 1];
	struct opening *o;
	struct seq *s = NULL;

	ram_world_put_down(w, 1, 0, 1, 4, a);
	ram_world_retain(w, 1, 0, 2, 4, b);
	ram_world_send_down(w, 1, 4);
	wish = world_wish(world_tokens(tokens, 4 * PAGE + 1, 0, 1), 4 * PAGE + 1);
	o = opening_begin(&w->pools[1].pool, &wish, 4 * PAGE + 1);
	assert_int_equal(opening_turn(&o, ALL, &s), POOL_WAIT);
	ram_world_kick(w);
	assert_true(ram_world_copy(w));
	assert_int_equal(opening_turn(&o, ALL, &s), 0);
	assert_int_equal(s->committed, 4 * PAGE);
	assert_int_equal(w->pools[1].pool.leaving, 4);
	ram_world_check(w);
	world_close(&s);
}

/* ---- what fails ---- */

static uint64_t bad_place; /* offset in the pool's memory */

static int bad_page_fails(struct ram_world *w, const struct device_job *j,
			  const struct device_move *m)
{
	(void)w;
	(void)j;
	return (m->to == DEVICE_POOL ? m->to_offset : m->from_offset) == bad_place ? -EIO : 0;
}

/* Whichever page of a job is bad, going down or coming up. */
static void a_page_that_cannot_be_copied_fails_alone(void **state)
{
	struct ram_world *w = *state;
	struct pool *p = &w->pools[0].pool;

	for (uint32_t bad = 0; bad < 7; bad++) {
		uint32_t a[7], all = ALL;

		ram_world_retain(w, 0, 0, bad, 7, a);
		bad_place = node_of(w, 0, a[bad])->copies[TIER_DEVICE] * SMALL;
		w->fault = bad_page_fails;
		ram_world_send_down(w, 0, 7);
		ram_world_settle(w);
		ram_world_check(w);
		/* It stays, and all that stand before it. */
		assert_int_equal(p->indexed, bad + 1);
		assert_int_equal(in_ram(w, 0, a, 7), 6);
		w->fault = NULL;
		ram_world_send_down(w, 0, 7);
		ram_world_settle(w);
		ram_world_check(w);
		assert_int_equal(in_ram(w, 0, a, 7), 7);
		world_clean(p);
		assert_int_equal(ram_world_reuse(w, 0, 0, bad, 7), 7);
		ram_world_check(w);
		assert_true(pool_drop_retained(p, 0, &all));
		ram_world_check(w);
		assert_int_equal(p->in_ram, 0);
	}
}

static uint32_t bad_order; /* the so-manieth page that comes up is bad */

static int one_coming_up_fails(struct ram_world *w, const struct device_job *j,
			       const struct device_move *m)
{
	(void)w;
	(void)j;
	return m->to == DEVICE_POOL && bad_order-- == 0 ? -EIO : 0;
}

static void a_page_that_cannot_be_fetched_fails_alone(void **state)
{
	struct ram_world *w = *state;
	struct pool *p = &w->pools[0].pool;

	for (uint32_t bad = 0; bad < 7; bad++) {
		uint32_t a[7], all = ALL;

		ram_world_put_down(w, 0, 0, bad, 7, a);
		bad_order = bad;
		w->fault = one_coming_up_fails;
		assert_int_equal(ram_world_reuse(w, 0, 0, bad, 7), bad);
		ram_world_settle(w);
		w->fault = NULL;
		ram_world_check(w);
		assert_int_equal(in_ram(w, 0, a, 7), 6);
		assert_int_equal(state_of(w, 0, a[bad]), RECORD_FILLING);
		/* Made again, it takes its place again. */
		ram_world_put_down(w, 0, 0, bad, 7, NULL);
		ram_world_check(w);
		assert_int_equal(in_ram(w, 0, a, 7), 7);
		assert_int_equal(state_of(w, 0, a[bad]), RECORD_VALID);
		assert_true(pool_drop_retained(p, 0, &all));
		ram_world_check(w);
	}
}

/* A page of the pool's memory file is gone: the device itself says so. */
static void lost_memory_of_one_page_fails_that_page(void **state)
{
	struct ram_world *w = *state;
	struct ram_world_pool *p = &w->pools[0];
	struct segment made = p->memory.segment;
	uint32_t a[6], lost;
	int fd = memfd_create("gone", MFD_CLOEXEC);
	char *page;

	assert_int_equal(sigaction(SIGBUS, &guard_action, NULL), 0);
	p->memory.segment.memory =
	    mmap(NULL, made.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(fd >= 0 && p->memory.segment.memory != MAP_FAILED);
	ram_world_retain(w, 0, 0, 1, 6, a);
	lost = node_of(w, 0, a[3])->copies[TIER_DEVICE];
	page = (char *)p->memory.segment.memory + lost * SMALL;
	assert_true(mmap(page, SMALL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
		    MAP_FAILED);
	ram_world_send_down(w, 0, 6);
	ram_world_settle(w);
	assert_int_equal(p->pool.stats.spills_failed, 1);
	assert_int_equal(in_ram(w, 0, a, 6), 5);
	assert_int_equal(p->pool.indexed, 4);
	/* It comes back: so that everything can be looked at. */
	assert_int_equal(ftruncate(fd, SMALL), 0);
	ram_world_fill(page, SMALL, node_of(w, 0, a[3])->key.low);
	ram_world_check(w);
	close(fd);
	munmap(p->memory.segment.memory, made.bytes);
	p->memory.segment = made;
}

/* A job that did not run at all: its first page fails, the others are tried without it. */
static void a_job_that_does_not_run_is_tried_again_page_by_page(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[5];

	ram_world_retain(w, 0, 0, 1, 5, a);
	ram_world_send_down(w, 0, 5);
	ram_world_kick(w);
	for (int i = 0; i < 2; i++) {
		assert_true(sim_executor_step(&w->copies, -ECANCELED));
		w->copies.executor.reap(&w->copies.executor, 1);
		ram_world_check(w);
	}
	ram_world_settle(w);
	ram_world_check(w);
	assert_int_equal(w->pools[0].pool.stats.spills_failed, 2);
	assert_int_equal(in_ram(w, 0, a, 5), 3);
	assert_int_equal(w->pools[0].pool.indexed, 5);
}

/* ---- the order of telling ---- */

static int every_third_fails(struct ram_world *w, const struct device_job *j,
			     const struct device_move *m)
{
	(void)m;
	(void)j;
	w->random++;
	return w->random % 3 == 0 ? -EIO : 0;
}

/* The second job is done before the rest of the first: the pool hears of all in order, or it would
 * panic; nothing is told twice or forgotten. */
static void copies_are_told_of_in_the_order_asked_for(void **state)
{
	struct ram_world *w = *state;
	struct ram_queue *q = &w->pools[0].ram.down;
	uint32_t a[150], told = 0;

	ram_world_retain(w, 0, 0, 1, 150, a);
	w->fault = every_third_fails;
	ram_world_send_down(w, 0, 150);
	ram_world_kick(w);
	while (!ram_pool_is_quiet(&w->pools[0].ram)) {
		uint32_t before = q->told;

		assert_true(ram_world_copy(w));
		assert_true(q->told - before <= 2 * RAM_JOB_MOVES);
		told += q->told - before;
		ram_world_check(w);
		ram_world_kick(w);
	}
	assert_int_equal(told, q->asked);
	assert_true(w->pools[0].pool.stats.spills_failed > 20);
	w->fault = NULL;
}

static void a_pool_is_quiet_once_everything_was_told(void **state)
{
	struct ram_world *w = *state;
	uint32_t a[3];

	assert_true(ram_pool_is_quiet(&(struct ram_pool){0}));
	ram_world_retain(w, 0, 0, 1, 3, a);
	assert_true(ram_pool_is_quiet(&w->pools[0].ram));
	ram_world_send_down(w, 0, 2);
	assert_false(ram_pool_is_quiet(&w->pools[0].ram));
	ram_world_kick(w);
	assert_false(ram_pool_is_quiet(&w->pools[0].ram));
	ram_world_copy(w);
	assert_true(ram_pool_is_quiet(&w->pools[0].ram));
}

static uint64_t room_of(const struct ram_world_pool *p)
{
	return p->pool.below->room(p->pool.below->context);
}

/* Some is kept free of promises, so that pages can change places; and each page of another pool's
 * live sequences is one less, in bytes and in objects. */
static void what_may_be_promised_leaves_room_to_move(void **state)
{
	struct ram_world *w = *state;
	struct ram_world_limits limits = {
	    .arena_bytes = 16 * MIB,
	    .chunk_bytes = 16 * MIB,
	    .most_objects = 32,
	    .n_pools = 2,
	    .pool = {{.page_bytes = 64 * KIB, .pages = 16}, {.page_bytes = 256 * KIB, .pages = 8}}};
	struct pool *first;
	uint64_t before;
	struct seq *s, *t;

	ram_world_deinit(w);
	ram_world_init(w, &limits);
	first = &w->pools[0].pool;
	first->limits.live_in_ram = true;
	assert_int_equal(room_of(&w->pools[0]), 28);
	assert_int_equal(pool_promisable(first), 16 + 28);
	before = room_of(&w->pools[1]);
	assert_int_equal(before, 28);
	s = world_open(first, NULL, 0, 16 * PAGE);
	assert_int_equal(room_of(&w->pools[1]), before);
	t = world_open(first, NULL, 0, 10 * PAGE);
	assert_int_equal(room_of(&w->pools[1]), before - 10);
	world_close(&s);
	world_close(&t);
	assert_int_equal(room_of(&w->pools[1]), before);
	/* However little there is. */
	limits.most_objects = 3;
	ram_world_deinit(w);
	ram_world_init(w, &limits);
	assert_int_equal(room_of(&w->pools[0]), 2);
	/* Or limited by bytes: of 15 MiB an eighth is free. */
	limits.most_objects = 4096;
	ram_world_deinit(w);
	ram_world_init(w, &limits);
	assert_true(room_of(&w->pools[1]) * 256 * KIB <= 15 * MIB - 15 * MIB / 8);
	assert_true((room_of(&w->pools[1]) + 2) * 256 * KIB > 15 * MIB - 15 * MIB / 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(pages_go_down_and_come_back_with_their_bytes),
	    TEST(what_prompts_share_is_there_once),
	    TEST(a_record_is_valid_once_the_last_byte_is_there_and_free_after),
	    TEST(a_record_tells_everything_of_its_page),
	    TEST(jobs_are_few_and_short),
	    TEST(what_comes_up_is_asked_for_before_what_goes_down),
	    TEST(a_page_that_cannot_be_copied_fails_alone),
	    TEST(a_page_that_cannot_be_fetched_fails_alone),
	    TEST(lost_memory_of_one_page_fails_that_page),
	    TEST(a_job_that_does_not_run_is_tried_again_page_by_page),
	    TEST(copies_are_told_of_in_the_order_asked_for),
	    TEST(a_pool_is_quiet_once_everything_was_told),
	    TEST(what_may_be_promised_leaves_room_to_move),
	};

	return cmocka_run_group_tests(tests, guard_prepare, NULL);
}
