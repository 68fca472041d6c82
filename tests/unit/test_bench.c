/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench: what kvbench computes without a daemon: options, traces, tokens, percentiles,
 * stamps, the calibration of lookups, records. One thread; files in a directory of its own.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "daemon/tier/ram.h"
#include "tools/bench.h"
#include "tools/bench_limit.h"
#include "tools/bench_report.h"
#include "tools/bench_stamp.h"
#include "tools/bench_tiers.h"
#include "tools/bench_tokens.h"
#include "tools/bench_trace.h"

#define PATH_BYTES  128
#define PAGE_TOKENS 16
#define PAGES       4
#define STRIDE      4096

_Static_assert(TIER_KNOWN_BYTES == RAM_KNOWN_BYTES, "kvbench sizes KV-RAM as the daemon does");

static char directory[PATH_BYTES / 2];

static int make_directory(void **state)
{
	(void)state;
	snprintf(directory, sizeof(directory), "/tmp/kvhost-test-bench-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
	(void)state;
	return rmdir(directory);
}

/* ---- traces ---- */

static int load(const char *text, size_t bytes, bool compressed, struct trace *t,
		struct bench_reason *why)
{
	char path[PATH_BYTES];
	gzFile file;
	int r;

	snprintf(path, sizeof(path), "%s/trace", directory);
	file = gzopen(path, compressed ? "wb" : "wbT");
	assert_non_null(file);
	assert_int_equal(gzwrite(file, text, (unsigned)bytes), (int)bytes);
	gzclose(file);
	r = trace_load(t, path, why);
	unlink(path);
	return r;
}

static const char two_requests[] =
    "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1, 2]}\n"
    "\n"
    "{\"timestamp\": 27, \"input_length\": 7, \"output_length\": 0, \"hash_ids\": [0, 4294967295],"
    " \"more\": {\"x\": null}}";

static void check_two_requests(const struct trace *t)
{
	assert_int_equal(t->n_requests, 2);
	assert_int_equal(t->n_ids, 5);
	assert_int_equal(t->distinct, 4);
	assert_int_equal(t->most_ids, 3);
	assert_int_equal(t->requests[0].input_tokens, 6758);
	assert_int_equal(t->requests[0].output_tokens, 500);
	assert_int_equal(t->requests[0].n_ids, 3);
	assert_int_equal(t->requests[1].timestamp_ms, 27);
	assert_int_equal(t->requests[1].first_id, 3);
	assert_int_equal(t->ids[4], UINT32_MAX);
}

static void a_trace_is_read_plain_and_compressed_alike(void **state)
{
	struct bench_reason why;
	struct trace t;

	(void)state;
	for (int compressed = 0; compressed < 2; compressed++) {
		assert_int_equal(
		    load(two_requests, strlen(two_requests), compressed == 1, &t, &why), 0);
		check_two_requests(&t);
		trace_free(&t);
	}
}

static void a_line_longer_than_any_buffer_is_read_whole(void **state)
{
	size_t n = 50000, capacity = n * 8 + 200, used;
	char *text = malloc(capacity);
	struct bench_reason why;
	struct trace t;

	(void)state;
	assert_non_null(text);
	used = (size_t)snprintf(text, capacity,
				"{\"timestamp\":1,\"input_length\":1,\"output_length\":1,"
				"\"hash_ids\":[0");
	for (size_t i = 1; i < n; i++)
		used += (size_t)snprintf(text + used, capacity - used, ",%zu", i);
	used += (size_t)snprintf(text + used, capacity - used, "]}\n");
	assert_int_equal(load(text, used, true, &t, &why), 0);
	assert_int_equal(t.most_ids, n);
	assert_int_equal(t.ids[n - 1], n - 1);
	trace_free(&t);
	free(text);
}

static void a_wrong_line_is_named_with_its_number(void **state)
{
	static const struct {
		const char *line, *says;
	} wrong[] = {
	    {"{", "not JSON"},
	    {"[]", "JSON object"},
	    {"{\"timestamp\":-1}", "timestamp"},
	    {"{\"timestamp\":1.5}", "timestamp"},
	    {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}", "before"},
	    {"{\"timestamp\":9,\"output_length\":1,\"hash_ids\":[1]}", "input_length"},
	    {"{\"timestamp\":9,\"input_length\":1,\"hash_ids\":[1]}", "output_length"},
	    {"{\"timestamp\":9,\"input_length\":1,\"output_length\":1}", "hash_ids"},
	    {"{\"timestamp\":9,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}",
	     "hash_ids"},
	    {"{\"timestamp\":9,\"input_length\":1,\"output_length\":1,\"hash_ids\":[4294967296]}",
	     "an id must be"},
	    {"{\"timestamp\":9,\"input_length\":1,\"output_length\":1,\"hash_ids\":[\"1\"]}",
	     "an id must be"},
	};
	struct bench_reason why;
	struct trace t;
	char text[512];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		int n = snprintf(text, sizeof(text),
				 "{\"timestamp\":5,\"input_length\":1,\"output_length\":1,"
				 "\"hash_ids\":[1]}\n%s\n",
				 wrong[i].line);

		assert_int_equal(load(text, (size_t)n, false, &t, &why), -1);
		assert_non_null(strstr(why.text, "/trace:2:"));
		assert_non_null(strstr(why.text, wrong[i].says));
		trace_free(&t);
	}
	assert_int_equal(load("\n", 1, false, &t, &why), -1);
	trace_free(&t);
}

static void a_compressed_trace_that_was_cut_short_is_refused(void **state)
{
	char path[PATH_BYTES];
	struct bench_reason why;
	struct trace t;
	gzFile file;
	FILE *plain;
	long bytes;

	(void)state;
	snprintf(path, sizeof(path), "%s/cut", directory);
	file = gzopen(path, "wb");
	assert_non_null(file);
	for (int i = 0; i < 1000; i++)
		gzprintf(file,
			 "{\"timestamp\":%d,\"input_length\":1,\"output_length\":1,"
			 "\"hash_ids\":[%u]}\n",
			 i, (unsigned)i * 2654435761u);
	gzclose(file);
	plain = fopen(path, "rb");
	assert_non_null(plain);
	fseek(plain, 0, SEEK_END);
	bytes = ftell(plain);
	fclose(plain);
	assert_int_equal(truncate(path, bytes / 2), 0);

	assert_int_equal(trace_load(&t, path, &why), -1);
	assert_non_null(strstr(why.text, "cut short"));
	trace_free(&t);
	unlink(path);
}

/* ---- tokens ---- */

static void tokens_depend_on_the_id_and_the_place_alone(void **state)
{
	uint32_t one[300], again[300], other[300];

	(void)state;
	bench_tokens_fill(one, 7, 300);
	bench_tokens_fill(again, 7, 300);
	bench_tokens_fill(other, 8, 300);
	assert_memory_equal(one, again, sizeof(one));
	for (uint32_t i = 0; i < 300; i++) {
		assert_int_equal(one[i], bench_token(7, i));
		assert_int_not_equal(one[i], other[i]);
	}
	/* A fixed function: the same trace makes the same prompts in every version. */
	assert_int_equal(bench_token(0, 0), 0);
	assert_int_equal(bench_token(1, 2), 2729006776u);
	assert_int_equal(bench_token(UINT32_MAX, 63), 2494763179u);
}

static int compare_tokens(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void tokens_at_one_place_differ_for_all_ids_and_requests(void **state)
{
	enum { N = 200000 };
	uint32_t *tokens = calloc(N, sizeof(*tokens));

	(void)state;
	assert_non_null(tokens);
	for (uint32_t i = 0; i < N; i++)
		tokens[i] = bench_token(i, 5);
	qsort(tokens, N, sizeof(*tokens), compare_tokens);
	for (uint32_t i = 1; i < N; i++)
		assert_int_not_equal(tokens[i], tokens[i - 1]);

	for (uint32_t i = 0; i < N; i++)
		bench_tokens_fill_unique(&tokens[i], i, 1);
	qsort(tokens, N, sizeof(*tokens), compare_tokens);
	for (uint32_t i = 1; i < N; i++)
		assert_int_not_equal(tokens[i], tokens[i - 1]);
	free(tokens);
}

/* ---- percentiles ---- */

static bool is_near(double a, double b)
{
	return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

static void percentiles_are_the_nearest_rank(void **state)
{
	struct bench_samples s;

	(void)state;
	assert_int_equal(bench_samples_init(&s, 1000), 0);
	assert_true(is_near(bench_samples_ns(&s, 500), 0)); /* none yet */
	for (uint64_t i = 1000; i > 0; i--)
		bench_samples_add(&s, i);
	bench_samples_add(&s, 5000); /* one more than there is room for */
	bench_samples_sort(&s);
	assert_true(is_near(bench_samples_ns(&s, 500), bench_clock_ns(500)));
	assert_true(is_near(bench_samples_ns(&s, 990), bench_clock_ns(990)));
	assert_true(is_near(bench_samples_ns(&s, 999), bench_clock_ns(999)));
	assert_true(is_near(bench_samples_ns(&s, 1000), bench_clock_ns(1000)));
	assert_true(is_near(bench_samples_ns(&s, 0), bench_clock_ns(1)));

	bench_samples_clear(&s);
	bench_samples_add(&s, 42);
	bench_samples_sort(&s);
	assert_true(is_near(bench_samples_ns(&s, 1), bench_clock_ns(42)));
	assert_true(is_near(bench_samples_ns(&s, 999), bench_clock_ns(42)));
	bench_samples_free(&s);
}

static void a_median_of_an_even_number_lies_between_the_middle_two(void **state)
{
	const double odd[] = {9, 1, 5}, even[] = {4, 1, 100, 2};

	(void)state;
	assert_true(is_near(bench_median(odd, 3), 5));
	assert_true(is_near(bench_median(even, 4), 3));
	assert_true(is_near(odd[0], 9)); /* the caller's order stays */
}

/* ---- options ---- */

static int parse(struct bench_options *o, struct bench_reason *why, int argc, const char **argv)
{
	return bench_options_parse(o, argc, (char **)(uintptr_t)argv, why);
}

static void options_have_defaults_and_are_read_both_ways(void **state)
{
	const char *argv[] = {"kvbench", "replay",      "file",    "--budget", "1000",
			      "--json",  "--clients=8", "--speed", "2.5",      "--payload=stamp"};
	const char *lists[] = {"kvbench", "lookup", "--resident", "10000,20000"};
	struct bench_options o;
	struct bench_reason why;

	(void)state;
	assert_int_equal(parse(&o, &why, 10, argv), 0);
	assert_int_equal(o.mode, BENCH_REPLAY);
	assert_string_equal(o.trace, "file");
	assert_string_equal(o.payload, "stamp");
	assert_int_equal(o.budget, 1000);
	assert_int_equal(o.clients, 8);
	assert_true(o.json);
	assert_true(is_near(o.speed, 2.5));
	assert_int_equal(o.page_tokens, 64);
	assert_string_equal(o.order, "learned");

	assert_int_equal(parse(&o, &why, 4, lists), 0);
	assert_int_equal(o.resident.n, 2);
	assert_int_equal(o.resident.values[1], 20000);
	assert_int_equal(o.prompts.n, 3);
	assert_true(o.budget == BENCH_NULL);
}

static void a_wrong_argument_is_named_with_its_value_and_what_is_accepted(void **state)
{
	static const struct {
		const char *mode, *option, *value, *says;
	} wrong[] = {
	    {"ring", "--rounds", "-1", "\"-1\" is not accepted: a whole number from 1 to 64"},
	    {"ring", "--rounds", "0", "\"0\""},
	    {"ring", "--rounds", "65", "\"65\""},
	    {"replay", "--speed", "1000001", "a number from 0 to 1000000"},
	    {"ring", "--rounds", "1e3", "\"1e3\""},
	    {"ring", "--rounds", " 1", "\" 1\""},
	    {"ring", "--rounds", "99999999999999999999999", "whole number"},
	    {"ring", "--seconds", "3", "not an option of mode ring"},
	    {"ring", "--sec", "3", "no such option"},
	    {"ring", "--json=1", NULL, "takes no value"},
	    {"ring", "--rounds", NULL, "needs a value"},
	    {"ring", "more", NULL, "one argument too many"},
	    {"lookup", "--page-tokens", "48", "16, 32 or 64"},
	    {"lookup", "--format", "int8", "float32|float16|bfloat16"},
	    {"lookup", "--prompts", "4096,,1", "commas"},
	    {"lookup", "--prompts", "100", "multiple of --page-tokens 64"},
	    {"lookup", "--resident", "100", "at least"},
	    {"tiers", "--page-sizes", "8192,10000", "\"10000\" is not accepted: a multiple"},
	    {"replay", "--clients", "4", "TRACE is missing"},
	    {"sing", NULL, NULL, "\"sing\" is not a mode"},
	};
	struct bench_options o;
	struct bench_reason why;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		const char *argv[] = {"kvbench", wrong[i].mode, wrong[i].option, wrong[i].value};
		int argc = wrong[i].value ? 4 : wrong[i].option ? 3 : 2;

		assert_int_equal(parse(&o, &why, argc, argv), -1);
		if (!strstr(why.text, wrong[i].says))
			fail_msg("%s: does not say: %s", why.text, wrong[i].says);
	}
}

/* ---- stamps ---- */

struct mapped {
	struct kvhost_block block;
	struct kvhost_pool_info info;
	struct kvhost_page pages[PAGES];
	struct kvhost_table table;
	struct stamp stamp;
	uint32_t tokens[PAGES * PAGE_TOKENS];
	uint64_t hashes[PAGES * PAGE_TOKENS];
	uint8_t memory[PAGES * STRIDE];
};

static int make_mapped(void **state)
{
	struct mapped *m = calloc(1, sizeof(*m));
	struct bench_reason why;

	if (!m)
		return -1;
	/* 2 heads x 16 tokens x 32 and 48 bytes: a line of V holds parts of two tokens. */
	m->block = (struct kvhost_block){.v_offset = 1024,
					 .k_row_bytes = 32,
					 .v_row_bytes = 48,
					 .kv_heads = 2,
					 .k_format = KVHOST_FLOAT16,
					 .v_format = KVHOST_FLOAT16};
	m->info = (struct kvhost_pool_info){.pages = PAGES,
					    .page_stride = STRIDE,
					    .page_tokens = PAGE_TOKENS,
					    .n_layers = 1,
					    .blocks = &m->block,
					    .memory = m->memory};
	for (uint32_t i = 0; i < PAGES; i++)
		m->pages[i].index = PAGES - 1 - i;
	m->table = (struct kvhost_table){.pages = m->pages, .n_pages = PAGES};
	bench_tokens_fill(m->tokens, 3, PAGES * PAGE_TOKENS);
	stamp_hash_tokens(m->tokens, PAGES * PAGE_TOKENS, m->hashes);
	*state = m;
	return stamp_init(&m->stamp, &m->info, &why);
}

static int free_mapped(void **state)
{
	free(*state);
	return 0;
}

#define MAPPED_TEST(name) cmocka_unit_test_setup_teardown(name, make_mapped, free_mapped)

static void what_was_stamped_in_steps_is_found_as_a_whole(void **state)
{
	struct mapped *m = *state;
	uint64_t lines = PAGES * (2 * PAGE_TOKENS * (32 + 48)) / STAMP_LINE_BYTES;

	/* Whole lines of 7 tokens: 3 of K and 5 of V for each head. */
	stamp_write(&m->stamp, &m->table, m->hashes, 0, 7);
	assert_int_equal(m->stamp.lines_written, 16);
	stamp_write(&m->stamp, &m->table, m->hashes, 7, 40);
	stamp_write(&m->stamp, &m->table, m->hashes, 40, PAGES * PAGE_TOKENS);
	stamp_check(&m->stamp, &m->table, m->hashes, 0, PAGES * PAGE_TOKENS);
	assert_int_equal(m->stamp.lines_written, lines);
	assert_int_equal(m->stamp.lines_checked, lines);
	assert_int_equal(m->stamp.mismatches, 0);
}

static void one_flipped_bit_anywhere_is_one_mismatch(void **state)
{
	struct mapped *m = *state;

	stamp_write(&m->stamp, &m->table, m->hashes, 0, PAGES * PAGE_TOKENS);
	for (uint32_t at = 0; at < 1024 + 2 * PAGE_TOKENS * 48; at += 37) {
		m->memory[STRIDE + at] ^= 0x10;
		m->stamp.mismatches = 0;
		stamp_check(&m->stamp, &m->table, m->hashes, 0, PAGES * PAGE_TOKENS);
		assert_int_equal(m->stamp.mismatches, 1);
		m->memory[STRIDE + at] ^= 0x10;
	}
}

static void a_page_of_other_tokens_or_of_another_place_is_a_mismatch(void **state)
{
	struct mapped *m = *state;
	struct kvhost_page page;

	stamp_write(&m->stamp, &m->table, m->hashes, 0, PAGES * PAGE_TOKENS);
	m->tokens[0]++; /* everything behind it has another past */
	stamp_hash_tokens(m->tokens, PAGES * PAGE_TOKENS, m->hashes);
	stamp_check(&m->stamp, &m->table, m->hashes, 0, PAGES * PAGE_TOKENS);
	assert_int_equal(m->stamp.mismatches, m->stamp.lines_checked);

	m->tokens[0]--;
	stamp_hash_tokens(m->tokens, PAGES * PAGE_TOKENS, m->hashes);
	stamp_clear(&m->stamp);
	page = m->pages[0];
	m->pages[0] = m->pages[1];
	m->pages[1] = page;
	stamp_check(&m->stamp, &m->table, m->hashes, 0, 2 * PAGE_TOKENS);
	assert_int_equal(m->stamp.mismatches, m->stamp.lines_checked);

	stamp_clear(&m->stamp);
	m->pages[0].index = PAGES; /* no such page */
	stamp_check(&m->stamp, &m->table, m->hashes, 0, PAGE_TOKENS);
	assert_int_equal(m->stamp.mismatches, 1);
}

static void a_new_page_that_is_not_zero_is_counted(void **state)
{
	struct mapped *m = *state;

	stamp_check_new(&m->stamp, &m->table, 0, PAGES * PAGE_TOKENS);
	assert_int_equal(m->stamp.not_zero_lines, 0);
	m->memory[2 * STRIDE + 1024] = 1; /* V of the second page of the table */
	stamp_check_new(&m->stamp, &m->table, 0, PAGE_TOKENS);
	assert_int_equal(m->stamp.not_zero_lines, 0);
	stamp_check_new(&m->stamp, &m->table, PAGE_TOKENS + 1, PAGES * PAGE_TOKENS);
	assert_int_equal(m->stamp.not_zero_lines, 0); /* its first tokens were there before */
	stamp_check_new(&m->stamp, &m->table, PAGE_TOKENS, PAGES * PAGE_TOKENS);
	assert_int_equal(m->stamp.not_zero_lines, 1);
}

static void stamps_need_whole_lines_and_a_mapping(void **state)
{
	struct mapped *m = *state;
	struct bench_reason why;

	m->block.v_row_bytes = 6;
	assert_int_equal(stamp_init(&m->stamp, &m->info, &why), -1);
	assert_non_null(strstr(why.text, "--head-dim"));
	m->block.v_row_bytes = 48;
	m->info.memory = NULL;
	assert_int_equal(stamp_init(&m->stamp, &m->info, &why), -1);
	assert_non_null(strstr(why.text, "\"map\": true"));
}

/* ---- the calibration of lookups ---- */

static void the_calibration_counts_pages_that_are_equal(void **state)
{
	uint32_t prompt[20 * PAGE_TOKENS];
	struct bench_reason why;
	struct limit l;

	(void)state;
	assert_int_equal(limit_init(&l, 50, 20, PAGE_TOKENS, &why), 0);
	for (uint32_t i = 0; i < 50; i++) {
		bench_tokens_fill(prompt, i, PAGE_TOKENS);
		limit_set(&l, i, prompt);
	}
	for (uint32_t i = 0; i < 20; i++)
		bench_tokens_fill(prompt + i * PAGE_TOKENS, 30 + i, PAGE_TOKENS);
	assert_int_equal(limit_look_up(&l, 30, prompt, 20), 20);
	assert_int_equal(limit_look_up(&l, 30, prompt, 1), 1);
	assert_int_equal(limit_look_up(&l, 29, prompt, 20), 0);
	prompt[20 * PAGE_TOKENS - 1] ^= 1;
	assert_int_equal(limit_look_up(&l, 30, prompt, 20), 19);
	limit_deinit(&l);
}

/* ---- records ---- */

static void a_record_is_one_json_line_with_its_bar(void **state)
{
	const double ratios[] = {1, 3};
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);
	struct report *r = report_new(true, out);

	(void)state;
	report_case(r, "one.%d", 7);
	report_number(r, "p50", "us", 1.5);
	report_number(r, "nothing", "us", INFINITY);
	report_count(r, "pages", "", 12);
	report_text(r, "order", "l\xff");
	report_numbers(r, "ratios", "", ratios, 2);
	report_bar(r, 2.0, 2.0);
	report_measured(r);
	report_case(r, "two");
	report_failed(r, "because of %s", "this");
	report_case(r, "three");
	report_unsupported(r, "not here");
	assert_int_equal(report_failures(r), 1);
	report_free(&r);
	fclose(out);
	assert_string_equal(
	    text, "{\"case\":\"one.7\",\"status\":\"measured\",\"p50_us\":1.5,\"nothing_us\":null,"
		  "\"pages\":12,\"order\":\"l?\",\"ratios\":[1.0,3.0],"
		  "\"bar\":{\"ratio\":2.0,\"limit\":2.0,\"met\":true}}\n"
		  "{\"case\":\"two\",\"status\":\"failed\",\"reason\":\"because of this\"}\n"
		  "{\"case\":\"three\",\"status\":\"unsupported\",\"reason\":\"not here\"}\n");
	free(text);
}

static void a_table_has_units_and_says_which_bar_is_missed(void **state)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);
	struct report *r = report_new(false, out);

	(void)state;
	report_case(r, "one");
	report_number(r, "p50", "us", 12.345);
	report_bar(r, 2.5, 2.0);
	report_measured(r);
	report_free(&r);
	fclose(out);
	assert_non_null(strstr(text, "12.3 us\n"));
	assert_non_null(strstr(text, "MISSED"));
	assert_non_null(strstr(text, "measured\n"));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_trace_is_read_plain_and_compressed_alike),
	    cmocka_unit_test(a_line_longer_than_any_buffer_is_read_whole),
	    cmocka_unit_test(a_wrong_line_is_named_with_its_number),
	    cmocka_unit_test(a_compressed_trace_that_was_cut_short_is_refused),
	    cmocka_unit_test(tokens_depend_on_the_id_and_the_place_alone),
	    cmocka_unit_test(tokens_at_one_place_differ_for_all_ids_and_requests),
	    cmocka_unit_test(percentiles_are_the_nearest_rank),
	    cmocka_unit_test(a_median_of_an_even_number_lies_between_the_middle_two),
	    cmocka_unit_test(options_have_defaults_and_are_read_both_ways),
	    cmocka_unit_test(a_wrong_argument_is_named_with_its_value_and_what_is_accepted),
	    MAPPED_TEST(what_was_stamped_in_steps_is_found_as_a_whole),
	    MAPPED_TEST(one_flipped_bit_anywhere_is_one_mismatch),
	    MAPPED_TEST(a_page_of_other_tokens_or_of_another_place_is_a_mismatch),
	    MAPPED_TEST(a_new_page_that_is_not_zero_is_counted),
	    MAPPED_TEST(stamps_need_whole_lines_and_a_mapping),
	    cmocka_unit_test(the_calibration_counts_pages_that_are_equal),
	    cmocka_unit_test(a_record_is_one_json_line_with_its_bar),
	    cmocka_unit_test(a_table_has_units_and_says_which_bar_is_missed),
	};

	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
