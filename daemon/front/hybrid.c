/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid: see hybrid.h. Core thread; the bytes move on the device. */
#include "daemon/front/hybrid.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/state/pool_states.h"

#define SECTION_ALIGN 256
#define SLOT_ALIGN    4096
#define SECTION_MAX   (1ull << 40)

static uint64_t round_up(uint64_t n, uint64_t align)
{
	return (n + align - 1) / align * align;
}

int hybrid_lay_out(struct hybrid_layout *h, const struct payload_section *sections, uint32_t n,
		   const char **why, uint32_t *which)
{
	uint64_t at[2] = {0};

	*which = 0;
	*h = (struct hybrid_layout){.n = n};
	h->sections = n ? calloc(n, sizeof(*h->sections)) : NULL;
	if (n && !h->sections)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		const struct payload_section *in = &sections[i];
		uint32_t ring = in->kind == PAYLOAD_RING;

		*which = i;
		*why = "a kind that is neither replaced nor ring";
		if (in->kind != PAYLOAD_REPLACED && in->kind != PAYLOAD_RING)
			return -EINVAL;
		*why = "a size of 0, or beyond 2^40 bytes";
		if (in->bytes == 0 || in->bytes > SECTION_MAX)
			return -EINVAL;
		*why = "a name that is empty or not terminated, or reserved words that are set";
		if (!memchr(in->name, 0, sizeof(in->name)) || !in->name[0] || in->reserved)
			return -EINVAL;
		*why = "a name that another section has";
		for (uint32_t k = 0; k < i; k++) {
			if (!strcmp(sections[k].name, in->name))
				return -EINVAL;
		}
		h->sections[i] = (struct payload_section_place){
		    .offset = at[ring], .bytes = in->bytes, .kind = in->kind};
		at[ring] = round_up(at[ring] + in->bytes, SECTION_ALIGN);
	}
	h->state_stride = round_up(at[0], SLOT_ALIGN);
	h->ring_stride = round_up(at[1], SLOT_ALIGN);
	return 0;
}

void hybrid_place(struct hybrid_layout *h, uint64_t pages_bytes, uint32_t lanes,
		  uint32_t retained_slots)
{
	h->state_offset = pages_bytes;
	h->ring_offset = h->state_offset + 2ull * lanes * h->state_stride;
	h->slot_bytes = (uint64_t)lanes * (2 * h->state_stride + h->ring_stride);
	h->retained_bytes = (uint64_t)retained_slots * (h->state_stride + h->ring_stride);
}

/* ---- copies ---- */

#define PIECE_MOVES 16

struct image_job {
	struct device_job job; /* first */
	struct core *core;
	struct core_pool *pool;
	struct request *request;       /* NULL: it was abandoned */
	struct session_memory *memory; /* of WRITE and READ */
	void (*resume)(struct request *r, int result);
	enum image_job_kind kind;
	uint32_t lane, from_lane; /* LANE_NONE */
	uint32_t image;           /* IMAGE_NONE */
	uint32_t place;           /* of its image in KV-RAM, COPY_NONE: it lies in a slot */
	uint32_t n_moves;
	uint32_t at;                            /* the move that the next piece begins with, */
	uint64_t done;                          /* and its bytes that are done */
	uint64_t busy_ns;                       /* of the device, so far */
	struct device_move pieces[PIECE_MOVES]; /* in flight */
	struct device_move moves[];
};

#ifdef KVHOST_TESTING
uint64_t hybrid_piece_bytes = HYBRID_PIECE_BYTES;
#define PIECE_BYTES hybrid_piece_bytes
#else
#define PIECE_BYTES HYBRID_PIECE_BYTES
#endif

/* The next bytes, of one move or of several small ones; false: all are done. */
static bool next_piece(struct image_job *j)
{
	uint64_t room = PIECE_BYTES;
	uint32_t n = 0;

	while (j->at < j->n_moves && room > 0 && n < PIECE_MOVES) {
		const struct device_move *m = &j->moves[j->at];
		uint64_t left = m->bytes - j->done;
		uint64_t bytes = left < room ? left : room;

		if (bytes > 0) {
			j->pieces[n] = *m;
			j->pieces[n].to_offset += j->done;
			j->pieces[n].from_offset += j->done;
			j->pieces[n++].bytes = bytes;
		}
		room -= bytes;
		j->done += bytes;
		if (bytes == left) {
			j->at++;
			j->done = 0;
		}
	}
	j->job.moves = j->pieces;
	j->job.n = n;
	return n > 0;
}

/* Of a state that was on its way down the image may have lain in its slot still: its pages have
 * come back all the same. Whose request is over has given its pages back. */
static void claim_ends(const struct image_job *j, int result)
{
	struct pool *x = &j->pool->pool;
	bool came_up = j->request && j->request->u.prompt.match.from_ram;

	if (j->place != COPY_NONE || (result == 0 && came_up))
		pool_image_came(x, j->image, result, j->request, came_up);
	pool_claim_done(x, j->image);
}

static void image_done(struct job *job)
{
	struct image_job *j = (struct image_job *)(void *)job;
	struct core_pool *p = j->pool;
	struct pool *x = &p->pool;
	struct request *r = j->request;
	int result = job->result;

	j->busy_ns += j->job.busy_ns;
	if (j->place != COPY_NONE && failpoint(ram_image))
		result = -EIO;
	if (result == 0 && next_piece(j)) {
		p->core->device->submit(p->core->device, &j->job);
		return;
	}
	must(p->transfers > 0);
	p->transfers--;
	if (result && j->kind != IMAGE_JOB_CAPTURE)
		lane_is_unclean(&x->images, j->lane);
	lane_job_done(&x->images, j->lane);
	if (j->from_lane != LANE_NONE)
		lane_job_done(&x->images, j->from_lane);
	if (j->place != COPY_NONE)
		ram_image_end(&p->ram, j->place, j->kind == IMAGE_JOB_CAPTURE, result == 0,
			      j->busy_ns);
	if (result && j->place != COPY_NONE && j->kind == IMAGE_JOB_CAPTURE)
		result = -ENOSPC;
	if (j->kind == IMAGE_JOB_CLAIM)
		claim_ends(j, result);
	if (j->kind == IMAGE_JOB_CAPTURE)
		capture_end(x, j->image, result == 0);
	if (j->memory)
		session_memory_give(j->core, j->memory);
	if (r) {
		r->image = NULL;
		j->resume(r, result);
	}
	list_for_each(link, following, &p->copying)
	    request_ready(list_entry(link, struct request, in_wait));
	core_pool_settle(p);
	free(j);
}

static struct device_move state_move(const struct hybrid_layout *h, uint32_t slot)
{
	return (struct device_move){.to = DEVICE_POOL,
				    .to_offset = h->state_offset + slot * h->state_stride,
				    .bytes = h->state_stride};
}

static struct device_move ring_move(const struct hybrid_layout *h, uint32_t lane)
{
	return (struct device_move){.to = DEVICE_POOL,
				    .to_offset = h->ring_offset + lane * h->ring_stride,
				    .bytes = h->ring_stride};
}

static void turn_around(struct device_move *m)
{
	struct device_move was = *m;

	m->to = was.from;
	m->to_offset = was.from_offset;
	m->from = was.to;
	m->from_offset = was.to_offset;
}

/* ---- whole images: a lane's two slots on one side, the same bytes in one row on the other ---- */

/* Where the bytes of a retained image from `at` on lie: as many as lie in one row there. */
static struct device_move image_move(const struct image_job *j, uint64_t at)
{
	const struct core_pool *p = j->pool;
	uint64_t bytes = p->layout.state_stride + p->layout.ring_stride;
	uint32_t n = j->place == COPY_NONE ? 0 : ram_image_pieces(&p->ram, j->place);

	if (j->place == COPY_NONE)
		return (struct device_move){.from = DEVICE_RETAINED,
					    .from_offset =
						p->pool.images.image[j->image].slot * bytes + at,
					    .bytes = bytes - at};
	for (uint32_t i = 0; i < n; i++) {
		struct frames_piece piece = ram_image_piece(&p->ram, j->place, i);

		if (at < piece.bytes)
			return (struct device_move){.from = DEVICE_ARENA,
						    .from_offset = piece.offset + at,
						    .bytes = piece.bytes - at};
		at -= piece.bytes;
	}
	cannot_happen("an image has fewer bytes in KV-RAM than its pool says");
}

/* Between a slot of a lane and the retained image, whose bytes from *at on it has. */
static void add_slot(struct image_job *j, struct device_move slot, uint64_t *at)
{
	for (uint64_t done = 0; done < slot.bytes;) {
		struct device_move m = image_move(j, *at);

		if (m.bytes > slot.bytes - done)
			m.bytes = slot.bytes - done;
		m.to = slot.to;
		m.to_offset = slot.to_offset + done;
		done += m.bytes;
		*at += m.bytes;
		if (j->kind == IMAGE_JOB_CAPTURE)
			turn_around(&m);
		j->moves[j->n_moves++] = m;
	}
}

static void plan_slots(struct image_job *j, const struct seq *s, const struct seq *from)
{
	const struct hybrid_layout *h = &j->pool->layout;
	struct device_move state = state_move(h, seq_source_slot(s));
	struct device_move ring = ring_move(h, s->lane);
	uint64_t at = 0;

	j->n_moves = 0;
	switch (j->kind) {
	case IMAGE_JOB_FRESH:
		state.from = ring.from = DEVICE_ZEROS;
		j->moves[j->n_moves++] = state;
		j->moves[j->n_moves++] = ring;
		break;
	case IMAGE_JOB_FORK:
		state.from_offset = h->state_offset + seq_source_slot(from) * h->state_stride;
		ring.from_offset = h->ring_offset + from->lane * h->ring_stride;
		j->moves[j->n_moves++] = state;
		j->moves[j->n_moves++] = ring;
		break;
	default:
		add_slot(j, state, &at);
		add_slot(j, ring, &at);
		break;
	}
	if (j->kind != IMAGE_JOB_CAPTURE &&
	    lane_use(&j->pool->pool.images, s->lane, s->name_space) &&
	    protection(lanes_are_wiped)) {
		/* A step need not write all of its target. */
		j->moves[j->n_moves] = state_move(h, seq_target_slot(s));
		j->moves[j->n_moves++].from = DEVICE_ZEROS;
	}
}

/* A part of one section, between the window and the slot that the request may touch. */
static void plan_section(struct image_job *j, const struct seq *s, const struct request *r)
{
	const struct hybrid_layout *h = &j->pool->layout;
	const struct payload_section_range *in = r->in;
	const struct payload_section_place *section = &h->sections[in->section];
	bool ring = section->kind == PAYLOAD_RING;
	bool write = j->kind == IMAGE_JOB_WRITE;
	uint32_t slot = write ? seq_target_slot(s) : seq_source_slot(s);
	struct device_move m = ring ? ring_move(h, s->lane) : state_move(h, slot);

	m.to_offset += section->offset + in->offset;
	m.bytes = in->bytes;
	m.from = DEVICE_WINDOW;
	m.from_offset = write ? r->entry.in_offset + sizeof(*in) : r->entry.out_offset;
	if (!write)
		turn_around(&m);
	j->moves[0] = m;
	j->n_moves = 1;
}

int hybrid_start(struct request *r, struct seq *s, enum image_job_kind kind, uint32_t image,
		 const struct seq *from, void (*resume)(struct request *r, int result))
{
	struct core_pool *p = r->pool;
	const struct image *it = image == IMAGE_NONE ? NULL : &p->pool.images.image[image];
	uint32_t place = it && it->slot == SLOT_NONE ? it->place : COPY_NONE;
	uint32_t pieces = place == COPY_NONE ? 1 : ram_image_pieces(&p->ram, place);
	struct image_job *j = failpoint(image_memory)
				  ? NULL
				  : calloc(1, sizeof(*j) + (pieces + 2) * sizeof(j->moves[0]));
	bool window = kind == IMAGE_JOB_WRITE || kind == IMAGE_JOB_READ;

	if (!j)
		return -ENOMEM;
	*j = (struct image_job){.core = p->core,
				.pool = p,
				.request = r,
				.resume = resume,
				.kind = kind,
				.lane = s->lane,
				.from_lane = from ? from->lane : LANE_NONE,
				.image = image,
				.place = place};
	lane_job(&p->pool.images, j->lane);
	if (from)
		lane_job(&p->pool.images, j->from_lane);
	if (window) {
		j->memory = r->session->memory;
		session_memory_use(j->memory);
		plan_section(j, s, r);
	} else {
		plan_slots(j, s, from);
	}
	if (place != COPY_NONE)
		ram_image_begin(&p->ram, image, kind == IMAGE_JOB_CAPTURE);
	j->job = (struct device_job){.job.done = image_done,
				     .op = DEVICE_MOVE,
				     .memory = &p->memory,
				     .window = window ? r->session->memory->window.memory : NULL};
	r->image = j;
	p->transfers++;
	request_wait(r, NULL);
	next_piece(j);
	p->core->device->submit(p->core->device, &j->job);
	return 0;
}

void hybrid_abandon(struct request *r)
{
	if (!r->image)
		return;
	/* Its client may use that part of the window for something else from now on. */
	if (r->image->memory)
		atomic_store_explicit(&r->image->job.job.cancelled, true, memory_order_relaxed);
	r->image->request = NULL;
	r->image = NULL;
}

struct payload_step_slots hybrid_slots(const struct seq *s)
{
	return (struct payload_step_slots){
	    .source = seq_source_slot(s),
	    .target = seq_target_slot(s),
	    .ring = s->lane,
	    .generation = s->pool->images.lane[s->lane].generation,
	};
}
