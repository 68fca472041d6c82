/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_CTL_DOCTOR_H
#define KVHOST_TOOLS_CTL_DOCTOR_H

/* ctl_doctor: what the files of `kvctl doctor` share. One thread; calls block for bounded times. */

#include "tools/ctl.h"

enum doctor_state {
	DOCTOR_OK,
	DOCTOR_NOTE, /* good to know; nothing must be done */
	DOCTOR_MEND, /* something does not work, or works badly, until it is mended */
};

struct doctor {
	json_t *checks; /* {check, state, is, needed, command} */
	bool mend;      /* one of them is to be mended */
	const char *meminfo;
	/* What the daemon said; NULL: it does not answer. */
	json_t *health, *config;
	char unreachable[CTL_LINE_BYTES]; /* why it does not */
	int refused;                      /* the code of that, KVHOST_E...; 0: it answers */
};

/* `needed` and `command` may be NULL. */
void doctor_say(struct doctor *d, const char *check, enum doctor_state state, const char *is,
		const char *needed, const char *command);

/* A number at the start of a file, or behind a name in it ("" = none). false: there is none. */
bool doctor_number(const char *path, const char *name, unsigned long long *out);

/* ctl_doctor_memory.c */
void doctor_check_memory(struct doctor *d);
void doctor_check_huge_pages(struct doctor *d);

/* ctl_doctor_daemon.c */
void doctor_ask(struct doctor *d, const struct ctl_options *options);
void doctor_check_daemon(struct doctor *d, const struct ctl_options *options);
/* What pools that have no memory yet are configured to take; false: some do not say. */
bool doctor_pool_bytes(const struct doctor *d, unsigned long long *out);
bool doctor_needs_huge(const struct doctor *d); /* a pool of small pages is refused */

/* Bytes of KV-RAM and staging that are to be locked; pools are not. */
unsigned long long doctor_locked_bytes(const struct doctor *d);
/* KV-RAM and staging: are they there, all of them, of which pages, or why not. */
void doctor_check_ram(struct doctor *d);

#endif
