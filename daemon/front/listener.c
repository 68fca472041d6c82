/* SPDX-License-Identifier: Apache-2.0 */
/* listener: see listener.h. Core thread; nothing here blocks but epoll_wait, when told to. */
#include "daemon/front/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/group.h"
#include "daemon/base/panic.h"
#include "daemon/front/peer.h"

#define EVENTS_A_TURN   64
#define MESSAGES_A_TURN 8
#define ACCEPTS_A_TURN  16
#define HELLO_NS        (5 * NS_PER_S)

static int add_watch(struct listener *l, struct watch *w, int fd, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = w};

	return epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

static int bind_socket(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, r = 0;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (unlink(path) && errno != ENOENT)
		r = -errno;
	if (!r && (bind(fd, (struct sockaddr *)&address, sizeof(address)) || chmod(path, 0660) ||
		   listen(fd, 128)))
		r = -errno;
	if (!r)
		r = group_give(path, GROUP_CONNECT);
	if (r) {
		close(fd);
		return r;
	}
	return fd;
}

int listener_new(const char *path, struct core *core, struct listener **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	int r = 0;

	if (!l)
		return -ENOMEM;
	l->core = core;
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll < 0)
		r = -errno;
	l->spare = l->epoll < 0 ? -1 : fcntl(l->epoll, F_DUPFD_CLOEXEC, 0);
	l->path = strdup(path);
	l->admin_gid = group_find(GROUP_ADMIN);
	l->socket = bind_socket(path);
	l->accepting.kind = WATCH_LISTENER;
	list_init(&l->peers);
	list_init(&l->buried);
	list_init(&l->watched);
	if (!r && !l->path)
		r = -ENOMEM;
	if (!r && l->socket < 0)
		r = l->socket;
	if (!r)
		r = add_watch(l, &l->accepting, l->socket, EPOLLIN);
	core->hooks.context = l;
	if (r) {
		listener_free(&l);
		return r;
	}
	*out = l;
	return 0;
}

int listener_watch(struct listener *l, int fd, void (*called)(void *context), void *context)
{
	struct watched *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	*w = (struct watched){.watch.kind = WATCH_OTHER, .called = called, .context = context};
	r = add_watch(l, &w->watch, fd, EPOLLIN);
	if (r) {
		free(w);
		return r;
	}
	list_append(&l->watched, &w->in_listener);
	return 0;
}

void listener_stop(struct listener *l)
{
	if (l->socket < 0)
		return;
	close(l->socket);
	l->socket = -1;
	unlink(l->path);
	list_for_each(link, following, &l->peers)
	{
		struct peer *p = list_entry(link, struct peer, in_listener);

		if (p->state == PEER_HELLO)
			peer_refuse(p, WIRE_ESHUTDOWN, "the daemon is stopping");
	}
}

static void bury(struct listener *l)
{
	while (!list_is_empty(&l->buried)) {
		struct peer *p = list_entry(list_first(&l->buried), struct peer, in_listener);

		list_remove(&p->in_listener);
		peer_free(p);
	}
}

void listener_free(struct listener **pl)
{
	struct listener *l = *pl;

	if (!l)
		return;
	if (l->socket >= 0)
		listener_stop(l);
	while (!list_is_empty(&l->peers))
		peer_drop(list_entry(list_first(&l->peers), struct peer, in_listener));
	bury(l);
	while (!list_is_empty(&l->watched)) {
		struct watched *w =
		    list_entry(list_first(&l->watched), struct watched, in_listener);

		list_remove(&w->in_listener);
		free(w);
	}
	if (l->epoll >= 0)
		close(l->epoll);
	if (l->spare >= 0)
		close(l->spare);
	free(l->path);
	free(l);
	*pl = NULL;
}

/* ---- who comes ---- */

/* No descriptor is left: with the one in reserve the caller is told so by a hang-up, else it
 * would wait and keep the core awake. */
static void turn_away(struct listener *l)
{
	int fd;

	if (l->spare >= 0)
		close(l->spare);
	fd = accept4(l->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		core_count(l->core, COUNTER_sessions_refused_memory);
		close(fd);
	}
	l->spare = fcntl(l->epoll, F_DUPFD_CLOEXEC, 0);
}

static void accept_peers(struct listener *l)
{
	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		int fd = accept4(l->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct peer *p;

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE)
				turn_away(l);
			return;
		}
		p = peer_new(l, fd);
		if (!p) {
			core_count(l->core, COUNTER_sessions_refused_memory);
			close(fd);
			continue;
		}
		p->deadline_ns = l->core->now_ns + HELLO_NS;
		list_append(&l->peers, &p->in_listener);
		if (add_watch(l, &p->on_socket, fd, EPOLLIN | EPOLLRDHUP) ||
		    (p->pidfd >= 0 && add_watch(l, &p->on_process, p->pidfd, EPOLLIN)))
			peer_refuse(p, WIRE_ENOMEM,
				    "the host has no room to watch one more client");
	}
}

/* ---- what comes ---- */

static void socket_event(struct peer *p, uint32_t events)
{
	for (int i = 0; i < MESSAGES_A_TURN && p->socket >= 0; i++) {
		int r = peer_receive(p);

		if (r == -EAGAIN)
			break;
		if (r)
			return;
	}
	if (p->socket >= 0 && (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)))
		peer_hung_up(p);
}

static void process_event(struct peer *p)
{
	epoll_ctl(p->listener->epoll, EPOLL_CTL_DEL, p->pidfd, NULL);
	close(p->pidfd);
	p->pidfd = -1;
	p->exited = true;
	if (p->session)
		session_exited(p->session);
	else
		peer_drop(p);
}

/* Peers that connected and said nothing. */
static void drop_silent(struct listener *l)
{
	list_for_each(link, following, &l->peers)
	{
		struct peer *p = list_entry(link, struct peer, in_listener);

		if ((p->state == PEER_HELLO || p->state == PEER_CONFIRM) &&
		    l->core->now_ns > p->deadline_ns)
			peer_refuse(p, WIRE_ETIMEDOUT, "no hello came within 5 s");
	}
}

void listener_poll(struct listener *l, int timeout_ms)
{
	struct epoll_event events[EVENTS_A_TURN];
	int n = epoll_wait(l->epoll, events, EVENTS_A_TURN, timeout_ms);

	for (int i = 0; i < n; i++) {
		struct watch *w = events[i].data.ptr;

		switch (w->kind) {
		case WATCH_LISTENER:
			if (l->socket >= 0)
				accept_peers(l);
			break;
		case WATCH_SOCKET: {
			struct peer *p = list_entry(w, struct peer, on_socket);

			if (p->socket >= 0)
				socket_event(p, events[i].events);
			break;
		}
		case WATCH_PROCESS: {
			struct peer *p = list_entry(w, struct peer, on_process);

			if (p->pidfd >= 0)
				process_event(p);
			break;
		}
		case WATCH_OTHER: {
			struct watched *other = list_entry(w, struct watched, watch);

			other->called(other->context);
			break;
		}
		}
	}
	if (l->core->now_ns - l->looked_ns > NS_PER_S / 2) {
		l->looked_ns = l->core->now_ns;
		drop_silent(l);
	}
	bury(l);
}
