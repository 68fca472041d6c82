/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tenants: two namespaces in one pool: what they share (nothing), what each may hold, and
 * whose page goes. One thread; no device.
 */
#include "tests/unit/pool_world.h"

#include "daemon/base/group.h"
#include "daemon/front/identity.h"

#define PAGES 32u

static struct pool pool;
static struct key salts[RETAIN_NAMESPACES];
#define SALT_LOW  0x6da4c36b6cf7b790
#define SALT_HIGH 0x7203fb6d41745580
#define ROOT_LOW  0x22843d4900147dae
#define ROOT_HIGH 0x8b200c6b1fda3d84
#define PAGE_LOW  0xa16f8a5fbd0d47a2
#define PAGE_HIGH 0x30a41d1096789569

static uint32_t tokens[64 * PAGE];

static int setup(void **state)
{
	(void)state;
	memset(salts, 0, sizeof(salts));
	world_maker.salts = salts;
	world_init(&pool, PAGES, PAGES);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	world_deinit(&pool);
	world_maker.salts = NULL;
	return 0;
}

static struct match_wish wish_of(uint16_t name_space, uint32_t text, uint32_t n_pages)
{
	struct match_wish wish =
	    world_wish(world_tokens(tokens, n_pages * PAGE, 0, text), n_pages * PAGE);

	wish.name_space = name_space;
	return wish;
}

static struct seq *open_as(uint16_t name_space, uint32_t text, uint32_t n_pages)
{
	struct match_wish wish = wish_of(name_space, text, n_pages);

	return world_open_wish(&pool, &wish, n_pages * PAGE, ALL);
}

static void serve(uint16_t name_space, uint32_t text, uint32_t n_pages)
{
	struct seq *s = open_as(name_space, text, n_pages);

	if (s->committed < n_pages * PAGE)
		world_step(s, n_pages * PAGE, NULL);
	world_close(&s);
	world_clean(&pool);
	world_check(&pool);
}

/* One more token than is known, as the last one is never looked for. */
static uint32_t found(uint16_t name_space, uint32_t text, uint32_t n_pages)
{
	struct match_wish wish = wish_of(name_space, text, n_pages + 1);
	uint32_t *path = malloc((match_room(&pool, &wish) + 1) * sizeof(*path));
	struct match m;
	uint32_t budget = ALL;

	match_begin(&m, &pool, &wish, path, 0);
	assert_int_equal(match_turn(&m, &budget), 0);
	free(path);
	return match_tokens(&m) / PAGE;
}

/* ---- apart ---- */

static void equal_tokens_under_an_equal_salt_share_no_page(void **state)
{
	struct seq *a, *b;

	(void)state;
	salts[1] = salts[2] = (struct key){.low = 1, .high = 2};
	serve(1, 7, 4);
	assert_int_equal(found(1, 7, 4), 4);
	assert_int_equal(found(2, 7, 4), 0);
	serve(2, 7, 4);
	assert_int_equal(pool.shares[1].indexed, 4);
	assert_int_equal(pool.shares[2].indexed, 4);
	a = open_as(1, 7, 5);
	b = open_as(2, 7, 5);
	assert_int_equal(a->n_pages, 4);
	assert_int_equal(b->n_pages, 4);
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t k = 0; k < 4; k++)
			assert_int_not_equal(a->table[i], b->table[k]);
	}
	assert_int_equal(pool.stats.duplicates, 0);
	world_close(&a);
	world_close(&b);
}

static void without_that_protection_one_finds_what_the_other_stored(void **state)
{
	(void)state;
	protection_off[PROTECTION_namespaces_apart] = true;
	serve(1, 7, 4);
	assert_int_equal(found(2, 7, 4), 4);
}

static void keys_that_collide_are_told_apart(void **state)
{
	(void)state;
	world_maker.kept_bits = 1;
	serve(1, 7, 4);
	assert_int_equal(found(2, 7, 4), 0);
	serve(2, 7, 4);
	assert_int_equal(found(1, 7, 4), 4);
	assert_int_equal(found(2, 7, 4), 4);
	assert_true(pool.prefix.collisions > 0);
}

/* The keys of a known secret, salt and prompt: what one process stores another one must find. */
static void a_salt_is_in_every_key_below_its_root(void **state)
{
	static const uint8_t variant[KEY_VARIANT_BYTES] = {9};
	struct key plain, salted, page;

	(void)state;
	salts[3] = key_salt(&world_maker, "pepper", 6);
	plain = key_root(&world_maker, 4, world_stamp, 0, variant);
	salted = key_root(&world_maker, 3, world_stamp, 0, variant);
	world_tokens(tokens, PAGE, 0, 3);
	page = key_page(&world_maker, salted, 0, tokens, PAGE, NULL, 0);
	assert_true(plain.low != salted.low && plain.high != salted.high);
	assert_true(salts[3].low == SALT_LOW && salts[3].high == SALT_HIGH);
	assert_true(salted.low == ROOT_LOW && salted.high == ROOT_HIGH);
	assert_true(page.low == PAGE_LOW && page.high == PAGE_HIGH);
	salts[3] = key_salt(&world_maker, "Pepper", 6);
	salted = key_root(&world_maker, 3, world_stamp, 0, variant);
	assert_true(salted.low != ROOT_LOW && salted.high != ROOT_HIGH);
}

/* ---- quotas ---- */

static void at_its_quota_a_namespace_gives_up_what_it_retains_itself(void **state)
{
	(void)state;
	pool_set_quota(&pool, 1, 8, 0);
	serve(2, 1, 8);
	for (uint32_t text = 2; text < 8; text++) {
		serve(1, text, 4);
		assert_true(pool_held(&pool, 1) <= 8);
	}
	/* There was room for all of it: only the quota made it go, and only its own. */
	assert_int_equal(pool.shares[1].indexed, 8);
	assert_int_equal(pool.shares[2].indexed, 8);
	assert_int_equal(found(2, 1, 8), 8);
	assert_int_equal(found(1, 7, 4), 4);
	assert_int_equal(found(1, 6, 4), 4);
	assert_int_equal(found(1, 5, 4), 0);
}

static void without_that_protection_it_holds_more(void **state)
{
	(void)state;
	protection_off[PROTECTION_quotas_are_kept] = true;
	pool_set_quota(&pool, 1, 8, 0);
	for (uint32_t text = 2; text < 6; text++)
		serve(1, text, 4);
	assert_true(pool_held(&pool, 1) > 8);
}

static int admit_as(uint16_t name_space, uint32_t n_pages, struct seq **out)
{
	assert_int_equal(seq_new(&pool, name_space, n_pages * PAGE, out), 0);
	return seq_admit(*out);
}

static void what_is_promised_stays_within_the_quota(void **state)
{
	struct seq *a, *b, *other;

	(void)state;
	pool_set_quota(&pool, 1, 8, 0);
	assert_int_equal(admit_as(1, 5, &a), 0);
	assert_int_equal(admit_as(1, 4, &b), POOL_QUOTA);
	assert_int_equal(admit_as(2, 20, &other), 0);
	world_check(&pool);
	world_close(&a);
	assert_int_equal(seq_admit(b), 0);
	world_check(&pool);
	world_close(&b);
	world_close(&other);
	world_check(&pool);
}

static void pages_in_quarantine_count(void **state)
{
	struct seq *a, *b;
	uint32_t pages[8];

	(void)state;
	pool_set_quota(&pool, 1, 8, 0);
	a = open_as(1, 1, 4);
	world_begin(a, 4 * PAGE);
	assert_int_equal(pool_held(&pool, 1), 4);
	step_end(a, true);
	assert_int_equal(seq_move_quarantine(a, pages), 4);
	world_close(&a);
	assert_int_equal(pool_held(&pool, 1), 0);
	assert_int_equal(pool.pages.shares[1].quarantined, 4);
	assert_int_equal(admit_as(1, 5, &b), POOL_QUOTA);
	for (int i = 0; i < 4; i++)
		pages_acquit(&pool.pages, pages[i]);
	assert_int_equal(seq_admit(b), 0);
	world_close(&b);
	world_check(&pool);
}

static void forks_and_duplicates_are_counted_once_each(void **state)
{
	struct seq *a, *b, *child;

	(void)state;
	pool_set_quota(&pool, 1, 12, 0);
	a = open_as(1, 1, 4);
	b = open_as(1, 1, 4);
	world_step(a, 3 * PAGE + 5, NULL);
	world_step(b, 4 * PAGE, NULL);
	/* Three pages of b are beside those of a; b's fourth one is indexed. */
	assert_int_equal(pool.shares[1].surplus, 3);
	assert_int_equal(pool_held(&pool, 1), 3 + 1 + 3 + 1);
	world_check(&pool);
	assert_int_equal(fork_of(a, 4 * PAGE, &child), 0);
	assert_int_equal(pool_held(&pool, 1), 8);
	assert_int_equal(seq_admit(child), POOL_QUOTA);
	world_close(&b);
	assert_int_equal(seq_admit(child), 0);
	world_close(&a);
	world_close(&child);
	world_check(&pool);
	assert_int_equal(pool.shares[1].ceilings + pool.shares[1].surplus, 0);
}

/* ---- guarantees ---- */

static void fill_with_an_old_and_a_young_one(void)
{
	serve(1, 1, 8); /* the oldest */
	serve(2, 2, 8);
	serve(2, 3, 8);
	serve(2, 4, 8);
	assert_int_equal(pool.indexed, PAGES);
}

static void the_oldest_goes_where_nothing_is_guaranteed(void **state)
{
	(void)state;
	fill_with_an_old_and_a_young_one();
	serve(3, 5, 8);
	assert_int_equal(pool.shares[1].indexed, 0);
	assert_int_equal(pool.shares[2].indexed, 24);
}

static void what_is_guaranteed_goes_last(void **state)
{
	(void)state;
	pool_set_quota(&pool, 1, 0, 6);
	fill_with_an_old_and_a_young_one();
	serve(3, 5, 8);
	/* Two pages above the guarantee, then those of the others, although they are younger. */
	assert_int_equal(pool.shares[1].indexed, 6);
	assert_int_equal(pool.shares[2].indexed, 18);
	serve(3, 6, 24);
	assert_int_equal(pool.shares[1].indexed, 6);
	assert_int_equal(pool.shares[3].indexed, 26);
	/* A request that needs it gets it all the same. */
	serve(3, 7, PAGES);
	assert_int_equal(pool.shares[1].indexed, 0);
}

static void without_that_protection_the_oldest_goes(void **state)
{
	(void)state;
	protection_off[PROTECTION_guarantees_are_kept] = true;
	pool_set_quota(&pool, 1, 0, 6);
	fill_with_an_old_and_a_young_one();
	serve(3, 5, 8);
	assert_int_equal(pool.shares[1].indexed, 0);
}

static void who_is_over_its_quota_goes_first(void **state)
{
	(void)state;
	fill_with_an_old_and_a_young_one();
	pool_set_quota(&pool, 2, 20, 0);
	serve(3, 5, 8);
	assert_int_equal(pool.shares[2].indexed, 20);
	assert_int_equal(pool.shares[1].indexed, 4);
}

static void a_page_is_given_up_by_one_namespace_alone_when_told(void **state)
{
	uint32_t budget = ALL;

	(void)state;
	fill_with_an_old_and_a_young_one();
	assert_true(pool_drop_retained(&pool, 2, &budget));
	assert_int_equal(pool.shares[1].indexed, 8);
	assert_int_equal(pool.shares[2].indexed, 0);
	world_check(&pool);
}

/* ---- who may use which ---- */

static struct config config; /* large: not on the stack */

static bool admitted(uint32_t uid, uint32_t first_gid, uint32_t other_gid, const char *wanted,
		     struct identity_card *card)
{
	uint32_t gids[2] = {first_gid, other_gid};
	struct identity who = {.uid = uid, .n_gids = 2, .gids = gids};

	return identity_admit(&config, &who, wanted, 900, card);
}

static void two_namespaces(void)
{
	config_start(&config);
	config.n_namespaces = 2;
	config.namespaces[0] = (struct config_namespace){
	    .name = "a", .uids = {1, {100}}, .gids = {1, {500}}, .rights = CONFIG_RIGHT_ATTACH};
	config.namespaces[1] =
	    (struct config_namespace){.name = "b",
				      .uids = {2, {100, 200}},
				      .rights = CONFIG_RIGHT_ATTACH | CONFIG_RIGHT_INTERACTIVE};
}

static void the_user_and_its_groups_decide(void **state)
{
	struct identity_card card;

	(void)state;
	two_namespaces();
	assert_true(admitted(100, 1, 1, "", &card));
	assert_int_equal(card.name_space, 0);
	assert_int_equal(card.rights, CONFIG_RIGHT_ATTACH);
	assert_true(admitted(100, 1, 1, "b", &card));
	assert_int_equal(card.name_space, 1);
	assert_true(admitted(200, 1, 1, "", &card));
	assert_int_equal(card.name_space, 1);
	assert_true(admitted(300, 500, 1, "", &card));
	assert_int_equal(card.name_space, 0);
	assert_true(admitted(300, 1, 500, "a", &card));
	assert_false(admitted(300, 1, 500, "b", &card));
	assert_false(admitted(200, 1, 1, "a", &card));
	assert_false(admitted(200, 1, 1, "c", &card));
	assert_false(admitted(300, 1, 1, "", &card));
}

static void nobody_matches_nothing(void **state)
{
	struct identity_card card;

	(void)state;
	two_namespaces();
	config.namespaces[0].uids = (struct config_ids){1, {CONFIG_ID_NOBODY}};
	config.namespaces[0].gids = (struct config_ids){1, {CONFIG_ID_NOBODY}};
	assert_false(admitted(CONFIG_ID_NOBODY, 500, 1, "", &card));
	assert_false(admitted(CONFIG_ID_NOBODY, CONFIG_ID_NOBODY, 900, "a", &card));
	assert_false(admitted(300, CONFIG_ID_NOBODY, CONFIG_ID_NOBODY, "", &card));
}

static void root_may_use_every_namespace_and_steer(void **state)
{
	struct identity_card card;

	(void)state;
	two_namespaces();
	assert_true(admitted(0, 0, 0, "b", &card));
	assert_int_equal(card.name_space, 1);
	assert_int_equal(card.rights,
			 CONFIG_RIGHT_ATTACH | CONFIG_RIGHT_INTERACTIVE | CONFIG_RIGHT_ADMIN);
	assert_false(admitted(0, 0, 0, "c", &card));
	/* Its own comes first. */
	config.namespaces[1].uids = (struct config_ids){1, {0}};
	assert_true(admitted(0, 0, 0, "", &card));
	assert_int_equal(card.name_space, 1);
}

static void an_operator_may_steer_and_do_nothing_else_where_it_is_no_member(void **state)
{
	struct identity_card card;

	(void)state;
	two_namespaces();
	assert_true(admitted(300, 1, 900, "", &card));
	assert_int_equal(card.rights, CONFIG_RIGHT_ADMIN);
	assert_true(admitted(200, 1, 900, "", &card));
	assert_int_equal(card.name_space, 1);
	assert_int_equal(card.rights,
			 CONFIG_RIGHT_ATTACH | CONFIG_RIGHT_INTERACTIVE | CONFIG_RIGHT_ADMIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(equal_tokens_under_an_equal_salt_share_no_page),
	    TEST(without_that_protection_one_finds_what_the_other_stored),
	    TEST(keys_that_collide_are_told_apart),
	    TEST(a_salt_is_in_every_key_below_its_root),
	    TEST(at_its_quota_a_namespace_gives_up_what_it_retains_itself),
	    TEST(without_that_protection_it_holds_more),
	    TEST(what_is_promised_stays_within_the_quota),
	    TEST(pages_in_quarantine_count),
	    TEST(forks_and_duplicates_are_counted_once_each),
	    TEST(the_oldest_goes_where_nothing_is_guaranteed),
	    TEST(what_is_guaranteed_goes_last),
	    TEST(without_that_protection_the_oldest_goes),
	    TEST(who_is_over_its_quota_goes_first),
	    TEST(a_page_is_given_up_by_one_namespace_alone_when_told),
	    cmocka_unit_test(the_user_and_its_groups_decide),
	    cmocka_unit_test(nobody_matches_nothing),
	    cmocka_unit_test(root_may_use_every_namespace_and_steer),
	    cmocka_unit_test(an_operator_may_steer_and_do_nothing_else_where_it_is_no_member),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
