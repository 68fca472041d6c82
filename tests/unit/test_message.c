/* SPDX-License-Identifier: Apache-2.0 */

/* test_message: every field of every message, wrong once. */

#include "shm/message.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static uint32_t fds_of(enum message_type type)
{
	if (type == MESSAGE_WELCOME)
		return 2;
	return type == MESSAGE_SEGMENT ? 1 : 0;
}

static struct message good(enum message_type type)
{
	struct message m = {
	    .magic = WIRE_MAGIC,
	    .type = (uint16_t)type,
	    .head_bytes = 128,
	    .n_fds = fds_of(type),
	};

	if (type == MESSAGE_REFUSE)
		m.u.refuse.status = WIRE_EPERM;
	if (type == MESSAGE_SEGMENT)
		m.u.segment.parts = 1;
	return m;
}

static int check(const struct message *m, uint64_t bytes, uint32_t fds)
{
	const char *why = NULL;
	int r = message_check(m, bytes, fds, &why);

	if (r)
		assert_non_null(why);
	else
		assert_null(why);
	return r;
}

static void wrong(const struct message *m, const char *field)
{
	const char *why = NULL;

	assert_int_equal(message_check(m, 128, m->n_fds, &why), -EPROTO);
	assert_string_equal(why, field);
}

static void every_type_is_accepted_as_it_should_be(void **state)
{
	(void)state;
	for (int type = MESSAGE_HELLO; type <= MESSAGE_CONFIRM; type++) {
		struct message m = good(type);

		assert_int_equal(check(&m, 128, m.n_fds), 0);
	}
}

static void every_wrong_size_is_refused(void **state)
{
	struct message m = good(MESSAGE_BYE);

	(void)state;
	for (uint64_t bytes = 0; bytes < 128 + WIRE_TEXT_MAX + 2; bytes++)
		assert_int_equal(check(&m, bytes, 0), bytes == 128 ? 0 : -EPROTO);
	assert_int_equal(check(&m, UINT64_MAX, 0), -EPROTO);

	m.text_bytes = 10;
	assert_int_equal(check(&m, 128, 0), -EPROTO);
	assert_int_equal(check(&m, 137, 0), -EPROTO);
	assert_int_equal(check(&m, 138, 0), 0);
	assert_int_equal(check(&m, 139, 0), -EPROTO);
}

static void text_is_bounded_and_only_where_it_may_be(void **state)
{
	(void)state;
	for (int type = MESSAGE_HELLO; type <= MESSAGE_CONFIRM; type++) {
		struct message m = good(type);
		int may = type == MESSAGE_WELCOME || type == MESSAGE_REFUSE || type == MESSAGE_BYE;

		m.text_bytes = WIRE_TEXT_MAX;
		assert_int_equal(check(&m, 128 + WIRE_TEXT_MAX, m.n_fds), may ? 0 : -EPROTO);
		m.text_bytes = WIRE_TEXT_MAX + 1;
		assert_int_equal(check(&m, 128 + WIRE_TEXT_MAX + 1, m.n_fds), -EPROTO);
		m.text_bytes = UINT32_MAX;
		assert_int_equal(check(&m, 128 + (uint64_t)UINT32_MAX, m.n_fds), -EPROTO);
	}
}

static void a_wrong_head_is_refused_by_name(void **state)
{
	struct message m = good(MESSAGE_WAKE);

	(void)state;
	m.magic ^= 1;
	wrong(&m, "magic");
	m = good(MESSAGE_WAKE);
	m.head_bytes = 127;
	wrong(&m, "head_bytes");
	m = good(MESSAGE_WAKE);
	m.type = 0;
	wrong(&m, "type");
	m.type = MESSAGE_CONFIRM + 1;
	wrong(&m, "type");
	m.type = UINT16_MAX;
	wrong(&m, "type");
}

static void descriptors_must_be_as_many_as_said_and_as_the_type_wants(void **state)
{
	(void)state;
	for (int type = MESSAGE_HELLO; type <= MESSAGE_CONFIRM; type++) {
		for (uint32_t said = 0; said < 5; said++) {
			for (uint32_t came = 0; came < 5; came++) {
				struct message m = good(type);
				int ok = said == came && said == fds_of(type);

				m.n_fds = said;
				assert_int_equal(check(&m, 128, came), ok ? 0 : -EPROTO);
			}
		}
	}
}

static void every_reserved_byte_must_be_zero(void **state)
{
	static const struct {
		enum message_type type;
		size_t first; /* in the union; all from there on are reserved */
	} reserved[] = {
	    {MESSAGE_HELLO, offsetof(struct message_hello, reserved)},
	    {MESSAGE_WELCOME, offsetof(struct message_welcome, reserved)},
	    {MESSAGE_REFUSE, offsetof(struct message_refuse, reserved)},
	    {MESSAGE_SEGMENT, offsetof(struct message_segment, reserved)},
	    {MESSAGE_WAKE, 0},
	    {MESSAGE_BYE, offsetof(struct message_bye, reserved)},
	    {MESSAGE_CONFIRM, offsetof(struct message_confirm, reserved)},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
		for (size_t at = reserved[i].first; at < 104; at++) {
			struct message m = good(reserved[i].type);

			m.u.bytes[at] = 0x80;
			wrong(&m, "reserved");
		}
	}
}

static void every_name_must_end_and_be_printable(void **state)
{
	struct message m = good(MESSAGE_HELLO);

	(void)state;
	memset(m.u.hello.client, 'a', WIRE_NAME_MAX);
	wrong(&m, "client");
	m.u.hello.client[WIRE_NAME_MAX - 1] = '\0';
	assert_int_equal(check(&m, 128, 0), 0);
	m.u.hello.client[3] = '\n';
	wrong(&m, "client");
	m.u.hello.client[3] = '\x80';
	wrong(&m, "client");
	m = good(MESSAGE_HELLO);
	memset(m.u.hello.name_space, 'a', WIRE_NAME_MAX);
	wrong(&m, "name_space");
	m = good(MESSAGE_WELCOME);
	memset(m.u.welcome.name_space, 'a', WIRE_NAME_MAX);
	wrong(&m, "name_space");
}

static void a_client_knows_no_boot_epoch(void **state)
{
	struct message m = good(MESSAGE_HELLO);

	(void)state;
	m.boot_epoch = 1;
	wrong(&m, "boot_epoch");
	m = good(MESSAGE_CONFIRM);
	m.boot_epoch = 1;
	wrong(&m, "boot_epoch");
	m = good(MESSAGE_BYE);
	m.boot_epoch = 1;
	assert_int_equal(check(&m, 128, 0), 0);
}

static void a_refusal_has_an_error_and_a_part_is_one_of_its_parts(void **state)
{
	struct message m = good(MESSAGE_REFUSE);

	(void)state;
	m.u.refuse.status = 0;
	wrong(&m, "status");
	m.u.refuse.status = 1;
	wrong(&m, "status");
	m = good(MESSAGE_SEGMENT);
	m.u.segment.part = 1;
	wrong(&m, "part");
	m.u.segment.part = m.u.segment.parts = 0;
	wrong(&m, "part");
}

static void every_number_has_a_name_or_says_that_it_is_unknown(void **state)
{
	(void)state;
	assert_string_equal(wire_opcode_name(WIRE_OP_KV_READ), "OP_KV_READ");
	assert_string_equal(wire_opcode_name(0), "?");
	assert_string_equal(wire_opcode_name(UINT32_MAX), "?");
	assert_string_equal(wire_status_text(0), "success");
	assert_string_equal(wire_status_text(WIRE_ENOENT), "no such thing");
	assert_non_null(wire_status_text(INT32_MIN));
	assert_non_null(wire_status_text(1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_type_is_accepted_as_it_should_be),
	    cmocka_unit_test(every_wrong_size_is_refused),
	    cmocka_unit_test(text_is_bounded_and_only_where_it_may_be),
	    cmocka_unit_test(a_wrong_head_is_refused_by_name),
	    cmocka_unit_test(descriptors_must_be_as_many_as_said_and_as_the_type_wants),
	    cmocka_unit_test(every_reserved_byte_must_be_zero),
	    cmocka_unit_test(every_name_must_end_and_be_printable),
	    cmocka_unit_test(a_client_knows_no_boot_epoch),
	    cmocka_unit_test(a_refusal_has_an_error_and_a_part_is_one_of_its_parts),
	    cmocka_unit_test(every_number_has_a_name_or_says_that_it_is_unknown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
