/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/key.h. Pure functions. */

#include "daemon/state/key.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PAGE 16

/* The keys of example(). */
#define ROOT_LOW   0x4d3f1793ce128f2b
#define ROOT_HIGH  0x0a331abfe9c5bbeb
#define PAGE_LOW   0x3e7c1d996e8893af
#define PAGE_HIGH  0xae8e14e3bff1f9ac
#define PLAIN_LOW  0x316cf6b22503890b
#define PLAIN_HIGH 0x4a10f0deea8a7627

struct input { /* of both kinds of key */
	struct key_maker maker;
	uint32_t name_space;
	uint8_t stamp[16];
	uint64_t epoch;
	uint8_t variant[KEY_VARIANT_BYTES];
	struct key parent;
	uint32_t start, n_tokens;
	uint32_t tokens[PAGE];
	struct key_image images[2];
	uint32_t n_images;
};

static struct input example(void)
{
	struct input in = {.maker.kept_bits = 128,
			   .name_space = 3,
			   .epoch = 5,
			   .parent = {.low = 0x0123456789abcdef, .high = 0xfedcba9876543210},
			   .start = 32,
			   .n_tokens = PAGE,
			   .n_images = 2};

	for (int i = 0; i < KEY_SECRET_BYTES; i++)
		in.maker.secret[i] = (uint8_t)(i * 7 + 1);
	for (uint32_t i = 0; i < 16; i++)
		in.stamp[i] = (uint8_t)(16 + i);
	for (uint32_t i = 0; i < KEY_VARIANT_BYTES; i++)
		in.variant[i] = (uint8_t)(64 + i);
	for (uint32_t i = 0; i < PAGE; i++)
		in.tokens[i] = 1000 + i;
	for (uint32_t i = 0; i < 2; i++) {
		in.images[i].start = 34 + 5 * i;
		in.images[i].length = 3;
		memset(in.images[i].digest, (int)(i + 1), sizeof(in.images[i].digest));
	}
	return in;
}

static struct key root(const struct input *in)
{
	return key_root(&in->maker, in->name_space, in->stamp, in->epoch, in->variant);
}

static struct key page(const struct input *in)
{
	return key_page(&in->maker, in->parent, in->start, in->tokens, in->n_tokens, in->images,
			in->n_images);
}

static bool equal(struct key a, struct key b)
{
	return a.low == b.low && a.high == b.high;
}

/* A key is written to disk: it may never change from one version to the next. */
static void keys_are_those_of_every_version(void **state)
{
	struct input in = example();
	struct key a = root(&in), b = page(&in), c;

	(void)state;
	in.n_images = 0;
	c = page(&in);
	assert_int_equal(a.low, ROOT_LOW);
	assert_int_equal(a.high, ROOT_HIGH);
	assert_int_equal(b.low, PAGE_LOW);
	assert_int_equal(b.high, PAGE_HIGH);
	assert_int_equal(c.low, PLAIN_LOW);
	assert_int_equal(c.high, PLAIN_HIGH);
}

static void a_root_changes_with_every_input(void **state)
{
	const struct input same = example();
	struct input in = same;

	(void)state;
	in.name_space++;
	assert_false(equal(root(&in), root(&same)));
	in = same;
	in.epoch++;
	assert_false(equal(root(&in), root(&same)));
	for (int i = 0; i < 16; i++) {
		in = same;
		in.stamp[i] ^= 1;
		assert_false(equal(root(&in), root(&same)));
	}
	for (int i = 0; i < KEY_VARIANT_BYTES; i++) {
		in = same;
		in.variant[i] ^= 0x80;
		assert_false(equal(root(&in), root(&same)));
	}
	in = same;
	in.maker.secret[5] ^= 1;
	assert_false(equal(root(&in), root(&same)));
	in = example();
	assert_true(equal(root(&in), root(&same)));
}

static void a_page_changes_with_every_input(void **state)
{
	const struct input same = example();
	struct input in = same;

	(void)state;
	in.parent.low ^= 1;
	assert_false(equal(page(&in), page(&same)));
	in = same;
	in.parent.high ^= 1ull << 63;
	assert_false(equal(page(&in), page(&same)));
	in = same;
	in.start++;
	assert_false(equal(page(&in), page(&same)));
	for (int i = 0; i < PAGE; i++) {
		in = same;
		in.tokens[i] ^= 1u << 31;
		assert_false(equal(page(&in), page(&same)));
	}
	in = same;
	in.maker.secret[0] ^= 1;
	assert_false(equal(page(&in), page(&same)));
	in = example();
	assert_true(equal(page(&in), page(&same)));
}

static void a_page_changes_with_its_images(void **state)
{
	const struct input same = example();
	struct input in = same;

	(void)state;
	in.images[1].start++;
	assert_false(equal(page(&in), page(&same)));
	in = same;
	in.images[0].length++;
	assert_false(equal(page(&in), page(&same)));
	in = same;
	in.images[1].digest[31] ^= 1;
	assert_false(equal(page(&in), page(&same)));
	in = same;
	in.images[0] = same.images[1];
	in.images[1] = same.images[0];
	assert_false(equal(page(&in), page(&same)));
	in = same;
	in.n_images = 1;
	assert_false(equal(page(&in), page(&same)));
	in.n_images = 0;
	assert_false(equal(page(&in), page(&same)));
}

static void a_longer_page_is_no_continuation_of_a_shorter_one(void **state)
{
	struct input in = example();
	struct key seen[PAGE + 1];

	(void)state;
	/* Neither zeros behind it nor the tokens that follow keep a part of the key. */
	memset(in.tokens, 0, sizeof(in.tokens));
	for (uint32_t n = 1; n <= PAGE; n++) {
		in.n_tokens = n;
		seen[n] = page(&in);
		for (uint32_t before = 1; before < n; before++) {
			assert_true(seen[n].low != seen[before].low);
			assert_true(seen[n].high != seen[before].high);
		}
	}
	/* Half the tokens under one parent are not the same tokens one link further down. */
	in.n_tokens = PAGE / 2;
	in.parent = page(&in);
	in.start += PAGE / 2;
	assert_false(equal(page(&in), seen[PAGE]));
}

static void a_root_is_never_a_page(void **state)
{
	struct input in = example();

	(void)state;
	assert_false(equal(root(&in), page(&in)));
	memset(&in.parent, 0, sizeof(in.parent));
	in.n_images = 0;
	assert_false(equal(root(&in), page(&in)));
}

static void few_kept_bits_make_keys_collide_and_change_nothing_else(void **state)
{
	struct input in = example();
	struct key whole = page(&in);

	(void)state;
	in.maker.kept_bits = 12;
	assert_int_equal(page(&in).low, whole.low & 0xfff0000000000000);
	assert_int_equal(page(&in).high, 0);
	assert_int_equal(root(&in).high, 0);
	assert_int_equal(root(&in).low & 0x000fffffffffffff, 0);
	for (in.tokens[0] = 0; in.tokens[0] < 100000; in.tokens[0]++) {
		if (page(&in).low == (whole.low & 0xfff0000000000000))
			return;
	}
	fail_msg("100,000 keys of 12 bits and none is equal");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(keys_are_those_of_every_version),
	    cmocka_unit_test(a_root_changes_with_every_input),
	    cmocka_unit_test(a_page_changes_with_every_input),
	    cmocka_unit_test(a_page_changes_with_its_images),
	    cmocka_unit_test(a_longer_page_is_no_continuation_of_a_shorter_one),
	    cmocka_unit_test(a_root_is_never_a_page),
	    cmocka_unit_test(few_kept_bits_make_keys_collide_and_change_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
