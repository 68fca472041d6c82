/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fuzz_entry: a ring whose other side writes what it likes, at moments that it likes.
 *
 * Input: a script of operations, one byte each, some with bytes behind it (see enum operation).
 * The honest side must answer each with one of its outcomes, and never move without cause.
 * One thread.
 */

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"
#include "shm/text.h"
#include "tests/fuzz/fuzz.h"

#define SUBMISSION_SLOTS 4
#define COMPLETION_SLOTS 8

enum operation {
	PEER_PUT,           /* an honest submission, one payload byte behind */
	PEER_SEQUENCE,      /* slot, then 8 bytes */
	PEER_NEAR_SEQUENCE, /* slot, then a difference to what is expected */
	PEER_PAYLOAD,       /* slot, then one byte for all of it */
	PEER_CONSUMED,      /* 8 bytes as the position in the completion ring */
	PEER_NEAR_CONSUMED, /* a difference to what was produced */
	PEER_TEXT,          /* slot, serial (4 bytes), length (4 bytes) */
	GET,
	PUBLISH,
	ANSWER,
	IN_FLIGHT,
	SLEEP,
	READ_TEXT, /* slot, serial (4 bytes) */
	OPERATIONS
};

struct script {
	const uint8_t *at;
	size_t left;
};

struct world {
	struct control *control;
	struct ring_producer peer;
	struct ring_consumer serve;
	struct ring_producer answer;
	struct control_text *texts;
};

static uint64_t take(struct script *s, size_t bytes)
{
	uint64_t value = 0;

	if (s->left < bytes) {
		s->left = 0;
		return 0;
	}
	memcpy(&value, s->at, bytes);
	s->at += bytes;
	s->left -= bytes;
	return value;
}

static void honest_put(struct world *w, uint8_t fill)
{
	struct submission s;

	memset(&s, fill, sizeof(s));
	/* What the peer's own side answers is the peer's affair. */
	(void)ring_put(&w->peer, &s);
}

static void get(struct world *w)
{
	struct submission s;
	uint64_t before = w->serve.consumed;
	bool empty = ring_is_empty(&w->serve);
	int r = ring_get(&w->serve, &s);

	assert(r == 0 || r == RING_EMPTY || r == RING_VIOLATION);
	assert(empty == (r == RING_EMPTY));
	assert(w->serve.consumed == before + (r == 0));
	if (r == 0)
		assert(s.sequence == before + 1);
}

static void answer(struct world *w)
{
	struct completion c = {.status = 0};
	uint64_t before = w->answer.produced;
	int r = ring_put(&w->answer, &c);

	assert(r == 0 || r == RING_FULL || r == RING_VIOLATION);
	assert(w->answer.produced == before + (r == 0));
	assert(w->answer.consumed <= w->answer.produced);
	assert(w->answer.produced - w->answer.consumed <= COMPLETION_SLOTS);
}

static void in_flight(struct world *w)
{
	uint64_t n = UINT64_MAX;
	int r = ring_in_flight(&w->answer, &n);

	assert(r == 0 || r == RING_VIOLATION);
	assert(r == 0 ? n <= COMPLETION_SLOTS : n == UINT64_MAX);
}

static void read_text(struct world *w, struct script *s)
{
	char out[CONTROL_TEXT_BYTES];
	struct text_name name = {.text = (uint8_t)take(s, 1), .serial = (uint32_t)take(s, 4)};
	int r = text_read(w->texts, name, out);

	assert(r == 0 || r == TEXT_GONE || r == -EPROTO);
	if (r == 0)
		assert(memchr(out, '\0', sizeof(out)));
}

static void peer_writes(struct world *w, enum operation what, struct script *s)
{
	uint8_t place =
	    (uint8_t)(what >= PEER_CONSUMED && what <= PEER_NEAR_CONSUMED ? 0 : take(s, 1));
	struct ring_entry *slot = &w->serve.entries[place % SUBMISSION_SLOTS];
	struct control_text *text = &w->texts[place % CONTROL_TEXTS];

	switch (what) {
	case PEER_SEQUENCE:
		atomic_store(&slot->sequence, take(s, 8));
		break;
	case PEER_NEAR_SEQUENCE:
		atomic_store(&slot->sequence, w->serve.consumed + 1 + take(s, 1) - 128);
		break;
	case PEER_PAYLOAD:
		memset(slot->payload, (int)take(s, 1), sizeof(slot->payload));
		break;
	case PEER_CONSUMED:
		atomic_store(&w->control->completion.consumed, take(s, 8));
		break;
	case PEER_NEAR_CONSUMED:
		atomic_store(&w->control->completion.consumed,
			     w->answer.produced + take(s, 1) - 128);
		break;
	default:
		atomic_store(&text->serial, (uint32_t)take(s, 4));
		text->length = (uint32_t)take(s, 4);
		memset(text->text, place, sizeof(text->text));
		break;
	}
}

static void act(struct world *w, enum operation what, struct script *s)
{
	switch (what) {
	case PEER_PUT:
		honest_put(w, (uint8_t)take(s, 1));
		break;
	case GET:
		get(w);
		break;
	case PUBLISH:
		ring_publish(&w->serve);
		break;
	case ANSWER:
		answer(w);
		(void)ring_must_wake(&w->answer);
		break;
	case IN_FLIGHT:
		in_flight(w);
		break;
	case SLEEP:
		assert(ring_prepare_sleep(&w->serve) == ring_is_empty(&w->serve));
		ring_end_sleep(&w->serve);
		break;
	case READ_TEXT:
		read_text(w, s);
		break;
	default:
		peer_writes(w, what, s);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = {.at = data, .left = size};
	size_t bytes = (size_t)control_bytes(SUBMISSION_SLOTS, COMPLETION_SLOTS);
	struct world w;

	w.control = calloc(1, bytes);
	assert(w.control);
	ring_submit_side(&w.peer, w.control, SUBMISSION_SLOTS);
	ring_serve_side(&w.serve, w.control, SUBMISSION_SLOTS);
	ring_answer_side(&w.answer, w.control, SUBMISSION_SLOTS, COMPLETION_SLOTS);
	w.texts = control_texts(w.control, SUBMISSION_SLOTS, COMPLETION_SLOTS);
	while (s.left > 0)
		act(&w, (enum operation)(take(&s, 1) % OPERATIONS), &s);
	free(w.control);
	return 0;
}
