/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_trace: reads a trace. Main thread; blocks on the file.
 */
#include "tools/bench_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define LINE_BYTES     65536
#define LINE_BYTES_MAX (64u << 20)

struct reader {
	gzFile file;
	const char *path;
	uint64_t line_number;
	char *line; /* without its end */
	size_t capacity;
	size_t requests_capacity, ids_capacity;
};

enum reader_outcome {
	READER_END = 1,
};

static int reader_fail(const struct reader *reader, struct bench_reason *why, const char *text)
{
	return bench_reason_set(why, "%s:%" PRIu64 ": %s", reader->path, reader->line_number, text);
}

static int read_line(struct reader *reader, struct bench_reason *why)
{
	size_t used = 0;
	int code;

	reader->line_number++;
	for (;;) {
		if (used + 1 >= reader->capacity) {
			size_t capacity = reader->capacity ? 2 * reader->capacity : LINE_BYTES;
			char *line =
			    capacity > LINE_BYTES_MAX ? NULL : realloc(reader->line, capacity);

			if (!line)
				return reader_fail(reader, why, "the line is too long");
			reader->line = line;
			reader->capacity = capacity;
		}
		if (!gzgets(reader->file, reader->line + used, (int)(reader->capacity - used)))
			break;
		used += strlen(reader->line + used);
		if (used > 0 && reader->line[used - 1] == '\n') {
			reader->line[used - 1] = '\0';
			return 0;
		}
	}
	/* A file cut short inside its gzip stream must not pass for a shorter trace. */
	gzerror(reader->file, &code);
	if (code != Z_OK && code != Z_STREAM_END)
		return reader_fail(reader, why, "the file is damaged or cut short");
	return used > 0 ? 0 : READER_END;
}

/* A whole number from 0 to most; false if there is none. */
static bool get_count(const json_t *value, uint64_t most, uint64_t *out)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    (uint64_t)json_integer_value(value) > most)
		return false;
	*out = (uint64_t)json_integer_value(value);
	return true;
}

static bool make_room(void **array, size_t *capacity, size_t n, size_t bytes)
{
	size_t wanted = *capacity ? *capacity : 1024;
	void *larger;

	if (n <= *capacity)
		return true;
	while (wanted < n)
		wanted *= 2;
	larger = realloc(*array, wanted * bytes);
	if (!larger)
		return false;
	*array = larger;
	*capacity = wanted;
	return true;
}

static int add_ids(struct trace *t, struct reader *reader, const json_t *ids,
		   struct trace_request *request, struct bench_reason *why)
{
	void *array = t->ids;
	uint64_t id;

	if (!json_is_array(ids) || json_array_size(ids) == 0 || json_array_size(ids) > UINT32_MAX)
		return reader_fail(reader, why, "hash_ids: must be a list with at least one id");
	if (!make_room(&array, &reader->ids_capacity, t->n_ids + json_array_size(ids),
		       sizeof(*t->ids)))
		return reader_fail(reader, why, "no memory");
	t->ids = array;

	request->first_id = t->n_ids;
	request->n_ids = (uint32_t)json_array_size(ids);
	for (size_t i = 0; i < json_array_size(ids); i++) {
		if (!get_count(json_array_get(ids, i), UINT32_MAX, &id))
			return reader_fail(reader, why,
					   "hash_ids: an id must be a whole number from 0 to "
					   "4294967295");
		t->ids[t->n_ids++] = (uint32_t)id;
	}
	if (request->n_ids > t->most_ids)
		t->most_ids = request->n_ids;
	return 0;
}

static int add_request(struct trace *t, struct reader *reader, const json_t *root,
		       struct bench_reason *why)
{
	struct trace_request request = {0};
	void *array = t->requests;
	uint64_t input, output;

	if (!json_is_object(root))
		return reader_fail(reader, why, "must be a JSON object");
	if (!get_count(json_object_get(root, "timestamp"), INT64_MAX, &request.timestamp_ms))
		return reader_fail(reader, why, "timestamp: must be milliseconds, from 0 on");
	if (t->n_requests > 0 && request.timestamp_ms < t->requests[t->n_requests - 1].timestamp_ms)
		return reader_fail(reader, why, "timestamp: before that of the request above");
	if (!get_count(json_object_get(root, "input_length"), UINT32_MAX, &input))
		return reader_fail(reader, why, "input_length: must be tokens, from 0 on");
	if (!get_count(json_object_get(root, "output_length"), UINT32_MAX, &output))
		return reader_fail(reader, why, "output_length: must be tokens, from 0 on");
	request.input_tokens = (uint32_t)input;
	request.output_tokens = (uint32_t)output;
	if (add_ids(t, reader, json_object_get(root, "hash_ids"), &request, why))
		return -1;

	if (!make_room(&array, &reader->requests_capacity, t->n_requests + 1, sizeof(*t->requests)))
		return reader_fail(reader, why, "no memory");
	t->requests = array;
	t->requests[t->n_requests++] = request;
	return 0;
}

static int read_all(struct trace *t, struct reader *reader, struct bench_reason *why)
{
	json_error_t error;
	json_t *root;
	int r;

	for (;;) {
		r = read_line(reader, why);
		if (r)
			break;
		if (reader->line[strspn(reader->line, " \t\r")] == '\0')
			continue;
		root = json_loads(reader->line, JSON_REJECT_DUPLICATES, &error);
		if (!root)
			return bench_reason_set(why, "%s:%" PRIu64 ":%d: not JSON: %s",
						reader->path, reader->line_number, error.column,
						error.text);
		r = add_request(t, reader, root, why);
		json_decref(root);
		if (r)
			return r;
	}
	if (r < 0)
		return r;
	if (t->n_requests == 0)
		return bench_reason_set(why, "%s: has no requests", reader->path);
	return 0;
}

static int compare_ids(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

int trace_count_distinct(struct trace *t, struct bench_reason *why)
{
	uint32_t *sorted = malloc(t->n_ids * sizeof(*sorted));

	if (!sorted)
		return bench_reason_set(why, "no memory");
	memcpy(sorted, t->ids, t->n_ids * sizeof(*sorted));
	qsort(sorted, t->n_ids, sizeof(*sorted), compare_ids);
	t->distinct = 1;
	for (size_t i = 1; i < t->n_ids; i++)
		t->distinct += sorted[i] != sorted[i - 1];
	free(sorted);
	return 0;
}

int trace_load(struct trace *t, const char *path, struct bench_reason *why)
{
	struct reader reader = {.path = path};
	int r;

	*t = (struct trace){0};
	reader.file = gzopen(path, "rbe"); /* reads plain files too */
	if (!reader.file)
		return bench_reason_set(why, "%s: %s", path, strerror(errno));
	gzbuffer(reader.file, 1 << 17);
	r = read_all(t, &reader, why);
	if (r == 0)
		r = trace_count_distinct(t, why);
	gzclose(reader.file);
	free(reader.line);
	return r;
}

void trace_free(struct trace *t)
{
	free(t->requests);
	free(t->ids);
	*t = (struct trace){0};
}
