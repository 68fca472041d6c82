/* SPDX-License-Identifier: Apache-2.0 */
/* ram_order: who gives up its place in KV-RAM; see ram.h. Core thread; nothing here blocks. */
#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/tier/ram_internal.h"

#define NS_PER_SECOND 1e9

#define PLAN_STATES 64   /* states that one plan may give up */
#define PLAN_PAGES  4096 /* pages that stand alone, of other pools, that it counts on */

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

	if (c->pool->pool->retain.learned)
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

	return image_rank(&p->images.image[image], rp->ram->now_ns, p->limits.interactive_ttl_ns);
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
		return !other->planned_all;
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
	struct ram_candidate states[PLAN_STATES];
	uint32_t n;
	uint64_t freed;   /* bytes of objects */
	uint64_t charged; /* of them, that the newcomer's namespace is charged for, with records */
};

/* What a pool of pages that stand alone could give, without looking at each. */
static void count_on_pages(struct plan *plan, struct ram_pool *rp, uint16_t ns)
{
	const struct pool *p = rp->pool;
	uint64_t own = p->shares[ns].in_ram;

	rp->planned_all = true;
	plan->freed += (p->in_ram < PLAN_PAGES ? p->in_ram : PLAN_PAGES) * rp->page_bytes;
	plan->charged += (own < PLAN_PAGES ? own : PLAN_PAGES) * ram_object_bytes(rp);
}

static void count_on_state(struct plan *plan, const struct ram_candidate *c, uint16_t ns)
{
	struct pool *p = c->pool->pool;
	uint64_t pages = pool_plan_give_up(p, c->image);

	plan->states[plan->n++] = *c;
	plan->freed += c->pool->image_bytes + pages * c->pool->page_bytes;
	if (p->images.image[c->image].name_space == ns)
		plan->charged +=
		    c->pool->image_bytes + RAM_KNOWN_BYTES + pages * ram_object_bytes(c->pool);
}

static void undo(struct ram *r, struct plan *plan)
{
	for (uint32_t i = plan->n; i > 0; i--)
		pool_plan_undo(plan->states[i - 1].pool->pool, plan->states[i - 1].image);
	list_for_each(link, following, &r->pools) list_entry(link, struct ram_pool, in_ram)
	    ->planned_all = false;
}

/* Bytes that the newcomer's namespace would have above its quota. */
static uint64_t above_quota(const struct ram *r, uint16_t ns, uint64_t more)
{
	const struct ram_share *share = &r->shares[ns];

	if (!share->quota_bytes || share->used_bytes + more <= share->quota_bytes ||
	    !protection(quotas_are_kept))
		return 0;
	return share->used_bytes + more - share->quota_bytes;
}

int ram_plan(void *context, uint32_t image, uint32_t pages, bool with_image, uint32_t all_pages,
	     bool all_image)
{
	struct ram_pool *rp = context;
	struct ram *r = rp->ram;
	uint16_t ns = rp->pool->images.image[image].name_space;
	struct ram_candidate newcomer = ram_newcomer(rp, image);
	uint64_t more =
	    all_pages * ram_object_bytes(rp) + (all_image ? rp->image_bytes + RAM_KNOWN_BYTES : 0);
	uint64_t over = above_quota(r, ns, more);
	/* Slabs waste up to 6 %. */
	uint64_t short_of = (pages * rp->page_bytes + with_image * rp->image_bytes) / 16 * 17;
	struct plan plan = {0};
	bool enough;

	newcomer.claim = ram_claim_of(r, ns, more);
	rp->planned = newcomer.rank;
	while (plan.freed < short_of || plan.charged < over) {
		struct ram_candidate c =
		    ram_weakest(rp, over ? 1ull << ns : UINT64_MAX, RAM_ALL_HELP);

		if (!c.pool || plan.n == PLAN_STATES)
			break;
		if (over)
			c.claim = newcomer.claim;
		if (!ram_is_weaker(r, &c, &newcomer) && protection(only_what_ranks_below_goes))
			break;
		if (c.image == IMAGE_NONE)
			count_on_pages(&plan, c.pool, ns);
		else
			count_on_state(&plan, &c, ns);
	}
	enough =
	    (plan.freed >= short_of && plan.charged >= over) || !protection(room_is_planned_first);
	undo(r, &plan);
	for (uint32_t i = 0; enough && i < plan.n; i++)
		ram_give_up(&plan.states[i]);
	return enough ? 0 : POOL_NEVER;
}
