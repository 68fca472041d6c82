/* SPDX-License-Identifier: Apache-2.0 */

/*
 * passfd: see passfd.h. The thread that owns the socket calls it. Only a receive with `wait`
 * blocks.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/passfd.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shm/text.h"

/* Room for the descriptors of a message and the credentials that SO_PASSCRED asks for. */
#define ANCILLARY_BYTES (CMSG_SPACE(PASSFD_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred)))

struct arrival {
	uint64_t bytes;
	int flags; /* of recvmsg */
	/* As many as the buffer could ever hold: each that came must be closed or handed on. */
	int fds[ANCILLARY_BYTES / sizeof(int)];
	uint32_t n_fds;
	struct passfd_sender sender;
};

int passfd_send(int socket, struct message *m, const char *text, const int *fds, uint32_t n_fds)
{
	_Alignas(struct cmsghdr) char ancillary[CMSG_SPACE(PASSFD_MAX * sizeof(int))] = {0};
	size_t text_bytes = text ? strnlen(text, WIRE_TEXT_MAX) : 0;
	struct iovec parts[2] = {
	    {.iov_base = m, .iov_len = sizeof(*m)},
	    {.iov_base = (void *)(uintptr_t)text, .iov_len = text_bytes},
	};
	struct msghdr header = {.msg_iov = parts, .msg_iovlen = text_bytes > 0 ? 2 : 1};
	ssize_t n;

	assert(n_fds <= PASSFD_MAX);

	m->magic = WIRE_MAGIC;
	m->head_bytes = sizeof(*m);
	m->text_bytes = (uint32_t)text_bytes;
	m->n_fds = n_fds;

	if (n_fds > 0) {
		struct cmsghdr *rights = (struct cmsghdr *)ancillary;

		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(rights), fds, n_fds * sizeof(int));
		header.msg_control = ancillary;
		header.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	}

	do {
		n = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	/* A packet goes whole or not at all. */
	return n < 0 ? -errno : 0;
}

static void take_ancillary(struct msghdr *header, struct arrival *a)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		size_t bytes = c->cmsg_len - CMSG_LEN(0);

		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_RIGHTS) {
			size_t n = bytes / sizeof(int);

			assert(a->n_fds + n <= sizeof(a->fds) / sizeof(a->fds[0]));
			memcpy(a->fds + a->n_fds, CMSG_DATA(c), n * sizeof(int));
			a->n_fds += (uint32_t)n;
		} else if (c->cmsg_type == SCM_CREDENTIALS && bytes >= sizeof(struct ucred)) {
			struct ucred credentials;

			memcpy(&credentials, CMSG_DATA(c), sizeof(credentials));
			a->sender =
			    (struct passfd_sender){.pid = credentials.pid, .uid = credentials.uid};
		}
	}
}

static int receive(int socket, int wait, struct message *m, char *text, struct arrival *a)
{
	_Alignas(struct cmsghdr) char ancillary[ANCILLARY_BYTES];
	struct iovec parts[2] = {
	    {.iov_base = m, .iov_len = sizeof(*m)},
	    {.iov_base = text, .iov_len = WIRE_TEXT_MAX},
	};
	struct msghdr header = {.msg_iov = parts, .msg_iovlen = 2};
	int resets = 0;
	ssize_t n;

	*a = (struct arrival){0};
	do {
		header.msg_control = ancillary;
		header.msg_controllen = sizeof(ancillary);
		n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
		/* A peer that closed with something unread is reported once, before what it sent
		 * last, which says why it closed. */
		resets += n < 0 && errno == ECONNRESET;
	} while (n < 0 && (errno == EINTR || (errno == ECONNRESET && resets == 1)));
	if (n < 0)
		return errno == EWOULDBLOCK ? -EAGAIN : -errno;

	a->bytes = (uint64_t)n;
	a->flags = header.msg_flags;
	take_ancillary(&header, a);
	return 0;
}

static int check(const struct message *m, const struct arrival *a, const char **why)
{
	/* The end of the stream; an empty packet looks the same and deserves no better. */
	if (a->bytes == 0)
		return -EPIPE;
	if (a->flags & MSG_CTRUNC) {
		*why = "descriptors lost";
		return -EPROTO;
	}
	if (a->flags & MSG_TRUNC) {
		*why = "size";
		return -EPROTO;
	}
	return message_check(m, a->bytes, a->n_fds, why);
}

int passfd_receive_from(int socket, int wait, struct message *m, char *text, int fds[PASSFD_MAX],
			struct passfd_sender *sender, const char **why)
{
	struct message received = {0};
	struct arrival a;
	int r;

	r = receive(socket, wait, &received, text, &a);
	if (r)
		return r;

	r = check(&received, &a, why);
	if (r) {
		for (uint32_t i = 0; i < a.n_fds; i++)
			close(a.fds[i]);
		text[0] = '\0';
		return r;
	}

	assert(a.n_fds <= PASSFD_MAX);
	text_clean(text, received.text_bytes);
	text[received.text_bytes] = '\0';
	memcpy(fds, a.fds, a.n_fds * sizeof(int));
	*m = received;
	if (sender)
		*sender = a.sender;
	return 0;
}

int passfd_receive(int socket, int wait, struct message *m, char *text, int fds[PASSFD_MAX],
		   const char **why)
{
	return passfd_receive_from(socket, wait, m, text, fds, NULL, why);
}
