/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid_failures: every place where an operation can be made to fail, failed once in a hybrid
 * pool; then everything is let go, and no lane, claim or slot is lost. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/hybrid.h"

#define N     64
#define STATE 5000

static const char config[] =
    "{\"pools\": [" HYBRID_POOL("hybrid", ", \"lanes\": 3, \"retained_slots\": 5,"
					  " \"default_deadline_us\": 5000000") "]}\n";

static const char *const names[] = {
#define FAILPOINT(name, text) #name,
#include "daemon/base/failpoints.def"
#undef FAILPOINT
};

static struct daemon d;
static unsigned refused;

/* A call may be refused, or the session ended; it never waits for what does not come. */
static bool went_well(int result)
{
	refused += result != 0;
	assert_true(result <= 0);
	assert_int_not_equal(result, KVHOST_ETIMEDOUT);
	return result == 0;
}

static int attach(struct engine *e)
{
	const struct kvhost_layer layer = {.kv_heads = 1, .k_head_dim = 4, .v_head_dim = 4};
	const struct kvhost_section sections[] = {{.name = "state", .bytes = STATE},
						  {.name = "ring", .bytes = 100, .ring = 1}};
	const struct kvhost_pool_description description = {.name = "hybrid",
							    .n_layers = 1,
							    .layers = &layer,
							    .n_sections = 2,
							    .sections = sections};
	int result = engine_connect(e, d.socket);

	return result ? result : kvhost_pool_attach(e->host, &description, &e->pool);
}

static void step_once(struct kvhost_sequence *seq, uint32_t to, uint32_t number)
{
	uint8_t image[STATE];
	struct kvhost_step step;

	if (!went_well(kvhost_step_begin(seq, to, 0, &step)))
		return;
	hybrid_fill(image, STATE, number, 0);
	if (!went_well(kvhost_image_write(&step, 0, 0, image, STATE)) ||
	    !went_well(kvhost_step_commit(&step, to - step.start_tokens, NULL, 0, NULL, 0)))
		(void)kvhost_step_abort(&step);
}

/* A state that is found is the one that was left at its position. */
static void expect_image(struct kvhost_sequence *seq, uint32_t number)
{
	uint8_t expected[STATE], image[STATE];

	hybrid_fill(expected, STATE, number, 0);
	if (went_well(kvhost_image_read(seq, NULL, 0, 0, image, STATE)))
		assert_memory_equal(image, expected, STATE);
}

static void serve(struct engine *e, uint32_t number)
{
	struct kvhost_prompt p = {.n_tokens = N, .max_tokens = N + 16, .system_end_tokens = 20};
	struct kvhost_sequence *seq = NULL, *branch = NULL;
	struct kvhost_open_result found;
	uint32_t tokens[N], outcome;

	engine_tokens(tokens, N, 20, number);
	p.tokens = tokens;
	(void)went_well(kvhost_lookup(e->pool, &p, &found));
	if (!went_well(kvhost_open(e->pool, &p, &seq, &found)))
		return;
	if (found.cached_tokens)
		expect_image(seq, found.cached_tokens == 16 ? 16 : number * 100 + 40);
	for (uint32_t at = 16; at <= 40; at += 24) {
		if (kvhost_committed(seq) >= at)
			continue;
		step_once(seq, at, at == 16 ? 16 : number * 100 + at);
		if (kvhost_committed(seq) == at)
			(void)went_well(kvhost_checkpoint(seq, at, &outcome));
	}
	if (went_well(kvhost_fork(seq, N + 16, &branch)))
		step_once(branch, 60, 7);
	step_once(seq, 60, 8);
	(void)went_well(kvhost_close(&branch));
	(void)went_well(kvhost_close(&seq));
}

static void work(void)
{
	static const char *const zero[] = {"pool_lanes_used", "pool_sequences", "pool_pages_live",
					   "pool_pages_draining", "pool_active_transactions"};
	struct engine e;

	for (uint32_t i = 0; i < 12; i++) {
		for (int tries = 0; !went_well(attach(&e)); tries++) {
			assert_true(tries < 3);
			engine_stop(&e);
		}
		serve(&e, i % 3);
		engine_stop(&e);
	}
	for (size_t i = 0; i < sizeof(zero) / sizeof(*zero); i++)
		assert_int_equal(daemon_await(&d, "hybrid", zero[i], 0, LONG_MS), 0);
	assert_true(daemon_pool_counter(&d, "hybrid", "checkpoint_claims") > 0);
	assert_int_equal(engine_connect(&e, d.socket), 0);
	assert_true(engine_check(&e));
	engine_stop(&e);
}

static void after_one_failure_at_any_place_no_lane_and_no_state_is_lost(void **state)
{
	static const unsigned skips[] = {0, 1, 4, 13};
	char path[512], variable[96], said[4096];

	(void)state;
	if (access(build_path("tests/hostile/kvhostd_test", path, sizeof(path)), X_OK) != 0)
		skip(); /* only the daemon of the tests can be made to fail */
	for (size_t i = 0; i < sizeof(names) / sizeof(*names) * 4; i++) {
		(void)snprintf(variable, sizeof(variable), "KVHOST_TEST_FAILPOINT=%s:%u:1",
			       names[i / 4], skips[i % 4]);
		d.program = "tests/hostile/kvhostd_test";
		d.environment = variable;
		daemon_make(&d, config);
		if (daemon_try(&d, said, sizeof(said)) == 0) {
			work();
			assert_int_equal(daemon_stop(&d, 5000), 0);
		}
		daemon_remove(&d);
	}
	assert_true(refused > 0);
}

static int teardown(void **state)
{
	(void)state;
	if (d.folder[0])
		print_message("# %s\n", d.environment);
	daemon_remove(&d);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(after_one_failure_at_any_place_no_lane_and_no_state_is_lost,
				      teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
