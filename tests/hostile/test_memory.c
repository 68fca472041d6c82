/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile client may do to the memory and the descriptors that it shares with the daemon:
 * change it under the daemon's hands, punch it, cut it, set flags. The attacker may lose its
 * session; nobody else loses anything.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/passfd.h"
#include "tests/e2e/footprint.h"
#include "tests/hostile/ops.h"

#define TOKENS     40u
#define ATTEMPTS   300
#define HUGE_BYTES (64u << 20)
#define TRIES      1000
#define HUGE_FILE  "/proc/sys/vm/nr_hugepages"

static struct world w;
static unsigned long pages_before;
static bool pages_changed;

static bool huge_pages_set(unsigned long n);

static int set_up(void **state)
{
	(void)state;
	(void)signal(SIGIO, SIG_IGN);
	world_start(&w);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	if (pages_changed)
		(void)huge_pages_set(pages_before);
	world_stop(&w);
	return 0;
}

/* ---- values that change after submit ---- */

struct flipper {
	struct raw *r;
	_Atomic bool stop;
	_Atomic uint32_t flips;
};

/* Between an honest prompt and one of another length that begins otherwise. */
static void *flip(void *context)
{
	struct flipper *f = context;
	struct payload_open *in = raw_window(f->r, IN);
	volatile uint32_t *n = &in->n_tokens, *spans = &in->n_spans;
	volatile uint32_t *first = (volatile uint32_t *)(in + 1);

	while (!atomic_load(&f->stop)) {
		*n = TOKENS + 1;
		*spans = 4000;
		*first = 77;
		atomic_fetch_add(&f->flips, 1);
		*n = TOKENS;
		*spans = 0;
		*first = 1000000;
	}
	return NULL;
}

static void a_payload_that_changes_is_read_once(void **state)
{
	struct raw r;
	struct flipper f = {.r = &r};
	struct submission s;
	struct completion c;
	pthread_t thread;

	(void)state;
	do_attach(&r, w.d.socket, false);
	s = op_open(&r, 1000000, TOKENS, 64);
	assert_int_equal(pthread_create(&thread, NULL, flip, &f), 0);
	while (atomic_load(&f.flips) == 0)
		(void)sched_yield();
	for (int i = 0; i < ATTEMPTS; i++) {
		s.opcode = i % 2 ? WIRE_OP_LOOKUP : WIRE_OP_OPEN;
		switch (raw_ask(&r, &s, &c)) {
		case 0:
			/* One of the two prompts, or one that begins as neither or either does. */
			assert_true(c.value0 == 0 || c.value0 == 32);
			if (s.opcode == WIRE_OP_OPEN)
				do_close(&r, handle_of(&c));
			break;
		case WIRE_EINVAL:
			break;
		default:
			fail_msg("status %d: %s", c.status, raw_text(&r, &c));
		}
	}
	atomic_store(&f.stop, true);
	pthread_join(thread, NULL);
	raw_free(&r);
	world_goes_on(&w);
}

/* ---- holes ---- */

static void punch(int fd, size_t bytes)
{
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes),
			 0);
}

static void a_window_with_holes_holds_zeros(void **state)
{
	struct raw r;
	struct submission s;

	(void)state;
	do_attach(&r, w.d.socket, false);
	s = op_open(&r, 100, TOKENS, 64);
	punch(r.window.fd, r.window.bytes);
	assert_int_equal(raw_ask(&r, &s, NULL), WIRE_EINVAL);
	/* It is there again as soon as it is written. */
	do_close(&r, do_open(&r, 100, TOKENS, 64));
	raw_free(&r);
	world_goes_on(&w);
}

static void punch_control(struct raw *r, const void *detail)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});

	(void)detail;
	for (int i = 0; i < 40; i++)
		assert_int_equal(raw_ask(r, &null, NULL), 0);
	punch(r->control.fd, r->control.bytes);
	raw_bell(r);
}

static void a_control_segment_with_holes_ends_the_session(void **state)
{
	(void)state;
	world_attack(&w, punch_control, NULL, WIRE_BYE_VIOLATION);
}

static void a_mapped_pool_with_holes_hurts_that_pool_alone(void **state)
{
	struct payload_handle seq, step;
	struct segment pool;
	struct raw r;

	(void)state;
	do_attach(&r, w.d.socket, true);
	/* The descriptor comes before the completion; the socket has it. */
	while (r.pool_fd < 0) {
		struct message m;
		int fd;

		assert_int_equal(raw_receive(r.socket, &m, r.text, &fd), 0);
		if (m.type == MESSAGE_SEGMENT)
			r.pool_fd = fd;
	}
	seq = do_open(&r, 100, TOKENS, 64);
	step = do_begin(&r, seq, TOKENS);
	do_write(&r, step, TOKENS, 1);
	assert_true(bytes_are(&r, step, TOKENS, 1));
	assert_int_equal(segment_map(dup(r.pool_fd), &pool), 0);
	punch(r.pool_fd, pool.bytes);
	assert_false(bytes_are(&r, step, TOKENS, 1));
	memset(pool.memory, 0xee, pool.bytes);
	world_goes_on(&w);
	do_write(&r, step, TOKENS, 2);
	assert_true(bytes_are(&r, step, TOKENS, 2));
	segment_free(&pool);
	raw_free(&r);
	world_goes_on(&w);
}

static void no_segment_can_be_cut_or_grown(void **state)
{
	struct raw r;
	int fds[3];

	(void)state;
	do_attach(&r, w.d.socket, true);
	while (r.pool_fd < 0) {
		struct message m;

		assert_int_equal(raw_receive(r.socket, &m, r.text, &r.pool_fd), 0);
	}
	fds[0] = r.control.fd;
	fds[1] = r.window.fd;
	fds[2] = r.pool_fd;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ftruncate(fds[i], 0), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(ftruncate(fds[i], 1 << 30), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(fallocate(fds[i], 0, 0, 1 << 30), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(fcntl(fds[i], F_ADD_SEALS, F_SEAL_WRITE), -1);
		assert_int_equal(errno, EPERM);
	}
	raw_free(&r);
	world_goes_on(&w);
}

/* ---- flags ---- */

static void flags_of_descriptors_are_the_attackers_own_affair(void **state)
{
	struct submission null = op(WIRE_OP_NULL, (struct payload_handle){0});
	struct raw r;
	int fds[4];

	(void)state;
	do_attach(&r, w.d.socket, true);
	while (r.pool_fd < 0) {
		struct message m;

		assert_int_equal(raw_receive(r.socket, &m, r.text, &r.pool_fd), 0);
	}
	fds[0] = r.control.fd;
	fds[1] = r.window.fd;
	fds[2] = r.pool_fd;
	fds[3] = r.socket;
	for (int i = 0; i < 4; i++) {
		static const int flags[] = {O_NONBLOCK, O_APPEND, O_ASYNC, 0};

		(void)fcntl(fds[i], F_SETOWN, getpid());
		for (size_t k = 0; k < sizeof(flags) / sizeof(*flags); k++) {
			(void)fcntl(fds[i], F_SETFL, flags[k]);
			assert_int_equal(raw_ask(&r, &null, NULL), 0);
			world_goes_on(&w);
		}
	}
	raw_free(&r);
	world_goes_on(&w);
}

/* ---- huge pages ---- */

static unsigned long huge_pages_now(void)
{
	unsigned long n = 0;
	FILE *f = fopen(HUGE_FILE, "re");

	if (f && fscanf(f, "%lu", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

static bool huge_pages_set(unsigned long n)
{
	FILE *f = fopen(HUGE_FILE, "we");
	bool written = f && fprintf(f, "%lu\n", n) > 0;

	if (f)
		written &= fclose(f) == 0;
	return written && huge_pages_now() >= n;
}

/* A session whose window is of huge pages; false: the host gives none. */
static bool attach_huge(struct raw *r)
{
	struct message m = raw_hello();
	char text[WIRE_TEXT_MAX + 1];
	int fds[PASSFD_MAX], got;
	const char *why = "";

	*r = (struct raw){.control = SEGMENT_NONE, .window = SEGMENT_NONE, .pool_fd = -1};
	r->socket = raw_dial(w.d.socket);
	m.u.hello.window_bytes = HUGE_BYTES;
	assert_int_equal(raw_send(r->socket, &m, sizeof(m), NULL, 0), 0);
	got = passfd_receive(r->socket, 1, &m, text, fds, &why);
	assert_int_equal(got, 0);
	assert_int_equal(m.type, MESSAGE_WELCOME);
	r->welcome = m.u.welcome;
	assert_int_equal(segment_map(fds[0], &r->control), 0);
	assert_int_equal(segment_map(fds[1], &r->window), 0);
	ring_submit_side(&r->submit, r->control.memory, r->welcome.submission_slots);
	ring_reap_side(&r->reap, r->control.memory, r->welcome.submission_slots,
		       r->welcome.completion_slots);
	r->texts = control_texts(r->control.memory, r->welcome.submission_slots,
				 r->welcome.completion_slots);
	return r->window.page_bytes > segment_base_page_bytes() &&
	       r->window.backing == SEGMENT_HUGETLB;
}

/* Takes what huge pages are free, so that none is left; the caller unmaps it. */
static void *take_free(size_t huge, size_t *bytes)
{
	unsigned long n = (unsigned long)free_huge_pages();
	void *taken;

	*bytes = n * huge;
	if (n == 0)
		return NULL;
	taken = mmap(NULL, *bytes, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
	return taken == MAP_FAILED ? NULL : taken;
}

/* False: another process gave huge pages back each time, so that none was lacking. */
static bool punch_huge(struct raw *r, size_t huge, unsigned long before)
{
	struct submission s = op(WIRE_OP_COUNTERS, (struct payload_handle){0});
	uint64_t faults = daemon_counter(&w.d, "faults_guarded");
	int status;

	s.out_bytes = sizeof(struct payload_counters);
	assert_int_equal(raw_ask(r, &s, NULL), 0);
	for (int i = 0; i < TRIES; i++) {
		size_t bytes;
		void *taken;

		punch(r->window.fd, r->window.bytes);
		(void)huge_pages_set(before);
		taken = take_free(huge, &bytes);
		status = raw_ask(r, &s, NULL);
		if (taken)
			(void)munmap(taken, bytes);
		if (status == RAW_ENDED)
			break;
		assert_int_equal(status, 0);
	}
	if (status != RAW_ENDED)
		return false;
	assert_int_equal(r->reason, WIRE_BYE_FAULT);
	assert_int_equal(daemon_await(&w.d, "", "faults_guarded", faults + 1, LONG_MS), faults + 1);
	return true;
}

/* Huge pages of the host are raised for a moment, and what is free of them is taken for another. */
static void a_hole_without_memory_behind_it_ends_the_session(void **state)
{
	unsigned long before = huge_pages_now();
	size_t huge = segment_huge_page_bytes();
	struct raw r;
	const char *why = NULL;

	(void)state;
	pages_before = before;
	pages_changed = geteuid() == 0 && huge != 0;
	if (geteuid() != 0 || huge == 0 || !huge_pages_set(before + HUGE_BYTES / huge)) {
		print_message("no huge pages: this needs root and a host that has them\n");
		skip();
	}
	if (!attach_huge(&r))
		why = "the window got no huge pages";
	else if (!punch_huge(&r, huge, before))
		why = "others gave huge pages back all the time";
	raw_free(&r);
	(void)huge_pages_set(before);
	assert_int_equal(huge_pages_now(), before);
	world_goes_on(&w);
	if (why) {
		print_message("%s\n", why);
		skip();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_payload_that_changes_is_read_once),
	    cmocka_unit_test(a_window_with_holes_holds_zeros),
	    cmocka_unit_test(a_control_segment_with_holes_ends_the_session),
	    cmocka_unit_test(a_mapped_pool_with_holes_hurts_that_pool_alone),
	    cmocka_unit_test(no_segment_can_be_cut_or_grown),
	    cmocka_unit_test(flags_of_descriptors_are_the_attackers_own_affair),
	    cmocka_unit_test(a_hole_without_memory_behind_it_ends_the_session),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
