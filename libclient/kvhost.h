/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_H
#define KVHOST_H

/*
 * libkvhost: use the KV cache of this host from an inference engine.
 *
 * An engine connects to kvhostd, attaches a pool that matches its model, opens a sequence for
 * each request, and moves it forward in steps: begin (reserve pages), fill the pages, commit.
 * What another request has committed before is found at open and need not be computed again.
 *
 *	struct kvhost *host;
 *	struct kvhost_pool *pool;
 *	struct kvhost_sequence *seq;
 *	struct kvhost_open_result found;
 *	struct kvhost_step step;
 *
 *	kvhost_connect(NULL, &host);
 *	kvhost_pool_attach(host, &description, &pool);
 *	kvhost_open(pool, &(struct kvhost_prompt){.tokens = t, .n_tokens = n}, &seq, &found);
 *	kvhost_step_begin(seq, n, 0, &step);          // pages for tokens found.cached_tokens .. n-1
 *	... compute and store K and V of these tokens ...
 *	kvhost_step_commit(&step, n - found.cached_tokens, NULL, 0, NULL, 0);
 *	kvhost_close(&seq);
 *
 * Results: 0 or a negative KVHOST_E* code; kvhost_strerror explains the code, kvhost_reason gives
 * the daemon's own sentence about the latest failure on that connection.
 * Threads: a connection and everything made from it belong to one thread at a time; there are no
 * locks inside, no threads, no signal handlers, no output. Use one connection per thread.
 * Fork: a child must not use its parent's connections; every call there returns KVHOST_EFORK.
 * Daemon restart: calls return KVHOST_EGONE; all handles of the connection are void (free them as
 * usual), and kvhost_reconnect attaches to the next daemon.
 * Memory: what a call fills in is the caller's; pointers that a call returns say who owns them.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define KVHOST_VERSION_MAJOR 0
#define KVHOST_VERSION_MINOR 1

enum kvhost_error {
	KVHOST_EINVAL = -1,
	KVHOST_EAGAIN = -2,
	KVHOST_ECANCELLED = -3,
	KVHOST_ETIMEDOUT = -4,
	KVHOST_ESTALE = -5,
	KVHOST_ESTEP = -6,
	KVHOST_EBUSY = -7,
	KVHOST_ENOSPC = -8,
	KVHOST_ENOMEM = -9,
	KVHOST_EPERM = -10,
	KVHOST_EREFUSED = -11,
	KVHOST_EMISMATCH = -12,
	KVHOST_EVERSION = -13,
	KVHOST_ENOTSUP = -14,
	KVHOST_EIO = -15,
	KVHOST_EGONE = -16,
	KVHOST_EFULL = -17,
	KVHOST_EVIOLATION = -18,
	KVHOST_ESHUTDOWN = -19,
	KVHOST_EQUOTA = -20,
	KVHOST_ELOST = -21,
	KVHOST_EFORK = -22,
	KVHOST_ENOENT = -23,
};

/* One sentence for a result; never NULL; static. */
const char *kvhost_strerror(int result);

/* ---- connection ---- */

struct kvhost; /* a connection: one session of the daemon */

struct kvhost_options {
	const char *socket;          /* NULL: $KVHOST_SOCKET, else /run/kvhost/kvhost.sock */
	const char *name_space;      /* NULL: the one that the user's id gives */
	const char *client;          /* shown by kvctl; NULL: the program's name */
	uint64_t window_bytes;       /* memory shared for payload; 0: the daemon's default */
	uint32_t connect_timeout_us; /* 0: 5 s */
	uint32_t spin_us;            /* how long a wait spins before it sleeps; 0: 50 us */
};

/* options may be NULL. On 0 *out is the caller's, to be given to kvhost_disconnect. */
int kvhost_connect(const struct kvhost_options *options, struct kvhost **out);
/* Attach again after KVHOST_EGONE. The old pools, sequences and steps stay void. */
int kvhost_reconnect(struct kvhost *host);
/* Ends the session. Everything made from it is void afterwards. *host may be NULL. */
void kvhost_disconnect(struct kvhost **host);
/* The daemon's (or the library's) sentence about the latest failure; "" = none. Valid until the
 * next call on this connection. Why connect failed: pass NULL (per thread). */
const char *kvhost_reason(const struct kvhost *host);
uint64_t kvhost_boot_epoch(const struct kvhost *host); /* changes when the daemon restarts */
int kvhost_ping(struct kvhost *host);                  /* one empty request, answered at once */

/* ---- pools ---- */

struct kvhost_pool; /* freed by kvhost_pool_detach or with its connection */

enum kvhost_format {
	KVHOST_FLOAT32 = 1,
	KVHOST_FLOAT16 = 2,
	KVHOST_BFLOAT16 = 3,
};

enum kvhost_side {
	KVHOST_K = 0,
	KVHOST_V = 1,
};

struct kvhost_layer {
	uint32_t kv_heads;
	uint32_t k_head_dim;
	uint32_t v_head_dim; /* 0: V is read from the K row (latent attention) */
	uint32_t k_format;   /* enum kvhost_format; 0: the pool's default */
	uint32_t v_format;
};

struct kvhost_section { /* of the state image of a hybrid model */
	const char *name;
	uint64_t bytes;
	uint32_t ring; /* 0: replaced at every step; 1: written in place */
};

/* The artifact whose KV a pool holds. An existing pool must have been described alike. */
struct kvhost_pool_description {
	const char *name;                  /* NULL: "default" */
	const uint8_t *artifact;           /* 32 bytes: hash of the model files; NULL: zeros */
	uint32_t page_tokens;              /* 16, 32 or 64; 0: the configuration's */
	uint32_t n_layers;                 /* attention layers */
	const struct kvhost_layer *layers; /* [n_layers] */
	uint32_t n_sections;               /* 0: a dense model */
	const struct kvhost_section *sections;
	uint32_t tensor_rank, tensor_size; /* shard; size 0 reads as 1 */
	uint32_t pipeline_rank, pipeline_size;
	uint64_t rope_digest; /* any hash of the RoPE parameters */
	uint32_t drafter, draft_tokens;
	int map; /* not 0: ask for the pages' memory itself */
};

struct kvhost_block { /* one layer's place in a page; rows are [head][token], each row_bytes */
	uint64_t k_offset, v_offset;
	uint32_t k_row_bytes, v_row_bytes;
	uint32_t kv_heads;
	uint32_t k_format, v_format;
};

struct kvhost_place { /* of a state section in its slot */
	uint64_t offset, bytes;
	uint32_t ring; /* 0: in slots of replaced sections; 1: in those of ring sections */
};

struct kvhost_pool_info {
	uint64_t pages;
	uint64_t page_stride; /* bytes from one page to the next */
	uint64_t page_bytes;  /* of them used */
	uint32_t page_tokens;
	uint32_t max_sequence_tokens;
	uint32_t n_layers;
	uint64_t prefix_budget_pages;      /* 0: no reuse */
	const struct kvhost_block *blocks; /* [n_layers], the pool's */
	void *memory; /* page i at memory + i * page_stride; NULL: not mapped; the pool's */
	/* Of a hybrid pool; all 0 in a dense one. Slot i of replaced sections lies at
	 * memory + state_offset + i * state_stride, of ring sections at ring_offset likewise. */
	uint32_t n_sections;
	uint32_t lanes; /* sequences that can be live at a time */
	uint64_t state_offset, state_stride;
	uint64_t ring_offset, ring_stride;
	const struct kvhost_place *sections; /* [n_sections], the pool's */
};

int kvhost_pool_attach(struct kvhost *host, const struct kvhost_pool_description *description,
		       struct kvhost_pool **out);
int kvhost_pool_detach(struct kvhost_pool **pool); /* its sequences must be closed */
/* Valid until the pool is detached. */
const struct kvhost_pool_info *kvhost_pool_describe(const struct kvhost_pool *pool);

/* ---- sequences ---- */

struct kvhost_sequence; /* freed by kvhost_close or with its connection */

struct kvhost_span { /* an image inside the prompt */
	uint32_t start;
	uint32_t length;
	uint8_t digest[32]; /* of the image's content */
};

enum kvhost_class {
	KVHOST_AGENT = 0,
	KVHOST_INTERACTIVE = 1, /* goes first; a right of the namespace */
};

#define KVHOST_NO_LIMIT UINT32_MAX

struct kvhost_prompt {
	const uint32_t *tokens; /* if it lies in kvhost_window memory it is not copied */
	uint32_t n_tokens;
	const struct kvhost_span *spans; /* ascending, disjoint */
	uint32_t n_spans;
	const uint8_t *variant; /* 32 bytes: adapter and the like; NULL: none */
	uint32_t max_tokens; /* most tokens the sequence may reach, prompt included; 0: n_tokens */
	uint32_t priority;   /* enum kvhost_class */
	uint32_t max_cached_tokens; /* reuse no more than this; 0 or KVHOST_NO_LIMIT: no limit */
	uint32_t system_end_tokens; /* where the system block ends; 0: not said */
	uint32_t user_end_tokens;   /* where the last real user message ends */
	uint32_t opener_tokens;     /* where the rendered prompt hands over to the model */
	uint32_t chunk_tokens; /* size of a prefill chunk, for the capture points; 0: not said */
	int no_reuse;          /* neither match nor publish */
	uint32_t deadline_us;  /* 0: the pool's default */
};

enum kvhost_miss { /* why no more was found */
		   KVHOST_MISS_NONE = 0,
		   KVHOST_MISS_NO_MATCH,
		   KVHOST_MISS_DIVERGED,
		   KVHOST_MISS_OFF,
		   KVHOST_MISS_IMAGE,
		   KVHOST_MISS_LIMIT,
		   KVHOST_MISS_GONE,
		   KVHOST_MISS_FLOOR,
		   KVHOST_MISS_RESTORE,
};

enum kvhost_tier { /* the lowest that something of a match came from */
		   KVHOST_DEVICE = 0,
		   KVHOST_KV_RAM,
		   KVHOST_KV_DISK,
		   KVHOST_NO_TIER, /* nothing was found */
};

#define KVHOST_POINTS_MAX 12

struct kvhost_open_result {
	uint32_t cached_tokens; /* valid in the pages of the table; compute from here on */
	uint32_t miss;          /* enum kvhost_miss */
	uint32_t miss_tokens;   /* where the prompt leaves what is known */
	uint32_t tier;          /* enum kvhost_tier */
	uint64_t restore_ns;    /* of an open: time to bring it to the device; 0: it was there */
	uint32_t kind;     /* of a hybrid pool: 0 nothing, 1 a checkpoint, 2 a retained prefix */
	uint32_t n_points; /* where kvhost_checkpoint is worth while, ascending: end steps there */
	uint32_t points[KVHOST_POINTS_MAX];
};

struct kvhost_page {    /* names a page for as long as it is alive */
	uint32_t index; /* in the pool's memory */
	uint32_t generation;
};

/* Position p lies in pages[(p - first_token) / page_tokens]. */
struct kvhost_table {
	const struct kvhost_page *pages; /* the sequence's; valid until the next call on it */
	uint32_t n_pages;
	uint32_t first_token; /* a multiple of page_tokens: what a sliding window has left */
	uint32_t version;     /* changes when pages that were known before are others now */
};

int kvhost_open(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
		struct kvhost_sequence **out, struct kvhost_open_result *result);
/* What open would find now. Pins nothing: it may be gone a moment later. */
int kvhost_lookup(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
		  struct kvhost_open_result *result);
/* A sequence of its own with the committed state of `parent`; an open step of it goes on. */
int kvhost_fork(struct kvhost_sequence *parent, uint32_t max_tokens, struct kvhost_sequence **out);
/* Forget the committed tokens from `tokens` on. Not with a step open. */
int kvhost_truncate(struct kvhost_sequence *seq, uint32_t tokens);
int kvhost_close(struct kvhost_sequence **seq); /* aborts an open step; *seq may be NULL */
uint32_t kvhost_committed(const struct kvhost_sequence *seq); /* tokens */
void kvhost_view(const struct kvhost_sequence *seq, struct kvhost_table *out);

/* ---- steps ---- */

struct kvhost_step { /* the caller's; one open step a sequence */
	struct kvhost_sequence *sequence;
	uint32_t index, generation; /* of the daemon's handle */
	uint32_t start_tokens;      /* committed when it began */
	uint32_t target_tokens;     /* positions start .. target - 1 may be written */
	/* Of a hybrid pool: slots of the state before the step (read), after it (write), and of
	 * the ring sections (in place). After commit the target holds the state. */
	uint32_t source_slot, target_slot, ring_slot;
	uint32_t slot_generation;
};

/*
 * Reserve pages for positions up to target_tokens. On return the table holds every page of
 * them; fresh pages read as zeros; a shared partial page has been replaced by a copy.
 * Pages wholly before window_start_tokens are dropped at commit (0: none).
 */
int kvhost_step_begin(struct kvhost_sequence *seq, uint32_t target_tokens,
		      uint32_t window_start_tokens, struct kvhost_step *out);
/*
 * Make the first n_tokens of the step stand (0 .. target - start) and release the rest. `ids`:
 * the committed positions from the end of the prompt on, in order; needed for their pages to be
 * found by others; NULL: the ids are unknown. No access to the pages may be in flight.
 */
int kvhost_step_commit(struct kvhost_step *step, uint32_t n_tokens, const uint32_t *ids,
		       uint32_t n_ids, const struct kvhost_span *spans, uint32_t n_spans);
/* Leave everything as it was before begin. Repeating it is fine. */
int kvhost_step_abort(struct kvhost_step *step);

/* ---- hybrid models: states ---- */

enum kvhost_capture { /* what became of a checkpoint; all but the first are skips */
		      KVHOST_CAPTURE_MADE = 0,
		      KVHOST_CAPTURE_EXISTS,   /* the same state is kept already */
		      KVHOST_CAPTURE_NO_SLOT,  /* no slot and no place in KV-RAM */
		      KVHOST_CAPTURE_SHORT,    /* before the pool's min_capture_tokens */
		      KVHOST_CAPTURE_OFF,      /* reuse is off */
		      KVHOST_CAPTURE_UNKNOWN,  /* not all tokens so far are known */
		      KVHOST_CAPTURE_IN_IMAGE, /* inside the span of an image */
		      KVHOST_CAPTURE_SHARED,   /* the last page is shared with a fork that has not
						  gone on */
};

/*
 * Keep the committed state (tokens == kvhost_committed) for later requests that start like this.
 * At the end of the system block it serves siblings, elsewhere the next turn of the conversation.
 * No step may be open. A skip is no error: *out tells (may be NULL).
 */
int kvhost_checkpoint(struct kvhost_sequence *seq, uint32_t tokens, uint32_t *out);

/* A part of a section: write what the open step leaves behind (replaced sections: the target
 * slot, wholly; ring sections: in place), read the state before it, or the committed one. */
int kvhost_image_write(struct kvhost_step *step, uint32_t section, uint64_t offset,
		       const void *from, size_t bytes);
int kvhost_image_read(struct kvhost_sequence *seq, const struct kvhost_step *step, uint32_t section,
		      uint64_t offset, void *to, size_t bytes);

/* ---- bytes ---- */

/*
 * Rows [n_tokens][kv_heads][head_dim] of one layer and side, positions first_token on, converted
 * between `format` and the pool's. Write: positions of the open step. Read: committed positions,
 * or those of `step` (may be NULL). If rows lies in kvhost_window memory it is not copied.
 */
int kvhost_kv_write(struct kvhost_step *step, uint32_t layer, enum kvhost_side side,
		    uint32_t first_token, uint32_t n_tokens, enum kvhost_format format,
		    const void *rows, size_t bytes);
int kvhost_kv_read(struct kvhost_sequence *seq, const struct kvhost_step *step, uint32_t layer,
		   enum kvhost_side side, uint32_t first_token, uint32_t n_tokens,
		   enum kvhost_format format, void *rows, size_t bytes);

/* Memory that the daemon sees too; aligned to 64 bytes. NULL: the window is full. */
void *kvhost_window_take(struct kvhost *host, size_t bytes);
void kvhost_window_give(struct kvhost *host, void *memory); /* NULL is fine */

/* ---- without waiting ----
 *
 * kvhost_submit_* sends a request and returns at once with a ticket; kvhost_poll and kvhost_wait
 * hand back finished ones, in the order in which they finished. Requests on one sequence take
 * effect in the order submitted. Pointers in a request must stay valid until it is finished.
 * The synchronous calls may be used in between; they keep other finished requests for poll.
 */

typedef uint64_t kvhost_ticket;

struct kvhost_finished {
	kvhost_ticket ticket;
	int result; /* as of the synchronous call */
	void *user; /* as given at submit */
};

/* KVHOST_EFULL: take finished requests first. Outputs are filled in when it is handed back. */
int kvhost_submit_ping(struct kvhost *host, void *user, kvhost_ticket *out);
int kvhost_submit_open(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
		       struct kvhost_sequence **seq, struct kvhost_open_result *result, void *user,
		       kvhost_ticket *out);
int kvhost_submit_lookup(struct kvhost_pool *pool, const struct kvhost_prompt *prompt,
			 struct kvhost_open_result *result, void *user, kvhost_ticket *out);
int kvhost_submit_step_begin(struct kvhost_sequence *seq, uint32_t target_tokens,
			     uint32_t window_start_tokens, struct kvhost_step *step, void *user,
			     kvhost_ticket *out);
int kvhost_submit_step_commit(struct kvhost_step *step, uint32_t n_tokens, const uint32_t *ids,
			      uint32_t n_ids, const struct kvhost_span *spans, uint32_t n_spans,
			      void *user, kvhost_ticket *out);
int kvhost_submit_step_abort(struct kvhost_step *step, void *user, kvhost_ticket *out);
int kvhost_submit_kv_write(struct kvhost_step *step, uint32_t layer, enum kvhost_side side,
			   uint32_t first_token, uint32_t n_tokens, enum kvhost_format format,
			   const void *rows, size_t bytes, void *user, kvhost_ticket *out);
int kvhost_submit_kv_read(struct kvhost_sequence *seq, const struct kvhost_step *step,
			  uint32_t layer, enum kvhost_side side, uint32_t first_token,
			  uint32_t n_tokens, enum kvhost_format format, void *rows, size_t bytes,
			  void *user, kvhost_ticket *out);
int kvhost_submit_close(struct kvhost_sequence **seq, void *user, kvhost_ticket *out);

/* Hasten a request to its end (finished, or KVHOST_ECANCELLED). Commit, abort and close go on. */
int kvhost_cancel(struct kvhost *host, kvhost_ticket ticket);

/* Finished requests, at most `max`, without waiting: their number, or a negative code. */
int kvhost_poll(struct kvhost *host, struct kvhost_finished *out, uint32_t max);
/* Wait for one request (ticket) or for any (0). KVHOST_ETIMEDOUT: it goes on. */
int kvhost_wait(struct kvhost *host, kvhost_ticket ticket, uint64_t timeout_us,
		struct kvhost_finished *out);
/* For poll(2): readable when it may be worth calling kvhost_poll after kvhost_sleep_begin. */
int kvhost_descriptor(const struct kvhost *host);
int kvhost_sleep_begin(struct kvhost *host); /* 1: sleep now; 0: something is there already */
void kvhost_sleep_end(struct kvhost *host);

/* ---- counters ---- */

struct kvhost_counters {
	uint64_t submitted, finished; /* of this connection, kept by the library */
	uint64_t wakes_sent, wakes_avoided;
	uint64_t sleeps, spins; /* waits that slept, waits that only spun */
	uint64_t reconnects;
	uint64_t requests, completions; /* of the session, from the daemon */
	uint64_t open_sequences, lookups, hits;
	uint64_t cached_tokens, prompt_tokens;
	uint64_t commits, aborts;
	uint64_t heap_bytes; /* daemon memory charged to the session */
	uint64_t namespace_pages, namespace_retained_pages;
	uint64_t namespace_sequences, namespace_sessions;
};

int kvhost_read_counters(struct kvhost *host, struct kvhost_counters *out);

/* The daemon's stats file, also while it is hung or dead. */
struct kvhost_stats;

struct kvhost_stat {
	const char *name, *label, *unit, *help;
	uint64_t value;          /* of a histogram: the number of samples */
	const uint64_t *buckets; /* of a histogram, else NULL */
	uint32_t n_buckets;
	int is_gauge;
};

/* path NULL: $KVHOST_STATS, else /run/kvhost/stats. */
int kvhost_stats_open(const char *path, struct kvhost_stats **out);
int kvhost_stats_refresh(struct kvhost_stats *stats); /* a new consistent snapshot */
uint32_t kvhost_stats_count(const struct kvhost_stats *stats);
/* Strings and buckets are valid until the next refresh. KVHOST_ENOENT: no such index. */
int kvhost_stats_get(const struct kvhost_stats *stats, uint32_t index, struct kvhost_stat *out);
int kvhost_stats_alive(const struct kvhost_stats *stats); /* 1: the daemon's lock is held */
void kvhost_stats_close(struct kvhost_stats **stats);

/* ---- operators ---- */

/* Ask the daemon: "health", "sessions", "check", "pools", "tiers" (the argument is a pool, or "*" =
 * all, of which to tell what its order has learned), "config"; or steer it: "pool-drop" (the
 * argument is a pool that no session has attached), "drop" (the retained pages of a namespace; ""
 * = of all), "drain" and "undrain". The answer is JSON text, the caller's, to be freed with
 * free(). */
int kvhost_ask(struct kvhost *host, const char *question, const char *argument, char **out);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
