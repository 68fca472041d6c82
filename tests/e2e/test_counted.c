/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_counted: counters that no other test has a reason to move, each moved for its own reason
 * against a real daemon. Main thread; blocks for bounded times.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/hybrid.h"
#include "tests/hostile/raw.h"

#define STATE   1024
#define N       64
#define CALLERS 32

#define DENSE_POOL                                                                                 \
	"{\"name\": \"dense\", \"pool_pages\": 64, \"kv_page_size\": 16,"                          \
	" \"kv_cache_dtype\": \"float16\", \"max_sequence_length\": 512, \"shadow_lru\": true,"    \
	" \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null}"

#define WIDE_TOKENS 256
#define WIDE_HEADS  16
#define WIDE_DIM    128
#define WIDE_POOL                                                                                  \
	"{\"name\": \"wide\", \"pool_pages\": 64, \"kv_page_size\": 16,"                           \
	" \"kv_cache_dtype\": \"float16\", \"max_sequence_length\": 512}"

static const char config[] =
    "{\"pools\": [" WIDE_POOL "," DENSE_POOL
    "," HYBRID_POOL("hybrid", ", \"lanes\": 4, \"retained_slots\": 2") "," HYBRID_POOL(
	"scarce", ", \"lanes\": 4, \"retained_slots\": 1") "]}\n";

static struct daemon d;
static struct engine e;

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&e);
	daemon_remove(&d);
	return 0;
}

/* It comes to this value, and was 0 when the daemon started. */
static void expect_counted(const char *pool, const char *name, uint64_t value)
{
	uint64_t found = daemon_await(&d, pool, name, value, LONG_MS);

	if (found != value)
		fail_msg("%s is %llu, not %llu", name, (unsigned long long)found,
			 (unsigned long long)value);
}

/* ---- dense ---- */

static uint32_t reason_of(const struct kvhost_prompt *prompt, uint32_t *cached)
{
	struct kvhost_open_result found = {0};
	struct kvhost_sequence *seq = NULL;

	assert_int_equal(kvhost_open(e.pool, prompt, &seq, &found), 0);
	assert_int_equal(kvhost_close(&seq), 0);
	*cached = found.cached_tokens;
	return found.miss;
}

static void an_open_that_finds_less_says_why_and_a_lookup_counts_no_reason(void **state)
{
	struct engine_model m = ENGINE_SMALL("dense");
	const struct kvhost_span span = {.start = 40, .length = 16};
	uint32_t tokens[N], cached;
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = N};
	struct kvhost_open_result found;

	(void)state;
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	engine_tokens(tokens, N, 0, 1);
	assert_int_equal(engine_serve(&e, tokens, N, NULL), 0);
	p.max_cached_tokens = 16;
	assert_int_equal(reason_of(&p, &cached), KVHOST_MISS_LIMIT);
	assert_int_equal(cached, 16);
	assert_int_equal(kvhost_lookup(e.pool, &p, &found), 0);
	assert_int_equal(found.miss, KVHOST_MISS_LIMIT);
	expect_counted("dense", "pool_lookups", 1);
	expect_counted("dense", "pool_misses_limit", 1);
	/* The last page boundary lies in the image: back to the page before it. */
	p.max_cached_tokens = 0;
	p.spans = &span;
	p.n_spans = 1;
	(void)reason_of(&p, &cached);
	expect_counted("dense", "pool_misses_image", 1);
	/* lru would have had the one page and the two that these opens found, too. */
	expect_counted("dense", "pool_shadow_hits", 3);
}

static void a_value_beyond_the_format_is_stored_as_the_largest(void **state)
{
	struct engine_model m = ENGINE_SMALL("dense");
	uint32_t tokens[N];
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = N};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq = NULL;
	struct kvhost_step step;
	float row[16] = {1e6f, 1.0f, -1e6f};

	(void)state;
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	engine_tokens(tokens, N, 0, 1);
	assert_int_equal(kvhost_open(e.pool, &p, &seq, &found), 0);
	assert_int_equal(kvhost_step_begin(seq, 1, 0, &step), 0);
	expect_counted("dense", "pool_execution_pins", 1);
	assert_int_equal(
	    kvhost_kv_write(&step, 0, KVHOST_K, 0, 1, KVHOST_FLOAT32, row, sizeof(row)), 0);
	assert_int_equal(
	    kvhost_kv_read(seq, &step, 0, KVHOST_K, 0, 1, KVHOST_FLOAT32, row, sizeof(row)), 0);
	assert_true(row[0] == 65504.0f && row[1] == 1.0f && row[2] == -65504.0f);
	expect_counted("dense", "pool_saturated", 2);
	assert_int_equal(kvhost_step_abort(&step), 0);
	expect_counted("dense", "pool_execution_pins", 0);
	assert_int_equal(kvhost_close(&seq), 0);
}

/* A client that hangs up while the daemon writes its rows: pages come back when that is over. */
static bool has_drained(void *context)
{
	static float rows[WIDE_TOKENS * WIDE_HEADS * WIDE_DIM];
	struct engine_model m = ENGINE_SMALL("wide");
	struct kvhost_sequence *seq = NULL;
	struct kvhost_open_result found;
	struct kvhost_prompt p = {.n_tokens = WIDE_TOKENS};
	uint32_t tokens[WIDE_TOKENS];
	struct kvhost_step step;
	kvhost_ticket ticket;
	bool drained = false;

	(void)context;
	m.heads = WIDE_HEADS;
	m.k_dim = m.v_dim = WIDE_DIM;
	p.tokens = tokens;
	engine_tokens(tokens, WIDE_TOKENS, 0, 1);
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	assert_int_equal(kvhost_open(e.pool, &p, &seq, &found), 0);
	assert_int_equal(kvhost_step_begin(seq, WIDE_TOKENS, 0, &step), 0);
	assert_int_equal(kvhost_submit_kv_write(&step, 0, KVHOST_K, 0, WIDE_TOKENS, KVHOST_FLOAT32,
						rows, sizeof(rows), NULL, &ticket),
			 0);
	engine_stop(&e);
	do
		drained |= daemon_pool_counter(&d, "wide", "pool_pages_draining") > 0;
	while (!drained && daemon_counter(&d, "sessions_attached"));
	return drained || daemon_pool_counter(&d, "wide", "pool_pages_draining") > 0;
}

static void pages_that_a_write_still_touches_drain(void **state)
{
	(void)state;
	assert_true(await(has_drained, NULL, LONG_MS));
	expect_counted("wide", "pool_pages_draining", 0);
	expect_counted("wide", "pool_pages_free", 64);
}

/* ---- hybrid ---- */

static void captures_that_are_not_made_are_counted_by_their_reason(void **state)
{
	struct kvhost_sequence *a, *fork = NULL;
	struct kvhost_prompt p = {.n_tokens = N, .max_tokens = N + 64, .no_reuse = 1};
	struct kvhost_open_result found;
	uint32_t tokens[N];

	(void)state;
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	p.tokens = tokens;
	assert_int_equal(kvhost_open(e.pool, &p, &a, &found), 0);
	hybrid_step(&e, a, 20, 1);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_OFF);
	assert_int_equal(kvhost_close(&a), 0);
	/* Both are still in the last page. */
	a = hybrid_open(&e, tokens, N, 0, 0, &found);
	hybrid_step(&e, a, 20, 1);
	assert_int_equal(kvhost_fork(a, N + 20, &fork), 0);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_SHARED);
	assert_int_equal(kvhost_close(&fork), 0);
	/* Tokens that were computed and never told. */
	hybrid_step(&e, a, N + 10, 2);
	assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_UNKNOWN);
	assert_int_equal(kvhost_close(&a), 0);
	expect_counted("hybrid", "capture_skips_off", 1);
	expect_counted("hybrid", "capture_skips_shared", 1);
	expect_counted("hybrid", "capture_skips_unknown", 1);
}

static void the_checkpoints_of_a_conversation_that_goes_on_are_replaced(void **state)
{
	struct kvhost_sequence *a;
	struct kvhost_open_result found;
	uint32_t tokens[N];

	(void)state;
	hybrid_start(&e, d.socket, "hybrid", STATE, 0);
	engine_tokens(tokens, N, 0, 1);
	a = hybrid_open(&e, tokens, N, 0, 0, &found);
	for (uint32_t to = 20; to <= 60; to += 20) {
		hybrid_step(&e, a, to, to);
		assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
	}
	assert_int_equal(kvhost_close(&a), 0);
	expect_counted("hybrid", "checkpoint_captures", 3);
	expect_counted("hybrid", "captures_replaced", 2);
}

static void a_prefix_is_given_up_when_its_slot_is_needed(void **state)
{
	struct kvhost_sequence *a;
	struct kvhost_open_result found;
	uint32_t tokens[N];

	(void)state;
	hybrid_start(&e, d.socket, "scarce", STATE, 0);
	for (uint32_t i = 0; i < 2; i++) {
		engine_tokens(tokens, N, 0, i);
		a = hybrid_open(&e, tokens, N, 32, 0, &found);
		hybrid_step(&e, a, 32, i);
		assert_int_equal(hybrid_checkpoint(a), KVHOST_CAPTURE_MADE);
		assert_int_equal(kvhost_close(&a), 0);
	}
	expect_counted("scarce", "prefix_captures", 2);
	expect_counted("scarce", "prefix_discards", 1);
}

/* ---- who comes and goes ---- */

static void a_stop_ends_sessions_and_refuses_who_has_not_said_hello(void **state)
{
	struct raw r;
	int fd;

	(void)state;
	raw_attach(d.socket, &r);
	fd = raw_dial(d.socket);
	/* Its turn to be accepted comes before that of a session that calls later. */
	assert_int_equal(engine_connect(&e, d.socket), 0);
	expect_counted("", "sessions_attached", 2);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	assert_int_equal(daemon_counter(&d, "sessions_closed_shutdown"), 2);
	assert_int_equal(daemon_counter(&d, "sessions_refused_shutdown"), 1);
	assert_int_equal(daemon_counter(&d, "sessions_attached"), 0);
	close(fd);
	raw_free(&r);
}

/* The lowest that the daemon has not: the one that it would get next. */
static unsigned next_descriptor(void)
{
	unsigned n = 0;

	for (;; n++) {
		char path[64], to[8];

		(void)snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)d.pid, n);
		if (readlink(path, to, sizeof(to)) < 0)
			return n;
	}
}

static bool has_refused(void *context)
{
	(void)context;
	return daemon_counter(&d, "sessions_refused_memory") > 0;
}

static void who_comes_when_there_is_no_descriptor_is_turned_away(void **state)
{
	struct rlimit limit;
	int fds[CALLERS];

	(void)state;
	assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, NULL, &limit), 0);
	limit.rlim_cur = next_descriptor();
	assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, &limit, NULL), 0);
	for (int i = 0; i < CALLERS; i++)
		fds[i] = raw_dial(d.socket);
	assert_true(await(has_refused, NULL, LONG_MS));
	/* Each of them once, and no more than came. */
	assert_in_range(daemon_counter(&d, "sessions_refused_memory"), 1, CALLERS);
	for (int i = 0; i < CALLERS; i++)
		close(fds[i]);
}

static bool has_dropped(void *context)
{
	(void)context;
	close(raw_dial(d.socket));
	return daemon_counter(&d, "log_dropped") > 0;
}

static void lines_for_a_log_that_nobody_reads_are_dropped(void **state)
{
	char path[96];
	int fd;

	(void)state;
	daemon_remove(&d);
	daemon_make(&d, "{\"core\": {\"log_level\": \"debug\"}}\n");
	(void)snprintf(path, sizeof(path), "%s/log", d.folder);
	assert_int_equal(mkfifo(path, 0600), 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(fcntl(fd, F_SETPIPE_SZ, 4096) > 0);
	daemon_begin(&d);
	for (uint32_t i = 0; i < 4096 && !has_dropped(NULL); i++) {
		assert_int_equal(engine_connect(&e, d.socket), 0);
		engine_stop(&e);
	}
	assert_true(await(has_dropped, NULL, LONG_MS));
	daemon_kill(&d);
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(an_open_that_finds_less_says_why_and_a_lookup_counts_no_reason),
	    TEST(a_value_beyond_the_format_is_stored_as_the_largest),
	    TEST(pages_that_a_write_still_touches_drain),
	    TEST(captures_that_are_not_made_are_counted_by_their_reason),
	    TEST(the_checkpoints_of_a_conversation_that_goes_on_are_replaced),
	    TEST(a_prefix_is_given_up_when_its_slot_is_needed),
	    TEST(a_stop_ends_sessions_and_refuses_who_has_not_said_hello),
	    TEST(who_comes_when_there_is_no_descriptor_is_turned_away),
	    TEST(lines_for_a_log_that_nobody_reads_are_dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
