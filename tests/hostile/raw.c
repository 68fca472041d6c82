/* SPDX-License-Identifier: Apache-2.0 */
/* raw: see raw.h. Main thread; blocks for bounded times. */
#include "tests/hostile/raw.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/passfd.h"
#include "shm/text.h"
#include "tests/e2e/daemon.h"

#define FDS_MAX 16

/* ---- the socket ---- */

int raw_dial(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_true(strlen(path) < sizeof(address.sun_path));
	memcpy(address.sun_path, path, strlen(path) + 1);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

struct message raw_hello(void)
{
	struct message m = {.magic = WIRE_MAGIC, .type = MESSAGE_HELLO, .head_bytes = sizeof(m)};

	m.u.hello.min_major = WIRE_MAJOR;
	m.u.hello.max_major = WIRE_MAJOR;
	m.u.hello.window_bytes = RAW_WINDOW_BYTES;
	memcpy(m.u.hello.client, "hostile", sizeof("hostile"));
	return m;
}

int raw_send(int socket, const void *bytes, size_t n, const int *fds, unsigned n_fds)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(FDS_MAX * sizeof(int))] = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
	struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};

	assert_true(n_fds <= FDS_MAX);
	if (n_fds > 0) {
		struct cmsghdr *c = (struct cmsghdr *)room;

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
		h.msg_control = room;
		h.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	}
	return sendmsg(socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

static void wait_readable(int socket)
{
	struct pollfd p = {.fd = socket, .events = POLLIN};
	int n;

	do
		n = poll(&p, 1, LONG_MS * PATIENCE);
	while (n < 0 && errno == EINTR);
	if (n != 1)
		fail_msg("the daemon said nothing for %d ms", LONG_MS * PATIENCE);
}

int raw_receive(int socket, struct message *m, char text[WIRE_TEXT_MAX + 1], int *fd)
{
	int fds[PASSFD_MAX];
	const char *why = "";
	int r;

	wait_readable(socket);
	r = passfd_receive(socket, 0, m, text, fds, &why);
	if (r == -EPIPE || r == -ECONNRESET)
		return -EPIPE;
	if (r)
		fail_msg("the daemon sent a bad message: %s (%d)", why, r);
	if (fd)
		*fd = -1;
	for (uint32_t i = 0; i < m->n_fds; i++) {
		if (fd && i == 0)
			*fd = fds[i];
		else
			close(fds[i]);
	}
	return 0;
}

/* ---- a session ---- */

void raw_attach(const char *path, struct raw *r)
{
	struct message m = raw_hello();
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX];
	const char *why = "";

	*r = (struct raw){.control = SEGMENT_NONE, .window = SEGMENT_NONE, .pool_fd = -1};
	r->socket = raw_dial(path);
	assert_int_equal(raw_send(r->socket, &m, sizeof(m), NULL, 0), 0);
	wait_readable(r->socket);
	assert_int_equal(passfd_receive(r->socket, 0, &m, text, fds, &why), 0);
	assert_int_equal(m.type, MESSAGE_WELCOME);
	r->welcome = m.u.welcome;
	r->boot_epoch = m.boot_epoch;
	assert_int_equal(segment_map(fds[0], &r->control), 0);
	assert_int_equal(segment_map(fds[1], &r->window), 0);
	ring_submit_side(&r->submit, r->control.memory, r->welcome.submission_slots);
	ring_reap_side(&r->reap, r->control.memory, r->welcome.submission_slots,
		       r->welcome.completion_slots);
	r->texts = control_texts(r->control.memory, r->welcome.submission_slots,
				 r->welcome.completion_slots);
	if (r->welcome.nonce) {
		m = (struct message){.magic = WIRE_MAGIC,
				     .type = MESSAGE_CONFIRM,
				     .head_bytes = sizeof(m),
				     .u.confirm.nonce = r->welcome.nonce};
		assert_int_equal(raw_send(r->socket, &m, sizeof(m), NULL, 0), 0);
	}
}

void raw_free(struct raw *r)
{
	if (r->socket >= 0)
		close(r->socket);
	if (r->pool_fd >= 0)
		close(r->pool_fd);
	segment_free(&r->control);
	segment_free(&r->window);
	*r = (struct raw){
	    .socket = -1, .control = SEGMENT_NONE, .window = SEGMENT_NONE, .pool_fd = -1};
}

void raw_bell(const struct raw *r)
{
	struct message wake = {
	    .magic = WIRE_MAGIC, .type = MESSAGE_WAKE, .head_bytes = sizeof(wake)};

	/* A full buffer means that one is pending; a closed one is seen by who waits. */
	(void)raw_send(r->socket, &wake, sizeof(wake), NULL, 0);
}

uint64_t raw_put(struct raw *r, const struct submission *s)
{
	assert_int_equal(ring_put(&r->submit, s), 0);
	if (ring_must_wake(&r->submit))
		raw_bell(r);
	return r->submit.produced;
}

uint64_t raw_put_all(struct raw *r, const struct submission *s, uint32_t n)
{
	for (uint32_t i = n; i-- > 0;) {
		uint64_t position = r->submit.produced + i;
		struct ring_entry *slot = &r->submit.entries[position % r->submit.slots];

		memcpy(slot->payload, (const char *)&s[i] + 8, sizeof(slot->payload));
		atomic_store_explicit(&slot->sequence, position + 1, memory_order_release);
	}
	r->submit.produced += n;
	if (ring_must_wake(&r->submit))
		raw_bell(r);
	return r->submit.produced;
}

static void take_message(struct raw *r)
{
	struct message m;
	int fd;

	if (raw_receive(r->socket, &m, r->text, &fd)) {
		r->ended = true;
		return;
	}
	if (m.type == MESSAGE_BYE)
		r->reason = m.u.bye.reason;
	if (m.type == MESSAGE_SEGMENT) {
		if (r->pool_fd >= 0)
			close(r->pool_fd);
		r->pool_fd = fd;
	} else {
		assert_true(fd < 0);
	}
}

static bool take_completion(struct raw *r)
{
	struct completion c;
	int got = ring_get(&r->reap, &c);

	assert_int_not_equal(got, RING_VIOLATION);
	if (got)
		return false;
	memcpy(&r->seen[c.submission % RAW_SEEN], &c, sizeof(c));
	if (!r->lazy)
		ring_publish(&r->reap);
	return true;
}

bool raw_wait(struct raw *r, uint64_t sequence, struct completion *c)
{
	const struct completion *seen = &r->seen[sequence % RAW_SEEN];

	while (seen->submission != sequence) {
		if (take_completion(r))
			continue;
		if (r->ended)
			return false;
		if (ring_prepare_sleep(&r->reap))
			take_message(r);
		ring_end_sleep(&r->reap);
	}
	if (c)
		memcpy(c, seen, sizeof(*c));
	return true;
}

int raw_ask(struct raw *r, const struct submission *s, struct completion *c)
{
	struct completion own;

	if (!raw_wait(r, raw_put(r, s), &own))
		return RAW_ENDED;
	if (c)
		memcpy(c, &own, sizeof(own));
	return own.status;
}

void raw_await_end(struct raw *r)
{
	while (!r->ended)
		take_message(r);
}

const char *raw_text(const struct raw *r, const struct completion *c)
{
	static char text[CONTROL_TEXT_BYTES];
	struct text_name name = {.text = c->text, .serial = c->text_serial};

	if (c->text == 0 || text_read(r->texts, name, text) != 0)
		return "";
	return text;
}

void *raw_window(const struct raw *r, uint64_t offset)
{
	return (char *)r->window.memory + offset;
}
