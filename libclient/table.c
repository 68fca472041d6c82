/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table: a sequence's page table on this side: kept from what each answer tells, read again when
 * that does not suffice.
 *
 * Owned by the thread that uses the connection. Only table_refresh waits for the daemon.
 */
#include "libclient/internal.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_AT_ONCE 16u
#define READ_BEYOND  8u /* pages more than are known, so that one reading suffices */

_Static_assert(sizeof(struct kvhost_page) == sizeof(struct payload_handle), "page");
_Static_assert(offsetof(struct kvhost_page, generation) ==
		   offsetof(struct payload_handle, generation),
	       "page");

uint32_t table_index(const struct kvhost_sequence *seq, uint32_t position)
{
	return (position - seq->first_token) / seq->page_tokens;
}

uint32_t table_pages_for(const struct kvhost_sequence *seq, uint32_t tokens)
{
	uint32_t last;

	if (tokens == 0)
		return 0;
	last = table_index(seq, tokens - 1);
	return last < seq->n_pages ? last + 1 : seq->n_pages;
}

static bool make_room(struct kvhost_sequence *seq, uint64_t pages)
{
	struct kvhost_page *grown;
	uint64_t room = seq->room_pages;

	if (pages <= room)
		return true;
	room = room * 2 > pages ? room * 2 : pages + ROOM_AT_ONCE;
	if (room > UINT32_MAX)
		return false;
	grown = realloc(seq->pages, room * sizeof(*grown));
	if (!grown)
		return false;
	seq->pages = grown;
	seq->room_pages = (uint32_t)room;
	return true;
}

/* The table ends behind what is stored. `handles` may lie in the window. */
int table_store(struct kvhost_sequence *seq, uint32_t first, const void *handles, uint32_t count)
{
	if (first > seq->n_pages || !make_room(seq, (uint64_t)first + count)) {
		seq->stale = true;
		return KVHOST_ENOMEM;
	}
	if (count > 0)
		memcpy(&seq->pages[first], handles, (size_t)count * sizeof(*seq->pages));
	seq->n_pages = first + count;
	return 0;
}

static bool prepare(struct kvhost *host, struct request *r, uint32_t pages)
{
	struct kvhost_sequence *seq = r->seq;

	memset(&r->entry, 0, sizeof(r->entry));
	r->entry.opcode = WIRE_OP_TABLE;
	r->entry.index = seq->index;
	r->entry.generation = seq->generation;
	r->capacity = pages;
	return request_range(host, r, 0, (uint64_t)pages * sizeof(struct payload_handle)) == 0;
}

static int finish_table(struct kvhost *host, struct request *r, int status,
			const struct completion *c);

static int read_again(struct kvhost *host, struct request *r, uint32_t pages)
{
	struct kvhost_sequence *seq = r->seq;

	seq->stale = true;
	request_give_ranges(host, r);
	r->finish = finish_table;
	if (!prepare(host, r, pages))
		return 0;
	return request_again(host, r);
}

static int finish_table(struct kvhost *host, struct request *r, int status,
			const struct completion *c)
{
	struct kvhost_sequence *seq = r->seq;

	if (status)
		return r->table_round ? 0 : status;
	if (c->count > r->capacity) {
		/* It strictly grows, and no further than a table can. */
		if (c->count <= seq->max_pages)
			return read_again(host, r, c->count);
		host_end(host, KVHOST_EVIOLATION,
			 "the daemon's page table is longer than a sequence can be");
		return KVHOST_EVIOLATION;
	}
	seq->n_pages = 0;
	seq->stale = false;
	/* It tells what has left the front; to find a page that much is taken away. */
	seq->first_token = (uint32_t)c->value0;
	seq->version = (uint32_t)c->value1;
	if (table_store(seq, 0, request_out(host, r), c->count) != 0 && !r->table_round)
		return KVHOST_ENOMEM;
	return 0;
}

static uint32_t pages_to_read(const struct kvhost_sequence *seq)
{
	uint64_t pages = (uint64_t)seq->n_pages + READ_BEYOND;

	if (seq->step.open)
		pages += (seq->step.target_tokens - seq->step.start_tokens) / seq->page_tokens;
	return pages < seq->max_pages ? (uint32_t)pages : seq->max_pages;
}

int table_round(struct kvhost *host, struct request *r)
{
	return read_again(host, r, pages_to_read(r->seq));
}

int table_refresh(struct kvhost_sequence *seq)
{
	struct kvhost *host = seq->host;
	struct request *r;
	int result;

	if (!seq->stale)
		return 0;
	result = request_take(host, REQUEST_SYNCHRONOUS, WIRE_OP_TABLE, &r);
	if (result)
		return result;
	request_hold(r, NULL, seq);
	r->finish = finish_table;
	if (prepare(host, r, pages_to_read(seq)))
		result = request_run(host, r);
	if (result == 0 && seq->stale)
		result = host->gone ? host->gone : KVHOST_EFULL;
	request_give(host, r);
	return result;
}
