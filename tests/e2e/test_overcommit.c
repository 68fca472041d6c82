/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_overcommit: a pool that admits more than there is room for (pools.overcommit). Where a step
 * finds no page anywhere, the sequence that ranks lowest is discarded: its client is told why, can
 * close it and compute it again; all it had is given back, and the others go on bit-exact.
 *
 * One thread that plays two clients.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/stamped.h"

#define PAGE       16u
#define MOST_PAGES 12u
#define MOST       (MOST_PAGES * PAGE)
#define SHORT      (MOST - 5)
#define POOL_PAGES 26u
#define POOL       "live"

#define CONFIG(ram, pool)                                                                          \
	"{" ram "\"pools\": [{\"name\": \"" POOL "\", \"pool_pages\": 26, \"kv_page_size\": 16,"   \
	" \"max_sequence_length\": 192, \"enable_prefix_caching\": true,"                          \
	" \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0, \"retained_order\": "         \
	"\"lru\"" pool "}]}\n"
#define NO_RAM "\"kv_ram_bytes\": 0, "
/* With places for all that they have. */
#define SOME_RAM                                                                                   \
	"\"kv_ram_bytes\": \"8MiB\", \"kv_ram_page_bytes\": \"4KiB\", \"kv_ram_lock\": false, "

struct conversation {
	struct engine *engine;
	struct kvhost_sequence *seq;
	uint32_t tokens[MOST];
};

static struct daemon d;
static struct engine mine, others;
static struct conversation low, first, second;

static int start(const char *config)
{
	struct engine_model m = ENGINE_SMALL(POOL);

	d = (struct daemon){0};
	daemon_start(&d, config);
	return engine_start(&mine, d.socket, &m) || engine_start(&others, d.socket, &m);
}

static int setup(void **state)
{
	(void)state;
	return start(CONFIG(NO_RAM, ", \"overcommit\": true"));
}

static int setup_off(void **state)
{
	(void)state;
	return start(CONFIG(NO_RAM, ""));
}

static int setup_ram(void **state)
{
	(void)state;
	return start(CONFIG(SOME_RAM, ", \"overcommit\": true, \"live_in_ram\": true"));
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&mine);
	engine_stop(&others);
	daemon_remove(&d);
	return 0;
}

static void expect(const char *name, uint64_t value)
{
	assert_int_equal(daemon_await(&d, POOL, name, value, LONG_MS), value);
}

static int try_to_begin(struct conversation *c, struct engine *e, uint32_t number,
			uint32_t priority)
{
	struct kvhost_prompt prompt = {
	    .tokens = c->tokens, .n_tokens = MOST, .priority = priority, .deadline_us = 50000};
	struct kvhost_open_result found;

	c->engine = e;
	engine_tokens(c->tokens, MOST, 0, number);
	return kvhost_open(e->pool, &prompt, &c->seq, &found);
}

static void begin(struct conversation *c, struct engine *e, uint32_t number, uint32_t priority)
{
	assert_int_equal(try_to_begin(c, e, number, priority), 0);
}

static void go_on(struct conversation *c, uint32_t to)
{
	stamped_fill(c->engine, c->seq, c->tokens, to);
	assert_true(stamped_is(c->engine, c->seq, c->tokens, to));
}

static void assert_is_discarded(int result)
{
	assert_int_equal(result, KVHOST_ELOST);
	assert_non_null(strstr(kvhost_reason(mine.host), "the sequence was discarded"));
	assert_non_null(strstr(kvhost_reason(mine.host), "pools.overcommit"));
}

static void expect_nothing_used(void)
{
	expect("pool_sequences", 0);
	expect("pool_pages_live", 0);
	expect("pool_pages_reserved", 0);
	expect("pool_table_refs", 0);
	expect("pool_transfer_pins", 0);
	expect("pool_active_transactions", 0);
	expect("ram_places_live", 0);
	assert_int_equal(daemon_pool_counter(&d, POOL, "pool_pages_free") +
			     daemon_pool_counter(&d, POOL, "pool_pages_retained"),
			 POOL_PAGES);
	assert_int_equal(daemon_pool_counter(&d, POOL, "pool_refused_references"), 0);
	assert_true(engine_check(&mine) && engine_check(&others));
}

static void the_lowest_goes_and_its_client_is_told(void **state)
{
	struct kvhost_open_result found;
	struct kvhost_step step;

	(void)state;
	begin(&low, &mine, 1, KVHOST_AGENT);
	go_on(&low, SHORT);
	begin(&first, &others, 2, KVHOST_INTERACTIVE);
	go_on(&first, MOST);
	begin(&second, &others, 3, KVHOST_INTERACTIVE);
	expect("live_sequences_discarded", 0);
	go_on(&second, MOST);
	expect("live_sequences_discarded", 1);
	assert_is_discarded(kvhost_step_begin(low.seq, MOST, 0, &step));
	assert_is_discarded(kvhost_truncate(low.seq, PAGE));
	expect("live_sequences_lost", 0);
	assert_int_equal(kvhost_close(&low.seq), 0);
	assert_true(stamped_is(&others, first.seq, first.tokens, MOST));
	assert_true(stamped_is(&others, second.seq, second.tokens, MOST));
	assert_int_equal(kvhost_close(&first.seq), 0);
	assert_int_equal(kvhost_close(&second.seq), 0);
	expect_nothing_used();
	found = stamped_serve(&mine, low.tokens, MOST);
	assert_true(found.cached_tokens < SHORT);
	found = stamped_serve(&mine, low.tokens, MOST);
	assert_int_equal(found.cached_tokens, MOST - PAGE);
	expect_nothing_used();
}

/* What there is place for below is not lost. */
static void what_has_a_place_below_goes_there_first(void **state)
{
	(void)state;
	begin(&low, &mine, 1, KVHOST_AGENT);
	go_on(&low, SHORT);
	begin(&first, &others, 2, KVHOST_INTERACTIVE);
	go_on(&first, MOST);
	begin(&second, &others, 3, KVHOST_INTERACTIVE);
	go_on(&second, MOST);
	expect("live_sequences_discarded", 0);
	for (unsigned ms = 0; daemon_pool_counter(&d, POOL, "live_pages_parked") == 0; ms++) {
		assert_true(ms < LONG_MS);
		pause_ms(1);
	}
	assert_int_equal(kvhost_close(&first.seq), 0);
	go_on(&low, MOST);
	assert_int_equal(kvhost_close(&second.seq), 0);
	assert_int_equal(kvhost_close(&low.seq), 0);
	expect_nothing_used();
}

static void without_it_who_comes_later_waits(void **state)
{
	(void)state;
	begin(&low, &mine, 1, KVHOST_AGENT);
	go_on(&low, SHORT);
	begin(&first, &others, 2, KVHOST_INTERACTIVE);
	go_on(&first, MOST);
	assert_int_equal(try_to_begin(&second, &others, 3, KVHOST_INTERACTIVE), KVHOST_ETIMEDOUT);
	expect("live_sequences_discarded", 0);
	go_on(&low, MOST);
	assert_int_equal(kvhost_close(&first.seq), 0);
	assert_int_equal(kvhost_close(&low.seq), 0);
	expect_nothing_used();
}

#define AT(test, which)                                                                            \
	{                                                                                          \
		.name = #test, .test_func = test, .setup_func = which, .teardown_func = teardown   \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    AT(the_lowest_goes_and_its_client_is_told, setup),
	    AT(what_has_a_place_below_goes_there_first, setup_ram),
	    AT(without_it_who_comes_later_waits, setup_off),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
