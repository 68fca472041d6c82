/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection: the object that an engine holds: made, attached again, ended, and known in a child.
 *
 * Owned by one thread at a time. Connect and reconnect wait for the daemon's welcome, at most the
 * connect timeout; the rest does not block.
 */
#include "libclient/internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shm/passfd.h"

#define DEFAULT_SOCKET             "/run/kvhost/kvhost.sock"
#define DEFAULT_CONNECT_TIMEOUT_US 5000000u
#define DEFAULT_SPIN_US            50u

uint64_t host_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool host_forked(const struct kvhost *host)
{
	if (atomic_load_explicit(host->fork_mark, memory_order_relaxed) == 0)
		return true;
	return host->pid != 0 && host->pid != (long)getpid();
}

int host_check(const struct kvhost *host)
{
	if (!host)
		return KVHOST_EINVAL;
	if (host_forked(host))
		return KVHOST_EFORK;
	return host->gone ? KVHOST_EGONE : 0;
}

static int mark_make(struct kvhost *host)
{
	size_t bytes = segment_base_page_bytes();
	void *page;

	page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return KVHOST_ENOMEM;
	host->fork_mark = page;
	atomic_store_explicit(host->fork_mark, 1, memory_order_relaxed);
	if (madvise(page, bytes, MADV_WIPEONFORK) != 0)
		host->pid = (long)getpid();
	return 0;
}

static void host_free(struct kvhost *host)
{
	session_free(host);
	while (host->sequences)
		sequence_free(host->sequences);
	while (host->pools)
		pool_free(host->pools);
	request_free_records(host);
	if (host->fork_mark)
		(void)munmap(host->fork_mark, segment_base_page_bytes());
	free(host->path);
	free(host);
}

static int set_name(struct kvhost *host, char to[WIRE_NAME_MAX], const char *what, const char *name)
{
	size_t n = strlen(name);

	if (n >= WIRE_NAME_MAX)
		return host_fail(host, KVHOST_EINVAL,
				 "the name of the %s has %zu bytes, at most %d", what, n,
				 WIRE_NAME_MAX - 1);
	for (size_t i = 0; i < n; i++) {
		if (name[i] < ' ' || name[i] > '~')
			return host_fail(host, KVHOST_EINVAL,
					 "the name of the %s is not printable ASCII", what);
	}
	memcpy(to, name, n + 1);
	return 0;
}

static void set_program_name(char to[WIRE_NAME_MAX])
{
	const char *name = program_invocation_short_name;
	size_t n = 0;

	for (; n < WIRE_NAME_MAX - 1 && name[n]; n++)
		to[n] = name[n] < ' ' || name[n] > '~' ? '?' : name[n];
	to[n] = '\0';
}

static int set_options(struct kvhost *host, const struct kvhost_options *options)
{
	const char *path = options->socket;
	int result;

	if (!path)
		path = secure_getenv("KVHOST_SOCKET");
	host->path = strdup(path && path[0] ? path : DEFAULT_SOCKET);
	if (!host->path)
		return KVHOST_ENOMEM;
	if (options->name_space) {
		result = set_name(host, host->name_space, "namespace", options->name_space);
		if (result)
			return result;
	}
	if (options->client) {
		result = set_name(host, host->client, "client", options->client);
		if (result)
			return result;
	} else {
		set_program_name(host->client);
	}
	host->window_wanted_bytes = options->window_bytes;
	host->connect_timeout_ns =
	    1000ull * (options->connect_timeout_us ? options->connect_timeout_us
						   : DEFAULT_CONNECT_TIMEOUT_US);
	host->spin_ns = 1000ull * (options->spin_us ? options->spin_us : DEFAULT_SPIN_US);
	return 0;
}

int kvhost_connect(const struct kvhost_options *options, struct kvhost **out)
{
	static const struct kvhost_options defaults;
	struct kvhost *host;
	int result;

	reason_keep_for_thread("");
	if (!out)
		return KVHOST_EINVAL;
	host = calloc(1, sizeof(*host));
	if (!host)
		return KVHOST_ENOMEM;
	host->socket = -1;
	host->control = host->window_segment = SEGMENT_NONE;
	host->gone = KVHOST_EGONE;
	result = mark_make(host);
	if (result == 0)
		result = set_options(host, options ? options : &defaults);
	if (result == 0)
		result = session_start(host);
	if (result) {
		reason_keep_for_thread(host->reason);
		host_free(host);
		return result;
	}
	*out = host;
	return 0;
}

int kvhost_reconnect(struct kvhost *host)
{
	int result;

	result = host_check(host);
	if (result == 0) {
		channel_serve(host);
		if (!host->gone)
			return host_fail(host, KVHOST_EBUSY, "the session is alive");
	} else if (result != KVHOST_EGONE) {
		return result;
	}
	session_free(host);
	result = session_start(host);
	if (result == 0)
		host->counters.reconnects++;
	return result;
}

void kvhost_disconnect(struct kvhost **host)
{
	struct kvhost *h;

	if (!host || !*host)
		return;
	h = *host;
	if (!h->gone && !host_forked(h)) {
		/* Outputs of what is under way are not the library's any more. */
		channel_bye(h, WIRE_BYE_CLIENT);
		h->gone = KVHOST_EGONE;
	}
	host_free(h);
	*host = NULL;
}

uint64_t kvhost_boot_epoch(const struct kvhost *host)
{
	return host ? host->boot_epoch : 0;
}

static int finish_ping(struct kvhost *host, struct request *r, int status,
		       const struct completion *c)
{
	(void)host;
	(void)r;
	(void)c;
	return status;
}

static int ping(struct kvhost *host, enum request_kind kind, void *user, kvhost_ticket *out)
{
	struct request *r;
	int result;

	result = request_take(host, kind, WIRE_OP_NULL, &r);
	if (result)
		return result;
	r->user = user;
	r->finish = finish_ping;
	return request_go(host, r, out);
}

int kvhost_ping(struct kvhost *host)
{
	return ping(host, REQUEST_SYNCHRONOUS, NULL, NULL);
}

int kvhost_submit_ping(struct kvhost *host, void *user, kvhost_ticket *out)
{
	return ping(host, REQUEST_TICKET, user, out);
}

void *kvhost_window_take(struct kvhost *host, size_t bytes)
{
	if (host_check(host) != 0)
		return NULL;
	return window_take_for_caller(&host->window, bytes);
}

void kvhost_window_give(struct kvhost *host, void *memory)
{
	/* What another session gave out is unknown to this one, and that is fine. */
	if (host && memory && !host_forked(host))
		(void)window_give_of_caller(&host->window, memory);
}
