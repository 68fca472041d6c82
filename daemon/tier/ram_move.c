/* SPDX-License-Identifier: Apache-2.0 */
/* ram_move: copies between a device and the arena; see ram.h. Core thread; nothing here blocks. */
#include <errno.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/park.h"
#include "daemon/tier/ram_internal.h"

static struct ram_queue *queue_of(struct ram_pool *rp, bool up)
{
	return up ? &rp->up : &rp->down;
}

static struct ram_item *item_at(const struct ram_queue *q, uint32_t place)
{
	return &q->items[place & q->mask];
}

/* Its place is not given to anybody, nor moved, until it was told of. */
static uint32_t ask(struct ram_pool *rp, bool up, struct ram_item item)
{
	struct ram_queue *q = queue_of(rp, up);

	if (protection(places_wait_for_copies))
		frames_pin(rp->ram->arena->frames, item.place);
	must(q->asked - q->told <= q->mask);
	*item_at(q, q->asked) = item;
	return q->asked++;
}

static struct ram_item item_of(const struct ram_pool *rp, uint32_t node)
{
	const struct node *n = &rp->pool->prefix.nodes[node];

	return (struct ram_item){
	    .node = node, .page = n->copies[TIER_DEVICE], .place = n->copies[TIER_RAM]};
}

_Static_assert(sizeof(struct record_span) == sizeof(struct key_image), "the same layout");
_Static_assert(RAM_PIECES_MAX * sizeof(struct record_extent) +
		       RECORD_SPANS_MAX * sizeof(struct record_span) +
		       RECORD_TOKENS_MAX * sizeof(uint32_t) <=
		   RECORD_PARTS_BYTES,
	       "whatever a page has fits its record");

/* What lies in this place is about to be this page. */
static void describe(struct ram_pool *rp, uint32_t node)
{
	const struct ram *r = rp->ram;
	const struct prefix *p = &rp->pool->prefix;
	const struct node *n = &p->nodes[node], *above = &p->nodes[n->parent];
	const struct prefix_images *images = n->images ? &p->images[n->images - 1] : NULL;
	uint32_t object = n->copies[TIER_RAM];
	struct record_extent extents[RAM_PIECES_MAX];
	struct record record = {.kind = RECORD_PAGE,
				.boot_nonce = r->boot_nonce,
				.id = n->id,
				.parent_nonce = r->boot_nonce,
				.parent_id = above->id,
				.key = {n->key.low, n->key.high},
				.epoch = p->epoch,
				.position = n->position,
				.n_tokens = n->length,
				.n_spans = images ? (uint16_t)images->n : 0,
				.n_extents = ram_find_extents(r, object, extents, RAM_PIECES_MAX),
				.payload_bytes = rp->page_bytes};
	struct record_parts parts = {.tokens = prefix_tokens(p, node),
				     .spans = images ? (const void *)images->image : NULL,
				     .extents = extents};

	memcpy(record.stamp, p->stamp, sizeof(record.stamp));
	memcpy(record.name_space, r->shares[n->name_space].digest, sizeof(record.name_space));
	if (!record_write(arena_header(r->arena, object), &record, &parts))
		cannot_happen("a page has more image spans than tokens, or more frames than a job");
}

void ram_down(void *context, uint32_t node)
{
	struct ram_pool *rp = context;

	ask(rp, false, item_of(rp, node));
	ram_bytes_come(rp->ram, rp->pool->prefix.nodes[node].copies[TIER_RAM]);
}

void ram_up(void *context, uint32_t node)
{
	struct ram_pool *rp = context;

	ask(rp, true, item_of(rp, node));
}

uint32_t ram_move_private(void *context, bool up, struct seq *s, uint32_t index, uint32_t page,
			  uint32_t place)
{
	return ask(context, up,
		   (struct ram_item){
		       .node = NODE_NONE, .page = page, .place = place, .index = index, .seq = s});
}

void ram_orphan(void *context, bool up, uint32_t ticket)
{
	const struct ram_queue *q = queue_of(context, up);

	must(ticket - q->told < q->asked - q->told);
	item_at(q, ticket)->seq = NULL;
}

/* ---- jobs ---- */

static void came(struct ram_pool *rp, bool up, struct ram_item item, int result)
{
	struct ram *r = rp->ram;

	if (up ? failpoint(ram_restore) : failpoint(ram_spill))
		result = -EIO;
	if (protection(places_wait_for_copies))
		frames_unpin(r->arena->frames, item.place);
	queue_of(rp, up)->sums.bytes += result ? 0 : rp->page_bytes;
	if (item.node == NODE_NONE) {
		park_moved(rp->pool, item.seq, up, item.index, item.page, item.place, result);
		return;
	}
	if (up) {
		if (result)
			record_set_state(arena_header(r->arena, item.place), RECORD_FILLING);
		pool_came_up(rp->pool, item.node, result);
		return;
	}
	if (!result)
		record_set_state(arena_header(r->arena, item.place), RECORD_VALID);
	pool_came_down(rp->pool, item.node, result);
}

static void send(struct ram_job *j)
{
	j->finished = false;
	j->busy = true;
	j->pool->in_flight++;
	j->pool->device->submit(j->pool->device, &j->job);
}

/* One page has failed: what was behind it is tried without it. */
static void send_rest(struct ram_job *j, uint32_t pages)
{
	uint32_t from = 0;

	while (j->page_of[from] < pages)
		from++;
	j->first += pages;
	j->n -= pages;
	j->job.n -= from;
	memmove(j->moves, j->moves + from, j->job.n * sizeof(*j->moves));
	for (uint32_t i = 0; i < j->job.n; i++)
		j->page_of[i] = (uint8_t)(j->page_of[from + i] - pages);
	j->job.n_moved = 0;
	send(j);
}

/* Tell of what the oldest jobs have done. */
static void tell(struct ram_pool *rp, bool up)
{
	struct ram_queue *q = queue_of(rp, up);
	bool told = false;

	while (q->jobs[q->first_job].busy && q->jobs[q->first_job].finished) {
		struct ram_job *j = &q->jobs[q->first_job];
		bool failed = j->job.job.result != 0;
		uint32_t good = failed ? j->page_of[j->job.n_moved] : j->n;

		must(j->first == q->told && good + failed <= j->n);
		for (uint32_t i = 0; i < good + failed; i++)
			came(rp, up, *item_at(q, q->told++), i < good ? 0 : j->job.job.result);
		told = true;
		if (good + failed < j->n) {
			send_rest(j, good + failed);
			break;
		}
		j->busy = false;
		q->first_job = (q->first_job + 1) % RAM_JOBS;
	}
	if (told)
		rp->moved(rp->context);
}

static void job_done(struct job *job)
{
	struct ram_job *j = (struct ram_job *)(void *)job;
	struct ram_sums *sums = &queue_of(j->pool, j->up)->sums;

	must(j->pool->in_flight > 0);
	j->pool->in_flight--;
	j->finished = true;
	sums->busy_ns += j->job.busy_ns;
	sums->copies += j->job.n_copies;
	/* What is left of it may be sent again. */
	j->job.busy_ns = 0;
	j->job.n_copies = 0;
	tell(j->pool, j->up);
}

static void add_page(struct ram_pool *rp, struct ram_job *j, const struct ram_item *item)
{
	const struct frames *f = rp->ram->arena->frames;
	uint64_t page = item->page * rp->page_bytes;
	uint32_t n = frames_pieces(f, item->place);

	for (uint32_t i = 0; i < n; i++) {
		struct frames_piece piece = frames_piece(f, item->place, i);

		j->page_of[j->job.n] = (uint8_t)j->n;
		j->moves[j->job.n++] =
		    (struct device_move){.to = j->up ? DEVICE_POOL : DEVICE_ARENA,
					 .from = j->up ? DEVICE_ARENA : DEVICE_POOL,
					 .to_offset = j->up ? page : piece.offset,
					 .from_offset = j->up ? piece.offset : page,
					 .bytes = piece.bytes};
		page += piece.bytes;
	}
	j->n++;
}

/* As late as can be: many are asked for at once, and while the first are copied there is time. */
static void announce(struct ram_pool *rp, const struct ram_item *item)
{
	if (item->node == NODE_NONE)
		return;
	describe(rp, item->node);
	if (!protection(headers_wait_for_copies))
		record_set_state(arena_header(rp->ram->arena, item->place), RECORD_VALID);
}

static void fill(struct ram_pool *rp, struct ram_queue *q, struct ram_job *j)
{
	j->first = q->sent;
	j->n = 0;
	j->job = (struct device_job){.job.done = job_done,
				     .op = DEVICE_MOVE,
				     .memory = rp->memory,
				     .moves = j->moves,
				     .owner = rp};
	while (q->sent != q->asked && j->job.n + rp->moves_a_page <= RAM_JOB_MOVES &&
	       (j->n == 0 || (j->n + 1) * rp->page_bytes <= RAM_JOB_BYTES)) {
		const struct ram_item *item = item_at(q, q->sent++);

		if (!j->up)
			announce(rp, item);
		add_page(rp, j, item);
	}
}

/* With the protection off: what has been asked for counts as done. */
static void forget_sources(struct ram_pool *rp, const struct ram_job *j)
{
	for (uint32_t i = 0; i < j->n; i++) {
		uint32_t node = item_at(&rp->down, j->first + i)->node;
		const struct node *n = &rp->pool->prefix.nodes[node];

		if (node != NODE_NONE && n->moves & NODE_LEAVING && !n->children_leaving)
			pool_evict(rp->pool, node);
	}
}

static void kick(struct ram_pool *rp, bool up)
{
	struct ram_queue *q = queue_of(rp, up);

	for (uint32_t i = 0; i < RAM_JOBS && q->sent != q->asked; i++) {
		struct ram_job *j = &q->jobs[(q->first_job + i) % RAM_JOBS];

		if (j->busy)
			continue;
		fill(rp, q, j);
		send(j);
		if (!up && !protection(spilled_pages_wait))
			forget_sources(rp, j);
	}
}

void ram_kick(struct ram *r)
{
	list_for_each(link, following, &r->pools)
	{
		struct ram_pool *rp = list_entry(link, struct ram_pool, in_ram);

		ram_rate(rp, r->now_ns);
		/* Somebody waits for what comes up. */
		kick(rp, true);
		kick(rp, false);
		ram_spill_kick(rp);
	}
}

/* ---- waiting for them ---- */

struct ram_marks ram_pool_mark(const struct ram_pool *rp)
{
	const struct ram *r = rp->ram;
	struct ram_marks m = {
	    .down = rp->down.asked, .up = rp->up.asked, .images = rp->spills.asked};

	if (r && r->n_plan) {
		m.relocating = true;
		m.relocated = r->relocated + r->relocations_failed;
	}
	return m;
}

bool ram_pool_has_passed(const struct ram_pool *rp, struct ram_marks m)
{
	const struct ram *r = rp->ram;

	return (int32_t)(rp->down.told - m.down) >= 0 && (int32_t)(rp->up.told - m.up) >= 0 &&
	       (int32_t)(rp->spills.told - m.images) >= 0 &&
	       (!m.relocating || r->relocated + r->relocations_failed != m.relocated);
}

/* ---- relocation ---- */

static void set_pinned(const struct ram *r, const struct frames_move *m, bool pinned)
{
	const struct ram_object *o = &r->objects[m->object];

	if (o->image != IMAGE_NONE) {
		pool_image_moving(o->pool->pool, o->image, pinned);
		return;
	}
	o->pool->pool->prefix.nodes[o->node].ram_pins += pinned ? 1 : UINT16_MAX;
	retain_look(&o->pool->pool->retain, o->node);
	if (!pinned)
		pool_drop_useless(o->pool->pool, o->node);
}

/* Its record says where it lies now. */
static void describe_again(struct ram *r, uint32_t object)
{
	const struct ram_object *o = &r->objects[object];

	if (o->image != IMAGE_NONE) {
		ram_describe_image(o->pool, o->image);
		record_set_state(arena_header(r->arena, object), RECORD_VALID);
		return;
	}
	describe(o->pool, o->node);
	if (node_is_in_ram(&o->pool->pool->prefix.nodes[o->node]))
		record_set_state(arena_header(r->arena, object), RECORD_VALID);
}

static void relocated(struct job *job)
{
	struct device_job *j = (struct device_job *)(void *)job;
	struct ram *r = j->owner;
	uint32_t n = r->n_plan;

	r->relocation_fails = job->result != 0;
	for (uint32_t i = 0; i < n; i++) {
		bool copied = (job->result == 0 || i < j->n_moved) && !failpoint(ram_relocation);
		uint32_t object = r->plan[i].object;

		frames_moved(r->arena->frames, &r->plan[i], copied);
		r->relocated += copied;
		r->relocations_failed += !copied;
		if (copied)
			describe_again(r, object);
		set_pinned(r, &r->plan[i], false);
	}
	r->n_plan = 0;
	list_for_each(link, following, &r->pools)
	{
		struct ram_pool *rp = list_entry(link, struct ram_pool, in_ram);

		rp->moved(rp->context);
	}
}

void ram_relocate(struct ram_pool *rp, int size)
{
	struct ram *r = rp->ram;

	if (r->n_plan ||
	    frames_plan_move(r->arena->frames, size, r->plan, FRAMES_MOVES_MAX, &r->n_plan))
		return;
	for (uint32_t i = 0; i < r->n_plan; i++) {
		r->moves[i] = (struct device_move){.to = DEVICE_ARENA,
						   .from = DEVICE_ARENA,
						   .to_offset = r->plan[i].to,
						   .from_offset = r->plan[i].from,
						   .bytes = r->plan[i].bytes};
		set_pinned(r, &r->plan[i], true);
	}
	r->relocating = (struct device_job){.job.done = relocated,
					    .op = DEVICE_MOVE,
					    .memory = rp->memory,
					    .moves = r->moves,
					    .n = r->n_plan,
					    .owner = r};
	rp->device->submit(rp->device, &r->relocating);
}
