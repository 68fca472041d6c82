/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix_match: walks along a prompt; see prefix.h. Core thread, and nothing blocks.
 *
 * In groups of pages, whose keys follow from the prompt alone. A chain is published page by page,
 * so its nodes often lie one behind another: they are asked for there, without a look at the table,
 * which is large and has a place of its own for each. Those that are not there are looked up in the
 * table: all their lines of it are asked for first, then their nodes and tokens.
 */
#include "daemon/base/panic.h"
#include "daemon/state/prefix_internal.h"

#define GROUP 16 /* pages that are asked for together */

static const struct key_image *images_of_page(const struct key_image **at, uint32_t *left,
					      uint32_t end, uint32_t *n)
{
	const struct key_image *first = *at;

	*n = 0;
	while (*left && (*at)->start < end) {
		(*at)++;
		(*left)--;
		(*n)++;
	}
	return first;
}

static void ask_for_line(const struct prefix *p, struct key key)
{
	__builtin_prefetch(&p->table[prefix_home_of(p, prefix_tag_of(key))]);
}

static void ask_for_node(const struct prefix *p, uint32_t node)
{
	const char *text = (const char *)prefix_tokens(p, node);

	__builtin_prefetch(&p->nodes[node]);
	for (uint32_t line = 0; line < p->page_tokens * sizeof(*p->tokens); line += 64)
		__builtin_prefetch(text + line);
}

/* Most likely the page with this key, of which nothing but its tag has been looked at. */
static uint32_t look_in_table(const struct prefix *p, struct key key)
{
	uint32_t tag = prefix_tag_of(key);

	for (uint64_t at = prefix_home_of(p, tag); p->table[at]; at = (at + 1) & p->mask) {
		if ((uint32_t)(p->table[at] >> 32) == tag)
			return (uint32_t)p->table[at] - 1;
	}
	return NODE_NONE;
}

struct match_group {
	struct key key[GROUP];
	const struct key_image *images[GROUP];
	uint32_t n_images[GROUP];
	uint32_t likely[GROUP]; /* where its node may lie; NODE_NONE: the table knows */
	uint32_t n;
};

static void hash_group(const struct prefix *p, struct match_group *g, struct key *last,
		       uint32_t position, const uint32_t *tokens, uint32_t n_pages,
		       const struct key_image **images, uint32_t *n_images)
{
	g->n = n_pages < GROUP ? n_pages : GROUP;
	for (uint32_t i = 0; i < g->n; i++) {
		uint32_t start = (position + i) * p->page_tokens;

		g->images[i] =
		    images_of_page(images, n_images, start + p->page_tokens, &g->n_images[i]);
		*last = key_page(p->maker, *last, start, tokens + (uint64_t)i * p->page_tokens,
				 p->page_tokens, g->images[i], g->n_images[i]);
		g->key[i] = *last;
		if (i == 0)
			ask_for_line(p, *last);
	}
}

static void guess(const struct prefix *p, struct match_group *g, uint32_t first)
{
	for (uint32_t i = 0; i < g->n; i++) {
		bool known = first != NODE_NONE && first < p->fresh && i < p->fresh - first;

		g->likely[i] = known ? first + i : NODE_NONE;
		if (known)
			ask_for_node(p, first + i);
	}
}

/* Those that were guessed wrong. */
static void ask_for_lines(const struct prefix *p, struct match_group *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		const struct node *n = g->likely[i] == NODE_NONE ? NULL : &p->nodes[g->likely[i]];

		if (n && n->key.low == g->key[i].low && n->key.high == g->key[i].high)
			continue;
		g->likely[i] = NODE_NONE;
		ask_for_line(p, g->key[i]);
	}
}

static void ask_for_nodes(const struct prefix *p, struct match_group *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		if (g->likely[i] != NODE_NONE)
			continue;
		g->likely[i] = look_in_table(p, g->key[i]);
		if (g->likely[i] != NODE_NONE)
			ask_for_node(p, g->likely[i]);
	}
}

/* What follows the last one of a group, if that has come where it was likely. */
static uint32_t after(const struct match_group *g)
{
	uint32_t last = g->n ? g->likely[g->n - 1] : NODE_NONE;

	return last == NODE_NONE ? NODE_NONE : last + 1;
}

static uint32_t find_likely(struct prefix *p, const struct match_group *g, uint32_t i,
			    uint32_t parent, const uint32_t *tokens)
{
	uint32_t node = g->likely[i];

	if (node != NODE_NONE && p->nodes[node].kind == NODE_TOKENS &&
	    prefix_is_page(p, node, g->key[i], parent, tokens, p->page_tokens, g->images[i],
			   g->n_images[i]))
		return node;
	return prefix_find_page(p, g->key[i], parent, tokens, p->page_tokens, g->images[i],
				g->n_images[i]);
}

uint32_t prefix_match(struct prefix *p, struct prefix_walk *walk, const uint32_t *tokens,
		      uint32_t n_pages, const struct key_image *images, uint32_t n_images,
		      uint32_t *path)
{
	struct match_group group[2];
	struct key last = walk->key;
	uint32_t first = walk->position;
	uint32_t hashed = 0, matched = 0;

	must(walk->node != NODE_NONE);
	if (walk->missed || n_pages == 0)
		return 0;
	hash_group(p, &group[0], &last, first, tokens, n_pages, &images, &n_images);
	hashed = group[0].n;
	/* Behind a root are many. */
	guess(p, &group[0], first ? walk->node + 1 : look_in_table(p, group[0].key[0]));
	for (uint32_t turn = 0; matched < n_pages; turn ^= 1) {
		struct match_group *now = &group[turn], *next = &group[turn ^ 1];

		ask_for_lines(p, now);
		hash_group(p, next, &last, first + hashed,
			   tokens + (uint64_t)hashed * p->page_tokens, n_pages - hashed, &images,
			   &n_images);
		hashed += next->n;
		ask_for_nodes(p, now);
		guess(p, next, after(now));
		for (uint32_t i = 0; i < now->n; i++) {
			uint32_t node = find_likely(p, now, i, walk->node,
						    tokens + (uint64_t)matched * p->page_tokens);

			if (node == NODE_NONE || !prefix_can_be_read(&p->nodes[node])) {
				walk->missed = true;
				return matched;
			}
			if (walk->on_device == walk->position && node_is_on_device(&p->nodes[node]))
				walk->on_device++;
			walk->node = node;
			walk->key = now->key[i];
			walk->position++;
			path[matched++] = node;
		}
	}
	return matched;
}
