/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_RING_H
#define KVHOST_SHM_RING_H

/*
 * ring: one producer, one consumer, 64-byte entries that carry their own sequence number.
 *
 * The producer writes an entry's 56 payload bytes and then, with release, its sequence (position
 * + 1); the consumer polls the one entry that it expects, so a message costs one cache-line
 * transfer. A ring is never shared by more than two processes: a kill at any instruction leaves
 * nothing to repair. Each side trusts only its own struct here; the other side's memory is read
 * by copying one entry or one word.
 *
 * Waking: after publishing, the producer runs a seq_cst fence and reads need_wake; the consumer
 * sets need_wake, runs a seq_cst fence and looks at the ring again before it sleeps. One of the
 * two sees the other. The fences of ring_must_wake and ring_prepare_sleep are partners.
 */

#include <stdbool.h>
#include <string.h>

#include "shm/control.h"
#include "shm/fence.h"
#include "shm/steps.h"

#define RING_ENTRY_BYTES 64
#define RING_HALF_BYTES  24 /* where a test may stop a producer inside a payload */

struct ring_entry { /* the common shape of struct submission and struct completion */
	_Atomic uint64_t sequence;
	uint8_t payload[RING_ENTRY_BYTES - 8];
};

_Static_assert(sizeof(struct ring_entry) == RING_ENTRY_BYTES, "ring entry");
_Static_assert(sizeof(struct submission) == RING_ENTRY_BYTES, "submission");
_Static_assert(sizeof(struct completion) == RING_ENTRY_BYTES, "completion");

struct ring_producer {
	struct ring_entry *entries;
	const _Atomic uint64_t *peer_consumed; /* published by the consumer; never trusted */
	const _Atomic uint32_t *need_wake;     /* set by the consumer before it sleeps */
	uint64_t produced;                     /* entries published so far */
	uint64_t consumed;                     /* private copy of the last sane *peer_consumed */
	uint32_t slots;                        /* a power of two */
};

struct ring_consumer {
	struct ring_entry *entries;
	_Atomic uint64_t *published; /* our position, for the producer's back-pressure */
	_Atomic uint32_t *need_wake;
	uint64_t consumed;
	uint32_t slots;
};

enum ring_outcome {
	RING_EMPTY = 1,
	RING_FULL,
	RING_VIOLATION, /* a sequence or position that no honest peer writes */
};

/* The two ends of each ring of a control segment. `slots` are powers of two. */
void ring_submit_side(struct ring_producer *p, struct control *c, uint32_t slots);
void ring_serve_side(struct ring_consumer *c, struct control *control, uint32_t slots);
void ring_answer_side(struct ring_producer *p, struct control *c, uint32_t submission_slots,
		      uint32_t slots);
void ring_reap_side(struct ring_consumer *c, struct control *control, uint32_t submission_slots,
		    uint32_t slots);

/*
 * The hot functions are here, so that a null request costs little more than its cache lines.
 *
 * Entries published and not yet known to be consumed. 0, or RING_VIOLATION if the peer's position
 * went back or passed what was produced.
 */
static inline int ring_in_flight(struct ring_producer *p, uint64_t *out)
{
	/* Acquire pairs with the release in ring_publish: the consumer has copied every entry
	 * before this position, so their slots may be written again. */
	uint64_t consumed = atomic_load_explicit(p->peer_consumed, memory_order_acquire);

	if (consumed < p->consumed || consumed > p->produced)
		return RING_VIOLATION;
	p->consumed = consumed;
	*out = p->produced - consumed;
	return 0;
}

/*
 * Publish one entry (its first 8 bytes are ignored). 0, RING_FULL, or RING_VIOLATION as above;
 * the peer's position is looked at only when the last one known leaves no room.
 */
static inline int ring_put(struct ring_producer *p, const void *entry)
{
	struct ring_entry *slot = &p->entries[p->produced & (p->slots - 1)];
	uint64_t in_flight = p->produced - p->consumed;

	if (in_flight >= p->slots) {
		int r = ring_in_flight(p, &in_flight);

		if (r)
			return r;
		if (in_flight >= p->slots)
			return RING_FULL;
	}

	ring_step(RING_STEP_PUT_BEGIN);
	memcpy(slot->payload, (const char *)entry + 8, RING_HALF_BYTES);
	ring_step(RING_STEP_PUT_HALF);
	memcpy(slot->payload + RING_HALF_BYTES, (const char *)entry + 8 + RING_HALF_BYTES,
	       RING_ENTRY_BYTES - 8 - RING_HALF_BYTES);
	ring_step(RING_STEP_PUT_FULL);
	/* Release pairs with the acquire in ring_get: who sees the sequence sees the payload. */
	atomic_store_explicit(&slot->sequence, p->produced + 1, memory_order_release);
	p->produced++;
	ring_step(RING_STEP_PUT_DONE);
	return 0;
}

/* After ring_put: must the consumer be woken? */
static inline bool ring_must_wake(const struct ring_producer *p)
{
	bool wake;

	ring_step(RING_STEP_WAKE_FENCE);
	/* Pairs with the fence in ring_prepare_sleep: either we read its need_wake, or it reads
	 * the sequence that we stored. */
	if (ring_protection(fence))
		fence_full();
	wake = atomic_load_explicit(p->need_wake, memory_order_relaxed) != 0;
	ring_step(RING_STEP_WAKE_READ);
	return wake;
}

/* What the next slot holds until its producer writes it again. */
static inline uint64_t ring_previous_lap(const struct ring_consumer *c)
{
	return c->consumed < c->slots ? 0 : c->consumed + 1 - c->slots;
}

/*
 * Copy the next entry out. 0, RING_EMPTY, or RING_VIOLATION: the slot holds neither the expected
 * sequence nor the previous lap's. Does not publish the position.
 */
static inline int ring_get(struct ring_consumer *c, void *entry)
{
	const struct ring_entry *slot = &c->entries[c->consumed & (c->slots - 1)];
	/* Acquire pairs with the release in ring_put. */
	uint64_t sequence = atomic_load_explicit(&slot->sequence, memory_order_acquire);

	if (sequence != c->consumed + 1)
		return sequence == ring_previous_lap(c) ? RING_EMPTY : RING_VIOLATION;

	ring_step(RING_STEP_GET_SEEN);
	memcpy(entry, &sequence, sizeof(sequence));
	memcpy((char *)entry + 8, slot->payload, sizeof(slot->payload));
	/* A peer may write the slot while its copy is being checked: it must be a copy indeed. */
	fence_copied(entry);
	ring_step(RING_STEP_GET_COPIED);
	c->consumed++;
	ring_step(RING_STEP_GET_DONE);
	return 0;
}

/* A hint, one load; any sequence but the previous lap's counts as not empty. */
static inline bool ring_is_empty(const struct ring_consumer *c)
{
	const struct ring_entry *slot = &c->entries[c->consumed & (c->slots - 1)];

	/* Relaxed: ring_get loads it again before it touches the payload. */
	return atomic_load_explicit(&slot->sequence, memory_order_relaxed) == ring_previous_lap(c);
}

static inline void ring_publish(struct ring_consumer *c)
{
	/* Release pairs with the acquire in ring_in_flight: our copies are made before the
	 * producer may write these slots again. */
	atomic_store_explicit(c->published, c->consumed, memory_order_release);
	ring_step(RING_STEP_PUBLISHED);
}

/* Before sleeping: true = nothing there, the producer will wake us; false = look again. */
bool ring_prepare_sleep(struct ring_consumer *c);
void ring_end_sleep(struct ring_consumer *c);

/* One pause of a poll loop: a tight one steals the line back from the writer. */
static inline void ring_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" : : : "memory");
#else
	__asm__ volatile("" : : : "memory");
#endif
}

#endif
