/* SPDX-License-Identifier: Apache-2.0 */
/* pool: see pool.h. Core thread; nothing here blocks. */
#include "daemon/state/pool.h"

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/pool_states.h"
#include "daemon/state/seq.h"

_Static_assert(PAGE_NAMESPACES == RETAIN_NAMESPACES, "both count all namespaces");

/* Pages that prefix caching may have. */
static uint32_t cache_pages(const struct pool_limits *l)
{
	return l->prefix_budget < l->pages ? (uint32_t)l->prefix_budget : l->pages;
}

/* Without reuse nothing is ever looked for. */
static uint32_t most_nodes(const struct pool_limits *l)
{
	return l->prefix_budget ? l->nodes : 1;
}

/* A hybrid pool gives up states, and their pages with them. */
static bool has_order(const struct pool_limits *l)
{
	return l->prefix_budget && !l->lanes;
}

static bool has_habits(const struct pool_limits *l)
{
	return l->prefix_budget && l->lanes && l->order == RETAIN_LEARNED;
}

uint64_t pool_index_bytes(const struct pool_limits *l)
{
	uint64_t learned_pages = l->order == RETAIN_LEARNED ? cache_pages(l) : 0;
	uint64_t bytes =
	    pages_bytes_for(l->pages) + prefix_bytes_for(most_nodes(l), l->page_tokens);

	if (has_order(l)) {
		bytes +=
		    retain_bytes_for(l->pages, learned_pages, l->name_spaces, l->ram_pages > 0);
		bytes += l->shadow_lru ? shadow_bytes_for(cache_pages(l)) : 0;
	}
	if (has_habits(l))
		bytes += images_learned_bytes_for(l->retained_slots, l->name_spaces);
	return bytes + (l->lanes ? images_bytes_for(l->lanes, l->retained_slots) : 0);
}

static int start_order(struct pool *p)
{
	const struct pool_limits *l = &p->limits;
	int r = retain_init(&p->retain, &p->prefix, l->pages + l->ram_pages);

	p->retain.has_ram = l->ram_pages > 0;
	if (!r && l->order == RETAIN_LEARNED)
		r = retain_learn(&p->retain, l->pages + l->ram_pages, cache_pages(l));
	if (!r && l->shadow_lru)
		r = shadow_init(&p->shadow, cache_pages(l));
	return r;
}

int pool_init(struct pool *p, const struct pool_limits *limits, const struct key_maker *maker,
	      const uint8_t stamp[16])
{
	int r;

	must(limits->nodes >= limits->pages);
	must(limits->name_spaces > 0 && limits->name_spaces <= RETAIN_NAMESPACES);

	*p = (struct pool){.limits = *limits,
			   .retain = {.prefix = &p->prefix, .first_free = RUN_NONE}};
	p->aside = NODE_NONE;
	list_init(&p->members);
	list_init(&p->ranked[0]);
	list_init(&p->ranked[1]);
	r = pages_init(&p->pages, limits->pages);
	if (!r)
		r = prefix_init(&p->prefix, most_nodes(limits) + limits->ram_pages,
				limits->page_tokens, maker, stamp);
	if (!r && has_order(limits))
		r = start_order(p);
	if (!r && limits->lanes)
		r = images_init(&p->images, limits->lanes, limits->retained_slots,
				limits->ram_images);
	if (!r && has_habits(limits))
		r = images_learn(&p->images);
	p->hybrid = limits->lanes > 0;
	p->retain.interactive_ttl_ns = limits->interactive_ttl_ns;
	if (r)
		pool_deinit(p);
	return r;
}

void pool_deinit(struct pool *p)
{
	must(p->sequences == 0);
	shadow_deinit(&p->shadow);
	if (p->hybrid)
		images_deinit(&p->images);
	retain_deinit(&p->retain);
	prefix_deinit(&p->prefix);
	pages_deinit(&p->pages);
	*p = (struct pool){0};
}

void pool_set_quota(struct pool *p, uint16_t name_space, uint64_t quota_pages,
		    uint64_t guaranteed_pages)
{
	must(name_space < RETAIN_NAMESPACES && p->sequences == 0);
	p->shares[name_space].quota_pages = quota_pages;
	p->shares[name_space].guaranteed_pages = guaranteed_pages;
	p->has_rules |= quota_pages || guaranteed_pages;
}

const struct reuse *pool_reuse(const struct pool *p)
{
	return p->images.habits ? &p->images.habits->reuse : retain_reuse(&p->retain);
}

const struct retain_counts *pool_order_counts(const struct pool *p)
{
	return p->images.habits ? &p->images.habits->counts : retain_counts(&p->retain);
}

uint64_t pool_ghosts(const struct pool *p, uint64_t *bytes)
{
	const struct keyset *ghosts = retain_ghosts(&p->retain);

	if (p->images.habits)
		ghosts = &p->images.habits->ghosts;
	*bytes = 0;
	if (p->images.habits)
		*bytes = habits_ghost_bytes(p->images.habits);
	else if (ghosts)
		*bytes = keyset_bytes(ghosts);
	return ghosts ? ghosts->used : 0;
}

/* The indexed page of a node became live, or retained. */
void pool_count_live(struct pool *p, uint32_t node, int change)
{
	struct pool_share *share = &p->shares[p->prefix.nodes[node].name_space];

	if (p->prefix.nodes[node].copies[TIER_DEVICE] == COPY_NONE)
		return;
	must(change > 0 || (p->live > 0 && share->live > 0));
	p->live += (uint64_t)change;
	share->live += (uint64_t)change;
}

void pool_hold(struct pool *p, uint32_t node)
{
	for (bool again = true; again; node = p->prefix.nodes[node].parent) {
		bool idle = p->prefix.nodes[node].users == 0;

		again = prefix_hold(&p->prefix, node);
		if (!idle)
			continue;
		p->prefix.nodes[node].moves &= (uint8_t) ~(NODE_TRIED | NODE_TRIED_AGAIN);
		if (p->prefix.nodes[node].moves & NODE_LEAVING && protection(wanted_pages_stay))
			pool_stay(p, node);
		pool_count_live(p, node, 1);
		retain_look(&p->retain, node);
	}
}

static void trim(struct pool *p, uint64_t most);

#ifdef KVHOST_TESTING
void (*pool_evict_hook)(const struct pool *p, uint32_t node);

void pool_tell_evict(const struct pool *p, uint32_t node)
{
	if (pool_evict_hook)
		pool_evict_hook(p, node);
}
#else
void pool_tell_evict(const struct pool *p, uint32_t node)
{
	(void)p;
	(void)node;
}
#endif

void pool_release(struct pool *p, uint32_t *node, uint32_t *budget)
{
	bool competes = p->retain.learned && protection(newcomer_competes);
	bool retained = false;

	while (*node != NODE_NONE && *budget) {
		uint32_t at = *node;
		bool last = p->prefix.nodes[at].users == 1;

		--*budget;
		if (last)
			pool_count_live(p, at, -1);
		*node = prefix_release(&p->prefix, at);
		if (last) {
			retain_look(&p->retain, at);
			pool_drop_useless(p, at);
		}
		retained |= last;
		/* For a chain that competes one goes as one comes, so all of it has its chance. */
		if (!competes)
			pool_trim(p);
		else if (last)
			trim(p, 1);
	}
	if (competes && retained && *node == NODE_NONE)
		pool_trim(p);
}

void pool_index(struct pool *p, uint32_t node, uint32_t page)
{
	struct pool_share *share = &p->shares[p->prefix.nodes[node].name_space];

	pages_index(&p->pages, page, node);
	prefix_put_copy(&p->prefix, node, TIER_DEVICE, page);
	retain_put(&p->retain, node, TIER_DEVICE);
	p->indexed++;
	share->indexed++;
	if (p->prefix.nodes[node].users)
		pool_count_live(p, node, 1);
	/* A copy below may go now, if there is one; and the parent has a child on the device: it is
	 * not next to go. */
	retain_look(&p->retain, node);
	retain_look(&p->retain, p->prefix.nodes[node].parent);
}

static void evict_one(struct pool *p, uint32_t node)
{
	struct node *n = &p->prefix.nodes[node];
	struct pool_share *share = &p->shares[n->name_space];
	uint32_t page = n->copies[TIER_DEVICE];
	uint32_t parent = n->parent;

	must(page != COPY_NONE);
	if (n->moves & NODE_LEAVING) {
		must(p->leaving > 0 && share->leaving > 0);
		p->leaving--;
		share->leaving--;
	}
	p->stats.discards += n->copies[TIER_RAM] == COPY_NONE;
	if (n->moves & NODE_FAILED && n->users)
		pool_count_live(p, node, -1);
	retain_remove(&p->retain, node, TIER_DEVICE);
	prefix_drop_copy(&p->prefix, node, TIER_DEVICE);
	pages_unindex(&p->pages, page);
	must(p->indexed > 0 && share->indexed > 0);
	p->indexed--;
	share->indexed--;
	p->stats.evictions++;
	retain_look(&p->retain, parent);
}

bool pool_may_follow(const struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];

	if (n->children_in[TIER_DEVICE] || n->children_leaving)
		return false;
	return n->moves & NODE_FAILED ||
	       (n->moves & NODE_LEAVING && !(n->moves & NODE_FILLING_RAM));
}

void pool_evict(struct pool *p, uint32_t node)
{
	uint32_t parent;

	/* Nothing stands on nothing: what is to go was there for this one's sake. */
	for (bool again = true; again; node = parent) {
		parent = p->prefix.nodes[node].parent;
		evict_one(p, node);
		again = pool_may_follow(p, parent);
		if (again || !pool_is_useless(p, parent))
			continue;
		pool_tell_evict(p, parent);
		p->stats.releases += node_is_in_ram(&p->prefix.nodes[parent]);
		again = true;
	}
	pool_drop_useless(p, node);
}

enum claim { /* of a namespace on what it holds, the weakest first */
	     CLAIM_OVER_QUOTA = 0,
	     CLAIM_ABOVE_GUARANTEE,
	     CLAIM_GUARANTEED,
	     CLAIMS,
};

static enum claim claim_of(const struct pool *p, uint16_t name_space)
{
	const struct pool_share *share = &p->shares[name_space];
	uint64_t held = pool_held(p, name_space) - share->leaving;

	if (share->quota_pages && held > share->quota_pages)
		return CLAIM_OVER_QUOTA;
	return held > share->guaranteed_pages ? CLAIM_ABOVE_GUARANTEE : CLAIM_GUARANTEED;
}

/* Whose page goes: of a namespace with the weakest claim; among those the one that the order of
 * the pool gives up first. */
static uint32_t next_victim(const struct pool *p)
{
	uint64_t with_claim[CLAIMS] = {0};
	struct retain_rank rank;

	if (!p->has_rules || !protection(guarantees_are_kept))
		return retain_next(&p->retain, TIER_DEVICE, UINT64_MAX, &rank);
	for (uint16_t ns = 0; ns < RETAIN_NAMESPACES; ns++) {
		if (retain_victim(&p->retain, TIER_DEVICE, ns, &rank) != NODE_NONE)
			with_claim[claim_of(p, ns)] |= 1ull << ns;
	}
	for (int i = 0; i < CLAIMS; i++) {
		if (with_claim[i])
			return retain_next(&p->retain, TIER_DEVICE, with_claim[i], &rank);
	}
	return NODE_NONE;
}

#ifdef KVHOST_TESTING
void (*pool_leave_hook)(const struct pool *p, uint32_t image, uint64_t name_spaces, bool slotted);

static uint32_t told_victim(const struct pool *p, uint64_t name_spaces, bool slotted)
{
	uint32_t image = image_victim(&p->images, name_spaces, slotted);

	if (image != IMAGE_NONE && pool_leave_hook)
		pool_leave_hook(p, image, name_spaces, slotted);
	return image;
}
#else
static uint32_t told_victim(const struct pool *p, uint64_t name_spaces, bool slotted)
{
	return image_victim(&p->images, name_spaces, slotted);
}
#endif

uint32_t pool_next_state(const struct pool *p, bool slotted)
{
	uint64_t with_claim[CLAIMS] = {0};
	uint32_t image = IMAGE_NONE;

	if (!p->has_rules || !protection(guarantees_are_kept))
		return told_victim(p, UINT64_MAX, slotted);
	for (uint16_t ns = 0; ns < RETAIN_NAMESPACES; ns++)
		with_claim[claim_of(p, ns)] |= 1ull << ns;
	for (int claim = 0; claim < CLAIMS && image == IMAGE_NONE; claim++)
		image = told_victim(p, with_claim[claim], slotted);
	return image;
}

/* The page that goes next, of one namespace (RETAIN_NAMESPACES: of all); or NODE_NONE. */
static uint32_t victim_of(struct pool *p, uint16_t name_space)
{
	bool all = name_space == RETAIN_NAMESPACES;
	struct retain_rank rank;
	uint32_t victim;

	for (;;) {
		victim = all ? next_victim(p)
			     : retain_victim(&p->retain, TIER_DEVICE, name_space, &rank);
		if (victim == NODE_NONE || !pool_waits_for_copies(p, victim))
			return victim;
		pool_set_aside(p, victim);
	}
}

int pool_give_up_one(struct pool *p, uint16_t name_space)
{
	uint32_t victim;

	if (p->hybrid) {
		victim = name_space == RETAIN_NAMESPACES
			     ? pool_next_state(p, false)
			     : told_victim(p, 1ull << name_space, false);
		return victim == IMAGE_NONE ? POOL_NEVER : pool_push_down(p, victim);
	}
	victim = victim_of(p, name_space);
	if (victim == NODE_NONE)
		return POOL_NEVER;
	pool_tell_evict(p, victim);
	return pool_send_down(p, victim);
}

bool pool_keep_quota(struct pool *p, uint16_t name_space, uint32_t n)
{
	const struct pool_share *share = &p->shares[name_space];
	uint64_t quota = share->quota_pages;

	if (!quota || !protection(quotas_are_kept))
		return true;
	while (pool_held(p, name_space) - share->leaving + n > quota) {
		int r = pool_give_up_one(p, name_space);

		if (r == POOL_WAIT)
			return false;
		if (r)
			break;
	}
	/* What leaves will have left; what arrives for nobody can be given up then, and so can a
	 * state that is being copied. */
	return pool_held(p, name_space) + n <= quota ||
	       (share->leaving + share->arriving == 0 &&
		(!p->hybrid || share->indexed == share->live));
}

/* A state whose pages are all in use frees none of them. */
static bool frees_pages(const struct pool *p)
{
	return !p->hybrid || pool_retained(p) > p->leaving;
}

bool pool_make_room(struct pool *p, uint32_t n)
{
	while (pages_free(&p->pages) + p->leaving + p->parting < n) {
		if (!frees_pages(p) || pool_give_up_one(p, RETAIN_NAMESPACES))
			return false;
	}
	return true;
}

static void trim(struct pool *p, uint64_t most)
{
	for (; most > 0 && p->indexed - p->leaving > p->limits.prefix_budget; most--) {
		int r;

		if (!protection(budget_is_kept) || !frees_pages(p))
			return;
		r = pool_give_up_one(p, RETAIN_NAMESPACES);
		p->trim_is_due |= r == POOL_WAIT;
		if (r)
			return;
	}
	p->trim_is_due &= most == 0;
}

void pool_trim(struct pool *p)
{
	trim(p, UINT64_MAX);
}

/* It, or what stands on it, is on its way down, or is read there: it cannot go for nowhere now. */
static bool is_copied_down(const struct pool *p, uint32_t node)
{
	const struct node *n = &p->prefix.nodes[node];

	return n->moves & NODE_FILLING_RAM || n->children_in[TIER_RAM];
}

bool pool_drop_retained(struct pool *p, uint16_t name_space, uint32_t *budget)
{
	if (p->hybrid)
		return pool_drop_states(p, name_space, budget);
	if (!pool_drop_ram(p, name_space, budget))
		return false;
	for (; *budget; --*budget) {
		uint32_t victim = victim_of(p, name_space);

		if (victim == NODE_NONE) {
			pool_end_aside(p);
			return true;
		}
		pool_tell_evict(p, victim);
		if (!p->prefix.nodes[victim].parked && !is_copied_down(p, victim))
			pool_evict(p, victim);
		else if (pool_send_down(p, victim))
			pool_set_aside(p, victim); /* there is no place for what stays */
	}
	return false;
}

/* Of a hybrid pool nothing is kept for nothing. */
static const char *check_useful(const struct pool *p, uint32_t node)
{
	if (prefix_may_leave(&p->prefix, node, TIER_DEVICE))
		return "a page is on the device that neither a sequence nor a state needs";
	if (prefix_may_leave(&p->prefix, node, TIER_RAM) && !p->prefix.nodes[node].users)
		return "a page is in KV-RAM that neither a sequence nor a state needs";
	return NULL;
}

static const char *check_nodes(const struct pool *p)
{
	uint64_t live = 0, leaving = 0, in_ram = 0, parked_in_ram = 0, coming = 0;
	const char *wrong;

	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];
		uint32_t page = n->copies[TIER_DEVICE];

		if (n->kind == NODE_FREE || n->kind == NODE_ROOT)
			continue;
		leaving += !!(n->moves & NODE_LEAVING);
		in_ram += n->copies[TIER_RAM] != COPY_NONE;
		parked_in_ram += n->parked && n->copies[TIER_RAM] != COPY_NONE;
		coming += !!(n->moves & NODE_FILLING_RAM);
		wrong = p->hybrid ? check_useful(p, i) : NULL;
		if (wrong)
			return wrong;
		if (page == COPY_NONE)
			continue;
		live += n->users > 0;
		if (p->pages.page[page].state != PAGE_INDEXED || p->pages.page[page].next != i)
			return "a node and its page do not name each other";
		if (n->run == RUN_NONE && !p->hybrid)
			return "an indexed page is in no run";
	}
	if (live != p->live)
		return "the number of live pages is wrong";
	if (leaving != p->leaving || in_ram != p->in_ram || parked_in_ram != p->parked_in_ram)
		return "the number of pages that leave, or that are in KV-RAM, is wrong";
	if (coming != p->images.sent - p->images.landed)
		return "the number of copies to KV-RAM under way is wrong";
	return NULL;
}

static const char *check_sequences(const struct pool *p)
{
	uint64_t sequences = 0, ceilings = 0, steps = 0, surplus = 0;

	list_for_each(link, following, &p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);
		const char *wrong = seq_check(s);

		if (wrong)
			return wrong;
		sequences++;
		ceilings += s->admitted ? s->ceiling : 0;
		steps += s->step.state == STEP_OPEN;
		surplus += s->admitted ? s->surplus : 0;
	}
	if (sequences != p->sequences)
		return "the number of sequences is wrong";
	if (ceilings != p->ceilings)
		return "the sum of the ceilings is wrong";
	if (surplus != p->surplus)
		return "the sum of what no ceiling covers is wrong";
	if (steps != p->open_steps)
		return "the number of open steps is wrong";
	return NULL;
}

const char *pool_check(const struct pool *p, bool everything)
{
	uint64_t indexed = 0, live = 0, ceilings = 0, surplus = 0, allocated;
	uint32_t at = 0;
	const char *wrong;

	for (int i = 0; i < RETAIN_NAMESPACES; i++) {
		indexed += p->shares[i].indexed;
		live += p->shares[i].live;
		ceilings += p->shares[i].ceilings;
		surplus += p->shares[i].surplus;
		if (p->shares[i].live > p->shares[i].indexed)
			return "a namespace has more live pages than pages";
	}
	if (indexed != p->indexed || live != p->live)
		return "the namespaces' pages are not the pool's";
	if (ceilings != p->ceilings || surplus != p->surplus)
		return "what is promised to the namespaces is not what the pool promised";
	if (p->indexed != p->pages.count[PAGE_INDEXED])
		return "the number of indexed pages is wrong";
	allocated = (uint64_t)p->pages.count[PAGE_PRIVATE] + p->pages.count[PAGE_INDEXED] +
		    p->pages.count[PAGE_DRAINING] + p->pages.count[PAGE_QUARANTINED];
	if (allocated + pages_free(&p->pages) != p->limits.pages)
		return "free and allocated pages are not the capacity";
	if (p->indexed - p->leaving > p->limits.prefix_budget + (p->retain.learned ? p->live : 0) &&
	    p->live < p->indexed && p->leaving + p->arriving == 0 && !p->trim_is_due &&
	    (!p->hybrid || image_victim(&p->images, UINT64_MAX, false) != IMAGE_NONE))
		return "more pages are indexed than the budget and what is in use";
	if ((uint32_t)__builtin_popcountll(p->retain.name_spaces[ORDER_DEVICE]) >
	    p->limits.name_spaces)
		return "more namespaces have pages than were counted on";
	if (p->pages.refused_references)
		return "a reference was taken back at 0";
	if (!everything)
		return NULL;
	wrong = check_nodes(p);
	if (!wrong)
		wrong = prefix_check(&p->prefix, &at, UINT32_MAX);
	if (!wrong)
		wrong = retain_check(&p->retain);
	if (!wrong)
		wrong = pages_check(&p->pages);
	if (!wrong)
		wrong = shadow_check(&p->shadow);
	if (!wrong && p->hybrid)
		wrong = images_check(&p->images, &p->prefix);
	return wrong ? wrong : check_sequences(p);
}
