/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_start: a daemon that is asked for KV-RAM which this host does not have: what is said
 * names what is wanted, what there is, the limit in the way and what changes it, and the exit code
 * is one of its own. One thread; every wait has a deadline.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/footprint.h"
#include "tests/e2e/operator.h"

#define EXIT_LIMIT 3

static struct daemon d;

static int setup(void **state)
{
	(void)state;
	d = (struct daemon){0};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_remove(&d);
	return 0;
}

/* All of these stand in one line of what it says. */
static void expect_refused(const char *json, const char *key, const char *const *words)
{
	static char said[8192];
	const char *line;
	char start[64];
	size_t length;

	daemon_make(&d, json);
	assert_int_equal(daemon_try(&d, said, sizeof(said)), EXIT_LIMIT);
	(void)snprintf(start, sizeof(start), "kvhostd: %s: ", key);
	line = strstr(said, start);
	if (!line)
		fail_msg("no line on %s in: %s", key, said);
	length = strcspn(line, "\n");
	/* Once, and not as if the daemon went on without. */
	assert_null(strstr(said, "KV-RAM is off"));
	for (; *words; words++) {
		const char *at = strstr(line, *words);

		if (!at || at >= line + length)
			fail_msg("there is no \"%s\" in: %.*s", *words, (int)length, line);
	}
}

#define WORDS(...)                                                                                 \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

static void more_memory_than_the_host_has_ends_the_start(void **state)
{
	(void)state;
	expect_refused("{\"kv_ram_bytes\": \"512TiB\", \"kv_ram_page_bytes\": \"1GiB\","
		       " \"kv_ram_lock\": false}\n",
		       "kv_ram_bytes", WORDS("KV-RAM wants 562", " bytes, ", "lower kv_ram_bytes"));
}

static void more_huge_pages_than_are_set_aside_end_the_start(void **state)
{
	(void)state;
	if (free_huge_pages() == 0) {
		print_message("this host has no huge pages\n");
		skip();
	}
	expect_refused("{\"kv_ram_bytes\": \"512TiB\", \"kv_ram_page_bytes\": \"1GiB\","
		       " \"kv_ram_lock\": false, \"core\": {\"require_hugepages\": true}}\n",
		       "kv_ram_bytes",
		       WORDS("KV-RAM wants 26", " huge pages of ",
			     " are free: ", "sysctl vm.nr_hugepages=26", "lower kv_ram_bytes"));
}

/* They were free when the daemon looked. */
static void huge_pages_that_others_take_meanwhile_end_the_start(void **state)
{
	(void)state;
	if (free_huge_pages() < 16) {
		print_message("this host has too few huge pages\n");
		skip();
	}
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_FAILPOINT=arena_pool:0:1";
	expect_refused("{\"kv_ram_bytes\": \"8MiB\", \"kv_ram_lock\": false,"
		       " \"core\": {\"require_hugepages\": true}}\n",
		       "kv_ram_bytes", WORDS("KV-RAM wants ", " huge pages", "lower kv_ram_bytes"));
}

static void a_node_that_is_not_there_ends_the_start(void **state)
{
	(void)state;
	expect_refused("{\"kv_ram_bytes\": \"8MiB\", \"kv_ram_lock\": false,"
		       " \"kv_ram_numa_node\": 1000}\n",
		       "kv_ram_numa_node", WORDS("no NUMA node 1000", "the first that it has is "));
}

/* Pools would lie there, too. */
static void a_node_that_is_not_there_ends_the_start_without_ram(void **state)
{
	(void)state;
	expect_refused("{\"kv_ram_bytes\": 0, \"kv_ram_numa_node\": 1000}\n", "kv_ram_numa_node",
		       WORDS("no NUMA node 1000", "the first that it has is "));
}

static bool is_whole(void *context)
{
	uint64_t wanted = daemon_counter(&d, "kv_ram_bytes_wanted");

	(void)context;
	return wanted > 0 && daemon_counter(&d, "kv_ram_bytes_capacity") == wanted;
}

/* Not required: it serves without them, and says so. */
static void huge_pages_that_others_take_meanwhile_are_done_without(void **state)
{
	(void)state;
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_FAILPOINT=arena_pool:0:1";
	daemon_start(&d, "{\"kv_ram_bytes\": \"8MiB\", \"kv_ram_lock\": false}\n");
	assert_true(await(is_whole, NULL, LONG_MS));
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_true(says("\"kv_ram\""));
	assert_true(says("\"state\": \"on\""));
}

/* Base pages, which the kernel counts, and so many that may be locked. */
static void limit_locks(uint64_t bytes)
{
	if (!daemon_can_limit_locks()) {
		print_message("the right to lock memory cannot be given up here\n");
		skip();
	}
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_FAILPOINT=arena_pool:0:2";
	d.lock_bytes = bytes;
}

/* As much as it wants may be locked, and not a page more. */
static void what_may_be_locked_is(void **state)
{
	(void)state;
	limit_locks(8 << 20);
	daemon_start(&d, "{\"kv_ram_bytes\": \"8MiB\", \"kv_ram_chunk_bytes\": \"2MiB\"}\n");
	assert_true(await(is_whole, NULL, LONG_MS));
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_true(says("\"note\": \"locked, "));
	assert_in_range(locked_bytes_of(d.pid), daemon_counter(&d, "kv_ram_bytes_wanted"), 8 << 20);
}

/* ---- staging ---- */

static bool log_says(void *words)
{
	read_log(&d);
	return says(words);
}

static void expect_health(const char *const *words)
{
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	for (; *words; words++) {
		if (!says(*words))
			fail_msg("health does not say %s", *words);
	}
}

static void staging_is_there_without_ram(void **state)
{
	(void)state;
	daemon_start(&d, "{\"kv_ram_bytes\": 0, \"kv_staging_bytes\": \"9MiB\","
			 " \"kv_ram_lock\": false}\n");
	assert_int_equal(daemon_await(&d, "", "staging_bytes", 8 << 20, LONG_MS), 8 << 20);
	assert_int_equal(daemon_counter(&d, "kv_ram_bytes_wanted"), 0);
	expect_health(WORDS("\"windows\": 4", "\"window_bytes\": 2097152",
			    "\"capacity_bytes\": 8388608", "\"note\": \"not locked, ",
			    "\"warnings\": []"));
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("staging"));
	assert_true(says("windows   4"));
}

static void staging_that_is_configured_must_be_there(void **state)
{
	(void)state;
	limit_locks(8 << 20);
	expect_refused("{\"kv_staging_bytes\": \"16MiB\"}\n", "kv_staging_bytes",
		       WORDS("Staging wants 16777216 bytes locked", "RLIMIT_MEMLOCK allows 8388608",
			     "ulimit -l unlimited"));
}

/* Both are configured, and only one fits. */
static void ram_must_fit_beside_staging(void **state)
{
	(void)state;
	limit_locks(8 << 20);
	expect_refused("{\"kv_staging_bytes\": \"8MiB\", \"kv_ram_bytes\": \"8MiB\"}\n",
		       "kv_ram_bytes",
		       WORDS("KV-RAM wants ", " locked", "of which 8388608 are in use"));
}

/* It was free when the daemon looked: the pools are served all the same. */
static void staging_that_does_not_come_is_told(void **state)
{
	(void)state;
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_FAILPOINT=arena_chunk:0:1";
	daemon_start(&d, "{\"kv_ram_bytes\": 0, \"kv_staging_bytes\": \"8MiB\","
			 " \"kv_ram_lock\": false}\n");
	assert_true(await(log_says, (void *)(uintptr_t) "warning: staging is missing: ", LONG_MS));
	assert_int_equal(daemon_counter(&d, "staging_bytes"), 0);
	expect_health(
	    WORDS("\"staging is missing: ", "lower kv_staging_bytes", "\"capacity_bytes\": 0"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(more_memory_than_the_host_has_ends_the_start),
	    TEST(more_huge_pages_than_are_set_aside_end_the_start),
	    TEST(huge_pages_that_others_take_meanwhile_end_the_start),
	    TEST(a_node_that_is_not_there_ends_the_start),
	    TEST(a_node_that_is_not_there_ends_the_start_without_ram),
	    TEST(huge_pages_that_others_take_meanwhile_are_done_without),
	    TEST(what_may_be_locked_is),
	    TEST(staging_is_there_without_ram),
	    TEST(staging_that_is_configured_must_be_there),
	    TEST(ram_must_fit_beside_staging),
	    TEST(staging_that_does_not_come_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
