/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_daemon: see fake_daemon.h. Its thread waits on sockets for at most a millisecond at a time.
 */
#include "tests/unit/fake_daemon.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shm/passfd.h"

#define WINDOW_BYTES (1u << 20)
#define LAZY_ROUNDS  5

uint64_t fake_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 1) > 0;
}

static char *in_window(struct fake *f, uint64_t offset)
{
	return (char *)f->window.memory + offset;
}

/* ---- handshake ---- */

static void send_message(struct fake *f, struct message *m, const char *text, const int *fds,
			 uint32_t n_fds)
{
	m->boot_epoch = f->boot_epoch;
	(void)passfd_send(f->socket, m, text, fds, n_fds);
}

static void take_confirm(struct fake *f)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct message m = {0};
	struct iovec part = {.iov_base = &m, .iov_len = sizeof(m)};
	struct msghdr packet = {
	    .msg_iov = &part,
	    .msg_iovlen = 1,
	    .msg_control = &control,
	    .msg_controllen = sizeof(control),
	};
	struct cmsghdr *c;

	while (!f->stop && !readable(f->socket))
		;
	if (recvmsg(f->socket, &packet, MSG_DONTWAIT) != (ssize_t)sizeof(m))
		return;
	for (c = CMSG_FIRSTHDR(&packet); c; c = CMSG_NXTHDR(&packet, c)) {
		struct ucred who;

		if (c->cmsg_type != SCM_CREDENTIALS)
			continue;
		memcpy(&who, CMSG_DATA(c), sizeof(who));
		f->pid_seen = who.pid;
	}
	if (m.type == MESSAGE_CONFIRM)
		f->nonce_seen = m.u.confirm.nonce;
}

static void make_segments(struct fake *f)
{
	uint64_t bytes = control_bytes(FAKE_SLOTS, FAKE_SLOTS);
	struct segment_wish control = {.bytes = f->script.small_control ? 4096 : bytes};
	struct segment_wish window = {.bytes = f->script.window_bytes ? f->script.window_bytes
								      : WINDOW_BYTES};
	struct control *c;
	int r;

	r = segment_make(&control, &f->control);
	assert(r == 0);
	r = segment_make(&window, &f->window);
	assert(r == 0);
	(void)r;
	c = f->control.memory;
	c->head.magic = WIRE_MAGIC;
	c->head.major = WIRE_MAJOR;
	c->head.submission_slots = FAKE_SLOTS;
	c->head.completion_slots = FAKE_SLOTS;
	c->head.boot_epoch = f->boot_epoch;
	c->head.window_bytes = f->window.bytes;
	c->head.session = f->sessions;
	if (f->script.small_control)
		return;
	ring_serve_side(&f->requests, c, FAKE_SLOTS);
	ring_answer_side(&f->answers, c, FAKE_SLOTS, FAKE_SLOTS);
	text_writer_init(&f->texts, control_texts(c, FAKE_SLOTS, FAKE_SLOTS));
}

static bool shake_hands(struct fake *f)
{
	char text[WIRE_TEXT_MAX + 1];
	int on = 1, fds[PASSFD_MAX], mine[2];
	struct message m;
	const char *why;

	(void)setsockopt(f->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
	while (!f->stop && !readable(f->socket))
		;
	if (passfd_receive(f->socket, 0, &m, text, fds, &why) != 0 || m.type != MESSAGE_HELLO)
		return false;
	if (f->script.silent) {
		while (!f->stop)
			(void)readable(f->socket);
		return false;
	}
	m = (struct message){0};
	if (f->script.refuse_status) {
		m.type = MESSAGE_REFUSE;
		m.u.refuse.status = f->script.refuse_status;
		m.u.refuse.min_major = m.u.refuse.max_major = 7;
		send_message(f, &m, f->script.text, NULL, 0);
		return false;
	}
	make_segments(f);
	m.type = MESSAGE_WELCOME;
	m.u.welcome = (struct message_welcome){
	    .major = f->script.welcome_major ? f->script.welcome_major : WIRE_MAJOR,
	    .session = f->sessions,
	    .nonce = f->script.nonce,
	    .submission_slots = FAKE_SLOTS,
	    .completion_slots = FAKE_SLOTS,
	    .credits = FAKE_CREDITS,
	};
	mine[0] = f->control.fd;
	mine[1] = f->window.fd;
	send_message(f, &m, NULL, mine, f->script.bare_welcome ? 0 : 2);
	if (f->script.nonce)
		take_confirm(f);
	return !f->script.bare_welcome && !f->script.small_control;
}

/* ---- answers as a daemon gives them ---- */

static void send_parts(struct fake *f, uint64_t submission, uint32_t part_bytes)
{
	uint32_t parts = f->script.map_parts;

	for (uint32_t i = 0; i < parts; i++) {
		uint32_t bytes = f->script.short_segment && i == parts - 1 ? 4096 : part_bytes;
		struct segment_wish wish = {.bytes = bytes};
		struct segment s;
		struct message m = {
		    .type = MESSAGE_SEGMENT,
		    .u.segment = {.submission = submission,
				  .part = i,
				  .parts = parts,
				  .first_page = (uint64_t)i * FAKE_PAGES / parts},
		};

		if (segment_make(&wish, &s) != 0)
			return;
		*(uint32_t *)s.memory = 1000 + i;
		send_message(f, &m, NULL, &s.fd, 1);
		segment_free(&s);
	}
}

static void answer_attach(struct fake *f, const struct submission *s, struct completion *c)
{
	uint64_t stride = segment_base_page_bytes();
	struct payload_pool p;
	struct payload_pool_info info;

	memcpy(&p, in_window(f, s->in_offset), sizeof(p));
	info = (struct payload_pool_info){
	    .pages = FAKE_PAGES,
	    .page_stride = stride,
	    .page_bytes = 512,
	    .page_tokens = FAKE_PAGE_TOKENS,
	    .max_sequence_tokens = FAKE_PAGES * FAKE_PAGE_TOKENS,
	    .n_layers = p.n_layers,
	    .n_sections = p.n_sections,
	    .state_stride = p.n_sections ? stride : 0,
	    .parts = p.want_map ? f->script.map_parts : 0,
	};
	memcpy(in_window(f, s->out_offset), &info, sizeof(info));
	for (uint32_t i = 0; i < p.n_layers; i++) {
		struct payload_block b = {.k_offset = 0, .v_offset = 256, .kv_heads = 1};

		memcpy(in_window(f, s->out_offset + sizeof(info) + i * sizeof(b)), &b, sizeof(b));
	}
	for (uint32_t i = 0; i < p.n_sections; i++) {
		struct payload_section_place place = {.kind = PAYLOAD_REPLACED};
		struct payload_section section;

		memcpy(&section,
		       in_window(f, s->in_offset + sizeof(p) +
					p.n_layers * sizeof(struct payload_layer) +
					i * sizeof(section)),
		       sizeof(section));
		place.bytes = section.bytes;
		memcpy(in_window(f, s->out_offset + sizeof(info) +
					p.n_layers * sizeof(struct payload_block) +
					i * sizeof(place)),
		       &place, sizeof(place));
	}
	c->index = 1;
	c->generation = 1;
	c->count = p.n_layers;
}

static void answer_open(struct fake *f, const struct submission *s, struct completion *c)
{
	uint32_t cached = f->script.cached_tokens;
	uint32_t pages = (cached + FAKE_PAGE_TOKENS - 1) / FAKE_PAGE_TOKENS;
	struct payload_open_result found = {.cached_tokens = cached, .miss = PAYLOAD_MISS_DIVERGED};

	memcpy(&f->seen.open_seen, in_window(f, s->in_offset), sizeof(f->seen.open_seen));
	memcpy(f->seen.open_tokens,
	       in_window(f, s->in_offset + sizeof(f->seen.open_seen) +
				f->seen.open_seen.n_spans * sizeof(struct payload_span)),
	       sizeof(f->seen.open_tokens));
	f->seen.open_in_offset = s->in_offset;
	c->value0 = cached;
	if (s->opcode == WIRE_OP_OPEN) {
		found.n_pages = pages;
		c->index = 7;
		c->generation = 1;
		c->value1 = pages;
		c->count = pages;
		for (uint32_t i = 0; i < pages; i++)
			f->table[i] = (struct payload_handle){.index = 10 + i, .generation = 1};
		f->n_table = pages;
		f->committed = cached;
		if (s->out_bytes >= sizeof(found) + pages * sizeof(f->table[0]))
			memcpy(in_window(f, s->out_offset + sizeof(found)), f->table,
			       pages * sizeof(f->table[0]));
	}
	memcpy(in_window(f, s->out_offset), &found, sizeof(found));
}

static void answer_begin(struct fake *f, const struct submission *s, struct completion *c)
{
	uint32_t first = f->script.first_new_page;
	uint32_t pages = (uint32_t)((s->arg0 + FAKE_PAGE_TOKENS - 1) / FAKE_PAGE_TOKENS);

	if (first == UINT32_MAX)
		first = f->n_table;
	for (uint32_t i = first; i < pages; i++)
		f->table[i] = (struct payload_handle){.index = 30 + i, .generation = 3};
	f->n_table = pages > f->n_table ? pages : f->n_table;
	c->index = 9;
	c->generation = 5;
	c->value0 = first;
	c->value1 = 2;
	c->count = pages > first ? pages - first : 0;
	if (c->count * sizeof(f->table[0]) <= s->out_bytes)
		memcpy(in_window(f, s->out_offset), &f->table[first],
		       c->count * sizeof(f->table[0]));
}

static void answer_commit(struct fake *f, const struct submission *s, struct completion *c)
{
	struct payload_receipt *r = &f->seen.receipt_seen;
	uint64_t at = s->in_offset + sizeof(*r);

	memcpy(r, in_window(f, s->in_offset), sizeof(*r));
	if (r->n_pages <= 8)
		memcpy(f->seen.receipt_pages, in_window(f, at), r->n_pages * 8);
	at += r->n_pages * 8 + r->n_spans * sizeof(struct payload_span);
	if (r->n_tokens <= 8)
		memcpy(f->seen.receipt_ids, in_window(f, at), r->n_tokens * 4);
	f->committed += r->tokens_commit;
	c->value0 = f->committed;
	c->value1 = 3;
}

static void answer_table(struct fake *f, const struct submission *s, struct completion *c)
{
	uint64_t bytes = f->n_table * sizeof(f->table[0]);

	f->seen.tables_read++;
	c->count = f->n_table;
	c->value0 = f->table_offset;
	c->value1 = 11;
	memcpy(in_window(f, s->out_offset), f->table, bytes < s->out_bytes ? bytes : s->out_bytes);
}

static void answer_rows(struct fake *f, const struct submission *s)
{
	struct payload_rows rows;
	uint64_t at;

	memcpy(&rows, in_window(f, s->in_offset), sizeof(rows));
	at = (uint64_t)rows.first_token * 16;
	if (s->opcode == WIRE_OP_KV_READ) {
		f->seen.rows_out_offset = s->out_offset;
		memcpy(in_window(f, s->out_offset), f->rows + at, s->out_bytes);
		return;
	}
	f->seen.rows_in_offset = s->in_offset;
	f->seen.writes++;
	memcpy(f->rows + at, in_window(f, s->in_offset + sizeof(rows)), s->in_bytes - sizeof(rows));
}

static void answer_admin(struct fake *f, const struct submission *s, struct completion *c)
{
	const uint32_t length = 40000;

	c->count = length;
	if (s->out_bytes < length)
		c->status = WIRE_EINVAL;
	else
		memset(in_window(f, s->out_offset), 'j', length);
}

static void answer_as_usual(struct fake *f, const struct submission *s, struct completion *c)
{
	switch (s->opcode) {
	case WIRE_OP_POOL_ATTACH:
		answer_attach(f, s, c);
		break;
	case WIRE_OP_OPEN:
	case WIRE_OP_LOOKUP:
		answer_open(f, s, c);
		break;
	case WIRE_OP_FORK:
		c->index = 8;
		c->generation = 1;
		c->value0 = f->committed;
		c->count = f->n_table;
		memcpy(in_window(f, s->out_offset), f->table, f->n_table * sizeof(f->table[0]));
		break;
	case WIRE_OP_TRUNCATE:
		c->value0 = s->arg0;
		f->committed = (uint32_t)s->arg0;
		break;
	case WIRE_OP_STEP_BEGIN:
		answer_begin(f, s, c);
		break;
	case WIRE_OP_STEP_COMMIT:
		answer_commit(f, s, c);
		break;
	case WIRE_OP_TABLE:
		answer_table(f, s, c);
		break;
	case WIRE_OP_KV_READ:
	case WIRE_OP_KV_WRITE:
		answer_rows(f, s);
		break;
	case WIRE_OP_COUNTERS:
		memset(in_window(f, s->out_offset), 0, sizeof(struct payload_counters));
		((struct payload_counters *)in_window(f, s->out_offset))->hits = 17;
		break;
	case WIRE_OP_ADMIN:
		answer_admin(f, s, c);
		break;
	default:
		break;
	}
	if (f->script.table_changed &&
	    (s->opcode == WIRE_OP_STEP_BEGIN || s->opcode == WIRE_OP_STEP_COMMIT))
		c->flags |= COMPLETION_TABLE_CHANGED;
}

/* ---- the thread ---- */

static bool serve_one(struct fake *f, const struct submission *s)
{
	struct fake_answer a = {
	    .c = {.submission = f->requests.consumed, .opcode = s->opcode},
	};
	uint32_t part_bytes = FAKE_PAGES / 2 * (uint32_t)segment_base_page_bytes();
	bool parts = s->opcode == WIRE_OP_POOL_ATTACH && f->script.map_parts > 0;
	struct message wake = {.type = MESSAGE_WAKE};

	fake_sync(f);
	if (f->script.map_parts == 1)
		part_bytes *= 2;
	answer_as_usual(f, s, &a.c);
	if (f->script.answer)
		f->script.answer(f, s, &a);
	atomic_fetch_add(&f->submissions, 1);
	fake_sync(f);
	if (a.die)
		return false;
	if (parts && !f->script.late_segments)
		send_parts(f, f->requests.consumed, part_bytes);
	if (!a.none) {
		if (ring_put(&f->answers, &a.c) != 0)
			return false;
		if (ring_must_wake(&f->answers))
			send_message(f, &wake, NULL, NULL, 0);
	}
	if (parts && f->script.late_segments)
		send_parts(f, f->requests.consumed, part_bytes);
	return true;
}

static bool drain(struct fake *f)
{
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX], r;
	struct message m;
	const char *why;

	r = passfd_receive(f->socket, 0, &m, text, fds, &why);
	return r == -EAGAIN || (r == 0 && m.type == MESSAGE_WAKE);
}

static void serve(struct fake *f)
{
	struct submission s;
	int r, idle = 0;

	while (!f->stop) {
		if (atomic_exchange(&f->send_bye, false)) {
			struct message bye = {.type = MESSAGE_BYE,
					      .u.bye.reason = WIRE_BYE_SHUTDOWN};

			send_message(f, &bye, f->script.text, NULL, 0);
			return;
		}
		r = ring_get(&f->requests, &s);
		if (r == 0) {
			idle = 0;
			if (!f->script.lazy)
				ring_publish(&f->requests);
			if (!serve_one(f, &s))
				return;
			continue;
		}
		/* It sleeps at most a millisecond, so that a forgotten wake-up does not matter. */
		if (!readable(f->socket)) {
			if (++idle >= LAZY_ROUNDS)
				ring_publish(&f->requests);
		} else if (!drain(f)) {
			return;
		}
	}
}

static void *run(void *context)
{
	struct fake *f = context;

	while (!f->stop) {
		if (!readable(f->listener))
			continue;
		f->socket = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
		if (f->socket < 0)
			continue;
		f->sessions++;
		f->boot_epoch++;
		if (shake_hands(f))
			serve(f);
		close(f->socket);
		segment_free(&f->control);
		segment_free(&f->window);
	}
	return NULL;
}

struct fake *fake_new(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct fake *f = calloc(1, sizeof(*f));
	int r;

	assert(f);
	f->control = f->window = SEGMENT_NONE;
	f->boot_epoch = 40;
	f->script.first_new_page = UINT32_MAX;
	(void)snprintf(f->dir, sizeof(f->dir), "/tmp/kvhost-fake-XXXXXX");
	if (!mkdtemp(f->dir))
		abort();
	(void)snprintf(f->path, sizeof(f->path), "%s/socket", f->dir);
	memcpy(address.sun_path, f->path, strlen(f->path) + 1);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	r = bind(f->listener, (struct sockaddr *)&address, sizeof(address));
	assert(r == 0);
	r = listen(f->listener, 4);
	assert(r == 0);
	(void)r;
	return f;
}

struct fake *fake_sync(struct fake *f)
{
	atomic_fetch_add(&f->turn, 1);
	return f;
}

struct fake_seen fake_look(struct fake *f)
{
	struct fake_seen seen = fake_sync(f)->seen;

	fake_sync(f);
	return seen;
}

void fake_start(struct fake *f)
{
	if (pthread_create(&f->thread, NULL, run, f) != 0)
		abort();
	f->started = true;
}

void fake_stop(struct fake *f)
{
	if (atomic_exchange(&f->stop, true) || !f->started)
		return;
	(void)pthread_join(f->thread, NULL);
}

void fake_free(struct fake **f)
{
	fake_stop(*f);
	close((*f)->listener);
	(void)unlink((*f)->path);
	(void)rmdir((*f)->dir);
	free(*f);
	*f = NULL;
}

struct kvhost *fake_connect(struct fake *f)
{
	struct kvhost_options options = {.socket = f->path, .client = "test"};
	struct kvhost *host = NULL;

	if (kvhost_connect(&options, &host) != 0) {
		(void)fprintf(stderr, "connect: %s\n", kvhost_reason(NULL));
		abort();
	}
	return host;
}

struct kvhost_pool *fake_attach(struct kvhost *host, int map)
{
	struct kvhost_layer layers[2] = {{.kv_heads = 1, .k_head_dim = 8, .v_head_dim = 8},
					 {.kv_heads = 1, .k_head_dim = 8, .v_head_dim = 8}};
	struct kvhost_pool_description d = {.n_layers = 2, .layers = layers, .map = map};
	struct kvhost_pool *pool = NULL;

	if (kvhost_pool_attach(host, &d, &pool) != 0) {
		(void)fprintf(stderr, "attach: %s\n", kvhost_reason(host));
		abort();
	}
	return pool;
}
