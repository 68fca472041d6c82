/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reason: results and the sentences that explain them.
 *
 * Owned by the thread that uses the connection; the text of a failed connect belongs to its
 * thread. Nothing blocks.
 */
#include "libclient/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The library passes the daemon's numbers on unchanged. */
#define SAME(name)                                                                                 \
	_Static_assert((int)KVHOST_##name == (int)WIRE_##name, "results are the daemon's")
SAME(EINVAL);
SAME(EAGAIN);
SAME(ECANCELLED);
SAME(ETIMEDOUT);
SAME(ESTALE);
SAME(ESTEP);
SAME(EBUSY);
SAME(ENOSPC);
SAME(ENOMEM);
SAME(EPERM);
SAME(EREFUSED);
SAME(EMISMATCH);
SAME(EVERSION);
SAME(ENOTSUP);
SAME(EIO);
SAME(EGONE);
SAME(EFULL);
SAME(EVIOLATION);
SAME(ESHUTDOWN);
SAME(EQUOTA);
SAME(ELOST);
SAME(EFORK);
SAME(ENOENT);

#define SAME_PAYLOAD(name)                                                                         \
	_Static_assert((int)KVHOST_##name == (int)PAYLOAD_##name, "numbers are the daemon's")
SAME_PAYLOAD(FLOAT32);
SAME_PAYLOAD(FLOAT16);
SAME_PAYLOAD(BFLOAT16);
SAME_PAYLOAD(K);
SAME_PAYLOAD(V);
SAME_PAYLOAD(AGENT);
SAME_PAYLOAD(INTERACTIVE);
SAME_PAYLOAD(MISS_NONE);
SAME_PAYLOAD(MISS_NO_MATCH);
SAME_PAYLOAD(MISS_DIVERGED);
SAME_PAYLOAD(MISS_OFF);
SAME_PAYLOAD(MISS_IMAGE);
SAME_PAYLOAD(MISS_LIMIT);
SAME_PAYLOAD(MISS_GONE);
SAME_PAYLOAD(MISS_FLOOR);
SAME_PAYLOAD(MISS_RESTORE);
SAME_PAYLOAD(DEVICE);
SAME_PAYLOAD(KV_RAM);
SAME_PAYLOAD(KV_DISK);
SAME_PAYLOAD(NO_TIER);
_Static_assert(KVHOST_NO_LIMIT == PAYLOAD_NO_LIMIT, "no limit");

static __thread char thread_reason[WIRE_TEXT_MAX + 1];

const char *kvhost_strerror(int result)
{
	return wire_status_text(result);
}

const char *kvhost_reason(const struct kvhost *host)
{
	return host ? host->reason : thread_reason;
}

/* Texts of the daemon have been cleaned on receiving. */
static void set_text(char to[WIRE_TEXT_MAX + 1], const char *text)
{
	size_t n = strnlen(text, WIRE_TEXT_MAX);

	memmove(to, text, n);
	to[n] = '\0';
}

void host_set_reason(struct kvhost *host, const char *text)
{
	set_text(host->reason, text);
}

void reason_keep_for_thread(const char *text)
{
	set_text(thread_reason, text);
}

int host_fail(struct kvhost *host, int result, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(host->reason, sizeof(host->reason), format, arguments);
	va_end(arguments);
	return result;
}
