/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_cancel: opens that are cancelled while their pages come from KV-RAM, again and again:
 * nothing of them stays, neither in KV-RAM nor in the daemon; and a client never gets a hold of
 * KV-RAM itself. One thread, one daemon a test; every wait has a deadline.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/footprint.h"
#include "tests/e2e/stamped.h"

#define PAGE    16
#define PAGES   120
#define PROMPT  (PAGES * PAGE + 1)
#define PROMPTS 3
#define WARM    100
#define ABORTS  1000

static const char config[] =
    "{\"kv_ram_bytes\": \"64MiB\", \"kv_ram_lock\": false, \"pools\": [{\"name\": \"main\","
    " \"pool_pages\": 280, \"kv_page_size\": 16, \"map\": true, \"max_sequence_length\": 2000,"
    " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": 40,"
    " \"retained_order\": \"lru\", \"ram_floor_tokens\": 0}]}\n";

static const struct engine_model model = {.pool = "main", /* 64 KiB a page */
					  .n_layers = 4,
					  .heads = 2,
					  .k_dim = 64,
					  .v_dim = 64,
					  .format = KVHOST_FLOAT32,
					  .map = 1};

static struct daemon d;
static struct engine e;

static int setup(void **state)
{
	(void)state;
	d = (struct daemon){0};
	daemon_start(&d, config);
	return engine_start(&e, d.socket, &model);
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&e);
	daemon_remove(&d);
	return 0;
}

static uint64_t counter(const char *name)
{
	return daemon_pool_counter(&d, "main", name);
}

static void serve(uint32_t number)
{
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, PROMPT, 0, number);
	(void)stamped_serve(&e, tokens, PROMPT);
}

static bool is_at_rest(void *context)
{
	(void)context;
	return counter("ram_pages_leaving") == 0 && counter("ram_pages_arriving") == 0 &&
	       counter("pool_sequences") == 0 && counter("pool_pages_live") == 0;
}

/* An open that is cancelled at once, or once it has been looked at. True: it was cancelled. */
static bool open_and_cancel(uint32_t number)
{
	static uint32_t tokens[PROMPT];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = PROMPT};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq = NULL;
	struct kvhost_finished finished;
	kvhost_ticket ticket;

	engine_tokens(tokens, PROMPT, 0, number % PROMPTS);
	assert_int_equal(kvhost_submit_open(e.pool, &p, &seq, &found, NULL, &ticket), 0);
	if (number % 2)
		assert_int_equal(kvhost_ping(e.host), 0);
	assert_int_equal(kvhost_cancel(e.host, ticket), 0);
	assert_int_equal(kvhost_wait(e.host, ticket, LONG_MS * 1000ull * PATIENCE, &finished), 0);
	if (finished.result == 0) {
		assert_true(stamped_is(&e, seq, tokens, found.cached_tokens));
		assert_int_equal(kvhost_close(&seq), 0);
		return false;
	}
	assert_int_equal(finished.result, KVHOST_ECANCELLED);
	return true;
}

static void opens_that_are_cancelled_leave_nothing_behind(void **state)
{
	struct footprint before = {0};
	uint64_t pages = 0, cancelled = 0;

	(void)state;
	for (uint32_t i = 0; i < PROMPTS; i++)
		serve(i);
	for (uint32_t i = 0; i < WARM + ABORTS; i++) {
		if (i == WARM) {
			assert_true(await(is_at_rest, NULL, LONG_MS));
			before = footprint_of(d.pid);
			pages = counter("ram_pages");
		}
		cancelled += open_and_cancel(i);
	}
	assert_true(await(is_at_rest, NULL, LONG_MS));
	assert_true(cancelled > ABORTS / 10);
	assert_int_equal(counter("ram_pages"), pages);
	assert_int_equal(counter("ram_bytes_used"), pages * e.info->page_stride);
	assert_int_equal(daemon_counter(&d, "kv_ram_bytes_used"), pages * e.info->page_stride);
	assert_int_equal(counter("pool_pages_retained") + counter("pool_pages_free"), 280);
	assert_int_equal(counter("pool_discards"), 0);
	expect_footprint(d.pid, &before);
	assert_true(engine_check(&e));
	/* What was fetched for nobody is served to whoever wants it. */
	for (uint32_t i = 0; i < PROMPTS; i++)
		serve(i);
	assert_int_equal(counter("pool_misses_no_match"), PROMPTS);
}

/* ---- what a client has ---- */

static bool maps_of_this_process_have(const char *name)
{
	char line[512];
	bool found = false;
	FILE *f = fopen("/proc/self/maps", "re");

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		found |= strstr(line, name) != NULL;
	fclose(f);
	return found;
}

static bool descriptors_of_this_process_have(const char *name)
{
	DIR *folder = opendir("/proc/self/fd");
	const struct dirent *entry;
	bool found = false;

	assert_non_null(folder);
	while ((entry = readdir(folder))) {
		char path[300], target[256];
		ssize_t n;

		(void)snprintf(path, sizeof(path), "/proc/self/fd/%.200s", entry->d_name);
		n = readlink(path, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = 0;
		found |= strstr(target, name) != NULL;
	}
	closedir(folder);
	return found;
}

/* The pages of a mapped pool are the client's as well; those of KV-RAM never are. */
static void no_client_gets_a_hold_of_ram(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 2 * PROMPTS; i++)
		serve(i % PROMPTS);
	assert_true(counter("ram_hits") > 0);
	assert_true(maps_of_this_process_have("memfd:kvhost-pool"));
	assert_false(maps_of_this_process_have("kvhost-ram"));
	assert_false(maps_of_this_process_have("kvhost-headers"));
	assert_false(descriptors_of_this_process_have("kvhost-ram"));
	assert_false(descriptors_of_this_process_have("kvhost-headers"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(opens_that_are_cancelled_leave_nothing_behind, setup,
					    teardown),
	    cmocka_unit_test_setup_teardown(no_client_gets_a_hold_of_ram, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
