/* SPDX-License-Identifier: Apache-2.0 */
/* operator: see operator.h. Main thread; blocks for bounded times. */
#include "tests/e2e/operator.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

char operator_output[OPERATOR_OUTPUT_BYTES];

/* kvctl with at most four words, of this daemon: its exit status. */
int kvctl(const struct daemon *d, const char *a, const char *b, const char *c, const char *e)
{
	char *argv[12] = {"kvctl", "--socket", (char *)(uintptr_t)d->socket, "--stats",
			  (char *)(uintptr_t)d->stats};
	const char *words[] = {a, b, c, e};
	int n = 5;

	for (size_t i = 0; i < 4 && words[i]; i++)
		argv[n++] = (char *)(uintptr_t)words[i];
	return run_program(argv, operator_output, sizeof(operator_output), LONG_MS);
}

bool says(const char *text)
{
	if (strstr(operator_output, text))
		return true;
	fprintf(stderr, "# not in the output: %s\n%s\n", text, operator_output);
	return false;
}

unsigned count_of(const char *text)
{
	unsigned n = 0;

	for (const char *at = operator_output; (at = strstr(at, text)); at += strlen(text))
		n++;
	return n;
}

void read_log(const struct daemon *d)
{
	char path[96];
	FILE *f;
	size_t n;

	(void)snprintf(path, sizeof(path), "%s/log", d->folder);
	f = fopen(path, "re");
	assert_non_null(f);
	n = fread(operator_output, 1, sizeof(operator_output) - 1, f);
	operator_output[n] = 0;
	fclose(f);
}

/* kvhostd --check-config with one variable: its exit status. */
int check_config(const char *variable)
{
	char program[512];
	int ends[2], status;
	size_t used = 0;
	ssize_t n;
	pid_t child;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	build_path("kvhostd", program, sizeof(program));
	child = fork_client();
	if (child == 0) {
		putenv((char *)(uintptr_t)variable);
		if (dup2(ends[1], STDOUT_FILENO) < 0 || dup2(ends[1], STDERR_FILENO) < 0)
			_exit(99);
		execl(program, program, "--check-config", (char *)NULL);
		_exit(99);
	}
	close(ends[1]);
	while ((n = read(ends[0], operator_output + used, sizeof(operator_output) - used - 1)) > 0)
		used += (size_t)n;
	operator_output[used] = 0;
	close(ends[0]);
	status = await_child(child, LONG_MS);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

json_int_t number_at(const json_t *root, const char *path)
{
	const json_t *at = root;

	while (at && *path) {
		size_t n = strcspn(path, ".");
		char key[64];

		assert_true(n < sizeof(key));
		memcpy(key, path, n);
		key[n] = 0;
		at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
				       : json_object_get(at, key);
		path += n + (path[n] == '.');
	}
	if (!json_is_integer(at))
		fail_msg("no number at the path that ends with %s", path);
	return json_integer_value(at);
}

json_int_t said_number(const char *path)
{
	json_t *root = json_loads(operator_output, 0, NULL);
	json_int_t value;

	assert_non_null(root);
	value = number_at(root, path);
	json_decref(root);
	return value;
}

const char *diagnosis(const char *check, const char *key)
{
	static char text[1024];
	json_t *root = json_loads(operator_output, 0, NULL), *row;
	const char *found = NULL;
	size_t i;

	assert_non_null(root);
	json_array_foreach(json_object_get(root, "checks"), i, row)
	{
		const char *name = json_string_value(json_object_get(row, "check"));

		if (!found && name && !strcmp(name, check))
			found = json_string_value(json_object_get(row, key));
	}
	(void)snprintf(text, sizeof(text), "%s", found ? found : "");
	json_decref(root);
	return text;
}
