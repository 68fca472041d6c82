/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

/*
 * sim: a world in one thread: the whole core, with a clock, executors and clients of the test.
 *
 * A seed draws everything: the pool, the clients, what they do and when anything moves. The same
 * seed gives the same run. Each row of K and V that a client writes is a stamp of all that the row
 * depends on (namespace, variant, tokens and images up to it), so a wrong byte is seen wherever it
 * is read.
 */

#include "daemon/base/random.h"
#include "daemon/front/session.h"
#include "tests/sim/drops.h"
#include "tests/sim/executor.h"
#include "tests/sim/images.h"
#include "tests/sim/pools.h"
#include "tests/sim/spill.h"
#include "tests/sim/states.h"
#include "tests/sim/text.h"

#define SIM_FAILED      3 /* exit code of a run in which a check of the simulator failed */
#define SIM_PAGE_TOKENS 16
#define SIM_TABLE       (SIM_TOKENS / SIM_PAGE_TOKENS)
#define SIM_PAGES       200
#define SIM_CLIENTS     4
#define SIM_SEQUENCES   12
#define SIM_TALKS       3
#define SIM_OPS         24 /* in flight, of one client; each has a slot of its window */
#define SIM_SLOT_BYTES  8192
#define SIM_OUT         4096 /* where answers go in a slot */
#define SIM_SUBMISSIONS 32
#define SIM_COMPLETIONS 32

/* ---- what a client has ---- */

struct sim_view { /* a sequence, as its client knows it */
	bool used, open, closing;
	uint32_t index, generation;
	struct sim_text text;
	uint64_t chain[SIM_TOKENS]; /* stamp of the row of each position */
	uint32_t committed, known, max_tokens;
	bool publishing; /* whole pages become known to others as they are committed */
	bool no_reuse, interactive;
	uint32_t first_page, n_pages, version;
	struct payload_handle table[SIM_TABLE];
	struct payload_handle replaced; /* partial page in whose place the step has a copy */
	bool has_replaced;
	uint32_t ops;         /* in flight */
	uint32_t drop_before; /* pages wholly before this position leave at a commit */
	uint64_t used_ns;
	uint32_t step_index, step_generation;
	bool step, poisoned;
	bool stuck; /* the step is over for the client; the daemon waits for an abort */
	uint32_t start, target, window, step_first; /* table index of its first page */
	struct sim_slots slots;
	uint64_t step_ns;
};

struct sim_client;

struct sim_op {
	bool used;
	struct sim_client *client;
	struct submission e;
	uint64_t submission; /* 0: an item of a batch */
	uint32_t slot;
	struct sim_view *view;
	struct sim_view *fork; /* place of a new sequence */
	uint64_t sent_ns;
	uint32_t allowed; /* bits of statuses: 1 << -status */
	bool cancelled;
	bool exact; /* expected is what must come, if nothing was done since */
	uint64_t done_before;
	struct sim_reuse expected;
	struct sim_states states; /* of a hybrid pool: that it could go on from */
	uint32_t bound;
	uint64_t failed_before;         /* what could not be fetched; of a capture: copied down */
	uint64_t refused_before;        /* of a capture: states that found no place in KV-RAM */
	uint32_t first, n, side, layer; /* of rows, of a commit */
	struct sim_op *items[4];
	uint32_t n_items;
	uint64_t serial; /* of the core's request, once it is seen to wait; 0: not yet */
	bool waits, admitted, overtook;
	const struct list *where; /* it waits */
};

/* ---- clients ---- */

struct sim_memory {
	struct session_memory memory; /* first */
	bool used;
	_Alignas(64) char control[4096 + SIM_SUBMISSIONS * 64 + SIM_COMPLETIONS * 64 + 16 * 1024];
	_Alignas(64) char window[SIM_OPS * SIM_SLOT_BYTES];
};

struct sim_talk { /* a conversation, up to its last turn */
	struct sim_text text;
	uint32_t tokens;
};

struct sim_client {
	struct sim *sim;
	uint32_t number;
	uint16_t name_space;
	struct session *session; /* NULL: gone, or never there */
	bool live;               /* attached and not ended */
	bool process;            /* it still runs */
	struct sim_memory *memory;
	struct ring_producer submissions;
	struct ring_consumer completions;
	bool wake_pending; /* a wake message is on its way to the daemon */
	bool asleep, woken;
	bool attached, attaching;
	bool hybrid; /* what it takes the pool for */
	struct slot_handle pool;
	struct sim_op ops[SIM_OPS];
	uint32_t in_flight;
	struct sim_view views[SIM_SEQUENCES];
	struct sim_talk talks[SIM_TALKS]; /* of a hybrid pool, to be gone on with */
};

struct sim_options {
	uint64_t seed;
	uint32_t events;
	bool trace;
};

struct sim {
	struct sim_options options;
	struct random random;
	uint64_t now_ns;
	uint32_t event;
	struct config config;
	struct statsfile stats;
	struct core core;
	struct device device, *cpu;
	struct sim_executor copies, work;
	struct sim_spill spill;
	struct sim_drops drop_watch;
	struct sim_client clients[SIM_CLIENTS];
	uint32_t n_clients;
	bool mapped, quiet, failing, failpoints, windows, hybrid, rules, live, somebody_waits;
	uint32_t state_bytes; /* of the section that a step replaces */
	uint32_t page_bytes;
	uint32_t work_rate; /* of 100: how often an executor runs a job */
	uint32_t moves;     /* after each event: how fast things go on */
	bool core_sleeps, slept;
	bool busy; /* the last turn of the core had something to do */
	uint64_t sleep_until_ns;
	uint64_t done; /* things that can change what others find */
	/* to see that a run did something */
	uint64_t cached, opens, evictions, claims, captures, drops;
	struct sim_captures asked;
};

/* ---- world.c ---- */

void sim_begin(struct sim *w, const struct sim_options *options);
void sim_end(struct sim *w); /* drains, checks that everything is back */
void sim_turn(struct sim *w);
/* Until nothing moves: jobs run, wakes arrive, answers are taken. */
void sim_rest(struct sim *w);
uint32_t below(struct sim *w, uint32_t bound);
static inline bool chance(struct sim *w, uint32_t of_100)
{
	return below(w, 100) < of_100;
}
struct pool *sim_pool(struct sim *w); /* NULL: not made yet */
struct core_pool *sim_core_pool(struct sim *w);
_Noreturn void sim_fail(const struct sim *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sim_trace(const struct sim *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define sim_check(w, condition, ...) ((condition) ? (void)0 : sim_fail(w, __VA_ARGS__))

/* A whole run of a seed; returns, or exits with SIM_FAILED. */
void sim_run(const struct sim_options *options);

/* ---- memory.c: the bytes of the pool, as a mapped client sees them ---- */

void memory_write(struct sim *w, uint32_t page, uint32_t slot, uint64_t stamp);
void memory_check_row(struct sim *w, uint32_t page, uint32_t slot, uint64_t stamp,
		      const char *what);
/* The same of a record that lies anywhere. */
void memory_check_copy(struct sim *w, const char *copy, uint32_t slot, uint64_t stamp,
		       const char *what);
uint64_t memory_stamp(struct sim *w, uint32_t page, uint32_t slot);
void memory_check_zero(struct sim *w, uint32_t page);
uint64_t row_stamp(uint64_t stamp, uint32_t layer, uint32_t side);

/* ---- client.c ---- */

void client_start(struct sim_client *c);
void client_die(struct sim_client *c, bool exits); /* its session ends; the process perhaps not */
void client_exit(struct sim_client *c);            /* what is left of it */
void client_ended(struct sim_client *c);           /* told by the core */
struct sim_op *op_new(struct sim_client *c, uint16_t opcode, struct sim_view *v);
void *op_in(struct sim_op *o, uint32_t bytes); /* zeroed room for the input */
void op_out(struct sim_op *o, uint32_t bytes);
const void *op_answer(const struct sim_op *o);
void op_send(struct sim_op *o);
void op_forget(struct sim_op *o);
bool client_reap(struct sim_client *c); /* true: there was something */
bool client_has_room(const struct sim_client *c, uint32_t ops);

/* ---- requests.c: making operations; answers.c: judging what came back ---- */

void ask_open(struct sim_client *c, bool send, struct sim_op **out);
void ask_lookup(struct sim_client *c, bool send, struct sim_op **out);
void ask_fork(struct sim_client *c, struct sim_view *v);
void ask_truncate(struct sim_client *c, struct sim_view *v);
void ask_begin(struct sim_client *c, struct sim_view *v, bool send, struct sim_op **out);
void ask_rows(struct sim_client *c, struct sim_view *v, uint32_t first, uint32_t n, bool bad);
void ask_commit(struct sim_client *c, struct sim_view *v, uint32_t tokens, bool tell_ids);
void ask_abort(struct sim_client *c, struct sim_view *v);
void ask_read(struct sim_client *c, struct sim_view *v);
void ask_close(struct sim_client *c, struct sim_view *v);
void ask_table(struct sim_client *c, struct sim_view *v, bool send, struct sim_op **out);
void ask_batch(struct sim_client *c);
void ask_cancel(struct sim_client *c);
void ask_null(struct sim_client *c);

void answer_take(struct sim_op *o, const struct completion *reply);

/* ---- model.c: what may be found ---- */
/* The longest reuse of a prompt as of now, from the bytes of pages and images, and why no more;
 * `found`: of a hybrid pool, all states that it could go on from. */
struct sim_reuse model_match(struct sim *w, const struct sim_prompt *p, bool off,
			     struct sim_states *found);
/* Is there a page on the device that ends with this row? */
bool model_is_indexed(struct sim *w, uint64_t stamp);
/* Nobody else can change what is found until this answer comes. */
bool model_is_quiet(struct sim *w, const struct sim_view *v); /* v: its writes are no matter */
/* What is committed is found; unless it has stopped to publish, or the answer came late. */
void model_published(struct sim *w, struct sim_view *v, bool exact, uint64_t stops_before);
void model_evict(const struct pool *p, uint32_t node);
void model_leave(const struct pool *p, uint32_t image, uint64_t name_spaces, bool slotted);

/* ---- check.c: what holds after every event ---- */
void check_world(struct sim *w);
void check_view(struct sim_client *c, struct sim_view *v); /* committed rows are what was written */
void check_admissions(struct sim *w);
void check_rest(struct sim *w);
void check_empty(struct sim *w);
void driver_event(struct sim *w); /* driver.c */

#endif
