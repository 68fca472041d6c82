/* SPDX-License-Identifier: Apache-2.0 */
/* prefix: see prefix.h. Core thread, and nothing blocks, but in prefix_populate. */
#include "daemon/state/prefix.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"
#include "daemon/state/prefix_internal.h"

#define CAPACITY_MAX (1u << 30)

_Static_assert(sizeof(struct node) == 128, "a node is two cache lines, in tables of 10^7");

static uint64_t tokens_bytes(uint64_t nodes, uint32_t page_tokens)
{
	return nodes * page_tokens * sizeof(uint32_t);
}

static uint64_t nodes_bytes(uint64_t nodes)
{
	return nodes * sizeof(struct node);
}

/* A table of 2^bits slots, at least two a node. */
static uint32_t table_bits(uint64_t nodes)
{
	uint32_t bits = 4;

	while ((1ull << bits) < 2 * nodes)
		bits++;
	return bits;
}

static uint64_t table_bytes(uint64_t slots)
{
	return slots * sizeof(uint64_t);
}

uint64_t prefix_bytes_for(uint64_t nodes, uint32_t page_tokens)
{
	return reserve_bytes(nodes_bytes(nodes)) + reserve_bytes(tokens_bytes(nodes, page_tokens)) +
	       reserve_bytes(table_bytes(1ull << table_bits(nodes))) +
	       prefix_images_bytes_for(nodes);
}

int prefix_init(struct prefix *p, uint32_t capacity, uint32_t page_tokens,
		const struct key_maker *maker, const uint8_t stamp[16])
{
	uint32_t bits = table_bits(capacity);

	must(capacity > 0 && capacity <= CAPACITY_MAX);
	must(page_tokens >= 16 && page_tokens <= 64);

	*p = (struct prefix){
	    .capacity = capacity,
	    .page_tokens = page_tokens,
	    .mask = (1ull << bits) - 1,
	    .tag_shift = 32 - bits,
	    .first_free = NODE_NONE,
	    .first_free_images = UINT32_MAX,
	    .maker = maker,
	};
	memcpy(p->stamp, stamp, sizeof(p->stamp));
	p->nodes = reserve_take(nodes_bytes(capacity));
	p->tokens = reserve_take(tokens_bytes(capacity, page_tokens));
	p->table = reserve_take(table_bytes(p->mask + 1));
	if (!p->nodes || !p->tokens || !p->table || prefix_images_init(p)) {
		prefix_deinit(p);
		return -ENOMEM;
	}
	return 0;
}

void prefix_deinit(struct prefix *p)
{
	prefix_images_deinit(p);
	reserve_give(p->nodes, nodes_bytes(p->capacity));
	reserve_give(p->tokens, tokens_bytes(p->capacity, p->page_tokens));
	reserve_give(p->table, table_bytes(p->mask + 1));
	*p = (struct prefix){0};
}

/* As good as it goes: what is not there yet comes when it is touched. */
static void populate(void *memory, uint64_t bytes)
{
	(void)madvise(memory, bytes, MADV_POPULATE_WRITE);
}

void prefix_populate(struct prefix *p, uint32_t nodes)
{
	must(nodes <= p->capacity);
	populate(p->nodes, nodes_bytes(nodes));
	populate(p->tokens, tokens_bytes(nodes, p->page_tokens));
	populate(p->table, table_bytes(p->mask + 1));
}

/* ---- the table: open addressing, linear probing, the home slot is in the tag ---- */

static void table_insert(struct prefix *p, uint32_t node)
{
	uint32_t tag = prefix_tag_of(p->nodes[node].key);
	uint64_t at = prefix_home_of(p, tag);

	while (p->table[at])
		at = (at + 1) & p->mask;
	p->table[at] = (uint64_t)tag << 32 | (node + 1);
}

static void table_remove(struct prefix *p, uint32_t node)
{
	uint32_t tag = prefix_tag_of(p->nodes[node].key);
	uint64_t entry = (uint64_t)tag << 32 | (node + 1);
	uint64_t hole = prefix_home_of(p, tag);

	while (p->table[hole] != entry) {
		must(p->table[hole]);
		hole = (hole + 1) & p->mask;
	}
	/* What follows moves up if its home lies at or before the hole (cyclically). */
	for (uint64_t at = (hole + 1) & p->mask; p->table[at]; at = (at + 1) & p->mask) {
		uint64_t home = prefix_home_of(p, (uint32_t)(p->table[at] >> 32));

		if (((at - home) & p->mask) >= ((at - hole) & p->mask)) {
			p->table[hole] = p->table[at];
			hole = at;
		}
	}
	p->table[hole] = 0;
}

/* ---- nodes ---- */

static uint32_t child_position(const struct node *above)
{
	return above->kind == NODE_ROOT ? 0 : above->position + 1;
}

static uint32_t node_take(struct prefix *p)
{
	uint32_t at = p->first_free;

	if (at != NODE_NONE) {
		p->first_free = p->nodes[at].next_free;
	} else {
		if (p->fresh == p->capacity)
			return NODE_NONE;
		at = p->fresh++;
	}
	p->used++;
	p->nodes[at] = (struct node){
	    .id = ++p->next_id,
	    .parent = NODE_NONE,
	    .copies = {COPY_NONE, COPY_NONE, COPY_NONE},
	    .run = RUN_NONE,
	    .state = STATE_NONE,
	    .ram_above = NODE_NONE,
	    .ram_below = NODE_NONE,
	};
	return at;
}

static bool has_copy(const struct node *n)
{
	return n->copies[TIER_DEVICE] != COPY_NONE || n->copies[TIER_RAM] != COPY_NONE ||
	       n->copies[TIER_DISK] != COPY_NONE;
}

static void forget_child(struct prefix *p, uint32_t parent, uint32_t length)
{
	struct node *n = &p->nodes[parent];

	must(n->children > 0);
	n->children--;
	if (length == p->page_tokens)
		return;
	must(n->partials > 0);
	if (--n->partials == 0)
		n->partial_lengths = 0;
}

/* Free the node if nothing keeps it, then its ancestors: a loop, chains are long. */
static void node_settle(struct prefix *p, uint32_t node)
{
	while (node != NODE_NONE) {
		struct node *n = &p->nodes[node];
		uint32_t parent = n->parent;

		must(n->kind != NODE_FREE);
		if (n->users || n->kept || n->kept_in_ram || n->parked || n->children ||
		    has_copy(n))
			return;
		must(n->state == STATE_NONE);
		must(n->run == RUN_NONE);
		table_remove(p, node);
		prefix_images_forget(p, n->images);
		if (n->kind == NODE_ROOT)
			p->roots--;
		n->kind = NODE_FREE;
		n->next_free = p->first_free;
		p->first_free = node;
		p->used--;
		if (parent != NODE_NONE) {
			forget_child(p, parent, n->length);
		}
		node = parent;
	}
}

bool prefix_is_page(const struct prefix *p, uint32_t node, struct key key, uint32_t parent,
		    const uint32_t *tokens, uint32_t n_tokens, const struct key_image *images,
		    uint32_t n_images)
{
	const struct node *n = &p->nodes[node];

	if (n->key.low != key.low || n->key.high != key.high)
		return false;
	if (!protection(tokens_decide))
		return true;
	return n->kind == NODE_TOKENS && n->parent == parent && n->length == n_tokens &&
	       !memcmp(prefix_tokens(p, node), tokens, n_tokens * sizeof(*tokens)) &&
	       prefix_images_equal(p, n, images, n_images);
}

uint32_t prefix_find_page(struct prefix *p, struct key key, uint32_t parent, const uint32_t *tokens,
			  uint32_t n_tokens, const struct key_image *images, uint32_t n_images)
{
	uint32_t tag = prefix_tag_of(key);

	for (uint64_t at = prefix_home_of(p, tag); p->table[at]; at = (at + 1) & p->mask) {
		uint32_t node = (uint32_t)p->table[at] - 1;

		if ((uint32_t)(p->table[at] >> 32) != tag)
			continue;
		if (prefix_is_page(p, node, key, parent, tokens, n_tokens, images, n_images))
			return node;
		if (p->nodes[node].key.low == key.low && p->nodes[node].key.high == key.high)
			p->collisions++;
	}
	return NODE_NONE;
}

int prefix_root(struct prefix *p, uint16_t name_space, const uint8_t variant[KEY_VARIANT_BYTES],
		bool make, uint32_t *out)
{
	static const uint8_t no_variant[KEY_VARIANT_BYTES];
	struct key key;
	uint32_t tag, node;
	uint32_t *text;

	if (!protection(namespaces_apart))
		name_space = 0;
	if (!protection(variants_apart))
		variant = no_variant;
	key = key_root(p->maker, name_space, p->stamp, p->epoch, variant);
	tag = prefix_tag_of(key);
	for (uint64_t at = prefix_home_of(p, tag); p->table[at]; at = (at + 1) & p->mask) {
		const struct node *n;

		node = (uint32_t)p->table[at] - 1;
		n = &p->nodes[node];
		text = p->tokens + (uint64_t)node * p->page_tokens;
		if ((uint32_t)(p->table[at] >> 32) != tag || n->kind != NODE_ROOT)
			continue;
		/* Position of a root: the epoch it belongs to. */
		if (n->name_space == name_space && n->position == (uint32_t)p->epoch &&
		    !memcmp(text, variant, KEY_VARIANT_BYTES)) {
			*out = node;
			return 0;
		}
		p->collisions += n->key.low == key.low && n->key.high == key.high;
	}
	*out = NODE_NONE;
	if (!make)
		return 0;
	node = node_take(p);
	if (node == NODE_NONE)
		return PREFIX_FULL;
	p->nodes[node].kind = NODE_ROOT;
	p->nodes[node].key = key;
	p->nodes[node].name_space = name_space;
	p->nodes[node].position = (uint32_t)p->epoch;
	memcpy(p->tokens + (uint64_t)node * p->page_tokens, variant, KEY_VARIANT_BYTES);
	table_insert(p, node);
	p->roots++;
	*out = node;
	return 0;
}

uint32_t prefix_find_partial(struct prefix *p, uint32_t parent, const uint32_t *tokens,
			     uint32_t n_tokens, const struct key_image *images, uint32_t n_images)
{
	const struct node *above = &p->nodes[parent];
	struct key key = key_page(p->maker, above->key, child_position(above) * p->page_tokens,
				  tokens, n_tokens, images, n_images);

	must(n_tokens > 0 && n_tokens < p->page_tokens);
	return prefix_find_page(p, key, parent, tokens, n_tokens, images, n_images);
}

int prefix_publish(struct prefix *p, uint32_t parent, const uint32_t *tokens, uint32_t n_tokens,
		   const struct key_image *images, uint32_t n_images, uint32_t *out)
{
	const struct node *above = &p->nodes[parent];
	uint32_t position = child_position(above);
	struct key key = key_page(p->maker, above->key, position * p->page_tokens, tokens, n_tokens,
				  images, n_images);
	uint32_t node = prefix_find_page(p, key, parent, tokens, n_tokens, images, n_images);
	uint32_t stored = 0;
	struct node *n;

	must(above->kind != NODE_FREE && n_tokens > 0 && n_tokens <= p->page_tokens);
	if (node != NODE_NONE) {
		*out = node;
		return PREFIX_KNOWN;
	}
	if (failpoint(prefix_node))
		return PREFIX_FULL;
	if (n_images && prefix_images_store(p, images, n_images, &stored))
		return PREFIX_FULL;
	node = node_take(p);
	if (node == NODE_NONE) {
		prefix_images_forget(p, stored);
		return PREFIX_FULL;
	}
	n = &p->nodes[node];
	n->kind = NODE_TOKENS;
	n->key = key;
	n->parent = parent;
	n->name_space = p->nodes[parent].name_space;
	n->length = (uint8_t)n_tokens;
	n->position = position;
	n->images = stored;
	memcpy(p->tokens + (uint64_t)node * p->page_tokens, tokens, n_tokens * sizeof(*tokens));
	p->nodes[parent].children++;
	if (n_tokens < p->page_tokens) {
		p->nodes[parent].partials++;
		p->nodes[parent].partial_lengths |= 1ull << (n_tokens - 1);
	}
	table_insert(p, node);
	*out = node;
	return PREFIX_NEW;
}

void prefix_abandon(struct prefix *p, uint32_t node)
{
	node_settle(p, node);
}

void prefix_put_copy(struct prefix *p, uint32_t node, enum tier tier, uint32_t place)
{
	struct node *n = &p->nodes[node];

	must(n->kind != NODE_FREE && n->kind != NODE_ROOT);
	must(n->copies[tier] == COPY_NONE && place != COPY_NONE);
	n->copies[tier] = place;
	n->moves &= (uint8_t)~NODE_LOST;
	p->nodes[n->parent].children_in[tier]++;
}

static void forget_copy(struct prefix *p, uint32_t parent, enum tier tier)
{
	must(p->nodes[parent].children_in[tier] > 0);
	p->nodes[parent].children_in[tier]--;
}

static void forget_leaving(struct prefix *p, uint32_t parent)
{
	must(p->nodes[parent].children_leaving > 0);
	p->nodes[parent].children_leaving--;
}

void prefix_drop_copy(struct prefix *p, uint32_t node, enum tier tier)
{
	struct node *n = &p->nodes[node];

	must(n->copies[tier] != COPY_NONE);
	must(tier != TIER_DEVICE || n->children_leaving == 0 || !protection(parents_stay));
	must(tier != TIER_DEVICE || (n->users == 0 && n->kept == 0) || n->moves & NODE_FAILED ||
	     !protection(used_pages_stay));
	must(n->children_in[tier] == 0 || !protection(parents_stay));
	n->copies[tier] = COPY_NONE;
	if (n->moves & NODE_FAILED && !has_copy(n))
		n->moves |= NODE_LOST;
	if (tier == TIER_DEVICE && n->moves & NODE_LEAVING)
		forget_leaving(p, n->parent);
	else
		forget_copy(p, n->parent, tier);
	n->moves &= tier == TIER_DEVICE ? (uint8_t) ~(NODE_LEAVING | NODE_FILLING | NODE_FAILED |
						      NODE_TRIED | NODE_TRIED_AGAIN)
					: (uint8_t) ~(NODE_FILLING_RAM | NODE_SPOILT_RAM);
	node_settle(p, node);
}

void prefix_leave(struct prefix *p, uint32_t node)
{
	struct node *n = &p->nodes[node];

	must(n->copies[TIER_DEVICE] != COPY_NONE && !(n->moves & NODE_LEAVING));
	n->moves |= NODE_LEAVING;
	forget_copy(p, n->parent, TIER_DEVICE);
	p->nodes[n->parent].children_leaving++;
}

void prefix_stay(struct prefix *p, uint32_t node)
{
	struct node *n = &p->nodes[node];

	must(n->moves & NODE_LEAVING);
	n->moves &= (uint8_t)~NODE_LEAVING;
	forget_leaving(p, n->parent);
	p->nodes[n->parent].children_in[TIER_DEVICE]++;
}

bool prefix_hold(struct prefix *p, uint32_t node)
{
	must(p->nodes[node].kind != NODE_FREE);
	must(p->nodes[node].users < UINT32_MAX);
	return p->nodes[node].users++ == 0 && p->nodes[node].parent != NODE_NONE;
}

uint32_t prefix_release(struct prefix *p, uint32_t node)
{
	struct node *n = &p->nodes[node];
	uint32_t parent = n->parent;

	must(n->kind != NODE_FREE && n->users > 0);
	if (--n->users)
		return NODE_NONE;
	node_settle(p, node);
	return parent;
}

void prefix_park(struct prefix *p, uint32_t node)
{
	must(p->nodes[node].kind != NODE_FREE && p->nodes[node].parked < UINT32_MAX);
	p->nodes[node].parked++;
}

bool prefix_unpark(struct prefix *p, uint32_t node)
{
	must(p->nodes[node].kind != NODE_FREE && p->nodes[node].parked > 0);
	p->nodes[node].parked--;
	node_settle(p, node);
	return p->nodes[node].kind != NODE_FREE;
}

static uint32_t *kept_in(struct node *n, enum tier tier)
{
	return tier == TIER_RAM ? &n->kept_in_ram : &n->kept;
}

bool prefix_keep(struct prefix *p, uint32_t node, enum tier tier)
{
	uint32_t *kept = kept_in(&p->nodes[node], tier);

	must(p->nodes[node].kind != NODE_FREE);
	must(*kept < UINT32_MAX);
	return (*kept)++ == 0 && p->nodes[node].parent != NODE_NONE;
}

uint32_t prefix_unkeep(struct prefix *p, uint32_t node, enum tier tier)
{
	struct node *n = &p->nodes[node];
	uint32_t *kept = kept_in(n, tier);
	uint32_t parent = n->parent;

	must(n->kind != NODE_FREE && *kept > 0);
	if (--*kept)
		return NODE_NONE;
	node_settle(p, node);
	return parent;
}
