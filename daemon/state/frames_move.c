/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frames_move: what to move so that an object fits; see frames.h. Core thread; nothing here blocks.
 *
 * A block of some order becomes free when the emptiest slab of its order, or of a larger one, goes
 * into free slots of others; or when a region of its size is cleared. A region has free frames,
 * whole frames and slabs of lower orders only. While it is planned it is held: its frames are not
 * free, its slabs are not open, so that whatever is taken as a target lies elsewhere. If nothing
 * that is free elsewhere is large enough for a slab of it, a block of that lower order is made
 * there first, in the same way.
 *
 * Why that ends well if frames_would_fit_without says that all fits, and nothing is pinned: what
 * is in a region then fits into the rest of the arena together with what is there, packed; and to
 * be packed so, the rest needs blocks of lower orders only. A region once chosen stays chosen over
 * plans, else what left it for a new slab would look like the emptiest slab and come back.
 */
#include <stddef.h>

#include "daemon/base/panic.h"
#include "daemon/state/frames_internal.h"

#define CANDIDATES 4
#define GROUPS_MAX 1024 /* that one plan looks at */

enum progress {
	PLANNED,
	BUSY,    /* all that has to move is on its way */
	BLOCKED, /* by what is pinned or under way elsewhere */
};

struct plan {
	struct frames *f;
	struct frames_move *moves;
	uint32_t room, n;
	uint32_t groups; /* that it may still look at */
};

static enum progress make_block(struct plan *p, uint32_t order);

/* ---- single moves ---- */

static bool may_move_more(const struct object *o)
{
	return o->moves < MOVES_MAX;
}

static void note_move(struct plan *p, uint32_t object, uint64_t from, uint64_t to, uint64_t bytes)
{
	struct object *o = &p->f->object[object];

	must(p->n < p->room && may_move_more(o));
	must(o->pins == 0);
	o->moves++;
	p->moves[p->n++] = (struct frames_move){object, from, to, bytes};
}

static void move_rest(struct plan *p, uint32_t object, uint32_t slab)
{
	struct frames *f = p->f;
	struct object *o = &f->object[object];
	uint32_t slot;

	must(slab != NONE && slab != o->slab && !o->leaving);
	slot = slot_take(f, slab);
	f->slab[slab].reserved++;
	o->leaving = 1;
	f->slab[o->slab].leaving++;
	slab_settle(f, o->slab);
	note_move(p, object, slot_offset(f, o->slab, o->slot), slot_offset(f, slab, slot),
		  f->sizes[o->size].rest_bytes);
}

static void move_whole(struct plan *p, uint32_t from, uint32_t to)
{
	struct frames *f = p->f;
	uint32_t object = f->frame[from].owner;
	const struct object *o = &f->object[object];
	const struct size *z = &f->sizes[o->size];
	uint64_t bytes = FRAME_BYTES;

	must(!f->frame[from].leaving);
	f->frame[to].owner = object;
	f->frame[from].leaving = true;
	if (!z->slots && frames_whole(f, o->root, z->whole - 1) == from)
		bytes = z->bytes - (z->whole - 1) * FRAME_BYTES;
	note_move(p, object, frame_offset(from), frame_offset(to), bytes);
}

/* ---- slabs that go into others of their size ---- */

static void hold_slab(struct frames *f, uint32_t slab, bool held)
{
	f->slab[slab].held = held;
	slab_settle(f, slab);
}

/* Of open slabs one of the emptiest, without what must stay. */
static uint32_t emptiest(const struct frames *f, const struct size *z)
{
	for (uint32_t bucket = 0; bucket < BUCKET_FILLS; bucket++) {
		for (uint32_t at = z->bucket[bucket]; at != NONE; at = f->slab[at].next) {
			if (!f->slab[at].pinned && !f->slab[at].reserved)
				return at;
		}
	}
	return NONE;
}

/*
 * Plan moves from one slab, of an order not below this one, into free slots of others; of all that
 * can go so, one with few bytes. Returns the frames that are free once that is done: 0 if room for
 * moves, or anything else, is not enough for all of the slab.
 */
static uint32_t pack(struct plan *p, uint32_t order)
{
	struct frames *f = p->f;
	uint64_t least = UINT64_MAX;
	uint32_t from = NONE;
	struct size *z;

	for (uint32_t i = 0; i < FRAMES_SIZES_MAX; i++) {
		uint32_t at;

		z = &f->sizes[i];
		/* So many open slots, of which a slab has some itself: those of others suffice. */
		if (!z->slots || z->order < order || z->open_slots < z->slots)
			continue;
		at = emptiest(f, z);
		if (at == NONE || (uint64_t)f->slab[at].used * z->rest_bytes >= least)
			continue;
		least = (uint64_t)f->slab[at].used * z->rest_bytes;
		from = at;
	}
	if (from == NONE)
		return 0;
	z = &f->sizes[f->slab[from].size];
	hold_slab(f, from, true);
	for (uint32_t at = f->slab[from].first_object; at != NONE && p->n < p->room;
	     at = f->object[at].next) {
		if (may_move_more(&f->object[at]))
			move_rest(p, at, slab_open(z));
	}
	hold_slab(f, from, false);
	return f->slab[from].leaving == f->slab[from].used ? 1u << z->order : 0;
}

/* ---- regions ---- */

/* The bytes that have to leave it; UINT64_MAX: it cannot be cleared, or it is held already. */
static uint64_t region_cost(const struct frames *f, uint32_t first, uint32_t order)
{
	const struct group *g = &f->group[f->frame[first].group];
	uint64_t cost = 0;
	uint32_t step;

	if (g->held >> (first - g->first) & ((1u << (1u << order)) - 1))
		return UINT64_MAX;
	for (uint32_t at = first; at < first + (1u << order); at += step) {
		const struct frame *it = &f->frame[at];
		const struct slab *s;

		step = 1;
		if (it->kind == FRAME_FREE)
			continue;
		if (it->kind == FRAME_WHOLE) {
			if (f->object[it->owner].pins)
				return UINT64_MAX;
			cost += FRAME_BYTES;
			continue;
		}
		if (it->kind != FRAME_SLAB)
			return UINT64_MAX;
		s = &f->slab[it->owner];
		if (f->sizes[s->size].order >= order || s->pinned || s->reserved)
			return UINT64_MAX;
		must(it->owner == at);
		cost += (uint64_t)s->used * f->sizes[s->size].slot_bytes;
		step = 1u << f->sizes[s->size].order;
	}
	return cost;
}

static uint32_t cheapest_region(const struct frames *f, const struct group *g, uint32_t order)
{
	uint64_t least = UINT64_MAX;
	uint32_t region = NONE;

	for (uint32_t at = g->first; at < g->first + (1u << g->order); at += 1u << order) {
		uint64_t cost = region_cost(f, at, order);

		if (cost >= least)
			continue;
		least = cost;
		region = at;
	}
	return region;
}

static void find_regions_in(struct plan *p, uint32_t group, uint32_t order, uint32_t *region,
			    uint32_t *n)
{
	const struct frames *f = p->f;

	for (; group != NONE && p->groups && *n < CANDIDATES; group = f->group[group].next) {
		uint32_t at = cheapest_region(f, &f->group[group], order);

		p->groups--;
		if (at != NONE)
			region[(*n)++] = at;
	}
}

/* From the groups with the most free frames on. */
static uint32_t find_regions(struct plan *p, uint32_t order, uint32_t region[CANDIDATES])
{
	const struct frames *f = p->f;
	uint32_t n = 0;

	for (uint32_t count = GROUP_FRAMES; count <= GROUP_FRAMES; count--) {
		for (uint32_t of = order; of < FRAME_ORDERS; of++) {
			for (uint32_t top = 0; top <= order; top++)
				find_regions_in(p, f->head[of][top][count], order, region, &n);
		}
	}
	return n;
}

static void hold_region(struct frames *f, uint32_t first, uint32_t order, bool held)
{
	for (uint32_t at = first; at < first + (1u << order); at++) {
		if (f->frame[at].kind == FRAME_SLAB && f->frame[at].owner == at)
			hold_slab(f, at, held);
	}
	if (held)
		block_hold(f, first, order);
	else
		block_let_go(f, first, order);
}

/* Plan moves of all that is in a held slab to other slabs of its size. If nothing is free that is
 * large enough, returns the order of what is needed, else NONE. */
static uint32_t leave_slab(struct plan *p, uint32_t from)
{
	struct frames *f = p->f;
	uint32_t size = f->slab[from].size;

	for (uint32_t at = f->slab[from].first_object; at != NONE && p->n < p->room;
	     at = f->object[at].next) {
		uint32_t to;

		if (f->object[at].leaving || !may_move_more(&f->object[at]))
			continue;
		to = slab_open(&f->sizes[size]);
		if (to == NONE)
			to = slab_make(f, size);
		if (to == NONE)
			return f->sizes[size].order;
		move_rest(p, at, to);
	}
	return NONE;
}

static uint32_t leave_whole(struct plan *p, uint32_t from)
{
	struct frames *f = p->f;
	uint32_t to;

	if (f->frame[from].leaving || !may_move_more(&f->object[f->frame[from].owner]))
		return NONE;
	to = block_take(f, 0, FRAME_TARGET);
	if (to == NONE)
		return 0;
	move_whole(p, from, to);
	return NONE;
}

static enum progress clear_region(struct plan *p, uint32_t first, uint32_t order)
{
	struct frames *f = p->f;
	uint32_t before = p->n, missing = NONE;
	enum progress progress = PLANNED;

	hold_region(f, first, order, true);
	for (uint32_t at = first; at < first + (1u << order) && missing == NONE; at++) {
		if (p->n == p->room)
			break;
		if (f->frame[at].kind == FRAME_WHOLE)
			missing = leave_whole(p, at);
		else if (f->frame[at].kind == FRAME_SLAB && f->frame[at].owner == at)
			missing = leave_slab(p, at);
	}
	if (p->n == before && missing == NONE)
		progress = BUSY;
	if (p->n == before && missing != NONE) {
		must(missing < order);
		progress = make_block(p, missing);
	}
	hold_region(f, first, order, false);
	return progress;
}

/* Plan what brings a block of this order nearer. There is none, outside of what is held. */
static enum progress make_block(struct plan *p, uint32_t order)
{
	struct frames *f = p->f;
	uint32_t region[CANDIDATES + 1], n = 0, before = p->n;
	uint32_t clearing = f->clearing[order];

	if (clearing != NONE && region_cost(f, clearing, order) != UINT64_MAX) {
		enum progress progress = clear_region(p, clearing, order);

		if (progress != BLOCKED)
			return progress;
	}
	f->clearing[order] = NONE;
	pack(p, order);
	if (p->n > before)
		return PLANNED;
	if (order > 0)
		n = find_regions(p, order, region);
	for (uint32_t i = 0; i < n; i++) {
		enum progress progress = clear_region(p, region[i], order);

		if (progress == BLOCKED)
			continue;
		f->clearing[order] = region[i];
		return progress;
	}
	return BLOCKED;
}

int frames_plan_move(struct frames *f, int size, struct frames_move *moves, uint32_t room,
		     uint32_t *n)
{
	struct plan p = {.f = f, .moves = moves, .room = room, .groups = GROUPS_MAX};
	uint32_t wanted, coming = 0;
	const struct size *z;

	must(room > 0);
	if (!frames_would_fit_without(f, size, NULL))
		return FRAMES_NOTHING;
	z = &f->sizes[size];
	wanted = z->whole;
	if (z->slots && slab_open(z) == NONE) {
		wanted += 1u << z->order;
		if (!block_is_free(f, z->order))
			(void)make_block(&p, z->order);
	}
	/* All that is needed besides are free frames anywhere. And with as many as a block has, a
	 * region is found without looking far: some group has a free one, which is in a region that
	 * is no larger slab's. */
	while (p.n < room && f->free_frames + coming < wanted) {
		uint32_t before = p.n;

		coming += pack(&p, 0);
		if (p.n == before)
			break;
	}
	if (p.n == 0)
		return FRAMES_NOTHING;
	*n = p.n;
	return 0;
}

/* ---- moves that have ended ---- */

static void end_rest(struct frames *f, struct object *o, const struct frames_move *m, bool moves)
{
	uint32_t from = o->slab, slot = o->slot;
	uint32_t to = f->frame[m->to / FRAME_BYTES].owner;
	uint32_t to_slot = (uint32_t)((m->to - frame_offset(to)) / f->sizes[o->size].slot_bytes);

	must(f->frame[m->to / FRAME_BYTES].kind == FRAME_SLAB && f->slab[to].size == o->size);
	must(slot_offset(f, to, to_slot) == m->to);
	must(f->slab[to].reserved > 0 && f->slab[from].leaving > 0);
	f->slab[to].reserved--;
	f->slab[from].leaving--;
	o->leaving = 0;
	if (!moves) {
		slot_give(f, to, to_slot);
		slab_settle(f, from);
		return;
	}
	slab_unlink(f, from, m->object);
	slot_give(f, from, slot);
	o->slab = to & (FRAMES_MAX - 1);
	o->slot = to_slot & (SLOTS_MAX - 1);
	slab_link(f, to, m->object);
}

static void end_whole(struct frames *f, struct object *o, const struct frames_move *m, bool moves)
{
	uint32_t from = (uint32_t)(m->from / FRAME_BYTES), to = (uint32_t)(m->to / FRAME_BYTES);
	struct frame *old = &f->frame[from], *new = &f->frame[to];

	must(old->kind == FRAME_WHOLE && old->owner == m->object && old->leaving);
	must(new->kind == FRAME_TARGET &&new->owner == m->object);
	old->leaving = false;
	if (!moves) {
		block_give(f, to, 0);
		return;
	}
	new->kind = FRAME_WHOLE;
	new->leaving = false;
	new->parent = old->parent;
	for (int i = 0; i < 2; i++) {
		new->child[i] = old->child[i];
		if (new->child[i] != NONE)
			f->frame[new->child[i]].parent = to;
	}
	if (old->parent == NONE)
		o->root = to;
	else
		f->frame[old->parent].child[f->frame[old->parent].child[1] == from] = to;
	block_give(f, from, 0);
}

void frames_moved(struct frames *f, const struct frames_move *m, bool copied)
{
	struct object *o = &f->object[m->object];
	bool moves;

	must(m->object < f->fresh && o->used && o->moves > 0);
	/* Who has pinned it since uses its old place, and may write there. */
	moves = copied && o->pins == 0;
	o->moves--;
	if (object_has_rest(f, o) && slot_offset(f, o->slab, o->slot) == m->from) {
		must(o->leaving);
		end_rest(f, o, m, moves);
	} else {
		end_whole(f, o, m, moves);
	}
}
