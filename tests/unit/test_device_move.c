/* SPDX-License-Identifier: Apache-2.0 */
/* test_device_move: bytes of state images from anywhere to anywhere. One thread. */
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
#define LARGE          300000u /* takes the way past the cache */
#define MANY           (16 * 4096 + 100)

static struct device_memory memory;
static char *window;
static int window_fd, pool_fd, retained_fd;

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
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	munmap(memory.segment.memory, POOL_BYTES);
	munmap(memory.retained.memory, RETAINED_BYTES);
	munmap(window, WINDOW_BYTES);
	close(pool_fd);
	close(retained_fd);
	close(window_fd);
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
	    TEST(a_hole_in_the_window_is_the_clients_fault),
	    TEST(lost_memory_of_the_pool_is_an_error_of_the_pool),
	};

	return cmocka_run_group_tests(tests, guard_prepare, NULL);
}
