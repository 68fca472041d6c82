/* SPDX-License-Identifier: Apache-2.0 */
/* images: see images.h. One thread; nothing blocks. */
#include "daemon/front/request.h"
#include "tests/sim/sim.h"

#define ALLOW(status) (1u << -(status))

/* ---- stamps and places ---- */

static uint64_t of_namespace(uint64_t stamp, uint16_t name_space)
{
	return stamp >> 8 | (uint64_t)(name_space + 1) << 56;
}

uint64_t images_word(uint64_t stamp, uint16_t name_space, uint32_t word)
{
	return of_namespace(row_stamp(stamp, 16 + word, 1), name_space);
}

uint64_t images_entry(uint64_t stamp, uint16_t name_space)
{
	return of_namespace(row_stamp(stamp, 32, 1), name_space);
}

static uint64_t state_word(const uint64_t *chain, uint32_t tokens, uint16_t name_space,
			   uint32_t word)
{
	return tokens ? images_word(chain[tokens - 1], name_space, word) : 0;
}

static uint64_t ring_entry(const uint64_t *chain, uint32_t position, uint16_t name_space)
{
	return images_entry(chain[position], name_space);
}

/* Spread over the section, to its end. */
uint64_t images_word_place(const struct sim *w, uint32_t word)
{
	const uint64_t bytes = sizeof(uint64_t);

	if (word == SIM_STATE_WORDS - 1)
		return w->state_bytes - bytes;
	return w->state_bytes / (SIM_STATE_WORDS * bytes) * bytes * word;
}

static char *memory_at(struct sim *w, uint64_t offset)
{
	const struct core_pool *p = sim_core_pool(w);

	sim_check(w, offset < p->memory.segment.bytes, "a slot lies outside the pool");
	return (char *)p->memory.segment.memory + offset;
}

static uint64_t *word_at(struct sim *w, uint32_t slot, uint32_t word)
{
	const struct hybrid_layout *h = &sim_core_pool(w)->layout;

	return (uint64_t *)(void *)(memory_at(w, h->state_offset + slot * h->state_stride) +
				    images_word_place(w, word));
}

static void read_state(struct sim *w, uint32_t slot, uint64_t state[SIM_STATE_WORDS])
{
	for (uint32_t i = 0; i < SIM_STATE_WORDS; i++)
		state[i] = *word_at(w, slot, i);
}

static uint64_t *ring_at(struct sim *w, uint32_t lane)
{
	const struct hybrid_layout *h = &sim_core_pool(w)->layout;

	return (uint64_t *)(void *)memory_at(w, h->ring_offset + lane * h->ring_stride);
}

bool images_is_hybrid(struct sim *w)
{
	return sim_pool(w) && sim_pool(w)->hybrid;
}

void images_describe(const struct sim *w, void *sections)
{
	struct payload_section *s = sections;

	s[0] = (struct payload_section){
	    .name = "s", .bytes = w->state_bytes, .kind = PAYLOAD_REPLACED};
	s[1] = (struct payload_section){
	    .name = "r", .bytes = SIM_RING * sizeof(uint64_t), .kind = PAYLOAD_RING};
}

/* n words of a state, from `first` on. */
static void check_words(struct sim *w, const uint64_t *found, uint32_t first, uint32_t n,
			const struct sim_view *v, uint16_t name_space, const char *what)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t word = state_word(v->chain, v->committed, name_space, first + i);

		sim_check(w, found[i] == word,
			  "%s: word %u of the state of %u tokens is %016llx, not %016llx", what,
			  first + i, v->committed, (unsigned long long)found[i],
			  (unsigned long long)word);
	}
}

static void check_state(struct sim *w, uint32_t slot, const struct sim_view *v, uint16_t name_space,
			const char *what)
{
	uint64_t state[SIM_STATE_WORDS];

	read_state(w, slot, state);
	check_words(w, state, 0, SIM_STATE_WORDS, v, name_space, what);
}

static void check_ring(struct sim *w, const uint64_t *found, const uint64_t *chain, uint32_t tokens,
		       uint16_t name_space, const char *what)
{
	uint32_t from = tokens > SIM_RING_KEPT ? tokens - SIM_RING_KEPT : 0;

	for (uint32_t at = from; at < tokens; at++)
		sim_check(w, found[at % SIM_RING] == ring_entry(chain, at, name_space),
			  "%s: the ring has %016llx for position %u of %u, not %016llx", what,
			  (unsigned long long)found[at % SIM_RING], at, tokens,
			  (unsigned long long)ring_entry(chain, at, name_space));
}

/* Nothing that another namespace has written. */
static void check_own(struct sim *w, const uint64_t *found, uint32_t n, uint16_t name_space)
{
	for (uint32_t i = 0; i < n; i++)
		sim_check(w, found[i] == 0 || found[i] >> 56 == name_space + 1u,
			  "a slot of namespace %u holds %016llx, of another one", name_space,
			  (unsigned long long)found[i]);
}

/* ---- the set of captures ---- */

static uint32_t place_of(const struct sim_captures *s, uint64_t stamp)
{
	uint32_t at = (uint32_t)(stamp % SIM_CAPTURES);

	while (s->stamp[at] && s->stamp[at] != stamp)
		at = (at + 1) % SIM_CAPTURES;
	return at;
}

static void note_capture(struct sim *w, uint64_t stamp)
{
	uint32_t at = place_of(&w->asked, stamp);

	sim_check(w, w->asked.n < SIM_CAPTURES / 2, "more captures than the test remembers");
	w->asked.n += w->asked.stamp[at] == 0;
	w->asked.stamp[at] = stamp;
}

void images_forget(struct sim *w)
{
	memset(&w->asked, 0, sizeof(w->asked));
}

/* ---- what a client does ---- */

static struct sim_op *new_range(struct sim_client *c, uint16_t opcode, struct sim_view *v,
				const struct payload_section_range *range, const void *bytes)
{
	struct sim_op *o = op_new(c, opcode, v);
	uint32_t n = bytes ? (uint32_t)range->bytes : 0;
	struct payload_section_range *p = op_in(o, (uint32_t)sizeof(*p) + n);

	*p = *range;
	if (n)
		memcpy(p + 1, bytes, n);
	o->e.deadline_us = chance(c->sim, 20) ? 1 + below(c->sim, 20000) : 5000000;
	return o;
}

static void send_words(struct sim_client *c, struct sim_view *v, uint32_t section, uint64_t offset,
		       uint32_t n, const uint64_t *words)
{
	struct payload_section_range range = {
	    .section = section, .offset = offset, .bytes = n * sizeof(*words)};
	struct sim_op *o;

	if (n == 0)
		return;
	o = new_range(c, WIRE_OP_IMAGE_WRITE, v, &range, words);
	o->e.index = v->step_index;
	o->e.generation = v->step_generation;
	op_send(o);
}

/* Words that lie side by side go in two parts, the others one by one. */
static void send_state(struct sim_client *c, struct sim_view *v,
		       const uint64_t state[SIM_STATE_WORDS])
{
	uint32_t half = below(c->sim, SIM_STATE_WORDS + 1);

	if (c->sim->state_bytes == SIM_STATE_BYTES) {
		send_words(c, v, 0, 0, half, state);
		send_words(c, v, 0, half * sizeof(*state), SIM_STATE_WORDS - half, state + half);
		return;
	}
	for (uint32_t i = 0; i < SIM_STATE_WORDS; i++)
		send_words(c, v, 0, images_word_place(c->sim, i), 1, &state[i]);
}

static void fill_ring(const struct sim_client *c, const struct sim_view *v, uint32_t from,
		      uint32_t end, uint64_t *ring)
{
	for (uint32_t at = from; at < end; at++)
		ring[at % SIM_RING] = ring_entry(v->chain, at, c->name_space);
}

/* The state after `tokens` of the step, and the ring as far as rows are written. */
void images_write(struct sim_client *c, struct sim_view *v, uint32_t tokens, uint32_t written)
{
	uint32_t from = v->start, end = from + written, first = from % SIM_RING, wrapped;
	uint64_t state[SIM_STATE_WORDS], ring[SIM_RING];

	for (uint32_t i = 0; i < SIM_STATE_WORDS; i++)
		state[i] = state_word(v->chain, v->start + tokens, c->name_space, i);
	if (c->sim->mapped && chance(c->sim, 80)) {
		for (uint32_t i = 0; i < SIM_STATE_WORDS; i++)
			*word_at(c->sim, v->slots.target, i) = state[i];
		fill_ring(c, v, from, end, ring_at(c->sim, v->slots.ring));
		return;
	}
	fill_ring(c, v, from, end, ring);
	wrapped = first + written > SIM_RING ? first + written - SIM_RING : 0;
	send_state(c, v, state);
	send_words(c, v, 1, first * sizeof(*ring), written - wrapped, ring + first);
	send_words(c, v, 1, 0, wrapped, ring);
}

/* A mapped client writes while it believes that its step is open, be it dead for the daemon. */
void images_scribble(struct sim_client *c, const struct sim_view *v, uint32_t from)
{
	for (uint32_t i = 0; i < SIM_STATE_WORDS; i++)
		*word_at(c->sim, v->slots.target, i) =
		    state_word(v->chain, v->target, c->name_space, i) ^ 1;
	fill_ring(c, v, from, v->target, ring_at(c->sim, v->slots.ring));
}

void ask_checkpoint(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	struct sim_op *o = op_new(c, WIRE_OP_CHECKPOINT, v);

	o->e.arg0 = v->committed;
	if (chance(w, 4)) {
		o->e.arg0 = v->committed + 1;
		o->allowed = ALLOW(WIRE_EINVAL);
	}
	if (v->step)
		o->allowed = ALLOW(WIRE_EBUSY) | ALLOW(WIRE_EINVAL);
	if (v->stuck)
		o->allowed |= ALLOW(WIRE_EBUSY);
	if (!c->hybrid)
		o->allowed = ALLOW(WIRE_ENOTSUP);
	else if (v->committed)
		note_capture(w, v->chain[v->committed - 1]);
	o->exact = model_is_quiet(w, NULL);
	o->failed_before = w->spill.down_failed;
	o->refused_before = w->spill.states_refused;
	o->e.deadline_us = chance(w, 30) ? 1 + below(w, 20000) : 5000000;
	op_send(o);
}

/* The whole section; of a large state one word. */
void ask_image_read(struct sim_client *c, struct sim_view *v)
{
	struct sim *w = c->sim;
	struct payload_section_range range = {.section = below(w, SIM_SECTIONS)};
	uint32_t n = range.section ? SIM_RING : SIM_STATE_WORDS, first = 0;
	struct sim_op *o;

	if (range.section == 0 && w->state_bytes != SIM_STATE_BYTES) {
		n = 1;
		first = below(w, SIM_STATE_WORDS);
		range.offset = images_word_place(w, first);
	}
	range.bytes = n * sizeof(uint64_t);
	if (chance(w, 6))
		range.section = SIM_SECTIONS;
	o = new_range(c, WIRE_OP_IMAGE_READ, v, &range, NULL);
	if (range.section == SIM_SECTIONS)
		o->allowed = ALLOW(WIRE_EINVAL);
	if (!c->hybrid)
		o->allowed = ALLOW(WIRE_ENOTSUP);
	if (v->step && chance(w, 50)) {
		o->e.index = v->step_index;
		o->e.generation = v->step_generation;
	}
	o->side = range.section;
	o->first = first;
	o->n = n;
	op_out(o, (uint32_t)range.bytes);
	op_send(o);
}

/* ---- what came back ---- */

void took_checkpoint(struct sim_op *o, const struct completion *reply)
{
	const struct sim_view *v = o->view;
	struct sim *w = o->client->sim;
	const struct config_pool *k = &w->config.pools[0];
	bool off =
	    v->no_reuse || !k->enable_prefix_caching || (k->retained_slots == 0 && !spill_pool(w));
	bool is_short = v->committed == 0 || v->committed < k->min_capture_tokens;
	uint64_t what = reply->value0;
	bool kept = what == PAYLOAD_CAPTURE_MADE || what == PAYLOAD_CAPTURE_EXISTS;

	sim_check(w, what < PAYLOAD_CAPTURE_COUNT && reply->value1 == v->committed,
		  "a checkpoint at %llu of %u tokens is %llu", (unsigned long long)reply->value1,
		  v->committed, (unsigned long long)what);
	sim_check(w, !off || what == PAYLOAD_CAPTURE_OFF, "a capture although reuse is off: %llu",
		  (unsigned long long)what);
	sim_check(w, off || (what == PAYLOAD_CAPTURE_SHORT) == is_short,
		  "a capture at %u tokens, the least is %llu: %llu", v->committed,
		  (unsigned long long)k->min_capture_tokens, (unsigned long long)what);
	sim_check(w, !kept || !text_is_inside_image(&v->text, v->committed, v->committed),
		  "a state is captured at %u, inside an image", v->committed);
	sim_check(w,
		  !o->exact || what != PAYLOAD_CAPTURE_NO_SLOT ||
		      w->spill.down_failed > o->failed_before ||
		      (k->retained_slots == 0 && (w->spill.states_refused > o->refused_before ||
						  w->page_bytes > SPILL_PAGE_BYTES)),
		  "no slot for a capture, and nothing else happens");
	w->captures += what == PAYLOAD_CAPTURE_MADE;
	if (o->exact && kept && k->max_prefix_cache_pages == CONFIG_NULL)
		sim_check(w,
			  states_find(w, v->chain[v->committed - 1], o->client->name_space) !=
			      IMAGE_NONE,
			  "a state was captured at %u and is not there", v->committed);
}

void took_image(const struct sim_op *o)
{
	const struct sim_view *v = o->view;
	struct sim *w = o->client->sim;

	if (o->side == 0)
		check_words(w, op_answer(o), o->first, o->n, v, o->client->name_space, "read");
	else
		check_ring(w, op_answer(o), v->chain, v->committed, o->client->name_space, "read");
}

static bool is_of_lane(const struct hybrid_layout *h, uint64_t offset, uint32_t lane)
{
	if (offset >= h->ring_offset)
		return (offset - h->ring_offset) / h->ring_stride == lane;
	return offset >= h->state_offset &&
	       (offset - h->state_offset) / h->state_stride / 2 == lane;
}

static bool touches(const struct list *jobs, const struct hybrid_layout *h, uint32_t lane)
{
	list_for_each(link, following, jobs)
	{
		const struct device_job *j =
		    (const struct device_job *)(const void *)list_entry(link, struct job, link);

		for (uint32_t i = 0; j->op == DEVICE_MOVE && i < j->n; i++) {
			const struct device_move *m = &j->moves[i];

			if ((m->to == DEVICE_POOL && is_of_lane(h, m->to_offset, lane)) ||
			    (m->from == DEVICE_POOL && is_of_lane(h, m->from_offset, lane)))
				return true;
		}
	}
	return false;
}

/* Does a copy that has not been done touch it? */
static bool has_moves(struct sim *w, uint32_t lane)
{
	const struct hybrid_layout *h = &sim_core_pool(w)->layout;

	return touches(&w->copies.submitted, h, lane) || touches(&w->copies.finished, h, lane);
}

static bool is_still_written(struct sim *w, const struct sim_view *mine, uint32_t lane)
{
	for (uint32_t i = 0; w->mapped && i < w->n_clients; i++) {
		for (uint32_t k = 0; k < SIM_SEQUENCES; k++) {
			const struct sim_view *v = &w->clients[i].views[k];

			if (v != mine && v->used && v->step && v->slots.ring == lane)
				return true;
		}
	}
	return false;
}

void took_slots(struct sim_op *o)
{
	const struct payload_step_slots *s = op_answer(o);
	struct sim_view *v = o->view;
	struct sim *w = o->client->sim;
	const struct images *x = &sim_pool(w)->images;
	uint16_t name_space = o->client->name_space;
	uint64_t target[SIM_STATE_WORDS];

	v->slots = (struct sim_slots){s->source, s->target, s->ring, s->generation};
	sim_check(w, s->ring < x->n_lanes && s->source / 2 == s->ring && s->target / 2 == s->ring,
		  "the slots of a step are %u, %u and %u", s->source, s->target, s->ring);
	sim_check(w, s->source != s->target, "a step reads and writes slot %u", s->source);
	sim_check(w, !is_still_written(w, v, s->ring),
		  "lane %u is handed out while somebody may write to it", s->ring);
	if (w->now_ns - o->sent_ns > NS_PER_S)
		return; /* the answer lay there: the step may have ended */
	sim_check(w, s->generation == x->lane[s->ring].generation && s->generation % 2,
		  "the slots of a step are not in use");
	sim_check(w, !has_moves(w, s->ring), "a step begins while a copy of its slots runs");
	read_state(w, s->target, target);
	check_own(w, target, SIM_STATE_WORDS, name_space);
	check_own(w, ring_at(w, s->ring), SIM_RING, name_space);
	check_state(w, s->source, v, name_space, "step begin");
	check_ring(w, ring_at(w, s->ring), v->chain, v->committed, name_space, "step begin");
}

static void check_points(struct sim_op *o, const struct sim_view *v)
{
	const struct payload_open_result *r = op_answer(o);
	struct sim *w = o->client->sim;

	sim_check(w, r->n_points <= PAYLOAD_POINTS_MAX, "%u capture points", r->n_points);
	for (uint32_t i = 0; i < r->n_points; i++) {
		uint32_t least = i ? r->points[i - 1] + 1 : r->cached_tokens + 1;

		sim_check(w,
			  r->points[i] >= least && r->points[i] <= o->n &&
			      r->points[i] >= w->config.pools[0].min_capture_tokens &&
			      !text_is_inside_image(&v->text, r->points[i], o->n),
			  "a capture point at %u of %u tokens, %u cached", r->points[i], o->n,
			  r->cached_tokens);
	}
}

/* What an open goes on from is the youngest thing in the pool; unless it had to make room itself
 * when its image was copied. */
static void check_claimed(struct sim_op *o, const struct sim_view *v, uint64_t stamp)
{
	const struct payload_open_result *r = op_answer(o);
	struct sim *w = o->client->sim;
	const struct images *s = &sim_pool(w)->images;
	uint32_t image = states_find(w, stamp, o->client->name_space);
	const struct image *it;

	if (image == IMAGE_NONE)
		return;
	it = &s->image[image];
	sim_check(w, it->touched == s->next_touch, "a state was claimed by touch %llu, its is %llu",
		  (unsigned long long)s->next_touch, (unsigned long long)it->touched);
	sim_check(w, it->interactive || !v->interactive,
		  "an interactive request has claimed a state that ranks as an agent's");
	sim_check(w, it->is_protected || r->tier != PAYLOAD_KV_RAM,
		  "a state has come back from KV-RAM and is still on probation");
}

void took_state(struct sim_op *o, struct sim_view *v)
{
	const struct payload_open_result *r = op_answer(o);
	struct sim *w = o->client->sim;
	uint64_t stamp = r->cached_tokens ? v->chain[r->cached_tokens - 1] : 0;

	sim_check(w, (r->kind != 0) == (r->cached_tokens != 0), "%u tokens of kind %u",
		  r->cached_tokens, r->kind);
	check_points(o, v);
	if (!stamp)
		return;
	w->claims++;
	sim_check(w, w->asked.stamp[place_of(&w->asked, stamp)] == stamp,
		  "%u tokens are reused, and no state was captured there", r->cached_tokens);
	if (o->exact)
		check_claimed(o, v, stamp);
}

/* ---- checks ---- */

void images_check_view(struct sim_client *c, const struct sim_view *v)
{
	struct sim *w = c->sim;
	const struct sequence *q =
	    slots_find(&w->core.sequences, (struct slot_handle){v->index, v->generation});
	const uint64_t *ring;

	if (!q || !q->seq)
		return;
	sim_check(w, q->seq->lane < sim_pool(w)->images.n_lanes, "a sequence has no lane");
	ring = ring_at(w, q->seq->lane);
	check_state(w, seq_source_slot(q->seq), v, c->name_space, "committed");
	check_ring(w, ring, v->chain, v->committed, c->name_space, "committed");
	check_own(w, ring, SIM_RING, c->name_space);
}
