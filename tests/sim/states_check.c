/* SPDX-License-Identifier: Apache-2.0 */
/* states_check: what holds of retained states; see states.h. One thread; nothing blocks. */
#include "daemon/front/request.h"
#include "tests/sim/sim.h"
#include "tests/sim/states.h"

#define NODES DROPS_NODES

/* ---- copies that are on their way ---- */

static const struct image *in_slot(struct sim *w, uint64_t offset)
{
	const struct core_pool *p = sim_core_pool(w);
	const struct images *s = &p->pool.images;
	uint64_t slot = offset / (p->layout.state_stride + p->layout.ring_stride);

	for (uint32_t i = 0; i < s->n_images; i++) {
		if (s->image[i].state != IMAGE_FREE && s->image[i].slot == slot)
			return &s->image[i];
	}
	sim_fail(w, "a copy of retained slot %llu, where nothing is", (unsigned long long)slot);
}

static const struct image *in_place(struct sim *w, uint64_t offset)
{
	uint32_t object = spill_object(w, offset);

	sim_check(w, object != OBJECT_NONE, "a copy of place %llu of KV-RAM, where nothing is",
		  (unsigned long long)offset);
	return &sim_pool(w)->images.image[spill_pool(w)->ram->objects[object].image];
}

static void check_source(struct sim *w, const struct image *it, bool down)
{
	sim_check(w, it->state == IMAGE_VALID || it->state == IMAGE_DOOMED,
		  "a copy reads an image that %s",
		  it->state == IMAGE_FILLING ? "is not there yet" : "was given up");
	sim_check(w, down ? it->spilling : it->claims > 0, "a copy reads an image %s",
		  down ? "that does not go down" : "and has no claim on it");
}

static void check_target(struct sim *w, const struct image *it, bool down)
{
	sim_check(w, down ? it->spilling : it->state == IMAGE_FILLING,
		  "a copy fills the place of an image that is in use");
}

void states_check_move(struct sim *w, const struct device_move *m)
{
	bool down = m->from == DEVICE_RETAINED && m->to == DEVICE_ARENA;

	if (m->from == DEVICE_ARENA && m->to == DEVICE_ARENA) {
		sim_check(w, in_place(w, m->from_offset)->moving,
			  "an image is moved inside KV-RAM and does not know of it");
		return;
	}
	if (m->from == DEVICE_RETAINED)
		check_source(w, in_slot(w, m->from_offset), down);
	if (m->to == DEVICE_RETAINED)
		check_target(w, in_slot(w, m->to_offset), false);
	if (m->from == DEVICE_ARENA)
		check_source(w, in_place(w, m->from_offset), false);
	if (m->to == DEVICE_ARENA)
		check_target(w, in_place(w, m->to_offset), down);
}

static bool is_of_image(struct sim *w, const struct device_move *m)
{
	if (m->from == DEVICE_RETAINED || m->to == DEVICE_RETAINED)
		return true;
	return spill_is_of_image(w, m);
}

static void check_moves(struct sim *w, const struct list *jobs, uint32_t *claims)
{
	list_for_each(link, following, jobs)
	{
		const struct device_job *j =
		    (const struct device_job *)(const void *)list_entry(link, struct job, link);
		bool claim = false;

		for (uint32_t i = 0; j->op == DEVICE_MOVE && i < j->n; i++) {
			const struct device_move *m = &j->moves[i];

			if (!is_of_image(w, m))
				continue;
			states_check_move(w, m);
			claim |= m->from != DEVICE_POOL && m->to == DEVICE_POOL;
		}
		*claims += claim;
	}
}

/* ---- what keeps what ---- */

/* A state keeps its own node; a node that is kept keeps the one above. */
static void add_keeper(struct sim *w, uint32_t node, uint32_t *keepers)
{
	while (node != NODE_NONE && keepers[node]++ == 0)
		node = sim_pool(w)->prefix.nodes[node].parent;
}

static void check_kept(struct sim *w)
{
	static uint32_t kept[TIERS][NODES];
	const struct pool *p = sim_pool(w);
	const struct prefix *x = &p->prefix;

	sim_check(w, x->fresh <= NODES, "more nodes than the test remembers");
	memset(kept[TIER_DEVICE], 0, x->fresh * sizeof(kept[0][0]));
	memset(kept[TIER_RAM], 0, x->fresh * sizeof(kept[0][0]));
	for (uint32_t i = 0; i < p->images.n_images; i++) {
		const struct image *it = &p->images.image[i];

		if (it->state == IMAGE_FREE)
			continue;
		if (it->on_device)
			add_keeper(w, it->node, kept[TIER_DEVICE]);
		if (it->in_ram)
			add_keeper(w, it->node, kept[TIER_RAM]);
	}
	for (uint32_t i = 0; i < x->fresh; i++) {
		const struct node *n = &x->nodes[i];

		if (n->kind == NODE_FREE)
			continue;
		sim_check(w, n->kept == kept[TIER_DEVICE][i],
			  "a node is kept on the device by %u, counted are %u",
			  kept[TIER_DEVICE][i], n->kept);
		sim_check(w, n->kept_in_ram == kept[TIER_RAM][i],
			  "a node is kept in KV-RAM by %u, counted are %u", kept[TIER_RAM][i],
			  n->kept_in_ram);
		sim_check(w,
			  !n->kept || n->kind == NODE_ROOT || n->copies[TIER_DEVICE] != COPY_NONE,
			  "a page that a state keeps on the device is not there");
		sim_check(
		    w, !n->kept_in_ram || n->kind == NODE_ROOT || n->copies[TIER_RAM] != COPY_NONE,
		    "a page that a state keeps in KV-RAM is not there");
	}
}

static uint32_t count_lineage(const struct images *s, uint64_t lineage)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_images; i++)
		n += s->image[i].state == IMAGE_VALID && s->image[i].kind == IMAGE_CHECKPOINT &&
		     s->image[i].lineage == lineage;
	return n;
}

void states_check(struct sim *w)
{
	const struct images *s = &sim_pool(w)->images;
	uint32_t claims = 0, held = 0;

	check_moves(w, &w->copies.submitted, &claims);
	check_moves(w, &w->copies.finished, &claims);
	check_moves(w, &w->copies.held, &claims);
	for (uint32_t i = 0; i < s->n_images; i++) {
		const struct image *it = &s->image[i];

		if (it->state == IMAGE_FREE)
			continue;
		held += it->claims;
		sim_check(w, it->state == IMAGE_FILLING || it->on_device || it->in_ram,
			  "a retained state lives nowhere");
		sim_check(w, !it->in_ram || it->place != COPY_NONE || it->state == IMAGE_DOOMED,
			  "a state lives in KV-RAM, and its image does not");
		sim_check(w,
			  it->state != IMAGE_VALID || it->kind != IMAGE_CHECKPOINT ||
			      count_lineage(s, it->lineage) <= 2,
			  "a conversation keeps more than two states");
	}
	/* An open has claimed before it has released what it held. */
	sim_check(w, held >= claims, "%u claims are held, %u copies run", held, claims);
	check_kept(w);
}

/* ---- bytes ---- */

static void check_page(struct sim *w, const struct node *n, const uint64_t *rows)
{
	const struct core_pool *p = sim_core_pool(w);
	const char *pages = p->memory.segment.memory;

	for (uint32_t i = 0; i < n->length; i++) {
		if (n->copies[TIER_DEVICE] != COPY_NONE && !(n->moves & NODE_FILLING))
			memory_check_copy(w,
					  pages + n->copies[TIER_DEVICE] * p->geometry.page_stride,
					  i, rows[i], "on the device");
		/* Nobody may have been told yet that it could not be read. */
		if (node_is_in_ram(n) && !n->ram_pins)
			memory_check_copy(w, w->spill.arena->memory + spill_offset(w, n), i,
					  rows[i], "in KV-RAM");
	}
}

/* Pages after those that they stand on. */
static uint64_t check_pages_to(struct sim *w, uint32_t node, uint64_t *last, bool *done)
{
	const struct node *n = &sim_pool(w)->prefix.nodes[node];
	uint64_t rows[SIM_PAGE_TOKENS];

	if (done[node])
		return last[node];
	done[node] = true;
	if (n->kind == NODE_ROOT)
		return last[node] = states_root(w, node);
	last[node] = states_rows(w, node, check_pages_to(w, n->parent, last, done), rows);
	check_page(w, n, rows);
	return last[node];
}

static void check_image(struct sim *w, const struct image *it)
{
	uint64_t chain[SIM_TOKENS], ring[SIM_RING];
	uint32_t tokens = states_chain(w, it->node, chain);
	uint32_t from = tokens > SIM_RING_KEPT ? tokens - SIM_RING_KEPT : 0;
	const char *where = it->slot == SLOT_NONE ? "in KV-RAM" : "in a slot";

	sim_check(w, tokens == it->tokens, "a state of %u tokens is at a node of %u", it->tokens,
		  tokens);
	if (it->claims && it->slot == SLOT_NONE)
		return; /* nobody may have been told yet that it could not be read */
	sim_check(w, it->place == COPY_NONE || it->spilling || spill_is_whole(w, it->place),
		  "an image in KV-RAM is found, and its bytes are not there");
	for (uint32_t i = 0; i < SIM_STATE_WORDS; i++)
		sim_check(
		    w, states_word(w, it, i) == images_word(chain[tokens - 1], it->name_space, i),
		    "%s: word %u of the image of %u tokens is %016llx, not %016llx", where, i,
		    tokens, (unsigned long long)states_word(w, it, i),
		    (unsigned long long)images_word(chain[tokens - 1], it->name_space, i));
	memcpy(ring, states_bytes(w, it, sim_core_pool(w)->layout.state_stride), sizeof(ring));
	for (uint32_t at = from; at < tokens; at++)
		sim_check(w, ring[at % SIM_RING] == images_entry(chain[at], it->name_space),
			  "%s: the ring of the image of %u tokens is wrong at %u", where, tokens,
			  at);
}

void states_check_bytes(struct sim *w)
{
	static uint64_t last[NODES];
	static bool done[NODES];
	const struct pool *p = sim_pool(w);

	if (sim_core_pool(w)->state != CORE_POOL_READY)
		return;
	sim_check(w, p->prefix.fresh <= NODES, "more nodes than the test remembers");
	memset(done, 0, p->prefix.fresh);
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		if (p->prefix.nodes[i].kind == NODE_TOKENS)
			check_pages_to(w, i, last, done);
	}
	for (uint32_t i = 0; p->hybrid && i < p->images.n_images; i++) {
		if (p->images.image[i].state == IMAGE_VALID)
			check_image(w, &p->images.image[i]);
	}
}

/* ---- at rest ---- */

static bool is_needed(const struct node *n)
{
	return n->users || n->kept || n->kept_in_ram || n->parked;
}

void states_check_settled(struct sim *w)
{
	const struct prefix *x = &sim_pool(w)->prefix;

	for (uint32_t i = 0; i < x->fresh; i++) {
		const struct node *n = &x->nodes[i];

		if (n->kind != NODE_TOKENS)
			continue;
		sim_check(w, n->copies[TIER_DEVICE] == COPY_NONE || n->users || n->kept,
			  "a page stays on the device and nobody needs it there (%x)", n->moves);
		sim_check(w, n->copies[TIER_RAM] == COPY_NONE || is_needed(n),
			  "a page stays in KV-RAM and nobody needs it (%x)", n->moves);
	}
}

/* An open has claimed it, and waits for pages that live sequences have. */
static bool waits_with(struct sim *w, uint32_t image)
{
	const struct core_pool *p = sim_core_pool(w);

	list_for_each(link, following, (struct list *)(uintptr_t)&p->starving)
	{
		const struct request *r = list_entry(link, struct request, in_wait);

		if (r->kind == &kind_open && r->u.prompt.match.claimed &&
		    r->u.prompt.match.image == image)
			return w->live;
	}
	return false;
}

void states_check_rest(struct sim *w)
{
	const struct images *s = &sim_pool(w)->images;

	for (uint32_t i = 0; spill_is_calm(w) && i < s->n_images; i++) {
		const struct image *it = &s->image[i];

		sim_check(
		    w,
		    (!image_is_busy(it) && (it->state == IMAGE_FREE || it->state == IMAGE_VALID)) ||
			waits_with(w, i),
		    "state %u is copied by nobody and still claimed", i);
		sim_check(w,
			  it->state == IMAGE_FREE || it->slot == SLOT_NONE || it->on_device ||
			      waits_with(w, i),
			  "state %u keeps its slot and has left the device", i);
		sim_check(w,
			  it->state == IMAGE_FREE || it->slot == SLOT_NONE ||
			      it->place == COPY_NONE || waits_with(w, i),
			  "the image of state %u has two places", i);
	}
}

void states_check_empty(struct sim *w)
{
	const struct images *s = &sim_pool(w)->images;

	sim_check(w, s->lanes_free == s->n_lanes, "%u of %u lanes are free at the end",
		  s->lanes_free, s->n_lanes);
	states_check_rest(w);
	for (uint32_t i = 0; i < s->n_lanes; i++)
		sim_check(w, s->lane[i].jobs == 0, "lane %u still has work", i);
}
