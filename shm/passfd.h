/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_PASSFD_H
#define KVHOST_SHM_PASSFD_H

/*
 * passfd: send and receive one message with its descriptors over a SOCK_SEQPACKET socket.
 *
 * Sending never blocks and never raises SIGPIPE. Receiving closes every descriptor that came when
 * the message is malformed, truncated, or has another number of them than its head says.
 */

#include "shm/message.h"

#define PASSFD_MAX 4

/* Fills in magic, head_bytes, text_bytes and n_fds of `m`; cuts a text at WIRE_TEXT_MAX.
 * 0, -EAGAIN (the buffer is full), -EPIPE/-ECONNRESET (the peer is gone) or another -errno. */
int passfd_send(int socket, struct message *m, const char *text, const int *fds, uint32_t n_fds);

/*
 * One message. 0; -EAGAIN (none there; only if `wait` is false); -EPIPE (end of file);
 * -EPROTO (malformed: *why says what, nothing is kept). `text` has WIRE_TEXT_MAX + 1 bytes, is
 * terminated, and its control characters are replaced. fds[] belong to the caller on 0.
 */
int passfd_receive(int socket, int wait, struct message *m, char *text, int fds[PASSFD_MAX],
		   const char **why);

/* Who sent it, by the kernel's word. pid 0 = not said: the receiving socket lacks SO_PASSCRED. */
struct passfd_sender {
	int32_t pid;
	uint32_t uid;
};

/* The same, and who sent it. `sender` may be NULL. */
int passfd_receive_from(int socket, int wait, struct message *m, char *text, int fds[PASSFD_MAX],
			struct passfd_sender *sender, const char **why);

#endif
