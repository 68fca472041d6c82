/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tests of daemon/state/park.h: long seeded runs against a plain model. Sequences of two classes
 * open, step, fork, cut, wait half way and close in a pool of which they are promised far more than
 * there is; copies end late, and in some runs badly. The model is what must be in each page of each
 * table, whenever a sequence is here. Whoever ranks highest gets its pages, always. One thread.
 */

#include "tests/unit/park_world.h"

#include <sys/wait.h>
#include <unistd.h>

#define MOST_PAGES  12u
#define MOST_TOKENS (MOST_PAGES * PAGE)
#define MOST        8u

struct run {
	uint64_t seed;
	enum retain_policy order;
	uint32_t pages;
	uint64_t budget; /* of the prefix cache */
	uint32_t room;
	uint32_t fails; /* one copy of so many; 0: none */
	bool windows;
	uint32_t operations;
};

struct live {
	struct seq *s; /* NULL: none */
	uint32_t tokens[MOST_TOKENS];
	uint64_t expected[MOST_PAGES]; /* in each page of the committed text */
};

static struct {
	const struct run *run;
	struct pool pool;
	struct random random;
	struct live live[MOST];
	uint64_t serial;
	uint32_t operation;
	const char *wrong;
	uint64_t checked, pushed, parked;
} w;

static uint32_t below_of(uint32_t n)
{
	return (uint32_t)random_below(&w.random, n);
}

static void demand(bool holds, const char *text)
{
	if (!holds && !w.wrong)
		w.wrong = text;
}

/* What is in a page depends on every token up to its end, or the last committed one. */
static uint64_t content(const uint32_t *tokens, uint32_t n)
{
	uint64_t x = 0x9e3779b97f4a7c15u + n;

	for (uint32_t i = 0; i < n; i++)
		x = (x ^ tokens[i]) * 0xbf58476d1ce4e5b9u + (x >> 29);
	return x >> 1 | 1;
}

static uint32_t page_end(uint32_t index, uint32_t committed)
{
	return (index + 1) * PAGE < committed ? (index + 1) * PAGE : committed;
}

static void check_table(const struct live *l)
{
	const struct seq *s = l->s;

	if (!s)
		return;
	demand(s->step.state == STEP_NONE || !seq_is_away(s),
	       "a page of a sequence in a step has left");
	if (seq_is_away(s) || w.wrong)
		return;
	w.checked++;
	for (uint32_t i = s->first_page; i < pool_pages_for(&w.pool, s->committed); i++)
		demand(below.page[seq_page(s, i)] == l->expected[i],
		       "a page of a sequence that is here holds something else");
}

static int outcome(void)
{
	return w.run->fails && below_of(w.run->fails) == 0 ? -5 : 0;
}

/* Something ends, somewhere. */
static void tick(void)
{
	for (uint32_t n = below_of(4); n; n--)
		below_end(below_of(2) ? UP : DOWN, outcome());
	if (below_of(3))
		park_clean(&w.pool);
}

static void close_one(struct live *l)
{
	while (l->s) {
		uint32_t budget = 1 + below_of(3);

		if (l->s->step.state != STEP_NONE)
			step_abort(l->s);
		seq_close_turn(&l->s, &budget);
		if (below_of(4) == 0)
			tick();
	}
}

/* Everything of it is here: true. */
static bool bring_back(struct live *l, uint32_t patience)
{
	for (; patience && l->s && !w.wrong; patience--) {
		uint32_t budget = below_of(4) ? ALL : 1 + below_of(4);
		int r = park_return(l->s, l->s->rank, false, &budget);

		if (r == 0) {
			check_table(l);
			return true;
		}
		if (r == POOL_LOST) {
			demand(w.run->fails, "a sequence is lost where no copy failed");
			close_one(l);
			return false;
		}
		if (r != POOL_MORE)
			tick();
	}
	return false;
}

static void copy_page(const struct seq *s)
{
	uint32_t first = s->step.first - s->first_page;

	for (uint32_t i = 0; i < s->step.n_fresh; i++)
		demand(below.page[s->table[first + i]] == 0, "a fresh page is not clean");
	if (s->step.replaced != PAGE_NONE)
		below.page[s->table[first]] = below.page[s->step.replaced];
}

static bool begin(struct live *l, uint32_t patience)
{
	uint32_t target, n, window = 0;

	if (!bring_back(l, patience) || l->s->step.state != STEP_NONE)
		return false;
	target = l->s->committed + 1 + below_of(3 * PAGE);
	target = target < l->s->max_tokens ? target : l->s->max_tokens;
	if (w.run->windows && below_of(4) == 0)
		window = below_of(l->s->committed + 1);
	for (; patience && !w.wrong; patience--) {
		if (!bring_back(l, patience) || step_wants(l->s, target, window, &n))
			return false;
		if (step_begin(l->s, target, window, n) == 0) {
			copy_page(l->s);
			check_table(l);
			return true;
		}
		tick();
	}
	return false;
}

static void commit(struct live *l)
{
	struct seq *s = l->s;
	uint32_t start = s->step.start;
	uint32_t tokens =
	    below_of(4) ? s->step.target - start : below_of(s->step.target - start + 1);
	uint32_t first = start / PAGE, end = start + tokens;
	uint64_t written[MOST_PAGES] = {0};

	check_table(l);
	if (w.wrong)
		return;
	if (below_of(8) == 0) {
		step_abort(s);
		return;
	}
	for (uint32_t i = first; tokens && i < pool_pages_for(&w.pool, end); i++) {
		written[i] = content(l->tokens, page_end(i, end));
		below.page[seq_page(s, i)] = written[i];
		l->expected[i] = written[i];
	}
	world_commit(s, tokens, below_of(16) ? l->tokens : NULL);
	check_table(l);
}

static void step_one(struct live *l, uint32_t patience)
{
	if (!l->s)
		return;
	if (l->s->step.state == STEP_NONE && !begin(l, patience))
		return;
	if (below_of(3))
		commit(l);
}

/* What an open does with a match that goes on below: true, with all of it, or with a part. */
static bool fetch(struct match *m, struct pool_rank rank, uint32_t turn)
{
	uint32_t asked = m->walk.on_device, patience = 200, budget = ALL;

	while (asked < m->walk.position && patience--) {
		const struct node *n = &w.pool.prefix.nodes[m->path[asked]];

		if (n->copies[TIER_DEVICE] != COPY_NONE || !node_is_in_ram(n) ||
		    pool_fetch(&w.pool, m->path[asked]) == 0) {
			asked++;
			continue;
		}
		park_make_room(&w.pool, 1, rank);
		tick();
	}
	while (below_in_flight(UP))
		below_end(UP, outcome());
	for (uint32_t i = 0; i < m->walk.position; i++) {
		if (node_is_on_device(&w.pool.prefix.nodes[m->path[i]]))
			continue;
		match_cut(m, i);
		while (match_turn(m, &budget) == POOL_MORE)
			budget = turn;
		return fetch(m, rank, turn);
	}
	return true;
}

static void open_one(struct live *l)
{
	struct pool_rank rank = {.interactive = below_of(3) == 0, .serial = ++w.serial};
	uint32_t n = 1 + below_of(MOST_TOKENS), path[MOST_PAGES + 1], budget = 3;
	uint32_t *ids = malloc(n * sizeof(*ids));
	struct match_wish wish = world_wish(ids, n);
	struct match m;

	world_tokens(l->tokens, MOST_TOKENS, below_of(4) * 2 * PAGE, below_of(4));
	memcpy(ids, l->tokens, n * sizeof(*ids));
	must(seq_new(&w.pool, 0, n + below_of(MOST_TOKENS + 1 - n), &l->s) == 0);
	if (seq_admit(l->s)) {
		free(ids);
		close_one(l);
		return;
	}
	match_begin(&m, &w.pool, &wish, path, retain_open(&w.pool.retain));
	while (match_turn(&m, &budget) == POOL_MORE)
		budget = 3;
	fetch(&m, rank, 3);
	must(seq_take_match(l->s, &m, ids, NULL) == 0);
	seq_set_rank(l->s, rank);
	for (uint32_t i = 0; i < l->s->n_pages; i++)
		l->expected[i] = content(l->tokens, (i + 1) * PAGE);
	check_table(l);
}

/* The partial page is copied at once where nothing is promised for that later. */
static bool take_page(struct live *l, uint32_t from)
{
	for (uint32_t patience = 50; patience; patience--) {
		if (seq_take_page(l->s) == 0) {
			below.page[l->s->table[l->s->n_pages - 1]] = below.page[from];
			return true;
		}
		tick();
	}
	close_one(l);
	return false;
}

static void fork_one(struct live *from, struct live *to)
{
	uint32_t copy;

	if (!from->s || to->s || from->s->step.state != STEP_NONE || from->s->committed == 0)
		return;
	must(seq_fork_new(from->s, from->s->max_tokens, &to->s) == 0);
	if (seq_admit(to->s) || !bring_back(from, 50) || to->s->surplus != from->s->surplus) {
		close_one(to);
		return;
	}
	must(seq_fork(from->s, to->s, &copy) == 0);
	if (copy != PAGE_NONE && !take_page(to, copy))
		return;
	seq_set_rank(to->s, (struct pool_rank){.interactive = from->s->rank.interactive,
					       .serial = ++w.serial});
	memcpy(to->tokens, from->tokens, sizeof(to->tokens));
	memcpy(to->expected, from->expected, sizeof(to->expected));
	check_table(to);
}

static void cut_one(struct live *l)
{
	uint32_t floor, tokens, text = 4 + below_of(4);

	if (!l->s || l->s->step.state != STEP_NONE || !bring_back(l, 50))
		return;
	floor = l->s->first_page * PAGE;
	if (l->s->committed <= floor)
		return;
	tokens = floor + below_of(l->s->committed - floor);
	if (tokens == 0)
		return;
	world_truncate(l->s, tokens);
	for (uint32_t i = tokens; i < MOST_TOKENS && tokens < l->s->max_tokens; i++)
		l->tokens[i] = 1000000 * text + i;
	check_table(l);
}

static bool ranks_above(const struct seq *a, const struct seq *b)
{
	if (a->rank.interactive != b->rank.interactive)
		return a->rank.interactive;
	return a->rank.serial < b->rank.serial;
}

/* With nobody else in a step, whoever ranks highest gets its pages. */
static void highest_goes_on(void)
{
	struct live *highest = NULL;

	for (uint32_t i = 0; i < MOST && !w.wrong; i++) {
		struct live *l = &w.live[i];

		if (l->s && l->s->step.state != STEP_NONE)
			commit(l);
		if (l->s && (!highest || ranks_above(l->s, highest->s)))
			highest = l;
	}
	if (!highest || w.wrong)
		return;
	if (highest->s->committed == highest->s->max_tokens)
		demand(bring_back(highest, 3000) || !highest->s, "the highest does not come back");
	else
		demand(begin(highest, 3000) || !highest->s, "the highest gets no pages");
	w.pushed++;
}

static void operate(void)
{
	struct live *l = &w.live[below_of(MOST)];

	switch (below_of(16)) {
	case 0:
		close_one(l);
		break;
	case 1:
		cut_one(l);
		break;
	case 2:
		fork_one(l, &w.live[below_of(MOST)]);
		break;
	case 3:
		if (below_of(8) == 0)
			highest_goes_on();
		break;
	case 4:
		if (below_of(8) == 0) {
			uint32_t budget = 1 + below_of(8);

			(void)pool_drop_retained(&w.pool, RETAIN_NAMESPACES, &budget);
		}
		break;
	default:
		if (!l->s)
			open_one(l);
		else
			step_one(l, 1 + below_of(30));
	}
	tick();
}

static const char *check_all(void)
{
	for (uint32_t i = 0; i < MOST; i++)
		check_table(&w.live[i]);
	demand(below.n_used == w.pool.in_ram + w.pool.in_ram_private,
	       "places below are not those that the pool knows");
	return w.wrong ? w.wrong : pool_check(&w.pool, true);
}

/* NULL, or what does not hold. */
static const char *run_once(const struct run *run)
{
	struct pool_limits limits = {

	    .pages = run->pages, .prefix_budget = run->budget, .order = run->order};
	const char *wrong = NULL;

	memset(&w, 0, sizeof(w));
	w.run = run;
	w.random.state = run->seed;
	park_init(&w.pool, limits, run->room, run->room + 40);
	for (; w.operation < run->operations && !wrong; w.operation++) {
		operate();
		wrong = check_all();
	}
	if (wrong)
		return wrong;
	for (uint32_t i = 0; i < MOST; i++)
		close_one(&w.live[i]);
	below_end_all();
	park_assert_empty(&w.pool);
	w.parked = w.pool.stats.parked_pages;
	pool_deinit(&w.pool);
	return NULL;
}

/* 40 take 3 s of one core, and those built with a sanitizer ten to twenty times as long. */
static uint32_t seeds(void)
{
	const char *text = getenv("KVHOST_SIM_SEEDS");
	uint32_t n = text ? (uint32_t)strtoul(text, NULL, 10) : 6;

	return n < 40 ? n : 40;
}

static void run_seeds(struct run run)
{
	uint64_t checked = 0, pushed = 0, parked = 0;

	run.operations = 1500;
	for (uint32_t i = 0; i < seeds(); i++) {
		const char *wrong;

		run.seed = 1 + i;
		wrong = run_once(&run);
		if (wrong)
			fail_msg("seed %u, operation %u: %s", 1 + i, w.operation, wrong);
		checked += w.checked;
		pushed += w.pushed;
		parked += w.parked;
	}
	assert_true(checked > 0 && pushed > 0 && parked > 0);
}

static void everybody_finds_what_is_his(void **state)
{
	(void)state;
	run_seeds((struct run){.pages = 26, .order = RETAIN_LRU, .budget = 26, .room = 80});
}

static void the_same_in_the_learned_order(void **state)
{
	(void)state;
	run_seeds((struct run){.pages = 26, .order = RETAIN_LEARNED, .budget = 26, .room = 80});
}

static void the_same_where_only_one_fits(void **state)
{
	(void)state;
	run_seeds((struct run){.pages = 14, .order = RETAIN_LRU, .budget = 14, .room = 92});
	run_seeds((struct run){.pages = 12, .order = RETAIN_LRU, .budget = 12, .room = 92});
	run_seeds((struct run){.pages = 12, .order = RETAIN_LEARNED, .budget = 12, .room = 92});
	run_seeds(
	    (struct run){.pages = 13, .order = RETAIN_LRU, .budget = 13, .room = 92, .fails = 30});
	run_seeds((struct run){.pages = 13, .order = RETAIN_LRU, .budget = 4, .room = 92});
	run_seeds((struct run){.pages = 13, .order = RETAIN_LRU, .room = 92});
	run_seeds((struct run){.pages = 14, .order = RETAIN_LRU, .room = 92, .windows = true});
	run_seeds((struct run){.pages = 13, .order = RETAIN_LEARNED, .budget = 13, .room = 92});
}

static void the_same_without_a_cache(void **state)
{
	(void)state;
	run_seeds((struct run){.pages = 26, .order = RETAIN_LRU, .room = 80});
}

static void the_same_with_a_cache_that_is_too_small(void **state)
{
	(void)state;
	run_seeds((struct run){.pages = 26, .order = RETAIN_LRU, .budget = 5, .room = 40});
}

static void the_same_with_windows(void **state)
{
	(void)state;
	run_seeds((struct run){
	    .pages = 26, .order = RETAIN_LEARNED, .budget = 26, .room = 30, .windows = true});
}

static void the_same_with_copies_that_fail(void **state)
{
	(void)state;
	run_seeds(
	    (struct run){.pages = 26, .order = RETAIN_LRU, .budget = 26, .room = 80, .fails = 12});
	run_seeds((struct run){
	    .pages = 26, .order = RETAIN_LEARNED, .budget = 26, .room = 40, .fails = 60});
}

/* In a process of its own: what does not hold may end it. */
static bool is_noticed(enum protection_name name)
{
	for (uint32_t i = 0; i < 20; i++) {
		const struct run run = {.seed = 1 + i,
					.order = RETAIN_LRU,
					.pages = 26,
					.budget = 26,
					.room = 80,
					.operations = 1500};
		pid_t child = fork();
		int status;

		assert_true(child >= 0);
		if (child == 0) {
			protection_off[name] = true;
			_exit(run_once(&run) ? 1 : 0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
			return true;
	}
	return false;
}

static void what_keeps_the_pages_of_live_sequences_is_needed(void **state)
{
	(void)state;
	assert_true(is_noticed(PROTECTION_private_pages_wait_for_their_copy));
	assert_true(is_noticed(PROTECTION_steps_keep_their_pages));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(everybody_finds_what_is_his),
	    cmocka_unit_test(the_same_in_the_learned_order),
	    cmocka_unit_test(the_same_where_only_one_fits),
	    cmocka_unit_test(the_same_without_a_cache),
	    cmocka_unit_test(the_same_with_a_cache_that_is_too_small),
	    cmocka_unit_test(the_same_with_windows),
	    cmocka_unit_test(the_same_with_copies_that_fail),
	    cmocka_unit_test(what_keeps_the_pages_of_live_sequences_is_needed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
