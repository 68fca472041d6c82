/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of pool_tiers.c with random operations: opens, steps, forks, cuts, copies that end well or
 * badly, room, drops, in any order. Beside the pool stands a plain list of where each page was
 * before the operation; what it may say afterwards follows from what the operation was, and
 * nothing is lost that the tier below did not refuse or give up. One thread; nothing blocks.
 *
 * KVHOST_TEST_SEED=N starts elsewhere.
 */

#include "tests/unit/seeds.h"
#include "tests/unit/tiers_world.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/base/panic.h"

#define PAGES      40u
#define PLACES     56u
#define BUDGET     34u
#define PROMPT     9u /* pages, at most */
#define SEQUENCES  5u
#define OPENS      4u
#define NODES_MAX  (PAGES + PLACES + 64)
#define OPERATIONS 600000u
#define QUIET      1500u /* operations from one quiet moment to the next */

struct user {
	struct opening *open;
	struct seq *s;
	uint32_t tokens[PROMPT * PAGE + 1];
	uint32_t pages;
};

struct was { /* a page, before the operation */
	uint64_t id;
	char here, below;
	bool used;
	bool given_up; /* it could not be copied down twice: it goes without */
};

static struct run {
	struct tiers *t;
	struct pool_below real;
	const char *operation;
	struct user user[OPENS + SEQUENCES]; /* opens first */
	struct was was[NODES_MAX];
	bool may_vanish[NODES_MAX]; /* refused or given up in this operation */
	bool drops;
	uint32_t ended; /* the page whose copy has ended in this operation, or NODE_NONE */
	bool ended_up, ended_well;
	uint32_t pinned[4]; /* pages that are read below for another reason */
	uint32_t n_pinned;
	uint64_t lost, stayed;
} run;

static struct tiers world;

static int setup(void **state)
{
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return 0;
}

/* ---- what the tier below does is noted ---- */

static int take(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	int r = run.real.take(context, node, need, place);

	if (r == POOL_NEVER)
		run.may_vanish[node] = true;
	return r;
}

static void give(void *context, uint32_t place)
{
	run.may_vanish[run.t->node_at[place]] = true;
	run.real.give(context, place);
}

/* ---- what may follow on what ---- */

static void where(const struct node *n, char *here, char *below)
{
	*here = '-';
	*below = '-';
	if (n->kind != NODE_TOKENS)
		return;
	if (n->copies[TIER_DEVICE] != COPY_NONE)
		*here = n->moves & NODE_FAILED    ? 'x'
			: n->moves & NODE_FILLING ? 'f'
			: n->moves & NODE_LEAVING ? 'l'
						  : 'd';
	if (n->copies[TIER_RAM] != COPY_NONE)
		*below = n->moves & NODE_FILLING_RAM ? 'F' : n->moves & NODE_SPOILT_RAM ? 'S' : 'R';
}

static bool is_readable(char here, char below)
{
	return here == 'd' || here == 'l' || below == 'R';
}

/* NULL, or what cannot have happened to a page. used: then and now. */
static const char *judge(uint32_t i, const struct was *was, char here, char below, bool used)
{
	bool its_copy = i == run.ended;
	bool may_vanish = run.may_vanish[i] || run.drops || was->given_up;
	bool down_failed = its_copy && !run.ended_up && !run.ended_well;
	bool up_failed = its_copy && run.ended_up && !run.ended_well;

	if (is_readable(was->here, was->below) && !is_readable(here, below)) {
		run.lost++;
		if (!may_vanish && !up_failed)
			return "a page is lost that nobody refused or gave up";
		if (used && !up_failed)
			return "a page is lost that is in use";
	}
	if (used && (here == 'l' || (was->here == 'd' && here == '-')))
		return "a page leaves that is in use";
	if (was->here == 'x' && here != 'x' && here != '-')
		return "a page that failed is served";
	if (was->here == 'f' && (here == 'd' || here == 'l') &&
	    !(its_copy && run.ended_up && run.ended_well))
		return "a page is served before its bytes are there";
	if (was->here == 'f' && (here == 'x' || here == '-') && !run.ended_up)
		return "a page fails without a copy";
	if (was->below == 'F' && below == 'R' && !(its_copy && !run.ended_up && run.ended_well))
		return "a copy below is served before its bytes are there";
	if (was->below == 'F' && (below == 'S' || below == '-') && !down_failed)
		return "a copy below ends that is under way";
	if (was->below == 'R' && below == 'S' && !up_failed)
		return "a copy below is spoilt that nobody read";
	if (was->below == 'R' && (below == '-' || below == 'F') && !may_vanish)
		return "a copy below is gone that nobody gave up";
	if (was->below == 'S' && below == 'R')
		return "a spoilt copy below is served";
	return NULL;
}

static void look(bool everything)
{
	const struct prefix *x = &run.t->pool.prefix;
	uint32_t leaving[NODES_MAX] = {0};
	const char *wrong = tiers_wrong(run.t, everything);

	for (uint32_t i = 0; !wrong && i < x->fresh; i++) {
		const struct node *n = &x->nodes[i];
		char here, below_it;

		where(n, &here, &below_it);
		if (here == 'l')
			leaving[n->parent]++;
		if (run.was[i].id && (n->kind != NODE_TOKENS || n->id != run.was[i].id))
			wrong = judge(i, &run.was[i], '-', '-', false);
		else if (run.was[i].id)
			wrong = judge(i, &run.was[i], here, below_it, run.was[i].used && n->users);
		run.was[i] = (struct was){.id = n->kind == NODE_TOKENS ? n->id : 0,
					  .here = here,
					  .below = below_it,
					  .used = n->users > 0,
					  .given_up = n->moves & NODE_TRIED_AGAIN};
	}
	for (uint32_t i = 0; !wrong && i < x->fresh; i++) {
		if (x->nodes[i].kind != NODE_FREE && x->nodes[i].children_leaving != leaving[i])
			wrong = "a parent miscounts the children that leave";
	}
	memset(run.may_vanish, 0, sizeof(run.may_vanish));
	run.drops = false;
	run.ended = NODE_NONE;
	if (wrong)
		fail_msg("%s: %s", run.operation, wrong);
}

/* ---- operations ---- */

static void begin_open(struct user *u)
{
	struct match_wish wish = world_wish(u->tokens, 0);

	u->pages = 1 + below(PROMPT);
	for (uint32_t i = 0; i < u->pages; i++) {
		uint32_t letter = below(8) < 5 ? 0 : 1 + below(2);

		for (uint32_t k = 0; k < PAGE; k++)
			u->tokens[i * PAGE + k] = 1000 * letter + k;
	}
	u->tokens[u->pages * PAGE] = 7;
	wish.n_tokens = u->pages * PAGE + 1;
	wish.name_space = (uint16_t)(below(4) == 0);
	if (below(5) == 0)
		wish.max_cached_tokens = below(u->pages * PAGE);
	u->open = opening_begin(&run.t->pool, &wish, u->pages * PAGE + 1);
}

/* The open is done: its sequence goes on in a place of its own, if there is one. */
static void settle_open(struct user *u, struct seq *s)
{
	for (uint32_t i = OPENS; i < OPENS + SEQUENCES; i++) {
		if (run.user[i].s)
			continue;
		run.user[i] = *u;
		run.user[i].s = s;
		return;
	}
	world_close(&s);
}

static void do_open(void)
{
	struct user *u = &run.user[below(OPENS)];
	struct seq *s = NULL;

	if (!u->open) {
		run.operation = "an open begins";
		begin_open(u);
		return;
	}
	if (below(16) == 0) {
		run.operation = "an open goes away";
		opening_abandon(&u->open);
		return;
	}
	run.operation = "an open goes on";
	if (opening_turn(&u->open, below(3) ? ALL : 1 + below(4), &s) == 0)
		settle_open(u, s);
}

static void do_step(struct user *u)
{
	uint32_t end = u->pages * PAGE + 1, target, n;

	run.operation = "a step";
	if (u->s->committed == end)
		return;
	target = u->s->committed + 1 + below(2 * PAGE);
	target = target > end ? end : target;
	/* If nobody else uses the page that it goes on inside, that is its own again. */
	if (u->s->tail_node != NODE_NONE && run.t->pool.prefix.nodes[u->s->tail_node].users == 1)
		run.may_vanish[u->s->tail_node] = true;
	if (step_wants(u->s, target, 0, &n) || step_begin(u->s, target, 0, n))
		return;
	tiers_commit(run.t, u->s, target - u->s->step.start, u->tokens);
}

static void do_fork(const struct user *u)
{
	struct seq *child = NULL;
	uint32_t copy;

	run.operation = "a fork";
	assert_int_equal(seq_fork_new(u->s, u->s->max_tokens, &child), 0);
	assert_int_equal(seq_fork(u->s, child, &copy), 0);
	if (seq_admit(child)) {
		world_close(&child);
		return;
	}
	for (uint32_t i = OPENS; i < OPENS + SEQUENCES; i++) {
		if (run.user[i].s)
			continue;
		run.user[i] = *u;
		run.user[i].s = child;
		return;
	}
	world_close(&child);
}

static void do_sequence(void)
{
	struct user *u = &run.user[OPENS + below(SEQUENCES)];

	if (!u->s)
		return;
	switch (below(8)) {
	case 0:
		run.operation = "a close";
		world_close(&u->s);
		return;
	case 1:
		do_fork(u);
		return;
	case 2:
		run.operation = "a cut";
		if (below(3) == 0 && u->s->committed)
			world_truncate(u->s, below(u->s->committed + 1));
		return;
	default:
		do_step(u);
	}
}

static void end_copy(bool up, bool well)
{
	struct tiers_queue *q = up ? &run.t->up : &run.t->down;
	uint64_t stayed = run.t->pool.stats.spills_kept;

	if (tiers_copies(q) == 0)
		return;
	run.operation = up ? "a copy up ends" : "a copy down ends";
	run.ended = q->copy[q->first % q->room].node;
	run.ended_up = up;
	run.ended_well = well;
	if (up)
		tiers_up_ends(run.t, well ? 0 : -EIO);
	else
		tiers_down_ends(run.t, well ? 0 : -EIO);
	run.stayed += run.t->pool.stats.spills_kept - stayed;
}

static void pin(void)
{
	struct prefix *x = &run.t->pool.prefix;
	uint32_t node = below(x->fresh + 1);

	run.operation = "a page below is read for another reason, or no more";
	if (run.n_pinned == 4 || (run.n_pinned && below(2))) {
		node = run.pinned[--run.n_pinned];
		x->nodes[node].ram_pins--;
	} else {
		if (node == x->fresh || x->nodes[node].kind != NODE_TOKENS ||
		    !node_is_in_ram(&x->nodes[node]))
			return;
		x->nodes[node].ram_pins++;
		run.pinned[run.n_pinned++] = node;
	}
	retain_look(&run.t->pool.retain, node);
}

static void do_pool(void)
{
	struct pool *p = &run.t->pool;
	struct retain_rank rank;
	uint32_t budget = 1 + below(6), node;

	switch (below(8)) {
	case 0:
	case 1:
		run.operation = "room is made";
		pool_make_room(p, pages_free(&p->pages) + 1 + below(below(4) ? 3 : PAGES / 2));
		break;
	case 2:
		run.operation = "a page below is given up";
		node = retain_next(&p->retain, TIER_RAM, UINT64_MAX, &rank);
		if (node != NODE_NONE)
			pool_give_up_ram(p, node);
		break;
	case 3:
		run.operation = "what is retained is dropped";
		run.drops = below(8) == 0;
		if (run.drops)
			pool_drop_retained(p, below(2) ? RETAIN_NAMESPACES : (uint16_t)below(2),
					   &budget);
		break;
	case 4:
		run.operation = "the tier below takes, refuses or lets wait";
		run.t->says = below(6) ? 0 : below(2) ? POOL_NEVER : POOL_WAIT;
		break;
	case 5:
		pin();
		break;
	default:
		run.operation = "pages are cleaned";
		world_clean(p);
	}
}

/* Nobody uses anything, and nothing is under way: all of the device can be given up. */
static void become_quiet(bool empty)
{
	struct tiers *t = run.t;
	uint32_t all = ALL;

	run.operation = "all end";
	t->says = 0;
	while (run.n_pinned) {
		uint32_t node = run.pinned[--run.n_pinned];

		t->pool.prefix.nodes[node].ram_pins--;
		retain_look(&t->pool.retain, node);
	}
	for (uint32_t i = 0; i < OPENS + SEQUENCES; i++) {
		if (i < OPENS && run.user[i].open)
			opening_abandon(&run.user[i].open);
		if (i >= OPENS && run.user[i].s)
			world_close(&run.user[i].s);
		look(true);
	}
	while (tiers_copies(&t->down) || tiers_copies(&t->up)) {
		end_copy(false, true);
		look(true);
		end_copy(true, true);
		look(true);
	}
	assert_int_equal(t->pool.leaving + t->pool.arriving + t->pool.live, 0);
	run.operation = "all pages are given up";
	tiers_make_room(t, PAGES);
	assert_int_equal(t->pool.indexed, 0);
	memset(run.was, 0, sizeof(run.was));
	look(true);
	if (!empty)
		return;
	run.operation = "all is dropped";
	run.drops = true;
	assert_true(pool_drop_retained(&t->pool, RETAIN_NAMESPACES, &all));
	look(true);
	assert_int_equal(t->used, 0);
	assert_int_equal(t->pool.prefix.used, 0);
}

static void go(enum retain_policy order, uint64_t first, uint32_t n, uint32_t check_every,
	       uint32_t places)
{
	seed = first * 977 + 1;
	run = (struct run){.t = &world, .ended = NODE_NONE};
	tiers_init(&world, &(struct tiers_limits){.pages = PAGES,
						  .budget = first % 4 < 2 ? BUDGET : BUDGET / 2,
						  .places = places,
						  .order = order,
						  .floor_tokens = first % 3 ? 0 : 2 * PAGE});
	if (first % 2)
		pool_set_quota(&world.pool, 1, 14, 6);
	run.real = world.below;
	world.below.take = take;
	world.below.give = give;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t what = below(16);

		if (what < 5)
			do_open();
		else if (what < 9)
			do_sequence();
		else if (what < 11)
			end_copy(false, below(8) > 0);
		else if (what < 13)
			end_copy(true, below(8) > 0);
		else
			do_pool();
		look(i % check_every == 0);
		if (i % QUIET == QUIET - 1)
			become_quiet(below(4) == 0);
	}
	become_quiet(true);
	print_message("# %s: %u operations, %llu opens, %llu of pages below, %llu spills, %llu "
		      "kept, %llu restores, %llu lost\n",
		      order == RETAIN_LEARNED ? "learned" : "lru", n,
		      (unsigned long long)world.pool.stats.opens,
		      (unsigned long long)world.pool.stats.ram_hits,
		      (unsigned long long)world.pool.stats.spills, (unsigned long long)run.stayed,
		      (unsigned long long)world.pool.stats.restores, (unsigned long long)run.lost);
	assert_true(run.stayed > n / 5000 && world.pool.stats.restores > n / 200 && run.lost > 0);
	assert_true(world.pool.stats.restores_failed > 0 && world.pool.stats.spills_failed > 0);
	tiers_deinit(&world);
}

static void pages_are_where_a_plain_list_says_lru(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 6; i++)
		go(RETAIN_LRU, first_seed() + i, OPERATIONS / 6, 1, i % 3 ? PLACES : PLACES / 3);
}

static void pages_are_where_a_plain_list_says_learned(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 6; i++)
		go(RETAIN_LEARNED, first_seed() + i, OPERATIONS / 6, 64,
		   i % 3 ? PLACES : PLACES / 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(pages_are_where_a_plain_list_says_lru),
	    TEST(pages_are_where_a_plain_list_says_learned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
