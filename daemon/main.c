/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvhostd: put the parts together, run the core's loop until told to stop, take them apart.
 *
 * The main thread is the core thread. Exit codes: 0 stopped; 1 could not start; 2 the
 * configuration is wrong; 3 a limit of the host is below what is configured.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "daemon/base/group.h"
#include "daemon/base/panic.h"
#include "daemon/base/random.h"
#include "daemon/front/listener.h"
#include "daemon/memory.h"
#include "daemon/secret.h"
#include "shm/guard.h"
#include "shm/ring.h"

#define LISTEN_TURNS 64   /* turns between two looks at the sockets while busy */
#define SLEEP_MS     1000 /* longest sleep: a heartbeat */
#define STOP_NS      (5 * NS_PER_S)
#define DEVICE_SPINS 20 /* times as long as else it spins while the device is at a job */
#define EXIT_LIMIT   3  /* a limit of the host is below what is configured */

struct kvhost { /* owns every module */
	struct config config;
	struct log *log;
	struct statsfile stats;
	bool has_stats;
	int threads[4]; /* of the stats file: core, work, device, log */
	struct executor *work, *copies;
	struct device *device;
	struct memory memory;
	struct core core;
	bool has_core;
	uint64_t available_bytes; /* of the host, before anything is taken */
	struct listener *listener;
	int wake_fd, signal_fd;
	bool has_processors; /* more than one to run on */
	bool stopping;
	int exit_code; /* of a start that fails */
	uint64_t stop_ns;
	uint64_t watchdog_ns, fed_ns;
};

static void say(const char *what, int r, const char *detail)
{
	fprintf(stderr, "kvhostd: %s: %s%s%s\n", what, strerror(-r), detail[0] ? ": " : "", detail);
}

static void on_panic(void *context, const char *text)
{
	struct kvhost *k = context;

	if (k->has_stats)
		statsfile_panic(&k->stats, text);
}

static void on_wake(void *context)
{
	struct kvhost *k = context;
	uint64_t n;

	(void)!read(k->wake_fd, &n, sizeof(n));
}

static void on_signal(void *context)
{
	struct kvhost *k = context;
	struct signalfd_siginfo info;

	while (read(k->signal_fd, &info, sizeof(info)) == sizeof(info))
		k->stopping = true;
}

/* ---- start ---- */

static int make_directory(const char *path, mode_t mode)
{
	if (mkdir(path, mode))
		return errno == EEXIST ? 0 : -errno;
	return chmod(path, mode) ? -errno : 0; /* whatever the umask is */
}

static uint64_t available_bytes(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	}
	if (f)
		fclose(f);
	return kib * 1024;
}

static int start_log(struct kvhost *k)
{
	struct log_options options = {.fd = STDERR_FILENO,
				      .level = (enum log_level)k->config.core.log_level,
				      .journal = log_is_journal(STDERR_FILENO)};

	return log_new(&options, &k->log);
}

static void log_warnings(struct kvhost *k)
{
	extern char **environ;
	char *text = NULL, *rest = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	if (!out)
		return;
	config_print_warnings(&k->config, environ, out);
	fclose(out);
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		log_write(k->log, LOG_LEVEL_WARNING, "%s", line);
	free(text);
}

static int start_stats(struct kvhost *k, uint64_t epoch)
{
	static const char *const names[] = {"core", "work", "device", "log"};
	struct statsfile_size size =
	    counters_size(k->config.n_pools, (uint32_t)k->config.core.session_limit);
	char path[sizeof(k->config.runtime_directory) + 8];
	int r;

	snprintf(path, sizeof(path), "%s/stats", k->config.runtime_directory);
	r = statsfile_create(&k->stats, path, &size, epoch, PACKAGE_VERSION);
	if (r) {
		say(path, r, r == -EBUSY ? "another daemon holds this runtime directory" : "");
		return r;
	}
	k->has_stats = true;
	r = group_give(path, GROUP_ADMIN);
	if (r)
		say(path, r, "");
	panic_set_hook(on_panic, k);
	for (int i = 0; i < 4 && r >= 0; i++)
		r = k->threads[i] = statsfile_add_thread(&k->stats, names[i]);
	return r < 0 ? r : 0;
}

static int load_secret(struct kvhost *k, const char *name, uint8_t *out, size_t bytes)
{
	const char *wrong;
	int r = secret_load(k->config.state_directory, name, out, bytes, &wrong);

	if (r)
		fprintf(stderr, "kvhostd: %s/%s: %s\n", k->config.state_directory, wrong,
			r == -EINVAL ? "not a secret of this daemon, or others may read it"
				     : strerror(-r));
	return r;
}

/* Of the one namespace of a daemon that was told of none: random, and the same after a restart. */
static int load_default_salt(struct kvhost *k)
{
	struct config_salt *salt = &k->config.namespaces[0].managed_prefix_cache_salt;
	uint8_t bytes[32];
	int r = load_secret(k, SECRET_SALT, bytes, sizeof(bytes));

	if (r)
		return r;
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(salt->text + 2 * i, 3, "%02x", bytes[i]);
	salt->is_set = true;
	explicit_bzero(bytes, sizeof(bytes));
	return 0;
}

static void on_ram(void *context)
{
	struct kvhost *k = context;

	core_ram_arrived(&k->core);
}

static int start_memory(struct kvhost *k)
{
	int r =
	    memory_start(&k->memory, &k->config, k->device->numa_node, k->work, k->log, on_ram, k);

	if (r)
		k->exit_code = EXIT_LIMIT;
	return r;
}

/* Of KV-RAM that is arriving the pools know how much it will have. */
static uint64_t for_pools(const struct kvhost *k)
{
	const struct arena *a = k->memory.arena;

	return a && !a->set_aside ? k->available_bytes : available_bytes();
}

static int start_core(struct kvhost *k, uint64_t epoch)
{
	struct core_options options = {.config = &k->config,
				       .clock = clock_monotonic(),
				       .keys.kept_bits = 128,
				       .boot_epoch = epoch,
				       .available_bytes = for_pools(k),
				       .device = k->device,
				       .staging = k->memory.staging,
				       .staging_note = k->memory.staging_note,
				       .arena = k->memory.arena,
				       .ram_note = k->memory.ram_note,
				       .copies = k->copies,
				       .work = k->work,
				       .stats = &k->stats,
				       .log = k->log,
				       .hooks = listener_hooks};
	int r = load_secret(k, SECRET_KEY, options.keys.secret, sizeof(options.keys.secret));

	if (!r && !k->config.has_namespaces)
		r = load_default_salt(k);
	if (r)
		return r;
	r = core_init(&k->core, &options);
	if (r)
		say("its core", r, "");
	config_forget_salts(&k->config);
	k->has_core = r == 0;
	return r;
}

static int start_listener(struct kvhost *k)
{
	char path[sizeof(k->config.runtime_directory) + 16];
	sigset_t signals;
	int r;

	snprintf(path, sizeof(path), "%s/kvhost.sock", k->config.runtime_directory);
	r = listener_new(path, &k->core, &k->listener);
	if (r) {
		say(path, r, "");
		return r;
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	k->signal_fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	r = k->signal_fd < 0 ? -errno : listener_watch(k->listener, k->wake_fd, on_wake, k);
	if (!r)
		r = listener_watch(k->listener, k->signal_fd, on_signal, k);
	if (r)
		say("its event loop", r, "");
	return r;
}

/* Before any thread is started: they inherit the mask. */
static void block_signals(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* A session needs four of them. */
static void raise_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static bool has_processors(void)
{
	cpu_set_t allowed;

	CPU_ZERO(&allowed);
	return sched_getaffinity(0, sizeof(allowed), &allowed) || CPU_COUNT(&allowed) > 1;
}

static int start_threads(struct kvhost *k)
{
	int r;

	k->has_processors = has_processors();
	k->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	r = k->wake_fd < 0 ? -errno : 0;
	if (!r)
		r = worker_new("work", k->wake_fd, &k->work);
	if (!r)
		r = worker_new("dev0", k->wake_fd, &k->copies);
	if (!r)
		r = device_cpu_new(k->copies, k->work, &k->device);
	/* Pools in the memory of the host lie where KV-RAM does. */
	if (!r)
		k->device->numa_node = k->config.kv_ram_numa_node == CONFIG_NULL
					   ? NODES_INTERLEAVE
					   : (int)k->config.kv_ram_numa_node;
	return r;
}

static int start(struct kvhost *k)
{
	uint64_t epoch = 0;
	int r = random_secret(&epoch, sizeof(epoch));

	epoch |= 1;
	block_signals();
	raise_descriptors();
	umask(027);
	if (!r)
		r = guard_install();
	if (!r && (r = make_directory(k->config.runtime_directory, 0755)))
		say(k->config.runtime_directory, r, "");
	if (!r && (r = make_directory(k->config.state_directory, 0700)))
		say(k->config.state_directory, r, "");
	if (!r)
		r = start_log(k);
	if (!r) {
		log_warnings(k);
		r = start_stats(k, epoch);
	}
	if (!r && (r = start_threads(k)))
		say("its threads", r, "");
	k->available_bytes = available_bytes();
	if (!r)
		r = start_memory(k);
	if (!r)
		r = start_core(k, epoch);
	if (!r)
		r = start_listener(k);
	return r;
}

/* ---- run ---- */

static void beat(struct kvhost *k, bool asleep)
{
	struct statsfile_thread *t = k->stats.threads;
	uint64_t now = asleep ? 0 : k->core.now_ns;

	atomic_store_explicit(&t[k->threads[0]].heartbeat_ns, now, memory_order_relaxed);
	atomic_store_explicit(&t[k->threads[1]].heartbeat_ns, k->work->heartbeat_ns(k->work),
			      memory_order_relaxed);
	atomic_store_explicit(&t[k->threads[2]].heartbeat_ns, k->copies->heartbeat_ns(k->copies),
			      memory_order_relaxed);
	atomic_store_explicit(&t[k->threads[3]].heartbeat_ns, log_heartbeat_ns(k->log),
			      memory_order_relaxed);
}

static void set_state(struct kvhost *k, enum statsfile_state state)
{
	atomic_store_explicit(&k->stats.head->state, state, memory_order_relaxed);
}

/* Only while no worker has been at one job for longer than the watchdog waits. */
static void feed_watchdog(struct kvhost *k)
{
#ifdef HAVE_SYSTEMD
	uint64_t now = k->core.now_ns;

	if (!k->watchdog_ns || now - k->fed_ns < k->watchdog_ns / 4)
		return;
	for (int i = 1; i < 4; i++) {
		uint64_t at = atomic_load_explicit(&k->stats.threads[k->threads[i]].heartbeat_ns,
						   memory_order_relaxed);

		if (at && now > at && now - at > k->watchdog_ns)
			return;
	}
	k->fed_ns = now;
	sd_notify(0, "WATCHDOG=1");
#else
	(void)k;
#endif
}

static void begin_stop(struct kvhost *k)
{
	if (k->core.draining)
		return;
	log_write(k->log, LOG_LEVEL_NOTICE, "stopping");
#ifdef HAVE_SYSTEMD
	sd_notify(0, "STOPPING=1");
#endif
	set_state(k, STATSFILE_DRAINING);
	k->stop_ns = k->core.now_ns + STOP_NS;
	core_drain(&k->core);
	listener_stop(k->listener);
}

static void sleep_now(struct kvhost *k)
{
	uint64_t until_ns, now = k->core.now_ns;
	int ms = SLEEP_MS;

	if (core_prepare_sleep(&k->core, &until_ns)) {
		if (until_ns <= now)
			ms = 0;
		else if (until_ns - now < SLEEP_MS * NS_PER_MS)
			ms = (int)((until_ns - now) / NS_PER_MS) + 1;
		beat(k, false);
		listener_poll(k->listener, ms);
	}
	core_end_sleep(&k->core);
	beat(k, false);
	feed_watchdog(k);
}

/* What the device is at is done long before a sleep would pay: to wake this thread costs the
 * device's more than a tenth of what it copies in a job. Where both have one processor, the device
 * would wait for who looks for its end. */
static bool may_sleep(struct kvhost *k, uint64_t busy_ns)
{
	uint64_t spin_ns = k->config.core.spin_us * NS_PER_US;
	uint64_t idle_ns = k->core.now_ns - busy_ns;

	if (idle_ns <= spin_ns)
		return false;
	if (!k->has_processors)
		return true;
	return idle_ns > DEVICE_SPINS * spin_ns || k->copies->heartbeat_ns(k->copies) == 0;
}

static void run(struct kvhost *k)
{
	uint64_t busy_ns = k->core.now_ns;
	uint32_t turns = 0;

	for (;;) {
		bool busy;

		/* A signal may have come while it slept: nobody is told of the end before this. */
		if (k->stopping) {
			begin_stop(k);
			if (core_is_idle(&k->core) || k->core.now_ns >= k->stop_ns) {
				core_publish(&k->core); /* what the stop has counted */
				break;
			}
		}
		busy = core_turn(&k->core);
		if (busy)
			busy_ns = k->core.now_ns;
		if (++turns % LISTEN_TURNS == 0) {
			listener_poll(k->listener, 0);
			beat(k, false);
			feed_watchdog(k);
		}
		if (busy)
			continue;
		if (may_sleep(k, busy_ns) || k->stopping)
			sleep_now(k);
		else
			ring_pause();
	}
}

/* ---- stop ---- */

static void stop(struct kvhost *k)
{
	if (k->has_core) {
		core_forget_quarantines(&k->core);
		core_forget_making(&k->core);
	}
	memory_stop(&k->memory);
	worker_free(&k->copies);
	worker_free(&k->work);
	listener_free(&k->listener);
	if (k->has_core)
		core_deinit(&k->core);
	if (memory_stop(&k->memory))
		memory_free(&k->memory);
	if (k->device)
		k->device->free(k->device);
	if (k->has_stats) {
		panic_set_hook(NULL, NULL);
		statsfile_close(&k->stats, STATSFILE_STOPPED);
	}
	log_free(&k->log);
	if (k->wake_fd >= 0)
		close(k->wake_fd);
	if (k->signal_fd >= 0)
		close(k->signal_fd);
}

static void say_ready(struct kvhost *k)
{
	set_state(k, STATSFILE_RUNNING);
	log_write(k->log, LOG_LEVEL_NOTICE, "kvhostd %s: ready, socket %s/kvhost.sock",
		  PACKAGE_VERSION, k->config.runtime_directory);
#ifdef HAVE_SYSTEMD
	uint64_t us = 0;

	if (sd_watchdog_enabled(0, &us) > 0)
		k->watchdog_ns = us * NS_PER_US;
	sd_notify(0, "READY=1\nSTATUS=serving");
#endif
}

int main(int argc, char **argv)
{
	extern char **environ;
	static struct kvhost k = {.wake_fd = -1, .signal_fd = -1, .exit_code = 1};
	char error[CONFIG_ERROR_BYTES];
	enum config_action action;

	if (config_load(&k.config, argc, argv, environ, &action, error)) {
		fprintf(stderr, "kvhostd: %s\n", error);
		return 2;
	}
	switch (action) {
	case CONFIG_HELP:
		config_print_help(stdout);
		return 0;
	case CONFIG_VERSION:
		printf("kvhostd %s\n", PACKAGE_VERSION);
		return 0;
	case CONFIG_CHECK:
		config_print_warnings(&k.config, environ, stdout);
		puts("the configuration is good");
		return 0;
	case CONFIG_RUN:
		break;
	}
	if (start(&k)) {
		fprintf(stderr, "kvhostd: could not start\n");
		stop(&k);
		return k.exit_code;
	}
	say_ready(&k);
	run(&k);
	stop(&k);
	return 0;
}
