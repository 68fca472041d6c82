/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_shares: two namespaces in one KV-RAM: what each is sure of, what it may have at most,
 * and that neither is told what the other has. One thread; one user, who may use both.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/tier/ram.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/stamped.h"

#define PAGE   16
#define PAGES  16
#define PROMPT (PAGES * PAGE + 1)
#define FLOOD  12 /* prompts: three times what KV-RAM holds */

/* A page of 64 KiB, and what is kept to know it by. KV-RAM has room for 64. */
#define COPY_BYTES (65536u + RAM_KNOWN_BYTES)
#define SHARE      (PAGES * COPY_BYTES)

static const struct engine_model model = {
    .pool = "main", .n_layers = 4, .heads = 2, .k_dim = 64, .v_dim = 64, .format = KVHOST_FLOAT32};

static struct daemon d;
static struct engine a, b;

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
	daemon_remove(&d);
	return 0;
}

static void join(struct engine *e, const char *name_space)
{
	struct kvhost_options options = {
	    .socket = d.socket, .client = "engine", .name_space = name_space};

	*e = (struct engine){0};
	assert_int_equal(kvhost_connect(&options, &e->host), 0);
	assert_int_equal(engine_attach(e, &model), 0);
	assert_int_equal(e->info->page_stride, COPY_BYTES - RAM_KNOWN_BYTES);
}

/* More words for each of the two namespaces. */
static void start(const char *of_a, const char *of_b)
{
	static char json[1024];

	(void)snprintf(
	    json, sizeof(json),
	    "{\"kv_ram_bytes\": \"6MiB\", \"kv_ram_lock\": false, \"pools\": [{\"name\": \"main\","
	    " \"pool_pages\": 64, \"kv_page_size\": 16, \"max_sequence_length\": 272,"
	    " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": 20,"
	    " \"ram_floor_tokens\": 0, \"retained_order\": \"lru\"}], \"namespaces\": ["
	    "{\"name\": \"a\", \"uids\": [%u], \"managed_prefix_cache_salt\": \"one\","
	    " \"rights\": [\"attach\", \"admin\"]%s},"
	    "{\"name\": \"b\", \"uids\": [%u], \"managed_prefix_cache_salt\": \"two\","
	    " \"rights\": [\"attach\", \"admin\"]%s}]}\n",
	    geteuid(), of_a, geteuid(), of_b);
	daemon_start(&d, json);
	join(&a, "a");
	join(&b, "b");
}

static struct kvhost_open_result serve(struct engine *e, uint32_t number)
{
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, PROMPT, 0, number);
	return stamped_serve(e, tokens, PROMPT);
}

static struct kvhost_open_result look_up(struct engine *e, uint32_t number)
{
	struct kvhost_open_result found;
	uint32_t tokens[PROMPT];

	memset(&found, 0xee, sizeof(found));
	engine_tokens(tokens, PROMPT, 0, number);
	assert_int_equal(
	    kvhost_lookup(e->pool, &(struct kvhost_prompt){.tokens = tokens, .n_tokens = PROMPT},
			  &found),
	    0);
	return found;
}

static uint64_t holds(const char *name_space)
{
	return daemon_pool_counter(&d, name_space, "namespace_kv_ram_bytes");
}

/* Is what the first has stored still there after the second has stored much? */
static uint32_t outlives_a_flood(void)
{
	(void)serve(&a, 1);
	for (uint32_t i = 0; i < FLOOD; i++)
		(void)serve(&b, 100 + i);
	return look_up(&a, 1).cached_tokens;
}

static char guarantee[64], quota[64];

static void what_a_namespace_is_guaranteed_outlives_what_others_store(void **state)
{
	struct kvhost_open_result found;

	(void)state;
	start(guarantee, "");
	assert_int_equal(outlives_a_flood(), PAGES * PAGE);
	assert_int_equal(daemon_await(&d, "a", "namespace_kv_ram_bytes", SHARE, LONG_MS), SHARE);
	assert_true(daemon_pool_counter(&d, "main", "ram_displaced") > 0);
	found = serve(&a, 1);
	assert_int_equal(found.cached_tokens, PAGES * PAGE);
	assert_int_equal(found.tier, KVHOST_KV_RAM);
	assert_int_equal(look_up(&b, 100).cached_tokens, 0);
	assert_true(engine_check(&a));
}

static void without_a_guarantee_it_goes(void **state)
{
	(void)state;
	start("", "");
	assert_true(outlives_a_flood() < PAGES * PAGE);
}

static void without_that_protection_it_goes_in_spite_of_it(void **state)
{
	(void)state;
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_PROTECTION_OFF=guarantees_are_kept";
	start(guarantee, "");
	assert_true(outlives_a_flood() < PAGES * PAGE);
}

static void a_namespace_holds_no_more_than_its_quota(void **state)
{
	(void)state;
	start("", quota);
	(void)serve(&a, 1);
	for (uint32_t i = 0; i < FLOOD; i++) {
		(void)serve(&b, 100 + i);
		assert_in_range(holds("b"), 0, SHARE);
	}
	/* It gave up its own, and nothing of the other. */
	assert_int_equal(daemon_await(&d, "b", "namespace_kv_ram_bytes", SHARE, LONG_MS), SHARE);
	assert_int_equal(look_up(&a, 1).cached_tokens, PAGES * PAGE);
	assert_int_equal(serve(&a, 1).tier, KVHOST_KV_RAM);
	assert_true(engine_check(&a));
}

static void what_one_namespace_has_in_ram_is_not_told_to_the_other(void **state)
{
	struct kvhost_open_result known, unknown;

	(void)state;
	start("", "");
	for (uint32_t i = 0; i < 2; i++)
		(void)serve(&a, i);
	assert_int_equal(look_up(&a, 0).tier, KVHOST_KV_RAM);
	known = look_up(&b, 0);
	unknown = look_up(&b, 50);
	assert_memory_equal(&known, &unknown, sizeof(known));
	known = serve(&b, 0);
	unknown = serve(&b, 50);
	assert_memory_equal(&known, &unknown, sizeof(known));
	assert_int_equal(known.cached_tokens, 0);
	assert_int_equal(known.tier, KVHOST_NO_TIER);
	assert_int_equal(known.restore_ns, 0);
	/* The same tokens are there twice now, each with its own bytes. */
	assert_int_equal(serve(&a, 0).cached_tokens, PAGES * PAGE);
	assert_int_equal(serve(&b, 0).cached_tokens, PAGES * PAGE);
	assert_true(engine_check(&a));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_a_namespace_is_guaranteed_outlives_what_others_store),
	    TEST(without_a_guarantee_it_goes),
	    TEST(without_that_protection_it_goes_in_spite_of_it),
	    TEST(a_namespace_holds_no_more_than_its_quota),
	    TEST(what_one_namespace_has_in_ram_is_not_told_to_the_other),
	};

	(void)snprintf(guarantee, sizeof(guarantee), ", \"guaranteed_kv_ram_bytes\": %u", SHARE);
	(void)snprintf(quota, sizeof(quota), ", \"max_kv_ram_bytes\": %u", SHARE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
