/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what a daemon that dies leaves in the two files of KV-RAM: a child serves prompts whose
 * pages leave the device and come back, and kills itself at one copy after another, before it, in
 * the middle of it, after it; then the headers are looked at, by somebody who knows nothing else.
 *
 * A start could serve what is VALID, as its bytes are there; it could leave alone what is FILLING,
 * since whatever the dead one had under way lands there; and it knows from the headers alone which
 * places are taken.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/unit/core_world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/testing.h"
#include "daemon/tier/record.h"

#define COPIES_MOST  1000
#define OBJECTS_MOST 256
#define FLIGHTS_MOST 256
#define SECONDS      20 /* of a child */

struct scene {
	uint32_t pages; /* of a prompt */
	struct core_world_wish wish;
};

static const struct scene small = {
    .pages = 10,
    .wish = {.heads = 32, /* 256 KiB a page, at most four in a copy */
	     .frames = 4,
	     .pool = "\"pool_pages\": 30, \"max_sequence_length\": 176,"
		     " \"max_prefix_cache_pages\": 12, \"ram_floor_tokens\": 0"}};

static const struct scene wide = {
    .pages = 5,
    .wish = {.heads = 260, /* a frame and a part of one */
	     .frames = 14,
	     .pool = "\"pool_pages\": 16, \"max_sequence_length\": 96,"
		     " \"max_prefix_cache_pages\": 6, \"ram_floor_tokens\": 0"}};

/* ---- the daemon that dies ---- */

enum death { BEFORE, DURING, AFTER };

struct flight { /* a part of KV-RAM that a copy reads or writes */
	uint64_t offset, bytes;
	uint64_t writes;
};

struct death_plan {
	uint64_t at;
	enum death when;
	int socket;
};

static struct core_world world;

static void tell(int socket, const void *what, size_t bytes)
{
	if (send(socket, what, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		_exit(1);
}

static void tell_job(int socket, const struct device_job *j)
{
	for (uint32_t i = 0; j->op == DEVICE_MOVE && i < j->n; i++) {
		const struct device_move *m = &j->moves[i];
		bool writes = m->to == DEVICE_ARENA;
		struct flight f = {.offset = writes ? m->to_offset : m->from_offset,
				   .bytes = m->bytes,
				   .writes = writes};

		if (writes || m->from == DEVICE_ARENA)
			tell(socket, &f, sizeof(f));
	}
}

/* What is under way is told, then nothing more is done. */
static _Noreturn void die(struct core_world *w, const struct death_plan *plan)
{
	tell_job(plan->socket, w->copying);
	list_for_each(link, following, &w->copies.submitted)
	    tell_job(plan->socket,
		     (const struct device_job *)(const void *)list_entry(link, struct job, link));
	(void)raise(SIGKILL);
	_exit(1);
}

static enum core_verdict watch(struct core_world *w, enum core_moment moment)
{
	const struct death_plan *plan = w->context;

	if (w->copies_seen != plan->at)
		return CORE_RUNS;
	if (moment == CORE_RUN || plan->when == BEFORE)
		die(w, plan);
	return plan->when == DURING ? CORE_BREAKS : CORE_RUNS;
}

static void send_files(int socket, const int fds[2])
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} ancillary = {.bytes = {0}};
	char byte = 0;
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &ancillary,
				 .msg_controllen = sizeof(ancillary)};

	ancillary.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(2 * sizeof(int)),
					  .cmsg_level = SOL_SOCKET,
					  .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&ancillary.head), fds, 2 * sizeof(int));
	if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
		_exit(1);
}

static _Noreturn void live_and_die(const struct scene *scene, struct death_plan *plan)
{
	static const uint32_t prompts[] = {0,
					   1,
					   CORE_ALONE,
					   CORE_ALONE + 1,
					   0,
					   2,
					   CORE_ALONE,
					   3,
					   CORE_ALONE + 2,
					   1,
					   CORE_ALONE + 1,
					   0};
	struct core_world *w = &world;

	w->is_child = true;
	alarm(SECONDS);
	core_world_start(w, &scene->wish);
	send_files(plan->socket, (int[2]){w->arena->memory_fd, w->arena->headers_fd});
	w->watch = watch;
	w->context = plan;
	core_client_start(&w->clients[0], true);
	for (size_t i = 0; i < sizeof(prompts) / sizeof(*prompts); i++)
		core_check(w, core_serve(&w->clients[0], prompts[i], scene->pages, NULL) == 0,
			   "a prompt is not served");
	_exit(0);
}

/* ---- who finds its files ---- */

struct object {
	struct record record;
	enum record_state state;
	uint32_t n_extents;
	struct record_extent extents[RECORD_EXTENTS_MAX];
	uint32_t tokens[RECORD_TOKENS_MAX];
};

struct found {
	char *memory;
	uint64_t bytes;
	struct object objects[OBJECTS_MOST];
	uint32_t n;
	struct flight flights[FLIGHTS_MOST];
	uint32_t n_flights;
};

static void *map_file(int fd, uint64_t *bytes)
{
	struct stat status;
	void *memory;

	assert_int_equal(fstat(fd, &status), 0);
	*bytes = (uint64_t)status.st_size;
	memory = mmap(NULL, *bytes, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(memory != MAP_FAILED);
	close(fd);
	return memory;
}

static void visit(void *context, uint64_t index, enum record_state state, int wrong,
		  const struct record *r, const struct record_parts *parts)
{
	struct found *f = context;
	struct object *o = &f->objects[f->n++];

	(void)index;
	assert_int_equal(wrong, 0);
	assert_true(f->n <= OBJECTS_MOST);
	*o = (struct object){.record = *r, .state = state, .n_extents = r->n_extents};
	memcpy(o->extents, parts->extents, r->n_extents * sizeof(*o->extents));
	memcpy(o->tokens, parts->tokens, r->n_tokens * sizeof(*o->tokens));
}

static void receive_files(int socket, int fds[2])
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} ancillary = {.bytes = {0}};
	char byte;
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &ancillary,
				 .msg_controllen = sizeof(ancillary)};

	assert_int_equal(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
	assert_int_equal(ancillary.head.cmsg_len, CMSG_LEN(2 * sizeof(int)));
	memcpy(fds, CMSG_DATA(&ancillary.head), 2 * sizeof(int));
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

/* The object in whose place it lies; NULL: nobody's. */
static const struct object *owner_of(const struct found *f, uint64_t offset, uint64_t bytes)
{
	const struct object *owner = NULL;

	for (uint32_t i = 0; i < f->n; i++) {
		for (uint32_t k = 0; k < f->objects[i].n_extents; k++) {
			const struct record_extent *e = &f->objects[i].extents[k];

			if (!overlap(offset, bytes, e->offset, e->bytes))
				continue;
			assert_null(owner);
			owner = &f->objects[i];
		}
	}
	return owner;
}

/* No two objects lie in one place: that is known from the headers alone. */
static void expect_places(const struct found *f)
{
	for (uint32_t i = 0; i < f->n; i++) {
		uint64_t sum = 0;

		for (uint32_t k = 0; k < f->objects[i].n_extents; k++) {
			const struct record_extent *e = &f->objects[i].extents[k];

			assert_true(e->offset + e->bytes <= f->bytes);
			assert_ptr_equal(owner_of(f, e->offset, e->bytes), &f->objects[i]);
			sum += e->bytes;
		}
		assert_int_equal(sum, f->objects[i].record.payload_bytes);
	}
}

/* Can it be served: are its bytes those of its tokens? */
static bool is_whole(const struct found *f, const struct object *o)
{
	char *bytes = malloc(o->record.payload_bytes);
	uint64_t at = 0;
	bool whole;

	assert_non_null(bytes);
	for (uint32_t k = 0; k < o->n_extents; k++) {
		memcpy(bytes + at, f->memory + o->extents[k].offset, o->extents[k].bytes);
		at += o->extents[k].bytes;
	}
	whole = o->record.n_tokens == CORE_PAGE &&
		core_page_is(o->tokens, o->record.position, bytes, at);
	free(bytes);
	return whole;
}

static const struct object *parent_of(const struct found *f, const struct object *o)
{
	for (uint32_t i = 0; i < f->n; i++) {
		const struct record *r = &f->objects[i].record;

		if (r->boot_nonce == o->record.parent_nonce && r->id == o->record.parent_id)
			return &f->objects[i];
	}
	return NULL;
}

/* Pages that a start could serve: whole ones all of whose chain is. */
static uint32_t count_chains(const struct found *f)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < f->n; i++) {
		const struct object *o = &f->objects[i];

		while (o && o->state == RECORD_VALID && o->record.position > 0) {
			const struct object *above = parent_of(f, o);

			assert_true(!above || above->record.position + 1 == o->record.position);
			o = above;
		}
		n += o && o->state == RECORD_VALID;
	}
	return n;
}

/* The child's end; false: it lived past its last copy. `found` is unmapped by the caller. */
static bool let_die(const struct scene *scene, uint64_t at, enum death when, struct found *f)
{
	int ends[2], fds[2], status = 0;
	uint64_t bytes, used;
	void *headers;
	pid_t child;

	*f = (struct found){0};
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(ends[0]);
		live_and_die(scene,
			     &(struct death_plan){.at = at, .when = when, .socket = ends[1]});
	}
	close(ends[1]);
	receive_files(ends[0], fds);
	while (recv(ends[0], &f->flights[f->n_flights], sizeof(*f->flights), 0) ==
	       (ssize_t)sizeof(*f->flights))
		assert_true(++f->n_flights < FLIGHTS_MOST);
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	f->memory = map_file(fds[0], &f->bytes);
	headers = map_file(fds[1], &bytes);
	used = record_scan(headers, bytes / RECORD_BYTES, visit, f);
	assert_int_equal(used, f->n);
	munmap(headers, bytes);
	if (WIFEXITED(status)) {
		assert_int_equal(WEXITSTATUS(status), 0);
		return false;
	}
	assert_int_equal(WTERMSIG(status), SIGKILL);
	return true;
}

/* ---- what it finds ---- */

/* How many are VALID and not whole. */
static uint32_t count_lies(const struct found *f)
{
	uint32_t lies = 0;

	for (uint32_t i = 0; i < f->n; i++)
		lies += f->objects[i].state == RECORD_VALID && !is_whole(f, &f->objects[i]);
	return lies;
}

static uint32_t expect_good(const struct found *f)
{
	expect_places(f);
	for (uint32_t i = 0; i < f->n; i++)
		assert_true(f->objects[i].state == RECORD_VALID ||
			    f->objects[i].state == RECORD_FILLING);
	/* Whatever was under way writes where nothing is served from, and reads what is. */
	for (uint32_t i = 0; i < f->n_flights; i++) {
		const struct object *o = owner_of(f, f->flights[i].offset, f->flights[i].bytes);

		assert_non_null(o);
		assert_int_equal(o->state, f->flights[i].writes ? RECORD_FILLING : RECORD_VALID);
	}
	assert_int_equal(count_lies(f), 0);
	return count_chains(f);
}

static void die_everywhere(const struct scene *scene)
{
	static struct found f;
	uint32_t most = 0, deaths = 0, flights = 0;
	bool died = true;

	for (uint64_t at = 1; died; at++) {
		assert_true(at < COPIES_MOST);
		for (enum death when = BEFORE; when <= AFTER; when++) {
			uint32_t chains;

			died = let_die(scene, at, when, &f);
			chains = expect_good(&f);
			most = chains > most ? chains : most;
			deaths += died;
			flights += f.n_flights;
			munmap(f.memory, f.bytes);
		}
	}
	/* There was something to find, and something under way. */
	assert_true(deaths >= 30 && flights >= deaths && most >= scene->pages);
	print_message("%u deaths, at most %u pages could be served\n", deaths, most);
}

static void whenever_it_dies_its_headers_tell_what_can_be_served(void **state)
{
	(void)state;
	die_everywhere(&small);
}

static void pages_of_several_frames_too(void **state)
{
	(void)state;
	die_everywhere(&wide);
}

/* Headers that say VALID when their copy is asked for: somewhere one lies. */
static void switched_off_a_header_says_too_early_that_its_bytes_are_there(void **state)
{
	static struct found f;
	uint32_t lies = 0;

	(void)state;
	protection_off[PROTECTION_headers_wait_for_copies] = true;
	for (uint64_t at = 1; lies == 0 && let_die(&small, at, BEFORE, &f); at++) {
		lies = count_lies(&f);
		munmap(f.memory, f.bytes);
	}
	protection_off[PROTECTION_headers_wait_for_copies] = false;
	assert_true(lies > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(whenever_it_dies_its_headers_tell_what_can_be_served),
	    cmocka_unit_test(pages_of_several_frames_too),
	    cmocka_unit_test(switched_off_a_header_says_too_early_that_its_bytes_are_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
