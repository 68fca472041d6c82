/* SPDX-License-Identifier: Apache-2.0 */
/* spill: see spill.h. One thread; nothing blocks. */
#include "tests/sim/sim.h"

#include <errno.h>

#define OBJECTS_LEAST 4
#define OBJECTS_MOST  60
#define LAST_ROW      (SIM_PAGE_TOKENS - 1)

/* ---- in and out ---- */

static void draw_shares(struct sim *w, uint32_t objects)
{
	for (int i = 0; i < 2; i++) {
		struct config_namespace *n = &w->config.namespaces[i];
		uint64_t most = 1 + below(w, objects), sure = below(w, objects);

		n->max_kv_ram_bytes = chance(w, 50) ? most * SPILL_OBJECT : CONFIG_NULL;
		n->guaranteed_kv_ram_bytes = chance(w, 50) ? sure * SPILL_OBJECT : 0;
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
	p->live_in_ram = w->live;
	p->overcommit = w->live && chance(w, 30);
	if (w->live && chance(w, 70))
		objects += OBJECTS_MOST;
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
	    .bytes = (1 + below(w, SPILL_FRAMES)) * FRAME_BYTES,
	    .chunk_bytes = FRAME_BYTES,
	    .most_objects = (uint32_t)(w->config.kv_ram_bytes / SPILL_OBJECT),
	    .numa_node = ARENA_ANYWHERE,
	    .threads = 1,
	};

	w->copies.run = run;
	w->copies.context = w;
	ram_displace_hook = spill_displaced;
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
}

/* ---- copies ---- */

bool spill_is_copy(const struct device_job *j)
{
	return j->op == DEVICE_MOVE &&
	       (j->moves[0].to == DEVICE_ARENA || j->moves[0].from == DEVICE_ARENA);
}

bool *spill_good(struct sim *w, uint64_t offset)
{
	uint64_t place = offset / SPILL_PAGE_BYTES;

	sim_check(w, offset % SPILL_PAGE_BYTES == 0 && place < SPILL_PLACES,
		  "a place in KV-RAM at %llu", (unsigned long long)offset);
	return &w->spill.good[place];
}

/* A row as it lies in the arena. */
static uint64_t stamp_at(struct sim *w, uint64_t offset)
{
	const struct geometry_layer *l = &sim_core_pool(w)->geometry.layers[0];
	uint64_t stamp;

	memcpy(&stamp, w->spill.arena->memory + offset + l->offset[0] + LAST_ROW * l->row_bytes[0],
	       sizeof(stamp));
	return row_stamp(stamp, 0, 0);
}

static bool fails(struct sim *w, const struct device_move *m)
{
	if (m->from == DEVICE_ARENA)
		return below(w, 1000) < w->spill.up_fails;
	return w->event >= w->spill.bad_from || below(w, 1000) < w->spill.down_fails;
}

static void note_copied(struct sim *w, const struct device_move *m)
{
	if (m->to == DEVICE_ARENA) {
		*spill_good(w, m->to_offset) = true;
		w->spill.down++;
	} else {
		w->spill.up++;
	}
}

/* What is there afterwards is anything. */
static void note_failed(struct sim *w, const struct device_job *j, const struct device_move *m)
{
	struct sim_spill *s = &w->spill;
	char *arena = s->arena->memory, *pool = j->memory->segment.memory;

	if (m->to == DEVICE_ARENA) {
		s->down_failed++;
		*spill_good(w, m->to_offset) = false;
		memset(arena + m->to_offset, 0xd0, m->bytes);
		return;
	}
	*spill_good(w, m->from_offset) = false;
	s->failed[s->n_failed++ % SPILL_FAILED] = stamp_at(w, m->from_offset);
	memset(pool + m->to_offset, 0xe0, m->bytes);
	memset(arena + m->from_offset, 0xf0, m->bytes);
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

	if (spill_is_copy(j)) {
		copy(w, j, result);
		if (!w->spill.hangs || !chance(w, 2))
			return true;
		w->spill.hangs--;
		sim_trace(w, "nobody is told of a copy of %u pages", j->n);
		return false;
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

bool spill_has(struct sim *w, uint64_t stamp)
{
	const struct pool *p = sim_pool(w);

	for (uint32_t i = 0; spill_pool(w) && i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];
		uint64_t offset;

		if (n->kind != NODE_TOKENS || n->copies[TIER_RAM] == COPY_NONE)
			continue;
		offset = spill_offset(w, n);
		if (*spill_good(w, offset) && stamp_at(w, offset) == stamp)
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
			if (chain[at + LAST_ROW] == s->failed[met % SPILL_FAILED])
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
