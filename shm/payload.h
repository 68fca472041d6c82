/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_PAYLOAD_H
#define KVHOST_SHM_PAYLOAD_H

/*
 * payload: what operations read from and write to the window.
 *
 * `in` and `out` are the ranges that a submission names. Every struct is a multiple of 8 bytes,
 * starts at an offset that is a multiple of 8, and has reserved bytes that must be zero. Arrays
 * follow their struct in the order named. The daemon copies the whole of `in` before it looks.
 *
 * OP_POOL_ATTACH  in: payload_pool, layers[n_layers], sections[n_sections]
 *                 out: payload_pool_info, blocks[n_layers], section places[n_sections];
 *                 completion: handle, count = blocks
 * OP_OPEN         handle: pool; in: payload_open, spans[], tokens[]
 *                 out: payload_open_result, pages[]; completion: handle = sequence,
 *                 value0 = cached tokens, value1 = pages, count = pages
 * OP_LOOKUP       as OP_OPEN without pages and handle
 * OP_FORK         handle: sequence; arg0: most tokens that the fork may reach; out: pages[];
 *                 completion: handle = fork, value0 = committed tokens, count = pages
 * OP_TRUNCATE     handle: sequence; arg0: tokens to keep; completion: value0 = tokens kept
 * OP_POOL_DETACH, OP_CLOSE, OP_STEP_ABORT: a handle alone: pool, sequence, step
 * OP_TABLE        handle: sequence; out: pages[]; completion: value0 = position of the first slot
 *                 of pages[0] (sliding windows leave pages in front),
 *                 value1 = table version, count = pages (all of them, also when fewer fitted)
 * OP_STEP_BEGIN   handle: sequence; arg0: target tokens; in: payload_step;
 *                 out: payload_step_slots (of a hybrid pool only), pages[] new;
 *                 completion: handle = step, value0 = table index of the first of them,
 *                 value1 = table version, count
 * OP_STEP_COMMIT  handle: step; in: payload_receipt, pages[], spans[], tokens[];
 *                 completion: value0 = committed tokens, value1 = table version
 * OP_KV_WRITE     handle: step; in: payload_rows, then the rows
 * OP_KV_READ      handle: sequence or step; in: payload_rows; out: the rows
 * OP_CANCEL       arg0: sequence number of the submission
 * OP_BATCH        arg0: n; in: n x struct submission (sequence = 0); out: n x struct completion
 *                 (submission = index of the item). No item waits: EAGAIN instead. No batch
 *                 or cancel inside.
 * OP_CHECKPOINT   handle: sequence; arg0: tokens, as many as are committed;
 *                 completion: value0 = enum payload_capture, value1 = tokens
 * OP_IMAGE_WRITE  handle: step; in: payload_section_range, then the bytes
 * OP_IMAGE_READ   handle: sequence or step; in: payload_section_range; out: the bytes
 * OP_COUNTERS     out: payload_counters
 * OP_ADMIN        in: payload_admin; out: JSON text; completion: count = bytes of it
 */

#include "shm/payload_image.h"
#include "shm/wire.h"

#define PAYLOAD_VERSION      1
#define PAYLOAD_LAYERS_MAX   512
#define PAYLOAD_SECTIONS_MAX 64
#define PAYLOAD_SPANS_MAX    4096
#define PAYLOAD_NO_LIMIT     UINT32_MAX

struct payload_handle {
	uint32_t index;
	uint32_t generation;
};

/* Storage formats, values of payload_layer and of rows. Names and bytes: docs/protocol.md. */
enum payload_format {
	PAYLOAD_FLOAT32 = 1,
	PAYLOAD_FLOAT16,
	PAYLOAD_BFLOAT16,
};

struct payload_layer {
	uint32_t kv_heads;
	uint32_t k_head_dim;
	uint32_t v_head_dim; /* 0: V is read from the K row */
	uint8_t k_format;    /* 0 = the pool's default */
	uint8_t v_format;
	uint8_t reserved[2];
};

enum payload_section_kind {
	PAYLOAD_REPLACED = 1, /* a step reads one copy and writes another */
	PAYLOAD_RING,         /* written in place */
};

struct payload_section { /* of the state image */
	char name[WIRE_NAME_MAX];
	uint64_t bytes;
	uint32_t kind; /* 1 replaced, 2 ring */
	uint32_t reserved;
};

/* The artifact that fills a pool. What is here, save `epoch`, is the pool's stamp. */
struct payload_pool {
	uint32_t version; /* PAYLOAD_VERSION */
	uint32_t n_layers;
	uint32_t n_sections;
	uint32_t page_tokens; /* 16, 32, 64; 0 = the configuration's */
	char name[WIRE_NAME_MAX];
	uint8_t artifact[32]; /* hash of the model files */
	uint32_t tensor_rank;
	uint32_t tensor_size;
	uint32_t pipeline_rank;
	uint32_t pipeline_size;
	uint64_t rope_digest; /* of the RoPE parameters; the client's own hash */
	uint32_t drafter;     /* backend of a drafter, 0 = none */
	uint32_t draft_tokens;
	uint32_t want_map; /* 1: ask for direct access to the pages */
	uint32_t reserved[9];
};

struct payload_block { /* where one layer's K and V lie in a page record */
	uint64_t k_offset;
	uint64_t v_offset;    /* equal to k_offset where v_head_dim is 0 */
	uint32_t k_row_bytes; /* of one head and token; rows of a head follow each other */
	uint32_t v_row_bytes;
	uint32_t kv_heads;
	uint8_t k_format;
	uint8_t v_format;
	uint8_t reserved[2];
};

struct payload_pool_info {
	uint64_t pages;
	uint64_t page_stride; /* bytes from one page record to the next */
	uint64_t page_bytes;  /* sum of the unpadded blocks */
	uint32_t page_tokens;
	uint32_t max_sequence_tokens;
	uint32_t n_layers;
	uint32_t parts; /* segment messages that follow on the socket; 0 = no direct access */
	uint64_t prefix_budget_pages; /* effective; 0 = prefix caching off */
	uint64_t stamp[2];
	uint64_t state_offset; /* of slot 0 of replaced sections, in the pool's memory */
	uint64_t state_stride; /* bytes from one slot to the next; 0: a dense pool */
	uint64_t ring_offset;  /* of slot 0 of ring sections */
	uint64_t ring_stride;
	uint32_t lanes;      /* live sequences, at most */
	uint32_t n_sections; /* their places follow the blocks */
};

#define PAYLOAD_POINTS_MAX 12

struct payload_span { /* an image (or other embedding) inside the prompt */
	uint32_t start;
	uint32_t length;
	uint8_t digest[32];
};

#define PAYLOAD_OPEN_NO_REUSE 1u /* match nothing, publish nothing */
#define PAYLOAD_OPEN_FLAGS    1u

enum payload_class {
	PAYLOAD_AGENT = 0,
	PAYLOAD_INTERACTIVE = 1, /* a right of the namespace */
};

struct payload_open {
	uint32_t flags; /* PAYLOAD_OPEN_* */
	uint32_t n_tokens;
	uint32_t n_spans;
	uint32_t max_tokens; /* most tokens that the sequence may ever reach, prompt included */
	uint32_t priority;   /* enum payload_class */
	uint32_t max_cached_tokens; /* PAYLOAD_NO_LIMIT */
	uint32_t system_end_tokens; /* offsets in the prompt, 0 = not said */
	uint32_t user_end_tokens;
	uint32_t opener_tokens;
	uint32_t chunk_tokens; /* prefill chunk, for capture points; 0: not said */
	uint32_t reserved[2];
	uint8_t variant[32]; /* what changes KV without changing tokens; zeros = none */
};

/* Why a lookup or open found no more than it did. */
enum payload_miss {
	PAYLOAD_MISS_NONE = 0, /* everything that could be reused was */
	PAYLOAD_MISS_NO_MATCH, /* nothing known starts like this */
	PAYLOAD_MISS_DIVERGED, /* known up to miss_tokens */
	PAYLOAD_MISS_OFF,      /* reuse is off for the request or the pool */
	PAYLOAD_MISS_IMAGE,    /* walked back to the start of an image span */
	PAYLOAD_MISS_LIMIT,    /* max_cached_tokens */
	PAYLOAD_MISS_GONE,     /* known, but its state was given up */
	PAYLOAD_MISS_FLOOR,    /* too short to be worth fetching */
	PAYLOAD_MISS_RESTORE,  /* fetching failed */
	PAYLOAD_MISS_COUNT,
};

enum payload_tier {
	PAYLOAD_DEVICE = 0,
	PAYLOAD_KV_RAM = 1,
	PAYLOAD_KV_DISK = 2,
	PAYLOAD_NO_TIER = 3,
};

struct payload_open_result {
	uint32_t cached_tokens;
	uint32_t miss;        /* enum payload_miss */
	uint32_t miss_tokens; /* where the prompt leaves what is known */
	uint32_t tier;        /* enum payload_tier that it came from */
	uint64_t restore_ns;
	uint32_t table_version;
	uint32_t n_pages;  /* of the committed prefix; their handles follow, if they fit */
	uint32_t kind;     /* of the state that was found: 0 pages, 1 checkpoint, 2 prefix */
	uint32_t n_points; /* where captures are worth while, ascending */
	uint32_t points[PAYLOAD_POINTS_MAX];
	uint64_t reserved;
};

struct payload_step {
	uint32_t window_start_tokens; /* pages wholly before it are dropped at commit */
	uint32_t reserved[3];
};

struct payload_receipt {
	uint32_t n_pages;       /* written ones that hold a committed position, in table order */
	uint32_t n_tokens;      /* ids of committed positions that open did not give */
	uint32_t n_spans;       /* spans that begin in them */
	uint32_t tokens_commit; /* of the step: 0 .. target - start */
	uint32_t slot; /* of a hybrid pool: the target that holds the state after these tokens */
	uint32_t slot_generation;
	uint32_t reserved[2];
};

enum payload_side { PAYLOAD_K = 0, PAYLOAD_V = 1 };

/* Rows [tokens][heads][head_dim] of one layer and side, in the caller's type. */
struct payload_rows {
	uint32_t layer;
	uint32_t side;        /* enum payload_side */
	uint32_t format;      /* of the rows in the window: enum payload_format */
	uint32_t first_token; /* position in the sequence */
	uint32_t n_tokens;
	uint32_t reserved[3];
};

struct payload_counters { /* of the session, then of its namespace */
	uint64_t requests;
	uint64_t completions;
	uint64_t open_sequences;
	uint64_t lookups;
	uint64_t hits;
	uint64_t cached_tokens;
	uint64_t prompt_tokens;
	uint64_t commits;
	uint64_t aborts;
	uint64_t heap_bytes;
	uint64_t namespace_pages;
	uint64_t namespace_retained_pages;
	uint64_t namespace_sequences;
	uint64_t namespace_sessions;
	uint64_t reserved[2];
};

enum payload_admin_question {
	PAYLOAD_ADMIN_HEALTH = 1,
	PAYLOAD_ADMIN_SESSIONS,
	PAYLOAD_ADMIN_CHECK, /* walks all objects, compares with the maintained sums */
	PAYLOAD_ADMIN_POOLS,
	PAYLOAD_ADMIN_CONFIG,
	PAYLOAD_ADMIN_POOL_DROP, /* argument: its name; gives its memory back */
	PAYLOAD_ADMIN_DRAIN,     /* no attach, open or fork any more; what is open goes on */
	PAYLOAD_ADMIN_UNDRAIN,
	PAYLOAD_ADMIN_DROP,  /* retained pages; argument: a namespace, "" = all */
	PAYLOAD_ADMIN_TIERS, /* argument: a pool, with what its order has learned; "" = all */
	PAYLOAD_ADMIN_COUNT,
};

#define PAYLOAD_ADMIN_WHOLE "*" /* all pools, with what their orders have learned */

struct payload_admin {
	uint32_t question;
	uint32_t reserved[3];
	char argument[64]; /* terminated; by question */
};

_Static_assert(sizeof(struct payload_layer) == 16, "layer");
_Static_assert(sizeof(struct payload_section) == 48, "section");
_Static_assert(sizeof(struct payload_pool) == 152, "pool");
_Static_assert(sizeof(struct payload_block) == 32, "block");
_Static_assert(sizeof(struct payload_pool_info) == 104, "pool info");
_Static_assert(sizeof(struct payload_span) == 40, "span");
_Static_assert(sizeof(struct payload_open) == 80, "open");
_Static_assert(sizeof(struct payload_open_result) == 96, "open result");
_Static_assert(sizeof(struct payload_step) == 16, "step");
_Static_assert(sizeof(struct payload_receipt) == 32, "receipt");
_Static_assert(sizeof(struct payload_rows) == 32, "rows");
_Static_assert(sizeof(struct payload_counters) == 128, "counters");
_Static_assert(sizeof(struct payload_admin) == 80, "admin");

#endif
