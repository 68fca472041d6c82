/* SPDX-License-Identifier: Apache-2.0 */
/* test_counters: the values of the stats file by name. One thread; files in a temporary folder. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/counters.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/config.h"

#define POOLS      2
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

struct world {
	char directory[40];
	char *path;
	struct statsfile file;
	struct counters counters;
	struct statsfile_reader reader;
	struct statsfile_snapshot snapshot;
};

static struct world world;

static int setup(void **state)
{
	struct statsfile_size size = counters_size(POOLS, 1);
	struct world *w = &world;

	*w = (struct world){0};
	snprintf(w->directory, sizeof(w->directory), "/tmp/kvhost-counters-XXXXXX");
	if (!mkdtemp(w->directory))
		return -1;
	if (asprintf(&w->path, "%s/stats", w->directory) < 0)
		return -1;
	if (statsfile_create(&w->file, w->path, &size, 1, "0.1"))
		return -1;
	if (counters_init(&w->counters, &w->file))
		return -1;
	*state = w;
	return statsfile_open(&w->reader, w->path);
}

static int teardown(void **state)
{
	struct world *w = *state;
	int r;

	statsfile_snapshot_free(&w->snapshot);
	statsfile_reader_close(&w->reader);
	counters_deinit(&w->counters);
	statsfile_close(&w->file, STATSFILE_STOPPED);
	r = unlink(w->path) || rmdir(w->directory);
	free(w->path);
	return r;
}

static uint64_t value(struct world *w, const char *name, const char *label)
{
	uint64_t out;

	statsfile_snapshot_free(&w->snapshot);
	assert_int_equal(statsfile_read(&w->reader, &w->snapshot), 0);
	assert_true(statsfile_value(&w->snapshot, name, label, &out));
	return out;
}

static void a_counter_is_read_under_its_own_name(void **state)
{
	struct world *w = *state;

	counters_add(&w->counters, COUNTER_requests, 2);
	counters_add(&w->counters, COUNTER_requests, 3);
	counters_set(&w->counters, COUNTER_sessions_attached, 7);
	counters_add(&w->counters, COUNTER_log_dropped, 1);
	assert_int_equal(value(w, "requests", ""), 5);
	assert_int_equal(value(w, "sessions_attached", ""), 7);
	assert_int_equal(value(w, "log_dropped", ""), 1);
	assert_int_equal(value(w, "completions", ""), 0);
	assert_int_equal(counters_get(&w->counters, COUNTER_requests), 5);
}

static void counters_of_pools_are_told_apart_by_label(void **state)
{
	struct world *w = *state;
	struct pool_counters *a, *b;

	assert_int_equal(counters_add_pool(&w->counters, "a", &a), 0);
	assert_int_equal(counters_add_pool(&w->counters, "b", &b), 0);
	pool_counters_set(a, COUNTER_pool_pages_capacity, 10);
	pool_counters_set(b, COUNTER_pool_pages_capacity, 20);
	pool_counters_add(b, COUNTER_pool_saturated, 4);
	assert_int_equal(value(w, "pool_pages_capacity", "a"), 10);
	assert_int_equal(value(w, "pool_pages_capacity", "b"), 20);
	assert_int_equal(value(w, "pool_saturated", "a"), 0);
	assert_int_equal(value(w, "pool_saturated", "b"), 4);
	assert_int_equal(pool_counters_get(b, COUNTER_pool_saturated), 4);
}

static void a_pool_that_is_made_again_goes_on_with_its_counters(void **state)
{
	struct world *w = *state;
	struct pool_counters *first, *again;

	assert_int_equal(counters_add_pool(&w->counters, "a", &first), 0);
	pool_counters_add(first, COUNTER_pool_commits, 3);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(counters_add_pool(&w->counters, "a", &again), 0);
	assert_ptr_equal(again, first);
	assert_int_equal(value(w, "pool_commits", "a"), 3);
}

static void the_gauges_of_a_namespace_carry_its_name(void **state)
{
	struct world *w = *state;
	struct namespace_counters *a, *b;

	assert_int_equal(counters_add_namespace(&w->counters, "a", &a), 0);
	assert_int_equal(counters_add_namespace(&w->counters, "b", &b), 0);
	namespace_counters_set(a, 7, 5, 13, 3, 2);
	namespace_counters_set(b, 11, 0, 0, 0, 1);
	assert_int_equal(value(w, "namespace_pages", "a"), 7);
	assert_int_equal(value(w, "namespace_retained_pages", "a"), 5);
	assert_int_equal(value(w, "namespace_kv_ram_bytes", "a"), 13);
	assert_int_equal(value(w, "namespace_sequences", "a"), 3);
	assert_int_equal(value(w, "namespace_sessions", "a"), 2);
	assert_int_equal(value(w, "namespace_pages", "b"), 11);
	assert_int_equal(value(w, "namespace_sessions", "b"), 1);
}

static void more_pools_than_there_is_room_for_are_refused(void **state)
{
	struct world *w = *state;
	struct pool_counters *p = NULL;
	struct namespace_counters *n;
	char name[16];

	for (unsigned i = 0; i < CONFIG_NAMESPACES_MAX; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		assert_int_equal(counters_add_namespace(&w->counters, name, &n), 0);
	}
	assert_int_equal(counters_add_pool(&w->counters, "a", &p), 0);
	assert_int_equal(counters_add_pool(&w->counters, "b", &p), 0);
	assert_int_equal(counters_add_pool(&w->counters, "c", &p), -ENOSPC);
	assert_string_equal(p->pool, "b");
}

static void a_sample_is_counted_in_the_bucket_of_its_microseconds(void **state)
{
	struct world *w = *state;
	const struct statsfile_counter *found = NULL;
	const uint64_t *buckets;

	counters_time(&w->counters, HISTOGRAM_latency_open, 0);
	counters_time(&w->counters, HISTOGRAM_latency_open, 999);
	counters_time(&w->counters, HISTOGRAM_latency_open, 1000);
	counters_time(&w->counters, HISTOGRAM_latency_open, 3999);
	counters_time(&w->counters, HISTOGRAM_latency_open, 4000);
	counters_time(&w->counters, HISTOGRAM_latency_open, UINT64_MAX);
	value(w, "latency_open", "");
	for (uint32_t i = 0; i < w->snapshot.n_counters; i++) {
		if (!strcmp(w->snapshot.counters[i].name, "latency_open"))
			found = &w->snapshot.counters[i];
	}
	assert_non_null(found);
	assert_int_equal(found->kind, STATSFILE_HISTOGRAM);
	buckets = &w->snapshot.values[found->first];
	assert_int_equal(buckets[0], 2);
	assert_int_equal(buckets[1], 1);
	assert_int_equal(buckets[2], 1);
	assert_int_equal(buckets[3], 1);
	assert_int_equal(buckets[STATSFILE_HISTOGRAM_BUCKETS - 1], 1);
}

static void a_group_that_is_being_written_is_marked_and_the_others_are_not(void **state)
{
	struct world *w = *state;
	struct pool_counters *a;

	assert_int_equal(counters_add_pool(&w->counters, "a", &a), 0);
	pool_counters_begin(a);
	pool_counters_add(a, COUNTER_pool_opens, 1);
	value(w, "requests", "");
	assert_true(w->snapshot.torn);
	assert_true(w->snapshot.torn_group[a->group]);
	assert_false(w->snapshot.torn_group[w->counters.group]);
	pool_counters_end(a);
	assert_int_equal(value(w, "pool_opens", "a"), 1);
	assert_false(w->snapshot.torn);

	counters_begin(&w->counters);
	value(w, "requests", "");
	assert_true(w->snapshot.torn_group[w->counters.group]);
	counters_end(&w->counters);
}

static void every_reason_has_a_counter_of_its_own(void **state)
{
	struct world *w = *state;
	struct pool_counters *a;

	assert_int_equal(counters_add_pool(&w->counters, "a", &a), 0);
	counters_add(&w->counters, counter_of_bye(WIRE_BYE_CLIENT), 1);
	counters_add(&w->counters, counter_of_bye(WIRE_BYE_STALLED), 2);
	counters_add(&w->counters, counter_of_bye(WIRE_BYE_QUOTA), 3);
	pool_counters_add(a, counter_of_miss(PAYLOAD_MISS_NO_MATCH), 4);
	pool_counters_add(a, counter_of_miss(PAYLOAD_MISS_IMAGE), 5);
	pool_counters_add(a, counter_of_miss(PAYLOAD_MISS_GONE), 6);
	assert_int_equal(value(w, "sessions_closed_client", ""), 1);
	assert_int_equal(value(w, "sessions_closed_stalled", ""), 2);
	assert_int_equal(value(w, "sessions_closed_quota", ""), 3);
	assert_int_equal(value(w, "pool_misses_no_match", "a"), 4);
	assert_int_equal(value(w, "pool_misses_image", "a"), 5);
	assert_int_equal(value(w, "pool_misses_gone", "a"), 6);
}

static void counters_that_agree_are_in_the_group_of_their_owner(void **state)
{
	struct world *w = *state;
	struct pool_counters *a;
	const struct statsfile_counter *of_pool;

	assert_int_equal(counters_add_pool(&w->counters, "a", &a), 0);
	value(w, "requests", "");
	of_pool = &w->snapshot.counters[COUNTER_COUNT + HISTOGRAM_COUNT];
	assert_int_equal(w->snapshot.counters[COUNTER_requests].group, w->counters.group);
	assert_int_equal(w->snapshot.counters[COUNTER_completions].group, w->counters.group);
	assert_int_equal(w->snapshot.counters[COUNTER_core_turns].group, STATSFILE_GROUPS_MAX);
	assert_int_equal(of_pool[COUNTER_pool_lookups].group, a->group);
	assert_int_equal(of_pool[COUNTER_pool_lookup_hits].group, a->group);
	assert_int_equal(of_pool[COUNTER_pool_saturated].group, STATSFILE_GROUPS_MAX);
}

static void units_and_texts_are_in_the_file(void **state)
{
	struct world *w = *state;

	value(w, "requests", "");
	assert_int_equal(w->snapshot.n_counters, COUNTER_COUNT + HISTOGRAM_COUNT);
	for (uint32_t i = 0; i < w->snapshot.n_counters; i++)
		assert_true(w->snapshot.counters[i].help[0] != 0);
	assert_string_equal(w->snapshot.counters[COUNTER_sessions_attached].unit, "sessions");
	assert_int_equal(w->snapshot.counters[COUNTER_sessions_attached].kind, STATSFILE_GAUGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_counter_is_read_under_its_own_name),
	    TEST(counters_of_pools_are_told_apart_by_label),
	    TEST(a_pool_that_is_made_again_goes_on_with_its_counters),
	    TEST(the_gauges_of_a_namespace_carry_its_name),
	    TEST(more_pools_than_there_is_room_for_are_refused),
	    TEST(a_sample_is_counted_in_the_bucket_of_its_microseconds),
	    TEST(a_group_that_is_being_written_is_marked_and_the_others_are_not),
	    TEST(every_reason_has_a_counter_of_its_own),
	    TEST(counters_that_agree_are_in_the_group_of_their_owner),
	    TEST(units_and_texts_are_in_the_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
