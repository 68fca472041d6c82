/* SPDX-License-Identifier: Apache-2.0 */
/* daemon: see daemon.h. Main thread; blocks for bounded times. */
#include "tests/e2e/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/capability.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/statsfile.h"

extern char **environ;

/* ---- time ---- */

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

void pause_ms(unsigned ms)
{
	(void)poll(NULL, 0, (int)ms);
}

bool await(bool (*until)(void *context), void *context, unsigned within_ms)
{
	uint64_t deadline = now_ms() + (uint64_t)within_ms * PATIENCE;

	while (!until(context)) {
		if (now_ms() >= deadline)
			return until(context);
		pause_ms(1);
	}
	return true;
}

bool is_long(void)
{
	const char *word = getenv("KVHOST_LONG");

	return word && word[0] && strcmp(word, "0") != 0;
}

/* ---- processes ---- */

pid_t fork_client(void)
{
	pid_t parent = getpid(), child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(99);
	}
	return child;
}

static int wait_for(int pidfd, pid_t child, unsigned within_ms)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	int status = 0, n;

	do
		n = poll(&p, 1, (int)(within_ms * PATIENCE));
	while (n < 0 && errno == EINTR);
	if (n != 1)
		(void)kill(child, SIGKILL);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	close(pidfd);
	if (n != 1)
		fail_msg("process %d did not end within %u ms", (int)child, within_ms * PATIENCE);
	return status;
}

int await_child(pid_t child, unsigned within_ms)
{
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0);

	assert_true(pidfd >= 0);
	return wait_for(pidfd, child, within_ms);
}

const char *build_path(const char *name, char *out, size_t bytes)
{
	const char *folder = getenv("builddir");

	(void)snprintf(out, bytes, "%s/%s", folder && folder[0] ? folder : ".", name);
	return out;
}

/* What the caller's environment says to daemons and clients must not reach the test's. */
static void clean_environment(void)
{
	static const char *const names[] = {"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID",
					    "WATCHDOG_USEC"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		unsetenv(names[i]);
	for (char **at = environ; *at;) {
		char name[128];

		if (strncmp(*at, "KVHOST_", 7) != 0) {
			at++;
			continue;
		}
		(void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(*at, "="), *at);
		unsetenv(name);
		at = environ;
	}
}

int run_program(char *const argv[], char *out, size_t bytes, unsigned within_ms)
{
	char program[512];
	int ends[2], status;
	size_t used = 0;
	uint64_t deadline = now_ms() + (uint64_t)within_ms * PATIENCE;
	pid_t child;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	build_path(argv[0], program, sizeof(program));
	child = fork_client();
	if (child == 0) {
		clean_environment();
		if (dup2(ends[1], STDOUT_FILENO) < 0 || dup2(ends[1], STDERR_FILENO) < 0)
			_exit(99);
		execv(program, argv);
		_exit(99);
	}
	close(ends[1]);
	while (now_ms() < deadline) {
		char rest[4096], *to = used + 1 < bytes ? out + used : rest;
		size_t room = used + 1 < bytes ? bytes - used - 1 : sizeof(rest);
		struct pollfd p = {.fd = ends[0], .events = POLLIN};
		ssize_t n;

		if (poll(&p, 1, (int)(deadline - now_ms())) <= 0)
			continue;
		n = read(ends[0], to, room);
		if (n <= 0)
			break;
		if (to != rest)
			used += (size_t)n;
	}
	if (bytes)
		out[used] = '\0';
	close(ends[0]);
	status = await_child(child, within_ms);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* ---- what moves ---- */

static const char *const counter_names[] = {
#define COUNTER(name, kind, unit, group, text)      #name,
#define HISTOGRAM(name, text)                       #name,
#define POOL_COUNTER(name, kind, unit, group, text) #name,
#define NAMESPACE_GAUGE(name, unit, text)           #name,
#include "daemon/counters.def"
#undef COUNTER
#undef HISTOGRAM
#undef POOL_COUNTER
};
#define COUNTER_NAMES (sizeof(counter_names) / sizeof(*counter_names))

/* The names of the counters that moved, for tests/e2e/counted.sh; NULL: nobody wants them. */
static FILE *counted_file;

/* Also a program whose tests all skip has run. */
__attribute__((constructor)) static void open_counted(void)
{
	const char *folder = getenv("counted_folder");
	char path[512];

	if (!folder || !folder[0])
		return;
	(void)snprintf(path, sizeof(path), "%s/%s", folder, program_invocation_short_name);
	counted_file = fopen(path, "we");
}

static bool has_moved(const struct statsfile_snapshot *s, const struct statsfile_counter *c)
{
	for (uint32_t i = 0; i < c->values; i++) {
		if (s->values[c->first + i])
			return true;
	}
	return false;
}

/* Each name once. Rows stand in the file in the order of the table, so the search is short. */
static void note_moved(const struct statsfile_snapshot *s)
{
	static bool noted[COUNTER_NAMES];
	size_t at = 0;

	for (uint32_t i = 0; counted_file && i < s->n_counters; i++) {
		for (size_t n = 0; n < COUNTER_NAMES; n++) {
			if (!strcmp(counter_names[at], s->counters[i].name))
				break;
			at = (at + 1) % COUNTER_NAMES;
		}
		if (noted[at] || !has_moved(s, &s->counters[i]))
			continue;
		noted[at] = true;
		(void)fprintf(counted_file, "%s\n", counter_names[at]);
		(void)fflush(counted_file);
	}
}

void daemon_note(const struct daemon *d)
{
	struct statsfile_reader reader;
	struct statsfile_snapshot s = {0};

	if (!counted_file || statsfile_open(&reader, d->stats))
		return;
	if (statsfile_read(&reader, &s) == 0)
		note_moved(&s);
	statsfile_snapshot_free(&s);
	statsfile_reader_close(&reader);
}

/* ---- the daemon ---- */

static void write_text(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

void daemon_make(struct daemon *d, const char *json)
{
	char path[128];

	*d = (struct daemon){.program = d->program,
			     .environment = d->environment,
			     .lock_bytes = d->lock_bytes,
			     .group = d->group,
			     .pidfd = -1};
	(void)snprintf(d->folder, sizeof(d->folder), "/tmp/kvhost-e2e-XXXXXX");
	assert_non_null(mkdtemp(d->folder));
	(void)snprintf(d->run, sizeof(d->run), "%s/run", d->folder);
	(void)snprintf(d->socket, sizeof(d->socket), "%s/kvhost.sock", d->run);
	(void)snprintf(d->stats, sizeof(d->stats), "%s/stats", d->run);
	(void)snprintf(path, sizeof(path), "%s/kvhost.json", d->folder);
	write_text(path, json ? json : "{}\n");
	d->has_ram = json && strstr(json, "\"kv_ram_bytes\"");
	d->has_staging = json && strstr(json, "\"kv_staging_bytes\"");
}

/* Of this process and what it becomes. */
static bool limit_locks(uint64_t bytes)
{
	struct rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};

	/* Who is root gets all rights back in execve, save those out of bounds. */
	if (prctl(PR_CAPBSET_READ, CAP_IPC_LOCK, 0, 0, 0) == 1 && geteuid() == 0 &&
	    prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0))
		return false;
	(void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	return setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

bool daemon_can_limit_locks(void)
{
	pid_t child = fork_client();
	int status;

	if (child == 0)
		_exit(limit_locks(65536) ? 0 : 1);
	status = await_child(child, LONG_MS);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool join_group(const char *processes)
{
	int fd = open(processes, O_WRONLY | O_CLOEXEC);
	bool joined = fd >= 0 && write(fd, "0\n", 2) == 2;

	if (fd >= 0)
		close(fd);
	return joined;
}

static _Noreturn void become_daemon(const struct daemon *d)
{
	char program[512], state[96], config[96], log[96];
	int fd;

	(void)snprintf(state, sizeof(state), "%s/state", d->folder);
	(void)snprintf(config, sizeof(config), "%s/kvhost.json", d->folder);
	(void)snprintf(log, sizeof(log), "%s/log", d->folder);
	build_path(d->program ? d->program : "kvhostd", program, sizeof(program));
	clean_environment();
	if (d->lock_bytes && !limit_locks(d->lock_bytes))
		_exit(98);
	if (d->group && !join_group(d->group))
		_exit(97);
	if (!d->has_ram)
		setenv("KVHOST_KV_RAM_BYTES", "0", 1);
	if (!d->has_staging)
		setenv("KVHOST_KV_STAGING_BYTES", "0", 1);
	if (d->environment)
		putenv((char *)(uintptr_t)d->environment);
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
		_exit(99);
	execl(program, program, "--runtime-directory", d->run, "--state-directory", state,
	      "--config", config, (char *)NULL);
	_exit(99);
}

static bool has_ended(const struct daemon *d)
{
	struct pollfd p = {.fd = d->pidfd, .events = POLLIN};

	return poll(&p, 1, 0) != 0;
}

static bool is_running(void *context)
{
	const struct daemon *d = context;
	struct statsfile_reader reader;
	struct statsfile_snapshot s = {0};
	bool running = false;

	if (has_ended(d))
		return true; /* it has ended; the caller sees that */
	if (statsfile_open(&reader, d->stats))
		return false;
	if (statsfile_read(&reader, &s) == 0)
		running = s.alive && s.head.pid == (uint32_t)d->pid &&
			  atomic_load(&s.head.state) == STATSFILE_RUNNING;
	statsfile_snapshot_free(&s);
	statsfile_reader_close(&reader);
	return running;
}

static void show_log(const struct daemon *d)
{
	char path[96], line[512];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/log", d->folder);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		fprintf(stderr, "# %s", line);
	if (f)
		fclose(f);
}

static void launch(struct daemon *d)
{
	assert_int_equal(d->pid, 0);
	d->pid = fork_client();
	if (d->pid == 0)
		become_daemon(d);
	d->pidfd = (int)syscall(SYS_pidfd_open, d->pid, 0);
	assert_true(d->pidfd >= 0);
}

void daemon_begin(struct daemon *d)
{
	launch(d);
	if (!await(is_running, d, LONG_MS) || has_ended(d)) {
		show_log(d);
		/* Where this is the setup of a group no teardown will follow. */
		daemon_remove(d);
		fail_msg("kvhostd did not start");
	}
}

int daemon_try(struct daemon *d, char *said, size_t bytes)
{
	char path[96];
	size_t n = 0;
	int status;
	FILE *f;

	launch(d);
	assert_true(await(is_running, d, LONG_MS));
	if (!has_ended(d))
		return 0;
	status = wait_for(d->pidfd, d->pid, LONG_MS);
	d->pid = 0;
	d->pidfd = -1;
	(void)snprintf(path, sizeof(path), "%s/log", d->folder);
	f = fopen(path, "re");
	assert_non_null(f);
	n = fread(said, 1, bytes - 1, f);
	said[n] = '\0';
	fclose(f);
	assert_true(WIFEXITED(status));
	assert_int_not_equal(WEXITSTATUS(status), 0);
	return WEXITSTATUS(status);
}

void daemon_start(struct daemon *d, const char *json)
{
	daemon_make(d, json);
	daemon_begin(d);
}

int daemon_stop(struct daemon *d, unsigned within_ms)
{
	int status, pidfd = d->pidfd;
	pid_t pid = d->pid;

	assert_true(pid > 0);
	daemon_note(d); /* gauges, that are 0 at the end */
	d->pid = 0;
	d->pidfd = -1;
	(void)kill(pid, SIGTERM);
	status = wait_for(pidfd, pid, within_ms);
	daemon_note(d);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		show_log(d);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

void daemon_kill(struct daemon *d)
{
	int pidfd = d->pidfd;
	pid_t pid = d->pid;

	if (pid <= 0)
		return;
	if (has_ended(d))
		show_log(d); /* by itself: its last words */
	daemon_note(d);
	d->pid = 0;
	d->pidfd = -1;
	(void)kill(pid, SIGKILL);
	(void)wait_for(pidfd, pid, LONG_MS);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
	(void)status;
	(void)type;
	(void)where;
	return remove(path);
}

void daemon_remove(struct daemon *d)
{
	daemon_kill(d);
	if (d->folder[0])
		(void)nftw(d->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	d->folder[0] = '\0';
}

/* ---- looks ---- */

uint64_t daemon_pool_counter(const struct daemon *d, const char *pool, const char *name)
{
	struct statsfile_reader reader;
	struct statsfile_snapshot s = {0};
	uint64_t value = 0;

	if (statsfile_open(&reader, d->stats))
		return 0;
	if (statsfile_read(&reader, &s) == 0) {
		note_moved(&s);
		if (!statsfile_value(&s, name, pool, &value))
			value = 0;
	}
	statsfile_snapshot_free(&s);
	statsfile_reader_close(&reader);
	return value;
}

uint64_t daemon_counter(const struct daemon *d, const char *name)
{
	return daemon_pool_counter(d, "", name);
}

uint64_t daemon_await(const struct daemon *d, const char *pool, const char *name, uint64_t value,
		      unsigned within_ms)
{
	uint64_t deadline = now_ms() + (uint64_t)within_ms * PATIENCE;
	uint64_t found;

	while ((found = daemon_pool_counter(d, pool, name)) != value && now_ms() < deadline)
		pause_ms(1);
	return found;
}
