/* SPDX-License-Identifier: Apache-2.0 */
/* session: see session.h. Core thread; nothing here blocks. */
#include "daemon/front/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"
#include "daemon/front/request.h"
#include "shm/guard.h"

#define POLL_ENTRIES 64 /* of one session before the others have their turn */

static struct statsfile_session *find_slot(struct core *c)
{
	for (uint32_t i = 0; i < c->stats->head->max_sessions; i++) {
		if (atomic_load_explicit(&c->stats->sessions[i].id, memory_order_relaxed) == 0)
			return &c->stats->sessions[i];
	}
	return NULL;
}

static void take_slot(struct session *s)
{
	s->slot = find_slot(s->core);
	if (!s->slot)
		return;
	memcpy(s->slot->client, s->client, sizeof(s->slot->client));
	atomic_store_explicit(&s->slot->pid, s->pid, memory_order_relaxed);
	atomic_store_explicit(&s->slot->oldest_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&s->slot->submissions, 0, memory_order_relaxed);
	atomic_store_explicit(&s->slot->completions, 0, memory_order_relaxed);
	/* Release: a reader that sees the id sees the rest. */
	atomic_store_explicit(&s->slot->id, s->id, memory_order_release);
}

int session_new(struct core *c, const struct session_wish *wish, struct session **out)
{
	struct session *s = calloc(1, sizeof(*s));
	struct control *control = wish->memory->control.memory;

	if (!s)
		return -ENOMEM;
	s->core = c;
	s->state = SESSION_LIVE;
	s->id = ++c->next_session;
	s->pid = wish->pid;
	s->uid = wish->uid;
	s->name_space = wish->name_space;
	s->admin = wish->admin;
	s->interactive = wish->interactive;
	s->observer = wish->observer;
	memcpy(s->client, wish->client, sizeof(s->client));
	s->owner = wish->owner;
	s->memory = wish->memory;
	s->submission_slots = wish->submission_slots;
	s->completion_slots = wish->completion_slots;
	s->heap = (struct charge){.parent = &c->namespaces[s->name_space].charge,
				  .limit = c->config->core.session_heap_bytes};
	s->active_ns = c->now_ns;
	s->stalled_since_ns = c->now_ns;
	list_init(&s->in_ready);
	list_init(&s->in_answered);
	list_init(&s->requests);
	list_init(&s->ready);
	list_init(&s->sequences);
	ring_serve_side(&s->submissions, control, s->submission_slots);
	ring_answer_side(&s->completions, control, s->submission_slots, s->completion_slots);
	text_writer_init(&s->texts,
			 control_texts(control, s->submission_slots, s->completion_slots));
	list_append(&c->sessions, &s->in_sessions);
	list_append(&c->awake, &s->in_awake);
	s->is_awake = true;
	s->memory->users++;
	c->n_sessions++;
	c->namespaces[s->name_space].sessions++;
	core_count(c, COUNTER_sessions_total);
	take_slot(s);
	*out = s;
	return 0;
}

void session_memory_use(struct session_memory *m)
{
	must(m->users > 0);
	m->users++;
}

void session_memory_give(struct core *c, struct session_memory *m)
{
	must(m->users > 0);
	if (--m->users)
		return;
	(void)c;
	m->free(m);
}

/* ---- the end ---- */

static void detach_pools(struct session *s)
{
	for (uint32_t i = 0; i < s->core->n_pools; i++) {
		if (s->pools[i].generation)
			s->core->pool[i]->attached--;
		s->pools[i].generation = 0;
	}
}

void session_end(struct session *s, enum wire_bye reason, const char *format, ...)
{
	struct core *c = s->core;
	char text[CONTROL_TEXT_BYTES];
	va_list arguments;

	if (s->state != SESSION_LIVE)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);

	s->state = SESSION_ENDED;
	c->sums[counter_of_bye(reason)]++;
	if (reason == WIRE_BYE_VIOLATION)
		core_count(c, COUNTER_protocol_violations);
	if (reason == WIRE_BYE_VIOLATION || reason == WIRE_BYE_FAULT ||
	    reason == WIRE_BYE_STALLED) {
		uint32_t suppressed;

		if (log_limit_pass(&c->violations, c->now_ns, NS_PER_S, &suppressed))
			log_write(c->log, LOG_LEVEL_WARNING,
				  "session %u (%s, pid %u) ended: %s (%u more like it not shown)",
				  s->id, s->client, s->pid, text, suppressed);
	} else {
		log_write(c->log, LOG_LEVEL_INFO, "session %u (%s, pid %u) ended: %s", s->id,
			  s->client, s->pid, text);
	}
	list_remove(&s->in_sessions);
	list_append(&c->dying, &s->in_sessions);
	list_remove(&s->in_awake);
	list_remove(&s->in_answered);
	s->is_awake = false;
	c->n_sessions--;
	c->namespaces[s->name_space].sessions--;
	if (s->slot)
		atomic_store_explicit(&s->slot->id, 0, memory_order_release);
	s->slot = NULL;

	list_remove(&s->in_ready);
	c->hooks.ended(c->hooks.context, s, reason, text);
}

void session_tear_down(struct session *s)
{
	struct core *c = s->core;

	must(s->state == SESSION_ENDED && s->memory);
	while (!list_is_empty(&s->requests))
		request_end(list_entry(list_first(&s->requests), struct request, in_session),
			    WIRE_EGONE);
	while (!list_is_empty(&s->sequences))
		sequence_abandon(
		    list_entry(list_first(&s->sequences), struct sequence, in_session));
	list_remove(&s->in_ready);
	detach_pools(s);
	session_memory_give(c, s->memory);
	s->memory = NULL;
	list_remove(&s->in_sessions);
	list_append(&c->ended, &s->in_sessions);
	session_settle(s);
}

void session_exited(struct session *s)
{
	s->exited = true;
	session_end(s, WIRE_BYE_DEATH, "the client exited");
	if (s->memory)
		session_tear_down(s);
	else
		session_settle(s);
}

void session_settle(struct session *s)
{
	struct core *c = s->core;

	if (s->state != SESSION_ENDED || s->memory)
		return;
	if (s->exited)
		quarantine_end(c, s);
	/* Whoever watches the process tells when it has exited, if pages wait for that. */
	if (s->quarantines)
		return;
	must(list_is_empty(&s->requests) && list_is_empty(&s->sequences));
	list_remove(&s->in_sessions);
	must(s->heap.used == 0);
	c->hooks.gone(c->hooks.context, s);
	free(s);
}

/* ---- rings ---- */

static bool has_credit(struct session *s, bool reserved)
{
	uint64_t unconsumed = s->completions.produced - s->completions.consumed;
	uint64_t slots = s->completion_slots - (reserved ? 0 : WIRE_RESERVED_COMPLETIONS);
	uint64_t mine = s->in_flight - (reserved ? 0 : s->reserved_in_flight);

	if (mine + unconsumed < slots)
		return true;
	if (ring_in_flight(&s->completions, &unconsumed)) {
		session_end(s, WIRE_BYE_VIOLATION,
			    "the position of the completion ring went back or passed its end");
		return false;
	}
	if (mine + unconsumed < slots || !protection(credits_are_kept))
		return true;
	session_end(s, WIRE_BYE_VIOLATION,
		    "more operations in flight than credits: %llu unanswered, %llu not consumed, "
		    "%llu slots",
		    (unsigned long long)mine, (unsigned long long)unconsumed,
		    (unsigned long long)slots);
	return false;
}

static void take(struct session *s, const struct submission *e)
{
	const struct request_kind *kind = request_kind_find(e->opcode);
	struct request *r;

	s->taken++;
	core_count(s->core, COUNTER_requests);
	if (!has_credit(s, kind && kind->reserved))
		return;
	if (e->opcode == WIRE_OP_NULL &&
	    (e->flags | e->reserved | e->in_bytes | e->out_bytes) == 0) {
		struct completion reply = {.submission = s->taken, .opcode = WIRE_OP_NULL};

		counters_time(&s->core->counters, HISTOGRAM_latency_null, 0);
		session_complete(s, &reply);
		return;
	}
	if (request_decode(s, e, NULL, &r) == 0)
		request_start(r);
}

bool session_poll(struct session *s)
{
	struct submission e;
	unsigned n = 0;
	int r = 0;

	while (n < POLL_ENTRIES && s->state == SESSION_LIVE) {
		r = ring_get(&s->submissions, &e);
		if (r)
			break;
		n++;
		take(s, &e);
	}
	if (s->state != SESSION_LIVE)
		return true;
	if (r == RING_VIOLATION) {
		session_end(s, WIRE_BYE_VIOLATION,
			    "submission %llu carries a sequence number that no client writes",
			    (unsigned long long)(s->taken + 1));
		return true;
	}
	if (n == 0)
		return false;
	ring_publish(&s->submissions);
	s->active_ns = s->core->now_ns;
	return true;
}

void session_complete(struct session *s, const struct completion *reply)
{
	struct core *c = s->core;
	int r;

	if (s->state != SESSION_LIVE)
		return;
	core_count(c, COUNTER_completions);
	if (reply->status)
		core_count(c, COUNTER_refusals);
	r = ring_put(&s->completions, reply);
	if (r) {
		session_end(s, WIRE_BYE_VIOLATION, "the completion ring has no room for an answer");
		return;
	}
	s->given++;
	if (list_is_empty(&s->in_answered))
		list_append(&c->answered, &s->in_answered);
}

struct text_name session_text(struct session *s, const char *text)
{
	return text_write(&s->texts, text);
}

int session_read(struct session *s, void *to, uint64_t offset, size_t bytes)
{
	int r = guard_copy(to, session_window(s, offset), bytes);

	if (r) {
		core_count(s->core, COUNTER_faults_guarded);
		session_end(s, WIRE_BYE_FAULT, "its window has a hole");
	}
	return s->state == SESSION_LIVE ? 0 : -EFAULT;
}

int session_write(struct session *s, uint64_t offset, const void *from, size_t bytes)
{
	int r = guard_copy(session_window(s, offset), from, bytes);

	if (r) {
		core_count(s->core, COUNTER_faults_guarded);
		session_end(s, WIRE_BYE_FAULT, "its window has a hole");
	}
	return r;
}

static void rouse(struct session *s)
{
	s->active_ns = s->core->now_ns;
	if (s->is_awake)
		return;
	ring_end_sleep(&s->submissions);
	list_append(&s->core->awake, &s->in_awake);
	s->is_awake = true;
}

void session_wake(struct session *s)
{
	core_count(s->core, COUNTER_wakes_received);
	if (s->state == SESSION_LIVE)
		rouse(s);
}

void session_sleep(struct session *s)
{
	if (!s->is_awake || !ring_prepare_sleep(&s->submissions))
		return;
	list_remove(&s->in_awake);
	s->is_awake = false;
}

void session_look(struct session *s)
{
	struct core *c = s->core;
	uint64_t unconsumed;

	if (s->slot) {
		struct request *oldest =
		    list_is_empty(&s->requests)
			? NULL
			: list_entry(list_first(&s->requests), struct request, in_session);

		atomic_store_explicit(&s->slot->oldest_ns, oldest ? oldest->began_ns : 0,
				      memory_order_relaxed);
		atomic_store_explicit(&s->slot->submissions, s->taken, memory_order_relaxed);
		atomic_store_explicit(&s->slot->completions, s->given, memory_order_relaxed);
	}
	/* What came while a wake message was lost waits no longer than until here. */
	if (!s->is_awake && !s->held && !ring_is_empty(&s->submissions))
		rouse(s);
	if (ring_in_flight(&s->completions, &unconsumed)) {
		session_end(s, WIRE_BYE_VIOLATION,
			    "the position of the completion ring went back or passed its end");
		return;
	}
	if (unconsumed < s->completion_slots / 2 || s->stalled_at != s->completions.consumed) {
		s->stalled_at = s->completions.consumed;
		s->stalled_since_ns = c->now_ns;
		return;
	}
	if (c->now_ns - s->stalled_since_ns > c->config->core.stall_limit_ms * NS_PER_MS)
		session_end(s, WIRE_BYE_STALLED, "%llu completions stayed unconsumed for %llu ms",
			    (unsigned long long)unconsumed,
			    (unsigned long long)c->config->core.stall_limit_ms);
}
