/* SPDX-License-Identifier: Apache-2.0 */

/* test_ring: one producer and one consumer of a ring, both in this thread. */

#include "shm/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define SLOTS      8
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

struct fixture {
	struct control *control;
	struct ring_producer producer;
	struct ring_consumer consumer;
	struct ring_producer answer;
	struct ring_consumer reap;
};

static struct fixture fixture;

static int setup(void **state)
{
	struct fixture *f = &fixture;
	size_t bytes = control_bytes(SLOTS, 2 * SLOTS);

	f->control = aligned_alloc(CONTROL_HEAD_BYTES, (bytes + 4095) / 4096 * 4096);
	if (!f->control)
		return -1;
	memset(f->control, 0, bytes);
	ring_submit_side(&f->producer, f->control, SLOTS);
	ring_serve_side(&f->consumer, f->control, SLOTS);
	ring_answer_side(&f->answer, f->control, SLOTS, 2 * SLOTS);
	ring_reap_side(&f->reap, f->control, SLOTS, 2 * SLOTS);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	ring_step_hook = NULL;
	ring_second_look_off = false;
	ring_fence_off = false;
	free(f->control);
	return 0;
}

static struct submission numbered(uint64_t n)
{
	return (struct submission){
	    .opcode = (uint16_t)n,
	    .flags = (uint16_t)~n,
	    .deadline_us = (uint32_t)(n * 3),
	    .index = (uint32_t)(n * 5),
	    .generation = (uint32_t)(n * 7),
	    .arg0 = n * 11,
	    .in_offset = n * 13,
	    .out_offset = n * 17,
	    .in_bytes = (uint32_t)(n * 19),
	    .out_bytes = (uint32_t)(n * 23),
	    .reserved = n,
	};
}

static void put(struct fixture *f, uint64_t n)
{
	struct submission s = numbered(n);

	assert_int_equal(ring_put(&f->producer, &s), 0);
}

static void get(struct fixture *f, uint64_t n, uint64_t position)
{
	struct submission s, wanted = numbered(n);

	assert_int_equal(ring_get(&f->consumer, &s), 0);
	assert_int_equal(s.sequence, position + 1);
	assert_memory_equal((char *)&s + 8, (char *)&wanted + 8, sizeof(s) - 8);
}

static struct ring_entry *slot(struct fixture *f, uint64_t position)
{
	return &f->consumer.entries[position % SLOTS];
}

static void an_entry_arrives_whole(void **state)
{
	struct fixture *f = *state;
	struct submission s;

	assert_int_equal(ring_get(&f->consumer, &s), RING_EMPTY);
	assert_true(ring_is_empty(&f->consumer));
	put(f, 1);
	assert_false(ring_is_empty(&f->consumer));
	get(f, 1, 0);
	assert_true(ring_is_empty(&f->consumer));
	assert_int_equal(ring_get(&f->consumer, &s), RING_EMPTY);
}

static void the_two_rings_and_the_texts_do_not_overlap(void **state)
{
	struct fixture *f = *state;
	struct completion c = {.status = -1};
	struct control_text *texts = control_texts(f->control, SLOTS, 2 * SLOTS);

	for (uint64_t i = 0; i < SLOTS; i++)
		put(f, i);
	for (int i = 0; i < 2 * SLOTS; i++)
		assert_int_equal(ring_put(&f->answer, &c), 0);
	assert_int_equal(ring_put(&f->answer, &c), RING_FULL);
	for (uint64_t i = 0; i < SLOTS; i++)
		get(f, i, i);
	for (int i = 0; i < 2 * SLOTS; i++)
		assert_int_equal(ring_get(&f->reap, &c), 0);
	assert_int_equal(atomic_load(&texts[0].serial), 0);
	assert_int_equal((char *)(texts + CONTROL_TEXTS) - (char *)f->control,
			 control_bytes(SLOTS, 2 * SLOTS));
}

static void a_full_ring_takes_nothing_until_the_consumer_publishes(void **state)
{
	struct fixture *f = *state;
	struct submission s = numbered(99);

	for (uint64_t i = 0; i < SLOTS; i++)
		put(f, i);
	assert_int_equal(ring_put(&f->producer, &s), RING_FULL);
	get(f, 0, 0);
	assert_int_equal(ring_put(&f->producer, &s), RING_FULL);
	ring_publish(&f->consumer);
	put(f, 8);
	assert_int_equal(ring_put(&f->producer, &s), RING_FULL);
	for (uint64_t i = 1; i <= SLOTS; i++)
		get(f, i, i);
}

static void order_and_content_hold_over_many_laps_at_every_fill(void **state)
{
	struct fixture *f = *state;
	uint64_t put_at = 0, got = 0;
	struct submission s;

	for (uint64_t fill = 1; fill <= SLOTS; fill++) {
		for (int round = 0; round < 3 * SLOTS; round++) {
			while (put_at - got < fill)
				put(f, put_at++);
			get(f, got, got);
			got++;
			ring_publish(&f->consumer);
		}
	}
	while (got < put_at) {
		get(f, got, got);
		got++;
	}
	assert_int_equal(ring_get(&f->consumer, &s), RING_EMPTY);
}

static void in_flight_counts_what_is_not_known_to_be_consumed(void **state)
{
	struct fixture *f = *state;
	uint64_t n = 99;

	assert_int_equal(ring_in_flight(&f->producer, &n), 0);
	assert_int_equal(n, 0);
	put(f, 0);
	put(f, 1);
	get(f, 0, 0);
	assert_int_equal(ring_in_flight(&f->producer, &n), 0);
	assert_int_equal(n, 2);
	ring_publish(&f->consumer);
	assert_int_equal(ring_in_flight(&f->producer, &n), 0);
	assert_int_equal(n, 1);
}

static void only_the_previous_lap_counts_as_empty(void **state)
{
	struct fixture *f = *state;
	struct submission s;
	uint64_t at = 3 * SLOTS + 2;

	for (uint64_t i = 0; i < at; i++) {
		put(f, i);
		get(f, i, i);
		ring_publish(&f->consumer);
	}

	const uint64_t wrong[] = {
	    0, 1, at, at + 2, at - SLOTS, at + 1 + SLOTS, at + 1 - 2 * SLOTS, UINT64_MAX};

	assert_int_equal(ring_get(&f->consumer, &s), RING_EMPTY);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		atomic_store(&slot(f, at)->sequence, wrong[i]);
		assert_false(ring_is_empty(&f->consumer));
		assert_int_equal(ring_get(&f->consumer, &s), RING_VIOLATION);
		assert_int_equal(f->consumer.consumed, at);
	}
	atomic_store(&slot(f, at)->sequence, at + 1 - SLOTS);
	assert_int_equal(ring_get(&f->consumer, &s), RING_EMPTY);
}

static void on_the_first_lap_only_zero_counts_as_empty(void **state)
{
	struct fixture *f = *state;
	struct submission s;
	const uint64_t wrong[] = {2, SLOTS, SLOTS + 1, (uint64_t)1 - SLOTS, UINT64_MAX};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		atomic_store(&slot(f, 0)->sequence, wrong[i]);
		assert_int_equal(ring_get(&f->consumer, &s), RING_VIOLATION);
	}
}

static void a_position_that_goes_back_is_a_violation(void **state)
{
	struct fixture *f = *state;
	uint64_t n = 99;

	put(f, 0);
	put(f, 1);
	get(f, 0, 0);
	ring_publish(&f->consumer);
	assert_int_equal(ring_in_flight(&f->producer, &n), 0);

	n = 99;
	atomic_store(&f->control->submission.consumed, 0);
	assert_int_equal(ring_in_flight(&f->producer, &n), RING_VIOLATION);
	assert_int_equal(n, 99);
}

static void a_position_beyond_what_was_produced_is_a_violation(void **state)
{
	struct fixture *f = *state;
	struct submission s = numbered(0);
	uint64_t n;

	for (uint64_t i = 0; i < SLOTS; i++)
		put(f, i);
	atomic_store(&f->control->submission.consumed, SLOTS + 1);
	assert_int_equal(ring_in_flight(&f->producer, &n), RING_VIOLATION);
	assert_int_equal(ring_put(&f->producer, &s), RING_VIOLATION);
	assert_int_equal(f->producer.produced, SLOTS);

	atomic_store(&f->control->submission.consumed, UINT64_MAX);
	assert_int_equal(ring_put(&f->producer, &s), RING_VIOLATION);
}

static void a_peer_that_rewrites_an_entry_does_not_change_the_copy(void **state)
{
	struct fixture *f = *state;
	struct submission s, wanted = numbered(7);

	put(f, 7);
	assert_int_equal(ring_get(&f->consumer, &s), 0);
	memset(slot(f, 0)->payload, 0xff, sizeof(slot(f, 0)->payload));
	assert_memory_equal((char *)&s + 8, (char *)&wanted + 8, sizeof(s) - 8);
}

static void only_a_sleeping_consumer_is_woken(void **state)
{
	struct fixture *f = *state;

	put(f, 0);
	assert_false(ring_must_wake(&f->producer));
	get(f, 0, 0);
	assert_true(ring_prepare_sleep(&f->consumer));
	put(f, 1);
	assert_true(ring_must_wake(&f->producer));
	ring_end_sleep(&f->consumer);
	assert_false(ring_must_wake(&f->producer));
}

static void a_consumer_with_an_entry_does_not_sleep_and_asks_for_no_wake(void **state)
{
	struct fixture *f = *state;

	put(f, 0);
	assert_false(ring_prepare_sleep(&f->consumer));
	assert_false(ring_must_wake(&f->producer));
}

static void a_broken_sequence_keeps_a_consumer_awake(void **state)
{
	struct fixture *f = *state;

	atomic_store(&slot(f, 0)->sequence, 77);
	assert_false(ring_prepare_sleep(&f->consumer));
}

/* One side runs, and at one of its steps the whole of the other side. */
static struct {
	struct fixture *f;
	enum ring_step at;
	void (*other)(struct fixture *f);
	bool wake_sent;
	bool asleep;
} interleaving;

static void produce(struct fixture *f)
{
	struct submission s = numbered(1);

	assert_int_equal(ring_put(&f->producer, &s), 0);
	if (ring_must_wake(&f->producer))
		interleaving.wake_sent = true;
}

static void consume_or_sleep(struct fixture *f)
{
	interleaving.asleep = ring_prepare_sleep(&f->consumer);
}

static void run_other_side(enum ring_step step)
{
	if (step != interleaving.at)
		return;
	ring_step_hook = NULL;
	interleaving.other(interleaving.f);
}

/* True if a consumer sleeps on an entry and nobody will wake it. */
static bool loses_a_wake(struct fixture *f, enum ring_step at, void (*one)(struct fixture *),
			 void (*other)(struct fixture *))
{
	bool lost;

	interleaving.f = f;
	interleaving.at = at;
	interleaving.other = other;
	interleaving.wake_sent = false;
	interleaving.asleep = false;
	ring_step_hook = run_other_side;
	one(f);
	if (ring_step_hook) { /* the step was not passed: one after the other */
		ring_step_hook = NULL;
		other(f);
	}
	assert_false(ring_is_empty(&f->consumer));
	lost = interleaving.asleep && !interleaving.wake_sent;

	get(f, 1, f->consumer.consumed);
	ring_publish(&f->consumer);
	ring_end_sleep(&f->consumer);
	return lost;
}

static unsigned lost_wakes(struct fixture *f)
{
	unsigned lost = 0;

	for (int at = 0; at < RING_STEP_COUNT; at++) {
		lost += loses_a_wake(f, at, produce, consume_or_sleep);
		lost += loses_a_wake(f, at, consume_or_sleep, produce);
	}
	return lost;
}

static void no_wake_is_lost_at_any_step(void **state)
{
	assert_int_equal(lost_wakes(*state), 0);
}

static void without_the_second_look_a_wake_is_lost(void **state)
{
	ring_second_look_off = true;
	assert_int_not_equal(lost_wakes(*state), 0);
}

static void a_control_segment_has_room_for_the_largest_rings(void **state)
{
	(void)state;
	assert_true(control_bytes(UINT32_MAX, UINT32_MAX) > (uint64_t)UINT32_MAX * 128);
	assert_int_equal(control_bytes(0, 0), CONTROL_HEAD_BYTES + CONTROL_TEXTS * 1024);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(an_entry_arrives_whole),
	    TEST(the_two_rings_and_the_texts_do_not_overlap),
	    TEST(a_full_ring_takes_nothing_until_the_consumer_publishes),
	    TEST(order_and_content_hold_over_many_laps_at_every_fill),
	    TEST(in_flight_counts_what_is_not_known_to_be_consumed),
	    TEST(only_the_previous_lap_counts_as_empty),
	    TEST(on_the_first_lap_only_zero_counts_as_empty),
	    TEST(a_position_that_goes_back_is_a_violation),
	    TEST(a_position_beyond_what_was_produced_is_a_violation),
	    TEST(a_peer_that_rewrites_an_entry_does_not_change_the_copy),
	    TEST(only_a_sleeping_consumer_is_woken),
	    TEST(a_consumer_with_an_entry_does_not_sleep_and_asks_for_no_wake),
	    TEST(a_broken_sequence_keeps_a_consumer_awake),
	    TEST(no_wake_is_lost_at_any_step),
	    TEST(without_the_second_look_a_wake_is_lost),
	    TEST(a_control_segment_has_room_for_the_largest_rings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
