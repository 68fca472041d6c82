/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_ask: questions and orders that the daemon answers with JSON.
 *
 * One thread. Attaching waits 3 s at most; an answer that does not come in 30 s ends the program.
 */

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/kvhost.h"
#include "tools/ctl.h"

#define CONNECT_US 3000000
#define ANSWER_S   30

static enum ctl_exit print_config(const json_t *root, FILE *out)
{
	static const char *const columns[] = {"key", "value", "unit", "origin", NULL};
	const json_t *values = json_object_get(root, "values");
	const char *file = json_string_value(json_object_get(root, "file"));

	fprintf(out, "file %s\n", file && file[0] ? file : "none");
	ctl_print_table(values, columns, 0, out);
	return CTL_OK;
}

static enum ctl_exit print_list(const json_t *root, const char *name, FILE *out)
{
	const json_t *list = json_object_get(root, name);

	if (json_is_array(list) && json_array_size(list) == 0)
		fprintf(out, "no %s\n", name);
	else
		ctl_print_object(root, 0, out);
	return CTL_OK;
}

/* What the answer means for the exit code. */
static enum ctl_exit judge(const json_t *root, const char *question)
{
	const char *state = json_string_value(json_object_get(root, "state"));

	/* A pool that is gone although its memory did not go back well. */
	if (!strcmp(question, "pool-drop"))
		return json_object_get(root, "error") ? CTL_UNHEALTHY : CTL_OK;
	if (!strcmp(question, "check"))
		return json_is_true(json_object_get(root, "ok")) ? CTL_OK : CTL_UNHEALTHY;
	if (!strcmp(question, "health"))
		return state && !strcmp(state, "running") ? CTL_OK : CTL_UNHEALTHY;
	return CTL_OK;
}

static enum ctl_exit print_answer(const char *answer, const char *question, bool json, FILE *out)
{
	json_error_t error;
	json_t *root = json_loads(answer, 0, &error);
	enum ctl_exit result;

	if (!json_is_object(root)) {
		json_decref(root);
		fprintf(stderr, "kvctl: the daemon's answer is not JSON: %s\n", error.text);
		return CTL_UNHEALTHY;
	}
	result = judge(root, question);
	if (json) {
		json_dumpf(root, out, JSON_INDENT(1));
		fputc('\n', out);
	} else if (!strcmp(question, "config")) {
		print_config(root, out);
	} else if (!strcmp(question, "sessions") || !strcmp(question, "pools")) {
		print_list(root, question, out);
	} else {
		ctl_print_object(root, 0, out);
	}
	json_decref(root);
	return result;
}

static enum ctl_exit no_answer(const struct ctl_options *options, const char *question, int r,
			       const char *reason, FILE *out)
{
	const char *why = reason[0] ? reason : kvhost_strerror(r);
	bool is_there = r != KVHOST_EGONE; /* else nobody listens, or it has gone meanwhile */

	if (!strcmp(question, "health"))
		return ctl_stats_health(options, why, is_there, out);
	fprintf(stderr, "kvctl: %s\n", why);
	return is_there ? CTL_UNHEALTHY : CTL_NO_DAEMON;
}

static void give_up(int number)
{
	static const char text[] = "kvctl: the daemon took the question and does not answer\n";

	(void)number;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(CTL_UNHEALTHY);
	_exit(CTL_UNHEALTHY);
}

enum ctl_exit ctl_ask(const struct ctl_options *options, const char *question, const char *argument,
		      FILE *out)
{
	struct kvhost_options connect = {
	    .socket = options->socket, .client = "kvctl", .connect_timeout_us = CONNECT_US};
	struct kvhost *host = NULL;
	char *answer = NULL;
	enum ctl_exit result;
	int r;

	r = kvhost_connect(&connect, &host);
	if (r)
		return no_answer(options, question, r, kvhost_reason(NULL), out);
	/* A daemon that hangs now must not hang its tool. */
	signal(SIGALRM, give_up);
	alarm(ANSWER_S);
	r = kvhost_ask(host, question, argument, &answer);
	alarm(0);
	if (r)
		result = no_answer(options, question, r, kvhost_reason(host), out);
	else
		result = print_answer(answer, question, options->json, out);
	free(answer);
	kvhost_disconnect(&host);
	return result;
}
