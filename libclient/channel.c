/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel: the socket while a session lasts: wake-ups, descriptors of pools, and its end.
 *
 * Owned by the thread that uses the connection; never blocks. What arrives was written by the
 * daemon and is checked like anything else that comes from another process.
 */
#include "libclient/internal.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/passfd.h"

#define MESSAGES_A_LOOK 64

static void send_head(struct kvhost *host, struct message *m)
{
	m->magic = WIRE_MAGIC;
	m->head_bytes = sizeof(*m);
	/* A full buffer means that a wake-up is there already; a dead peer shows on receiving. */
	(void)passfd_send(host->socket, m, NULL, NULL, 0);
}

void channel_wake(struct kvhost *host)
{
	struct message m = {.type = MESSAGE_WAKE};

	send_head(host, &m);
}

void channel_bye(struct kvhost *host, uint32_t reason)
{
	struct message m = {.type = MESSAGE_BYE, .u.bye.reason = reason};

	send_head(host, &m);
	(void)shutdown(host->socket, SHUT_RDWR);
}

void channel_drop_arrivals(struct kvhost *host)
{
	for (uint32_t i = 0; i < host->n_arrivals; i++)
		close(host->arrivals[i].fd);
	host->n_arrivals = 0;
}

static void take_segment(struct kvhost *host, const struct message *m, int fd)
{
	/* A pool that grew: this library maps what there was at attach, and needs no more. */
	if (m->u.segment.submission == 0) {
		close(fd);
		return;
	}
	if (host->n_arrivals == ARRIVALS_MAX) {
		close(fd);
		host_end(host, KVHOST_EVIOLATION, "the daemon sent more segments than a pool has");
		return;
	}
	host->arrivals[host->n_arrivals++] = (struct arrival){.segment = m->u.segment, .fd = fd};
}

static void take_message(struct kvhost *host, const struct message *m, const char *text,
			 const int *fds)
{
	switch (m->type) {
	case MESSAGE_WAKE:
		return;
	case MESSAGE_SEGMENT:
		if (m->n_fds == MESSAGE_SEGMENT_FDS) {
			take_segment(host, m, fds[0]);
			return;
		}
		break;
	case MESSAGE_BYE:
	case MESSAGE_REFUSE:
		/* What was answered before the end counts. */
		host_reap(host);
		host_end(host, KVHOST_EGONE, text[0] ? text : "the daemon ended the session");
		(void)shutdown(host->socket, SHUT_RDWR);
		break;
	default:
		host_end(host, KVHOST_EVIOLATION, "the daemon sent a message that is not its own");
		break;
	}
	for (uint32_t i = 0; i < m->n_fds; i++)
		close(fds[i]);
}

void channel_serve(struct kvhost *host)
{
	char text[WIRE_TEXT_MAX + 1];
	struct message m;
	int fds[PASSFD_MAX];
	const char *why = "";
	int r;

	host->looked_ns = host_now_ns();
	for (int i = 0; i < MESSAGES_A_LOOK && !host->gone; i++) {
		r = passfd_receive(host->socket, 0, &m, text, fds, &why);
		if (r == -EAGAIN || r == -EINTR)
			return;
		if (r == -EPROTO) {
			host_fail(host, KVHOST_EVIOLATION, "malformed message from the daemon: %s",
				  why);
			host_end(host, KVHOST_EVIOLATION, NULL);
		} else if (r != 0) {
			host_reap(host);
			host_end(host, KVHOST_EGONE,
				 "the daemon is gone: it closed the connection");
		} else {
			take_message(host, &m, text, fds);
		}
	}
}
