/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_REQUEST_H
#define KVHOST_FRONT_REQUEST_H

/*
 * request: one operation of a client on its way from entry to completion.
 *
 * decode turns a copied entry into a request, or into a refusal with a text; it changes nothing.
 * A request of a sequence stands in that sequence's queue and starts when what was submitted
 * before it is done (row operations run together). run moves it; it ends DONE, wants another turn
 * (MORE), or waits for somebody (WAIT) until its deadline. Each has exactly one completion.
 * Owner: the core thread.
 */

#include "daemon/front/sequence.h"
#include "daemon/front/session.h"

#define REQUEST_INLINE_BYTES 192
#define REQUEST_BATCH_MOST   1024 /* operations of a batch */

struct request;

enum run_result {
	RUN_DONE = 0, /* reply.status says how */
	RUN_MORE,
	RUN_WAIT,
};

enum request_target { /* what its handle names */
		      TARGET_NONE = 0,
		      TARGET_POOL,
		      TARGET_SEQUENCE,
		      TARGET_STEP,
		      TARGET_EITHER, /* a sequence, or else a step */
};

struct request_kind {
	uint16_t opcode;
	uint16_t in_bytes;  /* size of the payload's head; 0: none */
	uint16_t out_bytes; /* least room for the reply */
	uint8_t target;     /* enum request_target */
	bool head_only;     /* only the payload's head is copied by decode; run copies the rest */
	bool waits;         /* it may wait: it has a deadline */
	bool patient;       /* it has one only if the client named it: memory takes its time */
	bool reserved;      /* it may use the last completions: cancel and close */
	bool rows;          /* runs beside others of its kind */
	bool here;          /* it needs the sequence's pages on the device */
	bool final;         /* commit, abort, close: cannot be cancelled */
	int latency;        /* enum histogram, -1: none */
	/* Look at the copied payload: true, or refused. Changes nothing. NULL: nothing to look at.
	 */
	bool (*check)(struct request *r);
	enum run_result (*run)(struct request *r, uint32_t *budget);
	/* It ends before its time with this status; what it holds goes. NULL: only its reply. */
	void (*abandon)(struct request *r, int status);
};

enum prompt_phase {
	PROMPT_COPY = 0,
	PROMPT_ADMIT,
	PROMPT_MATCH,
	PROMPT_FETCH, /* what is in KV-RAM */
};

struct image_job;

struct request_prompt {
	struct match_wish wish;
	struct match match;
	uint32_t *tokens; /* the whole prompt; becomes the sequence's */
	struct key_image *images;
	uint32_t *path;
	struct seq *seq;         /* of an open or a fork */
	struct mover_copy *copy; /* of a fork: in flight */
	uint64_t charged;
	uint32_t copied_tokens;
	uint32_t asked, fetched; /* pages of the match: asked of KV-RAM, there */
	uint64_t fetch_ns;       /* since when */
	uint64_t restore_ns;     /* how long it took */
	uint32_t copy_from; /* of a fork: the page whose committed rows it gets, or PAGE_NONE */
	uint32_t max_tokens;
	bool interactive;
	bool shared;        /* of a fork: it has its parent's state */
	uint8_t phase;      /* enum prompt_phase */
	uint8_t found_kind; /* enum image_kind */
	bool image_from_ram;
};

struct request_step {
	struct mover_copy *copy; /* in flight */
	uint8_t phase;
};

struct rows_job;

struct request_rows {
	struct rows_job *job; /* in flight */
};

struct request_batch {
	struct request *item; /* the one that runs */
	uint32_t next, n;
	bool cancelled; /* what comes after that one is not begun */
};

struct request_walk { /* of a core: check, drop */
	uint32_t pool, at;
	uint64_t objects;
	uint64_t copies; /* in KV-RAM, that went */
	/* what it waits for, and how often it has begun to */
	bool waits;
	struct ram_marks marks;
	uint32_t rounds;
};

struct request {
	struct list in_session; /* session.requests; of a free one: core.free_requests */
	struct list in_queue;   /* sequence.queue */
	struct list in_ready;   /* session.ready */
	struct list in_wait;    /* a list of a pool */
	struct list *waits_in;  /* which one it was in last */
	struct session *session;
	struct sequence *sequence; /* NULL: of no sequence */
	struct core_pool *pool;
	struct image_job *image; /* a copy of an image in flight */
	struct request *batch;   /* it is an item of this one */
	const struct request_kind *kind;
	struct timer timer;
	uint64_t began_ns;
	uint64_t serial;
	struct submission entry; /* the copy */
	struct completion reply;
	bool started;
	bool waiting;
	bool working; /* its sequence is busy with it */
	bool interactive;
	void *in; /* the copied payload, or NULL */
	uint64_t in_charged;
	union {
		struct request_prompt prompt;
		struct request_step step;
		struct request_rows rows;
		struct request_batch batch_of;
		struct request_walk walk;
	} u;
	uint64_t inline_in[REQUEST_INLINE_BYTES / 8];
};

/* ---- decode.c ---- */

const struct request_kind *request_kind_find(uint32_t opcode); /* NULL: unknown */
/* Make a request of a copied entry. 0 and *out; 1: it was answered already (refused, or done); or
 * the session has ended (its state tells). `batch`: of which it is an item. */
int request_decode(struct session *s, const struct submission *e, struct request *batch,
		   struct request **out);
bool range_is_zero(const void *bytes, size_t n);

/* ---- request.c ---- */

void request_start(struct request *r); /* as soon as its turn has come */
void request_go(struct request *r);    /* run it for one budget, and what follows */
void request_ready(struct request *r); /* run it in the next turn; keeps its place where it waits */
struct pool_rank request_rank(const struct request *r);
/* Interactive before agent, then in the order submitted; of a sequence: its own open's. */
bool request_outranks(const struct request *a, const struct request *b);
/* Does somebody wait there who ranks above it? */
bool request_is_behind(const struct list *where, const struct request *r);
void request_wait(struct request *r, struct list *where); /* in rank order; arms the deadline */
void request_end(struct request *r, int status);          /* abandon it */
void request_finish(struct request *r);                   /* reply and forget */
/* What it holds of payload and lists goes; no reply. */
void request_free(struct request *r);
struct request *request_alloc(struct session *s);

/* Refuse: sets the reply's status and text; returns RUN_DONE for run functions. */
enum run_result refuse(struct request *r, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool refused(struct request *r, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4))); /* the same; returns false for check functions */
enum run_result done(struct request *r);

/* Its input or what it keeps does not fit: which private memory is used up, and what has the key
 * that would change it. As refuse. */
enum run_result refuse_heap(struct request *r, const char *what, uint64_t bytes);
void refuse_sequence_heap(struct request *r, const struct sequence *q); /* charge_sequence failed */

/* ---- fetch.c: pages that are in KV-RAM ---- */

/* Of an open whose match goes on there. DONE: all are on the device, or it is refused; MORE: fewer
 * are to be had, go on matching. */
enum run_result request_fetch(struct request *r, uint32_t *budget);
/* What it found is another match than before: all that needs is to be asked for. */
void request_fetch_from_start(struct request *r);
/* Its sequence has made room for others: it comes back before anything else. DONE: it is there, or
 * the request is refused. */
enum run_result request_bring_back(struct request *r, uint32_t *budget);
/* Its sequence is lost. */
enum run_result request_refuse_lost(struct request *r);
/* It waits for a page, in rank order. */
void request_starve(struct request *r);

/* ---- admission.c ---- */

/* Have the pages of a sequence promised. True: they are. Else it waits, or it is an item of a
 * batch and must not. */
bool admission_try(struct request *r, struct seq *seq);
bool admission_session(struct request *r);  /* may its session open one more? Or refused */
bool admission_sequence(struct request *r); /* may its namespace open one more? Or refused */
/* Could a sequence of so many tokens ever be admitted? Or refused. */
bool admission_pages(struct request *r, uint64_t most_tokens);

/* Write a reply's elements to the range that the client named: as many as fit; count = n. */
bool reply_array(struct request *r, uint32_t skip_bytes, const void *from, uint32_t n,
		 uint32_t element_bytes);
/* The version of a sequence's table in value1; whether its client must read all of it again. */
void reply_version(struct request *r, struct seq *s);
/* Handles of table entries first .. first + n - 1 of a sequence. */
bool reply_pages(struct request *r, uint32_t skip_bytes, const struct seq *s, uint32_t first,
		 uint32_t n);

extern const struct request_kind kind_checkpoint, kind_image_write, kind_image_read;
extern const struct request_kind kind_null, kind_cancel, kind_batch, kind_pool_attach,
    kind_pool_detach, kind_open, kind_lookup, kind_fork, kind_truncate, kind_close, kind_table,
    kind_step_begin, kind_step_commit, kind_step_abort, kind_kv_write, kind_kv_read, kind_counters,
    kind_admin;

#endif
