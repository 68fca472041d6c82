/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spill_states: which states may be given up in KV-RAM for another one, worked out by a look at all
 * that is there: what ranks below it alone, the lowest first, and only if it fits then. One thread;
 * nothing blocks.
 */
#include "tests/sim/sim.h"
#include "tests/sim/states.h"

#define STATES_MOST 2560

struct rank { /* lower goes first */
	uint32_t claim;
	bool interactive;
	double index; /* of the learned order; of lru: is it protected? */
	uint64_t touched;
};

struct wish { /* what a state has, or wants to have, in KV-RAM */
	uint32_t pages, images;
};

struct fate { /* of all that is in KV-RAM, when some states have gone */
	bool gone[STATES_MOST];
	bool stays[DROPS_NODES]; /* a page */
	struct wish left;
	uint64_t bytes[2]; /* of each namespace */
};

static bool is_below(struct rank a, struct rank b)
{
	if (a.claim != b.claim)
		return a.claim < b.claim;
	if (a.interactive != b.interactive)
		return b.interactive;
	return a.index < b.index || (a.index <= b.index && a.touched < b.touched);
}

/* What an interactive request left, and nobody has touched for a while, is an agent's on
 * probation. */
static struct rank rank_of(const struct pool *p, const struct image *it, uint32_t claim)
{
	uint64_t ttl_ns = p->limits.interactive_ttl_ns;
	bool idle = it->interactive && ttl_ns && p->retain.now_ns - it->touched_ns > ttl_ns;

	return (struct rank){.claim = claim,
			     .interactive = it->interactive && !idle,
			     .index =
				 pool_reuse(p) ? pools_index(p, it) : it->is_protected && !idle,
			     .touched = it->touched};
}

static const char *why_not(const struct pool *p, const struct image *it)
{
	if (it->state != IMAGE_VALID)
		return "is none that can be found";
	if (it->place == COPY_NONE)
		return "has no image there";
	if (it->claims)
		return "is being copied from";
	/* Its pages, or what had been asked for before. */
	if (it->spilling || p->images.landed < it->arrives)
		return "is on its way";
	return it->moving ? "is being moved" : NULL;
}

/* Is a page of it copied there, and not for the second time? */
static bool has_coming(struct sim *w, const struct image *it)
{
	const struct node *nodes = sim_pool(w)->prefix.nodes;
	uint32_t node = it->node;

	/* Of one that lives on the device the image alone goes. */
	if (!it->in_ram || w->failpoints || w->spill.down_failed || w->spill.n_failed)
		return false;
	while (nodes[node].kind == NODE_TOKENS && !(nodes[node].moves & NODE_FILLING_RAM))
		node = nodes[node].parent;
	return nodes[node].kind == NODE_TOKENS;
}

/* ---- what is left ---- */

/* Its copy in KV-RAM could go, but for what keeps it. */
static bool is_loose(const struct node *n)
{
	bool here = node_is_on_device(n) && !(n->moves & NODE_LEAVING);

	return !(n->moves & NODE_FILLING_RAM) && !n->ram_pins && !n->parked &&
	       ((!n->users && !n->kept) || here);
}

static bool is_in_ram(const struct node *n)
{
	return n->kind == NODE_TOKENS && n->copies[TIER_RAM] != COPY_NONE;
}

static void stay(const struct pool *p, uint32_t node, struct fate *f)
{
	for (; p->prefix.nodes[node].kind == NODE_TOKENS && !f->stays[node];
	     node = p->prefix.nodes[node].parent)
		f->stays[node] = true;
}

/* A page that is there by itself: what it stands on, as far as that is there. */
static void stay_in_ram(const struct pool *p, uint32_t node, struct fate *f)
{
	for (; is_in_ram(&p->prefix.nodes[node]); node = p->prefix.nodes[node].parent)
		f->stays[node] = true;
}

/* What a state that stays needs, or the newcomer, what is on its way, and what these stand on. */
static void look(struct sim *w, const struct image *newcomer, struct fate *f)
{
	const struct pool *p = sim_pool(w);
	const struct ram_pool *rp = spill_pool(w);

	memset(f->stays, 0, p->prefix.fresh * sizeof(f->stays[0]));
	f->left = (struct wish){0};
	f->bytes[0] = f->bytes[1] = 0;
	for (uint32_t i = 0; i < p->images.n_images; i++) {
		const struct image *it = &p->images.image[i];

		if (it->state == IMAGE_FREE || f->gone[i])
			continue;
		if (it->in_ram || (it == newcomer && it->state == IMAGE_VALID))
			stay(p, it->node, f);
		if (it->place == COPY_NONE)
			continue;
		f->left.images++;
		f->bytes[it->name_space] += rp->image_bytes + RAM_KNOWN_BYTES;
	}
	for (uint32_t i = 0; i < rp->ram->most; i++) {
		const struct ram_object *o = &rp->ram->objects[i];

		if (!o->pool || o->node != NODE_NONE || o->image != IMAGE_NONE)
			continue;
		f->left.pages++; /* a live sequence's own */
		f->bytes[o->name_space] += rp->page_bytes + RAM_KNOWN_BYTES;
	}
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		if (is_in_ram(&p->prefix.nodes[i]) && !is_loose(&p->prefix.nodes[i]))
			stay_in_ram(p, i, f);
	}
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (!is_in_ram(n) || !f->stays[i])
			continue;
		f->left.pages++;
		f->bytes[n->name_space] += rp->page_bytes + RAM_KNOWN_BYTES;
	}
}

/* 0: over its quota, 1: above what it is sure of, 2: neither; with `more` bytes. */
static uint32_t claim_of(const struct sim *w, const struct fate *f, uint16_t ns, uint64_t more)
{
	const struct config_namespace *n = &w->config.namespaces[ns];

	if (n->max_kv_ram_bytes != CONFIG_NULL && f->bytes[ns] + more > n->max_kv_ram_bytes)
		return 0;
	return f->bytes[ns] + more > n->guaranteed_kv_ram_bytes ? 1 : 2;
}

/* ---- who goes ---- */

/* The least of some namespaces, but for one. */
static uint32_t find_least(const struct pool *p, const struct fate *f, uint32_t namespaces,
			   uint32_t but)
{
	const struct images *s = &p->images;
	uint32_t found = IMAGE_NONE;

	for (uint32_t i = 0; i < s->n_images; i++) {
		const struct image *it = &s->image[i];

		if (i == but || it->state == IMAGE_FREE || f->gone[i] || why_not(p, it) ||
		    !(namespaces >> it->name_space & 1))
			continue;
		if (found == IMAGE_NONE ||
		    is_below(rank_of(p, it, 0), rank_of(p, &s->image[found], 0)))
			found = i;
	}
	return found;
}

/* The next to go for a newcomer, which wants so many bytes: of the namespaces with the weakest
 * claim; of its own, if it would have too much. IMAGE_NONE: there is none that ranks below it. */
static uint32_t next_to_go(struct sim *w, const struct fate *f, uint32_t newcomer, uint64_t bytes)
{
	const struct pool *p = sim_pool(w);
	const struct image *it = &p->images.image[newcomer];
	uint32_t own = claim_of(w, f, it->name_space, bytes), found = IMAGE_NONE, claim = 0;

	if (own == 0)
		found = find_least(p, f, 1u << it->name_space, newcomer);
	for (claim = 0; own && claim < 3 && found == IMAGE_NONE; claim++) {
		uint32_t namespaces = 0;

		for (uint16_t ns = 0; ns < 2; ns++)
			namespaces |= (uint32_t)(claim_of(w, f, ns, 0) == claim) << ns;
		found = find_least(p, f, namespaces, newcomer);
	}
	claim = own ? claim - 1 : 0;
	if (found == IMAGE_NONE ||
	    !is_below(rank_of(p, &p->images.image[found], claim), rank_of(p, it, own)))
		return IMAGE_NONE;
	return found;
}

/* ---- what a newcomer wants ---- */

static struct wish wish_of(const struct pool *p, const struct image *it)
{
	struct wish wish = {.images = it->place == COPY_NONE};
	uint32_t node = it->node;

	/* What is captured there has its pages on the device. */
	if (it->state == IMAGE_FILLING)
		return wish;
	for (; p->prefix.nodes[node].kind == NODE_TOKENS; node = p->prefix.nodes[node].parent)
		wish.pages += p->prefix.nodes[node].copies[TIER_RAM] == COPY_NONE;
	return wish;
}

static uint64_t bytes_of(const struct ram_pool *rp, struct wish wish)
{
	return wish.pages * (rp->page_bytes + RAM_KNOWN_BYTES) +
	       wish.images * (rp->image_bytes + RAM_KNOWN_BYTES);
}

/* Frames that so many objects take: whole ones, and slabs of one frame. */
static uint64_t frames_for(uint64_t objects, uint64_t bytes)
{
	uint64_t rest = bytes % FRAME_BYTES, slots = rest ? FRAME_BYTES / rest : 0;

	return objects * (bytes / FRAME_BYTES) + (slots ? (objects + slots - 1) / slots : 0);
}

static bool fits(struct sim *w, const struct fate *f, uint16_t ns, struct wish wish)
{
	const struct ram_pool *rp = spill_pool(w);
	uint64_t frames = frames_sums(w->spill.arena->frames).capacity_bytes / FRAME_BYTES;
	uint64_t pages = f->left.pages + wish.pages, images = f->left.images + wish.images;

	return claim_of(w, f, ns, bytes_of(rp, wish)) > 0 &&
	       pages + images <= w->spill.arena->most_objects &&
	       frames_for(pages, rp->page_bytes) + frames_for(images, rp->image_bytes) <= frames;
}

/* ---- checks ---- */

void spill_state_displaced(struct sim *w, const struct ram_candidate *newcomer,
			   const struct ram_candidate *victim, bool planned)
{
	static struct fate f;
	const struct pool *p = sim_pool(w);
	const struct image *it;
	struct wish wish;
	uint32_t first, next;

	sim_check(w, planned || spill_pool(w)->ram->relocation_fails,
		  "room was planned for a state, and its %s finds none",
		  newcomer->image == IMAGE_NONE ? "page" : "image");
	sim_check(w, p->images.n_images <= STATES_MOST && p->prefix.fresh <= DROPS_NODES,
		  "more states or nodes than the test remembers");
	if (!planned)
		return;
	it = &p->images.image[newcomer->image];
	memset(f.gone, 0, sizeof(f.gone));
	look(w, it, &f);
	wish = wish_of(p, it);
	sim_check(w, !fits(w, &f, it->name_space, wish),
		  "there is room in KV-RAM for a state, and %s",
		  victim->pool ? "another one is given up for it" : "it is refused");
	first = next_to_go(w, &f, newcomer->image, bytes_of(spill_pool(w), wish));
	for (next = first; next != IMAGE_NONE && !fits(w, &f, it->name_space, wish);
	     next = next_to_go(w, &f, newcomer->image, bytes_of(spill_pool(w), wish))) {
		f.gone[next] = true;
		look(w, it, &f);
	}
	if (!victim->pool) {
		w->spill.states_refused++;
		sim_check(w, !fits(w, &f, it->name_space, wish),
			  "a state is refused, and what ranks below it in KV-RAM is enough");
		return;
	}
	w->spill.states_displaced++;
	sim_check(w, victim->image != newcomer->image, "a state is given up for itself");
	sim_check(w, !why_not(p, &p->images.image[victim->image]),
		  "a state is given up in KV-RAM that %s",
		  why_not(p, &p->images.image[victim->image]));
	sim_check(w, !has_coming(w, &p->images.image[victim->image]),
		  "a state is given up in KV-RAM whose pages are still on their way there");
	sim_check(w, victim->image == first,
		  "state %u is given up in KV-RAM for state %u, and it is not its turn (%d)",
		  victim->image, newcomer->image, (int)first);
	sim_check(w, fits(w, &f, it->name_space, wish),
		  "a state is given up for one that does not fit after all");
}
