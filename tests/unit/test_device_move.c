/* SPDX-License-Identifier: Apache-2.0 */
/* test_device_move: bytes of state images and pages from anywhere to anywhere. One thread. */
#include "daemon/tier/device_move.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/guard.h"

#define POOL_BYTES     (1u << 20)
#define RETAINED_BYTES (1u << 19)
#define WINDOW_BYTES   (1u << 18)
#define ARENA_BYTES    (1u << 20)
#define LARGE          300000u /* takes the way past the cache */
#define MANY           (16 * 4096 + 100)

static struct device_memory memory;
static char *window;
static int window_fd, pool_fd, retained_fd, arena_fd;

static char *take(size_t bytes, int *fd)
{
	char *m;

	*fd = memfd_create("test", MFD_CLOEXEC);
	assert_true(*fd >= 0);
	assert_int_equal(ftruncate(*fd, (off_t)bytes), 0);
	m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_true(m != MAP_FAILED);
	return m;
}

/* The runner of the tests takes SIGBUS for itself before each; the guard gets it back. */
static struct sigaction guard_action;

static int guard_prepare(void **state)
{
	int r = guard_install();

	(void)state;
	return r ? r : sigaction(SIGBUS, NULL, &guard_action);
}

static int setup(void **state)
{
	(void)state;
	memory =
	    (struct device_memory){.segment.bytes = POOL_BYTES, .retained.bytes = RETAINED_BYTES};
	memory.segment.memory = take(POOL_BYTES, &pool_fd);
	memory.retained.memory = take(RETAINED_BYTES, &retained_fd);
	window = take(WINDOW_BYTES, &window_fd);
	memory.arena = take(ARENA_BYTES, &arena_fd);
	memory.arena_bytes = ARENA_BYTES;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	munmap(memory.segment.memory, POOL_BYTES);
	munmap(memory.retained.memory, RETAINED_BYTES);
	munmap(window, WINDOW_BYTES);
	munmap(memory.arena, ARENA_BYTES);
	close(pool_fd);
	close(retained_fd);
	close(window_fd);
	close(arena_fd);
	return 0;
}

static void fill(char *to, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		to[i] = (char)(seed >> 24);
	}
}

static int move(const struct device_move *moves, uint32_t n)
{
	struct device_job j = {
	    .op = DEVICE_MOVE, .memory = &memory, .moves = moves, .n = n, .window = window};

	return device_move_run(&j);
}

static void copies_past_the_cache_are_exact_at_every_alignment(void **state)
{
	static char from[1024], to[1024], expected[1024];
	static const size_t sizes[] = {0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 511};

	(void)state;
	fill(from, sizeof(from), 1);
	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
		for (size_t a = 0; a < 64; a += 3) {
			for (size_t b = 0; b < 64; b += 7) {
				memset(to, 0x55, sizeof(to));
				memset(expected, 0x55, sizeof(expected));
				memcpy(expected + a, from + b, sizes[k]);
				stream_copy(to + a, from + b, sizes[k]);
				assert_memory_equal(to, expected, sizeof(to));
			}
		}
	}
}

static void copies_of_many_pages_are_exact(void **state)
{
	static char from[MANY + 64], to[MANY + 128], expected[MANY + 128];
	static const size_t sizes[] = {4095,  4096,  8191,  8192,         8193, 12288,
				       16384, 16447, 24576, 32768 + 4096, MANY};
	static const size_t starts[] = {0, 1, 17, 63};

	(void)state;
	fill(from, sizeof(from), 7);
	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
		for (size_t a = 0; a < 4; a++) {
			memset(to, 0x55, sizeof(to));
			memset(expected, 0x55, sizeof(expected));
			memcpy(expected + starts[a], from + starts[3 - a], sizes[k]);
			stream_copy(to + starts[a], from + starts[3 - a], sizes[k]);
			assert_memory_equal(to, expected, sizeof(to));
		}
	}
}

static void bytes_go_between_all_regions(void **state)
{
	char *pool = memory.segment.memory, *kept = memory.retained.memory;
	const struct device_move moves[] = {
	    {DEVICE_RETAINED, DEVICE_POOL, 4096, 100, LARGE},
	    {DEVICE_POOL, DEVICE_RETAINED, 500000, 4096, LARGE},
	    {DEVICE_POOL, DEVICE_ZEROS, 100, 0, LARGE},
	    {DEVICE_WINDOW, DEVICE_POOL, 8, 500000, 200001},
	    {DEVICE_POOL, DEVICE_WINDOW, 900001, 8, 70001},
	};
	static char expected[LARGE];

	(void)state;
	memset(pool, 0x77, POOL_BYTES);
	fill(expected, LARGE, 2);
	memcpy(pool + 100, expected, LARGE);
	assert_int_equal(move(moves, 5), 0);
	assert_memory_equal(kept + 4096, expected, LARGE);
	assert_memory_equal(pool + 500000, expected, LARGE);
	assert_memory_equal(window + 8, expected, 200001);
	assert_memory_equal(pool + 900001, expected, 70001);
	assert_int_equal(pool[99], 0x77);
	assert_int_equal(pool[900000], 0x77);
	assert_int_equal(pool[900001 + 70001], 0x77);
	memset(expected, 0, LARGE);
	assert_memory_equal(pool + 100, expected, LARGE);
	assert_int_equal(pool[100 + LARGE], 0x77);
}

/* ---- the arena, and neighbours that go in one copy ---- */

#define PAGE_BYTES 4096u
#define N_PAGES    64u

/* Page i of one side to page to[i] of the other. */
static uint32_t page_moves(struct device_move *m, const uint8_t *to, uint32_t n, bool up)
{
	for (uint32_t i = 0; i < n; i++) {
		m[i] = (struct device_move){.to = up ? DEVICE_POOL : DEVICE_ARENA,
					    .from = up ? DEVICE_ARENA : DEVICE_POOL,
					    .to_offset = (uint64_t)to[i] * PAGE_BYTES,
					    .from_offset = (uint64_t)i * PAGE_BYTES,
					    .bytes = PAGE_BYTES};
	}
	return n;
}

/* The job as it is, and each of its moves as a job of its own, leave the same bytes everywhere. */
static void assert_same_as_one_by_one(const struct device_move *m, uint32_t n)
{
	static char pool[POOL_BYTES], arena[ARENA_BYTES];

	fill(memory.segment.memory, POOL_BYTES, 3);
	fill(memory.arena, ARENA_BYTES, 4);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(move(&m[i], 1), 0);
	memcpy(pool, memory.segment.memory, POOL_BYTES);
	memcpy(arena, memory.arena, ARENA_BYTES);
	fill(memory.segment.memory, POOL_BYTES, 3);
	fill(memory.arena, ARENA_BYTES, 4);
	assert_int_equal(move(m, n), 0);
	assert_memory_equal(pool, memory.segment.memory, POOL_BYTES);
	assert_memory_equal(arena, memory.arena, ARENA_BYTES);
}

static void pages_go_to_the_arena_and_back(void **state)
{
	static const uint8_t to[] = {9, 10, 11, 3, 4, 200, 201, 202};
	struct device_move m[8];
	static char expected[8 * PAGE_BYTES];

	(void)state;
	fill(memory.segment.memory, POOL_BYTES, 5);
	memset(memory.arena, 0x33, ARENA_BYTES);
	memcpy(expected, memory.segment.memory, sizeof(expected));
	assert_int_equal(move(m, page_moves(m, to, 8, false)), 0);
	for (uint32_t i = 0; i < 8; i++)
		assert_memory_equal(memory.arena + to[i] * PAGE_BYTES, expected + i * PAGE_BYTES,
				    PAGE_BYTES);
	assert_int_equal(memory.arena[9 * PAGE_BYTES - 1], 0x33);
	assert_int_equal(memory.arena[12 * PAGE_BYTES], 0x33);
	assert_int_equal(memory.arena[203 * PAGE_BYTES], 0x33);
	memset(memory.segment.memory, 0, POOL_BYTES);
	for (uint32_t i = 0; i < 8; i++) {
		struct device_move back = {.to = DEVICE_POOL,
					   .from = DEVICE_ARENA,
					   .to_offset = m[i].from_offset,
					   .from_offset = m[i].to_offset,
					   .bytes = PAGE_BYTES};

		assert_int_equal(move(&back, 1), 0);
	}
	assert_memory_equal(memory.segment.memory, expected, sizeof(expected));
}

static void neighbours_in_one_go_leave_the_same_bytes(void **state)
{
	struct device_move m[N_PAGES];
	uint32_t seed = 1;

	(void)state;
	for (uint32_t round = 0; round < 40; round++) {
		uint8_t to[N_PAGES];
		uint32_t at = 0;

		/* Stretches of neighbours, of any length, with steps forwards and backwards. */
		for (uint32_t i = 0; i < N_PAGES; i++) {
			seed = seed * 1664525u + 1013904223u;
			at = seed >> 30 ? at + 1 : seed >> 8 & 127;
			to[i] = (uint8_t)at;
		}
		assert_same_as_one_by_one(m, page_moves(m, to, N_PAGES, round % 2));
	}
}

static void what_a_move_has_written_is_what_the_next_one_reads(void **state)
{
	/* Within one region: each reads where the one before has written. */
	const struct device_move within[] = {
	    {DEVICE_ARENA, DEVICE_ARENA, PAGE_BYTES, 0, PAGE_BYTES},
	    {DEVICE_ARENA, DEVICE_ARENA, 2 * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES},
	    {DEVICE_ARENA, DEVICE_ARENA, 3 * PAGE_BYTES, 2 * PAGE_BYTES, PAGE_BYTES},
	};
	const struct device_move across[] = {
	    {DEVICE_ARENA, DEVICE_POOL, 0, 0, PAGE_BYTES},
	    {DEVICE_ARENA, DEVICE_POOL, PAGE_BYTES, PAGE_BYTES, PAGE_BYTES},
	    {DEVICE_POOL, DEVICE_ARENA, 2 * PAGE_BYTES, 0, PAGE_BYTES},
	    {DEVICE_POOL, DEVICE_ARENA, 3 * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES},
	};
	const struct device_move zeros[] = {
	    {DEVICE_ARENA, DEVICE_ZEROS, 0, 0, PAGE_BYTES},
	    {DEVICE_ARENA, DEVICE_ZEROS, PAGE_BYTES, PAGE_BYTES, PAGE_BYTES},
	};

	(void)state;
	assert_same_as_one_by_one(within, 3);
	assert_same_as_one_by_one(across, 4);
	assert_same_as_one_by_one(zeros, 2);
}

/* A page of the file that is gone, in the middle of what is mapped. */
static void lose_page(char *region, uint32_t page)
{
	int fd = memfd_create("gone", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_true(mmap(region + page * PAGE_BYTES, PAGE_BYTES, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
	close(fd);
}

static void what_fails_among_neighbours_is_told_exactly(void **state)
{
	const uint32_t lost = 5;

	(void)state;
	assert_int_equal(sigaction(SIGBUS, &guard_action, NULL), 0);
	lose_page(memory.segment.memory, lost);
	for (uint32_t first = 0; first <= lost; first++) {
		uint8_t to[] = {20, 21, 22, 23, 24, 25, 26, 27};
		struct device_move m[8];
		struct device_job j = {
		    .op = DEVICE_MOVE, .memory = &memory, .moves = m + first, .n = 8 - first};

		memset(memory.arena, 0x33, ARENA_BYTES);
		fill(memory.segment.memory, lost * PAGE_BYTES, 6 + first);
		page_moves(m, to, 8, false);
		assert_int_equal(device_move_run(&j), -EIO);
		/* All before it are there: whoever goes on goes on behind it. */
		assert_int_equal(j.n_moved, lost - first);
		assert_memory_equal(memory.arena + (20 + first) * PAGE_BYTES,
				    (char *)memory.segment.memory + first * PAGE_BYTES,
				    (lost - first) * PAGE_BYTES);
		j = (struct device_job){
		    .op = DEVICE_MOVE, .memory = &memory, .moves = m + lost + 1, .n = 7 - lost};
		assert_int_equal(device_move_run(&j), 0);
	}
}

static void a_cancelled_job_tells_what_it_has_moved(void **state)
{
	uint8_t to[] = {3, 1};
	struct device_move m[2];
	struct device_job j = {.op = DEVICE_MOVE, .memory = &memory, .moves = m, .n = 2};

	(void)state;
	page_moves(m, to, 2, false);
	j.job.cancelled = true;
	j.n_moved = 77;
	assert_int_equal(device_move_run(&j), -ECANCELED);
	assert_int_equal(j.n_moved, 0);
}

static void a_hole_in_the_window_is_the_clients_fault(void **state)
{
	const struct device_move in = {DEVICE_POOL, DEVICE_WINDOW, 0, 0, 200000};
	const struct device_move out = {DEVICE_WINDOW, DEVICE_POOL, 0, 0, 200000};

	(void)state;
	assert_int_equal(sigaction(SIGBUS, &guard_action, NULL), 0);
	assert_int_equal(ftruncate(window_fd, WINDOW_BYTES / 2), 0);
	assert_int_equal(move(&in, 1), -EFAULT);
	assert_int_equal(move(&out, 1), -EFAULT);
}

static void lost_memory_of_the_pool_is_an_error_of_the_pool(void **state)
{
	const struct device_move in = {DEVICE_POOL, DEVICE_WINDOW, 0, 0, 200000};
	const struct device_move across = {DEVICE_RETAINED, DEVICE_POOL, 0, 0, LARGE};

	(void)state;
	assert_int_equal(sigaction(SIGBUS, &guard_action, NULL), 0);
	assert_int_equal(ftruncate(pool_fd, WINDOW_BYTES / 2), 0);
	assert_int_equal(move(&in, 1), -EIO);
	assert_int_equal(move(&across, 1), -EIO);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(copies_past_the_cache_are_exact_at_every_alignment),
	    TEST(copies_of_many_pages_are_exact),
	    TEST(bytes_go_between_all_regions),
	    TEST(pages_go_to_the_arena_and_back),
	    TEST(neighbours_in_one_go_leave_the_same_bytes),
	    TEST(what_a_move_has_written_is_what_the_next_one_reads),
	    TEST(what_fails_among_neighbours_is_told_exactly),
	    TEST(a_cancelled_job_tells_what_it_has_moved),
	    TEST(a_hole_in_the_window_is_the_clients_fault),
	    TEST(lost_memory_of_the_pool_is_an_error_of_the_pool),
	};

	return cmocka_run_group_tests(tests, guard_prepare, NULL);
}
