/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/prefix.h with hashes cut to a few bits, so that everything collides: the
 * hash finds, parent and tokens decide. One thread; nothing blocks.
 */
#include "daemon/state/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"

#define PAGES       100000u
#define PAGE_TOKENS 16
#define FOREIGN     0x40000000u

static struct key_maker maker;
static struct prefix prefix;
static uint32_t root;
static uint32_t nodes[PAGES]; /* of page i */

static void start(uint32_t kept_bits)
{
	static const uint8_t stamp[16], variant[KEY_VARIANT_BYTES];

	maker = (struct key_maker){.kept_bits = kept_bits};
	for (unsigned i = 0; i < KEY_SECRET_BYTES; i++)
		maker.secret[i] = (uint8_t)(i * 7 + 1);
	assert_int_equal(prefix_init(&prefix, PAGES + 16, PAGE_TOKENS, &maker, stamp), 0);
	assert_int_equal(prefix_root(&prefix, 0, variant, true, &root), 0);
}

static int teardown(void **state)
{
	(void)state;
	protection_off[PROTECTION_tokens_decide] = false;
	prefix_deinit(&prefix);
	return 0;
}

/* Every third page begins a chain; the others hang from the page before. */
static uint32_t first_of_chain(uint32_t page)
{
	return page - page % 3;
}

static void tokens_of(uint32_t page, uint32_t tokens[PAGE_TOKENS])
{
	/* The last pages of two chains are alike: only their parents differ. */
	uint32_t name = page % 6 == 5 ? page - 3 : page;

	for (uint32_t i = 0; i < PAGE_TOKENS; i++)
		tokens[i] = name * PAGE_TOKENS + i;
}

static void publish_all(void)
{
	uint32_t tokens[PAGE_TOKENS];

	for (uint32_t i = 0; i < PAGES; i++) {
		uint32_t parent = i % 3 ? nodes[i - 1] : root;

		tokens_of(i, tokens);
		assert_int_equal(
		    prefix_publish(&prefix, parent, tokens, PAGE_TOKENS, NULL, 0, &nodes[i]),
		    PREFIX_NEW);
		prefix_put_copy(&prefix, nodes[i], TIER_DEVICE, i);
	}
}

/* How many pages of this prompt are found; path[] says which. */
static uint32_t find(const uint32_t *tokens, uint32_t n_pages, uint32_t path[3])
{
	struct prefix_walk walk = {.node = root, .key = prefix.nodes[root].key};

	return prefix_match(&prefix, &walk, tokens, n_pages, NULL, 0, path);
}

/* Each chain is found whole and as itself; the same with one foreign token ends before it. */
static void expect_only_what_is_equal(void)
{
	uint32_t tokens[3 * PAGE_TOKENS], path[3];

	for (uint32_t i = 0; i < PAGES; i++) {
		uint32_t first = first_of_chain(i), n = i - first + 1;

		for (uint32_t k = 0; k < n; k++)
			tokens_of(first + k, tokens + k * PAGE_TOKENS);
		assert_int_equal(find(tokens, n, path), n);
		for (uint32_t k = 0; k < n; k++)
			assert_int_equal(path[k], nodes[first + k]);
		tokens[(n - 1) * PAGE_TOKENS + i % PAGE_TOKENS] ^= FOREIGN;
		assert_int_equal(find(tokens, n, path), n - 1);
	}
}

static void drop_all(void)
{
	uint32_t at = 0;

	assert_null(prefix_check(&prefix, &at, UINT32_MAX));
	for (uint32_t i = PAGES; i-- > 0;)
		prefix_drop_copy(&prefix, nodes[i], TIER_DEVICE);
	assert_int_equal(prefix.used, prefix.roots);
}

static void pages_that_all_collide_are_found_by_their_tokens_alone(void **state)
{
	(void)state;
	start(12);
	publish_all();
	expect_only_what_is_equal();
	/* 25 pages and more a hash. */
	assert_true(prefix.collisions > 10ull * PAGES);
	drop_all();
}

static void at_sixteen_bits_collisions_are_counted_and_nothing_foreign_is_found(void **state)
{
	(void)state;
	start(16);
	publish_all();
	expect_only_what_is_equal();
	assert_true(prefix.collisions > PAGES);
	drop_all();
}

static void whole_hashes_do_not_collide(void **state)
{
	(void)state;
	start(128);
	publish_all();
	expect_only_what_is_equal();
	assert_int_equal(prefix.collisions, 0);
	drop_all();
}

static void without_the_comparison_foreign_pages_are_found(void **state)
{
	uint32_t tokens[PAGE_TOKENS], path[3], foreign = 0;

	(void)state;
	start(12);
	publish_all();
	protection_off[PROTECTION_tokens_decide] = true;
	for (uint32_t i = 0; i < 1000; i++) {
		tokens_of(i, tokens);
		tokens[0] ^= FOREIGN;
		foreign += find(tokens, 1, path) == 1;
	}
	assert_true(foreign > 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(pages_that_all_collide_are_found_by_their_tokens_alone,
				      teardown),
	    cmocka_unit_test_teardown(
		at_sixteen_bits_collisions_are_counted_and_nothing_foreign_is_found, teardown),
	    cmocka_unit_test_teardown(whole_hashes_do_not_collide, teardown),
	    cmocka_unit_test_teardown(without_the_comparison_foreign_pages_are_found, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
