/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_programs: the example engine, the bench and an idle daemon.
 *
 * The toy engine checks every byte that it reuses. The replay of a real trace has known counts; it
 * is skipped where the trace does not lie beside the source tree. One thread.
 */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/footprint.h"

#define TRACE "../shared/traces/conversation_trace.jsonl.gz"

static struct daemon d;
static char said[65536];

static int teardown(void **state)
{
	(void)state;
	daemon_remove(&d);
	return 0;
}

/* ---- the toy engine ---- */

static void run_toy(const char *config, const char *pool)
{
	char *const argv[] = {"examples/toy/toy",
			      "--socket",
			      d.socket,
			      "--requests",
			      "12",
			      pool ? "--pool" : NULL,
			      (char *)(uintptr_t)pool,
			      NULL};

	daemon_start(&d, config);
	if (run_program(argv, said, sizeof(said), LONG_MS) != 0)
		fail_msg("%s", said);
	/* The second and later requests find the system prompt. */
	assert_non_null(strstr(said, "cached 0,"));
	assert_non_null(strstr(said, "cached 512,"));
	assert_int_equal(daemon_stop(&d, 5000), 0);
	daemon_remove(&d);
}

static void the_example_engine_finds_its_bytes_in_memory_that_it_maps(void **state)
{
	(void)state;
	run_toy(NULL, NULL);
}

static void the_example_engine_finds_its_bytes_by_request(void **state)
{
	(void)state;
	run_toy("{\"pools\": [{\"name\": \"chat\", \"pool_bytes\": \"64MiB\", \"map\": false,"
		" \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null}]}\n",
		"chat");
}

/* What the example engine is told of a daemon that has no such pool. */
static const char *toy_refused(const char *config, const char *pool)
{
	char *const argv[] = {"examples/toy/toy",      "--socket", d.socket, "--pool",
			      (char *)(uintptr_t)pool, NULL};

	daemon_start(&d, config);
	assert_int_equal(run_program(argv, said, sizeof(said), LONG_MS), 1);
	daemon_remove(&d);
	return said;
}

static void an_engine_that_asks_for_no_pool_is_told_which_there_are(void **state)
{
	char config[8192];
	const char *list;
	int used;

	(void)state;
	assert_non_null(strstr(toy_refused("{\"pools\": [{\"name\": \"chat\"}, {\"name\": "
					   "\"code\"}]}\n",
					   "main"),
			       "no pool of this namespace is called \"main\"; its pools: chat, "
			       "code\n"));
	(void)snprintf(config, sizeof(config),
		       "{\"pools\": [{\"name\": \"chat\", \"namespaces\": [\"others\"]}],"
		       " \"namespaces\": [{\"name\": \"a\", \"uids\": [%u]}, {\"name\":"
		       " \"others\", \"uids\": [61001]}]}\n",
		       (unsigned)geteuid());
	assert_non_null(strstr(toy_refused(config, "chat"),
			       "no pool of this namespace is called \"chat\"; its pools: none\n"));
	/* More than a refusal holds. */
	used = snprintf(config, sizeof(config), "{\"pools\": [");
	for (unsigned i = 0; i < 64; i++)
		used +=
		    snprintf(config + used, sizeof(config) - (size_t)used,
			     "%s{\"name\": \"a-pool-with-a-long-name-of-%02u\"}", i ? ", " : "", i);
	(void)snprintf(config + used, sizeof(config) - (size_t)used, "]}\n");
	list = strstr(toy_refused(config, "main"), "its pools: a-pool-with-a-long-name-of-00, a-");
	assert_non_null(list);
	assert_string_equal(list + strlen(list) - 4, "...\n");
}

static void the_example_engines_say_how_they_are_called(void **state)
{
	static const char *const programs[] = {"examples/toy/toy", "examples/toy/hybrid"};

	(void)state;
	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
		char *const help[] = {(char *)(uintptr_t)programs[i], "--help", NULL};
		char *const wrong[] = {(char *)(uintptr_t)programs[i], "--sockets", "/x", NULL};

		assert_int_equal(run_program(help, said, sizeof(said), LONG_MS), 0);
		assert_ptr_equal(strstr(said, "usage: "), said);
		assert_int_equal(run_program(wrong, said, sizeof(said), LONG_MS), 2);
		assert_non_null(strstr(said, "usage: "));
	}
}

/* ---- the bench, over a real trace ---- */

static const char *trace(void)
{
	static char path[512];
	const char *top = getenv("srcdir");

	if (PATIENCE > 1) {
		print_message("# the whole trace takes minutes under a sanitizer\n");
		skip();
	}
	(void)snprintf(path, sizeof(path), "%s/%s", top && top[0] ? top : ".", TRACE);
	if (access(path, R_OK) == 0)
		return path;
	print_message("# there is no %s\n", path);
	skip();
	return NULL;
}

static void replay(const char *option, const char *value, const char *clients)
{
	char *const argv[] = {"kvbench",
			      "replay",
			      (char *)(uintptr_t)trace(),
			      "--json",
			      "--order",
			      "lru",
			      "--clients",
			      (char *)(uintptr_t)clients,
			      (char *)(uintptr_t)option,
			      (char *)(uintptr_t)value,
			      NULL};

	if (run_program(argv, said, sizeof(said), 3 * LONG_MS) != 0)
		fail_msg("%s", said);
}

/* A number of the line of the replay. */
static uint64_t reported(const char *name)
{
	char *line = strstr(said, "{\"case\":\"replay.1\"");
	json_t *root;
	uint64_t value;

	assert_non_null(line);
	root = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
	assert_non_null(root);
	assert_true(json_is_integer(json_object_get(root, name)));
	value = (uint64_t)json_integer_value(json_object_get(root, name));
	json_decref(root);
	return value;
}

static void a_trace_in_its_order_finds_exactly_what_was_there(void **state)
{
	(void)state;
	replay("--budget", "null", "1");
	assert_int_equal(reported("blocks"), 288500);
	assert_int_equal(reported("blocks_hit"), 105710);
}

static void a_budget_keeps_the_pages_that_the_reference_order_keeps(void **state)
{
	static const struct {
		const char *budget;
		uint64_t hits;
	} cases[] = {{"10000", 61046}, {"20000", 83035}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		replay("--budget", cases[i].budget, "1");
		assert_in_range(reported("blocks_hit"), cases[i].hits - cases[i].hits / 100,
				cases[i].hits + cases[i].hits / 100);
		assert_int_equal(reported("over_budget_samples"), 0);
	}
}

static void four_clients_never_find_a_line_that_is_not_theirs(void **state)
{
	(void)state;
	replay("--payload", "stamp", "4");
	assert_true(reported("stamp_lines_checked") > 1000000);
	assert_int_equal(reported("stamp_mismatches"), 0);
	assert_int_equal(reported("new_lines_not_zero"), 0);
}

/* ---- the bench of tiers ---- */

/* Small pools and one round: the figures say nothing, the moves must be there. */
static void run_tiers(const char *cases)
{
	char *const argv[] = {"kvbench",
			      "tiers",
			      "--json",
			      "--cases",
			      (char *)(uintptr_t)cases,
			      "--rounds=1",
			      "--moved-bytes=16777216",
			      "--restore-tokens=640",
			      "--page-sizes=8192,65536",
			      "--image-bytes=8388608",
			      NULL};

	if (run_program(argv, said, sizeof(said), LONG_MS) != 0)
		fail_msg("%s", said);
}

static void assert_measured(const char *name)
{
	char start[128];

	(void)snprintf(start, sizeof(start), "{\"case\":\"%s\",\"status\":\"measured\"", name);
	if (!strstr(said, start))
		fail_msg("no %s in %s", start, said);
}

static void the_bench_moves_pages_down_and_up(void **state)
{
	(void)state;
	run_tiers("bandwidth");
	assert_measured("tiers.down.589824");
	assert_measured("tiers.up.589824");
	assert_measured("tiers.down.1572864");
	assert_measured("tiers.up.1572864");
	run_tiers("restore");
	assert_measured("tiers.restore");
	/* All pages but one, which the pool keeps. */
	assert_non_null(strstr(said, "\"restored_tokens\":640,\"moved_a_round_bytes\":37748736"));
	run_tiers("state");
	assert_measured("tiers.state");
	/* All pages, and the image, which lies in a slot of whole 4 KiB. */
	assert_non_null(strstr(said, "\"moved_a_round_bytes\":50331648"));
	run_tiers("sizes");
	assert_measured("tiers.sizes.down");
	assert_measured("tiers.sizes.up");
}

/* ---- idle ---- */

static void a_daemon_with_idle_clients_sleeps(void **state)
{
	struct engine e[2];
	uint64_t cpu_ns, began_ms;

	(void)state;
	daemon_start(&d, NULL);
	for (int i = 0; i < 2; i++)
		assert_int_equal(engine_connect(&e[i], d.socket), 0);
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 2, WITHIN_MS), 2);
	began_ms = now_ms();
	cpu_ns = cpu_ns_of(d.pid);
	while (now_ms() - began_ms < 2000)
		pause_ms(100);
	/* 5 % of a core. */
	assert_in_range(cpu_ns_of(d.pid) - cpu_ns, 0, (now_ms() - began_ms) * 50000);
	for (int i = 0; i < 2; i++)
		engine_stop(&e[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(the_example_engine_finds_its_bytes_in_memory_that_it_maps,
				      teardown),
	    cmocka_unit_test_teardown(the_example_engine_finds_its_bytes_by_request, teardown),
	    cmocka_unit_test_teardown(an_engine_that_asks_for_no_pool_is_told_which_there_are,
				      teardown),
	    cmocka_unit_test(the_example_engines_say_how_they_are_called),
	    cmocka_unit_test_teardown(a_daemon_with_idle_clients_sleeps, teardown),
	    cmocka_unit_test(the_bench_moves_pages_down_and_up),
	    cmocka_unit_test(a_trace_in_its_order_finds_exactly_what_was_there),
	    cmocka_unit_test(a_budget_keeps_the_pages_that_the_reference_order_keeps),
	    cmocka_unit_test(four_clients_never_find_a_line_that_is_not_theirs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
