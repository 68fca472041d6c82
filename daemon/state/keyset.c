/* SPDX-License-Identifier: Apache-2.0 */
/* keyset: see keyset.h. Core thread; nothing here blocks. */
#include "daemon/state/keyset.h"

#include <errno.h>
#include <sys/mman.h>

#include "daemon/base/panic.h"

static void *reserve(uint64_t bytes)
{
	void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

int keyset_init(struct keyset *s, uint32_t capacity)
{
	uint64_t slots = 16;

	must(capacity > 0 && capacity <= KEYSET_MAX);
	while (slots < 2ull * capacity)
		slots *= 2;
	*s = (struct keyset){.mask = slots - 1, .capacity = capacity, .first_free = KEYSET_NONE};
	s->entries = reserve((uint64_t)capacity * sizeof(*s->entries));
	s->table = reserve(slots * sizeof(*s->table));
	if (s->entries && s->table)
		return 0;
	keyset_deinit(s);
	return -ENOMEM;
}

void keyset_deinit(struct keyset *s)
{
	if (s->entries)
		munmap(s->entries, (uint64_t)s->capacity * sizeof(*s->entries));
	if (s->table)
		munmap(s->table, (s->mask + 1) * sizeof(*s->table));
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
