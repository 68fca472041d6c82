/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_payload: eight clients at once put, find, fork, cut and give up prompts in a pool so small
 * that something is evicted all the time; every 64-byte line of every page says whose it is.
 *
 * Shows that no line of a hit is ever another's: read while written, given away too early, at the
 * wrong place, or of another layer, side, head or position. Two layouts, through mapped memory and
 * through row requests, odd batch sizes. See payload.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/payload.h"

static const char config[] =
    "{\"pools\": ["
    "{\"name\": \"wide\", \"map\": true, \"pool_pages\": 176, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 512, \"enable_prefix_caching\": true,"
    " \"max_prefix_cache_pages\": null, \"retained_order\": \"lru\","
    " \"default_deadline_us\": 100000},"
    "{\"name\": \"deep\", \"map\": true, \"pool_pages\": 90, \"kv_page_size\": 32,"
    " \"max_sequence_length\": 512, \"enable_prefix_caching\": true,"
    " \"max_prefix_cache_pages\": null, \"default_deadline_us\": 100000}]}\n";

static struct daemon d;

static const struct engine_model models[] = {
    {.pool = "wide",
     .n_layers = 2,
     .heads = 3,
     .k_dim = 64,
     .v_dim = 32,
     .format = KVHOST_FLOAT16,
     .map = 1},
    {.pool = "deep",
     .n_layers = 4,
     .heads = 1,
     .k_dim = 32,
     .v_dim = 128,
     .format = KVHOST_FLOAT32,
     .map = 1},
};

/* The test is worth something only if there were hits, and pages given up and copied. */
static void churn(const struct engine_model *model)
{
	const struct payload_scene scene = {.model = model,
					    .least_tokens = 1,
					    .most_tokens = 512,
					    .clients = PAYLOAD_CLIENTS,
					    .chains = 24,
					    .trunk_tokens = 80,
					    .rounds = is_long() ? 4000 : 60};
	struct payload_sums sums;

	payload_churn(&d, &scene, 1, &sums);
	assert_true(sums.hits > scene.rounds);
	assert_true(sums.lines > 0);
	assert_true(daemon_pool_counter(&d, model->pool, "prefix_evictions") > scene.rounds);
	assert_true(daemon_pool_counter(&d, model->pool, "prefix_copy_on_write_pages") > 0);
}

static void every_line_of_a_hit_is_its_own_in_pages_of_many_heads(void **state)
{
	(void)state;
	churn(&models[0]);
}

static void every_line_of_a_hit_is_its_own_in_pages_of_many_layers(void **state)
{
	(void)state;
	churn(&models[1]);
}

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_remove(&d);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_line_of_a_hit_is_its_own_in_pages_of_many_heads),
	    cmocka_unit_test(every_line_of_a_hit_is_its_own_in_pages_of_many_layers),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
