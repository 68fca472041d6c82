/* SPDX-License-Identifier: Apache-2.0 */
/* ram_look: what must hold in ram_world.h: bytes, records, sums. */
#include "tests/unit/ram_world.h"

#include "daemon/tier/ram_internal.h"
#include "daemon/tier/record.h"

void ram_world_fill(void *page, uint64_t bytes, uint64_t key)
{
	uint64_t *words = page;

	for (uint64_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = key + i;
}

static bool is_filled(const void *page, uint64_t bytes, uint64_t key)
{
	const uint64_t *words = page;

	for (uint64_t i = 0; i < bytes / sizeof(*words); i++) {
		if (words[i] != key + i)
			return false;
	}
	return true;
}

static char *page_at(const struct ram_world_pool *p, uint32_t page)
{
	return (char *)p->memory.segment.memory + page * p->geometry.page_stride;
}

void ram_world_fill_node(struct ram_world *w, uint32_t pool, uint32_t node)
{
	const struct ram_world_pool *p = &w->pools[pool];
	const struct node *n = &p->pool.prefix.nodes[node];

	ram_world_fill(page_at(p, n->copies[TIER_DEVICE]), p->geometry.page_stride, n->key.low);
}

static char *place_at(const struct ram_world *w, uint32_t object)
{
	return w->arena->memory + frames_piece(w->arena->frames, object, 0).offset;
}

static const char *wrong_bytes(const struct ram_world *w, const struct ram_world_pool *p)
{
	uint64_t bytes = p->geometry.page_stride;

	for (uint32_t i = 0; i < p->pool.prefix.fresh; i++) {
		const struct node *n = &p->pool.prefix.nodes[i];

		if (n->kind != NODE_TOKENS)
			continue;
		if (node_is_on_device(n) &&
		    !is_filled(page_at(p, n->copies[TIER_DEVICE]), bytes, n->key.low))
			return "in a page are not the bytes of its node";
		if (node_is_in_ram(n) &&
		    !is_filled(place_at(w, n->copies[TIER_RAM]), bytes, n->key.low))
			return "in a place of KV-RAM are not the bytes of its page";
	}
	return NULL;
}

uint64_t ram_world_image_key(const struct ram_world_pool *p, uint32_t node)
{
	return p->pool.prefix.nodes[node].key.low * 3 + 1;
}

static void *slot_at(const struct ram_world_pool *p, uint32_t slot)
{
	return (char *)p->memory.retained.memory + slot * p->ram.image_bytes;
}

void ram_world_fill_image(struct ram_world *w, uint32_t pool, uint32_t image)
{
	const struct ram_world_pool *p = &w->pools[pool];
	const struct image *it = &p->pool.images.image[image];
	uint64_t key = ram_world_image_key(p, it->node);

	if (it->slot != SLOT_NONE) {
		ram_world_fill(slot_at(p, it->slot), p->ram.image_bytes, key);
		return;
	}
	for (uint32_t i = 0; i < ram_image_pieces(&p->ram, it->place); i++) {
		struct frames_piece piece = ram_image_piece(&p->ram, it->place, i);

		ram_world_fill(w->arena->memory + piece.offset, piece.bytes, key);
		key += piece.bytes / sizeof(key);
	}
}

bool ram_world_has_image(const struct ram_world *w, uint32_t pool, uint32_t node, uint32_t slot,
			 uint32_t place)
{
	const struct ram_world_pool *p = &w->pools[pool];
	uint64_t key = ram_world_image_key(p, node);

	if (place == COPY_NONE)
		return is_filled(slot_at(p, slot), p->ram.image_bytes, key);
	for (uint32_t i = 0; i < ram_image_pieces(&p->ram, place); i++) {
		struct frames_piece piece = ram_image_piece(&p->ram, place, i);

		if (!is_filled(w->arena->memory + piece.offset, piece.bytes, key))
			return false;
		key += piece.bytes / sizeof(key);
	}
	return true;
}

/* Have the bytes of an image come to its place? */
static bool is_below(const struct image *it)
{
	return it->place != COPY_NONE && it->state != IMAGE_FILLING && !it->spilling;
}

static const char *wrong_images(const struct ram_world *w, uint32_t pool)
{
	const struct images *s = &w->pools[pool].pool.images;

	for (uint32_t i = 0; i < s->n_images; i++) {
		const struct image *it = &s->image[i];

		if (it->state == IMAGE_FREE || it->state == IMAGE_FILLING)
			continue;
		if (it->slot != SLOT_NONE &&
		    !ram_world_has_image(w, pool, it->node, it->slot, COPY_NONE))
			return "in a slot are not the bytes of its image";
		if (is_below(it) && !ram_world_has_image(w, pool, it->node, SLOT_NONE, it->place))
			return "in a place of KV-RAM are not the bytes of its image";
	}
	return NULL;
}

struct scan {
	const struct ram_world *w;
	const char *wrong;
};

static const char *wrong_extents(const struct ram_world *w, uint32_t object, const struct record *r,
				 const struct record_parts *parts)
{
	uint32_t n = frames_pieces(w->arena->frames, object);

	if (r->n_extents != n)
		return "a record says more places, or fewer";
	for (uint32_t i = 0; i < n; i++) {
		struct frames_piece piece = frames_piece(w->arena->frames, object, i);

		if (parts->extents[i].offset != piece.offset ||
		    parts->extents[i].bytes != piece.bytes)
			return "a record says another place";
	}
	return NULL;
}

static const char *wrong_image_record(const struct ram_world_pool *p, uint32_t image,
				      enum record_state state, const struct record *r)
{
	const struct image *it = &p->pool.images.image[image];
	const struct node *n = &p->pool.prefix.nodes[it->node];

	if (state != (is_below(it) ? RECORD_VALID : RECORD_FILLING))
		return "the record of an image does not say whether its bytes are there";
	if (r->kind != RECORD_IMAGE || r->id != it->id || r->parent_id != n->id ||
	    r->position != it->tokens || r->n_tokens || r->n_spans)
		return "the record of an image names another one";
	return r->payload_bytes == p->ram.image_bytes ? NULL : "an image has other bytes";
}

static const char *wrong_page_record(const struct ram_world_pool *p, uint32_t node,
				     enum record_state state, const struct record *r,
				     const struct record_parts *parts)
{
	const struct prefix *x = &p->pool.prefix;
	const struct node *n = &x->nodes[node];
	const struct prefix_images *images = n->images ? &x->images[n->images - 1] : NULL;

	if (state != (node_is_in_ram(n) ? RECORD_VALID : RECORD_FILLING))
		return "a record does not say whether its bytes are there";
	if (r->kind != RECORD_PAGE || r->id != n->id || r->parent_id != x->nodes[n->parent].id ||
	    r->position != n->position)
		return "a record names another page";
	if (r->n_tokens != n->length ||
	    memcmp(parts->tokens, prefix_tokens(x, node), n->length * sizeof(uint32_t)))
		return "a record has other tokens";
	if (r->n_spans != (images ? images->n : 0) ||
	    (images && memcmp(parts->spans, images->image, images->n * sizeof(*images->image))))
		return "a record has other images";
	return r->payload_bytes == p->geometry.page_stride ? NULL : "a page has other bytes";
}

static const char *wrong_record(const struct ram_world *w, uint32_t object, enum record_state state,
				const struct record *r, const struct record_parts *parts)
{
	const struct ram_object *o = &w->ram->objects[object];
	const struct ram_world_pool *p = (const void *)o->pool;
	const struct prefix *x = &p->pool.prefix;
	const struct node *n = &x->nodes[o->node];
	const char *wrong = o->image == IMAGE_NONE ? wrong_page_record(p, o->node, state, r, parts)
						   : wrong_image_record(p, o->image, state, r);

	if (wrong)
		return wrong;
	if (r->boot_nonce != 77 || r->parent_nonce != 77 || r->key[0] != n->key.low ||
	    r->key[1] != n->key.high || r->epoch != x->epoch)
		return "a record is of another daemon, or has another key";
	if (memcmp(r->stamp, x->stamp, 16) ||
	    memcmp(r->name_space, w->ram->shares[n->name_space].digest, 16))
		return "a record is of another pool or namespace";
	return wrong_extents(w, object, r, parts);
}

static void visit(void *context, uint64_t index, enum record_state state, int wrong,
		  const struct record *r, const struct record_parts *parts)
{
	struct scan *s = context;

	if (s->wrong)
		return;
	if (wrong)
		s->wrong = "a record cannot be read";
	else if (!s->w->ram->objects[index].pool)
		s->wrong = "a record is left where nothing lies";
	else
		s->wrong = wrong_record(s->w, (uint32_t)index, state, r, parts);
}

/* Pages that wait for their turn to be copied have no record yet. */
static uint64_t not_begun(const struct ram_world *w)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < w->n_pools; i++) {
		const struct ram_queue *q = &w->pools[i].ram.down;

		for (uint32_t at = q->sent; at != q->asked; at++) {
			const struct ram_item *item = &q->items[at & q->mask];

			n += item->node != NODE_NONE &&
			     record_state(arena_header(w->arena, item->place)) == RECORD_FREE;
		}
	}
	return n;
}

static const char *wrong_records(struct ram_world *w)
{
	struct scan s = {.w = w};
	uint64_t n = record_scan(w->arena->headers, w->arena->most_objects, visit, &s);

	if (!s.wrong && n + not_begun(w) != frames_sums(w->arena->frames).objects)
		return "something lies in KV-RAM without a record";
	return s.wrong;
}

static const char *wrong_shares(const struct ram *r)
{
	for (uint32_t ns = 0; ns < RETAIN_NAMESPACES; ns++) {
		const struct ram_share *share = &r->shares[ns];

		if (share->quota_bytes && share->used_bytes > share->quota_bytes)
			return "a namespace has more than its quota";
	}
	return NULL;
}

const char *ram_world_wrong(struct ram_world *w, bool bytes)
{
	const char *wrong = ram_check(w->ram);

	if (!wrong)
		wrong = wrong_shares(w->ram);
	if (!wrong && bytes)
		wrong = wrong_records(w);
	for (uint32_t i = 0; i < w->n_pools && !wrong; i++) {
		/* That of the learned order takes long. */
		wrong = pool_check(&w->pools[i].pool, bytes || !w->pools[i].pool.retain.learned);
		if (!wrong && bytes)
			wrong = wrong_bytes(w, &w->pools[i]);
		if (!wrong && bytes)
			wrong = wrong_images(w, i);
	}
	return wrong;
}

void ram_world_check(struct ram_world *w)
{
	const char *wrong = ram_world_wrong(w, true);

	if (wrong)
		fail_msg("%s", wrong);
}
