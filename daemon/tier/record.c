/* SPDX-License-Identifier: Apache-2.0 */
/* record: see record.h. Pure functions on memory; nothing blocks. */
#include "daemon/tier/record.h"

#include <stdatomic.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/base/panic.h"

#define FIXED_BYTES  sizeof(struct record)
#define HASHED_BYTES offsetof(struct record, header_checksum)
#define STATE_OFFSET (RECORD_BYTES - sizeof(uint64_t))

_Static_assert(FIXED_BYTES == 136, "the fixed part of a header");
_Static_assert(HASHED_BYTES == FIXED_BYTES - sizeof(uint64_t), "its checksum comes last");
_Static_assert(sizeof(struct record_extent) == 16 && FIXED_BYTES % 8 == 0, "extents are aligned");
_Static_assert(sizeof(struct record_span) == 40, "spans are aligned");
_Static_assert(RECORD_PARTS_BYTES == STATE_OFFSET - FIXED_BYTES, "parts end at the state word");

/* What the parts take; more than RECORD_PARTS_BYTES if there are more than may be. */
static size_t parts_bytes(const struct record *r)
{
	if (r->n_tokens > RECORD_TOKENS_MAX || r->n_spans > RECORD_SPANS_MAX ||
	    r->n_extents > RECORD_EXTENTS_MAX)
		return RECORD_PARTS_BYTES + 1;
	return r->n_extents * sizeof(struct record_extent) +
	       r->n_spans * sizeof(struct record_span) + r->n_tokens * sizeof(uint32_t);
}

static uint64_t header_checksum(const struct record *fixed, const void *packed, size_t bytes)
{
	XXH3_state_t hash;

	XXH3_64bits_reset(&hash);
	XXH3_64bits_update(&hash, fixed, HASHED_BYTES);
	XXH3_64bits_update(&hash, packed, bytes);
	return XXH3_64bits_digest(&hash);
}

/* No end of an extent is past 2^64, none is empty, and the payload fits in them. */
static bool extents_hold(const struct record_extent *extents, uint32_t n, uint64_t payload_bytes)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (extents[i].bytes == 0 || extents[i].offset > UINT64_MAX - extents[i].bytes ||
		    sum > UINT64_MAX - extents[i].bytes)
			return false;
		sum += extents[i].bytes;
	}
	return n == 0 || sum >= payload_bytes;
}

static bool fields_are_good(const struct record *r, const struct record_extent *extents)
{
	return (r->kind == RECORD_PAGE || r->kind == RECORD_IMAGE) &&
	       (r->flags & ~RECORD_HAS_CHECKSUM) == 0 &&
	       extents_hold(extents, r->n_extents, r->payload_bytes);
}

static char *put(char *at, const void *part, size_t bytes)
{
	if (bytes)
		memcpy(at, part, bytes);
	return at + bytes;
}

/* How far the parts reach of what lies there: behind that nothing was written since the memory was
 * new. All of it is cleared only where that cannot be told, for it is more than half of what a
 * small page itself is. */
static size_t used_before(const void *place)
{
	const struct record *r = place;
	size_t bytes = parts_bytes(r);

	if (r->magic == 0)
		return 0;
	if (r->magic != RECORD_MAGIC || r->version != RECORD_VERSION || bytes > RECORD_PARTS_BYTES)
		return RECORD_PARTS_BYTES;
	return bytes;
}

bool record_write(void *place, const struct record *r, const struct record_parts *parts)
{
	char *at = (char *)place + FIXED_BYTES;
	struct record fixed = *r;
	size_t bytes = parts_bytes(r), before;

	must((uintptr_t)place % sizeof(uint64_t) == 0);
	if (bytes > RECORD_PARTS_BYTES)
		return false;
	must(fields_are_good(r, parts->extents));

	/* An exchange and no plain store: nothing that follows may come before it. */
	atomic_exchange_explicit((_Atomic uint64_t *)((char *)place + STATE_OFFSET), RECORD_FILLING,
				 memory_order_acq_rel);

	before = used_before(place);
	at = put(at, parts->extents, r->n_extents * sizeof(*parts->extents));
	at = put(at, parts->spans, r->n_spans * sizeof(*parts->spans));
	at = put(at, parts->tokens, r->n_tokens * sizeof(*parts->tokens));
	if (bytes < before)
		memset(at, 0, before - bytes);

	fixed.magic = RECORD_MAGIC;
	fixed.version = RECORD_VERSION;
	fixed.reserved = 0;
	fixed.header_checksum = header_checksum(&fixed, (char *)place + FIXED_BYTES, bytes);
	memcpy(place, &fixed, FIXED_BYTES);
	return true;
}

void record_set_state(void *place, enum record_state state)
{
	must(state <= RECORD_LEAVING);
	/* Pairs with the load in record_state: who sees VALID sees header and payload. */
	atomic_store_explicit((_Atomic uint64_t *)((char *)place + STATE_OFFSET), state,
			      memory_order_release);
}

enum record_state record_state(const void *place)
{
	/* Pairs with the store in record_set_state. */
	uint64_t word = atomic_load_explicit(
	    (const _Atomic uint64_t *)((const char *)place + STATE_OFFSET), memory_order_acquire);

	return word <= RECORD_LEAVING ? (enum record_state)word : RECORD_FREE;
}

int record_read(const void *place, struct record *out, struct record_parts *parts)
{
	const char *packed = (const char *)place + FIXED_BYTES;
	struct record_parts found;
	struct record r;
	size_t bytes;

	must((uintptr_t)place % sizeof(uint64_t) == 0);
	memcpy(&r, place, sizeof(r));
	if (r.magic != RECORD_MAGIC)
		return RECORD_WRONG_MAGIC;
	if (r.version != RECORD_VERSION)
		return RECORD_WRONG_VERSION;
	bytes = parts_bytes(&r);
	if (bytes > RECORD_PARTS_BYTES)
		return RECORD_WRONG_FIELD;
	if (header_checksum(&r, packed, bytes) != r.header_checksum)
		return RECORD_WRONG_CHECKSUM;

	found.extents = (const struct record_extent *)packed;
	found.spans = (const struct record_span *)(found.extents + r.n_extents);
	found.tokens = (const uint32_t *)(found.spans + r.n_spans);
	if (!fields_are_good(&r, found.extents))
		return RECORD_WRONG_FIELD;
	*out = r;
	*parts = found;
	return 0;
}

uint64_t record_scan(const void *table, uint64_t n,
		     void (*visit)(void *context, uint64_t index, enum record_state state,
				   int wrong, const struct record *r,
				   const struct record_parts *parts),
		     void *context)
{
	uint64_t n_used = 0;

	must(visit);
	for (uint64_t i = 0; i < n; i++) {
		const char *place = (const char *)table + i * RECORD_BYTES;
		enum record_state state = record_state(place);
		struct record_parts parts;
		struct record r;
		int wrong;

		if (state == RECORD_FREE)
			continue;
		wrong = record_read(place, &r, &parts);
		visit(context, i, state, wrong, wrong ? NULL : &r, wrong ? NULL : &parts);
		n_used++;
	}
	return n_used;
}

uint64_t record_payload_checksum(const void *base, const struct record_extent *extents, uint32_t n)
{
	XXH3_state_t hash;

	XXH3_64bits_reset(&hash);
	for (uint32_t i = 0; i < n; i++)
		XXH3_64bits_update(&hash, (const char *)base + extents[i].offset, extents[i].bytes);
	return XXH3_64bits_digest(&hash);
}
