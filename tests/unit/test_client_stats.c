/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_stats: the stats file through libkvhost. One thread; nothing blocks.
 */
#include "libclient/kvhost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/statsfile.h"

static char dir[64], path[96], previous[104];

static int setup(void **state)
{
	(void)state;
	(void)snprintf(dir, sizeof(dir), "/tmp/kvhost-stats-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	(void)snprintf(path, sizeof(path), "%s/stats", dir);
	(void)snprintf(previous, sizeof(previous), "%s.prev", path);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)unlink(path);
	(void)unlink(previous);
	return rmdir(dir);
}

static void add(struct statsfile *file, const char *name, uint32_t kind, uint32_t values,
		uint64_t first_value)
{
	struct statsfile_counter c = {
	    .kind = kind, .group = STATSFILE_GROUPS_MAX, .values = values};
	int at;

	memcpy(c.name, name, strlen(name));
	at = statsfile_add(file, &c);
	assert_true(at >= 0);
	file->values[at] = first_value;
}

static void counters_are_read_from_a_live_and_from_a_dead_daemon(void **state)
{
	struct statsfile_size size = {.max_counters = 8, .max_values = 64, .max_sessions = 4};
	struct kvhost_stats *stats = NULL;
	struct statsfile file;
	struct kvhost_stat s;

	(void)state;
	assert_int_equal(statsfile_create(&file, path, &size, 9, "test"), 0);
	add(&file, "hits", STATSFILE_COUNTER, 1, 5);
	add(&file, "pages_free", STATSFILE_GAUGE, 1, 6);
	add(&file, "open_us", STATSFILE_HISTOGRAM, STATSFILE_HISTOGRAM_BUCKETS, 7);
	assert_int_equal(kvhost_stats_open(path, &stats), 0);
	assert_int_equal(kvhost_stats_alive(stats), 1);
	assert_int_equal(kvhost_stats_count(stats), 3);
	assert_int_equal(kvhost_stats_get(stats, 0, &s), 0);
	assert_string_equal(s.name, "hits");
	assert_true(s.value == 5 && !s.is_gauge && !s.buckets);
	assert_int_equal(kvhost_stats_get(stats, 1, &s), 0);
	assert_true(s.value == 6 && s.is_gauge);
	assert_int_equal(kvhost_stats_get(stats, 2, &s), 0);
	assert_true(s.value == 7 && s.n_buckets == STATSFILE_HISTOGRAM_BUCKETS &&
		    s.buckets[0] == 7);
	assert_int_equal(kvhost_stats_get(stats, 3, &s), KVHOST_ENOENT);

	file.values[0] = 50;
	statsfile_close(&file, STATSFILE_STOPPED);
	assert_int_equal(kvhost_stats_refresh(stats), 0);
	assert_int_equal(kvhost_stats_alive(stats), 0);
	assert_int_equal(kvhost_stats_get(stats, 0, &s), 0);
	assert_true(s.value == 50);
	kvhost_stats_close(&stats);
	assert_null(stats);
	kvhost_stats_close(&stats);
}

static void no_file_and_a_file_of_another_kind_are_told_apart(void **state)
{
	struct kvhost_stats *stats = NULL;
	FILE *f;

	(void)state;
	assert_int_equal(kvhost_stats_open(path, &stats), KVHOST_ENOENT);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs("not a stats file\n", f) >= 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(kvhost_stats_open(path, &stats), KVHOST_EVERSION);
	assert_null(stats);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(counters_are_read_from_a_live_and_from_a_dead_daemon),
	    TEST(no_file_and_a_file_of_another_kind_are_told_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
