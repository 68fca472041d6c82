/* SPDX-License-Identifier: Apache-2.0 */
/* test_config: the file, the environment and the flags. One thread; reads fixture files. */

#include "daemon/config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct config config; /* large: not on the stack */
static char error[CONFIG_ERROR_BYTES];

static int from_text(const char *text)
{
	int r;

	config_start(&config);
	r = config_take_text(&config, "f.json", text, strlen(text), error);
	return r ? r : config_finish(&config, error);
}

static int from_environment(const char *a, const char *b)
{
	char first[200], second[200];
	char *environment[] = {first, second, NULL};
	int r;

	snprintf(first, sizeof(first), "%s", a);
	snprintf(second, sizeof(second), "%s", b);
	config_start(&config);
	r = config_take_environment(&config, environment, error);
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

struct wrong {
	const char *text;
	const char *error;
};

static void check_wrong(int (*take)(const char *), const struct wrong *wrong, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(take(wrong[i].text), -EINVAL);
		assert_string_equal(error, wrong[i].error);
	}
}

#define SPIN    "accepted is a whole number from 0 to 1000000000 us"
#define WINDOW  "accepted is a size such as 8MiB, 8MB or 8388608 from 64KiB to 4GiB"
#define BOOLEAN "accepted is 1, true, yes, on or 0, false, no, off"

static void without_any_source_there_is_one_default_pool(void **state)
{
	char text[64];

	(void)state;
	config_start(&config);
	assert_int_equal(config_finish(&config, error), 0);
	assert_string_equal(config.runtime_directory, "/run/kvhost");
	assert_string_equal(config.state_directory, "/var/lib/kvhost");
	assert_int_equal(config.core.spin_us, 50);
	assert_int_equal(config.core.window_bytes, 8 << 20);
	assert_int_equal(config.core.log_level, 2);
	assert_int_equal(config.n_pools, 1);
	assert_string_equal(config.pools[0].name, "default");
	assert_true(config.pools[0].pool_bytes == 1ull << 30);
	assert_true(config.pools[0].pool_pages == CONFIG_NULL);
	assert_int_equal(config.pools[0].max_sequence_length, 131072);
	assert_true(config.pools[0].enable_prefix_caching);
	assert_true(config.pools[0].max_prefix_cache_pages == CONFIG_NULL);
	assert_true(config.pools[0].map);
	assert_int_equal(config.pools[0].kv_cache_dtype, KERNEL_FLOAT16);
	assert_int_equal(config.pools[0].default_deadline_us, 30000000);
	assert_int_equal(config.n_namespaces, 1);
	assert_int_equal(config.namespaces[0].uids.id[0], geteuid());
	config_origin_text(&config, &config.origin[OPTION_core_spin_us], text, sizeof(text));
	assert_string_equal(text, "default");
}

static void an_empty_list_of_pools_configures_none(void **state)
{
	(void)state;
	assert_int_equal(from_text("{\"pools\": []}"), 0);
	assert_int_equal(config.n_pools, 1);
	assert_string_equal(config.pools[0].name, "default");
}

static void what_the_file_says_is_taken_with_its_line(void **state)
{
	char text[64];

	(void)state;
	assert_int_equal(
	    from_text("{\n\"core\": {\"log_level\": \"debug\",\n\n\"spin_us\": 7,\n"
		      "\"window_bytes\": \"8MB\", \"require_hugepages\": true},\n"
		      "\"pools\": [\n{\"name\": \"a\"},\n{\"name\": \"b:\\\"\\\\\"\n}]}"),
	    -EINVAL);
	assert_int_equal(from_text("{\n\"core\": {\"log_level\": \"debug\",\n\n\"spin_us\": 7,\n"
				   "\"window_bytes\": \"8MB\", \"require_hugepages\": true},\n"
				   "\"pools\": [\n{\"name\": \"a\"},\n{\"name\":\n\"b\"\n}]}"),
			 0);
	assert_int_equal(config.core.spin_us, 7);
	assert_int_equal(config.core.window_bytes, 8000000);
	assert_true(config.core.require_hugepages);
	assert_int_equal(config.core.log_level, 4);
	assert_int_equal(config.n_pools, 2);
	assert_string_equal(config.pools[1].name, "b");
	config_origin_text(&config, &config.origin[OPTION_core_spin_us], text, sizeof(text));
	assert_string_equal(text, "f.json:4");
	config_origin_text(&config, &config.origin[OPTION_core_window_bytes], text, sizeof(text));
	assert_string_equal(text, "f.json:5");
	config_origin_text(&config, &config.pools[1].origin[OPTION_pools_name], text, sizeof(text));
	assert_string_equal(text, "f.json:8");
	config_origin_text(&config, &config.pools[1].origin[OPTION_pools_map], text, sizeof(text));
	assert_string_equal(text, "default");
}

static void a_pool_that_is_configured_has_the_defaults_of_a_pool(void **state)
{
	(void)state;
	assert_int_equal(from_text("{\"pools\": [{\"name\": \"a\"}]}"), 0);
	assert_true(config.pools[0].pool_bytes == CONFIG_NULL);
	assert_int_equal(config.pools[0].max_sequence_length, 4096);
	assert_int_equal(config.pools[0].max_prefix_cache_pages, 128);
	assert_int_equal(config.pools[0].kv_page_size, 64);
	assert_int_equal(config.pools[0].lanes, 8);
	assert_false(config.pools[0].enable_prefix_caching);
	assert_false(config.pools[0].map);
}

static void the_least_ram_is_accepted(void **state)
{
	(void)state;
	assert_int_equal(from_text("{\"kv_ram_bytes\": 2102016}"), 0);
	assert_int_equal(from_text("{\"kv_ram_bytes\": \"8MiB\", \"kv_ram_page_bytes\": \"8MiB\"}"),
			 0);
	assert_int_equal(from_text("{\"kv_ram_bytes\": 0}"), 0);
}

static void a_floor_is_a_number_or_found_by_itself(void **state)
{
	(void)state;
	assert_int_equal(from_text("{\"pools\": [{\"name\": \"a\"}]}"), 0);
	assert_int_equal(config.pools[0].ram_floor_tokens, 1024);
	assert_int_equal(
	    from_text("{\"pools\": [{\"name\": \"a\", \"ram_floor_tokens\": \"auto\"}]}"), 0);
	assert_true(config.pools[0].ram_floor_tokens == CONFIG_AUTO);
	assert_int_equal(from_environment("KVHOST_POOLS_RAM_FLOOR_TOKENS=auto", "PATH=/bin"), 0);
	assert_true(config.pools[0].ram_floor_tokens == CONFIG_AUTO);
	assert_int_equal(from_environment("KVHOST_POOLS_RAM_FLOOR_TOKENS=64", "PATH=/bin"), 0);
	assert_int_equal(config.pools[0].ram_floor_tokens, 64);
}

static const struct wrong wrong_files[] = {
    {"{\n\"cor\": 1}", "f.json:2: cor: no such key, accepted are the keys in kvhostd --help"},
    {"{\"core\": {\n\"spin\": 1}}",
     "f.json:2: core.spin: no such key, accepted are the keys in kvhostd --help"},
    {"{\"core\": {\"name\": \"x\"}}",
     "f.json:1: core.name: no such key, accepted are the keys in kvhostd --help"},
    {"{\"core\": {\"spin_us\": 1,\n\"spin_us\": 2}}",
     "f.json:2: spin_us: given twice, accepted is once"},
    {"{\"core\": {\"spin_us\": \"1\"}}", "f.json:1: core.spin_us: a text is the wrong type, " SPIN},
    {"{\"core\": {\"spin_us\": -1}}", "f.json:1: core.spin_us: -1 is out of bounds, " SPIN},
    {"{\"core\": {\"spin_us\": 1e9}}", "f.json:1: core.spin_us: a number with a fraction "
				       "or an exponent is the wrong type, " SPIN},
    {"{\"core\": {\"spin_us\": 1000000001}}",
     "f.json:1: core.spin_us: 1000000001 is out of bounds, " SPIN},
    {"{\"core\": {\"spin_us\": null}}", "f.json:1: core.spin_us: null is not a value here, " SPIN},
    {"{\"core\": {\"spin_us\": {\"a\": 1}}}",
     "f.json:1: core.spin_us: an object is the wrong type, " SPIN},
    {"{\"core\": {\"spin_us\": true}}",
     "f.json:1: core.spin_us: a boolean is the wrong type, " SPIN},
    {"{\"core\": {\"submission_slots\": 100}}",
     "f.json:1: core.submission_slots: 100 is not a power of two, accepted is a power of "
     "two "
     "from 16 to 4096 entries"},
    {"{\"core\": {\"window_bytes\": \"8gb\"}}",
     "f.json:1: core.window_bytes: \"8gb\" is not a size, " WINDOW},
    {"{\"core\": {\"window_bytes\": \"8 MiB\"}}",
     "f.json:1: core.window_bytes: \"8 MiB\" is not a size, " WINDOW},
    {"{\"core\": {\"window_bytes\": \"-1\"}}",
     "f.json:1: core.window_bytes: \"-1\" is not a size, " WINDOW},
    {"{\"core\": {\"window_bytes\": \"1e9\"}}",
     "f.json:1: core.window_bytes: \"1e9\" is not a size, " WINDOW},
    {"{\"core\": {\"window_bytes\": \"\"}}",
     "f.json:1: core.window_bytes: \"\" is not a size, " WINDOW},
    {"{\"core\": {\"window_bytes\": \"99999999TiB\"}}",
     "f.json:1: core.window_bytes: \"99999999TiB\" is out of bounds, " WINDOW},
    {"{\"core\": {\"window_bytes\": \"1kB\"}}",
     "f.json:1: core.window_bytes: 1000 is out of bounds, " WINDOW},
    {"{\"kv_staging_bytes\": \"7MiB\"}",
     "f.json:1: kv_staging_bytes: 7340032 is less than four windows of 2 MiB, accepted is at least "
     "8388608, or 0"},
    {"{\"kv_ram_bytes\": \"1MiB\"}",
     "f.json:1: kv_ram_bytes: 1048576 leaves less than a frame of 2097152 bytes for pages, "
     "beside what they are known by, accepted is at least 2102016, or 0 for none"},
    {"{\"kv_ram_bytes\": 2102015}",
     "f.json:1: kv_ram_bytes: 2102015 leaves less than a frame of 2097152 bytes for pages, "
     "beside what they are known by, accepted is at least 2102016, or 0 for none"},
    {"{\"kv_ram_page_bytes\": \"8MiB\",\n\"kv_ram_bytes\": 1}",
     "f.json:2: kv_ram_bytes: 1 leaves less than a frame of 2097152 bytes for pages, beside "
     "what they are known by, accepted is at least 8388608, or 0 for none"},
    {"{\"kv_ram_bytes\": \"64MiB\", \"kv_ram_page_bytes\": \"128MiB\"}",
     "f.json:1: kv_ram_page_bytes: 134217728 is above kv_ram_bytes, accepted is at most 67108864, "
     "or kv_ram_bytes 0"},
    {"{\"core\": {\"window_bytes\": \"2GiB\"}}",
     "f.json:1: core.window_bytes: 2147483648 is above core.window_bytes_max, accepted is "
     "at "
     "most 1073741824"},
    {"{\"core\": {\"require_hugepages\": 2}}",
     "f.json:1: core.require_hugepages: 2 is not a boolean, " BOOLEAN},
    {"{\"core\": {\"require_hugepages\": \"maybe\"}}",
     "f.json:1: core.require_hugepages: \"maybe\" is not a boolean, " BOOLEAN},
    {"{\"core\": {\"log_level\": \"loud\"}}",
     "f.json:1: core.log_level: \"loud\" is none of its words, accepted is one of error, "
     "warning, notice, info, debug"},
    {"{\"core\": 3}", "f.json:1: core: a whole number is the wrong type, accepted is an object"},
    {"{\"runtime_directory\": \"run\"}", "f.json:1: runtime_directory: \"run\" is not an "
					 "absolute path, accepted is an absolute "
					 "path of at most 90 bytes"},
    {"{\"runtime_directory\": \"/a\\nb\"}", "f.json:1: runtime_directory: character 3 is "
					    "not allowed, accepted is an absolute path "
					    "of at most 90 bytes"},
    {"[]", "f.json:1: the file: an array is the wrong type, accepted is an object"},
    {"", "f.json:1: the file: '[' or '{' expected near end of file, accepted is one JSON "
	 "object"},
};

static void the_file_is_taken_whole_or_refused_with_line_key_and_what_is_accepted(void **state)
{
	(void)state;
	check_wrong(from_text, wrong_files, sizeof(wrong_files) / sizeof(*wrong_files));
}

static const struct wrong wrong_pools[] = {
    {"{\"pools\": {}}",
     "f.json:1: pools: an object is the wrong type, accepted is an array of objects"},
    {"{\"pools\":\n[1]}",
     "f.json:1: pools[0]: a whole number is the wrong type, accepted is an object"},
    {"{\"pools\": [{\"map\": true}]}",
     "f.json:1: pools[0]: has no name, accepted is an object with a name"},
    {"{\"pools\": [{}]}", "f.json:1: pools[0]: has no name, accepted is an object with a name"},
    {"{\"pools\": [{\"name\": \"\"}]}", "f.json:1: pools[0].name: a text of 0 bytes is out "
					"of bounds, accepted is a text of 1 to "
					"31 of the characters A-Z a-z 0-9 . _ -"},
    {"{\"pools\": [{\"name\": \"a b\"}]}", "f.json:1: pools[0].name: character 2 is not "
					   "allowed, accepted is a text of 1 to 31 of "
					   "the characters A-Z a-z 0-9 . _ -"},
    {"{\"pools\": [{\"name\": \"a\"},\n{\"name\": \"a\"}]}",
     "f.json:2: pools[1].name: \"a\" is the name of pools[0] too, accepted is a name of "
     "its "
     "own for each pool"},
    {"{\"pools\": [{\"name\": \"a\", \"kv_cache_dtype\": \"int8\"}]}",
     "f.json:1: pools[0].kv_cache_dtype: \"int8\" is not production-ready, use a dense "
     "format: float32, float16, bfloat16"},
    {"{\"pools\": [{\"name\": \"a\", \"kv_cache_dtype\": \"q4\"}]}",
     "f.json:1: pools[0].kv_cache_dtype: \"q4\" is not production-ready, use a dense "
     "format: float32, float16, bfloat16"},
    {"{\"pools\": [{\"name\": \"a\", \"kv_cache_dtype\": \"half\"}]}",
     "f.json:1: pools[0].kv_cache_dtype: \"half\" is not a known format, accepted is one "
     "of "
     "float32, float16, bfloat16"},
    {"{\"pools\": [{\"name\": \"a\", \"kv_page_size\": 48}]}",
     "f.json:1: pools[0].kv_page_size: 48 is not a power of two, accepted is a power of "
     "two "
     "from 16 to 64 tokens"},
    {"{\"pools\": [{\"name\": \"a\", \"block_size\": 128}]}",
     "f.json:1: pools[0].block_size: 128 is out of bounds, accepted is a power of two from "
     "16 to 64 tokens"},
    {"{\"pools\": [{\"name\": \"a\",\n\"kv_page_size\": 16,\n\"block_size\": 16}]}",
     "f.json:3: pools[0].block_size: kv_page_size was given on line 2 under its other "
     "name, "
     "accepted is one of the two"},
    {"{\"pools\": [{\"name\": \"a\", \"enable_prefix_caching\": true,\n"
     "\"max_prefix_cache_pages\": 0}]}",
     "f.json:2: pools[0].max_prefix_cache_pages: 0 leaves prefix caching no page, accepted "
     "is more than 0, null, or enable_prefix_caching false"},
    {"{\"pools\": [{\"name\": \"a\", \"retained_order\": \"lfu\"}]}",
     "f.json:1: pools[0].retained_order: \"lfu\" is none of its words, accepted is one of lru, "
     "learned"},
    {"{\"pools\": [{\"name\": \"a\", \"pool_pages\": 100000000, \"shadow_lru\": true,\n"
     "\"enable_prefix_caching\": true, \"max_prefix_cache_pages\": null}]}",
     "f.json:1: pools[0].pool_pages: shadow_lru would take 4273799168 bytes for a prefix cache of "
     "99999936 pages, at most 1073741824 are accepted; fewer pool_pages, shadow_lru false, a "
     "smaller max_prefix_cache_pages or enable_prefix_caching false would change it"},
    {"{\"pools\": [{\"name\": \"a\", \"device\": \"cuda\"}]}",
     "f.json:1: pools[0].device: \"cuda\" is none of its words, accepted is one of cpu"},
    {"{\"pools\": [{\"name\": \"a\", \"pool_bytes\": \"null\"}]}",
     "f.json:1: pools[0].pool_bytes: \"null\" is a text, accepted is a size such as 8MiB, "
     "8MB or 8388608 from 64KiB to 1024TiB, or null"},
    {"{\"pools\": [{\"name\": \"a\", \"ram_floor_tokens\": \"512\"}]}",
     "f.json:1: pools[0].ram_floor_tokens: a text is the wrong type, accepted is a whole number "
     "from 0 to 16777216 tokens, or auto"},
    {"{\"pools\": [{\"name\": \"a\", \"kv_page_size\": \"auto\"}]}",
     "f.json:1: pools[0].kv_page_size: a text is the wrong type, accepted is a power of two from "
     "16 to 64 tokens"},
    {"{\"pools\": [{\"name\": \"a\",\n\"pool_pages\": 64,\n"
     "\"enable_prefix_caching\": true}]}",
     "f.json:2: pools[0].pool_pages: prefix caching has no room: the pool has 64 pages and "
     "64 of them are reserved for one request of max_sequence_length 4096; more pool_pages, "
     "enable_prefix_caching false or a smaller max_sequence_length would change it"},
    {"{\"pools\": [{\"name\": \"a\", \"pool_pages\": 63}]}",
     "f.json:1: pools[0].pool_pages: pool_pages is 63, one sequence of max_sequence_length "
     "4096 needs 64 pages, 1 are missing; more pool_pages or a smaller max_sequence_length "
     "would change it"},
};

static void pools_are_taken_whole_or_refused(void **state)
{
	(void)state;
	check_wrong(from_text, wrong_pools, sizeof(wrong_pools) / sizeof(*wrong_pools));
}

static void more_than_64_pools_are_refused(void **state)
{
	char text[4096] = "{\"pools\": [{}";

	(void)state;
	for (int i = 1; i < 65; i++)
		strncat(text, ",{}", sizeof(text) - strlen(text) - 1);
	strncat(text, "]}", sizeof(text) - strlen(text) - 1);
	assert_int_equal(from_text(text), -EINVAL);
	assert_string_equal(error,
			    "f.json:1: pools: 65 pools are too many, accepted are at most 64");
}

static void a_broken_file_is_refused_with_the_line(void **state)
{
	(void)state;
	assert_int_equal(from_text("{\n\"core\": {\n}"), -EINVAL);
	assert_non_null(strstr(error, "f.json:3: the file: "));
	assert_int_equal(from_text("{} x"), -EINVAL);
	assert_non_null(strstr(error, "f.json:1: the file: "));
	assert_int_equal(from_text("{\"core\": {\"spin_us\": 99999999999999999999}}"), -EINVAL);
	assert_non_null(strstr(error, "f.json:1: the file: "));
}

static void booleans_are_the_eight_words_in_any_case(void **state)
{
	static const char *const yes[] = {"1", "true", "yes", "on", "TRUE", "Yes", "oN"};
	static const char *const no[] = {"0", "false", "no", "off", "FALSE", "No", "oFF"};
	char variable[100];

	(void)state;
	for (size_t i = 0; i < 7; i++) {
		snprintf(variable, sizeof(variable), "KVHOST_POOLS_MAP=%s", no[i]);
		assert_int_equal(from_environment(variable, ""), 0);
		assert_false(config.pools[0].map);
		snprintf(variable, sizeof(variable), "KVHOST_CORE_REQUIRE_HUGEPAGES=%s", yes[i]);
		assert_int_equal(from_environment(variable, ""), 0);
		assert_true(config.core.require_hugepages);
	}
	assert_int_equal(from_environment("KVHOST_CORE_REQUIRE_HUGEPAGES=2", ""), -EINVAL);
	assert_string_equal(error, "environment KVHOST_CORE_REQUIRE_HUGEPAGES: "
				   "core.require_hugepages: \"2\" is not a boolean, " BOOLEAN);
	assert_int_equal(from_environment("KVHOST_CORE_REQUIRE_HUGEPAGES=", ""), -EINVAL);
	assert_int_equal(from_environment("KVHOST_CORE_REQUIRE_HUGEPAGES= 1", ""), -EINVAL);
}

static void the_environment_is_taken_whole_or_refused(void **state)
{
	(void)state;
	assert_int_equal(from_environment("KVHOST_CORE_SPIN=1", ""), -EINVAL);
	assert_string_equal(error, "environment KVHOST_CORE_SPIN: no such key: accepted are the "
				   "keys in kvhostd --help");
	assert_int_equal(from_environment("KVHOST_CORE_SPIN_US=+1", ""), -EINVAL);
	assert_string_equal(error, "environment KVHOST_CORE_SPIN_US: core.spin_us: \"+1\" is not a "
				   "whole number, " SPIN);
	assert_int_equal(from_environment("KVHOST_CORE_SPIN_US=99999999999999999999", ""), -EINVAL);
	assert_int_equal(from_environment("KVHOST_CORE_SPIN_US=1us", ""), -EINVAL);
	assert_int_equal(
	    from_environment("KVHOST_POOLS_BLOCK_SIZE=16", "KVHOST_POOLS_KV_PAGE_SIZE=16"),
	    -EINVAL);
	assert_string_equal(error, "environment KVHOST_POOLS_KV_PAGE_SIZE: pools.kv_page_size: "
				   "given twice, accepted is once");
	assert_int_equal(from_environment("KVHOST_SOCKET=/x", "KVHOST_STATS=/y"), 0);
	assert_int_equal(from_environment("KVHOST_POOLS_POOL_PAGES=null", "PATH=/bin"), 0);
}

static void flags_are_taken_whole_or_refused(void **state)
{
	(void)state;
	assert_int_equal(from_flags("--core-spin-us=9", "--runtime-directory=/tmp/x"), 0);
	assert_int_equal(config.core.spin_us, 9);
	assert_string_equal(config.runtime_directory, "/tmp/x");
	assert_int_equal(from_flags("--core-spin-us", "8"), 0);
	assert_int_equal(config.core.spin_us, 8);

	assert_int_equal(from_flags("--core-spin-us", ""), -EINVAL);
	assert_string_equal(error,
			    "command line: --core-spin-us: no value, accepted is --NAME=VALUE");
	assert_int_equal(from_flags("--core-spin=1", ""), -EINVAL);
	assert_string_equal(error,
			    "command line: --core-spin=1: no such flag, accepted are those in "
			    "kvhostd --help");
	assert_int_equal(from_flags("--core_spin_us=1", ""), -EINVAL);
	assert_int_equal(from_flags("core-spin-us=1", ""), -EINVAL);
	assert_int_equal(from_flags("--", ""), -EINVAL);
	assert_int_equal(from_flags("--help=yes", ""), -EINVAL);
	assert_int_equal(from_flags("--core-spin-us=1", "--core-spin-us=2"), -EINVAL);
	assert_string_equal(error,
			    "flag --core-spin-us: core.spin_us: given twice, accepted is once");
	assert_int_equal(from_flags("--core-window-bytes=1e9", ""), -EINVAL);
	assert_string_equal(error, "flag --core-window-bytes: core.window_bytes: \"1e9\" is not a "
				   "size, " WINDOW);
}

/* Writes `text` to a file of its own in `directory`. */
static void make_file(char *directory, char path[64], const char *text)
{
	FILE *out;

	assert_non_null(mkdtemp(directory));
	snprintf(path, 64, "%s/c.json", directory);
	out = fopen(path, "we");
	assert_non_null(out);
	assert_true(fputs(text, out) >= 0);
	assert_int_equal(fclose(out), 0);
}

static void flags_go_over_the_environment_and_that_over_the_file(void **state)
{
	char directory[] = "/tmp/kvhost-config-XXXXXX", path[64], flag[100], text[128],
	     expected[80];
	char program[] = "kvhostd", spin[] = "--core-spin-us=3", check[] = "--check-config";
	char *argv[] = {program, flag, spin, check, NULL};
	char a[] = "KVHOST_CORE_SPIN_US=2", b[] = "KVHOST_CORE_STEP_TTL_S=2",
	     c[] = "KVHOST_POOLS_BLOCK_SIZE=32";
	char *environment[] = {a, b, c, NULL};
	enum config_action action;

	(void)state;
	make_file(directory, path,
		  "{\"core\": {\"spin_us\": 1, \"step_ttl_s\": 1,\n\"session_limit\": 1},\n"
		  "\"pools\": [{\"name\": \"a\", \"block_size\": 16}, {\"name\": \"b\"}]}");
	snprintf(flag, sizeof(flag), "--config=%s", path);
	assert_int_equal(config_load(&config, 4, argv, environment, &action, error), 0);
	assert_int_equal(action, CONFIG_CHECK);
	assert_int_equal(config.core.spin_us, 3);
	assert_int_equal(config.core.step_ttl_s, 2);
	assert_int_equal(config.core.session_limit, 1);
	assert_int_equal(config.pools[0].kv_page_size, 32);
	assert_int_equal(config.pools[1].kv_page_size, 32);

	config_origin_text(&config, &config.origin[OPTION_core_spin_us], text, sizeof(text));
	assert_string_equal(text, "flag --core-spin-us");
	config_origin_text(&config, &config.origin[OPTION_core_step_ttl_s], text, sizeof(text));
	assert_string_equal(text, "environment KVHOST_CORE_STEP_TTL_S");
	config_origin_text(&config, &config.origin[OPTION_core_session_limit], text, sizeof(text));
	snprintf(expected, sizeof(expected), "%s:2", path);
	assert_string_equal(text, expected);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(directory), 0);
}

static void a_file_that_was_asked_for_must_be_there(void **state)
{
	char program[] = "kvhostd", config_flag[] = "--config", missing[] = "/nonexistent/c.json";
	char *argv[] = {program, config_flag, missing, NULL};
	enum config_action action;

	(void)state;
	assert_int_equal(config_load(&config, 3, argv, NULL, &action, error), -EINVAL);
	assert_string_equal(error,
			    "/nonexistent/c.json: cannot be opened: No such file or directory");
}

static void help_and_version_look_at_nothing_else(void **state)
{
	char program[] = "kvhostd", config_flag[] = "--config=/nonexistent", help[] = "--help";
	char version[] = "--version";
	char *argv[] = {program, config_flag, help, NULL};
	enum config_action action;

	(void)state;
	assert_int_equal(config_load(&config, 3, argv, NULL, &action, error), 0);
	assert_int_equal(action, CONFIG_HELP);
	argv[2] = version;
	assert_int_equal(config_load(&config, 3, argv, NULL, &action, error), 0);
	assert_int_equal(action, CONFIG_VERSION);
}

static void a_pool_without_a_deadline_has_that_of_the_core_and_its_origin(void **state)
{
	char text[64];

	(void)state;
	assert_int_equal(
	    from_text("{\"core\":\n{\"default_deadline_us\": 5}, \"pools\": [{\"name\": "
		      "\"a\"}, {\"name\": \"b\", \"default_deadline_us\": 6}]}"),
	    0);
	assert_int_equal(config.pools[0].default_deadline_us, 5);
	assert_int_equal(config.pools[1].default_deadline_us, 6);
	config_origin_text(&config, &config.pools[0].origin[OPTION_pools_default_deadline_us], text,
			   sizeof(text));
	assert_string_equal(text, "f.json:2");
}

static const char *source_directory(void)
{
	const char *directory = getenv("srcdir");

	return directory ? directory : ".";
}

static void load_fixture(const char *name)
{
	char program[] = "kvhostd", flag[600];
	char *argv[] = {program, flag, NULL};
	enum config_action action;

	snprintf(flag, sizeof(flag), "--config=%s/tests/golden/config/%s", source_directory(),
		 name);
	assert_int_equal(config_load(&config, 2, argv, NULL, &action, error), 0);
}

static void old_files_load_and_get_the_defaults(void **state)
{
	(void)state;
	load_fixture("none.json");
	assert_string_equal(config.pools[0].name, "default");

	load_fixture("pool-without-new-keys.json");
	assert_int_equal(config.pools[0].kv_cache_dtype, KERNEL_FLOAT16);
	assert_int_equal(config.pools[0].kv_page_size, 64);
	assert_int_equal(config.pools[0].max_sequence_length, 4096);
	assert_false(config.pools[0].enable_prefix_caching);

	load_fixture("some.json");
	assert_int_equal(config.pools[0].kv_cache_dtype, KERNEL_BFLOAT16);
	assert_int_equal(config.pools[0].kv_page_size, 16);
	assert_int_equal(config.pools[0].max_sequence_length, 4096);
	assert_int_equal(config.pools[0].max_prefix_cache_pages, 128);
	assert_true(config.pools[0].enable_prefix_caching);

	load_fixture("all.json");
	assert_int_equal(config.n_pools, 2);
	assert_int_equal(config.pools[0].kv_cache_dtype, KERNEL_FLOAT32);
	assert_int_equal(config.pools[0].kv_page_size, 32);
	assert_int_equal(config.pools[0].max_sequence_length, 8192);
	assert_int_equal(config.pools[0].max_prefix_cache_pages, 256);
	assert_true(config.pools[1].max_prefix_cache_pages == CONFIG_NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(without_any_source_there_is_one_default_pool),
	    cmocka_unit_test(an_empty_list_of_pools_configures_none),
	    cmocka_unit_test(what_the_file_says_is_taken_with_its_line),
	    cmocka_unit_test(a_pool_that_is_configured_has_the_defaults_of_a_pool),
	    cmocka_unit_test(the_least_ram_is_accepted),
	    cmocka_unit_test(a_floor_is_a_number_or_found_by_itself),
	    cmocka_unit_test(the_file_is_taken_whole_or_refused_with_line_key_and_what_is_accepted),
	    cmocka_unit_test(pools_are_taken_whole_or_refused),
	    cmocka_unit_test(more_than_64_pools_are_refused),
	    cmocka_unit_test(a_broken_file_is_refused_with_the_line),
	    cmocka_unit_test(booleans_are_the_eight_words_in_any_case),
	    cmocka_unit_test(the_environment_is_taken_whole_or_refused),
	    cmocka_unit_test(flags_are_taken_whole_or_refused),
	    cmocka_unit_test(flags_go_over_the_environment_and_that_over_the_file),
	    cmocka_unit_test(a_file_that_was_asked_for_must_be_there),
	    cmocka_unit_test(help_and_version_look_at_nothing_else),
	    cmocka_unit_test(a_pool_without_a_deadline_has_that_of_the_core_and_its_origin),
	    cmocka_unit_test(old_files_load_and_get_the_defaults),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
