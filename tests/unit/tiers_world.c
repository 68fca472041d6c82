/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_world: see tiers_world.h. */
#include "tests/unit/tiers_world.h"

#include <stdio.h>

#include "daemon/base/panic.h"

/* ---- the tier below ---- */

static void push(struct tiers *t, struct tiers_queue *q, uint32_t node)
{
	const struct node *n = &t->pool.prefix.nodes[node];

	if (q->end - q->first == q->room) {
		struct tiers_queue grown = {.room = q->room ? 2 * q->room : 64};

		grown.copy = malloc(grown.room * sizeof(*grown.copy));
		while (q->first != q->end)
			grown.copy[grown.end++] = q->copy[q->first++ % q->room];
		free(q->copy);
		*q = grown;
	}
	q->copy[q->end++ % q->room] = (struct tiers_copy){
	    .node = node,
	    .id = n->id,
	    .page = n->copies[TIER_DEVICE],
	    .place = n->copies[TIER_RAM],
	};
}

/* What ranks lowest there gives its place up, if it ranks below the newcomer. */
static bool displace(struct tiers *t, uint32_t node, bool needed)
{
	struct retain_rank rank;
	uint32_t victim = retain_next(&t->pool.retain, TIER_RAM, UINT64_MAX, &rank);

	if (victim == NODE_NONE ||
	    (!needed && !retain_ranks_below(rank, retain_rank(&t->pool.retain, node))))
		return false;
	t->pool.stats.ram_displaced++;
	pool_give_up_ram(&t->pool, victim);
	return true;
}

static int take(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	bool needed = need != POOL_NEED_NONE;
	struct tiers *t = context;

	t->n_takes++;
	t->n_needed += needed;
	if (t->says)
		return t->says == POOL_NEVER && needed ? POOL_WAIT : t->says;
	while (t->used == t->places) {
		if (!displace(t, node, needed))
			return needed ? POOL_WAIT : POOL_NEVER;
	}
	while (t->node_at[t->next % t->places] != NODE_NONE)
		t->next++;
	*place = t->next++ % t->places;
	t->node_at[*place] = node;
	t->in_place[*place] = 0;
	t->used++;
	return 0;
}

static void give(void *context, uint32_t place)
{
	struct tiers *t = context;

	assert_true(place < t->places && t->node_at[place] != NODE_NONE && t->used > 0);
	t->node_at[place] = NODE_NONE;
	t->used--;
}

static void down(void *context, uint32_t node)
{
	struct tiers *t = context;

	t->in_place[t->pool.prefix.nodes[node].copies[TIER_RAM]] = 0;
	push(t, &t->down, node);
}

static void up(void *context, uint32_t node)
{
	struct tiers *t = context;

	t->in_page[t->pool.prefix.nodes[node].copies[TIER_DEVICE]] = 0;
	push(t, &t->up, node);
}

/* The oldest one; its page and its place are still its own. */
static struct tiers_copy pop(struct tiers *t, struct tiers_queue *q)
{
	struct tiers_copy c;
	const struct node *n;

	assert_true(q->first != q->end);
	c = q->copy[q->first++ % q->room];
	n = &t->pool.prefix.nodes[c.node];
	assert_true(n->kind == NODE_TOKENS && n->id == c.id);
	assert_int_equal(n->copies[TIER_DEVICE], c.page);
	assert_int_equal(n->copies[TIER_RAM], c.place);
	return c;
}

void tiers_down_ends(struct tiers *t, int result)
{
	struct tiers_copy c = pop(t, &t->down);

	if (!result)
		t->in_place[c.place] = t->in_page[c.page];
	pool_came_down(&t->pool, c.node, result);
}

void tiers_up_ends(struct tiers *t, int result)
{
	struct tiers_copy c = pop(t, &t->up);

	if (!result)
		t->in_page[c.page] = t->in_place[c.place];
	pool_came_up(&t->pool, c.node, result);
}

void tiers_settle(struct tiers *t)
{
	while (tiers_copies(&t->down) || tiers_copies(&t->up)) {
		while (tiers_copies(&t->down))
			tiers_down_ends(t, 0);
		if (tiers_copies(&t->up))
			tiers_up_ends(t, 0);
	}
}

void tiers_make_room(struct tiers *t, uint32_t n)
{
	while (pages_free(&t->pool.pages) < n) {
		bool room = pool_make_room(&t->pool, n);

		assert_true(room || tiers_copies(&t->down));
		tiers_settle(t);
	}
	world_clean(&t->pool);
}

/* ---- the pool ---- */

/* Live sequences stay where they are here: tests/unit/test_park.c moves them. */
static uint64_t no_room(void *context)
{
	(void)context;
	return 0;
}

void tiers_init(struct tiers *t, const struct tiers_limits *limits)
{
	struct pool_limits wanted = {.pages = limits->pages,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = UINT32_MAX / 2,
				     .nodes = limits->pages + 64,
				     .ram_pages = limits->places,
				     .name_spaces = RETAIN_NAMESPACES,
				     .prefix_budget = limits->budget,
				     .order = limits->order,
				     .ram_floor_tokens = limits->floor_tokens};

	failpoint_clear();
	world_maker.kept_bits = 128;
	for (int i = 0; i < KEY_SECRET_BYTES; i++)
		world_maker.secret[i] = (uint8_t)(i * 7 + 1);
	*t = (struct tiers){.places = limits->places};
	assert_int_equal(pool_init(&t->pool, &wanted, &world_maker, world_stamp), 0);
	t->node_at = malloc(t->places * sizeof(*t->node_at));
	t->in_place = calloc(t->places, sizeof(*t->in_place));
	t->in_page = calloc(limits->pages, sizeof(*t->in_page));
	for (uint32_t i = 0; i < t->places; i++)
		t->node_at[i] = NODE_NONE;
	t->below = (struct pool_below){
	    .take = take, .give = give, .down = down, .up = up, .room = no_room, .context = t};
	t->pool.below = &t->below;
}

void tiers_deinit(struct tiers *t)
{
	free(t->node_at);
	free(t->in_place);
	free(t->in_page);
	free(t->down.copy);
	free(t->up.copy);
	t->pool.below = NULL; /* what is to be given up for nowhere is, from the device alone */
	world_deinit(&t->pool);
}

static const char *wrong_copies(const struct tiers *t)
{
	const struct node *nodes = t->pool.prefix.nodes;
	uint32_t filling = 0, filling_ram = 0, in_ram = 0, copies[2] = {0};

	for (uint32_t i = 0; i < t->pool.prefix.fresh; i++) {
		const struct node *n = &nodes[i];
		uint32_t place = n->copies[TIER_RAM];

		if (n->kind != NODE_TOKENS)
			continue;
		filling += (n->moves & NODE_FILLING) && !(n->moves & NODE_FAILED);
		filling_ram += !!(n->moves & NODE_FILLING_RAM);
		in_ram += place != COPY_NONE;
		if (place != COPY_NONE && t->node_at[place] != i)
			return "a place below is another page's";
		if (node_is_in_ram(n) && t->in_place[place] != n->key.low)
			return "in a place below are not the bytes of its page";
		if (node_is_on_device(n) && t->in_page[n->copies[TIER_DEVICE]] != n->key.low)
			return "in a page are not the bytes of its node";
	}
	if (in_ram != t->used)
		return "more places below are taken than pages are there";
	for (uint32_t i = t->down.first; i != t->down.end; i++)
		copies[0] +=
		    !!(nodes[t->down.copy[i % t->down.room].node].moves & NODE_FILLING_RAM);
	for (uint32_t i = t->up.first; i != t->up.end; i++)
		copies[1] += !!(nodes[t->up.copy[i % t->up.room].node].moves & NODE_FILLING);
	if (copies[0] != tiers_copies(&t->down) || copies[0] != filling_ram)
		return "copies down are under way that no page waits for, or the reverse";
	if (copies[1] != tiers_copies(&t->up) || copies[1] != filling ||
	    copies[1] != t->pool.arriving)
		return "copies up are under way that no page waits for, or the reverse";
	return NULL;
}

const char *tiers_wrong(const struct tiers *t, bool everything)
{
	const char *wrong = wrong_copies(t);

	return wrong ? wrong : pool_check(&t->pool, everything);
}

void tiers_check(const struct tiers *t)
{
	const char *wrong = tiers_wrong(t, true);

	if (wrong)
		fail_msg("%s", wrong);
}

/* ---- sequences ---- */

void tiers_begin(struct tiers *t, struct seq *s, uint32_t target)
{
	uint32_t n;
	int r;

	assert_int_equal(step_wants(s, target, 0, &n), 0);
	for (int i = 0; (r = step_begin(s, target, 0, n)) == POOL_WAIT && i < 1000; i++) {
		tiers_settle(t);
		world_clean(&t->pool);
	}
	assert_int_equal(r, 0);
}

void tiers_commit(struct tiers *t, struct seq *s, uint32_t tokens, const uint32_t *ids)
{
	const struct pool *p = &t->pool;
	uint32_t before = s->published, node;

	world_commit(s, tokens, ids);
	node = s->node;
	for (uint32_t i = s->published; i > before; i--) {
		const struct node *n = &p->prefix.nodes[node];

		if (n->copies[TIER_DEVICE] == seq_page(s, i - 1))
			t->in_page[n->copies[TIER_DEVICE]] = n->key.low;
		node = n->parent;
	}
}

void tiers_step(struct tiers *t, struct seq *s, uint32_t target)
{
	tiers_begin(t, s, target);
	tiers_commit(t, s, target - s->step.start, NULL);
}

struct seq *tiers_open_wish(struct tiers *t, const struct match_wish *wish, uint32_t max_tokens)
{
	struct opening *o = opening_begin(&t->pool, wish, max_tokens);
	struct seq *s = NULL;

	assert_non_null(o);
	while (opening_turn(&o, ALL, &s))
		tiers_settle(t);
	return s;
}

struct seq *tiers_open(struct tiers *t, const uint32_t *tokens, uint32_t n, uint32_t max_tokens)
{
	struct match_wish wish = world_wish(tokens, n);

	return tiers_open_wish(t, &wish, max_tokens);
}

void tiers_retain(struct tiers *t, uint32_t which, uint32_t n, uint32_t *nodes)
{
	uint32_t *tokens = malloc((n * PAGE + 1) * sizeof(*tokens));
	struct seq *s;

	world_tokens(tokens, n * PAGE + 1, 0, which);
	s = tiers_open(t, tokens, n * PAGE + 1, n * PAGE + 1);
	if (s->committed < n * PAGE)
		tiers_step(t, s, n * PAGE);
	if (nodes)
		tiers_path(&t->pool, s->node, n, nodes);
	world_close(&s);
	free(tokens);
	tiers_check(t);
}

void tiers_path(const struct pool *p, uint32_t node, uint32_t n, uint32_t *nodes)
{
	while (n > 0) {
		nodes[--n] = node;
		node = p->prefix.nodes[node].parent;
	}
}

const char *tiers_where(const struct tiers *t, uint32_t node)
{
	static char text[8];
	const struct node *n = &t->pool.prefix.nodes[node];
	char *at = text;

	if (n->kind == NODE_FREE)
		return "-";
	if (n->copies[TIER_DEVICE] != COPY_NONE)
		*at++ = n->moves & NODE_FAILED    ? 'x'
			: n->moves & NODE_FILLING ? 'f'
			: n->moves & NODE_LEAVING ? 'l'
						  : 'd';
	if (n->copies[TIER_RAM] != COPY_NONE)
		*at++ = n->moves & NODE_FILLING_RAM ? 'F' : n->moves & NODE_SPOILT_RAM ? 'S' : 'R';
	if (at == text)
		*at++ = '-';
	*at = 0;
	return text;
}

void assert_where(const struct tiers *t, const uint32_t *nodes, uint32_t n, const char *expected)
{
	char text[256] = "";

	for (uint32_t i = 0; i < n && strlen(text) < sizeof(text) - 8; i++)
		snprintf(text + strlen(text), 8, "%s%s", i ? " " : "", tiers_where(t, nodes[i]));
	assert_string_equal(text, expected);
}
