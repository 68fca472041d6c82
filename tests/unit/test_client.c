/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client: libkvhost's connection and requests against a daemon that keeps to a script.
 *
 * One thread for the client and one for the fake daemon.
 */
#include "libclient/kvhost.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/fake_daemon.h"

#define SECOND_NS 1000000000ull

static int setup(void **state)
{
	*state = fake_new();
	return 0;
}

static int teardown(void **state)
{
	struct fake *f = *state;

	fake_free(&f);
	return 0;
}

static int try_connect(struct fake *f)
{
	struct kvhost_options options = {.socket = f->path, .connect_timeout_us = 200000};
	struct kvhost *host = NULL;
	int result;

	result = kvhost_connect(&options, &host);
	if (result)
		assert_null(host);
	kvhost_disconnect(&host);
	return result;
}

/* ---- handshake ---- */

static void a_refusal_comes_with_the_daemons_words(void **state)
{
	struct fake *f = *state;

	f->script.refuse_status = WIRE_EPERM;
	f->script.text = "user 12 may not use the namespace a";
	fake_start(f);
	assert_int_equal(try_connect(f), KVHOST_EPERM);
	assert_string_equal(kvhost_reason(NULL), "user 12 may not use the namespace a");
}

static void a_refusal_for_the_version_says_both_versions(void **state)
{
	struct fake *f = *state;

	f->script.refuse_status = WIRE_EVERSION;
	fake_start(f);
	assert_int_equal(try_connect(f), KVHOST_EVERSION);
	assert_string_equal(kvhost_reason(NULL),
			    "this library speaks version 1, the daemon 7 to 7");
}

static void a_welcome_in_another_version_is_refused(void **state)
{
	struct fake *f = *state;

	f->script.welcome_major = WIRE_MAJOR + 1;
	fake_start(f);
	assert_int_equal(try_connect(f), KVHOST_EVERSION);
}

static void a_welcome_without_descriptors_is_a_violation(void **state)
{
	struct fake *f = *state;

	f->script.bare_welcome = true;
	fake_start(f);
	assert_int_equal(try_connect(f), KVHOST_EVIOLATION);
	assert_non_null(strstr(kvhost_reason(NULL), "n_fds"));
}

static void a_control_segment_too_small_for_its_rings_is_a_violation(void **state)
{
	struct fake *f = *state;

	f->script.small_control = true;
	fake_start(f);
	assert_int_equal(try_connect(f), KVHOST_EVIOLATION);
}

static void a_daemon_that_says_nothing_is_waited_for_no_longer_than_told(void **state)
{
	struct fake *f = *state;
	uint64_t start_ns = fake_now_ns();

	f->script.silent = true;
	fake_start(f);
	assert_int_equal(try_connect(f), KVHOST_ETIMEDOUT);
	assert_true(fake_now_ns() - start_ns < 5 * SECOND_NS);
}

static void nobody_there_is_gone(void **state)
{
	struct kvhost_options options = {.socket = "/nonexistent/kvhost.sock"};
	struct kvhost *host = NULL;

	(void)state;
	assert_int_equal(kvhost_connect(&options, &host), KVHOST_EGONE);
	assert_non_null(strstr(kvhost_reason(NULL), "/nonexistent/kvhost.sock"));
}

static void names_that_do_not_fit_are_refused_before_anything_is_sent(void **state)
{
	struct kvhost_options options = {.client = "0123456789012345678901234567890123456789"};
	struct kvhost *host = NULL;

	(void)state;
	assert_int_equal(kvhost_connect(&options, &host), KVHOST_EINVAL);
	options = (struct kvhost_options){.name_space = "a\nb"};
	assert_int_equal(kvhost_connect(&options, &host), KVHOST_EINVAL);
	assert_int_equal(kvhost_connect(NULL, NULL), KVHOST_EINVAL);
}

static void the_nonce_is_echoed_with_credentials(void **state)
{
	struct fake *f = *state;
	struct kvhost *host;

	f->script.nonce = 0x1122334455667788u;
	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_ping(host), 0);
	kvhost_disconnect(&host);
	fake_stop(f);
	assert_true(f->nonce_seen == 0x1122334455667788u);
	assert_int_equal(f->pid_seen, getpid());
}

/* ---- requests ---- */

static void pings_are_answered_and_counted(void **state)
{
	struct fake *f = *state;
	struct kvhost_counters counters;
	struct kvhost *host;

	fake_start(f);
	host = fake_connect(f);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(kvhost_ping(host), 0);
	assert_int_equal(kvhost_read_counters(host, &counters), 0);
	assert_int_equal(counters.submitted, 1001);
	assert_int_equal(counters.finished, 1001);
	assert_int_equal(counters.hits, 17);
	assert_int_equal(counters.sleeps + counters.spins, 1001);
	kvhost_disconnect(&host);
	assert_null(host);
}

static void finished_requests_come_back_with_ticket_and_user(void **state)
{
	struct fake *f = *state;
	struct kvhost_finished done;
	kvhost_ticket tickets[3];
	struct kvhost *host;
	int users[3];

	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_wait(host, 0, 0, &done), KVHOST_ENOENT);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kvhost_submit_ping(host, &users[i], &tickets[i]), 0);
	/* Synchronous ones in between leave them alone. */
	assert_int_equal(kvhost_ping(host), 0);
	assert_int_equal(kvhost_wait(host, tickets[1], 5000000, &done), 0);
	assert_true(done.ticket == tickets[1] && done.user == &users[1] && done.result == 0);
	assert_int_equal(kvhost_wait(host, 0, 5000000, &done), 0);
	assert_true(done.ticket == tickets[0]);
	assert_int_equal(kvhost_poll(host, &done, 1), 1);
	assert_true(done.ticket == tickets[2]);
	assert_int_equal(kvhost_poll(host, &done, 1), 0);
	assert_int_equal(kvhost_wait(host, tickets[2], 0, &done), KVHOST_ENOENT);
	kvhost_disconnect(&host);
}

/* Holds what it gets; a cancel ends its target as cancelled. */
static void hold_until_cancelled(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	if (s->opcode == WIRE_OP_NULL)
		a->none = true;
	if (s->opcode == WIRE_OP_CANCEL) {
		struct completion c = {
		    .submission = s->arg0, .opcode = WIRE_OP_NULL, .status = WIRE_ECANCELLED};

		(void)ring_put(&f->answers, &c);
	}
}

static void credits_bound_what_is_under_way_and_cancel_still_goes(void **state)
{
	struct fake *f = *state;
	kvhost_ticket tickets[FAKE_CREDITS], more;
	struct kvhost_finished done;
	struct kvhost *host;

	f->script.answer = hold_until_cancelled;
	fake_start(f);
	host = fake_connect(f);
	for (int i = 0; i < FAKE_CREDITS; i++)
		assert_int_equal(kvhost_submit_ping(host, NULL, &tickets[i]), 0);
	assert_int_equal(kvhost_submit_ping(host, NULL, &more), KVHOST_EFULL);
	assert_int_equal(kvhost_wait(host, 0, 1000, &done), KVHOST_ETIMEDOUT);
	assert_int_equal(kvhost_cancel(host, tickets[2]), 0);
	assert_int_equal(kvhost_wait(host, tickets[2], 5000000, &done), 0);
	assert_int_equal(done.result, KVHOST_ECANCELLED);
	for (int i = 0; i < FAKE_CREDITS; i++) {
		if (i == 2)
			continue;
		assert_int_equal(kvhost_cancel(host, tickets[i]), 0);
		assert_int_equal(kvhost_wait(host, tickets[i], 5000000, &done), 0);
		assert_int_equal(kvhost_cancel(host, tickets[i]), KVHOST_ENOENT);
	}
	assert_int_equal(kvhost_submit_ping(host, NULL, &more), 0);
	kvhost_disconnect(&host);
}

static void finished_ones_that_nobody_takes_fill_the_credits_too(void **state)
{
	struct fake *f = *state;
	struct kvhost_finished done[FAKE_CREDITS];
	struct kvhost *host;
	kvhost_ticket t;

	fake_start(f);
	host = fake_connect(f);
	for (int i = 0; i < FAKE_CREDITS; i++)
		assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
	assert_int_equal(kvhost_ping(host), 0);
	assert_int_equal(kvhost_submit_ping(host, NULL, &t), KVHOST_EFULL);
	assert_int_equal(kvhost_ping(host), 0);
	assert_int_equal(kvhost_poll(host, done, FAKE_CREDITS), FAKE_CREDITS);
	assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
	kvhost_disconnect(&host);
}

static void a_full_ring_only_delays_requests(void **state)
{
	struct fake *f = *state;
	struct kvhost_finished done;
	struct kvhost *host;
	kvhost_ticket t, last = 0;
	int n = 0;

	f->script.lazy = true;
	fake_start(f);
	host = fake_connect(f);
	for (int i = 0; i < 30; i++) {
		while (kvhost_submit_ping(host, NULL, &t) == KVHOST_EFULL) {
			assert_int_equal(kvhost_wait(host, 0, 5000000, &done), 0);
			assert_true(done.result == 0 && done.ticket > last);
			last = done.ticket;
			n++;
		}
		assert_int_equal(kvhost_ping(host), 0);
	}
	for (; n < 30; n++)
		assert_int_equal(kvhost_wait(host, 0, 5000000, &done), 0);
	kvhost_disconnect(&host);
}

static void refuse_with_words(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	struct text_name name;

	(void)s;
	name = text_write(&f->texts, "no room for 7 pages");
	a->c.status = WIRE_ENOSPC;
	a->c.text = name.text;
	a->c.text_serial = name.serial;
}

static void a_failure_brings_the_daemons_words(void **state)
{
	struct fake *f = *state;
	struct kvhost_finished done;
	struct kvhost *host;
	kvhost_ticket t;

	f->script.answer = refuse_with_words;
	fake_start(f);
	host = fake_connect(f);
	assert_string_equal(kvhost_reason(host), "");
	assert_int_equal(kvhost_ping(host), KVHOST_ENOSPC);
	assert_string_equal(kvhost_reason(host), "no room for 7 pages");
	assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
	assert_int_equal(kvhost_wait(host, t, 5000000, &done), 0);
	assert_int_equal(done.result, KVHOST_ENOSPC);
	assert_string_equal(kvhost_strerror(KVHOST_ENOSPC), "it could never fit in the pool");
	assert_string_equal(kvhost_strerror(0), "success");
	assert_non_null(kvhost_strerror(-9999));
	kvhost_disconnect(&host);
}

/* ---- a daemon that breaks the rules ---- */

static void name_another(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	(void)f;
	(void)s;
	a->c.submission += 1000;
}

static void change_the_question(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	(void)f;
	(void)s;
	a->c.opcode = WIRE_OP_TABLE;
}

static void invent_a_status(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	(void)f;
	(void)s;
	a->c.status = 5;
}

static void spoil_the_ring(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	(void)s;
	a->none = true;
	atomic_store(&f->answers.entries[0].sequence, 999999);
}

static void answers_that_break_the_protocol_end_the_session(void **state)
{
	void (*const ways[])(struct fake *, const struct submission *, struct fake_answer *) = {
	    name_another, change_the_question, invent_a_status, spoil_the_ring};

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct fake *f = fake_new();
		struct kvhost_finished done;
		struct kvhost *host;
		kvhost_ticket t;

		f->script.answer = ways[i];
		fake_start(f);
		host = fake_connect(f);
		assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
		assert_int_equal(kvhost_wait(host, t, 5000000, &done), 0);
		assert_int_equal(done.result, KVHOST_EVIOLATION);
		assert_int_not_equal(strlen(kvhost_reason(host)), 0);
		assert_int_equal(kvhost_ping(host), KVHOST_EGONE);
		kvhost_disconnect(&host);
		fake_free(&f);
	}
}

/* ---- death ---- */

static void die_at_cancel(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	(void)f;
	a->none = s->opcode == WIRE_OP_NULL;
	a->die = s->opcode == WIRE_OP_COUNTERS;
}

static void a_death_in_a_wait_ends_everything_at_once(void **state)
{
	struct fake *f = *state;
	uint64_t start_ns = fake_now_ns();
	struct kvhost_finished done[4];
	struct kvhost_counters counters;
	struct kvhost *host;
	kvhost_ticket t;

	f->script.answer = die_at_cancel;
	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
	assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
	assert_int_equal(kvhost_read_counters(host, &counters), KVHOST_EGONE);
	assert_true(fake_now_ns() - start_ns < SECOND_NS);
	assert_int_equal(kvhost_poll(host, done, 4), 2);
	assert_int_equal(done[0].result, KVHOST_EGONE);
	assert_int_equal(done[1].result, KVHOST_EGONE);
	assert_int_equal(kvhost_poll(host, done, 4), KVHOST_EGONE);
	assert_int_equal(kvhost_ping(host), KVHOST_EGONE);
	assert_null(kvhost_window_take(host, 10));
	kvhost_disconnect(&host);
}

static void a_death_is_seen_by_one_who_only_polls(void **state)
{
	struct fake *f = *state;
	uint64_t start_ns = fake_now_ns();
	struct kvhost_finished done;
	struct kvhost *host;
	kvhost_ticket t;
	int n = 0;

	f->script.answer = hold_until_cancelled;
	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
	fake_stop(f);
	while (n == 0 && fake_now_ns() - start_ns < SECOND_NS)
		n = kvhost_poll(host, &done, 1);
	assert_int_equal(n, 1);
	assert_int_equal(done.result, KVHOST_EGONE);
	kvhost_disconnect(&host);
}

static void bye_leaves_its_words(void **state)
{
	struct fake *f = *state;
	struct kvhost *host;
	int result;

	f->script.text = "the service is being updated";
	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_ping(host), 0);
	f->send_bye = true;
	do {
		result = kvhost_ping(host);
	} while (result == 0);
	assert_int_equal(result, KVHOST_EGONE);
	assert_string_equal(kvhost_reason(host), "the service is being updated");
	kvhost_disconnect(&host);
}

static void reconnect_makes_a_session_and_leaves_old_objects_void(void **state)
{
	struct fake *f = *state;
	struct kvhost_prompt prompt = {.tokens = (uint32_t[]){1, 2, 3, 4}, .n_tokens = 4};
	struct kvhost_sequence *seq, *other;
	struct kvhost_pool *pool, *fresh;
	struct kvhost_open_result found;
	struct kvhost_counters counters;
	struct kvhost *host;
	uint64_t epoch;

	fake_start(f);
	host = fake_connect(f);
	epoch = kvhost_boot_epoch(host);
	pool = fake_attach(host, 0);
	assert_int_equal(kvhost_open(pool, &prompt, &seq, &found), 0);
	assert_int_equal(kvhost_reconnect(host), KVHOST_EBUSY);
	f->send_bye = true;
	while (kvhost_ping(host) == 0)
		;
	assert_int_equal(kvhost_truncate(seq, 0), KVHOST_EGONE);
	f->send_bye = false;
	assert_int_equal(kvhost_reconnect(host), 0);
	assert_true(kvhost_boot_epoch(host) != epoch);
	assert_int_equal(kvhost_ping(host), 0);
	assert_int_equal(kvhost_truncate(seq, 0), KVHOST_EGONE);
	assert_int_equal(kvhost_open(pool, &prompt, &other, &found), KVHOST_EGONE);
	assert_int_equal(kvhost_pool_detach(&pool), KVHOST_EGONE);
	assert_null(pool);
	assert_int_equal(kvhost_close(&seq), KVHOST_EGONE);
	assert_null(seq);
	fresh = fake_attach(host, 0);
	assert_int_equal(kvhost_open(fresh, &prompt, &seq, &found), 0);
	assert_int_equal(kvhost_read_counters(host, &counters), 0);
	assert_int_equal(counters.reconnects, 1);
	kvhost_disconnect(&host);
}

static void a_child_must_not_use_its_parents_connection(void **state)
{
	struct fake *f = *state;
	struct kvhost_finished done;
	struct kvhost_pool *pool;
	struct kvhost *host;
	int status = -1;
	pid_t child;

	fake_start(f);
	host = fake_connect(f);
	pool = fake_attach(host, 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int wrong = 0;

		wrong |= kvhost_ping(host) != KVHOST_EFORK;
		wrong |= kvhost_poll(host, &done, 1) != KVHOST_EFORK;
		wrong |= kvhost_pool_detach(&pool) != KVHOST_EFORK;
		wrong |= kvhost_reconnect(host) != KVHOST_EFORK;
		wrong |= kvhost_descriptor(host) != KVHOST_EFORK;
		wrong |= kvhost_window_take(host, 1) != NULL;
		kvhost_disconnect(&host);
		_exit(wrong);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The child's end of it did not end the parent's. */
	assert_int_equal(kvhost_ping(host), 0);
	assert_int_equal(kvhost_pool_detach(&pool), 0);
	kvhost_disconnect(&host);
}

/* ---- sleeping ---- */

static void a_caller_can_sleep_on_the_descriptor(void **state)
{
	struct fake *f = *state;
	struct kvhost_finished done;
	uint64_t start_ns = fake_now_ns();
	struct kvhost *host;
	kvhost_ticket t;
	int n = 0;

	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_submit_ping(host, NULL, &t), 0);
	while (n == 0) {
		struct pollfd p = {.fd = kvhost_descriptor(host), .events = POLLIN};

		assert_true(fake_now_ns() - start_ns < 5 * SECOND_NS);
		if (kvhost_sleep_begin(host) == 1)
			assert_int_equal(poll(&p, 1, 5000), 1);
		kvhost_sleep_end(host);
		n = kvhost_poll(host, &done, 1);
	}
	assert_int_equal(n, 1);
	assert_true(done.ticket == t);
	kvhost_disconnect(&host);
}

static void window_memory_is_taken_and_given(void **state)
{
	struct fake *f = *state;
	struct kvhost *host;
	void *a, *b;

	f->script.window_bytes = 65536;
	fake_start(f);
	host = fake_connect(f);
	a = kvhost_window_take(host, 40000);
	assert_non_null(a);
	assert_int_equal((uintptr_t)a % 64, 0);
	assert_null(kvhost_window_take(host, 40000));
	kvhost_window_give(host, a);
	kvhost_window_give(host, NULL);
	b = kvhost_window_take(host, 40000);
	assert_ptr_equal(a, b);
	kvhost_disconnect(&host);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_refusal_comes_with_the_daemons_words),
	    TEST(a_refusal_for_the_version_says_both_versions),
	    TEST(a_welcome_in_another_version_is_refused),
	    TEST(a_welcome_without_descriptors_is_a_violation),
	    TEST(a_control_segment_too_small_for_its_rings_is_a_violation),
	    TEST(a_daemon_that_says_nothing_is_waited_for_no_longer_than_told),
	    TEST(nobody_there_is_gone),
	    TEST(names_that_do_not_fit_are_refused_before_anything_is_sent),
	    TEST(the_nonce_is_echoed_with_credentials),
	    TEST(pings_are_answered_and_counted),
	    TEST(finished_requests_come_back_with_ticket_and_user),
	    TEST(credits_bound_what_is_under_way_and_cancel_still_goes),
	    TEST(finished_ones_that_nobody_takes_fill_the_credits_too),
	    TEST(a_full_ring_only_delays_requests),
	    TEST(a_failure_brings_the_daemons_words),
	    TEST(answers_that_break_the_protocol_end_the_session),
	    TEST(a_death_in_a_wait_ends_everything_at_once),
	    TEST(a_death_is_seen_by_one_who_only_polls),
	    TEST(bye_leaves_its_words),
	    TEST(reconnect_makes_a_session_and_leaves_old_objects_void),
	    TEST(a_child_must_not_use_its_parents_connection),
	    TEST(a_caller_can_sleep_on_the_descriptor),
	    TEST(window_memory_is_taken_and_given),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
