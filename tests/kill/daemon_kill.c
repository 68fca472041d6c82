/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_kill: the daemon is killed, stopped and held while clients use it.
 *
 * Shows that clients hear of it within a second and can attach to the next daemon, that their old
 * handles are void and their old memory is nobody else's, that an orderly stop ends every waiting
 * call, and what kvctl says of a daemon that is dead or hangs. Clients are processes of their own.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/footprint.h"

#define CLIENTS     4
#define PAGE_TOKENS 16
#define PROMPT      (20 * PAGE_TOKENS)
#define POOL_TOKENS 1024 /* the longest sequence, and the whole pool */

static const char config[] =
    "{\"pools\": [{\"name\": \"mapped\", \"map\": true, \"pool_pages\": 256,"
    " \"kv_page_size\": 16, \"max_sequence_length\": 1024, \"enable_prefix_caching\": true},"
    " {\"name\": \"narrow\", \"pool_pages\": 64, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 1024}]}\n";

static struct daemon d;

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

/* ---- clients of a daemon that dies ---- */

/* Serve until a call fails; that call must not take long. */
static int use_until_gone(struct engine *e, uint32_t number, int tell)
{
	static uint32_t tokens[PROMPT];
	uint64_t began_ms = 0;
	int result = 0;

	for (uint32_t i = 0; result == 0; i++) {
		if (i == 3 && write(tell, "r", 1) != 1)
			return 10;
		engine_tokens(tokens, PROMPT, PROMPT / 2, number * 1000 + i % 50);
		began_ms = now_ms();
		result = engine_serve(e, tokens, PROMPT, NULL);
	}
	if (result != KVHOST_EGONE || now_ms() - began_ms > WITHIN_MS * PATIENCE)
		return 11;
	return write(tell, "g", 1) == 1 ? 0 : 12;
}

/* A step was open when the daemon died; nothing of it means anything to the next daemon. */
static int expect_void(struct engine *e, struct kvhost_sequence *seq, struct kvhost_step *step)
{
	struct kvhost_step another;
	struct kvhost_open_result found;
	uint32_t token = 1;

	if (kvhost_step_commit(step, 1, NULL, 0, NULL, 0) != KVHOST_EGONE ||
	    kvhost_step_begin(seq, 64, 0, &another) != KVHOST_EGONE ||
	    kvhost_truncate(seq, 1) != KVHOST_EGONE)
		return 21;
	if (kvhost_lookup(e->pool, &(struct kvhost_prompt){.tokens = &token, .n_tokens = 1},
			  &found) != KVHOST_EGONE)
		return 22;
	(void)kvhost_close(&seq);
	return seq ? 23 : 0;
}

static int outlive_a_daemon(uint32_t number, int tell, int told)
{
	struct engine_model m = ENGINE_SMALL("mapped");
	uint32_t tokens[2 * PAGE_TOKENS];
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = 2 * PAGE_TOKENS};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct kvhost_table table;
	struct kvhost_step step;
	struct engine e;
	uint64_t epoch;
	char *memory, byte;
	int r;

	m.map = 1;
	engine_tokens(tokens, prompt.n_tokens, 0, 900 + number);
	if (engine_start(&e, d.socket, &m) || kvhost_open(e.pool, &prompt, &seq, &found) ||
	    kvhost_step_begin(seq, prompt.n_tokens, 0, &step))
		return 1;
	epoch = kvhost_boot_epoch(e.host);
	kvhost_view(seq, &table);
	memory = (char *)e.info->memory + table.pages[0].index * e.info->page_stride;
	memset(memory, (int)(0x40 + number), e.info->page_bytes);
	r = use_until_gone(&e, number, tell);
	if (r)
		return r;
	if (kvhost_ping(e.host) != KVHOST_EGONE || read(told, &byte, 1) != 1)
		return 2;
	/* The next daemon runs. */
	if (kvhost_reconnect(e.host) || kvhost_boot_epoch(e.host) == epoch)
		return 3;
	r = expect_void(&e, seq, &step);
	if (r)
		return r;
	/* Others fill the new pool; the old memory is still what its holder wrote. */
	if (engine_attach(&e, &m))
		return 4;
	for (uint32_t i = 0; i < 20; i++) {
		uint32_t more[PROMPT];

		engine_tokens(more, PROMPT, 0, number * 1000 + i);
		if (engine_serve(&e, more, PROMPT, NULL))
			return 5;
	}
	for (uint64_t i = 0; i < e.info->page_bytes; i++) {
		if (memory[i] != (char)(0x40 + number))
			return 6;
	}
	engine_stop(&e);
	return 0;
}

struct client {
	pid_t pid;
	int tells, told;
};

static struct client start_client(uint32_t number)
{
	int up[2], down[2];
	struct client c;

	assert_int_equal(pipe(up), 0);
	assert_int_equal(pipe(down), 0);
	c.pid = fork_client();
	if (c.pid == 0) {
		close(up[0]);
		close(down[1]);
		_exit(outlive_a_daemon(number, up[1], down[0]));
	}
	close(up[1]);
	close(down[0]);
	c.tells = up[0];
	c.told = down[1];
	return c;
}

static void expect_byte(int fd, char wanted)
{
	char byte = 0;

	assert_int_equal(read(fd, &byte, 1), 1);
	assert_int_equal(byte, wanted);
}

static uint64_t epoch_of(const char *file)
{
	struct kvhost_stats *stats = NULL;
	char line[4096];
	char *const argv[] = {"kvctl", "--stats", (char *)(uintptr_t)file, "stats", NULL};
	const char *at;
	unsigned long long epoch = 0;

	assert_int_equal(kvhost_stats_open(file, &stats), 0);
	kvhost_stats_close(&stats);
	(void)run_program(argv, line, sizeof(line), LONG_MS);
	at = strstr(line, "boot epoch ");
	assert_non_null(at);
	assert_int_equal(sscanf(at, "boot epoch %llx", &epoch), 1);
	return epoch;
}

static void clients_of_a_killed_daemon_hear_of_it_at_once_and_attach_to_the_next(void **state)
{
	struct client clients[CLIENTS];
	char previous[160];
	uint64_t epoch, killed_ms;

	(void)state;
	for (uint32_t i = 0; i < CLIENTS; i++)
		clients[i] = start_client(i);
	for (uint32_t i = 0; i < CLIENTS; i++)
		expect_byte(clients[i].tells, 'r');
	epoch = epoch_of(d.stats);
	killed_ms = now_ms();
	daemon_kill(&d);
	for (uint32_t i = 0; i < CLIENTS; i++)
		expect_byte(clients[i].tells, 'g');
	assert_in_range(now_ms() - killed_ms, 0, WITHIN_MS * PATIENCE);

	daemon_begin(&d);
	(void)snprintf(previous, sizeof(previous), "%s.prev", d.stats);
	assert_int_equal(epoch_of(previous), epoch);
	assert_int_not_equal(epoch_of(d.stats), epoch);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		int status;

		assert_int_equal(write(clients[i].told, "", 1), 1);
		status = await_child(clients[i].pid, LONG_MS);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
		close(clients[i].tells);
		close(clients[i].told);
	}
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
}

/* Nothing has a name but the socket, the stats file and its predecessor. */
static void many_deaths_of_the_daemon_leave_nothing_behind(void **state)
{
	struct engine_model m = ENGINE_SMALL("mapped");
	unsigned loops = is_long() ? 200 : 30;
	uint64_t huge_pages = 0;
	unsigned kept;
	char folder[96];
	struct engine e;

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/state", d.folder);
	kept = entries_of(folder, "");
	m.map = 1;
	for (unsigned i = 0; i < loops; i++) {
		assert_int_equal(engine_start(&e, d.socket, &m), 0);
		daemon_kill(&d);
		assert_int_equal(kvhost_ping(e.host), KVHOST_EGONE);
		engine_stop(&e);
		if (i == 0)
			huge_pages = free_huge_pages();
		daemon_begin(&d);
		assert_int_equal(entries_of(d.run, ""), 3);
		assert_int_equal(entries_of(folder, ""), kept);
	}
	assert_int_equal(entries_of("/dev/shm", "kvhost"), 0);
	daemon_kill(&d);
	if (is_long()) /* nothing else runs then */
		assert_int_equal(free_huge_pages(), huge_pages);
	daemon_begin(&d);
}

/* ---- an orderly stop ---- */

static int wait_in_a_call(int tell)
{
	struct engine_model m = ENGINE_SMALL("narrow");
	static uint32_t tokens[POOL_TOKENS];
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = POOL_TOKENS};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct engine e;
	int r;

	engine_tokens(tokens, POOL_TOKENS, 0, 1);
	if (engine_start(&e, d.socket, &m) || write(tell, "w", 1) != 1)
		return 1;
	r = kvhost_open(e.pool, &prompt, &seq, &found);
	return r == KVHOST_EGONE || r == KVHOST_ESHUTDOWN ? 0 : 2;
}

static void a_stop_ends_every_waiting_call_and_the_daemon_in_time(void **state)
{
	struct engine_model m = ENGINE_SMALL("narrow");
	static uint32_t tokens[POOL_TOKENS];
	struct kvhost_sequence *seq;
	struct engine holder;
	pid_t waiters[2];
	int told[2];

	(void)state;
	engine_tokens(tokens, POOL_TOKENS, 0, 2);
	assert_int_equal(engine_start(&holder, d.socket, &m), 0);
	/* It has the whole pool, so that the others wait for room. */
	assert_int_equal(engine_prefill(&holder, tokens, POOL_TOKENS, POOL_TOKENS, &seq, NULL), 0);
	assert_int_equal(pipe(told), 0);
	for (int i = 0; i < 2; i++) {
		waiters[i] = fork_client();
		if (waiters[i] == 0)
			_exit(wait_in_a_call(told[1]));
		expect_byte(told[0], 'w');
	}
	assert_int_equal(daemon_await(&d, "narrow", "pool_admission_waits", 2, WITHIN_MS), 2);
	assert_int_equal(daemon_stop(&d, 5000), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(await_child(waiters[i], WITHIN_MS), 0);
	assert_int_equal(kvhost_ping(holder.host), KVHOST_EGONE);
	engine_stop(&holder);
	close(told[0]);
	close(told[1]);
	/* The socket has gone with it; the stats stay. */
	assert_int_equal(entries_of(d.run, "kvhost.sock"), 0);
	assert_int_equal(entries_of(d.run, "stats"), 2);
	daemon_begin(&d);
}

/* ---- what kvctl says ---- */

static int ask_stats(char *out, size_t bytes)
{
	char *const argv[] = {"kvctl", "--stats", d.stats, "stats", NULL};

	return run_program(argv, out, bytes, LONG_MS);
}

/* A thread that was stopped at its work would be silent for longer than the core. */
static bool only_core_speaks(void *context)
{
	static char text[65536];
	const char *at;

	(void)context;
	if (ask_stats(text, sizeof(text)) != 0)
		return false;
	at = strstr(text, " silent for ");
	return at && strstr(text, "thread core     silent for ") && !strstr(at + 1, " silent for ");
}

static bool says_silent(void *context)
{
	static char text[65536];

	(void)context;
	pause_ms(100);
	return ask_stats(text, sizeof(text)) == 1 &&
	       strstr(text, "running, but thread core has been silent for ");
}

static void kvctl_stats_names_the_silent_thread_of_a_daemon_that_hangs(void **state)
{
	(void)state;
	assert_true(await(only_core_speaks, NULL, LONG_MS));
	assert_int_equal(kill(d.pid, SIGSTOP), 0);
	assert_true(await(says_silent, NULL, LONG_MS));
	assert_int_equal(kill(d.pid, SIGCONT), 0);
}

static void kvctl_stats_shows_what_a_dead_daemon_left(void **state)
{
	static char text[65536];
	struct engine e;

	(void)state;
	assert_int_equal(engine_connect(&e, d.socket), 0);
	assert_int_equal(daemon_await(&d, "", "sessions_total", 1, WITHIN_MS), 1);
	daemon_kill(&d);
	engine_stop(&e);
	assert_int_equal(ask_stats(text, sizeof(text)), 3);
	assert_non_null(strstr(text, "dead without a goodbye; it was running"));
	assert_non_null(strstr(text, "sessions_total               1 sessions"));
	daemon_begin(&d);
	assert_int_equal(daemon_stop(&d, 5000), 0);
	assert_int_equal(ask_stats(text, sizeof(text)), 3);
	assert_non_null(strstr(text, ", stopped\n"));
	daemon_begin(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(clients_of_a_killed_daemon_hear_of_it_at_once_and_attach_to_the_next),
	    cmocka_unit_test(many_deaths_of_the_daemon_leave_nothing_behind),
	    cmocka_unit_test(a_stop_ends_every_waiting_call_and_the_daemon_in_time),
	    cmocka_unit_test(kvctl_stats_names_the_silent_thread_of_a_daemon_that_hangs),
	    cmocka_unit_test(kvctl_stats_shows_what_a_dead_daemon_left),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
