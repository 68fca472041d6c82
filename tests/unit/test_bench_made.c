/* SPDX-License-Identifier: Apache-2.0 */
/* test_bench_made: made-up traces, and the hits of who knows the future. One thread. */

#include "tools/bench_made.h"
#include "tools/bench_optimum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 10

static const char *const kinds[] = {"zipf", "scan", "uniform", "mix"};

#define KINDS (sizeof(kinds) / sizeof(*kinds))

static void the_same_seed_makes_the_same_trace(void **state)
{
	(void)state;
	for (size_t k = 0; k < KINDS; k++) {
		struct bench_reason why;
		struct trace a, b, other;

		assert_int_equal(trace_make(&a, kinds[k], 7, 300, &why), 0);
		assert_int_equal(trace_make(&b, kinds[k], 7, 300, &why), 0);
		assert_int_equal(trace_make(&other, kinds[k], 8, 1000, &why), 0);
		assert_int_equal(a.n_requests, 300);
		assert_int_equal(other.n_requests, 1000);
		assert_int_equal(a.n_ids, b.n_ids);
		assert_memory_equal(a.ids, b.ids, a.n_ids * sizeof(*a.ids));
		trace_free(&a);
		trace_free(&b);
		trace_free(&other);
	}
}

static void requests_of_a_made_trace_are_whole_and_in_order(void **state)
{
	(void)state;
	for (size_t k = 0; k < KINDS; k++) {
		struct bench_reason why;
		struct trace t;
		uint64_t ids = 0, most = 0;

		assert_int_equal(trace_make(&t, kinds[k], 1, 600, &why), 0);
		for (size_t i = 0; i < t.n_requests; i++) {
			assert_int_equal(t.requests[i].first_id, ids);
			assert_true(t.requests[i].n_ids > 0);
			assert_true(i == 0 ||
				    t.requests[i].timestamp_ms > t.requests[i - 1].timestamp_ms);
			ids += t.requests[i].n_ids;
			most = t.requests[i].n_ids > most ? t.requests[i].n_ids : most;
		}
		assert_int_equal(ids, t.n_ids);
		assert_int_equal(most, t.most_ids);
		assert_true(t.distinct < t.n_ids);
		trace_free(&t);
	}
}

/* The most hits that any choice of blocks to keep can give: by trying all of them. */
static uint64_t most_hits(const struct trace *t, size_t at, unsigned kept, unsigned room)
{
	const struct trace_request *r = &t->requests[at];
	unsigned wanted = 0, all;
	uint64_t hits = 0, best = 0;

	if (at == t->n_requests)
		return 0;
	while (hits < r->n_ids && kept >> t->ids[r->first_id + hits] & 1)
		hits++;
	for (uint32_t i = 0; i < r->n_ids; i++)
		wanted |= 1u << t->ids[r->first_id + i];
	all = kept | wanted;
	if ((unsigned)__builtin_popcount(all) <= room)
		return hits + most_hits(t, at + 1, all, room);
	for (unsigned some = all; some; some = (some - 1) & all) {
		uint64_t rest;

		if ((unsigned)__builtin_popcount(some) != room)
			continue;
		rest = most_hits(t, at + 1, some, room);
		best = rest > best ? rest : best;
	}
	return hits + best;
}

static void the_optimum_is_that_of_all_choices(void **state)
{
	uint32_t random = 1;

	(void)state;
	for (int round = 0; round < 10; round++) {
		struct trace_request requests[REQUESTS];
		uint32_t ids[2 * REQUESTS];
		struct trace t = {.requests = requests, .ids = ids, .most_ids = 2};
		struct bench_reason why;
		uint64_t hits;

		/* Chains of two blocks, some of which begin alike. */
		for (uint32_t i = 0; i < 7; i++) {
			random = random * 1103515245u + 12345u;
			requests[i] = (struct trace_request){.first_id = t.n_ids, .n_ids = 2};
			ids[t.n_ids++] = (random >> 16) % 3;
			ids[t.n_ids] = 3 + ids[t.n_ids - 1] * 2 + (random >> 20) % 2;
			t.n_ids++;
			t.n_requests++;
		}
		assert_int_equal(trace_count_distinct(&t, &why), 0);
		for (unsigned room = 2; room <= 5; room++) {
			assert_int_equal(trace_optimum(&t, room, &hits, &why), 0);
			assert_int_equal(hits, most_hits(&t, 0, 0, room));
		}
	}
}

static void with_room_for_all_the_optimum_misses_each_block_once(void **state)
{
	struct bench_reason why;
	struct trace t;
	uint64_t hits;

	(void)state;
	assert_int_equal(trace_make(&t, "mix", 3, 900, &why), 0);
	assert_int_equal(trace_optimum(&t, t.n_ids, &hits, &why), 0);
	assert_int_equal(hits, t.n_ids - t.distinct);
	trace_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_same_seed_makes_the_same_trace),
	    cmocka_unit_test(requests_of_a_made_trace_are_whole_and_in_order),
	    cmocka_unit_test(the_optimum_is_that_of_all_choices),
	    cmocka_unit_test(with_room_for_all_the_optimum_misses_each_block_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
