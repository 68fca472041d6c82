/* SPDX-License-Identifier: Apache-2.0 */

/* test_passfd: messages over a socket pair, from an honest and from a hostile peer. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/passfd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST(name)  cmocka_unit_test_setup_teardown(name, setup, teardown)
#define PIPE_ENDS   2
#define MANY_FDS    40
#define RAW_FDS_MAX 64

struct fixture {
	int near;
	int far;
	int n_open; /* descriptors of the process after setup */
	struct message m;
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX];
	const char *why;
};

static struct fixture fixture;

static int count_open(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int setup(void **state)
{
	int pair[PIPE_ENDS];

	memset(&fixture, 0, sizeof(fixture));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	fixture.near = pair[0];
	fixture.far = pair[1];
	fixture.n_open = count_open();
	*state = &fixture;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	close(f->near);
	close(f->far);
	return 0;
}

static int receive(struct fixture *f)
{
	return passfd_receive(f->far, 0, &f->m, f->text, f->fds, &f->why);
}

static struct message simple(enum message_type type)
{
	struct message m = {.magic = WIRE_MAGIC, .type = (uint16_t)type, .head_bytes = 128};

	return m;
}

/* What a peer may send that does not use this library. */
static void send_raw(struct fixture *f, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(RAW_FDS_MAX * sizeof(int))] = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
	struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};

	if (n_fds > 0) {
		struct cmsghdr *c = (struct cmsghdr *)room;

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
		h.msg_control = room;
		h.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	}
	assert_int_equal(sendmsg(f->near, &h, MSG_NOSIGNAL), n);
}

static void a_message_arrives_with_its_text_and_descriptors(void **state)
{
	struct fixture *f = *state;
	struct message m = {.type = MESSAGE_WELCOME, .boot_epoch = 7};
	int sent[PIPE_ENDS];

	assert_int_equal(pipe(sent), 0);
	assert_int_equal(passfd_send(f->near, &m, "hello there", sent, 2), 0);
	assert_int_equal(receive(f), 0);
	assert_int_equal(f->m.boot_epoch, 7);
	assert_string_equal(f->text, "hello there");
	assert_int_equal(count_open(), f->n_open + 4);

	/* The same pipe, and never inherited by a program that we start. */
	assert_int_equal(fcntl(f->fds[0], F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(f->fds[1], F_GETFD), FD_CLOEXEC);
	assert_int_equal(write(f->fds[1], "x", 1), 1);
	assert_int_equal(read(sent[0], f->text, 1), 1);

	for (int i = 0; i < 2; i++) {
		close(sent[i]);
		close(f->fds[i]);
	}
}

static void a_text_of_the_greatest_length_arrives_and_a_longer_one_is_cut(void **state)
{
	struct fixture *f = *state;
	struct message m = {.type = MESSAGE_BYE};
	char *long_text = malloc(WIRE_TEXT_MAX + 100);

	assert_non_null(long_text);
	memset(long_text, 'a', WIRE_TEXT_MAX + 99);
	long_text[WIRE_TEXT_MAX + 99] = '\0';
	assert_int_equal(passfd_send(f->near, &m, long_text, NULL, 0), 0);
	assert_int_equal(receive(f), 0);
	assert_int_equal(strlen(f->text), WIRE_TEXT_MAX);
	free(long_text);
}

static void control_characters_of_a_text_are_replaced(void **state)
{
	struct fixture *f = *state;
	struct message m = {.type = MESSAGE_BYE};

	assert_int_equal(passfd_send(f->near, &m, "a\x1b[2Jb\nc", NULL, 0), 0);
	assert_int_equal(receive(f), 0);
	assert_string_equal(f->text, "a?[2Jb?c");
}

static void nothing_there_is_not_an_end(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(receive(f), -EAGAIN);
}

static void the_end_of_the_peer_is_seen_by_both_calls(void **state)
{
	struct fixture *f = *state;
	struct message m = {.type = MESSAGE_WAKE};

	close(f->near);
	f->near = -1;
	assert_int_equal(receive(f), -EPIPE);
	assert_int_equal(passfd_receive(f->far, 1, &f->m, f->text, f->fds, &f->why), -EPIPE);
	/* And no SIGPIPE, or this line is not reached. */
	assert_int_equal(passfd_send(f->far, &m, NULL, NULL, 0), -EPIPE);
}

static void a_full_buffer_does_not_block_the_sender(void **state)
{
	struct fixture *f = *state;
	struct message m = {.type = MESSAGE_WAKE};
	int r = 0;

	for (int i = 0; i < 1000000 && r == 0; i++)
		r = passfd_send(f->near, &m, NULL, NULL, 0);
	assert_int_equal(r, -EAGAIN);
}

static void extra_descriptors_are_closed(void **state)
{
	struct fixture *f = *state;
	struct message m = simple(MESSAGE_WAKE);
	int fds[RAW_FDS_MAX];

	for (int i = 0; i < RAW_FDS_MAX; i++)
		fds[i] = f->far;

	/* More than said; more than any message may have; more than the buffer holds. */
	for (size_t n = 1; n <= MANY_FDS; n++) {
		m.n_fds = 0;
		send_raw(f, &m, sizeof(m), fds, n);
		assert_int_equal(receive(f), -EPROTO);
		m.n_fds = (uint32_t)n;
		send_raw(f, &m, sizeof(m), fds, n);
		assert_int_equal(receive(f), -EPROTO);
		assert_int_equal(count_open(), f->n_open);
	}
	assert_string_equal(f->why, "descriptors lost");
}

static void missing_descriptors_are_noticed_and_the_others_closed(void **state)
{
	struct fixture *f = *state;
	struct message m = simple(MESSAGE_WELCOME);

	m.n_fds = 2;
	send_raw(f, &m, sizeof(m), &f->far, 1);
	assert_int_equal(receive(f), -EPROTO);
	assert_string_equal(f->why, "n_fds");
	send_raw(f, &m, sizeof(m), NULL, 0);
	assert_int_equal(receive(f), -EPROTO);
	assert_int_equal(count_open(), f->n_open);
}

static void a_malformed_message_keeps_no_descriptor(void **state)
{
	struct fixture *f = *state;
	struct message m = simple(MESSAGE_SEGMENT);

	m.n_fds = 1;
	m.magic = 0;
	send_raw(f, &m, sizeof(m), &f->far, 1);
	assert_int_equal(receive(f), -EPROTO);
	assert_string_equal(f->why, "magic");
	send_raw(f, &m, 5, &f->far, 1);
	assert_int_equal(receive(f), -EPROTO);
	assert_string_equal(f->why, "size");
	assert_int_equal(count_open(), f->n_open);
}

static void a_packet_longer_than_any_message_is_refused(void **state)
{
	struct fixture *f = *state;
	struct {
		struct message m;
		char text[WIRE_TEXT_MAX + 1];
	} big = {.m = simple(MESSAGE_BYE)};

	big.m.text_bytes = WIRE_TEXT_MAX;
	send_raw(f, &big, sizeof(big), NULL, 0);
	assert_int_equal(receive(f), -EPROTO);
	assert_string_equal(f->why, "size");
}

static void an_empty_packet_ends_the_peer_and_keeps_no_descriptor(void **state)
{
	struct fixture *f = *state;

	send_raw(f, "", 0, &f->far, 1);
	assert_int_equal(receive(f), -EPIPE);
	assert_int_equal(count_open(), f->n_open);
}

static void credentials_that_nobody_asked_for_do_not_disturb(void **state)
{
	struct fixture *f = *state;
	struct message m = simple(MESSAGE_CONFIRM);
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(struct ucred))] = {0};
	struct ucred me = {.pid = getpid(), .uid = getuid(), .gid = getgid()};
	struct iovec part = {.iov_base = &m, .iov_len = sizeof(m)};
	struct msghdr h = {
	    .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
	struct cmsghdr *c = (struct cmsghdr *)room;
	struct passfd_sender sender = {.pid = 1};
	int on = 1;

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_CREDENTIALS;
	c->cmsg_len = CMSG_LEN(sizeof(me));
	memcpy(CMSG_DATA(c), &me, sizeof(me));
	assert_int_equal(sendmsg(f->near, &h, 0), sizeof(m));
	assert_int_equal(passfd_receive_from(f->far, 0, &f->m, f->text, f->fds, &sender, &f->why),
			 0);
	assert_int_equal(sender.pid, 0);

	assert_int_equal(setsockopt(f->far, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	assert_int_equal(sendmsg(f->near, &h, 0), sizeof(m));
	assert_int_equal(passfd_receive_from(f->far, 0, &f->m, f->text, f->fds, &sender, &f->why),
			 0);
	assert_int_equal(sender.pid, getpid());
	assert_int_equal(sender.uid, getuid());
}

static void credentials_and_descriptors_fit_together(void **state)
{
	struct fixture *f = *state;
	struct message m = {.type = MESSAGE_WELCOME};
	int on = 1, two[2] = {f->far, f->near};

	assert_int_equal(setsockopt(f->far, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	assert_int_equal(passfd_send(f->near, &m, NULL, two, 2), 0);
	assert_int_equal(receive(f), 0);
	assert_int_equal(count_open(), f->n_open + 2);
	close(f->fds[0]);
	close(f->fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_message_arrives_with_its_text_and_descriptors),
	    TEST(a_text_of_the_greatest_length_arrives_and_a_longer_one_is_cut),
	    TEST(control_characters_of_a_text_are_replaced),
	    TEST(nothing_there_is_not_an_end),
	    TEST(the_end_of_the_peer_is_seen_by_both_calls),
	    TEST(a_full_buffer_does_not_block_the_sender),
	    TEST(extra_descriptors_are_closed),
	    TEST(missing_descriptors_are_noticed_and_the_others_closed),
	    TEST(a_malformed_message_keeps_no_descriptor),
	    TEST(a_packet_longer_than_any_message_is_refused),
	    TEST(an_empty_packet_ends_the_peer_and_keeps_no_descriptor),
	    TEST(credentials_that_nobody_asked_for_do_not_disturb),
	    TEST(credentials_and_descriptors_fit_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
