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

/* ---- who goes ---- */

enum ram_claim { /* of a namespace on what it holds, the weakest first */
		 RAM_OVER_QUOTA = 0,
		 RAM_ABOVE_GUARANTEE,
		 RAM_GUARANTEED,
		 RAM_CLAIMS,
};

struct candidate {
	struct ram_pool *pool;
	uint32_t node;
	enum ram_claim claim;
	struct retain_rank rank;
};

/* With `more` bytes beside what it has. */
static enum ram_claim claim_of(const struct ram *r, uint16_t name_space, uint64_t more)
{
	const struct ram_share *share = &r->shares[name_space];
	uint64_t held = share->used_bytes + more;

	if (share->quota_bytes && held > share->quota_bytes && protection(quotas_are_kept))
		return RAM_OVER_QUOTA;
	return held > share->guaranteed_bytes || !protection(guarantees_are_kept)
		   ? RAM_ABOVE_GUARANTEE
		   : RAM_GUARANTEED;
}

/* What a page promises per second and byte: pools have clocks and page sizes of their own. */
static double worth(const struct ram *r, const struct candidate *c)
{
	double bytes = (double)ram_object_bytes(c->pool);
	double age_s;

	if (c->pool->pool->retain.learned)
		return c->rank.index * c->pool->opens_per_s / bytes;
	age_s = (double)(r->now_ns - c->rank.touched_ns) / NS_PER_SECOND;
	return 1 / ((age_s < 1e-6 ? 1e-6 : age_s) * bytes);
}

static bool is_weaker(const struct ram *r, const struct candidate *a, const struct candidate *b)
{
	if (a->claim != b->claim)
		return a->claim < b->claim;
	if (a->rank.interactive != b->rank.interactive)
		return b->rank.interactive;
	if (a->pool == b->pool)
		return retain_ranks_below(a->rank, b->rank);
	return worth(r, a) < worth(r, b);
}

static void consider(const struct ram *r, struct candidate *best, struct ram_pool *rp,
		     uint64_t namespaces, enum ram_claim claim)
{
	struct candidate c = {.pool = rp, .claim = claim};

	c.node = retain_next(&rp->pool->retain, TIER_RAM, namespaces, &c.rank);
	if (c.node != NODE_NONE && (best->node == NODE_NONE || is_weaker(r, &c, best)))
		*best = c;
}

/* Whose pages are of use for one of rp's? */
typedef bool helps_function(const struct ram_pool *rp, const struct ram_pool *other);

static bool all_help(const struct ram_pool *rp, const struct ram_pool *other)
{
	(void)rp;
	(void)other;
	return true;
}

static bool own_help(const struct ram_pool *rp, const struct ram_pool *other)
{
	return rp == other;
}

/* Other pools' pages are of other sizes: are enough of them in one slab's reach? */
static bool those_with_room_help(const struct ram_pool *rp, const struct ram_pool *other)
{
	return rp->size == other->size ||
	       frames_would_fit(rp->ram->arena->frames, rp->size, RAM_VICTIMS * other->page_bytes);
}

/* The weakest of some namespaces, in pools that help rp; node NODE_NONE: nothing can go now. */
static struct candidate weakest(const struct ram_pool *rp, uint64_t namespaces,
				helps_function *help)
{
	const struct ram *r = rp->ram;
	struct candidate best = {.node = NODE_NONE};
	uint64_t with_claim[RAM_CLAIMS] = {0};

	if (r->has_rules) {
		for (uint16_t ns = 0; ns < RETAIN_NAMESPACES; ns++) {
			if (namespaces >> ns & 1 && r->shares[ns].used_bytes)
				with_claim[claim_of(r, ns, 0)] |= 1ull << ns;
		}
	} else {
		with_claim[RAM_ABOVE_GUARANTEE] = namespaces;
	}
	for (int claim = 0; claim < RAM_CLAIMS && best.node == NODE_NONE; claim++) {
		if (!with_claim[claim])
			continue;
		list_for_each(link, following, (struct list *)(uintptr_t)&r->pools)
		{
			struct ram_pool *other = list_entry(link, struct ram_pool, in_ram);

			if (help(rp, other))
				consider(r, &best, other, with_claim[claim], (enum ram_claim)claim);
		}
	}
	return best;
}

/* ---- places ---- */

static void enter(struct ram_pool *rp, uint32_t object, uint32_t node, uint16_t ns)
{
	struct ram *r = rp->ram;
	must(object < r->most && !r->objects[object].pool);
	r->objects[object] = (struct ram_object){.pool = rp, .node = node, .name_space = ns};
	r->used_bytes += rp->page_bytes;
	rp->used_bytes += rp->page_bytes;
	r->shares[ns].used_bytes += ram_object_bytes(rp);
}

/* Whose place the newcomer may have, so that it fits or, over its quota, so that it may; node
 * NODE_NONE: nobody's. */
static struct candidate victim_for(const struct candidate *newcomer, uint64_t own,
				   enum pool_need need, bool over)
{
	const struct ram_pool *rp = newcomer->pool;
	struct candidate victim =
	    over ? weakest(rp, own, all_help) : weakest(rp, UINT64_MAX, those_with_room_help);

	/* Over its quota it may only take the place of what is its own. */
	if (over)
		victim.claim = newcomer->claim;
	/* What is live goes before all that is retained. */
	if (victim.node == NODE_NONE || need == POOL_NEED_LIVE ||
	    is_weaker(rp->ram, &victim, newcomer) || !protection(only_what_ranks_below_goes))
		return victim;
	/* What it must have it takes from its own: what stands on it is there. */
	return need ? weakest(rp, own, own_help) : (struct candidate){.node = NODE_NONE};
}

#ifdef KVHOST_TESTING
void (*ram_displace_hook)(const struct ram_pool *rp, uint32_t newcomer, enum pool_need need,
			  uint32_t victim);

static void tell_displaced(const struct ram_pool *rp, uint32_t node, enum pool_need need,
			   const struct candidate *victim)
{
	if (ram_displace_hook && node != NODE_NONE &&
	    (victim->node == NODE_NONE || victim->pool == rp))
		ram_displace_hook(rp, node, need, victim->node);
}
#else
static void tell_displaced(const struct ram_pool *rp, uint32_t node, enum pool_need need,
			   const struct candidate *victim)
{
	(void)rp;
	(void)node;
	(void)need;
	(void)victim;
}
#endif

static int place_for(struct ram_pool *rp, uint32_t node, uint16_t ns, enum pool_need need,
		     uint32_t *object)
{
	struct ram *r = rp->ram;
	struct candidate newcomer = {.pool = rp, .node = node};
	uint64_t bytes = ram_object_bytes(rp);
	int not_now = need ? POOL_WAIT : POOL_NEVER;

	if (node != NODE_NONE)
		newcomer.rank = retain_rank(&rp->pool->retain, node);
	newcomer.claim = claim_of(r, ns, bytes);
	for (uint32_t i = 0; i < RAM_VICTIMS; i++) {
		/* What is live is no retained room. */
		bool over = need != POOL_NEED_LIVE && claim_of(r, ns, bytes) == RAM_OVER_QUOTA;
		struct candidate victim = {.node = NODE_NONE};
		int result = over ? FRAMES_FULL : frames_take(r->arena->frames, rp->size, object);

		if (result == 0)
			return 0;
		if (result == FRAMES_SPREAD && !r->relocation_fails) {
			ram_relocate(rp);
			return r->n_plan ? POOL_WAIT : not_now;
		}
		/* Moves fail: it may be that they do no longer; nobody waits for that. */
		if (result == FRAMES_SPREAD)
			ram_relocate(rp);
		if (result == FRAMES_FULL)
			victim = victim_for(&newcomer, 1ull << ns, need, over);
		else if (need)
			victim = weakest(rp, 1ull << ns, own_help);
		tell_displaced(rp, node, need, &victim);
		if (victim.node == NODE_NONE)
			return not_now;
		victim.pool->pool->stats.ram_displaced++;
		pool_give_up_ram(victim.pool->pool, victim.node);
	}
	return not_now;
}

static uint64_t left(uint64_t all, uint64_t taken)
{
	return all > taken ? all - taken : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* That live sequences have here, at most. */
static uint64_t live_pages(const struct pool *p)
{
	return p->in_ram_private + p->parked;
}

struct promised { /* of KV-RAM, to live sequences */
	uint64_t pages, bytes;
};

static struct promised promised_to_others(const struct ram_pool *rp)
{
	struct promised sum = {0};

	list_for_each(link, following, &rp->ram->pools)
	{
		const struct ram_pool *other = list_entry(link, struct ram_pool, in_ram);
		const struct pool *p = other->pool;
		uint64_t pages = p->ceilings + p->surplus + p->pages.count[PAGE_QUARANTINED];

		if (other == rp)
			continue;
		pages = left(pages, p->limits.pages);
		if (p->limits.overcommit)
			pages = least(pages, live_pages(p));
		sum.pages += pages;
		sum.bytes += pages * ram_object_bytes(other);
	}
	return sum;
}

/* Slabs waste up to 6 %; a window of what moves is kept free, an eighth at most: through it pages
 * change places when both tiers are full of what was promised. */
static uint64_t left_by_others(const struct ram_pool *rp)
{
	const struct arena *a = rp->ram->arena;
	struct promised others = promised_to_others(rp);
	uint64_t bytes = a->arrived_bytes - a->arrived_bytes / 16;
	uint64_t window = RAM_JOBS * (RAM_JOB_BYTES + rp->page_bytes);
	uint64_t objects = least(RAM_JOBS * RAM_JOB_MOVES, a->most_objects / 8);

	bytes = left(bytes, others.bytes + least(window, bytes / 8));
	objects = left(a->most_objects, others.pages + (objects ? objects : 1));
	return least(bytes / ram_object_bytes(rp), objects);
}

static uint64_t ram_room(void *context)
{
	return left_by_others(context);
}

/* What is not promised takes nothing of what is: a pool that promises more than there is has no
 * more here than is left by the others. */
static bool may_take_live(const struct ram_pool *rp, uint64_t more)
{
	const struct pool *p = rp->pool;

	return !p->limits.overcommit || live_pages(p) + more <= left_by_others(rp);
}

static bool ram_is_full(void *context)
{
	struct ram_pool *rp = context;
	struct ram *r = rp->ram;
	uint32_t object;

	list_for_each(link, following, &r->pools)
	{
		if (!ram_pool_is_quiet(list_entry(link, struct ram_pool, in_ram)))
			return false;
	}
	if (!may_take_live(rp, 1))
		return true;
	if (place_for(rp, NODE_NONE, 0, POOL_NEED_LIVE, &object))
		return r->n_plan == 0;
	frames_give(r->arena->frames, object);
	return false;
}

static int ram_take(void *context, uint32_t node, enum pool_need need, uint32_t *place)
{
	struct ram_pool *rp = context;
	uint16_t ns = rp->pool->prefix.nodes[node].name_space;
	int r = POOL_WAIT;

	if (need != POOL_NEED_LIVE || may_take_live(rp, 0))
		r = place_for(rp, node, ns, need, place);
	if (r == 0)
		enter(rp, *place, node, ns);
	return r;
}

static int ram_take_private(void *context, uint16_t name_space, uint32_t *place)
{
	struct ram_pool *rp = context;
	int r = POOL_WAIT;

	if (may_take_live(rp, 1))
		r = place_for(rp, NODE_NONE, name_space, POOL_NEED_LIVE, place);
	if (r)
		return r;
	enter(rp, *place, NODE_NONE, name_space);
	frames_pin(rp->ram->arena->frames, *place);
	return 0;
}

static void ram_give(void *context, uint32_t place)
{
	struct ram_pool *rp = context;
	struct ram *r = rp->ram;
	struct ram_object *o = &r->objects[place];
	struct ram_share *share = &r->shares[o->name_space];

	must(o->pool == rp && r->used_bytes >= rp->page_bytes && rp->used_bytes >= rp->page_bytes);
	must(share->used_bytes >= ram_object_bytes(rp));
	r->used_bytes -= rp->page_bytes;
	rp->used_bytes -= rp->page_bytes;
	share->used_bytes -= ram_object_bytes(rp);
	record_set_state(arena_header(r->arena, place), RECORD_FREE);
	if (o->node == NODE_NONE)
		frames_unpin(r->arena->frames, place);
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

int ram_pool_init(struct ram_pool *rp, struct ram *r, struct pool *pool, struct device *device,
		  struct device_memory *memory, void (*moved)(void *context), void *context)
{
	uint64_t bytes = memory->geometry->page_stride;
	uint64_t pieces = (bytes + FRAME_BYTES - 1) / FRAME_BYTES;
	int size;

	*rp = (struct ram_pool){0};
	if (pieces > RAM_PIECES_MAX)
		return -E2BIG;
	size = bytes > r->arena->bytes ? -ENOSPC : frames_size(r->arena->frames, bytes);
	if (size < 0)
		return size;
	*rp = (struct ram_pool){.ram = r,
				.pool = pool,
				.device = device,
				.memory = memory,
				.below = {.take = ram_take,
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
				.page_bytes = bytes,
				.moves_a_page = (uint32_t)pieces,
				.rated_ns = r->now_ns,
				.rated_tick = pool->retain.tick,
				.moved = moved,
				.context = context};
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

const char *ram_check(const struct ram *r)
{
	uint64_t used = 0, objects = 0, by_namespace[RETAIN_NAMESPACES] = {0};

	for (uint32_t i = 0; i < r->most && objects < frames_sums(r->arena->frames).objects; i++) {
		const struct ram_object *o = &r->objects[i];
		const struct node *n;

		if (!o->pool)
			continue;
		objects++;
		used += o->pool->page_bytes;
		by_namespace[o->name_space] += ram_object_bytes(o->pool);
		if (o->node == NODE_NONE) {
			if (record_state(arena_header(r->arena, i)) != RECORD_FREE)
				return "a private page has a record that would be served";
			continue;
		}
		n = &o->pool->pool->prefix.nodes[o->node];
		if (n->kind == NODE_FREE || n->copies[TIER_RAM] != i)
			return "a node and its place in KV-RAM do not name each other";
		if ((record_state(arena_header(r->arena, i)) == RECORD_VALID) != node_is_in_ram(n))
			return "a record does not say whether its bytes are there";
	}
	if (objects != frames_sums(r->arena->frames).objects || used != r->used_bytes)
		return "the objects of the arena are not those of the pools";
	for (int ns = 0; ns < RETAIN_NAMESPACES; ns++) {
		if (by_namespace[ns] != r->shares[ns].used_bytes)
			return "a namespace is charged for other bytes in KV-RAM than it has";
	}
	list_for_each(link, following, (struct list *)(uintptr_t)&r->pools)
	{
		const struct ram_pool *rp = list_entry(link, struct ram_pool, in_ram);

		if (rp->used_bytes !=
		    (rp->pool->in_ram + rp->pool->in_ram_private) * rp->page_bytes)
			return "a pool has other bytes in KV-RAM than pages there";
	}
	return frames_check(r->arena->frames);
}
