/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_HOSTILE_RAW_H
#define KVHOST_TESTS_HOSTILE_RAW_H

/*
 * raw: a client that says whatever a test wants it to say: any bytes on the socket, any entry in
 * the ring, any position on its line. It is built on shm/ alone, not on libkvhost.
 *
 * What an honest client would do goes through raw_put and raw_wait. Calls block, each until its
 * state has come or a deadline has passed, which fails the test. Main thread.
 */

#include "shm/message.h"
#include "shm/payload.h"
#include "shm/ring.h"
#include "shm/segment.h"

#define RAW_SEEN         64
#define RAW_ENDED        1 /* instead of a status: the session is over */
#define RAW_WINDOW_BYTES (128u << 10)

struct raw {
	int socket;
	struct segment control, window;
	struct message_welcome welcome;
	uint64_t boot_epoch;
	struct ring_producer submit;
	struct ring_consumer reap;
	struct control_text *texts;
	struct completion seen[RAW_SEEN]; /* taken from the ring, by submission modulo RAW_SEEN */
	bool lazy;                        /* does not tell what it has consumed */
	bool ended;
	uint32_t reason; /* of the bye; 0: none came */
	char text[WIRE_TEXT_MAX + 1];
	int pool_fd; /* of the last segment message; -1: none */
	struct payload_handle pool;
};

/* ---- the socket ---- */

int raw_dial(const char *path);
struct message raw_hello(void); /* an honest one */
/* As one packet, with descriptors. 0 or -errno. */
int raw_send(int socket, const void *bytes, size_t n, const int *fds, unsigned n_fds);
/* The next message: 0, or -EPIPE at the end of the stream. Its descriptors are closed, save the
 * first, if `fd` is not NULL: -1 there if none came. */
int raw_receive(int socket, struct message *m, char text[WIRE_TEXT_MAX + 1], int *fd);

/* ---- a session ---- */

void raw_attach(const char *path, struct raw *r);
void raw_free(struct raw *r);
/* Submit; the sequence of the submission. Rings the bell. */
uint64_t raw_put(struct raw *r, const struct submission *s);
/* All at once: the daemon sees none before it can see all of them. The sequence of the last. */
uint64_t raw_put_all(struct raw *r, const struct submission *s, uint32_t n);
void raw_bell(const struct raw *r);
/* The completion of a submission. False: the session has ended instead. */
bool raw_wait(struct raw *r, uint64_t sequence, struct completion *c);
/* Both: the status, or RAW_ENDED. `c` may be NULL. */
int raw_ask(struct raw *r, const struct submission *s, struct completion *c);
/* Until the daemon ends the session; then r->reason and r->text say why. */
void raw_await_end(struct raw *r);
/* The refusal text that a completion names; "" if it has none. */
const char *raw_text(const struct raw *r, const struct completion *c);
void *raw_window(const struct raw *r, uint64_t offset);

#endif
