/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait: spin, then sleep, until something has happened; and the calls that hand requests back.
 *
 * Owned by the thread that uses the connection. A wait spins for the connection's spin time and
 * then sleeps on the socket, which also tells that the daemon has died; at least every 100 ms it
 * looks again by itself.
 */
#include "libclient/internal.h"

#include <assert.h>
#include <poll.h>
#include <string.h>

#define PAUSES_A_LOOK 128
#define LOOK_NS       1000000ull   /* at the socket, while spinning or polling */
#define SLEEP_NS      100000000ull /* at most, in one go */
#define RETRY_NS      1000000ull   /* while something waits for room in the ring */

static bool spin_once(struct kvhost *host)
{
	for (int i = 0; i < PAUSES_A_LOOK; i++) {
		if (!ring_is_empty(&host->completions))
			return true;
		ring_pause();
	}
	return false;
}

static void sleep_once(struct kvhost *host, uint64_t most_ns)
{
	struct pollfd p = {.fd = host->socket, .events = POLLIN};
	struct timespec t;

	if (most_ns > SLEEP_NS)
		most_ns = SLEEP_NS;
	if (host->deferred.first && most_ns > RETRY_NS)
		most_ns = RETRY_NS;
	t = (struct timespec){.tv_sec = 0, .tv_nsec = (long)most_ns};
	if (ring_prepare_sleep(&host->completions))
		(void)ppoll(&p, 1, &t, NULL);
	ring_end_sleep(&host->completions);
	channel_serve(host);
}

int host_wait(struct kvhost *host, bool (*done)(struct kvhost *host, void *context), void *context,
	      uint64_t deadline_ns)
{
	uint64_t now_ns = host_now_ns();
	uint64_t spin_until_ns = now_ns + host->spin_ns;
	bool slept = false;

	for (;;) {
		host_reap(host);
		if (done(host, context))
			break;
		if (host->gone)
			return host->gone;
		if (spin_once(host))
			continue;
		now_ns = host_now_ns();
		if (now_ns - host->looked_ns >= LOOK_NS) {
			channel_serve(host);
			if (host->gone)
				continue;
		}
		if (now_ns >= deadline_ns)
			return KVHOST_ETIMEDOUT;
		if (now_ns < spin_until_ns)
			continue;
		slept = true;
		sleep_once(host, deadline_ns - now_ns);
	}
	if (slept)
		host->counters.sleeps++;
	else
		host->counters.spins++;
	return 0;
}

static bool request_is_finished(struct kvhost *host, void *context)
{
	(void)host;
	return ((const struct request *)context)->state == REQUEST_FINISHED;
}

void request_await(struct kvhost *host, struct request *r)
{
	/* The common case without a look at the clock. */
	while (r->state != REQUEST_FINISHED && spin_once(host) && !host->gone)
		host_reap(host);
	if (r->state == REQUEST_FINISHED) {
		host->counters.spins++;
		return;
	}
	/* The end of the session finishes it too, so the wait itself cannot fail. */
	(void)host_wait(host, request_is_finished, r, NO_DEADLINE);
	assert(r->state == REQUEST_FINISHED);
}

/* ---- handing back ---- */

static void hand_back(struct kvhost *host, struct request *r, struct kvhost_finished *out)
{
	*out = (struct kvhost_finished){.ticket = r->ticket, .result = r->result, .user = r->user};
	if (r->result != 0 && r->text)
		host_set_reason(host, r->text);
	list_remove(&host->finished, r);
	request_give(host, r);
}

static int check_fork(const struct kvhost *host)
{
	if (!host)
		return KVHOST_EINVAL;
	return host_forked(host) ? KVHOST_EFORK : 0;
}

static void look_at_socket(struct kvhost *host)
{
	if (!host->gone && host_now_ns() - host->looked_ns >= LOOK_NS)
		channel_serve(host);
}

int kvhost_poll(struct kvhost *host, struct kvhost_finished *out, uint32_t max)
{
	uint32_t n = 0;
	int result;

	result = check_fork(host);
	if (result)
		return result;
	if (!out || max == 0 || max > INT32_MAX)
		return KVHOST_EINVAL;
	host_reap(host);
	if (!host->finished.first)
		look_at_socket(host);
	while (n < max && host->finished.first)
		hand_back(host, host->finished.first, &out[n++]);
	if (n == 0 && host->gone)
		return KVHOST_EGONE;
	return (int)n;
}

static bool any_is_finished(struct kvhost *host, void *context)
{
	(void)context;
	return host->finished.first != NULL;
}

int kvhost_wait(struct kvhost *host, kvhost_ticket ticket, uint64_t timeout_us,
		struct kvhost_finished *out)
{
	struct request *r = NULL;
	uint64_t now_ns, deadline_ns = NO_DEADLINE;
	int result;

	result = check_fork(host);
	if (result)
		return result;
	if (!out)
		return KVHOST_EINVAL;
	if (ticket != 0) {
		r = request_find(host, ticket);
		if (!r)
			return host_fail(host, KVHOST_ENOENT, "no request has this ticket");
	} else if (host->n_tickets == 0) {
		return host->gone ? KVHOST_EGONE
				  : host_fail(host, KVHOST_ENOENT, "no request is under way");
	}
	host_reap(host);
	if (r ? r->state != REQUEST_FINISHED : host->finished.first == NULL) {
		now_ns = host_now_ns();
		if (timeout_us < (UINT64_MAX - now_ns) / 1000)
			deadline_ns = now_ns + timeout_us * 1000;
		result = host_wait(host, r ? request_is_finished : any_is_finished, r, deadline_ns);
		if (result)
			return result;
	}
	hand_back(host, r ? r : host->finished.first, out);
	return 0;
}

int kvhost_cancel(struct kvhost *host, kvhost_ticket ticket)
{
	struct request *target, *r;
	int result;

	result = host_check(host);
	if (result)
		return result;
	host_reap(host);
	target = request_find(host, ticket);
	if (!target)
		return host_fail(host, KVHOST_ENOENT, "no request has this ticket");
	/* What has taken effect cannot be hastened. */
	if (target->state == REQUEST_FINISHED || target->table_round)
		return 0;
	if (target->state == REQUEST_DEFERRED) {
		request_cancel_deferred(host, target);
		return 0;
	}
	result = request_take(host, REQUEST_INTERNAL, WIRE_OP_CANCEL, &r);
	if (result)
		return result;
	if (target->state != REQUEST_FLYING) {
		request_give(host, r);
		return 0;
	}
	r->entry.arg0 = target->sequence;
	r->finish = finish_keep;
	return request_go(host, r, NULL);
}

/* ---- sleeping in the caller's own loop ---- */

int kvhost_descriptor(const struct kvhost *host)
{
	int result = check_fork(host);

	return result ? result : host->socket;
}

int kvhost_sleep_begin(struct kvhost *host)
{
	int result;

	result = check_fork(host);
	if (result)
		return result;
	if (host->gone || host->finished.first || host->deferred.first)
		return 0;
	if (ring_prepare_sleep(&host->completions))
		return 1;
	ring_end_sleep(&host->completions);
	return 0;
}

void kvhost_sleep_end(struct kvhost *host)
{
	if (check_fork(host) != 0 || host->gone)
		return;
	ring_end_sleep(&host->completions);
	channel_serve(host);
}
