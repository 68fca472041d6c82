/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handshake: from a path to a session: hello, welcome, confirm, and the segments checked.
 *
 * Owned by the thread that uses the connection. Waits for the daemon, at most the connect timeout.
 * Nothing of the host changes for good before everything that the daemon said has been checked.
 */
#include "libclient/internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/passfd.h"

#define SLOTS_MAX 65536u

static int connect_result(struct kvhost *host, int error)
{
	int result = KVHOST_EGONE;

	if (error == EACCES || error == EPERM)
		result = KVHOST_EPERM;
	else if (error == EAGAIN || error == ETIMEDOUT || error == EINPROGRESS)
		result = KVHOST_ETIMEDOUT;
	return host_fail(host, result, "cannot connect to %s: %s", host->path, strerror(error));
}

static int open_socket(struct kvhost *host)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {
	    .tv_sec = (time_t)(host->connect_timeout_ns / 1000000000u),
	    .tv_usec = (suseconds_t)(host->connect_timeout_ns / 1000u % 1000000u),
	};
	size_t n = strlen(host->path);
	int error;

	if (n >= sizeof(address.sun_path))
		return host_fail(host, KVHOST_EINVAL,
				 "the socket's path has %zu bytes, at most %zu", n,
				 sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, host->path, n + 1);
	host->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (host->socket < 0)
		return connect_result(host, errno);
	/* connect waits while the daemon's backlog is full. */
	(void)setsockopt(host->socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(host->socket, (struct sockaddr *)&address, sizeof(address)) != 0) {
		error = errno;
		return connect_result(host, error);
	}
	return 0;
}

static int send_hello(struct kvhost *host)
{
	struct message m = {
	    .magic = WIRE_MAGIC,
	    .type = MESSAGE_HELLO,
	    .head_bytes = sizeof(m),
	    .u.hello =
		{
		    .min_major = WIRE_MAJOR,
		    .min_minor = 0,
		    .max_major = WIRE_MAJOR,
		    .max_minor = WIRE_MINOR,
		    .window_bytes = host->window_wanted_bytes,
		},
	};
	int r;

	memcpy(m.u.hello.name_space, host->name_space, sizeof(host->name_space));
	memcpy(m.u.hello.client, host->client, sizeof(host->client));
	r = passfd_send(host->socket, &m, NULL, NULL, 0);
	if (r)
		return host_fail(host, KVHOST_EGONE, "the daemon closed the connection: %s",
				 strerror(-r));
	return 0;
}

static int await_answer(struct kvhost *host, uint64_t deadline_ns, struct message *m, char *text,
			int fds[PASSFD_MAX])
{
	struct pollfd p = {.fd = host->socket, .events = POLLIN};
	struct timespec t;
	const char *why = "";
	uint64_t now_ns;
	int r;

	for (;;) {
		r = passfd_receive(host->socket, 0, m, text, fds, &why);
		if (r == 0)
			return 0;
		if (r == -EPROTO)
			return host_fail(host, KVHOST_EVIOLATION,
					 "malformed message from the daemon: %s", why);
		if (r != -EAGAIN && r != -EINTR)
			return host_fail(host, KVHOST_EGONE,
					 "the daemon closed the connection without an answer");
		now_ns = host_now_ns();
		if (now_ns >= deadline_ns)
			return host_fail(host, KVHOST_ETIMEDOUT, "the daemon did not answer");
		t = (struct timespec){
		    .tv_sec = (time_t)((deadline_ns - now_ns) / 1000000000u),
		    .tv_nsec = (long)((deadline_ns - now_ns) % 1000000000u),
		};
		(void)ppoll(&p, 1, &t, NULL);
	}
}

static int refused(struct kvhost *host, const struct message *m, const char *text)
{
	const struct message_refuse *refuse = &m->u.refuse;

	if (refuse->status >= 0)
		return host_fail(host, KVHOST_EVIOLATION, "the daemon refused without a code");
	if (text[0])
		host_set_reason(host, text);
	else if (refuse->status == WIRE_EVERSION)
		host_fail(host, KVHOST_EVERSION,
			  "this library speaks version %d, the daemon %u to %u", WIRE_MAJOR,
			  refuse->min_major, refuse->max_major);
	else
		host_set_reason(host, kvhost_strerror(refuse->status));
	return refuse->status;
}

static bool is_power_of_two(uint32_t n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

static int check_welcome(struct kvhost *host, const struct message_welcome *w)
{
	if (w->major != WIRE_MAJOR || w->minor > WIRE_MINOR)
		return host_fail(host, KVHOST_EVERSION,
				 "the daemon chose version %u.%u, this library speaks %d.%d",
				 w->major, w->minor, WIRE_MAJOR, WIRE_MINOR);
	if (!is_power_of_two(w->submission_slots) || !is_power_of_two(w->completion_slots) ||
	    w->submission_slots > SLOTS_MAX || w->completion_slots > SLOTS_MAX)
		return host_fail(host, KVHOST_EVIOLATION,
				 "the daemon offers rings of %u and %u entries",
				 w->submission_slots, w->completion_slots);
	if (w->credits == 0 || w->completion_slots < WIRE_RESERVED_COMPLETIONS ||
	    w->credits > w->completion_slots - WIRE_RESERVED_COMPLETIONS)
		return host_fail(host, KVHOST_EVIOLATION,
				 "the daemon offers %u requests in flight and %u completions",
				 w->credits, w->completion_slots);
	return 0;
}

/* Takes the descriptor. */
static int map_one(struct kvhost *host, const char *what, int fd, struct segment *out)
{
	int r;

	r = segment_map(fd, out);
	if (r) {
		*out = SEGMENT_NONE;
		return host_fail(host, r == -ENOMEM ? KVHOST_ENOMEM : KVHOST_EVIOLATION,
				 "cannot map the %s segment: %s", what, strerror(-r));
	}
	/* A child would otherwise share what its parent goes on using. */
	(void)madvise(out->memory, out->bytes, MADV_DONTFORK);
	return 0;
}

static int take_control(struct kvhost *host, const struct message *m)
{
	const struct message_welcome *w = &m->u.welcome;
	const struct control *c = host->control.memory;
	struct control_head head;

	if (host->control.bytes < control_bytes(w->submission_slots, w->completion_slots))
		return host_fail(host, KVHOST_EVIOLATION,
				 "the control segment has %zu bytes, too few for its rings",
				 host->control.bytes);
	memcpy(&head, &c->head, sizeof(head));
	if (head.magic != WIRE_MAGIC || head.major != w->major ||
	    head.submission_slots != w->submission_slots ||
	    head.completion_slots != w->completion_slots || head.boot_epoch != m->boot_epoch ||
	    head.session != w->session)
		return host_fail(host, KVHOST_EVIOLATION,
				 "the control segment is not the one of the welcome");
	if (head.window_bytes == 0 || head.window_bytes > host->window_segment.bytes)
		return host_fail(host, KVHOST_EVIOLATION,
				 "the window has %zu bytes and is said to have %llu",
				 host->window_segment.bytes, (unsigned long long)head.window_bytes);
	if (window_init(&host->window, host->window_segment.memory, head.window_bytes) != 0)
		return KVHOST_ENOMEM;
	return 0;
}

static int send_confirm(struct kvhost *host, uint64_t nonce)
{
	struct message m = {
	    .magic = WIRE_MAGIC,
	    .type = MESSAGE_CONFIRM,
	    .head_bytes = sizeof(m),
	    .u.confirm.nonce = nonce,
	};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(struct ucred))];
	} control = {0};
	struct iovec part = {.iov_base = &m, .iov_len = sizeof(m)};
	struct msghdr packet = {
	    .msg_iov = &part,
	    .msg_iovlen = 1,
	    .msg_control = &control,
	    .msg_controllen = sizeof(control),
	};
	struct ucred me = {.pid = getpid(), .uid = geteuid(), .gid = getegid()};

	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_CREDENTIALS;
	control.head.cmsg_len = CMSG_LEN(sizeof(me));
	memcpy(CMSG_DATA(&control.head), &me, sizeof(me));
	if (sendmsg(host->socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(m))
		return host_fail(host, KVHOST_EGONE, "cannot confirm the welcome: %s",
				 strerror(errno));
	return 0;
}

static int accept_welcome(struct kvhost *host, const struct message *m, int fds[PASSFD_MAX])
{
	const struct message_welcome *w = &m->u.welcome;
	struct control *c;
	int result;

	result = check_welcome(host, w);
	if (result) {
		close(fds[0]);
		close(fds[1]);
		return result;
	}
	result = map_one(host, "control", fds[0], &host->control);
	if (result) {
		close(fds[1]);
		return result;
	}
	result = map_one(host, "window", fds[1], &host->window_segment);
	if (result == 0)
		result = take_control(host, m);
	if (result == 0 && w->nonce != 0)
		result = send_confirm(host, w->nonce);
	if (result)
		return result;

	host->credits = w->credits;
	result = request_records(host);
	if (result)
		return result;
	c = host->control.memory;
	ring_submit_side(&host->submissions, c, w->submission_slots);
	ring_reap_side(&host->completions, c, w->submission_slots, w->completion_slots);
	host->texts = control_texts(c, w->submission_slots, w->completion_slots);
	host->boot_epoch = m->boot_epoch;
	return 0;
}

static int shake_hands(struct kvhost *host)
{
	uint64_t deadline_ns = host_now_ns() + host->connect_timeout_ns;
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX];
	struct message m;
	int result;

	result = open_socket(host);
	if (result == 0)
		result = send_hello(host);
	if (result == 0)
		result = await_answer(host, deadline_ns, &m, text, fds);
	if (result)
		return result;
	if (m.type == MESSAGE_WELCOME && m.n_fds == MESSAGE_WELCOME_FDS)
		return accept_welcome(host, &m, fds);
	for (uint32_t i = 0; i < m.n_fds; i++)
		close(fds[i]);
	if (m.type == MESSAGE_REFUSE)
		return refused(host, &m, text);
	return host_fail(host, KVHOST_EVIOLATION,
			 "the daemon answered hello with a message of type %u", m.type);
}

int session_start(struct kvhost *host)
{
	int result;

	host->serial++;
	host->in_flight = 0;
	result = shake_hands(host);
	if (result) {
		session_free(host);
		return result;
	}
	host->gone = 0;
	host->looked_ns = host_now_ns();
	host->reason[0] = '\0';
	return 0;
}

static void free_segment(struct segment *s, bool forked)
{
	/* In a child the addresses may be something else by now. */
	if (forked) {
		if (s->fd >= 0)
			close(s->fd);
	} else {
		segment_free(s);
	}
	*s = SEGMENT_NONE;
}

void session_free(struct kvhost *host)
{
	bool forked = host->fork_mark && host_forked(host);

	channel_drop_arrivals(host);
	window_deinit(&host->window);
	free_segment(&host->control, forked);
	free_segment(&host->window_segment, forked);
	host->texts = NULL;
	if (host->socket >= 0)
		close(host->socket);
	host->socket = -1;
}
