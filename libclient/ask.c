/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask: the session's counters, and an operator's questions.
 *
 * Owned by the thread that uses the connection. Both calls wait for the daemon.
 */
#include "libclient/internal.h"

#include <stdlib.h>
#include <string.h>

#define ANSWER_BYTES 16384u /* room for a first try */
#define ANSWER_TRIES 4

static const struct {
	const char *word;
	uint32_t question;
} questions[] = {
    {"health", PAYLOAD_ADMIN_HEALTH}, {"sessions", PAYLOAD_ADMIN_SESSIONS},
    {"check", PAYLOAD_ADMIN_CHECK},   {"pools", PAYLOAD_ADMIN_POOLS},
    {"config", PAYLOAD_ADMIN_CONFIG}, {"pool-drop", PAYLOAD_ADMIN_POOL_DROP},
    {"drain", PAYLOAD_ADMIN_DRAIN},   {"undrain", PAYLOAD_ADMIN_UNDRAIN},
    {"drop", PAYLOAD_ADMIN_DROP},     {"tiers", PAYLOAD_ADMIN_TIERS},
};

int kvhost_read_counters(struct kvhost *host, struct kvhost_counters *out)
{
	struct payload_counters c;
	struct request *r;
	int result;

	result = host_check(host);
	if (result)
		return result;
	if (!out)
		return KVHOST_EINVAL;
	result = request_take(host, REQUEST_SYNCHRONOUS, WIRE_OP_COUNTERS, &r);
	if (result)
		return result;
	result = request_range(host, r, 0, sizeof(c));
	if (result == 0) {
		r->finish = finish_keep;
		result = request_run(host, r);
	}
	if (result == 0)
		memcpy(&c, request_out(host, r), sizeof(c));
	request_give(host, r);
	if (result)
		return result;
	*out = host->counters;
	out->requests = c.requests;
	out->completions = c.completions;
	out->open_sequences = c.open_sequences;
	out->lookups = c.lookups;
	out->hits = c.hits;
	out->cached_tokens = c.cached_tokens;
	out->prompt_tokens = c.prompt_tokens;
	out->commits = c.commits;
	out->aborts = c.aborts;
	out->heap_bytes = c.heap_bytes;
	out->namespace_pages = c.namespace_pages;
	out->namespace_retained_pages = c.namespace_retained_pages;
	out->namespace_sequences = c.namespace_sequences;
	out->namespace_sessions = c.namespace_sessions;
	return 0;
}

/* On 0 *wanted_bytes is the length of the answer; *out is set if all of it has arrived. */
static int ask_once(struct kvhost *host, const struct payload_admin *in, uint32_t *wanted_bytes,
		    char **out)
{
	uint32_t room_bytes = *wanted_bytes;
	struct request *r;
	char *text = NULL;
	int result;

	result = request_take(host, REQUEST_SYNCHRONOUS, WIRE_OP_ADMIN, &r);
	if (result)
		return result;
	result = request_range(host, r, sizeof(*in), room_bytes);
	if (result == 0) {
		memcpy(request_in(host, r), in, sizeof(*in));
		r->finish = finish_keep;
		result = request_run(host, r);
	}
	/* Where it did not fit, the daemon names the length and refuses. */
	if (result == KVHOST_EINVAL && r->finish && r->u.answer.count > room_bytes)
		result = 0;
	if (result == 0)
		*wanted_bytes = r->u.answer.count;
	if (result == 0 && *wanted_bytes <= room_bytes) {
		text = malloc((size_t)*wanted_bytes + 1);
		if (text) {
			memcpy(text, request_out(host, r), *wanted_bytes);
			text[*wanted_bytes] = '\0';
			*out = text;
		} else {
			result = KVHOST_ENOMEM;
		}
	}
	request_give(host, r);
	return result;
}

int kvhost_ask(struct kvhost *host, const char *question, const char *argument, char **out)
{
	uint32_t wanted_bytes = ANSWER_BYTES;
	struct payload_admin in = {0};
	char *text = NULL;
	int result;

	result = host_check(host);
	if (result)
		return result;
	if (!question || !out)
		return KVHOST_EINVAL;
	for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
		if (strcmp(question, questions[i].word) == 0)
			in.question = questions[i].question;
	}
	if (in.question == 0)
		return host_fail(host, KVHOST_EINVAL,
				 "there is no such question; there are health, sessions, check, "
				 "pools, tiers, config, pool-drop, drain, undrain and drop");
	if (argument && strlen(argument) >= sizeof(in.argument))
		return host_fail(host, KVHOST_EINVAL, "the argument is longer than %zu bytes",
				 sizeof(in.argument) - 1);
	if (argument)
		memcpy(in.argument, argument, strlen(argument));
	if (wanted_bytes > host->window.bytes / 2)
		wanted_bytes = (uint32_t)(host->window.bytes / 2);
	/* What is asked about may have grown when it is asked about again. */
	for (int i = 0; i < ANSWER_TRIES && result == 0 && !text; i++)
		result = ask_once(host, &in, &wanted_bytes, &text);
	if (result)
		return result;
	if (!text)
		return host_fail(host, KVHOST_EAGAIN, "the answer grew faster than it was read");
	*out = text;
	return 0;
}
