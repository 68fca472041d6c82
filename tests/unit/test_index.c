/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index: the memory of what is known of a pool's pages is what pool_index_bytes says, however
 * many pages have come and gone. One thread, but for one with a small stack.
 *
 * KVHOST_KEYS=N sets how many pages go through the pool: a million, 20 million in make check-long.
 * The pool has room for a sixteenth of them. To hold 20 million at once takes more memory than a
 * test should (4.5 GiB resident, of an index of 8 to 11 GiB) and shows no more: every array has its
 * size from the start. tests/callgrind/state_cost holds as many as it is told to.
 */
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/pool_world.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define KEYS        1000000ull
#define KEYS_LEAST  100000ull
#define KEYS_MOST   100000000ull
#define KEYS_A_PAGE 16ull
#define CHAIN_MOST  4096u
#define NAME_SPACES 2u
#define RECENT      64u /* chains that may come again; as many are open */
#define STACK_BYTES (64u << 10)
#define SLACK_BYTES (4ull << 20) /* the heap of the test, and what the C library touches */

/* ---- the memory of this process ---- */

struct memory {
	uint64_t address_space, resident;
};

/* Without stdio, which takes memory itself. */
static struct memory memory_now(void)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	struct memory m;
	char text[128];
	ssize_t n = read(fd, text, sizeof(text) - 1);
	char *end;

	close(fd);
	text[n > 0 ? n : 0] = 0;
	m.address_space = strtoull(text, &end, 10) * page;
	m.resident = strtoull(end, NULL, 10) * page;
	return m;
}

/* The share of it that images may take of the heap. */
static uint64_t heap_bytes(const struct pool_limits *limits)
{
	return PREFIX_IMAGE_BYTES * (limits->prefix_budget ? limits->nodes : 1);
}

/* ---- address space ---- */

/* Each namespace has a page, and with it its order. */
static void use_all_namespaces(struct pool *p)
{
	uint32_t tokens[64];
	struct match_wish wish = world_wish(tokens, p->limits.page_tokens);

	world_tokens(tokens, p->limits.page_tokens, 0, 1);
	for (uint16_t i = 0; i < p->limits.name_spaces; i++) {
		struct seq *s;

		wish.name_space = i;
		s = world_open_wish(p, &wish, p->limits.page_tokens, ALL);
		world_step(s, p->limits.page_tokens, NULL);
		world_close(&s);
	}
	assert_int_equal(p->stats.published, p->limits.name_spaces);
}

static uint64_t taken_by(const struct pool_limits *limits)
{
	uint64_t before = memory_now().address_space, taken;
	struct pool pool;

	assert_int_equal(pool_init(&pool, limits, &world_maker, world_stamp), 0);
	if (limits->prefix_budget && !limits->lanes)
		use_all_namespaces(&pool);
	for (uint16_t i = 0; pool.images.habits && i < limits->name_spaces; i++)
		assert_int_equal(images_prepare(&pool.images, i), 0);
	taken = memory_now().address_space - before;
	pool_deinit(&pool);
	assert_true(memory_now().address_space == before);
	return taken;
}

static void the_index_takes_the_address_space_that_it_says(void **state)
{
	static const uint32_t pages[] = {
	    1, 64, 65536, 262144 - POOL_NODES_BESIDE, 65537, 262144 - POOL_NODES_BESIDE + 1};
	static const struct pool_limits kinds[] = {
	    {.page_tokens = 64, .name_spaces = 1}, /* no reuse */
	    {.page_tokens = 16, .name_spaces = 1, .prefix_budget = UINT64_MAX},
	    {.page_tokens = 64, .name_spaces = 7, .prefix_budget = 1},
	    {.page_tokens = 32, .name_spaces = 1, .prefix_budget = 40000, .shadow_lru = true},
	    {.page_tokens = 16, .name_spaces = 2, .prefix_budget = 1, .order = RETAIN_LEARNED},
	    {.page_tokens = 16,
	     .name_spaces = 64,
	     .prefix_budget = UINT64_MAX,
	     .order = RETAIN_LEARNED,
	     .shadow_lru = true},
	    {.page_tokens = 64, .name_spaces = 3, .prefix_budget = 9, .lanes = 1},
	    {.page_tokens = 64,
	     .name_spaces = 64,
	     .prefix_budget = UINT64_MAX,
	     .order = RETAIN_LEARNED,
	     .shadow_lru = true,
	     .lanes = 65536,
	     .retained_slots = 65536},
	};

	(void)state;
	if (SANITIZED)
		skip(); /* the memory of a sanitizer is among it */
	for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
		for (size_t i = 0; i < sizeof(pages) / sizeof(*pages); i++) {
			struct pool_limits limits = kinds[k];

			limits.pages = pages[i];
			limits.nodes = pages[i] + POOL_NODES_BESIDE;
			limits.max_sequence_tokens = 1u << 20;
			(void)taken_by(&limits); /* the heap has grown to what it needs then */
			assert_true(taken_by(&limits) ==
				    pool_index_bytes(&limits) - heap_bytes(&limits));
		}
	}
}

static void a_namespace_more_than_was_counted_on_is_noticed(void **state)
{
	struct pool_limits limits = {.pages = 8,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 64,
				     .nodes = 64,
				     .name_spaces = 2,
				     .prefix_budget = 8};
	struct pool pool;

	(void)state;
	assert_int_equal(pool_init(&pool, &limits, &world_maker, world_stamp), 0);
	use_all_namespaces(&pool);
	assert_null(pool_check(&pool, true));
	pool.limits.name_spaces = 1;
	assert_string_equal(pool_check(&pool, false),
			    "more namespaces have pages than were counted on");
	pool_deinit(&pool);
}

/* ---- many keys ---- */

struct chain {
	uint64_t number; /* its first token: no two chains have a page in common */
	uint32_t pages;
	struct seq *seq; /* NULL: it is closed */
};

static uint64_t keys_wanted(void)
{
	const char *text = getenv("KVHOST_KEYS");
	uint64_t n = text ? strtoull(text, NULL, 10) : 0;

	if (!n)
		return SANITIZED ? KEYS / 10 : KEYS;
	assert_true(n >= KEYS_LEAST && n <= KEYS_MOST);
	return n;
}

struct crowd {
	struct pool pool;
	struct pool_limits limits;
	uint64_t wanted;     /* keys */
	uint64_t made;       /* pages of new chains, each with a key of its own */
	uint64_t made_again; /* pages of chains that had been there */
	uint64_t random, chains;
	struct memory before, most;
	struct chain recent[RECENT];
	uint32_t tokens[CHAIN_MOST * PAGE + 1];
	uint32_t path[CHAIN_MOST + 1];
	uint64_t pages[CHAIN_MOST + 1];
	const char *wrong; /* NULL: all is well so far */
};

/* In a thread of its own, from which CMocka cannot jump. */
static void require(struct crowd *c, bool holds, const char *what)
{
	if (holds)
		return;
	c->wrong = what;
	pthread_exit(NULL);
}

static uint32_t below(struct crowd *c, uint32_t n)
{
	c->random = c->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((c->random >> 33) % n);
}

static void note_memory(struct crowd *c)
{
	struct memory now = memory_now();

	if (now.address_space > c->most.address_space)
		c->most.address_space = now.address_space;
	if (now.resident > c->most.resident)
		c->most.resident = now.resident;
}

static struct match_wish wish_of(struct crowd *c, const struct chain *chain)
{
	uint32_t n = chain->pages * PAGE + 1;
	struct match_wish wish = world_wish(c->tokens, n);

	for (uint32_t i = 0; i < n; i++)
		c->tokens[i] = i ? i : (uint32_t)chain->number;
	wish.name_space = (uint16_t)(chain->number % NAME_SPACES);
	return wish;
}

/* Match it as an open does, or as a lookup; tokens that were found. */
static uint32_t match_chain(struct crowd *c, struct match *m, const struct match_wish *wish,
			    uint64_t tick)
{
	uint32_t all = ALL;

	require(c, match_begin(m, &c->pool, wish, c->path, tick) == 0, "there is no root");
	while (match_turn(m, &all))
		all = ALL;
	return match_tokens(m);
}

static void open_chain(struct crowd *c, struct chain *chain)
{
	struct match_wish wish = wish_of(c, chain);
	uint32_t *ids = malloc(wish.n_tokens * sizeof(*ids));
	struct match m;

	require(c, ids && !seq_new(&c->pool, wish.name_space, wish.n_tokens, &chain->seq),
		"the heap is used up");
	require(c, !seq_admit(chain->seq), "a sequence is not admitted");
	memcpy(ids, c->tokens, wish.n_tokens * sizeof(*ids));
	match_chain(c, &m, &wish, retain_open(&c->pool.retain));
	require(c, !seq_take_match(chain->seq, &m, ids, NULL), "a match is not taken");
}

/* Compute what was not found, and publish it: then all of it is found. */
static void fill_chain(struct crowd *c, struct chain *chain)
{
	uint32_t target = chain->pages * PAGE, all = ALL, n;
	struct seq *s = chain->seq;
	struct step_receipt receipt;
	struct match_wish wish;
	struct match m;

	if (s->committed < target) {
		require(c, !step_wants(s, target, 0, &n), "a step is refused");
		while (step_begin(s, target, 0, n)) {
			require(c, c->pool.pages.count[PAGE_DIRTY] > 0, "there is no page left");
			world_clean(&c->pool);
		}
		receipt = world_receipt(s, target - s->step.start, c->pages);
		require(c, !step_commit(s, &receipt), "a commit is refused");
		require(c, !seq_publish_turn(s, &all), "publishing does not end");
	}
	wish = wish_of(c, chain);
	require(c, match_chain(c, &m, &wish, 0) == target, "a page is not found");
}

static void close_chain(struct crowd *c, struct chain *chain)
{
	uint32_t all = ALL;

	if (chain->seq)
		require(c, !seq_close_turn(&chain->seq, &all), "closing does not end");
}

/* Most have one page, so that there are as many runs as there can be; some are long. */
static uint32_t random_length(struct crowd *c)
{
	uint32_t longest = c->limits.pages / 16 < CHAIN_MOST ? c->limits.pages / 16 : CHAIN_MOST;

	if (below(c, 4096) == 0)
		return longest;
	return below(c, 8) ? 1 : 1 + below(c, 32);
}

static void *make_crowd(void *argument)
{
	struct crowd *c = argument;
	uint32_t all = ALL;

	for (uint64_t i = 0; c->made < c->wanted; i++) {
		struct chain *chain = &c->recent[below(c, RECENT)];
		bool again = chain->pages && below(c, 8) == 0;

		close_chain(c, chain);
		if (!again)
			*chain = (struct chain){.number = ++c->chains, .pages = random_length(c)};
		*(again ? &c->made_again : &c->made) += chain->pages;
		open_chain(c, chain);
		require(c, again || chain->seq->committed == 0, "a key is not new");
		fill_chain(c, chain);
		if (i % 1024 == 0)
			note_memory(c);
	}
	for (uint32_t i = 0; i < RECENT; i++)
		close_chain(c, &c->recent[i]);
	note_memory(c);
	c->wrong = pool_check(&c->pool, true);
	require(c, !c->wrong, c->wrong);
	require(c, retain_ghosts(&c->pool.retain)->used == retain_ghosts(&c->pool.retain)->capacity,
		"there is room for more ghosts");
	require(c, c->pool.shadow.keys.used == c->pool.shadow.pages, "the shadow is not full");
	while (!pool_drop_retained(&c->pool, RETAIN_NAMESPACES, &all))
		all = ALL;
	require(c, c->pool.indexed == 0 && c->pool.prefix.used == 0, "a page is not dropped");
	note_memory(c);
	return NULL;
}

static void run_in_a_small_stack(void *(*function)(void *), void *argument)
{
	pthread_attr_t attributes;
	pthread_t thread;

	assert_int_equal(pthread_attr_init(&attributes), 0);
	assert_int_equal(pthread_attr_setstacksize(&attributes, STACK_BYTES), 0);
	assert_int_equal(pthread_create(&thread, &attributes, function, argument), 0);
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attributes);
}

static void many_keys_take_no_more_memory_than_the_index_has(void **state)
{
	struct crowd *c = calloc(1, sizeof(*c));
	uint64_t bytes, resident, taken;

	(void)state;
	assert_non_null(c);
	c->wanted = keys_wanted();
	c->random = 1;
	c->limits = (struct pool_limits){.pages = (uint32_t)(c->wanted / KEYS_A_PAGE),
					 .page_tokens = PAGE,
					 .max_sequence_tokens = 1u << 20,
					 .name_spaces = NAME_SPACES,
					 .order = RETAIN_LEARNED,
					 .shadow_lru = true};
	c->limits.nodes = c->limits.pages + POOL_NODES_BESIDE;
	c->limits.prefix_budget = c->limits.pages / 8 * 7;
	bytes = pool_index_bytes(&c->limits);
	mallopt(M_ARENA_MAX, 1); /* a second one for the thread would be address space, too */
	c->before = memory_now();
	assert_int_equal(pool_init(&c->pool, &c->limits, &world_maker, world_stamp), 0);
	prefix_populate(&c->pool.prefix, c->limits.pages);
	run_in_a_small_stack(make_crowd, c);
	if (c->wrong)
		fail_msg("%s", c->wrong);
	assert_true(c->pool.stats.published >= c->wanted);
	assert_int_equal(c->pool.stats.publish_stops, 0);
	taken = c->most.address_space - c->before.address_space;
	resident = c->most.resident - c->before.resident;
	print_message("# %llu keys, %llu again, %u pages: the index has %llu bytes, resident %llu, "
		      "address space %llu\n",
		      (unsigned long long)c->made, (unsigned long long)c->made_again,
		      c->limits.pages, (unsigned long long)bytes, (unsigned long long)resident,
		      (unsigned long long)taken);
	if (!SANITIZED) {
		bytes -= heap_bytes(&c->limits); /* there are no images */
		assert_true(taken <= bytes + SLACK_BYTES);
		assert_true(resident <= bytes + SLACK_BYTES);
		assert_true(resident > bytes / 4);
	}
	pool_deinit(&c->pool);
	free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_index_takes_the_address_space_that_it_says),
	    cmocka_unit_test(a_namespace_more_than_was_counted_on_is_noticed),
	    cmocka_unit_test(many_keys_take_no_more_memory_than_the_index_has),
	};

	world_maker.kept_bits = 128;
	for (int i = 0; i < KEY_SECRET_BYTES; i++)
		world_maker.secret[i] = (uint8_t)(i * 7 + 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
