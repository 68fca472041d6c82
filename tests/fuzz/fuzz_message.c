/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fuzz_message: a packet of a hostile peer, through a socket into passfd_receive.
 *
 * Input: one byte, how many descriptors come with it (modulo 8), then the packet. One thread.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shm/passfd.h"
#include "tests/fuzz/fuzz.h"

#define FDS_MAX      8
#define PACKET_BYTES 8192

static int near_end = -1, far_end = -1;

static void open_pair(void)
{
	int pair[2];
	int r;

	if (near_end >= 0)
		return;
	r = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
	assert(r == 0);
	near_end = pair[0];
	far_end = pair[1];
}

static void send_packet(const uint8_t *packet, size_t bytes, unsigned n_fds)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(FDS_MAX * sizeof(int))] = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)packet, .iov_len = bytes};
	struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
	int fds[FDS_MAX];
	ssize_t n;

	for (unsigned i = 0; i < n_fds; i++)
		fds[i] = far_end;
	if (n_fds > 0) {
		struct cmsghdr *c = (struct cmsghdr *)room;

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
		h.msg_control = room;
		h.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	}
	n = sendmsg(near_end, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
	assert(n == (ssize_t)bytes);
}

static void check_text(const char *text, uint32_t bytes)
{
	assert(strlen(text) == bytes);
	for (uint32_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];

		assert(c >= 0x20 && c != 0x7f);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct message m;
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX];
	const char *why = NULL;
	unsigned n_fds;
	int next, r;

	if (size < 1 || size - 1 > PACKET_BYTES)
		return 0;
	open_pair();
	next = dup(far_end);
	close(next);

	n_fds = data[0] % FDS_MAX;
	send_packet(data + 1, size - 1, n_fds);
	r = passfd_receive(far_end, 0, &m, text, fds, &why);
	if (r == 0) {
		assert(size - 1 == sizeof(m) + m.text_bytes);
		assert(m.n_fds == n_fds);
		check_text(text, m.text_bytes);
		for (uint32_t i = 0; i < m.n_fds; i++)
			close(fds[i]);
	} else {
		assert(r == -EPROTO || (r == -EPIPE && size == 1));
		assert(r != -EPROTO || why);
	}

	/* No descriptor stays open: the lowest free one is what it was. */
	r = dup(far_end);
	assert(r == next);
	close(r);
	return 0;
}
