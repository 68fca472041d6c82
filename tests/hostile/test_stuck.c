/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that stop: who never drains its ring, never reads its socket, or is stopped in the
 * middle. The daemon waits for none of them.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/hostile/ops.h"

#define CREDITS 12u

static struct world w;

static int set_up(void **state)
{
	(void)state;
	world_start(&w);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	world_stop(&w);
	return 0;
}

static void fill_ring(struct raw *r)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});

	r->lazy = true;
	while (r->submit.produced < CREDITS)
		raw_put(r, &null);
}

static void never_drain(struct raw *r, const void *detail)
{
	(void)detail;
	fill_ring(r);
}

static void a_ring_that_is_never_drained_ends_the_session(void **state)
{
	(void)state;
	world_attack(&w, never_drain, NULL, WIRE_BYE_STALLED);
}

static bool has_answer(void *context)
{
	return !ring_is_empty(&((struct raw *)context)->reap);
}

struct unread {
	struct raw *r;
	uint64_t stalled;
};

static bool has_answer_or_end(void *context)
{
	const struct unread *u = context;

	return has_answer(u->r) || world_closed(&w, WIRE_BYE_STALLED) > u->stalled;
}

static void a_socket_that_is_never_read_ends_the_session_when_it_is_full(void **state)
{
	struct raw r;
	struct unread u = {.r = &r, .stalled = world_closed(&w, WIRE_BYE_STALLED)};

	(void)state;
	do_attach(&r, w.d.socket, true);
	for (int i = 0; i < 5000 && world_closed(&w, WIRE_BYE_STALLED) == u.stalled; i++) {
		struct submission s = op_attach(&r, true);
		struct completion c;

		raw_put(&r, &s);
		assert_true(await(has_answer_or_end, &u, LONG_MS));
		while (ring_get(&r.reap, &c) == 0)
			ring_publish(&r.reap);
	}
	assert_int_equal(world_closed(&w, WIRE_BYE_STALLED), u.stalled + 1);
	world_goes_on(&w);
	raw_await_end(&r);
	raw_free(&r);
}

static void wakes_that_are_never_read_stop_nothing(void **state)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});
	struct raw r;

	(void)state;
	do_attach(&r, w.d.socket, false);
	for (int i = 0; i < 3000; i++) {
		struct completion c;

		atomic_store(r.reap.need_wake, 1);
		raw_put(&r, &null);
		while (ring_get(&r.reap, &c) != 0)
			assert_true(await(has_answer, &r, LONG_MS));
		ring_publish(&r.reap);
		if (i % 500 == 0)
			world_goes_on(&w);
	}
	world_goes_on(&w);
	assert_int_equal(raw_ask(&r, &null, NULL), 0);
	raw_free(&r);
}

/* ---- stopped processes ---- */

static _Noreturn void stop_there(int where)
{
	struct payload_handle seq, step;
	struct submission s;
	struct raw r;

	do_attach(&r, w.d.socket, true);
	seq = do_open(&r, 700000, 40, 64);
	step = do_begin(&r, seq, 40);
	switch (where) {
	case 0: /* with a step open and a full ring */
		s = op(WIRE_OP_NULL, (struct payload_handle){0});
		for (uint32_t i = 0; i < CREDITS - 2; i++)
			raw_put(&r, &s);
		break;
	case 1: /* in the middle of an entry */
		s = op_write(&r, step, 0, 0, 0, 40, 1);
		memcpy(r.submit.entries[r.submit.produced % r.submit.slots].payload,
		       (const char *)&s + 8, RING_HALF_BYTES);
		raw_bell(&r);
		break;
	default: /* asleep, with all that it wants to be told never read */
		atomic_store(r.reap.need_wake, 1);
		s = op_write(&r, step, 0, 0, 0, 40, 1);
		raw_put(&r, &s);
		break;
	}
	raise(SIGSTOP);
	_exit(0);
}

static void a_stopped_client_stops_nobody(void **state)
{
	(void)state;
	for (int where = 0; where < 3; where++) {
		uint64_t ended =
		    world_closed(&w, WIRE_BYE_STALLED) + world_closed(&w, WIRE_BYE_DEATH);
		pid_t child = fork_client();
		uint64_t began;
		int status;

		if (child == 0)
			stop_there(where);
		while (waitpid(child, &status, WUNTRACED) < 0 && errno == EINTR)
			;
		assert_true(WIFSTOPPED(status));
		for (int i = 0; i < 30; i++)
			world_goes_on(&w);
		assert_int_equal(kill(child, SIGKILL), 0);
		(void)await_child(child, LONG_MS);
		began = now_ms();
		while (world_closed(&w, WIRE_BYE_STALLED) + world_closed(&w, WIRE_BYE_DEATH) ==
		       ended) {
			assert_true(now_ms() - began < WITHIN_MS * PATIENCE);
			pause_ms(1);
		}
		/* What the dead held is back: nothing of it was ever committed. */
		assert_int_equal(cached_tokens(&w.good, 700000, 40), 0);
		assert_int_equal(daemon_await(&w.d, "open", "pool_sequences", 0, LONG_MS), 0);
		assert_int_equal(daemon_await(&w.d, "open", "pool_pages_quarantined", 0, LONG_MS),
				 0);
		world_goes_on(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_ring_that_is_never_drained_ends_the_session),
	    cmocka_unit_test(a_socket_that_is_never_read_ends_the_session_when_it_is_full),
	    cmocka_unit_test(wakes_that_are_never_read_stop_nothing),
	    cmocka_unit_test(a_stopped_client_stops_nobody),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
