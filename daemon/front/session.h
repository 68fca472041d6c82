/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_SESSION_H
#define KVHOST_FRONT_SESSION_H

/*
 * session: one attached client: its two rings, its window, its requests, its handles.
 *
 * Whatever ends it (death, violation, fault, shutdown), session_end does it: requests are over,
 * steps end, sequences close in turns, and the struct goes when its last work is done. Pages of a
 * mapped pool that a living process may still write to stay in quarantine until it has exited.
 * Owner: the core thread; nothing blocks.
 */

#include "daemon/front/core.h"
#include "shm/ring.h"
#include "shm/text.h"

enum session_state {
	SESSION_LIVE = 1,
	SESSION_ENDED, /* no entry is taken, no completion given */
};

struct session_memory { /* shared with a client; unmapped once nobody uses it */
	struct segment control;
	struct segment window;
	uint32_t users; /* the session and jobs in flight */
	/* Give it back; may be another one than the default for memory that is no segment. */
	void (*free)(struct session_memory *m);
};

struct session_wish {
	uint32_t pid, uid;
	uint16_t name_space;
	bool admin, interactive;
	bool observer; /* an operator who is not of the namespace: attaches no pool */
	char client[WIRE_NAME_MAX];
	uint32_t submission_slots, completion_slots;
	struct session_memory *memory; /* taken on success */
	void *owner;                   /* for the hooks */
};

struct session {
	struct core *core;
	enum session_state state;
	uint32_t id;
	uint32_t pid, uid;
	uint16_t name_space;
	bool admin, interactive, observer;
	bool is_awake; /* its ring is polled */
	bool held;     /* its ring is not looked at: its process is not known yet */
	bool exited;   /* the process has */
	char client[WIRE_NAME_MAX];
	void *owner; /* for the hooks */

	struct list in_sessions; /* or in core->ended */
	struct list in_awake;
	struct list in_ready;
	struct list in_answered;
	struct list requests; /* taken, not completed */
	struct list ready;    /* of them: those that go on next turn */
	struct list sequences;

	struct session_memory *memory;
	struct ring_consumer submissions;
	struct ring_producer completions;
	struct text_writer texts;
	uint32_t submission_slots, completion_slots;
	uint32_t in_flight;          /* requests */
	uint32_t reserved_in_flight; /* of them: cancel and close */
	uint32_t n_sequences;
	uint64_t taken, given;     /* submissions, completions */
	uint64_t active_ns;        /* when its ring had something last */
	uint64_t stalled_since_ns; /* its completions stay unconsumed; 0: they do not */
	uint64_t stalled_at;       /* consumer's position then */
	struct charge heap;
	struct slot_handle pools[CONFIG_POOLS_MAX]; /* attached; generation 0: no */
	struct statsfile_session *slot;             /* in the stats file; NULL: no room */
	struct payload_counters counters;
	uint32_t quarantines;
};

/* On 0 the core owns it. 0 or -ENOMEM. */
int session_new(struct core *c, const struct session_wish *wish, struct session **out);
void session_end(struct session *s, enum wire_bye reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What session_end leaves for later, since requests may be running: core_turn calls it. */
void session_tear_down(struct session *s);
/* The client's process has exited: nothing is in quarantine for it any more. Ends it first. */
void session_exited(struct session *s);
/* A wake message came. */
void session_wake(struct session *s);

/* Take what is in its ring, at most a bounded number. true if there was something. */
bool session_poll(struct session *s);
void session_sleep(struct session *s); /* stop polling; it stays awake if something just came */
void session_look(struct session *s);  /* now and then: stalled? */

/* A range of the window, which decode has checked. */
static inline void *session_window(const struct session *s, uint64_t offset)
{
	return (char *)s->memory->window.memory + offset;
}

/* Copy between the window and private memory; a hole ends the session: -EFAULT then. */
int session_read(struct session *s, void *to, uint64_t offset, size_t bytes);
int session_write(struct session *s, uint64_t offset, const void *from, size_t bytes);

/* Give a completion; the caller has checked nothing, credits make it fit. */
void session_complete(struct session *s, const struct completion *c);
struct text_name session_text(struct session *s, const char *text);

void session_memory_use(struct session_memory *m);
void session_memory_give(struct core *c, struct session_memory *m);

/* The struct goes if it has ended and nothing needs it any more. */
void session_settle(struct session *s);

#endif
