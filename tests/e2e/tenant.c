/* SPDX-License-Identifier: Apache-2.0 */
/* tenant: see tenant.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/e2e/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/statsfile.h"
#include "tests/hostile/ops.h"

#define STORED_TOKENS (3 * PAGE_TOKENS) /* whole pages: nothing else of it comes and goes */
#define PROBED_TOKENS (STORED_TOKENS + 1)
#define LONG_TOKENS   30000u

/* ---- the client: one word, one client ---- */

static void tell_bytes(const char *what, const void *bytes, size_t n)
{
	printf("  %s:", what);
	for (size_t i = 0; i < n; i++)
		printf(" %02x", ((const uint8_t *)bytes)[i]);
	printf("\n");
}

/* Submit and write down all that comes back. */
static struct completion tell(struct raw *r, const char *what, const struct submission *s)
{
	struct completion c = {0};
	int status;

	if (s->out_bytes)
		memset(raw_window(r, s->out_offset), 0xee, s->out_bytes);
	status = raw_ask(r, s, &c);
	printf("%s: status %d, \"%s\"\n", what, status, status ? raw_text(r, &c) : "");
	tell_bytes("completion", &c, sizeof(c));
	if (s->out_bytes)
		tell_bytes("answer", raw_window(r, s->out_offset), s->out_bytes);
	return c;
}

static struct submission lookup(struct raw *r, uint32_t first)
{
	struct submission s = op_open(r, first, PROBED_TOKENS, 0);

	s.opcode = WIRE_OP_LOOKUP;
	return s;
}

static struct submission counters(void)
{
	struct submission s = op(WIRE_OP_COUNTERS, (struct payload_handle){0});

	s.out_offset = OUT;
	s.out_bytes = sizeof(struct payload_counters);
	return s;
}

/* Another pool than that of op_attach. */
static struct submission attach(struct raw *r, const char *pool)
{
	struct submission s = op_attach(r, false);
	struct payload_pool *in = raw_window(r, IN);

	memset(in->name, 0, sizeof(in->name));
	memcpy(in->name, pool, strlen(pool));
	return s;
}

/* Everything that could tell whether a prompt is known: lookups, an open, a whole step. */
static void probe(struct raw *r, uint32_t first)
{
	struct submission s = attach(r, "hot");
	struct completion c;
	struct payload_handle seq, step;

	c = tell(r, "attach", &s);
	r->pool = handle_of(&c);
	s = counters();
	tell(r, "counters", &s);
	s = lookup(r, first);
	tell(r, "lookup", &s);
	s = op_open(r, first, PROBED_TOKENS, PROBED_TOKENS);
	c = tell(r, "open", &s);
	seq = handle_of(&c);
	s = op_begin(r, seq, PROBED_TOKENS);
	c = tell(r, "begin", &s);
	step = handle_of(&c);
	s = op_commit(r, step, PROBED_TOKENS);
	tell(r, "commit", &s);
	s = op(WIRE_OP_TABLE, seq);
	s.out_offset = OUT;
	s.out_bytes = 64;
	tell(r, "table", &s);
	s = op_read(r, seq, 0, 0, 0, PROBED_TOKENS);
	tell(r, "read", &s);
	s = op(WIRE_OP_CLOSE, seq);
	tell(r, "close", &s);
	s = lookup(r, first);
	tell(r, "lookup again", &s);
	s = op_open(r, first, PROBED_TOKENS, 1u << 20);
	tell(r, "open too much", &s);
	s = attach(r, "others");
	tell(r, "attach the pool of others", &s);
	s = op(WIRE_OP_ADMIN, (struct payload_handle){0});
	s.in_offset = IN;
	s.in_bytes = sizeof(struct payload_admin);
	memset(raw_window(r, IN), 0, sizeof(struct payload_admin));
	((struct payload_admin *)raw_window(r, IN))->question = PAYLOAD_ADMIN_SESSIONS;
	s.out_offset = OUT;
	s.out_bytes = 256;
	tell(r, "ask as an operator", &s);
	s = counters();
	tell(r, "counters", &s);
}

static void store(struct raw *r, uint32_t first)
{
	struct payload_handle seq = do_open(r, first, STORED_TOKENS, STORED_TOKENS);

	do_commit(r, do_begin(r, seq, STORED_TOKENS), STORED_TOKENS);
	do_close(r, seq);
}

/* What a small quota refuses; then it waits for itself until it is told to end. */
static void at_quota(struct raw *r)
{
	struct submission s = op_open(r, 1, 16, 9 * PAGE_TOKENS);
	struct payload_handle seq;
	struct completion c;
	uint64_t waiting;
	char end;

	raw_ask(r, &s, &c);
	printf("%d %s|", c.status, raw_text(r, &c));
	seq = do_open(r, 1, 16, 8 * PAGE_TOKENS);
	s = op_open(r, 2, 16, PAGE_TOKENS);
	waiting = raw_put(r, &s);
	/* The same bytes at the same place: it does not matter when the daemon reads the first. */
	s = op_open(r, 2, 16, PAGE_TOKENS);
	raw_ask(r, &s, &c);
	printf("%d %s\n", c.status, raw_text(r, &c));
	fflush(stdout);
	if (read(STDIN_FILENO, &end, 1) != 0)
		exit(3);
	do_close(r, seq);
	assert_true(raw_wait(r, waiting, &c));
	assert_int_equal(c.status, 0);
}

/* Four long prompts fit the pool; those that wait hold memory, until there is no more. */
static void fill_memory(struct raw *r)
{
	struct submission s = attach(r, "long");
	struct completion c;

	raw_ask(r, &s, &c);
	r->pool = handle_of(&c);
	for (int i = 0; i < 13; i++) {
		s = op_open(r, 1, LONG_TOKENS, LONG_TOKENS);
		s.out_bytes = sizeof(struct payload_open_result);
		if (i >= 4 && i < 12) {
			raw_put(r, &s);
			continue;
		}
		raw_ask(r, &s, &c);
		printf("%d %s\n", c.status, raw_text(r, &c));
	}
}

/* How many parts of a pool's memory it is given. */
static void map_pages(struct raw *r, const char *pool)
{
	const struct payload_pool_info *info = raw_window(r, OUT);
	struct submission s = attach(r, pool);
	struct completion c;

	((struct payload_pool *)raw_window(r, IN))->want_map = 1;
	raw_ask(r, &s, &c);
	printf("%d %u\n", c.status, info->parts);
}

static void say_hello(const char *socket, const char *wanted)
{
	struct message m = raw_hello();
	char text[WIRE_TEXT_MAX + 1];
	int fd = raw_dial(socket);

	memcpy(m.u.hello.name_space, wanted, strlen(wanted));
	assert_int_equal(raw_send(fd, &m, sizeof(m), NULL, 0), 0);
	assert_int_equal(raw_receive(fd, &m, text, NULL), 0);
	if (m.type == MESSAGE_WELCOME)
		printf("welcome to %s\n", m.u.welcome.name_space);
	else
		printf("%d %s\n", m.u.refuse.status, text);
	close(fd);
}

static void open_with_rights(struct raw *r)
{
	struct submission s = op_open(r, 1, 16, 16);
	struct completion c;

	((struct payload_open *)raw_window(r, IN))->priority = PAYLOAD_INTERACTIVE;
	raw_ask(r, &s, &c);
	printf("%d %s\n", c.status, raw_text(r, &c));
}

static void serve(const char *socket, const char *word, const char *argument)
{
	struct statsfile_reader reader;
	struct submission s;
	struct completion c;
	struct raw r;

	if (!strcmp(word, "hello")) {
		say_hello(socket, argument);
		return;
	}
	if (!strcmp(word, "stats")) {
		printf("%d\n", statsfile_open(&reader, argument));
		return;
	}
	raw_attach(socket, &r);
	if (!strcmp(word, "probe")) {
		probe(&r, (uint32_t)strtoul(argument, NULL, 10));
		raw_free(&r);
		return;
	}
	if (!strcmp(word, "memory") || !strcmp(word, "map")) {
		if (!strcmp(word, "memory"))
			fill_memory(&r);
		else
			map_pages(&r, argument);
		raw_free(&r);
		return;
	}
	s = attach(&r, strcmp(word, "attach") != 0 ? "hot" : argument);
	raw_ask(&r, &s, &c);
	r.pool = handle_of(&c);
	if (!strcmp(word, "attach"))
		printf("%d %s\n", c.status, raw_text(&r, &c));
	else if (!strcmp(word, "store"))
		store(&r, (uint32_t)strtoul(argument, NULL, 10));
	else if (!strcmp(word, "found"))
		printf("%u\n",
		       cached_tokens(&r, (uint32_t)strtoul(argument, NULL, 10), PROBED_TOKENS));
	else if (!strcmp(word, "quota"))
		at_quota(&r);
	else if (!strcmp(word, "interactive"))
		open_with_rights(&r);
	raw_free(&r);
}

bool tenant_main(int argc, char **argv, int *status)
{
	if (argc != 5 || strcmp(argv[1], "tenant") != 0)
		return false;
	serve(argv[2], argv[3], argv[4]);
	*status = fflush(stdout) ? 1 : 0;
	return true;
}

/* ---- the test ---- */

static _Noreturn void become(const struct tenant *t, const char *socket, const char *word,
			     const char *argument)
{
	char *const argv[] = {(char *)(uintptr_t) "tenant", (char *)(uintptr_t) "tenant",
			      (char *)(uintptr_t)socket,    (char *)(uintptr_t)word,
			      (char *)(uintptr_t)argument,  NULL};
	char *const environment[] = {(char *)(uintptr_t)t->environment, NULL};
	gid_t group = t->group;

	if (setgroups(t->group ? 1 : 0, &group) || setresgid(t->uid, t->uid, t->uid) ||
	    setresuid(t->uid, t->uid, t->uid))
		_exit(98);
	execve("/proc/self/exe", argv, environment);
	_exit(99);
}

void tenant_begin(struct tenant *t, const char *socket, const char *word, const char *argument)
{
	int in[2], out[2];

	t->said[0] = 0;
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	t->pid = fork_client();
	if (t->pid == 0) {
		if (dup2(in[0], STDIN_FILENO) < 0 || dup2(out[1], STDOUT_FILENO) < 0)
			_exit(97);
		become(t, socket, word, argument);
	}
	close(in[0]);
	close(out[1]);
	t->in = in[1];
	t->out = out[0];
}

/* Until the end, or the end of a line. */
static void listen_to(struct tenant *t, bool line)
{
	size_t used = strlen(t->said);

	for (;;) {
		struct pollfd p = {.fd = t->out, .events = POLLIN};
		ssize_t n;

		assert_true(used + 1 < sizeof(t->said));
		if (poll(&p, 1, LONG_MS * PATIENCE) <= 0)
			fail_msg("a tenant said nothing for %d ms", LONG_MS * PATIENCE);
		n = read(t->out, t->said + used, sizeof(t->said) - used - 1);
		if (n <= 0)
			return;
		used += (size_t)n;
		t->said[used] = 0;
		if (line && t->said[used - 1] == '\n')
			return;
	}
}

void tenant_await_line(struct tenant *t)
{
	listen_to(t, true);
}

int tenant_end(struct tenant *t)
{
	int status;

	close(t->in);
	listen_to(t, false);
	close(t->out);
	status = await_child(t->pid, LONG_MS);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

void tenant_run(struct tenant *t, const char *socket, const char *word, const char *argument)
{
	int status;

	tenant_begin(t, socket, word, argument);
	status = tenant_end(t);
	if (status)
		fail_msg("user %u could not do %s %s: exit code %d, said: %s", t->uid, word,
			 argument, status, t->said);
}
