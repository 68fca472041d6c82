/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ring: setting up the four ends of a session's two rings, and going to sleep on one.
 *
 * Each end belongs to one thread. Nothing here blocks: the caller sleeps on the socket.
 */

#include "shm/ring.h"

#include <assert.h>

#ifdef KVHOST_TESTING
void (*ring_step_hook)(enum ring_step step);
bool ring_second_look_off;
bool ring_fence_off;
#endif

static bool is_power_of_two(uint32_t n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

static struct ring_producer producer(void *entries, const struct control_line *line, uint32_t slots)
{
	assert(is_power_of_two(slots));

	return (struct ring_producer){
	    .entries = entries,
	    .peer_consumed = &line->consumed,
	    .need_wake = &line->need_wake,
	    .slots = slots,
	};
}

static struct ring_consumer consumer(void *entries, struct control_line *line, uint32_t slots)
{
	assert(is_power_of_two(slots));

	return (struct ring_consumer){
	    .entries = entries,
	    .published = &line->consumed,
	    .need_wake = &line->need_wake,
	    .slots = slots,
	};
}

void ring_submit_side(struct ring_producer *p, struct control *c, uint32_t slots)
{
	*p = producer(control_submissions(c), &c->submission, slots);
}

void ring_serve_side(struct ring_consumer *c, struct control *control, uint32_t slots)
{
	*c = consumer(control_submissions(control), &control->submission, slots);
}

void ring_answer_side(struct ring_producer *p, struct control *c, uint32_t submission_slots,
		      uint32_t slots)
{
	*p = producer(control_completions(c, submission_slots), &c->completion, slots);
}

void ring_reap_side(struct ring_consumer *c, struct control *control, uint32_t submission_slots,
		    uint32_t slots)
{
	*c = consumer(control_completions(control, submission_slots), &control->completion, slots);
}

bool ring_prepare_sleep(struct ring_consumer *c)
{
	bool nothing;

	atomic_store_explicit(c->need_wake, 1, memory_order_relaxed);
	ring_step(RING_STEP_SLEEP_SET);
	/* Pairs with the fence in ring_must_wake: either the producer reads our need_wake, or we
	 * read the sequence that it stored. */
	if (ring_protection(fence))
		fence_full();
	ring_step(RING_STEP_SLEEP_LOOK);
	nothing = !ring_protection(second_look) || ring_is_empty(c);
	if (!nothing)
		ring_end_sleep(c);
	ring_step(RING_STEP_SLEEP_DONE);
	return nothing;
}

void ring_end_sleep(struct ring_consumer *c)
{
	/* Relaxed: a producer that still reads 1 sends one wake too many, which harms nothing. */
	atomic_store_explicit(c->need_wake, 0, memory_order_relaxed);
	ring_step(RING_STEP_AWAKE);
}
