/* SPDX-License-Identifier: Apache-2.0 */
/* states: see states.h: what is found. What holds is in states_check.c. */
#include "tests/sim/states.h"

#include "tests/sim/sim.h"

/* ---- what a node is ---- */

uint64_t states_rows(struct sim *w, uint32_t node, uint64_t above, uint64_t *rows)
{
	const struct prefix *p = &sim_pool(w)->prefix;
	const struct node *n = &p->nodes[node];
	const struct prefix_images *images = n->images ? &p->images[n->images - 1] : NULL;
	const uint32_t *tokens = prefix_tokens(p, node);
	uint32_t at = 0;

	for (uint32_t i = 0; i < n->length; i++) {
		for (; images && at < images->n &&
		       images->image[at].start == n->position * SIM_PAGE_TOKENS + i;
		     at++)
			above = text_stamp_image(above, images->image[at].digest[0],
						 images->image[at].length);
		above = text_stamp_token(above, tokens[i]);
		rows[i] = above;
	}
	return above;
}

uint64_t states_root(struct sim *w, uint32_t node)
{
	const struct prefix *p = &sim_pool(w)->prefix;
	uint8_t variant;

	memcpy(&variant, prefix_tokens(p, node), sizeof(variant));
	return text_stamp_root(p->nodes[node].name_space, variant);
}

uint32_t states_chain(struct sim *w, uint32_t node, uint64_t *chain)
{
	const struct prefix *p = &sim_pool(w)->prefix;
	uint32_t path[SIM_TABLE], n = 0, tokens = 0;
	uint64_t above;

	for (; p->nodes[node].kind == NODE_TOKENS; node = p->nodes[node].parent) {
		sim_check(w, n < SIM_TABLE, "a chain has more pages than a sequence");
		path[n++] = node;
	}
	above = states_root(w, node);
	while (n-- > 0) {
		above = states_rows(w, path[n], above, chain + tokens);
		tokens += p->nodes[path[n]].length;
	}
	return tokens;
}

uint64_t states_stamp(struct sim *w, uint32_t node)
{
	uint64_t chain[SIM_TOKENS];
	uint32_t tokens = states_chain(w, node, chain);

	return tokens ? chain[tokens - 1] : 0;
}

/* ---- where an image lies ---- */

const char *states_bytes(struct sim *w, const struct image *it, uint64_t offset)
{
	const struct core_pool *p = sim_core_pool(w);
	uint64_t stride = p->layout.state_stride + p->layout.ring_stride;

	if (it->slot != SLOT_NONE)
		return (const char *)p->memory.retained.memory + it->slot * stride + offset;
	for (uint32_t i = 0; i < frames_pieces(w->spill.arena->frames, it->place); i++) {
		struct frames_piece piece = frames_piece(w->spill.arena->frames, it->place, i);

		if (offset < piece.bytes)
			return w->spill.arena->memory + piece.offset + offset;
		offset -= piece.bytes;
	}
	sim_fail(w, "an image has fewer bytes than its pool says");
}

uint64_t states_word(struct sim *w, const struct image *it, uint32_t word)
{
	uint64_t found;

	memcpy(&found, states_bytes(w, it, images_word_place(w, word)), sizeof(found));
	return found;
}

static bool can_be_read(struct sim *w, const struct image *it)
{
	return it->state == IMAGE_VALID && (it->slot != SLOT_NONE || spill_is_whole(w, it->place));
}

uint32_t states_find(struct sim *w, uint64_t stamp, uint16_t name_space)
{
	const struct images *s = &sim_pool(w)->images;

	for (uint32_t i = 0; i < s->n_images; i++) {
		const struct image *it = &s->image[i];

		if (it->state == IMAGE_VALID &&
		    states_word(w, it, 0) == images_word(stamp, name_space, 0) &&
		    can_be_read(w, it))
			return i;
	}
	return IMAGE_NONE;
}

/* ---- what a prompt may go on from ---- */

/* Of a part of a page: of such a length, ending with this row. */
static bool find_part(struct sim *w, uint64_t stamp, uint32_t length, bool *on_device)
{
	const struct pool *p = sim_pool(w);
	bool found = false;

	*on_device = false;
	for (uint32_t i = 0; i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind != NODE_TOKENS || n->length != length)
			continue;
		if (n->copies[TIER_DEVICE] != COPY_NONE && !(n->moves & NODE_FILLING) &&
		    memory_stamp(w, n->copies[TIER_DEVICE], length - 1) == stamp)
			found = *on_device = true;
		else if (spill_holds(w, n, length - 1, stamp))
			found = true;
	}
	return found;
}

/* Pages of the prompt that can be read, one after another; of them, on the device. */
static void count_pages(struct sim *w, const struct sim_prompt *p, uint32_t most, uint32_t *known,
			uint32_t *device)
{
	*known = *device = 0;
	for (uint32_t end = SIM_PAGE_TOKENS; end <= most; end += SIM_PAGE_TOKENS) {
		bool here = model_is_indexed(w, p->chain[end - 1]);

		if (!here && !spill_has(w, p->chain[end - 1]))
			break;
		*device += here && *device == *known;
		++*known;
	}
}

static void list_states(struct sim *w, const struct sim_prompt *p, uint32_t most, uint32_t known,
			uint32_t device, struct sim_states *found)
{
	const struct images *s = &sim_pool(w)->images;
	uint32_t full = (known + 1) * SIM_PAGE_TOKENS - 1;

	found->n = 0;
	for (uint32_t at = most < full ? most : full; at > 0; at--) {
		uint32_t image = states_find(w, p->chain[at - 1], p->name_space);
		bool part = at % SIM_PAGE_TOKENS, here = true;
		const struct image *it;

		if (image == IMAGE_NONE || text_is_inside_image(p->text, at, p->n))
			continue;
		if (part && !find_part(w, p->chain[at - 1], at % SIM_PAGE_TOKENS, &here))
			continue;
		it = &s->image[image];
		sim_check(w, found->n < SIM_STATES, "more states than the test remembers");
		found->state[found->n++] = (struct sim_state){
		    .image = image,
		    .tokens = at,
		    .id = it->id,
		    .below = at / SIM_PAGE_TOKENS > device || !here || !it->on_device};
	}
}

static const struct sim_state *first_on_device(const struct sim_states *found)
{
	for (uint32_t i = 0; i < found->n; i++) {
		if (!found->state[i].below)
			return &found->state[i];
	}
	return NULL;
}

struct sim_reuse states_match(struct sim *w, const struct sim_prompt *p, struct sim_states *found)
{
	static const struct sim_state none;
	uint32_t most = p->max_cached < p->n - 1 ? p->max_cached : p->n - 1, known, device;
	struct sim_reuse r = {.miss = p->max_cached < p->n - 1 ? PAYLOAD_MISS_LIMIT
							       : PAYLOAD_MISS_NONE};
	const struct sim_state *first, *here, *chosen;

	while (text_is_inside_image(p->text, most, p->n)) {
		most--;
		r.miss = PAYLOAD_MISS_IMAGE;
	}
	count_pages(w, p, most, &known, &device);
	list_states(w, p, most, known, device, found);
	first = found->n ? &found->state[0] : &none;
	here = first_on_device(found);
	here = here ? here : &none;
	chosen = first->tokens - here->tokens < w->config.pools[0].ram_floor_tokens ? here : first;
	r.tokens = chosen->tokens;
	r.tier = chosen->tokens == 0 ? PAYLOAD_NO_TIER
		 : chosen->below     ? PAYLOAD_KV_RAM
				     : PAYLOAD_DEVICE;
	r.device_tokens = device * SIM_PAGE_TOKENS;
	if (chosen != first)
		r.miss = PAYLOAD_MISS_FLOOR;
	else if (r.tokens < most && known == 0 && r.tokens == 0)
		r.miss = PAYLOAD_MISS_NO_MATCH;
	else if (r.tokens < most)
		r.miss = known < most / SIM_PAGE_TOKENS && r.tokens >= known * SIM_PAGE_TOKENS
			     ? PAYLOAD_MISS_DIVERGED
			     : PAYLOAD_MISS_GONE;
	return r;
}

/* ---- after failures ---- */

/* Could its image, or one of its pages, not be fetched since the open was asked for? */
static bool is_lost(const struct sim_op *o, const uint64_t *chain, uint32_t tokens)
{
	const struct sim_spill *s = &o->client->sim->spill;

	for (uint64_t met = o->failed_before; met < s->n_failed; met++) {
		const struct sim_failed *f = &s->failed[met % SPILL_FAILED];

		if (f->stamp == chain[tokens - 1])
			return true;
		for (uint32_t end = SIM_PAGE_TOKENS; !f->image && end <= tokens;
		     end += SIM_PAGE_TOKENS) {
			if (f->stamp == chain[end - 1])
				return true;
		}
	}
	return false;
}

/* And worth while. */
static bool is_still_there(struct sim *w, const struct sim_state *s)
{
	const struct image *it = &sim_pool(w)->images.image[s->image];

	return it->state == IMAGE_VALID && it->id == s->id &&
	       (w->config.pools[0].ram_floor_tokens == 0 || (!s->below && it->on_device));
}

bool states_check_after_failures(struct sim_op *o, const struct sim_text *t,
				 const struct payload_open_result *r)
{
	struct sim *w = o->client->sim;
	const struct sim_states *found = &o->states;
	const struct sim_state *got = NULL;
	uint64_t chain[SIM_TOKENS];

	sim_check(w, w->spill.n_failed - o->failed_before <= SPILL_FAILED,
		  "more failures than the test remembers");
	text_chain(t, o->client->name_space, o->n, chain);
	if (o->expected.tokens == 0 || !is_lost(o, chain, o->expected.tokens))
		return false;
	for (uint32_t i = 0; i < found->n; i++) {
		const struct sim_state *s = &found->state[i];
		bool lost = is_lost(o, chain, s->tokens);

		if (s->tokens == r->cached_tokens) {
			sim_check(w, !lost, "%u tokens are reused that could not be fetched",
				  s->tokens);
			got = s;
		}
		/* Others may have been given up to make room for what was fetched. */
		sim_check(w, lost || s->tokens <= r->cached_tokens || !is_still_there(w, s),
			  "%u tokens are reused, and a state of %u is there", r->cached_tokens,
			  s->tokens);
	}
	sim_check(w, got || r->cached_tokens == 0, "%u tokens are reused, where no state was",
		  r->cached_tokens);
	sim_check(w, r->miss == PAYLOAD_MISS_RESTORE, "the reason is %u after a failure", r->miss);
	sim_check(w, !got || !got->below || r->tier == PAYLOAD_KV_RAM,
		  "%u tokens from KV-RAM come from tier %u", r->cached_tokens, r->tier);
	return true;
}
