/* SPDX-License-Identifier: Apache-2.0 */
/* peer: see peer.h. Core thread; memory is made and unmapped on the work thread. */
#include "daemon/front/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/panic.h"
#include "daemon/base/random.h"
#include "daemon/front/listener.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define HUGE_WINDOW_BYTES (32u << 20) /* from here on a window is made of huge pages */

/* A session's memory, and the job that makes it and later unmaps it. */
struct peer_memory {
	struct session_memory memory; /* first */
	struct job job;
	struct core *core;
	struct peer *peer; /* NULL: it has gone meanwhile */
	size_t window_bytes;
};

static void unmap_run(struct job *job)
{
	struct peer_memory *m = list_entry(job, struct peer_memory, job);

	segment_free(&m->memory.control);
	segment_free(&m->memory.window);
	job->result = 0;
}

static void unmap_done(struct job *job)
{
	free(list_entry(job, struct peer_memory, job));
}

static void unmap(struct session_memory *memory)
{
	struct peer_memory *m = (struct peer_memory *)(void *)memory;

	m->job = (struct job){.run = unmap_run, .done = unmap_done};
	m->core->work->submit(m->core->work, &m->job);
}

/* ---- coming and going ---- */

struct peer *peer_new(struct listener *l, int socket)
{
	struct peer *p = calloc(1, sizeof(*p));
	socklen_t size = sizeof(p->pidfd);
	int on = 1;

	if (!p)
		return NULL;
	*p = (struct peer){.on_socket.kind = WATCH_SOCKET,
			   .on_process.kind = WATCH_PROCESS,
			   .listener = l,
			   .state = PEER_HELLO,
			   .socket = socket,
			   .pidfd = -1};
	list_init(&p->in_listener);
	if (identity_of(socket, &p->who)) {
		free(p);
		return NULL;
	}
	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &p->pidfd, &size) == 0)
		return p;
	/* An older kernel: the number may be somebody else's by now; a nonce tells. */
	p->pidfd = (int)syscall(SYS_pidfd_open, p->who.pid, 0);
	if (p->pidfd < 0 || random_secret(&p->nonce, sizeof(p->nonce)) ||
	    setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on))) {
		if (p->pidfd >= 0)
			close(p->pidfd);
		identity_free(&p->who);
		free(p);
		return NULL;
	}
	p->nonce |= 1;
	return p;
}

void peer_free(struct peer *p)
{
	must(!p->session);
	if (p->making)
		p->making->peer = NULL;
	if (p->socket >= 0)
		close(p->socket);
	if (p->pidfd >= 0)
		close(p->pidfd);
	identity_free(&p->who);
	free(p);
}

void peer_drop(struct peer *p)
{
	must(!p->session);
	p->state = PEER_ENDED;
	if (p->socket >= 0)
		close(p->socket);
	p->socket = -1;
	if (p->pidfd >= 0)
		close(p->pidfd);
	p->pidfd = -1;
	list_remove(&p->in_listener);
	list_append(&p->listener->buried, &p->in_listener);
}

static void count_refused(struct core *c, int status)
{
	switch (status) {
	case WIRE_EVERSION:
		core_count(c, COUNTER_sessions_refused_version);
		break;
	case WIRE_EPERM:
		core_count(c, COUNTER_sessions_refused_user);
		break;
	case WIRE_EQUOTA:
		core_count(c, COUNTER_sessions_refused_limit);
		break;
	case WIRE_ENOMEM:
		core_count(c, COUNTER_sessions_refused_memory);
		break;
	case WIRE_ESHUTDOWN:
		core_count(c, COUNTER_sessions_refused_shutdown);
		break;
	default:
		core_count(c, COUNTER_sessions_refused_protocol);
		break;
	}
}

void peer_refuse(struct peer *p, int status, const char *text)
{
	struct message m = {.type = MESSAGE_REFUSE, .boot_epoch = p->listener->core->boot_epoch};

	m.u.refuse.status = status;
	m.u.refuse.min_major = WIRE_MAJOR;
	m.u.refuse.max_major = WIRE_MAJOR;
	count_refused(p->listener->core, status);
	log_write(p->listener->core->log, LOG_LEVEL_INFO, "pid %u (uid %u) refused: %s", p->who.pid,
		  p->who.uid, text);
	(void)passfd_send(p->socket, &m, text, NULL, 0);
	if (p->session)
		session_end(p->session, WIRE_BYE_VIOLATION, "%s", text);
	else
		peer_drop(p);
}

void peer_hung_up(struct peer *p)
{
	if (p->session)
		session_end(p->session, WIRE_BYE_DEATH, "the client hung up");
	else
		peer_drop(p);
}

/* ---- hello ---- */

static void make_run(struct job *job)
{
	struct peer_memory *m = list_entry(job, struct peer_memory, job);
	const struct config_core *k = &m->core->config->core;
	struct segment_wish control = {
	    .bytes = control_bytes((uint32_t)k->submission_slots, (uint32_t)k->completion_slots),
	    .name = "kvhost-control",
	    .populate = true};
	struct segment_wish window = {.bytes = m->window_bytes,
				      .name = "kvhost-window",
				      .huge = m->window_bytes >= HUGE_WINDOW_BYTES};

	job->result = segment_make(&control, &m->memory.control);
	if (!job->result)
		job->result = segment_make(&window, &m->memory.window);
}

static int welcome(struct peer *p, struct peer_memory *m)
{
	struct core *c = p->listener->core;
	const struct config_core *k = &c->config->core;
	struct control *control = m->memory.control.memory;
	int fds[MESSAGE_WELCOME_FDS] = {m->memory.control.fd, m->memory.window.fd};
	struct message out = {.type = MESSAGE_WELCOME, .boot_epoch = c->boot_epoch};

	control->head.magic = WIRE_MAGIC;
	control->head.major = WIRE_MAJOR;
	control->head.minor = WIRE_MINOR;
	control->head.submission_slots = (uint32_t)k->submission_slots;
	control->head.completion_slots = (uint32_t)k->completion_slots;
	control->head.boot_epoch = c->boot_epoch;
	control->head.window_bytes = m->memory.window.bytes;
	control->head.session = p->session->id;
	out.u.welcome.major = WIRE_MAJOR;
	out.u.welcome.minor = WIRE_MINOR;
	out.u.welcome.session = p->session->id;
	out.u.welcome.nonce = p->nonce;
	out.u.welcome.submission_slots = control->head.submission_slots;
	out.u.welcome.completion_slots = control->head.completion_slots;
	out.u.welcome.credits = control->head.completion_slots - WIRE_RESERVED_COMPLETIONS;
	out.u.welcome.spin_us = (uint32_t)k->spin_us;
	memcpy(out.u.welcome.name_space, c->namespaces[p->card.name_space].name, WIRE_NAME_MAX);
	return passfd_send(p->socket, &out, "", fds, MESSAGE_WELCOME_FDS);
}

/* False: as many sessions as there may be are attached, and it is refused. */
static bool has_place(struct peer *p)
{
	const struct core *c = p->listener->core;
	const struct config_namespace *n = &c->config->namespaces[p->card.name_space];
	uint64_t attached = c->namespaces[p->card.name_space].sessions;
	char text[CONTROL_TEXT_BYTES];

	if (c->n_sessions >= c->config->core.session_limit) {
		peer_refuse(p, WIRE_EQUOTA,
			    "as many sessions as core.session_limit allows are attached");
		return false;
	}
	if (n->max_sessions == CONFIG_NULL || attached < n->max_sessions)
		return true;
	snprintf(text, sizeof(text),
		 "namespace %s has %llu sessions attached; at most %llu (namespaces.max_sessions)",
		 n->name, (unsigned long long)attached, (unsigned long long)n->max_sessions);
	peer_refuse(p, WIRE_EQUOTA, text);
	return false;
}

static void made(struct job *job)
{
	struct peer_memory *m = list_entry(job, struct peer_memory, job);
	struct peer *p = m->peer;
	struct core *c = m->core;
	const struct config_core *k = &c->config->core;
	struct session_wish wish = {.submission_slots = (uint32_t)k->submission_slots,
				    .completion_slots = (uint32_t)k->completion_slots,
				    .memory = &m->memory,
				    .owner = p};

	if (p)
		p->making = NULL;
	if (!p || p->state != PEER_MAKING || job->result || c->draining) {
		if (p && p->state == PEER_MAKING && job->result)
			peer_refuse(p, WIRE_ENOMEM,
				    job->result == -EMFILE || job->result == -ENFILE
					? "the daemon has no descriptors left for the session"
					: "the host has no memory for the session");
		else if (p && p->state == PEER_MAKING)
			peer_refuse(p, WIRE_ESHUTDOWN, "the daemon is stopping");
		unmap(&m->memory);
		return;
	}
	/* Others may have come while its memory was made. */
	if (!has_place(p)) {
		unmap(&m->memory);
		return;
	}
	wish.pid = p->who.pid;
	wish.uid = p->who.uid;
	wish.name_space = p->card.name_space;
	wish.admin = p->card.rights & CONFIG_RIGHT_ADMIN;
	wish.interactive = p->card.rights & CONFIG_RIGHT_INTERACTIVE;
	wish.observer = (p->card.rights & ~(uint32_t)CONFIG_RIGHT_ADMIN) == 0;
	memcpy(wish.client, p->hello.u.hello.client, sizeof(wish.client));
	if (session_new(c, &wish, &p->session)) {
		peer_refuse(p, WIRE_ENOMEM, "the daemon has no memory for the session");
		unmap(&m->memory);
		return;
	}
	p->state = p->nonce ? PEER_CONFIRM : PEER_LIVE;
	if (p->nonce) {
		/* Its ring is looked at once it has shown who it is. */
		list_remove(&p->session->in_awake);
		p->session->is_awake = false;
		p->session->held = true;
	}
	if (welcome(p, m))
		session_end(p->session, WIRE_BYE_DEATH, "the client has gone before its welcome");
	else
		log_write(c->log, LOG_LEVEL_INFO, "session %u: %s, pid %u, uid %u, namespace %s",
			  p->session->id, p->session->client, p->who.pid, p->who.uid,
			  c->namespaces[p->card.name_space].name);
}

static void hello(struct peer *p)
{
	struct core *c = p->listener->core;
	const struct message_hello *h = &p->hello.u.hello;
	const struct config_core *k = &c->config->core;
	uint64_t bytes = h->window_bytes ? h->window_bytes : k->window_bytes;
	struct peer_memory *m;

	if (h->min_major > WIRE_MAJOR || h->max_major < WIRE_MAJOR) {
		peer_refuse(p, WIRE_EVERSION, "this daemon speaks protocol version 1 only");
		return;
	}
	if (c->draining) {
		peer_refuse(p, WIRE_ESHUTDOWN, "the daemon is stopping");
		return;
	}
	/* The refusal is the same whether the name is wrong or the user. */
	if (!identity_admit(c->config, &p->who, h->name_space, p->listener->admin_gid, &p->card)) {
		peer_refuse(p, WIRE_EPERM, "no namespace of this name for this user");
		return;
	}
	if (!has_place(p))
		return;
	if (bytes > k->window_bytes_max)
		bytes = k->window_bytes_max;
	m = calloc(1, sizeof(*m));
	if (!m) {
		peer_refuse(p, WIRE_ENOMEM, "the daemon has no memory for the session");
		return;
	}
	m->memory =
	    (struct session_memory){.control = SEGMENT_NONE, .window = SEGMENT_NONE, .free = unmap};
	m->core = c;
	m->peer = p;
	m->window_bytes = bytes;
	m->job = (struct job){.run = make_run, .done = made};
	p->making = m;
	p->state = PEER_MAKING;
	c->work->submit(c->work, &m->job);
}

static int violation(struct peer *p, const char *why)
{
	if (p->session)
		session_end(p->session, WIRE_BYE_VIOLATION, "a message on the socket: %s", why);
	else
		peer_refuse(p, WIRE_EVIOLATION, why);
	return -EPROTO;
}

static int confirm(struct peer *p, const struct message *m, const struct passfd_sender *sender)
{
	if (p->state != PEER_CONFIRM || m->u.confirm.nonce != p->nonce ||
	    (uint32_t)sender->pid != p->who.pid)
		return violation(p, "the nonce does not come from the process that connected");
	p->state = PEER_LIVE;
	p->session->held = false;
	session_wake(p->session);
	return 0;
}

int peer_receive(struct peer *p)
{
	struct message m;
	struct passfd_sender sender = {0};
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX];
	const char *why = "malformed";
	int r = passfd_receive_from(p->socket, 0, &m, text, fds, &sender, &why);

	if (r == -EAGAIN)
		return r;
	if (r == -EPROTO)
		return violation(p, why);
	if (r) {
		peer_hung_up(p);
		return r;
	}
	if (m.n_fds) {
		for (uint32_t i = 0; i < m.n_fds; i++)
			close(fds[i]);
		return violation(p, "clients send no descriptors");
	}
	if (m.type == MESSAGE_HELLO && p->state == PEER_HELLO) {
		p->hello = m;
		hello(p);
		return p->socket < 0 ? -EPIPE : 0;
	}
	if (m.type == MESSAGE_CONFIRM)
		return confirm(p, &m, &sender);
	if (m.type == MESSAGE_WAKE && p->state == PEER_LIVE) {
		session_wake(p->session);
		return 0;
	}
	if (m.type == MESSAGE_BYE && p->session) {
		session_end(p->session, WIRE_BYE_CLIENT, "the client said goodbye");
		return -EPIPE;
	}
	return violation(p, "of a type that is not expected now");
}

/* ---- hooks ---- */

static void hook_wake(void *context, struct session *s)
{
	struct peer *p = s->owner;
	struct message m = {.type = MESSAGE_WAKE};

	(void)context;
	/* A full buffer means that wake messages are pending already. */
	if (p->socket >= 0)
		(void)passfd_send(p->socket, &m, "", NULL, 0);
}

static bool hook_segment(void *context, struct session *s, const struct message *m, int fd)
{
	struct peer *p = s->owner;
	struct message out = *m;

	(void)context;
	out.boot_epoch = s->core->boot_epoch;
	return p->socket >= 0 && passfd_send(p->socket, &out, "", &fd, 1) == 0;
}

static void hook_ended(void *context, struct session *s, enum wire_bye reason, const char *text)
{
	struct peer *p = s->owner;
	struct message m = {.type = MESSAGE_BYE, .boot_epoch = s->core->boot_epoch};

	(void)context;
	m.u.bye.reason = reason;
	if (p->socket >= 0) {
		(void)passfd_send(p->socket, &m, text, NULL, 0);
		close(p->socket);
	}
	p->socket = -1;
	p->state = PEER_ENDED;
}

static void hook_gone(void *context, struct session *s)
{
	struct peer *p = s->owner;

	(void)context;
	p->session = NULL;
	peer_drop(p);
}

const struct core_hooks listener_hooks = {
    .wake = hook_wake,
    .segment = hook_segment,
    .ended = hook_ended,
    .gone = hook_gone,
};
