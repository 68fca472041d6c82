/* SPDX-License-Identifier: Apache-2.0 */
/* ram: places in KV-RAM, and who gives one up; see ram.h. Core thread; nothing here blocks. */
#include "daemon/tier/ram.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/tier/ram_internal.h"
#include "daemon/tier/record.h"

#define NS_PER_SECOND 1e9

/* ---- how much for what ---- */

/* If the arena is of so many frames, and the rest is to know its pages by. */
static uint64_t pages_with(uint64_t frames, uint64_t bytes, uint64_t page_bytes)
{
	uint64_t places = frames * FRAME_BYTES / page_bytes;
	uint64_t known = (bytes - frames * FRAME_BYTES) / RAM_KNOWN_BYTES;

	return places < known ? places : known;
}

struct ram_parts ram_divide(uint64_t bytes, uint64_t page_bytes)
{
	uint64_t objects = bytes / (page_bytes + RAM_KNOWN_BYTES);
	uint64_t arena_bytes = bytes - objects * RAM_KNOWN_BYTES;
	uint64_t frames = arena_bytes / FRAME_BYTES;

	/* Without the frame that is not filled its places are lost, with it what others need to be
	 * known. */
	if ((frames + 1) * FRAME_BYTES <= bytes &&
	    pages_with(frames + 1, bytes, page_bytes) > pages_with(frames, bytes, page_bytes)) {
		arena_bytes = (frames + 1) * FRAME_BYTES;
		objects = (bytes - arena_bytes) / RAM_KNOWN_BYTES;
	}
	return (struct ram_parts){
	    .arena_bytes = arena_bytes,
	    .objects = objects < OBJECT_NONE ? (uint32_t)objects : OBJECT_NONE - 1,
	};
}

uint64_t ram_least(uint64_t page_bytes)
{
	return page_bytes < FRAME_BYTES ? FRAME_BYTES + RAM_KNOWN_BYTES : page_bytes;
}

int ram_new(struct arena *arena, uint64_t boot_nonce, struct ram **out)
{
	struct ram *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->arena = arena;
	r->boot_nonce = boot_nonce;
	r->most = arena->most_objects;
	list_init(&r->pools);
	r->objects = mmap(NULL, r->most * sizeof(*r->objects), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->objects == MAP_FAILED) {
		free(r);
		return -ENOMEM;
	}
	*out = r;
	return 0;
}

void ram_free(struct ram **r)
{
	if (!*r)
		return;
	must(list_is_empty(&(*r)->pools) && (*r)->used_bytes == 0);
	munmap((*r)->objects, (*r)->most * sizeof(*(*r)->objects));
	free(*r);
	*r = NULL;
}

void ram_set_share(struct ram *r, uint16_t name_space, uint64_t quota_bytes,
		   uint64_t guaranteed_bytes, const uint8_t digest[16])
{
	struct ram_share *share = &r->shares[name_space];

	must(list_is_empty(&r->pools));
	share->quota_bytes = quota_bytes;
	share->guaranteed_bytes = guaranteed_bytes;
	memcpy(share->digest, digest, sizeof(share->digest));
	r->has_rules |= quota_bytes || guaranteed_bytes;
}

/* ---- places ---- */

static void enter(struct ram_pool *rp, uint32_t object, uint32_t node, uint32_t image, uint16_t ns)
{
	struct ram *r = rp->ram;

	must(object < r->most && !r->objects[object].pool);
	/* What a state has taken is given back if not all of it can be had: it is not moved before.
	 */
	frames_pin(r->arena->frames, object);
	r->objects[object] = (struct ram_object){
	    .pool = rp, .node = node, .image = image, .fresh = true, .name_space = ns};
	r->used_bytes += ram_bytes_of(rp, image);
	rp->used_bytes += ram_bytes_of(rp, image);
	r->shares[ns].used_bytes += ram_bytes_of(rp, image) + RAM_KNOWN_BYTES;
}

void ram_bytes_come(struct ram *r, uint32_t object)
{
	if (r->objects[object].fresh)
		frames_unpin(r->arena->frames, object);
	r->objects[object].fresh = false;
}

/* Whose place the newcomer may have, so that it fits or, over its quota, so that it may; NULL
 * pool: nobody's. */
static struct ram_candidate victim_for(const struct ram_candidate *newcomer, uint64_t own,
				       enum pool_need need, bool over)
{
	const struct ram_pool *rp = newcomer->pool;
	struct ram_candidate victim = ram_weakest(
	    rp, over ? own : UINT64_MAX,
	    over || newcomer->image != IMAGE_NONE ? RAM_ALL_HELP : RAM_THOSE_WITH_ROOM_HELP);

	/* Over its quota it may only take the place of what is its own. */
	if (over)
		victim.claim = newcomer->claim;
	/* What is live goes before all that is retained. */
	if (!victim.pool || need == POOL_NEED_LIVE || ram_is_weaker(rp->ram, &victim, newcomer) ||
	    !protection(only_what_ranks_below_goes))
		return victim;
	/* What it must have it takes from its own: what stands on it is there. */
	return need == POOL_NEED_HEAD ? ram_weakest(rp, own, RAM_OWN_HELP)
				      : (struct ram_candidate){0};
}

enum refusal { /* why nothing makes room */
	       REFUSED_BY_RANK,
	       REFUSED_BY_QUOTA,
	       REFUSED_BUSY, /* what could is in use, or on its way */
};

/* What must have a place waits for one. States are counted as a whole, by their pool. */
static int refuse_place(struct ram_pool *rp, enum pool_need need, enum refusal why)
{
	struct pool_stats *s = &rp->pool->stats;

	if (need >= POOL_NEED_HEAD)
		return POOL_WAIT;
	if (rp->pool->hybrid)
		return POOL_NEVER;
	s->ram_refused_quota += why == REFUSED_BY_QUOTA;
	if (why == REFUSED_BY_RANK && !ram_weakest(rp, UINT64_MAX, RAM_THOSE_WITH_ROOM_HELP).pool)
		why = REFUSED_BUSY;
	s->ram_refused_busy += why == REFUSED_BUSY;
	return POOL_NEVER;
}

static int place_for(struct ram_candidate *newcomer, uint16_t ns, enum pool_need need,
		     uint32_t *object)
{
	struct ram_pool *rp = newcomer->pool;
	struct ram *r = rp->ram;
	uint64_t bytes = ram_bytes_of(rp, newcomer->image) + RAM_KNOWN_BYTES;
	int size = newcomer->image == IMAGE_NONE ? rp->size : rp->image_size;
	bool must_have = need >= POOL_NEED_HEAD;
	enum refusal why = REFUSED_BY_RANK;

	for (uint32_t i = 0; i < ram_victims_for(newcomer); i++) {
		struct ram_candidate victim = {0};
		bool over;
		int result;

		/* What its namespace has given up for it counts no more; what is live is no
		 * retained room. */
		if (need != POOL_NEED_LIVE)
			newcomer->claim = ram_claim_of(r, ns, bytes);
		over = need != POOL_NEED_LIVE && newcomer->claim == RAM_OVER_QUOTA;
		result = over ? FRAMES_FULL : frames_take(r->arena->frames, size, object);
		if (result == 0)
			return 0;
		if (result == FRAMES_SPREAD && !r->relocation_fails) {
			ram_relocate(rp, size);
			return r->n_plan ? POOL_WAIT : refuse_place(rp, need, REFUSED_BUSY);
		}
		/* Moves fail: it may be that they do no longer; nobody waits for that. */
		if (result == FRAMES_SPREAD)
			ram_relocate(rp, size);
		if (result == FRAMES_FULL)
			victim = victim_for(newcomer, 1ull << ns, need, over);
		else if (must_have)
			victim = ram_weakest(rp, 1ull << ns, RAM_OWN_HELP);
		ram_tell_displaced(newcomer, need, &victim, false);
		if (over)
			why = REFUSED_BY_QUOTA;
		else if (result == FRAMES_SPREAD)
			why = REFUSED_BUSY;
		if (!victim.pool)
			return refuse_place(rp, need, why);
		ram_give_up(&victim);
	}
	return refuse_place(rp, need, why);
}

static int ram_take(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	struct ram_pool *rp = context;
	uint16_t ns = rp->pool->prefix.nodes[node].name_space;
	struct ram_candidate newcomer = {
	    .pool = rp,
	    .node = node,
	    .image = IMAGE_NONE,
	    .rank = rp->pool->hybrid ? rp->planned : retain_rank(&rp->pool->retain, node)};
	int r = POOL_WAIT;

	if (need != POOL_NEED_LIVE || ram_may_take_live(rp, 1))
		r = place_for(&newcomer, ns, need, place);
	if (r == 0)
		enter(rp, *place, node, IMAGE_NONE, ns);
	return r;
}

static int ram_take_image(void *context, uint32_t image, enum pool_need need, uint32_t *place)
{
	struct ram_pool *rp = context;
	const struct image *it = &rp->pool->images.image[image];
	struct ram_candidate newcomer = ram_newcomer(rp, image);
	int r = place_for(&newcomer, it->name_space, need, place);

	rp->planned = newcomer.rank;
	if (r == 0)
		enter(rp, *place, it->node, image, it->name_space);
	return r;
}

static int ram_take_private(void *context, uint16_t name_space, uint32_t *place)
{
	struct ram_pool *rp = context;
	struct ram_candidate newcomer = {
	    .pool = rp, .node = NODE_NONE, .image = IMAGE_NONE, .claim = RAM_GUARANTEED};
	int r = POOL_WAIT;

	if (ram_may_take_live(rp, 1))
		r = place_for(&newcomer, name_space, POOL_NEED_LIVE, place);
	if (r)
		return r;
	enter(rp, *place, NODE_NONE, IMAGE_NONE, name_space);
	return 0;
}

static bool ram_is_full(void *context)
{
	struct ram_pool *rp = context;
	struct ram_candidate newcomer = {
	    .pool = rp, .node = NODE_NONE, .image = IMAGE_NONE, .claim = RAM_GUARANTEED};
	uint32_t object;

	/* What others move is of no use to it then. */
	if (!ram_may_take_live(rp, 1))
		return true;
	list_for_each(link, following, &rp->ram->pools)
	{
		if (!ram_pool_is_quiet(list_entry(link, struct ram_pool, in_ram)))
			return false;
	}
	/* Nobody waits for moves that are tried again because they may fail no longer. */
	if (place_for(&newcomer, 0, POOL_NEED_LIVE, &object))
		return rp->ram->n_plan == 0 || rp->ram->relocation_fails;
	frames_give(rp->ram->arena->frames, object);
	return false;
}

static void ram_give(void *context, uint32_t place)
{
	struct ram_pool *rp = context;
	struct ram *r = rp->ram;
	struct ram_object *o = &r->objects[place];
	struct ram_share *share = &r->shares[o->name_space];

	uint64_t bytes = ram_bytes_of(rp, o->image);

	must(o->pool == rp && r->used_bytes >= bytes && rp->used_bytes >= bytes);
	must(share->used_bytes >= bytes + RAM_KNOWN_BYTES);
	r->used_bytes -= bytes;
	rp->used_bytes -= bytes;
	share->used_bytes -= bytes + RAM_KNOWN_BYTES;
	record_set_state(arena_header(r->arena, place), RECORD_FREE);
	ram_bytes_come(r, place);
	frames_give(r->arena->frames, place);
	*o = (struct ram_object){0};
}

/* ---- pools ---- */

static int queue_init(struct ram_queue *q, struct ram_pool *rp, uint32_t pages, bool up)
{
	uint32_t room = 64;

	while (room < pages && room < 1u << 30)
		room *= 2;
	q->items = malloc(room * sizeof(*q->items));
	if (!q->items)
		return -ENOMEM;
	q->mask = room - 1;
	for (int i = 0; i < RAM_JOBS; i++) {
		q->jobs[i].pool = rp;
		q->jobs[i].up = up;
	}
	return 0;
}

static uint64_t pieces_of(uint64_t bytes)
{
	return (bytes + FRAME_BYTES - 1) / FRAME_BYTES;
}

int ram_pool_init(struct ram_pool *rp, struct ram *r, struct pool *pool, struct device *device,
		  struct device_memory *memory, uint64_t image_bytes, void (*moved)(void *context),
		  void *context)
{
	uint64_t bytes = memory->geometry->page_stride;
	int size, image_size = -1;

	*rp = (struct ram_pool){0};
	if (pieces_of(bytes) > RAM_PIECES_MAX || pieces_of(image_bytes) > RECORD_EXTENTS_MAX)
		return -E2BIG;
	if (bytes > r->arena->bytes || image_bytes > r->arena->bytes)
		return -ENOSPC;
	size = frames_size(r->arena->frames, bytes);
	if (size < 0)
		return size;
	if (image_bytes)
		image_size = frames_size(r->arena->frames, image_bytes);
	if (image_bytes && image_size < 0) {
		frames_forget_size(r->arena->frames, size);
		return image_size;
	}
	*rp = (struct ram_pool){.ram = r,
				.pool = pool,
				.device = device,
				.memory = memory,
				.below = {.take = ram_take,
					  .take_image = ram_take_image,
					  .plan = ram_plan,
					  .spill = ram_spill,
					  .give = ram_give,
					  .take_private = ram_take_private,
					  .room = ram_room,
					  .is_full = ram_is_full,
					  .down = ram_down,
					  .up = ram_up,
					  .move_private = ram_move_private,
					  .orphan = ram_orphan,
					  .context = rp},
				.size = size,
				.image_size = image_size,
				.page_bytes = bytes,
				.image_bytes = image_bytes,
				.moves_a_page = (uint32_t)pieces_of(bytes),
				.rated_ns = r->now_ns,
				.rated_tick = pool->retain.tick,
				.moved = moved,
				.context = context};
	list_init(&rp->spills.waiting);
	rp->spills.image = IMAGE_NONE;
	list_append(&r->pools, &rp->in_ram);
	if (queue_init(&rp->down, rp, pool->limits.pages, false) ||
	    queue_init(&rp->up, rp, pool->limits.pages, true)) {
		ram_pool_deinit(rp);
		return -ENOMEM;
	}
	memory->arena = r->arena->memory;
	memory->arena_bytes = r->arena->bytes;
	pool->below = &rp->below;
	return 0;
}

void ram_pool_deinit(struct ram_pool *rp)
{
	must(rp->used_bytes == 0 && rp->in_flight == 0);
	if (rp->ram)
		frames_forget_size(rp->ram->arena->frames, rp->size);
	if (rp->ram && rp->image_bytes)
		frames_forget_size(rp->ram->arena->frames, rp->image_size);
	ram_pool_abandon(rp);
}

void ram_pool_abandon(struct ram_pool *rp)
{
	if (!rp->ram)
		return;
	must(rp->in_flight == 0);
	rp->ram->used_bytes -= rp->used_bytes;
	rp->pool->below = NULL;
	list_remove(&rp->in_ram);
	free(rp->down.items);
	free(rp->up.items);
	*rp = (struct ram_pool){0};
}

void ram_rate(struct ram_pool *rp, uint64_t now_ns)
{
	uint64_t past_ns = now_ns - rp->rated_ns;
	uint64_t opens = rp->pool->retain.tick - rp->rated_tick;

	if (past_ns < (uint64_t)NS_PER_SECOND)
		return;
	rp->opens_per_s = (rp->opens_per_s + (double)opens * NS_PER_SECOND / (double)past_ns) / 2;
	rp->rated_ns = now_ns;
	rp->rated_tick = rp->pool->retain.tick;
}

/* ---- checks ---- */

static const char *check_object(const struct ram *r, uint32_t i)
{
	const struct ram_object *o = &r->objects[i];
	enum record_state state = record_state(arena_header(r->arena, i));
	const struct pool *p = o->pool->pool;
	const struct node *n;

	if (o->image != IMAGE_NONE)
		return p->images.image[o->image].place == i
			   ? NULL
			   : "a state and the place of its image do not name each other";
	if (o->node == NODE_NONE)
		return state == RECORD_FREE ? NULL
					    : "a private page has a record that would be served";
	n = &p->prefix.nodes[o->node];
	if (n->kind == NODE_FREE || n->copies[TIER_RAM] != i)
		return "a node and its place in KV-RAM do not name each other";
	return (state == RECORD_VALID) == node_is_in_ram(n)
		   ? NULL
		   : "a record does not say whether its bytes are there";
}

static const char *check_pools(const struct ram *r)
{
	list_for_each(link, following, (struct list *)(uintptr_t)&r->pools)
	{
		const struct ram_pool *rp = list_entry(link, struct ram_pool, in_ram);

		if (rp->used_bytes !=
		    (rp->pool->in_ram + rp->pool->in_ram_private) * rp->page_bytes +
			rp->pool->images.in_ram * rp->image_bytes)
			return "a pool has other bytes in KV-RAM than pages and images there";
	}
	return NULL;
}

const char *ram_check(const struct ram *r)
{
	uint64_t used = 0, objects = 0, by_namespace[RETAIN_NAMESPACES] = {0};
	const char *wrong;

	for (uint32_t i = 0; i < r->most && objects < frames_sums(r->arena->frames).objects; i++) {
		const struct ram_object *o = &r->objects[i];

		if (!o->pool)
			continue;
		objects++;
		used += ram_bytes_of(o->pool, o->image);
		by_namespace[o->name_space] += ram_bytes_of(o->pool, o->image) + RAM_KNOWN_BYTES;
		wrong = check_object(r, i);
		if (wrong)
			return wrong;
	}
	if (objects != frames_sums(r->arena->frames).objects || used != r->used_bytes)
		return "the objects of the arena are not those of the pools";
	for (int ns = 0; ns < RETAIN_NAMESPACES; ns++) {
		if (by_namespace[ns] != r->shares[ns].used_bytes)
			return "a namespace is charged for other bytes in KV-RAM than it has";
	}
	wrong = check_pools(r);
	return wrong ? wrong : frames_check(r->arena->frames);
}
