/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of prefix_match: long walks, in turns, wherever the nodes of a chain lie. One thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "tests/unit/prefix_texts.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static struct key_maker maker = {.kept_bits = 128, .secret = "of this test"};
static const uint8_t stamp[16] = {7};
static const uint8_t no_variant[KEY_VARIANT_BYTES];

static int setup(void **state)
{
	static struct prefix p;

	failpoint_clear();
	assert_int_equal(prefix_init(&p, 512, PAGE, &maker, stamp), 0);
	*state = &p;
	return 0;
}

static int teardown(void **state)
{
	prefix_deinit(*state);
	return 0;
}

static uint32_t root_of(struct prefix *p, uint16_t name_space)
{
	uint32_t root;

	assert_int_equal(prefix_root(p, name_space, no_variant, true, &root), 0);
	return root;
}

static void a_published_chain_is_matched_up_to_where_it_differs(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0), nodes[40], path[40], text[40 * PAGE];
	struct prefix_walk walk;

	for (uint32_t i = 0; i < 40; i++) {
		memcpy(text + i * PAGE, tokens_of(i), PAGE * sizeof(*text));
		nodes[i] = add(p, i ? nodes[i - 1] : root, i);
		assert_int_equal(p->nodes[nodes[i]].position, i);
	}
	for (uint32_t differs = 0; differs <= 40; differs += 3) {
		walk = (struct prefix_walk){.node = root, .key = p->nodes[root].key};
		if (differs < 40)
			text[differs * PAGE + PAGE - 1]++;
		assert_int_equal(prefix_match(p, &walk, text, 40, NULL, 0, path), differs);
		assert_int_equal(walk.missed, differs < 40);
		assert_int_equal(walk.position, differs);
		assert_int_equal(walk.node, differs ? nodes[differs - 1] : root);
		assert_memory_equal(path, nodes, differs * sizeof(*path));
		/* Nothing deeper can match, whatever follows. */
		if (differs < 40) {
			text[differs * PAGE + PAGE - 1]--;
			assert_int_equal(prefix_match(p, &walk, text, 1, NULL, 0, path), 0);
		}
	}
	assert_int_equal(p->collisions, 0);
	check(p);
}

static void a_walk_may_be_cut_into_turns_anywhere(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0), nodes[50], path[50], text[50 * PAGE];
	struct key_image images[17] = {0}; /* in every third page */

	for (uint32_t i = 0; i < 50; i++) {
		images[i / 3].start = i / 3 * 3 * PAGE + 5;
		images[i / 3].digest[0] = (uint8_t)(i / 3);
		memcpy(text + i * PAGE, tokens_of(i), PAGE * sizeof(*text));
		prefix_publish(p, i ? nodes[i - 1] : root, tokens_of(i), PAGE, &images[i / 3],
			       i % 3 == 0, &nodes[i]);
		prefix_put_copy(p, nodes[i], TIER_DEVICE, i);
	}
	/* To its end, and to an image that is another one. */
	for (uint32_t turn = 1; turn <= 100; turn++) {
		struct prefix_walk walk = {.node = root, .key = p->nodes[root].key};
		uint32_t end = turn <= 50 ? 50 : turn / 6 * 3,
			 length = turn <= 50 ? turn : turn - 50;

		images[end / 3].digest[1] = turn > 50;
		for (uint32_t at = 0; at < 50 && !walk.missed; at += length) {
			uint32_t n = 50 - at < length ? 50 - at : length, passed = (at + 2) / 3;

			assert_int_equal(prefix_match(p, &walk, text + at * PAGE, n,
						      images + passed, 17 - passed, path + at),
					 at + n <= end ? n : end - at);
		}
		images[end / 3].digest[1] = 0;
		assert_int_equal(walk.position, end);
		assert_memory_equal(path, nodes, end * sizeof(*path));
	}
}

/* Where they lie one behind another a walk finds them without the table. */
static void the_nodes_of_a_chain_may_lie_anywhere(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0), other = root_of(p, 1);
	uint32_t nodes[60], path[60], text[60 * PAGE], more = 1000, straight = 0;

	for (uint32_t i = 0; i < 60; i++)
		memcpy(text + i * PAGE, tokens_of(i), PAGE * sizeof(*text));
	/* Between two of them: nothing for a while, then one, then more and more. */
	for (uint32_t i = 0; i < 60; i++) {
		nodes[i] = add(p, i ? nodes[i - 1] : root, i);
		straight += i && nodes[i] == nodes[i - 1] + 1;
		for (uint32_t k = 0; k < (i % 20 < 10 ? 0 : i / 10); k++)
			add(p, other, more++);
	}
	assert_true(straight > 20 && straight < 50);
	for (uint32_t again = 0; again < 3; again++) {
		for (uint32_t length = 1; length <= 60; length++) {
			struct prefix_walk walk = {.node = root, .key = p->nodes[root].key};

			for (uint32_t at = 0; at < 60; at += length) {
				uint32_t n = 60 - at < length ? 60 - at : length;

				assert_int_equal(
				    prefix_match(p, &walk, text + at * PAGE, n, NULL, 0, path + at),
				    n);
			}
			assert_memory_equal(path, nodes, sizeof(path));
		}
		/* Its second half goes, something else takes some of its nodes, and it comes back
		 * elsewhere. */
		for (uint32_t i = 60; i-- > 30;)
			prefix_drop_copy(p, nodes[i], TIER_DEVICE);
		for (uint32_t k = 0; k < 3 + again; k++)
			add(p, other, more++);
		for (uint32_t i = 30; i < 60; i++)
			nodes[i] = add(p, nodes[i - 1], i);
	}
	assert_int_equal(p->collisions, 0);
	check(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_published_chain_is_matched_up_to_where_it_differs),
	    TEST(a_walk_may_be_cut_into_turns_anywhere),
	    TEST(the_nodes_of_a_chain_may_lie_anywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
