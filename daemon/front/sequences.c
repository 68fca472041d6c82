/* SPDX-License-Identifier: Apache-2.0 */
/* sequences: the front's side of a sequence: handle, queue, age, quarantine; see core.h. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/request.h"

/* Pages, and a lane, that a living process may still write to although its session has ended. */
struct quarantine {
	struct list in_core;
	struct session *session;
	struct core_pool *pool;
	uint32_t lane; /* of a hybrid pool; LANE_NONE */
	uint32_t n;
	uint32_t pages[];
};

int sequence_new(struct session *s, struct core_pool *p, struct seq *seq, bool interactive,
		 struct sequence **out)
{
	struct core *c = s->core;
	struct sequence *q = calloc(1, sizeof(*q));
	int r;

	if (!q)
		return -ENOMEM;
	r = slots_take(&c->sequences, q, &q->handle);
	if (r) {
		free(q);
		return r;
	}
	q->pool = p;
	q->session = s;
	q->seq = seq;
	q->interactive = interactive;
	q->used_ns = c->now_ns;
	q->opened_ns = c->now_ns;
	list_init(&q->in_steps);
	list_init(&q->queue);
	list_append(&s->sequences, &q->in_session);
	list_append(&p->idle_order, &q->in_idle);
	s->n_sequences++;
	*out = q;
	return 0;
}

int charge_sequence(struct sequence *q)
{
	uint64_t bytes;

	if (!q->session || !q->seq)
		return 0;
	bytes = sizeof(*q) + seq_heap_bytes(q->seq);
	if (bytes > q->charged && !charge_take(&q->session->heap, bytes - q->charged))
		return -ENOMEM;
	if (bytes < q->charged)
		charge_give(&q->session->heap, q->charged - bytes);
	q->charged = bytes;
	return 0;
}

struct sequence *sequence_find(struct session *s, uint32_t index, uint32_t generation)
{
	struct sequence *q =
	    slots_find(&s->core->sequences, (struct slot_handle){index, generation});

	/* Alive is not enough: it must be this session's. */
	if (!q || (q->session != s && protection(handles_are_owned)) || q->closing)
		return NULL;
	return q;
}

struct sequence *sequence_find_step(struct session *s, uint32_t index, uint32_t generation)
{
	struct sequence *q;

	if (!(index & STEP_HANDLE))
		return NULL;
	q = slots_find(&s->core->steps, (struct slot_handle){index & ~STEP_HANDLE, generation});
	if (!q || (q->session != s && protection(handles_are_owned)) || q->closing)
		return NULL;
	return q;
}

void sequence_touch(struct sequence *q)
{
	q->used_ns = q->pool->core->now_ns;
	list_remove(&q->in_idle);
	list_append(&q->pool->idle_order, &q->in_idle);
}

int sequence_open_step(struct sequence *q)
{
	int r = slots_take(&q->pool->core->steps, q, &q->step);

	if (r)
		return r;
	q->step.index |= STEP_HANDLE;
	q->step_ns = q->pool->core->now_ns;
	list_append(&q->pool->step_order, &q->in_steps);
	return 0;
}

void sequence_forget_step(struct sequence *q)
{
	if (!q->step.generation)
		return;
	q->step.index &= ~STEP_HANDLE;
	slots_give(&q->pool->core->steps, q->step);
	q->step = (struct slot_handle){0};
	list_remove(&q->in_steps);
}

/* The pages stay out of everybody's hands until the process has exited. */
static void keep_quarantine(struct sequence *q, struct session *s)
{
	uint32_t n = seq_move_quarantine(q->seq, NULL);
	struct quarantine *k;

	if (n == 0)
		return;
	if (q->seq->lane != LANE_NONE)
		lane_job(&q->pool->pool.images, q->seq->lane);
	k = malloc(sizeof(*k) + n * sizeof(*k->pages));
	/* Without memory to remember them by, they are lost to the pool rather than to its users.
	 */
	if (!k) {
		log_write(s->core->log, LOG_LEVEL_ERROR,
			  "no memory: %u pages of pool %s stay in quarantine for good", n,
			  q->pool->config->name);
		seq_lose_quarantine(q->seq);
		return;
	}
	k->session = s;
	k->pool = q->pool;
	k->lane = q->seq->lane;
	k->n = seq_move_quarantine(q->seq, k->pages);
	list_append(&s->core->quarantines, &k->in_core);
	s->quarantines++;
	q->pool->quarantined_of_dead += n;
}

void quarantine_end(struct core *c, struct session *s)
{
	list_for_each(link, following, &c->quarantines)
	{
		struct quarantine *k = list_entry(link, struct quarantine, in_core);

		if (k->session != s)
			continue;
		for (uint32_t i = 0; i < k->n; i++)
			seq_end_quarantine(&k->pool->pool, k->pages[i]);
		if (k->lane != LANE_NONE)
			lane_job_done(&k->pool->pool.images, k->lane);
		k->pool->quarantined_of_dead -= k->n;
		core_pool_settle(k->pool);
		list_remove(&k->in_core);
		free(k);
		s->quarantines--;
	}
}

void quarantine_forget(struct core_pool *p)
{
	list_for_each(link, following, &p->core->quarantines)
	{
		struct quarantine *k = list_entry(link, struct quarantine, in_core);

		if (k->pool != p)
			continue;
		p->quarantined_of_dead -= k->n;
		list_remove(&k->in_core);
		must(k->session->quarantines > 0);
		k->session->quarantines--;
		session_settle(k->session);
		free(k);
	}
}

static const char *const misses[] = {
    [PAYLOAD_MISS_NONE] = "all that could be reused was",
    [PAYLOAD_MISS_NO_MATCH] = "no match",
    [PAYLOAD_MISS_DIVERGED] = "diverged",
    [PAYLOAD_MISS_OFF] = "reuse is off",
    [PAYLOAD_MISS_IMAGE] = "inside an image",
    [PAYLOAD_MISS_LIMIT] = "the client wanted no more",
    [PAYLOAD_MISS_GONE] = "state given up",
    [PAYLOAD_MISS_FLOOR] = "below the floor",
    [PAYLOAD_MISS_RESTORE] = "fetching failed",
};

static const char *const tiers[] = {
    [PAYLOAD_DEVICE] = "device",
    [PAYLOAD_KV_RAM] = "KV-RAM",
    [PAYLOAD_KV_DISK] = "KV-disk",
    [PAYLOAD_NO_TIER] = "none",
};

void sequence_tell(const struct sequence *q, const char *how)
{
	struct core *c = q->pool->core;

	/* Of one that has expired it was told then. */
	if (!log_has_level(c->log, LOG_LEVEL_DEBUG) || !q->seq)
		return;
	must(q->miss < PAYLOAD_MISS_COUNT);
	log_write(c->log, LOG_LEVEL_DEBUG,
		  "session %u: sequence %u.%u of pool %s %s: prompt %u tokens, cached %u, tier %s, "
		  "%s; committed %u, %llu us, %llu of them fetching",
		  q->session ? q->session->id : 0, q->handle.index, q->handle.generation,
		  q->pool->config->name, how, q->prompt_tokens, q->cached_tokens,
		  q->prompt_tokens ? tiers[q->tier] : "none",
		  q->prompt_tokens ? misses[q->miss] : "a fork", q->seq->committed,
		  (unsigned long long)((clock_now(&c->clock) - q->opened_ns) / NS_PER_US),
		  (unsigned long long)(q->restore_ns / NS_PER_US));
}

void sequence_abandon(struct sequence *q)
{
	struct session *s = q->session;
	struct core *c = q->pool->core;

	must(list_is_empty(&q->queue));
	if (!q->closing)
		sequence_tell(q, "abandoned");
	sequence_forget_step(q);
	if (q->seq)
		step_end(q->seq, q->pool->config->map && s && !s->exited);
	if (s) {
		if (q->seq)
			keep_quarantine(q, s);
		charge_give(&s->heap, q->charged);
		q->charged = 0;
		must(s->n_sequences > 0);
		s->n_sequences--;
	}
	q->session = NULL;
	q->closing = true;
	list_remove(&q->in_session);
	list_append(&c->closing, &q->in_session);
}

bool sequence_close_turn(struct sequence *q, uint32_t *budget)
{
	struct core *c = q->pool->core;

	if (q->seq && seq_close_turn(&q->seq, budget))
		return false;
	if (q->session) {
		charge_give(&q->session->heap, q->charged);
		must(q->session->n_sequences > 0);
		q->session->n_sequences--;
	}
	sequence_forget_step(q);
	list_remove(&q->in_session);
	list_remove(&q->in_idle);
	if (q->handle.generation)
		slots_give(&c->sequences, q->handle);
	core_pool_settle(q->pool);
	free(q);
	return true;
}

/* What it holds goes; its handle stays, and says so, until the client closes it. */
static void expire(struct sequence *q)
{
	struct core *c = q->pool->core;
	struct sequence *rest = calloc(1, sizeof(*rest));

	if (!rest)
		return; /* another time */
	core_count(c, COUNTER_sequences_expired);
	sequence_tell(q, "expired");
	sequence_forget_step(q);
	step_end(q->seq, q->pool->config->map);
	keep_quarantine(q, q->session);
	charge_give(&q->session->heap, q->charged);
	q->charged = 0;
	rest->pool = q->pool;
	rest->seq = q->seq;
	rest->closing = true;
	list_init(&rest->in_idle);
	list_init(&rest->in_steps);
	list_init(&rest->queue);
	list_append(&c->closing, &rest->in_session);
	q->seq = NULL;
}

/* A step that has been open for too long ends as if its client had died in it; so does a
 * sequence that nobody has used for too long. */
void sequences_expire(struct core_pool *p)
{
	struct core *c = p->core;
	uint64_t step_ttl_ns = c->config->core.step_ttl_s * NS_PER_S;
	uint64_t idle_ttl_ns = c->config->core.sequence_idle_ttl_s * NS_PER_S;
	struct list *first;

	while (step_ttl_ns && (first = list_first(&p->step_order))) {
		struct sequence *q = list_entry(first, struct sequence, in_steps);

		if (c->now_ns - q->step_ns < step_ttl_ns)
			break;
		list_remove(&q->in_steps);
		step_end(q->seq, p->config->map);
		log_write(c->log, LOG_LEVEL_INFO,
			  "pool %s: a step was open for %llu s and has ended", p->config->name,
			  (unsigned long long)c->config->core.step_ttl_s);
		core_pool_settle(p);
	}
	while (idle_ttl_ns && (first = list_first(&p->idle_order))) {
		struct sequence *q = list_entry(first, struct sequence, in_idle);

		if (c->now_ns - q->used_ns < idle_ttl_ns)
			break;
		sequence_touch(q);
		if (q->session && q->seq && list_is_empty(&q->queue) && !q->closing)
			expire(q);
	}
}
