/* SPDX-License-Identifier: Apache-2.0 */

/* test_statsfile: a stats file of a living, hung or dead daemon, and files made to mislead. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/statsfile.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define PATH_BYTES 64
#define EPOCH      0x1122334455667788u
#define AT(field)  offsetof(struct statsfile_head, field)

struct fixture {
	char folder[sizeof("/tmp/statsfile-XXXXXX")];
	char path[PATH_BYTES];
	char previous[PATH_BYTES];
	struct statsfile file;
	struct statsfile_reader reader;
	struct statsfile_snapshot snapshot;
};

static struct fixture fixture;

static const struct statsfile_size size = {.max_counters = 8, .max_values = 64, .max_sessions = 4};

static int setup(void **state)
{
	struct fixture *f = &fixture;

	memset(f, 0, sizeof(*f));
	f->file.fd = -1;
	f->reader.fd = -1;
	memcpy(f->folder, "/tmp/statsfile-XXXXXX", sizeof(f->folder));
	if (!mkdtemp(f->folder))
		return -1;
	snprintf(f->path, sizeof(f->path), "%.40s/stats", f->folder);
	snprintf(f->previous, sizeof(f->previous), "%.40s/stats.prev", f->folder);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	statsfile_snapshot_free(&f->snapshot);
	statsfile_reader_close(&f->reader);
	statsfile_close(&f->file, STATSFILE_STOPPED);
	unlink(f->path);
	unlink(f->previous);
	/* Fails, and so the test, if anything else was left. */
	return rmdir(f->folder);
}

static struct statsfile_counter counter(const char *name, const char *label, uint32_t group,
					uint32_t values)
{
	struct statsfile_counter c = {
	    .unit = "pages",
	    .help = "what it says",
	    .kind = values > 1 ? STATSFILE_HISTOGRAM : STATSFILE_GAUGE,
	    .group = group,
	    .values = values,
	};

	snprintf(c.name, sizeof(c.name), "%s", name);
	snprintf(c.label, sizeof(c.label), "%s", label);
	return c;
}

static int add(struct fixture *f, const char *name, const char *label, uint32_t group,
	       uint32_t values)
{
	struct statsfile_counter c = counter(name, label, group, values);

	return statsfile_add(&f->file, &c);
}

static void create(struct fixture *f)
{
	assert_int_equal(statsfile_create(&f->file, f->path, &size, EPOCH, "1.2.3"), 0);
}

static int read_again(struct fixture *f)
{
	statsfile_snapshot_free(&f->snapshot);
	return statsfile_read(&f->reader, &f->snapshot);
}

static void set(struct fixture *f, int index, uint64_t value)
{
	atomic_store_explicit(&f->file.values[index], value, memory_order_relaxed);
}

static void what_is_written_is_read(void **state)
{
	struct fixture *f = *state;
	int group, a, b, thread;
	uint64_t v;

	create(f);
	group = statsfile_add_group(&f->file);
	a = add(f, "used", "pool a", STATSFILE_GROUPS_MAX, 1);
	b = add(f, "latency", "", (uint32_t)group, STATSFILE_HISTOGRAM_BUCKETS);
	thread = statsfile_add_thread(&f->file, "a name that is too long");
	atomic_store(&f->file.threads[thread].heartbeat_ns, 42);
	set(f, a, 5);
	statsfile_begin(&f->file, (uint32_t)group);
	for (int i = 0; i < STATSFILE_HISTOGRAM_BUCKETS; i++)
		set(f, b + i, 100u + (unsigned)i);
	statsfile_end(&f->file, (uint32_t)group);
	atomic_store(&f->file.head->state, STATSFILE_RUNNING);
	memcpy(f->file.sessions[2].client, "engine", 7);
	atomic_store(&f->file.sessions[2].pid, 77);
	atomic_store(&f->file.sessions[2].id, 3);

	assert_int_equal(statsfile_open(&f->reader, f->path), 0);
	assert_int_equal(read_again(f), 0);
	assert_true(f->snapshot.alive);
	assert_false(f->snapshot.torn);
	assert_int_equal(f->snapshot.head.boot_epoch, EPOCH);
	assert_int_equal(f->snapshot.head.state, STATSFILE_RUNNING);
	assert_int_equal(f->snapshot.head.pid, getpid());
	assert_string_equal(f->snapshot.head.version, "1.2.3");
	assert_int_equal(f->snapshot.n_counters, 2);
	assert_true(statsfile_value(&f->snapshot, "used", "pool a", &v));
	assert_int_equal(v, 5);
	assert_false(statsfile_value(&f->snapshot, "used", "", &v));
	assert_int_equal(f->snapshot.values[f->snapshot.counters[1].first + 23], 123);
	assert_string_equal(f->snapshot.threads[0].name, "a name that is ");
	assert_int_equal(f->snapshot.threads[0].heartbeat_ns, 42);
	assert_int_equal(f->snapshot.n_sessions, 1);
	assert_string_equal(f->snapshot.sessions[0].client, "engine");
	assert_int_equal(f->snapshot.sessions[0].pid, 77);
}

static void a_counter_added_later_is_seen_by_an_open_reader(void **state)
{
	struct fixture *f = *state;
	uint64_t v;

	create(f);
	assert_int_equal(statsfile_open(&f->reader, f->path), 0);
	assert_int_equal(read_again(f), 0);
	assert_int_equal(f->snapshot.n_counters, 0);
	set(f, add(f, "late", "", STATSFILE_GROUPS_MAX, 1), 9);
	assert_int_equal(read_again(f), 0);
	assert_true(statsfile_value(&f->snapshot, "late", "", &v));
	assert_int_equal(v, 9);
}

static void what_does_not_fit_is_refused(void **state)
{
	struct fixture *f = *state;

	create(f);
	assert_int_equal(add(f, "wide", "", STATSFILE_GROUPS_MAX, 60), 0);
	assert_int_equal(add(f, "too wide", "", STATSFILE_GROUPS_MAX, 5), -ENOSPC);
	assert_int_equal(add(f, "far too wide", "", STATSFILE_GROUPS_MAX, UINT32_MAX), -ENOSPC);
	for (int i = 1; i < 5; i++)
		assert_int_equal(add(f, "x", "", STATSFILE_GROUPS_MAX, 1), 59 + i);
	assert_int_equal(add(f, "no value left", "", STATSFILE_GROUPS_MAX, 1), -ENOSPC);
	for (int i = 0; i < STATSFILE_THREADS_MAX; i++)
		assert_int_equal(statsfile_add_thread(&f->file, "t"), i);
	assert_int_equal(statsfile_add_thread(&f->file, "t"), -ENOSPC);
	for (int i = 0; i < STATSFILE_GROUPS_MAX; i++)
		assert_int_equal(statsfile_add_group(&f->file), i);
	assert_int_equal(statsfile_add_group(&f->file), -ENOSPC);
}

static void counters_are_as_many_as_there_is_room_for(void **state)
{
	struct fixture *f = *state;

	create(f);
	for (int i = 0; i < 8; i++)
		assert_int_equal(add(f, "x", "", STATSFILE_GROUPS_MAX, 1), i);
	assert_int_equal(add(f, "x", "", STATSFILE_GROUPS_MAX, 1), -ENOSPC);
}

static void a_file_in_memory_alone_needs_no_path(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(statsfile_create(&f->file, NULL, &size, EPOCH, "x"), 0);
	set(f, add(f, "x", "", STATSFILE_GROUPS_MAX, 1), 3);
	assert_int_equal(f->file.values[0], 3);
}

static void the_file_is_for_its_group_and_has_its_name_only_when_complete(void **state)
{
	struct fixture *f = *state;
	struct stat status;

	create(f);
	assert_int_equal(stat(f->path, &status), 0);
	assert_int_equal(status.st_mode & 0777, 0640);
	assert_int_equal(status.st_size, f->file.bytes);
	assert_int_equal(status.st_nlink, 1);
}

static void a_second_daemon_is_refused_and_harms_nothing(void **state)
{
	struct fixture *f = *state;
	struct statsfile second;
	struct stat before, after;

	create(f);
	assert_int_equal(stat(f->path, &before), 0);
	assert_int_equal(statsfile_create(&second, f->path, &size, 2, "2"), -EBUSY);
	assert_int_equal(stat(f->path, &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_int_equal(access(f->previous, F_OK), -1);
}

static void a_replaced_file_is_opened_again_and_the_old_one_is_kept(void **state)
{
	struct fixture *f = *state;
	struct statsfile_reader old;

	create(f);
	assert_int_equal(statsfile_open(&f->reader, f->path), 0);
	assert_int_equal(read_again(f), 0);
	statsfile_close(&f->file, STATSFILE_STOPPED);
	assert_int_equal(statsfile_create(&f->file, f->path, &size, 2, "2"), 0);

	assert_int_equal(read_again(f), 0);
	assert_int_equal(f->snapshot.head.boot_epoch, 2);
	assert_true(f->snapshot.alive);

	assert_int_equal(statsfile_open(&old, f->previous), 0);
	statsfile_snapshot_free(&f->snapshot);
	assert_int_equal(statsfile_read(&old, &f->snapshot), 0);
	assert_int_equal(f->snapshot.head.boot_epoch, EPOCH);
	assert_int_equal(f->snapshot.head.state, STATSFILE_STOPPED);
	assert_false(f->snapshot.alive);
	statsfile_reader_close(&old);
}

static void a_reader_that_holds_a_lock_does_not_stop_the_next_daemon(void **state)
{
	struct fixture *f = *state;
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	int fd;

	create(f);
	statsfile_close(&f->file, STATSFILE_STOPPED);
	fd = open(f->path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	create(f);
	close(fd);
}

static void a_removed_file_still_tells_how_its_daemon_ended(void **state)
{
	struct fixture *f = *state;

	create(f);
	assert_int_equal(statsfile_open(&f->reader, f->path), 0);
	unlink(f->path);
	statsfile_panic(&f->file, "page 7 has \x1b no owner");
	statsfile_close(&f->file, STATSFILE_PANICKED);
	assert_int_equal(read_again(f), 0);
	assert_int_equal(f->snapshot.head.state, STATSFILE_PANICKED);
	assert_string_equal(f->snapshot.panic, "page 7 has ? no owner");
	assert_false(f->snapshot.alive);
}

static void a_long_panic_text_is_cut(void **state)
{
	struct fixture *f = *state;
	char text[2 * STATSFILE_PANIC_BYTES];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	create(f);
	statsfile_panic(&f->file, text);
	assert_int_equal(statsfile_open(&f->reader, f->path), 0);
	assert_int_equal(read_again(f), 0);
	assert_int_equal(strlen(f->snapshot.panic), STATSFILE_PANIC_BYTES - 1);
}

/* A daemon in a process of its own, which says a byte when its file is there, then hangs. */
static pid_t start_daemon(struct fixture *f)
{
	int ends[2];
	pid_t child;
	char c;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct statsfile file;

		if (statsfile_create(&file, f->path, &size, EPOCH, "1") != 0 ||
		    statsfile_add_group(&file) != 0)
			_exit(1);
		atomic_store(&file.head->state, STATSFILE_RUNNING);
		/* And dies in the middle of a group. */
		statsfile_begin(&file, 0);
		if (write(ends[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &c, 1), 1);
	close(ends[0]);
	return child;
}

static void a_hung_daemon_is_alive_and_a_killed_one_is_not(void **state)
{
	struct fixture *f = *state;
	pid_t child = start_daemon(f);

	assert_int_equal(statsfile_open(&f->reader, f->path), 0);
	assert_int_equal(read_again(f), 0);
	assert_true(f->snapshot.alive);
	assert_int_equal(f->snapshot.head.pid, child);

	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(read_again(f), 0);
	assert_false(f->snapshot.alive);
	assert_int_equal(f->snapshot.head.state, STATSFILE_RUNNING);
	assert_true(f->snapshot.torn);
}

static void a_group_that_never_settles_is_marked_and_read_all_the_same(void **state)
{
	struct fixture *f = *state;
	uint32_t calm, torn;
	uint64_t v;

	create(f);
	calm = (uint32_t)statsfile_add_group(&f->file);
	torn = (uint32_t)statsfile_add_group(&f->file);
	set(f, add(f, "calm", "", calm, 1), 1);
	set(f, add(f, "torn", "", torn, 1), 2);
	statsfile_begin(&f->file, torn);
	assert_int_equal(statsfile_open(&f->reader, f->path), 0);
	assert_int_equal(read_again(f), 0);
	assert_true(f->snapshot.torn);
	assert_int_equal(f->snapshot.torn_group[calm], 0);
	assert_int_equal(f->snapshot.torn_group[torn], 1);
	assert_true(statsfile_value(&f->snapshot, "torn", "", &v));
	assert_int_equal(v, 2);

	statsfile_end(&f->file, torn);
	assert_int_equal(read_again(f), 0);
	assert_false(f->snapshot.torn);
}

/* A good, closed file with one counter and one session, into which bytes are written. */
static void hostile(struct fixture *f, uint64_t offset, const void *bytes, size_t n)
{
	int fd;

	statsfile_snapshot_free(&f->snapshot);
	statsfile_reader_close(&f->reader);
	create(f);
	add(f, "x", "", (uint32_t)statsfile_add_group(&f->file), 1);
	atomic_store(&f->file.sessions[0].id, 1);
	memset(f->file.sessions[0].client, 'c', WIRE_NAME_MAX);
	statsfile_close(&f->file, STATSFILE_STOPPED);
	fd = open(f->path, O_RDWR | O_CLOEXEC);
	assert_int_equal(pwrite(fd, bytes, n, (off_t)offset), n);
	close(fd);
}

static int open_and_read(struct fixture *f)
{
	int r = statsfile_open(&f->reader, f->path);

	return r ? r : read_again(f);
}

static void every_offset_out_of_the_file_is_an_error(void **state)
{
	struct fixture *f = *state;
	static const size_t fields[] = {AT(threads_offset),  AT(groups_offset),
					AT(counters_offset), AT(values_offset),
					AT(sessions_offset), AT(panic_offset)};
	uint64_t end, bad[6];

	create(f);
	end = f->file.bytes;
	statsfile_close(&f->file, STATSFILE_STOPPED);
	bad[0] = end;
	bad[1] = end - 8;
	bad[2] = UINT64_MAX;
	bad[3] = UINT64_MAX - 7;
	bad[4] = (uint64_t)1 << 63;
	bad[5] = 4; /* not aligned */
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
			hostile(f, fields[i], &bad[k], sizeof(bad[k]));
			assert_int_equal(open_and_read(f), -EPROTO);
		}
	}
}

static void every_count_that_is_too_great_is_an_error(void **state)
{
	struct fixture *f = *state;
	static const size_t fields[] = {AT(n_threads),    AT(n_groups),   AT(n_counters),
					AT(max_counters), AT(max_values), AT(max_sessions),
					AT(major),        AT(magic),      AT(file_bytes)};
	const uint32_t huge = UINT32_MAX;

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		hostile(f, fields[i], &huge, sizeof(huge));
		assert_int_equal(open_and_read(f), -EPROTO);
	}
}

static void a_counter_that_points_outside_is_an_error(void **state)
{
	struct fixture *f = *state;
	static const size_t fields[] = {offsetof(struct statsfile_counter, first),
					offsetof(struct statsfile_counter, values),
					offsetof(struct statsfile_counter, group)};
	const uint32_t wrong[] = {UINT32_MAX, STATSFILE_GROUPS_MAX + 1, 0x80000000u};
	uint64_t counters;

	create(f);
	counters = f->file.head->counters_offset;
	statsfile_close(&f->file, STATSFILE_STOPPED);
	for (size_t i = 0; i < 3; i++) {
		for (size_t k = 0; k < 3; k++) {
			hostile(f, counters + fields[i], &wrong[k], sizeof(wrong[k]));
			assert_int_equal(open_and_read(f), -EPROTO);
		}
	}
}

static void strings_without_an_end_are_ended(void **state)
{
	struct fixture *f = *state;
	struct statsfile_counter all;
	uint64_t counters;

	memset(&all, 'n', sizeof(all));
	create(f);
	counters = f->file.head->counters_offset;
	statsfile_close(&f->file, STATSFILE_STOPPED);
	hostile(f, counters, &all, offsetof(struct statsfile_counter, kind));
	assert_int_equal(open_and_read(f), 0);
	assert_int_equal(strlen(f->snapshot.counters[0].name), 47);
	assert_int_equal(strlen(f->snapshot.counters[0].label), 31);
	assert_int_equal(strlen(f->snapshot.counters[0].unit), 15);
	assert_int_equal(strlen(f->snapshot.counters[0].help), 127);
	assert_int_equal(strlen(f->snapshot.sessions[0].client), WIRE_NAME_MAX - 1);
}

static void a_truncated_file_is_an_error_before_and_after_it_is_opened(void **state)
{
	struct fixture *f = *state;
	struct stat status;

	hostile(f, 0, "", 0);
	assert_int_equal(open_and_read(f), 0);
	assert_int_equal(stat(f->path, &status), 0);
	assert_int_equal(truncate(f->path, status.st_size - 1), 0);
	assert_int_equal(read_again(f), -EPROTO);
	assert_int_equal(truncate(f->path, 0), 0);
	assert_int_equal(read_again(f), -EPROTO);

	statsfile_reader_close(&f->reader);
	for (off_t bytes = status.st_size - 1; bytes >= 0; bytes = bytes * 3 / 4 - 1) {
		assert_int_equal(truncate(f->path, bytes), 0);
		assert_int_equal(statsfile_open(&f->reader, f->path), -EPROTO);
	}
}

static void what_is_no_stats_file_is_an_error(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(statsfile_open(&f->reader, f->path), -ENOENT);
	assert_int_equal(statsfile_open(&f->reader, f->folder), -EPROTO);
	assert_int_equal(statsfile_open(&f->reader, "/dev/zero"), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_is_written_is_read),
	    TEST(a_counter_added_later_is_seen_by_an_open_reader),
	    TEST(what_does_not_fit_is_refused),
	    TEST(counters_are_as_many_as_there_is_room_for),
	    TEST(a_file_in_memory_alone_needs_no_path),
	    TEST(the_file_is_for_its_group_and_has_its_name_only_when_complete),
	    TEST(a_second_daemon_is_refused_and_harms_nothing),
	    TEST(a_replaced_file_is_opened_again_and_the_old_one_is_kept),
	    TEST(a_reader_that_holds_a_lock_does_not_stop_the_next_daemon),
	    TEST(a_removed_file_still_tells_how_its_daemon_ended),
	    TEST(a_long_panic_text_is_cut),
	    TEST(a_hung_daemon_is_alive_and_a_killed_one_is_not),
	    TEST(a_group_that_never_settles_is_marked_and_read_all_the_same),
	    TEST(every_offset_out_of_the_file_is_an_error),
	    TEST(every_count_that_is_too_great_is_an_error),
	    TEST(a_counter_that_points_outside_is_an_error),
	    TEST(strings_without_an_end_are_ended),
	    TEST(a_truncated_file_is_an_error_before_and_after_it_is_opened),
	    TEST(what_is_no_stats_file_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
