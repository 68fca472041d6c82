/* SPDX-License-Identifier: Apache-2.0 */

/*
 * layout: sizes, offsets and values that both processes agree on, against a checked-in text.
 *
 * layout [FILE]: compare; FILE is $srcdir/tests/golden/layout.txt unless named.
 * layout --update FILE: write it. A difference is a change of the protocol: raise its version.
 * One thread; speaks TAP.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/control.h"
#include "shm/message.h"
#include "shm/payload.h"
#include "shm/statsfile.h"

struct row {
	const char *of;    /* struct */
	const char *field; /* NULL = the struct itself */
	size_t offset;
	size_t bytes;
};

static const struct row rows[] = {
#define STRUCT(s)   {#s, NULL, 0, sizeof(struct s)},
#define FIELD(s, f) {#s, #f, offsetof(struct s, f), sizeof(((struct s *)0)->f)},
#include "tests/golden/layout.def"
#undef STRUCT
#undef FIELD
};

struct value {
	const char *name;
	long long value;
};

static const struct value values[] = {
#define OPCODE(name, value, text) {#name, value},
#include "shm/opcodes.def"
#undef OPCODE
#define ERROR_CODE(name, value, text) {#name, value},
#include "shm/errors.def"
#undef ERROR_CODE
#define VALUE(name) {#name, (long long)(name)},
#include "tests/golden/values.def"
#undef VALUE
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A field that layout.def forgot shows as a gap: fields of a struct must follow each other. */
static bool has_gap(size_t i)
{
	size_t end = rows[i].offset + rows[i].bytes;
	bool last = i + 1 == COUNT(rows) || !rows[i + 1].field;

	if (!last)
		return rows[i + 1].offset != end;
	for (size_t k = i; k > 0; k--)
		if (!rows[k - 1].field)
			return rows[k - 1].bytes != end;
	return true;
}

static void write_layout(FILE *out)
{
	fprintf(out, "struct or field: offset bytes\n");
	for (size_t i = 0; i < COUNT(rows); i++) {
		if (!rows[i].field)
			fprintf(out, "\nstruct %s: - %zu\n", rows[i].of, rows[i].bytes);
		else
			fprintf(out, "  %s: %zu %zu%s\n", rows[i].field, rows[i].offset,
				rows[i].bytes, has_gap(i) ? " GAP" : "");
	}
	fprintf(out, "\nname: value\n\n");
	for (size_t i = 0; i < COUNT(values); i++)
		fprintf(out, "%s: %lld\n", values[i].name, values[i].value);
}

/* Lines of two texts, side by side as far as they differ. Returns how many do. */
static unsigned compare(FILE *wanted, FILE *got)
{
	char *a = NULL, *b = NULL;
	size_t a_room = 0, b_room = 0;
	unsigned different = 0;

	for (;;) {
		ssize_t n = getline(&a, &a_room, wanted);
		ssize_t m = getline(&b, &b_room, got);

		if (n < 0 && m < 0)
			break;
		if (n < 0 || m < 0 || strcmp(a, b) != 0) {
			different++;
			printf("# checked in: %s", n < 0 ? "(end)\n" : a);
			printf("# now:        %s", m < 0 ? "(end)\n" : b);
		}
		if (n < 0 || m < 0)
			break;
	}
	free(a);
	free(b);
	return different;
}

static int update(const char *path)
{
	FILE *f = fopen(path, "we");

	if (!f) {
		perror(path);
		return 1;
	}
	write_layout(f);
	return fclose(f) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
	const char *top = getenv("srcdir");
	char *path = NULL;
	FILE *wanted, *got;
	unsigned different;

	if (argc == 3 && strcmp(argv[1], "--update") == 0)
		return update(argv[2]);
	if (argc > 1)
		path = strdup(argv[1]);
	else if (asprintf(&path, "%s/tests/golden/layout.txt", top ? top : ".") < 0)
		path = NULL;
	if (!path)
		return 1;

	printf("1..2\n");
	for (size_t i = different = 0; i < COUNT(rows); i++)
		different += rows[i].field && has_gap(i);
	printf("%sok 1 - every_field_is_in_the_list\n", different ? "not " : "");

	wanted = fopen(path, "re");
	got = tmpfile();
	if (!wanted || !got) {
		printf("not ok 2 - the_layout_is_the_one_checked_in # %s\n", path);
		return 1;
	}
	write_layout(got);
	rewind(got);
	different += compare(wanted, got);
	printf("%sok 2 - the_layout_is_the_one_checked_in\n", different ? "not " : "");
	fclose(wanted);
	fclose(got);
	free(path);
	return different ? 1 : 0;
}
