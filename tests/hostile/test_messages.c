/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile client may send on the socket: each message ends what it came in, with a reason,
 * and nothing else. One daemon for all; a good session goes on beside each attack.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/footprint.h"
#include "tests/hostile/ops.h"

#define PACKET_BYTES  300
#define SILENT        200
#define SILENT_FOR_MS 4000 /* at least: the daemon waits for a hello for five seconds */

static struct world w;
static int silent_since_start = -1;
static uint64_t silent_ms;

static int set_up(void **state)
{
	(void)state;
	world_start(&w);
	silent_since_start = raw_dial(w.d.socket);
	silent_ms = now_ms();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	close(silent_since_start);
	world_stop(&w);
	return 0;
}

/* ---- before the welcome ---- */

/* The daemon answers with a refusal, and with nothing after it. */
static void is_refused(int socket, int status, const char *what)
{
	struct message m;
	char text[WIRE_TEXT_MAX + 1];

	if (raw_receive(socket, &m, text, NULL))
		fail_msg("%s: no refusal came", what);
	if (m.type != MESSAGE_REFUSE || m.u.refuse.status != status || !text[0])
		fail_msg("%s: message %u, status %d (%s), not %d", what, m.type, m.u.refuse.status,
			 text, status);
	assert_int_equal(m.u.refuse.min_major, WIRE_MAJOR);
	assert_int_equal(m.u.refuse.max_major, WIRE_MAJOR);
	assert_int_equal(raw_receive(socket, &m, text, NULL), -EPIPE);
	close(socket);
}

static void a_wrong_version_is_refused_with_the_right_one(void **state)
{
	static const struct {
		const char *name;
		uint16_t min, max;
	} rows[] = {
	    {"only older", 0, 0},
	    {"only newer", WIRE_MAJOR + 1, WIRE_MAJOR + 1},
	    {"much newer", 1000, 65535},
	    {"a range that ends before it begins", 2, 0},
	};
	uint64_t before = daemon_counter(&w.d, "sessions_refused_version");

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		int socket = raw_dial(w.d.socket);
		struct message m = raw_hello();

		m.u.hello.min_major = rows[i].min;
		m.u.hello.max_major = rows[i].max;
		assert_int_equal(raw_send(socket, &m, sizeof(m), NULL, 0), 0);
		is_refused(socket, WIRE_EVERSION, rows[i].name);
	}
	assert_int_equal(daemon_await(&w.d, "", "sessions_refused_version", before + 4, LONG_MS),
			 before + 4);
	world_goes_on(&w);
}

/* One byte of an honest hello, changed. */
static const struct flaw {
	const char *name;
	size_t at;
	uint8_t value;
} flaws[] = {
    {"magic", 0, 0},
    {"type 0", 4, 0},
    {"a type of the daemon", 4, MESSAGE_WELCOME},
    {"an unknown type", 4, 8},
    {"type above 255", 5, 1},
    {"head_bytes", 6, 127},
    {"text_bytes", 8, 1},
    {"huge text_bytes", 11, 255},
    {"n_fds", 12, 1},
    {"huge n_fds", 15, 255},
    {"boot_epoch", 16, 1},
    {"name_space without end", 71, 'x'},
    {"a control character in client", 72, 7},
    {"client without end", 103, 'x'},
    {"reserved", 104, 1},
    {"the last reserved byte", 127, 1},
};

static void a_malformed_hello_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(flaws) / sizeof(*flaws); i++) {
		int socket = raw_dial(w.d.socket);
		struct message m = raw_hello();

		if (strstr(flaws[i].name, "without end"))
			memset((char *)&m + flaws[i].at - 31, 'x', 31);
		((uint8_t *)&m)[flaws[i].at] = flaws[i].value;
		assert_int_equal(raw_send(socket, &m, sizeof(m), NULL, 0), 0);
		is_refused(socket, WIRE_EVIOLATION, flaws[i].name);
	}
	world_goes_on(&w);
}

static void a_hello_of_any_other_size_is_refused(void **state)
{
	uint8_t packet[PACKET_BYTES + 1] = {0};
	struct message m = raw_hello();
	char name[32];

	(void)state;
	memcpy(packet, &m, sizeof(m));
	for (size_t n = 1; n <= PACKET_BYTES; n++) {
		int socket;

		if (n == sizeof(m))
			continue;
		socket = raw_dial(w.d.socket);
		(void)snprintf(name, sizeof(name), "%zu bytes", n);
		assert_int_equal(raw_send(socket, packet, n, NULL, 0), 0);
		is_refused(socket, WIRE_EVIOLATION, name);
	}
	world_goes_on(&w);
}

static void an_empty_packet_ends_the_connection(void **state)
{
	struct message m;
	char text[WIRE_TEXT_MAX + 1];
	int socket = raw_dial(w.d.socket);

	(void)state;
	assert_int_equal(raw_send(socket, "", 0, NULL, 0), 0);
	/* Whether it is refused or taken for a hang-up: it is over. */
	while (raw_receive(socket, &m, text, NULL) == 0)
		assert_int_equal(m.type, MESSAGE_REFUSE);
	close(socket);
	world_goes_on(&w);
}

static void descriptors_with_a_hello_are_refused_and_closed(void **state)
{
	unsigned descriptors = footprint_of(w.d.pid).descriptors;
	int fds[16], pair[2];

	(void)state;
	assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
	for (int i = 0; i < 16; i++)
		fds[i] = pair[0];
	for (unsigned n = 1; n <= 16; n++) {
		for (int told = 0; told < 2; told++) {
			int socket = raw_dial(w.d.socket);
			struct message m = raw_hello();

			m.n_fds = told ? n : 0;
			assert_int_equal(raw_send(socket, &m, sizeof(m), fds, n), 0);
			is_refused(socket, WIRE_EVIOLATION, "descriptors");
		}
	}
	close(pair[0]);
	/* Nobody but us writes into the pipe any more, and nobody at all reads from it. */
	(void)signal(SIGPIPE, SIG_IGN);
	assert_int_equal(write(pair[1], "", 1), -1);
	assert_int_equal(errno, EPIPE);
	close(pair[1]);
	world_goes_on(&w);
	assert_in_range(footprint_of(w.d.pid).descriptors, 0, descriptors + 1);
}

static void a_first_message_that_is_no_hello_is_refused(void **state)
{
	static const uint16_t types[] = {MESSAGE_WAKE, MESSAGE_BYE, MESSAGE_CONFIRM};

	(void)state;
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		int socket = raw_dial(w.d.socket);
		struct message m = {.magic = WIRE_MAGIC, .type = types[i], .head_bytes = sizeof(m)};

		assert_int_equal(raw_send(socket, &m, sizeof(m), NULL, 0), 0);
		is_refused(socket, WIRE_EVIOLATION, "no hello");
	}
	world_goes_on(&w);
}

static void a_foreign_namespace_is_refused(void **state)
{
	int socket = raw_dial(w.d.socket);
	struct message m = raw_hello();

	(void)state;
	memcpy(m.u.hello.name_space, "somebody-else", 14);
	assert_int_equal(raw_send(socket, &m, sizeof(m), NULL, 0), 0);
	is_refused(socket, WIRE_EPERM, "namespace");
	world_goes_on(&w);
}

static void a_huge_window_is_cut_to_what_is_allowed(void **state)
{
	int socket = raw_dial(w.d.socket);
	struct message m = raw_hello();
	char text[WIRE_TEXT_MAX + 1];
	struct segment window;
	int fd;

	(void)state;
	m.u.hello.window_bytes = UINT64_MAX;
	assert_int_equal(raw_send(socket, &m, sizeof(m), NULL, 0), 0);
	assert_int_equal(raw_receive(socket, &m, text, &fd), 0);
	assert_int_equal(m.type, MESSAGE_WELCOME);
	assert_int_equal(segment_map(fd, &window), 0); /* the control segment */
	assert_true(((struct control *)window.memory)->head.window_bytes <= 1ull << 30);
	segment_free(&window);
	close(socket);
	world_goes_on(&w);
}

/* ---- after it ---- */

static void send_flaw(struct raw *r, const void *detail)
{
	const struct flaw *flaw = detail;
	struct message m = {.magic = WIRE_MAGIC, .type = MESSAGE_WAKE, .head_bytes = sizeof(m)};

	((uint8_t *)&m)[flaw->at] = flaw->value;
	assert_int_equal(raw_send(r->socket, &m, sizeof(m), NULL, 0), 0);
}

static void a_malformed_message_ends_the_session(void **state)
{
	static const struct flaw wakes[] = {
	    {"magic", 3, 1},
	    {"a second hello", 4, MESSAGE_HELLO},
	    {"a welcome", 4, MESSAGE_WELCOME},
	    {"a segment", 4, MESSAGE_SEGMENT},
	    {"a confirm that nobody asked for", 4, MESSAGE_CONFIRM},
	    {"no type", 4, 0},
	    {"head_bytes", 6, 0},
	    {"text_bytes", 8, 1},
	    {"n_fds", 12, 2},
	    {"the first byte of the body", 24, 1},
	    {"the last byte of the body", 127, 1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(wakes) / sizeof(*wakes); i++)
		world_attack(&w, send_flaw, &wakes[i], WIRE_BYE_VIOLATION);
}

static void send_bytes(struct raw *r, const void *detail)
{
	uint8_t packet[PACKET_BYTES + 1] = {0};
	struct message m = {.magic = WIRE_MAGIC, .type = MESSAGE_WAKE, .head_bytes = sizeof(m)};

	memcpy(packet, &m, sizeof(m));
	assert_int_equal(raw_send(r->socket, packet, *(const size_t *)detail, NULL, 0), 0);
}

static void a_message_of_any_other_size_ends_the_session(void **state)
{
	static const size_t sizes[] = {1, 4, 24, 127, 129, 256, 300};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		world_attack(&w, send_bytes, &sizes[i], WIRE_BYE_VIOLATION);
}

static void send_descriptor(struct raw *r, const void *detail)
{
	struct message m = {.magic = WIRE_MAGIC, .type = MESSAGE_WAKE, .head_bytes = sizeof(m)};

	(void)detail;
	assert_int_equal(raw_send(r->socket, &m, sizeof(m), &r->socket, 1), 0);
}

static void a_descriptor_with_a_wake_ends_the_session(void **state)
{
	(void)state;
	world_attack(&w, send_descriptor, NULL, WIRE_BYE_VIOLATION);
}

static void a_flood_of_wakes_disturbs_nobody(void **state)
{
	struct raw r;
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});

	(void)state;
	do_attach(&r, w.d.socket, false);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 500; i++)
			raw_bell(&r);
		world_goes_on(&w);
	}
	assert_int_equal(raw_ask(&r, &null, NULL), 0);
	raw_free(&r);
}

/* ---- those that say nothing ---- */

static void silent_connections_keep_nobody_out(void **state)
{
	int sockets[SILENT];
	struct raw r;
	uint64_t began;

	(void)state;
	for (int i = 0; i < SILENT; i++)
		sockets[i] = raw_dial(w.d.socket);
	began = now_ms();
	do_attach(&r, w.d.socket, false);
	assert_in_range(now_ms() - began, 0, WITHIN_MS * PATIENCE);
	world_goes_on(&w);
	raw_free(&r);
	for (int i = 0; i < SILENT; i++)
		close(sockets[i]);
	world_goes_on(&w);
}

static void who_never_says_hello_is_refused_in_the_end(void **state)
{
	(void)state;
	is_refused(silent_since_start, WIRE_ETIMEDOUT, "silence");
	silent_since_start = -1;
	assert_true(now_ms() - silent_ms >= SILENT_FOR_MS);
	world_goes_on(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_wrong_version_is_refused_with_the_right_one),
	    cmocka_unit_test(a_malformed_hello_is_refused),
	    cmocka_unit_test(a_hello_of_any_other_size_is_refused),
	    cmocka_unit_test(an_empty_packet_ends_the_connection),
	    cmocka_unit_test(descriptors_with_a_hello_are_refused_and_closed),
	    cmocka_unit_test(a_first_message_that_is_no_hello_is_refused),
	    cmocka_unit_test(a_foreign_namespace_is_refused),
	    cmocka_unit_test(a_huge_window_is_cut_to_what_is_allowed),
	    cmocka_unit_test(a_malformed_message_ends_the_session),
	    cmocka_unit_test(a_message_of_any_other_size_ends_the_session),
	    cmocka_unit_test(a_descriptor_with_a_wake_ends_the_session),
	    cmocka_unit_test(a_flood_of_wakes_disturbs_nobody),
	    cmocka_unit_test(silent_connections_keep_nobody_out),
	    cmocka_unit_test(who_never_says_hello_is_refused_in_the_end),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
