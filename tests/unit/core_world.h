/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_CORE_WORLD_H
#define KVHOST_TESTS_CORE_WORLD_H

/*
 * core_world: a whole core in this thread, over a real CPU device and a real arena of KV-RAM, for
 * scripts: clients on rings of their own that serve prompts, and an operator.
 *
 * Jobs run one at a time, while somebody waits for an answer; before and after each copy to or from
 * KV-RAM the script is called. Time stands still while anything else can happen. Every page has
 * bytes that say which prompt and which part of it, so whatever is served wrongly is seen.
 * One thread; nothing blocks.
 */

#include "daemon/front/session.h"
#include "shm/payload.h"
#include "tests/sim/executor.h"

#define CORE_CLIENTS      3
#define CORE_SLOTS        32
#define CORE_SLOT_BYTES   8192u /* of the window: input and output of one operation */
#define CORE_PAGE         16u
#define CORE_PROMPT_PAGES 32u /* at most */
#define CORE_ALONE        50u
#define CORE_NOTICED      3 /* exit code of a child that has noticed something */

struct core_world;

struct core_client {
	struct core_world *world;
	struct session *session; /* NULL: gone */
	bool live;
	uint32_t at; /* its pool is that of the core with this number */
	struct ring_producer submit;
	struct ring_consumer reap;
	char *window;
	struct payload_handle pool;
	uint64_t answered;
	struct completion replies[CORE_SLOTS]; /* by submission */
};

struct core_prompt { /* that a client is served */
	struct core_client *client;
	uint32_t number, pages;
	uint64_t asked; /* submission of its open; 0: not asked */
	struct payload_handle sequence, step;
	uint32_t cached_tokens, miss, tier;
	struct payload_handle table[CORE_PROMPT_PAGES + 1];
};

enum core_moment { /* of a copy to or from KV-RAM */
		   CORE_SUBMITTED,
		   CORE_RUN, /* and nobody told of it yet */
};

enum core_verdict { /* what becomes of a copy that was submitted */
		    CORE_RUNS = 0,
		    CORE_FAILS,    /* before a byte has moved */
		    CORE_BREAKS,   /* after half of its moves */
		    CORE_IS_LATE,  /* it runs, and is told of, at core_heal; others go on */
		    CORE_IS_STUCK, /* so are all that come after it */
};

struct core_world_wish {
	uint32_t heads;    /* a page has 8 KiB for each */
	uint64_t frames;   /* of KV-RAM */
	uint64_t chunk;    /* frames that arrive at a time, while others wait; 0: all are there */
	bool base_pages;   /* KV-RAM is of them, whatever the host has set aside */
	const char *pool;  /* options of the pool, beside its name and model */
	const char *other; /* of a second one; NULL: there is none */
};

struct core_world {
	struct config config;
	struct statsfile stats;
	struct sim_executor copies, work;
	struct list late; /* jobs */
	bool stuck;
	struct device *device;
	struct arena *arena;
	struct core core;
	uint64_t now_ns;
	uint32_t heads;
	struct core_client clients[CORE_CLIENTS];
	uint32_t memories;
	uint64_t copies_seen;             /* to and from KV-RAM */
	const struct device_job *copying; /* the last of them */
	enum core_verdict (*watch)(struct core_world *w, enum core_moment moment);
	void *context;
	char scene[64];      /* what this run is about, for the text of what is wrong */
	uint64_t compute_ns; /* that a client takes for a step */
	bool is_child;       /* what is wrong ends the process with CORE_NOTICED */
};

void core_world_start(struct core_world *w, const struct core_world_wish *wish);
/* Late copies end, the device goes on; then until nothing moves any more. */
void core_heal(struct core_world *w);
/* Everything ends; all must have come back. */
void core_world_stop(struct core_world *w);

/* Something does not hold: the test fails, or the child says so. */
_Noreturn void core_wrong(const struct core_world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define core_check(w, condition, ...) ((condition) ? (void)0 : core_wrong(w, __VA_ARGS__))
void core_world_check(struct core_world *w);  /* sums, places and records */
struct pool *core_pool(struct core_world *w); /* the first one */
struct ram_pool *core_ram(struct core_world *w);

/* ---- clients ---- */

/* A session that has the first pool; or only a session, for an operator. */
void core_client_start(struct core_client *c, bool attaches);
void core_client_attach(struct core_client *c, uint32_t at);
uint64_t core_ask_attach(struct core_client *c, uint32_t at); /* not waited for */
void core_client_end(struct core_client *c, bool exits);      /* it hangs up; its process, too */

/* Put an entry into its ring; in: NULL or a payload. The submission; 0: it is not alive. */
uint64_t core_ask(struct core_client *c, struct submission *e, const void *in, uint32_t in_bytes);
/* Until it is answered, its session is over, or nothing moves for ever: its status then. */
int core_await(struct core_client *c, uint64_t submission);
const void *core_answer(const struct core_client *c, uint64_t submission);
/* The operator's: not waited for. */
uint64_t core_ask_operator(struct core_client *c, uint32_t question, const char *argument);
uint64_t core_ask_cancel(struct core_client *c, uint64_t submission);
/* Turns of the core alone, without jobs: what was asked for is heard. */
void core_listen(struct core_world *w);

/* ---- prompts: of n pages; those below CORE_ALONE have the first two in common ---- */

void core_open(struct core_prompt *p, struct core_client *c, uint32_t number, uint32_t pages);
/* Status of the open; if it is 0, every byte that was found is right. */
int core_opened(struct core_prompt *p);
/* Compute the rest: the first status that is not 0. */
int core_fill(struct core_prompt *p);
int core_close(struct core_prompt *p);
/* Are these the bytes of the page at this place of a prompt that has these tokens there? */
bool core_page_is(const uint32_t *tokens, uint32_t page, const void *bytes, uint64_t n);
/* All of it; *cached_pages if that is not NULL. */
int core_serve(struct core_client *c, uint32_t number, uint32_t pages, uint32_t *cached_pages);

#endif
