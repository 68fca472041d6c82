/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_ops: KV-RAM as an operator has it: what kvctl shows, what is dropped, how a daemon
 * starts that cannot have it. One thread; every wait has a deadline.
 */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/operator.h"
#include "tests/e2e/stamped.h"

#define PAGE   16
#define PAGES  16
#define PROMPT (PAGES * PAGE + 1)
#define KEPT   20

#define RAM "\"kv_ram_bytes\": \"160MiB\", \"kv_ram_lock\": false"
#define POOL                                                                                       \
	"{\"name\": \"main\", \"pool_pages\": 64, \"kv_page_size\": 16, \"map\": true,"            \
	" \"max_sequence_length\": 272, \"enable_prefix_caching\": true, \"shadow_lru\": true,"    \
	" \"max_prefix_cache_pages\": 20, \"ram_floor_tokens\": 0, \"retained_order\": "

static const char config[] = "{" RAM ", \"pools\": [" POOL "\"lru\"}]}\n";
static const char learned[] =
    "{" RAM ", \"pools\": [" POOL "\"learned\"}, {\"name\": \"plain\"}]}\n";
static const char off[] = "{\"kv_ram_bytes\": 0, \"pools\": [" POOL "\"lru\"}]}\n";
static const char tiny[] =
    "{\"kv_ram_bytes\": \"4MiB\", \"kv_ram_lock\": false, \"pools\": [" POOL "\"lru\"}]}\n";
static const char locked[] = "{\"kv_ram_bytes\": \"64MiB\", \"pools\": [" POOL "\"lru\"}]}\n";
static const char standard[] = "{\"pools\": [" POOL "\"lru\"}]}\n";
static const char chunks[] = "{\"kv_ram_bytes\": \"256MiB\", \"kv_ram_lock\": false,"
			     " \"kv_ram_chunk_bytes\": \"2MiB\", \"pools\": [" POOL "\"lru\"}]}\n";

static const struct engine_model small = {.pool = "main",
					  .n_layers = 2,
					  .heads = 1,
					  .k_dim = 32,
					  .v_dim = 32,
					  .format = KVHOST_FLOAT16,
					  .map = 1};
/* So large that a copy takes a while: 640 KiB a page, and 2.5 MiB. */
static const struct engine_model large = {.pool = "main",
					  .n_layers = 4,
					  .heads = 20,
					  .k_dim = 64,
					  .v_dim = 64,
					  .format = KVHOST_FLOAT32,
					  .map = 1};
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
	d = (struct daemon){0};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&e);
	daemon_remove(&d);
	return 0;
}

static void start(const char *json, const struct engine_model *m)
{
	daemon_start(&d, json);
	assert_int_equal(engine_start(&e, d.socket, m), 0);
}

static struct kvhost_open_result serve(uint32_t number)
{
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, PROMPT, 0, number);
	return stamped_serve(&e, tokens, PROMPT);
}

/* Without a look at it. */
static void serve_fast(uint32_t number)
{
	uint32_t tokens[PROMPT];

	engine_tokens(tokens, PROMPT, 0, number);
	assert_int_equal(engine_serve(&e, tokens, PROMPT, NULL), 0);
}

static json_t *ask(const char *question, const char *argument)
{
	char *answer = NULL;
	json_t *root;

	assert_int_equal(kvhost_ask(e.host, question, argument, &answer), 0);
	root = json_loads(answer, 0, NULL);
	free(answer);
	assert_non_null(root);
	return root;
}

/* A number of what the daemon answers now. */
static json_int_t tiers_have(const char *path)
{
	json_t *root = ask("tiers", "");
	json_int_t value = number_at(root, path);

	json_decref(root);
	return value;
}

static bool is_at_rest(void *context)
{
	(void)context;
	return tiers_have("pools.0.moves.leaving_pages") == 0 &&
	       tiers_have("pools.0.moves.arriving_pages") == 0;
}

static const char *text_at(const json_t *root, const char *list, size_t i, const char *key)
{
	const char *text =
	    json_string_value(json_object_get(json_array_get(json_object_get(root, list), i), key));

	return text ? text : "";
}

/* ---- what is shown ---- */

static void kvctl_tiers_shows_what_lies_where_and_what_moved(void **state)
{
	json_int_t hits, ram;
	json_t *root;

	(void)state;
	start(config, &small);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve(i);
	assert_true(await(is_at_rest, NULL, LONG_MS));
	(void)serve(4); /* is on the device */
	(void)serve(0);
	assert_true(await(is_at_rest, NULL, LONG_MS));
	root = ask("tiers", "");
	assert_string_equal(text_at(root, "tiers", 0, "tier"), "device");
	assert_string_equal(text_at(root, "tiers", 1, "tier"), "KV-RAM");
	assert_string_equal(text_at(root, "tiers", 2, "note"), "off: not in this version");
	assert_string_equal(text_at(root, "pools", 0, "kv_ram"), "yes");
	hits = number_at(root, "pools.0.tiers.0.hit_pages");
	ram = number_at(root, "pools.0.tiers.1.hit_pages");
	assert_int_equal(hits, PAGES);
	assert_int_equal(ram, PAGES);
	assert_int_equal(number_at(root, "pools.0.order.hits"), hits + ram);
	assert_int_equal(number_at(root, "pools.0.order.shadow_lru_hits"), PAGES);
	assert_int_equal(number_at(root, "pools.0.moves.restores"), PAGES);
	assert_int_equal(number_at(root, "pools.0.moves.spills"), 6 * PAGES - KEPT);
	assert_int_equal(number_at(root, "pools.0.moves.discards"), 0);
	assert_int_equal(number_at(root, "pools.0.floor.tokens"), 0);
	assert_int_equal(number_at(root, "pools.0.tiers.0.pages"), KEPT);
	assert_int_equal(number_at(root, "pools.0.tiers.0.used_bytes"), KEPT * e.info->page_stride);
	assert_int_equal(number_at(root, "tiers.0.used_bytes"), KEPT * e.info->page_stride);
	assert_int_equal(number_at(root, "tiers.0.capacity_bytes"), 64 * e.info->page_stride);
	assert_int_equal(number_at(root, "pools.0.tiers.1.used_bytes"),
			 number_at(root, "pools.0.tiers.1.pages") * e.info->page_stride);
	assert_int_equal(number_at(root, "tiers.1.used_bytes"),
			 number_at(root, "pools.0.tiers.1.used_bytes"));
	assert_true(number_at(root, "namespaces.0.kv_ram_used_bytes") >
		    number_at(root, "tiers.1.used_bytes"));
	json_decref(root);
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("  KV-RAM   on "));
	assert_true(says("  KV-disk  off "));
	assert_true(says("restores failed  0"));
	assert_true(says("shadow lru hits  16"));
	assert_int_equal(count_of("restore of a token  -"), 0);
}

static void what_was_not_measured_yet_is_no_number(void **state)
{
	(void)state;
	start(config, &small);
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("prefill of a token  -\n"));
	assert_true(says("restore of a token  -\n"));
	assert_true(says("restore delay       -\n"));
	(void)serve(0);
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_int_equal(count_of("prefill of a token  -"), 0);
	assert_true(says("restore of a token  -\n"));
}

/* What the order has learned is long: of one pool, or for programs. */
static void what_an_order_has_learned_is_told_of_one_pool_or_in_json(void **state)
{
	(void)state;
	start(learned, &small);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve(i);
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("plain"));
	assert_int_equal(count_of("age opens"), 0);
	assert_int_equal(kvctl(&d, "tiers", "main", NULL, NULL), 0);
	assert_int_equal(count_of("age opens"), 1);
	assert_int_equal(count_of("plain"), 0);
	assert_int_equal(count_of("\n    ghosts  "), 1);
	assert_int_equal(count_of("\n    ghosts memory  "), 1);
	assert_int_equal(kvctl(&d, "tiers", "--json", NULL, NULL), 0);
	assert_int_equal(count_of("\"table\""), 1);
	assert_true(says("\"pool\": \"plain\""));
	assert_int_equal(kvctl(&d, "tiers", "nobody", NULL, NULL), 1);
	assert_true(says("no pool is called \"nobody\""));
	assert_int_equal(kvctl(&d, "pools", "--json", NULL, NULL), 0);
	assert_int_equal(count_of("\"table\""), 0);
}

/* ---- it arrives ---- */

static bool has_state(void *state)
{
	json_t *root = ask("tiers", "");
	bool is = !strcmp(text_at(root, "tiers", 1, "state"), state);

	json_decref(root);
	return is;
}

static void ram_arrives_while_the_daemon_serves(void **state)
{
	static char on[] = "on", arriving[] = "arriving";
	json_int_t there = 0, wanted = 0;
	bool seen = false;

	(void)state;
	for (int i = 0; i < 20 && !seen; i++) {
		engine_stop(&e);
		daemon_remove(&d);
		start(chunks, &small);
		seen = has_state(arriving);
	}
	assert_true(seen);
	while (has_state(arriving)) {
		json_int_t now = tiers_have("tiers.1.capacity_bytes");

		assert_true(now >= there);
		there = now;
		(void)serve((uint32_t)there % 7);
	}
	assert_true(has_state(on));
	wanted = tiers_have("tiers.1.wanted_bytes");
	assert_int_equal(tiers_have("tiers.1.capacity_bytes"), wanted);
	assert_int_equal(daemon_await(&d, "", "kv_ram_bytes_capacity", (uint64_t)wanted, LONG_MS),
			 wanted);
	assert_int_equal(daemon_counter(&d, "kv_ram_bytes_wanted"), wanted);
	assert_true(wanted < 256 << 20 && wanted > 200 << 20);
	assert_true(engine_check(&e));
}

static void what_did_not_arrive_is_said_and_the_rest_serves(void **state)
{
	static char partial[] = "partial";

	(void)state;
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_FAILPOINT=arena_chunk:3:1";
	start(chunks, &small);
	assert_true(await(has_state, partial, LONG_MS));
	assert_true(tiers_have("tiers.1.capacity_bytes") < tiers_have("tiers.1.wanted_bytes"));
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says(" bytes are there: "));
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_true(says("\"KV-RAM: "));
	assert_int_equal(kvctl(&d, "doctor", NULL, NULL, NULL), 1);
	assert_true(says("MEND  KV-RAM: "));
	read_log(&d);
	assert_true(says("warning: KV-RAM: "));
	for (uint32_t i = 0; i < 5; i++)
		(void)serve(i);
	assert_int_equal(serve(0).tier, KVHOST_KV_RAM);
}

/* ---- it cannot be had ---- */

static void ram_that_is_asked_for_and_cannot_be_locked_ends_the_start(void **state)
{
	char said[4096];

	(void)state;
	if (!daemon_can_limit_locks()) {
		print_message("the right to lock memory cannot be given up here\n");
		skip();
	}
	d.lock_bytes = 1 << 20;
	daemon_make(&d, locked);
	assert_int_equal(daemon_try(&d, said, sizeof(said)), 3);
	assert_non_null(strstr(said, "kvhostd: kv_ram_bytes: KV-RAM wants "));
	assert_non_null(strstr(said, "RLIMIT_MEMLOCK allows 1048576: set LimitMEMLOCK=infinity in "
				     "the unit, or ulimit -l unlimited"));
}

static void without_being_asked_for_it_is_left_out(void **state)
{
	(void)state;
	if (!daemon_can_limit_locks()) {
		print_message("the right to lock memory cannot be given up here\n");
		skip();
	}
	d.lock_bytes = 1 << 20;
	daemon_make(&d, standard);
	d.has_ram = true; /* as its configuration has it: the default */
	daemon_begin(&d);
	assert_int_equal(engine_start(&e, d.socket, &small), 0);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve(i);
	assert_int_equal(serve(0).cached_tokens, 0);
	assert_int_equal(kvctl(&d, "tiers", "--json", NULL, NULL), 0);
	assert_true(says("\"state\": \"off\""));
	assert_true(says("\"note\": \"off: KV-RAM wants "));
	assert_true(says("RLIMIT_MEMLOCK allows 1048576"));
	assert_true(says("\"kv_ram\": \"no: KV-RAM is off\""));
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_true(says("\"KV-RAM is off: KV-RAM wants "));
	(void)kvctl(&d, "doctor", NULL, NULL, NULL);
	assert_true(says("note  KV-RAM: off: KV-RAM wants "));
	assert_true(says("MEND  locked memory: 1 MiB for the daemon"));
	read_log(&d);
	assert_true(says("warning: KV-RAM is off: KV-RAM wants "));
	assert_int_equal(daemon_counter(&d, "kv_ram_bytes_wanted"), 0);
}

/* Pools are never locked: with nothing in KV-RAM to lock no limit is too small. */
static void what_is_not_to_be_locked_needs_no_limit(void **state)
{
	(void)state;
	if (!daemon_can_limit_locks()) {
		print_message("the right to lock memory cannot be given up here\n");
		skip();
	}
	d.lock_bytes = 1 << 20;
	start(config, &small);
	(void)kvctl(&d, "doctor", "--json", NULL, NULL);
	assert_string_equal(diagnosis("locked memory", "state"), "ok");
	assert_string_equal(diagnosis("locked memory", "needed"),
			    "nothing: there is no KV-RAM that is to be locked");
}

static void ram_that_is_off_says_so(void **state)
{
	(void)state;
	start(off, &small);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve(i);
	assert_int_equal(serve(0).cached_tokens, 0);
	assert_int_equal(daemon_await(&d, "main", "ram_spills", 0, WITHIN_MS), 0);
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("off: kv_ram_bytes is 0"));
	assert_true(says("no: KV-RAM is off"));
	(void)kvctl(&d, "doctor", NULL, NULL, NULL);
	assert_true(says("ok    KV-RAM: off: kv_ram_bytes is 0"));
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_true(says("\"warnings\": []"));
	read_log(&d);
	assert_true(says("notice: KV-RAM is off: kv_ram_bytes is 0"));
}

static void a_pool_whose_page_is_larger_than_ram_is_served_without(void **state)
{
	(void)state;
	start(tiny, &wide);
	for (uint32_t i = 0; i < 2; i++)
		(void)serve(i);
	assert_int_equal(serve(0).tier, KVHOST_DEVICE);
	assert_int_equal(daemon_await(&d, "main", "ram_spills", 0, WITHIN_MS), 0);
	assert_int_equal(kvctl(&d, "tiers", NULL, NULL, NULL), 0);
	assert_true(says("no: a page has 2621440 bytes, KV-RAM 2097152"));
	assert_int_equal(kvctl(&d, "health", NULL, NULL, NULL), 0);
	assert_true(says("pool main: KV-RAM does not serve it: a page has 2621440 bytes"));
	read_log(&d);
	assert_true(says("warning: pool main: KV-RAM does not serve it: a page has 2621440 bytes, "
			 "KV-RAM 2097152; a larger kv_ram_bytes would change it"));
	assert_true(engine_check(&e));
}

/* ---- drop ---- */

static void expect_nothing_kept(void)
{
	assert_int_equal(tiers_have("pools.0.tiers.1.pages"), 0);
	assert_int_equal(tiers_have("pools.0.tiers.1.used_bytes"), 0);
	assert_int_equal(tiers_have("tiers.1.used_bytes"), 0);
	assert_int_equal(tiers_have("namespaces.0.kv_ram_used_bytes"), 0);
	assert_int_equal(daemon_await(&d, "main", "pool_pages_retained", 0, LONG_MS), 0);
	assert_true(engine_check(&e));
}

static void a_drop_takes_from_all_tiers(void **state)
{
	json_t *root;

	(void)state;
	start(config, &small);
	for (uint32_t i = 0; i < 5; i++)
		(void)serve(i);
	(void)serve(0); /* is in both tiers now */
	assert_true(await(is_at_rest, NULL, LONG_MS));
	root = ask("drop", "default");
	assert_int_equal(number_at(root, "dropped_pages"), 5 * PAGES);
	assert_true(number_at(root, "dropped_kv_ram_copies") > 4 * PAGES);
	json_decref(root);
	expect_nothing_kept();
	assert_int_equal(serve(0).cached_tokens, 0);
	assert_int_equal(kvctl(&d, "drop", "--all", "--json", NULL), 0);
	assert_true(says("\"dropped_pages\": 16"));
}

static void a_drop_waits_for_what_is_on_its_way(void **state)
{
	json_int_t left = 0;

	(void)state;
	start(config, &wide);
	for (uint32_t i = 0; i < 10; i++) {
		json_t *root;

		serve_fast(0);
		serve_fast(1);
		left += tiers_have("pools.0.moves.leaving_pages");
		root = ask("drop", "");
		assert_int_equal(number_at(root, "dropped_pages"), 2 * PAGES);
		json_decref(root);
		expect_nothing_kept();
	}
	/* The test is worth something only if there was something. */
	assert_true(left > 0);
}

static void wait_for(kvhost_ticket ticket)
{
	struct kvhost_finished finished;

	assert_int_equal(kvhost_wait(e.host, ticket, LONG_MS * 1000ull * PATIENCE, &finished), 0);
	assert_int_equal(finished.result, 0);
}

/* An open that fetches, with a drop somewhere on its way: what it is given is right. */
static void open_and_drop(struct engine *operator, uint32_t number, unsigned pings)
{
	uint32_t tokens[PROMPT];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = PROMPT};
	struct kvhost_sequence *seq = NULL;
	struct kvhost_open_result found;
	kvhost_ticket ticket;
	char *answer = NULL;

	engine_tokens(tokens, PROMPT, 0, number);
	assert_int_equal(kvhost_submit_open(e.pool, &p, &seq, &found, NULL, &ticket), 0);
	for (unsigned i = 0; i < pings; i++)
		assert_int_equal(kvhost_ping(operator->host), 0);
	assert_int_equal(kvhost_ask(operator->host, "drop", "", &answer), 0);
	free(answer);
	wait_for(ticket);
	assert_true(stamped_is(&e, seq, tokens, found.cached_tokens));
	stamped_fill(&e, seq, tokens, PROMPT);
	assert_int_equal(kvhost_ask(operator->host, "drop", "default", &answer), 0);
	free(answer);
	assert_true(stamped_is(&e, seq, tokens, PROMPT));
	assert_int_equal(kvhost_close(&seq), 0);
}

static void a_drop_at_any_point_takes_nothing_that_is_used(void **state)
{
	struct engine operator;
	uint64_t fetched;

	(void)state;
	start(config, &large);
	assert_int_equal(engine_connect(&operator, d.socket), 0);
	for (unsigned i = 0; i < 16; i++) {
		for (uint32_t k = 0; k < 3; k++)
			(void)serve(k);
		if (i % 3)
			assert_true(await(is_at_rest, NULL, LONG_MS));
		open_and_drop(&operator, i % 3, i * i * 16);
		assert_true(engine_check(&e));
	}
	fetched = daemon_pool_counter(&d, "main", "ram_restores");
	assert_true(fetched > 0);
	engine_stop(&operator);
}

static bool has_been_busy(void *context)
{
	*(uint64_t *)context = daemon_pool_counter(&d, "main", "ram_busy_down_ns");
	return *(uint64_t *)context > 0;
}

/* The memory of a pool goes back, and with it what KV-RAM has of it. */
static void a_pool_that_is_dropped_leaves_nothing_in_ram(void **state)
{
	uint64_t busy_ns = 0;

	(void)state;
	start(config, &wide);
	for (uint32_t i = 0; i < 4; i++)
		serve_fast(i);
	assert_true(await(is_at_rest, NULL, LONG_MS));
	assert_true(await(has_been_busy, &busy_ns, LONG_MS));
	assert_int_equal(kvhost_pool_detach(&e.pool), 0);
	assert_int_equal(kvctl(&d, "pool", "drop", "main", NULL), 0);
	assert_int_equal(tiers_have("tiers.1.used_bytes"), 0);
	assert_int_equal(tiers_have("pools.0.tiers.1.pages"), 0);
	/* Counters only grow. */
	assert_int_equal(tiers_have("pools.0.moves.spills"), 4 * PAGES - KEPT);
	assert_int_equal(tiers_have("pools.0.moves.down_bytes"), (4 * PAGES - KEPT) * 2621440ll);
	assert_int_equal(engine_attach(&e, &small), 0);
	assert_int_equal(tiers_have("pools.0.moves.down_bytes"), (4 * PAGES - KEPT) * 2621440ll);
	assert_true(daemon_pool_counter(&d, "main", "ram_busy_down_ns") >= busy_ns);
	for (uint32_t i = 0; i < 4; i++)
		(void)serve(i);
	assert_int_equal(serve(0).tier, KVHOST_KV_RAM);
	assert_true(engine_check(&e));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(kvctl_tiers_shows_what_lies_where_and_what_moved),
	    TEST(what_was_not_measured_yet_is_no_number),
	    TEST(what_an_order_has_learned_is_told_of_one_pool_or_in_json),
	    TEST(ram_arrives_while_the_daemon_serves),
	    TEST(what_did_not_arrive_is_said_and_the_rest_serves),
	    TEST(ram_that_is_asked_for_and_cannot_be_locked_ends_the_start),
	    TEST(without_being_asked_for_it_is_left_out),
	    TEST(what_is_not_to_be_locked_needs_no_limit),
	    TEST(ram_that_is_off_says_so),
	    TEST(a_pool_whose_page_is_larger_than_ram_is_served_without),
	    TEST(a_drop_takes_from_all_tiers),
	    TEST(a_drop_waits_for_what_is_on_its_way),
	    TEST(a_drop_at_any_point_takes_nothing_that_is_used),
	    TEST(a_pool_that_is_dropped_leaves_nothing_in_ram),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
