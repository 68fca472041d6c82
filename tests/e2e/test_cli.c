/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli: the programs as an operator uses them: exit codes and the lines that matter.
 *
 * kvctl against a daemon that lives, and against none; kvhostd with configurations that are good,
 * bad, or of a folder that another daemon holds. One thread.
 */
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/footprint.h"

static const char config[] =
    "{\"core\": {\"spin_us\": 20, \"default_deadline_us\": 4000000}, \"pools\": [{\"name\": "
    "\"chat\", \"pool_pages\": 64,"
    " \"kv_page_size\": 16, \"max_sequence_length\": 512, \"enable_prefix_caching\": true}]}\n";

static struct daemon d;
static struct engine engine;
static char said[262144];

static int setup(void **state)
{
	struct engine_model m = ENGINE_SMALL("chat");
	uint32_t tokens[64];

	(void)state;
	daemon_start(&d, config);
	assert_int_equal(engine_start(&engine, d.socket, &m), 0);
	engine_tokens(tokens, 64, 0, 1);
	assert_int_equal(engine_serve(&engine, tokens, 64, NULL), 0);
	/* The stats file has all of it. */
	assert_int_equal(daemon_await(&d, "chat", "pool_pages_retained", 4, WITHIN_MS), 4);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine_stop(&engine);
	daemon_remove(&d);
	return 0;
}

static int kvctl_of(struct daemon *of, const char *command, const char *flag)
{
	char *const argv[] = {"kvctl",
			      "--socket",
			      of->socket,
			      "--stats",
			      of->stats,
			      (char *)(uintptr_t)command,
			      (char *)(uintptr_t)flag,
			      NULL};

	return run_program(argv, said, sizeof(said), LONG_MS);
}

static int kvctl(const char *command, const char *flag)
{
	return kvctl_of(&d, command, flag);
}

static void expect_line(const char *start)
{
	char wanted[160];

	(void)snprintf(wanted, sizeof(wanted), "\n%s", start);
	if (strncmp(said, start, strlen(start)) && !strstr(said, wanted))
		fail_msg("no line begins with \"%s\" in:\n%s", start, said);
}

/* A line begins with the first word, and the second is the next. */
static void expect_words(const char *const words[2])
{
	const char *at = said;
	size_t length = strlen(words[0]);

	while (at && (strncmp(at, words[0], length) != 0 || at[length] != ' ')) {
		at = strchr(at, '\n');
		at += at != NULL;
	}
	if (!at)
		fail_msg("no line begins with \"%s\" in:\n%s", words[0], said);
	at += length + strspn(at + length, " ");
	if (strncmp(at, words[1], strlen(words[1])) != 0 || at[strlen(words[1])] != ' ')
		fail_msg("\"%s\" is not followed by \"%s\" but by: %.80s", words[0], words[1], at);
}

static json_t *parse(void)
{
	json_error_t error;
	json_t *root = json_loads(said, 0, &error);

	if (!json_is_object(root))
		fail_msg("not JSON: %s:\n%s", error.text, said);
	return root;
}

static void every_command_succeeds_on_a_daemon_that_is_well(void **state)
{
	static const char *const commands[][2] = {
	    {"health", "state"}, {"stats", "kvhostd "}, {"sessions", "sessions"},
	    {"check", "ok"},     {"pools", "pools"},    {"config", "file "},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		assert_int_equal(kvctl(commands[i][0], NULL), 0);
		expect_line(commands[i][1]);
	}
}

static void stats_say_what_was_counted(void **state)
{
	(void)state;
	assert_int_equal(kvctl("stats", NULL), 0);
	expect_line("sessions_attached            1 sessions");
	expect_line("chat");
	expect_line("  pool_pages_capacity          64 pages");
	expect_line("  pool_pages_retained          4 pages");
	expect_line("  pool_commits                 1 steps");
	expect_line("thread core");
	assert_non_null(strstr(said, "session 1  pid "));
	assert_non_null(strstr(said, " are 0; --all shows them"));
	assert_int_equal(kvctl("stats", "--all"), 0);
	expect_line("  pool_aborts                  0 steps");
}

static void answers_are_json_when_asked_for(void **state)
{
	static const char *const commands[][2] = {{"health", "pools"},
						  {"stats", "counters"},
						  {"sessions", "sessions"},
						  {"pools", "pools"},
						  {"config", "values"}};
	json_t *root, *first;

	(void)state;
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		assert_int_equal(kvctl(commands[i][0], "--json"), 0);
		root = parse();
		assert_true(json_array_size(json_object_get(root, commands[i][1])) > 0);
		json_decref(root);
	}
	assert_int_equal(kvctl("check", "--json"), 0);
	root = parse();
	assert_true(json_is_true(json_object_get(root, "ok")));
	/* Four pages and the root of their chain. */
	assert_int_equal(json_integer_value(json_object_get(root, "objects")), 5);
	json_decref(root);
	assert_int_equal(kvctl("health", "--json"), 0);
	root = parse();
	assert_string_equal(json_string_value(json_object_get(root, "state")), "running");
	assert_int_equal(json_integer_value(json_object_get(root, "pid")), d.pid);
	first = json_array_get(json_object_get(root, "pools"), 0);
	assert_string_equal(json_string_value(json_object_get(first, "name")), "chat");
	assert_int_equal(json_integer_value(json_object_get(first, "pages")), 64);
	json_decref(root);
}

static void config_says_where_a_value_came_from(void **state)
{
	(void)state;
	assert_int_equal(kvctl("config", NULL), 0);
	assert_non_null(strstr(said, "spin_us"));
	assert_non_null(strstr(said, "kvhost.json:1"));
	assert_non_null(strstr(said, "flag --runtime-directory"));
	/* It has none of its own: that of the core. */
	expect_words((const char *const[]){"pools[0].default_deadline_us", "4000000"});
	assert_non_null(strstr(said, "default"));
}

/* As it is written in a flag. */
static void config_shows_what_is_in_an_array(void **state)
{
	struct daemon other = {0};
	char json[512], uids[32];

	(void)state;
	(void)snprintf(uids, sizeof(uids), "%u,61001", (unsigned)geteuid());
	(void)snprintf(
	    json, sizeof(json),
	    "{\"pools\": [{\"name\": \"chat\", \"namespaces\": [\"b\", \"a\"]}],"
	    " \"namespaces\": [{\"name\": \"a\", \"uids\": [%s], \"rights\": [\"attach\","
	    " \"interactive\", \"admin\"]}, {\"name\": \"b\", \"gids\": [61010],"
	    " \"rights\": []}]}\n",
	    uids);
	daemon_start(&other, json);
	assert_int_equal(kvctl_of(&other, "config", NULL), 0);
	expect_words((const char *const[]){"pools[0].namespaces", "b,a"});
	expect_words((const char *const[]){"namespaces[0].uids", uids});
	expect_words((const char *const[]){"namespaces[0].gids", "-"});
	expect_words((const char *const[]){"namespaces[0].rights", "attach,interactive,admin"});
	expect_words((const char *const[]){"namespaces[1].gids", "61010"});
	expect_words((const char *const[]){"namespaces[1].rights", "-"});
	daemon_remove(&other);
}

static void wrong_usage_is_told_apart_from_a_daemon_that_is_not_there(void **state)
{
	char *const none[] = {"kvctl",    "--socket", "/nonexistent/s", "--stats", "/nonexistent/f",
			      "sessions", NULL};
	char *const no_stats[] = {"kvctl", "--stats", "/nonexistent/f", "stats", NULL};
	char *const no_health[] = {
	    "kvctl", "--socket", "/nonexistent/s", "--stats", "/nonexistent/f", "health", NULL};

	(void)state;
	assert_int_equal(kvctl("dance", NULL), 2);
	expect_line("usage: kvctl ");
	assert_int_equal(kvctl("stats", "--nonsense"), 2);
	assert_int_equal(run_program(none, said, sizeof(said), LONG_MS), 3);
	assert_int_equal(run_program(no_stats, said, sizeof(said), LONG_MS), 3);
	expect_line("kvctl: no daemon: there is no /nonexistent/f");
	assert_int_equal(run_program(no_health, said, sizeof(said), LONG_MS), 3);
	assert_int_equal(kvctl("--help", NULL), 0);
}

static void every_program_says_the_same_version(void **state)
{
	static const char *const programs[] = {"kvhostd", "kvctl", "kvbench"};

	(void)state;
	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
		char *const argv[] = {(char *)(uintptr_t)programs[i], "--version", NULL};
		char wanted[64];

		(void)snprintf(wanted, sizeof(wanted), "%s %s\n", programs[i], PACKAGE_VERSION);
		assert_int_equal(run_program(argv, said, sizeof(said), LONG_MS), 0);
		assert_string_equal(said, wanted);
	}
}

/* It lives: its socket is there, and nobody looks at it. */
static void a_daemon_that_hangs_is_told_apart_from_one_that_is_not_there(void **state)
{
	struct daemon other = {0};
	char stats[sizeof(other.stats)];

	(void)state;
	daemon_start(&other, config);
	assert_int_equal(kill(other.pid, SIGSTOP), 0);
	assert_int_equal(kvctl_of(&other, "sessions", NULL), 1);
	expect_line("kvctl: the daemon did not answer");
	/* Also where nothing is left to look at. */
	(void)snprintf(stats, sizeof(stats), "%s", other.stats);
	(void)snprintf(other.stats, sizeof(other.stats), "/nonexistent/f");
	assert_int_equal(kvctl_of(&other, "health", NULL), 1);
	expect_line("kvctl: the daemon did not answer");
	(void)snprintf(other.stats, sizeof(other.stats), "%s", stats);
	daemon_kill(&other);
	assert_int_equal(kvctl_of(&other, "sessions", NULL), 3);
	assert_int_equal(kvctl_of(&other, "health", NULL), 3);
	daemon_remove(&other);
}

/* What kvctl --json says of this key: a text, else "". */
static void say_text(struct daemon *of, const char *command, const char *key, char out[64])
{
	const char *text;
	json_t *root;

	(void)kvctl_of(of, command, "--json");
	root = parse();
	text = json_string_value(json_object_get(root, key));
	(void)snprintf(out, 64, "%s", text ? text : "");
	json_decref(root);
}

/* The daemon itself, then the file that it left. */
static void the_boot_epoch_is_told_in_one_way(void **state)
{
	static const char *const questions[] = {"health", "stats"};
	struct daemon other = {0};
	char epoch[64], found[64];

	(void)state;
	daemon_start(&other, config);
	say_text(&other, "health", "boot_epoch", epoch);
	assert_int_equal(strlen(epoch), 16);
	assert_int_equal(strspn(epoch, "0123456789abcdef"), 16);
	for (size_t i = 0; i < 4; i++) {
		if (i == 2)
			daemon_kill(&other);
		say_text(&other, questions[i % 2], "boot_epoch", found);
		assert_string_equal(found, epoch);
		assert_int_equal(kvctl_of(&other, questions[i % 2], NULL), i < 2 ? 0 : 3);
		assert_non_null(strstr(said, epoch));
	}
	daemon_remove(&other);
}

/* The next line of a text, cut to its first word; false: there is none, or it ends a fence. */
static bool take_word(const char **at, char out[64])
{
	int n = (int)strcspn(*at, " \n");

	(void)snprintf(out, 64, "%.*s", n, *at);
	*at += strcspn(*at, "\n");
	*at += **at == '\n';
	return n > 0 && strcmp(out, "```") != 0;
}

static void the_readme_shows_what_a_daemon_leaves_behind(void **state)
{
	static char readme[65536];
	char path[512], word[64], shown[64];
	const char *top = getenv("srcdir"), *at, *is = said;
	struct daemon other = {0};
	FILE *f;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/README.md", top && top[0] ? top : ".");
	f = fopen(path, "re");
	assert_non_null(f);
	readme[fread(readme, 1, sizeof(readme) - 1, f)] = 0;
	assert_true(feof(f));
	fclose(f);
	at = strstr(readme, "\n```\nno answer: ");
	assert_non_null(at);
	at += strlen("\n```\n");
	daemon_start(&other, config);
	assert_int_equal(daemon_stop(&other, LONG_MS), 0);
	assert_int_equal(kvctl_of(&other, "health", NULL), 3);
	while (take_word(&at, shown)) {
		(void)take_word(&is, word);
		assert_string_equal(word, shown);
	}
	assert_string_equal(is, ""); /* that was all of it */
	daemon_remove(&other);
}

/* ---- kvhostd ---- */

static int check_config(struct daemon *other)
{
	char file[128];
	char *const argv[] = {"kvhostd", "--check-config", "--config", file, NULL};

	(void)snprintf(file, sizeof(file), "%s/kvhost.json", other->folder);
	return run_program(argv, said, sizeof(said), LONG_MS);
}

static void a_configuration_is_checked_without_a_daemon_being_started(void **state)
{
	struct daemon other = {0};

	(void)state;
	daemon_make(&other, config);
	assert_int_equal(check_config(&other), 0);
	expect_line("the configuration is good");
	assert_int_equal(entries_of(other.folder, ""), 1);
	daemon_remove(&other);
}

static void a_bad_configuration_ends_with_its_place_and_what_is_accepted(void **state)
{
	struct daemon other = {0};

	(void)state;
	daemon_make(&other, "{\n \"pools\": [{\"name\": \"a\", \"kv_page_size\": 17}]\n}\n");
	assert_int_equal(check_config(&other), 2);
	assert_non_null(strstr(said, "kvhost.json:2"));
	assert_non_null(strstr(said, "kv_page_size"));
	assert_int_equal(daemon_try(&other, said, sizeof(said)), 2);
	assert_non_null(strstr(said, "kv_page_size"));
	daemon_remove(&other);
}

static void a_second_daemon_in_the_same_folder_is_refused_and_the_first_goes_on(void **state)
{
	struct daemon second = {0};

	(void)state;
	daemon_make(&second, NULL);
	(void)snprintf(second.run, sizeof(second.run), "%s", d.run);
	assert_int_equal(daemon_try(&second, said, sizeof(said)), 1);
	assert_non_null(strstr(said, "another daemon holds this runtime directory"));
	assert_int_equal(kvhost_ping(engine.host), 0);
	assert_int_equal(kvctl("health", NULL), 0);
	daemon_remove(&second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_command_succeeds_on_a_daemon_that_is_well),
	    cmocka_unit_test(stats_say_what_was_counted),
	    cmocka_unit_test(answers_are_json_when_asked_for),
	    cmocka_unit_test(config_says_where_a_value_came_from),
	    cmocka_unit_test(config_shows_what_is_in_an_array),
	    cmocka_unit_test(wrong_usage_is_told_apart_from_a_daemon_that_is_not_there),
	    cmocka_unit_test(every_program_says_the_same_version),
	    cmocka_unit_test(a_daemon_that_hangs_is_told_apart_from_one_that_is_not_there),
	    cmocka_unit_test(the_boot_epoch_is_told_in_one_way),
	    cmocka_unit_test(the_readme_shows_what_a_daemon_leaves_behind),
	    cmocka_unit_test(a_configuration_is_checked_without_a_daemon_being_started),
	    cmocka_unit_test(a_bad_configuration_ends_with_its_place_and_what_is_accepted),
	    cmocka_unit_test(a_second_daemon_in_the_same_folder_is_refused_and_the_first_goes_on),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
