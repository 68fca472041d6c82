/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_counted: counters of KV-RAM that move only in a scene of their own: what is refused,
 * wanted back while it leaves, moved aside, or does not arrive; and every byte is right after it.
 * And their names in kvctl. One thread; every wait has a deadline.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/operator.h"
#include "tests/e2e/stamped.h"

#define PAGE   16
#define PAGES  16
#define PROMPT (PAGES * PAGE + 1)

#define POOL(name)                                                                                 \
	"{\"name\": \"" name "\", \"pool_pages\": 64, \"kv_page_size\": 16,"                       \
	" \"max_sequence_length\": 272, \"enable_prefix_caching\": true,"                          \
	" \"max_prefix_cache_pages\": 20, \"ram_floor_tokens\": 0, \"retained_order\": \"lru\"}"
#define NAMESPACE(name, more)                                                                      \
	"{\"name\": \"" name "\", \"uids\": [%u], \"managed_prefix_cache_salt\": \"" name "\", "   \
	"\"rights\": [\"attach\", \"admin\"]" more "}"
#define CONFIG(bytes, more)                                                                        \
	"{\"kv_ram_bytes\": \"" bytes                                                              \
	"\", \"kv_ram_lock\": false, \"pools\": [" POOL("main") ", " POOL(                         \
	    "other") "], \"namespaces\": [" NAMESPACE("a", more) ", " NAMESPACE("b", "") "]}\n"

/* Four frames: room for 128 pages of 64 KiB. */
static const char scarce[] = CONFIG("10MiB", "");
/* The same, and what `a` has there goes for nobody else. */
static const char sure[] = CONFIG("10MiB", ", \"guaranteed_kv_ram_bytes\": \"5MiB\"");
static const char ample[] = CONFIG("320MiB", "");

static const struct engine_model small = {.pool = "main", /* 64 KiB a page */
					  .n_layers = 4,
					  .heads = 2,
					  .k_dim = 64,
					  .v_dim = 64,
					  .format = KVHOST_FLOAT32};
static const struct engine_model large = {.pool = "other", /* 1 MiB */
					  .n_layers = 4,
					  .heads = 32,
					  .k_dim = 64,
					  .v_dim = 64,
					  .format = KVHOST_FLOAT32};
static const struct engine_model huge = {.pool = "main", /* 2.5 MiB */
					 .n_layers = 4,
					 .heads = 80,
					 .k_dim = 64,
					 .v_dim = 64,
					 .format = KVHOST_FLOAT32};

static struct daemon d;
static struct engine a, b, other;

static int setup(void **state)
{
	(void)state;
	d = (struct daemon){0};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&a);
	engine_stop(&b);
	engine_stop(&other);
	daemon_remove(&d);
	return 0;
}

static void start(const char *format)
{
	static char json[2048];

	(void)snprintf(json, sizeof(json), format, geteuid(), geteuid());
	daemon_start(&d, json);
}

static void join(struct engine *e, const char *name_space, const struct engine_model *m)
{
	struct kvhost_options options = {
	    .socket = d.socket, .client = "engine", .name_space = name_space};

	*e = (struct engine){0};
	assert_int_equal(kvhost_connect(&options, &e->host), 0);
	assert_int_equal(engine_attach(e, m), 0);
}

static struct kvhost_open_result serve(struct engine *e, uint32_t number)
{
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, PROMPT, 0, number);
	return stamped_serve(e, tokens, PROMPT);
}

static uint64_t counter(const char *pool, const char *name)
{
	return daemon_pool_counter(&d, pool, name);
}

/* Both pools, as the daemon has them now. */
static bool is_at_rest(void *context)
{
	char *answer = NULL, *at;
	unsigned n = 0;

	(void)context;
	assert_int_equal(kvhost_ask(a.host, "tiers", "", &answer), 0);
	for (at = answer; (at = strstr(at, "\"leaving_pages\":0,\"arriving_pages\":0")); at++)
		n++;
	free(answer);
	return n == 2;
}

static void expect_rest(void)
{
	assert_true(await(is_at_rest, NULL, LONG_MS));
	assert_true(engine_check(&a));
}

/* ---- refused ---- */

static void what_ranks_below_all_of_ram_is_refused(void **state)
{
	(void)state;
	start(scarce);
	join(&a, "a", &small);
	/* Used twice: protected, until there is no room for anything else. */
	for (uint32_t i = 0; i < 12; i++) {
		(void)serve(&a, i);
		(void)serve(&a, i);
	}
	expect_rest();
	assert_int_equal(counter("main", "ram_refused"), 0);
	(void)serve(&a, 100); /* used once, and gone */
	(void)serve(&a, 101);
	(void)serve(&a, 102);
	expect_rest();
	assert_int_equal(serve(&a, 100).cached_tokens, 0);
	assert_true(counter("main", "ram_refused") > 0);
	assert_true(counter("main", "pool_discards") > 0);
}

/* Prompts of one page each follow faster than what leaves for them is copied. */
static bool is_refused_as_all_moves(void *context)
{
	static uint32_t number = 2000;
	uint32_t tokens[PAGE + 1];

	(void)context;
	for (int i = 0; i < 40; i++) {
		engine_tokens(tokens, PAGE + 1, 0, number++);
		assert_int_equal(engine_serve(&a, tokens, PAGE + 1, NULL), 0);
	}
	return counter("main", "ram_refused_busy") > 0;
}

static void what_finds_all_of_ram_on_its_way_is_refused_for_that(void **state)
{
	(void)state;
	start(scarce);
	join(&a, "a", &huge);
	assert_true(await(is_refused_as_all_moves, NULL, LONG_MS));
	expect_rest();
	assert_true(counter("main", "ram_refused") >= counter("main", "ram_refused_busy"));
	assert_int_equal(counter("main", "ram_refused_quota"), 0);
}

/* ---- wanted back ---- */

/* Two prompts, the first of which has just begun to leave. */
static void push_out(void)
{
	char *answer = NULL;

	assert_int_equal(kvhost_ask(a.host, "drop", "", &answer), 0);
	free(answer);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t tokens[PROMPT];
		struct kvhost_prompt p = {.tokens = tokens, .n_tokens = PROMPT};
		struct kvhost_sequence *seq = NULL;
		struct kvhost_open_result found;

		engine_tokens(tokens, PROMPT, 0, i);
		assert_int_equal(kvhost_open(a.pool, &p, &seq, &found), 0);
		stamped_fill(&a, seq, tokens, PROMPT);
		assert_int_equal(kvhost_close(&seq), 0);
	}
}

static bool is_seen_leaving(void *context)
{
	(void)context;
	push_out();
	for (int i = 0; i < 100; i++) {
		if (counter("main", "ram_pages_leaving"))
			return true;
	}
	return false;
}

static bool has_stayed(void *context)
{
	(void)context;
	push_out();
	(void)serve(&a, 0);
	return counter("main", "ram_spills_kept") > 0;
}

static void what_is_wanted_back_while_it_leaves_stays(void **state)
{
	(void)state;
	start(ample);
	join(&a, "a", &huge);
	assert_true(await(is_seen_leaving, NULL, LONG_MS));
	assert_true(await(has_stayed, NULL, LONG_MS));
	expect_rest();
}

/* ---- moved aside ---- */

static void drop(const char *name_space)
{
	char *answer = NULL;

	assert_int_equal(kvhost_ask(a.host, "drop", name_space, &answer), 0);
	free(answer);
}

/* Small pages of two namespaces lie in turns in every frame; then one of the two goes, and no frame
 * is free for a larger page. */
static void make_holes(void)
{
	join(&a, "a", &small);
	join(&b, "b", &small);
	join(&other, "b", &large);
	for (uint32_t i = 0; i < 4; i++) {
		(void)serve(&a, i);
		(void)serve(&b, i);
	}
	expect_rest();
	drop("b");
}

/* Until a page of the other pool has found a place. */
static bool has_a_large_page(void *context)
{
	static uint32_t number = 50;

	(void)context;
	(void)serve(&other, number++);
	return counter("other", "ram_spills") > 0;
}

static void pages_are_moved_aside_for_a_larger_one(void **state)
{
	(void)state;
	start(sure);
	make_holes();
	assert_true(await(has_a_large_page, NULL, LONG_MS));
	assert_true(daemon_counter(&d, "kv_ram_pages_relocated") > 0);
	assert_int_equal(daemon_counter(&d, "kv_ram_relocations_failed"), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(serve(&a, i).cached_tokens, PAGES * PAGE);
	expect_rest();
}

static bool has_failed_to_relocate(void *context)
{
	(void)has_a_large_page(context);
	return daemon_counter(&d, "kv_ram_relocations_failed") >= 3;
}

static void what_cannot_be_moved_aside_stays_where_it_is(void **state)
{
	(void)state;
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_FAILPOINT=ram_relocation:0:3";
	start(sure);
	make_holes();
	assert_true(await(has_failed_to_relocate, NULL, LONG_MS));
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(serve(&a, i).cached_tokens, PAGES * PAGE);
	expect_rest();
}

/* ---- does not arrive ---- */

static void what_does_not_arrive_in_ram_stays_on_the_device(void **state)
{
	(void)state;
	d.program = "tests/hostile/kvhostd_test";
	/* The first to leave is the last of its prompt: nothing stands on it. */
	d.environment = "KVHOST_TEST_FAILPOINT=ram_spill:0:1";
	start(ample);
	join(&a, "a", &small);
	(void)serve(&a, 0);
	(void)serve(&a, 1);
	expect_rest();
	assert_int_equal(daemon_await(&d, "main", "ram_spills_failed", 1, LONG_MS), 1);
	assert_int_equal(counter("main", "pool_discards"), 0);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(serve(&a, i % 3).cached_tokens, i == 2 ? 0 : PAGES * PAGE);
	expect_rest();
	assert_int_equal(counter("main", "ram_spills_failed"), 1);
	assert_int_equal(counter("main", "pool_discards"), 0);
}

/* ---- what kvctl calls it ---- */

/* What kvctl tiers calls otherwise than the stats file, as docs/tiers.md has it. */
static const struct {
	const char *counter, *label, *path;
} names[] = {
    {"ram_spills", "spills", "pools.0.moves.spills"},
    {"ram_spills_kept", "spills kept", "pools.0.moves.spills_kept"},
    {"ram_spills_failed", "spills failed", "pools.0.moves.spills_failed"},
    {"ram_releases", "releases", "pools.0.moves.releases"},
    {"ram_refused", "refused", "pools.0.moves.refused"},
    {"ram_refused_busy", "refused busy", "pools.0.moves.refused_busy"},
    {"ram_refused_quota", "refused quota", "pools.0.moves.refused_quota"},
    {"ram_displaced", "displaced", "pools.0.moves.displaced"},
    {"ram_restores", "restores", "pools.0.moves.restores"},
    {"ram_restores_failed", "restores failed", "pools.0.moves.restores_failed"},
    {"ram_image_spills", "image spills", "pools.0.moves.image_spills"},
    {"ram_image_spills_failed", "image spills failed", "pools.0.moves.image_spills_failed"},
    {"ram_image_restores", "image restores", "pools.0.moves.image_restores"},
    {"ram_image_restores_failed", "image restores failed", "pools.0.moves.image_restores_failed"},
    {"ram_pages_leaving", "leaving pages", "pools.0.moves.leaving_pages"},
    {"ram_pages_arriving", "arriving pages", "pools.0.moves.arriving_pages"},
    {"pool_discards", "discards", "pools.0.moves.discards"},
    {"ram_bytes_down", "down", "pools.0.moves.down_bytes"},
    {"ram_copies_down", "down copies", "pools.0.moves.down_copies"},
    {"ram_bytes_up", "up", "pools.0.moves.up_bytes"},
    {"ram_copies_up", "up copies", "pools.0.moves.up_copies"},
    {"live_pages_parked", "parked pages", "pools.0.live.parked_pages"},
    {"live_pages_returned", "returned pages", "pools.0.live.returned_pages"},
    {"ram_places_live", "private places", "pools.0.live.private_places"},
    {"live_sequences_lost", "lost sequences", "pools.0.live.lost_sequences"},
    {"live_sequences_discarded", "discarded sequences", "pools.0.live.discarded_sequences"},
    {"ram_hits", "hits in kv ram", "pools.0.hits_in_kv_ram"},
    {"ram_hit_pages", "hit pages", "pools.0.tiers.1.hit_pages"},
    {"ram_pages", "pages", "pools.0.tiers.1.pages"},
    {"ram_images", "images", "pools.0.tiers.1.images"},
    {"ram_bytes_used", "used", "pools.0.tiers.1.used_bytes"},
};
#define NAMES (sizeof(names) / sizeof(*names))

/* The row of the table that has the counter. */
static void expect_in_the_table(const char *page, const char *counter, const char *label)
{
	char wanted[64];
	const char *row, *at;

	(void)snprintf(wanted, sizeof(wanted), "`%s`", counter);
	row = strstr(page, "| counter | in `kvctl tiers` | counts |");
	for (row = row ? strchr(row, '\n') : NULL; row; row = strchr(row + 1, '\n')) {
		at = strstr(row, wanted);
		if (at && at < row + 1 + strcspn(row + 1, "\n"))
			break;
	}
	if (!row)
		fail_msg("docs/tiers.md has no row of %s", counter);
	(void)snprintf(wanted, sizeof(wanted), "`%s`", label);
	at = strstr(row, wanted);
	if (!at || at > row + 1 + strcspn(row + 1, "\n"))
		fail_msg("docs/tiers.md does not say that %s is \"%s\"", counter, label);
}

static void what_moved_are_counters_whose_names_are_told(void **state)
{
	static char page[65536];
	const char *top = getenv("srcdir");
	char path[512];
	FILE *in;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/docs/tiers.md", top && top[0] ? top : ".");
	in = fopen(path, "re");
	assert_non_null(in);
	page[fread(page, 1, sizeof(page) - 1, in)] = 0;
	fclose(in);
	start(ample);
	join(&a, "a", &small);
	for (uint32_t i = 0; i < 6; i++)
		(void)serve(&a, i % 5);
	expect_rest();
	assert_int_equal(kvctl(&d, "tiers", "--json", NULL, NULL), 0);
	assert_true(said_number("pools.0.moves.restores") > 0);
	for (size_t i = 0; i < NAMES; i++) {
		uint64_t value = (uint64_t)said_number(names[i].path);

		assert_int_equal(daemon_await(&d, "main", names[i].counter, value, WITHIN_MS),
				 value);
		expect_in_the_table(page, names[i].counter, names[i].label);
	}
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	for (size_t i = 0; i < NAMES; i++)
		assert_true(says(names[i].label));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_ranks_below_all_of_ram_is_refused),
	    TEST(what_finds_all_of_ram_on_its_way_is_refused_for_that),
	    TEST(what_is_wanted_back_while_it_leaves_stays),
	    TEST(pages_are_moved_aside_for_a_larger_one),
	    TEST(what_cannot_be_moved_aside_stays_where_it_is),
	    TEST(what_does_not_arrive_in_ram_stays_on_the_device),
	    TEST(what_moved_are_counters_whose_names_are_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
