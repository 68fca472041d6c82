/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ops_log: what the daemon tells an operator by itself: its log, what is off, which provider
 * works. One thread; every wait has a deadline.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/passfd.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/operator.h"

#define STORM 200

#define POOL                                                                                       \
	"\"pools\": [{\"name\": \"small\", \"pool_pages\": 64, \"kv_page_size\": 16,"              \
	" \"max_sequence_length\": 512, \"enable_prefix_caching\": true,"                          \
	" \"max_prefix_cache_pages\": 32}]}\n"

static const char config[] = "{\"core\": {\"log_level\": \"debug\"}, " POOL;
static const char quiet[] = "{" POOL;

static struct daemon d;

static int set_up(void **state)
{
	(void)state;
	d = (struct daemon){0};
	daemon_start(&d, config);
	return 0;
}

static int set_up_quiet(void **state)
{
	(void)state;
	d = (struct daemon){0};
	daemon_start(&d, quiet);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	if (d.pid > 0)
		(void)kill(d.pid, SIGCONT);
	daemon_remove(&d);
	return 0;
}

static void start(struct engine *e, const char *pool)
{
	struct engine_model model = ENGINE_SMALL(pool);

	assert_int_equal(engine_start(e, d.socket, &model), 0);
}

/* ---- log ---- */

static bool log_has(void *text)
{
	read_log(&d);
	return strstr(operator_output, text) != NULL;
}

static void a_line_tells_of_each_request(void **state)
{
	struct engine e;
	uint32_t tokens[64];

	(void)state;
	start(&e, "small");
	engine_tokens(tokens, 64, 0, 1);
	assert_int_equal(engine_serve(&e, tokens, 64, NULL), 0);
	assert_int_equal(engine_serve(&e, tokens, 64, NULL), 0);
	engine_stop(&e);
	assert_true(await(log_has,
			  "closed: prompt 64 tokens, cached 0, tier none, no match; committed 64",
			  LONG_MS));
	assert_true(await(log_has, "closed: prompt 64 tokens, cached 48, tier device, ", LONG_MS));
}

static unsigned warnings(void)
{
	read_log(&d);
	return count_of("Z warning: ") + count_of("Z error: ");
}

/* Attach, then send what no client sends. */
static void break_a_rule(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct message m = {.type = MESSAGE_HELLO};
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX];
	const char *why;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	memcpy(address.sun_path, d.socket, strlen(d.socket) + 1);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	m.u.hello.min_major = WIRE_MAJOR;
	m.u.hello.max_major = WIRE_MAJOR;
	(void)snprintf(m.u.hello.client, sizeof(m.u.hello.client), "vandal");
	assert_int_equal(passfd_send(fd, &m, "", NULL, 0), 0);
	assert_int_equal(passfd_receive(fd, 1, &m, text, fds, &why), 0);
	assert_int_equal(m.type, MESSAGE_WELCOME);
	for (uint32_t i = 0; i < m.n_fds; i++)
		close(fds[i]);
	assert_int_equal(send(fd, "garbage", 7, MSG_NOSIGNAL), 7);
	/* Its goodbye, or the end of the file. */
	while (passfd_receive(fd, 1, &m, text, fds, &why) == 0)
		;
	close(fd);
}

static void a_storm_of_violations_is_one_line_a_second(void **state)
{
	uint64_t began = now_ms(), deadline;
	unsigned lines;

	(void)state;
	assert_int_equal(warnings(), 0);
	for (int i = 0; i < STORM; i++)
		break_a_rule();
	deadline = now_ms() + (uint64_t)LONG_MS * PATIENCE;
	/* The next line after the silence has the number of those that were not shown. */
	do {
		assert_true(now_ms() < deadline);
		break_a_rule();
		lines = warnings();
	} while (count_of(" more like it not shown)") == count_of("(0 more like it not shown)"));
	assert_in_range(lines, 2, (now_ms() - began) / 1000 + 2);
	assert_true(daemon_counter(&d, "protocol_violations") >= STORM);
}

static void an_idle_daemon_warns_of_nothing(void **state)
{
	struct engine e;
	uint32_t tokens[64];

	(void)state;
	start(&e, "small");
	engine_tokens(tokens, 64, 0, 1);
	assert_int_equal(engine_serve(&e, tokens, 64, NULL), 0);
	engine_stop(&e);
	/* Through several of its sleeps. */
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
	assert_true(await(log_has, "ended: the client said goodbye", LONG_MS));
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	assert_int_equal(warnings(), 0);
}

/* ---- tiers, providers ---- */

static void health_says_what_is_off(void **state)
{
	(void)state;
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_true(
	    says("\"optimized_provider\": {\n  \"available\": false,\n  \"disabled\": false"));
	assert_true(says("\"note\": \"off: kv_ram_bytes is 0\""));
	assert_true(says("\"kv_disk\": \"off: "));
	daemon_remove(&d);
	d.environment = "KVHOST_DISABLE_OPTIMIZED_PROVIDER=Yes";
	daemon_start(&d, config);
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_true(says("\"disabled\": true"));
}

static void the_switch_of_the_provider_is_a_strict_boolean(void **state)
{
	static const char *const wrong[] = {"maybe", "2", "", "tru", "yes "};
	static const char *const right[] = {"1", "TRUE", "Yes", "on", "0", "false", "NO", "Off"};
	char variable[96];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		(void)snprintf(variable, sizeof(variable), "KVHOST_DISABLE_OPTIMIZED_PROVIDER=%s",
			       wrong[i]);
		assert_int_equal(check_config(variable), 2);
		assert_true(says("KVHOST_DISABLE_OPTIMIZED_PROVIDER"));
		assert_true(says("accepted is 1, true, yes, on or 0, false, no, off"));
		(void)snprintf(variable, sizeof(variable), "\"%s\"", wrong[i]);
		assert_true(says(variable));
	}
	for (size_t i = 0; i < sizeof(right) / sizeof(*right); i++) {
		(void)snprintf(variable, sizeof(variable), "KVHOST_DISABLE_OPTIMIZED_PROVIDER=%s",
			       right[i]);
		assert_int_equal(check_config(variable), 0);
	}
}

static void a_variable_that_nobody_reads_is_said(void **state)
{
	static char line[] = "warning: environment KVHOST_KV_RAM_BYTE: no such key, it changes "
			     "nothing; is KVHOST_KV_RAM_BYTES meant?";

	(void)state;
	assert_int_equal(check_config("KVHOST_KV_RAM_BYTE=64GiB"), 0);
	assert_true(says(line + strlen("warning: ")));
	d = (struct daemon){.environment = "KVHOST_KV_RAM_BYTE=64GiB"};
	daemon_start(&d, config);
	assert_true(await(log_has, line, LONG_MS));
	daemon_remove(&d);
	d = (struct daemon){.environment = "KVHOST_SOCKET=/nonexistent/s"};
	daemon_start(&d, config);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	assert_int_equal(warnings(), 0);
	daemon_remove(&d);
}

static bool has_counted(void *name)
{
	return daemon_counter(&d, name) > 0;
}

static void what_the_provider_is_given_is_counted(void **state)
{
	struct kvhost_prompt prompt = {.n_tokens = 24, .max_tokens = 64};
	struct kvhost_sequence *seq, *fork = NULL;
	struct kvhost_open_result found;
	struct kvhost_step step;
	struct engine e;
	uint32_t tokens[64];
	uint16_t rows[24][16] = {{0}};

	(void)state;
	engine_tokens(tokens, 64, 0, 1);
	prompt.tokens = tokens;
	start(&e, "small");
	assert_int_equal(kvhost_open(e.pool, &prompt, &seq, &found), 0);
	assert_int_equal(kvhost_step_begin(seq, 24, 0, &step), 0);
	assert_int_equal(
	    kvhost_kv_write(&step, 0, KVHOST_K, 0, 24, KVHOST_FLOAT16, rows, sizeof(rows)), 0);
	assert_int_equal(
	    kvhost_kv_read(seq, &step, 0, KVHOST_K, 0, 24, KVHOST_FLOAT16, rows, sizeof(rows)), 0);
	assert_int_equal(kvhost_step_commit(&step, 24, NULL, 0, NULL, 0), 0);
	/* The half page that both hold is copied for who goes on. */
	assert_int_equal(kvhost_fork(seq, 64, &fork), 0);
	assert_int_equal(kvhost_step_begin(fork, 32, 0, &step), 0);
	assert_int_equal(kvhost_step_abort(&step), 0);
	assert_int_equal(kvhost_close(&fork), 0);
	assert_int_equal(kvhost_close(&seq), 0);
	assert_int_equal(daemon_await(&d, "", "provider_portable_kv_write", 1, WITHIN_MS), 1);
	assert_int_equal(daemon_await(&d, "", "provider_portable_kv_read", 1, WITHIN_MS), 1);
	assert_int_equal(daemon_await(&d, "", "provider_portable_page_copy", 1, WITHIN_MS), 1);
	/* After the answers: nobody waits for pages to be clean. */
	assert_true(await(has_counted, "provider_portable_page_zero", LONG_MS));
	engine_stop(&e);
}

#define OF_A_DAEMON(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    OF_A_DAEMON(a_line_tells_of_each_request),
	    cmocka_unit_test_setup_teardown(a_storm_of_violations_is_one_line_a_second,
					    set_up_quiet, tear_down),
	    OF_A_DAEMON(an_idle_daemon_warns_of_nothing),
	    OF_A_DAEMON(health_says_what_is_off),
	    cmocka_unit_test(a_variable_that_nobody_reads_is_said),
	    cmocka_unit_test(the_switch_of_the_provider_is_a_strict_boolean),
	    OF_A_DAEMON(what_the_provider_is_given_is_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
