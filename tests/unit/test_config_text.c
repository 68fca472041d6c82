/* SPDX-License-Identifier: Apache-2.0 */
/* test_config_text: the options as people and tools read them. One thread; reads a manual page. */

#include "daemon/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static struct config config; /* large: not on the stack */
static char error[CONFIG_ERROR_BYTES];

static int from_text(const char *text)
{
	int r;

	config_start(&config);
	r = config_take_text(&config, "f.json", text, strlen(text), error);
	return r ? r : config_finish(&config, error);
}

static int from_flags(const char *a, const char *b)
{
	char program[] = "kvhostd", first[200], second[200];
	char *argv[] = {program, first, second, NULL};
	int r;

	snprintf(first, sizeof(first), "%s", a);
	snprintf(second, sizeof(second), "%s", b);
	config_start(&config);
	r = config_take_flags(&config, b[0] ? 3 : 2, argv, error);
	return r ? r : config_finish(&config, error);
}

static const char *source_directory(void)
{
	const char *directory = getenv("srcdir");

	return directory ? directory : ".";
}

/* What `print` writes, to be freed. */
static char *printed(void (*print)(FILE *out))
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	print(out);
	assert_int_equal(fclose(out), 0);
	return text;
}

static char *const *environment; /* of print_warnings */

static void print_warnings(FILE *out)
{
	config_print_warnings(&config, environment, out);
}

static void expect_warnings(const char *wanted)
{
	char *text = printed(print_warnings);

	assert_string_equal(text, wanted);
	free(text);
}

#define NO_KEY ": no such key, it changes nothing"

static void a_variable_that_nobody_reads_is_a_warning(void **state)
{
	static char variables[][48] = {"KVHOST_KV_RAM_BYTE=1",
				       "KVHOST_SPIN_US=3",
				       "KVHOST_SOKET=/x",
				       "KVHOST_kv_ram_lock=no",
				       "KVHOST_RETENTION=long",
				       "KVHOSTD=/usr/sbin/kvhostd",
				       "PATH=/bin",
				       "KVHOST_NOTHING"};
	static char known[][48] = {
	    "KVHOST_SOCKET=/x",      "KVHOST_STATS=/y",  "KVHOST_SIM_SEEDS=9",
	    "KVHOST_TEST_SECONDS=1", "KVHOST_LONG=1",    "KVHOST_BUILD=/z",
	    "KVHOST_CORE_SPIN_US=1", "KVHOST_KEYS=1000", "KVHOST_CI_LOG=/l"};
	char *list[16] = {NULL};

	(void)state;
	assert_int_equal(from_text("{}"), 0);
	environment = list;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		list[i] = known[i];
	expect_warnings("");
	memset(list, 0, sizeof(list));
	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		list[i] = variables[i];
	expect_warnings("environment KVHOST_KV_RAM_BYTE" NO_KEY "; is KVHOST_KV_RAM_BYTES meant?\n"
			"environment KVHOST_SPIN_US" NO_KEY "; is KVHOST_CORE_SPIN_US meant?\n"
			"environment KVHOST_SOKET" NO_KEY "; is KVHOST_SOCKET meant?\n"
			"environment KVHOST_kv_ram_lock" NO_KEY "; is KVHOST_KV_RAM_LOCK meant?\n"
			"environment KVHOST_RETENTION" NO_KEY "\n");
	environment = NULL;
	expect_warnings("");
}

static void a_clamped_prefix_budget_is_a_warning_where_the_pages_are_known(void **state)
{
	char *text;

	(void)state;
	assert_int_equal(from_text("{\"pools\": [{\"name\": \"a\", \"pool_pages\": 128, "
				   "\"enable_prefix_caching\": true}, {\"name\": \"b\"}]}"),
			 0);
	text = printed(print_warnings);
	assert_string_equal(
	    text,
	    "pool a: prefix page budget clamped from 128 to 64 to reserve 64 request pages\n");
	free(text);
}

static void ram_that_no_pool_could_use_is_a_warning(void **state)
{
	(void)state;
	assert_int_equal(from_text("{\"kv_ram_bytes\": 4194304, \"pools\": [{\"name\": \"a\"}]}"),
			 0);
	expect_warnings(
	    "kv_ram_bytes: KV-RAM serves pools with enable_prefix_caching, and there is "
	    "none: 4194304 bytes are taken for nothing; 0 would leave them\n");
	assert_int_equal(from_text("{\"kv_ram_bytes\": 0, \"pools\": [{\"name\": \"a\"}]}"), 0);
	expect_warnings("");
	assert_int_equal(from_text("{\"pools\": [{\"name\": \"a\"}, {\"name\": \"b\", "
				   "\"enable_prefix_caching\": true}]}"),
			 0);
	expect_warnings("");
}

static void every_option_is_described_with_value_and_origin(void **state)
{
	char *text, *help = printed(config_print_help);
	json_t *root, *values, *first;

	(void)state;
	assert_int_equal(from_flags("--core-spin-us=9", "--pools-pool-bytes=null"), 0);
	text = config_describe_json(&config);
	assert_non_null(text);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	values = json_object_get(root, "values");
	assert_int_equal(json_array_size(values), OPTION_COUNT);
	first = json_array_get(values, OPTION_core_spin_us);
	assert_string_equal(json_string_value(json_object_get(first, "key")), "core.spin_us");
	assert_int_equal(json_integer_value(json_object_get(first, "value")), 9);
	assert_string_equal(json_string_value(json_object_get(first, "unit")), "us");
	assert_string_equal(json_string_value(json_object_get(first, "origin")),
			    "flag --core-spin-us");
	assert_non_null(strstr(text, "\"key\":\"pools[0].pool_bytes\",\"value\":null"));
	assert_non_null(strstr(help, "--pools-kv-cache-dtype=float16"));
	json_decref(root);
	free(text);
	free(help);
	assert_int_equal(from_flags("--pools-ram-floor-tokens=auto", "--core-spin-us=9"), 0);
	text = config_describe_json(&config);
	assert_non_null(text);
	assert_non_null(strstr(text, "\"key\":\"pools[0].ram_floor_tokens\",\"value\":\"auto\""));
	free(text);
}

static void the_manual_page_has_every_option_as_the_table_has_it(void **state)
{
	char path[600], page[65536];
	char *table = printed(config_print_manual);
	size_t bytes;
	FILE *in;

	(void)state;
	snprintf(path, sizeof(path), "%s/docs/man/kvhost.json.5", source_directory());
	in = fopen(path, "re");
	assert_non_null(in);
	bytes = fread(page, 1, sizeof(page) - 1, in);
	page[bytes] = 0;
	fclose(in);
	assert_non_null(strstr(page, table));
	free(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_clamped_prefix_budget_is_a_warning_where_the_pages_are_known),
	    cmocka_unit_test(a_variable_that_nobody_reads_is_a_warning),
	    cmocka_unit_test(ram_that_no_pool_could_use_is_a_warning),
	    cmocka_unit_test(every_option_is_described_with_value_and_origin),
	    cmocka_unit_test(the_manual_page_has_every_option_as_the_table_has_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
