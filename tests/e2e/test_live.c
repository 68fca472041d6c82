/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_live: more live sequences than the device has pages for: some make room for those that rank
 * above them, by way of KV-RAM, and go on bit-exact when it is their turn.
 *
 * Each client is a thread with its own connection and serves requests one after another; every row
 * of K and V says whose it is, and all of them are read again at the end of each sequence and at
 * times in between. In the first round the highest goes on only when two others have all their
 * pages, and these stay until it is done: so some must move. The deadlines are the daemon's; nobody
 * waits for ever.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define PAGE        16u
#define MOST_PAGES  12u
#define MOST_TOKENS (MOST_PAGES * PAGE)
#define ROW_WORDS   32u /* of 4 bytes: one head of 64 float16 */
#define ROUNDS      12u

/* Two sequences of full length fit, three do not. */
#define POOL(name, more)                                                                           \
	"{\"name\": \"" name "\", \"pool_pages\": 26, \"kv_page_size\": 16,"                       \
	" \"max_sequence_length\": 192, \"enable_prefix_caching\": true,"                          \
	" \"max_prefix_cache_pages\": null, \"ram_floor_tokens\": 0, \"live_in_ram\": true" more   \
	"}"

static const char config[] =
    "{\"kv_ram_bytes\": \"64MiB\", \"kv_ram_page_bytes\": \"4KiB\","
    " \"pools\": [" POOL("live", "") "," POOL("old", ", \"retained_order\": \"lru\"") "]}\n";

static struct daemon d;

struct gate { /* of the first round */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool opened; /* the highest is there */
	uint32_t full;
	bool done; /* the highest has all its pages */
	bool over; /* somebody failed: nobody waits any more */
};

struct client {
	pthread_t thread;
	const char *pool;
	struct gate *gate; /* NULL: it waits for nobody */
	uint32_t run;
	uint32_t number;
	uint32_t priority;
	struct engine engine;
	uint32_t tokens[MOST_TOKENS];
	uint32_t rows[MOST_TOKENS * ROW_WORDS];
	uint32_t wrong_rows;
	char error[200]; /* "" = every call did what it should */
};

static uint32_t word_of(const struct client *c, uint32_t position, uint32_t side, uint32_t at)
{
	uint64_t x = (uint64_t)c->tokens[position] << 32 | position << 16 | side << 8 | at;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return (uint32_t)(x ^ (x >> 31)) & 0xbfffbfffu; /* finite float16 */
}

static int failed(struct client *c, const char *call, int result)
{
	if (result && !c->error[0])
		(void)snprintf(c->error, sizeof(c->error), "client %u: %s: %s (%s)", c->number,
			       call, kvhost_strerror(result), kvhost_reason(c->engine.host));
	return result;
}

static void gate_set(struct gate *g, bool *what)
{
	(void)pthread_mutex_lock(&g->lock);
	*what = true;
	(void)pthread_cond_broadcast(&g->changed);
	(void)pthread_mutex_unlock(&g->lock);
}

static void gate_await(struct gate *g, const bool *what)
{
	(void)pthread_mutex_lock(&g->lock);
	while (!*what && !g->over)
		(void)pthread_cond_wait(&g->changed, &g->lock);
	(void)pthread_mutex_unlock(&g->lock);
}

static void gate_await_full(struct gate *g)
{
	(void)pthread_mutex_lock(&g->lock);
	while (g->full < 2 && !g->over)
		(void)pthread_cond_wait(&g->changed, &g->lock);
	(void)pthread_mutex_unlock(&g->lock);
}

/* The first two that have all their pages keep them until the highest has its own. */
static void gate_keep(struct gate *g)
{
	bool keeps;

	(void)pthread_mutex_lock(&g->lock);
	keeps = g->full++ < 2;
	(void)pthread_cond_broadcast(&g->changed);
	(void)pthread_mutex_unlock(&g->lock);
	if (keeps)
		gate_await(g, &g->done);
}

static int write_rows(struct client *c, struct kvhost_step *step)
{
	uint32_t n = step->target_tokens - step->start_tokens;
	int result = 0;

	for (uint32_t side = 0; side < 2 && result == 0; side++) {
		for (uint32_t i = 0; i < n * ROW_WORDS; i++)
			c->rows[i] =
			    word_of(c, step->start_tokens + i / ROW_WORDS, side, i % ROW_WORDS);
		result = kvhost_kv_write(step, 0, side, step->start_tokens, n, KVHOST_FLOAT16,
					 c->rows, (size_t)n * ROW_WORDS * 4);
	}
	return failed(c, "kv_write", result);
}

static int check_rows(struct client *c, struct kvhost_sequence *seq)
{
	uint32_t n = kvhost_committed(seq);

	for (uint32_t side = 0; side < 2; side++) {
		int result = kvhost_kv_read(seq, NULL, 0, side, 0, n, KVHOST_FLOAT16, c->rows,
					    (size_t)n * ROW_WORDS * 4);

		if (failed(c, "kv_read", result))
			return result;
		for (uint32_t i = 0; i < n * ROW_WORDS; i++)
			c->wrong_rows +=
			    c->rows[i] != word_of(c, i / ROW_WORDS, side, i % ROW_WORDS);
	}
	return 0;
}

static int step_to(struct client *c, struct kvhost_sequence *seq, uint32_t target)
{
	struct kvhost_step step;
	int result = failed(c, "step_begin", kvhost_step_begin(seq, target, 0, &step));
	uint32_t start = kvhost_committed(seq);

	if (result == 0)
		result = write_rows(c, &step);
	if (result)
		return result;
	return failed(c, "step_commit",
		      kvhost_step_commit(&step, target - start, NULL, 0, NULL, 0));
}

/* The fork goes on without its parent: who holds one sequence while it waits for another that
 * ranks below keeps what others wait for. */
static int serve_branch(struct client *c, struct kvhost_sequence **seq)
{
	struct kvhost_sequence *branch = NULL;
	int result = check_rows(c, *seq);

	if (result == 0)
		result = failed(c, "fork", kvhost_fork(*seq, MOST_TOKENS, &branch));
	if (result == 0)
		result = failed(c, "close", kvhost_close(seq));
	if (result == 0)
		*seq = branch;
	return result;
}

/* A prompt of full length that shares its start with every third one. */
static int serve(struct client *c, uint32_t round)
{
	struct kvhost_prompt prompt = {
	    .tokens = c->tokens, .n_tokens = MOST_TOKENS, .priority = c->priority};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq = NULL;
	struct gate *gate = round == 0 ? c->gate : NULL;
	uint32_t step_tokens = 5 + (c->number + round) % 23;
	int result;

	/* What the first one has no run before has left anything of. */
	engine_tokens(c->tokens, MOST_TOKENS, round % 3 ? 0 : 40,
		      (gate ? 1000 * c->run : 0) + c->number * ROUNDS + round);
	if (gate && c->number)
		gate_await(gate, &gate->opened);
	result = failed(c, "open", kvhost_open(c->engine.pool, &prompt, &seq, &found));
	if (gate && c->number == 0) {
		gate_set(gate, &gate->opened);
		gate_await_full(gate);
	}
	for (uint32_t i = 0; result == 0 && kvhost_committed(seq) < MOST_TOKENS; i++) {
		uint32_t target = kvhost_committed(seq) + step_tokens;

		result = step_to(c, seq, target < MOST_TOKENS ? target : MOST_TOKENS);
		if (result == 0 && i % 4 == 3)
			result = check_rows(c, seq);
		if (result == 0 && i == 5 && round % 4 == 1) {
			uint32_t keep = kvhost_committed(seq) - step_tokens - 3;

			result = failed(c, "truncate", kvhost_truncate(seq, keep));
		}
	}
	if (gate && result == 0 && c->number)
		gate_keep(gate);
	if (gate && c->number == 0)
		gate_set(gate, &gate->done);
	if (result == 0 && round % 4 == 2)
		result = serve_branch(c, &seq);
	if (result == 0)
		result = check_rows(c, seq);
	return result ? result : failed(c, "close", kvhost_close(&seq));
}

static void *work(void *context)
{
	struct client *c = context;
	struct engine_model model = {.pool = c->pool,
				     .n_layers = 1,
				     .heads = 1,
				     .k_dim = 64,
				     .v_dim = 64,
				     .format = KVHOST_FLOAT16};

	if (failed(c, "attach", engine_start(&c->engine, d.socket, &model)) == 0) {
		for (uint32_t round = 0; round < ROUNDS; round++) {
			if (serve(c, round))
				break;
		}
	}
	if (c->gate && c->error[0])
		gate_set(c->gate, &c->gate->over);
	engine_stop(&c->engine);
	return NULL;
}

static void run_clients(const char *pool, uint32_t n, uint32_t n_interactive)
{
	static uint32_t run;
	struct client *clients = calloc(n, sizeof(*clients));
	struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	struct engine looker;

	assert_non_null(clients);
	run++;
	for (uint32_t i = 0; i < n; i++) {
		clients[i].pool = pool;
		clients[i].gate = &gate;
		clients[i].run = run;
		clients[i].number = i;
		clients[i].priority = i < n_interactive ? KVHOST_INTERACTIVE : KVHOST_AGENT;
		assert_int_equal(pthread_create(&clients[i].thread, NULL, work, &clients[i]), 0);
	}
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(pthread_join(clients[i].thread, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		if (clients[i].error[0])
			fail_msg("%s", clients[i].error);
		assert_int_equal(clients[i].wrong_rows, 0);
	}
	free(clients);
	assert_int_equal(engine_connect(&looker, d.socket), 0);
	assert_true(engine_check(&looker));
	engine_stop(&looker);
}

static uint64_t counter(const char *pool, const char *name)
{
	return daemon_pool_counter(&d, pool, name);
}

/* Nobody starves, and what moves is in proportion: no page more often than its sequence waits. */
static void assert_moved(const char *pool, uint32_t n)
{
	uint64_t parked;

	daemon_await(&d, pool, "pool_sequences", 0, LONG_MS);
	parked = counter(pool, "live_pages_parked");
	assert_true(parked > 0);
	assert_true(counter(pool, "live_pages_returned") <= parked);
	assert_true(parked <= (uint64_t)n * ROUNDS * MOST_PAGES * n);
	assert_int_equal(counter(pool, "live_sequences_lost"), 0);
	assert_int_equal(counter(pool, "ram_places_live"), 0);
}

/* Clients are killed while their pages are wherever they are: everything comes back. */
static void killed_clients_leave_nothing_in_either_tier(void **state)
{
	enum { CHILDREN = 4, KILLS = 12 };
	pid_t child[CHILDREN];

	(void)state;
	for (uint32_t kill_number = 0; kill_number < KILLS; kill_number++) {
		uint64_t before = counter("live", "live_pages_parked");

		for (uint32_t i = 0; i < CHILDREN; i++) {
			child[i] = fork_client();
			if (child[i] == 0) {
				static struct client c;

				c.pool = "live";
				c.number = i;
				c.priority = i % 2 ? KVHOST_AGENT : KVHOST_INTERACTIVE;
				for (;;)
					(void)work(&c);
			}
		}
		for (unsigned ms = 0;
		     counter("live", "live_pages_parked") < before + 3 + kill_number; ms++) {
			assert_true(ms < LONG_MS);
			pause_ms(1);
		}
		for (uint32_t i = 0; i < CHILDREN; i++)
			assert_int_equal(kill(child[i], SIGKILL), 0);
		for (uint32_t i = 0; i < CHILDREN; i++)
			assert_true(WIFSIGNALED(await_child(child[i], LONG_MS)));
		assert_int_equal(daemon_await(&d, "live", "pool_sequences", 0, LONG_MS), 0);
		assert_int_equal(daemon_await(&d, "live", "ram_places_live", 0, LONG_MS), 0);
		assert_int_equal(daemon_await(&d, "live", "pool_pages_live", 0, LONG_MS), 0);
	}
	run_clients("live", 3, 1);
}

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_stop(&d, LONG_MS);
	daemon_remove(&d);
	return 0;
}

static void three_sequences_of_which_two_fit_all_end_bit_exact(void **state)
{
	(void)state;
	run_clients("live", 3, 0);
	assert_moved("live", 3);
}

static void the_same_with_interactive_and_agents_mixed(void **state)
{
	(void)state;
	run_clients("live", 4, 2);
	assert_moved("live", 4);
}

static void the_same_in_the_order_of_last_use(void **state)
{
	(void)state;
	run_clients("old", 3, 1);
	assert_moved("old", 3);
}

static void eight_sequences_share_what_two_fill(void **state)
{
	(void)state;
	run_clients("live", 8, 3);
	assert_moved("live", 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(three_sequences_of_which_two_fit_all_end_bit_exact),
	    cmocka_unit_test(the_same_with_interactive_and_agents_mixed),
	    cmocka_unit_test(the_same_in_the_order_of_last_use),
	    cmocka_unit_test(eight_sequences_share_what_two_fill),
	    cmocka_unit_test(killed_clients_leave_nothing_in_either_tier),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
