/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/state/prefix.h. One thread, but for one with a small stack. */

#include "daemon/state/prefix.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "tests/unit/prefix_texts.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static struct key_maker maker;
static const uint8_t stamp[16] = {7};
static const uint8_t no_variant[KEY_VARIANT_BYTES];

static void make(struct prefix *p, uint32_t capacity, uint32_t kept_bits)
{
	maker.kept_bits = kept_bits;
	memset(maker.secret, 0x5a, sizeof(maker.secret));
	assert_int_equal(prefix_init(p, capacity, PAGE, &maker, stamp), 0);
}

static int setup(void **state)
{
	static struct prefix p;

	failpoint_clear();
	make(&p, 64, 128);
	*state = &p;
	return 0;
}

static int teardown(void **state)
{
	failpoint_clear();
	memset(protection_off, 0, sizeof(protection_off));
	prefix_deinit(*state);
	return 0;
}

static uint32_t root_of(struct prefix *p, uint16_t name_space, const uint8_t *variant)
{
	uint32_t root;

	assert_int_equal(prefix_root(p, name_space, variant, true, &root), 0);
	return root;
}

static uint32_t find(struct prefix *p, uint32_t parent, uint32_t text)
{
	struct prefix_walk walk = {
	    .node = parent,
	    .key = p->nodes[parent].key,
	    .position = p->nodes[parent].kind == NODE_ROOT ? 0 : p->nodes[parent].position + 1};
	uint32_t path;

	return prefix_match(p, &walk, tokens_of(text), 1, NULL, 0, &path) ? path : NODE_NONE;
}

static void what_is_published_twice_is_known_and_what_has_no_copy_is_not_matched(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0, no_variant), node = add(p, root, 1), child, again;

	child = add(p, node, 2);
	assert_int_equal(prefix_publish(p, root, tokens_of(1), PAGE, NULL, 0, &again),
			 PREFIX_KNOWN);
	assert_int_equal(again, node);
	assert_int_equal(p->nodes[node].children, 1);
	assert_int_equal(find(p, node, 2), child);
	/* Without a copy a node is still what the page is; it is only not there. */
	prefix_hold(p, root);
	prefix_hold(p, node);
	prefix_drop_copy(p, child, TIER_DEVICE);
	prefix_drop_copy(p, prefix_release(p, node) == root ? node : child, TIER_DEVICE);
	assert_int_equal(find(p, root, 1), NODE_NONE);
	check(p);
	prefix_release(p, root);
	assert_int_equal(p->used, 0);
}

static void an_abandoned_node_leaves_nothing_behind(void **state)
{
	struct prefix *p = *state;
	struct key_image image = {.start = 1, .length = 2};
	uint32_t root = root_of(p, 0, no_variant), node;

	prefix_hold(p, root);
	assert_int_equal(prefix_publish(p, root, tokens_of(1), PAGE, &image, 1, &node), PREFIX_NEW);
	prefix_abandon(p, node);
	assert_int_equal(p->used, 1);
	assert_int_equal(p->nodes[root].children, 0);
	assert_int_equal(prefix_publish(p, root, tokens_of(1), PAGE, &image, 1, &node), PREFIX_NEW);
	prefix_abandon(p, node);
	prefix_release(p, root);
	assert_int_equal(p->used, 0);
	assert_int_equal(p->roots, 0);
	for (uint64_t i = 0; i <= p->mask; i++)
		assert_int_equal(p->table[i], 0);
}

static void images_are_part_of_what_a_page_is(void **state)
{
	struct prefix *p = *state;
	struct key_image images[3] = {{.start = 2, .length = 20}, {.start = 35, .length = 1}};
	uint32_t root = root_of(p, 0, no_variant), a, b, c, path[3], text[3 * PAGE];
	struct prefix_walk walk = {.node = root, .key = p->nodes[root].key};

	for (uint32_t i = 0; i < 3; i++)
		memcpy(text + i * PAGE, tokens_of(i), PAGE * sizeof(*text));
	assert_int_equal(prefix_publish(p, root, text, PAGE, images, 1, &a), PREFIX_NEW);
	prefix_put_copy(p, a, TIER_DEVICE, 1);
	assert_int_equal(prefix_publish(p, a, text + PAGE, PAGE, NULL, 0, &b), PREFIX_NEW);
	prefix_put_copy(p, b, TIER_DEVICE, 2);
	assert_int_equal(prefix_publish(p, b, text + 2 * PAGE, PAGE, images + 1, 1, &c),
			 PREFIX_NEW);
	prefix_put_copy(p, c, TIER_DEVICE, 3);

	assert_int_equal(prefix_match(p, &walk, text, 3, images, 2, path), 3);
	images[1].digest[5] = 1;
	walk = (struct prefix_walk){.node = root, .key = p->nodes[root].key};
	assert_int_equal(prefix_match(p, &walk, text, 3, images, 2, path), 2);
	images[1].digest[5] = 0;
	walk = (struct prefix_walk){.node = root, .key = p->nodes[root].key};
	assert_int_equal(prefix_match(p, &walk, text, 3, images, 1, path), 2);
	walk = (struct prefix_walk){.node = root, .key = p->nodes[root].key};
	assert_int_equal(prefix_match(p, &walk, text, 3, NULL, 0, path), 0);
	check(p);
}

static void namespaces_variants_and_epochs_do_not_meet(void **state)
{
	struct prefix *p = *state;
	uint8_t variant[KEY_VARIANT_BYTES] = {0};
	uint32_t root = root_of(p, 0, no_variant), other, none, node = add(p, root, 1);

	assert_int_equal(root_of(p, 0, no_variant), root);
	assert_int_equal(prefix_root(p, 1, no_variant, false, &none), 0);
	assert_int_equal(none, NODE_NONE);
	other = root_of(p, 1, no_variant);
	assert_int_not_equal(other, root);
	assert_int_equal(find(p, other, 1), NODE_NONE);

	variant[31] = 1;
	other = root_of(p, 0, variant);
	assert_int_not_equal(other, root);
	assert_int_equal(find(p, other, 1), NODE_NONE);

	p->epoch = 1;
	assert_int_equal(prefix_root(p, 0, no_variant, false, &none), 0);
	assert_int_equal(none, NODE_NONE);
	other = root_of(p, 0, no_variant);
	assert_int_equal(find(p, other, 1), NODE_NONE);
	assert_int_equal(p->roots, 4);
	p->epoch = 0;
	assert_int_equal(find(p, root_of(p, 0, no_variant), 1), node);
}

static void switched_off_the_walls_between_them_are_gone(void **state)
{
	struct prefix *p = *state;
	uint8_t variant[KEY_VARIANT_BYTES] = {1};
	uint32_t root = root_of(p, 0, no_variant);

	protection_off[PROTECTION_namespaces_apart] = true;
	assert_int_equal(root_of(p, 1, no_variant), root);
	protection_off[PROTECTION_variants_apart] = true;
	assert_int_equal(root_of(p, 0, variant), root);
}

static void nodes_with_equal_hashes_coexist_and_tokens_decide(void **state)
{
	struct prefix *p = *state;
	uint32_t root, nodes[50];

	prefix_deinit(p);
	make(p, 64, 1); /* half of all keys are equal */
	root = root_of(p, 0, no_variant);
	for (uint32_t i = 0; i < 50; i++)
		nodes[i] = add(p, i % 3 ? nodes[i - 1] : root, i);
	for (uint32_t i = 0; i < 50; i++)
		assert_int_equal(find(p, i % 3 ? nodes[i - 1] : root, i), nodes[i]);
	assert_int_equal(find(p, root, 99), NODE_NONE);
	assert_int_equal(find(p, root, 1), NODE_NONE); /* known under another parent only */
	assert_true(p->collisions > 50);
	check(p);
	protection_off[PROTECTION_tokens_decide] = true;
	assert_true(find(p, root, 99) != NODE_NONE || find(p, root, 98) != NODE_NONE ||
		    find(p, root, 97) != NODE_NONE);
}

static void full_says_so_and_leaves_no_image_behind(void **state)
{
	struct prefix *p = *state;
	struct key_image image = {.start = 1, .length = 2};
	uint32_t root = root_of(p, 0, no_variant), node = 77;
	uint8_t variant[KEY_VARIANT_BYTES] = {1};

	failpoint_arm(FAILPOINT_prefix_node, 0, 1);
	assert_int_equal(prefix_publish(p, root, tokens_of(0), PAGE, NULL, 0, &node), PREFIX_FULL);
	assert_int_equal(node, 77);
	for (uint32_t i = 1; i < 64; i++)
		(void)add(p, root, i);
	assert_int_equal(prefix_publish(p, root, tokens_of(64), PAGE, &image, 1, &node),
			 PREFIX_FULL);
	assert_int_equal(p->first_free_images, 0);
	assert_int_equal(prefix_root(p, 0, variant, true, &node), PREFIX_FULL);
	prefix_drop_copy(p, find(p, root, 5), TIER_DEVICE);
	assert_int_equal(prefix_publish(p, root, tokens_of(64), PAGE, &image, 1, &node),
			 PREFIX_NEW);
	assert_int_equal(p->nodes[node].images, 1);
	assert_int_equal(p->n_images, 1);
	prefix_put_copy(p, node, TIER_DEVICE, 1);
	check(p);
}

static void images_take_no_more_than_their_share(void **state)
{
	struct prefix *p = *state;
	struct key_image images[PAGE] = {{0}};
	uint32_t root = root_of(p, 0, no_variant), nodes[64], n = 0, other;

	for (; n < 64; n++) {
		if (prefix_publish(p, root, tokens_of(n), PAGE, images, PAGE, &nodes[n]) !=
		    PREFIX_NEW)
			break;
		prefix_put_copy(p, nodes[n], TIER_DEVICE, n);
	}
	assert_true(n > 0 && n < 63);
	assert_true(n * sizeof(images) <= 64 * PREFIX_IMAGE_BYTES);
	/* What has none still has room, and what has left makes some. */
	(void)add(p, root, 100);
	assert_int_equal(prefix_publish(p, root, tokens_of(n), PAGE, images, PAGE, &other),
			 PREFIX_FULL);
	prefix_drop_copy(p, nodes[0], TIER_DEVICE);
	assert_int_equal(prefix_publish(p, root, tokens_of(n), PAGE, images, PAGE, &other),
			 PREFIX_NEW);
	prefix_put_copy(p, other, TIER_DEVICE, n);
	check(p);
	protection_off[PROTECTION_images_are_bounded] = true;
	for (n = 200; n < 220; n++)
		assert_int_equal(prefix_publish(p, root, tokens_of(n), PAGE, images, PAGE, &other),
				 PREFIX_NEW);
}

static void an_id_is_never_used_again(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0, no_variant);
	uint64_t last = p->nodes[root].id;

	prefix_hold(p, root);
	for (uint32_t i = 0; i < 1000; i++) {
		uint32_t node = add(p, root, i % 5);

		assert_true(p->nodes[node].id > last);
		last = p->nodes[node].id;
		prefix_drop_copy(p, node, TIER_DEVICE);
	}
	assert_int_equal(p->fresh, 2);
	prefix_release(p, root);
}

static void who_uses_a_node_uses_all_above_it(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0, no_variant);
	uint32_t a = add(p, root, 1), b = add(p, a, 2), c = add(p, a, 3);

	assert_true(prefix_hold(p, b));
	assert_true(prefix_hold(p, a));
	assert_false(prefix_may_leave(p, b, TIER_DEVICE));
	assert_true(prefix_hold(p, root) == false); /* a root has none above it */
	assert_true(prefix_hold(p, c));
	assert_false(prefix_hold(p, a)); /* it is in use already */
	assert_int_equal(prefix_release(p, b), a);
	assert_int_equal(prefix_release(p, a), NODE_NONE);
	assert_true(prefix_may_leave(p, b, TIER_DEVICE));
	assert_false(prefix_may_leave(p, a, TIER_DEVICE));
	check(p);
	assert_int_equal(prefix_release(p, c), a);
	assert_int_equal(prefix_release(p, a), root);
	assert_int_equal(prefix_release(p, root), NODE_NONE);
	assert_false(prefix_may_leave(p, a, TIER_DEVICE)); /* its children have copies */
	prefix_drop_copy(p, c, TIER_DEVICE);
	prefix_drop_copy(p, b, TIER_DEVICE);
	assert_true(prefix_may_leave(p, a, TIER_DEVICE));
	prefix_drop_copy(p, a, TIER_DEVICE);
	assert_int_equal(p->used, 0);
}

static void a_copy_below_keeps_a_node_and_its_id(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0, no_variant), a = add(p, root, 1), b = add(p, a, 2), again;
	uint64_t id = p->nodes[a].id;

	prefix_put_copy(p, a, TIER_RAM, 1);
	prefix_put_copy(p, b, TIER_RAM, 2);
	assert_int_equal(p->nodes[a].children_in[TIER_RAM], 1);
	prefix_drop_copy(p, b, TIER_DEVICE);
	prefix_drop_copy(p, a, TIER_DEVICE);
	assert_int_equal(prefix_publish(p, root, tokens_of(1), PAGE, NULL, 0, &again),
			 PREFIX_KNOWN);
	assert_int_equal(again, a);
	assert_int_equal(p->nodes[a].id, id);
	prefix_put_copy(p, a, TIER_DEVICE, 5);
	check(p);
	prefix_drop_copy(p, b, TIER_RAM);
	prefix_drop_copy(p, a, TIER_RAM);
	prefix_drop_copy(p, a, TIER_DEVICE);
	assert_int_equal(p->used, 0);
}

/* ---- the table against a model that is searched from end to end ---- */

#define MODEL     500u
#define ROUNDS    12u
#define OPERATION 4000

struct model {
	struct prefix p;
	uint32_t root;
	uint32_t node[MODEL]; /* by text; NODE_NONE: not in it */
};

static uint32_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*seed >> 33);
}

/* A table in which every probe run is one: all that is in it, found from its home on. */
static void check_table(const struct model *m)
{
	uint32_t entries = 0;

	for (uint64_t at = 0; at <= m->p.mask; at++) {
		uint64_t home;

		if (!m->p.table[at])
			continue;
		entries++;
		home = (m->p.table[at] >> 32) >> m->p.tag_shift;
		for (uint64_t i = home; i != at; i = (i + 1) & m->p.mask)
			assert_true(m->p.table[i]);
	}
	assert_int_equal(entries, m->p.used);
}

static bool run_model(struct model *m, uint64_t seed)
{
	bool wrapped = false;

	for (int i = 0; i < OPERATION; i++) {
		uint32_t text = next_random(&seed) % MODEL, other = next_random(&seed) % MODEL;

		if (m->node[text] == NODE_NONE) {
			m->node[text] = add(&m->p, m->root, text);
		} else {
			prefix_drop_copy(&m->p, m->node[text], TIER_DEVICE);
			m->node[text] = NODE_NONE;
		}
		assert_int_equal(find(&m->p, m->root, text), m->node[text]);
		assert_int_equal(find(&m->p, m->root, other), m->node[other]);
		wrapped |= m->p.table[0] && (m->p.table[0] >> 32) >> m->p.tag_shift > 0;
		if (i % 500 == 0)
			check_table(m);
	}
	for (uint32_t text = 0; text < MODEL; text++)
		assert_int_equal(find(&m->p, m->root, text), m->node[text]);
	check(&m->p);
	return wrapped;
}

static void the_table_finds_what_a_plain_list_finds(void **state)
{
	/* Few bits: long runs of equal homes. Many keys: some runs go around the table's end. */
	static const uint32_t kept[ROUNDS] = {1, 4, 9};
	struct model m;
	uint32_t wrapped = 0;

	(void)state;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		make(&m.p, MODEL + 1, kept[i] ? kept[i] : 128);
		m.p.epoch = i;
		m.root = root_of(&m.p, 0, no_variant);
		prefix_hold(&m.p, m.root);
		memset(m.node, 0xff, sizeof(m.node));
		wrapped += run_model(&m, 17 + i);
		prefix_deinit(&m.p);
	}
	assert_true(wrapped > 0 && wrapped < ROUNDS);
}

/* ---- a long chain in a small stack ---- */

#define LONG_CHAIN 1000000u

static void *drop_long_chain(void *argument)
{
	struct prefix *p = argument;
	uint32_t last = p->fresh - 1, node = last;

	/* In use from one end to the other, without a copy: one release after another, and the
	 * last one takes the whole chain down. */
	for (; node != NODE_NONE; node = p->nodes[node].parent)
		prefix_hold(p, node);
	for (node = last; p->nodes[node].kind != NODE_ROOT; node = p->nodes[node].parent)
		prefix_put_copy(p, node, TIER_RAM, 1);
	for (node = last; node != NODE_NONE;)
		node = prefix_release(p, node);
	/* A node without a copy goes with its last child. */
	for (node = p->nodes[last].parent; p->nodes[node].kind != NODE_ROOT;
	     node = p->nodes[node].parent) {
		p->nodes[node].copies[TIER_RAM] = COPY_NONE;
		p->nodes[p->nodes[node].parent].children_in[TIER_RAM]--;
	}
	prefix_drop_copy(p, last, TIER_RAM);
	return NULL;
}

static void a_million_pages_go_without_recursion(void **state)
{
	struct prefix p;
	pthread_attr_t attributes;
	pthread_t thread;
	uint32_t node;

	(void)state;
	make(&p, LONG_CHAIN + 1, 128);
	node = root_of(&p, 0, no_variant);
	for (uint32_t i = 0; i < LONG_CHAIN; i++)
		assert_int_equal(prefix_publish(&p, node, tokens_of(i), PAGE, NULL, 0, &node),
				 PREFIX_NEW);
	assert_int_equal(pthread_attr_init(&attributes), 0);
	assert_int_equal(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
	assert_int_equal(pthread_create(&thread, &attributes, drop_long_chain, &p), 0);
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attributes);
	assert_int_equal(p.used, 0);
	assert_int_equal(p.roots, 0);
	prefix_deinit(&p);
}

static void the_check_goes_in_turns_and_notices(void **state)
{
	struct prefix *p = *state;
	uint32_t root = root_of(p, 0, no_variant), a = add(p, root, 1), b = add(p, a, 2), at = 0;
	int turns = 0;

	while (at != p->capacity) {
		assert_null(prefix_check(p, &at, 2));
		turns++;
	}
	assert_int_equal(turns, 2);
	p->nodes[b].users = 1;
	at = 0;
	assert_string_equal(prefix_check(p, &at, 64), "a node is used and its parent is not");
	p->nodes[b].users = 0;
	p->nodes[a].copies[TIER_DEVICE] = COPY_NONE;
	at = 0;
	assert_non_null(prefix_check(p, &at, 64));
	p->nodes[a].copies[TIER_DEVICE] = 1;
	p->nodes[b].name_space = 1;
	at = 0;
	assert_string_equal(prefix_check(p, &at, 64),
			    "a node and its parent are of two namespaces");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(what_is_published_twice_is_known_and_what_has_no_copy_is_not_matched),
	    TEST(an_abandoned_node_leaves_nothing_behind),
	    TEST(images_are_part_of_what_a_page_is),
	    TEST(namespaces_variants_and_epochs_do_not_meet),
	    TEST(switched_off_the_walls_between_them_are_gone),
	    TEST(nodes_with_equal_hashes_coexist_and_tokens_decide),
	    TEST(full_says_so_and_leaves_no_image_behind),
	    TEST(images_take_no_more_than_their_share),
	    TEST(an_id_is_never_used_again),
	    TEST(who_uses_a_node_uses_all_above_it),
	    TEST(a_copy_below_keeps_a_node_and_its_id),
	    cmocka_unit_test(the_table_finds_what_a_plain_list_finds),
	    cmocka_unit_test(a_million_pages_go_without_recursion),
	    TEST(the_check_goes_in_turns_and_notices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
