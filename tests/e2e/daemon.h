/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_E2E_DAEMON_H
#define KVHOST_TESTS_E2E_DAEMON_H

/*
 * daemon: a private kvhostd for one test, in a folder of its own, and looks at it from outside.
 *
 * The daemon dies with the test program. Calls block, each for a bounded time; what cannot be done
 * fails the test. Main thread.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Sanitizers slow everything down: deadlines are this many times longer then. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PATIENCE 8
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PATIENCE 8
#endif
#endif
#ifndef PATIENCE
#define PATIENCE 1
#endif

#define WITHIN_MS 1000  /* what must be over within a second */
#define LONG_MS   20000 /* what must end at all */

struct daemon {
	char folder[64];
	char run[96];
	char socket[128];
	char stats[128];
	const char *program;     /* in the build folder; NULL: kvhostd */
	const char *environment; /* one NAME=VALUE for it; NULL: none */
	uint64_t lock_bytes;     /* RLIMIT_MEMLOCK, and no right to exceed it; 0: as it is */
	const char *group;       /* cgroup.procs of the control group that it runs in; NULL: ours */
	bool has_ram;            /* its configuration says how much KV-RAM; else it has none */
	bool has_staging;        /* the same */
	pid_t pid;               /* 0: not running */
	int pidfd;
};

/* The folder with this configuration file; `json` may be NULL. Then start it. */
void daemon_make(struct daemon *d, const char *json);
void daemon_begin(struct daemon *d);                   /* make, done elsewhere; now it must run */
void daemon_start(struct daemon *d, const char *json); /* both */
/* The same as daemon_begin for one that may not start: 0, or its exit code and what it said. */
int daemon_try(struct daemon *d, char *said, size_t bytes);
bool daemon_can_limit_locks(void); /* else lock_bytes cannot be set */
/* SIGTERM; its exit status. Fails the test if it takes longer. */
int daemon_stop(struct daemon *d, unsigned within_ms);
void daemon_kill(struct daemon *d);
void daemon_remove(struct daemon *d); /* kill what runs, and the folder; also half-made */

/* Of the stats file; a pool's with its name as label. 0 if there is no such counter yet. */
uint64_t daemon_counter(const struct daemon *d, const char *name);
uint64_t daemon_pool_counter(const struct daemon *d, const char *pool, const char *name);
/* Wait until it has this value; what it has at the end. */
uint64_t daemon_await(const struct daemon *d, const char *pool, const char *name, uint64_t value,
		      unsigned within_ms);
/* Every look, stop and kill notes which counters have moved, for tests/e2e/counted.sh; so does
 * this. */
void daemon_note(const struct daemon *d);

uint64_t now_ms(void);
void pause_ms(unsigned ms); /* between two looks at a state */
/* until(context), looked at every millisecond: true, or false after the deadline. */
bool await(bool (*until)(void *context), void *context, unsigned within_ms);
/* Wait for a child: its wait status. Fails the test if it does not end. */
int await_child(pid_t child, unsigned within_ms);
/* fork; the child dies with this process. */
pid_t fork_client(void);

/* Run a program of the build folder: its exit status, its output (cut) in out. argv[0] is the
 * name in the build folder. */
int run_program(char *const argv[], char *out, size_t bytes, unsigned within_ms);
const char *build_path(const char *name, char *out, size_t bytes);

bool is_long(void); /* make check-long */

#endif
