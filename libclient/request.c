/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request: the records of requests: take, fill, launch, finish, give back.
 *
 * Owned by the thread that uses the connection. A synchronous take, range or go waits for the
 * daemon; everything else returns at once. Nothing here allocates after the session has begun,
 * save for the sentence of a failure.
 */
#include "libclient/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shm/text.h"

/* A ticket is the record's index below a serial number, so that an old one finds nothing. */
#define TICKET_INDEX_BITS 20

void list_append(struct request_list *l, struct request *r)
{
	r->next = NULL;
	r->previous = l->last;
	if (l->last)
		l->last->next = r;
	else
		l->first = r;
	l->last = r;
}

static void list_prepend(struct request_list *l, struct request *r)
{
	r->previous = NULL;
	r->next = l->first;
	if (l->first)
		l->first->previous = r;
	else
		l->last = r;
	l->first = r;
}

void list_remove(struct request_list *l, struct request *r)
{
	if (r->next)
		r->next->previous = r->previous;
	else
		l->last = r->previous;
	if (r->previous)
		r->previous->next = r->next;
	else
		l->first = r->next;
	r->next = r->previous = NULL;
}

int request_records(struct kvhost *host)
{
	/* All tickets may wait for kvhost_poll while as many other requests are under way. */
	uint32_t wanted = 2 * (host->credits + WIRE_RESERVED_COMPLETIONS) + 2;
	uint64_t table = 1;

	if (wanted > host->n_records) {
		struct request **grown = realloc(host->records, wanted * sizeof(*grown));

		if (!grown)
			return KVHOST_ENOMEM;
		host->records = grown;
	}
	while (host->n_records < wanted) {
		struct request *r = calloc(1, sizeof(*r));

		if (!r)
			return KVHOST_ENOMEM;
		r->index = host->n_records;
		host->records[host->n_records++] = r;
		list_append(&host->free, r);
	}
	while (table < 2ull * host->credits)
		table *= 2;
	free(host->flying_by_sequence);
	host->flying_by_sequence = calloc(table, sizeof(*host->flying_by_sequence));
	if (!host->flying_by_sequence)
		return KVHOST_ENOMEM;
	host->flying_mask = table - 1;
	return 0;
}

void request_free_records(struct kvhost *host)
{
	for (uint32_t i = 0; i < host->n_records; i++) {
		free(host->records[i]->text);
		free(host->records[i]);
	}
	free(host->records);
	free(host->flying_by_sequence);
	host->records = NULL;
	host->flying_by_sequence = NULL;
	host->n_records = 0;
}

bool host_room(const struct kvhost *host, uint16_t opcode)
{
	uint32_t most = host->credits;

	/* So that what ends things can be said also when all else is full. */
	if (opcode == WIRE_OP_CANCEL || opcode == WIRE_OP_CLOSE)
		most += WIRE_RESERVED_COMPLETIONS;
	return host->in_flight < most;
}

static bool room_is_there(struct kvhost *host, void *context)
{
	return host_room(host, *(const uint16_t *)context);
}

static int find_room(struct kvhost *host, enum request_kind kind, uint16_t opcode)
{
	uint32_t most = host->credits;

	if (kind == REQUEST_TICKET) {
		if (opcode == WIRE_OP_CLOSE)
			most += WIRE_RESERVED_COMPLETIONS;
		if (host->n_tickets >= most)
			return KVHOST_EFULL;
	}
	if (host_room(host, opcode))
		return 0;
	host_reap(host);
	if (host_room(host, opcode))
		return host->gone ? KVHOST_EGONE : 0;
	if (kind != REQUEST_SYNCHRONOUS)
		return host->gone ? KVHOST_EGONE : KVHOST_EFULL;
	return host_wait(host, room_is_there, &opcode, NO_DEADLINE);
}

int request_take(struct kvhost *host, enum request_kind kind, uint16_t opcode, struct request **out)
{
	struct request *r;
	int result;

	result = host_check(host);
	if (result)
		return result;
	result = find_room(host, kind, opcode);
	if (result) {
		if (result == KVHOST_EFULL)
			host_fail(host, result, "%u requests are under way or not taken yet",
				  host->in_flight > host->n_tickets ? host->in_flight
								    : host->n_tickets);
		return result;
	}
	r = host->free.first;
	assert(r && r->state == REQUEST_FREE);
	list_remove(&host->free, r);
	memset(&r->entry, 0, sizeof(r->entry));
	r->entry.opcode = opcode;
	r->state = REQUEST_TAKEN;
	r->kind = (uint8_t)kind;
	r->finish = NULL;
	r->table_round = false;
	r->block = WINDOW_NONE;
	r->lent = WINDOW_NONE;
	r->capacity = 0;
	r->ticket = (++host->next_ticket << TICKET_INDEX_BITS) | r->index;
	if (kind == REQUEST_TICKET)
		host->n_tickets++;
	*out = r;
	return 0;
}

struct request *request_find(struct kvhost *host, kvhost_ticket ticket)
{
	uint64_t index = ticket & ((1u << TICKET_INDEX_BITS) - 1);
	struct request *r;

	if (index >= host->n_records)
		return NULL;
	r = host->records[index];
	if (r->ticket != ticket || r->kind != REQUEST_TICKET || r->state < REQUEST_DEFERRED)
		return NULL;
	return r;
}

/* ---- ranges ---- */

struct range_wish {
	struct request *request;
	uint64_t bytes;
};

static bool range_is_there(struct kvhost *host, void *context)
{
	struct range_wish *wish = context;

	wish->request->block = window_take(&host->window, wish->bytes);
	/* With nothing under way nobody will give anything back. */
	return wish->request->block != WINDOW_NONE || host->in_flight == 0;
}

/* One range for both: `in` first, `out` behind it. */
int request_range(struct kvhost *host, struct request *r, uint64_t in_bytes, uint64_t out_bytes)
{
	struct range_wish wish = {.request = r};
	uint64_t out_at = (in_bytes + 7) / 8 * 8;
	uint64_t offset;
	int result;

	assert(r->block == WINDOW_NONE);
	if (in_bytes > UINT32_MAX || out_bytes > UINT32_MAX ||
	    out_at + out_bytes > host->window.bytes)
		return host_fail(host, KVHOST_EFULL,
				 "the request needs %llu bytes of the window, which has %llu",
				 (unsigned long long)(out_at + out_bytes),
				 (unsigned long long)host->window.bytes);
	wish.bytes = out_at + out_bytes;
	r->block = window_take(&host->window, wish.bytes);
	if (r->block == WINDOW_NONE && r->kind == REQUEST_SYNCHRONOUS) {
		result = host_wait(host, range_is_there, &wish, NO_DEADLINE);
		if (result)
			return result;
	}
	if (r->block == WINDOW_NONE)
		return host_fail(host, KVHOST_EFULL, "no room for %llu bytes in the window",
				 (unsigned long long)wish.bytes);
	offset = window_offset(&host->window, r->block);
	if (in_bytes) {
		r->entry.in_offset = offset;
		r->entry.in_bytes = (uint32_t)in_bytes;
	}
	if (out_bytes) {
		r->entry.out_offset = offset + out_at;
		r->entry.out_bytes = (uint32_t)out_bytes;
	}
	return 0;
}

void *request_in(struct kvhost *host, const struct request *r)
{
	return host->window.memory + r->entry.in_offset;
}

const void *request_out(struct kvhost *host, const struct request *r)
{
	return host->window.memory + r->entry.out_offset;
}

bool request_lend(struct kvhost *host, struct request *r, const void *body, uint64_t head_bytes,
		  uint64_t body_bytes)
{
	uint32_t block = window_block_of_caller(&host->window, body);
	struct window_block *b;
	uint64_t offset;

	if (block == WINDOW_NONE || head_bytes > WINDOW_HEAD_BYTES ||
	    head_bytes + body_bytes > UINT32_MAX)
		return false;
	b = &host->window.blocks[block];
	/* Two requests on the same memory: the second one has no place for its head. */
	if (b->head_used ||
	    body_bytes > window_block_bytes(&host->window, block) - WINDOW_HEAD_BYTES)
		return false;
	offset = window_offset(&host->window, block) + WINDOW_HEAD_BYTES - head_bytes;
	b->head_used = true;
	r->lent = block;
	r->entry.in_offset = offset;
	r->entry.in_bytes = (uint32_t)(head_bytes + body_bytes);
	return true;
}

void request_give_ranges(struct kvhost *host, struct request *r)
{
	/* A lent block may be the caller's no more; its record is only looked at if it is. */
	if (r->lent != WINDOW_NONE && r->lent < host->window.n_blocks)
		host->window.blocks[r->lent].head_used = false;
	window_give(&host->window, r->block);
	r->block = r->lent = WINDOW_NONE;
}

void request_hold(struct request *r, struct kvhost_pool *pool, struct kvhost_sequence *seq)
{
	assert(!r->pool && !r->seq);
	r->pool = pool;
	r->seq = seq;
	if (pool)
		pool->holds++;
	if (seq)
		seq->holds++;
}

static void let_go(struct request *r)
{
	if (r->pool)
		pool_release(r->pool);
	if (r->seq)
		sequence_release(r->seq);
	r->pool = NULL;
	r->seq = NULL;
}

void request_give(struct kvhost *host, struct request *r)
{
	assert(r->state == REQUEST_TAKEN || r->state == REQUEST_FINISHED);
	if (r->kind == REQUEST_TICKET)
		host->n_tickets--;
	request_give_ranges(host, r);
	let_go(r);
	free(r->text);
	r->text = NULL;
	r->state = REQUEST_FREE;
	/* The record used last is the warmest. */
	list_prepend(&host->free, r);
}

/* ---- launch ---- */

static void fly(struct kvhost *host, struct request *r)
{
	struct request **head;

	r->sequence = host->submissions.produced;
	head = &host->flying_by_sequence[r->sequence & host->flying_mask];
	r->chain = *head;
	*head = r;
	r->state = REQUEST_FLYING;
	list_append(&host->flying, r);
	host->counters.submitted++;
	if (ring_must_wake(&host->submissions)) {
		host->counters.wakes_sent++;
		channel_wake(host);
	} else {
		host->counters.wakes_avoided++;
	}
}

/* False: not now. */
static bool put(struct kvhost *host, struct request *r)
{
	int outcome = ring_put(&host->submissions, &r->entry);

	if (outcome == RING_FULL)
		return false;
	if (outcome != 0) {
		host_end(host, KVHOST_EVIOLATION,
			 "the daemon's position in the submission ring makes no sense");
		return false;
	}
	fly(host, r);
	return true;
}

/* False: the session has ended; `r` was not launched. */
static bool launch(struct kvhost *host, struct request *r)
{
	assert(r->finish && r->state == REQUEST_TAKEN);
	if (host->gone)
		return false;
	if (host->deferred.first || !put(host, r)) {
		if (host->gone)
			return false;
		r->state = REQUEST_DEFERRED;
		list_append(&host->deferred, r);
	}
	host->in_flight++;
	return true;
}

int request_again(struct kvhost *host, struct request *r)
{
	assert(!r->table_round);
	r->table_round = true;
	return launch(host, r) ? REQUEST_AGAIN : 0;
}

/* ---- finish ---- */

static void complete(struct kvhost *host, struct request *r, int status, const struct completion *c)
{
	int result;

	host->in_flight--;
	r->state = REQUEST_TAKEN;
	result = r->finish(host, r, status, c);
	if (result == REQUEST_AGAIN)
		return;
	r->result = result;
	r->state = REQUEST_FINISHED;
	host->counters.finished++;
	if (r->kind == REQUEST_SYNCHRONOUS)
		return;
	request_give_ranges(host, r);
	let_go(r);
	if (r->kind == REQUEST_TICKET)
		list_append(&host->finished, r);
	else
		request_give(host, r);
}

static void launch_deferred(struct kvhost *host)
{
	struct request *r;

	while ((r = host->deferred.first) && !host->gone) {
		list_remove(&host->deferred, r);
		r->state = REQUEST_TAKEN;
		if (put(host, r))
			continue;
		if (host->gone) {
			complete(host, r, host->gone, NULL);
			return;
		}
		/* Back to where it was: the first. */
		r->state = REQUEST_DEFERRED;
		list_prepend(&host->deferred, r);
		return;
	}
}

/* It has no name in the ring yet, so the daemon cannot be asked. */
void request_cancel_deferred(struct kvhost *host, struct request *r)
{
	assert(r->state == REQUEST_DEFERRED);
	/* What names an open step must reach the daemon: only there can its failure poison it. */
	if (r->entry.opcode != WIRE_OP_NULL && r->entry.opcode != WIRE_OP_OPEN &&
	    r->entry.opcode != WIRE_OP_LOOKUP)
		return;
	list_remove(&host->deferred, r);
	complete(host, r, KVHOST_ECANCELLED, NULL);
}

static void keep_text(struct kvhost *host, struct request *r, const struct completion *c)
{
	struct text_name name = {.serial = c->text_serial, .text = c->text};
	char text[CONTROL_TEXT_BYTES];

	/* Without its sentence the failure is still a failure. */
	if (c->text == 0 || text_read(host->texts, name, text) != 0)
		return;
	free(r->text);
	r->text = strdup(text);
}

/* False: the session has ended over it. */
static bool dispatch(struct kvhost *host, const struct completion *c)
{
	struct request **link = &host->flying_by_sequence[c->submission & host->flying_mask];
	struct request *r;

	while (*link && (*link)->sequence != c->submission)
		link = &(*link)->chain;
	r = *link;
	if (!r || r->entry.opcode != c->opcode || c->status > 0) {
		host_end(host, KVHOST_EVIOLATION,
			 r ? "the daemon answered another question than was asked"
			   : "the daemon answered a request that is not under way");
		return false;
	}
	*link = r->chain;
	list_remove(&host->flying, r);
	if (c->status != 0)
		keep_text(host, r, c);
	complete(host, r, c->status, c);
	return !host->gone;
}

void host_reap(struct kvhost *host)
{
	struct completion c;
	int outcome;

	while (!host->gone) {
		outcome = ring_get(&host->completions, &c);
		if (outcome == RING_EMPTY)
			break;
		if (outcome != 0) {
			host_end(host, KVHOST_EVIOLATION,
				 "the completion ring holds what no daemon writes");
			return;
		}
		/* Credits count until here: published before anything new is launched. */
		ring_publish(&host->completions);
		if (!dispatch(host, &c))
			return;
	}
	if (host->deferred.first)
		launch_deferred(host);
}

void host_end(struct kvhost *host, int result, const char *text)
{
	struct request *r;

	if (host->gone)
		return;
	host->gone = result;
	if (text)
		host_set_reason(host, text);
	if (result == KVHOST_EVIOLATION)
		channel_bye(host, WIRE_BYE_VIOLATION);
	channel_drop_arrivals(host);
	memset(host->flying_by_sequence, 0,
	       (host->flying_mask + 1) * sizeof(*host->flying_by_sequence));
	while ((r = host->flying.first)) {
		list_remove(&host->flying, r);
		complete(host, r, result, NULL);
	}
	while ((r = host->deferred.first)) {
		list_remove(&host->deferred, r);
		complete(host, r, result, NULL);
	}
}

int finish_keep(struct kvhost *host, struct request *r, int status, const struct completion *c)
{
	(void)host;
	if (c)
		memcpy(&r->u.answer, c, sizeof(*c));
	return status;
}

/* ---- go ---- */

static int never_flew(struct kvhost *host, struct request *r)
{
	(void)r->finish(host, r, host->gone, NULL);
	r->state = REQUEST_FINISHED;
	r->result = host->gone;
	return r->result;
}

int request_run(struct kvhost *host, struct request *r)
{
	assert(r->kind == REQUEST_SYNCHRONOUS);
	if (!launch(host, r))
		return never_flew(host, r);
	request_await(host, r);
	if (r->result != 0 && !host->gone)
		host_set_reason(host, r->text ? r->text : "");
	return r->result;
}

/* Launch; a synchronous one is waited for and given back. */
int request_go(struct kvhost *host, struct request *r, kvhost_ticket *out)
{
	int result = 0;

	if (r->kind == REQUEST_SYNCHRONOUS) {
		result = request_run(host, r);
		request_give(host, r);
	} else if (!launch(host, r)) {
		result = never_flew(host, r);
		request_give(host, r);
	} else if (out) {
		*out = r->ticket;
	}
	return result;
}
