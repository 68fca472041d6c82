/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_payload: several clients at once, as in test_payload, with a device that keeps next to
 * nothing: most of what is found comes from KV-RAM, which is too small for all of it, and two page
 * sizes share it. No line of a hit is ever another's. See payload.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/payload.h"

#define POOL(name, pages, page, longest, order)                                                    \
	"{\"name\": \"" name "\", \"map\": true, \"pool_pages\": " pages                           \
	", \"kv_page_size\": " page ", \"max_sequence_length\": " longest                          \
	", \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": 8,"                        \
	" \"ram_floor_tokens\": 0, \"retained_order\": \"" order                                   \
	"\", \"default_deadline_us\": 10000000}"

static const char two[] =
    "{\"kv_ram_bytes\": \"40MiB\", \"kv_ram_page_bytes\": \"16KiB\", \"kv_ram_lock\": false,"
    " \"pools\": [" POOL("wide", "176", "16", "512", "lru") ", " POOL("deep", "88", "32", "512",
								      "learned") "]}\n";
static const char one[] =
    "{\"kv_ram_bytes\": \"40MiB\", \"kv_ram_page_bytes\": \"4KiB\", \"kv_ram_lock\": false,"
    " \"pools\": [" POOL("long", "1024", "16", "3584", "lru") "]}\n";
/* Room for two sequences of each client: nobody waits for a fork with what others wait for. */
static const char many[] =
    "{\"kv_ram_bytes\": \"300MiB\", \"kv_ram_page_bytes\": \"4KiB\", \"kv_ram_lock\": false,"
    " \"pools\": [" POOL("long", "15360", "16", "3584", "lru") "]}\n";

static struct daemon d;

static const struct engine_model wide = {.pool = "wide", /* 18 KiB a page */
					 .n_layers = 2,
					 .heads = 3,
					 .k_dim = 64,
					 .v_dim = 32,
					 .format = KVHOST_FLOAT16,
					 .map = 1};
static const struct engine_model deep = {.pool = "deep", /* 80 KiB */
					 .n_layers = 4,
					 .heads = 1,
					 .k_dim = 32,
					 .v_dim = 128,
					 .format = KVHOST_FLOAT32,
					 .map = 1};
static const struct engine_model narrow = {.pool = "long", /* 4 KiB */
					   .n_layers = 1,
					   .heads = 1,
					   .k_dim = 64,
					   .v_dim = 64,
					   .format = KVHOST_FLOAT16,
					   .map = 1};

static uint64_t counter(const struct engine_model *m, const char *name)
{
	return daemon_pool_counter(&d, m->pool, name);
}

/* Nearly all comes from KV-RAM, and not all of it fits there. */
static void churn(const char *config, const struct payload_scene *scenes, unsigned n)
{
	struct payload_sums sums[2];
	uint64_t found = 0, from_ram = 0;

	daemon_start(&d, config);
	payload_churn(&d, scenes, n, sums);
	for (unsigned i = 0; i < n; i++) {
		const struct engine_model *m = scenes[i].model;

		print_message("%s: %llu of %llu pages from KV-RAM, %llu displaced, %llu refused, "
			      "%llu lines\n",
			      m->pool, (unsigned long long)counter(m, "ram_hit_pages"),
			      (unsigned long long)counter(m, "prefix_hits"),
			      (unsigned long long)counter(m, "ram_displaced"),
			      (unsigned long long)counter(m, "ram_refused"),
			      (unsigned long long)sums[i].lines);
		found += counter(m, "prefix_hits");
		from_ram += counter(m, "ram_hit_pages");
		assert_true(sums[i].hits > scenes[i].rounds);
		assert_true(counter(m, "ram_hit_pages") > scenes[i].rounds);
		/* The learned order comes to know what returns: newcomers are refused then. */
		assert_true(counter(m, "ram_displaced") > (is_long() ? 60 : scenes[i].rounds));
		assert_true(counter(m, "ram_displaced") + counter(m, "ram_refused") >
			    scenes[i].rounds);
		assert_int_equal(counter(m, "ram_restores_failed"), 0);
		assert_int_equal(counter(m, "ram_spills_failed"), 0);
	}
	assert_true(from_ram * 10 >= found * 8);
}

static void every_line_that_comes_from_ram_is_its_own_in_pages_of_two_sizes(void **state)
{
	unsigned rounds = is_long() ? 4000 : 60;
	const struct payload_scene scenes[] = {{.model = &wide,
						.least_tokens = 256,
						.most_tokens = 512,
						.clients = 4,
						.chains = 50,
						.rounds = rounds},
					       {.model = &deep,
						.least_tokens = 256,
						.most_tokens = 512,
						.clients = 4,
						.chains = 16,
						.rounds = rounds}};

	(void)state;
	churn(two, scenes, 2);
	assert_true(daemon_counter(&d, "kv_ram_pages_relocated") > 0);
}

/* More than 200 pages each. */
static void every_line_that_comes_from_ram_is_its_own_in_long_chains(void **state)
{
	const struct payload_scene scene = {.model = &narrow,
					    .least_tokens = 3300,
					    .most_tokens = PAYLOAD_MOST_TOKENS,
					    .clients = 3,
					    .chains = 30,
					    .rounds = is_long() ? 400 : 32};

	(void)state;
	churn(one, &scene, 1);
}

/* The same for 32 clients at once, of whom few want what another one has at the time. */
static void every_line_is_its_own_for_many_clients(void **state)
{
	const struct payload_scene scene = {.model = &narrow,
					    .least_tokens = 3300,
					    .most_tokens = PAYLOAD_MOST_TOKENS,
					    .clients = PAYLOAD_CLIENTS,
					    .chains = 240,
					    .rounds = 80};

	(void)state;
	if (!is_long()) {
		print_message("make check-long runs this\n");
		skip();
	}
	churn(many, &scene, 1);
}

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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(
		every_line_that_comes_from_ram_is_its_own_in_pages_of_two_sizes, setup, teardown),
	    cmocka_unit_test_setup_teardown(
		every_line_that_comes_from_ram_is_its_own_in_long_chains, setup, teardown),
	    cmocka_unit_test_setup_teardown(every_line_is_its_own_for_many_clients, setup,
					    teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
