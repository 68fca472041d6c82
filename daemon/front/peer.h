/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_PEER_H
#define KVHOST_FRONT_PEER_H

/*
 * peer: one connected socket and the process behind it, from hello to goodbye. Inside listener.
 */

#include <stdbool.h>

#include "daemon/front/identity.h"
#include "daemon/front/session.h"
#include "shm/passfd.h"

enum watch_kind { WATCH_LISTENER, WATCH_SOCKET, WATCH_PROCESS, WATCH_OTHER };

struct watch {
	enum watch_kind kind;
};

struct watched {
	struct watch watch;
	struct list in_listener;
	void (*called)(void *context);
	void *context;
};

struct listener {
	struct core *core;
	uint32_t admin_gid; /* the operators' group */
	int epoll;
	int socket;
	int spare; /* a descriptor to give up when there are no more */
	char *path;
	struct watch accepting;
	struct list peers;
	struct list buried; /* freed at the end of the turn: events may still name them */
	struct list watched;
	uint64_t looked_ns;
};

enum peer_state {
	PEER_HELLO = 1,
	PEER_MAKING,  /* its memory is being made */
	PEER_CONFIRM, /* welcomed; must echo the nonce */
	PEER_LIVE,
	PEER_ENDED, /* no socket; perhaps a process that pages in quarantine wait for */
};

struct peer_memory;

struct peer {
	struct watch on_socket;
	struct watch on_process;
	struct list in_listener;
	struct listener *listener;
	enum peer_state state;
	int socket; /* -1: closed */
	int pidfd;  /* -1: none */
	bool exited;
	struct identity who;
	uint64_t nonce; /* 0: its process is known by descriptor */
	uint64_t deadline_ns;
	struct message hello;
	struct identity_card card;
	struct peer_memory *making;
	struct session *session;
};

struct peer *peer_new(struct listener *l, int socket); /* NULL: no memory */
void peer_free(struct peer *p);
void peer_drop(struct peer *p); /* close everything; freed at the end of the turn */

/* One message: 0, -EAGAIN (none), or another -errno: it has ended. */
int peer_receive(struct peer *p);
void peer_hung_up(struct peer *p);
void peer_refuse(struct peer *p, int status, const char *text);

#endif
