/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers: prompts that leave the device for KV-RAM and come back, every byte compared.
 *
 * A pool keeps so few pages that serving other prompts pushes a prompt out, in the order of lru,
 * tail first: so the test knows which pages are where. One thread, one daemon a test.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/stamped.h"

#define PAGE   16
#define PAGES  16 /* whole ones of a prompt */
#define PROMPT (PAGES * PAGE + 1)
#define KEPT   20 /* pages that a pool keeps on the device */

#define POOL(name, floor)                                                                          \
	"{\"name\": \"" name "\", \"pool_pages\": 64, \"kv_page_size\": 16, \"map\": true,"        \
	" \"max_sequence_length\": 272, \"enable_prefix_caching\": true,"                          \
	" \"max_prefix_cache_pages\": 20, \"retained_order\": \"lru\","                            \
	" \"ram_floor_tokens\": " floor "}"

static const char config[] =
    "{\"kv_ram_bytes\": \"320MiB\", \"kv_ram_lock\": false, \"pools\": [" POOL(
	"main", "0") ", " POOL("floor", "64") "]}\n";

static const struct engine_model mapped = {.pool = "main",
					   .n_layers = 2,
					   .heads = 2,
					   .k_dim = 64,
					   .v_dim = 32,
					   .format = KVHOST_FLOAT16,
					   .map = 1};
static const struct engine_model asked = {
    .pool = "main", .n_layers = 3, .heads = 1, .k_dim = 32, .v_dim = 64, .format = KVHOST_FLOAT32};
/* A page is 2.5 MiB: a frame of KV-RAM and a part of one. */
static const struct engine_model wide = {.pool = "main",
					 .n_layers = 4,
					 .heads = 80,
					 .k_dim = 64,
					 .v_dim = 64,
					 .format = KVHOST_FLOAT32,
					 .map = 1};

static struct daemon d;
static struct engine e;

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&e);
	daemon_remove(&d);
	return 0;
}

static void start(const struct engine_model *m)
{
	assert_int_equal(engine_start(&e, d.socket, m), 0);
}

static uint64_t counter(const char *name)
{
	return daemon_pool_counter(&d, "main", name);
}

static void expect_counted(const char *pool, const char *name, uint64_t value)
{
	uint64_t found = daemon_await(&d, pool, name, value, LONG_MS);

	if (found != value)
		fail_msg("%s of %s is %llu, not %llu", name, pool, (unsigned long long)found,
			 (unsigned long long)value);
}

static struct kvhost_open_result serve(uint32_t number, uint32_t n)
{
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, n, 0, number);
	return stamped_serve(&e, tokens, n);
}

/* As the daemon has it now: the stats file is a millisecond old. */
static bool is_at_rest(void *pool)
{
	char *answer = NULL;
	bool rest;

	assert_int_equal(kvhost_ask(e.host, "tiers", pool, &answer), 0);
	rest = strstr(answer, "\"leaving_pages\":0,\"arriving_pages\":0") != NULL;
	free(answer);
	return rest;
}

/* Nothing moves any more, nothing is used, and the daemon's sums are right. */
static void expect_rest(const char *pool)
{
	assert_true(await(is_at_rest, (void *)(uintptr_t)pool, LONG_MS));
	expect_counted(pool, "pool_pages_live", 0);
	assert_true(engine_check(&e));
}

/* ---- there and back ---- */

static void come_back(const struct engine_model *m)
{
	struct kvhost_open_result found;

	start(m);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(serve(i, PROMPT).cached_tokens, 0);
	expect_counted("main", "ram_spills", 4 * PAGES + PAGES - KEPT);
	expect_counted("main", "ram_pages", 4 * PAGES + PAGES - KEPT);
	expect_counted("main", "pool_pages_retained", KEPT);
	/* Twice, in the order in which they left: each is on the device no more when it is wanted.
	 * What comes the second time has a copy below still, and is given up without a write. */
	for (uint32_t i = 0; i < 10; i++) {
		found = serve(i % 5, PROMPT);
		assert_int_equal(found.cached_tokens, PAGES * PAGE);
		assert_int_equal(found.tier, KVHOST_KV_RAM);
		assert_int_equal(found.miss, KVHOST_MISS_NONE);
		assert_true(found.restore_ns > 0);
	}
	expect_rest("main");
	assert_int_equal(counter("ram_hits"), 10);
	assert_int_equal(counter("prefix_hits"), 10 * PAGES);
	assert_int_equal(counter("ram_hit_pages"), counter("ram_restores"));
	assert_true(counter("ram_hit_pages") > 9 * PAGES);
	assert_int_equal(counter("ram_spills"), 5 * PAGES);
	assert_true(counter("ram_releases") > 8 * PAGES);
	assert_int_equal(counter("ram_bytes_up"), counter("ram_restores") * e.info->page_stride);
	assert_int_equal(counter("ram_bytes_down"), counter("ram_spills") * e.info->page_stride);
	assert_int_equal(counter("pool_discards"), 0);
}

static void mapped_pages_come_back_from_ram_as_they_were(void **state)
{
	(void)state;
	come_back(&mapped);
}

static void pages_written_by_request_come_back_from_ram_as_they_were(void **state)
{
	(void)state;
	come_back(&asked);
}

static void pages_of_several_frames_come_back_from_ram_as_they_were(void **state)
{
	(void)state;
	come_back(&wide);
	assert_true(e.info->page_stride > 2u << 20);
}

/* ---- where it is, without moving it ---- */

static struct kvhost_open_result look_up(uint32_t number)
{
	struct kvhost_open_result found;
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, PROMPT, 0, number);
	assert_int_equal(
	    kvhost_lookup(e.pool, &(struct kvhost_prompt){.tokens = tokens, .n_tokens = PROMPT},
			  &found),
	    0);
	return found;
}

static void a_lookup_says_the_tier_and_moves_nothing(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	start(&mapped);
	for (uint32_t i = 0; i < 3; i++)
		(void)serve(i, PROMPT);
	expect_counted("main", "ram_spills", 3 * PAGES - KEPT);
	for (int i = 0; i < 50; i++) {
		for (uint32_t number = 0; number < 4; number++) {
			found = look_up(number);
			assert_int_equal(found.cached_tokens, number < 3 ? PAGES * PAGE : 0);
			assert_int_equal(found.tier, number < 2    ? KVHOST_KV_RAM
						     : number == 2 ? KVHOST_DEVICE
								   : KVHOST_NO_TIER);
			assert_int_equal(found.restore_ns, 0);
		}
	}
	expect_rest("main");
	expect_counted("main", "pool_lookups", 200);
	expect_counted("main", "pool_lookup_hits", 150);
	assert_int_equal(counter("ram_restores"), 0);
	assert_int_equal(counter("ram_hits"), 0);
	assert_int_equal(counter("ram_spills"), 3 * PAGES - KEPT);
}

/* ---- a part of it ---- */

/* Serving the second prompt takes its pages from the end of the first. */
static void push_out(uint32_t first, uint32_t n_pages, uint32_t second, uint32_t out)
{
	(void)serve(first, n_pages * PAGE + 1);
	(void)serve(second, (KEPT - n_pages + out) * PAGE + 1);
}

static void a_match_goes_on_from_the_device_into_ram(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	start(&mapped);
	push_out(1, 10, 2, 3);
	expect_counted("main", "ram_spills", 3);
	found = serve(1, 10 * PAGE + 1);
	assert_int_equal(found.cached_tokens, 10 * PAGE);
	assert_int_equal(found.tier, KVHOST_KV_RAM);
	expect_counted("main", "ram_restores", 3);
	expect_counted("main", "ram_hit_pages", 3);
	expect_counted("main", "prefix_hits", 10);
	expect_rest("main");
}

static void below_the_floor_nothing_is_fetched(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	start(&mapped);
	assert_int_equal(kvhost_pool_detach(&e.pool), 0);
	{
		struct engine_model m = mapped;

		m.pool = "floor";
		assert_int_equal(engine_attach(&e, &m), 0);
	}
	/* 48 tokens are too few, 64 are enough. */
	push_out(1, 10, 2, 3);
	expect_counted("floor", "ram_spills", 3);
	found = serve(1, 10 * PAGE + 1);
	assert_int_equal(found.cached_tokens, 7 * PAGE);
	assert_int_equal(found.miss, KVHOST_MISS_FLOOR);
	assert_int_equal(found.tier, KVHOST_DEVICE);
	assert_int_equal(found.restore_ns, 0);
	expect_counted("floor", "pool_misses_floor", 1);
	assert_int_equal(daemon_pool_counter(&d, "floor", "ram_restores"), 0);
	push_out(3, 10, 4, 4);
	expect_rest("floor");
	found = serve(3, 10 * PAGE + 1);
	assert_int_equal(found.cached_tokens, 10 * PAGE);
	assert_int_equal(found.tier, KVHOST_KV_RAM);
	expect_counted("floor", "ram_restores", 4);
	expect_counted("floor", "pool_misses_floor", 1);
	expect_rest("floor");
}

static void a_client_that_wants_less_gets_less_fetched(void **state)
{
	uint32_t tokens[PROMPT];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = PROMPT};
	struct kvhost_open_result found;

	(void)state;
	start(&mapped);
	for (uint32_t i = 0; i < 3; i++)
		(void)serve(i, PROMPT);
	expect_counted("main", "ram_spills", 3 * PAGES - KEPT);
	engine_tokens(tokens, PROMPT, 0, 0);
	p.max_cached_tokens = 5 * PAGE + 3;
	found = stamped_prompt(&e, &p);
	assert_int_equal(found.cached_tokens, 5 * PAGE);
	assert_int_equal(found.miss, KVHOST_MISS_LIMIT);
	assert_int_equal(found.tier, KVHOST_KV_RAM);
	expect_counted("main", "ram_restores", 5);
	/* What leaves the known one in the middle of a page. */
	tokens[7 * PAGE + 5]++;
	p.max_cached_tokens = 0;
	found = stamped_prompt(&e, &p);
	assert_int_equal(found.cached_tokens, 7 * PAGE);
	assert_int_equal(found.miss, KVHOST_MISS_DIVERGED);
	expect_rest("main");
}

static void a_match_in_ram_ends_before_an_image_that_does_not(void **state)
{
	struct kvhost_span span = {.start = 12 * PAGE + 5, .length = 4 * PAGE - 4};
	uint32_t tokens[PROMPT];
	struct kvhost_prompt p = {
	    .tokens = tokens, .n_tokens = PROMPT, .spans = &span, .n_spans = 1};
	struct kvhost_open_result found;

	(void)state;
	start(&mapped);
	engine_tokens(tokens, PROMPT, 0, 1);
	memset(span.digest, 7, sizeof(span.digest));
	(void)stamped_prompt(&e, &p);
	(void)serve(2, PROMPT);
	(void)serve(3, PROMPT);
	expect_counted("main", "ram_spills", 3 * PAGES - KEPT);
	found = stamped_prompt(&e, &p);
	assert_int_equal(found.cached_tokens, 12 * PAGE);
	assert_int_equal(found.miss, KVHOST_MISS_IMAGE);
	assert_int_equal(found.tier, KVHOST_KV_RAM);
	expect_counted("main", "ram_restores", 12);
	/* Another image is another prompt. */
	memset(span.digest, 8, sizeof(span.digest));
	(void)serve(2, PROMPT);
	(void)serve(3, PROMPT);
	expect_rest("main");
	span.length--;
	found = stamped_prompt(&e, &p);
	assert_int_equal(found.cached_tokens, 12 * PAGE);
	assert_int_equal(found.miss, KVHOST_MISS_DIVERGED);
	expect_rest("main");
}

/* Who goes on in the middle of what was fetched gets a copy; the others' bytes stay. */
static void what_was_fetched_can_be_cut_and_forked(void **state)
{
	uint32_t tokens[PROMPT], other[PROMPT];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = PROMPT};
	struct kvhost_sequence *seq = NULL, *fork = NULL;
	struct kvhost_open_result found;
	uint32_t cut = 9 * PAGE + 7;

	(void)state;
	start(&mapped);
	for (uint32_t i = 0; i < 3; i++)
		(void)serve(i, PROMPT);
	expect_counted("main", "ram_spills", 3 * PAGES - KEPT);
	engine_tokens(tokens, PROMPT, 0, 0);
	memcpy(other, tokens, sizeof(other));
	for (uint32_t i = cut; i < PROMPT; i++)
		other[i] += 7000000;
	assert_int_equal(kvhost_open(e.pool, &p, &seq, &found), 0);
	assert_int_equal(found.tier, KVHOST_KV_RAM);
	assert_int_equal(kvhost_fork(seq, PROMPT, &fork), 0);
	assert_int_equal(kvhost_truncate(fork, cut), 0);
	stamped_fill(&e, fork, other, PROMPT);
	assert_true(stamped_is(&e, fork, other, PROMPT));
	assert_true(stamped_is(&e, seq, tokens, PAGES * PAGE));
	assert_int_equal(kvhost_close(&fork), 0);
	assert_int_equal(kvhost_close(&seq), 0);
	found = serve(0, PROMPT);
	assert_int_equal(found.cached_tokens, PAGES * PAGE);
	expect_rest("main");
}

/* ---- who dies ---- */

/* Fetches one prompt after the other, for ever. */
static _Noreturn void fetch_for_ever(void)
{
	uint32_t tokens[PROMPT];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = PROMPT};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct engine mine;

	if (engine_start(&mine, d.socket, &wide))
		_exit(1);
	for (uint32_t i = 0;; i++) {
		engine_tokens(tokens, PROMPT, 0, i % 5);
		if (kvhost_open(mine.pool, &p, &seq, &found) || kvhost_close(&seq))
			_exit(2);
	}
}

static bool is_fetching(void *context)
{
	(void)context;
	return counter("ram_pages_arriving") > 0;
}

static void a_client_that_dies_in_a_fetch_leaves_nothing_behind(void **state)
{
	(void)state;
	start(&wide);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve(i, PROMPT);
	for (int i = 0; i < 10; i++) {
		pid_t child = fork_client();

		if (child == 0)
			fetch_for_ever();
		assert_true(await(is_fetching, NULL, LONG_MS));
		assert_int_equal(kill(child, SIGKILL), 0);
		(void)await_child(child, LONG_MS);
		expect_counted("", "sessions_attached", 1);
		expect_counted("main", "pool_sequences", 0);
		expect_rest("main");
	}
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(serve(i, PROMPT).cached_tokens, PAGES * PAGE);
	expect_rest("main");
	assert_int_equal(counter("pool_discards"), 0);
}

/* Pages lie in KV-RAM and some are on their way; the daemon ended at that. */
static void a_daemon_stops_well_whatever_is_in_ram(void **state)
{
	uint32_t tokens[PROMPT];

	(void)state;
	start(&wide);
	for (uint32_t i = 0; i < 5; i++) {
		engine_tokens(tokens, PROMPT, 0, i);
		assert_int_equal(engine_serve(&e, tokens, PROMPT, NULL), 0);
	}
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	assert_true(counter("ram_spills") > 0);
	assert_true(counter("ram_pages") > 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(mapped_pages_come_back_from_ram_as_they_were),
	    TEST(pages_written_by_request_come_back_from_ram_as_they_were),
	    TEST(pages_of_several_frames_come_back_from_ram_as_they_were),
	    TEST(a_lookup_says_the_tier_and_moves_nothing),
	    TEST(a_match_goes_on_from_the_device_into_ram),
	    TEST(below_the_floor_nothing_is_fetched),
	    TEST(a_client_that_wants_less_gets_less_fetched),
	    TEST(a_match_in_ram_ends_before_an_image_that_does_not),
	    TEST(what_was_fetched_can_be_cut_and_forked),
	    TEST(a_client_that_dies_in_a_fetch_leaves_nothing_behind),
	    TEST(a_daemon_stops_well_whatever_is_in_ram),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
