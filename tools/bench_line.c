/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_line: calibrations between two processes. Main thread and a forked child, which share
 * nothing but the mapping made here. Both spin; the child dies with its parent.
 *
 * Every word has one writer. It is stored with release and loaded with acquire by the other side.
 */
#include "tools/bench_line.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART      128 /* processors fetch lines in pairs */
#define RING_SLOTS 256
#define WARM       2000

struct line {
	_Atomic uint64_t value;
	uint8_t rest[APART - 8];
};

struct entry {
	_Atomic uint64_t sequence; /* position + 1, written last */
	uint64_t payload[7];
};

struct shared {
	struct line ready, there, back;
	struct entry forth[RING_SLOTS], home[RING_SLOTS];
};

_Static_assert(sizeof(struct entry) == 64, "one cache line");

const char *bench_wait_name(enum bench_wait wait)
{
	return wait == BENCH_WAIT_TIGHT ? "tight" : "pause";
}

static inline void pause_once(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

static inline void await(_Atomic uint64_t *word, uint64_t value, enum bench_wait wait)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value) {
		if (wait == BENCH_WAIT_PAUSE)
			pause_once();
	}
}

static inline void put(struct entry *ring, uint64_t position, const uint64_t *payload)
{
	struct entry *e = &ring[position % RING_SLOTS];

	memcpy(e->payload, payload, sizeof(e->payload));
	atomic_store_explicit(&e->sequence, position + 1, memory_order_release);
}

static inline void get(struct entry *ring, uint64_t position, uint64_t *payload,
		       enum bench_wait wait)
{
	struct entry *e = &ring[position % RING_SLOTS];

	await(&e->sequence, position + 1, wait);
	memcpy(payload, e->payload, sizeof(e->payload));
}

static void line_peer(struct shared *s, uint64_t n, enum bench_wait wait)
{
	for (uint64_t i = 1; i <= n; i++) {
		await(&s->there.value, i, wait);
		atomic_store_explicit(&s->back.value, i, memory_order_release);
	}
}

static void line_ask(struct shared *s, uint64_t n, enum bench_wait wait, struct bench_samples *out)
{
	uint64_t last = bench_ticks(), now;

	for (uint64_t i = 1; i <= n; i++) {
		atomic_store_explicit(&s->there.value, i, memory_order_release);
		await(&s->back.value, i, wait);
		now = bench_ticks();
		if (i > WARM)
			bench_samples_add(out, now - last);
		last = now;
	}
}

static void ring_peer(struct shared *s, uint64_t n, enum bench_wait wait)
{
	uint64_t payload[7];

	for (uint64_t i = 0; i < n; i++) {
		get(s->forth, i, payload, wait);
		put(s->home, i, payload);
	}
}

static void ring_ask(struct shared *s, uint64_t n, enum bench_wait wait, struct bench_samples *out)
{
	uint64_t last = bench_ticks(), now, payload[7] = {0};

	for (uint64_t i = 0; i < n; i++) {
		payload[0] = i;
		put(s->forth, i, payload);
		get(s->home, i, payload, wait);
		now = bench_ticks();
		if (i >= WARM)
			bench_samples_add(out, now - last);
		last = now;
		assert(payload[0] == i);
	}
}

/* Once it is there it only spins, so nothing but a kill from outside can end it early. */
static bool wait_ready(struct shared *s, pid_t child)
{
	while (atomic_load_explicit(&s->ready.value, memory_order_acquire) == 0) {
		if (waitpid(child, NULL, WNOHANG) == child)
			return false;
		bench_sleep_ns(100000);
	}
	return true;
}

typedef void peer_function(struct shared *s, uint64_t n, enum bench_wait wait);
typedef void ask_function(struct shared *s, uint64_t n, enum bench_wait wait,
			  struct bench_samples *out);

static int measure(peer_function *peer, ask_function *ask, uint64_t round_trips,
		   enum bench_wait wait, struct bench_cores cores, struct bench_samples *out,
		   struct bench_reason *why)
{
	pid_t parent = getpid(), child;
	uint64_t n = round_trips + WARM;
	struct shared *s;
	bool ready;

	if (cores.client == cores.daemon)
		return bench_reason_set(why, "needs two cores");
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (s == MAP_FAILED)
		return bench_reason_set(why, "mmap: %s", strerror(errno));
	memset(s, 0, sizeof(*s));

	bench_samples_clear(out);
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		if (getppid() != parent || bench_pin(cores.daemon))
			_exit(1);
		atomic_store_explicit(&s->ready.value, 1, memory_order_release);
		peer(s, n, wait);
		_exit(0);
	}
	ready = child > 0 && wait_ready(s, child);
	if (ready) {
		ask(s, n, wait, out);
		waitpid(child, NULL, 0);
	}
	munmap(s, sizeof(*s));
	if (!ready)
		return bench_reason_set(why, "the peer process did not start");
	bench_samples_sort(out);
	return 0;
}

int bench_line_measure(uint64_t round_trips, enum bench_wait wait, struct bench_cores cores,
		       struct bench_samples *out, struct bench_reason *why)
{
	return measure(line_peer, line_ask, round_trips, wait, cores, out, why);
}

int bench_raw_ring_measure(uint64_t round_trips, enum bench_wait wait, struct bench_cores cores,
			   struct bench_samples *out, struct bench_reason *why)
{
	return measure(ring_peer, ring_ask, round_trips, wait, cores, out, why);
}
