/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what goes wrong at any copy between the device and KV-RAM: a script of two clients whose
 * prompts leave the device and come back, run once for each fault and each copy, before it runs and
 * after. One thread; nothing blocks.
 *
 * Whatever happens: what is served is right byte by byte, every request that can be answered is
 * answered by its deadline, the rest of the script goes on, and in the end everything is back.
 */
#include "tests/unit/core_world.h"

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

#include "daemon/base/testing.h"

#define PROMPTS 5u
#define SECONDS 20 /* of a child */

struct scene {
	uint32_t pages; /* of a prompt */
	struct core_world_wish wish;
};

/* A page has 256 KiB, a copy at most four of them. Of 30 pages prompts keep 12, and KV-RAM has room
 * for most of what leaves. */
static const struct scene small = {
    .pages = 10,
    .wish = {.heads = 32,
	     .frames = 4,
	     .pool = "\"pool_pages\": 30, \"max_sequence_length\": 176,"
		     " \"max_prefix_cache_pages\": 12, \"ram_floor_tokens\": 0"}};

/* A page has a frame and a part of one: a copy is one page, in two moves. */
static const struct scene wide = {
    .pages = 5,
    .wish = {.heads = 260,
	     .frames = 14,
	     .pool = "\"pool_pages\": 16, \"max_sequence_length\": 96,"
		     " \"max_prefix_cache_pages\": 6, \"ram_floor_tokens\": 0"}};

enum fault {
	NONE,
	FAILS,      /* the copy, before a byte has moved */
	BREAKS,     /* the copy, in the middle */
	IS_LATE,    /* the copy; others go on */
	IS_STUCK,   /* the device */
	IS_DROPPED, /* what is kept of all namespaces */
	CANCELLED,  /* opens that wait */
	HANGS_UP,   /* the first client */
	DIES,
	ALL_DIE, /* and their pool is dropped */
	STOPS,   /* the daemon */
	FAULTS,
};

struct strike_plan {
	enum fault fault;
	enum core_moment moment;
	uint64_t at; /* copy */
	bool struck;
	uint64_t dropped; /* submission of the operator's question */
	struct core_prompt open[2];
};

static struct core_world world;
static struct strike_plan plan;
static const struct scene *scene;

static int setup(void **state)
{
	memset(&world, 0, sizeof(world));
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	memset(protection_off, 0, sizeof(protection_off));
	return 0;
}

/* ---- the fault ---- */

static void end_client(struct core_client *c, bool exits)
{
	if (c->live)
		core_client_end(c, exits);
}

static void cancel_opens(void)
{
	for (int i = 0; i < 2; i++) {
		struct core_prompt *p = &plan.open[i];

		if (p->asked && p->client->replies[p->asked % CORE_SLOTS].submission != p->asked)
			(void)core_ask_cancel(p->client, p->asked);
	}
}

static enum core_verdict strike(struct core_world *w)
{
	struct core_client *operator= & w->clients[2];

	switch (plan.fault) {
	case FAILS:
		return CORE_FAILS;
	case BREAKS:
		return CORE_BREAKS;
	case IS_LATE:
		return CORE_IS_LATE;
	case IS_STUCK:
		return CORE_IS_STUCK;
	case IS_DROPPED:
		plan.dropped = core_ask_operator(operator, PAYLOAD_ADMIN_DROP, "");
		break;
	case CANCELLED:
		cancel_opens();
		break;
	case HANGS_UP:
	case DIES:
		end_client(&w->clients[0], plan.fault == DIES);
		break;
	case ALL_DIE:
		end_client(&w->clients[0], true);
		end_client(&w->clients[1], true);
		core_listen(w);
		plan.dropped = core_ask_operator(operator, PAYLOAD_ADMIN_POOL_DROP, "p");
		break;
	case STOPS:
		core_drain(&w->core);
		break;
	case NONE:
	case FAULTS:
		break;
	}
	core_listen(w);
	core_world_check(w);
	return CORE_RUNS;
}

static enum core_verdict watch(struct core_world *w, enum core_moment moment)
{
	if (w->copies_seen != plan.at || moment != plan.moment || plan.struck)
		return CORE_RUNS;
	plan.struck = true;
	return strike(w);
}

/* ---- the script ---- */

static void expect_status(struct core_world *w, int status)
{
	bool fits = status == 0;

	switch (plan.fault) {
	case IS_LATE:
	case IS_STUCK:
		fits |= status == WIRE_ETIMEDOUT;
		break;
	case CANCELLED:
		fits |= status == WIRE_ECANCELLED;
		break;
	case HANGS_UP:
	case DIES:
	case ALL_DIE:
	case STOPS:
		fits |= status == WIRE_EGONE;
		break;
	default:
		break;
	}
	core_check(w, fits, "a request ends with %d", status);
}

static void go_on(struct core_prompt *p)
{
	struct core_world *w = p->client->world;
	int status = core_opened(p);

	expect_status(w, status);
	if (status == 0) {
		expect_status(w, core_fill(p));
		expect_status(w, core_close(p));
	}
	p->asked = 0;
	core_world_check(w);
}

/* Both clients at once. */
static void serve(struct core_world *w, uint32_t first, uint32_t second)
{
	core_open(&plan.open[0], &w->clients[0], first, scene->pages);
	core_open(&plan.open[1], &w->clients[1], second, scene->pages);
	core_listen(w);
	go_on(&plan.open[0]);
	go_on(&plan.open[1]);
}

static void run_script(struct core_world *w)
{
	serve(w, 0, 1);
	serve(w, 2, 3);
	serve(w, 0, 0); /* is fetched once, for both */
	serve(w, 1, 2);
	serve(w, 4, 3);
	serve(w, 2, 0);
}

/* The world is well again: what is known is served, and then dropped. */
static void expect_health(struct core_world *w)
{
	struct core_client *operator= & w->clients[2], *c = &w->clients[0];
	struct frames_sums sums;

	end_client(&w->clients[0], true);
	end_client(&w->clients[1], true);
	core_listen(w);
	core_heal(w);
	core_check(w, !plan.dropped || core_await(operator, plan.dropped) == 0,
		   "the operator is not answered");
	core_check(w, !c->session, "a session that is over is still there");
	core_client_start(c, true);
	for (uint32_t i = 0; i < PROMPTS; i++)
		core_check(w, core_serve(c, i, scene->pages, NULL) == 0, "prompt %u is not served",
			   i);
	core_check(w,
		   core_await(operator, core_ask_operator(operator, PAYLOAD_ADMIN_DROP, "")) == 0,
		   "nothing can be dropped");
	sums = frames_sums(w->arena->frames);
	core_check(w, sums.objects == 0 && core_pool(w)->indexed == 0,
		   "%llu pages stay below, %llu on the device", (unsigned long long)sums.objects,
		   (unsigned long long)core_pool(w)->indexed);
}

/* How many copies there were. */
static uint64_t run(struct core_world *w, enum fault fault, enum core_moment moment, uint64_t at)
{
	const struct pool_stats *s;
	uint64_t copies;

	plan = (struct strike_plan){.fault = fault, .moment = moment, .at = at};
	core_world_start(w, &scene->wish);
	(void)snprintf(w->scene, sizeof(w->scene), "fault %d at copy %llu, %s", (int)fault,
		       (unsigned long long)at, moment == CORE_RUN ? "run" : "submitted");
	for (int i = 0; i < CORE_CLIENTS; i++)
		core_client_start(&w->clients[i], i < 2);
	w->watch = watch;
	run_script(w);
	copies = w->copies_seen;
	core_check(w, plan.struck == (fault != NONE), "the fault was not met");
	if (fault != STOPS)
		expect_health(w);
	s = &core_pool(w)->stats;
	core_check(w,
		   (fault != FAILS && fault != BREAKS) || s->spills_failed + s->restores_failed > 0,
		   "a copy that failed counts as a good one");
	core_world_stop(w);
	return copies;
}

/* ---- without a protection ---- */

static bool is_noticed(struct core_world *w, enum protection_name name, enum fault fault,
		       uint64_t at)
{
	static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT};
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		/* The runner's handlers would go on with its next test. */
		for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
			signal(signals[i], SIG_DFL);
		alarm(SECONDS);
		protection_off[name] = true;
		w->is_child = true;
		(void)freopen("/dev/null", "w", stderr);
		(void)run(w, fault, CORE_SUBMITTED, at);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) && WEXITSTATUS(status) == CORE_NOTICED;
}

static void expect_noticed(struct core_world *w, enum protection_name name, enum fault fault)
{
	uint64_t copies, at = 1;

	scene = &small;
	copies = run(w, NONE, CORE_SUBMITTED, 0);
	while (at <= copies && !is_noticed(w, name, fault, at))
		at++;
	if (at > copies)
		fail_msg("nothing is noticed without protection %d, whatever copy is hit",
			 (int)name);
}

static void switched_off_each_protection_is_missed_by_some_fault(void **state)
{
	expect_noticed(*state, PROTECTION_failed_copies_are_dropped, FAILS);
	expect_noticed(*state, PROTECTION_spilled_pages_wait, BREAKS);
	expect_noticed(*state, PROTECTION_fetched_pages_are_awaited, IS_LATE);
	expect_noticed(*state, PROTECTION_parents_stay, IS_STUCK);
	expect_noticed(*state, PROTECTION_drops_wait_for_copies, IS_DROPPED);
	expect_noticed(*state, PROTECTION_wanted_pages_stay, CANCELLED);
	expect_noticed(*state, PROTECTION_used_pages_stay, DIES);
}

/* ---- with them ---- */

static bool has_two_moments(enum fault fault)
{
	return fault >= IS_DROPPED;
}

static uint64_t count_copies(struct core_world *w, const struct scene *which)
{
	scene = which;
	return run(w, NONE, CORE_SUBMITTED, 0);
}

static void without_a_fault_pages_go_and_come(void **state)
{
	assert_true(count_copies(*state, &small) >= 20);
	assert_true(count_copies(*state, &wide) >= 10);
}

static void strike_everywhere(struct core_world *w, const struct scene *which, enum fault fault)
{
	uint64_t copies = count_copies(w, which);

	for (uint64_t at = 1; at <= copies; at++) {
		(void)run(w, fault, CORE_SUBMITTED, at);
		if (has_two_moments(fault))
			(void)run(w, fault, CORE_RUN, at);
	}
}

static void a_copy_that_fails_is_a_miss_and_no_error(void **state)
{
	strike_everywhere(*state, &small, FAILS);
	strike_everywhere(*state, &wide, FAILS);
}

static void a_copy_that_breaks_off_is_a_miss_and_no_error(void **state)
{
	strike_everywhere(*state, &small, BREAKS);
	strike_everywhere(*state, &wide, BREAKS);
}

static void whoever_waits_for_a_late_copy_is_answered_by_its_deadline(void **state)
{
	strike_everywhere(*state, &small, IS_LATE);
	strike_everywhere(*state, &wide, IS_LATE);
}

#define EVERYWHERE(name, fault)                                                                    \
	static void name(void **state)                                                             \
	{                                                                                          \
		strike_everywhere(*state, &small, fault);                                          \
	}

EVERYWHERE(a_device_that_is_stuck_keeps_nobody_waiting_for_ever, IS_STUCK)
EVERYWHERE(a_drop_takes_nothing_that_is_used_or_on_its_way, IS_DROPPED)
EVERYWHERE(an_open_that_is_cancelled_gives_back_all_it_asked_for, CANCELLED)
EVERYWHERE(a_client_that_hangs_up_leaves_nothing_behind, HANGS_UP)
EVERYWHERE(a_client_that_dies_leaves_nothing_behind, DIES)
EVERYWHERE(a_pool_can_be_dropped_while_its_pages_move, ALL_DIE)
EVERYWHERE(a_daemon_can_stop_while_pages_move, STOPS)

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(without_a_fault_pages_go_and_come),
	    TEST(a_copy_that_fails_is_a_miss_and_no_error),
	    TEST(a_copy_that_breaks_off_is_a_miss_and_no_error),
	    TEST(whoever_waits_for_a_late_copy_is_answered_by_its_deadline),
	    TEST(a_device_that_is_stuck_keeps_nobody_waiting_for_ever),
	    TEST(a_drop_takes_nothing_that_is_used_or_on_its_way),
	    TEST(an_open_that_is_cancelled_gives_back_all_it_asked_for),
	    TEST(a_client_that_hangs_up_leaves_nothing_behind),
	    TEST(a_client_that_dies_leaves_nothing_behind),
	    TEST(a_pool_can_be_dropped_while_its_pages_move),
	    TEST(a_daemon_can_stop_while_pages_move),
	    TEST(switched_off_each_protection_is_missed_by_some_fault),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
