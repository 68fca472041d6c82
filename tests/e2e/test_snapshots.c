/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_snapshots: the stats file while clients come, go, work and die: in every whole snapshot what
 * agrees does, and no counter ever goes back. Clients are processes; the test is one thread.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/statsfile.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/hybrid.h"

#define SNAPSHOTS   10000u
#define MORE        100000u /* give up: the clients should have done something long ago */
#define ROUNDS      20u     /* that every client must have done meanwhile */
#define TORN_MOST   20u     /* at most one in so many */
#define PAUSE_EVERY 4u
#define TOKENS      100
#define PAGE_TOKENS 16u

static const char config[] =
    "{\"pools\": ["
    "{\"name\": \"tight\", \"pool_pages\": 48, \"kv_page_size\": 16,"
    " \"kv_cache_dtype\": \"float16\", \"max_sequence_length\": 128, \"shadow_lru\": true,"
    " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null}," HYBRID_POOL(
	"hybrid", ", \"lanes\": 4, \"retained_slots\": 4") "]}\n";

static struct daemon d;

/* ---- the load ---- */

enum client { SERVES = 0, CONVERSES, COMES_AND_GOES, DIES, CLIENTS };

struct shared {
	_Atomic bool stop;
	_Atomic uint32_t rounds[CLIENTS];
};
static struct shared *shared;

/* Whatever does not fit now is part of the load; what must not be ends the client. */
static void expect(bool good, int code)
{
	if (!good)
		_exit(code);
}

static void write_and_read(struct kvhost_sequence *seq, struct kvhost_step *step)
{
	float rows[16], found[16];

	for (uint32_t i = 0; i < 16; i++)
		rows[i] = (float)(step->start_tokens + i);
	expect(kvhost_kv_write(step, 0, KVHOST_K, step->start_tokens, 1, KVHOST_FLOAT32, rows,
			       sizeof(rows)) == 0,
	       10);
	expect(kvhost_kv_read(seq, step, 0, KVHOST_K, step->start_tokens, 1, KVHOST_FLOAT32, found,
			      sizeof(found)) == 0,
	       11);
	expect(memcmp(rows, found, sizeof(rows)) == 0, 12);
}

/* A conversation of a few prompts, some of whose starts are shared; some steps are aborted. */
static void serve(struct engine *e, uint32_t round)
{
	struct kvhost_sequence *seq = NULL, *fork = NULL;
	uint32_t tokens[TOKENS], n = 20 + round * 7 % 80;
	struct kvhost_prompt p = {.tokens = tokens, .n_tokens = n, .max_tokens = n + 10};
	struct kvhost_open_result found;
	struct kvhost_step step;

	engine_tokens(tokens, n, round % 3 * PAGE_TOKENS, round % 11);
	p.deadline_us = 1000000;
	(void)kvhost_lookup(e->pool, &p, &found);
	if (kvhost_open(e->pool, &p, &seq, &found))
		return;
	expect(kvhost_step_begin(seq, n, 0, &step) == 0, 13);
	write_and_read(seq, &step);
	expect(kvhost_step_commit(&step, n - step.start_tokens, NULL, 0, NULL, 0) == 0, 14);
	if (kvhost_fork(seq, n + 10, &fork) == 0 && kvhost_step_begin(fork, n + 5, 0, &step) == 0)
		(void)kvhost_step_abort(&step);
	(void)kvhost_close(&fork);
	expect(kvhost_close(&seq) == 0, 15);
}

static void converse(struct engine *e, uint32_t round)
{
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	uint32_t tokens[TOKENS];

	/* Two of them often, so that they find what they left, and others that push it out. */
	engine_tokens(tokens, 64, 32, round % 4 ? round % 2 : 2 + round % 5);
	seq = hybrid_open(e, tokens, 64, 32, 0, &found);
	for (uint32_t to = 32; to <= 60; to += 14) {
		if (to <= found.cached_tokens)
			continue;
		hybrid_step(e, seq, to, to);
		(void)hybrid_checkpoint(seq);
	}
	expect(kvhost_close(&seq) == 0, 16);
}

static void come_and_go(void)
{
	struct engine_model m = ENGINE_SMALL("tight");
	struct engine e;

	expect(engine_start(&e, d.socket, &m) == 0, 17);
	serve(&e, 3);
	expect(kvhost_pool_detach(&e.pool) == 0, 18);
	expect(engine_attach(&e, &m) == 0, 19);
	engine_stop(&e);
}

/* In the middle of a step, with another sequence open. */
static void die(uint32_t round)
{
	struct engine_model m = ENGINE_SMALL("tight");
	struct engine e;
	uint32_t tokens[TOKENS];
	struct kvhost_sequence *seq = NULL;
	struct kvhost_step step;
	pid_t child = fork_client();

	if (child) {
		(void)await_child(child, LONG_MS);
		return;
	}
	expect(engine_start(&e, d.socket, &m) == 0, 20);
	engine_tokens(tokens, 40, 0, round % 5);
	if (engine_prefill(&e, tokens, 40, 40, &seq, NULL) == 0 &&
	    kvhost_step_begin(seq, 40, 0, &step) == 0)
		(void)kvhost_kv_write(&step, 0, KVHOST_K, 39, 1, KVHOST_FLOAT32, tokens, 64);
	(void)raise(SIGKILL);
}

static _Noreturn void be(enum client who)
{
	struct engine_model m = ENGINE_SMALL("tight");
	struct engine e = {0};

	if (who == SERVES)
		expect(engine_start(&e, d.socket, &m) == 0, 21);
	else if (who == CONVERSES)
		hybrid_start(&e, d.socket, "hybrid", 4096, 0);
	while (!atomic_load(&shared->stop)) {
		uint32_t round = atomic_fetch_add(&shared->rounds[who], 1);

		switch (who) {
		case SERVES:
			serve(&e, round);
			break;
		case CONVERSES:
			converse(&e, round);
			break;
		case COMES_AND_GOES:
			come_and_go();
			break;
		default:
			die(round);
		}
	}
	engine_stop(&e);
	_exit(0);
}

/* ---- a snapshot ---- */

static const struct statsfile_snapshot *now;

static uint64_t of(const char *pool, const char *name)
{
	uint64_t value = 0;

	if (!statsfile_value(now, name, pool, &value))
		fail_msg("no counter %s", name);
	return value;
}

static bool is_whole(const char *pool, const char *name)
{
	for (uint32_t i = 0; i < now->n_counters; i++) {
		const struct statsfile_counter *c = &now->counters[i];

		if (!strcmp(c->name, name) && !strcmp(c->label, pool))
			return !now->torn_group[c->group];
	}
	fail_msg("no counter %s", name);
	return false;
}

static void expect_at_most(const char *pool, const char *name, const char *limit)
{
	if (of(pool, name) > of(pool, limit))
		fail_msg("%s %s is %llu, above %s: %llu", pool, name,
			 (unsigned long long)of(pool, name), limit,
			 (unsigned long long)of(pool, limit));
}

static uint64_t sum_of(const char *pool, const char *const *names)
{
	uint64_t sum = 0;

	for (; *names; names++)
		sum += of(pool, *names);
	return sum;
}

static void expect_daemon_agrees(void)
{
	static const char *const closed[] = {
	    "sessions_closed_client", "sessions_closed_death",   "sessions_closed_violation",
	    "sessions_closed_fault",  "sessions_closed_stalled", "sessions_closed_shutdown",
	    "sessions_closed_quota",  "sessions_attached",       NULL};

	expect_at_most("", "completions", "requests");
	expect_at_most("", "refusals", "completions");
	assert_int_equal(sum_of("", closed), of("", "sessions_total"));
}

static void expect_pool_agrees(const char *pool)
{
	static const char *const places[] = {"pool_pages_free",        "pool_pages_live",
					     "pool_pages_retained",    "pool_pages_draining",
					     "pool_pages_quarantined", NULL};
	static const char *const misses[] = {"pool_misses_no_match",
					     "pool_misses_diverged",
					     "pool_misses_off",
					     "pool_misses_image",
					     "pool_misses_limit",
					     "pool_misses_gone",
					     NULL};
	static const char *const captures[] = {"checkpoint_captures", "prefix_captures", NULL};
	static const char *const discards[] = {"checkpoint_discards", "prefix_discards", NULL};
	static const char *const claims[] = {"checkpoint_claims", "prefix_claims", NULL};
	static const char *const at_most[][2] = {
	    {"pool_open_hits", "pool_opens"},
	    {"pool_lookup_hits", "pool_lookups"},
	    {"pool_reused_tokens", "pool_prompt_tokens"},
	    {"pool_pages_reserved", "pool_pages_capacity"},
	    {"pool_pages_retained", "pool_pages_indexed"},
	    {"pool_active_transactions", "pool_sequences"},
	    {"pool_lanes_used", "pool_lanes_capacity"},
	    {"retained_slots_used", "retained_slots_capacity"},
	};

	if (sum_of(pool, places) != of(pool, "pool_pages_capacity")) {
		for (size_t i = 0; places[i]; i++)
			fprintf(stderr, "# %s %llu\n", places[i],
				(unsigned long long)of(pool, places[i]));
		fail_msg("pages of pool %s are lost", pool);
	}
	for (size_t i = 0; i < sizeof(at_most) / sizeof(*at_most); i++)
		expect_at_most(pool, at_most[i][0], at_most[i][1]);
	assert_int_equal(of(pool, "pool_pages_retained"), of(pool, "prefix_retained_pages"));
	assert_int_equal(of(pool, "pool_pages_indexed"), of(pool, "pool_prefix_refs"));
	assert_int_equal(of(pool, "pool_execution_pins"), of(pool, "pool_active_transactions"));
	assert_int_equal(of(pool, "prefix_hits"), of(pool, "pool_reused_tokens") / PAGE_TOKENS);
	assert_in_range(sum_of(pool, misses), 0, of(pool, "pool_opens"));
	/* A state is found when its copy begins, an open when it is answered. */
	assert_in_range(sum_of(pool, claims), 0,
			of(pool, "pool_open_hits") + of(pool, "pool_lanes_capacity"));
	/* Beside those there are slots being filled, and given up ones still copied from. */
	assert_in_range(sum_of(pool, discards), 0, sum_of(pool, captures));
	assert_in_range(sum_of(pool, captures) - sum_of(pool, discards), 0,
			of(pool, "retained_slots_used"));
}

/* Also in a torn snapshot: each value is one of those that it ever was, later than the last. */
static void expect_no_way_back(const struct statsfile_snapshot *before)
{
	for (uint32_t i = 0; i < before->n_counters; i++) {
		const struct statsfile_counter *c = &now->counters[i];

		assert_string_equal(c->name, before->counters[i].name);
		for (uint32_t v = c->first; v < c->first + c->values; v++) {
			if (c->kind != STATSFILE_GAUGE && now->values[v] < before->values[v])
				fail_msg("%s %s went back from %llu to %llu", c->label, c->name,
					 (unsigned long long)before->values[v],
					 (unsigned long long)now->values[v]);
		}
	}
}

static bool have_worked(void)
{
	for (int i = 0; i < CLIENTS; i++) {
		if (atomic_load(&shared->rounds[i]) < ROUNDS)
			return false;
	}
	return true;
}

/* Until there are enough of them, of a daemon at work. */
static void take_snapshots(struct statsfile_reader *reader)
{
	struct statsfile_snapshot snapshots[2] = {{.torn = false}, {.torn = false}};
	uint32_t n = 0, torn = 0, changes = 0;

	for (; n < SNAPSHOTS || (!have_worked() && n < MORE); n++) {
		struct statsfile_snapshot *s = &snapshots[n % 2], *before = &snapshots[!(n % 2)];

		statsfile_snapshot_free(s);
		*s = (struct statsfile_snapshot){.torn = false};
		assert_int_equal(statsfile_read(reader, s), 0);
		now = s;
		torn += s->torn;
		if (n) {
			expect_no_way_back(before);
			changes += memcmp(s->values, before->values, sizeof(*s->values)) != 0;
		}
		if (is_whole("", "requests"))
			expect_daemon_agrees();
		if (is_whole("tight", "pool_opens"))
			expect_pool_agrees("tight");
		if (is_whole("hybrid", "pool_opens"))
			expect_pool_agrees("hybrid");
		if (n % PAUSE_EVERY == 0)
			pause_ms(1);
	}
	fprintf(stderr, "# %u snapshots, %u torn, %u with another number of sessions\n", n, torn,
		changes);
	assert_true(have_worked());
	assert_true(changes > 0);
	assert_in_range(torn, 0, n / TORN_MOST);
	statsfile_snapshot_free(&snapshots[0]);
	statsfile_snapshot_free(&snapshots[1]);
}

static void expect_nothing_held(const char *pool)
{
	static const char *const zero[] = {
	    "pool_sequences",      "pool_pages_live",        "pool_pages_reserved",
	    "pool_pages_draining", "pool_pages_quarantined", "pool_table_refs",
	    "pool_execution_pins", "pool_transfer_pins",     "pool_active_transactions",
	    "pool_lanes_used",     "pool_refused_references"};
	uint64_t retained;

	for (size_t i = 0; i < sizeof(zero) / sizeof(*zero); i++) {
		if (daemon_await(&d, pool, zero[i], 0, LONG_MS))
			fail_msg("%s %s is not 0", pool, zero[i]);
	}
	retained = daemon_pool_counter(&d, pool, "pool_pages_retained");
	assert_true(retained > 0);
	assert_int_equal(daemon_pool_counter(&d, pool, "pool_prefix_refs"), retained);
}

static void every_whole_snapshot_agrees_and_nothing_goes_back(void **state)
{
	struct statsfile_reader reader;
	struct engine looker;
	pid_t clients[CLIENTS];

	(void)state;
	for (int i = 0; i < CLIENTS; i++) {
		clients[i] = fork_client();
		if (clients[i] == 0)
			be((enum client)i);
	}
	assert_int_equal(statsfile_open(&reader, d.stats), 0);
	take_snapshots(&reader);
	statsfile_reader_close(&reader);
	daemon_note(&d);
	atomic_store(&shared->stop, true);
	for (int i = 0; i < CLIENTS; i++)
		assert_int_equal(await_child(clients[i], LONG_MS), 0);
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, LONG_MS), 0);
	expect_nothing_held("tight");
	expect_nothing_held("hybrid");
	assert_true(daemon_pool_counter(&d, "tight", "prefix_evictions") > 0);
	assert_true(daemon_pool_counter(&d, "tight", "pool_open_hits") > 0);
	assert_true(daemon_pool_counter(&d, "hybrid", "checkpoint_claims") > 0);
	assert_true(daemon_counter(&d, "sessions_closed_death") > 0);
	assert_int_equal(engine_connect(&looker, d.socket), 0);
	assert_true(engine_check(&looker));
	engine_stop(&looker);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
}

static int setup(void **state)
{
	(void)state;
	shared =
	    mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	atomic_store(&shared->stop, true);
	daemon_remove(&d);
	munmap(shared, sizeof(*shared));
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(every_whole_snapshot_agrees_and_nothing_goes_back,
					    setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
