/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pool_memory: an attach that makes a pool for which there is no memory is refused, in words,
 * and costs nobody anything: the daemon goes on, and so does everything that it has; once there is
 * room the same attach succeeds. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/control_group.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define MIB    (1ull << 20)
#define PROMPT 65

/* KV-RAM and the pool `big` fit each, and not both. */
#define LIMIT        (384 * MIB)
#define LIMIT_RAISED (1024 * MIB)

#define POOL(name, more)                                                                           \
	"{\"name\": \"" name "\", \"kv_page_size\": 16, \"max_sequence_length\": 512, " more "}"
#define SMALL POOL("small", "\"pool_pages\": 64, \"enable_prefix_caching\": true")
#define BIG   POOL("big", "\"pool_bytes\": \"256MiB\"")

static struct daemon d;
static struct control_group group;
static struct engine small, big;

static int setup(void **state)
{
	(void)state;
	d = (struct daemon){.program = "tests/hostile/kvhostd_test"};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&small);
	engine_stop(&big);
	daemon_remove(&d);
	control_group_remove(&group);
	return 0;
}

static int attach(struct engine *e, const char *pool)
{
	struct engine_model m = ENGINE_SMALL(pool);

	return engine_attach(e, &m);
}

static uint32_t serve(struct engine *e)
{
	uint32_t tokens[PROMPT], cached = 0;

	engine_tokens(tokens, PROMPT, 0, 1);
	assert_int_equal(engine_serve(e, tokens, PROMPT, &cached), 0);
	return cached;
}

/* An attach that is refused with these words, and no session notices any more of it. */
static void expect_refused(const char *const *words)
{
	const char *why;

	assert_int_equal(attach(&big, "big"), KVHOST_ENOMEM);
	why = kvhost_reason(big.host);
	print_message("%s\n", why);
	for (; *words; words++) {
		if (!strstr(why, *words))
			fail_msg("there is no \"%s\" in: %s", *words, why);
	}
	assert_int_equal(serve(&small), PROMPT - 1);
}

#define WORDS(...)                                                                                 \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

static void expect_end(void)
{
	assert_true(engine_check(&small));
	engine_stop(&small);
	engine_stop(&big);
	assert_int_equal(daemon_stop(&d, 5000), 0);
}

static void a_pool_that_the_host_has_no_memory_for_is_refused_until_it_has(void **state)
{
	(void)state;
	/* The second pool that is made. */
	d.environment = "KVHOST_TEST_FAILPOINT=pool_huge:0:9,pool_starved:1:2";
	daemon_start(&d, "{\"pools\": [" SMALL ", " BIG "]}\n");
	assert_int_equal(engine_connect(&small, d.socket), 0);
	assert_int_equal(engine_connect(&big, d.socket), 0);
	assert_int_equal(attach(&small, "small"), 0);
	assert_int_equal(serve(&small), 0);
	for (int i = 0; i < 2; i++)
		expect_refused(WORDS("pool big: it wants 26", " bytes with its index, ",
				     "MemAvailable of this host is 0: lower pools.pool_bytes, "
				     "or end what uses the memory"));
	assert_int_equal(attach(&big, "big"), 0);
	assert_int_equal(serve(&big), 0);
	expect_end();
}

static bool is_whole(void *context)
{
	uint64_t wanted = daemon_counter(&d, "kv_ram_bytes_wanted");

	(void)context;
	return wanted > 0 && daemon_counter(&d, "kv_ram_bytes_capacity") == wanted;
}

/* Whether KV-RAM is there already or not, it is in the limit, and the pool beside it is not. */
static void a_pool_that_its_control_group_has_no_memory_for_is_refused_until_it_has(void **state)
{
	char allows[64];

	(void)state;
	if (!control_group_make(&group, LIMIT)) {
		print_message("no control group with a limit of memory can be made here\n");
		skip();
	}
	(void)snprintf(allows, sizeof(allows), " allows %llu, of which ", LIMIT);
	d.group = group.processes;
	d.environment = "KVHOST_TEST_FAILPOINT=pool_huge:0:9,arena_pool:0:1";
	daemon_start(&d, "{\"kv_ram_bytes\": \"192MiB\", \"kv_ram_chunk_bytes\": \"2MiB\","
			 " \"kv_ram_lock\": false, \"pools\": [" SMALL ", " BIG "]}\n");
	assert_int_equal(engine_connect(&small, d.socket), 0);
	assert_int_equal(engine_connect(&big, d.socket), 0);
	assert_int_equal(attach(&small, "small"), 0);
	assert_int_equal(serve(&small), 0);
	expect_refused(WORDS("pool big: it wants 26", "/kvhost-test-", "/memory.", allows,
			     "set MemoryMax= of the unit, or lower pools.pool_bytes"));
	assert_true(await(is_whole, NULL, LONG_MS));
	expect_refused(WORDS("pool big: it wants 26", "/kvhost-test-", "/memory.", allows,
			     "set MemoryMax= of the unit, or lower pools.pool_bytes"));
	control_group_limit(&group, LIMIT_RAISED);
	assert_int_equal(attach(&big, "big"), 0);
	assert_int_equal(serve(&big), 0);
	expect_end();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_pool_that_the_host_has_no_memory_for_is_refused_until_it_has),
	    TEST(a_pool_that_its_control_group_has_no_memory_for_is_refused_until_it_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
