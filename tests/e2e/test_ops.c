/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ops: what an operator does, with the programs that an operator has: kvctl against a daemon
 * that is healthy, hung, dead or started again. One thread; every wait has a deadline.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"
#include "tests/e2e/operator.h"

static const char config[] =
    "{\"core\": {\"log_level\": \"debug\"}, \"pools\": ["
    "{\"name\": \"small\", \"pool_pages\": 64, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 512, \"enable_prefix_caching\": true,"
    " \"max_prefix_cache_pages\": 128},"
    "{\"name\": \"idle\", \"pool_pages\": 64, \"kv_page_size\": 16,"
    " \"max_sequence_length\": 512, \"idle_ttl_s\": 1},"
    "{\"name\": \"mapped\", \"pool_pages\": 64, \"kv_page_size\": 16, \"map\": true,"
    " \"max_sequence_length\": 512}]}\n";

static struct daemon d;

static int set_up(void **state)
{
	(void)state;
	d = (struct daemon){0};
	daemon_start(&d, config);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	if (d.pid > 0)
		(void)kill(d.pid, SIGCONT);
	daemon_remove(&d);
	return 0;
}

static void start(struct engine *e, const char *pool)
{
	struct engine_model model = ENGINE_SMALL(pool);

	assert_int_equal(engine_start(e, d.socket, &model), 0);
}

/* ---- stats ---- */

static void stats_speak_prometheus(void **state)
{
	struct engine e;
	uint32_t tokens[64];

	(void)state;
	start(&e, "small");
	engine_tokens(tokens, 64, 0, 1);
	assert_int_equal(engine_serve(&e, tokens, 64, NULL), 0);
	assert_int_equal(daemon_await(&d, "small", "pool_opens", 1, WITHIN_MS), 1);
	assert_int_equal(kvctl(&d, "stats", "--prometheus", NULL, NULL), 0);
	assert_true(says("# TYPE kvhost_requests_total counter\n"));
	assert_true(says("# TYPE kvhost_sessions_total counter\n"));
	assert_true(says("# HELP kvhost_pool_pages_capacity Pages of the pool.\n"));
	assert_true(says("# TYPE kvhost_pool_pages_capacity gauge\n"));
	assert_true(says("kvhost_pool_pages_capacity{pool=\"small\"} 64\n"));
	assert_true(says("kvhost_pool_index_bytes{pool=\"small\"} "));
	assert_false(says("kvhost_pool_index_bytes{pool=\"small\"} 0\n"));
	assert_true(says("kvhost_pool_opens_total{pool=\"small\"} 1\n"));
	assert_true(says("# TYPE kvhost_latency_open_seconds histogram\n"));
	assert_true(says("kvhost_latency_open_seconds_bucket{le=\"1e-06\"} "));
	assert_true(says("kvhost_latency_open_seconds_bucket{le=\"+Inf\"} 1\n"));
	assert_true(says("kvhost_latency_open_seconds_count 1\n"));
	assert_true(says("kvhost_up 1\n"));
	/* One family a name, with the samples of all pools. */
	assert_int_equal(count_of("# TYPE kvhost_pool_opens_total "), 1);
	assert_int_equal(count_of("\nkvhost_pool_opens_total{"), 3);
	engine_stop(&e);
}

static void stats_need_no_daemon_that_moves(void **state)
{
	(void)state;
	assert_int_equal(kill(d.pid, SIGSTOP), 0);
	assert_in_range(kvctl(&d, "stats", "--prometheus", NULL, NULL), 0, 1);
	assert_true(says("kvhost_up 1\n"));
	assert_int_equal(kill(d.pid, SIGCONT), 0);
	daemon_kill(&d);
	assert_int_equal(kvctl(&d, "stats", "--prometheus", NULL, NULL), 3);
	assert_true(says("kvhost_up 0\n"));
	assert_true(says("# TYPE kvhost_requests_total counter\n"));
}

/* ---- watch ---- */

struct watcher {
	pid_t pid;
	int output;
	char text[OPERATOR_OUTPUT_BYTES];
	size_t used;
};

static void watch(struct watcher *w)
{
	char program[512];
	int ends[2];

	*w = (struct watcher){0};
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	build_path("kvctl", program, sizeof(program));
	w->pid = fork_client();
	if (w->pid == 0) {
		if (dup2(ends[1], STDOUT_FILENO) < 0 || dup2(ends[1], STDERR_FILENO) < 0)
			_exit(99);
		execl(program, program, "--stats", d.stats, "stats", "--watch", "0.05",
		      (char *)NULL);
		_exit(99);
	}
	close(ends[1]);
	w->output = ends[0];
}

/* Wait until it has printed this; what came before is forgotten. */
static void await_text(struct watcher *w, const char *text)
{
	uint64_t deadline = now_ms() + (uint64_t)LONG_MS * PATIENCE;

	w->used = 0;
	w->text[0] = 0;
	while (!strstr(w->text, text)) {
		struct pollfd p = {.fd = w->output, .events = POLLIN};
		ssize_t n;

		assert_true(now_ms() < deadline && w->used + 1 < sizeof(w->text));
		if (poll(&p, 1, 100) <= 0)
			continue;
		n = read(w->output, w->text + w->used, sizeof(w->text) - w->used - 1);
		assert_true(n > 0);
		w->used += (size_t)n;
		w->text[w->used] = 0;
	}
}

static void watching_goes_on_through_a_restart(void **state)
{
	struct watcher *w = malloc(sizeof(*w));
	int status;

	(void)state;
	assert_non_null(w);
	watch(w);
	await_text(w, "/s\n");
	daemon_kill(&d);
	await_text(w, "dead without a goodbye");
	daemon_begin(&d);
	await_text(w, "the daemon was started again");
	await_text(w, "/s\n");
	assert_int_equal(kill(w->pid, SIGINT), 0);
	status = await_child(w->pid, LONG_MS);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close(w->output);
	free(w);
}

/* ---- pools ---- */

static void pools_show_every_line_of_their_plan(void **state)
{
	static const char *const lines[] = {"budget",
					    "lanes",
					    "lane slot",
					    "retained slot",
					    "workspace",
					    "index",
					    "page",
					    "left",
					    "reserve pages",
					    "requested prefix pages",
					    "effective prefix pages",
					    "fallback reason"};
	struct engine e;
	uint64_t index;
	char line[64];

	(void)state;
	assert_int_equal(kvctl(&d, "pools", "--json", NULL, NULL), 0);
	assert_int_equal(count_of("\"plan\": null"), 3);
	start(&e, "small");
	assert_int_equal(kvctl(&d, "pools", NULL, NULL, NULL), 0);
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
		assert_true(says(lines[i]));
	assert_true(says("prefix page budget clamped from 128 to 32 to reserve 32 request pages"));
	assert_int_equal(kvctl(&d, "pools", "--json", NULL, NULL), 0);
	assert_true(says("\"requested_prefix_pages\": 128"));
	assert_true(says("\"effective_prefix_pages\": 32"));
	assert_true(says("\"reserve_pages\": 32"));
	/* The gauge is the line of the plan. */
	assert_int_equal(daemon_await(&d, "small", "pool_pages_capacity", 64, WITHIN_MS), 64);
	index = daemon_pool_counter(&d, "small", "pool_index_bytes");
	assert_true(index > 64);
	(void)snprintf(line, sizeof(line), "\"index_bytes\": %llu,", (unsigned long long)index);
	assert_true(says(line));
	/* The short answer stays short. */
	assert_int_equal(kvctl(&d, "health", "--json", NULL, NULL), 0);
	assert_int_equal(count_of("\"reserve_pages\""), 0);
	engine_stop(&e);
}

static void a_pool_is_dropped_when_nobody_uses_it(void **state)
{
	struct engine_model other = ENGINE_SMALL("small");
	struct engine first, second;
	uint32_t tokens[64];

	(void)state;
	other.heads = 2;
	start(&first, "small");
	engine_tokens(tokens, 64, 0, 1);
	assert_int_equal(engine_serve(&first, tokens, 64, NULL), 0);
	assert_int_equal(kvctl(&d, "pool", "drop", "small", NULL), 1);
	assert_true(says("sessions are attached"));
	/* It is what it was: the same description, and what is retained. */
	assert_int_equal(engine_start(&second, d.socket, &other), KVHOST_EMISMATCH);
	engine_stop(&second);
	assert_int_equal(engine_serve(&first, tokens, 64, NULL), 0);
	assert_int_equal(kvhost_pool_detach(&first.pool), 0);

	assert_int_equal(kvctl(&d, "pool", "drop", "small", "--json"), 0);
	assert_true(says("\"dropped\": true"));
	assert_int_equal(daemon_await(&d, "small", "pool_pages_capacity", 0, WITHIN_MS), 0);
	assert_int_equal(daemon_await(&d, "small", "pool_index_bytes", 0, WITHIN_MS), 0);
	assert_int_equal(daemon_pool_counter(&d, "small", "pool_opens"), 2);
	assert_int_equal(daemon_await(&d, "", "pools_dropped", 1, WITHIN_MS), 1);
	assert_int_equal(kvctl(&d, "pool", "drop", "small", "--json"), 0);
	assert_true(says("\"dropped\": false"));
	assert_int_equal(kvctl(&d, "pools", "--json", NULL, NULL), 0);
	assert_int_equal(count_of("\"state\": \"declared\""), 3);

	/* Another model, by a session that knew the pool before, and nothing of the old one. */
	assert_int_equal(engine_attach(&first, &other), 0);
	assert_int_equal(engine_serve(&first, tokens, 64, NULL), 0);
	assert_true(engine_check(&first));
	assert_int_equal(daemon_await(&d, "small", "pool_opens", 3, WITHIN_MS), 3);
	assert_int_equal(kvctl(&d, "pool", "drop", "nobody", NULL), 1);
	assert_true(says("no pool is called \"nobody\""));
	engine_stop(&first);
}

static void a_pool_whose_clients_died_can_be_dropped(void **state)
{
	struct kvhost_sequence *seq;
	struct engine e;
	uint32_t tokens[64];
	uint64_t deadline;

	(void)state;
	start(&e, "small");
	engine_tokens(tokens, 64, 0, 1);
	assert_int_equal(engine_prefill(&e, tokens, 64, 64, &seq, NULL), 0);
	engine_stop(&e); /* with a sequence open */
	deadline = now_ms() + (uint64_t)WITHIN_MS * PATIENCE;
	while (kvctl(&d, "pool", "drop", "small", NULL) != 0)
		assert_true(now_ms() < deadline);
	assert_int_equal(daemon_await(&d, "small", "pool_pages_capacity", 0, WITHIN_MS), 0);
	start(&e, "small");
	engine_stop(&e);
}

/* Ends its session in a step and lives on, as one that may still write to its pages. */
static _Noreturn void leave_in_a_step(const struct engine_model *model)
{
	struct kvhost_prompt prompt = {.n_tokens = 64};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq;
	struct kvhost_step step;
	struct engine e;
	uint32_t tokens[64];

	engine_tokens(tokens, 64, 0, 1);
	prompt.tokens = tokens;
	if (engine_start(&e, d.socket, model) || kvhost_open(e.pool, &prompt, &seq, &found) ||
	    kvhost_step_begin(seq, 64, 0, &step))
		_exit(1);
	engine_stop(&e);
	for (;;)
		(void)pause();
}

/* They do not keep the pool: that process has the only mapping of the old memory. When it exits
 * nothing happens to the new one. */
static void a_pool_with_pages_in_quarantine_can_be_dropped(void **state)
{
	struct engine_model model = ENGINE_SMALL("mapped");
	struct engine e;
	uint32_t tokens[64];
	pid_t child;

	(void)state;
	model.map = 1;
	engine_tokens(tokens, 64, 0, 1);
	child = fork_client();
	if (child == 0)
		leave_in_a_step(&model);
	assert_int_equal(daemon_await(&d, "mapped", "pool_pages_quarantined", 4, LONG_MS), 4);
	assert_int_equal(daemon_await(&d, "mapped", "pool_sequences", 0, WITHIN_MS), 0);
	assert_int_equal(kvctl(&d, "pool", "drop", "mapped", NULL), 0);
	assert_int_equal(daemon_await(&d, "mapped", "pool_pages_quarantined", 0, WITHIN_MS), 0);
	assert_int_equal(engine_start(&e, d.socket, &model), 0);
	assert_int_equal(engine_serve(&e, tokens, 64, NULL), 0);
	assert_int_equal(kill(child, SIGKILL), 0);
	(void)await_child(child, LONG_MS);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(engine_serve(&e, tokens, 64, NULL), 0);
		assert_true(engine_check(&e));
	}
	engine_stop(&e);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
}

static void an_idle_pool_goes_after_its_time(void **state)
{
	struct engine e;

	(void)state;
	start(&e, "idle");
	assert_int_equal(daemon_await(&d, "idle", "pool_pages_capacity", 64, WITHIN_MS), 64);
	engine_stop(&e);
	assert_int_equal(daemon_await(&d, "", "pools_dropped", 1, LONG_MS), 1);
	assert_int_equal(daemon_await(&d, "idle", "pool_pages_capacity", 0, WITHIN_MS), 0);
	start(&e, "idle");
	engine_stop(&e);
}

/* ---- drain ---- */

static void a_drained_daemon_finishes_what_is_open(void **state)
{
	struct kvhost_prompt prompt = {.n_tokens = 32, .max_tokens = 96};
	struct kvhost_open_result found;
	struct kvhost_sequence *seq, *none = NULL;
	struct kvhost_step step;
	struct engine e, late;
	struct engine_model model = ENGINE_SMALL("small");
	uint32_t tokens[96];

	(void)state;
	engine_tokens(tokens, 96, 0, 1);
	prompt.tokens = tokens;
	start(&e, "small");
	assert_int_equal(kvhost_open(e.pool, &prompt, &seq, &found), 0);
	assert_int_equal(kvctl(&d, "drain", "--json", NULL, NULL), 0);
	assert_true(says("\"state\": \"draining\""));
	assert_true(says("\"sessions\": 1"));
	assert_true(says("\"sequences\": 1"));
	assert_int_equal(kvctl(&d, "health", NULL, NULL, NULL), 1);

	assert_int_equal(kvhost_open(e.pool, &prompt, &none, &found), KVHOST_ESHUTDOWN);
	assert_string_equal(kvhost_reason(e.host), "the daemon drains and takes nothing new until "
						   "kvctl drain --undo");
	assert_non_null(strstr(kvhost_strerror(KVHOST_ESHUTDOWN), "or drains"));
	assert_int_equal(kvhost_fork(seq, 96, &none), KVHOST_ESHUTDOWN);
	assert_int_equal(engine_start(&late, d.socket, &model), KVHOST_ESHUTDOWN);
	engine_stop(&late);
	assert_int_equal(kvhost_step_begin(seq, 32, 0, &step), 0);
	assert_int_equal(kvhost_step_commit(&step, 32 - step.start_tokens, NULL, 0, NULL, 0), 0);
	assert_int_equal(kvhost_close(&seq), 0);

	assert_int_equal(kvctl(&d, "drain", "--json", NULL, NULL), 0);
	assert_true(says("\"sequences\": 0"));
	assert_int_equal(kvctl(&d, "drain", "--undo", NULL, NULL), 0);
	assert_int_equal(kvctl(&d, "health", NULL, NULL, NULL), 0);
	assert_int_equal(engine_serve(&e, tokens, 32, NULL), 0);
	engine_stop(&e);
	assert_int_equal(kvctl(&d, "drain", NULL, NULL, NULL), 0);
	assert_int_equal(daemon_stop(&d, LONG_MS), 0);
}

/* ---- drop ---- */

static void retained_pages_are_given_up_on_demand(void **state)
{
	struct engine e;
	uint32_t tokens[64], cached = 0;

	(void)state;
	start(&e, "small");
	engine_tokens(tokens, 64, 0, 1);
	assert_int_equal(engine_serve(&e, tokens, 64, NULL), 0);
	assert_int_equal(engine_serve(&e, tokens, 64, &cached), 0);
	assert_true(cached > 0);
	assert_int_equal(kvctl(&d, "drop", "nobody", NULL, NULL), 1);
	assert_true(says("no namespace is called \"nobody\""));
	assert_int_equal(daemon_await(&d, "small", "pool_pages_retained", 4, WITHIN_MS), 4);
	assert_int_equal(kvctl(&d, "drop", "default", "--json", NULL), 0);
	assert_true(says("\"dropped_pages\": 4"));
	assert_int_equal(daemon_await(&d, "small", "pool_pages_retained", 0, WITHIN_MS), 0);
	assert_int_equal(engine_serve(&e, tokens, 64, &cached), 0);
	assert_int_equal(cached, 0);
	assert_int_equal(kvctl(&d, "drop", "--all", "--json", NULL), 0);
	assert_true(says("\"dropped_pages\": 4"));
	assert_true(engine_check(&e));
	engine_stop(&e);
}

/* ---- doctor ---- */

static void the_doctor_looks_with_and_without_a_daemon(void **state)
{
	static const char *const checks[] = {"kernel",
					     "locked memory",
					     "memory",
					     "huge pages",
					     "transparent huge pages",
					     "io_uring",
					     "NUMA",
					     "GPU",
					     "daemon",
					     "layout",
					     "socket",
					     "runtime directory",
					     "group kvhost-admin"};
	int result;

	(void)state;
	for (int round = 0; round < 2; round++) {
		result = kvctl(&d, "doctor", "--json", NULL, NULL);
		assert_in_range(result, 0, 1);
		for (size_t i = 0; i < sizeof(checks) / sizeof(*checks); i++) {
			char text[64];

			(void)snprintf(text, sizeof(text), "\"check\": \"%s\"", checks[i]);
			assert_true(says(text));
		}
		assert_int_equal(result, count_of("\"state\": \"mend\"") > 0);
		assert_true(says(result ? "\"ok\": false" : "\"ok\": true"));
		/* What is to be mended says how. */
		assert_true(count_of("\"command\": \"") >= count_of("\"state\": \"mend\""));
		assert_int_equal(kvctl(&d, "doctor", NULL, NULL, NULL), result);
		assert_true(says(result ? "there is something to mend" : "all is fine"));
		if (round == 0)
			assert_int_equal(daemon_stop(&d, LONG_MS), 0);
	}
	assert_true(says("no answer"));
}

/* Not everybody has it as a service. */
#define START   "systemctl start kvhostd  # or kvhostd with its flags, where it is no service"
#define RESTART "systemctl restart kvhostd  # or end it and start it again, where it is no service"

static void doctor(const struct daemon *of)
{
	(void)kvctl(of, "doctor", "--json", NULL, NULL);
}

static void the_doctor_names_what_mends_the_cause(void **state)
{
	struct daemon wrong = d;
	char command[160];

	(void)state;
	/* The daemon has its files elsewhere: no right is lacking. */
	(void)snprintf(wrong.stats, sizeof(wrong.stats), "%s/none", d.run);
	doctor(&wrong);
	(void)snprintf(command, sizeof(command), "kvctl --stats %s doctor", d.stats);
	assert_string_equal(diagnosis("layout", "state"), "mend");
	assert_string_equal(diagnosis("layout", "command"), command);
	assert_string_equal(diagnosis("stats file", "command"), command);
	assert_int_equal(count_of("usermod"), 0);
	/* It drains because somebody said so. */
	assert_int_equal(kvctl(&d, "drain", NULL, NULL, NULL), 0);
	doctor(&d);
	assert_string_equal(diagnosis("daemon", "command"), "kvctl drain --undo");
	assert_string_equal(diagnosis("layout", "command"), "kvctl drain --undo");
	/* It has lost a file: it runs already. */
	assert_int_equal(unlink(d.stats), 0);
	doctor(&d);
	assert_string_equal(diagnosis("layout", "command"), RESTART);
	assert_string_equal(diagnosis("stats file", "command"), RESTART);
	/* It hangs: so it need not be started. */
	assert_int_equal(kill(d.pid, SIGSTOP), 0);
	doctor(&d);
	assert_string_equal(diagnosis("daemon", "state"), "mend");
	assert_string_equal(diagnosis("daemon", "command"), RESTART);
	assert_string_equal(diagnosis("layout", "command"), RESTART);
	assert_int_equal(count_of("systemctl start"), 0);
	/* There is none. */
	daemon_kill(&d);
	doctor(&d);
	assert_string_equal(diagnosis("daemon", "state"), "note");
	assert_string_equal(diagnosis("daemon", "command"), START);
	assert_string_equal(diagnosis("layout", "state"), "note");
	assert_string_equal(diagnosis("layout", "command"), START);
	assert_int_equal(count_of("usermod"), 0);
}

static void a_pool_that_has_its_memory_lacks_none(void **state)
{
	static const char json[] =
	    "{\"core\": {\"require_hugepages\": %s}, \"pools\": [{\"name\": \"small\","
	    " \"pool_bytes\": \"1GiB\", \"pool_pages\": 64, \"kv_page_size\": 16,"
	    " \"max_sequence_length\": 512}, {\"name\": \"vast\", \"pool_bytes\": \"512GiB\"}]}\n";
	struct engine e;
	char text[512];

	(void)state;
	for (int must = 1; must >= 0; must--) {
		daemon_remove(&d);
		(void)snprintf(text, sizeof(text), json, must ? "true" : "false");
		d = (struct daemon){0};
		daemon_start(&d, text);
		doctor(&d);
		assert_string_equal(diagnosis("huge pages", "state"), "note");
		assert_int_equal(!strstr(diagnosis("huge pages", "needed"), "refused ("), !must);
		assert_string_equal(diagnosis("memory", "state"), "note");
		assert_int_equal(strncmp(diagnosis("memory", "needed"), "513 GiB ", 8), 0);
	}
	start(&e, "small");
	doctor(&d);
	assert_int_equal(strncmp(diagnosis("memory", "needed"), "512 GiB ", 8), 0);
	engine_stop(&e);
}

/* ---- words ---- */

static void wrong_words_are_refused_with_the_usage(void **state)
{
	static const char *const wrong[][4] = {
	    {"stats", "--watch=0"},
	    {"stats", "--watch=4000"},
	    {"stats", "--watch=1e3"},
	    {"stats", "--watch", "5x"},
	    {"stats", "--watch", "--json"},
	    {"stats", "--prometheus", "--json"},
	    {"health", "--prometheus"},
	    {"health", "--watch"},
	    {"health", "--undo"},
	    {"health", "more"},
	    {"pools", "small"},
	    {"tiers", "small", "mapped"},
	    {"tiers", ""},
	    {"pool"},
	    {"pool", "keep", "small"},
	    {"pool", "drop"},
	    {"pool", "drop", ""},
	    {"pool", "drop", "a", "b"},
	    {"drop"},
	    {"drop", "a", "b"},
	    {"drop", "a", "--all"},
	    {"drop", ""},
	    {"drain", "all"},
	    {"doctor", "who"},
	    {"--undone"},
	    {"nothing"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		if (kvctl(&d, wrong[i][0], wrong[i][1], wrong[i][2], wrong[i][3]) != 2)
			fail_msg("case %zu was not refused: %s", i, operator_output);
		assert_true(says("usage: kvctl"));
	}
}

#define OF_A_DAEMON(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    OF_A_DAEMON(stats_speak_prometheus),
	    OF_A_DAEMON(stats_need_no_daemon_that_moves),
	    OF_A_DAEMON(watching_goes_on_through_a_restart),
	    OF_A_DAEMON(pools_show_every_line_of_their_plan),
	    OF_A_DAEMON(a_pool_is_dropped_when_nobody_uses_it),
	    OF_A_DAEMON(a_pool_whose_clients_died_can_be_dropped),
	    OF_A_DAEMON(a_pool_with_pages_in_quarantine_can_be_dropped),
	    OF_A_DAEMON(an_idle_pool_goes_after_its_time),
	    OF_A_DAEMON(a_drained_daemon_finishes_what_is_open),
	    OF_A_DAEMON(retained_pages_are_given_up_on_demand),
	    OF_A_DAEMON(the_doctor_looks_with_and_without_a_daemon),
	    OF_A_DAEMON(the_doctor_names_what_mends_the_cause),
	    OF_A_DAEMON(a_pool_that_has_its_memory_lacks_none),
	    OF_A_DAEMON(wrong_words_are_refused_with_the_usage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
