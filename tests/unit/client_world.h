/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_CLIENT_WORLD_H
#define KVHOST_TESTS_CLIENT_WORLD_H

/*
 * client_world: a connection with one open sequence, against a daemon that keeps to a script.
 *
 * One thread for the client and one for the fake daemon, which is read here only between its
 * answer and the next request.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/fake_daemon.h"

#define PATIENCE_US 5000000

static uint32_t tokens[100];

static int setup(void **state)
{
	for (uint32_t i = 0; i < 100; i++)
		tokens[i] = 500 + i;
	*state = fake_new();
	return 0;
}

static int teardown(void **state)
{
	struct fake *f = *state;

	fake_free(&f);
	return 0;
}

struct world {
	struct fake *f;
	struct kvhost *host;
	struct kvhost_pool *pool;
	struct kvhost_sequence *seq;
	struct kvhost_step step;
	struct kvhost_table table;
};

/* A sequence of 40 tokens, of which 20 were found. */
static struct world begin_world(void **state)
{
	struct world w = {.f = *state};
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = 40, .max_tokens = 200};

	fake_sync(w.f)->script.cached_tokens = 20;
	fake_sync(w.f);
	fake_start(w.f);
	w.host = fake_connect(w.f);
	w.pool = fake_attach(w.host, 0);
	assert_int_equal(kvhost_open(w.pool, &prompt, &w.seq, NULL), 0);
	return w;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
