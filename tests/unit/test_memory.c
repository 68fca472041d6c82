/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/memory.h: which of staging and KV-RAM is there, and which is left out, when the
 * host lacks memory for one or both: at the nth look at what it has.
 */

#include "daemon/memory.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "daemon/config_sources.h"
#include "daemon/tier/nodes.h"
#include "tests/sim/executor.h"

#define MIB 1048576ull

static struct sim_executor executor;
static struct config config;
static struct memory memory;
static unsigned n_arrived;

static int setup(void **state)
{
	(void)state;
	failpoint_clear();
	sim_executor_init(&executor);
	memory = (struct memory){0};
	n_arrived = 0;
	return 0;
}

static void step(int result)
{
	assert_true(sim_executor_step(&executor, result));
	assert_int_equal(executor.executor.reap(&executor.executor, 9), 1);
}

static void stop(void)
{
	while (!memory_stop(&memory))
		step(-ECANCELED);
	memory_free(&memory);
	memory_free(&memory);
}

static int teardown(void **state)
{
	(void)state;
	failpoint_clear();
	stop();
	return sim_executor_is_idle(&executor) ? 0 : -1;
}

static void on_arrived(void *context)
{
	assert_ptr_equal(context, &n_arrived);
	n_arrived++;
}

static int start(const char *json)
{
	char error[CONFIG_ERROR_BYTES] = "";

	config_start(&config);
	assert_int_equal(config_take_text(&config, "test", json, strlen(json), error), 0);
	assert_int_equal(config_finish(&config, error), 0);
	return memory_start(&memory, &config, NODES_ANYWHERE, &executor.executor, NULL, on_arrived,
			    &n_arrived);
}

#define BOTH    "{\"kv_ram_lock\": false}"
#define RAM     "{\"kv_ram_lock\": false, \"kv_ram_bytes\": \"16MiB\"}"
#define STAGING "{\"kv_ram_lock\": false, \"kv_staging_bytes\": \"16MiB\"}"
#define BOTH_SET                                                                                   \
	"{\"kv_ram_lock\": false, \"kv_ram_bytes\": \"16MiB\", \"kv_staging_bytes\": \"16MiB\"}"
#define NONE "{\"kv_ram_bytes\": 0, \"kv_staging_bytes\": 0}"

static const struct {
	const char *json;
	unsigned skip, times; /* looks that find nothing left */
	int result;
	uint64_t staging_bytes; /* 0: none */
	bool ram;
	const char *staging_note, *ram_note; /* starts of them; NULL: it is there */
} scenes[] = {
    {BOTH, 0, 0, 0, 64 * MIB, true, NULL, NULL},
    {BOTH_SET, 0, 0, 0, 16 * MIB, true, NULL, NULL},
    {NONE, 0, 0, 0, 0, false, "off: kv_staging_bytes is 0", "off: kv_ram_bytes is 0"},
    /* Defaults go. */
    {BOTH, 0, 1, 0, 0, true, "off: Staging wants 67108864 bytes, MemAvailable", NULL},
    {BOTH, 1, 1, 0, 64 * MIB, false, NULL, "off: KV-RAM wants "},
    {BOTH, 0, 2, 0, 0, false, "off: Staging wants ", "off: KV-RAM wants "},
    {STAGING, 1, 1, 0, 16 * MIB, false, NULL, "off: KV-RAM wants "},
    {RAM, 0, 1, 0, 0, true, "off: Staging wants ", NULL},
    /* It would fit by itself: the default beside it goes. */
    {RAM, 1, 1, 0, 0, true, "off: KV-RAM wants ", NULL},
    /* What is set stays, or nothing is taken. */
    {RAM, 1, 2, -ENOMEM, 0, false, NULL, NULL},
    {STAGING, 0, 1, -ENOMEM, 0, false, NULL, NULL},
    {BOTH_SET, 0, 1, -ENOMEM, 0, false, NULL, NULL},
    {BOTH_SET, 1, 1, -ENOMEM, 0, false, NULL, NULL},
};

static void check_note(const char *note, const char *start_of)
{
	if (start_of)
		assert_memory_equal(note, start_of, strlen(start_of));
	else
		assert_string_equal(note, "");
}

static void what_is_set_is_there_and_defaults_as_far_as_they_fit(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
		int r;

		memory = (struct memory){0};
		failpoint_clear();
		/* Huge pages that do not fit are none, also where some are free. */
		failpoint_arm(FAILPOINT_arena_gigantic, 0, 9);
		failpoint_arm(FAILPOINT_arena_starved, scenes[i].skip, scenes[i].times);
		r = start(scenes[i].json);
		print_message("%zu: %d\n", i, r);
		assert_int_equal(r, scenes[i].result);
		assert_int_equal(memory.staging ? memory.staging->bytes : 0,
				 scenes[i].staging_bytes);
		assert_int_equal(memory.arena != NULL, scenes[i].ram);
		if (r == 0) {
			check_note(memory.staging_note, scenes[i].staging_note);
			check_note(memory.ram_note, scenes[i].ram_note);
		}
		stop();
	}
}

static void staging_comes_before_ram(void **state)
{
	(void)state;
	assert_int_equal(start(BOTH_SET), 0);
	assert_null(staging_window(memory.staging, STAGING_DOWN, 0));
	step(0);
	assert_non_null(staging_window(memory.staging, STAGING_DOWN, 0));
	assert_int_equal(memory.arena->arrived_bytes, 0);
	assert_int_equal(n_arrived, 0);
	while (!sim_executor_is_idle(&executor))
		step(0);
	assert_int_equal(memory.arena->state, ARENA_WHOLE);
	assert_int_equal(n_arrived, 1);
}

static void staging_that_does_not_come_stops_nobody(void **state)
{
	(void)state;
	assert_int_equal(start(BOTH_SET), 0);
	step(-EIO);
	assert_int_equal(memory.staging->state, ARENA_PARTIAL);
	while (!sim_executor_is_idle(&executor))
		step(0);
	assert_int_equal(memory.arena->state, ARENA_WHOLE);
	assert_int_equal(n_arrived, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_is_set_is_there_and_defaults_as_far_as_they_fit),
	    TEST(staging_comes_before_ram),
	    TEST(staging_that_does_not_come_stops_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
