/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copies on daemon/tier/device_cpu, and so of copyorder, against a model. */

#include "tests/unit/device_world.h"

#include "daemon/base/random.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* Copies against a model: page i begins with content i everywhere, checked by 64-bit word. */
static void fill_pages(struct world *w)
{
	for (uint64_t i = 0; i < w->memory.pages; i++) {
		uint64_t *words = (uint64_t *)(void *)page_of(w, i);

		for (uint64_t k = 0; k < w->geometry.page_stride / 8; k++)
			words[k] = i << 32 | k;
	}
}

static void check_copies(struct world *w, const struct device_copy *copies, uint32_t n)
{
	struct device_job j = {.op = DEVICE_COPY, .copies = copies, .n = n};
	uint64_t *want = calloc(w->memory.pages, sizeof(*want));

	assert_non_null(want);
	for (uint64_t i = 0; i < w->memory.pages; i++)
		want[i] = i;
	for (uint32_t i = 0; i < n; i++)
		want[copies[i].to] = copies[i].from;
	fill_pages(w);
	assert_int_equal(run(w, &j), 0);
	for (uint64_t i = 0; i < w->memory.pages; i++) {
		const uint64_t *words = (uint64_t *)(void *)page_of(w, i);

		for (uint64_t k = 0; k < w->geometry.page_stride / 8; k++) {
			if (words[k] != (want[i] << 32 | k))
				fail_msg("page %u word %u is of page %u, not %u", (unsigned int)i,
					 (unsigned int)k, (unsigned int)(words[k] >> 32),
					 (unsigned int)want[i]);
		}
	}
	free(want);
}

static void copies_are_one_simultaneous_assignment(void **state)
{
	struct world *w = *state;
	const struct device_copy swap[] = {{0, 1}, {1, 0}};
	const struct device_copy chain[] = {{0, 1}, {1, 2}};
	const struct device_copy chain_backwards[] = {{1, 2}, {0, 1}};
	const struct device_copy three[] = {{4, 6}, {6, 2}, {2, 4}};
	const struct device_copy fan[] = {{0, 1}, {0, 2}, {0, 3}};
	const struct device_copy to_itself[] = {{5, 5}, {5, 6}};
	/* a cycle of two with a branch from each of its pages, and a chain into nothing */
	const struct device_copy mixed[] = {{0, 1}, {1, 0}, {0, 2}, {1, 3}, {3, 4}, {6, 7}};

	make_small(w, 8);
	check_copies(w, NULL, 0);
	check_copies(w, swap, COUNT(swap));
	check_copies(w, chain, COUNT(chain));
	check_copies(w, chain_backwards, COUNT(chain_backwards));
	check_copies(w, three, COUNT(three));
	check_copies(w, fan, COUNT(fan));
	check_copies(w, to_itself, COUNT(to_itself));
	check_copies(w, mixed, COUNT(mixed));
}

static void copies_of_large_records_turn_piece_by_piece(void **state)
{
	struct world *w = *state;
	const struct device_copy three[] = {{0, 1}, {1, 2}, {2, 0}, {2, 3}};

	make_large(w, 4);
	check_copies(w, three, COUNT(three));
}

static void shuffle(struct random *r, uint32_t *values, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		values[i] = i;
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t k = (uint32_t)random_below(r, i + 1), kept = values[i];

		values[i] = values[k];
		values[k] = kept;
	}
}

static void random_assignments_agree_with_the_model(void **state)
{
	enum { PAGES = 64, ROUNDS = 200 };
	struct world *w = *state;
	struct random r = {.state = 20};
	struct device_copy copies[PAGES];
	uint32_t targets[PAGES], sources[PAGES];

	make_small(w, PAGES);
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t n = 1 + (uint32_t)random_below(&r, PAGES);
		/* every other round is a permutation, the rest have sources that repeat */
		bool permutes = round % 2;

		shuffle(&r, targets, PAGES);
		shuffle(&r, sources, PAGES);
		for (uint32_t i = 0; i < n; i++) {
			copies[i].to = targets[i];
			copies[i].from = permutes ? sources[i] : (uint32_t)random_below(&r, PAGES);
		}
		check_copies(w, copies, n);
	}
}

static void thousands_of_copies_in_one_chain_work(void **state)
{
	enum { PAGES = 4096 };
	struct world *w = *state;
	struct device_copy *copies = calloc(PAGES, sizeof(*copies));

	assert_non_null(copies);
	make_small(w, PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		copies[i] = (struct device_copy){.from = i, .to = (i + 1) % PAGES};
	check_copies(w, copies, PAGES - 1);
	check_copies(w, copies, PAGES);
	free(copies);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(copies_are_one_simultaneous_assignment),
	    TEST(copies_of_large_records_turn_piece_by_piece),
	    TEST(random_assignments_agree_with_the_model),
	    TEST(thousands_of_copies_in_one_chain_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
