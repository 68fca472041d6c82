/* SPDX-License-Identifier: Apache-2.0 */
/* spill: see spill.h. One thread; nothing blocks. */
#include <errno.h>

#include "daemon/front/hybrid.h"
#include "tests/sim/live.h"
#include "tests/sim/sim.h"

#define OBJECTS_LEAST 4
#define OBJECTS_MOST  60
#define LAST_ROW      (SIM_PAGE_TOKENS - 1)
#define SLOT_BYTES    4096ull

/* ---- in and out ---- */

static uint64_t image_bytes(const struct sim *w)
{
	return (w->state_bytes + SLOT_BYTES - 1) / SLOT_BYTES * SLOT_BYTES + SLOT_BYTES;
}

/* Of a few KiB; a third of a frame, so that they stand in each other's way; or more than one. */
static void draw_images(struct sim *w)
{
	struct config_pool *p = &w->config.pools[0];

	if (chance(w, 10))
		w->state_bytes = FRAME_BYTES / 3 / SLOT_BYTES * SLOT_BYTES - SLOT_BYTES;
	else if (chance(w, 5))
		w->state_bytes = SIM_STATE_MOST;
	if (w->state_bytes == SIM_STATE_BYTES)
		return;
	hybrid_piece_bytes = (256 + below(w, 2048)) * 1024ull;
	if (chance(w, 60))
		p->retained_slots = 0;
	if (chance(w, 50))
		return;
	/* Pages in several slabs, which images stand in the way of. */
	w->page_bytes = SIM_PAGE_MOST;
	if (p->pool_pages > SIM_LARGE_PAGES)
		p->pool_pages = SIM_LARGE_PAGES;
	if (p->max_sequence_length > p->pool_pages / 2 * SIM_PAGE_TOKENS)
		p->max_sequence_length = p->pool_pages / 2 * SIM_PAGE_TOKENS;
}

/* Of a hybrid pool: a frame for pages, and some for images. */
static uint32_t draw_frames(struct sim *w)
{
	if (w->page_bytes > SPILL_PAGE_BYTES)
		return 3 + below(w, 2);
	if (w->hybrid && w->state_bytes > SIM_STATE_BYTES)
		return 3 + below(w, SPILL_FRAMES - 2);
	return w->hybrid && chance(w, 95) ? 2 : 1 + below(w, 2);
}

static void draw_shares(struct sim *w, uint32_t objects)
{
	for (int i = 0; i < 2; i++) {
		struct config_namespace *n = &w->config.namespaces[i];
		uint64_t bytes = w->page_bytes + RAM_KNOWN_BYTES;
		uint64_t most = (1 + below(w, objects)) * bytes, sure = below(w, objects) * bytes;

		if (w->hybrid) {
			most += below(w, 4) * image_bytes(w);
			sure += below(w, 3) * image_bytes(w);
		}
		n->max_kv_ram_bytes = chance(w, 50) ? most : CONFIG_NULL;
		n->guaranteed_kv_ram_bytes = chance(w, 50) ? sure : 0;
	}
}

void spill_draw(struct sim *w)
{
	static const uint32_t fails[] = {0, 0, 0, 0, 20, 20, 20, 200};
	struct config_pool *p = &w->config.pools[0];
	struct sim_spill *s = &w->spill;
	uint32_t objects = OBJECTS_LEAST + below(w, OBJECTS_MOST - OBJECTS_LEAST + 1);

	if (!s->on)
		return;
	p->overcommit = w->live && chance(w, 30);
	/* Where nothing moves, more is discarded. */
	p->live_in_ram = w->live && !(p->overcommit && chance(w, 50));
	if (w->live && chance(w, 70))
		objects += OBJECTS_MOST;
	if (w->hybrid)
		draw_images(w);
	if (w->page_bytes > SPILL_PAGE_BYTES)
		objects = OBJECTS_MOST;
	else if (w->hybrid && chance(w, 60))
		objects = OBJECTS_LEAST + below(w, 20);
	/* What is live takes all of it. */
	if (w->live && w->page_bytes == SPILL_PAGE_BYTES && chance(w, 25))
		objects = 2 + below(w, 8);
	w->config.kv_ram_page_bytes = SPILL_PAGE_BYTES;
	w->config.kv_ram_bytes = objects * SPILL_OBJECT;
	p->ram_floor_tokens = chance(w, 70) ? 0 : 1 + below(w, 3 * SIM_PAGE_TOKENS);
	p->retained_interactive_ttl_s = chance(w, 50) ? 0 : 1 + below(w, 4);
	s->down_fails = fails[below(w, 8)];
	/* What is live is not given up for that: whoever waits for its pages waits until its
	 * deadline. */
	s->bad_from = chance(w, 15) ? below(w, w->options.events) : UINT32_MAX;
	s->up_fails = fails[below(w, 8)];
	s->hangs = chance(w, 15) ? 1 + below(w, 3) : 0;
	if (chance(w, 35))
		draw_shares(w, objects);
}

static void changed(void *context)
{
	core_ram_arrived(&((struct sim *)context)->core);
}

static bool run(void *context, struct job *job, int result);

void spill_begin(struct sim *w)
{
	struct arena_wish wish = {
	    .bytes = draw_frames(w) * FRAME_BYTES,
	    .chunk_bytes = FRAME_BYTES,
	    .most_objects = (uint32_t)(w->config.kv_ram_bytes / SPILL_OBJECT),
	    .numa_node = NODES_ANYWHERE,
	    .threads = 1,
	};

	w->copies.run = run;
	w->copies.context = w;
	ram_displace_hook = spill_displaced;
	park_discard_hook = live_discarded;
	if (!w->spill.on)
		return;
	sim_check(w, arena_new(&wish, &w->work.executor, changed, w, &w->spill.arena) == 0,
		  "no arena");
}

void spill_stop(struct sim *w)
{
	while (w->spill.arena && !arena_stop(w->spill.arena)) {
		while (sim_executor_step(&w->work, 0))
			;
		w->work.executor.reap(&w->work.executor, UINT32_MAX);
	}
}

void spill_end(struct sim *w)
{
	ram_displace_hook = NULL;
	park_discard_hook = NULL;
	arena_free(&w->spill.arena);
}

void spill_tell(struct sim *w)
{
	const struct sim_spill *s = &w->spill;
	const struct pool *p = sim_pool(w);

	if (p)
		sim_trace(w,
			  "of live sequences: %llu pages gave room, %llu came back, %llu lost, "
			  "%llu discarded",
			  (unsigned long long)p->stats.parked_pages,
			  (unsigned long long)p->stats.returned_pages,
			  (unsigned long long)p->stats.lost_sequences,
			  (unsigned long long)p->stats.discarded_sequences);

	sim_trace(w,
		  "of KV-RAM: %llu pages down, %llu up, %llu and %llu failed, %llu displaced, "
		  "%llu refused; %llu hits, %llu predicted, %llu cut, %llu floors",
		  (unsigned long long)s->down, (unsigned long long)s->up,
		  (unsigned long long)s->down_failed, (unsigned long long)s->n_failed,
		  (unsigned long long)s->displaced, (unsigned long long)s->refused,
		  (unsigned long long)s->hits, (unsigned long long)s->exact_hits,
		  (unsigned long long)s->cut, (unsigned long long)s->floors);
	sim_trace(w,
		  "of images: %llu down, %llu up, %llu moved inside; %llu states displaced, %llu "
		  "refused",
		  (unsigned long long)s->images_down, (unsigned long long)s->images_up,
		  (unsigned long long)s->moved, (unsigned long long)s->states_displaced,
		  (unsigned long long)s->states_refused);
}

/* ---- copies ---- */

static bool touches_arena(const struct device_move *m)
{
	return m->to == DEVICE_ARENA || m->from == DEVICE_ARENA;
}

bool spill_is_copy(const struct device_job *j)
{
	bool some = false;

	for (uint32_t i = 0; j->op == DEVICE_MOVE && i < j->n; i++)
		some |= touches_arena(&j->moves[i]);
	return some;
}

/* The places that these bytes lie in. */
static bool *places(struct sim *w, uint64_t offset, uint64_t bytes, uint32_t *n)
{
	uint64_t first = offset / SPILL_PAGE_BYTES;
	uint64_t end = (offset + bytes + SPILL_PAGE_BYTES - 1) / SPILL_PAGE_BYTES;

	sim_check(w, end <= SPILL_PLACES, "a place in KV-RAM at %llu", (unsigned long long)offset);
	*n = (uint32_t)(end - first);
	return &w->spill.good[first];
}

static void mark(struct sim *w, uint64_t offset, uint64_t bytes, bool good)
{
	uint32_t n;
	bool *at = places(w, offset, bytes, &n);

	memset(at, good, n);
}

bool spill_is_good(struct sim *w, uint64_t offset, uint64_t bytes)
{
	uint32_t n;
	const bool *at = places(w, offset, bytes, &n);

	return !memchr(at, false, n);
}

bool spill_is_whole(struct sim *w, uint32_t object)
{
	const struct frames *f = w->spill.arena->frames;
	bool good = true;

	for (uint32_t i = 0; i < frames_pieces(f, object); i++) {
		struct frames_piece piece = frames_piece(f, object, i);

		good &= spill_is_good(w, piece.offset, piece.bytes);
	}
	return good;
}

uint32_t spill_object(struct sim *w, uint64_t offset)
{
	const struct ram_pool *rp = spill_pool(w);
	const struct frames *f = w->spill.arena->frames;

	for (uint32_t i = 0; rp && i < rp->ram->most; i++) {
		for (uint32_t k = 0; rp->ram->objects[i].pool && k < frames_pieces(f, i); k++) {
			struct frames_piece piece = frames_piece(f, i, k);

			if (offset >= piece.offset && offset - piece.offset < piece.bytes)
				return i;
		}
	}
	return OBJECT_NONE;
}

bool spill_is_of_image(struct sim *w, const struct device_move *m)
{
	const struct hybrid_layout *h = &sim_core_pool(w)->layout;
	uint32_t object;

	if (!images_is_hybrid(w) || !touches_arena(m))
		return false;
	if (m->from == DEVICE_POOL || m->to == DEVICE_POOL)
		return (m->from == DEVICE_POOL ? m->from_offset : m->to_offset) >= h->state_offset;
	if (m->from == DEVICE_RETAINED || m->to == DEVICE_RETAINED)
		return true;
	object = spill_object(w, m->from_offset);
	return object != OBJECT_NONE && spill_pool(w)->ram->objects[object].image != IMAGE_NONE;
}

/* A row as it lies in the arena. */
static uint64_t stamp_at(struct sim *w, uint64_t offset, uint32_t row)
{
	const struct geometry_layer *l = &sim_core_pool(w)->geometry.layers[0];
	uint64_t stamp;

	memcpy(&stamp, w->spill.arena->memory + offset + l->offset[0] + row * l->row_bytes[0],
	       sizeof(stamp));
	return row_stamp(stamp, 0, 0);
}

/* What is spoilt stays so. */
static bool fails(struct sim *w, const struct device_move *m)
{
	bool down = m->to == DEVICE_ARENA;

	if (!touches_arena(m))
		return false;
	if (m->from == DEVICE_ARENA && !spill_is_good(w, m->from_offset, m->bytes))
		return true;
	return (down && w->event >= w->spill.bad_from) ||
	       below(w, 1000) < (down ? w->spill.down_fails : w->spill.up_fails);
}

static void note_copied(struct sim *w, const struct device_move *m)
{
	struct sim_spill *s = &w->spill;
	bool image = spill_is_of_image(w, m);

	if (m->to == DEVICE_ARENA)
		mark(w, m->to_offset, m->bytes, true);
	if (m->to == DEVICE_ARENA && m->from == DEVICE_ARENA)
		s->moved++;
	else if (m->to == DEVICE_ARENA)
		*(image ? &s->images_down : &s->down) += 1;
	else if (m->from == DEVICE_ARENA)
		*(image ? &s->images_up : &s->up) += 1;
}

/* What cannot be fetched is known by what it is; a live sequence's own page by its last row. */
static void note_lost(struct sim *w, const struct device_move *m)
{
	struct sim_failed *f = &w->spill.failed[w->spill.n_failed++ % SPILL_FAILED];
	uint32_t object = spill_object(w, m->from_offset);
	const struct ram_object *o =
	    &spill_pool(w)->ram->objects[object == OBJECT_NONE ? 0 : object];

	*f = (struct sim_failed){.image = spill_is_of_image(w, m)};
	if (object == OBJECT_NONE || o->node == NODE_NONE)
		f->stamp = stamp_at(w, m->from_offset, LAST_ROW);
	else
		f->stamp = states_stamp(w, o->node);
}

/* What is there afterwards is anything. */
static void note_failed(struct sim *w, const struct device_job *j, const struct device_move *m)
{
	struct sim_spill *s = &w->spill;
	char *arena = s->arena->memory, *pool = j->memory->segment.memory;

	if (m->to == DEVICE_ARENA) {
		s->down_failed++;
		mark(w, m->to_offset, m->bytes, false);
		memset(arena + m->to_offset, 0xd0, m->bytes);
	} else if (m->from == DEVICE_ARENA) {
		note_lost(w, m);
		mark(w, m->from_offset, m->bytes, false);
		memset(pool + m->to_offset, 0xe0, m->bytes);
		memset(arena + m->from_offset, 0xf0, m->bytes);
	}
}

static void copy(struct sim *w, struct device_job *j, int result)
{
	uint32_t n = j->n, good = 0;

	while (!result && good < n && !fails(w, &j->moves[good]))
		good++;
	if (!result) {
		j->n = good;
		j->job.run(&j->job);
		j->n = n;
		sim_check(w, j->job.result == 0 && j->n_moved == good, "a copy failed by itself");
	}
	if (good < n)
		j->job.result = result ? result : -EIO;
	for (uint32_t i = 0; i < good; i++)
		note_copied(w, &j->moves[i]);
	if (good < n)
		note_failed(w, j, &j->moves[good]);
}

static bool run(void *context, struct job *job, int result)
{
	struct device_job *j = (struct device_job *)(void *)job;
	struct sim *w = context;

	if (spill_is_copy(j) && w->spill.hangs && chance(w, 2)) {
		w->spill.hangs--;
		sim_trace(w, "%u copies do not come to their end", j->n);
		return false;
	}
	if (spill_is_copy(j)) {
		copy(w, j, result);
		return true;
	}
	if (result)
		job->result = result;
	else
		job->run(job);
	return true;
}

/* ---- what may be found ---- */

bool spill_is_calm(const struct sim *w)
{
	return list_is_empty(&w->copies.held);
}

struct ram_pool *spill_pool(struct sim *w)
{
	struct core_pool *p = sim_core_pool(w);

	return sim_pool(w) && p->ram.ram ? &p->ram : NULL;
}

uint64_t spill_offset(struct sim *w, const struct node *n)
{
	return frames_piece(w->spill.arena->frames, n->copies[TIER_RAM], 0).offset;
}

bool spill_holds(struct sim *w, const struct node *n, uint32_t row, uint64_t stamp)
{
	return n->copies[TIER_RAM] != COPY_NONE && spill_is_whole(w, n->copies[TIER_RAM]) &&
	       stamp_at(w, spill_offset(w, n), row) == stamp;
}

bool spill_has(struct sim *w, uint64_t stamp)
{
	const struct pool *p = sim_pool(w);

	for (uint32_t i = 0; spill_pool(w) && i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind == NODE_TOKENS && n->length == SIM_PAGE_TOKENS &&
		    spill_holds(w, n, LAST_ROW, stamp))
			return true;
	}
	return false;
}

struct sim_reuse spill_after_failures(const struct sim_op *o, const struct sim_text *t)
{
	struct sim *w = o->client->sim;
	const struct sim_spill *s = &w->spill;
	struct sim_reuse r = o->expected;
	uint64_t chain[SIM_TOKENS], from = o->failed_before, met;
	uint32_t end = o->expected.tokens;

	sim_check(w, s->n_failed - from <= SPILL_FAILED, "more failures than the test remembers");
	if (from == s->n_failed || r.tier != PAYLOAD_KV_RAM)
		return r;
	text_chain(t, o->client->name_space, o->n, chain);
	for (met = from; met < s->n_failed; met++) {
		for (uint32_t at = 0; at < end; at += SIM_PAGE_TOKENS) {
			if (chain[at + LAST_ROW] == s->failed[met % SPILL_FAILED].stamp)
				end = at;
		}
	}
	if (end == r.tokens)
		return r;
	while (text_is_inside_image(t, end, o->n))
		end -= SIM_PAGE_TOKENS;
	return (struct sim_reuse){.tokens = end,
				  .miss = PAYLOAD_MISS_RESTORE,
				  .tier = end == 0                ? PAYLOAD_NO_TIER
					  : end > r.device_tokens ? PAYLOAD_KV_RAM
								  : PAYLOAD_DEVICE,
				  .device_tokens = r.device_tokens};
}
