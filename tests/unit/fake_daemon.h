/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_FAKE_DAEMON_H
#define KVHOST_TESTS_FAKE_DAEMON_H

/*
 * fake_daemon: one thread that speaks the protocol by script, also wrongly, to test libkvhost.
 *
 * The thread owns everything here while it runs; a test sets the script before fake_start or
 * between an answer and the next request, with fake_sync around, and looks at what was recorded
 * in the same way. It serves one
 * session after another until it is stopped.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "libclient/kvhost.h"
#include "shm/message.h"
#include "shm/payload.h"
#include "shm/ring.h"
#include "shm/segment.h"
#include "shm/text.h"

#define FAKE_CREDITS     4
#define FAKE_SLOTS       8
#define FAKE_PAGE_TOKENS 16
#define FAKE_PAGES       64
#define FAKE_ROWS_BYTES  (1u << 20)

struct fake;

struct fake_answer {
	struct completion c;
	bool none; /* do not answer now */
	bool die;  /* close the socket instead */
};

struct fake_script {
	bool lazy;             /* tell what was consumed only when nothing is there to do */
	bool silent;           /* take hello and say nothing */
	int32_t refuse_status; /* refuse with this and `text` */
	const char *text;
	uint16_t welcome_major; /* 0: the right one */
	bool bare_welcome;      /* without descriptors, by hand */
	bool small_control;     /* a control segment without room for its rings */
	uint64_t nonce;
	uint64_t window_bytes;   /* 0: 1 MiB */
	uint32_t map_parts;      /* segments of a pool */
	bool late_segments;      /* they come after the completion */
	bool short_segment;      /* the last one is smaller than its pages */
	uint32_t cached_tokens;  /* what open finds */
	uint32_t first_new_page; /* what begin says; UINT32_MAX: behind the known ones */
	bool table_changed;      /* flag of the next begin or commit */
	/* Sees each submission before it is answered as usual; may change the answer. */
	void (*answer)(struct fake *f, const struct submission *s, struct fake_answer *a);
};

struct fake_seen { /* what requests brought */
	struct payload_open open_seen;
	uint64_t open_in_offset;
	uint32_t open_tokens[4]; /* the first ones */
	struct payload_receipt receipt_seen;
	struct payload_handle receipt_pages[8];
	uint32_t receipt_ids[8];
	uint32_t writes, tables_read;
	uint64_t rows_in_offset, rows_out_offset;
};

struct fake {
	struct fake_script script;
	char dir[64], path[96];
	int listener, socket;
	pthread_t thread;
	bool started;
	_Atomic bool stop;
	_Atomic uint32_t sessions;
	_Atomic uint32_t submissions; /* taken in all sessions */
	_Atomic bool send_bye;
	_Atomic uint32_t turn;
	uint64_t boot_epoch;

	struct segment control, window;
	struct ring_consumer requests;
	struct ring_producer answers;
	struct text_writer texts;

	uint64_t nonce_seen;
	int pid_seen;
	struct fake_seen seen;
	char rows[FAKE_ROWS_BYTES];
	struct payload_handle table[FAKE_PAGES]; /* what OP_TABLE gives */
	uint32_t n_table, table_offset;
	uint32_t committed;
};

struct fake *fake_new(void);
void fake_start(struct fake *f);
void fake_stop(struct fake *f);
void fake_free(struct fake **f); /* stops it, removes its folder */

/* What either side wrote before is visible to the other: the ring does not tell a sanitiser so. */
struct fake *fake_sync(struct fake *f);
struct fake_seen fake_look(struct fake *f); /* a copy, between an answer and the next request */

struct kvhost *fake_connect(struct fake *f); /* must succeed */
struct kvhost_pool *fake_attach(struct kvhost *host, int map);
uint64_t fake_now_ns(void);

#endif
