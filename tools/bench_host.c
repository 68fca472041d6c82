/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_host: starts, finds and stops the daemon that is measured. Main thread; blocks. The
 * signal handler only notes the signal and passes it to the daemon, so that every call that waits
 * for the daemon ends and the usual way out removes what was made.
 */
#include "tools/bench_host.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_NS 20000000000ull
#define STOP_NS  5000000000ull
#define LOOK_NS  2000000ull
#define QUIET_NS 10000000ull

extern char **environ;

static volatile sig_atomic_t daemon_pid; /* for the signal handler */

static void pass_on(int signal_number)
{
	int saved = errno;

	if (daemon_pid > 0)
		kill((pid_t)daemon_pid, SIGTERM);
	else
		_exit(128 + signal_number);
	errno = saved;
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

/* ---- the program ---- */

static bool is_program(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

static bool find_in_path(char *out, size_t bytes)
{
	const char *at = getenv("PATH");
	size_t length;

	for (; at && *at; at += length + (at[length] != '\0')) {
		length = strcspn(at, ":");
		if (length == 0 || snprintf(out, bytes, "%.*s/kvhostd", (int)length, at) < 0)
			continue;
		if (is_program(out))
			return true;
	}
	return false;
}

/* Beside an installed program, or in a build folder, where libtool puts programs in .libs. */
static bool find_beside(char *out, size_t bytes)
{
	static const char *const places[] = {
	    "",    "/../sbin", "/../libexec",   "/../daemon",
	    "/..", "/../..",   "/../../daemon", "/../../daemon/..",
	};
	char self[PATH_MAX / 2];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (length <= 0)
		return false;
	self[length] = '\0';
	*strrchr(self, '/') = '\0';
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		snprintf(out, bytes, "%s%s/kvhostd", self, places[i]);
		if (is_program(out))
			return true;
	}
	return false;
}

static int find_program(char *out, size_t bytes, struct bench_reason *why)
{
	const char *named = getenv("KVHOSTD");

	if (named && named[0]) {
		snprintf(out, bytes, "%s", named);
		if (is_program(out))
			return 0;
		return bench_reason_set(why, "$KVHOSTD: %s is not a program", named);
	}
	if (find_beside(out, bytes))
		return 0;
	snprintf(out, bytes, "./kvhostd");
	if (is_program(out) || find_in_path(out, bytes))
		return 0;
	return bench_reason_set(why, "kvhostd was found neither beside kvbench nor in PATH; set "
				     "KVHOSTD to its path or use --socket");
}

/* ---- start ---- */

static int write_configuration(const char *path, const struct bench_options *o,
			       const struct bench_plan *plan, struct bench_reason *why)
{
	json_t *root = json_object();
	int r;

	json_object_set_new(root, "kv_ram_bytes", json_integer((json_int_t)plan->ram_bytes));
	json_object_set_new(root, "kv_staging_bytes", json_integer(0));
	if (plan->ram_bytes) {
		json_object_set_new(root, "kv_ram_page_bytes",
				    json_integer((json_int_t)plan->ram_page_bytes));
		/* Who measures may not be allowed to lock so much. */
		json_object_set_new(root, "kv_ram_lock", json_false());
	}
	if (plan->spin_us > 0)
		json_object_set_new(root, "core",
				    json_pack("{s:I}", "spin_us", (json_int_t)plan->spin_us));
	if (plan->has_pool) {
		json_t *budget = plan->budget_pages == BENCH_NULL
				     ? json_null()
				     : json_integer((json_int_t)plan->budget_pages);
		json_t *pool = json_pack("{s:s,s:s,s:I,s:I,s:I,s:b,s:o,s:b}", "name", o->pool,
					 "kv_cache_dtype", o->format, "kv_page_size",
					 (json_int_t)o->page_tokens, "max_sequence_length",
					 (json_int_t)plan->max_sequence_tokens, "pool_pages",
					 (json_int_t)plan->pages, "enable_prefix_caching", 1,
					 "max_prefix_cache_pages", budget, "map", (int)plan->map);

		if (plan->order)
			json_object_set_new(pool, "retained_order", json_string(plan->order));
		json_object_set_new(pool, "ram_floor_tokens",
				    json_integer((json_int_t)plan->floor_tokens));
		if (plan->lanes) {
			json_object_set_new(pool, "lanes", json_integer((json_int_t)plan->lanes));
			json_object_set_new(pool, "retained_slots",
					    json_integer((json_int_t)plan->retained_slots));
		}
		json_object_set_new(root, "pools", json_pack("[o]", pool));
	}
	if (plan->admin)
		json_object_set_new(root, "namespaces",
				    json_pack("[{s:s,s:[I],s:[s,s,s],s:s}]", "name", "bench",
					      "uids", (json_int_t)getuid(), "rights", "attach",
					      "map", "admin", "managed_prefix_cache_salt",
					      "kvbench"));
	r = json_dump_file(root, path, JSON_INDENT(2));
	json_decref(root);
	return r ? bench_reason_set(why, "%s: cannot be written: %s", path, strerror(errno)) : 0;
}

/* Settings of the caller's environment must not change what is measured. */
static void clean_environment(void)
{
	unsetenv("NOTIFY_SOCKET");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDNAMES");
	for (char **at = environ; *at;) {
		char name[128];
		size_t length = strcspn(*at, "=");

		if (strncmp(*at, "KVHOST_", 7) != 0 || length >= sizeof(name)) {
			at++;
			continue;
		}
		memcpy(name, *at, length);
		name[length] = '\0';
		unsetenv(name);
		at = environ;
	}
}

static _Noreturn void run_daemon(const struct bench_host *h, const struct bench_plan *plan,
				 const char *program, pid_t parent)
{
	char runtime[PATH_MAX], state[PATH_MAX], configuration[PATH_MAX], log[PATH_MAX];
	int fd;

	snprintf(runtime, sizeof(runtime), "%s/runtime", h->directory);
	snprintf(state, sizeof(state), "%s/state", h->directory);
	snprintf(configuration, sizeof(configuration), "%s/kvhost.json", h->directory);
	snprintf(log, sizeof(log), "%s/log", h->directory);

	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	/* Not in the terminal's group: an interrupt reaches it through kvbench, once. */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	bench_pin_two(bench_cores().daemon,
		      plan->apart ? bench_cores().device : bench_cores().daemon);
	clean_environment();

	fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
		_exit(127);
	execl(program, program, "--runtime-directory", runtime, "--state-directory", state,
	      "--config", configuration, (char *)NULL);
	dprintf(STDERR_FILENO, "%s: %s\n", program, strerror(errno));
	_exit(127);
}

static int make_directories(struct bench_host *h, struct bench_reason *why)
{
	const char *base = getenv("TMPDIR");
	char path[PATH_MAX];
	int length;

	length = snprintf(h->directory, sizeof(h->directory), "%s/kvbench-XXXXXX",
			  base && base[0] ? base : "/tmp");
	if (length < 0 || (size_t)length >= sizeof(h->directory) || !mkdtemp(h->directory)) {
		h->directory[0] = '\0';
		return bench_reason_set(why, "no directory can be made under $TMPDIR: %s",
					strerror(errno));
	}
	snprintf(path, sizeof(path), "%s/runtime", h->directory);
	if (mkdir(path, 0700))
		return bench_reason_set(why, "%s: %s", path, strerror(errno));
	snprintf(path, sizeof(path), "%s/state", h->directory);
	if (mkdir(path, 0700))
		return bench_reason_set(why, "%s: %s", path, strerror(errno));
	snprintf(h->socket, sizeof(h->socket), "%s/runtime/kvhost.sock", h->directory);
	snprintf(h->stats, sizeof(h->stats), "%s/runtime/stats", h->directory);
	if (strlen(h->socket) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return bench_reason_set(why, "%s: too long for a socket; set TMPDIR", h->socket);
	return 0;
}

/* The daemon's own words say best why it did not start. */
static void add_last_words(const struct bench_host *h, struct bench_reason *why)
{
	char path[PATH_MAX], text[512];
	size_t used = strlen(why->text);
	ssize_t length;
	off_t size;
	int fd;

	snprintf(path, sizeof(path), "%s/log", h->directory);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	size = lseek(fd, 0, SEEK_END);
	lseek(fd, size > (off_t)sizeof(text) - 1 ? size - ((off_t)sizeof(text) - 1) : 0, SEEK_SET);
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return;
	text[length] = '\0';
	for (char *at = text; *at; at++) {
		if (*at == '\n')
			*at = at[1] ? '|' : '\0';
	}
	snprintf(why->text + used, sizeof(why->text) - used, "; its last words: %s", text);
}

static int wait_ready(struct bench_host *h, struct bench_reason *why)
{
	uint64_t deadline_ns = bench_monotonic_ns() + READY_NS;
	struct kvhost_options options = {.socket = h->socket, .client = "kvbench"};
	struct kvhost *host = NULL;
	struct stat status;
	int r = 0;

	while (bench_monotonic_ns() < deadline_ns) {
		if (waitpid(h->pid, &h->exit_status, WNOHANG) == h->pid) {
			h->pid = 0;
			daemon_pid = 0;
			bench_reason_set(why, "kvhostd ended before it was ready");
			add_last_words(h, why);
			return -1;
		}
		if (stat(h->socket, &status) == 0) {
			r = kvhost_connect(&options, &host);
			if (r == 0) {
				kvhost_disconnect(&host);
				return 0;
			}
		}
		bench_sleep_ns(LOOK_NS);
	}
	bench_reason_set(why, "kvhostd was not ready within 20 s%s%s", r ? ": " : "",
			 r ? kvhost_strerror(r) : "");
	add_last_words(h, why);
	return -1;
}

static int use_socket(struct bench_host *h, const char *path, struct bench_reason *why)
{
	const char *slash = strrchr(path, '/');
	int n;

	n = snprintf(h->socket, sizeof(h->socket), "%s", path);
	if (n < 0 || (size_t)n >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return bench_reason_set(why, "--socket: %s is too long for a socket", path);
	snprintf(h->stats, sizeof(h->stats), "%.*sstats", slash ? (int)(slash + 1 - path) : 0,
		 path);
	return 0;
}

/* A client that sleeps while it waits can share its core; the daemon's first thread, which looks
 * for work, cannot. */
static int place_threads(const struct bench_host *h, struct bench_reason *why)
{
	if (bench_pin_thread(h->pid, NULL, bench_cores().daemon) ||
	    bench_pin_thread(h->pid, "dev0", bench_cores().device))
		return bench_reason_set(why, "process %d has no thread dev0 that can be pinned",
					(int)h->pid);
	return 0;
}

int bench_host_start(struct bench_host *h, const struct bench_options *o,
		     const struct bench_plan *plan, struct bench_reason *why)
{
	char program[PATH_MAX], configuration[PATH_MAX];
	pid_t parent = getpid();

	*h = (struct bench_host){.exit_status = -1};
	if (o->socket)
		return use_socket(h, o->socket, why);
	if (find_program(program, sizeof(program), why) || make_directories(h, why))
		return -1;
	snprintf(configuration, sizeof(configuration), "%s/kvhost.json", h->directory);
	if (write_configuration(configuration, o, plan, why))
		return -1;

	catch_signals();
	h->pid = fork();
	if (h->pid < 0) {
		h->pid = 0;
		return bench_reason_set(why, "fork: %s", strerror(errno));
	}
	if (h->pid == 0)
		run_daemon(h, plan, program, parent);
	daemon_pid = h->pid;
	if (wait_ready(h, why))
		return -1;
	return plan->apart ? place_threads(h, why) : 0;
}

/* ---- stop ---- */

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
	(void)status;
	(void)kind;
	(void)place;
	return remove(path);
}

void bench_host_stop(struct bench_host *h)
{
	uint64_t deadline_ns = bench_monotonic_ns() + STOP_NS;

	if (h->pid > 0) {
		kill(h->pid, SIGTERM);
		while (waitpid(h->pid, NULL, WNOHANG) == 0) {
			if (bench_monotonic_ns() > deadline_ns) {
				kill(h->pid, SIGKILL);
				waitpid(h->pid, NULL, 0);
				break;
			}
			bench_sleep_ns(LOOK_NS);
		}
		daemon_pid = 0;
		h->pid = 0;
	}
	if (h->directory[0])
		nftw(h->directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	h->directory[0] = '\0';
}

/* ---- use ---- */

int bench_host_pid(const struct bench_host *h, int *out, struct bench_reason *why)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t length = sizeof(peer);
	int fd, r;

	if (h->pid > 0) {
		*out = h->pid;
		return 0;
	}
	memcpy(address.sun_path, h->socket, strlen(h->socket) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return bench_reason_set(why, "socket: %s", strerror(errno));
	r = connect(fd, (struct sockaddr *)&address, sizeof(address));
	if (r == 0)
		r = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
	close(fd);
	if (r || peer.pid <= 1)
		return bench_reason_set(why, "%s: does not tell the daemon's process", h->socket);
	*out = peer.pid;
	return 0;
}

bool bench_host_is_alive(const struct bench_host *h)
{
	siginfo_t ended = {0};

	if (h->pid <= 0)
		return true;
	/* Looks only: bench_host_stop collects it. */
	return waitid(P_PID, (id_t)h->pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	       ended.si_pid == 0;
}

int bench_host_wait_quiet(const struct bench_host *h, struct bench_reason *why)
{
	uint64_t deadline_ns = bench_monotonic_ns() + STOP_NS, before_ns, after_ns;
	int pid;

	if (bench_host_pid(h, &pid, why))
		return -1;
	while (bench_monotonic_ns() < deadline_ns) {
		if (bench_process_cpu_ns(pid, &before_ns))
			break;
		bench_sleep_ns(QUIET_NS);
		if (bench_process_cpu_ns(pid, &after_ns))
			break;
		if (after_ns - before_ns < QUIET_NS / 10)
			return 0;
	}
	return bench_reason_set(why, "the daemon did not come to rest within 5 s");
}

int bench_connect(const struct bench_host *h, uint32_t spin_us, uint64_t window_bytes,
		  struct kvhost **out, struct bench_reason *why)
{
	struct kvhost_options options = {.socket = h->socket,
					 .client = "kvbench",
					 .spin_us = spin_us,
					 .window_bytes = window_bytes};
	int r = kvhost_connect(&options, out);

	return r ? bench_reason_call(why, NULL, "connect", r) : 0;
}

static uint32_t format_of(const char *name)
{
	if (strcmp(name, "float32") == 0)
		return KVHOST_FLOAT32;
	return strcmp(name, "bfloat16") == 0 ? KVHOST_BFLOAT16 : KVHOST_FLOAT16;
}

int bench_attach(struct kvhost *host, const struct bench_options *o, bool map,
		 struct kvhost_pool **out, struct bench_reason *why)
{
	return bench_attach_hybrid(host, o, map, 0, out, why);
}

int bench_attach_hybrid(struct kvhost *host, const struct bench_options *o, bool map,
			uint64_t image_bytes, struct kvhost_pool **out, struct bench_reason *why)
{
	const struct kvhost_section section = {.name = "state", .bytes = image_bytes};
	struct kvhost_pool_description description = {.name = o->pool,
						      .page_tokens = (uint32_t)o->page_tokens,
						      .n_layers = (uint32_t)o->layers,
						      .n_sections = image_bytes > 0,
						      .sections = &section,
						      .map = map};
	struct kvhost_layer *layers = calloc(o->layers, sizeof(*layers));
	int r;

	if (!layers)
		return bench_reason_set(why, "no memory");
	for (uint64_t i = 0; i < o->layers; i++)
		layers[i] = (struct kvhost_layer){.kv_heads = (uint32_t)o->kv_heads,
						  .k_head_dim = (uint32_t)o->head_dim,
						  .v_head_dim = (uint32_t)o->head_dim,
						  .k_format = format_of(o->format),
						  .v_format = format_of(o->format)};
	description.layers = layers;
	r = kvhost_pool_attach(host, &description, out);
	free(layers);
	return r ? bench_reason_call(why, host, "pool_attach", r) : 0;
}
