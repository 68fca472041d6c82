/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_slow_client: clients that stop reading, and wake messages that get lost.
 *
 * Shows that the daemon never waits for a client: one whose completion ring stays full is dropped
 * after a limit while others are served; and that a lost wake message costs a client 100 ms and the
 * daemon a second at most, whoever lost it. Clients are processes of their own.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

static const char config[] = "{\"core\": {\"stall_limit_ms\": 300, \"completion_slots\": 64}}\n";

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
	d.program = NULL;
	d.environment = NULL;
	return 0;
}

/* As many requests as there are credits, none taken back; then it stops. */
static void stop_with_a_full_ring(void)
{
	struct engine e;
	kvhost_ticket ticket;
	unsigned n = 0;
	int r;

	if (engine_connect(&e, d.socket))
		_exit(1);
	do
		r = kvhost_submit_ping(e.host, NULL, &ticket);
	while (r == 0);
	if (r != KVHOST_EFULL)
		_exit(2);
	raise(SIGSTOP);
	/* Going on: what was answered counts; the session has ended meanwhile, in words. */
	do {
		struct kvhost_finished finished;

		r = kvhost_poll(e.host, &finished, 1);
		n += r > 0;
	} while (r > 0);
	if (n == 0 || kvhost_ping(e.host) != KVHOST_EGONE)
		_exit(3);
	_exit(strstr(kvhost_reason(e.host), "unconsumed") ? 0 : 4);
}

static void a_client_that_stops_with_its_ring_full_is_dropped_and_delays_nobody(void **state)
{
	struct engine other;
	pid_t client = fork_client();
	unsigned pings = 0;
	uint64_t slowest_ms = 0;
	int status;

	(void)state;
	if (client == 0)
		stop_with_a_full_ring();
	assert_int_equal(waitpid(client, &status, WUNTRACED), client);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(engine_connect(&other, d.socket), 0);
	while (daemon_counter(&d, "sessions_closed_stalled") == 0) {
		uint64_t began_ms = now_ms();

		assert_int_equal(kvhost_ping(other.host), 0);
		if (now_ms() - began_ms > slowest_ms)
			slowest_ms = now_ms() - began_ms;
		pings++;
	}
	assert_true(pings > 0);
	assert_in_range(slowest_ms, 0, WITHIN_MS * PATIENCE);
	assert_int_equal(kill(client, SIGCONT), 0);
	assert_int_equal(await_child(client, LONG_MS), 0);
	assert_int_equal(kvhost_ping(other.host), 0);
	engine_stop(&other);
}

static void a_client_killed_with_its_ring_full_is_gone_at_once(void **state)
{
	pid_t client = fork_client();
	int status;

	(void)state;
	if (client == 0)
		stop_with_a_full_ring();
	assert_int_equal(waitpid(client, &status, WUNTRACED), client);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 1, WITHIN_MS), 1);
	assert_int_equal(kill(client, SIGKILL), 0);
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, WITHIN_MS), 0);
	(void)await_child(client, LONG_MS);
	assert_int_equal(daemon_counter(&d, "sessions_closed_stalled"), 0);
}

/* ---- lost wakes ---- */

static int setup_losing_answers(void **state)
{
	(void)state;
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_FAILPOINT=wake_lost:0:1000000";
	daemon_start(&d, NULL);
	return 0;
}

static uint64_t ping_ms(struct kvhost *host)
{
	uint64_t began_ms;

	pause_ms(2); /* both sides spin for less before they sleep */
	began_ms = now_ms();
	assert_int_equal(kvhost_ping(host), 0);
	return now_ms() - began_ms;
}

static struct kvhost *connect_sleepy(void)
{
	struct kvhost_options options = {.socket = d.socket, .spin_us = 1};
	struct kvhost *host = NULL;

	assert_int_equal(kvhost_connect(&options, &host), 0);
	return host;
}

static void a_lost_wake_costs_a_client_a_tenth_of_a_second_at_most(void **state)
{
	struct kvhost *host = connect_sleepy();

	(void)state;
	for (int i = 0; i < 5; i++)
		assert_in_range(ping_ms(host), 0, 100 + 150 * PATIENCE);
	kvhost_disconnect(&host);
}

/* Another socket stands in the place of the client's: what it sends reaches nobody. */
static void a_lost_wake_costs_the_daemon_a_second_at_most(void **state)
{
	struct kvhost *host = connect_sleepy();
	int socket = kvhost_descriptor(host), kept = dup(socket), nowhere[2];
	uint64_t slowest_ms = 0;

	(void)state;
	assert_true(kept >= 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, nowhere), 0);
	assert_true(dup2(nowhere[0], socket) >= 0);
	for (int i = 0; i < 3; i++) {
		uint64_t ms = ping_ms(host);

		/* The client, too, looks again every tenth of a second only. */
		assert_in_range(ms, 0, 1100 + 400 * PATIENCE);
		if (ms > slowest_ms)
			slowest_ms = ms;
	}
	/* The daemon did sleep; else this has shown nothing. */
	assert_true(slowest_ms > 50);
	assert_true(dup2(kept, socket) >= 0);
	assert_int_equal(kvhost_ping(host), 0);
	close(kept);
	close(nowhere[0]);
	close(nowhere[1]);
	kvhost_disconnect(&host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(
		a_client_that_stops_with_its_ring_full_is_dropped_and_delays_nobody, setup,
		teardown),
	    cmocka_unit_test_setup_teardown(a_client_killed_with_its_ring_full_is_gone_at_once,
					    setup, teardown),
	    cmocka_unit_test_setup_teardown(a_lost_wake_costs_a_client_a_tenth_of_a_second_at_most,
					    setup_losing_answers, teardown),
	    cmocka_unit_test_setup_teardown(a_lost_wake_costs_the_daemon_a_second_at_most, setup,
					    teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
