/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_made: traces made up from a seed. Main thread; `traces` blocks on its output.
 *
 * zipf: documents, some much more asked about than others, one question each time. scan: all
 * documents in turn, again and again. uniform: any document, all alike. mix: a third each of
 * conversations, of zipf over other documents and of a scan, so that habits change twice.
 * A question is a block of its own. The same seed makes the same trace everywhere.
 */
#include "tools/bench_made.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_TOKENS   512
#define EVERY_MS       250
#define DOCUMENTS_MOST 2048
#define TALKS          64 /* conversations at a time */
#define TALK_BLOCKS    96 /* of one, at most */

struct maker {
	struct trace *trace;
	size_t requests_room, ids_room;
	uint64_t random;
	uint32_t next_id;
	uint32_t first_id[DOCUMENTS_MOST]; /* of a document */
	uint32_t n_ids[DOCUMENTS_MOST];
	double up_to[DOCUMENTS_MOST]; /* zipf: sums of the documents' shares */
	uint32_t n_documents;
	uint32_t turn; /* scan */
	uint32_t talk[TALKS][TALK_BLOCKS];
	uint32_t talk_blocks[TALKS];
	bool failed; /* no memory */
};

static uint64_t draw(struct maker *m)
{
	uint64_t x = m->random += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint32_t draw_below(struct maker *m, uint32_t n)
{
	return (uint32_t)((draw(m) >> 32) * n >> 32);
}

static void *make_room(struct maker *m, void *array, size_t *room, size_t n, size_t bytes)
{
	size_t wanted = *room ? *room : 4096;
	void *larger;

	if (n <= *room)
		return array;
	while (wanted < n)
		wanted *= 2;
	larger = realloc(array, wanted * bytes);
	if (!larger) {
		m->failed = true;
		return array;
	}
	*room = wanted;
	return larger;
}

/* A request of these blocks and one question. */
static void ask(struct maker *m, const uint32_t *ids, uint32_t n)
{
	struct trace *t = m->trace;
	struct trace_request *request;

	t->ids = make_room(m, t->ids, &m->ids_room, t->n_ids + n + 1, sizeof(*t->ids));
	t->requests =
	    make_room(m, t->requests, &m->requests_room, t->n_requests + 1, sizeof(*t->requests));
	if (m->failed)
		return;
	request = &t->requests[t->n_requests];
	*request = (struct trace_request){.timestamp_ms = t->n_requests * EVERY_MS,
					  .first_id = t->n_ids,
					  .n_ids = n + 1,
					  .input_tokens = (n + 1) * BLOCK_TOKENS,
					  .output_tokens = BLOCK_TOKENS / 4};
	memcpy(t->ids + t->n_ids, ids, n * sizeof(*ids));
	t->ids[t->n_ids + n] = m->next_id++;
	t->n_ids += n + 1;
	t->n_requests++;
	if (request->n_ids > t->most_ids)
		t->most_ids = request->n_ids;
}

static void make_documents(struct maker *m, uint32_t n, uint32_t least, uint32_t most)
{
	double sum = 0;

	m->n_documents = n;
	m->turn = 0;
	for (uint32_t i = 0; i < n; i++) {
		m->first_id[i] = m->next_id;
		m->n_ids[i] = least + draw_below(m, most - least + 1);
		m->next_id += m->n_ids[i];
		sum += 1 / (double)(i + 1);
		m->up_to[i] = sum;
	}
}

static void ask_document(struct maker *m, uint32_t document)
{
	uint32_t ids[256];
	uint32_t n = m->n_ids[document];

	for (uint32_t i = 0; i < n; i++)
		ids[i] = m->first_id[document] + i;
	ask(m, ids, n);
}

static uint32_t draw_zipf(struct maker *m)
{
	double at = (double)(draw(m) >> 11) / 9007199254740992. * m->up_to[m->n_documents - 1];
	uint32_t low = 0, high = m->n_documents - 1;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (m->up_to[middle] < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void zipf(struct maker *m, uint64_t n)
{
	make_documents(m, DOCUMENTS_MOST, 4, 40);
	for (uint64_t i = 0; i < n; i++)
		ask_document(m, draw_zipf(m));
}

static void scan(struct maker *m, uint64_t n)
{
	make_documents(m, 400, 16, 16);
	for (uint64_t i = 0; i < n; i++)
		ask_document(m, m->turn++ % m->n_documents);
}

static void uniform(struct maker *m, uint64_t n)
{
	make_documents(m, 500, 16, 16);
	for (uint64_t i = 0; i < n; i++)
		ask_document(m, draw_below(m, m->n_documents));
}

/* One turn of some conversation: what it has, and a question and an answer more. */
static void talk(struct maker *m)
{
	uint32_t at = draw_below(m, TALKS);
	uint32_t *blocks = m->talk[at];

	if (m->talk_blocks[at] + 8 > TALK_BLOCKS || draw_below(m, 6) == 0)
		m->talk_blocks[at] = 0;
	for (uint32_t i = 1 + draw_below(m, 6); i > 0; i--)
		blocks[m->talk_blocks[at]++] = m->next_id++;
	ask(m, blocks, m->talk_blocks[at]);
}

static void mix(struct maker *m, uint64_t n)
{
	for (uint64_t i = 0; i < n / 3; i++)
		talk(m);
	zipf(m, n / 3);
	scan(m, n - n / 3 * 2);
}

int trace_make(struct trace *t, const char *kind, uint64_t seed, uint64_t n,
	       struct bench_reason *why)
{
	struct maker *m = calloc(1, sizeof(*m));

	*t = (struct trace){0};
	if (!m)
		return bench_reason_set(why, "no memory");
	m->trace = t;
	m->random = seed;
	if (strcmp(kind, "zipf") == 0)
		zipf(m, n);
	else if (strcmp(kind, "scan") == 0)
		scan(m, n);
	else if (strcmp(kind, "uniform") == 0)
		uniform(m, n);
	else
		mix(m, n);
	if (m->failed) {
		free(m);
		return bench_reason_set(why, "no memory");
	}
	free(m);
	return trace_count_distinct(t, why);
}

int bench_traces_run(const struct bench_options *o, FILE *out, struct bench_reason *why)
{
	struct trace t;
	int r = trace_make(&t, o->kind, o->seed, o->made_requests, why);

	for (size_t i = 0; r == 0 && i < t.n_requests; i++) {
		const struct trace_request *one = &t.requests[i];

		fprintf(out,
			"{\"timestamp\": %" PRIu64 ", \"input_length\": %u, \"output_length\": %u, "
			"\"hash_ids\": [",
			one->timestamp_ms, one->input_tokens, one->output_tokens);
		for (uint32_t k = 0; k < one->n_ids; k++)
			fprintf(out, "%s%u", k ? ", " : "", t.ids[one->first_id + k]);
		fprintf(out, "]}\n");
	}
	trace_free(&t);
	if (r == 0 && (fflush(out) != 0 || ferror(out)))
		r = bench_reason_set(why, "the trace cannot be written");
	return r;
}
