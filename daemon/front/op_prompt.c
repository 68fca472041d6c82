/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_prompt: open and lookup. Core thread; nothing blocks.
 *
 * Both copy the prompt to private memory, in turns, then walk it, in turns. An open is admitted in
 * between: its ceiling must fit beside those of all admitted sequences, else it waits in rank
 * order, its tokens charged to its session.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/hybrid.h"

static bool prompt_check(struct request *r)
{
	const struct payload_open *o = r->in;
	const struct pool_limits *limits = &r->pool->pool.limits;
	uint64_t bytes = sizeof(*o) + (uint64_t)o->n_spans * sizeof(struct payload_span) +
			 (uint64_t)o->n_tokens * sizeof(uint32_t);

	if (r->pool->state != CORE_POOL_READY)
		return refused(r, WIRE_EIO, "the memory of pool %s has failed",
			       r->pool->config->name);
	if ((o->flags & ~PAYLOAD_OPEN_FLAGS) || !range_is_zero(o->reserved, sizeof(o->reserved)))
		return refused(r, WIRE_EINVAL, "reserved bits of the prompt's head are set");
	if (o->n_tokens == 0 || o->n_tokens > limits->max_sequence_tokens)
		return refused(r, WIRE_EINVAL,
			       "a prompt of %u tokens; 1 to %u are accepted "
			       "(pools.max_sequence_length)",
			       o->n_tokens, limits->max_sequence_tokens);
	if (o->n_spans > PAYLOAD_SPANS_MAX)
		return refused(r, WIRE_EINVAL, "%u image spans; at most %u are accepted",
			       o->n_spans, PAYLOAD_SPANS_MAX);
	if (bytes != r->entry.in_bytes)
		return refused(
		    r, WIRE_EINVAL, "%u tokens and %u spans take %llu bytes of input, not %u",
		    o->n_tokens, o->n_spans, (unsigned long long)bytes, r->entry.in_bytes);
	if (o->max_tokens &&
	    (o->max_tokens < o->n_tokens || o->max_tokens > limits->max_sequence_tokens))
		return refused(r, WIRE_EINVAL, "max_tokens is %u; %u to %u are accepted",
			       o->max_tokens, o->n_tokens, limits->max_sequence_tokens);
	if (o->priority > PAYLOAD_INTERACTIVE)
		return refused(r, WIRE_EINVAL, "priority %u; 0 and 1 are accepted", o->priority);
	if (o->priority == PAYLOAD_INTERACTIVE && !r->session->interactive)
		return refused(r, WIRE_EPERM, "the namespace has no right to interactive requests");
	if (o->system_end_tokens > o->n_tokens || o->user_end_tokens > o->n_tokens ||
	    o->opener_tokens > o->n_tokens)
		return refused(r, WIRE_EINVAL,
			       "an offset lies beyond the prompt of %u tokens: system end %u, "
			       "user end %u, opener %u",
			       o->n_tokens, o->system_end_tokens, o->user_end_tokens,
			       o->opener_tokens);
	if (o->system_end_tokens && o->opener_tokens && o->system_end_tokens > o->opener_tokens)
		return refused(r, WIRE_EINVAL,
			       "the system block ends at %u, behind the opener at %u",
			       o->system_end_tokens, o->opener_tokens);
	if (o->user_end_tokens && o->opener_tokens && o->user_end_tokens > o->opener_tokens)
		return refused(r, WIRE_EINVAL,
			       "the last user message ends at %u, behind the opener at %u",
			       o->user_end_tokens, o->opener_tokens);
	r->interactive = o->priority == PAYLOAD_INTERACTIVE;
	return true;
}

static bool open_check(struct request *r)
{
	const struct payload_open *o = r->in;
	uint32_t most = o->max_tokens ? o->max_tokens : o->n_tokens;

	if (!prompt_check(r))
		return false;
	if (!admission_session(r) || !admission_pages(r, most))
		return false;
	r->u.prompt.max_tokens = most;
	return true;
}

/* ---- copying ---- */

/* A state inside an image could never be reused. */
static bool check_offsets(struct request *r, const struct payload_open *o,
			  const struct key_image *images)
{
	const uint32_t offsets[] = {o->system_end_tokens, o->user_end_tokens, o->opener_tokens};
	static const char *const names[] = {"system_end_tokens", "user_end_tokens",
					    "opener_tokens"};

	for (int k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < o->n_spans; i++) {
			if (images[i].start < offsets[k] &&
			    offsets[k] - images[i].start < images[i].length)
				return refused(r, WIRE_EINVAL,
					       "%s %u lies inside the image of %u tokens at %u",
					       names[k], offsets[k], images[i].length,
					       images[i].start);
		}
	}
	return true;
}

static bool prompt_begin(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;
	const struct payload_open *o = r->in;
	struct session *s = r->session;
	uint64_t bytes = (uint64_t)o->n_tokens * sizeof(uint32_t) +
			 (uint64_t)o->n_spans * sizeof(struct key_image);

	t->wish = (struct match_wish){
	    .n_tokens = o->n_tokens,
	    .n_images = o->n_spans,
	    .max_cached_tokens = o->max_cached_tokens,
	    .name_space = s->name_space,
	    .off = o->flags & PAYLOAD_OPEN_NO_REUSE,
	    .interactive = r->interactive,
	};
	memcpy(t->wish.variant, o->variant, sizeof(t->wish.variant));
	if (!charge_take(&s->heap, bytes)) {
		refuse_heap(r, "a prompt", bytes);
		return false;
	}
	t->charged = bytes;
	t->tokens = malloc((uint64_t)o->n_tokens * sizeof(uint32_t));
	t->images = o->n_spans ? malloc(o->n_spans * sizeof(struct key_image)) : NULL;
	t->wish.tokens = t->tokens;
	t->wish.images = t->images;
	if (!t->tokens || (o->n_spans && !t->images))
		return refused(r, WIRE_ENOMEM, "the daemon has no memory for the prompt");
	/* Both have the same layout: struct payload_span, struct key_image. */
	if (o->n_spans && session_read(s, t->images, r->entry.in_offset + sizeof(*o),
				       o->n_spans * sizeof(struct payload_span)))
		return false;
	for (uint32_t i = 0; i < o->n_spans; i++) {
		const struct key_image *a = &t->images[i];
		uint32_t least = i ? t->images[i - 1].start + t->images[i - 1].length : 0;

		if (a->start < least || a->length == 0 || a->start >= o->n_tokens ||
		    a->length > o->n_tokens - a->start)
			return refused(r, WIRE_EINVAL,
				       "span %u covers %u tokens from %u; spans are ascending, "
				       "apart from each other and inside the %u tokens",
				       i, a->length, a->start, o->n_tokens);
	}
	return check_offsets(r, o, t->images);
}

_Static_assert(sizeof(struct key_image) == sizeof(struct payload_span), "same layout");

/* True: all there. */
static bool copy_turn(struct request *r, uint32_t budget)
{
	struct request_prompt *t = &r->u.prompt;
	uint64_t most = (uint64_t)budget * r->pool->pool.limits.page_tokens;
	uint32_t left = t->wish.n_tokens - t->copied_tokens;
	uint32_t n = left < most ? left : (uint32_t)most;
	uint64_t from = r->entry.in_offset + sizeof(struct payload_open) +
			(uint64_t)t->wish.n_images * sizeof(struct payload_span) +
			(uint64_t)t->copied_tokens * sizeof(uint32_t);

	if (session_read(r->session, t->tokens + t->copied_tokens, from, n * sizeof(uint32_t)))
		return false;
	t->copied_tokens += n;
	return t->copied_tokens == t->wish.n_tokens;
}

static void prompt_free(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;

	free(t->tokens);
	free(t->images);
	free(t->path);
	t->tokens = NULL;
	t->images = NULL;
	t->path = NULL;
	charge_give(&r->session->heap, t->charged);
	t->charged = 0;
}

/* ---- the walk ---- */

static bool match_start(struct request *r, uint64_t tick)
{
	struct request_prompt *t = &r->u.prompt;
	uint32_t room = match_room(&r->pool->pool, &t->wish);

	t->path = room ? malloc(room * sizeof(*t->path)) : NULL;
	if (room && !t->path)
		return refused(r, WIRE_ENOMEM, "the daemon has no memory for the walk");
	match_begin(&t->match, &r->pool->pool, &t->wish, t->path, tick);
	t->phase = PROMPT_MATCH;
	return true;
}

static uint32_t miss_on_wire(enum match_miss miss)
{
	static const uint8_t codes[] = {
	    [MATCH_COMPLETE] = PAYLOAD_MISS_NONE,     [MATCH_NONE] = PAYLOAD_MISS_NO_MATCH,
	    [MATCH_DIVERGED] = PAYLOAD_MISS_DIVERGED, [MATCH_OFF] = PAYLOAD_MISS_OFF,
	    [MATCH_IMAGE] = PAYLOAD_MISS_IMAGE,       [MATCH_LIMIT] = PAYLOAD_MISS_LIMIT,
	    [MATCH_GONE] = PAYLOAD_MISS_GONE,         [MATCH_FLOOR] = PAYLOAD_MISS_FLOOR,
	    [MATCH_RESTORE] = PAYLOAD_MISS_RESTORE,
	};

	return codes[miss];
}

static uint32_t tier_of(const struct match *m)
{
	if (!match_tokens(m))
		return PAYLOAD_NO_TIER;
	return m->from_ram ? PAYLOAD_KV_RAM : PAYLOAD_DEVICE;
}

static bool reply_match(struct request *r, uint32_t n_pages, uint32_t version)
{
	struct request_prompt *t = &r->u.prompt;
	struct session *s = r->session;
	uint32_t cached = match_tokens(&t->match);
	const struct payload_open *o = r->in;
	const struct pool *x = &r->pool->pool;
	struct capture_points points;
	struct payload_open_result out = {
	    .cached_tokens = cached,
	    .miss = miss_on_wire(match_reason(&t->match)),
	    .miss_tokens = t->match.known_tokens,
	    .tier = tier_of(&t->match),
	    .restore_ns = t->restore_ns,
	    .table_version = version,
	    .n_pages = n_pages,
	};

	capture_plan(x, &t->wish, cached, o->chunk_tokens, o->system_end_tokens, o->opener_tokens,
		     &points);
	out.n_points = points.n;
	memcpy(out.points, points.tokens, sizeof(points.tokens));
	if (t->match.image != IMAGE_NONE)
		out.kind = 1u + t->found_kind;
	match_count(&t->match);
	r->reply.value0 = cached;
	r->reply.value1 = n_pages;
	s->counters.hits += cached > 0;
	s->counters.cached_tokens += cached;
	s->counters.prompt_tokens += t->wish.n_tokens;
	return session_write(s, r->entry.out_offset, &out, sizeof(out)) == 0;
}

/* A state that an open claimed may be given up before the reply is written. */
static void remember_kind(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;

	if (t->match.image != IMAGE_NONE)
		t->found_kind = r->pool->pool.images.image[t->match.image].kind;
}

static enum run_result lookup_run(struct request *r, uint32_t *budget)
{
	struct request_prompt *t = &r->u.prompt;
	uint32_t copy_budget = *budget;

	if (!t->tokens && !prompt_begin(r))
		goto out;
	if (t->phase == PROMPT_COPY) {
		if (!copy_turn(r, copy_budget)) {
			if (r->session->state == SESSION_LIVE)
				return RUN_MORE;
			goto out;
		}
		if (!match_start(r, 0))
			goto out;
	}
	if (match_turn(&t->match, budget))
		return RUN_MORE;
	remember_kind(r);
	r->session->counters.lookups++;
	if (reply_match(r, 0, 0))
		done(r);
out:
	prompt_free(r);
	return RUN_DONE;
}

static void lookup_abandon(struct request *r, int status)
{
	(void)status;
	prompt_free(r);
}

const struct request_kind kind_lookup = {
    .opcode = WIRE_OP_LOOKUP,
    .in_bytes = sizeof(struct payload_open),
    .head_only = true,
    .out_bytes = sizeof(struct payload_open_result),
    .target = TARGET_POOL,
    .latency = HISTOGRAM_latency_lookup,
    .check = prompt_check,
    .run = lookup_run,
    .abandon = lookup_abandon,
};

/* ---- open ---- */

/* A sequence that was never shown to its client is closed like one whose client died. */
static void close_unborn(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;
	struct core *c = r->session->core;
	struct sequence *rest;

	if (!t->seq)
		return;
	match_unclaim(&t->match); /* it was found, and is not being copied yet */
	if (t->match.held != NODE_NONE && t->phase >= PROMPT_MATCH) {
		t->seq->node = t->match.held;
		t->seq->leaving = t->match.leaving;
		t->seq->tail_node = t->match.partial;
		t->match.held = NODE_NONE;
		retain_let_go(&r->pool->pool.retain, &t->match.run);
	}
	rest = calloc(1, sizeof(*rest));
	if (!rest) {
		uint32_t all = UINT32_MAX;

		seq_close_turn(&t->seq, &all);
		core_pool_settle(r->pool);
		return;
	}
	rest->pool = r->pool;
	rest->seq = t->seq;
	rest->closing = true;
	list_init(&rest->in_idle);
	list_init(&rest->in_steps);
	list_init(&rest->queue);
	list_append(&c->closing, &rest->in_session);
	t->seq = NULL;
}

static void open_abandon(struct request *r, int status)
{
	(void)status;
	list_remove(&r->in_wait);
	hybrid_abandon(r);
	close_unborn(r);
	prompt_free(r);
	core_pool_settle(r->pool);
}

/* 0, RUN_WAIT as -1 via the list, or refused: what open_run does next. */
static enum run_result admit(struct request *r, bool *admitted)
{
	struct request_prompt *t = &r->u.prompt;

	*admitted = false;
	if (!t->seq && !admission_sequence(r))
		return RUN_DONE;
	if (!t->seq && seq_new(&r->pool->pool, r->session->name_space, t->max_tokens, &t->seq))
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a sequence");
	*admitted = admission_try(r, t->seq);
	if (*admitted)
		return RUN_MORE;
	if (r->reply.status)
		return RUN_DONE;
	if (r->batch)
		return refuse(r, WIRE_EAGAIN, "it would have to wait for room in the pool");
	return RUN_WAIT;
}

static enum run_result open_finish(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;
	struct sequence *q = NULL;
	struct seq *seq = t->seq;

	if (failpoint(open_memory) || seq_take_match(seq, &t->match, t->tokens, t->images))
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for the page table");
	/* The sequence owns them now. */
	t->tokens = NULL;
	t->images = NULL;
	if (sequence_new(r->session, r->pool, seq, r->interactive, &q))
		return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a sequence");
	t->seq = NULL;
	seq_set_rank(seq, request_rank(r));
	core_pool_offer(r->pool, r);
	q->system_end = ((const struct payload_open *)r->in)->system_end_tokens;
	q->user_end = ((const struct payload_open *)r->in)->user_end_tokens;
	charge_give(&r->session->heap, t->charged);
	t->charged = 0;
	if (charge_sequence(q)) {
		refuse_sequence_heap(r, q);
		sequence_abandon(q);
		return RUN_DONE;
	}
	r->reply.index = q->handle.index;
	r->reply.generation = q->handle.generation;
	q->opened_ns = r->began_ns;
	q->prompt_tokens = t->wish.n_tokens;
	q->cached_tokens = match_tokens(&t->match);
	q->miss = (uint32_t)match_reason(&t->match);
	q->tier = tier_of(&t->match);
	q->restore_ns = t->restore_ns;
	sequence_tell(q, "opened");
	if (reply_match(r, seq->n_pages, seq->table_version) &&
	    reply_pages(r, sizeof(struct payload_open_result), seq, 0, seq->n_pages))
		return done(r);
	return RUN_DONE;
}

static void open_end(struct request *r)
{
	if (r->reply.status)
		close_unborn(r);
	prompt_free(r);
}

static void image_there(struct request *r, int result)
{
	struct request_prompt *t = &r->u.prompt;

	if (result && t->image_from_ram) {
		/* That state alone is lost; there may be another before it. */
		match_go_back(&t->match);
		request_ready(r);
		return;
	}
	if (t->match.from_ram)
		t->restore_ns = clock_now(&r->session->core->clock) - t->fetch_ns;
	if (result) {
		refuse(r, WIRE_EIO, "the memory of pool %s has failed", r->pool->config->name);
		core_pool_fail(r->pool);
	} else {
		open_finish(r);
	}
	open_end(r);
	request_finish(r);
}

/* The state that was found, or zeros, goes to the sequence's own slots before it begins. */
static enum run_result fetch_image(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;
	struct images *images = &r->pool->pool.images;
	uint32_t image = t->match.image;

	if (image != IMAGE_NONE)
		t->image_from_ram = images->image[image].slot == SLOT_NONE;
	if (hybrid_start(r, t->seq, image == IMAGE_NONE ? IMAGE_JOB_FRESH : IMAGE_JOB_CLAIM, image,
			 NULL, image_there) == 0) {
		t->match.claimed = false; /* until the copy is done */
		return RUN_WAIT;
	}
	return refuse(r, WIRE_ENOMEM, "the daemon has no memory for a copy");
}

/* What it waited for is there. */
static void measure_fetch(struct request *r)
{
	struct request_prompt *t = &r->u.prompt;
	struct core_pool *p = r->pool;
	const struct ram_sums *up = &p->ram.up.sums;
	uint32_t pages = t->match.walk.position - t->match.walk.on_device;
	double page_ns = 0;

	if (up->bytes)
		page_ns = (double)up->busy_ns * (double)p->ram.page_bytes / (double)up->bytes;
	floor_restored(&p->floor, pages * p->pool.limits.page_tokens, t->restore_ns,
		       (uint64_t)(page_ns * pages));
}

/* Where the floor is found by what was measured: as it is now, and now and then there is none. */
static void set_floor(struct request *r)
{
	struct core_pool *p = r->pool;

	if (p->config->ram_floor_tokens != CONFIG_AUTO)
		return;
	p->pool.limits.ram_floor_tokens = floor_tokens(&p->floor);
	r->u.prompt.wish.no_floor = floor_probe(&p->floor);
}

static enum run_result open_run(struct request *r, uint32_t *budget)
{
	struct request_prompt *t = &r->u.prompt;
	enum run_result result = RUN_DONE;
	bool admitted, was_found;

	if (!t->tokens && t->phase == PROMPT_COPY && !prompt_begin(r))
		goto out;
	if (t->phase == PROMPT_COPY) {
		if (!copy_turn(r, *budget)) {
			if (r->session->state == SESSION_LIVE)
				return RUN_MORE;
			goto out;
		}
		t->phase = PROMPT_ADMIT;
	}
	if (t->phase == PROMPT_ADMIT && r->batch && r->pool->pool.hybrid) {
		refuse(r, WIRE_EAGAIN, "it would have to wait for a copy of an image");
		goto out;
	}
	if (t->phase == PROMPT_ADMIT) {
		result = admit(r, &admitted);
		if (result == RUN_WAIT)
			return RUN_WAIT;
		if (!admitted)
			goto out;
		set_floor(r);
		if (!match_start(r, retain_open(&r->pool->pool.retain)))
			goto out;
	}
	was_found = t->match.done;
	if (match_turn(&t->match, budget))
		return RUN_MORE;
	if (!was_found)
		request_fetch_from_start(r);
	if (t->match.from_ram && t->fetched < match_nodes(&t->match)) {
		result = request_fetch(r, budget);
		t->restore_ns = clock_now(&r->session->core->clock) - t->fetch_ns;
		if (result != RUN_DONE)
			return result;
		if (r->reply.status)
			goto out;
		measure_fetch(r);
	}
	remember_kind(r);
	if (!r->pool->pool.hybrid)
		open_finish(r);
	else if (fetch_image(r) == RUN_WAIT)
		return RUN_WAIT;
out:
	open_end(r);
	return RUN_DONE;
}

const struct request_kind kind_open = {
    .opcode = WIRE_OP_OPEN,
    .in_bytes = sizeof(struct payload_open),
    .head_only = true,
    .out_bytes = sizeof(struct payload_open_result),
    .target = TARGET_POOL,
    .waits = true,
    .latency = HISTOGRAM_latency_open,
    .check = open_check,
    .run = open_run,
    .abandon = open_abandon,
};
