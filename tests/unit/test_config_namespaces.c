/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_config_namespaces: who may use what, as the operator writes it down. One thread; reads the
 * host's users and groups.
 */

#include "daemon/config.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/secret.h"

static struct config config; /* large: not on the stack */
static char error[CONFIG_ERROR_BYTES];

static int from_text(const char *text)
{
	int r;

	config_start(&config);
	r = config_take_text(&config, "f.json", text, strlen(text), error);
	return r ? r : config_finish(&config, error);
}

static void without_any_there_is_one_of_the_user_who_starts_the_daemon(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(from_text(i ? "{\"namespaces\": []}" : "{}"), 0);
		assert_false(config.has_namespaces);
		assert_int_equal(config.n_namespaces, 1);
		assert_string_equal(config.namespaces[0].name, "default");
		assert_int_equal(config.namespaces[0].uids.n, 1);
		assert_int_equal(config.namespaces[0].uids.id[0], geteuid());
		assert_int_equal(config.namespaces[0].gids.n, 0);
		assert_int_equal(config.namespaces[0].rights, CONFIG_RIGHTS_ALL);
		assert_true(config.pools[0].map);
		assert_true(config.pools[0].hidden_from == 0);
	}
}

static void what_the_file_says_is_taken(void **state)
{
	char place[64];

	(void)state;
	assert_int_equal(
	    from_text(
		"{\"pools\": [{\"name\": \"p\", \"namespaces\": [\"b\"]}, {\"name\": \"q\"}],\n"
		"\"namespaces\": [{\"name\": \"a\", \"uids\": [7, 4294967293], \"gids\": [0],\n"
		"\"rights\": [\"admin\", \"map\"], \"managed_prefix_cache_salt\": \"s t\",\n"
		"\"max_pages\": 10, \"guaranteed_pages\": 10, \"max_bytes\": \"64MiB\",\n"
		"\"max_sessions\": 3, \"max_sequences\": 4},\n"
		"{\"name\": \"b\", \"gids\": [5]}]}"),
	    0);
	assert_true(config.has_namespaces);
	assert_int_equal(config.n_namespaces, 2);
	assert_int_equal(config.namespaces[0].uids.n, 2);
	assert_int_equal(config.namespaces[0].uids.id[0], 7);
	assert_int_equal(config.namespaces[0].uids.id[1], 4294967293u);
	assert_int_equal(config.namespaces[0].gids.n, 1);
	assert_int_equal(config.namespaces[0].gids.id[0], 0);
	assert_int_equal(config.namespaces[0].rights, CONFIG_RIGHT_MAP | CONFIG_RIGHT_ADMIN);
	assert_string_equal(config.namespaces[0].managed_prefix_cache_salt.text, "s t");
	assert_int_equal(config.namespaces[0].max_pages, 10);
	assert_int_equal(config.namespaces[0].guaranteed_pages, 10);
	assert_int_equal(config.namespaces[0].max_bytes, 64 << 20);
	assert_int_equal(config.namespaces[0].max_sessions, 3);
	assert_int_equal(config.namespaces[0].max_sequences, 4);
	assert_int_equal(config.namespaces[1].rights,
			 CONFIG_RIGHT_ATTACH | CONFIG_RIGHT_INTERACTIVE);
	assert_false(config.namespaces[1].managed_prefix_cache_salt.is_set);
	assert_true(config.namespaces[1].max_pages == CONFIG_NULL);
	assert_true(config.namespaces[1].max_bytes == CONFIG_NULL);
	assert_true(config.pools[0].hidden_from == ~2ull);
	assert_true(config.pools[1].hidden_from == 0);
	config_origin_text(&config, &config.namespaces[0].origin[OPTION_namespaces_max_pages],
			   place, sizeof(place));
	assert_string_equal(place, "f.json:4");
	config_origin_text(&config, &config.namespaces[1].origin[OPTION_namespaces_gids], place,
			   sizeof(place));
	assert_string_equal(place, "f.json:6");
}

static void users_and_groups_are_looked_up_by_name(void **state)
{
	const struct passwd *user = getpwuid(geteuid());
	const struct group *group;
	char text[512], user_name[64], group_name[64];

	(void)state;
	if (!user)
		skip();
	snprintf(user_name, sizeof(user_name), "%s", user->pw_name);
	group = getgrgid(getegid());
	if (!group)
		skip();
	snprintf(group_name, sizeof(group_name), "%s", group->gr_name);
	snprintf(text, sizeof(text),
		 "{\"namespaces\": [{\"name\": \"a\", \"uids\": [\"%s\", 77], \"gids\": [\"%s\"]}],"
		 "\"pools\": [{\"name\": \"p\"}]}",
		 user_name, group_name);
	assert_int_equal(from_text(text), 0);
	assert_int_equal(config.namespaces[0].uids.id[0], geteuid());
	assert_int_equal(config.namespaces[0].uids.id[1], 77);
	assert_int_equal(config.namespaces[0].gids.id[0], getegid());
}

#define POOL "\"pools\": [{\"name\": \"p\"}]"
#define NS   "f.json:1: namespaces[0]."
#define USERS                                                                                      \
	"accepted is an array of at most 64 different users, each a name or a number up to "       \
	"4294967293, save 65534"
#define GROUPS                                                                                     \
	"accepted is an array of at most 64 different groups, each a name or a number up to "      \
	"4294967293, save 65534"
#define RIGHTS    "accepted is an array of some of attach, map, interactive, admin"
#define SALT      "accepted is a text of 1 to 255 bytes, or null"
#define ONE(keys) "{" POOL ", \"namespaces\": [{\"name\": \"a\", \"uids\": [1], " keys "}]}"

struct wrong {
	const char *text;
	const char *error;
};

static const struct wrong wrong[] = {
    {"{\"namespaces\": {}}",
     "f.json:1: namespaces: an object is the wrong type, accepted is an array of objects"},
    {"{\"namespaces\": [3]}",
     "f.json:1: namespaces[0]: a whole number is the wrong type, accepted is an object"},
    {"{\n\"namespaces\": [{}]}",
     "f.json:2: namespaces[0]: has no name, accepted is an object with a name"},
    {"{\n\"namespaces\": [{\n\"uids\": [1]}]}",
     "f.json:3: namespaces[0]: has no name, accepted is an object with a name"},
    {"{" POOL ", \"namespaces\": [{\"name\": \"a\"}]}",
     NS "uids: neither uids nor gids name anybody who may use it, accepted is at least one user "
	"or group"},
    {"{" POOL ",\n\"namespaces\": [{\"name\": \"a\", \"uids\": [1]},\n{\"name\": \"a\", "
     "\"uids\": [1]}]}",
     "f.json:3: namespaces[1].name: \"a\" is the name of namespaces[0] too, accepted is a name of "
     "its own for each namespace"},
    {ONE("\"salt\": \"x\""), NS "salt: no such key, accepted are the keys in kvhostd --help"},
    {ONE("\"gids\": [\"no-such-group-here\"]"),
     NS "gids: this host has no group \"no-such-group-here\", " GROUPS},
    {"{\"namespaces\": [{\"name\": \"a\", \"uids\": [\"no-such-user-here\"]}]}",
     NS "uids: this host has no user \"no-such-user-here\", " USERS},
    {"{\"namespaces\": [{\"name\": \"a\", \"uids\": [65534]}]}", NS "uids: 65534 is none, " USERS},
    {"{\"namespaces\": [{\"name\": \"a\", \"uids\": [4294967294]}]}",
     NS "uids: 4294967294 is none, " USERS},
    {"{\"namespaces\": [{\"name\": \"a\", \"uids\": [-1]}]}", NS "uids: item 1 is -1, " USERS},
    {"{\"namespaces\": [{\"name\": \"a\", \"uids\": [1, 2.5]}]}",
     NS "uids: item 2 is a number with a fraction or an exponent, " USERS},
    {"{\"namespaces\": [{\"name\": \"a\", \"uids\": [1, 1]}]}",
     NS "uids: 1 is there twice, " USERS},
    {"{\"namespaces\": [{\"name\": \"a\", \"uids\": 1}]}",
     NS "uids: a whole number is the wrong type, " USERS},
    {ONE("\"rights\": [\"attach\", \"root\"]"),
     NS "rights: \"root\" is none of its words, " RIGHTS},
    {ONE("\"rights\": [\"attach\", \"attach\"]"), NS "rights: \"attach\" is there twice, " RIGHTS},
    {ONE("\"rights\": [1]"), NS "rights: item 1 is 1, " RIGHTS},
    {ONE("\"managed_prefix_cache_salt\": \"\""),
     NS "managed_prefix_cache_salt: a text of 0 bytes is out of bounds, " SALT},
    {ONE("\"managed_prefix_cache_salt\": 5"),
     NS "managed_prefix_cache_salt: a whole number is the wrong type, " SALT},
    {ONE("\"managed_prefix_cache_salt\": \"null\""),
     NS "managed_prefix_cache_salt: \"null\" is a text, " SALT},
    {ONE("\"max_pages\": 0"), NS "max_pages: 0 is out of bounds, accepted is a whole number from "
				 "1 to 4294967294 pages, or null"},
    {ONE("\"max_sessions\": 0"), NS "max_sessions: 0 is out of bounds, accepted is a whole number "
				    "from 1 to 65536 sessions, or null"},
    {ONE("\"max_sequences\": 0"), NS "max_sequences: 0 is out of bounds, accepted is a whole "
				     "number from 1 to 16777216 sequences, or null"},
    {ONE("\"max_bytes\": 0"), NS "max_bytes: 0 is out of bounds, accepted is a size such as 8MiB, "
				 "8MB or 8388608 from 1MiB to 1TiB, or null"},
    {ONE("\"max_pages\": 4, \"guaranteed_pages\": 5"),
     NS "guaranteed_pages: 5 is above max_pages, accepted is at most 4"},
    {"{\"pools\": [{\"name\": \"p\", \"namespaces\": [\"a\", \"c\"]}], \"namespaces\": [{\"name\": "
     "\"a\", \"uids\": [1]}]}",
     "f.json:1: pools[0].namespaces: \"c\" is no namespace, accepted are names of the array "
     "namespaces"},
    {"{\"pools\": [{\"name\": \"p\", \"namespaces\": [\"a\", \"a\"]}]}",
     "f.json:1: pools[0].namespaces: \"a\" is there twice, accepted is an array of at most 64 "
     "different names of the array namespaces"},
    {"{\"pools\": [{\"name\": \"p\", \"namespaces\": [\"a b\"]}]}",
     "f.json:1: pools[0].namespaces: a name with character 2 is none, accepted is an array of at "
     "most 64 different names of the array namespaces"},
    {"{\"pools\": [{\"name\": \"p\", \"map\": true}],\n\"namespaces\": [{\"name\": \"a\", "
     "\"uids\": [1]}, {\"name\": \"b\", \"uids\": [2]}]}",
     "f.json:1: pools[0].map: true, but pool p is of the namespaces a and b, accepted is map "
     "false, or exactly one name in pools.namespaces"},
    {"{\"pools\": [{\"name\": \"p\", \"enable_prefix_caching\": true, \"namespaces\": [\"b\"]}],\n"
     "\"namespaces\": [{\"name\": \"a\", \"uids\": [1]},\n{\"uids\": [2],\n\"name\": \"b\"}]}",
     "f.json:4: namespaces[1].managed_prefix_cache_salt: namespace b has none, but pool p has "
     "prefix caching on, accepted is a text of 1 to 255 bytes"},
};

static void what_is_wrong_is_refused_with_line_key_and_what_is_accepted(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		assert_int_equal(from_text(wrong[i].text), -EINVAL);
		assert_string_equal(error, wrong[i].error);
	}
}

static void pages_are_mapped_where_a_pool_has_one_namespace(void **state)
{
	static const char two[] = "\"namespaces\": [{\"name\": \"a\", \"uids\": [1], "
				  "\"managed_prefix_cache_salt\": \"x\"}, {\"name\": \"b\", "
				  "\"uids\": [2], \"managed_prefix_cache_salt\": \"y\"}]}";
	char text[512];

	(void)state;
	snprintf(text, sizeof(text),
		 "{\"pools\": [{\"name\": \"p\", \"map\": true, \"namespaces\": [\"b\"]}], %s",
		 two);
	assert_int_equal(from_text(text), 0);
	assert_true(config.pools[0].map);
	/* Nobody asked for it of the pool that is there without being configured. */
	snprintf(text, sizeof(text), "{%s", two);
	assert_int_equal(from_text(text), 0);
	assert_false(config.pools[0].map);
}

static void there_are_as_many_as_a_pool_can_tell_apart(void **state)
{
	static char text[8192];
	size_t used;

	(void)state;
	for (unsigned n = 64; n <= 65; n++) {
		used = (size_t)snprintf(text, sizeof(text), "{" POOL ", \"namespaces\": [");
		for (unsigned i = 0; i < n; i++)
			used += (size_t)snprintf(text + used, sizeof(text) - used,
						 "%s{\"name\": \"n%u\", \"uids\": [%u]}",
						 i ? ", " : "", i, i);
		snprintf(text + used, sizeof(text) - used, "]}");
		assert_int_equal(from_text(text), n == 64 ? 0 : -EINVAL);
	}
	assert_string_equal(error,
			    "f.json:1: namespaces: 65 namespaces are too many, accepted are at "
			    "most 64");
}

static void the_keys_of_namespaces_stand_in_the_file_only(void **state)
{
	char variable[] = "KVHOST_NAMESPACES_MANAGED_PREFIX_CACHE_SALT=x";
	char program[] = "kvhostd", flag[] = "--namespaces-max-pages=5",
	     names[] = "--pools-namespaces=a,default";
	char *environment[] = {variable, NULL}, *argv[] = {program, flag, NULL};
	char *two[] = {program, names, NULL};

	(void)state;
	config_start(&config);
	assert_int_equal(config_take_environment(&config, environment, error), -EINVAL);
	assert_null(strstr(error, "=x"));
	assert_int_equal(config_take_flags(&config, 2, argv, error), -EINVAL);
	/* Which of them a pool shows may stand elsewhere too. */
	assert_int_equal(config_take_flags(&config, 2, two, error), 0);
	assert_int_equal(config.pools[0].namespaces.n, 2);
	assert_string_equal(config.pools[0].namespaces.name[1], "default");
	assert_int_equal(config_finish(&config, error), -EINVAL);
	assert_string_equal(error, "flag --pools-namespaces: pools[0].namespaces: \"a\" is no "
				   "namespace, accepted are names of the array namespaces");
}

static void the_salt_is_described_by_nobody(void **state)
{
	char *text;

	(void)state;
	assert_int_equal(from_text("{" POOL ", \"namespaces\": [{\"name\": \"a\", \"uids\": [1], "
				   "\"managed_prefix_cache_salt\": \"pepper\"}, {\"name\": \"b\", "
				   "\"rights\": [\"admin\", \"attach\"], \"gids\": [9]}]}"),
			 0);
	text = config_describe_json(&config);
	assert_non_null(text);
	assert_null(strstr(text, "pepper"));
	assert_non_null(strstr(text,
			       "\"key\":\"namespaces[0].managed_prefix_cache_salt\",\"value\":"
			       "\"(set, not shown)\""));
	assert_non_null(
	    strstr(text, "\"key\":\"namespaces[1].managed_prefix_cache_salt\",\"value\":null"));
	assert_non_null(strstr(text, "\"key\":\"namespaces[0].uids\",\"value\":[1]"));
	assert_non_null(
	    strstr(text, "\"key\":\"namespaces[1].rights\",\"value\":[\"attach\",\"admin\"]"));
	free(text);
	config_forget_salts(&config);
	assert_true(config.namespaces[0].managed_prefix_cache_salt.is_set);
	assert_string_equal(config.namespaces[0].managed_prefix_cache_salt.text, "");
}

static void a_secret_is_made_once_for_each_name_and_for_its_owner_alone(void **state)
{
	char folder[] = "/tmp/kvhost-secret-XXXXXX", path[64];
	uint8_t first[32], again[32], other[32];
	const char *wrong_name;
	struct stat st;

	(void)state;
	assert_non_null(mkdtemp(folder));
	assert_int_equal(secret_load(folder, SECRET_SALT, first, 32, &wrong_name), 0);
	assert_int_equal(secret_load(folder, SECRET_SALT, again, 32, &wrong_name), 0);
	assert_int_equal(secret_load(folder, SECRET_KEY, other, 32, &wrong_name), 0);
	assert_memory_equal(first, again, 32);
	assert_memory_not_equal(first, other, 32);
	snprintf(path, sizeof(path), "%s/%s", folder, SECRET_SALT);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(chmod(path, 0640), 0);
	assert_int_equal(secret_load(folder, SECRET_SALT, again, 32, &wrong_name), -EINVAL);
	assert_string_equal(wrong_name, SECRET_SALT);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "%s/%s", folder, SECRET_KEY);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(folder), 0);
}

static void a_secret_that_finds_no_room_says_so_and_leaves_nothing_behind(void **state)
{
	char folder[] = "/tmp/kvhost-secret-XXXXXX";
	struct rlimit before, none;
	const char *wrong_name;
	uint8_t secret[32];
	int r;

	(void)state;
	assert_non_null(mkdtemp(folder));
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	r = secret_load(folder, SECRET_KEY, secret, sizeof(secret), &wrong_name);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(r, -EFBIG);
	assert_string_equal(wrong_name, SECRET_KEY);
	assert_int_equal(rmdir(folder), 0); /* it is empty */
}

/* ---- the least budget of a pool, in which each namespace has an order of its own ---- */

#define SALTED "\", \"uids\": [1], \"managed_prefix_cache_salt\": \"x\"}"

static int with_budget(const char *caching, const char *namespaces, unsigned long long bytes)
{
	char text[1024];

	snprintf(text, sizeof(text),
		 "{\"namespaces\": [{\"name\": \"a" SALTED ", {\"name\": \"b" SALTED "],\n"
		 "\"pools\": [{\"name\": \"x\", \"namespaces\": [%s],\n\"pool_bytes\": %llu,"
		 " \"enable_prefix_caching\": %s}]}",
		 namespaces, bytes, caching);
	return from_text(text);
}

/* The least that is accepted, as the refusal of less has it. */
static unsigned long long least_budget(const char *caching, const char *namespaces)
{
	static const char accepted[] = "take, whatever the model, accepted is at least ";
	unsigned long long least;
	const char *at;

	assert_int_equal(with_budget(caching, namespaces, 65536), -EINVAL);
	assert_ptr_equal(strstr(error, "f.json:3: pools[0].pool_bytes: 65536 is less than one "
				       "sequence of max_sequence_length 4096 and what is known of "
				       "its pages "),
			 error);
	at = strstr(error, accepted);
	assert_non_null(at);
	least = strtoull(at + strlen(accepted), NULL, 10);
	assert_int_equal(with_budget(caching, namespaces, least), 0);
	assert_int_equal(with_budget(caching, namespaces, least - 1), -EINVAL);
	return least;
}

static void a_budget_that_would_do_for_no_model_is_refused(void **state)
{
	unsigned long long plain, one, two;

	(void)state;
	plain = least_budget("false", "\"a\"");
	one = least_budget("true", "\"a\"");
	two = least_budget("true", "\"a\", \"b\"");
	assert_true(plain > 64 * 4096);
	assert_true(one > plain);
	assert_true(two > one);
	assert_true(least_budget("false", "\"a\", \"b\"") == plain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(without_any_there_is_one_of_the_user_who_starts_the_daemon),
	    cmocka_unit_test(what_the_file_says_is_taken),
	    cmocka_unit_test(users_and_groups_are_looked_up_by_name),
	    cmocka_unit_test(what_is_wrong_is_refused_with_line_key_and_what_is_accepted),
	    cmocka_unit_test(pages_are_mapped_where_a_pool_has_one_namespace),
	    cmocka_unit_test(there_are_as_many_as_a_pool_can_tell_apart),
	    cmocka_unit_test(the_keys_of_namespaces_stand_in_the_file_only),
	    cmocka_unit_test(the_salt_is_described_by_nobody),
	    cmocka_unit_test(a_secret_is_made_once_for_each_name_and_for_its_owner_alone),
	    cmocka_unit_test(a_secret_that_finds_no_room_says_so_and_leaves_nothing_behind),
	    cmocka_unit_test(a_budget_that_would_do_for_no_model_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
