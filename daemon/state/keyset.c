/* SPDX-License-Identifier: Apache-2.0 */
/* keyset: see keyset.h. Core thread; nothing here blocks. */
#include "daemon/state/keyset.h"

#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"

static uint64_t entries_bytes(uint64_t capacity)
{
	return capacity * sizeof(struct keyset_entry);
}

/* A table of at least two slots an entry. */
static uint64_t slots_for(uint64_t capacity)
{
	uint64_t slots = 16;

	while (slots < 2 * capacity)
		slots *= 2;
	return slots;
}

static uint64_t table_bytes(uint64_t slots)
{
	return slots * sizeof(uint32_t);
}

uint64_t keyset_bytes_for(uint64_t capacity)
{
	return reserve_bytes(entries_bytes(capacity)) +
	       reserve_bytes(table_bytes(slots_for(capacity)));
}

int keyset_init(struct keyset *s, uint32_t capacity)
{
	uint64_t slots = slots_for(capacity);

	must(capacity > 0 && capacity <= KEYSET_MAX);
	*s = (struct keyset){.mask = slots - 1, .capacity = capacity, .first_free = KEYSET_NONE};
	s->entries = reserve_take(entries_bytes(capacity));
	s->table = reserve_take(table_bytes(slots));
	if (s->entries && s->table)
		return 0;
	keyset_deinit(s);
	return -ENOMEM;
}

void keyset_deinit(struct keyset *s)
{
	reserve_give(s->entries, entries_bytes(s->capacity));
	reserve_give(s->table, table_bytes(s->mask + 1));
	*s = (struct keyset){0};
}

/* Keys are hashes already; the index uses other bits than the prefix table's. */
static uint64_t home_of(const struct keyset *s, struct key key)
{
	return (key.high ^ key.low >> 32) & s->mask;
}

/* The slot of the key, or the empty one where it would be. */
static uint64_t slot_of(const struct keyset *s, struct key key)
{
	uint64_t at = home_of(s, key);

	for (; s->table[at]; at = (at + 1) & s->mask) {
		const struct keyset_entry *e = &s->entries[s->table[at] - 1];

		if (e->key.low == key.low && e->key.high == key.high)
			break;
	}
	return at;
}

uint32_t keyset_find(const struct keyset *s, struct key key)
{
	return s->table[slot_of(s, key)] - 1;
}

uint32_t keyset_add(struct keyset *s, struct key key)
{
	uint64_t slot = slot_of(s, key);
	uint32_t at = s->first_free;

	if (s->table[slot])
		return KEYSET_NONE;
	must(s->used < s->capacity);
	if (at != KEYSET_NONE)
		s->first_free = s->entries[at].next_free;
	else
		at = s->fresh++;
	s->used++;
	s->entries[at] = (struct keyset_entry){.key = key};
	s->table[slot] = at + 1;
	return at;
}

void keyset_remove(struct keyset *s, uint32_t entry)
{
	uint64_t hole = slot_of(s, s->entries[entry].key);

	must(s->table[hole] == entry + 1);
	/* What follows moves up if its home lies at or before the hole (cyclically). */
	for (uint64_t at = (hole + 1) & s->mask; s->table[at]; at = (at + 1) & s->mask) {
		uint64_t home = home_of(s, s->entries[s->table[at] - 1].key);

		if (((at - home) & s->mask) >= ((at - hole) & s->mask)) {
			s->table[hole] = s->table[at];
			hole = at;
		}
	}
	s->table[hole] = 0;
	s->entries[entry].next_free = s->first_free;
	s->first_free = entry;
	s->used--;
}
