/* SPDX-License-Identifier: Apache-2.0 */

/* message: what a received head must look like. Any thread; never blocks, changes nothing. */

#include "shm/message.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

static bool is_zero(const void *bytes, size_t n)
{
	const unsigned char *b = bytes;
	unsigned char seen = 0;

	for (size_t i = 0; i < n; i++)
		seen |= b[i];
	return seen == 0;
}

/* Terminated, and nothing in it that would disturb a log line or a terminal. */
static bool is_name(const char name[WIRE_NAME_MAX])
{
	for (size_t i = 0; i < WIRE_NAME_MAX; i++) {
		if (name[i] == '\0')
			return true;
		if (name[i] < 0x20 || name[i] > 0x7e)
			return false;
	}
	return false;
}

static uint32_t expected_fds(uint16_t type)
{
	if (type == MESSAGE_WELCOME)
		return MESSAGE_WELCOME_FDS;
	return type == MESSAGE_SEGMENT ? MESSAGE_SEGMENT_FDS : 0;
}

static bool may_have_text(uint16_t type)
{
	return type == MESSAGE_WELCOME || type == MESSAGE_REFUSE || type == MESSAGE_BYE;
}

/* NULL, or the name of the field that is wrong. */
static const char *wrong_head(const struct message *m, uint64_t got_bytes, uint32_t got_fds)
{
	if (got_bytes < sizeof(*m))
		return "size";
	if (m->magic != WIRE_MAGIC)
		return "magic";
	if (m->head_bytes != sizeof(*m))
		return "head_bytes";
	if (m->type < MESSAGE_HELLO || m->type > MESSAGE_CONFIRM)
		return "type";
	if (m->text_bytes > WIRE_TEXT_MAX || (m->text_bytes > 0 && !may_have_text(m->type)))
		return "text_bytes";
	if (got_bytes != sizeof(*m) + (uint64_t)m->text_bytes)
		return "size";
	if (m->n_fds != got_fds || m->n_fds != expected_fds(m->type))
		return "n_fds";
	return NULL;
}

static const char *wrong_body(const struct message *m)
{
	switch ((enum message_type)m->type) {
	case MESSAGE_HELLO:
		if (m->boot_epoch != 0)
			return "boot_epoch";
		if (!is_name(m->u.hello.name_space))
			return "name_space";
		if (!is_name(m->u.hello.client))
			return "client";
		return is_zero(m->u.hello.reserved, sizeof(m->u.hello.reserved)) ? NULL
										 : "reserved";
	case MESSAGE_WELCOME:
		if (!is_name(m->u.welcome.name_space))
			return "name_space";
		return is_zero(m->u.welcome.reserved, sizeof(m->u.welcome.reserved)) ? NULL
										     : "reserved";
	case MESSAGE_REFUSE:
		if (m->u.refuse.status >= 0)
			return "status";
		return is_zero(m->u.refuse.reserved, sizeof(m->u.refuse.reserved)) ? NULL
										   : "reserved";
	case MESSAGE_SEGMENT:
		if (m->u.segment.part >= m->u.segment.parts)
			return "part";
		return is_zero(m->u.segment.reserved, sizeof(m->u.segment.reserved)) ? NULL
										     : "reserved";
	case MESSAGE_WAKE:
		return is_zero(m->u.bytes, sizeof(m->u.bytes)) ? NULL : "reserved";
	case MESSAGE_BYE:
		return is_zero(m->u.bye.reserved, sizeof(m->u.bye.reserved)) ? NULL : "reserved";
	case MESSAGE_CONFIRM:
		if (m->boot_epoch != 0)
			return "boot_epoch";
		return is_zero(m->u.confirm.reserved, sizeof(m->u.confirm.reserved)) ? NULL
										     : "reserved";
	}
	return "type";
}

int message_check(const struct message *m, uint64_t got_bytes, uint32_t got_fds, const char **why)
{
	const char *wrong = wrong_head(m, got_bytes, got_fds);

	if (!wrong)
		wrong = wrong_body(m);
	if (!wrong)
		return 0;
	*why = wrong;
	return -EPROTO;
}
