/* SPDX-License-Identifier: Apache-2.0 */
/* live: see live.h. One thread; blocks as the library does. */
#include "tests/e2e/live.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/e2e/stamped.h"

static void start_dense(struct engine *e, const char *socket)
{
	struct engine_model m = ENGINE_SMALL(LIVE_POOL);

	assert_int_equal(engine_start(e, socket, &m), 0);
}

const struct live_kind live_dense = {
    .start = start_dense, .compute = stamped_fill, .has = stamped_is};

void live_start(struct live *l, const struct live_kind *kind, const char *config,
		const char *environment)
{
	*l = (struct live){.kind = kind};
	if (environment) {
		l->d.program = "tests/hostile/kvhostd_test";
		l->d.environment = environment;
	}
	daemon_start(&l->d, config);
	kind->start(&l->mine, l->d.socket);
	kind->start(&l->others, l->d.socket);
}

void live_stop(struct live *l)
{
	engine_stop(&l->mine);
	engine_stop(&l->others);
	daemon_remove(&l->d);
}

uint64_t live_counter(const struct live *l, const char *name)
{
	return daemon_pool_counter(&l->d, LIVE_POOL, name);
}

void live_expect(const struct live *l, const char *name, uint64_t value)
{
	assert_int_equal(daemon_await(&l->d, LIVE_POOL, name, value, LONG_MS), value);
}

/* What has happened is in the counters soon. */
void live_expect_at_least(const struct live *l, const char *name, uint64_t least)
{
	for (unsigned ms = 0; live_counter(l, name) < least; ms++) {
		assert_true(ms < LONG_MS);
		pause_ms(1);
	}
}

void live_expect_nothing_used(struct live *l)
{
	static const char *const names[] = {
	    "pool_sequences",  "pool_pages_live",    "pool_pages_reserved",
	    "pool_table_refs", "pool_transfer_pins", "pool_active_transactions",
	    "ram_places_live", "ram_pages_leaving",  "ram_pages_arriving",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		live_expect(l, names[i], 0);
	assert_int_equal(live_counter(l, "pool_pages_free") +
			     live_counter(l, "pool_pages_retained"),
			 LIVE_POOL_PAGES);
	assert_int_equal(live_counter(l, "pool_refused_references"), 0);
	assert_true(engine_check(&l->others));
	assert_true(!l->mine.host || engine_check(&l->mine));
}

int live_try(struct live_sequence *s, struct engine *e, uint32_t number, uint32_t priority,
	     uint64_t deadline_us)
{
	struct kvhost_prompt prompt = {.tokens = s->tokens,
				       .n_tokens = LIVE_MOST,
				       .priority = priority,
				       .deadline_us = deadline_us};
	struct kvhost_open_result found;
	int result;

	s->engine = e;
	engine_tokens(s->tokens, LIVE_MOST, 0, number);
	result = kvhost_open(e->pool, &prompt, &s->seq, &found);
	if (result == 0)
		assert_int_equal(found.cached_tokens, 0);
	return result;
}

void live_begin(struct live_sequence *s, struct engine *e, uint32_t number, uint32_t priority)
{
	assert_int_equal(live_try(s, e, number, priority, 0), 0);
}

void live_go_on(const struct live *l, struct live_sequence *s, uint32_t to)
{
	l->kind->compute(s->engine, s->seq, s->tokens, to);
	assert_true(live_has(l, s, to));
}

bool live_has(const struct live *l, const struct live_sequence *s, uint32_t n)
{
	return l->kind->has(s->engine, s->seq, s->tokens, n);
}

void live_end(struct live_sequence *s)
{
	assert_int_equal(kvhost_close(&s->seq), 0);
}
