/* SPDX-License-Identifier: Apache-2.0 */

/*
 * test_ring_litmus: a client thread and a daemon thread on one mapping, both rings at once.
 *
 * Each side polls a little and then sleeps on a pipe, so wakes of both directions happen at every
 * point. A lost wake is a sleep that outlasts the deadline. Both threads use one mapping, because
 * a thread sanitiser cannot see two mappings of one file as the same memory.
 *
 * test_ring_litmus [MESSAGES [no-second-look | no-fence]]: the second argument switches a
 * protection off, and the program must then fail, sooner or later.
 */

#include "shm/ring.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define SUBMISSION_SLOTS  64
#define COMPLETION_SLOTS  32
#define CREDITS           (COMPLETION_SLOTS - WIRE_RESERVED_COMPLETIONS)
#define MESSAGES_DEFAULT  1000000u
#define MESSAGES_LONG     100000000u
#define DEADLINE_MS       10000
#define DEADLINE_OFF_MS   1000
#define PUBLISH_AT        4 /* the daemon publishes each so many submissions */
#define SPINS_MAX         2048u
#define SPINS_SHORT_EVERY 64u

struct side {
	struct ring_producer out;
	struct ring_consumer in;
	int sleep_on; /* pipe ends */
	int wake_peer;
	uint64_t sleeps;
	uint64_t wakes;
	uint64_t random;
	const char *wrong;
};

static struct side client, server;
static uint64_t n_messages = MESSAGES_DEFAULT;
static int deadline_ms = DEADLINE_MS;
static atomic_bool stop;

static uint64_t next_random(struct side *s)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return s->random;
}

static void give_up(struct side *s, const char *what)
{
	if (!s->wrong)
		s->wrong = what;
	atomic_store(&stop, true);
}

static void wake(struct side *s)
{
	if (!ring_must_wake(&s->out))
		return;
	s->wakes++;
	/* A full pipe means that a wake is pending. */
	if (write(s->wake_peer, "", 1) < 0)
		return;
}

static void sleep_until_woken(struct side *s)
{
	struct pollfd p = {.fd = s->sleep_on, .events = POLLIN};
	char drained[64];

	if (!ring_prepare_sleep(&s->in))
		return;
	s->sleeps++;
	if (poll(&p, 1, deadline_ms) == 0)
		give_up(s, "a wake was lost");
	while (read(s->sleep_on, drained, sizeof(drained)) == (ssize_t)sizeof(drained))
		;
	ring_end_sleep(&s->in);
}

/* The next entry; false = stopped, or something is wrong. */
static bool take(struct side *s, void *entry)
{
	uint64_t spins = next_random(s) % SPINS_MAX;

	/* Now and then hardly any, to sleep while the other side is in the middle of a put. */
	if (next_random(s) % SPINS_SHORT_EVERY == 0)
		spins %= 4;
	for (;;) {
		int r = ring_get(&s->in, entry);

		if (r == 0)
			return true;
		if (r == RING_VIOLATION)
			give_up(s, "a violation");
		if (atomic_load_explicit(&stop, memory_order_relaxed))
			return false;
		if (spins > 0) {
			spins--;
			ring_pause();
		} else {
			sleep_until_woken(s);
		}
	}
}

static void *run_server(void *unused)
{
	for (uint64_t i = 0; i < n_messages; i++) {
		struct submission in;
		struct completion out = {0};

		if (!take(&server, &in))
			break;
		if (in.sequence != i + 1 || in.arg0 != i * 3 || in.out_bytes != (uint32_t)~i ||
		    in.reserved != (i ^ 0x5555))
			give_up(&server, "a submission out of order or broken");
		if (i % PUBLISH_AT == PUBLISH_AT - 1)
			ring_publish(&server.in);

		out.submission = in.sequence;
		out.value0 = i * 5;
		out.value1 = ~i;
		out.reserved = i;
		if (ring_put(&server.out, &out) != 0) {
			give_up(&server, "no room for a completion");
			break;
		}
		wake(&server);
	}
	return unused;
}

static bool submit(uint64_t i)
{
	struct submission s = {
	    .arg0 = i * 3,
	    .out_bytes = (uint32_t)~i,
	    .reserved = i ^ 0x5555,
	};
	int r = ring_put(&client.out, &s);

	if (r != 0)
		give_up(&client, "no room for a submission");
	wake(&client);
	return r == 0;
}

static bool reap(uint64_t i)
{
	struct completion c;

	if (!take(&client, &c))
		return false;
	if (c.submission != i + 1 || c.value0 != i * 5 || c.value1 != ~i || c.reserved != i)
		give_up(&client, "a completion out of order or broken");
	ring_publish(&client.in);
	return true;
}

static void *run_client(void *unused)
{
	uint64_t submitted = 0, reaped = 0;

	while (reaped < n_messages) {
		uint64_t burst = 1 + next_random(&client) % CREDITS;

		while (submitted < n_messages && submitted - reaped < burst) {
			if (!submit(submitted))
				return unused;
			submitted++;
		}
		/* Sometimes to the last, so that both sides run out of work. */
		burst = 1 + next_random(&client) % (submitted - reaped);
		for (uint64_t k = 0; k < burst; k++) {
			if (!reap(reaped))
				return unused;
			reaped++;
		}
	}
	return unused;
}

static void start_side(struct side *s, uint64_t seed, int sleep_on, int wake_peer)
{
	s->sleep_on = sleep_on;
	s->wake_peer = wake_peer;
	s->random = seed;
	assert_int_equal(fcntl(sleep_on, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(fcntl(wake_peer, F_SETFL, O_NONBLOCK), 0);
}

static void order_and_content_hold_and_no_wake_is_lost(void **state)
{
	size_t bytes = control_bytes(SUBMISSION_SLOTS, COMPLETION_SLOTS);
	struct control *c = aligned_alloc(CONTROL_HEAD_BYTES, (bytes + 4095) / 4096 * 4096);
	pthread_t server_thread, client_thread;
	int to_server[2], to_client[2];

	(void)state;
	assert_non_null(c);
	memset(c, 0, bytes);
	assert_int_equal(pipe(to_server), 0);
	assert_int_equal(pipe(to_client), 0);
	ring_submit_side(&client.out, c, SUBMISSION_SLOTS);
	ring_reap_side(&client.in, c, SUBMISSION_SLOTS, COMPLETION_SLOTS);
	ring_serve_side(&server.in, c, SUBMISSION_SLOTS);
	ring_answer_side(&server.out, c, SUBMISSION_SLOTS, COMPLETION_SLOTS);
	start_side(&client, 88172645463325252u, to_client[0], to_server[1]);
	start_side(&server, 362436069362436069u, to_server[0], to_client[1]);

	assert_int_equal(pthread_create(&server_thread, NULL, run_server, NULL), 0);
	assert_int_equal(pthread_create(&client_thread, NULL, run_client, NULL), 0);
	pthread_join(client_thread, NULL);
	pthread_join(server_thread, NULL);

	print_message("# sleeps %llu and %llu, wakes %llu and %llu\n",
		      (unsigned long long)client.sleeps, (unsigned long long)server.sleeps,
		      (unsigned long long)client.wakes, (unsigned long long)server.wakes);
	if (client.wrong)
		fail_msg("client: %s", client.wrong);
	if (server.wrong)
		fail_msg("server: %s", server.wrong);
	assert_int_not_equal(client.sleeps + server.sleeps, 0);
	for (int i = 0; i < 2; i++) {
		close(to_server[i]);
		close(to_client[i]);
	}
	free(c);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(order_and_content_hold_and_no_wake_is_lost),
	};
	const char *want_long = getenv("KVHOST_LONG");

	if (want_long && strcmp(want_long, "1") == 0)
		n_messages = MESSAGES_LONG;
	if (argc > 1)
		n_messages = strtoull(argv[1], NULL, 10);
	if (argc > 2) {
		deadline_ms = DEADLINE_OFF_MS;
		ring_second_look_off = strcmp(argv[2], "no-second-look") == 0;
		ring_fence_off = strcmp(argv[2], "no-fence") == 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
