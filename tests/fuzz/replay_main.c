/* SPDX-License-Identifier: Apache-2.0 */

/*
 * replay_main: runs a fuzz target once for each file of a corpus, without a fuzzer.
 *
 * PROGRAM [FOLDER]: the folder is $srcdir/tests/fuzz/corpus/NAME for a program that is called
 * fuzz_NAME, unless named. One thread; reads files; speaks TAP.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

#define INPUT_BYTES_MAX (1 << 20)

static int choose(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

static bool replay(const char *folder, const char *name)
{
	char *path;
	uint8_t *bytes = malloc(INPUT_BYTES_MAX);
	FILE *f = NULL;
	bool ok = false;

	if (!bytes || asprintf(&path, "%s/%s", folder, name) < 0) {
		free(bytes);
		return false;
	}
	f = fopen(path, "re");
	if (f) {
		size_t n = fread(bytes, 1, INPUT_BYTES_MAX, f);
		/* Exactly as long as it is, so that a read beyond the end is seen. */
		uint8_t *exact = malloc(n > 0 ? n : 1);

		if (exact) {
			memcpy(exact, bytes, n);
			LLVMFuzzerTestOneInput(exact, n);
			free(exact);
			ok = !ferror(f);
		}
		fclose(f);
	}
	free(path);
	free(bytes);
	return ok;
}

/* fuzz_NAME, also behind a prefix that a build tool put before it. */
static char *default_folder(const char *program)
{
	const char *name = strstr(program, "fuzz_");
	const char *top = getenv("srcdir");
	char *folder;

	if (!name || asprintf(&folder, "%s/tests/fuzz/corpus/%s", top ? top : ".", name + 5) < 0)
		return NULL;
	return folder;
}

int main(int argc, char **argv)
{
	char *folder = argc > 1 ? strdup(argv[1]) : default_folder(program_invocation_short_name);
	struct dirent **inputs;
	int n, failed = 0;

	n = folder ? scandir(folder, &inputs, choose, alphasort) : -1;
	if (n <= 0) {
		printf("1..1\nnot ok 1 - corpus # nothing in %s\n", folder ? folder : "(none)");
		return 1;
	}
	printf("1..%d\n", n);
	for (int i = 0; i < n; i++) {
		bool ok = replay(folder, inputs[i]->d_name);

		failed += !ok;
		printf("%sok %d - %s\n", ok ? "" : "not ", i + 1, inputs[i]->d_name);
		fflush(stdout);
		free(inputs[i]);
	}
	free(inputs);
	free(folder);
	return failed ? 1 : 0;
}
