/* SPDX-License-Identifier: Apache-2.0 */

/* test_text: refusal texts in a control segment. */

#include "shm/text.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name) cmocka_unit_test_setup(name, setup)

struct fixture {
	struct control_text slots[CONTROL_TEXTS];
	struct text_writer writer;
	char out[CONTROL_TEXT_BYTES];
};

static struct fixture fixture;

static int setup(void **state)
{
	memset(&fixture, 0, sizeof(fixture));
	text_writer_init(&fixture.writer, fixture.slots);
	*state = &fixture;
	return 0;
}

static void a_text_is_read_by_its_name(void **state)
{
	struct fixture *f = *state;
	struct text_name a = text_write(&f->writer, "first");
	struct text_name b = text_write(&f->writer, "");

	assert_int_equal(text_read(f->slots, a, f->out), 0);
	assert_string_equal(f->out, "first");
	assert_int_equal(text_read(f->slots, b, f->out), 0);
	assert_string_equal(f->out, "");
}

static void sixteen_texts_are_kept_and_then_the_oldest_is_gone(void **state)
{
	struct fixture *f = *state;
	struct text_name names[CONTROL_TEXTS + 1];
	char text[32];

	for (int i = 0; i <= CONTROL_TEXTS; i++) {
		snprintf(text, sizeof(text), "text %d", i);
		names[i] = text_write(&f->writer, text);
		assert_in_range(names[i].text, 1, CONTROL_TEXTS);
	}
	memcpy(f->out, "untouched", sizeof("untouched"));
	assert_int_equal(text_read(f->slots, names[0], f->out), TEXT_GONE);
	assert_string_equal(f->out, "untouched");
	for (int i = 1; i <= CONTROL_TEXTS; i++) {
		snprintf(text, sizeof(text), "text %d", i);
		assert_int_equal(text_read(f->slots, names[i], f->out), 0);
		assert_string_equal(f->out, text);
	}
}

static void a_text_in_the_middle_of_being_written_is_gone(void **state)
{
	struct fixture *f = *state;
	struct text_name n = text_write(&f->writer, "whole");

	atomic_fetch_add(&f->slots[n.text - 1].serial, 2 * CONTROL_TEXTS - 1);
	assert_int_equal(text_read(f->slots, n, f->out), TEXT_GONE);
}

static void a_long_text_is_cut_and_still_terminated(void **state)
{
	struct fixture *f = *state;
	char text[2 * CONTROL_TEXT_BYTES];
	struct text_name n;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	n = text_write(&f->writer, text);
	assert_int_equal(text_read(f->slots, n, f->out), 0);
	assert_int_equal(strlen(f->out), CONTROL_TEXT_BYTES - 8);
}

static void a_name_or_length_beyond_the_slots_is_refused(void **state)
{
	struct fixture *f = *state;
	struct text_name n = text_write(&f->writer, "x");
	struct text_name none = {.serial = n.serial, .text = 0};
	struct text_name beyond = {.serial = n.serial, .text = CONTROL_TEXTS + 1};

	assert_int_equal(text_read(f->slots, none, f->out), -EPROTO);
	assert_int_equal(text_read(f->slots, beyond, f->out), -EPROTO);
	f->slots[n.text - 1].length = CONTROL_TEXT_BYTES - 7;
	assert_int_equal(text_read(f->slots, n, f->out), -EPROTO);
	f->slots[n.text - 1].length = UINT32_MAX;
	assert_int_equal(text_read(f->slots, n, f->out), -EPROTO);
}

static void control_characters_become_question_marks(void **state)
{
	struct fixture *f = *state;
	char text[] = "\t\x7f\xc2\x9b"
		      "31m\xc3\xa9\xc2\xa0\xc2";
	const struct text_name n = text_write(&f->writer, "bell\a and\r\nline");

	assert_int_equal(text_read(f->slots, n, f->out), 0);
	assert_string_equal(f->out, "bell? and??line");
	text_clean(text, sizeof(text) - 1);
	assert_string_equal(text, "????31m\xc3\xa9\xc2\xa0\xc2");
}

static void a_serial_that_wraps_never_names_an_unwritten_slot(void **state)
{
	struct fixture *f = *state;
	struct text_name n;

	f->writer.count = 0x7ffffffe;
	n = text_write(&f->writer, "last");
	assert_int_equal(n.serial, 0xfffffffe);
	n = text_write(&f->writer, "next");
	assert_int_not_equal(n.serial, 0);
	assert_int_equal(text_read(f->slots, n, f->out), 0);
	assert_string_equal(f->out, "next");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_text_is_read_by_its_name),
	    TEST(sixteen_texts_are_kept_and_then_the_oldest_is_gone),
	    TEST(a_text_in_the_middle_of_being_written_is_gone),
	    TEST(a_long_text_is_cut_and_still_terminated),
	    TEST(a_name_or_length_beyond_the_slots_is_refused),
	    TEST(control_characters_become_question_marks),
	    TEST(a_serial_that_wraps_never_names_an_unwritten_slot),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
