/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_LIBCLIENT_INTERNAL_H
#define KVHOST_LIBCLIENT_INTERNAL_H

/*
 * internal: what the files of libkvhost share. Everything belongs to the thread that uses the
 * connection; only the waits of request.c and the handshake may block.
 *
 * A request is a record: taken, filled, launched into the ring, finished when its completion is
 * reaped, and then given back (synchronous call) or queued for kvhost_poll. All effects on the
 * library's own objects and on the caller's outputs happen when it is reaped, in ring order.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/kvhost.h"
#include "libclient/window.h"
#include "shm/message.h"
#include "shm/payload.h"
#include "shm/ring.h"
#include "shm/segment.h"

#define NO_DEADLINE   UINT64_MAX
#define REQUEST_AGAIN 1 /* of a finish function: it has prepared the record for another round */
#define ARRIVALS_MAX  64

enum request_state {
	REQUEST_FREE = 0,
	REQUEST_TAKEN,
	REQUEST_DEFERRED, /* waits for room in the ring or the window */
	REQUEST_FLYING,
	REQUEST_FINISHED,
};

enum request_kind {
	REQUEST_SYNCHRONOUS = 0, /* a caller waits and gives the record back */
	REQUEST_TICKET,          /* goes to kvhost_poll */
	REQUEST_INTERNAL,        /* nobody asks for its result */
};

struct request;

/* Called once a round. `c` is NULL when the session ended. Returns the result, or REQUEST_AGAIN. */
typedef int (*request_finish)(struct kvhost *host, struct request *r, int status,
			      const struct completion *c);

struct request {
	struct submission entry;
	uint64_t sequence; /* in the ring, of this round */
	kvhost_ticket ticket;
	struct request *next, *previous; /* in the list of its state */
	struct request *chain;           /* in the table of flying ones */
	request_finish finish;
	struct kvhost_pool *pool;    /* held while not NULL */
	struct kvhost_sequence *seq; /* held while not NULL */
	void *user;
	char *text; /* the daemon's sentence about its failure; NULL = none */
	uint32_t index;
	uint32_t block;    /* its range of the window */
	uint32_t lent;     /* block of the caller whose head space it uses */
	uint32_t capacity; /* elements that fit at entry.out_offset */
	int32_t result;
	uint8_t state;    /* enum request_state */
	uint8_t kind;     /* enum request_kind */
	bool table_round; /* it did take effect and now reads the page table */
	union {
		struct completion answer; /* finish_keep */
		struct {
			struct kvhost_sequence **out; /* NULL: a lookup */
			struct kvhost_sequence *made;
			struct kvhost_open_result *result;
			uint32_t n_tokens;
		} open;
		struct {
			struct kvhost_step *step;
			uint32_t target_tokens;
			uint32_t window_start_tokens;
		} begin;
		struct {
			uint32_t n_tokens;
			uint32_t start_tokens;
		} commit;
		struct {
			void *rows; /* NULL: the daemon writes where the caller wants it */
			size_t bytes;
		} read;
		struct kvhost_sequence **close;
		uint32_t *checkpoint; /* where the outcome goes; may be NULL */
	} u;
};

struct request_list {
	struct request *first, *last;
};

struct arrival { /* a segment message whose attach has not taken it yet */
	struct message_segment segment;
	int fd;
};

struct kvhost {
	_Atomic uint32_t *fork_mark; /* 1; reads as 0 in a forked child */
	long pid;                    /* where the kernel cannot wipe pages on fork; else 0 */
	int gone; /* 0, or why the session ended: KVHOST_EGONE, KVHOST_EVIOLATION */
	int socket;
	uint64_t serial; /* of the session; objects of another one are void */
	struct ring_producer submissions;
	struct ring_consumer completions;
	uint32_t credits;
	uint32_t in_flight; /* flying and deferred */
	uint32_t n_tickets; /* records of kind REQUEST_TICKET */
	struct window window;
	struct request_list free, flying, deferred, finished;
	struct request **flying_by_sequence; /* [flying_mask + 1] */
	uint64_t flying_mask;
	struct request **records; /* [n_records], by index */
	uint32_t n_records;
	uint64_t next_ticket;

	struct segment control, window_segment;
	struct control_text *texts;
	uint64_t boot_epoch;
	uint64_t looked_ns; /* when the socket was looked at last */
	struct arrival arrivals[ARRIVALS_MAX];
	uint32_t n_arrivals;
	struct kvhost_pool *pools;
	struct kvhost_sequence *sequences;
	struct kvhost_counters counters; /* the library's own part */

	char *path;
	char name_space[WIRE_NAME_MAX];
	char client[WIRE_NAME_MAX];
	uint64_t window_wanted_bytes;
	uint64_t connect_timeout_ns;
	uint64_t spin_ns;
	char reason[WIRE_TEXT_MAX + 1];
};

struct kvhost_pool {
	struct kvhost *host;
	struct kvhost_pool *next, *previous;
	uint64_t serial;
	uint32_t index, generation;
	uint32_t holds; /* requests under way that name it */
	bool detached;  /* freed with the last hold */
	struct kvhost_pool_info info;
	struct kvhost_block *blocks;
	struct kvhost_layer *layers;   /* as described */
	struct kvhost_place *sections; /* [info.n_sections] */
	void *mapped;                  /* the reservation that info.memory lies in */
	size_t mapped_bytes;
};

struct kvhost_sequence {
	struct kvhost *host;
	struct kvhost_pool *pool;
	struct kvhost_sequence *next, *previous;
	uint64_t serial;
	uint32_t index, generation;
	uint32_t holds;
	bool closed;        /* freed with the last hold */
	bool hybrid, stale; /* stale: the table must be read again */
	uint32_t page_tokens;
	uint32_t max_pages; /* that the pool lets a sequence have */
	uint32_t max_tokens;
	uint32_t committed;
	struct kvhost_page *pages;
	uint32_t n_pages, room_pages;
	uint32_t first_token;
	uint32_t version;
	struct {
		uint32_t index, generation;
		uint32_t start_tokens, target_tokens, window_start_tokens;
		bool open;
		bool replaced; /* begin put another page in the place of a known one */
	} step;
	uint32_t aborted_index, aborted_generation; /* generation 0 = none */
};

/* ---- connection.c, reason.c ---- */
int host_check(const struct kvhost *host); /* 0, EINVAL, EFORK, EGONE */
bool host_forked(const struct kvhost *host);
uint64_t host_now_ns(void);
int host_fail(struct kvhost *host, int result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void host_set_reason(struct kvhost *host, const char *text);
void reason_keep_for_thread(const char *text);

/* ---- handshake.c ---- */
int session_start(struct kvhost *host);
void session_free(struct kvhost *host); /* socket, segments, window; in a child without unmapping */

/* ---- channel.c ---- */
void channel_wake(struct kvhost *host);
void channel_bye(struct kvhost *host, uint32_t reason);
void channel_serve(struct kvhost *host); /* take what came on the socket; notice its end */
void channel_drop_arrivals(struct kvhost *host);

/* ---- request.c, wait.c ---- */
int request_records(struct kvhost *host); /* enough of them for host->credits */
void request_free_records(struct kvhost *host);
int request_take(struct kvhost *host, enum request_kind kind, uint16_t opcode,
		 struct request **out);
int request_range(struct kvhost *host, struct request *r, uint64_t in_bytes, uint64_t out_bytes);
/* Use the caller's own window memory for what follows `head_bytes`. False: it must be copied. */
bool request_lend(struct kvhost *host, struct request *r, const void *body, uint64_t head_bytes,
		  uint64_t body_bytes);
void request_give_ranges(struct kvhost *host, struct request *r);
int request_go(struct kvhost *host, struct request *r, kvhost_ticket *out);
int request_run(struct kvhost *host, struct request *r); /* the record stays the caller's */
void request_give(struct kvhost *host, struct request *r);
void request_hold(struct request *r, struct kvhost_pool *pool, struct kvhost_sequence *seq);
int request_again(struct kvhost *host, struct request *r); /* another round; REQUEST_AGAIN */
void *request_in(struct kvhost *host, const struct request *r);
const void *request_out(struct kvhost *host, const struct request *r);
void request_cancel_deferred(struct kvhost *host, struct request *r);
int finish_keep(struct kvhost *host, struct request *r, int status, const struct completion *c);
struct request *request_find(struct kvhost *host, kvhost_ticket ticket);
bool host_room(const struct kvhost *host, uint16_t opcode);
void host_reap(struct kvhost *host);
void host_end(struct kvhost *host, int result, const char *text);
int host_wait(struct kvhost *host, bool (*done)(struct kvhost *host, void *context), void *context,
	      uint64_t deadline_ns);
void request_await(struct kvhost *host, struct request *r);
void list_append(struct request_list *l, struct request *r);
void list_remove(struct request_list *l, struct request *r);

/* ---- pool.c, map.c ---- */
int pool_check(const struct kvhost_pool *pool);
void pool_release(struct kvhost_pool *pool); /* one hold */
void pool_free(struct kvhost_pool *pool);
/* Wait for the segments that belong to the attach, and map them as one. */
int pool_map(struct kvhost_pool *pool, uint64_t submission, uint32_t parts);
void pool_unmap(struct kvhost_pool *pool);

/* ---- sequence.c, table.c ---- */
int sequence_check(const struct kvhost_sequence *seq);
struct kvhost_sequence *sequence_new(struct kvhost_pool *pool); /* NULL: no memory */
void sequence_release(struct kvhost_sequence *seq);             /* one hold */
void sequence_free(struct kvhost_sequence *seq);
uint32_t table_index(const struct kvhost_sequence *seq, uint32_t position);
uint32_t table_pages_for(const struct kvhost_sequence *seq, uint32_t tokens);
int table_store(struct kvhost_sequence *seq, uint32_t first, const void *handles, uint32_t count);
int table_round(struct kvhost *host, struct request *r); /* read it before handing `r` back */
int table_refresh(struct kvhost_sequence *seq);          /* if stale; waits */

#endif
