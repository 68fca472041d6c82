/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/base/log.h. Lines go into a pipe that the test reads; a pipe that nobody reads
 * stands for a slow terminal.
 */

#include "daemon/base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/clock.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

struct fixture {
	int pipe[2];
	struct log *log;
	char text[1 << 20];
	size_t n_text;
};

static struct fixture fixture;

static int setup(void **state)
{
	memset(&fixture, 0, sizeof(fixture));
	*state = &fixture;
	return pipe2(fixture.pipe, O_CLOEXEC);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	log_free(&f->log);
	close(f->pipe[0]);
	if (f->pipe[1] >= 0)
		close(f->pipe[1]);
	return 0;
}

static void start(struct fixture *f, enum log_level level, bool journal)
{
	const struct log_options o = {.fd = f->pipe[1], .level = level, .journal = journal};

	assert_int_equal(log_new(&o, &f->log), 0);
}

static void read_some(struct fixture *f)
{
	ssize_t n = read(f->pipe[0], f->text + f->n_text, sizeof(f->text) - f->n_text - 1);

	assert_true(n >= 0);
	f->n_text += (size_t)n;
	f->text[f->n_text] = '\0';
}

/* Ends the log and reads to the end of the pipe. */
static void finish(struct fixture *f)
{
	size_t before;

	log_free(&f->log);
	close(f->pipe[1]);
	f->pipe[1] = -1;
	do {
		before = f->n_text;
		read_some(f);
	} while (f->n_text > before);
}

static void a_line_has_its_time_its_level_and_its_text(void **state)
{
	struct fixture *f = *state;
	int end = 0;

	start(f, LOG_LEVEL_INFO, false);
	log_write(f->log, LOG_LEVEL_WARNING, "pool %d of %s", 7, "a");
	finish(f);
	assert_int_equal(sscanf(f->text, "%*4d-%*2d-%*2dT%*2d:%*2d:%*2d.%*3dZ %n", &end), 0);
	assert_string_equal(f->text + end, "warning: pool 7 of a\n");
}

static void a_line_for_the_journal_has_a_priority_instead(void **state)
{
	struct fixture *f = *state;

	start(f, LOG_LEVEL_DEBUG, true);
	log_write(f->log, LOG_LEVEL_ERROR, "e");
	log_write(f->log, LOG_LEVEL_NOTICE, "n");
	log_write(f->log, LOG_LEVEL_DEBUG, "d");
	finish(f);
	assert_string_equal(f->text, "<3>e\n<5>n\n<7>d\n");
}

static void lines_above_the_level_are_not_written(void **state)
{
	struct fixture *f = *state;

	start(f, LOG_LEVEL_NOTICE, true);
	assert_false(log_has_level(f->log, LOG_LEVEL_INFO));
	log_write(f->log, LOG_LEVEL_INFO, "quiet");
	log_set_level(f->log, LOG_LEVEL_INFO);
	log_write(f->log, LOG_LEVEL_INFO, "heard");
	log_write(NULL, LOG_LEVEL_ERROR, "nobody's");
	finish(f);
	assert_string_equal(f->text, "<6>heard\n");
}

static void what_a_client_sent_cannot_forge_a_line(void **state)
{
	struct fixture *f = *state;

	start(f, LOG_LEVEL_INFO, true);
	log_write(f->log, LOG_LEVEL_INFO, "name %s", "a\n<0>b\x1b[2J\x7f\t\xc3\xa4");
	finish(f);
	assert_string_equal(f->text, "<6>name a?<0>b?[2J??\xc3\xa4\n");
}

static void a_line_that_is_too_long_ends_in_dots(void **state)
{
	struct fixture *f = *state;
	char longer[LOG_LINE_BYTES_MAX + 2];

	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	start(f, LOG_LEVEL_INFO, true);
	log_write(f->log, LOG_LEVEL_INFO, "%s", longer);
	log_write(f->log, LOG_LEVEL_INFO, "%s", longer + 1);
	finish(f);
	assert_int_equal(f->n_text, 2 * (strlen("<6>\n") + LOG_LINE_BYTES_MAX));
	assert_memory_equal(f->text + strlen("<6>") + LOG_LINE_BYTES_MAX - 4, "x...\n", 5);
	assert_memory_equal(f->text + f->n_text - 5, "xxxx\n", 5);
}

static void a_full_ring_drops_lines_says_so_and_never_waits(void **state)
{
	struct fixture *f = *state;
	char expected[80];
	int written = 0;

	start(f, LOG_LEVEL_INFO, true);
	/* Nobody reads: the pipe fills, then the ring; from then on lines are lost. */
	while (log_dropped(f->log) < 10) {
		log_write(f->log, LOG_LEVEL_INFO, "%0900d", written++);
		assert_true(written < 100000);
	}
	while (log_heartbeat_ns(f->log) == 0)
		sched_yield();

	while (!strstr(f->text, "dropped here"))
		read_some(f);
	log_write(f->log, LOG_LEVEL_INFO, "back again");
	finish(f);
	snprintf(expected, sizeof(expected), "<4>10 log lines were dropped here\n<6>back again\n");
	assert_non_null(strstr(f->text, expected));
}

static void freeing_a_log_whose_reader_hangs_takes_a_second_and_no_more(void **state)
{
	struct fixture *f = *state;
	struct clock clock = clock_monotonic();
	uint64_t began_ns;

	start(f, LOG_LEVEL_INFO, true);
	while (log_dropped(f->log) == 0)
		log_write(f->log, LOG_LEVEL_INFO, "%0900d", 1);
	began_ns = clock_now(&clock);
	log_free(&f->log);
	assert_true(clock_now(&clock) - began_ns < 10 * NS_PER_S);
}

static void *write_hundred(void *argument)
{
	struct log *log = argument;

	for (int i = 0; i < 100; i++) {
		log_write(log, LOG_LEVEL_INFO, "line %d of it", i);
		if (i % 10 == 0)
			sched_yield();
	}
	return NULL;
}

static void lines_of_many_threads_are_whole_and_none_is_lost(void **state)
{
	struct fixture *f = *state;
	pthread_t threads[4];
	uint64_t n_lines = 0, dropped;

	start(f, LOG_LEVEL_INFO, true);
	assert_true(fcntl(f->pipe[1], F_SETPIPE_SZ, 1 << 18) > 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_hundred, f->log), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	dropped = log_dropped(f->log);
	finish(f);
	for (char *line = f->text; *line; line = strchr(line, '\n') + 1) {
		if (strncmp(line, "<6>line ", 8) == 0) {
			assert_memory_equal(strstr(line, " of "), " of it\n", 7);
			n_lines++;
		}
	}
	assert_int_equal(n_lines + dropped, 400);
}

static void the_journal_is_known_by_device_and_inode(void **state)
{
	struct fixture *f = *state;
	char stream[64];
	struct stat st;

	assert_int_equal(fstat(f->pipe[1], &st), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
	assert_true(log_is_journal(f->pipe[1]));
	assert_int_equal(setenv("JOURNAL_STREAM", "1:1", 1), 0);
	assert_false(log_is_journal(f->pipe[1]));
	assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
	assert_false(log_is_journal(f->pipe[1]));
}

static void names_of_levels_go_both_ways_and_others_are_refused(void **state)
{
	enum log_level level = LOG_LEVEL_ERROR;

	(void)state;
	for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
		assert_int_equal(log_level_parse(log_level_name((enum log_level)i), &level), 0);
		assert_int_equal(level, i);
	}
	assert_true(log_level_parse("loud", &level) < 0);
	assert_int_equal(level, LOG_LEVEL_DEBUG);
}

static void a_limited_place_writes_once_an_interval_and_counts_the_rest(void **state)
{
	struct log_limit limit = {0};
	uint32_t suppressed = 99;

	(void)state;
	assert_true(log_limit_pass(&limit, 1000, 100, &suppressed));
	assert_int_equal(suppressed, 0);
	assert_false(log_limit_pass(&limit, 1001, 100, &suppressed));
	assert_false(log_limit_pass(&limit, 1099, 100, &suppressed));
	assert_true(log_limit_pass(&limit, 1100, 100, &suppressed));
	assert_int_equal(suppressed, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_line_has_its_time_its_level_and_its_text),
	    TEST(a_line_for_the_journal_has_a_priority_instead),
	    TEST(lines_above_the_level_are_not_written),
	    TEST(what_a_client_sent_cannot_forge_a_line),
	    TEST(a_line_that_is_too_long_ends_in_dots),
	    TEST(a_full_ring_drops_lines_says_so_and_never_waits),
	    TEST(freeing_a_log_whose_reader_hangs_takes_a_second_and_no_more),
	    TEST(lines_of_many_threads_are_whole_and_none_is_lost),
	    TEST(the_journal_is_known_by_device_and_inode),
	    TEST(names_of_levels_go_both_ways_and_others_are_refused),
	    TEST(a_limited_place_writes_once_an_interval_and_counts_the_rest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
