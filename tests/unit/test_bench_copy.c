/* SPDX-License-Identifier: Apache-2.0 */
/* test_bench_copy: the calibration of what moves memory, and where kvbench puts threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/bench_copy.h"

static void make_records_unlike(struct copy_limit *l)
{
	for (size_t i = 0; i < l->n * l->record_bytes; i++)
		l->from[i] = (char)((i * 2654435761u) >> 13);
	memset(l->to, 0, l->n * l->record_bytes);
}

static void every_record_is_copied_to_its_place(void **state)
{
	/* Less than two small pages, some more, what is fetched ahead and more. */
	static const size_t sizes[] = {1, 64, 4096, 8192, 12288 + 64, 5 * 8192 + 4096 + 320};
	struct bench_reason why;
	struct copy_limit l;

	(void)state;
	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
		assert_int_equal(copy_limit_init(&l, sizes[k], 20 * 65536, &why), 0);
		assert_in_range(l.record_bytes, sizes[k], sizes[k] + 63);
		make_records_unlike(&l);
		assert_true(copy_limit_run(&l).cpu_ns > 0);
		for (size_t i = 0; i < l.n; i++)
			assert_memory_equal(l.to + l.to_places[i] * l.record_bytes,
					    l.from + l.from_places[i] * l.record_bytes,
					    l.record_bytes);
		copy_limit_deinit(&l);
	}
}

static void each_place_is_read_and_written_once(void **state)
{
	struct bench_reason why;
	struct copy_limit l;
	uint8_t read[100] = {0}, written[100] = {0};
	size_t moved = 0;

	(void)state;
	assert_int_equal(copy_limit_init(&l, 64, 6400, &why), 0);
	assert_int_equal(l.n, 100);
	for (size_t i = 0; i < l.n; i++) {
		read[l.from_places[i]]++;
		written[l.to_places[i]]++;
		moved += l.from_places[i] != l.to_places[i];
	}
	for (size_t i = 0; i < l.n; i++) {
		assert_int_equal(read[i], 1);
		assert_int_equal(written[i], 1);
	}
	assert_true(moved > 80);
	copy_limit_deinit(&l);
}

static void a_thread_is_pinned_by_its_name(void **state)
{
	char name[32] = "";
	FILE *f = fopen("/proc/self/comm", "re");

	(void)state;
	assert_non_null(f);
	assert_non_null(fgets(name, sizeof(name), f));
	fclose(f);
	name[strcspn(name, "\n")] = '\0';
	assert_int_equal(bench_pin_thread(getpid(), name, bench_cores().client), 0);
	assert_int_equal(bench_pin_thread(getpid(), "none of this name", 0), -1);
	assert_int_equal(bench_pin_thread(getpid(), NULL, bench_cores().client), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_record_is_copied_to_its_place),
	    cmocka_unit_test(each_place_is_read_and_written_once),
	    cmocka_unit_test(a_thread_is_pinned_by_its_name),
	};

	bench_clock_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
