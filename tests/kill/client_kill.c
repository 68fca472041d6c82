/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_kill: clients are killed with pages, steps, mappings and sockets in their hands.
 *
 * Shows that everything comes back within a second, that nothing grows over many deaths, and that
 * what a dead or leaving client might still write to stays apart exactly as long as its process
 * lives. One thread; clients are processes of their own.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/footprint.h"

#define PAGE_TOKENS 16
#define HELD_PAGES  100
#define STEP_PAGES  4
#define POOL_PAGES  1024
#define WARM_LOOPS  8

static const char config[] =
    "{\"core\": {\"log_level\": \"notice\"}, \"pools\": [{\"name\": \"mapped\", \"map\": true,"
    " \"pool_pages\": 1024, \"kv_page_size\": 16, \"max_sequence_length\": 4096,"
    " \"enable_prefix_caching\": true, \"max_prefix_cache_pages\": 512, \"retained_order\": "
    "\"lru\"}]}\n";

static struct daemon d;
static uint32_t tokens[(HELD_PAGES + STEP_PAGES) * PAGE_TOKENS];

static struct engine_model mapped(void)
{
	struct engine_model m = ENGINE_SMALL("mapped");

	m.map = 1;
	return m;
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

/* What a client that is about to die has in its hands. A failure shows as a pipe without a byte. */
static struct kvhost_step hold_everything(struct engine *e, uint32_t number)
{
	struct engine_model m = mapped();
	struct kvhost_prompt prompt = {.tokens = tokens,
				       .n_tokens = HELD_PAGES * PAGE_TOKENS,
				       .max_tokens = (HELD_PAGES + STEP_PAGES) * PAGE_TOKENS};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct kvhost_table table;
	struct kvhost_step step;
	uint32_t n;

	engine_tokens(tokens, HELD_PAGES * PAGE_TOKENS, 0, number);
	if (engine_start(e, d.socket, &m) || kvhost_open(e->pool, &prompt, &seq, &found) ||
	    kvhost_step_begin(seq, prompt.n_tokens, 0, &step))
		_exit(1);
	n = step.target_tokens - step.start_tokens;
	if (kvhost_step_commit(&step, n, NULL, 0, NULL, 0) ||
	    kvhost_step_begin(seq, prompt.max_tokens, 0, &step) || !e->info->memory)
		_exit(2);
	kvhost_view(seq, &table);
	for (uint32_t i = HELD_PAGES; i < HELD_PAGES + STEP_PAGES; i++)
		memset((char *)e->info->memory + table.pages[i].index * e->info->page_stride, 0xa5,
		       e->info->page_bytes);
	return step;
}

/* It holds the client's socket, and ends when the test closes its end of the pipe. */
static void outlive(int socket, int until)
{
	char none;

	if (fork() != 0)
		return;
	for (int fd = 3; fd < 64; fd++) {
		if (fd != socket && fd != until)
			close(fd);
	}
	while (read(until, &none, 1) > 0)
		;
	_exit(0);
}

struct victim {
	pid_t pid;
	int heir; /* close it, and who holds the socket ends; -1: nobody */
};

static struct victim start_victim(uint32_t number, bool with_heir)
{
	int told[2], heir[2];
	struct victim v;
	char byte;

	assert_int_equal(pipe(told), 0);
	assert_int_equal(pipe(heir), 0);
	v.pid = fork_client();
	if (v.pid == 0) {
		struct engine e;

		close(told[0]);
		close(heir[1]);
		(void)hold_everything(&e, number);
		if (with_heir)
			outlive(kvhost_descriptor(e.host), heir[0]);
		if (write(told[1], "", 1) != 1)
			_exit(3);
		for (;;)
			pause();
	}
	close(told[1]);
	close(heir[0]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	close(told[0]);
	v.heir = heir[1];
	return v;
}

static void expect_held(void)
{
	assert_int_equal(daemon_await(&d, "mapped", "pool_active_transactions", 1, WITHIN_MS), 1);
	assert_int_equal(
	    daemon_await(&d, "mapped", "pool_pages_live", HELD_PAGES + STEP_PAGES, WITHIN_MS),
	    HELD_PAGES + STEP_PAGES);
	assert_int_equal(daemon_counter(&d, "sessions_attached"), 1);
}

static bool all_is_back(void *context)
{
	(void)context;
	return daemon_counter(&d, "sessions_attached") == 0 &&
	       daemon_pool_counter(&d, "mapped", "pool_sequences") == 0 &&
	       daemon_pool_counter(&d, "mapped", "pool_active_transactions") == 0 &&
	       daemon_pool_counter(&d, "mapped", "pool_pages_live") == 0 &&
	       daemon_pool_counter(&d, "mapped", "pool_pages_quarantined") == 0 &&
	       daemon_pool_counter(&d, "mapped", "pool_pages_draining") == 0 &&
	       daemon_pool_counter(&d, "mapped", "pool_pages_free") +
		       daemon_pool_counter(&d, "mapped", "pool_pages_retained") ==
		   POOL_PAGES;
}

/* The object walk of the daemon finds nothing wrong either. */
static void expect_sound(void)
{
	struct engine e;

	assert_int_equal(engine_connect(&e, d.socket), 0);
	assert_true(engine_check(&e));
	engine_stop(&e);
	assert_true(await(all_is_back, NULL, WITHIN_MS));
}

static void kill_many(bool with_heir)
{
	struct footprint before = {0};
	uint64_t huge_pages = free_huge_pages();
	unsigned loops = is_long() ? 200 : 30;
	uint64_t deaths = daemon_counter(&d, "sessions_closed_death");

	for (unsigned i = 0; i < loops; i++) {
		struct victim v = start_victim(i * 2 + with_heir, with_heir);

		expect_held();
		(void)kill(v.pid, SIGKILL);
		assert_true(await(all_is_back, NULL, WITHIN_MS));
		(void)await_child(v.pid, LONG_MS);
		close(v.heir);
		if (i + 1 == WARM_LOOPS) {
			before = footprint_of(d.pid);
			huge_pages = free_huge_pages();
		}
	}
	assert_int_equal(daemon_counter(&d, "sessions_closed_death"), deaths + loops);
	expect_sound();
	expect_footprint(d.pid, &before);
	if (is_long()) /* nothing else runs then */
		assert_int_equal(free_huge_pages(), huge_pages);
	assert_int_equal(entries_of("/dev/shm", "kvhost"), 0);
}

static void everything_of_a_killed_client_is_back_within_a_second(void **state)
{
	(void)state;
	kill_many(false);
}

/* The socket has no hang-up then; the end of the process alone tells. */
static void a_child_that_keeps_the_socket_of_a_killed_client_delays_nothing(void **state)
{
	(void)state;
	kill_many(true);
}

static void pages_of_an_ended_session_are_in_quarantine_while_its_process_lives(void **state)
{
	int told[2], go[2];
	pid_t client;
	char byte;

	(void)state;
	assert_int_equal(pipe(told), 0);
	assert_int_equal(pipe(go), 0);
	client = fork_client();
	if (client == 0) {
		struct engine e;

		close(go[1]);
		(void)hold_everything(&e, 5000);
		engine_stop(&e);
		if (write(told[1], "", 1) != 1 || read(go[0], &byte, 1) != 0)
			_exit(3);
		_exit(0);
	}
	close(told[1]);
	close(go[0]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	close(told[0]);
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
	assert_int_equal(daemon_await(&d, "mapped", "pool_sequences", 0, WITHIN_MS), 0);
	assert_int_equal(
	    daemon_await(&d, "mapped", "pool_pages_quarantined", STEP_PAGES, WITHIN_MS),
	    STEP_PAGES);
	close(go[1]);
	assert_true(await(all_is_back, NULL, WITHIN_MS));
	(void)await_child(client, LONG_MS);
	expect_sound();
}

/* The same client comes again under the same name. */
static void after_a_death_a_client_of_the_same_name_attaches(void **state)
{
	struct victim v = start_victim(6000, false);
	struct engine_model m = mapped();
	struct engine e;
	uint32_t cached;

	(void)state;
	expect_held();
	(void)kill(v.pid, SIGKILL);
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	engine_tokens(tokens, HELD_PAGES * PAGE_TOKENS, 0, 6000);
	assert_int_equal(engine_serve(&e, tokens, HELD_PAGES * PAGE_TOKENS, &cached), 0);
	/* What was committed before the death is there; the last token is left to compute. */
	assert_int_equal(cached, (HELD_PAGES - 1) * PAGE_TOKENS);
	engine_stop(&e);
	close(v.heir);
	(void)await_child(v.pid, LONG_MS);
	assert_true(await(all_is_back, NULL, WITHIN_MS));
}

/* A reservation that is never committed blocks nobody who wants the same. */
static void a_prompt_is_committed_at_once_though_another_client_is_in_a_step_of_it(void **state)
{
	struct engine_model m = mapped();
	struct engine first, second;
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = 10 * PAGE_TOKENS};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct kvhost_step step;
	uint32_t cached;

	(void)state;
	for (int dead = 0; dead < 2; dead++) {
		pid_t client;
		int told[2];
		char byte;

		assert_int_equal(pipe(told), 0);
		engine_tokens(tokens, prompt.n_tokens, 0, 7000 + (uint32_t)dead);
		client = fork_client();
		if (client == 0) {
			if (engine_start(&first, d.socket, &m) ||
			    kvhost_open(first.pool, &prompt, &seq, &found) ||
			    kvhost_step_begin(seq, prompt.n_tokens, 0, &step) ||
			    write(told[1], "", 1) != 1)
				_exit(1);
			for (;;)
				pause();
		}
		close(told[1]);
		assert_int_equal(read(told[0], &byte, 1), 1);
		close(told[0]);
		if (dead)
			(void)kill(client, SIGKILL);
		assert_int_equal(engine_start(&second, d.socket, &m), 0);
		prompt.deadline_us = 1000000 * PATIENCE;
		assert_int_equal(engine_serve(&second, tokens, prompt.n_tokens, &cached), 0);
		assert_int_equal(cached, 0);
		assert_int_equal(engine_serve(&second, tokens, prompt.n_tokens, &cached), 0);
		assert_int_equal(cached, 9 * PAGE_TOKENS);
		engine_stop(&second);
		(void)kill(client, SIGKILL);
		(void)await_child(client, LONG_MS);
		assert_true(await(all_is_back, NULL, WITHIN_MS));
	}
	expect_sound();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(everything_of_a_killed_client_is_back_within_a_second),
	    cmocka_unit_test(a_child_that_keeps_the_socket_of_a_killed_client_delays_nothing),
	    cmocka_unit_test(pages_of_an_ended_session_are_in_quarantine_while_its_process_lives),
	    cmocka_unit_test(after_a_death_a_client_of_the_same_name_attaches),
	    cmocka_unit_test(
		a_prompt_is_committed_at_once_though_another_client_is_in_a_step_of_it),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
