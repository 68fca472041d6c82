/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tenants: clients of different users at one daemon: who may use what, and what none is told
 * of the others. Needs root, which alone can be several users; else it is skipped and says so.
 */
#include "tests/e2e/tenant.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/hostile/ops.h"

#define UID_A     61001u
#define UID_A_TOO 61002u
#define UID_B     61003u
#define UID_OTHER 61004u
#define UID_C     61005u
#define UID_D     61006u
#define GROUP_A   61010u
#define KNOWN     "1000"
#define UNKNOWN   "5000"

static const char config[] =
    "{" CORE_JSON ", \"pools\": ["
    "{\"name\": \"hot\", \"pool_pages\": 64, \"kv_page_size\": 16, \"kv_cache_dtype\": "
    "\"float32\", \"max_sequence_length\": 512, \"enable_prefix_caching\": true, "
    "\"max_prefix_cache_pages\": null, \"namespaces\": [\"a\", \"b\"]},"
    "{\"name\": \"others\", \"pool_pages\": 64, \"kv_page_size\": 16, \"max_sequence_length\": "
    "512, \"map\": true, \"namespaces\": [\"a\"]},"
    "{\"name\": \"long\", \"pool_pages\": 8192, \"kv_page_size\": 16, \"max_sequence_length\": "
    "30000, \"map\": true, \"namespaces\": [\"d\"]}],"
    "\"namespaces\": ["
    "{\"name\": \"a\", \"uids\": [61001, 61002], \"gids\": [61010], "
    "\"managed_prefix_cache_salt\": \"salt-of-a\"},"
    "{\"name\": \"b\", \"uids\": [61003], \"managed_prefix_cache_salt\": \"salt-of-b\", "
    "\"rights\": [\"attach\"], \"max_pages\": 8, \"max_sequences\": 2, \"max_sessions\": 1},"
    "{\"name\": \"c\", \"uids\": [61005], \"rights\": [\"admin\"]},"
    "{\"name\": \"d\", \"uids\": [61006], \"rights\": [\"attach\", \"map\"], \"max_bytes\": "
    "\"1MiB\"}]}\n";

static struct daemon d;

/* Others may come in: the folder of a test is its user's alone. */
static void open_doors(void)
{
	assert_int_equal(chmod(d.folder, 0711), 0);
	assert_int_equal(chmod(d.socket, 0666), 0);
}

static void start(void)
{
	daemon_start(&d, config);
	open_doors();
}

static int setup(void **state)
{
	(void)state;
	d = (struct daemon){0};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_remove(&d);
	return 0;
}

static bool is_root(void)
{
	if (geteuid() == 0)
		return true;
	print_message("only root can be several users\n");
	return false;
}

static const char *said(uint32_t uid, const char *word, const char *argument)
{
	static struct tenant t;

	t = (struct tenant){.uid = uid};
	tenant_run(&t, d.socket, word, argument);
	return t.said;
}

/* ---- what a tenant is told ---- */

/* What user `prober` sees of the prompt KNOWN at a daemon where A has stored `stored`. */
static char *transcript(const char *stored, uint32_t prober)
{
	char *text;

	start();
	said(UID_A, "store", stored);
	assert_int_equal(daemon_await(&d, "", "sessions_attached", 0, LONG_MS), 0);
	assert_int_equal(daemon_await(&d, "a", "namespace_retained_pages", 3, LONG_MS), 3);
	text = strdup(said(prober, "probe", KNOWN));
	assert_non_null(text);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	daemon_remove(&d);
	return text;
}

static void probing_the_prompts_of_another_tenant_tells_nothing(void **state)
{
	char *known, *unknown;

	(void)state;
	if (!is_root())
		skip();
	known = transcript(KNOWN, UID_B);
	unknown = transcript(UNKNOWN, UID_B);
	assert_true(strlen(known) > 1000);
	assert_non_null(strstr(known, "attach: status 0"));
	assert_non_null(strstr(known, "commit: status 0"));
	assert_non_null(strstr(known, "lookup again: status 0"));
	assert_string_equal(known, unknown);
	free(known);
	free(unknown);
}

static void the_tenant_itself_is_told(void **state)
{
	char *known, *unknown;

	(void)state;
	if (!is_root())
		skip();
	known = transcript(KNOWN, UID_A_TOO);
	unknown = transcript(UNKNOWN, UID_A_TOO);
	assert_string_not_equal(known, unknown);
	free(known);
	free(unknown);
}

static void without_that_protection_probing_tells(void **state)
{
	char *known, *unknown;

	(void)state;
	if (!is_root())
		skip();
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_PROTECTION_OFF=namespaces_apart";
	known = transcript(KNOWN, UID_B);
	d.program = "tests/hostile/kvhostd_test";
	d.environment = "KVHOST_TEST_PROTECTION_OFF=namespaces_apart";
	unknown = transcript(UNKNOWN, UID_B);
	assert_string_not_equal(known, unknown);
	free(known);
	free(unknown);
}

static void a_namespace_of_others_and_none_are_refused_alike(void **state)
{
	static const uint32_t users[] = {UID_B, UID_OTHER, 65534};
	char *refusal;

	(void)state;
	if (!is_root())
		skip();
	start();
	for (size_t i = 0; i < 3; i++) {
		refusal = strdup(said(users[i], "hello", "a"));
		assert_string_equal(refusal, said(users[i], "hello", "nothing"));
		assert_non_null(strstr(refusal, "no namespace of this name for this user"));
		free(refusal);
	}
	assert_non_null(strstr(said(UID_OTHER, "hello", ""), "no namespace of this name"));
	assert_non_null(strstr(said(65534, "hello", ""), "no namespace of this name"));
}

static void a_pool_of_others_and_none_are_refused_alike(void **state)
{
	static const char *const pools[] = {"others", "nothing", "long", "default"};
	char wanted[160];

	(void)state;
	if (!is_root())
		skip();
	start();
	assert_string_equal(said(UID_A, "attach", "others"), "0 \n");
	for (size_t i = 0; i < sizeof(pools) / sizeof(*pools); i++) {
		(void)snprintf(wanted, sizeof(wanted),
			       "%d no pool of this namespace is called \"%s\"; its pools: hot\n",
			       WIRE_ENOENT, pools[i]);
		assert_string_equal(said(UID_B, "attach", pools[i]), wanted);
	}
	(void)snprintf(wanted, sizeof(wanted),
		       "%d no pool of this namespace is called \"long\"; its pools: hot, others\n",
		       WIRE_ENOENT);
	assert_string_equal(said(UID_A, "attach", "long"), wanted);
}

/* ---- who is who ---- */

static void the_user_and_its_groups_decide_not_what_it_says(void **state)
{
	struct tenant member = {.uid = UID_OTHER, .group = GROUP_A};

	(void)state;
	if (!is_root())
		skip();
	start();
	assert_string_equal(said(UID_A, "hello", ""), "welcome to a\n");
	assert_string_equal(said(UID_A_TOO, "hello", "a"), "welcome to a\n");
	assert_string_equal(said(UID_B, "hello", ""), "welcome to b\n");
	tenant_run(&member, d.socket, "hello", "");
	assert_string_equal(member.said, "welcome to a\n");
	assert_string_equal(said(0, "hello", "b"), "welcome to b\n");
}

static void processes_with_other_environments_hit_what_the_other_stored(void **state)
{
	struct tenant first = {.uid = UID_A, .environment = "PYTHONHASHSEED=1"};
	struct tenant second = {.uid = UID_A_TOO, .environment = "PYTHONHASHSEED=2"};

	(void)state;
	if (!is_root())
		skip();
	start();
	tenant_run(&first, d.socket, "store", KNOWN);
	tenant_run(&second, d.socket, "found", KNOWN);
	assert_string_equal(second.said, "48\n");
	tenant_run(&second, d.socket, "store", UNKNOWN);
	tenant_run(&first, d.socket, "found", UNKNOWN);
	assert_string_equal(first.said, "48\n");
	assert_string_equal(said(UID_B, "found", KNOWN), "0\n");
}

static void a_right_that_a_namespace_lacks_is_refused(void **state)
{
	(void)state;
	if (!is_root())
		skip();
	start();
	assert_string_equal(said(UID_A, "interactive", ""), "0 \n");
	assert_non_null(strstr(said(UID_B, "interactive", ""), "no right to interactive requests"));
	assert_non_null(strstr(said(UID_C, "attach", "hot"), "no right to attach pools"));
	assert_string_equal(said(UID_A, "map", "others"), "0 0\n");
	assert_string_equal(said(UID_D, "map", "long"), "0 1\n");
}

/* ---- quotas ---- */

static void at_its_quota_a_tenant_waits_for_itself_and_keeps_nobody_waiting(void **state)
{
	struct tenant full = {.uid = UID_B};

	(void)state;
	if (!is_root())
		skip();
	start();
	tenant_begin(&full, d.socket, "quota", "");
	tenant_await_line(&full);
	assert_non_null(strstr(full.said, "max_tokens 144 needs 9 pages of 16 tokens; namespace b "
					  "may hold 8 in a pool (namespaces.max_pages)|"));
	assert_non_null(strstr(full.said, "namespace b has 2 sequences open; at most 2 "
					  "(namespaces.max_sequences)\n"));
	assert_int_equal(daemon_await(&d, "hot", "pool_admission_waits", 1, LONG_MS), 1);
	assert_non_null(strstr(said(UID_B, "hello", ""),
			       "namespace b has 1 sessions attached; at most 1 "
			       "(namespaces.max_sessions)"));
	said(UID_A, "store", KNOWN);
	assert_string_equal(said(UID_A, "found", KNOWN), "48\n");
	assert_int_equal(daemon_await(&d, "b", "namespace_sessions", 1, LONG_MS), 1);
	assert_int_equal(daemon_await(&d, "b", "namespace_sequences", 2, LONG_MS), 2);
	assert_int_equal(tenant_end(&full), 0);
	assert_int_equal(daemon_await(&d, "b", "namespace_sequences", 0, LONG_MS), 0);
	assert_int_equal(daemon_await(&d, "b", "namespace_sessions", 0, LONG_MS), 0);
}

static void memory_of_the_daemon_is_used_up_by_its_namespace_alone(void **state)
{
	const char *text;

	(void)state;
	if (!is_root())
		skip();
	start();
	text = said(UID_D, "memory", "");
	assert_true(!strncmp(text, "0 \n0 \n0 \n0 \n", 12));
	assert_non_null(strstr(text, "a prompt of 120000 bytes; the private memory of namespace d "
				     "has "));
	assert_non_null(strstr(text, " of 1048576 left (namespaces.max_bytes)\n"));
	said(UID_A, "store", KNOWN);
}

static void the_default_namespace_keeps_its_salt(void **state)
{
	uint8_t before[33], after[33];
	struct stat st;
	char path[128];
	FILE *f;

	(void)state;
	daemon_start(&d, NULL);
	(void)snprintf(path, sizeof(path), "%s/state/salt", d.folder);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fread(before, 1, sizeof(before), f), 32);
	fclose(f);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	daemon_begin(&d);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fread(after, 1, sizeof(after), f), 32);
	fclose(f);
	assert_memory_equal(before, after, 32);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
}

/* ---- what only operators see ---- */

static void what_tenants_hold_is_shown_to_operators_alone(void **state)
{
	char expected[16];

	(void)state;
	if (!is_root())
		skip();
	start();
	said(UID_A, "store", KNOWN);
	assert_int_equal(daemon_await(&d, "a", "namespace_pages", 3, LONG_MS), 3);
	assert_int_equal(daemon_await(&d, "a", "namespace_retained_pages", 3, LONG_MS), 3);
	assert_int_equal(daemon_pool_counter(&d, "b", "namespace_pages"), 0);
	snprintf(expected, sizeof(expected), "%d\n", -EACCES);
	assert_string_equal(said(UID_A, "stats", d.stats), expected);
}

static void the_salt_is_in_no_output(void **state)
{
	static const char *const words[] = {"salt-of-a", "salt-of-b"};
	static const uint32_t questions[] = {PAYLOAD_ADMIN_HEALTH, PAYLOAD_ADMIN_SESSIONS,
					     PAYLOAD_ADMIN_CHECK,  PAYLOAD_ADMIN_POOLS,
					     PAYLOAD_ADMIN_TIERS,  PAYLOAD_ADMIN_CONFIG};
	static char text[OUT];
	char path[128];
	struct raw r;
	struct submission s = op(WIRE_OP_ADMIN, (struct payload_handle){0});
	size_t bytes;
	FILE *log;

	(void)state;
	if (!is_root())
		skip();
	start();
	said(UID_A, "store", KNOWN);
	raw_attach(d.socket, &r);
	for (size_t q = 0; q < sizeof(questions) / sizeof(*questions); q++) {
		struct completion c;

		memset(raw_window(&r, IN), 0, sizeof(struct payload_admin));
		((struct payload_admin *)raw_window(&r, IN))->question = questions[q];
		s.in_offset = IN;
		s.in_bytes = sizeof(struct payload_admin);
		s.out_offset = OUT;
		s.out_bytes = OUT;
		assert_int_equal(raw_ask(&r, &s, &c), 0);
		assert_true(c.count < sizeof(text));
		memcpy(text, raw_window(&r, OUT), c.count);
		text[c.count] = 0;
		for (int i = 0; i < 2; i++)
			assert_null(strstr(text, words[i]));
	}
	assert_non_null(strstr(text, "(set, not shown)"));
	raw_free(&r);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	(void)snprintf(path, sizeof(path), "%s/log", d.folder);
	log = fopen(path, "re");
	assert_non_null(log);
	bytes = fread(text, 1, sizeof(text) - 1, log);
	text[bytes] = 0;
	fclose(log);
	for (int i = 0; i < 2; i++)
		assert_null(strstr(text, words[i]));
}

#define TENANTS(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    TENANTS(probing_the_prompts_of_another_tenant_tells_nothing),
	    TENANTS(the_tenant_itself_is_told),
	    TENANTS(without_that_protection_probing_tells),
	    TENANTS(a_namespace_of_others_and_none_are_refused_alike),
	    TENANTS(a_pool_of_others_and_none_are_refused_alike),
	    TENANTS(the_user_and_its_groups_decide_not_what_it_says),
	    TENANTS(processes_with_other_environments_hit_what_the_other_stored),
	    TENANTS(a_right_that_a_namespace_lacks_is_refused),
	    TENANTS(at_its_quota_a_tenant_waits_for_itself_and_keeps_nobody_waiting),
	    TENANTS(memory_of_the_daemon_is_used_up_by_its_namespace_alone),
	    TENANTS(the_default_namespace_keeps_its_salt),
	    TENANTS(what_tenants_hold_is_shown_to_operators_alone),
	    TENANTS(the_salt_is_in_no_output),
	};
	int status;

	if (tenant_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
