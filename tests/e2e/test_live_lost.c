/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_live_lost: a live sequence has made room for another one, and a page of it cannot be copied
 * back from KV-RAM: its client is told, can close it, and may compute it again; all it had is given
 * back, and the others go on bit-exact.
 *
 * One thread that plays two clients; the daemon fails the copy that a failpoint names. Nothing else
 * is fetched before it.
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
#define SHORT      (MOST - 5)        /* its last page is not full, so it is nobody else's */
#define POOL_PAGES 26u               /* two sequences and two pages more */
#define AWAY       (MOST_PAGES - 2u) /* pages that the third one wants of the first */
#define POOL       "live"

static const char config[] =
    "{\"kv_ram_bytes\": \"64MiB\", \"kv_ram_page_bytes\": \"4KiB\", \"kv_ram_lock\": false,"
    " \"pools\": [{\"name\": \"" POOL "\", \"pool_pages\": 26, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 192, \"enable_prefix_caching\": true,"
    " \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0, \"retained_order\": \"lru\","
    " \"live_in_ram\": true}]}\n";

struct conversation {
	struct engine *engine;
	struct kvhost_sequence *seq;
	uint32_t tokens[MOST];
};

static struct daemon d;
static struct engine mine, others;
static struct conversation low, first, second;
static uint32_t bad; /* of the pages of `low` that are away */

/* Its page that comes back as number n does not arrive. */
static int start(uint32_t n)
{
	static char failpoint[64];
	struct engine_model m = ENGINE_SMALL(POOL);

	bad = n;
	(void)snprintf(failpoint, sizeof(failpoint), "KVHOST_TEST_FAILPOINT=ram_restore:%u:1", n);
	d = (struct daemon){.program = "tests/hostile/kvhostd_test", .environment = failpoint};
	daemon_start(&d, config);
	return engine_start(&mine, d.socket, &m) || engine_start(&others, d.socket, &m);
}

static int setup_head(void **state)
{
	(void)state;
	return start(0);
}

static int setup_middle(void **state)
{
	(void)state;
	return start(5);
}

/* It comes back from its start: the page that is not full is the last. */
static int setup_partial(void **state)
{
	(void)state;
	return start(AWAY - 1);
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

static void begin(struct conversation *c, struct engine *e, uint32_t number, uint32_t priority)
{
	struct kvhost_prompt prompt = {.tokens = c->tokens, .n_tokens = MOST, .priority = priority};
	struct kvhost_open_result found;

	c->engine = e;
	engine_tokens(c->tokens, MOST, 0, number);
	assert_int_equal(kvhost_open(e->pool, &prompt, &c->seq, &found), 0);
	assert_int_equal(found.cached_tokens, 0);
}

static void go_on(struct conversation *c, uint32_t to)
{
	stamped_fill(c->engine, c->seq, c->tokens, to);
	assert_true(stamped_is(c->engine, c->seq, c->tokens, to));
}

static void end(struct conversation *c)
{
	assert_int_equal(kvhost_close(&c->seq), 0);
}

/* Two that rank above it have left it two pages; one of them needs its own no more, for now. */
static void push_out(void)
{
	begin(&low, &mine, 1, KVHOST_AGENT);
	go_on(&low, SHORT);
	begin(&first, &others, 2, KVHOST_INTERACTIVE);
	go_on(&first, MOST);
	begin(&second, &others, 3, KVHOST_INTERACTIVE);
	go_on(&second, MOST);
	expect("live_pages_parked", AWAY);
	assert_int_equal(kvhost_truncate(second.seq, PAGE), 0);
	expect("pool_pages_free", POOL_PAGES - MOST_PAGES - (MOST_PAGES - AWAY) - 1);
	expect("live_sequences_lost", 0);
}

static void assert_is_lost(int result)
{
	assert_int_equal(result, KVHOST_ELOST);
	assert_non_null(strstr(kvhost_reason(mine.host), "could not be copied back from KV-RAM; "
							 "close it"));
}

static void lose(void)
{
	struct kvhost_sequence *branch = NULL;
	struct kvhost_step step;
	uint16_t rows[PAGE];

	push_out();
	assert_is_lost(kvhost_step_begin(low.seq, MOST, 0, &step));
	expect("live_sequences_lost", 1);
	/* Whatever is tried next: it is told the same, and nothing of it is served. */
	assert_is_lost(kvhost_step_begin(low.seq, MOST, 0, &step));
	assert_is_lost(
	    kvhost_kv_read(low.seq, NULL, 0, KVHOST_K, 0, 1, KVHOST_FLOAT16, rows, sizeof(rows)));
	assert_is_lost(kvhost_fork(low.seq, MOST, &branch));
	assert_null(branch);
	assert_is_lost(kvhost_truncate(low.seq, PAGE));
	expect("live_sequences_lost", 1);
	/* Full pages behind it fail with it, the other one is its alone. */
	expect("ram_restores_failed", bad < AWAY - 1 ? AWAY - 1 - bad : 1);
}

/* All pages are free or kept for later, no place in KV-RAM is a live sequence's. */
static void expect_nothing_used(void)
{
	expect("pool_sequences", 0);
	expect("pool_pages_live", 0);
	expect("pool_pages_reserved", 0);
	expect("pool_table_refs", 0);
	expect("pool_transfer_pins", 0);
	expect("pool_active_transactions", 0);
	expect("ram_places_live", 0);
	expect("ram_pages_leaving", 0);
	expect("ram_pages_arriving", 0);
	assert_int_equal(daemon_pool_counter(&d, POOL, "pool_pages_free") +
			     daemon_pool_counter(&d, POOL, "pool_pages_retained"),
			 POOL_PAGES);
	assert_int_equal(daemon_pool_counter(&d, POOL, "pool_refused_references"), 0);
	assert_true(engine_check(&others));
}

static void the_others_end(void)
{
	assert_true(stamped_is(&others, first.seq, first.tokens, MOST));
	go_on(&second, MOST);
	assert_true(stamped_is(&others, first.seq, first.tokens, MOST));
	end(&first);
	end(&second);
}

/* What was found of it is right, and the rest is computed. */
static void compute_it_again(void)
{
	struct kvhost_open_result found = stamped_serve(&mine, low.tokens, MOST);

	assert_true(found.cached_tokens < SHORT);
	found = stamped_serve(&mine, low.tokens, MOST);
	assert_int_equal(found.cached_tokens, MOST - PAGE);
}

static void it_can_be_closed_and_computed_again(void **state)
{
	(void)state;
	lose();
	end(&low);
	expect("pool_sequences", 2);
	expect("ram_places_live", 0);
	the_others_end();
	expect_nothing_used();
	compute_it_again();
	expect_nothing_used();
	assert_int_equal(daemon_pool_counter(&d, POOL, "live_sequences_lost"), 1);
}

/* It is not closed yet: what it still has makes room all the same. */
static void the_others_have_its_pages_before_it_is_closed(void **state)
{
	(void)state;
	lose();
	the_others_end();
	expect("pool_sequences", 1);
	begin(&first, &others, 4, KVHOST_AGENT);
	begin(&second, &others, 5, KVHOST_AGENT);
	go_on(&first, MOST);
	go_on(&second, MOST);
	end(&low);
	end(&first);
	end(&second);
	expect_nothing_used();
	compute_it_again();
	expect_nothing_used();
}

static void its_client_may_leave_without_closing_it(void **state)
{
	(void)state;
	lose();
	engine_stop(&mine);
	low.seq = NULL;
	expect("pool_sequences", 2);
	expect("ram_places_live", 0);
	the_others_end();
	expect_nothing_used();
}

#define AT(test, which)                                                                            \
	{                                                                                          \
		.name = #test " (" #which ")", .test_func = test, .setup_func = which,             \
		.teardown_func = teardown                                                          \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    AT(it_can_be_closed_and_computed_again, setup_head),
	    AT(it_can_be_closed_and_computed_again, setup_middle),
	    AT(it_can_be_closed_and_computed_again, setup_partial),
	    AT(the_others_have_its_pages_before_it_is_closed, setup_head),
	    AT(the_others_have_its_pages_before_it_is_closed, setup_middle),
	    AT(the_others_have_its_pages_before_it_is_closed, setup_partial),
	    AT(its_client_may_leave_without_closing_it, setup_head),
	    AT(its_client_may_leave_without_closing_it, setup_partial),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
