/* SPDX-License-Identifier: Apache-2.0 */
/* ram_order: who gives up its place in KV-RAM; see ram.h. Core thread; nothing here blocks. */
#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/tier/ram_internal.h"

#define NS_PER_SECOND 1e9

#define PLAN_VICTIMS 256  /* states, and runs of pages that stand alone, that one plan counts on */
#define PLAN_PAGES   4096 /* of such pages, that go for one image */

/* With `more` bytes beside what it has. */
enum ram_claim ram_claim_of(const struct ram *r, uint16_t name_space, uint64_t more)
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
static double worth(const struct ram *r, const struct ram_candidate *c)
{
	double bytes = (double)(ram_bytes_of(c->pool, c->image) + RAM_KNOWN_BYTES);
	double age_s;

	if (pool_reuse(c->pool->pool))
		return c->rank.index * c->pool->opens_per_s / bytes;
	age_s = (double)(r->now_ns - c->rank.touched_ns) / NS_PER_SECOND;
	return 1 / ((age_s < 1e-6 ? 1e-6 : age_s) * bytes);
}

bool ram_is_weaker(const struct ram *r, const struct ram_candidate *a,
		   const struct ram_candidate *b)
{
	if (a->claim != b->claim)
		return a->claim < b->claim;
	if (a->rank.interactive != b->rank.interactive)
		return b->rank.interactive;
	if (a->pool == b->pool)
		return retain_ranks_below(a->rank, b->rank);
	return worth(r, a) < worth(r, b);
}

static struct retain_rank rank_of(const struct ram_pool *rp, uint32_t image)
{
	const struct pool *p = rp->pool;

	return image_rank(&p->images, image, rp->ram->now_ns, p->limits.interactive_ttl_ns);
}

static void consider(const struct ram *r, struct ram_candidate *best, struct ram_pool *rp,
		     uint64_t namespaces, enum ram_claim claim)
{
	const struct pool *p = rp->pool;
	struct ram_candidate c = {.pool = rp, .image = IMAGE_NONE, .claim = claim};

	if (p->hybrid) {
		c.image = image_next_in_ram(&p->images, namespaces, r->now_ns,
					    p->limits.interactive_ttl_ns, &c.rank);
		if (c.image == IMAGE_NONE)
			return;
		c.node = p->images.image[c.image].node;
	} else {
		c.node = retain_next(&p->retain, TIER_RAM, namespaces, &c.rank);
		if (c.node == NODE_NONE)
			return;
	}
	if (!best->pool || ram_is_weaker(r, &c, best))
		*best = c;
}

/* Objects in KV-RAM of a size, of all pools. */
static uint64_t objects_of_size(const struct ram *r, int size)
{
	uint64_t n = 0;

	list_for_each(link, following, (struct list *)(uintptr_t)&r->pools)
	{
		const struct ram_pool *rp = list_entry(link, struct ram_pool, in_ram);

		n += rp->size == size ? rp->pool->in_ram + rp->pool->in_ram_private : 0;
		n += rp->image_size == size ? rp->pool->images.in_ram : 0;
	}
	return n;
}

static uint32_t at_most(uint64_t n, uint32_t most)
{
	return n < most ? (uint32_t)n : most;
}

/* Other pools' objects are of other sizes: would there be a frame, or what slab it takes, if as
 * many of such sizes went as may go for one? */
static bool would_make_room(const struct ram_pool *rp, const struct ram_pool *other)
{
	const struct ram *r = rp->ram;
	uint32_t given[FRAMES_SIZES_MAX] = {0};

	if (rp->size == other->size)
		return true;
	given[other->size] = at_most(objects_of_size(r, other->size), RAM_VICTIMS);
	if (other->image_bytes)
		given[other->image_size] =
		    at_most(objects_of_size(r, other->image_size), RAM_VICTIMS);
	return frames_would_fit_without(r->arena->frames, rp->size, given);
}

/* Are the places of another pool of use for one of rp's? */
static bool helps(const struct ram_pool *rp, const struct ram_pool *other, enum ram_help help)
{
	if (help == RAM_ALL_HELP || rp == other)
		return true;
	return help == RAM_THOSE_WITH_ROOM_HELP && would_make_room(rp, other);
}

struct ram_candidate ram_weakest(const struct ram_pool *rp, uint64_t namespaces, enum ram_help help)
{
	const struct ram *r = rp->ram;
	struct ram_candidate best = {0};
	uint64_t with_claim[RAM_CLAIMS] = {0};

	if (r->has_rules) {
		for (uint16_t ns = 0; ns < RETAIN_NAMESPACES; ns++) {
			if (namespaces >> ns & 1 && r->shares[ns].used_bytes)
				with_claim[ram_claim_of(r, ns, 0)] |= 1ull << ns;
		}
	} else {
		with_claim[RAM_ABOVE_GUARANTEE] = namespaces;
	}
	for (int claim = 0; claim < RAM_CLAIMS && !best.pool; claim++) {
		if (!with_claim[claim])
			continue;
		list_for_each(link, following, (struct list *)(uintptr_t)&r->pools)
		{
			struct ram_pool *other = list_entry(link, struct ram_pool, in_ram);

			if (helps(rp, other, help))
				consider(r, &best, other, with_claim[claim], (enum ram_claim)claim);
		}
	}
	return best;
}

struct ram_candidate ram_newcomer(struct ram_pool *rp, uint32_t image)
{
	const struct image *it = &rp->pool->images.image[image];

	return (struct ram_candidate){
	    .pool = rp,
	    .node = it->node,
	    .image = image,
	    .claim = ram_claim_of(rp->ram, it->name_space, rp->image_bytes + RAM_KNOWN_BYTES),
	    .rank = rank_of(rp, image)};
}

#ifdef KVHOST_TESTING
void (*ram_displace_hook)(const struct ram_candidate *newcomer, enum pool_need need,
			  const struct ram_candidate *victim, bool planned);

void ram_tell_displaced(const struct ram_candidate *newcomer, enum pool_need need,
			const struct ram_candidate *victim, bool planned)
{
	if (ram_displace_hook && newcomer->node != NODE_NONE &&
	    (!victim->pool || victim->pool == newcomer->pool))
		ram_displace_hook(newcomer, need, victim, planned);
}
#else
void ram_tell_displaced(const struct ram_candidate *newcomer, enum pool_need need,
			const struct ram_candidate *victim, bool planned)
{
	(void)newcomer;
	(void)need;
	(void)victim;
	(void)planned;
}
#endif

void ram_give_up(const struct ram_candidate *victim)
{
	struct pool *p = victim->pool->pool;

	p->stats.ram_displaced++;
	if (victim->image != IMAGE_NONE)
		pool_give_up(p, victim->image);
	else
		pool_give_up_ram(p, victim->node);
}

uint32_t ram_victims_for(const struct ram_candidate *newcomer)
{
	return newcomer->image == IMAGE_NONE ? RAM_VICTIMS : PLAN_PAGES;
}

/* ---- plans ---- */

struct plan {
	struct ram_candidate victims[PLAN_VICTIMS];
	uint32_t n;
	int64_t more[FRAMES_SIZES_MAX]; /* objects of each size, with what the newcomer wants */
	uint64_t used_bytes[RETAIN_NAMESPACES]; /* before it */
};

static void begin(const struct ram *r, struct plan *plan)
{
	for (int ns = 0; ns < RETAIN_NAMESPACES; ns++)
		plan->used_bytes[ns] = r->shares[ns].used_bytes;
}

/* Pages that stand alone go one after another from the end of a run: all of it, or as many as are
 * needed then. */
static void count_on_run(struct plan *plan, const struct ram_candidate *c)
{
	struct ram_pool *rp = c->pool;
	uint64_t pages = retain_pass_over(&rp->pool->retain, c->node);

	plan->victims[plan->n++] = *c;
	plan->more[rp->size] -= (int64_t)pages;
	rp->ram->shares[rp->pool->prefix.nodes[c->node].name_space].used_bytes -=
	    pages * ram_object_bytes(rp);
}

static void count_on_state(struct plan *plan, const struct ram_candidate *c)
{
	struct ram_pool *rp = c->pool;
	uint64_t pages = pool_plan_give_up(rp->pool, c->image);
	uint16_t ns = rp->pool->images.image[c->image].name_space;

	plan->victims[plan->n++] = *c;
	plan->more[rp->size] -= (int64_t)pages;
	plan->more[rp->image_size]--;
	rp->ram->shares[ns].used_bytes -=
	    pages * ram_object_bytes(rp) + rp->image_bytes + RAM_KNOWN_BYTES;
}

static void undo(struct ram *r, struct plan *plan)
{
	for (uint32_t i = plan->n; i > 0; i--) {
		const struct ram_candidate *c = &plan->victims[i - 1];

		if (c->image != IMAGE_NONE)
			pool_plan_undo(c->pool->pool, c->image);
		else
			retain_put_back(&c->pool->pool->retain, c->node);
	}
	for (int ns = 0; ns < RETAIN_NAMESPACES; ns++)
		r->shares[ns].used_bytes = plan->used_bytes[ns];
}

/* Until the newcomer fits, and its namespace may have so many bytes more: false, it never does. */
static bool make_plan(struct ram_candidate *newcomer, uint64_t more, struct plan *plan)
{
	struct ram_pool *rp = newcomer->pool;
	struct ram *r = rp->ram;
	uint16_t ns = rp->pool->images.image[newcomer->image].name_space;

	for (;;) {
		struct ram_candidate c;
		bool over;

		newcomer->claim = ram_claim_of(r, ns, more);
		over = newcomer->claim == RAM_OVER_QUOTA;
		if (!over && frames_would_hold(r->arena->frames, plan->more))
			return true;
		c = ram_weakest(rp, over ? 1ull << ns : UINT64_MAX, RAM_ALL_HELP);
		if (!c.pool || plan->n == PLAN_VICTIMS)
			return false;
		if (over)
			c.claim = newcomer->claim;
		if (!ram_is_weaker(r, &c, newcomer) && protection(only_what_ranks_below_goes))
			return false;
		if (c.image == IMAGE_NONE)
			count_on_run(plan, &c);
		else
			count_on_state(plan, &c);
	}
}

int ram_plan(void *context, uint32_t image, uint32_t pages, bool with_image)
{
	struct ram_pool *rp = context;
	struct ram *r = rp->ram;
	struct ram_candidate newcomer = ram_newcomer(rp, image);
	struct ram_candidate nobody = {0};
	uint64_t more =
	    pages * ram_object_bytes(rp) + (with_image ? rp->image_bytes + RAM_KNOWN_BYTES : 0);
	struct plan plan = {0};
	bool enough;

	rp->planned = newcomer.rank;
	plan.more[rp->size] += pages;
	plan.more[rp->image_size] += with_image;
	begin(r, &plan);
	enough = make_plan(&newcomer, more, &plan) || !protection(room_is_planned_first);
	undo(r, &plan);
	for (uint32_t i = 0; enough && i < plan.n; i++) {
		if (plan.victims[i].image == IMAGE_NONE)
			continue; /* pages go as they are needed */
		ram_tell_displaced(&newcomer, POOL_NEED_NONE, &plan.victims[i], true);
		ram_give_up(&plan.victims[i]);
	}
	if (!enough)
		ram_tell_displaced(&newcomer, POOL_NEED_NONE, &nobody, true);
	return enough ? 0 : POOL_NEVER;
}
